/* What a run says while it runs: OUTPUT/metrics.jsonl, the live line, and the signals that end it in order. */
#ifndef TESS_REPORT_H
#define TESS_REPORT_H
#include "models/train/config/config.h"
#include "runtime/runtime.h"

/* What the questions of a task come to: "acc" of "arc". */
typedef struct tess_task_number {
    char task[64];
    const char *metric;
    double value;
    int64_t questions; /* of the task */
} tess_task_number;

typedef struct tess_tier_report {
    uint64_t resident_bytes, peak_bytes;
    uint64_t read_bytes, write_bytes; /* of this step */
    double wait_seconds;              /* that compute waited for the tier in this step */
} tess_tier_report;

/* A number that is not finite is written as null. */
typedef struct tess_step_report {
    int64_t step, tokens; /* step counts from 0 here, and from 1 in all that is said and written */
    int64_t samples;      /* of the run, with this step's */
    double loss, lr, grad_norm, seconds, tokens_per_s, model_tflops;
    double padding;               /* the share of the rows that cannot change the loss, of rank 0 */
    double mfu;                   /* 0 to 1, of the best matrix rate known of this machine; NaN: none is */
    double loss_scale;            /* of this step, in fp16; 0: it was not */
    int64_t skipped;              /* steps so far that changed nothing */
    const double *valid_loss;     /* NULL in a step that did not evaluate */
    const tess_model *model;      /* whose names are those of */
    const double *numbers;        /* what was evaluated beside that, */
    int beside;                   /* and how many of these there are */
    int preference;               /* a tess_preference_kind, whose they and those of the step itself are; 0: of none */
    const double *own;            /* the latter */
    const char *samples_made;     /* texts behind it, a line of JSON each; NULL: none */
    const tess_task_number *task; /* what tasks came to, those of one together; NULL: none were */
    int task_numbers;             /* and how many these are */
    uint64_t sent_bytes;          /* between ranks, all of them together */
    int slow_rank;                /* the one that computes slowest beside the others, */
    double slow_rate;             /* at this share of their rate; 0: none is slow */
    tess_tier_report tier[TESS_TIER_COUNT];
} tess_step_report;

typedef struct tess_report tess_report;

/* Opens the metrics in the output directory for a run that has done `done` steps: lines of later ones, which an
 * interrupted run left, are dropped. Lines go to `out`: a live one when it is a terminal, else
 * one every log_every steps. TESS_INVALID, and NULL, when they cannot be written. Rank 0 reports for all: the
 * others' reports touch no file, say nothing and never fail. */
tess_status tess_report_open(const tess_config *c, int64_t done, FILE *out, tess_report **report) TESS_NODISCARD;
/* Returns the last step that the metrics in a directory hold a line of, the first being 1; 0: none. */
int64_t tess_report_last(const char *output);
/* Writes a step's line of metrics, and says what is due of it. */
tess_status tess_report_step(tess_report *r, const tess_step_report *s) TESS_NODISCARD;
/* Closes it, and ends the live line; NULL is nothing. */
void tess_report_close(tess_report *r);

/* Writes the live line: as much as fits `width` columns, in fewer letters where not all does. steps < 0: the total is
 * not known. */
void tess_report_line(const tess_step_report *s, int64_t steps, double seconds_left, int width, char *out, size_t size);

/* Lets SIGINT, SIGTERM, and SIGUSR1, the one that mpirun passes on, ask the run to end after its step; a second one
 * ends the process with status 130. */
void tess_signals_install(void);
/* Returns whether one did. */
bool tess_stop_requested(void);

#endif
