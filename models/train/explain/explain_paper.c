/* What another setting would change, on paper: the run's own configuration is planned again with it, at the rates and
 * under the cap that the run went by, whatever is set and free here today, and nothing runs. */
#include "models/train/explain/explain_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MiB = 1 << 20, MOST_TASKS = 20000 /* beyond, a plan takes minutes */ };

/* What is set today is not what the run went by: config.json has all of that. */
static void forget_environment(void)
{
    for (char **e = environ; e && *e;) {
        char name[128];
        const size_t n = strcspn(*e, "=");
        if ((!strncmp(*e, "TESSERA_", 8) || !strncmp(*e, "STARPU_LIMIT_CPU_", 17)) && n < sizeof name) {
            snprintf(name, sizeof name, "%.*s", (int)n, *e);
            unsetenv(name);
            e = environ;
        } else
            e++;
    }
}

/* The seconds of a step on paper under a cap, with one more setting, or none. */
static tess_status forecast(const char *file, const char *setting, const tess_about *a, double cap, double *seconds)
{
    static const int64_t NO_CAP = (int64_t)1 << 60; /* what is free here is not what was free there */
    tess_config c;
    tess_run r = {0};
    tess_step *step = NULL;
    tess_holds plan;
    tess_status status;
    TESS_TRY_DONE(tess_config_load(file, &setting, setting ? 1 : 0, &c));
    c.quiet = true; /* the run has said it */
    c.memory.cpu = cap > 0 ? (int64_t)cap : NO_CAP;
    TESS_TRY_DONE(tess_config_resolve(&c, tess_ranks()));
    TESS_TRY_DONE(tess_run_open(&c, tess_rank(), &r));
    r.rates = (tess_rates){
        .flops = a->flops_rate, .copy = a->copy_rate, .read = a->read_rate, .write = a->write_rate, .both = a->both};
    TESS_TRY_DONE(tess_run_tiers(&r, NULL));
    if (r.machine.disk && !(a->read_rate > 0 && a->write_rate > 0)) {
        status = tess_error(TESS_FAILED, "trace", "it has no rates of the drive");
        goto done;
    }
    if (!r.machine.disk) TESS_TRY_DONE(tess_run_rates(&r, &r.limits.ram.rates));
    r.limits.ram.workers = a->workers;
    if (!setting) {
        TESS_TRY_DONE(tess_run_step(&r, true, &step));
        tess_step_holds(step, &plan);
        tess_step_free(step);
        step = NULL;
        if (plan.tasks > MOST_TASKS) {
            status = tess_error(TESS_FAILED, "plan", "its %llu tasks would take long", (unsigned long long)plan.tasks);
            goto done;
        }
    }
    const bool had_disk = r.machine.disk;
    TESS_TRY_DONE(tess_run_train_step(&r, &step));
    tess_forecast time = r.plan.ram.time;
    if (!r.machine.disk || !had_disk) tess_step_forecast(step, &r.limits.ram.rates, UINT64_MAX, a->workers, &time);
    *seconds = time.seconds;
done:
    tess_step_free(step);
    tess_run_close(&r);
    tess_config_free(&c);
    return status;
}

/* Seconds of a step in which submission stood still for room in RAM, of the rank where it did for longest. */
static double waits_for_room(const tess_traced *t)
{
    double most = 0;
    for (int rank = 0; rank < t->ranks; rank++) {
        size_t steps, n;
        const tess_event *step = tess_traced_of(t, rank, TESS_EVENT_STEP, &steps),
                         *wait = tess_traced_of(t, rank, TESS_EVENT_WAIT, &n);
        double seconds = 0;
        for (size_t i = 0, s = 0; i < n; i++) {
            while (s < steps && step[s].end < wait[i].begin) s++;
            if (s == steps || wait[i].begin < step[s].begin || strcmp(t->name[wait[i].name], TESS_WAIT_ROOM)) continue;
            seconds += wait[i].end - wait[i].begin;
        }
        if (steps && seconds / (double)steps > most) most = seconds / (double)steps;
    }
    return most;
}

/* Prints what RAM did to a run without a disk. */
static void say_ram(const tess_about *a, double waited, bool recomputes, FILE *out)
{
    const bool capped = a->cpu_cap > 0;
    if (waited > 0)
        fprintf(out, "settings: submission stood still %.3f s a step for room in RAM, %s%s\n", waited,
                capped ? "whose cap is " : "which has no cap: it went too far ahead",
                capped ? tess_human_bytes(a->cpu_cap) : "");
    else if (!recomputes && capped)
        fprintf(out,
                "settings: no tile leaves RAM, nothing is computed twice, and none waited for room below the cap "
                "of %s\n",
                tess_human_bytes(a->cpu_cap));
    else if (!recomputes)
        fprintf(out, "settings: no tile leaves RAM and nothing is computed twice: more memory would not help\n");
}

/* Tries settings, one at a time, and says which of them help. */
static void try_settings(const char *file, const tess_about *a, bool recomputes, FILE *out)
{
    static const double more[] = {1.25, 1.5, 2};
    double now, then;
    if (!(a->flops_rate > 0 && a->copy_rate > 0)) {
        fprintf(out, "settings: no forecast: the trace has no rates of the machine (tessera info measures them)\n");
        return;
    }
    if (forecast(file, NULL, a, a->cpu_cap, &now) != TESS_OK) {
        fprintf(out, "settings: no forecast: %s\n", tess_error_text());
        return;
    }
    if (a->paper > 0 && fabs(now - a->paper) > 0.05 * a->paper) {
        fprintf(out, "settings: no forecast: the plan is not the run's (%.3f s a step on paper here, %.3f s there)\n",
                now, a->paper);
        return;
    }
    fprintf(out, "settings, on paper, where a step as it is takes %.3f s:", now);
    int helps = 0;
    bool caps = false, recomputing = false;
    for (int k = 0; k < 4; k++) {
        char set[96];
        double cap = a->cpu_cap;
        if (k < 3 && (!a->disk || cap <= 0)) continue;
        if (k < 3) {
            cap = floor(more[k] * cap / MiB) * MiB;
            snprintf(set, sizeof set, "memory.cpu=%.0fMiB", cap / MiB);
        } else
            snprintf(set, sizeof set, "activation_checkpointing.enabled=%s", recomputes ? "false" : "true");
        if (forecast(file, set, a, cap, &then) != TESS_OK) continue;
        if (k < 3)
            caps = true;
        else
            recomputing = true;
        if (then <= 0.99 * now)
            fprintf(out, "%s %s %.3f s (%.0f%%)", helps++ ? "," : "", set, then, 100 * (then / now - 1));
    }
    if (helps)
        fputc('\n', out);
    else if (caps || recomputing)
        fprintf(out, " %s%s%s changes it by 1%%\n",
                caps && recomputing ? "neither "
                : caps              ? "no greater "
                                    : "no other ",
                caps ? "memory.cpu" : "",
                caps && recomputing ? " nor activation_checkpointing.enabled"
                : recomputing       ? "activation_checkpointing.enabled"
                                    : "");
    else
        fprintf(out, " no other can be planned\n");
}

void tess_explain_settings(const char *output, const tess_traced *t, FILE *out)
{
    const tess_about *a = &t->about;
    if (a->gpu) {
        fprintf(out, "settings: what another would change is not known on paper for a GPU\n");
        return;
    }
    forget_environment();
    TESS_FREED char *file = tess_format("%s/config.json", output);
    tess_config c;
    const bool loads = tess_config_load(file, NULL, 0, &c) == TESS_OK, recomputes = c.activation_checkpointing.enabled;
    tess_config_free(&c);
    if (!a->disk) say_ram(a, waits_for_room(t), loads && recomputes, out);
    if (a->disk || (loads && recomputes)) try_settings(file, a, recomputes, out);
}
