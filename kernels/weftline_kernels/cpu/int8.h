/* Products of int8. Each column of a weight and each row of inputs has a scale.
 *
 * Four numbers of a column are a word. Sums are int32, so they are exact and equal in every variant
 * and in any order. They are multiplied by the scale of the row, then by that of the column. */
#pragma once

#include "tile.h"

/* Before a row's numbers: what they are multiplied by, and their sum. Inputs without padding lie
 * `rounded_stride` bytes apart. */
typedef struct { float scale; int32_t sum; char unused[56]; } RowHead;

INLINE int64_t rounded_stride(int64_t inner) {
    return (int64_t)sizeof(RowHead) + (inner + 63) / 64 * 64;
}

INLINE const i8 *numbers_of(const RowHead *row) { return (const i8 *)(row + 1); }

/* Rounds a row of inputs to -127 ... 127. A row that is not finite gets the scale NaN. The inputs
 * after the last are 0 up to the next vector. */
static void round_row(const act *x, int64_t inner, RowHead *row) {
    u8 *to = (u8 *)(row + 1);
    vec high = {}, spoiled = {};
    for (int64_t i = 0; i < inner; i += LANES) {
        vec value = load_act(x + i);
        high = larger(either(value < 0.0f, -value, value), high);
        spoiled += value * 0.0f; /* NaN for a value that is not finite */
    }
    float most = largest(high), inverse = most > 1e-30f ? 127.0f / most : 0.0f;
    ivec sums = {};
    memset(to, 0, rounded_stride(inner) - sizeof(RowHead));
    for (int64_t i = 0; i < inner; i += LANES) {
        /* Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits. */
        wvec word = (wvec)(load_act(x + i) * inverse + 12582912.0f);
        *(bvecu *)(to + i) = __builtin_convertvector(word, bvec);
        sums += (ivec)(word << 24) >> 24;
    }
    row->scale = most / 127.0f + sum(spoiled);
    row->sum = 0;
    for (int i = 0; i < LANES; i++) row->sum += sums[i];
}

/* totals[r] += the words of a row, one for each x[r], times two vectors of words of weights. */
INLINE void quads(ivec totals[][2], const int rows, const i8 *const x[], const i8 *weights) {
    wvec words[2] = {load_words(weights), load_words(weights + 4 * LANES)};
#if defined __AVX512VNNI__
    /* The instruction needs one unsigned factor, so 128 is added to each weight. `product_int8`
     * subtracts 128 times the sum of the row at the end. */
    words[0] ^= 0x80808080u, words[1] ^= 0x80808080u;
#elif defined __AVX2__
    /* maddubs needs one unsigned factor, too. So the weight's sign is moved to the input. Neither
     * is ever -128, and the sum of two products, 2 * 127 * 127 at most, fits into 16 bits. */
    wvec sizes[2];
#ifdef __AVX512F__
    __mmask64 negative[2];
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) {
        sizes[v] = (wvec)_mm512_abs_epi8((__m512i)words[v]);
        negative[v] = _mm512_movepi8_mask((__m512i)words[v]);
    }
#else
#pragma GCC unroll 2
    for (int v = 0; v < 2; v++) sizes[v] = (wvec)_mm256_abs_epi8((__m256i)words[v]);
#endif
#else
    ivec of[4][2];
#pragma GCC unroll 4
    for (int j = 0; j < 4; j++)
        for (int v = 0; v < 2; v++) of[j][v] = (ivec)(words[v] << (24 - 8 * j)) >> 24;
#endif
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
#if defined __AVX2__
        uint32_t four;
        memcpy(&four, x[r], 4);
        wvec input = all_words(four);
#endif
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
#if defined __AVX512VNNI__
            totals[r][v] = (ivec)_mm512_dpbusd_epi32((__m512i)totals[r][v], (__m512i)words[v],
                                                     (__m512i)input);
#elif defined __AVX512F__
            __m512i turned = _mm512_mask_sub_epi8((__m512i)input, negative[v],
                                                  _mm512_setzero_si512(), (__m512i)input);
            __m512i two = _mm512_maddubs_epi16((__m512i)sizes[v], turned);
            totals[r][v] += (ivec)_mm512_madd_epi16(two, _mm512_set1_epi16(1));
#elif defined __AVX2__
            __m256i turned = _mm256_sign_epi8((__m256i)input, (__m256i)words[v]);
            __m256i two = _mm256_maddubs_epi16((__m256i)sizes[v], turned);
            totals[r][v] += (ivec)_mm256_madd_epi16(two, _mm256_set1_epi16(1));
#else
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) totals[r][v] += of[j][v] * x[r][j];
#endif
        }
    }
}

/* sums[r] = row r times one panel, whose columns have the scales `scale`. */
INLINE void product_int8(const RowHead *x, int64_t inner, const i8 *panel, const float *scale,
                         int64_t ahead, const int rows, vec sums[][2]) {
    int64_t stride = rounded_stride(inner);
    const RowHead *row[TILE];
    ivec totals[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        row[r] = (const RowHead *)((const char *)x + r * stride);
        totals[r][0] = totals[r][1] = (ivec){};
    }
    for (int64_t k = 0; k < inner; k += 4, panel += 4 * PANEL) {
        const i8 *at[TILE];
        __builtin_prefetch(panel + ahead);
        if (LANES > 8) __builtin_prefetch(panel + ahead + 2 * PANEL);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) at[r] = numbers_of(x) + r * stride + k;
        quads(totals, rows, at, panel);
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
#ifdef __AVX512VNNI__
            /* The weights were 128 too large (see `quads`). */
            totals[r][v] -= 128 * row[r]->sum;
#endif
            sums[r][v] = __builtin_convertvector(totals[r][v], vec) * row[r]->scale
                         * load(scale + v * LANES);
        }
}

typedef void (*ProductInt8)(const RowHead *x, int64_t inner, const i8 *panel, const float *scale,
                            int64_t ahead, vec sums[][2]);

#define OF(n) static __attribute__((noinline)) void \
    product_int8_##n(const RowHead *x, int64_t inner, const i8 *panel, const float *scale, \
                     int64_t ahead, vec sums[][2]) { \
        product_int8(x, inner, panel, scale, ahead, n, sums); }
FOR_EACH_TILE(OF)
#undef OF
#define OF(n) product_int8_##n,
static const ProductInt8 products_int8[TILE + 1] = {0, FOR_EACH_TILE(OF)};
#undef OF
