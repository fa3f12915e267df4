/* Any bytes as a GGUF file: it is refused, or every element that it offers can be read, config.json made of it is a
 * model's or refused, and so is its tokenizer. */
#include "models/files/safetensors/safetensors.h"
#include "models/networks/networks.h"
#include "models/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 8000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tess_safetensors *s;
    tess_model *m;
    tess_tokenizer *t;
    if (tess_safetensors_view("fuzz.gguf", data, bytes, &s) == TESS_OK) {
        fuzz_taken++;
        for (size_t i = 0; i < tess_safetensors_count(s); i++) {
            const tess_safetensor *u = tess_safetensors_at(s, i);
            float out[64];
            TESS_ASSERT(tess_safetensors_find(s, u->name) == u);
            TESS_ASSERT(!u->bytes || ((const uint8_t *)u->data >= data && u->bytes <= bytes &&
                                      (size_t)((const uint8_t *)u->data - data) <= bytes - u->bytes));
            for (int64_t e = 0; e < u->elements; e += 64)
                TESS_ASSERT(tess_safetensor_read(u, e, u->elements - e < 64 ? u->elements - e : 64, out) == TESS_OK);
        }
        tess_safetensors_close(s);
    }
    const char *path = fuzz_file_in_dir("fuzz.gguf", data, bytes);
    if (tess_model_open(path, NULL, &m) == TESS_OK) {
        TESS_ASSERT(tess_model_vocab(m) >= 1 && tess_model_positions(m) >= 0);
        tess_model_close(m);
    }
    if (tess_tokenizer_in(path) && tess_tokenizer_open(path, &t) == TESS_OK) {
        tess_ids ids = {0};
        TESS_ASSERT(tess_tokenizer_encode(t, "fuzz", "the cat <s> sat.", 16, &ids) == TESS_OK || !ids.count);
        tess_ids_free(&ids);
        tess_tokenizer_free(t);
    }
    return 0;
}
