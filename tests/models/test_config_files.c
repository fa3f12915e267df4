/* Run files that are not the configuration's own JSON: YAML, and files of other trainers. */
#define CHECK_MAIN
#include "models/train/config/config_impl.h"
#include "models/train/loop/schedule_impl.h"
#include "tests/models/config_files.h"
#include "tests/models/notes.h"
#include "tests/rows.h"

TEST(yaml_is_json)
{
    for (struct rows r = rows_of(TESS_TESTS "/models/yaml.tsv"); rows_next(&r);) {
        json_t *met, *want = json_loads(r.column[1], 0, NULL);
        tess_error_clear();
        const tess_status status = tess_yaml_read("run.yaml", r.column[0], strlen(r.column[0]), &met, NULL);
        char *text = json_dumps(met, JSON_COMPACT);
        if (want && (status != TESS_OK || !json_equal(met, want)))
            CHECK_SAY("%s:%d: %s%s", r.path, r.line, text ? text : "", tess_error_text());
        if (!want && (status != TESS_INVALID || strncmp(tess_error_text(), r.column[1], strlen(r.column[1]))))
            CHECK_SAY("%s:%d: %s%s", r.path, r.line, text ? text : "", tess_error_text());
        free(text);
        json_decref(met);
        json_decref(want);
    }
}

/* Aliases of aliases stand for more than any file is long. */
TEST(yaml_that_swells)
{
    char text[2000] = "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n";
    json_t *root;
    for (int i = 1; i < 10; i++)
        sprintf(text + strlen(text), "a%d: &a%d [*a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d, *a%d]\n", i, i,
                i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1, i - 1);
    CHECK_EQ(tess_yaml_read("run.yaml", text, strlen(text), &root, NULL), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "aliases that stand for more than 1048576 values");
    memset(text, '[', 1000);
    text[1000] = 0;
    CHECK_EQ(tess_yaml_read("run.yaml", text, strlen(text), &root, NULL), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "more than 64 values inside one another");
}

static const char yaml_name[] = "run.yaml";

static tess_status load_yaml(const char *text, tess_config *c)
{
    FILE *f = fopen(yaml_name, "wb");
    CHECK(f && fputs(text, f) >= 0 && !fclose(f));
    tess_error_clear();
    tess_status status = tess_config_load(yaml_name, NULL, 0, c);
    if (status == TESS_OK) status = tess_config_resolve(c, 1);
    unlink(yaml_name);
    return status;
}

TEST(a_run_in_yaml)
{
    tess_config c;
    CHECK_EQ(
        load_yaml("train_batch_size: 8\noptimizer:\n  params: {lr: 1e-4, betas: [0.9, 0.95]}\nbf16: {enabled: true}\n"
                  "eval_every: 0.25\ndata: {train: x, valid: y}\nsteps: 7\n",
                  &c),
        TESS_OK);
    CHECK(c.optimizer.params.lr == 1e-4 && c.optimizer.params.betas[1] == 0.95 && c.bf16.enabled);
    CHECK_STR(c.output, "runs/run");
    CHECK_EQ(tess_config_steps(c.eval_every, 7), 2);
    CHECK_EQ(tess_config_write(&c, "out.json"), TESS_OK);
    tess_config_free(&c);
    CHECK_EQ(tess_config_load("out.json", NULL, 0, &c), TESS_OK); /* the share is still one */
    CHECK_EQ(tess_config_steps(c.eval_every, 40), 10);
    tess_config_free(&c);
    CHECK_EQ(load_yaml("train_batch_size: 8\nstesp: 3\n", &c), TESS_INVALID);
    CHECK_STR(tess_error_text(), "run.yaml:2: stesp: unknown key (did you mean steps?)");
    tess_config_free(&c);
    static const char *const wrong[][2] = {
        {"steps: 3\noptimizer:\n  params:\n    lr: fast\n",
         "run.yaml:4: optimizer.params.lr: \"fast\", expected a number"},
        {"optimizer:\n  type: AdamW\n  parms: {lr: 1}\n", "run.yaml:3: optimizer.parms: unknown key"},
        {"base_model: m\n\noptimizer: muon\n", "run.yaml:3: optimizer: \"muon\", expected one of"},
        {"base_model: m\nseed: x\n", "run.yaml:2: seed: \"x\", expected a whole number"},
        {"base_model: m\nlearning_rate: x\n", "run.yaml: optimizer.params.lr: \"x\", expected a number"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ(load_yaml(wrong[i][0], &c), TESS_INVALID);
        CHECK_HAS(tess_error_text(), wrong[i][1]);
        tess_config_free(&c);
    }
}

/* Shares of all steps are rounded up, as transformers does. */
TEST(shares_of_all_steps)
{
    static const struct {
        const char *set;
        int64_t total, steps;
    } cases[] = {
        {"eval_every=0.1", 30, 3},         {"eval_every=0.1", 31, 4}, {"eval_every=0.16666666666666666", 60, 10},
        {"eval_every=3", 10, 3},           {"eval_every=0", 10, 0},   {"eval_every=0.999999999", 10, 10},
        {"eval_every=1e-300", 5000000, 1}, {"eval_every=1.0", 10, 1}, {"eval_every=0.08333333333333333", 120, 10}};
    tess_config c;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(load_bytes(BATCH, strlen(BATCH), &cases[i].set, 1, &c), TESS_OK);
        CHECK_EQ(tess_config_steps(c.eval_every, cases[i].total), cases[i].steps);
        tess_config_free(&c);
    }
    REFUSED_SET("eval_every=-0.5",
                "command line: eval_every: -0.5, expected a share of all steps below 1, or a whole number "
                "from 0 to 1e+12 (steps between passes over data.valid, below 1 a share of all steps; 0: "
                "one pass, after the last step, where data.valid is given)");
    REFUSED_SET("checkpoint.every=1.5",
                "command line: checkpoint.every: 1.5, expected a share of all steps below 1, or a "
                "whole number from 0 to 1e+12 (steps between checkpoints, below 1 a share of all "
                "steps; 0: only where the run ends, also by a signal)");
}

/* transformers' get_cosine_schedule_with_warmup: k / warmup, then the cosine of (k - warmup) / (total - warmup). */
TEST(cosine_of_transformers)
{
    static const double want[] = {0, 0.5, 1, 0.9330127018922193, 0.75, 0.5, 0.25, 0.0669872981077807, 0};
    static const char *const set[] = {"scheduler.type=cosine", "scheduler.params.warmup_num_steps=2",
                                      "scheduler.params.cos_min_ratio=0", "optimizer.params.lr=2", "steps=8"};
    tess_config c;
    CHECK_EQ(load_bytes(BATCH, strlen(BATCH), set, 5, &c), TESS_OK);
    CHECK_EQ(tess_config_resolve(&c, 1), TESS_OK);
    for (int k = 0; k < 9; k++) CHECK_NEAR(tess_schedule_lr(&c, k), 2 * want[k], 1e-12);
    c.scheduler.params.warmup_num_steps = 1;
    CHECK(tess_schedule_lr(&c, 0) == 0 && tess_schedule_lr(&c, 1) == 2);
    tess_config_free(&c);
}

/* transformers' get_wsd_schedule: 2 steps of warmup, 3 stable ones, 4 of decay, min_lr_ratio 1/8. */
TEST(warmup_stable_decay)
{
    static const char *const type[] = {"cosine", "linear", "1-sqrt"};
    static const double fall[][6] = {{1, 0.8718592167691145, 0.5625, 0.2531407832308855, 0.125, 0.125},
                                     {1, 0.78125, 0.5625, 0.34375, 0.125, 0.125},
                                     {1, 0.5625, 0.38128156646177086, 0.24222777168861623, 0.125, 0.125}};
    for (int t = 0; t < 3; t++) {
        char shape[64];
        snprintf(shape, sizeof shape, "scheduler.params.decay_type=%s", type[t]);
        const char *const set[] = {"scheduler.type=wsd",
                                   shape,
                                   "scheduler.params.warmup_num_steps=2",
                                   "scheduler.params.decay_num_steps=4",
                                   "scheduler.params.warmup_min_ratio=0.125",
                                   "scheduler.params.cos_min_ratio=0.125",
                                   "optimizer.params.lr=2",
                                   "steps=9"};
        tess_config c;
        CHECK_EQ(load_bytes(BATCH, strlen(BATCH), set, 8, &c), TESS_OK);
        CHECK_EQ(tess_config_resolve(&c, 1), TESS_OK);
        CHECK_NEAR(tess_schedule_lr(&c, 0), 2 * 0.125, 1e-12);
        CHECK_NEAR(tess_schedule_lr(&c, 1), 2 * 0.5625, 1e-12);
        for (int k = 2; k < 5; k++) CHECK(tess_schedule_lr(&c, k) == 2);
        for (int k = 0; k < 6; k++) CHECK_NEAR(tess_schedule_lr(&c, 5 + k), 2 * fall[t][k], 1e-12);
        tess_config_free(&c);
    }
    const char *const shares[] = {"scheduler.type=wsd", "scheduler.params.warmup_num_steps=0.2",
                                  "optimizer.params.lr=2", "steps=10"};
    tess_config c;
    CHECK_EQ(load_bytes(BATCH, strlen(BATCH), shares, 4, &c), TESS_OK);
    CHECK_EQ(tess_config_resolve(&c, 1), TESS_OK);
    tess_schedule_settle(&c);
    CHECK_EQ(c.scheduler.params.total_num_steps, 10);
    CHECK_EQ(c.scheduler.params.warmup_num_steps, 2);
    CHECK_EQ(c.scheduler.params.decay_num_steps, 1);
    tess_config_free(&c);
}

/* ---- other trainers ---- */

/* Returns whether a key is so: "optimizer.params.lr 0.0002". */
static bool key_is(const tess_config *c, const char *want)
{
    const char *key, *blank = strchr(want, ' ');
    char *value;
    for (size_t i = 0; tess_config_entry(c, i, &key, &value); i++) {
        const bool this = strlen(key) == (size_t)(blank - want) && !strncmp(key, want, strlen(key));
        json_t *met = value ? json_loads(value, JSON_DECODE_ANY, NULL) : NULL;
        char *text = json_dumps(met, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
        const bool same = this && text && !strcmp(text, blank + 1);
        if (this && !same) CHECK_SAY("%s is %s", key, text);
        json_decref(met);
        free(text);
        free(value);
        if (this) return same;
    }
    return false;
}

TEST(files_of_other_trainers)
{
    for (struct rows r = rows_of(TESS_TESTS "/models/trainers.tsv"); rows_next(&r);) {
        char said[8192];
        const char *set[4] = {NULL};
        size_t count = 0;
        tess_config c;
        for (char *word = strtok(r.column[1], " "); word && count < 4; word = strtok(NULL, " ")) set[count++] = word;
        FILE *f = fopen(yaml_name, "wb");
        CHECK(f && fputs(r.column[0], f) >= 0 && !fclose(f));
        tess_error_clear();
        notes_begin();
        tess_status status = tess_config_load(yaml_name, set, count, &c);
        if (status == TESS_OK) status = tess_config_resolve(&c, 1);
        snprintf(said, sizeof said, "%s%s", notes_read(), tess_error_text());
        unlink(yaml_name);
        if ((status == TESS_OK) != !strcmp(r.column[2], "ok"))
            CHECK_SAY("%s:%d: status %d: %s", r.path, r.line, status, said);
        for (int k = 3; k < r.columns; k++)
            if (*r.column[k] == '=' ? status != TESS_OK || !key_is(&c, r.column[k] + 1) : !strstr(said, r.column[k]))
                CHECK_SAY("%s:%d: \"%s\" is not in \"%s\"", r.path, r.line, r.column[k], said);
        tess_config_free(&c);
    }
}
