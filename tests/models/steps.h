/* What is compared with PyTorch: steps of AdamW over a model and its data. Who includes it says before how long the
 * fixture's sequences are, of how many tokens, the most sequences of a step, and where its tokens lie:
 *
 *     enum { B = 3, T = 37, VOCAB = 1009, MOST = 8 };
 *     static const char *tokens(void);
 */
#ifndef TESS_TESTS_STEPS_H
#define TESS_TESTS_STEPS_H
#include "check.h"
#include "data_impl.h"
#include "models.h"

static const tess_optimizer adamw = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1};

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) {                                                                                       \
            CHECK_SAY("%s: %s", #expr, tess_error_text());                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

struct run {
    tess_model *model;
    tess_graph *g;
    tess_network net;
    tess_step *step;
    tess_data *data;
    int64_t batch; /* sequences of a step, all micro-batches */
};

/* StarPU starts with the first run and stops when the program ends. */
static void start(void)
{
    static bool started;
    if (started) return;
    started = true;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    atexit(tess_stop);
}

/* model: a directory, or config.json's text. batch: sequences of a micro-batch. */
static struct run run_open(const char *model, tess_graph_conf graph, int64_t batch, tess_step_conf conf)
{
    struct run r = {.batch = batch * (conf.micro ? conf.micro : 1)};
    tess_data_conf data = {.seq_length = T, .vocab = VOCAB};
    start();
    conf.train = true;
    conf.optimizer = adamw;
    bool json = *model == '{';
    OK(tess_model_open(json ? NULL : model, json ? model : NULL, &r.model));
    CHECK_EQ(tess_model_vocab(r.model), VOCAB);
    r.g = tess_graph_new(&graph);
    OK(tess_model_build(r.model, r.g, batch, T, TESS_FOR_LOSS, &r.net));
    OK(tess_step_new(r.net.output, &conf, &r.step));
    OK(tess_model_load(r.model, r.g, 1));
    OK(tess_data_open(tokens(), NULL, &data, &r.data));
    return r;
}

static void run_close(struct run *r)
{
    tess_step_free(r->step);
    tess_graph_free(r->g);
    tess_data_close(r->data);
    tess_model_close(r->model);
}

static tess_step_result run_step(struct run *r, int64_t step)
{
    int32_t ids[MOST * T], targets[MOST * T];
    tess_step_result result = {0};
    for (int64_t i = 0; i < r->batch; i++) {
        uint64_t sample = tess_data_order(r->data, (uint64_t)(step * r->batch + i));
        OK(tess_data_get(r->data, sample, &(tess_sample){.ids = ids + i * T, .targets = targets + i * T}));
    }
    OK(tess_step_feed(r->step, r->net.ids, ids));
    OK(tess_step_feed(r->step, r->net.targets, targets));
    OK(tess_step_run(r->step, &(tess_step_input){.step = step, .seed = 1, .lr = 1e-3f}, &result));
    CHECK_EQ(result.targets, r->batch * T);
    return result;
}

#endif
