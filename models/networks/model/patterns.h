/* Patterns on the names of parameters, as files have them: * is any run of letters, ? any one, and 0-11 any number of
 * that range. The prefix that all names of a family begin with may be left out. */
#ifndef TESS_PATTERNS_IMPL_H
#define TESS_PATTERNS_IMPL_H
#include "graph.h"
#include "tessera_networks.h"

/* Says whether all of a name is as the pattern says. */
bool tess_pattern_matches(const char *pattern, const char *name);
/* Says whether a pattern means more than itself. */
bool tess_pattern_is(const char *text);
/* Returns the regular expression that means the same, a new string. */
char *tess_pattern_expression(const char *pattern);
/* Returns in how many letters the nearest name that the pattern describes differs from this one. */
size_t tess_pattern_distance(const char *pattern, const char *name);
/* Marks the parameters of a graph, [tess_graph_params], whose names match; the others' marks stay. None matches is
 * TESS_INVALID at `where`, with the name that comes nearest. */
tess_status tess_patterns_mark(const tess_model *m, const tess_graph *g, const char *where, const char *pattern,
                               bool *marked) TESS_NODISCARD;
/* The same of each pattern in what the configuration keeps of a list: its JSON text, or the one pattern. NULL: none. */
tess_status tess_patterns_mark_all(const tess_model *m, const tess_graph *g, const char *where, const char *list,
                                   bool *marked) TESS_NODISCARD;

#endif
