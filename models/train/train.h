/* train, the top of models: what the command does with networks and files. The first part of it, which programs may
 * call too, is tessera_train.h. */
#ifndef TESS_TRAIN_H
#define TESS_TRAIN_H
#include "codelets/codelets.h"
#include "graph/graph.h"
#include "models/train/config/config.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As tess_estimate, but TESS_FAILED, when all is said, for a run that does not fit. */
tess_status tess_estimate_fits(const tess_config *c, FILE *out) TESS_NODISCARD;
/* As these, of a rank of a machine that is not here; the time goes by what its parts do. */
tess_status tess_estimate_on(const tess_config *c, const tess_stage *stage, bool must_fit, FILE *out) TESS_NODISCARD;
/* Writes the step of a run, of rank 0, as an instance for those who study schedules, with a line of what it is: to a
 * file that ends in .json, or in .dot its tasks alone. Nothing runs. Of a run that does not fit the tiles have no
 * plan, which a line says. */
tess_status tess_graph_export(const tess_config *c, const char *file, FILE *out) TESS_NODISCARD;
/* Makes steps on random tokens, and prints a table of where the time goes. */
tess_status tess_bench(const tess_config *c, int steps, FILE *out) TESS_NODISCARD;

/* A part of a run that is made once more: it leaves metrics and digests in its output, and neither a model nor
 * checkpoints. */
typedef struct tess_replay {
    const char *checkpoints; /* the directory that has the one of step `from`; not read where that is 0 */
    int64_t from, to;        /* the steps behind `from`, up to `to` */
} tess_replay;
/* Trains as tess_train does, NULL, or a part of that again. A replay's configuration has no checkpoint.dir. */
tess_status tess_train_again(const tess_config *c, const tess_replay *replay) TESS_NODISCARD;
/* Finds where two runs part, from their output directories, and prints it. Steps that have no digests in both are made
 * once more, by this process, or by `program`, the command, on as many ranks as the run had. TESS_FAILED: they part. */
tess_status tess_bisect(const char *const run[2], const char *program, FILE *out) TESS_NODISCARD;
/* Makes steps of a run in this directory once more, as tess_bisect has it: "FROM:TO". */
tess_status tess_bisect_replay(const char *run, const char *steps) TESS_NODISCARD;

/* Prints where the time of a traced step went, from the directory of its run, and what would help. */
tess_status tess_explain(const char *output, FILE *out) TESS_NODISCARD;
/* Writes the tasks of such a trace to a file of comma-separated values, one a line, and prints how many they are. */
tess_status tess_explain_csv(const char *output, const char *file, FILE *out) TESS_NODISCARD;
/* Writes a page that shows runs, side by side, from what they left in their outputs, and prints its path. `file` NULL:
 * report.html in the output, or, of several runs, in the working directory. */
tess_status tess_report_runs(const char *const *output, int runs, const char *file, FILE *out) TESS_NODISCARD;

/* Has a model answer the questions of a file (docs/tasks.md), and prints a table of how many it got right. `samples`,
 * unless NULL, is a file that gets a line for each. */
tess_status tess_eval_task(const tess_config *c, const char *file, const char *samples, FILE *out) TESS_NODISCARD;

/* Finds data.seq_length and the dtype of matrices for evaluating a directory that has no configuration: those of the
 * run that wrote the checkpoint, else all of the model's positions (at most 1024), in fp32. */
tess_status tess_eval_facts(const char *dir, int64_t *length, tess_dtype *dtype) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
