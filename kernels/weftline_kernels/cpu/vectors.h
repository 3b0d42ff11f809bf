/* Vectors of 16 floats, bfloat16 to and from float, exp. */
#pragma once

#include <math.h>
#include <stdint.h>
#include <string.h>
#ifdef __AVX512F__
#include <immintrin.h>
#endif

#define LANES 16

typedef uint16_t u16;
typedef float v16 __attribute__((vector_size(64)));
typedef uint32_t w16 __attribute__((vector_size(64)));
typedef u16 h16 __attribute__((vector_size(32)));
/* The same in memory, at any address. memcpy would do, but GCC 12 sends it through the stack. */
typedef float v16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t w16u __attribute__((vector_size(64), aligned(4), may_alias));
typedef u16 h16u __attribute__((vector_size(32), aligned(2), may_alias));

static inline float widen(u16 half) {
    uint32_t word = (uint32_t)half << 16;
    float value;
    memcpy(&value, &word, 4);
    return value;
}

static inline u16 narrow(float value) { /* to nearest even; NaN stays NaN */
    uint32_t word;
    memcpy(&word, &value, 4);
    if ((word & 0x7fffffff) > 0x7f800000) return (u16)((word >> 16) | 0x40);
    return (u16)((word + 0x7fff + ((word >> 16) & 1)) >> 16);
}

static inline v16 widen16(const u16 *half) {
    h16 halves = *(const h16u *)half;
#ifdef __AVX512F__ /* GCC 12 would convert in two halves */
    return (v16)((w16)_mm512_cvtepu16_epi32((__m256i)halves) << 16);
#else
    return (v16)(__builtin_convertvector(halves, w16) << 16);
#endif
}

typedef int32_t i16 __attribute__((vector_size(64)));

static inline v16 either(i16 mask, v16 a, v16 b) {
    return (v16)((mask & (i16)a) | (~mask & (i16)b));
}

static inline v16 larger(v16 a, v16 b) { return either(a > b, a, b); }

static inline v16 all(float value) { return value - (v16){}; }

static inline v16 load(const float *from) { return *(const v16u *)from; }

static inline void store(float *to, v16 value) { *(v16u *)to = value; }

static inline float sum(v16 value) {
    float total = 0;
    for (int i = 0; i < LANES; i++) total += value[i];
    return total;
}

/* exp of values that are at most 0, within 2 units in the last place: 2^n by the exponent's bits,
 * 2^f by its series of degree 6. What lies below -87 becomes 0. */
static inline v16 exp16(v16 x) {
    v16 y = x * 1.44269504f;
    y = either(y < -126.0f, all(-126.0f), y);
    i16 n = __builtin_convertvector(y - 0.5f, i16); /* towards zero: y <= 0, so this rounds */
    v16 f = (y - __builtin_convertvector(n, v16)) * 0.693147181f;
    v16 p = 1.0f + f * (1.0f + f * (0.5f + f * (0.166666667f + f * (0.0416666667f +
            f * (0.00833333333f + f * 0.00138888889f)))));
    v16 scale = (v16)((n + 127) << 23);
    return either(x < -87.0f, all(0), p * scale);
}
