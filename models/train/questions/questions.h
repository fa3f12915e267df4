/* Tasks: questions of a file, as people write them or lm-evaluation-harness leaves them (samples_*.jsonl), and how a
 * model answers them.
 *
 *     tess_questions q = {0};
 *     TESS_TRY(tess_questions_read(&q, "arc.jsonl"));
 *     TESS_TRY(tess_scoring_new(&run, &q, 8, &s));           // before the run's own step is placed
 *     TESS_TRY(tess_scoring_plan(s, false));                 // behind it, before the run starts
 *     TESS_TRY(tess_scoring_run(s));
 *     n = tess_questions_count(&q, count);
 *     tess_scoring_free(s), tess_questions_free(&q);
 */
#ifndef TESS_QUESTIONS_H
#define TESS_QUESTIONS_H
#include "models/text/tokenizer/tokenizer.h"
#include "models/train/report/report.h"
#include "models/train/run/run.h"
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

typedef struct tess_scoring tess_scoring;
/* Finds the tokens of the requests, and the passes that they go through, some `usual` of the longest at once: r->also
 * has these from here on. All ranks know all questions. Whatever it returns, it can be freed. */
tess_status tess_scoring_new(tess_run *r, tess_questions *q, int64_t usual, tess_scoring **s) TESS_NODISCARD;
/* Places the passes, `alone` or beside the run's own step. */
tess_status tess_scoring_plan(tess_scoring *s, bool alone) TESS_NODISCARD;
/* Finds how likely the requests are to the model as it is. */
tess_status tess_scoring_run(tess_scoring *s) TESS_NODISCARD;
/* Frees it, before the run is closed; NULL is nothing. */
void tess_scoring_free(tess_scoring *s);

/* ---- count.c ----------------------------------------------------------------------------------------------------- */

/* What questions come to: the mean of a number that each has, or exp of minus it, and its error as a sample's. */
typedef struct tess_count {
    const char *name;
    double value, error; /* error: NaN of one question */
    bool perplexity;     /* exp of minus the mean, and no number of a question */
} tess_count;
enum { TESS_COUNTS = 4 };

/* Counts as lm-evaluation-harness does, and returns how many numbers there are. */
int tess_questions_count(const tess_questions *q, tess_count count[static TESS_COUNTS]);
/* Returns a question's own number of that place. */
double tess_question_value(const tess_questions *q, const tess_question *of, int place);
/* Returns the likeliest choice, by what that number goes by. */
size_t tess_question_choice(const tess_questions *q, const tess_question *of, int place);
/* Returns how many letters of the path are the name of the task, which begins at *name. */
int tess_questions_name(const tess_questions *q, const char **name);

/* ---- run_tasks.c ------------------------------------------------------------------------------------------------- */

/* The tasks of a run that trains, eval.tasks: read, with passes in r->also, before the run's step is placed; placed
 * beside it; answered behind a step by all ranks. */
typedef struct tess_run_tasks tess_run_tasks;
/* Reads them; NULL where there are none. Whatever it returns, they can be freed. */
tess_status tess_run_tasks_open(tess_run *r, tess_run_tasks **tasks) TESS_NODISCARD;
/* Places their passes; of NULL there are none. */
tess_status tess_run_tasks_plan(tess_run_tasks *tasks) TESS_NODISCARD;
/* Answers them, and has *number point to what they come to, *count numbers, until the next time. */
tess_status tess_run_tasks_answer(tess_run_tasks *tasks, const tess_task_number **number, int *count) TESS_NODISCARD;
/* Frees them, before the run is closed; NULL is nothing. */
void tess_run_tasks_free(tess_run_tasks *tasks);

#endif
