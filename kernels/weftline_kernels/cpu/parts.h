/* Parts of the decoder by themselves, for tests and measurements. */
#pragma once

#include <omp.h>

#include "rows.h"

/* Lays rows of floats out as the inputs of a product. */
void weftline_inputs(const float *from, int64_t rows, int64_t width, act *to) {
    for (int64_t r = 0; r < rows; r++)
        for (int64_t i = 0; i < width; i++)
            to[r * stride_of(width) + i] = act_of(from[r * width + i]);
}

/* Multiplies `rows` inputs by packed weights of `width` columns. */
void weftline_product(const act *x, int64_t rows, int64_t inner, int32_t type, const void *panels,
                      void *rounded, int64_t width, float *out, int32_t threads) {
    Plain to = {out, 0, width};
    Weight weight = {1, {{type, 0, panels}}};
#pragma omp parallel num_threads(threads)
    multiply(x, rows, inner, weight, (width + PANEL - 1) / PANEL, rounded, put, &to);
}

/* Normalises rows by their root mean square. */
void weftline_norms(const float *x, const float *weight, int64_t rows, int64_t width, float eps,
                    act *out) {
    for (int64_t r = 0; r < rows; r++)
        normalise(x + r * width, weight, width, eps, out + r * stride_of(width));
}

/* Computes exp of `count` numbers that are at most 0; `count` is a multiple of 16. */
void weftline_exp(const float *x, int64_t count, float *out) {
    for (int64_t i = 0; i < count; i += LANES) store(out + i, exp_of(load(x + i)));
}

/* Multiplies and adds in registers on each thread, 12 vectors in a round. Returns the number of
 * products in a round, all threads together. */
int64_t weftline_peak(int64_t rounds, int32_t threads) {
    float kept[64] = {0};
#pragma omp parallel num_threads(threads)
    {
        vec sums[12], factor = all(0.999f), term = all(0.5f);
#pragma GCC unroll 16
        for (int i = 0; i < 12; i++) sums[i] = all((float)i);
        for (int64_t round = 0; round < rounds; round++)
#pragma GCC unroll 16
            for (int i = 0; i < 12; i++)
#ifdef __AVX512BF16__
                sums[i] = (vec)_mm512_dpbf16_ps((__m512)sums[i], (__m512bh)factor, (__m512bh)term);
#else
                sums[i] = sums[i] * factor + term;
#endif
        vec total = {};
#pragma GCC unroll 16
        for (int i = 0; i < 12; i++) total += sums[i];
        kept[omp_get_thread_num() % 64] = sum(total);
    }
    __asm__ volatile("" : : "m"(kept)); /* the compiler may not drop the work */
#ifdef __AVX512BF16__
    return 24 * LANES * threads;
#else
    return 12 * LANES * threads;
#endif
}

#define UNIT 256 /* bytes that are read of a stream before the next stream has its turn */

/* Reads `size` bytes on all threads: each thread reads `streams` pieces of its part side by side, and
 * prefetches what lies `ahead` bytes behind. Returns the sum of all words. Whole units are read alone. */
uint32_t weftline_read(const u8 *from, int64_t size, int32_t streams, int64_t ahead,
                       int32_t threads) {
    int64_t each = size / threads / streams / UNIT * UNIT;
    uint32_t total = 0;
#pragma omp parallel num_threads(threads) reduction(+ : total)
    {
        const u8 *part = from + omp_get_thread_num() * streams * each;
        wvec sums[4] = {0};
        for (int64_t at = 0; at < each; at += UNIT)
            for (int64_t s = 0; s < streams; s++) {
                const u8 *unit = part + s * each + at;
#pragma GCC unroll 4
                for (int line = 0; line < UNIT; line += 64) __builtin_prefetch(unit + ahead + line);
#pragma GCC unroll 16
                for (int i = 0; i < UNIT / (4 * LANES); i++)
                    sums[i % 4] += load_words(unit + i * 4 * LANES);
            }
        wvec sum = sums[0] + sums[1] + sums[2] + sums[3];
        for (int i = 0; i < LANES; i++) total += sum[i];
    }
    return total;
}
