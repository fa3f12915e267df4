/* Which steps are traced, and what a trace says of its run. Rank 0 writes OUTPUT/trace.json, another
 * OUTPUT/trace-R.json, all on rank 0's clock; in the end rank 0 adds the others' to its own. */
#include "models/train/report/tracing.h"
#include "models/text/base/directories.h"
#include <dirent.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *path_of(const tess_tracing *t, int rank)
{
    return rank ? tess_format("%s/trace-%d.json", t->output, rank) : tess_format("%s/trace.json", t->output);
}

/* What explain needs to know of the run beside what happened: what the machine can do, what was planned, the caps. */
static char *about(const tess_run *r, const tess_holds *plan, const tess_measure *m)
{
    const tess_placement *p = &r->plan.ram;
    json_t *o = json_pack("{s:i, s:i, s:s, s:i, s:i, s:s, s:I}", "rank", tess_rank(), "ranks", tess_ranks(), "host",
                          tess_share_read()->host, "cpu_workers", tess_workers(), "gpu_workers", tess_gpus(), "dtype",
                          tess_run_dtype_name(r->dtype), "tokens", (json_int_t)tess_run_tokens(r));
    json_object_set_new(o, "flops", json_real(plan->flops + plan->recompute_flops));
    json_object_set_new(o, "matrix_rate", json_real(m->yardstick / tess_ranks()));
    json_object_set_new(o, "disk", json_boolean(r->machine.disk));
    json_object_set_new(o, "cpu_cap", json_integer((json_int_t)r->machine.cpu_bytes));
    json_object_set_new(o, "gpu_room", json_integer((json_int_t)r->plan.gpu.room));
    tess_rates rates;
    if (tess_run_rates_known(r, &rates))
        json_object_update_new(o, json_pack("{s:f, s:f}", "flops_rate", rates.flops, "copy_rate", rates.copy));
    if (rates.read > 0 && rates.write > 0)
        json_object_update_new(
            o, json_pack("{s:f, s:f, s:f}", "read_rate", rates.read, "write_rate", rates.write, "both", rates.both));
    if (r->machine.disk)
        json_object_update_new(o, json_pack("{s:f, s:f, s:f, s:f, s:I}", "paper_seconds", p->time.seconds, "paper_work",
                                            p->time.work, "paper_read", p->time.read, "paper_write", p->time.write,
                                            "bound_bytes", (json_int_t)p->bound));
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(o);
    return text;
}

static bool is_others(const char *name)
{
    const size_t digits = strncmp(name, "trace-", 6) ? 0 : strspn(name + 6, "0123456789");
    return digits && !strcmp(name + 6 + digits, ".json");
}

/* Removes the traces that ranks above 0 left in an earlier run; any of them may be missing. */
static void remove_others(const tess_tracing *t)
{
    DIR *dir = opendir(t->output);
    for (struct dirent *d; dir && (d = readdir(dir));)
        if (is_others(d->d_name)) unlinkat(dirfd(dir), d->d_name, 0);
    if (dir) closedir(dir);
}

static tess_status make_output(const tess_tracing *t)
{
    if (tess_rank()) return TESS_OK;
    if (!tess_dirs_make(t->output, NULL))
        return tess_error(tess_errno_status(errno), t->output, "cannot be created: %s (see output)", strerror(errno));
    remove_others(t);
    return TESS_OK;
}

tess_status tess_tracing_open(tess_tracing *t, const tess_run *r, const tess_holds *plan, const tess_measure *m,
                              int64_t done)
{
    const int64_t *steps = r->c->trace.steps;
    *t = (tess_tracing){.first = steps[0], .last = steps[1], .any = done >= steps[1]};
    if (!steps[1] || t->any) return TESS_OK;
    t->output = r->c->output;
    tess_status status = tess_ranks_agree(make_output(t));
    if (status != TESS_OK) return t->output = NULL, status;
    double origin = tess_seconds();
    const double clock = tess_ranks_clock();
    tess_ranks_tell(&origin, sizeof origin);
    char *path = path_of(t, tess_rank()), *facts = about(r, plan, m);
    status = tess_trace_open(
        &(tess_trace_conf){.path = path, .rank = tess_rank(), .origin = origin, .clock = clock, .about = facts});
    t->open = status == TESS_OK;
    free(path);
    free(facts);
    status = tess_ranks_agree(status);
    if (status != TESS_OK) t->output = NULL; /* the error says it all */
    return status;
}

void tess_tracing_clear(const char *output)
{
    const tess_tracing t = {.output = output};
    char *path = path_of(&t, 0);
    unlink(path);
    free(path);
    remove_others(&t);
}

void tess_tracing_begin(tess_tracing *t, int64_t step)
{
    if (t->open && step >= t->first && step <= t->last) tess_trace_begin();
}

void tess_tracing_end(tess_tracing *t, int64_t step, double begin, double end)
{
    if (!t->open || step < t->first || step > t->last) return;
    tess_trace_end(step, begin, end);
    t->any = true;
    if (step == t->last) tess_tracing_merge(t);
}

void tess_tracing_merge(tess_tracing *t)
{
    if (!t->open) return;
    int others = 0;
    TESS_FREED char **path = tess_alloc((size_t)tess_ranks() * sizeof *path);
    t->open = false;
    if (tess_rank()) tess_trace_close(NULL, 0);
    tess_ranks_barrier();
    for (int r = 1; r < tess_ranks() && !tess_rank(); r++)
        if (tess_rank_is_there(r)) path[others++] = path_of(t, r);
    if (!tess_rank()) tess_trace_close((const char *const *)path, (size_t)others);
    for (int k = 0; k < others; k++) unlink(path[k]), free(path[k]);
}

void tess_tracing_close(tess_tracing *t)
{
    if (t->open) tess_trace_close(NULL, 0);
    t->open = false;
    if (t->output && !t->any && !tess_rank())
        tess_note("trace.steps: the run ended before step %lld, so %s/trace.json holds none", (long long)t->first,
                  t->output);
    *t = (tess_tracing){0};
}
