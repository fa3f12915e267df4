/* tessera run: what an exported network makes of arrays. */
#include "models/networks/networks.h"
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>

enum { IN, OUT, OUTPUT, OPTIONS };
static const option OURS[OPTIONS] = {
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
static tess_status write_each(const tess_config *c, const option *o)
{
    char *text = tess_format("%s", o[OUT].value), *rest = text;
    tess_status status = TESS_OK;
    for (char *part; status == TESS_OK && (part = strsep(&rest, ","));) {
        char *path = part + strcspn(part, "=/");
        const char *name = *path == '=' ? part : o[OUTPUT].value;
        if (*path == '=')
            *path++ = '\0';
        else
            path = part;
        if (name == part && o[OUTPUT].value && strcmp(name, o[OUTPUT].value) != 0)
            status = tess_error(TESS_INVALID, "--output", "%.64s, but --out names %.64s", o[OUTPUT].value, name);
        else if (!*path || (name && !*name))
            status = tess_error(TESS_INVALID, "--out", "%.200s, expected FILE or NAME=FILE,NAME=FILE", o[OUT].value);
        else
            status = tess_outputs(c, o[IN].value, path, name);
    }
    free(text);
    return status;
}

static tess_status run(int argc, char **argv)
{
    option o[OPTIONS];
    int rest;
    tess_config config = {0};
    memcpy(o, OURS, sizeof o);
    TESS_TRY(cmd_parse(o, OPTIONS, argc, argv, &rest));
    if (rest < 1) return tess_error(TESS_INVALID, "command line", "no directory of an exported network: DIR");
    for (int k = IN; k <= OUT; k++)
        if (!o[k].value) return tess_error(TESS_INVALID, o[k].name, "is missing (%s)", o[k].help);
    tess_status status = config_of(argv[1], rest - 1, argv + 2, &config);
    if (status == TESS_OK) status = write_each(&config, o);
    tess_config_free(&config);
    return status;
}

static void help(FILE *out)
{
    cmd_option_help(OURS, OPTIONS, out);
    fputs("\nDIR has graph.json and weights.safetensors. Inputs that the output is not made of, as the targets of a "
          "loss, are\nnot needed. Keys set where it is computed: memory.cpu=1GiB.\n",
          out);
}

const command cmd_run = {"run",
                         "run DIR --in FILES --out FILES [--output NAME] [KEY=VALUE ...]",
                         "Writes what an exported network makes of arrays, without training.",
                         help,
                         run,
                         CMD_ONE_RANK};
