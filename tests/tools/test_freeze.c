/* Runs of which a part is frozen: what they hold and move, what they leave, and what goes on from them. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

/* Of wide_setup_with's four blocks the last and the norm behind it are trained, and no table. */
#define FREEZE   "freeze=[\"wte.*\", \"*.wpe.weight\", \"h.0-2.*\"]"
#define MEMBERS  "\"train_batch_size\": 4, \"steps\": 4, \"bf16\": {\"enabled\": true}"
#define RESUMING "checkpoint.dir=ck", "checkpoint.every=2", "overwrite=false"

static long long trained, all; /* of the last run */
static void read_trained(void)
{
    const char *at = strstr(ran.out, "trained are ");
    trained = all = 0;
    CHECK(at && sscanf(at, "trained are %lld of %lld parameters", &trained, &all) == 2);
    CHECK(trained > 0 && trained < all);
}

static double of_tier(const json_t *metrics, const char *tier, const char *name)
{
    const json_t *last = json_array_get(metrics, json_array_size(metrics) - 1);
    return json_number_value(json_object_get(json_object_get(last, tier), name));
}

/* ---- less is held and moved ---- */

TEST(what_is_frozen_has_no_states)
{
    wide_setup_with(MEMBERS);
    DONE("train", "run.json", "output=full");
    CHECK(!strstr(ran.out, "trained are"));
    DONE("train", "run.json", FREEZE);
    read_trained();
    json_t *full = read_metrics("full/metrics.jsonl"), *some = read_metrics("out/metrics.jsonl");
    const double less = of_tier(full, "cpu", "resident_bytes") - of_tier(some, "cpu", "resident_bytes");
    /* Master and moments; vectors have no master, and a tile of the step may be on its way out on a busy machine. */
    if (!(less >= 12. * (double)(all - trained) * 0.95))
        CHECK_SAY("%.0f bytes less are held, of %lld parameters that are frozen", less, all - trained);
    CHECK(of_tier(some, "cpu", "peak_bytes") < 0.6 * of_tier(full, "cpu", "peak_bytes"));
    json_decref(full);
    json_decref(some);
    DONE("estimate", "run.json");
    const double moments = line_of("  moments"), needs = line_of("  in all");
    CHECK(moments > 0 && needs > 0);
    DONE("estimate", "run.json", FREEZE);
    CHECK_HAS(ran.out, "of them trained");
    if (!(fabs(line_of("  moments") - 8. * (double)trained) < 0.01 * 8 * (double)trained))
        CHECK_SAY("%g bytes of moments for %lld trained parameters", line_of("  moments"), trained);
    CHECK(line_of("  in all") < 0.6 * needs);
}

TEST(what_is_frozen_is_read_and_never_written)
{
    wide_setup_with(MEMBERS ", \"memory\": {\"cpu\": \"12MiB\", \"path\": \"swap\"}");
    DONE("train", "run.json", "output=full", "zero_optimization.offload_param.device=nvme",
         "zero_optimization.offload_optimizer.device=nvme");
    DONE("train", "run.json", FREEZE, "zero_optimization.offload_param.device=nvme",
         "zero_optimization.offload_optimizer.device=nvme");
    read_trained();
    json_t *full = read_metrics("full/metrics.jsonl"), *some = read_metrics("out/metrics.jsonl");
    const double moved = of_tier(some, "disk", "read_bytes"), before = of_tier(full, "disk", "read_bytes");
    if (!(moved > 0 && moved < 0.6 * before)) CHECK_SAY("%.0f bytes are read, %.0f were", moved, before);
    /* Masters, moments and weights of what is trained, 14 bytes a parameter, and activations: how many depends on the
     * rates that the plan goes by. All parameters, trained, are four times as many. */
    const double written = of_tier(some, "disk", "write_bytes");
    if (!(written < 24. * (double)trained && written < 0.6 * of_tier(full, "disk", "write_bytes")))
        CHECK_SAY("%.0f bytes are written, for %lld trained parameters", written, trained);
    json_decref(full);
    json_decref(some);
    DONE("train", "run.json", FREEZE, "memory.cpu=auto", "memory.path=", "output=whole");
    CHECK(same_file("whole/model/model.safetensors", TINY_WEIGHTS));
}

/* ---- what a run leaves ---- */

/* Whether a tensor of two files has the same bytes. */
static bool same_tensor(const struct weights *a, const struct weights *b, const char *name)
{
    const json_t *of = json_object_get(json_object_get(a->header, name), "data_offsets");
    const size_t bytes =
        (size_t)(json_integer_value(json_array_get(of, 1)) - json_integer_value(json_array_get(of, 0)));
    return bytes > 0 && !memcmp(a->file + weights_place(a, name), b->file + weights_place(b, name), bytes);
}

TEST(what_is_frozen_is_saved_byte_by_byte)
{
    static const char *const stays[] = {"transformer.wte.weight", "transformer.h.1.attn.c_attn.weight",
                                        "transformer.h.2.mlp.c_fc.bias"};
    static const char *const moves[] = {"transformer.h.3.attn.c_attn.weight", "transformer.ln_f.weight"};
    static const char *const as[][2] = {{"save_dtype=fp32", "bf16.enabled=false"},
                                        {"save_dtype=bf16", "bf16.enabled=true"}};
    for (int k = 0; k < 2; k++) {
        wide_setup_with(MEMBERS);
        DONE("train", "run.json", "output=base", "steps=1", as[k][0], as[k][1]);
        DONE("train", "run.json", FREEZE, "model=base/model", "optimizer.params.lr=1e-3", as[k][0], as[k][1]);
        struct weights a = weights_read("base/model/model.safetensors"), b = weights_read(TINY_WEIGHTS);
        for (int i = 0; i < 3; i++)
            if (!same_tensor(&a, &b, stays[i])) CHECK_SAY("%s, %s: other bytes", as[k][0], stays[i]);
        for (int i = 0; i < 2; i++)
            if (same_tensor(&a, &b, moves[i])) CHECK_SAY("%s, %s: was not trained", as[k][0], moves[i]);
        weights_free(&a);
        weights_free(&b);
    }
}

TEST(a_frozen_run_goes_on)
{
    for (int bf16 = 0; bf16 < 2; bf16++) {
        wide_setup_with(MEMBERS);
        const char *const dtype = bf16 ? "bf16.enabled=true" : "bf16.enabled=false";
        DONE("train", "run.json", FREEZE, dtype, "output=whole");
        DONE("train", "run.json", FREEZE, dtype, RESUMING, "steps=2");
        const long frozen = file_size("ck/step-00000002/states.safetensors");
        DONE("train", "run.json", FREEZE, dtype, RESUMING, "checkpoint.resume=true");
        CHECK(!strstr(ran.err, "another freeze"));
        CHECK(same_file("whole/model/model.safetensors", TINY_WEIGHTS));
        DONE("export", "ck", "exported");
        CHECK(same_file("exported/model.safetensors", TINY_WEIGHTS));
        DONE("train", "run.json", "freeze=h.0-2.*", dtype, RESUMING, "checkpoint.resume=true", "steps=6");
        CHECK_HAS(ran.err, "tessera: resuming with another freeze: ");
        CHECK_HAS(ran.err, "moments of parameters that were frozen begin at zero");
        DONE("train", "run.json", dtype, RESUMING, "checkpoint.resume=true", "steps=8");
        CHECK_HAS(ran.err, "tessera: resuming with another freeze: ");
        CHECK(file_size("ck/step-00000008/states.safetensors") > 2 * frozen);
        DONE("train", "run.json", FREEZE, dtype, RESUMING, "checkpoint.resume=true", "steps=10"); /* and back */
        CHECK_HAS(ran.err, "tessera: resuming with another freeze: ");
    }
}

/* Its owner moves it beside training: it has fp32 in files whatever the others have. */
TEST(a_bias_of_routers_stays_as_it_is)
{
    fresh();
    write_text("run.json",
               "{\"model\": \"" TESS_FIXTURES "/families/deepseek-v3\", \"data\": {\"train\": \"" TESS_FIXTURES
               "/families/tokens.bin\", \"seq_length\": 21}, \"output\": \"out\", \"overwrite\": true,"
               " \"save_dtype\": \"bf16\", \"bf16\": {\"enabled\": true}, \"train_batch_size\": 3,"
               " \"optimizer\": {\"params\": {\"lr\": 0.01}}, \"steps\": 4}\n");
    DONE("train", "run.json", "output=whole");
    DONE("train", "run.json", RESUMING, "steps=2");
    DONE("train", "run.json", RESUMING, "checkpoint.resume=true");
    CHECK(same_file("whole/model/model.safetensors", TINY_WEIGHTS));
    DONE("export", "ck", "exported");
    CHECK(same_file("exported/model.safetensors", TINY_WEIGHTS));
    struct weights a = weights_read(TESS_FIXTURES "/families/deepseek-v3/model.safetensors"),
                   b = weights_read(TINY_WEIGHTS);
    CHECK(same_tensor(&a, &b, "model.layers.1.mlp.gate.e_score_correction_bias"));
    CHECK(same_tensor(&a, &b, "model.layers.2.mlp.gate.e_score_correction_bias"));
    CHECK(!same_tensor(&a, &b, "model.layers.2.mlp.gate.weight"));
    weights_free(&a);
    weights_free(&b);
}

/* ---- what cannot be ---- */

/* The rest of them: refusals.tsv. */
TEST(no_pattern_freezes_nothing)
{
    tiny_setup();
    DONE("train", "run.json", "freeze=[]", "steps=1");
    CHECK(!strstr(ran.out, "trained are"));
}
