/* Positions that turn the heads of q and k, as config.json has them in both spellings. */
#ifndef TESS_ROTARY_IMPL_H
#define TESS_ROTARY_IMPL_H
#include "models/networks/families/families.h"

/* As in tess_rope_kind, and more; SU is an earlier name of longrope, UNSAID a preset of families whose
 * config.json must name a kind. */
enum { TESS_ROTARY_DYNAMIC = TESS_ROPE_LONG + 1, TESS_ROTARY_SU, TESS_ROTARY_UNSAID };
#define TESS_ROTARY_KINDS "default linear llama3 yarn longrope dynamic"

/* Comes behind the tess_common in the struct of a family that is `rotary`; in the order of tess_rotary_fields. What
 * share of a head turns is each family's own. */
typedef struct tess_rotary {
    int64_t trained_positions;
    double base, factor, low, high;
    int64_t kind, length; /* length 0: trained_positions */
    double fast, slow; /* yarn: turns in `length` places above which, and below which, pairs are all the one or other */
    double size, scale, scale_all; /* 0: they follow from the factor */
    int64_t whole_pairs;
    tess_list near, far; /* longrope: of sequences of up to `length` tokens, and of longer ones */
} tess_rotary;

/* Checks that the settings do not contradict each other, for `turning` rotated elements of a head. */
tess_status tess_rotary_check(const tess_rotary *r, int64_t turning, const char *where) TESS_NODISCARD;
/* Returns the settings of tess_rope for heads of `dim` elements, `turning` of them rotated, in a network's sequences.
 */
tess_rope_conf tess_rotary_of(const tess_rotary *r, int64_t dim, int64_t turning, const tess_network *in);
/* Returns by what logits of attention are larger, beside what turned pairs are, where mscale_all_dim asks for it. */
double tess_rotary_sharper(const tess_rotary *r);

#endif
