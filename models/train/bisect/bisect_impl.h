/* Where two runs part. A run's bits do not depend on where its tiles are, so two of one configuration have the same
 * ones, and the first tile that has others is where something is wrong:
 *
 *     settings.c      whether they are runs of one configuration
 *     runs.c          what they left: by their metrics and checkpoints they part between two steps
 *     digests_read.c  the digests of tiles that a run left, a step at a time
 *     differ.c        the first difference between those of two runs
 *     bisect.c        steps that have no digests are made once more; what is found is said
 */
#ifndef TESS_BISECT_IMPL_H
#define TESS_BISECT_IMPL_H
#include "models/train/train.h"
#include <jansson.h>

/* ---- runs.c ---- */

enum { TESS_SIDE_LOSS, TESS_SIDE_NORM, TESS_SIDE_VALUES };

/* What a run left. */
typedef struct tess_side {
    const char *dir;
    json_t *config;
    int ranks;
    int64_t steps;                     /* that it made, as its metrics say */
    double (*value)[TESS_SIDE_VALUES]; /* (steps + 1): of step k at [k]; NaN: it is not known */
} tess_side;

/* Reads it; TESS_INVALID where the directory is no run's output. Whatever it returns, tess_side_close frees it. */
tess_status tess_side_open(const char *dir, tess_side *s) TESS_NODISCARD;
void tess_side_close(tess_side *s);
/* Reads a metrics.jsonl into s->steps and s->value. */
tess_status tess_side_metrics(const char *path, tess_side *s) TESS_NODISCARD;
/* Returns a text of its configuration, "checkpoint.dir"; NULL: it has none. */
const char *tess_side_text(const tess_side *s, const char *key);
/* Returns whether a step has the same loss and the same gradient norm in both, as far as both know them. */
bool tess_sides_alike(const tess_side *a, const tess_side *b, int64_t step);

/* Where two runs part, as far as that can be seen without their tiles. */
typedef struct tess_stretch {
    int64_t from, to; /* the last step whose checkpoint both have, with the same bits (0: the beginning), and the first
                         step that is known to differ; to 0: none is */
    int64_t last;     /* the last step that both made */
    bool weights;     /* the same weights or states are known of the last step, or of a checkpoint behind `from` */
} tess_stretch;
void tess_sides_part(const tess_side *a, const tess_side *b, tess_stretch *out);

/* ---- settings.c ---- */

/* TESS_INVALID where they are no runs of one configuration, with what differs. */
tess_status tess_sides_settings(const tess_side *a, const tess_side *b) TESS_NODISCARD;
/* Returns whether the runs have as many ranks, with the same shares, and so the same tasks for updates and sums too. */
bool tess_sides_same_grid(const tess_side *a, const tess_side *b);

/* ---- digests_read.c ---- */

typedef struct tess_digest_use {
    uint32_t tile;
    unsigned long long bytes, found, left; /* 0: it was not read, not written */
    const char *role, *label;
} tess_digest_use;

typedef struct tess_digest_task {
    uint64_t number; /* in the rank's list */
    int64_t micro;   /* -1: it is the step's own */
    const char *codelet, *op;
    const tess_digest_use *use;
    size_t uses;
    uint64_t key; /* of what it is, wherever it runs; and which of those with this key it is, in order */
    uint32_t nth;
} tess_digest_task;

/* A step of a rank. */
typedef struct tess_digest_step {
    int64_t step;
    tess_digest_task *task;
    size_t tasks;
    uint32_t *sorted; /* (tasks): by key and place */
    tess_arena *arena;
} tess_digest_step;

/* The files of a run, all at the same step. */
typedef struct tess_digest_files {
    int ranks;
    FILE **f;
    char **path, *line;
    size_t room;
    int64_t next; /* step; 0: none */
} tess_digest_files;

/* Opens those of an output; where it has none there are no ranks. */
tess_status tess_digest_files_open(const char *output, tess_digest_files *d) TESS_NODISCARD;
void tess_digest_files_close(tess_digest_files *d);
/* Reads the next step of all ranks into step (ranks); the caller frees each. */
tess_status tess_digest_files_read(tess_digest_files *d, tess_digest_step *step) TESS_NODISCARD;
void tess_digest_step_free(tess_digest_step *s);
/* Returns the task of a step that is the same as this one of another rank or run; NULL: it has none. */
const tess_digest_task *tess_digest_find(const tess_digest_step *s, const tess_digest_task *t);

/* ---- differ.c ---- */

typedef enum tess_differs {
    TESS_DIFFERS_NOT,
    TESS_DIFFERS_LEFT,  /* a task found the same in all its tiles, and left another */
    TESS_DIFFERS_FOUND, /* it found another already */
    TESS_DIFFERS_REST   /* in one run a tile changed behind the task that wrote it */
} tess_differs;

typedef struct tess_difference {
    tess_differs kind;
    int64_t step, steps;   /* steps: that were compared */
    uint64_t tiles;        /* that were compared */
    int rank, ranks, side; /* a rank, and how many there are, of run `side`, 0 or 1 */
    uint64_t task, before; /* before: of TESS_DIFFERS_REST, the one that wrote it */
    int64_t micro;
    char codelet[64], op[160], label[160], role[32], writer[200];
    unsigned long long bytes, bits[2];
} tess_difference;

/* Compares the digests of two outputs, and finds where they part first; `same_grid` as above. */
tess_status tess_digests_differ(const char *const output[2], bool same_grid, tess_difference *out) TESS_NODISCARD;

#endif
