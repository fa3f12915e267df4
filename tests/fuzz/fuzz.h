/* What the fuzz targets share. A target takes any bytes as a file of its format: the file is refused with an error, or
 * what it offers can be used. Each fuzz_X.c, here and in tests/text, has the one function that libFuzzer calls;
 * tests/fuzz/run builds them with it, and tools/check goes through corpus/X beside it and changes of that with
 * replay.c.
 *
 *     int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
 *     {
 *         if (tess_thing_open(fuzz_file(data, bytes), &thing) != TESS_OK) return 0;
 *         fuzz_taken++;
 *         ...                                     // TESS_ASSERT what must hold of a thing that could be opened
 */
#ifndef TESS_TESTS_FUZZ_H
#define TESS_TESTS_FUZZ_H
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

extern int fuzz_taken;       /* inputs that were not refused; the target's */
extern const int fuzz_cases; /* that replay.c makes of the corpus: as many as take a second or two; the target's */

/* fuzz.c: a file with these bytes, which the next call replaces; its path. */
const char *fuzz_file(const void *data, size_t bytes);
/* A directory of this process alone, in RAM where there is such a place; it goes when the process ends. */
const char *fuzz_dir(void);
/* A file below it. Returns its path, in one of a few rotating buffers. */
const char *fuzz_file_in_dir(const char *name, const void *data, size_t bytes);
/* A new copy that ends where the bytes do, so that a sanitizer sees what reads beyond. */
void *fuzz_copy(const void *data, size_t bytes);
/* A new string in which the first byte 1, which no JSON can hold, is `instead`: what every file of a format needs and
 * no change of it should have to keep. */
char *fuzz_fill(const void *data, size_t bytes, const char *instead, size_t *length);

#endif
