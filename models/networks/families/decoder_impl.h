/* Decoders as most families since Llama are: rotary positions, rmsnorm before attention and mlp, heads of q that share
 * those of k and v, a gated mlp. A family of them says in its own file what its config.json has beside the fields here,
 * and what of a block it does otherwise. */
#ifndef TESS_DECODER_IMPL_H
#define TESS_DECODER_IMPL_H
#include "rotary_impl.h"

/* What the struct of such a family begins with; in the order of tess_decoder_fields. */
typedef struct tess_decoder {
    tess_common common;
    tess_rotary rotary;
    int64_t width, inner, heads, groups, dim, activation; /* groups, dim 0: they follow */
    double eps, attention_dropout;
    int64_t window; /* keys that a query sees, its own included, in layers that slide; 0: none does */
    tess_layers sliding;
} tess_decoder;
extern const tess_field tess_decoder_fields[];

/* Experts in the place of an mlp: what config.json says of them. */
typedef struct tess_experts {
    int64_t count, chosen, inner, normalised;
    int64_t balanced; /* a loss draws rows to all of them alike, of this weight: */
    double balance;
} tess_experts;
/* The same, and the names of their parameters, behind the layer's; a star is an expert's number. */
typedef struct tess_expert_traits {
    const tess_experts *experts;
    const char *router, *gate, *up, *down;
} tess_expert_traits;
/* Checks them; `count` is what their number is called. */
tess_status tess_experts_check(const tess_experts *e, const char *count, const char *where) TESS_NODISCARD;
/* x (B,T,C) -> (B,T,C) */
tess_tensor *tess_experts_mlp(const tess_decoder *c, const tess_expert_traits *traits, tess_graph *g,
                              const tess_network *in, int layer, tess_tensor *x);

/* How a family's block differs. */
typedef struct tess_decoder_traits {
    bool qkv_bias, out_bias, mlp_bias;
    bool head_norms;                   /* of every head of q and k, before they turn */
    bool norms_behind;                 /* of what attention and the mlp make too, which gives theirs other names */
    bool gains_from_one;               /* a norm's gain is 1 + its weight */
    float scale;                       /* of attention's logits; 0: 1 / sqrt(dim) */
    float cap;                         /* attention's */
    float embedding_scale;             /* 0: 1 */
    const tess_expert_traits *experts; /* NULL: there are none */
    const tess_layers *dense;          /* layers without; NULL: all have them */
} tess_decoder_traits;

/* The words of layer_types, the second of which has a window. */
#define TESS_DECODER_LAYER_TYPES "full_attention sliding_attention"
/* Of families whose layers from `first` on slide where config.json does not say which do. */
void tess_decoder_slide_from(tess_decoder *c, int64_t first);
tess_tensor *tess_decoder_body(const tess_decoder *c, const tess_decoder_traits *traits, tess_graph *g,
                               const tess_network *in);
/* For tess_family, whose numbers begin with a tess_decoder. */
tess_status tess_decoder_check(const void *numbers, const char *where) TESS_NODISCARD;
tess_head tess_decoder_head(const void *numbers, tess_graph *g);
bool tess_decoder_bare(const char *name);
bool tess_decoder_extra(const char *name);

#endif
