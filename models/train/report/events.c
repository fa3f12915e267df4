/* Writing event files, see events_impl.h. */
#include "models/train/report/events_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RECORD = 4096 };

struct tess_events {
    int fd;
    off_t whole; /* bytes of records that are there as a whole */
};

/* ---- records ---- */

/* Returns the checksum of a record, CRC-32C rotated and shifted. */
static uint32_t checksum(const void *data, size_t bytes)
{
    const unsigned char *at = data;
    uint32_t crc = ~0u;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= at[i];
        for (int bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
    }
    crc = ~crc;
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

/* Bytes that are put together; they never fill the buffer. */
struct bytes {
    unsigned char at[RECORD];
    size_t n;
};

static void put(struct bytes *b, const void *data, size_t n)
{
    TESS_ASSERT(b->n + n <= sizeof b->at);
    memcpy(b->at + b->n, data, n);
    b->n += n;
}

/* The least byte first. */
static void put_little(struct bytes *b, uint64_t x, int n)
{
    for (int i = 0; i < n; i++) put(b, &(unsigned char){(unsigned char)(x >> 8 * i)}, 1);
}

/* A record of these bytes, or nothing of it. */
static bool write_record(tess_events *e, const struct bytes *event)
{
    struct bytes record = {.n = 0};
    put_little(&record, event->n, 8);
    put_little(&record, checksum(record.at, 8), 4);
    put(&record, event->at, event->n);
    put_little(&record, checksum(event->at, event->n), 4);
    for (size_t done = 0; done < record.n;) {
        const ssize_t n = pwrite(e->fd, record.at + done, record.n - done, e->whole + (off_t)done);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            const int error = errno, ignored = ftruncate(e->fd, e->whole);
            (void)ignored;
            errno = error;
            return false;
        }
        done += (size_t)n;
    }
    e->whole += (off_t)record.n;
    return true;
}

/* ---- protocol buffers ---- */

enum wire { VARINT, FIXED64, BYTES, FIXED32 = 5 };

static void put_varint(struct bytes *b, uint64_t x)
{
    for (; x > 127; x >>= 7) put_little(b, (x & 127) | 128, 1);
    put_little(b, x, 1);
}

static void put_key(struct bytes *b, unsigned field, enum wire type)
{
    put_varint(b, field << 3 | type);
}

static void put_bytes(struct bytes *b, unsigned field, const void *data, size_t n)
{
    put_key(b, field, BYTES);
    put_varint(b, n);
    put(b, data, n);
}

/* Event: 1 wall_time, 2 step, 3 file_version, 5 summary, 7 session_log. */
static void begin_event(struct bytes *b, int64_t step)
{
    struct timespec now;
    union {
        double x;
        uint64_t bits;
    } time;
    clock_gettime(CLOCK_REALTIME, &now);
    time.x = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
    put_key(b, 1, FIXED64);
    put_little(b, time.bits, 8);
    put_key(b, 2, VARINT);
    put_varint(b, (uint64_t)step);
}

/* Summary: 1 value. Summary.Value: 1 tag, 2 simple_value. */
static void put_scalar(struct bytes *summary, const tess_scalar *s)
{
    struct bytes value = {.n = 0};
    union {
        float x;
        uint32_t bits;
    } number = {.x = (float)s->value};
    put_bytes(&value, 1, s->tag, strlen(s->tag));
    put_key(&value, 2, FIXED32);
    put_little(&value, number.bits, 4);
    put_bytes(summary, 1, value.at, value.n);
}

/* Summary.Value: 1 tag, 8 tensor, 9 metadata. SummaryMetadata: 1 plugin_data, whose 1 is its name. TensorProto: 1
 * dtype, 2 shape, 8 string_val; the shape, of one dimension of 1. */
static void put_text(struct bytes *summary, const char *tag, const char *text)
{
    static const char plugin[] = "text";
    static const unsigned char dim[] = {1 << 3 | VARINT, 1}, string[] = {1 << 3 | VARINT, 7};
    struct bytes value = {.n = 0}, name = {.n = 0}, metadata = {.n = 0}, shape = {.n = 0}, tensor = {.n = 0};
    size_t n = strlen(text);
    if (n > RECORD / 2)
        for (n = RECORD / 2; n && ((unsigned char)text[n] & 0xc0) == 0x80;) n--; /* not within a character */
    put_bytes(&name, 1, plugin, sizeof plugin - 1);
    put_bytes(&metadata, 1, name.at, name.n);
    put_bytes(&shape, 2, dim, sizeof dim);
    put(&tensor, string, sizeof string);
    put_bytes(&tensor, 2, shape.at, shape.n);
    put_bytes(&tensor, 8, text, n);
    put_bytes(&value, 1, tag, strlen(tag));
    put_bytes(&value, 8, tensor.at, tensor.n);
    put_bytes(&value, 9, metadata.at, metadata.n);
    put_bytes(summary, 1, value.at, value.n);
}

/* ---- the file ---- */

tess_status tess_events_open(const char *dir, tess_events **events)
{
    static const char version[] = "brain.Event:2";
    char host[256] = "";
    static int files; /* of this process */
    *events = NULL;
    if (gethostname(host, sizeof host - 1) || !host[0]) strcpy(host, "localhost");
    char *path = tess_format("%s/events.out.tfevents.%010lld.%s.%d.%d", dir, (long long)time(NULL), host, (int)getpid(),
                             files++);
    tess_status status = TESS_OK;
    tess_events *e = tess_alloc(sizeof *e);
    struct bytes b = {.n = 0};
    begin_event(&b, 0);
    put_bytes(&b, 3, version, strlen(version));
    e->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (e->fd < 0 || !write_record(e, &b)) {
        status = tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
        tess_events_close(e);
        e = NULL;
    }
    *events = e;
    free(path);
    return status;
}

bool tess_events_begin(tess_events *e, int64_t step)
{
    static const unsigned char start[] = {1 << 3 | VARINT, 1}; /* SessionLog: 1 status, START */
    struct bytes b = {.n = 0};
    begin_event(&b, step);
    put_bytes(&b, 7, start, sizeof start);
    return write_record(e, &b);
}

bool tess_events_add(tess_events *e, int64_t step, const tess_scalar *scalar, int scalars)
{
    struct bytes b = {.n = 0}, summary = {.n = 0};
    for (int i = 0; i < scalars; i++) put_scalar(&summary, &scalar[i]);
    begin_event(&b, step);
    put_bytes(&b, 5, summary.at, summary.n);
    return write_record(e, &b);
}

bool tess_events_add_text(tess_events *e, int64_t step, const char *tag, const char *text)
{
    struct bytes b = {.n = 0}, summary = {.n = 0};
    put_text(&summary, tag, text);
    begin_event(&b, step);
    put_bytes(&b, 5, summary.at, summary.n);
    return write_record(e, &b);
}

void tess_events_close(tess_events *e)
{
    if (e && e->fd >= 0) close(e->fd);
    free(e);
}
