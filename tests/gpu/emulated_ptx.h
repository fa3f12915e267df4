/* emulated_ptx: the instructions that CUDA bodies name by their text (TESS_PTX), read from that very text. So what a
 * GPU gets is what ran here: an instruction that the PTX manual does not have in this form, operands in another order,
 * of another register class or left unused end the program, and a wrong modifier that is a right one elsewhere shows in
 * the numbers. Known are ldmatrix, mma.m16n8k16, cp.async and ex2, laid out over lanes as in the PTX ISA's chapters
 * "Matrix multiply-accumulate" and "Data movement and conversion instructions". A part of emulate.h. */
#ifndef TESS_TESTS_EMULATED_PTX_H
#define TESS_TESTS_EMULATED_PTX_H
#include <array>
#include <string>

#define TESS_PTX_LIST(...) __VA_ARGS__
#define PTX_OUT(kind, x)   emulate::written("=" kind, x)
#define PTX_BOTH(kind, x)  emulate::written("+" kind, x)
#define PTX_IN(kind, x)    emulate::read(kind, x)
#define TESS_PTX_MEMORY    TESS_PTX
#define TESS_PTX_PURE      TESS_PTX
#define TESS_PTX(text, out, in)                                                                                        \
    do {                                                                                                               \
        static const emulate::instruction what(text);                                                                  \
        what.run(emulate::operands(TESS_PTX_LIST out), emulate::operands(TESS_PTX_LIST in));                           \
    } while (0)

namespace emulate
{
/* ---- operands: what C++ hands over ---- */

struct operand {
    char access, kind; /* '=', '+' or 0; r: 32 bits, l: 64 bits, f: a float, n: a constant */
    void *to;
    uint64_t bits;
};

/* The register class that the compiler has for a type. */
template <class T> constexpr char class_of()
{
    if (std::is_same<T, float>::value) return 'f';
    return sizeof(T) == 8 ? 'l' : sizeof(T) == 4 ? 'r' : '?';
}
template <class T> static inline operand written(const char *how, T &x)
{
    if (how[1] != class_of<T>()) broken("an operand of PTX of another class than its variable");
    operand o = {how[0], how[1], &x, 0};
    memcpy(&o.bits, &x, sizeof x);
    return o;
}
template <class T> static inline operand read(const char *how, T x)
{
    if (how[0] != class_of<T>() && (how[0] != 'n' || class_of<T>() != 'r'))
        broken("an operand of PTX of another class than its value");
    operand o = {0, how[0], NULL, 0};
    memcpy(&o.bits, &x, sizeof x);
    return o;
}
template <class... P> static inline std::array<operand, sizeof...(P)> operands(P... p)
{
    return {p...};
}

/* ---- an instruction: its text, taken apart ---- */

struct argument {
    char form;                 /* % a register, # a number, { several registers, [ an address */
    std::vector<unsigned> reg; /* operands by number */
    uint64_t number;
};

struct instruction {
    std::string name; /* up to the first dot */
    std::string rest; /* all of the modifiers */
    std::vector<argument> arg;
    const char *text;
    mutable bool checked = false;

    explicit instruction(const char *of);
    template <size_t N, size_t M> void run(const std::array<operand, N> &out, const std::array<operand, M> &in) const
    {
        operand all[N + M + 1];
        for (size_t i = 0; i < N; i++) all[i] = out[i];
        for (size_t i = 0; i < M; i++) all[N + i] = in[i];
        if (!checked) check_operands(N + M);
        checked = true;
        execute(all, N + M);
    }
    void check_operands(size_t count) const;
    void execute(operand *o, size_t count) const;
    void ldmatrix(operand *o) const;
    void mma(operand *o) const;
    void cp_async(const operand *o) const;
    void ex2(operand *o) const;
    [[noreturn]] void bad(const char *why) const;
    bool is(size_t i, char form, size_t registers, const operand *o, char kind, bool to) const;
};

/* Tests see and change texts by these: what each is, before it is read. */
inline const char *(*ptx_text)(const char *) = NULL;

inline void instruction::bad(const char *why) const
{
    static char message[400];
    snprintf(message, sizeof message, "PTX: %s: %s", text, why);
    broken(message);
}

inline instruction::instruction(const char *of) : text(ptx_text ? ptx_text(of) : of)
{
    const char *p = text;
    const auto blanks = [&] {
        while (*p == ' ') p++;
    };
    const auto number = [&] {
        if (*p < '0' || *p > '9') bad("a number is missing");
        uint64_t n = 0;
        while (*p >= '0' && *p <= '9') n = n * 10 + (uint64_t)(*p++ - '0');
        return n;
    };
    const auto expect = [&](char c) {
        blanks();
        if (*p++ != c) bad("cannot be read");
        blanks();
    };
    const auto registers = [&](argument *a) {
        expect('%');
        a->reg.push_back((unsigned)number());
        blanks();
    };
    while (*p && !strchr(" .;", *p)) name += *p++;
    while (*p && !strchr(" ;", *p)) rest += *p++;
    blanks();
    while (*p && *p != ';') {
        argument a = {*p, {}, 0};
        if (*p == '{' || *p == '[') {
            const char end = *p++ == '{' ? '}' : ']';
            registers(&a);
            while (end == '}' && *p == ',') {
                p++;
                registers(&a);
            }
            expect(end);
        } else if (*p == '%') {
            registers(&a);
        } else {
            a.form = '#';
            a.number = number();
            blanks();
        }
        arg.push_back(a);
        if (*p == ';') break;
        expect(',');
        if (*p == ';') bad("cannot be read");
    }
    expect(';');
    if (*p) bad("more than one instruction");
}

/* All that were handed over are in the text, and no others. */
inline void instruction::check_operands(size_t count) const
{
    std::vector<bool> used(count);
    for (const argument &a : arg)
        for (const unsigned r : a.reg) {
            if (r >= count) bad("there is no such operand");
            used[r] = true;
        }
    for (const bool u : used)
        if (!u) bad("an operand is not used");
}

/* Argument i is so many registers of a kind that may be read, or written. */
inline bool instruction::is(size_t i, char form, size_t registers, const operand *o, char kind, bool to) const
{
    if (i >= arg.size() || arg[i].form != form || arg[i].reg.size() != registers) return false;
    for (size_t k = 0; k < registers; k++) {
        const operand &r = o[arg[i].reg[k]];
        if (r.kind != kind || (to ? !r.access : r.access == '=')) return false;
        for (size_t l = 0; to && l < k; l++)
            if (arg[i].reg[l] == arg[i].reg[k]) return false;
    }
    return true;
}

inline void instruction::execute(operand *o, size_t) const
{
    if (name == "ldmatrix") return ldmatrix(o);
    if (name == "mma") return mma(o);
    if (name == "cp") return cp_async(o);
    if (name == "ex2") return ex2(o);
    bad("there is no such instruction here");
}

/* ---- what a warp does at once: each lane's operands side by side ---- */

struct lane_of_ptx {
    const instruction *what;
    operand *o;
    int matrices;
    bool transposed, half;
};
inline void check_lanes(void *argument[32])
{
    const lane_of_ptx *first = (const lane_of_ptx *)argument[0];
    for (int i = 1; i < 32; i++)
        if (strcmp(((const lane_of_ptx *)argument[i])->what->text, first->what->text))
            broken("lanes of a warp are at different instructions");
}
inline uint32_t bits_of(const lane_of_ptx *l, size_t arg, size_t i)
{
    return (uint32_t)l->o[l->what->arg[arg].reg[i]].bits;
}

/* Lanes 8i to 8i + 7 have the addresses of matrix i's rows; lane 4g + t gets of each row g, elements 2t and 2t + 1, or
 * of its transpose. */
inline void load_all(void *argument[32])
{
    check_lanes(argument);
    for (int lane = 0; lane < 32; lane++)
        for (int i = 0; i < ((const lane_of_ptx *)argument[lane])->matrices; i++) {
            const lane_of_ptx *to = (const lane_of_ptx *)argument[lane];
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const int row = to->transposed ? lane % 4 * 2 + e : lane / 4;
                const int column = to->transposed ? lane / 4 : lane % 4 * 2 + e;
                const uint32_t address = bits_of((const lane_of_ptx *)argument[i * 8 + row], 1, 0);
                if (address % 16) broken("ldmatrix at an address that is no multiple of 16");
                pair[e] = ((const uint16_t *)shared_at(address, 16))[column];
            }
            const uint32_t both = (uint32_t)pair[0] | (uint32_t)pair[1] << 16;
            memcpy(to->o[to->what->arg[0].reg[(size_t)i]].to, &both, sizeof both);
        }
}
inline void instruction::ldmatrix(operand *o) const
{
    lane_of_ptx l = {this, o, 0, false, false};
    std::string m = rest;
    const size_t trans = m.find(".trans");
    if (trans != std::string::npos) {
        if (trans != strlen(".sync.aligned.m8n8.x4")) bad(".trans is not in its place");
        m.erase(trans, strlen(".trans"));
        l.transposed = true;
    }
    if (m == ".sync.aligned.m8n8.x1.shared.b16") l.matrices = 1;
    if (m == ".sync.aligned.m8n8.x2.shared.b16") l.matrices = 2;
    if (m == ".sync.aligned.m8n8.x4.shared.b16") l.matrices = 4;
    if (!l.matrices) bad("no such ldmatrix");
    if (arg.size() != 2 || !is(0, '{', (size_t)l.matrices, o, 'r', true) || !is(1, '[', 1, o, 'r', false))
        bad("not the operands of ldmatrix");
    at_once(load_all, &l);
}

inline float bf16_of(uint32_t pair, int which)
{
    const uint32_t bits = which ? pair & 0xffff0000u : pair << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
inline float half_of(uint32_t pair, int which, bool f16)
{
    if (!f16) return bf16_of(pair, which);
    const uint32_t h = which ? pair >> 16 : pair & 0xffff, exponent = h >> 10 & 31, digits = h & 1023;
    float f = exponent == 31 ? (digits ? NAN : INFINITY)
              : exponent     ? ldexpf((float)(1024 + digits), (int)exponent - 25)
                             : ldexpf((float)digits, -24);
    return h >> 15 ? -f : f;
}
inline int64_t multiplied = 0; /* how often a warp multiplied so far */
/* D = A B + C of (16,16), (16,8) and (16,8). */
inline void multiply_all(void *argument[32])
{
    float a[16][16], b[16][8], d[16][8];
    check_lanes(argument);
    multiplied++;
    for (int lane = 0; lane < 32; lane++) {
        const lane_of_ptx *l = (const lane_of_ptx *)argument[lane];
        const int g = lane / 4, t = lane % 4;
        for (int i = 0; i < 4; i++)
            for (int e = 0; e < 2; e++)
                a[g + i % 2 * 8][2 * t + i / 2 * 8 + e] = half_of(bits_of(l, 1, (size_t)i), e, l->half);
        for (int i = 0; i < 2; i++)
            for (int e = 0; e < 2; e++) b[2 * t + i * 8 + e][g] = half_of(bits_of(l, 2, (size_t)i), e, l->half);
    }
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++) {
            d[i][j] = 0;
            for (int k = 0; k < 16; k++) d[i][j] += a[i][k] * b[k][j];
        }
    for (int lane = 0; lane < 32; lane++) {
        const lane_of_ptx *l = (const lane_of_ptx *)argument[lane];
        float sum[4];
        for (int i = 0; i < 4; i++) {
            const uint32_t bits = bits_of(l, 3, (size_t)i);
            memcpy(&sum[i], &bits, sizeof bits);
            sum[i] += d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
        }
        for (size_t i = 0; i < 4; i++) memcpy(l->o[l->what->arg[0].reg[i]].to, &sum[i], sizeof *sum);
    }
}
inline void instruction::mma(operand *o) const
{
    lane_of_ptx l = {this, o, 0, false, false};
    if (rest == ".sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
        l.half = true;
    else if (rest != ".sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
        bad("no such mma");
    if (arg.size() != 4 || !is(0, '{', 4, o, 'f', true) || !is(1, '{', 4, o, 'r', false) ||
        !is(2, '{', 2, o, 'r', false) || !is(3, '{', 4, o, 'f', false))
        bad("not the operands of mma");
    at_once(multiply_all, &l);
}

/* ---- what a lane does alone ---- */

inline void make(const copy &c)
{
    memcpy(c.to, c.from, c.bytes);
    memset((char *)c.to + c.bytes, 0, c.all - c.bytes);
}
inline void wait_copies(size_t left)
{
    auto &groups = fibers[current].groups;
    while (groups.size() > left + 1) {
        for (const copy &c : groups.front())
            if (!early) make(c);
        groups.erase(groups.begin());
    }
}
inline void instruction::cp_async(const operand *o) const
{
    if (rest == ".async.commit_group" && arg.empty()) {
        fibers[current].groups.push_back({});
        return;
    }
    if (rest == ".async.wait_group" && arg.size() == 1 && (arg[0].form == '#' || is(0, '%', 1, o, 'n', false))) {
        wait_copies((size_t)(arg[0].form == '#' ? arg[0].number : o[arg[0].reg[0]].bits));
        return;
    }
    if (rest != ".async.cg.shared.global" && rest != ".async.ca.shared.global") bad("no such cp");
    if (arg.size() < 3 || arg.size() > 4 || !is(0, '[', 1, o, 'r', false) || !is(1, '[', 1, o, 'l', false) ||
        arg[2].form != '#' || (arg.size() == 4 && !is(3, '%', 1, o, 'r', false)))
        bad("not the operands of cp.async");
    const size_t all = arg[2].number, some = arg.size() == 4 ? (uint32_t)o[arg[3].reg[0]].bits : all;
    if (all != 16 && (rest == ".async.cg.shared.global" || (all != 4 && all != 8))) bad("no such size");
    if (some > all) bad("reads more than it writes");
    const uint64_t to = o[arg[0].reg[0]].bits & UINT32_MAX, from = o[arg[1].reg[0]].bits;
    if ((to | from) % all) broken("cp.async at an address that is no multiple of its size");
    const copy c = {shared_at(to, all), (const void *)from, some, all};
    fibers[current].groups.back().push_back(c);
    if (early) make(c);
}

inline float flushed(float x)
{
    return std::fpclassify(x) == FP_SUBNORMAL ? copysignf(0, x) : x;
}
inline void instruction::ex2(operand *o) const
{
    const bool flushes = rest == ".approx.ftz.f32";
    if (!flushes && rest != ".approx.f32") bad("no such ex2");
    if (arg.size() != 2 || !is(0, '%', 1, o, 'f', true) || !is(1, '%', 1, o, 'f', false))
        bad("not the operands of ex2");
    float x;
    memcpy(&x, &o[arg[1].reg[0]].bits, sizeof x);
    x = flushes ? flushed(exp2f(flushed(x))) : exp2f(x);
    memcpy(o[arg[0].reg[0]].to, &x, sizeof x);
}
} // namespace emulate

static inline uint32_t shared_address(const void *p)
{
    return emulate::shared_address(p);
}
#endif
