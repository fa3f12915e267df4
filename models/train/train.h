/* train, the top of models: what the command does with networks and files, and graphs of a program's own to files and
 * back. */
#ifndef TESS_TRAIN_H
#define TESS_TRAIN_H
#include "codelets.h"
#include "networks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- store.c: a graph of one's own, to files and back ---------------------------------------------------------------
 *
 * Its parameters go by their names. All ranks call these together and get the same status; files say nothing of ranks,
 * tiles or tiers, so whoever saved them, any number of ranks loads them:
 *
 *     tess_position at = {.seed = 1};
 *     bool found;
 *     TESS_TRY(tess_graph_resume(g, "checkpoints", &at, &found));
 *     if (!found) TESS_TRY(tess_graph_init(g, at.seed));
 *     while (at.step < 1000) {
 *         ... feed the samples of at.step ...
 *         TESS_TRY(tess_step_run(s, &(tess_step_input){.step = at.step, .seed = at.seed, .lr = 1e-3}, &r));
 *         at.step++;
 *         if (at.step % 100 == 0) TESS_TRY(tess_graph_checkpoint(g, "checkpoints", 2, &at));
 *     }
 *     TESS_TRY(tess_graph_save(g, "model"));
 */

/* DIR/model.safetensors, or shards and their index: all parameters in fp32. DIR is made. */
tess_status tess_graph_save(tess_graph *g, const char *dir) TESS_NODISCARD;
/* All parameters from a directory, a .safetensors or its index. A tensor that lacks, has another shape or is no
 * parameter is TESS_INVALID. Optimizer states stay as they are. */
tess_status tess_graph_load(tess_graph *g, const char *path) TESS_NODISCARD;
/* Where a program is in its training: steps done, and for it to use as it likes, samples and seed. */
typedef struct tess_position {
    int64_t step, samples;
    uint64_t seed;
} tess_position;
/* Parameters, optimizer states and position: DIR/step-00000100, whole or not there. The `keep` newest stay. */
tess_status tess_graph_checkpoint(tess_graph *g, const char *dir, int64_t keep, const tess_position *at) TESS_NODISCARD;
/* The newest checkpoint of DIR: the graph goes on from it with the same bits. *found is false, and all as it was, where
 * there is none. */
tess_status tess_graph_resume(tess_graph *g, const char *dir, tess_position *at, bool *found) TESS_NODISCARD;

/* ---- yardstick.c: what this machine can do ------------------------------------------------------------------------
 */

#define TESS_QUIET 0.85
/* Flops and bytes a second. */
typedef struct tess_yardstick {
    int cores;                                                                /* tess_cores() */
    double matrix_rate[TESS_REAL_DTYPES], matrix_rate_core[TESS_REAL_DTYPES]; /* of all cores at a time, of one alone */
    double copy_rate, copy_rate_core;                                         /* read and written */
    double share; /* that this program had of the cores while it measured: below TESS_QUIET they were busy otherwise */
    tess_drive drive; /* of `dirs` */
} tess_yardstick;
/* Read from the cache of earlier measurements, what that lacks measured and added, in at most a few seconds; all of it
 * with `again`, and what a busy machine gave. Before tess_start: its workers are in the way. `dirs` is as in
 * tess_machine, NULL asks for no drive. The status is the drive's alone; the rest is there whatever it is. */
tess_status tess_yardstick_read(const char *dirs, bool again, tess_yardstick *y) TESS_NODISCARD;
/* The matrix rate that MFU is a share of: of this process's GPUs, or of its cores, the best that was ever measured on
 * this machine; one more measurement, of 0.15 s, is made now. `again` above forgets the old ones. Before tess_start. Of
 * ranks that take turns on the same cores the first has the rate and the others have 0, so that a sum over all counts
 * them once. 0 also where a GPU cannot be measured. */
double tess_yardstick_best(tess_dtype t);
/* Keeps a better one, which a step of this process proved. */
void tess_yardstick_raise(tess_dtype t, double rate);

/* ---- what the command does ----------------------------------------------------------------------------------------
 */

tess_status tess_train(const tess_config *c) TESS_NODISCARD;
tess_status tess_eval(const tess_config *c) TESS_NODISCARD;
/* Of several ranks, which must be pretended, that of the one that holds the most. */
tess_status tess_estimate(const tess_config *c, FILE *out) TESS_NODISCARD;

/* Steps on random tokens, with a table of where the time goes. */
tess_status tess_bench(const tess_config *c, int steps, FILE *out) TESS_NODISCARD;

typedef struct tess_generate_conf {
    const char *dir, *prompt;
    int tokens;
    double temperature; /* 0: always the likeliest */
    int top_k;          /* 0: all */
    uint64_t seed;
} tess_generate_conf;
tess_status tess_generate(const tess_generate_conf *c, FILE *out) TESS_NODISCARD;
/* The model of a checkpoint, or of the newest in a directory of them, as a Hugging Face directory, which must not hold
 * one yet. The same bytes as the run would leave. */
tess_status tess_export(const char *checkpoint, const char *dir, FILE *out) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
