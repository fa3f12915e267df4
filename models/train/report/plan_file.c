/* Writing plan.json, see plan_file.h. */
#include "models/train/report/plan_file.h"
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* A number that there may be nothing of. */
static void set(json_t *to, const char *name, double x)
{
    if (x > 0)
        json_object_set_new(to, name, x < 9e15 && x == (double)(int64_t)x ? json_integer((int64_t)x) : json_real(x));
}

/* Text of the system's, which may be anything. */
static void say(json_t *to, const char *name, const char *text)
{
    json_t *value = text && *text ? json_string(text) : NULL;
    if (value) json_object_set_new(to, name, value);
}

static json_t *model_of(const tess_run *r)
{
    json_t *of = json_object(), *fields = json_loads(tess_model_json(r->model), 0, NULL);
    say(of, "type", json_string_value(json_object_get(fields, "model_type")));
    set(of, "parameters", (double)tess_graph_param_elements(r->g));
    set(of, "trained", (double)tess_graph_trained_elements(r->g));
    say(of, "dtype", tess_run_dtype_name(r->dtype));
    json_decref(fields);
    return of;
}

static json_t *machine_of(const tess_run *r, double yardstick)
{
    json_t *of = json_object();
    tess_hardware h;
    tess_hardware_read(&h);
    say(of, "host", tess_share_read()->host);
    say(of, "cpu", h.cpu_name);
    say(of, "vectors", h.isa);
    set(of, "cores", tess_cores());
    set(of, "ram_bytes", (double)h.ram_bytes);
    set(of, "gpus", tess_gpus());
    if (tess_gpus()) say(of, "gpu", tess_gpu_support());
    set(of, "matrix_rate", yardstick);
    say(of, "disk", r->machine.disk);
    set(of, "disk_read_rate", r->limits.ram.rates.read);
    set(of, "disk_write_rate", r->limits.ram.rates.write);
    say(of, "starpu", tess_starpu_version());
    return of;
}

/* What the run may hold on each tier; without a cap, what is free, less a margin. */
static json_t *caps_of(const tess_run *r)
{
    json_t *of = json_object();
    const uint64_t gpu = r->plan.gpu.memory ? r->plan.gpu.memory : r->caps.gpu;
    set(of, "gpu", gpu ? (double)tess_gpu_bytes(gpu) : 0); /* of all of them, as metrics count */
    set(of, "cpu", (double)(r->machine.cpu_bytes ? r->machine.cpu_bytes : r->caps.cpu ? tess_run_limit(r) : 0));
    set(of, "disk", r->machine.disk ? (double)r->plan.disk_bytes : 0);
    return of;
}

static json_t *estimate_of(const tess_run *r, const tess_step *step, const tess_holds *p)
{
    json_t *of = json_object();
    tess_rates rates;
    tess_forecast time = r->plan.ram.time;
    if (tess_gpus())
        time = (tess_forecast){0}; /* whose rate is not measured */
    else if (!r->machine.disk && !(time.seconds > 0) && tess_run_rates_known(r, &rates))
        tess_step_forecast(step, &rates, UINT64_MAX, tess_cores(), &time);
    set(of, "seconds", time.seconds);
    set(of, "work_seconds", time.work);
    if (!r->machine.disk) set(of, "cpu_bytes", (double)p->peak_ram);
    if (r->machine.disk) {
        set(of, "disk_bytes", (double)r->plan.ram.disk);
        set(of, "read_seconds", time.read);
        set(of, "write_seconds", time.write);
        set(of, "disk_read_bytes", (double)r->plan.ram.read);
        set(of, "disk_write_bytes", (double)r->plan.ram.written);
        set(of, "disk_bound_bytes", (double)r->plan.ram.bound);
    }
    if (r->plan.gpu.room) {
        set(of, "gpu_read_bytes", (double)r->plan.gpu.read);
        set(of, "gpu_write_bytes", (double)r->plan.gpu.written);
        set(of, "gpu_bound_bytes", (double)r->plan.gpu.bound);
    }
    return of;
}

json_t *tess_plan_facts(const tess_run *r, const tess_step *step, const tess_holds *plan, double yardstick)
{
    return json_pack("{s:i, s:o, s:o, s:o, s:o}", "ranks", tess_ranks(), "model", model_of(r), "machine",
                     machine_of(r, yardstick), "caps", caps_of(r), "estimate", estimate_of(r, step, plan));
}

void tess_plan_file_write(const tess_run *r, const tess_step *step, const tess_holds *plan, double yardstick)
{
    TESS_FREED char *path = tess_format("%s/plan.json", r->c->output);
    TESS_FREED_JSON json_t *root = tess_plan_facts(r, step, plan, yardstick);
    TESS_FREED char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    if (tess_write_text(path, text) == TESS_OK) return;
    tess_note("%s (nothing but the report depends on it)", tess_error_text());
    tess_error_clear();
}
