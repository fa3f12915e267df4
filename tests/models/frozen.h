/* Models of which a part is frozen, against PyTorch (fixtures/make_frozen.py). Behind steps.h. */
#ifndef TESS_TESTS_FROZEN_H
#define TESS_TESTS_FROZEN_H
#include "models/files/safetensors/safetensors.h"
#include "models/networks/model/model.h"

/* Freezes what a fixture's patterns name, and says how many that are. */
static int frozen_apply(struct run *r, const json_t *expected)
{
    const int params = tess_graph_params(r->g);
    bool *marked = tess_alloc((size_t)params * sizeof *marked);
    char *list = json_dumps(json_object_get(expected, "freeze"), 0);
    int n = 0;
    OK(tess_patterns_mark_all(r->model, r->g, "freeze", list, marked));
    for (int k = 0; k < params; k++) {
        if (!marked[k]) continue;
        OK(tess_param_freeze(tess_graph_param(r->g, k)));
        n++;
    }
    free(list);
    free(marked);
    return n;
}

/* Copies all that one rank holds of a master. */
static float *frozen_master(tess_tensor *p, int64_t elements)
{
    float *all = tess_alloc((size_t)elements * sizeof *all), *at = all, *tile;
    for (int64_t j = 0; j < tess_param_pieces(p); j++) {
        const tess_piece piece = tess_param_piece(p, j);
        OK(tess_param_map(p, j, TESS_MASTER, TESS_R, &tile));
        memcpy(at, tile, (size_t)(piece.rows * piece.cols) * sizeof *at);
        tess_param_unmap(p, j, TESS_MASTER);
        at += piece.rows * piece.cols;
    }
    return all;
}

/* The tensor of a file that a parameter is; files put a prefix before its name. */
static const tess_safetensor *frozen_find(const tess_safetensors *set, const char *name)
{
    const size_t n = strlen(name);
    for (size_t i = 0; i < tess_safetensors_count(set); i++) {
        const tess_safetensor *t = tess_safetensors_at(set, i);
        const size_t m = strlen(t->name);
        if (m >= n && !strcmp(t->name + m - n, name) && (m == n || t->name[m - n - 1] == '.')) return t;
    }
    return NULL;
}

/* How much a parameter's change differs from PyTorch's, relative to that. No matrix that files have transposed is among
 * them. */
static void frozen_compare(const char *name, tess_tensor *p, const tess_safetensor *before,
                           const tess_safetensor *after, double uncertain)
{
    const int64_t n = after->elements;
    float *ours = frozen_master(p, n), *then = tess_alloc((size_t)(2 * n) * sizeof *then), *theirs = then + n;
    double far = 0, all = 0;
    OK(tess_safetensor_read(before, 0, n, then));
    OK(tess_safetensor_read(after, 0, n, theirs));
    for (int64_t i = 0; i < n; i++) {
        far += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        all += ((double)then[i] - theirs[i]) * ((double)then[i] - theirs[i]);
    }
    if (uncertain < 0.1 && !(sqrt(far) <= fmax(2e-3, 3 * uncertain) * sqrt(all)))
        CHECK_SAY("%s %s: its change is off by %.3g", name, tess_tensor_name(p), sqrt(far / all));
    free(ours);
    free(then);
}

/* Six steps: losses, norms of what is trained, its weights behind them; and those of the rest as they were. */
static void frozen_check(const char *name, tess_dtype dtype, double tolerance)
{
    char path[4096], model[4096];
    tess_safetensors *after, *before;
    snprintf(path, sizeof path, TESS_FIXTURES "/frozen/%s/expected.json", name);
    json_t *expected = json_load_file(path, 0, NULL);
    const json_t *far = json_object_get(json_object_get(expected, "fp32_from_fp64"), "weights");
    snprintf(model, sizeof model, TESS_FIXTURES "/%s", json_string_value(json_object_get(expected, "model")));
    snprintf(path, sizeof path, TESS_FIXTURES "/frozen/%s", name);
    OK(tess_safetensors_open(path, &after));
    OK(tess_safetensors_open(model, &before));
    run_freezes = expected;
    struct run r = run_open(model, (tess_graph_conf){.dtype = dtype, .tile_elements = 700}, B, (tess_step_conf){0});
    run_freezes = NULL;
    for (size_t i = 0; i < 6; i++) {
        const double loss = json_number_value(json_array_get(json_object_get(expected, "loss"), i));
        const double norm = json_number_value(json_array_get(json_object_get(expected, "grad_norm"), i));
        const tess_step_result got = run_step(&r, (int64_t)i);
        if (!(fabs(got.loss - loss) <= tolerance * loss) || !(fabs(got.grad_norm - norm) <= tolerance * norm))
            CHECK_SAY("%s %s, step %zu: loss %.7g, norm %.7g, PyTorch has %.7g and %.7g", name, tess_dtype_name(dtype),
                      i, got.loss, got.grad_norm, loss, norm);
    }
    int trained = 0;
    for (int k = 0; k < tess_graph_params(r.g); k++) {
        tess_tensor *p = tess_graph_param(r.g, k);
        const tess_safetensor *was = frozen_find(before, tess_tensor_name(p)),
                              *is = frozen_find(after, tess_tensor_name(p));
        CHECK(was && (is != NULL) == !tess_param_frozen(p));
        trained += !tess_param_frozen(p);
        if (dtype != TESS_F32 || !was || !is) continue;
        frozen_compare(name, p, was, is, json_number_value(json_object_get(far, is->name)));
    }
    CHECK_EQ(trained, json_integer_value(json_object_get(expected, "trained")));
    run_close(&r);
    tess_safetensors_close(before);
    tess_safetensors_close(after);
    json_decref(expected);
}

#endif
