/* GB/s of one core in each codelet that only moves memory, at GPT-2's sizes, beside a memcpy of as many bytes taken
 * in turns with it. With an argument only the codelets whose name holds it run. */
#include "codelets.h"
#include <stdlib.h>
#include <string.h>

enum { ROWS = 1024, WIDTH = 768, WIDE = 3072, PARAMETER = 8 << 20, MAX_BUFFERS = 8 };

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    fprintf(stderr, "%s failed: %s\n", w->task->cl->name, format);
    exit(1);
}

static const tess_env env = {.seed = 1,
                             .step = 3,
                             .train = true,
                             .lr = 1e-3f,
                             .beta1 = 0.9f,
                             .beta2 = 0.999f,
                             .bias1 = 0.2f,
                             .bias2 = 0.01f,
                             .eps = 1e-8f,
                             .weight_decay = 0.1f,
                             .clip = 1};

/* Small values: bf16 and f32 alike read them as such. */
static void *new_buffer(size_t bytes)
{
    size_t room = (bytes + 127) / 64 * 64;
    uint8_t *p = aligned_alloc(64, room);
    if (!p) exit(1);
    for (size_t i = 0; i < room; i++) p[i] = i % 2 ? 0x3e : (uint8_t)(i * 37);
    return p;
}

/* `modes` has a letter a buffer: r, w, m (read and written), z (read, holds zeros), `each` its bytes. */
static void bench(tess_codelet *cl, const void *arg, const char *modes, const size_t *each, const char *only)
{
    if (only && !strstr(cl->name, only)) return;
    tess_view view[MAX_BUFFERS];
    unsigned n = (unsigned)strlen(modes);
    double moved = 0;
    for (unsigned i = 0; i < n; i++) {
        view[i] = (tess_view){new_buffer(each[i]), each[i]};
        if (modes[i] == 'z') memset(view[i].ptr, 0, each[i]);
        moved += (double)each[i] * (modes[i] == 'm' ? 2 : 1);
    }
    tess_task task = {.cl = cl};
    tess_work work = {.buf = view, .nbuf = n, .arg = arg, .env = &env, .task = &task};
    size_t half = (size_t)(moved / 2);
    char *from = new_buffer(half), *to = new_buffer(half);
    double best = 1e9, copy = 1e9;
    for (int repeat = 0; repeat < 30; repeat++) {
        double t0 = tess_seconds();
        cl->cpu(&work);
        double t1 = tess_seconds();
        memcpy(to, from, half);
        double t2 = tess_seconds();
        if (t1 - t0 < best) best = t1 - t0;
        if (t2 - t1 < copy) copy = t2 - t1;
    }
    printf("%-28s %-5s %8.3f ms %7.1f GB/s  memcpy %7.1f GB/s  %3.0f%%\n", cl->name, tess_dtype_name(cl->dtype),
           best * 1e3, moved / best * 1e-9, moved / copy * 1e-9, 100 * copy / best);
    for (unsigned i = 0; i < n; i++) free(view[i].ptr);
    free(from);
    free(to);
}
#define BENCH(cl, arg, modes, ...) bench(cl, arg, modes, (size_t[]){__VA_ARGS__}, only)

static void bench_rows(tess_dtype t, const char *only)
{
    size_t row = WIDTH * tess_dtype_size(t), x = ROWS * row, stats = ROWS * 2 * sizeof(float);
    size_t gain = WIDTH * sizeof(float);
    tess_norm_arg norm = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f, .acc = true, .acc_param = true};
    BENCH(&tess_layernorm_forward[t], &norm, "rrrww", x, gain, gain, x, stats);
    BENCH(&tess_layernorm_backward[t], &norm, "rrrrmmm", x, x, gain, stats, x, gain, gain);
    BENCH(&tess_rmsnorm_forward[t], &norm, "rrww", x, gain, x, stats / 2);
    BENCH(&tess_rmsnorm_backward[t], &norm, "rrrrmm", x, x, gain, stats / 2, x, gain);
    tess_embedding_arg table = {.rows = ROWS,
                                .width = WIDTH,
                                .sequence = ROWS,
                                .rows_of_table = ROWS,
                                .count = ROWS,
                                .position_tiles = 1,
                                .position_tile_rows = ROWS,
                                .acc = true};
    BENCH(&tess_embedding_forward[t], &table, "zwrr", ROWS * 4, x, x, x);
    BENCH(&tess_embedding_backward[t], &table, "zrm", ROWS * 4, x, ROWS * gain);
    BENCH(&tess_embedding_backward_position[t], &table, "rm", x, ROWS * gain);
    tess_rope_arg rope = {
        .rows = ROWS, .sequence = ROWS, .heads = 12, .dim = 64, .rotary = 64, .base = 1e4f, .half = true, .acc = true};
    BENCH(&tess_rope_forward[t], &rope, "rw", x, x);
    BENCH(&tess_rope_backward[t], &rope, "rm", x, x);
    tess_dropout_arg dropout = {.rows = ROWS, .width = WIDTH, .op = 5, .p = 0.1f, .acc = true};
    BENCH(&tess_dropout_forward[t], &dropout, "rw", x, x);
    BENCH(&tess_dropout_backward[t], &dropout, "rm", x, x);
}

static void bench_maps(tess_dtype t, const char *only)
{
    size_t wide = (size_t)ROWS * WIDE * tess_dtype_size(t), x = (size_t)ROWS * WIDTH * tess_dtype_size(t);
    tess_map_arg map = {.n = (int64_t)ROWS * WIDE}, erf = {.n = map.n, .kind = TESS_GELU_ERF};
    tess_map_arg narrow = {.n = (int64_t)ROWS * WIDTH, .acc = true};
    BENCH(&tess_gelu_forward[t], &map, "rw", wide, wide);
    BENCH(&tess_gelu_backward[t], &map, "rrw", wide, wide, wide);
    BENCH(&tess_gelu_forward[t], &erf, "rw", wide, wide);
    BENCH(&tess_gelu_backward[t], &erf, "rrw", wide, wide, wide);
    BENCH(&tess_silu_forward[t], &map, "rw", wide, wide);
    BENCH(&tess_silu_backward[t], &map, "rrw", wide, wide, wide);
    BENCH(&tess_add_forward[t], &narrow, "rrw", x, x, x);
    BENCH(&tess_add_into[t], &narrow, "rm", x, x);
    BENCH(&tess_mul_forward[t], &narrow, "rrw", x, x, x);
    BENCH(&tess_mul_backward[t], &narrow, "rrm", x, x, x);
}

static void bench_parameters(const char *only)
{
    size_t p = (size_t)PARAMETER * sizeof(float);
    tess_adamw_arg adamw = {.n = PARAMETER, .decay = true, .copy = true};
    BENCH(tess_adamw, &adamw, "mmmrzzw", p, p, p, p, 16, tess_exact_bytes(), p / 2);
    adamw.clip = true;
    BENCH(tess_adamw, &adamw, "mmmrzrw", p, p, p, p, 16, 8, p / 2);
    adamw.copy = false;
    BENCH(tess_adamw, &adamw, "mmmrzr", p, p, p, p, 16, 8);
    tess_count_arg count = {.n = PARAMETER, .value = 0.02f};
    tess_square_arg square = {.n = PARAMETER, .row = 1024};
    BENCH(tess_square_sum, &square, "rw", p, tess_exact_bytes());
    BENCH(tess_fill_normal, &count, "w", p);
    BENCH(&tess_round[TESS_BF16], &count, "rw", p, p / 2);
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++) {
        BENCH(&tess_fill[t], &count, "w", PARAMETER * tess_dtype_size(t));
        BENCH(&tess_finite[t], &count, "r", PARAMETER * tess_dtype_size(t));
    }
}

int main(int argc, char **argv)
{
    const char *only = argc > 1 ? argv[1] : NULL;
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++) {
        bench_rows(t, only);
        bench_maps(t, only);
    }
    bench_parameters(only);
    return 0;
}
