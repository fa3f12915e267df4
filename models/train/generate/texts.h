/* Texts that are asked of a model, several at a time and each the likeliest.
 *
 *     tess_asked asked[] = {{.prompt = "2 + 2 =", .line = 1, .tokens = 8, .until = until, .untils = 1}};
 *     TESS_TRY(tess_generate_asked(&conf, "sums.jsonl", asked, 1)); // conf has the model, and the most tokens of one
 *     puts(asked[0].written);
 *     free(asked[0].written);
 */
#ifndef TESS_TEXTS_H
#define TESS_TEXTS_H
#include "models/train/train.h"

typedef struct tess_asked {
    const char *prompt; /* one that is too long for the model loses its beginning */
    int64_t line;       /* of its file, for errors */
    int64_t tokens;     /* the most that are written */
    const char *const *until;
    size_t untils; /* texts that end it, and are no part of it */
    char *written; /* becomes the caller's */
} tess_asked;
/* Writes all of them. */
tess_status tess_generate_asked(const tess_generate_conf *c, const char *file, tess_asked *asked,
                                size_t count) TESS_NODISCARD;

#endif
