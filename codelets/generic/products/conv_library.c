/* conv_library: a convolution by oneDNN, cut into problems of equal size, of some samples by some channels, one a part.
 * The library's kernels want their own layouts: each part brings its x and y there, or what it makes back, while they
 * are in cache, and w is brought once for all. What w's gradient sums over samples is added up in their order: within a
 * part problem by problem, and then part by part.
 * So bits depend on shapes alone.
 *
 * All of this lies in the task's scratch: a part's room, and behind it blocks of w that all parts share.
 *
 * Convolutions as products of patches spent half their time on patches, and ResNet-18 and a U-Net took 1.7 to 2.2
 * times as long as PyTorch. oneDNN's kernels do 165 to 190 GFLOP/s a core in fp32 with AVX-512, and bringing a sample
 * there and back costs 1 to 5% of that (with AMX nearly as long as the convolution). 16 bits that the CPU multiplies
 * as fp32 are widened here: the library's own conversion took ten times as long as the convolution, and a U-Net's bf16
 * step went from 6.71 to 0.56 s on AVX2, from 0.62 to 0.50 with AVX-512 and from 0.87 to 0.50 with its bf16. Patches
 * stay for negative pads, `deterministic` across machines, and samples of more than 16 MiB a part. */
#define TESS_NO_CUDA_BODIES
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/walk.h"
#include "codelets/products/mm.h"
#include "codelets/shared/library.h"
#include "codelets/shared/parts.h"
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>

enum {
    SPACE = TESS_CONV_SPACE,
    SIDES = 3 + SPACE,       /* of a tensor at most: groups, channels twice, space */
    PARTS = 8,               /* parts that there should be at least */
    WORK = 16 << 20,         /* flops that a part should have */
    CHANNELS = 128,          /* channels of a problem at most */
    TAPS = 1152,             /* channels times elements of the window, where these allow more channels */
    FEW = 128,               /* positions of all samples: with fewer, bringing w costs more than it saves */
    FEWEST = 32,             /* channels */
    SUMS_BYTES = 2 << 20,    /* of w's gradient beside itself */
    SAMPLES_BYTES = 2 << 20, /* of a problem's x and y, */
    MOST_BYTES = 16 << 20,   /* and at most, where one sample has more: each worker has room for it */
    LINE = 64,
    FLAT = 512, /* elements that are converted at a time */
};

/* One of x, w and y of a part: as it lies in its tile, as the library has it, and what brings it from one to the
 * other. The library's own conversions of 16 bits take ten times as long as its convolutions where a CPU has no
 * instructions for them, and it reads no window backwards: such a tile is made a flat one first. */
typedef struct side {
    tess_dtype t, flat_t;
    tess_md mine; /* of the tile, or of the flat one */
    tess_const_md theirs;
    size_t bytes, flat;       /* of theirs; of a flat one, 0: there is none */
    bool same;                /* mine is what the library reads or writes */
    dnnl_primitive_t move[2]; /* there, or back; back by adding */
} side;

struct conv_library {
    tess_any_conv_arg a;
    int written;
    int64_t samples, groups, inputs, outputs; /* of a problem */
    int64_t turn;                             /* samples of a part */
    bool flip[SPACE];                         /* w's window is read backwards */
    size_t flat;                              /* bytes of a part's flat x or y */
    side side[CONV_TENSORS];
    dnnl_primitive_desc_t of_run;
    tess_const_md of_scratch;
    dnnl_primitive_t run;
    size_t scratch, room; /* the library's own; all of a part */
};
typedef struct known {
    tess_any_conv_arg a;
    int written, in;
    conv_library *way;
    struct known *next;
} known;
enum { KEY_BYTES = offsetof(known, way) };

/* ---- cutting ---- */

/* The most of n that divides it, is at most `most`, and is a multiple of 16 unless it is all. */
static int64_t piece(int64_t n, int64_t most)
{
    if (n <= most) return n;
    for (int64_t k = most / 16 * 16; k > 0; k -= 16)
        if (n % k == 0) return k;
    return n;
}
static int64_t divisor(int64_t n, int64_t most)
{
    int64_t k = most < 1 ? 1 : least(n, most);
    while (n % k) k--;
    return k;
}

static int64_t pieces(const conv_library *c)
{
    return c->a.groups / c->groups * (c->a.inputs / c->inputs) * (c->a.outputs / c->outputs);
}

/* Parts of the samples. */
static int64_t turns(const conv_library *c)
{
    return c->a.samples / c->turn;
}
/* Of w, that lie in scratch. */
static int64_t blocks(const conv_library *c)
{
    const side *w = &c->side[CONV_W];
    return w->same && !w->flat ? 0 : pieces(c) * (c->written == CONV_W ? turns(c) : 1);
}

static void cut_channels(conv_library *c, int64_t most)
{
    const tess_any_conv_arg *a = &c->a;
    c->groups = a->groups > 1 ? piece(a->groups, most / least(most, least(a->inputs, a->outputs))) : 1;
    c->inputs = a->groups > 1 || c->written == CONV_Y ? a->inputs : piece(a->inputs, most);
    c->outputs = a->groups > 1 || c->written == CONV_X ? a->outputs : piece(a->outputs, most);
}

/* Of a sample's x and y in a problem, in fp32. */
static int64_t bytes_of_sample(const conv_library *c)
{
    const tess_any_conv_arg *a = &c->a;
    return (int64_t)sizeof(float) * c->groups *
           (c->inputs * walk_size(a->in, SPACE) + c->outputs * walk_size(a->out, SPACE));
}

static void cut(conv_library *c)
{
    const tess_any_conv_arg *a = &c->a;
    const int64_t taps = walk_size(a->window, SPACE);
    int64_t most = TAPS / taps > CHANNELS ? TAPS / taps : CHANNELS;
    cut_channels(c, most);
    while (pieces(c) * a->samples < PARTS && most > FEWEST) cut_channels(c, most /= 2);
    const int64_t positions = walk_size(a->out, SPACE), w = a->groups * a->inputs * a->outputs * taps;
    const double work = 2.0 * (double)(positions * taps * c->groups * c->inputs) * (double)c->outputs;
    const int64_t most_samples = SAMPLES_BYTES / bytes_of_sample(c);
    if (c->written == CONV_W) {
        const int64_t sums = SUMS_BYTES / (w * (int64_t)sizeof(float));
        c->turn = a->samples / divisor(a->samples, least(PARTS / pieces(c), sums));
        c->samples = divisor(c->turn, most_samples);
    } else {
        const int64_t some = work < WORK ? (int64_t)(WORK / work) : 1;
        c->turn = c->samples = divisor(a->samples, least(least(some, most_samples), a->samples * pieces(c) / PARTS));
    }
}

/* ---- describing ---- */

/* Dimensions of space that are there: the first ones of one element are left out, but for one. */
static int first_of(const tess_any_conv_arg *a)
{
    int d = 0;
    while (d < SPACE - 1 && a->in[d] == 1 && a->out[d] == 1 && a->window[d] == 1 && !a->pad[d]) d++;
    return d;
}

static int dims_of(const conv_library *c, int which, int64_t *dim, int64_t *by)
{
    const tess_any_conv_arg *a = &c->a;
    const int64_t *space = which == CONV_X   ? a->in
                           : which == CONV_W ? a->window
                                             : a->out,
                  *stride = which == CONV_X   ? a->x
                            : which == CONV_W ? a->w
                                              : a->y;
    int n = 0;
    if (which == CONV_W && a->groups > 1) dim[n] = c->groups, by[n++] = a->w_group;
    dim[n] = which == CONV_W ? c->outputs : c->samples, by[n++] = stride[0];
    dim[n] = which == CONV_W ? c->inputs : c->groups * (which == CONV_X ? c->inputs : c->outputs), by[n++] = stride[1];
    for (int d = first_of(a); d < SPACE; d++) dim[n] = space[d], by[n++] = stride[2 + d];
    return n;
}

/* Of a dimension of one element any stride says the same; the library compares them. */
static void settle(int n, const int64_t *dim, int64_t *by)
{
    for (int k = n - 1; k >= 0; k--)
        if (dim[k] == 1) by[k] = k == n - 1 ? 1 : dim[k + 1] * by[k + 1];
}

static tess_md mine_of(const conv_library *c, int which, dnnl_data_type_t t)
{
    int64_t dim[SIDES], by[SIDES];
    const int n = dims_of(c, which, dim, by);
    settle(n, dim, by);
    return tess_md_strided(n, dim, by, t);
}
static tess_md any_of(const conv_library *c, int which, dnnl_data_type_t t)
{
    int64_t dim[SIDES], by[SIDES];
    return tess_md_tagged(dims_of(c, which, dim, by), dim, dnnl_format_tag_any, t);
}
static tess_md dense_of(const conv_library *c, int which, dnnl_data_type_t t)
{
    int64_t dim[SIDES], by[SIDES], all = 1;
    const int n = dims_of(c, which, dim, by);
    for (int k = n - 1; k >= 0; all *= dim[k--]) by[k] = all;
    return tess_md_strided(n, dim, by, t);
}

/* Strides, dilations and pads as the library has them; false: it has none such. */
typedef struct geometry {
    dnnl_dims_t step, apart, before, behind;
} geometry;
static bool geometry_of(conv_library *c, geometry *g)
{
    const tess_any_conv_arg *a = &c->a;
    const int first = first_of(a);
    for (int d = 0; d < SPACE; d++) {
        const int64_t apart = a->apart[d] < 0 ? -a->apart[d] : a->apart[d], reach = (a->window[d] - 1) * apart;
        c->flip[d] = a->apart[d] < 0 && a->window[d] > 1;
        const int64_t pad = a->pad[d] + (c->flip[d] ? reach : 0);
        if (a->between[d] != 1 || pad < 0 || pad > reach) return false;
        const int64_t needs = (a->out[d] - 1) * a->step[d] + reach + 1 - a->in[d] - pad, behind = needs > 0 ? needs : 0;
        if (behind > reach || (a->in[d] - reach - 1 + pad + behind) / a->step[d] + 1 != a->out[d]) return false;
        if (d < first) continue;
        g->step[d - first] = a->step[d], g->apart[d - first] = apart - 1;
        g->before[d - first] = pad, g->behind[d - first] = behind;
    }
    return true;
}

static dnnl_status_t forward_desc(dnnl_primitive_desc_t *pd, const geometry *g, tess_md x, tess_md w, tess_md y,
                                  dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR < 3
    dnnl_convolution_desc_t d;
    dnnl_status_t s = dnnl_dilated_convolution_forward_desc_init(&d, dnnl_forward_training, dnnl_convolution_direct, x,
                                                                 w, NULL, y, g->step, g->apart, g->before, g->behind);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, tess_library_engine(), NULL) : s;
#else
    return dnnl_convolution_forward_primitive_desc_create(pd, tess_library_engine(), dnnl_forward_training,
                                                          dnnl_convolution_direct, x, w, NULL, y, g->step, g->apart,
                                                          g->before, g->behind, attr);
#endif
}

static dnnl_status_t backward_desc(dnnl_primitive_desc_t *pd, int written, const geometry *g, tess_md x, tess_md w,
                                   tess_md y, dnnl_primitive_desc_t hint, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR < 3
    dnnl_convolution_desc_t d;
    dnnl_status_t s = written == CONV_X
                          ? dnnl_dilated_convolution_backward_data_desc_init(&d, dnnl_convolution_direct, x, w, y,
                                                                             g->step, g->apart, g->before, g->behind)
                          : dnnl_dilated_convolution_backward_weights_desc_init(
                                &d, dnnl_convolution_direct, x, w, NULL, y, g->step, g->apart, g->before, g->behind);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, tess_library_engine(), hint) : s;
#else
    return written == CONV_X
               ? dnnl_convolution_backward_data_primitive_desc_create(pd, tess_library_engine(),
                                                                      dnnl_convolution_direct, x, w, y, g->step,
                                                                      g->apart, g->before, g->behind, hint, attr)
               : dnnl_convolution_backward_weights_primitive_desc_create(
                     pd, tess_library_engine(), dnnl_convolution_direct, x, w, NULL, y, g->step, g->apart, g->before,
                     g->behind, hint, attr);
#endif
}

/* Kernels that are written for this CPU; others lose to products of patches. */
static bool is_fast(dnnl_primitive_desc_t pd)
{
    const char *name = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
    return !strncmp(name, "jit", 3) || !strncmp(name, "brg", 3);
}

static dnnl_primitive_desc_t run_desc(const conv_library *c, const geometry *g, dnnl_data_type_t in,
                                      dnnl_data_type_t made)
{
    dnnl_primitive_attr_t attr = tess_library_attr(false);
    dnnl_primitive_desc_t pd = NULL, hint = NULL;
    tess_md read[CONV_TENSORS], any[CONV_TENSORS];
    for (int k = 0; k < CONV_TENSORS; k++)
        read[k] = any_of(c, k, in), any[k] = any_of(c, k, k == c->written ? made : in);
    if (c->written == CONV_Y) {
        if (forward_desc(&pd, g, any[CONV_X], any[CONV_W], any[CONV_Y], attr) != dnnl_success) pd = NULL;
    } else if (forward_desc(&hint, g, read[CONV_X], read[CONV_W], read[CONV_Y], attr) == dnnl_success) {
        if (backward_desc(&pd, c->written, g, any[CONV_X], any[CONV_W], any[CONV_Y], hint, attr) != dnnl_success)
            pd = NULL;
        dnnl_primitive_desc_destroy(hint);
    }
    for (int k = 0; k < CONV_TENSORS; k++) tess_md_free(read[k]), tess_md_free(any[k]);
    dnnl_primitive_attr_destroy(attr);
    if (!pd || is_fast(pd)) return pd;
    dnnl_primitive_desc_destroy(pd);
    return NULL;
}

static tess_const_md asked(dnnl_primitive_desc_t pd, int which, int written)
{
    static const dnnl_query_t read[] = {dnnl_query_src_md, dnnl_query_weights_md, dnnl_query_diff_dst_md},
                              made[] = {dnnl_query_diff_src_md, dnnl_query_diff_weights_md, dnnl_query_dst_md};
    return dnnl_primitive_desc_query_md(pd, (which == written ? made : read)[which], 0);
}

static bool reorder(dnnl_primitive_t *to, tess_const_md from, tess_const_md into, bool acc)
{
    dnnl_primitive_attr_t attr = tess_library_attr(acc);
    dnnl_primitive_desc_t pd;
    const dnnl_status_t s =
        dnnl_reorder_primitive_desc_create(&pd, from, tess_library_engine(), into, tess_library_engine(), attr);
    dnnl_primitive_attr_destroy(attr);
    if (s != dnnl_success) return false;
    /* Scratch that one asks for would have to lie somewhere. */
    const bool plain = !dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0));
    if (plain) tess_library_check(dnnl_primitive_create(to, pd));
    dnnl_primitive_desc_destroy(pd);
    return plain;
}

static size_t lines(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static bool is_turned(const conv_library *c)
{
    return c->flip[0] || c->flip[1] || c->flip[2];
}

static bool side_of(conv_library *c, int which, tess_dtype t, dnnl_data_type_t of_theirs)
{
    side *s = &c->side[which];
    const tess_const_md theirs = asked(c->of_run, which, c->written);
    const bool widens = t != TESS_F32 && of_theirs == dnnl_f32, flat = widens || (which == CONV_W && is_turned(c));
    s->t = t, s->flat_t = widens ? TESS_F32 : t;
    s->mine = flat ? dense_of(c, which, tess_library_type(s->flat_t)) : mine_of(c, which, tess_library_type(t));
    s->same = dnnl_memory_desc_equal(s->mine, theirs);
    s->theirs = theirs, s->bytes = lines(dnnl_memory_desc_get_size(theirs));
    if (flat) s->flat = lines(dnnl_memory_desc_get_size(s->mine));
    if (which != c->written) return s->same || reorder(&s->move[0], s->mine, theirs, false);
    if (flat) return s->same || reorder(&s->move[0], theirs, s->mine, false);
    if (s->same && which != CONV_W && !c->a.acc) return true;
    s->same = false;
    return reorder(&s->move[0], theirs, s->mine, false) && reorder(&s->move[1], theirs, s->mine, true);
}

static void forget(conv_library *c)
{
    for (int k = 0; k < CONV_TENSORS; k++) {
        for (int j = 0; j < 2; j++)
            if (c->side[k].move[j]) dnnl_primitive_destroy(c->side[k].move[j]);
        if (c->side[k].mine) tess_md_free(c->side[k].mine);
    }
    if (c->of_run) dnnl_primitive_desc_destroy(c->of_run);
    free(c);
}

static conv_library *describe(const tess_any_conv_arg *a, int written, tess_dtype in)
{
    conv_library *c = tess_alloc(sizeof *c);
    geometry g = {0};
    *c = (conv_library){.a = *a, .written = written};
    const dnnl_data_type_t as = tess_library_type(tess_mm_as(in)),
                           made = written == CONV_Y && a->to == TESS_BF16 && !a->acc ? as : dnnl_f32;
    if (a->samples * walk_size(a->out, SPACE) < FEW || !geometry_of(c, &g)) return forget(c), NULL;
    cut(c);
    if (bytes_of_sample(c) > MOST_BYTES) return forget(c), NULL;
    c->of_run = run_desc(c, &g, as, made);
    bool fits = c->of_run;
    for (int k = 0; k < CONV_TENSORS && fits; k++)
        fits = k == written ? side_of(c, k, a->to, made) : side_of(c, k, in, as);
    if (!fits) return forget(c), NULL;
    c->of_scratch = dnnl_primitive_desc_query_md(c->of_run, dnnl_query_scratchpad_md, 0);
    c->scratch = c->room = lines(dnnl_memory_desc_get_size(c->of_scratch));
    for (int k = 0; k < CONV_TENSORS; k++) {
        const side *s = &c->side[k];
        if (k != CONV_W ? !s->same || s->flat : c->turn > c->samples) c->room += s->bytes;
        if (k != CONV_W && s->flat > c->flat) c->flat = s->flat;
    }
    c->room += c->flat;
    return c;
}

/* ---- what was described ------------------------------------------------------------------------------------------ */

/* By its hash. What the library does not do is kept too, with no way to do it. */
enum { LISTS = 1024 };
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static known *lists[LISTS];

/* Without the padding's bytes, which are compared too. */
static void set_key(known *k, const tess_any_conv_arg *a, int written, tess_dtype in)
{
    memset(k, 0, sizeof *k);
    memcpy(&k->a, a, offsetof(tess_any_conv_arg, acc) + sizeof a->acc);
    k->written = written, k->in = (int)in;
}

conv_library *tess_conv_library(const tess_any_conv_arg *a, int written, tess_dtype in)
{
    if (tess_mm_across()) return NULL;
    known key;
    uint64_t hash = 0, word;
    set_key(&key, a, written, in);
    for (size_t i = 0; i + sizeof word <= KEY_BYTES; i += sizeof word) {
        memcpy(&word, (const char *)&key + i, sizeof word);
        hash = tess_random_mix(hash ^ word);
    }
    pthread_mutex_lock(&lock);
    known *k = lists[hash % LISTS];
    while (k && memcmp(k, &key, KEY_BYTES)) k = k->next;
    if (!k) {
        k = tess_alloc(sizeof *k);
        set_key(k, a, written, in);
        k->way = describe(a, written, in);
        k->next = lists[hash % LISTS], lists[hash % LISTS] = k;
    }
    pthread_mutex_unlock(&lock);
    return k->way;
}

size_t tess_conv_library_scratch(const conv_library *c)
{
    return c->room + (size_t)blocks(c) * c->side[CONV_W].bytes + (size_t)pieces(c) * c->side[CONV_W].flat;
}
int64_t tess_conv_library_parts(const conv_library *c)
{
    return pieces(c) * turns(c);
}

/* ---- a task ------------------------------------------------------------------------------------------------------ */

typedef struct task {
    const conv_library *c;
    dnnl_primitive_t run;
    bool acc;
    char *at[CONV_TENSORS];     /* the tiles */
    char *room, *blocks, *flat; /* of a part, of w in the library's layout, of a flat w */
} task;

/* The groups, inputs and outputs that a piece of the channels has. */
typedef struct place {
    int64_t group, input, output;
} place;
static place place_of(const conv_library *c, int64_t piece)
{
    const int64_t inputs = c->a.inputs / c->inputs, outputs = c->a.outputs / c->outputs;
    return (place){piece / outputs / inputs * c->groups, piece / outputs % inputs * c->inputs,
                   piece % outputs * c->outputs};
}

/* Where a part's begins in the tile. */
static char *tile_of(const task *t, int which, int64_t piece, int64_t sample)
{
    const tess_any_conv_arg *a = &t->c->a;
    const place p = place_of(t->c, piece);
    const int64_t at = which == CONV_X   ? sample * a->x[0] + (p.group * a->inputs + p.input) * a->x[1]
                       : which == CONV_Y ? sample * a->y[0] + (p.group * a->outputs + p.output) * a->y[1]
                                         : p.group * a->w_group + p.output * a->w[0] + p.input * a->w[1];
    return tess_at_mut(t->at[which], at, t->c->side[which].t);
}
static char *block_of(const task *t, int64_t k)
{
    return t->blocks + (size_t)k * t->c->side[CONV_W].bytes;
}

/* Runs a primitive of up to four memories. */
typedef struct operand {
    int name;
    tess_const_md d;
    const void *at;
} operand;
static void execute(dnnl_primitive_t run, int n, const operand *o)
{
    dnnl_exec_arg_t arg[4];
    for (int k = 0; k < n; k++) {
        arg[k] = (dnnl_exec_arg_t){o[k].name, tess_library_memory(o[k].d)};
        tess_library_check(dnnl_memory_set_data_handle(arg[k].memory, (void *)o[k].at));
    }
    tess_library_check(dnnl_primitive_execute(run, tess_library_stream(), n, arg));
    for (int k = 0; k < n; k++) dnnl_memory_destroy(arg[k].memory);
}

/* Runs of a tile's elements: as many of the last dimensions as lie one behind the other. */
static int run_of(const int64_t *dim, const int64_t *by, int n, int64_t *run)
{
    *run = dim[n - 1];
    for (n--; n > 0 && by[n - 1] == dim[n] * by[n]; n--) *run *= dim[n - 1];
    return n;
}

/* Between a part's piece of a tile and a flat one, whose window is turned where w's is read backwards. */
static void flatten(const conv_library *c, int which, char *tile, char *flat, bool back, bool acc)
{
    const tess_any_conv_arg *a = &c->a;
    const side *s = &c->side[which];
    int64_t dim[SIDES], by[SIDES], run;
    const int n = dims_of(c, which, dim, by), space = n - (SPACE - first_of(a));
    int64_t first = 0;
    for (int d = 0; d < SPACE && which == CONV_W; d++) { /* from the last element of the window to the first */
        if (!c->flip[d]) continue;
        first += (a->window[d] - 1) * a->w[2 + d];
        by[space + d - first_of(a)] = -a->w[2 + d];
    }
    settle(n, dim, by);
    const int outer = run_of(dim, by, n, &run);
    float room[FLAT];
    walk w = walk_begin(dim, outer, 0);
    for (int64_t k = 0, all = walk_size(dim, outer); k < all; k++) {
        const int64_t from = first + walk_at(&w, by);
        for (int64_t i = 0; i < run; i += FLAT) {
            const int64_t at = from + i * by[n - 1], m = least(run - i, FLAT), to = k * run + i;
            if (back) {
                tess_walk_load(room, flat, to, 1, m, s->flat_t);
                tess_walk_store(tile, at, by[n - 1], room, m, acc, s->t);
            } else if (s->flat_t == TESS_F32) {
                tess_walk_load((float *)(void *)flat + to, tile, at, by[n - 1], m, s->t);
            } else {
                tess_walk_load(room, tile, at, by[n - 1], m, s->t);
                tess_walk_store(flat, to, 1, room, m, false, s->flat_t);
            }
        }
        walk_on(&w, 1);
    }
}

/* From a tile, over a flat one where the side has one, to what the library reads; and back. */
static void bring(const conv_library *c, int which, char *tile, char *flat, char *to)
{
    const side *s = &c->side[which];
    if (s->flat) flatten(c, which, tile, s->same ? to : flat, false, false);
    if (!s->flat || !s->same)
        execute(s->move[0], 2,
                (operand[]){{DNNL_ARG_FROM, s->mine, s->flat ? flat : tile}, {DNNL_ARG_TO, s->theirs, to}});
}
static void put_back(const conv_library *c, int which, char *from, char *flat, char *tile, bool acc)
{
    const side *s = &c->side[which];
    if (!s->flat || !s->same)
        execute(s->move[acc && !s->flat], 2,
                (operand[]){{DNNL_ARG_FROM, s->theirs, from}, {DNNL_ARG_TO, s->mine, s->flat ? flat : tile}});
    if (s->flat) flatten(c, which, tile, s->same ? from : flat, true, acc);
}

static void bring_block(void *of, int64_t piece)
{
    const task *t = of;
    const conv_library *c = t->c;
    bring(c, CONV_W, tile_of(t, CONV_W, piece, 0), t->flat + (size_t)piece * c->side[CONV_W].flat, block_of(t, piece));
}

TESS_CLONES static void add_block(float *to, const float *from, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] += from[i];
}

static void put_block(void *of, int64_t piece)
{
    const task *t = of;
    const conv_library *c = t->c;
    char *sum = block_of(t, piece);
    for (int64_t turn = 1; turn < turns(c); turn++)
        add_block((float *)(void *)sum, (const float *)(const void *)block_of(t, turn * pieces(c) + piece),
                  (int64_t)(c->side[CONV_W].bytes / sizeof(float)));
    put_back(c, CONV_W, sum, t->flat + (size_t)piece * c->side[CONV_W].flat, tile_of(t, CONV_W, piece, 0), t->acc);
}

/* Samples from one on; `w` is the block that is read or written. */
static void problem(const task *t, int64_t piece, int64_t sample, char *w, char *room)
{
    const conv_library *c = t->c;
    char *flat = room + c->scratch, *next = flat + c->flat, *at[CONV_TENSORS];
    for (int which = 0; which < CONV_TENSORS; which++) {
        const side *s = &c->side[which];
        at[which] = which == CONV_W ? w : tile_of(t, which, piece, sample);
        if ((s->same && !s->flat) || which == CONV_W) continue;
        if (which != c->written) bring(c, which, at[which], flat, next);
        at[which] = next, next += s->bytes;
    }
    static const int read[] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
                     written[] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DST};
    operand o[] = {[CONV_TENSORS] = {DNNL_ARG_SCRATCHPAD, c->of_scratch, room}};
    for (int which = 0; which < CONV_TENSORS; which++)
        o[which] = (operand){(which == c->written ? written : read)[which], c->side[which].theirs, at[which]};
    execute(t->run, CONV_TENSORS + 1, o);
    const side *s = &c->side[c->written];
    if (c->written != CONV_W && (!s->same || s->flat))
        put_back(c, c->written, at[c->written], flat, tile_of(t, c->written, piece, sample), t->acc);
}

static void part(void *of, int64_t k)
{
    const task *t = of;
    const conv_library *c = t->c;
    const side *w = &c->side[CONV_W];
    const int64_t piece = k % pieces(c), first = k / pieces(c) * c->turn;
    char *room = tess_part_room(t->room, c->room), *more = room + c->room - w->bytes,
         *block = w->same && !w->flat ? tile_of(t, CONV_W, piece, 0) : block_of(t, c->written == CONV_W ? k : piece);
    problem(t, piece, first, block, room);
    for (int64_t sample = c->samples; sample < c->turn; sample += c->samples) {
        problem(t, piece, first + sample, more, room);
        add_block((float *)(void *)block, (const float *)(const void *)more, (int64_t)(w->bytes / sizeof(float)));
    }
}

/* Kernels are made when they are first run: a plan makes none. */
static dnnl_primitive_t made(conv_library *c)
{
    pthread_mutex_lock(&lock);
    if (!c->run) tess_library_check(dnnl_primitive_create(&c->run, c->of_run));
    pthread_mutex_unlock(&lock);
    return c->run;
}

void tess_conv_library_run(conv_library *c, const tess_work *w)
{
    task t = {.c = c, .run = made(c), .acc = c->a.acc};
    for (int k = 0; k < CONV_TENSORS; k++) t.at[k] = w->buf[k].ptr;
    if (w->nbuf > CONV_TENSORS) {
        t.room = w->buf[CONV_TENSORS].ptr;
        t.blocks = t.room + c->room, t.flat = block_of(&t, blocks(c));
        TESS_ASSERT(w->buf[CONV_TENSORS].bytes >= tess_conv_library_scratch(c));
    }
    const side *s = &c->side[CONV_W];
    if (c->written != CONV_W && (!s->same || s->flat)) tess_parts_run(pieces(c), bring_block, &t);
    tess_parts_run(pieces(c) * turns(c), part, &t);
    if (c->written == CONV_W) tess_parts_run(pieces(c), put_block, &t);
}
