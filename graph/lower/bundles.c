/* Bundles: small tasks that become one. A step of one token is hundreds of tasks: a few dozen read matrices, the others
 * do next to nothing, and StarPU needs some microseconds for each.
 *
 * The pass walks over the list with one bundle open. A small task joins it. A large one goes ahead of it where it
 * touches nothing that the bundle writes and writes nothing that the bundle touches; else the bundle is closed before
 * it. So each task still comes behind all that it needs, in the order of the list, and large ones that do not need each
 * other are side by side. */
#include "graph/lower/program.h"
#include <stdlib.h>

/* What counts as small, and how much of it makes a bundle that is no longer: the time on paper of one core. */
#define FLOPS       2e9
#define BYTES       4e9
#define SMALL       12e-6
#define BUNDLE      60e-6
#define BUNDLE_TILE ((size_t)2 << 20) /* bytes of a tile: of larger ones a task must not need many at a time */

struct open {
    size_t task[TESS_BUNDLE_PARTS]; /* of the list */
    const tess_tile *tile[TESS_BUNDLE_BUFFERS];
    int mode[TESS_BUNDLE_BUFFERS]; /* all that is done to it */
    int first[TESS_BUNDLE_BUFFERS];
    unsigned tasks, tiles;
    double seconds;
};

static double seconds_of(const tess_task *t)
{
    tess_cost c = {0};
    if (t->cl->cost)
        c = t->cl->cost(t->arg);
    else
        for (unsigned i = 0; i < t->nuse; i++) c.bytes += (double)tess_tile_bytes(t->use[i].tile);
    return c.flops / FLOPS + c.bytes / BYTES;
}

static bool is_small(const tess_task *t)
{
    if (t->choice && t->option == TESS_MAKES_CHOICE) return false; /* the list waits for this very task */
    if (t->cl == &tess_message || t->cl == &tess_show || t->nuse > TESS_BUNDLE_BUFFERS || seconds_of(t) > SMALL)
        return false;
    for (unsigned i = 0; i < t->nuse; i++)
        if (!(t->use[i].mode & TESS_SCRATCH) && tess_tile_bytes(t->use[i].tile) > BUNDLE_TILE) return false;
    return true;
}

static unsigned place_of(const struct open *b, const tess_tile *t)
{
    unsigned i = 0;
    while (i < b->tiles && b->tile[i] != t) i++;
    return i;
}

/* May the task go ahead of the bundle? */
static bool free_of(const struct open *b, const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse; i++) {
        const unsigned at = place_of(b, t->use[i].tile);
        if (at == b->tiles || (t->use[i].mode & TESS_SCRATCH)) continue;
        if ((b->mode[at] & TESS_W) || (t->use[i].mode & TESS_W)) return false;
    }
    return true;
}

static bool has_room(const struct open *b, const tess_task *t)
{
    unsigned more = 0;
    for (unsigned i = 0; i < t->nuse; i++) more += place_of(b, t->use[i].tile) == b->tiles;
    return b->tasks < TESS_BUNDLE_PARTS && b->tiles + more <= TESS_BUNDLE_BUFFERS &&
           b->seconds + seconds_of(t) <= BUNDLE;
}

static void join(struct open *b, const tess_task *t, size_t k)
{
    for (unsigned i = 0; i < t->nuse; i++) {
        const unsigned at = place_of(b, t->use[i].tile);
        const int mode = t->use[i].mode & (TESS_RW | TESS_SCRATCH);
        if (at == b->tiles) {
            b->tile[b->tiles] = t->use[i].tile;
            b->mode[b->tiles] = b->first[b->tiles] = 0;
            b->tiles++;
        }
        if (!b->mode[at]) b->first[at] = mode;
        b->mode[at] |= mode;
    }
    b->task[b->tasks++] = k;
    b->seconds += seconds_of(t);
}

/* The list as it becomes. */
struct list {
    tess_task *task;
    tess_use **use;
    tess_origin *origin;
    size_t n;
};

static void put(struct list *to, const tess_program *p, size_t k)
{
    to->task[to->n] = p->task[k];
    to->use[to->n] = p->use[k];
    to->origin[to->n++] = p->origin[k];
}

static void put_bundle(struct list *to, tess_program *p, const struct open *b)
{
    tess_bundle_part *part = tess_arena_get(p->arena, b->tasks * sizeof *part);
    tess_bundle_arg *a = tess_arena_get(p->arena, sizeof *a);
    tess_use *use = tess_arena_get(p->arena, b->tiles * sizeof *use);
    for (unsigned k = 0; k < b->tasks; k++) {
        const tess_task *t = &p->task[b->task[k]];
        uint16_t *buf = tess_arena_get(p->arena, t->nuse * sizeof *buf);
        for (unsigned i = 0; i < t->nuse; i++) buf[i] = (uint16_t)place_of(b, t->use[i].tile);
        part[k] = (tess_bundle_part){t->cl, t->arg, buf, t->nuse};
    }
    *a = (tess_bundle_arg){b->tasks, part};
    for (unsigned i = 0; i < b->tiles; i++) /* what is written first has nothing before that counts */
        use[i] = (tess_use){(tess_tile *)b->tile[i], b->first[i] & TESS_R        ? b->mode[i]
                                                     : b->mode[i] & TESS_SCRATCH ? TESS_SCRATCH
                                                                                 : TESS_W};
    put(to, p, b->task[0]);
    to->task[to->n - 1] =
        (tess_task){.cl = &tess_bundle[p->task[b->task[0]].cl->dtype], .arg = a, .use = use, .nuse = b->tiles};
    to->use[to->n - 1] = use;
}

static void close_bundle(struct list *to, tess_program *p, struct open *b)
{
    if (b->tasks == 1) put(to, p, b->task[0]);
    if (b->tasks > 1) put_bundle(to, p, b);
    b->tasks = b->tiles = 0;
    b->seconds = 0;
}

void tess_program_bundle(tess_program *p)
{
    struct open b = {.tasks = 0};
    struct list to = {.task = tess_alloc((p->tasks + 1) * sizeof *to.task),
                      .use = tess_alloc((p->tasks + 1) * sizeof *to.use),
                      .origin = tess_alloc((p->tasks + 1) * sizeof *to.origin)};
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_task *t = &p->task[k];
        if (is_small(t)) {
            if (!has_room(&b, t)) close_bundle(&to, p, &b);
            join(&b, t, k);
            continue;
        }
        if (!free_of(&b, t)) close_bundle(&to, p, &b);
        put(&to, p, k);
    }
    close_bundle(&to, p, &b);
    for (size_t k = 0; k < to.n; k++) to.task[k].order = (uint32_t)k;
    free(p->task);
    free(p->use);
    free(p->origin);
    p->task = to.task, p->use = to.use, p->origin = to.origin;
    p->tasks = to.n, p->room = to.n + 1;
}
