/* adamw: the update of adamw_impl.h, compiled without contraction: the CPU's bits. */
#include "cuda_impl.h"
#include "exact_impl.h"

/* p, m, v, grad (n) [, copy]: nothing happens where loss or norm is not finite. */
struct step {
    float *p, *m, *v;
    const float *grad;
    void *copy; /* or NULL */
    const double *loss;
    const double *norm;    /* with clip: the square of the global one; else NULL, and */
    const tess_exact *sum; /* these gradients' own, which says whether they are finite */
    double clip;           /* 0: off */
    tess_adamw_rates rates;
    failing failed;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float x[K], m1[K], v1[K], g[K];
        const bool sound = norm ? isfinite(*norm) : !sum->odd;
        if (!isfinite(*loss)) return;
        if (!sound && i == 0) tess_kernel_failed(failed, -1, NAN);
        if (!sound) return;
        tess_adamw_rates k = rates;
        if (norm) k.scale = tess_adamw_scale(clip, *norm);
        load<TESS_F32, K>(x, p, i);
        load<TESS_F32, K>(m1, m, i);
        load<TESS_F32, K>(v1, v, i);
        load<TESS_F32, K>(g, grad, i);
#pragma unroll
        for (int j = 0; j < K; j++) tess_adamw_update(&k, &x[j], &m1[j], &v1[j], g[j]);
        store<TESS_F32, K>(p, i, x);
        store<TESS_F32, K>(m, i, m1);
        store<TESS_F32, K>(v, i, v1);
        if (copy) store<TESS_BF16, K>(copy, i, x);
    }
};

template <tess_dtype T> static void adamw_body(const tess_work *w)
{
    const tess_adamw_arg *a = (const tess_adamw_arg *)w->arg;
    const tess_env *env = a->late ? w->env->before : w->env;
    step s = {};
    s.p = (float *)w->buf[0].ptr + a->at_master;
    s.m = (float *)w->buf[1].ptr;
    s.v = (float *)w->buf[2].ptr;
    s.grad = (const float *)w->buf[3].ptr + a->at_gradient;
    s.loss = (const double *)w->buf[4].ptr;
    if (a->clip)
        s.norm = (const double *)w->buf[5].ptr;
    else
        s.sum = (const tess_exact *)w->buf[5].ptr;
    s.copy = a->copy ? (uint16_t *)w->buf[6].ptr + a->at_copy : NULL;
    s.clip = env->clip;
    s.rates = tess_adamw_rates_of(a, env);
    s.failed = failing_of(w, a->name);
    map(w, s, a->n, aligned(s.p, s.m, s.v, s.grad, s.copy));
}
TESS_CUDA_BODY(adamw, adamw_f32, TESS_F32)
