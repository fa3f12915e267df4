/* The engine of the plan, on lists of numbers: the example of its header; random lists on one level, against every
 * choice of gaps that there is; and chains of four levels. */
#define CHECK_MAIN
#include "graph/plan/plan.h"
#include "tests/check.h"
#include <stdlib.h>
#include <string.h>

enum { TILES = 6, TASKS = 10, USES = 40, SEARCHED = 11, LEVELS = 4 };

static uint32_t state;
static uint32_t any(uint32_t below)
{
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(state >> 8) * below >> 24);
}

/* A list that its arrays hold. */
struct list {
    tess_uses u;
    tess_plan_tile tile[TILES];
    tess_plan_task task[TASKS + 1];
    tess_plan_use use[USES];
};

static void begin(struct list *l, size_t tasks, size_t tiles)
{
    *l = (struct list){0};
    l->u = (tess_uses){.tasks = tasks, .tiles = tiles, .tile = l->tile, .task = l->task, .use = l->use};
}

static void add_tile(struct list *l, size_t t, uint64_t bytes, bool lasts)
{
    l->tile[t] = (tess_plan_tile){.bytes = bytes,
                                  .role = lasts ? TESS_ROLE_WEIGHT : TESS_ROLE_ACTIVATION,
                                  .home = TESS_TIER_CPU,
                                  .flows = true,
                                  .lasts = lasts};
}

static void add_use(struct list *l, uint32_t tile, uint32_t task, int mode)
{
    l->use[l->u.uses++] = (tess_plan_use){tile, task, mode};
}

/* Tiles that last are read and updated; others are written, read and over, some of them several times a step. */
static void draw(struct list *l, uint32_t seed)
{
    state = seed;
    begin(l, 4 + any(TASKS - 4), 2 + any(TILES - 2));
    for (uint32_t t = 0; t < l->u.tiles; t++) {
        const bool lasts = any(2);
        bool lives = lasts;
        size_t first = l->u.uses;
        add_tile(l, t, 1 + any(4), lasts);
        for (uint32_t k = 0; k < l->u.tasks; k++) {
            if (any(3) == 0) continue;
            const int drawn[] = {TESS_R, TESS_R, TESS_RW, lasts ? TESS_W : TESS_R};
            add_use(l, t, k, lives ? drawn[any(4)] : TESS_W);
            lives = lasts || any(4) > 0;
            if (!lives) l->use[l->u.uses - 1].mode |= TESS_LAST;
        }
        if (!lasts && l->u.uses > first) l->use[l->u.uses - 1].mode |= TESS_LAST;
    }
}

/* ---- walking a list, without the code that placed it ---- */

struct walk {
    uint64_t read, written, most;
};

/* The second of two steps as marked, on a level that has all tiles whose home is not above it. */
static struct walk walk(const tess_uses *u, const tess_level *l, const uint8_t *home, const uint8_t *leaves)
{
    struct {
        bool here, below, placed;
    } at[TILES] = {0};
    struct walk w = {0};
    for (int step = 0; step < 2; step++)
        for (uint32_t k = 0; k < u->tasks; k++) {
            uint64_t bytes = 0;
            for (size_t i = 0; i < u->uses; i++) {
                const tess_plan_use *x = &u->use[i];
                if (x->task != k || home[x->tile] < l->tier) continue;
                const bool here = l->used[i] != TESS_USED_ELSEWHERE;
                bool *mine = here ? &at[x->tile].here : &at[x->tile].below;
                bool *other = here ? &at[x->tile].below : &at[x->tile].here;
                if (here) at[x->tile].placed = true;
                if ((x->mode & TESS_R) && !*mine && *other && step)
                    *(here ? &w.read : &w.written) += u->tile[x->tile].bytes;
                *mine = true;
                if (x->mode & TESS_W) *other = false;
            }
            for (size_t t = 0; t < u->tiles; t++) bytes += at[t].placed ? u->tile[t].bytes : 0;
            if (bytes > w.most) w.most = bytes;
            for (size_t i = 0; i < u->uses; i++) {
                const tess_plan_use *x = &u->use[i];
                if (x->task != k || home[x->tile] < l->tier) continue;
                if (x->mode & TESS_LAST) at[x->tile].here = at[x->tile].below = at[x->tile].placed = false;
                if (!(leaves[i] >> l->tier & 1) || !at[x->tile].placed) continue;
                if (at[x->tile].here && !at[x->tile].below) {
                    if (step) w.written += u->tile[x->tile].bytes;
                    at[x->tile].below = true;
                }
                at[x->tile].here = at[x->tile].placed = false;
            }
        }
    return w;
}

/* The fewest bytes of all ways to mark uses; none where there are too many ways. */
static uint64_t best_of_all(const tess_uses *u, const tess_level *l, const uint8_t *home)
{
    size_t use[USES], n = 0;
    uint8_t leaves[USES] = {0};
    uint64_t best = UINT64_MAX;
    for (size_t i = 0; i < u->uses; i++) {
        if (home[u->use[i].tile] < l->tier || l->used[i] == TESS_USED_ELSEWHERE || (u->use[i].mode & TESS_LAST))
            continue;
        if (l->leave[i] == TESS_MUST_LEAVE) leaves[i] = (uint8_t)(1 << l->tier);
        if (l->leave[i] == TESS_MAY_LEAVE) use[n++] = i;
        if (n > SEARCHED) return UINT64_MAX;
    }
    for (uint32_t ways = 0; ways < 1u << n; ways++) {
        for (size_t i = 0; i < n; i++) leaves[use[i]] = (uint8_t)((ways >> i & 1) << l->tier);
        const struct walk w = walk(u, l, home, leaves);
        if (w.most <= l->room && w.read + w.written < best) best = w.read + w.written;
    }
    return best;
}

/* ---- what every placement keeps to ---- */

struct score {
    int tried, best;
    double excess;
};

static void check(const struct list *l, const tess_level *level, const uint8_t *before, const tess_marks *m,
                  const tess_placed *placed, struct score *score)
{
    const tess_uses *u = &l->u;
    const struct walk w = walk(u, level, before, m->leaves);
    const uint64_t moved = placed->read + placed->written;
    CHECK_EQ(w.read, placed->read);
    CHECK_EQ(w.written, placed->written);
    CHECK(placed->bound <= moved);
    CHECK(w.most <= level->room + placed->lacks);
    for (size_t i = 0; i < u->uses; i++) {
        const bool leaves = m->leaves[i] >> level->tier & 1;
        const uint8_t home = m->home[u->use[i].tile];
        if (before[u->use[i].tile] < level->tier) CHECK(!leaves && home == before[u->use[i].tile]);
        if (leaves) CHECK(home != level->tier && level->leave[i] != TESS_MUST_STAY);
        if (home == level->tier) CHECK(level->used[i] == TESS_USED_HERE);
    }
    const uint64_t best = placed->lacks ? UINT64_MAX : best_of_all(u, level, before);
    if (best == UINT64_MAX) return;
    CHECK(placed->bound <= best);
    if (moved < best) CHECK_SAY("moves %d, the best of all %d", (int)moved, (int)best);
    score->tried++;
    score->best += moved == best;
    score->excess += best ? (double)moved / (double)best - 1 : 0;
}

static void set_up(const struct list *l, unsigned tier, tess_level *level)
{
    *level = (tess_level){.homes = true, .rounds = 100, .last_rounds = 200, .slacks = 1};
    tess_level_init(&l->u, tier, level);
}

static uint64_t largest(const struct list *l, const tess_level *level, const tess_marks *m)
{
    uint64_t need[TASKS];
    return tess_level_needs(&l->u, level, m, need);
}

static void say(const char *what, const struct score *s)
{
    printf("%s: of %d small plans %d are the best there is; on average they move %.1f%% more\n", what, s->tried,
           s->best, 100 * s->excess / s->tried);
    CHECK(s->tried > 500);
    CHECK(s->excess / s->tried < 0.1);
}

/* A level some of whose tasks are elsewhere, or on either side. */
/* Two chains of three tasks that begin with one and end in one, of known times; checked against a schedule by hand. */
TEST(what_a_list_allows)
{
    struct list l;
    tess_parallelism p;
    static const double seconds[] = {1, 2, 3, 4, 1, 2};
    bool chain[6];
    begin(&l, 6, 5);
    for (uint32_t t = 0; t < 5; t++) add_tile(&l, t, 1, true);
    add_use(&l, 0, 0, TESS_W), add_use(&l, 0, 1, TESS_R), add_use(&l, 0, 2, TESS_R);      /* 0, then 1 and 2 */
    add_use(&l, 1, 1, TESS_W), add_use(&l, 1, 3, TESS_RW), add_use(&l, 1, 5, TESS_R);     /* 1, 3, 5 */
    add_use(&l, 2, 2, TESS_W), add_use(&l, 2, 4, TESS_W), add_use(&l, 2, 5, TESS_R);      /* 2, 4, 5 */
    add_use(&l, 3, 1, TESS_R), add_use(&l, 3, 2, TESS_R), add_use(&l, 3, 4, TESS_W);      /* and 1 before 4 */
    add_use(&l, 4, 0, TESS_SCRATCH | TESS_RW), add_use(&l, 4, 1, TESS_SCRATCH | TESS_RW); /* of no matter */
    tess_plan_parallel(&l.u, seconds, NULL, &p, chain);
    CHECK(p.work == 13 && p.path == 1 + 2 + 4 + 2);
    CHECK(chain[0] && chain[1] && !chain[2] && chain[3] && !chain[4] && chain[5]);
    CHECK(p.seconds[0] == 13);
    /* Two cores: 0 to 1; 1 to 3 beside 2 to 4; 3 to 7, 4 to 5; 5 to 9. */
    CHECK(p.seconds[1] == 9 && p.seconds[TESS_WIDTHS - 1] == 9);
    /* A wide list: 10 tasks of 1 that nobody waits for. */
    begin(&l, 10, 1);
    add_tile(&l, 0, 1, true);
    for (uint32_t k = 0; k < 10; k++) add_use(&l, 0, k, TESS_R);
    const double ones[] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    tess_plan_parallel(&l.u, ones, NULL, &p, NULL);
    CHECK(p.work == 10 && p.path == 1 && p.seconds[0] == 10 && p.seconds[1] == 5 && p.seconds[2] == 3);
    CHECK(p.seconds[3] == 2 && p.seconds[4] == 1);
    /* Three tasks one behind the other, of 8 each; the first and the last have 4 parts of 2. */
    static const double eights[] = {8, 8, 8}, alone[] = {2, 8, 2};
    begin(&l, 3, 1);
    add_tile(&l, 0, 1, true);
    for (uint32_t k = 0; k < 3; k++) add_use(&l, 0, k, TESS_RW);
    tess_plan_parallel(&l.u, eights, alone, &p, NULL);
    CHECK(p.work == 24 && p.path == 2 + 8 + 2);
    CHECK(p.seconds[0] == 24 && p.seconds[1] == 4 + 8 + 4 && p.seconds[2] == 12 && p.seconds[8] == 12);
    /* Two of 6 in 3 parts of 2, which nobody waits for, and one of 3 behind the first: on four cores both begin, two
     * more help with the first, which ends after 2; then three take what is left of the second, of which one ends its
     * part at 4, and the last runs from 2 to 5. On two cores each has its own until 6. */
    static const double uneven[] = {6, 6, 3}, thirds[] = {2, 2, 3};
    begin(&l, 3, 2);
    for (uint32_t t = 0; t < 2; t++) add_tile(&l, t, 1, true);
    add_use(&l, 0, 0, TESS_W), add_use(&l, 0, 2, TESS_R);
    add_use(&l, 1, 1, TESS_W);
    tess_plan_parallel(&l.u, uneven, thirds, &p, NULL);
    CHECK(p.work == 15 && p.path == 5);
    CHECK(p.seconds[0] == 15 && p.seconds[1] == 9 && p.seconds[2] == 5 && p.seconds[3] == 5);
}

/* A list's step on paper, each task a second long on one worker. */
static double on_paper(struct list *l, uint64_t room, double both)
{
    uint32_t named[USES];
    size_t n = 0;
    for (uint32_t k = 0; k < l->u.tasks; k++) {
        l->task[k] = (tess_plan_task){.first = n, .cost = {.flops = 1}};
        for (uint32_t i = 0; i < l->u.uses; i++)
            if (l->use[i].task == k) named[n++] = i;
    }
    l->task[l->u.tasks].first = n;
    l->u.named = named;
    uint8_t home[TILES], leaves[USES];
    memset(home, TESS_TIER_DISK, sizeof home);
    memset(leaves, 1 << TESS_TIER_CPU, sizeof leaves);
    tess_forecast f;
    tess_plan_simulate(&l->u, &(tess_marks){home, leaves},
                       &(tess_rates){.flops = 1, .copy = 1, .read = 100, .write = 50, .both = both}, room, 1, &f);
    CHECK_NEAR(f.work, (double)l->u.tasks, 0.001);
    return f.seconds;
}

/* All tiles leave after each use. A transfer is seen when a worker looks, here a second after its end. */
TEST(a_step_on_paper)
{
    struct list l;
    begin(&l, 2, 1);
    add_tile(&l, 0, 100, true);
    add_use(&l, 0, 1, TESS_R);
    CHECK_NEAR(on_paper(&l, 1000, 2), 1 + 1 + 1, 0.01); /* it is read while task 0 runs */

    begin(&l, 2, 2);
    add_tile(&l, 0, 100, true), add_tile(&l, 1, 100, true);
    add_use(&l, 0, 0, TESS_R), add_use(&l, 1, 1, TESS_R);
    CHECK_NEAR(on_paper(&l, 200, 2), 1 + 1 + 1 + 1, 0.01);         /* the second comes beside the first */
    CHECK_NEAR(on_paper(&l, 100, 2), 1 + 1 + 1 + 1 + 1 + 1, 0.01); /* or when that has left */
    l.use[0].mode = TESS_RW;
    CHECK_NEAR(on_paper(&l, 100, 2), 3 + (2 + 1) + 1 + 1 + 1, 0.01); /* which is written first */

    begin(&l, 2, 2);
    add_tile(&l, 0, 100, true), add_tile(&l, 1, 300, true);
    add_use(&l, 0, 0, TESS_W), add_use(&l, 1, 1, TESS_R);
    CHECK_NEAR(on_paper(&l, 400, 2), 3 + 1 + 1, 0.01);               /* as if each direction were a drive of its own */
    CHECK_NEAR(on_paper(&l, 400, 1), 1.07 + 1.93 * 2 + 1 + 1, 0.01); /* half as fast while both are busy */

    begin(&l, 3, 1); /* there is never room, and it goes on; what the step before wrote last is on its way yet */
    add_tile(&l, 0, 100, true);
    for (uint32_t k = 0; k < 3; k++) add_use(&l, 0, k, k < 2 ? TESS_R : TESS_RW);
    CHECK_NEAR(on_paper(&l, 1, 2), (2 + 1) + 3 * (1 + 1 + 1), 0.01);
}

/* The same with these parts of its tasks, on so many workers, in room for everything. */
static double in_parts(struct list *l, const uint32_t *parts, const double *seconds, int workers)
{
    uint32_t named[USES];
    size_t n = 0;
    for (uint32_t k = 0; k < l->u.tasks; k++) {
        l->task[k] = (tess_plan_task){.first = n, .parts = parts[k], .cost = {.flops = seconds[k] / workers}};
        for (uint32_t i = 0; i < l->u.uses; i++)
            if (l->use[i].task == k) named[n++] = i;
    }
    l->task[l->u.tasks].first = n;
    l->u.named = named;
    uint8_t home[TILES], leaves[USES] = {0};
    memset(home, TESS_TIER_CPU, sizeof home);
    tess_forecast f;
    tess_plan_simulate(&l->u, &(tess_marks){home, leaves}, &(tess_rates){.flops = 1, .copy = 1, .read = 1, .write = 1},
                       1000, workers, &f);
    return f.seconds;
}

/* Two workers: the tiles of two tasks that wait for nothing are there at once, where the list has one at a time. */
TEST(tasks_that_start_early_on_paper)
{
    struct list l;
    for (int chain = 0; chain < 2; chain++) {
        begin(&l, 2, chain ? 3 : 2);
        add_tile(&l, 0, 100, false), add_tile(&l, 1, 60, false);
        add_use(&l, 0, 0, TESS_W | TESS_LAST), add_use(&l, 1, 1, TESS_W | TESS_LAST);
        if (chain) add_tile(&l, 2, 7, false), add_use(&l, 2, 0, TESS_RW), add_use(&l, 2, 1, TESS_RW);
        tess_forecast f;
        uint32_t named[USES] = {0, chain ? 2 : 1, 1, 3};
        l.task[0] = (tess_plan_task){.first = 0, .cost = {.flops = 1}};
        l.task[1] = (tess_plan_task){.first = chain ? 2 : 1, .cost = {.flops = 1}};
        l.task[2].first = chain ? 4 : 2;
        l.u.named = named;
        uint8_t home[TILES], leaves[USES] = {0};
        memset(home, TESS_TIER_CPU, sizeof home);
        tess_plan_simulate(&l.u, &(tess_marks){home, leaves},
                           &(tess_rates){.flops = 1, .copy = 1, .read = 1, .write = 1}, 1000, 2, &f);
        CHECK_EQ(f.early, chain ? 0 : 60);
    }
}

/* Workers without a task take parts of the earliest one that runs, and go when there is a task. */
TEST(parts_on_paper)
{
    static const uint32_t one[] = {1, 1, 1}, ends[] = {4, 1, 4}, all[] = {4, 4, 4}, eight[] = {8, 1, 1};
    static const double eights[] = {8, 8, 8}, uneven[] = {8, 2, 2};
    struct list l;
    begin(&l, 3, 1); /* one behind the other */
    add_tile(&l, 0, 1, true);
    for (uint32_t k = 0; k < 3; k++) add_use(&l, 0, k, TESS_RW);
    CHECK_NEAR(in_parts(&l, one, eights, 64), 24, 0.001);
    CHECK_NEAR(in_parts(&l, all, eights, 1), 24, 0.001);
    CHECK_NEAR(in_parts(&l, ends, eights, 2), 4 + 8 + 4, 0.001);
    CHECK_NEAR(in_parts(&l, all, eights, 2), 12, 0.001);
    CHECK_NEAR(in_parts(&l, all, eights, 3), 12, 0.001); /* the fourth part is somebody's second */
    CHECK_NEAR(in_parts(&l, all, eights, 4), 6, 0.001);
    CHECK_NEAR(in_parts(&l, all, eights, 64), 6, 0.001);

    begin(&l, 3, 2); /* the last is behind the second, and nobody waits for the first */
    add_tile(&l, 0, 1, true), add_tile(&l, 1, 1, true);
    add_use(&l, 0, 0, TESS_W);
    add_use(&l, 1, 1, TESS_W), add_use(&l, 1, 2, TESS_R);
    CHECK_NEAR(in_parts(&l, one, uneven, 2), 8, 0.001);
    CHECK_NEAR(in_parts(&l, eight, uneven, 2), 6, 0.001);  /* alone until 4, then two take what is left */
    CHECK_NEAR(in_parts(&l, eight, uneven, 3), 4, 0.001);  /* two from the beginning */
    CHECK_NEAR(in_parts(&l, eight, uneven, 64), 4, 0.001); /* the chain of the others */

    /* Task 0 of 2, behind it 1 and 2 of 4; 3 has 12 parts of 1, one worker has it, and another helps until 2. That is
     * called back then: 1 and 2 run until 6. Of the 8 parts that were left 4 are left by then, which three workers
     * share. */
    static const uint32_t twelve[] = {1, 1, 1, 12};
    static const double work[] = {2, 4, 4, 12};
    begin(&l, 4, 2);
    add_tile(&l, 0, 1, true), add_tile(&l, 1, 1, true);
    add_use(&l, 0, 0, TESS_W), add_use(&l, 0, 1, TESS_R), add_use(&l, 0, 2, TESS_R);
    add_use(&l, 1, 3, TESS_W);
    CHECK_NEAR(in_parts(&l, twelve, work, 3), 6 + 4.0 / 3, 0.001);
}

TEST(gpu_above_ram)
{
    struct score score = {0};
    for (uint32_t seed = 0; seed < 500; seed++)
        for (uint64_t more = 0; more < 6; more += 2) {
            struct list l;
            tess_level level;
            tess_placed placed;
            uint8_t before[TILES], task[TASKS];
            draw(&l, seed);
            set_up(&l, TESS_TIER_GPU, &level);
            for (size_t k = 0; k < l.u.tasks; k++) task[k] = (uint8_t)(any(4) ? TESS_USED_HERE : any(3));
            for (size_t i = 0; i < l.u.uses; i++) level.used[i] = task[l.use[i].task];
            tess_marks *m = tess_marks_new(&l.u);
            for (size_t t = 0; t < l.u.tiles; t++) before[t] = m->home[t];
            level.room = largest(&l, &level, m) + more;
            tess_level_place(&l.u, &level, m, &placed);
            check(&l, &level, before, m, &placed, &score);
            tess_marks_free(m);
            tess_level_free(&level);
        }
    say("GPU above RAM", &score);
}

/* A level that all tasks use, and where some tiles are told to stay or to leave. */
TEST(ram_above_disk)
{
    struct score score = {0};
    for (uint32_t seed = 0; seed < 500; seed++)
        for (uint64_t more = 0; more < 6; more += 2) {
            struct list l;
            tess_level level;
            tess_placed placed;
            uint8_t before[TILES], leave[TILES];
            draw(&l, seed);
            set_up(&l, TESS_TIER_CPU, &level);
            for (size_t t = 0; t < l.u.tiles; t++)
                leave[t] = any(4) || seed % 3 ? TESS_MAY_LEAVE : (uint8_t)(any(2) ? TESS_MUST_LEAVE : TESS_MUST_STAY);
            for (size_t i = 0; i < l.u.uses; i++) level.leave[i] = leave[l.use[i].tile];
            tess_marks *m = tess_marks_new(&l.u);
            for (size_t t = 0; t < l.u.tiles; t++) before[t] = m->home[t];
            level.room = largest(&l, &level, m) + more;
            tess_level_place(&l.u, &level, m, &placed);
            check(&l, &level, before, m, &placed, &score);
            if (seed % 3) CHECK_EQ(placed.always, 0);
            tess_marks_free(m);
            tess_level_free(&level);
        }
    say("RAM above the disk", &score);
}

/* GPU, RAM, a near and a far disk: another level is another value. */
TEST(four_levels)
{
    struct score score = {0};
    int lives[LEVELS] = {0};
    for (uint32_t seed = 1000; seed < 1800; seed++) {
        struct list l;
        uint8_t before[TILES], task[TASKS];
        draw(&l, seed);
        tess_marks *m = tess_marks_new(&l.u);
        for (size_t k = 0; k < l.u.tasks; k++) task[k] = (uint8_t)(any(4) ? TESS_USED_HERE : TESS_USED_ELSEWHERE);
        for (unsigned tier = 0; tier + 1 < LEVELS; tier++) {
            tess_level level;
            tess_placed placed;
            set_up(&l, tier, &level);
            for (size_t i = 0; tier == 0 && i < l.u.uses; i++) level.used[i] = task[l.use[i].task];
            for (size_t t = 0; t < l.u.tiles; t++) before[t] = m->home[t];
            level.room = largest(&l, &level, m) + any(3);
            tess_level_place(&l.u, &level, m, &placed);
            check(&l, &level, before, m, &placed, &score);
            tess_level_free(&level);
        }
        for (size_t i = 0; i < l.u.uses; i++) /* what lives on a level leaves all above it, and none below */
            CHECK_EQ(m->leaves[i] >> m->home[l.use[i].tile], 0);
        for (size_t t = 0; t < l.u.tiles; t++) lives[m->home[t]]++;
        tess_marks_free(m);
    }
    for (int k = 0; k < LEVELS; k++) CHECK(lives[k] > 50);
    say("four levels", &score);
}

/* What a larger slack leaves free, and what tiles that must stay lack. */
TEST(slack_and_lack)
{
    struct list l;
    tess_level level;
    tess_placed placed;
    begin(&l, 4, 2);
    add_tile(&l, 0, 2, true);
    add_tile(&l, 1, 6, true);
    add_use(&l, 0, 0, TESS_R);
    add_use(&l, 0, 2, TESS_R);
    add_use(&l, 1, 1, TESS_RW);
    set_up(&l, TESS_TIER_CPU, &level);
    tess_marks *m = tess_marks_new(&l.u);
    level.room = 8;
    tess_level_place(&l.u, &level, m, &placed);
    CHECK_EQ(placed.read + placed.written, 0);
    level.slack[0] = 1;
    tess_level_place(&l.u, &level, m, &placed);
    CHECK_EQ(placed.slack, 1);
    CHECK_EQ(placed.bound, 0);
    CHECK(placed.read + placed.written > 0);
    level.room = 7;
    for (size_t i = 0; i < l.u.uses; i++) level.leave[i] = TESS_MUST_STAY;
    tess_level_place(&l.u, &level, m, &placed);
    CHECK_EQ(placed.lacks, 1);
    CHECK_EQ(placed.slack, 0);
    tess_marks_free(m);
    tess_level_free(&level);
}

/* The example of plan.h. */
TEST(example)
{
    struct list l;
    tess_level level;
    tess_placed placed;
    begin(&l, 4, 3);
    add_tile(&l, 0, 2, true);
    add_tile(&l, 1, 4, false);
    add_tile(&l, 2, 3, true);
    add_use(&l, 0, 0, TESS_R);
    add_use(&l, 0, 3, TESS_R);
    add_use(&l, 1, 1, TESS_W);
    add_use(&l, 1, 2, TESS_R | TESS_LAST);
    add_use(&l, 2, 2, TESS_RW);
    set_up(&l, TESS_TIER_CPU, &level);
    level.room = 7;
    tess_marks *m = tess_marks_new(&l.u);
    tess_level_place(&l.u, &level, m, &placed);
    CHECK_EQ(placed.read, 2);
    CHECK_EQ(placed.written, 0);
    CHECK_EQ(placed.bound, 2);
    CHECK_EQ(placed.below, 2);
    CHECK(m->leaves[0] == 1 << TESS_TIER_CPU && !m->leaves[1] && !m->leaves[2] && !m->leaves[3] && !m->leaves[4]);
    CHECK(m->home[0] == TESS_TIER_DISK && m->home[1] == TESS_TIER_CPU && m->home[2] == TESS_TIER_CPU);
    tess_marks_free(m);
    tess_level_free(&level);
}

/* ---- what it is made of, at sizes at which it counts ---- */

/* A room says and has what an array of its moments does. */
TEST(rooms)
{
    static const size_t sizes[] = {1, 15, 16, 17, 33, 100, 256, 257, 700};
    int64_t naive[700];
    state = 7;
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        const size_t n = sizes[s];
        for (size_t k = 0; k < n; k++) naive[k] = 50 + any(100);
        tess_room *room = tess_room_new(naive, n);
        for (int i = 0; i < 2000; i++) {
            const uint32_t first = any((uint32_t)n), count = any((uint32_t)n + 1), bytes = 1 + any(8);
            int64_t least = INT64_MAX, all = INT64_MAX;
            for (size_t k = 0; k < count; k++)
                if (naive[(first + k) % n] < least) least = naive[(first + k) % n];
            const bool has = tess_room_has(room, first, count, bytes);
            CHECK_EQ(has, least >= bytes);
            if (has || any(50) == 0) { /* what must stay is taken whether there is room or not */
                tess_room_take(room, first, count, bytes);
                for (size_t k = 0; k < count; k++) naive[(first + k) % n] -= bytes;
            }
            for (size_t k = 0; k < n; k++)
                if (naive[k] < all) all = naive[k];
            CHECK_EQ(tess_room_least(room), all);
        }
        tess_room_free(room);
    }
}

/* Turns go from the largest to the least, and equal ones in the order of the list: that which a step uses last first.
 */
TEST(turns)
{
    enum { N = 3000 };
    tess_gaps g = {.gap = tess_alloc(N * sizeof *g.gap), .turn = tess_alloc(N * sizeof *g.turn), .gaps = N};
    double *order = tess_alloc(N * sizeof *order);
    state = 11;
    for (uint32_t i = 0; i < N; i++) {
        g.gap[i] = (tess_gap){.first = any(40), .count = any(20), .use = i};
        order[i] = any(4) ? any(1 << 20) * 1e-3 / (1 + any(50)) : any(3) * 1e300;
    }
    tess_gaps_arrange(&g);
    for (size_t i = 1; i < N; i++) {
        const tess_gap *a = &g.gap[i - 1], *b = &g.gap[i];
        CHECK(a->first > b->first || (a->first == b->first && a->count < b->count) ||
              (a->first == b->first && a->count == b->count && a->use < b->use));
    }
    tess_gaps_sort(&g, order);
    for (size_t i = 1; i < N; i++) {
        const uint32_t a = g.turn[i - 1], b = g.turn[i];
        CHECK(order[a] > order[b] || (order[a] == order[b] && a < b));
    }
    free(order);
    tess_gaps_free(&g);
}

/* Weights that are read on the way there and back, as many tasks as there are of them. */
static void draw_large(tess_uses *u, uint32_t tiles)
{
    *u = (tess_uses){.tasks = 2 * tiles, .tiles = tiles, .uses = 3 * tiles};
    u->tile = tess_alloc(tiles * sizeof *u->tile);
    u->task = tess_alloc((u->tasks + 1) * sizeof *u->task);
    u->use = tess_alloc(u->uses * sizeof *u->use);
    for (uint32_t t = 0; t < tiles; t++) {
        u->tile[t] = (tess_plan_tile){1 + any(9), TESS_ROLE_WEIGHT, TESS_TIER_CPU, true, true};
        u->use[3 * t] = (tess_plan_use){t, t, TESS_R};
        u->use[3 * t + 1] = (tess_plan_use){t, 2 * tiles - 1 - t - any(2) * (t + 1 < tiles), TESS_R};
        u->use[3 * t + 2] = (tess_plan_use){t, 2 * tiles - 1 - t / 2, TESS_RW};
        if (u->use[3 * t + 2].task <= u->use[3 * t + 1].task) u->use[3 * t + 2].task = 2 * tiles - 1;
    }
}

/* Amounts of slack that are tried at a time give what each gives alone, and of them the best is taken. */
TEST(slacks_at_a_time)
{
    enum { SLACKS = 5 };
    tess_uses u;
    tess_level l = {0};
    tess_placed alone[SLACKS], placed;
    state = 5;
    draw_large(&u, 600);
    tess_level_init(&u, TESS_TIER_CPU, &l);
    l.room = 1500, l.homes = true, l.rounds = 30, l.last_rounds = 60;
    int best = 0;
    for (int i = 0; i < SLACKS; i++) {
        tess_marks *m = tess_marks_new(&u);
        l.slack[0] = 1000 - 200 * (uint64_t)i, l.slacks = 1;
        tess_level_place(&u, &l, m, &alone[i]);
        tess_marks_free(m);
        const double now = (double)(alone[i].read + alone[i].written),
                     least = (double)(alone[best].read + alone[best].written);
        if (now <= 0.99 * least) best = i;
    }
    CHECK(best > 0);
    for (int i = 0; i < SLACKS; i++) l.slack[i] = 1000 - 200 * (uint64_t)i;
    l.slacks = SLACKS;
    tess_marks *m = tess_marks_new(&u), *other = tess_marks_new(&u);
    tess_level_place(&u, &l, m, &placed);
    CHECK_EQ(placed.slack, l.slack[best]);
    CHECK_EQ(placed.read, alone[best].read);
    CHECK_EQ(placed.written, alone[best].written);
    CHECK_EQ(placed.bound, alone[best].bound);
    l.slack[0] = placed.slack, l.slacks = 1;
    tess_level_place(&u, &l, other, &placed);
    CHECK(!memcmp(m->leaves, other->leaves, u.uses) && !memcmp(m->home, other->home, u.tiles));
    tess_marks_free(m);
    tess_marks_free(other);
    tess_level_free(&l);
    free(u.tile);
    free(u.task);
    free(u.use);
}
