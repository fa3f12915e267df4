/* What a task comes to: how many of its questions a model gets right, as lm-evaluation-harness counts. */
#include "models/train/questions/questions.h"
#include <math.h>
#include <string.h>

static double characters(const char *text)
{
    double n = 0;
    for (; *text; text++) n += (*text & 0xc0) != 0x80;
    return n;
}

/* The length of a choice, its blanks in front left out: 1, or in characters, bytes or tokens. */
static double length_of(const tess_request *r, int place)
{
    const char *text = r->continuation + strspn(r->continuation, " ");
    if (!*text) text = r->continuation;
    return place == 0 ? 1 : place == 1 ? characters(text) : place == 2 ? (double)strlen(text) : (double)r->continues;
}

size_t tess_question_choice(const tess_questions *q, const tess_question *of, int place)
{
    const tess_request *r = &q->request[of->first];
    size_t best = 0;
    for (size_t k = 1; k < of->count; k++)
        if (r[k].logprob / length_of(&r[k], place) > r[best].logprob / length_of(&r[best], place)) best = k;
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

double tess_question_value(const tess_questions *q, const tess_question *of, int place)
{
    const tess_request *r = &q->request[of->first];
    if (q->kind == TESS_CHOOSES) return is_answer(of, tess_question_choice(q, of, place));
    if (q->kind == TESS_CONTINUES) return place == 0 ? r->greedy : r->logprob;
    return is_written(of);
}

int tess_questions_count(const tess_questions *q, tess_count count[static TESS_COUNTS])
{
    static const struct {
        int counts;
        const char *name[TESS_COUNTS];
    } of[] = {[TESS_CHOOSES] = {4, {"acc", "acc_norm", "acc_bytes", "acc_tokens"}},
              [TESS_CONTINUES] = {2, {"acc", "perplexity"}},
              [TESS_WRITES] = {1, {"exact_match"}}};
    const double n = (double)q->count;
    for (int k = 0; k < of[q->kind].counts; k++) {
        double sum = 0, squares = 0;
        for (size_t i = 0; i < q->count; i++) sum += tess_question_value(q, &q->question[i], k);
        const double mean = sum / n;
        for (size_t i = 0; i < q->count; i++) squares += pow(tess_question_value(q, &q->question[i], k) - mean, 2);
        const bool perplexity = q->kind == TESS_CONTINUES && k;
        const double value = perplexity ? exp(-mean) : mean, error = sqrt(squares / (n - 1) / n);
        count[k] = (tess_count){.name = of[q->kind].name[k],
                                .value = value,
                                .error = n > 1 ? error * (perplexity ? value : 1) : NAN,
                                .perplexity = perplexity};
    }
    return of[q->kind].counts;
}

int tess_questions_name(const tess_questions *q, const char **name)
{
    const char *slash = strrchr(q->path, '/');
    *name = slash ? slash + 1 : q->path;
    const char *dot = strrchr(*name, '.');
    return dot && dot > *name ? (int)(dot - *name) : (int)strlen(*name);
}
