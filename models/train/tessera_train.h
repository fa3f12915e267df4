/* tessera.h, of training: a graph of one's own to files and back, and what the command does, by call. */
#ifndef TESSERA_TRAIN_H
#define TESSERA_TRAIN_H
#include "tessera_networks.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a graph to files and back ------------------------------------------------------------------------------------
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

/* Writes DIR/model.safetensors, or shards and their index: all parameters in fp32. DIR is made. */
tess_status tess_graph_save(tess_graph *g, const char *dir) TESS_NODISCARD;
/* Reads all parameters from a directory, a .safetensors or its index. A tensor that lacks, has another shape or is no
 * parameter is TESS_INVALID. Optimizer states stay as they are. */
tess_status tess_graph_load(tess_graph *g, const char *path) TESS_NODISCARD;
/* Where a program is in its training: steps done, and for it to use as it likes, samples and seed. */
typedef struct tess_position {
    int64_t step, samples;
    uint64_t seed;
} tess_position;
/* Writes parameters, optimizer states and position: DIR/step-00000100, whole or not there. The `keep` newest stay. */
tess_status tess_graph_checkpoint(tess_graph *g, const char *dir, int64_t keep, const tess_position *at) TESS_NODISCARD;
/* Reads the newest checkpoint of DIR: the graph goes on from it with the same bits. *found is false, and all as it was,
 * where there is none. */
tess_status tess_graph_resume(tess_graph *g, const char *dir, tess_position *at, bool *found) TESS_NODISCARD;

/* ---- the configuration of the command, for its commands by call ----------------------------------------------------
 */

typedef struct tess_config tess_config;
/* Reads CONFIG.json (NULL: none), TESSERA_<KEY> and `count` settings KEY=VALUE, the last of which win, and fills in
 * what follows from them on so many ranks. An unknown key, a wrong type, a value out of range and a contradiction are
 * TESS_INVALID. */
tess_status tess_config_open(const char *path, const char *const *settings, size_t count, int64_t ranks,
                             tess_config **config) TESS_NODISCARD;
/* Frees it; NULL is nothing. */
void tess_config_close(tess_config *config);

/* ---- what the command does: each starts and stops by itself -------------------------------------------------------
 */

/* Trains, as `tessera train` does. */
tess_status tess_train(const tess_config *c) TESS_NODISCARD;
/* Prints the mean loss on data.valid. */
tess_status tess_eval(const tess_config *c) TESS_NODISCARD;
/* Says what a run will hold, move and take; of several ranks, which must be pretended, of the one that holds the most.
 * Returns TESS_OK for a run that does not fit, too: "does not fit: ..." is a line of what it says. */
tess_status tess_estimate(const tess_config *c, FILE *out) TESS_NODISCARD;

typedef struct tess_generate_conf {
    const char *dir, *prompt, *adapter; /* adapter: beside the model of dir; NULL: none */
    int tokens;
    double temperature; /* 0: always the likeliest */
    int top_k;          /* 0: all */
    uint64_t seed;
    double top_p;              /* the likeliest that have this share of the probability; 0: all */
    double repetition_penalty; /* of tokens that were there already, as transformers has it; 0: none */
    const char *prompts;       /* in the place of `prompt`: a file, of a prompt a line or of examples (.jsonl) */
    int batch;                 /* prompts of a file that are gone on with at a time; 0: 8 */
    bool ignore_end;           /* goes on behind a token that ends a text */
    const tess_config *config; /* of its memory, bf16 and aio; NULL: the defaults */
    bool chat;                 /* in the place of `prompt`: turns of a conversation come from stdin */
} tess_generate_conf;
/* Goes on with a prompt, or with each of a file. */
tess_status tess_generate(const tess_generate_conf *c, FILE *out) TESS_NODISCARD;
/* Writes a model with a directory's adapters folded into its weights, each in the dtype that it has. */
tess_status tess_merge(const char *model, const char *adapter, const char *dir, FILE *out) TESS_NODISCARD;

typedef struct tess_tokenize_conf {
    const char *dir, *file; /* file NULL: stdin */
    bool special;           /* with what the tokenizer's post-processor adds */
    bool decode;            /* from ids to text */
} tess_tokenize_conf;
/* Writes a line of ids for each line of a text, or the other way round. */
tess_status tess_tokenize(const tess_tokenize_conf *c, FILE *out) TESS_NODISCARD;
/* Writes the model of a checkpoint, or of the newest in a directory of them, as a Hugging Face directory, which must
 * not hold one yet: the same bytes as the run would leave. */
tess_status tess_export(const char *checkpoint, const char *dir, FILE *out) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
