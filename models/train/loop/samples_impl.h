/* Texts that a model goes on with while it is trained: eval.samples of them, each from the beginning of one of the
 * first samples of data.valid, always by the likeliest token. All ranks make the same ones.
 *
 *     TESS_TRY(tess_samples_new(&run, valid, &s));           // behind the run's steps, before it starts
 *     TESS_TRY(tess_samples_make(s));                        // behind an evaluation
 *     puts(tess_samples_text(s));                            // of rank 0
 *     tess_samples_free(s);
 */
#ifndef TESS_SAMPLES_IMPL_H
#define TESS_SAMPLES_IMPL_H
#include "models/train/run/run.h"

typedef struct tess_samples tess_samples;

/* Returns TESS_INVALID where the model goes on with no text, or ranks share the model or sequences. */
tess_status tess_samples_check(const tess_run *r) TESS_NODISCARD;
/* Reads the prompts, and plans the step that goes on with them beside those of the run; NULL where eval.samples is 0.
 */
tess_status tess_samples_new(tess_run *r, const tess_data *valid, tess_samples **s) TESS_NODISCARD;
/* Goes on with all of them. All ranks call it. */
tess_status tess_samples_make(tess_samples *s) TESS_NODISCARD;
/* Returns what was made: a line of JSON each, {"prompt", "text"}. */
const char *tess_samples_text(const tess_samples *s);
/* Frees them; NULL is nothing. */
void tess_samples_free(tess_samples *s);

#endif
