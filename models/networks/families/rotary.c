/* Rotary positions of a network, see rotary_impl.h. */
#include "models/networks/families/rotary_impl.h"
#include <math.h>
#include <string.h>

struct begin {
    tess_common common;
    tess_rotary rotary;
};

#define AT(member) offsetof(struct begin, rotary.member)
static const char kinds[] = TESS_ROTARY_KINDS;
const tess_field tess_rotary_fields[] = {
    {"max_position_embeddings", TESS_FIELD_INT, AT(trained_positions), 2048, 1, NULL},
    /* There are two spellings; the later one, rope_parameters, has the base inside. */
    {"rope_theta", TESS_FIELD_REAL, AT(base), 10000, 1, NULL},
    {"rope_parameters", TESS_FIELD_OBJECT, 0, 0, 0, NULL},
    {"rope_scaling", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters"},
    {"rope_parameters.rope_theta", TESS_FIELD_ALIAS, 0, 0, 0, "rope_theta"},
    {"rope_parameters.rope_type", TESS_FIELD_CHOICE, AT(kind), TESS_ROPE_PLAIN, 0, kinds},
    {"rope_parameters.type", TESS_FIELD_ALIAS, 0, 0, 0, "rope_parameters.rope_type"},
    {"rope_parameters.factor", TESS_FIELD_REAL, AT(factor), 0, 0, NULL},
    {"rope_parameters.low_freq_factor", TESS_FIELD_REAL, AT(low), 0, 0, NULL},
    {"rope_parameters.high_freq_factor", TESS_FIELD_REAL, AT(high), 0, 0, NULL},
    {"rope_parameters.original_max_position_embeddings", TESS_FIELD_OPTIONAL, AT(length), 0, 1, NULL},
    {"rope_parameters.beta_fast", TESS_FIELD_OPTIONAL_REAL, AT(fast), 0, 0, NULL},
    {"rope_parameters.beta_slow", TESS_FIELD_OPTIONAL_REAL, AT(slow), 0, 0, NULL},
    {"rope_parameters.attention_factor", TESS_FIELD_OPTIONAL_REAL, AT(size), 0, 0, NULL},
    {"rope_parameters.mscale", TESS_FIELD_OPTIONAL_REAL, AT(scale), 0, 0, NULL},
    {"rope_parameters.mscale_all_dim", TESS_FIELD_OPTIONAL_REAL, AT(scale_all), 0, 0, NULL},
    {"rope_parameters.truncate", TESS_FIELD_BOOL, AT(whole_pairs), 1, 0, NULL},
    {"rope_parameters.short_factor", TESS_FIELD_LIST, AT(near), 0, 0, NULL},
    {"rope_parameters.long_factor", TESS_FIELD_LIST, AT(far), 0, 0, NULL},
    {0}};

/* As many numbers as pairs. */
static tess_status check_list(const char *where, const char *name, const tess_list *list, int64_t turning)
{
    if (list->count == turning / 2) return TESS_OK;
    return tess_error(TESS_INVALID, where,
                      "rope_parameters.%s has %lld numbers (rope_type longrope expected one a pair, %lld)", name,
                      (long long)list->count, (long long)turning / 2);
}

tess_status tess_rotary_check(const tess_rotary *r, int64_t turning, const char *where)
{
    if (r->kind == TESS_ROPE_LONG) {
        TESS_TRY(check_list(where, "short_factor", &r->near, turning));
        return check_list(where, "long_factor", &r->far, turning);
    }
    const tess_field choice = {"rope_type", TESS_FIELD_CHOICE, offsetof(tess_rotary, kind), 0, 0, kinds};
    char kind[32];
    tess_field_text(&choice, r, kind);
    if (r->kind != TESS_ROPE_PLAIN && !(r->factor > 0) && !(r->kind == TESS_ROPE_YARN && r->length))
        return tess_error(TESS_INVALID, where, "rope_parameters.factor: %g (rope_type %s expected one above 0)",
                          r->factor, kind);
    if (r->kind == TESS_ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low))
        return tess_error(TESS_INVALID, where,
                          "rope_parameters.low_freq_factor: %g, high_freq_factor: %g (rope_type %s expected both, the "
                          "first above 0, the second above the first)",
                          r->low, r->high, kind);
    return TESS_OK;
}

/* Attention is to stay as sharp where there are more places. */
static double sharpened(double factor, double scale)
{
    return factor <= 1 ? 1 : 0.1 * scale * log(factor) + 1;
}

/* The pair that turns so often in the places that a model was first trained on. */
static double pair_of(const tess_rotary *r, double turns, double length, double turning)
{
    return turning * log(length / (turns * 2 * M_PI)) / (2 * log(r->base));
}

static tess_rope_scaling yarn(const tess_rotary *r, double length, double turning)
{
    const double factor = r->factor > 0 ? r->factor : (double)r->trained_positions / length;
    double low = pair_of(r, r->fast > 0 ? r->fast : 32, length, turning),
           high = pair_of(r, r->slow > 0 ? r->slow : 1, length, turning), size = r->size;
    if (r->whole_pairs) low = floor(low), high = ceil(high);
    low = fmax(low, 0), high = fmin(high, turning - 1);
    if (!(size > 0)) {
        size = sharpened(factor, 1);
        if (r->scale > 0 && r->scale_all > 0) size = sharpened(factor, r->scale) / sharpened(factor, r->scale_all);
    }
    return (tess_rope_scaling){TESS_ROPE_YARN, .factor = factor, .low = low, .high = high > low ? high : low + 0.001,
                               .size = (float)size};
}

double tess_rotary_sharper(const tess_rotary *r)
{
    const double by = r->kind == TESS_ROPE_PLAIN || !(r->scale_all > 0) ? 1 : sharpened(r->factor, r->scale_all);
    return by * by;
}

/* Of the sequences that it was first trained on. */
static int64_t first_length(const tess_rotary *r)
{
    return r->length ? r->length : r->trained_positions;
}

bool tess_rotary_long(const tess_family *f, const void *numbers, int64_t length)
{
    const tess_rotary *r = &((const struct begin *)numbers)->rotary;
    return f->rotary && r->kind == TESS_ROPE_LONG && length > first_length(r);
}

/* Sequences of up to `longest` tokens. Whatever their length, what turns grows by what all may have. */
static tess_rope_scaling stretched(const tess_rotary *r, int64_t longest)
{
    const double first = (double)first_length(r);
    const double factor = r->factor > 0 ? r->factor : (double)r->trained_positions / first;
    const double size = r->size > 0 ? r->size : factor > 1 ? sqrt(1 + log(factor) / log(first)) : 1;
    tess_rope_scaling s = {TESS_ROPE_LONG, .size = (float)size};
    const tess_list *list = (double)longest > first ? &r->far : &r->near;
    memcpy(s.pair, list->value, sizeof s.pair);
    return s;
}

/* Sequences that are longer than those it was trained on make the base larger. */
static double base_of(const tess_rotary *r, double turning, const tess_network *in)
{
    int64_t shape[3] = {0};
    tess_tensor_shape(in->ids, shape);
    if (r->kind != TESS_ROTARY_DYNAMIC || in->cache || shape[1] <= r->trained_positions) return r->base;
    const double longer = (double)shape[1] / (double)r->trained_positions;
    return r->base * pow(r->factor * longer - (r->factor - 1), turning / (turning - 2));
}

tess_rope_conf tess_rotary_of(const tess_rotary *r, int64_t dim, int64_t turning, const tess_network *in)
{
    const double length = (double)first_length(r);
    tess_rope_conf c = {.dim = dim,
                        .rotary = turning,
                        .base = (float)base_of(r, (double)turning, in),
                        .places = in->positions,
                        .scaling = {TESS_ROPE_PLAIN}};
    if (r->kind == TESS_ROPE_YARN)
        c.scaling = yarn(r, length, (double)turning);
    else if (r->kind == TESS_ROPE_LONG)
        c.scaling = stretched(r, in->longest);
    else if (r->kind != TESS_ROTARY_DYNAMIC)
        c.scaling = (tess_rope_scaling){(tess_rope_kind)r->kind, r->factor, r->low, r->high, length, 0, {0}};
    return c;
}
