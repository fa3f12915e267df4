/* The board on which bodies leave parts: threads that are workers, each of which by turns has bodies of its own, of a
 * random number of parts, and helps others. Every part is run once, by anybody, and a body goes on only when all of its
 * have ended. */
#define CHECK_MAIN
#include "runtime/base/fault_hooks.h"
#include "runtime/progress/progress.h"
#include "tests/check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { WORKERS = 6, BODIES = 1500, MOST = 40 };

/* A body's, on its owner's stack: who comes late finds another's there. */
struct body {
    unsigned char ran[MOST];
    int64_t n;
    uint32_t sum[MOST];
    void *room;
};

static atomic_int wrong, busy;
static uint32_t bodies;
static _Atomic uint64_t helped_with;
static uint32_t told[WORKERS];

static void nested(void *of, int64_t k)
{
    ((unsigned char *)of)[k]++;
}

static void part(void *of, int64_t k)
{
    struct body *b = of;
    unsigned char inner[5] = {0};
    uint32_t *room = tess_part_room(b->room, 4096);
    if (k < 0 || k >= b->n || b->ran[k]) wrong++;
    b->ran[k] = 1;
    tess_parts_run(5, nested, inner);
    for (int i = 0; i < 64; i++) room[i] = (uint32_t)(k * 64 + i);
    for (int i = 0; i < 64; i++) b->sum[k] += room[i]; /* which nobody else writes meanwhile */
    for (int i = 0; i < 5; i++)
        if (inner[i] != 1) wrong++;
}

static void helped(const void *task, int worker, double begin, double end)
{
    if (!task || worker < 0 || worker >= WORKERS || end < begin) wrong++;
    helped_with++;
    told[worker]++;
}

static void own(int worker, uint32_t order, uint32_t *state)
{
    struct body b = {.n = 0};
    tess_parts_times times;
    tess_parts_own(worker, &b, order);
    b.room = tess_parts_room(worker, 4096);
    for (int phase = 0; phase < 3; phase++) {
        *state = *state * 1664525u + 1013904223u;
        memset(&b.ran, 0, sizeof b.ran);
        memset(&b.sum, 0, sizeof b.sum);
        b.n = *state >> 8 & 3 ? *state >> 10 & 15 : (*state >> 10) % (MOST + 1);
        tess_parts_run(b.n, part, &b);
        for (int64_t k = 0; k < b.n; k++)
            if (!b.ran[k] || b.sum[k] != (uint32_t)(64 * 64 * k + 63 * 32)) wrong++;
    }
    tess_parts_disown(&times);
    if (times.shared < 0 || times.longest < 0 || times.waited < 0) wrong++;
}

static void *work(void *arg)
{
    const int worker = (int)(intptr_t)arg;
    uint32_t state = (uint32_t)worker * 2654435761u + 1;
    for (uint32_t i = 0; i < bodies; i++) {
        own(worker, i * WORKERS + (uint32_t)worker, &state);
        while (state >> 28 < 8 && tess_parts_help(worker)) state = state * 1664525u + 1013904223u;
    }
    busy--;
    while (busy > 0) tess_parts_help(worker);
    return NULL;
}

static uint64_t stress(int workers, bool shy)
{
    pthread_t thread[WORKERS];
    helped_with = 0;
    wrong = 0;
    busy = workers;
    bodies = shy ? BODIES / 30 : BODIES;
    memset(told, 0, sizeof told);
    tess_parts_start(workers, false, helped, NULL);
    tess_parts_make_shy(shy);
    for (int w = 0; w < workers; w++) CHECK(!pthread_create(&thread[w], NULL, work, (void *)(intptr_t)w));
    for (int w = 0; w < workers; w++) pthread_join(thread[w], NULL);
    const uint64_t taken = tess_parts_taken();
    CHECK(wrong == 0);
    CHECK(helped_with <= taken);
    tess_parts_stop();
    return taken;
}

TEST(every_part_runs_once)
{
    CHECK(stress(1, false) == 0);
    stress(2, false);
    stress(WORKERS, false);
}

TEST(others_take_parts_of_who_is_shy)
{
    CHECK(stress(WORKERS, true) > 0);
}

TEST(nobody_helps_outside_of_a_run)
{
    CHECK(!tess_parts_help(0));
    unsigned char ran[7] = {0};
    tess_parts_run(7, nested, ran);
    for (int i = 0; i < 7; i++) CHECK(ran[i] == 1);
}

/* What a simulation is told of a body is what it does. */
TEST(bodies_are_cut_as_is_said)
{
    const int64_t said[] = {0, 7, 5, 1, 0}, parts[] = {1, 7, 7, 1, 7}, unsaid[] = {0, 0, 1, 1, 2};
    tess_parts_start(2, false, NULL, NULL);
    tess_parts_make_shy(true);
    for (int i = 0; i < 5; i++) {
        unsigned char ran[7] = {0};
        tess_parts_times times;
        tess_parts_own(0, ran, 0);
        if (said[i]) tess_parts_said(said[i]);
        tess_parts_run(parts[i], nested, ran);
        tess_parts_disown(&times);
        CHECK_EQ(tess_parts_unsaid(), unsaid[i]);
    }
    tess_parts_stop();
}

static int64_t held;
static void holds(int64_t bytes)
{
    held += bytes;
}

TEST(rooms_are_counted_while_they_are_there)
{
    held = 0;
    tess_parts_start(2, false, helped, holds);
    tess_parts_room(0, 100);
    CHECK_EQ(held, 4096);
    tess_parts_room(1, 3 << 20);
    CHECK_EQ(held, 4096 + (4 << 20));
    memset(tess_parts_room(0, 5000), 1, 5000);
    tess_parts_room(0, 4096); /* it has more */
    CHECK_EQ(held, 8192 + (4 << 20));
    tess_parts_stop();
    CHECK_EQ(held, 0);
}
