/* A step within what a machine has: the path that a program's step and the command's take. */
#include "graph/step/step_impl.h"
#include "runtime/runtime_messages.h"

enum { MiB = 1 << 20, AHEAD = 50000000 }; /* elements, as DeepSpeed prefetches */

static uint64_t cap_of(const tess_machine *m)
{
    const uint64_t ram = m->cpu_bytes ? 0 : tess_ram_free();
    return m->cpu_bytes ? m->cpu_bytes : ram - ram / 8;
}

void tess_limits_of(const tess_machine *m, tess_dtype t, tess_limits *l)
{
    *l = (tess_limits){.gpu = {.all = true,
                               .messages = tess_messages_can_gpu(m->carrier),
                               .states = m->away & TESS_AWAY_MOMENTS ? 0 : 1},
                       .ram = {.ram = m->disk ? cap_of(m) : 0,
                               .workers = m->workers ? m->workers : tess_cores(),
                               .worker_bytes = tess_mm_bytes(2, t) - tess_mm_bytes(1, t),
                               .away = m->away,
                               .rates = m->rates},
                       .whole = m->disk ? 0 : m->cpu_bytes,
                       .ahead = AHEAD * tess_dtype_size(t)};
}

unsigned tess_lanes(const tess_grid *g)
{
    const unsigned data = g->data == 1 ? 0 : tess_grid_near(g, tess_ranks_near()) > 1 ? 4 : 2;
    return g->pipeline > 1 ? TESS_MESSAGE_LANES : g->tensor > 1 || !data ? 1 + data : data;
}

uint64_t tess_disk_room(uint64_t bytes)
{
    return (bytes + bytes / 16) / MiB * MiB + 64 * MiB;
}

uint64_t tess_step_room(const tess_step *s, const tess_machine *m, const tess_limits *limits, bool gpu_planned)
{
    tess_holds h;
    tess_step_holds(s, &h);
    const uint64_t fixed = tess_holds_fixed(&h, limits->ram.workers) + limits->ram.taken;
    if (m->cpu_bytes && (gpu_planned || !tess_gpus())) return m->cpu_bytes > fixed ? m->cpu_bytes - fixed : 0;
    return tess_ranks() > 1 ? h.peak_ram - tess_holds_fixed(&h, 1) + limits->ahead : 0;
}

tess_status tess_step_fit_within(tess_tensor *output, const tess_step_conf *conf, const tess_machine *m,
                                 const tess_limits *limits, tess_step **step, tess_plan *plan)
{
    TESS_TRY(tess_step_lay_out(output, conf, limits, step, plan));
    plan->workers = limits->ram.workers;
    plan->pipeline = output->g->conf.grid.pipeline > 1;
    plan->lanes = tess_lanes(&output->g->conf.grid);
    plan->cpu_bytes = m->disk ? limits->ram.ram : m->cpu_bytes;
    plan->disk_bytes = !plan->ram.disk ? 0 : m->disk_bytes ? m->disk_bytes : tess_disk_room(plan->ram.disk);
    if (!m->disk) plan->ram.room = tess_step_room(*step, m, limits, plan->gpu.room > 0);
    return TESS_OK;
}

/* What no cap is asked about: a program's machine may lack it, or its disk. */
static tess_status check_ram(const tess_step *s, const tess_machine *m, int workers)
{
    tess_holds h;
    tess_step_holds(s, &h);
    const uint64_t needed = tess_holds_need(&h, workers), limit = m->cpu_bytes ? m->cpu_bytes : tess_ram_free();
    if (needed <= limit) return TESS_OK;
    return tess_error(TESS_INVALID, "machine", "has no disk, and the step needs %s of RAM, but %s is %s (%s)",
                      tess_human_bytes((double)needed), m->cpu_bytes ? "the cap" : "free",
                      tess_human_bytes((double)limit), "name a directory for what does not fit");
}

static tess_status check_disk(const tess_machine *m, const tess_plan *p)
{
    const uint64_t needed = tess_disk_room(p->ram.disk);
    if (!p->ram.disk || !m->disk_bytes || needed <= m->disk_bytes) return TESS_OK;
    return tess_error(
        TESS_INVALID, "machine", "%s of disk, but the step needs %s there (disk_bytes of %lluMiB would do)",
        tess_human_bytes((double)m->disk_bytes), tess_human_bytes((double)needed), (unsigned long long)(needed / MiB));
}

static tess_status check(const tess_machine *m)
{
    const unsigned all =
        TESS_AWAY_WEIGHTS | TESS_AWAY_MASTERS | TESS_AWAY_MOMENTS | TESS_AWAY_GRADIENTS | TESS_AWAY_ACTIVATIONS;
    TESS_TRY(tess_machine_check(m));
    if (m->away & ~all)
        return tess_error(TESS_INVALID, "machine", "tiles of kind %#x are away (expected TESS_AWAY_...)", m->away);
    if (m->away && !m->disk)
        return tess_error(TESS_INVALID, "machine", "has no disk, where tiles are to rest (name a directory for it)");
    if (tess_session())
        return tess_error(TESS_INVALID, "step", "comes too late to be placed (tess_start_plan needs its plan)");
    return TESS_OK;
}

/* What would do, where the plan's own error is the lacking rank's alone, or names no cap. */
static tess_status too_little(tess_status status, const tess_limits *l, const tess_plan *p)
{
    if (status != TESS_INVALID) return status;
    if (p->gpu.needed)
        return tess_error(status, "machine",
                          "%s of a GPU's memory for tiles, but the step needs %s (gpu_bytes of "
                          "%lluMiB would do)",
                          tess_human_bytes((double)l->gpu.memory), tess_human_bytes((double)p->gpu.needed),
                          (unsigned long long)(tess_gpu_cap(p->gpu.needed) / MiB + 1));
    if (p->ram.needed && tess_ranks() > 1)
        return tess_error(status, "RAM", "%s, but the least a step can work with is %s on the rank that needs the most",
                          tess_human_bytes((double)l->ram.ram), tess_human_bytes((double)p->ram.needed));
    return status;
}

/* Rates are measured, and what is chosen by them may have more on disk than what moves the fewest bytes. */
static tess_status fit(tess_tensor *loss, const tess_step_conf *conf, const tess_machine *m, tess_step **step,
                       tess_plan *plan)
{
    tess_limits l;
    tess_limits_of(m, loss->g->conf.dtype, &l);
    l.gpu.memory = tess_gpu_tiles(m->gpu_bytes);
    TESS_TRY(too_little(tess_step_fit_within(loss, conf, m, &l, step, plan), &l, plan));
    if (!m->disk) {
        tess_step_leave_disk(*step);
        return tess_ranks_agree(check_ram(*step, m, l.ram.workers));
    }
    tess_status status = tess_ranks_agree(check_disk(m, plan));
    if (status == TESS_OK || !(l.ram.rates.flops > 0)) return status;
    tess_step_free(*step);
    l.ram.rates = (tess_rates){0};
    TESS_TRY(tess_step_fit_within(loss, conf, m, &l, step, plan));
    return tess_ranks_agree(check_disk(m, plan));
}

tess_status tess_step_fit(tess_tensor *loss, const tess_step_conf *conf, const tess_machine *machine, tess_step **step,
                          tess_plan *plan)
{
    static const tess_machine preset;
    if (!step || !plan || !conf)
        return tess_error(TESS_INVALID, "tess_step_fit", "%s is NULL", !conf ? "conf" : !step ? "step" : "plan");
    *step = NULL;
    if (!loss) return tess_check_null_output();
    if (!conf->train)
        return tess_error(TESS_INVALID, "tess_step_fit", "the step does not train (tess_step_new makes such a step)");
    if (!machine) machine = &preset;
    *plan = (tess_plan){0};
    TESS_TRY(tess_ranks_agree(check(machine)));
    const tess_status status = fit(loss, conf, machine, step, plan);
    if (status == TESS_OK) return TESS_OK;
    tess_step_free(*step);
    *step = NULL;
    return status;
}

tess_status tess_start_plan(const tess_machine *machine, const tess_plan *plan)
{
    tess_machine m = machine ? *machine : TESS_MACHINE_DEFAULT;
    if (!plan) return tess_start(&m);
    m.disk_bytes = plan->disk_bytes;
    if (!plan->ram.disk) m.disk = NULL;
    return tess_start_rooms(&m, &(tess_rooms){.cpu_bytes = plan->cpu_bytes,
                                              .cpu_tiles = plan->ram.room,
                                              .gpu_tiles = plan->gpu.room,
                                              .gpu_alone = plan->gpu.room && !plan->gpu.read && !plan->gpu.written,
                                              .pipeline = plan->pipeline,
                                              .lanes = plan->lanes});
}
