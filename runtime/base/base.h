/* What the rooms' other folders tell base: which of the ranks this process is, and how all of them end. */
#ifndef TESS_BASE_H
#define TESS_BASE_H
#include "runtime/runtime.h"
#include <stdatomic.h>

/* Sets what tess_rank and tess_ranks return. */
void tess_self_is(int rank, int ranks);
/* Sets the word that says whether the end was said, which processes may share; NULL: this process's own. */
void tess_self_shares(atomic_int *said);
/* Sets a callback that ends the other ranks too and does not return, unless there are none; NULL: there is none. */
void tess_self_ends_by(void (*end_all)(int status));

/* What stands in the terminal's row, as bar.c says; self.c takes it away for a process's last words, behind which
 * nothing stands any more. */
enum { TESS_ROW_EMPTY, TESS_ROW_BAR, TESS_ROW_LINE, TESS_ROW_LAST };
extern atomic_int tess_row;

/* Returns whether a bar has begun and not ended, on a terminal or not: whoever has much to do alone has one. */
bool tess_bar_stands(void);
/* Returns how many waits for other ranks, in what all call together, have begun or ended: it is odd while one goes on.
 * Any thread may call it. */
unsigned tess_ranks_turns(void);
#endif
