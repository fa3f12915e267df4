/* A step that a program fits into a machine beside the command's for the same network and caps: the same plan, in the
 * same words, and a run of the same bits that moves the same bytes. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/train/config/config.h"
#include "models/train/train.h"
#include "tests/check.h"
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MICRO = 4, B = 2, T = 64, STEPS = 3, TEXT = (STEPS * MICRO * B + 1) * T + 1, MiB = 1 << 20 };

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) {                                                                                       \
            CHECK_SAY("%s: %s", #expr, tess_error_text());                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static const char model[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 64, \"n_embd\": 128,"
                            "\"n_layer\": 6, \"n_head\": 4, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}";
static char text[TEXT];

static void write_files(void)
{
    char dir[] = "/var/tmp/tessera-fit-XXXXXX";
    CHECK(mkdtemp(dir) && !chdir(dir));
    for (int i = 0; i < TEXT; i++) text[i] = (char)('a' + (i * i / 5 + i) % 23);
    FILE *f = fopen("text.txt", "w");
    fwrite(text, 1, TEXT, f);
    fclose(f);
    f = fopen("run.json", "w");
    fprintf(f,
            "{\"model\": %s, \"data\": {\"train\": \"text.txt\", \"seq_length\": %d, \"shuffle\": false},"
            "\"train_micro_batch_size_per_gpu\": %d, \"gradient_accumulation_steps\": %d, \"steps\": %d, \"seed\": 1,"
            "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"betas\": [0.9, 0.999], \"eps\": 1e-8,"
            "\"weight_decay\": 0}}, \"deterministic\": true}",
            model, T, B, MICRO, STEPS);
    fclose(f);
}

/* ---- the command ---- */

static tess_config *config_of(const char *const *more, size_t n, const char *output)
{
    const char *set[8] = {output};
    tess_config *c;
    for (size_t k = 0; k < n; k++) set[k + 1] = more[k];
    OK(tess_config_open("run.json", set, n + 1, 1, &c));
    return c;
}

/* The part of an estimate that is the plan of its step, in the words of a program. */
static char *estimate_of(const tess_config *c)
{
    char *all, *line, *at, *plan = tess_alloc(1 << 14);
    size_t size, n = 0;
    FILE *f = open_memstream(&all, &size);
    OK(tess_estimate(c, f));
    fclose(f);
    for (line = strtok_r(strchr(all, '\n'), "\n", &at); line; line = strtok_r(NULL, "\n", &at)) {
        if (!strncmp(line, "time of a step", 14)) break;
        if (strstr(line, "the least that")) continue;
        char *name = strstr(line, ", memory.cpu");
        if (name) memcpy(name, ", cpu_bytes ", 12);
        if (!strncmp(line, "disk (", 6)) line[4] = 0;
        n += (size_t)sprintf(plan + n, "%s\n", line);
    }
    free(all);
    return plan;
}

/* Returns the last step's; *written becomes the bytes that all steps wrote to the disk. */
static json_t *last_metrics(const char *output, double *written)
{
    char path[64], line[4096];
    snprintf(path, sizeof path, "%s/metrics.jsonl", output);
    json_t *last = NULL;
    FILE *f = fopen(path, "r");
    *written = 0;
    while (f && fgets(line, sizeof line, f)) {
        json_decref(last);
        last = json_loads(line, 0, NULL);
        *written += (double)json_integer_value(json_object_get(json_object_get(last, "disk"), "write_bytes"));
    }
    if (f) fclose(f);
    return last;
}

/* ---- the program ---- */

struct program {
    tess_model *m;
    tess_graph *g;
    tess_network net;
    tess_step *s;
    tess_plan plan;
};

static void fit(struct program *p, const tess_config *c, const tess_machine *machine, double clip)
{
    tess_step_conf conf = {.train = true, .micro = MICRO, .deterministic = true, .optimizer = tess_adamw()};
    conf.optimizer.clip = clip;
    OK(tess_model_open(NULL, model, &p->m));
    p->g = tess_graph_new(&(tess_graph_conf){
        .tile_rows = c->tiles.rows, .tile_elements = c->tiles.elements, .loss_rows = c->tiles.loss_rows});
    OK(tess_model_build(p->m, p->g, B, T, TESS_FOR_LOSS, &p->net));
    OK(tess_step_fit(p->net.output, &conf, machine, &p->s, &p->plan));
}

/* Returns the loss of the last step; behind it come what that read from the disk, and what all steps wrote there. */
static double train(struct program *p, const tess_machine *machine, uint64_t *read, uint64_t *written)
{
    static int32_t ids[MICRO * B * T], targets[MICRO * B * T];
    tess_step_result r;
    uint64_t before[2] = {0}, first = 0, used, peak;
    OK(tess_start_plan(machine, &p->plan));
    OK(tess_model_load(p->m, p->g, 1));
    for (int64_t step = 0; step < STEPS; step++) {
        for (int64_t i = 0; i < MICRO * B * T; i++) {
            ids[i] = text[step * MICRO * B * T + i];
            targets[i] = text[step * MICRO * B * T + i + 1];
        }
        tess_disk_traffic(&before[0], &before[1], &used, &peak);
        if (step == 0) first = before[1];
        OK(tess_step_feed(p->s, p->net.ids, ids));
        OK(tess_step_feed(p->s, p->net.targets, targets));
        OK(tess_step_run(p->s, &(tess_step_input){.step = step, .seed = 1, .lr = 1e-3}, &r));
    }
    tess_disk_traffic(read, written, &used, &peak);
    *read -= before[0], *written -= first;
    CHECK(!mkdir("program", 0777));
    OK(tess_model_save(p->m, p->g, "program/model"));
    tess_stop();
    return r.loss;
}

static void close_program(struct program *p)
{
    tess_step_free(p->s);
    tess_graph_free(p->g);
    tess_model_close(p->m);
}

static char *text_of(const struct program *p)
{
    char *words;
    size_t size;
    FILE *f = open_memstream(&words, &size);
    tess_plan_print(&p->plan, p->s, f);
    fclose(f);
    return words;
}

/* With clipping and several micro-batches there are four orders to choose among; without a disk there is room for all.
 */
static void compare(double clip, int cap, bool disk)
{
    char caps[64], clips[64];
    snprintf(caps, sizeof caps, "memory.cpu=%dMiB", cap);
    snprintf(clips, sizeof clips, "gradient_clipping=%g", clip);
    const char *const more[] = {clips, caps, "memory.path=."};
    tess_config *c = config_of(more, disk ? 3 : 2, "output=command");
    tess_machine machine = {.cpu_bytes = (uint64_t)cap * MiB, .disk = disk ? "." : NULL};
    struct program p = {0};
    uint64_t read, written;
    char *theirs = estimate_of(c);
    if (disk) OK(tess_machine_measure(&machine, TESS_F32));
    fit(&p, c, &machine, clip);
    char *ours = text_of(&p), *all = strstr(theirs, "  written in 3 steps"); /* a program's plan knows no run */
    CHECK((all != NULL) == disk);
    if (all) memmove(all, strchr(all, '\n') + 1, strlen(strchr(all, '\n')));
    CHECK_STR(ours, theirs);
    CHECK_HAS(ours, "in all, cpu_bytes" + (disk ? 0 : 8)); /* without a disk it is "the cap, cpu_bytes" */
    CHECK((p.plan.ram.disk > 0) == disk && p.plan.ram.room > 0);
    OK(tess_train(c));
    double theirs_written;
    json_t *m = last_metrics("command", &theirs_written), *of = json_object_get(m, "disk");
    const double loss = train(&p, &machine, &read, &written);
    CHECK(loss == json_real_value(json_object_get(m, "loss")));
    CHECK_EQ(system("cmp command/model/model.safetensors program/model/model.safetensors"), 0);
    CHECK_EQ((int64_t)read, json_integer_value(json_object_get(of, "read_bytes")));
    /* Writes are not awaited by the step that asks for them: of all steps', one step's may be under way at the end. */
    CHECK_NEAR((double)written, theirs_written, fmax((double)written, theirs_written) / (STEPS - 1));
    CHECK((read > 0) == disk);
    json_decref(m);
    free(ours);
    free(theirs);
    close_program(&p);
    tess_config_close(c);
    CHECK_EQ(system("rm -rf command program"), 0);
}

TEST(over_a_disk)
{
    write_files();
    compare(0, 28, true);
}

TEST(with_updates_that_wait_for_the_norm)
{
    compare(1, 28, true);
}

TEST(in_ram_alone)
{
    compare(1, 512, false);
    CHECK_EQ(system("rm -rf $PWD"), 0);
}
