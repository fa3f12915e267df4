/* attention_128: attention with vectors of 128 bits, for any CPU. */
#define WIDE 4
#include "codelets/attention/attention_wide_backward_impl.h"
#include "codelets/attention/attention_wide_forward_impl.h"

const attention_way tess_attention_128 = {forward_scratch, backward_scratch, WIDE_BODIES(forward),
                                          WIDE_BODIES(backward)};
WIDE_END
