/* Any bytes as a Megatron pair or an llm.c file: they are refused, or every sample that they offer can be read.
 *
 * The input: a byte that is odd for Megatron, two of the index's size, the index, and the rest is the .bin. */
#include "models/files/data/data.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 40000;

static void read_samples(const tess_data *d)
{
    int32_t tokens[3], targets[3];
    const tess_sample into = {.ids = tokens, .targets = targets};
    uint64_t samples = tess_data_samples(d);
    for (uint64_t s = 0; s < samples && s < 256; s++) {
        uint64_t place = tess_data_order(d, s);
        TESS_ASSERT(place < samples);
        if (tess_data_get(d, place, &into) != TESS_OK) continue;
        for (int t = 0; t < 3; t++) TESS_ASSERT(targets[t] >= 0 && targets[t] < 50);
    }
    if (tess_data_get(d, samples - 1, &into) != TESS_OK) return;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 3) return 0;
    size_t size = data[1] | data[2] << 8, rest = bytes - 3;
    if (size > rest) size = rest;
    uint8_t *idx_data = fuzz_copy(data + 3, size), *bin_data = fuzz_copy(data + 3 + size, rest - size);
    tess_map idx = {.path = "fuzz.idx", .data = idx_data, .bytes = size};
    tess_map bin = {.path = "fuzz.bin", .data = bin_data, .bytes = rest - size};
    tess_data_conf conf = {.seq_length = 3, .vocab = 50, .shuffle = true, .seed = 1};
    tess_data *d;
    if (tess_data_view(data[0] & 1 ? &idx : NULL, &bin, &conf, &d) == TESS_OK) {
        fuzz_taken++;
        read_samples(d);
        tess_data_close(d);
    }
    free(idx_data);
    free(bin_data);
    return 0;
}
