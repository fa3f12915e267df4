/* What the tests of the configuration share: files in a directory of the program's own, and how they are refused. */
#ifndef TESS_TESTS_CONFIG_FILES_H
#define TESS_TESTS_CONFIG_FILES_H
#include "models/train/config/config.h"
#include "runtime/runtime.h"
#include "tests/check.h"
#include <stdlib.h>
#include <unistd.h>

static const char FILE_NAME[] = "run.json";

/* Works in a directory of its own, so that errors name plain files. */
__attribute__((constructor)) static void enter(void)
{
    static char dir[] = "tessera-config-XXXXXX";
    if (!mkdtemp(dir) || chdir(dir)) abort();
}
__attribute__((destructor)) static void leave(void)
{
    char dir[256];
    unlink(FILE_NAME);
    unlink("out.json");
    rmdir("a-directory");
    if (getcwd(dir, sizeof dir) && strstr(dir, "/tessera-config-")) rmdir(dir);
}

static inline tess_status load_bytes(const char *text, size_t size, const char *const *set, size_t count,
                                     tess_config *c)
{
    FILE *f = fopen(FILE_NAME, "wb");
    if (!f || fwrite(text, 1, size, f) != size || fclose(f)) abort();
    tess_error_clear();
    return tess_config_load(FILE_NAME, set, count, c);
}

/* Loads and resolves for `ranks`; on success the caller frees. */
static inline tess_status load_for(const char *json, const char *set, int ranks, tess_config *c)
{
    tess_status status = load_bytes(json, strlen(json), &set, set != NULL, c);
    if (status == TESS_OK) status = tess_config_resolve(c, ranks);
    return status;
}

static const char BATCH[] = "{\"train_batch_size\": 8}";

#define REFUSED_FOR(json, set, ranks, text)                                                                            \
    do {                                                                                                               \
        tess_config refused_;                                                                                          \
        CHECK_EQ(load_for(json, set, ranks, &refused_), TESS_INVALID);                                                 \
        CHECK_STR(tess_error_text(), text);                                                                            \
        tess_config_free(&refused_);                                                                                   \
    } while (0)
#define REFUSED(json, text)    REFUSED_FOR(json, NULL, 1, text)
#define REFUSED_SET(set, text) REFUSED_FOR(BATCH, set, 1, text)

#endif
