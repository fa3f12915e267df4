/* What the main thread waits for, wherever that is, in words: for the line that is said where it waits for ever. */
#include "runtime/base/base.h"
#include "runtime/progress/progress.h"
#include <stdatomic.h>

static struct {
    const char *_Atomic who, *_Atomic what; /* who NULL: it does not wait */
    atomic_uint begun;
} wait;

void tess_wait_begin(const char *who, const char *what)
{
    wait.what = what;
    wait.who = who;
    wait.begun++;
}

void tess_wait_end(void)
{
    wait.who = NULL;
}

bool tess_wait_for(const char **who, const char **what)
{
    *what = wait.what;
    *who = wait.who;
    if (!*who && !tess_bar_stands() && tess_ranks_turns() % 2) *who = "the main thread", *what = "the other ranks";
    return *who != NULL;
}

unsigned tess_waits(void)
{
    return wait.begun + tess_ranks_turns();
}
