/* tessera.h: the configuration of the command, for its commands by call (tessera_train.h). What it may contain
 * is listed by `tessera train --help`. */
#ifndef TESSERA_CONFIG_H
#define TESSERA_CONFIG_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_config tess_config;
/* Reads CONFIG.json (NULL: there is none), then the environment's TESSERA_<KEY>, then `count` settings KEY=VALUE; of
 * two values of a key the later one holds. Values that follow from them and the number of ranks are filled in. An
 * unknown key, a value of the wrong type or out of range, and a contradiction are TESS_INVALID. The caller closes
 * *config. */
tess_status tess_config_open(const char *path, const char *const *settings, size_t count, int64_t ranks,
                             tess_config **config) TESS_NODISCARD;
/* Frees a configuration; NULL is allowed. */
void tess_config_close(tess_config *config);

#ifdef __cplusplus
}
#endif

#endif
