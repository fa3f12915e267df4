/* From what was read to what a step is fed with: targets, and for each place what it sees and where it counts from. */
#include "data_lines_impl.h"
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

/* The first entries of `out`, and `rest` behind them. */
static void put(const tess_ids *from, int64_t T, int32_t rest, int32_t *out)
{
    const int64_t n = (int64_t)from->count < T ? (int64_t)from->count : T;
    for (int64_t t = 0; out && t < n; t++) out[t] = from->id[t];
    fill(out, n, T, rest);
}

void tess_sample_of_example(const tess_data_conf *c, const tess_example *e, const tess_sample *into)
{
    const int64_t T = c->seq_length, n = (int64_t)e->ids.count < T ? (int64_t)e->ids.count : T;
    const tess_ids *labels = &e->labels;
    put(&e->ids, T, c->padding, into->ids);
    if (c->task == TESS_DATA_CAUSAL && labels->count) /* a place's target is the next one's label */
        put(&(tess_ids){.id = labels->id + 1, .count = labels->count - 1}, T, TESS_NO_TARGET, into->targets);
    else
        put(labels, T, TESS_NO_TARGET, into->targets);
    put_bounds(into->bounds, T, 0, n, 0, n);
    put_bounds(into->bounds, T, n, T, 0, 0);
    for (int64_t t = 0; into->positions && t < T; t++) into->positions[t] = (int32_t)t;
    put(&e->types, T, 0, into->segments);
    put(&e->decoder, T, c->padding, into->decoder_ids);
    fill(into->label, 0, 1, e->label);
}
