/* A small language model of one's own: described, trained on a sentence, in some 40 lines. tools/check builds and runs
 * it. By hand, after `meson install`: cc first-model.c $(pkg-config --cflags --libs tessera) */
#include <stdio.h>
#include <string.h>
#include <tessera.h>

enum { B = 16, T = 32, C = 48, V = 128, STEPS = 150 };

static tess_status train(const char *dir, double *loss)
{
    static const char text[] = "A tessera is a tile of a mosaic; many small tiles make one large picture. ";
    static int32_t ids[B * T], next[B * T];

    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_tensor *in = tess_input(g, "ids", B, T), *targets = tess_input(g, "next", B, T);
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.1f));
    tess_tensor *x = tess_embedding(in, table, tess_param(g, "positions", T, C, TESS_NORMAL(0.1f))); /* (B, T, C) */
    tess_tensor *qkv = tess_linear(x, tess_param(g, "qkv", 3 * C, C, TESS_NORMAL(0.1f)), NULL);      /* (B, T, 3C) */
    x = tess_add(x, tess_attention_packed(qkv, (tess_attention_conf){.heads = 4, .causal = true}));
    tess_tensor *h = tess_linear(x, tess_param(g, "up", 4 * C, C, TESS_NORMAL(0.1f)), NULL);
    h = tess_linear(tess_gelu(h, TESS_GELU_TANH), tess_param(g, "down", C, 4 * C, TESS_NORMAL(0.1f)), NULL);
    x = tess_rmsnorm(tess_add(x, h), tess_param(g, "norm", C, 1, TESS_ONE), 1e-5f);
    tess_step *s;
    TESS_TRY(tess_step_new(tess_cross_entropy(x, table, NULL, targets),
                           &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
    TESS_TRY(tess_graph_init(g, 1));
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < B * T; i++) {
            int place = step * 7 + i / T * 5 + i % T; /* B windows of the text */
            ids[i] = text[place % (sizeof text - 1)];
            next[i] = text[(place + 1) % (sizeof text - 1)];
        }
        tess_step_result r;
        TESS_TRY(tess_step_feed(s, in, ids));
        TESS_TRY(tess_step_feed(s, targets, next));
        TESS_TRY(tess_step_run(s, &(tess_step_input){.step = step, .seed = 1, .lr = 3e-3}, &r));
        if (step % 25 == 0) printf("step %3d  loss %.4f\n", step, r.loss);
        *loss = r.loss;
    }
    if (dir) TESS_TRY(tess_graph_save(g, dir)); /* DIR/model.safetensors */
    tess_step_free(s);
    tess_graph_free(g);
    return TESS_OK;
}

int main(int argc, char **argv)
{
    double loss = 99;
    tess_status status = tess_start(&TESS_MACHINE_DEFAULT);
    if (status == TESS_OK) status = train(argc > 1 ? argv[1] : NULL, &loss);
    tess_stop();
    if (status != TESS_OK) fprintf(stderr, "%s\n", tess_error_text());
    printf("loss %.4f\n%d passed, %d failed, 0 skipped\n", loss, loss < 0.3, !(loss < 0.3));
    return status != TESS_OK || !(loss < 0.3);
}
