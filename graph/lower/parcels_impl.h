/* A message while its parts are put together: of zeros it has none. */
#ifndef TESS_PARCELS_IMPL_H
#define TESS_PARCELS_IMPL_H
#include "graph/lower/lower.h"

typedef struct tess_parcel {
    tess_span *span;
    tess_use *use;
    unsigned spans, uses;
} tess_parcel;

/* Adds a use, and returns which of the message's it is. */
unsigned tess_parcel_use(tess_parcel *m, tess_use use);
/* Adds a part of a use. */
void tess_parcel_span(tess_parcel *m, tess_span span);
/* Adds a part of a tile; parts of one tile are added in a row. */
void tess_parcel_add(tess_parcel *m, tess_use use, int peer, int tag, bool sends, size_t offset, size_t bytes);
/* Returns the next tag of a pass's collectives: ranks that meet in them lower alike, and get the same one. */
int tess_parcel_tag(tess_lower *L);
/* Emits the message, which is gone then, and returns the task's arguments; where it has no part nothing and NULL. */
const tess_message_arg *tess_parcel_send(tess_lower *L, tess_parcel *m);

#endif
