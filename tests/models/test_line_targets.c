/* A .jsonl of text alone: masks for masked models, spans for encoders and decoders. */
#define CHECK_MAIN
#include "tests/models/lines.h"

/* Tokens of a masked model's sample that are not its own: counted, and that each is a target. */
static void count_masks(const struct whole *w, const struct whole *plain, const tess_data_conf *c, int count[4])
{
    for (int t = 0; t < T; t++) {
        const bool target = w->targets[t] != NONE;
        if (target) CHECK_EQ(w->targets[t], plain->ids[t]);
        if (!target) CHECK_EQ(w->ids[t], plain->ids[t]);
        count[0]++;
        count[1] += target;
        count[2] += target && w->ids[t] == c->mask_token;
        count[3] += target && w->ids[t] == plain->ids[t];
    }
}

static struct whole get_at(const tess_data *d, uint64_t sample, uint64_t place)
{
    struct whole w;
    memset(&w, 0, sizeof w);
    CHECK_EQ(tess_data_get(
                 d, sample,
                 &(tess_sample){w.ids, w.targets, w.bounds, w.positions, w.segments, w.decoder, w.label, place, false}),
             TESS_OK);
    return w;
}

TEST(masks)
{
    enum { WORDS = 2000, SAMPLES = 2000 };
    tess_data_conf c = causal;
    int count[4] = {0};
    tess_data *d = NULL, *plain = NULL;
    char *text = malloc(6 * WORDS + 1);
    for (int i = 0; i < WORDS; i++) memcpy(text + 6 * i, i % 5 ? "abc de" : "ab\1 f ", 6);
    text[6 * WORDS] = 0;
    write_text("m.txt", text);
    free(text);
    CHECK_EQ(tess_data_open(path, NULL, &c, &plain), TESS_OK);
    c.task = TESS_DATA_MASKED;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "m.txt: has no labels (set data.mlm_probability, or give a .jsonl");
    c.mlm_probability = 0.15;
    c.mask_token = -1;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "data.mask_token says nothing (the tokenizer has no [MASK])");
    c.mask_token = 255;
    c.special = (int32_t[]){1};
    c.specials = 1;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
    if (!d || !plain) return;
    CHECK_EQ(tess_data_samples(d), SAMPLES);
    int other = 0;
    for (uint64_t s = 0; s + 1 < SAMPLES; s++) {
        const struct whole w = get_at(d, s, s), again = get_at(d, s, s), epoch = get_at(d, s, s + SAMPLES),
                           p = get(plain, s);
        int one[4] = {0};
        CHECK(!memcmp(&w, &again, sizeof w));
        other += memcmp(w.targets, epoch.targets, sizeof w.targets) != 0;
        count_masks(&w, &p, &c, one);
        CHECK(one[1] > 0);
        for (int i = 0; i < 4; i++) count[i] += one[i];
        for (int t = 0; t < T; t++) CHECK(p.ids[t] != 1 || w.targets[t] == NONE);
    }
    CHECK(other > SAMPLES / 2);
    /* 0.15 of them, and one where that is none; one of 30 is special. */
    CHECK_NEAR(count[1] / (double)SAMPLES, 0.15 * 5.8 + 0.39, 0.06);
    CHECK_NEAR(count[2] / (double)count[1], 0.8, 0.03);
    CHECK_NEAR(count[3] / (double)count[1], 0.1, 0.03);
    tess_data_close(d);

    c.whole_words = true; /* abc and de: all or none */
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
    int words = 0;
    for (uint64_t s = 0; s + 1 < SAMPLES && d; s++) {
        const struct whole w = get_at(d, s, s);
        if (s % 5 == 0) continue;
        const int n = (w.targets[0] != NONE) + (w.targets[1] != NONE) + (w.targets[2] != NONE);
        const int all = n + (w.targets[3] != NONE) + (w.targets[4] != NONE) + (w.targets[5] != NONE);
        if (all == 1) continue; /* the one that is chosen where there would be none */
        CHECK(n == 0 || n == 3);
        CHECK_EQ(w.targets[4] == NONE, w.targets[5] == NONE);
        words += n == 3;
    }
    CHECK_NEAR(words / (0.8 * SAMPLES), 0.15, 0.05);
    tess_data_close(d);
    tess_data_close(plain);

    c.whole_words = false; /* lines that bring no labels are masked too, and padding is not */
    d = open_text("{\"input_ids\": [5, 6, 7]}\n{\"input_ids\": [5, 6], \"labels\": [-100, 9]}\n", NULL, &c);
    for (uint64_t at = 0; d && at < 50; at++) {
        const struct whole w = get_at(d, 0, at);
        CHECK(w.targets[0] == 5 || w.targets[1] == 6 || w.targets[2] == 7);
        check_list("targets", w.targets + 3, 3, "-100 -100 -100");
        check_list("targets", get_at(d, 1, at).targets, T, "-100 9 -100 -100 -100 -100");
    }
    tess_data_close(d);
}

/* What went over to the decoder, put back where its sentinels stand, is the text. */
TEST(spans)
{
    enum { LONG = 40 };
    tess_data_conf c = {.seq_length = LONG,
                        .vocab = 256,
                        .end_of_text = 10,
                        .task = TESS_DATA_DECODER,
                        .decoder_start = 11,
                        .sentinel = 255,
                        .noise_density = 0.15,
                        .noise_span = 3};
    static char text[4001];
    for (int i = 0; i < 4000; i++) text[i] = (char)('a' + i * i % 26);
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(write_text("s.txt", text), NULL, &c, &d), TESS_OK);
    if (!d) return;
    int32_t ids[LONG], targets[LONG], decoder[LONG], bounds[2 * LONG], first[LONG];
    uint64_t at = 0;
    for (uint64_t s = 0; s < tess_data_samples(d); s++) {
        CHECK_EQ(
            tess_data_get(
                d, s,
                &(tess_sample){.ids = ids, .targets = targets, .decoder_ids = decoder, .bounds = bounds, .place = s}),
            TESS_OK);
        const int n = bounds[LONG];
        int k = 0;
        CHECK(n > LONG - 3 && n <= LONG);
        CHECK_EQ(ids[n - 1], 10);
        for (int t = 0; t + 1 < n; t++) {
            if (ids[t] < 200) {
                CHECK_EQ(ids[t], text[at++]);
                continue;
            }
            CHECK_EQ(targets[k++], ids[t]);
            while (k < LONG && targets[k] < 200 && targets[k] != 10) CHECK_EQ(targets[k++], text[at++]);
        }
        CHECK_EQ(targets[k], 10);
        for (int t = 0; t < LONG; t++) {
            if (t > k) CHECK_EQ(targets[t], NONE);
            if (t <= k) CHECK_EQ(decoder[t], t ? targets[t - 1] : 11);
        }
        if (s == 0) memcpy(first, ids, sizeof first);
    }
    /* 40 places hold 44 tokens, less the 7 that go (0.15 of them), with 2 sentinels and an end. */
    CHECK_EQ(at / tess_data_samples(d), 44);
    CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = ids, .place = 77}), TESS_OK);
    CHECK(memcmp(first, ids, sizeof first) != 0);
    tess_data_close(d);
    c.sentinel = 0;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "data.sentinel_token: 0, expected 1 to 255, for 2 spans");
}
