/* Rows: commands of this program, each in a process of its own, as many at a time as there are cores here, whose lines
 * are read; and the table of what they say. */
#ifndef TESS_ROWS_H
#define TESS_ROWS_H
#include "models/models.h"
#include <sys/types.h>

enum { CMD_ROW_TIERS = 4 };

typedef struct cmd_row {
    char *command; /* "simulate" or "estimate", before the arguments that all rows have, */
    char **more;   /* and KEY=VALUE behind them, NULL at the end */
    bool fits, done;
    tess_status status;
    double seconds, gpu, rate; /* of a step; the GPU's at work in it; tokens/s */
    char bound[64], wrong[1024];
    char held[CMD_ROW_TIERS][32]; /* by tiers */
    pid_t child;                  /* 0: it has not begun, or has ended */
    FILE *out, *err;
} cmd_row;

/* Runs those rows that are not done, unless a signal ends this program: then they are ended, and *ended_by is it. */
tess_status cmd_rows_run(const char *where, char **arguments, int count, cmd_row *row, int rows,
                         int *ended_by) TESS_NODISCARD;
/* Prints what a row came to behind the cells that the caller has printed, and the names of these columns. */
void cmd_row_print(const cmd_row *row);
void cmd_rows_head(void);

#endif
