/* What SimGrid and StarPU read of a machine: hosts for its cores, its memory, its GPUs and its drive, and the links
 * between them, below a directory that StarPU takes for its home. */
#include "dirs_impl.h"
#include "machine_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A drive reads and writes at rates of its own, and both at a time at the sum that was measured of both. */
static void write_drive(FILE *f, const tess_drive *d)
{
    const double both = d->mixed_read_rate + d->mixed_write_rate;
    fprintf(f,
            "<host id=\"DISK0\" speed=\"1f\"/>\n"
            "<link id=\"read\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
            "<link id=\"write\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
            "<link id=\"drive\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n",
            d->read_rate, d->write_rate, both);
}

static void write_drive_routes(FILE *f)
{
    fputs(
        "<route src=\"DISK0\" dst=\"RAM\" symmetrical=\"NO\"><link_ctn id=\"read\"/><link_ctn id=\"drive\"/></route>\n"
        "<route src=\"RAM\" dst=\"DISK0\" symmetrical=\"NO\"><link_ctn id=\"write\"/><link_ctn "
        "id=\"drive\"/></route>\n",
        f);
}

/* A link between GPUs: `from` sends by one of its own and `to` takes by one of its own, as at a switch, where all are
 * linked; those that are in pairs have one each way. Others go by the links to RAM. */
static bool have_peer_link(const tess_simulated_gpus *g, int from, int to)
{
    return g->peer_rate > 0 && (!g->pairs || g->pair[from][to]);
}

static void write_link(FILE *f, const char *name, int a, int b, double rate, double latency)
{
    fprintf(f, "<link id=\"%s%d-%d\" bandwidth=\"%.0fBps\" latency=\"%.9fs\"/>\n", name, a, b, rate, latency);
}

static void write_peer_route(FILE *f, const tess_simulated_gpus *g, int from, int to)
{
    fprintf(f, "<route src=\"CUDA%d\" dst=\"CUDA%d\" symmetrical=\"NO\">", from, to);
    if (have_peer_link(g, from, to) && g->pairs)
        fprintf(f, "<link_ctn id=\"pair%d-%d\"/>", from, to);
    else if (have_peer_link(g, from, to))
        fprintf(f, "<link_ctn id=\"sends%d-0\"/><link_ctn id=\"takes%d-0\"/>", from, to);
    else
        fprintf(f, "<link_ctn id=\"up%d-0\"/><link_ctn id=\"down%d-0\"/>", from / g->host_gpus, to / g->host_gpus);
    fputs("</route>\n", f);
}

/* RAM itself gives and takes no more than copies do there. */
static void write_gpus(FILE *f, const tess_simulated *m)
{
    const tess_simulated_gpus *g = &m->gpus;
    if (g->count) fprintf(f, "<link id=\"memory\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n", m->copy_rate);
    for (int i = 0; i < g->count; i++) {
        fprintf(f,
                "<host id=\"CUDA%d\" speed=\"1f\"><prop id=\"memsize\" value=\"%llu\"/>"
                "<prop id=\"memcpy_peer\" value=\"1\"/></host>\n",
                i, (unsigned long long)g->bytes);
        if (i % g->host_gpus == 0) {
            write_link(f, "down", i / g->host_gpus, 0, g->host_rate, g->host_latency);
            write_link(f, "up", i / g->host_gpus, 0, g->host_rate, g->host_latency);
        }
        if (g->peer_rate > 0 && !g->pairs) {
            write_link(f, "sends", i, 0, g->peer_rate, g->peer_latency);
            write_link(f, "takes", i, 0, g->peer_rate, 0);
        }
        for (int to = 0; g->pairs && to < g->count; to++)
            if (g->pair[i][to]) write_link(f, "pair", i, to, g->peer_rate, g->peer_latency);
    }
}

static void write_gpu_routes(FILE *f, const tess_simulated_gpus *g)
{
    for (int i = 0; i < g->count; i++) {
        const int link = i / g->host_gpus;
        fprintf(f,
                "<route src=\"RAM\" dst=\"CUDA%d\" symmetrical=\"NO\"><link_ctn id=\"down%d-0\"/>"
                "<link_ctn id=\"memory\"/></route>\n"
                "<route src=\"CUDA%d\" dst=\"RAM\" symmetrical=\"NO\"><link_ctn id=\"up%d-0\"/>"
                "<link_ctn id=\"memory\"/></route>\n",
                i, link, i, link);
        for (int to = 0; to < g->count; to++)
            if (i != to) write_peer_route(f, g, i, to);
    }
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
    /* SimGrid reads all routes after all that they lead to. */
    write_gpus(f, m);
    if (m->has_drive) write_drive(f, &m->drive);
    write_gpu_routes(f, &m->gpus);
    if (m->has_drive) write_drive_routes(f);
    fputs("</AS>\n</platform>\n", f);
}

/* StarPU's own figures of its buses, by which policies choose: from each node of memory to each, RAM and the GPUs; it
 * wants one more, which is none. */
static void write_buses(FILE *f, const tess_simulated *m, bool rates)
{
    const tess_simulated_gpus *g = &m->gpus;
    for (int from = 0; from <= g->count + 1; from++)
        for (int to = 0; to <= g->count + 1; to++) {
            const bool peers = from && to && have_peer_link(g, from - 1, to - 1);
            const double rate = (peers ? g->peer_rate : g->host_rate) * 1e-6,
                         latency = (peers        ? g->peer_latency
                                    : from && to ? 2 * g->host_latency
                                                 : g->host_latency) *
                                   1e6;
            const double value = from > g->count || to > g->count ? NAN : from == to ? 0 : rates ? rate : latency;
            fprintf(f, to <= g->count ? "%g\t" : "%g\t\n", value);
        }
}

static void write_bandwidths(FILE *f, const tess_simulated *m)
{
    write_buses(f, m, true);
}

static void write_latencies(FILE *f, const tess_simulated *m)
{
    write_buses(f, m, false);
}

tess_status tess_platform_write(const tess_simulated *m, const char *dir)
{
    static const struct {
        const char *name;
        void (*write)(FILE *f, const tess_simulated *m);
    } files[] = {{"platform.v4.xml", write_hosts}, {"bandwidth", write_bandwidths}, {"latency", write_latencies}};
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
