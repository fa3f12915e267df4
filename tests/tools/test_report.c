/* report.html: what stands in it, that it stays small, that nothing of a user's is taken for a part of the page, and,
 * in a browser where there is one, that it draws what it holds. */
#define CHECK_MAIN
#include "tests/tools/browser.h"

/* ---- pages ---- */

static const char BEGIN[] = "<script type=\"application/json\" id=\"data\">", END[] = "</script>";

/* The runs that a page shows, which the caller has to json_decref; NULL: it is none. */
static json_t *runs_of(const char *path)
{
    char *page = read_file(path, NULL), *at = page ? strstr(page, BEGIN) : NULL, *end = at ? strstr(at, END) : NULL;
    json_t *runs = end ? json_loadb(at + strlen(BEGIN), (size_t)(end - at) - strlen(BEGIN), 0, NULL) : NULL;
    if (!runs) CHECK_SAY("%s holds no runs", path);
    free(page);
    return runs;
}

static const json_t *run_of(const json_t *runs, size_t i)
{
    return json_array_get(runs, i);
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (; (text = strstr(text, part)); text++) n++;
    return n;
}

/* The value of a curve at a step; NaN: it has none there. */
static double at_step(const json_t *run, const char *curve, double step)
{
    const json_t *points = json_object_get(json_object_get(run, "points"), curve);
    for (size_t i = 0; i + 1 < json_array_size(points); i += 2)
        if (json_number_value(json_array_get(points, i)) == step)
            return json_number_value(json_array_get(points, i + 1));
    return NAN;
}

static double member(const json_t *run, const char *group, const char *name)
{
    const json_t *x = json_object_get(json_object_get(run, group), name);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

/* ---- what a run leaves ---- */

/* A run that was killed behind its last step, while it wrote its page: who resumes it has nothing to train. */
TEST(a_page_that_says_running_is_ended)
{
    tiny_setup_with(", \"checkpoint\": {\"dir\": \"ck\", \"every\": 4}");
    DONE("train", "run.json");
    char *page = read_file("out/report.html", NULL), *state = strstr(page, "\"running\":false");
    memcpy(state, " \"running\":true", 15);
    write_text("out/report.html", page), write_text("out/report.html.new", "<");
    free(page);
    DONE("train", "run.json", "--resume", "overwrite=false");
    page = read_file("out/report.html", NULL);
    CHECK_HAS(page, "\"running\":false");
    CHECK(!exists("out/report.html.new"));
    free(page);
}

TEST(a_run_leaves_a_page_of_all_its_steps)
{
    tiny_setup_with(", \"eval_every\": 2, \"checkpoint\": {\"dir\": \"ck\", \"every\": 4}, \"scheduler\": {\"type\": "
                    "\"WarmupLR\", \"params\": {\"warmup_num_steps\": 2}}");
    DONE("train", "run.json");
    json_t *runs = runs_of("out/report.html"), *metrics = read_metrics("out/metrics.jsonl");
    const json_t *run = run_of(runs, 0);
    CHECK_EQ(json_array_size(runs), 1);
    CHECK_EQ(json_integer_value(json_object_get(run, "lines")), 4);
    CHECK(json_is_false(json_object_get(run, "running")));
    for (size_t i = 0; i < 4; i++) CHECK_NEAR(at_step(run, "loss", (double)i + 1), number_of(metrics, i, "loss"), 1e-5);
    CHECK(at_step(run, "loss", 4) == number_of(metrics, 3, "loss"));
    CHECK(member(run, "last", "loss") == number_of(metrics, 3, "loss"));
    CHECK(at_step(run, "valid_loss", 4) == number_of(metrics, 3, "valid_loss"));
    CHECK(isnan(at_step(run, "valid_loss", 3)));
    CHECK_NEAR(member(run, "sum", "tokens"), 4 * TINY_T * TINY_BATCH, 0);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(run, "config"), "steps")), 4);
    const json_t *plan = json_object_get(run, "plan");
    CHECK(member(plan, "machine", "cores") > 0 && member(plan, "machine", "ram_bytes") > 0);
    CHECK(member(plan, "estimate", "cpu_bytes") > 0);
    CHECK_NEAR(member(plan, "model", "parameters"), 34688, 0);
    json_decref(runs);
    json_decref(metrics);
    DONE("train", "run.json", "--resume", "steps=6"); /* the whole story */
    runs = runs_of("out/report.html");
    CHECK_EQ(json_integer_value(json_object_get(run_of(runs, 0), "lines")), 6);
    CHECK(at_step(run_of(runs, 0), "loss", 1) > 0);
    json_decref(runs);
}

/* Files that are no page yet. */
static int unfinished(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    for (struct dirent *e; d && (e = readdir(d));) n += !strncmp(e->d_name, "report.html.", 12);
    if (d) closedir(d);
    return n;
}

/* Of the page alone it is said, once, and nothing else changes. */
TEST(a_page_that_cannot_be_written_ends_no_run)
{
    tiny_setup();
    mkdir("out", 0777);
    mkdir("out/report.html", 0777);
    DONE("train", "run.json");
    CHECK_EQ(unfinished("out"), 0);
    CHECK_HAS(ran.err, "out/report.html: cannot be written");
    CHECK_EQ(count_of(ran.err, "report.html"), 1);
    CHECK_EQ(count_lines("out/metrics.jsonl"), 4);
    FAILS(2, ("report", "out"), "out/report.html: cannot be written");
    rmdir("out/report.html");
    mkdir("out/report.html.new", 0777); /* a name that is nobody's */
    DONE("report", "out");
}

TEST(a_run_that_goes_on_has_a_page)
{
    tiny_setup();
    pid_t pid = START("train", "run.json", TINY_ENDLESS);
    WAIT_UNTIL(pid, exists("out/report.html"));
    json_t *runs = runs_of("out/report.html");
    CHECK(json_is_true(json_object_get(run_of(runs, 0), "running")));
    json_decref(runs);
    DONE("report", "out", "-o", "other.html");
    runs = runs_of("other.html");
    CHECK(json_is_true(json_object_get(run_of(runs, 0), "running")));
    json_decref(runs);
    kill(pid, SIGINT);
    run_finish(pid);
    EXPECT_DONE();
    runs = runs_of("out/report.html");
    CHECK(json_is_false(json_object_get(run_of(runs, 0), "running")));
    CHECK_EQ(json_integer_value(json_object_get(run_of(runs, 0), "lines")), count_lines("out/metrics.jsonl"));
    json_decref(runs);
    CHECK_EQ(unfinished("out"), 0);
}

/* ---- whatever users write stays text ---- */

#define ODD "a<!--<script>&\"' <b>\xf0\x9f\x98\x80"

TEST(names_and_settings_are_no_part_of_the_page)
{
    tiny_setup();
    DONE("train", "run.json", "output=" ODD, "seed=3");
    write_text(ODD "/samples.txt", "x</script><img src=x onerror=alert(1)>\xe2\x80\xa8\xc3");
    CHECK(!rename(ODD, ODD "\xff"));
    DONE("report", ODD "\xff", "-o", "odd.html");
    CHECK_STR(ran.out, "odd.html\n");
    char *odd = read_file("odd.html", NULL), *plain;
    RUN("train", "run.json");
    DONE("report", "out", "-o", "plain.html");
    plain = read_file("plain.html", NULL);
    static const char *const parts[] = {"<script", "</script", "<b>", "<img", "<!--"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts && odd && plain; i++)
        if (count_of(odd, parts[i]) != count_of(plain, parts[i])) CHECK_SAY("%s stands in the page", parts[i]);
    json_t *runs = runs_of("odd.html");
    CHECK_STR(json_string_value(json_object_get(run_of(runs, 0), "name")), ODD "\xef\xbf\xbd");
    CHECK_STR(json_string_value(json_object_get(run_of(runs, 0), "samples")),
              "x</script><img src=x onerror=alert(1)>\xe2\x80\xa8\xef\xbf\xbd");
    json_decref(runs);
    free(odd);
    free(plain);
}

TEST(a_page_asks_for_nothing)
{
    tiny_setup_trained();
    char *page = read_file("out/report.html", NULL);
    for (char *at = page; (at = strstr(at, "http")); at++)
        if (strncmp(at, "http-equiv", 10) && strncmp(at, "http://www.w3.org/2000/svg'", 27)) CHECK_SAY("%.60s", at);
    CHECK_EQ(count_of(page, "src="), 0);
    CHECK_EQ(count_of(page, "url("), 0);
    CHECK_EQ(count_of(page, "@import"), 0);
    CHECK_EQ(count_of(page, "href="), 1);
    CHECK_HAS(page, "href=\"data:,\"");
    CHECK_HAS(page, "default-src 'none'");
    free(page);
}

/* ---- runs of many steps, and of other machines ---- */

enum { MANY = 100000, LOW = 33333, HIGH = 77777, GAP = 50000 };

/* The metrics of a run that nobody made, with a peak, a dip and a gap; `more` follows the last line. */
static void write_many(const char *dir, int steps, const char *more)
{
    mkdir(dir, 0777);
    FILE *f = fopen(fmt("%s/metrics.jsonl", dir), "w");
    for (int i = 1; i <= steps; i++) {
        const char *loss = fmt("%.9g", i == LOW    ? -5
                                       : i == HIGH ? 99
                                                   : 2 + 3 * exp(-i / 9000.) + 1e-3 * (i * 7919 % 101));
        fprintf(
            f,
            "{\"step\":%d,\"loss\":%s,\"lr\":%g,\"grad_norm\":%g,\"tokens\":2048,\"seconds\":%g,\"tokens_per_s\":%d,"
            "\"mfu\":0.5,\"disk\":{\"resident_bytes\":%d,\"read_bytes\":%d,\"wait_seconds\":%g}}\n",
            i, i == GAP ? "null" : loss, 1e-3 / i, 1 + i % 13 * .1, .1 + i % 7 * .01, 20000 + i % 977, i * 3,
            i % 11 * 4096, .01 + i % 5 * .001);
    }
    fputs(more, f);
    fclose(f);
}

TEST(a_long_run_is_a_small_page_with_its_extremes)
{
    fresh();
    write_many("long", MANY, "{\"step\":100001,\"loss\":1.2"); /* whose run was stopped there */
    DONE("report", "long");
    CHECK_STR(ran.out, "long/report.html\n");
    CHECK(file_size("long/report.html") < 1 << 20);
    json_t *runs = runs_of("long/report.html");
    const json_t *run = run_of(runs, 0), *gaps = json_object_get(json_object_get(run, "gaps"), "loss");
    CHECK_EQ(json_integer_value(json_object_get(run, "lines")), MANY);
    CHECK(at_step(run, "loss", LOW) == -5 && at_step(run, "loss", HIGH) == 99);
    CHECK(at_step(run, "loss", 1) > 4.9 && at_step(run, "loss", MANY) > 2);
    CHECK(at_step(run, "loss", MANY) == member(run, "last", "loss"));
    CHECK_EQ(json_array_size(gaps), 1);
    CHECK_EQ(json_integer_value(json_array_get(gaps, 0)), GAP);
    CHECK_NEAR(member(run, "sum", "tokens"), 2048. * MANY, 0);
    CHECK_NEAR(member(run, "sum", "seconds"), .13 * MANY, 1);
    CHECK(json_array_size(json_object_get(run, "from")) <= 1200 &&
          json_array_size(json_object_get(run, "from")) >= 600);
    json_decref(runs);
}

/* What a span of several steps has of a rate is what they did by the time they took: of steps of 1 and 3 seconds at
 * MFUs of 0.9 and 0.3 that is 0.45, not 0.6. */
TEST(rates_of_spans_are_work_by_time)
{
    enum { STEPS = 2400 };
    fresh();
    mkdir("rates", 0777);
    FILE *f = fopen("rates/metrics.jsonl", "w");
    for (int i = 1; i <= STEPS; i++)
        fprintf(f, "{\"step\":%d,\"loss\":1,\"tokens\":900,\"seconds\":%d,\"tokens_per_s\":%d,\"mfu\":%g}\n", i,
                i % 2 ? 1 : 3, i % 2 ? 900 : 300, i % 2 ? .9 : .3);
    fclose(f);
    DONE("report", "rates");
    json_t *runs = runs_of("rates/report.html");
    const json_t *run = run_of(runs, 0);
    CHECK_EQ(json_array_size(json_object_get(run, "from")), STEPS / 2);
    CHECK_NEAR(member(run, "mean", "mfu"), .45, 1e-9);
    CHECK_NEAR(member(run, "mean", "tokens_per_s"), 450, 1e-9);
    CHECK_NEAR(member(run, "sum", "mfu"), .6 * STEPS, 1e-6 * STEPS);
    json_decref(runs);
}

TEST(reports_of_what_is_no_run_are_refused)
{
    fresh();
    FAILS(2, ("report"), "command line: no run", "OUTPUT");
    FAILS(2, ("report", "nowhere"), "nowhere: No such file");
    write_text("file", "x");
    FAILS(2, ("report", "file"), "file: is no directory");
    mkdir("empty", 0777);
    FAILS(2, ("report", "empty"), "empty/metrics.jsonl: No such file");
    write_text("empty/metrics.jsonl", "");
    FAILS(2, ("report", "empty"), "empty/metrics.jsonl: holds no step");
    static const char *const damaged[] = {"{\"step\":3,\"loss\":}\n",
                                          "\n",
                                          "{\"loss\":1}\n",
                                          "[3]\n",
                                          "{\"step\":3} {}\n",
                                          "{\"step\":2,\"loss\":1}\n",
                                          "{\"step\":3,\"loss\":1\n",
                                          "{\"step\":0}\n",
                                          "{\"step\":3,\"a\":\"\\\"}\n",
                                          "{\"step\":3,\"loss\":1,}\n"};
    for (size_t i = 0; i < sizeof damaged / sizeof *damaged; i++) {
        write_many("damaged", 2, damaged[i]);
        FAILS(2, ("report", "damaged"), "damaged/metrics.jsonl: line 3: ");
        CHECK(!exists("damaged/report.html"));
    }
    write_many("good", 3, "{\"step\":4,\"loss\":1,\"new\":[{\"a\":[\"\\\"\",true,null]},-1e-3]}\n");
    FAILS(2, ("report", "good", "-o", "no/where.html"), "no/where.html: cannot be written");
    FAILS(2, ("report", "good", "--out"), "--out: unknown option");
    DONE("report", "good");
}

/* Members of what stands inside of other members are no fields of the step. */
TEST(fields_within_others_are_not_the_steps)
{
    fresh();
    write_many(
        "nested", 2,
        "{\"step\":3,\"loss\":1,\"new\":[{\"loss\":7,\"step\":9}],\"\":{\"lr\":8,\"a\":{\"loss\":7}},"
        "\"a_name_that_is_longer_than_any_of_those_that_are_known\":{\"mfu\":1},\"disk\":{\"\":{\"loss\":7}}}\n");
    DONE("report", "nested");
    json_t *runs = runs_of("nested/report.html");
    CHECK(member(run_of(runs, 0), "last", "step") == 3 && member(run_of(runs, 0), "last", "loss") == 1);
    CHECK_EQ(json_object_size(json_object_get(run_of(runs, 0), "last")), 2);
    json_decref(runs);
}

TEST(slow_ranks_stand_in_the_page)
{
    fresh();
    mkdir("paced", 0777);
    FILE *f = fopen("paced/metrics.jsonl", "w");
    for (int k = 1; k <= 9; k++) {
        fprintf(f, "{\"step\":%d,\"loss\":1,\"seconds\":1", k);
        if (k >= 3 && k <= 6) fprintf(f, ",\"slow_rank\":%d,\"slow_rate\":0.%d", k < 6 ? 1 : 0, k);
        fputs("}\n", f);
    }
    fclose(f);
    DONE("report", "paced");
    json_t *runs = runs_of("paced/report.html");
    const json_t *means = json_object_get(run_of(runs, 0), "mean");
    for (size_t i = 0; i < 9; i++) {
        const json_t *rank = json_array_get(json_object_get(means, "slow_rank"), i);
        CHECK_EQ(json_is_number(rank) ? (int)json_number_value(rank) : -1, i < 2 || i > 5 ? -1 : i < 5 ? 1 : 0);
    }
    json_decref(runs);
    if (!browser_found()) return;
    browser_open("paced/report.html",
                 "return {text: document.getElementById('slow').innerText.replace(/\\s+/g, ' ')};");
    CHECK_STR(ran.err, "");
    json_t *look = browser_result("wide");
    CHECK_HAS(json_string_value(json_object_get(look, "text")), "rank 1 3 to 5 30.0% rank 0 6 to 6 60.0%");
    json_decref(look);
}

TEST(runs_stand_side_by_side)
{
    fresh();
    write_many("a", 10, "");
    write_many("b", 2000, "");
    DONE("report", "a", "b/");
    CHECK_STR(ran.out, "report.html\n");
    json_t *runs = runs_of("report.html");
    CHECK_EQ(json_array_size(runs), 2);
    CHECK_STR(json_string_value(json_object_get(run_of(runs, 1), "name")), "b");
    CHECK_EQ(json_integer_value(json_object_get(run_of(runs, 1), "lines")), 2000);
    CHECK(at_step(run_of(runs, 1), "loss", 2000) == member(run_of(runs, 1), "last", "loss"));
    json_decref(runs);
}

/* ---- in a browser ---- */

/* Rates of steps of 1 and 3 seconds are 2000 tokens by 4 seconds; a loss that is never finite; waits that overlap; and
 * a page of a run that was killed. */
TEST(a_browser_shows_what_is_odd)
{
    if (!browser_found()) SKIP("no chromium");
    fresh();
    mkdir("odd", 0777);
    write_text("odd/metrics.jsonl",
               "{\"step\":1,\"loss\":null,\"tokens\":1000,\"seconds\":9,\"tokens_per_s\":111}\n"
               "{\"step\":2,\"loss\":null,\"tokens\":1000,\"seconds\":1,\"tokens_per_s\":1000,"
               "\"gpu\":{\"wait_seconds\":9},\"disk\":{\"wait_seconds\":9}}\n"
               "{\"step\":3,\"loss\":null,\"tokens\":1000,\"seconds\":3,\"tokens_per_s\":333.3}\n");
    write_text("odd/report.html", "{\"running\":true,\"written\":1700000000,\n");
    DONE("report", "odd");
    browser_open(
        "odd/report.html",
        "const all = s => [...document.querySelectorAll(s)];"
        "return {gaps: all('#loss .gap').length, text: document.body.innerText, broken: all('svg *').filter(e =>"
        "[...e.attributes].some(a => /NaN|undefined|Infinity/.test(a.value))).length};");
    CHECK_STR(ran.err, "");
    json_t *look = browser_result("wide");
    const char *text = json_string_value(json_object_get(look, "text"));
    CHECK_EQ(json_integer_value(json_object_get(look, "gaps")), 3);
    CHECK_EQ(json_integer_value(json_object_get(look, "broken")), 0);
    CHECK_HAS(text, "no word since");
    CHECK_HAS(text, "500 tokens/s");
    CHECK_HAS(text, "Waits overlapped");
    CHECK_HAS(text, "every 5 minutes");
    CHECK(text && !strstr(text, "running"));
    json_decref(look);
}

static const char LOOK[] =
    "const all = s => [...document.querySelectorAll(s)], one = s => document.querySelector(s);"
    "const broken = () => all('svg *').filter(e => [...e.attributes].some(a => "
    "/NaN|undefined|Infinity/.test(a.value))).length;"
    "const series = n => all('#loss g[data-series]').filter(g => g.dataset.series === n && g.children.length).length;"
    "const end = one('#loss .end'), raw = one('#loss path.raw:not(.legend path)') || one('#loss .plot path.raw');"
    "const last = one('#loss .plot path.raw').getAttribute('d').split(/[ML]/).pop().replace('h.01', '').split(' ');"
    "const out = {title: document.title, h1: one('h1').textContent, value: end.dataset.value, step: end.dataset.step,"
    "  ends: last[0] === end.getAttribute('cx') && last[1] === end.getAttribute('cy'), broken: broken(),"
    "  charts: all('svg.plot').length, requests: performance.getEntriesByType('resource').length,"
    "  wider: document.documentElement.scrollWidth - innerWidth, text: document.body.innerText};"
    "const button = all('#loss .legend button').find(b => b.textContent.startsWith('train, raw'));"
    "out.before = series('train, raw'); button.click(); out.hidden = series('train, raw');"
    "out.pressed = button.getAttribute('aria-pressed'); out.others = series('train');"
    "button.click(); out.shown = series('train, raw');"
    "const plot = one('#loss svg.plot'), box = plot.getBoundingClientRect();"
    "plot.dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowLeft', bubbles: true}));"
    "for (const b of all('button')) { b.click(); out.broken += broken(); b.click(); out.broken += broken(); }"
    "const time = all('.choice button')[2]; time.click(); out.broken += broken();"
    "one('input[type=range]').value = 100; one('input[type=range]').dispatchEvent(new Event('input')); out.broken += "
    "broken();"
    "return out;";

static void check_look(const char *width, const char *name, double loss, const char *step)
{
    json_t *look = browser_result(width);
    if (!look) CHECK_SAY("no page that is %s", width);
    const char *value = json_string_value(json_object_get(look, "value"));
    CHECK_STR(json_string_value(json_object_get(look, "h1")), name);
    CHECK_HAS(json_string_value(json_object_get(look, "title")), name);
    CHECK(value && strtod(value, NULL) == loss);
    CHECK_STR(json_string_value(json_object_get(look, "step")), step);
    CHECK(json_is_true(json_object_get(look, "ends")));
    CHECK_EQ(json_integer_value(json_object_get(look, "broken")), 0);
    CHECK_EQ(json_integer_value(json_object_get(look, "requests")), 0);
    CHECK(json_integer_value(json_object_get(look, "charts")) >= 6);
    const long wider = (long)json_integer_value(json_object_get(look, "wider"));
    if (wider > 0) CHECK_SAY("the page that is %s is %ld pixels wider than its window", width, wider);
    CHECK_EQ(json_integer_value(json_object_get(look, "before")), 1);
    CHECK_EQ(json_integer_value(json_object_get(look, "hidden")), 0);
    CHECK_STR(json_string_value(json_object_get(look, "pressed")), "false");
    CHECK_EQ(json_integer_value(json_object_get(look, "others")), 1);
    CHECK_EQ(json_integer_value(json_object_get(look, "shown")), 1);
    json_decref(look);
}

static double last_loss(const char *path)
{
    json_t *metrics = read_metrics(path);
    const double loss = number_of(metrics, json_array_size(metrics) - 1, "loss");
    json_decref(metrics);
    return loss;
}

TEST(a_browser_shows_it)
{
    if (!browser_found()) SKIP("no chromium");
    tiny_setup_with(", \"eval_every\": 2");
    DONE("train", "run.json", "output=" ODD);
    browser_open(ODD "/report.html", LOOK);
    CHECK_STR(ran.err, "");
    const double loss = last_loss(ODD "/metrics.jsonl");
    check_look("wide", ODD, loss, "4");
    check_look("narrow", ODD, loss, "4");

    write_many("long", MANY, "");
    DONE("report", "long");
    browser_open("long/report.html", LOOK);
    CHECK_STR(ran.err, "");
    check_look("wide", "long", last_loss("long/metrics.jsonl"), "100000");

    write_many("short", 1, "");
    DONE("report", "short", "long", ODD);
    browser_open("report.html",
                 "const t = document.body.innerText; return {h1: document.querySelector('h1').textContent,"
                 "ends: document.querySelectorAll('#loss .end').length, text: t.includes('n_embd')};");
    CHECK_STR(ran.err, "");
    json_t *look = browser_result("narrow");
    CHECK_STR(json_string_value(json_object_get(look, "h1")), "3 runs side by side");
    CHECK_EQ(json_integer_value(json_object_get(look, "ends")), 3);
    json_decref(look);
}
