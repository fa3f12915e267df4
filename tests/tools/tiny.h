/* What the tests of the command run on: a tiny model, its configuration, data in every format, and weights files taken
 * apart. All paths are in the directory of fresh(). */
#ifndef TESS_TESTS_TINY_H
#define TESS_TESTS_TINY_H
#include "tests/tools/run.h"
#include <dirent.h>
#include <jansson.h>

#define TINY_MODEL                                                                                                     \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 32, \"n_layer\": 2, "            \
    "\"n_head\": 4}"

#define TINY_WEIGHTS "out/model/model.safetensors" /* of a run that is done */
#define TINY_ENDLESS "steps=1000000"

enum { TINY_TOKENS = 4000, TINY_T = 16, TINY_BATCH = 4 };

/* A text that is easier to predict the longer one looks: words of a small vocabulary in an order of no meaning. */
static inline void tiny_text(char *text, size_t bytes, unsigned state)
{
    static const char *const words[] = {"the ", "tile ", "moves ", "and ", "rests ", "on ", "a ", "disk.\n"};
    for (size_t n = 0; n < bytes; state = state * 1103515245u + 12345u) {
        const char *word = words[state >> 16 & 7];
        for (; *word && n < bytes; word++) text[n++] = *word;
    }
}

static inline void write_tiny_text(const char *path, size_t bytes, unsigned state)
{
    char *text = malloc(bytes);
    tiny_text(text, bytes, state);
    write_file(path, text, bytes);
    free(text);
}

/* Takes a cache's rates of this machine as measured while nothing else ran. Those of a busy machine are not kept, and
 * each command would measure them anew, which takes twenty times as long as the rest of it: then the best that were met
 * are. Returns whether there are any. */
static inline bool keep_rates(const char *path)
{
    json_t *c = json_load_file(path, 0, NULL), *rates = json_object_get(c, "rates");
    const json_t *best = json_object_get(json_object_get(c, "best"), "cores");
    const double cores = json_number_value(json_object_get(json_object_get(c, "machine"), "cores")),
                 f32 = json_number_value(json_object_get(best, "f32")),
                 bf16 = json_number_value(json_object_get(best, "bf16"));
    const bool quiet = json_number_value(json_object_get(rates, "share")) >= 1;
    if (!rates && f32 > 0 && bf16 > 0 && cores > 0) {
        rates = json_pack("{s:f, s:f, s:f, s:f, s:f, s:f}", "matrix_rate_f32", f32, "matrix_rate_f32_one_core",
                          f32 / cores, "matrix_rate_bf16", bf16, "matrix_rate_bf16_one_core", bf16 / cores, "copy_rate",
                          20e9, "copy_rate_one_core", 10e9);
        json_object_set_new(c, "rates", rates);
    }
    if (rates && !quiet) {
        const char *temporary = fmt("%s.%d", path, (int)getpid());
        json_object_set_new(rates, "share", json_real(1));
        if (json_dump_file(c, temporary, JSON_INDENT(4)) || rename(temporary, path)) unlink(temporary);
    }
    json_decref(c);
    return rates != NULL;
}

/* The rates are there from now on. Needs a run.json. */
static inline void calm_machine(void)
{
    const char *home = getenv("XDG_CACHE_HOME"), *cores[] = {"", "-1"}; /* of all cores, of a rank's */
    for (int i = 0; i < 2 && home; i++) {
        const char *path = fmt("%s/tessera/machine%s.json", home, cores[i]);
        if (keep_rates(path)) continue;
        if (i) setenv("STARPU_NCPU", "1", 1);
        RUN("estimate", "run.json");
        if (i) unsetenv("STARPU_NCPU");
        keep_rates(path);
    }
}

/* run.json: 4 steps of the tiny model, whose members `extra` follow; text.txt and valid.txt to run on. One run after
 * another goes to the same output, which has to be said. */
static inline void tiny_setup_with(const char *extra)
{
    char text[2000];
    fresh();
    write_tiny_text("text.txt", TINY_TOKENS, 1);
    write_tiny_text("valid.txt", 600, 2);
    snprintf(text, sizeof text,
             "{\"model\": %s,\n \"data\": {\"train\": \"text.txt\", \"valid\": \"valid.txt\", \"seq_length\": %d},\n"
             " \"train_batch_size\": %d, \"steps\": 4, \"output\": \"out\", \"overwrite\": true%s}\n",
             TINY_MODEL, TINY_T, TINY_BATCH, extra);
    write_text("run.json", text);
    calm_machine();
}

static inline void tiny_setup(void)
{
    tiny_setup_with("");
}

/* The same with four blocks that are four times as wide, 13 MiB of states in fp32, and a directory "swap" for them;
 * `members` are those of run.json beside model, data and output. */
static inline void wide_setup_with(const char *members)
{
    char text[2000];
    fresh();
    mkdir("swap", 0777);
    write_tiny_text("text.txt", TINY_TOKENS, 1);
    snprintf(text, sizeof text,
             "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 128,"
             " \"n_layer\": 4, \"n_head\": 4},\n \"data\": {\"train\": \"text.txt\", \"seq_length\": 32},\n"
             " \"output\": \"out\", \"overwrite\": true, %s}\n",
             members);
    write_text("run.json", text);
    calm_machine();
}
/* Behind it an error names the least memory.cpu that would do. */
#define WIDE_LEAST "any step of this run (memory.cpu="

/* A tiny run, and base/, which has the configuration of a model without weights, and a tokenizer. */
static inline void tiny_setup_tokenizer(void)
{
    char config[300];
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizer_gpt2.json", NULL);
    json_t *root = json_loads(tokenizer ? tokenizer : "", 0, NULL);
    const size_t words = json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
    CHECK(words > 256);
    snprintf(config, sizeof config,
             "{\"model_type\": \"gpt2\", \"vocab_size\": %zu, \"n_positions\": 32, \"n_embd\": 16, \"n_layer\": 1, "
             "\"n_head\": 2}",
             words + 8);
    write_text("base/config.json", config);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    json_decref(root);
    free(tokenizer);
}

/* A tiny run, and a model that was trained a step, in out/model. */
static inline void tiny_setup_trained(void)
{
    tiny_setup();
    DONE("train", "run.json", "steps=1");
}

/* ---- data files; token: (n) ---- */

static inline void write_llmc(const char *path, const uint8_t *token, int n)
{
    int32_t header[256] = {20240520, 1, n};
    FILE *f = fopen(path, "wb");
    fwrite(header, sizeof header, 1, f);
    for (int i = 0; i < n; i++) fwrite(&(uint16_t){token[i]}, 2, 1, f);
    fclose(f);
}

/* The text as tokens, for a model whose tokens are more than bytes. */
static inline void write_tiny_tokens(const char *path, int n, unsigned state)
{
    uint8_t *token = malloc((size_t)n);
    tiny_text((char *)token, (size_t)n, state);
    write_llmc(path, token, n);
    free(token);
}

/* PREFIX.bin and PREFIX.idx, of uint16, in two sequences and documents. */
static inline void write_megatron(const char *prefix, const uint8_t *token, int n)
{
    char path[64];
    int64_t cut = n / 3;
    snprintf(path, sizeof path, "%s.bin", prefix);
    FILE *f = fopen(path, "wb");
    for (int i = 0; i < n; i++) fwrite(&(uint16_t){token[i]}, 2, 1, f);
    fclose(f);
    snprintf(path, sizeof path, "%s.idx", prefix);
    f = fopen(path, "wb");
    fwrite("MMIDIDX\0\0", 9, 1, f);
    fwrite(&(uint64_t){1}, 8, 1, f);
    fwrite(&(uint8_t){8}, 1, 1, f);
    fwrite((uint64_t[]){2, 3}, 8, 2, f);
    fwrite((int32_t[]){(int32_t)cut, n - (int32_t)cut}, 4, 2, f);
    fwrite((int64_t[]){0, 2 * cut}, 8, 2, f);
    fwrite((int64_t[]){0, 1, 2}, 8, 3, f);
    fclose(f);
}

/* ---- what a run left ---- */

/* The objects of a metrics.jsonl in an array, which the caller has to json_decref; a line that is none is a null. */
static inline json_t *read_metrics(const char *path)
{
    json_t *all = json_array();
    char *text = read_file(path, NULL);
    for (char *line = text, *end; line && *line; line = end + 1) {
        if (!(end = strchr(line, '\n'))) end = line + strlen(line) - 1;
        json_t *one = json_loadb(line, (size_t)(end - line), 0, NULL);
        json_array_append_new(all, one ? one : json_null());
    }
    free(text);
    return all;
}

static inline int count_lines(const char *path)
{
    char *text = read_file(path, NULL);
    int n = 0;
    for (const char *p = text; p && (p = strchr(p, '\n')); p++) n++;
    free(text);
    return n;
}

static inline double number_of(const json_t *metrics, size_t line, const char *name)
{
    const json_t *n = json_object_get(json_array_get(metrics, line), name);
    return json_is_number(n) ? json_number_value(n) : NAN;
}

/* Bytes of a line of an estimate, as far as its three digits go. */
static inline double line_of(const char *label)
{
    char unit[8] = "";
    double number = NAN;
    const char *at = strstr(ran.out, label);
    if (!at || sscanf(at + strlen(label), "%lf %7s", &number, unit) != 2) return NAN;
    return number * (!strcmp(unit, "GiB") ? 0x1p30 : !strcmp(unit, "MiB") ? 0x1p20 : !strcmp(unit, "KiB") ? 0x1p10 : 1);
}

/* ---- a weights file in pieces ---- */

struct weights {
    json_t *header;
    char *file; /* owned; the tensors begin at `at` */
    size_t bytes, at;
};

static inline struct weights weights_read(const char *path)
{
    struct weights w = {0};
    w.file = read_file(path, &w.bytes);
    uint64_t length = 0;
    if (w.file) memcpy(&length, w.file, sizeof length);
    w.at = 8 + (size_t)length;
    w.header = w.file ? json_loadb(w.file + 8, (size_t)length, 0, NULL) : NULL;
    if (!w.header) {
        fprintf(stderr, "%s is no safetensors file\n", path);
        exit(99);
    }
    return w;
}

/* With the tensors' bytes as they were read, and `more` zero bytes behind them. */
static inline void weights_write(const struct weights *w, const char *path, size_t more)
{
    char *text = json_dumps(w->header, JSON_COMPACT);
    FILE *f = fopen(path, "wb");
    fwrite(&(uint64_t){strlen(text)}, 8, 1, f);
    fwrite(text, 1, strlen(text), f);
    fwrite(w->file + w->at, 1, w->bytes - w->at, f);
    for (size_t i = 0; i < more; i++) fputc(0, f);
    fclose(f);
    free(text);
}

static inline void weights_free(struct weights *w)
{
    json_decref(w->header);
    free(w->file);
}

/* Changes the entry of a tensor in the header. */
static inline void weights_set(struct weights *w, const char *tensor, const char *member, json_t *value)
{
    CHECK(!json_object_set_new(json_object_get(w->header, tensor), member, value));
}

/* The first byte of a tensor in w->file. */
static inline size_t weights_place(const struct weights *w, const char *name)
{
    const json_t *offsets = json_object_get(json_object_get(w->header, name), "data_offsets");
    return w->at + (size_t)json_integer_value(json_array_get(offsets, 0));
}

#endif
