/* Ranks without a launcher: processes to which the functions of ranks.c, and the pieces of param_values.c, are those
 * below. The linker puts them in place (see tests/meson.build), so that what calls them runs as it is.
 *
 * A rank's pieces follow from a scheme; the elements of a parameter are a function of their place, so that nothing has
 * to be held, and what is loaded is compared where it lies. */
#ifndef TESS_TESTS_STAND_INS_H
#define TESS_TESTS_STAND_INS_H
#include "graph/graph.h"
#include "tests/check.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MOST = 5 };

static struct ranks_shared {
    pthread_barrier_t barrier;
    tess_status status[RANKS_MOST];
    char text[RANKS_MOST][1000];
    int64_t count[RANKS_MOST][1024];
    uint8_t told[256];
} * ranks_shared;
static int ranks_rank, ranks_size = 1;

int __wrap_tess_rank(void);
int __wrap_tess_ranks(void);
tess_status __wrap_tess_ranks_agree(tess_status status);
void __wrap_tess_ranks_sum_counts(int64_t *x, int n);
void __wrap_tess_ranks_tell(void *data, size_t bytes);

int __wrap_tess_rank(void)
{
    return ranks_rank;
}
int __wrap_tess_ranks(void)
{
    return ranks_size;
}

static void ranks_meet(void)
{
    if (ranks_size > 1) pthread_barrier_wait(&ranks_shared->barrier);
}

tess_status __wrap_tess_ranks_agree(tess_status status)
{
    if (ranks_size == 1 || (status != TESS_OK && tess_error_agreed())) return status;
    ranks_shared->status[ranks_rank] = status;
    snprintf(ranks_shared->text[ranks_rank], sizeof ranks_shared->text[0], "%s", tess_error_text());
    ranks_meet();
    int first = 0;
    while (first < ranks_size && ranks_shared->status[first] == TESS_OK) first++;
    if (first < ranks_size) {
        char where[32];
        status = ranks_shared->status[first];
        snprintf(where, sizeof where, "rank %d", first);
        if (first != ranks_rank) tess_error(status, where, "%s", ranks_shared->text[first]);
        tess_error_agree(1);
    }
    ranks_meet();
    return status;
}

void __wrap_tess_ranks_sum_counts(int64_t *x, int n)
{
    if (ranks_size == 1) return;
    TESS_ASSERT((size_t)n * sizeof *x <= sizeof ranks_shared->count[0]);
    memcpy(ranks_shared->count[ranks_rank], x, (size_t)n * sizeof *x);
    ranks_meet();
    memset(x, 0, (size_t)n * sizeof *x);
    for (int r = 0; r < ranks_size; r++)
        for (int i = 0; i < n; i++) x[i] += ranks_shared->count[r][i];
    ranks_meet();
}

void __wrap_tess_ranks_tell(void *data, size_t bytes)
{
    if (ranks_size == 1) return;
    TESS_ASSERT(bytes <= sizeof ranks_shared->told);
    if (ranks_rank == 0) memcpy(ranks_shared->told, data, bytes);
    ranks_meet();
    memcpy(data, ranks_shared->told, bytes);
    ranks_meet();
}

/* The piece that is mapped, and what was seen of those before. */
static struct {
    float *data; /* NULL: none */
    int mode;
    int64_t loaded;  /* elements that were written to, and were right */
    int64_t maps;    /* so far */
    int64_t ends_at; /* the map that kills this rank; 0: none */
} mapped;

/* Runs `body` as n ranks; as a launcher does, kills all when one is killed. True when all ended with no check failed.
 */
static bool ranks_run(int n, void (*body)(void))
{
    pthread_barrierattr_t attr;
    pid_t pid[RANKS_MOST];
    bool good = true;
    ranks_shared = mmap(NULL, sizeof *ranks_shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    TESS_ASSERT(ranks_shared != MAP_FAILED);
    pthread_barrierattr_init(&attr);
    pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&ranks_shared->barrier, &attr, (unsigned)n);
    fflush(stdout);
    for (int r = 0; r < n; r++)
        if ((pid[r] = fork()) == 0) {
            ranks_rank = r;
            ranks_size = n;
            check_failures = 0;
            memset(&mapped, 0, sizeof mapped);
            body();
            fflush(stdout);
            _exit(check_failures > 0);
        }
    for (int left = n; left > 0; left--) {
        int status;
        pid_t ended = wait(&status);
        for (int r = 0; r < n; r++) {
            if (pid[r] == ended) pid[r] = 0;
            if (WIFSIGNALED(status) && pid[r]) kill(pid[r], SIGKILL);
        }
        good = good && WIFEXITED(status) && WEXITSTATUS(status) == 0;
    }
    munmap(ranks_shared, sizeof *ranks_shared);
    return good;
}

/* ---- pieces ---- */

/* Who holds what. */
enum scheme {
    TILES,    /* everybody everything, in tiles of whole rows; they take turns in writing */
    SLICES,   /* everybody a share of the rows of each tile */
    COLUMNS,  /* everybody a share of the columns; of vectors everything */
    OWNERS,   /* every parameter one of them */
    CHEQUERS, /* rectangles, dealt out in turn */
    SCHEMES
};
static enum scheme scheme;

enum { TILE_ROWS = 7, TILE_COLS = 5 };

static int64_t share_begin(int64_t n, int rank)
{
    return n * rank / ranks_size;
}

static uint32_t number_of(const tess_tensor *p)
{
    uint32_t h = 2166136261u;
    for (const char *c = tess_tensor_name(p); *c; c++) h = (h ^ (uint8_t)*c) * 16777619u;
    return h >> 8;
}

/* Piece number `want` of this rank, or how many there are: the same walk over all. */
static int64_t walk_pieces(const tess_tensor *p, int64_t want, tess_piece *out)
{
    int64_t shape[3], n = 0, chequer = number_of(p);
    const bool matrix = tess_tensor_shape(p, shape) == 2;
    const int64_t wide = scheme == CHEQUERS ? TILE_COLS : shape[1];
    for (int64_t row = 0; row < shape[0]; row += TILE_ROWS)
        for (int64_t col = 0; col < shape[1]; col += wide, chequer++) {
            tess_piece q = {.row = row, .col = col, .writes = true};
            q.rows = shape[0] - row < TILE_ROWS ? shape[0] - row : TILE_ROWS;
            q.cols = shape[1] - col < wide ? shape[1] - col : wide;
            if (scheme == TILES || (scheme == COLUMNS && !matrix)) q.writes = chequer % ranks_size == ranks_rank;
            if (scheme == SLICES) {
                int64_t rows = q.rows;
                q.row += share_begin(rows, ranks_rank);
                q.rows = share_begin(rows, ranks_rank + 1) - share_begin(rows, ranks_rank);
            }
            if (scheme == COLUMNS && matrix) {
                q.col = share_begin(shape[1], ranks_rank);
                q.cols = share_begin(shape[1], ranks_rank + 1) - q.col;
            }
            if (scheme == OWNERS && (int)(number_of(p) % (uint32_t)ranks_size) != ranks_rank) continue;
            if (scheme == CHEQUERS && chequer % ranks_size != ranks_rank) continue;
            if (q.rows * q.cols == 0) continue;
            if (n++ == want) *out = q;
        }
    return n;
}

/* Element (r, c) of a part of a parameter. */
static float element_of(const tess_tensor *p, tess_part part, int64_t r, int64_t c)
{
    int64_t shape[3];
    tess_tensor_shape(p, shape);
    uint32_t h = (uint32_t)((r * shape[1] + c) * 4 + (int64_t)part) * 2654435761u + number_of(p) * 40503u;
    return (float)(int32_t)h;
}

int64_t __wrap_tess_param_pieces(const tess_tensor *p);
tess_piece __wrap_tess_param_piece(const tess_tensor *p, int64_t piece);
tess_status __wrap_tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data);
void __wrap_tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
tess_status __wrap_tess_graph_round(tess_graph *g);

int64_t __wrap_tess_param_pieces(const tess_tensor *p)
{
    return walk_pieces(p, -1, NULL);
}

tess_piece __wrap_tess_param_piece(const tess_tensor *p, int64_t piece)
{
    tess_piece q = {0};
    TESS_ASSERT(piece >= 0 && piece < walk_pieces(p, piece, &q));
    return q;
}

tess_status __wrap_tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data)
{
    tess_piece q = __wrap_tess_param_piece(p, piece);
    TESS_ASSERT(!mapped.data); /* one at a time: no more has to have room */
    if (++mapped.maps == mapped.ends_at) raise(SIGKILL);
    mapped.mode = mode;
    *data = mapped.data = tess_alloc((size_t)(q.rows * q.cols) * sizeof(float));
    for (int64_t i = 0; i < q.rows * q.cols; i++)
        mapped.data[i] = mode == TESS_W ? 0.5f : element_of(p, part, q.row + i / q.cols, q.col + i % q.cols);
    return TESS_OK;
}

void __wrap_tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part)
{
    tess_piece q = __wrap_tess_param_piece(p, piece);
    TESS_ASSERT(mapped.data);
    for (int64_t i = 0; i < q.rows * q.cols && mapped.mode == TESS_W; i++)
        mapped.loaded += mapped.data[i] == element_of(p, part, q.row + i / q.cols, q.col + i % q.cols);
    free(mapped.data);
    mapped.data = NULL;
}

tess_status __wrap_tess_graph_round(tess_graph *g)
{
    (void)g;
    return TESS_OK;
}

/* The elements that this rank holds of a graph, one part. */
static int64_t held(const tess_graph *g)
{
    int64_t n = 0;
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        for (int64_t i = 0; i < __wrap_tess_param_pieces(p); i++) {
            tess_piece q = __wrap_tess_param_piece(p, i);
            n += q.rows * q.cols;
        }
    }
    return n;
}

#endif
