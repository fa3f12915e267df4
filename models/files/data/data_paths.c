/* From what the configuration says of data to files, each with its format.
 *
 * A path stands for itself: with PATH.idx beside it a Megatron prefix, else what the end of its name says. A directory
 * stands for its files, a pattern for what matches it, both in the order of their bytes, so that all machines agree on
 * it; what is no data among them is left out and counted, as is a .json or a table whose first row is none. A list
 * stands for its elements in their order. */
#include "models/files/data/data_file_impl.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <dirent.h>
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool is_there(const char *path, const char *suffix)
{
    TESS_FREED char *file = tess_format("%s%s", path, suffix);
    return access(file, F_OK) == 0;
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static char *head_of(const char *path, size_t length)
{
    char *head = tess_alloc(length + 1); /* zeroed */
    memcpy(head, path, length);
    return head;
}

static void add_file(tess_data_source *s, const char *path, size_t length, tess_data_kind kind)
{
    if ((s->files & (s->files - 1)) == 0) /* the room doubles */
        s->file = tess_realloc(s->file, (s->files ? 2 * s->files : 1) * sizeof *s->file);
    s->file[s->files++] = (tess_data_path){head_of(path, length), kind};
}

/* By the end of its name; what is no pair of Megatron's. *sure: what has this name is data. */
static bool kind_of(const char *path, tess_data_kind *kind, bool *sure)
{
    static const struct {
        const char *end;
        tess_data_kind kind;
        bool sure;
    } ends[] = {
        {".bin", TESS_DATA_LLMC, true},       {".txt", TESS_DATA_TEXT, true},       {".txt.gz", TESS_DATA_TEXT, true},
        {".jsonl", TESS_DATA_LINES, true},    {".jsonl.gz", TESS_DATA_LINES, true}, {".json", TESS_DATA_LINES, false},
        {".json.gz", TESS_DATA_LINES, false}, {".csv", TESS_DATA_LINES, false},     {".csv.gz", TESS_DATA_LINES, false},
        {".tsv", TESS_DATA_LINES, false},     {".tsv.gz", TESS_DATA_LINES, false}};
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (tess_ends(path, ends[i].end)) return *kind = ends[i].kind, *sure = ends[i].sure, true;
    return false;
}

/* ---- found in a directory, or by a pattern ---- */

static void add_pair(tess_data_source *s, size_t first, const char *path, size_t length)
{
    for (size_t i = first; i < s->files; i++) /* its other half may have come before */
        if (s->file[i].kind == TESS_DATA_MEGATRON && strlen(s->file[i].path) == length &&
            !strncmp(s->file[i].path, path, length))
            return;
    add_file(s, path, length, TESS_DATA_MEGATRON);
}

/* Returns whether it is what we made ourselves of data, or are making. */
static bool is_ours(const char *path)
{
    static const char *const end[] = {".index", ".unpacked"};
    TESS_FREED char *of = tess_strdup(path);
    bool ours = false, sure;
    tess_data_kind kind;
    for (int i = 0; i < 2; i++) {
        char *at = strstr(of, end[i]), *dot;
        if (!at) continue;
        *at = 0;
        if ((dot = strrchr(of, '.')) && strspn(dot + 1, "0123456789abcdef") == 8) *dot = 0; /* as it is in an output */
        ours |= kind_of(of, &kind, &sure);
    }
    return ours;
}

/* Returns whether a file that was not named itself is data: what is packed beside the same unpacked is not. */
static bool is_data(const char *path, tess_data_kind *kind)
{
    bool sure;
    if (!kind_of(path, kind, &sure)) return false;
    TESS_FREED char *plain = head_of(path, strlen(path) - (tess_ends(path, ".gz") ? 3 : 0));
    const bool twice = tess_ends(path, ".gz") && is_there(plain, "");
    return !twice && (sure || tess_lines_look(path) != TESS_LINES_UNKNOWN);
}

static void add_found(tess_data_paths *p, tess_data_source *s, size_t first, const char *path)
{
    const size_t stem = strlen(path) > 4 ? strlen(path) - 4 : 0;
    tess_data_kind kind;
    TESS_FREED char *prefix = head_of(path, stem);
    if (is_directory(path))
        ; /* only what lies in the directory itself */
    else if (tess_ends(path, ".idx") || (tess_ends(path, ".bin") && is_there(prefix, ".idx")))
        add_pair(s, first, path, stem);
    else if (is_data(path, &kind))
        add_file(s, path, strlen(path), kind);
    else if (is_ours(path))
        ;
    else if (p->left_out++ == 0)
        p->left = tess_strdup(path);
}

static int by_bytes(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

static tess_status add_directory(tess_data_paths *p, tess_data_source *s, const char *path)
{
    struct dirent **entry;
    const size_t first = s->files, slash = path[strlen(path) - 1] == '/';
    int n = scandir(path, &entry, is_visible, by_bytes);
    for (int i = 0; i < n; i++) {
        TESS_FREED char *file = tess_format("%s%s%s", path, slash ? "" : "/", entry[i]->d_name);
        add_found(p, s, first, file);
        free(entry[i]);
    }
    if (n >= 0) free(entry);
    if (s->files > first) return TESS_OK;
    return tess_error(
        TESS_INVALID, path,
        "a directory of %d entries, none of them data (expected files *.txt, *.jsonl, *.json, *.csv, these as "
        "*.gz, llm.c's *.bin, or Megatron's *.bin with *.idx)",
        n < 0 ? 0 : n);
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static tess_status add_pattern(tess_data_paths *p, tess_data_source *s, const char *pattern)
{
    glob_t found = {0};
    const size_t first = s->files;
    tess_status status = TESS_OK;
    if (glob(pattern, GLOB_NOSORT, NULL, &found) == 0) {
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_text);
        for (size_t i = 0; i < found.gl_pathc && status == TESS_OK; i++)
            if (is_directory(found.gl_pathv[i]))
                status = add_directory(p, s, found.gl_pathv[i]);
            else
                add_found(p, s, first, found.gl_pathv[i]);
    }
    size_t matches = found.gl_pathc;
    globfree(&found);
    if (status != TESS_OK || s->files > first) return status;
    return tess_error(
        TESS_INVALID, pattern,
        "a pattern that %zu files match, none of them data (expected files *.txt, *.jsonl, *.json, *.csv, these as "
        "*.gz, llm.c's *.bin, or Megatron's *.bin with *.idx)",
        matches);
}

/* ---- one path ---- */

/* What a file is whose name says nothing that we know, and what to do about it. */
static tess_status no_data(const char *path)
{
    tess_map map;
    TESS_TRY(tess_map_open(path, &map));
    const size_t look = map.bytes < 4096 ? map.bytes : 4096;
    const int32_t magic = map.bytes < 4 ? 0 : map.data[0] | map.data[1] << 8 | map.data[2] << 16 | map.data[3] << 24;
    TESS_FREED char *made = NULL;
    const char *what = "a file of bytes in no format that is known here",
               *hint =
                   "expected a .txt, .jsonl, .json or .csv, llm.c's .bin, or the prefix of Megatron's .bin and .idx";
    if (map.bytes >= 9 && !memcmp(map.data, "MMIDIDX\0\0", 9))
        what = "a Megatron index", hint = "give the name that it shares with its .bin, without .idx or .bin";
    else if (magic == 20240520 || magic == 20240801)
        what = "tokens in llm.c's format", hint = "give the file a name that ends in .bin";
    else if (map.bytes > 4 && !memcmp(map.data, "PAR1", 4))
        what = "a table in Parquet",
        hint = made = tess_format("python3 -c 'from datasets import Dataset as D; D.from_parquet(\"%s\").to_json(\"%.*s"
                                  ".jsonl\")' makes lines of it",
                                  path, (int)(strlen(path) - 8 * tess_ends(path, ".parquet")), path);
    else if (map.bytes > 0 && !memchr(map.data, 0, look))
        what = "a text, as far as its first bytes tell",
        hint = "if it is to be read as one, give it a name in .txt, or in .jsonl where each line is an object";
    tess_status status = tess_error(
        TESS_INVALID, path, "is there, and is %s, but its name ends in none of .bin, .txt, .jsonl, .json and .csv (%s)",
        what, hint);
    tess_map_close(&map);
    return status;
}

static tess_status add_path(tess_data_paths *p, tess_data_source *s, const char *path)
{
    tess_data_kind kind;
    bool sure;
    if (is_there(path, ".idx")) return add_file(s, path, strlen(path), TESS_DATA_MEGATRON), TESS_OK;
    if (is_directory(path)) return add_directory(p, s, path);
    if (!is_there(path, "") && strpbrk(path, "*?[")) return add_pattern(p, s, path);
    if (kind_of(path, &kind, &sure)) return add_file(s, path, strlen(path), kind), TESS_OK;
    if (is_there(path, "")) return no_data(path);
    if (strchr(path, '/') && tess_dirs_hub(path))
        return tess_error(TESS_INVALID, path,
                          "no data found, and none is downloaded (python3 -c 'from datasets import load_dataset as l; "
                          "l(\"%s\", split=\"train\").to_json(\"%s.jsonl\")' makes a file)",
                          path, strrchr(path, '/') + 1);
    return tess_error(TESS_INVALID, path,
                      "no data found (looked for %s.idx beside %s.bin, for a *.bin, *.txt, *.jsonl, *.json or *.csv, a "
                      "directory or a "
                      "pattern)",
                      path, path);
}

/* ---- the whole ---- */

static tess_data_source *add_source(tess_data_paths *p, const char *name, double weight)
{
    p->source = tess_realloc(p->source, (p->sources + 1) * sizeof *p->source);
    p->source[p->sources] = (tess_data_source){.name = tess_strdup(name), .weight = weight};
    return &p->source[p->sources++];
}

/* One element of a list; all of them have weights, or none. */
static tess_status add_element(tess_data_paths *p, const char *key, const json_t *e, size_t i)
{
    const json_t *path = json_is_object(e) ? json_object_get(e, "path") : e, *weight = json_object_get(e, "weight");
    const bool weighted = weight && !json_is_null(weight);
    char where[512];
    snprintf(where, sizeof where, "%.400s[%zu]", key, i);
    if (!json_is_string(path) || !json_string_length(path))
        return tess_error(TESS_INVALID, where, "no path, expected a string or an object with \"path\"");
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)e, name, value)
    {
        if (strcmp(name, "path") && strcmp(name, "weight"))
            return tess_error(TESS_INVALID, where, "%.60s: unknown, expected path and weight", name);
    }
    if (weighted && !(json_is_number(weight) && json_number_value(weight) > 0 && json_number_value(weight) <= 1e9))
        return tess_error(TESS_INVALID, where, "a weight that is no number above 0 (leave the element out instead)");
    if (i > 0 && weighted != (p->source[0].weight > 0))
        return tess_error(TESS_INVALID, where, "%s weight, but the first element has %s (all need one, or none)",
                          weighted ? "a" : "no", weighted ? "none" : "one");
    tess_data_source *s = i == 0 || weighted ? add_source(p, weighted ? json_string_value(path) : key,
                                                          weighted ? json_number_value(weight) : 0)
                                             : &p->source[0];
    return add_path(p, s, json_string_value(path));
}

tess_status tess_data_paths_open(const char *key, const char *text, tess_data_paths *paths)
{
    *paths = (tess_data_paths){0};
    TESS_FREED_JSON json_t *list = text[0] == '[' ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (!list) return add_path(paths, add_source(paths, text, 0), text);
    tess_status status = TESS_OK;
    for (size_t i = 0; i < json_array_size(list) && status == TESS_OK; i++)
        status = add_element(paths, key, json_array_get(list, i), i);
    if (json_array_size(list) == 0) status = tess_error(TESS_INVALID, key, "an empty list, expected paths");
    return status;
}

void tess_data_paths_close(tess_data_paths *paths)
{
    for (size_t i = 0; i < paths->sources; i++) {
        for (size_t k = 0; k < paths->source[i].files; k++) free(paths->source[i].file[k].path);
        free(paths->source[i].file);
        free(paths->source[i].name);
    }
    free(paths->source);
    free(paths->left);
    *paths = (tess_data_paths){0};
}
