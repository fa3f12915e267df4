/* A machine as a file: JSON whose units stand in its names, see docs/simulate.md. */
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "tools/simulate/simulation.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of the file: how its path is written, and what 1 of its unit is. */
struct field {
    const char *group, *name; /* group NULL: of the file itself */
    size_t offset;
    double unit, least;
};
static const struct field fields[] = {
    {NULL, "copy_gb_s", offsetof(tess_simulated, copy_rate), 1e9, 1e-3},
    {NULL, "task_us", offsetof(tess_simulated, task_seconds), 1e-6, 0},
    {NULL, "message_gb_s", offsetof(tess_simulated, message_rate), 1e9, 0},
    {"matrix_gflops", "fp32", offsetof(tess_simulated, matrix_rate[TESS_F32]), 1e9, 1e-3},
    {"matrix_gflops", "bf16", offsetof(tess_simulated, matrix_rate[TESS_BF16]), 1e9, 1e-3},
    {"drive_gb_s", "read", offsetof(tess_simulated, drive.read_rate), 1e9, 1e-3},
    {"drive_gb_s", "write", offsetof(tess_simulated, drive.write_rate), 1e9, 1e-3},
    {"drive_gb_s", "mixed_read", offsetof(tess_simulated, drive.mixed_read_rate), 1e9, 1e-3},
    {"drive_gb_s", "mixed_write", offsetof(tess_simulated, drive.mixed_write_rate), 1e9, 1e-3},
    {NULL, "drive_gib", offsetof(tess_simulated, drive_bytes), 1 << 30, 0},
    {"reached", "fp32_products", offsetof(tess_simulated, reached[TESS_F32].matrix), 1, 0},
    {"reached", "fp32_copies", offsetof(tess_simulated, reached[TESS_F32].copy), 1, 0},
    {"reached", "bf16_products", offsetof(tess_simulated, reached[TESS_BF16].matrix), 1, 0},
    {"reached", "bf16_copies", offsetof(tess_simulated, reached[TESS_BF16].copy), 1, 0},
    {"network", "gb_s", offsetof(tess_simulated, net.rate), 1e9, 1e-3},
    {"network", "latency_us", offsetof(tess_simulated, net.latency), 1e-6, 0},
};
enum { FIELDS = sizeof fields / sizeof *fields };
static const char *const known[] = {"name",    "about",         "cores",      "memory_gib", "copy_gb_s",
                                    "task_us", "matrix_gflops", "drive_gb_s", "drive_gib",  "shares",
                                    "gpus",    "nodes",         "network",    "reached",    "message_gb_s"};
enum { KNOWN = sizeof known / sizeof *known };
static const struct field gpu_fields[] = {
    {NULL, "copy_gb_s", offsetof(tess_simulated_gpus, copy_rate), 1e9, 1e-3},
    {NULL, "task_us", offsetof(tess_simulated_gpus, task_seconds), 1e-6, 0},
    {NULL, "tile_us", offsetof(tess_simulated_gpus, tile_seconds), 1e-6, 0},
    {NULL, "step_us", offsetof(tess_simulated_gpus, step_seconds), 1e-6, 0},
    {NULL, "pin_gb_s", offsetof(tess_simulated_gpus, pin_rate), 1e9, 0},
    {"matrix_gflops", "fp32", offsetof(tess_simulated_gpus, matrix_rate[TESS_F32]), 1e9, 1e-3},
    {"matrix_gflops", "bf16", offsetof(tess_simulated_gpus, matrix_rate[TESS_BF16]), 1e9, 1e-3},
    {"host_link", "gb_s", offsetof(tess_simulated_gpus, host_rate), 1e9, 1e-3},
    {"host_link", "latency_us", offsetof(tess_simulated_gpus, host_latency), 1e-6, 0},
    {"peer_link", "gb_s", offsetof(tess_simulated_gpus, peer_rate), 1e9, 1e-3},
    {"peer_link", "latency_us", offsetof(tess_simulated_gpus, peer_latency), 1e-6, 0},
};
enum { GPU_FIELDS = sizeof gpu_fields / sizeof *gpu_fields };
static const char *const gpu_known[] = {"count",   "name",     "memory_gib",    "copy_gb_s", "task_us",   "tile_us",
                                        "step_us", "pin_gb_s", "matrix_gflops", "host_link", "peer_link", "shares"};
enum { GPU_KNOWN = sizeof gpu_known / sizeof *gpu_known };
static const double GIB = 1 << 30, MOST = 1e9;

static double *at(const void *of, const struct field *f)
{
    return (double *)((char *)of + f->offset);
}

static tess_status wrong(const char *path, const char *name, const json_t *value, const char *expected)
{
    char where[600];
    TESS_FREED char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    snprintf(where, sizeof where, "%.400s: %.100s", path, name);
    tess_error(TESS_INVALID, where, "%.80s, expected %s", value ? text ? text : "?" : "missing", expected);
    return TESS_INVALID;
}

enum { NAME = 64 }; /* bytes of a machine's name, or a GPU's */

/* It is printed in a line of its own, whole. */
static tess_status read_name(const char *path, const char *name, const json_t *value, char out[NAME])
{
    const char *text = json_is_string(value) ? json_string_value(value) : NULL;
    bool plain = text && strlen(text) < NAME;
    for (const char *c = text; plain && *c; c++) plain = (unsigned char)*c >= ' ' && *c != 127;
    if (!plain) return wrong(path, name, value, "a text of one line and at most 63 bytes");
    strcpy(out, text);
    return TESS_OK;
}

static tess_status number(const char *path, const char *name, const json_t *value, double least, double *out)
{
    char expected[64];
    *out = json_number_value(value);
    if (json_is_number(value) && *out >= least && *out <= MOST) return TESS_OK;
    snprintf(expected, sizeof expected, "a number from %g to %g", least, MOST);
    return wrong(path, name, value, expected);
}

static tess_status check_names(const char *path, const char *of, const json_t *object, const char *const *names,
                               size_t count)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        bool there = false;
        for (size_t k = 0; k < count; k++) there |= !strcmp(name, names[k]);
        const char *meant = there ? NULL : tess_nearest(name, names, count);
        if (!there)
            return tess_error(TESS_INVALID, path, "unknown key %s%s%.60s (%s%s%s)", of, *of ? "." : "", name,
                              meant ? "did you mean " : "see docs/simulate.md", meant ? meant : "", meant ? "?" : "");
    }
    return TESS_OK;
}

/* What groups have beside rates. */
static const char *const of_networks[] = {"topology",           "rails", "nodes_per_switch", "uplinks",
                                          "switches_per_group", NULL};
static const char *const *const of_trees = of_networks + 2;
static const char *const of_host_links[] = {"gpus", NULL}, *const of_peer_links[] = {"pairs", NULL};

/* An object of the file's, whose names are those of the fields of this group, and more. */
static tess_status check_group(const char *path, const char *of, const json_t *root, const struct field *fields,
                               size_t count, const char *group, const char *const *more)
{
    const json_t *g = json_object_get(root, group);
    const char *names[FIELDS + 4];
    char full[100];
    size_t n = 0;
    snprintf(full, sizeof full, "%s%s", of, group);
    for (size_t k = 0; k < count; k++)
        if (fields[k].group && !strcmp(fields[k].group, group)) names[n++] = fields[k].name;
    while (more && *more) names[n++] = *more++;
    if (!json_is_object(g)) return wrong(path, full, g, "an object");
    return check_names(path, full, g, names, n);
}

/* Those of groups that are not there, and those that may be 0, may be missing. */
static tess_status read_fields(const char *path, const char *of, const json_t *root, const struct field *fields,
                               size_t count, void *into)
{
    for (size_t k = 0; k < count; k++) {
        const struct field *f = &fields[k];
        const json_t *group = f->group ? json_object_get(root, f->group) : root,
                     *value = json_object_get(group, f->name);
        char full[100];
        if (!group || (!value && f->least == 0)) continue;
        snprintf(full, sizeof full, "%s%s%s%s", of, f->group ? f->group : "", f->group ? "." : "", f->name);
        TESS_TRY(number(path, full, value, f->least, at(into, f)));
        *at(into, f) *= f->unit;
    }
    return TESS_OK;
}

static tess_status whole_number(const char *path, const char *name, const json_t *value, int most, int *out)
{
    char expected[64];
    snprintf(expected, sizeof expected, "a whole number from 1 to %d", most);
    const double n = json_number_value(value);
    if (!json_is_number(value) || n != floor(n) || n < 1 || n > most) return wrong(path, name, value, expected);
    *out = (int)n;
    return TESS_OK;
}

/* Reads "9.437 MB ", say, and goes on behind it; leaves all as it is where there is something else. */
static bool read_amount(const char **text, const char *unit, double *out)
{
    char *end;
    const double value = strtod(*text, &end);
    const size_t n = strlen(unit);
    if (end == *text || *end != ' ' || strncmp(end + 1, unit, n) || (end[1 + n] && end[1 + n] != ' ')) return false;
    if (!(value > 0) || value > MOST) return false;
    *out = value;
    *text = end + 1 + n + (end[1 + n] == ' ');
    return true;
}

/* How much work a share is of: "2.416 GFLOP 9.437 MB 512 rows"; what multiplies no matrices has bytes alone. */
static bool read_work(const char *text, tess_simulated_point *p)
{
    const bool product = read_amount(&text, "GFLOP", &p->flops);
    if (!read_amount(&text, "MB", &p->bytes)) return false;
    if (product) read_amount(&text, "rows", &p->rows);
    p->flops *= 1e9, p->bytes *= 1e6;
    return !*text;
}

/* Reads a codelet's shares by the work of a task, and under "all" the share of tasks that are like none of these. */
static tess_status read_points(const char *path, const char *codelet, json_t *by, double *all, tess_simulated_shares *s)
{
    const char *name;
    json_t *value;
    char full[300];
    snprintf(full, sizeof full, "%.180s.all", codelet);
    TESS_TRY(number(path, full, json_object_get(by, "all"), TESS_LEAST_SHARE, all));
    json_object_foreach(by, name, value)
    {
        tess_simulated_point *p = &s->point[s->points];
        if (!strcmp(name, "all")) continue;
        snprintf(full, sizeof full, "%.180s.%.100s", codelet, name);
        if (s->points == TESS_SIMULATED_POINTS) return wrong(path, full, value, "at most 1024 of them in a file");
        *p = (tess_simulated_point){.of = s->codelets};
        TESS_TRY(number(path, full, value, TESS_LEAST_SHARE, &p->share));
        if (!read_work(name, p))
            return wrong(path, full, value,
                         "the work of a task, as in \"2.416 GFLOP 9.437 MB 512 rows\" or \"9.437 MB\"");
        s->points++;
    }
    return TESS_OK;
}

/* Shares of codelets, and of those that have none of their own. `drive`: where its share goes, or NULL. */
static tess_status read_shares(const char *path, const char *of, json_t *shares, double *drive,
                               tess_simulated_shares *out)
{
    const char *name;
    json_t *value;
    char full[200];
    snprintf(full, sizeof full, "%sshares", of);
    if (shares && !json_is_object(shares)) return wrong(path, full, shares, "an object");
    json_object_foreach(shares, name, value)
    {
        tess_simulated_share *s = &out->codelet[out->codelets];
        snprintf(full, sizeof full, "%sshares.%.100s", of, name);
        if (out->codelets == TESS_SIMULATED_SHARES || strlen(name) >= sizeof s->codelet)
            return wrong(path, full, value, "at most 128 names of codelets");
        const bool is_drive = drive && !strcmp(name, "drive"),
                   like = is_drive || !strcmp(name, "products") || !strcmp(name, "copies");
        if (!like && json_is_object(value))
            TESS_TRY(read_points(path, full, value, &s->share, out));
        else
            TESS_TRY(number(path, full, value, TESS_LEAST_SHARE, &s->share));
        if (!strcmp(name, "products"))
            out->products = s->share;
        else if (!strcmp(name, "copies"))
            out->copies = s->share;
        else if (is_drive)
            *drive = s->share;
        else
            snprintf(s->codelet, sizeof s->codelet, "%s", name), out->codelets++;
    }
    return TESS_OK;
}

/* ---- GPUs ---- */

static tess_status read_pairs(const char *path, const json_t *pairs, tess_simulated_gpus *g)
{
    static const char name[] = "gpus.peer_link.pairs";
    if (!json_is_array(pairs)) return wrong(path, name, pairs, "an array of pairs, [[0, 1], ...]");
    g->pairs = true;
    for (size_t i = 0; i < json_array_size(pairs); i++) {
        const json_t *pair = json_array_get(pairs, i), *one = json_array_get(pair, 0), *other = json_array_get(pair, 1);
        const json_int_t a = json_integer_value(one), b = json_integer_value(other);
        const bool are = json_array_size(pair) == 2 && json_is_integer(one) && json_is_integer(other);
        if (!are || a < 0 || b < 0 || a >= g->count || b >= g->count || a == b)
            return wrong(path, name, pair, "two different GPUs, which are counted from 0");
        g->pair[a][b] = g->pair[b][a] = true;
    }
    return TESS_OK;
}

static tess_status read_gpus(const char *path, const json_t *root, tess_simulated_gpus *g)
{
    static const char of[] = "gpus.";
    double gib;
    g->shares.products = TESS_GPU_MATRIX_SHARE;
    g->shares.copies = TESS_GPU_COPY_SHARE;
    g->host_gpus = 1;
    if (!json_is_object(root)) return wrong(path, "gpus", root, "an object");
    TESS_TRY(check_names(path, "gpus", root, gpu_known, GPU_KNOWN));
    TESS_TRY(whole_number(path, "gpus.count", json_object_get(root, "count"), TESS_SIMULATED_GPUS, &g->count));
    const json_t *name = json_object_get(root, "name"), *peer = json_object_get(root, "peer_link"),
                 *pairs = json_object_get(peer, "pairs"),
                 *shared = json_object_get(json_object_get(root, "host_link"), "gpus");
    TESS_TRY(read_name(path, "gpus.name", name, g->name));
    TESS_TRY(number(path, "gpus.memory_gib", json_object_get(root, "memory_gib"), 1.0 / 64, &gib));
    g->bytes = (uint64_t)(gib * GIB);
    TESS_TRY(check_group(path, of, root, gpu_fields, GPU_FIELDS, "matrix_gflops", NULL));
    TESS_TRY(check_group(path, of, root, gpu_fields, GPU_FIELDS, "host_link", of_host_links));
    if (peer) TESS_TRY(check_group(path, of, root, gpu_fields, GPU_FIELDS, "peer_link", of_peer_links));
    TESS_TRY(read_fields(path, of, root, gpu_fields, GPU_FIELDS, g));
    if (shared) TESS_TRY(whole_number(path, "gpus.host_link.gpus", shared, g->count, &g->host_gpus));
    if (pairs) TESS_TRY(read_pairs(path, pairs, g));
    return read_shares(path, of, json_object_get(root, "shares"), NULL, &g->shares);
}

/* ---- all of it ---- */

/* What a network is made of. "flat": its switches are nowhere narrower than the links of the nodes. "fat tree": every
 * net->below nodes share a switch, and net->above links of the same rate lead from it to as many switches that connect
 * all. "dragonfly": net->group such switches are a group, where each is linked with each, and net->above links lead
 * from group to group. */
static tess_status read_topology(const char *path, const json_t *network, tess_simulated_net *net)
{
    static const char *const names[] = {"flat", "fat tree", "dragonfly"};
    const json_t *t = json_object_get(network, "topology");
    int *const to[] = {&net->below, &net->above, &net->group};
    int which = t ? -1 : 0;
    for (int i = 0; i < 3; i++)
        if (json_is_string(t) && !strcmp(json_string_value(t), names[i])) which = i;
    if (which < 0) return wrong(path, "network.topology", t, "\"flat\", \"fat tree\" or \"dragonfly\"");
    snprintf(net->topology, sizeof net->topology, "%s", names[which]);
    for (int i = 0; of_trees[i]; i++) { /* a tree has the first two, a dragonfly all */
        const json_t *value = json_object_get(network, of_trees[i]);
        char name[64];
        snprintf(name, sizeof name, "network.%s", of_trees[i]);
        if (which > (i == 2))
            TESS_TRY(whole_number(path, name, value, TESS_SIMULATED_NODES, to[i]));
        else if (value)
            return wrong(path, of_trees[i], value,
                         i == 2 ? "\"topology\": \"dragonfly\"" : "\"topology\": \"fat tree\" or \"dragonfly\"");
    }
    return TESS_OK;
}

/* Reads how many links lead from a node into the network; its GPUs are divided evenly among them. */
static tess_status read_rails(const char *path, const json_t *rails, tess_simulated *m)
{
    static const char name[] = "network.rails";
    char expected[64];
    if (!rails) return TESS_OK;
    if (!m->gpus.count) return wrong(path, name, rails, "gpus, which have them");
    TESS_TRY(whole_number(path, name, rails, m->gpus.count, &m->net.rails));
    snprintf(expected, sizeof expected, "as many as divide its %d GPUs evenly", m->gpus.count);
    return m->gpus.count % m->net.rails ? wrong(path, name, rails, expected) : TESS_OK;
}

static tess_status read_all(const char *path, const json_t *root, tess_simulated *m)
{
    double gib;
    if (!json_is_object(root)) return wrong(path, "machine", root, "an object");
    TESS_TRY(check_names(path, "", root, known, KNOWN));
    const json_t *name = json_object_get(root, "name"), *gpus = json_object_get(root, "gpus"),
                 *nodes = json_object_get(root, "nodes"), *network = json_object_get(root, "network");
    TESS_TRY(read_name(path, "name", name, m->name));
    TESS_TRY(whole_number(path, "cores", json_object_get(root, "cores"), TESS_SIMULATED_CORES, &m->cores));
    if (nodes) TESS_TRY(whole_number(path, "nodes", nodes, TESS_SIMULATED_NODES, &m->nodes));
    TESS_TRY(number(path, "memory_gib", json_object_get(root, "memory_gib"), 1.0 / 64, &gib));
    m->ram_bytes = (uint64_t)(gib * GIB);
    m->has_drive = json_object_get(root, "drive_gb_s");
    m->net.there = network;
    TESS_TRY(check_group(path, "", root, fields, FIELDS, "matrix_gflops", NULL));
    if (m->has_drive) TESS_TRY(check_group(path, "", root, fields, FIELDS, "drive_gb_s", NULL));
    if (json_object_get(root, "reached")) TESS_TRY(check_group(path, "", root, fields, FIELDS, "reached", NULL));
    if (network) {
        TESS_TRY(check_group(path, "", root, fields, FIELDS, "network", of_networks));
        TESS_TRY(read_topology(path, network, &m->net));
    }
    TESS_TRY(read_fields(path, "", root, fields, FIELDS, m));
    if (m->drive_bytes > 0 && !m->has_drive)
        return wrong(path, "drive_gib", json_object_get(root, "drive_gib"), "drive_gb_s beside it");
    if (gpus) TESS_TRY(read_gpus(path, gpus, &m->gpus));
    TESS_TRY(read_rails(path, json_object_get(network, "rails"), m));
    return read_shares(path, "", json_object_get(root, "shares"), &m->drive_share, &m->shares);
}

tess_status tess_machine_read(const char *path, tess_simulated *m)
{
    json_error_t e;
    *m = (tess_simulated){.shares = {TESS_MATRIX_SHARE, TESS_COPY_SHARE}, .drive_share = 1, .nodes = 1, .net.rails = 1};
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES, &e);
    if (!root && access(path, R_OK))
        return tess_error(tess_errno_status(errno), path,
                          "cannot be read: %s, expected a machine (tessera info "
                          "--machine FILE writes this one)",
                          strerror(errno));
    if (!root) return tess_error(TESS_INVALID, path, "line %d: %s, expected JSON", e.line, e.text);
    const tess_status status = read_all(path, root, m);
    json_decref(root);
    return status;
}

tess_status tess_machine_part(tess_simulated *m, int ranks)
{
    if (ranks > m->cores || m->cores % ranks)
        return tess_error(TESS_INVALID, "machine", "%d ranks on each node, and its %d cores cannot be divided evenly",
                          ranks, m->cores);
    if (m->gpus.count % ranks)
        return tess_error(TESS_INVALID, "machine", "%d ranks on each node, and its %d GPUs cannot be divided evenly",
                          ranks, m->gpus.count);
    m->gpus.count /= ranks;
    m->cores /= ranks;
    m->ram_bytes /= (uint64_t)ranks;
    m->drive_bytes /= ranks;
    m->copy_rate /= ranks;
    for (int t = 0; t < TESS_YARDSTICKS; t++) m->matrix_rate[t] /= ranks;
    return TESS_OK;
}

/* ---- writing ---- */

/* The numbers of all groups but those two. */
static void write_fields(json_t *root, const struct field *fields, size_t count, const void *from, const char *without,
                         const char *other)
{
    for (size_t k = 0; k < count; k++) {
        const struct field *f = &fields[k];
        if (f->group && without && !strcmp(f->group, without)) continue;
        if (f->group && other && !strcmp(f->group, other)) continue;
        if (f->least == 0 && *at(from, f) == 0) continue;
        if (f->group && !json_object_get(root, f->group)) json_object_set_new(root, f->group, json_object());
        json_object_set_new(f->group ? json_object_get(root, f->group) : root, f->name,
                            json_real(*at(from, f) / f->unit));
    }
}

/* A codelet's shares by the work of a task; NULL where there are none. */
static json_t *write_points(const tess_simulated_shares *s, int of)
{
    json_t *by = NULL;
    for (int i = 0; i < s->points; i++) {
        const tess_simulated_point *p = &s->point[i];
        char name[80], flops[32] = "", rows[32] = "";
        if (p->of != of) continue;
        if (!by) json_object_set_new(by = json_object(), "all", json_real(s->codelet[of].share));
        if (p->flops > 0) snprintf(flops, sizeof flops, "%.6g GFLOP ", p->flops * 1e-9);
        if (p->rows > 0) snprintf(rows, sizeof rows, " %.6g rows", p->rows);
        snprintf(name, sizeof name, "%s%.6g MB%s", flops, p->bytes * 1e-6, rows);
        json_object_set_new(by, name, json_real(p->share));
    }
    return by;
}

static json_t *write_shares(const tess_simulated_shares *s, double drive)
{
    json_t *shares = json_object();
    if (drive < 1) json_object_set_new(shares, "drive", json_real(drive));
    json_object_set_new(shares, "products", json_real(s->products));
    json_object_set_new(shares, "copies", json_real(s->copies));
    for (int i = 0; i < s->codelets; i++) {
        json_t *points = write_points(s, i);
        json_object_set_new(shares, s->codelet[i].codelet, points ? points : json_real(s->codelet[i].share));
    }
    return shares;
}

static json_t *write_gpus(const tess_simulated_gpus *g)
{
    json_t *root = json_object();
    json_object_set_new(root, "name", json_string(g->name));
    json_object_set_new(root, "count", json_integer(g->count));
    json_object_set_new(root, "memory_gib", json_real((double)g->bytes / GIB));
    write_fields(root, gpu_fields, GPU_FIELDS, g, g->peer_rate > 0 ? NULL : "peer_link", NULL);
    json_object_set_new(json_object_get(root, "host_link"), "gpus", json_integer(g->host_gpus));
    json_t *pairs = g->pairs ? json_array() : NULL;
    for (int a = 0; pairs && a < g->count; a++)
        for (int b = a + 1; b < g->count; b++)
            if (g->pair[a][b]) json_array_append_new(pairs, json_pack("[i, i]", a, b));
    if (pairs) json_object_set_new(json_object_get(root, "peer_link"), "pairs", pairs);
    json_object_set_new(root, "shares", write_shares(&g->shares, 1));
    return root;
}

tess_status tess_machine_write(const char *path, const tess_simulated *m)
{
    TESS_FREED_JSON json_t *root = json_object();
    json_object_set_new(root, "name", json_string(m->name));
    json_object_set_new(root, "cores", json_integer(m->cores));
    json_object_set_new(root, "memory_gib", json_real((double)m->ram_bytes / GIB));
    write_fields(root, fields, FIELDS, m, m->has_drive ? NULL : "drive_gb_s", m->net.there ? NULL : "network");
    json_object_set_new(root, "shares", write_shares(&m->shares, m->drive_share));
    if (m->gpus.count) json_object_set_new(root, "gpus", write_gpus(&m->gpus));
    if (m->net.there) json_object_set_new(json_object_get(root, "network"), "topology", json_string(m->net.topology));
    if (m->net.rails > 1) json_object_set_new(json_object_get(root, "network"), "rails", json_integer(m->net.rails));
    if (m->net.below) json_object_set_new(json_object_get(root, "network"), of_trees[0], json_integer(m->net.below));
    if (m->net.above) json_object_set_new(json_object_get(root, "network"), of_trees[1], json_integer(m->net.above));
    if (m->net.group) json_object_set_new(json_object_get(root, "network"), of_trees[2], json_integer(m->net.group));
    if (m->nodes > 1) json_object_set_new(root, "nodes", json_integer(m->nodes));
    json_t *before = json_load_file(path, 0, NULL), *about = json_object_get(before, "about");
    if (about) json_object_set(root, "about", about);
    TESS_FREED char *text = json_dumps(root, JSON_INDENT(4) | JSON_REAL_PRECISION(10));
    const tess_status status = tess_write_text(path, text);
    json_decref(before);
    return status;
}
