/* Any bytes as the graph.json of an exported network without weights: it is refused, or becomes a step that trains. */
#include "models/networks/networks.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 10000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tess_model *m;
    tess_step *s;
    tess_network net = {0};
    fuzz_file_in_dir("graph.json", data, bytes);
    if (tess_model_open(fuzz_dir(), NULL, &m) != TESS_OK) return 0;
    tess_graph *g = tess_graph_new(NULL);
    if (tess_model_batch(m) <= 64 && tess_model_build(m, g, tess_model_batch(m), 1, TESS_FOR_LOSS, &net) == TESS_OK &&
        tess_step_new(net.output, &(tess_step_conf){.train = true, .keep_gradients = true}, &s) == TESS_OK) {
        fuzz_taken++;
        tess_step_free(s);
    }
    free(net.input), free(net.made);
    tess_graph_free(g);
    tess_model_close(m);
    return 0;
}
