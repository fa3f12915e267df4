/* A trace from its file, which tess_trace_open's writer made: one event a line. */
#include "models/text/base/text.h"
#include "models/train/explain/explain_impl.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const categories[TESS_EVENT_KINDS] = {"step",  "wait",   "task",    "data",   "read",
                                                         "write", "to_gpu", "off_gpu", "message"};

/* One end of an arrow from a transfer to a task. */
struct end {
    char id[32];
    bool task;
    int rank;
    uint32_t track;
    double at;
};
struct reading {
    tess_traced *t;
    const char *path;
    size_t line, room;
    struct end *end;
    size_t ends, end_room;
    bool about;
    uint32_t gpu_track; /* of the first GPU's worker; 0: there is none */
};

static tess_status broken(const struct reading *r, const char *what)
{
    char where[600];
    snprintf(where, sizeof where, "%.500s, line %zu", r->path, r->line);
    return tess_error(TESS_INVALID, where, "%s (expected OUTPUT/trace.json of a run with trace.steps)", what);
}

static bool number(const json_t *o, const char *name, double *x)
{
    const json_t *v = json_object_get(o, name);
    if (!json_is_number(v) || !isfinite(json_number_value(v))) return false;
    *x = json_number_value(v);
    return true;
}

static double number_or(const json_t *o, const char *name, double otherwise)
{
    double x;
    return number(o, name, &x) ? x : otherwise;
}

/* The place of a name among those there are; -1: there are too many. */
static int name_of(tess_traced *t, const char *text)
{
    char *name = tess_strdup(text);
    for (char *c = name; *c; c++) /* it goes to a terminal */
        if (*c < 32 || *c > 126) *c = '?';
    int i = 0;
    while (i < t->names && strcmp(t->name[i], name)) i++;
    if (i < t->names || i == TESS_TRACE_NAMES) {
        free(name);
        return i < t->names ? i : -1;
    }
    t->name[t->names++] = name;
    return i;
}

static tess_status read_about(struct reading *r, const json_t *args)
{
    tess_about *a = &r->t->about;
    const double ranks = number_or(args, "ranks", 0), cpus = number_or(args, "cpu_workers", 0),
                 gpus = number_or(args, "gpu_workers", 0);
    if (!(ranks >= 1 && ranks <= 65536) || !(cpus >= 1 && cpus <= 512) || !(gpus >= 0 && gpus <= 64))
        return broken(r, "the run's ranks and workers are no numbers");
    if (r->about) return TESS_OK; /* rank 0's comes first, and counts */
    r->about = true;
    *a = (tess_about){.ranks = (int)ranks,
                      .workers = (int)(gpus > 0 ? gpus : cpus),
                      .gpu = gpus > 0,
                      .disk = json_is_true(json_object_get(args, "disk")),
                      .cpu_cap = fmax(0, fmin(1e18, number_or(args, "cpu_cap", 0))),
                      .matrix_rate = number_or(args, "matrix_rate", 0),
                      .read_rate = number_or(args, "read_rate", 0),
                      .write_rate = number_or(args, "write_rate", 0),
                      .both = number_or(args, "both", 0),
                      .flops_rate = number_or(args, "flops_rate", 0),
                      .copy_rate = number_or(args, "copy_rate", 0),
                      .paper = number_or(args, "paper_seconds", 0),
                      .bound = number_or(args, "bound_bytes", 0)};
    return TESS_OK;
}

static tess_status read_slice(struct reading *r, const json_t *o, tess_event *s)
{
    const json_t *args = json_object_get(o, "args");
    const char *category = json_string_value(json_object_get(o, "cat")),
               *name = json_string_value(json_object_get(o, "name"));
    double ts, dur;
    int kind = 0;
    while (category && kind < TESS_EVENT_KINDS && strcmp(category, categories[kind])) kind++;
    if (!category || !name || kind == TESS_EVENT_KINDS) return broken(r, "an event of no kind that is known");
    if (!number(o, "ts", &ts) || !number(o, "dur", &dur) || ts < 0 || dur < 0)
        return broken(r, "an event without a beginning and a length of 0 or more");
    s->kind = (tess_event_kind)kind;
    s->begin = 1e-6 * ts;
    s->end = 1e-6 * (ts + dur);
    s->name = name_of(r->t, s->kind == TESS_EVENT_STEP ? "step" : name);
    if (s->name < 0) return broken(r, "more names than there can be");
    s->ready = 1e-6 * number_or(args, s->kind == TESS_EVENT_TASK ? "ready" : "asked", -1e6);
    s->submitted = 1e-6 * number_or(args, "submitted", -1e6);
    s->number = (uint64_t)fmax(0, fmin(1e15, number_or(args, s->kind == TESS_EVENT_STEP ? "step" : "order", 0)));
    s->bytes = number_or(args, s->kind == TESS_EVENT_MESSAGE ? "sent" : "bytes", 0);
    s->received = number_or(args, "received", 0);
    s->helps = json_is_true(json_object_get(args, "helps"));
    s->flops = number_or(args, "flops", 0);
    s->peer = (int)fmax(-1, fmin(1e6, number_or(args, "peer", -1)));
    s->tag = (int)fmax(-1, fmin(2e9, number_or(args, "tag", -1)));
    for (int i = 0; i < TESS_EVENT_ARRIVALS; i++) s->arrival[i] = -1;
    return TESS_OK;
}

static tess_status read_event(struct reading *r, const json_t *o)
{
    const char *phase = json_string_value(json_object_get(o, "ph"));
    double pid, tid, ts;
    if (!phase || !number(o, "pid", &pid) || !number(o, "tid", &tid) || pid < 0 || pid > 1e6 || tid < 0 || tid > 1e6)
        return broken(r, "an event without ph, pid and tid");
    const char *category = json_string_value(json_object_get(o, "cat"));
    if (*phase == 'i' && category && !strcmp(category, "about")) return read_about(r, json_object_get(o, "args"));
    tess_traced *t = r->t;
    const char *name = json_string_value(json_object_get(json_object_get(o, "args"), "name"));
    if (*phase == 'M' && name && !strncmp(name, "GPU worker", 10) && (!r->gpu_track || tid < r->gpu_track))
        r->gpu_track = (uint32_t)tid;
    if (*phase == 'X') {
        if (t->events == r->room)
            t->event = tess_realloc(t->event, (r->room = r->room ? 2 * r->room : 4096) * sizeof *t->event);
        tess_event *s = &t->event[t->events];
        *s = (tess_event){.rank = (int)pid, .track = (uint32_t)tid};
        TESS_TRY(read_slice(r, o, s));
        t->events++;
    }
    if ((*phase == 's' || *phase == 'f') && category && !strcmp(category, "arrival")) {
        const char *id = json_string_value(json_object_get(o, "id"));
        if (!id || !number(o, "ts", &ts)) return broken(r, "an arrow without id and ts");
        if (r->ends == r->end_room)
            r->end = tess_realloc(r->end, (r->end_room = r->end_room ? 2 * r->end_room : 1024) * sizeof *r->end);
        struct end *e = &r->end[r->ends++];
        *e = (struct end){.task = *phase == 'f', .rank = (int)pid, .track = (uint32_t)tid, .at = 1e-6 * ts};
        snprintf(e->id, sizeof e->id, "%s", id);
    }
    return TESS_OK;
}

/* ---- the order of events, and arrows ---- */

static int by_kind_and_end(const void *a, const void *b)
{
    const tess_event *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->kind != y->kind) return (int)x->kind - (int)y->kind;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static void arrange(tess_traced *t)
{
    for (size_t i = 0; i < t->events; i++)
        if (t->event[i].rank >= t->ranks) t->ranks = t->event[i].rank + 1;
    if (t->events) qsort(t->event, t->events, sizeof *t->event, by_kind_and_end);
    const size_t n = (size_t)t->ranks * TESS_EVENT_KINDS;
    t->first = tess_alloc((n + 1) * sizeof *t->first);
    size_t at = 0;
    for (size_t k = 0; k <= n; k++) {
        t->first[k] = at;
        while (k < n && at < t->events && (size_t)t->event[at].rank * TESS_EVENT_KINDS + t->event[at].kind == k) at++;
    }
}

static int by_id(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    const int c = strcmp(x->id, y->id);
    return c ? c : (int)x->task - (int)y->task;
}

struct place {
    int rank;
    uint32_t track;
    double begin;
    int event;
};

static int by_place(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    if (x->rank != y->rank) return x->rank - y->rank;
    if (x->track != y->track) return x->track < y->track ? -1 : 1;
    return fabs(x->begin - y->begin) < 1e-10 ? 0 : x->begin < y->begin ? -1 : 1;
}

static int find(const struct place *all, size_t n, const struct end *e)
{
    const struct place key = {.rank = e->rank, .track = e->track, .begin = e->at};
    const struct place *p = bsearch(&key, all, n, sizeof *all, by_place);
    return p ? p->event : -1;
}

static void connect(struct reading *r)
{
    tess_traced *t = r->t;
    size_t n = 0;
    TESS_FREED struct place *all = tess_alloc((t->events + 1) * sizeof *all);
    for (size_t i = 0; i < t->events; i++) { /* waits for data share a track with tasks */
        const tess_event *s = &t->event[i];
        if (s->kind != TESS_EVENT_DATA) all[n++] = (struct place){s->rank, s->track, s->begin, (int)i};
    }
    qsort(all, n, sizeof *all, by_place);
    if (r->ends) qsort(r->end, r->ends, sizeof *r->end, by_id);
    for (size_t k = 0; k + 1 < r->ends; k++) {
        if (r->end[k].task || !r->end[k + 1].task || strcmp(r->end[k].id, r->end[k + 1].id)) continue;
        const int from = find(all, n, &r->end[k]), to = find(all, n, &r->end[k + 1]);
        for (int i = 0; from >= 0 && to >= 0 && i < TESS_EVENT_ARRIVALS; i++) {
            if (t->event[to].arrival[i] >= 0) continue;
            t->event[to].arrival[i] = from;
            break;
        }
    }
}

/* ---- the file ---- */

static tess_status read_lines(struct reading *r, FILE *f)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    bool opened = false, closed = false;
    tess_status status = TESS_OK;
    while (status == TESS_OK && (n = getline(&line, &room, f)) > 0) {
        r->line++;
        while (n > 0 && strchr("\n\r, \t", line[n - 1])) line[--n] = 0;
        if (n == 0) continue;
        if (!opened) {
            if (strcmp(line, "[")) status = broken(r, "this is no trace");
            opened = true;
            continue;
        }
        if (closed) status = broken(r, "something stands behind the end of the trace");
        if (!strcmp(line, "]")) {
            closed = true;
            continue;
        }
        TESS_FREED_JSON json_t *o = status == TESS_OK ? json_loads(line, JSON_REJECT_DUPLICATES, NULL) : NULL;
        if (status == TESS_OK && !json_is_object(o))
            status = feof(f) || getc(f) == EOF ? broken(r, "the trace is cut off") : broken(r, "this is no event");
        if (status == TESS_OK) status = read_event(r, o);
    }
    const int error = ferror(f) ? errno : 0;
    free(line);
    if (status == TESS_OK && error)
        return tess_error(TESS_INVALID, r->path, "cannot be read: %s (expected the file that a run leaves)",
                          strerror(error));
    if (status == TESS_OK && !opened) status = broken(r, "the file is empty");
    if (status == TESS_OK && !closed) status = broken(r, "the trace is cut off");
    return status;
}

tess_status tess_traced_read(const char *path, tess_traced *t)
{
    struct reading r = {.t = t, .path = path};
    *t = (tess_traced){0};
    FILE *f = fopen(path, "r");
    if (!f)
        return tess_error(TESS_INVALID, path, "cannot be read: %s (trace.steps=[3,5] or train --trace 3:5 makes one)",
                          strerror(errno));
    tess_status status = read_lines(&r, f);
    fclose(f);
    if (status == TESS_OK && !r.about) status = broken(&r, "this is no trace of a run");
    for (size_t i = 0; status == TESS_OK && i < t->events; i++)
        if (t->event[i].rank >= t->about.ranks)
            status = broken(&r, "there is an event of a rank that the run did not have");
    if (status == TESS_OK) {
        t->about.first = t->about.gpu && r.gpu_track ? r.gpu_track : TESS_FIRST_WORKER;
        arrange(t);
        connect(&r);
    }
    size_t steps = 0;
    if (status == TESS_OK && t->ranks > 0) tess_traced_of(t, 0, TESS_EVENT_STEP, &steps);
    if (status == TESS_OK && !steps)
        status = tess_error(TESS_INVALID, path, "holds no whole step (did the run end before trace.steps?)");
    free(r.end);
    return status;
}

void tess_traced_free(tess_traced *t)
{
    for (int i = 0; i < t->names; i++) free(t->name[i]);
    free(t->event);
    free(t->first);
    *t = (tess_traced){0};
}

const tess_event *tess_traced_of(const tess_traced *t, int rank, tess_event_kind kind, size_t *n)
{
    const size_t k = (size_t)rank * TESS_EVENT_KINDS + kind;
    *n = t->first[k + 1] - t->first[k];
    return t->event + t->first[k];
}
