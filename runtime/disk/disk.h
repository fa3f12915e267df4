/* disk_impl: the tier below RAM. Tiles that StarPU evicts go to one preallocated file a directory, through io_uring and
 * past the page cache:
 *
 *     tess_disk *disk;
 *     tess_disk_conf conf = {.dir = (const char *[]){"/nvme0", "/nvme1"}, .dirs = 2, .bytes = 60ull << 30};
 *     TESS_TRY(tess_disk_open(&conf, &disk));           // before starpu_init or after it
 *     TESS_TRY(tess_disk_register(disk, &node));        // after it: StarPU may evict from now on
 *     ...                                               // tasks; tess_disk_failure(disk) says whether the data is good
 *     starpu_shutdown();
 *     tess_disk_close(disk);
 *
 * disk.c is what StarPU sees; ring.c, below it, moves the bytes that it takes from queue.c; file.c has the files,
 * space.c the places in them and the checksums. No other room sees this header.
 *
 * The space of n directories is one line of bytes dealt out in chunks of 2 MiB, chunk k lying in directory k % n, so
 * that a single tile of 16 MiB is read by all drives at once. A tile is cut where chunks end, when it gets its place;
 * the pieces are what is queued, moved and summed.
 *
 * StarPU 1.3 cannot be told that a transfer failed: it would abort, or wait for ever. So every request completes. The
 * first failure sticks to the disk and is handed to conf.failed before the request that met it completes; from then on
 * nothing touches the drives, writes complete at once and what is read is all ones (NaN): the run drains and ends. */
#ifndef TESS_DISK_H
#define TESS_DISK_H
#include "runtime/base/fault_hooks.h"
#include <liburing.h>
#include <pthread.h>
#include <stdatomic.h>

typedef struct tess_disk tess_disk;

typedef struct tess_disk_conf {
    const char *const *dir; /* one a drive; borrowed during tess_disk_open */
    unsigned dirs;
    uint64_t bytes;                   /* of all directories together; rounded down to whole chunks in each */
    bool checksum;                    /* of each piece: kept in RAM when it is written, compared when it is read */
    unsigned depth;                   /* pieces under way in each directory; 0: TESS_DISK_DEPTH */
    size_t chunk;                     /* multiple of 4096; 0: TESS_DISK_CHUNK */
    void (*failed)(const char *text); /* the first failure, "WHERE: WHAT"; from any thread, once; may be NULL */

    bool threads;  /* without io_uring */
    bool buffered; /* without O_DIRECT */
    bool named;    /* keep the file's name while it is in use, as where the file system has no O_TMPFILE */

    tess_fault_hooks faults;
} tess_disk_conf;
enum { TESS_DISK_DEPTH = 16, TESS_DISK_MAX_DEPTH = 64, TESS_DISK_CHUNK = 2 << 20, TESS_DISK_MAX_DIRS = 16 };

/* Cuts "DIR:DIR" apart, in place; returns how many there are. */
unsigned tess_disk_dirs(char *list, const char *dir[TESS_DISK_MAX_DIRS]);
/* Opens a disk tier: TESS_INVALID when a directory cannot hold its share. Removes what crashed runs left there. */
tess_status tess_disk_open(const tess_disk_conf *conf, tess_disk **out) TESS_NODISCARD;
/* Closes it, after starpu_shutdown, or without it when the disk was never registered. The files go. */
void tess_disk_close(tess_disk *d);
/* Makes it a memory node of StarPU's, which evicts to it. */
tess_status tess_disk_register(tess_disk *d, unsigned *node) TESS_NODISCARD;
/* Returns the first failure; NULL while there was none. */
const char *tess_disk_failure(const tess_disk *d);

typedef struct tess_disk_use {
    uint64_t capacity, used, peak;      /* bytes of the files, and what tiles take of them */
    uint64_t read_bytes, write_bytes;   /* moved since tess_disk_open, padding excluded */
    uint64_t reads, writes;             /* tiles */
    double read_seconds, write_seconds; /* from request to completion, summed over requests */
    double busy_seconds;                /* during which at least one request was under way */
} tess_disk_use;
/* Reads the counters. */
void tess_disk_use_read(tess_disk *d, tess_disk_use *out);
/* Describes the disk for reports: "io_uring, O_DIRECT, 2 directories, 8 in flight in each". */
const char *tess_disk_how(const tess_disk *d);

/* What StarPU calls. */
extern struct starpu_disk_ops tess_disk_ops;

/* ---- shared by the five files ----------------------------------------------------------------------------------- */

enum { TESS_DISK_BLOCK = 4096 }; /* what O_DIRECT asks of addresses, offsets and sizes */

/* A part of a tile within one chunk of one file. */
struct tess_disk_piece {
    uint64_t at;     /* in the space of all directories */
    uint64_t offset; /* in the tile */
    uint32_t bytes;  /* multiple of a block; the last piece of a tile is padded */
    uint64_t sum;
};
struct tess_disk_tile {
    size_t bytes;   /* as asked for */
    size_t written; /* bytes of the last write; 0: none yet */
    unsigned pieces;
    struct tess_disk_piece *piece; /* none when the disk had failed before: such a tile lies nowhere */
    /* For the trace: what it is called; when it was asked for last, to be read and to be written; its last arrival. */
    const char *label, *kind;
    double asked[2];
    uint32_t arrival;
};

/* One transfer of a whole tile. */
struct tess_disk_request {
    tess_disk *disk;
    struct tess_disk_tile *tile;
    char *buf;
    size_t bytes;
    bool write;
    unsigned next;       /* piece to queue */
    unsigned left;       /* pieces that are not done */
    double start, began; /* began: on the drive; 0: it did not, or is not traced */
    atomic_bool done;
    struct tess_disk_request *link;
};

struct tess_disk_file {
    int fd;
    int lock;         /* another opening of the same file, which holds the lock; -1 for a file without a name */
    char *dir, *name; /* for messages where there is no lock */
};

struct tess_disk_range {
    uint64_t at, bytes;
};

/* A piece under way. */
struct tess_disk_slot {
    struct tess_disk_request *request;
    struct tess_disk_piece *piece;
    struct tess_disk_file *file;
    uint64_t at;    /* in the file */
    char *data;     /* the tile's memory, or the bounce buffer */
    size_t bytes;   /* to move, padding included */
    size_t payload; /* of them the tile's */
    size_t moved;
    int error;    /* of an injected failure */
    bool flip;    /* injected: turn a bit of what was read */
    char *bounce; /* a chunk, aligned; made when first needed */
};

struct tess_disk {
    tess_disk_conf conf;
    struct tess_disk_file file[TESS_DISK_MAX_DIRS];
    bool direct; /* O_DIRECT holds */
    char how[96];

    pthread_mutex_t space_lock;
    struct tess_disk_range *range; /* what is free: ordered, never touching each other */
    unsigned ranges, room;
    uint64_t capacity, used, peak;

    pthread_mutex_t lock;                         /* queue, counters, failure */
    pthread_cond_t work, idle;                    /* for the threads that move; for those who wait for a request */
    struct tess_disk_request *head[2], **tail[2]; /* reads, writes */
    int turn;
    unsigned open; /* requests not done */
    double open_since;
    bool stop;
    struct tess_disk_use use;
    uint64_t pieces_read, pieces_written; /* counted for injected failures */

    atomic_bool failed;
    char failure[512];

    struct io_uring ring;
    bool ring_ready;
    int wake_fd; /* eventfd that the ring reads; -1 with threads */
    uint64_t woken;
    struct tess_disk_slot *slot;
    unsigned slots;
    pthread_t thread[64];
    unsigned threads;
};

/* ---- queue.c ---- */

/* Notes a failure; the first sticks. */
void tess_disk_fail(tess_disk *d, const char *format, ...) TESS_PRINTF(2, 3);
/* Wakes who moves: there is something in the queue. */
void tess_disk_wake(tess_disk *d);
/* Ends a request, with the lock held, all of whose pieces are done. Its owner may free it as soon as it sees `done`. */
void tess_disk_complete(tess_disk *d, struct tess_disk_request *r);
/* Fills the slot with the next piece in the queue, ready to move; false when there is none. With `wait` it waits for
 * one, and false says that the disk closes. */
bool tess_disk_take(tess_disk *d, struct tess_disk_slot *s, bool wait);
/* Takes what became of the slot's transfer, bytes moved or -errno: true when the piece is done, false when the rest of
 * it is to be moved. */
bool tess_disk_finish(tess_disk *d, struct tess_disk_slot *s, int result);

/* ---- file.c ---- */

/* Makes the files and allocates their blocks. */
tess_status tess_disk_files_open(tess_disk *d);
/* Closes and removes them. */
void tess_disk_files_close(tess_disk *d);

/* ---- space.c ---- */

/* Returns the file in which a byte of the space lies, and where in it. */
struct tess_disk_file *tess_disk_place(tess_disk *d, uint64_t at, uint64_t *offset);
/* Makes a space of `bytes`, all of them free. */
void tess_disk_space_open(tess_disk *d, uint64_t bytes);
/* Forgets it. */
void tess_disk_space_close(tess_disk *d);
/* Finds a place for a tile and cuts it into pieces; false: the disk is full. */
bool tess_disk_space_take(tess_disk *d, struct tess_disk_tile *t);
/* Takes its place back. */
void tess_disk_space_give(tess_disk *d, struct tess_disk_tile *t);
/* Sums bytes up; the seed is their place. */
uint64_t tess_disk_sum(const void *data, size_t bytes, uint64_t seed);

/* ---- ring.c ---- */

/* Starts the threads that move. */
tess_status tess_disk_movers_start(tess_disk *d);
/* Ends them. */
void tess_disk_movers_stop(tess_disk *d);
#endif
