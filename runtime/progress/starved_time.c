/* Workers' seconds without a task while something is under way that they may have waited for, a share of all workers:
 * tiles that come to RAM, or a submission that stands still until tiles have gone; tiles that come to a GPU, or that it
 * is waited for to give room for; messages between ranks. What was under way is counted up to each moment at which it
 * changes, or the number of those who work does. */
#include "runtime/progress/progress.h"
#include "runtime/trace/trace.h"
#include <stdatomic.h>

static struct {
    int workers; /* that should not wait */
    bool counts;
    atomic_int working;
    int under_way[TESS_CAUSE_COUNT];
    double looked, lost[TESS_CAUSE_COUNT], messages;
} count = {.workers = 1};

void tess_starved_start(int workers, bool counts)
{
    tess_progress_lock();
    count.workers = workers;
    count.counts = counts;
    count.working = 0;
    count.looked = tess_seconds();
    count.messages = 0;
    for (int c = 0; c < TESS_CAUSE_COUNT; c++) count.under_way[c] = c == TESS_FOR_ANYTHING, count.lost[c] = 0;
    tess_progress_unlock();
}

int tess_starved_workers(void)
{
    return count.workers;
}

/* Counts the time since the last look. */
static void look(void)
{
    const double now = tess_seconds(), passed = now - count.looked;
    const int idle = count.workers > count.working ? count.workers - count.working : 0;
    const double lost = passed * idle / count.workers;
    const bool both = count.under_way[TESS_FOR_RAM] > 0 && count.under_way[TESS_FOR_GPU] > 0;
    for (int c = 0; c < TESS_CAUSE_COUNT; c++) /* two tiers share what both may have been waited for */
        if (count.under_way[c] > 0) count.lost[c] += both && c < TESS_FOR_MESSAGES ? lost / 2 : lost;
    if (count.under_way[TESS_FOR_MESSAGES] > 0) count.messages += passed;
    count.looked = now;
}

void tess_starved_more(tess_cause cause, int more)
{
    look();
    count.under_way[cause] += more;
}

void tess_starved_works(int more)
{
    if (!count.counts) return;
    tess_progress_lock();
    look();
    count.working += more;
    tess_progress_unlock();
}

bool tess_starved_busy(void)
{
    return atomic_load_explicit(&count.working, memory_order_relaxed) >= count.workers;
}

void tess_starved_message(int more)
{
    tess_progress_lock();
    tess_starved_more(TESS_FOR_MESSAGES, more);
    tess_trace_set(TESS_TRACE_SPANS, (uint64_t)count.under_way[TESS_FOR_MESSAGES]);
    tess_progress_unlock();
}

double tess_starved_take(tess_cause cause)
{
    tess_progress_lock();
    look();
    const double taken = count.lost[cause];
    count.lost[cause] = 0;
    tess_progress_unlock();
    return taken;
}

double tess_flow_waited(void)
{
    return tess_starved_take(TESS_FOR_RAM);
}

double tess_gpu_waited(void)
{
    return tess_starved_take(TESS_FOR_GPU);
}

void tess_message_seconds(double *under_way, double *exposed)
{
    tess_progress_lock();
    look();
    *under_way = count.messages;
    *exposed = count.lost[TESS_FOR_MESSAGES];
    count.messages = count.lost[TESS_FOR_MESSAGES] = 0;
    tess_progress_unlock();
}
