/* What training, evaluation and estimation set up alike: the model, its data and graph as a configuration says. */
#ifndef TESS_RUN_IMPL_H
#define TESS_RUN_IMPL_H
#include "data_impl.h"
#include "train.h"

typedef struct tess_run {
    const tess_config *c;
    int rank;
    tess_model *model;
    tess_tokenizer *tokenizer; /* NULL: bytes */
    tess_graph *g;
    tess_network net;
    tess_place_conf conf;
    tess_placement place;
    tess_gpu_placement gpu;
    bool messages_on_gpu;
    bool by_layer, late;      /* the layout of the step that was chosen */
    const char *disk;         /* directories of the disk tier; NULL: all tiles are in RAM */
    uint64_t ram, disk_bytes; /* ram: the cap; 0: none */
    uint64_t beside;          /* bytes of RAM that an evaluation's inputs and scratch have beside a step that trains */
    /* Micro-batches of a step on all ranks, sequences of one, of a step; tokens of a sequence: */
    int64_t micro, micro_batch, batch, length;
    int64_t evaluated; /* micro-batches of a step of eval */
} tess_run;

/* Opens the model and builds the graph of a rank of tess_ranks(), as a rule tess_rank(); needs no StarPU.
 * tess_run_close takes a zeroed or half-open one too. */
tess_status tess_run_open(const tess_config *c, int rank, tess_run *r) TESS_NODISCARD;
void tess_run_close(tess_run *r);
/* same.c: TESS_INVALID on all ranks, with the first setting or file in which one differs from rank 0. */
tess_status tess_run_same(const tess_run *r, const char *command) TESS_NODISCARD;
/* A data file of the configuration, `key` naming it in errors. */
tess_status tess_run_data(const tess_run *r, const char *key, const char *path, bool shuffle,
                          tess_data **data) TESS_NODISCARD;
/* Reads the caps and what the keys say of homes, before a step is placed: r->disk is NULL where there is no disk tier,
 * r->ram 0 where there is no cap. What fails here is wrong, where what fails later may just not fit. `made`, unless
 * NULL: the directory that the run would make before. */
/* The cap on RAM, 0: there is none; and the setting that it is: memory.cpu, or a variable of StarPU's that is less. */
uint64_t tess_run_cpu_cap(const tess_config *c, const char **where);
tess_status tess_run_tiers(tess_run *r, const char *made) TESS_NODISCARD;
/* The step that the configuration trains with, before anything is placed: micro-batches one after the other. */
tess_status tess_run_step(const tess_run *r, tess_step **step) TESS_NODISCARD;
/* Says which of its tiles leave the GPU, and which need no RAM, where a plan is made for it. */
tess_status tess_run_place_gpu(const tess_run *r, tess_step *step, tess_gpu_placement *out) TESS_NODISCARD;
/* The same, laid out and its tiles placed as the caps ask for; without a disk tier it only checks that all fits into
 * RAM. Before tess_run_start. */
tess_status tess_run_train_step(tess_run *r, tess_step **step) TESS_NODISCARD;
/* A memory.cpu in whole MiB that is more. */
uint64_t tess_run_cap(uint64_t bytes);
/* The least memory.cpu, in whole MiB, with which the run can be placed over a disk; 0: none is found. It is tried,
 * which takes the time of a plan, and `r` is then placed for that cap. */
uint64_t tess_run_least(tess_run *r);
/* estimate.c: TESS_INVALID, with the setting that would do, when the plan, of training or of evaluation, and the bytes
 * beside it need more than the cap or what is free. */
tess_status tess_run_fits(const tess_run *r, bool train, const tess_plan *plan, uint64_t beside) TESS_NODISCARD;
/* estimate.c: what this machine does a second in the tasks of a step; the same on all ranks, which all ask. */
tess_status tess_run_rates(const tess_run *r, tess_rates *rates) TESS_NODISCARD;
/* Starts StarPU within the caps. */
tess_status tess_run_start(const tess_run *r, bool profile) TESS_NODISCARD;
/* The mean loss over all samples of `data`, whose rest of a batch is masked; `step` is of eval. */
tess_status tess_run_evaluate(const tess_run *r, tess_step *step, const tess_data *data, double *loss) TESS_NODISCARD;
/* The forward pass over one micro-batch; `alone`, or beside a step that trains and was made before. */
tess_status tess_run_eval_step(tess_run *r, bool alone, tess_step **step) TESS_NODISCARD;
/* Samples [first, first + batch) of the endless run over the data. */
tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first) TESS_NODISCARD;

#endif
