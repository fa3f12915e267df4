/* update_cuda: the kernel of all optimizers' updates. Each is compiled without contraction: the CPU's bits. */
#ifndef TESS_UPDATE_CUDA_IMPL_H
#define TESS_UPDATE_CUDA_IMPL_H
#include "codelets/optimizers/moment_format_impl.h"
#include "codelets/shared/exact.h"
#include "codelets/shared/kernels.h"

/* p, moments, grad (n) [, copy]: nothing happens where loss or norm is not finite. RATES has the numbers of an
 * optimizer and its update(x, moments, g) of one element. */
template <class RATES, int MOMENTS> struct update_step {
    float *p, *moment[TESS_MOMENTS_MOST];
    const void *grad;
    bool few;   /* it is in bf16 */
    void *copy; /* or NULL, of: */
    tess_dtype copied;
    const double *loss;
    const double *norm;              /* with clip: the square of the global one; else NULL, and */
    const tess_exact *sum;           /* these gradients' own, which says whether they are finite */
    double clip, unscale, most_norm; /* clip, most_norm 0: off */
    bool skips, wide;
    int64_t n;
    RATES rates;
    failing failed;
    static constexpr int THREADS = MAP_THREADS;
    TESS_DEVICE void block(int64_t b) const { map_block(*this, b, n, wide); }
    /* False where nothing may change, which the first thread reports; else *k is complete. */
    TESS_DEVICE bool begins(RATES *k, bool first) const
    {
        const bool sound = norm ? tess_update_sound(*norm, unscale, most_norm) : !sum->odd;
        if (!isfinite(*loss)) return false;
        if (!sound && first && !skips) tess_kernel_failed(failed, -1, NAN);
        *k = rates;
        if (sound) k->of.scale = norm ? tess_update_scale(clip, unscale, *norm) : (float)unscale;
        return sound;
    }
    template <int K> TESS_DEVICE void gradient(float g[K], int64_t i) const
    {
        if (few)
            load<TESS_BF16, K>(g, grad, i);
        else
            load<TESS_F32, K>(g, grad, i);
    }
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        float x[K], m[MOMENTS + 1][K], g[K];
        RATES k;
        if (!begins(&k, i == 0)) return;
        load<TESS_F32, K>(x, p, i);
#pragma unroll
        for (int j = 0; j < MOMENTS; j++) load<TESS_F32, K>(m[j], moment[j], i);
        gradient<K>(g, i);
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

/* The same where moments are kept in fewer bits: a warp a block of them. Bit m of POSITIVE: moment m is never below 0.
 */
constexpr int KEPT_THREADS = 256, KEPT_EACH = TESS_KEPT_BLOCK / WARP; /* elements of a thread, WARP apart */

template <class RATES, int MOMENTS, unsigned POSITIVE> struct kept_step {
    update_step<RATES, MOMENTS> of;
    tess_kept kept;
    tess_kept_cut cut;
    int64_t spans, scales;
    tess_random_key key;
    static constexpr int THREADS = KEPT_THREADS;

    TESS_DEVICE void block(int64_t b) const
    {
        const int64_t span = b * (KEPT_THREADS / WARP) + threadIdx.x / WARP;
        if (span < spans) run(span, (int)threadIdx.x % WARP);
    }
    TESS_DEVICE void read(float x[KEPT_EACH], int m, const tess_kept_span &s, int64_t span, int lane) const
    {
        const unsigned char *moment = (const unsigned char *)of.moment[m];
#pragma unroll
        for (int k = 0; k < KEPT_EACH; k++) {
            const int64_t i = lane + k * WARP;
            x[k] = 0;
            if (i >= s.n) continue;
            if (kept.as == TESS_KEEP_BF16)
                x[k] = tess_from_bf16(((const uint16_t *)moment)[s.at + i]);
            else
                x[k] = tess_int8_value(moment[s.at + i], ((const float *)(moment + scales))[span], POSITIVE >> m & 1);
        }
    }
    TESS_DEVICE void write(float x[KEPT_EACH], int m, const tess_kept_span &s, int64_t span, int lane) const
    {
        unsigned char *moment = (unsigned char *)of.moment[m];
        float most = 0, least = 0;
#pragma unroll
        for (int k = 0; k < KEPT_EACH; k++) {
            x[k] = tess_int8_held(x[k]);
            most = x[k] > most ? x[k] : most;
            least = x[k] < least ? x[k] : least;
        }
        const float scale = tess_int8_scale(warp_max(most), POSITIVE >> m & 1 ? 0 : -warp_max(-least));
#pragma unroll
        for (int k = 0; k < KEPT_EACH; k++) {
            const int64_t i = lane + k * WARP;
            if (i < s.n) moment[s.at + i] = (unsigned char)tess_int8_of(x[k], scale, POSITIVE >> m & 1);
        }
        if (lane == 0) ((float *)(moment + scales))[span] = scale;
    }
    TESS_DEVICE void run(int64_t span, int lane) const
    {
        float m[MOMENTS][KEPT_EACH];
        RATES r;
        if (!of.begins(&r, span == 0 && lane == 0)) return;
        const tess_kept_span s = tess_kept_span_of(&kept, cut, span);
#pragma unroll
        for (int j = 0; j < MOMENTS; j++) read(m[j], j, s, span, lane);
        __syncwarp(); /* all have read the scale before one writes it */
#pragma unroll
        for (int k = 0; k < KEPT_EACH; k++) {
            const int64_t i = lane + k * WARP;
            if (i >= s.n) continue;
            float x = of.p[s.at + i], g;
            of.template gradient<1>(&g, s.at + i);
            r.update(&x, &m[0][k], &m[MOMENTS > 1][k], g);
            of.p[s.at + i] = x;
            if (of.copy) ((uint16_t *)of.copy)[s.at + i] = of.copied == TESS_F16 ? to_f16(x) : to_bf16(x);
#pragma unroll
            for (int j = 0; j < MOMENTS; j++)
                if (kept.as == TESS_KEEP_BF16)
                    ((uint16_t *)of.moment[j])[s.at + i] =
                        tess_bf16_by_dice(m[j][k], tess_kept_dice(key, s.place, (uint32_t)i, j));
        }
#pragma unroll
        for (int j = 0; j < MOMENTS; j++)
            if (kept.as == TESS_KEEP_INT8) write(m[j], j, s, span, lane);
    }
};
template <class RATES, int MOMENTS>
static update_step<RATES, MOMENTS> update_of(const tess_work *w, const tess_update_view *u, RATES rates)
{
    update_step<RATES, MOMENTS> s = {};
    s.p = u->master;
    for (int m = 0; m < MOMENTS; m++) s.moment[m] = u->moment[m];
    s.few = u->few != NULL;
    s.grad = s.few ? (const void *)u->few : u->grad;
    s.loss = u->loss;
    if (u->a->clip)
        s.norm = (const double *)u->norm;
    else
        s.sum = (const tess_exact *)u->norm;
    s.copy = u->copy;
    s.copied = u->a->copy;
    s.clip = u->env->clip;
    s.unscale = u->env->unscale;
    s.most_norm = u->env->most_norm;
    s.skips = u->a->skips;
    s.rates = rates;
    s.failed = failing_of(w, u->a->name);
    s.n = u->a->n;
    s.wide = aligned(s.p, s.moment[0], s.moment[1], s.grad, s.copy);
    return s;
}

/* The updates of w and of what is to be done with it; rates_of(view) are an update's numbers. */
template <class RATES, int MOMENTS, unsigned POSITIVE = 0, class F>
static void run_updates(const tess_work *w, F rates_of)
{
    together<update_step<RATES, MOMENTS>> all = {};
    together<kept_step<RATES, MOMENTS, POSITIVE>> kept = {};
    for (const tess_work *of = w; of; of = of->next) {
        const tess_update_view u = tess_update_view_of(of);
        const update_step<RATES, MOMENTS> s = update_of<RATES, MOMENTS>(of, &u, rates_of(&u));
        if constexpr (MOMENTS > 0) {
            if (u.a->kept.as != TESS_KEEP_F32) {
                const tess_kept_cut cut = tess_kept_cut_of(&u.a->kept);
                const int64_t spans = s.n / u.a->kept.width * cut.blocks;
                const tess_random_key key = tess_random_begin(u.env->seed, (uint64_t)u.env->step, u.a->kept.dice);
                add_together(w, &kept, {s, u.a->kept, cut, spans, tess_kept_scales(s.n), key},
                             blocks_of(spans, KEPT_THREADS / WARP));
                continue;
            }
        }
        add_together(w, &all, s, map_blocks(s.n));
    }
    launch_together(w, &all);
    if constexpr (MOMENTS > 0) launch_together(w, &kept);
}

/* Defines the launcher of an optimizer that always has `moments` moments. */
#define TESS_CUDA_UPDATE(name, moments, positive)                                                                      \
    struct name##_numbers {                                                                                            \
        tess_##name##_rates of;                                                                                        \
        TESS_DEVICE void update(float *x, float *m, float *v, float g) const                                           \
        {                                                                                                              \
            tess_##name##_update(&of, x, m, v, g);                                                                     \
        }                                                                                                              \
    };                                                                                                                 \
    template <tess_dtype T> static void name##_body(const tess_work *w)                                                \
    {                                                                                                                  \
        run_updates<name##_numbers, moments, positive>(                                                                \
            w, [](const tess_update_view *u) { return name##_numbers{tess_##name##_rates_of(u)}; });                   \
    }                                                                                                                  \
    TESS_CUDA_BODY(name, name##_f32, TESS_F32)
#endif
