/* What a subcommand makes of its arguments: options, their numbers and help, and the configuration. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>

static const char WHERE[] = "command line";

static option *find_option(option *options, size_t count, const char *text, size_t length)
{
    for (size_t i = 0; i < count; i++)
        if (strlen(options[i].name) == length && !strncmp(options[i].name, text, length)) return &options[i];
    return NULL;
}

/* What other programs call options of ours. */
static const char *const other_names[][2] = {{"--max-new-tokens", "-n"},
                                             {"--max_new_tokens", "-n"},
                                             {"--max-tokens", "-n"},
                                             {"--max_tokens", "-n"},
                                             {"--temp", "--temperature"}};

/* The commands that a configuration's keys stand behind. */
static bool takes_keys(const char *command)
{
    static const char *const names[] = {"train", "eval", "estimate", "graph", "bench", "simulate"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i], command)) return true;
    return false;
}

static tess_status unknown_option(const command *c, const char *text)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strncmp(text, other_names[i][0], strcspn(text, "=")) && !other_names[i][0][strcspn(text, "=")] &&
            find_option(c->options, c->count, other_names[i][1], strlen(other_names[i][1])))
            return tess_error(TESS_INVALID, WHERE, "%.100s: unknown option (did you mean %s?)", text,
                              other_names[i][1]);
    const char *names[16] = {"--help"};
    TESS_ASSERT(c->count < 16);
    for (size_t i = 0; i < c->count; i++) names[i + 1] = c->options[i].name;
    const char *meant = tess_nearest(text, names, c->count + 1);
    const char *key = !meant && takes_keys(c->name) ? tess_config_meant(text) : NULL;
    if (key) return tess_error(TESS_INVALID, WHERE, "%.100s: unknown option (did you mean %s=VALUE?)", text, key);
    return tess_error(TESS_INVALID, WHERE, "%.100s: unknown option (%s%s%s)", text,
                      meant ? "did you mean " : "see --help", meant ? meant : "", meant ? "?" : "");
}

tess_status cmd_parse(const command *c, int argc, char **argv, int *rest)
{
    *rest = 0;
    for (int i = 1; i < argc; i++) {
        char *text = argv[i];
        if (text[0] != '-' || !text[1]) {
            argv[1 + (*rest)++] = text;
            continue;
        }
        const char *equal = text[1] == '-' ? strchr(text, '=') : NULL;
        option *o = find_option(c->options, c->count, text, equal ? (size_t)(equal - text) : strlen(text));
        if (!o) return unknown_option(c, text);
        if (!o->meta && equal) return tess_error(TESS_INVALID, WHERE, "%.100s: %s takes no value", text, o->name);
        if (!o->meta)
            o->value = "";
        else if (equal)
            o->value = equal + 1;
        else if (i + 1 < argc)
            o->value = argv[++i];
        else
            return tess_error(TESS_INVALID, WHERE, "%s: missing its %s (%s)", o->name, o->meta, o->help);
    }
    return TESS_OK;
}

void cmd_option_help(const command *c, FILE *out)
{
    if (c->count) fputs("\nOptions:\n", out);
    for (const option *o = c->options; o < c->options + c->count; o++) {
        int used = fprintf(out, "  %s %s", o->name, o->meta ? o->meta : "");
        fprintf(out, "%*s%s\n", used < 24 ? 24 - used : 1, "", o->help);
    }
}

tess_status cmd_number(const option *o, double least, double most, double *value)
{
    if (!o->value) return TESS_OK;
    char *end;
    double x = strtod(o->value, &end);
    if (end == o->value || *end || !(x >= least && x <= most))
        return tess_error(TESS_INVALID, WHERE, "%s: %.60s, expected a number from %g to %g (%s)", o->name, o->value,
                          least, most, o->help);
    *value = x;
    return TESS_OK;
}

tess_status cmd_whole_number(const option *o, double least, double most, double *value)
{
    TESS_TRY(cmd_number(o, least, most, value));
    if (*value == (double)(int64_t)*value) return TESS_OK;
    return tess_error(TESS_INVALID, WHERE, "%s: %.60s, expected a whole number (%s)", o->name, o->value, o->help);
}

tess_status cmd_trace(const option *o, char **key)
{
    long long first, last;
    int end = 0;
    *key = NULL;
    if (!o->value) return TESS_OK;
    if (sscanf(o->value, "%lld:%lld%n", &first, &last, &end) < 2 || o->value[end]) {
        end = 0;
        if (sscanf(o->value, "%lld%n", &first, &end) < 1 || o->value[end]) first = 0;
        last = first;
    }
    if (first < 1 || last < first || last > 1000000000000)
        return tess_error(TESS_INVALID, WHERE, "%s: %.60s, expected a step or FIRST:LAST, as in 3:5 (%s)", o->name,
                          o->value, o->help);
    *key = tess_format("trace.steps=[%lld,%lld]", first, last);
    return TESS_OK;
}

tess_status cmd_config(int argc, char **argv, const char *const *required, tess_config *config)
{
    *config = (tess_config){0};
    if (argc < 2 || strchr(argv[1], '='))
        return tess_error(TESS_INVALID, WHERE, "no configuration, expected tessera %s CONFIG.json [KEY=VALUE ...]",
                          argv[0]);
    TESS_TRY(tess_config_load(argv[1], (const char *const *)argv + 2, (size_t)argc - 2, config));
    for (; *required; required++)
        if (strcmp(*required, "model") || !config->model_json) TESS_TRY(tess_config_require(config, *required));
    return tess_config_resolve(config, tess_ranks());
}
