/* What --help says of the keys: a line a group, or a line a key of one of them. */
#include "models/train/config/config_impl.h"
#include <string.h>

enum { GROUPS_MOST = 64, LINE = 120 };

/* What the groups are for. One that is not here is shown by the names of its keys. */
static const char *const about[][2] = {
    {"run", "keys of no group"},
    {"data", "what to train and evaluate on"},
    {"eval", "what an evaluation says beside the loss"},
    {"on_spike", "what becomes of a batch whose gradient is out of proportion"},
    {"lora", "adapters of low rank beside a frozen model"},
    {"preference", "losses of completions: of pairs, one of them preferred, or of good and bad ones"},
    {"distill", "learning from another model's probabilities"},
    {"optimizer", "which one, and its numbers"},
    {"scheduler", "how the learning rate moves"},
    {"bf16", "half precision"},
    {"fp16", "half precision with a scaled loss"},
    {"fp8", "products of 8 bits, in bf16"},
    {"amp", "half precision, which is bf16 here"},
    {"torch_autocast", "half precision, which is bf16 here"},
    {"data_types", "what gradients are summed in"},
    {"memory", "caps for each tier, and where the disk tier is"},
    {"parallel", "how ranks share a model"},
    {"zero_optimization", "what data-parallel ranks share out, and what rests outside of the GPU"},
    {"aio", "how the disk tier moves its bytes"},
    {"activation_checkpointing", "what the backward pass computes again, and where the rest waits"},
    {"checkpoint", "what a run writes to go on from"},
    {"csv_monitor", "files for spreadsheets"},
    {"tensorboard", "files for TensorBoard"},
};

/* Whether `list`, names between blanks, has the key or a group around it. */
static bool lists(const char *list, const char *path)
{
    for (const char *p = list; *p; p += strspn(p, " ")) {
        const size_t n = strcspn(p, " ");
        if ((n == 3 && !strncmp(p, "all", 3)) || (!strncmp(p, path, n) && (path[n] == '.' || !path[n]))) return true;
        p += n;
    }
    return false;
}

static bool is_required(const tess_config_use *use, const tess_key *k)
{
    for (const char *const *r = use->required; r && *r; r++)
        if (!strcmp(*r, k->path)) return true;
    return k->preset && !strcmp(k->preset, "required");
}

/* "data" for data.train, "run" for steps. */
static const char *group_of(const tess_key *k, char out[static TESS_KEY_PATH])
{
    const char *dot = strchr(k->path, '.');
    snprintf(out, TESS_KEY_PATH, "%.*s", dot ? (int)(dot - k->path) : 3, dot ? k->path : "run");
    return out;
}

static bool in_topic(const tess_key *k, const char *topic)
{
    const size_t n = strlen(topic);
    if (!strcmp(topic, "run")) return !strchr(k->path, '.');
    return !strcmp(topic, "all") || (!strncmp(k->path, topic, n) && (k->path[n] == '.' || !k->path[n]));
}

/* ---- a line a key ---- */

static void print_key(const tess_config_use *use, const tess_key *k, FILE *out)
{
    char expected[320];
    if (k->state == TESS_KEY_IGNORED) {
        fprintf(out, "  %-60s %s\n", k->path, k->help);
        return;
    }
    const char *preset = is_required(use, k) ? "required" : k->preset && k->kind != TESS_KEY_TREE ? k->preset : "-";
    fprintf(out, "  %-48s %-13s %s; %s%s\n", k->path, preset, k->help, tess_key_describe(k, expected, sizeof expected),
            k->state == TESS_KEY_ABSENT ? " (this build has the default only)" : "");
}

static size_t print_topic(const tess_config_use *use, const char *topic, FILE *out)
{
    size_t printed = 0;
    for (int ignored = 0; ignored < 2; ignored++) {
        const char *head = ignored ? "%sAccepted without effect, each for the reason beside it:\n"
                                   : "%sKeys, their defaults and what they take:\n";
        const char *gap = printed ? "\n" : "";
        for (size_t i = 0; i < tess_key_count; i++) {
            const tess_key *k = &tess_keys[i];
            if ((k->state == TESS_KEY_IGNORED) != ignored || !in_topic(k, topic) || !lists(use->keys, k->path))
                continue;
            if (head) fprintf(out, head, gap);
            head = NULL;
            print_key(use, k, out);
            printed++;
        }
    }
    return printed;
}

/* ---- a line a group ---- */

/* "  data    what to train and evaluate on: train, valid, seq_length, shuffle", as far as a line goes. */
static void print_group(const tess_config_use *use, const char *group, FILE *out)
{
    char of[TESS_KEY_PATH];
    const size_t skip = strcmp(group, "run") ? strlen(group) + 1 : 0;
    const char *before = "";
    int used = fprintf(out, "  %-25s ", group), left = 0;
    for (size_t i = 0; i < sizeof about / sizeof *about; i++)
        if (!strcmp(about[i][0], group)) used += fprintf(out, "%s: ", about[i][1]);
    for (size_t i = 0; i < tess_key_count; i++) {
        const tess_key *k = &tess_keys[i];
        if (k->state != TESS_KEY_ACTIVE || !lists(use->keys, k->path) || strcmp(group_of(k, of), group)) continue;
        if (left || used + strlen(k->path + skip) > LINE) {
            left++;
            continue;
        }
        used += fprintf(out, "%s%s", before, k->path + skip);
        before = ", ";
    }
    if (left) fprintf(out, "%sand %d more", before, left);
    fputc('\n', out);
}

/* The groups of the keys that are used, in the table's order, once each: those with a key in force, or the others. */
static size_t groups_of(const tess_config_use *use, bool in_force, char names[static GROUPS_MOST][TESS_KEY_PATH])
{
    size_t count = 0;
    for (int other = 0; other <= !in_force; other++)
        for (size_t i = 0; i < tess_key_count; i++) {
            char group[TESS_KEY_PATH];
            const bool active = tess_keys[i].state == TESS_KEY_ACTIVE;
            size_t at = 0;
            if (active == other || !lists(use->keys, tess_keys[i].path)) continue;
            for (group_of(&tess_keys[i], group); at < count && strcmp(names[at], group);) at++;
            if (at == count && count < GROUPS_MOST) strcpy(names[count++], group);
        }
    return count;
}

static void print_groups(const tess_config_use *use, FILE *out)
{
    char names[GROUPS_MOST][TESS_KEY_PATH];
    const size_t in_force = groups_of(use, true, names);
    fputs("Keys by group; --help GROUP says what those of one are and take, --help all those of all:\n", out);
    for (size_t i = 0; i < in_force; i++) print_group(use, names[i], out);
    const char *comma = "";
    for (const char *const *r = use->required; r && *r; r++, comma = ", ")
        fprintf(out, "%s%s", *comma ? comma : "\nRequired: ", *r);
    fputs("\nDeepSpeed's other keys are taken as they stand in its files; those without effect here draw one line.\n",
          out);
}

/* What may have been meant: a group, or a key by the name that another trainer has for it; NULL: there is no telling.
 */
static const char *nearest(const tess_config_use *use, const char *topic)
{
    static _Thread_local char names[GROUPS_MOST][TESS_KEY_PATH];
    const char *known[GROUPS_MOST + 1] = {"all"};
    const size_t count = groups_of(use, false, names);
    for (size_t i = 0; i < count; i++) known[i + 1] = names[i];
    const char *group = strlen(topic) < 64 ? tess_nearest(topic, known, count + 1) : NULL;
    return group ? group : tess_key_suggest(topic);
}

tess_status tess_config_help(const tess_config_use *use, const char *topic, FILE *out)
{
    char today[TESS_KEY_PATH], where[256];
    if (!topic) return print_groups(use, out), TESS_OK;
    snprintf(where, sizeof where, "command line: --help %.100s", topic);
    if (strlen(topic) < 100 && strcmp(tess_key_today(topic, today), topic)) {
        fprintf(out, "%s is %s here.\n\n", topic, today);
        topic = today;
    }
    if (print_topic(use, topic, out)) return TESS_OK;
    if (tess_key_find(topic) || tess_key_is_group(topic))
        return tess_error(TESS_INVALID, where, "this command does not use it (tessera train --help %.100s)", topic);
    const char *meant = nearest(use, topic);
    return tess_error(TESS_INVALID, where, "no such group of keys, nor a key (%s%s%s)",
                      meant ? "did you mean " : "see --help", meant ? meant : "", meant ? "?" : "");
}
