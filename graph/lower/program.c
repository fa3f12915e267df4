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
    free(p->index);
    free(p->role);
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

uint32_t *tess_program_index(const tess_program *p, size_t *tiles)
{
    size_t uses = 0;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++, uses++) *tess_tile_number(p->task[k].use[i].tile) = 0;
    uint32_t *index = tess_alloc((uses + 1) * sizeof *index), *at = index, n = 0;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            uint32_t *number = tess_tile_number(p->task[k].use[i].tile);
            if (!*number) *number = ++n;
            *at++ = *number - 1;
        }
    *tiles = n;
    return index;
}

void tess_program_drop_copies(tess_program *p)
{
    size_t tiles, left = 0;
    TESS_FREED uint32_t *index = tess_program_index(p, &tiles);
    const uint32_t *at = index;
    TESS_FREED bool *read = tess_alloc(tiles + 1);
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
}

/* Gradients whose first use reads them, and which are written later, outlive the program's end. */
static void mark_late(const tess_program *p, bool *live)
{
    const uint32_t *at = p->index;
    TESS_FREED bool *seen = tess_alloc(p->numbers + 1), *first = tess_alloc(p->numbers + 1);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_use *u = &p->task[k].use[i];
            bool reads = u->mode & TESS_R;
            if (p->role[at[i]] != TESS_ROLE_GRADIENT) continue;
            if (!seen[at[i]]) first[at[i]] = reads;
            if (u->mode & TESS_W) live[at[i]] = first[at[i]];
            seen[at[i]] = true;
        }
}

/* Each tile is asked once, at its first use: in a large program others have pushed it out of the cache by the next. */
static size_t number_tiles(tess_program *p)
{
    size_t uses = 0, n = 0;
    free(p->index);
    free(p->role);
    p->index = tess_program_index(p, &p->numbers);
    p->role = tess_alloc(p->numbers + 1);
    for (size_t k = 0; k < p->tasks; uses += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (p->index[uses + i] == n) p->role[n++] = (uint8_t)tess_tile_role(p->task[k].use[i].tile);
    return uses;
}

/* Walks the tasks backward: a use after which the tile is overwritten before it is read again is its last. */
void tess_program_finish(tess_program *p, bool keep_gradients)
{
    const size_t uses = number_tiles(p);
    TESS_FREED bool *live = tess_alloc(p->numbers + 1);
    mark_late(p, live);
    const uint32_t *at = p->index + uses;
    for (size_t k = p->tasks; k-- > 0;) {
        at -= p->task[k].nuse;
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            tess_use *u = &p->use[k][i];
            u->mode |= TESS_LEAVES_RAM;
            const tess_role role = p->role[at[i]];
            if (!tess_role_drops(role) || (keep_gradients && role == TESS_ROLE_GRADIENT)) continue;
            if (!live[at[i]]) u->mode |= TESS_LAST;
            live[at[i]] = (u->mode & TESS_R) != 0;
        }
    }
    for (size_t t = 0; t < p->numbers; t++) /* nothing is read before it was written */
        TESS_ASSERT(!live[t] || p->role[t] == TESS_ROLE_GRADIENT);
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
