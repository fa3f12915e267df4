/* How ranks of the tensor dimension share out tensors of any rank: rules that several ops have in common. A node says
 * for each dimension whether it keeps a split, or sums over it; what it cannot do it says why not. */
#include "graph/generic/generic_impl.h"
#include <string.h>

const char *tess_split_same(const tess_node *n, const tess_split *is, tess_splits *s)
{
    for (int k = 0; k <= n->inputs; k++) s->has[k] = TESS_HAS_SOME, s->of[k] = *is;
    return NULL;
}

const char *tess_split_but(const tess_node *n, const tess_split *is, int dim, tess_splits *s)
{
    return is->dim == dim ? "goes along what would be shared out" : tess_split_same(n, is, s);
}

static int64_t behind(const int64_t *dim, int rank, int d)
{
    int64_t size = 1;
    while (++d < rank) size *= dim[d];
    return size;
}

/* The runs are alike, and `times` elements of the result's dimension are one of their elements, or the reverse. */
static bool runs_of(const tess_split *is, int64_t times, int64_t inner, int64_t suffix, int64_t dim, tess_split *to)
{
    if (times * is->runs > TESS_MOST_BESIDE) return false;
    to->runs = 0;
    for (int64_t t = 0; t < times; t++)
        for (int k = 0; k < is->runs; k++) {
            const int64_t size = is->length[k] * inner;
            if (size % suffix) return false;
            to->length[to->runs++] = size / suffix;
            dim -= size / suffix;
        }
    return dim == 0;
}

/* Finds how a tensor is split in another shape; false: there it would not be. */
static bool reshape(const int64_t *from, int rank, const tess_split *is, const int64_t *dim, int to_rank,
                    tess_split *to)
{
    const int64_t inner = behind(from, rank, is->dim);
    int64_t outer = 1, prefix = 1;
    tess_split one = *is;
    bool alike = true;
    for (int d = 0; d < is->dim; d++) outer *= from[d];
    for (int k = 1; k < is->runs; k++) alike &= is->length[k] == is->length[0];
    if (alike) outer *= is->runs, one.runs = 1;
    for (int d = 0; d < to_rank; prefix *= dim[d++]) {
        if (dim[d] == 1 || outer % (prefix * dim[d]) == 0) continue; /* it counts what lies around runs */
        to->dim = d;
        return outer % prefix == 0 && runs_of(&one, outer / prefix, inner, behind(dim, to_rank, d), dim[d], to);
    }
    return false;
}

const char *tess_split_reshaped(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    static const char *const cannot = "mixes what would be shared out";
    const tess_tensor *side[] = {n->out, n->in[0]}, *from = side[slot], *to = side[1 - slot];
    const bool were = from->nd != NULL, are = to->nd != NULL;
    s->has[0] = s->has[1] = TESS_HAS_SOME;
    s->of[slot] = *is;
    return reshape(were ? from->nd->dim : from->dim, were ? from->nd->rank : 3, is, are ? to->nd->dim : to->dim,
                   are ? to->nd->rank : 3, &s->of[1 - slot])
               ? NULL
               : cannot;
}

bool tess_split_find(const tess_split *of, int64_t first, int64_t size, int *from, int *runs)
{
    int64_t at = 0, end = 0;
    int k = 0;
    for (; k < of->runs && at < first; k++) at += of->length[k];
    *from = k;
    for (; k < of->runs && end < size; k++) end += of->length[k];
    *runs = k - *from;
    return at == first && end == size && *runs > 0;
}
