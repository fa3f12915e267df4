/* Stretches of a text, one behind the other. */
#include "models/text/chat/chat.h"
#include "runtime/runtime_base.h"
#include <stdlib.h>

void tess_text_spans_add(tess_text_spans *s, size_t begin, size_t end)
{
    if (s->count + 2 > s->room) {
        s->room = 2 * s->room + 16;
        s->at = tess_realloc(s->at, s->room * sizeof *s->at);
    }
    s->at[s->count++] = begin;
    s->at[s->count++] = end;
}

void tess_text_spans_free(tess_text_spans *s)
{
    free(s->at);
    *s = (tess_text_spans){0};
}
