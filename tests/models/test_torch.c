/* What torch.save writes of a model (fixtures/make_torch.py): the same tensors as safetensors', bit for bit; and what
 * is refused of a zip, a pickle and what they say. */
#define CHECK_MAIN
#include "models/files/safetensors/safetensors.h"
#include "tests/check.h"
#include "tests/rows.h"
#include <string.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
#define IN(name) TESS_FIXTURES "/torch/" name

/* Tensors of `a` are in `b`, with their bits; returns how many. */
static size_t compare(const char *a, const char *b)
{
    tess_safetensors *x = NULL, *y = NULL;
    CHECK_EQ(tess_safetensors_open(a, &x), TESS_OK);
    CHECK_EQ(tess_safetensors_open(b, &y), TESS_OK);
    const size_t count = x && y ? tess_safetensors_count(x) : 0;
    for (size_t i = 0; i < count; i++) {
        const tess_safetensor *t = tess_safetensors_at(x, i), *u = tess_safetensors_find(y, t->name);
        const bool same = u && t->dtype == u->dtype && t->rank == u->rank && t->elements == u->elements &&
                          !memcmp(t->dims, u->dims, (size_t)t->rank * sizeof *t->dims) && t->bytes == u->bytes &&
                          !memcmp(t->data, u->data, t->bytes) && t->mapped && u->mapped;
        if (!same) CHECK_SAY("%s: not as in %s", t->name, b);
    }
    tess_safetensors_close(x);
    tess_safetensors_close(y);
    return count;
}

TEST(same_bits)
{
    CHECK_EQ(compare(IN("mixed.safetensors"), IN("mixed.bin")), 18);
    CHECK_EQ(compare(IN("mixed.bin"), IN("mixed.safetensors")), 18);
    CHECK(compare(IN("same"), IN("whole")) > 10);
    CHECK(compare(IN("same"), IN("shards")) > 10);
    CHECK(compare(IN("whole"), IN("shards")) > 10);
}

/* Tensors that share a storage lie where it lies: nothing is copied. */
TEST(shared)
{
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(IN("mixed.bin"), &s), TESS_OK);
    if (!s) return;
    const char *base = tess_safetensors_find(s, "f32")->data;
    CHECK(tess_safetensors_find(s, "tied")->data == base);
    CHECK(tess_safetensors_find(s, "rows")->data == base + 2 * 5 * 4);
    CHECK(tess_safetensors_find(s, "last")->data == base + 5 * 5 * 4);
    tess_safetensors_close(s);
}

/* ---- what is refused ---- */

static struct {
    uint8_t byte[4096];
    size_t bytes, directory;
    int entries;
} zip;
static uint8_t listed[2048]; /* the directory, until the end */
static size_t listed_bytes;

static void put(uint8_t *to, size_t *at, uint64_t value, int bytes)
{
    memcpy(to + *at, &value, (size_t)bytes);
    *at += (size_t)bytes;
}

/* An entry that is stored, or says of itself that it is compressed. */
static void add_entry(const char *name, const void *data, size_t bytes, int method)
{
    const size_t begin = zip.bytes, n = strlen(name);
    put(zip.byte, &zip.bytes, 0x04034b50, 4);
    zip.bytes += 22; /* what the directory says again */
    put(zip.byte, &zip.bytes, n, 4);
    memcpy(zip.byte + zip.bytes, name, n);
    zip.bytes += n;
    if (bytes) memcpy(zip.byte + zip.bytes, data, bytes);
    zip.bytes += bytes;
    const uint64_t head[] = {0x02014b50, 0, 0, (uint64_t)method, 0, 0, bytes, bytes, n, 0, 0, 0, begin};
    static const int size[] = {4, 4, 2, 2, 4, 4, 4, 4, 2, 4, 4, 4, 4};
    for (int i = 0; i < 13; i++) put(listed, &listed_bytes, head[i], size[i]);
    memcpy(listed + listed_bytes, name, n);
    listed_bytes += n;
    zip.entries++;
}

static void end_zip(void)
{
    zip.directory = zip.bytes;
    memcpy(zip.byte + zip.bytes, listed, listed_bytes);
    zip.bytes += listed_bytes;
    put(zip.byte, &zip.bytes, 0x06054b50, 4);
    put(zip.byte, &zip.bytes, 0, 4);
    put(zip.byte, &zip.bytes, (uint64_t)zip.entries, 2);
    put(zip.byte, &zip.bytes, (uint64_t)zip.entries, 2);
    put(zip.byte, &zip.bytes, listed_bytes, 4);
    put(zip.byte, &zip.bytes, zip.directory, 4);
    put(zip.byte, &zip.bytes, 0, 2);
}

static void begin_zip(void)
{
    memset(&zip, 0, sizeof zip);
    memset(listed, 0, sizeof listed);
    listed_bytes = 0;
}

/* A zip of this pickle, and a storage 0 of 24 bytes. */
static void make_zip(const char *pickle, size_t bytes)
{
    static const float data[6] = {1, 2, 3, 4, 5, 6};
    begin_zip();
    add_entry("m/data.pkl", pickle, bytes, 0);
    add_entry("m/data/0", data, sizeof data, 0);
    add_entry("m/data/1", data, sizeof data, 8);
    end_zip();
}

static void expect(const char *what, const char *error)
{
    tess_safetensors *s = NULL;
    uint8_t *exact = malloc(zip.bytes); /* so that a sanitizer sees what reads beyond */
    memcpy(exact, zip.byte, zip.bytes);
    const tess_status status = tess_safetensors_view("x/pytorch_model.bin", exact, zip.bytes, &s);
    if (error ? status != TESS_INVALID || !strstr(tess_error_text(), error) : status != TESS_OK)
        CHECK_SAY("%s: \"%s\", expected \"%s\"", what, status == TESS_OK ? "taken" : tess_error_text(),
                  error ? error : "taken");
    if (status == TESS_OK) tess_safetensors_close(s);
    tess_error_clear();
    free(exact);
}

/* Pieces of pickles, as torch.save writes them. */
#define DICT                      "ccollections\nOrderedDict\n)R"
#define STORAGE(type, key, count) "(X\7\0\0\0storagectorch\n" type "Storage\nX\1\0\0\0" key "X\3\0\0\0cpuK" count "tQ"
#define TENSOR_OF(storage, offset, sizes, strides)                                                                     \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage "K" offset sizes strides "\x89" DICT "tR"
#define TENSOR(offset, sizes, strides) TENSOR_OF(STORAGE("Float", "0", "\6"), offset, sizes, strides)
#define NAME                           "X\1\0\0\0a"
#define ONE(value)                     "\x80\2" DICT NAME value "s."
#define ROWS                           "K\2K\3\x86" /* (2, 3) */
#define STEP                           "K\3K\1\x86" /* (3, 1) */

TEST(pickles)
{
    static const struct {
        const char *pickle;
        size_t bytes;
        const char *error;
    } cases[] = {
#define ROW(pickle, error) {pickle, sizeof pickle - 1, error}
        ROW("\x80\2" DICT ".", NULL),
        ROW("\x80\2}.", NULL),
        ROW(ONE(TENSOR("\0", ROWS, STEP)), NULL),
        ROW(ONE(TENSOR("\3", "K\3\x85", "K\1\x85")), NULL),
        ROW(ONE(TENSOR("\6", "K\0\x85", "K\1\x85")), NULL),
        ROW(ONE(TENSOR("\0", "K\1K\6\x86", "K\x63K\1\x86")), NULL), /* nobody steps along a dimension of one */
        ROW(ONE("ctorch._utils\n_rebuild_parameter\n(" TENSOR("\0", ROWS, STEP) "\x88" DICT "tR"), NULL),
        ROW("\x80\2}(" NAME TENSOR("\0", ROWS, STEP) "X\1\0\0\0b" TENSOR("\0", ROWS, STEP) "u.", NULL),
        ROW("\x80\2}q\5h\0050.", "the opcode POP is not supported"),
        /* What might run, or is no protocol of torch's. */
        ROW("\x80\2cos\nsystem\nX\4\0\0\0trueR.", "data.pkl: byte 2: the global os.system is not supported"),
        ROW("\x80\2cbuiltins\neval\n.", "the global builtins.eval is not supported"),
        ROW("\x80\2ctorch\nFloatTensor\n.", "the global torch.FloatTensor is not supported"),
        ROW("\x80\2ctorch._utils\n_rebuild_tensor_v2.system\n.", "is not supported"),
        ROW("\x80\2}\x81.", "data.pkl: byte 3: the opcode NEWOBJ is not supported"),
        ROW("\x80\2(ios\nsystem\n.", "the opcode INST is not supported"),
        ROW("\x80\2(o.", "the opcode OBJ is not supported"),
        ROW("\x80\2\x82\1.", "the opcode EXT1 is not supported"),
        ROW("\x80\2\x93.", "the opcode STACK_GLOBAL is not supported"),
        ROW("\x80\2\xff.", "the opcode 0xff is not supported"),
        ROW("\x80\4\x95\1\0\0\0\0\0\0\0.", "a pickle of protocol 4, expected 2"),
        ROW("}.", "expected a pickle"),
        ROW("\x80\2" DICT "}b.", NULL),
        ROW("\x80\2K\1}b.", "an int gets a state"),
        ROW("\x80\2" DICT "}R.", "a dict is called with a dict"),
        ROW("\x80\2ccollections\nOrderedDict\nK\1\x85R.", "collections.OrderedDict is called with other arguments"),
        ROW("\x80\2ctorch\nFloatStorage\n)R.", "torch.FloatStorage is called with other arguments"),
        ROW("\x80\2X\1\0\0\0aQ.", "a persistent id that is no storage"),
        ROW("\x80\2" STORAGE("Float", "0", "\6") ".", "holds a storage, expected a dict of tensors"),
        /* Broken ones. */
        ROW("\x80\2", "ends without an end"),
        ROW("\x80\2X\xff\xff\xff\x7f"
            "a.",
            "ends within the opcode's operand"),
        ROW("\x80\2X\1\0\0\0\xff.", "is no UTF-8"),
        ROW("\x80\2cos", "expected the name of a global"),
        ROW("\x80\2}}.", "leaves 2 values, expected one"),
        ROW("\x80\2.", "leaves 0 values"),
        ROW("\x80\2}(.", "leaves 1 values"),
        ROW("\x80\2t.", "the stack has no mark"),
        ROW("\x80\2}(K\1u.", "items are set, and not in a dict"),
        ROW("\x80\2(" NAME "K\1u.", "items are set, and not in a dict"),
        ROW("\x80\2K\1s.", "too few values"),
        ROW("\x80\2h\7.", "memo 7 has nothing in it"),
        ROW("\x80\2}r\xff\xff\xff\xff.", "memo 4294967295 is not"),
        ROW("\x80\2\x8a\x09", "an int of 9 bytes"),
        ROW("\x80\2K\1a.", "appended to no list"),
        /* What it says of tensors. */
        ROW(ONE("K\1"), "pytorch_model.bin: a: is an int, expected a tensor"),
        ROW(ONE(DICT), "a: is a dict, expected a tensor (save model.state_dict() alone)"),
        ROW("\x80\2}K\1K\1s.", "a tensor's name is an int"),
        ROW(ONE(TENSOR("\0", ROWS, "K\1K\2\x86")), "a: does not lie row by row: dimension 1 has stride 2, expected 1"),
        ROW(ONE(TENSOR("\1", ROWS, STEP)), "has 6 elements from 1 on, of a storage of 6"),
        ROW(ONE(TENSOR("\7", "K\0\x85", "K\1\x85")), "has 0 elements from 7 on, of a storage of 6"),
        ROW(ONE(TENSOR("\0", "K\2\x85", STEP)), "a tensor is not made of a storage, an offset, sizes and strides"),
        ROW(ONE(TENSOR("\0", "J\xff\xff\xff\xff\x85", "K\1\x85")), "a tensor is not made of"),
        ROW(ONE(TENSOR("\0",
                       "(\x8a\x08\0\0\0\0\0\0\0\x40"
                       "K\2t",
                       "K\1K\1\x86")),
            "more than 2^63 elements"),
        ROW(ONE(TENSOR("\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t")), "has 9 dimensions"),
        ROW(ONE(TENSOR_OF(STORAGE("Float", "7", "\6"), "\0", ROWS, STEP)), "its storage 7 is not in the file"),
        ROW(ONE(TENSOR_OF(STORAGE("Float", "1", "\6"), "\0", ROWS, STEP)), "its storage 1 is compressed"),
        ROW(ONE(TENSOR_OF(STORAGE("Half", "0", "\6"), "\0", ROWS, STEP)), "has 24 bytes, expected 6 elements of F16"),
        ROW("\x80\2" DICT NAME TENSOR("\0", ROWS, STEP) "s" NAME TENSOR("\0", ROWS, STEP) "s.", "a: is in"),
#undef ROW
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char name[32];
        snprintf(name, sizeof name, "pickle %zu", c);
        make_zip(cases[c].pickle, cases[c].bytes);
        expect(name, cases[c].error);
    }
}

#define GOOD ONE(TENSOR("\0", ROWS, STEP))

TEST(zips)
{
    make_zip(GOOD, sizeof GOOD - 1);
    const size_t whole = zip.bytes;
    expect("whole", NULL);
    for (size_t n = 0; n < whole; n++) { /* whatever is cut off is missed */
        make_zip(GOOD, sizeof GOOD - 1);
        zip.bytes = n;
        expect("cut", n < 4 ? "is no zip" : "");
    }
    static const struct {
        size_t from_end; /* of a number of `bytes` */
        int bytes;
        uint64_t value;
        const char *error;
    } ends[] = {
        {12, 2, 9, "is not within"},
        {6, 4, 1u << 30, "is not within"},
        {10, 4, 1u << 30, "is not within"},
        {12, 2, UINT16_MAX, "zip64 directory is not where it should be"},
        {6, 4, 5, "its directory has no entry"},
        {2, 2, 7, "no end of a zip's directory"},
    };
    for (size_t c = 0; c < sizeof ends / sizeof *ends; c++) {
        make_zip(GOOD, sizeof GOOD - 1);
        memcpy(zip.byte + zip.bytes - ends[c].from_end, &ends[c].value, (size_t)ends[c].bytes);
        expect("end", ends[c].error);
    }
    static const struct {
        size_t at; /* in the first entry of the directory */
        uint32_t value;
        const char *error;
    } entries[] = {{42, 1, "m/data.pkl: is not at byte 1"},
                   {20, 1u << 20, "are not within"},
                   {20, UINT32_MAX, "lacks the sizes of zip64"},
                   {28, 5000, "goes beyond the end"}};
    for (size_t c = 0; c < sizeof entries / sizeof *entries; c++) {
        make_zip(GOOD, sizeof GOOD - 1);
        memcpy(zip.byte + zip.directory + entries[c].at, &entries[c].value, entries[c].at == 28 ? 2 : 4);
        expect("entry", entries[c].error);
    }
}

TEST(archives)
{
    begin_zip();
    add_entry("m/other", "", 0, 0);
    end_zip();
    expect("no pickle", "is a zip without a data.pkl");
    begin_zip();
    add_entry("m/data.pkl", "\x80\2}.", 4, 8);
    end_zip();
    expect("compressed", "its data.pkl is compressed");
    begin_zip();
    add_entry("m/data.pkl", "\x80\2}.", 4, 0);
    add_entry("n/data.pkl", "\x80\2}.", 4, 0);
    end_zip();
    expect("two", "has two entries called data.pkl");
    begin_zip();
    add_entry("m/data.pkl", "\x80\2}.", 4, 0);
    add_entry("m/data.pkl", "\x80\2}.", 4, 0);
    end_zip();
    expect("twice", "m/data.pkl: is in it twice");
    for (int big = 0; big < 2; big++) {
        begin_zip();
        add_entry("m/data.pkl", "\x80\2}.", 4, 0);
        add_entry("m/byteorder", big ? "big" : "little", big ? 3 : 6, 0);
        end_zip();
        expect("order", big ? "its byteorder is not little" : NULL);
    }
}

TEST(files)
{
    tess_safetensors *s = NULL;
    CHECK_EQ(tess_safetensors_open(IN("turned.bin"), &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "turned.bin: a: does not lie row by row: dimension 1 has stride 2, expected 1 (save "
                                 "tensor.contiguous(), or as safetensors)");
    CHECK_EQ(tess_safetensors_open(IN("older.bin"), &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(),
              "older.bin: is of torch.save before version 1.6, which is not read (python3 -c \"import "
              "torch; f = 'older.bin'; torch.save(torch.load(f, 'cpu'), f)\"");
    CHECK_EQ(tess_safetensors_view("a/model.safetensors", "version https://git-lfs.github.com/spec/v1\n", 43, &s),
             TESS_INVALID);
    CHECK_HAS(tess_error_text(), "is git-lfs's pointer to the file");
    tess_error_clear();
}
