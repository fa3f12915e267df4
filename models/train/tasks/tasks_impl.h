/* Tasks: questions of a file, as people write them or lm-evaluation-harness leaves them (samples_*.jsonl), and how a
 * model answers them.
 *
 *     tess_questions q = {0};
 *     TESS_TRY(tess_questions_read(&q, "arc.jsonl"));
 *     TESS_TRY(tess_questions_score(&q, config));            // or tess_questions_write, of those that are gone on with
 *     tess_questions_free(&q);
 */
#ifndef TESS_TASKS_IMPL_H
#define TESS_TASKS_IMPL_H
#include "models/text/tokenizer/tokenizer.h"
#include "models/train/train.h"
#include <jansson.h>

typedef enum tess_question_kind {
    TESS_CHOOSES,   /* which of several continuations is the likeliest */
    TESS_CONTINUES, /* how likely the continuation is */
    TESS_WRITES,    /* what the model writes behind a prompt, to be what was expected */
} tess_question_kind;

/* A continuation behind a context, and how likely it is. */
typedef struct tess_request {
    const char *context, *continuation; /* of the question's line */
    tess_ids ids;                       /* both, no more than the model reads; */
    int64_t continues;                  /* the last of them, which are scored */
    double logprob;                     /* the sum of theirs */
    bool greedy;                        /* each of them is the likeliest */
} tess_request;

typedef struct tess_question {
    json_t *json; /* its line, to which texts belong */
    int64_t line;
    size_t first, count; /* its requests */
    json_t *answers;     /* texts, or, of choices, their numbers; in the line, or made and kept there */
    bool bare;           /* blanks around a text that was written do not count */
    const char *prompt;
    json_t *until; /* texts */
    int64_t tokens;
    char *written;
} tess_question;

typedef struct tess_questions {
    const char *path;
    tess_question_kind kind; /* of all */
    tess_question *question;
    tess_request *request;
    size_t count, room, requests, requests_room;
} tess_questions;

/* ---- questions.c ------------------------------------------------------------------------------------------------- */

/* Reads a file. What is no question, or of another kind than those before, is TESS_INVALID, with its line. */
tess_status tess_questions_read(tess_questions *q, const char *path) TESS_NODISCARD;
/* Frees them; those that are zeroed are nothing. */
void tess_questions_free(tess_questions *q);
/* Returns an error of a question, at FILE:LINE. */
tess_status tess_question_error(const tess_questions *q, const tess_question *of, const char *format, ...)
    TESS_PRINTF(3, 4);

/* ---- score.c ----------------------------------------------------------------------------------------------------- */

/* Finds how likely the requests are to the model of a configuration. All ranks call it, and know all. */
tess_status tess_questions_score(tess_questions *q, const tess_config *c) TESS_NODISCARD;

#endif
