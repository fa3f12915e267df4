/* A model that has ops of its own (own_ops.h), trained by the public headers alone:
 *
 *     own-net DIR STEPS [KEY=VALUE ...]
 *
 * KEY is disk (a directory; a cap on RAM goes with it), ram (MiB), every (blocks between kept activations), stage,
 * tensor, pipeline, bf16. It goes on from the newest checkpoint in DIR, and leaves another and the model. */
#include "tests/docs/own_ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <tessera.h>

enum { B = 2, T = 24, C = 192, V = 64, BLOCKS = 3, MICRO = 4 };

static const char *setting(int argc, char **argv, const char *key)
{
    const size_t n = strlen(key);
    for (int k = 3; k < argc; k++)
        if (!strncmp(argv[k], key, n) && argv[k][n] == '=') return argv[k] + n + 1;
    return NULL;
}
static int number(int argc, char **argv, const char *key, int otherwise)
{
    const char *value = setting(argc, argv, key);
    return value ? atoi(value) : otherwise;
}

static tess_tensor *param(tess_graph *g, int block, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    char full[64];
    snprintf(full, sizeof full, "block.%d.%s", block, name);
    return tess_param(g, full, rows, columns, init);
}

static tess_tensor *describe(tess_graph *g, tess_tensor *ids, tess_tensor *targets)
{
    const tess_op *ema, *gated, *mixed;
    if (ema_register(&ema) != TESS_OK || gated_register(&gated) != TESS_OK || mixed_register(&mixed) != TESS_OK)
        return NULL;
    const struct gated settings = {0.5f, 2};
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.1f)), *h, *a, *b;
    tess_tensor *x = tess_embedding(ids, table, NULL);
    for (int k = 0; k < BLOCKS; k++) {
        char name[16];
        snprintf(name, sizeof name, "block.%d", k);
        tess_block(g, name);
        h = tess_rmsnorm(x, param(g, k, "norm", C, 1, TESS_ONE), 1e-5f);
        h = tess_apply(ema, (tess_tensor *[]){h, param(g, k, "decay", C, 1, TESS_UNIFORM(0.5f))}, 2, NULL);
        a = tess_linear(h, param(g, k, "a", 2 * C, C, TESS_NORMAL(0.05f)), NULL);
        b = tess_linear(h, param(g, k, "b", 2 * C, C, TESS_NORMAL(0.05f)), NULL);
        h = tess_apply(gated, (tess_tensor *[]){a, b}, 2, &settings);
        x = tess_add(x, tess_linear(h, param(g, k, "down", C, 2 * C, TESS_NORMAL(0.05f)), NULL));
        x = tess_apply(mixed, (tess_tensor *[]){x, param(g, k, "m", C, C, TESS_NORMAL(0.05f))}, 2, NULL);
    }
    tess_block_end(g);
    return tess_cross_entropy(x, table, NULL, targets);
}

static tess_status prepare(tess_tensor *loss, int argc, char **argv, tess_step **s)
{
    tess_machine m = {.workers = 1, .disk = setting(argc, argv, "disk")};
    tess_plan plan;
    m.away = m.disk ? TESS_AWAY_MOMENTS | TESS_AWAY_ACTIVATIONS : 0;
    m.cpu_bytes = (uint64_t)number(argc, argv, "ram", m.disk ? 16 : 0) << 20;
    const tess_step_conf conf = {.train = true,
                                 .micro = MICRO,
                                 .deterministic = true,
                                 .recompute_every = number(argc, argv, "every", 0),
                                 .optimizer = tess_adamw()};
    TESS_TRY(tess_step_fit(loss, &conf, &m, s, &plan));
    if (tess_rank() == 0) printf("%llu bytes on disk\n", (unsigned long long)plan.ram.disk);
    return tess_start_plan(&m, &plan);
}

static tess_status train(tess_graph *g, tess_step *s, tess_tensor *ids, tess_tensor *targets, const char *dir,
                         int steps)
{
    static int32_t id[MICRO * B * T], target[MICRO * B * T];
    tess_position at = {.seed = 1};
    int64_t first, count;
    bool found;
    TESS_TRY(tess_graph_resume(g, dir, &at, &found));
    if (!found) TESS_TRY(tess_graph_init(g, at.seed));
    for (tess_step_share(s, &first, &count); at.step < steps; at.step++) {
        for (int64_t i = 0; i < count * B * T; i++) {
            const int64_t place = (at.step * MICRO + first) * B * T + i;
            id[i] = (int32_t)(place * place / 7 % V);
            target[i] = (int32_t)((place + 1) * (place + 1) / 7 % V);
        }
        tess_step_result r;
        TESS_TRY(tess_ranks_agree(tess_step_feed_values(s, ids, id, count * B * T)));
        TESS_TRY(tess_ranks_agree(tess_step_feed_values(s, targets, target, count * B * T)));
        TESS_TRY(tess_step_run(s, &(tess_step_input){.step = at.step, .seed = at.seed, .lr = 2e-3}, &r));
        if (tess_rank() == 0) printf("step %d  loss %.9g\n", (int)at.step, r.loss);
    }
    TESS_TRY(tess_graph_checkpoint(g, dir, 1, &at));
    return tess_graph_save(g, dir);
}

int main(int argc, char **argv)
{
    tess_step *s = NULL;
    tess_status status = tess_ranks_join();
    tess_grid grid = {.rank = tess_rank(), .stage = number(argc, argv, "stage", 0)};
    grid.tensor = number(argc, argv, "tensor", 1);
    grid.pipeline = number(argc, argv, "pipeline", 1);
    grid.data = tess_ranks() / (grid.tensor * grid.pipeline);
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = number(argc, argv, "bf16", 0) ? TESS_BF16 : TESS_F32,
                                                      .tile_rows = T,
                                                      .tile_elements = 64 * C,
                                                      .grid = grid});
    tess_tensor *ids = tess_input(g, "ids", B, T), *targets = tess_input(g, "targets", B, T);
    if (status == TESS_OK) status = tess_ranks_agree(prepare(describe(g, ids, targets), argc, argv, &s));
    if (status == TESS_OK) status = train(g, s, ids, targets, argv[1], argc > 2 ? atoi(argv[2]) : 4);
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
    status = tess_ranks_agree(status);
    if (status != TESS_OK && tess_rank() == 0) fprintf(stderr, "own-net: %s\n", tess_error_text());
    tess_ranks_leave();
    return (int)status;
}
