/* Locks and conditions of a StarPU over SimGrid: tools/starpu puts them in the place of its own (src/common/thread.c).
 *
 * There each of them is a call of SimGrid: the thread goes to sleep, and all that could run do first. A task takes some
 * hundred locks, of which hardly one is held by another: SimGrid changes threads only in its own calls. So here a lock
 * that is free is taken by a word, and a condition that nobody waits for is no call. Who has to wait sleeps on a
 * semaphore of SimGrid, first come first served; who gives a lock back hands it over.
 *
 * At a condition each that waits has a semaphore of its own: it is in line before it gives the lock back, which may be
 * a call of SimGrid, and of one semaphore for all a signal that was for it could be taken by who came after. */
struct tess_lock {
    int held;
    unsigned waiting;
    sg_sem_t turn;
};
struct tess_waiter {
    struct tess_waiter *next;
    sg_sem_t turn;
    int called;
};
struct tess_condition {
    struct tess_waiter *first, **last;
    struct tess_waiter *spare; /* of those who waited: their semaphores are used again */
};

static void *_tess_made(void *at, size_t bytes)
{
    void **made = at;
    if (!*made) _STARPU_CALLOC(*made, 1, bytes);
    return *made;
}

static struct tess_lock *_tess_lock(starpu_pthread_mutex_t *mutex)
{
    return _tess_made(mutex, sizeof(struct tess_lock));
}

static struct tess_condition *_tess_condition(starpu_pthread_cond_t *cond)
{
    return _tess_made(cond, sizeof(struct tess_condition));
}

/* Another thread may come in between the two calls. */
static sg_sem_t _tess_turn(sg_sem_t *turn)
{
    if (!*turn) {
        sg_sem_t made = sg_sem_init(0);
        if (*turn)
            sg_sem_destroy(made);
        else
            *turn = made;
    }
    return *turn;
}

int starpu_pthread_mutex_init(starpu_pthread_mutex_t *mutex, const starpu_pthread_mutexattr_t *unused)
{
    (void)unused;
    *mutex = NULL;
    return 0;
}

int starpu_pthread_mutex_destroy(starpu_pthread_mutex_t *mutex)
{
    struct tess_lock *l = (void *)*mutex;
    if (l && l->turn) sg_sem_destroy(l->turn);
    free(l);
    *mutex = NULL;
    return 0;
}

int starpu_pthread_mutex_lock(starpu_pthread_mutex_t *mutex)
{
    struct tess_lock *l = _tess_lock(mutex);
    if (!l->held) {
        l->held = 1;
        return 0;
    }
    l->waiting++; /* before the first call of SimGrid: who gives it back meanwhile hands it over */
    sg_sem_acquire(_tess_turn(&l->turn));
    return 0;
}

int starpu_pthread_mutex_trylock(starpu_pthread_mutex_t *mutex)
{
    struct tess_lock *l = _tess_lock(mutex);
    if (l->held) return EBUSY;
    l->held = 1;
    return 0;
}

int starpu_pthread_mutex_unlock(starpu_pthread_mutex_t *mutex)
{
    struct tess_lock *l = _tess_lock(mutex);
    if (!l->waiting) {
        l->held = 0;
        return 0;
    }
    l->waiting--;
    sg_sem_release(_tess_turn(&l->turn));
    return 0;
}

int starpu_pthread_cond_init(starpu_pthread_cond_t *cond, starpu_pthread_condattr_t *unused)
{
    (void)unused;
    *cond = NULL;
    return 0;
}

static struct tess_waiter *_tess_in_line(struct tess_condition *c)
{
    struct tess_waiter *w = c->spare;
    if (w)
        c->spare = w->next;
    else
        _STARPU_CALLOC(w, 1, sizeof *w);
    w->next = NULL;
    w->called = 0;
    if (!c->first) c->last = &c->first;
    *c->last = w;
    c->last = &w->next;
    if (!w->turn) { /* in line before the first call of SimGrid: who signals need not have the lock */
        sg_sem_t made = sg_sem_init(0);
        w->turn = made;
        if (w->called) sg_sem_release(made);
    }
    return w;
}

static void _tess_call(struct tess_condition *c)
{
    struct tess_waiter *w = c->first;
    c->first = w->next;
    w->called = 1;
    if (w->turn) sg_sem_release(w->turn);
}

static void _tess_out_of_line(struct tess_condition *c, struct tess_waiter *of)
{
    struct tess_waiter **at = &c->first;
    while (*at != of) at = &(*at)->next;
    *at = of->next;
    if (!*at) c->last = at;
}

static void _tess_waited(struct tess_condition *c, struct tess_waiter *w)
{
    w->next = c->spare;
    c->spare = w;
}

int starpu_pthread_cond_destroy(starpu_pthread_cond_t *cond)
{
    struct tess_condition *c = (void *)*cond;
    while (c && c->spare) {
        struct tess_waiter *w = c->spare;
        c->spare = w->next;
        sg_sem_destroy(w->turn);
        free(w);
    }
    free(c);
    *cond = NULL;
    return 0;
}

int starpu_pthread_cond_signal(starpu_pthread_cond_t *cond)
{
    struct tess_condition *c = _tess_condition(cond);
    if (c->first) _tess_call(c);
    return 0;
}

/* Who comes while they are called is not among them. */
int starpu_pthread_cond_broadcast(starpu_pthread_cond_t *cond)
{
    struct tess_condition *c = _tess_condition(cond);
    unsigned n = 0;
    for (const struct tess_waiter *w = c->first; w; w = w->next) n++;
    for (; n > 0 && c->first; n--) _tess_call(c);
    return 0;
}

int starpu_pthread_cond_wait(starpu_pthread_cond_t *cond, starpu_pthread_mutex_t *mutex)
{
    struct tess_condition *c = _tess_condition(cond);
    struct tess_waiter *w = _tess_in_line(c);
    starpu_pthread_mutex_unlock(mutex);
    sg_sem_acquire(w->turn);
    _tess_waited(c, w);
    starpu_pthread_mutex_lock(mutex);
    return 0;
}

int starpu_pthread_cond_timedwait(starpu_pthread_cond_t *cond, starpu_pthread_mutex_t *mutex,
                                  const struct timespec *until)
{
    struct tess_condition *c = _tess_condition(cond);
    struct timespec now;
    _starpu_clock_gettime(&now);
    const double left = (double)(until->tv_sec - now.tv_sec) + 1e-9 * (double)(until->tv_nsec - now.tv_nsec);
    struct tess_waiter *w = _tess_in_line(c);
    starpu_pthread_mutex_unlock(mutex);
    const int late = left <= 0 || sg_sem_acquire_timeout(w->turn, left);
    if (late && w->called)
        sg_sem_acquire(w->turn); /* somebody had counted on this thread */
    else if (late)
        _tess_out_of_line(c, w);
    _tess_waited(c, w);
    starpu_pthread_mutex_lock(mutex);
    return late ? ETIMEDOUT : 0;
}

/* Returns whether anybody sleeps there that nobody has woken (wakes.c). */
int _tess_sleeps(starpu_pthread_cond_t *cond)
{
    return _tess_condition(cond)->first != NULL;
}
