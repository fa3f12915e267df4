/* What sums over bytes cost: those of a checkpoint's tensors, of the disk tier's pieces (memory.checksum), and of a
 * plain read, beside what the drive of a directory writes and reads; each share is of the time that the drive takes.
 *
 *     bench_sums [DIRECTORY]        .
 */
#include "models/networks/model/model.h"
#include "models/train/rates/yardstick.h"
#include "runtime/disk/disk.h"
#include <stdlib.h>
#include <string.h>

enum { VALUES = 32 << 20, TIMES = 5 };

static volatile uint64_t kept;

static double rate(int what, const float *values)
{
    double best = 0;
    for (int k = 0; k < TIMES; k++) {
        const double start = tess_seconds();
        uint64_t plain = 0;
        tess_piece_sums sums = {0};
        if (what == 0)
            for (size_t i = 0; i < VALUES / 2; i++) plain += ((const uint64_t *)(const void *)values)[i];
        else if (what == 1)
            for (int64_t i = 0; i < VALUES; i += 1024) tess_piece_sums_add(&sums, i, 1024, values + i);
        else
            plain = tess_disk_sum(values, VALUES * sizeof *values, 1);
        kept = plain + sums.plain;
        const double here = VALUES * sizeof *values / (tess_seconds() - start);
        if (here > best) best = here;
    }
    return best;
}

int main(int argc, char **argv)
{
    static const char *const name[] = {"reading RAM", "sums of a checkpoint", "memory.checksum"};
    tess_yardstick y;
    float *values = malloc(VALUES * sizeof *values);
    if (!values) return 1;
    for (size_t i = 0; i < VALUES; i++) values[i] = (float)i;
    if (tess_yardstick_read(argc > 1 ? argv[1] : ".", false, &y) != TESS_OK) {
        fprintf(stderr, "%s\n", tess_error_text());
        return 1;
    }
    printf("%-22s %8s   of a write at %.2f GB/s   of a read at %.2f GB/s\n", "one core", "GB/s",
           y.drive.write_rate / 1e9, y.drive.read_rate / 1e9);
    for (int what = 0; what < 3; what++) {
        const double here = rate(what, values);
        printf("%-22s %8.2f %20.1f%% %24.1f%%\n", name[what], here / 1e9, 100 * y.drive.write_rate / here,
               100 * y.drive.read_rate / here);
    }
    free(values);
    return 0;
}
