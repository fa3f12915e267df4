// A program in C++ with the public headers: describes a model, trains it, and is told what it did wrong.
#include <cstdio>
#include <cstring>
#include <tessera.h>
#include <vector>

static tess_status train(double *loss)
{
    const int B = 4, T = 8, C = 16, V = 32;
    tess_graph_conf conf = {};
    conf.dtype = TESS_BF16;
    tess_graph *g = tess_graph_new(&conf);
    tess_tensor *ids = tess_input(g, "ids", B, T), *next = tess_input(g, "next", B, T);
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.2f));
    tess_tensor *x = tess_embedding(ids, table, nullptr);
    tess_attention_conf attention = {};
    attention.heads = 2;
    tess_tensor *qkv = tess_linear(x, tess_param(g, "qkv", 3 * C, C, TESS_NORMAL(0.2f)), nullptr);
    x = tess_add(x, tess_attention_packed(qkv, attention));
    x = tess_layernorm(x, tess_param(g, "gain", C, 1, TESS_ONE), tess_param(g, "bias", C, 1, TESS_ZERO), 1e-5f);
    tess_step_conf step = {};
    step.train = true;
    step.optimizer = tess_adamw();
    tess_step *s = nullptr;
    TESS_TRY(tess_step_new(tess_cross_entropy(x, table, nullptr, next), &step, &s));
    TESS_TRY(tess_graph_init(g, 1));
    std::vector<int32_t> values(B * T);
    for (int k = 0; k < B * T; k++) values[k] = k * 7 % V;
    TESS_TRY(tess_step_feed_values(s, ids, values.data(), (int64_t)values.size()));
    TESS_TRY(tess_step_feed(s, next, values.data()));
    tess_step_input in = {};
    in.lr = 1e-2;
    tess_step_result r;
    for (in.step = 0; in.step < 20; in.step++) TESS_TRY(tess_step_run(s, &in, &r));
    *loss = r.loss;
    values[0] = V;
    bool refused = tess_step_feed(s, ids, values.data()) == TESS_INVALID && std::strstr(tess_error_text(), "ids: ");
    tess_step_free(s);
    tess_graph_free(g);
    return refused ? TESS_OK : tess_error(TESS_FAILED, "ids", "out of range, and taken");
}

int main()
{
    double loss = 99;
    tess_machine machine = TESS_MACHINE_DEFAULT;
    machine.workers = 1;
    tess_status status = tess_start(&machine);
    if (status == TESS_OK) status = train(&loss);
    tess_stop();
    status = status == TESS_OK ? tess_start(&TESS_MACHINE_DEFAULT) : status;
    tess_stop();
    std::printf("%s%.4f from %.4f\n", status == TESS_OK ? "loss " : tess_error_text(), loss, 3.47);
    return status != TESS_OK || !(loss < 1);
}
