/* What the run says beside its results: single lines on stderr, sizes for people. */
#include "runtime.h"
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

const char *tess_human_bytes(double bytes)
{
    static _Thread_local char buffer[8][32];
    static _Thread_local int turn;
    static const char *const unit[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    char *out = buffer[turn = (turn + 1) % 8];
    int u = 0;
    for (; bytes >= 1024 && u < 5; u++) bytes /= 1024;
    snprintf(out, sizeof buffer[0], u == 0 || bytes >= 100 ? "%.0f %s" : "%.1f %s", bytes, unit[u]);
    return out;
}
