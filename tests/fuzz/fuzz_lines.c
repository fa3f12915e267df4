/* Any bytes as a .jsonl, a .json or a .csv: it is refused, or every sample that it offers can be read and is what a
 * step may be fed with, also by way of the index that the first reading leaves. The first byte chooses what the model
 * learns, and how; its highest bit is no .jsonl. */
#include "models/files/data/data.h"
#include "tests/fuzz/fuzz.h"
#include <unistd.h>

int fuzz_taken;
const int fuzz_cases = 20000;

enum { T = 5, VOCAB = 300, LABELS = 3, TYPES = 2 };

static void check_token(int32_t id, bool none)
{
    TESS_ASSERT((id >= 0 && id < VOCAB) || (none && id == -100));
}

static void read_samples(const tess_data *d)
{
    int32_t ids[T], targets[T], bounds[2 * T], positions[T], segments[T], decoder[T], label;
    const uint64_t samples = tess_data_samples(d);
    for (uint64_t s = 0; s < samples && s < 64; s++) {
        const tess_sample into = {ids, targets, bounds, positions, segments, decoder, &label, s, false};
        const uint64_t sample = tess_data_order(d, s);
        TESS_ASSERT(sample < samples && tess_data_get(d, sample, &into) == TESS_OK);
        for (int t = 0; t < T; t++) {
            check_token(ids[t], false);
            check_token(targets[t], true);
            check_token(decoder[t], false);
            const int32_t first = bounds[t], end = bounds[T + t];
            TESS_ASSERT((!first && !end) || (first >= 0 && first <= t && t < end && end <= T));
            TESS_ASSERT(positions[t] >= 0 && positions[t] <= t && segments[t] >= 0 && segments[t] < TYPES);
        }
        TESS_ASSERT(label == -100 || (label >= 0 && label < LABELS));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes) return 0;
    const bool masks = data[0] & 16;
    const tess_data_conf conf = {.seq_length = T,
                                 .vocab = VOCAB,
                                 .shuffle = true,
                                 .task = (tess_data_task)(data[0] & 3),
                                 .truncate = data[0] & 4,
                                 .pack = data[0] & 8,
                                 .restart = data[0] & 8,
                                 .end_of_text = masks ? 256 : -1,
                                 .end_completions = data[0] & 32,
                                 .mlm_probability = masks ? 0.3 : 0,
                                 .whole_words = data[0] & 64,
                                 .mask_token = 257,
                                 .noise_density = masks ? 0.3 : 0,
                                 .noise_span = 2,
                                 .sentinel = VOCAB - 1,
                                 .decoder_start = 258,
                                 .padding = 259,
                                 .labels = LABELS,
                                 .types = TYPES};
    const char *name = !(data[0] & 128) ? "fuzz.jsonl" : bytes > 1 && data[1] == '[' ? "fuzz.json" : "fuzz.csv";
    const char *path = fuzz_file_in_dir(name, data + 1, bytes - 1);
    char index[300];
    tess_data *d, *again;
    snprintf(index, sizeof index, "%s.index", path);
    if (tess_data_open(path, NULL, &conf, &d) == TESS_OK) {
        fuzz_taken++;
        read_samples(d);
        TESS_ASSERT(tess_data_open(path, NULL, &conf, &again) == TESS_OK);
        TESS_ASSERT(tess_data_samples(d) == tess_data_samples(again) && tess_data_sum(d) == tess_data_sum(again));
        read_samples(again);
        tess_data_close(d);
        tess_data_close(again);
    }
    unlink(index);
    return 0;
}
