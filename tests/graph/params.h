/* What tests do with the parameters of a graph between steps. */
#ifndef TESS_TESTS_PARAMS_H
#define TESS_TESTS_PARAMS_H
#include "graph/graph.h"
#include "tests/check.h"

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) CHECK_SAY("%s: %s", #expr, tess_error_text());                                          \
    } while (0)
/* A mistake, with a message that holds the part. */
#define WRONG(expr, part)                                                                                              \
    do {                                                                                                               \
        CHECK_EQ(expr, TESS_INVALID);                                                                                  \
        CHECK_HAS(tess_error_text(), part);                                                                            \
        tess_error_clear();                                                                                            \
    } while (0)

static inline int64_t elements_of(const tess_tensor *p)
{
    int64_t shape[3];
    return tess_tensor_shape(p, shape) == 2 ? shape[0] * shape[1] : shape[0];
}

/* Moves one element of a parameter's master, counted over the tiles. */
static inline void move(tess_tensor *p, int64_t element, float by)
{
    int64_t tile = 0;
    float *x = NULL;
    for (; tile < tess_param_pieces(p); tile++) {
        const tess_piece of = tess_param_piece(p, tile);
        if (element < of.rows * of.cols) break;
        element -= of.rows * of.cols;
    }
    OK(tess_param_map(p, tile, TESS_MASTER, TESS_RW, &x));
    if (x) x[element] += by;
    tess_param_unmap(p, tile, TESS_MASTER);
}

/* Holds a gradient to what a loss becomes by moving the element by h to either side. */
#define CHECK_SLOPE(what, p, element, gradient, h, room, loss)                                                         \
    do {                                                                                                               \
        move(p, element, h);                                                                                           \
        const double up_ = loss;                                                                                       \
        move(p, element, -2 * (h));                                                                                    \
        const double down_ = loss, slope_ = (up_ - down_) / (2 * (h)), is_ = gradient;                                 \
        move(p, element, h);                                                                                           \
        if (!(fabs(slope_ - is_) <= 2e-2 * fabs(is_) + (room)))                                                        \
            CHECK_SAY("%s: %s[%lld]: gradient %g, finite difference %g", what, tess_tensor_name(p),                    \
                      (long long)(element), is_, slope_);                                                              \
    } while (0)

/* Takes bytes into a fingerprint, which begins as FINGERPRINT. */
#define FINGERPRINT 1469598103934665603u
static inline void mark(uint64_t *print, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) *print = (*print ^ ((const unsigned char *)data)[i]) * 1099511628211u;
}

/* Takes so many parts of all parameters. */
static inline void mark_params(uint64_t *print, tess_graph *g, int parts)
{
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        for (int64_t piece = 0; piece < tess_param_pieces(p); piece++)
            for (int part = 0; part < parts; part++) {
                const tess_piece of = tess_param_piece(p, piece);
                float *x = NULL;
                OK(tess_param_map(p, piece, (tess_part)part, TESS_R, &x));
                if (x) mark(print, x, (size_t)(of.rows * of.cols) * sizeof *x);
                tess_param_unmap(p, piece, (tess_part)part);
            }
    }
}

#endif
