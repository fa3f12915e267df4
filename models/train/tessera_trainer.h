/* tessera.h: the run of a configuration that the program steps itself, with arrays of its own in the place of
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
#ifndef TESSERA_TRAINER_H
#define TESSERA_TRAINER_H
#include "models/train/tessera_train.h"

#ifdef __cplusplus
extern "C" {
#endif

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
