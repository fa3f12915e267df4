/* Who owns what: the functions from a tile to a rank that the placements of a model over ranks are. */
#include "graph/describe/param.h"
#include <stdlib.h>
#include <string.h>

enum {
    FEW = TESS_FEW_SLICES,   /* slices of any tile: more ranks take turns, tile by tile, and none has more messages */
    MOST = TESS_MOST_SLICES, /* of a large one, which all ranks then send and take a part of at the same time */
    LARGE = 1 << 16,         /* elements of such a slice at least */
    PARTS = 38               /* a tag's room for those of one rank */
};

/* A multiple of FEW, or one for each rank: so ranks that are FEW apart stay alike. */
static int64_t slices_for(int64_t data, int64_t elements)
{
    if (data <= FEW) return data;
    int64_t most = elements / LARGE < MOST ? elements / LARGE : MOST, slices = FEW;
    if (data <= most) return data;
    while (slices * 2 <= most && slices * 2 <= data) slices *= 2;
    return slices;
}

void tess_grid_share(const tess_grid *g, const tess_step_conf *c, int d, int64_t *first, int64_t *count)
{
    const int64_t micro = c->micro > 0 ? c->micro : tess_grid_batches(g),
                  sum = c->shares ? tess_shares_sum(c->shares, g->data, NULL) : 0;
    *count = micro / tess_grid_batches(g);
    *first = *count * (d / g->sequence);
    if (!sum) return;
    const char *share = c->shares;
    for (*first = 0; d-- > 0; share = strchr(share, ',') + 1) *first += micro / sum * strtol(share, NULL, 10);
    *count = micro / sum * strtol(share, NULL, 10);
}

void tess_grid_experts(const tess_grid *g, int64_t experts, int d, int64_t *first, int64_t *end)
{
    *first = experts * d / g->data;
    *end = experts * (d + 1) / g->data;
}

int tess_grid_expert(const tess_tensor *p, int64_t tile)
{
    const tess_grid *g = &p->g->conf.grid;
    const int64_t members = p->cut->members;
    int64_t first, end = 0;
    int d = -1;
    while (p->g->owned && members > 1 && end <= tile / (p->cut->tiles / members))
        tess_grid_experts(g, members, ++d, &first, &end);
    return d;
}

/* A tile of experts whose owners are said is one slice. */
static int slices_of(const tess_tensor *p, int64_t tile, int64_t rows, int64_t *units, int *expert)
{
    const int64_t unit = p->rank == 2 ? 1 : TESS_VECTOR_ROWS, width = p->rank == 2 ? p->dim[1] : 1;
    *units = (rows + unit - 1) / unit;
    *expert = tess_grid_expert(p, tile);
    const int64_t slices = *expert >= 0 ? 1 : slices_for(p->g->conf.grid.data, rows * width);
    return (int)(*units < slices ? *units : slices);
}

/* The places of a group have a run of a tile's slices each, as many groups the slices of a run in turns. Where a group
 * has more places than there are slices, all ranks take turns. */
static void set_owners(const tess_grid *g, int64_t tile, int slices, tess_slice *slice)
{
    const int group = g->group, turns = g->data / group;
    if (slices < group) {
        for (int s = 0; s < slices; s++) slice[s].owner = (int)((tile * slices + s) % g->data);
        return;
    }
    const int first = (int)(tile * (slices / group) % turns);
    int place = (int)(tile % group);
    for (int run = 0, s = 0; run < group; run++, place = place + 1 < group ? place + 1 : 0) {
        const int end = ((run + 1) * slices + group - 1) / group;
        for (int turn = first; s < end; s++, turn = turn + 1 < turns ? turn + 1 : 0)
            slice[s].owner = turn * group + place;
    }
}

/* Large models have many slices: nothing here takes a division for each, unless ranks have unequal parts. Of these each
 * slice has a unit, and of the others as its owner's part is. */
void tess_grid_slices(const tess_tensor *p, int64_t tile, tess_slices *out)
{
    const int64_t unit = p->rank == 2 ? 1 : TESS_VECTOR_ROWS;
    int64_t first, rows, units, row = 0, rest = 0, parts = 0;
    int expert;
    tess_param_rows(p, tile, &first, &rows);
    const int n = out->n = slices_of(p, tile, rows, &units, &expert);
    const int64_t some = units / n, more = units % n;
    for (int s = 0; s < n; s++) out->of[s].owner = expert;
    if (expert < 0) set_owners(&p->g->conf.grid, p->held->tile[tile].index, n, out->of);
    const int64_t *part = n > 1 && n == p->g->conf.grid.data ? p->g->state_part : NULL;
    for (int s = 0; s < n; s++) {
        const bool one = (rest += more) >= n;
        int64_t end = row + (some + one) * unit;
        if (part) end = (s + 1 + (units - n) * (parts += part[out->of[s].owner]) / p->g->state_parts) * unit;
        if (s + 1 == n) end = rows;
        out->of[s].row = row, out->of[s].rows = end - row;
        row = end;
        if (one) rest -= n;
    }
    for (out->own = n - 1; out->own >= 0 && out->of[out->own].owner != tess_grid_data(&p->g->conf.grid);) out->own--;
}

tess_slice tess_grid_run(const tess_slices *of, int ranks, int *s)
{
    tess_slice run = of->of[(*s)++];
    for (; *s < of->n && of->of[*s].owner % ranks == run.owner % ranks; ++*s) run.rows += of->of[*s].rows;
    return run;
}

int tess_grid_near(const tess_grid *g, int ranks_here)
{
    const int model = g->pipeline * g->tensor, near = ranks_here / model;
    return near > 1 && ranks_here % model == 0 && near < g->data && g->data % near == 0 ? near : 1;
}

static int common(int a, int b)
{
    return b ? common(b, a % b) : a;
}

/* Tiles have their slices with FEW ranks in a row, or a multiple, which the next tile's follow. Of those a machine has
 * all or none, or it has only such. With groups, or unequal parts, no two ranks are taken for alike. */
int tess_grid_alike(const tess_grid *g, int ranks_here)
{
    if ((g->group && g->group < g->data) || g->states) return g->data;
    const int alike = common(g->data, g->data > FEW ? FEW : g->data), near = tess_grid_near(g, ranks_here);
    return alike % near && near % alike ? common(alike, near) : alike;
}

int tess_table_owner(const tess_tensor *table, int64_t tile)
{
    int r = 0;
    while (table->cut->all_tiles * (r + 1) / table->g->conf.grid.tensor <= tile) r++;
    return r;
}

int tess_grid_groups(int64_t first, int64_t count, int *level)
{
    int n = 0;
    for (int64_t end = first + count; first < end; first += (int64_t)1 << level[n++]) {
        level[n] = 0;
        while (first % ((int64_t)2 << level[n]) == 0 && first + ((int64_t)2 << level[n]) <= end) level[n]++;
    }
    return n;
}

static int tagged_slices(const tess_grid *g)
{
    return g->data > FEW ? MOST : FEW;
}

int64_t tess_grid_most_tiles(const tess_grid *g)
{
    return g->data > 1 ? TESS_TAGS_PIPELINE / (tagged_slices(g) * (PARTS + TESS_TAG_PART)) : INT64_MAX;
}

int tess_grid_tag(const tess_tensor *p, int64_t tile, int s, int kind)
{
    TESS_ASSERT(kind < TESS_TAG_PART + PARTS && p->held->tile[tile].index < tess_grid_most_tiles(&p->g->conf.grid));
    return (p->held->tile[tile].index * tagged_slices(&p->g->conf.grid) + s) * (PARTS + TESS_TAG_PART) + kind;
}
