/* attention_library: what attention.cu's attention_library, which is no task's body, finds as its argument: the device
 * and whether cuDNN's kernels are wanted, and where it goes whether they are taken, and its version or why not. */
#ifndef TESS_ATTENTION_LIBRARY_H
#define TESS_ATTENTION_LIBRARY_H
#include <stdbool.h>

typedef struct tess_attention_library_arg {
    int device; /* as CUDA counts them */
    bool wanted, taken;
    bool trusted; /* without a trial: tests say so */
    char said[300];
} tess_attention_library_arg;
#endif
