/* A run: what training, evaluation and estimates set up alike, from a configuration to a step that StarPU runs. In the
 * order in which it is called, all on a tess_run:
 *
 *     open.c      the model, its graph, its data
 *     tiers.c     the memory it has: caps, homes and rates; and StarPU, started within it
 *     make_step.c the step as the configuration asks for it
 *     capacity.c  whether all of it fits, and which setting would make it fit
 *     choose.c    the step laid out, its tiles placed
 *     feed.c      samples for a step
 *
 * Below all of these is engine_conf.c: the configuration in the terms of the rooms below, and their errors by its keys.
 * Planning needs no StarPU: an estimate does all but the start and the feeding. */
#ifndef TESS_RUN_H
#define TESS_RUN_H
#include "models/files/data/data.h"
#include "models/networks/networks.h"
#include "models/train/train.h"

/* The memory that keys grant, 0 where none is named. */
typedef struct tess_run_caps {
    uint64_t cpu, gpu, disk; /* cpu: memory.cpu, or a variable of StarPU's that is less, */
    const char *cpu_key;     /* and which of them it is */
    bool gpu_plan;           /* else what a GPU holds is left to StarPU */
    double states_on_gpu;    /* the share of the optimizer's states that may live there */
} tess_run_caps;

typedef struct tess_run {
    const tess_config *c; /* to open the run again with other numbers, and to write down the settings */
    int rank;
    tess_grid grid;
    tess_dtype dtype;      /* of matrices */
    tess_step_conf conf;   /* of the step that trains */
    char *shares, *states; /* NULL, or those of its micro-batches, and of states, that were measured */
    tess_run_caps caps;
    bool evaluates;     /* on its way, beside the step that trains: only then an evaluation has room */
    tess_tensor **also; /* what other passes beside it make, over graphs that share its parameters, */
    int alsos;          /* and how many these are */
    tess_model *model;
    tess_tokenizer *tokenizer; /* NULL: bytes */
    struct tess_chat *chat;    /* NULL: the model has no directory */
    tess_graph *g;
    tess_network net;
    tess_rates rates;     /* that are gone by; zeros: the machine's */
    tess_machine machine; /* the caps; .disk is NULL where all tiles are in RAM */
    tess_limits limits;   /* what plans go by */
    tess_plan plan;       /* of the step that was chosen */
    uint64_t eval_disk;   /* bytes on disk of the tiles of an evaluation beside a step that trains */
    uint64_t beside;      /* bytes of RAM that an evaluation's inputs and scratch have beside a step that trains */
    /* Micro-batches of a step on all ranks, sequences of one, of a step; tokens of a sequence: */
    int64_t micro, micro_batch, batch, length;
    int64_t sequences; /* of a sample: 2 of a pair */
    /* What another model says of these data (loop/reference.c), (samples, 2): of both of a pair, or of a judged example
     * and of the other one that tess_sample says. */
    struct {
        const tess_data *data; /* NULL: nothing is known */
        const struct tess_safetensor *scores;
    } reference[2];
    /* What a teacher says of these data (loop/teacher.c): (samples, T distill.top_k). */
    struct {
        const tess_data *data; /* NULL: nothing is known */
        const struct tess_safetensor *tokens, *logprobs;
    } teacher;
    double bound;      /* k of KTO's loss, for what is fed next */
    int64_t evaluated; /* micro-batches of a step of eval */
} tess_run;

/* ---- engine_conf.c ----------------------------------------------------------------------------------------------- */

/* Returns how many tokens a step takes. */
int64_t tess_run_tokens(const tess_run *r);
/* Returns whether the loss compares with what another model says of the data. */
bool tess_run_refers(const tess_run *r);
/* Returns whether the samples are completions with a label, good or bad ones. */
bool tess_run_judged(const tess_run *r);
/* Returns the dtype of matrices that a configuration asks for. */
tess_dtype tess_run_dtype(const tess_config *c);
/* Returns the dtype whose products are measured in the place of another: fp16 is as fast as bf16 on a GPU, and as fp32
 * on a CPU. */
tess_dtype tess_yardstick_for(tess_dtype t);
/* Returns a dtype of matrices by its name in a configuration: "fp16". */
const char *tess_run_dtype_name(tess_dtype t);
/* Stores in a run what follows from its configuration alone: the grid of a rank, the dtype, the step that trains, the
 * caps, and how much of the data a step takes. */
void tess_run_terms(const tess_config *c, int rank, tess_run *r);
/* Shares micro-batches and states out where they go by measurements: alike, `own` NULL, or, all ranks together, by the
 * rate of each, own[0], and its memory; 0: it has none of its own. */
void tess_run_share_out(tess_run *r, const double *own);
/* Names in the error the key that says here what the rooms below call by a word of theirs. Returns the status. */
tess_status tess_run_at_key(tess_status status);

/* Adds to the error of a relative path, where nothing is there, the directory in which it was looked for, and where the
 * configuration lies if that is another. Returns the status. */
tess_status tess_run_lost(const tess_config *c, const char *path, tess_status status);

/* ---- open.c ------------------------------------------------------------------------------------------------------ */

/* Opens the model and builds the graph of a rank of tess_ranks(), as a rule tess_rank(); needs no StarPU. */
tess_status tess_run_open(const tess_config *c, int rank, tess_run *r) TESS_NODISCARD;
/* Returns the dtype in which the model will be written. */
tess_save_dtype tess_run_save_dtype(const tess_run *r);
/* Prints what a run that begins may go on with, but its user may not have meant: a line each. */
void tess_run_say_odd(const tess_run *r);
/* Prints a line where a model's tokenizer knows more tokens than the model does. */
void tess_run_say_tokenizer(const tess_model *m, const tess_tokenizer *tokenizer);
/* Returns TESS_INVALID for a directory of a model that has no weights, where nothing can be done without. */
tess_status tess_run_need_weights(const tess_model *m) TESS_NODISCARD;
/* Returns TESS_INVALID where the configuration's model is a directory that has no weights, and weights is not "drawn".
 */
tess_status tess_run_check_weights(const tess_run *r) TESS_NODISCARD;
/* Opens the run of a teacher, which is of forward passes: they find the distill.top_k likeliest tokens among the first
 * `vocab` instead of a loss. */
tess_status tess_run_open_likeliest(const tess_config *c, int rank, int64_t vocab, tess_run *r) TESS_NODISCARD;
/* Closes a run; it takes a zeroed or half-open one too. */
void tess_run_close(tess_run *r);
/* Inputs that a network needs for the data of the configuration beside ids and targets: bounds where samples may be
 * shorter than seq_length, or hold documents that do not see each other, and positions where each starts from 0. */
typedef struct tess_run_inputs {
    bool bounds, positions;
} tess_run_inputs;
/* Finds which, of a network with `labels` for whole samples or without; of each file that it looks at it reads the
 * first line alone. Before the graph is built. */
tess_run_inputs tess_run_wants(const tess_config *c, bool labels);
/* Returns the token that ends a text, as the tokenizer has it or, without it, config.json; -1: neither says one. */
int32_t tess_run_end_of_text(const tess_run *r);
/* Opens a data file of the configuration, `key` naming it in errors. */
tess_status tess_run_data(const tess_run *r, const char *key, const char *path, bool shuffle,
                          tess_data **data) TESS_NODISCARD;

/* ---- advice.c ---------------------------------------------------------------------------------------------------- */

/* Prints a line where this CPU multiplies another dtype faster than the run's, as far as that was measured before. */
void tess_run_say_dtype(const tess_run *r, const tess_holds *p);
/* Prints a line where a GPU makes something by kernels that are many times slower than those of its like. */
void tess_run_say_slow(const tess_run *r);
/* Prints a line where the model will be written in fewer bits than it is trained in, since it was loaded so. */
void tess_run_say_saved(const tess_run *r);
/* Prints a line if nothing is saved before the end of a run and that is minutes away; `seconds` is the time left. */
void tess_run_say_unsaved(const tess_config *c, double seconds);
/* Prints a line if `steps` steps write much to the drives of the disk tier, and one if their checkpoints do, of `saved`
 * bytes each. */
void tess_run_say_written(const tess_run *r, int64_t steps, double saved);
/* Prints a line where much of what training computes is padding, with the length that needs less. `valid` may be NULL.
 */
void tess_run_say_padding(const tess_run *r, const tess_data *train, const tess_data *valid);

/* ---- same.c ------------------------------------------------------------------------------------------------------ */

/* Compares what the ranks were given: TESS_INVALID on all of them, with the first setting or file in which one differs
 * from rank 0. */
tess_status tess_run_same(const tess_run *r, const char *command) TESS_NODISCARD;

/* ---- tiers.c ----------------------------------------------------------------------------------------------------- */

/* Returns the directories of the disk tier that a configuration asks for; NULL: none. */
const char *tess_run_disk(const tess_config *c);
/* Returns a memory.cpu in whole MiB that is more. */
uint64_t tess_run_cap(uint64_t bytes);
/* Returns what stands behind a number of MiB as the value of that setting: nothing where it counts in them. */
const char *tess_run_cap_unit(const char *setting);
/* Returns the part of a GPU's memory that tiles may have, before any step is placed; none without a plan. */
tess_gpu_conf tess_run_gpu(const tess_run *r);
/* Reads the caps and what the keys say of homes, before a step is placed: r->machine.disk is NULL where there is no
 * disk tier, its cpu_bytes 0 where there is no cap. What fails here is wrong, where what fails later may just not fit.
 * `made`, unless NULL: the directory that the run would make before. */
tess_status tess_run_tiers(tess_run *r, const char *made) TESS_NODISCARD;
/* Finds what this machine does a second in the tasks of a step; the same on all ranks, which all ask. */
tess_status tess_run_rates(const tess_run *r, tess_rates *rates) TESS_NODISCARD;
/* The same from what was measured before, for this rank alone; false where that is nothing. */
bool tess_run_rates_known(const tess_run *r, tess_rates *rates);
/* Refuses a plan for several GPUs of one process, with the ranks that would have one each. All ranks call it, before
 * there is much to wait for. */
tess_status tess_run_check_gpus(const tess_config *c) TESS_NODISCARD;
/* Starts StarPU within the caps. */
tess_status tess_run_start(const tess_run *r, bool profile) TESS_NODISCARD;

/* ---- make_step.c ------------------------------------------------------------------------------------------------- */

/* Sets parameters' rates, those that optimizer.groups has for them (groups.c). */
tess_status tess_run_groups(const tess_run *r) TESS_NODISCARD;
/* Makes the step that trains so, or the forward pass of an evaluation, before anything is placed. */
tess_status tess_run_step(const tess_run *r, bool train, tess_step **step) TESS_NODISCARD;
/* Finds which of its tiles leave the GPU, and which need no RAM, where a plan is made for it. */
tess_status tess_run_place_gpu(const tess_run *r, tess_step *step, tess_gpu_placement *out) TESS_NODISCARD;
/* Returns the error of a GPU's memory that is too little, with the memory.gpu that would do. */
tess_status tess_run_too_little_gpu(const tess_run *r, uint64_t needed);

/* ---- capacity.c -------------------------------------------------------------------------------------------------- */

/* Returns the bytes that a run may have without a disk: RAM's, and what GPUs hold beside it where no plan says what. */
uint64_t tess_run_limit(const tess_run *r);
/* Finds what the step of a rank, in training or in evaluation, will hold and do. */
tess_status tess_run_plan(const tess_config *c, int rank, bool train, tess_holds *plan) TESS_NODISCARD;
/* Returns TESS_INVALID, with the setting that would do, when the plan, of training or of evaluation, and the bytes
 * beside it need more than the cap or what is free. */
tess_status tess_run_fits(const tess_run *r, bool train, const tess_holds *plan, uint64_t beside) TESS_NODISCARD;

/* ---- choose.c ---------------------------------------------------------------------------------------------------- */

/* Makes the step that trains, laid out and its tiles placed as the caps ask for; without a disk tier it only checks
 * that all fits into RAM. Before tess_run_start. */
tess_status tess_run_train_step(tess_run *r, tess_step **step) TESS_NODISCARD;
/* Returns the cap on RAM with which no more than `disk` bytes rest on disk; 0: RAM has no room for such a cap. It asks
 * no other rank. */
uint64_t tess_run_cpu_for(const tess_run *r, uint64_t disk);
/* Makes the forward pass over one micro-batch; `alone`, or beside a step that trains and was made before. */
tess_status tess_run_eval_step(tess_run *r, bool alone, tess_step **step) TESS_NODISCARD;
/* Makes the pass over micro-batches of r->also[k], `alone` or beside the run's own step. */
tess_status tess_run_also_step(tess_run *r, int k, bool alone, tess_step **step) TESS_NODISCARD;
/* Places another step that only evaluates beside the one that trains. */
tess_status tess_run_place_beside(tess_run *r, tess_step *step) TESS_NODISCARD;
/* Returns the least memory.cpu, in whole MiB, with which the run can be placed over a disk; 0: none is found. It is
 * tried, which takes the time of a plan, and `r` is then placed for that cap. */
uint64_t tess_run_least(tess_run *r);
/* Sizes the disk tier for what was placed there, r->machine.disk becoming NULL where that is nothing; TESS_INVALID
 * where memory.disk is less. */
tess_status tess_run_size_disk(tess_run *r) TESS_NODISCARD;
/* Prints the bytes that a step which was placed has on each tier: "memory    GPU 1, RAM 2, disk 3 bytes by plan". */
void tess_run_print_memory(const tess_run *r, const tess_step *step, FILE *out);
/* Returns the least memory.disk for what was placed there, in whole MiB. */
uint64_t tess_run_disk_least(const tess_run *r);

/* ---- drive_room.c ------------------------------------------------------------------------------------------------ */

/* Refuses, with TESS_INVALID, a disk tier that the drives of a step that was chosen have no room for, with the setting
 * that would do. */
tess_status tess_run_tier_room(tess_run *r) TESS_NODISCARD;
/* Returns whether the drives have too little room for the model and the checkpoints, and says so in `text`. */
bool tess_run_lacks_room(const tess_run *r, bool resumes, char text[static 512]);
/* Refuses, with TESS_INVALID, a cap above the RAM of this machine where a step that was chosen takes more than that,
 * with the cap that would do; else a line says it. */
tess_status tess_run_ram_room(const tess_run *r, const tess_holds *plan) TESS_NODISCARD;
/* Refuses what RAM or the drives have no room for, and prints a line where the model or checkpoints have none. */
tess_status tess_run_room(tess_run *r, const tess_holds *plan, bool resumes) TESS_NODISCARD;

/* ---- feed.c, eval.c ---------------------------------------------------------------------------------------------- */

/* Feeds samples [first, first + n) of the endless run over the data to a step: to this rank its own, and of what lies
 * beyond the n-th targets that count for nothing. */
tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first,
                          int64_t n) TESS_NODISCARD;
typedef struct tess_feeding {
    bool plain; /* samples are those of the data, in their own order */
    bool other; /* of each the other sequence that tess_sample says, in its place */
} tess_feeding;
/* Feeds samples in another way. */
tess_status tess_run_feed_as(const tess_run *r, tess_step *step, const tess_data *data, tess_feeding as, uint64_t first,
                             int64_t n) TESS_NODISCARD;
/* Feeds the keys of random numbers that a network takes, of micro-batches from that sample on. */
tess_status tess_run_feed_keys(const tess_run *r, tess_step *step, uint64_t first) TESS_NODISCARD;
/* Feeds samples that are drawn, without padding. */
tess_status tess_run_feed_random(const tess_run *r, tess_step *step) TESS_NODISCARD;
/* Finds the mean loss over all targets of `data`, and, unless NULL, how many they are and the means of the numbers that
 * the network has beside it; the rest of a batch is masked. `step` is of eval. */
tess_status tess_run_evaluate(const tess_run *r, tess_step *step, const tess_data *data, double *loss, double *targets,
                              double *numbers) TESS_NODISCARD;
/* Finds the means of the numbers that the step which just ran has beside its loss. */
tess_status tess_run_numbers(const tess_step *step, double *numbers) TESS_NODISCARD;

#endif
