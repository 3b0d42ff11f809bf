/* Work on single rows of a step: norms, rotations, and the writes to the KV cache. */
#pragma once

#include "step.h"

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
    int64_t block = s->slots[token] / BLOCK, row = s->slots[token] % BLOCK;
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        turn(head, layer->k_norm, cosine, sine, size, m->eps);
        u16 *to = keys + (k * s->blocks + block) * size * BLOCK;
        for (int64_t i = 0; i < size; i++) to[key_at(row, i)] = narrow(head[i]);
    }
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        u16 *to = values + (k * s->blocks + block) * size * BLOCK;
        for (int64_t i = 0; i < size; i++) to[value_at(row, i, size)] = narrow(head[i]);
    }
}
