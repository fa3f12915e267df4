/* Measuring steps, see measure.h. */
#include "models/train/report/measure.h"
#include "models/train/rates/mfu.h"
#include "models/train/rates/yardstick.h"
#include <stdlib.h>
#include <unistd.h>

void tess_measure_begin(tess_measure *m, tess_dtype t, double flops)
{
    double sum[] = {tess_yardstick_best(t), tess_mfu_limit(t, tess_cores(), tess_gpus()), flops};
    tess_ranks_sum(sum, 3);
    *m = (tess_measure){.dtype = t, .yardstick = sum[0], .limit = sum[1], .own = flops, .flops = sum[2]};
}

double tess_measure_mfu(tess_measure *m, double seconds)
{
    const double before = m->yardstick, share = tess_mfu_share(&m->yardstick, m->limit, m->flops, seconds);
    m->proved |= m->yardstick > before;
    return share;
}

/* What was moved from and to the disk since the last time, and how long workers stood still for it. */
static void count_disk(tess_measure *m, tess_tier_report *r)
{
    uint64_t read, written;
    tess_disk_traffic(&read, &written, &r->resident_bytes, &r->peak_bytes);
    r->read_bytes = read - m->disk_read;
    r->write_bytes = written - m->disk_written;
    r->wait_seconds = tess_flow_waited();
    m->disk_read = read;
    m->disk_written = written;
}

/* What all ranks sent each other, and, told by the same message, what each of them did. */
static void count_ranks(tess_measure *m, double now, tess_step_report *s)
{
    const int ranks = m->pace ? tess_ranks() : 0, mine = 1 + 2 * tess_rank();
    TESS_FREED int64_t *count = tess_alloc((size_t)(1 + 2 * ranks) * sizeof *count);
    uint64_t sent, received;
    double worked, busy;
    tess_message_traffic(&sent, &received);
    tess_profile_work(&worked, &busy);
    count[0] = (int64_t)(sent - m->sent);
    if (ranks) count[mine] = (int64_t)(worked - m->worked), count[mine + 1] = (int64_t)(1e9 * (busy - m->busy));
    m->sent = sent, m->worked = worked, m->busy = busy;
    tess_ranks_sum_counts(count, 1 + 2 * ranks);
    s->sent_bytes = (uint64_t)count[0];
    if (ranks && !tess_rank()) tess_pace_step(m->pace, count + 1, now, s);
}

static tess_pace *pace_of_ranks(double flops)
{
    tess_pace_rank mine = {.flops = flops}, *all = tess_alloc((size_t)tess_ranks() * sizeof *all);
    gethostname(mine.host, sizeof mine.host - 1);
    tess_ranks_gather(&mine, sizeof mine, all);
    tess_pace *p = tess_pace_new(all, tess_ranks());
    free(all);
    return p;
}

void tess_measure_start(tess_measure *m)
{
    tess_tier_report before;
    uint64_t received;
    if (!m->pace && tess_ranks() > 1) m->pace = pace_of_ranks(m->own);
    count_disk(m, &before);
    tess_gpu_traffic(&before.read_bytes, &before.write_bytes);
    tess_gpu_waited();
    tess_message_traffic(&m->sent, &received);
    tess_profile_work(&m->worked, &m->busy);
}

void tess_measure_step(tess_measure *m, double seconds, int64_t tokens, double used, tess_step_report *s)
{
    s->tokens = tokens;
    s->padding = 1 - used;
    s->seconds = seconds;
    s->tokens_per_s = (double)tokens / seconds;
    s->model_tflops = m->flops * used / seconds * 1e-12;
    s->mfu = tess_measure_mfu(m, seconds / used);
    for (int k = 0; k < TESS_TIER_COUNT; k++)
        tess_tier_use((tess_tier)k, &s->tier[k].resident_bytes, &s->tier[k].peak_bytes);
    count_disk(m, &s->tier[TESS_TIER_DISK]);
    tess_gpu_traffic(&s->tier[TESS_TIER_GPU].read_bytes, &s->tier[TESS_TIER_GPU].write_bytes);
    s->tier[TESS_TIER_GPU].wait_seconds = tess_gpu_waited();
    count_ranks(m, tess_seconds(), s);
}

void tess_measure_keep(const tess_measure *m)
{
    /* With several ranks it is not known which of their yardsticks was too low. */
    if (m->proved && tess_ranks() == 1) tess_yardstick_raise(m->dtype, m->yardstick);
}
