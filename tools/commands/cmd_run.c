/* tessera run: what an exported network makes of arrays. */
#include "cmd.h"
#include "networks.h"
#include <stdlib.h>
#include <string.h>

enum { IN, OUT, OUTPUT, OPTIONS };
static const option OURS[OPTIONS] = {
    {"--in", "FILES", "x.npy, or x=x.npy,mask=m.npy where several inputs are read", NULL},
    {"--out", "FILE", "the .npy file that is written", NULL},
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
    if (status == TESS_OK) status = tess_outputs(&config, o[IN].value, o[OUT].value, o[OUTPUT].value);
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
                         "run DIR --in FILES --out FILE [--output NAME] [KEY=VALUE ...]",
                         "Writes what an exported network makes of arrays, without training.",
                         help,
                         run,
                         CMD_ONE_RANK};
