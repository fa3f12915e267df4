/* The disk tier as StarPU sees it.
 *
 * StarPU calls alloc and free, and starts and tests transfers, from all of its workers, with locks of its own held: all
 * of these return at once. Copies into bounce buffers and checksums are made by the threads that move.
 *
 * alloc never says that the disk is full. StarPU 1.3 would make room by moving other tiles from disk to RAM, which is
 * full as well: two workers then wait for each other for ever. It is a failure like any other instead. A tile that left
 * RAM once keeps its place on disk until it is freed, so the sum of all tiles that may leave is what the disk must
 * hold, and a plan can tell beforehand.
 *
 * Why not StarPU's own engines: they keep one file for each tile, serialise requests, leave files behind after a kill
 * and abort on an I/O error. Here a directory has one file, allocated at the start and without a name where the file
 * system allows it, so a disk that is too small is an error before the run. Data goes round the directories in chunks
 * of 2 MiB, so a task that waits for one tile uses all drives. A thread feeds the io_uring, because StarPU's workers
 * poll only between tasks. Buffers are not registered, since a normal user may lock 8 MiB and tiles lie anywhere.
 * StarPU's cache of freed buffers is off for tiles: it serves one size and would hold room on disk that other tiles
 * need. */
#include "runtime/disk/disk.h"
#include "runtime/trace/trace.h"
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

/* ---- tiles ---- */

static void *tile_alloc(void *base, size_t bytes)
{
    tess_disk *d = base;
    struct tess_disk_tile *t = tess_alloc(sizeof *t);
    t->bytes = bytes;
    if (tess_disk_failure(d)) return t;
    pthread_mutex_lock(&d->space_lock);
    bool taken = tess_disk_space_take(d, t);
    uint64_t left = d->capacity - d->used;
    tess_trace_set(TESS_TRACE_DISK_BYTES, d->used);
    pthread_mutex_unlock(&d->space_lock);
    if (!taken)
        tess_disk_fail(d,
                       "%s: the disk tier is full: a tile of %s is to leave RAM, %s of %s are free (raise the cap on "
                       "the disk or the one on RAM)",
                       d->file[0].dir, tess_human_bytes((double)bytes), tess_human_bytes((double)left),
                       tess_human_bytes((double)d->capacity));
    return t;
}

static void tile_free(void *base, void *obj, size_t bytes)
{
    (void)bytes;
    tess_disk *d = base;
    struct tess_disk_tile *t = obj;
    pthread_mutex_lock(&d->space_lock);
    tess_disk_space_give(d, t);
    tess_trace_set(TESS_TRACE_DISK_BYTES, d->used);
    pthread_mutex_unlock(&d->space_lock);
    free(t->piece);
    free(t);
}

/* ---- requests ---- */

static void *start_request(tess_disk *d, struct tess_disk_tile *t, void *buf, off_t offset, size_t bytes, bool write)
{
    /* Tiles move whole: sums and padding belong to all of one. */
    TESS_ASSERT(offset == 0 && bytes > 0 && bytes <= t->bytes);
    struct tess_disk_request *r = tess_alloc(sizeof *r);
    *r = (struct tess_disk_request){.disk = d, .tile = t, .buf = buf, .bytes = bytes, .write = write};
    r->start = tess_seconds();
    if (write) t->written = bytes;
    if (!write && t->written != bytes)
        tess_disk_fail(d, "%s: a tile of %s is read, but %s of it were written", d->file[0].dir,
                       tess_human_bytes((double)bytes), tess_human_bytes((double)t->written));
    bool failed = tess_disk_failure(d) != NULL;
    if (failed && !write) memset(buf, 0xff, bytes);
    while (r->left < t->pieces && t->piece[r->left].offset < bytes) r->left++;
    pthread_mutex_lock(&d->lock);
    if (!d->open++) d->open_since = r->start;
    tess_trace_set(TESS_TRACE_DRIVE, d->open);
    const bool moves = r->left && !failed;
    if (moves) {
        *d->tail[write] = r;
        d->tail[write] = &r->link;
    } else
        tess_disk_complete(d, r);
    pthread_mutex_unlock(&d->lock);
    if (moves) tess_disk_wake(d); /* not before: who is woken on this core would wait for the lock at once */
    return r;
}

static void *async_read(void *base, void *obj, void *buf, off_t offset, size_t bytes)
{
    return start_request(base, obj, buf, offset, bytes, false);
}

static void *async_write(void *base, void *obj, void *buf, off_t offset, size_t bytes)
{
    return start_request(base, obj, buf, offset, bytes, true);
}

static int test_request(void *request)
{
    struct tess_disk_request *r = request;
    return atomic_load_explicit(&r->done, memory_order_acquire);
}

static void wait_request(void *request)
{
    struct tess_disk_request *r = request;
    tess_disk *d = r->disk;
    pthread_mutex_lock(&d->lock);
    while (!atomic_load(&r->done)) pthread_cond_wait(&d->idle, &d->lock);
    pthread_mutex_unlock(&d->lock);
}

static void free_request(void *request)
{
    free(request);
}

static int read_now(void *base, void *obj, void *buf, off_t offset, size_t bytes)
{
    void *r = async_read(base, obj, buf, offset, bytes);
    wait_request(r);
    free_request(r);
    return (int)bytes;
}

static int write_now(void *base, void *obj, const void *buf, off_t offset, size_t bytes)
{
    void *r = async_write(base, obj, (void *)buf, offset, bytes);
    wait_request(r);
    free_request(r);
    return 0;
}

/* ---- opening ---- */

tess_status tess_disk_open(const tess_disk_conf *conf, tess_disk **out)
{
    *out = NULL;
    tess_disk *d = tess_alloc(sizeof *d);
    d->conf = *conf;
    if (!d->conf.depth) d->conf.depth = TESS_DISK_DEPTH;
    if (!d->conf.chunk) d->conf.chunk = TESS_DISK_CHUNK;
    if (d->conf.depth > TESS_DISK_MAX_DEPTH) d->conf.depth = TESS_DISK_MAX_DEPTH;
    TESS_ASSERT(d->conf.chunk % TESS_DISK_BLOCK == 0 && d->conf.chunk <= 1u << 30);
    pthread_mutex_init(&d->space_lock, NULL);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->work, NULL);
    pthread_cond_init(&d->idle, NULL);
    for (int k = 0; k < 2; k++) d->tail[k] = &d->head[k];
    d->wake_fd = -1;
    tess_status status;
    TESS_TRY_DONE(tess_disk_files_open(d));
    TESS_TRY_DONE(tess_disk_movers_start(d));
    snprintf(d->how, sizeof d->how, "%s, %s, %u director%s, %u in flight in each",
             d->ring_ready ? "io_uring" : "threads", d->direct ? "O_DIRECT" : "page cache", d->conf.dirs,
             d->conf.dirs > 1 ? "ies" : "y", d->conf.depth);
    d->conf.dir = NULL; /* was borrowed */
    *out = d;
    return TESS_OK;
done:
    tess_disk_close(d);
    return status;
}

void tess_disk_close(tess_disk *d)
{
    if (!d) return;
    tess_disk_movers_stop(d);
    tess_disk_files_close(d);
    tess_disk_space_close(d);
    pthread_cond_destroy(&d->idle);
    pthread_cond_destroy(&d->work);
    pthread_mutex_destroy(&d->lock);
    pthread_mutex_destroy(&d->space_lock);
    free(d);
}

const char *tess_disk_how(const tess_disk *d)
{
    return d->how;
}

/* ---- StarPU ---- */

static void *plug(void *parameter, starpu_ssize_t bytes)
{
    (void)bytes;
    return parameter;
}

static void unplug(void *base)
{
    (void)base;
} /* tess_disk_close, when the counters have been read */

/* StarPU's own function for what an engine measured; not in its headers, and later versions may keep it to themselves.
 */
extern void _starpu_save_bandwidth_and_latency_disk(double write, double read, double latency_write,
                                                    double latency_read, unsigned node, const char *name)
    __attribute__((weak));

/* Measuring would take StarPU 0.1-0.3 s and tell it nothing: with one node to evict to there is no choice to make, and
 * transfers follow our plan. Without any number schedulers that predict transfers would compute with NaN. */
static int bandwidth(unsigned node, void *base)
{
    (void)base;
    double bytes_per_us = 2000, us = 100;
    if (_starpu_save_bandwidth_and_latency_disk)
        _starpu_save_bandwidth_and_latency_disk(bytes_per_us, bytes_per_us, us, us, node, "tessera");
    return 1;
}

/* Vectors are the only interface that tiles have, and they move by read and write: StarPU never asks for the rest. */
struct starpu_disk_ops tess_disk_ops = {
    .plug = plug,
    .unplug = unplug,
    .bandwidth = bandwidth,
    .alloc = tile_alloc,
    .free = tile_free,
    .read = read_now,
    .write = write_now,
    .async_read = async_read,
    .async_write = async_write,
    .test_request = test_request,
    .wait_request = wait_request,
    .free_request = free_request,
};

tess_status tess_disk_register(tess_disk *d, unsigned *node)
{
    /* StarPU keeps what is freed for the next buffer of exactly that size. RAM has the slab for it; on disk tiles of
     * one size would take the room of another's. */
    starpu_interface_vector_ops.dontcache = 1;
    /* Without a size: at a cap of its own StarPU waits for ever, at ours the run ends. */
    int n = starpu_disk_register(&tess_disk_ops, d, -1);
    if (n < 0) return tess_error(TESS_FAILED, "disk tier", "StarPU does not take it as a memory node (error %d)", -n);
    *node = (unsigned)n;
    return TESS_OK;
}
