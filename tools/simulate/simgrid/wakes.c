/* Who is woken in a StarPU over SimGrid when a memory node has something to do: a request was posted, a transfer ended.
 * tools/starpu puts this in the place of StarPU's function (src/datawizard/copy_driver.c).
 *
 * There all workers of the node wake, and all but one find nothing: one is enough, since whoever looks handles all that
 * there is. So of the CPU workers that sleep without a task one is woken, and none where a worker of the node itself
 * says so, which looks before it sleeps. Beside GPUs all wake: their workers drive RAM too, and do not look again.
 * Woken are besides who sleeps with a task whose tiles come, and all that are no CPU workers; who does not sleep looks
 * once more before it does. */
int _tess_sleeps(starpu_pthread_cond_t *cond);

int _tess_no_gpu(void)
{
    return starpu_cuda_worker_get_count() == 0;
}

/* Where a worker is told that the tiles of its task have come. */
starpu_pthread_queue_t *_tess_queue_of(struct _starpu_worker *worker)
{
    return _tess_no_gpu() ? &_starpu_simgrid_task_queue[worker->workerid]
                          : &_starpu_simgrid_transfer_queue[worker->memory_node];
}

/* The worker that waits there; NULL: somebody else does. */
static struct _starpu_worker *_tess_waiter(starpu_pthread_wait_t *wait)
{
    char *first = (char *)&_starpu_config.workers[0].wait, *at = (char *)wait;
    const size_t each = sizeof _starpu_config.workers[0];
    if (at < first || at >= first + each * STARPU_NMAXWORKERS || (size_t)(at - first) % each) return NULL;
    return &_starpu_config.workers[(size_t)(at - first) / each];
}

void _starpu_wake_all_blocked_workers_on_node(unsigned node)
{
    starpu_pthread_queue_t *queue = &_starpu_simgrid_transfer_queue[node];
    const int all = !_tess_no_gpu();
    const int self = starpu_worker_get_id();
    int woken = self >= 0 && _starpu_worker_drives_memory[self][node];
    for (unsigned i = 0; i < queue->nqueue; i++) {
        starpu_pthread_wait_t *wait = queue->queue[i];
        const struct _starpu_worker *worker = _tess_waiter(wait);
        if (!all && worker && worker->arch == STARPU_CPU_WORKER && !worker->task_transferring &&
            _tess_sleeps(&wait->cond) && woken++)
            continue;
        wait->block = 0;
        starpu_pthread_cond_signal(&wait->cond);
    }
}
