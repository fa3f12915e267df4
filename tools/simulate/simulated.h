/* A machine that is not here. Built with a StarPU over SimGrid, the runtime is the same but for the files of
 * simulated/, which stand in the place of those that ask this machine for something: what time it is, how long a body
 * takes, how many cores there are, a drive, a sleep.
 *
 *     tess_simulated_set(&machine);      // before anything else is asked
 *     TESS_TRY(tess_start(&m));          // and all the rest as on a machine that is here
 *
 * Whatever the runtime does between two calls of StarPU takes no time. Tiles have addresses and no memory: nothing
 * touches them, and the kernel gives pages to what is touched. */
#ifndef TESS_SIMULATED_H
#define TESS_SIMULATED_H
#include "models/train/rates/efficiency.h"
#include "runtime/runtime.h"
#include <stdatomic.h>

/* The share of a machine's rates that a codelet reaches. */
typedef struct tess_simulated_share {
    char codelet[64]; /* "linear_forward f32" */
    double share;
} tess_simulated_share;

/* The same of its tasks with so much work. */
typedef struct tess_simulated_point {
    int of;                           /* which codelet */
    double flops, bytes, rows, share; /* flops with those that are lost */
} tess_simulated_point;

enum { TESS_SIMULATED_SHARES = 128, TESS_SIMULATED_POINTS = 1024, TESS_SIMULATED_GPUS = 16 };

/* The shares that codelets reach of the rates of cores, or of a GPU. */
typedef struct tess_simulated_shares {
    double products, copies; /* of codelets with flops and without that are none of: */
    tess_simulated_share codelet[TESS_SIMULATED_SHARES];
    int codelets;
    tess_simulated_point point[TESS_SIMULATED_POINTS];
    int points;
} tess_simulated_shares;

/* Codelets of a step that the machine's file has no share of. */
typedef struct tess_simulated_lacks {
    struct {
        char name[64];
        bool multiplies; /* so it takes that of products, else that of copies */
    } codelet[TESS_SIMULATED_SHARES];
    int codelets;
} tess_simulated_lacks;

/* GPUs, all alike; rates are those of one. */
typedef struct tess_simulated_gpus {
    int count; /* 0: there is none */
    char name[64];
    uint64_t bytes; /* of its memory */
    double matrix_rate[2],
        copy_rate;       /* [TESS_F32], [TESS_BF16], which is fp16's too; of its memory, read and written */
    double task_seconds; /* that a task takes of it beside its body, */
    double tile_seconds; /* more for each of its tiles, which StarPU lets go of one by one, */
    double step_seconds; /* and a step beside its tasks */
    double pin_rate;     /* at which RAM is made ready for it, touched and pinned; 0: not said */
    tess_simulated_shares shares;
    double host_rate, host_latency; /* of the link to RAM, each way */
    int host_gpus;                  /* GPUs that share such a link */
    double peer_rate, peer_latency; /* between two of them, each way; 0: they have the link to RAM alone */
    bool pairs;                     /* some have one: */
    bool pair[TESS_SIMULATED_GPUS][TESS_SIMULATED_GPUS];
} tess_simulated_gpus;

/* The network between nodes: a rate and a latency for each node's way into it, and what it is made of. */
typedef struct tess_simulated_net {
    bool there;
    double rate, latency; /* bytes a second each way, seconds */
    int rails;            /* links of a node, among which its GPUs and that rate are divided evenly */
    char topology[16]; /* "flat": each node's link, and nothing else that could be narrow; "fat tree", "dragonfly": */
    int below, above;  /* nodes of a switch; links from it to those that connect all, or between two groups; else 0 */
    int group;         /* switches of a dragonfly's group; else 0 */
} tess_simulated_net;

/* Flops and bytes a second. */
typedef struct tess_simulated {
    char name[64];
    int cores;
    uint64_t ram_bytes;
    double matrix_rate[2], copy_rate; /* of all cores at a time; [TESS_F32], [TESS_BF16] */
    bool has_drive;                   /* which is: */
    double drive_bytes;               /* its size; 0: not said */
    tess_drive drive;                 /* the slowest link of what lies on disk; */
    double drive_share;               /* of its rates, which it reaches while cores are busy */
    double task_seconds;              /* that a task takes of its core beside its body */
    double message_rate;              /* of what a core carries between ranks of a node; 0: it takes nothing of cores */
    tess_efficiency reached[2];       /* in plans, by dtype */
    tess_simulated_shares shares;
    tess_simulated_gpus gpus;
    int nodes;                   /* all of the above describes one of them */
    tess_simulated_net net;      /* between them */
    tess_simulated_lacks *lacks; /* NULL: they are not kept */
} tess_simulated;

/* Returns the seconds of a body that reaches all of its rates, on one core while the others are busy too. */
double tess_simulated_bound(const tess_simulated *m, tess_dtype t, tess_cost cost);
/* Returns the share of its rates that a task of this codelet, with so much work, reaches on a core: that of tasks with
 * the same work, else between those of the codelet's other tasks, else the codelet's, else that of its like. */
double tess_simulated_share_of(const tess_simulated_shares *s, const char *codelet, tess_cost cost);
/* The same of a GPU, which is no faster than its memory either. */
double tess_simulated_gpu_bound(const tess_simulated_gpus *g, tess_dtype t, tess_cost cost);
/* Returns the seconds of a task's body on a GPU, or on one core while the others are busy too. */
double tess_simulated_body_seconds(const tess_simulated *m, const tess_task *t, bool gpu);
/* Prints whether shares were measured, and of codelets that were not what stands in their place. */
void tess_simulated_say_rates(const tess_simulated *m, FILE *out);

/* Which ranks are simulated. One rank is there for all that have the same to do: the first of every `data` places of
 * data parallelism, where a place is `model` ranks, and of every `tensor` ranks in a row (simulated_folded.c). */
typedef struct tess_fold {
    int model, data, tensor;
} tess_fold;
/* Returns the one that does what this one does. */
static inline int tess_fold_of(tess_fold f, int rank)
{
    const int place = rank / f.model;
    return (place - place % f.data) * f.model + rank % f.model / f.tensor * f.tensor;
}
/* Returns how many ranks each that is there stands for, itself included. */
static inline int tess_fold_ranks(tess_fold f)
{
    return f.data * f.tensor;
}
/* Beside the nodes of a flat network that has such ranks there is one more for each, where those would be that have no
 * node: behind a link that is as busy as its own. */
static inline bool tess_fold_mirrors(tess_fold f, const tess_simulated_net *n)
{
    return tess_fold_ranks(f) > 1 && !n->below;
}
/* A simulation: tessera simulate writes it to a file, which tessera-simulator reads. */
typedef struct tess_simulation {
    tess_simulated machine;
    int ranks_here; /* of each node */
    int steps;      /* behind the first one; 0: none is made, and one is estimated */
    bool must_fit;  /* an estimate's: what does not is an error */
    tess_fold fold;
} tess_simulation;

/* Returns whether two GPUs of a node have a link between them; others have those to RAM alone. */
bool tess_simulated_peers(const tess_simulated_gpus *g, int from, int to);

/* ---- in a program that simulates alone ---- */

/* How the program that simulates ends where all threads that are left wait for ever. */
enum { TESS_STANDS_STILL = 120 };

/* What messages go over, by where their two ends are. */
typedef enum tess_over {
    TESS_OVER_RAM,     /* the RAM of a node */
    TESS_OVER_HOST,    /* the links of two GPUs to RAM */
    TESS_OVER_PEER,    /* the link between two GPUs */
    TESS_OVER_NETWORK, /* that between nodes */
    TESS_OVER_COUNT
} tess_over;

/* The bytes that a rank has sent. */
typedef struct tess_sent {
    uint64_t over[TESS_OVER_COUNT];
    double rail[TESS_SIMULATED_GPUS]; /* of those over the network, by each link of its node */
} tess_sent;

/* What the ranks of a simulation share. They are threads of one process, each with variables of its own
 * (tools/simulate/program/simulator.c), so this lies outside of all of them. Whoever starts them sets what is simulated
 * and how many ranks there are, and has zeros in all else. */
typedef struct tess_cluster {
    const tess_simulation *of;
    int ranks;
    atomic_int said;               /* why they end */
    tess_sent *sent;               /* of each rank */
    struct tess_meeting *meetings; /* together.c's */
    struct tess_network *network;  /* simulated_network.c's */
} tess_cluster;
/* Sets which of them this is; it is called before anything else. */
void tess_simulated_join(tess_cluster *cluster, int rank);
/* Sets which machine it is, which is copied. */
void tess_simulated_set(const tess_simulated *m);
/* Returns it. */
const tess_simulated *tess_simulated_machine(void);
/* Returns the seconds of a task on the GPU, or on a core; of a message those of its bytes on their links. */
double tess_simulated_seconds(const tess_task *t, bool gpu);
double tess_simulated_message_seconds(const tess_message_arg *m);
/* Chooses for a task that chooses. */
void tess_simulated_choose(const tess_task *t);
#endif
