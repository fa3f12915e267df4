/* Any bytes as a pytorch_model.bin: it is refused, or every element that it offers can be read. */
#include "models/files/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 20000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tess_safetensors *s;
    if (tess_safetensors_view("fuzz.bin", data, bytes, &s) != TESS_OK) return 0;
    fuzz_taken++;
    for (size_t i = 0; i < tess_safetensors_count(s); i++) {
        const tess_safetensor *t = tess_safetensors_at(s, i);
        float out[64];
        TESS_ASSERT(tess_safetensors_find(s, t->name) == t);
        TESS_ASSERT(!t->bytes || ((const uint8_t *)t->data >= data && t->bytes <= bytes &&
                                  (size_t)((const uint8_t *)t->data - data) <= bytes - t->bytes));
        for (int64_t e = 0; e < t->elements; e += 64)
            if (tess_safetensor_read(t, e, t->elements - e < 64 ? t->elements - e : 64, out) != TESS_OK) break;
    }
    tess_safetensors_close(s);
    return 0;
}
