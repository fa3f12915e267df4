/* What the tests of .jsonl share: lines written to a directory of the program's own, and what samples they become. */
#ifndef TESS_TESTS_LINES_H
#define TESS_TESTS_LINES_H
#include "models/files/data/data.h"
#include "tests/check.h"
#include <ftw.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif

enum { T = 6, NONE = -100 };

static char dir[] = "test_lines_XXXXXX";
static bool dir_made;
static char path[128];

static inline const char *in_dir(const char *name)
{
    if (!dir_made) CHECK(mkdtemp(dir));
    dir_made = true;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static inline const char *write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "wb");
    CHECK(f && fwrite(text, 1, strlen(text), f) == strlen(text));
    if (f) fclose(f);
    return path;
}

static const tess_data_conf causal = {.seq_length = T, .vocab = 256, .end_of_text = -1};

static inline tess_data *open_text(const char *text, const tess_tokenizer *t, const tess_data_conf *c)
{
    tess_data *d = NULL;
    tess_error_clear();
    CHECK_EQ(tess_data_open(write_text("a.jsonl", text), t, c, &d), TESS_OK);
    if (!d) CHECK_STR(tess_error_text(), "");
    return d;
}

/* All that a sample has. */
struct whole {
    int32_t ids[T], targets[T], bounds[2 * T], positions[T], segments[T], decoder[T], label[1];
};

static inline struct whole get(const tess_data *d, uint64_t sample)
{
    struct whole w;
    memset(&w, 0x55, sizeof w);
    CHECK_EQ(tess_data_get(
                 d, sample,
                 &(tess_sample){w.ids, w.targets, w.bounds, w.positions, w.segments, w.decoder, w.label, 0, false}),
             TESS_OK);
    return w;
}

/* The numbers of a list, separated by blanks. */
static inline void check_list(const char *what, const int32_t *met, int n, const char *expected)
{
    char *end;
    for (int i = 0; i < n; i++, expected = end) {
        const long want = strtol(expected, &end, 10);
        if (end == expected || want != met[i]) {
            CHECK_SAY("%s[%d] is %d, expected %ld", what, i, met[i], want);
            return;
        }
    }
    CHECK_STR(expected, "");
}

static inline int clean_one(const char *file, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(file);
}

__attribute__((destructor)) static void clean(void)
{
    if (dir_made) nftw(dir, clean_one, 8, FTW_DEPTH | FTW_PHYS);
}
#endif
