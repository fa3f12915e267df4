/* tessera.h: values of parameters, read and written by the program or lent to StarPU tasks of its own. tess_watch
 * (tessera_watch.h) shows activations. */
#ifndef TESSERA_VALUES_H
#define TESSERA_VALUES_H
#include "graph/tessera_graph.h"
#include "runtime/tessera_watch.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The parts of a parameter: its value, and as many moments as the optimizer has. */
typedef enum tess_part { TESS_MASTER, TESS_MOMENT1, TESS_MOMENT2, TESS_PARTS } tess_part;
/* A rectangle of a parameter that this rank holds, dense and row-major: rows [row, row + rows), columns [col, col +
 * cols). On one rank the pieces of a parameter are its tiles. */
typedef struct tess_piece {
    int64_t row, rows, col, cols;
    bool writes; /* this rank writes the rectangle to files, for all ranks that hold it */
} tess_piece;
/* Returns how many pieces of a parameter this rank holds. */
int64_t tess_param_pieces(const tess_tensor *p);
/* Returns the rectangle of one piece. */
tess_piece tess_param_piece(const tess_tensor *p, int64_t piece);
/* Maps one part of a piece, in fp32, for the main thread: *data is valid until tess_param_unmap, between two steps;
 * `mode` is a tess_access. A frozen parameter has no moments; values written to one in bf16 are rounded. */
tess_status tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data) TESS_NODISCARD;
/* Lends one part of a piece to the program's StarPU tasks, to read, until tess_param_unmap, between two steps. It is in
 * RAM until those tasks have run. A frozen matrix is lent in the graph's dtype, and moments that are kept in bf16 are
 * lent in bf16; moments in 8 bits are not lent. */
tess_status tess_param_lend(tess_tensor *p, int64_t piece, tess_part part, tess_lent *out) TESS_NODISCARD;
/* Ends tess_param_map or tess_param_lend. */
void tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
/* Draws one parameter as tess_graph_init does. tess_graph_round comes after the last of them. */
tess_status tess_param_init(tess_tensor *p, uint64_t seed) TESS_NODISCARD;
/* Renews the bf16 copies of parameters whose masters the program has written. */
tess_status tess_graph_round(tess_graph *g) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
