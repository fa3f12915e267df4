/* GB/s of one core in each codelet that only moves memory, on the calls that tests/ops/NAME.c describes at GPT-2's
 * sizes, beside a memcpy of as many bytes taken in turns with it. With an argument only the codelets whose name holds
 * it run. */
#include "tests/ops/ops.h"

static const char *only;

void op_run(tess_codelet *cl, const void *arg)
{
    tess_view view[OP_BUFFERS];
    double moved = 0, best = 1e9, copy = 1e9;
    for (int i = 0; i < op_buffers; i++) {
        view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
        moved += (double)view[i].bytes * (op_buffer[i].acc ? 2 : 1);
    }
    const size_t half = (size_t)(moved / 2);
    char *from = tess_alloc(half + 1), *to = tess_alloc(half + 1);
    memset(from, 1, half);
    tess_task task = {.cl = cl, .arg = arg};
    tess_work work = {.buf = view, .nbuf = (unsigned)op_buffers, .arg = arg, .env = &op_env, .task = &task};
    const bool runs = !only || strstr(cl->name, only);
    for (int repeat = 0; repeat < 30 && runs; repeat++) {
        const double t0 = tess_seconds();
        cl->cpu(&work);
        const double t1 = tess_seconds();
        memcpy(to, from, half);
        const double t2 = tess_seconds();
        if (t1 - t0 < best) best = t1 - t0;
        if (t2 - t1 < copy) copy = t2 - t1;
    }
    if (runs)
        printf("%-28s %-5s %8.3f ms %7.1f GB/s  memcpy %7.1f GB/s  %3.0f%%\n", cl->name, tess_dtype_name(cl->dtype),
               best * 1e3, moved / best * 1e-9, moved / copy * 1e-9, 100 * copy / best);
    free(from);
    free(to);
    op_forget();
}

#define TESS_OP(name)                void op_tasks_##name(void);
#define TESS_CODELET(name)           TESS_OP(name)
#define TESS_CODELET_SAME_BITS(name) TESS_OP(name)
#include "graph/ops.def"

int main(int argc, char **argv)
{
    only = argc > 1 ? argv[1] : NULL;
    op_speed = true;
    op_expects = false;
#define TESS_OP(name)                op_tasks_##name();
#define TESS_CODELET(name)           TESS_OP(name)
#define TESS_CODELET_SAME_BITS(name) TESS_OP(name)
#include "graph/ops.def"
    return 0;
}
