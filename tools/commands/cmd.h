/* The command: a table of subcommands, one file each, and what they share. */
#ifndef TESS_CMD_H
#define TESS_CMD_H
#include "models/models.h"

/* An option, "-n" or "--prompt". A flag (`meta` NULL) sets its value to "". */
typedef struct option {
    const char *name, *meta, *help;
    const char *value; /* NULL until it is met */
} option;
#define CMD_OPTIONS(all) .options = (all), .count = sizeof(all) / sizeof *(all)

typedef struct command {
    const char *name, *usage, *summary;
    option *options; /* what it takes beside names and keys; each is met once, in the process's only command */
    size_t count;
    const char *more;           /* what follows these in --help; may be NULL */
    void (*help)(FILE *out);    /* the same, where it is no one text */
    const tess_config_use *use; /* of one that takes a configuration */
    /* Sees all arguments before they are sorted; argv[0] is the subcommand's name. May be NULL; *done: it was all. */
    tess_status (*begin)(int argc, char **argv, bool *done);
    /* argv[1] to argv[rest] are no options. The status is the exit code. */
    tess_status (*run)(int rest, char **argv);
    /* Who runs it when it is started as several ranks: all of them; rank 0 alone, as if it were the only one; or rank 0
     * alone, as one of them. */
    enum { CMD_ALL_RANKS, CMD_ONE_RANK, CMD_ONE_OF_RANKS } ranks;
} command;

extern const tess_config_use cmd_estimate_use; /* graph has it too */

extern const command cmd_train, cmd_eval, cmd_check, cmd_run, cmd_generate, cmd_export, cmd_merge, cmd_estimate,
    cmd_graph, cmd_info, cmd_bench, cmd_tokenize, cmd_explain, cmd_report, cmd_bisect, cmd_simulate, cmd_place;

/* ---- arguments.c: what they make of their arguments ---- */

/* Sorts arguments into options and the rest, which moves to the front of argv + 1; *rest is how many they are. */
tess_status cmd_parse(const command *c, int argc, char **argv, int *rest) TESS_NODISCARD;
void cmd_option_help(const command *c, FILE *out);
/* A number given to an option; `value` keeps its default where the option was not met. */
tess_status cmd_number(const option *o, double least, double most, double *value) TESS_NODISCARD;
tess_status cmd_whole_number(const option *o, double least, double most, double *value) TESS_NODISCARD;

/* Before a local configuration, which is freed where its scope ends: CMD_FREED tess_config config = {0}; */
#define CMD_FREED __attribute__((cleanup(tess_config_free)))
/* CONFIG.json [KEY=VALUE ...], loaded and resolved; each key of the list `required`, which ends in NULL, is there.
 * Whatever it returns, `config` can be freed. */
tess_status cmd_config(int argc, char **argv, const char *const *required, tess_config *config) TESS_NODISCARD;

/* Makes what "--trace FIRST:LAST" sets: "trace.steps=[3,5]", a new string in *key; NULL where the option was not met.
 */
tess_status cmd_trace(const option *o, char **key) TESS_NODISCARD;

/* cmd_simulate.c: a machine that is not here, as the first three options of a command say it, and what a program over
 * SimGrid makes of it and of CONFIG.json [KEY=VALUE ...]. */
struct tess_simulation;
enum { CMD_MACHINE, CMD_NODES, CMD_RANKS, CMD_MACHINE_OPTIONS };
#define CMD_ELSEWHERE                                                                                                  \
    {"--machine", "FILE", "the machine (tessera info --machine FILE writes this one)", NULL},                          \
        {"--nodes", "N", "how many such nodes there are; those of the machine's file if not given", NULL},             \
    {                                                                                                                  \
        "--ranks-per-node", "N", "how many ranks share each node; one for each of its GPUs if not given", NULL         \
    }
tess_status cmd_simulation_read(const option *o, struct tess_simulation *s) TESS_NODISCARD;
tess_status cmd_simulation_run(const struct tess_simulation *s, int argc, char **argv) TESS_NODISCARD;
/* sweep.c: whether the arguments of tessera simulate ask for many of them, and those. */
bool cmd_sweeps(int argc, char **argv);
tess_status cmd_sweep(int argc, char **argv) TESS_NODISCARD;
/* A file in RAM, for what a program that is started says; NULL: there is none, and errno says why. */
FILE *cmd_scratch(void);

/* resume_command.c: the line that starts this run again, so that it resumes; `resumes`: it does as it is. A new string.
 * To be asked before cmd_parse, which moves arguments. */
char *cmd_again(int argc, char **argv, bool resumes);

#endif
