/* Where buffers lie in RAM: address space in a few large pieces, from which buffers of all sizes are cut, so that the
 * pages of one that goes serve whatever comes next. A buffer gets the place with the most such pages. Free pages can
 * be given back, cut to what is needed: huge pages whole, as long as there are any.
 *
 * A list of pieces in the order of addresses covers all of it. It has no lock of its own: slab.c has one. */
#include "runtime/tiles/tiles.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { HUGE = 2 << 20, GRAIN = 4 << 10, REGIONS = 4096 };

enum state {
    COLD,    /* free, without pages */
    WARM,    /* free, with pages */
    USED,    /* a buffer */
    COMING,  /* gets pages with the buffer beside it, for huge pages come whole */
    LEAVING, /* its pages are being given back */
};

struct piece {
    char *at;
    size_t size;
    enum state state;
};

static struct piece *piece;
static size_t pieces, room;
static struct {
    char *at;
    size_t size;
} region[REGIONS];
static int regions;
static char *fresh;           /* begins the part of the last region that was never used */
static char *lowest;          /* below it nothing is free */
static uint64_t warm, coming; /* bytes */
static size_t buffers;

static size_t up(size_t x, size_t to)
{
    return (x + to - 1) / to * to;
}

static char *end_of(size_t i)
{
    return piece[i].at + piece[i].size;
}

/* The piece that holds an address, or the first one behind it. */
static size_t find(const char *p)
{
    size_t low = 0, high = pieces;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (end_of(middle) <= p)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void insert(size_t i, struct piece p)
{
    if (pieces == room) piece = tess_realloc(piece, (room = room ? room * 2 : 64) * sizeof *piece);
    memmove(piece + i + 1, piece + i, (pieces++ - i) * sizeof *piece);
    piece[i] = p;
}

static void drop(size_t i, size_t n)
{
    memmove(piece + i, piece + i + n, (pieces - i - n) * sizeof *piece);
    pieces -= n;
}

/* Has a piece begin at p, and returns which one. */
static size_t cut_at(char *p)
{
    const size_t i = find(p);
    if (i == pieces || piece[i].at >= p) return i;
    const struct piece behind = {p, (size_t)(end_of(i) - p), piece[i].state};
    piece[i].size -= behind.size;
    insert(i + 1, behind);
    return i + 1;
}

static bool joins(size_t i)
{
    return i + 1 < pieces && end_of(i) == piece[i + 1].at && piece[i].state == piece[i + 1].state &&
           piece[i].state < USED;
}

static void count(size_t i, int sign)
{
    uint64_t *of = piece[i].state == WARM ? &warm : piece[i].state == COMING ? &coming : NULL;
    if (of) *of += (uint64_t)sign * piece[i].size;
}

/* Sets one state for a mapped range. */
static void set(char *p, size_t size, enum state state)
{
    const size_t first = cut_at(p), last = cut_at(p + size);
    for (size_t i = first; i < last; i++) count(i, -1);
    piece[first] = (struct piece){p, size, state};
    count(first, 1);
    if (state < USED && p < lowest) lowest = p;
    drop(first + 1, last - first - 1);
    if (joins(first)) {
        piece[first].size += piece[first + 1].size;
        drop(first + 1, 1);
    }
    if (first && joins(first - 1)) {
        piece[first - 1].size += piece[first].size;
        drop(first, 1);
    }
}

/* Bytes in it that are warm, of a range of a run. */
static size_t warm_in(size_t first, const char *p, const char *end)
{
    size_t n = 0;
    for (size_t i = first; i < pieces && piece[i].at < end; i++) {
        const char *from = piece[i].at > p ? piece[i].at : p, *to = end_of(i) < end ? end_of(i) : end;
        if (piece[i].state == WARM && to > from) n += (size_t)(to - from);
    }
    return n;
}

/* ---- address space ---- */

void *tess_arena_map(size_t size, int flags)
{
    char *raw = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (raw == MAP_FAILED) return NULL;
    char *p = (char *)(((uintptr_t)raw + HUGE - 1) & ~(uintptr_t)(HUGE - 1));
    if (p > raw) munmap(raw, (size_t)(p - raw));
    munmap(p + size, (size_t)(raw + HUGE - p));
    madvise(p, size, MADV_HUGEPAGE);
    tess_memory_spread(p, size);
    return p;
}

static bool add_region(size_t size)
{
    if (regions == REGIONS) return false;
    char *p = tess_arena_map(size, MAP_NORESERVE);
    if (!p) return false;
    region[regions].at = p;
    region[regions++].size = size;
    insert(find(p), (struct piece){p, size, COLD});
    if (!lowest || p < lowest) lowest = p;
    fresh = p;
    return true;
}

/* Where the kernel has no room for as much, half of it will do. */
static bool grow(size_t bytes, size_t wanted)
{
    bytes = up(bytes, HUGE);
    for (size_t size = up(wanted, HUGE); size > bytes; size = up(size / 2, HUGE))
        if (add_region(size)) return true;
    return add_region(bytes);
}

/* ---- buffers ---- */

/* The place with the most warm bytes, of those the one in the smallest run of free pieces; NULL: none. */
static char *best_place(size_t size)
{
    char *best = NULL;
    size_t most = 0, least = 0, i = find(lowest);
    while (i < pieces && piece[i].state >= USED) i++;
    lowest = i < pieces ? piece[i].at : end_of(pieces - 1);
    for (size_t j; i < pieces; i = j) {
        j = i + 1;
        if (piece[i].state >= USED) continue;
        while (j < pieces && piece[j].state < USED && end_of(j - 1) == piece[j].at) j++;
        char *begin = piece[i].at, *end = end_of(j - 1);
        const size_t run = (size_t)(end - begin);
        if (run < size) continue;
        for (size_t k = i; k < j; k++) {
            char *const place[] = {piece[k].at, (size_t)(end_of(k) - begin) < size ? begin : end_of(k) - size};
            for (int b = 0; b < 2; b++) {
                if ((size_t)(end - place[b]) < size) continue;
                const size_t n = warm_in(i, place[b], place[b] + size);
                if (best && (n < most || (n == most && run >= least))) continue;
                best = place[b], most = n, least = run;
            }
        }
    }
    return best;
}

/* Returns a place that was never used, without a search, since nothing is warm. */
static char *fresh_place(size_t size)
{
    const size_t i = find(fresh);
    return !warm && i < pieces && piece[i].state == COLD && piece[i].at <= fresh && (size_t)(end_of(i) - fresh) >= size
               ? fresh
               : NULL;
}

/* Of the huge page there is nothing yet. */
static bool all_cold(char *p)
{
    char *at = p;
    for (size_t i = find(p); i < pieces && at < p + HUGE; at = end_of(i++))
        if (piece[i].state != COLD || piece[i].at > at) return false;
    return at >= p + HUGE;
}

static void take(char *p, size_t size)
{
    char *const first = (char *)((uintptr_t)p & ~(uintptr_t)(HUGE - 1));
    char *const last = (char *)((uintptr_t)(p + size - 1) & ~(uintptr_t)(HUGE - 1));
    const bool before = first < p && all_cold(first), behind = last + HUGE > p + size && all_cold(last);
    if (before) set(first, (size_t)(p - first), COMING);
    if (behind) set(p + size, (size_t)(last + HUGE - (p + size)), COMING);
    set(p, size, USED);
    if (p <= fresh && p + size > fresh) fresh = p + size;
}

void *tess_arena_take(size_t bytes, size_t (*wanted)(void))
{
    const size_t size = up(bytes, GRAIN);
    char *p = regions ? fresh_place(size) : NULL;
    if (!p && regions) p = best_place(size);
    if (!p && grow(size, wanted())) p = fresh_place(size) ? fresh : best_place(size);
    if (!p) return NULL;
    take(p, size);
    buffers++;
    return p;
}

static void settle(size_t i, volatile char *own)
{
    if (i >= pieces || piece[i].state != COMING) return;
    *own = 0;
    set(piece[i].at, piece[i].size, WARM);
}

void tess_arena_settle(void *p)
{
    size_t i = find(p);
    if (i + 1 < pieces && end_of(i) == piece[i + 1].at) settle(i + 1, end_of(i) - 1);
    i = find(p);
    if (i && end_of(i - 1) == p) settle(i - 1, p);
}

bool tess_arena_put(void *p)
{
    const size_t i = find(p);
    if (i == pieces || piece[i].at != (char *)p || piece[i].state != USED) return false;
    set(piece[i].at, piece[i].size, WARM);
    buffers--;
    return true;
}

/* ---- free pages ---- */

uint64_t tess_arena_kept(void)
{
    return warm + coming;
}

/* What whole huge pages a piece has. */
static size_t huge_in(size_t i, char **begin)
{
    *begin = (char *)up((size_t)piece[i].at, HUGE);
    char *end = (char *)((uintptr_t)end_of(i) & ~(uintptr_t)(HUGE - 1));
    return end > *begin ? (size_t)(end - *begin) : 0;
}

size_t tess_arena_cut(uint64_t bytes, void **out)
{
    char *p = NULL, *begin;
    size_t whole = 0, part = 0;
    for (size_t i = 0; i < pieces; i++) {
        if (piece[i].state != WARM) continue;
        const size_t n = huge_in(i, &begin);
        if (n > whole || (!whole && piece[i].size > part)) p = n ? begin : piece[i].at;
        if (n > whole) whole = n;
        if (piece[i].size > part) part = piece[i].size;
    }
    if (!p) return 0;
    const size_t most = whole ? whole : part, step = whole ? HUGE : GRAIN;
    const size_t size = bytes < most ? up((size_t)bytes, step) : most;
    set(p, size, LEAVING);
    *out = p;
    return size;
}

void tess_arena_gone(void *p)
{
    const size_t i = find(p);
    set(piece[i].at, piece[i].size, COLD);
}

void tess_arena_release(void)
{
    if (buffers) return;
    for (int i = 0; i < regions; i++) munmap(region[i].at, region[i].size);
    free(piece);
    piece = NULL;
    pieces = room = 0;
    regions = 0;
    warm = coming = 0;
    fresh = lowest = NULL;
}
