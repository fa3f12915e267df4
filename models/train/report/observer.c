/* What watches a run, see observer.h. */
#include "models/train/report/observer.h"
#include "models/train/report/monitor.h"
#include "models/train/report/page/page.h"
#include "models/train/report/plan_file.h"
#include "models/train/report/report.h"
#include <stdlib.h>

tess_status tess_observer_check(const tess_config *c)
{
    return tess_rank() ? TESS_OK : tess_monitor_check(c);
}

void tess_observer_begin(tess_observer *o, const tess_run *r, const tess_holds *plan)
{
    o->run = r;
    tess_measure_begin(&o->measure, tess_yardstick_for(r->dtype), plan->flops);
}

static tess_status open_output(tess_observer *o, const tess_step *step, const tess_holds *plan, int64_t done)
{
    const tess_config *c = o->run->c;
    TESS_TRY(tess_report_open(c, done, stdout, &o->report));
    if (tess_rank()) return TESS_OK;
    if (!done) tess_tracing_clear(c->output); /* as metrics.jsonl, it begins again */
    char *path = tess_format("%s/config.json", c->output);
    const tess_status status = tess_config_write(c, path);
    free(path);
    if (status == TESS_OK) tess_plan_file_write(o->run, step, plan, o->measure.yardstick);
    return status;
}

tess_status tess_observer_open(tess_observer *o, const tess_step *step, const tess_holds *plan, int64_t done)
{
    TESS_TRY(tess_ranks_agree(open_output(o, step, plan, done)));
    TESS_TRY(tess_digests_file_open(&o->digests, o->run->c));
    return tess_tracing_open(&o->tracing, o->run, plan, &o->measure, done);
}

void tess_observer_step_begins(tess_observer *o, tess_step *step, int64_t done)
{
    tess_tracing_begin(&o->tracing, done + 1);
    tess_digests_file_step(&o->digests, step, done + 1);
    o->start = tess_seconds();
    tess_measure_start(&o->measure);
}

void tess_observer_step_ends(tess_observer *o, int64_t tokens, double used, tess_step_report *s)
{
    const double end = tess_seconds();
    tess_tracing_end(&o->tracing, s->step + 1, o->start, end);
    tess_measure_step(&o->measure, end - o->start, tokens, used, s);
    o->start = end; /* of the next, where that has begun */
}

bool tess_observer_sees(const tess_observer *o, int64_t step)
{
    const bool traced = o->tracing.open && step >= o->tracing.first - 1 && step <= o->tracing.last;
    return traced || (o->digests.f && step >= o->digests.first - 1 && step <= o->digests.last);
}

tess_status tess_observer_step(tess_observer *o, const tess_step_report *s)
{
    return tess_report_step(o->report, s);
}

tess_status tess_observer_back(tess_observer *o, int64_t done)
{
    tess_report_close(o->report);
    o->report = NULL;
    return tess_ranks_agree(tess_report_open(o->run->c, done, stdout, &o->report));
}

tess_status tess_observer_end(tess_observer *o)
{
    tess_tracing_merge(&o->tracing);
    return tess_ranks_agree(tess_digests_file_close(&o->digests));
}

void tess_observer_finish(const tess_config *c)
{
    if (!tess_rank()) tess_page_finish(c->output);
}

void tess_observer_close(tess_observer *o)
{
    tess_measure_keep(&o->measure);
    tess_pace_free(o->measure.pace);
    tess_report_close(o->report);
    tess_digests_file_drop(&o->digests);
    tess_tracing_close(&o->tracing);
    *o = (tess_observer){0};
}
