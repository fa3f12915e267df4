/* The families that there are (models.def). */
#ifndef TESS_FAMILIES_H
#define TESS_FAMILIES_H
#include "models/networks/model/model.h"

#define TESS_MODEL(name) extern const tess_family tess_family_##name;
#include "models/networks/families/models.def"
#undef TESS_MODEL
/* Returns whether positions of sequences of that length turn by the list for long ones (rotary.c). */
bool tess_rotary_long(const tess_family *f, const void *numbers, int64_t length);

#endif
