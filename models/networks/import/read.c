/* Reading graph.json: everything that does not depend on what an op means is checked here. */
#include "models/networks/import/import_impl.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VERSION = 1, INLINE = 64, MOST_NODES = 1 << 20 };

/* ---- mistakes ---- */

tess_status tess_import_wrong(const tess_import *n, const node *of, const char *format, ...)
{
    char what[400], where[700];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    if (of)
        snprintf(where, sizeof where, "%.300s: node %.100s (%.40s%s%.160s)", n->file,
                 of->out < 0 ? "?" : n->value[of->out].name, of->op, of->at ? ", " : "", of->at ? of->at : "");
    else
        snprintf(where, sizeof where, "%.300s", n->file);
    return tess_error(TESS_INVALID, where, "%s", what);
}

/* Is every key of an object one of a list between blanks? */
static tess_status known_keys(const tess_import *n, const node *of, const char *where, const json_t *object,
                              const char *keys)
{
    const char *key;
    json_t *unused;
    json_object_foreach((json_t *)object, key, unused)
    {
        const size_t length = strlen(key);
        const char *at = keys;
        while (length && (at = strstr(at, key)) && (at[length] != ' ' || (at > keys && at[-1] != ' '))) at++;
        if (!at || !length) return tess_import_wrong(n, of, "%s has the key %.60s, which is not known", where, key);
    }
    return TESS_OK;
}

tess_status tess_import_list(const tess_import *n, const node *of, const json_t *list, const char *key, int exact,
                             int most, int64_t *out, int *count)
{
    const size_t size = json_array_size(list);
    if (!json_is_array(list) || size > (size_t)most || (exact >= 0 && size != (size_t)exact))
        return tess_import_wrong(n, of, "%s is no list of %s%d whole numbers", key, exact < 0 ? "at most " : "",
                                 exact < 0 ? most : exact);
    for (size_t k = 0; k < size; k++) {
        const json_t *v = json_array_get(list, k);
        if (!json_is_integer(v) || json_integer_value(v) > (json_int_t)1 << 40 ||
            json_integer_value(v) < -((json_int_t)1 << 40))
            return tess_import_wrong(n, of, "%s has an entry that is no whole number", key);
        out[k] = json_integer_value(v);
    }
    if (count) *count = (int)size;
    return TESS_OK;
}

tess_status tess_import_ints(const tess_import *n, const node *of, const char *key, int exact, int *out, int *count)
{
    int64_t value[TESS_RANK_MOST];
    int size;
    TESS_TRY(tess_import_list(n, of, json_object_get(of->json, key), key, exact, TESS_RANK_MOST, value, &size));
    for (int k = 0; k < size; k++) {
        if (value[k] < 0 || value[k] >= TESS_RANK_MOST)
            return tess_import_wrong(n, of, "%s names dimension %lld", key, (long long)value[k]);
        out[k] = (int)value[k];
    }
    if (count) *count = size;
    return TESS_OK;
}

/* ---- values ---- */

static tess_status shape_of(const tess_import *n, const node *of, const char *where, const json_t *object, value *v)
{
    const char *dtype = json_string_value(json_object_get(object, "dtype"));
    int64_t size = 1;
    TESS_TRY(tess_import_list(n, of, json_object_get(object, "shape"), "shape", -1, TESS_RANK_MOST, v->dims.dim,
                              &v->dims.rank));
    for (int d = 0; d < v->dims.rank; d++)
        if (v->dims.dim[d] < 1 || __builtin_mul_overflow(size, v->dims.dim[d], &size) || size > (int64_t)1 << 40)
            return tess_import_wrong(n, of, "%s: the shape of %.100s has a dimension of %lld, or too many elements",
                                     where, v->name, (long long)v->dims.dim[d]);
    static const char *const names[] = {[TESS_REAL] = "float32", [TESS_INT] = "int32", [TESS_BOOL] = "bool"};
    for (int e = TESS_REAL; e <= TESS_BOOL; e++)
        if (dtype && !strcmp(dtype, names[e])) {
            v->element = (tess_element)e;
            return TESS_OK;
        }
    if (dtype && v->kind == VALUE_INPUT && !strcmp(dtype, "uint32")) {
        v->element = TESS_INT, v->bits = true;
        return TESS_OK;
    }
    return tess_import_wrong(n, of, "%s: %.100s has the dtype %.20s (float32, int32 and bool are supported so far)",
                             where, v->name, dtype ? dtype : "null");
}

static tess_status add_value(tess_import *n, const node *of, const char *prefix, value v)
{
    char *name = tess_format("%s%s", prefix, v.name);
    const bool again = json_object_get(n->number, name) != NULL;
    json_object_set_new(n->number, name, json_integer(n->values));
    free(name);
    if (again) return tess_import_wrong(n, of, "%s%.100s is there twice", prefix, v.name);
    if ((n->values & (n->values - 1)) == 0)
        n->value = tess_realloc(n->value, (size_t)(n->values ? 2 * n->values : 1) * sizeof *n->value);
    n->value[n->values++] = v;
    return TESS_OK;
}

/* The elements of a safetensors tensor, as ours. */
static tess_status convert(const tess_import *n, const tess_safetensor *t, const value *v, int32_t *out)
{
    const int64_t size = tess_dims_size(&v->dims);
    bool same = t && t->rank == v->dims.rank;
    for (int d = 0; same && d < t->rank; d++) same = t->dims[d] == v->dims.dim[d];
    if (!same)
        return tess_import_wrong(n, NULL, "%.100s is %s", v->name,
                                 t ? "of another shape there" : "not among the tensors");
    if (v->element == TESS_REAL) return tess_safetensor_read(t, 0, size, (float *)out);
    const bool fits = v->element == TESS_BOOL ? t->dtype == TESS_ST_BOOL || t->dtype == TESS_ST_U8
                                              : t->dtype == TESS_ST_I32 || t->dtype == TESS_ST_I64;
    if (!fits) return tess_import_wrong(n, NULL, "%.100s is of another dtype among the tensors", v->name);
    for (int64_t i = 0; i < size; i++) {
        int64_t wide;
        if (t->dtype == TESS_ST_I32)
            memcpy(&out[i], (const char *)t->data + 4 * i, 4);
        else if (t->dtype == TESS_ST_I64) {
            memcpy(&wide, (const char *)t->data + 8 * i, 8);
            if (wide < INT32_MIN || wide > INT32_MAX)
                return tess_import_wrong(n, NULL, "%.100s has %lld, which is no int32", v->name, (long long)wide);
            out[i] = (int32_t)wide;
        } else
            out[i] = ((const unsigned char *)t->data)[i] != 0;
    }
    return TESS_OK;
}

static tess_status read_numbers(const tess_import *n, const json_t *list, value *v)
{
    const int64_t size = tess_dims_size(&v->dims);
    if (!json_is_array(list) || (int64_t)json_array_size(list) != size || size > INLINE)
        return tess_import_wrong(n, NULL, "consts: the value of %.100s is no list of its %lld numbers (at most %d)",
                                 v->name, (long long)size, INLINE);
    for (int64_t i = 0; i < size; i++) {
        const json_t *x = json_array_get(list, (size_t)i);
        const float real = (float)json_number_value(x);
        const json_int_t whole = json_integer_value(x);
        if (!json_is_number(x) || (v->element != TESS_REAL && !json_is_integer(x)) ||
            (v->element == TESS_INT && (whole < INT32_MIN || whole > INT32_MAX)) ||
            (v->element == TESS_BOOL && whole != 0 && whole != 1))
            return tess_import_wrong(n, NULL, "consts: %.100s has a value that is no %s", v->name,
                                     v->element == TESS_REAL  ? "float32"
                                     : v->element == TESS_INT ? "int32"
                                                              : "bool");
        v->data[i] = (int32_t)whole;
        if (v->element == TESS_REAL) memcpy(&v->data[i], &real, sizeof real);
    }
    return TESS_OK;
}

static tess_status read_constant(const tess_import *n, const json_t *object, value *v)
{
    const json_t *list = json_object_get(object, "value");
    char *name = tess_format("const:%s", v->name);
    const tess_safetensor *t = list || !n->weights ? NULL : tess_safetensors_find(n->weights, name);
    free(name);
    if (!list && !t)
        return tess_import_wrong(n, NULL, "consts: %.100s has no value, here or in weights.safetensors", v->name);
    v->data = tess_alloc((size_t)tess_dims_size(&v->dims) * sizeof *v->data);
    return list ? read_numbers(n, list, v) : convert(n, t, v, v->data);
}

/* A section of values, in the order of the file. */
static tess_status read_section(tess_import *n, const char *section, const char *prefix, value_kind kind,
                                const char *keys)
{
    const char *name;
    json_t *object;
    json_object_foreach(json_object_get(n->root, section), name, object)
    {
        value v = {.name = name, .kind = kind, .becomes = -1};
        if (!json_is_object(object)) return tess_import_wrong(n, NULL, "%s: %.100s is no object", section, name);
        TESS_TRY(known_keys(n, NULL, section, object, keys));
        TESS_TRY(shape_of(n, NULL, section, object, &v));
        tess_status status = kind == VALUE_CONST ? read_constant(n, object, &v) : TESS_OK;
        if (status == TESS_OK) status = add_value(n, NULL, prefix, v);
        if (status != TESS_OK) {
            free(v.data);
            return status;
        }
    }
    return TESS_OK;
}

/* Inputs that count samples have the same number of them. */
static tess_status check_inputs(tess_import *n)
{
    const char *name;
    json_t *object;
    int k = 0;
    const value *first = NULL;
    json_object_foreach(json_object_get(n->root, "inputs"), name, object)
    {
        const json_t *batch = json_object_get(object, "batch");
        value *v = &n->value[k++];
        v->batch = -1;
        const json_t *drawn = json_object_get(object, "drawn");
        n->keys += json_is_true(drawn);
        if (drawn && (!json_is_true(drawn) || batch || !v->bits || v->dims.rank != 1 || v->dims.dim[0] != 2))
            return tess_import_wrong(n, NULL, "inputs: %.100s is drawn, but no uint32 of shape [2] without a batch",
                                     name);
        if (n->keys && !drawn) return tess_import_wrong(n, NULL, "inputs: %.100s comes behind one that is drawn", name);
        if (!batch) continue;
        if (!json_is_integer(batch) || json_integer_value(batch) < 0 || json_integer_value(batch) >= v->dims.rank)
            return tess_import_wrong(n, NULL, "inputs: the batch of %.100s is none of its %d dimensions", name,
                                     v->dims.rank);
        v->batch = (int)json_integer_value(batch);
        const int64_t samples = v->dims.dim[v->batch];
        if (first && samples != first->dims.dim[first->batch])
            return tess_import_wrong(n, NULL, "inputs: %.100s has %lld samples, %.100s %lld", name, (long long)samples,
                                     first->name, (long long)first->dims.dim[first->batch]);
        if (!first) first = v;
    }
    n->inputs = k - n->keys;
    n->samples = first ? first->dims.dim[first->batch] : 1;
    return n->inputs ? TESS_OK : tess_import_wrong(n, NULL, "inputs: there is none");
}

/* ---- nodes ---- */

/* What ops have beside name, op, in, shape, dtype and at. */
static const struct {
    const char *op, *keys;
    int least, most; /* operands */
} ops[] = {
    {"map", "fn y ", 1, 3},
    {"reduce", "fn dims ", 1, 1},
    {"dot", "contract batch ", 2, 2},
    {"reshape", "", 1, 1},
    {"broadcast", "dims ", 1, 1},
    {"transpose", "perm ", 1, 1},
    {"slice", "lo hi step ", 1, 1},
    {"concat", "dim ", 1, NODE_INPUTS},
    {"pad", "pads ", 2, 2},
    {"rev", "dims ", 1, 1},
    {"iota", "dim ", 0, 0},
    {"gather", "offset collapsed start batch sizes mode fill ", 2, 2},
    {"scatter", "offset collapsed start batch mode fn ", 3, 3},
    {"conv", "lhs rhs out strides pads lhs_dilation rhs_dilation groups ", 2, 2},
    {"sort", "dim descending ", 1, 1},
    {"cum", "fn dim reverse ", 1, 1},
    {"window", "fn size strides pads base_dilation dilation ", 1, 1},
};

static tess_status find_value(const tess_import *n, const node *of, const char *name, int *number)
{
    const json_t *v = name ? json_object_get(n->number, name) : NULL;
    if (!v)
        return tess_import_wrong(n, of, "reads %.100s, which is nothing that stands before it", name ? name : "null");
    *number = (int)json_integer_value(v);
    n->value[*number].uses++;
    return TESS_OK;
}

static tess_status read_node(tess_import *n, json_t *json)
{
    node *of = &n->node[n->nodes];
    value v = {.name = json_string_value(json_object_get(json, "name")), .kind = VALUE_NODE, .maker = n->nodes};
    *of = (node){.op = json_string_value(json_object_get(json, "op")),
                 .at = json_string_value(json_object_get(json, "at")),
                 .json = json,
                 .out = -1};
    if (!of->op) of->op = "no op";
    if (!v.name || strchr(v.name, ':')) return tess_import_wrong(n, of, "a node has no name, or one with a colon");
    size_t k = 0;
    while (k < sizeof ops / sizeof *ops && strcmp(ops[k].op, of->op)) k++;
    const json_t *in = json_object_get(json, "in");
    of->in = tess_alloc(NODE_INPUTS * sizeof *of->in);
    n->nodes++;
    if (k == sizeof ops / sizeof *ops)
        return tess_import_wrong(n, of, "%.100s: there is no op %.40s in this version", v.name, of->op);
    if (!json_is_array(in) || (int)json_array_size(in) < ops[k].least || (int)json_array_size(in) > ops[k].most)
        return tess_import_wrong(n, of, "%.100s has %zu operands (expected %d to %d)", v.name, json_array_size(in),
                                 ops[k].least, ops[k].most);
    TESS_FREED char *keys = tess_format("name op in shape dtype at %s", ops[k].keys);
    tess_status status = known_keys(n, of, v.name, json, keys);
    TESS_TRY(status);
    for (size_t i = 0; i < json_array_size(in); i++)
        TESS_TRY(find_value(n, of, json_string_value(json_array_get(in, i)), &of->in[of->inputs++]));
    TESS_TRY(shape_of(n, of, "nodes", json, &v));
    TESS_TRY(add_value(n, of, "", v));
    of->out = n->values - 1;
    return TESS_OK;
}

static tess_status read_nodes(tess_import *n)
{
    const json_t *list = json_object_get(n->root, "nodes");
    const size_t size = json_array_size(list);
    if (!json_is_array(list) || size > MOST_NODES) return tess_import_wrong(n, NULL, "nodes is no list");
    n->node = tess_alloc((size + 1) * sizeof *n->node);
    for (size_t k = 0; k < size; k++) {
        json_t *json = json_array_get(list, k);
        if (!json_is_object(json)) return tess_import_wrong(n, NULL, "nodes: the %zuth is no object", k + 1);
        TESS_TRY(read_node(n, json));
    }
    return TESS_OK;
}

static tess_status read_outputs(tess_import *n)
{
    const json_t *outputs = json_object_get(n->root, "outputs");
    const char *key, *loss = json_string_value(json_object_get(outputs, "loss"));
    json_t *name;
    n->number_of = tess_alloc((json_object_size(outputs) + 1) * sizeof *n->number_of);
    n->called = tess_alloc((json_object_size(outputs) + 1) * sizeof *n->called);
    n->output_of = tess_alloc((json_object_size(outputs) + 1) * sizeof *n->output_of);
    n->output = tess_alloc((json_object_size(outputs) + 1) * sizeof *n->output);
    if (!loss) return tess_import_wrong(n, NULL, "outputs: there is no loss");
    json_object_foreach((json_t *)outputs, key, name)
    {
        int number = 0;
        TESS_TRY(find_value(n, NULL, json_string_value(name), &number));
        if (!strcmp(key, "loss")) continue;
        n->output[n->outputs] = key, n->output_of[n->outputs++] = number;
        if (n->value[number].dims.rank) continue;
        if (!*key || strpbrk(key, "\"\\") || strlen(key) > 64)
            return tess_import_wrong(n, NULL, "outputs: \"%.64s\" cannot be a name in metrics.jsonl", key);
        n->called[n->numbers] = key;
        n->number_of[n->numbers++] = number;
    }
    TESS_TRY(find_value(n, NULL, loss, &n->loss));
    const value *v = &n->value[n->loss];
    if (v->dims.rank || v->element != TESS_REAL || v->kind != VALUE_NODE)
        return tess_import_wrong(n, NULL, "outputs: the loss %.100s is no float32 of shape [] that a node makes",
                                 v->name);
    return TESS_OK;
}

static tess_status read_updates(tess_import *n)
{
    const char *key;
    json_t *name;
    json_object_foreach(json_object_get(n->root, "updates"), key, name)
    {
        char *state = tess_format("state:%s", key);
        const json_t *number = json_object_get(n->number, state);
        value *v = number ? &n->value[json_integer_value(number)] : NULL;
        free(state);
        if (!v) return tess_import_wrong(n, NULL, "updates: there is no state %.100s", key);
        TESS_TRY(find_value(n, NULL, json_string_value(name), &v->becomes));
        const value *by = &n->value[v->becomes];
        if (by->element != v->element || memcmp(&by->dims, &v->dims, sizeof v->dims) != 0)
            return tess_import_wrong(n, NULL,
                                     "updates: the state %.100s is replaced by %.100s, of another shape or dtype", key,
                                     json_string_value(name));
    }
    return TESS_OK;
}

/* ---- the file ---- */

static tess_status read_all(tess_import *n)
{
    const json_t *version = json_object_get(n->root, "tessera_graph");
    if (!json_is_object(n->root) || !json_is_integer(version))
        return tess_import_wrong(n, NULL, "is no exported network: it has no tessera_graph");
    if (json_integer_value(version) != VERSION)
        return tess_import_wrong(n, NULL, "tessera_graph: version %lld (this reads version %d)",
                                 (long long)json_integer_value(version), VERSION);
    TESS_TRY(known_keys(n, NULL, "the file", n->root,
                        "tessera_graph producer inputs params state consts nodes outputs updates check tree "));
    TESS_TRY(read_section(n, "inputs", "input:", VALUE_INPUT, "shape dtype batch drawn "));
    TESS_TRY(check_inputs(n));
    TESS_TRY(read_section(n, "params", "param:", VALUE_PARAM, "shape dtype "));
    TESS_TRY(read_section(n, "state", "state:", VALUE_STATE, "shape dtype "));
    TESS_TRY(read_section(n, "consts", "const:", VALUE_CONST, "shape dtype value "));
    for (int k = 0; k < n->values; k++)
        if ((n->value[k].kind == VALUE_PARAM || n->value[k].kind == VALUE_STATE) && n->value[k].element != TESS_REAL)
            return tess_import_wrong(n, NULL, "%s: %.100s is not float32",
                                     n->value[k].kind == VALUE_PARAM ? "params" : "state", n->value[k].name);
    TESS_TRY(read_nodes(n));
    TESS_TRY(read_outputs(n));
    TESS_TRY(read_updates(n));
    tess_import_turn(n);
    return TESS_OK;
}

bool tess_import_there(const char *dir)
{
    return dir && tess_dirs_has(dir, "graph.json");
}

tess_status tess_import_open(const char *dir, tess_import **net)
{
    json_error_t e;
    tess_import *n = tess_alloc(sizeof *n);
    *net = NULL;
    n->dir = tess_strdup(dir);
    n->file = tess_format("%s/graph.json", dir);
    n->number = json_object();
    n->root = json_load_file(n->file, JSON_REJECT_DUPLICATES, &e);
    TESS_FREED char *weights = tess_format("%s/weights.safetensors", dir);
    tess_status status =
        n->root ? TESS_OK : tess_error(TESS_INVALID, n->file, "line %d, column %d: %s", e.line, e.column, e.text);
    if (status == TESS_OK && access(weights, F_OK) == 0) status = tess_safetensors_open(weights, &n->weights);
    if (status == TESS_OK) status = read_all(n);
    if (status == TESS_OK)
        *net = n;
    else
        tess_import_close(n);
    return status;
}

void tess_import_close(tess_import *n)
{
    if (!n) return;
    for (int k = 0; k < n->values; k++) free(n->value[k].data);
    for (int k = 0; k < n->nodes; k++) free(n->node[k].in);
    free(n->value), free(n->node);
    free(n->number_of), free(n->called), free(n->output_of), free(n->output);
    free(n->dir), free(n->file);
    json_decref(n->root), json_decref(n->number);
    tess_safetensors_close(n->weights);
    free(n);
}

int tess_import_inputs(const tess_import *n)
{
    return n->inputs;
}

tess_dims tess_import_fed(const value *v)
{
    tess_dims d = v->dims;
    for (int k = v->batch; k > 0; k--) d.dim[k] = v->dims.dim[k - 1];
    if (v->batch > 0) d.dim[0] = v->dims.dim[v->batch];
    return d;
}

int tess_import_keys(const tess_import *n)
{
    return n->keys;
}

tess_import_input tess_import_input_of(const tess_import *n, int k)
{
    const value *v = &n->value[k];
    return (tess_import_input){v->name, v->element, tess_import_fed(v), v->batch < 0, v->bits};
}

const char *tess_import_number_name(const tess_import *n, int k)
{
    return n->called[k];
}

int64_t tess_import_batch(const tess_import *n)
{
    return n->samples;
}

/* ---- what the framework found ---- */

bool tess_import_checks(const tess_import *n, tess_import_check *check)
{
    const json_t *of = json_object_get(n->root, "check"), *loss = json_object_get(of, "loss"),
                 *norm = json_object_get(of, "grad_norm");
    if (!json_is_number(loss) || !json_is_number(norm)) return false;
    *check = (tess_import_check){json_number_value(loss), json_number_value(norm)};
    return true;
}

bool tess_import_gradient(const tess_import *n, const char *param, double *norm)
{
    const json_t *v = json_object_get(json_object_get(json_object_get(n->root, "check"), "gradients"), param);
    *norm = json_number_value(v);
    return json_is_number(v);
}

/* Puts the samples first. */
static void samples_first(const value *v, int32_t *values)
{
    int64_t before = 1, after = 1;
    if (v->batch < 1) return;
    for (int d = 0; d < v->dims.rank; d++) *(d < v->batch ? &before : &after) *= d == v->batch ? 1 : v->dims.dim[d];
    const int64_t samples = v->dims.dim[v->batch], all = before * samples * after;
    TESS_FREED int32_t *old = tess_alloc((size_t)all * sizeof *old);
    memcpy(old, values, (size_t)all * sizeof *old);
    for (int64_t i = 0; i < before * samples; i++)
        memcpy(values + (i % samples * before + i / samples) * after, old + i * after, (size_t)after * sizeof *old);
}

tess_status tess_import_batch_of(const tess_import *n, int input, int32_t *values)
{
    tess_safetensors *set;
    TESS_FREED char *path = tess_format("%s/check.safetensors", n->dir);
    tess_status status = tess_safetensors_open(path, &set);
    if (status == TESS_OK)
        status = convert(n, tess_safetensors_find(set, n->value[input].name), &n->value[input], values);
    if (status == TESS_OK) tess_safetensors_close(set);
    if (status == TESS_OK) samples_first(&n->value[input], values);
    return status;
}
