/* Drawing a token from logits. Draws are counted, so they depend on the seed, the text and the place alone. */
#include "models/train/generate/writer_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool tess_sampling_ends(const tess_sampling *s, int32_t id)
{
    for (int i = 0; i < s->end_count; i++)
        if (s->ends[i] == id) return true;
    return false;
}

/* Each token that the text has, once. */
static void penalize(float *logits, int64_t vocab, const int32_t *text, size_t count, double penalty)
{
    TESS_FREED bool *seen = tess_alloc((size_t)vocab * sizeof *seen);
    for (size_t i = 0; i < count; i++) {
        const int32_t id = text[i];
        if (id < 0 || id >= vocab || seen[id]) continue;
        seen[id] = true;
        logits[id] = (float)(logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty);
    }
}

static int32_t likeliest(const float *logits, int64_t vocab)
{
    int64_t best = 0;
    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > logits[best]) best = i;
    return (int32_t)best;
}

/* ---- a heap of tokens, the likeliest on top; of equal ones the first ---- */

struct heap {
    const float *logits;
    int32_t *id;
    int64_t n;
};

static bool comes_first(const struct heap *h, int32_t a, int32_t b)
{
    return h->logits[a] > h->logits[b] || (h->logits[a] == h->logits[b] && a < b);
}

static void sift(struct heap *h, int64_t i)
{
    for (int64_t child; (child = 2 * i + 1) < h->n; i = child) {
        if (child + 1 < h->n && comes_first(h, h->id[child + 1], h->id[child])) child++;
        if (!comes_first(h, h->id[child], h->id[i])) return;
        const int32_t id = h->id[i];
        h->id[i] = h->id[child], h->id[child] = id;
    }
}

static int32_t pop(struct heap *h)
{
    const int32_t top = h->id[0];
    h->id[0] = h->id[--h->n];
    sift(h, 0);
    return top;
}

/* The weight of a token beside the likeliest one. */
static double weight(float logit, float best, double temperature)
{
    return exp(((double)logit - best) / temperature);
}

/* Leaves -infinity to all that is not drawn from: what is below the k-th, however many are equal to it, and what comes
 * behind those that have the share p of what is left. */
static void cut(const tess_sampling *s, float *logits, int64_t vocab, float best)
{
    const bool by_k = s->top_k > 0 && s->top_k<vocab, by_p = s->top_p> 0 && s->top_p < 1;
    if (!by_k && !by_p) return;
    struct heap h = {logits, tess_alloc((size_t)vocab * sizeof *h.id), vocab};
    for (int64_t i = 0; i < vocab; i++) h.id[i] = (int32_t)i;
    for (int64_t i = vocab / 2; i-- > 0;) sift(&h, i);
    float least = -INFINITY;
    int32_t *kept = tess_alloc((size_t)vocab * sizeof *kept);
    int64_t n = 0;
    double all = 0, before = 0;
    if (by_k) {
        while (h.n > 0 && (n < s->top_k || logits[h.id[0]] == least)) {
            kept[n] = pop(&h);
            least = logits[kept[n++]];
        }
        for (int64_t i = 0; i < n; i++) all += weight(logits[kept[i]], best, s->temperature);
    } else {
        for (int64_t i = 0; i < vocab; i++) all += weight(logits[i], best, s->temperature);
    }
    int64_t in = 0;
    for (; by_p && before < s->top_p * all && (by_k ? in < n : h.n > 0); in++) {
        if (!by_k) kept[in] = pop(&h);
        before += weight(logits[kept[in]], best, s->temperature);
    }
    if (by_p) n = in;
    bool *stays = tess_alloc((size_t)vocab * sizeof *stays);
    for (int64_t i = 0; i < n; i++) stays[kept[i]] = true;
    for (int64_t i = 0; i < vocab; i++)
        if (!stays[i]) logits[i] = -INFINITY;
    free(stays);
    free(kept);
    free(h.id);
}

double tess_log_probability(const float *logits, int64_t vocab, int32_t id)
{
    const float best = logits[likeliest(logits, vocab)];
    double sum = 0;
    for (int64_t i = 0; i < vocab; i++) sum += weight(logits[i], best, 1);
    return (double)logits[id] - (double)best - log(sum);
}

int32_t tess_draw(const tess_sampling *s, const float *logits, int64_t vocab, const int32_t *text, size_t count,
                  uint64_t stream, uint64_t place)
{
    TESS_FREED float *mine = tess_alloc((size_t)vocab * sizeof *mine);
    memcpy(mine, logits, (size_t)vocab * sizeof *mine);
    if (s->repetition_penalty > 0 && s->repetition_penalty != 1)
        penalize(mine, vocab, text, count, s->repetition_penalty);
    int32_t id = likeliest(mine, vocab);
    if (s->temperature > 0) {
        const float best = mine[id];
        double sum = 0, at = (tess_random(s->seed, stream, 0, place) + 0.5) / 4294967296.0;
        cut(s, mine, vocab, best);
        for (int64_t i = 0; i < vocab; i++)
            if (mine[i] > -INFINITY) sum += weight(mine[i], best, s->temperature);
        at *= sum;
        for (int64_t i = 0; i < vocab; i++)
            if (mine[i] > -INFINITY && (at -= weight(mine[i], best, s->temperature)) <= 0) {
                id = (int32_t)i;
                break;
            }
    }
    return id;
}
