/* conv_cudnn: convolutions by cuDNN, which multiplies without making patches; a part of any_conv.cu, which does the
 * rest. The library's kernels want bf16, and channels last: what lies otherwise is brought to the worker's room so
 * before, and what is written is brought from there behind, and added where it adds. Gradients are written in fp32, in
 * which they are summed: to that the library has kernels where channels are of four and one group, while results in
 * bf16 are written by it whatever the shapes are. As many samples are done at a time as there is room for. Where there
 * is for none, or no engine has the same bits each time, any_conv.cu's own products do it; as where positions of x lie
 * between others, or x is its own patches. What is taken depends on the shapes, the device, the room and the library
 * alone. */
#ifndef TESS_CONV_CUDNN_IMPL_H
#define TESS_CONV_CUDNN_IMPL_H
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/store_cuda.h"
#include "codelets/shared/cudnn_calls.h"

/* A plan is made for this; all of it is compared, byte by byte. */
struct conv_dnn {
    int64_t samples, groups, inputs, outputs;
    int64_t in[TESS_CONV_SPACE], out[TESS_CONV_SPACE], window[TESS_CONV_SPACE];
    int64_t step[TESS_CONV_SPACE], apart[TESS_CONV_SPACE], before[TESS_CONV_SPACE], after[TESS_CONV_SPACE];
    int64_t workspace; /* that there is room for */
    int device, written;
    bool half; /* it is written in bf16, else in fp32 */
};

/* ---- the graph: one operation, and, for what is written in fp32, one that widens --------------------------------- */

enum { CONV_DNN_NARROW = 10 }; /* what is widened; other tensors have the numbers of conv_impl.h, from 1 on */

static dnn_descriptor conv_dnn_tensor(dnn_graph *g, const conv_dnn &of, int which, bool narrow)
{
    const int64_t samples[] = {of.samples, of.groups * of.outputs, of.samples};
    const int64_t channels[] = {of.groups * of.inputs, of.inputs, of.groups * of.outputs};
    const int64_t *const all[] = {of.in, of.window, of.out}, *space = all[which];
    const int flat = of.in[0] == 1 && of.out[0] == 1 && of.window[0] == 1, rank = 2 + TESS_CONV_SPACE - flat;
    int64_t side[2 + TESS_CONV_SPACE] = {samples[which], channels[which]}, stride[2 + TESS_CONV_SPACE] = {0, 1};
    int64_t apart = channels[which];
    for (int d = rank - 1; d > 1; apart *= side[d--]) side[d] = space[d - 2 + flat], stride[d] = apart;
    stride[0] = apart;
    return dnn_tensor(g, narrow ? CONV_DNN_NARROW : 1 + which, which == of.written && !of.half ? DNN_F32 : DNN_BF16,
                      rank, side, stride, narrow);
}
static void dnn_describe(dnn_graph *g, const conv_dnn &of)
{
    static const int kinds[] = {DNN_OPERATION_CONV_INPUT, DNN_OPERATION_CONV_WEIGHT, DNN_OPERATION_CONV};
    static const int names[] = {DNN_CONV_INPUT_OF, DNN_CONV_WEIGHT_OF, DNN_CONV_OF}; /* the others are beside it */
    const int name = names[of.written], flat = of.in[0] == 1 && of.out[0] == 1 && of.window[0] == 1;
    const int64_t space = TESS_CONV_SPACE - flat;
    const float times = 1, times_old = 0;
    dnn_descriptor tensor[CONV_TENSORS], wide = NULL;
    g->unwanted = 1u << DNN_ROUNDS_WHAT_IT_READS | 1u << DNN_ROUNDS_SUMS | 1u << DNN_BY_FFT | 1u << DNN_BY_WINOGRAD;
    for (int k = 0; k < CONV_TENSORS; k++) tensor[k] = conv_dnn_tensor(g, of, k, k == of.written && !of.half);
    const dnn_descriptor how = dnn_make(g, DNN_CONV), operation = dnn_make(g, kinds[of.written]);
    dnn_set_value(g, how, DNN_CONV_PRECISION, DNN_IS_TYPE, DNN_F32);
    dnn_set_value(g, how, DNN_CONV_MODE, DNN_IS_CONV_MODE, DNN_NOT_TURNED);
    dnn_set(g, how, DNN_CONV_SPACE, DNN_IS_INT64, &space);
    dnn_set(g, how, DNN_CONV_APART, DNN_IS_INT64, of.apart + flat, space);
    dnn_set(g, how, DNN_CONV_STEP, DNN_IS_INT64, of.step + flat, space);
    dnn_set(g, how, DNN_CONV_BEFORE, DNN_IS_INT64, of.before + flat, space);
    dnn_set(g, how, DNN_CONV_AFTER, DNN_IS_INT64, of.after + flat, space);
    dnn_end(g, how);
    dnn_set(g, operation, name, DNN_IS_DESCRIPTOR, &how);
    dnn_set(g, operation, name + DNN_CONV_X - DNN_CONV_OF, DNN_IS_DESCRIPTOR, &tensor[CONV_X]);
    dnn_set(g, operation, name + DNN_CONV_W - DNN_CONV_OF, DNN_IS_DESCRIPTOR, &tensor[CONV_W]);
    dnn_set(g, operation, name + DNN_CONV_Y - DNN_CONV_OF, DNN_IS_DESCRIPTOR, &tensor[CONV_Y]);
    dnn_set(g, operation, name + DNN_CONV_TIMES - DNN_CONV_OF, DNN_IS_FLOAT, &times);
    dnn_set(g, operation, name + DNN_CONV_TIMES_OLD - DNN_CONV_OF, DNN_IS_FLOAT, &times_old);
    dnn_add(g, operation);
    if (of.half) return;
    wide = conv_dnn_tensor(g, of, of.written, false);
    const dnn_descriptor same = dnn_make(g, DNN_POINTWISE), widen = dnn_make(g, DNN_OPERATION_POINTWISE);
    dnn_set_value(g, same, DNN_POINTWISE_MODE, DNN_IS_POINTWISE_MODE, DNN_SAME);
    dnn_set_value(g, same, DNN_POINTWISE_PRECISION, DNN_IS_TYPE, DNN_F32);
    dnn_end(g, same);
    dnn_set(g, widen, DNN_POINTWISE_OF, DNN_IS_DESCRIPTOR, &same);
    dnn_set(g, widen, DNN_POINTWISE_X, DNN_IS_DESCRIPTOR, &tensor[of.written]);
    dnn_set(g, widen, DNN_POINTWISE_Y, DNN_IS_DESCRIPTOR, &wide);
    dnn_add(g, widen);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The oldest version whose plans for these graphs were made. */
enum { CONV_DNN_LEAST = 91000 };
static dnn_library<conv_dnn, 1024> conv_cudnn_library; /* conv_cudnn says at the start whether it is on */

/* What is tried by itself, since the library has other kernels for it: what is written, without steps, or with. */
enum { CONV_KINDS = 2 * CONV_TENSORS };
static int conv_cudnn_own; /* a bit for each kind that is not the library's */
static int conv_kind(const tess_any_conv_arg *a, int written)
{
    bool steps = false;
    for (int d = 0; d < TESS_CONV_SPACE; d++) steps = steps || a->step[d] > 1;
    return written + (steps ? CONV_TENSORS : 0);
}

/* Where a tensor lies, and how the library wants it: samples, space, channels; w by groups. */
struct conv_lies {
    enum { RANK = TESS_CONV_SPACE + 3 };
    int64_t dim[RANK], elements; /* of a sample */
    tess_strides given, wanted;
    char *at;
    bool same; /* as it is wanted */
};
/* The strides are those of samples, of the dimensions of space, of channels. */
static conv_lies conv_lies_in(const tess_work *w, int which, const conv_dnn &of, const tess_any_conv_arg *a,
                              tess_dtype t)
{
    const int64_t *const spaces[] = {a->in, a->window, a->out}, *const strides[] = {a->x, a->w, a->y};
    const bool weight = which == CONV_W;
    conv_lies l = {};
    int64_t *dim = l.dim, *by = l.given.by, *wanted = l.wanted.by, apart = 1;
    dim[0] = weight ? a->groups : 1, by[0] = a->w_group;
    dim[1] = weight ? a->outputs : a->samples, by[1] = strides[which][0];
    for (int d = 0; d < TESS_CONV_SPACE; d++) {
        const bool mirrored = weight && a->apart[d] < 0; /* the library has no windows backwards */
        dim[2 + d] = spaces[which][d];
        by[2 + d] = mirrored ? -strides[which][2 + d] : strides[which][2 + d];
        if (mirrored) l.given.at += (a->window[d] - 1) * strides[which][2 + d];
    }
    dim[conv_lies::RANK - 1] = weight ? a->inputs : a->groups * (which == CONV_X ? a->inputs : a->outputs);
    by[conv_lies::RANK - 1] = strides[which][1];
    l.given.t = which == of.written ? a->to : t;
    l.wanted.t = which == of.written && !of.half ? TESS_F32 : TESS_BF16;
    l.same = l.given.t == l.wanted.t && l.given.at == 0 && !(which == of.written && a->acc);
    for (int d = conv_lies::RANK - 1; d >= 0; apart *= dim[d--]) {
        wanted[d] = apart;
        l.same = l.same && (dim[d] == 1 || by[d] == apart);
        if (d > 1 || weight) l.elements = apart * dim[d];
    }
    l.at = (char *)w->buf[which].ptr;
    return l;
}

/* False where the library has no such convolution. */
static bool conv_dnn_of(const tess_any_conv_arg *a, int written, conv_dnn *of)
{
    memset(of, 0, sizeof *of); /* with what lies between */
    of->samples = a->samples, of->groups = a->groups, of->inputs = a->inputs, of->outputs = a->outputs;
    of->written = written, of->half = written == CONV_Y && a->to == TESS_BF16 && !a->acc;
    /* Versions before 9.19 say that they have more gradients in fp32, which do not compile or which newer ones lack. */
    bool can = a->samples > 0 && (written == CONV_Y || (a->groups == 1 && a->inputs % 4 == 0 && a->outputs % 4 == 0));
    for (int d = 0; d < TESS_CONV_SPACE; d++) {
        const int64_t apart = a->apart[d] < 0 ? -a->apart[d] : a->apart[d], reach = (a->window[d] - 1) * apart;
        const int64_t before = a->pad[d] + (a->apart[d] < 0 ? reach : 0);
        const int64_t least = (a->out[d] - 1) * a->step[d] + reach + 1 - a->in[d] - before, most = least + a->step[d];
        of->in[d] = a->in[d], of->out[d] = a->out[d], of->window[d] = a->window[d], of->step[d] = a->step[d];
        of->apart[d] = apart, of->before[d] = before;
        of->after[d] = before >= least && before < most ? before : least > 0 ? least : 0;
        can = can && a->between[d] == 1 && before >= 0 && of->after[d] < most && apart > 0;
    }
    cudaGetDevice(&of->device);
    TESS_ASSERT(of->device < 64);
    return can;
}

/* Tensors that go through the room, some samples at a time: which they are, where each lies there, where they end. */
struct conv_rooms {
    bool through[CONV_TENSORS];
    size_t at[CONV_TENSORS], end;
};
static conv_rooms conv_rooms_of(const conv_lies *lies, const conv_dnn &of, int64_t all)
{
    constexpr size_t LINE = 256;
    conv_rooms r = {};
    for (int k = 0; k < CONV_TENSORS; k++) {
        const conv_lies &l = lies[k];
        const size_t bytes = (size_t)(k == CONV_W ? l.elements : of.samples * l.elements) * tess_dtype_size(l.wanted.t);
        const bool several = of.samples < all;
        r.through[k] = !l.same || (uintptr_t)l.at % 16 || (several && (k == CONV_W ? k == of.written : bytes % 16));
        r.at[k] = r.end;
        if (r.through[k]) r.end += (bytes + LINE - 1) / LINE * LINE;
    }
    return r;
}

static int conv_dnn_execute(const tess_work *w, const dnn_plan<conv_dnn> *p, const conv_lies *lies,
                            const conv_rooms &rooms, int64_t sample, bool acc)
{
    const conv_dnn &of = p->of;
    dnn_pointers to = {};
    int64_t dim[CONV_TENSORS][conv_lies::RANK];
    char *given[CONV_TENSORS];
    for (int k = 0; k < CONV_TENSORS; k++) {
        const conv_lies &l = lies[k];
        char *room = (char *)w->room + rooms.at[k];
        memcpy(dim[k], l.dim, sizeof dim[k]);
        if (k != CONV_W) dim[k][1] = of.samples;
        given[k] = l.at + (k == CONV_W ? 0 : sample * l.given.by[1] * (int64_t)tess_dtype_size(l.given.t));
        if (rooms.through[k] && k != of.written && (k != CONV_W || sample == 0))
            map_copy(w, dim[k], conv_lies::RANK, given[k], l.given, room, l.wanted, false);
        dnn_point(&to, 1 + k, rooms.through[k] ? room : given[k]);
    }
    const int status = dnn_execute(&conv_cudnn_library, w, p, &to, (char *)w->room + rooms.end);
    const conv_lies &l = lies[of.written];
    if (rooms.through[of.written] && !status)
        map_copy(w, dim[of.written], conv_lies::RANK, (char *)w->room + rooms.at[of.written], l.wanted,
                 given[of.written], l.given, acc);
    return status;
}

/* False, and nothing is done, where the library does not do it. */
static bool conv_by_cudnn(const tess_work *w, int written, tess_dtype t)
{
    const tess_any_conv_arg *a = (const tess_any_conv_arg *)w->arg;
    auto *library = &conv_cudnn_library;
    conv_dnn of;
    conv_shape s;
    if (!library->on || t != TESS_BF16 || conv_cudnn_own >> conv_kind(a, written) & 1) return false;
    if (!conv_dnn_of(a, written, &of) || !tess_conv_shape(a, &s) || s.direct) return false;
    conv_lies lies[CONV_TENSORS];
    for (int k = 0; k < CONV_TENSORS; k++) lies[k] = conv_lies_in(w, k, of, a, t);
    pthread_mutex_lock(&library->lock);
    const dnn_plan<conv_dnn> *p = NULL;
    conv_rooms rooms = {};
    for (int64_t parts = 1; parts <= a->samples; parts++) {
        of.samples = a->samples / parts;
        rooms = conv_rooms_of(lies, of, a->samples);
        if (a->samples % parts || rooms.end > w->room_bytes) continue;
        of.workspace = (int64_t)(w->room_bytes - rooms.end);
        p = dnn_plan_of(library, w, of, (size_t)of.workspace);
        if (p->plan) break;
        library->refused = p->graph.status ? p->graph.status : p->refused;
        const bool short_of_room = p->workspace < INT64_MAX;
        p = NULL;
        if (!short_of_room) break;
    }
    int status = 0;
    for (int64_t sample = 0; p && !status && sample < a->samples; sample += p->of.samples)
        status = conv_dnn_execute(w, p, lies, rooms, sample, a->acc || (written == CONV_W && sample > 0));
    if (status) {
        snprintf(library->lack, sizeof library->lack, "cuDNN: a convolution of %lld to %lld channels: %s",
                 (long long)a->inputs, (long long)a->outputs, dnn.GetErrorString(status));
        if (w->task) tess_work_fail(w, "%s (convolutions=own does without)", library->lack);
    }
    pthread_mutex_unlock(&library->lock);
    return p;
}

#endif
