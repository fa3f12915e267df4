/* What lies in a directory. */
#ifndef TESS_TESTS_DIRS_H
#define TESS_TESTS_DIRS_H
#include <dirent.h>
#include <stdio.h>
#include <string.h>

/* How many names begin with `prefix`, but for "." and ".."; the last of them in `name`, unless it is NULL. */
static inline int names_in(const char *dir, const char *prefix, char name[256])
{
    int n = 0;
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..") || strncmp(e->d_name, prefix, strlen(prefix))) continue;
        n++;
        if (name) snprintf(name, 256, "%s", e->d_name);
    }
    if (d) closedir(d);
    return n;
}

/* The names but for those that the text `known` lists, in a static string; "" when there are none. */
static inline const char *others_in(const char *dir, const char *known)
{
    static char text[1000];
    DIR *d = opendir(dir);
    text[0] = 0;
    for (struct dirent *e; d && (e = readdir(d));)
        if (strcmp(e->d_name, ".") && strcmp(e->d_name, "..") && !strstr(known, e->d_name))
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s ", e->d_name);
    if (d) closedir(d);
    return text;
}

#endif
