/* product_cuda: products of matrices that lie one way or the other, as many as there are of each. */
#ifndef TESS_PRODUCT_CUDA_H
#define TESS_PRODUCT_CUDA_H
#include "codelets/shared/kernels.h"

/* A matrix, stored in rows or, turned, in columns; and how far it is to the next one. */
struct any_matrix {
    char *at;
    tess_dtype t;
    int64_t ld;
    bool turned;
    int64_t next;
};
static inline any_matrix flip(any_matrix m)
{
    m.turned = !m.turned;
    return m;
}
/* Without that many rows and columns before it. */
static inline any_matrix from(any_matrix m, int64_t up, int64_t across)
{
    m.at += (m.turned ? across * m.ld + up : up * m.ld + across) * (int64_t)tess_dtype_size(m.t);
    return m;
}

/* z (m, n) [+]= a (m, k) b (k, n); where z is turned, as b^T a^T. */
static inline void any_product(const tess_work *w, const any_matrix &z, const any_matrix &a, const any_matrix &b,
                               int64_t m, int64_t n, int64_t k, int64_t batch, bool acc)
{
    const any_matrix &left = z.turned ? b : a, &right = z.turned ? a : b;
    tess_cuda_mm d = {z.turned ? n : m, z.turned ? m : n, k, left.ld, right.ld, z.ld, a.t, z.t};
    d.ta = left.turned != z.turned, d.tb = right.turned != z.turned;
    d.acc = acc;
    d.batch = batch, d.next_a = left.next, d.next_b = right.next, d.next_c = z.next;
    tess_cuda_mm_run(w, &d, left.at, right.at, z.at);
}

#endif
