/* Products of a few rows with packed weights: panels of 32 columns, pairs of them interleaved. */
#pragma once

#include "vectors.h"

#define PANEL 32
#define TILE 8      /* rows of a product at once: 16 of 32 registers hold sums; 12 spill */
#define AHEAD 2048  /* weights fetched ahead, 4 KB: 12 % faster than none at one row */

/* sums[r] (32 columns) = rows r of x (stride `inner`) times one panel. */
static inline __attribute__((always_inline)) void
product(const float *x, int64_t inner, const u16 *panel, int rows, v16 sums[][2]) {
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = (v16){};
    for (int64_t k = 0; k < inner; k += 2, panel += 2 * PANEL) {
        __builtin_prefetch(panel + AHEAD);
        __builtin_prefetch(panel + AHEAD + PANEL);
        w16 left = *(const w16u *)panel, right = *(const w16u *)(panel + PANEL);
        v16 even0 = (v16)(left << 16), odd0 = (v16)(left & 0xffff0000u);
        v16 even1 = (v16)(right << 16), odd1 = (v16)(right & 0xffff0000u);
        for (int r = 0; r < rows; r++) {
            v16 a = all(x[r * inner + k]), b = all(x[r * inner + k + 1]);
            sums[r][0] += a * even0;
            sums[r][1] += a * even1;
            sums[r][0] += b * odd0;
            sums[r][1] += b * odd1;
        }
    }
}

typedef void (*Sink)(void *to, int64_t row, int64_t panel, const v16 sums[2]);

typedef struct { float *out; const float *bias; int64_t width; } Plain;

static inline void put(void *to, int64_t row, int64_t panel, const v16 sums[2]) {
    const Plain *plain = to;
    float *out = plain->out + row * plain->width + panel * PANEL;
    int64_t left = plain->width - panel * PANEL;
    for (int half = 0; half < 2 && left > 0; half++, out += LANES, left -= LANES) {
        v16 value = sums[half];
        if (plain->bias) value += load(plain->bias + panel * PANEL + half * LANES);
        if (left >= LANES) store(out, value);
        else memcpy(out, &value, 4 * left);
    }
}

static inline void add(void *to, int64_t row, int64_t panel, const v16 sums[2]) {
    const Plain *plain = to;
    float *out = plain->out + row * plain->width + panel * PANEL;
    int64_t left = plain->width - panel * PANEL;
    for (int half = 0; half < 2 && left > 0; half++, out += LANES, left -= LANES)
        for (int i = 0; i < (left < LANES ? left : LANES); i++) out[i] += sums[half][i];
}

/* A panel of gate_up holds 16 gates and their 16 ups. */
static inline void gate(void *to, int64_t row, int64_t panel, const v16 sums[2]) {
    const Plain *plain = to;
    float *out = plain->out + row * plain->width + panel * LANES;
    v16 small = exp16(either(sums[0] < 0.0f, sums[0], -sums[0])); /* of -|gate| */
    v16 sigmoid = either(sums[0] < 0.0f, small, all(1)) / (1 + small);
    v16 value = sums[0] * sigmoid * sums[1];
    int64_t left = plain->width - panel * LANES;
    if (left >= LANES) store(out, value);
    else memcpy(out, &value, 4 * left);
}

/* All rows of x times all panels, shared out by panel; `sink` takes a row of 32 sums. */
static inline __attribute__((always_inline)) void
multiply(const float *x, int64_t rows, int64_t inner, const u16 *weights, int64_t panels,
         Sink sink, void *to) {
#pragma omp for schedule(dynamic, 2)
    for (int64_t panel = 0; panel < panels; panel++) {
        const u16 *at = weights + panel * inner * PANEL;
        v16 sums[TILE][2];
        int64_t row = 0;
        for (; row + TILE <= rows; row += TILE) {
            product(x + row * inner, inner, at, TILE, sums);
            for (int r = 0; r < TILE; r++) sink(to, row + r, panel, sums[r]);
        }
        for (; row + 4 <= rows; row += 4) {
            product(x + row * inner, inner, at, 4, sums);
            for (int r = 0; r < 4; r++) sink(to, row + r, panel, sums[r]);
        }
        for (; row < rows; row++) {
            product(x + row * inner, inner, at, 1, sums);
            sink(to, row, panel, sums[0]);
        }
    }
}
