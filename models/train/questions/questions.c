/* Questions out of a file: each line is one. The fields of lm-evaluation-harness's samples have their names there. */
#include "models/train/questions/questions.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { TOKENS = 256 }; /* that are written where nothing else is said, as lm-evaluation-harness has it */

tess_status tess_question_error(const tess_questions *q, const tess_question *of, const char *format, ...)
{
    char what[512], where[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(where, sizeof where, "%.400s:%lld", q->path, (long long)of->line);
    return tess_error(TESS_INVALID, where, "%s", what);
}

static void add_request(tess_questions *q, tess_question *to, const char *context, const char *continuation)
{
    if (q->requests == q->requests_room) {
        q->requests_room = q->requests_room ? 2 * q->requests_room : 64;
        q->request = tess_realloc(q->request, q->requests_room * sizeof *q->request);
    }
    q->request[q->requests++] = (tess_request){.context = context, .continuation = continuation};
    to->count++;
}

/* ---- answers ---- */

static tess_status check_number(const tess_questions *q, const tess_question *of, const json_t *n)
{
    if (json_is_integer(n) && json_integer_value(n) >= 0 && (size_t)json_integer_value(n) < of->count) return TESS_OK;
    TESS_FREED char *text = json_dumps(n, JSON_ENCODE_ANY);
    return tess_question_error(q, of, "answer %.60s, expected the number of a choice, 0 to %zu", text, of->count - 1);
}

/* The number of the one choice that has this text; -1: none, or several. */
static json_int_t choice_of(const tess_questions *q, const tess_question *of, const char *text)
{
    json_int_t found = -1;
    for (size_t k = 0; k < of->count; k++) {
        const char *choice = q->request[of->first + k].continuation;
        if (strcmp(choice + strspn(choice, " "), text + strspn(text, " "))) continue;
        if (found >= 0) return -1;
        found = (json_int_t)k;
    }
    return found;
}

/* The answer of choices: a number, or several; as a text, which samples have, too, or the text of a choice. */
static tess_status take_numbers(const tess_questions *q, tess_question *to, json_t *said)
{
    json_t *made = json_incref(said);
    const char *text = json_string_value(said);
    if (text) {
        json_decref(made);
        made = json_loads(text, JSON_DECODE_ANY, NULL);
        const json_int_t named = made ? -1 : choice_of(q, to, text);
        if (!made && named < 0)
            return tess_question_error(q, to, "answer \"%.60s\" is not one of its %zu choices", text, to->count);
        if (!made) made = json_integer(named);
    }
    if (!json_is_array(made)) {
        json_t *one = made;
        made = json_array();
        json_array_append_new(made, one ? one : json_null());
    }
    json_object_set_new(to->json, "tessera answers", made);
    to->answers = made;
    if (!json_array_size(made)) return tess_question_error(q, to, "has no answer");
    size_t i;
    const json_t *n;
    json_array_foreach(made, i, n) TESS_TRY(check_number(q, to, n));
    return TESS_OK;
}

/* Texts: one, or a list of them. */
static tess_status take_texts(const tess_questions *q, const tess_question *to, const char *name, json_t *said,
                              json_t **texts)
{
    size_t i;
    const json_t *text;
    *texts = said;
    if (json_is_string(said)) {
        *texts = json_array();
        json_array_append(*texts, said);
        TESS_FREED char *own = tess_format("tessera %s", name);
        json_object_set_new(to->json, own, *texts);
    }
    if (!json_is_array(*texts)) return tess_question_error(q, to, "%s is no text, and no list of texts", name);
    json_array_foreach(*texts, i, text)
    {
        if (!json_is_string(text)) return tess_question_error(q, to, "%s[%zu] is no text", name, i);
    }
    return TESS_OK;
}

/* ---- lines ---- */

static tess_status take_kind(tess_questions *q, const tess_question *to, tess_question_kind kind)
{
    static const char *const name[] = {"of choices", "of one continuation", "of a text to write"};
    if (q->count > 1 && kind != q->kind)
        return tess_question_error(q, to, "a question %s behind those %s (expected a file of one kind)", name[kind],
                                   name[q->kind]);
    q->kind = kind;
    return TESS_OK;
}

/* How a text is written: of samples what their task had for that. */
static tess_status take_writing(tess_questions *q, tess_question *to, const char *prompt, json_t *how, json_t *answer)
{
    const json_t *most = json_object_get(how, "max_gen_toks");
    json_t *until = json_object_get(how, "until");
    if (!most) most = json_object_get(how, "max_tokens");
    TESS_TRY(take_kind(q, to, TESS_WRITES));
    if (json_is_true(json_object_get(how, "do_sample")) && json_number_value(json_object_get(how, "temperature")) > 0)
        return tess_question_error(q, to, "do_sample is true, but the likeliest text is written here (expected false)");
    if (most && (!json_is_integer(most) || json_integer_value(most) < 1 || json_integer_value(most) > 1 << 20))
        return tess_question_error(q, to, "max_gen_toks is no number of tokens (expected 1 to %d)", 1 << 20);
    to->prompt = prompt;
    to->tokens = most ? json_integer_value(most) : TOKENS;
    if (until && !json_is_null(until)) TESS_TRY(take_texts(q, to, "until", until, &to->until));
    return take_texts(q, to, "answer", answer, &to->answers);
}

/* The k-th request of a sample: {"arg_0", "arg_1"}, or in files of earlier versions [arg_0, arg_1]. */
static const json_t *argument_of(const json_t *arguments, size_t k, const char *name, size_t place)
{
    char key[32];
    snprintf(key, sizeof key, "gen_args_%zu", k);
    const json_t *pair = json_is_array(arguments) ? json_array_get(arguments, k) : json_object_get(arguments, key);
    return json_is_array(pair) ? json_array_get(pair, place) : json_object_get(pair, name);
}

static tess_status take_sample(tess_questions *q, tess_question *to, const json_t *arguments)
{
    const size_t n = json_is_array(arguments) ? json_array_size(arguments) : json_object_size(arguments);
    json_t *target = json_object_get(to->json, "target");
    for (size_t k = 0; k < n; k++) {
        const json_t *context = argument_of(arguments, k, "arg_0", 0), *second = argument_of(arguments, k, "arg_1", 1);
        if (json_is_string(context) && json_is_object(second) && n == 1)
            return take_writing(q, to, json_string_value(context), (json_t *)second, target);
        if (!json_is_string(context) || !json_is_string(second))
            return tess_question_error(q, to,
                                       "arguments: number %zu is no pair of texts, and no text with settings "
                                       "(expected \"arg_0\" and \"arg_1\" of a request)",
                                       k);
        add_request(q, to, json_string_value(context), json_string_value(second));
    }
    if (!n) return tess_question_error(q, to, "arguments are empty");
    TESS_TRY(take_kind(q, to, n > 1 ? TESS_CHOOSES : TESS_CONTINUES));
    return n > 1 ? take_numbers(q, to, target) : TESS_OK;
}

static tess_status take_choices(tess_questions *q, tess_question *to, const char *context, const json_t *choices)
{
    size_t i;
    const json_t *choice;
    if (!json_is_array(choices) || json_array_size(choices) < 2)
        return tess_question_error(q, to, "choices are no list of two texts or more");
    json_array_foreach(choices, i, choice)
    {
        if (!json_is_string(choice)) return tess_question_error(q, to, "choices[%zu] is no text", i);
        add_request(q, to, context, json_string_value(choice));
    }
    TESS_TRY(take_kind(q, to, TESS_CHOOSES));
    return take_numbers(q, to, json_object_get(to->json, "answer"));
}

static bool has_nul(const json_t *v)
{
    const char *name;
    const json_t *of;
    size_t i;
    if (json_is_string(v)) return json_string_length(v) != strlen(json_string_value(v));
    json_array_foreach(v, i, of) if (has_nul(of)) return true;
    json_object_foreach((json_t *)v, name, of) if (has_nul(of)) return true;
    return false;
}

/* What a model wrote, which samples have, may have one. */
static tess_status check_texts(const tess_questions *q, const tess_question *to)
{
    static const char *const used[] = {"arguments",    "target", "context", "choices",
                                       "continuation", "prompt", "answer",  "until"};
    for (size_t k = 0; k < sizeof used / sizeof *used; k++)
        if (has_nul(json_object_get(to->json, used[k])))
            return tess_question_error(q, to, "%s: has the character NUL, which no text may have", used[k]);
    return TESS_OK;
}

static tess_status take_line(tess_questions *q, tess_question *to)
{
    TESS_TRY(check_texts(q, to));
    const json_t *arguments = json_object_get(to->json, "arguments"), *choices = json_object_get(to->json, "choices");
    const char *context = tess_json_text(to->json, "context"), *prompt = tess_json_text(to->json, "prompt"),
               *continuation = tess_json_text(to->json, "continuation");
    json_t *answer = json_object_get(to->json, "answer");
    if (arguments) return take_sample(q, to, arguments);
    if (context && choices) return take_choices(q, to, context, choices);
    to->bare = true;
    if (prompt && answer) return take_writing(q, to, prompt, to->json, answer);
    if (!context || !continuation)
        return tess_question_error(
            q, to,
            "is no question (expected {\"context\", \"choices\", \"answer\"}, {\"context\", \"continuation\"}, "
            "{\"prompt\", \"answer\"}, or a line of lm-evaluation-harness's samples)");
    add_request(q, to, context, continuation);
    return take_kind(q, to, TESS_CONTINUES);
}

static tess_status read_line(tess_questions *q, int64_t line, const char *text, size_t length)
{
    json_error_t e;
    if (q->count == q->room) {
        q->room = q->room ? 2 * q->room : 64;
        q->question = tess_realloc(q->question, q->room * sizeof *q->question);
    }
    tess_question *to = &q->question[q->count++];
    *to = (tess_question){.line = line, .first = q->requests};
    to->json = tess_json_parse(text, length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!to->json) return tess_question_error(q, to, "column %d: %s", e.column, e.text);
    return take_line(q, to);
}

tess_status tess_questions_read(tess_questions *q, const char *path)
{
    q->path = path;
    FILE *f = fopen(path, "r");
    if (!f) return tess_error(TESS_INVALID, path, "%s", strerror(errno));
    TESS_FREED char *text = NULL;
    size_t room = 0;
    ssize_t n;
    tess_status status = TESS_OK;
    for (int64_t line = 1; status == TESS_OK && (n = getline(&text, &room, f)) >= 0; line++)
        if (text[strspn(text, " \t\r\n")]) status = read_line(q, line, text, (size_t)n);
    if (status == TESS_OK && ferror(f)) status = tess_error(TESS_INVALID, path, "%s", strerror(errno));
    if (status == TESS_OK && !q->count)
        status = tess_error(TESS_INVALID, path, "has no question (expected one a line)");
    fclose(f);
    return status;
}

void tess_questions_free(tess_questions *q)
{
    for (size_t i = 0; i < q->count; i++) json_decref(q->question[i].json), free(q->question[i].written);
    for (size_t i = 0; i < q->requests; i++) tess_ids_free(&q->request[i].ids);
    free(q->question);
    free(q->request);
    *q = (tess_questions){0};
}
