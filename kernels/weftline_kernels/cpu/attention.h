/* Attention of work items over blocks of the KV cache, and the merge of their partial results. */
#pragma once

#include "step.h"

#define SCORES 128  /* tokens whose scores are computed before their values are added */
#define MOST_ROWS 384 /* rows that share a span; their queries take at most 400 KB of stack */
#define QUERIES TILE /* rows (query x head of a group) that are computed at once */
/* Whether to prefetch. With so few rows the speed is that of memory, and the processor cannot predict
 * the address of the next block. Without this, half the time of a decode step's attention was spent on
 * the first access to values. */
#define FETCHES(rows) (LANES == 8 && (rows) <= 4)

/* Interleaves `rows` queries: two components of each, then the next two of each, and so on. */
static void lay(const float *const q[], int rows, int64_t size, act *laid) {
    for (int64_t i = 0; i < size; i += 2)
        for (int r = 0; r < rows; r++, laid += 2)
            laid[0] = act_of(q[r][i]), laid[1] = act_of(q[r][i + 1]);
}

/* Computes the scores of `rows` interleaved queries for two vectors of tokens. Prefetches the keys and
 * the values that are needed next. */
INLINE void score(const act *laid, const int rows, const u16 *left, const u16 *right,
                  const u16 *key, const u16 *value, int64_t size, vec sums[][2]) {
    vec totals[QUERIES][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) totals[r][0] = totals[r][1] = (vec){};
    for (int64_t i = 0; i < size; i += 2, laid += 2 * rows) {
        const act *at[QUERIES];
        if (FETCHES(rows)) {
            __builtin_prefetch(key + i * BLOCK);
            __builtin_prefetch(value + i * BLOCK);
        }
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) at[r] = laid + 2 * r;
        pairs(totals, rows, 2, at, left + i * BLOCK, right + i * BLOCK);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r][0] = totals[r][0], sums[r][1] = totals[r][1];
}

/* Adds weights times values of a span to n vectors of out[r], from component `at` on. */
INLINE void weigh(float *const out[], const int rows, const int n, const act *weights,
                  const u16 *const block[], int64_t size, int64_t at, int tokens) {
    vec totals[QUERIES][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) totals[r][v] = load(out[r] + at + v * LANES);
    for (int begin = 0; begin < tokens; begin += BLOCK) {
        const u16 *values = block[begin / BLOCK] + value_at(0, at, size);
        const act *first = weights + begin;
        const act *end = first + (tokens - begin < BLOCK ? tokens - begin : BLOCK);
        for (; first < end; first += 2, values += 2 * size) { /* weights after the last are 0 */
            const act *of[QUERIES];
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) of[r] = first + r * SCORES;
            pairs(totals, rows, n, of, values, values + 2 * LANES);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) store(out[r] + at + v * LANES, totals[r][v]);
}

/* Computes the weights exp(score - highest score so far) of one row's `tokens` scores. The row sees
 * the first `own` of them, without those before `since`. Scales the row's sums so far to the new highest score. */
INLINE void soften(float *row, act *weights, int tokens, int since, int own, float *out,
                   float *top, float *weight, int64_t size) {
    int computed = (tokens + 2 * LANES - 1) / (2 * LANES) * (2 * LANES);
    for (int t = 0; t < since; t++) row[t] = -INFINITY;
    for (int t = own; t < computed; t++) row[t] = -INFINITY;
    vec highs = all(*top); /* `larger` drops NaN here, but exp_of returns NaN for it */
    for (int t = 0; t < tokens; t += LANES) highs = larger(load(row + t), highs);
    float high = largest(highs);
    vec total = {};
    for (int t = 0; t < tokens; t += LANES) {
        vec p = exp_of(load(row + t) - high);
        total += p;
        put_act(weights + t, p);
    }
    if (high != *top) { /* rare after the first spans */
        float keep = expf(*top - high);
        *weight *= keep;
        for (int64_t i = 0; i < size; i += LANES) store(out + i, load(out + i) * keep);
        *top = high;
    }
    *weight += sum(total);
}

/* Rows (query x head of the group, in that order) of an item for one KV head. */
typedef struct {
    const float *q[QUERIES];
    float *out[QUERIES], *top[QUERIES], *weight[QUERIES];
    int32_t since[QUERIES], seen[QUERIES], least, most; /* a row sees the tokens from one to the other */
    float scale, cap;                                   /* of scores */
} Rows;

/* The keys and values of a KV head, and the window of its layer. */
typedef struct {
    const u16 *keys, *values;
    int64_t head, window;
} Keys;

/* Up to SCORES tokens of an item: their KV blocks, and the number of the first token. */
typedef struct {
    const u16 *key[SCORES / BLOCK], *value[SCORES / BLOCK];
    int32_t begin;
} Span;

/* Computes the attention of a batch of rows to a span. */
INLINE void attend_rows(const Rows *batch, const int rows, const act *laid, const Span *span,
                        int32_t tokens, int64_t size) {
    float scores[QUERIES * SCORES], scale = batch->scale;
    act weights[QUERIES * SCORES];
    for (int t = 0; t < tokens; t += 2 * LANES) {
        vec sums[QUERIES][2];
        const u16 *left = span->key[t / BLOCK] + 2 * (t % BLOCK), *right = left;
        if (LANES < BLOCK) right = left + 2 * LANES;
        else if (t + LANES < tokens) right = span->key[t / BLOCK + 1];
        const u16 *next = span->key[(t + BLOCK < tokens ? t + BLOCK : t) / BLOCK];
        score(laid, rows, left, right, next, span->value[t / BLOCK], size, sums);
        for (int r = 0; r < rows; r++)
            for (int v = 0; v < 2; v++) {
                vec value = sums[r][v] * scale;
                if (batch->cap > 0) value = capped(value, batch->cap);
                store(scores + r * SCORES + t + v * LANES, value);
            }
    }
    for (int r = 0; r < rows; r++) {
        int32_t own = batch->seen[r] - span->begin, since = batch->since[r] - span->begin;
        own = own < 0 ? 0 : own < tokens ? own : tokens;
        soften(scores + r * SCORES, weights + r * SCORES, tokens, since < own ? since : own, own,
               batch->out[r], batch->top[r], batch->weight[r], size);
    }
    int64_t i = 0;
    for (; i + 2 * LANES <= size; i += 2 * LANES)
        weigh(batch->out, rows, 2, weights, span->value, size, i, tokens);
    if (i < size) weigh(batch->out, rows, 1, weights, span->value, size, i, tokens);
}

/* A copy of the code for each number of rows, so that the sums stay in registers. */
#define OF(n) static __attribute__((noinline)) void \
    attend##n(const Rows *rows, const act *laid, const Span *span, int32_t tokens, \
              int64_t size) { attend_rows(rows, n, laid, span, tokens, size); }
OF(1) OF(3)
#if TILE > 3
OF(4) OF(6)
#endif
#if TILE > 6
OF(8) OF(12)
#endif
#undef OF

/* Returns the largest batch of at most `left` rows for which there is a copy of the code. */
INLINE int batch_of(int64_t left) {
    if (TILE > 6 && left >= 8) return left >= 12 ? 12 : 8;
    if (TILE > 3 && left >= 4) return left >= 6 ? 6 : 4;
    return left >= 3 ? 3 : 1;
}

static void find_rows(const Model *m, const Step *s, const Item *item, const Keys *kv,
                      int64_t first, int count, Rows *rows) {
    int64_t size = m->head_size, group = m->heads / m->kv_heads;
    int64_t wide = (m->heads + 2 * m->kv_heads) * size;
    rows->most = 0, rows->least = item->length;
    rows->scale = m->score_scale, rows->cap = m->score_cap;
    for (int r = 0; r < count; r++) {
        int64_t slot = item->query_at + (first + r) / group;
        int64_t head = kv->head * group + (first + r) % group;
        rows->q[r] = s->qkv + s->query[slot] * wide + head * size;
        rows->seen[r] = s->visible[slot];
        rows->since[r] = 0;
        if (kv->window) /* the first position that the row sees, counted from the item's first */
            rows->since[r] = s->positions[s->query[slot]] + 1 - kv->window - item->start;
        if (rows->since[r] < rows->least) rows->least = rows->since[r];
        rows->out[r] = s->partial + (slot * m->heads + head) * size;
        rows->top[r] = s->top + slot * m->heads + head;
        rows->weight[r] = s->weight + slot * m->heads + head;
        if (rows->seen[r] > rows->most) rows->most = rows->seen[r];
    }
}

/* Computes `count` rows of an item, from `from` on, for one KV head. It goes span by span, so a
 * span stays in the processor's cache for all rows. */
static void attend_some(const Model *m, const Step *s, const Item *item, const Keys *kv,
                        int64_t from, int64_t count) {
    int64_t size = m->head_size;
    act laid[count * size];
    Rows rows;
    for (int64_t first = 0; first < count; first += batch_of(count - first)) {
        int some = batch_of(count - first);
        find_rows(m, s, item, kv, from + first, some, &rows);
        lay(rows.q, some, size, laid + first * size);
        for (int r = 0; r < some; r++) {
            memset(rows.out[r], 0, 4 * size);
            *rows.top[r] = -1e30f;
            *rows.weight[r] = 0;
        }
    }
    for (int32_t begin = 0; begin < item->length; begin += SCORES) {
        Span span = {.begin = begin};
        for (int32_t t = begin; t < item->length && t < begin + SCORES; t += BLOCK) {
            int64_t at = s->block[item->block_at + t / BLOCK] * size * BLOCK;
            span.key[(t - begin) / BLOCK] = kv->keys + at;
            span.value[(t - begin) / BLOCK] = kv->values + at;
        }
        for (int64_t first = 0; first < count; first += batch_of(count - first)) {
            int some = batch_of(count - first);
            find_rows(m, s, item, kv, from + first, some, &rows);
            int32_t tokens = rows.most - begin < SCORES ? rows.most - begin : SCORES;
            /* A span that no row sees adds exact zeros. So leaving it out changes no bit. */
            if (tokens <= 0 || rows.least >= begin + SCORES) continue;
            switch (some) {
#define BATCH(n) case n: attend##n(&rows, laid + first * size, &span, tokens, size); break;
                BATCH(1) BATCH(3)
#if TILE > 3
                BATCH(4) BATCH(6)
#endif
#if TILE > 6
                BATCH(8) BATCH(12)
#endif
#undef BATCH
            }
        }
    }
}

/* Computes all rows of an item for one KV head. */
static void attend(const Model *m, const Step *s, const Item *item, const Keys *kv) {
    int64_t count = item->queries * (m->heads / m->kv_heads);
    for (int64_t from = 0; from < count; from += MOST_ROWS) {
        int64_t left = count - from;
        attend_some(m, s, item, kv, from, left < MOST_ROWS ? left : MOST_ROWS);
    }
}

/* Merges a row's partial results, each weighted by exp(its top - the highest top). */
static void merge(const Model *m, const Step *s, int64_t row) {
    int64_t size = m->head_size;
    act *out = s->attended + row * stride_of(m->heads * size);
    for (int64_t head = 0; head < m->heads; head++, out += size) {
        float high = -INFINITY, total = 0;
        int32_t begin = s->part_at[row], end = s->part_at[row + 1];
        for (int32_t i = begin; i < end; i++) {
            float top = s->top[(int64_t)s->part[i] * m->heads + head];
            if (top > high || top != top) high = top;
        }
        for (int32_t i = begin; i < end; i++) { /* replace each top by its weight */
            int64_t slot = (int64_t)s->part[i] * m->heads + head;
            s->top[slot] = expf(s->top[slot] - high);
            total += s->weight[slot] * s->top[slot];
        }
        for (int64_t j = 0; j < size; j += LANES) {
            vec value = {};
            for (int32_t i = begin; i < end; i++) {
                int64_t slot = (int64_t)s->part[i] * m->heads + head;
                value += load(s->partial + slot * size + j) * s->top[slot];
            }
            put_act(out + j, value / total);
        }
    }
}

/* Computes the attention of a step to one layer's keys and values. */
INLINE void attend_all(const Model *m, const Step *s, const Layer *layer, const u16 *keys,
                       const u16 *values) {
    int64_t head = s->blocks * m->head_size * BLOCK;
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t i = 0; i < s->items; i++)
        for (int64_t k = 0; k < m->kv_heads; k++) {
            Keys kv = {keys + k * head, values + k * head, k, layer->window};
            attend(m, s, s->item + i, &kv);
        }
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++) merge(m, s, t);
}
