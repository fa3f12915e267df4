/* Families of decoders, from Hugging Face directories, against PyTorch (fixtures/make_families.py): losses,
 * gradients and norms of six steps; and the bits that must not depend on how a step is cut up, nor on a way through the
 * disk. */
#define CHECK_MAIN
#include "models/files/data/data.h"
#include "models/files/safetensors/safetensors.h"
#include "models/models.h"
#include "tests/check.h"
#include "tests/rows.h"
#include <jansson.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
enum { B = 3, T = 21, VOCAB = 101, STEPS = 6, MOST = B }; /* of the fixtures */
static const char *const families[] = {"llama3",
                                       "llama-linear",
                                       "qwen2",
                                       "qwen3",
                                       "mistral",
                                       "qwen2-window",
                                       "qwen3-window",
                                       "gemma2",
                                       "gpt-neox",
                                       "gpt-neox-serial",
                                       "bert",
                                       "bert-both",
                                       "bert-label",
                                       "roberta",
                                       "roberta-label",
                                       "t5",
                                       "t5-gated",
                                       "mixtral",
                                       "qwen3-moe",
                                       "qwen3-moe-step",
                                       "qwen3-5",
                                       "qwen3-5-layers",
                                       "qwen3-5-published",
                                       "qwen2-yarn",
                                       "llama-dynamic",
                                       "phi3",
                                       "phi3-short",
                                       "phi4",
                                       "olmo2",
                                       "olmo2-biases",
                                       "olmo3",
                                       "smollm3",
                                       "smollm3-window",
                                       "granite",
                                       "gemma3",
                                       "gemma3-older",
                                       "gpt-oss",
                                       "gpt-oss-mxfp4",
                                       "llama-nf4",
                                       "llama-int8",
                                       "deepseek-v3",
                                       "deepseek-v3-wide",
                                       "deepseek-v3-fp8",
                                       "megatron-bert",
                                       "megatron-bert-both",
                                       "megatron-bert-label"};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* A path below the fixtures' directory. */
static const char *fixture(const char *family, const char *name)
{
    static char path[4][4096];
    static int turn;
    turn = (turn + 1) % 4;
    snprintf(path[turn], sizeof path[turn], TESS_FIXTURES "/families/%s%s%s", family, *name ? "/" : "", name);
    return path[turn];
}

static const char *tokens(void)
{
    return fixture("tokens.bin", "");
}
#include "tests/models/steps.h"

static bool no_stack(const void *context, const char *name)
{
    (void)context, (void)name;
    return false;
}

/* ---- against PyTorch ---- */

static void check_steps(const char *family, tess_dtype dtype, int64_t tile_elements, double tolerance)
{
    json_t *expected = json_load_file(fixture(family, "expected.json"), 0, NULL);
    struct run r = run_open(fixture(family, ""), (tess_graph_conf){.dtype = dtype, .tile_elements = tile_elements}, B,
                            (tess_step_conf){0});
    const double off =
        json_number_value(json_object_get(expected, "bf16_norms_off")); /* PyTorch's own, where rows choose */
    /* By the sixth step the noise of bf16 is in the weights as well. */
    const double of_norms = dtype == TESS_F32 ? tolerance : off > 0 ? fmax(3e-2, 1.2 * off) : 1.5 * tolerance;
    for (size_t i = 0; i < STEPS; i++) {
        const double loss = json_number_value(json_array_get(json_object_get(expected, "loss"), i));
        const double norm = json_number_value(json_array_get(json_object_get(expected, "grad_norm"), i));
        const tess_step_result got = run_step(&r, (int64_t)i);
        if (!(fabs(got.loss - loss) <= tolerance * loss) || !(fabs(got.grad_norm - norm) <= of_norms * norm))
            CHECK_SAY("%s %s, step %zu: loss %.7g, norm %.7g, PyTorch has %.7g and %.7g", family,
                      tess_dtype_name(dtype), i, got.loss, got.grad_norm, loss, norm);
    }
    run_close(&r);
    json_decref(expected);
}

TEST(six_steps_match_pytorch)
{
    for (int k = 0; k < FAMILIES; k++) check_steps(families[k], TESS_F32, 0, 1e-4);
}

TEST(six_steps_in_bf16_are_near_pytorch)
{
    for (int k = 0; k < FAMILIES; k++) check_steps(families[k], TESS_BF16, 0, 1e-2);
}

/* Each element of what bitsandbytes stores has the bits that it reads there. */
TEST(codes_are_read_as_they_were_meant)
{
    for (int k = 0; k < FAMILIES; k++) {
        json_t *expected = json_load_file(fixture(families[k], "expected.json"), 0, NULL), *value;
        const char *name;
        tess_model *m;
        tess_safetensors *set;
        json_object_foreach(json_object_get(expected, "bits"), name, value)
        {
            uint64_t sum = 0;
            OK(tess_model_open(fixture(families[k], ""), NULL, &m));
            OK(tess_safetensors_open(fixture(families[k], ""), &set));
            OK(tess_safetensors_unstack(set, no_stack, NULL));
            const tess_safetensor *t = tess_safetensors_find(set, name);
            CHECK(t);
            float *x = tess_alloc((size_t)t->elements * sizeof *x);
            for (int64_t i = 0; i < t->elements; i += 37)
                OK(tess_safetensor_read(t, i, t->elements - i < 37 ? t->elements - i : 37, x + i));
            for (int64_t i = 0; i < t->elements; i++) sum += (uint64_t)((uint32_t *)(void *)x)[i] * (uint64_t)(i + 1);
            if ((json_int_t)(sum & ((1ull << 53) - 1)) != json_integer_value(value))
                CHECK_SAY("%s %s: has other bits", families[k], name);
            free(x);
            tess_safetensors_close(set);
            tess_model_close(m);
        }
        json_decref(expected);
    }
}

/* Of four, and of two. */
TEST(an_expert_may_have_matrices_of_several_tiles)
{
    check_steps("mixtral", TESS_F32, 160, 1e-4);
    check_steps("qwen3-moe", TESS_F32, 128, 1e-4);
}

static const char *const frozen[] = {"llama3", "bert", "bert-label", "t5"};

TEST(six_steps_of_what_is_not_frozen_match_pytorch)
{
    for (int k = 0; k < 4; k++) frozen_check(frozen[k], TESS_F32, 1e-4);
    for (int k = 0; k < 4; k++) frozen_check(frozen[k], TESS_BF16, 1e-2);
}

static const char *const adapted[] = {"llama3", "llama-all", "llama-dora", "bert-label", "t5"};

TEST(six_steps_of_adapters_match_peft)
{
    for (int k = 0; k < 5; k++) adapted_check(adapted[k], TESS_F32, 1e-4);
    for (int k = 0; k < 5; k++) adapted_check(adapted[k], TESS_BF16, 1e-2);
}

/* ---- config.json as others publish it ---- */

TEST(published_configurations_open)
{
    for (struct rows r = rows_of(TESS_TESTS "/models/configs.tsv"); rows_next(&r);) {
        tess_model *m = NULL;
        tess_error_clear();
        const tess_status status = tess_model_open(NULL, r.column[1], &m);
        if ((status == TESS_OK) != !*r.column[2] || !strstr(tess_error_text(), r.column[2]))
            CHECK_SAY("%s:%d: %s: \"%s\", expected \"%s\"", r.path, r.line, r.column[0], tess_error_text(),
                      r.column[2]);
        tess_model_close(m);
    }
}

/* On a GPU, in bf16 and fp16: but for the gradient of T5's biases, and heads of 12, which nobody published. What is
 * dropped of attention's weights is drawn beside them. */
TEST(published_models_are_on_tensor_cores)
{
    int on = 0;
    for (struct rows r = rows_of(TESS_TESTS "/models/configs.tsv"); rows_next(&r);)
        for (tess_dtype t = TESS_BF16; t <= TESS_F16 && !*r.column[2]; t++) {
            tess_model *m = NULL;
            tess_network net;
            tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = t});
            char said[200] = "";
            CHECK_EQ(tess_model_open(NULL, r.column[1], &m), TESS_OK);
            CHECK_EQ(tess_model_build(m, g, 1, 128, TESS_FOR_LOSS, &net), TESS_OK);
            const char *slow = tess_graph_slow(g, said, sizeof said);
            if (slow && strstr(said, "(attn_pdrop)")) slow = NULL, *said = 0;
            const bool t5 = strstr(r.column[0], "t5"), narrow = strstr(r.column[0], "Phi-3-mini-128k, with narrower");
            const char *expected = strstr(r.column[0], "Qwen3.5") ? "linear attention"
                                   : t5                           ? "bias by distance"
                                   : narrow                       ? "heads of"
                                                                  : "";
            if (!!slow != !!*expected || !strstr(said, expected))
                CHECK_SAY("%s in %s: \"%s\", expected \"%s\"", r.column[0], tess_dtype_name(t), said, expected);
            on += !slow;
            tess_graph_free(g);
            tess_model_close(m);
        }
    CHECK(on > 30);
}

/* Behind a directory's name null leaves a field out, but where it is a value of the field. */
TEST(null_leaves_a_field_out)
{
    static const struct {
        const char *changes, *has, *lacks;
    } cases[] = {{"{\"rms_norm_eps\": null}", "vocab_size", "rms_norm_eps"},
                 {"{\"sliding_window\": null}", "\"sliding_window\": null", "rotary_twist"},
                 {"{\"rotary_twist\": null}", "vocab_size", "rotary_twist"}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_model *m = NULL;
        CHECK_EQ(tess_model_open(fixture("mistral", ""), cases[k].changes, &m), TESS_OK);
        if (!m) continue;
        CHECK_HAS(tess_model_json(m), cases[k].has);
        CHECK(!strstr(tess_model_json(m), cases[k].lacks));
        tess_model_close(m);
    }
}

TEST(patterns_are_those_of_a_shell_with_numbers)
{
    static const struct {
        const char *pattern, *name;
        bool matches;
    } cases[] = {{"*", "a.b", true},
                 {"*.embed_tokens.*", "model.embed_tokens.weight", true},
                 {"*.embed_tokens.*", "embed_tokens.weight", false},
                 {"layers.0-11.*", "layers.0.x", true},
                 {"layers.0-11.*", "layers.11.x", true},
                 {"layers.0-11.*", "layers.12.x", false},
                 {"layers.0-11.*", "layers.112.x", false},
                 {"layers.0-11.*", "layers.1", false},
                 {"*.0-11.*", "model.layers.7.0-11.x", true},
                 {"*0-11.x", "layers.112.x", false},
                 {"*0-11.x", "layers.11.x", true},
                 {"*10-12.x", "a.9.b.10.x", true},
                 {"h.?.w", "h.3.w", true},
                 {"h.?.w", "h.13.w", false},
                 {"h.1?.w", "h.13.w", true},
                 {"a*b*c", "aXbYbc", true},
                 {"a*b*c", "aXbYbd", false},
                 {"", "", true},
                 {"", "a", false},
                 {"**a", "a", true},
                 {"x[0].w", "x[0].w", true},
                 {"h.5-3.w", "h.4.w", false},
                 {"h.99999999999999999999-3.w", "h.4.w", false},
                 {"h.03-007.w", "h.5.w", true}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        if (tess_pattern_matches(cases[k].pattern, cases[k].name) != cases[k].matches)
            CHECK_SAY("%s and %s", cases[k].pattern, cases[k].name);
    char *expression = tess_pattern_expression("layers.9-11.*_proj?");
    CHECK_STR(expression, "layers\\.(9|10|11)\\..*_proj.");
    free(expression);
    CHECK(tess_pattern_is("a.0-3.b") && tess_pattern_is("*") && !tess_pattern_is("q_proj"));
    CHECK_EQ(tess_pattern_distance("*.q_prj.*", "layers.0.q_proj.weight"), 1);
    CHECK_EQ(tess_pattern_distance("layers.0-3.qproj.*", "layers.2.q_proj.weight"), 1);
    CHECK_EQ(tess_pattern_distance("layers.0-3.*", "layers.2.q_proj.weight"), 0);
}

/* ||ours - theirs|| / ||theirs||, where that is more than a hundredth of the whole gradient's: a key's bias moves all
 * logits of a query alike, which softmax does not see, so that its gradient is 0 but for rounding. */
static double distance(const float *ours, const float *theirs, int64_t n, double whole)
{
    double far = 0, all = 0;
    for (int64_t i = 0; i < n; i++) {
        far += ((double)ours[i] - theirs[i]) * ((double)ours[i] - theirs[i]);
        all += (double)theirs[i] * theirs[i];
    }
    return sqrt(far) / fmax(sqrt(all), whole / 100);
}

/* In files the names of a body begin with its own. */
static const tess_safetensor *find(const tess_safetensors *set, const char *name)
{
    static const char *const before[] = {"", "model.", "bert.", "roberta.", "gpt_neox."};
    const tess_safetensor *t = strcmp(name, "embed_out.weight") ? NULL : tess_safetensors_find(set, "lm_head.weight");
    for (size_t k = 0; k < sizeof before / sizeof *before && !t; k++) {
        char full[300];
        snprintf(full, sizeof full, "%s%s", before[k], name);
        t = tess_safetensors_find(set, full);
    }
    return t;
}

/* A stack of matrices has a star for the number that each has in files, or is one tensor there. */
static const char *member_name(const char *name, int64_t member, int64_t members)
{
    static char out[256];
    const char *star = strchr(name, '*');
    if (star)
        snprintf(out, sizeof out, "%.*s%lld%s", (int)(star - name), name, (long long)member, star + 1);
    else if (members > 1)
        snprintf(out, sizeof out, "%s.%lld", name, (long long)member);
    else
        snprintf(out, sizeof out, "%s", name);
    return out;
}

/* PyTorch's gradient of the first step. */
static double norm_of(const char *path)
{
    json_t *expected = json_load_file(path, 0, NULL);
    const double norm = json_number_value(json_array_get(json_object_get(expected, "grad_norm"), 0));
    json_decref(expected);
    return norm;
}

static void check_gradients(const char *family, tess_dtype dtype, double tolerance)
{
    struct run r =
        run_open(fixture(family, ""), (tess_graph_conf){.dtype = dtype}, B, (tess_step_conf){.keep_gradients = true});
    tess_safetensors *set;
    OK(tess_safetensors_open(fixture(family, "gradients"), &set));
    run_step(&r, 0);
    const double whole = norm_of(fixture(family, "expected.json"));
    size_t tensors = 0;
    for (int k = 0; k < tess_graph_params(r.g); k++) {
        tess_tensor *p = tess_graph_param(r.g, k);
        int64_t shape[3];
        const int64_t members = tess_param_members(p);
        if (tess_param_frozen(p)) continue; /* PyTorch has a buffer */
        const int64_t n = (tess_tensor_shape(p, shape) == 2 ? shape[0] * shape[1] : shape[0]) / members;
        float *ours = tess_alloc((size_t)((members + 1) * n) * sizeof *ours), *theirs = ours + members * n;
        OK(tess_step_gradient(r.step, p, ours));
        for (int64_t e = 0; e < members; e++, tensors++) {
            const char *name = member_name(tess_tensor_name(p), e, members);
            const tess_safetensor *t = find(set, name);
            if (!t || t->elements != n) {
                CHECK_SAY("%s %s: PyTorch has no such parameter", family, name);
                continue;
            }
            OK(tess_safetensor_read(t, 0, n, theirs));
            const double far = distance(ours + e * n, theirs, n, whole);
            if (!(far <= tolerance))
                CHECK_SAY("%s %s %s: the gradient is off by %.3g", family, tess_dtype_name(dtype), name, far);
        }
        free(ours);
    }
    CHECK_EQ(tensors, tess_safetensors_count(set));
    tess_safetensors_close(set);
    run_close(&r);
}

TEST(gradients_match_pytorch)
{
    for (int k = 0; k < FAMILIES; k++) check_gradients(families[k], TESS_F32, 1e-4);
}

/* PyTorch's own in bf16 are up to 0.04 off: the weights are drawn so large that attention is sharp. Of k's bias nearly
 * all cancels out: on cores that multiply in bf16 Gemma 3's is 0.077 off. */
TEST(gradients_in_bf16_are_near_pytorch)
{
    for (int k = 0; k < FAMILIES; k++) {
        json_t *expected = json_load_file(fixture(families[k], "expected.json"), 0, NULL);
        const double theirs = json_number_value(json_object_get(expected, "bf16_gradients_off"));
        check_gradients(families[k], TESS_BF16, fmax(8e-2, 1.2 * theirs));
        json_decref(expected);
    }
}

/* What is drawn from is what was trained: the loss of one target, from the logits that generation takes. */
TEST(logits_are_those_of_the_loss)
{
    for (int k = 0; k < FAMILIES; k++) {
        tess_model *model;
        tess_network of_loss, of_logits;
        tess_step *loss, *logits;
        tess_step_result result;
        int32_t ids[T], targets[T];
        float row[VOCAB];
        double sum = 0;
        start();
        OK(tess_model_open(fixture(families[k], ""), NULL, &model));
        if (tess_model_answers(model) != TESS_ANSWERS_NEXT) {
            tess_model_close(model);
            continue;
        }
        tess_graph *g = tess_graph_new(&(tess_graph_conf){0}), *other = tess_graph_new(&(tess_graph_conf){.share = g});
        OK(tess_model_build(model, g, 1, T, TESS_FOR_LOSS, &of_loss));
        OK(tess_model_build(model, other, 1, T, TESS_FOR_LOGITS, &of_logits));
        OK(tess_step_new(of_loss.output, &(tess_step_conf){0}, &loss));
        OK(tess_step_new(of_logits.output, &(tess_step_conf){0}, &logits));
        OK(tess_model_load(model, g, 1));
        for (int i = 0; i < T; i++) ids[i] = i * 37 % VOCAB, targets[i] = i == T - 2 ? 5 : -100;
        OK(tess_step_feed(loss, of_loss.ids, ids));
        OK(tess_step_feed(loss, of_loss.targets, targets));
        OK(tess_step_run(loss, &(tess_step_input){0}, &result));
        OK(tess_step_feed(logits, of_logits.ids, ids));
        OK(tess_step_feed(logits, of_logits.index, &(int32_t){T - 2}));
        OK(tess_step_run(logits, &(tess_step_input){0}, &(tess_step_result){0}));
        OK(tess_step_output(logits, row));
        for (int i = 0; i < VOCAB; i++) sum += exp((double)row[i]);
        const double want = log(sum) - (double)row[5];
        if (!(fabs(result.loss - want) <= 1e-5 * fabs(want)))
            CHECK_SAY("%s: the loss is %.7g, of the logits %.7g", families[k], result.loss, want);
        tess_step_free(logits), tess_step_free(loss);
        tess_graph_free(other), tess_graph_free(g);
        tess_model_close(model);
    }
}

/* ---- the same bits ---- */

struct outcome {
    double loss, norm;
    int64_t count;
    float *masters;
};

static float *masters_of(const tess_graph *g)
{
    float *all = tess_alloc((size_t)tess_graph_param_elements(g) * sizeof *all), *at = all;
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        for (int64_t j = 0; j < tess_param_pieces(p); j++) {
            const tess_piece piece = tess_param_piece(p, j);
            const int64_t n = piece.rows * piece.cols;
            float *tile;
            OK(tess_param_map(p, j, TESS_MASTER, TESS_R, &tile));
            memcpy(at, tile, (size_t)n * sizeof *at);
            tess_param_unmap(p, j, TESS_MASTER);
            at += n;
        }
    }
    return all;
}

static struct outcome outcome_of(const char *family, int dtype, tess_step_conf conf)
{
    struct outcome o = {0};
    struct run r =
        run_open(fixture(family, ""), (tess_graph_conf){.dtype = (tess_dtype)dtype, .tile_rows = T}, B, conf);
    run_step(&r, 0);
    const tess_step_result got = run_step(&r, 1);
    o.loss = got.loss, o.norm = got.grad_norm;
    o.count = tess_graph_param_elements(r.g);
    o.masters = masters_of(r.g);
    run_close(&r);
    return o;
}

TEST(recomputed_activations_have_the_same_bits)
{
    for (int k = 0; k < FAMILIES; k++)
        for (int dtype = 0; dtype < TESS_REAL_DTYPES; dtype++) {
            struct outcome a = outcome_of(families[k], dtype, (tess_step_conf){0});
            struct outcome b = outcome_of(families[k], dtype, (tess_step_conf){.recompute_every = 1});
            CHECK(a.loss == b.loss && a.norm == b.norm && a.count == b.count);
            CHECK(!memcmp(a.masters, b.masters, (size_t)a.count * sizeof *a.masters));
            static const int some[] = {1, 2, 5, 6, 9, 11};
            struct outcome c = outcome_of(
                families[k], dtype, (tess_step_conf){.recompute_every = 1, .layout.keep = some, .layout.keeps = 6});
            CHECK(a.loss == c.loss && a.norm == c.norm &&
                  !memcmp(a.masters, c.masters, (size_t)a.count * sizeof *a.masters));
            free(a.masters), free(b.masters), free(c.masters);
        }
}

/* ---- there and back ---- */

TEST(a_saved_model_has_the_tensors_that_were_given)
{
    for (int k = 0; k < FAMILIES; k++) {
        char top[] = "test_families.XXXXXX", dir[sizeof top + 8], path[sizeof dir + 32];
        static const char *const names[] = {"/config.json", "/model.safetensors", "/batches.json", ""};
        tess_safetensors *given, *saved;
        CHECK(mkdtemp(top));
        snprintf(dir, sizeof dir, "%s/model", top);
        struct run a =
            run_open(fixture(families[k], ""), (tess_graph_conf){.tile_elements = 700}, B, (tess_step_conf){0});
        run_step(&a, 0);
        OK(tess_model_save(a.model, a.g, dir));
        OK(tess_safetensors_open(fixture(families[k], ""), &given));
        OK(tess_safetensors_open(dir, &saved));
        const bool unpacked = strstr(families[k], "mxfp4") || strstr(families[k], "fp8") ||
                              strstr(families[k], "-nf4") || strstr(families[k], "-int8");
        size_t left = 0; /* what sees images, and guesses further tokens */
        for (size_t i = 0; i < tess_safetensors_count(given) && !unpacked; i++) {
            const tess_safetensor *x = tess_safetensors_at(given, i), *y = tess_safetensors_find(saved, x->name);
            const bool leaves = strstr(x->name, "visual.") || !strncmp(x->name, "mtp.", 4);
            left += leaves;
            if (leaves && !y) continue;
            if (!y || y->rank != x->rank || memcmp(y->dims, x->dims, (size_t)x->rank * sizeof *x->dims))
                CHECK_SAY("%s %s: missing or of another shape", families[k], x->name);
        }
        if (!unpacked) CHECK_EQ(tess_safetensors_count(saved), tess_safetensors_count(given) - left);
        tess_safetensors_close(given);
        tess_safetensors_close(saved);
        snprintf(path, sizeof path, "%s/batches.json", dir);
        char *batches = realpath(fixture(families[k], "batches.json"), NULL);
        const bool linked = batches && symlink(batches, path) == 0;
        free(batches);
        struct run b = run_open(dir, (tess_graph_conf){.tile_elements = 700}, B, (tess_step_conf){0});
        CHECK(run_step(&a, 1).loss == run_step(&b, 1).loss);
        run_close(&a);
        run_close(&b);
        for (int i = 0; i < 4; i++) {
            if (i == 2 && !linked) continue;
            snprintf(path, sizeof path, "%s%s", dir, names[i]);
            CHECK_EQ(remove(path), 0);
        }
        CHECK_EQ(rmdir(top), 0);
    }
}
