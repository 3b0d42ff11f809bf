/* Products of rows with weights in panels of two vectors of columns, whose rows are interleaved in
 * pairs. */
#pragma once

#include "vectors.h"

#define PANEL (2 * LANES)
/* Rows of a product that are computed at once. With AVX-512, the sums of 12 rows take 24 of 32
 * registers. With AVX2, those of 6 rows take 12 of 16, and the weights and an input the others. A
 * row takes eight registers of NEON, so it computes three rows. */
#if defined __AVX512F__
#define TILE 12
#elif LANES == 8
#define TILE 6
#else
#define TILE 3
#endif
#define AHEAD 2048  /* weights to prefetch (4 KB): 12 % faster than no prefetch at one row */

/* Elements from one row to the next. Rows are padded by a cache line. Otherwise the rows of a tile
 * map to few sets of the cache: 12 rows at a distance of 1,536 floats shared two sets. */
INLINE int64_t stride_of(int64_t width) {
    return (width + 31) / 32 * 32 + 64 / (int64_t)sizeof(act);
}

/* sums[r] = row r of x times one panel. Every sum is added in the order of `inner` for any number of
 * rows, so a row's result does not depend on the other rows. Prefetches weights `ahead` of those that
 * it multiplies. */
INLINE void product(const act *x, int64_t inner, const u16 *panel, int64_t ahead, const int rows,
                    vec sums[][2]) {
    int64_t stride = stride_of(inner);
    vec totals[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) totals[r][0] = totals[r][1] = (vec){};
    for (int64_t k = 0; k < inner; k += 2, panel += 2 * PANEL) {
        const act *at[TILE];
        __builtin_prefetch(panel + ahead);
        if (LANES > 8) __builtin_prefetch(panel + ahead + PANEL);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) at[r] = x + r * stride + k;
        pairs(totals, rows, 2, at, panel, panel + PANEL);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r][0] = totals[r][0], sums[r][1] = totals[r][1];
}

typedef void (*Product)(const act *x, int64_t inner, const u16 *panel, int64_t ahead,
                        vec sums[][2]);

/* A copy of the code for each number of rows, so that the sums stay in registers. */
#define OF(n) static __attribute__((noinline)) void \
    product##n(const act *x, int64_t inner, const u16 *panel, int64_t ahead, vec sums[][2]) { \
        product(x, inner, panel, ahead, n, sums); }
OF(1) OF(2) OF(3)
#if TILE > 3
OF(4) OF(5) OF(6)
#endif
#if TILE > 6
OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#endif
#undef OF
static const Product products[TILE + 1] = {
    0, product1, product2, product3,
#if TILE > 3
    product4, product5, product6,
#endif
#if TILE > 6
    product7, product8, product9, product10, product11, product12,
#endif
};

typedef void (*Sink)(const void *to, int64_t row, int64_t panel, const vec sums[2]);

typedef struct { float *out; const float *bias; int64_t width; } Plain;
typedef struct { act *out; int64_t width, stride; } Gated;

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
    const Plain *plain = to;
    float *out = plain->out + row * plain->width + panel * PANEL;
    int64_t left = plain->width - panel * PANEL;
    for (int half = 0; half < 2 && left > 0; half++, out += LANES, left -= LANES) {
        if (left >= LANES) store(out, load(out) + sums[half]);
        else for (int i = 0; i < left; i++) out[i] += sums[half][i];
    }
}

/* A panel of gate_up holds a vector of gates and one of their ups. */
INLINE void gate(const void *to, int64_t row, int64_t panel, const vec sums[2]) {
    const Gated *gated = to;
    act *out = gated->out + row * gated->stride + panel * LANES;
    vec small = exp_of(either(sums[0] < 0.0f, sums[0], -sums[0])); /* exp(-|gate|) */
    vec sigmoid = either(sums[0] < 0.0f, small, all(1)) / (1 + small);
    vec value = sums[0] * sigmoid * sums[1];
    int64_t left = gated->width - panel * LANES;
    if (left >= LANES) put_act(out, value);
    else for (int i = 0; i < left; i++) out[i] = act_of(value[i]);
}

/* Tiles of a task. Their rows and a panel should stay in the core's second cache, which has 1 MB where
 * AVX-512 is (96 rows of 1,536 floats) and 512 KB or less elsewhere. */
INLINE int64_t tiles_of_task(int64_t inner) {
    int64_t rows = LANES == 8 ? (1 << 16) / inner : 96;
    return rows < TILE ? 1 : rows > 96 ? 96 / TILE : rows / TILE;
}

/* Multiplies all rows of x by all panels. `sink` receives the sums of a row and a panel. A task is a
 * group of panels and a block of tiles, so the rows of a long prompt stay in the core's cache. */
INLINE void multiply(const act *x, int64_t rows, int64_t inner, const u16 *weights, int64_t panels,
                     Sink sink, const void *to) {
    int64_t tiles = (rows + TILE - 1) / TILE, most = tiles_of_task(inner);
    int64_t blocks = (tiles + most - 1) / most, length = (inner + inner % 2) * PANEL;
    int64_t group = (blocks > 1 ? 256 : 32) / PANEL, groups = (panels + group - 1) / group;
#pragma omp for schedule(dynamic, 1)
    for (int64_t task = 0; task < blocks * groups; task++) {
        int64_t block = task / groups, begin = task % groups * group;
        int64_t end = begin + group < panels ? begin + group : panels;
        int64_t first = block * tiles / blocks, last = (block + 1) * tiles / blocks;
        for (int64_t panel = begin; panel < end; panel++)
            for (int64_t tile = first; tile < last; tile++) {
                int64_t row = tile * rows / tiles, count = (tile + 1) * rows / tiles - row;
                vec sums[TILE][2];
                /* The second tile finds its weights in the cache, so it has time for the next panel. */
                int64_t ahead = LANES == 8 && tile == first + 1 ? length : AHEAD;
                products[count](x + row * stride_of(inner), inner, weights + panel * length, ahead,
                                sums);
                for (int64_t r = 0; r < count; r++) sink(to, row + r, panel, sums[r]);
            }
    }
}
