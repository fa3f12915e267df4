/* tessera.h, of the codelets: what ops are told that is theirs. Within the sources it is the first part of codelets.h.
 */
#ifndef TESSERA_CODELETS_H
#define TESSERA_CODELETS_H
#include "tessera_runtime.h"

typedef enum tess_gelu_kind { TESS_GELU_TANH, TESS_GELU_ERF } tess_gelu_kind;

#endif
