/* emulated_shared: the shared memory of an emulated block. Dynamic memory is what the launch asks for and no more;
 * static arrays are given out of a pool, by the place where they are declared, when the first thread of a block comes
 * there: next to each other and aligned no better than their type, as a compiler may lay them. All of it is NaN when a
 * block begins, and more than the device has is refused. Under ASan everything that was not asked for is out of bounds,
 * and so is the room between two arrays. A part of emulate.h. */
#ifndef TESS_TESTS_EMULATED_SHARED_H
#define TESS_TESTS_EMULATED_SHARED_H
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#endif

namespace emulate
{
constexpr size_t SHARED = 227 << 10, STATIC = 48 << 10, BETWEEN = 16; /* an H200's, the largest; what needs no asking */
/* The window that 32-bit addresses are in: some bytes that are the system's, as on Hopper, dynamic memory, the pool. */
constexpr size_t SYSTEM = 1 << 10, POOL = 2 * STATIC;
alignas(1024) inline unsigned char window[SYSTEM + SHARED + POOL];
inline size_t asked; /* by the launch */

struct array {
    const void *key;
    unsigned char *at;
    size_t bytes;
};
inline std::vector<array> arrays;
inline size_t pool_used, arrays_bytes;

/* What a block may have: static arrays and what a launch asks for together. */
inline size_t shared_limit()
{
    const int of = architecture();
    return of == 90 ? SHARED : of == 80 ? 163 << 10 : 99 << 10;
}

inline unsigned char *dynamic_shared()
{
    return window + SYSTEM;
}

/* A launch with so many bytes of dynamic memory; before its blocks. */
inline void ask_shared(size_t bytes)
{
    if (bytes > shared_limit()) broken("no such launch");
    ASAN_UNPOISON_MEMORY_REGION(window, sizeof window);
    memset(window, 0xff, sizeof window);
    ASAN_POISON_MEMORY_REGION(window, sizeof window);
    asked = bytes;
    arrays.clear();
    pool_used = arrays_bytes = 0;
}

/* As bytes that are nobody's: what the block before may have written. */
inline void begin_shared()
{
    ASAN_UNPOISON_MEMORY_REGION(dynamic_shared(), asked);
    memset(dynamic_shared(), 0xff, asked);
    for (const array &a : arrays) {
        memset(a.at, 0xff, a.bytes);
        ASAN_POISON_MEMORY_REGION(a.at, a.bytes);
    }
    arrays.clear();
    pool_used = arrays_bytes = 0;
}

/* The array that is declared at `key`, the same for all threads of a block. */
inline void *static_shared(const void *key, size_t bytes, size_t alignment)
{
    for (const array &a : arrays)
        if (a.key == key) return a.at;
    size_t at = (pool_used + BETWEEN + 2 * alignment - 1) / (2 * alignment) * 2 * alignment;
    if (alignment < 16) at += alignment; /* and no better */
    unsigned char *p = window + SYSTEM + SHARED + at;
    pool_used = at + bytes;
    arrays_bytes += bytes;
    /* launch() asks for more than 48 KiB where the dynamic part alone is more */
    const size_t most = asked > STATIC ? shared_limit() : STATIC;
    if (arrays_bytes > STATIC || arrays_bytes + asked > most || pool_used > POOL)
        broken("static arrays of more shared memory than there is");
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    arrays.push_back({key, p, bytes});
    return p;
}

/* What of shared memory an address of 32 bits names, as instructions do; all of `bytes` must have been asked for. */
inline uint32_t shared_address(const void *p)
{
    const unsigned char *at = (const unsigned char *)p;
    if (at < window || at >= window + sizeof window) broken("an address of shared memory that is none");
    return (uint32_t)(at - window);
}
inline void *shared_at(uint64_t address, size_t bytes)
{
    bool is = address >= SYSTEM && address + bytes <= SYSTEM + asked;
    for (const array &a : arrays) {
        const uint64_t from = (uint64_t)(a.at - window);
        is |= address >= from && address + bytes <= from + a.bytes;
    }
    if (!is) broken("an instruction outside of the block's shared memory");
    return window + address;
}
} // namespace emulate
#endif
