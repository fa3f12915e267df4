/* GGUF, the file that ggml's programs read a model from: numbers, tokenizer and tensors in one. Such a file stands
 * where a model's directory does, and FILE.gguf/config.json and FILE.gguf/tokenizer_config.json are what these would be
 * there.
 *
 *     tess_gguf g;
 *     TESS_TRY(tess_gguf_read("model.gguf", bytes, n, &g));
 *     ... tess_json_text(g.meta, "general.architecture"), json_object_get(g.tensors, "output.weight") ...
 *     tess_gguf_free(&g);
 */
#ifndef TESS_GGUF_H
#define TESS_GGUF_H
#include "models/text/base/text.h"

typedef struct tess_gguf {
    json_t *meta;    /* its values by key */
    json_t *tensors; /* by name {"type": a number, "shape": [rows, columns], "offset": of bytes from `data` on} */
    size_t data;     /* where in the file the first tensor may begin */
} tess_gguf;

/* Returns whether a path names such a file: it ends in .gguf, and is no directory. */
bool tess_gguf_is(const char *path);
/* Reads what is before the tensors' bytes; what is no GGUF, or of another version, is TESS_INVALID. */
tess_status tess_gguf_read(const char *file, const uint8_t *bytes, size_t n, tess_gguf *g) TESS_NODISCARD;
void tess_gguf_free(tess_gguf *g);
/* Appends the head of a file, up to where its first tensor begins. */
void tess_gguf_put(tess_bytes *to, const tess_gguf *g);
/* Where tensors begin. */
enum { TESS_GGUF_ALIGNMENT = 32 };

/* ---- gguf_config.c: names ---------------------------------------------------------------------------------------- */

/* Returns whether a path is FILE.gguf/NAME of a name that such a file has. */
bool tess_gguf_has(const char *path);
/* Makes the object that it would hold, a new reference. */
tess_status tess_gguf_beside(const char *path, json_t **root) TESS_NODISCARD;
/* Makes config.json of a file, `bytes` in memory. */
tess_status tess_gguf_config(const char *file, const tess_gguf *g, const uint8_t *bytes, size_t n,
                             json_t **root) TESS_NODISCARD;

/* What a model_type is called there, and how it differs. */
typedef struct tess_gguf_kind {
    const char *name, *type, *architecture;
    unsigned bit;
    bool pairs; /* rows of q and k that turn together are neighbours */
} tess_gguf_kind;
#define TESS_GGUF_KNOWN "llama, qwen2, qwen3, olmo2, granite, gpt2"
/* Returns the first of that name, or of that model_type; NULL: none is known. */
const tess_gguf_kind *tess_gguf_kind_of(const char *name, const char *type);
/* Writes a tensor's name as Hugging Face has it, without prefix, or with `back` as GGUF does. False: it has none. */
bool tess_gguf_rename(const tess_gguf_kind *k, bool back, const char *name, char out[static 512]);
/* ARCHITECTURE.gguf is config.json's field, of the kinds whose bits are set; the last has none. */
typedef struct tess_gguf_key {
    const char *gguf, *field;
    unsigned of;
} tess_gguf_key;
extern const tess_gguf_key tess_gguf_keys[];
/* Returns by what llama3's positions divide the frequency of a pair. */
float tess_gguf_stretch(double base, int64_t dim, int64_t pair, double factor, double low, double high, double length);

#endif
