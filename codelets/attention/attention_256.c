/* attention_256: attention with vectors of 256 bits, for CPUs with AVX2. */
#ifdef __x86_64__
#define WIDE 8
#include "codelets/attention/attention_wide_backward_impl.h"
#include "codelets/attention/attention_wide_forward_impl.h"

const attention_way tess_attention_256 = {forward_scratch, backward_scratch, WIDE_BODIES(forward),
                                          WIDE_BODIES(backward)};
WIDE_END
#endif
