/* DeepSpeed's learning-rate schedules, in its order of operations, so that the doubles are the same.
 *
 * Step k, counted from 0, uses what the class gives at last_batch_iteration = k, called `i` below. That is the rate
 * which DeepSpeed prints for the step; its engine, which advances the scheduler behind the optimizer's step, lets the
 * optimizer have it one step later.
 */
#include "models/train/loop/schedule_impl.h"
#include <math.h>

typedef const tess_config conf;

void tess_schedule_settle(tess_config *c)
{
    int64_t *total = &c->scheduler.params.total_num_steps, *warmup = &c->scheduler.params.warmup_num_steps;
    if (*total == TESS_CONFIG_AUTO) *total = c->steps;
    const int64_t all = c->steps == TESS_CONFIG_AUTO ? *total : c->steps;
    *warmup = tess_config_steps(*warmup, all);
    c->scheduler.params.decay_num_steps = tess_config_steps(c->scheduler.params.decay_num_steps, all);
}

static bool of_transformers(conf *c)
{
    return c->scheduler.type == TESS_SCHEDULER_COSINE || c->scheduler.type == TESS_SCHEDULER_WSD;
}

/* From 0 to 1 over n steps, and `after` them. */
static double rise(conf *c, double i, double n, double after)
{
    if (i >= n) return after;
    if (c->scheduler.params.warmup_type == TESS_WARMUP_LINEAR || of_transformers(c)) return i / n;
    return 1.0 / log(n) * log(i + 1);
}

/* The logarithm of one step would divide by zero. DeepSpeed has no rise of 0 steps; here there is none then. */
static double warmup_steps(conf *c)
{
    const double n = (double)c->scheduler.params.warmup_num_steps;
    return n <= 0 ? 0 : fmax(of_transformers(c) ? 1 : 2, n);
}

static double warmup(conf *c, double i)
{
    double n = warmup_steps(c), total = (double)c->scheduler.params.total_num_steps, after = 1;
    double least = c->scheduler.params.warmup_min_lr, most = c->scheduler.params.warmup_max_lr;
    if (c->scheduler.type == TESS_SCHEDULER_WARMUP_DECAY) after = fmax(0, (total - i) / fmax(1, total - n));
    return least + (most - least) * rise(c, i, n, after);
}

static double cosine(conf *c, double i)
{
    double n = warmup_steps(c), decay = fmax(1, (double)c->scheduler.params.total_num_steps - n);
    double first = c->scheduler.params.warmup_min_ratio, last = c->scheduler.params.cos_min_ratio, ratio;
    const bool ahead = c->scheduler.type == TESS_SCHEDULER_WARMUP_COSINE; /* of transformers, by a step */
    if (n > 0 && i < n)
        ratio = first + rise(c, i, n, 1) * (1 - first);
    else
        ratio = fmax(0, last + (1 - last) * ((1 + cos(M_PI * fmin(1, (i - n + ahead) / decay))) / 2));
    return c->optimizer.params.lr * ratio;
}

static double wsd(conf *c, double i)
{
    const double n = warmup_steps(c), decay = fmax(0, (double)c->scheduler.params.decay_num_steps);
    const double at = i - ((double)c->scheduler.params.total_num_steps - decay); /* in the decay */
    const double x = fmin(1, at / fmax(1, decay));
    double least = c->scheduler.params.cos_min_ratio, height = 1;
    if (i < n) {
        least = c->scheduler.params.warmup_min_ratio;
        height = rise(c, i, n, 1);
    } else if (at >= 0) {
        const int type = c->scheduler.params.decay_type;
        height = type == TESS_DECAY_COSINE ? (1 + cos(M_PI * x)) / 2 : 1 - (type == TESS_DECAY_LINEAR ? x : sqrt(x));
    }
    return c->optimizer.params.lr * (height * (1 - least) + least);
}

static double cycle_size(conf *c)
{
    return (double)c->scheduler.params.cycle_first_step_size + (double)c->scheduler.params.cycle_second_step_size;
}

/* Returns the height in whole stairs, where `stairs` of them lead up to the top. */
static double stair(conf *c, double i, double stairs)
{
    double size = cycle_size(c), first = (double)c->scheduler.params.cycle_first_step_size, at = fmod(i + 1, size);
    return floor(at <= first ? at * stairs / first : (size - at) * stairs / (size - first)) / stairs;
}

/* Where in the cycle: 0 at its ends, 1 at its top. */
static double cycle_height(conf *c, double i)
{
    double size = cycle_size(c), top = (double)c->scheduler.params.cycle_first_step_size / size;
    double x = 1 + (i + 1) / size - floor(1 + (i + 1) / size);
    double stairs = (double)c->scheduler.params.cycle_first_stair_count;
    if (x > top && c->scheduler.params.cycle_second_stair_count != TESS_CONFIG_AUTO)
        stairs = (double)c->scheduler.params.cycle_second_stair_count;
    if (stairs > 0) return stair(c, i, stairs);
    return x <= top ? x / top : (x - 1) / (top - 1);
}

/* Intervals of decay since the cycle ended, 0 when decay is off. */
static double cycle_decay(conf *c, double i)
{
    if (!c->scheduler.params.decay_step_size) return 0;
    return (i - cycle_size(c) + 1) / (double)c->scheduler.params.decay_step_size;
}

static double one_cycle(conf *c, double i)
{
    double least = c->scheduler.params.cycle_min_lr, most = c->scheduler.params.cycle_max_lr;
    if (i < cycle_size(c)) return least + (most - least) * cycle_height(c, i);
    return least / (1 + c->scheduler.params.decay_lr_rate * cycle_decay(c, i));
}

static double range_test(conf *c, double i)
{
    double interval = (i + 1) / (double)c->scheduler.params.lr_range_test_step_size;
    if (c->scheduler.params.lr_range_test_staircase) interval = floor(interval);
    return c->scheduler.params.lr_range_test_min_lr * (1 + c->scheduler.params.lr_range_test_step_rate * interval);
}

double tess_schedule_lr(conf *c, int64_t step)
{
    double i = (double)step;
    switch ((tess_scheduler_type)c->scheduler.type) {
    case TESS_SCHEDULER_NONE:
        break;
    case TESS_SCHEDULER_WARMUP:
    case TESS_SCHEDULER_WARMUP_DECAY:
        return warmup(c, i);
    case TESS_SCHEDULER_WARMUP_COSINE:
    case TESS_SCHEDULER_COSINE:
        return cosine(c, i);
    case TESS_SCHEDULER_WSD:
        return wsd(c, i);
    case TESS_SCHEDULER_ONE_CYCLE:
        return one_cycle(c, i);
    case TESS_SCHEDULER_RANGE_TEST:
        return range_test(c, i);
    }
    return c->optimizer.params.lr;
}

bool tess_schedule_rests(conf *c)
{
    switch ((tess_scheduler_type)c->scheduler.type) {
    case TESS_SCHEDULER_NONE:
    case TESS_SCHEDULER_WARMUP_COSINE:
    case TESS_SCHEDULER_COSINE:
    case TESS_SCHEDULER_WSD:
        return c->optimizer.params.lr == 0;
    case TESS_SCHEDULER_WARMUP:
    case TESS_SCHEDULER_WARMUP_DECAY:
        return c->scheduler.params.warmup_min_lr == 0 && c->scheduler.params.warmup_max_lr == 0;
    case TESS_SCHEDULER_ONE_CYCLE:
        return c->scheduler.params.cycle_min_lr == 0 && c->scheduler.params.cycle_max_lr == 0;
    case TESS_SCHEDULER_RANGE_TEST:
        return c->scheduler.params.lr_range_test_min_lr == 0;
    }
    return false;
}

void tess_schedule_betas(conf *c, int64_t step, double betas[2])
{
    double i = (double)step;
    double least = c->scheduler.params.cycle_min_mom, most = c->scheduler.params.cycle_max_mom;
    betas[0] = c->optimizer.params.betas[0];
    betas[1] = c->optimizer.params.betas[1];
    if (c->scheduler.type != TESS_SCHEDULER_ONE_CYCLE || !c->scheduler.params.cycle_momentum) return;
    betas[0] = i < cycle_size(c) ? most - (most - least) * cycle_height(c, i)
                                 : most * (1 + c->scheduler.params.decay_mom_rate * cycle_decay(c, i));
    betas[1] = 0.99;
}

tess_step_input tess_schedule_input(conf *c, int64_t step, uint64_t seed, const tess_loss_scale *scale)
{
    const int64_t update = step - scale->skipped; /* skipped steps move no schedule */
    const double lr = tess_schedule_lr(c, update);
    double betas[2];
    tess_schedule_betas(c, update, betas);
    return (tess_step_input){.step = step,
                             .seed = seed,
                             .lr = lr,
                             .keep_weights = lr == 0,
                             .beta1 = betas[0],
                             .beta2 = betas[1],
                             .loss_scale = c->fp16.enabled ? scale->value : 0,
                             .skipped = scale->skipped};
}
