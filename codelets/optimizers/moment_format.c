/* Moments that are kept in fewer bits (moment_format_impl.h), as the main thread reads and writes them: whole rows, in
 * fp32.
 *
 * AdamW holds 14 bytes a parameter with fp32 moments, 10 with bf16 and 8 with 8 bits; masters stay fp32, since a step
 * moves them by less than bf16's last bit. bf16 moments are rounded by random bits of (seed, step, parameter, place),
 * because beta2 = 0.999 changes a second moment by less than bf16 can show, and rounding to nearest would leave it for
 * ever. 8-bit codes are bitsandbytes' dynamic maps, but blocks are cut within a row (768 is 4 blocks of 192), so no
 * tile, slice or rank cuts one. The scale is the largest element with its sign, so coding twice changes nothing and a
 * checkpoint in fp32 resumes bit for bit. A second moment above 0 stays above 0, since an update divides by its root.
 * Adagrad's sum only grows and would stop growing in 8 bits. */
#include "codelets/optimizers/moment_format_impl.h"
#include "codelets/optimizers/update_span_impl.h"

const char *tess_keeping_name(tess_keeping as)
{
    static const char *const name[] = {[TESS_KEEP_F32] = "fp32", [TESS_KEEP_BF16] = "bf16", [TESS_KEEP_INT8] = "8bit"};
    return name[as];
}

size_t tess_kept_bytes(const tess_kept *k, int64_t rows)
{
    const int64_t n = rows * k->width;
    if (k->as == TESS_KEEP_F32) return 4 * (size_t)n;
    if (k->as == TESS_KEEP_BF16) return 2 * (size_t)n;
    return (size_t)(tess_kept_scales(n) + 4 * rows * tess_kept_cut_of(k).blocks);
}

void tess_kept_read(const tess_kept *k, const void *kept, int64_t of, bool positive, int64_t row, int64_t rows,
                    float *x)
{
    const tess_kept_cut cut = tess_kept_cut_of(k);
    const float *scale = (const float *)((const char *)kept + tess_kept_scales(of * k->width));
    const int64_t first = row * k->width;
    if (k->as == TESS_KEEP_BF16) tess_widen(x, (const uint16_t *)kept + first, rows * k->width, TESS_BF16);
    for (int64_t i = row * cut.blocks; i < (row + rows) * cut.blocks && k->as == TESS_KEEP_INT8; i++) {
        const tess_kept_span s = tess_kept_span_of(k, cut, i);
        tess_int8_read(x + s.at - first, (const uint8_t *)kept + s.at, scale[i], s.n, positive);
    }
}

void tess_kept_write(const tess_kept *k, void *kept, int64_t of, bool positive, int64_t row, int64_t rows, float *x)
{
    const tess_kept_cut cut = tess_kept_cut_of(k);
    float *scale = (float *)((char *)kept + tess_kept_scales(of * k->width));
    const int64_t first = row * k->width;
    if (k->as == TESS_KEEP_BF16) tess_narrow((uint16_t *)kept + first, x, rows * k->width, TESS_BF16);
    for (int64_t i = row * cut.blocks; i < (row + rows) * cut.blocks && k->as == TESS_KEEP_INT8; i++) {
        const tess_kept_span s = tess_kept_span_of(k, cut, i);
        scale[i] = tess_int8_write((uint8_t *)kept + s.at, x + s.at - first, s.n, positive);
    }
}
