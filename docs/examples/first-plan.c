/* A network that does not fit into the RAM it may have: described, planned over a disk, trained, saved and loaded
 * again. tools/check builds and runs it. By hand, after `meson install`: cc first-plan.c $(pkg-config --cflags --libs
 * tessera) */
#include <stdio.h>
#include <tessera.h>

enum { B = 4, T = 64, C = 256, V = 256, LAYERS = 4, STEPS = 20, MiB = 1 << 20 };
static int32_t token[B * T], next[B * T]; /* (B, T) */

static tess_tensor *describe(tess_graph *g, tess_tensor *ids, tess_tensor *targets)
{
    char name[32];
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.05f)); /* (V, C) */
    tess_tensor *x = tess_embedding(ids, table, NULL);                     /* (B, T, C) */
    for (int k = 0; k < LAYERS; k++) {
        snprintf(name, sizeof name, "layer.%d.up", k);
        tess_tensor *h = tess_linear(x, tess_param(g, name, 4 * C, C, TESS_NORMAL(0.05f)), NULL); /* (B, T, 4C) */
        snprintf(name, sizeof name, "layer.%d.down", k);
        h = tess_linear(tess_silu(h), tess_param(g, name, C, 4 * C, TESS_NORMAL(0.05f)), NULL); /* (B, T, C) */
        x = tess_add(x, h);
    }
    return tess_cross_entropy(x, table, NULL, targets);
}

static tess_status run(tess_step *s, tess_tensor *ids, tess_tensor *targets, int64_t step, double *loss)
{
    tess_step_result r;
    TESS_TRY(tess_step_feed(s, ids, token));
    TESS_TRY(tess_step_feed(s, targets, next));
    TESS_TRY(tess_step_run(s, &(tess_step_input){.step = step, .lr = 1e-3}, &r));
    *loss = r.loss;
    return TESS_OK;
}

static tess_status plan_and_train(tess_graph *g, double *trained, double *loaded)
{
    const tess_machine machine = {.workers = 1, .cpu_bytes = 24 * MiB, .disk = "/var/tmp"};
    const tess_step_conf training = {.train = true, .optimizer = tess_adamw()}, forward = {.train = false};
    tess_tensor *ids = tess_input(g, "ids", B, T), *targets = tess_input(g, "targets", B, T);
    tess_tensor *loss = describe(g, ids, targets);
    tess_step *train, *measure;
    tess_plan plan;
    TESS_TRY(tess_step_fit(loss, &training, &machine, &train, &plan));
    tess_plan_print(&plan, train, stdout);
    TESS_TRY(tess_step_new(loss, &forward, &measure));
    TESS_TRY(tess_start_plan(&machine, &plan));
    TESS_TRY(tess_graph_init(g, 1));
    for (int step = 0; step < STEPS; step++) {
        TESS_TRY(run(train, ids, targets, step, trained));
        if (step % 5 == 4) printf("step %2d  loss %.4f\n", step + 1, *trained);
    }
    TESS_TRY(run(measure, ids, targets, 0, trained));
    TESS_TRY(tess_graph_save(g, "first-plan-model"));
    tess_stop(); /* what the graph held is gone, its plan is not */
    TESS_TRY(tess_start_plan(&machine, &plan));
    TESS_TRY(tess_graph_load(g, "first-plan-model"));
    TESS_TRY(run(measure, ids, targets, 0, loaded));
    tess_step_free(measure);
    tess_step_free(train);
    return TESS_OK;
}

int main(void)
{
    double trained = 99, loaded = 0;
    for (int i = 0; i < B * T; i++) token[i] = i * 7 % V, next[i] = (token[i] * 3 + 1) % V;
    tess_graph *g = tess_graph_new(NULL);
    const tess_status status = plan_and_train(g, &trained, &loaded);
    tess_graph_free(g);
    tess_stop();
    if (status != TESS_OK) fprintf(stderr, "first-plan: %s\n", tess_error_text());
    const bool good = status == TESS_OK && trained == loaded && trained < 1;
    printf("loss %.6f trained, %.6f loaded\n%d passed, %d failed, 0 skipped\n", trained, loaded, good, !good);
    return !good;
}
