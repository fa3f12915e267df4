/* The row of the terminal that a bar or a live line stands in, for the last words of a process, which wait for no lock.
 */
#include "runtime/base/base.h"
#include "runtime/runtime_base.h"
#include <string.h>
#include <unistd.h>

atomic_int tess_row;

void tess_bar_drop(void)
{
    const int row = atomic_exchange(&tess_row, TESS_ROW_LAST);
    const char *end = row == TESS_ROW_BAR ? "\r\033[K" : row == TESS_ROW_LINE ? "\n" : "";
    const ssize_t ignored = write(STDERR_FILENO, end, strlen(end));
    (void)ignored;
}
