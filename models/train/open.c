/* Opening a run: the model, its tokenizer, its graph and its data as a configuration names them. */
#include "model_impl.h"
#include "run_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

tess_status tess_run_at_key(tess_status status)
{
    static const char *const key[][2] = {{"RAM", "memory.cpu"},
                                         {"GPU", "memory.gpu"},
                                         {"grid", "parallel.pipeline"},
                                         {"sequence length", "data.seq_length"}};
    for (size_t k = 0; k < sizeof key / sizeof key[0]; k++) tess_error_at(status, key[k][0], key[k][1]);
    return status;
}

static tess_status open_tokenizer(tess_run *r)
{
    if (!tess_model_dir(r->model)) return TESS_OK;
    char *path = tess_format("%s/tokenizer.json", tess_model_dir(r->model));
    tess_status status = access(path, F_OK) ? TESS_OK : tess_tokenizer_open(path, &r->tokenizer);
    free(path);
    return status;
}

tess_status tess_run_open(const tess_config *c, int rank, tess_run *r)
{
    *r = (tess_run){.c = c,
                    .rank = rank,
                    .length = c->data.seq_length,
                    .batch = c->train_batch_size,
                    .micro = c->train_batch_size / c->train_micro_batch_size_per_gpu,
                    .micro_batch = c->train_micro_batch_size_per_gpu};
    r->evaluated = tess_ranks() / (c->parallel.tensor * c->parallel.pipeline);
    TESS_TRY(tess_config_require(c, "model"));
    TESS_TRY(tess_model_open(c->model, c->model_json, &r->model));
    r->model->stored = (tess_save_dtype)c->save_dtype;
    TESS_TRY(open_tokenizer(r));
    tess_grid grid = {.rank = rank,
                      .tensor = (int)c->parallel.tensor,
                      .pipeline = (int)c->parallel.pipeline,
                      .interleave = (int)c->parallel.interleave,
                      .data = tess_ranks() / (int)(c->parallel.tensor * c->parallel.pipeline),
                      .stage = (int)c->zero_optimization.stage,
                      .persist = c->zero_optimization.stage3_param_persistence_threshold,
                      .live = c->zero_optimization.stage3_max_live_parameters,
                      .reuse = c->zero_optimization.stage3_max_reuse_distance};
    tess_graph_conf conf = {.dtype = c->bf16.enabled ? TESS_BF16 : TESS_F32, .grid = grid};
    if (tess_gpus() > 0) { /* what keeps a core busy for a second a GPU does before the next task is on its way */
        conf.tile_rows = 8192;
        conf.tile_elements = 48 << 20;
        conf.loss_rows = 2048;
    }
    r->g = tess_graph_new(&conf);
    return tess_run_at_key(tess_model_build(r->model, r->g, r->micro_batch, r->length, TESS_FOR_LOSS, &r->net));
}

void tess_run_say_tokenizer(const tess_model *m, const tess_tokenizer *tokenizer)
{
    const long long tokens = tess_tokenizer_vocab(tokenizer), vocab = tess_model_vocab(m);
    if (tokenizer && tokens > vocab)
        tess_note(
            "%s: its tokenizer has %lld tokens, more than the model's vocab_size, %lld: a text with one from %lld on "
            "is refused",
            tess_model_dir(m), tokens, vocab, vocab);
}

void tess_run_say_odd(const tess_run *r)
{
    const long long trained = tess_model_trained_positions(r->model), length = r->length;
    tess_run_say_tokenizer(r->model, r->tokenizer);
    if (!tess_model_positions(r->model) && trained > 0 && length > trained)
        tess_note("data.seq_length: sequences of %lld tokens are longer than the model's max_position_embeddings, %lld",
                  length, trained);
}

tess_status tess_run_need_weights(const tess_model *m)
{
    if (tess_model_has_weights(m)) return TESS_OK;
    return tess_error(TESS_INVALID, tess_model_dir(m), "has no model.safetensors (train leaves one in OUTPUT/model)");
}

void tess_run_close(tess_run *r)
{
    tess_graph_free(r->g);
    tess_tokenizer_free(r->tokenizer);
    tess_model_close(r->model);
    *r = (tess_run){0};
}

tess_status tess_run_data(const tess_run *r, const char *key, const char *path, bool shuffle, tess_data **data)
{
    TESS_TRY(tess_config_require(r->c, key));
    char where[512];
    snprintf(where, sizeof where, "%.300s: %s", r->c->file, key);
    tess_data_conf conf = {.seq_length = r->length,
                           .vocab = tess_model_vocab(r->model),
                           .shuffle = shuffle,
                           .seed = (uint64_t)r->c->seed,
                           .key = where};
    TESS_TRY(tess_data_open(path, r->tokenizer, &conf, data));
    if (shuffle || strcmp(key, "data.valid") || tess_data_sources(*data) == 1) return TESS_OK;
    return tess_error(TESS_INVALID, where,
                      "has weights, but its loss is the mean over all of its samples (list paths alone)");
}
