/* The index that is kept of a .jsonl: made once, anew where it must be, by several at a time, and sums of its lines. */
#define CHECK_MAIN
#include "tests/models/lines.h"
#include <dirent.h>
#include <fcntl.h>
#include <sys/wait.h>

static struct stat stat_of(const char *name)
{
    struct stat st = {0};
    CHECK_EQ(stat(in_dir(name), &st), 0);
    return st;
}

static int32_t first_token(const tess_data_conf *c)
{
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(in_dir("i.jsonl"), NULL, c, &d), TESS_OK);
    const int32_t first = d ? get(d, 0).ids[0] : -1;
    tess_data_close(d);
    return first;
}

static void damage(long at, const char *with, size_t bytes)
{
    FILE *f = fopen(in_dir("i.jsonl.index"), "r+b");
    CHECK(f && fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) == 0 && fwrite(with, 1, bytes, f) == bytes);
    if (f) fclose(f);
}

/* It is made once, and anew for other content, even of the same size and time, for other rules, or when it is not what
 * it was. */
TEST(an_index_is_made_once)
{
    static const char one[] = "{\"input_ids\": [1, 2]}\n", other[] = "{\"input_ids\": [7, 2]}\n";
    tess_data_conf c = causal;
    write_text("i.jsonl", one);
    const struct stat file = stat_of("i.jsonl");
    CHECK_EQ(first_token(&c), 1);
    const struct stat made = stat_of("i.jsonl.index");
    CHECK_EQ(first_token(&c), 1);
    CHECK_EQ(stat_of("i.jsonl.index").st_ino, made.st_ino);
    write_text("i.jsonl", other);
    CHECK_EQ(utimensat(AT_FDCWD, path, (struct timespec[]){file.st_atim, file.st_mtim}, 0), 0);
    CHECK_EQ(first_token(&c), 7);
    const struct stat second = stat_of("i.jsonl.index");
    CHECK(second.st_ino != made.st_ino || second.st_mtim.tv_nsec != made.st_mtim.tv_nsec);
    write_text("i.jsonl", "\n\n{\"input_ids\": [9, 2]}\n");
    CHECK_EQ(first_token(&c), 9);
    c.seq_length = 1; /* the line would have been refused */
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_EQ(first_token(&causal), 9);
    damage(0, "X", 1);
    CHECK_EQ(first_token(&causal), 9);
    damage(20, "XYZ", 3);
    CHECK_EQ(first_token(&causal), 9);
    CHECK_EQ(truncate(in_dir("i.jsonl.index"), stat_of("i.jsonl.index").st_size - 1), 0);
    CHECK_EQ(first_token(&causal), 9);
    damage(-8, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8); /* what no head tells */
    CHECK_EQ(tess_data_open(in_dir("i.jsonl"), NULL, &causal, &d), TESS_OK);
    int32_t ids[T];
    if (d) CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = ids}), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "i.jsonl.index: is damaged");
    tess_data_close(d);
    /* A line that is wrong leaves none. */
    write_text("n.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2}\n");
    CHECK_EQ(tess_data_open(path, NULL, &causal, &d), TESS_INVALID);
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) CHECK(strncmp(e->d_name, "n.jsonl.", 8) != 0);
    closedir(list);
}

/* Beside a file that lies where nobody may write it cannot be: it goes to the output, or nowhere. */
TEST(where_nobody_may_write)
{
    tess_data *d = NULL;
    tess_data_conf c = causal;
    CHECK_EQ(mkdir(in_dir("closed"), 0777), 0);
    write_text("closed/c.jsonl", "{\"input_ids\": [4, 2]}\n");
    CHECK_EQ(chmod(in_dir("closed"), 0555), 0);
    CHECK_EQ(chmod(dir, 0777), 0);
    CHECK_EQ(mkdir(in_dir("out"), 0777), 0);
    CHECK_EQ(chmod(path, 0777), 0);
    char *work = realpath(dir, NULL), output[4200];
    snprintf(output, sizeof output, "%s/out", dir);
    const uid_t user = geteuid();
    const bool root = user == 0;
    bool may = true;
    for (char *at = work; root && at; at = strchr(at + 1, '/')) { /* nobody may not even get there */
        struct stat st;
        char *end = strchr(at + 1, '/');
        if (end) *end = 0;
        may = may && stat(work, &st) == 0 && (st.st_mode & 1);
        if (end) *end = '/';
    }
    free(work);
    if (root && (!may || seteuid(65534) != 0)) return;
    for (int where = 0; where < 3; where++) { /* nowhere; in the output; and there again */
        c.output = where ? output : NULL;
        tess_error_clear();
        CHECK_EQ(tess_data_open(in_dir("closed/c.jsonl"), NULL, &c, &d), TESS_OK);
        if (d) CHECK_EQ(get(d, 0).ids[0], 4);
        tess_data_close(d);
        int files = 0;
        DIR *list = opendir(output);
        for (struct dirent *e; (e = readdir(list));) files += !strncmp(e->d_name, "c.jsonl.", 8);
        closedir(list);
        CHECK_EQ(files, where > 0);
    }
    if (root) CHECK_EQ(seteuid(user), 0);
    CHECK(access(in_dir("closed/c.jsonl.index"), F_OK) != 0);
    CHECK_EQ(chmod(in_dir("closed"), 0777), 0);
}

/* Ranks of a run open the same file at the same time. */
TEST(several_at_once)
{
    enum { RANKS = 4 };
    char text[4000] = "";
    pid_t rank[RANKS];
    for (int i = 0; i < 100; i++) sprintf(text + strlen(text), "{\"input_ids\": [%d, 2]}\n", i);
    write_text("s.jsonl", text);
    fflush(stdout);
    for (int k = 0; k < RANKS; k++) {
        if ((rank[k] = fork())) continue;
        tess_data *d = NULL;
        int bad = tess_data_open(path, NULL, &causal, &d) != TESS_OK || tess_data_samples(d) != 100;
        int32_t ids[T];
        for (uint64_t s = 0; s < 100 && !bad; s++)
            bad = tess_data_get(d, s, &(tess_sample){.ids = ids}) != TESS_OK || ids[0] != (int32_t)s;
        _exit(bad);
    }
    for (int k = 0; k < RANKS; k++) {
        int status;
        CHECK_EQ(waitpid(rank[k], &status, 0), rank[k]);
        CHECK_EQ(status, 0);
    }
    int files = 0;
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) files += !strncmp(e->d_name, "s.jsonl.", 8);
    closedir(list);
    CHECK_EQ(files, 1);
}

/* The sum tells the content, not the place; an index that is there changes nothing of it. */
TEST(sums)
{
    static const char text[] = "{\"input_ids\": [1, 2]}\n";
    tess_data *d = open_text(text, NULL, &causal), *again = open_text(text, NULL, &causal), *other = NULL;
    CHECK_EQ(tess_data_open(write_text("b.jsonl", text), NULL, &causal, &other), TESS_OK);
    CHECK_EQ(tess_data_sum(d), tess_data_sum(again));
    CHECK_EQ(tess_data_sum(d), tess_data_sum(other));
    tess_data_close(other);
    CHECK_EQ(tess_data_open(write_text("b.jsonl", "{\"input_ids\": [1, 3]}\n"), NULL, &causal, &other), TESS_OK);
    CHECK(tess_data_sum(d) != tess_data_sum(other));
    tess_data_close(d);
    tess_data_close(again);
    tess_data_close(other);
}
