/* A conversation with a model, turn by turn. */
#ifndef TESS_TALK_IMPL_H
#define TESS_TALK_IMPL_H
#include "models/text/tokenizer/tokenizer.h"
#include <stdio.h>

typedef struct tess_talk {
    const char *system; /* what comes before all turns; NULL: nothing */
    const tess_tokenizer *tokenizer;
    FILE *in, *out;
    /* Writes the answer to `ids`, a line, and appends its tokens to `added`. */
    tess_status (*answer)(void *user, const tess_ids *ids, FILE *out, tess_ids *added);
    /* What a line "/adapter DIR" asks for. */
    tess_status (*adapt)(void *user, const char *dir);
    void *user;
} tess_talk;
/* Talks until `in` ends; `dir` has the chat template. */
tess_status tess_talk_run(const char *dir, const tess_talk *talk) TESS_NODISCARD;
/* Stores the token that ends a turn, as the model's tokenizer_config.json has it; -1: it has none. TESS_INVALID where
 * there is no template that can be rendered. */
tess_status tess_talk_end(const char *dir, const tess_tokenizer *t, int32_t *end) TESS_NODISCARD;

#endif
