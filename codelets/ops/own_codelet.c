/* own: the work of an op from outside. The buffers of a task become the operands of a call, in the order in which
 * tess_own_arg has them, and the program's function does the rest. */
#include "codelets/codelets.h"
#include <stdarg.h>

static void put(tess_operand *o, const tess_work *w, void **tile, unsigned *next)
{
    if (!o->tiles) return;
    o->tile = tile + *next;
    o->data = w->buf[*next].ptr;
    *next += (unsigned)o->tiles;
}

static void run(const tess_work *w, tess_function function)
{
    const tess_own_arg *a = w->arg;
    tess_call c = a->call;
    void *tile[w->nbuf];
    unsigned next = 0;
    for (unsigned i = 0; i < w->nbuf; i++) tile[i] = w->buf[i].ptr;
    for (int k = 0; k < TESS_CALL_INPUTS; k++) put(&c.in[k], w, tile, &next);
    put(&c.out, w, tile, &next);
    put(&c.aux, w, tile, &next);
    put(&c.d_out, w, tile, &next);
    for (int k = 0; k < TESS_CALL_INPUTS; k++) put(&c.d_in[k], w, tile, &next);
    if (a->scratch) c.scratch = w->buf[next++].ptr;
    TESS_ASSERT(next == w->nbuf);
    c.stream = w->stream;
    c.work = w;
    function(&c);
}

void tess_own_cpu(const tess_work *w)
{
    run(w, ((const tess_own_arg *)w->arg)->cpu);
}

void tess_own_cuda(const tess_work *w)
{
    if (!tess_gpu_launched(w, NULL, 0)) run(w, ((const tess_own_arg *)w->arg)->cuda);
}

static double bytes_of(const tess_operand *o, int n)
{
    double bytes = 0;
    for (int k = 0; k < n; k++) bytes += (double)(o[k].rows * o[k].columns) * (double)tess_dtype_size(o[k].dtype);
    return bytes;
}

tess_cost tess_own_cost(const void *arg)
{
    const tess_own_arg *a = arg;
    const tess_call *c = &a->call;
    const double flops = a->flops(c), bytes = bytes_of(c->in, TESS_CALL_INPUTS) + bytes_of(&c->out, 1) +
                                              bytes_of(&c->aux, 1) + bytes_of(&c->d_out, 1) +
                                              bytes_of(c->d_in, TESS_CALL_INPUTS);
    return (tess_cost){.flops = flops > 0 ? flops : 0, .bytes = bytes};
}

void tess_call_fail(const tess_call *c, const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    tess_work_fail(c->work, "%s", text);
}
