/* The queue between StarPU's workers, which hand in transfers of whole tiles, and the threads that move the bytes,
 * which take them piece by piece. Every transfer completes, also after a failure. */
#include "runtime/disk/disk.h"
#include "runtime/progress/progress.h"
#include "runtime/trace/trace.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- failures ---- */

void tess_disk_fail(tess_disk *d, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    pthread_mutex_lock(&d->lock);
    bool first = !d->failure[0];
    if (first) vsnprintf(d->failure, sizeof d->failure, format, ap);
    pthread_mutex_unlock(&d->lock);
    va_end(ap);
    if (!first) return;
    if (d->conf.failed) d->conf.failed(d->failure);
    atomic_store(&d->failed, true);
}

const char *tess_disk_failure(const tess_disk *d)
{
    return atomic_load(&d->failed) ? d->failure : NULL;
}

/* ---- requests ---- */

void tess_disk_wake(tess_disk *d)
{
    pthread_cond_broadcast(&d->work);
    if (d->wake_fd >= 0) {
        uint64_t one = 1;
        ssize_t n = write(d->wake_fd, &one, sizeof one);
        TESS_ASSERT(n == sizeof one);
    }
}

static void trace(struct tess_disk_request *r, double now)
{
    struct tess_disk_tile *t = r->tile;
    const double asked = t->asked[r->write];
    t->asked[r->write] = 0;
    t->arrival = r->write ? t->arrival : tess_trace_arrival();
    tess_trace_add(&(tess_trace_event){.kind = r->write ? TESS_TRACE_WRITE : TESS_TRACE_READ,
                                       .begin = r->began,
                                       .end = now,
                                       .asked = asked > 0 && asked < r->start ? asked : r->start,
                                       .name = t->kind ? t->kind : "tile",
                                       .of = t->label,
                                       .bytes = r->bytes,
                                       .arrival = r->write ? 0 : t->arrival});
}

void tess_disk_complete(tess_disk *d, struct tess_disk_request *r)
{
    double now = tess_seconds();
    if (tess_traces() && r->began > 0) trace(r, now);
    *(r->write ? &d->use.write_seconds : &d->use.read_seconds) += now - r->start;
    *(r->write ? &d->use.writes : &d->use.reads) += 1;
    if (!--d->open) d->use.busy_seconds += now - d->open_since;
    tess_trace_set(TESS_TRACE_DRIVE, d->open);
    atomic_store_explicit(&r->done, true, memory_order_release);
    pthread_cond_broadcast(&d->idle);
}

/* ---- pieces: called by the threads that move ---- */

/* Reads and writes take turns, piece by piece: a task waits for the former, room for the next tile for the latter. */
static struct tess_disk_request *pop(tess_disk *d, struct tess_disk_piece **piece, bool wait)
{
    while (!d->head[0] && !d->head[1]) {
        if (!wait || d->stop) return NULL;
        pthread_cond_wait(&d->work, &d->lock);
    }
    int kind = d->head[d->turn] ? d->turn : !d->turn;
    d->turn = !kind;
    struct tess_disk_request *r = d->head[kind];
    if (!r->next && tess_traces()) r->began = tess_seconds();
    *piece = &r->tile->piece[r->next++];
    if (r->next == r->tile->pieces || r->tile->piece[r->next].offset >= r->bytes) {
        d->head[kind] = r->link;
        if (!r->link) d->tail[kind] = &d->head[kind];
    }
    return r;
}

/* O_DIRECT takes whole blocks at aligned addresses; what is neither goes through the slot's own buffer. */
static void prepare(tess_disk *d, struct tess_disk_slot *s)
{
    struct tess_disk_request *r = s->request;
    char *mine = r->buf + s->piece->offset;
    size_t rest = r->bytes - s->piece->offset;
    s->payload = rest < s->piece->bytes ? rest : s->piece->bytes;
    s->file = tess_disk_place(d, s->piece->at, &s->at);
    s->bytes = d->direct ? (s->payload + TESS_DISK_BLOCK - 1) / TESS_DISK_BLOCK * TESS_DISK_BLOCK : s->payload;
    s->data = mine;
    s->moved = 0;
    if (d->direct && (s->bytes != s->payload || (uintptr_t)mine % TESS_DISK_BLOCK)) {
        if (!s->bounce && posix_memalign((void **)&s->bounce, TESS_DISK_BLOCK, d->conf.chunk)) s->bounce = NULL;
        TESS_ASSERT(s->bounce);
        s->data = s->bounce;
        if (r->write) {
            memcpy(s->bounce, mine, s->payload);
            memset(s->bounce + s->payload, 0, s->bytes - s->payload);
        }
    }
    if (r->write && d->conf.checksum) s->piece->sum = tess_disk_sum(mine, s->payload, s->piece->at);
}

static bool finish_piece(tess_disk *d, struct tess_disk_slot *s)
{
    struct tess_disk_request *r = s->request;
    pthread_mutex_lock(&d->lock);
    if (!d->failed) *(r->write ? &d->use.write_bytes : &d->use.read_bytes) += s->payload;
    const bool ends = !--r->left;
    if (ends) {
        if (d->failed && !r->write) memset(r->buf, 0xff, r->bytes);
        tess_disk_complete(d, r);
    }
    pthread_mutex_unlock(&d->lock);
    if (ends) tess_idle_wake();
    return true;
}

bool tess_disk_take(tess_disk *d, struct tess_disk_slot *s, bool wait)
{
    for (;;) {
        pthread_mutex_lock(&d->lock);
        s->request = pop(d, &s->piece, wait);
        s->error = 0;
        if (s->request) {
            bool write = s->request->write;
            uint64_t count = write ? ++d->pieces_written : ++d->pieces_read;
            if (count == (write ? d->conf.faults.fail_write_at : d->conf.faults.fail_read_at)) s->error = EIO;
            s->flip = !write && count == d->conf.faults.flip_bit_at;
            while (!write && count == d->conf.faults.stall_read_at && !d->stop) pthread_cond_wait(&d->work, &d->lock);
            s->payload = 0;
        }
        pthread_mutex_unlock(&d->lock);
        if (!s->request) return false;
        if (!tess_disk_failure(d)) break;
        finish_piece(d, s);
    }
    prepare(d, s);
    return true;
}

/* The piece has arrived: into the tile's memory, and is it what was written? */
static void deliver(tess_disk *d, struct tess_disk_slot *s)
{
    char *mine = s->request->buf + s->piece->offset;
    if (s->data != mine) memcpy(mine, s->data, s->payload);
    if (s->flip) mine[s->payload / 2] ^= 4;
    if (d->conf.checksum && tess_disk_sum(mine, s->payload, s->piece->at) != s->piece->sum)
        tess_disk_fail(d,
                       "%s, byte %llu: piece %u of a tile of %s does not read back as it was written (its checksum "
                       "differs; drive, cable or memory corrupts data)",
                       s->file->name, (unsigned long long)s->at, (unsigned)(s->piece - s->request->tile->piece),
                       tess_human_bytes((double)s->request->bytes));
}

bool tess_disk_finish(tess_disk *d, struct tess_disk_slot *s, int result)
{
    struct tess_disk_request *r = s->request;
    if (s->error) result = -s->error;
    if (result == -EINTR || result == -EAGAIN) return false;
    if (result > 0) {
        s->moved += (size_t)result;
        if (s->moved < s->bytes && !(d->direct && s->moved % TESS_DISK_BLOCK)) return false;
    }
    if (s->moved < s->bytes) {
        tess_disk_fail(d, "%s, byte %llu: the disk tier failed %s %zu bytes after %zu: %s", s->file->name,
                       (unsigned long long)s->at, r->write ? "writing" : "reading", s->bytes, s->moved,
                       result < 0 ? strerror(-result) : "the file ends there");
    } else if (!r->write)
        deliver(d, s);
    return finish_piece(d, s);
}
