/* Starting and stopping StarPU, and all that a run has: each part is told what it is of the machine, and forgets it at
 * the end. */
#include "runtime/flow/flow.h"
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/machine/machine_impl.h"
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include <stdlib.h>

const tess_machine tess_machine_default; /* all zeros; C has a literal for it */

/* Who is at fault where nothing moves: the slowest that there is. */
static void blame(void)
{
    if (tess_disk_node >= 0)
        tess_patience_blames("disk tier", "is the drive alive? see the kernel's log");
    else if (tess_ranks() > 1)
        tess_patience_blames("ranks", "does another rank hang?");
    else
        tess_patience_blames(tess_gpu_flows()   ? "GPU"
                             : tess_ram_flows() ? "RAM"
                                                : "tasks",
                             "do other programs leave this one no core?");
}

/* Prints a note where cores of this process's share get no worker. */
static void say_idle(const tess_machine *m)
{
    const int cores = tess_share_read()->cores;
    if (!m->workers && cores > STARPU_MAXCPUS && tess_cores() == STARPU_MAXCPUS)
        tess_note("%d of %d cores work: this StarPU drives no more (tools/starpu builds one that drives all)",
                  STARPU_MAXCPUS, cores);
}

/* Where a GPU has all tiles by plan, each task has its place: a policy that predicts times for each worker would do it
 * in vain, at some 10 us a task. */
static const char *policy_for(const tess_rooms *rooms)
{
    return tess_gpus() > 0 && !rooms->gpu_alone ? "dmdas" : "prio";
}

/* StarPU itself, without what it may abort for. */
static tess_status start_starpu(const tess_machine *m, const tess_rooms *rooms)
{
    struct starpu_conf conf;
    TESS_TRY(tess_environment_check());
    starpu_conf_init(&conf);
    TESS_TRY(tess_policy_choose(m->sched ? m->sched : policy_for(rooms), &conf));
    TESS_TRY(tess_environment_enter(m, rooms));
    conf.ncpus = m->workers > 0 ? m->workers : tess_cores();
    /* Else a policy that asks for times has StarPU begin to measure a codelet that has too few measurements, also while
     * a worker is within a task of it, whose end it then takes for 0: 1.3 aborts ("measured >= 0"). Other policies ask
     * for none, and then no file is written at the end. */
    const char *policy = conf.sched_policy_name;
    if (policy && (!strncmp(policy, "dm", 2) || strstr(policy, "heft")) && !getenv("STARPU_CALIBRATE"))
        conf.calibrate = 1;
    say_idle(m);
    tess_perfmodels_check();
    tess_slab_install(m->cpu_bytes, tess_gpus() > 0);
    TESS_TRY(tess_tier_open(m, tess_tiles_on_disk()));
    tess_ram_flow_start(rooms->cpu_tiles, tess_gpu_flow_leaves_ram);
    const int lock = tess_perfmodels_lock();
    blame();
    tess_patience_describes(m->folder, tess_standstill_describe);
    tess_patience_start(0); /* StarPU may measure for long, whatever patience the run has */
    tess_wait_begin("the main thread", "StarPU's start");
#ifdef STARPU_USE_FXT
    starpu_profiling_set_id(tess_rank()); /* a file of its own trace for each rank, whoever carries messages */
#endif
    int rc = starpu_init(&conf);
    tess_perfmodels_unlock(lock);
    tess_wait_end();
    if (rc) return tess_error(TESS_FAILED, "starpu", "did not start (error %d; is any CPU left to this process?)", -rc);
    return TESS_OK;
}

static tess_status start_tiers(const tess_machine *m, const tess_rooms *rooms)
{
    if (starpu_cpu_worker_get_count() == 0)
        return tess_error(TESS_INVALID, "STARPU_NCPU", "leaves no CPU worker, at least 1 is needed");
    tess_launches_want(m->gpu_graphs);
    TESS_TRY(tess_gpu_start());
    TESS_TRY(tess_gpu_flow_start(rooms->gpu_tiles));
    TESS_TRY(tess_tier_register());
    /* The flow of RAM waits for choices; a GPU's stay there. */
    tess_choices_count(tess_disk_there() && tess_ram_flows() && tess_gpu_workers() == 0);
    const bool counts = tess_ram_flows() || tess_gpu_flows();
    tess_starved_start(tess_gpu_workers() > 0 ? tess_gpu_workers() : tess_workers(), counts);
    blame();
    return TESS_OK;
}

tess_status tess_machine_check(const tess_machine *m)
{
    if (m->workers < 0)
        return tess_error(TESS_INVALID, "machine", "%d workers (expected 1 or more, or 0: one for each core)",
                          m->workers);
    if (!(m->patience >= 0))
        return tess_error(TESS_INVALID, "machine", "a patience of %g seconds (expected more than 0, or 0: a minute)",
                          m->patience);
    return TESS_OK;
}

/* What is wrong before anything starts. */
static tess_status check_start(const tess_machine *m, tess_carriers *carrier)
{
    tess_cpu_kind kind;
    const char *cap;
    TESS_TRY(tess_machine_check(m));
    TESS_TRY(tess_cpu_cap(&kind, &cap));
    if (tess_session()) return tess_error(TESS_INVALID, "tess_start", "it runs already (tess_stop comes first)");
    return tess_environment_carrier(m->carrier, carrier);
}

static tess_status start_or_leave(const tess_machine *m, const tess_rooms *rooms)
{
    const tess_status status = start_starpu(m, rooms);
    if (status == TESS_OK) return status;
    tess_patience_stop();
    tess_ram_flow_stop();
    tess_tier_close();
    tess_environment_leave();
    return status;
}

/* Meets the other ranks where any of them has a GPU; false: none has. A simulated GPU is not measured. */
static bool meets_for_gpus(void)
{
#ifdef TESS_SIMULATED
    return false;
#else
    int64_t gpus = tess_gpus();
    if (tess_ranks() == 1 || tess_ranks_pretended()) return false;
    tess_ranks_most(&gpus, 1);
    return gpus > 0;
#endif
}

/* StarPU's first start on a machine measures the copies of all its GPUs, with a context on each of them. So one rank
 * of a machine starts it before the others, which read what that one measured, and no rank takes memory for its tiles
 * before all have started: the contexts of others would be missing in it. All ranks call it, also those that will not
 * start. */
static tess_status start_in_turn(const tess_machine *m, const tess_rooms *rooms, tess_status ready)
{
    int here;
    const bool meets = meets_for_gpus(), first = !meets || tess_rank_here(&here) == 0;
    tess_status status = ready;
    if (status == TESS_OK && first) status = start_or_leave(m, rooms);
    if (meets) meets_for_gpus();
    if (status == TESS_OK && !first) status = start_or_leave(m, rooms);
    if (meets) meets_for_gpus();
    return status;
}

/* All that this rank does by itself, with StarPU. */
static tess_status start_rest(const tess_machine *m, const tess_rooms *rooms)
{
    tess_progress_begin();
    const tess_status status = start_tiers(m, rooms);
    if (status != TESS_OK) {
        tess_stop();
        return status;
    }
    tess_patience_start(m->patience);
    tess_tasks_start(m->profile);
    tess_idle_start();
    starpu_profiling_status_set(m->profile ? STARPU_PROFILING_ENABLE : STARPU_PROFILING_DISABLE);
    tess_profile_reset();
    return TESS_OK;
}

tess_status tess_start_rooms(const tess_machine *machine, const tess_rooms *rooms)
{
    static const tess_rooms none;
    tess_machine m = machine ? *machine : TESS_MACHINE_DEFAULT;
    tess_carriers carrier;
    if (!rooms) rooms = &none;
    if (rooms->cpu_bytes) m.cpu_bytes = rooms->cpu_bytes;
    tess_ranks_say_unjoined();
    tess_status status = start_in_turn(&m, rooms, check_start(&m, &carrier));
    if (status == TESS_OK) status = start_rest(&m, rooms);
    /* What carries messages starts on all ranks or on none: of one that could not start, the others hear afterwards. */
    if (!tess_messages_meet(status == TESS_OK)) return status;
    const unsigned lanes = rooms->lanes ? rooms->lanes : 1;
    status = tess_messages_start(carrier, lanes, tess_workers() + tess_gpu_workers());
    if (status != TESS_OK) tess_stop();
    return status;
}

tess_status tess_start(const tess_machine *m)
{
    return tess_start_rooms(m, NULL);
}

void tess_stop(void)
{
    char unheard[TESS_FAULT_TEXT];
    if (!tess_session()) return;
    tess_tasks_wait(0);
    tess_wait_begin("the main thread", "StarPU's stop");
    starpu_task_wait_for_all();
    tess_wait_end();
    tess_tiles_stop();
    tess_wait_begin("the main thread", "StarPU's stop");
    tess_messages_stop();
    tess_idle_stop();
    tess_gpu_flow_stop();
    tess_gpu_stop();
    starpu_shutdown();
    tess_wait_end();
    tess_patience_stop();
    tess_choices_count(false);
    tess_ram_flow_stop();
    tess_tier_close();
    tess_tasks_stop();
    tess_slab_release();
    tess_environment_leave();
    tess_fault_take(unheard); /* no call waited for it */
    tess_progress_end();
}

int tess_workers(void)
{
    return tess_session() ? (int)starpu_cpu_worker_get_count() : 0;
}

const char *tess_starpu_version(void)
{
    static char text[32];
    int major, minor, release;
    starpu_get_version(&major, &minor, &release);
    snprintf(text, sizeof text, "%d.%d.%d", major, minor, release);
    return text;
}

const char *tess_starpu_limits(void)
{
    static char text[128];
    snprintf(text, sizeof text, "at most %d CPU workers, %d workers in all, %d memory nodes", STARPU_MAXCPUS,
             STARPU_NMAXWORKERS, STARPU_MAXNODES);
    return text;
}
