/* tessera check: an exported network beside the framework that it came from, on the batch that came with it. */
#include "models/networks/networks.h"
#include "models/train/run/run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 5 };
static const double least = 1e-4; /* what is off by more is said to differ */

/* How far a norm is off: of what the framework found, or of a thousandth of the whole gradient's where that is more. */
static double off(double found, double want, double whole)
{
    return fabs(found - want) / fmax(fabs(want), 1e-3 * whole);
}

static double norm_of(tess_step *step, tess_tensor *p, tess_status *status)
{
    int64_t shape[3] = {1, 1, 1}, n = 1;
    for (int d = tess_tensor_shape(p, shape); d-- > 0;) n *= shape[d];
    TESS_FREED float *x = tess_alloc((size_t)n * sizeof *x);
    double sum = 0;
    *status = tess_step_gradient(step, p, x);
    for (int64_t i = 0; i < n && *status == TESS_OK; i++) sum += (double)x[i] * (double)x[i];
    return sqrt(sum);
}

static tess_status compare(const tess_model *m, const tess_graph *g, tess_step *step, double loss, FILE *out)
{
    double want = 0, whole = 0, sum = 0, worst = 0, of;
    int shown = 0, different = 0;
    tess_status status = TESS_OK;
    if (!tess_model_checks(m, NULL, &want) || !tess_model_checks(m, "", &whole))
        return tess_error(TESS_INVALID, tess_model_dir(m), "has no figures of its framework (\"check\" in graph.json)");
    fprintf(out, "loss %.8g, the framework's %.8g: off by %.1e\n", loss, want,
            fabs(loss - want) / fmax(fabs(want), 1e-30));
    different += !(fabs(loss - want) <= least * fmax(fabs(want), 1e-30));
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (tess_param_is_state(p)) continue;
        const double norm = norm_of(step, p, &status);
        sum += norm * norm;
        if (!tess_model_checks(m, tess_tensor_name(p), &of)) continue;
        const double by = off(norm, of, whole);
        worst = fmax(worst, isnan(by) ? INFINITY : by);
        if (by <= least || ++different > SHOWN + 1 || shown++ == SHOWN) continue;
        fprintf(out, "the gradient of %s has the norm %.8g, the framework's %.8g: off by %.1e\n", tess_tensor_name(p),
                norm, of, by);
    }
    TESS_TRY(status);
    fprintf(out, "gradient norm %.8g, the framework's %.8g: off by %.1e; of the %d parameters' at most %.1e\n",
            sqrt(sum), whole, off(sqrt(sum), whole, whole), tess_graph_params(g), worst);
    different += !(off(sqrt(sum), whole, whole) <= least);
    if (!different) return TESS_OK;
    return tess_error(TESS_FAILED, tess_model_dir(m), "differs from its framework by more than %.0e", least);
}

static tess_status run_batch(const tess_run *r, tess_step **step, tess_step_result *result)
{
    const tess_step_conf conf = {.train = true, .keep_gradients = true, .micro = 1};
    TESS_TRY(tess_step_new(r->net.output, &conf, step));
    TESS_TRY(tess_start(NULL));
    TESS_TRY(tess_model_load(r->model, r->g, 1));
    TESS_TRY(tess_run_feed(r, *step, NULL, 0, 0));
    return tess_step_run(*step, &(tess_step_input){.lr = 1}, result);
}

tess_status tess_check(const char *dir, FILE *out)
{
    tess_run r = {0};
    tess_step *step = NULL;
    tess_step_result result;
    tess_status status;
    if (!dir) return tess_error(TESS_INVALID, "check", "the directory is NULL");
    TESS_TRY_DONE(tess_model_open(dir, NULL, &r.model));
    if (!(r.micro_batch = tess_model_batch(r.model)))
        TESS_TRY_DONE(tess_error(TESS_INVALID, dir, "is no exported network (it has no graph.json)"));
    r.g = tess_graph_new(NULL);
    const tess_build build = {.batch = r.micro_batch, .length = 1, .purpose = TESS_FOR_LOSS};
    TESS_TRY_DONE(tess_model_build_for(r.model, r.g, &build, &r.net));
    TESS_TRY_DONE(run_batch(&r, &step, &result));
    status = compare(r.model, r.g, step, result.loss, out);
done:
    tess_step_free(step);
    tess_run_close(&r);
    tess_stop();
    return status;
}
