/* The configuration: one struct that config.def describes, filled from defaults, a file, the
 * environment and the command line, in that order. Its members are the dotted keys:
 *
 *     tess_config c;
 *     const char *set[] = {"optimizer.params.lr=1e-4"};
 *     TESS_TRY_DONE(tess_config_load("run.json", set, 1, &c));
 *     TESS_TRY_DONE(tess_config_resolve(&c, 1));
 *     printf("%g\n", c.optimizer.params.lr);
 *     done:
 *     tess_config_free(&c);
 */
#ifndef TESS_CONFIG_H
#define TESS_CONFIG_H
#include "models/networks/tessera_networks.h"
#include "models/train/tessera_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What choices mean, in the order of config.def. */
typedef enum tess_scheduler_type {
    TESS_SCHEDULER_NONE,
    TESS_SCHEDULER_WARMUP,
    TESS_SCHEDULER_WARMUP_DECAY,
    TESS_SCHEDULER_WARMUP_COSINE,
    TESS_SCHEDULER_ONE_CYCLE,
    TESS_SCHEDULER_RANGE_TEST,
    TESS_SCHEDULER_COSINE,
    TESS_SCHEDULER_WSD
} tess_scheduler_type;
typedef enum tess_decay_type { TESS_DECAY_COSINE, TESS_DECAY_LINEAR, TESS_DECAY_1_SQRT } tess_decay_type;
typedef enum tess_truncate_type { TESS_TRUNCATE_NOT, TESS_TRUNCATE_CUT, TESS_TRUNCATE_DROP } tess_truncate_type;
typedef enum tess_warmup_type { TESS_WARMUP_LOG, TESS_WARMUP_LINEAR } tess_warmup_type;
typedef enum tess_optimizer_states { TESS_STATES_FP32, TESS_STATES_BF16, TESS_STATES_8BIT } tess_optimizer_states;
typedef enum tess_deterministic {
    TESS_DETERMINISTIC_NO,
    TESS_DETERMINISTIC_RANKS,
    TESS_DETERMINISTIC_MACHINES
} tess_deterministic;
typedef enum tess_resume { TESS_RESUME_NO, TESS_RESUME_NEWEST, TESS_RESUME_WHOLE } tess_resume;
/* nvme is disk */
typedef enum tess_offload {
    TESS_OFFLOAD_AUTO = -1,
    TESS_OFFLOAD_NONE,
    TESS_OFFLOAD_CPU,
    TESS_OFFLOAD_DISK
} tess_offload;

/* A number that was not given. Resolving replaces it, except for the caps of memory and for steps. */
#define TESS_CONFIG_AUTO (-1)

#define TESS_CONFIG_BOOL(name)   bool name;
#define TESS_CONFIG_INT(name)    int64_t name;
#define TESS_CONFIG_STEPS(name)  int64_t name; /* see tess_config_steps */
#define TESS_CONFIG_REAL(name)   double name;
#define TESS_CONFIG_REALS(name)  double name[2];
#define TESS_CONFIG_INTS(name)   int64_t name[2];
#define TESS_CONFIG_SIZE(name)   int64_t name; /* bytes */
#define TESS_CONFIG_TEXT(name)   char *name;   /* NULL: not given */
#define TESS_CONFIG_CHOICE(name) int name;
/* A path, or the JSON text of a list of them, which models/files/data/data_paths.c takes apart; NULL: not given. */
#define TESS_CONFIG_PATHS(name) char *name;
/* A text, or the JSON text of a list of them; NULL: not given. */
#define TESS_CONFIG_TEXTS(name) char *name;
/* The JSON text of a list of objects, which those understand whose key it is; NULL: not given. */
#define TESS_CONFIG_OBJECTS(name) char *name;
/* A directory, and the JSON text of an object, which only models/ understands; both: it changes the directory's. */
#define TESS_CONFIG_MODEL(name) char *name, *name##_json;
#define TESS_CONFIG_TREE(name)  bool name; /* something in it is enabled */

typedef struct tess_config {
    char *file;    /* where errors say a value is from: the configuration's path */
    char *command; /* what goes on with this run, for messages; NULL: not known */
    bool quiet;    /* resolving does not say what "auto" becomes */
    struct {
        int64_t rows, elements, loss_rows;
    } cpu_tiles; /* what `tiles` is on a machine without a GPU */
#define GROUP(name) struct {
#define END(name)                                                                                                      \
    }                                                                                                                  \
    name;
#define KEY(kind, group, name, ...) TESS_CONFIG_##kind(name)
#include "models/train/config/config.def"
    union tess_other_value *other;   /* values of other_keys.tsv, whose keys have no members */
    struct tess_config_notes *notes; /* how keys came to their values, for what is said of them */
} tess_config;

/* Fills the configuration from defaults, then the file (NULL: none), TESSERA_<KEY>, and `count` KEY=VALUEs. Whatever it
 * returns, `config` can be freed. An unknown key, a wrong type and a value out of range are TESS_INVALID, each with its
 * place. */
tess_status tess_config_load(const char *path, const char *const *overrides, size_t count,
                             tess_config *config) TESS_NODISCARD;
/* Fills in what follows from other keys (batch sizes, schedule, "auto") and refuses what contradicts itself. What each
 * "auto" that was written became is one line on stderr. */
tess_status tess_config_resolve(tess_config *config, int64_t ranks) TESS_NODISCARD;
/* Returns how many data-parallel ranks are a group, by either key; 0: there are no groups. */
int tess_config_group(const tess_config *c);
/* Returns whether such shares, parallel.shares or .state_shares, are to be measured. */
bool tess_config_measured(const char *shares);
/* Prints a line where the learning rate was left out and is not the default, since the model has weights. */
void tess_config_say_rate(const tess_config *c);
/* Prints a line if a step with `tokens` tokens in a micro-batch, and `elements` elements in its largest parameter, is
 * cut into other tiles than on a machine without a GPU. */
void tess_config_say_cut(const tess_config *c, int64_t tokens, int64_t elements);
/* Refuses, with TESS_INVALID, a text, a number or a model that was not given, and names the key. */
tess_status tess_config_require(const tess_config *config, const char *key) TESS_NODISCARD;
/* Writes all that is in force, defaults included, as a JSON file that tess_config_load takes; whole or not at all. */
tess_status tess_config_write(const tess_config *config, const char *path) TESS_NODISCARD;
/* Stores the i-th key and its value in force as JSON text, which is the caller's to free and NULL for a key without
 * effect; false behind the last one. */
bool tess_config_entry(const tess_config *config, size_t i, const char **key, char **value);
/* Returns whether the learning rate falls until scheduler.params.total_num_steps. */
bool tess_config_decays(const tess_config *c);
/* Returns how many steps a key says where all steps are `total`: a share of them is below 0 before. */
int64_t tess_config_steps(int64_t given, int64_t total);
/* Returns the share of data.train that data.valid holds out; 0 where it is paths, or nothing. */
double tess_config_held_out(const tess_config *c);
/* Returns the texts of a value that is one, a list of them or NULL, as an array, which the caller has to json_decref.
 */
struct json_t *tess_config_list(const char *text);
/* Returns the key that an option of another program means, "--steps", "--learning-rate"; NULL: there is no telling. */
const char *tess_config_meant(const char *option);
/* Frees what the configuration owns. */
void tess_config_free(tess_config *config);

/* What a command uses of the configuration: groups ("memory", "zero_optimization.offload_param") and keys, between
 * blanks; "all" is all of it. `required`, a list that ends in NULL, are the keys it does not run without. */
typedef struct tess_config_use {
    const char *keys, *const *required;
} tess_config_use;
/* Prints one line a group of those keys; with a `topic` one line a key: of that group, of all groups ("all"), that key,
 * or those in no group ("run"). TESS_INVALID: the command uses no such group. */
tess_status tess_config_help(const tess_config_use *use, const char *topic, FILE *out) TESS_NODISCARD;

/* Returns the user's cache directory, which need not exist: below XDG_CACHE_HOME, else HOME; NULL: neither is set. The
 * caller frees it. */
char *tess_cache_dir(void);

#ifdef __cplusplus
}
#endif

#endif
