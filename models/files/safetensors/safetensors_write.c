/* Writing safetensors files, by all ranks at once: what such files look like is told in safetensors.c.
 *
 * All ranks declare the same tensors, so each knows the place of every byte without asking. Rank 0 makes the files at
 * their full size, which is when a full disk is met, and writes the headers; then every rank writes what it holds to
 * its place, whatever the others do, and makes that durable. When all have, rank 0 gives the files their names. So the
 * bytes do not depend on how many ranks there are, or on who holds what.
 */
#include "models/files/safetensors/safetensors_impl.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096, DIRECT_LEAST = 16 * BLOCK, DIRECT_MOST = 1 << 20 };

struct declared {
    json_t *entry; /* owned until it is in a header */
    char *name;    /* owned */
    int64_t rows, cols;
    int64_t members;      /* matrices that are one tensor of the file, this the first; 0: it is a later one */
    uint64_t size, bytes; /* of an element, of all */
    tess_safetensors_dtype
        rounded; /* what floats become when they are written: TESS_ST_F16 or TESS_ST_BF16; else none */
    int shard;
    uint64_t at; /* in the shard's file */
};

struct tess_safetensors_writer {
    char *dir, *stem;
    uint64_t shard_bytes;
    struct declared *tensor;
    size_t count;
    size_t *end;     /* by shard: the tensor behind its last; NULL until it has begun */
    int shards;      /* in all */
    int shard, fd;   /* the one that this rank writes to; fd -1: none */
    int direct;      /* the same past the page cache; -1: not there */
    char *block;     /* whole blocks on their way to it */
    char *path;      /* of it */
    int made;        /* by this rank, which is then rank 0 */
    int64_t written; /* bytes, by this rank */
};

tess_safetensors_writer *tess_safetensors_writer_new(const char *dir, const char *stem, uint64_t shard_bytes)
{
    tess_safetensors_writer *w = tess_alloc(sizeof *w);
    *w = (tess_safetensors_writer){.dir = tess_strdup(dir), .stem = tess_strdup(stem), .shard_bytes = shard_bytes};
    w->fd = w->direct = -1;
    return w;
}

static size_t add(tess_safetensors_writer *w, struct declared t)
{
    if ((w->count & (w->count - 1)) == 0) /* the room doubles */
        w->tensor = tess_realloc(w->tensor, (w->count ? 2 * w->count : 1) * sizeof *w->tensor);
    w->tensor[w->count] = t;
    return w->count++;
}

static size_t declare(tess_safetensors_writer *w, const char *name, const char *dtype, uint64_t size, int rank,
                      const int64_t *dims)
{
    struct declared t = {.name = tess_strdup(name), .rows = 1, .cols = 1, .members = 1, .size = size};
    json_t *shape = json_array();
    TESS_ASSERT(!w->end && rank >= 0 && rank <= TESS_SAFETENSORS_RANK);
    for (int i = 0; i < rank; i++) {
        json_array_append_new(shape, json_integer(dims[i]));
        *(i ? &t.cols : &t.rows) *= dims[i];
    }
    t.bytes = (uint64_t)t.rows * (uint64_t)t.cols * t.size;
    t.entry = json_pack("{s:s, s:o}", "dtype", dtype, "shape", shape);
    TESS_ASSERT(t.entry);
    return add(w, t);
}

size_t tess_safetensors_declare(tess_safetensors_writer *w, const char *name, tess_dtype dtype, int rank,
                                const int64_t *dims)
{
    static const char *const written[TESS_DTYPE_COUNT] = {
        [TESS_F32] = "F32", [TESS_BF16] = "BF16", [TESS_F16] = "F16", [TESS_I32] = "I32"};
    return declare(w, name, written[dtype], tess_dtype_size(dtype), rank, dims);
}

size_t tess_safetensors_declare_like(tess_safetensors_writer *w, const tess_safetensor *t)
{
    return declare(w, t->name, tess_st_name(t->dtype), tess_st_size(t->dtype), t->rank, t->dims);
}

size_t tess_safetensors_declare_floats(tess_safetensors_writer *w, const char *name, tess_safetensors_dtype stored,
                                       int rank, const int64_t *dims)
{
    if (stored == TESS_ST_F32) return tess_safetensors_declare(w, name, TESS_F32, rank, dims);
    TESS_ASSERT(stored == TESS_ST_F16 || stored == TESS_ST_BF16);
    const size_t i = declare(w, name, stored == TESS_ST_F16 ? "F16" : "BF16", sizeof(uint16_t), rank, dims);
    w->tensor[i].rounded = stored;
    return i;
}

/* The one that was declared as (members, rows, columns) becomes its first matrix. */
size_t tess_safetensors_declare_stack(tess_safetensors_writer *w, const char *name, tess_safetensors_dtype stored,
                                      int64_t members, const int64_t dims[2])
{
    const size_t first = tess_safetensors_declare_floats(w, name, stored, 3, (int64_t[]){members, dims[0], dims[1]});
    struct declared *t = &w->tensor[first];
    t->rows = dims[0], t->cols = dims[1], t->members = members;
    t->bytes /= (uint64_t)members;
    struct declared other = *t;
    other.entry = NULL, other.name = NULL, other.members = 0;
    for (int64_t k = 1; k < members; k++) add(w, other);
    return first;
}

/* Fills shards in the order declared. An empty set is one empty file. */
static void plan_shards(tess_safetensors_writer *w)
{
    uint64_t bytes = 0;
    w->end = tess_alloc((w->count + 1) * sizeof *w->end);
    for (size_t i = 0; i < w->count; i++) {
        const uint64_t all = w->tensor[i].bytes * (uint64_t)w->tensor[i].members;
        if (bytes && w->tensor[i].members && bytes + all > w->shard_bytes) w->end[w->shards++] = i, bytes = 0;
        bytes += all;
        w->tensor[i].shard = w->shards;
    }
    w->end[w->shards++] = w->count;
}

/* ---- names ---- */

static char *shard_name(const tess_safetensors_writer *w, int shard)
{
    if (w->shards == 1) return tess_format("%s.safetensors", w->stem);
    return tess_format("%s-%05d-of-%05d.safetensors", w->stem, shard + 1, w->shards);
}

static char *shard_path(const tess_safetensors_writer *w, int shard, const char *suffix)
{
    char *name = shard_name(w, shard), *path = tess_format("%s/%s%s", w->dir, name, suffix);
    free(name);
    return path;
}

static char *index_path(const tess_safetensors_writer *w, const char *suffix)
{
    return tess_format("%s/%s.safetensors.index.json%s", w->dir, w->stem, suffix);
}

static const char unfinished[] = ".tmp"; /* behind the names of files until they are whole */

/* ---- one file ---- */

static tess_status failed(const char *path, const char *what)
{
    return tess_error(TESS_FAILED, path, "cannot be %s: %s", what, strerror(errno));
}

static tess_status write_at(int fd, const char *path, uint64_t at, const void *data, size_t bytes)
{
    for (const char *p = data; bytes;) {
        ssize_t n = pwrite(fd, p, bytes, (off_t)at);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return failed(path, "written");
        p += n;
        at += (uint64_t)n;
        bytes -= (size_t)n;
    }
    return TESS_OK;
}

/* Whole blocks go past the page cache, where they would take a core's time and what RAM a cap leaves to others. What is
 * around them may lie in blocks that other ranks write to as well, and goes through it. */
static tess_status write_blocks(tess_safetensors_writer *w, uint64_t at, const void *data, size_t bytes)
{
    const char *p = data;
    const size_t before = (size_t)(-at & (BLOCK - 1));
    if (w->direct < 0 || bytes < DIRECT_LEAST) return write_at(w->fd, w->path, at, data, bytes);
    TESS_TRY(write_at(w->fd, w->path, at, p, before));
    at += before, p += before, bytes -= before;
    while (bytes >= BLOCK && w->direct >= 0) {
        const size_t n = (bytes < DIRECT_MOST ? bytes : DIRECT_MOST) & ~(size_t)(BLOCK - 1);
        memcpy(w->block, p, n);
        const ssize_t done = pwrite(w->direct, w->block, n, (off_t)at);
        if (done < 0 && errno == EINTR) continue;
        if (done < 0 && errno != EINVAL) return failed(w->path, "written");
        const size_t whole = done < 0 ? 0 : (size_t)done & ~(size_t)(BLOCK - 1);
        if (!whole) close(w->direct), w->direct = -1; /* it is not for this file system */
        at += whole, p += whole, bytes -= whole;
    }
    return write_at(w->fd, w->path, at, p, bytes);
}

/* All of the file's blocks, so that no rank runs out of them later; its size alone where the file system cannot. */
static tess_status reserve(int fd, const char *path, uint64_t bytes)
{
    int error;
    while ((error = posix_fallocate(fd, 0, (off_t)bytes)) == EINTR) continue;
    if (error == EINVAL || error == EOPNOTSUPP) error = ftruncate(fd, (off_t)bytes) ? errno : 0;
    errno = error;
    return error ? failed(path, "written") : TESS_OK;
}

/* Makes it durable first; EINVAL: nothing of the kind exists for what this is. */
static tess_status close_file(int fd, const char *path)
{
    tess_status status = fsync(fd) == 0 || errno == EINVAL ? TESS_OK : failed(path, "written");
    if (close(fd) != 0 && status == TESS_OK) status = failed(path, "written");
    return status;
}

/* Ends with a new file of `bytes` that begins with `begin` and goes on for `more`. */
static tess_status make_file(const char *path, const void *begin, size_t bytes, uint64_t more)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) return failed(path, "created");
    tess_status status = more ? reserve(fd, path, bytes + more) : TESS_OK;
    if (status == TESS_OK) status = write_at(fd, path, 0, begin, bytes);
    if (status != TESS_OK) {
        close(fd);
        return status;
    }
    return close_file(fd, path);
}

/* ---- the layout, and the files at their full size ---- */

/* Sets the places of a shard's tensors. What comes before them in the file, `*bytes` in a new string: the length
 * of the header, and the header. */
static char *lay_out(tess_safetensors_writer *w, int shard, size_t *bytes, uint64_t *tensors)
{
    TESS_FREED_JSON json_t *header = json_pack("{s:{s:s}}", "__metadata__", "format", "pt");
    uint64_t at = 0;
    const size_t first = shard ? w->end[shard - 1] : 0;
    for (size_t i = first; i < w->end[shard]; i++) {
        struct declared *t = &w->tensor[i];
        const uint64_t end = at + t->bytes * (uint64_t)t->members;
        t->at = at;
        at += t->bytes;
        if (!t->members) continue;
        TESS_ASSERT(!json_object_get(header, t->name)); /* declared twice */
        json_object_set_new(t->entry, "data_offsets", json_pack("[I, I]", (json_int_t)t->at, (json_int_t)end));
        TESS_ASSERT(json_object_set_new(header, t->name, t->entry) == 0); /* a name in UTF-8 */
        t->entry = NULL;
    }
    TESS_FREED char *text = json_dumps(header, JSON_COMPACT);
    TESS_ASSERT(text);
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8; /* the tensors begin aligned */
    char *begin = tess_alloc(sizeof padded + padded);
    memcpy(begin, &padded, sizeof padded);
    memset(begin + sizeof padded, ' ', padded);
    memcpy(begin + sizeof padded, text, length);
    *bytes = sizeof padded + padded;
    *tensors = at;
    for (size_t i = first; i < w->end[shard]; i++) w->tensor[i].at += *bytes;
    return begin;
}

tess_status tess_safetensors_writer_begin(tess_safetensors_writer *w)
{
    tess_status status = TESS_OK;
    TESS_ASSERT(!w->end);
    plan_shards(w);
    for (int s = 0; s < w->shards; s++) {
        size_t bytes;
        uint64_t tensors;
        TESS_FREED char *begin = lay_out(w, s, &bytes, &tensors);
        if (tess_rank() == 0 && status == TESS_OK) {
            TESS_FREED char *path = shard_path(w, s, unfinished);
            w->made = s + 1;
            status = make_file(path, begin, bytes, tensors);
        }
    }
    return tess_ranks_agree(status);
}

/* ---- rectangles ---- */

tess_status tess_safetensors_writer_settle(tess_safetensors_writer *w)
{
    if (w->fd < 0) return TESS_OK;
    tess_status status = close_file(w->fd, w->path);
    if (w->direct >= 0) close(w->direct);
    free(w->path);
    w->fd = w->direct = -1;
    w->path = NULL;
    return status;
}

/* One shard at a time is open, and what was written to it is durable before the next: else a fast writer would fill RAM
 * with what a slow disk has yet to take. */
static tess_status enter_shard(tess_safetensors_writer *w, int shard)
{
    if (w->fd >= 0 && w->shard == shard) return TESS_OK;
    TESS_TRY(tess_safetensors_writer_settle(w));
    char *path = shard_path(w, shard, unfinished);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        tess_status status = tess_error(TESS_FAILED, path, "cannot be opened: %s%s", strerror(errno),
                                        tess_rank() ? " (do all ranks see the same files there?)" : "");
        free(path);
        return status;
    }
    w->fd = fd;
    w->shard = shard;
    w->path = path;
    void *block = w->block;
    if (block || !posix_memalign(&block, BLOCK, DIRECT_MOST)) w->block = block;
    if (w->block) w->direct = open(path, O_WRONLY | O_DIRECT | O_CLOEXEC);
    return TESS_OK;
}

/* n elements from `first` on of what is given as floats, to their place. */
static tess_status write_rounded(tess_safetensors_writer *w, const struct declared *t, uint64_t first,
                                 const float *data, size_t n)
{
    enum { AT_ONCE = 65536 };
    uint16_t rounded[AT_ONCE];
    for (size_t done = 0, some; done < n; done += some) {
        some = n - done < AT_ONCE ? n - done : AT_ONCE;
        for (size_t i = 0; i < some; i++)
            rounded[i] = t->rounded == TESS_ST_F16 ? tess_to_f16(data[done + i]) : tess_to_bf16(data[done + i]);
        TESS_TRY(write_blocks(w, t->at + (first + done) * t->size, rounded, some * t->size));
    }
    return TESS_OK;
}

tess_status tess_safetensors_write(tess_safetensors_writer *w, size_t tensor, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols, const void *data)
{
    TESS_ASSERT(w->end && tensor < w->count);
    const struct declared *t = &w->tensor[tensor];
    TESS_ASSERT(row >= 0 && rows >= 0 && row <= t->rows - rows && col >= 0 && cols >= 0 && col <= t->cols - cols);
    if (rows == 0 || cols == 0) return TESS_OK;
    TESS_TRY(enter_shard(w, t->shard));
    bool whole = cols == t->cols; /* rows of the tensor: one behind the other in the file as well */
    const size_t n = (size_t)(whole ? rows * cols : cols), bytes = n * t->size;
    for (int64_t r = 0; r < (whole ? 1 : rows); r++) {
        const uint64_t first = (uint64_t)((row + r) * t->cols + col);
        if (t->rounded)
            TESS_TRY(write_rounded(w, t, first, (const float *)data + (size_t)r * n, n));
        else
            TESS_TRY(write_blocks(w, t->at + first * t->size, (const char *)data + (size_t)r * bytes, bytes));
    }
    w->written += (int64_t)((size_t)(rows * cols) * t->size);
    return TESS_OK;
}

/* ---- the end ---- */

static tess_status write_index(const tess_safetensors_writer *w)
{
    json_t *map = json_object();
    uint64_t bytes = 0;
    for (int s = 0; s < w->shards; s++) {
        TESS_FREED char *name = shard_name(w, s);
        for (size_t i = s ? w->end[s - 1] : 0; i < w->end[s]; i++) {
            bytes += w->tensor[i].bytes;
            if (!w->tensor[i].members) continue;
            TESS_ASSERT(!json_object_get(map, w->tensor[i].name)); /* declared twice */
            json_object_set_new(map, w->tensor[i].name, json_string(name));
        }
    }
    TESS_FREED_JSON json_t *root =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)bytes, "weight_map", map);
    TESS_FREED char *text = json_dumps(root, JSON_INDENT(2)), *path = index_path(w, unfinished);
    TESS_ASSERT(text);
    return make_file(path, text, strlen(text), 0);
}

static tess_status rename_and_free(char *from, char *to)
{
    tess_status status = rename(from, to) == 0 ? TESS_OK : failed(to, "put in its place");
    free(from);
    free(to);
    return status;
}

/* The shards, then what names them; then goes what an earlier set in the other form left, which would win or lie. */
static tess_status publish(const tess_safetensors_writer *w)
{
    if (w->shards > 1) TESS_TRY(write_index(w));
    for (int s = 0; s < w->shards; s++) TESS_TRY(rename_and_free(shard_path(w, s, unfinished), shard_path(w, s, "")));
    if (w->shards > 1) TESS_TRY(rename_and_free(index_path(w, unfinished), index_path(w, "")));
    TESS_FREED char *stale = w->shards > 1 ? tess_format("%s/%s.safetensors", w->dir, w->stem) : index_path(w, "");
    tess_status status = unlink(stale) == 0 || errno == ENOENT ? TESS_OK : failed(stale, "removed");
    TESS_TRY(status);
    int fd = open(w->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    return fd < 0 ? failed(w->dir, "opened") : close_file(fd, w->dir);
}

/* Every byte came from somewhere: a hole in a file would be read as zeros. Of ranks that hold the same more than one
 * may have written it. */
static void check_covered(const tess_safetensors_writer *w)
{
    int64_t written = w->written, declared = 0;
    for (size_t i = 0; i < w->count; i++) declared += (int64_t)w->tensor[i].bytes;
    tess_ranks_sum_counts(&written, 1);
    TESS_ASSERT(written >= declared);
}

static void remove_and_free(char *path)
{
    unlink(path);
    free(path);
}

static void free_writer(tess_safetensors_writer *w)
{
    for (size_t i = 0; i < w->count; i++) {
        json_decref(w->tensor[i].entry);
        free(w->tensor[i].name);
    }
    free(w->block);
    free(w->tensor);
    free(w->end);
    free(w->stem);
    free(w->dir);
    free(w);
}

tess_status tess_safetensors_writer_end(tess_safetensors_writer *w, tess_status status)
{
    TESS_ASSERT(w->end);
    tess_status left = tess_safetensors_writer_settle(w);
    status = tess_ranks_agree(status == TESS_OK ? left : status);
    if (status == TESS_OK) {
        check_covered(w);
        status = tess_ranks_agree(tess_rank() == 0 ? publish(w) : TESS_OK);
    }
    if (status != TESS_OK && tess_rank() == 0) {
        for (int s = 0; s < w->made; s++) remove_and_free(shard_path(w, s, unfinished));
        remove_and_free(index_path(w, unfinished));
    }
    free_writer(w);
    return status;
}
