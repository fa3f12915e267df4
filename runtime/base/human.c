/* Sizes and times for people. */
#include "runtime/runtime.h"

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

const char *tess_human_time(double seconds, char out[32])
{
    const long long s = seconds > 0 ? (long long)((seconds < 3.6e9 ? seconds : 3.6e9) + 0.5) : 0; /* nor NaN */
    if (s >= 3600)
        snprintf(out, 32, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(out, 32, "%lld:%02lld", s / 60, s % 60);
    return out;
}
