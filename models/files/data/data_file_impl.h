/* Below data.c: a file as a sequence of tokens (data_file.c). */
#ifndef TESS_DATA_FILE_IMPL_H
#define TESS_DATA_FILE_IMPL_H
#include "models/files/data/data_lines_impl.h"
#include "models/files/data/data_paths.h"

struct tess_token_run;
typedef struct tess_token_file {
    tess_map map;        /* owned; zeroed when the memory is the caller's, or it is a .jsonl */
    void *held;          /* owned: the tokens of a text */
    tess_lines *lines;   /* owned: a .jsonl; NULL: it is none */
    uint64_t examples;   /* in it, each a sample; 0: it is tokens of a stream */
    const char *path;    /* of the file with the tokens, for messages */
    const uint8_t *base; /* borrowed from one of those */
    int type;
    struct tess_token_run *run; /* owned */
    size_t runs;
    uint64_t tokens;
} tess_token_file;

/* Opens a file; whatever this returns, it can be closed. A text's tokens, and all of a .jsonl, are checked here. */
tess_status tess_token_file_open(const tess_data_path *path, const tess_line_rules *rules,
                                 tess_token_file *f) TESS_NODISCARD;
/* Opens Megatron's two files, or with idx NULL one of llm.c's format, that are in memory already. */
tess_status tess_token_file_view(const tess_map *idx, const tess_map *bin, tess_token_file *f) TESS_NODISCARD;
/* Closes it. */
void tess_token_file_close(tess_token_file *f);
/* Reads the tokens from place `at`, which are there: out is (n). */
tess_status tess_token_file_read(const tess_token_file *f, uint64_t at, uint64_t n, int64_t vocab,
                                 int32_t *out) TESS_NODISCARD;
/* Returns `sum` with what tells this file's content from another's mixed in: sizes, counts, and both ends. */
uint64_t tess_token_file_sum(const tess_token_file *f, uint64_t sum);

#endif
