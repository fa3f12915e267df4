/* What tasks were seen to reach of a machine's rates. */
#ifndef TESS_EFFICIENCY_H
#define TESS_EFFICIENCY_H

/* Shares of the rates that plans go by; 0: as for any machine. */
typedef struct tess_efficiency {
    double matrix, copy;
} tess_efficiency;

#endif
