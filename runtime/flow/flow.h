/* The two flows, blind to each other: RAM's says which tiles are in RAM, the GPU's which have places in its memory. The
 * list (list/) asks both and tells both what was submitted. */
#ifndef TESS_FLOW_H
#define TESS_FLOW_H
#include "runtime/flow/places.h"
#include "runtime/runtime.h"

/* ---- places.c: empty where nothing flows ---- */

extern tess_places tess_ram_places, tess_gpu_places;

/* ---- choice.c: tiles that not every task needs ---- */

/* Sets whether tiles whose home is the disk are left out from now on. */
void tess_choices_count(bool count);
/* Opens the choice of a task that makes one again. */
void tess_choice_reset(const tess_task *t);
/* Returns whether it is known which tiles the task needs; with `wait`, it is when this returns, or the run failed. */
bool tess_choice_known(const tess_task *t, bool wait);
/* Returns whether the task does without this tile. */
bool tess_use_left_out(const tess_task *t, const tess_use *u);

/* ---- ram_places.c ---- */

/* Begins a run whose moving tiles take at most `room` bytes of RAM at a time; 0: any number, though several ranks count
 * them all the same. The callback `leaves` is called for each eviction from RAM, after StarPU was told. */
void tess_ram_flow_start(uint64_t room, void (*leaves)(tess_tile *t));
/* Ends it. */
void tess_ram_flow_stop(void);
/* Returns whether bytes are counted. The functions below are called only where they are. */
bool tess_ram_flows(void);
/* Makes room for the tiles of task[k], the next of n, and prefetches ahead as far as room goes; returns how many tasks
 * of the list have room for their tiles. */
size_t tess_ram_flow_ahead(const tess_task *task, size_t n, size_t k);
/* Takes note that a task was submitted. */
void tess_ram_flow_submitted(const tess_task *task);
/* Lets a tile in that the main thread is about to acquire. */
void tess_ram_flow_map(tess_tile *t);
/* Takes note that the main thread has released it. */
void tess_ram_flow_unmap(tess_tile *t, int mode);

/* ---- gpu_places.c ---- */

/* Begins a run with a plan for `room` bytes of the GPU's memory; 0: there is no plan. */
tess_status tess_gpu_flow_start(uint64_t room) TESS_NODISCARD;
/* Ends it. */
void tess_gpu_flow_stop(void);
/* Returns whether places are given by plan. The functions below are called only where they are. */
bool tess_gpu_flows(void);
/* Makes what task[k] of n needs there ready, which is next, and looks ahead as far as places go. */
tess_status tess_gpu_flow_ahead(const tess_task *task, size_t n, size_t k) TESS_NODISCARD;
/* Returns where StarPU runs the task. */
uint32_t tess_gpu_flow_where(const tess_task *t);
/* Takes note that a task was submitted. */
void tess_gpu_flow_submitted(const tess_task *task);
/* Takes note that the main thread has released a tile in RAM. */
void tess_gpu_flow_unmap(tess_tile *t);
/* Takes note that a tile leaves RAM for its home, also where there is no plan. */
void tess_gpu_flow_leaves_ram(tess_tile *t);
#endif
