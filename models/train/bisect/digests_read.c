/* Reading what graph/step/step_digest.c writes, a step of all ranks at a time. */
#include "models/text/base/text.h"
#include "models/train/bisect/bisect_impl.h"
#include "models/train/report/digests.h"
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- files ---- */

/* How many ranks left digests in an output; 0: none did. */
static int ranks_there(const char *output)
{
    TESS_FREED char *path = tess_format("%s/digests", output);
    DIR *dir = opendir(path);
    int ranks = 0;
    for (struct dirent *e; dir && (e = readdir(dir));) (void)sscanf(e->d_name, "rank-0-of-%d.tsv", &ranks);
    if (dir) closedir(dir);
    return ranks > 0 ? ranks : 0;
}

/* The next line, without its end, of a rank's file; false: there is none, or none that is whole. */
static bool next_line(tess_digest_files *d, int rank)
{
    const ssize_t n = getline(&d->line, &d->room, d->f[rank]);
    if (n < 2 || d->line[n - 1] != '\n') return false;
    d->line[n - 1] = 0;
    return true;
}

static tess_status wrong(const tess_digest_files *d, int rank)
{
    return tess_error(TESS_INVALID, d->path[rank], "is no file of digests, or breaks off: \"%.60s\"",
                      d->line ? d->line : "");
}

tess_status tess_digest_files_open(const char *output, tess_digest_files *d)
{
    *d = (tess_digest_files){.ranks = ranks_there(output)};
    d->f = tess_alloc(((size_t)d->ranks + 1) * sizeof *d->f);
    d->path = tess_alloc(((size_t)d->ranks + 1) * sizeof *d->path);
    for (int r = 0; r < d->ranks; r++) d->path[r] = tess_digests_file_path(output, r, d->ranks);
    for (int r = 0; r < d->ranks; r++) {
        long long step = 0;
        d->f[r] = fopen(d->path[r], "r");
        if (!d->f[r]) return tess_error(tess_errno_status(errno), d->path[r], "cannot be read: %s", strerror(errno));
        if (next_line(d, r) && sscanf(d->line, "S\t%lld", &step) != 1) return wrong(d, r);
        if (r == 0 || step == d->next)
            d->next = step;
        else
            return tess_error(TESS_INVALID, d->path[r], "begins with step %lld, another rank's with %lld", step,
                              (long long)d->next);
    }
    return TESS_OK;
}

void tess_digest_files_close(tess_digest_files *d)
{
    for (int r = 0; r < d->ranks; r++) {
        if (d->f && d->f[r]) fclose(d->f[r]);
        if (d->path) free(d->path[r]);
    }
    free(d->f);
    free(d->path);
    free(d->line);
    *d = (tess_digest_files){0};
}

/* ---- a step ---- */

struct growing {
    tess_digest_step *s;
    tess_digest_use *use; /* of all tasks */
    size_t uses, use_room, task_room, *first;
};

static const char *kept(struct growing *g, const char *text)
{
    return tess_arena_format(g->s->arena, "%s", text);
}

static bool add_task(struct growing *g, char *line)
{
    unsigned long long number;
    long long micro;
    char codelet[64];
    int at = 0;
    if (sscanf(line, "T\t%llu\t%lld\t%63[^\t]\t%n", &number, &micro, codelet, &at) < 3 || !at) return false;
    tess_digest_step *s = g->s;
    if (s->tasks == g->task_room) {
        g->task_room = 2 * g->task_room + 256;
        s->task = tess_realloc(s->task, g->task_room * sizeof *s->task);
        g->first = tess_realloc(g->first, g->task_room * sizeof *g->first);
    }
    g->first[s->tasks] = g->uses;
    s->task[s->tasks++] =
        (tess_digest_task){.number = number, .micro = micro, .codelet = kept(g, codelet), .op = kept(g, line + at)};
    return true;
}

static bool add_use(struct growing *g, const char *line)
{
    tess_digest_use u = {0};
    char role[32];
    int at = 0;
    if (!g->s->tasks ||
        sscanf(line, "U\t%u\t%*[RW]\t%llu\t%llx\t%llx\t%31[^\t]\t%n", &u.tile, &u.bytes, &u.found, &u.left, role, &at) <
            5 ||
        !at)
        return false;
    if (g->uses == g->use_room) {
        g->use_room = 2 * g->use_room + 1024;
        g->use = tess_realloc(g->use, g->use_room * sizeof *g->use);
    }
    u.role = kept(g, role);
    u.label = kept(g, line + at);
    g->use[g->uses++] = u;
    return true;
}

static uint64_t add_text(uint64_t h, const char *text)
{
    for (; *text; text++) h = (h ^ (unsigned char)*text) * UINT64_C(0x100000001b3);
    return (h ^ 0xff) * UINT64_C(0x100000001b3);
}

/* What a task of the step itself does, its first tile says. */
static uint64_t key_of(const tess_digest_task *t)
{
    uint64_t h = add_text(UINT64_C(0xcbf29ce484222325) ^ (uint64_t)t->micro, t->codelet);
    return add_text(h, t->micro < 0 && t->uses ? t->use[0].label : t->op);
}

static int by_key(const void *a, const void *b, void *of)
{
    const uint32_t i = *(const uint32_t *)a, k = *(const uint32_t *)b;
    const tess_digest_task *task = of;
    if (task[i].key != task[k].key) return task[i].key < task[k].key ? -1 : 1;
    return (i > k) - (i < k);
}

static void finish(struct growing *g)
{
    tess_digest_step *s = g->s;
    tess_digest_use *use = tess_arena_get(s->arena, (g->uses + 1) * sizeof *use);
    if (g->uses) memcpy(use, g->use, g->uses * sizeof *use);
    s->sorted = tess_alloc((s->tasks + 1) * sizeof *s->sorted);
    for (size_t k = 0; k < s->tasks; k++) {
        tess_digest_task *t = &s->task[k];
        t->use = use + g->first[k];
        t->uses = (k + 1 < s->tasks ? g->first[k + 1] : g->uses) - g->first[k];
        t->key = key_of(t);
        s->sorted[k] = (uint32_t)k;
    }
    if (s->tasks) qsort_r(s->sorted, s->tasks, sizeof *s->sorted, by_key, s->task);
    for (size_t k = 1; k < s->tasks; k++) {
        const tess_digest_task *before = &s->task[s->sorted[k - 1]];
        tess_digest_task *t = &s->task[s->sorted[k]];
        if (t->key == before->key) t->nth = before->nth + 1;
    }
    free(g->use);
    free(g->first);
}

/* Up to the head of the next step, whose number is in *next. */
static tess_status read_rank(tess_digest_files *d, int rank, tess_digest_step *s, int64_t *next)
{
    struct growing g = {.s = s};
    bool good = true;
    long long step;
    *s = (tess_digest_step){.step = d->next, .arena = tess_arena_new()};
    *next = 0;
    while (good && !*next && next_line(d, rank)) {
        if (*d->line == 'T')
            good = add_task(&g, d->line);
        else if (*d->line == 'U')
            good = add_use(&g, d->line);
        else if ((good = sscanf(d->line, "S\t%lld", &step) == 1))
            *next = step;
    }
    finish(&g);
    return good ? TESS_OK : wrong(d, rank);
}

tess_status tess_digest_files_read(tess_digest_files *d, tess_digest_step *step)
{
    int64_t next = 0, first = 0;
    tess_status status = TESS_OK;
    for (int r = 0; r < d->ranks; r++) step[r] = (tess_digest_step){0};
    for (int r = 0; r < d->ranks && status == TESS_OK; r++) {
        status = read_rank(d, r, &step[r], &next);
        if (r == 0) first = next;
        if (next < first) first = next; /* one that was killed broke off */
    }
    d->next = first;
    return status;
}

void tess_digest_step_free(tess_digest_step *s)
{
    if (s->arena) tess_arena_free(s->arena);
    free(s->task);
    free(s->sorted);
    *s = (tess_digest_step){0};
}

const tess_digest_task *tess_digest_find(const tess_digest_step *s, const tess_digest_task *t)
{
    size_t from = 0, to = s->tasks;
    while (from < to) {
        const size_t k = (from + to) / 2;
        const tess_digest_task *at = &s->task[s->sorted[k]];
        if (at->key < t->key || (at->key == t->key && at->nth < t->nth))
            from = k + 1;
        else
            to = k;
    }
    if (from == s->tasks) return NULL;
    const tess_digest_task *found = &s->task[s->sorted[from]];
    return found->key == t->key && found->nth == t->nth ? found : NULL;
}
