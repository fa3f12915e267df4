/* How a run fails, and what it may take: steps and memory are counted, so that a template that never ends does. */
#include "models/text/chat/template_impl.h"

enum { STEPS = 20 << 20 };

tess_tpl_value tess_tpl_fail(tess_tpl_run *r, const char *format, ...)
{
    char what[600];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    tess_tpl_error(r->where, r->line, what, &r->status);
    return (tess_tpl_value){0};
}

void *tess_tpl_get(tess_tpl_run *r, size_t bytes)
{
    if (bytes > TPL_BYTES || (r->bytes += bytes) > TPL_BYTES) {
        tess_tpl_fail(r, "the template takes more than 256 MiB (does it end?)");
        return NULL;
    }
    return tess_arena_get(r->arena, bytes);
}

bool tess_tpl_go_on(tess_tpl_run *r, int line)
{
    r->line = line;
    if (r->status == TESS_OK && ++r->steps > STEPS) tess_tpl_fail(r, "the template does not end");
    if (r->status == TESS_OK && r->out->length > TPL_BYTES) tess_tpl_fail(r, "the template writes more than 256 MiB");
    return r->status == TESS_OK;
}

bool tess_tpl_grows(tess_tpl_run *r, const tess_bytes *text)
{
    if (tess_tpl_go_on(r, r->line) && text->length > TPL_BYTES)
        tess_tpl_fail(r, "the template writes more than 256 MiB");
    return r->status == TESS_OK;
}
