/* OUTPUT/plan.json: what is known of a run before its first step, and is in no other file that it leaves: the machine,
 * the model's size, each tier's cap, and what the plan expects of a step. report.html shows it beside what was
 * measured. */
#ifndef TESS_PLAN_FILE_H
#define TESS_PLAN_FILE_H
#include "models/train/run/run.h"

/* Returns what stands in it, a json_t of the caller's. */
struct json_t *tess_plan_facts(const tess_run *r, const tess_step *step, const tess_holds *plan, double yardstick);
/* Writes it, of rank 0; what goes wrong is said in a line. `yardstick`: the matrix rate of all ranks. */
void tess_plan_file_write(const tess_run *r, const tess_step *step, const tess_holds *plan, double yardstick);

#endif
