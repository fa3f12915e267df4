/* Models with adapters, against PEFT (fixtures/make_lora.py). Behind steps.h. */
#ifndef TESS_TESTS_ADAPTED_H
#define TESS_TESTS_ADAPTED_H
#include "models/networks/lora/lora.h"
#include <sys/stat.h>

/* ||ours - theirs|| / ||theirs - before|| of one tensor of three sets, `before` NULL: / ||theirs||. */
static double adapted_far(const tess_safetensors *ours, const tess_safetensors *theirs, const tess_safetensors *before,
                          const char *name)
{
    const tess_safetensor *a = tess_safetensors_find(ours, name), *b = tess_safetensors_find(theirs, name),
                          *c = before ? tess_safetensors_find(before, name) : NULL;
    if (!a || !b || a->rank != b->rank || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims)) return INFINITY;
    float *x = tess_alloc((size_t)(3 * b->elements) * sizeof *x), *y = x + b->elements, *z = y + b->elements;
    double far = 0, all = 0;
    OK(tess_safetensor_read(a, 0, a->elements, x));
    OK(tess_safetensor_read(b, 0, b->elements, y));
    if (c) OK(tess_safetensor_read(c, 0, c->elements, z));
    for (int64_t i = 0; i < b->elements; i++) {
        far += ((double)x[i] - y[i]) * ((double)x[i] - y[i]);
        all += ((double)y[i] - z[i]) * ((double)y[i] - z[i]);
    }
    free(x);
    return sqrt(far / all);
}

/* The tensors that are saved are those of PEFT: their names, shapes, and, in fp32, how they changed. */
static void adapted_saved(const char *name, struct run *r, const char *start, const char *end, bool compare)
{
    char dir[] = "test_adapted.XXXXXX", path[64];
    tess_safetensors *ours, *theirs, *before;
    CHECK(mkdtemp(dir));
    OK(tess_model_save(r->model, r->g, dir));
    snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
    OK(tess_safetensors_open(path, &ours));
    OK(tess_safetensors_open(end, &theirs));
    OK(tess_safetensors_open(start, &before));
    CHECK_EQ(tess_safetensors_count(ours), tess_safetensors_count(theirs));
    for (size_t i = 0; i < tess_safetensors_count(theirs); i++) {
        const char *tensor = tess_safetensors_at(theirs, i)->name;
        const double far = adapted_far(ours, theirs, before, tensor);
        if (!(far <= (compare ? 2e-3 : 1))) CHECK_SAY("%s %s: its change is off by %.3g", name, tensor, far);
    }
    tess_safetensors_close(ours), tess_safetensors_close(theirs), tess_safetensors_close(before);
    tess_lora *saved;
    char *base;
    OK(tess_lora_open(dir, &saved, &base));
    char a[32], b[32];
    CHECK(base && !tess_lora_differ(saved, r->model->lora, a, b));
    tess_lora_close(saved);
    free(base);
    CHECK_EQ(remove(path), 0);
    snprintf(path, sizeof path, "%s/adapter_config.json", dir);
    CHECK_EQ(remove(path), 0);
    CHECK_EQ(rmdir(dir), 0);
}

/* Folding the first adapters in gives what PEFT's merge_and_unload does. */
static void adapted_merged(const char *name, const char *model, const char *start, const char *merged)
{
    char top[] = "test_merged.XXXXXX", dir[sizeof top + 8], path[sizeof dir + 32];
    tess_safetensors *ours, *theirs;
    FILE *out = fopen("/dev/null", "w");
    CHECK(mkdtemp(top));
    snprintf(dir, sizeof dir, "%s/model", top);
    OK(tess_merge(model, start, dir, out));
    fclose(out);
    OK(tess_safetensors_open(dir, &ours));
    OK(tess_safetensors_open(merged, &theirs));
    CHECK(tess_safetensors_count(theirs) > 0);
    for (size_t i = 0; i < tess_safetensors_count(theirs); i++) {
        const double far = adapted_far(ours, theirs, NULL, tess_safetensors_at(theirs, i)->name);
        if (!(far <= 1e-6)) CHECK_SAY("%s %s: off by %.3g", name, tess_safetensors_at(theirs, i)->name, far);
    }
    tess_safetensors_close(ours), tess_safetensors_close(theirs);
    static const char *const files[] = {"config.json", "model.safetensors"};
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        CHECK_EQ(remove(path), 0);
    }
    CHECK_EQ(rmdir(dir), 0);
    CHECK_EQ(rmdir(top), 0);
}

static void adapted_check(const char *name, tess_dtype dtype, double tolerance)
{
    char path[4096], model[4096], start[4096], end[4096], merged[4096];
    snprintf(path, sizeof path, TESS_FIXTURES "/lora/%s/expected.json", name);
    json_t *expected = json_load_file(path, 0, NULL);
    snprintf(model, sizeof model, TESS_FIXTURES "/%s", json_string_value(json_object_get(expected, "model")));
    snprintf(path, sizeof path, TESS_FIXTURES "/lora/%s/start", name);
    snprintf(start, sizeof start, TESS_FIXTURES "/lora/%s/start/adapter_model.safetensors", name);
    snprintf(end, sizeof end, TESS_FIXTURES "/lora/%s/end/adapter_model.safetensors", name);
    snprintf(merged, sizeof merged, TESS_FIXTURES "/lora/%s/merged", name);
    run_adapts = path;
    struct run r = run_open(model, (tess_graph_conf){.dtype = dtype, .tile_elements = 700}, B, (tess_step_conf){0});
    run_adapts = NULL;
    for (size_t i = 0; i < 6; i++) {
        const double loss = json_number_value(json_array_get(json_object_get(expected, "loss"), i));
        const double norm = json_number_value(json_array_get(json_object_get(expected, "grad_norm"), i));
        const tess_step_result got = run_step(&r, (int64_t)i);
        if (!(fabs(got.loss - loss) <= tolerance * loss) ||
            !(fabs(got.grad_norm - norm) <= (dtype == TESS_F32 ? 2 : 3) * tolerance * norm))
            CHECK_SAY("%s %s, step %zu: loss %.7g, norm %.7g, PEFT has %.7g and %.7g", name, tess_dtype_name(dtype), i,
                      got.loss, got.grad_norm, loss, norm);
    }
    adapted_saved(name, &r, start, end, dtype == TESS_F32);
    run_close(&r);
    if (dtype == TESS_F32) adapted_merged(name, model, path, merged);
    json_decref(expected);
}

#endif
