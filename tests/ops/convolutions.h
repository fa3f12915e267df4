/* Convolutions of all kinds, small ones. */
#ifndef TESS_TESTS_CONVOLUTIONS_H
#define TESS_TESTS_CONVOLUTIONS_H
#include "codelets/generic.h"
#include <stdlib.h>
#include <string.h>

enum { LAST_CHANNEL = 1, LAST_OUTPUT = 2 };
typedef struct conv_problem {
    const char *name;
    int64_t samples, groups, inputs, outputs;
    int64_t in[TESS_CONV_SPACE], window[TESS_CONV_SPACE], step[TESS_CONV_SPACE], apart[TESS_CONV_SPACE],
        pad[TESS_CONV_SPACE], behind;
    int last; /* LAST_CHANNEL: channels are the last dimension of x and y; LAST_OUTPUT: outputs that of w */
} conv_problem;
#define CONV_ONE                                                                                                       \
    {                                                                                                                  \
        1, 1, 1                                                                                                        \
    }
#define CONV_NONE                                                                                                      \
    {                                                                                                                  \
        0, 0, 0                                                                                                        \
    }
static const conv_problem conv_problems[] = {
    {"3 x 3", 4, 1, 16, 32, {1, 9, 11}, {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1, 0},
    {"7 x 7 by 2 of 3", 2, 1, 3, 16, {1, 23, 20}, {1, 7, 7}, {1, 2, 2}, CONV_ONE, {0, 3, 3}, 3, 0},
    {"points", 8, 1, 64, 48, {1, 5, 5}, CONV_ONE, CONV_ONE, CONV_ONE, CONV_NONE, 0, 0},
    {"points by 2", 8, 1, 32, 32, {1, 8, 8}, CONV_ONE, {1, 2, 2}, CONV_ONE, CONV_NONE, 0, 0},
    {"dilated", 2, 1, 16, 16, {1, 15, 13}, {1, 3, 3}, CONV_ONE, {1, 2, 3}, {0, 2, 3}, 2, 0},
    {"groups", 3, 4, 16, 16, {1, 7, 7}, {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1, 0},
    {"depthwise", 6, 32, 1, 1, {1, 9, 9}, {1, 3, 3}, {1, 2, 2}, CONV_ONE, {0, 1, 1}, 1, 0},
    {"turned", 4, 1, 16, 16, {1, 12, 12}, {1, 2, 2}, {1, 2, 2}, {1, -1, -1}, {0, -1, -1}, 0, 0},
    {"turned, 3 x 3", 6, 1, 16, 32, {1, 11, 11}, {1, 3, 3}, {1, 2, 2}, {1, -1, -1}, {0, -1, -1}, 0, 0},
    {"1d", 10, 1, 16, 16, {1, 1, 40}, {1, 1, 5}, {1, 1, 3}, CONV_ONE, {0, 0, 2}, 2, 0},
    {"3d", 3, 1, 8, 16, {3, 4, 5}, {3, 3, 3}, CONV_ONE, CONV_ONE, {1, 1, 1}, 1, 0},
    {"channels last", 3, 1, 32, 16, {1, 7, 7}, {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1, LAST_CHANNEL},
    {"many channels", 4, 1, 160, 144, {1, 4, 8}, {1, 1, 3}, CONV_ONE, CONV_ONE, {0, 0, 1}, 1, 0},
    {"one sample", 1, 1, 32, 64, {1, 12, 12}, {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1, 0},
    {"as JAX has it", 5, 2, 8, 16, {1, 7, 7}, {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1, LAST_CHANNEL | LAST_OUTPUT},
    {"outputs last", 4, 1, 16, 32, {1, 6, 6}, {1, 3, 3}, CONV_ONE, {1, 2, 2}, {0, 1, 1}, 1, LAST_OUTPUT},
    {"odd", 3, 1, 5, 7, {1, 6, 5}, {1, 2, 3}, CONV_ONE, CONV_ONE, {0, 1, 0}, 0, 0},
};
enum { CONV_PROBLEMS = sizeof conv_problems / sizeof *conv_problems };

static inline void conv_strides(int64_t *by, int64_t channels, const int64_t *space, bool last)
{
    int64_t step = last ? channels : 1;
    for (int d = TESS_CONV_SPACE - 1; d >= 0; step *= space[d--]) by[2 + d] = step;
    by[1] = last ? 1 : step;
    by[0] = last ? step : step * channels;
}

static inline tess_any_conv_arg conv_arg(const conv_problem *p)
{
    tess_any_conv_arg a;
    memset(&a, 0, sizeof a);
    a.samples = p->samples, a.groups = p->groups, a.inputs = p->inputs, a.outputs = p->outputs;
    for (int d = 0; d < TESS_CONV_SPACE; d++) {
        const int64_t reach = (p->window[d] - 1) * llabs(p->apart[d]),
                      pad = p->apart[d] < 0 ? p->pad[d] + reach : p->pad[d];
        const int64_t behind = p->window[d] > 1 ? p->behind : 0;
        a.in[d] = p->in[d], a.window[d] = p->window[d], a.step[d] = p->step[d], a.apart[d] = p->apart[d];
        a.pad[d] = p->pad[d], a.between[d] = 1;
        a.out[d] = (p->in[d] + pad + behind - reach - 1) / p->step[d] + 1;
    }
    conv_strides(a.x, p->groups * p->inputs, a.in, p->last & LAST_CHANNEL);
    conv_strides(a.y, p->groups * p->outputs, a.out, p->last & LAST_CHANNEL);
    conv_strides(a.w, p->inputs, a.window, false);
    a.w_group = p->outputs * a.w[0];
    if (p->last & LAST_OUTPUT) {
        const int64_t outputs = p->groups * p->outputs;
        a.w[0] = 1, a.w_group = p->outputs;
        for (int64_t d = TESS_CONV_SPACE - 1, step = outputs * p->inputs; d >= 0; step *= a.window[d--])
            a.w[2 + d] = step;
        a.w[1] = outputs;
    }
    return a;
}

#endif
