/* The model and a step as the caller lays them out (weftline_engine.own.embedded.model.native_decoder). */
#pragma once

#include "product.h"

#define BLOCK 16 /* tokens of a KV block */
#define MOST_SIZE 256 /* largest head size */

/* Norms and biases that a family has not are NULL. `attended_norm` and `mlp_out_norm` normalise what
 * attention and MLP add to the residual stream. */
typedef struct {
    const float *attention_norm, *attended_norm, *mlp_norm, *mlp_out_norm, *q_norm, *k_norm;
    const float *qkv_bias, *out_bias, *gate_up_bias, *down_bias;
    int32_t rope;   /* which sines and cosines turn the heads; -1 if none do */
    int32_t window; /* tokens that a row sees, itself among them; 0 if it sees all */
    int32_t cached; /* which layer of the cache is the layer's first */
    Weight qkv, out, gate_up, down;
    /* The factors of a short convolution, a row of all channels for each tap, the token's own last. Its
     * `qkv` makes two gates and the inputs. NULL where the layer has attention. */
    const float *taps;
    const float *router; /* experts x hidden; NULL where the layer has one MLP, gate_up and down */
    const Weight *expert_weights; /* gate_up and down of each expert */
} Layer;

/* `turned` components of a head are turned. `row_norms` is whether q_norm and k_norm see all heads of a
 * row at once. A cap c makes c * tanh(x / c) of x; 0 is no cap. */
typedef struct {
    int32_t layers, hidden, heads, kv_heads, head_size, mlp, vocabulary, turned, gelu, row_norms;
    int32_t experts, used, expert_mlp, normalised; /* whether the shares of a row add up to 1 */
    int32_t taps; /* tokens that a short convolution sees; 0 if no layer has one */
    float eps, embedding_scale, residual_scale, score_scale, logit_scale, score_cap, logit_cap;
    int32_t embedding_type;
    const void *embedding; /* rows as a GGUF file has them */
    const float *norm;
    Weight head;
    const Layer *layer;
} Model;

/* An item's blocks begin at block[block_at], its queries at query[query_at] and visible[query_at]. Its
 * first token has the position `start`. */
typedef struct { int32_t block_at, length, query_at, queries, start; } Item;

typedef struct {
    int32_t tokens, rows, items, threads;
    int64_t blocks; /* KV blocks of the pool */
    const int64_t *ids, *positions, *slots, *wanted;
    const float *cosine, *sine; /* ropes x T x turned / 2 */
    const Item *item;
    const int32_t *block, *query, *visible;
    const int32_t *part_at, *part; /* query slots of each row */
    const int64_t *before;         /* T x (taps - 1): slots of earlier tokens, the nearest first, or -1 */
    u16 *cache;                    /* L x 2 x K x blocks x (H * 16) */
    float *x, *qkv, *added;         /* scratch, T rows each */
    act *normed, *attended, *gated; /* scratch, rows `stride_of` apart */
    float *partial, *top, *weight;              /* scratch, a row per query slot */
    void *rounded;                  /* scratch for rounded inputs, a row per token and expert */
    float *logits;
    /* Scratch for experts, for each token and expert that it uses: number, share, and place among the
     * rows that are ordered by expert. `owner` is the expert of a place, and `first` its first one. */
    int32_t *expert, *place, *owner, *first;
    float *share, *made;
    act *routed;
} Step;

/* The layout of a block fits `pairs`, which multiplies words of two numbers. A word of keys holds two
 * components of a token, and the words of 16 tokens are adjacent. A word of values holds a component
 * of two tokens, and the words of all components are adjacent. */
INLINE int64_t key_at(int64_t token, int64_t i) { return i / 2 * 2 * BLOCK + token * 2 + i % 2; }

INLINE int64_t value_at(int64_t token, int64_t i, int64_t size) {
    return token / 2 * 2 * size + i * 2 + token % 2;
}

/* The keys of a layer, of all heads; or what its convolution keeps. */
INLINE u16 *keys_of(const Model *m, const Step *s, const Layer *layer) {
    return s->cache + 2 * layer->cached * m->kv_heads * s->blocks * m->head_size * BLOCK;
}

INLINE u16 *values_of(const Model *m, const Step *s, const Layer *layer) {
    return keys_of(m, s, layer) + m->kv_heads * s->blocks * m->head_size * BLOCK;
}
