/* A model of one's own trained under a cap on RAM, its states partly on disk, alone or on several ranks, and gone on
 * with from its checkpoints: the order in which the calls come. All of these give the same bits:
 *
 *     ./own-training DIR 6              # six steps; checkpoints and the model are left in DIR
 *     ./own-training DIR2 3             # three of them, ...
 *     mpirun -n 2 ./own-training DIR2 6 # ... and, on two ranks, the other three
 *
 * Every rank makes the same calls. A phase in which one of them alone may fail ends with tess_ranks_agree. */
#include <stdio.h>
#include <stdlib.h>
#include <tessera.h>

enum { B = 2, T = 32, C = 192, V = 256, BLOCKS = 4, MICRO = 4, MiB = 1 << 20 };

static tess_tensor *param(tess_graph *g, int block, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    char full[64]; /* the name in files */
    snprintf(full, sizeof full, "block.%d.%s", block, name);
    return tess_param(g, full, rows, columns, init);
}

static tess_tensor *describe(tess_graph *g, tess_tensor *ids, tess_tensor *targets)
{
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.05f)), *h;
    tess_tensor *x = tess_embedding(ids, table, tess_param(g, "positions", T, C, TESS_NORMAL(0.05f))); /* (B, T, C) */
    for (int k = 0; k < BLOCKS; k++) {
        h = tess_rmsnorm(x, param(g, k, "norm", C, 1, TESS_ONE), 1e-5f);
        h = tess_linear(h, param(g, k, "qkv", 3 * C, C, TESS_NORMAL(0.05f)), NULL);
        x = tess_add(x, tess_attention_packed(h, (tess_attention_conf){.heads = 4, .causal = true}));
        h = tess_gelu(tess_linear(x, param(g, k, "up", 4 * C, C, TESS_NORMAL(0.05f)), NULL), TESS_GELU_TANH);
        x = tess_add(x, tess_linear(h, param(g, k, "down", C, 4 * C, TESS_NORMAL(0.05f)), NULL));
    }
    return tess_cross_entropy(x, table, NULL, targets);
}

/* 1. The step, and where its tiles live, before anything is started. 2. The start. */
static tess_status prepare(tess_tensor *loss, const char *disk, tess_step **s)
{
    tess_optimizer adamw = tess_adamw();
    adamw.clip = 1;
    /* Moments rest on disk even where RAM has room; the disk's file gets the size that is needed. */
    tess_machine machine = {.cpu_bytes = 32 * MiB, .disk = disk, .away = TESS_AWAY_MOMENTS};
    tess_step_conf conf = {.train = true, .micro = MICRO, .deterministic = true, .optimizer = adamw};
    tess_plan plan;
    TESS_TRY(tess_step_fit(loss, &conf, &machine, s, &plan));
    if (tess_rank() == 0) printf("%.1f MiB of rank 0's tiles rest on disk\n", (double)plan.ram.disk / MiB);
    return tess_start_plan(&machine, &plan);
}

/* 3. The newest checkpoint, or weights that are drawn. 4. Steps: each rank feeds its own micro-batches. */
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
        TESS_TRY(tess_step_run(s, &(tess_step_input){.step = at.step, .seed = at.seed, .lr = 1e-3}, &r));
        if (tess_rank() == 0) printf("step %d  loss %.9g  norm %.9g\n", (int)at.step, r.loss, r.grad_norm);
    }
    TESS_TRY(tess_graph_checkpoint(g, dir, 1, &at));
    return tess_graph_save(g, dir);
}

int main(int argc, char **argv)
{
    const char *dir = argc > 1 ? argv[1] : ".", *disk = argc > 3 ? argv[3] : "/var/tmp";
    tess_step *s = NULL;
    tess_status status = tess_ranks_join();
    tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 2}; /* ZeRO's stage */
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = grid});
    tess_tensor *ids = tess_input(g, "ids", B, T), *targets = tess_input(g, "targets", B, T);
    if (status == TESS_OK) status = tess_ranks_agree(prepare(describe(g, ids, targets), disk, &s));
    if (status == TESS_OK) status = train(g, s, ids, targets, dir, argc > 2 ? atoi(argv[2]) : 6);
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
    status = tess_ranks_agree(status);
    if (status != TESS_OK && tess_rank() == 0) fprintf(stderr, "own-training: %s\n", tess_error_text());
    tess_ranks_leave();
    return (int)status;
}
