/* What SimGrid and StarPU read of a machine: hosts for its cores, its memory and its drive, and the links between them,
 * below a directory that StarPU takes for its home. */
#include "dirs_impl.h"
#include "machine_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { NODES = 2 }; /* of memory that a matrix names: RAM, and one that is none */

/* A drive reads and writes at rates of its own, and both at a time at the sum that was measured of both. */
static void write_drive(FILE *f, const tess_drive *d)
{
    const double both = d->mixed_read_rate + d->mixed_write_rate;
    fprintf(
        f,
        "<host id=\"DISK0\" speed=\"1f\"/>\n"
        "<link id=\"read\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
        "<link id=\"write\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
        "<link id=\"drive\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
        "<route src=\"DISK0\" dst=\"RAM\" symmetrical=\"NO\"><link_ctn id=\"read\"/><link_ctn id=\"drive\"/></route>\n"
        "<route src=\"RAM\" dst=\"DISK0\" symmetrical=\"NO\"><link_ctn id=\"write\"/><link_ctn "
        "id=\"drive\"/></route>\n",
        d->read_rate, d->write_rate, both);
}

/* Bytes a second are what its links say they are: no share of them is a protocol's, and none waits for an answer. */
static void write_hosts(FILE *f, const tess_simulated *m)
{
    fputs("<?xml version='1.0'?>\n"
          "<!DOCTYPE platform SYSTEM 'https://simgrid.org/simgrid.dtd'>\n"
          "<platform version=\"4.1\">\n"
          "<config>\n"
          "<prop id=\"network/TCP-gamma\" value=\"-1\"/>\n"
          "<prop id=\"network/latency-factor\" value=\"1\"/>\n"
          "<prop id=\"network/bandwidth-factor\" value=\"1\"/>\n"
          "<prop id=\"network/crosstraffic\" value=\"0\"/>\n"
          "<prop id=\"network/weight-S\" value=\"0.0\"/>\n"
          "</config>\n"
          "<AS id=\"machine\" routing=\"Full\">\n"
          "<host id=\"MAIN\" speed=\"1f\"/>\n"
          "<host id=\"RAM\" speed=\"1f\"/>\n",
          f);
    for (int i = 0; i < m->cores; i++) fprintf(f, "<host id=\"CPU%d\" speed=\"1f\"/>\n", i);
    if (m->has_drive) write_drive(f, &m->drive);
    fputs("</AS>\n</platform>\n", f);
}

/* StarPU's own figures of its buses, by which policies choose; with one node of memory there is nothing to choose. */
static void write_buses(FILE *f, const tess_simulated *m)
{
    (void)m;
    for (int from = 0; from < NODES; from++)
        for (int to = 0; to < NODES; to++) fprintf(f, to + 1 < NODES ? "%g\t" : "%g\t\n", from || to ? NAN : 0.0);
}

tess_status tess_platform_write(const tess_simulated *m, const char *dir)
{
    static const struct {
        const char *name;
        void (*write)(FILE *f, const tess_simulated *m);
    } files[] = {{"platform.v4.xml", write_hosts}, {"bandwidth", write_buses}, {"latency", write_buses}};
    char *bus = tess_format("%s/.starpu/sampling/bus", dir);
    tess_status status = tess_dirs_make(bus, NULL)
                             ? TESS_OK
                             : tess_error(tess_errno_status(errno), bus, "cannot be made: %s", strerror(errno));
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TESS_OK; i++) {
        char *path = tess_format("%s/simulated.%s", bus, files[i].name);
        FILE *f = fopen(path, "w");
        if (f) files[i].write(f, m);
        if (!f || fclose(f))
            status = tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
        free(path);
    }
    free(bus);
    return status;
}
