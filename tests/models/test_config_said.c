/* The configuration: what is said of files, of keys without effect and of what others call keys. */
#define CHECK_MAIN
#include "tests/models/config_files.h"
#include "tests/models/notes.h"
#include "tests/rows.h"

/* ---- what is said of a file ---- */

static const char *notes_of(const char *json)
{
    tess_config c;
    notes_begin();
    CHECK_EQ(load_for(json, NULL, 1, &c), TESS_OK);
    const char *said = notes_read();
    tess_config_free(&c);
    return said;
}

TEST(keys_without_effect_draw_one_line)
{
    const char *said;
    said = notes_of("{\"train_batch_size\": 2, \"zero_optimization\": {\"overlap_comm\": true}}");
    CHECK_STR(said, "tessera: run.json: zero_optimization.overlap_comm: accepted without effect "
                    "(StarPU always overlaps transfers with work)\n");
    said =
        notes_of("{\"train_batch_size\": 2, \"steps_per_print\": 5, \"wall_clock_breakdown\": false, \"wandb\": {}}");
    CHECK_STR(said, "");
    said = notes_of(
        "{\"train_batch_size\": 2, \"dump_state\": true, \"flops_profiler\": {\"enabled\": true, \"top_modules\": 2}}");
    CHECK_STR(said, "tessera: run.json: flops_profiler.enabled: accepted without effect (instead: model_tflops and mfu "
                    "of each step in OUTPUT/metrics.jsonl, and tessera bench)\n"
                    "tessera: run.json: dump_state: accepted without effect (OUTPUT/config.json always holds what is "
                    "in force)\n");
    said = notes_of("{\"train_batch_size\": 2, \"flops_profiler\": {\"enabled\": false, \"top_modules\": 2},"
                    "\"tensorboard\": {\"enabled\": true, \"output_path\": \"x\", \"job_name\": \"y\"}}");
    CHECK_STR(said, "");
}

/* ---- what others publish ---- */

/* All that is said of a file and of settings behind it, errors as the command prints them. */
static tess_status say(const char *json, const char *const *set, size_t count, char *out, size_t size, tess_config *c)
{
    FILE *f = fopen("f.json", "wb");
    if (!f || fwrite(json, 1, strlen(json), f) != strlen(json) || fclose(f)) abort();
    tess_error_clear();
    notes_begin();
    tess_status status = tess_config_load("f.json", set, count, c);
    if (status == TESS_OK) status = tess_config_resolve(c, 2);
    snprintf(out, size, "%s", notes_read());
    if (status != TESS_OK) snprintf(out + strlen(out), size - strlen(out), "tessera: error: %s\n", tess_error_text());
    unlink("f.json");
    return status;
}

TEST(published_files_of_deepspeed)
{
    char said[8192];
    for (struct rows r = rows_of(TESS_TESTS "/models/deepspeed.tsv"); rows_next(&r);) {
        tess_config c;
        const char *set = r.column[2];
        const tess_status status = say(r.column[1], &set, *set != 0, said, sizeof said, &c);
        tess_config_free(&c);
        if ((status == TESS_OK) != !strcmp(r.column[3], "ok"))
            CHECK_SAY("%s:%d: %s: status %d: %s", r.path, r.line, r.column[0], status, said);
        for (int k = 4; k < r.columns; k++)
            if (!strstr(said, r.column[k]))
                CHECK_SAY("%s:%d: %s: \"%s\" is not in \"%s\"", r.path, r.line, r.column[0], r.column[k], said);
    }
}

TEST(settings_of_other_tools)
{
    char said[8192];
    for (struct rows r = rows_of(TESS_TESTS "/models/settings.tsv"); rows_next(&r);) {
        tess_config c;
        const char *set = r.column[0];
        const tess_status status = say(BATCH, &set, 1, said, sizeof said, &c);
        if ((status == TESS_OK) != !*r.column[1] || !strstr(said, r.column[1]))
            CHECK_SAY("%s:%d: %s: \"%s\"", r.path, r.line, r.column[0], said);
        if (!*r.column[1]) {
            CHECK_STR(said, "");
            CHECK(!c.checkpoint.dir && !c.data.valid && !c.model && !c.lora.targets);
            CHECK_STR(c.output, "runs/f");
        }
        tess_config_free(&c);
    }
}

/* A later source may set what an earlier one has wrong, and all that is left is said at once. */
TEST(what_is_wrong_is_said_at_the_end)
{
    static const char json[] = "{\"train_batch_size\": 8, \"steps\": \"many\", \"seed\": -1, \"sede\": 1}";
    const char *set[] = {"steps=3", "seed=2", "sede=null", "log_every=often"};
    char said[4096];
    tess_config c;
    CHECK_EQ(say(json, set, 3, said, sizeof said, &c), TESS_OK);
    CHECK_EQ(c.steps, 3);
    tess_config_free(&c);
    CHECK_EQ(say(json, set + 1, 3, said, sizeof said, &c), TESS_INVALID);
    CHECK_HAS(said, "tessera: f.json: steps: \"many\", expected");
    CHECK_HAS(said, "tessera: command line: log_every: \"often\", expected");
    CHECK_HAS(said, "tessera: error: f.json: 2 keys are refused, a line each above: steps, log_every\n");
    tess_config_free(&c);
}

/* What was written as "auto" is said once, with what it became; what was left out is not. */
TEST(what_auto_became_is_one_line)
{
    const char *said;
    said = notes_of(
        "{\"train_batch_size\": 2, \"gradient_clipping\": \"auto\", \"memory\": {\"cpu\": \"auto\"},"
        "\"optimizer\": {\"params\": {\"lr\": \"auto\"}}, \"scheduler\": {\"params\": {\"warmup_type\": \"auto\"}}}");
    CHECK_STR(said, "tessera: run.json: auto: optimizer.params.lr 0.001, gradient_clipping 1.0, "
                    "memory.cpu what is free, less a margin\n"); /* there is no scheduler */
    tess_config c;
    CHECK_EQ(load_for("{\"train_batch_size\": 2, \"seed\": \"auto\"}", "seed=4", 1, &c), TESS_OK);
    CHECK_EQ(c.seed, 4);
    tess_config_free(&c);
}

/* Beside a GPU tiles that are left open are larger, and a run says so where that cuts it otherwise. */
TEST(a_coarser_cut_is_one_line)
{
    static const struct {
        int64_t tokens, elements;
        bool says;
    } runs[] = {{512, 5 << 19, false}, {513, 1, true}, {1, (5 << 19) + 1, true}, {4096, 38597376, true}};
    tess_config c;
    CHECK_EQ(load_for("{\"train_batch_size\": 2, \"tiles\": {\"rows\": 2048}}", NULL, 1, &c), TESS_OK);
    CHECK(c.cpu_tiles.rows == 2048 && c.tiles.rows == 2048); /* it is given */
    CHECK(c.cpu_tiles.elements == 5 << 19 && c.cpu_tiles.loss_rows == 512);
    for (int gpu = 0; gpu < 2; gpu++) {
        c.tiles.elements = gpu ? 48 << 20 : 5 << 19; /* as it becomes there */
        c.tiles.loss_rows = gpu ? 2048 : 512;
        for (size_t k = 0; k < sizeof runs / sizeof *runs; k++) {
            notes_begin();
            tess_config_say_cut(&c, runs[k].tokens, runs[k].elements);
            const char *said = notes_read();
            CHECK_STR(
                said,
                gpu && runs[k].says
                    ? "tessera: tiles: cut for the GPU, tiles.rows=2048 tiles.elements=50331648 "
                      "tiles.loss_rows=2048; a machine without one cuts by 2048, 2621440 and 512, and its sums end "
                      "in other bits (set them where runs are to be compared)\n"
                    : "");
        }
    }
    tess_config_free(&c);
}

/* Old spellings, and keys in a section where DeepSpeed's files have them by mistake, mean what they mean. */
TEST(old_names)
{
    tess_config c;
    const char *said;
    static const char json[] =
        "{\"train_batch_size\": 2, \"bfloat16\": {\"enabled\": true}, \"zero_optimization\": {\"stage\": 3,"
        "\"aio\": {\"block_size\": 8192, \"thread_count\": 2}, \"cpu_offload\": true, \"cpu_offload_params\": true,"
        "\"prefetch_bucket_size\": 7, \"stage3_gather_fp16_weights_on_model_save\": true}}";
    CHECK_EQ(load_for(json, "zero_optimization.aio.queue_depth=3", 1, &c), TESS_OK);
    CHECK(c.bf16.enabled && c.aio.block_size == 8192 && c.aio.queue_depth == 3);
    CHECK_EQ(c.zero_optimization.stage3_prefetch_bucket_size, 7);
    CHECK_EQ(c.zero_optimization.offload_optimizer.device, TESS_OFFLOAD_CPU);
    CHECK_EQ(c.zero_optimization.offload_param.device, TESS_OFFLOAD_CPU);
    tess_config_free(&c);
    said = notes_of(json);
    CHECK_HAS(said, "tessera: run.json: read bfloat16 as bf16, zero_optimization.aio as aio, "
                    "aio.thread_count as aio.intra_op_parallelism, ");
    CHECK_EQ(load_for("{\"train_batch_size\": 2, \"zero_optimization\": true}", NULL, 1, &c), TESS_OK);
    CHECK_EQ(c.zero_optimization.stage, 1);
    tess_config_free(&c);
}

/* A guess that is far off is not made. */
TEST(no_wrong_guesses)
{
    static const struct {
        const char *set, *meant;
    } cases[] = {
        {"zero_optimization.bf16=1", "bf16"},
        {"zero_optimization.gradient_clipping=1", "gradient_clipping"},
        {"optimizer.lr=1", "optimizer.params.lr"},
        {"queue_depth=1", "aio.queue_depth"},
        {"zero_optimization.xyz=1", NULL},
        {"zero_optimization.state=1", "zero_optimization.stage"},
        {"zero_optimization.use_it=1", NULL},
        {"data.path=1", NULL},
        {"aio.depth=1", NULL},
        {"gpu=1", "memory.gpu"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char want[128];
        tess_config c;
        CHECK_EQ(load_for(BATCH, cases[i].set, 1, &c), TESS_INVALID);
        snprintf(want, sizeof want, "(did you mean %s?)", cases[i].meant);
        if (cases[i].meant)
            CHECK_HAS(tess_error_text(), want);
        else if (strstr(tess_error_text(), "did you mean"))
            CHECK_SAY("%s: %s", cases[i].set, tess_error_text());
        tess_config_free(&c);
    }
}

TEST(unknown_keys_name_the_nearest)
{
    REFUSED("{\"optimizer\": {\"params\": {\"learning_rate\": 1}}}",
            "run.json: optimizer.params.learning_rate: unknown key (did you mean optimizer.params.lr?)");
    REFUSED("{\"optimiser\": {\"type\": \"Adam\"}}", "run.json: optimiser: unknown key (did you mean optimizer?)");
    REFUSED("{\"zero_optimization\": {\"stage_3_max_live_parameters\": 1}}",
            "run.json: zero_optimization.stage_3_max_live_parameters: unknown key "
            "(did you mean zero_optimization.stage3_max_live_parameters?)");
    REFUSED("{\"aio\": {\"que_depth\": 1}}", "run.json: aio.que_depth: unknown key (did you mean aio.queue_depth?)");
    REFUSED("{\"lr\": 1}", "run.json: lr: unknown key (did you mean optimizer.params.lr?)");
    REFUSED("{\"data\": {\"vaild\": \"x\"}}", "run.json: data.vaild: unknown key (did you mean data.valid?)");
    REFUSED("{\"xyzzyplugh\": 1}",
            "run.json: xyzzyplugh: unknown key, expected one that tessera train --help all lists");
    REFUSED("{\"optimizer.params.lr\": 1}",
            "run.json: optimizer.params.lr: a dotted name in a file, expected objects inside one another");
    REFUSED("{\"\": 1}", "run.json: : unknown key, expected one that tessera train --help all lists");
    REFUSED("{\"optimizer\": 3}", "run.json: optimizer: a single value, expected an object of keys");
    REFUSED_SET("optimizer.params.betaz=1",
                "command line: optimizer.params.betaz: unknown key (did you mean optimizer.params.betas?)");
    REFUSED_SET("optimizer=Adam",
                "command line: optimizer: a group of keys, expected one of its keys, as in optimizer.NAME=VALUE");
    REFUSED_SET("steps", "command line: \"steps\", expected KEY=VALUE");
    char text[600];
    snprintf(text, sizeof text, "{\"%0500d\": 1}", 1);
    tess_config c;
    CHECK_EQ(load_for(text, NULL, 1, &c), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "unknown key, expected");
    tess_config_free(&c);
}
