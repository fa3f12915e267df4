/* A graph of a program's own to files and back: the bits after going on are those of a run that never stopped, and
 * files and names that will not do are refused. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/networks/networks.h"
#include "tests/graph/nets.h"
#include <unistd.h>

static char dir[64];

static const char *in_dir(const char *name)
{
    static char path[4][128];
    static int turn;
    snprintf(path[turn %= 4], sizeof path[0], "%s/%s", dir, name);
    return path[turn++];
}

static void shell(const char *format, const char *what)
{
    char line[256];
    snprintf(line, sizeof line, format, what, what);
    CHECK_EQ(system(line), 0);
}

static void begin(void)
{
    snprintf(dir, sizeof dir, "/tmp/tessera-store-XXXXXX");
    CHECK(mkdtemp(dir) != NULL);
    OK(tess_start(NULL));
}

static void end(void)
{
    tess_stop();
    shell("rm -rf %s", dir);
}

static tess_step *make_by(struct net *n, tess_dtype dtype, bool late, tess_optimizer optimizer)
{
    tess_step *s;
    tess_step_conf conf = {.train = true, .layout.late = late, .optimizer = optimizer};
    conf.optimizer.clip = 1;
    net_make(n, &(tess_graph_conf){.dtype = dtype, .tile_rows = T, .tile_elements = 64 * C}, net_gpt);
    OK(tess_step_new(n->loss, &conf, &s));
    return s;
}

static tess_step *make(struct net *n, tess_dtype dtype, bool late)
{
    return make_by(n, dtype, late, tess_adamw());
}

static void drop(struct net *n, tess_step *s)
{
    tess_step_free(s);
    tess_graph_free(n->g);
}

/* Six steps, and three and three with a graph and step made anew in between; also where updates come late, whose
 * checkpoint is the one of updates at once, byte for byte. */
TEST(a_run_that_goes_on_has_the_same_bits)
{
    begin();
    for (int way = 0; way < 4; way++) {
        struct net n;
        double loss[2][6];
        bool found = true;
        tess_position at = {.step = 7};
        tess_step *s = make(&n, way & 1 ? TESS_BF16 : TESS_F32, way & 2);
        OK(tess_graph_resume(n.g, in_dir("none"), &at, &found));
        CHECK(!found && at.step == 7);
        OK(tess_graph_init(n.g, 1));
        for (int64_t k = 0; k < 6; k++) loss[0][k] = net_run(&n, s, k, 1e-2f);
        OK(tess_graph_save(n.g, in_dir("whole")));
        drop(&n, s);
        s = make(&n, way & 1 ? TESS_BF16 : TESS_F32, way & 2);
        OK(tess_graph_init(n.g, 1));
        OK(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 2, &(tess_position){.step = 0})); /* before any moments */
        for (int64_t k = 0; k < 3; k++) loss[1][k] = net_run(&n, s, k, 1e-2f);
        OK(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 2, &(tess_position){3, 24, 9}));
        if (way & 2)
            shell(way & 1 ? "diff -r %s/checkpoints %s/at-once1" : "diff -r %s/checkpoints %s/at-once0", dir);
        else
            shell(way & 1 ? "cp -r %s/checkpoints %s/at-once1" : "cp -r %s/checkpoints %s/at-once0", dir);
        drop(&n, s);
        s = make(&n, way & 1 ? TESS_BF16 : TESS_F32, way & 2);
        OK(tess_graph_resume(n.g, in_dir("checkpoints"), &at, &found));
        CHECK(found && at.step == 3 && at.samples == 24 && at.seed == 9);
        for (int64_t k = 3; k < 6; k++) loss[1][k] = net_run(&n, s, k, 1e-2f);
        CHECK(!memcmp(loss[0], loss[1], sizeof loss[0]));
        OK(tess_graph_save(n.g, in_dir("halves")));
        shell("cd %s && cmp whole/model.safetensors halves/model.safetensors && rm -rf checkpoints", dir);
        double last = net_run(&n, s, 6, 0);
        OK(tess_graph_init(n.g, 2));
        OK(tess_graph_load(n.g, in_dir("whole")));
        CHECK(net_run(&n, s, 6, 0) == last);
        drop(&n, s);
    }
    end();
}

/* What was read before a step said how it keeps moments is not dropped in silence. */
/* Of all parameters, whether updates come late or, as Muon's, never do. */
TEST(states_beside_a_step_are_those_before_it)
{
    begin();
    for (int way = 0; way < 8; way++) {
        shell("mkdir %s/0 %s/1", dir);
        for (int beside = 0; beside < 2; beside++) {
            struct net n;
            tess_states_writing *writing;
            tess_step *s = make_by(&n, way & 1 ? TESS_BF16 : TESS_F32, way & 2, way & 4 ? tess_muon() : tess_adamw());
            OK(tess_graph_init(n.g, 1));
            for (int64_t k = 0; k < 2; k++) net_run(&n, s, k, 1e-2f);
            OK(tess_states_begin(in_dir(beside ? "1" : "0"), n.g, NULL, beside, &writing));
            net_run(&n, s, 2, 1e-2f);
            OK(tess_states_end(writing, true));
            drop(&n, s);
        }
        shell("diff -r %s/0 %s/1", dir);
        shell("rm -r %s/0 %s/1", dir);
    }
    end();
}

TEST(moments_that_a_step_keeps_otherwise)
{
    begin();
    struct net n;
    tess_position at;
    bool found;
    tess_step *s = make(&n, TESS_F32, false);
    OK(tess_graph_init(n.g, 1));
    net_run(&n, s, 0, 1e-2f);
    OK(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 1, &(tess_position){.step = 1}));
    drop(&n, s);
    net_make(&n, &(tess_graph_conf){.tile_rows = T, .tile_elements = 64 * C}, net_gpt);
    OK(tess_graph_resume(n.g, in_dir("checkpoints"), &at, &found));
    tess_step_conf conf = {.train = true, .optimizer = tess_adamw()};
    conf.optimizer.keeping = TESS_KEEP_BF16;
    WRONG(tess_step_new(n.loss, &conf, &s), "has moments already, kept otherwise");
    conf.optimizer.keeping = TESS_KEEP_F32;
    OK(tess_step_new(n.loss, &conf, &s));
    net_run(&n, s, 1, 1e-2f);
    drop(&n, s);
    end();
}

TEST(files_of_another_model)
{
    begin();
    struct net n;
    tess_position at;
    bool found;
    tess_step *s = make(&n, TESS_F32, false);
    WRONG(tess_graph_save(n.g, in_dir("early")), "neither drawn nor loaded");
    CHECK(access(in_dir("early/model.safetensors"), F_OK) != 0);
    OK(tess_graph_init(n.g, 1));
    OK(tess_graph_save(n.g, in_dir("model")));
    OK(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 1, &(tess_position){.step = 1}));
    tess_graph *other = tess_graph_new(NULL);
    WRONG(tess_graph_load(other, in_dir("model")), "no parameters");
    tess_param(other, "table", V, C, TESS_ZERO);
    WRONG(tess_graph_load(other, in_dir("model")), "is no parameter of the graph");
    WRONG(tess_graph_resume(other, in_dir("checkpoints"), &at, &found), "another model");
    OK(tess_graph_init(other, 1));
    OK(tess_graph_save(other, in_dir("other")));
    WRONG(tess_graph_load(n.g, in_dir("other")), "no tensor ");
    tess_graph *taller = tess_graph_new(NULL);
    tess_param(taller, "table", V + 1, C, TESS_ZERO);
    WRONG(tess_graph_load(taller, in_dir("other")), "table has shape (101,20), the model needs (102,20)");
    WRONG(tess_graph_load(n.g, in_dir("nowhere")), "nowhere");
    WRONG(tess_graph_load(NULL, in_dir("model")), "NULL");
    WRONG(tess_graph_load(n.g, NULL), "NULL");
    WRONG(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 0, &(tess_position){0}), "0 to keep");
    WRONG(tess_graph_checkpoint(n.g, in_dir("checkpoints"), 1, NULL), "checkpoint");
    CHECK_EQ(tess_graph_save(n.g, in_dir("other/model.safetensors")), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "cannot be made");
    tess_graph_free(taller);
    tess_graph_free(other);
    drop(&n, s);
    end();
}

TEST(names_that_no_tensor_can_have)
{
    begin();
    static const char *const name[] = {"", "\xff\xfe", "__metadata__"};
    char longest[600] = "";
    memset(longest, 'x', sizeof longest - 1);
    for (int k = 0; k < 4; k++) {
        tess_graph *g = tess_graph_new(NULL);
        tess_param(g, k < 3 ? name[k] : longest, 4, 4, TESS_ZERO);
        OK(tess_graph_init(g, 1));
        WRONG(tess_graph_save(g, in_dir("model")), "cannot be a tensor's");
        tess_graph_free(g);
    }
    tess_graph *g = tess_graph_new(NULL);
    tess_param(g, "w", 4, 4, TESS_ZERO);
    tess_param(g, "w.exp_avg", 4, 4, TESS_ZERO);
    OK(tess_graph_init(g, 1));
    OK(tess_graph_save(g, in_dir("model")));
    WRONG(tess_graph_checkpoint(g, in_dir("checkpoints"), 1, &(tess_position){0}), "w.exp_avg: is a parameter's name");
    tess_graph_free(g);
    end();
}

TEST(what_is_null_or_no_directory)
{
    const tess_generate_conf nothing = {0};
    tess_model *m;
    tess_network net;
    WRONG(tess_train(NULL), "configuration: is NULL");
    WRONG(tess_eval(NULL), "configuration: is NULL");
    WRONG(tess_estimate(NULL, stdout), "configuration: is NULL");
    WRONG(tess_generate(NULL, stdout), "is NULL");
    WRONG(tess_generate(&nothing, stdout), "is NULL");
    WRONG(tess_export(NULL, NULL, stdout), "is NULL");
    WRONG(tess_model_open(NULL, NULL, &m), "neither a directory nor a config.json");
    WRONG(tess_model_open("nowhere", NULL, NULL), "is NULL");
    WRONG(tess_model_build(NULL, NULL, 1, 1, TESS_FOR_LOSS, &net), "is NULL");
    WRONG(tess_model_load(NULL, NULL, 1), "is NULL");
    WRONG(tess_model_save(NULL, NULL, NULL), "is NULL");
    begin();
    struct net n;
    bool found = true;
    tess_position at = {0};
    tess_step *s = make(&n, TESS_F32, false);
    shell("touch %s", in_dir("file"));
    WRONG(tess_graph_resume(n.g, in_dir("file"), &at, &found), "is no directory");
    CHECK(!found);
    drop(&n, s);
    end();
}
