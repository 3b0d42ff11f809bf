/* Computes a product, exp and a norm, for a CPU that an emulator runs.
 *
 * From stdin: rows, inner, width as int64; the inputs, the weights in panels, and the
 * weight of a norm. To stdout: the results, in the order of the first line. */

#include <stdio.h>
#include <stdlib.h>

#include "decoder.c"

static void *taken(size_t size) {
    void *found = calloc(size + 64, 1);
    if (!found || fread(found, 1, size, stdin) != size) exit(1);
    return found;
}

static void given(const float *from, int64_t count) { fwrite(from, 4, count, stdout); }

int main(void) {
    int64_t *shape = taken(3 * 8), rows = shape[0], inner = shape[1], width = shape[2];
    int64_t wide = (width + PANEL - 1) / PANEL * PANEL;
    float *x = taken(4 * rows * inner);
    u16 *panels = taken(2 * wide * ((inner + 1) / 2 * 2));
    float *weight = taken(4 * inner);
    act *laid = calloc(rows * stride_of(inner), sizeof(act));
    float *out = calloc(rows * width, 4), *e = calloc(rows * inner + 16, 4);
    weftline_inputs(x, rows, inner, laid);
    weftline_product(laid, rows, inner, BF16, panels, 0, width, out, 2);
    given(out, rows * width);
    for (int64_t i = 0; i < rows * inner; i++) x[i] = x[i] < 0 ? x[i] : -x[i];
    weftline_exp(x, rows * inner, e);
    given(e, rows * inner);
    weftline_norms(x, weight, rows, inner, 1e-5f, laid);
    for (int64_t r = 0; r < rows; r++) given((const float *)laid + r * stride_of(inner), inner);
    return 0;
}
