/* update_cuda_impl: the kernel of all optimizers' updates. Each is compiled without contraction: the CPU's bits. */
#ifndef TESS_UPDATE_CUDA_IMPL_H
#define TESS_UPDATE_CUDA_IMPL_H
#include "cuda_impl.h"
#include "exact_impl.h"

/* p, moments, grad (n) [, copy]: nothing happens where loss or norm is not finite. RATES has the numbers of an
 * optimizer and its update(x, moments, g) of one element. */
template <class RATES, int MOMENTS> struct update_step {
    float *p, *moment[TESS_MOMENTS_MOST];
    const float *grad;
    void *copy; /* or NULL, of: */
    tess_dtype copied;
    const double *loss;
    const double *norm;    /* with clip: the square of the global one; else NULL, and */
    const tess_exact *sum; /* these gradients' own, which says whether they are finite */
    double clip, unscale;  /* clip 0: off */
    bool skips;
    RATES rates;
    failing failed;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float x[K], m[MOMENTS + 1][K], g[K];
        const bool sound = norm ? isfinite(*norm) : !sum->odd;
        if (!isfinite(*loss)) return;
        if (!sound && i == 0 && !skips) tess_kernel_failed(failed, -1, NAN);
        if (!sound) return;
        RATES k = rates;
        k.of.scale = norm ? tess_update_scale(clip, unscale, *norm) : (float)unscale;
        load<TESS_F32, K>(x, p, i);
#pragma unroll
        for (int j = 0; j < MOMENTS; j++) load<TESS_F32, K>(m[j], moment[j], i);
        load<TESS_F32, K>(g, grad, i);
#pragma unroll
        for (int j = 0; j < K; j++) k.update(&x[j], &m[0][j], &m[MOMENTS > 1][j], g[j]);
        store<TESS_F32, K>(p, i, x);
#pragma unroll
        for (int j = 0; j < MOMENTS; j++) store<TESS_F32, K>(moment[j], i, m[j]);
        if (!copy) return;
        if (copied == TESS_F16)
            store<TESS_F16, K>(copy, i, x);
        else
            store<TESS_BF16, K>(copy, i, x);
    }
};

template <class RATES, int MOMENTS> static void run_update(const tess_work *w, const tess_update_view *u, RATES rates)
{
    update_step<RATES, MOMENTS> s = {};
    s.p = u->master;
    for (int m = 0; m < MOMENTS; m++) s.moment[m] = u->moment[m];
    s.grad = u->grad;
    s.loss = u->loss;
    if (u->a->clip)
        s.norm = (const double *)u->norm;
    else
        s.sum = (const tess_exact *)u->norm;
    s.copy = u->copy;
    s.copied = u->a->copy;
    s.clip = u->env->clip;
    s.unscale = u->env->unscale;
    s.skips = u->a->skips;
    s.rates = rates;
    s.failed = failing_of(w, u->a->name);
    map(w, s, u->a->n, aligned(s.p, s.moment[0], s.moment[1], s.grad, s.copy));
}
#endif
