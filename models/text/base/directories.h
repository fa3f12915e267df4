/* Directories that a run makes, and small files in them.
 *
 *     size_t made;
 *     if (!tess_dirs_make("out/model", &made)) return tess_error(TESS_FAILED, "out/model", "%s", strerror(errno));
 *     TESS_TRY(tess_write_text("out/model/state.json", text)); // it is there whole, or not at all
 */
#ifndef TESS_DIRECTORIES_H
#define TESS_DIRECTORIES_H
#include "runtime/runtime.h"
#include <stdio.h>

/* Makes a directory and those on the way to it, and returns whether it is there in the end; if not, errno is why. *made
 * (unless NULL) becomes the number of characters that name the first new one; 0: none is new. */
bool tess_dirs_make(const char *dir, size_t *made);
/* Removes the new ones again, as far as nothing is in them. */
void tess_dirs_remove(const char *dir, size_t made);
/* Returns whether a directory has a file, or a directory, of that name. */
bool tess_dirs_has(const char *dir, const char *name);
/* Returns whether a path that does not exist may be a name on Hugging Face's hub: gpt2, meta-llama/Llama-3.2-1B. */
bool tess_dirs_hub(const char *name);
/* Ends a file that was written as `fresh` (f NULL: it could not be opened): it becomes `path`, or goes. */
tess_status tess_file_end(FILE *f, const char *fresh, const char *path, bool written) TESS_NODISCARD;
/* Writes a small file, whole or not at all. */
tess_status tess_write_text(const char *path, const char *text) TESS_NODISCARD;
/* Copies a file, whole or not at all. If there is none at `from`, the one at `to` is removed. */
tess_status tess_copy_file(const char *from, const char *to) TESS_NODISCARD;

#endif
