/* Messages: tasks that send tiles to other ranks and take theirs, and what carries them. */
#ifndef TESS_MESSAGES_IMPL_H
#define TESS_MESSAGES_IMPL_H
#include "runtime.h"

/* ---- message.c ---- */

/* Starts the thread that carries; with `by_mpi` NCCL is not asked. All ranks call it. */
void tess_messages_start(bool by_mpi);
/* Ends it, when nothing is under way. */
void tess_messages_stop(void);
/* Submits a message; its end is counted as a task's. */
void tess_message_submit(const tess_task *t);
/* Says whether messages take tiles in a GPU's memory. */
bool tess_messages_on_gpu(void);

/* ---- nccl.c ---- */

/* Says why NCCL cannot carry, NULL where it can. All ranks call it. */
const char *tess_nccl_hindrance(void);
/* Says whether it carries from now on, and from the memory of which node; `off`: it shall not. All ranks call it. */
bool tess_nccl_start(bool off, unsigned *node);
/* Ends that. */
void tess_nccl_stop(void);
/* Returns its name and version. */
const char *tess_nccl_name(void);
enum { TESS_NCCL_GROUPS = 64 }; /* messages that began and did not end, at most */
/* Prepares the thread that carries. */
void tess_nccl_enter(void);
/* Begins a message whose parts are at `data`. */
void tess_nccl_begin(const tess_message_arg *m, void *const *data);
/* Says whether the first message that did not end has ended. */
bool tess_nccl_ended(const tess_message_arg *m);
#endif
