/* tessera run: what an exported network makes of arrays, without training. */
#include "graph/nd.h"
#include "models/files/data/arrays.h"
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/run/run.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct outputs {
    tess_run run;
    tess_array_want out, *want; /* what is asked for, as a micro-batch has it; the inputs that it is made of */
    bool *reads;                /* [input] */
    int wanted;
    tess_tensor *made;
    tess_arrays *data;
    tess_step *step;
    FILE *file;
};

/* The output of that name, or the first that is by samples. */
static tess_status choose(struct outputs *o, const char *name)
{
    const tess_model *m = o->run.model;
    const int outputs = tess_model_outputs(m, 0, NULL, NULL), inputs = tess_model_arrays(m, NULL);
    bool there = false;
    o->reads = tess_alloc((size_t)inputs * sizeof *o->reads);
    for (int k = 0; k < outputs && !o->made; k++) {
        tess_model_outputs(m, k, &o->out, o->reads);
        there |= name && !strcmp(name, o->out.name);
        if (!name || !strcmp(name, o->out.name)) o->made = o->run.net.made[k];
    }
    if (!o->made && there)
        return tess_error(TESS_INVALID, tess_model_dir(m), "its output %.64s has no dimension of samples", name);
    if (!o->made)
        return tess_error(TESS_INVALID, tess_model_dir(m), "has no output %.64s beside its loss (%d are in graph.json)",
                          name ? name : "with samples", outputs);
    o->want = tess_alloc((size_t)inputs * sizeof *o->want);
    tess_model_arrays(m, o->want);
    for (int k = 0; k < inputs; k++)
        if (o->reads[k]) o->want[o->wanted++] = o->want[k];
    return TESS_OK;
}

/* "x=x.npy,mask=m.npy", or one path where one input is read, as data.valid would have it. */
static tess_status open_data(struct outputs *o, const char *in)
{
    TESS_FREED_JSON json_t *files = json_object();
    char *text = tess_format("%s", in), *rest = text;
    tess_status status = TESS_OK;
    for (char *part; status == TESS_OK && (part = strsep(&rest, ","));) {
        char *path = strchr(part, '=');
        if (path) *path++ = '\0';
        if (!path && o->wanted != 1)
            status = tess_error(TESS_INVALID, "--in", "%.200s, but %.64s is made of %d inputs (NAME=FILE,NAME=FILE)",
                                part, o->out.name, o->wanted);
        else
            json_object_set_new(files, path ? part : o->want[0].name, json_string(path ? path : part));
    }
    char *json = json_dumps(files, 0);
    if (status == TESS_OK) status = tess_arrays_open("--in", json, o->want, o->wanted, &o->data);
    free(json), free(text);
    return status;
}

static tess_status open_run(const tess_config *c, const char *in, const char *name, struct outputs *o)
{
    TESS_TRY(tess_run_open(c, tess_rank(), &o->run));
    if (!tess_model_batch(o->run.model))
        return tess_error(TESS_INVALID, c->model, "is no exported network (it has no graph.json)");
    TESS_TRY(tess_run_check_weights(&o->run));
    TESS_TRY(choose(o, name));
    TESS_TRY(open_data(o, in));
    o->run.net.measured = o->made;
    return TESS_OK;
}

static tess_status start(struct outputs *o)
{
    TESS_TRY(tess_run_tiers(&o->run, NULL));
    TESS_TRY(tess_run_eval_step(&o->run, true, &o->step));
    TESS_TRY(tess_run_start(&o->run, false));
    return tess_model_load(o->run.model, o->run.g, 1);
}

/* Feeds a batch from a sample on. Beyond the last sample that one is repeated; inputs that are not read are zeros. */
static tess_status feed(const struct outputs *o, uint64_t first)
{
    const int64_t batch = o->run.micro_batch;
    const int inputs = tess_model_arrays(o->run.model, NULL);
    const uint64_t last = tess_arrays_samples(o->data) - 1;
    TESS_FREED tess_array_want *all = tess_alloc((size_t)inputs * sizeof *all);
    tess_status status = TESS_OK;
    tess_model_arrays(o->run.model, all);
    for (int k = 0, j = 0; k < inputs && status == TESS_OK; j += o->reads[k++]) {
        int64_t size = 1;
        const int64_t samples = all[k].same ? 1 : batch;
        for (int d = 0; d < all[k].rank; d++) size *= all[k].dim[d];
        TESS_FREED int32_t *values = tess_alloc((size_t)(samples * size) * sizeof *values);
        for (int64_t i = 0; i < samples && o->reads[k] && status == TESS_OK; i++) {
            const uint64_t at = first + (uint64_t)i;
            status = tess_arrays_get(o->data, j, at < last ? at : last, values + i * size);
        }
        if (status == TESS_OK) status = tess_step_feed(o->step, o->run.net.input[k], values);
    }
    return status == TESS_OK ? tess_run_feed_keys(&o->run, o->step, first) : status;
}

static tess_status broken(const char *path)
{
    return tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
}

/* An .npy header, which ends at a multiple of 64 bytes. */
static bool write_header(FILE *f, const char *type, int64_t samples, int rank, const int64_t *dim)
{
    char text[512];
    size_t n = (size_t)snprintf(text, sizeof text, "{'descr': '%s', 'fortran_order': False, 'shape': (%lld,", type,
                                (long long)samples);
    for (int d = 0; d < rank; d++) n += (size_t)snprintf(text + n, sizeof text - n, " %lld,", (long long)dim[d]);
    n += (size_t)snprintf(text + n, sizeof text - n, "), }");
    while ((10 + n + 1) % 64) text[n++] = ' ';
    text[n++] = '\n';
    const unsigned char head[] = {
        0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, (unsigned char)(n & 255), (unsigned char)(n >> 8)};
    return fwrite(head, sizeof head, 1, f) == 1 && fwrite(text, n, 1, f) == 1;
}

static bool write_values(FILE *f, tess_array_kind kind, const int32_t *values, int64_t n)
{
    if (kind != TESS_ARRAY_BOOL) return fwrite(values, sizeof *values, (size_t)n, f) == (size_t)n;
    for (int64_t i = 0; i < n; i++)
        if (putc(values[i] != 0, f) == EOF) return false;
    return true;
}

static tess_status write_all(struct outputs *o, const char *path)
{
    static const char *const types[] = {[TESS_ARRAY_REAL] = "<f4", [TESS_ARRAY_INT] = "<i4", [TESS_ARRAY_BOOL] = "|b1"};
    const tess_dims d = tess_nd_dims(o->made);
    const int64_t batch = o->run.micro_batch, size = tess_dims_size(&d) / batch;
    const uint64_t samples = tess_arrays_samples(o->data);
    TESS_FREED float *values = tess_alloc((size_t)(batch * size) * sizeof *values);
    tess_status status = TESS_OK;
    tess_bar_begin("running", (double)samples);
    if (!write_header(o->file, types[o->out.kind], (int64_t)samples, d.rank - 1, d.dim + 1)) status = broken(path);
    for (uint64_t at = 0; at < samples && status == TESS_OK; at += (uint64_t)batch) {
        const int64_t n = (int64_t)(samples - at) < batch ? (int64_t)(samples - at) : batch;
        TESS_TRY_DONE(feed(o, at));
        TESS_TRY_DONE(tess_step_run(o->step, &(tess_step_input){0}, NULL));
        TESS_TRY_DONE(tess_step_output(o->step, values));
        if (!write_values(o->file, o->out.kind, (const int32_t *)values, n * size)) status = broken(path);
        tess_bar_step((double)n);
    }
done:
    tess_bar_end();
    return status;
}

tess_status tess_outputs(const tess_config *c, const char *in, const char *out, const char *name)
{
    struct outputs o = {.made = NULL};
    char *path = NULL;
    tess_status status;
    if (!c || !in || !out) return tess_error(TESS_INVALID, "run", "its configuration, input or output is NULL");
    TESS_TRY_DONE(open_run(c, in, name, &o));
    TESS_TRY_DONE(start(&o));
    path = tess_format("%s.part", out);
    if (!(o.file = fopen(path, "wb"))) TESS_TRY_DONE(broken(path));
    status = write_all(&o, path);
    if (fclose(o.file) && status == TESS_OK) status = broken(path);
    if (status == TESS_OK && rename(path, out)) status = broken(out);
    if (status != TESS_OK) unlink(path);
    if (status == TESS_OK)
        printf("%s of %llu samples: %s\n", o.out.name, (unsigned long long)tess_arrays_samples(o.data), out);
done:
    tess_arrays_close(o.data);
    tess_step_free(o.step);
    tess_run_close(&o.run);
    free(o.reads), free(o.want), free(path);
    tess_stop();
    return status;
}
