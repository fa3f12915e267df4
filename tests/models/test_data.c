/* Data files: every format and token type read back, the samples and their order, and every way a file can be wrong. */
#define CHECK_MAIN
#include "models/files/data/data.h"
#include "tests/check.h"
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif

/* ---- files made here ---- */

struct buffer {
    uint8_t b[8192];
    size_t n;
};

/* Appends the low `size` bytes of a value. */
static void put(struct buffer *f, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) f->b[f->n++] = (uint8_t)(value >> 8 * i);
}

static void set(struct buffer *f, size_t at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) f->b[at + i] = (uint8_t)(value >> 8 * i);
}

static const size_t size_of_type[] = {0, 1, 1, 2, 4, 8, 8, 4, 2};

/* A pair of `sequences` sequences of 3 tokens, token k of the stream being k % 100; two sequences a document. */
static void make_pair(struct buffer *idx, struct buffer *bin, int type, int sequences)
{
    size_t size = size_of_type[type];
    *idx = *bin = (struct buffer){.n = 9};
    bin->n = 0;
    memcpy(idx->b, "MMIDIDX\0\0", 9);
    put(idx, 1, 8), put(idx, (uint64_t)type, 1), put(idx, (uint64_t)sequences, 8);
    put(idx, (uint64_t)sequences / 2 + 1, 8);
    for (int i = 0; i < sequences; i++) put(idx, 3, 4);
    for (int i = 0; i < sequences; i++) put(idx, (uint64_t)i * 3 * size, 8);
    for (int i = 0; i <= sequences; i += 2) put(idx, (uint64_t)i, 8);
    for (int i = 0; i < 3 * sequences; i++) put(bin, (uint64_t)i % 100, size);
}

static void make_llmc(struct buffer *bin, int magic, int version, int count)
{
    *bin = (struct buffer){.n = 0};
    put(bin, (uint64_t)magic, 4), put(bin, (uint64_t)version, 4), put(bin, (uint64_t)count, 4);
    bin->n = 1024;
    for (int i = 0; i < count; i++) put(bin, (uint64_t)i % 100, magic == 20240520 ? 2 : 4);
}

static char dir[] = "test_data_XXXXXX";
static bool dir_made;
static char path[64];

static const char *in_dir(const char *name)
{
    if (!dir_made) CHECK(mkdtemp(dir));
    dir_made = true;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *write_file(const char *name, const void *data, size_t bytes)
{
    FILE *f = fopen(in_dir(name), "wb");
    CHECK(f && fwrite(data, 1, bytes, f) == bytes);
    if (f) fclose(f);
    return path;
}

static const tess_data_conf conf5 = {.seq_length = 5, .vocab = 100};

static tess_status view(const struct buffer *idx, const struct buffer *bin, const tess_data_conf *conf,
                        tess_data **data)
{
    tess_map i = {.path = "t.idx", .data = idx ? idx->b : NULL, .bytes = idx ? idx->n : 0};
    tess_map b = {.path = "t.bin", .data = bin->b, .bytes = bin->n};
    *data = NULL;
    return tess_data_view(idx ? &i : NULL, &b, conf, data);
}

static tess_status get(const tess_data *d, uint64_t sample, int32_t *ids, int32_t *targets)
{
    return tess_data_get(d, sample, &(tess_sample){.ids = ids, .targets = targets});
}

/* The stream is k % 100 throughout. */
static void check_counting(const tess_data *d, uint64_t tokens, uint64_t samples)
{
    int32_t x[5], y[5];
    CHECK_EQ(tess_data_tokens(d), tokens);
    CHECK_EQ(tess_data_samples(d), samples);
    for (uint64_t s = 0; s < samples; s++) {
        CHECK_EQ(get(d, s, x, y), TESS_OK);
        for (uint64_t t = 0; t < 5; t++) {
            CHECK_EQ(x[t], (s * 5 + t) % 100);
            CHECK_EQ(y[t], (s * 5 + t + 1) % 100);
        }
    }
}

/* ---- what is read ---- */

TEST(megatron_types)
{
    static const int types[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        struct buffer idx, bin;
        tess_data *d;
        make_pair(&idx, &bin, types[i], 52);
        CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_OK);
        if (d) check_counting(d, 156, 31);
        tess_data_close(d);
        for (int m = 0; m < 52; m++) put(&idx, 0, 1); /* the optional modes */
        CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_OK);
        tess_data_close(d);
    }
}

/* Sequences that lie elsewhere than behind one another, and empty ones. */
TEST(megatron_offsets)
{
    struct buffer idx, bin;
    tess_data *d;
    make_pair(&idx, &bin, 8, 4);
    set(&idx, 34 + 16, 18, 8); /* offsets: the last first, the first last, the second empty */
    set(&idx, 34 + 16 + 24, 0, 8);
    set(&idx, 34 + 4, 0, 4);
    tess_data_conf conf = {.seq_length = 8, .vocab = 100};
    CHECK_EQ(view(&idx, &bin, &conf, &d), TESS_OK);
    if (!d) return;
    int32_t x[8], y[8], want[9] = {9, 10, 11, 6, 7, 8, 0, 1, 2};
    CHECK_EQ(tess_data_samples(d), 1);
    CHECK_EQ(get(d, 0, x, y), TESS_OK);
    CHECK(memcmp(x, want, sizeof x) == 0 && memcmp(y, want + 1, sizeof y) == 0);
    tess_data_close(d);
}

TEST(llmc_both)
{
    for (int kind = 0; kind < 2; kind++) {
        struct buffer bin;
        tess_data *d;
        make_llmc(&bin, kind ? 20240801 : 20240520, kind ? 7 : 1, 150);
        CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_OK);
        if (d) check_counting(d, 150, 29);
        tess_data_close(d);
    }
}

/* What a path is follows from the files there. */
TEST(paths)
{
    struct buffer idx, bin;
    tess_data *d = NULL;
    make_pair(&idx, &bin, 8, 10);
    write_file("pair.idx", idx.b, idx.n);
    write_file("pair.bin", bin.b, bin.n);
    CHECK_EQ(tess_data_open(in_dir("pair"), NULL, &conf5, &d), TESS_OK);
    if (d) check_counting(d, 30, 5);
    tess_data_close(d);
    CHECK_EQ(tess_data_open(in_dir("pair.bin"), NULL, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "pair.bin: has 60 bytes, llm.c's header alone has 1024");
    make_llmc(&bin, 20240520, 1, 30);
    write_file("c.bin", bin.b, bin.n);
    CHECK_EQ(tess_data_open(in_dir("c.bin"), NULL, &conf5, &d), TESS_OK);
    if (d) check_counting(d, 30, 5);
    tess_data_close(d);
    memcpy(bin.b, "abcd", 4);
    write_file("pair.bin", bin.b, bin.n);
    CHECK_EQ(tess_data_open(in_dir("pair.bin"), NULL, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "pair.idx is there: for Megatron's format give ");
    CHECK_EQ(tess_data_open(in_dir("nothing"), NULL, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "nothing.idx");
    CHECK_EQ(tess_data_open(in_dir("nothing.txt"), NULL, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "nothing.txt: cannot be opened");
    CHECK_EQ(unlink(in_dir("pair.bin")), 0);
    CHECK_EQ(tess_data_open(in_dir("pair"), NULL, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "pair.bin: cannot be opened");
}

TEST(text_bytes)
{
    tess_data *d = NULL;
    tess_data_conf conf = {.seq_length = 4, .vocab = 256};
    int32_t x[4], y[4];
    CHECK_EQ(tess_data_open(write_file("a.txt", "abcdefgh\xff", 9), NULL, &conf, &d), TESS_OK);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 2);
    CHECK_EQ(get(d, 1, x, y), TESS_OK);
    CHECK(x[0] == 'e' && x[3] == 'h' && y[0] == 'f' && y[3] == 255);
    tess_data_close(d);
    CHECK_EQ(tess_data_open(write_file("a.txt", "abcd", 4), NULL, &conf, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "holds 4 tokens, one sample of seq_length 4 needs 5");
    CHECK_EQ(tess_data_open(write_file("a.txt", "", 0), NULL, &conf, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "holds 0 tokens");
    conf.vocab = 100;
    CHECK_EQ(tess_data_open(write_file("a.txt", "aaaaz", 5), NULL, &conf, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "a.txt: byte 4: token 122 is beyond the vocabulary of 100");
}

/* A text's tokens are those of encoding it at once. */
TEST(text_tokens)
{
    static const char line[] = "Gound the br\xc3\xa9 sand, it's 2024<|endoftext|>\n\n";
    char text[50 * sizeof line];
    size_t n = 0;
    tess_tokenizer *t = NULL;
    tess_data *d = NULL;
    tess_ids ids = {0};
    for (int i = 0; i < 50; i++) memcpy(text + n, line, sizeof line - 1), n += sizeof line - 1;
    CHECK_EQ(tess_tokenizer_open(TESS_FIXTURES "/tokenizer_gpt2.json", &t), TESS_OK);
    CHECK_EQ(tess_tokenizer_encode(t, "text", text, n, &ids), TESS_OK);
    tess_data_conf conf = {.seq_length = 7, .vocab = tess_tokenizer_vocab(t)};
    CHECK_EQ(tess_data_open(write_file("t.txt", text, n), t, &conf, &d), TESS_OK);
    if (!d) return;
    CHECK_EQ(tess_data_tokens(d), ids.count);
    for (uint64_t s = 0; s < tess_data_samples(d); s++) {
        int32_t x[7], y[7];
        CHECK_EQ(get(d, s, x, y), TESS_OK);
        CHECK(memcmp(x, ids.id + 7 * s, sizeof x) == 0 && memcmp(y, ids.id + 7 * s + 1, sizeof y) == 0);
    }
    tess_data_close(d);
    conf.vocab = 300;
    CHECK_EQ(tess_data_open(path, t, &conf, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "is beyond the vocabulary of 300");
    CHECK_EQ(tess_data_open(write_file("t.txt", "abc\xff", 4), t, &conf, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "t.txt: byte 3: is not UTF-8");
    tess_ids_free(&ids);
    tess_tokenizer_free(t);
}

/* ---- several files ---- */

/* Bytes of these letters, n of them, as tokens. */
static void write_letters(const char *name, int first, int n)
{
    char text[600];
    for (int i = 0; i < n; i++) text[i] = (char)(first + i % 25);
    write_file(name, text, (size_t)n);
}

/* Opens paths in the test's directory, which "@" stands for. */
static tess_status open_list(const char *paths, const tess_data_conf *conf, tess_data **d)
{
    char text[600];
    size_t n = 0;
    for (const char *p = paths; *p; p++)
        n += *p == '@' ? (size_t)snprintf(text + n, sizeof text - n, "%s", dir)
                       : (size_t)snprintf(text + n, sizeof text - n, "%c", *p);
    *d = NULL;
    tess_error_clear();
    return tess_data_open(text, NULL, conf, d);
}

/* All of it, sample by sample, and the order of a few places, are those of one file. */
static void check_like(const tess_data *d, const tess_data *whole)
{
    int32_t x[2][5], y[2][5];
    CHECK_EQ(tess_data_tokens(d), tess_data_tokens(whole));
    CHECK_EQ(tess_data_samples(d), tess_data_samples(whole));
    for (uint64_t s = 0; s < tess_data_samples(whole); s++) {
        CHECK_EQ(get(d, s, x[0], y[0]), TESS_OK);
        CHECK_EQ(get(whole, s, x[1], y[1]), TESS_OK);
        CHECK(!memcmp(x[0], x[1], sizeof x[0]) && !memcmp(y[0], y[1], sizeof y[0]));
        CHECK_EQ(tess_data_order(d, 3 * s), tess_data_order(whole, 3 * s));
    }
}

/* A list, a directory and a pattern are the stream of their files, one behind the other, shuffled or not. */
TEST(files_one_behind_the_other)
{
    struct buffer idx, bin;
    char text[300];
    in_dir("many");
    CHECK(mkdir(path, 0777) == 0);
    write_letters("many/a.txt", 'a', 7);
    write_letters("many/b.txt", 'A', 0);
    write_letters("many/c.txt", 'A', 103);
    write_file("many/notes.md", "no data", 7);
    write_file("many/.hidden.txt", "no data", 7);
    for (int i = 0; i < 110; i++) text[i] = (char)(i < 7 ? 'a' + i : 'A' + (i - 7) % 25);
    write_file("whole.txt", text, 110);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        static const char *const same[] = {"[\"@/many/a.txt\", \"@/many/b.txt\", {\"path\": \"@/many/c.txt\"}]",
                                           "@/many",
                                           "@/many/",
                                           "@/many/*.txt",
                                           "@/ma*/[abc].txt",
                                           "[\"@/many\"]"};
        const tess_data_conf conf = {.seq_length = 5, .vocab = 256, .shuffle = shuffle, .seed = 4};
        tess_data *d, *whole;
        CHECK_EQ(open_list("@/whole.txt", &conf, &whole), TESS_OK);
        for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
            CHECK_EQ(open_list(same[i], &conf, &d), TESS_OK);
            if (!d) CHECK_STR(tess_error_text(), "");
            if (!d) continue;
            check_like(d, whole);
            CHECK_EQ(tess_data_files(d), 3);
            CHECK((tess_data_left_out(d) != NULL) == (i == 1 || i == 2 || i == 5));
            tess_data_close(d);
        }
        CHECK_EQ(open_list("[\"@/many/c.txt\", \"@/many/a.txt\"]", &conf, &d), TESS_OK);
        CHECK(tess_data_sum(d) != tess_data_sum(whole));
        tess_data_close(d);
        tess_data_close(whole);
    }
    /* Megatron's pairs are found by either half, once. */
    make_pair(&idx, &bin, 8, 10);
    write_file("many/p.idx", idx.b, idx.n);
    write_file("many/p.bin", bin.b, bin.n);
    static const char *const pairs[] = {"@/many/p", "@/many/p.*", "@/many/*.bin", "@/many/*.idx"};
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++) {
        tess_data *d;
        CHECK_EQ(open_list(pairs[i], &conf5, &d), TESS_OK);
        if (d) check_counting(d, 30, 5);
        if (d) CHECK_EQ(tess_data_files(d), 1);
        tess_data_close(d);
    }
}

/* Each prefix of the run has of each source what its weight says, and each source goes through all of its samples
 * before one comes again. */
TEST(weights)
{
    static const double share[] = {0.5, 0.3, 0.2};
    enum { TURNS = 1000 };
    write_letters("w0.txt", 'a', 101); /* 20 samples of 5 */
    write_letters("w1.txt", 'a', 51);
    write_letters("w2.txt", 'a', 501);
    static const uint64_t samples[] = {20, 10, 100}, first[] = {0, 20, 30};
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        const tess_data_conf conf = {.seq_length = 5, .vocab = 256, .shuffle = shuffle, .seed = 9};
        uint64_t count[3] = {0};
        int seen[130] = {0};
        tess_data *d;
        CHECK_EQ(open_list("[{\"path\": \"@/w0.txt\", \"weight\": 5}, {\"path\": \"@/w1.txt\", \"weight\": 3}, "
                           "{\"path\": \"@/w2.txt\", \"weight\": 2}]",
                           &conf, &d),
                 TESS_OK);
        if (!d) return;
        CHECK_EQ(tess_data_sources(d), 3);
        CHECK_EQ(tess_data_samples(d), 130);
        for (uint64_t p = 0; p < TURNS; p++) {
            const uint64_t s = tess_data_order(d, p);
            const int k = s < 20 ? 0 : s < 30 ? 1 : 2;
            CHECK(s < 130);
            if (!shuffle) CHECK_EQ(s, first[k] + count[k] % samples[k]);
            CHECK_EQ(seen[s], (int)(count[k] / samples[k])); /* in this epoch of its source for the first time */
            seen[s]++;
            count[k]++;
            for (int i = 0; i < 3; i++) CHECK(fabs((double)count[i] - share[i] * (double)(p + 1)) < 1.51);
        }
        CHECK_EQ(count[0], 500);
        tess_data_close(d);
    }
}

TEST(lists_that_are_wrong)
{
    static const char *const cases[][2] = {
        {"[]", "data: an empty list"},
        {"[\"@/w0.txt\", {\"path\": \"@/w1.txt\", \"weight\": 1}]",
         "data[1]: a weight, but the first element has none"},
        {"[{\"path\": \"@/w1.txt\", \"weight\": 1}, \"@/w0.txt\"]",
         "data[1]: no weight, but the first element has one"},
        {"[{\"path\": \"@/w1.txt\", \"weight\": 0}]", "data[0]: a weight that is no number above 0"},
        {"[{\"path\": \"@/w1.txt\", \"wieght\": 1}]", "data[0]: wieght: unknown, expected path and weight"},
        {"[{\"weight\": 1}]", "data[0]: no path"},
        {"[\"@/w0.txt\", \"@/nowhere.txt\"]", "nowhere.txt: cannot be opened"},
        {"@/none*", "a pattern that 0 files match"},
        {"@/empty", "a directory of 0 entries, none of them data"},
        {"@/corpus",
         "is there, and is a text, as far as its first bytes tell, but its name ends in none of "
         ".bin, .txt, .jsonl, .json and .csv (if it is to be read as one, give it a name in .txt, or in .jsonl"},
        {"@/corpus.idx", "is a Megatron index, but its name ends in none of .bin, .txt, .jsonl, .json and .csv (give "
                         "the name that it shares"},
        {"@/corpus.dat", "is tokens in llm.c's format"},
        {"@/t.parquet", "t.parquet: is there, and is a table in Parquet"},
        {"@/t.parquet", "/t.parquet\").to_json(\""},
        {"@/t.parquet", "/t.jsonl\")' makes lines of it)"},
        {"@/corpus.gz", "is a file of bytes in no format that is known here"},
    };
    struct buffer idx, bin;
    tess_data *d;
    in_dir("empty");
    CHECK(mkdir(path, 0777) == 0);
    write_letters("w0.txt", 'A', 30);
    write_letters("w1.txt", 'A', 51);
    write_letters("corpus", 'a', 101);
    make_pair(&idx, &bin, 8, 10);
    make_llmc(&bin, 20240520, 1, 30);
    write_file("corpus.dat", bin.b, bin.n);
    write_file("t.parquet", "PAR1\x15\0", 6);
    write_file("corpus.gz", "\x1f\x8b\0\0\0", 5);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (strstr(cases[i][0], ".idx")) write_file("corpus.idx", idx.b, idx.n); /* makes `corpus` a prefix */
        CHECK_EQ(open_list(cases[i][0], &conf5, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), cases[i][1]);
        tess_data_close(d);
    }
}

/* ---- the order ---- */

/* Each epoch is a bijection, and no two epochs or seeds are the same. */
TEST(order)
{
    static const int sizes[] = {1, 2, 3, 7, 61, 64, 65, 97, 255, 257, 1000};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct buffer bin;
        tess_data *d, *other;
        uint64_t n = (uint64_t)sizes[i];
        tess_data_conf conf = {.seq_length = 1, .vocab = 100, .shuffle = true, .seed = 1};
        make_llmc(&bin, 20240520, 1, sizes[i] + 1);
        CHECK_EQ(view(NULL, &bin, &conf, &d), TESS_OK);
        conf.seed = 2;
        CHECK_EQ(view(NULL, &bin, &conf, &other), TESS_OK);
        int same_epoch = 0, same_seed = 0, same_place = 0;
        for (uint64_t epoch = 0; epoch < 3; epoch++) {
            char seen[1000] = {0};
            for (uint64_t p = 0; p < n; p++) {
                uint64_t s = tess_data_order(d, epoch * n + p);
                CHECK(s < n && !seen[s]);
                seen[s < n ? s : 0] = 1;
                same_place += s == p;
                same_epoch += s == tess_data_order(d, (epoch + 1) * n + p);
                same_seed += s == tess_data_order(other, epoch * n + p);
            }
        }
        /* About one place in an epoch stays, whatever the size. */
        if (n >= 61) CHECK(same_epoch < 12 && same_seed < 12 && same_place < 12);
        tess_data_close(d);
        tess_data_close(other);
    }
}

/* Resuming relies on the order being the same for ever: a few places written down. */
TEST(order_is_fixed)
{
    struct buffer bin;
    tess_data *d;
    tess_data_conf conf = {.seq_length = 1, .vocab = 100, .shuffle = true, .seed = 1};
    make_llmc(&bin, 20240520, 1, 1001);
    CHECK_EQ(view(NULL, &bin, &conf, &d), TESS_OK);
    CHECK_EQ(tess_data_order(d, 0), 600);
    CHECK_EQ(tess_data_order(d, 1), 672);
    CHECK_EQ(tess_data_order(d, 1000), 703);
    CHECK_EQ(tess_data_order(d, 5000000000123), 967);
    tess_data_close(d);
}

TEST(order_without_shuffle)
{
    struct buffer bin;
    tess_data *d;
    make_llmc(&bin, 20240520, 1, 150);
    CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_OK);
    CHECK_EQ(tess_data_order(d, 28), 28);
    CHECK_EQ(tess_data_order(d, 29), 0);
    CHECK_EQ(tess_data_order(d, 29 * 7 + 3), 3);
    tess_data_close(d);
}

/* ---- what is refused ---- */

TEST(tokens_beyond)
{
    struct buffer idx, bin;
    tess_data *d;
    int32_t x[5], y[5];
    make_pair(&idx, &bin, 8, 10);
    set(&bin, 20, 100, 2); /* the target of the last place of sample 1 */
    CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_OK);
    CHECK_EQ(get(d, 0, x, y), TESS_OK);
    CHECK_EQ(get(d, 1, x, y), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "t.bin: byte 20: token 100 is beyond the vocabulary of 100");
    tess_data_close(d);
    make_pair(&idx, &bin, 5, 10);
    set(&bin, 24, UINT64_MAX, 8);
    CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_OK);
    CHECK_EQ(get(d, 0, x, y), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "t.bin: byte 24: token -1 is beyond");
    tess_data_close(d);
}

/* One field of a good index of 10 sequences (u16) at a time. */
TEST(megatron_refused)
{
    static const struct {
        size_t at;
        uint64_t value;
        size_t size;
        const char *error;
    } cases[] = {
        {0, 'X', 1, "t.idx: byte 0: no Megatron index"},
        {9, 2, 8, "t.idx: byte 9: index version 2, expected 1"},
        {17, 0, 1, "t.idx: byte 17: dtype 0 is unknown"},
        {17, 9, 1, "t.idx: byte 17: dtype 9 is unknown"},
        {17, 6, 1, "t.idx: byte 17: dtype 6 is floating point"},
        {17, 7, 1, "t.idx: byte 17: dtype 7 is floating point"},
        {17, 4, 1, "t.idx: byte 82: sequence 1 begins at byte 6, no multiple of its 4-byte tokens"},
        {18, 11, 8, "t.idx: byte 18: 11 sequences and 6 document entries do not make"},
        {18, UINT64_MAX, 8, "t.idx: byte 18: "},
        {26, 7, 8, "t.idx: byte 18: 10 sequences and 7 document entries"},
        {26, UINT64_MAX, 8, "t.idx: byte 18: "},
        {34 + 8, UINT32_MAX, 4, "t.idx: byte 42: sequence 2 has -1 tokens"},
        {34 + 36, 4, 4, "t.idx: byte 146: sequence 9 is bytes 54 to 62 of t.bin, which has 60"},
        {34 + 40, UINT64_MAX, 8, "t.idx: byte 74: sequence 0 is bytes -1 to"},
        {34 + 40, 62, 8, "t.idx: byte 74: sequence 0 is bytes 62 to 68 of t.bin"},
        {34 + 40, INT64_MAX, 8, "t.idx: byte 74: sequence 0 is bytes"},
        {34 + 40, 1, 8, "t.idx: byte 74: sequence 0 begins at byte 1, no multiple"},
        {34 + 120, 1, 8, "t.idx: byte 154: document 0 begins at sequence 1"},
        {34 + 128, 11, 8, "t.idx: byte 162: document 1 begins at sequence 11"},
        {34 + 128, 5, 8, "t.idx: byte 170: document 2 begins at sequence 4, expected 5 to 10"},
        {34 + 160, 9, 8, "t.idx: byte 194: the documents end at sequence 9 of 10"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        struct buffer idx, bin;
        tess_data *d;
        make_pair(&idx, &bin, 8, 10);
        set(&idx, cases[c].at, cases[c].value, cases[c].size);
        CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), cases[c].error);
        tess_error_clear();
        tess_data_close(d);
    }
}

/* An index or a .bin that is cut anywhere. */
TEST(truncated)
{
    struct buffer idx, bin;
    tess_data *d;
    make_pair(&idx, &bin, 8, 10);
    for (size_t whole = idx.n, n = 0; n < whole; n++) {
        idx.n = n;
        CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_INVALID);
        idx.n = whole;
    }
    for (size_t n = 0; n < 60; n++) {
        bin.n = n;
        CHECK_EQ(view(&idx, &bin, &conf5, &d), TESS_INVALID);
    }
    make_llmc(&bin, 20240520, 1, 30);
    for (size_t whole = bin.n, n = 0; n < whole; n++) {
        bin.n = n;
        CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_INVALID);
    }
}

TEST(llmc_refused)
{
    struct buffer bin;
    tess_data *d;
    make_llmc(&bin, 20240520, 7, 30);
    CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_INVALID);
    CHECK_STR(tess_error_text(), "t.bin: byte 4: version 7, expected 1 with magic 20240520");
    make_llmc(&bin, 20240520, 1, 30);
    set(&bin, 8, 31, 4);
    CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_INVALID);
    CHECK_STR(tess_error_text(), "t.bin: byte 8: 31 tokens of 2 bytes, but 60 bytes follow the header");
    set(&bin, 8, UINT32_MAX, 4);
    CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "-1 tokens");
    make_llmc(&bin, 20240520, 1, 5);
    CHECK_EQ(view(NULL, &bin, &conf5, &d), TESS_INVALID);
    CHECK_STR(tess_error_text(), "t.bin: holds 5 tokens, one sample of seq_length 5 needs 6");
}

static int clean_one(const char *file, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(file);
}

__attribute__((destructor)) static void clean(void)
{
    if (dir_made) nftw(dir, clean_one, 8, FTW_DEPTH | FTW_PHYS);
}
