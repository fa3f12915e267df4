/* What another setting would change, on paper: the run's own configuration is planned again with it, at the rates that
 * the run went by, and nothing runs. */
#include "explain_impl.h"
#include <stdlib.h>
#include <string.h>

enum { MiB = 1 << 20, MOST_TASKS = 20000 /* beyond, a plan takes minutes */ };

/* The seconds of a step on paper with one more setting, or none. */
static tess_status forecast(const char *file, const char *setting, const tess_about *a, double *seconds, int64_t *cap,
                            bool *recomputes)
{
    tess_config c;
    tess_run r = {0};
    tess_step *step = NULL;
    tess_plan plan;
    const char *unused;
    tess_status status;
    TESS_TRY_DONE(tess_config_load(file, &setting, setting ? 1 : 0, &c));
    c.quiet = true; /* the run has said it */
    TESS_TRY_DONE(tess_config_resolve(&c, tess_ranks()));
    TESS_TRY_DONE(tess_run_open(&c, tess_rank(), &r));
    if (a->flops_rate > 0 && a->copy_rate > 0 && a->read_rate > 0 && a->write_rate > 0)
        r.rates = (tess_rates){.flops = a->flops_rate,
                               .copy = a->copy_rate,
                               .read = a->read_rate,
                               .write = a->write_rate,
                               .both = a->both};
    TESS_TRY_DONE(tess_run_tiers(&r, NULL));
    if (!r.disk) TESS_TRY_DONE(tess_run_rates(&r, &r.conf.rates));
    r.conf.workers = a->workers;
    *cap = (int64_t)tess_run_cpu_cap(&c, &unused);
    *recomputes = c.activation_checkpointing.enabled;
    if (!setting) {
        TESS_TRY_DONE(tess_run_step(&r, true, &step));
        tess_step_plan(step, &plan);
        tess_step_free(step);
        step = NULL;
        if (plan.tasks > MOST_TASKS) {
            status = tess_error(TESS_FAILED, "plan", "its %llu tasks would take long", (unsigned long long)plan.tasks);
            goto done;
        }
    }
    const bool had_disk = r.disk;
    TESS_TRY_DONE(tess_run_train_step(&r, &step));
    tess_forecast time = r.place.time;
    if (!r.disk || !had_disk) tess_step_forecast(step, &r.conf.rates, UINT64_MAX, a->workers, &time);
    *seconds = time.seconds;
done:
    tess_step_free(step);
    tess_run_close(&r);
    tess_config_free(&c);
    return status;
}

void tess_explain_settings(const char *output, const tess_traced *t, FILE *out)
{
    static const double more[] = {1.25, 1.5, 2};
    const tess_about *a = &t->about;
    double now, then;
    int64_t cap, unused;
    bool recomputes, also;
    if (a->gpu) {
        fprintf(out, "settings: what another would change is not known on paper for a GPU\n");
        return;
    }
    char *file = tess_format("%s/config.json", output);
    tess_config c;
    const bool moves = a->disk || tess_config_load(file, NULL, 0, &c) != TESS_OK || c.activation_checkpointing.enabled;
    if (!a->disk) tess_config_free(&c);
    if (!moves) {
        fprintf(out, "settings: no tile leaves RAM and nothing is computed twice: more memory would not help\n");
        free(file);
        return;
    }
    if (forecast(file, NULL, a, &now, &cap, &recomputes) != TESS_OK) {
        fprintf(out, "settings: no forecast: %s\n", tess_error_text());
        free(file);
        return;
    }
    fprintf(out, "settings, on paper, where a step as it is takes %.3f s:", now);
    int helps = 0;
    for (int k = 0; k < 4; k++) {
        char set[96];
        if (k < 3 && (!a->disk || cap <= 0)) continue;
        if (k < 3)
            snprintf(set, sizeof set, "memory.cpu=%.0fMiB", more[k] * (double)cap / MiB);
        else
            snprintf(set, sizeof set, "activation_checkpointing.enabled=%s", recomputes ? "false" : "true");
        if (forecast(file, set, a, &then, &unused, &also) != TESS_OK || then > 0.99 * now) continue;
        fprintf(out, "%s %s %.3f s (%.0f%%)", helps++ ? "," : "", set, then, 100 * (then / now - 1));
    }
    fprintf(out, helps ? "\n" : " neither memory.cpu nor activation_checkpointing.enabled changes it by 1%%\n");
    free(file);
}
