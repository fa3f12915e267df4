/* tessera: joins the ranks, picks the subcommand, and turns a status into an exit code and one line on stderr. */
#include "tools/commands/cmd.h"
#include "tools/commit.h"
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>

static const command *const commands[] = {&cmd_train,    &cmd_eval,     &cmd_check,    &cmd_run,    &cmd_generate,
                                          &cmd_export,   &cmd_merge,    &cmd_estimate, &cmd_graph,  &cmd_info,
                                          &cmd_bench,    &cmd_tokenize, &cmd_explain,  &cmd_report, &cmd_bisect,
                                          &cmd_simulate, &cmd_place};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char WHERE[] = "command line";

static void help(FILE *out)
{
    fputs("Tessera trains neural networks larger than the GPU, and larger than RAM.\n\n", out);
    for (int i = 0; i < COMMANDS; i++)
        fprintf(out, "  tessera %s\n      %s\n", commands[i]->usage, commands[i]->summary);
    fputs("  tessera --help, tessera CMD --help [KEY or GROUP of keys], tessera --version\n\n"
          "Exit status: 0 done, 1 the run failed, 2 what was given is wrong.\n",
          out);
}

/* What a report of a fault needs; nothing is measured or started for it. */
static void version(void)
{
    printf("tessera %s (commit %s)\nStarPU %s, %s, %s, %s\n", TESS_VERSION, TESS_COMMIT, tess_starpu_version(),
           tess_mpi_version(), tess_matrix_library(), TESS_CUDA_MADE_WITH);
}

static bool asks_for_help(const char *text)
{
    return !strcmp(text, "--help") || !strcmp(text, "-h");
}

/* What other programs call our commands. */
static const char *const other_names[][2] = {{"chat", "generate MODEL_DIR --chat"}, {"finetune", "train CONFIG.json"},
                                             {"fit", "train CONFIG.json"},          {"evaluate", "eval CONFIG.json"},
                                             {"sample", "generate MODEL_DIR"},      {"infer", "generate MODEL_DIR"}};

static tess_status unknown_command(const char *name)
{
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; i++)
        if (!strcmp(name, other_names[i][0]))
            return tess_error(TESS_INVALID, WHERE, "%s: unknown command (did you mean tessera %s?)", name,
                              other_names[i][1]);
    const char *names[COMMANDS];
    for (int i = 0; i < COMMANDS; i++) names[i] = commands[i]->name;
    const char *meant = tess_nearest(name, names, COMMANDS);
    return tess_error(TESS_INVALID, WHERE, "%.100s: unknown command (%s%s%s)", name,
                      meant ? "did you mean " : "see tessera", meant ? meant : " --help", meant ? "?" : "");
}

/* Parts from the other ranks: true where there is nothing left to do. */
static bool stands_by(const command *c)
{
    const int ranks = tess_ranks(), rank = tess_rank();
    tess_ranks_leave();
    if (!rank && ranks > 1 && c->ranks == CMD_ONE_OF_RANKS) tess_ranks_pretend(0, ranks);
    return rank > 0;
}

/* `topic`: the group of keys that stands behind --help, or NULL. */
static tess_status help_command(const command *c, const char *topic)
{
    if (c->use && topic) return tess_config_help(c->use, topic, stdout);
    printf("usage: tessera %s\n\n%s\n", c->usage, c->summary);
    cmd_option_help(c, stdout);
    if (c->more) printf("\n%s", c->more);
    if (c->help) fputc('\n', stdout), c->help(stdout);
    if (!c->use) return TESS_OK;
    fputc('\n', stdout);
    return tess_config_help(c->use, NULL, stdout);
}

static tess_status run_command(const command *c, int argc, char **argv)
{
    if (c->ranks != CMD_ALL_RANKS && stands_by(c)) return TESS_OK;
    for (int i = 1; i < argc; i++)
        if (asks_for_help(argv[i])) return help_command(c, i + 1 < argc && argv[i + 1][0] != '-' ? argv[i + 1] : NULL);
    bool done = false;
    int rest;
    if (c->begin) TESS_TRY(c->begin(argc, argv, &done));
    if (done) return TESS_OK;
    TESS_TRY(cmd_parse(c, argc, argv, &rest));
    return c->run(rest, argv);
}

static tess_status run(int argc, char **argv)
{
    tess_cpu_kind kind;
    const char *cap;
    if (argc < 2) return tess_error(TESS_INVALID, WHERE, "no command (see tessera --help)");
    const bool word = !strcmp(argv[1], "help");
    for (int i = 0; i < COMMANDS && word && argc > 2; i++)
        if (!strcmp(argv[2], commands[i]->name)) return help_command(commands[i], argc > 3 ? argv[3] : NULL);
    if (word && argc > 2) return unknown_command(argv[2]);
    if (word || asks_for_help(argv[1])) return help(stdout), TESS_OK;
    if (!strcmp(argv[1], "--version")) return version(), TESS_OK;
    TESS_TRY(tess_cpu_cap(&kind, &cap));
    for (int i = 0; i < COMMANDS; i++)
        if (!strcmp(argv[1], commands[i]->name)) return run_command(commands[i], argc - 1, argv + 1);
    return unknown_command(argv[1]);
}

/* One line, whatever names the user's files have. */
static void print_error(void)
{
    char line[2048];
    snprintf(line, sizeof line, "%s", tess_error_text());
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < ' ') *p = ' ';
    fflush(stdout);
    fprintf(stderr, "tessera: error: %s\n", line);
}

/* ---- a mapped file that went away ---- */

/* The file that is mapped where `address` is, into `path`. */
static void mapped_file(uintptr_t address, char path[static 512])
{
    char line[1024];
    FILE *f = fopen("/proc/self/maps", "r");
    snprintf(path, 512, "memory");
    while (f && fgets(line, sizeof line, f)) {
        uintptr_t from, to;
        int at = 0;
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &from, &to, &at) == 2 && at &&
            address >= from && address < to)
            snprintf(path, 512, "%.*s", (int)strcspn(line + at, "\n"), line + at);
    }
    if (f) fclose(f);
}

/* A page of a mapped file cannot be read. Only code of ours reads those, so what it calls is not what it interrupts. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    char path[512], text[700];
    (void)number, (void)context;
    mapped_file((uintptr_t)info->si_addr, path);
    snprintf(text, sizeof text, "%s: cannot be read any more (was it cut short while the run reads it?)", path);
    tess_die(text);
}

int main(int argc, char **argv)
{
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error like a full disk */
    tess_status status = tess_ranks_join();
    sigaction(SIGBUS, &(struct sigaction){.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO | SA_RESETHAND}, NULL);
    if (tess_rank()) TESS_ASSERT(freopen("/dev/null", "w", stdout)); /* rank 0 speaks for all */
    if (status == TESS_OK) status = run(argc, argv);
    if (status == TESS_OK && fflush(stdout) != 0)
        status = tess_error(TESS_FAILED, "stdout", "cannot be written: %s", strerror(errno));
    status = tess_ranks_agree(status);
    if (status != TESS_OK && !tess_rank() && tess_watch_speak()) print_error();
    /* From here on a launcher that saw one rank end with an error may end the others. */
    if (tess_ranks_launched()) signal(SIGINT, SIG_IGN), signal(SIGTERM, SIG_IGN);
    fflush(stdout);
    tess_ranks_leave_with(status);
    return status;
}
