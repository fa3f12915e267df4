/* Launches of a training step on a GPU, counted: its list of tasks is lowered as for a GPU that holds all of it, and
 * each task's CUDA body, compiled for the CPU (emulate.h), says what it would launch. Tasks that are worth a graph are
 * one launch (runtime/gpu/launches.c), and kernels whose arguments the next step changes are counted apart.
 *
 *     test_launches LAYERS WIDTH HEADS VOCABULARY TOKENS       prints a step's */
#define main check_main
#define CHECK_MAIN
#include "graph/lower/lower.h"
#include "graph/step/step_impl.h"
#include "models/models.h"
#include "tests/check.h"
#undef main
#include "codelets/shared/cudnn_choice.h"

extern tess_body emulated_body_of(const tess_codelet *cl);
extern void emulated_record(bool compares);
extern int emulated_recorded(int *kernels, int *differ);
extern void tess_emulated_attention_library(const tess_work *w);

/* A machine with a GPU. */
int __wrap_tess_gpus(void);
int __wrap_tess_gpus(void)
{
    return 1;
}
tess_body __wrap_tess_gpu_body(const tess_codelet *cl);
tess_body __wrap_tess_gpu_body(const tess_codelet *cl)
{
    return emulated_body_of(cl);
}

enum { WORTH = 3 }; /* launches.c's LEAST */
struct counts {
    int tasks, launches, graphs, in_graphs, set;
};

/* Tiles at addresses where nothing is, as no body looks there. */
static void count_task(const tess_task *t, const tess_env env[2], struct counts *c)
{
    static tess_kernel_fault fault;
    tess_view view[t->nuse ? t->nuse : 1];
    int kernels, set, n = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        const size_t at = ((uintptr_t)t->use[i].tile * 2654435761u & 0xffffff) << 20;
        view[i] = (tess_view){(void *)(at + (1 << 20)), tess_tile_bytes(t->use[i].tile)};
    }
    for (int step = 0; step < 2; step++) {
        const tess_work w = {.buf = view,
                             .nbuf = t->nuse,
                             .arg = t->arg,
                             .env = &env[step],
                             .task = t,
                             .room = (void *)(1 << 20),
                             .room_bytes = 64 << 20,
                             .fault = &fault};
        emulated_record(true);
        emulated_body_of(t->cl)(&w);
        n = emulated_recorded(&kernels, &set);
    }
    c->tasks++;
    c->launches += n;
    if (n < WORTH) return;
    c->graphs++;
    c->in_graphs += n;
    c->set += set;
}

static tess_env env_of(int step)
{
    tess_env e = {.seed = 1,
                  .step = step,
                  .updates = step,
                  .train = true,
                  .lr = 1e-3 * (step + 1),
                  .beta1 = 0.9,
                  .beta2 = 0.99,
                  .bias1 = 1 - pow(0.9, step + 1),
                  .bias2 = 1 - pow(0.99, step + 1),
                  .clip = 1,
                  .unscale = 1,
                  .first = (uint32_t)step * 1000};
    for (int k = 0; k < TESS_MOST_LOSSES; k++) e.loss_scale[k] = 1e-3f;
    return e;
}

/* GPT-2's, in bf16, with clipping and AdamW. */
static struct counts count(const char *json, int64_t tokens)
{
    struct counts c = {0};
    const tess_env env[] = {env_of(1), env_of(2)};
    tess_model *m;
    tess_network net;
    tess_lowered low;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){
        .dtype = TESS_BF16, .tile_rows = 8192, .tile_elements = 48 << 20, .loss_rows = 8192, .loss_align = 64});
    CHECK_EQ(tess_model_open(NULL, json, &m), TESS_OK);
    CHECK_EQ(tess_model_build(m, g, 1, tokens, TESS_FOR_LOSS, &net), TESS_OK);
    tess_step_conf conf = {.train = true, .micro = 1, .optimizer = tess_adamw(), .chains = UINT64_MAX};
    conf.optimizer.clip = 1;
    tess_graph_ready(g);
    for (int k = 0; k < g->params; k++) CHECK_EQ(tess_param_moments(g->param[k], &conf.optimizer, true), TESS_OK);
    tess_lower_step(net.output, &conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const tess_task *t = &low.program->task[k];
        if (t->cl == &tess_message || t->cl == &tess_show) continue;
        if (!emulated_body_of(t->cl))
            CHECK_SAY("%s has no CUDA body", t->cl->name);
        else
            count_task(t, env, &c);
    }
    tess_program_free(low.updates);
    tess_program_free(low.program);
    tess_graph_free(g);
    tess_model_close(m);
    return c;
}

static struct counts count_gpt2(int layers, int width, int heads, int vocabulary, int64_t tokens, double dropout)
{
    char json[400];
    snprintf(json, sizeof json,
             "{\"model_type\": \"gpt2\", \"n_layer\": %d, \"n_embd\": %d, \"n_head\": %d, \"vocab_size\": %d, "
             "\"n_positions\": %lld, \"resid_pdrop\": %g, \"embd_pdrop\": %g, \"attn_pdrop\": %g}",
             layers, width, heads, vocabulary, (long long)tokens, dropout, dropout, dropout);
    return count(json, tokens);
}

static void say(const char *what, const struct counts *c)
{
    printf("%s: %d tasks, %d launches; with graphs %d, of them %d graphs of %d launches, arguments set of %d kernels\n",
           what, c->tasks, c->launches, c->launches - c->in_graphs + c->graphs, c->graphs, c->in_graphs, c->set);
}

TEST(a_step_of_1024_tokens)
{
    for (int drops = 0; drops < 2; drops++) {
        const struct counts c = count_gpt2(12, 768, 12, 50257, 1024, drops ? 0.1 : 0);
        say(drops ? "GPT-2 124M with dropout" : "GPT-2 124M", &c);
        CHECK(c.launches > 300);
        CHECK(4 * (c.launches - c.in_graphs + c.graphs) < c.launches);
    }
}

int main(int argc, char **argv)
{
    tess_cudnn_choice choice = {.wanted = true, .trusted = true};
    tess_emulated_attention_library(&(tess_work){.arg = &choice});
    if (argc < 6) return check_main(argc, argv);
    for (int drops = 0; drops < 2; drops++) {
        const struct counts c =
            count_gpt2(atoi(argv[1]), atoi(argv[2]), atoi(argv[3]), atoi(argv[4]), atol(argv[5]), drops ? 0.1 : 0);
        say(drops ? "with dropout" : "no dropout", &c);
    }
    return 0;
}
