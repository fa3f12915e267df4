/* Arrays of ids that grow. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

void tess_ids_push(tess_ids *ids, int32_t id)
{
    if (ids->count == ids->room) {
        ids->room = ids->room ? 2 * ids->room : 256;
        ids->id = tess_realloc(ids->id, ids->room * sizeof *ids->id);
    }
    ids->id[ids->count++] = id;
}

void tess_ids_add(tess_ids *ids, const int32_t *id, size_t count)
{
    if (ids->count + count > ids->room) {
        ids->room = 2 * (ids->count + count) + 256;
        ids->id = tess_realloc(ids->id, ids->room * sizeof *ids->id);
    }
    if (count) memcpy(ids->id + ids->count, id, count * sizeof *id);
    ids->count += count;
}

void tess_ids_free(tess_ids *ids)
{
    free(ids->id);
    *ids = (tess_ids){0};
}
