/* What tasks were seen to reach of a machine's rates. */
#ifndef TESS_REACHED_H
#define TESS_REACHED_H

/* Shares of the rates that plans go by; 0: as for any machine. */
typedef struct tess_reached {
    double matrix, copy;
} tess_reached;

#endif
