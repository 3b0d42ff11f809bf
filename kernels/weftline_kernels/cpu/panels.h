/* Panels of weights: how they lie in memory, and how rows of a file become panels. Rows of floats
 * become bfloat16, two numbers of a column together, then those of the next column.
 *
 * In quantised panels, the numbers of LARGE inputs and PANEL columns are together, or those of SMALL inputs where the type
 * has small blocks alone. First come the scales of all columns, then the codes of each small block. A
 * small block is eight words, each of four inputs, and a word of all columns is adjacent. Two words of
 * 4 bits share their bytes: word p has the low bits, word p + 4 the high ones. The fifth bits of all
 * eight words share the bytes of one word. The fifth and sixth bits of four words share those of one. */
#pragma once

#include "blocks.h"

#define WORD (4 * PANEL) /* bytes of a word of all columns */

INLINE int bits_of(int32_t type) {
    return type == Q8_0 ? 8 : type == Q6_K ? 6
         : type == Q5_K || type == Q5_0 || type == Q5_1 ? 5 : 4;
}

/* Bytes of the scales of a panel, before its codes. */
INLINE int64_t scales_of(int32_t type) {
    if (weights_of(type) == SMALL) return PANEL * (adds_least(type) ? 4 : 2);
    return PANEL * (type == Q6_K ? 2 + 16 : 4 + 16);
}

/* Bytes of the scales and codes that lie together. */
INLINE int64_t together(int32_t type) {
    return scales_of(type) + weights_of(type) / SMALL * bits_of(type) * WORD;
}

/* Bytes of a panel. */
INLINE int64_t panel_bytes(int32_t type, int64_t inner) {
    if (!weights_of(type)) return (inner + 1) / 2 * 4 * PANEL;
    return inner / weights_of(type) * together(type);
}

/* Packs the small block `b` of one column, whose codes are words of four. `to` is the word of that
 * column in the first word of the block. */
static void pack_codes(const u8 *codes, int bits, u8 *to) {
    uint32_t word[8], high = 0;
    memcpy(word, codes, sizeof word);
    if (bits == 8) {
#ifdef __AVX512VNNI__
        for (int j = 0; j < 8; j++) memcpy(to + j * WORD, &word[j], 4);
#else
        for (int j = 0; j < 8; j++) {
            uint32_t with_sign = word[j] ^ 0x80808080u;
            memcpy(to + j * WORD, &with_sign, 4);
        }
#endif
        return;
    }
    for (int p = 0; p < 4; p++) {
        uint32_t both = (word[p] & 0x0f0f0f0fu) | (word[p + 4] & 0x0f0f0f0fu) << 4;
        memcpy(to + p * WORD, &both, 4);
    }
    if (bits == 5) {
        for (int j = 0; j < 8; j++) high |= (word[j] >> 4 & 0x01010101u) << j;
        memcpy(to + 4 * WORD, &high, 4);
    }
    if (bits == 6)
        for (int h = 0; h < 2; h++) {
            high = 0;
            for (int j = 0; j < 4; j++) high |= (word[4 * h + j] >> 4 & 0x03030303u) << 2 * j;
            memcpy(to + (4 + h) * WORD, &high, 4);
        }
}

/* Writes the scales of one column to their place among those of its panel. Returns whether they are
 * finite. */
static int pack_scales(int32_t type, const Codes *read, int64_t column, u8 *to) {
    memcpy(to + 2 * column, &read->scale[0], 2);
    to += 2 * PANEL;
    int good = is_finite(read->scale[0]);
    if (type == Q6_K)
        for (int i = 0; i < 16; i++) to[i * PANEL + column] = read->of[i];
    if (type == Q4_K || type == Q5_K || adds_least(type)) {
        memcpy(to + 2 * column, &read->least[0], 2);
        to += 2 * PANEL;
        good &= is_finite(read->least[0]);
    }
    if (type == Q4_K || type == Q5_K)
        for (int b = 0; b < 8; b++) {
            to[b * PANEL + column] = read->of[b];
            to[(8 + b) * PANEL + column] = read->below[b];
        }
    return good;
}

/* A float of a row as bfloat16. A mapped file may hold it at any address. */
INLINE u16 float_at(int32_t type, const char *row, int64_t at) {
    float value;
    u16 bits;
    if (type == F32) {
        memcpy(&value, row + 4 * at, 4);
        return narrow(value);
    }
    memcpy(&bits, row + 2 * at, 2);
    return type == BF16 ? bits : narrow(half(bits));
}

/* Packs one panel of rows of `inner` floats; a row that is NULL is 0. */
INLINE void pack_floats(int32_t type, const void *const rows[], int64_t inner, u16 *to) {
    for (int64_t at = 0; at < inner; at += 2)
        for (int64_t column = 0; column < PANEL; column++, to += 2) {
            const char *row = rows[column];
            to[0] = row ? float_at(type, row, at) : 0;
            to[1] = row && at + 1 < inner ? float_at(type, row, at + 1) : 0;
        }
}

/* Packs one panel of rows of `inner` weights; a row that is NULL is 0. Returns whether all scales are
 * finite. */
static int pack_panel(int32_t type, const void *const rows[], int64_t inner, u8 *to) {
    int64_t count = weights_of(type);
    int good = 1;
    if (!count) {
        if (type == F32) pack_floats(F32, rows, inner, (u16 *)to);
        else if (type == F16) pack_floats(F16, rows, inner, (u16 *)to);
        else pack_floats(BF16, rows, inner, (u16 *)to);
        return good;
    }
    for (int64_t begin = 0; begin < inner; begin += count, to += together(type))
        for (int64_t column = 0; column < PANEL; column++) {
            Codes read = {0};
            if (rows[column])
                read_codes(type, (const char *)rows[column] + begin / count * bytes_of(type),
                           (int)count, &read);
            good &= pack_scales(type, &read, column, to);
            for (int b = 0; b < count / SMALL; b++)
                pack_codes(read.codes + b * SMALL, bits_of(type),
                           to + scales_of(type) + b * bits_of(type) * WORD + 4 * column);
        }
    return good;
}
