/* Decoders as most families since Llama are: rotary positions, rmsnorm before attention and mlp, heads of q that share
 * those of k and v, a gated mlp. decoders.c has the further fields of each family's config.json, and the differences of
 * its block. */
#ifndef TESS_DECODER_IMPL_H
#define TESS_DECODER_IMPL_H
#include "models/networks/families/rotary_impl.h"

/* The numbers of all such families; those that a family has no field for are 0. */
typedef struct tess_decoder_config {
    tess_common common;
    tess_rotary rotary;
    int64_t width, inner, heads, groups, dim, activation; /* groups, dim 0: they follow */
    double eps, attention_dropout, residual_dropout;
    double turning; /* share of a head that turns; 0: all */
    int64_t attention_bias, mlp_bias;
    int64_t window; /* keys that a query sees, its own included, in layers that slide; 0: none does */
    tess_layers sliding;
    int64_t use_window, full_layers; /* full_layers: layers before the first that slides */
    int64_t full_every;              /* as in the traits; 0: as these say */
    int64_t further;                 /* layers in files behind the last */
    double sliding_base;             /* of positions in layers that slide; 0: as in the others */
    tess_layers still;               /* layers whose heads do not turn */
    int64_t still_every;             /* every n-th is one where config.json names none; 0: none is */
    struct {
        int64_t heads, groups, dim, dim_v, taps; /* heads of v; of q and k, with `dim` elements */
        int64_t every;                           /* every n-th layer is none, where config.json names none */
        tess_layers layers;                      /* with linear attention */
    } linear;
    double query_scalar, attention_cap, logit_cap; /* caps 0: none */
    /* Factors, 0: there is none. Without attention_by logits of attention are over the root of a head's width. */
    double embedding_by, residual_by, attention_by, logits_over;
    struct {
        int64_t count, chosen, inner, normalised;
        int64_t balanced; /* a loss draws rows to all of them alike, of this weight: */
        double balance, jitter;
        double sharp, limit;   /* of experts whose gate and up are neighbours: their function's (tess_swiglu_clamped) */
        int64_t every, behind; /* every n-th layer has experts, behind the first `behind` */
        int64_t shared;        /* experts that all rows pass through, as one mlp; 0: there are none */
        int64_t groups, kept;  /* as in tess_route_conf */
        double scale;
        tess_layers dense; /* layers without experts all the same */
    } experts;
    /* Latent attention: the ranks of what q, and k and v, are made of (queries 0: of x itself), the elements of a head
     * of k that stay and that turn, and those of v's. */
    struct {
        int64_t queries, keys, still, turning, values, neighbours;
    } latent;
} tess_decoder_config;
extern const tess_field tess_decoder_fields[];

/* How a family's block differs. */
typedef struct tess_decoder_traits {
    bool qkv_bias;           /* whatever attention_bias says */
    bool head_norms;         /* of every head of q and k, before they turn */
    bool whole_norms;        /* of all of q and of all of k */
    bool norms_behind;       /* of what attention and the mlp make too, which gives theirs other names */
    bool norms_behind_alone; /* and no others */
    bool gains_from_one;     /* a norm's gain is 1 + its weight */
    bool scaled;             /* logits of attention are over sqrt(query_scalar), embeddings times sqrt(width) */
    bool fused;              /* q, k and v are one matrix, and so are gate and up */
    bool asks_window;        /* without use_sliding_window no layer slides */
    bool still_slide;        /* layers without positions slide, where config.json does not say which do, */
    int full_every;          /* or all but every n-th do; 0: all */
    bool normalised;         /* weights of a row's experts, whatever norm_topk_prob says */
    bool some_dense;         /* experts may be in some layers only */
    const char *count;       /* what the number of experts is called; NULL: there are none */
    const char *router, *gate, *up,
        *down;  /* experts' parameters behind the layer's name; a star is an expert's number. Without up, gate has both,
                   in turns, and all of them have biases, the experts' as NAME_bias */
    bool sinks; /* attention has sinks */
    bool latent;      /* k and v are made of few numbers, and of turned ones that all heads share */
    const char *bias; /* a parameter that sways which experts are chosen, by scores; NULL: they are softmax's */
    bool linear; /* some layers have linear attention, and in the others each head of q has a gate of what it makes */
} tess_decoder_traits;

/* The words of layer_types; the second one has a window. */
#define TESS_DECODER_LAYER_TYPES "full_attention sliding_attention"
/* What the tess_family of each of them has. Its traits are a tess_decoder_traits. */
#define TESS_DECODER_FAMILY TESS_DECODER_FAMILY_OF("model.", "")
#define TESS_DECODER_FAMILY_OF(before, others)                                                                         \
    .prefix = (before), .shared = tess_decoder_fields, .rotary = tess_rotary_fields,                                   \
    .numbers = sizeof(tess_decoder_config), .settle = tess_decoder_settle, .check = tess_decoder_check,                \
    .body = tess_decoder_body, .transform = tess_decoder_transform, .head = tess_decoder_head,                         \
    .bare = "lm_head.weight", .extra = "*.rotary_emb.inv_freq lm_head.weight" others
void tess_decoder_settle(const tess_family *f, void *numbers);
tess_status tess_decoder_check(const tess_family *f, const void *numbers, const char *where) TESS_NODISCARD;
tess_tensor *tess_decoder_body(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in);
tess_tensor *tess_decoder_transform(const void *numbers, tess_graph *g, tess_tensor *x);
tess_head tess_decoder_head(const void *numbers, tess_graph *g);

#endif
