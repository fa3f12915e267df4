/* A small program of the public headers in the setting in which threads of a rank get into each other's way most: two
 * layers, states that do not fit under a cap of 8 MB and rest on disk, one worker a rank. What a step computes takes
 * 10 ms, so that what is beside the bodies shows. Says the time of its steps, and the bits of all losses and norms:
 *
 *     mpirun -n 2 small_ranks [loose]         loose: without deterministic; small_ranks.sh runs it often
 *
 * The disk tier lies below TMPDIR. A drive that others use, or that is held to a rate, stalls for as long as it likes:
 * on /dev/shm it does not.
 */
#include "models/models.h"
#include "tests/graph/gpt.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { B = 1, T = 64, C = 256, V = 512, LAYERS = 2, STEPS = 6, MICRO = 2, CAP = 8000000 };

static void check(tess_status status)
{
    if (status == TESS_OK) return;
    if (tess_watch_speak()) fprintf(stderr, "small_ranks: %s\n", tess_error_text());
    tess_ranks_abort(1);
}

static uint64_t digest(uint64_t h, double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    for (int i = 0; i < 64; i += 8) h = (h ^ (bits >> i & 0xff)) * UINT64_C(1099511628211);
    return h;
}

static void feed(tess_step *s, const tess_tensor *ids, const tess_tensor *next, int step)
{
    int32_t id[MICRO * B * T], target[MICRO * B * T];
    int64_t first, count;
    tess_step_share(s, &first, &count);
    for (int i = 0; i < count * B * T; i++) {
        const int64_t at = (int64_t)step * MICRO * B * T + first * B * T + i;
        id[i] = (int32_t)(at * 37 % V);
        target[i] = (int32_t)((at + 1) * 37 % V);
    }
    check(tess_step_feed(s, ids, id));
    check(tess_step_feed(s, next, target));
}

int main(int argc, char **argv)
{
    const bool loose = argc > 1 && !strcmp(argv[1], "loose"), says = argc > 1 && !strcmp(argv[argc - 1], "says");
    const char *below = getenv("TMPDIR");
    char dir[200];
    snprintf(dir, sizeof dir, "%s/small_ranks-XXXXXX", below ? below : "/tmp");
    if (tess_ranks_join() != TESS_OK) return 1;
    const double start = tess_seconds();
    if (!mkdtemp(dir)) return 1;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){
        .dtype = TESS_F32, .grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 3}, .tile_elements = 1 << 16});
    tess_tensor *ids = tess_input(g, "ids", B, T), *next = tess_input(g, "next", B, T);
    tess_tensor *table = tess_param(g, "table", V, C, TESS_NORMAL(0.02f));
    tess_tensor *x = tess_embedding(ids, table, tess_param(g, "positions", T, C, TESS_NORMAL(0.02f)));
    tess_tensor *loss = tess_cross_entropy(gpt_blocks(g, x, LAYERS, 4, C), table, NULL, next);
    tess_step_conf conf = {.train = true, .micro = MICRO, .deterministic = !loose, .optimizer = tess_adamw()};
    conf.optimizer.clip = 1;
    tess_step *s;
    tess_placement placed;
    check(tess_step_new(loss, &conf, &s));
    check(tess_step_place(s, &(tess_place_conf){.ram = CAP, .workers = 1}, &placed));
    check(tess_start_rooms(&(tess_machine){.workers = 1, .cpu_bytes = CAP, .disk = dir, .disk_bytes = 64 << 20},
                           &(tess_rooms){.cpu_tiles = placed.room}));
    check(tess_graph_init(g, 1));
    uint64_t bits = UINT64_C(14695981039346656037);
    for (int step = 0; step < STEPS; step++) {
        tess_step_result r;
        feed(s, ids, next, step);
        check(tess_step_run(s, &(tess_step_input){.step = step, .seed = 1, .lr = 1e-3}, &r));
        bits = digest(digest(bits, r.loss), r.grad_norm);
        if (says && !tess_rank())
            printf("step %d  loss %.17g  norm %.17g  %.3f s\n", step, r.loss, r.grad_norm, tess_seconds() - start);
    }
    if (!tess_rank()) printf("%.3f s  %016llx\n", tess_seconds() - start, (unsigned long long)bits);
    fflush(stdout);
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
    rmdir(dir);
    tess_ranks_leave();
    return 0;
}
