/* emulated_choice: what tests of ops share that may be cuDNN's, whose stand-in is emulated_dnn.cpp. */
#ifndef TESS_TESTS_EMULATED_CHOICE_H
#define TESS_TESTS_EMULATED_CHOICE_H
#include "codelets/shared/cudnn_choice.h"
#include "codelets/shared/kernels.h"
#include "tests/gpu/emulated_dnn.h"

static inline tess_cudnn_choice emulated_choose(tess_body settle, bool wanted, bool trusted)
{
    tess_cudnn_choice c = {};
    c.wanted = wanted, c.trusted = trusted;
    tess_work w = {};
    w.arg = &c;
    settle(&w);
    return c;
}
/* How far n elements of a and b are apart in norm, of what b is. */
static inline double emulated_apart(const void *a, const void *b, size_t n, tess_dtype t)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = (double)tess_load(a, (int64_t)i, t), want = (double)tess_load(b, (int64_t)i, t);
        off += (x - want) * (x - want), size += want * want;
    }
    return n == 0 ? 0 : size > 0 ? sqrt(off / size) : INFINITY;
}
#endif
