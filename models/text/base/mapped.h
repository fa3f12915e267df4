/* A file mapped for reading, as data files, weights and tokenizers are opened.
 *
 *     tess_map map;
 *     TESS_TRY(tess_map_open("corpus.bin", &map));
 *     ... map.data[0 .. map.bytes) ...
 *     tess_map_close(&map);
 */
#ifndef TESS_MAPPED_H
#define TESS_MAPPED_H
#include "runtime/runtime.h"

typedef struct tess_map {
    char *path;
    const uint8_t *data; /* never NULL once open */
    size_t bytes;
} tess_map;

/* Maps a file whole. One that is missing, unreadable or no regular file is TESS_INVALID. */
tess_status tess_map_open(const char *path, tess_map *map) TESS_NODISCARD;
/* Unmaps it, also one whose data now begins behind a head in its first page; a zeroed map may be closed too. */
void tess_map_close(tess_map *map);
/* Lets go of bytes of a map that were read: they no longer count as this process's memory, and can be read again. */
void tess_map_forget(const void *at, size_t bytes);
/* Records that a file is wrong at a field of it, or a tensor, and returns TESS_INVALID. */
tess_status TESS_PRINTF(3, 4) tess_file_error(const char *file, const char *field, const char *format, ...);
/* Returns `sum` with these bytes mixed in. A sum that tells contents apart begins with TESS_SUM. */
uint64_t tess_sum_bytes(uint64_t sum, const void *data, size_t bytes);
/* Returns `sum` with the first and the last 64 KiB of a file mixed in. */
uint64_t tess_sum_ends(uint64_t sum, const tess_map *map);
#define TESS_SUM UINT64_C(0xcbf29ce484222325)

#endif
