/* Quantises weights to the types that have small blocks alone. */
#pragma once

#include "blocks.h"

/* A float as a float16, rounded to nearest even. */
INLINE u16 half_of(float value) {
    uint32_t word, sign, rest;
    memcpy(&word, &value, 4);
    sign = word >> 16 & 0x8000, rest = word & 0x7fffffff;
    if (rest > 0x7f800000) return (u16)(sign | 0x7e00);
    if (rest >= 0x477ff000) return (u16)(sign | 0x7c00); /* rounds to 65,536 or more */
    if (rest < 0x38800000) {                             /* subnormal: a multiple of 2^-24 */
        float size;
        memcpy(&size, &rest, 4);
        size += 0.5f; /* whose last bit is worth 2^-24 */
        memcpy(&rest, &size, 4);
        return (u16)(sign | (rest - 0x3f000000));
    }
    return (u16)(sign | (rest - 0x38000000 + 0xfff + (rest >> 13 & 1)) >> 13);
}

/* Products and sums are rounded one by one here, as in numpy. */
#define UNFUSED __attribute__((optimize("fp-contract=off")))

/* The largest size d * 127 becomes 127. Halves are rounded away from zero. */
UNFUSED static void quantise_8(const float *x, Block8 *to) {
    float most = 0;
    for (int i = 0; i < SMALL; i++) most = fabsf(x[i]) > most ? fabsf(x[i]) : most;
    float scale = most / 127, inverse = scale ? 1 / scale : 0;
    to->scale = half_of(scale);
    for (int i = 0; i < SMALL; i++) to->codes[i] = (i8)roundf(x[i] * inverse);
}

/* The number of the largest size becomes -8. */
UNFUSED static void quantise_4(const float *x, Block4 *to) {
    float most = 0;
    for (int i = 0; i < SMALL; i++) most = fabsf(x[i]) > fabsf(most) ? x[i] : most;
    float scale = most / -8, inverse = scale ? 1 / scale : 0;
    to->scale = half_of(scale);
    for (int i = 0; i < SMALL / 2; i++) {
        float low = x[i] * inverse, high = x[i + SMALL / 2] * inverse;
        int first = (int)(low + 8.5f), second = (int)(high + 8.5f);
        to->codes[i] = (u8)((first > 15 ? 15 : first) | (second > 15 ? 15 : second) << 4);
    }
}
