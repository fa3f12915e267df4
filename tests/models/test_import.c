/* Imported networks against JAX (fixtures/make_imported.py): the loss and the gradients of every parameter, ten steps
 * of AdamW, and the bits that must not depend on workers, nor on a cap. Each parameter of "maps", "shapes", "dots" and
 * "indices" is read by one kind of op, so that its gradient names what is wrong. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/networks/import/import.h"
#include "tests/check.h"
#include <sys/stat.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
enum { STEPS = 10 };
#define OK(...)                                                                                                        \
    do {                                                                                                               \
        if ((__VA_ARGS__) != TESS_OK) {                                                                                \
            CHECK_SAY("%s: %s", #__VA_ARGS__, tess_error_text());                                                      \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

static const char *fixture(const char *name)
{
    static char path[4096];
    snprintf(path, sizeof path, TESS_FIXTURES "/imported/%s", name);
    return path;
}

struct net {
    tess_import *from;
    tess_graph *g;
    tess_imported in;
    tess_step *step;
    tess_dtype dtype;
};

static tess_status open_net(struct net *n, const char *name, int64_t samples, int64_t tile_elements)
{
    TESS_TRY(tess_import_open(fixture(name), &n->from));
    n->g = tess_graph_new(&(tess_graph_conf){.tile_elements = tile_elements, .dtype = n->dtype});
    return tess_import_build(n->from, n->g, samples, &n->in);
}

static void close_net(struct net *n)
{
    tess_step_free(n->step);
    tess_graph_free(n->g);
    free(n->in.input), free(n->in.made);
    tess_import_close(n->from);
    *n = (struct net){0};
    tess_stop();
}

/* Its batch, as often as the step has micro-batches. */
static tess_status feed(const struct net *n)
{
    int64_t micros;
    tess_step_share(n->step, NULL, &micros);
    tess_status status = TESS_OK;
    for (int k = 0; k < tess_import_inputs(n->from) && status == TESS_OK; k++) {
        const tess_import_input in = tess_import_input_of(n->from, k);
        const int64_t size = tess_dims_size(&in.dims);
        int32_t *values = tess_alloc((size_t)(micros * size) * sizeof *values);
        for (int64_t m = 0; m < micros && status == TESS_OK; m++)
            status = tess_import_batch_of(n->from, k, values + m * size);
        if (status == TESS_OK) status = tess_step_feed(n->step, n->in.input[k], values);
        free(values);
    }
    return status;
}

/* What is kept transposed, as the file has it. */
static void turn_back(const tess_tensor *p, float *x)
{
    int64_t shape[3];
    if (!tess_param_turned(p)) return;
    tess_tensor_shape(p, shape);
    float *kept = tess_alloc((size_t)(shape[0] * shape[1]) * sizeof *kept);
    memcpy(kept, x, (size_t)(shape[0] * shape[1]) * sizeof *kept);
    for (int64_t i = 0; i < shape[0]; i++)
        for (int64_t j = 0; j < shape[1]; j++) x[j * shape[0] + i] = kept[i * shape[1] + j];
    free(kept);
}

static double length(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static double largest(const float *x, int64_t n)
{
    double most = 0;
    for (int64_t i = 0; i < n; i++) most = fabs((double)x[i]) > most ? fabs((double)x[i]) : most;
    return most;
}

/* Against the gradients of a file: each one's distance, of its largest or of a hundredth of the largest of all, is at
 * most `most`. In 16 bits it is that of vectors, since a choice that rounding changes moves single elements far. */
static void compare(struct net *n, const char *name, double most)
{
    tess_safetensors *set;
    char path[4200];
    double top = 0;
    snprintf(path, sizeof path, "%s/gradients.safetensors", fixture(name));
    OK(tess_safetensors_open(path, &set));
    for (int pass = 0; pass < 2; pass++)
        for (int k = 0; k < tess_graph_params(n->g); k++) {
            tess_tensor *p = tess_graph_param(n->g, k);
            if (tess_param_is_state(p)) continue;
            const tess_safetensor *t = tess_safetensors_find(set, tess_tensor_name(p));
            float *want = tess_alloc((size_t)t->elements * sizeof *want),
                  *got = tess_alloc((size_t)t->elements * sizeof *got);
            OK(tess_safetensor_read(t, 0, t->elements, want));
            OK(tess_step_gradient(n->step, p, got));
            turn_back(p, got);
            const double scale = largest(want, t->elements);
            if (scale > top) top = scale;
            for (int64_t i = 0; i < t->elements; i++) got[i] -= want[i];
            const bool vectors = n->dtype != TESS_F32;
            const double off = vectors ? length(got, t->elements) : largest(got, t->elements),
                         all = vectors ? length(want, t->elements) : scale, least = all > top / 100 ? all : top / 100;
            if (pass && !(off <= most * least))
                CHECK_SAY("%s in %s: the gradient of %s is off by %.3g of %.3g", name, tess_dtype_name(n->dtype),
                          tess_tensor_name(p), off, all);
            free(want), free(got);
        }
    tess_safetensors_close(set);
}

static void gradients_in(tess_dtype t, const char *name, int64_t samples, int64_t tile_elements, int micros,
                         double most)
{
    struct net n = {.dtype = t};
    tess_import_check want;
    tess_step_result r;
    OK(tess_start(&(tess_machine){.workers = 2}));
    OK(open_net(&n, name, samples, tile_elements));
    OK(tess_step_new(n.in.output, &(tess_step_conf){.train = true, .keep_gradients = true, .micro = micros}, &n.step));
    OK(tess_import_load(n.from, n.g));
    OK(tess_graph_round(n.g));
    OK(feed(&n));
    OK(tess_step_run(n.step, &(tess_step_input){.lr = 1}, &r));
    CHECK(tess_import_checks(n.from, &want));
    if (!(fabs(r.loss - want.loss) <= most * fabs(want.loss)))
        CHECK_SAY("%s: the loss is %.8g, JAX's %.8g", name, r.loss, want.loss);
    compare(&n, name, most);
    close_net(&n);
}

/* In one row tile, and in several; with parameters in one tile, and in several; of the batch once, and twice. */
static void all_cuts(const char *name)
{
    gradients_in(TESS_F32, name, 1000, 1 << 20, 1, 1e-5);
    gradients_in(TESS_F32, name, 4, 32, 2, 1e-5);
}

/* ---- steps ---- */

static void train(struct net *n, const char *name, int workers, int recompute, double *loss)
{
    tess_optimizer o = tess_adamw();
    o.weight_decay = 0.1;
    OK(tess_start(&(tess_machine){.workers = workers}));
    OK(open_net(n, name, 3, 64));
    OK(tess_step_new(n->in.output, &(tess_step_conf){.train = true, .optimizer = o, .recompute_every = recompute},
                     &n->step));
    OK(tess_import_load(n->from, n->g));
    OK(tess_graph_round(n->g));
    OK(feed(n));
    for (int k = 0; k < STEPS; k++) {
        tess_step_result r;
        OK(tess_step_run(n->step, &(tess_step_input){.step = k, .lr = 1e-2}, &r));
        loss[k] = r.loss;
    }
}

/* The states of a network, where it has some, against those of a file. */
static void compare_states(struct net *n, const char *name)
{
    tess_safetensors *set;
    char path[4200];
    snprintf(path, sizeof path, "%s/after.safetensors", fixture(name));
    if (access(path, F_OK)) return;
    OK(tess_safetensors_open(path, &set));
    for (size_t k = 0; k < tess_safetensors_count(set); k++) {
        const tess_safetensor *t = tess_safetensors_at(set, k);
        tess_tensor *p = tess_graph_find_param(n->g, t->name);
        float want[256], *got;
        CHECK(p && t->elements <= 256);
        OK(tess_safetensor_read(t, 0, t->elements, want));
        for (int64_t i = 0, at = 0; i < tess_param_pieces(p); i++) {
            const tess_piece piece = tess_param_piece(p, i);
            OK(tess_param_map(p, i, TESS_MASTER, TESS_R, &got));
            for (int64_t j = 0; j < piece.rows * piece.cols; j++, at++)
                if (!(fabsf(got[j] - want[at]) <= 2e-5f * fmaxf(1, fabsf(want[at]))))
                    CHECK_SAY("%s: element %d of %s is %.8g, JAX's %.8g", name, (int)at, t->name, (double)got[j],
                              (double)want[at]);
            tess_param_unmap(p, i, TESS_MASTER);
        }
    }
    tess_safetensors_close(set);
}

static void steps(const char *name)
{
    struct net n = {0};
    double one[STEPS], two[STEPS], again[STEPS], want;
    char path[4200];
    snprintf(path, sizeof path, "%s/losses.txt", fixture(name));
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    train(&n, name, 2, 0, two);
    compare_states(&n, name);
    close_net(&n);
    train(&n, name, 1, 0, one);
    close_net(&n);
    train(&n, name, 2, 2, again);
    close_net(&n);
    for (int k = 0; k < STEPS && f; k++) {
        CHECK(fscanf(f, "%lf", &want) == 1);
        if (!(fabs(two[k] - want) <= 1e-5 * fabs(want)))
            CHECK_SAY("%s: step %d has the loss %.8g, optax's %.8g", name, k, two[k], want);
        if (one[k] != two[k]) CHECK_SAY("%s: step %d: other bits with one worker", name, k);
        if (again[k] != two[k]) CHECK_SAY("%s: step %d: other bits recomputed", name, k);
    }
    if (f) fclose(f);
}

/* ---- networks ---- */

TEST(maps)
{
    all_cuts("maps");
}
TEST(shapes)
{
    all_cuts("shapes");
}
TEST(dots)
{
    all_cuts("dots");
}
TEST(indices)
{
    all_cuts("indices");
}
TEST(convs)
{
    all_cuts("convs");
    steps("convs");
}
TEST(windows)
{
    all_cuts("windows");
    steps("windows");
}
TEST(cums)
{
    all_cuts("cums");
    steps("cums");
}
TEST(places)
{
    all_cuts("places");
    steps("places");
}
TEST(sorts)
{
    all_cuts("sorts");
    steps("sorts");
}
TEST(inputs)
{
    all_cuts("inputs");
    steps("inputs");
    all_cuts("graph");
    steps("graph");
}
TEST(state)
{
    all_cuts("state");
}
TEST(split)
{
    all_cuts("split");
}
TEST(mlp)
{
    all_cuts("mlp");
}
TEST(gpt)
{
    all_cuts("gpt");
}
/* ---- patterns ---- */

struct found {
    int attention, norms, gelus, heads, lookups, linears, products;
};

static void count(void *of, uint32_t k, const tess_listed_task *t)
{
    struct found *f = of;
    const struct {
        const char *name;
        int *n;
    } of_name[] = {
        {"attention_forward", &f->attention}, {"layernorm_forward", &f->norms},   {"rmsnorm_forward", &f->norms},
        {"silu_forward", &f->gelus},          {"gelu_forward", &f->gelus},        {"linear_gelu_forward", &f->gelus},
        {"cross_entropy_logits", &f->heads},  {"embedding_forward", &f->lookups}, {"linear_forward", &f->linears},
        {"linear_gelu_forward", &f->linears}, {"any_dot", &f->products},          {"add_layernorm_forward", &f->norms},
        {"add_rmsnorm_forward", &f->norms}};
    (void)k;
    for (size_t i = 0; i < sizeof of_name / sizeof *of_name; i++)
        *of_name[i].n += !strcmp(t->codelet->name, of_name[i].name);
}

static void no_tile(void *of, uint32_t k, const tess_listed_tile *t)
{
    (void)of, (void)k, (void)t;
}

/* All of fixtures/make_fast.py is found: no product is left. */
TEST(patterns)
{
    struct net n = {0};
    struct found f = {0};
    OK(tess_start(&(tess_machine){.workers = 2}));
    OK(open_net(&n, "fast", 1000, 1 << 20));
    OK(tess_step_new(n.in.output, &(tess_step_conf){.train = true, .keep_gradients = true}, &n.step));
    tess_step_list(n.step, NULL, 1, &(tess_lister){&f, no_tile, count});
    CHECK(f.attention == 2 && f.norms == 3 && f.gelus == 3 && f.heads == 1 && f.lookups == 1 && f.products == 0);
    if (f.linears != 11) CHECK_SAY("%d linears, expected 11", f.linears);
    close_net(&n);
}

TEST(fast)
{
    all_cuts("fast");
}

/* ---- 16 bits ---- */

/* The loss and the gradients are near those of fp32, and the bits of training those of any workers and recomputation.
 */
TEST(halves)
{
    static const char *const name[] = {"maps", "mlp",    "shapes", "dots",  "indices", "convs", "windows",
                                       "cums", "places", "sorts",  "graph", "state",   "gpt",   "fast"};
    for (size_t k = 0; k < sizeof name / sizeof *name; k++)
        for (int t = TESS_BF16; t <= TESS_F16; t++) {
            struct net n = {.dtype = (tess_dtype)t};
            double one[STEPS], two[STEPS], again[STEPS];
            const double most = k < 2 ? 0.1 : 0.04; /* bf16 turns one relu of "mlp", and one max of "maps" around */
            gradients_in((tess_dtype)t, name[k], 1000, 1 << 20, 1, most);
            gradients_in((tess_dtype)t, name[k], 4, 32, 2, most);
            train(&n, name[k], 2, 0, two);
            close_net(&n);
            n.dtype = (tess_dtype)t;
            train(&n, name[k], 1, 0, one);
            close_net(&n);
            n.dtype = (tess_dtype)t;
            train(&n, name[k], 2, 2, again);
            close_net(&n);
            for (int s = 0; s < STEPS; s++)
                if (one[s] != two[s] || again[s] != two[s])
                    CHECK_SAY("%s: step %d in %s: losses %.8g, %.8g and %.8g of one worker, two, and recomputed",
                              name[k], s, tess_dtype_name((tess_dtype)t), one[s], two[s], again[s]);
        }
}

TEST(adamw)
{
    steps("mlp");
    steps("gpt");
    steps("state");
    steps("fast");
}

/* ---- mistakes ---- */

#define LOSS "\"outputs\": {\"loss\": \"b\"}"
/* One node of a network that is right but for it, or what stands behind the nodes. */
static void refuses(const char *node, const char *rest, const char *says)
{
    tess_import *n;
    tess_imported built;
    FILE *f = fopen("wrong/graph.json", "w");
    fprintf(f,
            "{\"tessera_graph\": 1, \"inputs\": {\"x\": {\"shape\": [4, 3], \"dtype\": \"float32\", \"batch\": 0}}, "
            "\"params\": {\"w\": {\"shape\": [3, 2], \"dtype\": \"float32\"}}, \"nodes\": [{\"name\": \"a\", \"at\": "
            "\"my.py:7\", %s}, {\"name\": \"b\", \"op\": \"reduce\", \"in\": [\"a\"], \"shape\": [], \"dtype\": "
            "\"float32\", \"fn\": \"sum\", \"dims\": [0, 1]}], %s}",
            node, rest);
    fclose(f);
    tess_error_clear();
    tess_status status = tess_import_open("wrong", &n);
    tess_graph *g = tess_graph_new(NULL);
    if (status == TESS_OK) {
        status = tess_import_build(n, g, 0, &built);
        if (status == TESS_OK) free(built.input), free(built.made);
        tess_import_close(n);
    }
    tess_graph_free(g);
    CHECK_EQ(status, *says ? TESS_INVALID : TESS_OK);
    if (*says) CHECK_HAS(tess_error_text(), says);
    if (*says && !strcmp(rest, LOSS)) CHECK_HAS(tess_error_text(), "my.py:7");
}

#define DOT "\"op\": \"dot\", \"in\": [\"input:x\", \"param:w\"], \"dtype\": \"float32\", "
#define X   "\"in\": [\"input:x\"], \"shape\": [4, 3], \"dtype\": \"float32\", "
#define WINDOW                                                                                                         \
    "\"op\": \"window\", " X "\"strides\": [1, 1], \"pads\": [[0, 0], [1, 1]], \"base_dilation\": [1, 1], "            \
    "\"dilation\": [1, 1], "
#define CONV "\"op\": \"conv\", \"shape\": [4, 2], \"dtype\": \"float32\", \"groups\": 1, "
#define DIMS "\"contract\": [[1], [0]], \"batch\": [[], []]"
TEST(mistakes)
{
    static const char *const wrong[][2] = {
        {DOT DIMS ", \"shape\": [4, 2]", ""},
        {DOT DIMS ", \"shape\": [4, 3]", "another shape or dtype than the file says"},
        {DOT "\"contract\": [[0], [0]], \"batch\": [[], []], \"shape\": [4, 2]",
         "x (4,3), w (3,2): dimensions that go"},
        {DOT "\"contract\": [[1, 0], [0]], \"batch\": [[], []], \"shape\": [4, 2]", "the two lists of contract differ"},
        {DOT DIMS ", \"shape\": [4, 2], \"stride\": 1", "has the key stride, which is not known"},
        {DOT DIMS ", \"shape\": [4, 0]", "a dimension of 0"},
        {"\"op\": \"fft\", " X "\"stride\": [1]", "there is no op fft in this version"},
        {CONV "\"in\": [\"input:x\", \"param:w\"], \"lhs\": [0, 1, 2]", "x has 2 dimensions (expected 3 to 5)"},
        {WINDOW "\"fn\": \"sum\", \"size\": [1, 3]", ""},
        {WINDOW "\"fn\": \"prod\", \"size\": [1, 3]", "there is no window prod"},
        {WINDOW "\"fn\": \"sum\", \"size\": [1, 6]", "x (4,3): the window is larger than x and its pads"},
        {WINDOW "\"fn\": \"sum\", \"size\": [0, 3]", "a size, stride or dilation is below 1"},
        {WINDOW "\"fn\": \"sum\", \"size\": [3]", "size is no list of 2 whole numbers"},
        {"\"op\": \"cum\", " X "\"fn\": \"sum\", \"dim\": 2", "x (4,3): along dimension 2"},
        {"\"op\": \"cum\", " X "\"fn\": \"mean\", \"dim\": 1", "there is no cum mean"},
        {"\"op\": \"sort\", " X "\"dim\": 1, \"descending\": 1", "descending is neither true nor false"},
        {"\"op\": \"sort\", " X "\"dim\": 1", "another shape or dtype than the file says"},
        {"\"op\": \"map\", " X "\"fn\": \"sinc\"", "there is no function sinc"},
        {"\"op\": \"map\", " X "\"fn\": \"add\"", "has 1 operands (its function takes 2)"},
        {"\"op\": \"map\", " X "\"fn\": \"not\"", "it takes int32 and bool alone"},
        {"\"op\": \"map\", " X "\"fn\": \"is_finite\"", "another dtype than its function makes"},
        {"\"op\": \"transpose\", " X "\"perm\": [1, 0]", "perm and the shapes do not fit"},
        {"\"op\": \"slice\", " X "\"lo\": [0, 0], \"hi\": [4, 4], \"step\": [1, 1]",
         "dimension 1: 0 to 4 in steps of 1"},
        {"\"op\": \"rev\", " X "\"dims\": [2]", "there is no dimension 2"},
        {"\"op\": \"map\", \"in\": [\"c\"], \"shape\": [4, 3], \"dtype\": \"float32\", \"fn\": \"exp\"",
         "reads c, which"},
        {"\"op\": \"map\", \"in\": [\"input:x\"], \"shape\": [4, 3], \"dtype\": \"int8\", \"fn\": \"cast\"",
         "the dtype int8"},
    };
    mkdir("wrong", 0777);
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++) refuses(wrong[k][0], LOSS, wrong[k][1]);
    static const char *const rest[][2] = {
        {LOSS ", \"state\": {\"s\": {\"shape\": [], \"dtype\": \"float32\"}}, \"updates\": {\"s\": \"b\"}", ""},
        {LOSS ", \"updates\": {\"s\": \"b\"}", "updates: there is no state s"},
        {LOSS ", \"state\": {\"s\": {\"shape\": [1], \"dtype\": \"float32\"}}, \"updates\": {\"s\": \"b\"}",
         "the state s is replaced by b, of another shape"},
        {LOSS ", \"state\": {\"s\": {\"shape\": [], \"dtype\": \"int32\"}}", "state: s is not float32"},
        {"\"outputs\": {\"loss\": \"b\", \"a \\\"b\\\"\": \"b\"}", "cannot be a name in metrics.jsonl"},
        {"\"outputs\": {\"loss\": \"b\", \"acc\": \"c\"}", "reads c, which"},
    };
    for (size_t k = 0; k < sizeof rest / sizeof *rest; k++)
        refuses(DOT DIMS ", \"shape\": [4, 2]", rest[k][0], rest[k][1]);
}
