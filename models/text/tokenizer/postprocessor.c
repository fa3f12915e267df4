/* Post-processors: the ids that stand before and behind a text that is by itself. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

static tess_status push_id(const tess_reader *r, const char *field, const json_t *id, tess_ids *ids)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= TESS_IDS)
        return tess_file_error(r->path, field, "expected an id from 0 to %d", TESS_IDS - 1);
    tess_ids_push(ids, (int32_t)json_integer_value(id));
    return TESS_OK;
}

/* {"single": [{"SpecialToken": {"id": "[CLS]"}}, {"Sequence": {"id": "A"}}, ...], "special_tokens": {"[CLS]": {"ids":
 * [..]}}} */
static tess_status read_template(const tess_reader *r, const char *field, const json_t *json, tess_ids side[2])
{
    const json_t *single = json_object_get(json, "single"), *known = json_object_get(json, "special_tokens");
    int texts = 0;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const char *at = tess_field_at(r, field, "single", i);
        const json_t *piece = json_array_get(single, i), *token = json_object_get(piece, "SpecialToken");
        const char *text = tess_json_text(json_object_get(piece, "Sequence"), "id"),
                   *name = tess_json_text(token, "id");
        if (text && !strcmp(text, "A") && !texts++) continue;
        const json_t *ids = name ? json_object_get(json_object_get(known, name), "ids") : NULL;
        if (!json_is_array(ids))
            return tess_file_error(r->path, at, "expected the Sequence A once, or one of the special_tokens");
        for (size_t k = 0; k < json_array_size(ids); k++)
            TESS_TRY(push_id(r, at, json_array_get(ids, k), &side[texts]));
    }
    return texts ? TESS_OK : tess_file_error(r->path, field, "its \"single\" has no Sequence A");
}

/* {"cls": ["[CLS]", 101], "sep": ["[SEP]", 102]} */
static tess_status read_pair(const tess_reader *r, const char *field, const json_t *json, tess_ids side[2])
{
    static const char *const name[2] = {"cls", "sep"};
    for (int i = 0; i < 2; i++)
        TESS_TRY(
            push_id(r, tess_field(r, field, name[i]), json_array_get(json_object_get(json, name[i]), 1), &side[i]));
    return TESS_OK;
}

enum kind { TEMPLATE, BERT, ROBERTA, BYTE_LEVEL, KINDS };
static const char *const NAME[KINDS] = {"TemplateProcessing", "BertProcessing", "RobertaProcessing", "ByteLevel"};

static tess_status read_part(const tess_reader *r, const char *field, const json_t *json, int kind, void *all)
{
    tess_around *around = all;
    tess_ids side[2] = {0};
    if (kind == BYTE_LEVEL) return TESS_OK; /* offsets alone */
    const tess_status status = (kind == TEMPLATE ? read_template : read_pair)(r, field, json, side);
    if (status == TESS_OK) { /* around what those before it have put there */
        tess_ids_add(&side[0], around->before.id, around->before.count);
        tess_ids_add(&around->behind, side[1].id, side[1].count);
        const tess_ids old = around->before;
        around->before = side[0];
        side[0] = old;
    }
    tess_ids_free(&side[0]);
    tess_ids_free(&side[1]);
    return status;
}

tess_status tess_around_read(const tess_reader *r, const char *field, const json_t *json, tess_around *around)
{
    static const tess_part_reader reader = {
        .what = "post-processor", .list = "processors", .type = NAME, .types = KINDS, .deepest = 8, .read = read_part};
    return tess_parts_read(r, &reader, field, json, around);
}
