/* A link between two machines that are network namespaces of one: what goes into the device "wan" of one comes out of
 * that of the other, late, at a rate, and some of it never. Kernels without netem have no other way. By slow_link.sh:
 *
 *     link PID MILLISECONDS PERCENT MBIT      until it gets a signal; PID is a process in the other namespace
 *
 * With CUT="15 20" in the environment nothing passes for 20 s, 15 s after its beginning (cut_link.sh).
 *
 * Says then how many packets it carried, how many it lost as asked, and how many found its queue full. */
#include <errno.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 9100 /* bytes of a packet */, QUEUE = 4096, QUEUED_MS = 100 /* at most, beside the delay */ };

struct packet {
    double due;
    ssize_t bytes;
    char data[MOST];
};
static struct way {
    int from, to;
    double free; /* when the last packet has left */
    unsigned head, tail;
    struct packet *queue;
    uint64_t carried, lost, full;
} way[2];
static double delay, loss, rate; /* seconds, a share, bytes a second */
static double cut, mended;       /* when, on the clock */
static volatile sig_atomic_t stops;

static void stop(int signal)
{
    (void)signal;
    stops = 1;
}

static void die(const char *what)
{
    fprintf(stderr, "link: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int device(void)
{
    struct ifreq r = {.ifr_flags = IFF_TUN | IFF_NO_PI};
    const int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    strcpy(r.ifr_name, "wan");
    if (fd < 0 || ioctl(fd, TUNSETIFF, &r)) die("/dev/net/tun");
    return fd;
}

/* The same losses each time. */
static double dice(void)
{
    static uint64_t x = 88172645463325252u;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return (double)(x >> 11) * 0x1p-53;
}

static void take(struct way *w)
{
    for (;;) {
        struct packet *p = &w->queue[w->head % QUEUE];
        static char spill[MOST];
        const double t = now();
        const int room = w->head - w->tail < QUEUE && w->free < t + 1e-3 * QUEUED_MS;
        const ssize_t n = read(w->from, room ? p->data : spill, MOST);
        if (n <= 0) return;
        if (!room) {
            w->full++;
        } else if ((t >= cut && t < mended) || dice() < loss) {
            w->lost++;
        } else {
            w->free = (w->free > t ? w->free : t) + (double)n / rate;
            p->due = w->free + delay;
            p->bytes = n;
            w->head++;
        }
    }
}

/* Returns the seconds until the next packet is due, as many as a day where there is none. */
static double give(struct way *w)
{
    for (; w->head != w->tail; w->tail++) {
        const struct packet *p = &w->queue[w->tail % QUEUE];
        const double left = p->due - now();
        if (left > 0) return left;
        w->carried += write(w->to, p->data, (size_t)p->bytes) == p->bytes;
    }
    return 86400;
}

int main(int argc, char **argv)
{
    char path[64];
    if (argc != 5) return fprintf(stderr, "usage: link PID MILLISECONDS PERCENT MBIT\n"), 2;
    delay = 1e-3 * atof(argv[2]), loss = 1e-2 * atof(argv[3]), rate = 1e6 / 8 * atof(argv[4]);
    double after = 0, lasts = 0;
    if (getenv("CUT")) sscanf(getenv("CUT"), "%lf %lf", &after, &lasts);
    cut = now() + after, mended = cut + lasts;
    snprintf(path, sizeof path, "/proc/%s/ns/net", argv[1]);
    const int here = device(), other = open(path, O_RDONLY | O_CLOEXEC);
    if (other < 0 || setns(other, CLONE_NEWNET)) die(path);
    const int there = device();
    for (int k = 0; k < 2; k++) {
        way[k].from = k ? there : here, way[k].to = k ? here : there;
        if (!(way[k].queue = malloc(QUEUE * sizeof *way[k].queue))) die("memory");
    }
    signal(SIGTERM, stop);
    signal(SIGINT, stop);
    while (!stops) {
        struct pollfd ready[2] = {{.fd = here, .events = POLLIN}, {.fd = there, .events = POLLIN}};
        double left = 86400;
        for (int k = 0; k < 2; k++) {
            take(&way[k]);
            const double until = give(&way[k]);
            left = until < left ? until : left;
        }
        const struct timespec t = {.tv_sec = (time_t)left, .tv_nsec = (long)(1e9 * (left - (double)(time_t)left))};
        ppoll(ready, 2, &t, NULL);
    }
    printf("%llu packets, %llu lost by chance, %llu in a full queue\n",
           (unsigned long long)(way[0].carried + way[1].carried), (unsigned long long)(way[0].lost + way[1].lost),
           (unsigned long long)(way[0].full + way[1].full));
    return 0;
}
