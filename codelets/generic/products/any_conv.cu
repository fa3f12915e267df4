/* any_conv: by cuDNN, where it is there and does it (conv_cudnn_impl.h); else products of patches, as on the CPU,
 * through mm.cu. Patches of some samples or, where one has too many, of some positions of one are made in the worker's
 * room, where threads write what lies together; what is made of patches of x's gradient is summed by a thread for each
 * element of x, in the order of the window. */
#include "codelets/generic/fold_cuda.h"
#include "codelets/generic/products/conv_cudnn_impl.h"
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/store_cuda.h"
#include "codelets/products/product_cuda.h"

constexpr int SPACE = TESS_CONV_SPACE, CONV_THREADS = 256;
constexpr int64_t CONV_LINE = 16; /* elements that rooms are rounded up to */

/* Where patches are, for threads. */
struct conv_places {
    divisor n, depth, dim[SPACE + 1], out[SPACE], in[SPACE], inputs; /* n: positions at hand */
    int order[SPACE + 1];
    int32_t window[SPACE], step[SPACE], apart[SPACE], pad[SPACE], between[SPACE];
    int64_t x[SPACE + 2];       /* strides */
    int32_t element[SPACE + 1]; /* how far apart elements of a patch are, by dimension of the window, then channels */
    uint32_t first;             /* position */
    bool rows;                  /* a patch is a row */
};

/* Returns where x has what a patch has, of an element of q; -1: nothing. */
TESS_DEVICE int64_t conv_met(const conv_places &c, uint32_t i)
{
    uint32_t k, p, at[SPACE + 1];
    if (c.rows)
        k = take_modulo(i, c.depth), p = take_modulo(i, c.n);
    else
        p = take_modulo(i, c.n), k = take_modulo(i, c.depth);
    int64_t met = (int64_t)i * c.x[0]; /* the sample */
#pragma unroll
    for (int j = SPACE; j >= 0; j--) at[j] = take_modulo(k, c.dim[j]);
    int32_t of[SPACE + 1];
    for (int j = 0; j <= SPACE; j++) of[c.order[j]] = (int32_t)at[j];
    met += of[CONV_CHANNEL] * c.x[1];
    p += c.first;
#pragma unroll
    for (int d = SPACE - 1; d >= 0; d--) {
        const int32_t o = (int32_t)take_modulo(p, c.out[d]), up = o * c.step[d] + of[d] * c.apart[d] - c.pad[d];
        const int32_t place = up / c.between[d];
        if (up < 0 || place * c.between[d] != up || place >= (int32_t)c.in[d].is) return -1;
        met += place * c.x[2 + d];
    }
    return met;
}

template <class WORD> TESS_KERNEL(CONV_THREADS) patches_kernel(conv_places c, const WORD *x, WORD *q, uint32_t all)
{
    const uint32_t i = blockIdx.x * (uint32_t)CONV_THREADS + threadIdx.x;
    if (i >= all) return;
    const int64_t at = conv_met(c, i);
    q[i] = at < 0 ? (WORD)0 : x[at];
}

/* x [+]= the sum of what patches have of it. */
TESS_KERNEL(CONV_THREADS) unpatch_kernel(conv_places c, float *x, const float *q, uint32_t all, bool acc)
{
    uint32_t i = blockIdx.x * (uint32_t)CONV_THREADS + threadIdx.x;
    if (i >= all) return;
    int32_t in[SPACE];
    int64_t at = 0;
#pragma unroll
    for (int d = SPACE - 1; d >= 0; d--) {
        in[d] = (int32_t)take_modulo(i, c.in[d]);
        at += in[d] * c.x[2 + d];
        in[d] = in[d] * c.between[d] + c.pad[d];
    }
    const int32_t channel = (int32_t)take_modulo(i, c.inputs), n = (int32_t)c.n.is;
    const int64_t sample = (int64_t)i * c.depth.is * c.n.is;
    at += channel * c.x[1] + (int64_t)i * c.x[0];
    float sum = 0;
    int32_t t[SPACE];
    for (t[0] = 0; t[0] < c.window[0]; t[0]++)
        for (t[1] = 0; t[1] < c.window[1]; t[1]++)
            for (t[2] = 0; t[2] < c.window[2]; t[2]++) {
                int32_t p = 0, k = channel * c.element[CONV_CHANNEL];
                bool met = true;
#pragma unroll
                for (int d = 0; d < SPACE; d++) {
                    const int32_t up = in[d] - t[d] * c.apart[d], o = up / c.step[d];
                    met = met && up >= 0 && o * c.step[d] == up && o < (int32_t)c.out[d].is;
                    p = p * (int32_t)c.out[d].is + o;
                    k += t[d] * c.element[d];
                }
                p -= (int32_t)c.first;
                if (!met || p < 0 || p >= n) continue;
                sum += q[sample + (c.rows ? (int64_t)p * c.depth.is + k : (int64_t)k * n + p)];
            }
    x[at] = acc ? x[at] + sum : sum;
}

/* ---- what a task has at hand: some samples of a group, and some of their positions ---- */

struct conv_task {
    const tess_work *w;
    const tess_any_conv_arg *a;
    conv_shape s;
    any_matrix x, y, of_w; /* of the first sample and group; x where it is q */
    tess_dtype patch;
    conv_places places;
    int64_t samples, positions; /* at a time */
    char *room;
};

static any_matrix matrix_of(const conv_matrix &m, void *at, tess_dtype t, int64_t next)
{
    return {(char *)at, t, m.ld, m.turned, next};
}

/* Each sample of several at a time takes `more` bytes beside its patches. Returns false, and fails the task, where not
 * even CONV_LINE positions have room. */
static bool conv_begin(conv_task *c, const tess_work *w, tess_dtype read, int written, int64_t more)
{
    const tess_any_conv_arg *a = (const tess_any_conv_arg *)w->arg;
    *c = {};
    c->w = w, c->a = a;
    TESS_ASSERT(tess_conv_shape(a, &c->s));
    c->patch = written == CONV_X ? TESS_F32 : read;
    c->x = matrix_of(c->s.of_q, w->buf[CONV_X].ptr, c->patch, a->x[0]);
    c->of_w = matrix_of(c->s.of_w, w->buf[CONV_W].ptr, written == CONV_W ? a->to : read, 0);
    c->y = matrix_of(c->s.of_y, w->buf[CONV_Y].ptr, written == CONV_Y ? a->to : read, a->y[0]);
    const int64_t patch = c->s.direct ? 0 : c->s.depth * (int64_t)tess_dtype_size(c->patch);
    const int64_t room = (int64_t)w->room_bytes - (int64_t)TESS_CUDA_MM_ROOM - 1024,
                  each = patch * c->s.positions + more;
    const int64_t index = INT32_MAX / (c->s.depth * c->s.positions); /* what threads count */
    c->room = (char *)w->room + TESS_CUDA_MM_ROOM;
    c->positions = c->s.positions;
    c->samples = each == 0 || a->samples * each <= room ? a->samples : room / each;
    if (!c->s.direct && c->samples > index) c->samples = index;
    if (c->samples > 0) return true;
    c->samples = 1;
    if (c->s.direct) return true;
    c->positions = room / patch / CONV_LINE * CONV_LINE;
    if (c->positions > INT32_MAX / c->s.depth) c->positions = INT32_MAX / c->s.depth;
    if (c->positions > c->s.positions) c->positions = c->s.positions;
    if (c->positions == 0) tess_work_fail(w, "CUDA: a window of %lld elements is too large", (long long)c->s.depth);
    return c->positions > 0;
}

/* The places of n positions from p on. */
static void conv_place(conv_task *c, int64_t p, int64_t n)
{
    const tess_any_conv_arg *a = c->a;
    conv_places &to = c->places;
    int32_t apart = 1;
    to.n = divisor_of(n), to.depth = divisor_of(c->s.depth), to.inputs = divisor_of(a->inputs);
    to.first = (uint32_t)p;
    to.rows = c->s.rows;
    for (int j = SPACE; j >= 0; j--) {
        to.dim[j] = divisor_of(c->s.dim[j]);
        to.order[j] = c->s.order[j];
        to.element[c->s.order[j]] = apart;
        apart *= (int32_t)c->s.dim[j];
    }
    for (int d = 0; d < SPACE; d++) {
        to.out[d] = divisor_of(a->out[d]), to.in[d] = divisor_of(a->in[d]);
        to.window[d] = (int32_t)a->window[d], to.step[d] = (int32_t)a->step[d], to.apart[d] = (int32_t)a->apart[d];
        to.pad[d] = (int32_t)a->pad[d], to.between[d] = (int32_t)a->between[d];
    }
    for (int d = 0; d < SPACE + 2; d++) to.x[d] = a->x[d];
}

static char *x_of(const conv_task &c, int64_t sample, int64_t group)
{
    return c.x.at + (sample * c.a->x[0] + group * c.a->inputs * c.a->x[1]) * (int64_t)tess_dtype_size(c.patch);
}
static any_matrix y_of(const conv_task &c, int64_t sample, int64_t group, int64_t p)
{
    any_matrix m = c.y;
    m.at += (sample * c.a->y[0] + group * c.a->outputs * c.a->y[1]) * (int64_t)tess_dtype_size(m.t);
    return from(m, 0, p);
}
static any_matrix w_of(const conv_task &c, int64_t group)
{
    any_matrix m = c.of_w;
    m.at += group * c.a->w_group * (int64_t)tess_dtype_size(m.t);
    return m;
}
/* n positions' patches: x itself, or the room. */
static any_matrix q_of(const conv_task &c, int64_t sample, int64_t group, int64_t n)
{
    any_matrix m = c.x;
    m.at = x_of(c, sample, group);
    return c.s.direct ? m : any_matrix{c.room, c.patch, c.s.rows ? c.s.depth : n, c.s.rows, c.s.depth * n};
}

static void make_patches(const conv_task &c, int64_t sample, int64_t group, int64_t samples, int64_t n)
{
    const int64_t all = samples * c.s.depth * n, blocks = blocks_of(all, CONV_THREADS);
    const char *x = x_of(c, sample, group);
    if (c.s.direct) return;
    if (tess_dtype_size(c.patch) == 2)
        launch(c.w, patches_kernel<uint16_t>, blocks, CONV_THREADS, 0, c.places, (const uint16_t *)(const void *)x,
               (uint16_t *)(void *)c.room, (uint32_t)all);
    else
        launch(c.w, patches_kernel<uint32_t>, blocks, CONV_THREADS, 0, c.places, (const uint32_t *)(const void *)x,
               (uint32_t *)(void *)c.room, (uint32_t)all);
}

/* f(sample, samples, position, positions, group) for all that a task has. */
template <class F> static void conv_each(conv_task *c, F f)
{
    for (int64_t sample = 0; sample < c->a->samples; sample += c->samples)
        for (int64_t p = 0; p < c->s.positions; p += c->positions) {
            const int64_t samples = c->a->samples - sample, n = c->s.positions - p;
            conv_place(c, p, n < c->positions ? n : c->positions);
            for (int64_t group = 0; group < c->a->groups; group++)
                f(sample, samples < c->samples ? samples : c->samples, p, n < c->positions ? n : c->positions, group);
        }
}

template <tess_dtype T> static void any_conv_body(const tess_work *w)
{
    if (conv_by_cudnn(w, CONV_Y, T)) return;
    conv_task c;
    if (!conv_begin(&c, w, T, CONV_Y, 0)) return;
    conv_each(&c, [&](int64_t sample, int64_t samples, int64_t p, int64_t n, int64_t group) {
        make_patches(c, sample, group, samples, n);
        any_product(w, y_of(c, sample, group, p), w_of(c, group), q_of(c, sample, group, n), c.a->outputs, n, c.s.depth,
                    samples, c.a->acc);
    });
}

template <tess_dtype T> static void any_conv_input_body(const tess_work *w)
{
    if (conv_by_cudnn(w, CONV_X, T)) return;
    conv_task c;
    if (!conv_begin(&c, w, T, CONV_X, 0)) return;
    TESS_ASSERT(c.a->to == TESS_F32);
    conv_each(&c, [&](int64_t sample, int64_t samples, int64_t p, int64_t n, int64_t group) {
        any_product(w, q_of(c, sample, group, n), flip(w_of(c, group)), y_of(c, sample, group, p), c.s.depth, n,
                    c.a->outputs, samples, c.s.direct && c.a->acc);
        if (c.s.direct) return;
        const int64_t all = samples * c.a->inputs * map_size(c.a->in, SPACE);
        launch(w, unpatch_kernel, blocks_of(all, CONV_THREADS), CONV_THREADS, 0, c.places,
               (float *)(void *)x_of(c, sample, group), (const float *)(const void *)c.room, (uint32_t)all,
               c.a->acc || p > 0);
    });
}

/* to (up, across) [+]= the sum of `samples` matrices like `sum`, one behind the other from there; may change them. */
static void add_samples(const tess_work *w, const any_matrix &to, const any_matrix &sum, int64_t samples, int64_t up,
                        int64_t across, bool acc)
{
    const bool dense = to.ld == sum.ld;
    const int64_t dim[] = {samples, up * across}, sides[] = {up, across};
    tess_strides by = {}, from = {}, into = {};
    by.by[0] = up * across, by.by[1] = 1, into.by[1] = 1;
    into.t = dense ? to.t : sum.t;
    map_program p;
    if (!map_space(w, &p, dim, 2)) return;
    map_copies(&p, map_place_of(&by, sum.at, dim, 2), map_place_of(&into, dense ? to.at : sum.at, dim, 2),
               dense && acc);
    fold_run(w, p, {TESS_REDUCE_SUM, TESS_REAL, true, (uint32_t)(up * across), (uint32_t)samples});
    if (dense) return;
    into = {};
    from.by[0] = sum.turned ? 1 : sum.ld, from.by[1] = sum.turned ? sum.ld : 1;
    into.by[0] = to.turned ? 1 : to.ld, into.by[1] = to.turned ? to.ld : 1;
    into.t = to.t;
    map_copy(w, sides, 2, sum.at, from, to.at, into, acc);
}

/* Samples' sums are made side by side, behind the patches, and added up in their order: one alone would leave most of
 * the device idle. */
template <tess_dtype T> static void any_conv_weight_body(const tess_work *w)
{
    if (conv_by_cudnn(w, CONV_W, T)) return;
    conv_task c;
    const tess_any_conv_arg *a = arg_of(w);
    const int64_t of_sum = a->outputs * a->inputs * map_size(a->window, SPACE);
    if (!conv_begin(&c, w, T, CONV_W, of_sum * (int64_t)sizeof(float))) return;
    conv_each(&c, [&](int64_t sample, int64_t samples, int64_t p, int64_t n, int64_t group) {
        const int64_t patches = c.s.direct ? 0 : blocks_of(samples * c.s.depth * n, 4 * CONV_LINE) * 4 * CONV_LINE;
        char *sums = c.room + patches * (int64_t)tess_dtype_size(T);
        const any_matrix to = w_of(c, group), y = y_of(c, sample, group, p), q = flip(q_of(c, sample, group, n));
        const any_matrix sum = {sums, TESS_F32, to.turned ? a->outputs : c.s.depth, to.turned, of_sum};
        const bool acc = a->acc || sample + p > 0;
        make_patches(c, sample, group, samples, n);
        any_product(w, samples > 1 ? sum : to, y, q, a->outputs, c.s.depth, n, samples, samples == 1 && acc);
        if (samples > 1) add_samples(w, to, sum, samples, a->outputs, c.s.depth, acc);
    });
}

TESS_CUDA_REAL(any_conv)
TESS_CUDA_REAL(any_conv_input)
TESS_CUDA_REAL(any_conv_weight)

/* ==== whose kernels =============================================================================================== */

/* A small problem of PyTorch's layout, and room for what is made of it. */
struct conv_trial {
#ifdef TESS_EMULATED
    static constexpr int64_t SAMPLES = 1, INPUTS = 8, OUTPUTS = 8, SIZE = 4;
#else
    static constexpr int64_t SAMPLES = 2, INPUTS = 16, OUTPUTS = 32, SIZE = 12;
#endif
    tess_any_conv_arg arg;
    tess_view x, w, y, made, room;
};
/* 3 x 3, or, with steps of 2, 3 x 1, which passes over every other column of x: its gradient is 0. */
static void conv_trial_of(conv_trial *t, bool strided)
{
    tess_any_conv_arg *a = &t->arg;
    a->samples = conv_trial::SAMPLES, a->groups = 1, a->inputs = conv_trial::INPUTS, a->outputs = conv_trial::OUTPUTS;
    a->x[1] = a->y[1] = a->w[1] = 1;
    for (int d = SPACE - 1; d >= 0; d--) {
        a->in[d] = d ? conv_trial::SIZE : 1, a->window[d] = d == 1 || (d && !strided) ? 3 : 1;
        a->pad[d] = a->window[d] / 2, a->step[d] = d && strided ? 2 : 1, a->apart[d] = a->between[d] = 1;
        a->out[d] = (a->in[d] - 1) / a->step[d] + 1;
        a->x[2 + d] = a->x[1], a->w[2 + d] = a->w[1], a->y[2 + d] = a->y[1];
        a->x[1] *= a->in[d], a->w[1] *= a->window[d], a->y[1] *= a->out[d];
    }
    a->x[0] = a->inputs * a->x[1], a->w[0] = a->inputs * a->w[1], a->y[0] = a->outputs * a->y[1];
    a->w_group = a->outputs * a->w[0];
    t->x.bytes = (size_t)(a->samples * a->x[0]) * 2, t->w.bytes = (size_t)a->w_group * 2;
    t->y.bytes = (size_t)(a->samples * a->y[0]) * 2;
    t->room.bytes = TESS_CUDA_MM_ROOM + (8 << 20);
}
static bool conv_try_kind(int kind, char *said, size_t room)
{
    static const tess_body body[] = {any_conv_input_body<TESS_BF16>, any_conv_weight_body<TESS_BF16>,
                                     any_conv_body<TESS_BF16>};
    const int written = kind % CONV_TENSORS;
    conv_trial t = {};
    conv_trial_of(&t, kind >= CONV_TENSORS);
    t.arg.to = written == CONV_Y ? TESS_BF16 : TESS_F32;
    t.made.bytes = written == CONV_Y ? t.y.bytes : 2 * (written == CONV_X ? t.x : t.w).bytes;
    const dnn_tried all[] = {{&t.x, TESS_BF16, 0},
                             {&t.w, TESS_BF16, 0},
                             {&t.y, TESS_BF16, 0},
                             {&t.made, t.arg.to, written == CONV_Y ? 1e-2 : 1e-4}};
    const auto run = [&] {
        const tess_env env = {};
        tess_view view[] = {t.x, t.w, t.y};
        tess_work w = {};
        view[written] = t.made;
        w.arg = &t.arg, w.env = &env, w.room = t.room.ptr, w.room_bytes = t.room.bytes;
        w.buf = view, w.nbuf = CONV_TENSORS;
        body[written](&w);
    };
    return dnn_try(&conv_cudnn_library, all, 4, &t.room, run, said, room);
}
/* Whether any kind is the library's; says which are not, and why the last. */
static bool conv_try_cudnn(char *said, size_t room)
{
    static const char *const name[] = {"gradients by x", "gradients by w", "results"};
    const int all = (1 << CONV_KINDS) - 1;
    int own = 0, n = 0;
    char why[200];
    for (int kind = 0; kind < CONV_KINDS; kind++) {
        if (conv_try_kind(kind, why, sizeof why)) continue;
        n += snprintf(said + n, room - (size_t)n, "%s%s%s", own ? ", " : ", but for ", name[kind % CONV_TENSORS],
                      kind < CONV_TENSORS ? "" : " with steps");
        own |= 1 << kind;
    }
    if (own == all) n = 0;
    if (own) snprintf(said + n, room - (size_t)n, "%s%s", n ? ": " : "", why);
    conv_cudnn_own = own;
    return own < all;
}
extern "C" void TESS_CUDA_NAME(conv_cudnn)(const tess_work *w)
{
    conv_cudnn_own = 0;
    dnn_settle(&conv_cudnn_library, (tess_cudnn_choice *)w->arg, CONV_DNN_LEAST, conv_try_cudnn);
}
