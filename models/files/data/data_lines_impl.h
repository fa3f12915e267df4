/* Below data.c: a .jsonl, one object a line, and what is read as if it were one: a list in a .json, a table.
 * data_text.c unpacks a .gz, data_rows.c and data_table.c find a row in the text, data_example.c takes it apart,
 * data_lines.c goes through a file and keeps what it found (data_index_impl.h), data_sample.c makes a sample of what
 * was read, and data_pack.c says which examples share one. */
#ifndef TESS_DATA_LINES_IMPL_H
#define TESS_DATA_LINES_IMPL_H
#include "models/files/data/data.h"
#include "models/files/data/data_index_impl.h"
#include <jansson.h>

enum { TESS_NO_TARGET = -100 };

/* What the lines of a file are, all of one kind. */
typedef enum tess_lines_form {
    TESS_LINES_UNKNOWN,
    TESS_LINES_TEXT,     /* {"text"}: documents, joined */
    TESS_LINES_LABELLED, /* {"text", "label"}; where samples have no label, as TEXT */
    TESS_LINES_PAIR,     /* {"prompt", "completion"} */
    TESS_LINES_CHAT,     /* {"messages"}, or {"conversations"} */
    TESS_LINES_IDS,      /* {"input_ids", ...} */
    TESS_LINES_TASK,     /* {"instruction", "input", "output"} */
    TESS_LINES_CHOICE    /* {"prompt", "chosen", "rejected"} */
} tess_lines_form;

/* How lines are judged, all borrowed. */
typedef struct tess_line_rules {
    const tess_data_conf *conf;
    const tess_tokenizer *tokenizer;
    int32_t end_of_text; /* -1: unknown */
} tess_line_rules;

/* ---- data_text.c ------------------------------------------------------------------------------------------------- */

/* Maps a file; of a .gz what is in it, under the .gz's name. `output`: see data_index_impl.h. */
tess_status tess_text_open(const char *path, const char *output, tess_map *text) TESS_NODISCARD;
/* The same, but of a .gz its beginning alone, which leaves nothing behind. */
tess_status tess_text_look(const char *path, tess_map *text) TESS_NODISCARD;

/* ---- data_rows.c ------------------------------------------------------------------------------------------------- */

typedef enum tess_rows_syntax { TESS_ROWS_LINES, TESS_ROWS_LIST, TESS_ROWS_COMMAS, TESS_ROWS_TABS } tess_rows_syntax;
/* A text as rows. */
typedef struct tess_rows {
    tess_map file; /* owned */
    tess_rows_syntax syntax;
    uint64_t first;  /* where rows begin */
    json_t *columns; /* of a table: their names */
} tess_rows;
typedef struct tess_line {
    const tess_rows *rows;
    uint64_t byte; /* its place in the file */
    size_t length; /* without its end; 0: there is none */
} tess_line;

/* Finds the syntax of a file, by its name, and where rows begin. Whatever this returns, it can be closed. */
tess_status tess_rows_begin(tess_rows *r) TESS_NODISCARD;
/* Closes the file. */
void tess_rows_close(tess_rows *r);
/* Finds the row behind `at`, which is 0 or where another row ends. */
tess_status tess_row_next(const tess_rows *r, uint64_t at, tess_line *line) TESS_NODISCARD;
/* Finds the row that begins at a byte of the file. */
void tess_row_at(const tess_rows *r, uint64_t at, tess_line *line);

/* data_text.c: records an error at a byte of a file and counts its line. `what` is freed. */
tess_status tess_line_error(const tess_rows *rows, uint64_t byte, char *what);

/* ---- data_table.c ------------------------------------------------------------------------------------------------ */

/* Reads the names of the columns. */
tess_status tess_table_begin(tess_rows *r) TESS_NODISCARD;
/* Finds the record at or behind a byte. */
void tess_record_next(const tess_rows *r, uint64_t at, tess_line *line);
/* Makes an object of one. */
tess_status tess_record_read(const tess_line *line, json_t **root) TESS_NODISCARD;

/* A line's own, cut to T. Zeroed at first. */
typedef struct tess_example {
    tess_ids ids, labels, types, decoder; /* types, decoder: empty where they are not given */
    int32_t label;
    bool labelled; /* it has a label */
    bool bare;     /* its labels are still to be made, by masking */
} tess_example;
/* Makes a decoder's input from the labels, shifted by one place. */
void tess_example_shift(const tess_data_conf *c, tess_example *e);
/* Frees what it holds. */
void tess_example_free(tess_example *e);
/* ---- data_forms.c: what other tools' lines are in ours ---- */

/* Adds "messages" to a line that has "conversations". */
tess_status tess_form_turns(const tess_line *line, json_t *root) TESS_NODISCARD;
/* Adds "messages" to a line whose "prompt" and "completion" are some; *prompt: how many those of the prompt are. */
tess_status tess_form_pair_talk(const tess_line *line, json_t *root, int *prompt) TESS_NODISCARD;
/* Adds "prompt" and "completion" to a line with a choice: the chosen or the rejected one. */
tess_status tess_form_choice(const tess_line *line, json_t *root, bool rejected) TESS_NODISCARD;
/* Adds "messages" to a line that has an "instruction". */
tess_status tess_form_task_talk(const tess_line *line, json_t *root) TESS_NODISCARD;
/* Adds "prompt" and "completion" to it: what an encoder reads is bare, what a text goes on from says what is what. */
tess_status tess_form_task_pair(const tess_line *line, json_t *root, bool bare) TESS_NODISCARD;

/* Reads a line that is an example of this form, or with `other` a pair's rejected one; of a judged example that is
 * another line, whose completion is the one that is read. *targets: how many of them draw a loss; *uncut: before it was
 * cut. */
tess_status tess_example_read(const tess_line_rules *r, const tess_line *line, tess_lines_form form,
                              const tess_line *other, tess_example *e, uint64_t *targets,
                              uint64_t *uncut) TESS_NODISCARD;
/* Appends the tokens of a line that is a document. */
tess_status tess_document_read(const tess_line_rules *r, const tess_line *line, tess_ids *ids) TESS_NODISCARD;
/* Finds what a line is. */
tess_status tess_line_form(const tess_line *line, tess_lines_form *form) TESS_NODISCARD;

/* A file, open. */
typedef struct tess_lines {
    tess_rows rows;
    tess_map index;
    tess_lines_form form;
    const uint8_t *entry; /* in the index: where each example begins and its places, or the tokens of the texts */
    size_t entry_bytes;
    uint64_t entries, tokens, left_out, longest;
} tess_lines;
/* Opens a file, which is read through where there is no index of it; whatever this returns, it can be closed. */
tess_status tess_lines_open(const char *path, const tess_line_rules *r, tess_lines *l) TESS_NODISCARD;
/* Closes it. */
void tess_lines_close(tess_lines *l);
/* Reads an example, or the other one that tess_sample says. */
tess_status tess_lines_get(const tess_lines *l, const tess_line_rules *r, uint64_t which, bool other,
                           tess_example *e) TESS_NODISCARD;
/* Returns how many places an example fills. */
int64_t tess_lines_places(const tess_lines *l, uint64_t which);
/* Returns what a file is by its first line, and records no error. */
tess_lines_form tess_lines_look(const char *path);

/* ---- data_mask.c ------------------------------------------------------------------------------------------------- */

/* Masks tokens of an example, at least one, and makes its labels; `place` is the sample's in the run. */
void tess_mask_tokens(const tess_line_rules *r, uint64_t place, tess_example *e);
/* Takes spans out of an example, which has two tokens or more, and makes them the labels. */
void tess_mask_spans(const tess_line_rules *r, uint64_t place, tess_example *e);
/* Finds how many of n tokens go, and in how many spans. */
void tess_span_count(const tess_data_conf *c, int64_t n, int64_t *noise, int64_t *spans);
/* Returns how many tokens of text become a sample of at most T on either side. */
int64_t tess_span_length(const tess_data_conf *c);
/* ---- data_order.c ------------------------------------------------------------------------------------------------ */

/* Returns a number in which every bit of x acts on every bit. */
uint64_t tess_data_mix(uint64_t x);
/* Returns the place of x among 0 .. n-1 in an order of theirs that the key gives. */
uint64_t tess_data_permute(uint64_t x, uint64_t n, uint64_t key);

/* ---- data_sample.c ----------------------------------------------------------------------------------------------- */

/* Makes a sample of T + 1 tokens that lie behind one another. */
void tess_sample_of_stream(const tess_data_conf *c, int32_t end_of_text, const int32_t *tokens,
                           const tess_sample *into);
/* Makes one of an example. */
void tess_sample_of_example(const tess_data_conf *c, const tess_example *e, const tess_sample *into);
/* Puts an example into a sample, from place `at` on, and returns the place behind it. */
int64_t tess_sample_put(const tess_data_conf *c, const tess_example *e, int64_t at, const tess_sample *into);
/* Makes padding of the places from `at` on. */
void tess_sample_pad(const tess_data_conf *c, int64_t at, const tess_sample *into);

/* ---- data_pack.c ------------------------------------------------------------------------------------------------- */

/* Which examples share a sample: of sample i, example[end[i - 1]] to example[end[i] - 1]. */
typedef struct tess_packs {
    uint32_t *example;
    uint64_t *end, count;
} tess_packs;
/* Returns how many places an example fills. */
typedef int64_t (*tess_places)(const void *of, uint64_t example);
/* Packs examples into samples of T places, none of them longer; key: of the order in which they are taken, NULL: their
 * own. */
void tess_packs_make(uint64_t examples, int64_t T, const uint64_t *key, tess_places places, const void *of,
                     tess_packs *out);
void tess_packs_free(tess_packs *p);

#endif
