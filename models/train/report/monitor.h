/* What DeepSpeed's "tensorboard" and "csv_monitor" ask for: each step's values in files for other programs, over the
 * samples that the run has seen. Names and places are DeepSpeed's; docs/deepspeed.md lists them. */
#ifndef TESS_MONITOR_H
#define TESS_MONITOR_H
#include "models/train/config/config.h"
#include "models/train/report/report.h"

typedef struct tess_monitor tess_monitor;

/* Makes the directories that the configuration asks for; where one cannot be made or written to, TESS_INVALID names the
 * key. Of rank 0 alone, before what another run left is touched. */
tess_status tess_monitor_check(const tess_config *c) TESS_NODISCARD;
/* Opens what the configuration asks for in these directories; NULL where that is nothing. `resumed`: events of later
 * samples, which an interrupted run left, count no more. */
tess_status tess_monitor_open(const tess_config *c, bool resumed, tess_monitor **monitor) TESS_NODISCARD;
/* Writes a step. What goes wrong is said once, and the run goes on. */
void tess_monitor_step(tess_monitor *m, const tess_step_report *s);
/* Closes it; NULL is nothing. */
void tess_monitor_close(tess_monitor *m);

#endif
