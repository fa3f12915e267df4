/* emulated_cuda: GPUs for StarPU where there are none. What emulated_cuda.c and emulated_streams.c, which are the two
 * halves of it, know of each other, and what the runtime calls in the place of a launch. */
#ifndef TESS_TESTS_EMULATED_CUDA_H
#define TESS_TESTS_EMULATED_CUDA_H
#include "runtime/runtime.h"
#include <cuda_runtime_api.h>

enum { EMULATED_DEVICES = 8 };

/* Puts a body on w->stream, as a launch does: it runs there when those before it have ended, and no sooner. */
void tess_emulated_run(tess_body body, const tess_work *w);
/* Lets a CPU body's time go by where nothing is computed (emulated_dry.c); false: it is to run. */
bool tess_emulated_cpu(const tess_work *w);

/* ---- emulated_cuda.c: devices and memory ---- */

/* The calling thread's device, whose context is there from then on. */
int emulated_device(void);
/* Ends the program: CUDA would have, or would have been silently wrong. */
_Noreturn void emulated_broken(const char *what, ...) __attribute__((format(printf, 1, 2)));
/* Returns whether the bytes are all in one piece that the device gave out. */
bool emulated_is_on(int device, const void *p, size_t bytes);
/* Returns whether a copy may take its time with the bytes: a device's, or pinned ones. */
bool emulated_is_pinned(const void *p, size_t bytes);
/* Returns whether this call of that name, or this use of the device, is one that a fault was asked for. */
bool emulated_fault(const char *what);
/* Counts what the report tells. */
struct emulated_counts {
    long copies, pageable, bodies, pins; /* bodies: that ran, or are to */
    long launches, graphs, set;          /* of bodies one by one, of graphs; arguments of their nodes that were set */
};
extern struct emulated_counts emulated_counts;

/* ---- emulated_streams.c ---- */

/* Waits for all streams of a device. */
void emulated_drain(int device);
/* Makes handles of its streams and events dead. */
void emulated_forget(int device);
/* Puts something on a stream that is through when ended(of) says so, which is asked until then; other streams go on.
 * Where time alone passes it is told when the stream is free for it, and tells when it will have ended. */
void emulated_until(cudaStream_t stream, bool (*ended)(void *of, double *until), void *of);
/* Returns whether the calling thread captures a stream; what it calls now cannot be a part of that, and spoils it. */
bool emulated_captures(void);
/* Draws a number below n; of one sequence for a seed. */
unsigned emulated_draw(unsigned n);

/* ---- emulated_bits.c ---- */

/* Runs the codelet's body on the device's thread; where it is asked for, what it writes has bits of its own. */
void emulated_run_body(const tess_codelet *cl, tess_body body, const tess_work *w);
/* Returns what is to run before a task's bodies: NULL: nothing. */
tess_body emulated_before_bodies(void);

/* ---- emulated_dry.c: time alone; but for the first these are called only where that is so ---- */

bool emulated_dry(void);
/* Returns the RAM of the machine; 0: it is this one. */
uint64_t emulated_dry_ram(void);
/* Returns the bytes of each device. */
size_t emulated_dry_bytes(void);
/* Returns when a copy ends, or a body, that begins no sooner than `from`. */
double emulated_dry_copy(double from, size_t bytes, bool back);
double emulated_dry_body(double from, const tess_work *w);
/* Returns the seconds of a message of so many bytes each way on the links of a GPU to others of its machine. */
double emulated_dry_message(size_t sent, size_t got);
/* Returns now, on a clock that all processes of this machine have. */
double emulated_dry_now(void);
/* Lets the time go by in which RAM is touched and pinned. */
void emulated_dry_pin(size_t bytes);
/* Returns the time in seconds; where something is computed too. */
double emulated_dry_now(void);
/* Returns whether that moment is past, or waits for it. */
bool emulated_dry_past(double when);
void emulated_dry_wait(double when);
/* Rests where something was asked for that has not come. */
void emulated_dry_rest(void);
#endif
