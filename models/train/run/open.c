/* Opening a run: the model, its tokenizer, its graph and its data as a configuration names them. */
#include "models/networks/networks.h"
#include "models/text/chat/chat.h"
#include "models/train/run/run.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Of data.loss_on, and of weights. */
enum { LOSS_ON_ASSISTANT, LOSS_ON_ALL };
enum { WEIGHTS_READ, WEIGHTS_DRAWN };

static tess_status open_tokenizer(tess_run *r)
{
    const char *dir = tess_model_dir(r->model);
    const long long vocab = tess_model_vocab(r->model);
    if (dir && tess_tokenizer_in(dir))
        TESS_TRY(tess_tokenizer_open_any(dir, &r->tokenizer));
    else if (vocab != tess_tokenizer_vocab(NULL)) { /* bytes would be other tokens than the model's */
        TESS_FREED char *lack = dir ? tess_tokenizer_lack(dir) : tess_strdup("has no tokenizer, being an object");
        TESS_FREED char *why = tess_format("%s, and its vocabulary is one of %lld (bytes have 256)", lack, vocab);
        r->tokenizer = tess_tokenizer_none(dir ? dir : "the model", why);
    }
    return dir ? tess_chat_open(dir, &r->chat) : TESS_OK;
}

/* Adapters, as the configuration asks for them, or as the model's directory has them, which must not contradict it. */
static tess_status add_adapters(const tess_run *r)
{
    static const tess_dtype base[] = {TESS_F32, TESS_INT8, TESS_NF4}; /* by lora.base */
    const tess_config *c = r->c;
    char where[512];
    snprintf(where, sizeof where, "%.300s: lora", c->file);
    if (c->lora.from) TESS_TRY(tess_model_adapt(r->model, c->lora.from));
    tess_lora_conf conf = {.r = c->lora.r,
                           .alpha = c->lora.alpha,
                           .dropout = c->lora.dropout,
                           .rslora = c->lora.rslora,
                           .dora = c->lora.dora,
                           .base = base[c->lora.base],
                           .targets = c->lora.targets,
                           .modules_to_save = c->lora.modules_to_save};
    if (tess_model_adapted(r->model)) return tess_model_ask_lora(r->model, where, &conf);
    if (c->lora.r < 0) {
        const char *key = c->lora.targets           ? "targets"
                          : c->lora.alpha >= 0      ? "alpha"
                          : c->lora.dropout >= 0    ? "dropout"
                          : c->lora.modules_to_save ? "modules_to_save"
                          : c->lora.rslora          ? "rslora"
                          : c->lora.dora            ? "dora"
                          : c->lora.base            ? "base"
                                                    : NULL;
        if (!key) return TESS_OK;
        return tess_error(TESS_INVALID, where, "%s is given, and r is missing (the rank of the adapters)", key);
    }
    if (conf.alpha < 0) conf.alpha = 8;
    if (conf.dropout < 0) conf.dropout = 0;
    return tess_model_add_lora(r->model, &conf);
}

/* What the configuration says is not trained. */
static tess_status freeze(const tess_run *r)
{
    const int params = tess_graph_params(r->g);
    char where[512];
    snprintf(where, sizeof where, "%.300s: freeze", r->c->file);
    bool *marked = tess_alloc((size_t)params * sizeof *marked);
    tess_status status = tess_patterns_mark_all(r->model, r->g, where, r->c->freeze, marked);
    for (int k = 0; k < params && status == TESS_OK; k++)
        if (marked[k]) status = tess_param_freeze(tess_graph_param(r->g, k));
    free(marked);
    if (status == TESS_OK && !tess_graph_trained_elements(r->g))
        return tess_error(TESS_INVALID, where, "all %d parameters of the model are frozen (leave some of them out)",
                          params);
    return status;
}

/* An exported network has its own micro-batch, and a sample counts as one token. What is not done for it is refused. */
static tess_status settle_import(tess_run *r)
{
    const tess_config *c = r->c;
    const int64_t batch = tess_model_batch(r->model), ranks = r->grid.data;
    const struct {
        bool wrong;
        const char *key, *what;
    } refused[] = {{c->parallel.sequence > 1, "parallel.sequence", "its samples are no sequences"},
                   {c->weights == WEIGHTS_DRAWN, "weights", "its weights are never drawn here, only loaded"},
                   {c->preference.loss, "preference.loss", "its loss is its own"},
                   {c->neftune_noise_alpha > 0, "neftune_noise_alpha", "noise on its embeddings is not supported"},
                   {c->lora.r > 0 || c->lora.from, "lora", "it has no linears by name"},
                   {c->fp8.enabled, "fp8", "its products are in bf16"},
                   {tess_run_save_dtype(r) != TESS_SAVE_FP32, "save_dtype", "it is written in fp32"}};
    char where[512];
    for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
        if (!refused[k].wrong) continue;
        snprintf(where, sizeof where, "%.300s: %s", c->file, refused[k].key);
        return tess_error(TESS_INVALID, where, "the model is an exported network, and %s so far", refused[k].what);
    }
    snprintf(where, sizeof where, "%.300s: train_batch_size", c->file);
    if (r->batch % (batch * ranks))
        return tess_error(TESS_INVALID, where,
                          "%lld, but the network was exported for %lld samples at a time (a multiple of %lld does)",
                          (long long)r->batch, (long long)batch, (long long)(batch * ranks));
    r->micro_batch = batch;
    r->micro = r->conf.micro = r->batch / batch;
    r->length = r->sequences = 1;
    return TESS_OK;
}

static tess_status multiply_as(const tess_config *c)
{
    const bool machines = c->deterministic == TESS_DETERMINISTIC_MACHINES;
    if (machines && tess_gpus() > 0)
        return tess_error(TESS_INVALID, "deterministic", "across machines it works on CPUs alone (STARPU_NCUDA=0)");
    if (!tess_matrix_across(machines) && machines)
        return tess_error(TESS_INVALID, "deterministic",
                          "across machines, but this CPU has no fused multiplications (AVX2 or Arm)");
    return TESS_OK;
}

static tess_status open_run(const tess_config *c, int rank, int64_t among, tess_run *r)
{
    tess_run_terms(c, rank, r);
    TESS_TRY(multiply_as(c));
    TESS_TRY(tess_run_at_key(tess_optimizer_check(&r->conf.optimizer)));
    TESS_TRY(tess_config_require(c, "model"));
    TESS_TRY(tess_run_lost(c, c->model, tess_model_open(c->model, c->model_json, &r->model)));
    if (c->weights == WEIGHTS_DRAWN) tess_model_draw(r->model);
    if (tess_model_batch(r->model)) TESS_TRY(settle_import(r));
    TESS_TRY(add_adapters(r));
    tess_model_store_as(r->model, tess_run_save_dtype(r));
    if (!tess_model_batch(r->model)) TESS_TRY(open_tokenizer(r));
    tess_graph_conf conf = {.dtype = r->dtype,
                            .fp8 = c->fp8.enabled,
                            .grid = r->grid,
                            .tile_rows = c->tiles.rows,
                            .tile_elements = c->tiles.elements,
                            .loss_rows = c->tiles.loss_rows,
                            /* products of rows that lie an odd number apart have no fast kernel there */
                            .loss_align = tess_gpus() > 0 ? 64 : 0};
    r->g = tess_graph_new(&conf);
    if (c->parallel.expert > 1)
        tess_graph_own_experts(r->g, tess_gpus() ? 0 : r->micro * r->grid.sequence / r->grid.data);
    const tess_run_inputs in = tess_run_wants(c, tess_model_answers(r->model) == TESS_ANSWERS_LABEL);
    const tess_preference_conf preference = {.kind = (tess_preference_kind)c->preference.loss,
                                             .beta = (float)c->preference.beta,
                                             .gamma = (float)c->preference.gamma,
                                             .smoothing = (float)c->preference.label_smoothing,
                                             .nll = (float)c->preference.nll,
                                             .desirable = (float)c->preference.desirable_weight,
                                             .undesirable = (float)c->preference.undesirable_weight};
    const tess_distill_conf distill = {.top = c->distill.teacher ? c->distill.top_k : 0,
                                       .temperature = (float)c->distill.temperature,
                                       .weight = (float)c->distill.weight};
    const tess_build build = {.batch = r->micro_batch * r->sequences,
                              .preference = preference,
                              .distill = distill,
                              .likeliest = among ? c->distill.top_k : 0,
                              .among = among,
                              .length = r->length,
                              .purpose = TESS_FOR_LOSS,
                              .bounds = in.bounds,
                              .positions = in.positions,
                              .noise = (float)c->neftune_noise_alpha};
    TESS_TRY(tess_run_at_key(tess_model_build_for(r->model, r->g, &build, &r->net)));
    TESS_TRY(freeze(r));
    return tess_run_groups(r);
}

tess_status tess_run_open(const tess_config *c, int rank, tess_run *r)
{
    return open_run(c, rank, 0, r);
}

tess_status tess_run_open_likeliest(const tess_config *c, int rank, int64_t vocab, tess_run *r)
{
    return open_run(c, rank, vocab, r);
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

tess_save_dtype tess_run_save_dtype(const tess_run *r)
{
    return r->c->save_dtype == TESS_CONFIG_AUTO ? tess_model_stored_as(r->model) : (tess_save_dtype)r->c->save_dtype;
}

void tess_run_say_odd(const tess_run *r)
{
    const long long trained = tess_model_trained_positions(r->model), length = r->length;
    tess_run_say_tokenizer(r->model, r->tokenizer);
    if (!tess_model_positions(r->model) && trained > 0 && length > trained)
        tess_note("data.seq_length: sequences of %lld tokens are longer than the model's max_position_embeddings, %lld",
                  length, trained);
    int64_t most = 0;
    for (int k = 0; k < tess_graph_params(r->g); k++) {
        int64_t shape[3], elements = 1;
        for (int i = tess_tensor_shape(tess_graph_param(r->g, k), shape) - 1; i >= 0; i--) elements *= shape[i];
        if (elements > most) most = elements;
    }
    tess_config_say_cut(r->c, r->micro_batch * r->sequences * r->length, most);
}

tess_status tess_run_need_weights(const tess_model *m)
{
    return tess_model_need_weights(m, "train leaves one in OUTPUT/model");
}

tess_status tess_run_check_weights(const tess_run *r)
{
    if (!tess_model_dir(r->model) || r->c->weights == WEIGHTS_DRAWN) return TESS_OK;
    return tess_model_need_weights(r->model, "weights=drawn begins with drawn ones");
}

void tess_run_close(tess_run *r)
{
    free(r->net.input);
    free(r->net.made);
    free(r->also);
    free(r->shares);
    free(r->states);
    tess_graph_free(r->g);
    tess_tokenizer_free(r->tokenizer);
    tess_chat_free(r->chat);
    tess_model_close(r->model);
    *r = (tess_run){0};
}

tess_run_inputs tess_run_wants(const tess_config *c, bool labels)
{
    const bool examples =
        (c->data.train && tess_data_has_examples(c->data.train, labels)) ||
        (c->data.valid && !(tess_config_held_out(c) > 0) && tess_data_has_examples(c->data.valid, labels));
    /* Where more than half of a text goes to a decoder, the encoder's part does not fill its sequence. */
    const bool short_texts = c->data.noise_density > 0.5;
    return (tess_run_inputs){.bounds = examples || c->data.pack || short_texts,
                             .positions = c->data.pack_examples || (c->data.pack && c->data.pack_positions)};
}

/* A token that config.json names by its meaning; -1: it does not. */
static int32_t named_token(const tess_run *r, const char *name)
{
    json_t *config = json_loads(tess_model_json(r->model), 0, NULL), *id = json_object_get(config, name);
    if (json_is_array(id)) id = json_array_get(id, 0);
    const json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
    json_decref(config);
    return n >= 0 && n < tess_model_vocab(r->model) ? (int32_t)n : -1;
}

int32_t tess_run_end_of_text(const tess_run *r)
{
    const int32_t end = tess_tokenizer_end_of_text(r->tokenizer);
    return end >= 0 ? end : named_token(r, "eos_token_id");
}

/* What targets are, and what stands where there are none. */
static void set_task(const tess_run *r, tess_data_conf *conf)
{
    static const tess_data_task task[] = {[TESS_ANSWERS_NEXT] = TESS_DATA_CAUSAL,
                                          [TESS_ANSWERS_IN_PLACE] = TESS_DATA_MASKED,
                                          [TESS_ANSWERS_LABEL] = TESS_DATA_LABEL,
                                          [TESS_ANSWERS_DECODER] = TESS_DATA_DECODER,
                                          [TESS_ANSWERS_BOTH] = TESS_DATA_MASKED};
    const int32_t padding = named_token(r, "pad_token_id"), start = named_token(r, "decoder_start_token_id");
    conf->task = task[tess_model_answers(r->model)];
    conf->labels = tess_model_targets(r->model);
    conf->both = tess_model_answers(r->model) == TESS_ANSWERS_BOTH;
    conf->types = tess_model_segments(r->model);
    conf->padding = padding < 0 ? 0 : padding;
    conf->decoder_start = start < 0 ? conf->padding : start;
}

/* What text alone is masked by. */
static void set_masks(const tess_run *r, tess_data_conf *conf)
{
    static const char *const masks[] = {"[MASK]", "<mask>"};
    const tess_config *c = r->c;
    conf->mlm_probability = c->data.mlm_probability;
    conf->whole_words = c->data.mlm_whole_words;
    conf->noise_density = c->data.noise_density;
    conf->noise_span = c->data.mean_noise_span;
    int64_t mask = c->data.mask_token, sentinel = c->data.sentinel_token;
    for (int i = 0; mask < 0 && i < 2; i++) mask = tess_tokenizer_added(r->tokenizer, masks[i]);
    if (sentinel < 0) sentinel = tess_tokenizer_added(r->tokenizer, "<extra_id_0>");
    conf->mask_token = (int32_t)mask;
    conf->sentinel = (int32_t)(sentinel < 0 ? conf->vocab - 1 : sentinel);
}

/* Tokens that say something of a text, and are no part of it; returns how many. */
static size_t find_special(const tess_run *r, int32_t *id)
{
    static const char *const name[] = {"[CLS]", "[SEP]", "[PAD]", "[UNK]", "<s>", "</s>", "<pad>", "<unk>"};
    size_t n = 0;
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        id[n] = tess_tokenizer_added(r->tokenizer, name[i]);
        n += id[n] >= 0;
    }
    return n;
}

/* The files of an exported network. */
static tess_status open_arrays(const tess_run *r, const char *key, const char *path, bool shuffle, tess_data **data)
{
    const double held = tess_config_held_out(r->c);
    const bool holds = held > 0 && !strcmp(key, "data.valid");
    char where[512];
    TESS_TRY(tess_config_require(r->c, key));
    if (holds) TESS_TRY(tess_config_require(r->c, "data.train"));
    snprintf(where, sizeof where, "%.300s: %s", r->c->file, key);
    const int count = tess_model_arrays(r->model, NULL);
    TESS_FREED tess_array_want *want = tess_alloc((size_t)count * sizeof *want);
    tess_model_arrays(r->model, want);
    const tess_data_conf conf = {.seq_length = 1,
                                 .vocab = 1,
                                 .shuffle = shuffle,
                                 .seed = (uint64_t)r->c->seed,
                                 .key = where,
                                 .held = held,
                                 .holds = holds};
    return tess_data_open_arrays(holds ? r->c->data.train : path, want, count, &conf, data);
}

tess_status tess_run_data(const tess_run *r, const char *key, const char *path, bool shuffle, tess_data **data)
{
    if (tess_model_batch(r->model)) return open_arrays(r, key, path, shuffle, data);
    const double held = tess_config_held_out(r->c);
    const bool holds = held > 0 && !strcmp(key, "data.valid");
    TESS_TRY(tess_config_require(r->c, key));
    if (holds) TESS_TRY(tess_config_require(r->c, "data.train"));
    if (holds) path = r->c->data.train;
    char where[512];
    if (r->c->data.pack_positions && !r->c->data.pack) {
        snprintf(where, sizeof where, "%.300s: data.pack_positions", r->c->file);
        return tess_error(TESS_INVALID, where, "true, but documents are not packed (set data.pack=true too)");
    }
    if (r->c->data.pack && (!r->net.bounds || (r->c->data.pack_positions && !r->net.positions))) {
        snprintf(where, sizeof where, "%.300s: data.pack%s", r->c->file, r->net.bounds ? "_positions" : "");
        return tess_error(TESS_INVALID, where, "true, but this model %s (false does without)",
                          r->net.bounds ? "has its own positions" : "cannot keep documents apart");
    }
    const tess_answers answers = tess_model_answers(r->model);
    if (r->c->data.pack_examples && answers != TESS_ANSWERS_NEXT && answers != TESS_ANSWERS_IN_PLACE) {
        snprintf(where, sizeof where, "%.300s: data.pack_examples", r->c->file);
        return tess_error(TESS_INVALID, where, "true, but this model %s (false does without)",
                          answers == TESS_ANSWERS_DECODER ? "has a decoder, whose examples are two sequences each"
                                                          : "has one label for a sample");
    }
    const char *why = tess_tokenizer_unsupported(r->tokenizer);
    if (why && r->c->data.mlm_whole_words &&
        (tess_model_answers(r->model) == TESS_ANSWERS_IN_PLACE || tess_model_answers(r->model) == TESS_ANSWERS_BOTH)) {
        snprintf(where, sizeof where, "%.300s: data.mlm_whole_words", r->c->file);
        return tess_error(TESS_INVALID, where, "true, but the tokenizer does not tell where words begin: %s", why);
    }
    snprintf(where, sizeof where, "%.300s: %s", r->c->file, key);
    tess_data_conf conf = {.seq_length = r->length,
                           .vocab = tess_model_vocab(r->model),
                           .shuffle = shuffle,
                           .seed = (uint64_t)r->c->seed,
                           .key = where,
                           .output = r->c->output,
                           .pack = r->c->data.pack,
                           .restart = r->c->data.pack_positions,
                           .share = r->c->data.pack_examples,
                           .end_of_text = tess_run_end_of_text(r),
                           .truncate = r->c->data.truncate == TESS_TRUNCATE_CUT,
                           .drop = r->c->data.truncate == TESS_TRUNCATE_DROP,
                           .end_completions = r->c->data.end_completions,
                           .chat = r->chat,
                           .pairs = r->sequences > 1,
                           .judged = tess_run_judged(r),
                           .loss_on_all = r->c->data.loss_on == LOSS_ON_ALL,
                           .held = held,
                           .holds = holds};
    int32_t special[9];
    set_task(r, &conf);
    set_masks(r, &conf);
    conf.special = special;
    conf.specials = find_special(r, special);
    TESS_TRY(tess_run_lost(r->c, path, tess_data_open(path, r->tokenizer, &conf, data)));
    if (shuffle || strcmp(key, "data.valid") || tess_data_sources(*data) == 1) return TESS_OK;
    return tess_error(TESS_INVALID, where,
                      "has weights, but its loss is the mean over all of its samples (list paths alone)");
}
