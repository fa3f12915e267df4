/* Which of a directory's files has a model's weights, and what is there where none has. */
#include "models/files/safetensors/safetensors_impl.h"
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *tess_safetensors_in(const char *dir)
{
    static const char *const name[] = {"model.safetensors", "model.safetensors.index.json", "pytorch_model.bin",
                                       "pytorch_model.bin.index.json"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (tess_dirs_has(dir, name[i])) return name[i];
    return tess_gguf_is(dir) && !access(dir, F_OK) ? "its tensors" : NULL;
}

/* Files that have weights, or a part of them, and by which alone a model cannot be opened. */
static const struct {
    const char *begin, *end, *index; /* of its name; of a shard what lists all of them */
} others[] = {
    {"model-", ".safetensors", "model.safetensors.index.json"},
    {"pytorch_model-", ".bin", "pytorch_model.bin.index.json"},
    {"", ".safetensors", NULL},
    {"", ".bin", NULL},
    {"", ".pth", NULL},
    {"", ".pt", NULL},
    {"", ".ckpt", NULL},
    {"", ".h5", NULL},
    {"", ".msgpack", NULL},
    {"", ".gguf", NULL},
};
enum { OTHERS = sizeof others / sizeof *others };

/* The first of `others` that a name is like; OTHERS: none, or what a trainer left beside weights. */
static size_t kind_of(const char *name)
{
    static const char *const beside[] = {"optimizer", "scheduler", "rng_state", "training_args", "adapter_"};
    const size_t n = strlen(name);
    size_t k = 0;
    for (size_t i = 0; i < sizeof beside / sizeof *beside; i++)
        if (!strncmp(name, beside[i], strlen(beside[i]))) return OTHERS;
    for (; k < OTHERS; k++) {
        const size_t begin = strlen(others[k].begin), end = strlen(others[k].end);
        if (n > begin + end && !memcmp(name, others[k].begin, begin) && !strcmp(name + n - end, others[k].end)) break;
    }
    return k;
}

char *tess_safetensors_lack(const char *dir)
{
    struct dirent **file;
    const int files = scandir(dir, &file, NULL, alphasort);
    size_t best = OTHERS;
    char *met = NULL;
    for (int i = 0; i < files; i++) {
        const size_t kind = kind_of(file[i]->d_name);
        if (kind < best) {
            best = kind;
            free(met);
            met = tess_strdup(file[i]->d_name);
        }
        free(file[i]);
    }
    if (files >= 0) free(file);
    char *text =
        best == OTHERS ? tess_strdup("has no model.safetensors or pytorch_model.bin")
        : others[best].index
            ? tess_format("has %s, a shard, and no %s beside it (fetch what is missing)", met, others[best].index)
        : !strcmp(others[best].end, ".gguf")
            ? tess_format("has %s (name that file in the place of its directory)", met)
            : tess_format("has no model.safetensors or pytorch_model.bin, but %s, which is not read (loaded in "
                          "transformers, save_pretrained makes one of it)",
                          met);
    free(met);
    return text;
}
