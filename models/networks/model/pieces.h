/* Parameters to and from the tensors of files: each rank the pieces it holds, one at a time, so that nobody ever has a
 * whole one. A tensor that is turned lies in its file transposed. */
#ifndef TESS_PIECES_IMPL_H
#define TESS_PIECES_IMPL_H
#include "graph.h"
#include "safetensors.h"

/* Waits, before the first is written, for what is due. Updates that have yet to come are the work of all ranks, also of
 * those that write nothing. */
tess_status tess_pieces_settle(tess_graph *g) TESS_NODISCARD;
/* Writes those that this rank is to write of a parameter's part, to tensor number `tensor` of the files. */
tess_status tess_pieces_write(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                              bool turned) TESS_NODISCARD;
/* The same of a stack of matrices, which are tensors of their own, from number `tensor` on. */
tess_status tess_pieces_write_members(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                                      bool turned) TESS_NODISCARD;
/* Says TESS_INVALID unless the file's tensor has that shape, turned or not. */
tess_status tess_pieces_check(const tess_safetensor *t, int rank, const int64_t shape[3], bool turned) TESS_NODISCARD;
/* Reads all that this rank holds, out of a tensor of the parameter's shape; of the file it reads no more than that. */
tess_status tess_pieces_read(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned) TESS_NODISCARD;
/* The same of rows [row, row + rows) of the parameter alone, which are the file's tensor. */
tess_status tess_pieces_read_rows(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned, int64_t row,
                                  int64_t rows) TESS_NODISCARD;

#endif
