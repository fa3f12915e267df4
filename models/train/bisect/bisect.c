/* tessera bisect: the step, the op, the tile and the rank where two runs part.
 *
 * Bits do not depend on placement, so of two runs of one configuration that differ one is wrong. What every run leaves
 * (losses and norms with all digits, checkpoints) gives the last common checkpoint; the steps behind it are made again
 * with a digest of each tile that a task finds and leaves, 16 bytes a use, kept in RAM until the step ends. A trace
 * may lose events, tasks of StarPU's own would hold tiles longer than the plan says, and digests in every run would
 * cost a pass over all bytes. Lists differ by caps and ranks, so a task is known by its codelet, tensor, micro-batch
 * and place among equals. Tasks on a GPU leave no digests: they end later than the worker that submits them. */
#include "models/text/base/text.h"
#include "models/train/bisect/bisect_impl.h"
#include "models/train/config/config.h"
#include <errno.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static char *again_in(const char *run)
{
    return tess_format("%s/bisect", run);
}

/* ---- steps that are made once more ---- */

/* The output of a replay is the run's own but for a folder, so that it lies on the same drive. */
tess_status tess_bisect_replay(const char *run, const char *steps)
{
    long long from, to;
    if (sscanf(steps, "%lld:%lld", &from, &to) != 2 || from < 0 || to <= from)
        return tess_error(TESS_INVALID, "--replay", "%.40s, expected FROM:TO", steps);
    TESS_FREED char *file = tess_format("%s/config.json", run);
    TESS_FREED char *output = tess_format("output=%s/bisect", run),
                    *digests = tess_format("digests.steps=[%lld,%lld]", from + 1, to);
    const char *const set[] = {output,
                               digests,
                               "overwrite=true",
                               "checkpoint.resume=false",
                               "checkpoint.every=0",
                               "checkpoint.keep_best=false",
                               "early_stop.patience=0",
                               "trace.steps=[0,0]"};
    tess_config c;
    tess_replay replay = {.from = from, .to = to};
    tess_status status;
    TESS_TRY_DONE(tess_config_load(file, set, sizeof set / sizeof *set, &c));
    c.quiet = true;
    replay.checkpoints = c.checkpoint.dir;
    c.checkpoint.dir = NULL; /* nothing is written there, or removed */
    TESS_TRY_DONE(tess_config_resolve(&c, tess_ranks()));
    status = tess_train_again(&c, &replay);
done:
    free((char *)replay.checkpoints);
    tess_config_free(&c);
    return status;
}

/* Has mpirun start the program as s->ranks ranks, which make the steps again. */
static tess_status launch(const tess_side *s, const char *steps, const char *program)
{
    char *ranks = tess_format("%d", s->ranks);
    const char *const argv[] = {"mpirun", "-n", ranks, program, "bisect", "--replay", steps, s->dir, NULL};
    pid_t child;
    int ended = 0;
    fflush(stdout);
    const int rc = posix_spawnp(&child, argv[0], NULL, NULL, (char *const *)argv, environ);
    free(ranks);
    while (!rc && waitpid(child, &ended, 0) < 0 && errno == EINTR) continue;
    if (rc || ended)
        return tess_error(TESS_FAILED, s->dir,
                          "its %d ranks could not be started again: mpirun -n %d %s (start bisect as the run was "
                          "started, or train with digests.steps)",
                          s->ranks, s->ranks, rc ? strerror(rc) : "failed");
    return TESS_OK;
}

static tess_status replay(const tess_side *s, const tess_stretch *at, const char *program)
{
    TESS_FREED char *steps = tess_format("%lld:%lld", (long long)at->from, (long long)at->to);
    tess_status status;
    if (!tess_rank())
        printf("%s from step %lld to %lld once more, on %d rank%s\n", s->dir, (long long)at->from + 1,
               (long long)at->to, s->ranks, s->ranks > 1 ? "s" : "");
    status = s->ranks == tess_ranks() ? tess_bisect_replay(s->dir, steps) : launch(s, steps, program);
    return status;
}

/* Ranks of a launcher's cannot be others. */
static tess_status check_ranks(const tess_side side[2])
{
    for (int k = 0; k < 2 && tess_ranks_launched(); k++)
        if (side[k].ranks != tess_ranks())
            return tess_error(TESS_INVALID, side[k].dir,
                              "had %d rank%s, and bisect has %d now (without a launcher it starts as many as each run "
                              "had)",
                              side[k].ranks, side[k].ranks > 1 ? "s" : "", tess_ranks());
    return TESS_OK;
}

/* ---- what is said ---- */

static void say_difference(const tess_side side[2], const tess_difference *d, FILE *out)
{
    const char *a = side[0].dir, *b = side[1].dir;
    fprintf(out, "%s and %s part in step %lld:\n", a, b, (long long)d->step);
    fprintf(out, "  op    %s%s%s", d->codelet, strcmp(d->op, "-") ? " of " : "", strcmp(d->op, "-") ? d->op : "");
    if (d->micro >= 0) fprintf(out, ", micro-batch %lld", (long long)d->micro);
    fprintf(out, " (task %llu)\n", (unsigned long long)d->task);
    fprintf(out, "  tile  %s, %s, %llu bytes\n", d->label, d->role, d->bytes);
    fprintf(out, "  rank  %d of %d\n", d->rank, d->ranks);
    if (d->kind == TESS_DIFFERS_LEFT)
        fprintf(out, "  it found the same in both, and left %016llx in %s and %016llx in %s\n", d->bits[0], a,
                d->bits[1], b);
    if (d->kind == TESS_DIFFERS_FOUND)
        fprintf(out, "  it found %016llx in %s and %016llx in %s, written %s%s\n", d->bits[0], a, d->bits[1], b,
                strncmp(d->writer, "before", 6) ? "by " : "", d->writer);
    if (d->kind == TESS_DIFFERS_REST)
        fprintf(out,
                "  in %s it changed at rest: %s left %016llx, and this found %016llx (RAM, a drive or a copy changed "
                "it)\n",
                side[d->side].dir, d->writer, d->bits[0], d->bits[1]);
}

static tess_status part(const tess_side side[2], const tess_difference *d)
{
    return tess_error(TESS_FAILED, side[1].dir, "parts from %s in step %lld, in %s%s%s, rank %d", side[0].dir,
                      (long long)d->step, d->codelet, strcmp(d->op, "-") ? " of " : "", strcmp(d->op, "-") ? d->op : "",
                      d->rank);
}

/* Both replays are alike, so what parted the runs does not come again. *bad becomes the run whose own metrics the
 * replays do not have, where that is one of them. */
static tess_status judge(const tess_side side[2], const tess_stretch *at, int *bad)
{
    bool alike[2] = {true, true};
    *bad = -1;
    for (int k = 0; k < 2; k++) {
        tess_side again = {0};
        TESS_FREED char *path = tess_format("%s/bisect/metrics.jsonl", side[k].dir);
        const tess_status status = tess_side_metrics(path, &again);
        for (int64_t s = at->from + 1; s <= at->to && status == TESS_OK && s <= again.steps; s++)
            alike[k] &= tess_sides_alike(&side[k], &again, s);
        tess_side_close(&again);
        TESS_TRY(status);
    }
    if (alike[0] != alike[1]) *bad = alike[0] ? 1 : 0;
    return TESS_OK;
}

static tess_status say_not_again(const tess_side side[2], const tess_stretch *at, FILE *out)
{
    int bad;
    TESS_TRY(judge(side, at, &bad));
    fprintf(out, "made once more, both have the same bits in steps %lld to %lld\n", (long long)at->from + 1,
            (long long)at->to);
    if (bad >= 0)
        return tess_error(
            TESS_FAILED, side[bad].dir,
            "what happened up to step %lld does not happen again, and %s has the right numbers (bad RAM, a "
            "drive? digests.steps=[%lld,%lld] finds it while it trains)",
            (long long)at->to, side[!bad].dir, (long long)at->from + 1, (long long)at->to);
    return tess_error(TESS_FAILED, side[1].dir,
                      "parts from %s in step %lld, and neither has its numbers again here (were they made on another "
                      "machine, or by another version?)",
                      side[0].dir, (long long)at->to);
}

static void say_equal(const tess_side side[2], const tess_stretch *at, const tess_difference *d, FILE *out)
{
    fprintf(out, "%s and %s are equal: losses and gradient norms of %lld step%s", side[0].dir, side[1].dir,
            (long long)at->last, at->last == 1 ? "" : "s");
    if (at->weights) fprintf(out, ", weights");
    if (d->steps)
        fprintf(out, ", %llu tiles of %lld step%s", (unsigned long long)d->tiles, (long long)d->steps,
                d->steps == 1 ? "" : "s");
    fprintf(out, "\n");
}

/* ---- the search ---- */

/* Rank 0 reads. What is recorded of both is compared first: nothing has to be made again for it. */
static tess_status look(const char *const run[2], tess_side side[2], tess_stretch *at, tess_difference *d)
{
    for (int k = 0; k < 2; k++) TESS_TRY(tess_side_open(run[k], &side[k]));
    TESS_TRY(tess_sides_settings(&side[0], &side[1]));
    tess_sides_part(&side[0], &side[1], at);
    TESS_TRY(tess_digests_differ(run, tess_sides_same_grid(&side[0], &side[1]), d));
    return at->to && d->kind == TESS_DIFFERS_NOT ? check_ranks(side) : TESS_OK;
}

static tess_status compare_again(const char *const run[2], const tess_side side[2], tess_difference *d)
{
    char *again[2] = {again_in(run[0]), again_in(run[1])};
    const tess_status status =
        tess_digests_differ((const char *const *)again, tess_sides_same_grid(&side[0], &side[1]), d);
    for (int k = 0; k < 2; k++) free(again[k]);
    return status;
}

static tess_status conclude(const tess_side side[2], const tess_stretch *at, const tess_difference *d, FILE *out)
{
    if (d->kind != TESS_DIFFERS_NOT) {
        say_difference(side, d, out);
        return part(side, d);
    }
    if (at->to) return say_not_again(side, at, out);
    say_equal(side, at, d, out);
    return TESS_OK;
}

tess_status tess_bisect(const char *const run[2], const char *program, FILE *out)
{
    tess_side side[2] = {0};
    tess_stretch at = {0};
    tess_difference d = {0};
    tess_status status;
    TESS_TRY_DONE(tess_ranks_agree(tess_rank() ? TESS_OK : look(run, side, &at, &d)));
    tess_ranks_tell(&at, sizeof at);
    tess_ranks_tell(&d, sizeof d);
    if (at.to && d.kind == TESS_DIFFERS_NOT) {
        for (int k = 0; k < 2; k++) {
            int ranks = side[k].ranks;
            tess_ranks_tell(&ranks, sizeof ranks);
            side[k].dir = run[k], side[k].ranks = ranks;
            TESS_TRY_DONE(tess_ranks_agree(replay(&side[k], &at, program)));
        }
        TESS_TRY_DONE(tess_ranks_agree(tess_rank() ? TESS_OK : compare_again(run, side, &d)));
    }
    status = tess_ranks_agree(tess_rank() ? TESS_OK : conclude(side, &at, &d, out));
done:
    for (int k = 0; k < 2; k++) tess_side_close(&side[k]);
    return status;
}
