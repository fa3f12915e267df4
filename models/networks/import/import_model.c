/* An imported network as a model: what stands in the place of a family, and what runs ask of it. */
#include "models/networks/import/import_impl.h"
#include "models/networks/model/model.h"
#include "models/text/base/directories.h"
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include <string.h>

static const tess_field no_fields[] = {{0}};
const tess_family tess_family_import = {.type = "exported network",
                                        .architecture = "network of a graph.json",
                                        .prefix = "",
                                        .field = no_fields,
                                        .answers = TESS_ANSWERS_LABEL};

/* Runs of several ranks, and those that go on, compare these. */
char *tess_import_summary(const tess_import *n)
{
    TESS_FREED_JSON json_t *network = json_deep_copy(n->root);
    json_object_del(network, "check");
    json_object_del(network, "producer");
    TESS_FREED char *text = json_dumps(network, JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    int turned = 0; /* matrices that a checkpoint has transposed */
    for (int v = 0; v < n->values; v++) turned += n->value[v].turned;
    TESS_FREED char *kept = turned ? tess_format(",\"turned\":%d", turned) : tess_format("%s", "");
    char *summary = tess_format("{\"nodes\":%d,\"parameters\":%zu,\"sum\":\"%016llx\"%s}", n->nodes,
                                json_object_size(json_object_get(n->root, "params")),
                                (unsigned long long)tess_sum_bytes(TESS_SUM, text, strlen(text)), kept);
    return summary;
}

tess_status tess_import_network(const tess_model *m, tess_graph *g, const tess_build *b, tess_network *net)
{
    tess_imported built;
    *net = (tess_network){0};
    if (b->purpose != TESS_FOR_LOSS || b->cache)
        return tess_error(TESS_INVALID, m->dir, "is an exported network, which makes a loss and no logits");
    if (b->batch != tess_import_batch(m->import))
        return tess_error(TESS_INVALID, m->dir, "micro-batches of %lld samples, but it was exported for %lld",
                          (long long)b->batch, (long long)tess_import_batch(m->import));
    TESS_TRY(tess_import_build(m->import, g, 0, &built));
    net->output = built.output;
    net->measured = built.measured;
    net->input = built.input;
    net->made = built.made;
    return TESS_OK;
}

const char *tess_model_number_name(const tess_model *m, int preference, int k)
{
    static const char *const of_pairs[] = {"accuracy", "margin", "reward_chosen", "reward_rejected"};
    if (preference) return preference == TESS_PREFERENCE_KTO && k == 1 ? "kl" : of_pairs[k];
    static const char *const accuracy[] = {"accuracy", "label_accuracy"};
    return m->import ? tess_import_number_name(m->import, k) : accuracy[k > 0];
}

int64_t tess_model_batch(const tess_model *m)
{
    return m->import ? tess_import_batch(m->import) : 0;
}

static const tess_array_kind array_kind[] = {
    [TESS_REAL] = TESS_ARRAY_REAL, [TESS_INT] = TESS_ARRAY_INT, [TESS_BOOL] = TESS_ARRAY_BOOL};

int tess_model_arrays(const tess_model *m, tess_array_want *want)
{
    const int count = m->import ? tess_import_inputs(m->import) : 0;
    for (int k = 0; k < count && want; k++) {
        const tess_import_input in = tess_import_input_of(m->import, k);
        const int first = in.whole ? 0 : 1;
        want[k] = (tess_array_want){.name = in.name,
                                    .kind = in.bits ? TESS_ARRAY_BITS : array_kind[in.element],
                                    .rank = in.dims.rank - first,
                                    .same = in.whole};
        memcpy(want[k].dim, in.dims.dim + first, (size_t)want[k].rank * sizeof *want[k].dim);
    }
    return count;
}

int tess_model_keys(const tess_model *m)
{
    return m->import ? tess_import_keys(m->import) : 0;
}

/* Marks what a value is made of. */
static void mark(const tess_import *n, int v, bool *reads)
{
    TESS_FREED bool *needed = tess_alloc((size_t)n->values);
    needed[v] = true;
    for (int k = n->nodes - 1; k >= 0; k--)
        for (int i = 0; needed[n->node[k].out] && i < n->node[k].inputs; i++) needed[n->node[k].in[i]] = true;
    for (int k = 0; k < n->inputs; k++) reads[k] = needed[k];
}

int tess_model_outputs(const tess_model *m, int k, tess_array_want *want, bool *reads)
{
    const tess_import *n = m->import;
    if (!n || !want) return n ? n->outputs : 0;
    const value *v = &n->value[n->output_of[k]];
    *want = (tess_array_want){.name = n->output[k], .kind = array_kind[v->element], .rank = v->dims.rank};
    memcpy(want->dim, v->dims.dim, sizeof v->dims.dim);
    mark(n, n->output_of[k], reads);
    return n->outputs;
}

bool tess_model_checks(const tess_model *m, const char *param, double *value)
{
    tess_import_check c;
    if (!m->import) return false;
    if (param && *param) return tess_import_gradient(m->import, param, value);
    if (!tess_import_checks(m->import, &c)) return false;
    *value = param ? c.grad_norm : c.loss;
    return true;
}

tess_status tess_model_check_batch(const tess_model *m, int input, int32_t *values)
{
    return tess_import_batch_of(m->import, input, values);
}

/* What makes a checkpoint a model: graph.json, and the constants that are not in it. */
tess_status tess_import_save_rest(const tess_import *n, const char *dir)
{
    TESS_FREED char *to = tess_format("%s/graph.json", dir), *weights = tess_format("%s/weights.safetensors", n->dir),
                    *consts = tess_format("%s/weights.safetensors", dir);
    bool large = false;
    for (size_t i = 0; n->weights && i < tess_safetensors_count(n->weights); i++)
        large |= !strncmp(tess_safetensors_at(n->weights, i)->name, "const:", 6);
    tess_status status = tess_copy_file(n->file, to);
    if (status == TESS_OK && large) status = tess_copy_file(weights, consts);
    return status;
}
