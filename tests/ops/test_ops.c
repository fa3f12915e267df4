/* Every codelet on the CPU as tests/ops/NAME.c describes it: near what is expected in double (1e-5 in fp32, 1e-2 in
 * bf16, in norm), failing where it is to fail, and, where the compiler chose among vectors, with the bits of the same
 * source compiled without a choice, whatever lies in its scratch. */
#define CHECK_MAIN
#include "tests/ops/ops.h"
#include <dlfcn.h>
#include <malloc.h>

static void *copy_of(const struct op_buffer *b)
{
    const size_t bytes = (size_t)b->n * op_size_of(b->type);
    return memcpy(tess_alloc(bytes ? bytes : 1), b->data, bytes);
}

static void call(tess_codelet *cl, const void *arg, void *const *data)
{
    tess_view view[OP_BUFFERS];
    for (int i = 0; i < op_buffers; i++)
        view[i] = (tess_view){data[i], (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
    tess_task task = {.cl = cl, .arg = arg};
    cl->cpu(&(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = arg, .env = &op_env, .task = &task});
}

/* NaN is expected where it is. */
static bool is_near(const struct op_buffer *b, const void *got, double *off)
{
    if (b->n == 1 && isnan(b->want[0])) return isnan(op_value(got, 0, b->type));
    *off = op_distance(b, got);
    if (b->within > 0) return *off <= b->within;
    if (b->type == TESS_F16 && op_tiny(b, got)) return true;
    return *off <= (b->type == TESS_BF16 ? 1e-2 : b->type == TESS_F16 ? 2e-3 : b->type == TESS_F32 ? 1e-5 : 1e-6);
}

static void check_plain(tess_codelet *cl, const void *arg, void *const *got)
{
#ifdef PLAIN_CODELETS
    static void *plain;
    char name[96];
    void *data[OP_BUFFERS];
    if (!plain) plain = dlopen(PLAIN_CODELETS, RTLD_LAZY | RTLD_LOCAL);
    snprintf(name, sizeof name, "tess_update_%s", cl->name); /* an optimizer's, whose own name is what makes one */
    tess_codelet *other = plain ? dlsym(plain, name) : NULL;
    if (plain && !other) {
        snprintf(name, sizeof name, "tess_%s", cl->name);
        other = dlsym(plain, name);
    }
    if (!other || &other[cl->dtype] == cl) {
        CHECK_SAY("%s: %s", cl->name, plain ? "has no second body" : dlerror());
        return;
    }
    for (int i = 0; i < op_buffers; i++) {
        data[i] = copy_of(&op_buffer[i]);
        if (op_buffer[i].kind == OP_SCRATCH) memset(data[i], 0, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type));
    }
    call(&other[cl->dtype], arg, data);
    for (int i = 0; i < op_buffers; i++) {
        const struct op_buffer *b = &op_buffer[i];
        if (b->kind != OP_SCRATCH && memcmp(got[i], data[i], (size_t)b->n * op_size_of(b->type)))
            CHECK_SAY("%s %s: %s has other bits without vectors", cl->name, tess_dtype_name(cl->dtype), b->name);
        free(data[i]);
    }
#else
    (void)cl, (void)arg, (void)got;
#endif
}

void op_run(tess_codelet *cl, const void *arg)
{
    void *data[OP_BUFFERS];
    for (int i = 0; i < op_buffers; i++) data[i] = copy_of(&op_buffer[i]);
    op_failure[0] = 0;
    call(cl, arg, data);
    if (strcmp(op_failure, op_blame))
        CHECK_SAY("%s %s: \"%s\" failed, expected \"%s\"", cl->name, tess_dtype_name(cl->dtype), op_failure, op_blame);
    for (int i = 0; i < op_buffers; i++) {
        const struct op_buffer *b = &op_buffer[i];
        double off = NAN;
        if ((b->kind == OP_IN || b->stays) && memcmp(b->data, data[i], (size_t)b->n * op_size_of(b->type)))
            CHECK_SAY("%s %s: wrote %s", cl->name, tess_dtype_name(cl->dtype), b->name);
        if (b->want && !is_near(b, data[i], &off))
            CHECK_SAY("%s %s: %s, %lld elements, is off by %g", cl->name, tess_dtype_name(cl->dtype), b->name,
                      (long long)b->n, off);
    }
    check_plain(cl, arg, data);
    for (int i = 0; i < op_buffers; i++) free(data[i]);
    op_forget();
}

#include "tests/ops/cases.h"
