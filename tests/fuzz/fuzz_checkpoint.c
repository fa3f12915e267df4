/* Any bytes as a checkpoint: it is refused, or all of it was read, each element once.
 *
 * The input: two bytes with the length of state.json, state.json, and the rest is states.safetensors. The model is a
 * matrix and a vector, each in one piece; no StarPU runs. */
#include "models/train/checkpoint/checkpoint.h"
#include "tests/fuzz/fuzz.h"
#include <sys/stat.h>

int fuzz_taken;
const int fuzz_cases = 8000;

/* ---- a model's parameters without tiles ---- */

static float held[16];
static int64_t mapped;

int64_t __wrap_tess_param_pieces(const tess_tensor *p);
tess_piece __wrap_tess_param_piece(const tess_tensor *p, int64_t piece);
tess_status __wrap_tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data);
void __wrap_tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
tess_status __wrap_tess_graph_round(tess_graph *g);

int64_t __wrap_tess_param_pieces(const tess_tensor *p)
{
    (void)p;
    return 1;
}

tess_piece __wrap_tess_param_piece(const tess_tensor *p, int64_t piece)
{
    int64_t shape[3];
    TESS_ASSERT(piece == 0);
    tess_tensor_shape(p, shape);
    return (tess_piece){.rows = shape[0], .cols = shape[1], .writes = true};
}

tess_status __wrap_tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data)
{
    tess_piece q = __wrap_tess_param_piece(p, piece);
    (void)part, (void)mode;
    mapped += q.rows * q.cols;
    *data = held;
    return TESS_OK;
}

void __wrap_tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part)
{
    (void)p, (void)piece, (void)part;
}

tess_status __wrap_tess_graph_round(tess_graph *g)
{
    (void)g;
    return TESS_OK;
}

/* ---- the target ---- */

enum { STEP = 7, ELEMENTS = 2 * 3 + 3 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static tess_graph *g;
    if (!g) {
        char path[128];
        g = tess_graph_new(&(tess_graph_conf){0});
        tess_param(g, "w", 2, 3, TESS_ZERO);
        tess_param(g, "b", 3, 1, TESS_ZERO);
        snprintf(path, sizeof path, "%s/step-%08d", fuzz_dir(), STEP);
        TESS_ASSERT(mkdir(path, 0777) == 0);
    }
    if (bytes < 2) return 0;
    size_t size = data[0] | data[1] << 8, rest = bytes - 2;
    if (size > rest) size = rest;
    fuzz_file_in_dir("step-00000007/state.json", data + 2, size);
    fuzz_file_in_dir("step-00000007/states.safetensors", data + 2 + size, rest - size);
    tess_progress at = {0};
    bool found = false;
    const tess_status state = tess_checkpoint_find(fuzz_dir(), &at, &found);
    TESS_ASSERT(state != TESS_OK || (found && at.step == STEP && at.samples >= 0));
    mapped = 0;
    if (tess_checkpoint_load(fuzz_dir(), STEP, NULL, g) != TESS_OK) return 0;
    fuzz_taken += state == TESS_OK;
    TESS_ASSERT(mapped == TESS_PARTS * ELEMENTS);
    return 0;
}
