/* What SimGrid and StarPU read of a machine: for each rank hosts for its cores, its memory and its drive, and the links
 * between them; for each node a host of the network. All below a directory that StarPU takes for its home. */
#include "dirs_impl.h"
#include "machine_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RANK "StarPU-MPI%d-" /* how StarPU names the hosts of a rank */

enum { NODES = 2 }; /* of memory that a matrix names: RAM, and one that is none */

/* A drive reads and writes at rates of its own, and both at a time at the sum that was measured of both. All ranks of a
 * node have it. */
static void write_drive(FILE *f, const tess_simulated *m, int rank, int node, bool first)
{
    const tess_drive *d = &m->drive;
    if (first)
        fprintf(f,
                "<link id=\"read%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
                "<link id=\"write%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
                "<link id=\"drive%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n",
                node, d->read_rate, node, d->write_rate, node, d->mixed_read_rate + d->mixed_write_rate);
    fprintf(f,
            "<host id=\"" RANK "DISK0\" speed=\"1f\"/>\n"
            "<route src=\"" RANK "DISK0\" dst=\"" RANK "RAM\" symmetrical=\"NO\">"
            "<link_ctn id=\"read%d\"/><link_ctn id=\"drive%d\"/></route>\n"
            "<route src=\"" RANK "RAM\" dst=\"" RANK "DISK0\" symmetrical=\"NO\">"
            "<link_ctn id=\"write%d\"/><link_ctn id=\"drive%d\"/></route>\n",
            rank, rank, rank, node, node, rank, rank, node, node);
}

/* What StarPU takes for a machine, of each rank; nothing leads from one to another. */
static void write_rank(FILE *f, const tess_simulated *m, int rank, int ranks_here)
{
    fprintf(f, "<AS id=\"StarPU-MPI%d\" routing=\"Full\">\n", rank);
    fprintf(f, "<host id=\"" RANK "MAIN\" speed=\"1f\"/>\n<host id=\"" RANK "RAM\" speed=\"1f\"/>\n", rank, rank);
    for (int i = 0; i < m->cores / ranks_here; i++) fprintf(f, "<host id=\"" RANK "CPU%d\" speed=\"1f\"/>\n", rank, i);
    if (m->has_drive) write_drive(f, m, rank, rank / ranks_here, rank % ranks_here == 0);
    fputs("</AS>\n", f);
}

/* A host a node, by which messages go: from one to another over the links of both, or from one to itself at the rate at
 * which its memory copies. */
static void write_network(FILE *f, const tess_simulated *m)
{
    const tess_simulated_net *n = &m->net;
    const double rate = n->there ? n->rate : m->copy_rate / 2;
    const int links = n->below ? 4 : 2; /* that a message takes from one node to another at most */
    fprintf(f,
            "<cluster id=\"network\" prefix=\"node\" suffix=\"\" radical=\"0-%d\" speed=\"1f\" bw=\"%.0fBps\" "
            "lat=\"%.12fs\" sharing_policy=\"SPLITDUPLEX\" loopback_bw=\"%.0fBps\" loopback_lat=\"0s\"",
            m->nodes - 1, rate, n->latency / links, m->copy_rate / 2);
    if (n->below)
        fprintf(f, " topology=\"FAT_TREE\" topo_parameters=\"2;%d,%d;1,%d;1,1\"", n->below, m->nodes / n->below,
                n->above);
    fputs("/>\n", f);
}

/* Bytes a second are what its links say they are: no share of them is a protocol's, and none waits for an answer. */
static void write_hosts(FILE *f, const tess_simulated *m, int ranks_here)
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
          "<AS id=\"machine\" routing=\"Full\">\n",
          f);
    for (int r = 0; r < m->nodes * ranks_here; r++) write_rank(f, m, r, ranks_here);
    write_network(f, m);
    fputs("</AS>\n</platform>\n", f);
}

/* StarPU's own figures of its buses, by which policies choose; with one node of memory there is nothing to choose. */
static void write_buses(FILE *f, const tess_simulated *m, int ranks_here)
{
    (void)m, (void)ranks_here;
    for (int from = 0; from < NODES; from++)
        for (int to = 0; to < NODES; to++) fprintf(f, to + 1 < NODES ? "%g\t" : "%g\t\n", from || to ? NAN : 0.0);
}

tess_status tess_platform_write(const tess_simulated *m, int ranks_here, const char *dir)
{
    static const struct {
        const char *name;
        void (*write)(FILE *f, const tess_simulated *m, int ranks_here);
    } files[] = {{"platform.v4.xml", write_hosts}, {"bandwidth", write_buses}, {"latency", write_buses}};
    char *bus = tess_format("%s/.starpu/sampling/bus", dir);
    tess_status status = tess_dirs_make(bus, NULL)
                             ? TESS_OK
                             : tess_error(tess_errno_status(errno), bus, "cannot be made: %s", strerror(errno));
    for (size_t i = 0; i < sizeof files / sizeof *files && status == TESS_OK; i++) {
        char *path = tess_format("%s/simulated.%s", bus, files[i].name);
        FILE *f = fopen(path, "w");
        if (f) files[i].write(f, m, ranks_here);
        if (!f || fclose(f))
            status = tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
        free(path);
    }
    free(bus);
    return status;
}
