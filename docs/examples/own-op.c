/* An op of one's own, from outside the source tree: y_t = x_t + decay y_t-1 along the sequence, with a decay a column
 * that is learned. Two functions see whole sequences of one tile; the library plans the op, keeps it under a cap,
 * shares it out over ranks, computes it again and saves its parameter like any other (docs/add-an-op.md). The program
 * compares its gradient with differences. cc own-op.c $(pkg-config --cflags --libs tessera) -lm */
#include <math.h>
#include <tessera.h>
enum { B = 4, T = 16, C = 32, V = 16 };

static void ema(const tess_call *c)
{
    const float *decay = c->in[1].data; /* (C), and x, y (sequences T, C) */
    for (int64_t i = 0; i < c->out.rows * C; i++) {
        const float before = i / C % T ? tess_load(c->out.data, i - C, c->dtype) : 0;
        tess_store(c->out.data, i, c->dtype, tess_load(c->in[0].data, i, c->dtype) + decay[i % C] * before);
    }
}
/* With g_t the gradient of y_t by all that follows: g_t = dy_t + decay g_t+1, dx_t = g_t, ddecay = sum of g_t y_t-1. */
static void ema_backward(const tess_call *c)
{
    const float *decay = c->in[1].data;
    float *ddecay = c->d_in[1].data, g[C];
    for (int k = 0; k < C && !c->d_in[1].add; k++) ddecay[k] = 0;
    for (int64_t i = c->d_out.rows * C - 1; i >= 0; i--) {
        g[i % C] = tess_load(c->d_out.data, i, c->dtype) + (i / C % T < T - 1 ? decay[i % C] * g[i % C] : 0);
        tess_accumulate(c->d_in[0].data, i, c->dtype, c->d_in[0].add, g[i % C]);
        if (i / C % T) ddecay[i % C] += g[i % C] * tess_load(c->out.data, i - C, c->dtype);
    }
}
static tess_status ema_shape(tess_shapes *s) /* that of y is that of x, where nothing else is said */
{
    if (s->out.dim[1] == T && s->out.dim[2] == C && s->in[1].dim[0] == C) return TESS_OK;
    return tess_shapes_wrong(s, "x must be (B,%d,%d), decay (%d)", T, C, C);
}

static tess_status program(double *along, double *found)
{
    tess_op_conf conf = {.name = "ema", .takes = "x, decay", .shape = ema_shape};
    conf.forward.cpu = ema, conf.backward.cpu = ema_backward; /* .cuda: the same work on a GPU */
    conf.reads = TESS_READS_IN1 | TESS_READS_OUT;             /* of what backward reads the plan takes care */
    const tess_op *op;
    tess_step *s;
    float gradient[C], *at;
    int32_t id[B * T], after[B * T];
    for (int i = 0; i < B * T; i++) id[i] = (i + 3) * (i + 7) % 5, after[i] = (i + 4) * (i + 8) % 5;
    TESS_TRY(tess_op_register(&conf, &op));
    tess_graph *g = tess_graph_new(NULL);
    tess_tensor *ids = tess_input(g, "ids", B, T), *next = tess_input(g, "next", B, T);
    tess_tensor *x = tess_embedding(ids, tess_param(g, "table", V, C, TESS_NORMAL(0.5f)), NULL); /* (B, T, C) */
    tess_tensor *decay = tess_param(g, "decay", C, 1, TESS_UNIFORM(0.5f));
    x = tess_silu(tess_apply(op, (tess_tensor *[]){x, decay}, 2, NULL)); /* it stands among the library's own */
    x = tess_cross_entropy(x, tess_param(g, "head", V, C, TESS_NORMAL(0.2f)), NULL, next);
    TESS_TRY(tess_step_new(x, &(tess_step_conf){.train = true, .keep_gradients = true}, &s));
    TESS_TRY(tess_graph_init(g, 1));
    TESS_TRY(tess_step_feed(s, ids, id));
    TESS_TRY(tess_step_feed(s, next, after));
    tess_step_result r[3];
    for (int turn = 0; turn < 3; turn++) { /* here, and on either side along a direction */
        TESS_TRY(tess_step_run(s, &(tess_step_input){.seed = 1}, &r[turn]));
        if (turn == 0) TESS_TRY(tess_step_gradient(s, decay, gradient));
        TESS_TRY(tess_param_map(decay, 0, TESS_MASTER, TESS_RW, &at));
        for (int k = 0; k < C; k++) at[k] += (turn == 1 ? -2e-2f : 1e-2f) * (float)sin(k * k);
        tess_param_unmap(decay, 0, TESS_MASTER);
    }
    for (int k = 0; k < C; k++) *along += gradient[k] * sin(k * k);
    *found = (r[1].loss - r[2].loss) / 2e-2;
    tess_step_free(s);
    tess_graph_free(g);
    return TESS_OK;
}
int main(void)
{
    double along = 0, found = 1;
    tess_status status = tess_start(NULL);
    if (status == TESS_OK) status = program(&along, &found);
    tess_stop();
    if (status != TESS_OK) fprintf(stderr, "%s\n", tess_error_text());
    printf("the gradient says %.6f, differences say %.6f\n", along, found);
    return !(fabs(found - along) < 1e-4 + 1e-2 * fabs(along));
}
