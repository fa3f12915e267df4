/* emulated_dnn: what tests say of the cuDNN of emulated_dnn.cpp, and what they learn. */
#ifndef TESS_TESTS_EMULATED_DNN_H
#define TESS_TESTS_EMULATED_DNN_H
#include <cstddef>
#include <cstdint>

struct emulated_dnn {
    size_t version = 92801;
    bool unsteady;           /* every engine has other bits each time, and says so */
    bool lies;               /* it has, and does not say so */
    bool none;               /* there is no engine */
    bool fails;              /* plans do not run */
    bool idle;               /* they run, and write nothing */
    float wrong;             /* times this is in y, or where it is 0 nothing */
    int wrong_in;            /* of convolutions this kind of operation's alone, or where it is 0 all */
    int64_t room_times;      /* of the workspace that is wanted; 0: 1 */
    int64_t conv_room = 256; /* that a convolution wants */
    uint64_t era;            /* of the device: one more after each reset; handles of another are dead */
    int handles;             /* that are open */
    int descriptors;         /* that were made and not taken back */
    int runs, plans;
    char refused[200]; /* what was wrong with the last call that was refused */
};
extern emulated_dnn emulated_cudnn;
#endif
