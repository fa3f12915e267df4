/* tessera place: which placement of a run is the fastest on a machine that is not here, of those that fit. Candidates
 * are estimated as rows (rows.h): first each division of the ranks, then, again and again, what differs from the best
 * by one setting, until nothing is better. Settings that the command line has stay. */
#include "tools/commands/cmd.h"
#include "tools/simulate/rows.h"
#include "tools/simulate/simulation.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { SIMULATE = CMD_MACHINE_OPTIONS, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    CMD_ELSEWHERE, [SIMULATE] = {"--simulate", "K",
                                 "simulate the K best as well, and name the best of these; 0 if not given", NULL}};

/* ---- candidates ---- */

enum { MOST = 512, ROUNDS = 5, AT_A_TIME = 2 };
static const char *const orders[][2] = {{"parallel.schedule=1f1b", "parallel.interleave=1"},
                                        {"parallel.schedule=1f1b", "parallel.interleave=2"},
                                        {"parallel.schedule=zb-h1", "parallel.interleave=1"},
                                        {"parallel.schedule=zb-v", "parallel.interleave=1"}};
enum { ORDERS = sizeof orders / sizeof *orders };
static const char *const away[][2] = {{"none", "none"}, {"cpu", "none"}, {"cpu", "cpu"}, {"nvme", "nvme"}};
enum { AWAY = sizeof away / sizeof *away };

struct choice {
    int tensor, pipeline, order, stage, micro, away;
    bool again; /* blocks are computed again */
};

static struct search {
    char **argument; /* CONFIG.json, keys, the machine's options */
    int count, ranks, here;
    struct choice of[MOST];
    cmd_row row[MOST];
    int rows, ended_by;
} search;

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

static void write_keys(const struct choice *c, cmd_row *row)
{
    int n = 0;
    row->more = tess_alloc(16 * sizeof *row->more);
    set_number(row, &n, "parallel.tensor", c->tensor);
    set_number(row, &n, "parallel.pipeline", c->pipeline);
    for (int k = 0; k < 2 && c->pipeline > 1; k++) {
        const char *equal = strchr(orders[c->order][k], '=');
        TESS_FREED char *key = tess_format("%.*s", (int)(equal - orders[c->order][k]), orders[c->order][k]);
        set(row, &n, key, equal + 1);
    }
    set_number(row, &n, "zero_optimization.stage", c->stage);
    set_number(row, &n, "train_micro_batch_size_per_gpu", c->micro);
    set(row, &n, "gradient_accumulation_steps", "null");
    set(row, &n, "activation_checkpointing.enabled", c->again ? "true" : "false");
    if (c->tensor > 1 && c->again) set(row, &n, "activation_checkpointing.partition_activations", "true");
    if (c->away) {
        set(row, &n, "zero_optimization.offload_optimizer.device", away[c->away][0]);
        set(row, &n, "zero_optimization.offload_param.device", away[c->away][1]);
        if (c->away == AWAY - 1) set(row, &n, "memory.path", "swap");
    }
}

/* Adds a candidate that can be, unless it is there. */
static void add(struct choice c)
{
    const int model = c.tensor * c.pipeline;
    if (c.tensor < 1 || c.pipeline < 1 || c.micro < 1 || c.micro > 64 || c.pipeline > 64 || search.rows == MOST) return;
    if (search.here % c.tensor || search.ranks % model) return;
    if (search.ranks == model) c.stage = 0;
    if (c.away) c.stage = 3;
    if (c.pipeline == 1) c.order = 0;
    cmd_row *row = &search.row[search.rows];
    write_keys(&c, row);
    for (int i = 0; i < search.rows; i++) { /* what is given makes some of them one */
        int k = 0;
        while (row->more[k] && search.row[i].more[k] && !strcmp(row->more[k], search.row[i].more[k])) k++;
        if (!row->more[k] && !search.row[i].more[k]) return;
    }
    row->command = (char *)"estimate";
    search.of[search.rows++] = c;
}

static void add_divisions(int far)
{
    for (int t = 1; t <= search.here; t *= 2)
        for (int p = 1; p <= search.ranks / t && (p == 1 || !far); p *= 2)
            for (int stage = 1; stage <= (p == 1 ? 3 : 1); stage += 2)
                add((struct choice){
                    .tensor = t, .pipeline = p, .stage = stage, .micro = 1, .away = far, .again = true});
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
    const cmd_row *x = &search.row[*(const int *)a], *y = &search.row[*(const int *)b];
    if (x->fits != y->fits) return x->fits ? -1 : 1;
    if (x->rate != y->rate) return x->rate > y->rate ? -1 : 1;
    return *(const int *)a - *(const int *)b;
}

static int sort(int order[MOST])
{
    int fit = 0;
    for (int i = 0; i < search.rows; i++) order[i] = i, fit += search.row[i].fits;
    qsort(order, (size_t)search.rows, sizeof *order, faster_first);
    return fit;
}

static tess_status estimate(void)
{
    char fits[] = "--fits";
    search.argument[search.count] = fits;
    return cmd_rows_run("place", search.argument, search.count + 1, search.row, search.rows, &search.ended_by);
}

static tess_status look(int order[MOST], int *fit)
{
    for (int far = 0; far < AWAY && *fit == 0; far++) {
        add_divisions(far);
        TESS_TRY(estimate());
        if (search.ended_by) return TESS_OK;
        *fit = sort(order);
    }
    for (int round = 0, before = 0; round<ROUNDS && * fit> 0 && before < search.rows; round++) {
        before = search.rows;
        for (int i = 0; i < AT_A_TIME && i < *fit; i++) add_beside(&search.of[order[i]]);
        TESS_TRY(estimate());
        if (search.ended_by) return TESS_OK;
        *fit = sort(order);
    }
    return TESS_OK;
}

/* Simulates the best k, which stand in the rows behind all others then. */
static tess_status simulate(int k, int order[MOST], int *fit)
{
    enum { MORE = 2 };
    char *argument[MORE] = {(char *)"--fold=auto", (char *)"--steps=1"};
    const int first = search.rows;
    memcpy(search.argument + search.count, argument, sizeof argument);
    for (int i = 0; i < k && i < *fit && search.rows < MOST; i++) {
        search.of[search.rows] = search.of[order[i]];
        search.row[search.rows].more = search.row[order[i]].more;
        search.row[search.rows++].command = (char *)"simulate";
    }
    for (int i = 0; i < first; i++) search.row[i].fits = false;
    TESS_TRY(cmd_rows_run("place", search.argument, search.count + MORE, search.row, search.rows, &search.ended_by));
    *fit = sort(order);
    return TESS_OK;
}

/* ---- what is found ---- */

static void print_choice(const cmd_row *row)
{
    for (int k = 0; row->more[k]; k++)
        if (!strstr(row->more[k], "=null")) printf(" %s", row->more[k]);
}

static tess_status tell(const int order[MOST], int fit)
{
    enum { SHOWN = 8 };
    if (fit == 0) { /* where there is one reason, that is the error */
        cmd_row *first = &search.row[0];
        bool same = true;
        for (int i = 1; i < search.rows; i++) same = same && !strcmp(search.row[i].wrong, first->wrong);
        char *what = same ? strstr(first->wrong, ": ") : NULL;
        if (!what)
            return tess_error(first->status, "place", "none of %d placements fits; the first: %.600s", search.rows,
                              first->wrong);
        *what = 0;
        return tess_error(first->status, first->wrong, "%s", what + 2);
    }
    cmd_rows_head();
    for (int i = 0; i < fit && i < SHOWN; i++) {
        cmd_row_print(&search.row[order[i]]);
        printf("   ");
        print_choice(&search.row[order[i]]);
        printf("\n");
    }
    printf("\n%d placements were estimated\nbest     ", search.rows);
    print_choice(&search.row[order[0]]);
    printf(": %.6f s, %.1f tokens/s\n", search.row[order[0]].seconds, search.row[order[0]].rate);
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
    search.ranks = tess_ranks(), search.here = simulation.ranks_here;
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
