/* The words of `tessera estimate` around the plan of its step. */
#include "codelets/codelets.h"
#include "models/train/bench/estimate_impl.h"
#include <string.h>

static tess_plan_words words_of(const tess_run *r, uint64_t limit, uint64_t least)
{
    return (tess_plan_words){.cpu = r->caps.cpu_key,
                             .capped = r->caps.cpu > 0,
                             .disk = r->caps.disk ? "memory.disk" : NULL,
                             .path = r->machine.disk,
                             .limit = limit,
                             .least_cpu = least,
                             .least_disk = tess_run_disk_least(r),
                             .beside = r->beside,
                             .steps = r->c->steps != TESS_CONFIG_AUTO ? r->c->steps : 0,
                             .gpu_memory = r->plan.gpu.room ? 0 : tess_gpu_bytes(r->caps.gpu)};
}

void tess_estimate_needs(FILE *out, const tess_run *r, const tess_step *step, uint64_t limit)
{
    const tess_plan_words words = words_of(r, limit, 0);
    tess_plan_print_needs(step, tess_cores(), &words, out);
}

void tess_estimate_tiers(FILE *out, const tess_run *r, const tess_step *step, uint64_t limit, uint64_t least)
{
    const tess_plan_words words = words_of(r, limit, least);
    tess_plan_print_with(&r->plan, step, &words, out);
}

void tess_estimate_messages(FILE *out, const tess_run *r, const tess_holds *p)
{
    fprintf(out, "messages\n  %-44s %12s\n", "sent to other ranks in a step", tess_human_bytes((double)p->sent));
    if (!p->sent_between) return;
    char what[64];
    snprintf(what, sizeof what, "and behind every %lld of them", (long long)r->conf.local.steps);
    fprintf(out, "  %-44s %12s\n", what, tess_human_bytes((double)p->sent_between));
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

static void print_flops(FILE *out, const tess_holds *p)
{
    fprintf(out, "time of a step: %s of matrices", show_flops(p->flops + p->recompute_flops));
    if (p->recompute_flops > 0) fprintf(out, " (of it %s beside the model)", show_flops(p->recompute_flops));
}

/* Who is at work for at least so much of the step bounds it. */
static const double MOST = 0.85;

void tess_estimate_gpu_time(FILE *out, const tess_run *r, const tess_holds *p, const tess_rehearsed *t)
{
    const struct {
        const char *what, *bound;
        double seconds;
    } part[] = {{"the GPU at work", "the GPU", t->gpu},
                {"the cores at work", "the cores", t->cores},
                {"copies from RAM to the GPU", "copies to the GPU", t->to_gpu},
                {"copies back", "copies from the GPU", t->from_gpu},
                {"messages to other ranks and from them", "messages", t->messages},
                {"reading from the drive", "reading from the drive", t->read},
                {"writing to the drive", "writing to the drive", t->written}};
    const double tokens = (double)tess_run_tokens(r) / t->seconds;
    const char *bound = NULL;
    double most = MOST * t->seconds;
    print_flops(out, p);
    fputc('\n', out);
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) {
        if (i < 2 || part[i].seconds > 0) seconds(out, part[i].what, part[i].seconds);
        if (part[i].seconds >= most) most = part[i].seconds, bound = part[i].bound;
    }
    seconds(out, "in all", t->seconds);
    fprintf(out, "  %.*f tokens/s, bound by %s\n", tokens < 10 ? 2 : 0, tokens,
            bound ? bound : "tasks that wait for each other");
}

void tess_estimate_time(FILE *out, const tess_run *r, const tess_holds *p, const tess_forecast *t)
{
    const double tokens = (double)tess_run_tokens(r) / t->seconds, rest = t->seconds - t->work;
    const char *bound = t->work >= t->read && t->work >= t->write ? "compute"
                        : t->read >= t->write                     ? "reading from disk"
                                                                  : "writing to disk";
    print_flops(out, p);
    fprintf(out, ", and %s that other tasks read and write\n", tess_human_bytes(p->bytes));
    seconds(out, "compute, all workers together", t->work);
    seconds(out,
            r->machine.disk ? "workers that wait, for tasks or for the disk" : "workers that wait for others' tasks",
            rest > 0 ? rest : 0);
    seconds(out, "in all", rest > 0 ? t->seconds : t->work);
    if (r->machine.disk) {
        char what[64];
        snprintf(what, sizeof what, "meanwhile reading from disk at %.2f GB/s", r->limits.ram.rates.read * 1e-9);
        seconds(out, what, t->read);
        snprintf(what, sizeof what, "meanwhile writing to disk at %.2f GB/s", r->limits.ram.rates.write * 1e-9);
        seconds(out, what, t->write);
    }
    fprintf(out, "  %.*f tokens/s, bound by %s\n", tokens < 10 ? 2 : 0, tokens, bound);
}
