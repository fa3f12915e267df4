/* delta_rule_impl: where things lie for the bodies of the gated delta rule, and its gates. */
#ifndef TESS_DELTA_RULE_IMPL_H
#define TESS_DELTA_RULE_IMPL_H
#include "codelets/codelets.h"
#include "codelets/shared/scalar.h"

/* A state is kept each CHUNK rows; from there backward finds one each FEW rows, and then those of FEW rows at a time.
 */
enum { CHUNK = 64, FEW = 8, COLUMNS = 16 };

/* The room of a part, (rows, elements) each. Gradients of what was convolved have taps - 1 rows more, of the chunk
 * behind. */
typedef struct delta_room {
    float *taps;                              /* (taps, channels of the part), of a CPU */
    float *q, *k, *v, *beta, *decay;          /* of a chunk, as the rule takes them */
    float *over_q, *over_k;                   /* 1 / the lengths that q and k had */
    float *u, *dbeta, *dg;                    /* v less what the state said of it; gradients of gates */
    float *dq, *dk, *dv, *ds, *mark, *states; /* dv, ds (gradient of the state): of each head of v */
} delta_room;

/* A state is (dim, wide), with columns of zeros behind those of v. */
TESS_INLINE int64_t delta_wide(const tess_delta_arg *a)
{
    return (a->dim_v + COLUMNS - 1) / COLUMNS * COLUMNS;
}
TESS_INLINE int64_t delta_state(const tess_delta_arg *a)
{
    return a->dim * delta_wide(a);
}
TESS_INLINE int64_t delta_channels(const tess_delta_arg *a)
{
    return 2 * a->groups * a->dim + a->heads * a->dim_v;
}
/* States that are kept of a head; the first is zeros. Where none are, the running one. */
TESS_INLINE int64_t delta_slots(const tess_delta_arg *a)
{
    return a->keeps ? (a->sequence + CHUNK - 1) / CHUNK + 1 : 1;
}
/* Lays out the room at `begin`; returns how many floats it has. */
TESS_INLINE int64_t delta_room_of(const tess_delta_arg *a, float *begin, bool backward, delta_room *r)
{
    const int64_t wide = delta_wide(a), share = a->heads / a->groups, behind = CHUNK + a->taps - 1, d = a->dim;
    float **const to[] = {&r->taps,  &r->q,  &r->k,  &r->v,  &r->beta, &r->decay, &r->over_q, &r->over_k, &r->u,
                          &r->dbeta, &r->dg, &r->dq, &r->dk, &r->dv,   &r->ds,    &r->mark,   &r->states};
    const int64_t n[] = {a->taps * (2 * d + share * a->dim_v),
                         CHUNK * d,
                         CHUNK * d,
                         CHUNK * wide,
                         CHUNK,
                         CHUNK,
                         CHUNK,
                         CHUNK,
                         FEW * wide,
                         CHUNK,
                         CHUNK,
                         behind * d,
                         behind * d,
                         share * behind * wide,
                         share * delta_state(a),
                         (CHUNK / FEW - 1) * delta_state(a),
                         FEW * delta_state(a)};
    int64_t at = 0;
    for (int k = 0; k < (backward ? 17 : 8); k++) {
        *to[k] = begin ? begin + at : NULL;
        at += n[k];
    }
    return at;
}

/* What a row of a sequence sees: it is at a place of its text, whose first is `first`, or of no text. */
typedef struct delta_row {
    int64_t place, first;
    bool sees;
} delta_row;
TESS_INLINE delta_row delta_row_of(const tess_delta_arg *a, const int32_t *bounds, int64_t s, int64_t t)
{
    delta_row r = {t, 0, true};
    if (!bounds) return r;
    bounds += 2 * s * a->sequence + t;
    if (a->cached) r.place = bounds[a->sequence] - 1;
    r.first = bounds[0];
    r.sees = !a->cached || r.first <= r.place;
    return r;
}
/* Where row t + back of the rows of a sequence is, which is before all that are here where it is less than 0: there the
 * rows of an earlier step are. NULL: it is of no text, or another's. */
TESS_INLINE const void *delta_input(const tess_delta_arg *a, const void *x, const void *earlier, delta_row r, int64_t s,
                                    int64_t t, int64_t back, tess_dtype type)
{
    const int64_t size = tess_is_half(type) ? 2 : 4, ld = delta_channels(a) * size, row = t + back;
    if (r.place + back < r.first || (row < 0 && !a->cached)) return NULL;
    if (row < 0) return (const char *)earlier + ((s + 1) * (a->taps - 1) + row) * ld;
    return (const char *)x + (s * a->sequence + row) * ld;
}

/* Buffers, from the first that is read on; what backward writes, by its gradients. */
enum { X, TAPS, B, A, LOGS, BIASES, BOUNDS };
typedef struct delta_gradients {
    void *x, *b, *gate;
    float *taps, *logs, *biases;
} delta_gradients;

/* A part of a task, at one sequence. */
typedef struct delta_part {
    tess_delta_arg a;
    const void *x, *taps, *b, *gate;
    void *earlier;
    const float *logs, *biases;
    const int32_t *bounds;
    float *scratch;
    delta_room room;
    int64_t head, s;
} delta_part;
/* All but the last three. */
static inline delta_part delta_task(const tess_work *w, bool backward)
{
    delta_part p;
    const tess_view *in = w->buf + backward;
    p.a = *(const tess_delta_arg *)w->arg;
    p.x = in[X].ptr, p.taps = in[TAPS].ptr, p.b = in[B].ptr, p.gate = in[A].ptr;
    p.logs = (const float *)in[LOGS].ptr, p.biases = (const float *)in[BIASES].ptr;
    p.bounds = (const int32_t *)(p.a.bounded ? in[BOUNDS].ptr : NULL);
    p.earlier = p.a.cached ? in[BOUNDS + p.a.bounded + 2].ptr : NULL;
    p.scratch = (float *)w->buf[w->nbuf - 1].ptr;
    return p;
}
static inline delta_gradients delta_gradients_of(const tess_work *w)
{
    const tess_view *d = w->buf + 2 + BOUNDS + ((const tess_delta_arg *)w->arg)->bounded;
    const delta_gradients to = {d[0].ptr, d[2].ptr, d[3].ptr, (float *)d[1].ptr, (float *)d[4].ptr, (float *)d[5].ptr};
    return to;
}
TESS_INLINE void delta_begin(delta_part *p, int64_t part, bool backward)
{
    delta_room size;
    delta_room_of(&p->a, p->scratch + part * delta_room_of(&p->a, NULL, backward, &size), backward, &p->room);
    p->head = part % p->a.groups, p->s = part / p->a.groups;
}
TESS_INLINE int64_t delta_share(const tess_delta_arg *a)
{
    return a->heads / a->groups;
}
/* The first channel of a head of q, k (which 0, 1) or v. */
TESS_INLINE int64_t delta_channel(const tess_delta_arg *a, int which, int64_t head)
{
    return which == 2 ? 2 * a->groups * a->dim + head * a->dim_v : (which * a->groups + head) * a->dim;
}
/* Keeps channel c of the last rows of x that a text had, for its next ones. */
TESS_INLINE void delta_keep(const delta_part *p, int64_t c, tess_dtype type)
{
    const int64_t kept = p->a.taps - 1, ld = delta_channels(&p->a);
    int64_t seen = p->a.sequence;
    while (seen > 0 && !delta_row_of(&p->a, p->bounds, p->s, seen - 1).sees) seen--;
    for (int64_t k = 0; k < kept && seen; k++) {
        const int64_t row = seen - kept + k;
        const float x = row < 0 ? tess_load(p->earlier, (p->s * kept + kept + row) * ld + c, type)
                                : tess_load(p->x, (p->s * p->a.sequence + row) * ld + c, type);
        tess_store(p->earlier, (p->s * kept + k) * ld + c, type, x);
    }
}

TESS_INLINE float delta_sigmoid(float x)
{
    return 1 / (1 + tess_expf(-x));
}
/* log(1 + e^x) */
TESS_INLINE float delta_softplus(float x)
{
    return x > 20 ? x : log1pf(tess_expf(x));
}
TESS_INLINE float delta_silu_slope(float x)
{
    const float y = delta_sigmoid(x);
    return y + x * y * (1 - y);
}

#define DELTA_LENGTH_EPS 1e-6f

#endif
