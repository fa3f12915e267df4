/* What goes wrong, or another way than by itself, on purpose: for tests; not installed. */
#ifndef TESS_FAULT_HOOKS_H
#define TESS_FAULT_HOOKS_H
#include "runtime/runtime.h"

/* Of the pieces that the disk tier reads or writes, counted from 1; 0: none. */
typedef struct tess_fault_hooks {
    uint64_t fail_read_at, fail_write_at; /* the n-th fails with EIO */
    uint64_t flip_bit_at;                 /* a bit of the n-th piece read is turned */
    uint64_t stall_read_at;               /* the n-th piece read never comes, nor does anything after it */
} tess_fault_hooks;

/* Sets what goes wrong in the run that the next tess_start begins, and in no other. */
void tess_fault_hooks_set(const tess_fault_hooks *hooks);

/* Lets who runs a body leave its parts to others for a while, until tess_stop. */
void tess_parts_make_shy(bool shy);
/* Returns how many parts others took since tess_start. */
uint64_t tess_parts_taken(void);
/* Returns how many bodies with shy owners were never cut into as many parts as their codelets say, or were cut while
 * those say nothing. */
uint64_t tess_parts_unsaid(void);
#endif
