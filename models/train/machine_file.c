/* A machine as a file: JSON whose units stand in its names, see docs/simulate.md. */
#include "dirs_impl.h"
#include "machine_impl.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* A number of the file: how its path is written, and what 1 of its unit is. */
static const struct field {
    const char *group, *name; /* group NULL: of the file itself */
    size_t offset;
    double unit, least;
} fields[] = {
    {NULL, "copy_gb_s", offsetof(tess_simulated, copy_rate), 1e9, 1e-3},
    {NULL, "task_us", offsetof(tess_simulated, task_seconds), 1e-6, 0},
    {"matrix_gflops", "fp32", offsetof(tess_simulated, matrix_rate[TESS_F32]), 1e9, 1e-3},
    {"matrix_gflops", "bf16", offsetof(tess_simulated, matrix_rate[TESS_BF16]), 1e9, 1e-3},
    {"drive_gb_s", "read", offsetof(tess_simulated, drive.read_rate), 1e9, 1e-3},
    {"drive_gb_s", "write", offsetof(tess_simulated, drive.write_rate), 1e9, 1e-3},
    {"drive_gb_s", "mixed_read", offsetof(tess_simulated, drive.mixed_read_rate), 1e9, 1e-3},
    {"drive_gb_s", "mixed_write", offsetof(tess_simulated, drive.mixed_write_rate), 1e9, 1e-3},
    {"network", "gb_s", offsetof(tess_simulated, net.rate), 1e9, 1e-3},
    {"network", "latency_us", offsetof(tess_simulated, net.latency), 1e-6, 0},
};
enum { FIELDS = sizeof fields / sizeof *fields };
static const char *const known[] = {"name",          "about",      "cores",  "memory_gib", "copy_gb_s", "task_us",
                                    "matrix_gflops", "drive_gb_s", "shares", "nodes",      "network"};
enum { KNOWN = sizeof known / sizeof *known };
static const double GIB = 1 << 30, MOST = 1e9;

static double *at(const tess_simulated *m, const struct field *f)
{
    return (double *)((char *)m + f->offset);
}

static tess_status wrong(const char *path, const char *name, const json_t *value, const char *expected)
{
    char where[600];
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL;
    snprintf(where, sizeof where, "%.400s: %.100s", path, name);
    tess_error(TESS_INVALID, where, "%.80s, expected %s", value ? text ? text : "?" : "missing", expected);
    free(text);
    return TESS_INVALID;
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

static tess_status check_group(const char *path, const json_t *root, const char *group)
{
    const json_t *g = json_object_get(root, group);
    const char *names[FIELDS + 3] = {"topology", "nodes_per_switch", "uplinks"}; /* which are no rates */
    size_t n = strcmp(group, "network") ? 0 : 3;
    for (size_t k = 0; k < FIELDS; k++)
        if (fields[k].group && !strcmp(fields[k].group, group)) names[n++] = fields[k].name;
    if (!json_is_object(g)) return wrong(path, group, g, "an object");
    return check_names(path, group, g, names, n);
}

static tess_status read_shares(const char *path, json_t *shares, tess_simulated *m)
{
    const char *name;
    json_t *value;
    if (shares && !json_is_object(shares)) return wrong(path, "shares", shares, "an object");
    json_object_foreach(shares, name, value)
    {
        char full[200];
        tess_simulated_share *s = &m->share[m->shares];
        snprintf(full, sizeof full, "shares.%.100s", name);
        if (m->shares == TESS_SIMULATED_SHARES || strlen(name) >= sizeof s->codelet)
            return wrong(path, full, value, "at most 128 names of codelets");
        TESS_TRY(number(path, full, value, TESS_LEAST_SHARE, &s->share));
        if (!strcmp(name, "products"))
            m->matrix_share = s->share;
        else if (!strcmp(name, "copies"))
            m->copy_share = s->share;
        else
            snprintf(s->codelet, sizeof s->codelet, "%s", name), m->shares++;
    }
    return TESS_OK;
}

static tess_status whole(const char *path, const json_t *root, const char *name, int most, int *out)
{
    double x;
    char expected[64];
    const json_t *value = json_object_get(root, name);
    TESS_TRY(number(path, name, value, 1, &x));
    *out = (int)x;
    if (x == floor(x) && x <= most) return TESS_OK;
    snprintf(expected, sizeof expected, "a whole number from 1 to %d", most);
    return wrong(path, name, value, expected);
}

static const char *const of_trees[] = {"nodes_per_switch", "uplinks"};

/* What a network is made of. "flat": its switches are nowhere narrower than the links of the nodes. "fat tree": of so
 * many nodes each has a switch, which so many links of the same rate connect with as many others that connect all. */
static tess_status read_topology(const char *path, const json_t *network, tess_simulated_net *net)
{
    const json_t *t = json_object_get(network, "topology");
    const bool flat = !t || (json_is_string(t) && !strcmp(json_string_value(t), "flat"));
    const bool tree = json_is_string(t) && !strcmp(json_string_value(t), "fat tree");
    if (!flat && !tree) return wrong(path, "network.topology", t, "\"flat\" or \"fat tree\"");
    snprintf(net->topology, sizeof net->topology, "%s", flat ? "flat" : "fat tree");
    if (tree) {
        TESS_TRY(whole(path, network, "nodes_per_switch", TESS_SIMULATED_NODES, &net->below));
        return whole(path, network, "uplinks", TESS_SIMULATED_NODES, &net->above);
    }
    for (int i = 0; i < 2; i++)
        if (json_object_get(network, of_trees[i]))
            return wrong(path, of_trees[i], json_object_get(network, of_trees[i]), "\"topology\": \"fat tree\"");
    return TESS_OK;
}

static tess_status read_all(const char *path, const json_t *root, tess_simulated *m)
{
    double gib;
    if (!json_is_object(root)) return wrong(path, "machine", root, "an object");
    TESS_TRY(check_names(path, "", root, known, KNOWN));
    const json_t *name = json_object_get(root, "name");
    if (!json_is_string(name)) return wrong(path, "name", name, "a text");
    snprintf(m->name, sizeof m->name, "%s", json_string_value(name));
    TESS_TRY(whole(path, root, "cores", TESS_SIMULATED_CORES, &m->cores));
    if (json_object_get(root, "nodes")) TESS_TRY(whole(path, root, "nodes", TESS_SIMULATED_NODES, &m->nodes));
    TESS_TRY(number(path, "memory_gib", json_object_get(root, "memory_gib"), 1.0 / 64, &gib));
    m->ram_bytes = (uint64_t)(gib * GIB);
    m->has_drive = json_object_get(root, "drive_gb_s");
    TESS_TRY(check_group(path, root, "matrix_gflops"));
    if (m->has_drive) TESS_TRY(check_group(path, root, "drive_gb_s"));
    m->net.there = json_object_get(root, "network");
    if (m->net.there) {
        TESS_TRY(check_group(path, root, "network"));
        TESS_TRY(read_topology(path, json_object_get(root, "network"), &m->net));
    }
    for (size_t k = 0; k < FIELDS; k++) {
        const struct field *f = &fields[k];
        const json_t *of = f->group ? json_object_get(root, f->group) : root, *value = json_object_get(of, f->name);
        char full[100];
        if (!of || (!value && f->least == 0)) continue;
        snprintf(full, sizeof full, "%s%s%s", f->group ? f->group : "", f->group ? "." : "", f->name);
        TESS_TRY(number(path, full, value, f->least, at(m, f)));
        *at(m, f) *= f->unit;
    }
    return read_shares(path, json_object_get(root, "shares"), m);
}

tess_status tess_machine_read(const char *path, tess_simulated *m)
{
    json_error_t e;
    *m = (tess_simulated){.matrix_share = TESS_MATRIX_SHARE, .copy_share = TESS_COPY_SHARE, .nodes = 1};
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
    m->cores /= ranks;
    m->ram_bytes /= (uint64_t)ranks;
    m->copy_rate /= ranks;
    for (int t = 0; t < TESS_YARDSTICKS; t++) m->matrix_rate[t] /= ranks;
    return TESS_OK;
}

tess_status tess_machine_write(const char *path, const tess_simulated *m)
{
    json_t *root = json_object(), *shares = json_object();
    json_object_set_new(root, "name", json_string(m->name));
    json_object_set_new(root, "cores", json_integer(m->cores));
    json_object_set_new(root, "memory_gib", json_real((double)m->ram_bytes / GIB));
    for (size_t k = 0; k < FIELDS; k++) {
        const struct field *f = &fields[k];
        if (f->group && !strcmp(f->group, "drive_gb_s") && !m->has_drive) continue;
        if (f->group && !strcmp(f->group, "network") && !m->net.there) continue;
        if (f->group && !json_object_get(root, f->group)) json_object_set_new(root, f->group, json_object());
        json_object_set_new(f->group ? json_object_get(root, f->group) : root, f->name, json_real(*at(m, f) / f->unit));
    }
    json_object_set_new(shares, "products", json_real(m->matrix_share));
    json_object_set_new(shares, "copies", json_real(m->copy_share));
    for (int i = 0; i < m->shares; i++) json_object_set_new(shares, m->share[i].codelet, json_real(m->share[i].share));
    if (m->net.there) json_object_set_new(json_object_get(root, "network"), "topology", json_string(m->net.topology));
    if (m->net.below) json_object_set_new(json_object_get(root, "network"), of_trees[0], json_integer(m->net.below));
    if (m->net.above) json_object_set_new(json_object_get(root, "network"), of_trees[1], json_integer(m->net.above));
    if (m->nodes > 1) json_object_set_new(root, "nodes", json_integer(m->nodes));
    json_object_set_new(root, "shares", shares);
    json_t *before = json_load_file(path, 0, NULL), *about = json_object_get(before, "about");
    if (about) json_object_set(root, "about", about);
    char *text = json_dumps(root, JSON_INDENT(4) | JSON_REAL_PRECISION(10));
    const tess_status status = tess_write_text(path, text);
    free(text);
    json_decref(before);
    json_decref(root);
    return status;
}
