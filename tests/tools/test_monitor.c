/* What DeepSpeed's "tensorboard" and "csv_monitor" leave: event files, record by record with their checksums and as
 * TensorBoard reads them where it is installed, and CSV files. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define MONITORS                                                                                                       \
    ", \"tensorboard\": {\"enabled\": true, \"output_path\": \"logs\", \"job_name\": \"tile\"}, \"csv_monitor\": "     \
    "{\"enabled\": true, \"output_path\": \"logs/\", \"job_name\": \"rows\"}, \"eval_every\": 2, \"checkpoint\": "     \
    "{\"dir\": \"ck\", \"every\": 2}"

/* ---- event files ---- */

/* By a table, as the program does not. */
static uint32_t masked_crc(const unsigned char *at, size_t n)
{
    uint32_t table[256], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int bit = 0; bit < 8; bit++) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0x82f63b78u : 0);
    }
    for (; n--; at++) crc = crc >> 8 ^ table[(crc ^ *at) & 255];
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static uint64_t little(const unsigned char *at, int n)
{
    uint64_t x = 0;
    while (n--) x = x << 8 | at[n];
    return x;
}

struct event {
    long long step;
    double time;
    char version[32], session; /* its status */
    int values;
    struct {
        char tag[64];
        float x;
    } value[16];
};

/* Calls back, as it were: the next field of a message in at..end; its number, 0 at the end, and where its contents are.
 */
struct field {
    unsigned number, wire;
    uint64_t x; /* a varint, or a fixed number's bits */
    const unsigned char *from, *end;
};

static uint64_t varint(const unsigned char **at)
{
    uint64_t x = 0;
    for (int shift = 0;; shift += 7) {
        x |= (uint64_t)(**at & 127) << shift;
        if (!(*(*at)++ & 128)) return x;
    }
}

static struct field next_field(const unsigned char **at, const unsigned char *end)
{
    struct field f = {0};
    if (*at >= end) return f;
    f.x = varint(at);
    f.number = (unsigned)(f.x >> 3), f.wire = f.x & 7;
    if (f.wire == 0) {
        f.x = varint(at);
    } else if (f.wire == 2) {
        const uint64_t n = varint(at);
        f.from = *at, f.end = *at += n;
    } else {
        const int n = f.wire == 1 ? 8 : 4;
        f.x = little(*at, n);
        *at += n;
    }
    CHECK(*at <= end);
    return f;
}

static void copy(char *to, size_t room, struct field f)
{
    snprintf(to, room, "%.*s", (int)(f.end - f.from), f.from);
}

static void read_summary(const unsigned char *at, const unsigned char *end, struct event *e)
{
    for (struct field v; (v = next_field(&at, end)).number;) {
        const unsigned char *in = v.from;
        CHECK_EQ(v.number, 1);
        for (struct field f; (f = next_field(&in, v.end)).number;) {
            if (f.number == 1) copy(e->value[e->values].tag, sizeof e->value[0].tag, f);
            if (f.number == 2) memcpy(&e->value[e->values].x, &(uint32_t){(uint32_t)f.x}, 4);
        }
        e->values++;
    }
}

static struct event read_event(const unsigned char *at, const unsigned char *end)
{
    struct event e = {0};
    for (struct field f; (f = next_field(&at, end)).number;) {
        if (f.number == 1) memcpy(&e.time, &f.x, 8);
        if (f.number == 2) e.step = (long long)f.x;
        if (f.number == 3) copy(e.version, sizeof e.version, f);
        if (f.number == 5) read_summary(f.from, f.end, &e);
        if (f.number == 7 && f.end - f.from == 2 && f.from[0] == 8) e.session = (char)f.from[1];
    }
    return e;
}

/* All records of a file; how many. */
static int read_events(const char *path, struct event *event, int most)
{
    size_t bytes = 0, at = 0;
    unsigned char *file = (unsigned char *)read_file(path, &bytes);
    int n = 0;
    while (file && at + 16 <= bytes && n < most) {
        const size_t length = (size_t)little(file + at, 8);
        if (at + 16 + length > bytes) break;
        CHECK_EQ(little(file + at + 8, 4), masked_crc(file + at, 8));
        CHECK_EQ(little(file + at + 12 + length, 4), masked_crc(file + at + 12, length));
        event[n++] = read_event(file + at + 12, file + at + 12 + length);
        at += 16 + length;
    }
    CHECK_EQ(at, bytes);
    free(file);
    return n;
}

/* The event files of a directory in the order of their names; how many. */
static int event_files(const char *dir, char path[][600], int most)
{
    struct dirent **names;
    const int all = scandir(dir, &names, NULL, alphasort);
    int n = 0;
    for (int i = 0; i < all; i++) {
        if (!strncmp(names[i]->d_name, "events.out.tfevents.", 20) && n < most)
            snprintf(path[n++], 600, "%s/%s", dir, names[i]->d_name);
        free(names[i]);
    }
    if (all >= 0) free(names);
    return n;
}

static float value_of(const struct event *e, const char *tag)
{
    for (int i = 0; i < e->values; i++)
        if (!strcmp(e->value[i].tag, tag)) return e->value[i].x;
    return NAN;
}

TEST(event_files_hold_each_step)
{
    char path[4][600], host[256];
    struct event e[16];
    CHECK_EQ(masked_crc((const unsigned char *)"123456789", 9), (0xe3069283u >> 15 | 0xe3069283u << 17) + 0xa282ead8u);
    tiny_setup_with(MONITORS);
    const time_t before = time(NULL);
    DONE("train", "run.json");
    CHECK_STR(ran.err, "");
    json_t *metrics = read_metrics("out/metrics.jsonl");
    CHECK_EQ(event_files("logs/tile", path, 4), 1);
    gethostname(host, sizeof host);
    CHECK_HAS(path[0], host);
    CHECK_EQ(read_events(path[0], e, 16), 5);
    CHECK_STR(e[0].version, "brain.Event:2");
    CHECK(e[0].time >= (double)before && e[0].time <= (double)time(NULL) + 1);
    for (int i = 1; i < 5; i++) {
        CHECK_EQ(e[i].step, i * TINY_BATCH); /* samples */
        CHECK(value_of(&e[i], "Train/Samples/train_loss") == (float)number_of(metrics, (size_t)i - 1, "loss"));
        CHECK(value_of(&e[i], "Train/Samples/lr") == (float)number_of(metrics, (size_t)i - 1, "lr"));
        CHECK(value_of(&e[i], "Train/Samples/grad_norm") == (float)number_of(metrics, (size_t)i - 1, "grad_norm"));
        CHECK(value_of(&e[i], "Train/Samples/tokens_per_s") > 0);
        CHECK(isnan(value_of(&e[i], "Train/Samples/loss_scale")));
        CHECK_EQ(isnan(value_of(&e[i], "Valid/Samples/loss")), i % 2);
    }
    json_decref(metrics);
    DONE("train", "run.json", "--resume", "steps=6");
    const int files = event_files("logs/tile", path, 4);
    CHECK_EQ(files, 2);
    CHECK_EQ(read_events(path[files - 1], e, 16), 4);
    CHECK_EQ(e[1].session, 1); /* what older files have from here on is void */
    CHECK_EQ(e[1].step, 5 * TINY_BATCH);
    CHECK_EQ(e[3].step, 6 * TINY_BATCH);
    DONE("train", "run.json", "steps=1", "fp16.enabled=true");
    const int more = event_files("logs/tile", path, 4);
    CHECK_EQ(more, 3);
    CHECK_EQ(read_events(path[more - 1], e, 16), 2);
    CHECK(value_of(&e[1], "Train/Samples/loss_scale") == 65536);
}

/* A run that was killed behind its checkpoint left rows that the run that goes on makes again, behind a header of its
 * own: nothing that stood there goes. */
TEST(runs_that_go_on_append_their_rows)
{
    tiny_setup_with(MONITORS);
    DONE("train", "run.json");
    run_finish(run_start_program("rm", (const char *const[]){"-r", "ck/step-00000004", NULL}));
    char *before = read_file("logs/rows/Train_Samples_train_loss.csv", NULL);
    cut_file("logs/rows/Valid_Samples_loss.csv", file_size("logs/rows/Valid_Samples_loss.csv") - 3); /* killed there */
    DONE("train", "run.json", "--resume");
    char *text = read_file("logs/rows/Train_Samples_train_loss.csv", NULL);
    CHECK(text && before && !strncmp(text, before, strlen(before)));
    CHECK_HAS(text, "step,train_loss\r\n4,5.");
    CHECK(text && before && !strncmp(text + strlen(before), "step,train_loss\r\n12,", 20));
    CHECK_EQ(count_lines("logs/rows/Train_Samples_train_loss.csv"), 8);
    free(text);
    free(before);
    text = read_file("logs/rows/Valid_Samples_loss.csv", NULL);
    CHECK_HAS(text, "step,loss\r\n8,");
    CHECK_HAS(text, "\r\nstep,loss\r\n16,");
    CHECK_EQ(count_lines("logs/rows/Valid_Samples_loss.csv"), 5);
    free(text);
    text = read_file("logs/rows/Train_Samples_lr.csv", NULL);
    CHECK_HAS(text, "\r\n8,0.001\r\n");
    free(text);
}

/* What is refused touches nothing of the run that was there. */
TEST(a_refused_directory_costs_no_other_run)
{
    tiny_setup_with(MONITORS);
    DONE("train", "run.json");
    write_text("file", "x");
    char *before = read_file("out/metrics.jsonl", NULL), *after;
    FAILS(2, ("train", "run.json", "tensorboard.output_path=file"),
          "tensorboard.output_path: file/tile cannot be written to: Not a directory");
    CHECK(exists("ck/step-00000004/state.json"));
    after = read_file("out/metrics.jsonl", NULL);
    CHECK_STR(after, before);
    CHECK_EQ(count_lines("out/metrics.jsonl"), 4);
    free(before);
    free(after);
}

TEST(where_they_go_is_as_in_deepspeed)
{
    tiny_setup();
    DONE("train", "run.json", "csv_monitor.enabled=true", "steps=1");
    CHECK_EQ(count_lines("DeepSpeedJobName/Train_Samples_train_loss.csv"), 2);
    CHECK(!exists("DeepSpeedJobName/Train_Samples_loss_scale.csv"));
    write_text("file", "x");
    FAILS(2, ("train", "run.json", "tensorboard.enabled=true", "tensorboard.output_path=file"),
          "tensorboard.output_path: file/DeepSpeedJobName cannot be written to: Not a directory");
    FAILS(2, ("train", "run.json", "csv_monitor.enabled=true", "csv_monitor.job_name=file"),
          "csv_monitor.output_path: file cannot be written to");
    mkdir("rows", 0777);
    mkdir("rows/Train_Samples_lr.csv", 0777);
    DONE("train", "run.json", "csv_monitor.enabled=true", "csv_monitor.job_name=rows");
    CHECK_STR(ran.err, "tessera: rows: cannot be written: Is a directory (the run goes on without it)\n");
#ifndef __SANITIZE_ADDRESS__ /* which reports what MPI keeps */
    DONE_RANKS(2, "train", "run.json", "tensorboard.enabled=true", "tensorboard.job_name=two", "steps=2");
    char path[4][600];
    struct event e[16];
    CHECK_EQ(event_files("two", path, 4), 1);
    CHECK_EQ(read_events(path[0], e, 16), 3);
    CHECK_EQ(e[2].step, 2 * TINY_BATCH);
#endif
}

TEST(tensorboard_reads_them)
{
    char line[96];
    run_finish(run_start_program("python3", (const char *const[]){"-c", "import tensorboard", NULL}));
    if (ran.status) SKIP("no tensorboard for python3");
    tiny_setup_with(MONITORS);
    DONE("train", "run.json");
    run_finish(run_start_program("rm", (const char *const[]){"-r", "ck/step-00000004", NULL}));
    run_nap();
    DONE("train", "run.json", "--resume", "steps=6");
    run_finish(run_start_program("python3",
                                 (const char *const[]){fmt("%s/tools/read_events.py", TESS_TESTS), "logs/tile", NULL}));
    EXPECT_DONE();
    json_t *metrics = read_metrics("out/metrics.jsonl");
    const char *at = ran.out;
    for (size_t i = 0; i < 6; i++) { /* each step once */
        const int used = snprintf(line, sizeof line, "Train/Samples/train_loss %zu ", (i + 1) * TINY_BATCH);
        at = strstr(at, line);
        if (!at) {
            CHECK_SAY("%s is missing in %s", line, ran.out);
            break;
        }
        CHECK_NEAR(strtod(at + used, NULL), number_of(metrics, i, "loss"), 1e-6);
        CHECK(!strstr(at + 1, line));
    }
    json_decref(metrics);
}
