/* What the rules of ops make of the step that is being lowered: the tiles of values and of gradients, what lies between
 * their tasks, and the tasks. */
#include "graph/lower/lower.h"
#include <stdlib.h>
#include <string.h>

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static bool in_spans(const tess_lower *L, const tess_tensor *t)
{
    return !L->whole && tess_is_cut(L, t);
}

/* A rule that has whole sequences reads or makes one of a tensor in spans. */
static bool is_together(const tess_lower *L, const tess_tensor *t)
{
    return L->whole && tess_is_cut(L, t);
}

int64_t tess_first_place(const tess_lower *L, int i)
{
    return L->whole ? 0 : tess_span_of(L, i) * L->cut.rows;
}

void tess_lower_piece(tess_lower *L, int i)
{
    L->piece = i % L->cut.here / (L->cut.here / L->cut.pieces);
}

int64_t tess_first_sequence(const tess_lower *L, int i)
{
    return i / L->cut.here * L->g->tile_sequences;
}

int64_t tess_span_rows(const tess_lower *L, int64_t span)
{
    return least(L->cut.rows, L->cut.length - span * L->cut.rows);
}

int64_t tess_rows_of_all(const tess_lower *L, const tess_tensor *t, int i)
{
    if (tess_is_whole(t)) return 1;
    if (in_spans(L, t)) return tess_span_rows(L, tess_span_of(L, i)) * (t->dim[1] / L->cut.length);
    return least(L->g->tile_sequences, L->g->batch - tess_first_sequence(L, i)) * t->dim[1];
}

int64_t tess_guests_rows(const tess_lower *L, const tess_tensor *t, int64_t rows)
{
    const tess_tensor *weights = L->routed[t->id];
    const int64_t chosen = tess_width(weights);
    int64_t first, end;
    tess_grid_experts(L->grid, tess_routed_experts(weights), tess_grid_data(L->grid), &first, &end);
    return rows / chosen * (end - first < chosen ? end - first : chosen);
}

int64_t tess_rows(const tess_lower *L, const tess_tensor *t, int i)
{
    const int64_t rows = tess_rows_of_all(L, t, i);
    const int mine = tess_grid_tensor(L->grid);
    if (L->guest) return tess_guests_rows(L, t, rows);
    return t->divided ? tess_grid_rows(L->grid, rows, mine + 1) - tess_grid_rows(L->grid, rows, mine) : rows;
}

int64_t tess_first_row(const tess_lower *L, const tess_tensor *t, int i)
{
    const int64_t sequence = (L->micro0 + L->micro) * L->g->batch + tess_first_sequence(L, i),
                  span = in_spans(L, t) ? tess_first_place(L, i) * (t->dim[1] / L->cut.length) : 0,
                  own = t->divided ? tess_grid_rows(L->grid, tess_rows_of_all(L, t, i), tess_grid_tensor(L->grid)) : 0;
    return sequence * t->dim[1] + span + own;
}

const struct tess_spans *tess_spans(const tess_lower *L)
{
    return L->cut.rows && !L->whole ? &L->cut : NULL;
}

int64_t tess_place(const tess_lower *L, int i, int64_t *places)
{
    if (places) *places = L->micros * L->row_tiles;
    return tess_lower_at(L, i);
}

void *tess_arg_copy(tess_lower *L, const void *arg, size_t bytes)
{
    return memcpy(tess_arena_get(L->p->arena, bytes), arg, bytes);
}

size_t tess_value_bytes(const tess_lower *L, const tess_tensor *t, int i)
{
    return (size_t)(tess_rows(L, t, i) * tess_width(t)) * tess_dtype_size(tess_dtype_of(L, t));
}

tess_tile *tess_whole_find(const struct tess_whole *w, const tess_tensor *t, bool gradient)
{
    for (int k = 0; k < w->parts; k++)
        if (w->part[k].t == t && w->part[k].gradient == gradient) return w->part[k].tile;
    return NULL;
}

void tess_whole_add(struct tess_whole *w, const tess_tensor *t, bool gradient, tess_tile *tile)
{
    TESS_ASSERT(w->parts < TESS_WHOLE_PARTS);
    w->part[w->parts++] = (struct tess_whole_part){t, gradient, tile};
}

static tess_tile *whole_new(tess_lower *L, const tess_tensor *t, int i, bool gradient)
{
    tess_tile *tile = tess_slot_between(L, tess_value_bytes(L, t, i), t->name);
    tess_whole_add(L->whole, t, gradient, tile);
    return tile;
}

tess_use tess_in(tess_lower *L, const tess_tensor *t, int i)
{
    tess_tile *tile = is_together(L, t)            ? tess_whole_find(L->whole, t, false)
                      : t->kind == TESS_KIND_INPUT ? L->input[t->id][tess_lower_place(L, t, i)]
                                                   : L->value[t->id][tess_lower_place(L, t, i)];
    L->uses[t->id] = true;
    TESS_ASSERT(tile);
    return (tess_use){tile, TESS_R};
}

tess_use tess_out(tess_lower *L, const tess_tensor *t, int i)
{
    size_t bytes = tess_value_bytes(L, t, i);
    tess_tile *tile;
    if (is_together(L, t)) return (tess_use){whole_new(L, t, i, false), TESS_W};
    if (t == L->output) {
        tile = tess_program_tile(L->p, bytes, TESS_ROLE_INPUT, t->name);
        L->result[tess_lower_place(L, t, i)] = tile;
    } else
        tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, t->name);
    return (tess_use){L->value[t->id][tess_lower_place(L, t, i)] = tile, TESS_W};
}

tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes)
{
    tess_tile *tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, n->out->name);
    return (tess_use){L->aux[n->id][tess_lower_at(L, i)] = tile, TESS_W};
}

void tess_experts_here(const tess_lower *L, int64_t experts, int64_t *first, int64_t *end)
{
    *first = 0, *end = experts;
    if (L->guest) tess_grid_experts(L->grid, experts, tess_grid_data(L->grid), first, end);
}

bool tess_is_guest(const tess_lower *L)
{
    return L->guest > 0;
}

tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i)
{
    return (tess_use){L->aux[n->id][tess_lower_at(L, i)], TESS_R};
}

tess_dtype tess_real(const tess_lower *L)
{
    return L->dtype;
}

tess_dtype tess_dtype_of(const tess_lower *L, const tess_tensor *t)
{
    const bool narrow = t->kind == TESS_KIND_PARAM ? tess_param_narrows(t) : t->nd ? t->nd->narrow : !t->wide;
    return narrow ? L->dtype : TESS_F32;
}

tess_dtype tess_grad_dtype(const tess_lower *L, const tess_tensor *t)
{
    return t->kind == TESS_KIND_PARAM ? TESS_F32 : tess_dtype_of(L, t);
}

bool tess_trains(const tess_lower *L)
{
    return L->conf->train;
}

bool tess_is_deterministic(const tess_lower *L)
{
    return L->conf->deterministic;
}

bool tess_generates(const tess_lower *L)
{
    return L->g->cache != NULL;
}

void *tess_lower_get(tess_lower *L, size_t bytes)
{
    return tess_arena_get(L->p->arena, bytes);
}

tess_tile *tess_tile_between(tess_lower *L, size_t bytes, const char *label)
{
    return tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, label);
}

tess_tile *tess_slot_between(tess_lower *L, size_t bytes, const char *label)
{
    return tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, label);
}

uint64_t tess_stretch(const tess_lower *L)
{
    return L->stretch;
}

void *tess_node_room(tess_lower *L, const tess_node *n, size_t bytes)
{
    if (!L->room[n->id]) L->room[n->id] = tess_arena_get(L->p->arena, bytes);
    return L->room[n->id];
}

tess_use tess_scratch_use(tess_lower *L, size_t bytes)
{
    int k = 0;
    while (k < L->scratches && tess_tile_bytes(L->scratch[k]) != bytes) k++;
    if (k == L->scratches) {
        L->scratch = tess_realloc(L->scratch, (size_t)(k + 1) * sizeof *L->scratch);
        L->scratch[L->scratches++] = tess_program_tile(L->p, bytes, TESS_ROLE_SCRATCH, "scratch");
    }
    return (tess_use){L->scratch[k], TESS_SCRATCH};
}

bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t)
{
    return L->wants[t->id];
}

bool tess_has_gradient(const tess_lower *L, const tess_tensor *t, int i)
{
    if (is_together(L, t)) return tess_whole_find(L->whole, t, true) != NULL;
    return L->grad[t->id][tess_lower_place(L, t, i)] != NULL;
}

tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i)
{
    if (is_together(L, t)) return (tess_use){tess_whole_find(L->whole, t, true), TESS_R};
    TESS_ASSERT(L->grad[t->id][tess_lower_place(L, t, i)]);
    return (tess_use){L->grad[t->id][tess_lower_place(L, t, i)]->tile, TESS_R};
}

static struct tess_grad *new_grad(tess_lower *L, const tess_tensor *t, int i)
{
    struct tess_grad *g = tess_arena_get(L->p->arena, sizeof *g);
    g->tile = tess_program_slot(L->p, tess_value_bytes(L, t, i), TESS_ROLE_ACTIVATION, t->name);
    g->holders = 1;
    return L->grad[t->id][tess_lower_place(L, t, i)] = g;
}

void tess_lower_add(tess_lower *L, const tess_tensor *t, int i, tess_tile *from, tess_tile *to, bool acc)
{
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, t, i) * tess_width(t), .acc = acc);
    TESS_EMIT(L, &tess_add_into[tess_dtype_of(L, t)], a, {from, TESS_R}, {to, acc ? TESS_RW : TESS_W});
}

tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc)
{
    struct tess_grad *g = L->grad[t->id][tess_lower_place(L, t, i)];
    *acc = g != NULL;
    if (!tess_wants_gradient(L, t)) /* a task that writes a needed gradient writes this one too */
        return (tess_use){tess_slot_between(L, tess_value_bytes(L, t, i), t->name), TESS_W};
    if (is_together(L, t)) {
        tess_tile *all = tess_whole_find(L->whole, t, true);
        *acc = all != NULL;
        return (tess_use){all ? all : whole_new(L, t, i, true), all ? TESS_RW : TESS_W};
    }
    if (!g) return (tess_use){new_grad(L, t, i)->tile, TESS_W};
    if (g->holders > 1) {
        g->holders--;
        tess_tile *shared = g->tile;
        g = new_grad(L, t, i);
        tess_lower_add(L, t, i, shared, g->tile, false);
    }
    return (tess_use){g->tile, TESS_RW};
}

void tess_lower_release(tess_lower *L, const tess_tensor *t, int i)
{
    if (!L->grad[t->id][tess_lower_at(L, i)]) return;
    L->grad[t->id][tess_lower_at(L, i)]->holders--;
    L->grad[t->id][tess_lower_at(L, i)] = NULL;
}

void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i)
{
    struct tess_grad *g = L->grad[from->id][tess_lower_place(L, from, i)];
    if (!tess_wants_gradient(L, t)) return;
    if (!L->whole && !L->grad[t->id][tess_lower_place(L, t, i)]) {
        g->holders++;
        L->grad[t->id][tess_lower_place(L, t, i)] = g;
        return;
    }
    bool acc;
    const tess_use of = tess_grad_read(L, from, i), to = tess_grad_write(L, t, i, &acc);
    tess_lower_add(L, t, i, of.tile, to.tile, acc);
}

int tess_losses_of(const tess_tensor *loss)
{
    int n = 0;
    for (; loss && loss->producer; n++) loss = loss->producer->inputs > 4 ? loss->producer->in[4] : NULL;
    return n;
}

int64_t tess_numbers_of(const tess_tensor *loss, bool train)
{
    const tess_node *n = loss->producer;
    if (n && n->op->counts_hits) return train ? 0 : tess_losses_of(loss);
    if (n && n->op->reports) return n->op->reports;
    const tess_tensor *beside = n && n->op->numbers ? n->in[n->op->numbers] : NULL;
    return beside ? tess_width(beside) : 0;
}

int64_t tess_numbers(const tess_lower *L)
{
    return tess_numbers_of(L->output, L->conf->train);
}

int tess_losses(const tess_lower *L)
{
    return tess_losses_of(L->output);
}

tess_use tess_loss_out(tess_lower *L)
{
    if (L->nlosses == L->losses_room) {
        L->losses_room = L->losses_room ? 2 * L->losses_room : 64;
        L->losses = tess_realloc(L->losses, (size_t)L->losses_room * sizeof *L->losses);
    }
    tess_tile *t = tess_program_tile(L->p, (size_t)(tess_losses(L) + tess_numbers(L)) * 2 * sizeof(double),
                                     TESS_ROLE_SCALAR, "loss");
    if (tess_grid_tensor(L->grid) == 0) L->losses[L->nlosses++] = t; /* the others have the same */
    return (tess_use){t, TESS_W};
}

int tess_row_tiles(const tess_lower *L)
{
    return L->row_tiles;
}

int64_t tess_micros(const tess_lower *L)
{
    return L->conf->micro;
}

static tess_choice **choice_of(tess_lower *L, const tess_node *n, int i)
{
    tess_choice **all = tess_node_room(L, n, (size_t)(L->micros * L->row_tiles) * sizeof *all);
    return &all[tess_lower_at(L, i)];
}

tess_choice *tess_choice_begin(tess_lower *L, const tess_node *n, int i, int64_t options)
{
    tess_choice **choice = choice_of(L, n, i);
    if (*choice) return NULL;
    *choice = tess_arena_get(L->p->arena, sizeof **choice);
    (*choice)->options = options;
    (*choice)->chosen = tess_arena_get(L->p->arena, (size_t)options);
    return *choice;
}

tess_choice *tess_choice_at(tess_lower *L, const tess_node *n, int i)
{
    return *choice_of(L, n, i);
}

void tess_emitted_chooses(tess_lower *L, tess_choice *choice, int option)
{
    tess_task *t = &L->p->task[L->p->tasks - 1];
    t->choice = choice;
    t->option = option;
}

void tess_emit(tess_lower *L, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse)
{
    tess_program_add(L->p, cl, arg, use, nuse, L->recomputing);
    if (!L->rows) return;
    L->p->task[L->p->tasks - 1].used = L->rows;
    L->p->task[L->p->tasks - 1].sequence = L->bounds->dim[1] / 2;
    L->p->task[L->p->tasks - 1].place = L->place;
}
