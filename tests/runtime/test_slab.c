/* The memory below StarPU's buffers, under a cap: what it maps is below it at any moment, though giving pages back
 * takes its time, and others ask meanwhile. The slab's two calls of the kernel, and the one of StarPU's that installs
 * it, are this program's. */
#define CHECK_MAIN
#include "runtime/ranks/share.h"
#include "runtime/tiles/tiles.h"
#include "tests/check.h"
#include <linux/mempolicy.h>
#include <pthread.h>
#include <starpu.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MiB = 1 << 20, SLOTS = 64, THREADS = 2, TURNS = 30 };

static starpu_malloc_hook get;
static starpu_free_hook put;

/* ---- what the slab calls ---- */

static struct {
    pthread_mutex_t lock;
    struct {
        void *p;
        size_t bytes;
    } block[SLOTS];
    uint64_t now, most, given;
    bool slow;        /* pages take their time to go */
    int going, begun; /* now, and since begin() */
    pthread_cond_t goes;
} map = {.lock = PTHREAD_MUTEX_INITIALIZER, .goes = PTHREAD_COND_INITIALIZER};

void starpu_malloc_set_hooks(starpu_malloc_hook m, starpu_free_hook f)
{
    get = m;
    put = f;
}

static bool whole;

/* A block is what huge pages are asked for; of an arena pages go without it. */
int madvise(void *p, size_t bytes, int advice)
{
    pthread_mutex_lock(&map.lock);
    if (advice == MADV_DONTNEED) {
        map.given += bytes;
        map.going += map.slow;
        map.begun += map.slow;
        pthread_cond_broadcast(&map.goes);
        pthread_mutex_unlock(&map.lock);
        if (map.slow) usleep(5000);
        syscall(SYS_madvise, p, bytes, advice);
        pthread_mutex_lock(&map.lock);
        map.going -= map.slow;
    }
    for (int i = 0; i < SLOTS && advice == MADV_HUGEPAGE; i++) {
        if (map.block[i].p) continue;
        map.block[i].p = p;
        map.block[i].bytes = bytes;
        if ((map.now += bytes) > map.most && whole) map.most = map.now;
        break;
    }
    pthread_mutex_unlock(&map.lock);
    return advice == MADV_DONTNEED ? 0 : (int)syscall(SYS_madvise, p, bytes, advice);
}

int munmap(void *p, size_t bytes)
{
    pthread_mutex_lock(&map.lock);
    int i = 0;
    while (i < SLOTS && map.block[i].p != p) i++;
    const bool slow = i < SLOTS && map.slow;
    if (slow) {
        map.going++, map.begun++;
        pthread_cond_broadcast(&map.goes);
    }
    pthread_mutex_unlock(&map.lock);
    if (slow) usleep(20000);
    const int result = (int)syscall(SYS_munmap, p, bytes);
    pthread_mutex_lock(&map.lock);
    if (i < SLOTS) {
        map.now -= map.block[i].bytes;
        map.block[i].p = NULL;
        map.going -= slow;
    }
    pthread_mutex_unlock(&map.lock);
    return result;
}

static void begin(uint64_t cap, bool stays_whole)
{
    tess_slab_release();
    tess_slab_install(cap, whole = stays_whole);
    map.most = map.now;
    map.slow = true;
    map.begun = 0;
}

static void *new_block(size_t bytes)
{
    void *p = NULL;
    CHECK_EQ(get(0, &p, bytes, 0), 0);
    return p;
}

/* ---- cases ---- */

static void *gets_12(void *unused)
{
    (void)unused;
    put(0, new_block(12 * MiB), 12 * MiB, 0);
    return NULL;
}

/* Or has gone, where this thread was held up. */
static void wait_until_one_goes(void)
{
    pthread_mutex_lock(&map.lock);
    while (!map.begun) pthread_cond_wait(&map.goes, &map.lock);
    pthread_mutex_unlock(&map.lock);
}

/* The only spare buffer is on its way out for somebody else. */
TEST(who_finds_no_spare_waits_for_what_leaves)
{
    pthread_t other;
    begin(32 * MiB, true);
    put(0, new_block(24 * MiB), 24 * MiB, 0);
    CHECK(!pthread_create(&other, NULL, gets_12, NULL));
    wait_until_one_goes();
    void *mine = new_block(16 * MiB);
    pthread_join(other, NULL);
    put(0, mine, 16 * MiB, 0);
    CHECK(map.most <= 32 * MiB);
    CHECK(map.most >= 16 * MiB);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

static void *puts_16(void *p)
{
    put(0, p, 16 * MiB, 0);
    return NULL;
}

/* A buffer that is given back while another is on its way out is nobody's, and is there. */
TEST(what_is_put_back_counts_at_once)
{
    pthread_t other;
    begin(32 * MiB, true);
    void *a = new_block(10 * MiB), *b = new_block(16 * MiB);
    put(0, a, 10 * MiB, 0);
    tess_slab_install(20 * MiB, true); /* what is kept and what comes back do not go together */
    map.most = 0;
    map.begun = 0;
    CHECK(!pthread_create(&other, NULL, puts_16, b));
    wait_until_one_goes();
    void *mine = new_block(12 * MiB);
    pthread_join(other, NULL);
    CHECK(map.most <= 20 * MiB);
    put(0, mine, 12 * MiB, 0);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

/* StarPU asks for no more than the cap: this is what flow/ram_places.c sees to. */
static struct {
    pthread_mutex_t lock;
    uint64_t asked;
} flow = {.lock = PTHREAD_MUTEX_INITIALIZER};
static const uint64_t flow_cap = 64 * MiB;

static bool ask(uint64_t bytes)
{
    pthread_mutex_lock(&flow.lock);
    const bool fits = flow.asked + bytes <= flow_cap;
    if (fits) flow.asked += bytes;
    pthread_mutex_unlock(&flow.lock);
    return fits;
}

static int64_t bytes_there(void); /* of what this process has written to */
static int64_t there_before;

static void *gets_and_puts(void *number)
{
#ifdef __SANITIZE_ADDRESS__
    enum { SIZES = 5 }; /* what the C library had is kept for a while then */
#else
    enum { SIZES = 6 };
#endif
    static const uint64_t size[] = {5 * MiB, 7 * MiB, 11 * MiB, 17 * MiB, 29 * MiB, MiB / 2};
    unsigned dice = (unsigned)(uintptr_t)number + 1;
    for (int turn = 0; turn < TURNS; turn++) {
        void *p[3];
        uint64_t bytes[3];
        int n = 0;
        for (int k = 0; k < 3; k++) {
            bytes[n] = size[(dice = dice * 1103515245 + 12345) / 65536 % SIZES];
            if (!ask(bytes[n])) continue;
            p[n] = new_block(bytes[n]);
            memset(p[n], 1 + (int)(dice % 100), bytes[n]);
            n++;
        }
        if (!whole) {
            const uint64_t there = (uint64_t)(bytes_there() - there_before);
            pthread_mutex_lock(&map.lock);
            if (there > map.most) map.most = there;
            pthread_mutex_unlock(&map.lock);
        }
        while (n--) {
            const unsigned char *at = p[n];
            CHECK_EQ(at[0], at[bytes[n] - 1]); /* nobody else's */
            put(0, p[n], bytes[n], 0);
            pthread_mutex_lock(&flow.lock);
            flow.asked -= bytes[n];
            pthread_mutex_unlock(&flow.lock);
        }
    }
    return NULL;
}

static int64_t bytes_there(void)
{
    long long kb = 0;
    char line[200];
    FILE *f = fopen("/proc/self/smaps_rollup", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f) && sscanf(line, "Anonymous: %lld", &kb) != 1) {
    }
    fclose(f);
    return kb << 10;
}

static void below_the_cap(bool stays_whole)
{
    static char used_up[1 << 20]; /* stacks and what the C library keeps */
    pthread_t thread[THREADS];
    memset(used_up, 1, sizeof used_up);
    begin(flow_cap, stays_whole);
    map.given = 0;
    there_before = bytes_there();
    const uint64_t most = flow_cap + (whole ? 0 : 4 * MiB); /* beside it each thread has some, in huge pages */
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, gets_and_puts, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    if (map.most > most) CHECK_SAY("%.1f MiB were there, below a cap of 64", (double)map.most / MiB);
    CHECK(map.most > flow_cap / 2);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

TEST(the_cap_holds_at_any_moment)
{
    below_the_cap(true);
    below_the_cap(false);
}

/* Sizes that add up: pages serve whatever comes, and none are given back. */
TEST(pages_serve_buffers_of_other_sizes)
{
    begin(24 * MiB, false);
    map.given = 0;
    char *large = new_block(24 * MiB);
    memset(large, 1, 24 * MiB);
    const int64_t there = bytes_there();
    put(0, large, 24 * MiB, 0);
    char *p[8];
    for (int i = 0; i < 8; i++) {
        p[i] = new_block(3 * MiB);
        memset(p[i], i, 3 * MiB);
    }
    for (int i = 0; i < 8; i++) CHECK_EQ(p[i][3 * MiB - 1], i);
    CHECK(bytes_there() - there < MiB);
    CHECK_EQ(map.given, 0);
    /* A hole of 6 MiB where 9 are asked for: what is missing goes elsewhere, and no more than that. */
    put(0, p[2], 3 * MiB, 0);
    put(0, p[3], 3 * MiB, 0);
    put(0, p[6], 3 * MiB, 0);
    char *nine = new_block(9 * MiB);
    memset(nine, 9, 9 * MiB);
    CHECK(bytes_there() - there < MiB);
    CHECK(map.given >= 3 * MiB && map.given <= 11 * MiB);
    for (int i = 0; i < 8; i++)
        if (i != 2 && i != 3 && i != 6) CHECK_EQ(p[i][0], i);
    put(0, nine, 9 * MiB, 0);
    for (int i = 0; i < 8; i++)
        if (i != 2 && i != 3 && i != 6) put(0, p[i], 3 * MiB, 0);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

/* A thousand buffers of random sizes, without a cap: each is its owner's alone, and all space comes back. */
TEST(many_buffers)
{
    enum { MANY = 1000, LIVE = 60 };
    begin(0, false);
    char *p[LIVE] = {0};
    size_t bytes[LIVE] = {0};
    unsigned dice = 7;
    for (int turn = 0; turn < MANY; turn++) {
        dice = dice * 1103515245 + 12345;
        const int i = (int)(dice / 65536 % LIVE);
        if (p[i]) {
            CHECK_EQ(p[i][0], (char)i);
            CHECK_EQ(p[i][bytes[i] - 1], (char)i);
            put(0, p[i], bytes[i], 0);
            p[i] = NULL;
        } else {
            bytes[i] = MiB / 16 + dice / 256 % (4 * MiB);
            p[i] = new_block(bytes[i]);
            CHECK_EQ((uintptr_t)p[i] % 4096, 0);
            p[i][0] = p[i][bytes[i] - 1] = (char)i;
        }
    }
    for (int i = 0; i < LIVE; i++)
        if (p[i]) put(0, p[i], bytes[i], 0);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

static void one_turn(int n, size_t bytes)
{
    void *p[n];
    for (int i = 0; i < n; i++) memset(p[i] = new_block(bytes), i, bytes);
    for (int i = 0; i < n; i++) put(0, p[i], bytes, 0);
}

/* As the activations of a small model are, which come and go with each micro-batch. */
TEST(pages_of_what_is_smaller_than_a_huge_page_are_made_once)
{
    struct rusage before, after;
    begin(0, false);
    for (size_t bytes = MiB / 16; bytes <= MiB; bytes *= 2) {
        one_turn(32, bytes);
        getrusage(RUSAGE_SELF, &before);
        for (int turn = 0; turn < 10; turn++) one_turn(32, bytes);
        getrusage(RUSAGE_SELF, &after);
        CHECK(after.ru_minflt - before.ru_minflt < 200); /* of 5,120 and more */
    }
    tess_slab_release();
}

/* Where hwloc says that this process has cores of two nodes. */
TEST(large_buffers_lie_on_all_nodes)
{
    int policy = -1;
    for (int nodes = 2; nodes >= 1; nodes--) {
        hwloc_topology_t t;
        unsetenv("HWLOC_COMPONENTS"); /* beside which it does not count */
        setenv("HWLOC_SYNTHETIC", nodes == 2 ? "numa:2 core:1 pu:1" : "numa:1 core:2 pu:1", 1);
        setenv("HWLOC_THISSYSTEM", "1", 1);
        hwloc_topology_init(&t);
        CHECK(!hwloc_topology_load(t));
        tess_share_spread(t, hwloc_topology_get_topology_cpuset(t));
        hwloc_topology_destroy(t);
        unsetenv("HWLOC_SYNTHETIC");
        unsetenv("HWLOC_THISSYSTEM");
        begin(32 * MiB, true);
        void *mine = new_block(4 * MiB);
        const bool told = !syscall(SYS_get_mempolicy, &policy, NULL, 0, mine, MPOL_F_ADDR);
        put(0, mine, 4 * MiB, 0);
        tess_slab_release();
        if (!told) SKIP("the kernel has no memory policies, or does not tell them");
        CHECK_EQ(policy, nodes == 2 ? MPOL_INTERLEAVE : MPOL_DEFAULT);
    }
}
