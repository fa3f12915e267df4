/* Any bytes as a .npy or a .safetensors of arrays: they are refused, or every sample that they offer can be read.
 *
 * The input: a byte that is odd for a .safetensors and says beside that what is wanted of it, and the rest is the file.
 */
#include "models/files/data/arrays.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 40000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const tess_array_kind kinds[] = {TESS_ARRAY_REAL, TESS_ARRAY_INT, TESS_ARRAY_BOOL, TESS_ARRAY_BITS};
    char text[600];
    tess_arrays *a;
    if (!bytes) return 0;
    const tess_array_want want = {
        .name = "x", .kind = kinds[data[0] >> 1 & 3], .rank = 1, .same = data[0] & 8, .dim = {3}};
    const char *path = fuzz_file_in_dir(data[0] & 1 ? "x.safetensors" : "x.npy", data + 1, bytes - 1);
    snprintf(text, sizeof text, data[0] & 16 ? "{\"x\": [\"%s\", \"%s\"]}" : "{\"x\": \"%s\"}", path, path);
    if (tess_arrays_open("fuzz", text, &want, 1, &a) != TESS_OK) return 0;
    fuzz_taken++;
    const uint64_t samples = tess_arrays_samples(a);
    TESS_ASSERT(samples > 0);
    for (uint64_t s = 0; s < samples && s < 64; s++) {
        int32_t out[3];
        if (tess_arrays_get(a, 0, s, out) != TESS_OK) continue;
        for (int k = 0; k < 3 && want.kind == TESS_ARRAY_BOOL; k++) TESS_ASSERT(out[k] == 0 || out[k] == 1);
    }
    if (tess_arrays_get(a, 0, samples - 1, (int32_t[3]){0}) != TESS_OK) tess_error_clear();
    TESS_ASSERT(tess_arrays_sum(a, 1) != 0 && tess_arrays_files(a) >= 1);
    tess_arrays_close(a);
    return 0;
}
