/* The line that starts this run again: its own arguments, or those of the launcher that started its ranks. */
#include "tools/commands/cmd.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* As a shell reads it back. */
static void put_quoted(FILE *to, const char *text)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_@%+=:,./-";
    if (*text && strspn(text, plain) == strlen(text)) {
        fputs(text, to);
        return;
    }
    fputc('\'', to);
    for (; *text; text++)
        if (*text == '\'')
            fputs("'\\''", to);
        else
            fputc(*text, to);
    fputc('\'', to);
}

static bool is_launcher(const char *program)
{
    static const char *const known[] = {"mpirun", "mpiexec", "orterun", "prterun"};
    const char *slash = strrchr(program, '/');
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(slash ? slash + 1 : program, known[i])) return true;
    return false;
}

/* The arguments of the process that started this one, each ended by a 0; *bytes 0: they cannot be read. */
static char *read_parent(size_t *bytes)
{
    enum { MOST = 1 << 20 };
    char *path = tess_format("/proc/%d/cmdline", (int)getppid()), *text = tess_alloc(MOST + 1);
    FILE *f = fopen(path, "rb");
    *bytes = f ? fread(text, 1, MOST, f) : 0;
    if (f) fclose(f);
    free(path);
    return text;
}

/* Slurm's daemon starts the ranks, not srun. */
static bool by_slurm(void)
{
    size_t bytes;
    TESS_FREED char *text = read_parent(&bytes);
    return !strncmp(text, "slurmstepd", 10);
}

/* The launcher's whole line, in which ":" parts programs that all have to resume; false: it is not our parent. */
static bool put_launcher(FILE *to, const char *more)
{
    size_t bytes;
    TESS_FREED char *text = read_parent(&bytes);
    const bool known = bytes > 0 && is_launcher(text);
    for (const char *p = text; known && p < text + bytes; p += strlen(p) + 1) {
        if (p > text) fputc(' ', to);
        if (!strcmp(p, ":") && *more) fprintf(to, "%s ", more + 1);
        put_quoted(to, p);
    }
    return known;
}

char *cmd_again(int argc, char **argv, bool resumes)
{
    const char *more = resumes ? "" : " --resume";
    char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    if (!tess_ranks_launched() || !put_launcher(to, more)) {
        if (tess_ranks_launched()) fprintf(to, "%s -n %d ", by_slurm() ? "srun --mpi=pmix" : "mpirun", tess_ranks());
        put_quoted(to, program_invocation_name);
        for (int i = 0; i < argc; i++) {
            fputc(' ', to);
            put_quoted(to, argv[i]);
        }
    }
    fputs(more, to);
    fclose(to);
    return text;
}
