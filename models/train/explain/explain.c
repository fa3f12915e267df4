/* tessera explain: where the time of a traced step went, from OUTPUT/trace.json, and what would help. */
#include "models/train/explain/explain_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

tess_status tess_explain(const char *output, FILE *out)
{
    tess_traced t;
    if (!output || !out) return tess_error(TESS_INVALID, output ? "output" : "directory", "is NULL");
    TESS_FREED char *path = tess_format("%s/trace.json", output);
    tess_status status = tess_traced_read(path, &t);
    if (status == TESS_OK) {
        tess_explain_print(&t, out);
        if (fflush(out)) status = tess_error(TESS_FAILED, "output", "cannot be written: %s", strerror(errno));
    }
    if (status == TESS_OK) {
        if (t.about.ranks > 1) tess_ranks_pretend(0, t.about.ranks);
        tess_explain_settings(output, &t, out);
    }
    tess_traced_free(&t);
    return status;
}
