/* RAM as the system has it: what the kernel would give without swapping, page cache included, and no more than what the
 * process's cgroup may have, in a container or below Slurm. */
#include "runtime/runtime.h"
#ifdef TESS_EMULATED_GPU
#include "tests/gpu/emulated_cuda.h"
#endif
#include <stdlib.h>
#include <string.h>

/* Returns the number behind `key` in a file of lines "KEY NUMBER" or "KEY: NUMBER kB", or, without a key, the number
 * that the file is; UINT64_MAX where there is none ("max"). */
static uint64_t number_in(const char *root, const char *folder, const char *file, const char *key)
{
    char *path = tess_format("%s%s/%s", root, folder, file), line[256];
    FILE *f = fopen(path, "r");
    uint64_t found = UINT64_MAX;
    const size_t n = strlen(key);
    while (f && found == UINT64_MAX && fgets(line, sizeof line, f)) {
        unsigned long long x;
        char unit[4] = "";
        if (strncmp(line, key, n) || (n && !strchr(": ", line[n]))) continue;
        if (sscanf(line + n + (n && line[n] == ':'), "%llu %3s", &x, unit) >= 1)
            found = strcmp(unit, "kB") ? x : x << 10;
    }
    if (f) fclose(f);
    free(path);
    return found;
}

/* What a cgroup's limit leaves: files that only lie in its cache are given back before anything is killed. */
static void apply_limit(const char *root, const char *folder, bool second, tess_ram *ram)
{
    const uint64_t limit = number_in(root, folder, second ? "memory.max" : "memory.limit_in_bytes", "");
    if (limit >= ram->bytes) return; /* none, or one that says nothing */
    const uint64_t used = number_in(root, folder, second ? "memory.current" : "memory.usage_in_bytes", "");
    const uint64_t cache = number_in(root, folder, "memory.stat", second ? "inactive_file" : "total_inactive_file");
    const uint64_t held = used == UINT64_MAX ? 0 : used - (cache > used ? (cache == UINT64_MAX ? 0 : used) : cache);
    const uint64_t left = held < limit ? limit - held : 0;
    ram->bytes = limit;
    ram->limited = true;
    if (left < ram->free) ram->free = left;
}

/* The cgroup of this process in one hierarchy, and those that it lies in. A container sees its own as the root. */
static void apply_cgroup(const char *root, const char *mount, const char *group, bool second, tess_ram *ram)
{
    TESS_FREED char *folder = tess_format("%s%s", mount, strcmp(group, "/") ? group : "");
    for (;;) {
        apply_limit(root, folder, second, ram);
        char *slash = strrchr(folder, '/');
        if (strlen(folder) <= strlen(mount)) break;
        *slash = 0;
    }
}

tess_ram tess_ram_read(const char *root)
{
#ifdef TESS_EMULATED_GPU
    const uint64_t dry = *root ? 0 : emulated_dry_ram();
    if (dry) return (tess_ram){.bytes = dry, .free = dry};
#endif
    const uint64_t all = number_in(root, "/proc", "meminfo", "MemTotal");
    const uint64_t available = number_in(root, "/proc", "meminfo", "MemAvailable");
    tess_ram ram = {.bytes = all == UINT64_MAX ? 0 : all, .free = available == UINT64_MAX ? 0 : available};
    char *path = tess_format("%s/proc/self/cgroup", root), line[4096];
    FILE *f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) { /* NUMBER:CONTROLLERS:PATH */
        line[strcspn(line, "\n")] = 0;
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        *group++ = 0, controllers++;
        if (!*controllers) apply_cgroup(root, "/sys/fs/cgroup", group, true, &ram);
        for (char *name = strtok(controllers, ","); name; name = strtok(NULL, ","))
            if (!strcmp(name, "memory")) apply_cgroup(root, "/sys/fs/cgroup/memory", group, false, &ram);
    }
    if (f) fclose(f);
    free(path);
    return ram;
}
