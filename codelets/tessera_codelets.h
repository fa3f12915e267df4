/* tessera.h, of the codelets: what ops are told that is theirs. Within the sources it is the first part of codelets.h.
 */
#ifndef TESSERA_CODELETS_H
#define TESSERA_CODELETS_H
#include "tessera_runtime.h"

typedef enum tess_gelu_kind { TESS_GELU_TANH, TESS_GELU_ERF } tess_gelu_kind;

/* What becomes of the speeds at which pairs turn, where a model sees longer sequences than it was first trained on:
 * nothing, all divided by `factor`, or as Llama 3: those that turn fewer than `low` times in `length` positions are
 * divided, those that turn more than `high` times stay, and between there is a slope. */
typedef enum tess_rope_kind { TESS_ROPE_PLAIN, TESS_ROPE_LINEAR, TESS_ROPE_LLAMA3 } tess_rope_kind;
typedef struct tess_rope_scaling {
    tess_rope_kind kind;
    double factor, low, high, length;
} tess_rope_scaling;

enum { TESS_MOST_BUCKETS = 256 }; /* of a bias by distance */

#endif
