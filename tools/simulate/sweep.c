/* tessera simulate --sweep: one simulation for each combination of values of some keys, a row for each (rows.h), and
 * which of those that fit is the fastest. Each is this very command without the sweep. */
#include "tools/commands/cmd.h"
#include "tools/simulate/rows.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_KEYS = 16, MOST_VALUES = 64, MOST_RUNS = 4096 };
static const char WHERE[] = "--sweep";

/* A key and its values, which are pieces of `text`. */
struct axis {
    char *text, *value[MOST_VALUES];
    int values;
};

static struct sweep {
    char **kept; /* the other arguments */
    int nkept;
    struct axis axis[MOST_KEYS];
    int axes, runs;
    cmd_row *run;
} sweep;

/* ---- what is asked for ---- */

static const char *sweep_option(const char *text)
{
    const size_t n = strlen(WHERE);
    return !strncmp(text, WHERE, n) && (!text[n] || text[n] == '=') ? text + n : NULL;
}

bool cmd_sweeps(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (sweep_option(argv[i])) return true;
    return false;
}

/* Values lie between commas that are in no bracket and no text of JSON's. */
static tess_status add_axis(const char *text)
{
    struct axis *a = &sweep.axis[sweep.axes];
    int depth = 0;
    bool quoted = false;
    const char *equal = strchr(text, '=');
    if (!equal || equal == text || !equal[1])
        return tess_error(TESS_INVALID, WHERE, "%.100s, expected KEY=VALUE,VALUE,...", text);
    for (int k = 0; k < sweep.axes; k++)
        if (strlen(sweep.axis[k].text) == (size_t)(equal - text) &&
            !strncmp(sweep.axis[k].text, text, (size_t)(equal - text)))
            return tess_error(TESS_INVALID, WHERE, "%s is there twice (its values lie between commas)",
                              sweep.axis[k].text);
    if (sweep.axes == MOST_KEYS) return tess_error(TESS_INVALID, WHERE, "more than %d keys", MOST_KEYS);
    sweep.axes++;
    a->text = tess_format("%s", text);
    char *at = a->text + (equal - text);
    *at++ = 0;
    a->value[a->values++] = at;
    for (; *at; at++) {
        if (*at == '"' && at[-1] != '\\') quoted = !quoted;
        if (quoted) continue;
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        if (*at != ',' || depth > 0) continue;
        if (a->values == MOST_VALUES)
            return tess_error(TESS_INVALID, WHERE, "%s has more than %d values", a->text, MOST_VALUES);
        *at = 0;
        a->value[a->values++] = at + 1;
    }
    for (int v = 0; v < a->values; v++)
        if (!*a->value[v]) return tess_error(TESS_INVALID, WHERE, "%.100s has a value that is empty", text);
    return TESS_OK;
}

/* The last key changes fastest. */
static const char *value_of(int run, int axis)
{
    for (int k = sweep.axes - 1; k > axis; k--) run /= sweep.axis[k].values;
    return sweep.axis[axis].value[run % sweep.axis[axis].values];
}

/* Keys of the sweep come behind --sweep, up to the next option. */
static tess_status read_arguments(int argc, char **argv)
{
    bool swept = false;
    int runs = 1;
    sweep.kept = tess_alloc(((size_t)argc + MOST_KEYS + 3) * sizeof *sweep.kept);
    for (int i = 1; i < argc; i++) {
        const char *more = sweep_option(argv[i]);
        if (!strncmp(argv[i], "--trace", 7))
            return tess_error(TESS_INVALID, WHERE, "--trace: a sweep leaves no timeline (simulate one of its rows)");
        if (more)
            swept = true;
        else if (argv[i][0] == '-')
            swept = false;
        if (more && *more)
            TESS_TRY(add_axis(more + 1));
        else if (!more && swept)
            TESS_TRY(add_axis(argv[i]));
        else if (!more)
            sweep.kept[sweep.nkept++] = argv[i];
    }
    if (!sweep.axes) return tess_error(TESS_INVALID, WHERE, "missing its KEY=VALUE,VALUE,...");
    for (int k = 0; k < sweep.axes; k++) {
        runs *= sweep.axis[k].values;
        if (runs > MOST_RUNS) return tess_error(TESS_INVALID, WHERE, "more than %d combinations", MOST_RUNS);
    }
    sweep.run = tess_alloc((size_t)runs * sizeof *sweep.run);
    sweep.runs = runs;
    for (int run = 0; run < runs; run++) {
        sweep.run[run].command = argv[0];
        sweep.run[run].more = tess_alloc((size_t)(sweep.axes + 1) * sizeof(char *));
        for (int k = 0; k < sweep.axes; k++)
            sweep.run[run].more[k] = tess_format("%s=%s", sweep.axis[k].text, value_of(run, k));
    }
    return TESS_OK;
}

/* ---- the table ---- */

static int width_of(int axis)
{
    size_t width = strlen(sweep.axis[axis].text);
    for (int v = 0; v < sweep.axis[axis].values; v++)
        if (strlen(sweep.axis[axis].value[v]) > width) width = strlen(sweep.axis[axis].value[v]);
    return (int)width;
}

static void print_table(void)
{
    for (int k = 0; k < sweep.axes; k++) printf("%-*s  ", width_of(k), sweep.axis[k].text);
    cmd_rows_head();
    for (int i = 0; i < sweep.runs; i++) {
        for (int k = 0; k < sweep.axes; k++) printf("%-*s  ", width_of(k), value_of(i, k));
        cmd_row_print(&sweep.run[i]);
    }
}

/* Where none fits, and all for one reason, that is the error. */
static tess_status judge(void)
{
    const cmd_row *best = NULL, *first = sweep.run;
    bool same = true;
    for (int i = 0; i < sweep.runs; i++) {
        const cmd_row *o = &sweep.run[i];
        same = same && !strcmp(o->wrong, first->wrong);
        if (o->fits && (!best || o->rate > best->rate)) best = o;
    }
    char *what = strstr(sweep.run[0].wrong, ": ");
    if (!best && same && what) {
        *what = 0;
        return tess_error(first->status, first->wrong, "%s", what + 2);
    }
    print_table();
    if (!best) return tess_error(first->status, WHERE, "none of %d combinations fits", sweep.runs);
    printf("\nbest     ");
    for (int k = 0; k < sweep.axes; k++) printf(" %s=%s", sweep.axis[k].text, value_of((int)(best - first), k));
    printf(": %.6f s, %.1f tokens/s\n", best->seconds, best->rate);
    return TESS_OK;
}

tess_status cmd_sweep(int argc, char **argv)
{
    int ended_by = 0;
    tess_status status = read_arguments(argc, argv);
    if (status == TESS_OK) status = cmd_rows_run(WHERE, sweep.kept, sweep.nkept, sweep.run, sweep.runs, &ended_by);
    if (status == TESS_OK && !ended_by) status = judge();
    for (int i = 0; i < sweep.runs; i++) {
        for (int k = 0; k < sweep.axes; k++) free(sweep.run[i].more[k]);
        free(sweep.run[i].more);
    }
    for (int k = 0; k < sweep.axes; k++) free(sweep.axis[k].text);
    sweep.runs = 0;
    free(sweep.kept);
    free(sweep.run);
    fflush(stdout);
    if (ended_by) raise(ended_by);
    return status;
}
