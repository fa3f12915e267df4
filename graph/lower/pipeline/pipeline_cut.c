/* How the blocks of a model are cut into the chunks of a pipeline. What comes before the first block goes with the
 * first chunk, what comes after the last with the last one. Each chunk has as much work as can be: the squares of the
 * chunks' work, in products of matrices, add up to the least. So a head with a large vocabulary counts as the blocks
 * that it is worth, and blocks of several kinds as what they are. A program may say how many blocks each has. */
#include "graph/describe/describe.h"
#include "graph/lower/pipeline/pipeline_impl.h"
#include <math.h>
#include <stdlib.h>

/* Multiplications of a sequence in products of matrices. */
static double work_of(const tess_node *n)
{
    double work = 0;
    for (int i = 0; i < n->inputs; i++) {
        const tess_tensor *w = n->in[i];
        const bool times = n->op->times >> i & 1 || (i == n->op->table && n->op->targets); /* a head's table */
        if (!times || !w || w->kind != TESS_KIND_PARAM || w->nd) continue;
        work += (double)n->in[0]->dim[1] * (double)w->dim[0] * (double)w->dim[1] / (double)tess_param_members(w);
    }
    return work;
}

static int last_block(const tess_graph *g)
{
    int last = 0;
    for (int k = 0; k < g->nodes; k++)
        if (g->node[k]->block > last) last = g->node[k]->block;
    return last;
}

/* Returns sums of work, [b] that of blocks 1 to b with what is between them; the caller calls free(). */
static double *work_upto(const tess_graph *g, int last)
{
    double *upto = tess_alloc((size_t)(last + 2) * sizeof *upto);
    int block = 1;
    for (int k = 0; k < g->nodes; k++) {
        if (g->node[k]->block > block) block = g->node[k]->block;
        upto[block] += work_of(g->node[k]);
    }
    for (int b = 1; b <= last; b++) upto[b] += upto[b - 1];
    return upto;
}

/* after[c] is the last block before chunk c. */
static void cut_by_work(const tess_graph *g, int last, int n, int *after)
{
    const size_t row = (size_t)last + 1;
    TESS_FREED double *upto = work_upto(g, last), *least = tess_alloc((size_t)(n + 1) * row * sizeof *least);
    TESS_FREED int *from = tess_alloc((size_t)(n + 1) * row * sizeof *from);
    const double all = upto[last] > 0 ? upto[last] : 1;
    for (size_t i = 1; i < (size_t)(n + 1) * row; i++) least[i] = HUGE_VAL;
    for (int c = 1; c <= n; c++)
        for (int b = c; b <= last; b++)
            for (int a = c - 1; a < b; a++) { /* a block counts a little by itself, where no product is known of */
                const double work = (upto[b] - upto[a]) / all + 1e-6 * (b - a),
                             sum = least[(size_t)(c - 1) * row + (size_t)a] + work * work;
                const size_t at = (size_t)c * row + (size_t)b;
                if (sum >= least[at] * (1 + 1e-12)) continue;
                least[at] = sum;
                from[at] = a;
            }
    after[n] = last;
    for (int c = n; c > 0; c--) after[c - 1] = from[(size_t)c * row + (size_t)after[c]];
}

/* As the program says; false: that is no list of n numbers whose sum is `last`. */
static bool cut_as_said(const char *said, int last, int n, int *after)
{
    after[0] = 0;
    for (int c = 0; c < n; c++) {
        char *end;
        const long blocks = strtol(said, &end, 10);
        if (end == said || blocks < 1 || blocks > last || *end != (c + 1 < n ? ',' : 0)) return false;
        after[c + 1] = after[c] + (int)blocks;
        said = end + 1;
    }
    return after[n] == last;
}

/* Graphs that share parameters have one cut, so that each finds them in its section. */
static const int *cut_of(const tess_graph *of)
{
    tess_graph *g = of->conf.share ? of->conf.share : (tess_graph *)(uintptr_t)of;
    while (g->conf.share) g = g->conf.share;
    if (g->cut) return g->cut;
    const int n = tess_chunks(&g->conf.grid), last = last_block(g);
    g->cut = tess_arena_get(g->arena, (size_t)(n + 1) * sizeof *g->cut);
    if (last < n) return g->cut;
    if (!g->conf.grid.blocks || !cut_as_said(g->conf.grid.blocks, last, n, g->cut)) cut_by_work(g, last, n, g->cut);
    return g->cut;
}

int *tess_pipeline_chunks(const tess_graph *g)
{
    const int *after = cut_of(g), n = tess_chunks(&g->conf.grid);
    int *chunk = tess_alloc((size_t)(g->nodes + 1) * sizeof *chunk), at = 0;
    for (int k = 0; k < g->nodes; k++) {
        while (at + 1 < n && after[n] && g->node[k]->block > after[at + 1]) at++;
        chunk[k] = at;
    }
    return chunk;
}

tess_status tess_pipeline_check(const tess_graph *g)
{
    const tess_grid *grid = &g->conf.grid;
    const int n = tess_chunks(grid), last = last_block(g);
    if (n <= 1) return TESS_OK;
    if (g->blocks < n)
        return tess_error(TESS_INVALID, "grid",
                          "%d stages of %d chunks each, but the model has %d blocks (a chunk needs at least one)",
                          grid->pipeline, grid->interleave, g->blocks);
    int *after = tess_alloc((size_t)(n + 1) * sizeof *after);
    const bool fits = !grid->blocks || cut_as_said(grid->blocks, last, n, after);
    free(after);
    if (fits) return TESS_OK;
    return tess_error(TESS_INVALID, "grid", "blocks \"%s\", expected %d numbers with commas between, whose sum is %d",
                      grid->blocks, n, last);
}

const char *tess_graph_sections(const tess_graph *g)
{
    const tess_grid *grid = &g->conf.grid;
    const char *said = NULL;
    for (int s = 0; s < grid->pipeline && grid->pipeline > 1; s++)
        for (int c = 0, first = true; c < tess_chunks(grid); c++) {
            if (tess_grid_section_of(grid, c) != s) continue;
            const int from = cut_of(g)[c] + 1, to = cut_of(g)[c + 1];
            said = tess_arena_format(g->arena, from < to ? "%s%s%d to %d" : "%s%s%d", said ? said : "",
                                     !said   ? ""
                                     : first ? ", "
                                             : " and ",
                                     from, to);
            first = false;
        }
    return said;
}

void tess_pipeline_users(const tess_graph *g, bool *const *uses, bool *twice)
{
    const tess_grid *grid = &g->conf.grid;
    TESS_FREED int *chunk = tess_pipeline_chunks(g);
    unsigned char *legs = tess_alloc((size_t)g->tensors + 1);
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) {
            const tess_tensor *t = g->node[k]->in[i];
            if (!t || t->kind != TESS_KIND_PARAM) continue;
            const int section = tess_grid_section_of(grid, chunk[k]);
            uses[t->id][section] = true;
            if (section == tess_grid_section(grid)) legs[t->id] |= (unsigned char)(1 << tess_is_back(grid, chunk[k]));
        }
    for (int k = 0; k < g->tensors; k++) twice[k] = legs[k] == 3;
    free(legs);
}
