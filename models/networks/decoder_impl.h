/* Decoders as most families since Llama are: rotary positions, rmsnorm before attention and mlp, heads of q that share
 * those of k and v, a gated mlp. A family of them says in its own file what its config.json has beside the fields here,
 * and what of a block it does otherwise. */
#ifndef TESS_DECODER_IMPL_H
#define TESS_DECODER_IMPL_H
#include "model_impl.h"

/* What the struct of such a family begins with; in the order of tess_decoder_fields. */
typedef struct tess_decoder {
    tess_common common;
    int64_t width, inner, heads, groups, dim, activation, trained_positions; /* groups, dim 0: they follow */
    double eps, attention_dropout;
    double rope_base, rope_factor, rope_low, rope_high;
    int64_t rope_kind, rope_length; /* length 0: trained_positions */
} tess_decoder;
extern const tess_field tess_decoder_fields[];

/* How a family's block differs. */
typedef struct tess_decoder_traits {
    bool qkv_bias, out_bias, mlp_bias;
    bool head_norms; /* of every head of q and k, before they turn */
} tess_decoder_traits;

tess_tensor *tess_decoder_body(const tess_decoder *c, const tess_decoder_traits *traits, tess_graph *g,
                               const tess_network *in);
/* For tess_family, whose numbers begin with a tess_decoder. */
tess_status tess_decoder_check(const void *numbers, const char *where) TESS_NODISCARD;
tess_head tess_decoder_head(const void *numbers, tess_graph *g);
bool tess_decoder_bare(const char *name);
bool tess_decoder_extra(const char *name);

#endif
