/* Blocks of quantised weights, as a GGUF file stores them, and their values.
 *
 * A weight is scale * code, or scale * code - least. Every scale here is exact in float32: it is a
 * float16 times a whole number of at most 8 bits. */
#pragma once

#include "tile.h"

/* The numbers of the types in a GGUF file. */
enum {
    F32 = 0, F16 = 1, Q4_0 = 2, Q4_1 = 3, Q5_0 = 6, Q5_1 = 7, Q8_0 = 8, Q4_K = 12, Q5_K = 13,
    Q6_K = 14, BF16 = 30
};

#define SMALL 32  /* weights of a small block, and inputs that have a scale in common */
#define LARGE 256 /* weights of a large block, whose small blocks' scales have a scale in common */

typedef struct { u16 scale; u8 codes[SMALL / 2]; } Block4;
typedef struct { u16 scale, least; u8 codes[SMALL / 2]; } Block41;
typedef struct { u16 scale; u8 high[SMALL / 8], codes[SMALL / 2]; } Block5;
typedef struct { u16 scale, least; u8 high[SMALL / 8], codes[SMALL / 2]; } Block51;
typedef struct { u16 scale; i8 codes[SMALL]; } Block8;
typedef struct { u16 scale, least; u8 packed[12], codes[LARGE / 2]; } Block4K;
typedef struct { u16 scale, least; u8 packed[12], high[LARGE / 8], codes[LARGE / 2]; } Block5K;
typedef struct { u8 codes[LARGE / 2], high[LARGE / 4]; i8 packed[16]; u16 scale; } Block6K;

/* A float16 as a float. The multiplication moves the exponent, and makes subnormal numbers normal. */
INLINE float half(u16 bits) {
    uint32_t word = (uint32_t)(bits & 0x7fff) << 13;
    float value;
    memcpy(&value, &word, 4);
    value *= 0x1p112f;
    memcpy(&word, &value, 4);
    if ((bits & 0x7c00) == 0x7c00) word |= 0x7f800000;
    word |= (uint32_t)(bits & 0x8000) << 16;
    memcpy(&value, &word, 4);
    return value;
}

/* Whether a float16 is neither infinite nor NaN. */
INLINE int is_finite(u16 bits) { return (bits & 0x7c00) != 0x7c00; }

/* The weights of a block and bytes of it. 0 if the type is not quantised or not known. */
INLINE int64_t weights_of(int32_t type) {
    return type == Q4_0 || type == Q4_1 || type == Q5_0 || type == Q5_1 || type == Q8_0 ? SMALL
         : type == Q4_K || type == Q5_K || type == Q6_K ? LARGE : 0;
}

INLINE int64_t bytes_of(int32_t type) {
    return type == Q4_0 ? sizeof(Block4) : type == Q4_1 ? sizeof(Block41)
         : type == Q5_0 ? sizeof(Block5) : type == Q5_1 ? sizeof(Block51)
         : type == Q8_0 ? sizeof(Block8)
         : type == Q4_K ? sizeof(Block4K) : type == Q5_K ? sizeof(Block5K)
         : type == Q6_K ? sizeof(Block6K) : 0;
}

/* Bytes of a row of `inner` weights of any type. */
INLINE int64_t row_bytes(int32_t type, int64_t inner) {
    if (weights_of(type)) return inner / weights_of(type) * bytes_of(type);
    return inner * (type == F32 ? 4 : 2);
}

/* Up to LARGE weights of a row: their codes without sign, and what these are multiplied by. In a large
 * block, small block b has the scale `scale[0] * of[b]` and the least `least[0] * below[b]`; Q6_K has a
 * scale for each half of a small block. Other small blocks have `scale[b]`, and Q4_1 and Q5_1 add
 * `least[b]`.
 * `zero` is the code of the weight 0 where there is no least. */
typedef struct {
    int32_t zero;
    u16 scale[LARGE / SMALL], least[LARGE / SMALL];
    u8 of[2 * LARGE / SMALL], below[LARGE / SMALL];
    u8 codes[LARGE];
} Codes;

/* Whether small blocks have a least weight of their own. */
INLINE int adds_least(int32_t type) { return type == Q4_1 || type == Q5_1; }

/* Reads the codes of a small block: low halves of bytes, then high ones, and above them the bits of
 * `high`, if there are any. */
INLINE void read_small(const u8 *halves, const u8 *high, u8 *codes) {
    for (int i = 0; i < SMALL / 2; i++) {
        codes[i] = halves[i] & 15;
        codes[i + SMALL / 2] = halves[i] >> 4;
    }
    for (int i = 0; high && i < SMALL; i++) codes[i] |= (high[i / 8] >> i % 8 & 1) << 4;
}

/* The scales and leasts of 6 bits that Q4_K and Q5_K pack into 12 bytes. */
static void read_packed(const u8 *packed, Codes *to) {
    for (int b = 0; b < 4; b++) {
        to->of[b] = packed[b] & 63;
        to->below[b] = packed[b + 4] & 63;
        to->of[b + 4] = (packed[b + 8] & 15) | (packed[b] >> 6) << 4;
        to->below[b + 4] = packed[b + 8] >> 4 | (packed[b + 4] >> 6) << 4;
    }
}

/* Reads `count` weights, at most LARGE, from the blocks at `from`. */
static void read_codes(int32_t type, const void *from, int count, Codes *to) {
    const Block4 *four = from;
    const Block41 *four_1 = from;
    const Block5 *five = from;
    const Block51 *five_1 = from;
    const Block8 *eight = from;
    const Block4K *four_k = from;
    const Block5K *five_k = from;
    const Block6K *six_k = from;
    u8 *codes = to->codes;
    switch (type) {
    case Q4_0:
        to->zero = 8;
        for (int b = 0; b < count / SMALL; b++, codes += SMALL) {
            to->scale[b] = four[b].scale;
            read_small(four[b].codes, NULL, codes);
        }
        break;
    case Q4_1:
        to->zero = 0;
        for (int b = 0; b < count / SMALL; b++, codes += SMALL) {
            to->scale[b] = four_1[b].scale, to->least[b] = four_1[b].least;
            read_small(four_1[b].codes, NULL, codes);
        }
        break;
    case Q5_0:
        to->zero = 16;
        for (int b = 0; b < count / SMALL; b++, codes += SMALL) {
            to->scale[b] = five[b].scale;
            read_small(five[b].codes, five[b].high, codes);
        }
        break;
    case Q5_1:
        to->zero = 0;
        for (int b = 0; b < count / SMALL; b++, codes += SMALL) {
            to->scale[b] = five_1[b].scale, to->least[b] = five_1[b].least;
            read_small(five_1[b].codes, five_1[b].high, codes);
        }
        break;
    case Q8_0:
        to->zero = 128;
        for (int b = 0; b < count / SMALL; b++, codes += SMALL) {
            to->scale[b] = eight[b].scale;
            for (int i = 0; i < SMALL; i++) codes[i] = (u8)eight[b].codes[i] ^ 0x80;
        }
        break;
    case Q4_K:
        to->zero = 0, to->scale[0] = four_k->scale, to->least[0] = four_k->least;
        read_packed(four_k->packed, to);
        for (int b = 0; b < LARGE / SMALL; b++, codes += SMALL)
            for (int i = 0; i < SMALL; i++)
                codes[i] = four_k->codes[b / 2 * SMALL + i] >> b % 2 * 4 & 15;
        break;
    case Q5_K:
        to->zero = 0, to->scale[0] = five_k->scale, to->least[0] = five_k->least;
        read_packed(five_k->packed, to);
        for (int b = 0; b < LARGE / SMALL; b++, codes += SMALL)
            for (int i = 0; i < SMALL; i++)
                codes[i] = (five_k->codes[b / 2 * SMALL + i] >> b % 2 * 4 & 15)
                           | (five_k->high[i] >> b & 1) << 4;
        break;
    case Q6_K:
        to->zero = 32, to->scale[0] = six_k->scale;
        memcpy(to->of, six_k->packed, sizeof six_k->packed);
        for (int b = 0; b < LARGE / SMALL; b++, codes += SMALL)
            for (int i = 0; i < SMALL; i++)
                codes[i] = (six_k->codes[b / 4 * 64 + b % 2 * SMALL + i] >> b % 4 / 2 * 4 & 15)
                           | (six_k->high[b / 4 * SMALL + i] >> b % 4 * 2 & 3) << 4;
        break;
    }
}

/* The values of a row of `inner` weights of any type. No product or sum here is rounded but the last
 * one of a weight, so a compiler that contracts them changes no bit. */
static void widen_row(int32_t type, const void *from, int64_t inner, float *to) {
    if (type == F32) memcpy(to, from, 4 * inner);
    else if (type == F16) for (int64_t i = 0; i < inner; i++) to[i] = half(((const u16 *)from)[i]);
    else if (type == BF16) for (int64_t i = 0; i < inner; i++) to[i] = widen(((const u16 *)from)[i]);
    else for (int64_t begin = 0; begin < inner; begin += LARGE) {
        const char *blocks = (const char *)from + begin / weights_of(type) * bytes_of(type);
        int count = inner - begin < LARGE ? (int)(inner - begin) : LARGE;
        Codes read;
        read_codes(type, blocks, count, &read);
        for (int i = 0; i < count; i++) {
            int b = i / SMALL, code = read.codes[i] - read.zero;
            float scale, least = 0;
            if (weights_of(type) == SMALL) {
                scale = half(read.scale[b]);
                if (adds_least(type)) least = -half(read.least[b]);
            }
            else if (type == Q6_K) scale = half(read.scale[0]) * (i8)read.of[i / 16];
            else {
                scale = half(read.scale[0]) * read.of[b];
                least = half(read.least[0]) * read.below[b];
            }
            to[begin + i] = scale * code - least;
        }
    }
}
