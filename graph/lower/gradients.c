/* Gradients: their parts on all ranks, and the sums of these. A rank's part of a gradient is a sum over its
 * micro-batches. When it is complete every slice of it goes to the slice's owner, who adds up the parts of all ranks in
 * the order of their micro-batches. Of a machine with several ranks only their sum goes there, where that is a sum of
 * the tree. Below stage 1 everyone holds all states: then the sums go back to all ranks. Above, the owner updates its
 * slices, and where the weight rests on every rank the new slices of it go to all.
 *
 * The shape of a sum. Over ranks it is always a tree over their parts. Within a rank it is a chain, micro-batch by
 * micro-batch, added by the products themselves; or, deterministic, each micro-batch has a leaf of its own, and leaves
 * add up in the same tree over the whole step that one rank alone would use. */
#include "graph/lower/parcels_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- leaves of the tree ---- */

/* Where a tile's gradient of one place's rows is among those of all; d is of no matter unless the parameter stays. */
static int64_t at_place(const tess_tensor *p, int64_t j, int d)
{
    return p->held->on.stays ? d * p->cut->tiles + j : j;
}

static struct tess_tree *tree_of(tess_lower *L, const tess_tensor *p, int64_t j, int d)
{
    struct tess_tree *t = &L->tree[p->id][at_place(p, j, d)];
    if (!t->leaf) {
        const int64_t leaves = L->micros * L->cut.pieces;
        t->leaf = tess_arena_get(L->p->arena, (size_t)leaves * sizeof *t->leaf);
        t->spare = tess_arena_get(L->p->arena, (size_t)(leaves + 1) * sizeof *t->spare);
    }
    return t;
}

/* The leaf that the gradient of a tile grows in, of this micro-batch and piece of its sequences. */
static tess_tile *leaf_of(tess_lower *L, const tess_tensor *p, int64_t j, bool *acc)
{
    struct tess_tree *t = tree_of(L, p, j, L->guest - 1);
    tess_tile **leaf = &t->leaf[L->micro * L->cut.pieces + L->piece];
    *acc = *leaf != NULL;
    if (*acc) return *leaf;
    size_t bytes = tess_tile_bytes(p->held->tile[j].gradient);
    return *leaf = t->spares ? t->spare[--t->spares] : tess_program_tile(L->p, bytes, TESS_ROLE_GRADIENT, p->name);
}

/* What the rows of another place, or of this one, make of an expert that stays. */
static tess_use guest_gradient(tess_lower *L, const tess_tensor *p, int64_t j, bool *acc)
{
    const int64_t at = at_place(p, j, L->guest - 1);
    tess_tile **t = &L->guests[p->id][at];
    *acc = *t && (!L->early[p->id] || L->begun[p->id][at] == L->micro);
    L->begun[p->id][at] = L->micro;
    if (!*t) *t = tess_program_tile(L->p, tess_tile_bytes(p->held->tile[j].gradient), TESS_ROLE_GRADIENT, p->name);
    return (tess_use){*t, *acc ? TESS_RW : TESS_W};
}

tess_use tess_param_grad(tess_lower *L, const tess_tensor *p, int64_t tile, bool *acc)
{
    bool *touched = &L->touched[p->id][tile];
    *acc = *touched;
    if (!tess_wants_gradient(L, p)) { /* a task that writes a needed gradient writes this one too */
        int64_t first, rows;
        tess_param_rows(p, tile, &first, &rows);
        return (tess_use){tess_slot_between(L, (size_t)(rows * p->dim[1]) * sizeof(float), p->name), TESS_W};
    }
    if (L->conf->deterministic && !p->held->on.shared) {
        *touched = true;
        tess_tile *leaf = leaf_of(L, p, tile, acc);
        return (tess_use){leaf, *acc ? TESS_RW : TESS_W};
    }
    if (L->back && p->held->on.twice) { /* as if another section had it */
        tess_tile **second = &L->second[p->id][tile];
        *acc = *second != NULL;
        if (!*second)
            *second =
                tess_program_tile(L->p, tess_tile_bytes(p->held->tile[tile].gradient), TESS_ROLE_GRADIENT, p->name);
        return (tess_use){*second, *acc ? TESS_RW : TESS_W};
    }
    *touched = true;
    if (L->guest) return guest_gradient(L, p, tile, acc);
    if (L->early[p->id]) {
        *acc = L->begun[p->id][tile] == L->micro;
        L->begun[p->id][tile] = L->micro;
    }
    return (tess_use){p->held->tile[tile].gradient, *acc ? TESS_RW : TESS_W};
}

/* The number among all of the step's of the leaf that place d of the data dimension has of its k-th micro-batch's
 * piece: each has its pieces of the sequences. */
static int64_t leaf_number(const tess_lower *L, int d, int64_t k, int64_t piece)
{
    const int64_t ranks = L->grid->sequence;
    int64_t first, micros;
    tess_grid_share(L->grid, L->conf, d, &first, &micros);
    return (first + k) * ranks * L->cut.pieces + tess_span_at(&L->cut, d % ranks, piece, L->cut.pieces);
}

/* A leaf joins the nodes before it. */
static void join(tess_lower *L, struct tess_tree *t, tess_tile *leaf, int64_t number)
{
    TESS_ASSERT(t->nodes < (int)(sizeof t->node / sizeof *t->node));
    t->node[t->nodes] = leaf;
    t->first[t->nodes] = number;
    t->level[t->nodes++] = 0;
    while (t->nodes > 1) {
        int left = t->nodes - 2, right = t->nodes - 1;
        const int64_t span = (int64_t)1 << t->level[left];
        if (t->level[left] != t->level[right] || t->first[left] % (2 * span)) break;
        if (t->first[right] != t->first[left] + span) break; /* what is between them is another rank's */
        tess_map_arg *a =
            TESS_ARG(L, tess_map_arg, .n = (int64_t)(tess_tile_bytes(t->node[left]) / sizeof(float)), .acc = true);
        TESS_EMIT(L, &tess_add_into[TESS_F32], a, {t->node[right], TESS_R}, {t->node[left], TESS_RW});
        t->spare[t->spares++] = t->node[right];
        t->level[left]++;
        t->nodes--;
    }
}

void tess_lower_grown(tess_lower *L, const tess_tensor *p)
{
    const int64_t tiles = p->cut->tiles;
    for (int64_t j = 0; j < tess_lower_gradients(L, p); j++) {
        const int place = p->held->on.stays ? (int)(j / tiles) : tess_grid_data(L->grid);
        struct tess_tree *t = tree_of(L, p, j % tiles, place);
        for (int64_t k = 0; k < L->cut.pieces; k++) {
            tess_tile *leaf = t->leaf[L->micro * L->cut.pieces + k];
            if (leaf) join(L, t, leaf, leaf_number(L, place, L->micro, k));
        }
    }
}

/* ---- gradients ---- */

static bool in_tree(const tess_lower *L, const tess_tensor *p)
{
    return L->conf->deterministic && !p->held->on.shared;
}

/* The parts of a gradient that are here of place d's rows, and their tiles: this rank's, or any place's of what stays.
 */
static int parts_of(tess_lower *L, const tess_tensor *p, int64_t j, int d, tess_tile **tile)
{
    if (!in_tree(L, p)) {
        tile[0] = p->held->on.stays ? L->guests[p->id][at_place(p, j, d)] : p->held->tile[j].gradient;
        return 1;
    }
    struct tess_tree *t = tree_of(L, p, j, d);
    for (int k = 0; k < t->nodes; k++) tile[k] = t->node[k];
    return t->nodes;
}

/* Those of places [d, d + near), added up: their levels, and which of all terms is the first of each. */
static int levels_of(const tess_lower *L, const tess_tensor *p, int d, int near, int *level, int64_t *first)
{
    const bool apart = L->grid->sequence > 1;
    const int64_t runs = L->cut.zigzag ? 2 : 1, leaves = L->cut.pieces / runs; /* of a micro-batch */
    int64_t before, micros;
    int n = 0;
    tess_grid_share(L->grid, L->conf, d, &before, &micros);
    level[0] = 0, first[0] = d;
    if (!in_tree(L, p)) {
        while (1 << level[0] < near) level[0]++;
        return 1;
    }
    for (int64_t k = 0; k < (apart ? micros * runs : 1); k++) {
        int64_t at = leaf_number(L, d, k / runs, k % runs * leaves);
        const int more = tess_grid_groups(at, apart ? leaves : micros * L->cut.pieces * near, level + n);
        for (int i = n; i < n + more; at += (int64_t)1 << level[i++]) first[i] = at;
        n += more;
    }
    return n;
}

enum { SENDERS = 16 }; /* of parts of a tile at a time */

/* A term of a slice's sum, in order: a piece of a tile, the sum of 2^level leaves or ranks from `begins` on. */
struct term {
    tess_tile *tile;
    int64_t first; /* element */
    int level;
    int64_t begins;
    tess_dtype as;
};

static void add_up(tess_lower *L, const struct term *term, unsigned terms, tess_use out, int64_t at, int64_t n)
{
    tess_tree_part *part = tess_arena_get(L->p->arena, terms * sizeof *part);
    TESS_FREED tess_use *use = tess_alloc((terms + 1) * sizeof *use);
    unsigned uses = 1;
    use[0] = out;
    for (unsigned k = 0; k < terms; k++) {
        bool there = term[k].tile == out.tile;
        part[k] = (tess_tree_part){there ? 0 : uses, term[k].level, term[k].first, term[k].as};
        if (!there) use[uses++] = (tess_use){term[k].tile, TESS_R};
    }
    tess_tree_arg *a = TESS_ARG(L, tess_tree_arg, .n = n, .out = at, .parts = terms, .part = part);
    tess_emit(L, &tess_tree_sum[TESS_F32], a, use, uses);
}

static int by_beginning(const void *a, const void *b)
{
    const struct term *x = a, *y = b;
    return (x->begins > y->begins) - (x->begins < y->begins);
}

/* A tile for what comes from another rank, or goes there. */
static tess_tile *incoming(tess_lower *L, const tess_tensor *p, size_t bytes)
{
    return L->early[p->id] ? tess_program_slot(L->p, bytes, TESS_ROLE_GRADIENT, p->name)
                           : tess_program_tile(L->p, bytes, TESS_ROLE_GRADIENT, p->name);
}

/* Returns a tile's elements as they are sent; in codes with what those of this rank lacked the times before. */
static tess_tile *narrowed(tess_lower *L, const tess_tensor *p, int64_t j, tess_tile *tile, tess_dtype as)
{
    if (as == TESS_F32) return tile;
    const int64_t n = (int64_t)(tess_tile_bytes(tile) / sizeof(float));
    tess_tile *to = incoming(L, p, tess_dtype_bytes(as, n));
    if (as == TESS_INT8)
        TESS_EMIT(L, &tess_quantize_rest[TESS_F32], TESS_ARG(L, tess_count_arg, .n = n, .as = as), {tile, TESS_R},
                  {p->held->state[p->held->states + j].rest, TESS_RW}, {to, TESS_W});
    else
        TESS_EMIT(L, &tess_add_sum[as], TESS_ARG(L, tess_map_arg, .n = n), {tile, TESS_R}, {to, TESS_W});
    return to;
}

/* Puts terms in their order, in which ranks that share sequences take turns; those that are all of a larger group
 * become one, in the place of the first. Returns how many are left: a logarithm of the leaves or ranks so far. */
static unsigned fold(tess_lower *L, const tess_tensor *p, struct term *term, unsigned terms, int64_t n)
{
    unsigned *first = tess_alloc((terms + 1) * sizeof *first), groups = 0;
    TESS_FREED struct term *sum = tess_alloc((terms + 1) * sizeof *sum);
    qsort(term, terms, sizeof *term, by_beginning);
    for (unsigned k = 0; k < terms; k++) {
        first[groups] = k;
        sum[groups++] = term[k];
        for (; groups > 1; groups--) {
            struct term *left = &sum[groups - 2], *right = &sum[groups - 1];
            const int64_t span = (int64_t)1 << left->level;
            if (left->level != right->level || left->begins % (2 * span) || right->begins != left->begins + span) break;
            left->level++;
        }
    }
    first[groups] = terms;
    for (unsigned g = 0; g < groups; g++) {
        struct term *t = &term[first[g]];
        const unsigned count = first[g + 1] - first[g];
        sum[g].tile = t->tile, sum[g].first = t->first, sum[g].as = t->as;
        if (count == 1) continue;
        const bool few = t->as != TESS_F32;
        if (few) sum[g].tile = incoming(L, p, (size_t)n * sizeof(float)), sum[g].first = 0, sum[g].as = TESS_F32;
        add_up(L, t, count, (tess_use){sum[g].tile, few ? TESS_W : TESS_RW}, sum[g].first, n);
    }
    memcpy(term, sum, groups * sizeof *term);
    free(first);
    return groups;
}

/* The slice that this rank owns, of no rows where it owns none. */
static tess_slice own_slice(const tess_slices *of)
{
    return of->own < 0 ? (tess_slice){0} : of->of[of->own];
}

/* Returns whether a slice goes to its owner from this rank: where parts of a machine are added up first, those of
 * owners that have this rank's place in theirs. */
static bool sends_part(const tess_lower *L, tess_slice slice, int near)
{
    return slice.owner != tess_grid_data(L->grid) && slice.owner % near == tess_grid_data(L->grid) % near;
}

static void send_part(tess_lower *L, tess_parcel *m, const tess_tensor *p, int64_t j, int s, tess_slice slice, int k,
                      tess_tile *tile, tess_dtype type, int to)
{
    tess_parcel_add(m, (tess_use){tile, TESS_R}, tess_grid_peer(L->grid, to), tess_grid_tag(p, j, s, TESS_TAG_PART + k),
                    true, tess_dtype_bytes(type, slice.row * p->dim[1]),
                    tess_dtype_bytes(type, slice.rows * p->dim[1]));
}

static void send_parts(tess_lower *L, tess_parcel *m, const tess_tensor *p, int64_t j, const tess_slices *slices,
                       tess_tile *const *tile, int parts, tess_dtype type, int near)
{
    for (int k = 0; k < parts; k++)
        for (int s = 0; s < slices->n; s++) {
            const tess_slice slice = slices->of[s];
            if (sends_part(L, slice, near)) send_part(L, m, p, j, s, slice, k, tile[k], type, slice.owner);
        }
}

static tess_tile *receive_part(tess_lower *L, tess_parcel *m, const tess_tensor *p, size_t bytes, int d, int tag)
{
    tess_tile *in = incoming(L, p, bytes);
    tess_parcel_add(m, (tess_use){in, TESS_W}, tess_grid_peer(L->grid, d), tag, false, 0, bytes);
    return in;
}

/* Returns how many ranks' parts are added up in a machine before they leave it, or in a group where that says what is
 * near; 1: each rank sends its own. Their sum must be one of the whole tree's. */
static int adds_near(const tess_lower *L, const tess_tensor *p, int64_t j)
{
    const int machine = tess_grid_near(L->grid, L->g->near), group = L->grid->group,
              near = p->held->on.stays                                                            ? 1
                     : machine == 1 && group < L->grid->data && tess_gradient_sent(p) == TESS_F32 ? group
                                                                                                  : machine;
    const bool large = tess_tile_bytes(p->held->tile[j].gradient) >= 2 * (size_t)L->g->near_bytes,
               whole = !L->conf->shares && !(near & (near - 1)) &&
                       !(in_tree(L, p) && (L->micros & (L->micros - 1) || L->grid->sequence > 1));
    return large && whole && near <= SENDERS ? near : 1;
}

/* The ranks of a machine give each other their parts: of a slice to the one that has its owner's place there, who adds
 * them up in its own tile. */
static void add_near(tess_lower *L, const tess_tensor *p, int64_t j, const tess_slices *slices, tess_tile *tile,
                     int near)
{
    const int mine = tess_grid_data(L->grid), here = mine - mine % near, level = 0;
    tess_parcel m = {0};
    TESS_FREED struct term *term = tess_alloc((size_t)near * sizeof *term);
    size_t bytes = 0;
    for (int s = 0; s < slices->n; s++) {
        const tess_slice slice = slices->of[s];
        const int to = here + slice.owner % near;
        if (to == mine)
            bytes += (size_t)(slice.rows * p->dim[1]) * sizeof(float);
        else
            send_part(L, &m, p, j, s, slice, 0, tile, TESS_F32, to);
    }
    for (int i = 0; i < near; i++) {
        size_t at = 0;
        term[i] = (struct term){here + i == mine ? tile : bytes ? incoming(L, p, bytes) : NULL, 0, level, 0, TESS_F32};
        for (int s = 0; s < slices->n && here + i != mine; s++) {
            const tess_slice slice = slices->of[s];
            const size_t part = (size_t)(slice.rows * p->dim[1]) * sizeof(float);
            if (here + slice.owner % near != mine) continue;
            tess_parcel_add(&m, (tess_use){term[i].tile, TESS_W}, tess_grid_peer(L->grid, here + i),
                            tess_grid_tag(p, j, s, TESS_TAG_PART), false, at, part);
            at += part;
        }
    }
    tess_parcel_send(L, &m);
    int64_t at = 0;
    for (int s = 0; s < slices->n; s++) {
        const tess_slice slice = slices->of[s];
        const int64_t n = slice.rows * p->dim[1], own = slice.row * p->dim[1];
        if (here + slice.owner % near != mine || n == 0) continue;
        for (int i = 0; i < near; i++) term[i].first = here + i == mine ? own : at;
        add_up(L, term, (unsigned)near, (tess_use){tile, TESS_RW}, own, n);
        at += n;
    }
}

/* All ranks' parts of a tile go to the owners of its slices, added up within a machine where that is one of the tree's
 * sums: those of sixteen ranks, or machines, at a time, in one message of every rank that sends or receives them. The
 * sum of this rank's slice comes into `out` from element `at` on; its mode is TESS_RW if it holds something. */
static void exchange_parts(tess_lower *L, const tess_tensor *p, int64_t j, const tess_slices *slices,
                           tess_tile *const *tile, int parts, tess_use out, int64_t at)
{
    tess_tile *sent[64];
    const int near = adds_near(L, p, j), place = tess_grid_data(L->grid) % near, senders = L->grid->data / near,
              mine = tess_grid_data(L->grid) / near;
    const int s = slices->own;
    const tess_slice slice = own_slice(slices);
    const int64_t n = slice.rows * p->dim[1];
    int most = 0, level[128];
    int64_t begins[128];
    for (int d = 0; d < senders; d++) most += levels_of(L, p, d * near, near, level, begins);
    TESS_FREED struct term *term = tess_alloc((size_t)most * sizeof *term);
    unsigned terms = 0;
    L->lane = tess_lower_data_lane(L, true, true);
    if (near > 1) add_near(L, p, j, slices, tile[0], near);
    L->lane = tess_lower_data_lane(L, false, true);
    const bool stays = p->held->on.stays;
    const tess_dtype type = senders > 1 ? tess_gradient_sent(p) : TESS_F32;
    for (int k = 0; k < parts && !stays; k++) sent[k] = narrowed(L, p, j, tile[k], type);
    for (int first = 0; first < senders; first += SENDERS) {
        const int end = first + SENDERS < senders ? first + SENDERS : senders;
        tess_parcel m = {0};
        if (first <= mine && mine < end && !stays) send_parts(L, &m, p, j, slices, sent, parts, type, near);
        for (int d = first; d < end && s >= 0; d++) {
            const int count = levels_of(L, p, d * near, near, level, begins);
            if (stays) parts_of(L, p, j, d, sent);
            for (int k = 0; k < count && stays; k++) sent[k] = narrowed(L, p, j, sent[k], type);
            for (int k = 0; k < count; k++)
                term[terms++] = stays || d == mine
                                    ? (struct term){sent[k], slice.row * p->dim[1], level[k], begins[k], type}
                                    : (struct term){receive_part(L, &m, p, tess_dtype_bytes(type, n), d * near + place,
                                                                 tess_grid_tag(p, j, s, TESS_TAG_PART + k)),
                                                    0, level[k], begins[k], type};
        }
        tess_parcel_send(L, &m);
        if (end < senders) terms = fold(L, p, term, terms, n);
    }
    L->lane = TESS_LANE_STEP;
    qsort(term, terms, sizeof *term, by_beginning);
    if (terms > 1 || (terms == 1 && term[0].tile != out.tile)) add_up(L, term, terms, out, at, n);
}

/* The sums come together in 16 bits as well, each owner's own too, and are the same ones everywhere. */
static void sum_in_few_bytes(tess_lower *L, const tess_tensor *p, int64_t j, const tess_slices *slices,
                             tess_tile *const *tile, int parts, tess_tile *whole)
{
    const tess_slice slice = own_slice(slices);
    const int64_t all = (int64_t)(tess_tile_bytes(whole) / sizeof(float)), n = slice.rows * p->dim[1];
    tess_use sum = {n ? incoming(L, p, (size_t)n * sizeof(float)) : NULL, TESS_W},
             few = {incoming(L, p, (size_t)all * sizeof(uint16_t)), TESS_W};
    const tess_dtype type = L->grid->sent;
    exchange_parts(L, p, j, slices, tile, parts, sum, 0);
    if (n) {
        tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = n, .first = slice.row * p->dim[1]);
        TESS_EMIT(L, &tess_add_sum[type], a, {sum.tile, TESS_R}, few);
        few.mode = TESS_RW;
    }
    tess_lower_all_gather(L, p, j, few, type, TESS_TAG_TOTAL, L->grid->data);
    add_up(L, &(struct term){.tile = few.tile, .as = type}, 1, (tess_use){whole, TESS_W}, 0, all);
}

/* Elements of the sum that this rank holds before the slice that it owns. */
static int64_t in_sum(const tess_tensor *p, int64_t j, const tess_slices *slices)
{
    if (slices->own < 0) return 0;
    return (own_slice(slices).row - p->held->state[p->held->tile[j].first_state].row) * p->dim[1];
}

static void reduce_tile(tess_lower *L, tess_tensor *p, int64_t j)
{
    tess_tile *tile[64];
    const int parts = parts_of(L, p, j, 0, tile);
    const struct tess_param_tile *t = &p->held->tile[j];
    tess_slices slices;
    tess_grid_slices(p, j, &slices);
    if (p->held->on.sliced) {
        tess_tile *sum = slices.own < 0 ? NULL : p->held->state[t->first_state].sum;
        exchange_parts(L, p, j, &slices, tile, parts, (tess_use){sum, TESS_W}, in_sum(p, j, &slices));
        tess_lower_share_sum(L, p, j);
        return;
    }
    /* Of the tile where all slices come together: */
    tess_use whole = {t->gradient, in_tree(L, p) ? TESS_W : TESS_RW};
    if (L->grid->sent != TESS_F32 && L->grid->data > 1) {
        sum_in_few_bytes(L, p, j, &slices, tile, parts, whole.tile);
        return;
    }
    exchange_parts(L, p, j, &slices, tile, parts, whole, own_slice(&slices).row * p->dim[1]);
    if (slices.own >= 0) whole.mode = TESS_RW;
    if (L->grid->data > 1) tess_lower_all_gather(L, p, j, whole, TESS_F32, TESS_TAG_TOTAL, L->grid->data);
}

/* The slices' owners add each micro-batch of all ranks to what they have. The tiles that its messages come in serve
 * every micro-batch, so that those with the same tag meet in order. */
static void give_up_tile(tess_lower *L, tess_tensor *p, int64_t j)
{
    enum { FIRST_SET = 4096 }; /* beyond those of micro-batches */
    const struct tess_param_tile *t = &p->held->tile[j];
    const int before = L->p->set;
    tess_slices slices;
    tess_grid_slices(p, j, &slices);
    const int64_t n = own_slice(&slices).rows * p->dim[1], first = in_sum(p, j, &slices);
    tess_tile *gradient = t->gradient, *to = slices.own < 0 ? NULL : p->held->state[t->first_state].sum, *one = to;
    tess_program_slots(L->p, FIRST_SET + t->index, true);
    if (to && L->micros > 1) one = tess_program_slot(L->p, (size_t)n * sizeof(float), TESS_ROLE_GRADIENT, p->name);
    if (L->micro == 0) one = to;
    exchange_parts(L, p, j, &slices, &gradient, 1, (tess_use){one, TESS_W}, one == to ? first : 0);
    if (one != to)
        TESS_EMIT(L, &tess_add_sum[TESS_F32], TESS_ARG(L, tess_map_arg, .n = n, .first = first, .acc = true),
                  {one, TESS_R}, {to, TESS_RW});
    tess_program_slots(L->p, before, false);
}

void tess_lower_reduce_micro(tess_lower *L, tess_tensor *p)
{
    for (int64_t j = 0; j < p->cut->tiles; j++)
        if (L->begun[p->id][j] == L->micro) give_up_tile(L, p, j);
}

/* With local steps no other rank has a part in it. */
static void add_own(tess_lower *L, const tess_tensor *p, int64_t j)
{
    tess_tile *tile[64];
    struct term term[64];
    int level[128];
    int64_t begins[128];
    const int parts = parts_of(L, p, j, 0, tile);
    levels_of(L, p, tess_grid_data(L->grid), 1, level, begins);
    for (int k = 0; k < parts; k++) term[k] = (struct term){tile[k], 0, level[k], begins[k], TESS_F32};
    const tess_use whole = {p->held->tile[j].gradient, TESS_W};
    add_up(L, term, (unsigned)parts, whole, 0, (int64_t)(tess_tile_bytes(whole.tile) / sizeof(float)));
}

void tess_lower_reduce(tess_lower *L, tess_tensor *p)
{
    const bool own = L->conf->local.steps > 0;
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        if (!L->touched[p->id][j]) continue;
        if (own && in_tree(L, p))
            add_own(L, p, j);
        else if (!own && L->early[p->id])
            tess_lower_share_sum(L, p, j);
        else if (!own && (L->grid->data > 1 || p->held->on.sliced || in_tree(L, p)))
            reduce_tile(L, p, j);
    }
}

/* The other sections' gradients are added to those of the first, which updates, and sends the weight back. */
void tess_lower_tied(tess_lower *L, tess_tensor *p)
{
    const tess_grid *g = L->grid;
    int mine = tess_grid_section(g);
    if (p->held->on.absent || p->held->frozen) return;
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        tess_tile *t = p->held->tile[j].gradient;
        tess_count_arg *n = TESS_ARG(L, tess_count_arg, .n = (int64_t)(tess_tile_bytes(t) / sizeof(float)));
        int tag = tess_grid_tag(p, j, 0, TESS_TAG_PART);
        if (!L->touched[p->id][j]) TESS_EMIT(L, &tess_fill[TESS_F32], n, {t, TESS_W});
        L->touched[p->id][j] = true;
        if (L->second[p->id][j])
            TESS_EMIT(L, &tess_add_into[TESS_F32], TESS_ARG(L, tess_map_arg, .n = n->n, .acc = true),
                      {L->second[p->id][j], TESS_R}, {t, TESS_RW});
        if (mine != p->held->on.home)
            tess_lower_message(L, (tess_use){t, TESS_R}, g->rank + (p->held->on.home - mine) * g->tensor, tag, true);
        for (int s = 0; s < g->pipeline && mine == p->held->on.home; s++) {
            if (!p->held->on.user[s] || s == mine) continue;
            tess_tile *in = tess_program_tile(L->p, tess_tile_bytes(t), TESS_ROLE_GRADIENT, p->name);
            tess_lower_message(L, (tess_use){in, TESS_W}, g->rank + (s - mine) * g->tensor, tag, false);
            TESS_EMIT(L, &tess_add_into[TESS_F32], TESS_ARG(L, tess_map_arg, .n = n->n, .acc = true), {in, TESS_R},
                      {t, TESS_RW});
        }
    }
    if (mine != p->held->on.home) return;
    tess_lower_reduce(L, p);
    tess_lower_join_rows(L, p);
}
