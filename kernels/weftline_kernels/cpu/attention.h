/* Attention over pages by work items, partial results, and their merge by log-sum-exp. */
#pragma once

#include "step.h"

#define SCORES 128  /* tokens whose scores are kept before they are weighed */
#define QUERIES 12  /* rows (query x head of a group) of attention at once */

/* Scores of up to QUERIES rows for one page: row r of q times the transposed keys. */
static inline __attribute__((always_inline)) void
score(const float *const q[], int rows, const u16 *keys, int64_t size, v16 sums[]) {
    for (int r = 0; r < rows; r++) sums[r] = (v16){};
    for (int64_t i = 0; i < size; i++) {
        v16 key = widen16(keys + i * PAGE);
        for (int r = 0; r < rows; r++) sums[r] += q[r][i] * key;
    }
}

/* out[r] (vectors from `at` on) += weights of a row times values, over `tokens` of one page. */
static inline __attribute__((always_inline)) void
weigh(float *const out[], int rows, const float *weights, const u16 *values, int64_t size,
      int64_t at, int vectors, int tokens) {
    v16 sums[QUERIES][2];
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) sums[r][v] = load(out[r] + at + v * LANES);
    for (int t = 0; t < tokens; t++)
        for (int v = 0; v < vectors; v++) {
            v16 value = widen16(values + t * size + at + v * LANES);
            for (int r = 0; r < rows; r++) sums[r][v] += weights[r * SCORES + t] * value;
        }
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < vectors; v++) store(out[r] + at + v * LANES, sums[r][v]);
}

/* Attention of up to QUERIES rows of one item and one KV head, SCORES tokens at a time. */
static inline __attribute__((always_inline)) void
attend_rows(const Step *s, const Item *item, int rows, const float *const q[],
            const int32_t seen[], float *const out[], float *const top[], float *const weight[],
            const u16 *keys, const u16 *values, int64_t size, float scale) {
    float scores[QUERIES * SCORES];
    int32_t most = 0;
    for (int r = 0; r < rows; r++) {
        memset(out[r], 0, 4 * size);
        *top[r] = -1e30f;
        *weight[r] = 0;
        if (seen[r] > most) most = seen[r];
    }
    for (int32_t begin = 0; begin < most; begin += SCORES) {
        int32_t tokens = most - begin < SCORES ? most - begin : SCORES;
        for (int32_t t = 0; t < tokens; t += PAGE) {
            v16 sums[QUERIES];
            int64_t page = s->page[item->page_at + (begin + t) / PAGE];
            score(q, rows, keys + page * size * PAGE, size, sums);
            for (int r = 0; r < rows; r++) store(scores + r * SCORES + t, sums[r] * scale);
        }
        for (int r = 0; r < rows; r++) {
            float *row = scores + r * SCORES, high = *top[r];
            int32_t own = seen[r] - begin < tokens ? seen[r] - begin : tokens;
            if (own < 0) own = 0;
            for (int32_t t = own; t < (tokens + PAGE - 1) / PAGE * PAGE; t++) row[t] = -INFINITY;
            v16 highs = all(high); /* NaN is left to exp16, and comes out in the weight */
            for (int32_t t = 0; t < tokens; t += LANES) highs = larger(load(row + t), highs);
            for (int i = 0; i < LANES; i++) high = highs[i] > high ? highs[i] : high;
            float keep = expf(*top[r] - high);
            v16 total = {};
            for (int32_t t = 0; t < tokens; t += LANES) {
                v16 p = exp16(load(row + t) - high);
                total += p;
                store(row + t, p);
            }
            *weight[r] = *weight[r] * keep + sum(total);
            *top[r] = high;
            if (keep != 1)
                for (int64_t i = 0; i < size; i++) out[r][i] *= keep;
        }
        for (int32_t t = 0; t < tokens; t += PAGE) {
            const u16 *at = values + s->page[item->page_at + (begin + t) / PAGE] * size * PAGE;
            int count = tokens - t < PAGE ? tokens - t : PAGE;
            int64_t i = 0;
            for (; i + 2 * LANES <= size; i += 2 * LANES)
                weigh(out, rows, scores + t, at, size, i, 2, count);
            if (i < size) weigh(out, rows, scores + t, at, size, i, 1, count);
        }
    }
}

/* All rows (query x head of the group) of one item and one KV head. */
static void attend(const Model *m, const Step *s, const Item *item, int64_t kv, const u16 *keys,
                   const u16 *values) {
    int64_t size = m->head_size, group = m->heads / m->kv_heads;
    int64_t wide = (m->heads + 2 * m->kv_heads) * size, rows = item->queries * group;
    float scale = 1.0f / sqrtf((float)size);
    for (int64_t first = 0; first < rows; first += QUERIES) {
        const float *q[QUERIES];
        float *out[QUERIES], *top[QUERIES], *weight[QUERIES];
        int32_t seen[QUERIES];
        int count = rows - first < QUERIES ? (int)(rows - first) : QUERIES;
        for (int r = 0; r < count; r++) {
            int64_t slot = item->query_at + (first + r) / group;
            int64_t head = kv * group + (first + r) % group;
            q[r] = s->qkv + s->query[slot] * wide + head * size;
            seen[r] = s->visible[slot];
            out[r] = s->partial + (slot * m->heads + head) * size;
            top[r] = s->top + slot * m->heads + head;
            weight[r] = s->weight + slot * m->heads + head;
        }
        int done = 0;
        /* One copy of the code for each number of rows, so that sums stay in registers. */
#define BATCH(n) for (; done + n <= count; done += n) \
    attend_rows(s, item, n, q + done, seen + done, out + done, top + done, weight + done, keys, \
                values, size, scale);
        BATCH(12) BATCH(8) BATCH(6) BATCH(4) BATCH(3) BATCH(1)
#undef BATCH
    }
}

/* Merge a row's partial results, each weighted by exp(its top - the highest top). */
static void merge(const Model *m, const Step *s, int64_t row) {
    int64_t size = m->head_size;
    for (int64_t head = 0; head < m->heads; head++) {
        float *out = s->attended + (row * m->heads + head) * size, high = -INFINITY, total = 0;
        int32_t begin = s->part_at[row], end = s->part_at[row + 1];
        for (int32_t i = begin; i < end; i++) {
            float top = s->top[(int64_t)s->part[i] * m->heads + head];
            if (top > high || top != top) high = top;
        }
        memset(out, 0, 4 * size);
        for (int32_t i = begin; i < end; i++) {
            int64_t slot = (int64_t)s->part[i] * m->heads + head;
            float keep = expf(s->top[slot] - high);
            const float *from = s->partial + slot * size;
            total += s->weight[slot] * keep;
            for (int64_t j = 0; j < size; j++) out[j] += from[j] * keep;
        }
        for (int64_t j = 0; j < size; j++) out[j] /= total;
    }
}
