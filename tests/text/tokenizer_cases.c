/* For fixtures/tokenizers/check_tokenizers.py: goes through pairs of lines of stdin, the path of a tokenizer.json and
 * of a JSON array of texts, and prints for each pair a line: an array of [ids, ids with what stands around a text, text
 * of the ids] for each text, or the error. */
#include "models/text/tokenizer/tokenizer.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

static json_t *array_of(const tess_ids *ids)
{
    json_t *a = json_array();
    for (size_t i = 0; i < ids->count; i++) json_array_append_new(a, json_integer(ids->id[i]));
    return a;
}

static json_t *one_text(const tess_tokenizer *t, const json_t *text)
{
    const tess_ids *before, *behind;
    tess_ids ids = {0}, all = {0};
    size_t length;
    if (tess_tokenizer_encode(t, "text", json_string_value(text), json_string_length(text), &ids) != TESS_OK) {
        tess_ids_free(&ids);
        return json_string(tess_error_text());
    }
    tess_tokenizer_around(t, &before, &behind);
    tess_ids_add(&all, before->id, before->count);
    tess_ids_add(&all, ids.id, ids.count);
    tess_ids_add(&all, behind->id, behind->count);
    char *back = tess_tokenizer_decode(t, ids.id, ids.count, &length);
    json_t *row = json_pack("[oos%]", array_of(&ids), array_of(&all), back, length);
    free(back);
    tess_ids_free(&ids);
    tess_ids_free(&all);
    return row;
}

int main(void)
{
    char path[4096], texts[4096];
    while (fgets(path, sizeof path, stdin) && fgets(texts, sizeof texts, stdin)) {
        path[strcspn(path, "\n")] = texts[strcspn(texts, "\n")] = 0;
        json_t *list = json_load_file(texts, JSON_ALLOW_NUL, NULL), *text, *out = json_array();
        tess_tokenizer *t = NULL;
        size_t i;
        if (tess_tokenizer_open(path, &t) != TESS_OK) {
            json_decref(out);
            out = json_string(tess_error_text());
        } else {
            json_array_foreach(list, i, text) json_array_append_new(out, one_text(t, text));
        }
        json_dumpf(out, stdout, JSON_ENCODE_ANY | JSON_COMPACT);
        putchar('\n');
        fflush(stdout);
        json_decref(out);
        json_decref(list);
        tess_tokenizer_free(t);
    }
    return 0;
}
