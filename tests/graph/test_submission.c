/* What one rank of many has to do: the size of its program must not grow with the number of ranks beyond what is its
 * own, and the order of a pipeline's passes leaves the bubble that theory says. This process takes the place of a rank;
 * the others are cut off. */
#define CHECK_MAIN
#include "graph/step/step_impl.h"
#include "tests/graph/nets.h"

enum { MICRO = 1, LAYERS = 96, LAYERS_CARRIED = 3 };
static int layers_here = LAYERS, near_here = 1;

/* Of a rank's program. */
struct load {
    int64_t tasks, messages, parts; /* parts of messages */
};

/* One part of a message, as one of its ends has it. */
struct end {
    int from, to, tag;
    unsigned lane;
    size_t bytes, at; /* at: which of this rank's parts */
};
struct ends {
    struct end *end;
    size_t n, room;
};

static const tess_step_conf training = {.train = true, .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .clip = 1}};

static void graph_of(struct net *n, const tess_grid *grid)
{
    tess_graph_conf conf = {.tile_rows = T, .tile_elements = 16 * C, .loss_rows = 20, .grid = *grid};
    net_layers = layers_here;
    net_make(n, &conf, net_gpt);
    tess_graph_set_near(n->g, near_here, 0);
}

static tess_grid grid_of(int rank, int ranks, int pipeline, int interleave, int stage)
{
    return (tess_grid){.rank = rank,
                       .data = ranks / pipeline,
                       .pipeline = pipeline,
                       .tensor = 1,
                       .interleave = interleave,
                       .stage = stage};
}

static struct load load_of(const tess_grid *grid, bool deterministic)
{
    struct net n;
    struct load l = {0};
    tess_lowered low;
    graph_of(&n, grid);
    tess_step_conf conf = training;
    conf.micro = MICRO * grid->data;
    conf.deterministic = deterministic;
    tess_graph_ready(n.g);
    for (int k = 0; k < n.g->params; k++) OK(tess_param_moments(n.g->param[k], &conf.optimizer, true));
    tess_lower_step(n.loss, &conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const tess_task *t = &low.program->task[k];
        l.tasks++;
        if (t->cl != &tess_message) continue;
        const tess_message_arg *m = t->arg;
        l.messages++;
        l.parts += m->spans;
    }
    tess_program_free(low.program);
    tess_graph_free(n.g);
    return l;
}

/* Shares are whole rows, and what has fewer rows than there are ranks is not on all of them: half as much again. */
static void check_growth(const char *what, int64_t few, int64_t many, const tess_grid *grid)
{
    if (2 * many > 3 * few)
        CHECK_SAY("rank %d of %d x %d, stage %d: %lld %s, with 16 ranks %lld", grid->rank, grid->data, grid->pipeline,
                  grid->stage, (long long)many, what, (long long)few);
}

/* Each of `data` ranks with the same share of work; the first, one in the middle, the last. */
static struct load heaviest(int data, int pipeline, int stage, bool deterministic, const struct load *limit)
{
    struct load most = {0};
    for (int k = 0; k < 3; k++) {
        int ranks = data * pipeline;
        tess_grid grid = grid_of((ranks - 1) * k / 2, ranks, pipeline, 1, stage);
        struct load l = load_of(&grid, deterministic);
        if (limit) {
            check_growth("tasks", limit->tasks, l.tasks, &grid);
            check_growth("messages", limit->messages, l.messages, &grid);
            check_growth("parts of messages", limit->parts, l.parts, &grid);
        }
        if (l.tasks > most.tasks) most.tasks = l.tasks;
        if (l.messages > most.messages) most.messages = l.messages;
        if (l.parts > most.parts) most.parts = l.parts;
    }
    return most;
}

TEST(a_rank_of_a_thousand_has_the_program_of_one_of_sixteen)
{
    for (int pipeline = 1; pipeline <= 4; pipeline += 3)
        for (int stage = 0; stage < 4; stage++) {
            struct load few = heaviest(16, pipeline, stage, stage % 2, NULL);
            CHECK(few.messages > 100);
            heaviest(64, pipeline, stage, stage % 2, &few);
            heaviest(1024, pipeline, stage, stage % 2, &few);
        }
}

/* Below sixteen a tile has as many slices as there are ranks. */
TEST(one_rank_sends_nothing_and_four_send_little)
{
    for (int stage = 0; stage < 4; stage++) {
        struct load few = heaviest(16, 1, stage, false, NULL);
        CHECK_EQ(heaviest(1, 1, stage, false, NULL).messages, 0);
        heaviest(4, 1, stage, false, &few);
    }
}

/* A rank's messages, in order, and which of the first one's parts have met their other end. */
struct post {
    const tess_message_arg **message;
    int n, at;
    bool *met;
    unsigned left;
    int64_t across, within, scalars; /* bytes that it sent to other machines, to ranks of its own, of exact sums */
    tess_lowered low;
    struct net net;
};

static void post_open(struct post *post, const tess_grid *grid, int micros, bool deterministic)
{
    *post = (struct post){0};
    graph_of(&post->net, grid);
    tess_step_conf *conf = tess_alloc(sizeof *conf);
    *conf = training;
    conf->micro = micros * grid->data;
    conf->deterministic = deterministic;
    tess_graph *g = post->net.g;
    tess_graph_ready(g);
    for (int k = 0; k < g->params; k++) OK(tess_param_moments(g->param[k], &conf->optimizer, true));
    tess_lower_step(post->net.loss, conf, &post->low);
    const tess_program *p = post->low.program;
    post->message = tess_alloc(p->tasks * sizeof *post->message);
    unsigned most = 1;
    for (size_t k = 0; k < p->tasks; k++) {
        if (p->task[k].cl != &tess_message) continue;
        const tess_message_arg *m = p->task[k].arg;
        post->message[post->n++] = m;
        if (m->spans > most) most = m->spans;
    }
    post->met = tess_alloc(most * sizeof *post->met);
    memset(post->met, 0, most * sizeof *post->met);
    post->left = post->n ? post->message[0]->spans : 0;
    free(conf);
}

static void post_close(struct post *post)
{
    tess_program_free(post->low.program);
    tess_graph_free(post->net.g);
    free(post->message);
    free(post->met);
}

/* Finds the other end of a part that did not meet it in the peer's first message. */
static bool meets(struct post *post, const tess_span *s, int rank)
{
    struct post *other = &post[s->peer];
    const tess_message_arg *m = other->at < other->n ? other->message[other->at] : NULL;
    for (unsigned i = 0; m && i < m->spans; i++) {
        const tess_span *o = &m->span[i];
        if (other->met[i] || o->peer != rank || o->sends == s->sends) continue; /* in order, as NCCL has no tags */
        if (o->tag != s->tag || o->bytes != s->bytes) return false;
        other->met[i] = true;
        other->left--;
        return true;
    }
    return false;
}

static bool advance(struct post *post, int rank, int machine)
{
    struct post *mine = &post[rank];
    bool moved = false;
    if (mine->at == mine->n) return false;
    const tess_message_arg *m = mine->message[mine->at];
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        if (mine->met[i] || !s->sends || !meets(post, s, rank)) continue;
        mine->met[i] = true;
        mine->left--;
        moved = true;
        *(s->tag > INT32_MAX - 16               ? &mine->scalars
          : s->peer / machine == rank / machine ? &mine->within
                                                : &mine->across) += (int64_t)s->bytes;
    }
    if (mine->left) return moved;
    memset(mine->met, 0, m->spans * sizeof *mine->met);
    mine->left = ++mine->at < mine->n ? mine->message[mine->at]->spans : 0;
    return true;
}

/* Carries all ranks' messages strictly one after the other, as NCCL does; returns the bytes between machines. */
static int64_t carry(tess_grid grid, int machine, int micros, bool deterministic, int64_t *within)
{
    const int ranks = grid.data * grid.pipeline * grid.tensor;
    struct post *post = tess_alloc((size_t)ranks * sizeof *post);
    int64_t across = 0;
    for (grid.rank = 0; grid.rank < ranks; grid.rank++) post_open(&post[grid.rank], &grid, micros, deterministic);
    for (bool moves = true; moves;) {
        moves = false;
        for (int r = 0; r < ranks; r++) moves = advance(post, r, machine) || moves;
    }
    *within = 0;
    for (int r = 0; r < ranks; r++) {
        if (post[r].at < post[r].n)
            CHECK_SAY("%d x %d x %d, stage %d: rank %d waits for ever in message %d of %d", grid.data, grid.pipeline,
                      grid.tensor, grid.stage, r, post[r].at, post[r].n);
        across += post[r].across;
        *within += post[r].within;
        post_close(&post[r]);
    }
    free(post);
    return across;
}

/* Weights of all stages go once to a machine, whatever the grid, and so do gradients where its parts are a sum of the
 * tree; all ranks' lists are parts of one order. */
TEST(machines_of_several_ranks_take_a_slice_once)
{
    static const struct {
        int data, pipeline, tensor, machine;
        bool once; /* gradients as well */
    } grids[] = {{8, 1, 1, 4, true}, {6, 1, 1, 3, false}, {6, 1, 1, 2, true},  {34, 1, 1, 2, true}, {24, 1, 1, 4, true},
                 {4, 1, 2, 4, true}, {4, 2, 1, 4, true},  {8, 1, 1, 3, false}, {4, 1, 1, 4, false}};
    layers_here = LAYERS_CARRIED;
    for (size_t k = 0; k < sizeof grids / sizeof *grids; k++)
        for (int stage = 0; stage < 4; stage++)
            for (int micros = 2; micros < 4; micros++) {
                tess_grid grid = {.data = grids[k].data,
                                  .pipeline = grids[k].pipeline,
                                  .tensor = grids[k].tensor,
                                  .interleave = 1,
                                  .stage = stage};
                const bool deterministic = stage % 2 == 0, once = grids[k].once && !(deterministic && micros == 3);
                int64_t within, within_near;
                const int64_t across = carry(grid, grids[k].machine, micros, deterministic, &within);
                near_here = grids[k].machine;
                const int64_t near = carry(grid, grids[k].machine, micros, deterministic, &within_near);
                const int places = tess_grid_near(&grid, near_here);
                near_here = 1;
                if (once ? near * places != across : places > 1 ? near >= across : near != across)
                    CHECK_SAY("%d x %d x %d, %d ranks a machine, stage %d, %d micro-batches: %lld bytes between "
                              "machines, once %lld",
                              grid.data, grid.pipeline, grid.tensor, grids[k].machine, stage, micros, (long long)across,
                              (long long)near);
            }
    layers_here = LAYERS;
}

/* Within groups, which are machines, weights go: none crosses if a group shares the states; of one that has copies each
 * crosses once, to the group or, where what is near is not known, to each of its ranks. Gradients are added up within
 * groups first where that is a sum of the tree, and then the sums go to the other groups that hold them. */
TEST(groups_keep_weights_to_themselves)
{
    static const struct {
        int data, group;
    } of[] = {{4, 2}, {4, 1}, {4, 4}, {8, 4}, {8, 2}, {6, 3}, {6, 2}, {32, 8}, {24, 4}, {34, 17}, {32, 2}};
    layers_here = LAYERS_CARRIED;
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (int way = 0; way < 8; way++) {
            const int n = of[k].data, c = of[k].group, groups = n / c, stage = way % 4 ? way % 4 : 3;
            tess_grid grid = {.data = n,
                              .pipeline = 1,
                              .tensor = 1,
                              .interleave = 1,
                              .stage = stage,
                              .group = c,
                              .copies = way % 4 == 0};
            struct net net;
            int64_t within;
            graph_of(&net, &grid);
            const int64_t whole = 4 * tess_graph_param_elements(net.g);
            tess_graph_free(net.g);
            near_here = way / 4 ? c : 1;
            const bool once = c & (c - 1) ? false : groups > 1, near = near_here > 1 && groups > 1;
            const int64_t parts = once ? groups - 1 : n - c, sums = grid.copies ? 0 : groups - 1,
                          weights = !grid.copies ? 0
                                    : near       ? groups - 1
                                                 : n - c,
                          across = carry(grid, c, 2, stage > 1, &within);
            near_here = 1;
            if (across != (parts + sums + weights) * whole)
                CHECK_SAY("%d ranks in groups of %d, stage %d%s%s: %lld bytes between groups, expected %lld of %lld", n,
                          c, stage, grid.copies ? ", copies" : "", near ? ", which are machines" : "",
                          (long long)across, (long long)(parts + sums + weights), (long long)whole);
            CHECK((within > 0) == (c > 1));
        }
    layers_here = LAYERS;
}

/* Of groups of several machines, and of machines of several groups, a slice goes once to a machine. */
TEST(groups_and_machines_of_other_sizes)
{
    static const int of[][3] = {{8, 4, 2}, {16, 2, 4}, {8, 2, 4}, {24, 12, 4}};
    layers_here = LAYERS_CARRIED;
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        for (int stage = 1; stage < 4; stage++) {
            const tess_grid grid = {
                .data = of[k][0], .pipeline = 1, .tensor = 1, .interleave = 1, .stage = stage, .group = of[k][1]};
            int64_t within, within_near;
            const int64_t across = carry(grid, of[k][2], 2, true, &within);
            near_here = of[k][2];
            const int64_t near = carry(grid, of[k][2], 2, true, &within_near);
            near_here = 1;
            CHECK(near < across);
            CHECK_EQ(near + within_near, across + within);
        }
    layers_here = LAYERS;
}

/* ---- both ends of messages ---- */

static void add_end(struct ends *e, struct end one)
{
    if (e->n == e->room) {
        struct end *more = tess_alloc((e->room = 2 * e->room + 1024) * sizeof *more);
        if (e->n) memcpy(more, e->end, e->n * sizeof *more);
        free(e->end);
        e->end = more;
    }
    e->end[e->n++] = one;
}

/* Those of two ranks in a lane keep their order. */
static int by_pair(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    if (x->from != y->from) return x->from < y->from ? -1 : 1;
    if (x->to != y->to) return x->to < y->to ? -1 : 1;
    if (x->lane != y->lane) return x->lane < y->lane ? -1 : 1;
    return x->at < y->at ? -1 : x->at > y->at;
}

static void wide_graph(struct net *n, const tess_grid *grid)
{
    net_layers = 2;
    net_make(n, &(tess_graph_conf){.tile_rows = T, .tile_elements = 4 << 20, .loss_rows = 20, .grid = *grid}, net_wide);
}

static void add_ends(const tess_grid *grid, struct ends *sent, struct ends *received)
{
    struct net n;
    tess_lowered low;
    tess_step_conf conf = training;
    wide_graph(&n, grid);
    conf.micro = grid->data;
    conf.deterministic = true;
    tess_graph_ready(n.g);
    for (int k = 0; k < n.g->params; k++) OK(tess_param_moments(n.g->param[k], &conf.optimizer, true));
    tess_lower_step(n.loss, &conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const tess_task *t = &low.program->task[k];
        const tess_message_arg *m = t->arg;
        for (unsigned i = 0; t->cl == &tess_message && i < m->spans; i++) {
            const tess_span *p = &m->span[i];
            struct ends *e = p->sends ? sent : received;
            add_end(e, (struct end){p->sends ? grid->rank : p->peer, p->sends ? p->peer : grid->rank, p->tag, m->lane,
                                    p->bytes, e->n});
        }
    }
    tess_program_free(low.program);
    tess_graph_free(n.g);
}

/* Each row of a tile is in one slice, and no rank has two of them. Returns how many slices the largest tile has. */
static int check_slices(const tess_grid *grid)
{
    struct net n;
    int most = 0;
    wide_graph(&n, grid);
    tess_graph_ready(n.g);
    for (int k = 0; k < n.g->params; k++) {
        const tess_tensor *p = n.g->param[k];
        for (int64_t tile = 0; tile < p->cut->tiles; tile++) {
            int64_t first, rows, next = 0;
            bool owns[64] = {false};
            tess_slices slices;
            tess_grid_slices(p, tile, &slices);
            tess_param_rows(p, tile, &first, &rows);
            for (int s = 0; s < slices.n; s++) {
                const tess_slice slice = slices.of[s];
                CHECK_EQ(slice.row, next);
                CHECK(slice.rows > 0 && slice.owner >= 0 && slice.owner < grid->data && !owns[slice.owner]);
                owns[slice.owner] = true;
                next += slice.rows;
            }
            CHECK_EQ(next, rows);
            CHECK_EQ(slices.own >= 0, owns[tess_grid_data(grid)]);
            if (slices.n > most) most = slices.n;
        }
    }
    tess_graph_free(n.g);
    return most;
}

/* What one rank sends to another is what that one waits for, byte by byte and in the same order. */
static void check_ends(int data, int stage, int group, bool copies)
{
    struct ends sent = {0}, received = {0};
    size_t bad = 0;
    for (int rank = 0; rank < data; rank++) {
        tess_grid grid = grid_of(rank, data, 1, 1, stage);
        grid.group = group, grid.copies = copies;
        add_ends(&grid, &sent, &received);
    }
    CHECK(sent.n > 0);
    CHECK_EQ(sent.n, received.n);
    qsort(sent.end, sent.n, sizeof *sent.end, by_pair);
    qsort(received.end, received.n, sizeof *received.end, by_pair);
    for (size_t i = 0; i < sent.n && i < received.n; i++) {
        const struct end *s = &sent.end[i], *r = &received.end[i];
        const bool same =
            s->from == r->from && s->to == r->to && s->lane == r->lane && s->tag == r->tag && s->bytes == r->bytes;
        if (!same && !bad++)
            CHECK_SAY("%d ranks, stage %d: %d sends %d %zu bytes, tag %d; %d waits for %zu from %d, tag %d", data,
                      stage, s->from, s->to, s->bytes, s->tag, r->to, r->bytes, r->from, r->tag);
    }
    free(sent.end);
    free(received.end);
}

/* Elements of a slice are 65536 at least, and its tile's slices 16, 32 or one for each rank. */
TEST(both_ends_of_large_tiles_messages_agree)
{
    static const struct {
        int rows, data, slices;
    } cases[] = {{1152, 18, 18}, {1152, 40, 16}, {1536, 24, 24}, {2304, 40, 32}, {2560, 40, 40}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        net_wide_rows = cases[k].rows;
        tess_grid grid = grid_of(0, cases[k].data, 1, 1, 1);
        CHECK_EQ(check_slices(&grid), cases[k].slices);
        for (int stage = 1; stage < 4; stage++) check_ends(cases[k].data, stage, 0, false);
        grid.group = cases[k].data / 2;
        CHECK_EQ(check_slices(&grid), cases[k].slices);
        for (int stage = 1; stage < 4; stage += 2) check_ends(cases[k].data, stage, grid.group, false);
        check_ends(cases[k].data, 3, 2, true);
    }
}

/* The step of one rank of a thousand runs, all that would come being zero. */
TEST(a_rank_that_is_cut_off_runs_its_step)
{
    enum { RANKS = 1024 };
    for (int stage = 0; stage < 4; stage += 3) {
        struct net n;
        tess_step *s;
        tess_step_result r = {0};
        tess_ranks_pretend(RANKS - 1, RANKS);
        OK(tess_start(&(tess_machine){.workers = 1}));
        tess_grid grid = grid_of(RANKS - 1, RANKS, stage ? 4 : 1, 1, stage);
        graph_of(&n, &grid);
        tess_step_conf conf = training;
        conf.micro = MICRO * grid.data;
        OK(tess_step_new(n.loss, &conf, &s));
        OK(tess_graph_init(n.g, 1));
        OK(tess_step_feed(s, n.ids, n.id));
        OK(tess_step_feed(s, n.targets, n.target));
        OK(tess_step_run(s, &(tess_step_input){.seed = 1, .lr = 1e-3}, &r));
        CHECK(r.targets > 0);
        tess_step_free(s);
        tess_graph_free(n.g);
        tess_stop();
    }
    tess_ranks_pretend(0, 1);
}

/* Where a stage always has work, a step of m micro-batches is m (1 + 2) long, cut into v chunks a stage: v times that.
 */
TEST(the_bubble_of_a_pipeline_is_that_of_theory)
{
    for (int p = 1; p <= 8; p++)
        for (int v = 1; v <= 4; v++)
            for (int groups = 1; groups <= 5; groups++)
                for (int stage = 0; stage < p; stage++) {
                    if (p == 1 && v > 1) continue;
                    int n, m = groups * p;
                    double *ends, known, span, work = 3.0 * m * v, bubble = (double)(p - 1) / (v * m);
                    tess_grid g = grid_of(stage, p, p, v, 0);
                    free(tess_pipeline_order(&g, m, true, false, &n, &ends, &known, &span));
                    free(ends);
                    CHECK_EQ(n, 2 * m * v);
                    if (fabs((span - work) / work - bubble) > 1e-12)
                        CHECK_SAY("%d stages of %d chunks, %d micro-batches: a bubble of %g, expected %g", p, v, m,
                                  (span - work) / work, bubble);
                }
}

/* Paired with a forward pass, a backward pass and it take no longer than one after the other, whatever the number of
 * micro-batches; each pass begins behind what it reads. */
TEST(pairs_of_passes_have_the_same_bubble)
{
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 4 * p + 1; m++)
            for (int stage = 0; stage < p; stage++) {
                int n, paired = 0;
                double *ends, known, span;
                const tess_grid g = grid_of(stage, p, p, 1, 0);
                struct tess_pass *pass = tess_pipeline_order(&g, m, true, true, &n, &ends, &known, &span);
                CHECK_EQ(n, 2 * m);
                for (int k = 0; k < n; k++) {
                    const struct tess_pass *x = &pass[k], *other = x + (x->kind == TESS_PASS_FORWARD ? 1 : -1);
                    const double *mine = &ends[(x->chunk * m + x->micro) * 2];
                    const bool backward = x->kind == TESS_PASS_BACKWARD;
                    paired += x->paired;
                    if (x->paired) CHECK(other->paired && other->kind != x->kind && other->time == x->time);
                    if (!backward && stage > 0) CHECK(x->time >= mine[-2 * m]);
                    if (backward) CHECK(x->time >= (stage + 1 < p ? mine[2 * m + 1] : mine[0]));
                    CHECK_EQ(mine[backward], x->time + (x->paired ? 3 : 1 + backward));
                }
                const int ahead = 2 * (p - 1 - stage) + 1;
                CHECK_EQ(paired, m > ahead ? 2 * (m - ahead) : 0);
                if (span > 3 * (m + p - 1)) CHECK_SAY("%d stages, %d micro-batches: %g long", p, m, span);
                free(pass);
                free(ends);
            }
}

/* With gradients of weights as passes of their own, forward, backward and these as long each: no section holds more
 * micro-batches than the first one does under 1F1B, and the bubble of 3 (p - 1) is at most half of that; each pass
 * begins behind what it reads. */
TEST(zero_bubble_orders_halve_the_bubble)
{
    for (int p = 2; p <= 8; p++)
        for (int m = 1; m <= 4 * p + 1; m++)
            for (int v = 1; v <= 2; v++)
                for (int stage = 0; stage < p; stage++) {
                    int n, held = 0, at[3] = {0};
                    double *ends, known, span;
                    tess_grid g = grid_of(stage, p, p, v, 0);
                    g.schedule = v == 1 ? TESS_ZB_H1 : TESS_ZB_V;
                    struct tess_pass *pass = tess_pipeline_order(&g, m, true, false, &n, &ends, &known, &span);
                    CHECK_EQ(n, 3 * m * v);
                    for (int k = 0; k < n; k++) {
                        const struct tess_pass *x = &pass[k];
                        const double *mine = &ends[(x->chunk * m + x->micro) * 2];
                        CHECK_EQ(tess_grid_section_of(&g, x->chunk), stage);
                        CHECK(k == 0 || x->time >= pass[k - 1].time + 1);
                        at[x->kind]++;
                        held += (x->kind == TESS_PASS_FORWARD) - (x->kind == TESS_PASS_WEIGHTS);
                        CHECK(held <= p * v && at[TESS_PASS_WEIGHTS] <= at[TESS_PASS_BACKWARD]);
                        if (x->kind == TESS_PASS_FORWARD && x->chunk > 0) CHECK(x->time >= mine[-2 * m]);
                        if (x->kind == TESS_PASS_BACKWARD)
                            CHECK(x->time >= (x->chunk + 1 < p * v ? mine[2 * m + 1] : mine[0]));
                        if (x->kind == TESS_PASS_WEIGHTS) CHECK(x->time >= mine[1]);
                    }
                    if (m >= p && span - n > (v == 1 ? p - 1 : 1.5 * p)) /* of 3 v (p - 1) */
                        CHECK_SAY("%d stages of %d chunks, %d micro-batches: a bubble of %g", p, v, m, span - n);
                    free(pass);
                    free(ends);
                    g = grid_of(stage, p, p, v, 0); /* a step that only evaluates has forward passes alone */
                    g.schedule = v == 1 ? TESS_ZB_H1 : TESS_ZB_V;
                    free(tess_pipeline_order(&g, m, false, false, &n, &ends, &known, &span));
                    free(ends);
                    CHECK_EQ(n, m * v);
                }
}
