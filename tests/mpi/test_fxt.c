/* StarPU's own tools: the bytes that StarPU-MPI counts; and traces of a StarPU that was built with FxT (tools/starpu):
 * what starpu_fxt_tool makes of a run has our names, and arrows between ranks where StarPU-MPI carries messages. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <inttypes.h>

#ifndef TESS_FXT_TOOL
#define TESS_FXT_TOOL ""
#endif

enum { STEPS = 3, OPS = 64, ORDERS = 4096 };

/* Records the run that follows, which leaves trace/prof_file_me_RANK. */
static bool record(void)
{
    if (access(TESS_FXT_TOOL, X_OK)) return false;
    mkdir("trace", 0777);
    setenv("STARPU_FXT_TRACE", "1", 1);
    setenv("STARPU_FXT_PREFIX", "trace/", 1);
    setenv("USER", "me", 1);
    return true;
}

static void stop_recording(void)
{
    unsetenv("STARPU_FXT_TRACE");
}

/* A member of the record of a task; NULL: it has none. */
static const char *member_of(const char *record, const char *end, const char *name, char value[128])
{
    const char *key = fmt("\n%s: ", name);
    const char *at = strstr(record, key);
    if (!at || at >= end) return NULL;
    snprintf(value, 128, "%.*s", (int)strcspn(at + strlen(key), "\n"), at + strlen(key));
    return value;
}

struct seen {
    char op[OPS][64];
    int ops, tasks[OPS][STEPS + 1];
    int met[STEPS + 1][ORDERS]; /* tasks of that step and place */
};

/* Takes the tasks of a rank apart, -1 where there is one alone; but for those that fill parameters before the first
 * step. */
static void look_at_tasks(const char *path, int rank, struct seen *s)
{
    char *text = read_file(path, NULL), value[128];
    memset(s, 0, sizeof *s);
    if (!text) CHECK_SAY("%s is not there", path);
    for (const char *at = text, *end; at && (end = strstr(at, "\n\n")); at = end + 1) {
        char name[128];
        if (at == text || !member_of(at, end, "Name", name)) continue; /* what stands first has no line before it */
        if (!member_of(at, end, "Iteration", value)) continue;         /* StarPU's, as what acquires a tile */
        const int step = atoi(value);
        if (!strncmp(name, "fill", 4)) continue;
        if (!member_of(at, end, "WorkerId", value)) continue;
        CHECK(step >= 1 && step <= STEPS);
        member_of(at, end, "MPIRank", value);
        if (atoi(value) != rank) continue;
        member_of(at, end, "Priority", value);
        const long priority = atol(value);
        CHECK(priority <= 0 && priority > -ORDERS);
        member_of(at, end, "Tag", value);
        CHECK_EQ(strtoull(value, NULL, 16), ((uint64_t)step << 32) + (uint64_t)-priority);
        CHECK(member_of(at, end, "Model", value) && strstr(value, name)); /* tess_OP_DTYPE */
        s->met[step][-priority]++;
        int k = 0;
        while (k < s->ops && strcmp(s->op[k], name)) k++;
        if (k == s->ops && k < OPS) snprintf(s->op[s->ops++], sizeof s->op[0], "%.63s", name);
        if (k < OPS) s->tasks[k][step]++;
    }
    free(text);
}

static int tasks_of(const struct seen *s, const char *op, int step)
{
    for (int k = 0; k < s->ops; k++)
        if (!strcmp(s->op[k], op)) return s->tasks[k][step];
    return 0;
}

TEST(starpus_trace_names_ops_steps_and_places)
{
    tiny_setup();
    if (!record()) SKIP("this StarPU has no FxT");
    RUN("train", "run.json", "steps=3");
    stop_recording();
    EXPECT_DONE();
    run_finish(run_start_program(TESS_FXT_TOOL, (const char *const[]){"-i", "trace/prof_file_me_0", NULL}));
    EXPECT_DONE();
    static struct seen s;
    look_at_tasks("tasks.rec", -1, &s);
    CHECK(s.ops > 10);
    for (int k = 0; k < s.ops; k++) /* each step has the same tasks */
        for (int step = 2; step <= STEPS; step++)
            if (s.tasks[k][step] != s.tasks[k][1]) CHECK_SAY("%s: %d, %d", s.op[k], s.tasks[k][1], s.tasks[k][step]);
    CHECK(tasks_of(&s, "linear_forward", 1) > 0 && tasks_of(&s, "adamw", 1) > 0 &&
          tasks_of(&s, "attention_backward", 1) > 0);
    for (int step = 1; step <= STEPS; step++) /* a priority names one task of a step */
        for (int order = 0; order < ORDERS; order++) CHECK(s.met[step][order] <= 1);
    /* Each op has a colour of its own, on which a name can be read. */
    char *paje = read_file("paje.trace", NULL), first[100] = "";
    for (char *line = strtok(paje, "\n"); line; line = strtok(NULL, "\n")) {
        double red, green, blue;
        char name[100];
        if (sscanf(line, "6 %99s WS %*s \"%lf %lf %lf\"", name, &red, &green, &blue) != 4) continue;
        if (strcmp(name, "linear_forward") && strcmp(name, "adamw")) continue;
        CHECK(red >= 96 && red <= 223 && green >= 96 && green <= 223 && blue >= 96 && blue <= 223);
        CHECK(strcmp(first, strchr(line, '"')));
        snprintf(first, sizeof first, "%s", strchr(line, '"'));
    }
    CHECK(first[0]);
    free(paje);
}

TEST(messages_are_arrows_between_ranks)
{
    tiny_setup_with(", \"parallel\": {\"carrier\": \"starpu_mpi\"}, "
                    "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}");
    if (!record()) SKIP("this StarPU has no FxT");
    RUN_RANKS(2, "train", "run.json", "steps=3", "--trace=1:3");
    stop_recording();
    EXPECT_DONE();
    run_finish(run_start_program(
        TESS_FXT_TOOL, (const char *const[]){"-i", "trace/prof_file_me_0", "-i", "trace/prof_file_me_1", NULL}));
    EXPECT_DONE();
    CHECK(!strstr(ran.err, "could not match"));
    static struct seen s;
    for (int rank = 0; rank < 2; rank++) {
        look_at_tasks("tasks.rec", rank, &s);
        CHECK(tasks_of(&s, "linear_forward", 1) > 0);
    }
    /* An arrow is a start and an end of a link, with the bytes; there are as many as spans in our own trace. */
    int starts = 0, ends = 0, spans = 0;
    double bytes = 0, sent = 0;
    char *paje = read_file("paje.trace", NULL), *own = read_file("out/trace.json", NULL);
    for (char *line = strtok(paje, "\n"); line; line = strtok(NULL, "\n")) {
        double n;
        starts += sscanf(line, "23 %*f MPIL MPIroot %lf", &n) == 1 && (bytes += n, true);
        ends += sscanf(line, "19 %*f MPIL MPIroot %lf", &n) == 1;
    }
    for (const char *at = own; (at = strstr(at, "\"ph\":\"s\"")); at++)
        spans += !strncmp(strstr(at, "\"cat\":"), "\"cat\":\"span\"", 12);
    json_t *all = read_metrics("out/metrics.jsonl");
    for (size_t k = 0; k < STEPS; k++) sent += number_of(all, k, "sent_bytes");
    json_decref(all);
    CHECK_EQ(starts, ends);
    CHECK(starts >= spans && spans > 10);
    CHECK(bytes >= sent && bytes < 1.2 * sent + 4096);
    free(paje);
    free(own);
}

#ifdef TESS_HAVE_STARPU_MPI
TEST(starpu_mpi_counts_what_metrics_say)
{
    tiny_setup_with(", \"parallel\": {\"carrier\": \"starpu_mpi\"}, "
                    "\"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}");
    WITH("STARPU_COMM_STATS", "1") DONE_RANKS(2, "train", "run.json", "steps=3", "data.valid=null");
    double counted = 0, sent = 0;
    for (int rank = 0; rank < 2; rank++) {
        const char *head = fmt("[starpu_comm_stats][%d:%d]", rank, 1 - rank);
        const char *line = strstr(ran.err, head);
        if (!line) CHECK_SAY("no line %s", head);
        counted += line ? atof(line + strlen(head)) : 0;
    }
    json_t *all = read_metrics("out/metrics.jsonl");
    for (size_t k = 0; k < STEPS; k++) sent += number_of(all, k, "sent_bytes");
    json_decref(all);
    CHECK(sent > 0 && counted >= sent && counted < 1.5 * sent);
}
#endif

/* Without StarPU-MPI each rank leaves its file all the same. */
TEST(each_rank_has_a_file_over_mpi)
{
    tiny_setup_with(", \"parallel\": {\"carrier\": \"mpi\"}");
    if (!record()) SKIP("this StarPU has no FxT");
    RUN_RANKS(2, "train", "run.json", "steps=1");
    stop_recording();
    EXPECT_DONE();
    CHECK(exists("trace/prof_file_me_0") && exists("trace/prof_file_me_1"));
}
