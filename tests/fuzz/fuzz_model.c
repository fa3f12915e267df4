/* Any bytes as a model's config.json: it is refused, or its graph can be described. */
#include "models/networks/networks.h"
#include "tests/fuzz/fuzz.h"
#include <jansson.h>

int fuzz_taken;
const int fuzz_cases = 8000;

/* A graph of a billion layers is as correct as one of two, and takes longer to describe. */
static bool is_small(const tess_model *m)
{
    static const char *const layers[] = {"n_layer", "num_hidden_layers"};
    json_t *root = json_loads(tess_model_json(m), 0, NULL);
    bool small = true;
    TESS_ASSERT(root);
    for (int i = 0; i < 2; i++) small = small && json_integer_value(json_object_get(root, layers[i])) <= 16;
    json_decref(root);
    return small;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *json = tess_alloc(bytes + 1);
    tess_model *m;
    if (bytes) memcpy(json, data, bytes);
    if (tess_model_open(NULL, json, &m) == TESS_OK) {
        const int64_t positions = tess_model_positions(m);
        fuzz_taken++;
        TESS_ASSERT(tess_model_vocab(m) >= 1 && positions >= 0);
        if (is_small(m)) {
            tess_graph *g = tess_graph_new(&(tess_graph_conf){0});
            tess_network net;
            const int64_t length = positions && positions < 4 ? positions : 4;
            if (tess_model_build(m, g, 1, length, TESS_FOR_LOSS, &net) == TESS_OK)
                TESS_ASSERT(tess_graph_params(g) > 0 && tess_graph_param_elements(g) > 0);
            tess_graph_free(g);
        }
        tess_model_close(m);
    }
    free(json);
    return 0;
}
