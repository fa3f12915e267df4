/* What the emulation of kernels promises, tried on kernels that are wrong.
 *
 * The instructions of tensor_cores.h, by their text: a warp brings tiles, takes them apart and multiplies them, and the
 * sums are those of plain loops. Then the same with each text a letter off, one letter after the other: that must be
 * refused, or show in the sums. So the strings that a GPU gets are those that ran. */
#define TESS_EMULATED
#include "codelets/shared/tensor_cores.h"
#define CHECK_MAIN
#include "tests/check.h"
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
int emulated_turn, emulated_launches;
void tess_work_fail(const tess_work *, const char *, ...) {}
}

#ifdef __SANITIZE_ADDRESS__ /* where a process takes long to begin */
constexpr int HOWS = 1;
#else
constexpr int HOWS = 3; /* ways in which a letter is changed */
#endif
constexpr int DIM = 64, ROWS = 16, VALID = 13, BLOCKS = 2; /* copies come late in one block and at once in the other */

struct tiles {
    half16 a[ROWS][DIM], b[ROWS][DIM];
    float along[16][16], across[16][16], power[WARP];
};
static tiles in[BLOCKS], out[BLOCKS];

/* along = a b^T, over DIM; across = a (16 of its columns) b (16 of its columns). Rows from VALID on are zeros. */
TESS_KERNEL(WARP) tiles_kernel(const tiles *from, tiles *to)
{
    TESS_DYNAMIC_SHARED(shared);
    half16 *a = (half16 *)shared, *b = a + ROWS * DIM, *never = b + ROWS * DIM;
    const int lane = (int)threadIdx.x, g = lane >> 2, t = lane & 3;
    from += blockIdx.x, to += blockIdx.x;
    copy_tile<DIM, ROWS, WARP>(a, &from->a[0][0], DIM, VALID);
    copy_tile<DIM, ROWS, WARP>(b, &from->b[0][0], DIM, VALID);
    copies_end_group();
    copy_tile<DIM, ROWS, WARP>(never, &from->a[0][0], DIM, VALID);
    copies_end_group();
    copies_wait<1>();
    __syncthreads();
    float along[2][4] = {}, across[2][4] = {};
    uint32_t left[4], right[4];
    for (int k = 0; k < DIM; k += 16) {
        load_a<DIM>(left, a, 0, k, lane);
        load_b_pair<DIM>(right, b, 0, k, lane);
        multiply_add<TESS_BF16>(along[0], left, right);
        multiply_add<TESS_BF16>(along[1], left, right + 2);
    }
    load_a<DIM>(left, a, 0, 16, lane);
    load_b_pair_across<DIM>(right, b, 0, 32, lane);
    multiply_add<TESS_BF16>(across[0], left, right);
    multiply_add<TESS_BF16>(across[1], left, right + 2);
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++) {
            to->along[g + i / 2 * 8][n * 8 + 2 * t + i % 2] = along[n][i];
            to->across[g + i / 2 * 8][n * 8 + 2 * t + i % 2] = across[n][i];
        }
    to->power[lane] = power_of_2((float)(lane * 5 - 140)); /* from where a float is no longer normal */
}

static void run()
{
    tess_work w = {};
    launch(&w, tiles_kernel, BLOCKS, WARP, 3 * ROWS * DIM * sizeof(half16), (const tiles *)in, out);
}

/* ---- texts, and what becomes of them ---- */

static std::vector<const char *> texts;
static const char *see(const char *text)
{
    texts.push_back(text);
    return text;
}
static const char *changes, *changed;
static const char *change(const char *text)
{
    return strcmp(text, changes) ? text : changed;
}

enum fate { REFUSED, SHOWS, SAME };
/* In a process of its own, whose instructions have not been read yet. */
static fate fate_of(const char *text, const char *instead)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        tiles right[BLOCKS];
        memcpy((void *)right, (const void *)out, sizeof right);
        memset((void *)out, 0, sizeof out);
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        changes = text, changed = instead;
        emulate::ptx_text = change;
        run();
        _exit(memcmp(right, out, sizeof out) ? 1 : 0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) ? REFUSED : WEXITSTATUS(status) == 0 ? SAME : WEXITSTATUS(status) == 1 ? SHOWS : REFUSED;
}

TEST(a_letter_off)
{
    int refused = 0, shows = 0;
    emulate::ptx_text = see;
    for (int k = 0; k < BLOCKS; k++)
        for (int i = 0; i < ROWS * DIM; i++) {
            const tess_random_key key = {(uint32_t)k, 5};
            (&in[k].a[0][0])[i] = tess_to_bf16((float)(int)(tess_random_at(key, (uint64_t)i) % 9) - 4);
            (&in[k].b[0][0])[i] = tess_to_bf16((float)(int)(tess_random_at(key, (uint64_t)(i + 5000)) % 9) - 4);
        }
    /* What there is: read by a child, which tells by a file; ours are to be read first in each child. */
    FILE *said = tmpfile();
    fflush(stdout);
    const pid_t reader = fork();
    if (reader == 0) {
        run();
        for (const char *text : texts) fprintf(said, "%s\n", text);
        fwrite(out, sizeof out, 1, said);
        fflush(said);
        _exit(0);
    }
    waitpid(reader, NULL, 0);
    rewind(said);
    char line[400];
    std::vector<std::string> all;
    while (all.size() < 7 && fgets(line, sizeof line, said)) {
        line[strcspn(line, "\n")] = 0;
        all.push_back(line);
    }
    CHECK_EQ(all.size(), 7);
    CHECK_EQ(fread(out, sizeof out, 1, said), 1);
    fclose(said);

    for (int k = 0; k < BLOCKS; k++)
        for (int i = 0; i < 16; i++)
            for (int j = 0; j < 16; j++) {
                float along = 0, across = 0;
                for (int l = 0; l < DIM && i < VALID && j < VALID; l++)
                    along += tess_from_bf16(in[k].a[i][l]) * tess_from_bf16(in[k].b[j][l]);
                for (int l = 0; l < VALID && i < VALID; l++)
                    across += tess_from_bf16(in[k].a[i][16 + l]) * tess_from_bf16(in[k].b[l][32 + j]);
                CHECK_NEAR(out[k].along[i][j], along, 0);
                CHECK_NEAR(out[k].across[i][j], across, 0);
            }
    CHECK_NEAR(out[0].power[2], 0, 0); /* 2^-130 */
    CHECK_NEAR(out[0].power[28], 1, 0);

    for (const std::string &text : all) {
        CHECK_EQ(fate_of(text.c_str(), text.c_str()), SAME);
        for (size_t at = 0; at < text.size(); at++) {
            if (text[at] == ' ') continue;
            const char c = text[at];
            const bool digit = c >= '0' && c <= '9';
            for (int how = 0; how < HOWS; how++) {
                std::string other = text;
                if (how == 0)
                    other.erase(at, 1);
                else
                    other[at] = digit ? (char)('0' + (c - '0' + (how == 1 ? 1 : 7)) % 10) : how == 1 ? 'x' : '%';
                if (other == text) continue;
                const fate f = fate_of(text.c_str(), other.c_str());
                refused += f == REFUSED, shows += f == SHOWS;
                if (f == SAME) CHECK_SAY("\"%s\" did what \"%s\" does", other.c_str(), text.c_str());
            }
        }
    }
    printf("%d texts were refused, %d gave other sums\n", refused, shows);
    CHECK(refused > 150 * HOWS);
    CHECK(shows > 0 || HOWS == 1);
}

/* Right in itself, and wrong here. */
TEST(another_word)
{
    static const char plain[] = "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];";
    static const char trans[] = "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];";
    static const char mma[] = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
                              "{%8, %9}, {%0, %1, %2, %3};";
    static const char *const words[][3] = {
        {plain, trans, "!"},
        {trans, plain, "!"},
        {plain, "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %2, %1, %3}, [%4];", "!"},
        {mma,
         "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
         "%3};",
         "!"},
        {mma,
         "mma.sync.aligned.m16n8k16.row.row.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
         "%2, %3};",
         ""},
        {mma,
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %6, %5, %7}, {%8, %9}, {%0, %1, "
         "%2, %3};",
         "!"},
        {mma,
         "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%9, %8}, {%0, %1, "
         "%2, %3};",
         "!"},
        {"cp.async.cg.shared.global [%0], [%1], 16, %2;", "cp.async.ca.shared.global [%0], [%1], 16, %2;", "="},
        {"cp.async.cg.shared.global [%0], [%1], 16, %2;", "cp.async.ca.shared.global [%0], [%1], 8, %2;", ""},
        {"cp.async.wait_group %0;", "cp.async.wait_group 2;", ""},
        {"ex2.approx.ftz.f32 %0, %1;", "ex2.approx.f32 %0, %1;", "!"},
    };
    for (size_t k = 0; k < sizeof words / sizeof *words; k++) {
        const fate want = words[k][2][0] == '!' ? SHOWS : words[k][2][0] == '=' ? SAME : REFUSED;
        if (fate_of(words[k][0], words[k][1]) != want) CHECK_SAY("\"%s\" did not do what was expected", words[k][1]);
    }
}

/* ---- shared memory ---- */

/* A static array of a template that nobody wrote in this block. */
template <int N> TESS_KERNEL(N) unwritten_kernel(float *seen)
{
    TESS_SHARED(float, room, [N]);
    if (threadIdx.x == 0) seen[blockIdx.x] = room[1];
    __syncthreads();
    room[threadIdx.x] = 7;
}
/* So many bytes of an array, and as many floats of it that are written. */
template <int BYTES, int WRITTEN> TESS_KERNEL(WARP) large_kernel(int)
{
    TESS_SHARED(unsigned char, room, [BYTES]);
    volatile unsigned char *at = room;
    if (threadIdx.x == 0) at[WRITTEN] = 1;
}
/* A copy to a place that the launch did not ask for. */
TESS_KERNEL(1) far_kernel(const half16 *from)
{
    TESS_DYNAMIC_SHARED(shared);
    copy_async(shared + 1024, from, true);
}

template <class F> static bool ends(F kernels)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(9);
        kernels();
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

TEST(shared_memory_is_nobodys)
{
    float seen[3] = {};
    tess_work w = {};
    launch(&w, unwritten_kernel<64>, 3, 64, 0, seen);
    for (const float x : seen) CHECK(x != x);
}

TEST(shared_memory_that_there_is_not)
{
    alignas(16) static const half16 from[8] = {};
    tess_work w = {};
    emulated_turn = 1; /* an sm_86 */
    CHECK(!ends([&] { launch(&w, large_kernel<48 << 10, 0>, 2, WARP, 0, 0); }));
    CHECK(ends([&] { launch(&w, large_kernel<(48 << 10) + 1, 0>, 2, WARP, 0, 0); }));
    CHECK(!ends([&] { launch(&w, large_kernel<9 << 10, 0>, 2, WARP, 90 << 10, 0); }));
    CHECK(ends([&] { launch(&w, large_kernel<10 << 10, 0>, 2, WARP, 90 << 10, 0); }));
    CHECK(ends([&] { launch(&w, large_kernel<1, 0>, 2, WARP, 100 << 10, 0); }));
    CHECK(ends([&] { launch(&w, large_kernel<9 << 10, 0>, 2, WARP, 40 << 10, 0); })); /* nobody asked */
    emulated_turn = 0;                                                                /* an sm_90 */
    CHECK(!ends([&] { launch(&w, large_kernel<10 << 10, 0>, 2, WARP, 90 << 10, 0); }));
    CHECK(!ends([&] { launch(&w, far_kernel, 1, 1, 1040, from); }));
    CHECK(ends([&] { launch(&w, far_kernel, 1, 1, 1039, from); }));
#ifdef __SANITIZE_ADDRESS__
    CHECK(ends([&] { launch(&w, large_kernel<64, 64>, 1, WARP, 0, 0); }));
#endif
}
