/* Counter-based random bits: no state, so that a dropout's mask can be made again in the backward pass, by another
 * worker or on another device. The algorithm is written down in vector_impl.h. */
#include "vector.h"

uint32_t tess_random(uint64_t seed, uint64_t step, uint32_t op, uint64_t place)
{
    return tess_random_at(tess_random_begin(seed, step, op), place);
}
