/* The main thread's sleep while it waits for what others do. */
#include "progress_impl.h"

static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

void tess_sleep(pthread_mutex_t *lock)
{
    pthread_cond_wait(&ended, lock);
}

void tess_sleep_ends(void)
{
    pthread_cond_signal(&ended);
}
