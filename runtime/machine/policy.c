/* Scheduling policies: STARPU_SCHED names one of StarPU's own, or of the user's library that STARPU_SCHED_LIB names.
 * The library has the two functions that StarPU looks for from its version 1.4 on:
 *
 *     struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name);   NULL: it has none of that name
 *     struct starpu_sched_policy **starpu_get_sched_lib_policies(void);            all that it has, NULL behind them
 *
 * An older StarPU is given the policy itself. The library stays open: StarPU calls it until it has stopped, and whoever
 * starts again finds it as it was. */
#include "runtime/machine/machine_impl.h"
#include "runtime/progress/progress.h"
#include <dlfcn.h>
#include <starpu.h>
#include <starpu_scheduler.h>
#include <stdlib.h>
#include <string.h>

typedef struct starpu_sched_policy policy;

/* Of StarPU's, those that run none of our tasks: one aborts for a codelet without a class of its own and one waits for
 * a GPU for each, the third for the word of a program that only tests it. */
static const char *const useless[] = {"heteroprio", "modular-heteroprio-heft", "graph_test"};

static bool is_useful(const char *name)
{
    for (size_t i = 0; i < sizeof useless / sizeof *useless; i++)
        if (!strcmp(name, useless[i])) return false;
    return true;
}

static const char *chosen(const char *variable)
{
    const char *value = getenv(variable);
    return value && *value ? value : NULL;
}

/* ---- the user's ---- */

static const char LIBRARY[] = "STARPU_SCHED_LIB";

/* Locks of a machine that is simulated are StarPU's: those of the kernel's threads would stop all of it for ever. */
static tess_status check_locks(const char *path)
{
#ifdef TESS_SIMULATED
    static const char theirs[] = "\0pthread_mutex_lock"; /* as the table of names has it that a library asks for */
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = fopen(path, "rb"), *copy = open_memstream(&text, &bytes);
    for (int c; f && copy && (c = getc(f)) != EOF;) putc(c, copy);
    if (f) fclose(f);
    if (copy) fclose(copy);
    const bool found = text && memmem(text, bytes, theirs, sizeof theirs);
    free(text);
    if (found)
        return tess_error(TESS_INVALID, LIBRARY,
                          "%s was built with the headers of a StarPU without simulation (the headers of "
                          ".starpu/simgrid have locks of its own)",
                          path);
#else
    (void)path;
#endif
    return TESS_OK;
}

/* The policy of that name in the library, or its first one. */
static tess_status find_theirs(const char *path, const char *name, policy **found)
{
    policy *(*by_name)(const char *);
    policy **(*all)(void);
    char *whole = realpath(path, NULL); /* a name alone would be looked for among the system's */
    void *library = dlopen(whole ? whole : path, RTLD_NOW | RTLD_LOCAL);
    free(whole);
    if (!library) return tess_error(TESS_INVALID, LIBRARY, "%s", dlerror());
    TESS_TRY(check_locks(path));
    *(void **)&by_name = dlsym(library, "starpu_get_sched_lib_policy");
    *(void **)&all = dlsym(library, "starpu_get_sched_lib_policies");
    if (!by_name || (!name && !all))
        return tess_error(TESS_INVALID, LIBRARY, "%s has no %s", path,
                          by_name ? "starpu_get_sched_lib_policies (STARPU_SCHED names one of its policies)"
                                  : "starpu_get_sched_lib_policy");
    policy **const list = name ? NULL : all();
    *found = name ? by_name(name) : list ? *list : NULL;
    if (*found && !(*found)->push_task)
        return tess_error(TESS_INVALID, LIBRARY, "%s: its policy has no push_task", path);
    if (!*found && !name) return tess_error(TESS_INVALID, LIBRARY, "%s has no policy", path);
    return TESS_OK;
}

/* ---- StarPU's ---- */

static tess_status check(const char *where, const char *name)
{
    char list[1200] = "";
    for (policy **p = starpu_sched_get_predefined_policies(); *p; p++) {
        if (!is_useful((*p)->policy_name)) continue;
        if (!strcmp(name, (*p)->policy_name)) return TESS_OK;
        const size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s%s", n ? ", " : "", (*p)->policy_name);
    }
    return tess_error(TESS_INVALID, where, "\"%s\" is no scheduling policy that runs these tasks (there are %s)", name,
                      list);
}

/* ---- who is told ---- */

static policy told;
static int (*push)(struct starpu_task *);

static bool may_be_a_cpus(const struct starpu_task *t)
{
    const int32_t where = t->where >= 0 ? t->where : t->cl ? (int32_t)t->cl->where : 0;
    return !where || (where & STARPU_CPU);
}

static int push_and_tell(struct starpu_task *t)
{
    const bool tell = may_be_a_cpus(t); /* it may be gone then */
    const int status = push(t);
    if (tell) tess_idle_wake();
    return status;
}

/* A copy of the policy, whose tasks tell the CPU workers that they are ready; false: another is chosen, or none. */
static bool tells(struct starpu_conf *conf)
{
#ifndef TESS_SIMULATED
    policy **p = starpu_sched_get_predefined_policies();
    if (tess_gpus() == 0 || getenv("STARPU_SCHED")) return false; /* which wins over a policy that is given */
    while (*p && strcmp((*p)->policy_name, conf->sched_policy_name)) p++;
    if (!*p) return false;
    told = **p;
    push = told.push_task;
    told.push_task = push_and_tell;
    conf->sched_policy = &told;
    conf->sched_policy_name = NULL;
    return true;
#else
    (void)conf, (void)push_and_tell, (void)told;
    return false;
#endif
}

static tess_status choose(const char *ours, struct starpu_conf *conf)
{
    const char *set = getenv("STARPU_SCHED"), *name = chosen("STARPU_SCHED");
    const bool old = name && !strncmp(name, "heft", 4); /* now dmda; StarPU says so */
    if (chosen(LIBRARY)) TESS_TRY(find_theirs(chosen(LIBRARY), name, &conf->sched_policy));
    conf->sched_policy_name = NULL;
    if (conf->sched_policy) return TESS_OK;
    conf->sched_policy_name = old ? "dmda" : name ? name : ours;
    TESS_TRY(check(name ? "STARPU_SCHED" : "sched", conf->sched_policy_name));
    if (set && (old || !name)) /* set to nothing it would be lws */
        tess_environment_set("STARPU_SCHED", conf->sched_policy_name);
    return TESS_OK;
}

tess_status tess_policy_choose(const char *ours, struct starpu_conf *conf)
{
    TESS_TRY(choose(ours, conf));
    tess_idle_told(!conf->sched_policy && tells(conf));
    return TESS_OK;
}
