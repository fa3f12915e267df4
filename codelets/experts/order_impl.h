/* order: how an order lies in its tile, for CPU and CUDA. Rows choose experts; sorted by expert, and within one by
 * row, their choices have places. */
#ifndef TESS_ORDER_IMPL_H
#define TESS_ORDER_IMPL_H
#include "codelets/shared/scalar.h"

/* Of `choices` = rows * chosen numbers each, but for the offsets. A row that goes nowhere has -1 in expert and place,
 * and fewer places than `choices` are taken, the first. */
typedef struct tess_order {
    int32_t *offset; /* (experts + 1): where each expert's places begin; the last is how many are taken */
    int32_t *expert; /* (rows, chosen): which one, the likeliest first */
    int32_t *place;  /* (rows, chosen) */
    int32_t *choice; /* (places): row * chosen + which of its choices */
} tess_order;

TESS_INLINE tess_order tess_order_at(void *tile, int64_t experts, int64_t choices)
{
    int32_t *p = (int32_t *)tile;
    tess_order o;
    o.offset = p;
    o.expert = p + experts + 1;
    o.place = o.expert + choices;
    o.choice = o.place + choices;
    return o;
}
/* Of a task whose buffer i it is, by the task's argument. */
#define TESS_ORDER_OF(w, i, a) tess_order_at((w)->buf[i].ptr, (a)->experts, (a)->rows *(a)->chosen)

#endif
