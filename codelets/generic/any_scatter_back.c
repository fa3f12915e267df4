/* any_scatter_back: what is behind a scatter that does not add. `d` begins as y's gradient. The updates are gone
 * through from the last to the first (by TRACE and COUNT from the first). Each takes its share of d and leaves the rest
 * to the updates before it: one that set its element leaves nothing, a factor leaves d times the factor. In the end d
 * is x's gradient. */
#include "codelets/generic.h"
#include "codelets/generic/walk.h"

typedef struct back {
    const tess_any_scatter_back_arg *a;
    float *d;
    const float *u, *with;
    float *out;
} back;

/* n elements of d and of the updates, by strides. */
static void run(const back *b, int64_t at, int64_t by, int64_t y, int64_t y_by, int64_t n)
{
    const bool acc = b->a->at.acc;
    for (int64_t i = 0; i < n; i++) {
        float *d = &b->d[at + i * by], *out = &b->out[y + i * y_by];
        const float u = b->u ? b->u[y + i * y_by] : 0;
        switch (b->a->way) {
        case TESS_BACK_TRACE:
            *out = *d;
            *d *= u;
            break;
        case TESS_BACK_COUNT:
            *d += u == b->with[at + i * by];
            break;
        case TESS_BACK_SET:
            *out = acc ? *out + *d : *d;
            *d = 0;
            break;
        case TESS_BACK_MUL: {
            const float du = *d * b->with[y + i * y_by];
            *out = acc ? *out + du : du;
            *d *= u;
            break;
        }
        case TESS_BACK_MOST: {
            const float du = u == b->with[at + i * by] ? *d : 0;
            *out = acc ? *out + du : du;
        }
        }
    }
}

/* An update that was dropped has no gradient. */
static void dropped(const back *b, int64_t y, int64_t y_by, int64_t n)
{
    for (int64_t i = 0; i < n && b->a->way != TESS_BACK_COUNT && !b->a->at.acc; i++) b->out[y + i * y_by] = 0;
}

static void slice(const back *b, const int32_t *index, const walk *place)
{
    const tess_any_gather_arg *a = &b->a->at;
    const int p = a->places, over = a->rank - p;
    const int64_t all = walk_size(a->dim + p, over), y = a->y_at + walk_at(place, a->y);
    int64_t at;
    const bool inside = walk_place(a, index, place, &at);
    walk s = walk_begin(a->dim + p, over, 0);
    for (int64_t done = 0; done < all;) {
        const int64_t n = walk_run(&s, all - done), by = over ? a->x[a->rank - 1] : 1,
                      y_by = over ? a->y[a->rank - 1] : 1, to = y + walk_at(&s, a->y + p);
        if (inside)
            run(b, at + walk_at(&s, a->x + p), by, to, y_by, n);
        else
            dropped(b, to, y_by, n);
        walk_on(&s, n);
        done += n;
    }
}

static void any_scatter_back(const tess_work *w)
{
    const tess_any_scatter_back_arg *a = w->arg;
    const bool counts = a->way == TESS_BACK_COUNT, forward = counts || a->way == TESS_BACK_TRACE;
    const back b = {.a = a,
                    .d = w->buf[0].ptr,
                    .u = w->buf[2].ptr,
                    .with = w->nbuf > 3 ? w->buf[3].ptr : NULL,
                    .out = w->buf[w->nbuf - 1].ptr};
    const int64_t places = walk_size(a->at.dim, a->at.places);
    for (int64_t k = 0; k < places; k++) {
        const walk p = walk_begin(a->at.dim, a->at.places, forward ? k : places - 1 - k);
        slice(&b, w->buf[1].ptr, &p);
    }
}
tess_codelet tess_any_scatter_back[] = {
    {.name = "any_scatter_back", .dtype = TESS_F32, .cpu = any_scatter_back, .cpu_alone = true}};
