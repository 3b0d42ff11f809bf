/* What a caller needs to quantise weights and to pack them into panels. */
#pragma once

#include <omp.h>

#include "panels.h"
#include "quantise.h"

/* Returns the bytes of a panel of `inner` inputs. 0 if no whole number of blocks has so many. */
int64_t weftline_panel_bytes(int32_t type, int64_t inner) {
    int64_t count = weights_of(type);
    return count && inner % count ? 0 : panel_bytes(type, inner);
}

/* Packs rows of weights, the columns of a product. `rows` are whole panels of addresses, NULL for a row
 * of zeros. Returns whether all scales are finite. */
int32_t weftline_pack(int32_t type, const void *const *rows, int64_t count, int64_t inner, u8 *to,
                      int32_t threads) {
    int good = 1;
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) reduction(&& : good)
    for (int64_t panel = 0; panel < count / PANEL; panel++)
        good = pack_panel(type, rows + panel * PANEL, inner, to + panel * panel_bytes(type, inner))
               && good;
    return good;
}

/* Widens rows of weights of any type. */
void weftline_widen(int32_t type, const void *from, int64_t rows, int64_t inner, float *to,
                    int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t r = 0; r < rows; r++)
        widen_row(type, (const char *)from + r * row_bytes(type, inner), inner, to + r * inner);
}

/* Quantises `count` floats to blocks of Q8_0 or Q4_0, as llama.cpp's reference does. */
void weftline_quantise(int32_t type, const float *from, int64_t count, void *to, int32_t threads) {
#pragma omp parallel for num_threads(threads)
    for (int64_t b = 0; b < count / SMALL; b++)
        if (type == Q8_0) quantise_8(from + b * SMALL, (Block8 *)to + b);
        else quantise_4(from + b * SMALL, (Block4 *)to + b);
}
