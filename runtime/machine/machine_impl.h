/* What machine.c, which starts and stops StarPU, needs done around it. */
#ifndef TESS_MACHINE_IMPL_H
#define TESS_MACHINE_IMPL_H
#include "runtime/runtime.h"

/* ---- environment.c: StarPU's variables ---- */

/* Refuses what StarPU would abort for, before any of its functions is called. */
tess_status tess_environment_check(void) TESS_NODISCARD;
/* Sets what StarPU is started with. */
tess_status tess_environment_enter(const tess_machine *m, const tess_rooms *rooms) TESS_NODISCARD;
/* Sets the environment as it was. */
void tess_environment_leave(void);
/* Sets one of them until then. */
void tess_environment_set(const char *name, const char *value);
/* Finds what carries messages: what was asked for, else what the user's variable names. */
tess_status tess_environment_carrier(tess_carriers asked, tess_carriers *by) TESS_NODISCARD;

/* ---- policy.c ---- */

struct starpu_conf;
/* Finds the policy that the user's variables name, or else ours. */
tess_status tess_policy_choose(const char *ours, struct starpu_conf *conf) TESS_NODISCARD;

/* ---- perfmodel.c ---- */

/* Removes performance models that were not written to their end, before StarPU reads them. */
void tess_perfmodels_check(void);
/* Returns the name that StarPU's files of this machine, or of this process's part of it, have; free() it. */
char *tess_perfmodels_host(void);
/* Waits while another process makes StarPU's first start on this machine; returns what holds up others where this one
 * makes it, for tess_perfmodels_unlock. */
int tess_perfmodels_lock(void);
/* Lets others start. */
void tess_perfmodels_unlock(int fd);
#endif
