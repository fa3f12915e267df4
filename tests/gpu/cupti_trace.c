/* What each kernel and copy took by the GPU's own clock, of any program: a library that CUDA loads where
 * CUDA_INJECTION64_PATH names it, and that asks CUPTI. It prints to stderr at the program's end. Never run on a GPU.
 *
 *     CUDA_INJECTION64_PATH=$PWD/libcupti_trace.so tessera bench ... */
#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COPY = 1, KERNEL = 10 }; /* kinds of records */
enum { BUFFER = 8 << 20, NAMES = 4096, SHOWN = 40, LIBRARIES = 3 };

/* The beginnings of CUPTI's records, alike in 12.9 and 13.5. */
struct kernel {
    uint32_t kind, cache, partitions[2];
    uint64_t start, end, completed;
    uint32_t device, context, stream;
    int32_t grid[3], block[3], shared[2];
    uint32_t local[2], correlation;
    int64_t grid_id;
    const char *name;
};
struct copy {
    uint32_t kind;
    uint8_t what, from, to, flags;
    uint64_t bytes, start, end;
    uint32_t device;
};
_Static_assert(offsetof(struct kernel, start) == 16 && offsetof(struct kernel, device) == 40 &&
                   offsetof(struct kernel, name) == 104 && offsetof(struct copy, start) == 16,
               "as in cupti_activity.h");

static int (*get_next)(uint8_t *buffer, size_t bytes, void **record);
static int (*flush)(uint32_t forced);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct name {
    char *text;
    double ms;
    uint64_t count;
} name[NAMES];
static int names;
static struct span {
    uint64_t start, end;
} * span; /* of device 0's kernels */
static size_t spans, room;

static void add(const char *text, uint64_t start, uint64_t end)
{
    int i = 0;
    while (i < names && strcmp(name[i].text, text)) i++;
    if (i == NAMES) return;
    if (i == names) name[names++].text = strdup(text);
    name[i].ms += (double)(end - start) * 1e-6;
    name[i].count++;
}

static void add_span(uint64_t start, uint64_t end)
{
    if (spans == room && !(span = realloc(span, (room = room ? 2 * room : 1024) * sizeof *span))) abort();
    span[spans++] = (struct span){start, end};
}

static void take(const void *record)
{
    static const char *const ways[] = {"?", "to the GPU", "from the GPU", "3", "4", "5", "6", "7", "within the GPU"};
    const uint32_t kind = *(const uint32_t *)record;
    if (kind == KERNEL) {
        const struct kernel *k = record;
        add(k->name ? k->name : "?", k->start, k->end);
        if (k->device == 0) add_span(k->start, k->end);
    } else if (kind == COPY) {
        char text[64];
        const struct copy *c = record;
        snprintf(text, sizeof text, "copies %s",
                 c->what < sizeof ways / sizeof *ways ? ways[c->what] : "of another kind");
        add(text, c->start, c->end);
    }
}

static void wants_buffer(uint8_t **buffer, size_t *bytes, size_t *most)
{
    *buffer = aligned_alloc(8, BUFFER);
    *bytes = *buffer ? BUFFER : 0;
    *most = 0;
}

static void has_buffer(void *context, uint32_t stream, uint8_t *buffer, size_t bytes, size_t valid)
{
    (void)context, (void)stream, (void)bytes;
    void *record = NULL;
    pthread_mutex_lock(&lock);
    while (valid > 0 && get_next(buffer, valid, &record) == 0) take(record);
    pthread_mutex_unlock(&lock);
    free(buffer);
}

static int longest_first(const void *a, const void *b)
{
    const struct name *x = a, *y = b;
    return x->ms < y->ms ? 1 : x->ms > y->ms ? -1 : 0;
}

static int in_order(const void *a, const void *b)
{
    const struct span *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static void tell(void)
{
    uint64_t busy = 0, rest = 0, until = 0;
    flush(1);
    pthread_mutex_lock(&lock);
    qsort(span, spans, sizeof *span, in_order);
    for (size_t i = 0; i < spans; i++) {
        if (i > 0 && span[i].start > until && span[i].start - until > rest) rest = span[i].start - until;
        const uint64_t from = span[i].start > until ? span[i].start : until;
        if (span[i].end > from) busy += span[i].end - from;
        if (span[i].end > until) until = span[i].end;
    }
    if (spans)
        fprintf(stderr,
                "CUPTI: GPU 0 at work %.3f ms of %.3f between its first kernel and its last; longest rest %.3f ms\n",
                (double)busy * 1e-6, (double)(until - span[0].start) * 1e-6, (double)rest * 1e-6);
    else
        fprintf(stderr, "CUPTI: no kernel ran\n");
    qsort(name, (size_t)names, sizeof *name, longest_first);
    for (int i = 0; i < names && i < SHOWN; i++)
        fprintf(stderr, "%12.3f ms %9llu x  %.120s\n", name[i].ms, (unsigned long long)name[i].count, name[i].text);
    pthread_mutex_unlock(&lock);
}

/* CUDA calls it when it starts. */
int InitializeInjection(void)
{
    static const char *const library[LIBRARIES] = {"libcupti.so.13", "libcupti.so.12", "libcupti.so"};
    void *cupti = NULL;
    for (int i = 0; i < LIBRARIES && !cupti; i++) cupti = dlopen(library[i], RTLD_NOW | RTLD_GLOBAL);
    int (*enable)(int kind) = NULL, (*buffers)(void *wants, void *has) = NULL;
    if (cupti) {
        *(void **)&enable = dlsym(cupti, "cuptiActivityEnable");
        *(void **)&buffers = dlsym(cupti, "cuptiActivityRegisterCallbacks");
        *(void **)&get_next = dlsym(cupti, "cuptiActivityGetNextRecord");
        *(void **)&flush = dlsym(cupti, "cuptiActivityFlushAll");
    }
    void *wants = NULL, *has = NULL;
    *(void (**)(uint8_t **, size_t *, size_t *)) & wants = wants_buffer;
    *(void (**)(void *, uint32_t, uint8_t *, size_t, size_t)) & has = has_buffer;
    int refused = -1;
    if (enable && buffers && get_next && flush) refused = buffers(wants, has);
    for (int kind = COPY; refused == 0 && kind <= KERNEL; kind++)
        if (kind == COPY || kind == KERNEL) refused = enable(kind);
    if (refused)
        fprintf(stderr, "CUPTI: %s (%d), so there is no trace\n", cupti ? "refuses" : "is not here", refused);
    else
        atexit(tell);
    return 1;
}
