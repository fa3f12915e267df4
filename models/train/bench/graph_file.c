/* The step of a run as an instance for those who study schedules: in JSON, a tile or a task a line, written as the list
 * goes by, and in Graphviz's dot. docs/observe.md explains the fields. */
#include "codelets/codelets.h"
#include "models/text/base/text.h"
#include "models/train/report/plan_file.h"
#include "models/train/run/run.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct writing {
    FILE *f;
    bool tasks; /* the first of them is there */
    uint64_t of_tiles, of_tasks, waits;
    struct measured {
        const tess_codelet *of;
        tess_known_times known;
    } * measured; /* of the codelets so far */
    size_t codelets;
};

/* Returns the mean seconds of such a task in earlier runs, or 0 if they are not known. */
static double measured(struct writing *w, const tess_listed_task *t)
{
    size_t k = 0;
    while (k < w->codelets && w->measured[k].of != t->codelet) k++;
    if (k == w->codelets) {
        w->measured = tess_realloc(w->measured, ++w->codelets * sizeof *w->measured);
        w->measured[k].of = t->codelet;
        tess_known_times_read(t->codelet, &w->measured[k].known);
    }
    return tess_known_times_of(&w->measured[k].known, t->held, t->flops);
}

/* ---- JSON ---- */

static void put(FILE *f, json_t *value)
{
    json_dumpf(value, f, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(value);
}

static void put_text(FILE *f, const char *name, const char *text)
{
    json_t *value = json_string(text);
    fprintf(f, "\"%s\":", name);
    put(f, value ? value : json_string("?")); /* no UTF-8 */
}

/* A number that there may be nothing of. */
static void put_number(FILE *f, const char *name, double x)
{
    if (x > 0) fprintf(f, x < 9e15 && x == (double)(int64_t)x ? ",\"%s\":%.0f" : ",\"%s\":%.9g", name, x);
}

static void json_tile(void *of, uint32_t k, const tess_listed_tile *t)
{
    struct writing *w = of;
    fprintf(w->f, "%s{\"id\":%u,", k ? ",\n" : "", k);
    put_text(w->f, "name", t->name);
    fprintf(w->f, ",\"role\":\"%s\",\"bytes\":%llu,\"home\":\"%s\",\"lasts\":%s}", tess_role_name(t->role),
            (unsigned long long)t->bytes, tess_tier_name(t->home), t->lasts ? "true" : "false");
    w->of_tiles++;
}

static const char *mode_of(int mode)
{
    if (mode & TESS_SCRATCH) return "scratch";
    return (mode & TESS_RW) == TESS_RW ? "RW" : mode & TESS_W ? "W" : "R";
}

static void json_use(FILE *f, const tess_listed_use *use)
{
    fprintf(f, "{\"tile\":%u,\"mode\":\"%s\"%s%s%s}", use->tile, mode_of(use->mode),
            use->mode & TESS_LAST ? ",\"last\":true" : "", use->mode & TESS_LEAVES_RAM ? ",\"leaves_ram\":true" : "",
            use->mode & TESS_LEAVES_GPU ? ",\"leaves_gpu\":true" : "");
}

static void json_task(void *of, uint32_t k, const tess_listed_task *t)
{
    struct writing *w = of;
    FILE *f = w->f;
    fprintf(f, "%s{\"id\":%u,", w->tasks ? ",\n" : "],\n\"tasks\":[\n", k);
    put_text(f, "codelet", t->codelet->name);
    fprintf(f, ",\"dtype\":\"%s\",\"where\":\"%s\",\"backward\":%s", tess_dtype_name(t->codelet->dtype), t->where,
            t->backward ? "true" : "false");
    put_number(f, "flops", t->flops);
    put_number(f, "bytes", t->bytes);
    put_number(f, "parts", t->parts);
    put_number(f, "seconds", t->seconds);
    const double seen = measured(w, t);
    if (seen > 0)
        put_number(f, "measured", seen);
    else
        fputs(",\"measured\":null", f);
    fputs(",\"uses\":[", f);
    for (size_t i = 0; i < t->uses; i++) {
        if (i) fputc(',', f);
        json_use(f, &t->use[i]);
    }
    fputs("],\"predecessors\":[", f);
    for (size_t i = 0; i < t->befores; i++) fprintf(f, i ? ",%u" : "%u", t->before[i]);
    fputs("]}", f);
    w->tasks = true;
    w->of_tasks++, w->waits += t->befores;
}

/* What is known of the step beside its tiles and tasks. `rates` NULL: they are not known. */
static json_t *head(const tess_run *r, const tess_step *step, const tess_rates *rates, int workers, bool placed)
{
    tess_holds p;
    tess_step_holds(step, &p);
    json_t *o = tess_plan_facts(r, step, &p, 0);
    json_object_set_new(o, "rank", json_integer(r->rank));
    json_object_set_new(o, "plan",
                        json_pack("{s:b, s:b, s:b, s:b, s:i}", "placed", placed, "by_layer", r->plan.by_layer, "pairs",
                                  r->plan.pairs, "late", r->plan.late, "workers", workers));
    if (!rates) return o;
    json_object_set_new(o, "rates",
                        json_pack("{s:f, s:f, s:f, s:f, s:f}", "flops", rates->flops, "copy", rates->copy, "read",
                                  rates->read, "write", rates->write, "both", rates->both));
    tess_parallelism parallel;
    tess_step_parallelism_by(step, rates, workers, &parallel);
    const double shared = parallel.work / workers;
    json_object_set_new(o, "bound",
                        json_pack("{s:f, s:f, s:f}", "seconds", shared > parallel.path ? shared : parallel.path,
                                  "task_seconds", parallel.work, "path_seconds", parallel.path));
    json_t *lists = json_array();
    for (int i = 0; i < TESS_WIDTHS; i++)
        json_array_append_new(lists, json_pack("{s:i, s:f}", "cores", 1 << i, "seconds", parallel.seconds[i]));
    json_object_set_new(o, "list_schedules", lists);
    return o;
}

/* Each of an object's members in a line of its own, and the lists behind them. */
static void json_begin(FILE *f, json_t *facts)
{
    const char *name;
    json_t *value;
    fputs("{\"format\":\"tessera step 1\"", f);
    json_object_foreach(facts, name, value)
    {
        fprintf(f, ",\n\"%s\":", name);
        put(f, json_incref(value));
    }
    json_decref(facts);
    fputs(",\n\"tiles\":[\n", f);
}

static void json_end(const struct writing *w)
{
    fputs(w->tasks ? "\n]}\n" : "],\n\"tasks\":[]}\n", w->f);
}

/* ---- dot ---- */

static void dot_tile(void *of, uint32_t k, const tess_listed_tile *t)
{
    (void)k, (void)t;
    ((struct writing *)of)->of_tiles++;
}

static void dot_task(void *of, uint32_t k, const tess_listed_task *t)
{
    struct writing *w = of;
    fprintf(w->f, "t%u [label=\"%u %s\"%s];\n", k, k, t->codelet->name, t->backward ? ", style=filled" : "");
    for (size_t i = 0; i < t->befores; i++) fprintf(w->f, "t%u -> t%u;\n", t->before[i], k);
    w->of_tasks++, w->waits += t->befores;
}

/* ---- the file ---- */

static void put_step(struct writing *w, tess_run *r, const tess_step *step, bool dot, bool placed)
{
    const bool known = r->limits.ram.rates.flops > 0;
    const int workers = r->machine.disk ? r->limits.ram.workers : tess_cores();
    const tess_rates *rates = known ? &r->limits.ram.rates : NULL;
    if (known && !r->machine.disk) tess_step_forecast(step, rates, UINT64_MAX, workers, &r->plan.ram.time);
    if (dot)
        fputs("digraph step {\nnode [shape=box];\n", w->f);
    else
        json_begin(w->f, head(r, step, rates, workers, placed));
    tess_step_list(step, rates, workers,
                   &(tess_lister){.of = w, .tile = dot ? dot_tile : json_tile, .task = dot ? dot_task : json_task});
    if (dot)
        fputs("}\n", w->f);
    else
        json_end(w);
}

static tess_status write_step(tess_run *r, const tess_step *step, bool placed, const char *file, struct writing *w)
{
    TESS_FREED char *fresh = tess_format("%s.new", file);
    tess_status status = TESS_OK;
    *w = (struct writing){.f = fopen(fresh, "w")};
    if (w->f) put_step(w, r, step, !strcmp(strrchr(file, '.'), ".dot"), placed);
    for (size_t k = 0; k < w->codelets; k++) free(w->measured[k].known.time);
    free(w->measured);
    const bool written = w->f && fflush(w->f) == 0 && !ferror(w->f);
    if ((w->f && fclose(w->f) != 0) || !written || rename(fresh, file) != 0) {
        status = tess_error(tess_errno_status(errno), file, "cannot be written: %s", strerror(errno));
        unlink(fresh);
    }
    return status;
}

/* The step as a run would place it, or where it does not fit, as it is without a plan. */
static tess_status place(tess_run *r, const tess_config *c, tess_step **step, bool *placed)
{
    TESS_TRY(tess_run_open(c, 0, r));
    TESS_TRY(tess_run_tiers(r, c->output));
    tess_status status = tess_run_train_step(r, step);
    *placed = status == TESS_OK;
    if (status == TESS_INVALID) {
        tess_note("the step has no plan: %s", tess_error_text());
        tess_error_clear();
        tess_step_free(*step);
        *step = NULL;
        tess_run_close(r); /* homes that were tried are no plan */
        TESS_TRY(tess_run_open(c, 0, r));
        TESS_TRY(tess_run_tiers(r, c->output));
        r->machine.disk = NULL;
        status = tess_run_step(r, true, step);
    }
    if (status == TESS_OK && tess_gpus() == 0 && !(r->limits.ram.rates.flops > 0))
        status = tess_run_rates(r, &r->limits.ram.rates);
    if (tess_gpus() > 0) r->limits.ram.rates = (tess_rates){0}; /* those of a GPU are not measured */
    return status;
}

tess_status tess_graph_export(const tess_config *c, const char *file, FILE *out)
{
    if (!c || !file || !out) return tess_error(TESS_INVALID, c ? file ? "output" : "file" : "configuration", "is NULL");
    const char *end = strrchr(file, '.');
    if (!end || (strcmp(end, ".json") && strcmp(end, ".dot")))
        return tess_error(TESS_INVALID, file, "its name ends in neither .json nor .dot");
    tess_run r = {0};
    tess_step *step = NULL;
    struct writing w;
    bool placed;
    tess_bar_begin("planning the step", 0);
    tess_status status = place(&r, c, &step, &placed);
    if (status == TESS_OK) status = write_step(&r, step, placed, file, &w);
    tess_bar_end();
    if (status == TESS_OK)
        fprintf(out, "%s: %llu tasks over %llu tiles, and %llu times that one waits for another\n", file,
                (unsigned long long)w.of_tasks, (unsigned long long)w.of_tiles, (unsigned long long)w.waits);
    tess_step_free(step);
    tess_run_close(&r);
    return status;
}
