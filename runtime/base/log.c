/* What the run says beside its results: single lines on stderr. */
#include "runtime/runtime.h"
#include <stdarg.h>

void tess_note(const char *format, ...)
{
    char line[8192];         /* a line may list every key there is */
    if (tess_rank()) return; /* the others would say the same */
    va_list ap;
    va_start(ap, format);
    vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    tess_bar_aside();
    fprintf(stderr, "tessera: %s\n", line); /* one call: lines of several threads do not mix */
    tess_bar_back();
}
