/* What the tasks of this machine's last bench reached of its yardsticks, which forecasts go by from then on: it depends
 * on the processor (exponentials beside products, caches beside copies) by more than a forecast may be off. */
#include "codelets/codelets.h"
#include "models/train/bench/bench.h"
#include "models/train/rates/yardstick.h"

/* Of fewer seconds of work one interruption would be seen. */
static const double ENOUGH = 5;

void tess_efficiency_keep(const tess_bench_run *b, const tess_profile *p)
{
    const tess_dtype t = tess_yardstick_for(b->run.dtype);
    double flops = 0, passes = 0, bytes = 0, products = 0, copies = 0;
    tess_yardstick y;
    if (tess_ranks() > 1 || tess_gpus() > 0 || b->run.machine.disk || !tess_yardstick_known(&y)) return;
    for (int i = 0; i < p->rows; i++) {
        const tess_profile_row *r = &p->row[i];
        flops += r->flops;
        *(r->flops > 0 ? &passes : &bytes) += r->bytes;
        *(r->flops > 0 ? &products : &copies) += r->busy;
    }
    if (!(bytes > 0 && flops > 0 && products + copies > ENOUGH)) return;
    const double workers = tess_workers(), copy = bytes / (y.copy_rate / workers * copies),
                 rest = products - passes / (y.copy_rate / workers * copy);
    if (rest > 0) tess_yardstick_set_efficiency(t, flops / (y.matrix_rate[t] / workers * rest), copy);
}
