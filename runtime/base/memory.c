/* Bookkeeping memory of the host: allocation that ends the program in one line when there is none, and arenas. */
#include "runtime/runtime.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

static _Noreturn void out_of_memory(size_t bytes)
{
    char text[100];
    snprintf(text, sizeof text, "memory: no %zu bytes left for bookkeeping", bytes);
    tess_die(text);
}

void *tess_alloc(size_t bytes)
{
    void *p = calloc(1, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

void *tess_realloc(void *p, size_t bytes)
{
    p = realloc(p, bytes ? bytes : 1);
    if (!p) out_of_memory(bytes);
    return p;
}

char *tess_strdup(const char *s)
{
    return memcpy(tess_alloc(strlen(s) + 1), s, strlen(s) + 1);
}

static char *format_into(tess_arena *a, const char *format, va_list ap)
{
    va_list again;
    va_copy(again, ap);
    int n = vsnprintf(NULL, 0, format, again);
    va_end(again);
    TESS_ASSERT(n >= 0);
    char *s = a ? tess_arena_get(a, (size_t)n + 1) : tess_alloc((size_t)n + 1);
    vsnprintf(s, (size_t)n + 1, format, ap);
    return s;
}

bool tess_ends(const char *s, const char *end)
{
    const size_t n = strlen(s), m = strlen(end);
    return n >= m && !strcmp(s + n - m, end);
}

char *tess_format(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    char *s = format_into(NULL, format, ap);
    va_end(ap);
    return s;
}

/* ---- arenas ---- */

enum { CHUNK = 64 << 10 };

struct chunk {
    struct chunk *next;
    size_t used, size;
    _Alignas(16) char data[];
};

struct tess_arena {
    struct chunk *first;
};

tess_arena *tess_arena_new(void)
{
    return tess_alloc(sizeof(tess_arena));
}

void *tess_arena_get(tess_arena *a, size_t bytes)
{
    bytes = (bytes + 15) & ~(size_t)15;
    if (!a->first || a->first->size - a->first->used < bytes) {
        size_t size = bytes > CHUNK ? bytes : CHUNK;
        struct chunk *c = tess_alloc(sizeof *c + size);
        *c = (struct chunk){.next = a->first, .size = size};
        a->first = c;
    }
    void *p = a->first->data + a->first->used;
    a->first->used += bytes;
    return p;
}

char *tess_arena_format(tess_arena *a, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    char *s = format_into(a, format, ap);
    va_end(ap);
    return s;
}

void tess_arena_free(tess_arena *a)
{
    if (!a) return;
    for (struct chunk *c = a->first, *next; c; c = next) {
        next = c->next;
        free(c);
    }
    free(a);
}
