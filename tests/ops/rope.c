/* rope: row after row, head after head, with the C library's sine and cosine. */
#include "tests/ops/ops.h"

/* How fast a pair turns: what scaling does, said in wavelengths as the library does that first had it. */
static double speed_of(const tess_rope_arg *a, int64_t i)
{
    const tess_rope_scaling *s = &a->scaling;
    const double plain = pow((double)a->base, -2.0 * (double)i / (double)a->rotary), wave = 2 * M_PI / plain;
    if (s->kind == TESS_ROPE_PLAIN) return plain;
    if (s->kind == TESS_ROPE_LONG) return plain / (double)s->pair[i];
    if (s->kind == TESS_ROPE_YARN) {
        const double part = fmin(1, fmax(0, ((double)i - s->low) / (s->high - s->low)));
        return plain / s->factor * part + plain * (1 - part);
    }
    if (s->kind == TESS_ROPE_LINEAR || wave > s->length / s->low) return plain / s->factor;
    if (wave < s->length / s->high) return plain;
    const double smooth = (s->length / wave - s->low) / (s->high - s->low);
    return (1 - smooth) * plain / s->factor + smooth * plain;
}

static void turn(const tess_rope_arg *a, const int32_t *place, const double *x, double *y, double direction)
{
    const int64_t pairs = a->rotary / 2;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const double *from = x + (r * a->heads + h) * a->dim + a->skip;
            double *to = y + (r * a->heads + h) * a->dim + a->skip;
            const bool stays = a->of && h % a->of >= a->turning;
            for (int64_t i = -a->skip; i < a->dim - a->skip; i++)
                if (stays || i < 0 || i >= a->rotary) to[i] += from[i];
            if (stays) continue;
            for (int64_t i = 0; i < pairs; i++) {
                const double size = a->scaling.size > 0 ? (double)a->scaling.size : 1;
                const double angle =
                    direction * (double)(place ? place[r] : (a->row0 + r) % a->sequence) * speed_of(a, i);
                const int64_t p = a->half ? i : 2 * i, q = a->half ? i + pairs : 2 * i + 1;
                to[p] += size * (from[p] * cos(angle) - from[q] * sin(angle));
                to[q] += size * (from[q] * cos(angle) + from[p] * sin(angle));
            }
        }
}

OP_TASKS(rope)
{
    static const tess_rope_arg shape[] = {
        {.rows = 74, .sequence = 37, .row0 = 40, .heads = 3, .dim = 16, .rotary = 16, .base = 10000},
        {.rows = 37, .sequence = 37, .heads = 1, .dim = 65, .rotary = 50, .base = 10000},
        {.rows = 37, .sequence = 37, .heads = 3, .dim = 80, .rotary = 20, .base = 10000},
        {.rows = 11, .sequence = 11, .heads = 2, .dim = 260, .rotary = 258, .base = 500000},
        {.rows = 5, .sequence = 5, .heads = 1, .dim = 130, .rotary = 128, .base = 10000},
        {.rows = 22, .sequence = 11, .heads = 6, .dim = 12, .rotary = 12, .base = 10000, .of = 3, .turning = 2},
        {.rows = 11, .sequence = 11, .heads = 9, .dim = 12, .rotary = 6, .base = 10000, .of = 9, .turning = 7},
        {.rows = 3, .sequence = 1, .heads = 1, .dim = 7, .rotary = 2, .base = 10000},
        {.rows = 11, .sequence = 11, .heads = 3, .dim = 23, .rotary = 6, .skip = 17, .base = 10000},
        {.rows = 9, .sequence = 9, .heads = 4, .dim = 13, .rotary = 8, .skip = 3, .base = 99, .of = 2, .turning = 1},
        {.rows = 60,
         .sequence = 60,
         .heads = 2,
         .dim = 12,
         .rotary = 12,
         .base = 10000,
         .scaling = {TESS_ROPE_LINEAR, .factor = 2.5}},
        {.rows = 90,
         .sequence = 90,
         .heads = 1,
         .dim = 64,
         .rotary = 64,
         .base = 10000, /* all three stretches */
         .scaling = {TESS_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .length = 32}},
        {.rows = 40,
         .sequence = 40,
         .heads = 2,
         .dim = 64,
         .rotary = 64,
         .base = 10000,
         .scaling = {TESS_ROPE_YARN, .factor = 4, .low = 5, .high = 20, .size = 1.125f}},
        {.rows = 40,
         .sequence = 40,
         .heads = 2,
         .dim = 12,
         .rotary = 10,
         .base = 10000,
         .scaling = {TESS_ROPE_LONG, .size = 1.25f, .pair = {1, 1.5f, 0.75f, 3, 21.5f}}},
        {.rows = 1024, .sequence = 1024, .heads = 12, .dim = 64, .rotary = 64, .base = 10000}};
    enum { SHAPES = sizeof shape / sizeof *shape };
    for (int k = op_speed ? SHAPES - 1 : 0; k < SHAPES - !op_speed; k++)
        for (int half = op_speed; half < 2; half++) OP_EACH(t) OP_EACH_ACC(acc)
            {
                tess_rope_arg a = shape[k];
                const int64_t n = a.rows * a.heads * a.dim;
                a.half = half;
                a.acc = acc;
                a.placed = k == 1;
                for (int back = 0; back < 2; back++) {
                    const double *x = op_in(back ? "dy" : "x", n, t, 1);
                    double *y = op_out(back ? "dx" : "y", n, t, back && acc);
                    turn(&a, a.placed ? op_indices("places", a.rows, 500) : NULL, x, y, back ? -1 : 1);
                    op_run(&(back ? tess_rope_backward : tess_rope_forward)[t], &a);
                }
            }
}

OP_NET(rope)
{
    if (layer == 1) {
        tess_tensor *qkv = tess_linear(x, OP_PARAM("qkv", 60, 20, TESS_NORMAL(0.3f)), NULL);
        qkv = tess_rope(qkv, (tess_rope_conf){.dim = 10, .rotary = 4, .of = 6, .turning = 5});
        return tess_linear(qkv, OP_PARAM("w", 20, 60, TESS_NORMAL(0.3f)), NULL);
    }
    x = tess_rope(x, (tess_rope_conf){.dim = 10, .rotary = 4, .last = true});
    return tess_rope(x, (tess_rope_conf){.dim = 10, .rotary = 6, .neighbours = layer % 2 == 0});
}
