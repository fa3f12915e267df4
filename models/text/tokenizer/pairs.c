/* Reading vocab.json and merges.txt, which tokenizers of bytes were kept in before there was tokenizer.json: the object
 * is made that the latter has. What the two do not say, how a text is cut into words, follows from the kind of
 * tokenizer. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

/* A line each, "a b", behind one that says the version; the file ends, or does not, in a line's end. */
static tess_status read_merges(const char *path, json_t **merges)
{
    tess_map map;
    TESS_TRY(tess_map_open(path, &map));
    *merges = json_array();
    tess_status status = TESS_OK;
    for (size_t at = 0, n, line = 1; at < map.bytes && status == TESS_OK; at += n + 1, line++) {
        const char *s = (const char *)map.data + at, *end = memchr(s, '\n', map.bytes - at);
        n = end ? (size_t)(end - s) : map.bytes - at;
        const size_t length = n && s[n - 1] == '\r' ? n - 1 : n;
        if (!length || (line == 1 && length > 8 && !memcmp(s, "#version", 8))) continue;
        json_t *merge = memchr(s, 0, length) ? NULL : json_stringn(s, length);
        if (!merge || json_array_append_new(*merges, merge))
            status = tess_error(TESS_INVALID, path, "line %zu is no UTF-8, or has a 0 in it", line);
    }
    tess_map_close(&map);
    if (status != TESS_OK) json_decref(*merges);
    return status;
}

static json_t *byte_level(bool prefix, bool regex)
{
    return json_pack("{ss sb sb sb}", "type", "ByteLevel", "add_prefix_space", prefix, "trim_offsets", 1, "use_regex",
                     regex);
}

json_t *tess_pairs_words(const char *regex, bool prefix)
{
    if (!regex) return byte_level(prefix, true);
    json_t *split =
        json_pack("{ss s{ss} ss sb}", "type", "Split", "pattern", "Regex", regex, "behavior", "Isolated", "invert", 0);
    return json_pack("{ss s[oo]}", "type", "Sequence", "pretokenizers", split, byte_level(prefix, false));
}

tess_status tess_pairs_read(const char *vocab_path, const char *merges_path, const json_t *config, bool qwen2,
                            json_t **root)
{
    json_t *vocab, *merges, *model;
    TESS_TRY(tess_json_open(vocab_path, 0, &vocab, NULL));
    const tess_status status = read_merges(merges_path, &merges);
    if (status != TESS_OK) {
        json_decref(vocab);
        return status;
    }
    const bool prefix = json_is_true(json_object_get(config, "add_prefix_space"));
    model = json_pack("{ss so so}", "type", "BPE", "vocab", vocab, "merges", merges);
    *root = json_pack("{so so so}", "model", model, "decoder", json_pack("{ss}", "type", "ByteLevel"), "pre_tokenizer",
                      tess_pairs_words(qwen2 ? TESS_QWEN2_WORDS : NULL, prefix));
    if (qwen2) json_object_set_new(*root, "normalizer", json_pack("{ss}", "type", "NFC"));
    return TESS_OK;
}
