/* What ranks do with each other, on the runtime alone: the program that test_ranks.c runs, alone and below mpirun.
 * `ranks CASE` prints what went wrong; rank 0 prints "done" when nothing did. */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int wrong;

#define EXPECT(cond)                                                                                                   \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            if (wrong++ < 5) printf("rank %d: line %d: %s does not hold\n", tess_rank(), __LINE__, #cond);             \
        }                                                                                                              \
    } while (0)
#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        if ((call) != TESS_OK) {                                                                                       \
            printf("rank %d: line %d: %s\n", tess_rank(), __LINE__, tess_error_text());                                \
            fflush(stdout);                                                                                            \
            tess_ranks_abort(3);                                                                                       \
        }                                                                                                              \
    } while (0)

/* ---- a list of tasks ---- */

enum { TASKS = 4096, SPANS = 8192 };

static struct {
    tess_task task[TASKS];
    tess_use use[TASKS];
    tess_message_arg arg[TASKS];
    tess_span span[SPANS];
    size_t n, spans;
} list;

static void clear(void)
{
    list.n = list.spans = 0;
}

static tess_message_arg *add_message(tess_tile *t, int mode)
{
    size_t k = list.n++;
    TESS_ASSERT(k < TASKS);
    list.use[k] = (tess_use){t, mode};
    list.arg[k] = (tess_message_arg){.span = &list.span[list.spans]};
    list.task[k] =
        (tess_task){.cl = &tess_message, .arg = &list.arg[k], .use = &list.use[k], .nuse = 1, .order = (uint32_t)k};
    return &list.arg[k];
}

static void add_span(tess_message_arg *m, int peer, int tag, bool sends, size_t offset, size_t bytes)
{
    TESS_ASSERT(list.spans < SPANS);
    list.span[list.spans++] = (tess_span){.peer = peer, .tag = tag, .sends = sends, .offset = offset, .bytes = bytes};
    m->spans++;
}

static void add_work(tess_codelet *cl, tess_tile *t, int mode)
{
    size_t k = list.n++;
    TESS_ASSERT(k < TASKS);
    list.use[k] = (tess_use){t, mode};
    list.task[k] = (tess_task){.cl = cl, .use = &list.use[k], .nuse = 1, .order = (uint32_t)k};
}

static void run_list(void)
{
    MUST(tess_submit_all(list.task, list.n));
    MUST(tess_wait());
}

/* ---- contents by which the sender, the message and the place are known ---- */

static unsigned char byte_of(int from, int tag, size_t at)
{
    uint64_t x = (uint64_t)from * 1000003 + (uint64_t)tag * 7919 + at;
    x *= UINT64_C(0x9e3779b97f4a7c15);
    return (unsigned char)(x >> 56);
}

static void fill(tess_tile *t, int from, int tag)
{
    void *data;
    MUST(tess_tile_map(t, TESS_W, &data));
    for (size_t i = 0; i < tess_tile_bytes(t); i++) ((unsigned char *)data)[i] = byte_of(from, tag, i);
    tess_tile_unmap(t);
}

/* Bytes [offset, offset + bytes) are as `from` filled them. */
static bool holds(tess_tile *t, int from, int tag, size_t offset, size_t bytes)
{
    void *data;
    bool good = true;
    MUST(tess_tile_map(t, TESS_R, &data));
    for (size_t i = offset; i < offset + bytes; i++) good = good && ((unsigned char *)data)[i] == byte_of(from, tag, i);
    tess_tile_unmap(t);
    return good;
}

static void start(void)
{
    MUST(tess_start(&TESS_MACHINE_DEFAULT));
}

/* ---- cases ---- */

/* Every rank sends tiles of many sizes to every other, all under way at the same time. */
static void sizes(void)
{
    static const size_t size[] = {1, 7, 4096, 4097, 65536, 1000003, 4 << 20, 16 << 20};
    enum { SIZES = sizeof size / sizeof *size };
    const int n = tess_ranks(), me = tess_rank();
    tess_tile *out[SIZES], *in[SIZES][8];
    uint64_t sent, received, bytes = 0;
    start();
    clear();
    for (int s = 0; s < SIZES; s++) {
        out[s] = tess_tile_new(size[s], TESS_ROLE_ACTIVATION, "out");
        fill(out[s], me, s);
        for (int peer = 0; peer < n; peer++) {
            in[s][peer] = tess_tile_new(size[s], TESS_ROLE_ACTIVATION, "in");
            if (peer == me) continue;
            add_span(add_message(out[s], TESS_R), peer, s, true, 0, size[s]);
            add_span(add_message(in[s][peer], TESS_W), peer, s, false, 0, size[s]);
            bytes += size[s];
        }
    }
    run_list();
    for (int s = 0; s < SIZES; s++)
        for (int peer = 0; peer < n; peer++) {
            if (peer != me) EXPECT(holds(in[s][peer], peer, s, 0, size[s]));
            tess_tile_free(in[s][peer]);
        }
    for (int s = 0; s < SIZES; s++) tess_tile_free(out[s]);
    tess_message_traffic(&sent, &received);
    EXPECT(sent == bytes && received == bytes);
    tess_stop();
}

static void stamp(const tess_work *w)
{
    memset(w->buf[0].ptr, 7, w->buf[0].bytes);
}
static tess_codelet stamp_cl = {.name = "stamp", .dtype = TESS_F32, .cpu = stamp};

/* More than a GiB in both directions at once, through a few tiles: one is filled again when it has gone. */
static void gigabyte(void)
{
    enum { TILES = 4, TURNS = 40 };
    const size_t bytes = 32 << 20;
    const int n = tess_ranks(), me = tess_rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    tess_tile *out[TILES], *in[TILES];
    uint64_t sent, received;
    start();
    clear();
    for (int k = 0; k < TILES; k++) {
        out[k] = tess_tile_new(bytes, TESS_ROLE_ACTIVATION, "out");
        in[k] = tess_tile_new(bytes, TESS_ROLE_ACTIVATION, "in");
    }
    for (int turn = 0; turn < TURNS; turn++) {
        add_work(&stamp_cl, out[turn % TILES], TESS_W);
        add_span(add_message(out[turn % TILES], TESS_R), next, turn, true, 0, bytes);
        add_span(add_message(in[turn % TILES], TESS_W), last, turn, false, 0, bytes);
    }
    run_list();
    for (int k = 0; k < TILES; k++) {
        const unsigned char *data;
        size_t other = 0;
        MUST(tess_tile_map(in[k], TESS_R, (void **)&data));
        for (size_t i = 0; i < bytes; i++) other += data[i] != 7;
        EXPECT(other == 0);
        tess_tile_unmap(in[k]);
        tess_tile_free(in[k]);
        tess_tile_free(out[k]);
    }
    tess_message_traffic(&sent, &received);
    EXPECT(sent == TURNS * bytes && received == sent && sent > 1 << 30);
    tess_stop();
}

/* Each rank has one part of a tile, of another size than the others', and gives it to all: one task a rank. */
static void parts(void)
{
    enum { TILES = 12 };
    const int n = tess_ranks(), me = tess_rank();
    size_t first[9] = {0};
    tess_tile *t[TILES];
    start();
    clear();
    for (int r = 0; r < n; r++) first[r + 1] = first[r] + 100001 * (size_t)(r + 1) * (size_t)(r + 1);
    for (int k = 0; k < TILES; k++) {
        t[k] = tess_tile_new(first[n], TESS_ROLE_WEIGHT, "parts");
        fill(t[k], me, k);
        tess_message_arg *m = add_message(t[k], TESS_RW);
        for (int peer = 0; peer < n; peer++) {
            if (peer == me) continue;
            add_span(m, peer, k, true, first[me], first[me + 1] - first[me]);
            add_span(m, peer, k, false, first[peer], first[peer + 1] - first[peer]);
        }
    }
    run_list();
    for (int k = 0; k < TILES; k++) {
        for (int r = 0; r < n; r++) EXPECT(holds(t[k], r, k, first[r], first[r + 1] - first[r]));
        tess_tile_free(t[k]);
    }
    tess_stop();
}

static void add_one(const tess_work *w)
{
    int64_t *x = w->buf[0].ptr;
    for (size_t i = 0; i < w->buf[0].bytes / sizeof *x; i++) x[i]++;
}
static tess_codelet add_one_cl = {.name = "add_one", .dtype = TESS_F32, .cpu = add_one};

/* A tile goes round the ranks, each of which adds one: messages and tasks keep their order. */
static void round_trips(void)
{
    enum { ROUNDS = 100, COUNT = 5000 };
    const int n = tess_ranks(), me = tess_rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    tess_tile *t = tess_tile_new(COUNT * sizeof(int64_t), TESS_ROLE_ACTIVATION, "round");
    int64_t x[COUNT] = {0};
    start();
    clear();
    MUST(tess_tile_write(t, 0, x, sizeof x));
    for (int k = 0; k < ROUNDS; k++) {
        if (n > 1 && (me || k)) add_span(add_message(t, TESS_W), last, 0, false, 0, sizeof x);
        add_work(&add_one_cl, t, TESS_RW);
        if (n > 1) add_span(add_message(t, TESS_R), next, 0, true, 0, sizeof x);
    }
    if (n > 1 && !me) add_span(add_message(t, TESS_W), last, 0, false, 0, sizeof x);
    run_list();
    MUST(tess_tile_read(t, 0, x, sizeof x));
    for (int i = 0; i < COUNT; i++) EXPECT(x[i] == (int64_t)(me ? (ROUNDS - 1) * n + me + 1 : ROUNDS * n));
    tess_tile_free(t);
    tess_stop();
}

/* Tiles whose home is the disk come and leave, and RAM has room for a few of them. */
static void capped(void)
{
    enum { TILES = 24 };
    const size_t bytes = 1 << 20, room = 6 * bytes;
    const int n = tess_ranks(), me = tess_rank(), next = (me + 1) % n, last = (me + n - 1) % n;
    tess_tile *out[TILES], *in[TILES];
    char name[32];
    uint64_t read, written, used, peak;
    snprintf(name, sizeof name, "disk-%d", me);
    mkdir(name, 0777);
    MUST(tess_start_rooms(&(tess_machine){.cpu_bytes = 64 << 20, .disk = name, .disk_bytes = 4 * TILES * bytes},
                          &(tess_rooms){.cpu_tiles = room}));
    clear();
    for (int k = 0; k < TILES; k++) {
        out[k] = tess_tile_new(bytes, TESS_ROLE_MOMENT, "out");
        in[k] = tess_tile_new(bytes, TESS_ROLE_MOMENT, "in");
        tess_tile_set_home(out[k], TESS_TIER_DISK);
        tess_tile_set_home(in[k], TESS_TIER_DISK);
        fill(out[k], me, k);
        add_span(add_message(out[k], TESS_R | TESS_LEAVES_RAM), next, k, true, 0, bytes);
        add_span(add_message(in[k], TESS_W | TESS_LEAVES_RAM), last, k, false, 0, bytes);
    }
    run_list();
    for (int k = 0; k < TILES; k++) EXPECT(holds(in[k], last, k, 0, bytes));
    tess_disk_traffic(&read, &written, &used, &peak);
    EXPECT(written > TILES * bytes); /* less than half of them have room */
    for (int k = 0; k < TILES; k++) tess_tile_free(in[k]), tess_tile_free(out[k]);
    tess_stop();
    rmdir(name);
}

static void sums(void)
{
    const int n = tess_ranks(), me = tess_rank();
    double x[2] = {me, 0.5};
    int64_t count[2] = {me + 1, 1}, most[2] = {me, -me}, told = me ? 0 : 42;
    struct {
        int rank;
        char text[1000];
    } mine = {.rank = me}, all[16];
    snprintf(mine.text, sizeof mine.text, "of %d", me);
    for (int turn = 0; turn < 50; turn++) tess_ranks_barrier();
    tess_ranks_sum(x, 2);
    EXPECT(x[0] == n * (n - 1) / 2 && x[1] == 0.5 * n);
    tess_ranks_sum_counts(count, 2);
    EXPECT(count[0] == n * (n + 1) / 2 && count[1] == n);
    tess_ranks_most(most, 2);
    EXPECT(most[0] == n - 1 && most[1] == 0);
    tess_ranks_tell(&told, sizeof told);
    EXPECT(told == 42);
    tess_ranks_gather(&mine, sizeof mine, all);
    for (int r = 0; r < n; r++) EXPECT(all[r].rank == r && atoi(all[r].text + 3) == r);
    int here, local = tess_rank_here(&here);
    EXPECT(here == n && local == me); /* mpirun starts them all here */
    EXPECT(tess_share_read()->ranks == n && tess_share_read()->rank == me);
}

/* With `from` on, the ranks fail, each in its way or all in the same. */
static void agree(int from, bool same)
{
    char want[100];
    const int n = tess_ranks(), me = tess_rank();
    EXPECT(tess_ranks_agree(TESS_OK) == TESS_OK);
    tess_status status = TESS_OK;
    if (me >= from) status = tess_error(TESS_INVALID, "file", "is of %d", same ? 0 : me);
    status = tess_ranks_agree(status);
    EXPECT(status == (from < n ? TESS_INVALID : TESS_OK));
    snprintf(want, sizeof want, same && (!from || n == 1) ? "file: is of %d" : "rank %d: file: is of %d", from, from);
    if (same && from) snprintf(want, sizeof want, "rank %d: file: is of 0", from);
    if (n == 1) snprintf(want, sizeof want, "file: is of 0");
    if (from < n && strcmp(tess_error_text(), want))
        wrong++, printf("rank %d: \"%s\", expected \"%s\"\n", me, tess_error_text(), want);
    if (from < n && me % 2) EXPECT(tess_ranks_agree(status) == TESS_INVALID); /* all know, so it asks nobody */
    EXPECT(tess_ranks_agree(TESS_OK) == TESS_OK);                             /* and on they go */
}
static void agree_same(void)
{
    agree(0, true);
}
static void agree_first(void)
{
    agree(0, false);
}
static void agree_last(void)
{
    agree(tess_ranks() - 1, false);
}
static void agree_some(void)
{
    agree(tess_ranks() / 2, true);
}
static void agree_none(void)
{
    agree(tess_ranks(), false);
}

/* A phase of phases: the rank `failing` fails on its way in, before so many of the inner ones' ends, and comes up. */
static tess_status phase(int depth, int failing, int before)
{
    tess_status status = TESS_OK;
    if (depth == before && tess_rank() == failing) return tess_error(TESS_INVALID, "file", "is short");
    if (depth > 0) status = phase(depth - 1, failing, before);
    status = tess_ranks_agree(status);
    return status == TESS_OK || tess_rank() % 2 ? status : tess_error(status, "phase", "%s", tess_error_text());
}
/* However many ends of inner phases that rank did not come by, all meet again, failure after failure. */
static void agree_nested(void)
{
    enum { DEPTH = 4 };
    const int n = tess_ranks();
    for (int failing = 0; failing < n; failing++)
        for (int before = 0; before <= DEPTH; before++) {
            tess_status status = tess_ranks_agree(phase(DEPTH, failing, before));
            EXPECT(status == TESS_INVALID);
            EXPECT(strstr(tess_error_text(), "file: is short"));
            if (before % 2) EXPECT(tess_ranks_agree(phase(DEPTH, failing, -1)) == TESS_OK);
        }
    int64_t count = 1;
    tess_ranks_sum_counts(&count, 1);
    EXPECT(count == n);
}
/* A file that all lack comes, and one rank is the last to see it: each time they agree on what is so then. */
static void agree_anew(void)
{
    const int n = tess_ranks();
    for (int turn = 0; turn < n; turn++) {
        tess_status status = tess_rank() >= turn ? tess_error(TESS_INVALID, "file", "is missing") : TESS_OK;
        EXPECT(tess_ranks_agree(status) == TESS_INVALID);
    }
    EXPECT(tess_ranks_agree(TESS_OK) == TESS_OK);
}
/* The last rank leaves where the others agree, over and over: they hear of it, and none waits. */
static void one_leaves(void)
{
    const int last = tess_ranks() - 1;
    for (int turn = 0; turn < 3 && tess_rank() != last; turn++) {
        EXPECT(tess_ranks_agree(TESS_OK) == TESS_FAILED);
        EXPECT(strstr(tess_error_text(), "left while others go on, its last error: none"));
    }
}

/* The last rank cannot start: the others hear of it, and none of their messages is zeros. */
static void one_cannot(void)
{
    const bool last = tess_rank() == tess_ranks() - 1;
    tess_status status = tess_start(&(tess_machine){.workers = 1, .sched = last ? "nosuch" : NULL});
    EXPECT(status == (last ? TESS_INVALID : TESS_OK));
    if (!last) {
        tess_tile *t = tess_tile_new(64, TESS_ROLE_ACTIVATION, "t");
        EXPECT(!strcmp(tess_message_carrier(), "nothing"));
        clear();
        add_span(add_message(t, TESS_W), tess_ranks() - 1, 1, false, 0, 64);
        MUST(tess_submit_all(list.task, list.n));
        EXPECT(tess_wait() == TESS_FAILED);
        EXPECT(strstr(tess_error_text(), "messages: were not started, since another rank could not start"));
        tess_tile_free(t);
    }
    EXPECT(tess_ranks_agree(status) == TESS_INVALID);
    EXPECT(strstr(tess_error_text(), "sched: \"nosuch\""));
    tess_stop();
}
/* The last rank asks for another carrier, then all for the same. */
static void other_carrier(void)
{
    const bool last = tess_rank() == tess_ranks() - 1;
    const tess_machine m = {.workers = 1,
                            .carrier = (tess_carriers)(last ? (int)TESS_CARRIER_MPI : (int)TESS_CARRIER_ANY)};
    EXPECT(tess_start(&m) == TESS_INVALID);
    EXPECT(strstr(tess_error_text(), "carrier: ranks ask for different ones"));
    EXPECT(tess_start_rooms(&(tess_machine){.workers = 1}, &(tess_rooms){.lanes = 1 + last}) == TESS_INVALID);
    EXPECT(strstr(tess_error_text(), "lanes: are planned on some ranks"));
    start();
    EXPECT(strcmp(tess_message_carrier(), "nothing"));
    tess_stop();
}

/* Ends that take the others along; these wait for a message that never comes. */
static void wait_for_ever(void)
{
    tess_tile *t = tess_tile_new(64, TESS_ROLE_ACTIVATION, "never");
    clear();
    add_span(add_message(t, TESS_W), tess_ranks() - 1, 1, false, 0, 64);
    run_list();
}
/* The other one lives, and has other things to do. */
static void silent(void)
{
    MUST(tess_start(&(tess_machine){.patience = 0.05}));
    if (tess_rank() == 0) wait_for_ever();
    sleep(60);
}
static void out_of_memory(void)
{
    start();
    if (tess_rank() < tess_ranks() - 1) wait_for_ever();
    sleep(1);
    free(tess_alloc(SIZE_MAX / 2));
}
static void a_bug(void)
{
    start();
    if (tess_rank() < tess_ranks() - 1) wait_for_ever();
    sleep(1);
    TESS_ASSERT(tess_rank() < tess_ranks() - 1);
}
/* What comes is longer than the place for it. */
static void refused(void)
{
    enum { BYTES = 1 << 20 };
    const int peer = 1 - tess_rank();
    start();
    clear();
    tess_tile *t = tess_tile_new(BYTES, TESS_ROLE_ACTIVATION, "t");
    fill(t, tess_rank(), 0);
    if (tess_rank() == 0)
        add_span(add_message(t, TESS_R), peer, 1, true, 0, BYTES);
    else
        add_span(add_message(t, TESS_W), peer, 1, false, 0, BYTES / 2);
    run_list();
    sleep(60);
}
static void exits(void)
{
    start();
    if (tess_rank() < tess_ranks() - 1) wait_for_ever();
    sleep(1);
    exit(0);
}
static void leaves_early(void)
{
    start();
    if (tess_rank() < tess_ranks() - 1) wait_for_ever();
    sleep(1);
    _exit(0);
}

/* One of many ranks, the others cut off. */
static void pretends(void)
{
    enum { RANK = 3, OF = 1024 };
    char data[64];
    tess_tile *in = tess_tile_new(sizeof data, TESS_ROLE_ACTIVATION, "in"),
              *out = tess_tile_new(sizeof data, TESS_ROLE_ACTIVATION, "out"),
              *both = tess_tile_new(sizeof data, TESS_ROLE_ACTIVATION, "both");
    tess_ranks_pretend(RANK, OF);
    MUST(tess_ranks_join());
    EXPECT(tess_rank() == RANK && tess_ranks() == OF && tess_ranks_pretended() && !tess_ranks_launched());
    start();
    clear();
    fill(out, RANK, 0);
    fill(both, RANK, 1);
    add_span(add_message(in, TESS_W), 1000, 0, false, 0, sizeof data);
    add_span(add_message(out, TESS_R), 1023, 0, true, 0, sizeof data);
    tess_message_arg *m = add_message(both, TESS_RW);
    add_span(m, 5, 0, true, 0, 32);
    add_span(m, 5, 0, false, 32, 32);
    run_list();
    MUST(tess_tile_read(in, 0, data, sizeof data));
    for (size_t i = 0; i < sizeof data; i++) EXPECT(data[i] == 0);
    EXPECT(holds(both, RANK, 1, 0, 32));
    MUST(tess_tile_read(both, 0, data, sizeof data));
    for (size_t i = 32; i < sizeof data; i++) EXPECT(data[i] == 0);
    EXPECT(holds(out, RANK, 0, 0, sizeof data));
    tess_tile_free(in);
    tess_tile_free(out);
    tess_tile_free(both);
    tess_stop();
}

static const struct {
    const char *name;
    void (*run)(void);
} cases[] = {{"sizes", sizes},
             {"gigabyte", gigabyte},
             {"parts", parts},
             {"round_trips", round_trips},
             {"capped", capped},
             {"sums", sums},
             {"agree_same", agree_same},
             {"agree_first", agree_first},
             {"agree_last", agree_last},
             {"agree_some", agree_some},
             {"agree_none", agree_none},
             {"agree_nested", agree_nested},
             {"agree_anew", agree_anew},
             {"one_leaves", one_leaves},
             {"out_of_memory", out_of_memory},
             {"a_bug", a_bug},
             {"leaves_early", leaves_early},
             {"pretends", pretends},
             {"silent", silent},
             {"refused", refused},
             {"exits", exits},
             {"one_cannot", one_cannot},
             {"other_carrier", other_carrier}};

int main(int argc, char **argv)
{
    if (argc != 2) return 98;
    bool apart = !strcmp(argv[1], "pretends");    /* joins by itself */
    bool leaves = !strcmp(argv[1], "one_leaves"); /* one does not wait for the others' counts */
    if (!apart) MUST(tess_ranks_join());
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (!strcmp(cases[i].name, argv[1])) {
            cases[i].run();
            fflush(stdout);
            int64_t all = wrong;
            if (!apart && !leaves) tess_ranks_sum_counts(&all, 1);
            if (all == 0 && (apart || tess_rank() == 0)) printf("done\n");
            fflush(stdout);
            tess_ranks_leave();
            return wrong > 0;
        }
    return 98;
}
