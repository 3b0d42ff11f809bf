/* The forward pass of a decoder on a CPU: all layers of a step in one parallel region. A layer is data:
 * families differ in the norms, biases, windows and factors of `Layer` and `Model`.
 *
 * Weights are bfloat16 or quantised, in panels. The residual stream is float32, the KV cache
 * bfloat16. A KV block has 16 tokens. Keys are stored transposed in their block: a vector
 * holds one component of 16 tokens, so a score needs no sum across lanes. GCC's vector extension
 * compiles the same source for AVX-512, AVX2 and NEON. A few steps use intrinsics.
 *
 * T = tokens of the step, C = hidden, N = query heads, K = KV heads, G = N / K, H = head size.
 */

#include <omp.h>

#include "attention.h"
#include "experts.h"
#include "packing.h"
#include "parts.h"
#include "rows.h"
#include "short_conv.h"

/* Makes the inputs of a product from the residual stream. */
static void enter(const Model *m, const Step *s, const float *norm) {
    int64_t hidden = m->hidden, stride = stride_of(hidden);
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++)
        normalise(s->x + t * hidden, norm, hidden, m->eps, s->normed + t * stride);
}

/* Adds a product to the residual stream, normalised if there is a norm. */
static void leave(const Model *m, const Step *s, const act *from, int64_t inner, Weight weight,
                  const float *bias, const float *norm) {
    int64_t hidden = m->hidden, panels = (hidden + PANEL - 1) / PANEL;
    if (!norm) {
        Added back = {s->x, bias, hidden, m->residual_scale};
        multiply(from, s->tokens, inner, weight, panels, s->rounded, add, &back);
        return;
    }
    Plain added = {s->added, bias, hidden};
    multiply(from, s->tokens, inner, weight, panels, s->rounded, put, &added);
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++)
        add_normalised(s->added + t * hidden, norm, hidden, m->eps, m->residual_scale,
                       s->x + t * hidden);
}

/* Makes what attention or a short convolution adds, and adds it. */
static void mix_tokens(const Model *m, const Step *s, const Layer *layer) {
    int64_t hidden = m->hidden, query = m->heads * m->head_size, tokens = s->tokens;
    int64_t wide = layer->taps ? 3 * hidden : query + 2 * m->kv_heads * m->head_size;
    u16 *keys = keys_of(m, s, layer), *values = values_of(m, s, layer);
    Plain qkv = {s->qkv, layer->qkv_bias, wide};
    enter(m, s, layer->attention_norm);
    multiply(s->normed, tokens, hidden, layer->qkv, (wide + PANEL - 1) / PANEL, s->rounded,
             put, &qkv);
    if (layer->taps) {
        convolve_all(m, s, layer, keys);
    } else {
#pragma omp for
        for (int64_t t = 0; t < tokens; t++) place(m, layer, s, t, keys, values);
        attend_all(m, s, layer, keys, values);
    }
    leave(m, s, s->attended, layer->taps ? hidden : query, layer->out, layer->out_bias,
          layer->attended_norm);
}

static void run_layer(const Model *m, const Step *s, const Layer *layer) {
    int64_t hidden = m->hidden, tokens = s->tokens;
    Gated gated = {s->gated, layer->gate_up_bias, m->mlp, stride_of(m->mlp), m->gelu};
    mix_tokens(m, s, layer);
    if (layer->router) {
        mix(m, s, layer);
        return;
    }
    enter(m, s, layer->mlp_norm);
    multiply(s->normed, tokens, hidden, layer->gate_up, (m->mlp + LANES - 1) / LANES, s->rounded,
             gate, &gated);
    leave(m, s, s->gated, m->mlp, layer->down, layer->down_bias, layer->mlp_out_norm);
}

/* Scales and caps the logits. */
static void finish(const Model *m, const Step *s) {
    if (m->logit_scale == 1 && m->logit_cap == 0) return;
#pragma omp for
    for (int64_t i = 0; i < (int64_t)s->rows * m->vocabulary; i++) {
        float value = s->logits[i] * m->logit_scale;
        s->logits[i] = m->logit_cap > 0 ? m->logit_cap * tanhf(value / m->logit_cap) : value;
    }
}

/* Reads a token's row of the embedding. */
static void look_up(const Model *m, int64_t token, float *x) {
    int64_t bytes = row_bytes(m->embedding_type, m->hidden);
    widen_row(m->embedding_type, (const char *)m->embedding + token * bytes, m->hidden, x);
    for (int64_t i = 0; i < m->hidden; i++) x[i] *= m->embedding_scale;
}

/* Returns the columns of a panel, which the caller packs the weights by. */
int32_t weftline_panel(void) { return PANEL; }

void weftline_forward(const Model *m, const Step *s) {
    int64_t hidden = m->hidden, stride = stride_of(hidden);
#pragma omp parallel num_threads(s->threads)
    {
#pragma omp for
        for (int64_t t = 0; t < s->tokens; t++)
            look_up(m, s->ids[t], s->x + t * hidden);
        for (int64_t index = 0; index < m->layers; index++) run_layer(m, s, m->layer + index);
#pragma omp for
        for (int64_t r = 0; r < s->rows; r++)
            normalise(s->x + s->wanted[r] * hidden, m->norm, hidden, m->eps,
                      s->normed + r * stride);
        Plain logits = {s->logits, 0, m->vocabulary};
        multiply(s->normed, s->rows, hidden, m->head, (m->vocabulary + PANEL - 1) / PANEL,
                 s->rounded, put, &logits);
        finish(m, s);
    }
}
