/* Chains of tasks: fewer of them, the same bits, whatever the network, the order of the list and the update. */
#define CHECK_MAIN
#include "graph/step/step_impl.h"
#include "tests/graph/gpt.h"
#include "tests/graph/nets.h"

static const uint64_t ALL = UINT64_MAX;

/* The losses, the norm and the parameters of some steps, as one number. */
static uint64_t train(net_body body, tess_step_conf conf, uint64_t chains)
{
    struct net n;
    uint64_t hash = FINGERPRINT;
    conf.chains = chains;
    tess_step *s = net_step(&n, &(tess_graph_conf){.tile_rows = T}, body, &conf);
    OK(tess_start(&(tess_machine){.workers = 2}));
    OK(tess_graph_init(n.g, 1));
    for (int step = 0; step < 3; step++) {
        const double loss = net_run(&n, s, step, 1e-2f);
        mark(&hash, &loss, sizeof loss);
    }
    mark_params(&hash, n.g, TESS_PARTS);
    tess_step_free(s);
    tess_stop();
    tess_graph_free(n.g);
    return hash;
}

TEST(has_the_same_bits)
{
    static const net_body bodies[] = {net_gpt, net_llama, net_tangle};
    for (int k = 0; k < 3; k++)
        for (int kind = 0; kind < 6; kind++) {
            tess_step_conf conf = {.train = true, .micro = kind == 1 ? 2 : 1, .optimizer = tess_adamw()};
            conf.optimizer.clip = kind < 4 ? 1 : 0;
            conf.recompute_every = kind == 2, conf.layout.late = kind >= 3 && kind < 5,
            conf.layout.by_layer = kind == 1;
            conf.micro = kind == 4 ? 2 : conf.micro;
            if (train(bodies[k], conf, 0) != train(bodies[k], conf, ALL))
                CHECK_SAY("net %d, kind %d: other bits", k, kind);
        }
}

static size_t tasks_of(tess_tensor *loss, const tess_step_conf *conf)
{
    tess_lowered low;
    tess_lower_step(loss, conf, &low);
    const size_t tasks = low.program->tasks;
    for (size_t k = 0; k < tasks; k++) {
        const tess_task *t = &low.program->task[k];
        CHECK_EQ(t->order, k);
        CHECK(t->nuse <= TESS_BUNDLE_BUFFERS || t->cl != &tess_bundle[t->cl->dtype]);
    }
    tess_program_free(low.updates);
    tess_program_free(low.program);
    return tasks;
}

/* GPT-2's 12 layers over four row tiles, as a step of 32 x 1024 tokens has them on a GPU. */
TEST(has_a_fifth_of_the_tasks)
{
    enum { HEADS = 2, WIDE = 16, LENGTH = 8 };
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = LENGTH});
    tess_tensor *ids = tess_input(g, "ids", 4, LENGTH), *targets = tess_input(g, "targets", 4, LENGTH);
    tess_tensor *table = tess_param(g, "table", 50, WIDE, TESS_ZERO);
    tess_tensor *x = tess_embedding(ids, table, tess_param(g, "positions", LENGTH, WIDE, TESS_ZERO));
    tess_tensor *loss = tess_cross_entropy(gpt_blocks(g, x, 12, HEADS, WIDE), table, NULL, targets);
    for (int late = 0; late < 2; late++) {
        tess_step_conf conf = {.train = true, .micro = 1, .optimizer = tess_adamw(), .layout.late = late};
        conf.optimizer.clip = (float)late;
        tess_graph_ready(g);
        for (int k = 0; k < g->params; k++) OK(tess_param_moments(g->param[k], &conf.optimizer, true));
        const size_t before = tasks_of(loss, &conf);
        conf.chains = 1; /* byte: it does not fit */
        CHECK_EQ(tasks_of(loss, &conf), before);
        conf.chains = ALL;
        const size_t after = tasks_of(loss, &conf);
        if (after * 5 > before) CHECK_SAY("%s: %zu tasks of %zu", late ? "late" : "at once", after, before);
    }
    tess_graph_free(g);
}
