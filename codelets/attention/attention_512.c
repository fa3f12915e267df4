/* attention_512: attention with vectors of 512 bits, for CPUs with AVX-512; of bf16 on tiles or in pairs, where they
 * have those. */
#ifdef __x86_64__
#define WIDE 16
#include "codelets/attention/attention_wide_backward_impl.h"
#include "codelets/attention/attention_wide_forward_impl.h"

const attention_way tess_attention_512 = {forward_scratch, backward_scratch, WIDE_BODIES(forward),
                                          WIDE_BODIES(backward)};
WIDE_END
#endif
