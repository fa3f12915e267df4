/* The kind of CPU that kernels are chosen by, and the cap on it. */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>

/* The kinds of CPU that kernels know, each with all of those before it, by oneDNN's names. */
#ifdef __aarch64__
static const char *const kinds[] = {[TESS_CPU_ANY] = "any", [TESS_CPU_ASIMD] = "ASIMD"};
#else
static const char *const kinds[] = {[TESS_CPU_ANY] = "any",
                                    [TESS_CPU_SSE41] = "SSE41",
                                    [TESS_CPU_AVX] = "AVX",
                                    [TESS_CPU_AVX2] = "AVX2",
                                    [TESS_CPU_AVX512] = "AVX512_CORE",
                                    [TESS_CPU_AVX512_VNNI] = "AVX512_CORE_VNNI",
                                    [TESS_CPU_AVX512_BF16] = "AVX512_CORE_BF16",
                                    [TESS_CPU_AVX512_AMX] = "AVX512_CORE_AMX"};
#endif
enum { KINDS = sizeof kinds / sizeof *kinds };

#if defined __x86_64__ && defined __clang__
#include <cpuid.h>

/* clang does not compile __builtin_cpu_supports("amx-bf16"). */
static bool has_tiles(void)
{
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & bit_AMXBF16) && (d & bit_AMXTILE);
}
#elif defined __x86_64__
static bool has_tiles(void)
{
    return __builtin_cpu_supports("amx-bf16");
}
#endif

static tess_cpu_kind kind_of_machine(void)
{
#ifdef __x86_64__
    const bool has[KINDS] = {
        true,
        __builtin_cpu_supports("sse4.1"),
        __builtin_cpu_supports("avx"),
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"),
        __builtin_cpu_supports("avx512vnni"),
        __builtin_cpu_supports("avx512bf16"),
        has_tiles(),
    };
    int kind = TESS_CPU_ANY;
    while (kind + 1 < KINDS && has[kind + 1]) kind++;
    return (tess_cpu_kind)kind;
#elif defined __aarch64__
    return TESS_CPU_ASIMD; /* all of them have it */
#else
    return TESS_CPU_ANY;
#endif
}

tess_status tess_cpu_cap(tess_cpu_kind *kind, const char **cap)
{
    static const char name[] = "TESSERA_MAX_CPU_ISA";
    const char *text = getenv(name);
    char known[256] = "";
    *kind = kind_of_machine();
    *cap = NULL;
    if (!text || !*text) return TESS_OK;
    for (int k = TESS_CPU_SSE41; k < KINDS; k++) {
        if (strcmp(text, kinds[k])) {
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "", kinds[k]);
            continue;
        }
        if (k > (int)*kind) return tess_error(TESS_INVALID, name, "%s, but this CPU has %s", text, kinds[*kind]);
        *kind = (tess_cpu_kind)k;
        *cap = kinds[k];
        return TESS_OK;
    }
    return tess_error(TESS_INVALID, name, "\"%.100s\", expected one of %s", text, known);
}
