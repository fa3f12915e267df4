/* Parameters to and from the tensors of files, piece by piece. */
#include "models/networks/model/model.h"
#include "models/text/base/text.h"
#include <stdio.h>

enum {
    STRIP = 64,             /* rows or columns that are turned at a time */
    STRIP_BYTES = 16 << 20, /* of turned ones on their way to a file */
    STRETCH = 16 << 20      /* bytes of a mapped file that are walked over before they are forgotten */
};

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t tess_pieces_of(const tess_tensor *p, tess_part part, int64_t *end)
{
    const int64_t pieces = tess_param_pieces(p);
    *end = pieces + (part == TESS_REST ? tess_param_rests(p) : 0);
    return part == TESS_REST ? pieces : 0;
}

bool tess_piece_writes(const tess_tensor *p, int64_t piece, tess_part part)
{
    int mine;
    return tess_param_piece(p, piece).writes || (part != TESS_REST && tess_param_owners(p, part, &mine) > 1);
}

tess_status tess_pieces_settle(tess_graph *g)
{
    float *data;
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (tess_param_pieces(p) == 0) continue;
        TESS_TRY(tess_param_map(p, 0, TESS_MASTER, TESS_R, &data));
        tess_param_unmap(p, 0, TESS_MASTER);
        return TESS_OK;
    }
    return TESS_OK;
}

/* ---- to files ---- */

/* Pieces first .. end-1, one below the other: the rectangle that they are. */
struct stack {
    int64_t first, end;
    tess_piece all;
};

/* The rows of one tensor in the files: all of a parameter's, or those of one matrix of a stack. */
struct within {
    size_t tensor;
    int64_t rows;
    tess_piece_sums *sums; /* of what is written, NULL: nothing is added */
};

/* As many as fit a strip, so that what is turned goes to the file in the longest runs; at least one. */
static struct stack stack_from(const tess_tensor *p, int64_t first, int64_t rows)
{
    struct stack s = {first, first + 1, tess_param_piece(p, first)};
    for (; s.end < tess_param_pieces(p); s.end++) {
        tess_piece next = tess_param_piece(p, s.end);
        bool below =
            next.col == s.all.col && next.cols == s.all.cols && next.row == s.all.row + s.all.rows && next.row % rows;
        int64_t bytes = (s.all.rows + next.rows) * next.cols * (int64_t)sizeof(float);
        if (next.writes != s.all.writes || !below || bytes > STRIP_BYTES) break;
        s.all.rows += next.rows;
    }
    return s;
}

/* Columns [c0, c0+n) of the stack, turned: out (n, all.rows). */
static tess_status turn_columns(tess_tensor *p, tess_part part, const struct stack *s, int64_t c0, int64_t n,
                                float *out)
{
    for (int64_t i = s->first; i < s->end; i++) {
        tess_piece q = tess_param_piece(p, i);
        const float *data;
        float *place = out + (q.row - s->all.row);
        TESS_TRY(tess_param_map(p, i, part, TESS_R, (float **)&data));
        for (int64_t from = 0, to; from < n; from = to) {
            to = least(n, from + STRIP);
            for (int64_t r = 0; r < q.rows; r++)
                for (int64_t c = from; c < to; c++) place[c * s->all.rows + r] = data[r * q.cols + c0 + c];
        }
        tess_param_unmap(p, i, part);
    }
    return TESS_OK;
}

static tess_status write_turned(tess_safetensors_writer *w, const struct within *in, tess_tensor *p, tess_part part,
                                const struct stack *s)
{
    const tess_piece *all = &s->all;
    const size_t tensor = in->tensor + (size_t)(all->row / in->rows);
    int64_t fit = STRIP_BYTES / (all->rows * (int64_t)sizeof(float));
    int64_t most = least(fit < STRIP ? STRIP : fit, all->cols);
    TESS_FREED float *strip = tess_alloc((size_t)(most * all->rows) * sizeof *strip);
    tess_status status = TESS_OK;
    for (int64_t c = 0; c < all->cols && status == TESS_OK; c += most) {
        int64_t n = least(most, all->cols - c);
        status = turn_columns(p, part, s, c, n, strip);
        if (status == TESS_OK)
            status = tess_safetensors_write(w, tensor, all->col + c, n, all->row % in->rows, all->rows, strip);
    }
    return status;
}

void tess_piece_sums_add(tess_piece_sums *sums, int64_t at, int64_t n, const float *values)
{
    const uint32_t *word = (const uint32_t *)(const void *)values;
    uint64_t plain = 0, placed = 0;
    for (int64_t i = 0; i < n; i++) {
        plain += word[i];
        placed += (uint64_t)word[i] * (uint32_t)i;
    }
    sums->plain += plain;
    sums->placed += placed + plain * (uint64_t)at;
}

static void add_sums(tess_piece_sums *sums, tess_piece q, int64_t width, const float *data)
{
    for (int64_t r = 0; r < q.rows; r++)
        tess_piece_sums_add(sums, (q.row + r) * width + q.col, q.cols, data + r * q.cols);
}

int tess_part_shape(const tess_tensor *p, tess_part part, int64_t shape[3])
{
    const int rank = tess_tensor_shape(p, shape);
    const int64_t width = tess_param_part_width(p, part), columns = tess_param_part_width(p, TESS_MASTER);
    if (rank == 2 && width != columns) shape[1] = width;
    return rank;
}

static tess_piece piece_of(const tess_tensor *p, int64_t piece, tess_part part)
{
    tess_piece q = tess_param_piece(p, piece);
    const int64_t width = tess_param_part_width(p, part);
    if (width != tess_param_part_width(p, TESS_MASTER)) q.cols = width;
    return q;
}

static int64_t width_of(const tess_tensor *p, tess_part part)
{
    int64_t shape[3];
    return tess_part_shape(p, part, shape) == 2 ? shape[1] : 1;
}

static tess_status write_straight(tess_safetensors_writer *w, const struct within *in, tess_tensor *p, tess_part part,
                                  int64_t piece)
{
    tess_piece q = piece_of(p, piece, part);
    float *data;
    TESS_TRY(tess_param_map(p, piece, part, TESS_R, &data));
    const size_t tensor = in->tensor + (size_t)(q.row / in->rows);
    if (in->sums) add_sums(in->sums, q, width_of(p, part), data);
    tess_status status = tess_safetensors_write(w, tensor, q.row % in->rows, q.rows, q.col, q.cols, data);
    tess_param_unmap(p, piece, part);
    return status;
}

static tess_status write_within(tess_safetensors_writer *w, const struct within *in, tess_tensor *p, tess_part part,
                                bool turned)
{
    int64_t end;
    for (int64_t i = tess_pieces_of(p, part, &end); i < end;) {
        struct stack s = stack_from(p, i, in->rows);
        i = turned ? s.end : i + 1;
        if (!tess_piece_writes(p, s.first, part) || s.all.rows * s.all.cols == 0) continue;
        TESS_TRY(turned ? write_turned(w, in, p, part, &s) : write_straight(w, in, p, part, s.first));
        tess_bar_step((double)s.all.rows * (double)s.all.cols);
    }
    return TESS_OK;
}

static int64_t rows_of(const tess_tensor *p)
{
    int64_t shape[3];
    tess_tensor_shape(p, shape);
    return shape[0];
}

tess_status tess_pieces_write(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part, bool turned)
{
    return write_within(w, &(struct within){tensor, rows_of(p), NULL}, p, part, turned);
}

tess_status tess_pieces_write_summed(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                                     tess_piece_sums *sums)
{
    return write_within(w, &(struct within){tensor, rows_of(p), sums}, p, part, false);
}

tess_status tess_piece_write(tess_safetensors_writer *w, size_t tensor, const tess_tensor *p, int64_t piece,
                             tess_part part, const float *values, tess_piece_sums *sums)
{
    const tess_piece q = piece_of(p, piece, part);
    add_sums(sums, q, width_of(p, part), values);
    return tess_safetensors_write(w, tensor, q.row, q.rows, q.col, q.cols, values);
}

tess_status tess_pieces_write_members(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                                      bool turned)
{
    return write_within(w, &(struct within){tensor, rows_of(p) / tess_param_members(p), NULL}, p, part, turned);
}

/* ---- from files ---- */

/* Out of a file's (rows, width). */
static tess_status read_straight(const tess_safetensor *t, tess_piece q, int64_t width, float *out)
{
    int64_t stretch = STRETCH / (width * (int64_t)sizeof *out) + 1;
    for (int64_t r0 = 0; r0 < q.rows; r0 += stretch) {
        int64_t n = least(stretch, q.rows - r0);
        bool whole = q.cols == width; /* rows that lie one behind the other */
        for (int64_t r = 0; r < (whole ? 1 : n); r++)
            TESS_TRY(tess_safetensor_read(t, (q.row + r0 + r) * width + q.col, whole ? n * width : q.cols,
                                          out + (r0 + r) * q.cols));
        tess_safetensor_forget(t);
    }
    return TESS_OK;
}

/* Out of a file's (columns, height). */
static tess_status read_turned(const tess_safetensor *t, tess_piece q, int64_t height, float *out)
{
    TESS_FREED float *strip = tess_alloc((size_t)(STRIP * q.rows) * sizeof *strip);
    tess_status status = TESS_OK;
    for (int64_t c0 = 0; c0 < q.cols && status == TESS_OK; c0 += STRIP) {
        int64_t n = least(STRIP, q.cols - c0);
        for (int64_t c = 0; c < n && status == TESS_OK; c++)
            status = tess_safetensor_read(t, (q.col + c0 + c) * height + q.row, q.rows, strip + c * q.rows);
        for (int64_t r = 0; r < q.rows; r++)
            for (int64_t c = 0; c < n; c++) out[r * q.cols + c0 + c] = strip[c * q.rows + r];
        tess_safetensor_forget(t);
    }
    return status;
}

tess_status tess_pieces_check(const tess_safetensor *t, int rank, const int64_t shape[3], bool turned)
{
    int64_t want[2] = {turned ? shape[1] : shape[0], turned ? shape[0] : shape[1]};
    const bool convolves = rank == 2 && t->rank == 3 && t->dims[1] == 1; /* one channel each */
    if ((t->rank == rank || convolves) && t->dims[0] == want[0] && (rank == 1 || t->dims[convolves ? 2 : 1] == want[1]))
        return TESS_OK;
    char met[TESS_SAFETENSORS_RANK * 21 + 1] = "", *at = met;
    for (int d = 0; d < t->rank; d++) at += sprintf(at, d ? ",%lld" : "%lld", (long long)t->dims[d]);
    if (rank == 1)
        return tess_error(TESS_INVALID, t->file, "%s has shape (%s), the model needs (%lld)", t->name, met,
                          (long long)want[0]);
    return tess_error(TESS_INVALID, t->file, "%s has shape (%s), the model needs (%lld,%lld)", t->name, met,
                      (long long)want[0], (long long)want[1]);
}

/* A piece that is kept in the codes that the file has; else *taken is false. */
static tess_status read_blocks(const tess_safetensor *t, tess_tensor *p, int64_t i, tess_piece q, bool *taken)
{
    void *blocks = NULL;
    if (tess_safetensor_blocks(t, 0, 0, NULL)) TESS_TRY(tess_param_map_blocks(p, i, TESS_NF4, &blocks));
    *taken = blocks;
    if (!blocks) return TESS_OK;
    for (int64_t r = 0; r < q.rows; r++)
        TESS_ASSERT(tess_safetensor_blocks(t, (q.row + r) * t->dims[1] + q.col, q.cols,
                                           (char *)blocks + tess_dtype_bytes(TESS_NF4, r * q.cols)));
    tess_safetensor_forget(t);
    tess_param_unmap(p, i, TESS_MASTER);
    return TESS_OK;
}

static tess_status read_rows(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned, int64_t row,
                             int64_t rows, tess_piece_sums *sums)
{
    int64_t width = t->rank > 1 ? t->dims[t->rank - 1] : 1;
    int64_t end;
    for (int64_t i = tess_pieces_of(p, part, &end); i < end; i++) {
        tess_piece q = piece_of(p, i, part);
        float *data;
        bool taken = false;
        if (q.row < row || q.row >= row + rows) continue;
        q.row -= row;
        if (part == TESS_MASTER && !turned) TESS_TRY(read_blocks(t, p, i, q, &taken));
        if (!taken) TESS_TRY(tess_param_map(p, i, part, TESS_W, &data));
        tess_status status = taken    ? TESS_OK
                             : turned ? read_turned(t, q, width, data)
                                      : read_straight(t, q, width, data);
        if (sums && tess_piece_writes(p, i, part) && status == TESS_OK) add_sums(sums, q, width, data);
        if (!taken) tess_param_unmap(p, i, part);
        TESS_TRY(status);
        tess_bar_step((double)q.rows * (double)q.cols);
    }
    return TESS_OK;
}

tess_status tess_pieces_read_rows(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned, int64_t row,
                                  int64_t rows)
{
    return read_rows(t, p, part, turned, row, rows, NULL);
}

tess_status tess_pieces_read(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned)
{
    return read_rows(t, p, part, turned, 0, rows_of(p), NULL);
}

tess_status tess_pieces_read_summed(const tess_safetensor *t, tess_tensor *p, tess_part part, tess_piece_sums *sums)
{
    return read_rows(t, p, part, false, 0, rows_of(p), sums);
}
