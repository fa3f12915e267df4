/* The directory of a zip: what is in it, and where. Entries are used as they lie in the file, so only those that are
 * stored, and not compressed, can be. Nothing in the directory is believed.
 */
#include "models/files/safetensors/safetensors_impl.h"
#include <stdlib.h>
#include <string.h>

enum { END = 22, END64 = 56, LOCATOR = 20, CENTRAL = 46, LOCAL = 30, COMMENT = 65535 };

static uint64_t get(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, (size_t)bytes); /* little-endian, as the file is */
    return value;
}

static bool is(const uint8_t *at, const char *magic)
{
    return memcmp(at, magic, 4) == 0;
}

/* Where the directory is, and how much is in it. */
struct directory {
    uint64_t entries, bytes, offset;
};

static tess_status find_directory(const char *file, const uint8_t *bytes, size_t n, struct directory *d)
{
    size_t end = n < END ? 0 : n - END;
    const size_t least = end > COMMENT ? end - COMMENT : 0;
    while (end > least && !(is(bytes + end, "PK\5\6") && get(bytes + end + 20, 2) == n - end - END)) end--;
    if (n < END || !is(bytes + end, "PK\5\6"))
        return tess_error(TESS_INVALID, file, "has no end of a zip's directory (is it truncated?)");
    *d = (struct directory){get(bytes + end + 10, 2), get(bytes + end + 12, 4), get(bytes + end + 16, 4)};
    if (d->entries == UINT16_MAX || d->bytes == UINT32_MAX || d->offset == UINT32_MAX) {
        const uint64_t at =
            end >= LOCATOR && is(bytes + end - LOCATOR, "PK\6\7") ? get(bytes + end - LOCATOR + 8, 8) : n;
        if (at > n || n - at < END64 || !is(bytes + at, "PK\6\6"))
            return tess_error(TESS_INVALID, file, "the end of its zip64 directory is not where it should be");
        *d = (struct directory){get(bytes + at + 32, 8), get(bytes + at + 40, 8), get(bytes + at + 48, 8)};
    }
    if (d->offset > n || d->bytes > n - d->offset || d->entries > d->bytes / CENTRAL)
        return tess_error(TESS_INVALID, file, "its directory of %llu entries, %llu bytes at %llu, is not within %zu",
                          (unsigned long long)d->entries, (unsigned long long)d->bytes, (unsigned long long)d->offset,
                          n);
    return TESS_OK;
}

/* Those of the three numbers that do not fit 32 bits stand in a field of their own, in this order. */
static bool widen(const uint8_t *extra, size_t length, uint64_t *number[3])
{
    for (size_t at = 0; at + 4 <= length;) {
        const size_t bytes = get(extra + at + 2, 2);
        if (bytes > length - at - 4) break;
        const uint8_t *from = extra + at + 4, *end = from + bytes;
        if (get(extra + at, 2) == 1) {
            for (int i = 0; i < 3; i++) {
                if (*number[i] != UINT32_MAX) continue;
                if (end - from < 8) return false;
                *number[i] = get(from, 8);
                from += 8;
            }
            return true;
        }
        at += 4 + bytes;
    }
    for (int i = 0; i < 3; i++)
        if (*number[i] == UINT32_MAX) return false;
    return true;
}

/* Reads the entry whose header is at `at`, `left` bytes before the directory's end. *taken: the bytes of the header. */
static tess_status read_entry(const char *file, const uint8_t *bytes, size_t n, const uint8_t *at, size_t left,
                              tess_zip_entry *e, size_t *taken)
{
    if (left < CENTRAL || !is(at, "PK\1\2"))
        return tess_error(TESS_INVALID, file, "its directory has no entry at byte %zu", (size_t)(at - bytes));
    const size_t name = get(at + 28, 2), extra = get(at + 30, 2);
    *taken = CENTRAL + name + extra + get(at + 32, 2);
    if (*taken > left)
        return tess_error(TESS_INVALID, file, "the entry at byte %zu of its directory goes beyond the end of that",
                          (size_t)(at - bytes));
    uint64_t packed = get(at + 20, 4), whole = get(at + 24, 4), header = get(at + 42, 4);
    *e = (tess_zip_entry){.name = (const char *)at + CENTRAL, .length = name};
    if (!widen(at + CENTRAL + name, extra, (uint64_t *[]){&whole, &packed, &header}))
        return tess_error(TESS_INVALID, file, "%.*s: its entry lacks the sizes of zip64", (int)name, e->name);
    if (header > n || n - header < LOCAL || !is(bytes + header, "PK\3\4"))
        return tess_error(TESS_INVALID, file, "%.*s: is not at byte %llu, where the directory has it", (int)name,
                          e->name, (unsigned long long)header);
    const uint64_t data = header + LOCAL + get(bytes + header + 26, 2) + get(bytes + header + 28, 2);
    if (data > n || packed > n - data)
        return tess_error(TESS_INVALID, file, "%.*s: %llu bytes at %llu are not within %zu", (int)name, e->name,
                          (unsigned long long)packed, (unsigned long long)data, n);
    e->stored = get(at + 10, 2) == 0 && !(get(at + 8, 2) & 1) && packed == whole;
    e->data = e->stored ? bytes + data : NULL;
    e->bytes = packed;
    return TESS_OK;
}

static int compare(const void *a, const void *b)
{
    const tess_zip_entry *x = a, *y = b;
    const size_t n = x->length < y->length ? x->length : y->length;
    const int c = memcmp(x->name, y->name, n);
    return c ? c : (x->length > y->length) - (x->length < y->length);
}

tess_status tess_zip_read(tess_arena *arena, const char *file, const uint8_t *bytes, size_t n, tess_zip *zip)
{
    struct directory d = {0};
    TESS_TRY(find_directory(file, bytes, n, &d));
    zip->count = d.entries;
    zip->entry = tess_arena_get(arena, (d.entries + 1) * sizeof *zip->entry);
    size_t at = 0, taken = 0;
    for (size_t i = 0; i < zip->count; i++, at += taken)
        TESS_TRY(read_entry(file, bytes, n, bytes + d.offset + at, d.bytes - at, &zip->entry[i], &taken));
    qsort(zip->entry, zip->count, sizeof *zip->entry, compare);
    for (size_t i = 1; i < zip->count; i++)
        if (!compare(&zip->entry[i - 1], &zip->entry[i]))
            return tess_error(TESS_INVALID, file, "%.*s: is in it twice", (int)zip->entry[i].length,
                              zip->entry[i].name);
    return TESS_OK;
}

const tess_zip_entry *tess_zip_find(const tess_zip *zip, const char *name)
{
    const tess_zip_entry key = {.name = name, .length = strlen(name)};
    return bsearch(&key, zip->entry, zip->count, sizeof key, compare);
}
