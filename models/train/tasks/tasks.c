/* What a task comes to: how many of its questions a model gets right, as lm-evaluation-harness counts, in a table, and
 * each answer in a line of its own. */
#include "models/text/base/text.h"
#include "models/train/generate/texts.h"
#include "models/train/loop/evaluation.h"
#include "models/train/questions/questions.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct task {
    tess_questions q;
    tess_count count[TESS_COUNTS];
    int counts;
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
    TESS_FREED tess_asked *asked = tess_alloc(q->count * sizeof *asked);
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
    return status;
}

static tess_status score(tess_questions *q, const tess_config *c)
{
    tess_evaluation e = {.given = c, .alone = true};
    tess_scoring *s = NULL;
    tess_status status;
    TESS_TRY_DONE(tess_evaluation_open(&e));
    TESS_TRY_DONE(tess_ranks_agree(tess_scoring_new(&e.run, q, c->train_micro_batch_size_per_gpu, &s)));
    TESS_TRY_DONE(tess_ranks_agree(tess_scoring_plan(s, true)));
    TESS_TRY_DONE(tess_evaluation_load(&e));
    status = tess_scoring_run(s);
done:
    tess_scoring_free(s);
    tess_evaluation_close(&e);
    tess_stop();
    return status;
}

/* ---- what is said ---- */

static void print_table(const struct task *t, FILE *out)
{
    const char *name;
    const int length = tess_questions_name(&t->q, &name), wide = length > 4 ? length : 4;
    fprintf(out, "%-*s  %6s  %-11s  %10s  %10s\n", wide, "task", "n", "metric", "value", "stderr");
    for (int m = 0; m < t->counts; m++) {
        const tess_count *of = &t->count[m];
        fprintf(out, "%-*.*s  %6zu  %-11s  %10.6f  ", wide, length, name, t->q.count, of->name, of->value);
        if (t->q.count > 1)
            fprintf(out, "%10.6f\n", of->error);
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
    if (t->q.kind == TESS_CHOOSES)
        json_object_set_new(line, "choice", json_integer((json_int_t)tess_question_choice(&t->q, of, 0)));
    for (int m = 0; m < t->counts; m++)
        if (!t->count[m].perplexity)
            json_object_set_new(line, t->count[m].name, json_integer((json_int_t)tess_question_value(&t->q, of, m)));
    return line;
}

static tess_status write_lines(const struct task *t, const char *path, FILE *f)
{
    for (size_t i = 0; i < t->q.count; i++) {
        TESS_FREED_JSON json_t *line = line_of(t, &t->q.question[i]);
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
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
    TESS_TRY_DONE(t.q.kind == TESS_WRITES ? write_all(&t.q, c) : score(&t.q, c));
    t.counts = tess_questions_count(&t.q, t.count);
    if (!tess_rank()) print_table(&t, out);
    if (f) status = write_lines(&t, samples, f), f = NULL;
done:
    if (f) fclose(f);
    tess_questions_free(&t.q);
    return status;
}
