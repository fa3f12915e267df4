/* Shares that are "measured": each data-parallel rank gets as many micro-batches of a step as it is fast, and as much
 * of the states as it has memory. Whatever they are, a deterministic run has the same bits. */
#include "models/train/run/run.h"
#include <stdlib.h>

/* One after the other goes to the rank that would then be the first to be done. */
static char *deal(int64_t micros, const double *rate, int ranks)
{
    TESS_FREED int64_t *count = tess_alloc((size_t)ranks * sizeof *count);
    char *text = NULL;
    size_t size;
    for (int d = 0; d < ranks; d++) count[d] = 1;
    for (int64_t m = ranks; m < micros; m++) {
        int best = 0;
        for (int d = 1; d < ranks; d++)
            if ((double)(count[d] + 1) * rate[best] < (double)(count[best] + 1) * rate[d]) best = d;
        count[best]++;
    }
    FILE *f = open_memstream(&text, &size);
    for (int d = 0; d < ranks; d++) fprintf(f, "%s%lld", d ? "," : "", (long long)count[d]);
    fclose(f);
    return text;
}

/* Deals parts to the data-parallel ranks, by what those of each have together. */
static char *parts_by(const tess_run *r, const double *own, int64_t parts)
{
    const int ranks = tess_ranks(), data = r->grid.data, model = ranks / data;
    TESS_FREED double *all = tess_alloc((size_t)ranks * sizeof *all), *has = tess_alloc((size_t)data * sizeof *has);
    for (int k = 0; k < ranks; k++) all[k] = 1;
    if (own) tess_ranks_gather(own, sizeof *own, all);
    bool known = true; /* of ranks that take turns on the same cores only one has a rate: they are alike */
    for (int k = 0; k < ranks; k++) has[k / model] += all[k], known &= all[k] > 0;
    for (int d = 0; d < data && !known; d++) has[d] = 1;
    return deal(parts, has, data);
}

void tess_run_share_out(tess_run *r, const double *own)
{
    enum { STATES = 100 }; /* what is free differs a little from one look to the next */
    if (tess_config_measured(r->c->parallel.shares)) {
        free(r->shares);
        r->conf.shares = r->shares = parts_by(r, own, r->micro);
        if (own)
            tess_note("parallel.shares: %s of a step's %lld micro-batches, by what was measured", r->shares,
                      (long long)r->micro);
    }
    if (tess_config_measured(r->c->parallel.state_shares)) {
        free(r->states);
        r->grid.states = r->states = parts_by(r, own ? own + 1 : NULL, STATES);
        if (own) tess_note("parallel.state_shares: %s of %d parts, by the memory that each has", r->states, STATES);
    }
}
