/* What a run says of itself, see announce_impl.h. */
#include "models/networks/networks.h"
#include "models/train/loop/announce_impl.h"
#include "models/train/loop/schedule_impl.h"
#include <stdio.h>
#include <string.h>

/* ---- before the first step ---- */

void tess_announce_oddities(const tess_run *r)
{
    tess_run_say_odd(r);
    if (!r->rank && tess_schedule_rests(r->c))
        tess_note("%s: optimizer.params.lr: 0, and so nothing is trained (1e-3 is usual for a model that is drawn)",
                  r->c->file);
}

/* How many tasks are of generic ops, and their share of a step's time; how many a GPU has no body for, and their
 * codelets. */
struct generic {
    int64_t tasks, all, stay;
    double seconds, of;
    char staying[240];
};

/* A codelet that has been named is not again. */
static void name_staying(struct generic *g, const char *name)
{
    const size_t used = strlen(g->staying);
    if (!strstr(g->staying, name))
        snprintf(g->staying + used, sizeof g->staying - used, "%s%s", used ? ", " : "", name);
}

static void count_task(void *of, uint32_t k, const tess_listed_task *t)
{
    struct generic *g = of;
    const bool generic = !strncmp(t->codelet->name, "any_", 4) && strcmp(t->codelet->name, "any_loss") != 0;
    (void)k;
    g->all++, g->of += t->seconds;
    if (generic) g->tasks++, g->seconds += t->seconds;
    if (!strcmp(t->where, "cpu")) g->stay++, name_staying(g, t->codelet->name);
}

static void no_tile(void *of, uint32_t k, const tess_listed_tile *t)
{
    (void)of, (void)k, (void)t;
}

/* Where no rates were measured, those of a usual core tell products from what only reads and writes. */
static void say_generic(const tess_run *r, const tess_step *step)
{
    static const tess_rates usual = {.flops = 5e10, .copy = 5e9};
    struct generic g = {0};
    const tess_rates *rates = r->limits.ram.rates.flops > 0 ? &r->limits.ram.rates : &usual;
    tess_step_list(step, rates, 1, &(tess_lister){&g, no_tile, count_task});
    if (g.tasks && r->rank == 0)
        tess_note("%lld of a step's %lld tasks are generic ops, some %.0f%% of its time", (long long)g.tasks,
                  (long long)g.all, 100 * g.seconds / g.of);
    if (g.stay && tess_gpus() > 0 && r->rank == 0)
        tess_note("%lld of a step's %lld tasks have no body for a GPU, and stay on the CPU: %s", (long long)g.stay,
                  (long long)g.all, g.staying);
}

void tess_announce_step(const tess_run *r, const tess_step *step)
{
    const char *unsplit = tess_graph_unsplit(r->g), *shares = tess_step_shares(step);
    if (unsplit)
        tess_note("parallel.tensor: each of %lld ranks holds and computes all of %s", (long long)r->c->parallel.tensor,
                  unsplit);
    if (r->grid.pipeline == 1 && (r->grid.schedule != TESS_1F1B || r->grid.blocks))
        tess_note("parallel.%s: without effect, since there is no pipeline (parallel.pipeline says of how many stages)",
                  r->grid.blocks ? "blocks" : "schedule");
    if (tess_graph_sections(r->g))
        tess_note("parallel.pipeline: the blocks of its stages are %s", tess_graph_sections(r->g));
    if (tess_graph_experts(r->g)) tess_note("parallel.expert: %s", tess_graph_experts(r->g));
    if (shares)
        tess_note("parallel.sequence: in attention %lld ranks exchange %s", (long long)r->c->parallel.sequence, shares);
    if (tess_model_batch(r->model)) say_generic(r, step);
}

static void say_frozen(const tess_run *r)
{
    const long long all = tess_graph_param_elements(r->g), trained = tess_graph_trained_elements(r->g);
    if (trained < all)
        printf("trained are %lld of %lld parameters, %.3g%%\n", trained, all, 100. * (double)trained / (double)all);
}

static void say_data(const tess_run *r, const tess_data *d, int64_t steps)
{
    const size_t files = tess_data_files(d);
    const double samples = (double)tess_data_samples(d);
    const char *left_out = tess_data_left_out(d);
    const unsigned long long lines = tess_data_lines_left_out(d);
    if (tess_model_batch(r->model)) {
        printf("data: %.0f samples in %zu file%s; %lld step%s of %lld %s %.4g epochs\n", samples, files,
               files == 1 ? "" : "s", (long long)steps, steps == 1 ? "" : "s", (long long)r->batch,
               steps == 1 ? "is" : "are", (double)steps * (double)r->batch / samples);
        fflush(stdout);
        return;
    }
    printf("data: %.0f samples of %s%lld tokens (%llu tokens in %zu file%s%s); %lld step%s of %lld %s %.4g epochs%s%s",
           samples, tess_data_by_lines(d) ? "up to " : "", (long long)r->length,
           (unsigned long long)tess_data_tokens(d), files, files == 1 ? "" : "s",
           tess_data_sources(d) > 1 ? ", by weight" : "", (long long)steps, steps == 1 ? "" : "s", (long long)r->batch,
           steps == 1 ? "is" : "are", (double)steps * (double)r->batch / samples,
           left_out ? "; left out, being no data: " : "", left_out ? left_out : "");
    if (tess_data_shared(d))
        printf("; %llu examples share them, %.2g%% is padding", (unsigned long long)tess_data_shared(d),
               100 * (1 - (double)tess_data_tokens(d) / (samples * (double)(r->sequences * r->length))));
    if (lines) printf("; left out by data.truncate: %llu line%s", lines, lines == 1 ? "" : "s");
    printf("\n");
    fflush(stdout);
}

void tess_announce_run(const tess_run *r, const tess_holds *plan, const tess_data *data, const tess_data *valid,
                       const uint64_t *drawn)
{
    if (!r->rank) {
        if (drawn && !tess_model_has_weights(r->model))
            printf("the weights are drawn from seed %lld\n", (long long)*drawn);
        say_frozen(r);
        say_data(r, data, r->c->steps);
    }
    tess_config_say_rate(r->c);
    tess_run_say_saved(r);
    tess_run_say_dtype(r, plan);
    tess_run_say_padding(r, data, valid);
}

/* ---- after the last ---- */

void tess_announce_end(const tess_ending *e)
{
    const tess_config *c = e->c;
    const tess_progress *at = e->at;
    if (tess_rank()) return;
    if (e->stopped) tess_note("stopped by a signal after step %lld of %lld", (long long)at->step, (long long)c->steps);
    if (e->early && at->step < c->steps)
        printf(
            "stopped early after step %lld of %lld: %lld evaluations in a row were not better than %.4f by more than "
            "%g\n",
            (long long)at->step, (long long)c->steps, (long long)at->worse, at->mark_loss, c->early_stop.min_delta);
    if (at->best_step && c->checkpoint.keep_best)
        printf("the best loss on data.valid was %.4f after step %lld: %s/step-%08lld\n", at->best_loss,
               (long long)at->best_step, c->checkpoint.dir, (long long)at->best_step);
    printf("the %s of step %lld: %s/model\n", e->adapts ? "adapter" : "model", (long long)at->step, c->output);
    fflush(stdout);
    if (e->stopped && c->checkpoint.dir)
        tess_note("%s/step-%08lld is its checkpoint; this goes on: %s", c->checkpoint.dir, (long long)at->step,
                  c->command ? c->command : "the same with --resume");
    else if (e->stopped)
        tess_note("without checkpoint.dir it cannot go on; %s/model holds the weights alone", c->output);
}
