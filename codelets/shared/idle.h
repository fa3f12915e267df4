/* idle: rows of a task that change nothing, by blocks (graph/lower/idle_rows.c says which they are). A body may leave
 * zeros where it would compute them, and where they are summed over it may leave them out: what is added there is
 * zeros. */
#ifndef TESS_IDLE_H
#define TESS_IDLE_H
#include "codelets/shared/vector.h"

enum { TESS_IDLE_ROWS = 64, TESS_IDLE_MOST = 256 }; /* rows of a block, fewer in the last; blocks of a task at most */

typedef struct tess_idle {
    int64_t rows, kept; /* in all; in blocks that are not idle, which lie at these places: */
    int64_t blocks;
    bool idle[TESS_IDLE_MOST];
    uint8_t at[TESS_IDLE_MOST];
} tess_idle;

/* Returns `idle`, from row `first` of the task's tiles on; NULL: no block of them is. */
TESS_INLINE const tess_idle *tess_idle_find(const tess_work *w, int64_t first, int64_t rows, tess_idle *idle)
{
    const tess_task *t = w->task;
    if (!t || !t->used || rows > TESS_IDLE_ROWS * TESS_IDLE_MOST) return NULL;
    *idle = (tess_idle){.rows = rows};
    const int32_t *of = t->used + w->env->used_at;
    int64_t kept = 0;
    for (int64_t r = 0; r < rows; r += TESS_IDLE_ROWS, idle->blocks++) {
        const int64_t end = least(r + TESS_IDLE_ROWS, rows);
        bool used = false;
        const int64_t from = t->place + first + r, to = t->place + first + end;
        for (int64_t at = from; at < to && !used; at = (at / t->sequence + 1) * t->sequence)
            used = at % t->sequence < of[at / t->sequence];
        idle->idle[idle->blocks] = !used;
        if (used) idle->at[kept++] = (uint8_t)idle->blocks, idle->kept += end - r;
    }
    return idle->kept < rows ? idle : NULL;
}
/* Of rows [*first, *end) leaves out what is idle at both ends; nothing is left where all are. */
TESS_INLINE void tess_idle_trim(const tess_idle *idle, int64_t *first, int64_t *end)
{
    while (idle && *first < *end && idle->idle[*first / TESS_IDLE_ROWS])
        *first = least(*end, (*first / TESS_IDLE_ROWS + 1) * TESS_IDLE_ROWS);
    while (idle && *first < *end && idle->idle[(*end - 1) / TESS_IDLE_ROWS])
        *end = (*end - 1) / TESS_IDLE_ROWS * TESS_IDLE_ROWS;
}
/* Returns the row that is the k-th of those in blocks that are not idle. */
TESS_INLINE int64_t tess_idle_row(const tess_idle *idle, int64_t k)
{
    return idle ? idle->at[k / TESS_IDLE_ROWS] * TESS_IDLE_ROWS + k % TESS_IDLE_ROWS : k;
}

#endif
