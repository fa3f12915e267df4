/* The main thread's sleep while it waits for what others do, and a worker's for the parts that others took. */
#include "runtime/progress/progress.h"
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SPINS = 500 };

static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;

void tess_sleep(pthread_mutex_t *lock)
{
    pthread_cond_wait(&ended, lock);
}

void tess_sleep_ends(void)
{
    pthread_cond_signal(&ended);
}

bool tess_count_is_soon(const _Atomic uint32_t *count, uint32_t to)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(count, memory_order_acquire) == to) return true;
#ifdef __x86_64__
        __builtin_ia32_pause();
#elif defined __aarch64__
        __asm__ volatile("isb");
#endif
    }
    return false;
}

void tess_count_sleep(_Atomic uint32_t *count, uint32_t is)
{
    syscall(SYS_futex, count, FUTEX_WAIT_PRIVATE, is, NULL, NULL, 0);
}

void tess_count_wakes(_Atomic uint32_t *count)
{
    syscall(SYS_futex, count, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}
