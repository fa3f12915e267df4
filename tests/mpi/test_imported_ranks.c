/* Run by mpirun: imported networks (fixtures/make_imported.py) whose products the ranks of a tensor share out, by what
 * their ops say of dimensions, against JAX: the loss, what each rank has of each gradient, and ten steps of AdamW. */
#include "models/models.h"
#include "models/networks/import/import.h"
#include "tests/mpi/ranks.h"
#include <string.h>

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

struct net {
    tess_import *from;
    tess_graph *g;
    tess_imported in;
    tess_step *step;
};

static tess_status feed(const struct net *n)
{
    tess_status status = TESS_OK;
    for (int k = 0; k < tess_import_inputs(n->from) && status == TESS_OK; k++) {
        const tess_import_input in = tess_import_input_of(n->from, k);
        int32_t *values = tess_alloc((size_t)tess_dims_size(&in.dims) * sizeof *values);
        status = tess_import_batch_of(n->from, k, values);
        if (status == TESS_OK) status = tess_step_feed(n->step, n->in.input[k], values);
        free(values);
    }
    return status;
}

static void open_net(struct net *n, const char *name, const tess_step_conf *conf)
{
    char path[4096];
    snprintf(path, sizeof path, TESS_FIXTURES "/imported/%s", name);
    *n = (struct net){0};
    OK(tess_start(&(tess_machine){.workers = 1}));
    OK(tess_import_open(path, &n->from));
    n->g =
        tess_graph_new(&(tess_graph_conf){.grid = {.rank = tess_rank(), .tensor = tess_ranks()}, .tile_elements = 64});
    OK(tess_import_build(n->from, n->g, 3, &n->in));
    OK(tess_step_new(n->in.output, conf, &n->step));
    OK(tess_import_load(n->from, n->g));
    OK(feed(n));
}

static void close_net(struct net *n)
{
    tess_step_free(n->step);
    tess_graph_free(n->g);
    free(n->in.input), free(n->in.made);
    tess_import_close(n->from);
    tess_stop();
}

/* What this rank has of a gradient, element by element where the file has it; returns how much of all that is. */
static double compare(struct net *n, const char *name, tess_tensor *p, const tess_safetensor *t)
{
    const size_t size = (size_t)t->elements * sizeof(float);
    float *want = tess_alloc(size), *got = tess_alloc(size);
    const int64_t rows = t->rank ? t->dims[0] : 1, columns = t->elements / rows;
    int64_t at = 0;
    double most = 1e-4;
    if (tess_safetensor_read(t, 0, t->elements, want) != TESS_OK || tess_step_gradient(n->step, p, got) != TESS_OK)
        CHECK_SAY("%s: %s: %s", name, t->name, tess_error_text());
    for (int64_t i = 0; i < t->elements; i++) most = fmax(most, fabs((double)want[i]));
    for (int64_t i = 0; i < tess_param_pieces(p); i++) {
        const tess_piece q = tess_param_piece(p, i);
        for (int64_t j = 0; j < q.rows * q.cols; j++, at++) {
            const int64_t row = q.row + j / q.cols, column = q.col + j % q.cols;
            const float w = want[tess_param_turned(p) ? column * columns + row : row * columns + column];
            if (!(fabs((double)got[at] - (double)w) <= 2e-5 * most))
                CHECK_SAY("%s: the gradient of %s at (%d,%d) is %.8g, JAX's %.8g", name, t->name, (int)row, (int)column,
                          (double)got[at], (double)w);
        }
    }
    free(want), free(got);
    return (double)at / (double)t->elements;
}

/* So many parameters at least are shared out. */
static void gradients(const char *name, int cut)
{
    struct net n;
    tess_import_check want;
    tess_step_result r = {0};
    tess_safetensors *set;
    char path[4200];
    int shared = 0;
    open_net(&n, name, &(tess_step_conf){.train = true, .keep_gradients = true});
    if (!n.step) return;
    OK(tess_step_run(n.step, &(tess_step_input){.lr = 1}, &r));
    CHECK(tess_import_checks(n.from, &want));
    if (!(fabs(r.loss - want.loss) <= 1e-5 * fabs(want.loss)))
        CHECK_SAY("%s: the loss is %.8g, JAX's %.8g", name, r.loss, want.loss);
    snprintf(path, sizeof path, TESS_FIXTURES "/imported/%s/gradients.safetensors", name);
    OK(tess_safetensors_open(path, &set));
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        tess_tensor *p = tess_graph_param(n.g, k);
        const tess_safetensor *t = tess_param_is_state(p) ? NULL : tess_safetensors_find(set, tess_tensor_name(p));
        if (t && tess_param_pieces(p)) shared += compare(&n, name, p, t) < 1;
    }
    if (tess_ranks() > 1 && shared < cut)
        CHECK_SAY("%s: %d parameters are shared out (%s)", name, shared,
                  tess_graph_unsplit(n.g) ? tess_graph_unsplit(n.g) : "none is said not to be");
    tess_safetensors_close(set);
    close_net(&n);
}

static void steps(const char *name)
{
    struct net n;
    tess_optimizer o = tess_adamw();
    char path[4200];
    double want;
    o.weight_decay = 0.1;
    snprintf(path, sizeof path, TESS_FIXTURES "/imported/%s/losses.txt", name);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    open_net(&n, name, &(tess_step_conf){.train = true, .optimizer = o, .recompute_every = 1});
    for (int k = 0; k < STEPS && f && n.step; k++) {
        tess_step_result r = {0};
        OK(tess_step_run(n.step, &(tess_step_input){.step = k, .lr = 1e-2}, &r));
        CHECK(fscanf(f, "%lf", &want) == 1);
        if (!(fabs(r.loss - want) <= 2e-5 * fabs(want)))
            CHECK_SAY("%s: step %d has the loss %.8g, optax's %.8g", name, k, r.loss, want);
    }
    if (f) fclose(f);
    close_net(&n);
}

TEST(all)
{
    static const struct {
        const char *name;
        int cut;
        bool steps;
    } of[] = {{"maps", 0, 0},    {"shapes", 0, 0}, {"dots", 0, 0},   {"indices", 0, 0}, {"convs", 0, 1},
              {"windows", 0, 1}, {"cums", 0, 1},   {"places", 0, 1}, {"inputs", 0, 1},  {"graph", 0, 1},
              {"mlp", 5, 0},     {"gpt", 0, 0},    {"fast", 0, 0},   {"state", 0, 0},   {"split", 11, 0}};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
        gradients(of[k].name, of[k].cut);
        if (of[k].steps) steps(of[k].name);
    }
}
