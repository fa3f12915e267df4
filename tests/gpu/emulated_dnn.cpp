/* cuDNN's backend over the CPU's memory: descriptors with their attributes, graphs of operations, engines, plans, and
 * their run, operation by operation, as the header says what each does. What lies between operations is stored whole,
 * in its type. It refuses what the header forbids: an attribute that a descriptor does not have, of another type, or
 * too late; one that lacks; sides that do not fit; tensors that nobody made, or two of one number; pointers that lack
 * or are not aligned; dead handles. The workspace is NaN before it runs. */
#include "tests/gpu/emulated_dnn.h"
#include "codelets/shared/cudnn_names.h"
#include "tests/gpu/emulated_runtime.h"
#define _Noreturn [[noreturn]]
extern "C" {
#include "codelets/codelets.h"
}
#include "codelets/shared/scalar.h"
#include <map>
#include <vector>

emulated_dnn emulated_cudnn;

enum { FINE = 0, BAD = 2000, LACKS = 3000, NOT_READY = 1001, FAILED = 5000 };

struct attribute {
    int type;
    std::vector<int64_t> number; /* or the bits of pointers */
};
struct thing {
    int kind;
    bool ended = false;
    std::map<int, attribute> has;
    int64_t one(int name, int64_t otherwise = 0) const
    {
        const auto at = has.find(name);
        return at == has.end() ? otherwise : at->second.number[0];
    }
    const thing *of(int name, size_t i = 0) const
    {
        const auto at = has.find(name);
        return at == has.end() ? NULL : (const thing *)at->second.number[i];
    }
    const int64_t *all(int name) const { return has.at(name).number.data(); }
};
struct dnn_context {
    uint64_t era;
    cudaStream_t stream;
};

static int refuse(int status, const char *what)
{
    snprintf(emulated_cudnn.refused, sizeof emulated_cudnn.refused, "%s", what);
    return status;
}

/* ---- what a descriptor may have, and must ---- */

struct rule {
    int kind, name, type, least, most; /* values, at least 0: it may be left out */
};
static const rule RULES[] = {
    {DNN_TENSOR, DNN_TENSOR_TYPE, DNN_IS_TYPE, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_SIDES, DNN_IS_INT64, 4, 5},
    {DNN_TENSOR, DNN_TENSOR_STRIDES, DNN_IS_INT64, 4, 5},
    {DNN_TENSOR, DNN_TENSOR_ID, DNN_IS_INT64, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_ALIGNMENT, DNN_IS_INT64, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_VIRTUAL, DNN_IS_BOOLEAN, 0, 1},
    {DNN_TENSOR, DNN_TENSOR_BY_VALUE, DNN_IS_BOOLEAN, 0, 1},
    {DNN_POINTWISE, DNN_POINTWISE_MODE, DNN_IS_POINTWISE_MODE, 1, 1},
    {DNN_POINTWISE, DNN_POINTWISE_PRECISION, DNN_IS_TYPE, 1, 1},
    {DNN_POINTWISE, DNN_POINTWISE_AXIS, DNN_IS_INT64, 0, 1},
    {DNN_OPERATION_POINTWISE, DNN_POINTWISE_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_POINTWISE, DNN_POINTWISE_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_POINTWISE, DNN_POINTWISE_B, DNN_IS_DESCRIPTOR, 0, 1},
    {DNN_OPERATION_POINTWISE, DNN_POINTWISE_T, DNN_IS_DESCRIPTOR, 0, 1},
    {DNN_OPERATION_POINTWISE, DNN_POINTWISE_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_MATMUL, DNN_MATMUL_PRECISION, DNN_IS_TYPE, 1, 1},
    {DNN_OPERATION_MATMUL, DNN_MATMUL_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_MATMUL, DNN_MATMUL_A, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_MATMUL, DNN_MATMUL_B, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_MATMUL, DNN_MATMUL_C, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_REDUCTION, DNN_REDUCTION_MODE, DNN_IS_REDUCTION_MODE, 1, 1},
    {DNN_REDUCTION, DNN_REDUCTION_PRECISION, DNN_IS_TYPE, 1, 1},
    {DNN_OPERATION_REDUCTION, DNN_REDUCTION_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_REDUCTION, DNN_REDUCTION_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_REDUCTION, DNN_REDUCTION_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_RESHAPE, DNN_RESHAPE_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_RESHAPE, DNN_RESHAPE_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_CONV, DNN_CONV_PRECISION, DNN_IS_TYPE, 1, 1},
    {DNN_CONV, DNN_CONV_MODE, DNN_IS_CONV_MODE, 1, 1},
    {DNN_CONV, DNN_CONV_APART, DNN_IS_INT64, 2, 3},
    {DNN_CONV, DNN_CONV_STEP, DNN_IS_INT64, 2, 3},
    {DNN_CONV, DNN_CONV_AFTER, DNN_IS_INT64, 2, 3},
    {DNN_CONV, DNN_CONV_BEFORE, DNN_IS_INT64, 2, 3},
    {DNN_CONV, DNN_CONV_SPACE, DNN_IS_INT64, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_TIMES, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_TIMES_OLD, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_W, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV, DNN_CONV_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_TIMES, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_TIMES_OLD, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_W, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_INPUT, DNN_CONV_INPUT_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_TIMES, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_TIMES_OLD, DNN_IS_FLOAT, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_OF, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_X, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_W, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_OPERATION_CONV_WEIGHT, DNN_CONV_WEIGHT_Y, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_GRAPH, DNN_GRAPH_HANDLE, DNN_IS_HANDLE, 1, 1},
    {DNN_GRAPH, DNN_GRAPH_OPERATIONS, DNN_IS_DESCRIPTOR, 1, 64},
    {DNN_HEURISTIC, DNN_HEURISTIC_GRAPH, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_HEURISTIC, DNN_HEURISTIC_MODE, DNN_IS_HEURISTIC_MODE, 1, 1},
    {DNN_PLAN, DNN_PLAN_HANDLE, DNN_IS_HANDLE, 1, 1},
    {DNN_PLAN, DNN_PLAN_CONFIG, DNN_IS_DESCRIPTOR, 1, 1},
    {DNN_VARIANT, DNN_VARIANT_IDS, DNN_IS_INT64, 1, 64},
    {DNN_VARIANT, DNN_VARIANT_POINTERS, DNN_IS_POINTER, 1, 64},
    {DNN_VARIANT, DNN_VARIANT_WORKSPACE, DNN_IS_POINTER, 0, 1},
};
static const rule *rule_of(int kind, int name)
{
    for (const rule &r : RULES)
        if (r.kind == kind && r.name == name) return &r;
    return NULL;
}

/* ---- sides ---- */

static const int64_t *sides(const thing *t)
{
    return t->all(DNN_TENSOR_SIDES);
}
static int rank(const thing *t)
{
    return (int)t->has.at(DNN_TENSOR_SIDES).number.size();
}
static int64_t count(const thing *t)
{
    int64_t all = 1;
    for (int i = 0; i < rank(t); i++) all *= sides(t)[i];
    return all;
}
static tess_dtype type_of(int64_t dnn)
{
    return dnn == DNN_BF16 ? TESS_BF16 : dnn == DNN_F16 ? TESS_F16 : TESS_F32;
}
/* y's sides are x's, or x has one there. */
static bool spreads(const thing *x, const thing *y)
{
    bool can = true;
    for (int i = 0; x && i < rank(y); i++) can = can && (sides(x)[i] == sides(y)[i] || sides(x)[i] == 1);
    return can;
}
/* The first of a convolution's names; 0: it is none. */
static int conv_name(const thing *d)
{
    return d->kind == DNN_OPERATION_CONV          ? DNN_CONV_TIMES
           : d->kind == DNN_OPERATION_CONV_INPUT  ? DNN_CONV_INPUT_TIMES
           : d->kind == DNN_OPERATION_CONV_WEIGHT ? DNN_CONV_WEIGHT_TIMES
                                                  : 0;
}
/* A convolution, with its dimensions of space from the last one on. */
struct convolution {
    const thing *x, *w, *y, *to;
    int space;
    int64_t in[3], out[3], window[3], step[3], apart[3], before[3], after[3];
};
static convolution conv_of(const thing *d)
{
    const int past = conv_name(d) - DNN_CONV_TIMES;
    const thing *how = d->of(DNN_CONV_OF + past);
    convolution c = {};
    c.x = d->of(DNN_CONV_X + past), c.w = d->of(DNN_CONV_W + past), c.y = d->of(DNN_CONV_Y + past);
    c.to = d->kind == DNN_OPERATION_CONV ? c.y : d->kind == DNN_OPERATION_CONV_INPUT ? c.x : c.w;
    c.space = rank(c.x) - 2;
    for (int i = 0; i < 3; i++) {
        const int k = c.space - 1 - i;
        const bool there = k >= 0;
        c.in[i] = there ? sides(c.x)[2 + k] : 1, c.out[i] = there ? sides(c.y)[2 + k] : 1;
        c.window[i] = there ? sides(c.w)[2 + k] : 1, c.step[i] = there ? how->all(DNN_CONV_STEP)[k] : 1;
        c.apart[i] = there ? how->all(DNN_CONV_APART)[k] : 1;
        c.before[i] = there ? how->all(DNN_CONV_BEFORE)[k] : 0, c.after[i] = there ? how->all(DNN_CONV_AFTER)[k] : 0;
    }
    return c;
}
static int check_conv(const thing *d)
{
    const int past = conv_name(d) - DNN_CONV_TIMES;
    const thing *how = d->of(DNN_CONV_OF + past);
    const float one = 1;
    uint32_t bits;
    memcpy(&bits, &one, sizeof bits);
    if (d->one(DNN_CONV_TIMES + past) != bits || d->one(DNN_CONV_TIMES_OLD + past) != 0)
        return refuse(LACKS, "a convolution that is scaled");
    const convolution c = conv_of(d);
    for (int name : {(int)DNN_CONV_APART, (int)DNN_CONV_STEP, (int)DNN_CONV_BEFORE, (int)DNN_CONV_AFTER})
        if ((int)how->has.at(name).number.size() != c.space) return refuse(BAD, "a convolution of other dimensions");
    if (how->one(DNN_CONV_SPACE) != c.space || rank(c.w) != rank(c.x) || rank(c.y) != rank(c.x))
        return refuse(BAD, "tensors of other dimensions");
    if (how->one(DNN_CONV_MODE) != DNN_NOT_TURNED) return refuse(LACKS, "a window that is turned");
    if (sides(c.x)[0] != sides(c.y)[0] || sides(c.w)[0] != sides(c.y)[1] || sides(c.x)[1] % sides(c.w)[1] ||
        sides(c.y)[1] % (sides(c.x)[1] / sides(c.w)[1]))
        return refuse(BAD, "channels that do not fit");
    for (int i = 0; i < 3; i++) {
        const int64_t reach = (c.window[i] - 1) * c.apart[i] + 1, all = c.in[i] + c.before[i] + c.after[i];
        if (c.step[i] < 1 || c.apart[i] < 1 || c.before[i] < 0 || c.after[i] < 0 || all < reach ||
            (all - reach) / c.step[i] + 1 != c.out[i])
            return refuse(BAD, "positions that do not fit");
    }
    for (const thing *t : {c.x, c.w, c.y}) {
        if (t->all(DNN_TENSOR_STRIDES)[1] != 1) return refuse(LACKS, "channels that are not last");
        if (t != c.to && t->one(DNN_TENSOR_TYPE) != DNN_BF16) return refuse(LACKS, "a convolution of what is not bf16");
    }
    /* In fp32 it goes through a kernel that is generated, which wants eight channels at a time, and one group. */
    const bool wide = c.to->one(DNN_TENSOR_TYPE) == DNN_F32;
    if (wide && !c.to->one(DNN_TENSOR_VIRTUAL)) return refuse(LACKS, "a convolution that writes fp32 by itself");
    if (wide && (sides(c.x)[1] % 8 || sides(c.y)[1] % 8 || sides(c.x)[1] != sides(c.w)[1]))
        return refuse(LACKS, "channels of no kernel that writes fp32");
    return FINE;
}
static int check_operation(const thing *d)
{
    const thing *x, *y;
    if (conv_name(d)) return check_conv(d);
    if (d->kind == DNN_OPERATION_POINTWISE) {
        const int64_t mode = d->of(DNN_POINTWISE_OF)->one(DNN_POINTWISE_MODE);
        const bool one = mode == DNN_EXP || mode == DNN_LOG || mode == DNN_INDEX || mode == DNN_SAME;
        x = d->of(DNN_POINTWISE_X), y = d->of(DNN_POINTWISE_Y);
        if (one == !!d->of(DNN_POINTWISE_B) || (mode == DNN_SELECT) != !!d->of(DNN_POINTWISE_T))
            return refuse(BAD, "a pointwise operation with too many or too few operands");
        if (!spreads(x, y) || !spreads(d->of(DNN_POINTWISE_B), y) || !spreads(d->of(DNN_POINTWISE_T), y))
            return refuse(BAD, "operands of other sides");
        if (mode == DNN_SELECT && d->of(DNN_POINTWISE_T)->one(DNN_TENSOR_TYPE) != DNN_BOOL)
            return refuse(BAD, "a choice by what is no boolean");
        if ((mode == DNN_INDEX) != d->of(DNN_POINTWISE_OF)->has.count(DNN_POINTWISE_AXIS))
            return refuse(BAD, "an index without its axis");
    } else if (d->kind == DNN_OPERATION_MATMUL) {
        const int64_t *a = sides(d->of(DNN_MATMUL_A)), *b = sides(d->of(DNN_MATMUL_B)), *c = sides(d->of(DNN_MATMUL_C));
        if (a[0] != c[0] || b[0] != c[0] || a[1] != c[1] || c[1] % b[1] || a[2] != c[2] || a[3] != b[2] || b[3] != c[3])
            return refuse(BAD, "a product of other sides");
        for (const thing *of : {d->of(DNN_MATMUL_B)})
            if (type_of(of->one(DNN_TENSOR_TYPE)) == TESS_F32) return refuse(LACKS, "a product of what has 32 bits");
    } else if (d->kind == DNN_OPERATION_REDUCTION) {
        x = d->of(DNN_REDUCTION_X), y = d->of(DNN_REDUCTION_Y);
        for (int i = 0; i < 4; i++)
            if (sides(x)[i] % sides(y)[i] || (i != 1 && sides(y)[i] != 1 && sides(y)[i] != sides(x)[i]))
                return refuse(BAD, "a sum of other sides");
    } else if (d->kind == DNN_OPERATION_RESHAPE) {
        if (count(d->of(DNN_RESHAPE_X)) != count(d->of(DNN_RESHAPE_Y))) return refuse(BAD, "turned to other sides");
    }
    return FINE;
}

/* What an operation reads, and what it makes. */
static std::vector<const thing *> reads(const thing *d)
{
    std::vector<const thing *> all;
    if (conv_name(d))
        for (const thing *x : {conv_of(d).x, conv_of(d).w, conv_of(d).y})
            if (x != conv_of(d).to) all.push_back(x);
    for (int name : {(int)DNN_POINTWISE_X, (int)DNN_POINTWISE_B, (int)DNN_POINTWISE_T, (int)DNN_MATMUL_A,
                     (int)DNN_MATMUL_B, (int)DNN_REDUCTION_X, (int)DNN_RESHAPE_X})
        if (d->of(name)) all.push_back(d->of(name));
    return all;
}
static const thing *makes(const thing *d)
{
    if (conv_name(d)) return conv_of(d).to;
    for (int name : {(int)DNN_POINTWISE_Y, (int)DNN_MATMUL_C, (int)DNN_REDUCTION_Y, (int)DNN_RESHAPE_Y})
        if (d->of(name)) return d->of(name);
    return NULL;
}
static int check_graph(const thing *d)
{
    std::map<int64_t, const thing *> by_id;
    std::map<const thing *, bool> made;
    const attribute &operations = d->has.at(DNN_GRAPH_OPERATIONS);
    for (size_t i = 0; i < operations.number.size(); i++) {
        const thing *of = d->of(DNN_GRAPH_OPERATIONS, i), *to = makes(of);
        std::vector<const thing *> all = reads(of);
        for (const thing *x : all)
            if (x->one(DNN_TENSOR_VIRTUAL) && !made[x]) return refuse(BAD, "a tensor that nobody made");
        if (made[to]) return refuse(BAD, "a tensor that is made twice");
        made[to] = true;
        all.push_back(to);
        for (const thing *x : all) {
            const thing *&known = by_id[x->one(DNN_TENSOR_ID)];
            if (known && known != x) return refuse(BAD, "two tensors of one number");
            known = x;
        }
    }
    return FINE;
}

/* The sequences, heads and rows of a graph's scores; backward it makes more than y and lse. */
static int64_t workspace_of(const thing *graph)
{
    const attribute &operations = graph->has.at(DNN_GRAPH_OPERATIONS);
    int products = 0;
    int64_t scores = 0;
    if (conv_name(graph->of(DNN_GRAPH_OPERATIONS))) return emulated_cudnn.conv_room;
    for (size_t i = 0; i < operations.number.size(); i++)
        if (graph->of(DNN_GRAPH_OPERATIONS, i)->kind == DNN_OPERATION_MATMUL && products++ == 0)
            scores = count(makes(graph->of(DNN_GRAPH_OPERATIONS, i)));
    const int64_t times = emulated_cudnn.room_times ? emulated_cudnn.room_times : 1;
    return products > 2 ? 2 * scores * times : 256;
}

static int check_end(const thing *d)
{
    for (const rule &r : RULES) {
        const auto at = d->has.find(r.name);
        if (r.kind != d->kind) continue;
        if (at == d->has.end() ? r.least > 0 : (int)at->second.number.size() < r.least)
            return refuse(BAD, "an attribute lacks");
    }
    if (d->kind == DNN_TENSOR) {
        if (rank(d) != (int)d->has.at(DNN_TENSOR_STRIDES).number.size()) return refuse(BAD, "strides of other sides");
        for (int i = 0; i < rank(d); i++)
            if (sides(d)[i] < 1 || d->all(DNN_TENSOR_STRIDES)[i] < 1) return refuse(BAD, "a side of nothing");
        const int64_t align = d->one(DNN_TENSOR_ALIGNMENT);
        if (align < 1 || (align & (align - 1))) return refuse(BAD, "an alignment that is no power of two");
        if (d->one(DNN_TENSOR_VIRTUAL) && d->one(DNN_TENSOR_BY_VALUE)) return refuse(BAD, "a value nowhere");
    }
    if (d->kind == DNN_GRAPH) return check_graph(d);
    if (d->kind == DNN_VARIANT &&
        d->has.at(DNN_VARIANT_IDS).number.size() != d->has.at(DNN_VARIANT_POINTERS).number.size())
        return refuse(BAD, "more numbers than pointers");
    return check_operation(d);
}

/* ---- a run ---- */

typedef std::map<const thing *, std::vector<float>> values;

static float stored(float x, int64_t type)
{
    return type == DNN_BF16 ? tess_from_bf16(tess_to_bf16(x)) : type == DNN_F16 ? tess_from_f16(tess_to_f16(x)) : x;
}
static int64_t offset(const thing *t, int64_t i)
{
    const int64_t *n = sides(t), *stride = t->all(DNN_TENSOR_STRIDES);
    int64_t at = 0;
    for (int k = rank(t) - 1; k >= 0; i /= n[k], k--) at += i % n[k] * stride[k];
    return at;
}
/* The element of x beside element i of y. */
static int64_t beside(const thing *x, const thing *y, int64_t i)
{
    int64_t at = 0, each = 1;
    for (int k = rank(y) - 1; k >= 0; i /= sides(y)[k], each *= sides(x)[k], k--)
        at += sides(x)[k] == 1 ? 0 : i % sides(y)[k] * each;
    return at;
}
static void run_pointwise(const thing *d, values &v, const thing *y, std::vector<float> &to)
{
    const thing *x = d->of(DNN_POINTWISE_X), *b = d->of(DNN_POINTWISE_B), *t = d->of(DNN_POINTWISE_T);
    const int64_t mode = d->of(DNN_POINTWISE_OF)->one(DNN_POINTWISE_MODE);
    for (int64_t i = 0; i < count(y); i++) {
        const float p = v[x][(size_t)beside(x, y, i)], q = b ? v[b][(size_t)beside(b, y, i)] : 0;
        float r = 0;
        if (mode == DNN_INDEX) {
            int64_t rest = i;
            for (int k = 3; k > d->of(DNN_POINTWISE_OF)->one(DNN_POINTWISE_AXIS); k--) rest /= sides(y)[k];
            r = (float)(rest % sides(y)[d->of(DNN_POINTWISE_OF)->one(DNN_POINTWISE_AXIS)]);
        } else if (mode == DNN_SELECT)
            r = v[t][(size_t)beside(t, y, i)] != 0 ? p : q;
        else
            r = mode == DNN_ADD        ? p + q
                : mode == DNN_SUB      ? p - q
                : mode == DNN_MUL      ? p * q
                : mode == DNN_DIV      ? p / q
                : mode == DNN_EXP      ? expf(p)
                : mode == DNN_LOG      ? logf(p)
                : mode == DNN_SAME     ? p
                : mode == DNN_AT_LEAST ? p >= q
                                       : p > q;
        to[(size_t)i] = r;
    }
}
static void run_product(const thing *d, values &v, const thing *y, std::vector<float> &to)
{
    const thing *a = d->of(DNN_MATMUL_A), *b = d->of(DNN_MATMUL_B);
    const int64_t m = sides(y)[2], n = sides(y)[3], k = sides(a)[3], share = sides(y)[1] / sides(b)[1];
    const int64_t matrices = sides(y)[0] * sides(y)[1];
    for (int64_t i = 0; i < matrices * m; i++) {
        const float *p = v[a].data() + i * k, *q = v[b].data() + i / m / share * k * n;
        float *row = to.data() + i * n;
        for (int64_t x = 0; x < k; x++)
            for (int64_t j = 0; j < n; j++) row[j] += stored(p[x], b->one(DNN_TENSOR_TYPE)) * q[x * n + j];
    }
}
static void run_reduction(const thing *d, values &v, const thing *y, std::vector<float> &to)
{
    const thing *x = d->of(DNN_REDUCTION_X);
    const bool most = d->of(DNN_REDUCTION_OF)->one(DNN_REDUCTION_MODE) == DNN_MAXIMUM;
    for (float &r : to) r = most ? -INFINITY : 0;
    for (int64_t i = 0; i < count(x); i++) {
        int64_t rest = i, at = 0, each = 1;
        for (int k = 3; k >= 0; rest /= sides(x)[k], each *= sides(y)[k], k--)
            at += rest % sides(x)[k] / (sides(x)[k] / sides(y)[k]) * each;
        float &r = to[(size_t)at];
        r = most ? fmaxf(r, v[x][(size_t)i]) : r + v[x][(size_t)i];
    }
}
static void run_reshape(const thing *d, values &v, const thing *y, std::vector<float> &to)
{
    const thing *x = d->of(DNN_RESHAPE_X);
    std::map<int64_t, float> lies;
    for (int64_t i = 0; i < count(x); i++) lies[offset(x, i)] = v[x][(size_t)i];
    for (int64_t i = 0; i < count(y); i++) to[(size_t)i] = lies.at(offset(y, i));
}

/* (n, channel, place) of a tensor, values lying in the order of its sides. */
static float &element(const thing *t, std::vector<float> &v, int64_t n, int64_t channel, const int64_t *place)
{
    int64_t at = n * sides(t)[1] + channel;
    for (int k = 2; k < rank(t); k++) at = at * sides(t)[k] + place[rank(t) - 1 - k];
    return v[(size_t)at];
}
static void run_conv(const thing *d, values &v, std::vector<float> &to)
{
    const convolution c = conv_of(d);
    std::vector<float> &x = c.to == c.x ? to : v[c.x], &w = c.to == c.w ? to : v[c.w], &y = c.to == c.y ? to : v[c.y];
    const int64_t outputs = sides(c.y)[1], inputs = sides(c.w)[1], share = outputs / (sides(c.x)[1] / inputs);
    const int64_t places = c.out[0] * c.out[1] * c.out[2], windows = c.window[0] * c.window[1] * c.window[2];
    for (int64_t n = 0; n < sides(c.x)[0]; n++)
        for (int64_t p = 0; p < places; p++)
            for (int64_t k = 0; k < windows; k++) {
                const int64_t o[] = {p % c.out[0], p / c.out[0] % c.out[1], p / c.out[0] / c.out[1]};
                const int64_t t[] = {k % c.window[0], k / c.window[0] % c.window[1], k / c.window[0] / c.window[1]};
                int64_t in[3];
                bool met = true;
                for (int i = 0; i < 3; i++) {
                    in[i] = o[i] * c.step[i] + t[i] * c.apart[i] - c.before[i];
                    met = met && in[i] >= 0 && in[i] < c.in[i];
                }
                for (int64_t out = 0; met && out < outputs; out++)
                    for (int64_t i = 0; i < inputs; i++) {
                        float &of_x = element(c.x, x, n, out / share * inputs + i, in),
                              &of_w = element(c.w, w, out, i, t), &of_y = element(c.y, y, n, out, o);
                        if (c.to == c.y)
                            of_y += of_x * of_w;
                        else if (c.to == c.x)
                            of_x += of_y * of_w;
                        else
                            of_w += of_x * of_y;
                    }
            }
}

static int run(const thing *graph, const thing *variant)
{
    std::map<int64_t, void *> pointer;
    values v;
    for (size_t i = 0; i < variant->has.at(DNN_VARIANT_IDS).number.size(); i++)
        pointer[variant->all(DNN_VARIANT_IDS)[i]] = (void *)variant->all(DNN_VARIANT_POINTERS)[i];
    for (size_t i = 0; i < graph->has.at(DNN_GRAPH_OPERATIONS).number.size(); i++) {
        const thing *d = graph->of(DNN_GRAPH_OPERATIONS, i), *y = makes(d);
        for (const thing *x : reads(d)) {
            if (v.count(x)) continue;
            const char *from = (const char *)pointer[x->one(DNN_TENSOR_ID)];
            const bool by_value = x->one(DNN_TENSOR_BY_VALUE);
            if (!from) return refuse(BAD, "a tensor without a pointer");
            if (!by_value && (uintptr_t)from % (uintptr_t)x->one(DNN_TENSOR_ALIGNMENT))
                return refuse(BAD, "a pointer that is not aligned");
            std::vector<float> &of = v[x];
            for (int64_t k = 0; k < count(x); k++)
                of.push_back(tess_load(from, offset(x, k), type_of(x->one(DNN_TENSOR_TYPE))));
        }
        std::vector<float> to((size_t)count(y));
        if (d->kind == DNN_OPERATION_POINTWISE) run_pointwise(d, v, y, to);
        if (conv_name(d)) run_conv(d, v, to);
        if (d->kind == DNN_OPERATION_MATMUL) run_product(d, v, y, to);
        if (d->kind == DNN_OPERATION_REDUCTION) run_reduction(d, v, y, to);
        if (d->kind == DNN_OPERATION_RESHAPE) run_reshape(d, v, y, to);
        if (conv_name(d) && emulated_cudnn.wrong && (!emulated_cudnn.wrong_in || emulated_cudnn.wrong_in == d->kind))
            for (float &x : to) x *= emulated_cudnn.wrong;
        for (float &x : to) x = stored(x, y->one(DNN_TENSOR_TYPE));
        v[y] = to;
        if (y->one(DNN_TENSOR_VIRTUAL)) continue;
        char *out = (char *)pointer[y->one(DNN_TENSOR_ID)];
        if (!out) return refuse(BAD, "a tensor without a pointer");
        if ((uintptr_t)out % (uintptr_t)y->one(DNN_TENSOR_ALIGNMENT))
            return refuse(BAD, "a pointer that is not aligned");
        const float off = emulated_cudnn.lies ? 1 + 0x1p-7f * (float)(emulated_cudnn.runs % 7)
                          : emulated_cudnn.wrong && d->kind == DNN_OPERATION_MATMUL ? emulated_cudnn.wrong
                                                                                    : 1;
        for (int64_t k = 0; k < count(y); k++)
            tess_store(out, offset(y, k), type_of(y->one(DNN_TENSOR_TYPE)), to[(size_t)k] * off);
    }
    return FINE;
}

/* ---- the calls ---- */

extern "C" {
size_t cudnnGetVersion(void)
{
    return emulated_cudnn.version;
}
const char *cudnnGetErrorString(int status)
{
    return status == BAD     ? "CUDNN_STATUS_BAD_PARAM"
           : status == LACKS ? "CUDNN_STATUS_NOT_SUPPORTED"
                             : "CUDNN_STATUS_EXECUTION_FAILED";
}
int cudnnCreate(dnn_context **handle)
{
    *handle = new dnn_context{emulated_cudnn.era, NULL};
    emulated_cudnn.handles++;
    return FINE;
}
int cudnnDestroy(dnn_context *handle)
{
    delete handle;
    emulated_cudnn.handles--;
    return FINE;
}
int cudnnSetStream(dnn_context *handle, cudaStream_t stream)
{
    if (handle->era != emulated_cudnn.era) return refuse(FAILED, "a handle from before a reset");
    handle->stream = stream;
    return FINE;
}
int cudnnBackendCreateDescriptor(int kind, thing **made)
{
    *made = new thing{kind, false, {}};
    emulated_cudnn.descriptors++;
    return FINE;
}
int cudnnBackendDestroyDescriptor(thing *d)
{
    delete d;
    emulated_cudnn.descriptors--;
    return FINE;
}
int cudnnBackendSetAttribute(thing *d, int name, int type, int64_t n, const void *values)
{
    const rule *r = rule_of(d->kind, name);
    if (!r || d->ended) return refuse(BAD, r ? "an attribute too late" : "an attribute that it does not have");
    if (type != r->type || n < 1 || n > r->most) return refuse(BAD, "an attribute of another type");
    attribute a = {type, {}};
    const bool wide =
        type == DNN_IS_INT64 || type == DNN_IS_POINTER || type == DNN_IS_DESCRIPTOR || type == DNN_IS_HANDLE;
    for (int64_t i = 0; i < n; i++)
        a.number.push_back(wide                     ? ((const int64_t *)values)[i]
                           : type == DNN_IS_BOOLEAN ? ((const bool *)values)[i]
                                                    : ((const int *)values)[i]);
    for (int64_t x : a.number)
        if (type == DNN_IS_DESCRIPTOR && (!x || !((const thing *)x)->ended))
            return refuse(NOT_READY, "what is not ended");
    d->has[name] = a;
    return FINE;
}
int cudnnBackendFinalize(thing *d)
{
    if (d->ended) return refuse(BAD, "ended twice");
    const int status = check_end(d);
    if (status) return status;
    if (d->kind == DNN_PLAN) {
        const thing *graph = d->of(DNN_PLAN_CONFIG)->of(DNN_HEURISTIC_GRAPH);
        if (graph->one(DNN_GRAPH_HANDLE) != d->one(DNN_PLAN_HANDLE)) return refuse(BAD, "a plan of another handle");
        emulated_cudnn.plans++;
    }
    d->ended = true;
    return FINE;
}
int cudnnBackendGetAttribute(thing *d, int name, int type, int64_t room, int64_t *n, void *values)
{
    if (!d->ended) return refuse(NOT_READY, "an answer of what is not ended");
    if (d->kind == DNN_HEURISTIC && name == DNN_HEURISTIC_RESULTS && type == DNN_IS_DESCRIPTOR) {
        /* The first has other bits each time. */
        *n = emulated_cudnn.none ? 0 : emulated_cudnn.unsteady ? 1 : 2;
        for (int64_t i = 0; i < *n && i < room; i++) {
            thing *config = ((thing **)values)[i];
            if (config->kind != DNN_ENGINE_CONFIG) return refuse(BAD, "a result of another kind");
            config->ended = true;
            config->has[DNN_HEURISTIC_GRAPH] = d->has[DNN_HEURISTIC_GRAPH];
            config->has[DNN_CONFIG_ENGINE] = {DNN_IS_INT64, {i}};
        }
        return FINE;
    }
    if (d->kind == DNN_ENGINE_CONFIG && name == DNN_CONFIG_ENGINE && type == DNN_IS_DESCRIPTOR && room == 1) {
        thing *engine = *(thing **)values;
        engine->ended = true;
        engine->has[DNN_CONFIG_ENGINE] = d->has[DNN_CONFIG_ENGINE];
        *n = 1;
        return FINE;
    }
    if (d->kind == DNN_ENGINE && name == DNN_ENGINE_NOTES && type == DNN_IS_NOTE && room >= 2) {
        ((int *)values)[0] = 0; /* tensor cores */
        ((int *)values)[1] = DNN_OTHER_BITS_EACH_TIME;
        *n = d->one(DNN_CONFIG_ENGINE) == 0 ? 2 : 1;
        return FINE;
    }
    if (d->kind == DNN_PLAN && name == DNN_PLAN_WORKSPACE && type == DNN_IS_INT64 && room == 1) {
        *(int64_t *)values = workspace_of(d->of(DNN_PLAN_CONFIG)->of(DNN_HEURISTIC_GRAPH));
        *n = 1;
        return FINE;
    }
    return refuse(BAD, "a question that it does not know");
}
int cudnnBackendExecute(dnn_context *handle, thing *plan, thing *variant)
{
    const thing *config = plan->of(DNN_PLAN_CONFIG);
    if (handle->era != emulated_cudnn.era || handle != (dnn_context *)plan->one(DNN_PLAN_HANDLE))
        return refuse(FAILED, "a handle from before a reset, or another");
    if (!plan->ended || !variant->ended) return refuse(NOT_READY, "a run of what is not ended");
    if (emulated_cudnn.fails) return refuse(FAILED, "as it was told");
    if (config->one(DNN_CONFIG_ENGINE) == 0) return refuse(FAILED, "an engine with other bits each time");
    emulated_cudnn.runs++;
    if (emulated_cudnn.idle) return FINE;
    memset((void *)variant->one(DNN_VARIANT_WORKSPACE), 0xff, (size_t)workspace_of(config->of(DNN_HEURISTIC_GRAPH)));
    return run(config->of(DNN_HEURISTIC_GRAPH), variant);
}
}
