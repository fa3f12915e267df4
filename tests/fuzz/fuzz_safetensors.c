/* Any bytes as a safetensors file: it is refused, or every element that it offers can be read.
 *
 * For libFuzzer; with -DFUZZ_MAIN a program that goes through fixed mutations of a good file. */
#include "safetensors_impl.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static int opened;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    tess_safetensors *s;
    if (tess_safetensors_view("fuzz", data, bytes, &s) != TESS_OK) return 0;
    opened++;
    for (size_t i = 0; i < tess_safetensors_count(s); i++) {
        const tess_safetensor *t = tess_safetensors_at(s, i);
        float out[64];
        unsigned sum = 0;
        for (size_t b = 0; b < t->bytes; b++) sum += ((const uint8_t *)t->data)[b];
        TESS_ASSERT(sum <= 255 * t->bytes && tess_safetensors_find(s, t->name) == t);
        for (int64_t e = 0; e < t->elements; e += 64)
            if (tess_safetensor_read(t, e, t->elements - e < 64 ? t->elements - e : 64, out) != TESS_OK) break;
    }
    tess_safetensors_close(s);
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

/* One change: a byte, a bit, a digit of a number, a cut or a doubled stretch. Returns the new size. */
static size_t mutate(uint8_t *p, size_t n, size_t room)
{
    size_t at = draw(n);
    switch (draw(6)) {
    case 0:
        p[at] = (uint8_t)draw(256);
        return n;
    case 1:
        p[at] ^= (uint8_t)(1 << draw(8));
        return n;
    case 2:
    case 3:
        for (size_t i = 0; i < n && (p[at] < '0' || p[at] > '9'); i++) at = (at + 1) % n;
        p[at] = (uint8_t)('0' + draw(10));
        return n;
    case 4:
        return at + 1;
    default: {
        size_t more = n - at < room - n ? n - at : room - n;
        memmove(p + at + more, p + at, n - at);
        return n + more;
    }
    }
}

int main(void)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"b\":{\"dtype\":\"BF16\",\"shape\":[5],\"data_offsets\":[24,34]},"
                                 "\"c\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[34,42]}}";
    enum { HEADER = sizeof header - 1, SEED = 8 + HEADER + 42, CASES = 20000 };
    for (int c = 0; c < CASES; c++) {
        uint8_t p[2 * SEED] = {HEADER & 255, HEADER >> 8};
        size_t n = SEED;
        memcpy(p + 8, header, HEADER);
        for (uint64_t changes = c ? 1 + draw(3) : 0; changes; changes--) n = mutate(p, n, sizeof p);
        uint8_t *exact = memcpy(tess_alloc(n), p, n); /* so that a sanitizer sees what reads beyond */
        LLVMFuzzerTestOneInput(exact, n);
        free(exact);
    }
    printf("%d cases, %d of them opened\n", CASES, opened);
    bool bad = opened < 100 || opened > CASES / 2; /* else the mutations find nothing */
    printf("%d passed, %d failed, 0 skipped\n", !bad, bad);
    return bad;
}
#endif
