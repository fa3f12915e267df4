/* balance: statistics of routers, for CPU and CUDA. They go from layer to layer, and from rank to rank, as
 * activations do, which in bf16 would round counts to eight bits: so behind each number stands what was lost of it. */
#ifndef TESS_BALANCE_IMPL_H
#define TESS_BALANCE_IMPL_H
#include "codelets/experts/order_impl.h"

/* The numbers of a sequence: of choices (experts), of softmax (experts), of rows (1). */
TESS_INLINE int64_t tess_balance_numbers(int64_t experts)
{
    return 2 * experts + 1;
}

/* What a number is multiplied by where it is stored: rows of a long sequence, through all layers, are more than fp16
 * has. */
TESS_INLINE double tess_balance_unit(tess_dtype t)
{
    return t == TESS_F16 ? 0x1p-10 : 1;
}

#endif
