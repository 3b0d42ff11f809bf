/* The forward pass of a Llama-like decoder on a CPU: all layers of a step in one parallel region.
 *
 * Weights are bfloat16 or int8, in panels of columns. The residual stream is float32, the KV cache
 * bfloat16. A KV block has 16 tokens. Keys are stored transposed in their block: a vector
 * holds one component of 16 tokens, so a score needs no sum across lanes. GCC's vector extension
 * compiles the same source for AVX-512, AVX2 and NEON. A few steps use intrinsics.
 *
 * T = tokens of the step, C = hidden, N = query heads, K = KV heads, G = N / K, H = head size.
 */

#include <omp.h>

#include "attention.h"
#include "parts.h"
#include "rows.h"

static void run_layer(const Model *m, const Step *s, int64_t index) {
    const Layer *layer = m->layer + index;
    int64_t hidden = m->hidden, size = m->head_size, query = m->heads * size, tokens = s->tokens;
    int64_t wide = query + 2 * m->kv_heads * size;
    u16 *keys = keys_of(m, s, index), *values = values_of(m, s, index);
    Plain qkv = {s->qkv, layer->qkv_bias, wide}, back = {s->x, 0, hidden};
    Gated gated = {s->gated, m->mlp, stride_of(m->mlp)};
    int64_t stride = stride_of(hidden);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++)
        normalise(s->x + t * hidden, layer->attention_norm, hidden, m->eps, s->normed + t * stride);
    multiply(s->normed, tokens, hidden, layer->qkv, (wide + PANEL - 1) / PANEL, s->rounded,
             put, &qkv);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++) place(m, layer, s, t, keys, values);
    attend_all(m, s, keys, values);
    multiply(s->attended, tokens, query, layer->out, (hidden + PANEL - 1) / PANEL, s->rounded,
             add, &back);
#pragma omp for
    for (int64_t t = 0; t < tokens; t++)
        normalise(s->x + t * hidden, layer->mlp_norm, hidden, m->eps, s->normed + t * stride);
    multiply(s->normed, tokens, hidden, layer->gate_up, (m->mlp + LANES - 1) / LANES, s->rounded,
             gate, &gated);
    multiply(s->gated, tokens, m->mlp, layer->down, (hidden + PANEL - 1) / PANEL, s->rounded,
             add, &back);
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
        multiply(s->normed, s->rows, hidden, m->head, (m->vocabulary + PANEL - 1) / PANEL,
                 s->rounded, put, &logits);
    }
}
