/* Any bytes as the index of a model in shards: it is refused, or every tensor that it names is where it says. */
#include "models/files/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"
#include <stdio.h>

int fuzz_taken;
const int fuzz_cases = 8000;

/* Two shards with x and y, and z; "bad" is none. */
static void write_shards(void)
{
    static const char *const name[] = {"a.safetensors", "b.safetensors", "bad"};
    static const char *const header[] = {("{\"x\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                                          "\"y\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[8,12]}}"),
                                         "{\"z\":{\"dtype\":\"BF16\",\"shape\":[3],\"data_offsets\":[0,6]}}", "{"};
    static const size_t tensors[] = {12, 6, 0};
    for (int i = 0; i < 3; i++) {
        char file[300] = {0};
        const size_t n = strlen(header[i]);
        memcpy(file, &(uint64_t){n}, sizeof(uint64_t));
        memcpy(file + 8, header[i], n);
        fuzz_file_in_dir(name[i], file, 8 + n + tensors[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static bool written;
    if (!written) write_shards();
    written = true;
    tess_safetensors *s;
    if (tess_safetensors_open(fuzz_file_in_dir("m.safetensors.index.json", data, bytes), &s) != TESS_OK) return 0;
    fuzz_taken++;
    for (size_t i = 0; i < tess_safetensors_count(s); i++) {
        const tess_safetensor *t = tess_safetensors_at(s, i);
        float out[3];
        TESS_ASSERT(t->elements <= 3 && tess_safetensors_find(s, t->name) == t);
        TESS_ASSERT(tess_safetensor_read(t, 0, t->elements, out) == TESS_OK);
    }
    tess_safetensors_close(s);
    return 0;
}
