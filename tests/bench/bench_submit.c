/* What it takes one rank of many to lower a step to its program and to submit it. This process takes the place of that
 * rank and the others are cut off: what would come from them is zero. GPT-2's blocks of 124M parameters in bf16, one
 * micro-batch of 64 tokens a rank, or as many micro-batches as there are pipeline stages.
 *
 *     bench_submit [STAGE [WIDTH]]        ZeRO's; 3. Another width, a multiple of 12, has tiles as large as its
 *                                         largest matrix: of 1536 on, those have 128 owners where there are as many
 *                                         ranks
 */
#include "graph/step/step_impl.h"
#include "tests/graph/gpt.h"
#include <malloc.h>
#include <stdlib.h>

enum { B = 1, T = 64, V = 8192, LAYERS = 12, STEPS = 3 };
static int64_t C = 768, tile_elements; /* 0: what the graph takes by itself */

static void must(tess_status status)
{
    if (status == TESS_OK) return;
    fprintf(stderr, "%s\n", tess_error_text());
    exit(1);
}

static tess_step *step_of(const tess_grid *grid, int micros, tess_graph **g, tess_tensor **in)
{
    *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .tile_elements = tile_elements, .grid = *grid});
    in[0] = tess_input(*g, "ids", B, T);
    in[1] = tess_input(*g, "targets", B, T);
    tess_tensor *table = tess_param(*g, "table", V, C, TESS_NORMAL(0.02f));
    tess_tensor *x = tess_embedding(in[0], table, tess_param(*g, "positions", T, C, TESS_NORMAL(0.02f)));
    x = gpt_blocks(*g, x, LAYERS, 12, C);
    x = tess_cross_entropy(x, tess_param(*g, "head", V, C, TESS_NORMAL(0.02f)), NULL, in[1]);
    tess_step_conf conf = {.train = true, .micro = (int64_t)micros * grid->data, .optimizer = tess_adamw()};
    tess_step *s;
    must(tess_step_new(x, &conf, &s));
    return s;
}

/* What a step's messages are made of: each part goes to one rank or comes from one. */
static uint64_t message_parts(const tess_step *s)
{
    uint64_t parts = 0;
    for (size_t k = 0; k < s->low.program->tasks; k++) {
        const tess_task *t = &s->low.program->task[k];
        if (t->cl == &tess_message) parts += ((const tess_message_arg *)t->arg)->spans;
    }
    return parts;
}

static void measure(int ranks, int pipeline, int stage)
{
    static int32_t id[64 * B * T];
    tess_grid grid = {.data = ranks / pipeline, .pipeline = pipeline, .tensor = 1, .interleave = 1, .stage = stage};
    grid.rank = (grid.data > 5 ? 5 : grid.data - 1) * pipeline; /* of a thousand, too, it owns some of the table */
    tess_graph *g;
    tess_tensor *in[2];
    tess_ranks_pretend(grid.rank, ranks);
    must(tess_start(&(tess_machine){.profile = true}));
    size_t before = mallinfo2().uordblks;
    double start = tess_seconds();
    tess_step *s = step_of(&grid, pipeline, &g, in);
    double lower = tess_seconds() - start, memory = (double)(mallinfo2().uordblks - before);
    tess_holds plan;
    tess_step_holds(s, &plan);
    must(tess_graph_init(g, 1));
    must(tess_step_feed(s, in[0], id));
    must(tess_step_feed(s, in[1], id));
    double submit = 0;
    for (int k = 0; k <= STEPS; k++) { /* the first one registers the tiles */
        tess_step_result r;
        tess_profile p;
        tess_profile_reset();
        must(tess_step_run(s, &(tess_step_input){.step = k, .seed = 1, .lr = 1e-6}, &r));
        tess_profile_read(&p);
        if (k == 1 || (k > 1 && p.submit < submit)) submit = p.submit;
    }
    printf("%5d %8d %8llu %8llu %8llu %9.0f %9.1f %10.1f %9.2f %11.0f\n", ranks, pipeline,
           (unsigned long long)plan.tasks, (unsigned long long)plan.tiles, (unsigned long long)message_parts(s),
           (double)plan.sent / (1 << 20), 1e3 * lower, memory / (1 << 20), 1e3 * submit,
           (double)plan.peak[TESS_ROLE_GRADIENT] / (1 << 20));
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
}

int main(int argc, char **argv)
{
    int stage = argc > 1 ? atoi(argv[1]) : 3;
    if (argc > 2) C = atoi(argv[2]), tile_elements = 4 * C * C;
    printf("ranks pipeline    tasks    tiles    parts sent, MiB  lower ms  of it MiB submit ms  grads, MiB\n");
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (int pipeline = 1; pipeline <= 4; pipeline *= 4)
        for (int k = 0; k < 4; k++) {
            static const int sizes[] = {1, 4, 64, 1024};
            if (sizes[k] >= pipeline) measure(sizes[k], pipeline, stage);
        }
    return 0;
}
