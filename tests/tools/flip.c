/* Linked into the command, this puts a fault into it, for tests: with FLIP="RANK STEP WHERE CODELET TILE N" in the
 * environment a bit is flipped of what the N-th task of a codelet that writes a tile of this name left in it,
 * on that rank, in that step (both numbers as a user counts: ranks from 0, steps and tasks from 1). WHERE is "any",
 * "disk" (processes with a disk tier) or "ranks" (those of several). */
#include "codelets/codelets.h"
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct {
    int rank, nth;
    long long step;
    char where[16], codelet[64], tile[64];
    tess_body body;
} flip;
static atomic_int met;

static bool is_here(void)
{
    if (!strcmp(flip.where, "disk")) return tess_disk_there();
    return strcmp(flip.where, "ranks") || tess_ranks() > 1;
}

/* Tasks that write one tile come one after the other, whatever runs beside them. */
static void flipped(const tess_work *w)
{
    flip.body(w);
    if (w->env->step + 1 != flip.step || tess_rank() != flip.rank || !is_here()) return;
    for (unsigned i = 0; i < w->nbuf; i++) {
        const tess_use *u = &w->task->use[i];
        if ((u->mode & (TESS_W | TESS_SCRATCH)) != TESS_W || strcmp(tess_tile_label(u->tile), flip.tile)) continue;
        if (atomic_fetch_add(&met, 1) + 1 == flip.nth) *(uint32_t *)w->buf[i].ptr ^= UINT32_C(1) << 22;
        return;
    }
}

__attribute__((constructor)) static void set(void)
{
    tess_codelet *const known[] = {tess_linear_forward, tess_linear_backward_weight, tess_update_adamw};
    const char *text = getenv("FLIP");
    if (!text || sscanf(text, "%d %lld %15s %63s %63s %d", &flip.rank, &flip.step, flip.where, flip.codelet, flip.tile,
                        &flip.nth) != 6)
        return;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i][TESS_F32].name, flip.codelet)) {
            flip.body = known[i][TESS_F32].cpu;
            known[i][TESS_F32].cpu = flipped;
        }
}
