/* GPT-2 from a Hugging Face directory against PyTorch (fixtures/make_gpt2.py): loss, gradients, ten steps, logits; and
 * the bits that must not depend on how a step is cut up, nor on a way through the disk. */
#define CHECK_MAIN
#include "models/files/data/data.h"
#include "models/files/safetensors/safetensors.h"
#include "models/models.h"
#include "models/train/checkpoint/checkpoint.h"
#include "tests/check.h"
#include <jansson.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
enum { B = 3, T = 37, VOCAB = 1009, MOST = 8 }; /* of the fixture; MOST sequences in any step here */

/* A path below the fixture's directory; "" is that directory. */
static const char *fixture(const char *name)
{
    static char path[2][4096];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], TESS_FIXTURES "/gpt2-tiny%s%s", *name ? "/" : "", name);
    return path[turn];
}

static const char *tokens(void)
{
    return fixture("tokens.bin");
}
#include "tests/models/steps.h"

static json_t *expected(void)
{
    static json_t *root;
    json_error_t e;
    if (!root) root = json_load_file(fixture("expected.json"), 0, &e);
    if (!root) {
        CHECK_SAY("expected.json: %s", e.text);
        exit(1);
    }
    return root;
}

static double number(const char *group, const char *key, int i)
{
    json_t *x = json_array_get(json_object_get(json_object_get(expected(), group), key), (size_t)i);
    return json_is_number(x) ? json_number_value(x) : NAN;
}

/* Masters, and with `parts` TESS_PARTS moments, one after the other; the caller frees them. */
static float *states(tess_graph *g, int parts)
{
    float *all = tess_alloc((size_t)(parts * tess_graph_param_elements(g)) * sizeof *all), *at = all;
    for (int part = 0; part < parts; part++)
        for (int k = 0; k < tess_graph_params(g); k++) {
            tess_tensor *p = tess_graph_param(g, k);
            int64_t shape[3], first, count;
            tess_tensor_shape(p, shape);
            for (int64_t j = 0; j < tess_param_tiles(p); j++, at += count * shape[1]) {
                float *tile;
                tess_param_rows(p, j, &first, &count);
                OK(tess_param_map(p, j, (tess_part)part, TESS_R, &tile));
                memcpy(at, tile, (size_t)(count * shape[1]) * sizeof *at);
                tess_param_unmap(p, j, (tess_part)part);
            }
        }
    return all;
}

/* ---- against PyTorch ---- */

TEST(six_steps_of_adapters_match_peft)
{
    adapted_check("gpt2", TESS_F32, 1e-4);
    adapted_check("gpt2", TESS_BF16, 1e-2);
    adapted_check("gpt2-dora", TESS_F32, 1e-4);
    adapted_check("gpt2-dora", TESS_BF16, 1e-2);
}

TEST(six_steps_of_biases_alone_match_pytorch)
{
    frozen_check("gpt2-biases", TESS_F32, 1e-4);
    frozen_check("gpt2-biases", TESS_BF16, 1e-2);
}

/* Steps of the fixture in fp32: losses and norms. */
static void check_steps(const char *group, int steps, tess_step_conf conf)
{
    struct run r = run_open(fixture(""), (tess_graph_conf){.dtype = TESS_F32}, B, conf);
    for (int i = 0; i < steps; i++) {
        double loss = number(group, "loss", i), norm = number(group, "grad_norm", i);
        tess_step_result got = run_step(&r, i);
        CHECK_NEAR(got.loss, loss, 1e-4 * loss);
        CHECK_NEAR(got.grad_norm, norm, 1e-4 * norm);
    }
    run_close(&r);
}

TEST(ten_steps_match_pytorch)
{
    check_steps("steps", 10, (tess_step_conf){0});
}

TEST(accumulated_steps_match_pytorch)
{
    check_steps("accumulated", 3, (tess_step_conf){.micro = 2});
}

TEST(ten_steps_in_bf16_are_near_pytorch)
{
    struct run r = run_open(fixture(""), (tess_graph_conf){.dtype = TESS_BF16}, B, (tess_step_conf){0});
    for (int i = 0; i < 10; i++) CHECK_NEAR(run_step(&r, i).loss, number("steps", "loss", i), 5e-3);
    run_close(&r);
}

/* ||ours - theirs|| / ||theirs||; theirs may be stored (in, out) where ours is (out, in). */
static double distance(const float *ours, const float *theirs, const int64_t shape[3], bool turned)
{
    double far = 0, all = 0;
    for (int64_t r = 0; r < shape[0]; r++)
        for (int64_t c = 0; c < shape[1]; c++) {
            double want = theirs[turned ? c * shape[0] + r : r * shape[1] + c], d = ours[r * shape[1] + c] - want;
            far += d * d;
            all += want * want;
        }
    return sqrt(far / all);
}

static bool stored_turned(const char *name)
{
    return strstr(name, ".c_attn.weight") || strstr(name, ".c_proj.weight") || strstr(name, ".c_fc.weight");
}

static void check_gradients(tess_dtype dtype, double tolerance)
{
    struct run r =
        run_open(fixture(""), (tess_graph_conf){.dtype = dtype}, B, (tess_step_conf){.keep_gradients = true});
    tess_safetensors *set;
    OK(tess_safetensors_open(fixture("gradients"), &set));
    run_step(&r, 0);
    CHECK_EQ(tess_graph_params(r.g), tess_safetensors_count(set));
    for (int k = 0; k < tess_graph_params(r.g); k++) {
        tess_tensor *p = tess_graph_param(r.g, k);
        int64_t shape[3];
        char name[128];
        tess_tensor_shape(p, shape);
        snprintf(name, sizeof name, "transformer.%s", tess_tensor_name(p));
        const tess_safetensor *t = tess_safetensors_find(set, name);
        CHECK(t && t->elements == shape[0] * shape[1]);
        if (!t || t->elements != shape[0] * shape[1]) continue;
        float *ours = tess_alloc((size_t)(2 * t->elements) * sizeof *ours), *theirs = ours + t->elements;
        OK(tess_step_gradient(r.step, p, ours));
        OK(tess_safetensor_read(t, 0, t->elements, theirs));
        double far = distance(ours, theirs, shape, stored_turned(name));
        if (!(far <= tolerance)) CHECK_SAY("%s %s: the gradient is off by %.3g", tess_dtype_name(dtype), name, far);
        free(ours);
    }
    tess_safetensors_close(set);
    run_close(&r);
}

TEST(gradients_match_pytorch)
{
    check_gradients(TESS_F32, 1e-4);
}

TEST(gradients_in_bf16_are_near_pytorch)
{
    check_gradients(TESS_BF16, 3e-2);
}

/* A prompt shorter than the sequence: what follows it must not matter. */
TEST(logits_match_pytorch)
{
    tess_model *m;
    tess_network net;
    tess_step *step;
    tess_step_result result;
    const json_t *prompt = json_object_get(expected(), "prompt"), *logits = json_object_get(expected(), "logits");
    int32_t last = (int32_t)json_array_size(prompt) - 1, ids[T];
    float got[VOCAB];
    CHECK_EQ(json_array_size(logits), VOCAB);
    for (int i = 0; i < T; i++) ids[i] = i <= last ? (int32_t)json_integer_value(json_array_get(prompt, (size_t)i)) : 7;
    start();
    OK(tess_model_open(fixture(""), NULL, &m));
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    OK(tess_model_build(m, g, 1, T, TESS_FOR_LOGITS, &net));
    OK(tess_step_new(net.output, &(tess_step_conf){0}, &step));
    OK(tess_model_load(m, g, 1));
    OK(tess_step_feed(step, net.ids, ids));
    OK(tess_step_feed(step, net.index, &last));
    OK(tess_step_run(step, &(tess_step_input){0}, &result));
    OK(tess_step_output(step, got));
    for (int i = 0; i < VOCAB; i++) CHECK_NEAR(got[i], json_number_value(json_array_get(logits, (size_t)i)), 1e-4);
    tess_step_free(step);
    tess_graph_free(g);
    tess_model_close(m);
}

/* ---- the same bits ---- */

enum { STEPS = 3 };
struct outcome {
    double loss[STEPS], norm[STEPS];
    int64_t count;
    float *state;     /* masters and moments after STEPS steps; freed by same_bits */
    float *gradients; /* of the first step; likewise */
};

static struct outcome outcome_of(const char *model, tess_graph_conf graph, int64_t batch, tess_step_conf conf)
{
    struct outcome o;
    struct run r = run_open(model, graph, batch, conf);
    for (int i = 0; i < STEPS; i++) {
        tess_step_result got = run_step(&r, i);
        o.loss[i] = got.loss;
        o.norm[i] = got.grad_norm;
    }
    o.count = tess_graph_param_elements(r.g);
    o.state = states(r.g, TESS_PARTS);
    run_close(&r);

    conf.keep_gradients = true;
    r = run_open(model, graph, batch, conf);
    run_step(&r, 0);
    float *at = o.gradients = tess_alloc((size_t)o.count * sizeof *at);
    for (int k = 0; k < tess_graph_params(r.g); k++) {
        int64_t shape[3];
        tess_tensor_shape(tess_graph_param(r.g, k), shape);
        OK(tess_step_gradient(r.step, tess_graph_param(r.g, k), at));
        at += shape[0] * shape[1];
    }
    run_close(&r);
    return o;
}

static void same_bits(struct outcome a, struct outcome b)
{
    CHECK_EQ(a.count, b.count);
    CHECK(!memcmp(a.loss, b.loss, sizeof a.loss));
    CHECK(!memcmp(a.norm, b.norm, sizeof a.norm));
    CHECK(!memcmp(a.gradients, b.gradients, (size_t)a.count * sizeof *a.gradients));
    CHECK(!memcmp(a.state, b.state, TESS_PARTS * (size_t)a.count * sizeof *a.state));
    free(a.state), free(a.gradients), free(b.state), free(b.gradients);
}

static tess_graph_conf sequence_tiles(int dtype)
{
    return (tess_graph_conf){.dtype = (tess_dtype)dtype, .tile_rows = T};
}

TEST(the_same_run_has_the_same_bits)
{
    for (int dtype = 0; dtype < TESS_REAL_DTYPES; dtype++)
        same_bits(outcome_of(fixture(""), sequence_tiles(dtype), B, (tess_step_conf){0}),
                  outcome_of(fixture(""), sequence_tiles(dtype), B, (tess_step_conf){0}));
}

TEST(recomputed_activations_have_the_same_bits)
{
    for (int dtype = 0; dtype < TESS_REAL_DTYPES; dtype++)
        for (int every = 1; every <= 2; every++)
            same_bits(outcome_of(fixture(""), sequence_tiles(dtype), B, (tess_step_conf){0}),
                      outcome_of(fixture(""), sequence_tiles(dtype), B, (tess_step_conf){.recompute_every = every}));
}

/* The fixture's model with a head of its own. */
static char *untied(void)
{
    json_t *config = json_load_file(fixture("config.json"), 0, NULL);
    json_object_set_new(config, "tie_word_embeddings", json_false());
    char *text = json_dumps(config, 0);
    json_decref(config);
    return text;
}

/* With tiles of one sequence a gradient's sum has one order, however many micro-batches a step has; that of a tied
 * matrix has not, since head and embedding add to it in turns. */
TEST(micro_batches_have_the_same_bits)
{
    char *model = untied();
    for (int dtype = 0; dtype < TESS_REAL_DTYPES; dtype++)
        same_bits(outcome_of(model, sequence_tiles(dtype), 2 * B, (tess_step_conf){0}),
                  outcome_of(model, sequence_tiles(dtype), B, (tess_step_conf){.micro = 2}));
    free(model);
}

/* ---- there and back ---- */

static void check_saved_as_given(const char *dir)
{
    tess_safetensors *given, *saved;
    OK(tess_safetensors_open(fixture(""), &given));
    OK(tess_safetensors_open(dir, &saved));
    CHECK_EQ(tess_safetensors_count(saved), tess_safetensors_count(given));
    for (size_t i = 0; i < tess_safetensors_count(given); i++) {
        const tess_safetensor *a = tess_safetensors_at(given, i), *b = tess_safetensors_find(saved, a->name);
        if (!b || b->rank != a->rank || memcmp(a->dims, b->dims, (size_t)a->rank * sizeof *a->dims))
            CHECK_SAY("%s: missing or of another shape", a->name);
    }
    tess_safetensors_close(given);
    tess_safetensors_close(saved);
}

static void remove_model(const char *dir)
{
    static const char *const names[] = {"config.json", "model.safetensors", ""};
    for (int i = 0; i < 3; i++) {
        char *path = tess_format("%s/%s", dir, names[i]);
        CHECK_EQ(remove(path), 0);
        free(path);
    }
}

TEST(a_saved_model_loads_with_the_same_bits)
{
    for (int dtype = 0; dtype < TESS_REAL_DTYPES; dtype++) {
        /* Parameters in several tiles, so that turned matrices are put together again. */
        tess_graph_conf graph = {.dtype = (tess_dtype)dtype, .tile_elements = 1700};
        char top[] = "test_gpt2.XXXXXX", dir[sizeof top + 8];
        CHECK(mkdtemp(top));
        snprintf(dir, sizeof dir, "%s/model", top);

        struct run a = run_open(fixture(""), graph, B, (tess_step_conf){0});
        run_step(&a, 0);
        run_step(&a, 1);
        OK(tess_model_save(a.model, a.g, dir));
        check_saved_as_given(dir);
        struct run b = run_open(dir, graph, B, (tess_step_conf){0});
        /* Cut otherwise: a file says nothing of tiles. */
        struct run c = run_open(dir, (tess_graph_conf){.dtype = (tess_dtype)dtype}, B, (tess_step_conf){0});
        float *ours = states(a.g, 1), *theirs = states(b.g, 1), *whole = states(c.g, 1);
        const size_t bytes = (size_t)tess_graph_param_elements(a.g) * sizeof *ours;
        CHECK(!memcmp(ours, theirs, bytes));
        CHECK(!memcmp(ours, whole, bytes));
        CHECK(run_step(&a, 2).loss == run_step(&b, 2).loss);
        run_close(&a);
        run_close(&b);
        run_close(&c);
        free(ours), free(theirs), free(whole);
        remove_model(dir);
        CHECK_EQ(rmdir(top), 0);
    }
}

/* A checkpoint of a run whose parameters are in many tiles goes on in one where they are whole. */
TEST(a_checkpoint_says_nothing_of_tiles)
{
    static const char *const names[] = {"state.json", "states.safetensors", "sums.json", ""};
    char dir[] = "test_gpt2.XXXXXX";
    CHECK(mkdtemp(dir));
    struct run a = run_open(fixture(""), (tess_graph_conf){.tile_elements = 1700}, B, (tess_step_conf){0});
    struct run b = run_open(fixture(""), (tess_graph_conf){0}, B, (tess_step_conf){0});
    run_step(&a, 0);
    OK(tess_checkpoint_save(&(tess_checkpoint_conf){.dir = dir, .keep = 1}, NULL, a.g, &(tess_progress){.step = 1}));
    OK(tess_checkpoint_load(dir, 1, NULL, b.g));
    CHECK(tess_param_tiles(tess_graph_param(a.g, 0)) > 1 && tess_param_tiles(tess_graph_param(b.g, 0)) == 1);
    float *ours = states(a.g, TESS_PARTS), *theirs = states(b.g, TESS_PARTS);
    CHECK(!memcmp(ours, theirs, TESS_PARTS * (size_t)tess_graph_param_elements(a.g) * sizeof *ours));
    double loss = run_step(&a, 1).loss;
    CHECK_NEAR(run_step(&b, 1).loss, loss, 1e-6 * loss);
    run_close(&a);
    run_close(&b);
    free(ours), free(theirs);
    for (int i = 0; i < 4; i++) {
        char *path = tess_format("%s/step-00000001/%s", dir, names[i]);
        CHECK_EQ(remove(path), 0);
        free(path);
    }
    CHECK_EQ(rmdir(dir), 0);
}
