/* Texts that the small models go on with: greedy ones against transformers' (fixtures/make_generation.py), what the
 * cache gives against the whole text at once, and draws against a second way to make them. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/train/generate/writer_impl.h"
#include "tests/check.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
static const char *const families[] = {"families/llama3",
                                       "families/llama-linear",
                                       "families/qwen2",
                                       "families/qwen3",
                                       "families/mistral",
                                       "families/qwen2-window",
                                       "families/gemma2",
                                       "families/qwen3-window",
                                       "families/gpt-neox",
                                       "families/t5",
                                       "families/t5-gated",
                                       "families/gpt-neox-serial",
                                       "gpt2-tiny",
                                       "families/mixtral",
                                       "families/qwen3-moe",
                                       "families/qwen3-moe-step",
                                       "families/qwen3-5",
                                       "families/qwen3-5-layers",
                                       "families/qwen3-5-published",
                                       "families/phi3",
                                       "families/phi3-short",
                                       "families/phi4",
                                       "families/olmo2",
                                       "families/olmo2-biases",
                                       "families/olmo3",
                                       "families/smollm3",
                                       "families/smollm3-window",
                                       "families/granite",
                                       "families/gemma3",
                                       "families/gemma3-older",
                                       "families/gpt-oss",
                                       "families/gpt-oss-mxfp4",
                                       "families/deepseek-v3",
                                       "families/deepseek-v3-wide",
                                       "families/deepseek-v3-fp8"};
#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) {                                                                                       \
            CHECK_SAY("%s: %s", #expr, tess_error_text());                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
enum { FAMILIES = sizeof families / sizeof families[0], TEXTS = 4 };

static const char *path_of(const char *family, const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, TESS_FIXTURES "/%s%s", family, name);
    return path;
}

/* ---- a writer, and what was written with transformers ---- */

struct bench {
    tess_model *model;
    tess_config *config;
    tess_writer *writer;
    json_t *expected;
    int64_t batch;
};

static struct bench bench_open(const char *family, bool bf16, tess_writer_conf conf)
{
    struct bench b = {.expected = json_load_file(path_of(family, "/generation.json"), 0, NULL),
                      .batch = conf.batch ? conf.batch : 1};
    CHECK(b.expected);
    const char *const set[] = {bf16 ? "bf16.enabled=true" : "bf16.enabled=false", "train_batch_size=1"};
    OK(tess_config_open(NULL, set, 2, 1, &b.config));
    OK(tess_model_open(path_of(family, ""), NULL, &b.model));
    conf.config = b.config;
    OK(tess_writer_new(b.model, &conf, &b.writer));
    return b;
}
static void bench_close(struct bench *b)
{
    tess_writer_free(b->writer);
    tess_stop();
    tess_model_close(b->model);
    tess_config_close(b->config);
    json_decref(b->expected);
}

static tess_ids ids_of(const json_t *list)
{
    tess_ids ids = {0};
    for (size_t i = 0; i < json_array_size(list); i++)
        tess_ids_push(&ids, (int32_t)json_integer_value(json_array_get(list, i)));
    return ids;
}

/* Reads texts from their beginning, shorter ones with padding in front. */
static void read_texts(struct bench *b, const tess_ids *text, const tess_ids *encoded)
{
    int64_t pad[TEXTS], longest = 0;
    int32_t ids[TEXTS * 64];
    for (int64_t t = 0; t < b->batch; t++)
        if ((int64_t)text[t].count > longest) longest = (int64_t)text[t].count;
    for (int64_t t = 0; t < b->batch; t++) {
        pad[t] = longest - (int64_t)text[t].count;
        for (int64_t i = 0; i < longest; i++) ids[t * longest + i] = i < pad[t] ? 1 : text[t].id[i - pad[t]];
    }
    tess_writer_begin(b->writer, pad);
    if (encoded) {
        const int32_t *of[TEXTS];
        size_t length[TEXTS];
        for (int64_t t = 0; t < b->batch; t++) of[t] = encoded[t].id, length[t] = encoded[t].count;
        OK(tess_writer_encode(b->writer, of, length));
    }
    OK(tess_writer_read(b->writer, ids, longest));
}

/* All prompts, or one of them, read and gone on with as the command does. */
static void go_on(struct bench *b, int first, const tess_sampling *how, int tokens, tess_ids text[TEXTS])
{
    int32_t next[TEXTS];
    const bool encodes = tess_model_answers(b->model) == TESS_ANSWERS_DECODER;
    tess_ids prompt[TEXTS];
    for (int64_t t = 0; t < b->batch; t++) {
        prompt[t] = ids_of(json_array_get(json_object_get(b->expected, "prompts"), (size_t)(first + t)));
        text[t] = encodes ? (tess_ids){0}
                          : ids_of(json_array_get(json_object_get(b->expected, "prompts"), (size_t)(first + t)));
        if (encodes) tess_ids_push(&text[t], 0);
    }
    read_texts(b, text, encodes ? prompt : NULL);
    for (int i = 0; i < tokens; i++) {
        for (int64_t t = 0; t < b->batch; t++) {
            next[t] = tess_draw(how, tess_writer_logits(b->writer, t), tess_model_vocab(b->model), text[t].id,
                                text[t].count, (uint64_t)(first + t), (uint64_t)i);
            tess_ids_push(&text[t], next[t]);
        }
        if (i + 1 < tokens && tess_writer_turns(b->writer, 1))
            read_texts(b, text, NULL);
        else if (i + 1 < tokens)
            OK(tess_writer_read(b->writer, next, 1));
    }
    for (int64_t t = 0; t < b->batch; t++) tess_ids_free(&prompt[t]);
}

/* As far as the likeliest token led by more than `lead`. Returns how many were compared. */
static int compare(const struct bench *b, const char *what, const char *leads, int which, const tess_ids *text,
                   double lead, const char *family)
{
    const json_t *want = json_array_get(json_object_get(b->expected, what), (size_t)which),
                 *by = json_array_get(json_object_get(b->expected, leads), (size_t)which),
                 *prompt = json_array_get(json_object_get(b->expected, "prompts"), (size_t)which);
    const size_t given = tess_model_answers(b->model) == TESS_ANSWERS_DECODER ? 1 : json_array_size(prompt);
    size_t i = 0;
    for (; i < json_array_size(want) && given + i < text->count; i++) {
        if (json_number_value(json_array_get(by, i)) <= lead) break;
        if (text->id[given + i] == json_integer_value(json_array_get(want, i))) continue;
        CHECK_SAY("%s, prompt %d: token %zu is %d, transformers has %d", family, which, i, (int)text->id[given + i],
                  (int)json_integer_value(json_array_get(want, i)));
        return 0;
    }
    return (int)i;
}

static int64_t added(const struct bench *b)
{
    return (int64_t)json_array_size(json_array_get(json_object_get(b->expected, "greedy"), TEXTS - 1));
}

static void check_family(const char *family, bool bf16, double lead)
{
    const tess_sampling greedy = {.temperature = 0}, penalized = {.repetition_penalty = 1.3};
    json_t *expected = json_load_file(path_of(family, "/generation.json"), 0, NULL);
    const struct bench of = {.expected = expected};
    const int tokens = (int)added(&of);
    /* Small blocks: the cache has several, windows reach over their ends, prompts are read in pieces. How the longest
     * text turns goes for its batch, so those that differ in it are alone. */
    const int batch = strstr(family, "phi") ? 1 : TEXTS;
    struct bench b = bench_open(
        family, bf16,
        (tess_writer_conf){.batch = batch, .longest = 30 + tokens - 1, .encoded = 30, .block = 16, .rows = 8});
    tess_ids text[TEXTS];
    for (int round = 0; round < 2; round++) {
        int compared = 0;
        for (int t = 0; t < TEXTS; t += batch) go_on(&b, t, round ? &penalized : &greedy, tokens, text + t);
        for (int t = 0; t < TEXTS; t++) {
            compared += compare(&b, round ? "penalized" : "greedy", round ? "penalized_lead" : "lead", t, &text[t],
                                lead, family);
            tess_ids_free(&text[t]);
        }
        if (compared < (bf16 ? 2 : TEXTS * tokens)) CHECK_SAY("%s: %d tokens were compared", family, compared);
    }
    bench_close(&b);
    /* Alone, in one block. */
    b = bench_open(family, bf16, (tess_writer_conf){.longest = 30 + tokens - 1, .encoded = 30});
    go_on(&b, 2, &greedy, tokens, text);
    compare(&b, "greedy", "lead", 2, &text[0], lead, family);
    tess_ids_free(&text[0]);
    bench_close(&b);
    json_decref(expected);
}

TEST(greedy_texts_are_those_of_transformers)
{
    for (int k = 0; k < FAMILIES; k++) check_family(families[k], false, -1);
}

/* PyTorch rounds elsewhere: they are held to what no rounding decides. One model's experts weigh so much, each nearly
 * what the whole block does, that a row which chooses another one goes elsewhere. */
TEST(greedy_texts_in_bf16_are_near_them)
{
    for (int k = 0; k < FAMILIES; k++)
        if (strcmp(families[k], "families/deepseek-v3")) check_family(families[k], true, 0.05);
}

/* ---- the cache against the whole text at once ---- */

static void whole(const struct bench *b, const tess_ids *text, float *logits)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_network net;
    tess_step *step;
    OK(tess_model_build(b->model, g, 1, (int64_t)text->count, TESS_FOR_LOGITS, &net));
    OK(tess_step_new(net.output, &(tess_step_conf){0}, &step));
    OK(tess_model_load(b->model, g, 0));
    OK(tess_step_feed(step, net.ids, text->id));
    OK(tess_step_feed(step, net.index, &(int32_t){(int32_t)text->count - 1}));
    OK(tess_step_run(step, NULL, NULL));
    OK(tess_step_output(step, logits));
    tess_step_free(step);
    tess_graph_free(g);
}

TEST(the_cache_gives_the_logits_of_the_whole_text)
{
    const tess_sampling greedy = {.temperature = 0};
    for (int k = 0; k < FAMILIES; k++) {
        if (strstr(families[k], "t5")) continue; /* its encoder is whole */
        struct bench b = bench_open(families[k], false, (tess_writer_conf){.longest = 40, .block = 16, .rows = 8});
        const int64_t vocab = tess_model_vocab(b.model);
        float *logits = tess_alloc((size_t)vocab * sizeof *logits);
        tess_ids text[TEXTS];
        const int64_t most = tess_model_positions(b.model);
        const int tokens = most && most < 20 ? (int)most - 13 : 7;
        go_on(&b, 2, &greedy, tokens, text);
        text[0].count--; /* which was not read */
        whole(&b, &text[0], logits);
        double far = 0, size = 0;
        for (int64_t i = 0; i < vocab; i++) {
            far = fmax(far, fabs((double)logits[i] - tess_writer_logits(b.writer, 0)[i]));
            size = fmax(size, fabs((double)logits[i]));
        }
        if (!(far <= 1e-5 * fmax(1, size))) CHECK_SAY("%s: logits are off by %g of %g", families[k], far, size);
        free(logits);
        tess_ids_free(&text[0]);
        bench_close(&b);
    }
}

/* More than are kept steps for: what one said is said by its second. */
TEST(prompts_of_many_lengths)
{
    enum { LENGTHS = 10, LONGEST = 16 * LENGTHS };
    struct bench b = bench_open("families/llama3", false, (tess_writer_conf){.longest = LONGEST});
    const size_t bytes = (size_t)tess_model_vocab(b.model) * sizeof(float);
    char *said = tess_alloc(LENGTHS * bytes);
    int32_t ids[LONGEST];
    for (int i = 0; i < LONGEST; i++) ids[i] = 1 + i % 7;
    for (int k = 0; k < 2 * LENGTHS; k++) {
        char *of = said + (size_t)(k % LENGTHS) * bytes;
        tess_writer_begin(b.writer, &(int64_t){0});
        OK(tess_writer_read(b.writer, ids, 16 * (k % LENGTHS + 1)));
        if (k < LENGTHS)
            memcpy(of, tess_writer_logits(b.writer, 0), bytes);
        else
            CHECK(!memcmp(of, tess_writer_logits(b.writer, 0), bytes));
    }
    free(said);
    bench_close(&b);
}

/* ---- a context larger than RAM ---- */

/* Many heads on narrow rows: a cache of 256 KiB a token. */
static const char *const wide =
    "{\"model_type\": \"llama\", \"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 64, "
    "\"num_hidden_layers\": 4, "
    "\"num_attention_heads\": 128, \"head_dim\": 64, \"max_position_embeddings\": 8192, \"initializer_range\": 0.3}";
enum { CAP_MIB = 48, LONG = 4 * CAP_MIB * 4 + 3 };

/* The logits behind a long text and one token more; the bytes of tiles that RAM held at most. */
static uint64_t read_long(const char *const *set, size_t count, float logits[101])
{
    tess_config *config;
    tess_model *model;
    tess_writer *w;
    uint64_t now, peak;
    OK(tess_config_open(NULL, set, count, 1, &config));
    OK(tess_model_open(NULL, wide, &model));
    OK(tess_writer_new(model, &(tess_writer_conf){.config = config, .longest = LONG + 1, .block = 64}, &w));
    int32_t *ids = tess_alloc(LONG * sizeof *ids);
    for (int i = 0; i < LONG; i++) ids[i] = i * 7 % 101;
    tess_writer_begin(w, &(int64_t){0});
    OK(tess_writer_read(w, ids, LONG));
    OK(tess_writer_read(w, ids, 1));
    memcpy(logits, tess_writer_logits(w, 0), 101 * sizeof *logits);
    tess_tier_use(TESS_TIER_CPU, &now, &peak);
    free(ids);
    tess_writer_free(w);
    tess_stop();
    tess_model_close(model);
    tess_config_close(config);
    return peak;
}

TEST(a_context_of_four_times_the_cap)
{
    static const char *const free_of[] = {"train_batch_size=1"};
    char dir[] = "generation-XXXXXX", path[64], ram[64];
    CHECK(mkdtemp(dir));
    snprintf(path, sizeof path, "memory.path=%s", dir);
    snprintf(ram, sizeof ram, "memory.cpu=%dMiB", CAP_MIB);
    const char *const capped[] = {"train_batch_size=1", ram, path};
    float logits[101], same[101];
    const uint64_t cache = (uint64_t)LONG * 4 * 2 * 128 * 64 * sizeof(float), cap = (uint64_t)CAP_MIB << 20;
    CHECK(cache >= 4 * cap);
    CHECK(read_long(free_of, 1, logits) > cache);
    const uint64_t peak = read_long(capped, 3, same);
    if (peak > cap) CHECK_SAY("RAM held %.1f MiB of tiles", (double)peak / (1 << 20));
    CHECK(!memcmp(logits, same, sizeof logits));
    rmdir(dir);
}

/* ---- draws ---- */

/* The tokens that may be drawn and their probabilities, sorted as one would by hand: what transformers' warpers leave,
 * in their order. */
struct chance {
    int id;
    double logit, p;
};
static int by_logit(const void *a, const void *b)
{
    const struct chance *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->id - y->id;
}
static int by_id(const void *a, const void *b)
{
    return ((const struct chance *)a)->id - ((const struct chance *)b)->id;
}

static int expected_draw(const tess_sampling *s, const float *logits, int vocab, const int32_t *text, size_t count,
                         uint64_t stream, uint64_t place)
{
    struct chance c[256];
    int n = vocab;
    for (int i = 0; i < vocab; i++) {
        bool had = false;
        for (size_t k = 0; k < count; k++) had |= text[k] == i;
        c[i] = (struct chance){i, logits[i], 0};
        if (had)
            c[i].logit = (float)(logits[i] < 0 ? logits[i] * s->repetition_penalty : logits[i] / s->repetition_penalty);
    }
    qsort(c, (size_t)n, sizeof *c, by_logit);
    if (s->temperature == 0) return c[0].id;
    if (s->top_k > 0)
        for (n = 0; n < vocab && c[n].logit >= c[s->top_k - 1].logit;) n++;
    double sum = 0, below = 0;
    for (int i = 0; i < n; i++) sum += c[i].p = exp((c[i].logit - c[0].logit) / s->temperature);
    if (s->top_p > 0 && s->top_p < 1) {
        int kept = n;
        for (; kept > 1; kept--) { /* from the unlikeliest on, as long as what goes has no more than 1 - p */
            below += c[kept - 1].p / sum;
            if (below > 1 - s->top_p) break;
        }
        n = kept;
    }
    sum = 0;
    for (int i = 0; i < n; i++) sum += c[i].p;
    qsort(c, (size_t)n, sizeof *c, by_id);
    double at = (tess_random(s->seed, stream, 0, place) + 0.5) / 4294967296.0 * sum;
    for (int i = 0; i < n; i++)
        if ((at -= c[i].p) <= 0) return c[i].id;
    return c[n - 1].id;
}

TEST(draws_are_those_of_a_second_way)
{
    enum { VOCAB = 211 };
    const double penalties[] = {1, 1.4}, temperatures[] = {0, 0.7, 1.5}, shares[] = {0.05, 0.5, 0.93, 1};
    const int64_t ks[] = {0, 1, 7, VOCAB};
    float logits[VOCAB];
    int32_t text[20];
    int kinds = 0;
    for (int round = 0; round < 12; round++) {
        for (int i = 0; i < VOCAB; i++) /* some are equal */
            logits[i] = (float)((int)(tess_random(9, (uint64_t)round, 1, (uint64_t)i) % 60) - 30) / 6;
        for (int i = 0; i < 20; i++) text[i] = (int32_t)(tess_random(9, (uint64_t)round, 2, (uint64_t)i) % VOCAB);
        for (size_t a = 0; a < 2; a++)
            for (size_t b = 0; b < 3; b++)
                for (size_t c = 0; c < 4; c++)
                    for (size_t d = 0; d < 4; d++) {
                        const tess_sampling s = {.repetition_penalty = penalties[a],
                                                 .temperature = temperatures[b],
                                                 .top_p = shares[c],
                                                 .top_k = ks[d],
                                                 .seed = 5};
                        const int got = tess_draw(&s, logits, VOCAB, text, 20, (uint64_t)round, 3);
                        const int want = expected_draw(&s, logits, VOCAB, text, 20, (uint64_t)round, 3);
                        if (got != want)
                            CHECK_SAY("penalty %g, temperature %g, p %g, k %d: %d, expected %d", penalties[a],
                                      temperatures[b], shares[c], (int)ks[d], got, want);
                        kinds++;
                    }
    }
    CHECK(kinds == 12 * 96);
}
