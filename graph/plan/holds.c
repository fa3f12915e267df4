/* The plan: what a program will hold at each moment, read off its order before it runs. */
#include "graph/lower/program.h"
#include <stdlib.h>

/* Bytes live at a time, as the list is walked. */
struct live {
    uint64_t role[TESS_ROLE_COUNT], in_ram[TESS_ROLE_COUNT], all, ram;
};

static void begins(struct live *l, const tess_tile *t)
{
    const uint64_t bytes = tess_tile_bytes(t);
    l->role[tess_tile_role(t)] += bytes;
    l->all += bytes;
    if (tess_tile_home(t) == TESS_TIER_GPU) return;
    l->ram += bytes;
    l->in_ram[tess_tile_role(t)] += bytes;
}

static void ends(struct live *l, const tess_tile *t)
{
    const uint64_t bytes = tess_tile_bytes(t);
    l->role[tess_tile_role(t)] -= bytes;
    l->all -= bytes;
    if (tess_tile_home(t) == TESS_TIER_GPU) return;
    l->ram -= bytes;
    l->in_ram[tess_tile_role(t)] -= bytes;
}

/* What the step before left, gradients whose first use reads them; and of all that the program drops, what rests on
 * disk meanwhile. */
static void before_it(const tess_program *p, struct live *live, uint64_t *on_disk)
{
    const uint32_t *at = p->index;
    TESS_FREED bool *seen = tess_alloc(p->numbers + 1);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_use *u = &p->task[k].use[i];
            const bool first = !seen[at[i]] && tess_role_drops(p->role[at[i]]);
            if (first && (u->mode & TESS_R)) begins(live, u->tile);
            if (first && tess_tile_home(u->tile) == TESS_TIER_DISK)
                on_disk[tess_tile_role(u->tile)] += tess_tile_bytes(u->tile);
            seen[at[i]] = true;
        }
}

static uint64_t sent_by(const tess_task *t)
{
    const tess_message_arg *m = t->arg;
    uint64_t bytes = 0;
    for (unsigned i = 0; t->cl == &tess_message && i < m->spans; i++) bytes += m->span[i].sends ? m->span[i].bytes : 0;
    return bytes;
}

/* The scratch of the task with the most: a worker has one room for all of its tasks. Beside a GPU StarPU allocates
 * each tile of it by itself. */
static uint64_t scratch_of(const tess_program *p)
{
    const uint32_t *at = p->index;
    uint64_t most = 0, sum = 0;
    for (size_t k = 0; k < p->tiles; k++)
        if (tess_tile_role(p->tile[k]) == TESS_ROLE_SCRATCH) sum += tess_tile_bytes(p->tile[k]);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse) {
        uint64_t bytes = 0;
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (p->role[at[i]] == TESS_ROLE_SCRATCH) bytes += tess_tile_bytes(p->task[k].use[i].tile);
        if (bytes > most) most = bytes;
    }
    return tess_gpus() > 0 ? sum : most;
}

static void count_resident(const tess_program *p, tess_holds *plan)
{
    for (size_t k = 0; k < p->tiles; k++) {
        const tess_role r = tess_tile_role(p->tile[k]);
        if (r != TESS_ROLE_SCRATCH && !tess_program_drops(p->tile[k])) plan->resident[r] += tess_tile_bytes(p->tile[k]);
    }
    plan->resident[TESS_ROLE_SCRATCH] += scratch_of(p);
}

/* Walks the tasks in order: a tile lives from the task that overwrites it to its last use. */
void tess_program_holds(const tess_program *p, tess_holds *plan)
{
    struct live live = {0};
    struct live most_ram = {0};
    const uint32_t *at = p->index;
    uint64_t most = 0;
    before_it(p, &live, plan->on_disk);
    for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse) {
        const tess_task *t = &p->task[k];
        for (unsigned i = 0; i < t->nuse; i++) {
            const tess_tile *tile = t->use[i].tile;
            const tess_role r = p->role[at[i]];
            if (!tess_role_drops(r) || (t->use[i].mode & TESS_RW) != TESS_W) continue;
            begins(&live, tile);
            if (live.role[r] > plan->peak[r]) plan->peak[r] = live.role[r];
            if (live.all > most) most = live.all;
            if (live.ram > most_ram.ram) most_ram = live;
        }
        for (unsigned i = 0; i < t->nuse; i++) {
            const tess_tile *tile = t->use[i].tile;
            if (t->use[i].mode & TESS_LAST) ends(&live, tile);
        }
        plan->sent += sent_by(t);
    }
    plan->peak_total += most;
    plan->peak_ram += most_ram.ram;
    for (int r = 0; r < TESS_ROLE_COUNT; r++) plan->ram[r] += most_ram.in_ram[r];
    plan->flops = p->flops;
    plan->recompute_flops = p->recompute_flops;
    plan->bytes = p->bytes;
    plan->tasks = p->tasks;
    plan->tiles = p->tiles;
    count_resident(p, plan);
}

uint64_t tess_holds_fixed(const tess_holds *plan, int workers)
{
    return plan->resident[TESS_ROLE_INPUT] + plan->resident[TESS_ROLE_SCALAR] +
           (uint64_t)workers * plan->resident[TESS_ROLE_SCRATCH];
}

uint64_t tess_holds_need(const tess_holds *plan, int workers)
{
    return plan->peak_ram + (uint64_t)(workers - 1) * plan->resident[TESS_ROLE_SCRATCH];
}

uint64_t tess_program_fixed(const tess_program *p, int workers)
{
    tess_holds plan = {0};
    count_resident(p, &plan);
    return tess_holds_fixed(&plan, workers);
}
