/* The choice of what carries messages, of runs whose configuration has read the environment. */
#ifndef TESS_CARRIER_H
#define TESS_CARRIER_H
#include "runtime.h"

/* For tess_machine.carrier: as AUTO, whatever TESSERA_PARALLEL_CARRIER says. */
enum { TESS_CARRIER_ANY = TESS_CARRIER_COUNT };
#endif
