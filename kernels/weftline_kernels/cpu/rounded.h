/* Inputs of a product, rounded to 8 bits in blocks of 32, each with a scale of its own. */
#pragma once

#include "panels.h"

/* A block of inputs: its numbers, what they are multiplied by, and sums that the products need.
 * Block b of row r lies at [b * apart + r], so the rows of a tile are adjacent. */
typedef struct {
    float scale, sum;     /* `sum` is that of the numbers, times the scale */
    int32_t less[6];      /* -zero times the sum of the numbers; see `LESS` */
    i8 numbers[SMALL];
} Rounded;

/* How far apart the blocks of a row lie, in blocks. In a chunk of 512 rows all blocks of a row would
 * share a few sets of the caches. At an odd multiple of 32 lines they are spread over all sets. */
INLINE int64_t blocks_apart(int64_t rows) {
    return rows < 32 ? rows : ((rows + 31) / 32 | 1) * 32;
}

/* The places in `less`: of no zero, of the zeros 8, 16 and 128, and of 32 for either half. */
enum { LESS_0 = 0, LESS_8 = 1, LESS_128 = 2, LESS_32 = 3, LESS_16 = 5 };
#ifdef __AVX512VNNI__
#define LESS_EIGHT LESS_128 /* this instruction wants codes without sign */
#else
#define LESS_EIGHT LESS_0
#endif

/* Stores the lowest byte of each word, and returns the sum of these bytes as whole numbers. */
INLINE int32_t put_bytes(i8 *to, wvec words) {
#if defined __AVX512F__
    __m128i bytes = _mm512_cvtepi32_epi8((__m512i)words);
    _mm_storeu_si128((void *)to, bytes);
    return _mm512_reduce_add_epi32(_mm512_cvtepi8_epi32(bytes));
#elif LANES == 8
    ivec numbers = (ivec)(words << 24) >> 24;
    __m128i two = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)numbers),
                                  _mm256_extracti128_si256((__m256i)numbers, 1));
    _mm_storel_epi64((void *)to, _mm_packs_epi16(two, two));
    __m128i four = _mm_madd_epi16(two, _mm_set1_epi16(1));
    four = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(four) + _mm_extract_epi32(four, 1);
#else
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) to[i] = (i8)words[i], total += to[i];
    return total;
#endif
}

/* Rounds SMALL inputs to -127 ... 127. Inputs that are not finite get the scale NaN. */
static void round_block(const act *x, Rounded *to) {
    vec high = {}, spoiled = {};
    int32_t halves[2] = {0, 0};
#pragma GCC unroll 4
    for (int i = 0; i < SMALL; i += LANES) {
        vec value = load_act(x + i);
        high = larger(either(value < 0.0f, -value, value), high);
        spoiled += value * 0.0f; /* NaN for a value that is not finite */
    }
    float most = largest(high), inverse = most > 1e-30f ? 127.0f / most : 0.0f;
#pragma GCC unroll 4
    for (int i = 0; i < SMALL; i += LANES)
        /* Adding 1.5 * 2^23 leaves the nearest integer in the lowest bits. */
        halves[i / 16] += put_bytes(to->numbers + i,
                                    (wvec)(load_act(x + i) * inverse + 12582912.0f));
    int32_t total = halves[0] + halves[1];
    to->scale = most / 127.0f + sum(spoiled);
    to->sum = to->scale * (float)total;
    to->less[LESS_0] = 0, to->less[LESS_8] = -8 * total, to->less[LESS_128] = -128 * total;
    to->less[LESS_32] = -32 * halves[0], to->less[LESS_32 + 1] = -32 * halves[1];
    to->less[LESS_16] = -16 * total;
}
