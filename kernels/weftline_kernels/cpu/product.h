/* Products of rows with weights in panels of two vectors of columns. Rows of bfloat16 weights are
 * interleaved in pairs. */
#pragma once

#include <omp.h>

#include "quants.h"

/* sums[r] = row r of x times one panel. Every sum is added in the order of `inner` for any number of
 * rows, so a row's result does not depend on the other rows. Prefetches weights `ahead` of those that
 * it multiplies, in bytes. */
INLINE void product(const act *x, int64_t inner, const u16 *panel, int64_t ahead, const int rows,
                    vec sums[][2]) {
    int64_t stride = stride_of(inner);
    vec totals[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) totals[r][0] = totals[r][1] = (vec){};
    for (int64_t k = 0; k < inner; k += 2, panel += 2 * PANEL) {
        const act *at[TILE];
        __builtin_prefetch((const char *)panel + ahead);
        if (LANES > 8) __builtin_prefetch((const char *)panel + ahead + 2 * PANEL);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) at[r] = x + r * stride + k;
        pairs(totals, rows, 2, at, panel, panel + PANEL);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r][0] = totals[r][0], sums[r][1] = totals[r][1];
}

typedef void (*Product)(const act *x, int64_t inner, const u16 *panel, int64_t ahead,
                        vec sums[][2]);

#define OF(n) static __attribute__((noinline)) void \
    product##n(const act *x, int64_t inner, const u16 *panel, int64_t ahead, vec sums[][2]) { \
        product(x, inner, panel, ahead, n, sums); }
FOR_EACH_TILE(OF)
#undef OF
#define OF(n) product##n,
static const Product products[TILE + 1] = {0, FOR_EACH_TILE(OF)};
#undef OF

/* Panels of a weight that have one type, from panel `first` on. */
typedef struct { int32_t type, first; const void *panels; } Part;

#define MOST_PARTS 3 /* queries, keys and values may have three types */
typedef struct { int32_t parts; Part part[MOST_PARTS]; } Weight;

typedef void (*Sink)(const void *to, int64_t row, int64_t panel, const vec sums[2]);

typedef struct { float *out; const float *bias; int64_t width; } Plain;
typedef struct { float *out; const float *bias; int64_t width; float scale; } Added;
typedef struct { act *out; const float *bias; int64_t width, stride; int gelu; } Gated;

INLINE void put(const void *to, int64_t row, int64_t panel, const vec sums[2]) {
    const Plain *plain = to;
    float *out = plain->out + row * plain->width + panel * PANEL;
    int64_t left = plain->width - panel * PANEL;
    for (int half = 0; half < 2 && left > 0; half++, out += LANES, left -= LANES) {
        vec value = sums[half];
        if (plain->bias) value += load(plain->bias + panel * PANEL + half * LANES);
        if (left >= LANES) store(out, value);
        else memcpy(out, &value, 4 * left);
    }
}

INLINE void add(const void *to, int64_t row, int64_t panel, const vec sums[2]) {
    const Added *added = to;
    float *out = added->out + row * added->width + panel * PANEL;
    int64_t left = added->width - panel * PANEL;
    for (int half = 0; half < 2 && left > 0; half++, out += LANES, left -= LANES) {
        vec value = sums[half];
        if (added->bias) value += load(added->bias + panel * PANEL + half * LANES);
        value *= added->scale;
        if (left >= LANES) store(out, load(out) + value);
        else for (int i = 0; i < left; i++) out[i] += value[i];
    }
}

/* A panel of gate_up holds a vector of gates and one of their ups. SiLU is x * sigmoid(x). GELU's form
 * with tanh is x * sigmoid(2 z), where z is the argument of tanh. */
INLINE void gate(const void *to, int64_t row, int64_t panel, const vec sums[2]) {
    const Gated *gated = to;
    act *out = gated->out + row * gated->stride + panel * LANES;
    vec x = sums[0], up = sums[1];
    if (gated->bias) {
        x += load(gated->bias + panel * PANEL);
        up += load(gated->bias + panel * PANEL + LANES);
    }
    vec z = gated->gelu ? x * (1.59576912f + 0.0713548163f * x * x) : x;
    vec small = exp_of(either(z < 0.0f, z, -z)); /* exp(-|z|) */
    vec sigmoid = either(z < 0.0f, small, all(1)) / (1 + small);
    vec value = x * sigmoid * up;
    int64_t left = gated->width - panel * LANES;
    if (left >= LANES) put_act(out, value);
    else for (int i = 0; i < left; i++) out[i] = act_of(value[i]);
}

/* Rounds the inputs of quantised weights, all types of which want the same. */
INLINE void round_inputs(const act *x, int64_t rows, int64_t inner, const Weight *weight,
                         void *rounded) {
    int64_t blocks = inner / SMALL, apart = blocks_apart(rows);
    int quantised = 0;
    for (int32_t p = 0; p < weight->parts; p++) quantised |= weights_of(weight->part[p].type) > 0;
    if (quantised)
#pragma omp for collapse(2)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t b = 0; b < blocks; b++)
                round_block(x + r * stride_of(inner) + b * SMALL, (Rounded *)rounded + b * apart + r);
}

/* A product: its inputs, plain and rounded, and where the sums of a row and a panel go. The blocks of a
 * rounded row lie `apart`. */
typedef struct {
    const act *x;
    int64_t rows, inner, apart;
    const void *rounded;
    Sink sink;
    const void *to;
} Job;

/* Multiplies the rows from `row` to `end` by a panel of quantised weights. */
static void multiply_quants(const Job *job, const Part *part, int64_t panel, int64_t row,
                            int64_t end) {
    vec sums[MOST_ROWS_OF_PANEL][2];
    const u8 *codes = (const u8 *)part->panels
                      + (panel - part->first) * panel_bytes(part->type, job->inner);
    multiply_panel(part->type, codes, job->inner, (const Rounded *)job->rounded + row, job->apart,
                   end - row, sums);
    for (int64_t r = row; r < end; r++) job->sink(job->to, r, panel, sums[r - row]);
}

/* Multiplies the rows from `row` to `end`, a tile at most, by a panel of bfloat16. */
INLINE void multiply_tile(const Job *job, const Part *part, int64_t panel, int64_t row,
                          int64_t end, int second) {
    vec sums[TILE][2];
    int64_t inner = job->inner, length = panel_bytes(BF16, inner);
    const char *numbers = (const char *)part->panels + (panel - part->first) * length;
    /* The second tile finds its weights in the cache, so it has time for the next panel. */
    int64_t ahead = LANES == 8 && second ? length : AHEAD;
    products[end - row](job->x + row * stride_of(inner), inner, (const u16 *)numbers, ahead, sums);
    for (int64_t r = row; r < end; r++) job->sink(job->to, r, panel, sums[r - row]);
}

/* How a product is cut into tasks. A task is a group of panels and a block of tiles, so many rows of a
 * long prompt use a panel while the core's cache has it. With AVX2, blocks whose inputs fit into the
 * second cache (30 rows of 2,048 floats, 6 of 6,144) took 1.07 and 1.35 times as long as 96 rows,
 * because panels were read more often. With few rows there are about eight tasks for each thread: at
 * the beginning of a task no weights have been prefetched. */
typedef struct { int64_t tiles, blocks, group, groups; } Cut;

INLINE Cut cut_of(int64_t rows, int64_t panels) {
    int64_t tiles = (rows + TILE - 1) / TILE, most = MOST_ROWS_OF_PANEL / TILE;
    int64_t blocks = (tiles + most - 1) / most, group = 256 / PANEL;
    if (blocks == 1) {
        int64_t eighth = panels / (8 * omp_get_num_threads());
        if (group > eighth) group = eighth > 32 / PANEL ? eighth : 32 / PANEL;
    }
    return (Cut){tiles, blocks, group, (panels + group - 1) / group};
}

INLINE void multiply_task(const Job *job, const Weight *weight, int64_t panels, const Cut *cut,
                          int64_t task) {
    int64_t block = task / cut->groups, begin = task % cut->groups * cut->group, rows = job->rows;
    int64_t end = begin + cut->group < panels ? begin + cut->group : panels;
    int64_t first = block * cut->tiles / cut->blocks, tiles = cut->tiles;
    int64_t last = (block + 1) * tiles / cut->blocks;
    const Part *part = weight->part, *none = weight->part + weight->parts;
    for (int64_t panel = begin; panel < end; panel++) {
        while (part + 1 < none && panel >= part[1].first) part++;
        if (weights_of(part->type))
            multiply_quants(job, part, panel, first * rows / tiles, last * rows / tiles);
        else for (int64_t tile = first; tile < last; tile++)
            multiply_tile(job, part, panel, tile * rows / tiles, (tile + 1) * rows / tiles,
                          tile == first + 1);
    }
}

/* Multiplies all rows of x by all panels. `sink` receives the sums of a row and a panel. Inputs are
 * rounded into `rounded` if the weights are not bfloat16. */
INLINE void multiply(const act *x, int64_t rows, int64_t inner, Weight weight, int64_t panels,
                     void *rounded, Sink sink, const void *to) {
    Job job = {x, rows, inner, blocks_apart(rows), rounded, sink, to};
    Cut cut = cut_of(rows, panels);
    round_inputs(x, rows, inner, &weight, rounded);
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < cut.blocks * cut.groups; task++)
        multiply_task(&job, &weight, panels, &cut, task);
}
