/* The memory below StarPU's buffers, under a cap: what it maps is below it at any moment, though giving pages back
 * takes its time, and others ask meanwhile. The slab's two calls of the kernel, and the one of StarPU's that installs
 * it, are this program's. */
#define CHECK_MAIN
#include "check.h"
#include "share_impl.h"
#include "tiles_impl.h"
#include <linux/mempolicy.h>
#include <pthread.h>
#include <starpu.h>
#include <sys/mman.h>
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
    uint64_t now, most;
    bool slow; /* pages take their time to go */
    int going;
    pthread_cond_t goes;
} map = {.lock = PTHREAD_MUTEX_INITIALIZER, .goes = PTHREAD_COND_INITIALIZER};

void starpu_malloc_set_hooks(starpu_malloc_hook m, starpu_free_hook f)
{
    get = m;
    put = f;
}

/* A block is what huge pages are asked for. */
int madvise(void *p, size_t bytes, int advice)
{
    pthread_mutex_lock(&map.lock);
    for (int i = 0; i < SLOTS && advice == MADV_HUGEPAGE; i++) {
        if (map.block[i].p) continue;
        map.block[i].p = p;
        map.block[i].bytes = bytes;
        if ((map.now += bytes) > map.most) map.most = map.now;
        break;
    }
    pthread_mutex_unlock(&map.lock);
    return (int)syscall(SYS_madvise, p, bytes, advice);
}

int munmap(void *p, size_t bytes)
{
    pthread_mutex_lock(&map.lock);
    int i = 0;
    while (i < SLOTS && map.block[i].p != p) i++;
    const bool slow = i < SLOTS && map.slow;
    if (slow) {
        map.going++;
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

static void begin(uint64_t cap)
{
    tess_slab_release();
    tess_slab_install(cap);
    map.most = map.now;
    map.slow = true;
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

static void wait_until_one_goes(void)
{
    pthread_mutex_lock(&map.lock);
    while (!map.going) pthread_cond_wait(&map.goes, &map.lock);
    pthread_mutex_unlock(&map.lock);
}

/* The only spare buffer is on its way out for somebody else. */
TEST(who_finds_no_spare_waits_for_what_leaves)
{
    pthread_t other;
    begin(32 * MiB);
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
    begin(32 * MiB);
    void *a = new_block(10 * MiB), *b = new_block(16 * MiB);
    put(0, a, 10 * MiB, 0);
    tess_slab_install(20 * MiB); /* what is kept and what comes back do not go together */
    map.most = 0;
    CHECK(!pthread_create(&other, NULL, puts_16, b));
    wait_until_one_goes();
    void *mine = new_block(12 * MiB);
    pthread_join(other, NULL);
    CHECK(map.most <= 20 * MiB);
    put(0, mine, 12 * MiB, 0);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

/* StarPU asks for no more than the cap: this is what flow/ram.c sees to. */
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

static void *gets_and_puts(void *number)
{
    static const uint64_t size[] = {5 * MiB, 7 * MiB, 11 * MiB, 17 * MiB, 29 * MiB, MiB / 2};
    unsigned dice = (unsigned)(uintptr_t)number + 1;
    for (int turn = 0; turn < TURNS; turn++) {
        void *p[3];
        uint64_t bytes[3];
        int n = 0;
        for (int k = 0; k < 3; k++) {
            bytes[n] = size[(dice = dice * 1103515245 + 12345) / 65536 % 6];
            if (ask(bytes[n])) p[n] = new_block(bytes[n]), n++;
        }
        while (n--) {
            put(0, p[n], bytes[n], 0);
            pthread_mutex_lock(&flow.lock);
            flow.asked -= bytes[n];
            pthread_mutex_unlock(&flow.lock);
        }
    }
    return NULL;
}

TEST(the_cap_holds_at_any_moment)
{
    pthread_t thread[THREADS];
    begin(flow_cap);
    for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&thread[i], NULL, gets_and_puts, (void *)(intptr_t)i));
    for (int i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    if (map.most > flow_cap) CHECK_SAY("%.1f MiB were mapped, below a cap of 64", (double)map.most / MiB);
    CHECK(map.most > flow_cap / 2);
    tess_slab_release();
    CHECK_EQ(map.now, 0);
}

/* Where hwloc says that this process has cores of two nodes. */
TEST(large_buffers_lie_on_all_nodes)
{
    int policy = -1;
    for (int nodes = 2; nodes >= 1; nodes--) {
        hwloc_topology_t t;
        setenv("HWLOC_SYNTHETIC", nodes == 2 ? "numa:2 core:1 pu:1" : "numa:1 core:2 pu:1", 1);
        setenv("HWLOC_THISSYSTEM", "1", 1);
        hwloc_topology_init(&t);
        CHECK(!hwloc_topology_load(t));
        tess_share_spread(t, hwloc_topology_get_topology_cpuset(t));
        hwloc_topology_destroy(t);
        unsetenv("HWLOC_SYNTHETIC");
        unsetenv("HWLOC_THISSYSTEM");
        begin(32 * MiB);
        void *mine = new_block(4 * MiB);
        const bool told = !syscall(SYS_get_mempolicy, &policy, NULL, 0, mine, MPOL_F_ADDR);
        put(0, mine, 4 * MiB, 0);
        tess_slab_release();
        if (!told) SKIP("the kernel has no memory policies, or does not tell them");
        CHECK_EQ(policy, nodes == 2 ? MPOL_INTERLEAVE : MPOL_DEFAULT);
    }
}
