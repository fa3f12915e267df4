/* Any bytes as a Megatron pair or an llm.c file: they are refused, or every sample that they offer can be read.
 *
 * The input: a byte that is odd for Megatron, two of the index's size, the index, and the rest is the .bin. For
 * libFuzzer; with -DFUZZ_MAIN a program that goes through fixed mutations of good files. */
#include "data_impl.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int opened;

static void read_samples(const tess_data *d)
{
    int32_t tokens[3], targets[3];
    uint64_t samples = tess_data_samples(d);
    for (uint64_t s = 0; s < samples && s < 256; s++) {
        uint64_t place = tess_data_order(d, s);
        TESS_ASSERT(place < samples);
        if (tess_data_get(d, place, tokens, targets) != TESS_OK) continue;
        for (int t = 0; t < 3; t++) TESS_ASSERT(targets[t] >= 0 && targets[t] < 50);
    }
    if (tess_data_get(d, samples - 1, tokens, targets) != TESS_OK) return;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (bytes < 3) return 0;
    size_t size = data[1] | data[2] << 8, rest = bytes - 3;
    if (size > rest) size = rest;
    /* Copies that end where the files do, so that a sanitizer sees what reads beyond. */
    uint8_t *idx_data = memcpy(tess_alloc(size), data + 3, size);
    uint8_t *bin_data = memcpy(tess_alloc(rest - size), data + 3 + size, rest - size);
    tess_map idx = {.path = "fuzz.idx", .data = idx_data, .bytes = size};
    tess_map bin = {.path = "fuzz.bin", .data = bin_data, .bytes = rest - size};
    tess_data_conf conf = {.seq_length = 3, .vocab = 50, .shuffle = true, .seed = 1};
    tess_data *d;
    if (tess_data_view(data[0] & 1 ? &idx : NULL, &bin, &conf, &d) == TESS_OK) {
        opened++;
        read_samples(d);
        tess_data_close(d);
    }
    free(idx_data);
    free(bin_data);
    return 0;
}

#ifdef FUZZ_MAIN
#include <stdio.h>

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static size_t put(uint8_t *p, size_t at, uint64_t value, size_t size)
{
    for (size_t i = 0; i < size; i++) p[at + i] = (uint8_t)(value >> 8 * i);
    return at + size;
}

/* 6 sequences of 4 tokens in 3 documents. */
static size_t megatron(uint8_t *p)
{
    static const uint64_t header[][2] = {{1, 8}, {8, 1}, {6, 8}, {4, 8}}; /* version, u16, sequences, documents */
    size_t n = 3 + 9;
    memcpy(p + 3, "MMIDIDX", 7);
    for (int i = 0; i < 4; i++) n = put(p, n, header[i][0], header[i][1]);
    for (int i = 0; i < 6; i++) n = put(p, n, 4, 4);
    for (uint64_t i = 0; i < 6; i++) n = put(p, n, 8 * i, 8);
    for (uint64_t i = 0; i < 4; i++) n = put(p, n, 2 * i, 8);
    p[0] = 1;
    put(p, 1, n - 3, 2);
    for (uint64_t i = 0; i < 24; i++) n = put(p, n, 2 * i, 2);
    return n;
}

static size_t llmc(uint8_t *p)
{
    put(p, 3, 20240520, 4), put(p, 7, 1, 4), put(p, 11, 24, 4);
    size_t n = 3 + 1024;
    for (uint64_t i = 0; i < 24; i++) n = put(p, n, 2 * i, 2);
    return n;
}

/* One change: a byte, a bit, an extreme 4 or 8 bytes, or a cut. Mostly near the front, where the counts are. */
static size_t mutate(uint8_t *p, size_t n)
{
    static const uint64_t extreme[] = {
        0, 1, 3, 5, 7, 48, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX / 12};
    size_t at = draw(draw(2) ? n : 150), size = draw(2) ? 4 : 8;
    switch (draw(8)) {
    case 0:
    case 1:
    case 2:
        p[at] = (uint8_t)draw(256);
        return n;
    case 3:
    case 4:
        p[at] ^= (uint8_t)(1 << draw(8));
        return n;
    case 5:
    case 6:
        if (at + size <= n) put(p, at, extreme[draw(sizeof extreme / sizeof *extreme)], size);
        return n;
    default:
        return 160 + draw(n - 159);
    }
}

int main(void)
{
    enum { CASES = 40000 };
    for (int c = 0; c < CASES; c++) {
        uint8_t p[2048] = {0};
        size_t n = c % 2 ? llmc(p) : megatron(p);
        for (uint64_t changes = c > 1 ? 1 + draw(3) : 0; changes && n > 160; changes--) n = mutate(p, n);
        LLVMFuzzerTestOneInput(p, n);
    }
    printf("%d cases, %d of them opened\n", CASES, opened);
    bool bad = opened < 1000 || opened > CASES * 9 / 10; /* else the mutations find nothing */
    printf("%d passed, %d failed, 0 skipped\n", !bad, bad);
    return bad;
}
#endif
