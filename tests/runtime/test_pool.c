/* The pool against a list of what was given out. */
#define CHECK_MAIN
#include "runtime/flow/pool_impl.h"
#include "runtime/runtime.h"
#include "tests/check.h"

enum { SIZE = 1 << 20, ALIGN = 512, MOST = 200 };

struct piece {
    uint64_t at, bytes;
    bool stays;
};

static uint32_t state;
static uint32_t any(uint32_t below)
{
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(state >> 8) * below >> 24);
}

static bool overlap(const struct piece *a, const struct piece *b)
{
    return a->at < b->at + b->bytes && b->at < a->at + a->bytes;
}

/* Is [at, at + bytes) free of all pieces? Of those that it is not free of, the bytes; UINT64_MAX if one stays. */
static uint64_t stands_on(const struct piece *p, uint64_t at, uint64_t bytes)
{
    const struct piece here = {at, bytes, false};
    uint64_t sum = 0;
    for (int i = 0; i < MOST; i++) {
        if (!p[i].bytes || !overlap(&p[i], &here)) continue;
        if (p[i].stays) return UINT64_MAX;
        sum += (p[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    return sum;
}

/* The least that must go for so many bytes: places worth trying begin where a piece begins or ends. */
static uint64_t least_in_the_way(const struct piece *p, uint64_t bytes)
{
    uint64_t least = stands_on(p, 0, bytes);
    for (int i = 0; i < MOST; i++) {
        if (!p[i].bytes) continue;
        const uint64_t end = p[i].at + (p[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
        if (p[i].at + bytes <= SIZE && stands_on(p, p[i].at, bytes) < least) least = stands_on(p, p[i].at, bytes);
        if (end + bytes <= SIZE && stands_on(p, end, bytes) < least) least = stands_on(p, end, bytes);
        if (p[i].at >= bytes && stands_on(p, p[i].at - bytes, bytes) < least)
            least = stands_on(p, p[i].at - bytes, bytes);
    }
    const uint64_t last = stands_on(p, SIZE - bytes, bytes);
    return last < least ? last : least;
}

static bool stays(const void *owner, const void *arg)
{
    (void)arg;
    return ((const struct piece *)owner)->stays;
}

static void check_in_the_way(tess_pool *pool, const struct piece *p, uint64_t bytes)
{
    void **owner;
    const size_t n = tess_pool_in_the_way(pool, bytes, stays, NULL, &owner);
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) {
        const struct piece *o = owner[i];
        CHECK(!o->stays);
        sum += (o->bytes + ALIGN - 1) / ALIGN * ALIGN;
    }
    free(owner);
    const uint64_t least = least_in_the_way(p, bytes);
    if (n) CHECK_EQ(sum, least);
    if (!n) CHECK(least == UINT64_MAX || least == 0);
}

TEST(pieces_never_overlap)
{
    static struct piece p[MOST];
    for (uint32_t round = 0; round < 20; round++) {
        memset(p, 0, sizeof p);
        state = round;
        tess_pool *pool = tess_pool_new(SIZE);
        for (int k = 0; k < 3000; k++) {
            struct piece *one = &p[any(MOST)];
            if (one->bytes) {
                tess_pool_give(pool, one->at);
                one->bytes = 0;
                continue;
            }
            struct piece want = {0, 1 + any(any(4) ? 8000 : 120000), any(8) == 0};
            const bool lasts = any(3) == 0;
            if (tess_pool_take(pool, want.bytes, lasts, one, &want.at)) {
                CHECK_EQ(want.at % ALIGN, 0);
                CHECK(want.at + want.bytes <= SIZE);
                CHECK_EQ(stands_on(p, want.at, want.bytes), 0);
                *one = want;
            } else {
                const uint64_t bytes = (want.bytes + ALIGN - 1) / ALIGN * ALIGN;
                CHECK(least_in_the_way(p, bytes) > 0);
                check_in_the_way(pool, p, bytes);
            }
        }
        for (int i = 0; i < MOST; i++)
            if (p[i].bytes) tess_pool_give(pool, p[i].at);
        uint64_t at;
        CHECK(tess_pool_take(pool, SIZE, false, p, &at)); /* it is one piece again */
        CHECK_EQ(at, 0);
        tess_pool_free(pool);
    }
}

/* What lasts lies at the other end of a stretch, out of the way of what comes and goes. */
TEST(what_lasts_lies_at_the_end)
{
    tess_pool *pool = tess_pool_new(SIZE);
    uint64_t weight, activation;
    CHECK(tess_pool_take(pool, 1000, true, &weight, &weight));
    CHECK(tess_pool_take(pool, 1000, false, &activation, &activation));
    CHECK_EQ(weight, SIZE - 1024);
    CHECK_EQ(activation, 0);
    CHECK(!tess_pool_take(pool, SIZE - 2047, false, pool, &weight));
    CHECK(tess_pool_take(pool, SIZE - 2048, false, pool, &weight));
    tess_pool_free(pool);
}
