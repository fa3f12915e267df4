/* The table of other trainers' keys. */
#include "models/train/config/config_impl.h"
#include <string.h>

enum { ROWS_MOST = 256 };
tess_trainer_row tess_trainer_rows[ROWS_MOST];
size_t tess_trainer_row_count;

extern const unsigned char tess_trainer_keys[]; /* its text, which the build embeds */

__attribute__((constructor)) static void read_rows(void)
{
    static char *text; /* what rows point into */
    char *rest = text = tess_strdup((const char *)tess_trainer_keys);
    for (char *line; (line = strsep(&rest, "\n"));) {
        if (!*line || *line == '#' || !strncmp(line, "name\t", 5)) continue;
        TESS_ASSERT(tess_trainer_row_count < ROWS_MOST);
        tess_trainer_row *r = &tess_trainer_rows[tess_trainer_row_count++];
        const char **const column[] = {
            &r->names, &r->key, &r->rule, &r->preset[TESS_TRAINER_AXOLOTL], &r->preset[TESS_TRAINER_TRL], &r->why};
        for (size_t i = 0; i < sizeof column / sizeof *column; i++) TESS_ASSERT((*column[i] = strsep(&line, "\t")));
    }
}

bool tess_trainer_row_is(const tess_trainer_row *r, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = n ? r->names : NULL; p && (p = strcasestr(p, name)); p += n)
        if ((p == r->names || p[-1] == ' ') && (!p[n] || p[n] == ' ')) return true;
    return false;
}

const char *tess_trainer_suggest(const char *name)
{
    for (size_t i = 0; i < tess_trainer_row_count; i++)
        if (*tess_trainer_rows[i].key && tess_trainer_row_is(&tess_trainer_rows[i], name))
            return tess_trainer_rows[i].key;
    return NULL;
}
