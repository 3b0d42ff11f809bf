/* Vectors of 16 floats: conversion from and to bfloat16, products of bfloat16 pairs, exp. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t u16;
typedef float v16 __attribute__((vector_size(64)));
typedef uint32_t w16 __attribute__((vector_size(64)));
typedef int32_t i16 __attribute__((vector_size(64)));
typedef u16 h16 __attribute__((vector_size(32)));
/* The same types at unaligned addresses. GCC 12 compiles a memcpy to a copy through the stack. */
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t w16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef u16 h16u __attribute__((vector_size(32), aligned(2), may_alias));

/* If the processor multiplies pairs of bfloat16, the inputs of a product are rounded to bfloat16, as
 * in any bfloat16 model. Otherwise they stay float32. Sums, the residual stream and the softmax are
 * always float32. WEFTLINE_PAIRS rounds inputs without that instruction, for the tests. */
#if defined __AVX512BF16__ || defined WEFTLINE_PAIRS
#define PAIRS 1
typedef u16 act;
#else
#define PAIRS 0
typedef float act;
#endif

INLINE v16 all(float value) { return value - (v16){}; }

INLINE w16 all_words(uint32_t value) { return value - (w16){}; }

INLINE v16 load(const float *from) { return *(const v16u *)from; }

INLINE w16 load_words(const u16 *from) { return *(const w16u *)from; }

INLINE void store(float *to, v16 value) { *(v16u *)to = value; }

/* mask ? a : b, lane by lane. GCC 12 emits five instructions for a comparison and this. AVX-512 has
 * one, so the functions below use intrinsics. */
INLINE v16 either(i16 mask, v16 a, v16 b) { return (v16)((mask & (i16)a) | (~mask & (i16)b)); }

/* a > b ? a : b, lane by lane. So it is b if a or b is NaN. */
INLINE v16 larger(v16 a, v16 b) {
#ifdef __AVX512F__
    return (v16)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return either(a > b, a, b);
#endif
}

/* The sum of all lanes. AVX-512 adds halves; otherwise each addition waits for the last one. */
INLINE float sum(v16 value) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)value);
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
#endif
}

/* The largest lane. No lane may be NaN. */
INLINE float largest(v16 value) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)value);
#else
    float high = value[0];
    for (int i = 1; i < LANES; i++) high = value[i] > high ? value[i] : high;
    return high;
#endif
}

INLINE float widen(u16 half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

/* `even` returns the first bfloat16 of each word in memory, `odd` the second one. */
INLINE v16 even(w16 words) { return (v16)(words << 16); }

INLINE v16 odd(w16 words) { return (v16)(words & 0xffff0000u); }

INLINE u16 narrow(float value) { /* rounds to nearest even; NaN stays NaN */
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return (u16)((word >> 16) | 0x40);
    return (u16)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

INLINE h16 narrow16(v16 value) {
#ifdef __AVX512BF16__
    return (h16)_mm512_cvtneps_pbh((__m512)value);
#else
    w16 word = (w16)value, rounded = word + 0x7fff + ((word >> 16) & 1);
    rounded = (w16)either(value != value, (v16)(word | 0x400000), (v16)rounded);
    return __builtin_convertvector(rounded >> 16, h16);
#endif
}

/* Stores an input of a product. */
INLINE void put_act(act *to, v16 value) {
#if PAIRS
    *(h16u *)to = narrow16(value);
#else
    store(to, value);
#endif
}

INLINE act act_of(float value) {
#if PAIRS
    return narrow(value);
#else
    return value;
#endif
}

/* totals += x[0] * even(words) + x[1] * odd(words), for `rows` x and `n` vectors of words. All
 * products use it. All loops are unrolled, so that totals stay in registers. */
INLINE void pairs(v16 totals[][2], const int rows, const int n, const act *const x[],
                  const w16 words[2]) {
#if PAIRS
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        uint32_t two;
        memcpy(&two, x[r], 4);
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
#ifdef __AVX512BF16__
            totals[r][v] = (v16)_mm512_dpbf16_ps((__m512)totals[r][v], (__m512bh)all_words(two),
                                                 (__m512bh)words[v]);
#else
            totals[r][v] += even(all_words(two)) * even(words[v])
                          + odd(all_words(two)) * odd(words[v]);
#endif
    }
#else
    v16 first[2], second[2];
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) first[v] = even(words[v]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) totals[r][v] += all(x[r][0]) * first[v];
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) second[v] = odd(words[v]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) totals[r][v] += all(x[r][1]) * second[v];
#endif
}

/* exp of values that are at most 0, within 2 units in the last place. It is 2^n, by the exponent's
 * bits, times 2^f, by a series of degree 6. Values below -87 give 0. */
INLINE v16 exp16(v16 x) {
    v16 y = larger(all(-126.0f), x * 1.44269504f); /* NaN stays NaN */
#ifdef __AVX512F__
    v16 whole = (v16)_mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT);
#else
    i16 n = __builtin_convertvector(y - 0.5f, i16); /* truncation rounds, because y <= 0 */
    v16 whole = __builtin_convertvector(n, v16);
#endif
    v16 f = (y - whole) * 0.693147181f;
    v16 p = 1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f +
            f * (0.00833333333f + f * 0.00138888889f)))));
#ifdef __AVX512F__
    __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (v16)_mm512_maskz_scalef_ps(seen, (__m512)p, (__m512)whole);
#else
    v16 scale = (v16)((n + 127) << 23);
    return either(x < -87.0f, all(0), p * scale);
#endif
}
