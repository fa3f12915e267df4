/* any_conv: convolutions as products. Patches of x, one for each position of y, are the columns of a matrix q
 * (k, positions), k the elements of a patch in the order that w has them in. So y = w q, q's gradient is w^T dy, added
 * up where patches overlap, and that of w is dy q^T. Patches are made a chunk of positions at a time, in a part's room,
 * but those of one element each: there x itself is q. */
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/walk.h"
#include "codelets/products/mm.h"
#include "codelets/shared/cudnn_choice.h"

enum { ROOM = 1 << 18, LEAST = 64, CUTS = 8 }; /* elements of a chunk, positions and elements of a patch in it */
enum { SPACE = TESS_CONV_SPACE, CHANNEL = CONV_CHANNEL };

typedef conv_matrix matrix;

typedef struct conv {
    const tess_any_conv_arg *a;
    conv_shape s;
    tess_dtype of_patch; /* fp32 where they add up, else that of what is read */
    char *x, *w, *y, *room;
    int64_t chunk, chunks, cut, cuts; /* positions, elements of a patch: of a part */
} conv;

/* Where its elements lie by one stride along each side, one of them 1, it is a matrix. */
static bool is_matrix(int64_t up, int64_t up_by, int64_t across, int64_t across_by, matrix *m)
{
    if (up_by <= 0 || across_by <= 0) return false;
    m->turned = across > 1 && across_by != 1;
    m->ld = m->turned ? across_by : up > 1 ? up_by : across;
    return !m->turned || up == 1 || up_by == 1;
}

static bool is_point(const tess_any_conv_arg *a)
{
    for (int d = 0; d < SPACE; d++)
        if (a->window[d] != 1 || a->step[d] != 1 || a->pad[d] || a->between[d] != 1 || a->in[d] != a->out[d])
            return false;
    return true;
}

bool tess_conv_shape(const tess_any_conv_arg *a, conv_shape *s)
{
    int64_t by[SPACE + 1];
    *s = (conv_shape){.positions = walk_size(a->out, SPACE), .depth = a->inputs * walk_size(a->window, SPACE)};
    for (int k = 0; k <= SPACE; k++) { /* the largest stride first, behind those of one element */
        const int64_t size = k == CHANNEL ? a->inputs : a->window[k], stride = size == 1      ? INT64_MAX
                                                                               : k == CHANNEL ? a->w[1]
                                                                                              : a->w[2 + k];
        int j = k;
        for (; j > 0 && by[j - 1] < stride; j--) by[j] = by[j - 1], s->order[j] = s->order[j - 1];
        by[j] = stride, s->order[j] = k;
    }
    for (int k = 0; k <= SPACE; k++) s->dim[k] = s->order[k] == CHANNEL ? a->inputs : a->window[s->order[k]];
    const int64_t over_y = walk_joint(a->out, a->y + 2, SPACE), over_x = walk_joint(a->in, a->x + 2, SPACE);
    s->direct = is_point(a) && is_matrix(a->inputs, a->x[1], s->positions, over_x, &s->of_q);
    s->rows = a->x[1] == 1 && a->inputs > 1 && s->order[SPACE] == CHANNEL;
    return is_matrix(a->outputs, a->w[0], s->depth, walk_joint(s->dim, by, SPACE + 1), &s->of_w) &&
           is_matrix(a->outputs, a->y[1], s->positions, over_y, &s->of_y);
}

static bool conv_of(const tess_any_conv_arg *a, conv *c)
{
    *c = (conv){.a = a};
    if (!tess_conv_shape(a, &c->s)) return false;
    c->chunk = ROOM / c->s.depth < LEAST ? LEAST : ROOM / c->s.depth;
    c->chunk = least(c->chunk, c->s.positions);
    c->chunks = (c->s.positions + c->chunk - 1) / c->chunk;
    c->cut = c->s.depth / CUTS < LEAST ? LEAST : (c->s.depth + CUTS - 1) / CUTS;
    c->cut = least(c->cut, c->s.depth);
    c->cuts = (c->s.depth + c->cut - 1) / c->cut;
    return true;
}

bool tess_any_conv_fits(const tess_any_conv_arg *a)
{
    conv c;
    return conv_of(a, &c);
}

static size_t room_bytes(const conv *c)
{
    return c->s.direct ? 0 : (size_t)(c->chunk * c->s.depth) * sizeof(float); /* whatever they are of */
}
size_t tess_any_conv_scratch(const tess_any_conv_arg *a, int written, tess_dtype in)
{
    const conv_library *library = tess_conv_library(a, written, in);
    conv c;
    conv_of(a, &c);
    return library ? tess_conv_library_scratch(library) : room_bytes(&c);
}

/* ---- patches ---- */

/* Where x has what position o and element i of a patch meet along a dimension; -1: nowhere. */
static int64_t meet(const tess_any_conv_arg *a, int d, int64_t o, int64_t i)
{
    return walk_meet(o * a->step[d] + i * a->apart[d] - a->pad[d], a->between[d], a->in[d]);
}

static void add_run(float *x, int64_t by, const float *q, int64_t n)
{
    for (int64_t j = 0; j < n; j++) x[j * by] += q[j];
}

static void get_run(void *q, const void *x, int64_t by, int64_t n, tess_dtype t)
{
    if (by == 1)
        memcpy(q, x, (size_t)n * tess_dtype_size(t));
    else if (t == TESS_F32)
        for (int64_t j = 0; j < n; j++) ((float *)q)[j] = ((const float *)x)[j * by];
    else
        for (int64_t j = 0; j < n; j++) ((uint16_t *)q)[j] = ((const uint16_t *)x)[j * by];
}

static void zero_run(void *q, int64_t n, tess_dtype t)
{
    memset(q, 0, (size_t)n * tess_dtype_size(t));
}

/* Between x, from which the run's row of the last dimension begins, and element i of patches o .. o + n. */
static void run_of_positions(const conv *c, char *x, char *q, int64_t o, int64_t n, int64_t i, bool back)
{
    const tess_any_conv_arg *a = c->a;
    const tess_dtype t = c->of_patch;
    const int d = SPACE - 1;
    const int64_t step = a->step[d], by = a->x[2 + d];
    if (a->between[d] > 1) {
        for (int64_t j = 0; j < n; j++) {
            const int64_t at = meet(a, d, o + j, i);
            if (back && at >= 0)
                add_run((float *)x + at * by, 1, (float *)q + j, 1);
            else if (!back && at < 0)
                zero_run(tess_at_mut(q, j, t), 1, t);
            else if (!back)
                get_run(tess_at_mut(q, j, t), tess_at(x, at * by, t), 1, 1, t);
        }
        return;
    }
    const int64_t low = a->pad[d] - i * a->apart[d]; /* x's element 0 is met at position low / step */
    int64_t first, end;
    walk_span(step, low, a->in[d], o, n, &first, &end);
    char *from = tess_at_mut(x, ((o + first) * step - low) * by, t);
    if (back) {
        if (end > first) add_run((float *)from, step * by, (float *)q + first, end - first);
        return;
    }
    zero_run(q, first, t);
    if (end > first) get_run(tess_at_mut(q, first, t), from, step * by, end - first, t);
    zero_run(tess_at_mut(q, end, t), n - end, t);
}

/* q (k, positions): elements [k, k + depth) of patches [p, p + n). */
static void in_columns(const conv *c, char *x, char *q, int64_t k, int64_t depth, int64_t p, int64_t n, bool back)
{
    const tess_any_conv_arg *a = c->a;
    walk patch = walk_begin(c->s.dim, SPACE + 1, k);
    for (int64_t row = 0; row < depth; row++, walk_on(&patch, 1)) {
        int64_t i[SPACE + 1];
        for (int j = 0; j <= SPACE; j++) i[c->s.order[j]] = patch.at[j];
        walk at = walk_begin(a->out, SPACE, p);
        for (int64_t done = 0; done < n;) {
            const int64_t run = walk_run(&at, n - done);
            const int64_t up = meet(a, 0, at.at[0], i[0]), across = meet(a, 1, at.at[1], i[1]);
            char *to = tess_at_mut(q, row * n + done, c->of_patch);
            if (up >= 0 && across >= 0)
                run_of_positions(c, tess_at_mut(x, i[CHANNEL] * a->x[1] + up * a->x[2] + across * a->x[3], c->of_patch),
                                 to, at.at[2], run, i[2], back);
            else if (!back)
                zero_run(to, run, c->of_patch);
            walk_on(&at, run);
            done += run;
        }
    }
}

/* q (positions, k), where an element of a patch has its channels together in x. */
static void in_rows(const conv *c, char *x, char *q, int64_t k, int64_t depth, int64_t p, int64_t n, bool back)
{
    const tess_any_conv_arg *a = c->a;
    walk at = walk_begin(a->out, SPACE, p);
    for (int64_t row = 0; row < n; row++, walk_on(&at, 1)) {
        walk patch = walk_begin(c->s.dim, SPACE + 1, k);
        for (int64_t done = 0; done < depth;) {
            const int64_t run = walk_run(&patch, depth - done);
            int64_t from = patch.at[SPACE];
            bool there = true;
            for (int j = 0; j < SPACE; j++) {
                const int d = c->s.order[j];
                const int64_t met = meet(a, d, at.at[d], patch.at[j]);
                there &= met >= 0;
                from += met * a->x[2 + d];
            }
            char *to = tess_at_mut(q, row * depth + done, c->of_patch);
            if (there && back)
                add_run((float *)x + from, 1, (float *)to, run);
            else if (there)
                get_run(to, tess_at(x, from, c->of_patch), 1, run, c->of_patch);
            else if (!back)
                zero_run(to, run, c->of_patch);
            walk_on(&patch, run);
            done += run;
        }
    }
}

static void move(const conv *c, char *x, char *q, int64_t k, int64_t depth, int64_t p, int64_t n, bool back)
{
    (c->s.rows ? in_rows : in_columns)(c, x, q, k, depth, p, n, back);
}

/* ---- products ---- */

static matrix flip(matrix m)
{
    m.turned = !m.turned;
    return m;
}

static matrix from(matrix m, int64_t up, int64_t across)
{
    m.at = tess_at_mut(m.at, m.turned ? across * m.ld + up : up * m.ld + across, m.t);
    return m;
}

/* z (m, n) [+]= a (m, k) b (k, n) */
static void product(matrix z, matrix a, matrix b, int64_t m, int64_t n, int64_t k, bool acc)
{
    if (z.turned) {
        product(flip(z), flip(b), flip(a), n, m, k, acc);
        return;
    }
    const tess_mm d = {.m = m,
                       .n = n,
                       .k = k,
                       .lda = a.ld,
                       .ldb = b.ld,
                       .ldc = z.ld,
                       .in = a.t,
                       .out = z.t,
                       .ta = a.turned,
                       .tb = b.turned,
                       .acc = acc,
                       .part = true};
    tess_mm_run(&d, a.at, b.at, z.at);
}

/* The matrices of a sample and group. */
static matrix w_of(const conv *c, int64_t group)
{
    matrix m = c->s.of_w;
    m.at = tess_at_mut(c->w, group * c->a->w_group, m.t);
    return m;
}
static matrix y_of(const conv *c, int64_t sample, int64_t group)
{
    matrix m = c->s.of_y;
    m.at = tess_at_mut(c->y, sample * c->a->y[0] + group * c->a->outputs * c->a->y[1], m.t);
    return m;
}
static char *x_of(const conv *c, int64_t sample, int64_t group)
{
    return tess_at_mut(c->x, sample * c->a->x[0] + group * c->a->inputs * c->a->x[1], c->of_patch);
}
/* Elements [k, k + depth) of patches [p, p + n): x itself, or room for them. */
static matrix q_of(const conv *c, char *x, char *room, int64_t k, int64_t depth, int64_t p, int64_t n)
{
    matrix m = c->s.of_q;
    m.at = x, m.t = c->of_patch;
    return c->s.direct ? from(m, k, p) : (matrix){room, c->of_patch, c->s.rows ? depth : n, c->s.rows};
}
static char *room_of(const conv *c)
{
    return c->s.direct ? NULL : tess_part_room(c->room, room_bytes(c));
}

static void forward_part(void *of, int64_t part)
{
    const conv *c = of;
    const int64_t p = part % c->chunks * c->chunk, n = least(c->chunk, c->s.positions - p),
                  group = part / c->chunks % c->a->groups, sample = part / c->chunks / c->a->groups;
    char *x = x_of(c, sample, group), *room = room_of(c);
    const matrix q = q_of(c, x, room, 0, c->s.depth, p, n);
    if (!c->s.direct) move(c, x, room, 0, c->s.depth, p, n, false);
    product(from(y_of(c, sample, group), 0, p), w_of(c, group), q, c->a->outputs, n, c->s.depth, c->a->acc);
}

static void clear(const conv *c, float *x)
{
    const tess_any_conv_arg *a = c->a;
    const int64_t dim[] = {a->in[0], a->in[1], a->in[2], a->inputs}, by[] = {a->x[2], a->x[3], a->x[4], a->x[1]},
                  all = walk_size(dim, SPACE + 1);
    walk w = walk_begin(dim, SPACE + 1, 0);
    for (int64_t done = 0; done < all;) {
        const int64_t run = walk_run(&w, all - done), at = walk_at(&w, by);
        for (int64_t k = 0; k < run; k++) x[at + k * by[SPACE]] = 0;
        walk_on(&w, run);
        done += run;
    }
}

static void input_part(void *of, int64_t part)
{
    const conv *c = of;
    const int64_t group = part % c->a->groups, sample = part / c->a->groups;
    char *x = x_of(c, sample, group), *room = room_of(c);
    if (!c->s.direct && !c->a->acc) clear(c, (float *)x);
    for (int64_t p = 0; p < c->s.positions; p += c->chunk) {
        const int64_t n = least(c->chunk, c->s.positions - p);
        product(q_of(c, x, room, 0, c->s.depth, p, n), flip(w_of(c, group)), from(y_of(c, sample, group), 0, p),
                c->s.depth, n, c->a->outputs, c->s.direct && c->a->acc);
        if (!c->s.direct) move(c, x, room, 0, c->s.depth, p, n, true);
    }
}

static void weight_part(void *of, int64_t part)
{
    const conv *c = of;
    const int64_t k = part % c->cuts * c->cut, depth = least(c->cut, c->s.depth - k), group = part / c->cuts;
    char *room = room_of(c);
    bool acc = c->a->acc;
    for (int64_t sample = 0; sample < c->a->samples; sample++)
        for (int64_t p = 0; p < c->s.positions; p += c->chunk, acc = true) {
            const int64_t n = least(c->chunk, c->s.positions - p);
            char *x = x_of(c, sample, group);
            if (!c->s.direct) move(c, x, room, k, depth, p, n, false);
            product(from(w_of(c, group), 0, k), from(y_of(c, sample, group), 0, p),
                    flip(q_of(c, x, room, k, depth, p, n)), c->a->outputs, depth, n, acc);
        }
}

/* ---- bodies ---- */

/* How many parts those bodies have that are not the library's. */
static int64_t parts_of(const conv *c, int written)
{
    return written == CONV_Y   ? c->a->samples * c->a->groups * c->chunks
           : written == CONV_X ? c->a->samples * c->a->groups
                               : c->a->groups * c->cuts;
}
static int64_t parts(const tess_any_conv_arg *a, int written, tess_dtype in)
{
    const conv_library *library = tess_conv_library(a, written, in);
    conv c;
    conv_of(a, &c);
    return library ? tess_conv_library_parts(library) : parts_of(&c, written);
}
static int64_t any_conv_parts(const tess_codelet *cl, const void *arg)
{
    return parts(arg, CONV_Y, cl->dtype);
}
static int64_t any_conv_input_parts(const tess_codelet *cl, const void *arg)
{
    return parts(arg, CONV_X, cl->dtype);
}
static int64_t any_conv_weight_parts(const tess_codelet *cl, const void *arg)
{
    return parts(arg, CONV_W, cl->dtype);
}

static void run(const tess_work *w, tess_dtype t, int written, tess_part_body part)
{
    conv_library *library = tess_conv_library(w->arg, written, t);
    if (library) {
        tess_conv_library_run(library, w);
        return;
    }
    conv c;
    TESS_ASSERT(conv_of(w->arg, &c));
    c.s.of_w.t = written == CONV_W ? c.a->to : t;
    c.s.of_y.t = written == CONV_Y ? c.a->to : t;
    c.of_patch = written == CONV_X ? TESS_F32 : t;
    TESS_ASSERT(written != CONV_X || c.a->to == TESS_F32);
    c.x = w->buf[CONV_X].ptr, c.w = w->buf[CONV_W].ptr, c.y = w->buf[CONV_Y].ptr;
    c.room = w->nbuf > CONV_TENSORS ? w->buf[CONV_TENSORS].ptr : NULL;
    tess_parts_run(parts_of(&c, written), part, &c);
}
TESS_INLINE void any_conv(const tess_work *w, tess_dtype t)
{
    run(w, t, CONV_Y, forward_part);
}
TESS_INLINE void any_conv_input(const tess_work *w, tess_dtype t)
{
    run(w, t, CONV_X, input_part);
}
TESS_INLINE void any_conv_weight(const tess_work *w, tess_dtype t)
{
    run(w, t, CONV_W, weight_part);
}

static tess_cost any_conv_cost(const void *arg, tess_dtype t)
{
    const tess_any_conv_arg *a = arg;
    conv c;
    (void)t;
    conv_of(a, &c);
    const double rows = (double)a->samples * (double)c.s.positions;
    return (tess_cost){.flops = 2 * rows * (double)(a->groups * a->outputs) * (double)c.s.depth, .rows = rows};
}
#define any_conv_input_cost  any_conv_cost
#define any_conv_weight_cost any_conv_cost
TESS_CUDA_DECLARE(conv_cudnn)
bool tess_any_conv_cudnn(bool wanted, char *said, size_t room)
{
    return tess_cudnn_settle(TESS_CUDA(conv_cudnn), wanted, said, room);
}
TESS_PART_COST(any_conv)
TESS_PART_COST(any_conv_input)
TESS_PART_COST(any_conv_weight)
