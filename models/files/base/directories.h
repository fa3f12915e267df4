/* Directories that a run makes, and small files in them. */
#ifndef TESS_DIRS_IMPL_H
#define TESS_DIRS_IMPL_H
#include "runtime.h"

/* Makes a directory and those on the way to it; says false, with errno, where it is not there in the end. *made, unless
 * that is NULL: the characters that name the first of the new ones; 0: there is none. */
bool tess_dirs_make(const char *dir, size_t *made);
/* Takes those back, as far as nothing is in them. */
void tess_dirs_remove(const char *dir, size_t made);
/* Says whether a directory has a file, or a directory, of that name. */
bool tess_dirs_has(const char *dir, const char *name);
/* Writes a small file, whole or not at all. */
tess_status tess_write_text(const char *path, const char *text) TESS_NODISCARD;
/* Copies a file, whole or not at all. What is at `to` goes where there is nothing at `from`. */
tess_status tess_copy_file(const char *from, const char *to) TESS_NODISCARD;

#endif
