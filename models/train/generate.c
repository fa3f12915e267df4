/* Continuing a text: the whole context goes through the network for each token, in a graph for its length rounded up
 * to a power of two; attention is causal, so what stands behind the context does not matter. The graphs share one set
 * of weights. */
#include "checkpoint_impl.h"
#include "codelets.h"
#include "data_impl.h"
#include "model_impl.h"
#include "run_impl.h"
#include "states_impl.h"
#include "train.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LENGTHS = 24, SHORTEST = 64 };

struct generator {
    const char *adapter; /* beside the model; NULL: none */
    tess_model *model;
    tess_tokenizer *tokenizer;
    int64_t vocab, most; /* longest context */
    tess_graph *graph[LENGTHS];
    tess_network net[LENGTHS];
    tess_step *step[LENGTHS];
    tess_ids ids;
    float *logits;
};

static tess_status open_generator(const char *dir, void *what)
{
    struct generator *g = what;
    TESS_TRY(tess_model_open(dir, NULL, &g->model));
    if (g->adapter) TESS_TRY(tess_model_adapt(g->model, g->adapter));
    if (tess_model_answers(g->model) != TESS_ANSWERS_NEXT)
        return tess_error(TESS_INVALID, dir, "is no model that goes on with a text (%s)",
                          tess_model_answers(g->model) == TESS_ANSWERS_DECODER ? "it answers with another"
                                                                               : "it reads one");
    TESS_TRY(tess_run_need_weights(g->model));
    char *path = tess_format("%s/tokenizer.json", dir);
    if (access(path, F_OK) && g->model->lora) { /* adapters have their base's */
        free(path);
        path = tess_format("%s/tokenizer.json", tess_model_dir(g->model));
    }
    tess_status status = access(path, F_OK) ? TESS_OK : tess_tokenizer_open(path, &g->tokenizer);
    free(path);
    TESS_TRY(status);
    TESS_TRY(tess_model_check(g->model));
    g->vocab = tess_model_vocab(g->model);
    g->most = tess_model_positions(g->model);
    if (g->most == 0) g->most = 4096;
    if (!g->tokenizer && g->vocab != tess_tokenizer_vocab(NULL))
        return tess_error(TESS_INVALID, dir, "has a vocabulary of %lld, and no tokenizer.json (bytes have 256)",
                          (long long)g->vocab);
    tess_run_say_tokenizer(g->model, g->tokenizer);
    g->logits = tess_alloc((size_t)g->vocab * sizeof *g->logits);
    return TESS_OK;
}

static void close_generator(void *what)
{
    struct generator *g = what;
    for (int k = LENGTHS - 1; k >= 0; k--) {
        tess_step_free(g->step[k]);
        tess_graph_free(g->graph[k]);
    }
    tess_ids_free(&g->ids);
    free(g->logits);
    tess_tokenizer_free(g->tokenizer);
    tess_model_close(g->model);
    *g = (struct generator){.adapter = g->adapter};
}

static int64_t length_of(const struct generator *g, int k)
{
    int64_t length = (int64_t)SHORTEST << k;
    return length < g->most ? length : g->most;
}

/* The graph for contexts of at most length_of(k), made when first needed; number 0 holds the weights. */
static tess_status need_graph(struct generator *g, int k)
{
    if (g->step[k]) return TESS_OK;
    g->graph[k] = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32, .share = k ? g->graph[0] : NULL});
    TESS_TRY(tess_model_build(g->model, g->graph[k], 1, length_of(g, k), TESS_FOR_LOGITS, &g->net[k]));
    return tess_step_new(g->net[k].output, &(tess_step_conf){0}, &g->step[k]);
}

/* The graph that holds a text of n tokens, or as many of its last ones as the model knows positions. */
static int graph_for(const struct generator *g, int64_t n)
{
    int k = 0;
    while (length_of(g, k) < n && length_of(g, k) < g->most) k++;
    return k;
}

/* StarPU below a limit of its own on RAM, where what the text will need at its longest has room: below one that is too
 * low it would wait for ever. */
static tess_status start(struct generator *g, const tess_generate_conf *c)
{
    tess_machine machine = TESS_MACHINE_DEFAULT;
    tess_plan plan;
    const int k = graph_for(g, (int64_t)g->ids.count + c->tokens - 1), workers = tess_cores();
    TESS_TRY(need_graph(g, 0)); /* has the weights */
    TESS_TRY(need_graph(g, k));
    tess_step_plan(g->step[k], &plan);
    const char *name;
    const uint64_t limit = tess_cpu_limit(&name), ram = tess_ram_free(),
                   needed = plan.peak_ram + (uint64_t)(workers - 1) * plan.resident[TESS_ROLE_SCRATCH];
    if (needed > (limit ? limit : ram)) {
        char would[128] = "";
        if (limit) snprintf(would, sizeof would, " (%s=%llu would do)", name, (unsigned long long)(needed >> 20) + 1);
        return tess_error(TESS_INVALID, limit ? name : "memory", "a text of %lld tokens needs %s in RAM, %s is %s%s",
                          (long long)length_of(g, k), tess_human_bytes((double)needed), limit ? "the cap" : "free",
                          tess_human_bytes((double)(limit ? limit : ram)), would);
    }
    if (limit && !tess_gpus()) {
        machine.cpu_bytes = limit;
        machine.cpu_tiles = limit - tess_plan_fixed(&plan, workers);
    }
    return tess_start(&machine);
}

/* logits (V) of what comes after the context. */
static tess_status look_ahead(struct generator *g)
{
    int64_t n = (int64_t)g->ids.count < g->most ? (int64_t)g->ids.count : g->most;
    const int k = graph_for(g, n);
    TESS_TRY(need_graph(g, k));
    int32_t *padded = tess_alloc((size_t)length_of(g, k) * sizeof *padded);
    memcpy(padded, g->ids.id + g->ids.count - n, (size_t)n * sizeof *padded);
    tess_status status = tess_step_feed(g->step[k], g->net[k].ids, padded);
    free(padded);
    TESS_TRY(status);
    TESS_TRY(tess_step_feed(g->step[k], g->net[k].index, &(int32_t){(int32_t)n - 1}));
    tess_step_result r;
    TESS_TRY(tess_step_run(g->step[k], &(tess_step_input){0}, &r));
    return tess_step_output(g->step[k], g->logits);
}

static int descending(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

/* The least logit that top_k lets through. */
static float threshold(const struct generator *g, int top_k)
{
    if (top_k <= 0 || top_k >= g->vocab) return -INFINITY;
    float *sorted = tess_alloc((size_t)g->vocab * sizeof *sorted);
    memcpy(sorted, g->logits, (size_t)g->vocab * sizeof *sorted);
    qsort(sorted, (size_t)g->vocab, sizeof *sorted, descending);
    float least = sorted[top_k - 1];
    free(sorted);
    return least;
}

static int32_t draw(const struct generator *g, const tess_generate_conf *c, uint64_t place)
{
    int64_t best = 0;
    for (int64_t i = 1; i < g->vocab; i++)
        if (g->logits[i] > g->logits[best]) best = i;
    if (c->temperature <= 0) return (int32_t)best;
    float least = threshold(g, c->top_k);
    double sum = 0, at = (tess_random(c->seed, 0, 0, place) + 0.5) / 4294967296.0;
    for (int64_t i = 0; i < g->vocab; i++)
        if (g->logits[i] >= least) sum += exp((g->logits[i] - g->logits[best]) / c->temperature);
    at *= sum;
    for (int64_t i = 0; i < g->vocab; i++)
        if (g->logits[i] >= least && (at -= exp((g->logits[i] - g->logits[best]) / c->temperature)) <= 0)
            return (int32_t)i;
    return (int32_t)best;
}

/* Prints what a new token adds, holding back the beginning of a character. */
static void print(const struct generator *g, int32_t id, char *held, size_t *nheld, FILE *out)
{
    size_t n;
    const char *bytes = tess_tokenizer_bytes(g->tokenizer, id, &n);
    for (size_t i = 0; i < n; i++) {
        held[(*nheld)++] = bytes[i];
        if (tess_utf8_unfinished(held, *nheld) > 0 && *nheld < 4) continue;
        fwrite(held, 1, *nheld, out);
        *nheld = 0;
    }
    fflush(out);
}

static tess_status generate(const tess_generate_conf *c, struct generator *g, FILE *out)
{
    char held[8];
    size_t nheld = 0;
    TESS_TRY(tess_tokenizer_encode(g->tokenizer, "--prompt", c->prompt, strlen(c->prompt), &g->ids));
    if (g->ids.count == 0) {
        int32_t start = tess_tokenizer_end_of_text(g->tokenizer);
        tess_ids_push(&g->ids, start >= 0 ? start : '\n');
    }
    for (size_t i = 0; i < g->ids.count; i++)
        if (g->ids.id[i] >= g->vocab)
            return tess_error(TESS_INVALID, "--prompt",
                              "token %d is beyond the vocabulary of %lld (is this the model's own tokenizer?)",
                              (int)g->ids.id[i], (long long)g->vocab);
    TESS_TRY(start(g, c));
    TESS_TRY(tess_model_load(g->model, g->graph[0], 0));
    fputs(c->prompt, out);
    for (int i = 0; i < c->tokens; i++) {
        TESS_TRY(look_ahead(g));
        int32_t id = draw(g, c, (uint64_t)i);
        if (id == tess_tokenizer_end_of_text(g->tokenizer)) break;
        tess_ids_push(&g->ids, id);
        print(g, id, held, &nheld, out);
    }
    fwrite(held, 1, nheld, out); /* the text may end within a character */
    fputc('\n', out);
    return ferror(out) ? tess_error(TESS_FAILED, "output", "cannot be written") : TESS_OK;
}

tess_status tess_generate(const tess_generate_conf *c, FILE *out)
{
    struct generator g = {.adapter = c ? c->adapter : NULL};
    if (!c || !c->dir || !c->prompt || !out)
        return tess_error(TESS_INVALID, "generate", "a directory, a prompt or an output is NULL");
    char *path = NULL;
    tess_status status = tess_checkpoint_open(c->dir, open_generator, close_generator, &g, &path);
    if (status == TESS_OK && strcmp(path, c->dir)) tess_note("the newest checkpoint in %s: %s", c->dir, path);
    free(path);
    if (status == TESS_OK) status = generate(c, &g, out);
    close_generator(&g);
    tess_stop();
    return status;
}
