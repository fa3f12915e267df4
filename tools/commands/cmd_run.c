/* tessera run: what an exported network makes of arrays. */
#include "models/networks/networks.h"
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>

enum { IN, OUT, OUTPUT, OPTIONS };
static option options[OPTIONS] = {
    {"--in", "FILES", "x.npy, or x=x.npy,mask=m.npy where several inputs are read", NULL},
    {"--out", "FILES", "the .npy file that is written, or y=y.npy,z=z.npy of several outputs", NULL},
    {"--output", "NAME", "which output beside the loss; the first that has samples if not given", NULL}};

/* The network is run by as many samples as it was exported for. */
static tess_status config_of(const char *dir, int count, char **said, tess_config *config)
{
    tess_model *m = NULL;
    const char **set = tess_alloc((size_t)(count + 2) * sizeof *set);
    char *model = tess_format("model=%s", dir), *batch = NULL;
    tess_status status = tess_model_open(dir, NULL, &m);
    if (status == TESS_OK && !tess_model_batch(m))
        status = tess_error(TESS_INVALID, dir, "is no exported network (it has no graph.json)");
    if (status == TESS_OK) {
        batch = tess_format("train_micro_batch_size_per_gpu=%lld", (long long)tess_model_batch(m));
        set[0] = model, set[1] = batch;
        for (int i = 0; i < count; i++) set[2 + i] = said[i];
        status = tess_config_load(NULL, set, (size_t)count + 2, config);
    }
    tess_model_close(m);
    free(set), free(model), free(batch);
    return status == TESS_OK ? tess_config_resolve(config, tess_ranks()) : status;
}

/* "y.npy", "y=y.npy" or "y=y.npy,z=z.npy": an output each. A path may have an = behind its first folder. */
static tess_status write_each(const tess_config *c)
{
    char *text = tess_format("%s", options[OUT].value), *rest = text;
    tess_status status = TESS_OK;
    for (char *part; status == TESS_OK && (part = strsep(&rest, ","));) {
        char *path = part + strcspn(part, "=/");
        const char *name = *path == '=' ? part : options[OUTPUT].value;
        if (*path == '=')
            *path++ = '\0';
        else
            path = part;
        if (name == part && options[OUTPUT].value && strcmp(name, options[OUTPUT].value) != 0)
            status = tess_error(TESS_INVALID, "--output", "%.64s, but --out names %.64s", options[OUTPUT].value, name);
        else if (!*path || (name && !*name))
            status =
                tess_error(TESS_INVALID, "--out", "%.200s, expected FILE or NAME=FILE,NAME=FILE", options[OUT].value);
        else
            status = tess_outputs(c, options[IN].value, path, name);
    }
    free(text);
    return status;
}

static tess_status run(int rest, char **argv)
{
    CMD_FREED tess_config config = {0};
    if (rest < 1) return tess_error(TESS_INVALID, "command line", "no directory of an exported network: DIR");
    for (int k = IN; k <= OUT; k++)
        if (!options[k].value) return tess_error(TESS_INVALID, options[k].name, "is missing (%s)", options[k].help);
    TESS_TRY(config_of(argv[1], rest - 1, argv + 2, &config));
    return write_each(&config);
}

const command cmd_run = {
    .name = "run",
    .usage = "run DIR --in FILES --out FILES [--output NAME] [KEY=VALUE ...]",
    .summary = "Writes what an exported network makes of arrays, without training.",
    CMD_OPTIONS(options),
    .more = "DIR has graph.json and weights.safetensors. Inputs that the output is not made of, as the targets of a "
            "loss, are\nnot needed. Keys set where it is computed: memory.cpu=1GiB.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
