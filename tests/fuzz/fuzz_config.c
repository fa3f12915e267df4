/* Any bytes as a run's configuration, in its three forms: it is refused, or what a run writes of it is read back as the
 * same settings.
 *
 * The input: the JSON file; behind each 0 a setting of the command line, KEY=VALUE, or, where it begins with TESSERA_,
 * a variable of the environment. The number of ranks follows from the size. */
#include "models/train/config/config.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 8000;

enum { MOST = 8 };

/* What a wrong name might have meant costs a hundred times what all else does: of some names it is asked. */
const char *__real_tess_nearest(const char *name, const char *const *names, size_t count);
const char *__wrap_tess_nearest(const char *name, const char *const *names, size_t count);

const char *__wrap_tess_nearest(const char *name, const char *const *names, size_t count)
{
    return strlen(name) % 64 == 3 ? __real_tess_nearest(name, names, count) : NULL;
}

static tess_status load(const char *path, char **set, size_t count, int64_t ranks, tess_config *c)
{
    const char *override[MOST] = {0};
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        char *equal = strchr(set[i], '=');
        if (strncmp(set[i], "TESSERA_", 8) || !equal)
            override[n++] = set[i];
        else {
            *equal = 0;
            setenv(set[i], equal + 1, 1);
            *equal = '=';
        }
    }
    tess_status status = tess_config_load(path, override, n, c);
    if (status == TESS_OK) status = tess_config_resolve(c, ranks);
    for (size_t i = 0; i < count; i++) {
        char *equal = strchr(set[i], '=');
        if (strncmp(set[i], "TESSERA_", 8) || !equal) continue;
        *equal = 0;
        unsetenv(set[i]);
    }
    return status;
}

static void check_read_back(const tess_config *c, int64_t ranks)
{
    const char *path = fuzz_file_in_dir("config.json", "", 0), *key;
    tess_config again;
    char *a, *b;
    TESS_ASSERT(tess_config_write(c, path) == TESS_OK);
    tess_status status = load(path, NULL, 0, ranks, &again);
    if (status != TESS_OK) fprintf(stderr, "%s\n", tess_error_text());
    TESS_ASSERT(status == TESS_OK);
    for (size_t i = 0; tess_config_entry(c, i, &key, &a); i++) {
        TESS_ASSERT(tess_config_entry(&again, i, &key, &b));
        const bool same = (!a && !b) || (a && b && !strcmp(a, b));
        if (!same) fprintf(stderr, "%s: %s, read back as %s\n", key, a, b);
        TESS_ASSERT(same);
        free(a);
        free(b);
    }
    tess_config_free(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    char *text = tess_alloc(bytes + 1), *set[MOST];
    if (bytes) memcpy(text, data, bytes);
    const size_t file = strlen(text);
    size_t count = 0;
    for (size_t at = file + 1; at < bytes && count < MOST; at += strlen(text + at) + 1) set[count++] = text + at;
    const int64_t ranks = 1 + (int64_t)(bytes % 4);
    tess_config c;
    if (load(fuzz_file(text, file), set, count, ranks, &c) == TESS_OK) {
        fuzz_taken++;
        check_read_back(&c, ranks);
    }
    tess_config_free(&c);
    free(text);
    return 0;
}
