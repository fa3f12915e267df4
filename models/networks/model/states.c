/* The states of a graph's parameters to and from files: each parameter's master weights, and the moments of the
 * optimizer that trains it (NAME.exp_avg and NAME.exp_avg_sq for AdamW), of shape (rows, columns) but for Adafactor's.
 * A network needs nothing else from a checkpoint; training writes the rest and makes it whole
 * (train/checkpoint/checkpoint.h). */
#include "models/networks/model/model.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tess_states_name(const tess_tensor *p, tess_part part)
{
    const char *moment = tess_param_part_name(p, part);
    return tess_format("%s%s%s", tess_tensor_name(p), moment ? "." : "", moment ? moment : "");
}

const char *tess_lora_part(const char *name)
{
    static const char *const end[] = {TESS_LORA_A, TESS_LORA_B, TESS_LORA_M};
    for (size_t k = 0; k < sizeof end / sizeof *end; k++)
        if (tess_ends(name, end[k])) return end[k];
    return NULL;
}

/* A tensor of a parameter's: a part and, of what several ranks each have their own of, whose. */
struct one {
    tess_part part;
    int owner;
};

static int owners_of(const tess_tensor *p, tess_part part)
{
    int mine;
    return tess_param_owners(p, part, &mine);
}

/* How many it has; what is not meant has none. */
static int parts_of(const tess_tensor *p, tess_states_of_what of)
{
    if (of == TESS_STATES_TRAINED && tess_param_frozen(p)) return 0;
    if (of == TESS_STATES_BASE && tess_lora_part(tess_tensor_name(p))) return 0;
    const int parts = tess_param_parts(p), others = owners_of(p, TESS_MOMENT1) - 1,
              rests = tess_param_has(p, TESS_REST) ? owners_of(p, TESS_REST) : 0;
    return parts + tess_param_has(p, TESS_OUTER) + others * (parts - 1) + rests;
}

/* The k-th: the master, the first owner's moments, the outer momentum, the moments of the other owners; or behind all
 * moments what each rank's codes lack. */
static struct one one_of(const tess_tensor *p, int k)
{
    const int parts = tess_param_parts(p), moments = parts - 1, outer = tess_param_has(p, TESS_OUTER);
    if (k < parts) return (struct one){(tess_part)k, 0};
    if (outer && k == parts) return (struct one){TESS_OUTER, 0};
    if (tess_param_has(p, TESS_REST) && k >= parts) return (struct one){TESS_REST, k - parts};
    k -= parts + outer;
    return (struct one){(tess_part)(TESS_MOMENT1 + k % moments), 1 + k / moments};
}

/* The first owner's are called as those of all are elsewhere. */
static char *name_of(const tess_tensor *p, struct one t)
{
    char *name = tess_states_name(p, t.part), *own = t.owner ? tess_format("%s@%d", name, t.owner) : NULL;
    if (own) free(name);
    return own ? own : name;
}

/* Whether this rank has it. */
static bool is_here(const tess_tensor *p, struct one t)
{
    int mine;
    return tess_param_owners(p, t.part, &mine) == 1 || mine == t.owner;
}

/* ---- writing ---- */

static const tess_safetensors_dtype stored_as[] = {
    [TESS_F32] = TESS_ST_F32, [TESS_BF16] = TESS_ST_BF16, [TESS_F16] = TESS_ST_F16};

/* What a checkpoint holds. */
static tess_states_of_what held(const tess_model *m)
{
    return m && m->lora ? TESS_STATES_TRAINED : TESS_STATES_ALL;
}

/* ---- sums.json: {"NAME": ["16 digits", "16 digits"], ...}, by which a damaged tensor is told ---- */

/* How many tensors a checkpoint has. */
static size_t count_parts(tess_graph *g, tess_states_of_what of)
{
    size_t n = 0;
    for (int k = 0; k < tess_graph_params(g); k++) n += (size_t)parts_of(tess_graph_param(g, k), of);
    return n;
}

/* Adds up what each rank has of its own pieces. */
static void join_sums(tess_piece_sums *sums, size_t n)
{
    _Static_assert(sizeof *sums == 2 * sizeof(int64_t), "two counts each");
    tess_ranks_sum_counts((int64_t *)(void *)sums, (int)(2 * n));
}

static tess_status write_sums(const char *dir, tess_graph *g, tess_states_of_what of, const tess_piece_sums *sums)
{
    TESS_FREED_JSON json_t *root = json_object();
    char *path = tess_format("%s/sums.json", dir), text[2][20];
    for (int k = 0; k < tess_graph_params(g); k++)
        for (int part = 0; part < parts_of(tess_graph_param(g, k), of); part++, sums++) {
            TESS_FREED char *name = name_of(tess_graph_param(g, k), one_of(tess_graph_param(g, k), part));
            snprintf(text[0], sizeof text[0], "%016llx", (unsigned long long)sums->plain);
            snprintf(text[1], sizeof text[1], "%016llx", (unsigned long long)sums->placed);
            json_object_set_new(root, name, json_pack("[s, s]", text[0], text[1]));
        }
    const bool done = json_dump_file(root, path, JSON_INDENT(1)) == 0;
    const tess_status status = done ? TESS_OK : tess_error(TESS_FAILED, path, "cannot be written: %s", strerror(errno));
    free(path);
    return status;
}

/* Whether a tensor's sums are those in sums.json; true where these are not there, as of an older version. */
static bool has_sums(const json_t *root, const char *name, const tess_piece_sums *sums)
{
    const json_t *pair = json_object_get(root, name);
    const char *plain = json_string_value(json_array_get(pair, 0)),
               *placed = json_string_value(json_array_get(pair, 1));
    return !plain || !placed ||
           (strtoull(plain, NULL, 16) == sums->plain && strtoull(placed, NULL, 16) == sums->placed);
}

static json_t *read_sums(const char *dir)
{
    TESS_FREED char *path = tess_format("%s/sums.json", dir);
    json_t *root = json_load_file(path, 0, NULL);
    return root;
}

static tess_status damaged(const tess_safetensor *t)
{
    return tess_error(TESS_INVALID, t->file, "%s does not hold what was written (a damaged checkpoint)", t->name);
}

/* What was read beside what was written. */
static tess_status check_sums(const char *dir, const tess_safetensors *states, tess_graph *g, tess_states_of_what of,
                              const tess_piece_sums *sums)
{
    TESS_FREED_JSON json_t *root = read_sums(dir);
    tess_status status = TESS_OK;
    for (int k = 0; k < tess_graph_params(g); k++)
        for (int part = 0; part < parts_of(tess_graph_param(g, k), of); part++, sums++) {
            TESS_FREED char *name = name_of(tess_graph_param(g, k), one_of(tess_graph_param(g, k), part));
            const tess_safetensor *t = tess_safetensors_find(states, name);
            if (status == TESS_OK && t && !has_sums(root, name, sums)) status = damaged(t);
        }
    return status;
}

tess_status tess_states_verify(const char *dir)
{
    enum { STRETCH = 1 << 20 };
    tess_safetensors *states = NULL;
    TESS_FREED float *values = tess_alloc(STRETCH * sizeof *values);
    TESS_FREED_JSON json_t *root = read_sums(dir);
    tess_status status = tess_states_open(dir, &states);
    for (size_t i = 0; status == TESS_OK && i < tess_safetensors_count(states); i++) {
        const tess_safetensor *t = tess_safetensors_at(states, i);
        tess_piece_sums sums = {0};
        for (int64_t at = 0; at < t->elements && status == TESS_OK; at += STRETCH) {
            const int64_t n = t->elements - at < STRETCH ? t->elements - at : STRETCH;
            status = tess_safetensor_read(t, at, n, values);
            if (status == TESS_OK) tess_piece_sums_add(&sums, at, n, values);
            tess_safetensor_forget(t);
        }
        if (status == TESS_OK && !has_sums(root, t->name, &sums)) status = damaged(t);
    }
    tess_safetensors_close(states);
    return status;
}

struct tess_states_writing {
    char *dir;
    tess_graph *g;
    tess_states_of_what of;
    tess_safetensors_writer *writer;
    tess_piece_sums *sums;
    size_t tensor;
    tess_beside *beside; /* NULL: all is written when it begins */
    int64_t now;         /* pieces that are nevertheless */
    tess_status status;
};

static void declare(tess_states_writing *s)
{
    for (int k = 0; k < tess_graph_params(s->g); k++) {
        const tess_tensor *p = tess_graph_param(s->g, k);
        for (int part = 0; part < parts_of(p, s->of); part++) {
            int64_t shape[3];
            const struct one t = one_of(p, part);
            const int rank = tess_part_shape(p, t.part, shape);
            TESS_FREED char *name = name_of(p, t);
            tess_safetensors_declare_floats(s->writer, name, stored_as[tess_param_part_dtype(p, t.part)], rank, shape);
        }
    }
}

/* Calls what for each part of each parameter that is here until one fails. */
static tess_status each(tess_states_writing *s, tess_status (*what)(tess_states_writing *, tess_tensor *, tess_part))
{
    s->tensor = 0;
    for (int k = 0; k < tess_graph_params(s->g); k++) {
        tess_tensor *p = tess_graph_param(s->g, k);
        for (int part = 0; part < parts_of(p, s->of); part++, s->tensor++)
            if (is_here(p, one_of(p, part))) TESS_TRY(what(s, p, one_of(p, part).part));
    }
    return TESS_OK;
}
static tess_status write_part(tess_states_writing *s, tess_tensor *p, tess_part part)
{
    return tess_pieces_write_summed(s->writer, s->tensor, p, part, &s->sums[s->tensor]);
}
static tess_status write_beside(tess_states_writing *s, tess_tensor *p, tess_part part)
{
    return tess_beside_add(s->beside, s->tensor, p, part, &s->sums[s->tensor]);
}
static tess_status count_now(tess_states_writing *s, tess_tensor *p, tess_part part)
{
    s->now += tess_beside_none(p, part);
    return TESS_OK;
}

/* What any rank writes at once has no update due. */
static tess_status settle(tess_states_writing *s, int64_t pieces)
{
    tess_ranks_most(&pieces, 1);
    return pieces ? tess_pieces_settle(s->g) : TESS_OK;
}

tess_status tess_states_begin(const char *dir, tess_graph *g, const tess_model *m, bool beside,
                              tess_states_writing **writing)
{
    TESS_TRY(tess_graph_together(g));
    tess_states_writing *s = *writing = tess_alloc(sizeof *s);
    *s = (tess_states_writing){.dir = tess_strdup(dir), .g = g, .of = held(m)};
    s->writer = tess_safetensors_writer_new(dir, "states", TESS_SAFETENSORS_SHARD);
    s->sums = tess_alloc((count_parts(g, s->of) + 1) * sizeof *s->sums); /* zeros */
    declare(s);
    if (beside) s->beside = tess_beside_new(s->writer);
    tess_status status = tess_safetensors_writer_begin(s->writer);
    if (status == TESS_OK && beside) status = each(s, count_now);
    if (status == TESS_OK) status = settle(s, beside ? s->now : 1);
    if (status == TESS_OK) status = each(s, beside ? write_beside : write_part);
    if (beside) status = tess_ranks_agree(status);
    s->status = status;
    if (beside && status == TESS_OK) tess_beside_start(s->beside);
    if (!beside || status == TESS_OK) return TESS_OK;
    *writing = NULL;
    return tess_states_end(s, false);
}

/* What a step that failed has not lent is not written. */
static tess_status end_beside(tess_states_writing *s, bool fine)
{
    int64_t left = tess_beside_join(s->beside);
    tess_ranks_most(&left, 1);
    tess_status status = s->status;
    if (status == TESS_OK && left)
        status = fine ? tess_pieces_settle(s->g) : tess_error(TESS_FAILED, s->dir, "the step beside it failed");
    const tess_status ended = tess_beside_end(s->beside, status == TESS_OK);
    return status == TESS_OK ? ended : status;
}

tess_status tess_states_end(tess_states_writing *s, bool fine)
{
    if (s->beside) s->status = end_beside(s, fine);
    tess_status status = tess_safetensors_writer_end(s->writer, s->status);
    if (status == TESS_OK) {
        join_sums(s->sums, count_parts(s->g, s->of));
        status = tess_ranks_agree(tess_rank() ? TESS_OK : write_sums(s->dir, s->g, s->of, s->sums));
    }
    free(s->sums);
    free(s->dir);
    free(s);
    return status;
}

/* ---- reading ---- */

bool tess_states_whole(const char *path)
{
    TESS_FREED char *file = tess_format("%s/state.json", path);
    return access(file, F_OK) == 0;
}

bool tess_weights_there(const char *dir)
{
    TESS_FREED char *steps = tess_format("%s/step-*/state.json", dir);
    glob_t found = {0};
    const bool there = tess_safetensors_in(dir) || tess_states_whole(dir) || !glob(steps, GLOB_NOSORT, NULL, &found);
    globfree(&found);
    return there;
}

tess_status tess_states_open(const char *path, tess_safetensors **states)
{
    TESS_FREED char *one = tess_format("%s/states.safetensors", path);
    TESS_FREED char *index = tess_format("%s/states.safetensors.index.json", path);
    return tess_safetensors_open(access(one, F_OK) ? index : one, states);
}

tess_status tess_states_of(const char *path, tess_safetensors **states)
{
    const bool model = tess_safetensors_in(path); /* the checkpoint was made into a model */
    *states = NULL;
    return tess_states_whole(path) && !model ? tess_states_open(path, states) : TESS_OK;
}

/* What the model lacks would be lost: each tensor of the checkpoint has a place in it. */
static tess_status check_names(const tess_safetensors *set, const char *path, const tess_graph *g)
{
    for (size_t i = 0; i < tess_safetensors_count(set); i++) {
        const char *name = tess_safetensors_at(set, i)->name, *dot = strrchr(name, '.');
        if (tess_graph_find_param(g, name)) continue;
        char *of = dot ? tess_format("%.*s", (int)(dot - name), name) : NULL; /* a moment's, whatever it is called */
        const bool moment = of && tess_graph_find_param(g, of);
        free(of);
        if (!moment)
            return tess_error(TESS_INVALID, path, "%s is of no parameter here (the checkpoint is of another model)",
                              name);
    }
    return TESS_OK; /* what is missing is named when it is read */
}

/* Another optimizer's count too: Muon and AdamW share out a model. */
static bool has_no_moments(const tess_safetensors *set, const tess_tensor *p)
{
    bool none = true;
    for (int k = 0; k < TESS_OPTIMIZERS; k++) {
        const tess_optimizer_kind *kind = tess_optimizer_kind_of(&(tess_optimizer){.type = (tess_optimizer_type)k});
        for (int m = 0; m < TESS_MOMENTS_MOST && kind->moment[m]; m++) {
            TESS_FREED char *name = tess_format("%s.%s", tess_tensor_name(p), kind->moment[m]);
            none &= tess_safetensors_find(set, name) == NULL;
        }
    }
    return none;
}

/* Of a run on fewer ranks there are fewer owners: others begin with what these have, in turn. */
static int owner_in(const tess_safetensors *set, const tess_tensor *p, struct one t)
{
    int owners = 1;
    for (bool more = t.owner > 0; more; owners += more) {
        TESS_FREED char *name = name_of(p, (struct one){t.part, owners});
        more = owners <= t.owner && tess_safetensors_find(set, name);
    }
    return t.owner % owners;
}

/* A parameter without any moments in the file was frozen in that run: its moments begin as in a new run. So does the
 * outer momentum where there were no local steps, and what codes lack where that rank had none. */
static tess_status read_part(const tess_safetensors *set, const char *path, tess_tensor *p, struct one one,
                             tess_piece_sums *sums)
{
    int64_t shape[3];
    const tess_part part = one.part;
    int rank = tess_part_shape(p, part, shape);
    TESS_FREED char *name = name_of(p, (struct one){part, part == TESS_REST ? one.owner : owner_in(set, p, one)});
    const tess_safetensor *t = tess_safetensors_find(set, name);
    tess_status status = TESS_OK;
    if (!t && (part >= TESS_OUTER || (part != TESS_MASTER && has_no_moments(set, p)))) return TESS_OK;
    if (!t || t->rank != rank || t->dims[0] != shape[0] || (rank == 2 && t->dims[1] != shape[1]))
        status = tess_error(TESS_INVALID, path, "%s is %s (the checkpoint is of another model)", name,
                            t ? "of another shape" : "missing");
    return status == TESS_OK ? tess_pieces_read_summed(t, p, part, sums) : status;
}

/* sums[each part of each parameter], NULL: nothing is added up. */
static tess_status read_states(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                               tess_states_of_what of, tess_piece_sums *sums)
{
    tess_status status = check_names(states, path, g);
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        const int there = parts_of(p, of);
        for (int part = 0; part < parts && part < there && status == TESS_OK; part++, sums += sums != NULL)
            if (is_here(p, one_of(p, part))) status = read_part(states, path, p, one_of(p, part), sums);
    }
    return status;
}

tess_status tess_states_read(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                             tess_states_of_what of)
{
    return read_states(states, path, g, parts, of, NULL);
}

tess_status tess_states_load(const char *dir, tess_graph *g, const tess_model *m)
{
    tess_safetensors *states = NULL;
    const tess_states_of_what of = held(m);
    const size_t n = count_parts(g, of);
    TESS_FREED tess_piece_sums *sums = tess_alloc((n + 1) * sizeof *sums);
    tess_status status = tess_states_open(dir, &states);
    if (status == TESS_OK) status = read_states(states, dir, g, INT_MAX, of, sums);
    status = tess_ranks_agree(status);
    if (status == TESS_OK) {
        join_sums(sums, n);
        status = tess_ranks_agree(tess_rank() ? TESS_OK : check_sums(dir, states, g, of, sums));
    }
    tess_safetensors_close(states);
    return status;
}
