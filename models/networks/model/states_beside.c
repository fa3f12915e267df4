/* States that are written beside a step. Their tiles are lent (runtime.h), and a thread writes each as it becomes
 * ready, so that what a step brings to RAM anyway is written while it is there, and what is there stays until it is
 * written. What no step brings is written before, and what no task of the step wrote behind it. */
#include "models/networks/model/model.h"
#include "models/text/base/text.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

struct lent {
    tess_borrowed of; /* its lending comes first: a callback has that */
    tess_beside *with;
    tess_tensor *param;
    size_t tensor;
    tess_piece_sums *sums;
    struct lent *next, *after; /* of all, of those that are ready */
};

struct tess_beside {
    tess_safetensors_writer *writer;
    struct lent *all, *ready, **last; /* the rest with the lock */
    int64_t waits;                    /* lent and not yet taken up; */
    int64_t most;                     /* elements of a piece */
    pthread_mutex_t lock;
    pthread_cond_t more;
    pthread_t thread;
    bool runs, ends;
    tess_status status;
    char *error;
};

tess_beside *tess_beside_new(tess_safetensors_writer *w)
{
    tess_beside *b = tess_alloc(sizeof *b);
    *b = (tess_beside){.writer = w, .last = &b->ready};
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->more, NULL);
    return b;
}

static void is_ready(tess_lending *l)
{
    struct lent *k = (struct lent *)l;
    tess_beside *b = k->with;
    pthread_mutex_lock(&b->lock);
    *b->last = k;
    b->last = &k->after;
    pthread_cond_signal(&b->more);
    pthread_mutex_unlock(&b->lock);
}

/* The next that is ready; NULL: none will be. */
static struct lent *take(tess_beside *b)
{
    pthread_mutex_lock(&b->lock);
    while (!b->ready && !(b->ends && b->waits == 0)) pthread_cond_wait(&b->more, &b->lock);
    struct lent *k = b->ready;
    if (k) {
        b->ready = k->after;
        if (!b->ready) b->last = &b->ready;
        b->waits--;
    }
    pthread_mutex_unlock(&b->lock);
    return k;
}

static tess_status write_one(const struct lent *k, float *room)
{
    if (!k->of.lending.data) return tess_error(TESS_FAILED, "checkpoint", "the step beside it failed");
    return tess_piece_write(k->with->writer, k->tensor, k->param, k->of.piece, k->of.part,
                            tess_borrowed_values(&k->of, room), k->sums);
}

static void *write_ready(void *beside)
{
    tess_beside *b = beside;
    TESS_FREED float *room = tess_alloc((size_t)b->most * sizeof *room);
    for (struct lent *k; (k = take(b));) {
        if (b->status == TESS_OK) b->status = write_one(k, room);
        tess_tile_return(&k->of.lending);
    }
    if (b->status == TESS_OK) b->status = tess_safetensors_writer_settle(b->writer);
    if (b->status != TESS_OK) b->error = tess_strdup(tess_error_text());
    return NULL;
}

int64_t tess_beside_none(const tess_tensor *p, tess_part part)
{
    int64_t n = 0, end;
    tess_borrowed of;
    for (int64_t i = tess_pieces_of(p, part, &end); i < end; i++)
        n += tess_piece_writes(p, i, part) && !tess_param_borrow(p, i, part, &of);
    return n;
}

static tess_status write_now(tess_beside *b, size_t tensor, tess_tensor *p, int64_t piece, tess_part part,
                             tess_piece_sums *sums)
{
    float *data;
    TESS_TRY(tess_param_map(p, piece, part, TESS_R, &data));
    const tess_status status = tess_piece_write(b->writer, tensor, p, piece, part, data, sums);
    tess_param_unmap(p, piece, part);
    return status;
}

tess_status tess_beside_add(tess_beside *b, size_t tensor, tess_tensor *p, tess_part part, tess_piece_sums *sums)
{
    int64_t end;
    for (int64_t i = tess_pieces_of(p, part, &end); i < end; i++) {
        const tess_piece q = tess_param_piece(p, i);
        if (!tess_piece_writes(p, i, part) || q.rows * q.cols == 0) continue;
        struct lent *k = tess_alloc(sizeof *k);
        *k = (struct lent){.with = b, .param = p, .tensor = tensor, .sums = sums, .next = b->all};
        if (!tess_param_borrow(p, i, part, &k->of)) {
            free(k);
            TESS_TRY(write_now(b, tensor, p, i, part, sums));
            continue;
        }
        if (q.rows * q.cols > b->most) b->most = q.rows * q.cols;
        k->of.lending.ready = is_ready;
        b->all = k;
        b->waits++;
    }
    return TESS_OK;
}

/* In the order in which they were added: the file is written from its beginning. Signals are the main thread's. */
void tess_beside_start(tess_beside *b)
{
    sigset_t all, before;
    struct lent *turned = NULL;
    for (struct lent *k = b->all, *next; k; k = next) next = k->next, k->next = turned, turned = k;
    b->all = turned;
    for (struct lent *k = b->all; k && b->status == TESS_OK; k = k->next) b->status = tess_tile_lend(&k->of.lending);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    b->runs = pthread_create(&b->thread, NULL, write_ready, b) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int64_t tess_beside_join(tess_beside *b)
{
    int64_t left = 0;
    for (struct lent *k = b->all; k; k = k->next) {
        tess_tile_lend_not(&k->of.lending);
        left += !k->of.lending.lent;
    }
    pthread_mutex_lock(&b->lock);
    b->ends = true;
    b->waits -= left;
    pthread_cond_signal(&b->more);
    pthread_mutex_unlock(&b->lock);
    if (b->runs)
        pthread_join(b->thread, NULL);
    else
        write_ready(b);
    return left;
}

tess_status tess_beside_end(tess_beside *b, bool whole)
{
    tess_status status = b->status;
    if (whole && b->error) tess_error_restore(b->error);
    for (struct lent *k = b->all, *next; k; k = next) {
        next = k->next;
        if (whole && !k->of.lending.lent && status == TESS_OK)
            status = write_now(b, k->tensor, k->param, k->of.piece, k->of.part, k->sums);
        free(k);
    }
    pthread_mutex_destroy(&b->lock);
    pthread_cond_destroy(&b->more);
    free(b->error);
    free(b);
    return status;
}
