/* The trace's file, in the Trace Event Format: an array of objects, one a line. It is whole at every line but for the
 * bracket at its end, which readers of the format do without where a run was cut off.
 *
 * Transfers overlap, bars of a track must not: each kind has lanes, as many as were ever needed at a time, and a
 * transfer has the first that is free. An arrow leads from what arrived to the task that used it first; both ends are
 * written with the task, when it is known that there are two.
 *
 * What a task waited for was told before the task was. So a look takes note of where each ring ends, then learns of all
 * arrivals, also of those told meanwhile, and then writes the events up to where the rings ended. */
#include "runtime/trace/trace.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BUFFER = 64 << 10,
    LINE = 2048,       /* of one event, at most */
    LANES = 256,       /* of a kind */
    WORKERS = 512,     /* tracks of them */
    KNOWN = 1 << 16,   /* arrivals that are remembered */
    PERIOD_US = 5000,  /* between two looks */
    FIRST_WORKER = 10, /* tracks: 1 and 2 are steps and submission; those of transfers begin at LANE * kind */
    LANE = 1000
};

static const struct {
    const char *category, *track;
} kinds[TESS_TRACE_KINDS] = {[TESS_TRACE_STEP] = {"step", "steps"},
                             [TESS_TRACE_WAIT] = {"wait", "submission waits"},
                             [TESS_TRACE_TASK] = {"task", "worker"},
                             [TESS_TRACE_READ] = {"read", "drive, reading"},
                             [TESS_TRACE_WRITE] = {"write", "drive, writing"},
                             [TESS_TRACE_TO_GPU] = {"to_gpu", "to the GPU"},
                             [TESS_TRACE_OFF_GPU] = {"off_gpu", "off the GPU"},
                             [TESS_TRACE_MESSAGE] = {"message", "messages"}};
static const struct {
    const char *track, *unit;
} gauges[TESS_TRACE_GAUGES] = {
    [TESS_TRACE_GPU_BYTES] = {"gpu", "bytes"},         [TESS_TRACE_CPU_BYTES] = {"cpu", "bytes"},
    [TESS_TRACE_DISK_BYTES] = {"disk", "bytes"},       [TESS_TRACE_TASKS] = {"tasks submitted", "tasks"},
    [TESS_TRACE_DRIVE] = {"drive queue", "transfers"}, [TESS_TRACE_SPANS] = {"messages under way", "messages"}};

struct arrival {
    uint32_t number; /* 0: none */
    uint32_t track;
    double begin;
};

static struct trace {
    int fd;               /* -1: nothing is open */
    int rank, error;      /* error: it could not be written, and is at its end */
    off_t written, whole; /* bytes of the file; of those, whole lines */
    double origin, clock;
    char *path;
    size_t used;
    uint64_t lines, lost;
    char buffer[BUFFER];
    uint64_t sampled[TESS_TRACE_GAUGES];
    bool gauged[TESS_TRACE_GAUGES];
    double lane[TESS_TRACE_KINDS][LANES]; /* when each is free */
    unsigned lanes[TESS_TRACE_KINDS];     /* that were named */
    double worker[WORKERS];               /* when its last bar ended; 0: it was not named */
    bool named[2];                        /* steps, submission */
    struct arrival known[KNOWN];
    pthread_t thread;
    bool stops;
    unsigned asked, served; /* to settle */
} * trace;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work, settled;
static atomic_bool failed;

/* ---- text ---- */

static bool write_all(int fd, const char *text, size_t n, off_t *written)
{
    for (size_t done = 0; done < n;) {
        const ssize_t k = write(fd, text + done, n - done);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return errno = k < 0 ? errno : ENOSPC, false;
        done += (size_t)k;
        *written += k;
    }
    return true;
}

/* The disk is full, as a rule: the file ends behind its last whole line, and no more is traced. */
static void give_up(struct trace *t)
{
    t->error = errno;
    atomic_store(&failed, true);
    atomic_store(&tess_trace_on, false);
    tess_note("%s: cannot be written: %s%s; it ends here", t->path, strerror(t->error), tess_errno_hint(t->error));
    if (!t->whole || ftruncate(t->fd, t->whole) || lseek(t->fd, t->whole, SEEK_SET) < 0) return;
    t->written = t->whole;
    if (!write_all(t->fd, "\n]\n", 3, &t->written)) return; /* it lacks its end: nothing more can be done */
}

static void write_out(struct trace *t, const char *text, size_t n)
{
    if (!t->error && !write_all(t->fd, text, n, &t->written)) give_up(t);
}

/* Writes the buffer, which ends with a whole line. */
static void flush(struct trace *t)
{
    write_out(t, t->buffer, t->used);
    t->used = 0;
    if (!t->error) t->whole = t->written;
}

/* Mostly of literals, whose length the compiler then knows: this is most of what a traced task costs. */
static inline __attribute__((always_inline)) void put_text(struct trace *t, const char *s)
{
    const size_t n = strlen(s);
    memcpy(t->buffer + t->used, s, n);
    t->used += n;
}

/* Within quotes; what is long is cut. */
static void put_quoted(struct trace *t, const char *s)
{
    enum { MOST = 200 };
    char *p = t->buffer + t->used;
    *p++ = '"';
    for (int i = 0; s[i] && i < MOST; i++) {
        const unsigned char c = (unsigned char)s[i];
        if (c == '"' || c == '\\') *p++ = '\\';
        *p++ = c < 32 || c > 126 ? '?' : (char)c;
    }
    *p++ = '"';
    t->used = (size_t)(p - t->buffer);
}

static void put_count(struct trace *t, uint64_t x)
{
    char digit[20];
    int n = 0;
    do digit[n++] = (char)('0' + x % 10);
    while (x /= 10);
    while (n) t->buffer[t->used++] = digit[--n];
}

/* Microseconds, of a number of nanoseconds. */
static void put_time(struct trace *t, int64_t ns)
{
    if (ns < 0) t->buffer[t->used++] = '-', ns = -ns;
    put_count(t, (uint64_t)ns / 1000);
    const int rest = (int)(ns % 1000);
    const char text[] = {'.', (char)('0' + rest / 100), (char)('0' + rest / 10 % 10), (char)('0' + rest % 10)};
    memcpy(t->buffer + t->used, text, sizeof text);
    t->used += sizeof text;
}

static int64_t since_origin(const struct trace *t, double seconds)
{
    return (int64_t)((seconds + t->clock - t->origin) * 1e9 + 0.5);
}

/* Begins a line: {"ph":"X","pid":0,"tid":10,"ts":1.000 */
static void begin(struct trace *t, const char *phase, uint32_t track, double at)
{
    if (t->used > BUFFER - LINE) flush(t);
    put_text(t, t->lines++ ? ",\n{\"ph\":\"" : "[\n{\"ph\":\"");
    put_text(t, phase);
    put_text(t, "\",\"pid\":");
    put_count(t, (uint64_t)t->rank);
    put_text(t, ",\"tid\":");
    put_count(t, track);
    const int64_t ns = since_origin(t, at);
    put_text(t, ",\"ts\":");
    put_time(t, ns > 0 ? ns : 0);
}

static void put_member(struct trace *t, const char *name, const char *text)
{
    put_text(t, ",\"");
    put_text(t, name);
    put_text(t, "\":");
    put_quoted(t, text);
}

static void put_number(struct trace *t, const char *name, uint64_t x)
{
    put_text(t, ",\"");
    put_text(t, name);
    put_text(t, "\":");
    put_count(t, x);
}

static void put_moment(struct trace *t, const char *name, double seconds)
{
    if (seconds == 0) return; /* it is not known */
    put_text(t, ",\"");
    put_text(t, name);
    put_text(t, "\":");
    put_time(t, since_origin(t, seconds));
}

/* Names a track, and says where it stands. */
static void name_track(struct trace *t, uint32_t track, const char *name, int number)
{
    char text[64];
    snprintf(text, sizeof text, number < 0 ? "%s" : "%s %d", name, number);
    begin(t, "M", track, t->origin - t->clock);
    put_text(t, ",\"name\":\"thread_name\",\"args\":{\"name\":");
    put_quoted(t, text);
    put_text(t, "}}");
    begin(t, "M", track, t->origin - t->clock);
    put_text(t, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":");
    put_count(t, track);
    put_text(t, "}}");
}

/* ---- tracks ---- */

static uint32_t lane_of(struct trace *t, const tess_trace_event *e)
{
    double *free_at = t->lane[e->kind];
    unsigned i = 0;
    while (i < t->lanes[e->kind] && i < LANES - 1 && free_at[i] > e->begin) i++;
    const uint32_t track = (uint32_t)(LANE * (int)e->kind) + i;
    if (i == t->lanes[e->kind]) {
        t->lanes[e->kind]++;
        name_track(t, track, kinds[e->kind].track, i ? (int)i + 1 : -1);
    }
    free_at[i] = e->end;
    return track;
}

static bool on_lanes(tess_trace_kind kind)
{
    return kind >= TESS_TRACE_READ && kind <= TESS_TRACE_MESSAGE;
}

static void learn(struct trace *t, tess_trace_ring *r, tess_trace_event *e)
{
    if (e->kind == TESS_TRACE_SPAN) e->worker = r->message;
    if (!on_lanes(e->kind)) return;
    e->worker = lane_of(t, e);
    if (e->kind == TESS_TRACE_MESSAGE) r->message = e->worker;
    if (e->arrival) t->known[e->arrival % KNOWN] = (struct arrival){e->arrival, e->worker, e->begin};
}

static uint32_t track_of(struct trace *t, const tess_trace_event *e)
{
    if (on_lanes(e->kind)) return e->worker;
    if (e->kind == TESS_TRACE_TASK) {
        const uint32_t w = e->worker % WORKERS;
        if (t->worker[w] == 0) {
            t->worker[w] = e->begin < e->data_begin || !e->data_begin ? e->begin : e->data_begin;
            name_track(t, FIRST_WORKER + w, e->gpu ? "GPU worker" : "CPU worker", (int)w);
        }
        return FIRST_WORKER + w;
    }
    if (!t->named[e->kind == TESS_TRACE_WAIT]) name_track(t, 1 + e->kind, kinds[e->kind].track, -1);
    t->named[e->kind == TESS_TRACE_WAIT] = true;
    return 1 + e->kind;
}

/* ---- events ---- */

static void bar(struct trace *t, uint32_t track, double from, double to, const char *category, const char *name)
{
    const int64_t first = since_origin(t, from), last = since_origin(t, to);
    begin(t, "X", track, from);
    put_text(t, ",\"dur\":");
    put_time(t, last > first && last > 0 ? last - (first > 0 ? first : 0) : 0);
    put_member(t, "cat", category);
    put_member(t, "name", name);
}

/* The rest of one end of an arrow. Perfetto knows an arrow by its name, its category and its id, which is to be a
 * number; as 64 bits are more than JSON's numbers hold, it is written in hexadecimal. */
static void put_arrow(struct trace *t, bool head, const char *name, uint64_t id)
{
    char text[24];
    if (head) put_text(t, ",\"bp\":\"e\"");
    put_member(t, "cat", name);
    put_member(t, "name", name);
    snprintf(text, sizeof text, "0x%llx", (unsigned long long)id);
    put_member(t, "id", text);
    put_text(t, "}");
}

static void put_arrows(struct trace *t, const tess_trace_event *e, uint32_t track, double at)
{
    for (int i = 0; i < TESS_TRACE_ARRIVALS; i++) {
        const struct arrival *a = &t->known[e->waited[i] % KNOWN];
        if (!e->waited[i] || a->number != e->waited[i] || a->begin > at) continue;
        for (int end = 0; end < 2; end++) {
            begin(t, end ? "f" : "s", end ? track : a->track, end ? at : a->begin);
            put_arrow(t, end, "arrival", (uint64_t)t->rank << 32 | e->waited[i]);
        }
    }
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

static void put_task(struct trace *t, const tess_trace_event *e)
{
    const uint32_t track = track_of(t, e);
    double *free_at = &t->worker[e->worker % WORKERS];
    const double from = later(e->begin, *free_at), fetched = later(e->data_begin, *free_at);
    const double until = e->data_end < from ? e->data_end : from;
    if (e->data_begin > 0 && until > fetched) {
        bar(t, track, fetched, until, "data", "waits for data");
        put_text(t, ",\"args\":{\"order\":");
        put_count(t, e->number);
        put_text(t, "}}");
    }
    bar(t, track, from, later(e->end, from), "task", e->name);
    put_text(t, ",\"args\":{\"order\":");
    put_count(t, e->number);
    if (e->of) put_member(t, "tile", e->of);
    if (e->helps) put_text(t, ",\"helps\":true");
    put_moment(t, "submitted", e->submitted);
    put_moment(t, "ready", e->asked);
    if (e->flops > 0) put_number(t, "flops", (uint64_t)e->flops);
    put_text(t, "}}");
    *free_at = later(e->end, from);
    put_arrows(t, e, track, from);
}

/* Different for different x, in all bits. */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* An arrow between ranks; each writes its own end, by a name that both know. It leads from where the sender's
 * bar begins to where the receiver's ends. */
static void put_span(struct trace *t, const tess_trace_event *e)
{
    const uint64_t peer = e->number - 1, self = (uint64_t)t->rank;
    const uint64_t ends = e->received ? peer << 32 | self : self << 32 | peer;
    begin(t, e->received ? "f" : "s", e->worker, e->received ? later(e->begin, e->end - 1e-9) : e->begin);
    put_arrow(t, e->received, "span", mixed(mixed(ends) ^ ((uint64_t)(uint32_t)e->tag << 32 | e->nth)));
}

static void put_event(struct trace *t, const tess_trace_event *e)
{
    char step[32];
    if (e->kind == TESS_TRACE_TASK) {
        put_task(t, e);
        return;
    }
    if (e->kind == TESS_TRACE_SPAN) {
        put_span(t, e);
        return;
    }
    const uint32_t track = track_of(t, e);
    snprintf(step, sizeof step, "step %llu", (unsigned long long)e->number);
    bar(t, track, e->begin, e->end, kinds[e->kind].category, e->kind == TESS_TRACE_STEP ? step : e->name);
    put_text(t, ",\"args\":{\"kind\":");
    put_quoted(t, kinds[e->kind].category);
    if (e->kind == TESS_TRACE_STEP) put_number(t, "step", e->number);
    if (e->of) put_member(t, e->kind == TESS_TRACE_WAIT ? "for" : "tile", e->of);
    put_moment(t, "asked", e->asked);
    if (on_lanes(e->kind)) put_number(t, e->kind == TESS_TRACE_MESSAGE ? "sent" : "bytes", e->bytes);
    if (e->kind == TESS_TRACE_MESSAGE) put_number(t, "received", e->received);
    if (e->kind == TESS_TRACE_MESSAGE && e->number) put_number(t, "peer", e->number - 1);
    if (e->kind == TESS_TRACE_MESSAGE) put_number(t, "tag", (uint64_t)e->tag);
    put_text(t, "}}");
}

static void sample(struct trace *t)
{
    const double now = tess_seconds();
    for (int g = 0; g < TESS_TRACE_GAUGES; g++) {
        const uint64_t x = atomic_load_explicit(&tess_trace_gauges[g], memory_order_relaxed);
        if (t->gauged[g] ? x == t->sampled[g] : !x) continue;
        t->gauged[g] = true;
        t->sampled[g] = x;
        begin(t, "C", 0, now);
        put_member(t, "name", gauges[g].track);
        put_text(t, ",\"args\":{\"");
        put_text(t, gauges[g].unit);
        put_text(t, "\":");
        put_count(t, x);
        put_text(t, "}}");
    }
}

/* ---- the writer ---- */

enum { RINGS = 1024 };

static void look(struct trace *t)
{
    tess_trace_ring *ring[RINGS];
    uint32_t head[RINGS];
    int n = 0;
    for (tess_trace_ring *r = tess_trace_rings(); r && n < RINGS; r = atomic_load(&r->next), n++) {
        ring[n] = r;
        head[n] = atomic_load_explicit(&r->head, memory_order_acquire);
    }
    for (tess_trace_ring *r = tess_trace_rings(); r; r = atomic_load(&r->next))
        for (const uint32_t end = atomic_load_explicit(&r->head, memory_order_acquire); r->looked != end; r->looked++)
            learn(t, r, &r->event[r->looked % TESS_TRACE_RING]);
    for (int i = 0; i < n; i++) {
        uint32_t tail = atomic_load_explicit(&ring[i]->tail, memory_order_relaxed);
        for (; tail != head[i]; tail++) put_event(t, &ring[i]->event[tail % TESS_TRACE_RING]);
        atomic_store_explicit(&ring[i]->tail, tail, memory_order_release);
    }
}

static bool is_empty(void)
{
    for (tess_trace_ring *r = tess_trace_rings(); r; r = atomic_load(&r->next))
        if (atomic_load(&r->head) != atomic_load(&r->tail)) return false;
    return true;
}

static void *serve(void *arg)
{
    struct trace *t = arg;
    pthread_mutex_lock(&lock);
    while (!t->stops) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += 1000L * PERIOD_US;
        if (until.tv_nsec >= 1000000000L) until.tv_sec++, until.tv_nsec -= 1000000000L;
        if (t->asked == t->served && tess_traces())
            pthread_cond_clockwait(&work, &lock, CLOCK_MONOTONIC, &until);
        else if (t->asked == t->served)
            pthread_cond_wait(&work, &lock);
        const unsigned asked = t->asked;
        const bool settles = asked != t->served;
        pthread_mutex_unlock(&lock);
        if (settles || tess_traces()) {
            look(t);
            sample(t);
        }
        if (settles) flush(t);
        pthread_mutex_lock(&lock);
        t->served = asked;
        pthread_cond_broadcast(&settled);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

bool tess_trace_failed(void)
{
    return atomic_load(&failed);
}

void tess_trace_settle(void)
{
    if (!trace || (!tess_traces() && is_empty())) return;
    pthread_mutex_lock(&lock);
    const unsigned mine = ++trace->asked;
    pthread_cond_signal(&work);
    while ((int)(trace->served - mine) < 0) pthread_cond_wait(&settled, &lock);
    pthread_mutex_unlock(&lock);
}

/* ---- opening, closing ---- */

static void free_trace(void)
{
    if (trace->fd >= 0) close(trace->fd);
    free(trace->path);
    free(trace);
    trace = NULL;
}

tess_status tess_trace_open(const tess_trace_conf *conf)
{
    sigset_t all, before;
    if (trace) return tess_error(TESS_INVALID, conf->path, "a trace is open already");
    const int fd = open(conf->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return tess_error(tess_errno_status(errno), conf->path, "cannot be written: %s (see output)", strerror(errno));
    for (tess_trace_ring *r = tess_trace_rings(); r; r = atomic_load(&r->next)) {
        r->looked = atomic_load(&r->head);
        atomic_store(&r->tail, r->looked);
    }
    trace = tess_alloc(sizeof *trace);
    trace->fd = fd;
    trace->rank = conf->rank;
    trace->origin = conf->origin;
    trace->clock = conf->clock;
    trace->path = tess_strdup(conf->path);
    atomic_store(&failed, false);
    begin(trace, "i", 1, trace->origin - trace->clock);
    put_text(trace, ",\"s\":\"p\",\"cat\":\"about\",\"name\":\"tessera\",\"args\":");
    write_out(trace, trace->buffer, trace->used);
    write_out(trace, conf->about, strlen(conf->about));
    trace->used = 0;
    put_text(trace, "}");
    begin(trace, "M", 1, trace->origin - trace->clock);
    put_text(trace, ",\"name\":\"process_name\",\"args\":{\"name\":\"rank ");
    put_count(trace, (uint64_t)conf->rank);
    put_text(trace, "\"}}");
    sigfillset(&all); /* signals are the main thread's */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&trace->thread, NULL, serve, trace);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!rc) return TESS_OK;
    free_trace();
    return tess_error(TESS_FAILED, conf->path, "its thread cannot be started: %s", strerror(rc));
}

/* Adds the events of a closed trace. */
static void append(struct trace *t, const char *path)
{
    FILE *f = t->error ? NULL : fopen(path, "r");
    TESS_FREED char *line = NULL;
    size_t room = 0;
    ssize_t n;
    if (!f && !t->error) tess_note("%s: cannot be read: %s; its rank is not in %s", path, strerror(errno), t->path);
    while (f && (n = getline(&line, &room, f)) > 0) {
        if (line[0] != '{') continue;
        while (n > 0 && (line[n - 1] == '\n' || line[n - 1] == ',')) line[--n] = 0;
        if (!n || line[n - 1] != '}') continue; /* cut off */
        flush(t);
        write_out(t, ",\n", 2); /* behind a line that says what the run is */
        write_out(t, line, (size_t)n);
        flush(t);
    }
    if (f) fclose(f);
}

void tess_trace_close(const char *const *others, size_t n)
{
    if (!trace) return;
    atomic_store(&tess_trace_on, false);
    tess_trace_settle();
    pthread_mutex_lock(&lock);
    trace->stops = true;
    pthread_cond_signal(&work);
    pthread_mutex_unlock(&lock);
    pthread_join(trace->thread, NULL);
    for (size_t i = 0; i < n; i++) append(trace, others[i]);
    flush(trace);
    put_text(trace, "\n]\n");
    flush(trace);
    const uint64_t lost = tess_trace_lost();
    if (lost) tess_note("%s: %llu events found no room and are not in it", trace->path, (unsigned long long)lost);
    free_trace();
}
