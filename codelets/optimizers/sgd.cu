/* sgd: the update of sgd_impl.h, compiled without contraction: the CPU's bits. */
#include "codelets/optimizers/sgd_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"

template <bool MOMENTUM> struct sgd_numbers {
    tess_sgd_rates of;
    TESS_DEVICE void update(float *x, float *m, float *v, float g) const
    {
        tess_sgd_update(&of, x, MOMENTUM ? m : nullptr, v, g);
    }
};

template <tess_dtype T> static void sgd_body(const tess_work *w)
{
    if (((const tess_update_arg *)w->arg)->moments)
        run_updates<sgd_numbers<true>, 1>(w, [](auto *u) { return sgd_numbers<true>{tess_sgd_rates_of(u)}; });
    else
        run_updates<sgd_numbers<false>, 0>(w, [](auto *u) { return sgd_numbers<false>{tess_sgd_rates_of(u)}; });
}
TESS_CUDA_BODY(sgd, sgd_f32, TESS_F32)
