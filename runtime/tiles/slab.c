/* The memory below StarPU's buffers in RAM. Large buffers lie in huge pages: matrices then miss the TLB less, and
 * direct disk I/O runs two to three times faster than on 4 KiB pages. What StarPU gives back is kept for the next one,
 * so that pages are faulted in once; under a cap only as far as what is in use and what is kept stay below it.
 *
 * Beside a GPU, which pins a buffer whole, a buffer stays whole and serves the next one of about its size. Elsewhere
 * its pages serve any (arena.c): without that 4% of a step under a cap went into making pages and giving them back, and
 * 8% of one whose tiles of 64 KiB to 1 MiB were malloc's, which gives pages back all the time. */
#include "runtime/gpu/gpu.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    LARGE = 64 << 10,       /* smaller ones are malloc's */
    LARGE_PINNED = 1 << 20, /* beside a GPU */
    MODEST = 256 << 20,
    SLOTS = 1 << 16,
    GRAIN = 64 << 10,
    BLOCK = 4096 /* of direct disk I/O */
};

struct slot {
    void *ptr;
    size_t size;
    bool pinned; /* a GPU copies from and to it by itself */
};
static struct slot used[SLOTS], spare[SLOTS]; /* large buffers beside a GPU only; used is unordered */
static int nused, nspare;
static uint64_t held, held_peak; /* bytes asked for by StarPU, all sizes, and workers' rooms */
static uint64_t kept, leaving;   /* bytes of spare buffers, and of what is on its way out */
static uint64_t cap;             /* on all of these; 0: none */
static bool whole;               /* a buffer is mapped for itself */
static int64_t refused;          /* times that a GPU's buffer could not be pinned */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t left = PTHREAD_COND_INITIALIZER;

static size_t rounded(size_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

/* The smallest spare buffer that fits without wasting more than an eighth; -1 for none. Called with the lock held. */
static int find_spare(size_t size)
{
    int best = -1;
    for (int i = 0; i < nspare; i++)
        if (spare[i].size >= size && spare[i].size <= size + size / 8 && (best < 0 || spare[i].size < spare[best].size))
            best = i;
    return best;
}

static void unmap(const struct slot *s)
{
    if (s->pinned) tess_gpu_unpin(s->ptr, s->size);
    munmap(s->ptr, s->size);
}

/* Pinning and unpinning a large buffer takes as long as a hundred launches. Both are done without the lock, so that
 * only threads wait that need the buffer or its room; a buffer counts in `leaving` until its pages are unmapped. */
static void unmap_unlocked(const struct slot *s)
{
    leaving += s->size;
    pthread_mutex_unlock(&lock);
    unmap(s);
    pthread_mutex_lock(&lock);
    leaving -= s->size;
    pthread_cond_broadcast(&left);
}

static struct slot take_spare(int i)
{
    const struct slot s = spare[i];
    spare[i] = spare[--nspare];
    kept -= s.size;
    return s;
}

/* Unmaps at least `bytes` of free pages; returns false if there are none. It is called with the lock, and drops it
 * meanwhile. */
static bool cut_unlocked(uint64_t bytes)
{
    void *p;
    const size_t size = tess_arena_cut(bytes, &p);
    if (!size) return false;
    leaving += size;
    pthread_mutex_unlock(&lock);
    madvise(p, size, MADV_DONTNEED);
    pthread_mutex_lock(&lock);
    tess_arena_gone(p);
    leaving -= size;
    pthread_cond_broadcast(&left);
    return true;
}

/* Unmaps a spare buffer, or free pages, if `more` bytes would exceed the cap; returns false if they would not, or if
 * nothing is left to unmap. It is called with the lock, and drops it meanwhile. */
static bool give_back(uint64_t more)
{
    const uint64_t all = held + kept + tess_arena_kept() + more;
    if (!cap || all <= cap) return false;
    if (!nspare) return cut_unlocked(all - cap);
    const struct slot s = take_spare(0);
    unmap_unlocked(&s);
    return true;
}

/* Waits until `more` bytes fit below the cap, and unmaps spare memory for them. It is called with the lock, as above.
 */
static void make_room(uint64_t more)
{
    for (;;)
        if (!give_back(more)) {
            if (!cap || !leaving || held + kept + tess_arena_kept() + leaving + more <= cap) return;
            pthread_cond_wait(&left, &lock);
        }
}

/* Unmaps one spare buffer after the kernel has refused a new one; returns false if there is none. It is called without
 * the lock. */
static bool give_spare(void)
{
    pthread_mutex_lock(&lock);
    const bool has = nspare > 0;
    if (has) {
        const struct slot s = take_spare(0);
        unmap_unlocked(&s);
    }
    pthread_mutex_unlock(&lock);
    return has;
}

/* A buffer of that size, spare or new, pinned where there is a GPU. With the lock, which others have while pages are
 * made; `bytes` count as held meanwhile. */
static struct slot get_whole(size_t size, size_t bytes)
{
    int i = find_spare(size);
    if (i < 0) {
        make_room(size);
        i = find_spare(size);
    }
    struct slot s = i >= 0 ? take_spare(i) : (struct slot){NULL, size, false};
    if (s.ptr && s.pinned) return s;
    held += bytes;
    pthread_mutex_unlock(&lock);
    if (!s.ptr) s.ptr = tess_arena_map(size, 0);
    while (!s.ptr && give_spare()) s.ptr = tess_arena_map(size, 0);
    if (s.ptr) s.pinned = tess_gpu_pin(s.ptr, s.size);
    pthread_mutex_lock(&lock);
    held -= bytes;
    if (s.ptr && !s.pinned && tess_gpu_workers() > 0) refused++;
    return s;
}

/* Address space for all that will be asked for, where it costs nothing. */
static size_t wanted(void)
{
    struct rlimit space;
    char strict = '0';
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
    if (f && fread(&strict, 1, 1, f) != 1) strict = '0';
    if (f) fclose(f);
    const bool costs = strict == '2' || (!getrlimit(RLIMIT_AS, &space) && space.rlim_cur != RLIM_INFINITY);
    const uint64_t all = cap ? cap + cap / 4 : (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    return costs && all > MODEST ? MODEST : (size_t)all;
}

/* The same anywhere. The pages of its place that are there are not given back for it. */
static void *get_anywhere(size_t bytes)
{
    void *p = tess_arena_take(bytes, wanted);
    if (!p) return NULL;
    held += bytes;
    make_room(0);
    tess_arena_settle(p);
    make_room(0);
    held -= bytes;
    return p;
}

/* ---- ahead of need ---- */

static struct {
    const size_t *bytes;
    size_t n;
    atomic_size_t next;
} ahead;

static void *make_ready(void *unused)
{
    for (size_t k; (k = ahead.next++) < ahead.n;) {
        const size_t size = rounded(ahead.bytes[k]);
        if (ahead.bytes[k] < LARGE_PINNED) continue;
        struct slot s = {.ptr = tess_arena_map(size, 0), .size = size};
        if (!s.ptr) break; /* who needs it will say so */
        s.pinned = tess_gpu_pin(s.ptr, size);
        pthread_mutex_lock(&lock);
        const bool fits = nspare < SLOTS && (!cap || held + kept + size <= cap);
        if (fits) spare[nspare++] = s;
        if (fits) kept += size;
        pthread_mutex_unlock(&lock);
        if (!fits) unmap(&s);
        if (!fits) break;
        tess_bar_step((double)size);
    }
    return unused;
}

void tess_slab_ready(const size_t *bytes, size_t n)
{
    enum { MOST = 64 };
    pthread_t thread[MOST];
    double all = 0;
    int threads = 0;
    if (!whole || tess_gpu_workers() == 0) return;
    ahead.bytes = bytes;
    ahead.n = n;
    ahead.next = 0;
    for (size_t k = 0; k < n; k++) all += (double)rounded(bytes[k]);
    tess_bar_begin("making RAM ready for the GPU", all);
    while (threads < MOST && threads + 1 < tess_cores() && !pthread_create(&thread[threads], NULL, make_ready, NULL))
        threads++;
    make_ready(NULL);
    for (int i = 0; i < threads; i++) pthread_join(thread[i], NULL);
    tess_bar_end();
}

static void *get_large(size_t bytes)
{
    if (!whole) return get_anywhere(bytes);
    if (nused == SLOTS) return NULL;
    struct slot s = get_whole(rounded(bytes), bytes);
    if (s.ptr && nused == SLOTS) { /* others had the lock */
        unmap(&s);
        s.ptr = NULL;
    }
    if (s.ptr) used[nused++] = s;
    return s.ptr;
}

static void put_whole(void *p)
{
    int i = nused - 1;
    while (i >= 0 && used[i].ptr != p) i--;
    TESS_ASSERT(i >= 0);
    const struct slot s = used[i];
    used[i] = used[--nused];
    if (nspare < SLOTS) {
        spare[nspare++] = s;
        kept += s.size;
    } else
        unmap_unlocked(&s);
}

/* StarPU would ask for it again and again, for ever, and say nothing. */
TESS_NORETURN static void refuse(size_t bytes, int why)
{
    char wanted[32], text[300];
    snprintf(wanted, sizeof wanted, "%s", tess_human_bytes((double)bytes));
    snprintf(text, sizeof text,
             "RAM: no buffer of %s beside %s that tiles have: %s (ulimit -v, vm.overcommit_memory and vm.max_map_count "
             "say how much there may be; memory.cpu, how much is wanted)",
             wanted, tess_human_bytes((double)held), why ? strerror(why) : "there are too many");
    tess_die(text);
}

static int get(unsigned node, void **out, size_t bytes, int flags)
{
    (void)node, (void)flags;
    void *p = NULL;
    errno = 0;
    pthread_mutex_lock(&lock);
    if (bytes < (whole ? LARGE_PINNED : LARGE)) {
        make_room(bytes);
        if (posix_memalign(&p, bytes < BLOCK ? 64 : BLOCK, bytes ? bytes : 64)) p = NULL;
    } else
        p = get_large(bytes);
    if (p && (held += bytes) > held_peak) held_peak = held;
    if (!p) refuse(bytes, errno);
    tess_trace_set(TESS_TRACE_CPU_BYTES, held);
    pthread_mutex_unlock(&lock);
    *out = p;
    return 0;
}

static int put(unsigned node, void *p, size_t bytes, int flags)
{
    (void)node, (void)flags;
    pthread_mutex_lock(&lock);
    held -= bytes;
    tess_trace_set(TESS_TRACE_CPU_BYTES, held);
    const bool arena = bytes >= LARGE && tess_arena_put(p);
    if (!arena && bytes < LARGE_PINNED)
        free(p);
    else {
        if (!arena) put_whole(p);
        while (give_back(0)) {
        }
    }
    pthread_mutex_unlock(&lock);
    return 0;
}

void tess_slab_hold(int64_t bytes)
{
    pthread_mutex_lock(&lock);
    if (bytes > 0) make_room((uint64_t)bytes);
    held += (uint64_t)bytes;
    if (held > held_peak) held_peak = held;
    tess_trace_set(TESS_TRACE_CPU_BYTES, held);
    pthread_mutex_unlock(&lock);
}

void tess_slab_install(uint64_t bytes, bool stays_whole)
{
    cap = bytes;
    whole = stays_whole;
    held_peak = held;
    starpu_malloc_set_hooks(get, put);
}

void tess_slab_release(void)
{
    pthread_mutex_lock(&lock);
    if (refused)
        tess_note("RAM could not be pinned for the GPU %lld time%s: copies from there and to it were slow (ulimit -l?)",
                  (long long)refused, refused == 1 ? "" : "s");
    refused = 0;
    while (nspare || leaving) {
        if (!nspare) {
            pthread_cond_wait(&left, &lock);
            continue;
        }
        const struct slot s = take_spare(nspare - 1);
        unmap_unlocked(&s);
    }
    tess_arena_release();
    pthread_mutex_unlock(&lock);
}

void tess_slab_use(uint64_t *now, uint64_t *peak)
{
    pthread_mutex_lock(&lock);
    *now = held;
    *peak = held_peak;
    pthread_mutex_unlock(&lock);
}
