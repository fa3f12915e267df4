/* The table of keys, and finding one. */
#include "models/train/config/config_impl.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define BELOW_ONE          (1 - DBL_EPSILON / 2)
#define ANY                .min = -INFINITY, .max = INFINITY
#define RANGE(least, most) .min = (least), .max = (most)
#define ONE_OF(names)      .choices = (names)

/* The choices of optimizer.type. */
static const char optimizer_names[] =
#define OPTIMIZER(id, kind, name, params) name "|"
#include "codelets/optimizers.def"
    ;

/* Of parallel.carrier, in the order that tess_run_start reads. */
#ifdef TESS_HAVE_STARPU_MPI
static const char carrier_names[] = "starpu_mpi|mpi|nccl";
#else
static const char carrier_names[] = "starpu_mpi!|mpi|nccl";
#endif

tess_key tess_keys[TESS_KEYS_MOST] = {
#define GROUP(name)
#define END(name)
#define KEY(kind_, group, name_, preset_, limits, help_)                                                               \
    {.path = #group #name_,                                                                                            \
     .name = #name_,                                                                                                   \
     .kind = TESS_KEY_##kind_,                                                                                         \
     .offset = offsetof(tess_config, group name_),                                                                     \
     .preset = preset_,                                                                                                \
     .help = help_,                                                                                                    \
     limits},
#include "models/train/config/config.def"
};
size_t tess_key_count;

/* ---- other_keys.tsv ---- */

extern const unsigned char tess_other_keys[]; /* its text, which the build embeds */

static tess_key other_key(char *line, size_t row)
{
    static const char *const kinds[] = {
        [TESS_KEY_BOOL] = "BOOL", [TESS_KEY_INT] = "INT",       [TESS_KEY_REAL] = "REAL",
        [TESS_KEY_TEXT] = "TEXT", [TESS_KEY_CHOICE] = "CHOICE", [TESS_KEY_TREE] = "TREE"};
    const char *path = strsep(&line, "\t"), *kind = strsep(&line, "\t"), *preset = strsep(&line, "\t");
    char *limits = strsep(&line, "\t"), *most = strstr(limits, " to ");
    const char *state = strsep(&line, "\t"), *dot = strrchr(path, '.');
    size_t k = 0;
    while (!kinds[k] || strcmp(kinds[k], kind)) TESS_ASSERT(++k < sizeof kinds / sizeof *kinds);
    return (tess_key){.path = path,
                      .name = dot ? dot + 1 : path,
                      .kind = (tess_key_kind)k,
                      .state = !strcmp(state, "ABSENT") ? TESS_KEY_ABSENT : TESS_KEY_IGNORED,
                      .offset = row,
                      .preset = *preset ? preset : NULL,
                      .choices = *limits && !most ? limits : NULL,
                      .help = line,
                      .min = most ? strtod(limits, NULL) : -INFINITY,
                      .max = most ? strtod(most + 4, NULL) : INFINITY};
}

/* Puts each behind the last key of its group: they stand together. */
__attribute__((constructor)) static void add_other_keys(void)
{
    static char *text; /* what paths and help point into */
    char *rest = text = tess_strdup((const char *)tess_other_keys);
    size_t row = 0;
    while (tess_keys[tess_key_count].path) tess_key_count++;
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!*line || *line == '#') continue;
        TESS_ASSERT(tess_key_count < TESS_KEYS_MOST - 1);
        const tess_key k = other_key(line, row++);
        const size_t group = (size_t)(k.name - k.path);
        size_t at = tess_key_count;
        while (at > 0 && strncmp(tess_keys[at - 1].path, k.path, group)) at--;
        if (!at) at = tess_key_count;
        memmove(&tess_keys[at + 1], &tess_keys[at], (tess_key_count++ - at) * sizeof k);
        tess_keys[at] = k;
    }
}

/* ---- finding ---- */

const tess_key *tess_key_find(const char *path)
{
    for (size_t i = 0; i < tess_key_count; i++)
        if (!strcmp(tess_keys[i].path, path)) return &tess_keys[i];
    return NULL;
}

bool tess_key_place(json_t *object, const char *path, json_t *value)
{
    char name[TESS_KEY_PATH];
    for (const char *dot; (dot = strchr(path, '.')); path = dot + 1) {
        snprintf(name, sizeof name, "%.*s", (int)(dot - path), path);
        json_t *inner = json_object_get(object, name);
        if (!inner && json_object_set_new(object, name, json_object()) == 0) inner = json_object_get(object, name);
        object = inner;
        if (!json_is_object(object)) break;
    }
    return json_object_set_new(object, path, value) == 0;
}

bool tess_key_is_group(const char *path)
{
    size_t n = strlen(path);
    for (size_t i = 0; i < tess_key_count; i++)
        if (!strncmp(tess_keys[i].path, path, n) && tess_keys[i].path[n] == '.') return true;
    return false;
}

/* The nearest among what stands beside `path` in its group; groups count. */
static const char *nearest_sibling(const char *path, const char *leaf)
{
    static _Thread_local char found[TESS_KEY_PATH];
    char seen[TESS_KEYS_MOST][TESS_KEY_PATH];
    const char *names[TESS_KEYS_MOST];
    size_t prefix = (size_t)(leaf - path), count = 0;
    for (size_t i = 0; i < tess_key_count; i++) {
        if (strncmp(tess_keys[i].path, path, prefix)) continue;
        const char *rest = tess_keys[i].path + prefix;
        size_t n = strcspn(rest, ".");
        memcpy(seen[count], rest, n);
        seen[count][n] = 0;
        if (count && !strcmp(seen[count], seen[count - 1])) continue; /* a group's keys stand together */
        names[count] = seen[count];
        count++;
    }
    const char *best = tess_nearest(leaf, names, count);
    if (best) snprintf(found, sizeof found, "%.*s%s", (int)prefix, path, best);
    return best ? found : NULL;
}

/* The one key or group of that name in another section, NULL when there are several. */
static const char *same_name(const char *path, const char *leaf)
{
    static _Thread_local char found[TESS_KEY_PATH];
    const size_t n = strlen(leaf);
    found[0] = 0;
    for (size_t i = 0; i < tess_key_count; i++)
        for (const char *p = tess_keys[i].path, *end; p; p = *end ? end + 1 : NULL) {
            char at[TESS_KEY_PATH];
            end = p + strcspn(p, ".");
            if ((size_t)(end - p) != n || strncasecmp(p, leaf, n)) continue;
            snprintf(at, sizeof at, "%.*s", (int)(end - tess_keys[i].path), tess_keys[i].path);
            if (found[0] && strcmp(found, at)) return NULL;
            strcpy(found, at);
        }
    /* A plain word such as "path" means something else in each section. */
    const bool telling = strchr(leaf, '_') || leaf == path || (tess_key_is_group(found) && !strchr(found, '.')) ||
                         !strncmp(path, found, strcspn(path, ".") + 1);
    return found[0] && telling ? found : NULL;
}

/* The key that a path means whose group is spelled wrong: optimiser.params.lr. */
static const char *in_nearest_group(const char *path)
{
    static _Thread_local char found[TESS_KEY_PATH];
    char group[TESS_KEY_PATH];
    for (const char *dot = path; (dot = strchr(dot, '.')); dot++) {
        snprintf(group, sizeof group, "%.*s", (int)(dot - path), path);
        if (tess_key_is_group(group)) continue;
        const char *last = strrchr(group, '.');
        const char *near = nearest_sibling(group, last ? last + 1 : group);
        const size_t n = near ? (size_t)snprintf(found, sizeof found, "%s%s", near, dot) : 0;
        return n && n < sizeof found && tess_key_find(found) ? found : NULL;
    }
    return NULL;
}

/* A wrong guess is worse than none: only what is spelled much the same in the same section, or the same in another. */
const char *tess_key_suggest(const char *path)
{
    const char *dot = strrchr(path, '.'), *leaf = dot ? dot + 1 : path;
    if (!*leaf || strlen(leaf) > 63) return NULL; /* farther than tess_nearest measures */
    const char *same = tess_key_find(leaf) || tess_key_is_group(leaf) ? NULL : tess_trainer_suggest(leaf);
    if (same) return same;
    same = same_name(path, leaf);
    if (!same) same = nearest_sibling(path, leaf);
    return same ? same : in_nearest_group(path);
}

const char *tess_config_meant(const char *option)
{
    static _Thread_local char name[TESS_KEY_PATH];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(option + strspn(option, "-"), "="), option + strspn(option, "-"));
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    return tess_key_find(name) ? name : tess_key_suggest(name);
}
