/* The shape of a product's tile, and where rows and panels lie. */
#pragma once

#include "vectors.h"

#define PANEL (2 * LANES)
/* Rows of a product that are computed at once. With AVX-512, the sums of 12 rows take 24 of 32
 * registers. With AVX2, those of 6 rows take 12 of 16, and the weights and an input the others. A
 * row takes eight registers of NEON, so it computes three rows. */
#if defined __AVX512F__
#define TILE 12
#elif LANES == 8
#define TILE 6
#else
#define TILE 3
#endif
#define AHEAD 4096 /* bytes of weights to prefetch: 12 % faster than no prefetch at one row */

/* A copy of the code of `OF` for each number of rows, so that the sums stay in registers. */
#if TILE == 12
#define FOR_EACH_TILE(OF) OF(1) OF(2) OF(3) OF(4) OF(5) OF(6) OF(7) OF(8) OF(9) OF(10) OF(11) OF(12)
#elif TILE == 6
#define FOR_EACH_TILE(OF) OF(1) OF(2) OF(3) OF(4) OF(5) OF(6)
#else
#define FOR_EACH_TILE(OF) OF(1) OF(2) OF(3)
#endif

/* Elements from one row to the next. Rows are padded by a cache line. Otherwise the rows of a tile
 * map to few sets of the cache: 12 rows at a distance of 1,536 floats shared two sets. */
INLINE int64_t stride_of(int64_t width) {
    return (width + 31) / 32 * 32 + 64 / (int64_t)sizeof(act);
}
