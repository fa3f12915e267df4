/* Programs: the tile tasks of a step, in the order they are submitted. The order is all there is to know about a step
 * before it runs: lifetimes, memory, flops and bytes are read off it. */
#include "graph/lower/program.h"
#include <stdlib.h>
#include <string.h>

tess_program *tess_program_new(void)
{
    tess_program *p = tess_alloc(sizeof *p);
    p->arena = tess_arena_new();
    tess_program_slots(p, 0, true);
    return p;
}

void tess_program_free(tess_program *p)
{
    if (!p) return;
    for (size_t i = 0; i < p->tiles; i++) tess_tile_free(p->tile[i]);
    free(p->tile);
    for (int k = 0; k < p->sets; k++) free(p->slots[k].tile);
    free(p->slots);
    free(p->task);
    free(p->use);
    free(p->origin);
    tess_arena_free(p->arena);
    free(p);
}

tess_tile *tess_program_tile(tess_program *p, size_t bytes, tess_role role, const char *label)
{
    if (p->tiles == p->tile_room) {
        p->tile_room = p->tile_room ? 2 * p->tile_room : 256;
        p->tile = tess_realloc(p->tile, p->tile_room * sizeof *p->tile);
    }
    if (bytes > TESS_TILE_MOST) { /* the step will be refused */
        p->too_large = bytes;
        p->of = tess_arena_format(p->arena, "%s", label);
        bytes = sizeof(float);
    }
    return p->tile[p->tiles++] = tess_tile_new(bytes, role, label);
}

void tess_program_slots(tess_program *p, int set, bool restart)
{
    if (set >= p->sets) {
        p->slots = tess_realloc(p->slots, (size_t)(set + 1) * sizeof *p->slots);
        for (; p->sets <= set; p->sets++) p->slots[p->sets] = (struct tess_slots){0};
    }
    p->set = set;
    if (restart) p->slots[set].next = 0;
}

/* The k-th tile of every micro-batch of a set is the same, so that their number does not grow with the accumulation. */
tess_tile *tess_program_slot(tess_program *p, size_t bytes, tess_role role, const char *label)
{
    struct tess_slots *s = &p->slots[p->set];
    if (s->next < s->n) {
        tess_tile *t = s->tile[s->next++];
        TESS_ASSERT(tess_tile_bytes(t) == bytes || p->too_large);
        return t;
    }
    if ((s->n & (s->n - 1)) == 0) s->tile = tess_realloc(s->tile, (s->n ? 2 * s->n : 1) * sizeof *s->tile);
    s->next++;
    return s->tile[s->n++] = tess_program_tile(p, bytes, role, label);
}

void tess_program_put(tess_program *p, const tess_task *task, tess_use *use, const tess_origin *origin)
{
    if (p->tasks == p->room) {
        p->room = p->room ? 2 * p->room : 1024;
        p->task = tess_realloc(p->task, p->room * sizeof *p->task);
        p->use = tess_realloc(p->use, p->room * sizeof *p->use);
        p->origin = tess_realloc(p->origin, p->room * sizeof *p->origin);
    }
    p->task[p->tasks] = *task;
    p->task[p->tasks].order = (uint32_t)p->tasks;
    p->use[p->tasks] = use;
    p->origin[p->tasks++] = *origin;
}

void tess_program_add(tess_program *p, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse,
                      bool again)
{
    tess_use *kept = tess_arena_get(p->arena, nuse * sizeof *kept);
    memcpy(kept, use, nuse * sizeof *kept);
    tess_cost c = {0};
    if (cl->cost) c = cl->cost(arg);
    *(again ? &p->recompute_flops : &p->flops) += c.flops;
    if (c.bytes == 0)
        for (unsigned i = 0; i < nuse; i++) c.bytes += (double)tess_tile_bytes(use[i].tile);
    if (c.flops == 0) p->bytes += c.bytes;
    tess_program_put(p, &(tess_task){.cl = cl, .arg = arg, .use = kept, .nuse = nuse}, kept, &p->now);
}

/* Numbers of tiles by their addresses; its size is a power of two, and half of it stays free. */
struct numbers {
    const tess_tile **tile;
    uint32_t *number;
    size_t size, n;
};

/* Where the tile is, or is to be. */
static size_t place_of(const struct numbers *t, const tess_tile *tile)
{
    size_t i = (size_t)((uintptr_t)tile >> 4) * 0x9E3779B97F4A7C15u >> 20 & (t->size - 1);
    while (t->tile[i] && t->tile[i] != tile) i = (i + 1) & (t->size - 1);
    return i;
}

static void enlarge(struct numbers *t)
{
    const struct numbers old = *t;
    t->size = old.size ? 2 * old.size : 1024;
    t->tile = tess_alloc(t->size * sizeof *t->tile);
    t->number = tess_alloc(t->size * sizeof *t->number);
    for (size_t i = 0; i < old.size; i++) {
        if (!old.tile[i]) continue;
        const size_t at = place_of(t, old.tile[i]);
        t->tile[at] = old.tile[i];
        t->number[at] = old.number[i];
    }
    free(old.tile);
    free(old.number);
}

static uint32_t number_of(struct numbers *t, const tess_tile *tile)
{
    if (2 * t->n >= t->size) enlarge(t);
    const size_t i = place_of(t, tile);
    if (!t->tile[i]) {
        t->tile[i] = tile;
        t->number[i] = (uint32_t)t->n++;
    }
    return t->number[i];
}

uint32_t *tess_program_index(const tess_program *p, size_t *tiles)
{
    struct numbers numbers = {0};
    size_t uses = 0;
    for (size_t k = 0; k < p->tasks; k++) uses += p->task[k].nuse;
    uint32_t *index = tess_alloc((uses + 1) * sizeof *index), *at = index;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) *at++ = number_of(&numbers, p->task[k].use[i].tile);
    *tiles = numbers.n;
    free(numbers.tile);
    free(numbers.number);
    return index;
}

void tess_program_drop_copies(tess_program *p)
{
    size_t tiles, left = 0;
    uint32_t *index = tess_program_index(p, &tiles);
    const uint32_t *at = index;
    bool *read = tess_alloc(tiles + 1);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) read[at[i]] |= p->task[k].use[i].mode & TESS_R;
    at = index;
    for (size_t k = 0; k < p->tasks; k++) {
        const tess_task *t = &p->task[k];
        const bool goes = t->cl == &tess_copy[TESS_F32] && tess_program_drops(t->use[1].tile) && !read[at[1]];
        at += t->nuse;
        if (goes) p->bytes -= t->cl->cost(t->arg).bytes;
        if (goes) continue;
        p->task[left] = *t;
        p->task[left].order = (uint32_t)left;
        p->use[left] = p->use[k];
        p->origin[left++] = p->origin[k];
    }
    p->tasks = left;
    free(read);
    free(index);
}

/* Gradients whose first use reads them, and which are written later, outlive the program's end. */
static void mark_late(const tess_program *p, const uint32_t *at, bool *live, size_t tiles)
{
    bool *seen = tess_alloc(tiles + 1), *first = tess_alloc(tiles + 1);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_use *u = &p->task[k].use[i];
            bool reads = u->mode & TESS_R;
            if (tess_tile_role(u->tile) != TESS_ROLE_GRADIENT) continue;
            if (!seen[at[i]]) first[at[i]] = reads;
            if (u->mode & TESS_W) live[at[i]] = first[at[i]];
            seen[at[i]] = true;
        }
    free(seen);
    free(first);
}

/* Walks the tasks backward: a use after which the tile is overwritten before it is read again is its last. */
void tess_program_finish(tess_program *p, bool keep_gradients)
{
    size_t tiles, uses = 0;
    uint32_t *index = tess_program_index(p, &tiles);
    bool *live = tess_alloc(tiles + 1);
    for (size_t k = 0; k < p->tasks; k++) uses += p->task[k].nuse;
    mark_late(p, index, live, tiles);
    const uint32_t *at = index + uses, *index_at = index;
    for (size_t k = p->tasks; k-- > 0;) {
        at -= p->task[k].nuse;
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            tess_use *u = &p->use[k][i];
            u->mode |= TESS_LEAVES_RAM;
            if (!tess_program_drops(u->tile) || (keep_gradients && tess_tile_role(u->tile) == TESS_ROLE_GRADIENT))
                continue;
            if (!live[at[i]]) u->mode |= TESS_LAST;
            live[at[i]] = (u->mode & TESS_R) != 0;
        }
    }
    for (size_t k = 0; k < p->tasks; index_at += p->task[k++].nuse) /* nothing is read before it was written */
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            TESS_ASSERT(!live[index_at[i]] || tess_tile_role(p->task[k].use[i].tile) == TESS_ROLE_GRADIENT);
    free(live);
    free(index);
}

bool tess_task_comes_late(const tess_task *t)
{
    if (t->cl == &tess_bundle_either[t->cl->dtype]) {
        const tess_bundle_part *part = ((const tess_bundle_arg *)t->arg)->part;
        return tess_task_comes_late(&(tess_task){.cl = part->cl, .arg = part->arg});
    }
    return tess_codelet_updates(t->cl) && ((const tess_update_arg *)t->arg)->late;
}

tess_status tess_program_run(const tess_program *p, bool late)
{
    for (size_t k = 0, n; k < p->tasks; k += n) {
        if (!late && tess_task_comes_late(&p->task[k])) {
            n = 1;
            continue;
        }
        for (n = 1; k + n < p->tasks && (late || !tess_task_comes_late(&p->task[k + n]));) n++;
        TESS_TRY(tess_submit_all(p->task + k, n));
    }
    return TESS_OK;
}
