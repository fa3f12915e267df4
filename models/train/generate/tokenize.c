/* Texts to ids, line by line, and back: what a model's tokenizer makes of them. A file is mapped and its lines are
 * encoded piece by piece, so that neither its size nor that of a line matters. */
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include "models/text/tokenizer/tokenizer.h"
#include "models/train/train.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lines {
    const tess_tokenize_conf *c;
    FILE *out;
    tess_tokenizer *t; /* NULL: bytes */
    int64_t vocab;     /* of the model; 0: it does not say */
    const char *name;
    uint64_t line;
    bool any; /* an id stands on this line already */
    tess_ids ids;
};

/* ---- opening ---- */

/* The model's vocab_size; 0: it does not say. */
static int64_t vocabulary(const char *dir)
{
    TESS_FREED char *path = tess_format("%s/config.json", dir);
    json_error_t e;
    json_t *config = tess_json_load(path, 0, &e), *size = json_object_get(config, "vocab_size");
    if (!size) size = json_object_get(json_object_get(config, "text_config"), "vocab_size");
    const int64_t n = json_is_integer(size) && json_integer_value(size) > 0 ? json_integer_value(size) : 0;
    json_decref(config);
    return n;
}

static tess_status open_tokenizer(struct lines *l)
{
    l->vocab = vocabulary(l->c->dir);
    if (tess_tokenizer_in(l->c->dir)) return tess_tokenizer_open(l->c->dir, &l->t);
    if (l->vocab == tess_tokenizer_vocab(NULL)) return TESS_OK;
    TESS_FREED char *lack = tess_tokenizer_lack(l->c->dir);
    return tess_error(TESS_INVALID, l->c->dir, "%s%s", lack,
                      l->vocab ? " (and tokens that are bytes would be 256)" : "");
}

/* ---- writing ---- */

static void write_id(struct lines *l, int32_t id)
{
    char text[16], *at = text + sizeof text;
    for (uint32_t n = (uint32_t)id; n || at == text + sizeof text; n /= 10) *--at = (char)('0' + n % 10);
    if (l->any) *--at = ' ';
    l->any = true;
    fwrite_unlocked(at, 1, (size_t)(text + sizeof text - at), l->out);
}

static tess_status write_ids(struct lines *l, const tess_ids *ids)
{
    for (size_t i = 0; i < ids->count; i++) {
        if (l->vocab && ids->id[i] >= l->vocab) {
            char where[512];
            snprintf(where, sizeof where, "%.400s: line %llu", l->name, (unsigned long long)l->line);
            return tess_error(TESS_INVALID, where,
                              "token %d is beyond the model's vocab_size, %lld (is this the model's own tokenizer?)",
                              ids->id[i], (long long)l->vocab);
        }
        write_id(l, ids->id[i]);
    }
    return TESS_OK;
}

static tess_status end_line(struct lines *l)
{
    putc_unlocked('\n', l->out);
    return ferror(l->out) ? tess_error(TESS_FAILED, "stdout", "cannot be written: %s", strerror(errno)) : TESS_OK;
}

/* ---- lines ---- */

/* `base`: where the line begins in what is mapped; NULL: it is in memory of its own. */
static tess_status encode_line(struct lines *l, const char *text, size_t n, const uint8_t *base)
{
    const tess_ids *before, *behind;
    tess_encoding e;
    char where[512];
    size_t forgotten = 0;
    snprintf(where, sizeof where, "%.400s: line %llu", l->name, (unsigned long long)l->line);
    tess_tokenizer_around(l->t, &before, &behind);
    l->any = false;
    if (l->c->special) TESS_TRY(write_ids(l, before));
    tess_status status = tess_encoding_start(l->t, where, text, n, &e);
    while (status == TESS_OK && e.at < e.length) {
        const size_t at = e.at;
        l->ids.count = 0;
        status = tess_encoding_next(&e, &l->ids);
        if (status == TESS_OK) status = write_ids(l, &l->ids);
        tess_bar_step((double)(e.at - at));
        if (base && e.at - forgotten > 16 << 20) {
            tess_map_forget(base + forgotten, e.at - forgotten);
            forgotten = e.at;
        }
    }
    tess_encoding_end(&e);
    if (status == TESS_OK && l->c->special) status = write_ids(l, behind);
    return status == TESS_OK ? end_line(l) : status;
}

static tess_status decode_line(struct lines *l, const char *text, size_t n)
{
    char where[512], *end, *own = tess_alloc(n + 1);
    const char *at = memcpy(own, text, n);
    size_t length;
    tess_status status = TESS_OK;
    snprintf(where, sizeof where, "%.400s: line %llu", l->name, (unsigned long long)l->line);
    for (l->ids.count = 0; status == TESS_OK; at = end) {
        at += strspn(at, " \t\r");
        if (!*at && at == own + n) break;
        const long long id = strtoll(at, &end, 10);
        if (end == at || (*end && !strchr(" \t\r", *end)) || id < 0 || id > INT32_MAX)
            status = tess_error(TESS_INVALID, where, "\"%.20s\" is no id, expected whole numbers between blanks", at);
        else if (id >= tess_tokenizer_vocab(l->t))
            status = tess_error(TESS_INVALID, where, "id %lld is none of the tokenizer's, 0 to %d", id,
                                tess_tokenizer_vocab(l->t) - 1);
        else
            tess_ids_push(&l->ids, (int32_t)id);
    }
    free(own);
    TESS_TRY(status);
    TESS_FREED char *out = tess_tokenizer_decode(l->t, l->ids.id, l->ids.count, &length);
    fwrite(out, 1, length, l->out);
    return end_line(l);
}

static tess_status one_line(struct lines *l, const char *text, size_t n, const uint8_t *base)
{
    l->line++;
    return l->c->decode ? decode_line(l, text, n) : encode_line(l, text, n, base);
}

static tess_status all_of_file(struct lines *l)
{
    enum { OFTEN = 16 << 20 };
    tess_map map;
    TESS_TRY(tess_map_open(l->c->file, &map));
    tess_status status = TESS_OK;
    size_t forgotten = 0;
    const bool bar = !isatty(fileno(l->out)); /* else the lines are on the terminal */
    if (bar) tess_bar_begin(l->c->decode ? "decoding" : "tokenizing", (double)map.bytes);
    for (size_t at = 0, end; at < map.bytes && status == TESS_OK; at = end + 1) {
        const uint8_t *newline = memchr(map.data + at, '\n', map.bytes - at);
        end = newline ? (size_t)(newline - map.data) : map.bytes;
        status = one_line(l, (const char *)map.data + at, end - at, map.data + at);
        if (l->c->decode) tess_bar_step((double)(end + 1 - at));
        if (end - forgotten < OFTEN) continue;
        tess_map_forget(map.data + forgotten, end - forgotten);
        forgotten = end;
    }
    if (bar) tess_bar_end();
    tess_map_close(&map);
    return status;
}

static tess_status all_of_stdin(struct lines *l)
{
    char *line = NULL;
    size_t room = 0;
    ssize_t n;
    tess_status status = TESS_OK;
    while (status == TESS_OK && (n = getline(&line, &room, stdin)) > 0) {
        status = one_line(l, line, (size_t)n - (line[n - 1] == '\n'), NULL);
        if (status == TESS_OK && isatty(STDIN_FILENO)) fflush(l->out);
    }
    free(line);
    if (status == TESS_OK && ferror(stdin))
        return tess_error(TESS_FAILED, "stdin", "cannot be read: %s", strerror(errno));
    return status;
}

tess_status tess_tokenize(const tess_tokenize_conf *c, FILE *out)
{
    if (!c || !c->dir || !out) return tess_error(TESS_INVALID, "tokenize", "a directory or an output is NULL");
    struct lines l = {.c = c, .out = out, .name = c->file ? c->file : "stdin"};
    tess_status status = open_tokenizer(&l);
    if (status == TESS_OK) status = c->file ? all_of_file(&l) : all_of_stdin(&l);
    tess_ids_free(&l.ids);
    tess_tokenizer_free(l.t);
    return status;
}
