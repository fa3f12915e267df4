/* The disk tier's space, a line of bytes over all directories in which tiles have their places, and the checksums of
 * what lies there. */
#include "runtime/disk/disk.h"
#include <stdlib.h>
#include <string.h>

unsigned tess_disk_dirs(char *list, const char *dir[TESS_DISK_MAX_DIRS])
{
    unsigned dirs = 0;
    while (dirs < TESS_DISK_MAX_DIRS && (dir[dirs] = strsep(&list, ":")))
        if (*dir[dirs]) dirs++;
    return dirs;
}

/* ---- space ---- */

struct tess_disk_file *tess_disk_place(tess_disk *d, uint64_t at, uint64_t *offset)
{
    uint64_t chunk = at / d->conf.chunk;
    *offset = chunk / d->conf.dirs * d->conf.chunk + at % d->conf.chunk;
    return &d->file[chunk % d->conf.dirs];
}

void tess_disk_space_open(tess_disk *d, uint64_t bytes)
{
    d->capacity = bytes;
    d->range = tess_alloc(sizeof *d->range);
    d->range[0] = (struct tess_disk_range){0, bytes};
    d->ranges = d->room = 1;
}

void tess_disk_space_close(tess_disk *d)
{
    free(d->range);
}

/* Cuts bytes off a range, at its end if `top`. */
static struct tess_disk_range cut(tess_disk *d, unsigned i, uint64_t bytes, bool top)
{
    struct tess_disk_range *r = &d->range[i], got = {top ? r->at + r->bytes - bytes : r->at, bytes};
    if (!top) r->at += bytes;
    r->bytes -= bytes;
    if (!r->bytes) memmove(r, r + 1, (--d->ranges - i) * sizeof *r);
    return got;
}

/* The whole from the smallest range that holds it, else what the largest has. Tiles below a chunk come from the far
 * end, so that large ones stay on the borders of chunks. */
static struct tess_disk_range take_range(tess_disk *d, uint64_t bytes)
{
    bool small = bytes < d->conf.chunk;
    unsigned best = 0;
    for (unsigned i = 1; i < d->ranges; i++) {
        uint64_t have = d->range[i].bytes, least = d->range[best].bytes;
        bool fits = have >= bytes, best_fits = least >= bytes;
        if (fits != best_fits ? fits : fits ? (small ? have <= least : have < least) : have > least) best = i;
    }
    return cut(d, best, bytes < d->range[best].bytes ? bytes : d->range[best].bytes, small);
}

static void give_range(tess_disk *d, uint64_t at, uint64_t bytes)
{
    unsigned low = 0, high = d->ranges; /* the first range behind `at` */
    while (low < high) {
        unsigned mid = (low + high) / 2;
        if (d->range[mid].at < at)
            low = mid + 1;
        else
            high = mid;
    }
    bool left = low > 0 && d->range[low - 1].at + d->range[low - 1].bytes == at;
    bool right = low < d->ranges && at + bytes == d->range[low].at;
    if (left) {
        d->range[low - 1].bytes += bytes;
        if (right) {
            d->range[low - 1].bytes += d->range[low].bytes;
            memmove(&d->range[low], &d->range[low + 1], (--d->ranges - low) * sizeof *d->range);
        }
    } else if (right) {
        d->range[low].at = at;
        d->range[low].bytes += bytes;
    } else {
        if (d->ranges == d->room) d->range = tess_realloc(d->range, (d->room *= 2) * sizeof *d->range);
        memmove(&d->range[low + 1], &d->range[low], (d->ranges++ - low) * sizeof *d->range);
        d->range[low] = (struct tess_disk_range){at, bytes};
    }
}

bool tess_disk_space_take(tess_disk *d, struct tess_disk_tile *t)
{
    uint64_t need = (t->bytes + TESS_DISK_BLOCK - 1) / TESS_DISK_BLOCK * TESS_DISK_BLOCK, offset = 0;
    if (need > d->capacity - d->used) return false;
    d->used += need;
    if (d->used > d->peak) d->peak = d->used;
    unsigned room = 0;
    while (offset < need) {
        struct tess_disk_range r = take_range(d, need - offset);
        while (r.bytes) {
            uint64_t bytes = d->conf.chunk - r.at % d->conf.chunk;
            if (bytes > r.bytes) bytes = r.bytes;
            if (t->pieces == room) t->piece = tess_realloc(t->piece, (room = room ? room * 2 : 8) * sizeof *t->piece);
            t->piece[t->pieces++] = (struct tess_disk_piece){.at = r.at, .offset = offset, .bytes = (uint32_t)bytes};
            offset += bytes;
            r.at += bytes;
            r.bytes -= bytes;
        }
    }
    return true;
}

void tess_disk_space_give(tess_disk *d, struct tess_disk_tile *t)
{
    for (unsigned i = 0; i < t->pieces; i++) {
        give_range(d, t->piece[i].at, t->piece[i].bytes);
        d->used -= t->piece[i].bytes;
    }
}

/* ---- checksums ---- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__ || !defined __x86_64__
#define CLONES
#else
#define CLONES __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#endif

enum { LANES = 64 }; /* of 32 bits: four of the widest vectors, whose multiplications then overlap */

/* Each step turns a lane into another, one to one, whether the lane or the word is held fixed: a difference in a single
 * word always reaches the end. */
CLONES static void sum_rows(uint32_t *lane, const char *data, size_t rows)
{
    for (size_t r = 0; r < rows; r++) {
        uint32_t word[LANES];
        memcpy(word, data + r * sizeof word, sizeof word);
#pragma omp simd
        for (int i = 0; i < LANES; i++) {
            uint32_t x = (lane[i] ^ word[i]) * 0x9e3779b1u;
            lane[i] = x << 15 | x >> 17;
        }
    }
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 29) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 29;
}

/* The seed is the place: a piece that lies where another belongs does not pass for it. */
uint64_t tess_disk_sum(const void *data, size_t bytes, uint64_t seed)
{
    uint32_t lane[LANES];
    for (uint32_t i = 0; i < LANES; i++) lane[i] = (uint32_t)mix(seed + i + 1);
    size_t row = sizeof lane, whole = bytes / row;
    sum_rows(lane, data, whole);
    char rest[sizeof lane] = {0};
    memcpy(rest, (const char *)data + whole * row, bytes - whole * row);
    sum_rows(lane, rest, 1);
    uint64_t sum = mix(seed ^ bytes);
    for (int i = 0; i < LANES; i += 2) sum = mix(sum ^ ((uint64_t)lane[i] << 32 | lane[i + 1]));
    return sum;
}
