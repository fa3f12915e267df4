/* A .jsonl, or what is read as one, as a file. It is read through once, row by row, all of it checked; what the index
 * then says is enough to come to any example, or to any token of its texts, without holding anything. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/chat/chat.h"
#include <stdlib.h>
#include <string.h>

/* An example in the index: its byte in the file, and how many places it fills. */
enum { ENTRY = sizeof(uint64_t) + sizeof(uint32_t) };

/* ---- reading it through ---- */

struct pass {
    const tess_line_rules *r;
    tess_lines *l;
    tess_index_writer *to;
    tess_ids ids;
    tess_example example;
    uint64_t empty; /* the byte of the first example that has no target left once it is cut */
};

static tess_status add_document(struct pass *p, const tess_line *line)
{
    tess_lines *l = p->l;
    uint8_t *out;
    p->ids.count = 0;
    TESS_TRY(tess_document_read(p->r, line, &p->ids));
    const tess_ids *before, *behind;
    tess_tokenizer_around(p->r->tokenizer, &before, &behind);
    const int32_t end = p->r->end_of_text, last = behind->count ? behind->id[behind->count - 1] : -1;
    if (end < 0 && last < 0)
        return tess_line_error(line->rows, line->byte,
                               tess_format("which token lies between texts is not known (the tokenizer has no end of "
                                           "text, the model's config.json no eos_token_id)"));
    if (end >= 0 && end != last) tess_ids_push(&p->ids, end);
    out = tess_alloc(p->ids.count * l->entry_bytes);
    for (size_t i = 0; i < p->ids.count; i++)
        for (size_t b = 0; b < l->entry_bytes; b++)
            out[i * l->entry_bytes + b] = (uint8_t)((uint32_t)p->ids.id[i] >> 8 * b);
    tess_index_put(p->to, out, p->ids.count * l->entry_bytes);
    free(out);
    l->entries += p->ids.count;
    l->tokens = l->entries;
    return TESS_OK;
}

static tess_status add_example(struct pass *p, const tess_line *line)
{
    tess_lines *l = p->l;
    const tess_example *e = &p->example;
    uint64_t targets, uncut, tokens = 0;
    uint32_t places = 0;
    for (int k = 0; k < (l->form == TESS_LINES_CHOICE ? 2 : 1); k++) {
        TESS_TRY(tess_example_read(p->r, line, l->form, k ? line : NULL, &p->example, &targets, &uncut));
        if (targets == 0) {
            if (l->left_out++ == 0) p->empty = line->byte;
            return TESS_OK;
        }
        const size_t most = e->ids.count > e->decoder.count ? e->ids.count : e->decoder.count;
        if (places < most) places = (uint32_t)most;
        tokens += e->ids.count;
    }
    l->entries++;
    l->tokens += tokens;
    tess_index_put(p->to, &line->byte, sizeof line->byte);
    tess_index_put(p->to, &places, sizeof places);
    if (places > l->longest) l->longest = places;
    return TESS_OK;
}

static tess_status read_through(struct pass *p)
{
    enum { STRETCH = 16 << 20 };
    tess_lines *l = p->l;
    tess_line line;
    uint64_t forgotten = 0;
    for (uint64_t at = 0;; at = line.byte + line.length) {
        TESS_TRY(tess_row_next(&l->rows, at, &line));
        if (!line.length) break;
        TESS_TRY(l->form == TESS_LINES_TEXT ? add_document(p, &line) : add_example(p, &line));
        tess_bar_step((double)line.length);
        if (line.byte - forgotten < STRETCH) continue;
        tess_map_forget(l->rows.file.data + forgotten, line.byte - forgotten);
        forgotten = line.byte;
    }
    if (l->entries) return TESS_OK;
    return tess_line_error(
        &l->rows, p->empty,
        tess_format("of each of the %llu lines data.truncate leaves %lld tokens without a target, or none (a "
                    "longer data.seq_length leaves some)",
                    (unsigned long long)l->left_out, (long long)p->r->conf->seq_length));
}

/* ---- the index ---- */

static size_t token_bytes(const tess_line_rules *r)
{
    int32_t most = tess_tokenizer_vocab(r->tokenizer) - 1;
    if (r->end_of_text > most) most = r->end_of_text;
    return most < 1 << 8 ? 1 : most < 1 << 16 ? 2 : 4;
}

/* All that the verdict on a line, or its tokens, follow from beside the line. */
static uint64_t sum_of_rules(const tess_line_rules *r, tess_lines_form form)
{
    const tess_data_conf *c = r->conf;
    const bool text = form == TESS_LINES_TEXT;
    const int64_t around = 1; /* what a tokenizer puts around a text is there; another number for another way */
    const int64_t all[] = {(int64_t)tess_tokenizer_sum(r->tokenizer), c->vocab, r->end_of_text, around};
    const int64_t masks = (c->mlm_probability > 0) + 2 * (c->noise_density > 0) + 4 * c->judged;
    const int64_t examples[] = {
        c->seq_length, c->task, c->truncate + 2 * c->drop, c->end_completions, c->labels, c->both, c->types, masks};
    const int64_t chat[] = {(int64_t)tess_chat_sum(c->chat), c->loss_on_all};
    uint64_t sum = tess_sum_bytes(TESS_SUM, all, sizeof all);
    if (form == TESS_LINES_CHAT || form == TESS_LINES_TASK || form == TESS_LINES_PAIR || form == TESS_LINES_CHOICE)
        sum = tess_sum_bytes(sum, chat, sizeof chat);
    return text ? sum : tess_sum_bytes(sum, examples, sizeof examples);
}

static void take_index(tess_lines *l, const tess_index_head *head)
{
    l->entry = l->index.data + sizeof *head;
    l->entries = head->entries;
    l->tokens = head->tokens;
    l->left_out = head->left_out;
    l->longest = head->longest;
}

static bool find_index(const tess_line_rules *r, tess_index_head *head, tess_lines *l)
{
    if (!tess_index_open(l->rows.file.path, r->conf->output, "index", head, &l->index)) return false;
    if (head->entry == l->entry_bytes && head->entries) return take_index(l, head), true;
    tess_map_close(&l->index);
    return false;
}

static tess_status make_index(const tess_line_rules *r, tess_index_head *head, tess_lines *l)
{
    enum { LARGE = 256 << 20 };
    tess_index_writer to;
    struct pass p = {.r = r, .l = l, .to = &to};
    if (l->rows.file.bytes > LARGE)
        tess_note("%s: %.1f GB are read through once, for an index", l->rows.file.path,
                  (double)l->rows.file.bytes * 1e-9);
    tess_status status = tess_index_begin(l->rows.file.path, r->conf->output, "index", &to);
    tess_bar_begin(l->form == TESS_LINES_TEXT ? "tokenizing" : "reading examples", (double)l->rows.file.bytes);
    if (status == TESS_OK) status = read_through(&p);
    tess_bar_end();
    if (status == TESS_OK) {
        head->entry = l->entry_bytes;
        head->entries = l->entries;
        head->tokens = l->tokens;
        head->left_out = l->left_out;
        head->longest = l->longest;
        status = tess_index_finish(&to, head, &l->index);
    }
    if (status == TESS_OK) take_index(l, head);
    tess_index_drop(&to);
    tess_ids_free(&p.ids);
    tess_example_free(&p.example);
    return status;
}

tess_status tess_lines_open(const char *path, const tess_line_rules *r, tess_lines *l)
{
    tess_index_head head;
    tess_line first;
    *l = (tess_lines){0};
    TESS_TRY(tess_text_open(path, r->conf->output, &l->rows.file));
    TESS_TRY(tess_rows_begin(&l->rows));
    TESS_TRY(tess_row_next(&l->rows, 0, &first));
    if (!first.length)
        return tess_line_error(&l->rows, first.byte,
                               tess_format("is empty, expected %s",
                                           l->rows.syntax == TESS_ROWS_LINES  ? "one JSON object a line"
                                           : l->rows.syntax == TESS_ROWS_LIST ? "objects in the list"
                                                                              : "records behind the names of columns"));
    TESS_TRY(tess_line_form(&first, &l->form));
    if (r->conf->pairs && l->form != TESS_LINES_CHOICE)
        return tess_line_error(&l->rows, first.byte,
                               tess_format("has no \"chosen\" (preference.loss learns from lines of "
                                           "{\"prompt\", \"chosen\", \"rejected\"})"));
    if (r->conf->judged && l->form != TESS_LINES_PAIR)
        return tess_line_error(&l->rows, first.byte,
                               tess_format("is no {\"prompt\", \"completion\", \"label\"}, which preference.loss "
                                           "kto learns from"));
    if (!r->conf->pairs && l->form == TESS_LINES_CHOICE)
        return tess_line_error(
            &l->rows, first.byte,
            tess_format("has a \"chosen\" completion, from which preference.loss learns (dpo, say)"));
    if (l->form == TESS_LINES_LABELLED && r->conf->task != TESS_DATA_LABEL) l->form = TESS_LINES_TEXT;
    l->entry_bytes = l->form == TESS_LINES_TEXT ? token_bytes(r) : ENTRY;
    TESS_TRY(tess_index_of(&l->rows.file, &head));
    head.form = l->form;
    head.rules = sum_of_rules(r, l->form);
    if (find_index(r, &head, l)) return TESS_OK;
    const int lock = tess_index_lock(path); /* another process may have made it while we waited */
    tess_status status = find_index(r, &head, l) ? TESS_OK : make_index(r, &head, l);
    tess_index_unlock(lock);
    return status;
}

void tess_lines_close(tess_lines *l)
{
    tess_rows_close(&l->rows);
    tess_map_close(&l->index);
    *l = (tess_lines){0};
}

tess_lines_form tess_lines_look(const char *path)
{
    tess_rows rows = {0};
    tess_line first;
    tess_lines_form form = TESS_LINES_UNKNOWN;
    if (tess_text_look(path, &rows.file) == TESS_OK && tess_rows_begin(&rows) == TESS_OK &&
        tess_row_next(&rows, 0, &first) == TESS_OK && first.length && tess_line_form(&first, &form) != TESS_OK)
        form = TESS_LINES_UNKNOWN;
    tess_rows_close(&rows);
    tess_error_clear();
    return form;
}

/* ---- reading one ---- */

static tess_status line_of(const tess_lines *l, uint64_t which, tess_line *line)
{
    uint64_t byte;
    TESS_ASSERT(which < l->entries && l->form != TESS_LINES_TEXT);
    const uint8_t *entry = l->entry + which * ENTRY;
    memcpy(&byte, entry, sizeof byte);
    tess_map_forget(entry, ENTRY);
    if (byte < l->rows.file.bytes) tess_row_at(&l->rows, byte, line);
    if (byte < l->rows.file.bytes && line->length) return TESS_OK;
    return tess_error(TESS_INVALID, l->index.path, "is damaged: example %llu begins at byte %llu of %zu (remove it)",
                      (unsigned long long)which, (unsigned long long)byte, l->rows.file.bytes);
}

tess_status tess_lines_get(const tess_lines *l, const tess_line_rules *r, uint64_t which, bool other, tess_example *e)
{
    uint64_t targets, uncut;
    tess_line line, before;
    TESS_TRY(line_of(l, which, &line));
    before = line;
    if (other && r->conf->judged) TESS_TRY(line_of(l, which ? which - 1 : l->entries - 1, &before));
    tess_status status = tess_example_read(r, &line, l->form, other ? &before : NULL, e, &targets, &uncut);
    tess_map_forget(l->rows.file.data + line.byte, line.length);
    return status;
}

int64_t tess_lines_places(const tess_lines *l, uint64_t which)
{
    uint32_t places;
    memcpy(&places, l->entry + which * ENTRY + sizeof(uint64_t), sizeof places);
    return places;
}
