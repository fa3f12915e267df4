/* The first difference between the digests of two runs. Each rank's list is gone through in its order, in which all
 * that a task needs comes before it: so the first task of a rank that left another tile than the other run's, and found
 * the same in all of its own, is where they part. A rank that merely got what another one made has no such task. */
#include "models/train/bisect/bisect_impl.h"
#include <stdlib.h>
#include <string.h>

/* A run while it is read. */
struct reading {
    tess_digest_files files;
    tess_digest_step *step;    /* (ranks) */
    unsigned long long **last; /* (ranks, tiles): what a tile held when it was used last, */
    uint64_t **user;           /* and the task that used it so, from 1; 0: not in this step */
    size_t *tiles;             /* (ranks) */
    int64_t seen;              /* the last step that was gone through */
};

static tess_status open_side(const char *output, struct reading *r)
{
    *r = (struct reading){0};
    tess_status status = tess_digest_files_open(output, &r->files);
    const size_t n = (size_t)r->files.ranks + 1;
    r->step = tess_alloc(n * sizeof *r->step);
    r->last = tess_alloc(n * sizeof *r->last);
    r->user = tess_alloc(n * sizeof *r->user);
    r->tiles = tess_alloc(n * sizeof *r->tiles);
    return status;
}

static void close_side(struct reading *r)
{
    for (int k = 0; k < r->files.ranks; k++) {
        tess_digest_step_free(&r->step[k]);
        free(r->last[k]);
        free(r->user[k]);
    }
    free(r->step);
    free(r->last);
    free(r->user);
    free(r->tiles);
    tess_digest_files_close(&r->files);
}

static void free_step(struct reading *r)
{
    for (int k = 0; k < r->files.ranks; k++) tess_digest_step_free(&r->step[k]);
}

static void name_task(char *text, size_t size, const tess_digest_task *t)
{
    snprintf(text, size, "%s%s%.120s (task %llu)", t->codelet, strcmp(t->op, "-") ? " of " : "",
             strcmp(t->op, "-") ? t->op : "", (unsigned long long)t->number);
}

static void note(tess_difference *d, tess_differs kind, int rank, const tess_digest_task *t, const tess_digest_use *u)
{
    d->kind = kind;
    d->rank = rank;
    d->task = t->number;
    d->micro = t->micro;
    d->bytes = u->bytes;
    snprintf(d->codelet, sizeof d->codelet, "%s", t->codelet);
    snprintf(d->op, sizeof d->op, "%s", t->op);
    snprintf(d->label, sizeof d->label, "%s", u->label);
    snprintf(d->role, sizeof d->role, "%s", u->role);
}

/* ---- tiles that change while no task uses them ---- */

static bool is_late(const tess_digest_task *t)
{
    const char *mark = strstr(t->codelet, " (late)");
    return mark && !mark[7];
}

static void make_room(struct reading *r, int rank, uint32_t tile)
{
    const size_t had = r->tiles[rank];
    if (tile < had) return;
    const size_t n = 2 * (size_t)tile + 64;
    r->last[rank] = tess_realloc(r->last[rank], n * sizeof **r->last);
    r->user[rank] = tess_realloc(r->user[rank], n * sizeof **r->user);
    memset(r->last[rank] + had, 0, (n - had) * sizeof **r->last);
    memset(r->user[rank] + had, 0, (n - had) * sizeof **r->user);
    r->tiles[rank] = n;
}

/* What is known of tiles from the step before: nothing, where that was left out, or updates were made behind it that no
 * step has. */
static void begin_step(struct reading *r, int rank)
{
    const tess_digest_step *s = &r->step[rank];
    bool missed = s->step != r->seen + 1;
    for (size_t k = 0; k < s->tasks; k++) missed |= is_late(&s->task[k]) && !s->task[k].uses;
    for (size_t i = 0; i < r->tiles[rank]; i++) {
        r->user[rank][i] = 0;
        if (missed) r->last[rank][i] = 0;
    }
}

/* Samples are fed between steps. */
static bool is_fed(const tess_digest_use *u)
{
    return !strcmp(u->role, "input");
}

static void name_user(char *text, size_t size, const struct reading *r, int rank, uint32_t tile)
{
    const uint64_t user = r->user[rank][tile];
    if (user)
        name_task(text, size, &r->step[rank].task[user - 1]);
    else
        snprintf(text, size, "the step before");
}

/* Goes through a rank's step, and notes the first tile that is not as it was left. */
static void look_at_rest(struct reading *r, int side, int rank, tess_difference *d)
{
    const tess_digest_step *s = &r->step[rank];
    begin_step(r, rank);
    for (size_t k = 0; k < s->tasks && d->kind == TESS_DIFFERS_NOT; k++)
        for (size_t i = 0; i < s->task[k].uses; i++) {
            const tess_digest_use *u = &s->task[k].use[i];
            make_room(r, rank, u->tile);
            unsigned long long *last = &r->last[rank][u->tile];
            if (u->found && *last && u->found != *last && !(is_fed(u) && !r->user[rank][u->tile])) {
                note(d, TESS_DIFFERS_REST, rank, &s->task[k], u);
                d->side = side;
                d->ranks = r->files.ranks;
                d->bits[0] = *last, d->bits[1] = u->found;
                name_user(d->writer, sizeof d->writer, r, rank, u->tile);
                return;
            }
            *last = u->left ? u->left : u->found;
            r->user[rank][u->tile] = k + 1;
        }
}

/* ---- two runs ---- */

/* Over other grids tasks of no op have other tiles, and those that bring a weight's slices together other parts. */
static bool is_everywhere(const tess_digest_task *t)
{
    return t->micro >= 0 && strcmp(t->codelet, "copy") && strcmp(t->codelet, "message");
}

static bool same_tile(const tess_digest_use *a, const tess_digest_use *b)
{
    return a->bytes == b->bytes && !a->found == !b->found && !a->left == !b->left && !strcmp(a->label, b->label);
}

/* The last task before this one that left something in a tile. */
static void name_writer(char *text, size_t size, const tess_digest_step *s, const tess_digest_task *before,
                        uint32_t tile)
{
    snprintf(text, size, "before this step");
    for (const tess_digest_task *t = before; t-- > s->task;)
        for (size_t i = 0; i < t->uses; i++)
            if (t->use[i].tile == tile && t->use[i].left) {
                name_task(text, size, t);
                return;
            }
}

/* Compares the tiles of one task; the first that was found other counts before those that were left other. */
static bool compare_tasks(const tess_digest_step *in, const tess_digest_task *a, const tess_digest_task *b, int rank,
                          tess_difference *d)
{
    for (int left = 0; left < 2; left++)
        for (size_t i = 0; i < a->uses && i < b->uses; i++) {
            const tess_digest_use *x = &a->use[i], *y = &b->use[i];
            if (!same_tile(x, y)) continue;
            d->tiles += !left;
            if (left ? x->left == y->left : x->found == y->found) continue;
            note(d, left ? TESS_DIFFERS_LEFT : TESS_DIFFERS_FOUND, rank, b, y);
            d->bits[0] = left ? x->left : x->found, d->bits[1] = left ? y->left : y->found;
            name_writer(d->writer, sizeof d->writer, in, b, y->tile);
            return true;
        }
    return false;
}

/* The first task of this rank of B that is not as in A. */
static void compare_rank(const struct reading *a, const struct reading *b, int rank, bool same_grid, tess_difference *d)
{
    const tess_digest_step *s = &b->step[rank];
    for (size_t k = 0; k < s->tasks; k++) {
        if (!same_grid && !is_everywhere(&s->task[k])) continue;
        for (int r = same_grid ? rank : 0; r < (same_grid ? rank + 1 : a->files.ranks); r++) {
            const tess_digest_task *t = tess_digest_find(&a->step[r], &s->task[k]);
            if (t && compare_tasks(s, t, &s->task[k], rank, d)) return;
        }
    }
}

/* How near to its origin a difference is: who made something other, who was sent it, who found it. */
static int nearness(const tess_difference *d)
{
    if (d->kind == TESS_DIFFERS_LEFT) return strcmp(d->codelet, "message") ? 3 : 2;
    return d->kind == TESS_DIFFERS_REST ? 4 : d->kind == TESS_DIFFERS_FOUND;
}

static void compare_step(struct reading side[2], bool same_grid, tess_difference *out)
{
    for (int k = 0; k < 2; k++)
        for (int r = 0; r < side[k].files.ranks && out->kind == TESS_DIFFERS_NOT; r++)
            look_at_rest(&side[k], k, r, out);
    for (int k = 0; k < 2; k++) side[k].seen = side[k].step->step;
    for (int r = 0; r < side[1].files.ranks; r++) {
        tess_difference one = {.side = 1, .ranks = side[1].files.ranks};
        compare_rank(&side[0], &side[1], r, same_grid, &one);
        one.tiles += out->tiles;
        if (nearness(&one) > nearness(out)) *out = one;
        out->tiles = one.tiles;
    }
}

tess_status tess_digests_differ(const char *const output[2], bool same_grid, tess_difference *out)
{
    struct reading side[2];
    tess_status status[2];
    *out = (tess_difference){0};
    for (int k = 0; k < 2; k++) status[k] = open_side(output[k], &side[k]);
    tess_status all = status[0] != TESS_OK ? status[0] : status[1];
    int64_t steps = 0;
    while (all == TESS_OK && out->kind == TESS_DIFFERS_NOT && side[0].files.next && side[1].files.next) {
        const int64_t step[2] = {side[0].files.next, side[1].files.next};
        for (int k = 0; k < 2 && all == TESS_OK; k++)
            if (step[k] <= step[!k]) all = tess_digest_files_read(&side[k].files, side[k].step);
        if (all == TESS_OK && step[0] == step[1]) {
            compare_step(side, same_grid, out);
            out->step = step[0];
            steps++;
        }
        for (int k = 0; k < 2; k++)
            if (step[k] <= step[!k]) free_step(&side[k]);
    }
    out->steps = steps;
    for (int k = 0; k < 2; k++) close_side(&side[k]);
    return all;
}
