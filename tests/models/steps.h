/* What is compared with PyTorch: steps of AdamW over a model and its data. Who includes it says before how long the
 * fixture's sequences are, of how many tokens, the most sequences of a step, and where its tokens lie:
 *
 *     enum { B = 3, T = 37, VOCAB = 1009, MOST = 8 };
 *     static const char *tokens(void);
 */
#ifndef TESS_TESTS_STEPS_H
#define TESS_TESTS_STEPS_H
#include "models/files/data/data.h"
#include "models/models.h"
#include "tests/check.h"
#include <jansson.h>

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
    json_t *batches; /* of the model's batches.json, in place of data; NULL: it has none */
    int64_t batch;   /* sequences of a step, all micro-batches */
};

static const json_t *run_freezes; /* what of the next run is frozen (frozen.h); NULL: nothing */
static const char *run_adapts;    /* the directory of its adapters (adapted.h); NULL: none */
static int frozen_apply(struct run *r, const json_t *expected);

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
    char path[4096];
    snprintf(path, sizeof path, "%s/batches.json", json ? "" : model);
    r.batches = json ? NULL : json_load_file(path, 0, NULL);
    OK(tess_model_open(json ? NULL : model, json ? model : NULL, &r.model));
    CHECK_EQ(tess_model_vocab(r.model), VOCAB);
    if (run_adapts) OK(tess_model_adapt(r.model, run_adapts));
    r.g = tess_graph_new(&graph);
    const tess_build build = {.batch = batch, .length = T, .purpose = TESS_FOR_LOSS, .bounds = r.batches != NULL};
    OK(tess_model_build_for(r.model, r.g, &build, &r.net));
    if (run_freezes)
        CHECK_EQ(frozen_apply(&r, run_freezes), json_integer_value(json_object_get(run_freezes, "frozen")));
    OK(tess_step_new(r.net.output, &conf, &r.step));
    OK(tess_model_load(r.model, r.g, 1));
    if (!r.batches) OK(tess_data_open(tokens(), NULL, &data, &r.data));
    return r;
}

static void run_close(struct run *r)
{
    tess_step_free(r->step);
    tess_graph_free(r->g);
    tess_data_close(r->data);
    tess_model_close(r->model);
    json_decref(r->batches);
}

/* A member of a batch: numbers, `n` of them, sequence by sequence. */
static void batch_get(const json_t *batch, const char *name, int32_t *to, int64_t n)
{
    const json_t *rows = json_object_get(batch, name);
    int64_t k = 0;
    size_t i, j;
    json_t *row, *value;
    json_array_foreach(rows, i, row)
    {
        if (json_is_integer(row)) to[k++] = (int32_t)json_integer_value(row);
        json_array_foreach(row, j, value) to[k++] = (int32_t)json_integer_value(value);
    }
    CHECK_EQ(k, n);
}

/* Feeds batch `step` of batches.json, of as many sequences as a step has; returns how many targets count. */
static int64_t feed_batch(struct run *r, int64_t step)
{
    int32_t ids[MOST * T], lengths[MOST], bounds[2 * MOST * T] = {0}, places[MOST * T], index[MOST] = {0};
    const json_t *batch = json_array_get(r->batches, (size_t)step % json_array_size(r->batches));
    const int64_t n = r->batch * T, targets = r->net.targets ? n : r->batch;
    int64_t count = 0;
    batch_get(batch, "lengths", lengths, r->batch);
    for (int64_t i = 0; i < n; i++) {
        const int64_t s = i / T, t = i % T;
        places[i] = (int32_t)(t + r->net.first_position);
        bounds[(2 * s + 1) * T + t] = t < lengths[s] ? lengths[s] : 0;
    }
    if (r->net.visible) {
        int32_t visible[2 * MOST * T] = {0};
        for (int64_t i = 0; i < n; i++) visible[(2 * (i / T) + 1) * T + i % T] = lengths[i / T];
        OK(tess_step_feed(r->step, r->net.visible, visible));
        batch_get(batch, "decoder_ids", ids, n);
        OK(tess_step_feed(r->step, r->net.decoder_ids, ids));
    }
    batch_get(batch, "ids", ids, n);
    OK(tess_step_feed(r->step, r->net.ids, ids));
    batch_get(batch, "segments", ids, n);
    if (r->net.segments) OK(tess_step_feed(r->step, r->net.segments, ids));
    batch_get(batch, "targets", ids, targets);
    for (int64_t i = 0; i < targets; i++) count += ids[i] >= 0;
    OK(tess_step_feed(r->step, r->net.targets ? r->net.targets : r->net.label, ids));
    if (r->net.targets && r->net.label) {
        batch_get(batch, "label", ids, r->batch);
        OK(tess_step_feed(r->step, r->net.label, ids));
    }
    OK(tess_step_feed(r->step, r->net.bounds, bounds));
    if (r->net.positions) OK(tess_step_feed(r->step, r->net.positions, places));
    if (r->net.index) OK(tess_step_feed(r->step, r->net.index, index));
    return count;
}

static int64_t feed_tokens(struct run *r, int64_t step)
{
    int32_t ids[MOST * T], targets[MOST * T];
    for (int64_t i = 0; i < r->batch; i++) {
        uint64_t sample = tess_data_order(r->data, (uint64_t)(step * r->batch + i));
        OK(tess_data_get(r->data, sample, &(tess_sample){.ids = ids + i * T, .targets = targets + i * T}));
    }
    OK(tess_step_feed(r->step, r->net.ids, ids));
    OK(tess_step_feed(r->step, r->net.targets, targets));
    return r->batch * T;
}

static tess_step_result run_step(struct run *r, int64_t step)
{
    tess_step_result result = {0};
    const int64_t targets = r->batches ? feed_batch(r, step) : feed_tokens(r, step);
    OK(tess_step_run(r->step, &(tess_step_input){.step = step, .seed = 1, .lr = 1e-3f}, &result));
    CHECK_EQ(result.targets, targets);
    return result;
}

#include "tests/models/adapted.h"
#include "tests/models/frozen.h"

#endif
