/* The MLP of a layer whose rows use some of its experts each.
 *
 * The rows of an expert are gathered, so that its weights are read once for all of them. A row's result
 * is the sum of what its experts make, in their order, so it does not depend on the other rows. */
#pragma once

#include "product.h"
#include "rows.h"

#define MOST_EXPERTS 1024

/* Chooses the experts of a row, in the order of their numbers, and the share of each: the softmax of
 * the router's scores. Of equal scores the first is chosen. */
static void choose(const Model *m, const float *router, const float *x, int32_t *expert, float *share) {
    float score[MOST_EXPERTS], high = -INFINITY, total = 0, kept = 0;
    u8 taken[MOST_EXPERTS] = {0};
    for (int32_t e = 0; e < m->experts; e++) {
        score[e] = dot(x, router + e * (int64_t)m->hidden, m->hidden);
        high = score[e] > high ? score[e] : high;
    }
    for (int32_t e = 0; e < m->experts; e++) total += score[e] = expf(score[e] - high);
    for (int32_t k = 0; k < m->used; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < m->experts; e++)
            if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
        taken[best] = 1;
        kept += score[best];
    }
    for (int32_t e = 0, k = 0; k < m->used; e++)
        if (taken[e]) expert[k] = e, share[k++] = score[e] / (m->normalised ? kept : total);
}

/* Gives the rows of an expert adjacent places, in the order of their tokens. */
static void sort_rows(const Model *m, const Step *s) {
    int64_t rows = (int64_t)s->tokens * m->used;
    memset(s->first, 0, (m->experts + 1) * sizeof *s->first);
    for (int64_t i = 0; i < rows; i++) s->first[s->expert[i] + 1]++;
    for (int32_t e = 0; e < m->experts; e++) s->first[e + 1] += s->first[e];
    for (int64_t i = 0; i < rows; i++) {
        s->place[i] = s->first[s->expert[i]]++;
        s->owner[s->place[i]] = s->expert[i];
    }
    /* Each place is now behind the rows of its expert: that is where the next one begins. */
    for (int32_t e = m->experts; e > 0; e--) s->first[e] = s->first[e - 1];
    s->first[0] = 0;
}

/* Adds what a row's experts make to the residual stream. */
static void combine(const Model *m, const Step *s, int64_t token) {
    int64_t hidden = m->hidden;
    float *x = s->x + token * hidden;
    for (int64_t i = 0; i < hidden; i++) {
        float total = 0;
        for (int64_t k = token * m->used; k < (token + 1) * m->used; k++)
            total += s->share[k] * s->made[s->place[k] * hidden + i];
        x[i] += total * m->residual_scale;
    }
}

/* Where the rounded inputs of an expert begin. */
INLINE Rounded *rounded_of(const Step *s, int64_t first, int64_t inner) {
    return (Rounded *)s->rounded + first * (inner / SMALL);
}

/* Rounds the row at a place as the weight of its expert wants it. */
INLINE void round_place(const Step *s, const act *x, int64_t place, int64_t inner,
                        const Weight *weight) {
    int64_t first = s->first[s->owner[place]], rows = s->first[s->owner[place] + 1] - first;
    Rounded *rounded = rounded_of(s, first, inner);
    const act *row = x + place * stride_of(inner);
    if (weights_of(weight->part[0].type))
        for (int64_t b = 0; b < inner / SMALL; b++)
            round_block(row + b * SMALL, rounded + b * rows + place - first);
}

/* Multiplies the rows of each expert by one of its weights: gate_up, or `down`. The tasks of all experts
 * are one loop, since threads that met after each expert would wait more than they compute. */
INLINE void multiply_experts(const Model *m, const Step *s, const Layer *layer, const act *x,
                             int64_t inner, int64_t panels, const int down) {
    int64_t hidden = m->hidden, wide = stride_of(m->expert_mlp), tasks = 0, before = 0;
    const Weight *weights = layer->expert_weights + down;
    Cut cut = {0};
    int32_t e = -1;
#pragma omp for
    for (int64_t i = 0; i < (int64_t)s->tokens * m->used; i++)
        round_place(s, x, i, inner, weights + 2 * s->owner[i]);
    for (int32_t n = 0; n < m->experts; n++) {
        int64_t rows = s->first[n + 1] - s->first[n];
        cut = cut_of(rows, panels);
        tasks += rows ? cut.blocks * cut.groups : 0;
    }
    cut.blocks = 0; /* of the expert before the first */
#pragma omp for schedule(monotonic : dynamic, 1)
    for (int64_t task = 0; task < tasks; task++) {
        while (task >= before + cut.blocks * cut.groups) {
            before += cut.blocks * cut.groups;
            e++;
            cut = cut_of(s->first[e + 1] - s->first[e], panels);
        }
        int64_t first = s->first[e], rows = s->first[e + 1] - first;
        Gated gated = {s->gated + first * wide, 0, m->expert_mlp, wide, m->gelu};
        Plain made = {s->made + first * hidden, 0, hidden};
        Job job = {x + first * stride_of(inner), rows, inner, rows,
                   rounded_of(s, first, inner),
                   down ? put : gate, down ? (const void *)&made : &gated};
        multiply_task(&job, weights + 2 * e, panels, &cut, task - before);
    }
}

static void mix(const Model *m, const Step *s, const Layer *layer) {
    int64_t hidden = m->hidden, stride = stride_of(hidden);
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++) {
        float *row = s->added + t * hidden;
        memcpy(row, s->x + t * hidden, hidden * sizeof *row);
        rescale(row, layer->mlp_norm, hidden, m->eps);
        choose(m, layer->router, row, s->expert + t * m->used, s->share + t * m->used);
    }
#pragma omp single
    sort_rows(m, s);
#pragma omp for
    for (int64_t i = 0; i < (int64_t)s->tokens * m->used; i++)
        normalise(s->added + i / m->used * hidden, 0, hidden, m->eps, s->routed + s->place[i] * stride);
    multiply_experts(m, s, layer, s->routed, hidden, (m->expert_mlp + LANES - 1) / LANES, 0);
    multiply_experts(m, s, layer, s->gated, m->expert_mlp, (hidden + PANEL - 1) / PANEL, 1);
#pragma omp for
    for (int64_t t = 0; t < s->tokens; t++) combine(m, s, t);
}
