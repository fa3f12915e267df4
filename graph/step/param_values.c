/* Parameters at run time: drawing them, reaching one tile of them or of their optimizer state from outside. */
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

/* Between steps no tile stays above its home. */
static tess_use resting(tess_use u)
{
    int leaves = TESS_LEAVES_RAM;
    if (u.tile && tess_tile_home(u.tile) != TESS_TIER_GPU && tess_tile_role(u.tile) != TESS_ROLE_ACTIVATION)
        leaves |= TESS_LEAVES_GPU;
    return (tess_use){u.tile, u.mode | leaves};
}

static tess_status submit(tess_graph *g, tess_codelet *cl, tess_count_arg arg, tess_use a, tess_use b)
{
    tess_task *t = tess_arena_get(g->arena, sizeof *t);
    tess_use *use = tess_arena_get(g->arena, 2 * sizeof *use);
    tess_count_arg *kept = tess_arena_get(g->arena, sizeof *kept);
    *kept = arg;
    use[0] = resting(a), use[1] = resting(b);
    *t = (tess_task){.cl = cl, .arg = kept, .use = use, .nuse = b.tile ? 2 : 1};
    return tess_submit(t);
}

/* Fills a tile of that dtype with a value, a quantized one with zeros. */
static tess_status fill_tile(tess_graph *g, tess_tile *t, tess_dtype type, float value)
{
    if (tess_is_quantized(type)) type = TESS_F32;
    const int64_t n = (int64_t)(tess_tile_bytes(t) / tess_dtype_size(type));
    return submit(g, &tess_fill[type], (tess_count_arg){.n = n, .value = value}, (tess_use){t, TESS_W}, (tess_use){0});
}

/* What its master is stored in: what is frozen has its weight alone, of 16 bits or fewer. */
static tess_dtype type_of(const tess_tensor *p)
{
    return p->held->frozen ? tess_weight_dtype(p) : TESS_F32;
}
static bool is_narrow(const tess_tensor *p)
{
    return type_of(p) != TESS_F32;
}
/* What values are rounded to before they are quantized. */
static tess_dtype quantized_of(const tess_tensor *p)
{
    return p->held->copy ? p->g->conf.dtype : TESS_F32;
}

static tess_tile *master_of(const tess_tensor *p, const struct tess_state *s)
{
    return s->master ? s->master : s->weight ? s->weight : p->held->tile[s->tile].weight;
}

/* Elements of that tile before the state's. */
static int64_t before_master(const struct tess_state *s)
{
    return s->master || s->weight ? 0 : s->at;
}

/* Before part of a weight is written, all of it is. */
static tess_status prepare_weight(tess_tensor *p, int64_t j)
{
    struct tess_param_tile *t = &p->held->tile[j];
    if (!p->held->on.sliced || p->held->on.gathered || p->held->on.absent || t->filled) return TESS_OK;
    t->filled = true;
    return fill_tile(p->g, t->weight, tess_weight_dtype(p), 0);
}

/* Tiles in which values are drawn that are rounded then: a few, so that workers have work. */
struct drawing {
    tess_tile *tile[16];
    int turn;
};

/* What `a` draws, which is for the master from element `at` on, is rounded or quantized on its way there. */
static tess_status draw_narrow(tess_tensor *p, tess_codelet *draws, tess_count_arg a, tess_use use, struct drawing *d)
{
    tess_tile **t = &d->tile[d->turn++ % 16];
    const tess_dtype type = type_of(p);
    const tess_count_arg rounded = {.n = a.n, .at = a.at, .as = type, .of = quantized_of(p)};
    a.at = 0;
    tess_tile_free(*t); /* which waits for it */
    *t = tess_tile_new((size_t)a.n * sizeof(float), TESS_ROLE_ACTIVATION, p->name);
    TESS_TRY(submit(p->g, draws, a, (tess_use){*t, TESS_W}, (tess_use){0}));
    return submit(p->g, tess_is_quantized(type) ? &tess_quantize[TESS_F32] : &tess_round[type], rounded,
                  (tess_use){*t, TESS_R | TESS_LAST}, use);
}

static tess_status draw(tess_tensor *p, const struct tess_placed_piece *h, struct drawing *d)
{
    struct tess_state *s = &p->held->state[h->state];
    bool inside = !s->master && !s->weight && p->held->on.sliced; /* of a weight that was prepared */
    tess_use use = {master_of(p, s), inside || h->at > 0 ? TESS_RW : TESS_W};
    tess_count_arg a = {.n = h->piece.rows * h->piece.cols,
                        .value = p->held->init.value,
                        .at = before_master(s) + h->at,
                        .width = h->piece.cols,
                        .stride = p->cut->whole[1]};
    s->begun[TESS_MASTER] = true;
    const bool fills = p->held->init.kind == TESS_INIT_FILL;
    if (fills && !tess_is_quantized(type_of(p))) return submit(p->g, &tess_fill[type_of(p)], a, use, (tess_use){0});
    a.op = tess_param_stream(p);
    a.uniform = p->held->init.kind == TESS_INIT_UNIFORM;
    a.first = h->piece.row * p->cut->whole[1] + h->piece.col;
    tess_codelet *draws = fills ? &tess_fill[TESS_F32] : &tess_fill_normal[TESS_F32];
    if (is_narrow(p)) return draw_narrow(p, draws, a, use, d);
    return submit(p->g, draws, a, use, (tess_use){0});
}

static tess_status draw_pieces(tess_tensor *p, struct drawing *d)
{
    for (int64_t i = 0; i < p->held->pieces && p->held->storage == p; i++) {
        TESS_TRY(prepare_weight(p, p->held->state[p->held->piece[i].state].tile));
        TESS_TRY(draw(p, &p->held->piece[i], d));
    }
    for (int64_t i = 0; i < p->held->states + p->held->rests && p->held->storage == p; i++) /* they start from zero */
        for (int part = TESS_MOMENT1; part < TESS_ALL_PARTS; part++) p->held->state[i].begun[part] = false;
    return TESS_OK;
}

/* Parameters [first, end). */
static tess_status draw_some(tess_graph *g, int first, int end, uint64_t seed)
{
    struct drawing d = {0};
    TESS_TRY(tess_check_session(g));
    TESS_TRY(tess_settle(g, NULL));
    tess_graph_ready(g);
    tess_env_set(&(tess_env){.seed = seed});
    tess_status status = TESS_OK;
    for (int k = first; k < end && status == TESS_OK; k++) status = draw_pieces(g->param[k], &d);
    for (int i = 0; i < 16; i++) tess_tile_free(d.tile[i]);
    return status;
}

tess_status tess_graph_init(tess_graph *g, uint64_t seed)
{
    if (!g) return tess_error(TESS_INVALID, "graph", "is NULL");
    TESS_TRY(draw_some(g, 0, g->params, seed));
    return tess_graph_round(g);
}

tess_status tess_param_init(tess_tensor *p, uint64_t seed)
{
    if (!p || p->kind != TESS_KIND_PARAM)
        return tess_error(TESS_INVALID, p ? p->name : "tess_param_init", "is no parameter");
    int k = 0;
    while (p->g->param[k] != p) k++;
    TESS_TRY(draw_some(p->g, k, k + 1, seed));
    if (p->held->copy || p->held->on.sliced) p->held->storage->held->stale = true;
    return TESS_OK;
}

/* The bf16 copies of this rank's slices, and those of others where weights are whole. */
static tess_status round_param(tess_tensor *p)
{
    for (int64_t j = 0; j < p->cut->tiles; j++) TESS_TRY(prepare_weight(p, j));
    p->held->storage->held->stale = false;
    for (int64_t i = 0; i < p->held->states && p->held->copy && !p->held->frozen; i++) {
        const struct tess_state *s = &p->held->state[i];
        if (!s->begun[TESS_MASTER]) continue; /* a step will say so */
        tess_count_arg a = {.n = tess_state_elements(p, s), .at = s->weight ? 0 : s->at};
        tess_use to = {s->weight ? s->weight : p->held->tile[s->tile].weight,
                       p->held->on.sliced && !s->weight ? TESS_RW : TESS_W};
        TESS_TRY(submit(p->g, &tess_round[p->g->conf.dtype], a, (tess_use){s->master, TESS_R}, to));
    }
    return TESS_OK;
}

tess_status tess_graph_round(tess_graph *g)
{
    if (!g) return tess_error(TESS_INVALID, "graph", "is NULL");
    TESS_TRY(tess_check_session(g));
    tess_graph_ready(g);
    for (int k = 0; k < g->params; k++) TESS_TRY(round_param(g->param[k]));
    tess_program *p = tess_lower_gather_program(g);
    tess_status status = tess_program_run(p, false);
    tess_status ended = tess_wait();
    tess_program_free(p);
    return status == TESS_OK ? ended : status;
}

int64_t tess_param_pieces(const tess_tensor *p)
{
    if (!p || p->kind != TESS_KIND_PARAM || p->g->failed) return 0;
    tess_graph_ready(p->g);
    return p->held->pieces;
}

tess_piece tess_param_piece(const tess_tensor *p, int64_t piece)
{
    const bool there = piece >= 0 && piece < tess_param_pieces(p) + tess_param_rests(p);
    return there ? p->held->piece[piece].piece : (tess_piece){0};
}

int64_t tess_param_rests(const tess_tensor *p)
{
    return tess_param_pieces(p) ? p->held->rest_pieces : 0;
}

static bool has_piece(const tess_tensor *p, int64_t piece, tess_part part)
{
    const int64_t pieces = tess_param_pieces(p), first = part == TESS_REST ? pieces : 0,
                  end = part == TESS_REST ? pieces + tess_param_rests(p) : pieces;
    return piece >= first && piece < end && tess_param_has(p, part);
}

static tess_tile *part_of(const tess_tensor *p, int64_t piece, tess_part part)
{
    const struct tess_state *s = &p->held->state[p->held->piece[piece].state];
    return part == TESS_MASTER ? master_of(p, s) : tess_state_part(s, part);
}

/* A part that is kept in fewer bits than fp32. */
static bool is_kept(const tess_tensor *p, tess_part part)
{
    return part == TESS_MASTER ? is_narrow(p) : tess_is_moment(part) && tess_param_kept(p).as != TESS_KEEP_F32;
}

/* What is kept of a piece as fp32. */
static void read_kept(const tess_tensor *p, const struct tess_placed_piece *h, tess_part part, const void *of,
                      float *to)
{
    const int64_t n = h->piece.rows * h->piece.cols;
    const tess_dtype t = type_of(p);
    if (part != TESS_MASTER) {
        const tess_kept k = tess_param_kept(p);
        const bool positive = p->held->optimizer->positive >> (part - TESS_MOMENT1) & 1;
        tess_kept_read(&k, of, p->held->state[h->state].rows, positive, h->at / k.width, h->piece.rows, to);
    } else if (tess_is_quantized(t))
        tess_quantize_read(to, TESS_F32, of, t, n);
    else
        for (int64_t i = 0; i < n; i++) to[i] = tess_from_half(t, ((const uint16_t *)of)[i]);
}
static void write_kept(const tess_tensor *p, const struct tess_placed_piece *h, tess_part part, void *of, float *from)
{
    const int64_t n = h->piece.rows * h->piece.cols;
    const tess_dtype t = type_of(p);
    if (part != TESS_MASTER) {
        const tess_kept k = tess_param_kept(p);
        const bool positive = p->held->optimizer->positive >> (part - TESS_MOMENT1) & 1;
        tess_kept_write(&k, of, p->held->state[h->state].rows, positive, h->at / k.width, h->piece.rows, from);
    } else if (tess_is_quantized(t))
        tess_quantize_write(of, t, from, n, quantized_of(p));
    else
        for (int64_t i = 0; i < n; i++) ((uint16_t *)of)[i] = tess_to_half(t, from[i]);
}

/* Has the program a piece of such a tile in fp32. */
static void widen(const tess_tensor *p, struct tess_placed_piece *h, tess_part part, void *of, int mode, float **data)
{
    struct tess_widened *w = &h->wide[part];
    const int64_t n = h->piece.rows * h->piece.cols;
    if (!w->room) {
        *w = (struct tess_widened){.room = tess_alloc((size_t)n * sizeof *w->room), .of = of};
        if (mode & TESS_R) read_kept(p, h, part, of, w->room);
    }
    w->mode |= mode;
    w->times++;
    *data = w->room;
}

/* It gives it back. */
static void narrow(const tess_tensor *p, struct tess_placed_piece *h, tess_part part)
{
    struct tess_widened *w = &h->wide[part];
    if (--w->times > 0) return;
    if (w->mode & TESS_W) write_kept(p, h, part, w->of, w->room);
    free(w->room);
    *w = (struct tess_widened){0};
}

tess_status tess_param_begin(tess_tensor *p, const struct tess_state *s, tess_part part)
{
    /* Zeros are zeros in 8 bits as well. */
    return fill_tile(p->g, tess_state_part(s, part), tess_param_part_dtype(p, part),
                     tess_is_moment(part) ? p->held->begins : 0);
}

/* Writes zeros, which every part can begin with. */
static tess_status fill_part(tess_tensor *p, int64_t piece, tess_part part)
{
    const struct tess_state *s = &p->held->state[p->held->piece[piece].state];
    return part == TESS_MASTER ? fill_tile(p->g, master_of(p, s), type_of(p), 0) : tess_param_begin(p, s, part);
}

/* The elements before a piece in its part's tile. */
static int64_t start_of(const tess_tensor *p, const struct tess_placed_piece *h, tess_part part)
{
    if (part == TESS_MASTER) return before_master(&p->held->state[h->state]) + h->at;
    return tess_is_moment(part) && p->held->width ? h->at / p->dim[1] * p->held->width : h->at;
}

/* Has the program a piece, as it is kept: at `at`, elements of *tile before it. */
static tess_status hold_piece(tess_tensor *p, int64_t piece, tess_part part, int mode, tess_tile **tile, int64_t *at,
                              void **raw)
{
    TESS_TRY(tess_check_session(p->g));
    if (tess_is_frozen(p) && tess_is_moment(part))
        return tess_error(TESS_INVALID, p->name, "is frozen: it has no moments");
    if (!has_piece(p, piece, part) || mode < TESS_R || mode > TESS_RW)
        return tess_error(TESS_INVALID, p->name,
                          "piece %lld of %lld, part %d, mode %d (expected TESS_R, TESS_W or both)", (long long)piece,
                          (long long)tess_param_pieces(p), (int)part, mode);
    struct tess_placed_piece *h = &p->held->piece[piece];
    struct tess_state *s = &p->held->state[h->state];
    *at = start_of(p, h, part);
    bool inside = part == TESS_MASTER && !s->master && !s->weight && p->held->on.sliced;
    bool covers = !inside && h->piece.rows == s->rows;
    if (part != TESS_MASTER) TESS_TRY(tess_param_moments(p, NULL, false));
    TESS_TRY(tess_settle(p->g, NULL));
    if ((mode & TESS_R) && !s->begun[part]) {
        if (part == TESS_MASTER) return tess_error(TESS_INVALID, p->name, "was neither drawn nor loaded");
        TESS_TRY(fill_part(p, piece, part)); /* as the first step finds it */
    }
    if (mode == TESS_W && !covers) { /* what the rest of the tile holds must not be lost, or be something at least */
        if (inside)
            TESS_TRY(prepare_weight(p, s->tile));
        else if (!s->begun[part])
            TESS_TRY(fill_part(p, piece, part));
        mode = TESS_RW;
    }
    s->begun[part] = true;
    *tile = part_of(p, piece, part);
    TESS_TRY(tess_tile_map(*tile, mode, raw));
    if (part == TESS_MASTER && (mode & TESS_W) && (p->held->copy || p->held->on.sliced))
        p->held->storage->held->stale = true;
    p->held->storage->g->maps++;
    return TESS_OK;
}

static tess_status check_asked(const tess_tensor *p, const char *call, const void *room)
{
    if (!p || p->kind != TESS_KIND_PARAM) return tess_error(TESS_INVALID, p ? p->name : call, "is no parameter");
    return room ? TESS_OK : tess_error(TESS_INVALID, p->name, "the last argument of %s is NULL", call);
}

/* Where in a tile that is kept so the piece begins. */
static void *kept_at(const tess_tensor *p, tess_part part, const void *raw, int64_t at)
{
    return (char *)(uintptr_t)raw + (part == TESS_MASTER ? tess_dtype_bytes(type_of(p), at) : 0);
}

tess_status tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data)
{
    tess_tile *tile = NULL;
    int64_t at = 0;
    void *raw = NULL;
    TESS_TRY(check_asked(p, "tess_param_map", data));
    TESS_TRY(hold_piece(p, piece, part, mode, &tile, &at, &raw));
    if (is_kept(p, part))
        widen(p, &p->held->piece[piece], part, kept_at(p, part, raw, at), mode, data);
    else
        *data = (float *)raw + at;
    return TESS_OK;
}

tess_status tess_param_map_blocks(tess_tensor *p, int64_t piece, tess_dtype as, void **blocks)
{
    tess_tile *tile = NULL;
    int64_t at = 0;
    void *raw = NULL;
    TESS_TRY(check_asked(p, "tess_param_map_blocks", blocks));
    *blocks = NULL;
    if (piece >= tess_param_pieces(p) || type_of(p) != as) return TESS_OK;
    TESS_TRY(hold_piece(p, piece, TESS_MASTER, TESS_W, &tile, &at, &raw));
    *blocks = kept_at(p, TESS_MASTER, raw, at);
    return TESS_OK;
}

tess_status tess_param_lend(tess_tensor *p, int64_t piece, tess_part part, tess_lent *out)
{
    tess_tile *tile = NULL;
    int64_t at = 0;
    void *raw = NULL;
    TESS_TRY(check_asked(p, "tess_param_lend", out));
    const int64_t pieces = tess_param_pieces(p);
    if (tess_grid_size(&p->g->conf.grid) > 1 && piece >= pieces)
        return tess_error(TESS_INVALID, p->name,
                          "piece %lld of %lld that rank %d holds (others are lent by their ranks)", (long long)piece,
                          (long long)pieces, p->g->conf.grid.rank);
    if (piece >= 0 && piece < pieces && part >= TESS_MASTER && part < TESS_PARTS &&
        p->held->piece[piece].wide[part].times)
        return tess_error(TESS_INVALID, p->name, "is mapped already (unmap it first)");
    if (tess_is_moment(part) && tess_param_kept(p).as == TESS_KEEP_INT8)
        return tess_error(TESS_INVALID, p->name, "has moments of 8 bits, which cannot be lent (map them)");
    if (part == TESS_MASTER && pieces && tess_is_quantized(type_of(p)))
        return tess_error(TESS_INVALID, p->name, "is held in %s, which cannot be lent (map it)",
                          tess_dtype_name(type_of(p)));
    TESS_TRY(hold_piece(p, piece, part, TESS_R, &tile, &at, &raw));
    const tess_piece where = p->held->piece[piece].piece;
    *out = (tess_lent){.handle = tess_tile_handle(tile),
                       .dtype = part == TESS_MASTER ? type_of(p) : tess_param_part_dtype(p, part),
                       .at = at,
                       .rows = where.rows,
                       .columns = tess_is_moment(part) && p->held->width ? p->held->width : where.cols,
                       .first = where.row};
    return TESS_OK;
}

void tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part)
{
    if (!p || p->kind != TESS_KIND_PARAM || !has_piece(p, piece, part) || !tess_tile_mapped(part_of(p, piece, part)))
        return; /* it was not mapped */
    if (p->held->piece[piece].wide[part].times) narrow(p, &p->held->piece[piece], part);
    tess_tile_unmap(part_of(p, piece, part));
    p->held->storage->g->maps--;
}

bool tess_param_borrow(const tess_tensor *p, int64_t piece, tess_part part, tess_borrowed *out)
{
    const struct tess_placed_piece *h = &p->held->piece[piece];
    tess_tile *tile = part_of(p, piece, part);
    const bool late = tess_graph_owner(p->g)->pending, away = tess_tile_home(tile) != TESS_TIER_CPU;
    const bool due =
        late && part != TESS_REST && !tess_is_frozen(p) && !(p->held->optimizer && p->held->optimizer->whole);
    *out = (tess_borrowed){.of = p, .piece = piece, .part = part, .at = start_of(p, h, part)};
    out->lending.tile = tile;
    out->lending.when = due ? TESS_LENT_BEHIND : away ? TESS_LENT_BEFORE : TESS_LENT_NOW;
    const bool brought = !tess_is_frozen(p) && part != TESS_OUTER; /* by any step */
    return p->held->state[h->state].begun[part] && tess_gpus() == 0 && !(away && !brought);
}

const float *tess_borrowed_values(const tess_borrowed *b, float *room)
{
    const void *raw = b->lending.data;
    if (!is_kept(b->of, b->part)) return (const float *)raw + b->at;
    read_kept(b->of, &b->of->held->piece[b->piece], b->part, kept_at(b->of, b->part, raw, b->at), room);
    return room;
}
