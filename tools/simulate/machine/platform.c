/* What SimGrid and StarPU read of a machine: for each rank hosts for its cores, its memory, its GPUs and its drive, and
 * the links between them; for each node a host of the network. All below a directory that StarPU takes for its home. */
#include "models/text/base/directories.h"
#include "tools/simulate/simulation.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RANK "StarPU-MPI%d-" /* how StarPU names the hosts of a rank */
/* By which messages from GPU to GPU go: that of a GPU in its node, and of a node in a rail. */
#define NODE_GPU  "node%dgpu%d"
#define RAIL_NODE "rail%dnode"

/* Which ranks are there. The links that a node's ranks share are narrower by the part of the ranks that are not there,
 * so that the others do not get it. */
struct there {
    int ranks_here; /* on a node, of all */
    tess_fold fold;
};

static bool is_there(const struct there *t, int rank)
{
    return tess_fold_of(t->fold, rank) == rank;
}

/* Returns how many of `ranks` ranks from `first` on are there. */
static int count_there(const struct there *t, int first, int ranks)
{
    int n = 0;
    for (int r = first; r < first + ranks; r++) n += is_there(t, r);
    return n;
}

/* Every node with ranks that are there has as many of them (tess_platform_check), and node 0 is one. */
static double node_share(const struct there *t)
{
    return (double)count_there(t, 0, t->ranks_here) / t->ranks_here;
}

/* SimGrid wants hosts and links before the ways between them. */

/* A drive reads and writes at rates of its own, and both at a time at those that were measured of both: each takes a
 * link of its own and one of the drive, the slower one more often. There as much is under way as (bytes read) / (rate
 * of reading) + (bytes written) / (rate of writing), in whole numbers, says. All ranks of a node have it. */
static void weigh(const tess_drive *d, int *reads, int *writes)
{
    enum { MOST = 8 };
    double best = INFINITY;
    *reads = *writes = 1;
    for (int r = 1; r <= MOST; r++)
        for (int w = 1; w <= MOST; w++) {
            const double apart = fabs(log(r * d->read_rate / (w * d->write_rate)));
            if (apart < best - 1e-9) best = apart, *reads = r, *writes = w;
        }
}

static void write_drive(FILE *f, const tess_drive *d, int rank, int node, bool first, double share)
{
    int reads, writes;
    weigh(d, &reads, &writes);
    fprintf(f, "<host id=\"" RANK "DISK0\" speed=\"1f\"/>\n", rank);
    if (first)
        fprintf(f,
                "<link id=\"read%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
                "<link id=\"write%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n"
                "<link id=\"drive%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n",
                node, d->read_rate * share, node, d->write_rate * share, node,
                (reads * d->mixed_read_rate + writes * d->mixed_write_rate) * share);
}

static void write_drive_way(FILE *f, int rank, int node, bool reads, int times)
{
    fprintf(f, "<route src=\"" RANK "%s\" dst=\"" RANK "%s\" symmetrical=\"NO\"><link_ctn id=\"%s%d\"/>", rank,
            reads ? "DISK0" : "RAM", rank, reads ? "RAM" : "DISK0", reads ? "read" : "write", node);
    for (int i = 0; i < times; i++) fprintf(f, "<link_ctn id=\"drive%d\"/>", node);
    fputs("</route>\n", f);
}

static void write_drive_ways(FILE *f, const tess_drive *d, int rank, int node)
{
    int reads, writes;
    weigh(d, &reads, &writes);
    write_drive_way(f, rank, node, true, reads);
    write_drive_way(f, rank, node, false, writes);
}

/* A link between GPUs: `from` sends by one of its own and `to` takes by one of its own, as at a switch, where all are
 * linked; those that are in pairs have one each way. Others go by the links to RAM. */
static void write_link(FILE *f, const char *name, int node, int a, int b, double rate, double latency)
{
    fprintf(f, "<link id=\"%s%d-%d-%d\" bandwidth=\"%.0fBps\" latency=\"%.9fs\"/>\n", name, node, a, b, rate, latency);
}

/* Returns which share of n GPUs of a node, from `first` on, has a rank that is there; 1 if none has. */
static double gpus_share(const tess_simulated *m, const struct there *t, int node, int first, int n)
{
    const int a_rank = m->gpus.count / t->ranks_here;
    int there = 0, all = 0;
    for (int i = first; i < first + n && i < m->gpus.count; i++, all++)
        there += is_there(t, node * t->ranks_here + i / a_rank);
    return there ? (double)there / all : 1;
}

/* The links of a node's GPUs, which are all of its ranks'. RAM itself gives and takes no more than copies do there. */
static void write_gpu_links(FILE *f, const tess_simulated *m, const struct there *t, int node)
{
    const tess_simulated_gpus *g = &m->gpus;
    fprintf(f, "<link id=\"memory%d\" bandwidth=\"%.0fBps\" latency=\"0s\"/>\n", node, m->copy_rate * node_share(t));
    for (int i = 0; i < g->count; i++) {
        if (i % g->host_gpus == 0) {
            const double rate = g->host_rate * gpus_share(m, t, node, i, g->host_gpus);
            write_link(f, "down", node, i / g->host_gpus, 0, rate, g->host_latency);
            write_link(f, "up", node, i / g->host_gpus, 0, rate, g->host_latency);
        }
        if (g->peer_rate > 0 && !g->pairs) {
            write_link(f, "sends", node, i, 0, g->peer_rate, g->peer_latency);
            write_link(f, "takes", node, i, 0, g->peer_rate, 0);
        }
        for (int to = 0; g->pairs && to < g->count; to++)
            if (i != to && tess_simulated_peers(g, i, to))
                write_link(f, "pair", node, i, to, g->peer_rate, g->peer_latency);
    }
}

/* From one GPU of a node to another. */
static void write_way(FILE *f, const tess_simulated_gpus *g, int node, int from, int to)
{
    const int up = from / g->host_gpus, down = to / g->host_gpus;
    const bool peers = tess_simulated_peers(g, from, to);
    if (peers && g->pairs)
        fprintf(f, "<link_ctn id=\"pair%d-%d-%d\"/>", node, from, to);
    else if (peers)
        fprintf(f, "<link_ctn id=\"sends%d-%d-0\"/><link_ctn id=\"takes%d-%d-0\"/>", node, from, node, to);
    else
        fprintf(f, "<link_ctn id=\"up%d-%d-0\"/><link_ctn id=\"down%d-%d-0\"/>", node, up, node, down);
}

/* A rank's GPUs. */
static void write_gpus(FILE *f, const tess_simulated *m, int rank, int count)
{
    for (int i = 0; i < count; i++)
        fprintf(f,
                "<host id=\"" RANK "CUDA%d\" speed=\"1f\"><prop id=\"memsize\" value=\"%llu\"/>"
                "<prop id=\"memcpy_peer\" value=\"1\"/></host>\n",
                rank, i, (unsigned long long)m->gpus.bytes);
}

static void write_gpu_ways(FILE *f, const tess_simulated_gpus *g, int rank, int node, int first, int count)
{
    for (int i = 0; i < count; i++) {
        const int link = (first + i) / g->host_gpus;
        fprintf(f,
                "<route src=\"" RANK "RAM\" dst=\"" RANK "CUDA%d\" symmetrical=\"NO\">"
                "<link_ctn id=\"down%d-%d-0\"/><link_ctn id=\"memory%d\"/></route>\n"
                "<route src=\"" RANK "CUDA%d\" dst=\"" RANK "RAM\" symmetrical=\"NO\">"
                "<link_ctn id=\"up%d-%d-0\"/><link_ctn id=\"memory%d\"/></route>\n",
                rank, rank, i, node, link, node, rank, i, rank, node, link, node);
        for (int to = 0; to < count; to++) {
            if (i == to) continue;
            fprintf(f, "<route src=\"" RANK "CUDA%d\" dst=\"" RANK "CUDA%d\" symmetrical=\"NO\">", rank, i, rank, to);
            write_way(f, g, node, first + i, first + to);
            fputs("</route>\n", f);
        }
    }
}

/* What StarPU takes for a machine, of each rank; nothing leads from one to another. */
static void write_rank(FILE *f, const tess_simulated *m, const struct there *t, int rank)
{
    const int here = t->ranks_here, node = rank / here, gpus = m->gpus.count / here, first = rank % here * gpus;
    const bool is_first = !count_there(t, node * here, rank % here); /* who has what all of a node share */
    fprintf(f, "<AS id=\"StarPU-MPI%d\" routing=\"Full\">\n", rank);
    fprintf(f, "<host id=\"" RANK "MAIN\" speed=\"1f\"/>\n<host id=\"" RANK "RAM\" speed=\"1f\"/>\n", rank, rank);
    for (int i = 0; i < m->cores / here; i++) fprintf(f, "<host id=\"" RANK "CPU%d\" speed=\"1Gf\"/>\n", rank, i);
    if (gpus && is_first) write_gpu_links(f, m, t, node);
    write_gpus(f, m, rank, gpus);
    if (m->has_drive) write_drive(f, &m->drive, rank, node, is_first, node_share(t) * m->drive_share);
    write_gpu_ways(f, &m->gpus, rank, node, first, gpus);
    if (m->has_drive) write_drive_ways(f, &m->drive, rank, node);
    fputs("</AS>\n", f);
}

/* A host a node, by which messages go: from one to another over the links of both, or from one to itself at the rate at
 * which its memory copies. */
static void write_cluster(FILE *f, const tess_simulated *m, const struct there *t, const char *id, const char *prefix,
                          double rate)
{
    const tess_simulated_net *n = &m->net;
    const int links = n->group ? 5 : n->below ? 4 : 2; /* that a message takes from one node to another at most */
    fprintf(f,
            "<cluster id=\"%s\" prefix=\"%s\" suffix=\"\" radical=\"0-%d\" speed=\"1f\" bw=\"%.0fBps\" "
            "lat=\"%.12fs\" sharing_policy=\"SPLITDUPLEX\" loopback_bw=\"%.0fBps\" loopback_lat=\"0s\"",
            id, prefix, m->nodes * (tess_fold_mirrors(t->fold, n) ? 2 : 1) - 1, rate, n->latency / links,
            m->copy_rate / 2);
    if (n->group)
        fprintf(f, " topology=\"DRAGONFLY\" topo_parameters=\"%d,%d;1,1;%d,1;%d\"", m->nodes / n->below / n->group,
                n->above, n->group, n->below);
    else if (n->below)
        fprintf(f, " topology=\"FAT_TREE\" topo_parameters=\"2;%d,%d;1,%d;1,1\"", n->below, m->nodes / n->below,
                n->above);
    fputs("/>\n", f);
}

/* The GPUs of a node, between ranks: over the same links as their ranks' own copies. */
static void write_peers(FILE *f, const tess_simulated *m, int node)
{
    const int n = m->gpus.count;
    fprintf(f, "<AS id=\"gpus%d\" routing=\"Full\">\n", node);
    for (int i = 0; i < n; i++) fprintf(f, "<host id=\"" NODE_GPU "\" speed=\"1f\"/>\n", node, i);
    for (int i = 0; i < n * n; i++) {
        const int from = i / n, to = i % n;
        if (from == to) continue;
        fprintf(f, "<route src=\"" NODE_GPU "\" dst=\"" NODE_GPU "\" symmetrical=\"NO\">", node, from, node, to);
        write_way(f, &m->gpus, node, from, to);
        fputs("</route>\n", f);
    }
    fputs("</AS>\n", f);
}

/* Messages between ranks: from RAM to RAM by all that a node has, from GPU to GPU by a rail. They go one way or the
 * other in a run, so that each way has links of its own takes nothing from the other. */
static void write_network(FILE *f, const tess_simulated *m, const struct there *t)
{
    const int rails = m->net.rails, each = m->gpus.count / rails;
    write_cluster(f, m, t, "network", "node", (m->net.there ? m->net.rate : m->copy_rate / 2) * node_share(t));
    if (!m->gpus.count) return;
    for (int i = 0; i < m->nodes && t->ranks_here > 1; i++)
        if (count_there(t, i * t->ranks_here, t->ranks_here)) write_peers(f, m, i);
    for (int i = 0; i < rails && m->nodes > 1; i++) {
        char id[32], prefix[32];
        snprintf(id, sizeof id, "rail%d", i);
        snprintf(prefix, sizeof prefix, RAIL_NODE, i);
        write_cluster(f, m, t, id, prefix, m->net.rate / rails * gpus_share(m, t, 0, i * each, each));
    }
}

/* Bytes a second are what its links say they are: no share of them is a protocol's, and none waits for an answer. */
static void write_hosts(FILE *f, const tess_simulated *m, const struct there *t)
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
    for (int r = 0; r < m->nodes * t->ranks_here; r++)
        if (is_there(t, r)) write_rank(f, m, t, r);
    write_network(f, m, t);
    fputs("</AS>\n</platform>\n", f);
}

/* StarPU's own figures of its buses, by which policies choose: from each node of memory to each, RAM and a rank's GPUs;
 * it wants one more, which is none. */
static void write_buses(FILE *f, const tess_simulated *m, int ranks_here, bool rates)
{
    const tess_simulated_gpus *g = &m->gpus;
    const int count = g->count / ranks_here;
    for (int from = 0; from <= count + 1; from++)
        for (int to = 0; to <= count + 1; to++) {
            const bool peers = from && to && from <= count && to <= count && tess_simulated_peers(g, from - 1, to - 1);
            const double rate = (peers ? g->peer_rate : g->host_rate) * 1e-6,
                         latency = (peers        ? g->peer_latency
                                    : from && to ? 2 * g->host_latency
                                                 : g->host_latency) *
                                   1e6;
            const double value = from > count || to > count ? NAN : from == to ? 0 : rates ? rate : latency;
            fprintf(f, to <= count ? "%g\t" : "%g\t\n", value);
        }
}

static void write_bandwidths(FILE *f, const tess_simulated *m, const struct there *t)
{
    write_buses(f, m, t->ranks_here, true);
}

static void write_latencies(FILE *f, const tess_simulated *m, const struct there *t)
{
    write_buses(f, m, t->ranks_here, false);
}

tess_status tess_platform_check(const tess_simulated *m, int ranks_here, tess_fold fold)
{
    const struct there t = {ranks_here, fold};
    const int first = count_there(&t, 0, ranks_here);
    for (int node = 1; node < m->nodes; node++) {
        const int there = count_there(&t, node * ranks_here, ranks_here);
        if (there && there != first)
            return tess_error(TESS_INVALID, "--fold",
                              "of %d ranks on each node %d would be there on node 0 and %d on node %d, and what they "
                              "share is divided evenly (another --ranks-per-node, or --fold none)",
                              ranks_here, first, there, node);
    }
    return TESS_OK;
}

tess_status tess_platform_write(const tess_simulated *m, int ranks_here, tess_fold fold, const char *dir)
{
    const struct there t = {ranks_here, fold};
    static const struct {
        const char *name;
        void (*write)(FILE *f, const tess_simulated *m, const struct there *t);
    } files[] = {{"platform.v4.xml", write_hosts}, {"bandwidth", write_bandwidths}, {"latency", write_latencies}};
    TESS_FREED char *bus = tess_format("%s/.starpu/sampling/bus", dir);
    bool written = tess_dirs_make(bus, NULL);
    for (size_t i = 0; i < sizeof files / sizeof *files && written; i++) {
        char *path = tess_format("%s/simulated.%s", bus, files[i].name);
        FILE *f = fopen(path, "w");
        if (f) files[i].write(f, m, &t);
        written = f && !fflush(f) && !ferror(f);
        const int number = errno;
        if (f) fclose(f);
        free(path);
        errno = number;
    }
    return written ? TESS_OK
                   : tess_error(tess_errno_status(errno), "TMPDIR",
                                "the machine cannot be written there, as StarPU reads it: %s", strerror(errno));
}
