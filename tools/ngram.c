/* What a text's letters tell without a network: the cross-entropy of a unigram and of a bigram model of bytes, counted
 * on one file and measured on another, in nats a byte. The demo's yardstick.
 *
 *     ngram docs/demo/text.txt docs/demo/held-out.txt
 *
 * Both are smoothed so that no byte is impossible: the unigram adds one to every count; the bigram falls back on the
 * unigram with the weight that Witten and Bell give it, the number of different bytes seen after the one before.
 */
#include "runtime/runtime.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BYTES = 256 };

struct text {
    uint8_t *byte; /* (size) */
    size_t size;
};

/* The whole file; free() its bytes, whatever is returned. A bigram needs two bytes. */
static tess_status text_read(const char *path, struct text *t)
{
    *t = (struct text){0};
    FILE *f = fopen(path, "rb");
    if (!f) return tess_error(TESS_INVALID, path, "%s (expected a text)", strerror(errno));
    size_t room = 0, n;
    do {
        if (t->size == room) t->byte = tess_realloc(t->byte, room = room ? 2 * room : 1 << 16);
        t->size += n = fread(t->byte + t->size, 1, room - t->size, f);
    } while (n);
    bool failed = ferror(f) != 0;
    fclose(f);
    if (failed) return tess_error(TESS_INVALID, path, "cannot be read (expected a text)");
    if (t->size < 2) return tess_error(TESS_INVALID, path, "%zu bytes (expected two or more)", t->size);
    return TESS_OK;
}

struct model {
    double after[BYTES][BYTES]; /* [a][b]: how often b follows a */
    double first[BYTES];        /* how often a is followed by anything */
    double kinds[BYTES];        /* by how many different bytes */
    double seen[BYTES], all;    /* how often b is there; all bytes */
};

static void count(const struct text *t, struct model *m)
{
    *m = (struct model){0};
    for (size_t i = 0; i < t->size; i++) m->seen[t->byte[i]]++;
    m->all = (double)t->size;
    for (size_t i = 1; i < t->size; i++) {
        uint8_t a = t->byte[i - 1], b = t->byte[i];
        m->kinds[a] += m->after[a][b] == 0;
        m->after[a][b]++;
        m->first[a]++;
    }
}

static double unigram(const struct model *m, uint8_t b)
{
    return (m->seen[b] + 1) / (m->all + BYTES);
}

static double bigram(const struct model *m, uint8_t a, uint8_t b)
{
    if (m->first[a] == 0) return unigram(m, b);
    return (m->after[a][b] + m->kinds[a] * unigram(m, b)) / (m->first[a] + m->kinds[a]);
}

static tess_status measure(const char *train, const char *held_out)
{
    static struct model m;
    struct text t;
    double loss[2] = {0};
    tess_status status = text_read(train, &t);
    if (status == TESS_OK) count(&t, &m);
    free(t.byte);
    TESS_TRY(status);
    status = text_read(held_out, &t);
    for (size_t i = 1; i < t.size; i++) { /* from the second byte on, as a network predicts them */
        loss[0] -= log(unigram(&m, t.byte[i]));
        loss[1] -= log(bigram(&m, t.byte[i - 1], t.byte[i]));
    }
    if (status == TESS_OK) {
        double n = (double)(t.size - 1);
        printf("unigram %.4f  bigram %.4f  nats a byte, over %zu bytes\n", loss[0] / n, loss[1] / n, t.size - 1);
    }
    free(t.byte);
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: ngram TRAIN.txt HELD-OUT.txt\n");
        return TESS_INVALID;
    }
    tess_status status = measure(argv[1], argv[2]);
    if (status != TESS_OK) fprintf(stderr, "ngram: error: %s\n", tess_error_text());
    return (int)status;
}
