/* adagrad: the update of adagrad_impl.h, compiled without contraction: the CPU's bits. */
#include "adagrad_impl.h"
#include "update_cuda_impl.h"

struct adagrad_numbers {
    tess_adagrad_rates of;
    TESS_DEVICE void update(float *x, float *m, float *, float g) const { tess_adagrad_update(&of, x, m, g); }
};

template <tess_dtype T> static void adagrad_body(const tess_work *w)
{
    const tess_update_view u = tess_update_view_of(w);
    run_update<adagrad_numbers, 1, 1u << 0>(w, &u, adagrad_numbers{tess_adagrad_rates_of(&u)});
}
TESS_CUDA_BODY(adagrad, adagrad_f32, TESS_F32)
