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

static tess_status run(int argc, char **argv)
{
    (void)argc, (void)argv;
    return absent("simulate");
}

static tess_status no_place(int argc, char **argv)
{
    (void)argc, (void)argv;
    return absent("place");
}

const command cmd_place = {
    "place", "place",  "Finds the fastest placement on a machine that is not here: not in this build.",
    NULL,    no_place, CMD_ALL_RANKS};
const tess_config_use cmd_simulate_use = {"", NULL};
const command cmd_simulate = {
    "simulate", "simulate", "Makes training steps on a machine that is not here: not in this build.",
    NULL,       run,        CMD_ALL_RANKS};
