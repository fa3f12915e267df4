/* From what was read to what a step is fed with: targets, and for each place what it sees and where it counts from. */
#include "models/files/data/data_lines_impl.h"
#include <string.h>

static void put_bounds(int32_t *bounds, int64_t T, int64_t from, int64_t to, int64_t first, int64_t end)
{
    for (int64_t t = from; bounds && t < to; t++) bounds[t] = (int32_t)first, bounds[T + t] = (int32_t)end;
}

static void fill(int32_t *out, int64_t from, int64_t to, int32_t value)
{
    for (int64_t t = from; out && t < to; t++) out[t] = value;
}

/* A document of a stream, or all of the sample where documents are not kept apart. */
static void put_document(const tess_data_conf *c, const tess_sample *into, int64_t first, int64_t end)
{
    const int64_t zero = c->restart ? first : 0;
    put_bounds(into->bounds, c->seq_length, first, end, first, end);
    for (int64_t t = first; into->positions && t < end; t++) into->positions[t] = (int32_t)(t - zero);
}

void tess_sample_of_stream(const tess_data_conf *c, int32_t end_of_text, const int32_t *tokens, const tess_sample *into)
{
    const int64_t T = c->seq_length;
    int64_t first = 0;
    if (into->ids) memcpy(into->ids, tokens, (size_t)T * sizeof *tokens);
    if (into->targets) memcpy(into->targets, tokens + 1, (size_t)T * sizeof *tokens);
    for (int64_t t = 0; c->pack && t + 1 < T; t++) {
        if (tokens[t] != end_of_text) continue;
        put_document(c, into, first, t + 1);
        first = t + 1;
    }
    put_document(c, into, first, T);
    fill(into->segments, 0, T, 0);
    fill(into->decoder_ids, 0, T, c->padding);
    fill(into->label, 0, 1, TESS_NO_TARGET);
}

/* Entries [at, at + n) of `out`, and `rest` where there are no more. */
static void put(const tess_ids *from, int64_t at, int64_t n, int32_t rest, int32_t *out)
{
    const int64_t m = (int64_t)from->count < n ? (int64_t)from->count : n;
    for (int64_t t = 0; out && t < m; t++) out[at + t] = from->id[t];
    fill(out, at + m, at + n, rest);
}

int64_t tess_sample_put(const tess_data_conf *c, const tess_example *e, int64_t at, const tess_sample *into)
{
    const int64_t room = c->seq_length - at, n = (int64_t)e->ids.count < room ? (int64_t)e->ids.count : room;
    const tess_ids *labels = &e->labels;
    put(&e->ids, at, n, 0, into->ids);
    if (c->task == TESS_DATA_CAUSAL && labels->count) /* a place's target is the next one's label */
        put(&(tess_ids){.id = labels->id + 1, .count = labels->count - 1}, at, n, TESS_NO_TARGET, into->targets);
    else
        put(labels, at, c->task == TESS_DATA_DECODER ? room : n, TESS_NO_TARGET, into->targets);
    put_bounds(into->bounds, c->seq_length, at, at + n, at, at + n);
    for (int64_t t = 0; into->positions && t < n; t++) into->positions[at + t] = (int32_t)t;
    put(&e->types, at, n, 0, into->segments);
    if (!at) put(&e->decoder, at, room, c->padding, into->decoder_ids);
    if (!at) fill(into->label, 0, 1, e->label);
    return at + n;
}

void tess_sample_pad(const tess_data_conf *c, int64_t at, const tess_sample *into)
{
    const int64_t T = c->seq_length;
    fill(into->ids, at, T, c->padding);
    if (c->task != TESS_DATA_DECODER) fill(into->targets, at, T, TESS_NO_TARGET);
    put_bounds(into->bounds, T, at, T, 0, 0);
    for (int64_t t = at; into->positions && t < T; t++) into->positions[t] = (int32_t)t;
    fill(into->segments, at, T, 0);
}

void tess_sample_of_example(const tess_data_conf *c, const tess_example *e, const tess_sample *into)
{
    tess_sample_pad(c, tess_sample_put(c, e, 0, into), into);
}
