/* The graph room: shapes, gradients by finite differences, and the bits that must not depend on how a step is run. */
#define CHECK_MAIN
#include "tests/graph/nets.h"

#ifdef __SANITIZE_ADDRESS__ /* which is slow, and looks at accesses, not at figures: less of the same */
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static const net_body bodies[] = {net_gpt, net_llama, net_tangle};
static const char *const body_names[] = {"gpt", "llama", "tangle"};

/* ---- gradients ---- */

static void check_gradients(int which, const tess_graph_conf *conf)
{
    struct net n;
    tess_step *f, *s = net_step(&n, conf, bodies[which], &(tess_step_conf){.train = true, .keep_gradients = true});
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .keep_gradients = true, .recompute_every = 2}, &f));
    OK(tess_graph_init(n.g, 3));
    for (int k = 0; k < tess_graph_params(n.g); k += SANITIZED ? 12 : 1) {
        tess_tensor *p = tess_graph_param(n.g, k);
        const int64_t elements = elements_of(p);
        float *g = tess_alloc((size_t)elements * sizeof *g), most = 0;
        net_run(&n, s, 5, 0); /* both steps leave their gradients in the same tiles */
        OK(tess_step_gradient(s, p, g));
        int64_t at[2] = {elements / 3, 0};
        for (int64_t i = 0; i < elements; i++)
            if (fabsf(g[i]) > most) most = fabsf(g[i]), at[1] = i;
        for (int m = 0; m < 2; m++)
            CHECK_SLOPE(body_names[which], p, at[m], (double)g[at[m]], which == 2 ? 2.5e-4f : 1e-3f, 4e-4,
                        net_run(&n, f, 5, 0));
        free(g);
    }
    tess_step_free(f);
    net_free(&n, s);
}

TEST(gradients_match_finite_differences)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int which = 0; which < 3; which++) {
        check_gradients(which, &(tess_graph_conf){.tile_rows = 2 * T, .loss_rows = 17, .loss_align = 64});
        check_gradients(which, &(tess_graph_conf){.tile_rows = T, .tile_elements = 64 * C, .loss_rows = 50});
    }
    tess_stop();
}

/* ---- bits ---- */

/* A fingerprint of losses and all masters and moments after `steps` steps. */
static uint64_t fingerprint(int which, tess_dtype dtype, const tess_step_conf *conf, int64_t steps)
{
    const tess_graph_conf cut = {.dtype = dtype, .tile_rows = T, .tile_elements = 64 * C, .loss_rows = 20};
    struct net n;
    tess_step *s = net_step(&n, &cut, bodies[which], conf);
    uint64_t h = FINGERPRINT;
    OK(tess_graph_init(n.g, 3));
    for (int64_t k = 0; k < steps; k++) {
        const double loss = net_run(&n, s, k, 1e-2f);
        if (!(loss > 0 && loss < 20)) CHECK_SAY("%s: step %lld: loss %g", body_names[which], (long long)k, loss);
        mark(&h, &loss, sizeof loss);
    }
    mark_params(&h, n.g, TESS_PARTS);
    net_free(&n, s);
    return h;
}

static const tess_step_conf training = {
    .train = true,
    .micro = 4,
    .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1}};

TEST(same_bits_whatever_the_scheduler_and_the_workers)
{
    static const char *const scheds[] = {"eager", "prio", "lws", "dmda"};
    for (int which = 0; which < 2; which++)
        for (int dtype = SANITIZED; dtype < 2; dtype++) {
            uint64_t first = 0;
            for (int k = 0; k < 8; k++) {
                if (k && (k % 2 == 0 || (SANITIZED && k != 5))) continue; /* one worker once, two with each */
                OK(tess_start(&(tess_machine){.sched = scheds[k / 2], .workers = 1 + k % 2}));
                uint64_t h = fingerprint(which, (tess_dtype)dtype, &training, 3);
                tess_stop();
                if (k == 0) first = h;
                if (h != first)
                    CHECK_SAY("%s %s: other bits under %s with %d workers", body_names[which],
                              tess_dtype_name((tess_dtype)dtype), scheds[k / 2], 1 + k % 2);
            }
        }
}

TEST(same_bits_when_recomputing)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int which = 0; which < 3; which++)
        for (int dtype = SANITIZED; dtype < 2; dtype++) {
            tess_step_conf conf = training;
            uint64_t plain = fingerprint(which, (tess_dtype)dtype, &conf, 2);
            for (conf.recompute_every = 1; conf.recompute_every <= 3 - SANITIZED; conf.recompute_every++)
                if (fingerprint(which, (tess_dtype)dtype, &conf, 2) != plain)
                    CHECK_SAY("%s %s: other bits when every %d blocks are recomputed", body_names[which],
                              tess_dtype_name((tess_dtype)dtype), conf.recompute_every);
            static const int some[][6] = {{1, 4, 7, 9, 12, 15}, {2, 3, 5, 8, 13, 14}, {0, 6, 10, 11, 16, 17}};
            conf.layout.keeps = 6;
            for (int k = 0; k < 3 - SANITIZED; k++) {
                conf.layout.keep = some[k];
                conf.recompute_every = 1 + k;
                conf.layout.by_layer = k == 1;
                if (fingerprint(which, (tess_dtype)dtype, &conf, 2) != plain)
                    CHECK_SAY("%s %s: other bits when some of it is kept (%d)", body_names[which],
                              tess_dtype_name((tess_dtype)dtype), k);
            }
        }
    tess_stop();
}

/* With room for some of what blocks compute again, that is kept which saves the most: products and attention before
 * norms and gelu. */
TEST(recomputation_keeps_what_there_is_room_for)
{
    struct net n;
    tess_step *s;
    tess_plan plan;
    tess_step_conf conf = training;
    tess_holds none, all, some = {0};
    conf.recompute_every = 1;
    net_make(&n, &(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = T}, net_gpt);
    OK(tess_step_new(n.loss, &conf, &s));
    tess_step_holds(s, &none);
    tess_step_free(s);
    conf.recompute_every = 0;
    OK(tess_step_new(n.loss, &conf, &s));
    tess_step_holds(s, &all);
    tess_step_free(s);
    conf.recompute_every = 1;
    const uint64_t least = tess_holds_need(&none, 1), most = tess_holds_need(&all, 1);
    int before = 0, cheap = 0;
    OK(tess_step_lay_out(n.loss, &conf, &(tess_limits){.ram = {.workers = 1}, .whole = least}, &s, &plan));
    CHECK(plan.kept == 0 && plan.again > 0); /* tasks that start early need what is left */
    tess_step_free(s);
    double flops = none.recompute_flops;
    for (int k = 0; k <= 16; k++) { /* from no room to room for all, of which a sixteenth is left */
        const uint64_t cap = (least + (most - least) * (uint64_t)k / 16) * 16 / 15 + 16;
        OK(tess_step_lay_out(n.loss, &conf, &(tess_limits){.ram = {.workers = 1}, .whole = cap}, &s, &plan));
        tess_step_holds(s, &some);
        CHECK(tess_holds_need(&some, 1) <= cap);
        CHECK(plan.kept >= before && some.recompute_flops <= flops);
        cheap += plan.kept < plan.again && some.recompute_flops == 0;
        before = plan.kept, flops = some.recompute_flops;
        tess_step_free(s);
    }
    CHECK(cheap > 0); /* no product is made again, and something is */
    CHECK(plan.kept == plan.again && plan.again > 0);
    CHECK_EQ(some.peak[TESS_ROLE_ACTIVATION], all.peak[TESS_ROLE_ACTIVATION]);
    conf.inputs_alone = true;
    OK(tess_step_lay_out(n.loss, &conf, &(tess_limits){.ram = {.workers = 1}, .whole = 2 * most}, &s, &plan));
    CHECK(plan.kept == 0 && plan.again == 0);
    tess_step_free(s);
    tess_graph_free(n.g);
}

/* ---- frozen parameters ---- */

static uint32_t dice = 1;
static bool freezes(void)
{
    dice = dice * 1664525u + 1013904223u;
    return dice >> 31;
}

/* The gradients of one step of what is trained, one behind the other; `frozen`, unless NULL, says what is not: it is
 * drawn by `kind`, a part of the net or any half. */
static float *gradients_of(int which, const tess_graph_conf *conf, const tess_step_conf *of, const bool *frozen,
                           double *loss)
{
    struct net n;
    tess_step *s;
    net_make(&n, conf, bodies[which]);
    for (int k = 0; frozen && k < tess_graph_params(n.g); k++)
        if (frozen[k]) OK(tess_param_freeze(tess_graph_param(n.g, k)));
    OK(tess_step_new(n.loss, of, &s));
    OK(tess_graph_init(n.g, 3));
    *loss = net_run(&n, s, 5, 0);
    float *all = tess_alloc((size_t)tess_graph_param_elements(n.g) * sizeof *all), *at = all;
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        tess_tensor *p = tess_graph_param(n.g, k);
        if (!tess_param_frozen(p)) OK(tess_step_gradient(s, p, at));
        at += elements_of(p);
    }
    net_free(&n, s);
    return all;
}

/* Whatever is frozen: the others have the gradients, bit for bit, that they have where nothing is. */
static void check_frozen(int which, const tess_graph_conf *conf, const tess_step_conf *of, int halves)
{
    struct net n;
    double loss, same;
    net_make(&n, conf, bodies[which]);
    const int params = tess_graph_params(n.g);
    float *whole = gradients_of(which, conf, of, NULL, &loss);
    bool *frozen = tess_alloc((size_t)params * sizeof *frozen);
    for (int kind = 0; kind < 4 + halves; kind++) {
        int left = 0;
        for (int k = 0; k < params; k++) {
            int64_t shape[3];
            const bool matrix = tess_tensor_shape(tess_graph_param(n.g, k), shape) == 2;
            const char first = tess_tensor_name(tess_graph_param(n.g, k))[0]; /* of the layer, or "table" */
            frozen[k] = kind == 0   ? first != '1'
                        : kind == 1 ? first == '0' || first > '2'
                        : kind == 2 ? matrix
                        : kind == 3 ? !matrix
                                    : freezes();
            left += !frozen[k];
        }
        if (!left) continue;
        float *some = gradients_of(which, conf, of, frozen, &same);
        int64_t at = 0;
        CHECK(loss == same);
        for (int k = 0; k < params; k++) {
            const tess_tensor *p = tess_graph_param(n.g, k);
            const int64_t all = elements_of(p);
            if (!frozen[k] && memcmp(whole + at, some + at, (size_t)all * sizeof *some))
                CHECK_SAY("%s %s, kind %d: another gradient of %s", body_names[which], tess_dtype_name(conf->dtype),
                          kind, tess_tensor_name(p));
            at += all;
        }
        free(some);
    }
    free(frozen);
    free(whole);
    tess_graph_free(n.g);
}

TEST(what_is_frozen_changes_no_other_gradient)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int which = 0; which < 3; which++)
        for (int dtype = SANITIZED; dtype < 2; dtype++)
            for (int cut = 0; cut < 3; cut++) {
                const tess_graph_conf conf = {.dtype = (tess_dtype)dtype,
                                              .tile_rows = cut ? T : 2 * T,
                                              .tile_elements = cut ? 64 * C : 0,
                                              .loss_rows = 50};
                const tess_step_conf of = {.train = true,
                                           .keep_gradients = true,
                                           .micro = 1 + cut,
                                           .recompute_every = cut,
                                           .layout.by_layer = cut == 1,
                                           .deterministic = cut == 2};
                check_frozen(which, &conf, &of, SANITIZED ? 1 : 3);
            }
    tess_stop();
}

/* A step of one row tile is a chain of tasks: what several workers gain are parts of them, and a forecast knows that.
 */
TEST(bodies_are_shared_on_paper)
{
    enum { ROWS = 2048, WIDTH = 256 };
    const tess_rates rates = {.flops = 1e12, .copy = 1e10};
    tess_step *s;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = ROWS});
    tess_tensor *ids = tess_input(g, "ids", 1, ROWS), *targets = tess_input(g, "targets", 1, ROWS);
    tess_tensor *table = tess_param(g, "table", 4 * WIDTH, WIDTH, TESS_NORMAL(0.1f));
    tess_tensor *x = tess_embedding(ids, table, NULL);
    for (int layer = 0; layer < 3; layer++) {
        tess_tensor *y = tess_layernorm(x, PARAM("g", WIDTH, 1, TESS_ONE), PARAM("b", WIDTH, 1, TESS_ZERO), 1e-5f);
        y = tess_linear(y, PARAM("qkv", 3 * WIDTH, WIDTH, TESS_NORMAL(0.1f)), NULL);
        y = tess_attention_packed(y, (tess_attention_conf){.heads = 16, .causal = true});
        y = tess_gelu(tess_linear(y, PARAM("up", 4 * WIDTH, WIDTH, TESS_NORMAL(0.1f)), NULL), TESS_GELU_TANH);
        x = tess_add(x, tess_linear(y, PARAM("down", WIDTH, 4 * WIDTH, TESS_NORMAL(0.1f)), NULL));
    }
    OK(tess_step_new(tess_cross_entropy(x, table, NULL, targets), &training, &s));
    for (int workers = 1; workers <= 16; workers *= 4) {
        tess_forecast f;
        tess_step_forecast(s, &rates, UINT64_MAX, workers, &f);
        CHECK(f.seconds >= 0.999 * f.work && f.seconds < (workers > 4 ? 2.5 : 1.3) * f.work);
    }
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
}

TEST(what_is_frozen_has_no_states_and_stays_as_it_is)
{
    struct net n;
    tess_step *s;
    tess_holds plan;
    float *x;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int dtype = 0; dtype < 2; dtype++) {
        net_make(&n, &(tess_graph_conf){.dtype = (tess_dtype)dtype, .tile_rows = T}, net_gpt);
        tess_tensor *table = tess_graph_find_param(n.g, "table"), *trained = tess_graph_find_param(n.g, "2.fc.w");
        float before[V * C], first;
        for (int k = 0; k < tess_graph_params(n.g); k++)
            if (tess_tensor_name(tess_graph_param(n.g, k))[0] != '2') OK(tess_param_freeze(tess_graph_param(n.g, k)));
        OK(tess_step_new(n.loss, &training, &s));
        CHECK_EQ(tess_param_freeze(trained), TESS_INVALID);
        CHECK_HAS(tess_error_text(), "comes too late to be frozen");
        tess_step_holds(s, &plan);
        const uint64_t moved = (uint64_t)tess_graph_trained_elements(n.g);
        CHECK(moved > 0 && moved < (uint64_t)tess_graph_param_elements(n.g) / 2);
        CHECK_EQ(plan.resident[TESS_ROLE_MOMENT], 8 * moved);
        CHECK(plan.resident[TESS_ROLE_MASTER] < 4 * moved + 1 && (dtype || !plan.resident[TESS_ROLE_MASTER]));
        CHECK(plan.peak[TESS_ROLE_GRADIENT] <= 4 * moved);
        OK(tess_graph_init(n.g, 3));
        OK(tess_param_map(table, 0, TESS_MASTER, TESS_R, &x));
        memcpy(before, x, sizeof before);
        tess_param_unmap(table, 0, TESS_MASTER);
        OK(tess_param_map(trained, 0, TESS_MASTER, TESS_R, &x));
        first = *x;
        tess_param_unmap(trained, 0, TESS_MASTER);
        net_run(&n, s, 0, 1e-2f);
        OK(tess_param_map(table, 0, TESS_MASTER, TESS_R, &x));
        CHECK(!memcmp(before, x, sizeof before));
        for (int i = 0; i < V * C && dtype; i++) CHECK(x[i] == tess_from_bf16(tess_to_bf16(x[i])));
        tess_param_unmap(table, 0, TESS_MASTER);
        OK(tess_param_map(trained, 0, TESS_MASTER, TESS_R, &x));
        CHECK(*x != first);
        tess_param_unmap(trained, 0, TESS_MASTER);
        CHECK_EQ(tess_param_map(table, 0, TESS_MOMENT1, TESS_R, &x), TESS_INVALID);
        CHECK_HAS(tess_error_text(), "is frozen");
        OK(tess_param_map(table, 0, TESS_MASTER, TESS_RW, &x)); /* what is written is rounded */
        x[5] = 1.001f;
        tess_param_unmap(table, 0, TESS_MASTER);
        OK(tess_graph_round(n.g));
        OK(tess_param_map(table, 0, TESS_MASTER, TESS_R, &x));
        CHECK(x[5] == (dtype ? 1 : 1.001f) && x[4] == before[4]);
        tess_param_unmap(table, 0, TESS_MASTER);
        net_run(&n, s, 1, 1e-2f);
        net_free(&n, s);
    }
    net_make(&n, &(tess_graph_conf){0}, net_gpt);
    for (int k = 0; k < tess_graph_params(n.g); k++) OK(tess_param_freeze(tess_graph_param(n.g, k)));
    CHECK_EQ(tess_step_new(n.loss, &training, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "are frozen");
    tess_graph_free(n.g);
    tess_stop();
}

TEST(clipping_is_seen_and_off_is_off)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    tess_step_conf conf = training;
    uint64_t clipped = fingerprint(0, TESS_F32, &conf, 2);
    conf.optimizer.clip = 1e6f;
    uint64_t wide = fingerprint(0, TESS_F32, &conf, 2);
    conf.optimizer.clip = 0;
    uint64_t off = fingerprint(0, TESS_F32, &conf, 2);
    CHECK(clipped != wide);
    CHECK(wide == off); /* the same arithmetic, whether the update waits for the norm or not */
    tess_stop();
}

TEST(not_finite_is_named)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int k = 0; k < 2; k++) {
        struct net n;
        tess_step_result r;
        tess_step *s = net_step(&n, &(tess_graph_conf){.dtype = k ? TESS_BF16 : TESS_F32}, net_gpt, &training);
        OK(tess_graph_init(n.g, 3));
        net_run(&n, s, 0, 1e-3f);
        move(tess_graph_find_param(n.g, "1.fc.b"), 3, k ? NAN : 3e38f);
        move(tess_graph_find_param(n.g, "1.fc.b"), 3, 3e38f);
        OK(tess_step_feed(s, n.ids, n.id));
        OK(tess_step_feed(s, n.targets, n.target));
        CHECK_EQ(tess_step_run(s, &(tess_step_input){.step = 1, .seed = 7, .lr = 1e-3f}, &r), TESS_FAILED);
        CHECK_HAS(tess_error_text(), "step 2");
        CHECK_HAS(tess_error_text(), "1.fc.b");
        net_free(&n, s);
    }
    tess_stop();
}

TEST(a_plan_needs_no_machine)
{
    struct net n;
    tess_step *s, *r;
    tess_holds kept, again;
    net_make(&n, &(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = T}, net_gpt);
    tess_step_conf conf = training;
    OK(tess_step_new(n.loss, &conf, &s));
    conf.recompute_every = 1;
    OK(tess_step_new(n.loss, &conf, &r));
    tess_step_holds(s, &kept);
    tess_step_holds(r, &again);
    CHECK(again.peak[TESS_ROLE_ACTIVATION] < kept.peak[TESS_ROLE_ACTIVATION]);
    CHECK(again.flops == kept.flops && kept.recompute_flops == 0 && again.recompute_flops > 0);
    CHECK_EQ(kept.resident[TESS_ROLE_MOMENT], 8 * tess_graph_param_elements(n.g));
    tess_step_free(s);
    tess_step_free(r);
    tess_graph_free(n.g);
}
