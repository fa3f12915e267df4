/* One file of tokens: Megatron's .bin and .idx, llm.c's .bin, texts, and the rows of what is read as a .jsonl is.
 *
 * Its tokens are a list of runs in mapped memory: one run for llm.c and texts, also those of a
 * .jsonl, and for Megatron one for each stretch of
 * sequences that lie behind one another, which is the whole file unless its index was reordered.
 */
#include "models/files/data/data_file_impl.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Megatron's codes, and one of our own for what it does not have. */
enum token_type { U8 = 1, I8, I16, I32, I64, F64, F32, U16, U32, TYPES };
static const size_t type_size[TYPES] = {[U8] = 1, [I8] = 1, [I16] = 2, [I32] = 4, [I64] = 8, [U16] = 2, [U32] = 4};

/* Tokens behind one another: the first one's place in the stream, and its byte in the memory at base. */
struct tess_token_run {
    uint64_t token, byte;
};

static void add_run(tess_token_file *f, uint64_t byte)
{
    if ((f->runs & (f->runs - 1)) == 0) /* the room doubles */
        f->run = tess_realloc(f->run, (f->runs ? 2 * f->runs : 1) * sizeof *f->run);
    f->run[f->runs++] = (struct tess_token_run){f->tokens, byte};
}

/* An error at a byte of a file. */
#define BAD(path, byte, ...) bad_byte(path, byte, tess_format(__VA_ARGS__))

static tess_status bad_byte(const char *path, uint64_t byte, char *what)
{
    TESS_FREED char *where = tess_format("%s: byte %llu", path, (unsigned long long)byte);
    tess_status status = tess_error(TESS_INVALID, where, "%s", what);
    free(what);
    return status;
}

static uint32_t u32_at(const uint8_t *p)
{
    return p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t u64_at(const uint8_t *p)
{
    return u32_at(p) | (uint64_t)u32_at(p + 4) << 32;
}

static int64_t token_at(enum token_type type, const uint8_t *p)
{
    switch (type) {
    case U8:
        return p[0];
    case I8:
        return (int8_t)p[0];
    case U16:
        return p[0] | p[1] << 8;
    case I16:
        return (int16_t)(p[0] | p[1] << 8);
    case I32:
        return (int32_t)u32_at(p);
    case U32:
        return u32_at(p);
    default:
        TESS_ASSERT(type == I64);
        return (int64_t)u64_at(p);
    }
}

/* ---- Megatron ---- */

enum { IDX_HEADER = 34 };

/* Checks everything but the sequences: magic, version, type, and the counts against the file's size. */
static tess_status read_idx_header(const tess_map *idx, enum token_type *type, uint64_t *sequences, uint64_t *documents)
{
    const uint8_t *p = idx->data;
    if (idx->bytes < IDX_HEADER)
        return tess_error(TESS_INVALID, idx->path, "has %zu bytes, a Megatron index has at least %d", idx->bytes,
                          IDX_HEADER);
    if (memcmp(p, "MMIDIDX\0\0", 9))
        return BAD(idx->path, 0, "no Megatron index: expected \"MMIDIDX\" and two zero bytes");
    uint64_t version = u64_at(p + 9);
    if (version != 1) return BAD(idx->path, 9, "index version %llu, expected 1", (unsigned long long)version);
    *type = p[17];
    if (*type == F32 || *type == F64)
        return BAD(idx->path, 17, "dtype %d is floating point, token ids are integers", p[17]);
    if (*type < U8 || *type > U16) return BAD(idx->path, 17, "dtype %d is unknown, expected 1 to 8", p[17]);
    *sequences = u64_at(p + 18), *documents = u64_at(p + 26);
    uint64_t space = idx->bytes - IDX_HEADER;
    bool fit = *sequences <= space / 12 && *documents <= (space - 12 * *sequences) / 8;
    uint64_t rest = fit ? space - 12 * *sequences - 8 * *documents : 0;
    if (!fit || (rest != 0 && rest != *sequences)) /* the rest, if any, is one mode byte a sequence */
        return BAD(idx->path, 18, "%llu sequences and %llu document entries do not make the file's %zu bytes",
                   (unsigned long long)*sequences, (unsigned long long)*documents, idx->bytes);
    return TESS_OK;
}

/* Documents are runs of sequences in the sequences' order, so they add nothing to the stream: only checked. */
static tess_status check_documents(const tess_map *idx, uint64_t sequences, uint64_t documents)
{
    uint64_t at = IDX_HEADER + 12 * sequences, before = 0;
    if (documents == 0) return BAD(idx->path, 26, "no document entries, expected at least the first, 0");
    for (uint64_t i = 0; i < documents; i++) {
        uint64_t d = u64_at(idx->data + at + 8 * i);
        if (i == 0 ? d != 0 : d < before || d > sequences)
            return BAD(idx->path, at + 8 * i, "document %llu begins at sequence %lld, expected %llu to %llu",
                       (unsigned long long)i, (long long)d, (unsigned long long)before,
                       (unsigned long long)(i ? sequences : 0));
        before = d;
    }
    if (before != sequences)
        return BAD(idx->path, at + 8 * (documents - 1), "the documents end at sequence %llu of %llu",
                   (unsigned long long)before, (unsigned long long)sequences);
    return TESS_OK;
}

static tess_status read_megatron(tess_token_file *f, const tess_map *idx, const tess_map *bin)
{
    uint64_t sequences = 0, documents = 0, next = 0;
    enum token_type type = 0;
    TESS_TRY(read_idx_header(idx, &type, &sequences, &documents));
    TESS_TRY(check_documents(idx, sequences, documents));
    f->type = type;
    size_t size = type_size[type];
    for (uint64_t i = 0; i < sequences; i++) {
        uint64_t length_at = IDX_HEADER + 4 * i, offset_at = IDX_HEADER + 4 * sequences + 8 * i;
        int32_t length = (int32_t)u32_at(idx->data + length_at);
        int64_t offset = (int64_t)u64_at(idx->data + offset_at);
        if (length < 0) return BAD(idx->path, length_at, "sequence %llu has %d tokens", (unsigned long long)i, length);
        uint64_t bytes = (uint64_t)length * size;
        if (offset < 0 || (uint64_t)offset > bin->bytes || bytes > bin->bytes - (uint64_t)offset)
            return BAD(idx->path, offset_at, "sequence %llu is bytes %lld to %lld of %s, which has %zu",
                       (unsigned long long)i, (long long)offset, (long long)((uint64_t)offset + bytes), bin->path,
                       bin->bytes);
        if ((uint64_t)offset % size)
            return BAD(idx->path, offset_at, "sequence %llu begins at byte %lld, no multiple of its %zu-byte tokens",
                       (unsigned long long)i, (long long)offset, size);
        if (length == 0) continue;
        if (f->runs == 0 || (uint64_t)offset != next) add_run(f, (uint64_t)offset);
        next = (uint64_t)offset + bytes;
        f->tokens += (uint64_t)length;
    }
    return TESS_OK;
}

/* ---- llm.c ---- */

enum { LLMC_HEADER = 1024 };

/* Fails with what a .bin is that is not llm.c's: most likely one half of Megatron's pair. */
static tess_status not_llmc(const tess_map *bin, int32_t magic)
{
    char *prefix = tess_strdup(bin->path), *hint = tess_strdup("");
    size_t n = strlen(prefix);
    if (n > 4 && strcmp(prefix + n - 4, ".bin") == 0) {
        prefix[n - 4] = 0;
        TESS_FREED char *idx = tess_format("%s.idx", prefix);
        if (access(idx, F_OK) == 0) {
            free(hint);
            hint = tess_format(" (%s is there: for Megatron's format give %s)", idx, prefix);
        }
    }
    tess_status status = BAD(bin->path, 0, "magic %d, expected llm.c's 20240520 or 20240801%s", magic, hint);
    free(hint);
    free(prefix);
    return status;
}

static tess_status read_llmc(tess_token_file *f, const tess_map *bin)
{
    if (bin->bytes < LLMC_HEADER)
        return tess_error(TESS_INVALID, bin->path, "has %zu bytes, llm.c's header alone has %d", bin->bytes,
                          LLMC_HEADER);
    int32_t magic = (int32_t)u32_at(bin->data), version = (int32_t)u32_at(bin->data + 4);
    int32_t count = (int32_t)u32_at(bin->data + 8);
    if (magic != 20240520 && magic != 20240801) return not_llmc(bin, magic);
    int32_t expected = magic == 20240520 ? 1 : 7;
    if (version != expected)
        return BAD(bin->path, 4, "version %d, expected %d with magic %d", version, expected, magic);
    f->type = magic == 20240520 ? U16 : U32;
    size_t size = type_size[f->type], space = bin->bytes - LLMC_HEADER;
    if (count < 0 || (uint64_t)count * size != space)
        return BAD(bin->path, 8, "%d tokens of %zu bytes, but %zu bytes follow the header", count, size, space);
    add_run(f, LLMC_HEADER);
    f->tokens = (uint64_t)count;
    return TESS_OK;
}

/* ---- texts ---- */

static tess_status beyond_vocabulary(const char *path, uint64_t byte, int64_t token, int64_t vocab)
{
    return BAD(path, byte, "token %lld is beyond the vocabulary of %lld (is this the model's own tokenizer?)",
               (long long)token, (long long)vocab);
}

/* Appends ids to f->held, which has room for *room of them. */
static tess_status hold_tokens(tess_token_file *f, const tess_ids *ids, size_t at, int64_t vocab, size_t *room)
{
    const size_t size = type_size[f->type];
    if (*room < f->tokens + ids->count) {
        *room = (f->tokens + ids->count) * 3 / 2 + 1024;
        f->held = tess_realloc(f->held, *room * size);
    }
    for (size_t i = 0; i < ids->count; i++, f->tokens++) {
        const uint32_t id = (uint32_t)ids->id[i];
        uint8_t *p = (uint8_t *)f->held + f->tokens * size;
        if ((int64_t)id >= vocab) return beyond_vocabulary(f->path, at, (int64_t)id, vocab);
        for (size_t b = 0; b < size; b++) p[b] = (uint8_t)(id >> 8 * b);
    }
    return TESS_OK;
}

/* Tokenises the mapped text into f->held, piece by piece: the text itself is never copied. */
static tess_status read_tokens(tess_token_file *f, const tess_map *text, const tess_tokenizer *tokenizer, int64_t vocab)
{
    f->type = tess_tokenizer_vocab(tokenizer) <= 1 << 16 ? U16 : U32;
    size_t room = 0;
    tess_status status;
    const tess_ids *before, *behind;
    tess_ids ids = {0};
    tess_encoding e;
    tess_tokenizer_around(tokenizer, &before, &behind);
    TESS_TRY(tess_encoding_start(tokenizer, text->path, (const char *)text->data, text->bytes, &e));
    tess_bar_begin("tokenizing", (double)text->bytes);
    TESS_TRY_DONE(hold_tokens(f, before, 0, vocab, &room));
    while (e.at < e.length) {
        const size_t at = e.at;
        ids.count = 0;
        TESS_TRY_DONE(tess_encoding_next(&e, &ids));
        TESS_TRY_DONE(hold_tokens(f, &ids, at, vocab, &room));
        tess_bar_step((double)(e.at - at));
    }
    TESS_TRY_DONE(hold_tokens(f, behind, e.at, vocab, &room));
    f->held = tess_realloc(f->held, f->tokens * type_size[f->type]);
    status = TESS_OK;
done:
    tess_bar_end();
    tess_encoding_end(&e);
    tess_ids_free(&ids);
    return status;
}

/* ---- open and close ---- */

tess_status tess_token_file_view(const tess_map *idx, const tess_map *bin, tess_token_file *f)
{
    *f = (tess_token_file){.path = bin->path, .base = bin->data};
    return idx ? read_megatron(f, idx, bin) : read_llmc(f, bin);
}

/* Ends of lines as Windows has them would be learned with the text. */
static void say_returns(const tess_map *text)
{
    const size_t look = text->bytes < 1 << 20 ? text->bytes : 1 << 20;
    const uint8_t *first = look ? memchr(text->data, '\r', look) : NULL;
    if (first && !tess_rank())
        tess_note("%s: byte %zu: a carriage return, which is trained on as it stands (tr -d '\\r' takes them out)",
                  text->path, (size_t)(first - text->data));
}

static tess_status open_text(tess_token_file *f, const tess_tokenizer *tokenizer, int64_t vocab)
{
    add_run(f, 0);
    say_returns(&f->map);
    if (tokenizer) {
        TESS_TRY(read_tokens(f, &f->map, tokenizer, vocab));
        f->base = f->held;
    } else {
        f->type = U8;
        f->tokens = f->map.bytes;
        for (uint64_t i = 0; i < f->tokens && vocab < 256;
             i++) /* what a run is refused for it is refused for at once */
            if (f->map.data[i] >= vocab) return beyond_vocabulary(f->path, i, f->map.data[i], vocab);
    }
    return TESS_OK;
}

static tess_status open_lines(const char *path, const tess_line_rules *rules, tess_token_file *f)
{
    f->lines = tess_alloc(sizeof *f->lines);
    TESS_TRY(tess_lines_open(path, rules, f->lines));
    const tess_lines *l = f->lines;
    f->path = l->rows.file.path;
    if (l->form == TESS_LINES_TEXT)
        add_run(f, 0);
    else
        f->examples = l->entries;
    f->tokens = l->tokens;
    f->base = l->entry;
    f->type = l->entry_bytes == 1 ? U8 : l->entry_bytes == 2 ? U16 : U32;
    return TESS_OK;
}

tess_status tess_token_file_open(const tess_data_path *path, const tess_line_rules *rules, tess_token_file *f)
{
    if (path->kind == TESS_DATA_LINES) return *f = (tess_token_file){0}, open_lines(path->path, rules, f);
    tess_map idx = {0};
    const bool pair = path->kind == TESS_DATA_MEGATRON;
    TESS_FREED char *idx_path = tess_format("%s.idx", path->path), *bin_path = tess_format("%s.bin", path->path);
    tess_status status;
    *f = (tess_token_file){0};
    if (pair) TESS_TRY_DONE(tess_map_open(idx_path, &idx));
    TESS_TRY_DONE(path->kind == TESS_DATA_TEXT ? tess_text_open(path->path, rules->conf->output, &f->map)
                                               : tess_map_open(pair ? bin_path : path->path, &f->map));
    f->path = f->map.path;
    f->base = f->map.data;
    status = pair                           ? read_megatron(f, &idx, &f->map)
             : path->kind == TESS_DATA_LLMC ? read_llmc(f, &f->map)
                                            : open_text(f, rules->tokenizer, rules->conf->vocab);
done:
    tess_map_close(&idx);
    return status;
}

void tess_token_file_close(tess_token_file *f)
{
    tess_map_close(&f->map);
    if (f->lines) tess_lines_close(f->lines);
    free(f->lines);
    free(f->held);
    free(f->run);
    *f = (tess_token_file){0};
}

/* ---- reading ---- */

tess_status tess_token_file_read(const tess_token_file *f, uint64_t at, uint64_t n, int64_t vocab, int32_t *out)
{
    size_t size = type_size[f->type], low = 0, high = f->runs;
    while (high - low > 1) { /* the last run that begins at or before `at` */
        size_t middle = low + (high - low) / 2;
        *(f->run[middle].token <= at ? &low : &high) = middle;
    }
    for (const struct tess_token_run *r = f->run + low; n; r++) {
        uint64_t end = r + 1 < f->run + f->runs ? r[1].token : f->tokens;
        uint64_t byte = r->byte + (at - r->token) * size, first = byte;
        for (; at < end && n; at++, n--, byte += size) {
            int64_t token = token_at(f->type, f->base + byte);
            if (token < 0 || token >= vocab) return beyond_vocabulary(f->path, byte, token, vocab);
            *out++ = (int32_t)token;
        }
        if ((f->map.bytes || f->lines) && !f->held) tess_map_forget(f->base + first, byte - first);
    }
    return TESS_OK;
}

uint64_t tess_token_file_sum(const tess_token_file *f, uint64_t sum)
{
    const tess_map *map = f->lines ? &f->lines->rows.file : &f->map;
    const uint64_t counts[] = {map->bytes, f->tokens, f->runs};
    sum = tess_sum_bytes(sum, counts, sizeof counts);
    return tess_sum_ends(tess_sum_bytes(sum, f->run, f->runs * sizeof *f->run), map);
}
