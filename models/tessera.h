/* What programs that use Tessera include: every room's public header, from the top down. */
#ifndef TESSERA_H
#define TESSERA_H
#include "models.h"
#endif
