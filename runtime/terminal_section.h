/* base/bar.c: the live line of a run, which shares its row of the terminal with bars and notes; base_section.h has the
 * bars. Whatever comes after a live line leaves it where it is and goes below. */
#ifndef TESS_TERMINAL_SECTION_H
#define TESS_TERMINAL_SECTION_H
#include "base_section.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Puts a line on a terminal in the place of the live one there, if there is one; unless it stays, the next takes its
 * place, until a bar or a note ends it. */
void tess_live_line(FILE *out, const char *line, bool stays);
/* Ends the live line, if one stands there. */
void tess_live_end(void);
/* Makes room for the last words of a process on stderr: takes the bar away and waits for no lock. */
void tess_bar_drop(void);

#ifdef __cplusplus
}
#endif
#endif
