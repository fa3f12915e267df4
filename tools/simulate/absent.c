/* What the command says of machines that are not here in a build without simulation. */
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"

static tess_status absent(const char *where)
{
    return tess_error(TESS_INVALID, where, "this build simulates nothing (meson setup -Dsimulate=enabled builds one)");
}

tess_status tess_machine_write_here(const char *path)
{
    return absent(path);
}

tess_status tess_bench_machine(const tess_config *c, int steps, const char *path, FILE *out)
{
    (void)c, (void)steps, (void)out;
    return absent(path);
}

tess_status cmd_simulation_read(const option *o, tess_simulation *s)
{
    (void)o, (void)s;
    return absent("--machine");
}

tess_status cmd_simulation_run(const tess_simulation *s, int argc, char **argv)
{
    (void)s, (void)argc, (void)argv;
    return absent("--machine");
}

/* Says so before options are looked at, which are of another build. */
static tess_status begin(int argc, char **argv, bool *done)
{
    (void)argc, (void)done;
    return absent(argv[0]);
}

const command cmd_place = {.name = "place",
                           .usage = "place",
                           .summary = "Finds the fastest placement on a machine that is not here: not in this build.",
                           .begin = begin};
const command cmd_simulate = {.name = "simulate",
                              .usage = "simulate",
                              .summary = "Makes training steps on a machine that is not here: not in this build.",
                              .begin = begin};
