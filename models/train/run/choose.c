/* Choosing a step: how it is laid out and where its tiles are, and what would do where there is too little for it. */
#include "codelets/codelets.h"
#include "models/train/run/run.h"
#include <stdlib.h>

enum { MiB = 1 << 20 };

/* Evaluations on a run's way: that of its data, and r->also. */
static int evaluations(const tess_run *r)
{
    return r->evaluates + r->alsos;
}

/* Makes the k-th of them. */
static tess_status make_evaluation(const tess_run *r, int k, tess_step **step)
{
    if (k < r->evaluates) return tess_run_step(r, false, step);
    const tess_step_conf conf = {.micro = r->evaluated};
    return tess_run_at_key(tess_step_new(r->also[k - r->evaluates], &conf, step));
}

/* Sets *bytes to what the evaluations' tiles take of RAM beside a step that trains. */
static tess_status eval_bytes(const tess_run *r, uint64_t *bytes)
{
    tess_step *step;
    tess_holds plan;
    uint64_t most = 0; /* scratch of a worker that a step which trains has no room for */
    *bytes = 0;
    for (int k = 0; k < evaluations(r); k++) {
        TESS_TRY(make_evaluation(r, k, &step));
        tess_step_holds(step, &plan);
        /* Tasks of that of data are forward tasks of the step that trains, whose workers have room for them. */
        const bool has_room = tess_gpus() == 0 && k < r->evaluates;
        if (!has_room && plan.resident[TESS_ROLE_SCRATCH] > most) most = plan.resident[TESS_ROLE_SCRATCH];
        *bytes += tess_holds_fixed(&plan, 0);
        tess_step_free(step);
    }
    *bytes += (uint64_t)r->limits.ram.workers * most;
    return TESS_OK;
}

/* The step in the way that suits its rooms best, whose RAM is as conf says; *guess: where RAM is too little, what may
 * do, else 0. */
static tess_status lay_out(tess_run *r, const tess_place_conf *conf, tess_step **step, uint64_t *guess)
{
    tess_limits limits = r->limits;
    tess_plan plan;
    limits.gpu = tess_run_gpu(r);
    limits.ram = *conf;
    const tess_status status =
        tess_run_at_key(tess_step_fit_within(r->net.output, &r->conf, &r->machine, &limits, step, &plan));
    const bool lacks = status == TESS_INVALID;
    *guess = lacks ? plan.ram.needed : 0;
    if (lacks && plan.gpu.needed) return tess_run_too_little_gpu(r, plan.gpu.needed);
    if (status == TESS_OK) r->plan = plan;
    return status;
}

/* What the step just placed keeps from an evaluation: all that is fixed, but for the workers' scratch, which is both's.
 */
static uint64_t taken_by_training(const tess_run *r, const tess_step *eval)
{
    tess_holds plan;
    tess_step_holds(eval, &plan);
    const uint64_t others = r->alsos && r->beside ? r->beside - tess_holds_fixed(&plan, 0) : 0,
                   fixed = r->plan.ram.fixed - r->beside + others;
    if (tess_gpus() > 0) return fixed;
    const uint64_t shared = (uint64_t)r->limits.ram.workers * plan.resident[TESS_ROLE_SCRATCH];
    return fixed > shared ? fixed - shared : 0;
}

/* Returns 0 if each evaluation has enough RAM beside the step just placed, else the RAM that one would need. Sets
 * r->eval_disk to the bytes of its tiles on disk. */
static uint64_t eval_lacks(tess_run *r, const tess_place_conf *conf)
{
    tess_place_conf beside = *conf;
    int64_t needed = 0;
    beside.slack = beside.slack_states = 0;
    beside.rates = (tess_rates){0};
    r->eval_disk = 0;
    for (int k = 0; k < evaluations(r); k++) {
        tess_placement placement = {0};
        tess_step *step = NULL;
        tess_status status = make_evaluation(r, k, &step);
        if (status == TESS_OK) beside.taken = taken_by_training(r, step);
        if (status == TESS_OK) status = tess_step_place(step, &beside, &placement);
        tess_step_free(step);
        if (status != TESS_OK && (int64_t)placement.needed > needed) needed = (int64_t)placement.needed;
        if (placement.disk > r->eval_disk) r->eval_disk = placement.disk;
    }
    if (evaluations(r)) tess_ranks_most(&needed, 1);
    return (uint64_t)needed;
}

/* The least RAM that would do, from a guess that may be too small; 0: none is found. What a placement asks for may lack
 * something else, so it is tried. */
static uint64_t find_least(tess_run *r, const tess_place_conf *conf, uint64_t guess)
{
    tess_place_conf tried = *conf;
    tess_step *step = NULL;
    tried.rates = (tess_rates){0};
    tried.ram = 0;
    while (guess > tried.ram) {
        tried.ram = guess;
        const tess_status status = lay_out(r, &tried, &step, &guess);
        tess_step_free(step);
        if (status == TESS_OK && !(guess = eval_lacks(r, &tried))) return tried.ram;
    }
    return 0;
}

uint64_t tess_run_least(tess_run *r)
{
    if (eval_bytes(r, &r->beside) != TESS_OK) return 0;
    r->limits.ram.taken = r->beside;
    const uint64_t least = find_least(r, &r->limits.ram, 1);
    return least ? tess_run_cap(least) : 0;
}

uint64_t tess_run_disk_least(const tess_run *r)
{
    return tess_disk_room(r->plan.ram.disk + r->eval_disk);
}

void tess_run_print_memory(const tess_run *r, const tess_step *step, FILE *out)
{
    tess_holds holds;
    tess_step_holds(step, &holds);
    const uint64_t ram =
        r->plan.disk_bytes ? r->machine.cpu_bytes : tess_holds_need(&holds, r->limits.ram.workers) + r->beside;
    fprintf(out, "memory    GPU %llu, RAM %llu, disk %llu bytes by plan%s\n", (unsigned long long)r->plan.gpu.memory,
            (unsigned long long)ram, (unsigned long long)(r->plan.disk_bytes ? tess_run_disk_least(r) : 0),
            tess_ranks() > 1 ? " of rank 0" : "");
}

/* memory.disk is said, and less than what was placed there needs. */
static bool lacks_disk(const tess_run *r)
{
    return r->caps.disk && r->caps.disk < tess_run_disk_least(r);
}

/* Names the caps that would do. */
static tess_status too_little_ram(tess_run *r, const tess_place_conf *conf, uint64_t guess)
{
    const uint64_t least = find_least(r, conf, guess);
    char would[128] = "", disk[64] = "";
    const char *name = r->caps.cpu_key;
    if (least && lacks_disk(r)) /* below that cap it would be the next to be refused */
        snprintf(disk, sizeof disk, " with memory.disk=%lluMiB", (unsigned long long)(tess_run_disk_least(r) / MiB));
    if (least)
        snprintf(would, sizeof would, " (%s=%llu%s%s would do)", name, (unsigned long long)(tess_run_cap(least) / MiB),
                 tess_run_cap_unit(name), disk);
    return tess_error(TESS_INVALID, name, "%s, which is too little for any step of this run%s",
                      tess_human_bytes((double)r->machine.cpu_bytes), would);
}

static tess_status check_disk(const tess_run *r, uint64_t needed)
{
    const uint64_t most = r->caps.disk;
    if (!most || needed <= most) return TESS_OK;
    return tess_error(TESS_INVALID, "memory.disk", "%s, but the run needs %s there (memory.disk=%lluMiB would do)",
                      tess_human_bytes((double)most), tess_human_bytes((double)needed),
                      (unsigned long long)(needed / MiB));
}

/* The disk tier's size; none where nothing rests there. */
tess_status tess_run_size_disk(tess_run *r)
{
    const uint64_t room = tess_run_disk_least(r);
    TESS_TRY(check_disk(r, room));
    r->plan.disk_bytes = !r->plan.ram.disk ? 0 : r->caps.disk ? r->caps.disk : room;
    if (r->plan.ram.disk == 0) r->machine.disk = NULL;
    return TESS_OK;
}

/* Whether r->also fit beside what a step that trains holds from step to step: they may be of other lengths. */
static tess_status fit_also(const tess_run *r, const tess_holds *train)
{
    uint64_t states = r->beside;
    for (int k = 0; k < TESS_ROLE_COUNT; k++)
        if (k != TESS_ROLE_WEIGHT && k != TESS_ROLE_SCRATCH) states += train->resident[k];
    for (int k = 0; k < r->alsos; k++) {
        tess_step *step;
        tess_holds plan;
        TESS_TRY(make_evaluation(r, r->evaluates + k, &step));
        tess_step_holds(step, &plan);
        tess_step_free(step);
        TESS_TRY(tess_run_fits(r, false, &plan, states));
    }
    return TESS_OK;
}

/* A step whose tiles all live in RAM, or on the GPU. Under a cap the rest of it is room for those that come and go: no
 * less than the plan says, so that a task in its turn never lacks any. Beside several GPUs StarPU keeps the cap. */
static tess_status fit(tess_run *r, const tess_step *step, bool train)
{
    tess_holds plan;
    tess_step_holds(step, &plan);
    TESS_TRY(tess_run_fits(r, train, &plan, r->beside));
    if (train) TESS_TRY(fit_also(r, &plan));
    r->plan.ram.room = tess_step_room(step, &r->machine, &r->limits, r->plan.gpu.room > 0);
    return TESS_OK;
}

/* What the step and the evaluations beside it have on disk, of the rank that has the most there. */
static uint64_t disk_of_all(tess_run *r, const tess_place_conf *conf)
{
    eval_lacks(r, conf);
    int64_t bytes = (int64_t)tess_run_disk_least(r);
    tess_ranks_most(&bytes, 1);
    return (uint64_t)bytes;
}

/* A step whose tiles on disk fit below memory.disk. Rates are measured, and what is chosen by them may have more there
 * than what moves the fewest bytes, which is the same every time and what an error names. */
static tess_status fit_disk(tess_run *r, tess_step **step)
{
    tess_place_conf conf = r->limits.ram;
    uint64_t guess;
    if (disk_of_all(r, &conf) <= r->caps.disk) return TESS_OK;
    tess_step_free(*step);
    conf.rates = (tess_rates){0};
    TESS_TRY(lay_out(r, &conf, step, &guess));
    if (r->limits.ram.rates.flops > 0)
        tess_step_forecast(*step, &r->limits.ram.rates, r->plan.ram.room, r->limits.ram.workers, &r->plan.ram.time);
    return check_disk(r, disk_of_all(r, &conf));
}

uint64_t tess_run_cpu_for(const tess_run *r, uint64_t disk)
{
    enum { TRIES = 6 };
    tess_run other;
    tess_place_conf conf = r->limits.ram;
    uint64_t guess, needed = tess_run_disk_least(r);
    conf.rates = (tess_rates){0};
    tess_status status = tess_run_open(r->c, r->rank, &other);
    other.machine = r->machine, other.limits = r->limits, other.beside = r->beside;
    for (int k = 0; k < TRIES && status == TESS_OK && needed > disk; k++) {
        tess_step *step = NULL;
        conf.ram += needed - disk;
        if (conf.ram > tess_ram_free()) break;
        status = lay_out(&other, &conf, &step, &guess);
        needed = other.plan.ram.disk ? tess_run_disk_least(&other) : 0;
        tess_step_free(step);
    }
    tess_run_close(&other);
    if (status != TESS_OK) tess_error_clear();
    return status == TESS_OK && needed <= disk ? conf.ram : 0;
}

tess_status tess_run_train_step(tess_run *r, tess_step **step)
{
    uint64_t guess;
    TESS_TRY(tess_ranks_agree(eval_bytes(r, &r->beside)));
    r->limits.ram.taken = r->beside;
    const tess_status status = lay_out(r, &r->limits.ram, step, &guess);
    if (status != TESS_OK) return guess ? too_little_ram(r, &r->limits.ram, guess) : status;
    if (!r->machine.disk) return fit(r, *step, true);
    if (r->caps.disk) TESS_TRY(fit_disk(r, step));
    return tess_run_size_disk(r);
}

static tess_status place_eval(tess_run *r, bool alone, tess_step *step)
{
    if (alone) TESS_TRY(tess_run_place_gpu(r, step, &r->plan.gpu));
    tess_gpu_placement gpu;
    const tess_gpu_conf beside = {.memory = r->plan.gpu.room}; /* what has no room even so makes some */
    const tess_status fits = !alone && r->plan.gpu.room ? tess_step_place_gpu(step, &beside, &gpu) : TESS_OK;
    if (fits != TESS_OK && fits != TESS_INVALID) return fits;
    if (!r->machine.disk) return alone && r->machine.cpu_bytes ? fit(r, step, false) : TESS_OK;
    tess_placement placement;
    tess_place_conf conf = r->limits.ram;
    conf.alone = alone;
    conf.taken = alone ? 0 : taken_by_training(r, step);
    conf.slack = conf.slack_states = 0;
    if (!alone) conf.rates = (tess_rates){0};
    TESS_TRY(tess_run_at_key(tess_step_place(step, &conf, &placement)));
    if (alone)
        r->plan.ram = placement;
    else if (placement.disk > r->eval_disk)
        r->eval_disk = placement.disk;
    return tess_run_size_disk(r);
}

tess_status tess_run_place_beside(tess_run *r, tess_step *step)
{
    return place_eval(r, false, step);
}

tess_status tess_run_also_step(tess_run *r, int k, bool alone, tess_step **step)
{
    TESS_TRY(make_evaluation(r, r->evaluates + k, step));
    return place_eval(r, alone, *step);
}

tess_status tess_run_eval_step(tess_run *r, bool alone, tess_step **step)
{
    TESS_TRY(tess_run_step(r, false, step));
    return place_eval(r, alone, *step);
}
