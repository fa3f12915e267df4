/* Tiles on their way to RAM and out of it, in the order in which they set out. */
#include "runtime/progress/progress.h"
#include <stdlib.h>

static struct {
    tess_journey *oldest, **newest;
} journeys[] = {[TESS_IN] = {.newest = &journeys[TESS_IN].oldest}, [TESS_OUT] = {.newest = &journeys[TESS_OUT].oldest}};

tess_journey *tess_journey_begin(tess_way way, const tess_journey *of)
{
    tess_journey *j = tess_alloc(sizeof *j);
    *j = *of;
    j->way = way;
    j->since = tess_seconds();
    j->after = NULL;
    j->before = journeys[way].newest;
    *j->before = j;
    journeys[way].newest = &j->after;
    if (way == TESS_IN) tess_starved_more(TESS_FOR_RAM, 1);
    return j;
}

void tess_journey_end(tess_journey *j)
{
    *j->before = j->after;
    *(j->after ? &j->after->before : &journeys[j->way].newest) = j->before;
    if (j->way == TESS_IN) tess_starved_more(TESS_FOR_RAM, -1);
    free(j);
}

void tess_journey_oldest(char *text, size_t room)
{
    tess_progress_lock();
    const tess_journey *j = journeys[TESS_IN].oldest ? journeys[TESS_IN].oldest : journeys[TESS_OUT].oldest;
    if (!j)
        snprintf(text, room, "no tile is under way");
    else
        snprintf(text, room, "%s (a %s of %s) has been on its way %s for %.0f s", j->label, j->kind,
                 tess_human_bytes((double)j->bytes), j->way == TESS_IN ? "from disk" : "out of RAM",
                 tess_seconds() - j->since);
    tess_progress_unlock();
}
