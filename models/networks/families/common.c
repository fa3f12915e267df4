/* What families have in common: the keys that config.json of each of them may have, and how they describe networks. */
#include "models/networks/model/model.h"
#include <stdarg.h>

tess_tensor *tess_embed(const tess_network *in, tess_tensor *words, tess_tensor *places)
{
    if (!in->positions) return tess_embedding(in->ids, words, places);
    return tess_add(tess_embedding(in->ids, words, NULL), tess_embedding(in->positions, places, NULL));
}

tess_tensor *tess_activate(tess_tensor *x, int64_t activation)
{
    if (activation == TESS_ACTIVATION_SILU) return tess_silu(x);
    return activation == TESS_ACTIVATION_RELU ? tess_relu(x) : tess_gelu(x, (tess_gelu_kind)activation);
}

/* The parameter NAME.PART. */
static tess_tensor *part_of(tess_graph *g, const char *name, const char *part, int64_t rows, int64_t columns,
                            tess_init init)
{
    char full[200];
    snprintf(full, sizeof full, "%s.%s", name, part);
    return tess_param(g, full, rows, columns, init);
}

/* Makes `text` of a format and what follows it. */
#define FORMAT(text, format)                                                                                           \
    char text[160];                                                                                                    \
    va_list list;                                                                                                      \
    va_start(list, format);                                                                                            \
    vsnprintf(text, sizeof text, format, list);                                                                        \
    va_end(list)

tess_tensor *tess_dense(tess_graph *g, tess_tensor *x, int64_t in, int64_t out, double deviation, tess_bias bias,
                        const char *name, ...)
{
    FORMAT(full, name);
    tess_tensor *b = bias == TESS_BIAS_BEFORE ? part_of(g, full, "bias", out, 1, TESS_ZERO) : NULL;
    tess_tensor *w = part_of(g, full, "weight", out, in, TESS_NORMAL((float)deviation));
    if (bias == TESS_BIAS_BEHIND) b = part_of(g, full, "bias", out, 1, TESS_ZERO);
    return tess_name(tess_linear(x, w, b), "%s", full);
}

tess_tensor *tess_norm(tess_graph *g, tess_tensor *x, int64_t width, double eps, const char *name, ...)
{
    FORMAT(full, name);
    tess_tensor *bias = part_of(g, full, "bias", width, 1, TESS_ZERO);
    return tess_layernorm(x, part_of(g, full, "weight", width, 1, TESS_ONE), bias, (float)eps);
}

tess_status tess_rates_check(const char *where, const tess_rate *rate, int count)
{
    for (int i = 0; i < count; i++)
        if (rate[i].p >= 1)
            return tess_error(TESS_INVALID, where, "%s: %g (expected 0 to below 1)", rate[i].name, rate[i].p);
    return TESS_OK;
}

tess_status tess_heads_check(const char *where, const char *width, int64_t wide, const char *heads, int64_t many)
{
    if (wide % many == 0) return TESS_OK;
    return tess_error(TESS_INVALID, where, "%s %lld is no multiple of %s %lld", width, (long long)wide, heads,
                      (long long)many);
}
