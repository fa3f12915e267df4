/* adamw: the update of adamw_impl.h, compiled without contraction: the CPU's bits. */
#include "adamw_impl.h"
#include "update_cuda_impl.h"

struct adamw_numbers {
    tess_adamw_rates of;
    TESS_DEVICE void update(float *x, float *m, float *v, float g) const { tess_adamw_update(&of, x, m, v, g); }
};

template <tess_dtype T> static void adamw_body(const tess_work *w)
{
    const tess_update_view u = tess_update_view_of(w);
    run_update<adamw_numbers, 2, 1u << 1>(w, &u, adamw_numbers{tess_adamw_rates_of(&u)});
}
TESS_CUDA_BODY(adamw, adamw_f32, TESS_F32)
