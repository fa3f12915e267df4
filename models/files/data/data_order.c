/* The shuffle: a keyed bijection of 0 .. n-1, which is computed for one place at a time and never held. */
#include "models/files/data/data_lines_impl.h"

/* Every bit of x acts on every bit of the result (the finisher of splitmix64). */
uint64_t tess_data_mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* A Feistel network is a bijection of 2*half bits whatever its round function; what lands outside 0 .. n-1 goes
 * through it again until it lands inside, which keeps it a bijection there. The square is at most 4n large (64 for the
 * smallest n), so few turns are needed. */
uint64_t tess_data_permute(uint64_t x, uint64_t n, uint64_t key)
{
    unsigned half = 3;
    while (half < 31 && (uint64_t)1 << 2 * half < n) half++;
    TESS_ASSERT(n <= (uint64_t)1 << 2 * half);
    uint64_t mask = ((uint64_t)1 << half) - 1;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (unsigned round = 0; round < 6; round++) {
            uint64_t f = tess_data_mix(key + 0x9e3779b97f4a7c15u * (round + 1) + (right << 32 | right)) & mask;
            uint64_t old = right;
            right = left ^ f;
            left = old;
        }
        x = left << half | right;
    } while (x >= n);
    return x;
}
