/* cudnn_choice: what a body that settles whether cuDNN's kernels are taken, which is no task's, finds as its argument:
 * the device and whether they are wanted, and where it goes whether they are taken, and the version or why not. */
#ifndef TESS_CUDNN_CHOICE_H
#define TESS_CUDNN_CHOICE_H
#include <stdbool.h>

typedef struct tess_cudnn_choice {
    int device; /* as CUDA counts them */
    bool wanted, taken;
    bool trusted; /* without a trial: tests say so */
    char said[300];
} tess_cudnn_choice;

#ifndef __cplusplus
#include "codelets/codelets.h"
#include <stdio.h>
/* Has the body settle it for this process's GPU, before StarPU runs. Returns whether they are taken; `said` is the
 * library's version then, and else why not, or empty where there is no GPU or they are not wanted. */
static inline bool tess_cudnn_settle(tess_body settle, bool wanted, char *said, size_t room)
{
    tess_cudnn_choice c = {.device = tess_gpu_device(), .wanted = wanted};
    *said = 0;
    if (!settle || tess_gpus() == 0) return false;
    const tess_work w = {.arg = &c};
    settle(&w);
    snprintf(said, room, "%s", c.said);
    return c.taken;
}
#endif

#endif
