/* Placement on a GPU, of random lists of tasks that are there, elsewhere or on either side: no moment holds more than
 * there is, the copies are those that the list makes when it is walked, and no choice of gaps, of all that there are,
 * makes fewer than the bound. */
#define CHECK_MAIN
#include "graph/lower/lower.h"
#include "graph/plan/plan.h"
#include "tests/check.h"

enum { TILES = 7, TASKS = 14, USES = 3, MiB = 1 << 20 };

static void nothing(const tess_work *w)
{
    (void)w;
}
static tess_codelet here = {.name = "here", .cpu = nothing, .cuda = nothing};
static tess_codelet elsewhere = {.name = "elsewhere", .cpu = nothing};
static tess_codelet update = {.name = "update", .cpu = nothing, .cuda = nothing, .either = true};

static uint32_t state;
static uint32_t any(uint32_t below)
{
    state = state * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(state >> 8) * below >> 24);
}

/* Weights, which last, and activations, each of which is written, read and over. */
static tess_program *random_list(uint32_t seed, bool updates)
{
    tess_program *p = tess_program_new();
    tess_tile *tile[TILES], *moment = tess_program_tile(p, MiB, TESS_ROLE_MOMENT, "moment");
    bool lives[TILES] = {0};
    state = seed;
    for (int i = 0; i < TILES; i++)
        tile[i] = tess_program_tile(p, (1 + any(4)) * MiB, i < 3 ? TESS_ROLE_WEIGHT : TESS_ROLE_ACTIVATION, "tile");
    const int tasks = seed % 2 ? TASKS : 9;
    for (int k = 0; k < tasks; k++) {
        tess_use use[USES + 1];
        unsigned n = 0;
        tess_codelet *cl = any(4) ? &here : &elsewhere;
        for (int i = 0; i < USES; i++) {
            const int t = (int)any(TILES);
            bool again = false;
            for (unsigned j = 0; j < n; j++) again |= use[j].tile == tile[t];
            if (again) continue;
            static const int modes[] = {TESS_R, TESS_R, TESS_RW, TESS_W};
            const int mode = t >= 3 && !lives[t] ? TESS_W : modes[any(t < 3 ? 4 : 3)];
            lives[t] = true;
            use[n++] = (tess_use){tile[t], mode};
        }
        if (updates && k % 4 == 3) {
            cl = &update;
            use[n++] = (tess_use){moment, TESS_RW};
        }
        tess_program_add(p, cl, NULL, use, n, false);
    }
    tess_program_finish(p, false);
    return p;
}

static tess_status place_below(tess_program *p, uint64_t memory, uint64_t refuse, tess_gpu_placement *out)
{
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_new(u);
    const tess_gpu_conf conf = {.memory = memory, .all = true, .states = 1, .refuse = refuse};
    const tess_status status = tess_plan_gpu(u, &conf, 0, m, out);
    if (status == TESS_OK) tess_marks_apply(p, u, m, TESS_TIER_GPU);
    tess_marks_free(m);
    tess_uses_free(u);
    return status;
}

static tess_status place(tess_program *p, uint64_t memory, tess_gpu_placement *out)
{
    return place_below(p, memory, 0, out);
}

/* ---- walking the list, without the code that placed it ---- */

struct copy {
    bool on_gpu, in_ram, placed;
};

static int index_of(const tess_program *p, const tess_tile *t)
{
    for (size_t i = 0; i < p->tiles; i++)
        if (p->tile[i] == t) return (int)i;
    return -1;
}

static bool moment_at_home(const tess_task *t)
{
    return tess_tile_home(t->use[t->nuse - 1].tile) == TESS_TIER_GPU;
}

/* Copies of the second of two steps, and the most bytes that are placed at a time. */
static uint64_t walk(const tess_program *p, uint64_t *most)
{
    struct copy c[TILES + 1] = {0};
    uint64_t copied = 0;
    *most = 0;
    for (int step = 0; step < 2; step++)
        for (size_t k = 0; k < p->tasks; k++) {
            const tess_task *t = &p->task[k];
            const bool gpu = t->cl == &here || (t->cl == &update && moment_at_home(t));
            for (unsigned i = 0; i < t->nuse; i++) {
                struct copy *one = &c[index_of(p, t->use[i].tile)];
                if (!tess_tile_has_place(t->use[i].tile)) continue;
                const int mode = t->use[i].mode;
                const uint64_t bytes = tess_tile_bytes(t->use[i].tile);
                if (gpu) one->placed = true;
                if (mode & TESS_R) {
                    if (gpu && !one->on_gpu && one->in_ram && step) copied += bytes;
                    if (!gpu && !one->in_ram && one->on_gpu && step) copied += bytes;
                    *(gpu ? &one->on_gpu : &one->in_ram) = true;
                }
                if (mode & TESS_W) {
                    one->on_gpu = gpu;
                    one->in_ram = !gpu;
                }
            }
            uint64_t bytes = 0;
            for (size_t i = 0; i < p->tiles; i++)
                if (c[i].placed) bytes += tess_tile_bytes(p->tile[i]);
            if (bytes > *most) *most = bytes;
            for (unsigned i = 0; i < t->nuse; i++) {
                struct copy *one = &c[index_of(p, t->use[i].tile)];
                if (t->use[i].mode & TESS_LAST) *one = (struct copy){0};
                if (!(t->use[i].mode & TESS_LEAVES_GPU) || !one->placed) continue;
                if (one->on_gpu && !one->in_ram) {
                    if (step) copied += tess_tile_bytes(t->use[i].tile);
                    one->in_ram = true;
                }
                one->on_gpu = one->placed = false;
            }
        }
    return copied;
}

/* The fewest copies of all ways to mark uses that leave within the room. */
static uint64_t best_of_all(const tess_program *p, uint64_t room)
{
    tess_use *use[TASKS * USES];
    int n = 0;
    uint64_t best = UINT64_MAX, most;
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (p->task[k].cl == &here && !(p->task[k].use[i].mode & TESS_LAST)) use[n++] = &p->use[k][i];
    if (n > 13) return 0; /* too many to try */
    for (uint32_t ways = 0; ways < 1u << n; ways++) {
        for (int i = 0; i < n; i++)
            use[i]->mode = ways >> i & 1 ? use[i]->mode | TESS_LEAVES_GPU : use[i]->mode & ~TESS_LEAVES_GPU;
        const uint64_t copied = walk(p, &most);
        if (most <= room && copied < best) best = copied;
    }
    return best;
}

TEST(room_copies_and_bound)
{
    int tried = 0, over = 0;
    double excess = 0;
    for (uint32_t seed = 0; seed < 400; seed++) {
        const bool updates = seed % 3 == 0;
        tess_program *p = random_list(seed, updates);
        tess_gpu_placement all, some, other;
        uint64_t most;
        CHECK_EQ(place(p, 1 << 30, &all), TESS_OK);
        CHECK_EQ(walk(p, &most), all.read + all.written);
        CHECK_EQ(all.read + all.written, all.bound);
        CHECK(most <= all.room);
        for (uint64_t room = 12 * MiB; room <= 20 * MiB; room += 4 * MiB) {
            if (place(p, room + 32 * MiB, &some) != TESS_OK) continue;
            const uint64_t copied = walk(p, &most);
            CHECK_EQ(copied, some.read + some.written);
            CHECK(most <= some.room && some.room <= room);
            CHECK(some.bound <= copied);
            CHECK(updates || copied >= all.read + all.written); /* which may run elsewhere now */
            CHECK_EQ(place_below(p, room + 32 * MiB, copied, &other), TESS_OK);
            CHECK(other.read + other.written >= copied);
            CHECK_EQ(place_below(p, room + 32 * MiB, copied + 1, &other), TESS_OK);
            CHECK_EQ(other.read + other.written, copied);
            CHECK_EQ(other.bound, some.bound);
            const uint64_t best = updates ? 0 : best_of_all(p, some.room);
            if (!best) continue;
            CHECK(some.bound <= best && best <= copied);
            tried++;
            over += copied > best;
            excess += (double)copied / (double)best - 1;
        }
        tess_program_free(p);
    }
    printf("of %d small plans %d are the best there is; on average they copy %.1f%% more\n", tried, tried - over,
           100 * excess / tried);
    CHECK(tried > 100);
    CHECK(excess / tried < 0.1);
}

/* What is on the GPU all its life needs no RAM; what a task elsewhere reads does. */
TEST(homes)
{
    tess_program *p = tess_program_new();
    tess_tile *a = tess_program_tile(p, MiB, TESS_ROLE_ACTIVATION, "a"),
              *b = tess_program_tile(p, MiB, TESS_ROLE_ACTIVATION, "b"),
              *w = tess_program_tile(p, MiB, TESS_ROLE_WEIGHT, "w");
    tess_program_add(p, &here, NULL, (tess_use[]){{w, TESS_R}, {a, TESS_W}, {b, TESS_W}}, 3, false);
    tess_program_add(p, &elsewhere, NULL, (tess_use[]){{b, TESS_R}}, 1, false);
    tess_program_add(p, &here, NULL, (tess_use[]){{w, TESS_RW}, {a, TESS_R}}, 2, false);
    tess_program_finish(p, false);
    tess_gpu_placement out;
    CHECK_EQ(place(p, 1 << 30, &out), TESS_OK);
    CHECK_EQ(tess_tile_home(a), TESS_TIER_GPU);
    CHECK_EQ(tess_tile_home(b), TESS_TIER_CPU);
    CHECK_EQ(tess_tile_home(w), TESS_TIER_GPU);
    CHECK(!tess_tile_flows(a) && tess_tile_flows(b));
    CHECK_EQ(out.home, MiB);
    CHECK_EQ(out.read, 0);
    CHECK_EQ(out.written, MiB);
    tess_program_free(p);
}

TEST(too_little)
{
    tess_program *p = random_list(1, false);
    tess_gpu_placement out;
    CHECK_EQ(place(p, 33 * MiB, &out), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "GPU: its memory leaves");
    tess_program_free(p);
}
