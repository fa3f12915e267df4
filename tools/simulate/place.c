/* tessera place: which placement of a run is the fastest on a machine that is not here, of those that fit. Candidates
 * are estimated as rows (rows.h): first each division of the ranks, then, again and again, what differs from the best
 * by one setting, until nothing is better. Settings that the command line has stay. Of a step of many micro-batches two
 * shorter ones are estimated, on whose line it lies: once a pipeline is full each further micro-batch takes as long as
 * the one before it. What is best by that is estimated whole. */
#include "tools/commands/cmd.h"
#include "tools/simulate/rows.h"
#include "tools/simulate/simulation.h"
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { SIMULATE = CMD_MACHINE_OPTIONS, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    CMD_ELSEWHERE, [SIMULATE] = {"--simulate", "K",
                                 "simulate the K best as well, and name the best of these; 0 if not given", NULL}};

/* ---- candidates ---- */

enum { MOST = 512, ROUNDS = 5, AT_A_TIME = 2, LARGER = 4 };
static const char *const orders[][2] = {{"parallel.schedule=1f1b", "parallel.interleave=1"},
                                        {"parallel.schedule=1f1b", "parallel.interleave=2"},
                                        {"parallel.schedule=1f1b", "parallel.interleave=4"},
                                        {"parallel.schedule=zb-h1", "parallel.interleave=1"},
                                        {"parallel.schedule=zb-v", "parallel.interleave=1"}};
enum { ORDERS = sizeof orders / sizeof *orders };
static const char *const away[][2] = {{"none", "none"}, {"cpu", "none"}, {"cpu", "cpu"}, {"nvme", "nvme"}};
enum { AWAY = sizeof away / sizeof *away };

struct choice {
    int micros; /* of the shorter of two steps; 0: it is estimated whole */
    int tensor, pipeline, sequence, order, stage, micro, away;
    bool again;   /* blocks are computed again */
    bool experts; /* each data-parallel rank has some */
};

static struct search {
    char **argument; /* CONFIG.json, keys, the machine's options */
    int count, ranks, here, gpus;
    int64_t batch; /* train_batch_size; 0: nothing says it */
    struct choice of[MOST];
    cmd_row row[2 * MOST]; /* of each the second is the longer of two steps */
    int rows, ended_by;
} search;

static cmd_row *row_of(int i)
{
    return &search.row[2 * i];
}

static const char *given(const char *key)
{
    const size_t n = strlen(key);
    for (int i = 0; i < search.count; i++)
        if (!strncmp(search.argument[i], key, n) && search.argument[i][n] == '=') return search.argument[i] + n + 1;
    return NULL;
}

static void set(cmd_row *row, int *n, const char *key, const char *value)
{
    if (!given(key)) row->more[(*n)++] = tess_format("%s=%s", key, value);
}

static void set_number(cmd_row *row, int *n, const char *key, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    set(row, n, key, text);
}

/* How many sequences each micro-batch is over all ranks. */
static int64_t samples(const struct choice *c)
{
    return (int64_t)c->micro * (search.ranks / (c->tensor * c->pipeline * c->sequence));
}

/* A step of this number of micro-batches, or the whole one (0). */
static void write_keys(const struct choice *c, int micros, cmd_row *row)
{
    int n = 0;
    *row = (cmd_row){.command = (char *)"estimate", .more = tess_alloc(20 * sizeof *row->more)};
    set_number(row, &n, "parallel.tensor", c->tensor);
    set_number(row, &n, "parallel.pipeline", c->pipeline);
    for (int k = 0; k < 2 && c->pipeline > 1; k++) {
        const char *equal = strchr(orders[c->order][k], '=');
        TESS_FREED char *key = tess_format("%.*s", (int)(equal - orders[c->order][k]), orders[c->order][k]);
        set(row, &n, key, equal + 1);
    }
    if (c->sequence > 1) set_number(row, &n, "parallel.sequence", c->sequence);
    if (c->experts) set_number(row, &n, "parallel.expert", search.ranks / (c->tensor * c->pipeline));
    set_number(row, &n, "zero_optimization.stage", c->stage);
    set_number(row, &n, "train_micro_batch_size_per_gpu", c->micro);
    set(row, &n, "gradient_accumulation_steps", "null");
    if (search.batch)
        row->more[n++] = tess_format("train_batch_size=%lld", (long long)(micros ? micros * samples(c) : search.batch));
    set(row, &n, "activation_checkpointing.enabled", c->again ? "true" : "false");
    if (c->tensor > 1 && c->again) set(row, &n, "activation_checkpointing.partition_activations", "true");
    if (c->away) {
        set(row, &n, "zero_optimization.offload_optimizer.device", away[c->away][0]);
        set(row, &n, "zero_optimization.offload_param.device", away[c->away][1]);
        if (c->away == AWAY - 1) set(row, &n, "memory.path", "swap");
    }
}

/* Of chunks a section takes as many micro-batches at a time as there are sections. */
static int longer(const struct choice *c)
{
    const bool chunks = c->order == 1 || c->order == 2 || given("parallel.interleave");
    return chunks ? 2 * c->micros : c->micros + (c->micros + 1) / 2;
}

static void write_rows(int i)
{
    const struct choice *c = &search.of[i];
    write_keys(c, c->micros, row_of(i));
    if (c->micros) write_keys(c, longer(c), row_of(i) + 1);
}

static int given_number(const char *key, int otherwise)
{
    const char *value = given(key);
    return value && atoi(value) > 0 ? atoi(value) : otherwise;
}

/* Adds a candidate that can be, unless it is there. */
static void add(struct choice c)
{
    c.tensor = given_number("parallel.tensor", c.tensor), c.pipeline = given_number("parallel.pipeline", c.pipeline);
    c.sequence = given_number("parallel.sequence", c.sequence);
    c.micro = given_number("train_micro_batch_size_per_gpu", c.micro);
    if (c.tensor < 1 || c.pipeline < 1 || c.sequence < 1 || c.micro < 1) return;
    if (c.micro > 64 || c.pipeline > 64 || search.rows == MOST) return;
    const int model = c.tensor * c.pipeline;
    if (search.here % c.tensor || search.ranks % (model * c.sequence)) return;
    if (c.experts && (search.ranks == model || c.sequence > 1)) return;
    if (search.ranks == model) c.stage = 0;
    if (c.away) c.stage = 3;
    if (c.pipeline == 1) c.order = 0;
    const int full = c.pipeline > 2 ? c.pipeline : 2;
    c.micros = search.batch > 3 * full * samples(&c) && search.batch % samples(&c) == 0 ? full : 0;
    search.of[search.rows] = c;
    write_rows(search.rows);
    char **more = row_of(search.rows)->more;
    for (int i = 0; i < search.rows; i++) { /* what is given makes some of them one */
        char **other = row_of(i)->more;
        int k = 0;
        while (more[k] && other[k] && !strcmp(more[k], other[k])) k++;
        if (!more[k] && !other[k]) return;
    }
    search.rows++;
}

/* The least micro-batch for each section of a pipeline, and for a shared sequence; larger ones where a rank has all
 * blocks, whose weights may come for each. */
static void add_divisions(int far)
{
    for (int t = 1; t <= search.here; t *= 2)
        for (int p = 1; p <= search.ranks / t && (p == 1 || !far); p *= 2)
            for (int stage = 1; stage <= (p == 1 ? 3 : 1); stage += 2) {
                struct choice c = {.tensor = t, .pipeline = p, .sequence = 1, .stage = stage};
                c.micro = p == 1 ? LARGER : 1, c.away = far, c.again = true;
                add(c);
                c.micro = 1, c.sequence = search.here / t;
                if (stage == 3) add(c);
            }
}

/* The least micro-batch where a larger one does not fit. */
static void add_least(int first)
{
    for (int i = first, end = search.rows; i < end; i++) {
        struct choice c = search.of[i];
        if (c.micro != LARGER || row_of(i)->fits) continue;
        c.micro = 1;
        add(c);
    }
}

/* What differs from it by one setting. */
static void add_beside(const struct choice *c)
{
    struct choice other;
#define BESIDE(change) (other = *c, change, add(other))
    BESIDE(other.micro *= 2);
    BESIDE(other.micro /= 2);
    BESIDE(other.again = !other.again);
    BESIDE(other.tensor *= 2);
    BESIDE(other.tensor /= 2);
    BESIDE(other.sequence *= 2);
    BESIDE(other.sequence /= 2);
    BESIDE(other.experts = !other.experts);
    if (c->away < 2 && search.gpus) BESIDE(other.away = !other.away);
    BESIDE(other.pipeline *= 2);
    BESIDE(other.pipeline /= 2);
    for (int order = 0; order < ORDERS; order++) BESIDE(other.order = order);
    for (int stage = 0; stage <= 3; stage++) BESIDE(other.stage = stage);
    BESIDE((other.tensor *= 2, other.pipeline /= 2));
    BESIDE((other.tensor /= 2, other.pipeline *= 2));
#undef BESIDE
}

/* Puts the best rows first. */
static int faster_first(const void *a, const void *b)
{
    const cmd_row *x = row_of(*(const int *)a), *y = row_of(*(const int *)b);
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static int sort(int order[MOST])
{
    int fit = 0;
    for (int i = 0; i < search.rows; i++) order[i] = i, fit += row_of(i)->fits;
    qsort(order, (size_t)search.rows, sizeof *order, faster_first);
    return fit;
}

/* Puts the whole step in the place of the shorter of two. The GPU's work is on such a line as well and is the least
 * that the step takes: where the two wait for something else, such as updates on cores, they are of nearly one length.
 */
static void draw_line(int i)
{
    const double one = search.of[i].micros;
    cmd_row *row = row_of(i);
    const double all = (double)search.batch / (double)samples(&search.of[i]), tokens = row->rate * row->seconds / one;
    const double further = (all - one) / (longer(&search.of[i]) - one);
    if (!row->fits || !row[1].fits) {
        if (row->fits) memcpy(row->wrong, row[1].wrong, sizeof row->wrong), row->status = row[1].status;
        row->fits = false;
        return;
    }
    row->seconds =
        fmax(row->seconds + further * (row[1].seconds - row->seconds), row->gpu + further * (row[1].gpu - row->gpu));
    row->rate = tokens * all / row->seconds;
}

static tess_status run_rows(int first, int more)
{
    for (int longer = 0; longer < 2 && !search.ended_by; longer++) { /* where the shorter of two steps fits */
        for (int i = first; i < search.rows; i++)
            row_of(i)[1].done = !longer || !search.of[i].micros || !row_of(i)->fits;
        TESS_TRY(cmd_rows_run("place", search.argument, search.count + more, row_of(first), 2 * (search.rows - first),
                              &search.ended_by));
    }
    for (int i = first; i < search.rows && !search.ended_by; i++)
        if (search.of[i].micros) draw_line(i);
    return TESS_OK;
}

static tess_status estimate(int first)
{
    char fits[] = "--fits";
    search.argument[search.count] = fits;
    return run_rows(first, 1);
}

/* Runs the best k again, whole, by a command, with `more` arguments behind the others. */
static tess_status again(int k, const char *command, int more, int order[MOST], int *fit)
{
    const int first = search.rows;
    for (int i = 0; i < k && i < *fit && search.rows < MOST; i++) {
        search.of[search.rows] = search.of[order[i]];
        search.of[search.rows].micros = 0;
        write_rows(search.rows);
        row_of(search.rows++)->command = (char *)command;
    }
    for (int i = 0; i < k && i < *fit; i++) row_of(order[i])->fits = false;
    TESS_TRY(run_rows(first, more));
    *fit = sort(order);
    return TESS_OK;
}

/* Estimates the best whole, until what is then the best was. */
static tess_status whole(int order[MOST], int *fit)
{
    for (;;) {
        int k = 0;
        while (k < AT_A_TIME && k < *fit && search.of[order[k]].micros) k++;
        if (k == 0 || search.ended_by) return TESS_OK;
        TESS_TRY(again(k, "estimate", 1, order, fit));
    }
}

static tess_status look(int order[MOST], int *fit)
{
    int before = 0;
    for (int far = 0; far < AWAY && *fit == 0; far++) {
        before = search.rows;
        add_divisions(far);
        TESS_TRY(estimate(before));
        const int larger = search.rows;
        add_least(before);
        TESS_TRY(estimate(larger));
        if (search.ended_by) return TESS_OK;
        *fit = sort(order);
    }
    for (int round = 0; *fit > 0 && round < ROUNDS && before < search.rows; round++) {
        TESS_TRY(whole(order, fit));
        if (search.ended_by) return TESS_OK;
        before = search.rows;
        for (int i = 0; i < AT_A_TIME && i < *fit; i++) add_beside(&search.of[order[i]]);
        TESS_TRY(estimate(before));
        if (search.ended_by) return TESS_OK;
        *fit = sort(order);
    }
    return whole(order, fit);
}

/* Simulates the best k. */
static tess_status simulate(int k, int order[MOST], int *fit)
{
    enum { MORE = 2 };
    char *argument[MORE] = {(char *)"--fold=auto", (char *)"--steps=1"};
    memcpy(search.argument + search.count, argument, sizeof argument);
    const int first = search.rows;
    TESS_TRY(again(k, "simulate", MORE, order, fit));
    for (int i = 0; i < first; i++) row_of(i)->fits = false;
    *fit = sort(order);
    return TESS_OK;
}

/* ---- what is found ---- */

/* With `all` those of the batch as well, which every placement has. */
static void print_choice(const cmd_row *row, bool all)
{
    for (int k = 0; row->more[k]; k++)
        if (all || (!strstr(row->more[k], "=null") && strncmp(row->more[k], "train_batch_size=", 17)))
            printf(" %s", row->more[k]);
}

static tess_status tell(const int order[MOST], int fit)
{
    enum { SHOWN = 8 };
    if (fit == 0) { /* where there is one reason, that is the error */
        cmd_row *first = row_of(0);
        for (int i = 0; i < search.rows && first->status != TESS_FAILED; i++) /* which could be, and has no room */
            first = row_of(row_of(i)->status == TESS_FAILED ? i : 0);
        bool same = true;
        for (int i = 1; i < search.rows; i++) same = same && !strcmp(row_of(i)->wrong, first->wrong);
        char *what = same ? strstr(first->wrong, ": ") : NULL;
        if (!what)
            return tess_error(first->status, "place", "none of %d placements fits; the first: %.600s", search.rows,
                              first->wrong);
        *what = 0;
        return tess_error(first->status, first->wrong, "%s", what + 2);
    }
    cmd_rows_head();
    for (int i = 0; i < fit && i < SHOWN; i++) {
        cmd_row_print(row_of(order[i]));
        printf("  %s", search.of[order[i]].micros ? "~" : " ");
        print_choice(row_of(order[i]), false);
        printf("\n");
    }
    printf("\n%d placements were estimated; ~: by two steps of fewer micro-batches\nbest     ", search.rows);
    print_choice(row_of(order[0]), true);
    printf(": %.6f s, %.1f tokens/s\n", row_of(order[0])->seconds, row_of(order[0])->rate);
    return TESS_OK;
}

/* What the configuration makes of its three keys, as it stands. */
static tess_status read_batch(int rest, char **argv)
{
    CMD_FREED tess_config c = {0};
    if (rest < 1) return TESS_OK; /* the rows say so */
    TESS_TRY(tess_config_load(argv[1], (const char *const *)argv + 2, (size_t)rest - 1, &c));
    const int64_t micro = c.train_micro_batch_size_per_gpu, steps = c.gradient_accumulation_steps;
    search.batch = c.train_batch_size > 0   ? c.train_batch_size
                   : micro > 0 || steps > 0 ? (micro > 0 ? micro : 1) * (steps > 0 ? steps : 1) *
                                                  (search.ranks / (c.parallel.tensor * c.parallel.pipeline))
                                            : 0;
    return TESS_OK;
}

static tess_status run(int rest, char **argv)
{
    enum { MORE = 3 }; /* arguments */
    tess_simulation simulation = {0};
    double best = 0;
    int order[MOST], fit = 0;
    TESS_TRY(cmd_whole_number(&options[SIMULATE], 0, 64, &best));
    TESS_TRY(cmd_simulation_read(options, &simulation));
    search.ranks = tess_ranks(), search.here = simulation.ranks_here, search.gpus = simulation.machine.gpus.count;
    TESS_TRY(read_batch(rest, argv));
    search.argument = tess_alloc((size_t)(rest + 3 * MORE) * sizeof *search.argument);
    memcpy(search.argument, argv + 1, (size_t)rest * sizeof *argv);
    search.count = rest;
    search.argument[search.count++] = tess_format("--machine=%s", options[CMD_MACHINE].value);
    search.argument[search.count++] = tess_format("--nodes=%d", simulation.machine.nodes);
    search.argument[search.count++] = tess_format("--ranks-per-node=%d", search.here);
    tess_status status = look(order, &fit);
    if (status == TESS_OK && !search.ended_by && fit > 0 && best > 0) status = simulate((int)best, order, &fit);
    if (status == TESS_OK && !search.ended_by) status = tell(order, fit);
    fflush(stdout);
    if (search.ended_by) raise(search.ended_by);
    return status;
}

const command cmd_place = {
    .name = "place",
    .usage = "place CONFIG.json [KEY=VALUE ...] --machine FILE [--nodes N] [--ranks-per-node N] [--simulate K]",
    .summary = "Finds the fastest placement of a run on a machine that is not here.",
    CMD_OPTIONS(options),
    .more = "Tried are data x tensor x pipeline, the order of a pipeline, ZeRO's stages, the micro-batch, "
            "recomputation,\n"
            "and, where nothing fits, states and weights in RAM and on a drive. train_batch_size stays, and so do the\n"
            "settings behind CONFIG.json. The last line has the keys of the best one.\n",
    .run = run,
    .ranks = CMD_ALL_RANKS};
