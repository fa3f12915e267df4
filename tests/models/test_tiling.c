/* Matrices larger than the memory at hand, of which a step needs a tile at a time: the cap holds by the kernel's own
 * figure, and the values are what sums in double say. Parameters have a pattern whose rows repeat, so that all of them
 * are written and only a few are computed twice. */
#define CHECK_MAIN
#include "graph/graph.h"
#include "tests/check.h"
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__ /* which is slow, and holds freed memory back */
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { MiB = 1 << 20, BESIDE = 300 /* MiB for libraries, code and stacks */, T = 8, KINDS = 251, V = 16 };

static double value_of_x(int64_t t, int64_t c) /* of token t, in the table of embeddings */
{
    return (double)((5 * c + 3 * t) % 9 - 4) / 8;
}
static double value_of_w(int64_t kind) /* where 7 row + 13 column is of this kind */
{
    return (double)(kind % KINDS - KINDS / 2) / 128;
}
static double value_of_head(int64_t v, int64_t r)
{
    return (double)((11 * v + 3 * r) % 31 - 15) / 65536;
}

static void fill_table(float *out, int64_t row, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) out[c] = (float)value_of_x(row, c);
}
static void fill_w(float *out, int64_t row, int64_t columns)
{
    float value[KINDS];
    for (int64_t k = 0; k < KINDS; k++) value[k] = (float)value_of_w(k);
    for (int64_t c = 0, kind = 7 * row % KINDS; c < columns; c++, kind += kind < KINDS - 13 ? 13 : 13 - KINDS)
        out[c] = value[kind];
}
static void fill_head(float *out, int64_t row, int64_t columns)
{
    for (int64_t c = 0; c < columns; c++) out[c] = (float)value_of_head(row, c);
}

static tess_status fill(tess_tensor *p, void (*row)(float *, int64_t, int64_t))
{
    int64_t shape[3], first, count;
    tess_tensor_shape(p, shape);
    for (int64_t j = 0; j < tess_param_tiles(p); j++) {
        float *x;
        tess_param_rows(p, j, &first, &count);
        TESS_TRY(tess_param_map(p, j, TESS_MASTER, TESS_W, &x));
        for (int64_t r = 0; r < count; r++) row(x + r * shape[1], first + r, shape[1]);
        tess_param_unmap(p, j, TESS_MASTER);
    }
    return TESS_OK;
}

/* y of token t for the rows of w that begin with kind k: (T, KINDS) */
static double *products(int64_t in)
{
    double *y = tess_alloc(T * KINDS * sizeof *y);
    for (int64_t t = 0; t < T; t++)
        for (int64_t k = 0; k < KINDS; k++)
            for (int64_t c = 0; c < in; c++) y[t * KINDS + k] += value_of_x(t, c) * value_of_w(k + 13 * c);
    return y;
}

/* ---- a network of one matrix ---- */

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *table, *w, *head, *output;
    tess_step *step;
};

/* y (1, T, out) of a matrix (out, in); with `train` the loss of a head on top of it. */
static tess_status net_open(struct net *n, int64_t in, int64_t out, int64_t tile_elements, bool train)
{
    *n = (struct net){.g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .tile_elements = tile_elements})};
    n->ids = tess_input(n->g, "ids", 1, T);
    n->table = tess_param(n->g, "table", T, in, TESS_ZERO);
    n->w = tess_param(n->g, "w", out, in, TESS_ZERO);
    n->output = tess_linear(tess_embedding(n->ids, n->table, NULL), n->w, NULL);
    if (train) {
        n->targets = tess_input(n->g, "targets", 1, T);
        n->head = tess_param(n->g, "head", V, out, TESS_ZERO);
        n->output = tess_cross_entropy(n->output, n->head, NULL, n->targets);
    }
    return tess_step_new(n->output, &(tess_step_conf){.train = train, .optimizer = tess_adamw()}, &n->step);
}

static void net_close(struct net *n)
{
    tess_step_free(n->step);
    tess_graph_free(n->g);
    tess_stop();
}

/* Starts within `cap` bytes, 0: without one; and gives the parameters their values. */
static tess_status net_start(struct net *n, uint64_t cap)
{
    tess_placement place = {0};
    tess_machine machine = TESS_MACHINE_DEFAULT;
    if (cap) {
        tess_place_conf conf = {.ram = cap, .workers = tess_cores(), .alone = true};
        TESS_TRY(tess_step_place(n->step, &conf, &place));
        machine = (tess_machine){.cpu_bytes = cap, .disk = ".", .disk_bytes = place.disk + 64 * MiB};
    }
    TESS_TRY(tess_start_rooms(&machine, &(tess_rooms){.cpu_tiles = place.room}));
    TESS_TRY(fill(n->table, fill_table));
    TESS_TRY(fill(n->w, fill_w));
    if (n->head) TESS_TRY(fill(n->head, fill_head));
    TESS_TRY(tess_graph_round(n->g));
    int32_t ids[T], targets[T];
    for (int t = 0; t < T; t++) ids[t] = t, targets[t] = 3 * t % V;
    TESS_TRY(tess_step_feed(n->step, n->ids, ids));
    return n->targets ? tess_step_feed(n->step, n->targets, targets) : TESS_OK;
}

/* Runs `body` in a process of its own, which the cap of `mib` must hold in; its peak RSS in MiB. */
static long in_child(void (*body)(void), long mib)
{
    int status;
    struct rusage usage;
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        check_failures = 0;
        body();
        fflush(stdout);
        _exit(check_failures > 0);
    }
    CHECK(wait4(child, &status, 0, &usage) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    long peak = usage.ru_maxrss >> 10;
    printf("peak %ld MiB under a cap of %ld MiB\n", peak, mib);
    if (!SANITIZED) CHECK(!mib || peak < mib + BESIDE);
    return peak;
}

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) {                                                                                       \
            CHECK_SAY("%s: %s", #expr, tess_error_text());                                                             \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* ---- forward: 16384 x 65536, 2 GiB in bf16 and 4 GiB of masters ---- */

enum { WIDE_IN = SANITIZED ? 4096 : 16384, WIDE_OUT = 4 * WIDE_IN, WIDE_CAP = 512 };

static void forward(void)
{
    struct net n;
    OK(net_open(&n, WIDE_IN, WIDE_OUT, 0, false));
    OK(net_start(&n, (uint64_t)WIDE_CAP * MiB));
    tess_step_result r;
    OK(tess_step_run(n.step, &(tess_step_input){0}, &r));
    float *y = tess_alloc((size_t)T * WIDE_OUT * sizeof *y);
    OK(tess_step_output(n.step, y));
    double *want = products(WIDE_IN);
    int64_t wrong = 0;
    for (int64_t t = 0; t < T; t++) /* all sums are whole multiples of 2^-10 below 2^14: exact in fp32 */
        for (int64_t o = 0; o < WIDE_OUT; o++)
            wrong += y[t * WIDE_OUT + o] != tess_from_bf16(tess_to_bf16((float)want[t * KINDS + 7 * o % KINDS]));
    CHECK_EQ(wrong, 0);
    free(want);
    free(y);
    net_close(&n);
}

TEST(forward_with_a_matrix_of_four_times_the_cap)
{
    in_child(forward, WIDE_CAP);
}

/* ---- training: 4096 x 16384, 128 MiB in bf16 and 1.1 GiB with its states, in the same proportion to the cap ---- */

enum { IN = 4096, OUT = 16384, TILE = 1 << 19, CAP = 32 };
static const double lr = 1.0 / 1024;
static double *shared; /* of a child: its last loss */

/* What the step must do, in double: dlogits (T, V) and the loss. */
static double logits_of(double *d)
{
    double *y = products(IN), loss = 0;
    for (int t = 0; t < T; t++) {
        double logit[V] = {0}, sum = 0, most = -INFINITY;
        for (int v = 0; v < V; v++) {
            for (int64_t o = 0; o < OUT; o++) logit[v] += y[t * KINDS + 7 * o % KINDS] * value_of_head(v, o);
            most = logit[v] > most ? logit[v] : most;
        }
        for (int v = 0; v < V; v++) sum += exp(logit[v] - most);
        loss += (most + log(sum) - logit[3 * t % V]) / T;
        for (int v = 0; v < V; v++) d[t * V + v] = (exp(logit[v] - most) / sum - (v == 3 * t % V)) / T;
    }
    free(y);
    return loss;
}

static double dy_of(const double *d, int t, int64_t o)
{
    double sum = 0;
    for (int v = 0; v < V; v++) sum += d[t * V + v] * value_of_head(v, o);
    return sum;
}

/* The first step of Adam moves a parameter by lr against its gradient's sign; below a twentieth of a gradient's usual
 * size, bf16 may see another sign. */
static void check_moved(const char *name, int64_t row, int64_t column, double from, double to, double gradient,
                        double usual)
{
    if (fabs(gradient) < usual / 20) return;
    double want = from - lr * (gradient > 0 ? 1 : -1);
    if (!(fabs(to - want) < lr / 50))
        CHECK_SAY("%s (%lld,%lld) went from %g to %g, expected %g (gradient %g)", name, (long long)row,
                  (long long)column, from, to, want, gradient);
}

/* Some of each tile of w: dw = dy^T x. */
static tess_status check_w(const struct net *n, const double *d)
{
    double usual = 0;
    for (int t = 0; t < T; t++) usual += fabs(dy_of(d, t, 5)) / 2;
    for (int64_t j = 0, first, count; j < tess_param_tiles(n->w); j++) {
        float *x;
        tess_param_rows(n->w, j, &first, &count);
        TESS_TRY(tess_param_map(n->w, j, TESS_MASTER, TESS_R, &x));
        for (int64_t i = 0; i < 100; i++) {
            int64_t row = first + i * 37 % count, c = (i * 1009 + j) % IN;
            double gradient = 0;
            for (int t = 0; t < T; t++) gradient += dy_of(d, t, row) * value_of_x(t, c);
            check_moved("w", row, c, value_of_w(7 * row + 13 * c), x[(row - first) * IN + c], gradient, usual);
        }
        tess_param_unmap(n->w, j, TESS_MASTER);
    }
    return TESS_OK;
}

/* Some of the table, whose gradient is dx = dy w: all tiles of w have a share in it. */
static tess_status check_table(const struct net *n, const double *d)
{
    double *dx = tess_alloc(T * KINDS * sizeof *dx), usual = 0; /* columns of a kind have the same */
    for (int t = 0; t < T; t++)
        for (int64_t o = 0; o < OUT; o++) {
            double dy = dy_of(d, t, o);
            for (int64_t k = 0; k < KINDS; k++) dx[t * KINDS + k] += dy * value_of_w(7 * o + k);
        }
    for (int k = 0; k < T * KINDS; k++) usual += fabs(dx[k]) / (T * KINDS);
    float *x;
    CHECK_EQ(tess_param_tiles(n->table), 1);
    TESS_TRY(tess_param_map(n->table, 0, TESS_MASTER, TESS_R, &x));
    for (int t = 0; t < T; t++)
        for (int64_t c = 0; c < IN; c++)
            check_moved("table", t, c, value_of_x(t, c), x[t * IN + c], dx[t * KINDS + 13 * c % KINDS], usual);
    tess_param_unmap(n->table, 0, TESS_MASTER);
    free(dx);
    return TESS_OK;
}

static void train(uint64_t cap)
{
    struct net n;
    tess_step_result r;
    double d[T * V], loss = logits_of(d);
    OK(net_open(&n, IN, OUT, TILE, true));
    OK(net_start(&n, cap));
    OK(tess_step_run(n.step, &(tess_step_input){.lr = lr}, &r));
    CHECK_NEAR(r.loss, loss, 0.02 * loss);
    OK(check_w(&n, d));
    OK(check_table(&n, d));
    OK(tess_step_run(n.step, &(tess_step_input){.step = 1, .lr = lr}, &r)); /* of the weights that came back */
    CHECK(r.loss < loss);
    printf("loss %.17g after a step, %.6f before\n", r.loss, loss);
    *shared = r.loss;
    net_close(&n);
}

static void train_capped(void)
{
    train((uint64_t)CAP * MiB);
}
static void train_whole(void)
{
    train(0);
}

TEST(training_a_matrix_of_four_times_the_cap)
{
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    in_child(train_capped, CAP);
    double capped = *shared;
    long peak = in_child(train_whole, 0);
    CHECK(*shared != 0 && capped == *shared);
    CHECK(peak > CAP + BESIDE); /* else the cap shows nothing */
    munmap(shared, sizeof *shared);
}
