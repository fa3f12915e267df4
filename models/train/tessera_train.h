/* tessera.h: a graph's parameters to files and back, and the subcommands of `tessera` as functions. */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H
#include "graph/tessera_graph.h"
#include "models/train/tessera_config.h"

#ifdef __cplusplus
extern "C" {
#endif

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

#ifdef __cplusplus
}
#endif

#endif
