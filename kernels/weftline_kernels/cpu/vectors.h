/* Vectors of floats: conversion from and to bfloat16, products of bfloat16 pairs, exp. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

/* A vector is one register of AVX-512 or of AVX2. GCC 12 compiles 64-byte vectors for AVX2 with a
 * detour through the stack, which took five times as long. */
#if defined __AVX2__ && !defined __AVX512F__
#define LANES 8
#else
#define LANES 16
#endif
#define INLINE static inline __attribute__((always_inline))

typedef uint16_t u16;
typedef float vec __attribute__((vector_size(4 * LANES)));
typedef uint32_t wvec __attribute__((vector_size(4 * LANES)));
typedef int32_t ivec __attribute__((vector_size(4 * LANES)));
typedef u16 hvec __attribute__((vector_size(2 * LANES)));
typedef uint8_t u8;
typedef int8_t i8;
/* The same types at unaligned addresses. GCC 12 compiles a memcpy to a copy through the stack. */
typedef float vecu __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t wvecu __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef u16 hvecu __attribute__((vector_size(2 * LANES), aligned(2), may_alias));

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

INLINE vec all(float value) { return value - (vec){}; }

INLINE wvec all_words(uint32_t value) { return value - (wvec){}; }

INLINE vec load(const float *from) { return *(const vecu *)from; }

INLINE wvec load_words(const void *from) { return *(const wvecu *)from; }

INLINE void store(float *to, vec value) { *(vecu *)to = value; }

/* mask ? a : b, lane by lane. GCC 12 emits five instructions for a comparison and this. AVX-512 has
 * one, so the functions below use intrinsics. */
INLINE vec either(ivec mask, vec a, vec b) {
#if LANES == 8
    return (vec)_mm256_blendv_ps((__m256)b, (__m256)a, (__m256)mask);
#else
    return (vec)((mask & (ivec)a) | (~mask & (ivec)b));
#endif
}

/* a > b ? a : b, lane by lane. So it is b if a or b is NaN. */
INLINE vec larger(vec a, vec b) {
#ifdef __AVX512F__
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif LANES == 8
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#else
    return either(a > b, a, b);
#endif
}

/* The sum of all lanes. AVX adds halves; otherwise each addition waits for the last one. */
INLINE float sum(vec value) {
#ifdef __AVX512F__
    return _mm512_reduce_add_ps((__m512)value);
#elif LANES == 8
    __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)value),
                             _mm256_extractf128_ps((__m256)value, 1));
    four = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
#else
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
#endif
}

/* The largest lane. No lane may be NaN. */
INLINE float largest(vec value) {
#ifdef __AVX512F__
    return _mm512_reduce_max_ps((__m512)value);
#elif LANES == 8
    __m128 four = _mm_max_ps(_mm256_castps256_ps128((__m256)value),
                             _mm256_extractf128_ps((__m256)value, 1));
    four = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
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
INLINE vec even(wvec words) { return (vec)(words << 16); }

INLINE vec odd(wvec words) { return (vec)(words & 0xffff0000u); }

INLINE u16 narrow(float value) { /* rounds to nearest even; NaN stays NaN */
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return (u16)((word >> 16) | 0x40);
    return (u16)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

INLINE hvec narrow_all(vec value) {
#ifdef __AVX512BF16__
    return (hvec)_mm512_cvtneps_pbh((__m512)value);
#else
    wvec word = (wvec)value, rounded = word + 0x7fff + ((word >> 16) & 1);
    rounded = (wvec)either(value != value, (vec)(word | 0x400000), (vec)rounded);
    return __builtin_convertvector(rounded >> 16, hvec);
#endif
}

/* Stores an input of a product. */
INLINE void put_act(act *to, vec value) {
#if PAIRS
    *(hvecu *)to = narrow_all(value);
#else
    store(to, value);
#endif
}

/* The inputs of a product as floats. */
INLINE vec load_act(const act *from) {
#if PAIRS
    return (vec)(__builtin_convertvector(*(const hvecu *)from, wvec) << 16);
#else
    return load(from);
#endif
}

INLINE act act_of(float value) {
#if PAIRS
    return narrow(value);
#else
    return value;
#endif
}

/* total += a * b. With AVX2 it is written out, because GCC 12 puts the sum into the register of `b`. A
 * tile has none to spare, so GCC kept five sums of six rows in memory. */
INLINE void add_product(vec *total, vec a, vec b) {
#if LANES == 8
    __asm__("vfmadd231ps %2, %1, %0" : "+x"(*total) : "x"(a), "x"(b));
#else
    *total += a * b;
#endif
}

/* totals += x[0] * even(words) + x[1] * odd(words), for `rows` x and `n` vectors of words, the ones at
 * `left` and `right`. All products use it. All loops are unrolled, so that totals stay in registers.
 * With AVX2 `right` follows `left`. */
INLINE void pairs(vec totals[][2], const int rows, const int n, const act *const x[],
                  const u16 *left, const u16 *right) {
    wvec words[2] = {load_words(left), n == 2 ? load_words(right) : (wvec){}};
#if PAIRS
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        uint32_t two;
        memcpy(&two, x[r], 4);
#pragma GCC unroll 2
        for (int v = 0; v < n; v++)
#ifdef __AVX512BF16__
            totals[r][v] = (vec)_mm512_dpbf16_ps((__m512)totals[r][v], (__m512bh)all_words(two),
                                                 (__m512bh)words[v]);
#else
            totals[r][v] += even(all_words(two)) * even(words[v])
                          + odd(all_words(two)) * odd(words[v]);
#endif
    }
#else
    vec first[2], second[2];
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) first[v] = even(words[v]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) add_product(&totals[r][v], first[v], all(x[r][0]));
#if LANES == 8
    /* Reads the words again. AVX2 has no registers to keep them in, so GCC kept two sums in memory. */
    __asm__("" : "+r"(left));
    words[0] = load_words(left), words[1] = load_words(left + 2 * LANES);
#endif
#pragma GCC unroll 2
    for (int v = 0; v < n; v++) second[v] = odd(words[v]);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < n; v++) add_product(&totals[r][v], second[v], all(x[r][1]));
#endif
}

/* exp of values that are at most 0, with a relative error of at most (2 + |x|) / 2^23. It is 2^n,
 * by the exponent's bits, times 2^f, by a series of degree 6. Values below -87 give 0. */
INLINE vec exp_of(vec x) {
    vec y = larger(all(-126.0f), x * 1.44269504f); /* NaN stays NaN */
#ifdef __AVX512F__
    vec whole = (vec)_mm512_roundscale_ps((__m512)y, _MM_FROUND_TO_NEAREST_INT);
#elif LANES == 8
    ivec n = (ivec)_mm256_cvtps_epi32((__m256)y);
    vec whole = (vec)_mm256_cvtepi32_ps((__m256i)n);
#else
    ivec n = __builtin_convertvector(y - 0.5f, ivec); /* truncation rounds, because y <= 0 */
    vec whole = __builtin_convertvector(n, vec);
#endif
    vec f = (y - whole) * 0.693147181f;
    vec p = 1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f +
            f * (0.00833333333f + f * 0.00138888889f)))));
#ifdef __AVX512F__
    __mmask16 seen = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-87.0f), _CMP_NLT_UQ);
    return (vec)_mm512_maskz_scalef_ps(seen, (__m512)p, (__m512)whole);
#else
    vec scale = (vec)((n + 127) << 23);
    return either(x < -87.0f, all(0), p * scale);
#endif
}

/* c * tanh(x / c), with an absolute error of some c / 2^22. */
INLINE vec capped(vec x, float c) {
    vec small = exp_of(either(x < 0.0f, x, -x) * (2.0f / c));
    vec value = (1 - small) / (1 + small) * c;
    return either(x < 0.0f, -value, value);
}
