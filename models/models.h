/* models: networks by name, their weights and data, and what the command does with them.
 *
 *     tess_model *m;
 *     TESS_TRY(tess_model_open("gpt2", NULL, &m));                       // a Hugging Face directory
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16});
 *     tess_network net;
 *     TESS_TRY(tess_model_build(m, g, 4, 1024, TESS_FOR_LOSS, &net));     // 4 sequences of 1024 tokens
 *     TESS_TRY(tess_start(&TESS_MACHINE_DEFAULT));
 *     TESS_TRY(tess_model_load(m, g, 1));                                 // or draws the weights from seed 1
 *     ... tess_step_new(net.output, ...), feed net.ids and net.targets, tess_step_run ...
 *     TESS_TRY(tess_model_save(m, g, "out/model"));
 *
 * A network of one's own is a file like gpt2.c and one line in models.def; see docs/add-a-model.md.
 */
#ifndef TESS_MODELS_H
#define TESS_MODELS_H
#include "codelets.h"
#include "graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- model.c: a model by its Hugging Face config.json ------------------------------------------------------------ */

typedef struct tess_model tess_model;
/* From a directory's config.json, from the JSON text of such an object, or of both, where the object's members replace
 * the directory's. A checkpoint is such a directory too. A model_type or a field that is not known, or whose value
 * changes the arithmetic in a way that is not supported, is TESS_INVALID. */
tess_status tess_model_open(const char *dir, const char *json, tess_model **model) TESS_NODISCARD;
void tess_model_close(tess_model *m);
int64_t tess_model_vocab(const tess_model *m);
int64_t tess_model_positions(const tess_model *m); /* the longest sequence; 0: any */
const char *tess_model_dir(const tess_model *m);   /* NULL for a JSON object */
bool tess_model_has_weights(const tess_model *m);

typedef enum tess_purpose {
    TESS_FOR_LOSS,   /* output is the loss over targets (B,T) */
    TESS_FOR_LOGITS, /* output is the logits (B,1,V) of the row of each sequence that index (B,1) names */
} tess_purpose;
typedef struct tess_network {
    tess_tensor *ids, *targets, *index, *output;
} tess_network;
tess_status tess_model_build(const tess_model *m, tess_graph *g, int64_t batch, int64_t length, tess_purpose purpose,
                             tess_network *net) TESS_NODISCARD;
/* The weights of the model's directory, each straight to its tiles; drawn from seed where there are none. All ranks
 * load and save together, each what it holds, and get the same status. */
tess_status tess_model_load(const tess_model *m, tess_graph *g, uint64_t seed) TESS_NODISCARD;
/* Writes a Hugging Face directory: config.json, model.safetensors or its shards, and the tokenizer that the model came
 * with. */
tess_status tess_model_save(const tess_model *m, tess_graph *g, const char *dir) TESS_NODISCARD;

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
