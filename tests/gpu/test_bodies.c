/* Every CUDA body against the CPU's on the calls that tests/ops/NAME.c describes, outputs poisoned: relative error in
 * norm 1e-5 in fp32, 1e-2 in bf16, 2e-4 in sums of it, and no bit where the codelet says that both are the same. Built
 * twice: with the bodies as they are, on a GPU (exit 77 without one), and with their source emulated on the CPU, where
 * what runs was captured in another step and has the arguments of this one, as in a graph (runtime/gpu/launches.c).
 * TESS_SEED draws other inputs. */
#define main check_main
#define CHECK_MAIN
#include "tests/ops/ops.h"
#undef main
#include "tests/gpu/device.h"

enum { ROOM = 64 << 20 };
static void *room;
static struct tess_kernel_fault *fault;
static uint64_t bits; /* of what the last call wrote */
#ifdef TESS_EMULATED
static int launches; /* of the last call */
extern int emulated_turn, emulated_launches;
extern tess_body emulated_body_of(const tess_codelet *cl);
extern void emulated_record(bool compares);
extern int emulated_replay(void);
#endif

static tess_body body_of(const tess_codelet *cl)
{
#ifdef TESS_EMULATED
    return emulated_body_of(cl);
#else
    return cl->cuda;
#endif
}

/* A sum in fp32 of a task in bf16 is of numbers that may have been rounded to either side. */
static double limit_of(const struct op_buffer *b, const tess_codelet *cl)
{
    if (b->type == TESS_BF16) return 1e-2;
    if (b->type == TESS_F16) return 2e-3;
    if (b->type != TESS_F32) return 1e-6;
    return cl->dtype == TESS_F32 ? 1e-5 : 2e-4;
}

static void compare(const struct op_buffer *b, const void *device, const void *cpu, const tess_codelet *cl,
                    const char *what)
{
    const size_t bytes = (size_t)b->n * op_size_of(b->type);
    const bool same = cl->either;
    void *got = tess_alloc(bytes ? bytes : 1);
    double off = 0, size = 0, limit = fmax(limit_of(b, cl), b->within);
    device_get(got, device, bytes);
    for (size_t i = 0; i < bytes; i++) bits = (bits ^ ((unsigned char *)got)[i]) * 1099511628211u;
    if (b->form) b->form(got);
    if (same && memcmp(got, cpu, bytes)) CHECK_SAY("%s: %s has other bits", what, b->name);
    for (int64_t i = 0; i < b->n && !same; i++) {
        const double x = op_value(got, i, b->type), want = op_value(cpu, i, b->type);
        if ((isnan(x) && isnan(want)) || (isinf(want) && x == want)) continue; /* neither wrote it, or both mean it */
        off += (x - want) * (x - want);
        size += want * want;
    }
    off = sqrt(off / (size > 0 ? size : 1));
    if (!(off <= limit)) CHECK_SAY("%s: %s is off by %g", what, b->name, off);
    free(got);
}

/* What the kernels say that failed is what the CPU says. */
static void compare_failures(const char *said, const char *what)
{
    if (op_failure[0]) CHECK_SAY("%s: %s", what, op_failure);
    if (fault->set) CHECK_EQ(fault->order, 7);
    if (fault->set && fault->element < 0)
        snprintf(op_failure, sizeof op_failure, "%s: the gradient is not finite", fault->name);
    else if (fault->set)
        snprintf(op_failure, sizeof op_failure, "%s: element %lld is %g", fault->name, (long long)fault->element,
                 fault->value);
    if (strcmp(said, op_failure)) CHECK_SAY("%s: \"%s\" failed, expected \"%s\"", what, op_failure, said);
}

#ifdef TESS_EMULATED
/* The body's launches as a graph that was captured in another step, with another seed, rate and scale. */
static void replay(tess_body body, const tess_work *w, const char *what)
{
    tess_env other = *w->env, before;
    tess_work captured = *w;
    captured.env = &other;
    other.seed += 5, other.step += 3, other.updates += 2, other.first += 100;
    other.lr = other.lr * 3 + 0.5, other.unscale *= 4, other.clip *= 0.25, other.bias1 *= 0.5, other.bias2 *= 0.5;
    for (int k = 0; k < TESS_MOST_LOSSES; k++) other.loss_scale[k] = other.loss_scale[k] * 2 + 1;
    if (other.before) before = *other.before, before.lr += 1, other.before = &before;
    emulated_record(false);
    body(&captured);
    emulated_record(true);
    body(w);
    if (emulated_replay() < 0) CHECK_SAY("%s: it launches other kernels in another step", what);
}
#endif

void op_run(tess_codelet *cl, const void *arg)
{
    tess_view cpu[OP_BUFFERS], gpu[OP_BUFFERS];
    char what[96], said[sizeof op_failure];
    const tess_body cuda = body_of(cl);
    snprintf(what, sizeof what, "%s %s", cl->name, tess_dtype_name(cl->dtype));
    if (!cuda) {
        if (!cl->cpu_alone) CHECK_SAY("%s: has no CUDA body", what);
        op_forget();
        return;
    }
    for (int i = 0; i < op_buffers; i++) {
        const size_t bytes = (size_t)op_buffer[i].n * op_size_of(op_buffer[i].type);
        cpu[i] = (tess_view){op_buffer[i].data, bytes};
        gpu[i] = (tess_view){device_new(bytes), bytes};
        device_put(gpu[i].ptr, op_buffer[i].data, bytes);
    }
    tess_task task = {.cl = cl, .arg = arg, .order = 7};
    tess_work w = {.buf = cpu, .nbuf = (unsigned)op_buffers, .arg = arg, .env = &op_env, .task = &task};
    op_failure[0] = 0;
    cl->cpu(&w);
    memcpy(said, op_failure, sizeof said);
    op_failure[0] = 0;
    *fault = (struct tess_kernel_fault){0};
    w.buf = gpu;
    w.room = room;
    w.room_bytes = op_room ? (32 << 20) + op_room : ROOM;
    w.fault = fault;
#ifdef TESS_EMULATED
    emulated_turn++; /* the next device */
    const int before = emulated_launches, launches_before = launches;
#endif
#ifdef TESS_EMULATED
    replay(cuda, &w, what); /* which has the host's side twice */
    launches = (emulated_launches - before) / 2;
    if (op_saves >= 0) CHECK_EQ(launches, launches_before - op_saves);
    if (cl == &tess_bundle_either[TESS_F32]) CHECK(launches < (int)((const tess_bundle_arg *)arg)->parts / 3);
#else
    cuda(&w);
#endif
    const char *error = device_error();
    if (error) {
        printf("%s: %s\n", what, error);
        exit(1); /* the device is of no use after that */
    }
    compare_failures(said, what);
    const uint64_t bits_before = bits;
    bits = 14695981039346656037u;
    for (int i = 0; i < op_buffers; i++) {
        if (op_buffer[i].form) op_buffer[i].form(cpu[i].ptr);
        if (op_buffer[i].kind == OP_OUT) compare(&op_buffer[i], gpu[i].ptr, cpu[i].ptr, cl, what);
        device_free(gpu[i].ptr);
    }
    if (op_saves >= 0 && bits != bits_before) CHECK_SAY("%s: other bits than the call before", what);
    op_forget();
}

#include "tests/ops/cases.h"

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "--list")) { /* for who runs them one by one */
        for (const struct check_case *c = check_first; c; c = c->next) puts(c->name);
        return 0;
    }
    if (!device_is_there()) {
        printf("skipped: no GPU\n0 passed, 0 failed, 1 skipped\n");
        return 77;
    }
    const char *seed = getenv("TESS_SEED");
    if (seed) op_dice = strtoull(seed, NULL, 10) * 2 + 1;
    printf("%s, inputs of TESS_SEED=%s\n", device_name(), seed ? seed : "none");
    room = device_new(ROOM);
    fault = device_host(sizeof *fault);
    op_expects = false; /* the CPU's is what is compared with */
    int status = check_main(argc, argv);
    device_free(room);
    return status;
}
