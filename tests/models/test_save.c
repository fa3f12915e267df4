/* Saving and loading by several ranks, each its pieces: the same bytes whoever holds what, read back by any others;
 * what one rank fails in all do, and nothing stays. */
#define CHECK_MAIN
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/report/report.h"
#include "tests/dirs.h"
#include "tests/models/stand_ins.h"
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

static const char *const model_json = "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 3, \"n_embd\": 21, "
                                      "\"n_positions\": 17, \"vocab_size\": 61}";

static char top[64]; /* a directory of one test; empty: none */

static void begin(void)
{
    strcpy(top, "test_save_XXXXXX");
    CHECK(mkdtemp(top));
}

/* A path below it, in one of a few rotating buffers. */
static const char *in(const char *name)
{
    static char text[4][256];
    static int next;
    char *out = text[next++ % 4];
    snprintf(out, sizeof text[0], "%s/%s", top, name);
    return out;
}

static void remove_all(const char *path)
{
    DIR *d = opendir(path);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        char *below = tess_format("%s/%s", path, e->d_name);
        remove_all(below);
        free(below);
    }
    if (d) closedir(d);
    CHECK_EQ(remove(path), 0);
}

static char *read_all(const char *path, size_t *bytes)
{
    struct stat st;
    FILE *f = fopen(path, "rb");
    CHECK(f && !fstat(fileno(f), &st));
    *bytes = f ? (size_t)st.st_size : 0;
    char *data = tess_alloc(*bytes + 1);
    CHECK_EQ(f ? fread(data, 1, *bytes, f) : 0, *bytes);
    if (f) fclose(f);
    return data;
}

static void check_same(const char *a, const char *b)
{
    size_t n, m;
    char *x = read_all(a, &n), *y = read_all(b, &m);
    CHECK(n > 0);
    if (n != m || memcmp(x, y, n)) CHECK_SAY("%s (scheme %d) is not %s", b, (int)scheme, a);
    free(x);
    free(y);
}

/* ---- a small GPT-2, as each rank sees it ---- */

static tess_model *model;
static tess_graph *graph;

static void open_model(const char *dir)
{
    tess_network net;
    CHECK_EQ(tess_model_open(dir, dir ? NULL : model_json, &model), TESS_OK);
    graph = tess_graph_new(&(tess_graph_conf){0});
    CHECK_EQ(tess_model_build(model, graph, 1, 16, TESS_FOR_LOSS, &net), TESS_OK);
}

static void close_model(void)
{
    tess_graph_free(graph);
    tess_model_close(model);
}

static const tess_progress at = {.step = 12, .samples = 345, .seed = 6};

static void save_both(void)
{
    open_model(NULL);
    CHECK_EQ(tess_checkpoint_prepare(in("deep/ck")), TESS_OK);
    CHECK_EQ(tess_checkpoint_save(&(tess_checkpoint_conf){.dir = in("deep/ck"), .keep = 2}, model, graph, &at),
             TESS_OK);
    CHECK_EQ(tess_model_save(model, graph, in("model")), TESS_OK);
    close_model();
}

static void load_both(void)
{
    tess_progress found = {0};
    bool any = false;
    open_model(in("model"));
    CHECK_EQ(tess_checkpoint_prepare(in("deep/ck")), TESS_OK); /* as a run does that will write there */
    CHECK_EQ(tess_checkpoint_find(in("deep/ck"), &found, &any), TESS_OK);
    CHECK(any && found.step == at.step && found.samples == at.samples && found.seed == at.seed);
    CHECK_EQ(tess_checkpoint_load(in("deep/ck"), found.step, NULL, graph), TESS_OK);
    CHECK_EQ(mapped.loaded, TESS_PARTS * held(graph));
    mapped.loaded = 0;
    CHECK_EQ(tess_model_load(model, graph, 1), TESS_OK);
    CHECK_EQ(mapped.loaded, held(graph));
    close_model();
}

/* Written by one rank, whose bytes are those of all others; which read what the ones before them wrote. */
TEST(any_ranks_write_the_same_and_read_each_others)
{
    char first[sizeof top];
    begin();
    strcpy(first, top);
    scheme = TILES;
    save_both();
    for (int n = 1; n <= 5; n++)
        for (scheme = 0; scheme < SCHEMES; scheme++) {
            strcpy(top, first);
            CHECK(ranks_run(n, load_both));
            begin();
            CHECK(ranks_run(n, save_both));
            static const char *const files[] = {"deep/ck/step-00000012/states.safetensors",
                                                "deep/ck/step-00000012/state.json", "model/model.safetensors",
                                                "model/config.json"};
            for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
                char *one = tess_format("%s/%s", first, files[i]);
                check_same(one, in(files[i]));
                free(one);
            }
            CHECK_STR(others_in(in("deep/ck"), ""), "step-00000012 ");
            remove_all(top);
        }
    strcpy(top, first);
    scheme = TILES;
    memset(&mapped, 0, sizeof mapped);
    load_both();
    remove_all(top);
}

/* What one rank wrote is what the elements are, at their places: a turned matrix transposed. */
TEST(elements_lie_where_others_look_for_them)
{
    begin();
    scheme = CHEQUERS;
    CHECK(ranks_run(3, save_both));
    scheme = TILES;
    open_model(NULL);
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(in("model"), &s), TESS_OK);
    const tess_safetensor *t = tess_safetensors_find(s, "transformer.h.1.mlp.c_fc.weight"),
                          *u = tess_safetensors_find(s, "transformer.wte.weight");
    const tess_tensor *p = tess_graph_find_param(graph, "h.1.mlp.c_fc.weight"),
                      *q = tess_graph_find_param(graph, "wte.weight");
    float x;
    CHECK(t && u && p && q && t->dims[0] == 21 && t->dims[1] == 84);
    CHECK_EQ(tess_safetensor_read(t, 20 * 84 + 3, 1, &x), TESS_OK);
    CHECK(x == element_of(p, TESS_MASTER, 3, 20));
    CHECK_EQ(tess_safetensor_read(u, 3 * 21 + 20, 1, &x), TESS_OK);
    CHECK(x == element_of(q, TESS_MASTER, 3, 20));
    tess_safetensors_close(s);
    close_model();
    remove_all(top);
}

/* ---- shards ---- */

static tess_graph *odd_params(void)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){0});
    tess_param(g, "a", 1, 1, TESS_ZERO);
    tess_param(g, "b", 23, 19, TESS_ZERO);
    tess_param(g, "c", 2, 3, TESS_ZERO);
    tess_param(g, "d", 1, 200, TESS_ZERO);
    tess_param(g, "e", 200, 1, TESS_ZERO);
    return g;
}

static void write_shards(void)
{
    tess_graph *g = odd_params();
    tess_safetensors_writer *w = tess_safetensors_writer_new(top, "model", 1000);
    for (int k = 0; k < tess_graph_params(g); k++) {
        int64_t shape[3], turned[2];
        int rank = tess_tensor_shape(tess_graph_param(g, k), shape);
        turned[0] = k % 2 ? shape[1] : shape[0];
        turned[1] = k % 2 ? shape[0] : shape[1];
        CHECK_EQ(tess_safetensors_declare(w, tess_tensor_name(tess_graph_param(g, k)), TESS_F32, rank, turned), k);
    }
    tess_status status = tess_safetensors_writer_begin(w);
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = tess_pieces_write(w, (size_t)k, tess_graph_param(g, k), TESS_MASTER, k % 2);
    CHECK_EQ(tess_safetensors_writer_end(w, status), TESS_OK);
    tess_graph_free(g);
}

static void read_shards(void)
{
    tess_graph *g = odd_params();
    tess_safetensors *s;
    CHECK_EQ(tess_safetensors_open(in("model.safetensors.index.json"), &s), TESS_OK);
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        CHECK_EQ(tess_pieces_read(tess_safetensors_find(s, tess_tensor_name(p)), p, TESS_MASTER, k % 2), TESS_OK);
    }
    CHECK_EQ(mapped.loaded, held(g));
    tess_safetensors_close(s);
    tess_graph_free(g);
}

TEST(shards_by_many_ranks)
{
    static const char *const names[] = {"model-00001-of-00004.safetensors", "model-00002-of-00004.safetensors",
                                        "model-00003-of-00004.safetensors", "model-00004-of-00004.safetensors",
                                        "model.safetensors.index.json"};
    char first[sizeof top];
    begin();
    strcpy(first, top);
    scheme = TILES;
    write_shards();
    for (int n = 2; n <= 4; n++)
        for (scheme = 0; scheme < SCHEMES; scheme++) {
            strcpy(top, first);
            CHECK(ranks_run(n, read_shards));
            begin();
            CHECK(ranks_run(n, write_shards));
            for (int i = 0; i < 5; i++) {
                char *one = tess_format("%s/%s", first, names[i]);
                check_same(one, in(names[i]));
                CHECK_EQ(unlink(in(names[i])), 0);
                free(one);
            }
            CHECK_EQ(rmdir(top), 0); /* there was nothing else */
        }
    strcpy(top, first);
    remove_all(top);
}

/* A rank reads what it holds: of a file that ends behind that, the rest is not missed. */
static void read_first_half(void)
{
    if (ranks_rank) return;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){0});
    tess_tensor *p = tess_param(g, "w", TILE_ROWS, 4096, TESS_ZERO); /* 1 tile: its first rows are rank 0's */
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(in("w.safetensors"), &s), TESS_OK);
    CHECK_EQ(truncate(in("w.safetensors"), 4096 + 3 * 4096 * 4), 0); /* a page, which has the header, and 3 rows */
    CHECK_EQ(tess_pieces_read(tess_safetensors_find(s, "w"), p, TESS_MASTER, false), TESS_OK);
    CHECK_EQ(mapped.loaded, 3 * 4096);
    tess_safetensors_close(s);
    tess_graph_free(g);
}

static void write_w(void)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){0});
    tess_tensor *p = tess_param(g, "w", TILE_ROWS, 4096, TESS_ZERO);
    tess_safetensors_writer *w = tess_safetensors_writer_new(top, "w", TESS_SAFETENSORS_SHARD);
    tess_safetensors_declare(w, "w", TESS_F32, 2, (int64_t[]){TILE_ROWS, 4096});
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = tess_pieces_write(w, 0, p, TESS_MASTER, false);
    CHECK_EQ(tess_safetensors_writer_end(w, status), TESS_OK);
    tess_graph_free(g);
}

TEST(a_rank_reads_its_rows_alone)
{
    begin();
    scheme = SLICES;
    CHECK(ranks_run(2, write_w));
    CHECK(ranks_run(2, read_first_half));
    remove_all(top);
}

/* ---- failures ---- */

static int unlucky; /* the rank that fails */

static bool said_by_all(const char *what)
{
    char who[32];
    snprintf(who, sizeof who, "rank %d: ", unlucky);
    CHECK_HAS(tess_error_text(), what);
    return ranks_rank == unlucky || strstr(tess_error_text(), who) == tess_error_text();
}

/* The unlucky rank cannot write far into a file. */
static void no_room(void)
{
    open_model(NULL);
    signal(SIGXFSZ, SIG_IGN);
    if (ranks_rank == unlucky) setrlimit(RLIMIT_FSIZE, &(struct rlimit){20000, RLIM_INFINITY});
    CHECK_EQ(tess_checkpoint_save(&(tess_checkpoint_conf){.dir = in("deep/ck"), .keep = 2}, model, graph,
                                  &(tess_progress){.step = 13}),
             TESS_FAILED);
    CHECK(said_by_all("deep/ck/.new-step-00000013/states.safetensors.tmp: cannot be written: File too large"));
    CHECK_EQ(tess_model_save(model, graph, in("model")), TESS_FAILED);
    CHECK(said_by_all("model/model.safetensors.tmp: cannot be written: File too large"));
    close_model();
}

TEST(what_one_rank_cannot_write_nobody_leaves)
{
    begin();
    scheme = SLICES;
    CHECK(ranks_run(3, save_both));
    for (unlucky = 0; unlucky < 3; unlucky++) {
        CHECK(ranks_run(3, no_room));
        CHECK_STR(others_in(in("deep/ck"), ""), "step-00000012 ");
        CHECK(!strstr(others_in(in("model"), ""), ".tmp"));
        CHECK(ranks_run(2, load_both)); /* what was there before is whole */
    }
    remove_all(top);
}

/* The unlucky rank is somewhere else, where the directories are not. */
static void elsewhere(void)
{
    open_model(in("model"));
    if (ranks_rank == unlucky) CHECK_EQ(chdir("/"), 0);
    CHECK_EQ(tess_checkpoint_prepare(in("deep/ck")), TESS_INVALID);
    CHECK(said_by_all("deep/ck: cannot be written: No such file or directory (see checkpoint.dir; all ranks must see"));
    CHECK_EQ(tess_checkpoint_load(in("deep/ck"), at.step, NULL, graph), TESS_INVALID);
    CHECK(said_by_all("deep/ck/step-00000012/states.safetensors"));
    CHECK_EQ(tess_checkpoint_save(&(tess_checkpoint_conf){.dir = in("deep/ck"), .keep = 2}, model, graph,
                                  &(tess_progress){.step = 13}),
             TESS_FAILED);
    CHECK(said_by_all("cannot be opened: No such file or directory (do all ranks see the same files there?)"));
    close_model();
}

TEST(ranks_that_do_not_see_the_same_files)
{
    begin();
    scheme = COLUMNS;
    CHECK(ranks_run(2, save_both));
    unlucky = 1;
    CHECK(ranks_run(3, elsewhere));
    CHECK_STR(others_in(in("deep/ck"), ""), "step-00000012 ");
    remove_all(top);
}

/* Rank 0 alone knows that there is no directory to be had. */
static void no_directory(void)
{
    open_model(NULL);
    CHECK_EQ(tess_checkpoint_prepare(in("file/ck")), TESS_INVALID);
    CHECK(said_by_all("file/ck: cannot be written: Not a directory (see checkpoint.dir)"));
    CHECK_EQ(tess_model_save(model, graph, in("file/model")), TESS_FAILED);
    CHECK(said_by_all("file/model: cannot be made: Not a directory"));
    close_model();
}

TEST(no_place_for_directories)
{
    begin();
    unlucky = 0;
    FILE *f = fopen(in("file"), "w");
    CHECK(f && !fclose(f));
    CHECK(ranks_run(3, no_directory));
    CHECK_STR(others_in(top, ""), "file ");
    remove_all(top);
}

/* One rank is killed in the middle, and the others with it. */
static void killed(void)
{
    open_model(NULL);
    if (ranks_rank == unlucky) mapped.ends_at = 40;
    tess_status status = tess_checkpoint_save(&(tess_checkpoint_conf){.dir = in("deep/ck"), .keep = 2}, model, graph,
                                              &(tess_progress){.step = 13});
    CHECK_SAY("rank %d of a killed run came to an end: %d", ranks_rank, status);
    close_model();
}

static void save_13(void)
{
    open_model(NULL);
    CHECK_EQ(tess_checkpoint_save(&(tess_checkpoint_conf){.dir = in("deep/ck"), .keep = 1}, model, graph,
                                  &(tess_progress){.step = 13}),
             TESS_OK);
    close_model();
}

TEST(a_killed_rank_leaves_the_checkpoint_before)
{
    begin();
    scheme = SLICES;
    CHECK(ranks_run(2, save_both));
    for (unlucky = 0; unlucky < 3; unlucky++) {
        CHECK(!ranks_run(3, killed));
        CHECK_HAS(others_in(in("deep/ck"), ""), ".new-step-00000013");
        CHECK(ranks_run(4, load_both)); /* which looks for it, and tidies up */
        CHECK_STR(others_in(in("deep/ck"), ""), "step-00000012 ");
    }
    unlucky = 1;
    CHECK(!ranks_run(3, killed));
    CHECK(ranks_run(3, save_13)); /* over what is left of the one before */
    CHECK_STR(others_in(in("deep/ck"), ""), "step-00000013 ");
    remove_all(top);
}

/* ---- the report ---- */

static void report(void)
{
    tess_config c;
    tess_report *r = NULL;
    char set[100], *text = NULL;
    size_t size = 0;
    snprintf(set, sizeof set, "output=%s", in("out"));
    const char *const sets[] = {set, "train_batch_size=1", "steps=1"};
    CHECK_EQ(tess_config_load(NULL, sets, 3, &c), TESS_OK);
    CHECK_EQ(tess_config_resolve(&c, 1), TESS_OK);
    if (ranks_rank == 0) ranks_meet(); /* the others are done by then */
    FILE *out = open_memstream(&text, &size);
    CHECK(tess_dirs_make(c.output, NULL));
    CHECK_EQ(tess_report_open(&c, 0, out, &r), TESS_OK);
    CHECK_EQ(tess_report_step(r, &(tess_step_report){.loss = 1, .seconds = 1}), TESS_OK);
    CHECK((access(in("out/metrics.jsonl"), F_OK) == 0) == (ranks_rank == 0));
    tess_report_close(r);
    fclose(out);
    CHECK_EQ(size > 0, ranks_rank == 0);
    if (ranks_rank) ranks_meet();
    free(text);
}

TEST(rank_0_reports)
{
    begin();
    CHECK(ranks_run(3, report));
    CHECK_STR(others_in(in("out"), "metrics.jsonl report.html"), "");
    remove_all(top);
}
