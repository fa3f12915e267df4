/* What a task comes to: how many of its questions a model gets right, as lm-evaluation-harness counts, in a table, and
 * each answer in a line of its own. */
#include "models/text/base/text.h"
#include "models/train/generate/texts.h"
#include "models/train/tasks/tasks_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The mean of a number that each question has, and the standard error of it as a sample's. */
struct metric {
    const char *name;
    double sum, squares;
    bool perplexity; /* exp of minus the mean, in the table alone */
};
enum { METRICS = 4 };

struct task {
    tess_questions q;
    struct metric metric[METRICS];
    int metrics;
};

/* ---- answers ---- */

static tess_status write_all(tess_questions *q, const tess_config *c)
{
    if (tess_ranks() > 1)
        return tess_error(TESS_INVALID, q->path,
                          "its texts are written by one process, and there are %d ranks (one does)", tess_ranks());
    if (c->model_json)
        return tess_error(TESS_INVALID, q->path,
                          "texts are written by the model of a directory as it is (leave out the "
                          "fields that change it)");
    tess_generate_conf conf = {.dir = c->model, .adapter = c->lora.from, .config = c};
    tess_asked *asked = tess_alloc(q->count * sizeof *asked);
    for (size_t i = 0; i < q->count; i++) {
        const tess_question *of = &q->question[i];
        const size_t n = json_array_size(of->until);
        const char **until = tess_alloc((n + 1) * sizeof *until);
        for (size_t k = 0; k < n; k++) until[k] = json_string_value(json_array_get(of->until, k));
        asked[i] =
            (tess_asked){.prompt = of->prompt, .line = of->line, .tokens = of->tokens, .until = until, .untils = n};
        if (of->tokens > conf.tokens) conf.tokens = (int)of->tokens;
    }
    const tess_status status = tess_generate_asked(&conf, q->path, asked, q->count);
    for (size_t i = 0; i < q->count; i++) {
        q->question[i].written = asked[i].written;
        free((void *)asked[i].until);
    }
    free(asked);
    return status;
}

static double characters(const char *text)
{
    double n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

/* The length of a choice, its blanks in front left out: 1, or in characters, bytes or tokens. */
static double length_of(const tess_request *r, int metric)
{
    const char *text = r->continuation + strspn(r->continuation, " ");
    if (!*text) text = r->continuation;
    return metric == 0 ? 1 : metric == 1 ? characters(text) : metric == 2 ? (double)strlen(text) : (double)r->continues;
}

/* The likeliest choice, the first of several. */
static size_t choice(const struct task *t, const tess_question *of, int metric)
{
    const tess_request *r = &t->q.request[of->first];
    size_t best = 0;
    for (size_t k = 1; k < of->count; k++)
        if (r[k].logprob / length_of(&r[k], metric) > r[best].logprob / length_of(&r[best], metric)) best = k;
    return best;
}

static bool is_answer(const tess_question *of, size_t n)
{
    size_t i;
    const json_t *answer;
    json_array_foreach(of->answers, i, answer) if ((size_t)json_integer_value(answer) == n) return true;
    return false;
}

static const char *trimmed(const char *text, size_t *n)
{
    const char *blank = " \t\r\n";
    text += strspn(text, blank);
    for (*n = strlen(text); *n && strchr(blank, text[*n - 1]);) --*n;
    return text;
}

static bool is_written(const tess_question *of)
{
    size_t i, n, m;
    const json_t *answer;
    json_array_foreach(of->answers, i, answer)
    {
        const char *said = json_string_value(answer), *a = trimmed(of->written, &n), *b = trimmed(said, &m);
        if (of->bare ? n == m && !memcmp(a, b, n) : !strcmp(of->written, said)) return true;
    }
    return false;
}

/* A question's number for a metric. */
static double value_of(const struct task *t, const tess_question *of, int metric)
{
    const tess_request *r = &t->q.request[of->first];
    if (t->q.kind == TESS_CHOOSES) return is_answer(of, choice(t, of, metric));
    if (t->q.kind == TESS_CONTINUES) return metric == 0 ? r->greedy : r->logprob;
    return is_written(of);
}

static void count(struct task *t)
{
    static const struct {
        int metrics;
        const char *name[METRICS];
    } of[] = {[TESS_CHOOSES] = {4, {"acc", "acc_norm", "acc_bytes", "acc_tokens"}},
              [TESS_CONTINUES] = {2, {"acc", "perplexity"}},
              [TESS_WRITES] = {1, {"exact_match"}}};
    t->metrics = of[t->q.kind].metrics;
    for (int m = 0; m < t->metrics; m++) {
        t->metric[m] = (struct metric){.name = of[t->q.kind].name[m], .perplexity = t->q.kind == TESS_CONTINUES && m};
        for (size_t i = 0; i < t->q.count; i++) t->metric[m].sum += value_of(t, &t->q.question[i], m);
        const double mean = t->metric[m].sum / (double)t->q.count;
        for (size_t i = 0; i < t->q.count; i++)
            t->metric[m].squares += pow(value_of(t, &t->q.question[i], m) - mean, 2);
    }
}

/* ---- what is said ---- */

static void print_table(const struct task *t, FILE *out)
{
    const char *slash = strrchr(t->q.path, '/'), *name = slash ? slash + 1 : t->q.path, *dot = strrchr(name, '.');
    const int length = dot && dot > name ? (int)(dot - name) : (int)strlen(name), wide = length > 4 ? length : 4;
    const double n = (double)t->q.count;
    fprintf(out, "%-*s  %6s  %-11s  %10s  %10s\n", wide, "task", "n", "metric", "value", "stderr");
    for (int m = 0; m < t->metrics; m++) {
        const struct metric *of = &t->metric[m];
        const double mean = of->sum / n, value = of->perplexity ? exp(-mean) : mean;
        const double error = sqrt(of->squares / (n - 1) / n) * (of->perplexity ? value : 1);
        fprintf(out, "%-*.*s  %6zu  %-11s  %10.6f  ", wide, length, name, t->q.count, of->name, value);
        if (n > 1)
            fprintf(out, "%10.6f\n", error);
        else
            fprintf(out, "%10s\n", "-");
    }
}

static json_t *line_of(const struct task *t, const tess_question *of)
{
    json_t *line = json_object(), *resps = json_array(), *tokens = json_array(),
           *id = json_object_get(of->json, "doc_id");
    if (id) json_object_set(line, "doc_id", id);
    json_object_set_new(line, "line", json_integer(of->line));
    for (size_t k = 0; k < of->count; k++) {
        const tess_request *r = &t->q.request[of->first + k];
        json_array_append_new(resps, json_pack("[f, b]", r->logprob, (int)r->greedy));
        json_array_append_new(tokens, json_integer(r->continues));
    }
    if (of->written) json_array_append_new(resps, json_string(of->written));
    json_object_set_new(line, "filtered_resps", resps);
    if (of->count) json_object_set(line, "tokens", tokens);
    json_decref(tokens);
    if (of->answers) json_object_set(line, "target", of->answers);
    if (t->q.kind == TESS_CHOOSES) json_object_set_new(line, "choice", json_integer((json_int_t)choice(t, of, 0)));
    for (int m = 0; m < t->metrics; m++)
        if (!t->metric[m].perplexity)
            json_object_set_new(line, t->metric[m].name, json_integer((json_int_t)value_of(t, of, m)));
    return line;
}

static tess_status write_lines(const struct task *t, const char *path, FILE *f)
{
    for (size_t i = 0; i < t->q.count; i++) {
        json_t *line = line_of(t, &t->q.question[i]);
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
        json_decref(line);
    }
    const bool failed = ferror(f);
    return fclose(f) || failed ? tess_error(TESS_FAILED, path, "cannot be written: %s", strerror(errno)) : TESS_OK;
}

tess_status tess_eval_task(const tess_config *c, const char *file, const char *samples, FILE *out)
{
    if (!c || !file || !out) return tess_error(TESS_INVALID, "eval", "a configuration, a file or an output is NULL");
    struct task t = {0};
    FILE *f = NULL;
    tess_status status = tess_questions_read(&t.q, file);
    if (status == TESS_OK && samples && !tess_rank() && !(f = fopen(samples, "w")))
        status = tess_error(TESS_INVALID, samples, "%s", strerror(errno));
    TESS_TRY_DONE(tess_ranks_agree(status));
    TESS_TRY_DONE(t.q.kind == TESS_WRITES ? write_all(&t.q, c) : tess_questions_score(&t.q, c));
    count(&t);
    if (!tess_rank()) print_table(&t, out);
    if (f) status = write_lines(&t, samples, f), f = NULL;
done:
    if (f) fclose(f);
    tess_questions_free(&t.q);
    return status;
}
