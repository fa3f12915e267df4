/* Back along what each thing waited for. A task begins when its worker is free and it is ready; it is ready when it was
 * submitted, when what it reads has arrived, and when the tasks that it depends on have ended, whichever is last; it is
 * submitted when the main thread comes to it, which may stand still until room is there, and so on to the beginning.
 * The trace has a transfer's arrow to the task that used it first. Which task another waited for it does not have: it
 * is the one that ended last before the other was ready, since it is its end that makes it ready, on the same thread,
 * within microseconds.
 *
 * The same walk explains a worker's pause: from the task that ended it back to the moment at which it began. */
#include "models/train/explain/explain_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const double EPS = 50e-6; /* between an end and what it makes ready, where clocks differ */

struct walk {
    const tess_traced *t;
    int rank;
    double limit; /* where it ends, */
    double at;    /* and where it is */
    int op;       /* of the task that it came from */
    bool works;   /* tasks on it are work, as on the path; else others' */
    tess_shares *s;
};

static void put(struct walk *w, tess_use_of use, double from)
{
    if (from < w->limit) from = w->limit;
    if (from < w->at) w->s->of[use] += w->at - from, w->at = from;
}

/* Waited, for a thing of that name. */
static void put_wait(struct walk *w, tess_use_of use, const tess_event *x, double from)
{
    const double before = w->at;
    put(w, use, from);
    if (w->at == before) return;
    w->s->waited[x->name] += before - w->at;
    w->s->arrivals[x->name]++;
    if (w->op >= 0) w->s->for_op[w->op] += before - w->at;
}

static void put_task(struct walk *w, const tess_event *task)
{
    const double before = w->at;
    put(w, TESS_FOR_TASKS, task->begin);
    if (w->works) w->s->op[task->name] += before - w->at;
    w->op = task->name;
}

/* How many of these, which stand in the order of their ends, ended by then. */
static size_t ended_by(const tess_event *s, size_t n, double by)
{
    size_t low = 0;
    for (size_t high = n; low < high;) {
        const size_t middle = (low + high) / 2;
        if (s[middle].end <= by)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The last of a kind that ended by then; NULL: none did. */
static const tess_event *last_ended(const tess_traced *t, int rank, tess_event_kind kind, double by)
{
    size_t n;
    const tess_event *s = tess_traced_of(t, rank, kind, &n);
    const size_t ended = ended_by(s, n, by);
    return ended ? &s[ended - 1] : NULL;
}

static double end_of(const tess_event *s)
{
    return s ? s->end : -INFINITY;
}

/* Returns the event of the same kind before this one on its track, or NULL if it is the first. */
static const tess_event *before_on_track(const tess_traced *t, const tess_event *s)
{
    const tess_event *first = t->event + t->first[(size_t)s->rank * TESS_EVENT_KINDS + s->kind];
    for (const tess_event *p = s; p-- > first;)
        if (p->track == s->track) return p;
    return NULL;
}

static tess_use_of waits_as(const tess_event *transfer)
{
    return transfer->kind == TESS_EVENT_READ      ? TESS_FOR_READS
           : transfer->kind == TESS_EVENT_MESSAGE ? TESS_FOR_SPANS
           : transfer->kind == TESS_EVENT_WRITE   ? TESS_FOR_ROOM
                                                  : TESS_FOR_COPIES;
}

static const tess_event *last_arrival(const struct walk *w, const tess_event *task, double by)
{
    const tess_event *last = NULL;
    for (int i = 0; i < TESS_EVENT_ARRIVALS && task->arrival[i] >= 0; i++) {
        const tess_event *a = &w->t->event[task->arrival[i]];
        if (a->end <= by && a->end > end_of(last)) last = a;
    }
    return last;
}

/* A task that the walk goes on with, or NULL: it is at its end. */
static const tess_event *to_task(struct walk *w, const tess_event *task, tess_use_of until)
{
    if (!task || task->begin >= w->at) {
        put(w, TESS_FOR_SUBMISSION, w->limit);
        return NULL;
    }
    put(w, until, task->end);
    put_task(w, task);
    return task;
}

static const tess_event *task_by(const struct walk *w, double by)
{
    return last_ended(w->t, w->rank, TESS_EVENT_TASK, by);
}

/* The task that ended last before where the walk is, as far as clocks can tell: one that is shorter than they differ
 * may have begun behind it. */
static const tess_event *task_before(const struct walk *w)
{
    const tess_event *task = task_by(w, w->at + EPS);
    return task && task->begin >= w->at ? task_by(w, w->at - 1e-9) : task;
}

/* The main thread did something now: it came here from where it last stood still, and went on when what it waited for
 * was so. What it waited for had gone to the drive or off the GPU. Where nothing had, a task's end made the room: the
 * path goes on with that task, and a worker's pause was for room all the same. */
static const tess_event *submission(struct walk *w)
{
    const tess_event *wait = last_ended(w->t, w->rank, TESS_EVENT_WAIT, w->at + 1e-6), *out = NULL;
    if (!wait || wait->end <= w->limit) return to_task(w, NULL, TESS_FOR_SUBMISSION);
    put(w, TESS_FOR_SUBMISSION, wait->end);
    const char *name = w->t->name[wait->name];
    const bool room = !strcmp(name, TESS_WAIT_ROOM), place = !strcmp(name, TESS_WAIT_PLACE);
    const tess_use_of use = room ? TESS_FOR_ROOM : place ? TESS_FOR_COPIES : TESS_FOR_SUBMISSION;
    if (room || place) out = last_ended(w->t, w->rank, place ? TESS_EVENT_OFF_GPU : TESS_EVENT_WRITE, w->at + EPS);
    const tess_event *task = task_before(w);
    if (out && out->end >= end_of(task) && out->end >= wait->begin)
        put_wait(w, waits_as(out), out, out->ready > 0 ? out->ready : out->begin);
    else if ((room || place) && (!w->works || end_of(task) < wait->begin))
        put_wait(w, use, wait, wait->begin);
    else
        return to_task(w, task, use);
    return to_task(w, task_before(w), TESS_FOR_SUBMISSION);
}

static bool meets(const tess_event *s, const tess_event *x)
{
    return s->tag == x->tag && (s->peer < 0 || s->peer == x->rank) && s->begin < x->end;
}

/* The same message as a rank saw it: of its tag, that whose end is nearest. NULL: there is none. */
static const tess_event *seen_by(const tess_traced *t, int rank, const tess_event *x)
{
    size_t n;
    const tess_event *s = tess_traced_of(t, rank, TESS_EVENT_MESSAGE, &n), *before = NULL, *after = NULL;
    const size_t ended = ended_by(s, n, x->end);
    for (size_t i = ended; i-- > 0 && !before;)
        if (meets(&s[i], x)) before = &s[i];
    for (size_t i = ended; i < n && !after; i++) {
        if (before && s[i].end - x->end >= x->end - before->end) break;
        if (meets(&s[i], x)) after = &s[i];
    }
    return after ? after : before;
}

/* The same message as its peer saw it, of several that which was ready for it last; NULL: it is not known. */
static const tess_event *other_end(const tess_traced *t, const tess_event *x)
{
    const tess_event *found = NULL;
    for (int r = 0; r < t->ranks; r++) {
        if (r == x->rank || (x->peer >= 0 && r != x->peer)) continue;
        const tess_event *s = seen_by(t, r, x);
        if (s && (!found || s->begin > found->begin)) found = s;
    }
    return found;
}

static const tess_event *transfer(struct walk *w, const tess_event *x)
{
    if (x->kind != TESS_EVENT_MESSAGE) {
        put_wait(w, waits_as(x), x, x->ready >= 0 ? x->ready : x->begin);
        return w->at > w->limit ? submission(w) : NULL;
    }
    /* It began when its tiles were there, and moved when they were there on both sides: the path goes on where that was
     * later, a worker's pause was for all of it. */
    const tess_event *other = w->works ? other_end(w->t, x) : NULL;
    if (other && other->begin > x->begin) {
        put_wait(w, TESS_FOR_SPANS, x, other->begin);
        w->rank = other->rank;
        x = other;
    } else
        put_wait(w, TESS_FOR_SPANS, x, x->begin);
    const tess_event *task = task_before(w);
    return end_of(task) >= x->ready ? to_task(w, task, TESS_FOR_SUBMISSION) : submission(w);
}

/* What its worker fetched for this task just before it; NULL: nothing. */
static const tess_event *fetch_before(const struct walk *w, const tess_event *task, const tess_event *before)
{
    const tess_event *first = w->t->event + w->t->first[(size_t)w->rank * TESS_EVENT_KINDS + TESS_EVENT_DATA],
                     *data = last_ended(w->t, w->rank, TESS_EVENT_DATA, task->begin + 1e-9);
    for (; data && data >= first && data->end > end_of(before); data--)
        if (data->track == task->track) return data->number == task->number ? data : NULL;
    return NULL;
}

/* What let this task begin; the walk is at its beginning. */
static const tess_event *cause(struct walk *w, const tess_event *task)
{
    const tess_event *before = before_on_track(w->t, task), *data = fetch_before(w, task, before),
                     *arrived = last_arrival(w, task, task->begin + EPS);
    if (data && data->begin < w->at) {
        put(w, TESS_FOR_WORKERS, data->end);
        if (arrived && arrived->end > data->begin)
            put_wait(w, waits_as(arrived), arrived, data->begin);
        else
            put(w, w->t->about.gpu ? TESS_FOR_COPIES : TESS_FOR_WORKERS, data->begin);
    }
    const double ready = task->ready >= 0 && task->ready < w->at ? task->ready : w->at;
    if (before && before->end >= ready - 1e-9) return to_task(w, before, TESS_FOR_WORKERS);
    put(w, TESS_FOR_WORKERS, ready);
    const tess_event *other = task_by(w, ready + EPS);
    if (other == task || (other && other->begin >= w->at)) other = task_by(w, ready - 1e-9);
    arrived = last_arrival(w, task, ready + EPS);
    const double submitted = task->submitted;
    if (arrived && arrived->end >= end_of(other) && arrived->end >= submitted) return transfer(w, arrived);
    if (submitted >= 0 && submitted > end_of(other)) {
        put(w, TESS_FOR_SUBMISSION, submitted);
        return submission(w);
    }
    return to_task(w, other, TESS_FOR_WORKERS);
}

static void walk(struct walk *w, const tess_event *task)
{
    while (task && w->at > w->limit) {
        const double before = w->at;
        task = cause(w, task);
        if (task && !(w->at < before)) break;
    }
    put(w, TESS_FOR_SUBMISSION, w->limit);
}

/* From the end of a step back. */
static void walk_from_end(struct walk *w)
{
    const tess_event *task = task_by(w, w->at + 1e-9), *message = last_ended(w->t, w->rank, TESS_EVENT_MESSAGE, w->at);
    if (end_of(message) > end_of(task) && message->end > w->limit) {
        put(w, TESS_FOR_SUBMISSION, message->end);
        walk(w, transfer(w, message));
        return;
    }
    walk(w, to_task(w, task, TESS_FOR_SUBMISSION));
}

void tess_explain_path(const tess_traced *t, const tess_event *step, tess_shares *path)
{
    struct walk w = {
        .t = t, .rank = step->rank, .limit = step->begin, .at = step->end, .op = -1, .works = true, .s = path};
    path->wall += step->end - step->begin;
    walk_from_end(&w);
}

void tess_explain_worker(const tess_traced *t, const tess_event *step, uint32_t track, tess_shares *s)
{
    size_t n;
    const tess_event *task = tess_traced_of(t, step->rank, TESS_EVENT_TASK, &n);
    struct walk w = {.t = t, .rank = step->rank, .limit = step->begin, .op = -1, .s = s};
    s->wall += step->end - step->begin;
    for (size_t i = 0; i < n; i++) {
        if (task[i].track != track || task[i].end <= step->begin || task[i].begin >= step->end) continue;
        const double end = task[i].end < step->end ? task[i].end : step->end,
                     begin = task[i].begin > w.limit ? task[i].begin : w.limit;
        if (begin > w.limit) {
            w.at = begin;
            w.op = task[i].name;
            walk(&w, &task[i]);
        }
        s->busy += end - begin;
        s->op[task[i].name] += end - begin;
        w.limit = end;
    }
    w.at = step->end;
    w.op = -1;
    if (w.limit < w.at) walk_from_end(&w);
}

struct interval {
    double begin, end;
};

static int by_begin(const void *a, const void *b)
{
    const struct interval *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

double tess_explain_under_way(const tess_traced *t, const tess_event *step, tess_event_kind kind, double *bytes)
{
    size_t n, n_busy = 0;
    const tess_event *s = tess_traced_of(t, step->rank, kind, &n);
    TESS_FREED struct interval *busy_at = tess_alloc((n + 1) * sizeof *busy_at);
    double seconds = 0, until = step->begin;
    for (size_t i = 0; i < n; i++) {
        if (s[i].end <= step->begin || s[i].end > step->end) continue;
        *bytes += s[i].bytes + s[i].received;
        busy_at[n_busy++] = (struct interval){s[i].begin, s[i].end};
    }
    qsort(busy_at, n_busy, sizeof *busy_at, by_begin);
    for (size_t i = 0; i < n_busy; i++) {
        if (busy_at[i].end <= until) continue;
        seconds += busy_at[i].end - (busy_at[i].begin > until ? busy_at[i].begin : until);
        until = busy_at[i].end;
    }
    return seconds;
}
