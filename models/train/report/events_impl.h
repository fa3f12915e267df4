/* Event files, as TensorBoard reads them. A record (a length, its checksum, the bytes, their checksum) holds an Event
 * in the encoding of protocol buffers.
 *
 *     tess_events *e;
 *     TESS_TRY(tess_events_open("logs/run", &e));
 *     const tess_scalar s = {"Train/Samples/train_loss", 2.5};
 *     tess_events_add(e, samples, &s, 1);
 *     tess_events_close(e);
 */
#ifndef TESS_EVENTS_IMPL_H
#define TESS_EVENTS_IMPL_H
#include "runtime/runtime.h"

typedef struct tess_scalar {
    const char *tag;
    double value;
} tess_scalar;

typedef struct tess_events tess_events;

/* Makes a new file in a directory that is there, named by the time, the host and the process, as TensorFlow does. */
tess_status tess_events_open(const char *dir, tess_events **events) TESS_NODISCARD;
/* Begins at a step: what earlier files of the directory have from there on is void. False, with
 * errno: it cannot be written. */
bool tess_events_begin(tess_events *e, int64_t step);
/* Adds values at a step; at most 16. */
bool tess_events_add(tess_events *e, int64_t step, const tess_scalar *scalar, int scalars);
/* Adds a text, in Markdown, as far as a record has room: 2048 bytes. */
bool tess_events_add_text(tess_events *e, int64_t step, const char *tag, const char *text);
/* Closes it; NULL is nothing. */
void tess_events_close(tess_events *e);

#endif
