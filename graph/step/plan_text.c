/* The printed plan. In each part of a level the lines before "in all" add up to it; a line that begins with "of it" is
 * within the one above. */
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

struct page {
    FILE *out;
    const tess_plan *plan;
    const tess_plan_words *words;
    tess_holds holds;
};

static void line(const struct page *p, const char *what, uint64_t bytes)
{
    fprintf(p->out, "  %-44s %12s\n", what, tess_human_bytes((double)bytes));
}

/* A part of a sum, left out where there is nothing of it. */
static void part(const struct page *p, const char *what, uint64_t bytes)
{
    if (bytes) line(p, what, bytes);
}

static void named(const struct page *p, const char *format, const char *name, uint64_t bytes)
{
    char what[64];
    snprintf(what, sizeof what, format, name);
    part(p, what, bytes);
}

static const char *const role_name[TESS_ROLE_COUNT] = {
    [TESS_ROLE_WEIGHT] = "weights",     [TESS_ROLE_MASTER] = "fp32 masters",    [TESS_ROLE_MOMENT] = "moments",
    [TESS_ROLE_GRADIENT] = "gradients", [TESS_ROLE_ACTIVATION] = "activations", [TESS_ROLE_CACHE] = "keys and values",
};

/* Tiles by what they are for; returns the sum. */
static uint64_t roles(const struct page *p, const char *more, const uint64_t *bytes)
{
    uint64_t sum = 0;
    for (int r = 0; r < TESS_ROLE_COUNT; r++) {
        char what[64];
        if (!role_name[r]) continue;
        snprintf(what, sizeof what, "%s%s", role_name[r], more);
        part(p, what, bytes[r]);
        sum += bytes[r];
    }
    return sum;
}

static void workers(const struct page *p, const char *format, uint64_t bytes)
{
    char what[64];
    const int n = p->plan->workers;
    snprintf(what, sizeof what, format, n, n == 1 ? "" : "s");
    part(p, what, bytes);
}

/* What lies beside the tiles that come and go. */
static void beside(const struct page *p, const uint64_t *bytes, uint64_t buffers)
{
    part(p, "tokens, losses and norms", bytes[TESS_ROLE_INPUT] + bytes[TESS_ROLE_SCALAR]);
    workers(p, "scratch of %d worker%s", (uint64_t)p->plan->workers * p->holds.resident[TESS_ROLE_SCRATCH]);
    workers(p, "buffers for products of %d worker%s", buffers);
    part(p, "tokens and scratch of evaluations", p->words->beside);
}

/* What a cap does not count: see docs/memory.md. `buffers`: of the workers' products, where they are not in the cap. */
static void outside(const struct page *p, uint64_t buffers)
{
    fprintf(p->out, "  beside these the process has libraries, code and stacks: at most 300 MiB\n");
    if (buffers)
        fprintf(p->out, "  and its workers buffers for products: at most %s\n", tess_human_bytes((double)buffers));
}

static void needs(const struct page *p, tess_dtype t)
{
    const tess_plan_words *w = p->words;
    const uint64_t n = (uint64_t)p->plan->workers, worker = tess_mm_bytes(2, t) - tess_mm_bytes(1, t),
                   needed = tess_holds_need(&p->holds, (int)n) + w->beside;
    fprintf(p->out, "cpu (RAM), when it holds the most\n");
    roles(p, "", p->holds.ram);
    beside(p, p->holds.ram, 0);
    line(p, "in all", needed);
    if (!w->capped) part(p, "more, of tasks that start early", p->plan->ram.time.early);
    named(p, w->capped ? "the cap, %s" : "free, less a margin (no %s)", w->cpu, w->limit);
    if (w->limit >= needed && w->capped) line(p, "left of it, for tasks that start early", w->limit - needed);
    outside(p, n * worker);
}

static void gpu(const struct page *p)
{
    const tess_gpu_placement *g = &p->plan->gpu;
    fprintf(p->out, "gpu\n");
    if (!g->room) {
        part(p, "memory that StarPU gives to tasks as they use it", p->words->gpu_memory);
        if (!p->words->gpu_memory) fprintf(p->out, "  nothing\n");
        return;
    }
    line(p, "tiles that come and go by plan", g->room);
    line(p, "of it what lives there alone", g->home);
    part(p, "StarPU's, for inputs and scratch", g->memory - g->room);
    line(p, "in all, for tiles", g->memory);
    line(p, "copied to it in a step", g->read);
    line(p, "copied back", g->written);
    line(p, "no plan copies less, both ways, than", g->bound);
    if (p->plan->by_layer && !p->words->path) fprintf(p->out, "  all micro-batches pass a layer while it is there\n");
    if (p->plan->pairs)
        fprintf(p->out, "  micro-batches go two by two: one computes while ranks sum what the other has made\n");
}

static void late(const struct page *p)
{
    if (p->plan->late) fprintf(p->out, "  updates wait for the norm and come in the next step's forward pass\n");
}

/* RAM over a disk: the plan shares out all of the cap. */
static void ram(const struct page *p)
{
    const tess_placement *place = &p->plan->ram;
    fprintf(p->out, "cpu (RAM)\n");
    const uint64_t stays = roles(p, " that stay", p->holds.stays);
    line(p, "room for tiles that come and go", place->room - stays);
    line(p, "of it for tiles on their way", place->slack);
    beside(p, p->holds.resident, place->buffers);
    line(p, "whole pages, buffers between two tiles", place->margin);
    named(p, p->words->capped ? "in all, %s" : "in all, of what is free (no %s)", p->words->cpu, p->plan->cpu_bytes);
    named(p, "the least that %s may be", p->words->cpu, p->words->least_cpu);
    outside(p, 0);
}

static bool has_experts(const tess_graph *g)
{
    for (int k = 0; k < tess_graph_params(g); k++)
        if (tess_param_members(tess_graph_param(g, k)) > 1) return true;
    return false;
}

static void disk(const struct page *p, const tess_graph *g)
{
    const tess_plan *plan = p->plan;
    const tess_placement *place = &plan->ram;
    fprintf(p->out, p->words->path ? "disk (%s)\n" : "disk\n", p->words->path);
    roles(p, "", p->holds.on_disk);
    line(p, "tiles that rest there", place->disk);
    line(p, "spare room of its file", plan->disk_bytes - place->disk);
    named(p, p->words->disk ? "in all, %s" : "in all", p->words->disk, plan->disk_bytes);
    if (p->words->disk) named(p, "the least that %s may be", p->words->disk, p->words->least_disk);
    line(p, "read in a step", place->read);
    line(p, "written in a step", place->written);
    char all[64];
    snprintf(all, sizeof all, "written in %lld steps", (long long)p->words->steps);
    if (p->words->steps > 1) line(p, all, place->written * (uint64_t)p->words->steps);
    line(p, "no plan moves less, both ways, than", place->bound);
    if (has_experts(g))
        fprintf(p->out, "  experts count as if tokens used all of them; those that none chose are not read\n");
    if (plan->by_layer) fprintf(p->out, "  all micro-batches pass a layer while it is in RAM\n");
    late(p);
}

/* What blocks need not compute again, by op. */
static void kept(const struct page *p, const tess_step *step)
{
    const tess_graph *g = step->g;
    if (!p->plan->again) return;
    TESS_FREED bool *keeps = tess_alloc((size_t)g->nodes + 1);
    tess_lower_keeps(g, &step->conf, keeps);
    fprintf(p->out, "recomputation\n  kept are %d of %d activations", p->plan->kept, p->plan->again);
    for (int k = 0; k < g->nodes; k++) {
        const char *op = g->node[k]->op->name;
        int n = 0;
        for (int i = k; i < g->nodes && keeps[k]; i++) {
            if (!keeps[i] || strcmp(g->node[i]->op->name, op)) continue;
            if (i > k) keeps[i] = false;
            n++;
        }
        if (n) fprintf(p->out, ", %d of %s", n, op);
    }
    fprintf(p->out, "\n");
}

void tess_plan_print_needs(const tess_step *step, int workers, const tess_plan_words *words, FILE *out)
{
    struct page p = {.out = out, .plan = &(tess_plan){.workers = workers}, .words = words};
    tess_step_holds(step, &p.holds);
    needs(&p, tess_step_dtype(step));
}

void tess_plan_print_with(const tess_plan *plan, const tess_step *step, const tess_plan_words *words, FILE *out)
{
    struct page p = {.out = out, .plan = plan, .words = words};
    tess_step_holds(step, &p.holds);
    if (plan->disk_bytes || plan->gpu.room) {
        uint64_t most[TESS_ROLE_COUNT];
        for (int r = 0; r < TESS_ROLE_COUNT; r++) most[r] = p.holds.resident[r] + p.holds.peak[r];
        fprintf(out, "tiles, wherever they are; gradients and activations when there are most\n");
        roles(&p, "", most);
    }
    kept(&p, step);
    gpu(&p);
    if (plan->disk_bytes) {
        ram(&p);
        disk(&p, step->g);
        return;
    }
    needs(&p, tess_step_dtype(step));
    late(&p);
    fprintf(out, "disk\n  nothing\n");
}

void tess_plan_print(const tess_plan *plan, const tess_step *step, FILE *out)
{
    const tess_plan_words words = {.cpu = "cpu_bytes",
                                   .capped = plan->cpu_bytes > 0,
                                   .limit = plan->cpu_bytes ? plan->cpu_bytes : tess_ram_free()};
    tess_plan_print_with(plan, step, &words, out);
}
