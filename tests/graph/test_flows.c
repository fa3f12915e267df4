/* Random lists of tasks under random caps, through the list and both flows as they are (runtime/list/list.c,
 * runtime/flow/), on a model of StarPU: tasks and copies of a tile are in order with each other, and else happen at any
 * time, as late as the model likes. Under whatever marks, rooms, homes and looks of the main thread
 *
 *   every list ends: whatever was delayed, something can go on;
 *   no place on the GPU is used by two, and tiles in RAM are within the room for which a plan marked them;
 *   each task finds the contents that were written last, in the place where StarPU has to know them;
 *   steps move the bytes that their plan stated;
 *   who gets which place on the GPU does not depend on when anything happens.
 *
 * The argument of the program may be the number of a list, which then runs alone. */
#define CHECK_MAIN
#define main check_cases
#include "tests/check.h"
#undef main
#include "graph/lower/lower.h"
#include "graph/plan/plan.h"
#include "runtime/flow/flow.h"
#include "runtime/flow/pool_impl.h"
#include "runtime/gpu/gpu.h"
#include "runtime/messages/messages.h"
#include "runtime/tiles/tiles.h"
#include <setjmp.h>
#include <stdarg.h>

enum { LISTS = 10000, STEPS = 4, TILES = 16, TASKS = 16, USES = 4, GRAIN = 256 << 10, RAM = 0, GPU = 1, DISK = 2 };
/* Of progress.h, which has a function by the name of a type of plan.h. */
void tess_progress_lock(void);
void tess_progress_unlock(void);
void tess_task_ended(uint64_t *of);
#define GPU_AT ((uintptr_t)1 << 32) /* where its memory begins */

/* ---- chance: that of the list, and that of when things happen ---- */

static uint32_t of_list, of_time;
static uint32_t chance(uint32_t *of, uint32_t below)
{
    *of = *of * 1664525 + 1013904223;
    return (uint32_t)((uint64_t)(*of >> 8) * below >> 24);
}
static uint32_t any(uint32_t below)
{
    return chance(&of_list, below);
}

/* ---- what is wrong ends the list ---- */

static jmp_buf end_of_list;
static char text[300];

__attribute__((format(printf, 1, 2))) static void fails(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    longjmp(end_of_list, 1);
}

/* Faults to plant. */
typedef enum { NONE, EARLY_REUSE, NO_WAIT, PAST_WRITERS, LOST, KEPT, FAULTS } fault;
static fault planted;

/* ---- the model of StarPU ---- */

/* A tile as StarPU has it: on which nodes its contents are valid, and which they are. */
typedef struct lot {
    tess_tile *tile;
    bool valid[3], in_ram;     /* in_ram: RAM was allocated */
    unsigned version[3], last; /* last: as of what was submitted last; 0: there are no contents */
    struct starpu_vector_interface place;
    struct claim *first, **end;
    int active, active_mode, on_gpu;
} lot;
typedef struct claim {
    struct job *job;
    lot *lot;
    int mode;
    unsigned finds, leaves;
    struct claim *next;
} claim;
typedef struct job {
    int node, blocked;
    unsigned claims;
    bool begun, acquires, invalidates;
    void (*then)(void *);
    void *arg;
    const char *name;
    claim claim[USES + 1];
} job;

/* Steps whose bytes were compared; planned lists that had to insist; of these, steps that moved what playing the list
 * had said, and others before them. */
static int exact_gpu, exact_ram, insisted, played[2];
static struct {
    lot lot[TILES];
    int lots;
    job *ready[1 << 14];
    int nready, pending;
    unsigned versions;
    uint32_t refuses; /* this one of the tasks that are submitted; 0: none */
    int manner;       /* of choosing what happens next */
    bool exact;       /* what may run on either side runs on the GPU */
    bool loads;       /* the main thread itself acquires */
    bool messages_on_gpu, insisted, with_ram;
    uint64_t room, ram_room, moved[3][3], decisions;
} model;

static lot *lot_of(starpu_data_handle_t handle)
{
    return (lot *)handle;
}

static uint64_t at_of(const lot *l)
{
    return l->place.ptr - GPU_AT;
}

static void count_ram(void)
{
    uint64_t sum = 0;
    for (int i = 0; i < model.lots; i++)
        if (model.lot[i].in_ram && tess_tile_flows(model.lot[i].tile)) sum += model.lot[i].tile->bytes;
    if (model.ram_room && sum > model.ram_room)
        fails("%llu bytes of tiles in RAM, of %llu", (unsigned long long)sum, (unsigned long long)model.ram_room);
}

/* Memory for the contents on a node. */
static void allocate(lot *l, int node)
{
    if (node == RAM && !l->in_ram) {
        l->in_ram = true;
        count_ram();
    }
    if (node != GPU || !tess_tile_has_place(l->tile)) return;
    if (!l->place.ptr) fails("%s has no place on the GPU", l->tile->label);
    for (int i = 0; i < model.lots; i++) {
        const lot *o = &model.lot[i];
        if (o == l || !o->place.ptr || !(o->valid[GPU] || o->on_gpu)) continue;
        if (at_of(o) < at_of(l) + l->tile->bytes && at_of(l) < at_of(o) + o->tile->bytes)
            fails("%s comes to the place where %s is", l->tile->label, o->tile->label);
    }
}

static void copy(lot *l, int from, int to)
{
    allocate(l, to);
    l->version[to] = l->version[from];
    l->valid[to] = true;
    model.moved[from][to] += l->tile->bytes;
}

static void fetch(lot *l, int node)
{
    if (l->valid[node]) return;
    if (!l->valid[RAM] && l->valid[GPU])
        copy(l, GPU, RAM);
    else if (!l->valid[RAM] && l->valid[DISK])
        copy(l, DISK, RAM);
    if (!l->valid[RAM]) fails("%s is nowhere", l->tile->label);
    if (node != RAM) copy(l, RAM, node);
}

static void grant(lot *l)
{
    while (l->first && (!l->active || (l->active_mode == STARPU_R && l->first->mode == STARPU_R))) {
        claim *a = l->first;
        l->first = a->next;
        if (!l->first) l->end = &l->first;
        l->active++;
        l->active_mode = a->mode;
        if (--a->job->blocked == 0) model.ready[model.nready++] = a->job;
    }
}

static void release(lot *l)
{
    l->active--;
    grant(l);
}

static void begin(job *j)
{
    for (unsigned i = 0; i < j->claims; i++) {
        claim *a = &j->claim[i];
        lot *l = a->lot;
        if (j->invalidates) l->valid[RAM] = l->valid[GPU] = l->valid[DISK] = l->in_ram = false;
        if (j->invalidates || j->node < 0) continue;
        if (a->mode & STARPU_R) fetch(l, j->node);
        if ((a->mode & STARPU_R) && l->version[j->node] != a->finds)
            fails("%s finds contents %u of %s, not %u", j->name, l->version[j->node], l->tile->label, a->finds);
        allocate(l, j->node);
        l->on_gpu += j->node == GPU;
    }
    j->begun = true;
}

static void end(job *j)
{
    lot *over = j->acquires && j->node < 0 && !j->claim[0].finds ? j->claim[0].lot : NULL; /* what lies there still */
    if (over) over->valid[RAM] = over->valid[GPU] = over->valid[DISK] = false;
    for (unsigned i = 0; i < j->claims && !j->invalidates && j->node >= 0; i++) {
        claim *a = &j->claim[i];
        lot *l = a->lot;
        l->on_gpu -= j->node == GPU;
        if (!(a->mode & STARPU_W)) continue;
        l->valid[RAM] = l->valid[GPU] = l->valid[DISK] = false;
        l->valid[j->node] = true;
        if (a->leaves) l->version[j->node] = a->leaves;
        if (l->version[j->node] != (a->leaves ? a->leaves : a->finds))
            fails("%s leaves contents %u of %s, not %u", j->name, l->version[j->node], l->tile->label, a->finds);
    }
    model.pending--;
    if (j->then) j->then(j->arg); /* which releases what it acquired */
    for (unsigned i = 0; i < j->claims && !(j->acquires && j->then); i++) release(j->claim[i].lot);
    if (!j->acquires && !j->invalidates) tess_task_ended(NULL);
    free(j);
}

/* Something happens; false: nothing can. */
static bool step(void)
{
    if (!model.nready) return false;
    int best = (int)chance(&of_time, (uint32_t)model.nready);
    for (int i = 0; i < model.nready && model.manner > 1; i++) {
        const job *a = model.ready[i], *b = model.ready[best];
        const bool first = model.manner == 2   ? a->acquires < b->acquires
                           : model.manner == 3 ? a->acquires > b->acquires
                                               : i > best;
        if (first) best = i;
    }
    job *j = model.ready[best];
    if (!j->begun) {
        begin(j);
        return true;
    }
    model.ready[best] = model.ready[--model.nready];
    end(j);
    return true;
}

static void go_on(void)
{
    if (model.manner == 1) return; /* nothing happens but what the main thread waits for */
    for (uint32_t n = chance(&of_time, 6); n > 0 && step();) n--;
}

static void add(job *j, lot *l, int mode, unsigned leaves)
{
    claim *a = &j->claim[j->claims++];
    *a = (claim){.job = j, .lot = l, .mode = mode, .finds = l->last, .leaves = leaves};
    if (leaves) l->last = leaves;
    j->blocked++;
    *l->end = a;
    l->end = &a->next;
}

static job *new_job(const char *name, int node)
{
    job *j = tess_alloc(sizeof *j);
    *j = (job){.node = node, .name = name};
    model.pending++;
    return j;
}

static void submit(job *j)
{
    lot *of[USES + 1];
    const unsigned n = j->claims;
    for (unsigned i = 0; i < n; i++) of[i] = j->claim[i].lot;
    for (unsigned i = 0; i < n; i++) grant(of[i]);
}

/* ---- what the rooms below ask of it ---- */

static void task_of(const tess_task *t, int node)
{
    job *j = new_job(t->cl->name, node);
    for (unsigned i = 0; i < t->nuse; i++) {
        const int mode = t->use[i].mode;
        lot *l = lot_of(tess_tile_handle(t->use[i].tile));
        if ((mode & TESS_R) && !l->last) fails("%s reads %s, which has no contents", t->cl->name, l->tile->label);
        add(j, l, (mode & TESS_R ? STARPU_R : 0) | (mode & TESS_W ? STARPU_W : 0),
            mode & TESS_W ? ++model.versions : 0);
    }
    for (unsigned i = 0; i < t->nuse; i++)
        if (t->use[i].mode & TESS_LAST) j->claim[i].lot->last = 0;
    submit(j);
    go_on();
}

tess_status __wrap_tess_task_submit(const tess_task *t, uint32_t where)
{
    if (model.refuses && --model.refuses == 0) return tess_error(TESS_FAILED, t->cl->name, "refused");
    const bool either = t->cl->either && !where && tess_task_can_gpu(t);
    const bool gpu = where ? where == STARPU_CUDA : model.room && tess_task_on_gpu(t);
    task_of(t, gpu && !(either && !model.exact && chance(&of_time, 2)) ? GPU : RAM);
    return TESS_OK;
}

void __wrap_tess_message_submit(const tess_task *t)
{
    task_of(t, model.messages_on_gpu ? GPU : RAM);
}

bool __wrap_tess_messages_on_gpu(void)
{
    return model.messages_on_gpu;
}

void __wrap_starpu_vector_data_register(starpu_data_handle_t *handle, int home, uintptr_t ptr, uint32_t nx, size_t size)
{
    (void)home, (void)ptr, (void)nx, (void)size;
    lot *l = &model.lot[model.lots++];
    *l = (lot){.tile = (tess_tile *)((char *)handle - offsetof(tess_tile, handle)), .end = &l->first};
    *handle = (starpu_data_handle_t)l;
}

/* The contents that it leaves are the same, unless it is the main thread that writes. */
int __wrap_starpu_data_acquire_on_node_cb(starpu_data_handle_t handle, int node, enum starpu_data_access_mode mode,
                                          void (*then)(void *), void *arg)
{
    lot *l = lot_of(handle);
    const bool writes = model.loads && node == RAM && (mode & STARPU_W);
    job *j = new_job("an acquisition", node);
    j->acquires = true;
    add(j, l, (int)mode, writes ? ++model.versions : 0);
    const bool early = planted == EARLY_REUSE && !writes && node == RAM && mode == STARPU_RW;
    if (!early && !(planted == LOST && mode == STARPU_W && node == STARPU_ACQUIRE_NO_NODE)) {
        j->then = then;
        j->arg = arg;
    }
    submit(j);
    if (model.nready && model.ready[model.nready - 1] == j && !chance(&of_time, 3)) { /* at once */
        model.nready--;
        begin(j);
        end(j);
    }
    if (early) {
        l->active++; /* which it will release */
        then(arg);
    }
    return 0;
}

void __wrap_starpu_data_release_on_node(starpu_data_handle_t handle, int node)
{
    (void)node;
    release(lot_of(handle));
}

void __wrap_starpu_data_invalidate_submit(starpu_data_handle_t handle)
{
    job *j = new_job("an invalidation", -1);
    j->invalidates = planted != KEPT;
    add(j, lot_of(handle), STARPU_W, 0);
    submit(j);
}

static void learns_place(lot *l)
{
    if (l->valid[GPU] || l->on_gpu) fails("%s gets a place while it has one", l->tile->label);
    if (l->tile->stay[TESS_TIER_GPU].at + l->tile->bytes > model.room) fails("%s ends behind the room", l->tile->label);
}

int __wrap_starpu_vector_ptr_register(starpu_data_handle_t handle, unsigned node, uintptr_t ptr, uintptr_t dev_handle,
                                      size_t offset)
{
    (void)node, (void)dev_handle, (void)offset;
    learns_place(lot_of(handle));
    lot_of(handle)->place.ptr = ptr;
    return 0;
}

void *__wrap_starpu_data_get_interface_on_node(starpu_data_handle_t handle, unsigned node)
{
    (void)node;
    learns_place(lot_of(handle));
    return &lot_of(handle)->place;
}

static void until(bool (*so)(const void *), const void *of, const char *who, const char *what, const char *why)
{
    while (!so(of))
        if (!step()) fails("%s waits for %s for ever (%s)", who, what, why);
}

void __wrap_tess_progress_until(bool (*so)(const void *), const void *of, const char *who, const char *what,
                                const char *why)
{
    if (planted == NO_WAIT) return;
    tess_progress_unlock();
    until(so, of, who, what, why);
    tess_progress_lock();
}

static bool is_set(const void *flag)
{
    return *(const bool *)flag;
}

void __wrap_tess_progress_until_set(const bool *flag, const char *what)
{
    until(is_set, flag, "the main thread", what, "a tile");
}

bool __real_tess_pool_take(tess_pool *p, uint64_t bytes, bool lasts, void *owner, uint64_t *at);
bool __wrap_tess_pool_take(tess_pool *p, uint64_t bytes, bool lasts, void *owner, uint64_t *at)
{
    const bool taken = __real_tess_pool_take(p, bytes, lasts, owner, at);
    model.decisions = (model.decisions ^ (taken ? *at + bytes : 1)) * 1099511628211u;
    return taken;
}

size_t __real_tess_pool_in_the_way(const tess_pool *p, uint64_t bytes, bool (*stays)(const void *, const void *),
                                   const void *arg, void ***owner);
size_t __wrap_tess_pool_in_the_way(const tess_pool *p, uint64_t bytes, bool (*stays)(const void *, const void *),
                                   const void *arg, void ***owner)
{
    model.insisted = true;
    return __real_tess_pool_in_the_way(p, bytes, stays, arg, owner);
}

int __wrap_tess_gpu_workers(void)
{
    return model.room > 0;
}
unsigned __wrap_tess_gpu_first_node(void)
{
    return GPU;
}
uintptr_t __wrap_tess_gpu_take(uint64_t bytes)
{
    (void)bytes;
    return GPU_AT;
}
tess_status __wrap_tess_gpu_take_chunks(void)
{
    return TESS_OK;
}
tess_body __wrap_tess_gpu_body(const tess_codelet *cl)
{
    for (int i = 0; i < model.lots && planted == PAST_WRITERS; i++) /* as tasks are looked at */
        model.lot[i].tile->stay[TESS_TIER_GPU].writers = 0;
    return cl->cuda;
}
unsigned __wrap_tess_session(void)
{
    return 1;
}

/* What the model has no use for: nothing, whatever it is called with. */
#define IGNORES(name)                                                                                                  \
    long __wrap_##name(void)                                                                                           \
    {                                                                                                                  \
        return 0;                                                                                                      \
    }
IGNORES(starpu_data_set_name)
IGNORES(starpu_data_unregister_no_coherency)
IGNORES(starpu_vector_get_local_ptr)
IGNORES(starpu_iteration_push)
IGNORES(starpu_iteration_pop)
IGNORES(tess_disk_place_new)
IGNORES(tess_disk_place_asked)
IGNORES(tess_gpu_give)
IGNORES(tess_tasks_running)

/* ---- lists ---- */

static void nothing(const tess_work *w)
{
    (void)w;
}
static tess_codelet here = {.name = "here", .cpu = nothing, .cuda = nothing};
static tess_codelet elsewhere = {.name = "elsewhere", .cpu = nothing};
static tess_codelet either = {.name = "either", .cpu = nothing, .cuda = nothing, .either = true};
static tess_codelet update = {.name = "update", .cpu = nothing, .cuda = nothing, .either = true};

typedef struct list {
    tess_program *p;
    int weights, moments, tiles;
    tess_tile *tile[TILES]; /* weights, moments, what is read alone, then activations */
    bool gpu_planned, ram_planned, looks, played;
    uint64_t gpu_room, ram_room, to, back;
    tess_gpu_placement gpu;
    tess_placement ram;
} list;

static void add_tile(list *l, tess_role role, const char *label)
{
    l->tile[l->tiles++] = tess_program_tile(l->p, (1 + any(6)) * GRAIN - (any(4) ? 0 : 1000), role, label);
}

static void add_task(list *l, bool *lives)
{
    static const tess_message_arg no_spans;
    static tess_codelet *const kinds[] = {&here, &here, &here, &here, &here, &here, &elsewhere, &either, &update};
    static const int modes[] = {TESS_R, TESS_R, TESS_RW, TESS_W};
    tess_codelet *cl = any(10) ? kinds[any(9)] : &tess_message;
    tess_use use[USES];
    unsigned n = 0;
    const int activations = l->weights + l->moments + 1;
    for (unsigned most = 1 + any(3), tries = 0; n < most && tries++ < 20;) {
        int t = (int)any((uint32_t)(l->tiles - l->moments));
        if (t >= l->weights) t += l->moments;
        bool again = false, reads = true;
        for (unsigned i = 0; i < n; i++) {
            again |= use[i].tile == l->tile[t];
            reads &= use[i].tile != l->tile[t] || use[i].mode == TESS_R;
        }
        if (again && (!reads || any(8))) continue;
        const int mode = t < activations ? (t < l->weights ? modes[any(4)] : TESS_R)
                         : lives[t]      ? modes[any(3)]
                                         : TESS_W;
        lives[t] = true;
        use[n++] = (tess_use){l->tile[t], again ? TESS_R : mode};
    }
    if (cl == &update && l->moments)
        use[n++] = (tess_use){l->tile[l->weights + (int)any((uint32_t)l->moments)], TESS_RW};
    tess_program_add(l->p, cl, cl == &tess_message ? &no_spans : NULL, use, n, false);
}

/* The room that the largest task needs, and that all tiles do. */
static uint64_t needs(const list *l, bool (*flows)(const tess_tile *), uint64_t *all)
{
    uint64_t most = GRAIN;
    *all = 0;
    for (int t = 0; t < l->tiles; t++) *all += flows(l->tile[t]) ? tess_tile_bytes(l->tile[t]) + 1000 : 0;
    for (size_t k = 0; k < l->p->tasks; k++) {
        uint64_t sum = 0;
        for (int t = 0; t < l->tiles; t++) {
            bool used = false;
            for (unsigned i = 0; i < l->p->task[k].nuse; i++) used |= l->p->use[k][i].tile == l->tile[t];
            if (used && flows(l->tile[t])) sum += (tess_tile_bytes(l->tile[t]) + 511) / 512 * 512;
        }
        if (sum > most) most = sum;
    }
    return most;
}

/* Homes and marks that no plan would make. */
static void mark_at_random(list *l, bool gpu, bool ram)
{
    const uint32_t often = 2 + any(5);
    for (int t = 0; t < l->tiles; t++) {
        if (gpu && tess_tile_role(l->tile[t]) != TESS_ROLE_INPUT && any(4) == 0)
            tess_tile_set_home(l->tile[t], TESS_TIER_GPU);
        else if (ram && tess_tile_home(l->tile[t]) != TESS_TIER_GPU && any(2))
            tess_tile_set_home(l->tile[t], TESS_TIER_DISK);
    }
    for (size_t k = 0; k < l->p->tasks; k++)
        for (unsigned i = 0; i < l->p->task[k].nuse; i++) {
            int *mode = &l->p->use[k][i].mode;
            if (gpu && any(often) == 0) *mode |= TESS_LEAVES_GPU;
            if (ram && any(often)) *mode &= ~TESS_LEAVES_RAM;
        }
}

static void mark_by_plan(list *l, uint64_t memory)
{
    tess_gpu_conf conf = {.memory = memory, .all = true, .messages = model.messages_on_gpu, .states = any(2)};
    tess_uses *u = tess_uses_list(l->p);
    tess_marks *m = tess_marks_new(u);
    tess_status status = tess_plan_gpu(u, &conf, 0, m, &l->gpu);
    if (status != TESS_OK) { /* the least, then */
        conf.memory = l->gpu.needed;
        status = tess_plan_gpu(u, &conf, 0, m, &l->gpu);
    }
    if (status == TESS_OK) tess_marks_apply(l->p, u, m, TESS_TIER_GPU);
    tess_marks_free(m);
    tess_uses_free(u);
    l->gpu_planned = status == TESS_OK;
    l->gpu_room = l->gpu.room;
}

static void mark_ram_by_plan(list *l, uint64_t bytes)
{
    tess_place_conf conf = {.ram = bytes, .workers = 1};
    tess_uses *u = tess_uses_list(l->p);
    tess_marks *m = tess_marks_new(u);
    const uint64_t fixed = tess_program_fixed(l->p, 1);
    tess_status status = tess_plan_ram(u, &conf, fixed, true, m, &l->ram);
    if (status != TESS_OK) {
        conf.ram = l->ram.needed;
        status = tess_plan_ram(u, &conf, fixed, true, m, &l->ram);
    }
    if (status == TESS_OK) tess_marks_apply(l->p, u, m, TESS_TIER_CPU);
    tess_marks_free(m);
    tess_uses_free(u);
    l->ram_planned = status == TESS_OK;
    l->ram_room = l->ram.room;
}

static list make_list(uint32_t number)
{
    list l = {.p = tess_program_new()};
    bool lives[TILES] = {0};
    uint64_t all;
    of_list = number * 2654435761u + 12345;
    any(2);
    for (l.weights = 1 + (int)any(4); l.tiles < l.weights;) add_tile(&l, TESS_ROLE_WEIGHT, "a weight");
    for (l.moments = (int)any(3); l.tiles < l.weights + l.moments;) add_tile(&l, TESS_ROLE_MOMENT, "a moment");
    add_tile(&l, TESS_ROLE_INPUT, "an input");
    for (uint32_t n = 1 + any(7); n > 0; n--) add_tile(&l, TESS_ROLE_ACTIVATION, "an activation");
    for (uint32_t n = 3 + any(TASKS - 3); n > 0; n--) add_task(&l, lives);
    tess_program_finish(l.p, false);
    const bool gpu = any(8), by_plan = any(3), with_ram = any(3) == 0 || !gpu;
    model.messages_on_gpu = any(2) && gpu;
    uint64_t least = needs(&l, tess_tile_has_place, &all);
    const uint64_t room = least + (any(3) ? any((uint32_t)(all - least + GRAIN)) : 0);
    if (gpu && by_plan) mark_by_plan(&l, (33 << 20) + room);
    if (!by_plan) mark_at_random(&l, gpu, with_ram);
    least = needs(&l, tess_tile_has_place, &all);
    if (gpu && !l.gpu_planned) l.gpu_room = least + any(4) * any((uint32_t)all / 2);
    least = needs(&l, tess_tile_flows, &all);
    const uint64_t ram = least + (any(3) && all > least ? any((uint32_t)(all - least + GRAIN)) : 0);
    if (with_ram && by_plan) mark_ram_by_plan(&l, ram);
    if (with_ram && !l.ram_planned) l.ram_room = ram;
    l.looks = !by_plan && any(2);
    return l;
}

/* ---- running them ---- */

static void map(tess_tile *t, int mode)
{
    void *data;
    model.loads = true;
    if (tess_tile_map(t, mode, &data) != TESS_OK) fails("%s", tess_error_text());
    model.loads = false;
}

static void look_at_tiles(const list *l)
{
    tess_tile *t[2] = {l->tile[any((uint32_t)l->tiles)], l->tile[any((uint32_t)l->tiles)]};
    const int modes[] = {any(2) ? TESS_R : TESS_RW, any(2) ? TESS_R : TESS_RW}, n = 1 + (int)any(2);
    for (int i = 0; i < n; i++)
        if (t[i]->filled && !t[i]->maps) map(t[i], modes[i]);
    for (int i = 0; i < n; i++) tess_tile_unmap(t[i]);
}

static void all_ends(void)
{
    while (step()) continue;
    if (model.pending) fails("%d tasks and copies wait for each other", model.pending);
}

static void stated(const char *what, uint64_t moved, uint64_t by_plan)
{
    if (moved != by_plan)
        fails("%llu bytes are %s, the plan states %llu", (unsigned long long)moved, what, (unsigned long long)by_plan);
}

static bool is_used(const list *l, const tess_tile *t)
{
    for (size_t k = 0; k < l->p->tasks; k++)
        for (unsigned i = 0; i < l->p->task[k].nuse; i++)
            if (l->p->use[k][i].tile == t) return true;
    return false;
}

static void run_steps(const list *l)
{
    for (int t = 0; t <= l->weights + l->moments; t++) {
        if (!is_used(l, l->tile[t])) continue;
        map(l->tile[t], TESS_W);
        tess_tile_unmap(l->tile[t]);
    }
    for (int n = 0; n < STEPS; n++) {
        const size_t cut = any(4) || l->gpu_planned || l->ram_planned ? l->p->tasks : any((uint32_t)l->p->tasks);
        memset(model.moved, 0, sizeof model.moved);
        if ((tess_submit_all(l->p->task, cut) != TESS_OK ||
             tess_submit_all(l->p->task + cut, l->p->tasks - cut) != TESS_OK) &&
            !strstr(tess_error_text(), "refused"))
            fails("%s", tess_error_text());
        if (any(2) || model.exact) all_ends();
        if (l->looks) look_at_tiles(l);
        if (!model.exact || n < 2) continue;
        if (l->gpu_planned && !l->ram_room && !model.insisted) {
            stated("copied to the GPU", model.moved[RAM][GPU], l->gpu.read);
            stated("copied from the GPU", model.moved[GPU][RAM], l->gpu.written);
            exact_gpu++;
        }
        if (l->played && !model.insisted) {
            stated("copied to the GPU by a list that was played", model.moved[RAM][GPU], l->to);
            stated("copied from the GPU by a list that was played", model.moved[GPU][RAM], l->back);
        } else if (l->played && n == 2) { /* where tiles lie then depends on how they were loaded */
            played[model.moved[RAM][GPU] == l->to && model.moved[GPU][RAM] == l->back]++;
        }
        if (l->ram_planned) {
            stated("read from disk", model.moved[DISK][RAM], l->ram.read);
            stated("written to disk", model.moved[RAM][DISK], l->ram.written);
            exact_ram++;
        }
    }
    all_ends();
    for (int t = 0; t < l->tiles; t++)
        if (l->tile[t]->filled) {
            map(l->tile[t], TESS_R);
            tess_tile_unmap(l->tile[t]);
        }
    all_ends();
}

static void print(const list *l)
{
    static const char *const bits[] = {"R", "W", "?", " last", " leaves-ram", " leaves-gpu"};
    printf("GPU: %llu, %s%s; RAM: %llu, %s; %s\n", (unsigned long long)l->gpu_room,
           l->gpu_planned ? "planned" : "at random", model.messages_on_gpu ? ", messages" : "",
           (unsigned long long)l->ram_room, l->ram_planned ? "planned" : "at random", l->looks ? "looks" : "no looks");
    for (int t = 0; t < l->tiles; t++)
        printf("  %d: %s of %zu, home %s\n", t, l->tile[t]->label, l->tile[t]->bytes, tess_tier_name(l->tile[t]->home));
    for (size_t k = 0; k < l->p->tasks; k++) {
        printf("  task %zu, %s:", k, l->p->task[k].cl->name);
        for (unsigned i = 0; i < l->p->task[k].nuse; i++) {
            int t = 0;
            while (l->tile[t] != l->p->use[k][i].tile) t++;
            printf(" %d ", t);
            for (int b = 0; b < 6; b++)
                if (l->p->use[k][i].mode >> b & 1) printf("%s", bits[b]);
            printf(",");
        }
        printf("\n");
    }
}

/* Runs a list, at one of many times; what is wrong with it, or NULL. */
static const char *run(uint32_t number, uint32_t time, bool prints)
{
    memset(&model, 0, sizeof model);
    list l = make_list(number);
    if (prints) print(&l);
    of_time = number + time * 7919;
    model.manner = (int)chance(&of_time, 5);
    model.exact = (l.gpu_planned || l.ram_planned) && any(4);
    model.refuses = l.looks && !any(3) ? 1 + any(2 * TASKS) : 0;
    model.ram_room = l.ram_planned ? l.ram_room : 0;
    model.room = l.gpu_room;
    model.with_ram = l.ram_room > 0;
    text[0] = 0;
    tess_disk_node = DISK;
    tess_ram_flow_start(l.ram_room, tess_gpu_flow_leaves_ram);
    if (setjmp(end_of_list) == 0) {
        l.played =
            l.gpu_planned && !l.ram_room && tess_gpu_flow_play(l.p->task, l.p->tasks, l.gpu_room, &l.to, &l.back);
        if (tess_gpu_flow_start(l.gpu_room) != TESS_OK) fails("%s", tess_error_text());
        run_steps(&l);
    }
    insisted += l.gpu_planned && model.insisted;
    tess_program_free(l.p);
    tess_gpu_flow_stop();
    tess_ram_flow_stop();
    return text[0] ? text : NULL;
}

TEST(no_circles_caps_contents_bytes)
{
    for (uint32_t k = 0; k < LISTS && check_failures < 12; k++) {
        const char *what = run(k, 0, false);
        if (what) CHECK_SAY("list %u: %s", k, what);
    }
    printf("%d steps on the GPU and %d on disk moved what their plans state; %d planned lists had to insist\n",
           exact_gpu, exact_ram, insisted);
    printf("playing a list that had to insist said what its third step moves for %d, and not for %d\n", played[1],
           played[0]);
    CHECK(played[1] > 4 * played[0]);
    CHECK(exact_gpu > LISTS / 10 && exact_ram > LISTS / 10);
}

/* With room in RAM that does not end. */
TEST(places_do_not_depend_on_time)
{
    for (uint32_t k = 0; k < LISTS / 10; k++) {
        run(k, 0, false);
        const uint64_t decisions = model.decisions;
        if (model.with_ram) continue;
        for (uint32_t time = 1; time < 4; time++) {
            run(k, time, false);
            if (model.decisions != decisions) CHECK_SAY("list %u has other places at another time", k);
        }
    }
}

/* What each fault does is found, and in how many lists. */
TEST(planted_faults_are_found)
{
    static const char *const names[] = {[EARLY_REUSE] = "a place is another's before the tile has left",
                                        [NO_WAIT] = "nobody waits for a place, or for room",
                                        [PAST_WRITERS] = "a tile is fetched past who writes it",
                                        [LOST] = "nobody hears that a tile left",
                                        [KEPT] = "memory in RAM is kept"};
    for (int f = NONE + 1; f < FAULTS; f++) {
        int found = 0;
        char example[sizeof text] = "";
        planted = f;
        for (uint32_t k = 0; k < LISTS / 10; k++)
            if (run(k, 0, false) && ++found) memcpy(example, text, sizeof text);
        printf("%d of %d lists: %s: %s\n", found, LISTS / 10, names[f], example);
        CHECK(found > 0);
    }
    planted = NONE;
}

int main(int argc, char **argv)
{
    char *end = NULL;
    const unsigned long number = argc > 1 ? strtoul(argv[1], &end, 10) : 0;
    if (argc < 2 || *end) return check_cases(argc, argv);
    const char *what = run((uint32_t)number, 0, true);
    printf("list %lu: %s\n", number, what ? what : "all is well");
    return what != NULL;
}
