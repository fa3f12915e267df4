/* Prompts of files, and the lines that answer them. */
#include "models/text/base/text.h"
#include "models/train/generate/prompts_impl.h"
#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static tess_prompt *add(tess_prompts *p)
{
    if (p->count == p->room) {
        p->room = p->room ? 2 * p->room : 16;
        p->prompt = tess_realloc(p->prompt, p->room * sizeof *p->prompt);
    }
    p->prompt[p->count] = (tess_prompt){0};
    return &p->prompt[p->count++];
}

void tess_prompts_said(tess_prompts *p, const char *text)
{
    p->form = TESS_PROMPTS_SAID;
    p->where = "--prompt";
    add(p)->text = tess_strdup(text);
}

/* Returns the error of a prompt. */
static TESS_PRINTF(3, 4) tess_status prompt_error(const tess_prompts *p, const tess_prompt *of, const char *format, ...)
{
    char what[512], where[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(where, sizeof where, of->line ? "%s:%lld" : "%s", p->where, (long long)of->line);
    return tess_error(TESS_INVALID, where, "%s", what);
}

static tess_status read_ids(const tess_prompts *p, tess_prompt *to, const json_t *ids, int64_t vocab)
{
    size_t i;
    const json_t *id;
    json_array_foreach(ids, i, id)
    {
        const json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (n < 0 || n >= vocab)
            return prompt_error(p, to, "input_ids[%zu] is no token (expected 0 to %lld)", i, (long long)vocab - 1);
        tess_ids_push(&to->ids, (int32_t)n);
    }
    return TESS_OK;
}

static tess_status read_example(tess_prompts *p, int64_t line, const char *text, size_t length, int64_t vocab)
{
    json_error_t e;
    TESS_FREED_JSON json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    tess_prompt *to = add(p);
    to->line = line;
    const json_t *said = json_object_get(root, "prompt"), *ids = json_object_get(root, "input_ids");
    tess_status status = TESS_OK;
    if (!root)
        status = prompt_error(p, to, "column %d: %s", e.column, e.text);
    else if (json_is_string(said) && strlen(json_string_value(said)) == json_string_length(said))
        to->text = tess_strdup(json_string_value(said));
    else if (json_array_size(json_object_get(root, "messages")) > 0)
        to->talk = json_incref(root);
    else if (json_is_array(ids) && json_array_size(ids) > 0)
        status = read_ids(p, to, ids, vocab);
    else
        status = prompt_error(
            p, to, "has no prompt (expected {\"prompt\": TEXT}, {\"messages\": [...]} or {\"input_ids\": [...]})");
    return status;
}

tess_status tess_prompts_read(tess_prompts *p, const char *path, int64_t vocab)
{
    p->form = tess_ends(path, ".jsonl") ? TESS_PROMPTS_EXAMPLES : TESS_PROMPTS_LINES;
    p->where = path;
    FILE *f = fopen(path, "r");
    if (!f) return tess_error(TESS_INVALID, path, "%s", strerror(errno));
    char *text = NULL;
    size_t room = 0;
    ssize_t n;
    tess_status status = TESS_OK;
    for (int64_t line = 1; status == TESS_OK && (n = getline(&text, &room, f)) >= 0; line++) {
        while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) text[--n] = 0;
        if (n == 0) continue;
        if (p->form == TESS_PROMPTS_EXAMPLES) {
            status = read_example(p, line, text, (size_t)n, vocab);
            continue;
        }
        tess_prompt *to = add(p);
        to->line = line;
        if (strlen(text) != (size_t)n) status = prompt_error(p, to, "has a 0 byte in it (expected UTF-8)");
        to->text = tess_strdup(text);
    }
    if (status == TESS_OK && ferror(f)) status = tess_error(TESS_INVALID, path, "%s", strerror(errno));
    free(text);
    fclose(f);
    if (status == TESS_OK && p->count == 0)
        status = tess_error(TESS_INVALID, path, "has no prompt (expected one a line, or {\"prompt\"} in a .jsonl)");
    return status;
}

void tess_prompts_free(tess_prompts *p)
{
    for (size_t i = 0; i < p->count; i++) {
        free(p->prompt[i].text);
        json_decref(p->prompt[i].talk);
        tess_ids_free(&p->prompt[i].ids);
    }
    free(p->prompt);
    *p = (tess_prompts){0};
}

/* ---- writing ---- */

static void write_line(const char *text, FILE *out)
{
    for (; *text; text++) {
        if (*text == '\n')
            fputs("\\n", out);
        else if (*text == '\r')
            fputs("\\r", out);
        else if (*text == '\\')
            fputs("\\\\", out);
        else
            fputc(*text, out);
    }
}

static json_t *ids_of(const int32_t *ids, size_t count)
{
    json_t *all = json_array();
    for (size_t i = 0; i < count; i++) json_array_append_new(all, json_integer(ids[i]));
    return all;
}

void tess_prompt_write(const tess_prompts *p, const tess_prompt *of, const tess_tokenizer *t, const int32_t *added,
                       size_t count, bool with_prompt, FILE *out)
{
    size_t length = 0;
    TESS_FREED char *text = of->text || of->talk ? tess_tokenizer_decode(t, added, count, &length) : NULL;
    if (p->form == TESS_PROMPTS_LINES) {
        if (with_prompt) write_line(of->text, out);
        write_line(text, out);
    } else {
        TESS_FREED_JSON json_t *line = of->talk ? json_deep_copy(of->talk) : json_object();
        if (of->talk) {
            json_t *answer = json_stringn(text, length);
            json_array_append_new(
                json_object_get(line, "messages"),
                json_pack("{s:s, s:o}", "role", "assistant", "content", answer ? answer : json_string("(not UTF-8)")));
        } else if (of->text) {
            json_object_set_new(line, "prompt", json_string(of->text));
            json_object_set_new(line, "completion", json_string(text));
        } else {
            json_object_set_new(line, "input_ids", ids_of(of->ids.id, of->ids.count));
            json_object_set_new(line, "output_ids", ids_of(added, count));
        }
        json_dumpf(line, out, JSON_PRESERVE_ORDER);
    }
    fputc('\n', out);
    fflush(out);
}
