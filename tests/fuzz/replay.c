/* A fuzz target without a fuzzer: goes through its kept corpus, which has its name, and fixed changes of it, some
 * seconds' worth. With arguments through those files alone, as libFuzzer does: to see a finding again. */
#include "tests/fuzz/fuzz.h"
#include <dirent.h>
#include <errno.h>
#include <stdio.h>

struct input {
    uint8_t *data;
    size_t bytes;
    bool taken;
};

static uint64_t state = 1;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
}

static struct input read_input(const char *path)
{
    struct input in = {0};
    FILE *f = fopen(path, "rb");
    if (!f || fseek(f, 0, SEEK_END)) {
        perror(path);
        exit(99);
    }
    in.bytes = (size_t)ftell(f);
    in.data = tess_alloc(in.bytes);
    rewind(f);
    if (fread(in.data, 1, in.bytes, f) != in.bytes) exit(99);
    fclose(f);
    return in;
}

static void run(const struct input *in)
{
    uint8_t *exact = fuzz_copy(in->data, in->bytes);
    LLVMFuzzerTestOneInput(exact, in->bytes);
    free(exact);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name); /* the same order in every locale */
}

static int is_input(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* ---- changes ---- */

/* Replaces `old` bytes at a place by others. */
static void splice(struct input *in, size_t at, size_t old, const void *data, size_t bytes)
{
    uint8_t *out = tess_alloc(in->bytes - old + bytes);
    memcpy(out, in->data, at);
    if (bytes) memcpy(out + at, data, bytes);
    memcpy(out + at + bytes, in->data + at + old, in->bytes - at - old);
    free(in->data);
    *in = (struct input){out, in->bytes - old + bytes, false};
}

static void put_extreme(struct input *in, size_t at)
{
    static const uint64_t extreme[] = {
        0, 1, 3, 5, 7, 48, INT32_MAX, UINT32_MAX, INT64_MAX, UINT64_MAX, UINT64_MAX / 12};
    const uint64_t value = extreme[draw(sizeof extreme / sizeof *extreme)];
    const size_t size = (size_t)1 << draw(4);
    if (at + size <= in->bytes) memcpy(in->data + at, &value, size); /* little-endian, as the files are */
}

static void put_digit(struct input *in, size_t at)
{
    for (size_t i = 0; i < in->bytes && (in->data[at] < '0' || in->data[at] > '9'); i++) at = (at + 1) % in->bytes;
    in->data[at] = (uint8_t)('0' + draw(10));
}

static void put_word(struct input *in, size_t at)
{
    static const char *const word[] = {"null",    "true", "-1",   "1e308",   "0.5",        "[]",
                                       "{}",      "\"\"", "auto", "99999",   "4294967296", "\xff",
                                       "}",       "\"",   ",",    "{\"a\":", "[",          "\n",
                                       "\\u0000", "=",    ":",    "1e9",     "-",          "9223372036854775807"};
    const char *w = word[draw(sizeof word / sizeof *word)];
    const size_t rest = in->bytes - at, old = draw(rest < 8 ? rest + 1 : 8);
    splice(in, at, old, w, strlen(w));
}

/* One change; mostly near the front every second time, since counts and headers are there. */
static void change(struct input *in, const struct input *other)
{
    if (!in->bytes) return;
    size_t at = draw(draw(2) || in->bytes < 150 ? in->bytes : 150), rest = in->bytes - at, n = 1 + draw(rest);
    switch (draw(10)) {
    case 0:
        in->data[at] = (uint8_t)draw(256);
        return;
    case 1:
        in->data[at] ^= (uint8_t)(1 << draw(8));
        return;
    case 2:
    case 3:
        put_digit(in, at);
        return;
    case 4:
        put_extreme(in, at);
        return;
    case 5:
        in->bytes = at + 1;
        return;
    case 6:
        splice(in, at, n < 40 ? n : 40, NULL, 0);
        return;
    case 7: {
        uint8_t *twice = fuzz_copy(in->data + at, n);
        splice(in, at, 0, twice, n);
        free(twice);
        return;
    }
    case 8:
        if (other->bytes) {
            const size_t from = draw(other->bytes), most = other->bytes - from;
            splice(in, at, n < 40 ? n : 40, other->data + from, 1 + draw(most < 40 ? most : 40));
        }
        return;
    default:
        put_word(in, at);
    }
}

int main(int argc, char **argv)
{
    struct dirent **name;
    char *corpus = tess_format("%s/%s", FUZZ_CORPUS, strchr(program_invocation_short_name, '_') + 1);
    const int kept = argc > 1 ? argc - 1 : scandir(corpus, &name, is_input, by_name);
    struct input *input = tess_alloc((kept > 0 ? (size_t)kept : 1) * sizeof *input);
    for (int i = 0; i < kept; i++) {
        char *path = argc > 1 ? tess_strdup(argv[i + 1]) : tess_format("%s/%s", corpus, name[i]->d_name);
        input[i] = read_input(path);
        const int before = fuzz_taken;
        run(&input[i]);
        input[i].taken = fuzz_taken > before;
        free(path);
        if (argc == 1) free(name[i]);
    }
    const int whole = fuzz_taken;
    for (int c = 0; c < fuzz_cases && argc == 1 && kept > 0; c++) {
        /* Every second time of one that is taken: most are kept for what is wrong with them. */
        int which = c / 2 % kept;
        while (c % 2 && whole && !input[which].taken) which = (which + 1) % kept;
        const struct input *from = &input[which];
        struct input in = {fuzz_copy(from->data, from->bytes), from->bytes, false};
        for (uint64_t changes = 1 + draw(3); changes; changes--) change(&in, &input[draw((uint64_t)kept)]);
        run(&in);
        free(in.data);
    }
    for (int i = 0; i < kept; i++) free(input[i].data);
    if (argc == 1 && kept > 0) free(name);
    free(input);
    free(corpus);
    const int taken = fuzz_taken - whole;
    printf("%d kept inputs, of which %d are taken; %d changes of them, of which %d are\n", kept, whole, fuzz_cases,
           taken);
    /* Else the corpus is lost, or the changes find nothing. */
    const bool good = argc > 1 || (whole > 0 && whole < kept && taken > fuzz_cases / 200 && taken < fuzz_cases);
    printf("%d passed, %d failed, 0 skipped\n", good, !good);
    return !good;
}
