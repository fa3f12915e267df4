/* Checks that all ranks of a run were given the same settings and files: otherwise what they compute would not fit
 * together, and no error would show it. Each rank lists both, one a line; rank 0 sends its list to the others. */
#include "models/files/data/data_paths.h"
#include "models/networks/networks.h"
#include "models/text/base/gguf.h"
#include "models/train/run/run.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENDS = 64 << 10 }; /* bytes that are looked at, at both ends of a file */

/* Lines "name\tvalue\n". */
struct list {
    char *text;
    size_t bytes;
    FILE *to;
    tess_status status; /* of what could not be read, */
    char *error;        /* and what was said of the first of it */
};

/* Keeps the error just recorded. */
static void keep_error(struct list *l, tess_status status)
{
    if (l->status == TESS_OK && status != TESS_OK) {
        l->status = status;
        l->error = tess_strdup(tess_error_text());
    }
    tess_error_clear();
}

static bool one_of(const char *key, const char *const *keys)
{
    for (; *keys; keys++)
        if (!strcmp(key, *keys)) return true;
    return false;
}

/* Paths of models and data may differ, since what they lead to is compared. Each machine has its own drives: that there
 * is a disk tier is the same for all, where it lies is not. */
static void list_settings(struct list *l, const tess_config *c)
{
    static const char *const inputs[] = {"model", "lora.from", "data.train", "data.valid", NULL};
    static const char *const drives[] = {"memory.path", "zero_optimization.offload_optimizer.nvme_path",
                                         "zero_optimization.offload_param.nvme_path", NULL};
    const char *key;
    char *value;
    for (size_t i = 0; tess_config_entry(c, i, &key, &value); i++) {
        if (value && !one_of(key, inputs))
            fprintf(l->to, "%s\t%s\n", key, one_of(key, drives) && strcmp(value, "null") ? "given" : value);
        free(value);
    }
}

static uint64_t mix(uint64_t sum, const unsigned char *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) sum = (sum ^ data[i]) * UINT64_C(0x100000001b3);
    return sum;
}

/* Adds a file to the list; one that is not there is left out. */
static void list_file(struct list *l, const char *name, const char *path, const char *suffix)
{
    char *file = tess_format("%s%s", path, suffix);
    int fd = open(file, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 && errno != ENOENT)
        keep_error(l, tess_error(tess_errno_status(errno), file, "cannot be opened: %s", strerror(errno)));
    free(file);
    if (fd < 0) return;
    if (!fstat(fd, &st) && S_ISREG(st.st_mode)) {
        unsigned char *end = tess_alloc(ENDS);
        uint64_t sum = UINT64_C(0xcbf29ce484222325);
        ssize_t n = pread(fd, end, ENDS, 0);
        if (n > 0) sum = mix(sum, end, (size_t)n);
        if (st.st_size > ENDS && (n = pread(fd, end, ENDS, st.st_size - ENDS)) > 0) sum = mix(sum, end, (size_t)n);
        free(end);
        fprintf(l->to, "%s%s\ta file of %lld bytes, checksum %016llx\n", name, suffix, (long long)st.st_size,
                (unsigned long long)sum);
    }
    close(fd);
}

/* The files behind the paths, in their order; that they can be found was seen when they were opened. */
static void list_data(struct list *l, const char *name, const char *text)
{
    tess_data_paths paths = {0};
    if (!text || text[0] == '{') return; /* of arrays it is the sum that is compared, when a run goes on */
    keep_error(l, tess_data_paths_open(name, text, &paths));
    for (size_t k = 0; k < paths.sources; k++) {
        const tess_data_source *s = &paths.source[k];
        if (s->weight > 0) fprintf(l->to, "%s[%zu].weight\t%.17g\n", name, k, s->weight);
        for (size_t i = 0; i < s->files; i++) {
            const bool one = paths.sources == 1 && s->files == 1;
            TESS_FREED char *label = one ? tess_strdup(name) : tess_format("%s, file %zu", name, i + 1);
            const bool pair = s->file[i].kind == TESS_DATA_MEGATRON;
            if (!pair) list_file(l, label, s->file[i].path, "");
            if (pair) list_file(l, label, s->file[i].path, ".idx");
            if (pair) list_file(l, label, s->file[i].path, ".bin");
        }
    }
    tess_data_paths_close(&paths);
}

static int is_weights(const struct dirent *e)
{
    const char *dot = strstr(e->d_name, ".safetensors"); /* a model's, or the states of a checkpoint */
    return (dot && (!dot[12] || !strcmp(dot, ".safetensors.index.json"))) || !strncmp(e->d_name, "pytorch_model", 13);
}

static void list_weights(struct list *l, const char *of, const char *dir)
{
    struct dirent **file;
    int n = scandir(dir, &file, is_weights, alphasort);
    for (int i = 0; i < n; i++) {
        char *label = tess_format("%s: %s", of, file[i]->d_name), *path = tess_format("%s/%s", dir, file[i]->d_name);
        list_file(l, label, path, "");
        free(label);
        free(path);
        free(file[i]);
    }
    if (n >= 0) free(file);
}

static void list_model(struct list *l, const tess_model *m)
{
    json_t *fields = json_loads(tess_model_json(m), 0, NULL), *value;
    const char *name;
    json_object_foreach(fields, name, value)
    {
        TESS_FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
        fprintf(l->to, "model.%s\t%s\n", name, text);
    }
    json_decref(fields);
    const char *dir = tess_model_dir(m);
    if (tess_model_adapter_dir(m)) list_weights(l, "adapter", tess_model_adapter_dir(m));
    if (!dir) return;
    list_weights(l, "model", dir);
    if (tess_gguf_is(dir)) {
        list_file(l, "model", dir, "");
        return;
    }
    static const char *const tokenizer[] = {
        "tokenizer.json", "tokenizer.model",   "spiece.model",          "vocab.json",
        "merges.txt",     "added_tokens.json", "tokenizer_config.json", "special_tokens_map.json"};
    for (size_t i = 0; i < sizeof tokenizer / sizeof *tokenizer; i++) {
        char *label = tess_format("model: %s", tokenizer[i]), *path = tess_format("%s/%s", dir, tokenizer[i]);
        list_file(l, label, path, "");
        free(label);
        free(path);
    }
}

/* The first line in which two lists differ, cut into name and value; a list that ended has none. */
static void first_other(char *mine, char *theirs, char **name, char *value[2])
{
    while (*mine && *theirs) {
        size_t n = strcspn(mine, "\n") + 1;
        if (strncmp(mine, theirs, n)) break;
        mine += n;
        theirs += n;
    }
    mine[strcspn(mine, "\n")] = theirs[strcspn(theirs, "\n")] = 0;
    char *tab[2] = {strchr(mine, '\t'), strchr(theirs, '\t')};
    for (int k = 0; k < 2; k++) {
        value[k] = tab[k] ? tab[k] + 1 : NULL;
        if (tab[k]) *tab[k] = 0;
    }
    *name = tab[0] ? mine : theirs;
    /* Lines of different names: the one that is here is missing there. */
    if (tab[0] && tab[1] && strcmp(mine, theirs)) value[1] = NULL;
}

static tess_status compare(const tess_config *c, const struct list *mine, char *theirs)
{
    if (!strcmp(mine->text, theirs)) return TESS_OK;
    char *name, *value[2], where[512];
    first_other(mine->text, theirs, &name, value);
    snprintf(where, sizeof where, "%.300s: %.150s", c->file, name);
    return tess_error(TESS_INVALID, where, "%.80s, but %.80s on rank 0 (all ranks of a run need the same)",
                      value[0] ? value[0] : "missing", value[1] ? value[1] : "missing");
}

tess_status tess_run_same(const tess_run *r, const char *command)
{
    if (!tess_ranks_launched() || tess_ranks() < 2) return TESS_OK;
    struct list l = {0};
    l.to = open_memstream(&l.text, &l.bytes);
    fprintf(l.to, "command\t%s\n", command);
    list_settings(&l, r->c);
    list_model(&l, r->model);
    list_data(&l, "data.train", r->c->data.train);
    if (!(tess_config_held_out(r->c) > 0)) list_data(&l, "data.valid", r->c->data.valid);
    json_t *tasks = tess_config_list(r->c->eval.tasks), *path;
    size_t k;
    json_array_foreach(tasks, k, path) list_file(&l, "eval.tasks", json_string_value(path), "");
    json_decref(tasks);
    fclose(l.to);
    uint64_t bytes = l.bytes + 1;
    tess_ranks_tell(&bytes, sizeof bytes);
    char *theirs = tess_alloc(bytes);
    if (!tess_rank()) memcpy(theirs, l.text, bytes);
    tess_ranks_tell(theirs, bytes);
    if (l.status != TESS_OK) tess_error_restore(l.error);
    tess_status status = tess_ranks_agree(l.status);
    if (status == TESS_OK) status = tess_ranks_agree(compare(r->c, &l, theirs));
    free(theirs);
    free(l.error);
    free(l.text);
    return status;
}
