/* What a teacher says of the places of data.train, where distill.teacher names one.
 *
 *     TESS_TRY(tess_teacher_find(&run, train, resumes, &teacher)); // before anything of the run is started
 *     ... the run feeds it with its samples ...
 *     tess_teacher_close(&run, teacher);
 *
 * It is OUTPUT/teacher.safetensors, which is made once, before the run begins: the teacher is a run of its own under
 * the same caps, and is gone when the model comes. A run that goes on reads the file. */
#ifndef TESS_TEACHER_IMPL_H
#define TESS_TEACHER_IMPL_H
#include "models/files/safetensors/safetensors.h"
#include "models/train/run/run.h"

/* Scores all places of the data, or finds that done by the run that is resumed; *file: NULL without a teacher. All
 * ranks call it. */
tess_status tess_teacher_find(tess_run *r, const tess_data *train, bool resumes,
                              tess_safetensors **file) TESS_NODISCARD;
/* Closes the file; NULL is nothing. */
void tess_teacher_close(tess_run *r, tess_safetensors *file);

#endif
