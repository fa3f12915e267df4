/* A model: its family found by model_type, its fields read, its graph built. */
#include "model_impl.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tess_family *const families[] = {
#define TESS_MODEL(name) &tess_family_##name,
#include "models.def"
#undef TESS_MODEL
};
enum { FAMILIES = sizeof families / sizeof families[0] };

static tess_status find_family(const char *where, const json_t *root, const tess_family **family)
{
    const json_t *type = json_object_get(root, "model_type");
    if (!json_is_string(type))
        return tess_error(TESS_INVALID, where, "model_type is missing (expected a name such as gpt2)");
    const char *names[FAMILIES];
    for (int i = 0; i < FAMILIES; i++) {
        names[i] = families[i]->type;
        if (!strcmp(names[i], json_string_value(type))) {
            *family = families[i];
            return TESS_OK;
        }
    }
    const char *near = tess_nearest(json_string_value(type), names, FAMILIES);
    char known[512] = "";
    for (int i = 0; i < FAMILIES && !near; i++) {
        const size_t at = strlen(known);
        snprintf(known + at, sizeof known - at, "%s%s", at ? ", " : "", names[i]);
    }
    return tess_error(TESS_INVALID, where, "model_type: %s is not known (%s%s)", json_string_value(type),
                      near ? "did you mean " : "known: ", near ? near : known);
}

static tess_status read_config(const char *where, const json_t *root, tess_model *m)
{
    if (!json_is_object(root)) return tess_error(TESS_INVALID, where, "is no JSON object");
    TESS_TRY(find_family(where, root, &m->family));
    m->json = json_dumps(root, JSON_INDENT(2));
    return tess_fields_read(m->family, where, m->json, m->numbers);
}

tess_status tess_model_open(const char *dir, const char *json, tess_model **model)
{
    json_error_t e;
    char *path = dir ? tess_format("%s/config.json", dir) : tess_strdup("model");
    json_t *root =
        dir ? json_load_file(path, JSON_REJECT_DUPLICATES, &e) : json_loads(json, JSON_REJECT_DUPLICATES, &e);
    tess_model *m = tess_alloc(sizeof *m);
    tess_status status;
    *model = NULL;
    if (dir) m->dir = tess_strdup(dir);
    if (root)
        status = read_config(path, root, m);
    else if (dir && access(path, R_OK))
        status = tess_error(TESS_INVALID, path, "%s (expected a Hugging Face directory)", strerror(errno));
    else
        status = tess_error(TESS_INVALID, path, "line %d, column %d: %s", e.line, e.column, e.text);
    json_decref(root);
    free(path);
    if (status == TESS_OK)
        *model = m;
    else
        tess_model_close(m);
    return status;
}

void tess_model_close(tess_model *m)
{
    if (!m) return;
    free(m->dir);
    free(m->json);
    free(m);
}

int64_t tess_model_vocab(const tess_model *m)
{
    return m->family->vocab(m->numbers);
}
int64_t tess_model_positions(const tess_model *m)
{
    return m->family->positions(m->numbers);
}
const char *tess_model_dir(const tess_model *m)
{
    return m->dir;
}

tess_status tess_model_build(const tess_model *m, tess_graph *g, int64_t batch, int64_t length, tess_purpose purpose,
                             tess_network *net)
{
    int64_t most = tess_model_positions(m);
    if (most && length > most)
        return tess_error(TESS_INVALID, "sequence length", "%lld, but the model has %lld positions", (long long)length,
                          (long long)most);
    *net = (tess_network){.ids = tess_input(g, "ids", batch, length)};
    tess_tensor *x = m->family->body(m->numbers, g, net->ids), *w = m->family->head(m->numbers, g);
    if (purpose == TESS_FOR_LOSS) {
        net->targets = tess_input(g, "targets", batch, length);
        net->output = tess_cross_entropy(x, w, NULL, net->targets);
    } else {
        net->index = tess_input(g, "index", batch, 1);
        net->output = tess_linear(tess_pick(x, net->index), w, NULL);
    }
    return net->output ? TESS_OK : TESS_INVALID;
}
