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

/* The product of two rows. */
static float dot(const float *x, const float *y, int64_t width) {
    vec products = {};
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) products += load(x + i) * load(y + i);
    float total = sum(products);
    for (; i < width; i++) total += x[i] * y[i];
    return total;
}

/* Writes a row, normalised if there is a weight, as inputs of a product. */
static void normalise(const float *x, const float *weight, int64_t width, float eps, act *out) {
    int64_t i = 0;
    if (!weight) {
        for (; i + LANES <= width; i += LANES) put_act(out + i, load(x + i));
        for (; i < width; i++) out[i] = act_of(x[i]);
        return;
    }
    vec scale = all(scale_of(x, width, eps));
    for (; i + LANES <= width; i += LANES) put_act(out + i, load(x + i) * scale * load(weight + i));
    for (; i < width; i++) out[i] = act_of(x[i] * scale[0] * weight[i]);
}

/* Normalises numbers where they lie. */
static void rescale(float *x, const float *weight, int64_t width, float eps) {
    float scale = scale_of(x, width, eps);
    for (int64_t i = 0; i < width; i++) x[i] *= scale * weight[i];
}

/* to += factor * x, where x is normalised. */
static void add_normalised(const float *x, const float *weight, int64_t width, float eps,
                           float factor, float *to) {
    float scale = scale_of(x, width, eps);
    for (int64_t i = 0; i < width; i++) to[i] += x[i] * scale * weight[i] * factor;
}

/* Rotates the first 2 * half components of a head by its position (RoPE). */
static void turn(float *head, const float *cosine, const float *sine, int64_t half) {
    for (int64_t i = 0; i < half; i++) {
        float a = head[i], b = head[i + half];
        head[i] = a * cosine[i] - b * sine[i];
        head[i + half] = b * cosine[i] + a * sine[i];
    }
}

/* Normalises the heads of a token's queries and of its keys if the model does so. */
static void normalise_heads(const Model *m, const Layer *layer, float *head) {
    int64_t size = m->head_size, width = m->row_norms ? m->heads * size : size;
    float *keys = head + m->heads * size, *values = keys + m->kv_heads * size;
    for (; head < keys; head += width) rescale(head, layer->q_norm, width, m->eps);
    width = m->row_norms ? m->kv_heads * size : size;
    for (; keys < values; keys += width) rescale(keys, layer->k_norm, width, m->eps);
}

/* Rotates a token's heads, and writes its keys (transposed) and values to the cache. */
static void place(const Model *m, const Layer *layer, const Step *s, int64_t token, u16 *keys,
                  u16 *values) {
    int64_t size = m->head_size, wide = (m->heads + 2 * m->kv_heads) * size, half = m->turned / 2;
    float *head = s->qkv + token * wide;
    if (layer->q_norm) normalise_heads(m, layer, head);
    if (layer->rope >= 0) {
        int64_t at = (layer->rope * (int64_t)s->tokens + token) * half;
        for (int64_t n = 0; n < m->heads + m->kv_heads; n++)
            turn(head + n * size, s->cosine + at, s->sine + at, half);
    }
    head += m->heads * size;
    int64_t block = s->slots[token] / BLOCK, row = s->slots[token] % BLOCK;
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        u16 *to = keys + (k * s->blocks + block) * size * BLOCK;
        for (int64_t i = 0; i < size; i++) to[key_at(row, i)] = narrow(head[i]);
    }
    for (int64_t k = 0; k < m->kv_heads; k++, head += size) {
        u16 *to = values + (k * s->blocks + block) * size * BLOCK;
        for (int64_t i = 0; i < size; i++) to[value_at(row, i, size)] = narrow(head[i]);
    }
}
