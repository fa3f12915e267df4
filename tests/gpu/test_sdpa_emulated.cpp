/* attention.cu with cuDNN's kernels, those of emulated_dnn.cpp, beside its own: the same results but for rounding where
 * the library is asked, and the same bits where it is not; what it is asked; what is done where it refuses, is wrong,
 * or has no room; and that everything that was made is given back. */
#include "tests/gpu/emulated_names.h"

#include "tests/gpu/emulated_choice.h"
#define CHECK_MAIN
#include "tests/check.h"
#include <vector>
extern "C" {
void tess_emulated_attention_library(const tess_work *w);
void tess_emulated_attention_forward_bf16(const tess_work *w);
void tess_emulated_attention_backward_bf16(const tess_work *w);
void tess_emulated_attention_forward_f16(const tess_work *w);
void tess_emulated_attention_backward_f16(const tess_work *w);
}

static tess_cudnn_choice choose(bool wanted = true, bool trusted = true)
{
    return emulated_choose(tess_emulated_attention_library, wanted, trusted);
}

struct problem {
    int64_t sequences, length, heads, groups, dim, window;
    bool packed, by_head, acc, causal;
    float dropout, cap;
    tess_dtype t = TESS_BF16;
};
struct results {
    std::vector<uint16_t> y, d[3];
    std::vector<float> lse;
};

static std::vector<uint16_t> noise(int64_t n, uint32_t op, tess_dtype t)
{
    std::vector<uint16_t> x((size_t)n);
    for (int64_t i = 0; i < n; i++)
        tess_store(x.data(), i, t, (float)(int32_t)tess_random(3, 0, op, (uint64_t)i) * 0x1p-30f);
    return x;
}

static constexpr size_t ROOM = 64 << 20;
static results run(const problem &p, size_t room_bytes = ROOM, bool listed = false)
{
    static void *room;
    tess_attention_arg a = {};
    tess_env env = {};
    results r;
    env.train = true;
    a.rows = p.sequences * p.length, a.sequence = p.length, a.heads = p.heads, a.groups = p.groups, a.dim = p.dim;
    a.window = p.window, a.causal = p.causal, a.packed = p.packed, a.by_head = p.by_head, a.acc = p.acc;
    a.dropout = p.dropout, a.cap = p.cap, a.scale = 1 / sqrtf((float)p.dim);
    const int64_t wide = a.rows * p.heads * p.dim, narrow = a.rows * p.groups * p.dim;
    std::vector<uint16_t> in[3], dy = noise(wide, 9, p.t);
    const int operands = p.packed ? 1 : 3;
    for (int i = 0; i < operands; i++) {
        const int64_t n = p.packed ? wide + 2 * narrow : i ? narrow : wide;
        in[i] = noise(n, (uint32_t)i, p.t);
        r.d[i] = noise(n, 5, p.t);
    }
    r.y.resize((size_t)wide);
    r.lse.resize((size_t)(a.rows * p.heads));
    std::vector<float> scratch(r.lse.size());
    if (!room) room = aligned_alloc(256, ROOM);
    std::vector<tess_view> forward, backward;
    for (int i = 0; i < operands; i++) forward.push_back({in[i].data(), in[i].size() * 2});
    for (tess_view v : {tess_view{r.y.data(), r.y.size() * 2}, tess_view{r.lse.data(), r.lse.size() * 4}})
        forward.push_back(v);
    backward.push_back({dy.data(), dy.size() * 2});
    backward.insert(backward.end(), forward.begin(), forward.end());
    for (int i = 0; i < operands; i++) backward.push_back({r.d[i].data(), r.d[i].size() * 2});
    for (std::vector<tess_view> *all : {&forward, &backward}) all->push_back({scratch.data(), scratch.size() * 4});
    if (listed) backward.push_back({room, room_bytes});
    tess_work w = {};
    w.arg = &a, w.env = &env, w.room = room, w.room_bytes = room_bytes;
    w.buf = forward.data(), w.nbuf = (unsigned)forward.size();
    (p.t == TESS_F16 ? tess_emulated_attention_forward_f16 : tess_emulated_attention_forward_bf16)(&w);
    w.buf = backward.data(), w.nbuf = (unsigned)backward.size();
    if (listed) w.room_bytes = 0;
    (p.t == TESS_F16 ? tess_emulated_attention_backward_f16 : tess_emulated_attention_backward_bf16)(&w);
    return r;
}

static double off(const std::vector<uint16_t> &a, const std::vector<uint16_t> &b, tess_dtype t)
{
    return emulated_apart(a.data(), b.data(), a.size(), t);
}
static bool same(const results &a, const results &b)
{
    return a.y == b.y && a.d[0] == b.d[0] && a.d[1] == b.d[1] && a.d[2] == b.d[2] &&
           !memcmp(a.lse.data(), b.lse.data(), a.lse.size() * sizeof(float));
}

/* Forward, then backward `backward` times as there is room for; 0: never. */
static void compare(const problem &p, int forward, int backward, size_t room = ROOM, bool listed = false)
{
    choose(false);
    emulated_cudnn.runs = 0;
    const results own = run(p, room, listed);
    CHECK_EQ(emulated_cudnn.runs, 0);
    CHECK(choose().taken);
    emulated_cudnn.runs = 0;
    const results got = run(p, room, listed);
    CHECK_EQ(emulated_cudnn.runs, forward + backward);
    if (!forward && !backward) CHECK(same(own, got));
    CHECK(off(got.y, own.y, p.t) < 5e-3);
    for (size_t i = 0; i < own.lse.size(); i++) CHECK(fabsf(own.lse[i] - got.lse[i]) < 1e-3f);
    for (int i = 0; i < 3; i++) CHECK(off(got.d[i], own.d[i], p.t) < 1e-2);
    CHECK(same(got, run(p, room, listed)));
    if (emulated_cudnn.refused[0]) CHECK_SAY("%s", emulated_cudnn.refused);
}

TEST(takes_what_it_does)
{
    compare({2, 128, 2, 2, 64, 0, true, false, false, true, 0, 0}, 1, 1);
    compare({1, 256, 1, 1, 64, 0, false, false, false, true, 0, 0}, 1, 1);
    compare({1, 128, 2, 1, 128, 0, true, false, false, true, 0, 0}, 1, 1);
    compare({1, 128, 2, 1, 64, 50, false, false, false, true, 0, 0}, 1, 1);
    compare({1, 128, 1, 1, 64, 0, true, true, false, true, 0, 0}, 1, 1);
    compare({1, 128, 1, 1, 64, 128, true, false, false, true, 0, 0}, 1, 1); /* a window of all */
    compare({1, 128, 2, 1, 80, 0, true, false, false, true, 0, 0}, 1, 1);
    compare({1, 128, 1, 1, 40, 50, false, false, false, true, 0, 0, TESS_F16}, 1, 1);
    compare({1, 128, 1, 1, 256, 0, true, false, false, true, 0, 0, TESS_F16}, 1, 1);
}

TEST(leaves_the_rest)
{
    compare({1, 96, 2, 2, 64, 0, true, false, false, true, 0, 0}, 0, 0);
    compare({1, 128, 1, 1, 36, 0, true, false, false, true, 0, 0}, 0, 0);
    compare({1, 128, 1, 1, 64, 0, true, false, false, false, 0, 0}, 0, 0);
    compare({1, 128, 1, 1, 64, 0, true, false, false, true, 0.1f, 0}, 0, 0);
    compare({1, 128, 1, 1, 64, 0, true, false, false, true, 0, 30}, 0, 0);
    compare({1, 128, 1, 1, 64, 0, true, false, true, true, 0, 0}, 1, 0); /* gradients that add up */
}

/* Whose products are on tensor cores is what tess_attention_kernels_of says, forward and backward. */
TEST(are_on_tensor_cores)
{
    choose(false);
    for (const tess_dtype t : {TESS_BF16, TESS_F16})
        for (const int64_t dim : {4, 8, 36, 40, 64, 72, 80, 96, 100, 128, 160, 256, 264}) {
            const problem p = {1, 20, 2, 1, dim, 0, true, false, false, true, 0.1f, 0, t};
            tess_attention_arg a = {};
            a.dim = dim;
            const int64_t tile = tess_attention_kernels_of(&a, t, true).tile;
            emulate::multiplied = 0;
            run(p);
            const int64_t was = emulate::multiplied;
            if ((was > 0) != (tile > 0)) CHECK_SAY("heads of %lld: %lld products", (long long)dim, (long long)was);
        }
}

/* ds takes 2 x 128 x 128 bytes a head, and as many sequences are done at a time as there is room for, or groups of
 * heads of one; where there is none for a group, ours does it. Room of the list's own is taken in place of the
 * worker's. */
TEST(does_what_there_is_room_for)
{
    const problem p = {4, 128, 1, 1, 64, 0, true, false, false, true, 0, 0};
    const size_t sequence = 2 * 128 * 128;
    compare(p, 1, 1, 4 * sequence);
    compare(p, 1, 2, 3 * sequence);
    compare(p, 1, 4, sequence);
    compare(p, 1, 0, sequence - 1);
    const problem grouped = {2, 128, 6, 3, 64, 0, true, false, false, true, 0, 0};
    compare(grouped, 1, 2, 7 * sequence);
    compare(grouped, 1, 2 * 3, 5 * sequence);
    compare(grouped, 1, 2 * 3, 2 * sequence);
    compare(grouped, 1, 0, 2 * sequence - 1);
    compare({1, 128, 4, 4, 64, 50, false, false, false, true, 0, 0, TESS_F16}, 1, 2, 2 * sequence);
    compare({1, 128, 2, 2, 64, 0, true, true, false, true, 0, 0}, 1, 2, sequence);
    compare(grouped, 1, 2 * 3, 2 * sequence, true);
    choose();
    emulated_cudnn.room_times = 2; /* more than was thought */
    emulated_cudnn.runs = 0;
    run(p, 4 * sequence);
    CHECK_EQ(emulated_cudnn.runs, 1 + 2);
    emulated_cudnn.room_times = 0;
}

TEST(says_why_it_is_not_taken)
{
    const problem p = {1, 128, 1, 1, 64, 0, true, false, false, true, 0, 0};
    const struct {
        void (*what)(emulated_dnn *);
        const char *said;
    } cases[] = {{[](emulated_dnn *e) { e->wrong = 1.1f; }, "cuDNN is off by"},
                 {[](emulated_dnn *e) { e->idle = true; }, "cuDNN is off by"},
                 {[](emulated_dnn *e) { e->lies = true; }, "cuDNN has other bits each time"},
                 {[](emulated_dnn *e) { e->none = true; }, "cuDNN has no kernels for this GPU"},
                 {[](emulated_dnn *e) { e->fails = true; }, "cuDNN: attention of 2 heads, 128 rows: CUDNN_STATUS"}};
    choose(false);
    const results own = run(p);
    for (const auto &c : cases) {
        choose(false);
        emulated_cudnn = emulated_dnn{};
        c.what(&emulated_cudnn);
        const tess_cudnn_choice arg = choose(true, false);
        CHECK(!arg.taken);
        CHECK(!strncmp(arg.said, c.said, strlen(c.said)));
        CHECK(same(own, run(p)));
        CHECK_EQ(emulated_cudnn.descriptors, 0);
        CHECK_EQ(emulated_cudnn.handles, 0);
    }
    emulated_cudnn = emulated_dnn{};
}

/* Where all engines have other bits each time, or there is none, ours does it, whatever was said. */
TEST(lacks_an_engine)
{
    const problem p = {1, 128, 1, 1, 64, 0, true, false, false, true, 0, 0};
    choose(false);
    const results own = run(p);
    for (int none = 0; none < 2; none++) {
        CHECK(choose().taken);
        emulated_cudnn.none = none, emulated_cudnn.unsteady = !none;
        emulated_cudnn.runs = 0;
        CHECK(same(own, run(p)));
        CHECK_EQ(emulated_cudnn.runs, 0);
        emulated_cudnn.none = emulated_cudnn.unsteady = false;
    }
}

/* Plans are made once, and made again once the device was reset between; more of them than there is room for go. */
TEST(keeps_plans)
{
    problem p = {1, 128, 1, 1, 64, 0, true, false, false, true, 0, 0};
    CHECK(choose().taken);
    emulated_cudnn.plans = 0;
    run(p), run(p);
    CHECK_EQ(emulated_cudnn.plans, 2);
    CHECK(choose(true, false).taken); /* after a trial nothing is left */
    CHECK_EQ(emulated_cudnn.handles, 0);
    CHECK_EQ(emulated_cudnn.descriptors, 0);
    emulated_cudnn.era++;
    emulated_cudnn.plans = 0;
    for (p.window = 1; p.window <= 5; p.window++) run(p);
    CHECK_EQ(emulated_cudnn.plans, 10);
    choose(false);
    if (emulated_cudnn.refused[0]) CHECK_SAY("%s", emulated_cudnn.refused);
}
