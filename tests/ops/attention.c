/* attention: shapes for tensor cores and for the general kernels; what is expected in double is in
 * codelets/test_attention.c. */
#include "ops/ops.h"

/* A forward pass of the CPU's, whose y and lse the backward pass takes. */
static void attention(tess_dtype t, tess_attention_arg a)
{
    const int64_t wide = a.heads * a.dim, narrow = a.groups * a.dim, all = wide + 2 * narrow, rows = a.rows;
    const int64_t part[] = {wide, narrow, narrow}, scratch = (int64_t)tess_attention_scratch(&a, t);
    const size_t size = tess_dtype_size(t);
    void *x[3], *y = NULL, *lse = NULL;
    for (int j = 0; j < (a.packed ? 1 : 3); j++) x[j] = op_drawn("q, k, v", rows * (a.packed ? all : part[j]), t, 0.7);
    void *y0 = op_any("y", rows * wide, t, false), *lse0 = op_any("lse", rows * a.heads, TESS_F32, false);
    op_scratch(scratch);
    /* What the CPU makes of it, kept for the backward pass. */
    tess_view view[8];
    for (int i = 0; i < op_buffers; i++)
        view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
    tess_attention_forward[t].cpu(&(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = &a, .env = &op_env});
    void *keep[5] = {0};
    for (int j = 0; j < (a.packed ? 1 : 3); j++) {
        size_t bytes = (size_t)(rows * (a.packed ? all : part[j])) * size;
        keep[j] = memcpy(tess_alloc(bytes), x[j], bytes);
    }
    y = memcpy(tess_alloc((size_t)(rows * wide) * size), y0, (size_t)(rows * wide) * size);
    lse = memcpy(tess_alloc((size_t)(rows * a.heads) * 4), lse0, (size_t)(rows * a.heads) * 4);
    op_run(&tess_attention_forward[t], &a);

    op_drawn("dy", rows * wide, t, 1);
    for (int j = 0; j < (a.packed ? 1 : 3); j++)
        memcpy(op_raw("q, k, v", rows * (a.packed ? all : part[j]), t), keep[j],
               (size_t)(rows * (a.packed ? all : part[j])) * size);
    memcpy(op_raw("y", rows * wide, t), y, (size_t)(rows * wide) * size);
    memcpy(op_raw("lse", rows * a.heads, TESS_F32), lse, (size_t)(rows * a.heads) * 4);
    static const char *const name[] = {"dq", "dk", "dv"};
    for (int j = 0; j < (a.packed ? 1 : 3); j++)
        op_any(a.packed ? "dqkv" : name[j], rows * (a.packed ? all : part[j]), t, a.acc);
    op_scratch(scratch);
    op_run(&tess_attention_backward[t], &a);
    for (int j = 0; j < 3; j++) free(keep[j]);
    free(y);
    free(lse);
}

static const struct shape {
    int64_t length, sequences, heads, groups, dim;
    bool causal, packed, acc;
    float dropout;
} KINDS[] = {
    /* tensor cores: one block of keys, several, lengths that fill none */
    {64, 1, 1, 1, 64, true, true, false, 0},
    {150, 2, 2, 1, 64, true, false, true, 0},
    {129, 1, 2, 2, 64, false, true, false, 0},
    {70, 2, 2, 1, 64, true, true, true, 0.2f},
    {65, 1, 1, 1, 128, true, true, false, 0},
    {201, 1, 2, 1, 128, true, false, true, 0},
    {130, 1, 1, 1, 128, false, true, false, 0},
    {77, 1, 2, 2, 128, false, false, false, 0.3f},
    {1, 3, 1, 1, 64, true, true, false, 0},
    /* the general kernels */
    {37, 2, 5, 5, 4, true, true, true, 0},
    {33, 1, 4, 2, 40, true, false, false, 0.2f},
    {20, 2, 2, 1, 80, false, true, false, 0},
};

static void attention_tasks(void)
{
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
        for (tess_dtype t = KINDS[k].dim % 64 ? TESS_F32 : TESS_BF16; t <= TESS_BF16; t++) {
            const struct shape *kind = &KINDS[k];
            attention(t, (tess_attention_arg){.rows = kind->length * kind->sequences,
                                              .sequence = kind->length,
                                              .heads = kind->heads,
                                              .groups = kind->groups,
                                              .dim = kind->dim,
                                              .scale = 1 / sqrtf((float)kind->dim),
                                              .dropout = kind->dropout,
                                              .causal = kind->causal,
                                              .packed = kind->packed,
                                              .head0 = k % 2 ? 2 : 0,
                                              .all_heads = k % 2 ? kind->heads + 3 : 0,
                                              .row0 = kind->length * 3,
                                              .op = 4,
                                              .acc = kind->acc});
        }
}

/* fp32 with the heads that tensor cores take in bf16. */
static void attention_fp32_tasks(void)
{
    attention(TESS_F32,
              (tess_attention_arg){
                  .rows = 40, .sequence = 40, .heads = 2, .groups = 1, .dim = 64, .scale = 0.125f, .causal = true});
}

OP_TASKS(attention)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    attention_tasks();
    attention_fp32_tasks();
}

OP_NET(attention)
{
    const tess_attention_conf packed = {.heads = 2, .groups = 1, .causal = true}, apart = {.heads = 4, .causal = true};
    if (layer % 2)
        return tess_attention_packed(tess_linear(x, OP_PARAM("qkv", 40, 20, TESS_NORMAL(0.3f)), NULL), packed);
    return tess_attention(tess_linear(x, OP_PARAM("q", 20, 20, TESS_NORMAL(0.3f)), NULL), x, x, apart);
}
