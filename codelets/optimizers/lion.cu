/* lion: the update of lion_impl.h, compiled without contraction: the CPU's bits. */
#include "lion_impl.h"
#include "update_cuda_impl.h"

struct lion_numbers {
    tess_lion_rates of;
    TESS_DEVICE void update(float *x, float *m, float *, float g) const { tess_lion_update(&of, x, m, g); }
};

template <tess_dtype T> static void lion_body(const tess_work *w)
{
    const tess_update_view u = tess_update_view_of(w);
    run_update<lion_numbers, 1>(w, &u, lion_numbers{tess_lion_rates_of(&u)});
}
TESS_CUDA_BODY(lion, lion_f32, TESS_F32)
