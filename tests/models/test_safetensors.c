/* Safetensors: what is written is read back, in one file and in shards; every corruption of a header is refused; a
 * failed write leaves nothing. */
#define CHECK_MAIN
#include "models/files/safetensors/safetensors.h"
#include "tests/check.h"
#include <dirent.h>
#include <math.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char path[512];

static char *new_dir(void)
{
    char *dir = tess_strdup("test_safetensors_XXXXXX");
    CHECK(mkdtemp(dir));
    return dir;
}

static const char *in(const char *dir, const char *name)
{
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

/* Removes the directory and frees its name; how many files it held. */
static int end_dir(char *dir)
{
    int files = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));)
        if (e->d_name[0] != '.') files += unlink(in(dir, e->d_name)) == 0;
    closedir(d);
    CHECK_EQ(rmdir(dir), 0);
    free(dir);
    return files;
}

static void write_text(const char *name, const char *text)
{
    FILE *f = fopen(name, "wb");
    CHECK(f && fwrite(text, 1, strlen(text), f) == strlen(text));
    if (f) fclose(f);
}

/* ---- round trips ---- */

/* Element i of tensor t: a small integer, exact in every dtype. */
static float element(int t, int64_t i)
{
    return (float)((i * 7 + t * 13) % 200 - 100);
}

static const struct {
    const char *name;
    tess_dtype dtype;
    int rank;
    int64_t dims[3], elements;
} tensors[] = {
    {"z.weight", TESS_F32, 2, {37, 5}, 185}, {"a.bias", TESS_BF16, 1, {101}, 101},   {"scalar", TESS_F32, 0, {0}, 1},
    {"empty", TESS_BF16, 2, {0, 4}, 0},      {"m\"é/x", TESS_F32, 3, {2, 3, 4}, 24},
};
enum { TENSORS = sizeof tensors / sizeof *tensors };

/* A rectangle of tensor t, (all_rows, all_cols) as a matrix. */
static tess_status write_rectangle(tess_safetensors_writer *w, int t, int64_t all_cols, int64_t row, int64_t rows,
                                   int64_t col, int64_t cols)
{
    uint8_t bytes[1024];
    size_t n = 0, size = tess_dtype_size(tensors[t].dtype);
    for (int64_t r = row; r < row + rows; r++)
        for (int64_t c = col; c < col + cols; c++, n += size) {
            float f = element(t, r * all_cols + c);
            tess_bf16 b = tess_to_bf16(f);
            memcpy(bytes + n, size == 4 ? (void *)&f : (void *)&b, size);
        }
    return tess_safetensors_write(w, (size_t)t, row, rows, col, cols, bytes);
}

/* Writes all of them in rectangles of at most high x wide, the last one first. */
static tess_status write_all(const char *dir, uint64_t shard_bytes, int64_t high, int64_t wide)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", shard_bytes);
    for (int t = 0; t < TENSORS; t++)
        CHECK_EQ(tess_safetensors_declare(w, tensors[t].name, tensors[t].dtype, tensors[t].rank, tensors[t].dims), t);
    tess_status status = tess_safetensors_writer_begin(w);
    for (int t = TENSORS - 1; t >= 0; t--) {
        int64_t rows = tensors[t].rank ? tensors[t].dims[0] : 1, cols = rows ? tensors[t].elements / rows : 4;
        for (int64_t r = (rows - 1) / high * high; r >= 0; r -= high)
            for (int64_t c = (cols - 1) / wide * wide; c >= 0 && status == TESS_OK; c -= wide)
                status = write_rectangle(w, t, cols, r, rows - r < high ? rows - r : high, c,
                                         cols - c < wide ? cols - c : wide);
    }
    return tess_safetensors_writer_end(w, status);
}

static void check_all(const char *where)
{
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(where, &s), TESS_OK);
    if (!s) return;
    CHECK_EQ(tess_safetensors_count(s), TENSORS);
    for (size_t i = 1; i < tess_safetensors_count(s); i++)
        CHECK(strcmp(tess_safetensors_at(s, i - 1)->name, tess_safetensors_at(s, i)->name) < 0);
    CHECK(!tess_safetensors_find(s, "b.bias"));
    for (int t = 0; t < TENSORS; t++) {
        const tess_safetensor *x = tess_safetensors_find(s, tensors[t].name);
        CHECK(x);
        if (!x) continue;
        CHECK_EQ(x->dtype, tensors[t].dtype == TESS_F32 ? TESS_ST_F32 : TESS_ST_BF16);
        CHECK_EQ(x->rank, tensors[t].rank);
        CHECK_EQ(x->elements, tensors[t].elements);
        for (int i = 0; i < x->rank; i++) CHECK_EQ(x->dims[i], tensors[t].dims[i]);
        float got[256];
        int64_t first = x->elements / 3;
        CHECK_EQ(tess_safetensor_read(x, first, x->elements - first, got), TESS_OK);
        for (int64_t i = first; i < x->elements; i++) CHECK_EQ(got[i - first], element(t, i));
    }
    tess_safetensors_close(s);
}

/* Floats that are given, as they are read back from a tensor of that dtype. */
static void round_trip(tess_safetensors_dtype dtype, const float *in, int64_t n, float *out)
{
    char *dir = new_dir();
    tess_safetensors *s = NULL;
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    tess_safetensors_declare_floats(w, "x", dtype, 2, (int64_t[]){n / 4, 4});
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK)
        status = tess_safetensors_write(w, 0, 0, n / 8, 0, 4, in); /* whole rows, and parts of some */
    for (int64_t c = 0; c < 4 && status == TESS_OK; c += 2) {
        float *half = tess_alloc((size_t)n * sizeof *half);
        const int64_t first = n / 8, rows = n / 4 - first;
        for (int64_t i = 0; i < 2 * rows; i++) half[i] = in[(first + i / 2) * 4 + c + i % 2];
        status = tess_safetensors_write(w, 0, first, rows, c, 2, half);
        free(half);
    }
    CHECK_EQ(tess_safetensors_writer_end(w, status), TESS_OK);
    CHECK_EQ(tess_safetensors_open(dir, &s), TESS_OK);
    const tess_safetensor *x = s ? tess_safetensors_find(s, "x") : NULL;
    CHECK(x && x->dtype == dtype && x->elements == n);
    if (x) CHECK_EQ(tess_safetensor_read(x, 0, n, out), TESS_OK);
    tess_safetensors_close(s);
    CHECK_EQ(end_dir(dir), 1);
}

static float float_of(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Every number of 16 bits stays what it is; between two of them the nearer one is written, halfway the even one. */
TEST(floats_are_rounded_to_nearest_even)
{
    enum { FINITE = 0x7c00 - 1, N = 4 * FINITE };
    float *in = tess_alloc(N * sizeof *in), *out = tess_alloc(N * sizeof *out);
    for (int h = 0; h < FINITE; h++) { /* of F16: those from 0 on, and what lies between it and the next */
        const int e = h >> 10, next = (h + 1) >> 10;
        const double a = e ? ldexp(1024 + (h & 1023), e - 25) : ldexp(h, -24),
                     b = next ? ldexp(1024 + ((h + 1) & 1023), next - 25) : ldexp(h + 1, -24);
        in[4 * h] = (float)a;
        in[4 * h + 1] = -(float)((a + b) / 2);
        in[4 * h + 2] = nextafterf((float)((a + b) / 2), 0);
        in[4 * h + 3] = nextafterf((float)((a + b) / 2), INFINITY);
    }
    round_trip(TESS_ST_F16, in, N, out);
    for (int h = 0; h + 1 < FINITE; h++) {
        const float a = in[4 * h], b = in[4 * h + 4];
        const bool good =
            out[4 * h] == a && out[4 * h + 1] == -(h % 2 ? b : a) && out[4 * h + 2] == a && out[4 * h + 3] == b;
        if (!good) CHECK_SAY("%g: %g, %g, %g, %g", a, out[4 * h], out[4 * h + 1], out[4 * h + 2], out[4 * h + 3]);
    }
    const float ends[8] = {65519.99f, 65520, -65520, 1e30f, INFINITY, -INFINITY, NAN, 0x1p-25f};
    round_trip(TESS_ST_F16, ends, 8, out);
    CHECK(out[0] == 65504 && out[1] == INFINITY && out[2] == -INFINITY && out[3] == INFINITY);
    CHECK(out[4] == INFINITY && out[5] == -INFINITY && isnan(out[6]) && out[7] == 0);
    for (uint32_t i = 0; i < N; i++) in[i] = float_of(i * 0x8008u); /* of BF16 the upper half of a float */
    round_trip(TESS_ST_BF16, in, N, out);
    for (uint32_t i = 0; i < N; i++) {
        const uint32_t bits = i * 0x8008u, even = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
        if (isnan(in[i]) ? !isnan(out[i]) : out[i] != float_of(even)) CHECK_SAY("%a became %a", in[i], out[i]);
    }
    free(in);
    free(out);
}

TEST(one_file)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 100}, {100, 1}, {7, 3}, {200, 200}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char *dir = new_dir();
        CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, sizes[i][0], sizes[i][1]), TESS_OK);
        check_all(dir);
        check_all(in(dir, "model.safetensors"));
        CHECK_EQ(end_dir(dir), 1);
    }
}

TEST(shards)
{
    char *dir = new_dir();
    CHECK_EQ(write_all(dir, 310, 5, 4), TESS_OK); /* 740 bytes, which are more alone, and 202 + 4 + 0 + 96 */
    check_all(dir);
    check_all(in(dir, "model.safetensors.index.json"));
    CHECK_EQ(access(in(dir, "model-00001-of-00002.safetensors"), F_OK), 0);
    CHECK_EQ(access(in(dir, "model-00002-of-00002.safetensors"), F_OK), 0);
    /* The other form replaces this one, and this one that: what is left over would be read instead. */
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 5, 4), TESS_OK);
    CHECK(access(in(dir, "model.safetensors.index.json"), F_OK) != 0);
    check_all(dir);
    CHECK_EQ(write_all(dir, 310, 5, 4), TESS_OK);
    CHECK(access(in(dir, "model.safetensors"), F_OK) != 0);
    check_all(dir);
    CHECK_EQ(end_dir(dir), 3);
}

TEST(nothing_in_it)
{
    char *dir = new_dir();
    tess_safetensors *s = NULL;
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", 100);
    CHECK_EQ(tess_safetensors_writer_end(w, tess_safetensors_writer_begin(w)), TESS_OK);
    CHECK_EQ(tess_safetensors_open(dir, &s), TESS_OK);
    CHECK_EQ(tess_safetensors_count(s), 0);
    CHECK(!tess_safetensors_find(s, "x"));
    tess_safetensors_close(s);
    CHECK_EQ(end_dir(dir), 1);
}

/* ---- writing that fails ---- */

/* What `limited` says of files that may have `bytes`, in a process of its own: 0 where all of its checks hold. */
static int under_limit(rlim_t bytes, void (*limited)(const char *dir), const char *dir)
{
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        int before = check_failures;
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){bytes, RLIM_INFINITY});
        limited(dir);
        fflush(stdout);
        _exit(check_failures > before);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void no_room(const char *dir)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    tess_safetensors_declare(w, "x", TESS_F32, 2, (int64_t[]){1 << 10, 1 << 10});
    tess_status status = tess_safetensors_writer_begin(w); /* before anything is written */
    CHECK_EQ(status, TESS_FAILED);
    CHECK_HAS(tess_error_text(), "model.safetensors.tmp: cannot be written: File too large");
    CHECK_EQ(tess_safetensors_writer_end(w, status), TESS_FAILED);
}

static void no_room_for_a_shard(const char *dir)
{
    CHECK_EQ(write_all(dir, 310, 5, 4), TESS_FAILED); /* the second alone would fit */
    CHECK_HAS(tess_error_text(), "model-00001-of-00002.safetensors.tmp: cannot be written: File too large");
}

TEST(disk_full)
{
    char *dir = new_dir();
    CHECK_EQ(under_limit(100000, no_room, dir), 0);
    CHECK_EQ(under_limit(700, no_room_for_a_shard, dir), 0);
    CHECK_EQ(end_dir(dir), 0);
}

/* The file is a device that cannot have a size, and is always full. */
TEST(no_file_at_all)
{
    char *dir = new_dir();
    CHECK_EQ(symlink("/dev/full", in(dir, "model.safetensors.tmp")), 0);
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 5, 4), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "model.safetensors.tmp: cannot be written: ");
    CHECK_EQ(end_dir(dir), 0);
}

TEST(no_directory)
{
    CHECK_EQ(write_all("/nonexistent/dir", TESS_SAFETENSORS_SHARD, 5, 4), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "/nonexistent/dir/model.safetensors.tmp: cannot be created: No such file");
}

/* Given up half-way: what was there before is still there, whole. */
TEST(given_up)
{
    char *dir = new_dir();
    float x[185] = {0};
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 5, 4), TESS_OK);
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    tess_safetensors_declare(w, "x", TESS_F32, 1, (int64_t[]){185});
    CHECK_EQ(tess_safetensors_writer_begin(w), TESS_OK);
    CHECK_EQ(tess_safetensors_write(w, 0, 60, 25, 0, 1, x), TESS_OK);
    CHECK_EQ(tess_safetensors_writer_end(w, TESS_FAILED), TESS_FAILED);
    check_all(dir);
    CHECK_EQ(end_dir(dir), 1);
}

/* ---- headers ---- */

/* A file in memory: a header and `bytes` of tensors, 0, 1, 2, ...; what opening it says. The copy ends where the
 * file does, so that a sanitizer sees what reads beyond. */
static tess_status open_header(const char *header, size_t bytes, tess_safetensors **s, uint8_t **file)
{
    uint64_t length = strlen(header);
    *file = tess_alloc(8 + length + bytes);
    memcpy(*file, &length, 8);
    memcpy(*file + 8, header, length);
    for (size_t i = 0; i < bytes; i++) (*file)[8 + length + i] = (uint8_t)i;
    *s = NULL;
    return tess_safetensors_view("t", *file, 8 + length + bytes, s);
}

TEST(headers)
{
#define ENTRY(dtype, shape, begin, end)                                                                                \
    "{\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": [" begin ", " end "]}"
    static const struct {
        const char *header;
        size_t bytes;
        const char *error; /* NULL: it is good */
    } cases[] = {
        {"{}", 0, NULL},
        {"{}  ", 0, NULL},
        {"{\"__metadata__\": {\"format\": \"pt\"}, \"x\": " ENTRY("F32", "[2]", "0", "8") "}", 8, NULL},
        {"{\"x\": " ENTRY("F32", "[2]", "8", "16") ", \"y\": " ENTRY("U8", "[8]", "0", "8") "}", 16, NULL},
        {"{\"x\": " ENTRY("F32", "[0]", "8", "8") ", \"y\": " ENTRY("U8", "[8]", "0", "8") "}", 8, NULL},
        {"", 0, "t: header: byte 8: is no JSON"},
        {"[]", 0, "t: the header is no JSON object"},
        {"{\"x\": ", 0, "is no JSON"},
        {"{} x", 0, "is no JSON"},
        {"{}", 1, "t: 1 bytes follow the last tensor"},
        {"{\"x\": 3}", 0, "t: x: has no dtype"},
        {"{\"x\": " ENTRY("F31", "[2]", "0", "8") "}", 8, "t: x: dtype F31 is not known"},
        {"{\"x\": " ENTRY("F32", "2", "0", "8") "}", 8, "t: x: has no shape"},
        {"{\"x\": " ENTRY("F32", "[-2]", "0", "8") "}", 8, "t: x: dimension 0 is no number"},
        {"{\"x\": " ENTRY("F32", "[1, 2.0]", "0", "8") "}", 8, "t: x: dimension 1 is no number"},
        {"{\"x\": " ENTRY("F32", "[1,1,1,1,1,1,1,1,2]", "0", "8") "}", 8, "t: x: has 9 dimensions, at most 8"},
        {"{\"x\": " ENTRY("F32", "[4294967296, 4294967296]", "0", "8") "}", 8, "t: x: the shape has more than 2^63"},
        {"{\"x\": " ENTRY("F32", "[4611686018427387904]", "0", "0") "}", 0, "t: x: data_offsets 0 to 0 are 0 bytes"},
        {"{\"x\": " ENTRY("F32", "[3]", "0", "8") "}", 8, "are 8 bytes, 3 elements of F32 are 12"},
        {"{\"x\": " ENTRY("F32", "[2]", "0", "8") "}", 7, "t: x: data_offsets 0 to 8 are outside of the 7 bytes"},
        {"{\"x\": " ENTRY("F32", "[2]", "8", "0") "}", 8, "t: x: data_offsets 8 to 0 are outside"},
        {"{\"x\": " ENTRY("F32", "[2]", "-8", "0") "}", 8, "t: x: data_offsets -8 to 0 are outside"},
        {"{\"x\": " ENTRY("F32", "[2]", "0", "9223372036854775807") "}", 8, "are outside"},
        {"{\"x\": " ENTRY("F32", "[2]", "0", "8.0") "}", 8, "t: x: has no data_offsets"},
        {"{\"x\": {\"dtype\": \"U8\", \"shape\": [1], \"data_offsets\": [0]}}", 1, "t: x: has no data_offsets"},
        {"{\"x\": " ENTRY("U8", "[8]", "0", "8") ", \"y\": " ENTRY("U8", "[8]", "4", "12") "}", 12, "they overlap"},
        {"{\"x\": " ENTRY("U8", "[8]", "0", "8") ", \"y\": " ENTRY("U8", "[8]", "0", "8") "}", 8, "they overlap"},
        {"{\"x\": " ENTRY("U8", "[4]", "0", "4") ", \"y\": " ENTRY("U8", "[4]", "8", "12") "}", 12,
         "t: y: begins at byte 8 of the tensors, but the one before it ends at 4 (a hole)"},
        {"{\"x\": " ENTRY("U8", "[4]", "4", "8") "}", 8, "a hole"},
        {"{\"x\": " ENTRY("U8", "[4]", "0", "4") "}", 8, "t: 4 bytes follow the last tensor"},
        {"{\"x\": " ENTRY("U8", "[4]", "0", "4") ", \"x\": " ENTRY("U8", "[4]", "4", "8") "}", 8, "duplicate"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_safetensors *s;
        uint8_t *file;
        tess_status status = open_header(cases[c].header, cases[c].bytes, &s, &file);
        if (status != (cases[c].error ? TESS_INVALID : TESS_OK))
            CHECK_SAY("case %zu: %d: %s", c, status, tess_error_text());
        if (cases[c].error) CHECK_HAS(tess_error_text(), cases[c].error);
        tess_error_clear();
        tess_safetensors_close(s);
        free(file);
    }
}

TEST(lengths)
{
    static const uint64_t lengths[] = {3, 100000001, (uint64_t)1 << 63, UINT64_MAX - 7, UINT64_MAX};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        uint8_t file[10] = {0, 0, 0, 0, 0, 0, 0, 0, '{', '}'};
        tess_safetensors *s = NULL;
        memcpy(file, &lengths[i], 8);
        CHECK_EQ(tess_safetensors_view("t", file, sizeof file, &s), TESS_INVALID);
        CHECK_HAS(tess_error_text(), i ? "expected at most 100000000" : "header length 3, but 2 bytes follow");
    }
}

/* A good file cut at every length. */
TEST(truncated)
{
    char *dir = new_dir();
    uint8_t file[4096];
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 200, 200), TESS_OK);
    FILE *f = fopen(in(dir, "model.safetensors"), "rb");
    size_t n = f ? fread(file, 1, sizeof file, f) : 0;
    if (f) fclose(f);
    CHECK(n > 1000 && n < sizeof file);
    for (size_t cut = 0; cut < n; cut++) {
        tess_safetensors *s = NULL;
        uint8_t *copy = memcpy(tess_alloc(cut), file, cut);
        CHECK_EQ(tess_safetensors_view("t", copy, cut, &s), TESS_INVALID);
        free(copy);
    }
    CHECK_EQ(truncate(in(dir, "model.safetensors"), (off_t)n - 1), 0);
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(dir, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "/model.safetensors: ");
    end_dir(dir);
}

/* ---- shards that do not fit their index ---- */

TEST(index_refused)
{
    static const struct {
        const char *index, *error;
    } cases[] = {
        {"{", "index.json:1:"},
        {"{}", "index.json: weight_map: expected an object"},
        {"{\"weight_map\": {}}", "index.json: weight_map: expected an object"},
        {"{\"weight_map\": {\"x\": 3}}", "index.json: x: expected the name of a file"},
        {"{\"weight_map\": {\"x\": \"../model.safetensors\"}}", "index.json: x: expected the name of a file"},
        {"{\"weight_map\": {\"x\": \"gone.safetensors\"}}", "gone.safetensors: cannot be opened"},
        {"{\"weight_map\": {\"x\": \"one.safetensors\"}}", "index.json: x: is not in one.safetensors"},
        {"{\"weight_map\": {\"scalar\": \"one.safetensors\", \"x\": \"two.safetensors\"}}", "is in "},
    };
    char *dir = new_dir();
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 200, 200), TESS_OK);
    char *one = tess_format("%s/one.safetensors", dir), *two = tess_format("%s/two.safetensors", dir);
    CHECK_EQ(rename(in(dir, "model.safetensors"), one), 0);
    CHECK_EQ(write_all(dir, TESS_SAFETENSORS_SHARD, 200, 200), TESS_OK);
    CHECK_EQ(rename(in(dir, "model.safetensors"), two), 0);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_safetensors *s = NULL;
        write_text(in(dir, "model.safetensors.index.json"), cases[c].index);
        CHECK_EQ(tess_safetensors_open(dir, &s), TESS_INVALID);
        CHECK_HAS(tess_error_text(), cases[c].error);
        tess_error_clear();
    }
    free(one);
    free(two);
    CHECK_EQ(end_dir(dir), 3);
}

TEST(nothing_there)
{
    char *dir = new_dir();
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(dir, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "has no model.safetensors or pytorch_model.bin");
    CHECK_EQ(tess_safetensors_open(in(dir, "no"), &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "/no: cannot be opened: No such file or directory");
    end_dir(dir);
}

/* ---- stacks ---- */

static bool is_stack(const void *context, const char *name)
{
    return !strcmp(name, context);
}

/* Matrices that are one tensor of a file, between others, and are matrices again. */
TEST(stacks)
{
    enum { MEMBERS = 3, ROWS = 5, COLS = 4, N = ROWS * COLS };
    for (int k = 0; k < 2; k++) {
        char *dir = new_dir();
        float values[N], got[N];
        tess_safetensors *s;
        /* One file, and several, of which the stack has one. */
        tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", k ? 100 : TESS_SAFETENSORS_SHARD);
        CHECK_EQ(tess_safetensors_declare(w, "a", TESS_F32, 2, (int64_t[]){ROWS, COLS}), 0);
        CHECK_EQ(tess_safetensors_declare_stack(w, "m", TESS_ST_BF16, MEMBERS, (int64_t[]){ROWS, COLS}), 1);
        CHECK_EQ(tess_safetensors_declare(w, "z", TESS_F32, 2, (int64_t[]){ROWS, COLS}), 1 + MEMBERS);
        CHECK_EQ(tess_safetensors_writer_begin(w), TESS_OK);
        for (int t = 0; t < MEMBERS + 2; t++) {
            for (int i = 0; i < N; i++) values[i] = element(t, i);
            CHECK_EQ(tess_safetensors_write(w, (size_t)t, 0, ROWS, 0, COLS, values), TESS_OK);
        }
        CHECK_EQ(tess_safetensors_writer_end(w, TESS_OK), TESS_OK);
        CHECK_EQ(tess_safetensors_open(dir, &s), TESS_OK);
        CHECK_EQ(tess_safetensors_count(s), 3);
        const tess_safetensor *m = tess_safetensors_find(s, "m");
        CHECK(m && m->rank == 3 && m->dims[0] == MEMBERS && m->dims[1] == ROWS && m->dims[2] == COLS);
        CHECK_EQ(tess_safetensors_unstack(s, is_stack, "m"), TESS_OK);
        CHECK_EQ(tess_safetensors_count(s), MEMBERS + 2);
        static const char *const names[] = {"a", "m.0", "m.1", "m.2", "z"};
        for (int t = 0; t < MEMBERS + 2; t++) {
            const tess_safetensor *x = tess_safetensors_find(s, names[t]);
            CHECK(x && x->rank == 2 && x->dims[0] == ROWS && x->elements == N);
            CHECK_EQ(tess_safetensor_read(x, 0, N, got), TESS_OK);
            for (int i = 0; i < N; i++) CHECK(got[i] == element(t, i));
            tess_safetensor_forget(x);
        }
        tess_safetensors_close(s);
        CHECK_EQ(end_dir(dir), k ? 4 : 1);
    }
}

/* Byte i of what follows a header is i: codes of bytes 0 to 63, and exponents. */
TEST(blocks_of_four_bits)
{
    static const float value[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, 0, -0.5f, -1, -1.5f, -2, -3, -4, -6};
#define MXFP4(shape, scales)                                                                                           \
    "{\"m_blocks\": " ENTRY("U8", shape, "0", "64") ", \"m_scales\": " ENTRY("U8", scales, "64", "68") "}"
    tess_safetensors *s;
    uint8_t *file;
    float got[64];
    CHECK_EQ(open_header(MXFP4("[2,1,2,16]", "[2,1,2]"), 68, &s, &file), TESS_OK);
    for (int i = 0; i < 4; i++) file[8 + strlen(MXFP4("[2,1,2,16]", "[2,1,2]")) + 64 + (size_t)i] = (uint8_t)(125 + i);
    CHECK_EQ(tess_safetensors_unstack(s, is_stack, "m"), TESS_OK);
    CHECK_EQ(tess_safetensors_count(s), 2);
    for (int k = 0; k < 2; k++) {
        const tess_safetensor *m = tess_safetensors_find(s, k ? "m.1" : "m.0");
        CHECK(m && m->rank == 2 && m->dims[0] == 1 && m->dims[1] == 64 && m->elements == 64);
        for (int from = 0; from < 64; from += 23) {
            CHECK_EQ(tess_safetensor_read(m, from, 64 - from, got), TESS_OK);
            for (int i = from; i < 64; i++) {
                const int byte = 32 * k + i / 2, code = i % 2 ? byte >> 4 : byte & 15, exponent = 2 * k + i / 32 - 2;
                CHECK(got[i - from] == ldexpf(value[code], exponent));
            }
        }
    }
    tess_safetensors_close(s);
    free(file);
    static const struct {
        const char *header, *error;
    } bad[] = {
        {MXFP4("[2,1,2,16]", "[2,2]"), "m_blocks: expected MXFP4: U8 (members,rows,blocks,16)"},
        {MXFP4("[2,1,4,8]", "[2,1,2]"), "m_blocks: expected MXFP4"},
        {"{\"m_blocks\": " ENTRY("U8", "[2,1,2,16]", "0", "64") ", \"n\": " ENTRY("U8", "[4]", "64", "68") "}",
         "m_blocks: has no m_scales beside it"},
        {"{\"m\": " ENTRY("F32", "[17]", "0", "68") "}", "m: has 1 dimensions (expected 3: a stack of matrices)"},
        {"{\"m_blocks\": " ENTRY("F32", "[2,1,8]", "0", "64") ", \"m_scales\": " ENTRY("U8", "[2,1,2]", "64", "68") "}",
         "m_blocks: expected MXFP4"},
    };
    for (size_t k = 0; k < sizeof bad / sizeof *bad; k++) {
        CHECK_EQ(open_header(bad[k].header, 68, &s, &file), TESS_OK);
        CHECK_EQ(tess_safetensors_unstack(s, is_stack, "m"), TESS_INVALID);
        CHECK_HAS(tess_error_text(), bad[k].error);
        tess_error_clear();
        tess_safetensors_close(s);
        free(file);
    }
    /* What is no stack keeps its name, whatever that ends with. */
    CHECK_EQ(open_header(MXFP4("[64]", "[4]"), 68, &s, &file), TESS_OK);
    CHECK_EQ(tess_safetensors_unstack(s, is_stack, "other"), TESS_OK);
    CHECK(tess_safetensors_find(s, "m_blocks") && tess_safetensors_find(s, "m_scales"));
    tess_safetensors_close(s);
    free(file);
}

/* Of what bitsandbytes stores of a matrix all has to be there, and to fit: a weight of 64 bytes, then scales, a map and
 * a text. */
TEST(codes_want_what_they_stand_for)
{
#define STATE(more, shape)                                                                                             \
    "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"float32\", \"shape\": " shape more "}"
    static const struct {
        const char *scales, *map, *text, *error;
        int scale_bytes, map_bytes;
    } cases[] = {
        {"\"F32\", \"shape\": [2]", "[16]", STATE("", "[2, 64]"), NULL, 8, 64},
        {"\"F32\", \"shape\": [2]", "[16]", STATE("", "[64, 2]"), NULL, 8, 64},
        {"\"F32\", \"shape\": [2]", "[16]", "[]", "expected an object with the blocksize, the dtype and the shape", 8,
         64},
        {"\"F32\", \"shape\": [2]", "[16]", STATE("", "[2, 65]"), "whose 64 bytes have two elements each", 8, 64},
        {"\"F32\", \"shape\": [2]", "[16]", STATE("", "[4611686018427387905, 4]"), "expected an object", 8, 64},
        {"\"F32\", \"shape\": [3]", "[16]", STATE("", "[2, 64]"),
         "a.weight.absmax: has 3 elements of F32 (expected 2 of F32)", 12, 64},
        {"\"U8\", \"shape\": [2]", "[16]", STATE("", "[2, 64]"), "has 2 elements of U8 (expected 2 of F32)", 2, 64},
        {"\"F32\", \"shape\": [2]", "[15]", STATE("", "[2, 64]"), "a.weight.quant_map: has 15 elements of F32", 8, 60},
        {"\"U8\", \"shape\": [2]", "[16]", STATE(", \"nested_blocksize\": 256", "[2, 64]"),
         "a.weight: is bitsandbytes' and has no a.weight.nested_absmax beside it", 2, 64},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        char header[1000];
        const int text = (int)strlen(cases[k].text), map = 64 + cases[k].scale_bytes, end = map + cases[k].map_bytes;
        tess_safetensors *s;
        uint8_t *file;
        float got[128];
        snprintf(
            header, sizeof header,
            "{\"a.weight\": " ENTRY(
                "U8", "[64,1]", "0",
                "64") ", \"a.weight.absmax\": {\"dtype\": %s, "
                      "\"data_offsets\": [64, %d]}, \"a.weight.quant_map\": {\"dtype\": \"F32\", \"shape\": %s, "
                      "\"data_offsets\": [%d, %d]}, \"a.weight.quant_state.bitsandbytes__nf4\": {\"dtype\": \"U8\", "
                      "\"shape\": [%d], \"data_offsets\": [%d, %d]}}",
            cases[k].scales, map, cases[k].map, map, end, text, end, end + text);
        CHECK_EQ(open_header(header, (size_t)(end + text), &s, &file), TESS_OK);
        uint8_t *body = file + 8 + strlen(header);
        const float scale[] = {2, -0.5f};
        memcpy(body + 64, scale, (size_t)cases[k].scale_bytes < sizeof scale ? 0 : sizeof scale);
        for (int i = 0; i < 16 && cases[k].map_bytes == 64; i++) memcpy(body + map + 4 * i, &(float){(float)i}, 4);
        memcpy(body + end, cases[k].text, (size_t)text);
        const tess_status status = tess_safetensors_unstack(s, is_stack, "other");
        CHECK_EQ(status, cases[k].error ? TESS_INVALID : TESS_OK);
        if (cases[k].error) CHECK_HAS(tess_error_text(), cases[k].error);
        if (!cases[k].error) {
            const tess_safetensor *t = tess_safetensors_at(s, 0);
            CHECK_EQ(tess_safetensors_count(s), 1);
            CHECK(t->rank == 2 && t->dims[0] == (k ? 64 : 2) && t->elements == 128);
            CHECK_EQ(tess_safetensor_read(t, 0, 128, got), TESS_OK);
            for (int i = 0; i < 128; i++) CHECK(got[i] == scale[i / 64] * (float)(i % 2 ? i / 2 & 15 : i / 2 >> 4));
        }
        tess_error_clear();
        tess_safetensors_close(s);
        free(file);
    }
}

/* Of rows of 8 bits too; byte i of what follows a header is i. */
TEST(rows_of_eight_bits)
{
#define EIGHT(scales, end, more)                                                                                       \
    "{\"a.weight\": " ENTRY("I8", "[2,2]", "0", "4") ", \"a.SCB\": " ENTRY("F32", scales, "4", end) more "}"
    static const struct {
        const char *header, *error;
        size_t bytes;
    } cases[] = {
        {EIGHT("[2]", "12", ""), NULL, 12},
        {EIGHT("[3]", "16", ""), "a.SCB: has 3 elements of F32 (expected 2 of F32)", 16},
        {EIGHT("[2]", "12", ", \"a.weight_format\": " ENTRY("U8", "[]", "12", "13")),
         "a.weight: lies as a GPU wanted it", 13},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_safetensors *s;
        uint8_t *file;
        float got[4], scale[2];
        CHECK_EQ(open_header(cases[k].header, cases[k].bytes, &s, &file), TESS_OK);
        memcpy(scale, file + 8 + strlen(cases[k].header) + 4, sizeof scale);
        CHECK_EQ(tess_safetensors_unstack(s, is_stack, "other"), cases[k].error ? TESS_INVALID : TESS_OK);
        if (cases[k].error) CHECK_HAS(tess_error_text(), cases[k].error);
        if (!cases[k].error) {
            CHECK_EQ(tess_safetensors_count(s), 1);
            CHECK_EQ(tess_safetensor_read(tess_safetensors_at(s, 0), 0, 4, got), TESS_OK);
            for (int i = 0; i < 4; i++) CHECK(got[i] == (float)i * scale[i / 2] * (1 / 127.0f));
        }
        tess_error_clear();
        tess_safetensors_close(s);
        free(file);
    }
}

/* Byte i of what follows a header is i: codes of bytes 0 to 255, and scales of blocks that are cut off. */
TEST(blocks_of_eight_bits)
{
    enum { ROWS = 129, COLS = 130, N = ROWS * COLS };
#define E4M3(shape, scales)                                                                                            \
    "{\"m\": " ENTRY("F8_E4M3", shape, "0", "16770") ", \"m_scale_inv\": " ENTRY("F32", scales, "16770", "16786") "}"
    static const float scale[2][2] = {{0.5f, 3}, {0.1f, -7}};
    static float got[N];
    tess_safetensors *s;
    uint8_t *file;
    CHECK_EQ(open_header(E4M3("[129,130]", "[2,2]"), N + 16, &s, &file), TESS_OK);
    memcpy(file + 8 + strlen(E4M3("[129,130]", "[2,2]")) + N, scale, sizeof scale);
    CHECK_EQ(tess_safetensor_read(tess_safetensors_find(s, "m"), 0, 1, got), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "m: is F8_E4M3, but has no m_scale_inv beside it");
    tess_error_clear();
    CHECK_EQ(tess_safetensors_scale(s), TESS_OK);
    CHECK_EQ(tess_safetensors_count(s), 1);
    for (int from = 0; from < N; from += 3001) {
        CHECK_EQ(tess_safetensor_read(tess_safetensors_find(s, "m"), from, N - from, got), TESS_OK);
        for (int i = from; i < N; i++) {
            const int code = i & 255, exponent = code >> 3 & 15;
            const double size = exponent ? (1 + (code & 7) / 8.) * exp2(exponent - 7) : (code & 7) / 8. * exp2(-6);
            const float want = (float)(code & 128 ? -size : size) * scale[i / COLS / 128][i % COLS / 128];
            if ((code & 127) == 127 ? got[i - from] == got[i - from] : got[i - from] != want)
                CHECK_SAY("element %d, %d: %g, expected %g", i, code, (double)got[i - from], (double)want);
        }
    }
    tess_safetensors_close(s);
    free(file);
    static const char *const bad[] = {E4M3("[129,130]", "[4,1]"), E4M3("[130,129]", "[4]"), E4M3("[16770]", "[2,2]")};
    for (int k = 0; k < 3; k++) {
        CHECK_EQ(open_header(bad[k], N + 16, &s, &file), TESS_OK);
        CHECK_EQ(tess_safetensors_scale(s), TESS_INVALID);
        CHECK_HAS(tess_error_text(), "m_scale_inv: expected F32, one for each block of 128 x 128 of an F8_E4M3 matrix");
        tess_error_clear();
        tess_safetensors_close(s);
        free(file);
    }
}

/* ---- elements ---- */

TEST(conversions)
{
    static const uint16_t half[] = {0x0000, 0x8000, 0x3c00, 0xc000, 0x7bff, 0x0400,
                                    0x0001, 0x83ff, 0x7c00, 0xfc00, 0x3555};
    static const double want[] = {0, -0.0, 1, -2, 65504, 0x1p-14, 0x1p-24, -0x3ffp-24, INFINITY, -INFINITY, 0x1.554p-2};
    enum { N = sizeof half / sizeof *half };
    float got[N];
    tess_safetensor t = {
        .name = "x", .file = "t", .dtype = TESS_ST_F16, .elements = N, .data = half, .bytes = sizeof half};
    CHECK_EQ(tess_safetensor_read(&t, 0, N, got), TESS_OK);
    for (int i = 0; i < N; i++) CHECK(got[i] == (float)want[i] && !signbit(got[i]) == !signbit(want[i]));
    CHECK_EQ(tess_safetensor_read(&t, N, 0, got), TESS_OK);
    const uint16_t nan = 0x7e01, brain[] = {0x3f80, 0xc049};
    t = (tess_safetensor){.dtype = TESS_ST_F16, .elements = 1, .data = &nan};
    CHECK_EQ(tess_safetensor_read(&t, 0, 1, got), TESS_OK);
    CHECK(isnan(got[0]));
    t = (tess_safetensor){.dtype = TESS_ST_BF16, .elements = 2, .data = brain};
    CHECK_EQ(tess_safetensor_read(&t, 1, 1, got), TESS_OK);
    CHECK(got[0] == -3.140625f);
    t = (tess_safetensor){.dtype = TESS_ST_F64, .elements = N, .data = want};
    CHECK_EQ(tess_safetensor_read(&t, 2, 3, got), TESS_OK);
    CHECK(got[0] == 1 && got[1] == -2 && got[2] == 65504);
    t = (tess_safetensor){.name = "x", .file = "t", .dtype = TESS_ST_I32, .elements = 1, .data = want};
    CHECK_EQ(tess_safetensor_read(&t, 0, 1, got), TESS_INVALID);
    CHECK_STR(tess_error_text(), "t: x: is I32, expected floats (F32, BF16, F16 or F64)");
}
