/* A run of a step writes down what bits its tasks found and left, in the order of the list:
 *
 *     S step
 *     T task micro-batch codelet op         (the micro-batch is -1, and the op -, where it is the step's own)
 *     U tile mode bytes found left role label
 *
 * with a line U for each of a task's tiles but scratch; fields end with tabs. Two runs of one configuration write the
 * same, whatever their workers and caps are, but for tasks that one of them has and the other does without. */
#include "graph/step/step_impl.h"
#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct tess_step_digests {
    FILE *to;
    tess_digests kept;
    size_t *first, uses, tiles;
    uint32_t *tile; /* (uses) */
};

void tess_step_digest(tess_step *s, FILE *to)
{
    struct tess_step_digests *d = s->digests;
    if (!to) {
        tess_digests_keep(NULL);
        if (d) free(d->first), free(d->tile), free(d->kept.of), free(d);
        s->digests = NULL;
        return;
    }
    if (!d) {
        const tess_program *p = s->low.program;
        d = s->digests = tess_alloc(sizeof *d);
        d->first = tess_alloc((p->tasks + 1) * sizeof *d->first);
        for (size_t k = 0; k < p->tasks; k++) d->first[k + 1] = d->first[k] + p->task[k].nuse;
        d->uses = d->first[p->tasks];
        d->tile = tess_program_index(p, &d->tiles);
        d->kept = (tess_digests){p->task, p->tasks, d->first, tess_alloc((2 * d->uses + 1) * sizeof *d->kept.of)};
    }
    d->to = to;
}

void tess_step_digests_begin(const tess_step *s)
{
    const struct tess_step_digests *d = s->digests;
    if (!d) return;
    memset(d->kept.of, 0, 2 * d->uses * sizeof *d->kept.of);
    tess_digests_keep(&d->kept);
}

/* Names come from files, too. */
static void put_name(FILE *to, const char *name)
{
    for (; *name; name++) fputc(iscntrl((unsigned char)*name) ? '?' : *name, to);
}

static bool is_late(const tess_task *t)
{
    return tess_codelet_updates(t->cl) && ((const tess_update_arg *)t->arg)->late;
}

static void put_task(const struct tess_step_digests *d, const tess_program *p, size_t k)
{
    const tess_task *t = &p->task[k];
    const tess_origin *o = &p->origin[k];
    fprintf(d->to, "T\t%zu\t%" PRId64 "\t%s%s\t", k, o->of ? o->micro : -1, t->cl->name, is_late(t) ? " (late)" : "");
    put_name(d->to, o->of ? o->of : "-");
    fputc('\n', d->to);
    for (unsigned i = 0; i < t->nuse; i++) {
        const size_t at = d->first[k] + i;
        const tess_tile *tile = t->use[i].tile;
        const uint64_t *of = &d->kept.of[2 * at];
        if (!of[0] && !of[1]) continue;
        fprintf(d->to, "U\t%" PRIu32 "\t%s\t%zu\t%016" PRIx64 "\t%016" PRIx64 "\t%s\t", d->tile[at],
                !of[1]  ? "R"
                : of[0] ? "RW"
                        : "W",
                tess_tile_bytes(tile), of[0], of[1], tess_role_name(tess_tile_role(tile)));
        put_name(d->to, tess_tile_label(tile));
        fputc('\n', d->to);
    }
}

void tess_step_digests_end(const tess_step *s, int64_t step)
{
    const struct tess_step_digests *d = s->digests;
    if (!d) return;
    tess_digests_keep(NULL);
    fprintf(d->to, "S\t%" PRId64 "\n", step + 1);
    for (size_t k = 0; k < d->kept.tasks; k++) put_task(d, s->low.program, k);
}
