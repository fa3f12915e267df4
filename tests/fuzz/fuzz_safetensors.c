/* Any bytes as a safetensors file: it is refused, or every element that it offers can be read, and so can those of its
 * stacks, and matrices with scales. */
#include "models/files/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 20000;

static bool is_stack(const void *context, const char *name)
{
    (void)context;
    return name[0] == 'm';
}

static void read_all(const tess_safetensors *s)
{
    for (size_t i = 0; i < tess_safetensors_count(s); i++) {
        const tess_safetensor *t = tess_safetensors_at(s, i);
        float out[64];
        unsigned sum = 0;
        for (size_t b = 0; b < t->bytes; b++) sum += ((const uint8_t *)t->data)[b];
        TESS_ASSERT(sum <= 255 * t->bytes && tess_safetensors_find(s, t->name) == t);
        for (int64_t e = 0; e < t->elements; e += 64)
            if (tess_safetensor_read(t, e, t->elements - e < 64 ? t->elements - e : 64, out) != TESS_OK) break;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tess_safetensors *s;
    if (tess_safetensors_view("fuzz", data, bytes, &s) != TESS_OK) return 0;
    fuzz_taken++;
    read_all(s);
    if (tess_safetensors_scale(s) == TESS_OK) read_all(s);
    if (tess_safetensors_unstack(s, is_stack, NULL) == TESS_OK) read_all(s);
    tess_safetensors_close(s);
    return 0;
}
