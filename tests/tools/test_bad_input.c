/* What is wrong with what a user gives: one line on stderr, `tessera: error: WHERE: WHAT (HINT)`, and exit status 2. */
#define CHECK_MAIN
#include "tests/rows.h"
#include "tests/tools/tiny.h"

/* ---- the command line, the configuration, the model's fields, data: a row a mistake ---- */

/* Writes a text in which "@/" is the directory of fixtures. */
static void write_placed(const char *path, const char *text)
{
    FILE *f = fopen(path, "wb");
    for (const char *at; f && (at = strstr(text, "@/")); text = at + 1)
        fprintf(f, "%.*s%s", (int)(at - text), text, TESS_FIXTURES);
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
}

static void refuses(const struct rows *r, const char *command, const char *file)
{
    const char *arg[31] = {NULL}, *part[ROWS_COLUMNS + 1] = {NULL};
    char *line = strdup(fmt("%s %s", command, *file ? "" : r->column[0])), *word = strtok(line, " ");
    for (int n = 0; word && n < 30; word = strtok(NULL, " ")) arg[n++] = word;
    for (int i = 1; i < r->columns; i++) part[i - 1] = r->column[i];
    if (*file) write_text(file, r->column[0]);
    run_finish(run_start(arg));
    const char *wrong = run_error_mismatch(2, part);
    if (wrong) CHECK_SAY("%s:%d: %s", r->path, r->line, wrong);
    if (exists("out") || exists(fmt("%s.index", file)))
        CHECK_SAY("%s:%d: %s left something", r->path, r->line, ran.what);
    free(line);
}

TEST(refusals)
{
    char command[200] = "", file[40] = "";
    for (struct rows r = rows_of(TESS_TESTS "/tools/refusals.tsv"); rows_next(&r);)
        if (!strncmp(r.column[0], "= ", 2)) {
            tiny_setup();
            snprintf(command, sizeof command, "%s", r.column[1]);
            snprintf(file, sizeof file, "%s", r.column[2]);
        } else if (!strncmp(r.column[0], "> ", 2)) {
            write_placed(r.column[0] + 2, r.column[1]);
        } else
            refuses(&r, command, file);
}

TEST(variables)
{
    tiny_setup();
    WITH("TESSERA_STEPSS", "1")
    FAILS(2, ("train", "run.json"), "environment: TESSERA_STEPSS", "did you mean TESSERA_STEPS?");
    WITH("TESSERA_STEPS", "0") FAILS(2, ("train", "run.json"), "environment: steps: 0", "a whole number from 1");
    write_text("none.json", "{\"model\": " TINY_MODEL ", \"data\": {\"train\": \"text.txt\"}, \"steps\": 1}");
    FAILS(2, ("train", "none.json"), "none.json: train_batch_size: missing", "two of the three");
    FAILS(2, ("train", "nowhere.json"), "nowhere.json: cannot be read: No such file", "a configuration file");
    FAILS(2, ("train", "."), ".: cannot be read");
    CHECK(!exists("out"));
}

TEST(output_that_cannot_be_written)
{
    tiny_setup();
    write_text("file", "mine");
    FAILS(2, ("train", "run.json", "output=file"), "file: cannot be created: Not a directory", "see output");
    FAILS(2, ("train", "run.json", "output=file/below/it"), "file/below/it: cannot be created: Not a directory");
    FAILS(2, ("train", "run.json", "checkpoint.dir=file/below", "checkpoint.every=1"),
          "file/below: cannot be written: Not a directory", "checkpoint.dir");
    FAILS(2, ("train", "run.json", "checkpoint.dir=file", "checkpoint.every=1"),
          "file: cannot be written: Not a directory", "checkpoint.dir");
    CHECK_EQ(file_size("file"), 4);
    CHECK(!exists("out/metrics.jsonl")); /* it ended before the first step */
}

TEST(more_memory_than_there_may_be)
{
    tiny_setup();
    static const char needs[] = "memory.cpu: the run needs ";
    FAILS(2, ("train", "run.json", "memory.cpu=64KiB"), needs, "64.0 KiB", "MiB would do");
    RUN("train", "run.json", "train_batch_size=64", "memory.cpu=1MiB");
    /* a little less than that: it depends on the workers */
    FAILS(2, ("train", "run.json", "train_batch_size=64", fmt("memory.cpu=%ldMiB", named_in_error(needs) - 1)), needs,
          " MiB in RAM", "(train_micro_batch_size_per_gpu=", "gradient_accumulation_steps=");
    CHECK(!exists("out"));
}

/* ---- the model ---- */

/* Windows that some layers have, and weights of another shape. */
TEST(layers_and_weights_of_a_decoder)
{
    static const char model[] =
        "{\"model_type\": \"qwen2\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 40,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2}";
    tiny_setup();
    const char *argument = fmt("model=%s", model);
    FAILS(2, ("train", "run.json", argument, "model.use_sliding_window=true", "model.sliding_window=0"),
          "sliding_window: 0", "at least 1");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\", \"sliding_attention\"]"),
          "layer_types: layer 1 is sliding_attention", "use_sliding_window");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\", \"chunked_attention\"]"),
          "layer_types: \"chunked_attention\"", "full_attention sliding_attention");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\"]"), "layer_types has 1 word",
          "num_hidden_layers is 2");
    DONE("train", "run.json", argument, "steps=1");
    FAILS(2, ("train", "run.json", "model=out/model", "model.num_key_value_heads=1", "steps=1"), "k_proj", "(16,32)");
    FAILS(2, ("train", "run.json", "model=out/model", "model.num_hidden_layers=3", "steps=1"),
          "no tensor model.layers.2.");
}

TEST(a_directory_that_is_no_model)
{
    tiny_setup();
    FAILS(2, ("train", "run.json", "model=nowhere"), "nowhere/config.json: No such file", "a Hugging Face directory");
    mkdir("base", 0777);
    FAILS(2, ("train", "run.json", "model=base"), "base/config.json: No such file", "a Hugging Face directory");
    static const char *const bad[][2] = {
        {"{\"model_type\": ", "base/config.json: line 1, column"},
        {"[]", "base/config.json: is no JSON object"},
        {"{\"model_type\": \"llama5\"}", "base/config.json: model_type: llama5 is not known"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("base/config.json", bad[i][0]);
        FAILS(2, ("train", "run.json", "model=base"), bad[i][1]);
    }
    write_text("base/config.json", TINY_MODEL);
    FAILS(2, ("generate", "base", "--prompt", "a"), "base: has no model.safetensors", "OUTPUT/model");
    FAILS(2, ("generate", "nowhere", "--prompt", "a"), "nowhere/config.json: No such file");
    write_text("base/tokenizer.json", "{}");
    FAILS(2, ("train", "run.json", "model=base", "weights=drawn"), "base/tokenizer.json");
}

/* ---- weights ---- */

static const char *const file = "out/model/model.safetensors";

/* Every command that reads weights refuses them. */
static void expect_refused(const char *what, const char *more)
{
    FAILS(2, ("train", "run.json", "model=out/model", "output=next"), what, more);
    CHECK(!exists("next/model"));
    FAILS(2, ("eval", "run.json", "model=out/model"), what, more);
    FAILS(2, ("generate", "out/model", "--prompt", "a", "-n", "1"), what, more);
    CHECK_STR(ran.out, "");
}

TEST(truncated_weights)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    const size_t length[] = {0, 4, 8, w.at / 2, w.at, w.at + 5, w.bytes / 2, w.bytes - 1};
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        write_file(file, w.file, length[i]);
        expect_refused(file, "bytes");
    }
    weights_write(&w, file, 4);
    expect_refused("out/model/model.safetensors: 4 bytes follow the last tensor", "");
    weights_free(&w);
}

TEST(a_header_that_lies)
{
    static const char *const name = "transformer.h.0.attn.c_attn.bias"; /* (96) */
    tiny_setup_trained();
    struct weights w = weights_read(file);
    json_t *offsets = json_object_get(json_object_get(w.header, name), "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    const struct {
        json_int_t begin, end;
        const char *what;
    } cases[] = {
        {begin - 4, begin + 380, "overlap"},
        {begin + 4, begin + 388, "begins at byte"},
        {begin, begin + 380, "96 elements of F32 are 384"},
        {begin + 384, begin, "outside"},
        {-4, 380, "outside"},
        {begin, 1000000000, "outside"},
        {INT64_MAX - 384, INT64_MAX, "outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weights_set(&w, name, "data_offsets", json_pack("[I, I]", cases[i].begin, cases[i].end));
        weights_write(&w, file, 0);
        expect_refused(file, cases[i].what);
    }
    weights_set(&w, name, "data_offsets", json_pack("[I, I]", begin, begin + 384));
    weights_set(&w, name, "dtype", json_string("F31"));
    weights_write(&w, file, 0);
    expect_refused(name, "dtype F31 is not known");
    weights_set(&w, name, "dtype", json_string("I32"));
    weights_write(&w, file, 0);
    expect_refused(name, "is I32, expected floats");
    w.file[w.at - 1] = '?';
    write_file(file, w.file, w.bytes);
    FILE *f = fopen(file, "r+b"); /* a length of the header that no file has */
    fwrite(&(uint64_t){UINT64_MAX}, 8, 1, f);
    fclose(f);
    expect_refused("out/model/model.safetensors: header length", "");
    weights_free(&w);
}

TEST(tensors_of_another_model)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    weights_set(&w, "transformer.wte.weight", "shape", json_pack("[i, i]", 32, 256));
    weights_write(&w, file, 0);
    expect_refused("transformer.wte.weight has shape (32,256)", "(256,32)");
    weights_set(&w, "transformer.wte.weight", "shape", json_pack("[i, i]", 256, 32));

    json_t *gain = json_incref(json_object_get(w.header, "transformer.ln_f.weight"));
    json_object_del(w.header, "transformer.ln_f.weight");
    json_object_set(w.header, "transformer.h.0.attn.bias", gain); /* a mask that older files hold, and nobody reads */
    weights_write(&w, file, 0);
    expect_refused("no tensor transformer.ln_f.weight", "out/model");
    json_object_del(w.header, "transformer.h.0.attn.bias");
    json_object_set_new(w.header, "transformer.ln_f.weight", gain);

    json_int_t end = (json_int_t)(w.bytes - w.at);
    json_object_set_new(
        w.header, "transformer.h.2.ln_1.weight",
        json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", 32, "data_offsets", end, end + 128));
    weights_write(&w, file, 128);
    expect_refused("tensor transformer.h.2.ln_1.weight is no parameter", "config.json");
    json_object_del(w.header, "transformer.h.2.ln_1.weight");

    json_t *wte = json_object_get(w.header, "transformer.wte.weight"), *head = json_deep_copy(wte);
    json_object_set(w.header, "lm_head.weight", head); /* no copy of the tied one: zeros */
    json_object_set_new(head, "data_offsets", json_pack("[I, I]", end, end + 256 * 32 * 4));
    weights_write(&w, file, 256 * 32 * 4);
    expect_refused("tensor lm_head.weight differs from wte.weight", "tie_word_embeddings");
    json_decref(head);
    weights_free(&w);
}

TEST(shards_that_are_not_there)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    json_t *map = json_object(), *entry;
    const char *name;
    json_object_foreach(w.header, name, entry) if (strcmp(name, "__metadata__"))
        json_object_set_new(map, name, json_string("model-00001-of-00002.safetensors"));
    json_object_set_new(map, "transformer.wpe.weight", json_string("model-00002-of-00002.safetensors"));
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    json_dump_file(index, "out/model/model.safetensors.index.json", 0);
    rename(file, "out/model/model-00001-of-00002.safetensors");
    expect_refused("out/model/model-00002-of-00002.safetensors: cannot be opened: No such file", "");
    weights_write(&w, "out/model/model-00002-of-00002.safetensors", 0);
    expect_refused("is in out/model/model-0000", " too");
    write_text("out/model/model.safetensors.index.json", "{\"weight_map\": ");
    expect_refused("out/model/model.safetensors.index.json:1:", "JSON");
    json_decref(index);
    weights_free(&w);
}

/* ---- data ---- */

TEST(tokens_beyond_the_vocabulary)
{
    uint8_t token[TINY_TOKENS];
    tiny_setup();
    tiny_text((char *)token, TINY_TOKENS, 1);
    token[50] = 250;
    write_llmc("tokens.bin", token, 65); /* 4 samples of 16, all of them in the first step */
    write_llmc("valid.bin", token + 100, 65);
    FAILS(2, ("train", "run.json", "data.train=tokens.bin", "model.vocab_size=200", "data.valid=valid.bin"),
          "tokens.bin: byte 1124: token 250", "vocabulary of 200");
    write_megatron("corpus", token, 65);
    FAILS(2, ("train", "run.json", "data.train=corpus", "model.vocab_size=200", "data.valid=valid.bin"),
          "corpus.bin: byte 100: token 250", "vocabulary of 200");
    FAILS(2, ("eval", "run.json", "data.valid=corpus", "model.vocab_size=200"), "corpus.bin: byte 100: token 250",
          "vocabulary of 200");
    CHECK(!exists("out/model"));
}

TEST(a_megatron_index_that_is_wrong)
{
    uint8_t token[600] = {0};
    const struct {
        long at;
        uint8_t value;
        const char *where;
    } cases[] = {
        {0, 'X', "corpus.idx: byte 0: no Megatron index"},         {9, 2, "corpus.idx: byte 9: index version 2"},
        {17, 7, "corpus.idx: byte 17: dtype 7 is floating point"}, {17, 99, "corpus.idx: byte 17: dtype 99 is unknown"},
        {18, 200, "corpus.idx: byte 18: 200 sequences"},           {37, 0x80, "corpus.idx: byte 34: sequence 0 has -"},
        {50, 201, "corpus.idx: byte 50: sequence 1 is bytes 201"}, {74, 7, "corpus.idx: byte 74: document 2"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_megatron("corpus", token, 300);
        FILE *f = fopen("corpus.idx", "r+b");
        fseek(f, cases[i].at, SEEK_SET);
        fputc(cases[i].value, f);
        fclose(f);
        FAILS(2, ("train", "run.json", "data.train=corpus"), cases[i].where);
    }
    write_megatron("corpus", token, 300);
    cut_file("corpus.idx", 40);
    FAILS(2, ("train", "run.json", "data.train=corpus"), "corpus.idx: byte 18");
    write_megatron("corpus", token, 300);
    cut_file("corpus.bin", 500);
    FAILS(2, ("train", "run.json", "data.train=corpus"),
          "corpus.idx: byte 50: sequence 1 is bytes 200 to 600 of corpus.bin, which has 500");
    unlink("corpus.bin");
    FAILS(2, ("train", "run.json", "data.train=corpus"), "corpus.bin: cannot be opened: No such file");
    write_megatron("corpus", token, 600);
    FAILS(2, ("train", "run.json", "data.train=corpus.bin"), "corpus.bin: byte 0: magic", "give corpus");
    CHECK(!exists("out"));
}
