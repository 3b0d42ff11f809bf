/* The short convolution of a layer: each channel of a token is a sum of its last few inputs. The inputs
 * of all tokens lie in the KV cache, so a sequence can go on behind any token.
 *
 * The product before it makes three rows of a token: the gate of its inputs, the gate of its outputs, and
 * the inputs. */
#pragma once

#include "rows.h"

/* Where a token has `head_size` of its inputs in the cache, from the channel `at` on. */
INLINE u16 *inputs_of(const Model *m, const Step *s, u16 *cache, int64_t slot, int64_t at) {
    int64_t size = m->head_size, block = at / size * s->blocks + slot / BLOCK;
    return cache + (block * BLOCK + slot % BLOCK) * size;
}

/* Makes a token's inputs where the first gate lies, and writes them to the cache. */
static void keep_inputs(const Model *m, const Step *s, u16 *cache, int64_t token) {
    int64_t hidden = m->hidden, size = m->head_size;
    float *made = s->qkv + token * 3 * hidden, *x = made + 2 * hidden;
    for (int64_t i = 0; i < hidden; i++) made[i] *= x[i];
    for (int64_t at = 0; at < hidden; at += size) {
        u16 *to = inputs_of(m, s, cache, s->slots[token], at);
        int64_t end = hidden - at < size ? hidden - at : size;
        for (int64_t i = 0; i < end; i++) to[i] = narrow(made[at + i]);
    }
}

/* Adds the inputs of earlier tokens in the order of their distance, so that the sum does not depend on
 * the step that computed them. */
static void convolve(const Model *m, const Step *s, const Layer *layer, u16 *cache, int64_t token) {
    int64_t hidden = m->hidden, size = m->head_size, earlier = m->taps - 1;
    float *sum = s->qkv + token * 3 * hidden, *gate = sum + hidden;
    const float *tap = layer->taps + earlier * hidden;
    const int64_t *before = s->before + token * earlier;
    for (int64_t i = 0; i < hidden; i++) sum[i] *= tap[i];
    for (int64_t n = 0; n < earlier && before[n] >= 0; n++) {
        tap -= hidden;
        for (int64_t at = 0; at < hidden; at += size) {
            const u16 *from = inputs_of(m, s, cache, before[n], at);
            int64_t end = hidden - at < size ? hidden - at : size;
            for (int64_t i = 0; i < end; i++) sum[at + i] += tap[at + i] * widen(from[i]);
        }
    }
    for (int64_t i = 0; i < hidden; i++) sum[i] *= gate[i];
    normalise(sum, 0, hidden, m->eps, s->attended + token * stride_of(hidden));
}

/* Computes the convolution of a step from the rows of the product before it. */
static void convolve_all(const Model *m, const Step *s, const Layer *layer, u16 *cache) {
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++) keep_inputs(m, s, cache, t);
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++) convolve(m, s, layer, cache, t);
}
