/* Rotary positions of a network, see rotary_impl.h. */
#include "rotary_impl.h"

struct begin {
    tess_common common;
    tess_rotary rotary;
};

#define AT(member) offsetof(struct begin, rotary.member)
static const char kinds[] = "default linear llama3";
const tess_field tess_rotary_fields[] = {
    {"max_position_embeddings", TESS_FIELD_INT, AT(trained_positions), 2048, 1, NULL},
    /* Two spellings, of which the later one has the base inside. */
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
    {NULL, 0, 0, 0, 0, NULL}};

tess_status tess_rotary_check(const tess_rotary *r, const char *where)
{
    const tess_field choice = {"rope_type", TESS_FIELD_CHOICE, offsetof(tess_rotary, kind), 0, 0, kinds};
    char kind[32];
    tess_field_text(&choice, r, kind);
    if (r->kind != TESS_ROPE_PLAIN && !(r->factor > 0))
        return tess_error(TESS_INVALID, where, "rope_parameters.factor: %g (rope_type %s expected one above 0)",
                          r->factor, kind);
    if (r->kind == TESS_ROPE_LLAMA3 && !(r->low > 0 && r->high > r->low))
        return tess_error(TESS_INVALID, where,
                          "rope_parameters.low_freq_factor: %g, high_freq_factor: %g (rope_type %s expected both, the "
                          "first above 0, the second above the first)",
                          r->low, r->high, kind);
    return TESS_OK;
}

tess_rope_conf tess_rotary_of(const tess_rotary *r, int64_t dim, int64_t turning)
{
    const int64_t length = r->length ? r->length : r->trained_positions;
    return (tess_rope_conf){.dim = dim,
                            .rotary = turning,
                            .base = (float)r->base,
                            .scaling = {(tess_rope_kind)r->kind, r->factor, r->low, r->high, (double)length}};
}
