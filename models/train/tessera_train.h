/* tessera.h: a graph's parameters to files and back, the subcommands of `tessera` as functions, and a run that the
 * program steps itself. */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a configuration -----------------------------------------------------------------------------------------------
 *
 * `tessera train --help` lists what it may contain. */

typedef struct tess_config tess_config;
/* Reads CONFIG.json (NULL: there is none), then the environment's TESSERA_<KEY>, then `count` settings KEY=VALUE; of
 * two values of a key the later one holds. Values that follow from them and the number of ranks are filled in. An
 * unknown key, a value of the wrong type or out of range, and a contradiction are TESS_INVALID. The caller closes
 * *config. */
tess_status tess_config_open(const char *path, const char *const *settings, size_t count, int64_t ranks,
                             tess_config **config) TESS_NODISCARD;
/* Frees a configuration; NULL is allowed. */
void tess_config_close(tess_config *config);

/* ---- a graph to files and back -------------------------------------------------------------------------------------
 *
 * Parameters go by their names. All ranks make these calls together and get the same status. Files do not depend on
 * ranks, tiles or plans: whoever saved them, any number of ranks loads them.
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

/* Writes all parameters in fp32 to DIR/model.safetensors, or to shards and their index. DIR is made. */
tess_status tess_graph_save(tess_graph *g, const char *dir) TESS_NODISCARD;
/* Reads all parameters from a directory, a .safetensors file or an index of shards. A tensor that is missing, has
 * another shape or belongs to no parameter is TESS_INVALID. Optimizer states stay as they are. */
tess_status tess_graph_load(tess_graph *g, const char *path) TESS_NODISCARD;
/* Where a program is in its training. The library keeps it with a checkpoint and reads `step` alone, for its name. */
typedef struct tess_position {
    int64_t step, samples; /* done so far */
    uint64_t seed;
} tess_position;
/* Writes parameters, optimizer states and position to DIR/step-00000100, which is whole or not there. The `keep` newest
 * checkpoints in DIR stay, older ones are removed. */
tess_status tess_graph_checkpoint(tess_graph *g, const char *dir, int64_t keep, const tess_position *at) TESS_NODISCARD;
/* Reads the newest checkpoint in DIR, with which training continues with the same bits. Where there is none *found is
 * false, and nothing has changed. */
tess_status tess_graph_resume(tess_graph *g, const char *dir, tess_position *at, bool *found) TESS_NODISCARD;

/* Measures the rates of this machine, with matrices of a dtype and with the drives of m->disk, and stores them in
 * m->rates, so that tess_step_fit minimizes time, as the command does. Rates that were measured here before are reused;
 * else it takes a few seconds. All ranks call it before tess_start, and get the same rates. */
tess_status tess_machine_measure(tess_machine *m, tess_dtype t) TESS_NODISCARD;

/* ---- the subcommands; each call starts and stops the library itself ---------------------------------------------- */

/* Trains as `tessera train` does. */
tess_status tess_train(const tess_config *c) TESS_NODISCARD;
/* Prints the mean loss on data.valid. */
tess_status tess_eval(const tess_config *c) TESS_NODISCARD;
/* Runs an exported network on the .npy files `in`, "NAME=FILE,NAME=FILE" or one FILE, and writes its output `name` to
 * the .npy file `out`; NULL names the first output that has samples. */
tess_status tess_outputs(const tess_config *c, const char *in, const char *out, const char *name) TESS_NODISCARD;
/* Prints the memory, traffic and time that a run will take, on the rank that holds the most. A run that does not fit is
 * TESS_OK, too, and prints a line "does not fit: ...". */
tess_status tess_estimate(const tess_config *c, FILE *out) TESS_NODISCARD;

typedef struct tess_generate_conf {
    const char *dir;           /* the model's directory */
    const char *prompt;        /* the text that is continued */
    const char *adapter;       /* the directory of an adapter for the model; NULL: none */
    int tokens;                /* the most that are generated */
    double temperature;        /* 0: the likeliest token is taken */
    int top_k;                 /* tokens are drawn from this many of the likeliest; 0: from all */
    uint64_t seed;             /* of the random draws */
    double top_p;              /* tokens are drawn from the likeliest that have this share of the probability; 0: all */
    double repetition_penalty; /* for tokens that are in the text already, as in transformers; 0: none */
    const char *prompts;       /* in place of `prompt`: a file with a prompt a line, or of examples (.jsonl) */
    int batch;                 /* prompts of a file that are continued at the same time; 0: 8 */
    bool ignore_end;           /* generation continues after a token that ends a text */
    const tess_config *config; /* its memory, bf16 and aio apply; NULL: the defaults do */
    bool chat;                 /* in place of `prompt`: the user's turns of a conversation come from stdin */
    int best;                  /* texts that are drawn of a prompt, the one of the highest mean log-probability is
                                * the answer; 0: 1 */
    const char *system;        /* with `chat`: the system's message before them; NULL: none */
} tess_generate_conf;
/* Continues a prompt, or each prompt of a file, and prints what it generates. */
tess_status tess_generate(const tess_generate_conf *c, FILE *out) TESS_NODISCARD;
/* Prints how far the loss and the gradients of an exported network are from those of its framework; TESS_FAILED where
 * that is more than 1e-4. */
tess_status tess_check(const char *dir, FILE *out) TESS_NODISCARD;
/* Writes to `dir` a model with an adapter folded into its weights, each in its own dtype. */
tess_status tess_merge(const char *model, const char *adapter, const char *dir, FILE *out) TESS_NODISCARD;

typedef struct tess_tokenize_conf {
    const char *dir, *file; /* the model's directory, and the text; file NULL: stdin */
    bool special;           /* the output has the tokens, too, that the tokenizer's post-processor adds */
    bool decode;            /* it goes from ids to text */
} tess_tokenize_conf;
/* Prints a line of ids for each line of a text, or the other way round. */
tess_status tess_tokenize(const tess_tokenize_conf *c, FILE *out) TESS_NODISCARD;
/* Writes the model of a checkpoint, or of the newest one in a directory, to `dir` as a Hugging Face directory. `dir`
 * must not hold a model yet. The bytes are those that the run itself would leave. */
tess_status tess_export(const char *checkpoint, const char *dir, FILE *out) TESS_NODISCARD;
/* Writes it, or the model of a directory, to a new GGUF file, matrices in f16, q8_0, bf16 or f32. */
tess_status tess_export_gguf(const char *checkpoint, const char *file, const char *dtype, FILE *out) TESS_NODISCARD;

/* ---- a run, step by step (may still change) ------------------------------------------------------------------------
 *
 * The run of a configuration that the program steps itself, with arrays of its own in the place of
 * data.train.
 *
 *     tess_trainer *t;
 *     TESS_TRY(tess_ranks_join());                      // before all else, on several ranks
 *     TESS_TRY(tess_config_open("run.json", NULL, 0, tess_ranks(), &c));
 *     TESS_TRY(tess_trainer_open(c, &t));               // the model is opened, its step placed, StarPU started
 *     const void *values[] = {x, y};                    // in the order of tess_trainer_input_of
 *     TESS_TRY(tess_trainer_step(t, values, 0, &r));
 *     TESS_TRY(tess_trainer_save(t, "model"));
 *     tess_trainer_close(t);
 *     tess_config_close(c);
 *
 * All ranks make the same calls. Nothing is written but what the program asks for. */

typedef struct tess_trainer tess_trainer;
/* Opens a configuration that has a model; data.train is not read. The configuration outlives *trainer, which the caller
 * closes. */
tess_status tess_trainer_open(const tess_config *c, tess_trainer **trainer) TESS_NODISCARD;
/* Closes a trainer, and stops the library; NULL is allowed. */
void tess_trainer_close(tess_trainer *t);

/* An input of a step on this rank: 4 bytes an element. */
typedef struct tess_trainer_input {
    const char *name;
    bool real;        /* its elements are floats; else int32, and 0 or 1 for a bool */
    int rank;         /* the number of its dimensions */
    int64_t shape[9]; /* the first dimension counts samples, or micro-batches with `same` */
    bool same;        /* all samples of a micro-batch share one value */
} tess_trainer_input;
/* Returns how many inputs there are. */
int tess_trainer_inputs(const tess_trainer *t);
/* Returns the input of that index, from 0. */
tess_trainer_input tess_trainer_input_of(const tess_trainer *t, int index);
/* Stores how many samples a step takes on all ranks, and the index of this rank's first one. */
void tess_trainer_share(const tess_trainer *t, int64_t *samples, int64_t *first);

/* Makes a step of training on this rank's samples, one array for each input. lr = 0 takes the configuration's rate. */
tess_status tess_trainer_step(tess_trainer *t, const void *const *values, double lr,
                              tess_step_result *result) TESS_NODISCARD;
/* Computes the mean loss over as many samples, without training. */
tess_status tess_trainer_eval(tess_trainer *t, const void *const *values, double *loss) TESS_NODISCARD;
/* Returns the learning rate of the next step. */
double tess_trainer_lr(const tess_trainer *t);
/* Writes the model as a run leaves it. */
tess_status tess_trainer_save(tess_trainer *t, const char *dir) TESS_NODISCARD;
/* Returns the graph, whose parameters may be read and checkpointed between two steps. */
tess_graph *tess_trainer_graph(tess_trainer *t);
/* Returns the position of the training, for tess_graph_checkpoint and tess_graph_resume. In fp16 a run that resumes
 * starts with the initial loss scale. */
tess_position *tess_trainer_at(tess_trainer *t);
/* Returns whether a parameter of the graph is kept transposed, as its products read it. */
bool tess_trainer_turned(const tess_tensor *param);

#ifdef __cplusplus
}
#endif

#endif
