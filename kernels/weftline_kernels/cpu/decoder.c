/* The forward pass of a Llama-like decoder on a CPU: all layers of a step in one parallel region.
 *
 * Weights are bfloat16 in panels of columns. The residual stream is float32, the KV cache
 * bfloat16. A page is a KV block of 16 tokens. Keys are stored transposed in their page: a vector
 * holds one component of 16 tokens, so a score needs no sum across lanes. GCC's vector extension
 * compiles the same source for AVX-512, AVX2 and NEON. A few steps use intrinsics.
 *
 * T = tokens of the step, C = hidden, N = query heads, K = KV heads, G = N / K, H = head size.
 */

#include <omp.h>

#include "attention.h"

/* Returns the factor that makes the root mean square of x equal to 1. */
static float scale_of(const float *x, int64_t width, float eps) {
    vec squares = {};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) squares += load(x + i) * load(x + i);
    float total = sum(squares);
    for (; i < width; i++) total += x[i] * x[i];
    return 1.0f / sqrtf(total / width + eps);
}

static void normalise(const float *x, const float *weight, int64_t width, float eps, act *out) {
    vec scale = all(scale_of(x, width, eps));
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) put_act(out + i, load(x + i) * scale * load(weight + i));
    for (; i < width; i++) out[i] = act_of(x[i] * scale[0] * weight[i]);
}

/* Normalises a head if the model does so, then rotates it by its position (RoPE). */
static void turn(float *head, const float *norm, const float *cosine, const float *sine,
                 int64_t size, float eps) {
    int64_t half = size / 2;
    if (norm) {
        float scale = scale_of(head, size, eps);
        for (int64_t i = 0; i < size; i++) head[i] *= scale * norm[i];
    }
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* Rotates a token's heads, and writes its keys (transposed) and values to the cache. */
static void place(const Model *m, const Layer *layer, const Step *s, int64_t token, u16 *keys,
                  u16 *values) {
    int64_t size = m->head_size, wide = (m->heads + 2 * m->kv_heads) * size;
    const float *cosine = s->cosine + token * size / 2, *sine = s->sine + token * size / 2;
    float *head = s->qkv + token * wide;
    for (int64_t n = 0; n < m->heads; n++, head += size)
        turn(head, layer->q_norm, cosine, sine, size, m->eps);
    int64_t page = s->slots[token] / PAGE, row = s->slots[token] % PAGE;
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        turn(head, layer->k_norm, cosine, sine, size, m->eps);
        u16 *to = keys + (k * s->pages + page) * size * PAGE;
        for (int64_t i = 0; i < size; i++) to[key_at(row, i)] = narrow(head[i]);
    }
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        u16 *to = values + (k * s->pages + page) * size * PAGE;
        for (int64_t i = 0; i < size; i++) to[value_at(row, i, size)] = narrow(head[i]);
    }
}

static void run_layer(const Model *m, const Step *s, int64_t index) {
    const Layer *layer = m->layer + index;
    int64_t hidden = m->hidden, size = m->head_size, query = m->heads * size, tokens = s->tokens;
    int64_t wide = query + 2 * m->kv_heads * size, span = m->kv_heads * s->pages * size * PAGE;
    u16 *keys = s->cache + 2 * index * span, *values = keys + span;
    Plain qkv = {s->qkv, layer->qkv_bias, wide}, back = {s->x, 0, hidden};
    Gated gated = {s->gated, m->mlp, stride_of(m->mlp)};
    int64_t stride = stride_of(hidden);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++)
        normalise(s->x + t * hidden, layer->attention_norm, hidden, m->eps, s->normed + t * stride);
    multiply(s->normed, tokens, hidden, layer->qkv, (wide + PANEL - 1) / PANEL, put, &qkv);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++) place(m, layer, s, t, keys, values);
#pragma omp for collapse(2) schedule(dynamic, 1)
    for (int64_t i = 0; i < s->items; i++)
        for (int64_t k = 0; k < m->kv_heads; k++)
            attend(m, s, s->item + i, k, keys + k * s->pages * size * PAGE,
                   values + k * s->pages * size * PAGE);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++) merge(m, s, t);
    multiply(s->attended, tokens, query, layer->out, (hidden + PANEL - 1) / PANEL, add, &back);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++)
        normalise(s->x + t * hidden, layer->mlp_norm, hidden, m->eps, s->normed + t * stride);
    multiply(s->normed, tokens, hidden, layer->gate_up, (m->mlp + LANES - 1) / LANES, gate, &gated);
    multiply(s->gated, tokens, m->mlp, layer->down, (hidden + PANEL - 1) / PANEL, add, &back);
}

/* Returns the columns of a panel, which the caller packs the weights by. */
int32_t weftline_panel(void) { return PANEL; }

void weftline_forward(const Model *m, const Step *s) {
    int64_t hidden = m->hidden, stride = stride_of(hidden);
#pragma omp parallel num_threads(s->threads)
    {
#pragma omp for
        for (int64_t t = 0; t < s->tokens; t++)
            for (int64_t i = 0; i < hidden; i++)
                s->x[t * hidden + i] = widen(m->embedding[s->ids[t] * hidden + i]);
        for (int64_t index = 0; index < m->layers; index++) run_layer(m, s, index);
#pragma omp for
        for (int64_t r = 0; r < s->rows; r++)
            normalise(s->x + s->wanted[r] * hidden, m->norm, hidden, m->eps,
                      s->normed + r * stride);
        Plain logits = {s->logits, 0, m->vocabulary};
        multiply(s->normed, s->rows, hidden, m->head, (m->vocabulary + PANEL - 1) / PANEL, put,
                 &logits);
    }
}
