/* GPT's blocks in any size, for what measures or counts. */
#ifndef TESS_TESTS_GPT_H
#define TESS_TESTS_GPT_H
#include "graph/graph.h"
#include <stdio.h>

static inline tess_tensor *gpt_weight(tess_graph *g, int layer, const char *name, int64_t rows, int64_t columns)
{
    char full[40];
    snprintf(full, sizeof full, "%d.%s", layer, name);
    return tess_param(g, full, rows, columns, columns > 1 ? TESS_NORMAL(0.02f) : TESS_ONE);
}

/* x (B, T, c) through the layers. */
static inline tess_tensor *gpt_blocks(tess_graph *g, tess_tensor *x, int layers, int heads, int64_t c)
{
    for (int k = 0; k < layers; k++) {
        tess_block(g, "block");
        tess_tensor *y =
            tess_layernorm(x, gpt_weight(g, k, "norm1", c, 1), gpt_weight(g, k, "norm1.bias", c, 1), 1e-5f);
        y = tess_linear(y, gpt_weight(g, k, "qkv", 3 * c, c), gpt_weight(g, k, "qkv.bias", 3 * c, 1));
        y = tess_attention_packed(y, (tess_attention_conf){.heads = heads, .causal = true});
        x = tess_add(x, tess_linear(y, gpt_weight(g, k, "proj", c, c), gpt_weight(g, k, "proj.bias", c, 1)));
        y = tess_layernorm(x, gpt_weight(g, k, "norm2", c, 1), gpt_weight(g, k, "norm2.bias", c, 1), 1e-5f);
        y = tess_gelu(tess_linear(y, gpt_weight(g, k, "in", 4 * c, c), gpt_weight(g, k, "in.bias", 4 * c, 1)),
                      TESS_GELU_TANH);
        x = tess_add(x, tess_linear(y, gpt_weight(g, k, "out", c, 4 * c), gpt_weight(g, k, "out.bias", c, 1)));
    }
    tess_block_end(g);
    return x;
}

#endif
