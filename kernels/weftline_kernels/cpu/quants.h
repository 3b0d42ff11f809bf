/* Products of quantised weights with rounded inputs.
 *
 * The sum of a small block is a whole number, so it is the same in every variant. It is multiplied by
 * the scale of its weights times that of its inputs, and added in the order of the blocks. Every such
 * step is one fused multiply-add. So a result has the same bits in every variant, and for any number
 * of rows. */
#pragma once

#include "rounded.h"

/* The most rows for which codes are used as they are packed. For more rows they are spread once. */
#if TILE == 12
#define MOST_PACKED 4
#define FOR_EACH_PACKED(OF) OF(1) OF(2) OF(3) OF(4)
#define FOR_EACH_SPREAD(OF) OF(5) OF(6) OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#elif TILE == 6
#define MOST_PACKED 4
#define FOR_EACH_PACKED(OF) OF(1) OF(2) OF(3) OF(4)
#define FOR_EACH_SPREAD(OF) OF(2) OF(3) OF(4) OF(5) OF(6)
#else
#define MOST_PACKED 1
#define FOR_EACH_PACKED(OF) OF(1)
#define FOR_EACH_SPREAD(OF) OF(2) OF(3)
#endif
#define MOST_ROWS_OF_PANEL 96 /* rows that a panel's codes are spread for at once */

/* AVX2 and AVX-512 name the same instructions differently. */
#if defined __AVX512F__
#define WIDE(name) _mm512_##name
typedef __m512i whole;
#elif defined __AVX2__
#define WIDE(name) _mm256_##name
typedef __m256i whole;
#endif
#if defined __AVX2__
/* total += more, of 16 and of 32 bits. They are written out, because GCC 12 multiplies all words first
 * and adds then. So it kept the products in memory, and took twice as long. */
INLINE void add_pairs(whole *total, whole more) {
    __asm__("vpaddw %1, %0, %0" : "+v"(*total) : "v"(more));
}

INLINE void add_sums(ivec *total, whole more) {
    __asm__("vpaddd %1, %0, %0" : "+v"(*total) : "v"(more));
}

/* The numbers x with the signs of the weights. */
INLINE whole signed_by(whole x, whole weights) {
#ifdef __AVX512F__
    return _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(weights), _mm512_setzero_si512(), x);
#else
    return _mm256_sign_epi8(x, weights);
#endif
}
#endif

/* a * b + c, rounded once. */
INLINE vec fused(vec a, vec b, vec c) {
#ifdef __AVX512F__
    return (vec)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8
    return (vec)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    vec sum;
    for (int i = 0; i < LANES; i++) sum[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sum;
#endif
}

/* Up to LARGE inputs of a panel, ready to multiply: the scales as floats, and where the codes of a
 * small block and of the next ones are. With each small block the weights at `ahead` are prefetched, and
 * `pace` bytes behind them with the next one. */
typedef struct {
    const u8 *codes, *ahead;
    int64_t step, pace;
    vec scale[2 * LARGE / SMALL][2], least[LARGE / SMALL][2]; /* a least is added */
    u8 spread[LARGE / 4 * WORD] __attribute__((aligned(64)));
} Open;

INLINE vec float16s(const u8 *from) {
#if defined __AVX512F__
    return (vec)_mm512_cvtph_ps(_mm256_loadu_si256((const void *)from));
#elif defined __F16C__
    return (vec)_mm256_cvtph_ps(_mm_loadu_si128((const void *)from));
#else
    wvec bits = __builtin_convertvector(*(const hvecu *)from, wvec);
    vec value = (vec)((bits & 0x7fff) << 13) * 0x1p112f;
    wvec odd = (wvec)((bits & 0x7c00) == 0x7c00) & 0x7f800000u;
    return (vec)((wvec)value | odd | (bits & 0x8000) << 16);
#endif
}

/* Bytes as floats. GCC 12 converts a vector of bytes one by one, which took as long as the products. */
INLINE vec bytes_as_floats(const u8 *from, const int with_sign) {
#if defined __AVX512F__
    __m128i bytes = _mm_loadu_si128((const void *)from);
    return (vec)_mm512_cvtepi32_ps(with_sign ? _mm512_cvtepi8_epi32(bytes)
                                             : _mm512_cvtepu8_epi32(bytes));
#elif LANES == 8
    __m128i bytes = _mm_loadl_epi64((const void *)from);
    return (vec)_mm256_cvtepi32_ps(with_sign ? _mm256_cvtepi8_epi32(bytes)
                                             : _mm256_cvtepu8_epi32(bytes));
#else
    vec value;
    for (int i = 0; i < LANES; i++) value[i] = with_sign ? (float)(i8)from[i] : (float)from[i];
    return value;
#endif
}

/* Vector v of word j of a small block, as bytes. */
INLINE wvec word_of(const u8 *codes, const int bits, const int j, const int v) {
    codes += v * 4 * LANES;
    if (bits == 8) return load_words(codes + j * WORD);
    wvec word = load_words(codes + j % 4 * WORD);
    word = (j < 4 ? word : word >> 4) & 0x0f0f0f0fu;
    if (bits == 5) {
        wvec high = load_words(codes + 4 * WORD);
        word |= (j < 4 ? high << (4 - j) : high >> (j - 4)) & 0x10101010u;
    }
    if (bits == 6) {
        wvec high = load_words(codes + (4 + j / 4) * WORD);
        word |= (j % 4 < 2 ? high << (4 - 2 * (j % 4)) : high >> (2 * (j % 4) - 4)) & 0x30303030u;
    }
    return word;
}

/* Reads the scales of up to LARGE inputs, in `blocks` small blocks. */
INLINE void open_scales(const int32_t type, const u8 *from, int blocks, Open *to) {
    to->codes = from + scales_of(type);
    to->step = weights_of(type) == SMALL ? together(type) : bits_of(type) * WORD;
    to->ahead = from + AHEAD;
    to->pace = together(type) * SMALL / weights_of(type);
    const u8 *small = from + (type == Q6_K ? 2 : 4) * PANEL;
    for (int v = 0; v < 2; v++, from += 2 * LANES, small += LANES) {
        vec scale = float16s(from);
        if (weights_of(type) == SMALL)
            for (int b = 0; b < blocks; b++) {
                const u8 *block = from + b * together(type);
                to->scale[b][v] = float16s(block);
                if (adds_least(type)) to->least[b][v] = float16s(block + 2 * PANEL);
            }
        else if (type == Q6_K)
            for (int i = 0; i < 16; i++) to->scale[i][v] = scale * bytes_as_floats(small + i * PANEL, 1);
        else {
            vec least = -float16s(from + 2 * PANEL);
            for (int b = 0; b < 8; b++) {
                to->scale[b][v] = scale * bytes_as_floats(small + b * PANEL, 0);
                to->least[b][v] = least * bytes_as_floats(small + (8 + b) * PANEL, 0);
            }
        }
    }
}

/* Spreads the codes of `blocks` small blocks to bytes. */
INLINE void spread(const int bits, int blocks, Open *to) {
    u8 *out = to->spread;
    const u8 *codes = to->codes;
    for (int b = 0; b < blocks; b++, codes += to->step)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++, out += 4 * LANES)
                *(wvecu *)out = word_of(codes, bits, j, v);
    to->codes = to->spread;
    to->step = 8 * WORD;
}

#if defined __AVX512VNNI__
/* sums[r] += word j of row r times two vectors of codes. */
INLINE void add_word(const u8 *codes, const int bits, const int j, const Rounded *x,
                     const int rows, ivec sums[][2]) {
    __m512i left = (__m512i)word_of(codes, bits, j, 0), right = (__m512i)word_of(codes, bits, j, 1);
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        uint32_t four;
        memcpy(&four, x[r].numbers + 4 * j, 4);
        __m512i input = (__m512i)all_words(four);
        sums[r][0] = (ivec)_mm512_dpbusd_epi32((__m512i)sums[r][0], left, input);
        sums[r][1] = (ivec)_mm512_dpbusd_epi32((__m512i)sums[r][1], right, input);
    }
}
#elif defined __AVX2__
/* pairs[r] += word j of row r times two vectors of codes, two products in 16 bits. The first word sets
 * them, and so does every one of 8 bits. */
INLINE void add_word(const u8 *codes, const int bits, const int with_sign, const int first,
                     const int j, const Rounded *x, const int rows, whole pairs[][2]) {
    whole code[2] = {(whole)word_of(codes, bits, j, 0), (whole)word_of(codes, bits, j, 1)};
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) {
        uint32_t four;
        memcpy(&four, x[r].numbers + 4 * j, 4);
        whole input = (whole)all_words(four);
#pragma GCC unroll 2
        for (int v = 0; v < 2; v++) {
            if (with_sign)
                pairs[r][v] = WIDE(maddubs_epi16)(WIDE(abs_epi8)(code[v]),
                                                  signed_by(input, code[v]));
            else if (first) pairs[r][v] = WIDE(maddubs_epi16)(code[v], input);
            else add_pairs(&pairs[r][v], WIDE(maddubs_epi16)(code[v], input));
        }
    }
}
#endif

/* sums[r] = `words` words of row r times two vectors of codes each, from word `part * words` on. Packed
 * codes need a copy of the code for each word. Spread ones have a loop, from which GCC 12 cannot move the
 * products of later words, to keep them in memory. */
INLINE void add_words(const u8 *codes, const int bits, const int packed, const int words,
                      const int part, const Rounded *x, const int less, const int rows,
                      ivec sums[][2]) {
    const int first = part * words, last = first + words;
#if defined __AVX512VNNI__
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = (ivec)all_words((uint32_t)x[r].less[less]);
    if (packed && bits < 8)
#pragma GCC unroll 8
        for (int j = first; j < last; j++) add_word(codes, bits, j, x, rows, sums);
    else
#pragma GCC unroll 2
        for (int j = first; j < last; j++) add_word(codes, 8, j, x, rows, sums);
#elif defined __AVX2__
    /* maddubs adds two products in 16 bits. As many of its sums as fit are added before they are
     * widened: 8 * 2 * 15 * 127, 4 * 2 * 31 * 127 and 2 * 2 * 63 * 127 are at most 32,004. Weights of
     * 8 bits have signs here, and give them to the inputs: 2 * 128 * 127 fits. */
    const int deep = bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
#if LANES == 8 /* Q8_0 is 1.1 times as fast; with AVX-512's tile GCC 12 keeps products in memory */
#pragma GCC unroll 8
#endif
    for (int begin = first; begin < last; begin += deep) {
        whole pairs[TILE][2];
        add_word(codes, packed ? bits : 8, bits == 8, 1, begin, x, rows, pairs);
        if (packed && bits < 8)
#pragma GCC unroll 8
            for (int j = begin + 1; j < begin + deep; j++)
                add_word(codes, bits, 0, 0, j, x, rows, pairs);
        else
#pragma GCC unroll 1
            for (int j = begin + 1; j < begin + deep; j++)
                add_word(codes, 8, 0, 0, j, x, rows, pairs);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                whole more = WIDE(madd_epi16)(pairs[r][v], WIDE(set1_epi16)(1));
                if (begin == first) sums[r][v] = (ivec)more;
                else add_sums(&sums[r][v], more);
            }
    }
    if (less != LESS_0)
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) sums[r][v] += (ivec)all_words((uint32_t)x[r].less[less]);
#else
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = (ivec)all_words((uint32_t)x[r].less[less]);
    for (int j = first; j < last; j++)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
#pragma GCC unroll 2
            for (int v = 0; v < 2; v++) {
                wvec word = word_of(codes, packed ? bits : 8, j, v);
                ivec code = bits == 8 ? (ivec)(word << (24 - 8 * i)) >> 24
                                      : (ivec)(word >> 8 * i & 255);
#pragma GCC unroll 16
                for (int r = 0; r < rows; r++) sums[r][v] += code * x[r].numbers[4 * j + i];
            }
#endif
}

/* sums[r] += `blocks` small blocks of row r times those of a panel. `words` have a scale in common;
 * `less` is a place in `Rounded`. The sums are added in a copy: where the compiler cannot know that
 * codes and sums do not overlap, it writes each sum twice, and AVX2's products took 1.1 times as long. */
INLINE void product_quants(const Open *open, int blocks, const int bits, const int packed,
                           const int words, const int least, const int less, const Rounded *x,
                           int64_t apart, const int rows, vec sums[][2]) {
    const u8 *codes = open->codes, *ahead = open->ahead;
    const vec (*scale)[2] = open->scale;
    vec totals[TILE][2];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) totals[r][0] = sums[r][0], totals[r][1] = sums[r][1];
    for (int b = 0; b < blocks; b++, x += apart, codes += open->step, ahead += open->pace) {
        /* A small block of the weights that come, and its share of their scales. All of these lines at
         * once, when codes are spread, were more than a core can wait for. */
#pragma GCC unroll 20
        for (int at = 0; at < bits * WORD + 4 * PANEL; at += 64) __builtin_prefetch(ahead + at);
        if (!packed)
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++) __builtin_prefetch(x + apart + r);
#pragma GCC unroll 2
        for (int part = 0; part < 8 / words; part++, scale++) {
            ivec whole_sums[TILE][2];
            add_words(codes, bits, packed, words, part, x, less + part, rows, whole_sums);
#pragma GCC unroll 16
            for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
                for (int v = 0; v < 2; v++) {
                    vec of = scale[0][v] * x[r].scale;
                    vec more = __builtin_convertvector(whole_sums[r][v], vec);
                    vec sum = fused(more, of, totals[r][v]);
                    if (least) sum = fused(open->least[b][v], all(x[r].sum), sum);
                    totals[r][v] = sum;
                }
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++) sums[r][0] = totals[r][0], sums[r][1] = totals[r][1];
}

typedef void (*ProductQuants)(const Open *open, int blocks, const Rounded *x, int64_t apart,
                              vec totals[][2]);

/* A copy of the code for each type and each number of rows, so that the sums stay in registers: of
 * packed codes up to MOST_PACKED rows, else of spread ones. Codes of 8 bits are never packed. More
 * rows than a tile are at least half a tile each. */
#define COPY(name, bits, packed, words, least, less, n) \
    static __attribute__((noinline)) void name##_##n(const Open *open, int blocks, \
                                                     const Rounded *x, int64_t apart, \
                                                     vec totals[][2]) { \
        product_quants(open, blocks, bits, packed, words, least, less, x, apart, n, totals); }
#define OF(n) COPY(q8_0, 8, 1, 8, 0, LESS_EIGHT, n)
FOR_EACH_TILE(OF)
#undef OF
#define OF(n) COPY(q4_0, 4, 1, 8, 0, LESS_8, n) COPY(q4_k, 4, 1, 8, 1, LESS_0, n) \
    COPY(q5_0, 5, 1, 8, 0, LESS_16, n) COPY(q5_k, 5, 1, 8, 1, LESS_0, n) \
    COPY(q6_k, 6, 1, 4, 0, LESS_32, n)
FOR_EACH_PACKED(OF)
#undef OF
#define OF(n) COPY(spread_4_0, 4, 0, 8, 0, LESS_8, n) COPY(spread_4_k, 4, 0, 8, 1, LESS_0, n) \
    COPY(spread_5_0, 5, 0, 8, 0, LESS_16, n) COPY(spread_5_k, 5, 0, 8, 1, LESS_0, n) \
    COPY(spread_6_k, 6, 0, 4, 0, LESS_32, n)
FOR_EACH_SPREAD(OF)
#undef OF
#undef COPY
#define OF(n) [n] = {q4_0_##n, q8_0_##n, q4_k_##n, q5_k_##n, q6_k_##n, q5_0_##n},
static const ProductQuants packed_products[TILE + 1][6] = {FOR_EACH_PACKED(OF)};
#undef OF
#define OF(n) [n] = {spread_4_0_##n, q8_0_##n, spread_4_k_##n, spread_5_k_##n, spread_6_k_##n, \
                     spread_5_0_##n},
static const ProductQuants spread_products[TILE + 1][6] = {FOR_EACH_SPREAD(OF)};
#undef OF

/* Returns the place of a type among these copies. */
INLINE int copy_of(int32_t type) {
    return type == Q4_0 ? 0 : type == Q8_0 ? 1 : type == Q4_K || type == Q4_1 ? 2
         : type == Q5_K || type == Q5_1 ? 3 : type == Q6_K ? 4 : 5;
}

/* Makes `blocks` small blocks ready, and spreads their codes if `spreads`. */
INLINE void open_blocks(const int32_t type, const u8 *from, int blocks, int spreads, Open *to) {
    open_scales(type, from, blocks, to);
    if (spreads && type != Q8_0) spread(bits_of(type), blocks, to);
}

static void open_any(int32_t type, const u8 *from, int blocks, int spreads, Open *to) {
    switch (type) { /* a copy of the code for each type */
    case Q4_0: open_blocks(Q4_0, from, blocks, spreads, to); break;
    case Q4_1: open_blocks(Q4_1, from, blocks, spreads, to); break;
    case Q5_0: open_blocks(Q5_0, from, blocks, spreads, to); break;
    case Q5_1: open_blocks(Q5_1, from, blocks, spreads, to); break;
    case Q8_0: open_blocks(Q8_0, from, blocks, spreads, to); break;
    case Q4_K: open_blocks(Q4_K, from, blocks, spreads, to); break;
    case Q5_K: open_blocks(Q5_K, from, blocks, spreads, to); break;
    case Q6_K: open_blocks(Q6_K, from, blocks, spreads, to); break;
    }
}

/* The most rows that are computed at once. With AVX2, six rows of Q6_K need more registers than there
 * are: four are 1.1 times as fast. */
INLINE int64_t tile_of(int32_t type) { return LANES == 8 && type == Q6_K ? 4 : TILE; }

/* sums[r] = row r of `count` rows times one panel. `x` is the first row's first block of inputs. Codes
 * are spread once for all rows. */
static void multiply_panel(int32_t type, const u8 *panel, int64_t inner, const Rounded *x,
                           int64_t apart, int64_t count, vec sums[][2]) {
    Open open;
    int copy = copy_of(type), packed = count <= MOST_PACKED;
    int64_t tiles = (count + tile_of(type) - 1) / tile_of(type);
    memset(sums, 0, count * sizeof sums[0]);
    for (int64_t begin = 0; begin < inner; begin += LARGE) {
        int blocks = (int)((inner - begin < LARGE ? inner - begin : LARGE) / SMALL);
        open_any(type, panel, blocks, !packed, &open);
        panel += blocks * SMALL / weights_of(type) * together(type);
        for (int64_t tile = 0; tile < tiles; tile++) {
            int64_t row = tile * count / tiles, rows = (tile + 1) * count / tiles - row;
            ProductQuants product = packed ? packed_products[rows][copy]
                                           : spread_products[rows][copy];
            product(&open, blocks, x + begin / SMALL * apart + row, apart, sums + row);
        }
    }
}
