/* A step of a program's own under a cap on RAM. The command chooses more: see models/train/run/choose.c. */
#include "graph.h"

tess_status tess_step_fit(tess_step *s, unsigned away, tess_machine *m)
{
    if (!m) return tess_error(TESS_INVALID, "machine", "is NULL (tess_step_fit fills it in)");
    TESS_TRY(tess_machine_check(m));
    if (tess_session())
        return tess_error(TESS_INVALID, "step",
                          "comes too late to be placed (tess_step_fit fills in the machine that "
                          "tess_start takes)");
    const int workers = m->workers ? m->workers : tess_cores();
    const tess_dtype t = tess_step_dtype(s);
    const tess_place_conf conf = {.ram = m->cpu_bytes ? m->cpu_bytes : tess_ram_free() / 8 * 7,
                                  .workers = workers,
                                  .worker_bytes = tess_mm_bytes(2, t) - tess_mm_bytes(1, t),
                                  .away = away};
    tess_placement placed;
    TESS_TRY(tess_step_place(s, &conf, &placed));
    if (placed.disk && !m->disk)
        return tess_error(
            TESS_INVALID, "machine", "has no disk, where %s of the tiles are to rest beside %s of RAM (%s)",
            tess_human_bytes((double)placed.disk), tess_human_bytes((double)conf.ram), "name a directory for it");
    m->cpu_bytes = conf.ram;
    m->cpu_tiles = placed.room;
    return TESS_OK;
}
