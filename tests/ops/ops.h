/* One description an op, tests/ops/NAME.c, which all that is checked of an op is made of:
 *
 *     OP_TASKS(twice)                                            // calls of its codelets
 *     {
 *         OP_EACH(t) OP_EACH_LENGTH(n)
 *         {
 *             double *x = op_in("x", n, t, 3);                   // drawn, of this size; what is stored, in double
 *             double *y = op_out("y", n, t, false);              // to be set to what is expected
 *             for (int64_t i = 0; i < n; i++) y[i] = 2 * x[i];
 *             op_run(&tess_twice_forward[t], &(tess_map_arg){.n = n});
 *         }
 *     }
 *     OP_NET(twice)                                              // a block of a network that has it
 *     {
 *         return tess_twice(x);
 *     }
 *
 * Buffers are in the order of the codelet's. Who links the descriptions says what a call is for: test_ops.c compares
 * the CPU's body with what is expected, and with the same body compiled without a choice of vectors, bit by bit;
 * gpu/test_bodies.c compares the CUDA body with the CPU's; bench/bench_ops.c measures it; graph/test_op_nets.c
 * builds the networks. graph/ops.def lists the descriptions. */
#ifndef TESS_TESTS_OPS_H
#define TESS_TESTS_OPS_H
#include "codelets/codelets.h"
#include "graph/graph.h"
#include "tests/check.h"

#ifdef TESS_TEST_NETS
#define OP_TASKS(name) static inline __attribute__((unused)) void op_tasks_##name(void)
#define OP_NET(name)                                                                                                   \
    tess_tensor *op_net_##name(tess_graph *g, tess_tensor *x, int layer);                                              \
    tess_tensor *op_net_##name(__attribute__((unused)) tess_graph *g, tess_tensor *x, __attribute__((unused)) int layer)
#else
#define OP_TASKS(name)                                                                                                 \
    void op_tasks_##name(void);                                                                                        \
    void op_tasks_##name(void)
#define OP_NET(name)                                                                                                   \
    static inline __attribute__((unused))                                                                              \
    tess_tensor *op_net_##name(__attribute__((unused)) tess_graph *g, __attribute__((unused)) tess_tensor *x,          \
                               __attribute__((unused)) int layer)
#endif

enum { OP_DOUBLE = TESS_DTYPE_COUNT, OP_BITS }; /* types of elements after those of tess_dtype; both of 8 bytes */
enum op_kind { OP_IN, OP_OUT, OP_SCRATCH };

/* A buffer of the call that is put together. */
struct op_buffer {
    void *data;
    double *want; /* of an output; NULL: nothing is expected of it but that all bodies agree */
    int64_t n;
    int type;
    enum op_kind kind;
    bool acc;   /* the task adds to it */
    bool stays; /* an output of which no byte may be written */
    const char *name;
    double within;            /* the distance from `want` that is none; 0: what the type allows */
    void (*form)(void *data); /* brings to one form what bodies may say in several; NULL: it has one */
};
enum { OP_BUFFERS = 320 };
extern struct op_buffer op_buffer[OP_BUFFERS];
extern int op_buffers;
extern tess_env op_env;
extern uint64_t op_dice;
extern char op_failure[256]; /* what a body said through tess_work_fail */
extern char op_blame[256];   /* what it is expected to say */
extern size_t op_room;       /* of a GPU's scratch, what the next call has beside that of products; 0: a worker's */
extern int op_saves;    /* the next call has the last one's bits on a GPU, and launches so many fewer; -1: others */
extern bool op_speed;   /* one call of each kind, at the sizes of GPT-2 */
extern bool op_expects; /* somebody looks at what is expected, which may take long to find */

/* Draws an input and returns its elements. */
double *op_in(const char *name, int64_t n, int type, double size);
/* The same of a matrix, which may be quantized: what its codes stand for. */
double *op_matrix(const char *name, int64_t n, tess_dtype t, tess_dtype as, double size);
/* As op_in does, but returns the buffer. */
void *op_drawn(const char *name, int64_t n, int type, double size);
/* Stores an input's elements, and rounds `x` to what is stored. */
void op_given(const char *name, int64_t n, int type, double *x);
/* Returns the elements that are expected of an output: with `acc` those that are there before, which the task adds to,
 * else zeros, and the output is poisoned. */
double *op_out(const char *name, int64_t n, int type, bool acc);
/* Lets the output that was added last be so far from what is expected, whatever its type allows. */
void op_within(double distance);
/* Bodies may say the output that was added last in several ways, which `form` makes one. */
void op_of_form(void (*form)(void *data));
/* No output so far may be written. */
void op_stay(void);
/* The body is expected to fail with this text; of others no failure is. */
void op_fails(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Adds an output of which nothing is expected, poisoned or, with `acc`, drawn; returns it. */
void *op_any(const char *name, int64_t n, int type, bool acc);
/* Adds an input and returns it, to be filled. */
void *op_raw(const char *name, int64_t n, int type);
/* Draws an input that counts from 0 to less than `below`. */
int32_t *op_indices(const char *name, int64_t n, int64_t below);
void op_scratch(int64_t bytes);
/* Returns zeros that live until the end of the call. */
double *op_zeros(int64_t n);
/* Returns ones that do. */
double *op_ones(int64_t n);
/* Returns the sum of n products of elements that lie so far apart. */
double op_dot(const double *x, int64_t x_apart, const double *y, int64_t y_apart, int64_t n);
/* Draws what is about normal, of this size. */
void op_draw(void *to, int64_t n, int type, double size);
double op_roll(void); /* uniform in (-1, 1) */
/* Calls the codelet with the buffers so far, and forgets them. */
void op_run(tess_codelet *cl, const void *arg);
/* Forgets them without a call. */
void op_forget(void);

size_t op_size_of(int type);
double op_value(const void *p, int64_t i, int type);
/* Stores one element. */
void op_put(void *p, int64_t i, int type, double x);
/* Relative distance in norm of an output and what is expected. */
double op_distance(const struct op_buffer *b, const void *got);
/* Returns whether no element is off by more than the smallest number of fp16, where it has few bits. */
bool op_tiny(const struct op_buffer *b, const void *got);

int64_t op_length(int k); /* the k-th to be tried; 0: there is none */
#define OP_EACH(t)       for (tess_dtype t = TESS_F32; t <= TESS_F16; t++)
#define OP_EACH_ACC(acc) for (int acc = op_speed; acc < 2; acc++)
#define OP_EACH_LENGTH(n)                                                                                              \
    for (int at_ = 0; op_length(at_); at_++)                                                                           \
        for (int64_t n = op_length(at_), once_ = 1; once_; once_ = 0)

/* An elementwise op y = f(x), whose slope is found by a difference: far from 0, at both signs, and where x is not a
 * number too. */
void op_map(tess_codelet *forward, tess_codelet *backward, int kind, double (*f)(double));

/* A parameter of the network's block. */
tess_tensor *op_param(tess_graph *g, int layer, const char *name, int64_t rows, int64_t columns, tess_init init);
#define OP_PARAM(name, rows, columns, init) op_param(g, layer, name, rows, columns, init)

#endif
