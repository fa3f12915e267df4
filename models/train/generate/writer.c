/* A model that goes on with texts: the graphs that read tokens in blocks and one by one, over one set of weights and
 * one cache, and where all of it lives.
 *
 * A graph is made for the blocks of the cache that it sees and for the number of rows that it reads; those of a block
 * that is full are done with. Rows behind the last token are padding, whose keys the next tokens replace. Under a cap
 * the step that reads one token and sees all of the cache is placed first and says where everything lives; the others
 * find their way beside it. */
#include "models/networks/networks.h"
#include "models/train/generate/writer_impl.h"
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 256,      /* places */
    READS = 2048,     /* the most rows of all texts that are read at a time, */
    READS_LEAST = 16, /* unless this many of each text are more */
    STRIPES = 2,      /* of a matrix, for two cores and more */
    PROGRAMS = 8,
    SHORTEST = 64, /* an encoder's texts are as long as a multiple of it */
};

/* The step that reads `rows` tokens of each text and attends to `blocks` blocks of the cache. */
struct program {
    tess_graph *g;
    tess_network net;
    tess_step *step;
    int64_t blocks, rows;
    bool turns_long;
};

struct tess_writer {
    tess_model *model;
    tess_run run;
    tess_graph *base; /* has the weights */
    tess_cache *cache;
    struct program program[PROGRAMS], longest, encoder;
    int64_t made;                                       /* behind the program that was made last */
    bool placed;                                        /* the first step was */
    uint64_t beside;                                    /* bytes that its inputs and scratch have */
    int64_t batch, block, rows, room, vocab, positions; /* rows: at most */
    int64_t at, reach;                                  /* places that were read, and that are to be */
    int64_t *pad, *encoded;
    int32_t *ids, *bounds, *places, *visible, *index;
    float *logits;
};

static bool has_encoder(const tess_writer *w)
{
    return tess_model_answers(w->model) == TESS_ANSWERS_DECODER;
}

static void free_program(struct program *p)
{
    tess_step_free(p->step);
    tess_graph_free(p->g);
    *p = (struct program){0};
}

static tess_graph *graph_of(const tess_writer *w, int64_t rows)
{
    const tess_graph_conf conf = {
        .dtype = w->run.dtype, .share = w->base, .tile_rows = rows * w->batch, .stripes = STRIPES};
    return tess_graph_new(&conf);
}

static bool turns_long(const tess_writer *w)
{
    return tess_model_turns_long(w->model, w->reach);
}

static tess_status describe(tess_writer *w, int64_t blocks, int64_t rows, bool encodes, struct program *p)
{
    *p = (struct program){.g = graph_of(w, rows), .blocks = blocks, .rows = rows, .turns_long = turns_long(w)};
    const tess_build build = {.batch = w->batch,
                              .length = rows,
                              .purpose = TESS_FOR_LOGITS,
                              .bounds = true,
                              .positions = true,
                              .cache = w->cache,
                              .longest = w->reach,
                              .encodes = encodes};
    tess_cache_view(w->cache, blocks);
    TESS_TRY(tess_model_build_for(w->model, p->g, &build, &p->net));
    return tess_step_new(p->net.output, &(tess_step_conf){0}, &p->step);
}

/* Beside the step that was placed first. */
static tess_status place_beside(tess_writer *w, struct program *p)
{
    if (!w->placed) return TESS_OK;
    tess_place_conf conf = w->run.limits.ram;
    tess_placement out;
    conf.taken = w->beside;
    return tess_run_at_key(tess_step_place(p->step, &conf, &out));
}

/* ---- before it runs ---- */

static tess_status too_little(const tess_writer *w, uint64_t needed)
{
    const char *name = w->run.caps.cpu_key;
    char would[128] = "";
    const uint64_t cap = w->run.caps.cpu, limit = cap ? cap : tess_ram_free();
    if (cap)
        snprintf(would, sizeof would, " (%s=%llu%s would do)", name, (unsigned long long)(tess_run_cap(needed) >> 20),
                 tess_run_cap_unit(name));
    return tess_error(TESS_INVALID, cap ? name : "memory", "a text of %lld tokens needs %s in RAM, %s is %s%s",
                      (long long)w->room, tess_human_bytes((double)needed), cap ? "the cap" : "free",
                      tess_human_bytes((double)limit), would);
}

/* What a step holds at most. */
static uint64_t peak_of(const struct program *p, tess_holds *plan)
{
    tess_step_holds(p->step, plan);
    return tess_holds_need(plan, tess_cores());
}

/* All in RAM, below a cap or not. */
static tess_status fit(tess_writer *w, const struct program *reader)
{
    const int workers = tess_cores();
    tess_holds one, many;
    const uint64_t a = peak_of(&w->longest, &one), b = peak_of(reader, &many), needed = a > b ? a : b;
    if (needed > (w->run.machine.cpu_bytes ? w->run.machine.cpu_bytes : tess_ram_free())) return too_little(w, needed);
    const uint64_t first = tess_holds_fixed(&one, workers), other = tess_holds_fixed(&many, workers);
    if (w->run.machine.cpu_bytes && !tess_gpus())
        w->run.plan.ram.room = w->run.machine.cpu_bytes - (first > other ? first : other);
    return TESS_OK;
}

/* Over a disk: the step of one token is placed in what the one that reads many leaves. */
static tess_status place(tess_writer *w, struct program *reader)
{
    tess_place_conf conf = w->run.limits.ram;
    tess_holds plan;
    tess_step_holds(reader->step, &plan);
    conf.alone = true;
    conf.taken = plan.peak[TESS_ROLE_ACTIVATION] + tess_holds_fixed(&plan, conf.workers);
    conf.rates = (tess_rates){0};
    TESS_TRY(tess_run_at_key(tess_step_place(w->longest.step, &conf, &w->run.plan.ram)));
    tess_step_holds(w->longest.step, &plan);
    w->beside = tess_holds_fixed(&plan, conf.workers);
    w->run.plan.ram.room = w->run.machine.cpu_bytes - w->run.plan.ram.buffers - w->run.plan.ram.margin - w->beside;
    w->placed = true;
    return TESS_OK;
}

/* Rows that are read at a time: as many as pay, and under a cap no more than leave most of it to weights. */
static int64_t rows_of(const tess_writer *w, int64_t asked)
{
    int64_t most = w->block < w->room ? w->block : w->room;
    if (w->positions && w->positions < most) most = w->positions;
    if (asked) return asked < most ? asked : most;
    int64_t rows = most;
    while (rows > READS_LEAST && rows * w->batch > READS) rows /= 2;
    return rows;
}

/* Makes a reader of w->rows rows at a time, and finds room for it and the other steps. */
static tess_status settle_for(tess_writer *w, struct program *reader)
{
    TESS_TRY(describe(w, w->longest.blocks, w->rows, false, reader));
    if (!w->run.machine.disk) return fit(w, reader);
    TESS_TRY(place(w, reader));
    TESS_TRY(place_beside(w, reader));
    return has_encoder(w) ? place_beside(w, &w->encoder) : TESS_OK;
}

/* Under a cap fewer rows leave more of it to what is kept. */
static tess_status settle(tess_writer *w)
{
    tess_status status = describe(w, (w->room + w->block - 1) / w->block, 1, false, &w->longest);
    while (status == TESS_OK) {
        struct program reader = {0};
        status = settle_for(w, &reader);
        free_program(&reader);
        if (status != TESS_INVALID || !w->run.machine.cpu_bytes || w->rows <= READS_LEAST) break;
        w->rows /= 2;
        status = TESS_OK;
    }
    return status == TESS_OK && w->run.machine.disk ? tess_run_size_disk(&w->run) : status;
}

static void make_buffers(tess_writer *w, int64_t encoded)
{
    const size_t rows = (size_t)(w->batch * (encoded > w->rows ? encoded : w->rows));
    w->pad = tess_alloc((size_t)w->batch * sizeof *w->pad);
    w->encoded = tess_alloc((size_t)w->batch * sizeof *w->encoded);
    w->ids = tess_alloc(rows * sizeof *w->ids);
    w->places = tess_alloc(rows * sizeof *w->places);
    w->bounds = tess_alloc(2 * rows * sizeof *w->bounds);
    w->visible = tess_alloc(2 * rows * sizeof *w->visible);
    w->index = tess_alloc((size_t)w->batch * sizeof *w->index);
    w->logits = tess_alloc((size_t)(w->batch * w->vocab) * sizeof *w->logits);
}

tess_status tess_writer_new(tess_model *m, const tess_writer_conf *conf, tess_writer **writer)
{
    tess_writer *w = *writer = tess_alloc(sizeof *w);
    *w = (tess_writer){.model = m,
                       .batch = conf->batch ? conf->batch : 1,
                       .block = conf->block ? conf->block : BLOCK,
                       .room = conf->longest,
                       .vocab = tess_model_vocab(m),
                       .positions = tess_model_positions(m)};
    tess_run_terms(conf->config, 0, &w->run);
    w->run.model = m;
    const tess_dtype dtype = w->run.dtype;
    w->rows = rows_of(w, conf->rows);
    TESS_TRY(tess_run_check_gpus(conf->config));
    TESS_TRY(tess_run_tiers(&w->run, NULL));
    w->cache = tess_cache_new(&(tess_cache_conf){.dtype = dtype, .sequences = w->batch, .block = w->block});
    w->base = tess_graph_new(&(tess_graph_conf){.dtype = dtype, .stripes = STRIPES});
    tess_network net;
    TESS_TRY(tess_model_build(m, w->base, 1, 1, TESS_FOR_LOGITS, &net));
    for (int k = 0; k < tess_graph_params(w->base); k++) TESS_TRY(tess_param_freeze(tess_graph_param(w->base, k)));
    const int64_t encoded = (conf->encoded + SHORTEST - 1) / SHORTEST * SHORTEST;
    if (has_encoder(w)) TESS_TRY(describe(w, 1, encoded, true, &w->encoder));
    TESS_TRY(settle(w));
    make_buffers(w, encoded);
    TESS_TRY(tess_run_start(&w->run, false));
    tess_bar_begin("loading the model", (double)tess_graph_param_elements(w->base));
    const tess_status status = tess_model_load(m, w->base, 0);
    tess_bar_end();
    return status;
}

void tess_writer_free(tess_writer *w)
{
    if (!w) return;
    for (int k = 0; k < PROGRAMS; k++) free_program(&w->program[k]);
    free_program(&w->longest);
    free_program(&w->encoder);
    tess_graph_free(w->base);
    tess_cache_free(w->cache);
    void *const buffers[] = {w->pad, w->encoded, w->ids, w->places, w->bounds, w->visible, w->index, w->logits};
    for (size_t k = 0; k < sizeof buffers / sizeof *buffers; k++) free(buffers[k]);
    free(w);
}

/* ---- reading ---- */

static bool is_for(const tess_writer *w, const struct program *p, int64_t blocks, int64_t rows)
{
    return p->step && p->blocks == blocks && p->rows == rows && p->turns_long == turns_long(w);
}

/* Made when it is first needed; those that see less than all that was read are done with, else the one that was made
 * first. */
static tess_status find_program(tess_writer *w, int64_t blocks, int64_t rows, struct program **found)
{
    *found = &w->longest;
    if (is_for(w, &w->longest, blocks, rows)) return tess_cache_ready(w->cache, blocks);
    struct program *unused = NULL, *oldest = &w->program[w->made % PROGRAMS];
    for (int k = 0; k < PROGRAMS; k++) {
        struct program *p = *found = &w->program[k];
        if (is_for(w, p, blocks, rows)) return TESS_OK;
        if (p->step && (p->blocks != blocks || p->turns_long != turns_long(w))) free_program(p);
        if (!p->step) unused = p;
    }
    if (!unused) free_program(unused = oldest);
    w->made = unused - w->program + 1;
    *found = unused;
    TESS_TRY(describe(w, blocks, rows, false, unused));
    TESS_TRY(place_beside(w, unused));
    return tess_cache_ready(w->cache, blocks);
}

/* Rows of padding cost as much as others. */
static int64_t rows_for(const tess_writer *w, int64_t count)
{
    const int64_t rows = count == 1 ? 1 : (count + READS_LEAST - 1) / READS_LEAST * READS_LEAST;
    return rows < w->rows ? rows : w->rows;
}

/* What rows see and where they are: text b's row i at place w->at + i. Those from `count` on are padding. */
static void fill_inputs(tess_writer *w, const struct program *p, const int32_t *ids, int64_t stride, int64_t count)
{
    const int64_t end = p->blocks * w->block, first = p->net.first_position;
    for (int64_t b = 0; b < w->batch; b++)
        for (int64_t i = 0; i < p->rows; i++) {
            const int64_t r = b * p->rows + i, place = w->at + i < end ? w->at + i : end - 1;
            const int64_t in_text = place > w->pad[b] ? place - w->pad[b] : 0;
            const bool sees = i < count && place >= w->pad[b];
            w->ids[r] = i < count ? ids[b * stride + i] : 0;
            w->places[r] = (int32_t)(first + (w->positions && in_text >= w->positions ? w->positions - 1 : in_text));
            w->bounds[2 * b * p->rows + i] = (int32_t)(sees ? w->pad[b] : place + 1);
            w->bounds[(2 * b + 1) * p->rows + i] = (int32_t)place + 1;
            w->visible[2 * b * p->rows + i] = 0;
            w->visible[(2 * b + 1) * p->rows + i] = (int32_t)w->encoded[b];
        }
    for (int64_t b = 0; b < w->batch; b++) w->index[b] = (int32_t)count - 1;
}

static tess_status feed(struct program *p, const tess_tensor *input, const int32_t *values)
{
    return input ? tess_step_feed(p->step, input, values) : TESS_OK;
}

static tess_status read_some(tess_writer *w, const int32_t *ids, int64_t stride, int64_t count)
{
    struct program *p;
    TESS_TRY(find_program(w, w->at / w->block + 1, rows_for(w, count), &p));
    fill_inputs(w, p, ids, stride, count);
    TESS_TRY(feed(p, p->net.ids, w->ids));
    TESS_TRY(feed(p, p->net.bounds, w->bounds));
    TESS_TRY(feed(p, p->net.positions, w->places));
    TESS_TRY(feed(p, p->net.visible, w->visible));
    TESS_TRY(feed(p, p->net.index, w->index));
    TESS_TRY(tess_step_run(p->step, &(tess_step_input){0}, NULL));
    w->at += count;
    return tess_step_output(p->step, w->logits);
}

tess_status tess_writer_adapt(tess_writer *w, const char *dir)
{
    return tess_model_adapt_anew(w->model, w->base, dir);
}

void tess_writer_begin(tess_writer *w, const int64_t *pad)
{
    w->at = 0;
    memcpy(w->pad, pad, (size_t)w->batch * sizeof *pad);
}

tess_status tess_writer_encode(tess_writer *w, const int32_t *const *ids, const size_t *length)
{
    struct program *p = &w->encoder;
    for (int64_t b = 0; b < w->batch; b++) {
        w->encoded[b] = (int64_t)length[b];
        for (int64_t i = 0; i < p->rows; i++) {
            const bool is = i < w->encoded[b];
            w->ids[b * p->rows + i] = is ? ids[b][i] : 0;
            w->bounds[2 * b * p->rows + i] = 0;
            w->bounds[(2 * b + 1) * p->rows + i] = (int32_t)(is ? w->encoded[b] : 0);
        }
    }
    TESS_TRY(tess_cache_ready(w->cache, 1));
    TESS_TRY(feed(p, p->net.ids, w->ids));
    TESS_TRY(feed(p, p->net.bounds, w->bounds));
    return tess_step_run(p->step, &(tess_step_input){0}, NULL);
}

bool tess_writer_turns(const tess_writer *w, int64_t count)
{
    return turns_long(w) != tess_model_turns_long(w->model, w->at + count);
}

tess_status tess_writer_read(tess_writer *w, const int32_t *ids, int64_t count)
{
    TESS_ASSERT(count > 0 && w->at + count <= w->room && (w->at == 0 || !tess_writer_turns(w, count)));
    w->reach = w->at + count;
    for (int64_t from = 0, n; from < count; from += n) {
        const int64_t left = w->block - w->at % w->block;
        n = count - from < left ? count - from : left;
        if (n > w->rows) n = w->rows;
        TESS_TRY(read_some(w, ids + from, count, n));
    }
    return TESS_OK;
}

const float *tess_writer_logits(const tess_writer *w, int64_t text)
{
    return w->logits + text * w->vocab;
}
