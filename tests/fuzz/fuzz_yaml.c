/* Any bytes as a run file in YAML: it is refused, or what it stands for can be written as JSON and read again. */
#include "models/train/config/config_impl.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 30000;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *copy = fuzz_copy(data, bytes);
    json_t *root = NULL, *again, *lines = json_object();
    if (tess_yaml_read("run.yaml", copy, bytes, &root, lines) == TESS_OK) {
        TESS_ASSERT(json_is_object(root));
        char *text = json_dumps(root, JSON_COMPACT | JSON_REAL_PRECISION(17));
        TESS_ASSERT(text && (again = json_loads(text, JSON_ALLOW_NUL, NULL)) && json_equal(root, again));
        json_decref(again);
        free(text);
        fuzz_taken++;
    }
    json_decref(root);
    json_decref(lines);
    free(copy);
    return 0;
}
