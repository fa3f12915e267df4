/* The buffers of a call, and what descriptions share. */
#include "tests/ops/ops.h"
#include <stdarg.h>

struct op_buffer op_buffer[OP_BUFFERS];
int op_buffers;
tess_env op_env = {.seed = 11, .step = 3, .train = true, .unscale = 1};
uint64_t op_dice = 1;
char op_failure[256], op_blame[256];
size_t op_room;
int op_saves = -1;
bool op_speed, op_expects = true;
static void *kept[4 * OP_BUFFERS];
static int kept_count;

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    (void)w;
    va_list ap;
    va_start(ap, format);
    vsnprintf(op_failure, sizeof op_failure, format, ap);
    va_end(ap);
}

static void *keep(size_t bytes)
{
    TESS_ASSERT(kept_count < 4 * OP_BUFFERS);
    return kept[kept_count++] = tess_alloc(bytes ? bytes : 1);
}

void op_forget(void)
{
    while (kept_count > 0) free(kept[--kept_count]);
    op_buffers = 0;
    op_room = 0;
    op_saves = -1;
    op_blame[0] = 0;
}

double *op_zeros(int64_t n)
{
    return keep((size_t)n * sizeof(double));
}

double *op_ones(int64_t n)
{
    double *x = op_zeros(n);
    for (int64_t i = 0; i < n; i++) x[i] = 1;
    return x;
}

double op_dot(const double *x, int64_t x_apart, const double *y, int64_t y_apart, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += x[i * x_apart] * y[i * y_apart];
    return sum;
}

double op_roll(void)
{
    op_dice = op_dice * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(op_dice >> 11) * 0x1p-52 - 1;
}

size_t op_size_of(int type)
{
    return type >= OP_DOUBLE ? sizeof(double) : tess_dtype_size((tess_dtype)type);
}

double op_value(const void *p, int64_t i, int type)
{
    if (type == TESS_I32) return ((const int32_t *)p)[i];
    if (type == TESS_BF16) return tess_from_bf16(((const tess_bf16 *)p)[i]);
    if (type == TESS_F16) return tess_from_f16(((const tess_f16 *)p)[i]);
    return type == TESS_F32 ? ((const float *)p)[i] : ((const double *)p)[i];
}

void op_put(void *p, int64_t i, int type, double x)
{
    if (type == TESS_BF16)
        ((tess_bf16 *)p)[i] = tess_to_bf16((float)x);
    else if (type == TESS_F16)
        ((tess_f16 *)p)[i] = tess_to_f16((float)x);
    else if (type == TESS_F32)
        ((float *)p)[i] = (float)x;
    else if (type == TESS_I32)
        ((int32_t *)p)[i] = (int32_t)x;
    else
        ((double *)p)[i] = x;
}

void op_draw(void *to, int64_t n, int type, double size)
{
    for (int64_t i = 0; i < n; i++) op_put(to, i, type, size * (op_roll() + op_roll() + op_roll()));
}

static struct op_buffer *add(const char *name, int64_t n, int type, enum op_kind kind)
{
    TESS_ASSERT(op_buffers < OP_BUFFERS);
    struct op_buffer *b = &op_buffer[op_buffers++];
    const size_t bytes = (size_t)n * op_size_of(type);
    *b = (struct op_buffer){.data = memset(keep(bytes), 0xff, bytes), .n = n, .type = type, .kind = kind, .name = name};
    return b;
}

static double *stored(const struct op_buffer *b)
{
    double *x = op_zeros(b->n);
    for (int64_t i = 0; i < b->n; i++) x[i] = op_value(b->data, i, b->type);
    return x;
}

double *op_in(const char *name, int64_t n, int type, double size)
{
    struct op_buffer *b = add(name, n, type, OP_IN);
    op_draw(b->data, n, type, size);
    return stored(b);
}

double *op_matrix(const char *name, int64_t n, tess_dtype t, tess_dtype as, double size)
{
    if (!tess_is_quantized(as)) return op_in(name, n, (int)t, size);
    float *x = keep((size_t)n * sizeof *x);
    void *codes = add(name, (int64_t)tess_dtype_bytes(as, n) / 4, TESS_I32, OP_IN)->data;
    double *value = op_zeros(n);
    op_draw(x, n, TESS_F32, size);
    tess_quantize_write(codes, as, x, n, t);
    tess_quantize_read(x, t, codes, as, n);
    for (int64_t i = 0; i < n; i++) value[i] = op_value(x, i, (int)t);
    return value;
}

void *op_drawn(const char *name, int64_t n, int type, double size)
{
    struct op_buffer *b = add(name, n, type, OP_IN);
    op_draw(b->data, n, type, size);
    return b->data;
}

void op_given(const char *name, int64_t n, int type, double *x)
{
    struct op_buffer *b = add(name, n, type, OP_IN);
    for (int64_t i = 0; i < n; i++) {
        op_put(b->data, i, type, x[i]);
        x[i] = op_value(b->data, i, type);
    }
}

double *op_out(const char *name, int64_t n, int type, bool acc)
{
    struct op_buffer *b = add(name, n, type, OP_OUT);
    b->acc = acc;
    if (acc) op_draw(b->data, n, type, 1);
    return b->want = acc ? stored(b) : op_zeros(n);
}

void op_within(double distance)
{
    op_buffer[op_buffers - 1].within = distance;
}

void op_of_form(void (*form)(void *data))
{
    op_buffer[op_buffers - 1].form = form;
}

void op_stay(void)
{
    for (int i = 0; i < op_buffers; i++) op_buffer[i].stays = op_buffer[i].kind == OP_OUT;
}

void op_fails(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(op_blame, sizeof op_blame, format, ap);
    va_end(ap);
}

void *op_any(const char *name, int64_t n, int type, bool acc)
{
    struct op_buffer *b = add(name, n, type, OP_OUT);
    b->acc = acc;
    if (acc) op_draw(b->data, n, type, 1);
    return b->data;
}

void *op_raw(const char *name, int64_t n, int type)
{
    return add(name, n, type, OP_IN)->data;
}

int32_t *op_indices(const char *name, int64_t n, int64_t below)
{
    int32_t *p = op_raw(name, n, TESS_I32);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(fabs(op_roll()) * (double)below) % (int32_t)below;
    return p;
}

void op_scratch(int64_t bytes)
{
    add("scratch", bytes / 4 + 1, TESS_F32, OP_SCRATCH);
}

bool op_tiny(const struct op_buffer *b, const void *got)
{
    for (int64_t i = 0; i < b->n; i++)
        if (!(fabs(op_value(got, i, b->type) - b->want[i]) <= 0x1p-24)) return false;
    return true;
}

/* Where a term cancels what it is added to, the sum is known to the size of that. */
double op_distance(const struct op_buffer *b, const void *got)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < b->n; i++) {
        const double x = op_value(got, i, b->type), d = x - b->want[i];
        if (isinf(b->want[i]) && x == b->want[i]) continue;
        off += d * d;
        size += fmax(b->want[i] * b->want[i], b->acc ? pow(op_value(b->data, i, b->type), 2) : 0);
    }
    return sqrt(off / (size > 0 ? size : 1));
}

int64_t op_length(int k)
{
    static const int64_t lengths[] = {1, 7, 8, 2048, 5003, 70003 /* more than a part */, 0}, large[] = {1024 * 3072, 0};
    return op_speed ? large[k] : lengths[k];
}

static double slope(double (*f)(double), double x)
{
    return (f(x + 1e-5) - f(x - 1e-5)) / 2e-5;
}

void op_map(tess_codelet *forward, tess_codelet *backward, int kind, double (*f)(double))
{
    static const double far[] = {-1e4, -90, -30, 30, 90, 1e4};
    OP_EACH(t) OP_EACH_LENGTH(n) OP_EACH_ACC(acc)
    {
        const tess_map_arg a = {.n = n, .kind = kind, .acc = acc};
        double *x = op_in("x", n, t, 3), *y = op_out("y", n, t, false);
        for (int64_t i = 0; i < n && op_expects; i++) y[i] = f(x[i]);
        op_run(&forward[t], &a);
        double *dy = op_in("dy", n, t, 1);
        x = op_in("x", n, t, 3);
        double *dx = op_out("dx", n, t, acc);
        for (int64_t i = 0; i < n && op_expects; i++) dx[i] += dy[i] * slope(f, x[i]);
        op_run(&backward[t], &a);
    }
    OP_EACH(t) for (int k = 0; k < 2 && !op_speed; k++) /* far from 0 */
    {
        const tess_map_arg a = {.n = 6, .kind = kind};
        double x[6], dy[6];
        memcpy(x, far, sizeof x);
        for (int i = 0; i < 6; i++) dy[i] = 1;
        if (k) op_given("dy", 6, t, dy);
        op_given("x", 6, t, x);
        double *y = op_out(k ? "dx" : "y", 6, t, false);
        for (int i = 0; i < 6 && op_expects; i++) y[i] = k ? slope(f, x[i]) : f(x[i]);
        op_run(&(k ? backward : forward)[t], &a);
    }
    OP_EACH(t) for (int k = 0; k < 2 && !op_speed; k++)
    {
        const tess_map_arg a = {.n = 40, .kind = kind};
        if (k) op_in("dy", a.n, t, 1);
        op_in("x", a.n, t, 100);
        op_any(k ? "dx" : "y", a.n, t, false);
        op_run(&(k ? backward : forward)[t], &a);
    }
    double x[1] = {NAN}, dy[1] = {1};
    OP_EACH(t) for (int k = 0; k < 2 && !op_speed; k++)
    {
        if (k) op_given("dy", 1, t, dy);
        op_given("x", 1, t, x);
        *op_out(k ? "dx of a NaN" : "y of a NaN", 1, t, false) = NAN;
        op_run(&(k ? backward : forward)[t], &(tess_map_arg){.n = 1, .kind = kind});
    }
}
