/* Checkpoints: written, found, read back, and the old ones removed.
 *
 * States are written and read by all ranks, each what it holds; directories and small files are rank 0's alone, and
 * what it finds there it tells the others, who might see something else a moment later.
 *
 * All ranks write into the same files. Each knows the place of every byte, so rank 0 makes the files at full size (a
 * full disk is met before anyone writes), every rank writes its rectangles with pwrite, and rank 0 renames the
 * directory and writes state.json last. The bytes depend neither on the number of ranks nor on the ZeRO stage, so a
 * run resumes on other ranks without a conversion. A file for each rank, as DeepSpeed writes it, is faster but has to
 * be converted; writing through rank 0 puts all states on one link; MPI-IO reports a full disk where it pleases. On
 * ext4 a write takes some 2 us whatever its length: runs of 8 KiB reach 1600 MB/s, of 2 KiB 870 to 1000, of 256 bytes
 * 146, of 32 bytes 17. Only a model whose matrices are transposed in the file (GPT-2, width 5120 on 8 and 64 ranks)
 * has the last two; a checkpoint never. */
#include "models/train/checkpoint/checkpoint.h"
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char FORMAT[] = "tessera checkpoint 1"; /* of state.json; the earliest say none */

/* Before the name of one that is not whole yet, or no more; and of a whole one whose name another is about to get. */
#define FRESH    ".new-"
#define REPLACED ".old-"

static char *path_of(const char *dir, int64_t step, const char *mark)
{
    return tess_format("%s/%sstep-%08lld", dir, mark, (long long)step);
}

static tess_status system_error(const char *path, const char *what)
{
    return tess_error(TESS_FAILED, path, "%s: %s", what, strerror(errno));
}

/* A directory of files; one that is not there is fine. What says that it is a whole checkpoint goes first. */
static void remove_flat(const char *path)
{
    TESS_FREED char *state = tess_format("%s/state.json", path);
    unlink(state);
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' && (!e->d_name[1] || (e->d_name[1] == '.' && !e->d_name[2]))) continue;
        TESS_FREED char *file = tess_format("%s/%s", path, e->d_name);
        unlink(file);
    }
    if (d) closedir(d);
    rmdir(path);
}

static tess_status sync_directory(const char *path)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY);
    if (fd < 0) return system_error(path, "cannot be opened");
    int rc = fsync(fd);
    close(fd);
    return rc ? system_error(path, "cannot be made durable") : TESS_OK;
}

/* ---- writing ---- */

static tess_status write_state(const char *dir, const tess_progress *p, const tess_graph *g)
{
    int moments;
    const char *optimizer = tess_graph_optimizer(g, &moments);
    const tess_run_facts *t = &p->told;
    char sum[32], frozen[32];
    snprintf(sum, sizeof sum, "%016llx", (unsigned long long)t->sum);
    snprintf(frozen, sizeof frozen, "%016llx", (unsigned long long)t->frozen);
    TESS_FREED_JSON json_t *root = json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)p->step, "samples",
                                             (json_int_t)p->samples, "seed", (json_int_t)p->seed, "format", FORMAT);
    json_t *of = json_pack("{s:s, s:i}", "name", optimizer, "moments", moments);
    const tess_keeping keeping = tess_graph_keeping(g);
    if (keeping != TESS_KEEP_F32) json_object_set_new(of, "states", json_string(tess_keeping_name(keeping)));
    json_object_set_new(root, "optimizer", of);
    if (t->known)
        json_object_set_new(root, "run",
                            json_pack("{s:I, s:I, s:I, s:I, s:b, s:b, s:b, s:b, s:b, s:{s:I, s:I, s:s}}", "steps",
                                      (json_int_t)t->steps, "schedule_steps", (json_int_t)t->schedule_steps,
                                      "train_batch_size", (json_int_t)t->batch, "seq_length", (json_int_t)t->length,
                                      "bf16", t->bf16, "fp16", t->fp16, "fp8", t->fp8, "half_gradients",
                                      t->half_gradients, "shuffle", t->shuffle, "data", "samples",
                                      (json_int_t)t->samples, "tokens", (json_int_t)t->tokens, "sum", sum));
    const tess_loss_scale *scale = &p->scale;
    if (scale->value > 0 || scale->skipped > 0)
        json_object_set_new(root, "loss_scale",
                            json_pack("{s:f, s:I, s:I, s:I, s:I}", "value", scale->value, "steps",
                                      (json_int_t)scale->steps, "last_overflow", (json_int_t)scale->overflow,
                                      "hysteresis", (json_int_t)scale->hysteresis, "skipped",
                                      (json_int_t)scale->skipped));
    if (p->spikes.seen)
        json_object_set_new(root, "spikes",
                            json_pack("{s:f, s:I, s:I, s:I}", "mean", p->spikes.mean, "seen",
                                      (json_int_t)p->spikes.seen, "row", (json_int_t)p->spikes.row, "back",
                                      (json_int_t)p->spikes.back));
    if (t->known && t->frozen)
        json_object_set_new(root, "frozen",
                            json_pack("{s:I, s:I, s:s}", "parameters", (json_int_t)t->parameters, "trained",
                                      (json_int_t)t->trained, "sum", frozen));
    if (p->best_step)
        json_object_set_new(root, "best",
                            json_pack("{s:I, s:f}", "step", (json_int_t)p->best_step, "valid_loss", p->best_loss));
    if (p->marked)
        json_object_set_new(root, "early_stop",
                            json_pack("{s:f, s:I}", "valid_loss", p->mark_loss, "worse", (json_int_t)p->worse));
    TESS_ASSERT(root);
    TESS_FREED char *path = tess_format("%s/state.json", dir), *text = json_dumps(root, JSON_INDENT(2));
    tess_status status = TESS_OK;
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%s\n", text) < 0 || fflush(f) || fsync(fileno(f)))
        status = system_error(path, "cannot be written");
    if (f) fclose(f);
    return status;
}

/* ---- those that are there ---- */

static int64_t step_of(const char *name)
{
    long long step;
    char end;
    return sscanf(name, "step-%lld%c", &step, &end) == 1 && step >= 0 ? step : -1;
}

static int newest_first(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x < y) - (x > y);
}

/* The steps that dir has checkpoints of, newest first; *steps is the caller's to free. */
static size_t list(const char *dir, int64_t **steps)
{
    size_t n = 0, room = 16;
    *steps = tess_alloc(room * sizeof **steps);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        int64_t step = step_of(e->d_name);
        if (step < 0) continue;
        if (n == room) *steps = tess_realloc(*steps, (room *= 2) * sizeof **steps);
        (*steps)[n++] = step;
    }
    if (d) closedir(d);
    qsort(*steps, n, sizeof **steps, newest_first);
    return n;
}

/* First its name goes, so that whoever reads it finds all of it or knows. */
static void remove_named(const char *path, const char *fresh)
{
    remove_flat(fresh);
    remove_flat(rename(path, fresh) ? path : fresh);
}

static void remove_step(const char *dir, int64_t step)
{
    TESS_FREED char *path = path_of(dir, step, ""), *fresh = path_of(dir, step, FRESH);
    remove_named(path, fresh);
}

/* Calls `what` for each step that dir has something of with this mark. */
static void for_marked(const char *dir, const char *mark, void (*what)(const char *dir, int64_t step))
{
    DIR *d = opendir(dir);
    const size_t n = strlen(mark);
    for (struct dirent *e; d && (e = readdir(d));) {
        const int64_t step = strncmp(e->d_name, mark, n) ? -1 : step_of(e->d_name + n);
        if (step >= 0) what(dir, step);
    }
    if (d) closedir(d);
}

/* A run ended while it replaced one: either the new one has the name, or the old one gets it back. */
static void settle_step(const char *dir, int64_t step)
{
    TESS_FREED char *path = path_of(dir, step, ""), *old = path_of(dir, step, REPLACED),
                    *fresh = path_of(dir, step, FRESH);
    if (access(path, F_OK) == 0)
        remove_named(old, fresh);
    else
        rename(old, path);
}

static void remove_fresh(const char *dir, int64_t step)
{
    TESS_FREED char *fresh = path_of(dir, step, FRESH);
    remove_flat(fresh);
}

/* What a run left that ended while it wrote one, or removed one. */
static void remove_unfinished(const char *dir)
{
    for_marked(dir, REPLACED, settle_step);
    for_marked(dir, FRESH, remove_fresh);
}

static void remove_old(const tess_checkpoint_conf *c, int64_t best)
{
    int64_t *steps;
    size_t n = list(c->dir, &steps);
    for (size_t i = (size_t)c->keep; i < n; i++)
        if (!c->best || steps[i] != best) remove_step(c->dir, steps[i]);
    free(steps);
    remove_unfinished(c->dir); /* a file of one may not have gone at once */
}

void tess_checkpoint_tidy(const tess_checkpoint_conf *c, int64_t best)
{
    remove_old(c, best);
}

size_t tess_checkpoint_clear(const char *dir)
{
    int64_t *steps;
    size_t n = list(dir, &steps), removed = 0;
    TESS_FREED char *best = tess_format("%s/best", dir);
    struct stat st;
    for (size_t i = 0; i < n; i++) {
        TESS_FREED char *path = path_of(dir, steps[i], "");
        if (tess_states_whole(path)) remove_step(dir, steps[i]), removed++;
    }
    if (lstat(best, &st) == 0 && S_ISLNK(st.st_mode)) unlink(best);
    free(steps);
    return removed;
}

/* A name for people, and for commands: where a file system has no links, state.json alone says which one it is. */
static void link_best(const char *dir, int64_t step)
{
    TESS_FREED char *fresh = tess_format("%s/.new-best", dir), *best = tess_format("%s/best", dir),
                    *to = path_of(".", step, "");
    struct stat st;
    unlink(fresh);
    const bool free_name = lstat(best, &st) || S_ISLNK(st.st_mode);
    if (free_name && symlink(to + 2, fresh) == 0 && rename(fresh, best)) unlink(fresh);
}

/* ---- writing the whole ---- */

tess_status tess_checkpoint_prepare(const char *dir)
{
    TESS_FREED char *inside = tess_format("%s/.", dir); /* a file in its place has none */
    tess_status status = TESS_OK;
    for (int made = 0; made < 2 && status == TESS_OK; made++) { /* rank 0 makes it, then the others look */
        bool mine = (tess_rank() == 0) == !made;
        if (mine && ((!made && !tess_dirs_make(dir, NULL)) || access(inside, W_OK)))
            status = tess_error(tess_errno_status(errno), dir, "cannot be written: %s (see checkpoint.dir%s)",
                                strerror(errno), made ? "; all ranks must see the same one" : "");
        status = tess_ranks_agree(status);
    }
    if (status == TESS_OK && tess_rank() == 0) remove_unfinished(dir);
    return status;
}

static tess_status make_fresh(const char *dir, const char *fresh)
{
    remove_unfinished(dir);
    return mkdir(fresh, 0777) ? system_error(fresh, "cannot be made") : TESS_OK;
}

/* Renames a whole one to its name. One of the same step gives it up, and stays until then: at any moment one is whole,
 * if not by its name then by what settle_step makes of it. */
static tess_status name(const char *fresh, const char *path, const char *old)
{
    if (rename(fresh, path) == 0) return TESS_OK;
    if ((errno == ENOTEMPTY || errno == EEXIST) && rename(path, old) == 0 && rename(fresh, path) == 0) return TESS_OK;
    const tess_status status = system_error(path, "cannot be named");
    rename(old, path);
    return status;
}

/* The states are there: with the rest the checkpoint gets its name. */
static tess_status publish(const char *fresh, const char *path, const tess_checkpoint_conf *c, const tess_model *m,
                           const tess_graph *g, const tess_progress *p)
{
    if (m) TESS_TRY(tess_model_save_rest(m, fresh));
    TESS_TRY(write_state(fresh, p, g));
    TESS_TRY(sync_directory(fresh));
    TESS_FREED char *old = path_of(c->dir, p->step, REPLACED);
    tess_status status = name(fresh, path, old);
    if (status == TESS_OK) status = sync_directory(c->dir);
    if (status == TESS_OK) remove_named(old, fresh);
    return status;
}

struct tess_checkpoint_saving {
    tess_checkpoint_conf c;
    const tess_model *m;
    tess_graph *g;
    tess_progress p;
    char *fresh, *path;
    tess_states_writing *states;
};

/* The states are there, or could not be written. */
static tess_status end(tess_checkpoint_saving *s, tess_status status)
{
    const bool leads = tess_rank() == 0;
    if (status == TESS_OK)
        status = tess_ranks_agree(leads ? publish(s->fresh, s->path, &s->c, s->m, s->g, &s->p) : TESS_OK);
    if (status == TESS_OK && leads && s->c.best && s->p.best_step == s->p.step) link_best(s->c.dir, s->p.step);
    if (status == TESS_OK && leads) remove_old(&s->c, s->p.best_step);
    if (status != TESS_OK && leads) remove_flat(s->fresh);
    free(s->fresh);
    free(s->path);
    free(s);
    return status;
}

tess_status tess_checkpoint_begin(const tess_checkpoint_conf *c, const tess_model *m, tess_graph *g,
                                  const tess_progress *p, bool beside, tess_checkpoint_saving **saving)
{
    tess_checkpoint_saving *s = *saving = tess_alloc(sizeof *s);
    *s = (tess_checkpoint_saving){*c, m, g, *p, path_of(c->dir, p->step, FRESH), path_of(c->dir, p->step, ""), NULL};
    tess_status status = tess_ranks_agree(tess_rank() ? TESS_OK : make_fresh(c->dir, s->fresh));
    if (status == TESS_OK) status = tess_states_begin(s->fresh, g, m, beside, &s->states);
    if (status == TESS_OK) return TESS_OK;
    (void)end(s, status);
    *saving = NULL;
    return status;
}

tess_status tess_checkpoint_end(tess_checkpoint_saving *s, bool fine)
{
    return s ? end(s, tess_states_end(s->states, fine)) : TESS_OK;
}

tess_status tess_checkpoint_save(const tess_checkpoint_conf *c, const tess_model *m, tess_graph *g,
                                 const tess_progress *p)
{
    tess_checkpoint_saving *s;
    TESS_TRY(tess_checkpoint_begin(c, m, g, p, false, &s));
    return tess_checkpoint_end(s, true);
}

char *tess_checkpoint_path(const char *dir, int64_t step)
{
    return path_of(dir, step, "");
}

/* ---- reading ---- */

/* Members that older checkpoints lack. */
static void read_more(json_t *root, tess_progress *p)
{
    tess_run_facts *t = &p->told;
    json_int_t steps, schedule, batch, length, samples, tokens, parameters, trained, best, worse;
    int bf16, shuffle;
    const char *sum, *optimizer, *states;
    if (!json_unpack(root, "{s:{s:s, s:i}}", "optimizer", "name", &optimizer, "moments", &p->moments))
        snprintf(p->optimizer, sizeof p->optimizer, "%s", optimizer);
    for (int k = TESS_KEEP_BF16; k <= TESS_KEEP_INT8; k++)
        if (!json_unpack(root, "{s:{s:s}}", "optimizer", "states", &states) &&
            !strcmp(states, tess_keeping_name((tess_keeping)k)))
            p->keeping = (tess_keeping)k;
    if (!json_unpack(root, "{s:{s:I, s:I, s:I, s:I, s:b, s:b, s:{s:I, s:I, s:s}}}", "run", "steps", &steps,
                     "schedule_steps", &schedule, "train_batch_size", &batch, "seq_length", &length, "bf16", &bf16,
                     "shuffle", &shuffle, "data", "samples", &samples, "tokens", &tokens, "sum", &sum))
        *t = (tess_run_facts){.known = true,
                              .bf16 = bf16,
                              .shuffle = shuffle,
                              .steps = steps,
                              .schedule_steps = schedule,
                              .batch = batch,
                              .length = length,
                              .samples = (uint64_t)samples,
                              .tokens = (uint64_t)tokens,
                              .sum = strtoull(sum, NULL, 16)};
    int fp16, fp8, half;
    json_int_t scaled, overflow, hysteresis, skipped;
    if (!json_unpack(root, "{s:{s:b}}", "run", "fp16", &fp16)) t->fp16 = fp16;
    if (!json_unpack(root, "{s:{s:b, s:b}}", "run", "fp8", &fp8, "half_gradients", &half))
        t->fp8 = fp8, t->half_gradients = half;
    if (!json_unpack(root, "{s:{s:F, s:I, s:I, s:I, s:I}}", "loss_scale", "value", &p->scale.value, "steps", &scaled,
                     "last_overflow", &overflow, "hysteresis", &hysteresis, "skipped", &skipped) &&
        skipped >= 0 && skipped <= p->step && isfinite(p->scale.value) && p->scale.value >= 0)
        p->scale = (tess_loss_scale){p->scale.value, scaled, overflow, hysteresis, skipped};
    else
        p->scale = (tess_loss_scale){0};
    json_int_t seen, row, back = 0;
    double mean;
    if (!json_unpack(root, "{s:{s:F, s:I, s:I, s?I}}", "spikes", "mean", &mean, "seen", &seen, "row", &row, "back",
                     &back) &&
        seen >= 0)
        p->spikes = (tess_spikes){mean, seen, row, back};
    if (!json_unpack(root, "{s:{s:I, s:I, s:s}}", "frozen", "parameters", &parameters, "trained", &trained, "sum",
                     &sum)) {
        t->parameters = parameters;
        t->trained = trained;
        t->frozen = strtoull(sum, NULL, 16);
    }
    if (!json_unpack(root, "{s:{s:I, s:F}}", "best", "step", &best, "valid_loss", &p->best_loss)) p->best_step = best;
    if (!json_unpack(root, "{s:{s:F, s:I}}", "early_stop", "valid_loss", &p->mark_loss, "worse", &worse)) {
        p->marked = true;
        p->worse = worse;
    }
}

tess_status tess_checkpoint_progress(const char *path, tess_progress *p)
{
    json_error_t e;
    TESS_FREED char *file = tess_format("%s/state.json", path);
    TESS_FREED_JSON json_t *root = json_load_file(file, 0, &e);
    json_int_t step, samples, seed;
    tess_status status = TESS_OK;
    const char *format = json_string_value(json_object_get(root, "format"));
    if (format && strcmp(format, FORMAT) != 0) {
        status = tess_error(TESS_INVALID, file, "has the format \"%.40s\", which this version does not read (\"%s\")",
                            format, FORMAT);
    } else if (!root ||
               json_unpack_ex(root, &e, 0, "{s:I, s:I, s:I}", "step", &step, "samples", &samples, "seed", &seed) ||
               step < 0 || samples < 0) {
        status = tess_error(TESS_INVALID, file, "%s (not a checkpoint, or a damaged one)", e.text);
    } else {
        *p = (tess_progress){.step = step, .samples = samples, .seed = (uint64_t)seed};
        read_more(root, p);
    }
    return status;
}

tess_status tess_checkpoint_same_optimizer(const char *path, const tess_progress *p, const char *optimizer, int moments)
{
    const char *then = p->optimizer[0] ? p->optimizer : "AdamW";
    const int had = p->optimizer[0] ? p->moments : 2;
    if (!strcmp(then, optimizer) && had == moments) return TESS_OK;
    return tess_error(
        TESS_INVALID, path,
        "holds the states of %s, %d of a parameter; the optimizer here is %s, with %d (a run goes on with "
        "the optimizer that it began with)",
        then, had, optimizer, moments);
}

tess_status tess_checkpoint_find(const char *dir, tess_progress *p, bool *found)
{
    int64_t *steps;
    struct stat st;
    *found = false;
    if (stat(dir, &st) == 0 && !S_ISDIR(st.st_mode))
        return tess_error(TESS_INVALID, dir, "is no directory (checkpoints are kept in one)");
    for_marked(dir, REPLACED, settle_step);
    size_t n = list(dir, &steps);
    tess_status status = TESS_OK;
    *found = n > 0;
    if (n > 0) {
        TESS_FREED char *path = path_of(dir, steps[0], "");
        status = tess_checkpoint_progress(path, p);
        if (status == TESS_OK && p->step != steps[0])
            status =
                tess_error(TESS_INVALID, path, "state.json is of step %lld (a damaged checkpoint)", (long long)p->step);
    }
    free(steps);
    return status;
}

/* A reader on a slow machine loses the race many times to a run that writes a checkpoint every step. */
enum { PICKS = 30 };

/* The newest step in dir whose checkpoint is whole, *first the newest of any; -1: there is none. */
static int64_t newest_of_list(const char *dir, int64_t *first)
{
    int64_t *steps, newest = -1;
    size_t n = list(dir, &steps);
    *first = n ? steps[0] : -1;
    for (size_t i = 0; i < n && newest < 0; i++) {
        TESS_FREED char *path = path_of(dir, steps[i], "");
        if (tess_states_whole(path)) newest = steps[i];
    }
    free(steps);
    return newest;
}

/* The same; where those that were listed went meanwhile, others came. */
static int64_t newest_whole(const char *dir)
{
    int64_t before = -1, first, newest = -1;
    for (int attempt = 0; attempt < PICKS && newest < 0; attempt++) {
        newest = newest_of_list(dir, &first);
        if (first < 0 || first == before) break;
        before = first;
    }
    return newest;
}

tess_status tess_checkpoint_pick(const char *dir, char **picked)
{
    int64_t step = -1;
    *picked = NULL;
    if (!dir) return TESS_OK;
    if (tess_rank() == 0) {
        TESS_FREED char *config = tess_format("%s/config.json", dir);
        if (access(config, F_OK) && !tess_states_whole(dir)) step = newest_whole(dir);
    }
    tess_ranks_tell(&step, sizeof step);
    *picked = step < 0 ? tess_strdup(dir) : path_of(dir, step, "");
    return TESS_OK;
}

tess_status tess_checkpoint_open(const char *dir, tess_status (*open)(const char *path, void *what),
                                 void (*close)(void *what), void *what, char **path)
{
    for (int attempt = 0;; attempt++) {
        TESS_TRY(tess_checkpoint_pick(dir, path));
        const tess_status status = open(*path, what);
        int64_t gone = status != TESS_OK && *path && strcmp(*path, dir) && !tess_states_whole(*path);
        tess_ranks_most(&gone, 1);
        if (!gone || attempt == PICKS) return status;
        close(what);
        free(*path);
    }
}

/* The newest step before `step` (INT64_MAX: any) whose checkpoint can be read and holds what was written; -1: none. */
static int64_t newest_undamaged(const char *dir, int64_t step, tess_progress *p)
{
    int64_t *steps, found = -1;
    const size_t n = list(dir, &steps);
    for (size_t i = 0; i < n && found < 0; i++) {
        TESS_FREED char *path = path_of(dir, steps[i], "");
        if (steps[i] < step && tess_checkpoint_progress(path, p) == TESS_OK && p->step == steps[i] &&
            tess_states_verify(path) == TESS_OK)
            found = steps[i];
    }
    free(steps);
    return found;
}

tess_status tess_checkpoint_find_whole(const char *dir, tess_progress *p, bool *found)
{
    int64_t *steps;
    *found = false;
    for_marked(dir, REPLACED, settle_step);
    const size_t n = list(dir, &steps);
    const int64_t whole = newest_undamaged(dir, INT64_MAX, p);
    tess_error_clear();
    for (size_t i = 0; i < n && whole >= 0 && steps[i] > whole; i++) { /* else they would count as newer ones */
        TESS_FREED char *path = path_of(dir, steps[i], ""), *aside = path_of(dir, steps[i], "damaged-");
        if (!rename(path, aside)) tess_note("%s is damaged; it is %s now", path, aside);
    }
    free(steps);
    *found = whole >= 0;
    if (*found || !n) return TESS_OK;
    return tess_error(TESS_INVALID, dir, "none of its %zu checkpoint%s can be read", n, n == 1 ? "" : "s");
}

void tess_checkpoint_name_whole(const char *dir, int64_t step)
{
    TESS_FREED char *path = path_of(dir, step, "");
    char error[1200], text[1400];
    tess_progress p;
    tess_safetensors *states = NULL;
    const int64_t agreed = tess_error_agreed(); /* the ranks know of this failure, whatever its text is */
    snprintf(error, sizeof error, "%s", tess_error_text());
    /* Of another model it may be whole, and need not be read for that. */
    const bool sums = strstr(error, "damaged"), files = tess_states_open(path, &states) != TESS_OK;
    tess_safetensors_close(states);
    const int64_t other = sums || files ? newest_undamaged(dir, step, &p) : -1;
    if (other >= 0)
        snprintf(text, sizeof text, "%s%s; %s/step-%08lld is whole: --resume=whole goes on from it", error,
                 sums ? "" : " (a damaged checkpoint)", dir, (long long)other);
    tess_error_restore(other >= 0 ? text : error);
    tess_error_agree(agreed);
}

tess_status tess_checkpoint_load(const char *dir, int64_t step, const tess_model *m, tess_graph *g)
{
    TESS_FREED char *path = path_of(dir, step, "");
    const tess_status status = tess_states_load(path, g, m);
    if (status == TESS_INVALID && tess_rank() == 0) tess_checkpoint_name_whole(dir, step);
    return status == TESS_OK ? tess_graph_round(g) : status;
}
