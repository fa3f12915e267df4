/* Decoding: ids to a text, all at once or as they come. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

const char *tess_tokenizer_bytes(const tess_tokenizer *t, int32_t id, size_t *length)
{
    static char byte[256];
    *length = 0;
    if (id < 0 || id >= tess_tokenizer_vocab(t) || (t && t->unsupported)) return "";
    if (!t) {
        *length = 1;
        byte[id] = (char)id; /* the same value each time */
        return &byte[id];
    }
    *length = t->shown[id].length;
    return t->shown[id].bytes ? t->shown[id].bytes : "";
}

static void decode(const tess_tokenizer *t, const int32_t *ids, size_t count, tess_bytes *out)
{
    TESS_FREED tess_token *token = tess_alloc((count + 1) * sizeof *token);
    tess_bytes bytes = {0};
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (!t) tess_bytes_add(&bytes, &(char){(char)ids[i]}, ids[i] >= 0 && ids[i] < 256);
        if (t && !t->unsupported && ids[i] >= 0 && ids[i] < t->tokens.count && t->tokens.token[ids[i]].bytes)
            token[n++] = t->tokens.token[ids[i]];
    }
    if (t && !t->unsupported && t->pretokenizer.byte_level) {
        for (size_t i = 0; i < n; i++) tess_bytes_add(&bytes, token[i].bytes, token[i].length);
        n = 0;
    }
    if (n)
        tess_token_decoder_apply(t->decoder, token, n, out);
    else
        tess_bytes_add_lossy(out, bytes.data, bytes.length);
    free(bytes.data);
}

char *tess_tokenizer_decode(const tess_tokenizer *t, const int32_t *ids, size_t count, size_t *length)
{
    tess_bytes out = {0};
    decode(t, ids, count, &out);
    tess_bytes_add(&out, "", 1);
    if (length) *length = out.length - 1;
    return out.data;
}

/* ---- as they come ---- */

/* A token's text depends on the tokens before it: with each new id, all ids from `from` on are decoded again. The new
 * text is what follows the text of [from, read), once it ends with a whole character. */
struct tess_decoding {
    const tess_tokenizer *t;
    tess_ids ids;
    size_t from, read;
    tess_bytes before, now; /* the texts of [from, read) and of [from, count) */
};

tess_decoding *tess_decoding_new(const tess_tokenizer *t, const int32_t *ids, size_t count)
{
    enum { ENOUGH = 8 };
    tess_decoding *d = tess_alloc(sizeof *d);
    const size_t few = count < ENOUGH ? count : ENOUGH;
    d->t = t;
    tess_ids_add(&d->ids, ids + (count - few), few);
    d->read = few;
    decode(t, d->ids.id, few, &d->before);
    return d;
}

void tess_decoding_free(tess_decoding *d)
{
    if (!d) return;
    tess_ids_free(&d->ids);
    free(d->before.data);
    free(d->now.data);
    free(d);
}

static const char *new_text(tess_decoding *d, size_t *length)
{
    *length = d->now.length > d->before.length ? d->now.length - d->before.length : 0;
    return *length ? d->now.data + d->before.length : "";
}

const char *tess_decoding_push(tess_decoding *d, int32_t id, size_t *length)
{
    *length = 0;
    if (d->now.length > d->before.length && d->read == d->ids.count) { /* what was new is known now */
        d->ids.count -= d->from;
        memmove(d->ids.id, d->ids.id + d->from, d->ids.count * sizeof *d->ids.id);
        d->read = d->ids.count;
        d->from = 0;
        d->before.length = 0;
        decode(d->t, d->ids.id, d->read, &d->before);
    }
    tess_ids_push(&d->ids, id);
    d->now.length = 0;
    decode(d->t, d->ids.id, d->ids.count, &d->now);
    const size_t n = d->now.length;
    if (n <= d->before.length || (n >= 3 && !memcmp(d->now.data + n - 3, "\xef\xbf\xbd", 3))) return "";
    d->from = d->read; /* from the next call on */
    d->read = d->ids.count;
    return new_text(d, length);
}

const char *tess_decoding_rest(tess_decoding *d, size_t *length)
{
    if (d->read == d->ids.count) return *length = 0, "";
    d->read = d->ids.count;
    return new_text(d, length);
}
