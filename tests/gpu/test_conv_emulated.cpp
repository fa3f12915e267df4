/* any_conv.cu with cuDNN's convolutions, those of emulated_dnn.cpp, beside its own, which test_bodies compares with the
 * CPU's: the same results but for rounding where the library is asked, and the same bits where it is not; in as much
 * room as there is; what is done where it refuses or is wrong; and that everything that was made is given back. */
#include "tests/gpu/emulated_names.h"

#include "codelets/shared/cudnn_names.h"
#include "tests/gpu/emulated_choice.h"
#define CHECK_MAIN
#include "tests/check.h"
#include <vector>
extern "C" {
#include "tests/ops/convolutions.h"
void tess_emulated_conv_cudnn(const tess_work *w);
void tess_emulated_any_conv_bf16(const tess_work *w);
void tess_emulated_any_conv_input_bf16(const tess_work *w);
void tess_emulated_any_conv_weight_bf16(const tess_work *w);
}

enum { X, W, Y, TENSORS };
static constexpr size_t ROOM = TESS_CUDA_MM_ROOM + (4 << 20); /* what our own products want, and patches */

static tess_cudnn_choice choose(bool wanted = true, bool trusted = true)
{
    return emulated_choose(tess_emulated_conv_cudnn, wanted, trusted);
}

typedef std::vector<char> bytes;
static bytes noise(int64_t n, tess_dtype t, uint32_t op)
{
    bytes b((size_t)n * tess_dtype_size(t));
    for (int64_t i = 0; i < n; i++)
        tess_store(b.data(), i, t, (float)(int32_t)tess_random(3, 0, op, (uint64_t)i) * 0x1p-31f);
    return b;
}
static int64_t volume(const int64_t *dim)
{
    return dim[0] * dim[1] * dim[2];
}

/* What is written; far: its memory begins where the library's cannot. */
static bytes run(tess_any_conv_arg a, int written, size_t room_bytes = ROOM, size_t far = 0)
{
    static const tess_body body[] = {tess_emulated_any_conv_input_bf16, tess_emulated_any_conv_weight_bf16,
                                     tess_emulated_any_conv_bf16};
    static void *room;
    const int64_t size[] = {a.samples * a.groups * a.inputs * volume(a.in),
                            a.groups * a.outputs * a.inputs * volume(a.window),
                            a.samples * a.groups * a.outputs * volume(a.out)};
    tess_env env = {};
    tess_view view[TENSORS];
    char *memory[TENSORS];
    for (int k = 0; k < TENSORS; k++) {
        const bytes b = noise(size[k], k == written ? a.to : TESS_BF16, (uint32_t)k);
        memory[k] = (char *)aligned_alloc(256, (b.size() + far + 255) / 256 * 256);
        memcpy(memory[k] + far, b.data(), b.size());
        view[k] = tess_view{memory[k] + far, b.size()};
    }
    if (!room) room = aligned_alloc(256, ROOM);
    tess_work w = {};
    w.arg = &a, w.env = &env, w.room = room, w.room_bytes = room_bytes, w.buf = view, w.nbuf = TENSORS;
    body[written](&w);
    const bytes made((char *)view[written].ptr, (char *)view[written].ptr + view[written].bytes);
    for (char *m : memory) free(m);
    return made;
}

/* Returns how often the library ran. */
static int compare(const char *name, const tess_any_conv_arg &a, int written, size_t room = ROOM, size_t far = 0)
{
    choose(false);
    const bytes own = run(a, written, ROOM, far);
    CHECK(choose().taken);
    emulated_cudnn.runs = 0, emulated_cudnn.refused[0] = 0;
    const bytes got = run(a, written, room, far);
    const int runs = emulated_cudnn.runs;
    const double apart = emulated_apart(got.data(), own.data(), got.size() / tess_dtype_size(a.to), a.to);
    if (!runs && room < ROOM) return 0; /* nor could ours */
    if (!(apart < (a.to == TESS_BF16 ? 5e-3 : 1e-5)))
        CHECK_SAY("%s writes %c, %s: off by %.2g", name, "xwy"[written], tess_dtype_name(a.to), apart);
    if (!runs && got != own) CHECK_SAY("%s writes %c: other bits", name, "xwy"[written]);
    return runs;
}

TEST(takes_what_it_does)
{
    static const char *const kinds[] = {"3 x 3", "7 x 7 by 2 of 3", "dilated", "groups", "turned", "1d",
                                        "3d",    "as JAX has it"};
    for (int k = 0; k < CONV_PROBLEMS; k++) {
        conv_problem p = conv_problems[k];
        bool wanted = false;
        for (const char *kind : kinds) wanted = wanted || !strcmp(kind, p.name);
        p.samples = 1;
        for (int written = 0; wanted && written < TENSORS; written++) {
            tess_any_conv_arg a = conv_arg(&p);
            const bool eights = a.groups == 1 && a.inputs % 8 == 0 && a.outputs % 8 == 0;
            a.to = written == Y ? TESS_BF16 : TESS_F32, a.acc = (k + written) % 2;
            const int runs = compare(p.name, a, written);
            if (runs != (eights || (written == Y && !a.acc)))
                CHECK_SAY("%s writes %c: %d runs: %s", p.name, "xwy"[written], runs, emulated_cudnn.refused);
        }
    }
    tess_any_conv_arg a = conv_arg(&conv_problems[2]); /* points, which are patches as they lie */
    a.to = TESS_BF16;
    CHECK_EQ(compare("points", a, Y), 0);
}

/* Samples at a time, an even part of all; where there is for none the library is not asked. */
TEST(does_what_there_is_room_for)
{
    tess_any_conv_arg a = conv_arg(&conv_problems[0]); /* 4 samples of 16 x 9 x 11, to 32 channels */
    const size_t x = 16 * 9 * 11 * 2, y = 2 * x, w = 32 * 16 * 9 * 2, line = 256;
    const auto rooms = [&](size_t samples) {
        size_t all = 256;
        for (size_t bytes : {samples * x, samples * y, w}) all += (bytes + line - 1) / line * line;
        return all;
    };
    a.to = TESS_BF16;
    CHECK_EQ(compare("all", a, Y, rooms(4)), 1);
    CHECK(run(a, Y, rooms(4)) == run(a, Y, rooms(4)));
    CHECK_EQ(compare("three", a, Y, rooms(4) - 1), 2);
    CHECK_EQ(compare("one", a, Y, rooms(1)), 4);
    CHECK_EQ(compare("less", a, Y, rooms(1) - 1), 0);
    emulated_cudnn.conv_room = 1 << 20;
    CHECK_EQ(compare("a large workspace", a, Y, (1 << 20) + rooms(2)), 2);
    emulated_cudnn.conv_room = 256;
    a.to = TESS_F32;
    CHECK_EQ(compare("sums of samples", a, W, rooms(1) + w + w), 4);
    for (int written = 0; written < TENSORS; written++) {
        a = conv_arg(&conv_problems[11]); /* as the library wants it */
        a.to = written == Y ? TESS_BF16 : TESS_F32;
        CHECK_EQ(compare("aligned", a, written), 1);
        CHECK_EQ(compare("not aligned", a, written, ROOM, 8), 1);
    }
}

TEST(says_why_it_is_not_taken)
{
    tess_any_conv_arg a = conv_arg(&conv_problems[0]);
    const struct {
        void (*what)(emulated_dnn *);
        const char *said;
    } cases[] = {{[](emulated_dnn *e) { e->wrong = 1.1f; }, "cuDNN is off by"},
                 {[](emulated_dnn *e) { e->idle = true; }, "cuDNN is off by"}, /* what the room had */
                 {[](emulated_dnn *e) { e->lies = true; }, "cuDNN has other bits each time"},
                 {[](emulated_dnn *e) { e->none = true; }, "cuDNN has no kernels for this GPU"},
                 {[](emulated_dnn *e) { e->version = 90900; }, "cuDNN is of version 90900 (expected"},
                 {[](emulated_dnn *e) { e->fails = true; }, "cuDNN: a convolution of 8 to 8 channels: CUDNN_STATUS"}};
    a.to = TESS_BF16;
    choose(false);
    const bytes own = run(a, Y);
    for (const auto &c : cases) {
        choose(false);
        emulated_cudnn = emulated_dnn{};
        c.what(&emulated_cudnn);
        const tess_cudnn_choice said = choose(true, false);
        CHECK(!said.taken);
        if (strncmp(said.said, c.said, strlen(c.said))) CHECK_SAY("it says \"%s\", expected \"%s\"", said.said, c.said);
        CHECK(own == run(a, Y));
        CHECK_EQ(emulated_cudnn.descriptors, 0);
        CHECK_EQ(emulated_cudnn.handles, 0);
    }
    emulated_cudnn = emulated_dnn{};
    CHECK(choose(true, false).taken);
    run(a, Y);
    choose(false);
    CHECK_EQ(emulated_cudnn.descriptors, 0);
    CHECK_EQ(emulated_cudnn.handles, 0);
}

/* A kind that is wrong is ours, and the others are the library's. */
TEST(takes_the_kinds_that_are_right)
{
    static const int of[] = {DNN_OPERATION_CONV_INPUT, DNN_OPERATION_CONV_WEIGHT, DNN_OPERATION_CONV};
    static const char *const name[] = {"gradients by x", "gradients by w", "results"};
    for (int wrong = 0; wrong < TENSORS; wrong++) {
        choose(false);
        emulated_cudnn = emulated_dnn{};
        emulated_cudnn.wrong = 1.1f, emulated_cudnn.wrong_in = of[wrong];
        const tess_cudnn_choice said = choose(true, false);
        CHECK(said.taken);
        if (!strstr(said.said, ", but for ") || !strstr(said.said, name[wrong])) CHECK_SAY("it says \"%s\"", said.said);
        for (int written = 0; written < TENSORS; written++)
            for (int k = 0; k < 2; k++) {
                tess_any_conv_arg a = conv_arg(&conv_problems[3 * k]); /* without steps and with */
                a.to = written == Y ? TESS_BF16 : TESS_F32;
                emulated_cudnn.runs = 0;
                run(a, written);
                CHECK_EQ(emulated_cudnn.runs > 0, written != wrong);
            }
    }
    choose(false);
    emulated_cudnn = emulated_dnn{};
}
