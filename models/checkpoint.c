/* Checkpoints: written, found, read back, and the old ones removed.
 *
 * States are written and read by all ranks, each what it holds; directories and small files are rank 0's alone, and
 * what it finds there it tells the others, who might see something else a moment later. */
#include "checkpoint_impl.h"
#include "dirs_impl.h"
#include "pieces_impl.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const suffix[TESS_PARTS] = {"", ".exp_avg", ".exp_avg_sq"};

static char *path_of(const char *dir, int64_t step, const char *mark)
{
    return tess_format("%s/%sstep-%08lld", dir, mark, (long long)step);
}

static tess_status system_error(const char *path, const char *what)
{
    return tess_error(TESS_FAILED, path, "%s: %s", what, strerror(errno));
}

/* A directory of files; one that is not there is fine. */
static void remove_flat(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (e->d_name[0] == '.' && (!e->d_name[1] || (e->d_name[1] == '.' && !e->d_name[2]))) continue;
        char *file = tess_format("%s/%s", path, e->d_name);
        unlink(file);
        free(file);
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

static tess_status write_states(const char *dir, tess_graph *g)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "states", TESS_SAFETENSORS_SHARD);
    const int params = tess_graph_params(g);
    for (int k = 0; k < params; k++)
        for (int part = 0; part < TESS_PARTS; part++) {
            int64_t shape[3];
            int rank = tess_tensor_shape(tess_graph_param(g, k), shape);
            char *name = tess_format("%s%s", tess_tensor_name(tess_graph_param(g, k)), suffix[part]);
            tess_safetensors_declare(w, name, TESS_F32, rank, shape);
            free(name);
        }
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = tess_pieces_settle(g);
    for (int k = 0; k < params; k++)
        for (int part = 0; part < TESS_PARTS && status == TESS_OK; part++)
            status =
                tess_pieces_write(w, (size_t)(k * TESS_PARTS + part), tess_graph_param(g, k), (tess_part)part, false);
    return tess_safetensors_writer_end(w, status);
}

static tess_status write_state(const char *dir, const tess_progress *p)
{
    json_t *root = json_pack("{s:I, s:I, s:I, s:s}", "step", (json_int_t)p->step, "samples", (json_int_t)p->samples,
                             "seed", (json_int_t)p->seed, "format", "tessera checkpoint 1");
    char *path = tess_format("%s/state.json", dir), *text = json_dumps(root, JSON_INDENT(2));
    json_decref(root);
    tess_status status = TESS_OK;
    FILE *f = fopen(path, "w");
    if (!f || fprintf(f, "%s\n", text) < 0 || fflush(f) || fsync(fileno(f)))
        status = system_error(path, "cannot be written");
    if (f) fclose(f);
    free(text);
    free(path);
    return status;
}

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

/* The steps that dir has checkpoints of, newest first; *steps is the caller's to free. Half-written ones are removed.
 */
static size_t list(const char *dir, int64_t **steps)
{
    size_t n = 0, room = 16;
    *steps = tess_alloc(room * sizeof **steps);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strncmp(e->d_name, ".new-step-", 10)) {
            char *left = tess_format("%s/%s", dir, e->d_name);
            remove_flat(left);
            free(left);
        }
        int64_t step = step_of(e->d_name);
        if (step < 0) continue;
        if (n == room) *steps = tess_realloc(*steps, (room *= 2) * sizeof **steps);
        (*steps)[n++] = step;
    }
    if (d) closedir(d);
    qsort(*steps, n, sizeof **steps, newest_first);
    return n;
}

/* An old one loses its name first, so that what has one is whole, also when the run ends in the middle of this. */
static void remove_old(const char *dir, int64_t keep)
{
    int64_t *steps;
    size_t n = list(dir, &steps);
    for (size_t i = (size_t)keep; i < n; i++) {
        char *path = path_of(dir, steps[i], ""), *nameless = path_of(dir, steps[i], ".new-");
        remove_flat(rename(path, nameless) == 0 ? nameless : path);
        free(path);
        free(nameless);
    }
    free(steps);
}

void tess_checkpoint_tidy(const char *dir, int64_t keep)
{
    if (tess_rank() == 0) remove_old(dir, keep);
}

tess_status tess_checkpoint_prepare(const char *dir)
{
    char *inside = tess_format("%s/.", dir); /* a file in its place has none */
    tess_status status = TESS_OK;
    for (int made = 0; made < 2 && status == TESS_OK; made++) { /* rank 0 makes it, then the others look */
        bool mine = (tess_rank() == 0) == !made;
        if (mine && ((!made && !tess_dirs_make(dir, NULL)) || access(inside, W_OK)))
            status = tess_error(TESS_INVALID, dir, "cannot be written: %s (see checkpoint.dir%s)", strerror(errno),
                                made ? "; all ranks must see the same one" : "");
        status = tess_ranks_agree(status);
    }
    free(inside);
    return status;
}

static tess_status make_fresh(const char *fresh)
{
    remove_flat(fresh);
    return mkdir(fresh, 0777) ? system_error(fresh, "cannot be made") : TESS_OK;
}

/* The states are there: with the rest the checkpoint gets its name. */
static tess_status publish(const char *fresh, const char *path, const char *dir, const tess_progress *p)
{
    TESS_TRY(write_state(fresh, p));
    TESS_TRY(sync_directory(fresh));
    remove_flat(path);
    if (rename(fresh, path)) return system_error(path, "cannot be named");
    return sync_directory(dir);
}

tess_status tess_checkpoint_save(const char *dir, int64_t keep, tess_graph *g, const tess_progress *p)
{
    char *fresh = path_of(dir, p->step, ".new-"), *path = path_of(dir, p->step, "");
    const bool leads = tess_rank() == 0;
    tess_status status = TESS_OK;
    TESS_TRY_DONE(tess_ranks_agree(leads ? make_fresh(fresh) : TESS_OK));
    TESS_TRY_DONE(write_states(fresh, g));
    TESS_TRY_DONE(tess_ranks_agree(leads ? publish(fresh, path, dir, p) : TESS_OK));
    if (leads) remove_old(dir, keep);
done:
    if (status != TESS_OK && leads) remove_flat(fresh);
    free(fresh);
    free(path);
    return status;
}

/* ---- reading ---- */

/* Of the checkpoint of that step. */
static tess_status read_state(const char *path, int64_t of, tess_progress *p)
{
    json_error_t e;
    char *file = tess_format("%s/state.json", path);
    json_t *root = json_load_file(file, 0, &e);
    json_int_t step, samples, seed;
    tess_status status = TESS_OK;
    if (!root || json_unpack_ex(root, &e, 0, "{s:I, s:I, s:I}", "step", &step, "samples", &samples, "seed", &seed))
        status = tess_error(TESS_INVALID, file, "%s (not a checkpoint, or a damaged one)", e.text);
    else if (step != of || samples < 0)
        status = tess_error(TESS_INVALID, file, "step %lld, samples %lld, expected step %lld (a damaged checkpoint)",
                            (long long)step, (long long)samples, (long long)of);
    else
        *p = (tess_progress){.step = step, .samples = samples, .seed = (uint64_t)seed};
    json_decref(root);
    free(file);
    return status;
}

static tess_status find_newest(const char *dir, tess_progress *p, bool *found)
{
    int64_t *steps;
    size_t n = list(dir, &steps);
    tess_status status = TESS_OK;
    *found = n > 0;
    if (n > 0) {
        char *path = path_of(dir, steps[0], "");
        status = read_state(path, steps[0], p);
        free(path);
    }
    free(steps);
    return status;
}

tess_status tess_checkpoint_find(const char *dir, tess_progress *p, bool *found)
{
    struct {
        tess_progress at;
        bool found;
    } told = {0};
    TESS_TRY(tess_ranks_agree(tess_rank() == 0 ? find_newest(dir, &told.at, &told.found) : TESS_OK));
    tess_ranks_tell(&told, sizeof told);
    *found = told.found;
    if (told.found) *p = told.at;
    return TESS_OK;
}

/* What the model lacks would be lost: each tensor of the checkpoint has a place in it. */
static tess_status check_count(const tess_safetensors *set, const char *path, const tess_graph *g)
{
    size_t want = (size_t)tess_graph_params(g) * TESS_PARTS, met = tess_safetensors_count(set);
    if (met <= want) return TESS_OK; /* what is missing is named when it is read */
    return tess_error(TESS_INVALID, path, "%zu tensors, this model's are %zu (the checkpoint is of another model)", met,
                      want);
}

static tess_status read_part(const tess_safetensors *set, const char *path, tess_tensor *p, tess_part part)
{
    int64_t shape[3];
    int rank = tess_tensor_shape(p, shape);
    char name[512];
    snprintf(name, sizeof name, "%s%s", tess_tensor_name(p), suffix[part]);
    const tess_safetensor *t = tess_safetensors_find(set, name);
    if (!t || t->rank != rank || t->dims[0] != shape[0] || (rank == 2 && t->dims[1] != shape[1]))
        return tess_error(TESS_INVALID, path, "%s is %s (the checkpoint is of another model)", name,
                          t ? "of another shape" : "missing");
    return tess_pieces_read(t, p, part, false);
}

tess_status tess_checkpoint_load(const char *dir, int64_t step, tess_graph *g)
{
    char *path = path_of(dir, step, ""), *one = tess_format("%s/states.safetensors", path);
    char *index = tess_format("%s/states.safetensors.index.json", path);
    tess_safetensors *set;
    tess_status status = tess_safetensors_open(access(one, F_OK) ? index : one, &set);
    if (status == TESS_OK) {
        status = check_count(set, path, g);
        for (int k = 0; k < tess_graph_params(g); k++)
            for (int part = 0; part < TESS_PARTS && status == TESS_OK; part++)
                status = read_part(set, path, tess_graph_param(g, k), (tess_part)part);
        tess_safetensors_close(set);
    }
    free(path);
    free(one);
    free(index);
    status = tess_ranks_agree(status);
    return status == TESS_OK ? tess_graph_round(g) : status;
}
