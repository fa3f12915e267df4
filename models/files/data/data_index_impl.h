/* What reading a .jsonl through once found out, kept in a file so that the next run need not: where its examples
 * begin, or all tokens of its texts.
 *
 * It is FILE.index, beside the file; where that cannot be made, NAME.HASH.index in the output directory; where neither
 * can, a temporary file that goes with the process. It is written under another name and renamed, so what has the name
 * is whole, and one that a process has mapped stays as it was. It holds what it was made of: the file's size, time and
 * both ends, and the rules by which the lines were judged. An index of another file, or of other rules, is made again.
 * What a .gz holds is kept the same way, as FILE.unpacked, whose entries are its bytes. */
#ifndef TESS_DATA_INDEX_IMPL_H
#define TESS_DATA_INDEX_IMPL_H
#include "models/text/base/mapped.h"

typedef struct tess_index_head {
    char magic[8];
    uint64_t size, seconds, nanoseconds, ends; /* of the file; ends: a sum of its first and last 64 KiB */
    uint64_t form, rules;                      /* what its lines are, and a sum of how they are judged */
    uint64_t entry, entries;                   /* bytes of one, their number */
    uint64_t tokens, left_out, longest;        /* longest: the places that the longest example fills */
    uint64_t sum;                              /* of the members above */
} tess_index_head;

/* Fills in what tells the file. */
tess_status tess_index_of(const tess_map *file, tess_index_head *head) TESS_NODISCARD;
/* Keeps other processes from making an index of the file at the same time, as far as its file system can: -1, or what
 * tess_index_unlock takes. */
int tess_index_lock(const char *path);
void tess_index_unlock(int lock);
/* Opens an index, PATH.`end`, that is as `head` says in its first members, up to the rules, and fills in the rest.
 * False: there is none. */
bool tess_index_open(const char *path, const char *output, const char *end, tess_index_head *head, tess_map *index);

typedef struct tess_index_writer {
    FILE *to;
    char *path, *temporary; /* NULL: it has no name */
} tess_index_writer;
/* Begins one, wherever there is a place. */
tess_status tess_index_begin(const char *path, const char *output, const char *end,
                             tess_index_writer *w) TESS_NODISCARD;
/* Appends entries; what goes wrong is said at the end. */
void tess_index_put(tess_index_writer *w, const void *data, size_t bytes);
/* Ends it with its head, gives it its name and opens it. */
tess_status tess_index_finish(tess_index_writer *w, tess_index_head *head, tess_map *index) TESS_NODISCARD;
/* Removes one that is not finished; a zeroed one is nothing. */
void tess_index_drop(tess_index_writer *w);

#endif
