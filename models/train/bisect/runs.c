/* What two runs left, and between which steps they part by that: losses and gradient norms, which are exact sums and
 * written with all digits, and the bytes of checkpoints. */
#include "models/text/base/text.h"
#include "models/train/bisect/bisect_impl.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/report/page/metrics.h"
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t whole_of(const json_t *group, const char *key, int64_t otherwise)
{
    const json_t *n = json_object_get(group, key);
    return json_is_integer(n) && json_integer_value(n) > 0 ? json_integer_value(n) : otherwise;
}

/* As many as share a batch out. */
static int ranks_of(const json_t *config)
{
    const json_t *parallel = json_object_get(config, "parallel");
    const int64_t batch = whole_of(config, "train_batch_size", 1),
                  micro = whole_of(config, "train_micro_batch_size_per_gpu", 1),
                  steps = whole_of(config, "gradient_accumulation_steps", 1);
    const int64_t data = batch / micro / steps;
    return (int)((data > 0 ? data : 1) * whole_of(parallel, "tensor", 1) * whole_of(parallel, "pipeline", 1));
}

static void keep(tess_side *s, const tess_metrics *m, int64_t *room)
{
    static const tess_metric of[] = {[TESS_SIDE_LOSS] = TESS_METRIC_LOSS, [TESS_SIDE_NORM] = TESS_METRIC_GRAD_NORM};
    if (m->step >= *room) {
        *room = 2 * m->step;
        s->value = tess_realloc(s->value, (size_t)*room * sizeof *s->value);
    }
    for (int64_t k = s->steps + 1; k <= m->step; k++)
        for (int v = 0; v < TESS_SIDE_VALUES; v++) s->value[k][v] = NAN;
    for (int v = 0; v < TESS_SIDE_VALUES; v++)
        if (TESS_METRIC_IN(m, of[v])) s->value[m->step][v] = m->value[of[v]];
    if (m->step > s->steps) s->steps = m->step;
}

tess_status tess_side_metrics(const char *path, tess_side *s)
{
    FILE *f = fopen(path, "r");
    TESS_FREED char *line = NULL;
    size_t size = 0;
    int64_t room = 0;
    free(s->value);
    s->value = NULL;
    s->steps = 0;
    if (!f) return tess_error(tess_errno_status(errno), path, "cannot be read: %s", strerror(errno));
    for (ssize_t n; (n = getline(&line, &size, f)) > 0;) {
        tess_metrics m;
        if (line[n - 1] == '\n' && tess_metrics_scan(line, (size_t)n - 1, &m)) keep(s, &m, &room);
    }
    fclose(f);
    return s->steps ? TESS_OK : tess_error(TESS_INVALID, path, "has no step (the run made none)");
}

tess_status tess_side_open(const char *dir, tess_side *s)
{
    *s = (tess_side){.dir = dir};
    json_error_t error;
    TESS_FREED char *path = tess_format("%s/config.json", dir), *metrics = tess_format("%s/metrics.jsonl", dir);
    tess_status status = TESS_OK;
    if (access(path, F_OK) || access(metrics, F_OK))
        status = tess_error(TESS_INVALID, dir, "is no output of a run (no %s; train leaves one in \"output\")",
                            access(path, F_OK) ? "config.json" : "metrics.jsonl");
    else if (!(s->config = json_load_file(path, 0, &error)) || !json_is_object(s->config))
        status = tess_error(TESS_INVALID, path, "line %d: %s", error.line, error.text);
    else
        status = tess_side_metrics(metrics, s);
    if (status == TESS_OK) s->ranks = ranks_of(s->config);
    return status;
}

void tess_side_close(tess_side *s)
{
    json_decref(s->config);
    free(s->value);
    *s = (tess_side){0};
}

bool tess_sides_alike(const tess_side *a, const tess_side *b, int64_t step)
{
    for (int v = 0; v < TESS_SIDE_VALUES; v++) {
        const double x = a->value[step][v], y = b->value[step][v];
        if (!isnan(x) && !isnan(y) && x != y) return false;
    }
    return true;
}

/* ---- files of weights ---- */

enum { BLOCK = 1 << 20 };

static bool same_bytes(const char *a, const char *b)
{
    FILE *f = fopen(a, "rb"), *g = fopen(b, "rb");
    TESS_FREED char *x = tess_alloc(BLOCK), *y = tess_alloc(BLOCK);
    bool same = f && g;
    for (size_t n = BLOCK; same && n == BLOCK;) {
        n = fread(x, 1, BLOCK, f);
        same = fread(y, 1, BLOCK, g) == n && !memcmp(x, y, n);
    }
    if (f) fclose(f);
    if (g) fclose(g);
    return same;
}

/* 1: they have the same weights; 0: others; -1: one has none. */
static int same_weights(const char *a, const char *b)
{
    int same = -1;
    DIR *d = opendir(a);
    for (struct dirent *e; d && same && (e = readdir(d));) {
        if (!tess_ends(e->d_name, ".safetensors")) continue;
        TESS_FREED char *x = tess_format("%s/%s", a, e->d_name), *y = tess_format("%s/%s", b, e->d_name);
        if (access(y, F_OK) == 0) same = same_bytes(x, y);
    }
    if (d) closedir(d);
    return same;
}

static int64_t step_of(const char *name)
{
    long long step;
    char end;
    return sscanf(name, "step-%lld%c", &step, &end) == 1 ? step : 0;
}

/* The newest step up to `most` that this directory has a checkpoint of; 0: none. */
static int64_t newest(const char *dir, int64_t most)
{
    int64_t step = 0;
    DIR *d = dir ? opendir(dir) : NULL;
    for (struct dirent *e; d && (e = readdir(d));) {
        const int64_t k = step_of(e->d_name);
        if (k > step && k <= most) step = k;
    }
    if (d) closedir(d);
    return step;
}

static int same_checkpoint(const char *a, const char *b, int64_t step)
{
    TESS_FREED char *x = tess_checkpoint_path(a, step), *y = tess_checkpoint_path(b, step);
    return same_weights(x, y);
}

/* Of steps that both have. One that differs tells that they part before it. */
static void look_at_checkpoints(const tess_side *a, const tess_side *b, tess_stretch *s)
{
    const char *x = tess_side_text(a, "checkpoint.dir"), *y = tess_side_text(b, "checkpoint.dir");
    if (!x || !y || !strcmp(x, y)) return;
    for (int64_t k = newest(x, s->to ? s->to - 1 : s->last); k > 0; k = newest(x, k - 1)) {
        const int same = same_checkpoint(x, y, k);
        if (same == 0) s->to = k;
        if (same > 0) {
            s->from = k;
            s->weights = true;
            return;
        }
    }
}

static void look_at_models(const tess_side *a, const tess_side *b, tess_stretch *s)
{
    const char *x = tess_side_text(a, "save_dtype"), *y = tess_side_text(b, "save_dtype");
    if (s->to || a->steps != b->steps || (x && y && strcmp(x, y))) return;
    TESS_FREED char *of_a = tess_format("%s/model", a->dir), *of_b = tess_format("%s/model", b->dir);
    const int same = same_weights(of_a, of_b);
    if (same == 0) s->to = s->last;
    if (same > 0) s->weights = true;
}

void tess_sides_part(const tess_side *a, const tess_side *b, tess_stretch *out)
{
    *out = (tess_stretch){.last = a->steps < b->steps ? a->steps : b->steps};
    for (int64_t k = 1; k <= out->last && !out->to; k++)
        if (!tess_sides_alike(a, b, k)) out->to = k;
    look_at_checkpoints(a, b, out);
    look_at_models(a, b, out);
}
