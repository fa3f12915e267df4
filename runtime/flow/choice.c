/* Choices: a task that computes which tiles others need tells the main thread, which lets those in without the tiles
 * that were not chosen. Only tiles whose home is the disk are left out: a choice that saves nothing is not waited for.
 */
#include "runtime/flow/flow.h"
#include "runtime/progress/progress.h"

static bool counts;

void tess_choices_count(bool count)
{
    counts = count;
}

void tess_choice_make(tess_choice *c, const int32_t *offset)
{
    for (int64_t k = 0; k < c->options; k++) c->chosen[k] = offset[k + 1] > offset[k];
    __atomic_store_n(&c->known, 1, __ATOMIC_RELEASE);
}

static bool known(const tess_choice *c)
{
    return __atomic_load_n(&c->known, __ATOMIC_ACQUIRE);
}

void tess_choice_reset(const tess_task *t)
{
    if (t->choice && t->option == TESS_MAKES_CHOICE) __atomic_store_n(&t->choice->known, 0, __ATOMIC_RELEASE);
}

static bool depends(const tess_use *u)
{
    return counts && (u->mode & TESS_IF_CHOSEN) && tess_tile_home(u->tile) == TESS_TIER_DISK;
}

/* The end of the task that chooses wakes who waits; after a failure no body does anything, and nothing is chosen. */
static bool known_or_failed(const void *choice)
{
    return known(choice) || tess_fault_stands;
}

bool tess_choice_known(const tess_task *t, bool wait)
{
    bool needs = false;
    if (!t->choice || t->option == TESS_MAKES_CHOICE) return true;
    for (unsigned i = 0; i < t->nuse; i++) needs |= depends(&t->use[i]);
    if (!needs || known_or_failed(t->choice)) return true;
    if (!wait) return false;
    tess_progress_lock();
    tess_progress_until(known_or_failed, t->choice, t->cl->name, "what a router chooses", "what a router chooses");
    tess_progress_unlock();
    return true;
}

bool tess_use_left_out(const tess_task *t, const tess_use *u)
{
    return t->choice && depends(u) && known(t->choice) && !t->choice->chosen[t->option];
}
