/* GGUF files: those of fixtures/make_gguf.py, which ggml's own package wrote, as they are read; what is written beside
 * what it writes; runs from them, wherever their parts lie; and what is refused. */
#define CHECK_MAIN
#include "models/files/safetensors/safetensors.h"
#include "models/networks/networks.h"
#include "models/text/base/gguf.h"
#include "models/text/base/mapped.h"
#include "models/text/tokenizer/tokenizer.h"
#include "tests/rows.h"
#include "tests/tools/tiny.h"

#define FEW    TESS_FIXTURES "/gguf/few.gguf"
#define LLAMA3 TESS_FIXTURES "/gguf/llama3-q8_0.gguf"

/* All elements of a tensor, `at_once` at a time. */
static float *read_all(const tess_safetensor *t, int64_t at_once)
{
    float *out = malloc((size_t)t->elements * sizeof *out);
    for (int64_t e = 0; e < t->elements; e += at_once)
        CHECK_EQ(tess_safetensor_read(t, e, t->elements - e < at_once ? t->elements - e : at_once, out + e), TESS_OK);
    return out;
}

TEST(few_bits_are_the_floats_that_their_makers_make_of_them)
{
    tess_safetensors *s = NULL;
    size_t count = 0;
    CHECK_EQ(tess_safetensors_open(FEW, &s), TESS_OK);
    for (struct rows r = rows_of(TESS_FIXTURES "/gguf/few.tsv"); s && rows_next(&r); count++) {
        const tess_safetensor *t = tess_safetensors_find(s, r.column[0]);
        if (!t) CHECK_SAY("%s:%d: no %s", r.path, r.line, r.column[0]);
        const char *shape = t && t->rank == 2 ? fmt("%lld,%lld", (long long)t->dims[0], (long long)t->dims[1])
                                              : fmt("%lld", t ? (long long)t->dims[0] : 0);
        CHECK(!strcmp(shape, r.column[1]) && t && t->mapped);
        for (int64_t at_once = 7; t && at_once < 100000; at_once *= 41) {
            float *out = read_all(t, at_once);
            const char *sum =
                fmt("%016llx", (unsigned long long)tess_sum_bytes(TESS_SUM, out, (size_t)t->elements * sizeof *out));
            if (strcmp(sum, r.column[2])) CHECK_SAY("%s:%d: %lld at once: %s", r.path, r.line, (long long)at_once, sum);
            free(out);
        }
        if (t) tess_safetensor_forget(t);
    }
    CHECK(s && count == tess_safetensors_count(s) && count == 12);
    tess_safetensors_close(s);
}

TEST(config_json_follows_from_its_values)
{
    static const char *const want =
        "{\"model_type\": \"llama\", \"architectures\": [\"LlamaForCausalLM\"], "
        "\"max_position_embeddings\": 48, \"hidden_size\": 256, \"num_hidden_layers\": 1, "
        "\"intermediate_size\": 32, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, "
        "\"head_dim\": 16, \"rope_theta\": 500000.0, \"rms_norm_eps\": 1e-5, \"vocab_size\": "
        "16, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"mlp_bias\": "
        "false, \"attention_bias\": false, \"bos_token_id\": 1, \"eos_token_id\": 2}";
    json_t *root = NULL, *expected = json_loads(want, 0, NULL);
    CHECK_EQ(tess_gguf_beside(FEW "/config.json", &root), TESS_OK);
    if (!json_equal(root, expected)) CHECK_SAY("%s", json_dumps(root, 0));
    json_decref(root);
    json_decref(expected);
}

/* ---- written ---- */

struct opened {
    tess_map map;
    tess_gguf g;
};
static struct opened open_gguf(const char *path)
{
    struct opened o = {0};
    CHECK_EQ(tess_map_open(path, &o.map), TESS_OK);
    CHECK_EQ(tess_gguf_read(path, o.map.data, o.map.bytes, &o.g), TESS_OK);
    return o;
}
static void close_gguf(struct opened *o)
{
    tess_gguf_free(&o->g);
    tess_map_close(&o->map);
}
static const uint8_t *bytes_of(const struct opened *o, const json_t *entry)
{
    return o->map.data + o->g.data + json_integer_value(json_object_get(entry, "offset"));
}

TEST(what_is_written_is_what_the_package_writes)
{
    fresh();
    DONE("export", "--gguf", "ours.gguf", "--dtype", "q8_0", TESS_FIXTURES "/families/llama3");
    struct opened ours = open_gguf("ours.gguf"), theirs = open_gguf(LLAMA3);
    const char *name;
    json_t *value, *entry;
    json_object_foreach(theirs.g.meta, name, value)
    {
        if (!json_equal(value, json_object_get(ours.g.meta, name))) CHECK_SAY("%s", name);
    }
    json_object_foreach(theirs.g.tensors, name, entry)
    {
        const json_t *mine = json_object_get(ours.g.tensors, name);
        const json_int_t type = json_integer_value(json_object_get(entry, "type"));
        size_t elements = 1, i;
        json_array_foreach(json_object_get(entry, "shape"), i, value) elements *= (size_t)json_integer_value(value);
        const size_t bytes = type == 0 ? 4 * elements : type == 1 ? 2 * elements : elements / 32 * 34;
        CHECK(json_equal(json_object_get(entry, "shape"), json_object_get(mine, "shape")));
        if (!mine || type != json_integer_value(json_object_get(mine, "type")) ||
            memcmp(bytes_of(&ours, mine), bytes_of(&theirs, entry), bytes))
            CHECK_SAY("%s: other bytes", name);
    }
    CHECK_EQ(json_object_size(ours.g.tensors), json_object_size(theirs.g.tensors) + 1); /* rope_freqs.weight */
    close_gguf(&ours);
    close_gguf(&theirs);
}

/* Every tensor of a directory has its bits in the file in F32. */
static void check_back(const char *family, size_t prefix)
{
    tess_safetensors *a = NULL, *b = NULL;
    const char *dir = fmt(TESS_FIXTURES "/%s", family), *file = fmt("%s.gguf", strrchr(dir, '/') + 1);
    DONE("export", "--gguf", file, "--dtype", "f32", dir);
    CHECK_EQ(tess_safetensors_open(dir, &a), TESS_OK);
    CHECK_EQ(tess_safetensors_open(file, &b), TESS_OK);
    CHECK(tess_safetensors_count(a) == tess_safetensors_count(b) && tess_safetensors_count(b) > 10);
    for (size_t i = 0; i < tess_safetensors_count(a); i++) {
        const tess_safetensor *t = tess_safetensors_at(a, i);
        const tess_safetensor *u =
            tess_safetensors_find(b, strncmp(t->name, "lm_head", 7) ? t->name + prefix : t->name);
        float *x = read_all(t, t->elements), *y = u ? read_all(u, u->elements) : NULL;
        const bool turned = u && t->rank == 2 && strstr(t->name, ".c_"); /* GPT-2's */
        bool same = u && t->rank == u->rank && t->dims[0] == u->dims[turned];
        for (int64_t k = 0, n = t->rank == 2 ? t->dims[1] : 1; same && k < t->elements; k++)
            same = !memcmp(&x[k], &y[turned ? k % n * t->dims[0] + k / n : k], sizeof *x);
        if (!same) CHECK_SAY("%s: %s has other bits", family, t->name);
        free(x);
        free(y);
    }
    tess_safetensors_close(a);
    tess_safetensors_close(b);
}

TEST(every_family_comes_back)
{
    static const char *const families[] = {"llama3", "mistral", "qwen2", "qwen3", "olmo2", "granite"};
    fresh();
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) check_back(fmt("families/%s", families[i]), 6);
    check_back("gpt2-tiny", 12);
}

/* ---- tokenizers ---- */

static void check_ids(const tess_tokenizer *a, const tess_tokenizer *b)
{
    json_t *cases = json_load_file(TESS_FIXTURES "/tokenizer_cases.json", JSON_ALLOW_NUL, NULL), *row;
    size_t i;
    CHECK(json_array_size(cases) > 30);
    json_array_foreach(cases, i, row)
    {
        const json_t *text = json_object_get(row, "text");
        tess_ids ids[2] = {0};
        for (int k = 0; k < 2; k++)
            CHECK_EQ(
                tess_tokenizer_encode(k ? b : a, "case", json_string_value(text), json_string_length(text), &ids[k]),
                TESS_OK);
        if (ids[0].count != ids[1].count || (ids[0].count && memcmp(ids[0].id, ids[1].id, 4 * ids[0].count)))
            CHECK_SAY("case %zu: other ids", i);
        tess_ids_free(&ids[0]);
        tess_ids_free(&ids[1]);
    }
    json_decref(cases);
}

/* A tokenizer goes to a file and comes back, through another tokenizer.json. */
static void check_tokenizer(const char *fixture, const char *model, const char *pre)
{
    tess_gguf g = {json_pack("{ss}", "general.architecture", "llama"), json_object(), 0};
    tess_tokenizer *t[2] = {NULL};
    tess_bytes head = {0};
    fresh();
    char *text = read_file(fmt(TESS_FIXTURES "/%s", fixture), NULL);
    write_text("tokenizer.json", text);
    free(text);
    write_text("tokenizer_config.json", "{\"chat_template\": \"hello\"}");
    CHECK_EQ(tess_tokenizer_open(".", &t[0]), TESS_OK);
    CHECK_EQ(tess_tokenizer_gguf(".", tess_tokenizer_vocab(t[0]) + 3, g.meta), TESS_OK);
    tess_gguf_put(&head, &g);
    write_file("t.gguf", head.data, head.length);
    const char *said = tess_json_text(g.meta, "tokenizer.ggml.pre");
    CHECK(!strcmp(tess_json_text(g.meta, "tokenizer.ggml.model"), model) && !strcmp(said ? said : "", pre));
    CHECK(!strcmp(tess_json_text(g.meta, "tokenizer.chat_template"), "hello"));
    CHECK_EQ(json_array_size(json_object_get(g.meta, "tokenizer.ggml.tokens")), tess_tokenizer_vocab(t[0]) + 3);
    CHECK(!strcmp(tess_tokenizer_in("t.gguf"), "tokenizer.ggml"));
    for (int k = 0; k < 2; k++) {
        const tess_ids *side[2][2];
        CHECK_EQ(tess_tokenizer_open(k ? "again.json" : "t.gguf", &t[1]), TESS_OK);
        check_ids(t[0], t[1]);
        CHECK_EQ(tess_tokenizer_vocab(t[1]), tess_tokenizer_vocab(t[0]));
        for (int i = 0; i < 2; i++) tess_tokenizer_around(t[i], &side[i][0], &side[i][1]);
        CHECK(side[0][0]->count == side[1][0]->count && side[0][1]->count == side[1][1]->count);
        if (side[0][0]->count) CHECK_EQ(side[0][0]->id[0], side[1][0]->id[0]);
        tess_tokenizer_free(t[1]);
        CHECK_EQ(tess_tokenizer_save("t.gguf", "again.json"), TESS_OK);
    }
    tess_tokenizer_free(t[0]);
    free(head.data);
    tess_gguf_free(&g);
}

TEST(tokenizers_go_there_and_back)
{
    check_tokenizer("tokenizer_gpt2.json", "gpt2", "gpt-2");
    check_tokenizer("tokenizer_llama3.json", "gpt2", "llama-bpe");
    check_tokenizer("tokenizers/llama3.json", "gpt2", "llama-bpe");
    check_tokenizer("tokenizers/llama2.json", "llama", "");
}

/* ---- runs ---- */

#define WEIGHTS  "/model/model.safetensors"
#define ADAPTERS "/model/adapter_model.safetensors"
#define CAPPED   "memory.path=swap", "zero_optimization.stage=3"

TEST(a_run_from_a_file_has_the_bits_of_one_from_a_directory)
{
    wide_setup_with("\"train_batch_size\": 4, \"steps\": 4");
    DONE("train", "run.json", "output=base", "steps=1");
    DONE("export", "--gguf", "base.gguf", "--dtype", "f32", "base/model");
    CHECK_HAS(ran.out, "the model of base/model: base.gguf");
    DONE("train", "run.json", "model=base/model", "output=directory");
    DONE("train", "run.json", "model=base.gguf", "output=file");
    CHECK(same_file("file" WEIGHTS, "directory" WEIGHTS) && !same_file("file" WEIGHTS, "base" WEIGHTS));
    DONE("train", "run.json", "model=base.gguf", "output=capped", "memory.cpu=9MiB", CAPPED);
    CHECK(same_file("capped" WEIGHTS, "directory" WEIGHTS));
    WITH("ASAN_OPTIONS", "detect_leaks=0") /* Open MPI's */
    {
        DONE_RANKS(2, "train", "run.json", "model=base.gguf", "output=ranks");
        DONE_RANKS(2, "train", "run.json", "model=base/model", "output=ranks-directory");
    }
    CHECK(same_file("ranks" WEIGHTS, "ranks-directory" WEIGHTS));
    DONE("train", "run.json", "model=base.gguf", "output=resumed", "steps=2", "checkpoint.dir=ck",
         "checkpoint.every=2");
    DONE("train", "run.json", "model=base.gguf", "output=resumed", "checkpoint.dir=ck", "checkpoint.resume=true",
         "overwrite=false");
    CHECK(same_file("resumed" WEIGHTS, "directory" WEIGHTS));
    DONE("export", "--gguf", "checkpoint.gguf", "--dtype", "f32", "ck");
    DONE("export", "--gguf", "model.gguf", "--dtype", "f32", "resumed/model");
    DONE("generate", "base/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    char *said = strdup(ran.out);
    DONE("generate", "base.gguf", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    CHECK(!strcmp(said, ran.out));
    free(said);
}

/* Beneath adapters, which name the file as their base; folded in, they make the same directory. */
TEST(a_file_is_a_base)
{
    wide_setup_with("\"train_batch_size\": 4, \"steps\": 2, \"lora\": {\"r\": 4, \"targets\": [\"c_attn\", \"c_fc\"]}");
    DONE("train", "run.json", "output=base", "lora.r=auto", "lora.targets=[]");
    DONE("export", "--gguf", "base.gguf", "--dtype", "f32", "base/model");
    DONE("export", "--gguf", "few.gguf", "--dtype", "q8_0", "base/model");
    static const char *const bases[] = {"lora.base=as stored", "lora.base=nf4", "lora.base=int8"};
    for (int k = 0; k < 3; k++) {
        DONE("train", "run.json", "model=base/model", "output=directory", bases[k]);
        DONE("train", "run.json", "model=base.gguf", "output=file", bases[k]);
        CHECK(same_file("file" ADAPTERS, "directory" ADAPTERS));
        DONE("train", "run.json", "model=few.gguf", "output=few", bases[k]);
        DONE("train", "run.json", "model=few.gguf", "output=capped", "memory.cpu=7MiB", CAPPED, bases[k]);
        CHECK(same_file("capped" ADAPTERS, "few" ADAPTERS) && !same_file("few" ADAPTERS, "file" ADAPTERS));
    }
    DONE("generate", "file/model", "--prompt", "the tile", "-n", "4");
    DONE("merge", "base/model", "file/model", "merged-directory");
    DONE("merge", "base.gguf", "file/model", "merged-file");
    CHECK(same_file("merged-file/model.safetensors", "merged-directory/model.safetensors"));
    DONE("eval", "run.json", "model=merged-file", "lora.r=auto", "lora.targets=[]", "data.valid=text.txt");
    FAILS(2, ("export", "--gguf", "adapters.gguf", "file/model"), "file/model: is of adapters (tessera merge");
}

/* ---- what is refused ---- */

/* Opens what the bytes are as a model, its tensors and tokenizer: the first error is the one that is expected. */
static void refused(const void *bytes, size_t n, const char *error)
{
    tess_model *m = NULL;
    tess_safetensors *s = NULL;
    tess_tokenizer *t = NULL;
    write_file("bad.gguf", bytes, n);
    tess_status status = tess_model_open("bad.gguf", NULL, &m);
    if (status == TESS_OK) status = tess_safetensors_open("bad.gguf", &s);
    if (status == TESS_OK) status = tess_tokenizer_open("bad.gguf", &t);
    if (status != TESS_INVALID || !strstr(tess_error_text(), error) || strncmp(tess_error_text(), "bad.gguf", 8))
        CHECK_SAY("\"%s\", expected bad.gguf and \"%s\"", tess_error_text(), error);
    tess_error_clear();
    tess_tokenizer_free(t);
    tess_safetensors_close(s);
    tess_model_close(m);
}

/* A change of few.gguf: `n` bytes, `at` of them behind a text in it. */
static const struct {
    const char *text;
    int at, n;
    const char *bytes, *error;
} changes[] = {
    {"GGUF", 0, 4, "GGML", ": is no GGUF file"},
    {"GGUF", 4, 4, "\1\0\0\0", ": is of version 1 of GGUF (expected 2 or 3"},
    {"GGUF", 4, 4, "\0\0\0\3", ": is of version 50331648 of GGUF"},
    {"general.architecture", 32, 5, "mamba", ": general.architecture: mamba is not read of GGUF (known: llama, "},
    {"general.architecture", 20, 1, "\15", "a value of type 13, which is not known"},
    {"llama.block_count", 0, 17, "llama.block_depth", ": llama.block_depth: is not known of a llama"},
    {"llama.block_count", 0, 17, "general.file_type", ": general.file_type: is in it twice"},
    {"llama.block_count", 0, 1, "\xff", ": a text is no UTF-8"},
    {"llama.attention.value_length", 32, 1, "\10", ": llama.attention.value_length: is not what other keys say"},
    {"llama.attention.head_count", 30, 1, "\0", "num_attention_heads"},
    {"blk.0.attn_q.weight", 39, 1, "\15", ": blk.0.attn_q.weight: is of type 13, which is not read"},
    {"blk.0.attn_q.weight", 19, 1, "\11", "a tensor has more than 8 dimensions"},
    {"blk.0.attn_q.weight", 31, 1, "\37", "is no pairs of rows of llama.attention.head_count, 2, heads"},
    {"blk.0.attn_q.weight", 23, 1, "\1", "has rows that are no blocks of 256 elements"},
    {"blk.0.attn_v.weight", 45, 3, "\xff\xff\xff", "is not all within the file's 68480 bytes (is it truncated?)"},
};

TEST(damaged_files_are_refused_in_a_line)
{
    size_t n = 0;
    fresh();
    char *whole = read_file(FEW, &n), *bad = malloc(n);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        memcpy(bad, whole, n);
        char *at = memmem(bad, n, changes[i].text, strlen(changes[i].text));
        memcpy(at + changes[i].at, changes[i].bytes, (size_t)changes[i].n);
        refused(bad, n, changes[i].error);
    }
    refused(whole, 0, ": is no GGUF file");
    refused(whole, 300, ": ends within its header (is it truncated?)");
    refused(whole, n - 4000, "is not all within the file's 64480 bytes (is it truncated?)");
    write_file("cut.gguf", whole, n - 4000);
    write_text("data.jsonl", "{\"input_ids\": [1, 2, 3, 4]}\n");
    write_text("run.json",
               "{\"data\": {\"train\": \"data.jsonl\", \"seq_length\": 4}, \"train_batch_size\": 1, \"steps\": 1,"
               " \"output\": \"out\"}");
    FAILS(2, ("train", "run.json", "model=cut.gguf"), "cut.gguf: ", "is not all within the file");
    memcpy(memmem(whole, n, "blk.0.attn_q.weight", 19), "blk.0.attn_x", 12);
    write_file("other.gguf", whole, n);
    FAILS(2, ("train", "run.json", "model=other.gguf"), "other.gguf: tensor blk.0.attn_x.weight is no parameter");
    FAILS(2, ("train", "run.json", "model=missing.gguf"), "missing.gguf: cannot be opened");
    free(whole);
    free(bad);
}

TEST(what_has_no_place_is_refused)
{
    static const struct {
        const char *meta, *error;
    } heads[] = {
        {"{\"split.count\": 3}", ": split.count: is a part of a model"},
        {"{\"general.alignment\": 0}", ": general.alignment: "},
        {"{}", ": general.architecture: (none) is not read of GGUF"},
    };
    fresh();
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        tess_gguf g = {json_loads(heads[i].meta, 0, NULL), json_object(), 0};
        tess_bytes head = {0};
        tess_gguf_put(&head, &g);
        refused(head.data, head.length, heads[i].error);
        tess_gguf_free(&g);
        free(head.data);
    }
    static const char *const families = TESS_FIXTURES "/families";
    FAILS(2, ("export", "--gguf", "x.gguf", fmt("%s/gemma2", families)), "a gemma2 is not written to GGUF (known: ");
    FAILS(2, ("export", "--gguf", "x.gguf", fmt("%s/qwen2-window", families)),
          "use_sliding_window: true has no place in GGUF, where it would be false");
    FAILS(2, ("export", "--gguf", "x.gguf", fmt("%s/llama-dynamic", families)),
          "rope_type: dynamic has no place in GGUF");
    FAILS(2, ("export", "--gguf", "x.bin", fmt("%s/qwen2", families)), "x.bin: is no name that ends in .gguf");
    FAILS(2, ("export", "--gguf", "x.gguf", "--dtype", "q4", fmt("%s/qwen2", families)),
          "--dtype: q4 (expected f16, q8_0, bf16 or f32)");
    FAILS(2, ("export", "--gguf", "no/x.gguf", fmt("%s/qwen2", families)), "no/x.gguf: cannot be written: ");
    CHECK(!exists("x.gguf") && !exists("x.gguf.tmp"));
    run_file_limit = 4096;
    FAILS(1, ("export", "--gguf", "x.gguf", fmt("%s/qwen2", families)), "x.gguf: cannot be written: ");
    run_file_limit = 0;
    CHECK(!exists("x.gguf") && !exists("x.gguf.tmp"));
    DONE("export", "--gguf", "x.gguf", fmt("%s/mistral", families));
    CHECK_HAS(ran.err, "sliding_window 10 has no place in GGUF");
    FAILS(2, ("export", "--gguf", "x.gguf", fmt("%s/qwen2", families)), "x.gguf: is there already");
}
