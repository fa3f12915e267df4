/* Between config.c (where values come from, what follows from them), yaml.c (the other syntax of a file), trainers.c
 * (files of other trainers), deepspeed.c (what its files have beside the table), optimizer_keys.c (what each optimizer
 * has of it), help.c and, below them, keys.c (one value) and key_table.c. */
#ifndef TESS_CONFIG_IMPL_H
#define TESS_CONFIG_IMPL_H
#include "models/train/config/config.h"
#include "runtime/runtime.h"
#include <jansson.h>

typedef enum tess_key_kind {
    TESS_KEY_BOOL,
    TESS_KEY_INT,
    TESS_KEY_STEPS,
    TESS_KEY_REAL,
    TESS_KEY_REALS,
    TESS_KEY_INTS,
    TESS_KEY_SIZE,
    TESS_KEY_TEXT,
    TESS_KEY_PATHS,
    TESS_KEY_TEXTS,
    TESS_KEY_OBJECTS,
    TESS_KEY_CHOICE,
    TESS_KEY_MODEL,
    TESS_KEY_TREE
} tess_key_kind;
typedef enum tess_key_state { TESS_KEY_ACTIVE, TESS_KEY_IGNORED, TESS_KEY_ABSENT } tess_key_state;

/* A row of config.def, or of other_keys.tsv. */
typedef struct tess_key {
    const char *path, *name; /* "optimizer.params.lr", "lr" */
    tess_key_kind kind;
    tess_key_state state;
    size_t offset; /* in tess_config; of a key of other_keys.tsv its place in `other` */
    const char *preset, *choices, *help;
    double min, max;
} tess_key;

/* How a key came to its value. */
typedef enum tess_key_mark { TESS_KEY_PRESET, TESS_KEY_GIVEN, TESS_KEY_AUTO } tess_key_mark;

enum { TESS_KEYS_MOST = 512, TESS_KEY_PATH = 128 }; /* room for all keys, and for the longest path */

/* All keys; the table is completed before main begins, and only read from then on. */
extern tess_key tess_keys[TESS_KEYS_MOST];
extern size_t tess_key_count;

/* What a key without a member has. */
union tess_other_value {
    bool is;
    int choice;
    int64_t whole;
    double real;
    char *text;
};

/* Finds a key by its path; NULL where there is none. */
const tess_key *tess_key_find(const char *path);
/* Returns whether keys have this path before a dot: "optimizer", "optimizer.params". */
bool tess_key_is_group(const char *path);
/* Puts `value` at a dotted path below `object`, with the objects on the way; takes its reference. False when something
 * else than an object is in the way, or a name is not UTF-8. */
bool tess_key_place(json_t *object, const char *path, json_t *value);
/* Guesses the key that an unknown path was meant to be; NULL when there is no telling. */
const char *tess_key_suggest(const char *path);
/* The name in the object of a model that stands for the directory it is made from. */
#define TESS_MODEL_DIR "dir"
/* Sets all keys to their defaults; the struct must not own anything yet. */
void tess_key_presets(tess_config *c);
/* Sets one from JSON. `source` is said in errors: a file, "command line", "environment". */
tess_status tess_key_set(tess_config *c, const tess_key *k, const json_t *value, const char *source) TESS_NODISCARD;
/* Reads text: null as in JSON; as JSON where the kind is not textual and it parses, else as a string. Returns a new
 * reference. */
json_t *tess_key_parse(const tess_key *k, const char *text);
/* Describes a value of this key: "a whole number from 1 to 8". */
const char *tess_key_describe(const tess_key *k, char *out, size_t size);
/* Returns the key's value as a new reference. */
json_t *tess_key_get(const tess_config *c, const tess_key *k);
/* Returns whether the key has its default. */
bool tess_key_is_preset(const tess_config *c, const tess_key *k);
/* Records how a key came to its value. */
tess_key_mark tess_key_how(const tess_config *c, const char *path);
/* Writes where a key stands, "run.yaml:3", as far as that is known, else `source`. Returns `out`. */
const char *tess_key_source(const tess_config *c, const char *source, const char *path, char out[static 512]);
/* Keeps this thread's error as what is wrong with a key until all sources are read, since a later one may set it. `k`
 * is NULL where there is no such key; `name` is what it was called. */
void tess_key_refuse(tess_config *c, const tess_key *k, const char *name);
/* Forgets what was wrong with a key that there is not; false when nothing was. */
bool tess_key_forgive(tess_config *c, const char *name);
/* Fails with all that is still refused: one key is the error, several are a line each before it. */
tess_status tess_config_refused(const tess_config *c) TESS_NODISCARD;

/* ---- yaml.c ---- */

/* Reads a file's YAML as JSON; *root is a new reference. `lines`, an object unless NULL, gets the line of each key by
 * its path. */
tess_status tess_yaml_read(const char *path, const char *text, size_t size, json_t **root,
                           json_t *lines) TESS_NODISCARD;

/* ---- trainer_table.c: keys of other trainers ---- */

enum { TESS_TRAINER_AXOLOTL, TESS_TRAINER_TRL, TESS_TRAINERS };
/* A row of trainer_keys.tsv, which says what its columns are. */
typedef struct tess_trainer_row {
    const char *names, *key, *rule, *preset[TESS_TRAINERS], *why;
} tess_trainer_row;
extern tess_trainer_row tess_trainer_rows[];
extern size_t tess_trainer_row_count;
/* Returns whether a row is of this name. */
bool tess_trainer_row_is(const tess_trainer_row *r, const char *name);
/* Returns the key that a name of other trainers means; NULL: there is no telling. */
const char *tess_trainer_suggest(const char *name);

/* ---- trainers.c ---- */

/* Reads a file of Axolotl's or TRL's as an object of keys, which is the caller's, and says what became of each of its
 * keys; what is wrong is kept. NULL: it is none. *deepspeed: the value of its key deepspeed, borrowed from `root`. */
json_t *tess_trainer_read(tess_config *c, const char *path, const json_t *root, json_t **deepspeed);

/* ---- optimizer_keys.c ---- */

/* Returns whether it is a key of optimizer.params that the optimizer in force does not have. */
bool tess_key_of_another_optimizer(const tess_config *c, const tess_key *k);
/* Refuses those that were given, and fills in the defaults that are the optimizer's own. */
tess_status tess_config_resolve_optimizer(tess_config *c) TESS_NODISCARD;
/* Sets Muon's two rates where they follow from lr, and refuses what Muon cannot do. */
tess_status tess_config_resolve_muon(tess_config *c) TESS_NODISCARD;

/* ---- deepspeed.c: what DeepSpeed's files have that is not said in the table ---- */

typedef struct tess_refusal {
    const tess_key *key;
    char *name, *text;
} tess_refusal;

struct tess_config_notes {
    unsigned char mark[TESS_KEYS_MOST]; /* tess_key_mark */
    char *renamed;                      /* "OLD as NEW, ..." of the old spellings that were met; NULL: none */
    bool has_weights;                   /* the model, as far as resolving looked */
    bool theirs;                        /* a file was another trainer's */
    json_t *lines;                      /* while a file of YAML is read: where its keys stand */
    const char *yaml;                   /* that file */
    tess_refusal *refused;              /* while sources are read */
    size_t refusals;
    bool more; /* than are kept */
};

/* Returns today's name of a key or group: `path` itself, or what an old spelling or a wrong section stands for, in
 * `out`.
 */
const char *tess_key_today(const char *path, char out[static TESS_KEY_PATH]);
/* Notes that a file used an old spelling. */
void tess_key_renamed(tess_config *c, const char *path, const char *today);
/* Prints a line for old spellings, and one for keys without effect. */
void tess_config_say_loaded(const tess_config *c);
/* Prints one line of what each "auto" became, once. */
void tess_config_say_auto(tess_config *c);
/* Resolves DeepSpeed's names of parallel.tensor and parallel.sequence. */
tess_status tess_config_resolve_parallel(tess_config *c) TESS_NODISCARD;
/* Resolves "auto" where it depends on whether the model has weights, and DeepSpeed's older switches. */
tess_status tess_config_resolve_deepspeed(tess_config *c) TESS_NODISCARD;

/* Ends a function that resolves: `FILE: KEY: what`. */
#define REFUSE(c, key, ...)                                                                                            \
    do {                                                                                                               \
        char where_[512];                                                                                              \
        snprintf(where_, sizeof where_, "%.300s: %s", (c)->file, key);                                                 \
        return tess_error(TESS_INVALID, where_, __VA_ARGS__);                                                          \
    } while (0)

#endif
