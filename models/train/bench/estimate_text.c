/* The words of `tessera estimate`. In each part of a tier the lines before "in all" add up to it; a line that begins
 * with "of it" is within the one above. */
#include "codelets.h"
#include "estimate_impl.h"
#include <stdlib.h>
#include <string.h>

static void line(FILE *out, const char *what, uint64_t bytes)
{
    fprintf(out, "  %-44s %12s\n", what, tess_human_bytes((double)bytes));
}

/* A part of a sum, left out where there is nothing of it. */
static void part(FILE *out, const char *what, uint64_t bytes)
{
    if (bytes) line(out, what, bytes);
}

static const char *const role_name[TESS_ROLE_COUNT] = {
    [TESS_ROLE_WEIGHT] = "weights",     [TESS_ROLE_MASTER] = "fp32 masters",    [TESS_ROLE_MOMENT] = "moments",
    [TESS_ROLE_GRADIENT] = "gradients", [TESS_ROLE_ACTIVATION] = "activations", [TESS_ROLE_CACHE] = "keys and values",
};

/* Tiles by what they are for. */
static void roles(FILE *out, const char *more, const uint64_t *bytes)
{
    for (int r = 0; r < TESS_ROLE_COUNT; r++) {
        char what[64];
        snprintf(what, sizeof what, "%s%s", role_name[r] ? role_name[r] : "", more);
        if (role_name[r]) part(out, what, bytes[r]);
    }
}

static uint64_t sum_of_roles(const uint64_t *bytes)
{
    uint64_t sum = 0;
    for (int r = 0; r < TESS_ROLE_COUNT; r++) sum += role_name[r] ? bytes[r] : 0;
    return sum;
}

static void workers(FILE *out, const char *format, uint64_t bytes)
{
    char what[64];
    const int n = tess_cores();
    snprintf(what, sizeof what, format, n, n == 1 ? "" : "s");
    part(out, what, bytes);
}

/* What a cap does not count: see docs/memory.md. `buffers`: of the workers' products, where they are not in the cap. */
static void outside(FILE *out, uint64_t buffers)
{
    fprintf(out, "  beside these the process has libraries, code and stacks: at most 300 MiB\n");
    if (buffers)
        fprintf(out, "  and its workers buffers for products: at most %s\n", tess_human_bytes((double)buffers));
}

/* ---- everything in RAM ---- */

static uint64_t needs(const tess_run *r, const tess_plan *p)
{
    return p->peak_ram + (uint64_t)(tess_cores() - 1) * p->resident[TESS_ROLE_SCRATCH] + r->beside;
}

void tess_estimate_needs(FILE *out, const tess_run *r, const tess_plan *p, uint64_t limit)
{
    const bool capped = r->c->memory.cpu > 0;
    const uint64_t needed = needs(r, p),
                   worker = tess_mm_bytes(2, tess_run_dtype(r->c)) - tess_mm_bytes(1, tess_run_dtype(r->c));
    fprintf(out, "cpu (RAM), when it holds the most\n");
    roles(out, "", p->ram);
    part(out, "tokens, losses and norms", p->ram[TESS_ROLE_INPUT] + p->ram[TESS_ROLE_SCALAR]);
    workers(out, "scratch of %d worker%s", (uint64_t)tess_cores() * p->resident[TESS_ROLE_SCRATCH]);
    part(out, "tokens and scratch of evaluations", r->beside);
    line(out, "in all", needed);
    line(out, capped ? "the cap, memory.cpu" : "free, less a margin (no memory.cpu)", limit);
    if (limit >= needed && capped) line(out, "left of it, for tasks that start early", limit - needed);
    outside(out, (uint64_t)tess_cores() * worker);
}

/* ---- tiers ---- */

static void print_gpu(FILE *out, const tess_run *r)
{
    const tess_gpu_placement *p = &r->gpu;
    fprintf(out, "gpu\n");
    if (!p->room) {
        const uint64_t gpu = tess_gpu_bytes(r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0);
        if (gpu) line(out, "memory, of which StarPU takes what tasks use", gpu);
        if (!gpu) fprintf(out, "  nothing\n");
        return;
    }
    line(out, "tiles that come and go by plan", p->room);
    line(out, "of it what lives there alone", p->home);
    part(out, "StarPU's, for inputs and scratch", p->memory - p->room);
    line(out, "in all, for tiles", p->memory);
    line(out, "copied to it in a step", p->read);
    line(out, "copied back", p->written);
    line(out, "no plan copies less, both ways, than", p->bound);
    if (r->by_layer && !r->disk) fprintf(out, "  all micro-batches pass a layer while it is there\n");
}

/* RAM over a disk: the plan shares out all of the cap. */
static void print_ram(FILE *out, const tess_run *r, const tess_plan *p, uint64_t least)
{
    const tess_placement *place = &r->place;
    fprintf(out, "cpu (RAM)\n");
    roles(out, " that stay", p->stays);
    line(out, "room for tiles that come and go", place->room - sum_of_roles(p->stays));
    line(out, "of it for tiles on their way", place->slack);
    part(out, "tokens, losses and norms", p->resident[TESS_ROLE_INPUT] + p->resident[TESS_ROLE_SCALAR]);
    workers(out, "scratch of %d worker%s", (uint64_t)tess_cores() * p->resident[TESS_ROLE_SCRATCH]);
    workers(out, "buffers for products of %d worker%s", place->buffers);
    part(out, "tokens and scratch of evaluations", r->beside);
    line(out, "whole pages, buffers between two tiles", place->margin);
    line(out, r->c->memory.cpu > 0 ? "in all, memory.cpu" : "in all, of what is free (no memory.cpu)", r->ram);
    part(out, "the least that memory.cpu may be", least);
    outside(out, 0);
}

static bool has_experts(const tess_graph *g)
{
    for (int k = 0; k < tess_graph_params(g); k++)
        if (tess_param_members(tess_graph_param(g, k)) > 1) return true;
    return false;
}

static void print_disk(FILE *out, const tess_run *r, const tess_plan *p)
{
    const tess_placement *place = &r->place;
    fprintf(out, "disk (%s)\n", r->disk);
    roles(out, "", p->on_disk);
    line(out, "tiles that rest there", place->disk);
    line(out, "spare room of its file", r->disk_bytes - place->disk);
    line(out, r->c->memory.disk > 0 ? "in all, memory.disk" : "in all", r->disk_bytes);
    if (r->c->memory.disk > 0) line(out, "the least that memory.disk may be", tess_run_disk_least(r));
    line(out, "read in a step", place->read);
    line(out, "written in a step", place->written);
    line(out, "no plan moves less, both ways, than", place->bound);
    if (has_experts(r->g))
        fprintf(out, "  experts count as if tokens used all of them; those that none chose are not read\n");
    if (r->by_layer) fprintf(out, "  all micro-batches pass a layer while it is in RAM\n");
    if (r->late) fprintf(out, "  updates wait for the norm and come in the next step's forward pass\n");
}

void tess_estimate_tiers(FILE *out, const tess_run *r, const tess_plan *p, uint64_t limit, uint64_t least)
{
    if (r->disk || r->gpu.room) {
        uint64_t most[TESS_ROLE_COUNT];
        for (int role = 0; role < TESS_ROLE_COUNT; role++) most[role] = p->resident[role] + p->peak[role];
        fprintf(out, "tiles, wherever they are; gradients and activations when there are most\n");
        roles(out, "", most);
    }
    print_gpu(out, r);
    if (r->disk)
        print_ram(out, r, p, least);
    else
        tess_estimate_needs(out, r, p, limit);
    if (r->disk)
        print_disk(out, r, p);
    else
        fprintf(out, "disk\n  nothing\n");
}

void tess_estimate_messages(FILE *out, uint64_t sent)
{
    fprintf(out, "messages\n");
    line(out, "sent to other ranks in a step", sent);
}

/* ---- time ---- */

/* "3.17 TFLOP" into one of a few rotating buffers. */
static const char *show_flops(double flops)
{
    static char text[2][32];
    static int at;
    static const char *const unit[] = {"FLOP", "kFLOP", "MFLOP", "GFLOP", "TFLOP", "PFLOP", "EFLOP"};
    size_t u = 0;
    for (; flops >= 999.5 && u + 1 < sizeof unit / sizeof *unit; u++) flops /= 1000;
    at = !at;
    snprintf(text[at], sizeof text[at], "%.3g %s", flops, unit[u]);
    return text[at];
}

static void seconds(FILE *out, const char *what, double s)
{
    fprintf(out, "  %-44s %10.3f s\n", what, s);
}

void tess_estimate_time(FILE *out, const tess_run *r, const tess_plan *p, const tess_forecast *t)
{
    const double tokens = (double)(r->batch * r->length) / t->seconds, rest = t->seconds - t->work;
    const char *bound = t->work >= t->read && t->work >= t->write ? "compute"
                        : t->read >= t->write                     ? "reading from disk"
                                                                  : "writing to disk";
    fprintf(out, "time of a step: %s of matrices", show_flops(p->flops + p->recompute_flops));
    if (p->recompute_flops > 0) fprintf(out, " (of it %s recomputed)", show_flops(p->recompute_flops));
    fprintf(out, ", and %s that other tasks read and write\n", tess_human_bytes(p->bytes));
    seconds(out, "compute, all workers together", t->work);
    seconds(out, r->disk ? "workers that wait, for tasks or for the disk" : "workers that wait for others' tasks",
            rest > 0 ? rest : 0);
    seconds(out, "in all", rest > 0 ? t->seconds : t->work);
    if (r->disk) {
        char what[64];
        snprintf(what, sizeof what, "meanwhile reading from disk at %.2f GB/s", r->conf.rates.read * 1e-9);
        seconds(out, what, t->read);
        snprintf(what, sizeof what, "meanwhile writing to disk at %.2f GB/s", r->conf.rates.write * 1e-9);
        seconds(out, what, t->write);
    }
    fprintf(out, "  %.*f tokens/s, bound by %s\n", tokens < 10 ? 2 : 0, tokens, bound);
}
