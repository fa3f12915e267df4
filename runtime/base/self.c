/* This process as one of the ranks: its number, and its end. Of all that is wrong at an end a person needs one line,
 * the first. So there is a word that says whether it was said, which the ranks of a machine share (ranks/watch.c). */
#include "runtime/base/base.h"
#include "runtime/runtime_base.h"
#include <string.h>
#include <unistd.h>

static struct {
    int rank, ranks;
    atomic_int own, *said;
    char left[600];
    void (*end_all)(int status);
} self = {.ranks = 1};

void tess_self_is(int rank, int ranks)
{
    self.rank = rank;
    self.ranks = ranks;
}

void tess_self_shares(atomic_int *said)
{
    self.said = said;
}

void tess_self_ends_by(void (*end_all)(int status))
{
    self.end_all = end_all;
}

int tess_rank(void)
{
    return self.rank;
}

int tess_ranks(void)
{
    return self.ranks;
}

bool tess_watch_speak(void)
{
    return !atomic_exchange(self.said ? self.said : &self.own, 1);
}

bool tess_watch_spoken(void)
{
    return atomic_load(self.said ? self.said : &self.own);
}

void tess_ranks_abort(int status)
{
    tess_watch_speak(); /* no other rank need say that this one died */
    if (self.end_all) self.end_all(status);
    fflush(stdout);
    _exit(status);
}

void tess_dies_leaving(const char *text)
{
    snprintf(self.left, sizeof self.left, "%s", text);
}

void tess_die(const char *text)
{
    char rank[32] = "";
    if (tess_watch_speak()) {
        tess_bar_drop();
        if (self.ranks > 1) snprintf(rank, sizeof rank, "rank %d: ", self.rank);
        fprintf(stderr, "tessera: error: %s%s%s%s\n", rank, text, *self.left ? "; " : "", self.left);
    }
    tess_ranks_abort(TESS_FAILED);
}

/* ---- the row of the terminal that a bar or a live line stands in: last words wait for no lock ---- */

atomic_int tess_row;

void tess_bar_drop(void)
{
    const int row = atomic_exchange(&tess_row, TESS_ROW_LAST);
    const char *end = row == TESS_ROW_BAR ? "\r\033[K" : row == TESS_ROW_LINE ? "\n" : "";
    const ssize_t ignored = write(STDERR_FILENO, end, strlen(end));
    (void)ignored;
}
