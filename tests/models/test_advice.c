/* What a run says unasked: the lines, and when there is none. */
#define CHECK_MAIN
#include "codelets/codelets.h"
#include "models/text/base/directories.h"
#include "models/train/config/config.h"
#include "models/train/rates/yardstick.h"
#include "models/train/run/run.h"
#include "tests/check.h"
#include "tests/models/lines.h"
#include "tests/models/notes.h"

static const char MODEL[] =
    "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 32, "
    "\"n_layer\": 2, \"n_head\": 4}";

/* A configuration of the small model, with settings up to a NULL. */
static tess_config *config_of(const char *const *more)
{
    const char *set[12] = {MODEL, "train_batch_size=4", "data.seq_length=32", "log_every=1"};
    size_t n = 4;
    tess_config *c = NULL;
    for (; *more; more++) set[n++] = *more;
    if (tess_config_open(NULL, set, n, 1, &c) != TESS_OK) CHECK_SAY("%s", tess_error_text());
    return c;
}
#define CONFIG(...) config_of((const char *const[]){__VA_ARGS__, NULL})

/* ---- the slower dtype ---- */

static const char WIDENED[] =
    "bf16.enabled: this CPU has no instructions for bf16, so it saves memory here, not time\n";

TEST(the_slower_dtype_is_said_with_what_the_other_takes)
{
    static const struct {
        double f32, bf16;
        const char *set, *says;
    } cases[] = {
        {74e9, 21e9, "bf16.enabled=true",
         "bf16.enabled: bf16 is multiplied at 21 GFLOP/s here, fp32 at 74: bf16.enabled=false is faster, and takes "},
        {74e9, 21e9, "bf16.enabled=false", NULL},
        {74e9, 700e9, "bf16.enabled=false",
         "bf16.enabled: fp32 is multiplied at 74 GFLOP/s here, bf16 at 700: bf16.enabled=true is faster, and takes "},
        {74e9, 700e9, "bf16.enabled=true", NULL},
        {74e9, 70e9, "bf16.enabled=true", WIDENED},
        {74e12, 21e12, "bf16.enabled=true", NULL}, /* it is over in a moment either way */
        {74e9, 21e9, "fp16.enabled=true", NULL},
    };
    const double none[TESS_YARDSTICKS] = {0};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        const tess_yardstick y = {
            .cores = 1, .share = 1, .matrix_rate = {[TESS_F32] = cases[k].f32, [TESS_BF16] = cases[k].bf16}};
        tess_config *c = CONFIG(cases[k].set, "steps=100000");
        tess_run r = {0};
        tess_holds p;
        tess_yardstick_given(&y, none);
        CHECK_EQ(tess_run_plan(c, 0, true, &p), TESS_OK);
        CHECK_EQ(tess_run_open(c, 0, &r), TESS_OK);
        notes_begin();
        tess_run_say_dtype(&r, &p);
        const char *said = notes_read();
        if (tess_gpus() > 0 || !cases[k].says || (cases[k].says == WIDENED && !tess_matrix_widened(TESS_BF16)))
            CHECK_STR(said, "");
        else
            CHECK_HAS(said, cases[k].says);
        tess_run_close(&r);
        tess_config_close(c);
    }
}

/* ---- a run that nobody saves ---- */

TEST(a_long_run_that_saves_nothing_says_so)
{
    static const struct {
        const char *set;
        double seconds;
        const char *says;
    } cases[] = {{"seed=1", 299, ""},
                 {"seed=1", 301, "tessera: checkpoint.dir: nothing is saved before the end, in some 6 minutes"},
                 {"checkpoint.dir=ck", 301, ""}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_config *c = CONFIG(cases[k].set);
        notes_begin();
        tess_run_say_unsaved(c, cases[k].seconds);
        const char *said = notes_read();
        CHECK(*cases[k].says ? strstr(said, cases[k].says) == said : !*said);
        tess_config_close(c);
    }
}

/* Drives wear. */
TEST(a_run_that_writes_a_terabyte_says_so)
{
    tess_run r = {.machine.disk = "drive", .plan.ram.written = 1 << 30};
    notes_begin();
    tess_run_say_written(&r, 900, 4e9);
    CHECK_STR(notes_read(), "");
    notes_begin();
    tess_run_say_written(&r, 2000, 4e9);
    CHECK_HAS(notes_read(), "tessera: drive: 2000 steps write 2.1 TB there");
    r.machine.disk = NULL;
    notes_begin();
    tess_run_say_written(&r, 2000, 4e9);
    CHECK_STR(notes_read(), "");
    tess_config c = {.checkpoint = {.dir = "saves", .every = 5}};
    r.c = &c;
    notes_begin();
    tess_run_say_written(&r, 2000, 4e9);
    CHECK_HAS(notes_read(), "tessera: saves: 400 checkpoints write 1.6 TB there (less with a larger checkpoint.every)");
    c.checkpoint.every = 10;
    notes_begin();
    tess_run_say_written(&r, 2000, 4e9);
    CHECK_STR(notes_read(), "");
}

/* ---- ends of lines ---- */

TEST(a_carriage_return_in_a_text_is_said_once)
{
    static const struct {
        const char *text, *says;
    } cases[] = {{"a line\r\nand another\r\n",
                  "byte 6: a carriage return, which is trained on as it stands (tr -d '\\r' takes them out)\n"},
                 {"a line\nand another\n", NULL}};
    tess_data_conf conf = causal;
    conf.seq_length = 4;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_data *data = NULL;
        write_text("t.txt", cases[k].text);
        notes_begin();
        CHECK_EQ(tess_data_open(in_dir("t.txt"), NULL, &conf, &data), TESS_OK);
        const char *said = notes_read(), *at = cases[k].says ? strstr(said, cases[k].says) : NULL;
        if (cases[k].says ? !at || strstr(at + 40, "carriage") : *said) CHECK_SAY("said: %s", said);
        tess_data_close(data);
    }
}

/* ---- padding ---- */

TEST(padding_is_said_with_the_length_that_has_none)
{
    static const char shorts[] = "{\"prompt\": \"abc\", \"completion\": \"defg\"}\n{\"prompt\": \"a\", \"completion\": "
                                 "\"bc\"}\n",
                      full[] = "{\"prompt\": \"0123456789abcdef\", \"completion\": \"0123456789abcde\"}\n",
                      text[] = "{\"text\": \"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\"}\n";
    static const struct {
        const char *train, *valid, *says;
    } cases[] = {
        {shorts, NULL,
         "tessera: data.seq_length: the longest sample has 7 tokens, and 84% of 32 are padding: data.seq_length=7 "
         "computes the same without it\n"},
        {shorts, shorts, "data.seq_length=7 computes the same"},
        {shorts, full, "the longest sample has 31 tokens, and 84% of 32 are padding: data.seq_length=31 "},
        {shorts, text, "84% of the batches is padding, since samples are shorter than 32 tokens"},
        {full, NULL, NULL},
        {text, NULL, NULL},
    };
    tess_data_conf conf = causal;
    conf.seq_length = 32, conf.end_of_text = 0;
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int again = 0; again < 2; again++) { /* with the index that the first made */
            const tess_run r = {.length = 32, .sequences = 1};
            tess_data *train = NULL, *valid = NULL;
            if (!again) write_text("t.jsonl", cases[k].train);
            CHECK_EQ(tess_data_open(in_dir("t.jsonl"), NULL, &conf, &train), TESS_OK);
            if (!again && cases[k].valid) write_text("v.jsonl", cases[k].valid);
            if (cases[k].valid) CHECK_EQ(tess_data_open(in_dir("v.jsonl"), NULL, &conf, &valid), TESS_OK);
            notes_begin();
            if (train) tess_run_say_padding(&r, train, valid);
            const char *said = notes_read();
            if (cases[k].says)
                CHECK_HAS(said, cases[k].says);
            else
                CHECK_STR(said, "");
            tess_data_close(train);
            tess_data_close(valid);
        }
}

/* ---- the rate of a model that has weights ---- */

TEST(a_rate_that_is_left_out_keeps_weights)
{
    static const struct {
        const char *model, *lr, *says;
        double rate;
    } cases[] = {{"model=" TESS_FIXTURES "/gpt2-tiny", "seed=1",
                  "optimizer.params.lr: 5e-05, since the model has weights", 5e-5},
                 {"model=" TESS_FIXTURES "/gpt2-tiny", "optimizer.params.lr=1e-3", "", 1e-3},
                 {"model=" TESS_FIXTURES "/gpt2-tiny", "optimizer.type=Lion", "optimizer.params.lr: 5e-05", 5e-5},
                 {"seed=2", "seed=1", "", 1e-3},
                 {"seed=2", "optimizer.type=Adagrad", "", 1e-2}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_config *c = CONFIG(cases[k].model, cases[k].lr, "scheduler.type=WarmupLR");
        notes_begin();
        tess_config_say_rate(c);
        const char *said = notes_read();
        CHECK(*cases[k].says ? strstr(said, cases[k].says) != NULL : !*said);
        CHECK(c->optimizer.params.lr == cases[k].rate && c->scheduler.params.warmup_max_lr == cases[k].rate);
        tess_config_close(c);
    }
}

/* ---- a path that is not there ---- */

/* Fails with a text, as a reader of a file does. */
static const char *lost(const char *file, const char *path)
{
    tess_config c = {.file = (char *)file};
    CHECK_EQ(tess_run_lost(&c, path, tess_error(TESS_INVALID, path, "is not there")), TESS_INVALID);
    return tess_error_text();
}

TEST(where_a_relative_path_was_looked_for_is_said)
{
    char here[1024], whole[4096];
    CHECK(getcwd(here, sizeof here) != NULL);
    snprintf(whole, sizeof whole, "none: is not there; looked in %s", here);
    CHECK_STR(lost("command line", "none"), whole);
    in_dir("x");
    mkdir(in_dir("sub"), 0700);
    write_text("sub/run.json", "{}");
    snprintf(whole, sizeof whole, "none: is not there; looked in %s, %s/sub/run.json lies in %s/%s/sub", here, dir,
             here, dir);
    CHECK_STR(lost(in_dir("sub/run.json"), "none"), whole);
    CHECK_STR(lost("command line", "/none"), "/none: is not there");
    CHECK_STR(lost("command line", "[\"none\"]"), "[\"none\"]: is not there");
    CHECK_STR(lost("command line", dir), strcat(strcpy(whole, dir), ": is not there")); /* it is wrong otherwise */
    write_text("pair.idx", "");
    CHECK(!strstr(lost("command line", in_dir("pair")), "looked in")); /* Megatron's prefix */
}

TEST(names_of_the_hub)
{
    static const struct {
        const char *name;
        bool hub;
    } cases[] = {{"gpt2", true},
                 {"meta-llama/Llama-3.2-1B", true},
                 {"a/b/c", false},
                 {"./gpt2", false},
                 {"/gpt2", false},
                 {"../gpt2", false},
                 {"", false},
                 {"a/", false},
                 {"what is this", false},
                 {".", false}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (tess_dirs_hub(cases[k].name) != cases[k].hub) CHECK_SAY("%s", cases[k].name);
    mkdir(in_dir("owner"), 0700);
    CHECK(chdir(dir) == 0);
    CHECK(!tess_dirs_hub("owner") && !tess_dirs_hub("owner/model")); /* what is there is no hub's */
    CHECK(chdir("..") == 0);
}

/* ---- room on the drives ---- */

/* What a drive has, as far as these tests say it. */
static uint64_t drive_has;
uint64_t __wrap_tess_drive_free(const char *path);
uint64_t __wrap_tess_drive_free(const char *path)
{
    CHECK(access(path, F_OK) == 0);
    return drive_has;
}

/* In fp32 the model is 4 bytes an element, and a checkpoint three times that. */
TEST(a_drive_that_is_too_small_is_said_before_the_first_step)
{
    static const struct {
        const char *set[3];
        bool resumes;
        uint64_t least; /* bytes an element */
        const char *says;
    } cases[] = {
        {{"output=none/o"}, false, 4, "none/o: the model will take "},
        {{"output=none/o", "save_dtype=bf16"}, false, 2, "none/o: the model will take "},
        {{"output=o", "checkpoint.dir=none/ck"}, false, 16, "none/ck: the model and 1 checkpoint will take "},
        {{"output=o", "checkpoint.dir=ck", "checkpoint.every=1"}, false, 40, "the model and 3 checkpoints "},
        {{"output=o", "checkpoint.dir=ck", "checkpoint.every=1"}, true, 16, "the model and 1 checkpoint "},
        {{"output=o", "checkpoint.dir=ck", "optimizer_states=bf16"}, false, 12, "1 checkpoint will take"},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_config *c = CONFIG("steps=10", cases[k].set[0], cases[k].set[1] ? cases[k].set[1] : "seed=1",
                                cases[k].set[2] ? cases[k].set[2] : "seed=1");
        tess_run r = {0};
        char text[512] = "";
        CHECK_EQ(tess_run_open(c, 0, &r), TESS_OK);
        drive_has = cases[k].least * (uint64_t)tess_graph_param_elements(r.g);
        if (tess_run_lacks_room(&r, cases[k].resumes, text)) CHECK_SAY("case %zu: %s", k, text);
        drive_has--;
        if (!tess_run_lacks_room(&r, cases[k].resumes, text)) CHECK_SAY("case %zu: nothing is said", k);
        CHECK_HAS(text, cases[k].says);
        tess_run_close(&r);
        tess_config_close(c);
    }
}

TEST(a_tier_that_the_drive_lacks_room_for_names_what_would_do)
{
    tess_run r = {0};
    tess_step *step = NULL;
    tess_config *c = CONFIG("data.seq_length=64", "tiles.rows=64", "memory.cpu=1MiB", "memory.path=.", "steps=1");
    free(c->model_json);
    c->model_json = tess_strdup("{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, "
                                "\"n_embd\": 256, \"n_layer\": 4, \"n_head\": 4}");
    c->memory.cpu = INT64_C(32) << 20;
    drive_has = UINT64_MAX;
    CHECK_EQ(tess_run_open(c, 0, &r), TESS_OK);
    r.rates = (tess_rates){1e9, 1e9, 1e9, 1e9, 1}; /* nothing is measured */
    CHECK_EQ(tess_run_tiers(&r, NULL), TESS_OK);
    CHECK_EQ(tess_run_train_step(&r, &step), TESS_OK);
    CHECK(r.plan.disk_bytes > 0);
    CHECK_EQ(tess_run_tier_room(&r), TESS_OK);
    drive_has = 1 << 20;
    CHECK_EQ(tess_run_tier_room(&r), TESS_INVALID);
    CHECK_HAS(tess_error_text(), ".: the disk tier needs ");
    CHECK_HAS(tess_error_text(), "1.0 MiB are free (memory.cpu=");
    tess_step_free(step);
    tess_run_close(&r);
    tess_config_close(c);
}
