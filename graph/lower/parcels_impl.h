/* A message while its parts are put together. */
#ifndef TESS_PARCELS_IMPL_H
#define TESS_PARCELS_IMPL_H
#include "graph/lower/lower.h"

typedef struct tess_parcel {
    tess_span *span;
    tess_use *use;
    unsigned spans, uses;
} tess_parcel;

/* Returns an empty message with room for `spans` parts of `uses` tiles. */
tess_parcel tess_parcel_begin(tess_lower *L, int spans, int uses);
/* Adds a part of a tile; parts of one tile are added in a row. */
void tess_parcel_add(tess_parcel *m, tess_use use, int peer, int tag, bool sends, size_t offset, size_t bytes);
/* Returns the next tag of a pass's collectives: ranks that meet in them lower alike, and get the same one. */
int tess_parcel_tag(tess_lower *L);
/* Emits the message, which is gone then; nothing where it has no part. */
void tess_parcel_send(tess_lower *L, tess_parcel *m);

#endif
