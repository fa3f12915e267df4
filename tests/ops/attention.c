/* attention: shapes for tensor cores and for the general kernels; what is expected in double is in
 * codelets/test_attention.c. */
#include "ops/ops.h"

static int64_t keys_of(const tess_attention_arg *a)
{
    return a->keys ? a->keys : a->sequence;
}

/* Two documents a sequence, and padding that sees nothing; of another sequence's keys all but two. */
static void put_bounds(const tess_attention_arg *a, const char *name, bool short_keys)
{
    int32_t *to = op_raw(name, 2 * a->rows, TESS_I32);
    const int64_t T = a->sequence, K = keys_of(a);
    for (int64_t s = 0; s < a->rows / T; s++)
        for (int64_t i = 0; i < T; i++) {
            const int64_t real = T - T * s / 5, middle = real / 3;
            const bool apart = K != T, early = apart || i < middle;
            if (short_keys) {
                to[2 * s * T + i] = 0;
                to[(2 * s + 1) * T + i] = (int32_t)(K / 5);
                continue;
            }
            to[2 * s * T + i] = (int32_t)(early || i >= real ? 0 : middle);
            to[(2 * s + 1) * T + i] = (int32_t)(i >= real ? 0 : apart ? K - 2 : early ? middle : real);
        }
}

/* Drawn, but for every so many'th element. */
static const void *drawn(const char *name, int64_t n, tess_dtype t, int64_t each, float value)
{
    void *x = op_drawn(name, n, t, 0.7);
    for (int64_t i = 0; each < n && i < n; i += each)
        if (t == TESS_F32)
            ((float *)x)[i] = value;
        else
            ((uint16_t *)x)[i] = t == TESS_F16 ? tess_to_f16(value) : tess_to_bf16(value);
    return x;
}

/* The buffers of what a task reads: drawn, or, where `keep` holds it from before, the same again. */
static void put_inputs(tess_dtype t, const tess_attention_arg *a, bool short_keys, bool low, void *keep[4])
{
    const int64_t wide = a->heads * a->dim, narrow = a->groups * a->dim, rows = a->rows;
    const int64_t key_rows = rows / a->sequence * keys_of(a), table = a->buckets * a->heads;
    const int64_t n[4] = {rows * (a->packed ? wide + 2 * narrow : wide), key_rows * narrow, key_rows * narrow, table};
    for (int j = 0; j < 4; j++) {
        if (a->packed && (j == 1 || j == 2)) continue;
        if (j == 3 && a->bounded) put_bounds(a, "bounds", short_keys);
        if (j == 3 && !a->buckets) continue;
        const size_t bytes = (size_t)n[j] * tess_dtype_size(t);
        const char *name = j == 3 ? "bias" : "q, k, v";
        if (keep[j])
            memcpy(op_raw(name, n[j], (int)t), keep[j], bytes);
        else
            keep[j] =
                memcpy(tess_alloc(bytes), drawn(name, n[j], t, low && j < 2 ? a->dim : n[j], j ? -32 : 32), bytes);
    }
}

/* A forward pass of the CPU's, whose y and lse the backward pass takes. */
static void attention(tess_dtype t, tess_attention_arg a, bool short_keys, bool low)
{
    const int64_t wide = a.heads * a.dim, narrow = a.groups * a.dim, all = wide + 2 * narrow, rows = a.rows;
    const int64_t part[] = {rows * wide, rows / a.sequence * keys_of(&a) * narrow}, lse_n = rows * a.heads;
    const int64_t scratch = (int64_t)tess_attention_scratch(&a, t);
    const size_t size = tess_dtype_size(t);
    void *keep[4] = {0};
    put_inputs(t, &a, short_keys, low, keep);
    void *y0 = op_any("y", part[0], t, false), *lse0 = op_any("lse", lse_n, TESS_F32, false);
    op_scratch(scratch);
    /* What the CPU makes of it, kept for the backward pass. */
    tess_view view[OP_BUFFERS];
    for (int i = 0; i < op_buffers; i++)
        view[i] = (tess_view){op_buffer[i].data, (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type)};
    tess_attention_forward[t].cpu(&(tess_work){.buf = view, .nbuf = (unsigned)op_buffers, .arg = &a, .env = &op_env});
    void *y = memcpy(tess_alloc((size_t)part[0] * size), y0, (size_t)part[0] * size);
    float *lse = memcpy(tess_alloc((size_t)lse_n * 4), lse0, (size_t)lse_n * 4);
    op_run(&tess_attention_forward[t], &a);

    op_drawn("dy", part[0], t, 1);
    put_inputs(t, &a, short_keys, low, keep);
    memcpy(op_raw("y", part[0], t), y, (size_t)part[0] * size);
    memcpy(op_raw("lse", lse_n, TESS_F32), lse, (size_t)lse_n * 4);
    static const char *const name[] = {"dq", "dk", "dv"};
    for (int j = 0; j < (a.packed ? 1 : 3); j++)
        op_any(a.packed ? "dqkv" : name[j], a.packed ? rows * all : part[j > 0], t, a.acc);
    if (a.buckets) op_any("dbias", a.buckets * a.heads, TESS_F32, a.acc_bias);
    op_scratch(scratch);
    op_run(&tess_attention_backward[t], &a);
    for (int j = 0; j < 4; j++) free(keep[j]);
    free(y);
    free(lse);
}

static const struct shape {
    int64_t length, sequences, heads, groups, dim;
    bool causal, packed, acc;
    float dropout;
    int64_t window, keys, buckets;
    float cap;
    bool bounded, by_head, short_keys; /* short: every query sees the first few keys alone */
    bool low;                          /* logits about -128: what is past the end, a logit of 0, would be 2^185 */
} KINDS[] = {
    /* tensor cores: one block of keys, several, lengths that fill none */
    {64, 1, 1, 1, 64, .causal = true, .packed = true},
    {150, 2, 2, 1, 64, .causal = true, .acc = true},
    {129, 1, 2, 2, 64, .packed = true},
    {70, 2, 2, 1, 64, .causal = true, .packed = true, .acc = true, .dropout = 0.2f},
    {65, 1, 1, 1, 128, .causal = true, .packed = true},
    {201, 1, 2, 1, 128, .causal = true, .acc = true},
    {130, 1, 1, 1, 128, .packed = true},
    {77, 1, 2, 2, 128, .dropout = 0.3f},
    {1, 3, 1, 1, 64, .causal = true, .packed = true},
    {70, 1, 2, 2, 64, .causal = true, .packed = true, .by_head = true},
    /* the same where queries see ranges of keys, and logits are bent */
    {135, 1, 1, 1, 64, .causal = true, .packed = true, .window = 40},
    {130, 2, 1, 1, 128, .causal = true, .acc = true, .dropout = 0.2f, .window = 70, .bounded = true, .cap = 2},
    {100, 2, 1, 1, 64, .bounded = true},
    {40, 2, 2, 1, 64, .acc = true, .keys = 100, .bounded = true},
    {130, 1, 1, 1, 64, .bounded = true, .short_keys = true},
    {70, 2, 1, 1, 64, .dropout = 0.1f, .buckets = 32, .bounded = true},
    {40, 1, 2, 2, 64, .causal = true, .acc = true, .buckets = 8},
    {40, 1, 1, 1, 128, .causal = true, .packed = true, .cap = 1.5f},
    /* the general kernels */
    {61, 2, 4, 2, 40, .causal = true, .acc = true, .dropout = 0.2f, .window = 11, .bounded = true, .cap = 2},
    {33, 2, 2, 2, 16, .keys = 20, .buckets = 12, .bounded = true},
    {37, 2, 5, 5, 4, .causal = true, .packed = true, .acc = true},
    {33, 1, 4, 2, 40, .causal = true, .dropout = 0.2f},
    {19, 2, 3, 3, 20, .causal = true, .packed = true, .acc = true, .by_head = true},
    {20, 2, 2, 1, 80, .packed = true},
    /* keys past the end, on tensor cores */
    {100, 1, 2, 1, 64, .low = true},
};

static void attention_tasks(void)
{
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
        for (tess_dtype t = KINDS[k].dim % 64 ? TESS_F32 : TESS_BF16; t <= TESS_F16; t++) {
            const struct shape *kind = &KINDS[k];
            const uint64_t dice = op_dice;
            attention(t,
                      (tess_attention_arg){.rows = kind->length * kind->sequences,
                                           .sequence = kind->length,
                                           .heads = kind->heads,
                                           .groups = kind->groups,
                                           .dim = kind->dim,
                                           .scale = 1 / sqrtf((float)kind->dim),
                                           .dropout = kind->dropout,
                                           .causal = kind->causal,
                                           .window = kind->window,
                                           .keys = kind->keys,
                                           .buckets = kind->buckets,
                                           .reach = 64,
                                           .cap = kind->cap,
                                           .bounded = kind->bounded,
                                           .acc_bias = kind->acc,
                                           .packed = kind->packed,
                                           .by_head = kind->by_head,
                                           .head0 = k % 2 ? 2 : 0,
                                           .all_heads = k % 2 ? kind->heads + 3 : 0,
                                           .row0 = kind->length * 3,
                                           .op = 4,
                                           .acc = kind->acc},
                      kind->short_keys, kind->low);
            if (kind->low) op_dice = dice; /* others draw what they drew */
        }
}

/* fp32 with the heads that tensor cores take in bf16. */
static void attention_fp32_tasks(void)
{
    attention(TESS_F32,
              (tess_attention_arg){
                  .rows = 40, .sequence = 40, .heads = 2, .groups = 1, .dim = 64, .scale = 0.125f, .causal = true},
              false, false);
}

OP_TASKS(attention)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    attention_tasks();
    attention_fp32_tasks();
}

OP_NET(attention)
{
    tess_tensor *q, *qkv;
    if (layer % 2) {
        qkv = tess_linear(x, OP_PARAM("qkv", 60, 20, TESS_NORMAL(0.3f)), NULL);
        qkv = tess_attention_packed(qkv, (tess_attention_conf){.heads = 4, .causal = true, .by_head = true});
        qkv = tess_linear(qkv, OP_PARAM("again", 40, 20, TESS_NORMAL(0.3f)), NULL);
        return tess_attention_packed(
            qkv, (tess_attention_conf){.heads = 2, .groups = 1, .causal = true, .window = 3, .cap = 1.5f});
    }
    q = tess_linear(x, OP_PARAM("q", 20, 20, TESS_NORMAL(0.3f)), NULL);
    return tess_attention(
        q, x, x,
        (tess_attention_conf){
            .heads = 4, .causal = true, .bias = OP_PARAM("bias", 4, 4, TESS_NORMAL(0.3f)), .reach = 6});
}
