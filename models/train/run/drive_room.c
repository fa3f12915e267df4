/* Room for what a run holds and writes: RAM under a cap that may be a larger machine's, and on the drives the disk
 * tier, the model, the checkpoints. It is looked for before the first step, since what is full behind the last one
 * costs all of them. */
#include "models/networks/networks.h"
#include "models/train/run/run.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What is free where a path is, or will be made. */
typedef struct drive {
    dev_t number;
    uint64_t free;
} drive;

static bool drive_of(const char *path, drive *d)
{
    TESS_FREED char *at = tess_strdup(path);
    struct stat st;
    bool there;
    while (!(there = !stat(at, &st)) && *at && strcmp(at, ".")) {
        char *slash = strrchr(at, '/');
        if (slash == at)
            at[1] = 0;
        else if (slash)
            *slash = 0;
        else
            strcpy(at, "."); /* a name is never empty */
    }
    if (there) *d = (drive){st.st_dev, tess_drive_free(at)};
    return there;
}

/* ---- the disk tier ---- */

static tess_status too_little(tess_run *r, const char *dir, uint64_t needed, const drive *d, unsigned dirs)
{
    char would[96] = "";
    const bool alone = !tess_ranks_launched() || tess_ranks() == 1; /* the others look for no plan that fits here */
    const uint64_t least = tess_run_disk_least(r) / dirs, cpu = alone ? tess_run_cpu_for(r, d->free * dirs) : 0;
    if (r->caps.disk && least <= d->free)
        snprintf(would, sizeof would, "memory.disk=%lluMiB would do", (unsigned long long)(least * dirs >> 20));
    else if (cpu)
        snprintf(would, sizeof would, "memory.cpu=%lluMiB would do, or another directory",
                 (unsigned long long)(tess_run_cap(cpu) >> 20));
    return tess_error(TESS_INVALID, dir, "the disk tier needs %s there, %s are free (%s)",
                      tess_human_bytes((double)needed), tess_human_bytes((double)d->free),
                      *would ? would : "name another directory in memory.path");
}

tess_status tess_run_tier_room(tess_run *r)
{
    const char *paths = r->machine.disk;
    unsigned dirs = 1;
    tess_status status = TESS_OK;
    if (!paths || !r->plan.disk_bytes) return TESS_OK;
    for (const char *p = paths; *p; p++) dirs += *p == ':';
    const uint64_t needed = r->plan.disk_bytes / dirs;
    for (const char *p = paths; *p && status == TESS_OK; p += strcspn(p, ":"), p += *p == ':') {
        TESS_FREED char *dir = tess_format("%.*s", (int)strcspn(p, ":"), p);
        drive d;
        if (drive_of(dir, &d) && needed > d.free) status = too_little(r, dir, needed, &d, dirs);
    }
    return status;
}

/* ---- RAM ---- */

tess_status tess_run_ram_room(const tess_run *r, const tess_holds *plan)
{
    tess_hardware h;
    tess_hardware_read(&h);
    const uint64_t ram = h.ram_bytes / (uint64_t)tess_share_read()->ranks, cap = r->caps.cpu;
    const uint64_t whole = tess_holds_need(plan, tess_cores()) + r->beside;
    const uint64_t needed = r->machine.disk && cap < whole ? cap : whole;
    const char *a_rank = tess_share_read()->ranks > 1 ? " a rank" : "";
    if (!ram || cap <= ram) return TESS_OK;
    if (needed > ram)
        return tess_error(TESS_INVALID, r->caps.cpu_key,
                          "%s, of them the run takes %s, but this machine has %s%s (%s=%lluMiB%s would do)",
                          tess_human_bytes((double)cap), tess_human_bytes((double)needed),
                          tess_human_bytes((double)ram), a_rank, r->caps.cpu_key,
                          (unsigned long long)((ram - ram / 16) >> 20),
                          r->machine.disk ? "" : " with memory.path=DIR for the rest");
    if (!tess_rank())
        tess_note("%s: %s is more than this machine has, %s%s", r->caps.cpu_key, tess_human_bytes((double)cap),
                  tess_human_bytes((double)ram), a_rank);
    return TESS_OK;
}

/* ---- what stays ---- */

static uint64_t model_bytes(const tess_run *r, int64_t values)
{
    return (uint64_t)values * (tess_run_save_dtype(r) == TESS_SAVE_FP32 ? 4 : 2);
}

/* Of one: masters, and the moments as they are kept. */
static uint64_t checkpoint_bytes(const tess_run *r, int64_t values)
{
    static const int bytes[] = {[TESS_STATES_FP32] = 4, [TESS_STATES_BF16] = 2, [TESS_STATES_8BIT] = 1};
    return 4 * (uint64_t)values + (uint64_t)(bytes[r->c->optimizer_states] * tess_graph_moments(r->g));
}

/* How many checkpoints there are beside those that lie there already: a new one is whole before an old one goes. */
static int64_t checkpoints(const tess_config *c, bool resumes)
{
    const int64_t most = c->checkpoint.keep + 1 + c->checkpoint.keep_best;
    if (!c->checkpoint.dir) return 0;
    if (resumes || !c->checkpoint.every) return 1 + (c->checkpoint.keep_best && !resumes);
    const int64_t made =
        c->steps == TESS_CONFIG_AUTO ? most : (c->steps - 1) / tess_config_steps(c->checkpoint.every, c->steps) + 1;
    return made < most ? made : most;
}

bool tess_run_lacks_room(const tess_run *r, bool resumes, char text[static 512])
{
    const tess_config *c = r->c;
    const int64_t values = tess_model_adapted(r->model) ? tess_graph_trained_elements(r->g)
                                                        : tess_graph_param_elements(r->g),
                  count = checkpoints(c, resumes);
    const uint64_t model = model_bytes(r, values), states = (uint64_t)count * checkpoint_bytes(r, values);
    drive of_model, of_states = {0};
    if (!drive_of(c->output, &of_model) || (count && !drive_of(c->checkpoint.dir, &of_states))) return false;
    const bool one = count && of_model.number == of_states.number;
    char kept[64] = "";
    if (count) snprintf(kept, sizeof kept, "%lld checkpoint%s", (long long)count, count > 1 ? "s" : "");
    if (count && states + (one ? model : 0) > of_states.free)
        snprintf(text, 512, "%.200s: %s%s will take %s, %s are free there (less: checkpoint.keep, optimizer_states)",
                 c->checkpoint.dir, one ? "the model and " : "", kept,
                 tess_human_bytes((double)(states + (one ? model : 0))), tess_human_bytes((double)of_states.free));
    else if (model > of_model.free)
        snprintf(text, 512, "%.200s: the model will take %s, %s are free there (less: save_dtype=bf16)", c->output,
                 tess_human_bytes((double)model), tess_human_bytes((double)of_model.free));
    else
        return false;
    return true;
}

tess_status tess_run_room(tess_run *r, const tess_holds *plan, bool resumes)
{
    char text[512];
    TESS_TRY(tess_run_ram_room(r, plan));
    TESS_TRY(tess_run_tier_room(r));
    if (!tess_rank() && tess_run_lacks_room(r, resumes, text)) tess_note("%s", text);
    return TESS_OK;
}
