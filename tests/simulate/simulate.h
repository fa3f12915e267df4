/* What tests of tessera simulate share: machines that are made up, and numbers in what it prints. */
#ifndef TESS_TESTS_SIMULATE_H
#define TESS_TESTS_SIMULATE_H
#include "tests/tools/tiny.h"

/* Rates that make the drive matter: a second of a core is a few MB of it. */
#define MACHINE(cores, more)                                                                                           \
    "{\"name\": \"made up\", \"cores\": " #cores ", \"memory_gib\": 4, \"copy_gb_s\": 1, \"task_us\": 5,\n"            \
    " \"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20}" more "}\n"
#define DRIVE ", \"drive_gb_s\": {\"read\": 0.05, \"write\": 0.04, \"mixed_read\": 0.02, \"mixed_write\": 0.02}"

#define WIDE "\"steps\": 3, \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 1"

#define NETWORK ", \"network\": {\"gb_s\": 0.5, \"latency_us\": 20}"
#define BATCH   "train_micro_batch_size_per_gpu=2"

/* The number behind a text; -1: it is not there. */
static inline double behind(const char *text, const char *part)
{
    const char *at = strstr(text, part);
    return at ? strtod(at + strlen(part), NULL) : -1;
}

/* Ends with a step simulated, in `ran`. */
#define SIMULATE_SETUP()                                                                                               \
    do {                                                                                                               \
        wide_setup_with(WIDE);                                                                                         \
        write_text("two.json", MACHINE(2, DRIVE));                                                                     \
        RUN("simulate", "run.json", "--machine", "two.json");                                                          \
        if (ran.status == 2 && strstr(ran.err, "this build has no tessera-simulator")) SKIP("no StarPU over SimGrid"); \
        EXPECT_DONE();                                                                                                 \
    } while (0)

/* Sums the second column of the table of codelets. */
static inline double tasks_of(const char *out, const char *end)
{
    double sum = 0;
    const char *at = strstr(out, "\ncodelet");
    for (at = at ? strchr(at + 1, '\n') : NULL; at && at[1] && at[1] != '\n' && strncmp(at + 1, end, strlen(end));
         at = strchr(at + 1, '\n')) {
        double tasks = 0;
        if (sscanf(at + 1, "%*s %*s %lf", &tasks) == 1) sum += tasks;
    }
    return sum;
}

/* The number in front of a text that follows a line's beginning. */
static inline double in_row(const char *out, const char *row, int column)
{
    double value = -1;
    const char *at = strstr(out, row);
    for (at = at ? at + strlen(row) : NULL; at && column >= 0; column--) {
        char *end;
        value = strtod(at, &end);
        at = end > at ? end : NULL;
    }
    return at ? value : -1;
}

#define GPUS(count, gib, more) GPUS_OF(count, gib, "", more)
#define GPUS_OF(count, gib, link, more)                                                                                \
    ", \"gpus\": {\"count\": " #count ", \"name\": \"made up\", \"memory_gib\": " gib ", \"copy_gb_s\": 10, "          \
    "\"task_us\": 5,\n \"matrix_gflops\": {\"fp32\": 100, \"bf16\": 200}, "                                            \
    "\"host_link\": {\"gb_s\": 1, \"latency_us\": 10" link "}" more "}"

/* The room of its worker, and little more than the largest task takes. */
#define CAPPED "memory.gpu=104MiB"
#endif
