/* Lines as other tools write them, in our own words: ShareGPT's conversations, TRL's prompts of messages, and the
 * instructions of Alpaca. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/base/text.h"
#include <string.h>

#define BAD(line, ...) tess_line_error((line)->rows, (line)->byte, tess_format(__VA_ARGS__))

/* Who speaks, as ShareGPT says it and as templates do. */
static const char *const roles[][2] = {{"human", "user"},          {"user", "user"},     {"gpt", "assistant"},
                                       {"chatgpt", "assistant"},   {"bot", "assistant"}, {"model", "assistant"},
                                       {"assistant", "assistant"}, {"system", "system"}, {"tool", "tool"},
                                       {"observation", "tool"}};

/* A string of a line; "" where it is missing and may be. */
static tess_status text_of(const tess_line *line, const json_t *root, const char *name, bool needed,
                           const json_t **text)
{
    *text = json_object_get(root, name);
    if (json_is_null(*text)) *text = NULL;
    if (!*text && needed) return BAD(line, "has no \"%s\"", name);
    if (*text && !json_is_string(*text)) return BAD(line, "\"%s\" is no string", name);
    if (*text && strlen(json_string_value(*text)) != json_string_length(*text))
        return BAD(line, "\"%s\" has a character of the number 0", name);
    return TESS_OK;
}

static void add(json_t *messages, const char *role, const json_t *content)
{
    json_array_append_new(messages, json_pack("{s:s, s:O}", "role", role, "content", (json_t *)content));
}

/* "system" of the line, which some put beside the turns. */
static tess_status begin(const tess_line *line, json_t *root, json_t **messages)
{
    const json_t *system;
    TESS_TRY(text_of(line, root, "system", false, &system));
    *messages = json_array();
    json_object_set_new(root, "messages", *messages);
    if (system && json_string_length(system)) add(*messages, "system", system);
    return TESS_OK;
}

tess_status tess_form_turns(const tess_line *line, json_t *root)
{
    const json_t *turns = json_object_get(root, "conversations"), *turn;
    json_t *messages;
    size_t i;
    if (!json_is_array(turns)) return BAD(line, "\"conversations\" is no list of turns");
    TESS_TRY(begin(line, root, &messages));
    json_array_foreach(turns, i, turn)
    {
        const bool ours = json_object_get(turn, "role") != NULL;
        const json_t *from = json_object_get(turn, ours ? "role" : "from"),
                     *value = json_object_get(turn, ours ? "content" : "value");
        const char *role = NULL;
        if (!json_is_string(from) || !json_is_string(value))
            return BAD(line, "\"conversations\"[%zu] is no object with \"from\" and \"value\"", i);
        for (size_t k = 0; k < sizeof roles / sizeof *roles; k++)
            if (!strcmp(roles[k][0], json_string_value(from))) role = roles[k][1];
        if (!role)
            return BAD(line, "\"conversations\"[%zu]: \"%.40s\" is an unknown role (expected human, gpt, system)", i,
                       json_string_value(from));
        add(messages, role, value);
    }
    return TESS_OK;
}

tess_status tess_form_pair_talk(const tess_line *line, json_t *root, int *prompt)
{
    static const char *const part[] = {"prompt", "completion"};
    json_t *messages = json_array();
    json_object_set_new(root, "messages", messages);
    for (int i = 0; i < 2; i++) {
        json_t *list = json_object_get(root, part[i]);
        if (list && !json_is_array(list))
            return BAD(line, "\"%s\" is no list of messages, and \"%s\" is one (both are texts, or both messages)",
                       part[i], part[1 - i]);
        if (!json_array_size(list)) return BAD(line, "\"%s\" has no message", part[i]);
        json_array_extend(messages, list);
        if (i == 0) *prompt = (int)json_array_size(list);
    }
    return TESS_OK;
}

/* ---- choices ---- */

/* What both lists begin with is the prompt, and goes. */
static tess_status find_prompt(const tess_line *line, json_t *root, json_t *chosen, json_t *rejected)
{
    json_t *prompt = json_array();
    json_object_set_new(root, "prompt", prompt);
    while (json_array_size(chosen) && json_equal(json_array_get(chosen, 0), json_array_get(rejected, 0))) {
        json_array_append(prompt, json_array_get(chosen, 0));
        json_array_remove(chosen, 0);
        json_array_remove(rejected, 0);
    }
    if (json_array_size(prompt)) return TESS_OK;
    return BAD(line, "has no \"prompt\", and \"chosen\" and \"rejected\" begin with no message that they share");
}

tess_status tess_form_choice(const tess_line *line, json_t *root, bool rejected)
{
    static const char *const part[] = {"chosen", "rejected"};
    json_t *of[2];
    for (int i = 0; i < 2; i++) {
        of[i] = json_object_get(root, part[i]);
        if (!of[i]) return BAD(line, "has no \"%s\"", part[i]);
        if (!json_is_string(of[i]) && !json_is_array(of[i]))
            return BAD(line, "\"%s\" is neither a text nor a list of messages", part[i]);
        if (json_is_array(of[i]) != json_is_array(of[0]))
            return BAD(line, "of \"chosen\" and \"rejected\" one is a text, and one messages");
    }
    const json_t *prompt = json_object_get(root, "prompt");
    const bool talk = json_is_array(of[0]);
    if (talk && !json_is_array(prompt)) TESS_TRY(find_prompt(line, root, of[0], of[1]));
    if (!talk && !json_is_string(prompt))
        return BAD(line, prompt ? "\"chosen\" is a text, and \"prompt\" is none" : "has no \"prompt\"");
    for (int i = 0; i < 2 && talk; i++)
        if (!json_array_size(of[i])) return BAD(line, "\"%s\" has no message to learn from", part[i]);
    json_object_set(root, "completion", of[rejected]);
    return TESS_OK;
}

/* ---- instructions ---- */

struct task {
    const json_t *instruction, *input, *output;
};

static tess_status task_of(const tess_line *line, const json_t *root, struct task *t)
{
    TESS_TRY(text_of(line, root, "instruction", true, &t->instruction));
    TESS_TRY(text_of(line, root, "input", false, &t->input));
    TESS_TRY(text_of(line, root, "output", true, &t->output));
    if (t->input && !json_string_length(t->input)) t->input = NULL;
    return TESS_OK;
}

/* The instruction, and behind it on a line of its own what it is about. */
static json_t *asked(const struct task *t)
{
    return t->input ? json_sprintf("%s\n%s", json_string_value(t->instruction), json_string_value(t->input))
                    : json_incref((json_t *)t->instruction);
}

tess_status tess_form_task_talk(const tess_line *line, json_t *root)
{
    const json_t *history = json_object_get(root, "history"), *pair;
    struct task t;
    json_t *messages;
    size_t i;
    TESS_TRY(task_of(line, root, &t));
    TESS_TRY(begin(line, root, &messages));
    json_array_foreach(history, i, pair)
    {
        if (json_array_size(pair) != 2 || !json_is_string(json_array_get(pair, 0)) ||
            !json_is_string(json_array_get(pair, 1)))
            return BAD(line, "\"history\"[%zu] is no pair of an instruction and an answer", i);
        add(messages, "user", json_array_get(pair, 0));
        add(messages, "assistant", json_array_get(pair, 1));
    }
    TESS_FREED_JSON json_t *first = asked(&t);
    add(messages, "user", first);
    add(messages, "assistant", t.output);
    return TESS_OK;
}

tess_status tess_form_task_pair(const tess_line *line, json_t *root, bool bare)
{
    struct task t;
    TESS_TRY(task_of(line, root, &t));
    if (json_array_size(json_object_get(root, "history")))
        return BAD(line, "\"history\" needs the chat_template of a model's directory, and there is none");
    json_t *prompt = bare ? asked(&t)
                     : t.input
                         ? json_sprintf("Below is an instruction that describes a task, paired with an input that "
                                        "provides further context. Write a response that appropriately completes the "
                                        "request.\n\n### Instruction:\n%s\n\n### Input:\n%s\n\n### Response:\n",
                                        json_string_value(t.instruction), json_string_value(t.input))
                         : json_sprintf("Below is an instruction that describes a task. Write a response that "
                                        "appropriately completes the request.\n\n### Instruction:\n%s\n\n### "
                                        "Response:\n",
                                        json_string_value(t.instruction));
    json_object_set_new(root, "prompt", prompt);
    json_object_set(root, "completion", (json_t *)t.output);
    return TESS_OK;
}
