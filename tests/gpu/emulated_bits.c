/* Bits of their own for an emulated GPU's bodies. On a GPU a body may round otherwise than another that computes the
 * same: a product with gelu in its epilogue takes the sum before it is rounded, gelu alone takes it after. The bodies
 * that run here are the CPU's, where fused and alone are the same; so with TESS_EMULATED_OWN_BITS=1 what a body writes
 * gets last bits that depend on the values and on the codelet's name. A value that two codelets make, in one run or in
 * two that are placed otherwise, then shows in the losses.
 *
 * Left as they are: what a codelet promises (either), what moves values or counts, and the parts of fusions that round
 * between them, as the kernels of norms do. */
#include "codelets/codelets.h"
#include "tests/gpu/emulated_cuda.h"
#include <stdlib.h>
#include <string.h>

static const char *const own[] = {"linear",       "gelu",    "attention", "swiglu", "silu",  "mul",
                                  "rope",         "dropout", "relu",      "tanh",   "scale", "cross_entropy_g",
                                  "expert_linear"};

static bool has_own(const tess_codelet *cl)
{
    for (size_t i = 0; !cl->either && i < sizeof own / sizeof *own; i++)
        if (!strncmp(cl->name, own[i], strlen(own[i]))) return true;
    return false;
}

/* The last bit of a float, or of the first of two halves, by the bits above it. Zeros stay: they may be nobody's. */
static uint32_t bits_of(uint32_t name, uint32_t word)
{
    const uint32_t above = word >> 1 & 0x7fff, mixed = (above ^ name) * 2654435761u;
    return !above || mixed >> 30 ? word : (word & ~1u) | (mixed >> 29 & 1);
}

/* Of what the body changed. */
static void run_one(const tess_codelet *cl, tess_body body, const tess_work *w)
{
    uint32_t name = 2166136261u, **before = NULL;
    for (const char *c = cl->name; *c; c++) name = (name ^ (unsigned char)*c) * 16777619u;
    before = calloc(w->nbuf + 1, sizeof *before);
    for (unsigned i = 0; before && i < w->nbuf; i++)
        if (w->buf[i].ptr && (before[i] = malloc(w->buf[i].bytes + 4)))
            memcpy(before[i], w->buf[i].ptr, w->buf[i].bytes);
    body(w);
    for (unsigned i = 0; before && i < w->nbuf; i++) {
        uint32_t *now = w->buf[i].ptr;
        for (size_t k = 0; before[i] && k < w->buf[i].bytes / 4; k++)
            if (now[k] != before[i][k]) now[k] = bits_of(name, now[k]);
        free(before[i]);
    }
    free(before);
}

/* What is written and not read holds nothing of who had the place before: it might be what the body writes. */
static void forget(const tess_work *w)
{
    for (unsigned i = 0; i < w->nbuf && i < w->task->nuse; i++)
        if (w->buf[i].ptr && (w->task->use[i].mode & (TESS_RW | TESS_SCRATCH)) == TESS_W)
            memset(w->buf[i].ptr, 0xff, w->buf[i].bytes);
}

tess_body emulated_before_bodies(void)
{
    return getenv("TESS_EMULATED_OWN_BITS") ? forget : NULL;
}

void emulated_run_body(const tess_codelet *cl, tess_body body, const tess_work *w)
{
    if (cl && body != forget && getenv("TESS_EMULATED_OWN_BITS") && has_own(cl))
        run_one(cl, body, w);
    else
        body(w);
}
