/* Directories that a run makes. */
#ifndef TESS_DIRS_IMPL_H
#define TESS_DIRS_IMPL_H
#include <stdbool.h>
#include <stddef.h>

/* Makes a directory and those on the way to it; says false, with errno, where it is not there in the end. *made, unless
 * that is NULL: the characters that name the first of the new ones; 0: there is none. */
bool tess_dirs_make(const char *dir, size_t *made);
/* Takes those back, as far as nothing is in them. */
void tess_dirs_remove(const char *dir, size_t made);

#endif
