/* The tasks of a run that trains: each file of eval.tasks has passes of its own, over the run's weights where they lie.
 */
#include "models/train/questions/questions.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

struct tess_run_tasks {
    json_t *files; /* their paths */
    size_t count;
    tess_questions *questions;
    tess_scoring **scoring;
    tess_task_number *number;
};

static tess_status check_name(const tess_run_tasks *t, size_t k, const char *where)
{
    const char *name, *other;
    const int length = tess_questions_name(&t->questions[k], &name);
    for (size_t i = 0; i < k; i++)
        if (tess_questions_name(&t->questions[i], &other) == length && !memcmp(name, other, (size_t)length))
            return tess_error(TESS_INVALID, where, "two files are called %.*s, as their numbers would be (rename one)",
                              length, name);
    if (t->questions[k].kind == TESS_WRITES)
        return tess_error(TESS_INVALID, where,
                          "%s has texts to write, which a run that trains does not (tessera eval --task has a "
                          "checkpoint write them)",
                          t->questions[k].path);
    return TESS_OK;
}

tess_status tess_run_tasks_open(tess_run *r, tess_run_tasks **tasks)
{
    char where[512];
    *tasks = NULL;
    if (!r->c->eval.tasks) return TESS_OK;
    snprintf(where, sizeof where, "%.300s: eval.tasks", r->c->file);
    tess_run_tasks *t = *tasks = tess_alloc(sizeof *t);
    t->files = tess_config_list(r->c->eval.tasks);
    t->count = json_array_size(t->files);
    t->questions = tess_alloc((t->count + 1) * sizeof *t->questions);
    t->scoring = tess_alloc((t->count + 1) * sizeof(tess_scoring *));
    t->number = tess_alloc((t->count + 1) * TESS_COUNTS * sizeof *t->number);
    for (size_t k = 0; k < t->count; k++) {
        const char *path = json_string_value(json_array_get(t->files, k));
        TESS_TRY(tess_run_lost(r->c, path, tess_questions_read(&t->questions[k], path)));
        TESS_TRY(check_name(t, k, where));
        TESS_TRY(tess_scoring_new(r, &t->questions[k], r->c->train_micro_batch_size_per_gpu, &t->scoring[k]));
    }
    return TESS_OK;
}

tess_status tess_run_tasks_plan(tess_run_tasks *t)
{
    for (size_t k = 0; t && k < t->count; k++) TESS_TRY(tess_scoring_plan(t->scoring[k], false));
    return TESS_OK;
}

tess_status tess_run_tasks_answer(tess_run_tasks *t, const tess_task_number **number, int *count)
{
    *number = t->number, *count = 0;
    for (size_t k = 0; k < t->count; k++) {
        tess_count of[TESS_COUNTS];
        const char *name;
        TESS_TRY(tess_scoring_run(t->scoring[k]));
        const int counts = tess_questions_count(&t->questions[k], of),
                  length = tess_questions_name(&t->questions[k], &name);
        for (int i = 0; i < counts; i++) {
            tess_task_number *to = &t->number[(*count)++];
            *to = (tess_task_number){
                .metric = of[i].name, .value = of[i].value, .questions = (int64_t)t->questions[k].count};
            snprintf(to->task, sizeof to->task, "%.*s", length, name);
        }
    }
    return TESS_OK;
}

void tess_run_tasks_free(tess_run_tasks *t)
{
    if (!t) return;
    for (size_t k = 0; k < t->count; k++) tess_scoring_free(t->scoring[k]), tess_questions_free(&t->questions[k]);
    free(t->scoring);
    free(t->questions);
    free(t->number);
    json_decref(t->files);
    free(t);
}
