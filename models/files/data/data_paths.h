/* The files that stand for data.train or data.valid:
 *
 *     tess_data_paths paths;
 *     TESS_TRY(tess_data_paths_open("data.train", "corpus", &paths));
 *     for (size_t i = 0; i < paths.source[0].files; i++) puts(paths.source[0].file[i].path);
 *     tess_data_paths_close(&paths);
 */
#ifndef TESS_DATA_PATHS_H
#define TESS_DATA_PATHS_H
#include "runtime/runtime.h"

typedef enum tess_data_kind { TESS_DATA_MEGATRON, TESS_DATA_LLMC, TESS_DATA_TEXT, TESS_DATA_LINES } tess_data_kind;
typedef struct tess_data_path {
    char *path; /* of Megatron's pair the prefix */
    tess_data_kind kind;
} tess_data_path;

/* Files whose tokens lie behind one another. */
typedef struct tess_data_source {
    char *name; /* as it was given */
    tess_data_path *file;
    size_t files;
    double weight; /* 0: none was given */
} tess_data_source;

typedef struct tess_data_paths {
    tess_data_source *source; /* one, unless weights say how they take turns */
    size_t sources;
    size_t left_out; /* files of directories and patterns that are no data */
    char *left;      /* the first of them; NULL: none */
} tess_data_paths;

/* Takes apart what stands for data.train: a path, a directory, a pattern, or the JSON text of a list of these or of
 * objects with "path" and "weight". `key` names it in errors. Whatever it returns, the result can be closed. */
tess_status tess_data_paths_open(const char *key, const char *text, tess_data_paths *paths) TESS_NODISCARD;
/* Closes them. */
void tess_data_paths_close(tess_data_paths *paths);

#endif
