/* An emulated GPU, and cores, of true size: bodies and copies take their time and move no bytes. What is asked for is
 * address space, so that a model of 13 billion parameters runs here through StarPU's CUDA driver under the caps that it
 * would have on a machine of 126 GiB, and stands still where it would there.
 *
 *     TESS_EMULATED_DRY=FILE       a machine's file (docs/simulate.md): its GPU, its link, its cores, its RAM
 *     TESS_EMULATED_SLOW=1         all takes so many times as long
 *     TESS_EMULATED_JITTER=0       one body of 20 takes so many times as long, the others 0.2 to 2.2 times
 *
 * A stream has one number, when all that is on it has ended; a link has one for each way. What depends on contents goes
 * on, since scalars are zeroed and small copies are made. StarPU is told of the machine's cores and RAM by hwloc
 * (tests/gpu/dry). */
#include "tests/gpu/emulated_cuda.h"
#include "tools/simulate/simulated.h"
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Of tools/simulate, which is part of the command and not of each test. */
tess_status tess_machine_read(const char *path, tess_simulated *m) __attribute__((weak));
double tess_simulated_body_seconds(const tess_simulated *m, const tess_task *t, bool gpu) __attribute__((weak));
void tess_simulated_choose(const tess_task *t) __attribute__((weak));

enum { TO, FROM, RAM, WAYS };

static struct {
    bool is;
    tess_simulated machine;
    double slow, pin;
    unsigned jitter;
    double free[WAYS]; /* when a way is */
    pthread_mutex_t lock;
} dry = {.lock = PTHREAD_MUTEX_INITIALIZER};
static pthread_once_t once = PTHREAD_ONCE_INIT;

static double setting(const char *name, double otherwise)
{
    const char *text = getenv(name);
    return text ? atof(text) : otherwise;
}

static void read_settings(void)
{
    const char *file = getenv("TESS_EMULATED_DRY");
    if (!file) return;
    if (!tess_machine_read) emulated_broken("TESS_EMULATED_DRY: this program reads no machines");
    if (tess_machine_read(file, &dry.machine)) emulated_broken("TESS_EMULATED_DRY: %s", tess_error_text());
    dry.slow = setting("TESS_EMULATED_SLOW", 1);
    dry.pin = dry.machine.gpus.pin_rate > 0 ? dry.machine.gpus.pin_rate : 16.8e9;
    dry.jitter = (unsigned)setting("TESS_EMULATED_JITTER", 0);
    dry.is = true;
}

bool emulated_dry(void)
{
    pthread_once(&once, read_settings);
    return dry.is;
}

size_t emulated_dry_bytes(void)
{
    return dry.machine.gpus.bytes;
}

/* ---- time ---- */

double emulated_dry_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool emulated_dry_past(double when)
{
    return emulated_dry_now() >= when;
}

void emulated_dry_wait(double when)
{
    for (double left; (left = when - emulated_dry_now()) > 0;)
        if (left > 200e-6) usleep((unsigned)(left * 1e6) - 100);
}

/* The kernel rests no shorter, and who rests longer learns late what has ended. */
enum { LEAST_US = 64, MOST_US = 200 };

static unsigned rest(void *unused)
{
    (void)unused;
    usleep((unsigned)fmin(dry.slow, MOST_US));
    return 1; /* a worker may sleep */
}

static void rest_without_a_task(void)
{
    starpu_progression_hook_register(rest, NULL);
}

/* Many ranks share the cores that are here, and a worker asks its streams, and its queue, without a pause: where it
 * rests for a microsecond of the emulated machine, or less, the others can run. */
void emulated_dry_rest(void)
{
    static pthread_once_t once_rested = PTHREAD_ONCE_INIT;
    if (dry.slow < LEAST_US) return;
    pthread_once(&once_rested, rest_without_a_task);
    rest(NULL);
}

/* So many seconds of one way, behind what it has to do and not before `from`; returns when they have gone by. */
static double take_way(int way, double from, double seconds)
{
    pthread_mutex_lock(&dry.lock);
    const double end = fmax(fmax(from, emulated_dry_now()), dry.free[way]) + dry.slow * seconds;
    dry.free[way] = end;
    pthread_mutex_unlock(&dry.lock);
    return end;
}

double emulated_dry_copy(double from, size_t bytes, bool back)
{
    const tess_simulated_gpus *g = &dry.machine.gpus;
    return take_way(back ? FROM : TO, from, g->host_latency + (double)bytes / g->host_rate);
}

double emulated_dry_message(size_t sent, size_t got)
{
    const tess_simulated_gpus *g = &dry.machine.gpus;
    const double rate = g->peer_rate > 0 ? g->peer_rate : g->host_rate / g->host_gpus;
    return dry.slow * (g->peer_latency + (double)(sent > got ? sent : got) / rate);
}

/* Threads that make RAM ready share the rate: none ends much before the others. */
void emulated_dry_pin(size_t bytes)
{
    const size_t turn = 16 << 20;
    for (size_t done = 0; done < bytes; done += turn)
        emulated_dry_wait(take_way(RAM, 0, (double)(bytes - done < turn ? bytes - done : turn) / dry.pin));
}

/* ---- bodies ---- */

static double seconds_of(const tess_work *w, bool gpu)
{
    double by = dry.slow;
    if (dry.jitter) by *= emulated_draw(20) == 0 ? dry.jitter : 0.2 + emulated_draw(100) / 50.0;
    const double beside = gpu ? dry.machine.gpus.task_seconds : dry.machine.task_seconds;
    return w->task ? by * (tess_simulated_body_seconds(&dry.machine, w->task, gpu) + beside) : 0;
}

static void say_nothing(const tess_work *w)
{
    if (!w->task) return;
    for (unsigned i = 0; i < w->nbuf; i++)
        if ((w->task->use[i].mode & TESS_W) && tess_tile_role(w->task->use[i].tile) == TESS_ROLE_SCALAR &&
            w->buf[i].ptr)
            memset(w->buf[i].ptr, 0, w->buf[i].bytes);
    tess_simulated_choose(w->task);
}

double emulated_dry_body(double from, const tess_work *w)
{
    say_nothing(w);
    return fmax(from, emulated_dry_now()) + seconds_of(w, true);
}

bool tess_emulated_cpu(const tess_work *w)
{
    if (!emulated_dry()) return false;
    say_nothing(w);
    emulated_dry_wait(emulated_dry_now() + seconds_of(w, false));
    return true;
}

/* ---- the machine ---- */

uint64_t emulated_dry_ram(void)
{
    return emulated_dry() ? dry.machine.ram_bytes : 0;
}
