/* What a program that uses the library may get wrong, found before it does harm: each is TESS_INVALID with a message
 * that names the tensor or call and what was expected. What follows here may rely on it, and asserts. */
#include "graph/describe/describe.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- describing ---- */

/* The message of the failure that made the NULL which is handed from op to op: those that are given nothing else have
 * no graph to ask. */
static _Thread_local char first[512];

void *tess_graph_fail(tess_graph *g)
{
    if (!g->failed) snprintf(g->error, sizeof g->error, "%s", tess_error_text());
    g->failed = true;
    snprintf(first, sizeof first, "%s", g->error);
    return NULL;
}

/* Writes the k-th name of "x, w, bias?"; may it be NULL? */
static bool optional(const char *takes, int k, char *name, size_t room)
{
    while (k-- > 0) takes = strstr(takes, ", ") + 2;
    size_t n = strcspn(takes, ",?");
    snprintf(name, room, "%.*s", (int)n, takes);
    return takes[n] == '?';
}

/* Nothing was given that has a graph. */
static tess_graph *lacks_all(const tess_op *op)
{
    char name[32];
    optional(op->takes, 0, name, sizeof name);
    if (first[0])
        tess_error_restore(first);
    else
        tess_error(TESS_INVALID, op->name, "%s is NULL", name);
    return NULL;
}

tess_graph *tess_check_inputs(const tess_op *op, tess_tensor *const *in, int inputs)
{
    TESS_ASSERT(inputs <= TESS_MOST_INPUTS);
    const tess_tensor *any = NULL;
    char name[32];
    for (int i = 0; i < inputs && !any; i++) any = in[i];
    if (!any) return lacks_all(op);
    for (int i = 0; i < inputs; i++) /* the error of either is worth more than what follows from it */
        if (in[i] && in[i]->g->failed) {
            tess_error_restore(in[i]->g->error);
            return tess_graph_fail(any->g);
        }
    for (int i = 0; i < inputs; i++) {
        if (!optional(op->takes, i, name, sizeof name) && !in[i]) {
            tess_error(TESS_INVALID, op->name, "%s is NULL", name);
            return tess_graph_fail(any->g);
        }
        if (!in[i] || in[i]->g == any->g) continue;
        tess_error(TESS_INVALID, op->name, "%s and %s are of two graphs (a step has one)", any->name, in[i]->name);
        return tess_graph_fail(any->g);
    }
    return any->g;
}

void *tess_check_refuse(tess_tensor *const *in, int inputs)
{
    for (int i = 0; in && i < inputs && i < TESS_MOST_INPUTS; i++)
        if (in[i]) return tess_graph_fail(in[i]->g);
    snprintf(first, sizeof first, "%s", tess_error_text());
    return NULL;
}

tess_status tess_check_null_output(void)
{
    if (!first[0]) return tess_error(TESS_INVALID, "step", "its output is NULL");
    tess_error_restore(first);
    first[0] = 0;
    return TESS_INVALID;
}

void tess_check_forget(void)
{
    first[0] = 0;
}

/* ---- shapes and sizes ---- */

static void describe(const tess_tensor *t, char *out, size_t room)
{
    int n = snprintf(out, room, "%s (", t->name);
    for (int d = 0; d < t->rank && (size_t)n < room; d++)
        n += snprintf(out + n, room - (size_t)n, d ? ",%lld" : "%lld", (long long)t->dim[d]);
    if ((size_t)n < room) snprintf(out + n, room - (size_t)n, ")");
}

tess_status tess_shape_error(const tess_node *n, const char *format, ...)
{
    char what[256], shapes[400] = "", one[128];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    for (int i = 0; i < n->inputs; i++) {
        if (!n->in[i]) continue;
        describe(n->in[i], one, sizeof one);
        size_t at = strlen(shapes);
        snprintf(shapes + at, sizeof shapes - at, "%s%s", at ? ", " : "", one);
    }
    return tess_error(TESS_INVALID, n->op->name, "%s: %s", shapes, what);
}

bool tess_fits_tile(int64_t rows, int64_t columns)
{
    int64_t bytes;
    return !__builtin_mul_overflow(rows, columns, &bytes) && !__builtin_mul_overflow(bytes, 4, &bytes) &&
           (uint64_t)bytes <= TESS_TILE_MOST;
}

tess_status tess_check_sizes(const tess_node *n)
{
    const tess_tensor *t = n->out;
    if (t->rank != 3 || t->nd) return TESS_OK;
    /* Whether a longer sequence is cut is known once all ops are; then tiles are measured once more. */
    const int64_t all = t->g->tile_sequences * t->dim[1], most = t->g->conf.tile_rows;
    int64_t rows = all < most ? all : most, width = t->dim[2] > 2 ? t->dim[2] : 2;
    if (tess_fits_tile(rows, width)) return TESS_OK;
    return tess_shape_error(n, "a tile of the result would have %lld rows of %lld (a tile is at most %s)",
                            (long long)rows, (long long)t->dim[2], tess_human_bytes((double)TESS_TILE_MOST));
}

/* ---- configurations ---- */

int64_t tess_shares_sum(const char *shares, int n, int64_t *each)
{
    enum { MOST = 10000 };
    int64_t sum = 0;
    for (int d = 0; d < n; d++) {
        char *end;
        const long share = strtol(shares, &end, 10);
        if (end == shares || share < 1 || share > MOST || *end != (d + 1 < n ? ',' : 0)) return 0;
        if (each) each[d] = share;
        sum += share;
        shares = end + 1;
    }
    return sum;
}

static tess_status check_states(const tess_grid *g)
{
    const int data = g->data ? g->data : 1;
    const char *what =
        g->stage == 0            ? "ZeRO's stage 0, where each rank has all states (1)"
        : data > TESS_FEW_SLICES ? "more than 16 data-parallel ranks (16)"
        : g->group && g->group < data
            ? "groups of ranks, by hpZ or MiCS (zero_hpz_partition_size and mics_shard_size at their presets)"
            : NULL;
    if (what) return tess_error(TESS_INVALID, "states", "\"%s\", which is not there for %s", g->states, what);
    if (!tess_shares_sum(g->states, data, NULL))
        return tess_error(TESS_INVALID, "states",
                          "\"%s\", expected %d numbers from 1 to 10000 with commas between, one for each data-parallel "
                          "rank, or measured",
                          g->states, data);
    return TESS_OK;
}

static tess_status check_grid(const tess_grid *g)
{
    if (g->data < 0 || g->pipeline < 0 || g->tensor < 0 || g->interleave < 0 || g->stage < 0 || g->stage > 3)
        return tess_error(TESS_INVALID, "grid",
                          "%d x %d x %d ranks, %d chunks, stage %d (none is negative, and the stage is at most 3)",
                          g->data, g->pipeline, g->tensor, g->interleave, g->stage);
    if (g->sequence < 0 || (g->sequence > 1 && (g->data ? g->data : 1) % g->sequence))
        return tess_error(TESS_INVALID, "grid",
                          "%d ranks share sequences, of %d data-parallel ones (expected a divisor)", g->sequence,
                          g->data);
    if (g->group < 0 || (g->group && (g->data ? g->data : 1) % g->group))
        return tess_error(TESS_INVALID, "grid", "%d ranks are a group, of %d data-parallel ones (expected a divisor)",
                          g->group, g->data);
    if (g->gradient_codes && g->stage == 0)
        return tess_error(TESS_INVALID, "grid", "codes of gradients at stage 0 (1, 2 or 3 has them)");
    if (g->weight_codes && g->stage != 3)
        return tess_error(TESS_INVALID, "grid", "codes of weights at stage %d (3 gathers them)", g->stage);
    if (g->schedule != TESS_1F1B && g->interleave > (g->schedule == TESS_ZB_V ? 2 : 1))
        return tess_error(TESS_INVALID, "grid", "%d chunks a stage (a zero-bubble order cuts the stages itself)",
                          g->interleave);
    if (g->states) TESS_TRY(check_states(g));
    int64_t size = 1;
    const int part[] = {g->data, g->pipeline, g->tensor};
    for (int k = 0; k < 3; k++) {
        size *= part[k] ? part[k] : 1;
        if (size > 1 << 20) return tess_error(TESS_INVALID, "grid", "more than %d ranks", 1 << 20);
    }
    if (g->rank < 0 || g->rank >= size)
        return tess_error(TESS_INVALID, "grid", "rank %d of %lld", g->rank, (long long)size);
    return TESS_OK;
}

tess_status tess_check_conf(const tess_graph_conf *c)
{
    const int64_t most = (int64_t)1 << 31;
    if (c->dtype < TESS_F32 || (int)c->dtype >= TESS_REAL_DTYPES)
        return tess_error(TESS_INVALID, "graph", "dtype %d (expected TESS_F32, TESS_BF16 or TESS_F16)", (int)c->dtype);
    if (c->fp8 && c->dtype != TESS_BF16)
        return tess_error(TESS_INVALID, "graph", "fp8 with dtype %s (expected TESS_BF16)", tess_dtype_name(c->dtype));
    if (c->tile_rows < 0 || c->tile_elements < 0 || c->loss_rows < 0 || c->tile_rows > most ||
        c->tile_elements > most || c->loss_rows > most)
        return tess_error(
            TESS_INVALID, "graph",
            "tile_rows %lld, tile_elements %lld, loss_rows %lld (each is 0 to 2^31, and 0 is the default)",
            (long long)c->tile_rows, (long long)c->tile_elements, (long long)c->loss_rows);
    if (c->loss_align < 0 || c->loss_align > 4096)
        return tess_error(TESS_INVALID, "graph", "loss_align %lld (expected 1 to 4096, or 0: 1)",
                          (long long)c->loss_align);
    if (c->share && c->share->failed) {
        tess_error_restore(c->share->error);
        return TESS_INVALID;
    }
    if (c->share && c->share->conf.dtype != c->dtype)
        return tess_error(TESS_INVALID, "graph", "dtype %s, but the graph whose parameters it shares has %s",
                          tess_dtype_name(c->dtype), tess_dtype_name(c->share->conf.dtype));
    return check_grid(&c->grid);
}

/* ---- values of inputs ---- */

void tess_limit_ids(tess_tensor *input, int64_t least, int64_t most, const char *because)
{
    if (least > input->ids->least) input->ids->least = least;
    if (most >= input->ids->most) return;
    input->ids->most = most;
    input->ids->because = because;
}

tess_status tess_check_ids(const tess_tensor *input, const int32_t *values, int64_t n)
{
    int64_t length = input->dim[1], i = 0;
    const int32_t least = (int32_t)input->ids->least,
                  most = input->ids->most < INT32_MAX ? (int32_t)input->ids->most : INT32_MAX;
    while (i < n && values[i] >= least && values[i] <= most) i++;
    if (i == n) return TESS_OK;
    char range[64];
    if (least == INT32_MIN)
        snprintf(range, sizeof range, "at most %d", most);
    else
        snprintf(range, sizeof range, "%d to %d", least, most);
    return tess_error(TESS_INVALID, input->name, "value %lld of sequence %lld is %d (expected %s%s%s)",
                      (long long)(i % length), (long long)(i / length), values[i], range,
                      input->ids->because ? ", for " : "", input->ids->because ? input->ids->because : "");
}
