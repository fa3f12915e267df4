/* Each op in a network of its own (tests/ops/NAME.c): its gradient by finite differences, and the same bits when blocks
 * are recomputed, whoever runs the tasks. */
#define CHECK_MAIN
#include "tests/graph/nets.h"
#include "tests/ops/ops.h"

#define TESS_OP(name) tess_tensor *op_net_##name(tess_graph *g, tess_tensor *x, int layer);
#include "graph/ops.def"

static const struct {
    const char *name;
    net_body body;
} nets[] = {
#define TESS_OP(name) {#name, op_net_##name},
#include "graph/ops.def"
};
enum { NETS = sizeof nets / sizeof *nets };
static int which;

tess_tensor *op_param(tess_graph *g, int layer, const char *name, int64_t rows, int64_t columns, tess_init init)
{
    return net_param(g, layer, name, rows, columns, init);
}

/* x + down(op(up(x))) */
static tess_tensor *body(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *up = tess_linear(x, PARAM("up", C, C, TESS_NORMAL(0.4f)), PARAM("up.b", C, 1, TESS_NORMAL(0.1f)));
    tess_tensor *y = nets[which].body(g, up, layer);
    return tess_add(x, tess_linear(y, PARAM("down", C, C, TESS_NORMAL(0.4f)), NULL));
}

static void check_param(struct net *n, tess_step *s, tess_step *f, tess_tensor *p)
{
    const int64_t elements = elements_of(p);
    int64_t at = 0;
    float *g = tess_alloc((size_t)elements * sizeof *g);
    net_run(n, s, 5, 0);
    OK(tess_step_gradient(s, p, g));
    for (int64_t i = 0; i < elements; i++)
        if (fabsf(g[i]) > fabsf(g[at])) at = i;
    CHECK_SLOPE(nets[which].name, p, at, (double)g[at], 1e-3f, 4e-4, net_run(n, f, 5, 0));
    free(g);
}

TEST(gradients_match_finite_differences)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    net_layers = 2;
    for (which = 0; which < NETS; which++) {
        struct net n;
        tess_step *f, *s = net_step(&n, &(tess_graph_conf){.tile_rows = 2 * T, .loss_rows = 17}, body,
                                    &(tess_step_conf){.train = true, .keep_gradients = true});
        OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .keep_gradients = true, .recompute_every = 1}, &f));
        OK(tess_graph_init(n.g, 3));
        for (int k = 0; k < tess_graph_params(n.g); k++)
            if (!tess_param_frozen(tess_graph_param(n.g, k))) check_param(&n, s, f, tess_graph_param(n.g, k));
        tess_step_free(f);
        net_free(&n, s);
    }
    tess_stop();
}

/* The losses of three steps, the bits of which go through every weight. */
static void train(tess_dtype dtype, int recompute_every, double loss[3])
{
    const tess_step_conf conf = {
        .train = true, .micro = 2, .recompute_every = recompute_every, .optimizer = tess_adamw()};
    struct net n;
    tess_step *s = net_step(&n, &(tess_graph_conf){.dtype = dtype, .tile_rows = T, .loss_rows = 20}, body, &conf);
    OK(tess_graph_init(n.g, 3));
    for (int64_t k = 0; k < 3; k++) loss[k] = net_run(&n, s, k, 1e-2f);
    net_free(&n, s);
}

TEST(same_bits_when_recomputing_and_under_another_scheduler)
{
    static double plain[2 * NETS][3];
    net_layers = 2;
    for (int again = 0; again < 2; again++) {
        OK(tess_start(&(tess_machine){.sched = again ? "eager" : "lws", .workers = 2 - again}));
        for (which = 0; which < NETS; which++)
            for (int dtype = 0; dtype < 2; dtype++) {
                double loss[3], *first = plain[2 * which + dtype];
                train((tess_dtype)dtype, again, again ? loss : first);
                if (again && memcmp(loss, first, sizeof loss))
                    CHECK_SAY("%s %s: losses %.17g, expected %.17g", nets[which].name,
                              tess_dtype_name((tess_dtype)dtype), loss[2], first[2]);
                if (!(isfinite(first[2]) && first[2] != first[0])) CHECK_SAY("%s: loss %g", nets[which].name, first[0]);
            }
        tess_stop();
    }
}
