/* Reading pytorch_model.bin: what torch.save writes of a model's state, from version 1.6 on. It is a zip, whose
 * entries are stored as they are:
 *
 *     NAME/data.pkl       a pickle of a dict: by name a tensor's storage, where in it it begins, its sizes and strides
 *     NAME/data/KEY       the elements of a storage; tensors may share one
 *     NAME/byteorder      "little", where it is there
 *
 * So tensors are read where they lie, as safetensors' are.
 */
#include "models/files/safetensors/safetensors_impl.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

struct archive {
    tess_safetensors *set;
    const char *file, *prefix; /* "NAME/" */
    tess_zip zip;
};

/* ---- what it is ---- */

/* The one entry that ends in /data.pkl names the folder of all. */
static tess_status find_pickle(struct archive *a, const tess_zip_entry **pickle)
{
    static const char name[] = "data.pkl";
    const size_t n = strlen(name);
    *pickle = NULL;
    for (size_t i = 0; i < a->zip.count; i++) {
        const tess_zip_entry *e = &a->zip.entry[i];
        if (e->length <= n || memcmp(e->name + e->length - n, name, n) || e->name[e->length - n - 1] != '/') continue;
        if (*pickle) return tess_error(TESS_INVALID, a->file, "has two entries called %s", name);
        *pickle = e;
        a->prefix = tess_arena_format(a->set->arena, "%.*s", (int)(e->length - n), e->name);
    }
    if (!*pickle)
        return tess_error(TESS_INVALID, a->file, "is a zip without a %s, expected a file of torch.save", name);
    if (!(*pickle)->stored || (*pickle)->bytes > TESS_HEADER_MAX)
        return tess_error(TESS_INVALID, a->file, "its %s is compressed, or of more than %d bytes", name,
                          TESS_HEADER_MAX);
    return TESS_OK;
}

static const tess_zip_entry *find_entry(const struct archive *a, const char *name)
{
    TESS_FREED char *path = tess_format("%s%s", a->prefix, name);
    const tess_zip_entry *e = tess_zip_find(&a->zip, path);
    return e;
}

static tess_status check_order(const struct archive *a)
{
    const tess_zip_entry *order = find_entry(a, "byteorder");
    if (!order || (order->stored && order->bytes == 6 && !memcmp(order->data, "little", 6))) return TESS_OK;
    return tess_error(TESS_INVALID, a->file, "its byteorder is not little");
}

/* ---- tensors ---- */

/* What a tensor's elements are out of; *first: of its storage's. */
static tess_status find_storage(const struct archive *a, const tess_safetensor *t, const tess_pickled *storage,
                                const uint8_t **data)
{
    char *name = tess_format("data/%s", storage->text);
    const tess_zip_entry *e = find_entry(a, name);
    free(name);
    uint64_t bytes;
    if (!e) return tess_file_error(a->file, t->name, "its storage %s is not in the file", storage->text);
    if (!e->stored) return tess_file_error(a->file, t->name, "its storage %s is compressed", storage->text);
    if (__builtin_mul_overflow((uint64_t)storage->number, tess_st_size(t->dtype), &bytes) || bytes != e->bytes)
        return tess_file_error(a->file, t->name, "its storage %s has %zu bytes, expected %lld elements of %s",
                               storage->text, e->bytes, (long long)storage->number, tess_st_name(t->dtype));
    *data = e->data;
    return TESS_OK;
}

static tess_status read_sizes(const struct archive *a, tess_safetensor *t, const tess_pickled *sizes,
                              const tess_pickled *strides)
{
    if (sizes->count > TESS_SAFETENSORS_RANK)
        return tess_file_error(a->file, t->name, "has %zu dimensions, at most %d are supported", sizes->count,
                               TESS_SAFETENSORS_RANK);
    t->rank = (int)sizes->count;
    t->elements = 1;
    for (int i = 0; i < t->rank; i++) {
        t->dims[i] = sizes->item[i]->number;
        if (__builtin_mul_overflow(t->elements, t->dims[i], &t->elements))
            return tess_file_error(a->file, t->name, "the shape has more than 2^63 elements");
    }
    int64_t stride = 1; /* of rows that lie one behind the other */
    for (int i = t->rank; i-- > 0 && t->elements; stride *= t->dims[i])
        if (t->dims[i] > 1 && strides->item[i]->number != stride)
            return tess_file_error(a->file, t->name,
                                   "does not lie row by row: dimension %d has stride %lld, expected %lld (save "
                                   "tensor.contiguous(), or as safetensors)",
                                   i, (long long)strides->item[i]->number, (long long)stride);
    return TESS_OK;
}

static tess_status read_tensor(const struct archive *a, const char *name, const tess_pickled *value)
{
    const tess_pickled *storage = value->item[0];
    const uint8_t *data = NULL;
    tess_safetensor *t = tess_safetensors_add(a->set);
    t->name = name;
    t->file = a->file;
    t->dtype = storage->dtype;
    TESS_TRY(read_sizes(a, t, value->item[1], value->item[2]));
    TESS_TRY(find_storage(a, t, storage, &data));
    if (value->number > storage->number || t->elements > storage->number - value->number)
        return tess_file_error(a->file, name, "has %lld elements from %lld on, of a storage of %lld",
                               (long long)t->elements, (long long)value->number, (long long)storage->number);
    t->data = data + (size_t)value->number * tess_st_size(t->dtype);
    t->bytes = (size_t)t->elements * tess_st_size(t->dtype);
    return TESS_OK;
}

static tess_status read_archive(struct archive *a, const uint8_t *bytes, size_t n)
{
    const tess_zip_entry *pickle;
    const tess_pickled *root;
    TESS_TRY(tess_zip_read(a->set->arena, a->file, bytes, n, &a->zip));
    TESS_TRY(find_pickle(a, &pickle));
    TESS_TRY(check_order(a));
    TESS_TRY(tess_pickle_read(a->set->arena, a->file, pickle->data, pickle->bytes, &root));
    if (root->kind != TESS_PICKLE_DICT)
        return tess_error(TESS_INVALID, a->file, "holds %s, expected a dict of tensors",
                          tess_pickle_kind_name(root->kind));
    for (size_t i = 0; i + 1 < root->count; i += 2) {
        const tess_pickled *name = root->item[i], *value = root->item[i + 1];
        if (name->kind != TESS_PICKLE_TEXT)
            return tess_error(TESS_INVALID, a->file, "a tensor's name is %s", tess_pickle_kind_name(name->kind));
        if (value->kind != TESS_PICKLE_TENSOR)
            return tess_file_error(a->file, name->text, "is %s, expected a tensor (save model.state_dict() alone)",
                                   tess_pickle_kind_name(value->kind));
        TESS_TRY(read_tensor(a, name->text, value));
    }
    return TESS_OK;
}

tess_status tess_torch_read(tess_safetensors *s, const char *file, const uint8_t *bytes, size_t n)
{
    static const uint8_t older[] = {0x80, 2, 0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9};
    struct archive a = {.set = s, .file = file};
    if (n >= 4 && !memcmp(bytes, "PK\3\4", 4)) return read_archive(&a, bytes, n);
    const char *base = strrchr(file, '/') ? strrchr(file, '/') + 1 : file;
    if (n >= sizeof older && !memcmp(bytes, older, sizeof older))
        return tess_error(
            TESS_INVALID, file,
            "is of torch.save before version 1.6, which is not read (python3 -c \"import torch; f = '%s'; "
            "torch.save(torch.load(f, 'cpu'), f)\" makes it one that is)",
            base);
    return tess_error(TESS_INVALID, file, "is no zip, which torch.save writes (is it truncated?)");
}
