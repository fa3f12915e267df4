/* Runs by each optimizer: states shared out at a stage of ZeRO, resting on disk, and resumed by other ranks have the
 * bits of one rank without any of it; checkpoints name whose states they hold; and who has fewer of them moves less. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define OFFLOAD "zero_optimization.offload_optimizer."

static const struct optimizer {
    const char *type, *params;
    int stage;            /* that it is tried at */
    const char *state[2]; /* what its states are called */
    int moments;
    const char *keeping; /* optimizer_states; NULL: fp32 */
    bool few;            /* gradients wait in bf16 */
} optimizers[] = {
    {"SGD", "\"lr\": 0.1", 3, {0}, 0, NULL, false},
    {"SGD",
     "\"lr\": 0.1, \"momentum\": 0.9, \"nesterov\": true, \"weight_decay\": 0.01",
     2,
     {"momentum_buffer"},
     1,
     NULL,
     true},
    {"SGD", "\"lr\": 0.1, \"momentum\": 0.9, \"dampening\": 0.5", 3, {"momentum_buffer"}, 1, "bf16", false},
    {"Lion", "\"lr\": 3e-4, \"weight_decay\": 0.1", 1, {"exp_avg"}, 1, "int8", true},
    {"Adagrad", "\"lr\": 0.05, \"lr_decay\": 0.01, \"initial_accumulator_value\": 0.1", 3, {"sum"}, 1, "bf16", false},
    {"AdamW", "\"lr\": 0.01, \"weight_decay\": 0.1", 2, {"exp_avg", "exp_avg_sq"}, 2, "8bit", true},
    {"AdamW", "\"lr\": 0.01", 3, {"exp_avg", "exp_avg_sq"}, 2, "bf16", true},
    {"Muon", "\"lr\": 0.02, \"weight_decay\": 0.1", 1, {"momentum_buffer"}, 1, NULL, false},
    {"Muon", "\"lr\": 0.02, \"adam_lr\": 0.001, \"betas\": [0.9, 0.95]", 2, {"momentum_buffer"}, 1, "8bit", true},
    {"Muon",
     "\"lr\": 0.01, \"nesterov\": false, \"adjust_lr_fn\": \"match_rms_adamw\", \"ns_steps\": 3",
     3,
     {"momentum_buffer"},
     1,
     "bf16",
     false},
    {"Adafactor", "\"weight_decay\": 0.1", 3, {"exp_avg_sq_factors"}, 1, NULL, false},
    {"Adafactor",
     "\"lr\": 0.001, \"scale_parameter\": false, \"relative_step\": false",
     1,
     {"exp_avg_sq_factors"},
     1,
     NULL,
     false},
};
enum { OPTIMIZERS = sizeof optimizers / sizeof *optimizers };

/* Biases have rates of their own. */
static const char *optimizer_of(const struct optimizer *o)
{
    static char text[480];
    snprintf(text, sizeof text,
             "\"optimizer\": {\"type\": \"%s\", \"params\": {%s}, \"groups\": [{\"match\": [\"*.bias\", \"wpe.*\"], "
             "\"lr_scale\": 0.5, \"weight_decay\": 0.02}]}, \"optimizer_states\": \"%s\", \"data_types\": "
             "{\"grad_accum_dtype\": \"%s\"}",
             o->type, o->params, o->keeping ? o->keeping : "fp32", o->few ? "bf16" : "fp32");
    return text;
}

static void setup(const struct optimizer *o)
{
    char extra[800];
    snprintf(extra, sizeof extra,
             ", %s, \"deterministic\": true, \"train_micro_batch_size_per_gpu\": 1, \"bf16\": {\"enabled\": true}",
             optimizer_of(o));
    tiny_setup_with(extra);
    mkdir("swap", 0777);
}

/* The states that a checkpoint has of a parameter, by their names. */
static void check_states(const struct optimizer *o, const char *dir)
{
    char path[200];
    snprintf(path, sizeof path, "%s/states.safetensors", dir);
    struct weights w = weights_read(path);
    CHECK(json_object_get(w.header, "h.0.mlp.c_fc.weight") != NULL);
    for (int m = 0; m < 2; m++) {
        const bool bf16 = o->keeping && !strcmp(o->keeping, "bf16");
        const json_t *t =
            json_object_get(w.header, fmt("h.0.mlp.c_fc.weight.%s", m < o->moments ? o->state[m] : "exp_avg_sq"));
        CHECK(!t == (m >= o->moments));
        if (t) CHECK_STR(json_string_value(json_object_get(t, "dtype")), bf16 ? "BF16" : "F32");
    }
    weights_free(&w);
    snprintf(path, sizeof path, "%s/state.json", dir);
    json_t *state = json_load_file(path, 0, NULL), *of = json_object_get(state, "optimizer");
    CHECK_STR(json_string_value(json_object_get(of, "name")), o->type);
    CHECK_EQ(json_integer_value(json_object_get(of, "moments")), o->moments);
    const char *states = o->keeping && !strcmp(o->keeping, "int8") ? "8bit" : o->keeping; /* has two names */
    if (states)
        CHECK_STR(json_string_value(json_object_get(of, "states")), states);
    else
        CHECK(!json_object_get(of, "states"));
    json_decref(state);
}

TEST(shared_out_on_disk_and_resumed_have_the_same_bits)
{
    for (int k = 0; k < OPTIMIZERS; k++) {
        const struct optimizer *o = &optimizers[k];
        setup(o);
        const char *stage = fmt("zero_optimization.stage=%d", o->stage);
        DONE("train", "run.json", "output=one");
        DONE_RANKS(2, "train", "run.json", stage, "checkpoint.dir=ck", "checkpoint.every=2", "steps=2",
                   "memory.path=swap", OFFLOAD "device=nvme");
        check_states(o, "ck/step-00000002");
        DONE("train", "run.json", "checkpoint.dir=ck", "--resume", "memory.path=swap");
        if (!same_file("out/model/model.safetensors", "one/model/model.safetensors"))
            CHECK_SAY("%s, %s: other bits", o->type, o->params);
        if (k) continue;
        DONE("train", "one/config.json", "output=again"); /* what was in force, in as many keys as it has */
        CHECK(same_file("again/model/model.safetensors", "one/model/model.safetensors"));
    }
}

/* Steps that overflow are skipped by all ranks together, in the middle of which another run goes on. */
TEST(fp16_skips_alike)
{
    setup(&optimizers[1]);
    const char *const fp16[] = {"bf16.enabled=false", "fp16.enabled=true", "fp16.initial_scale_power=24",
                                "fp16.loss_scale_window=3", "fp16.hysteresis=1"};
#define FP16 fp16[0], fp16[1], fp16[2], fp16[3], fp16[4], "steps=12"
    DONE("train", "run.json", FP16, "output=one");
    CHECK_HAS(ran.err, "step 1: skipped, the gradient is not finite at the loss scale 16777216 (the next is 8388608)");
    DONE_RANKS(2, "train", "run.json", FP16, "zero_optimization.stage=3", "checkpoint.dir=ck", "checkpoint.every=2",
               "steps=2", "memory.path=swap", OFFLOAD "device=nvme");
    DONE("train", "run.json", FP16, "checkpoint.dir=ck", "--resume", "memory.path=swap");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    json_t *one = read_metrics("one/metrics.jsonl"), *out = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(out), 12);
    for (size_t k = 0; k < 12; k++) {
        static const char *const name[] = {"loss", "loss_scale", "skipped_steps", "lr"};
        for (int i = 0; i < 4; i++) CHECK(number_of(one, k, name[i]) == number_of(out, k, name[i]));
    }
    CHECK(number_of(out, 0, "skipped_steps") == 1 && number_of(out, 0, "loss_scale") == 0x1p24);
    CHECK(number_of(out, 11, "skipped_steps") < 12 && number_of(out, 11, "loss") < number_of(out, 0, "loss"));
    json_decref(one);
    json_decref(out);
    FAILS(1, ("train", "run.json", FP16, "fp16.initial_scale_power=40", "fp16.min_loss_scale=1e12"),
          "the gradient is not finite at the least loss scale, 1e+12");
}

/* Lines [first, end) of 16 numbers in a cycle; those of step 35 are all of another. */
static void write_cycles(const char *path, int first, int end)
{
    FILE *f = fopen(path, first ? "a" : "w");
    CHECK(f != NULL);
    for (int k = first; k < end; k++) {
        fputs("{\"input_ids\": [", f);
        for (int i = 0; i < 16; i++) fprintf(f, "%s%d", i ? ", " : "", k / 4 == 34 ? 200 : (k + i) % 7);
        fputs("]}\n", f);
    }
    fclose(f);
}

#define CYCLES                                                                                                         \
    "train", "run.json", "data.train=text.jsonl", "data.valid=null", "data.shuffle=false", "optimizer.params.lr=1e-3", \
        "on_spike.skip=2"

/* Lines that are unlike all others make gradients that are out of proportion: steps with them change nothing. They are
 * the same steps on two ranks, under a cap, in another run that goes on amid them, and of no run that does not ask. */
TEST(spikes_are_skipped_alike)
{
    setup(&optimizers[5]);
    write_cycles("text.jsonl", 0, 300);
    DONE(CYCLES, "steps=50", "output=one");
    CHECK_HAS(ran.err, "step 35: skipped, the norm of its gradient is ");
    CHECK_HAS(ran.err, ", above ");
    json_t *one = read_metrics("one/metrics.jsonl");
    const double skipped = number_of(one, 49, "skipped_steps");
    CHECK(skipped >= 1 && skipped < 20);
    json_decref(one);
    DONE_RANKS(2, CYCLES, "zero_optimization.stage=2", "checkpoint.dir=ck", "checkpoint.every=40", "steps=40",
               "memory.path=swap", OFFLOAD "device=nvme");
    DONE(CYCLES, "steps=50", "checkpoint.dir=ck", "--resume", "memory.path=swap");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    DONE(CYCLES, "steps=50", "output=none", "on_spike.skip=0");
    CHECK(!same_file("none/model/model.safetensors", "one/model/model.safetensors"));
    write_cycles("ever.jsonl", 0, 120);
    for (int k = 0; k < 20; k++) write_cycles("ever.jsonl", 136, 140);
    FAILS(1, (CYCLES, "data.train=ever.jsonl", "steps=50"),
          "10 steps in a row were skipped, their gradients' norms above ", "on_spike.skip");
    FAILS(2, ("train", "run.json", "on_spike.skip=0.5"),
          "run.json: on_spike.skip: 0.5, expected 0 or a factor above 1");
}

/* A run that goes back is one that never met the lines since its checkpoint; on two ranks, over a disk, and where it is
 * ended behind that and goes on. */
TEST(a_run_goes_back_before_a_spike)
{
    setup(&optimizers[5]);
    write_cycles("text.jsonl", 0, 300);
    write_cycles("without.jsonl", 0, 120);
    write_cycles("without.jsonl", 140, 300);
#define EACH "checkpoint.every=10", "on_spike.back=2"
    DONE(CYCLES, EACH, "steps=50", "output=one", "checkpoint.dir=ck1");
    CHECK_HAS(ran.err, "step 35: skipped, ");
    CHECK_HAS(ran.err, "step 35: back to the checkpoint of step 30, and on with the samples behind (1 of 2 times)");
    json_t *one = read_metrics("one/metrics.jsonl");
    CHECK_EQ(json_array_size(one), 50);
    json_decref(one);
    DONE(CYCLES, "data.train=without.jsonl", "steps=50", "output=plain");
    CHECK(!strstr(ran.err, "skipped"));
    CHECK(same_file("one/model/model.safetensors", "plain/model/model.safetensors"));
    DONE_RANKS(2, CYCLES, EACH, "steps=45", "zero_optimization.stage=3", "checkpoint.dir=ck", "memory.path=swap",
               OFFLOAD "device=nvme");
    DONE(CYCLES, EACH, "steps=50", "checkpoint.dir=ck", "--resume", "memory.path=swap");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    json_t *state = json_load_file("ck/step-00000050/state.json", 0, NULL);
    CHECK_EQ(json_integer_value(json_object_get(json_object_get(state, "spikes"), "back")), 1);
    CHECK_EQ(json_integer_value(json_object_get(state, "samples")), 4 * 55);
    json_decref(state);
    DONE(CYCLES, EACH, "steps=50", "output=never", "checkpoint.dir=ck2", "on_spike.back=0");
    CHECK(!same_file("never/model/model.safetensors", "one/model/model.safetensors"));
    FAILS(2, ("train", "run.json", "on_spike.back=1"), "run.json: on_spike.skip: 0", "on_spike.back needs it");
    FAILS(2, (CYCLES, "on_spike.back=1"), "run.json: checkpoint.every: 0", "on_spike.back needs them");
}

TEST(another_optimizers_states_are_refused)
{
    setup(&optimizers[1]);
    DONE("train", "run.json", "checkpoint.dir=ck", "checkpoint.every=2", "steps=2");
    FAILS(2,
          ("train", "run.json", "checkpoint.dir=ck", "--resume", "optimizer.type=SGD", "optimizer.params.momentum=0",
           "optimizer.params.nesterov=false"),
          "ck: holds the states of SGD, 1 of a parameter; the optimizer here is SGD, with 0");
    char text[2000];
    snprintf(text, sizeof text,
             "{\"model\": %s, \"data\": {\"train\": \"text.txt\", \"seq_length\": %d}, \"train_batch_size\": 4, "
             "\"steps\": 4, \"output\": \"out\", \"optimizer\": {\"type\": \"Lion\"}}\n",
             TINY_MODEL, TINY_T);
    write_text("other.json", text);
    FAILS(2, ("train", "other.json", "checkpoint.dir=ck", "--resume"),
          "ck: holds the states of SGD, 1 of a parameter; the optimizer here is Lion, with 1");
    DONE("eval", "run.json", "model=ck"); /* its weights are anybody's */
    setup(&optimizers[7]);                /* Muon, which shares the model out with AdamW */
    DONE("train", "run.json", "checkpoint.dir=ck", "checkpoint.every=2", "steps=2");
    FAILS(2,
          ("train", "run.json", "checkpoint.dir=ck", "--resume",
           "optimizer.groups=[{\"match\": \"h.0.mlp.c_fc.weight\", \"muon\": false}]"),
          "ck/step-00000002: h.0.mlp.c_fc.weight.exp_avg is missing");
}

/* What was kept in one form goes on in another, which is said; checkpoints of either give the same weights to others.
 */
TEST(other_states_are_converted)
{
    setup(&optimizers[5]); /* AdamW, 8bit */
    DONE("train", "run.json", "checkpoint.dir=ck", "checkpoint.every=2", "steps=2");
    DONE("train", "run.json", "checkpoint.dir=ck", "--resume", "optimizer_states=fp32", "steps=3",
         "checkpoint.every=3");
    CHECK_HAS(ran.err,
              "resuming with optimizer_states fp32, the checkpoint's run had 8bit: its moments go on as they are");
    DONE("train", "run.json", "checkpoint.dir=ck", "--resume", "optimizer_states=bf16");
    CHECK_HAS(ran.err, "resuming with optimizer_states bf16, the checkpoint's run had fp32: its moments are rounded");
    DONE("train", "run.json", "optimizer_states=bf16", "output=half");
    CHECK(!same_file("out/model/model.safetensors", "half/model/model.safetensors"));
    FAILS(2, ("train", "run.json", "optimizer_states=4bit"), "optimizer_states", "4bit", "fp32, bf16, 8bit, int8");
}

/* Two ranks of a tensor write what one goes on from, and the other way. Its sums are not those of one rank. */
TEST(fewer_bits_over_tensor_ranks)
{
    for (int k = 5; k < 7; k++) {
        setup(&optimizers[k]);
        DONE("train", "run.json", "output=one");
        DONE_RANKS(2, "train", "run.json", "parallel.tensor=2", "checkpoint.dir=ck", "checkpoint.every=2", "steps=2");
        check_states(&optimizers[k], "ck/step-00000002");
        DONE("train", "run.json", "checkpoint.dir=ck", "--resume");
        json_t *one = read_metrics("one/metrics.jsonl"), *out = read_metrics("out/metrics.jsonl");
        CHECK_EQ(json_array_size(out), 4);
        for (size_t i = 0; i < 4; i++) CHECK_NEAR(number_of(out, i, "loss"), number_of(one, i, "loss"), 0.05);
        json_decref(one);
        json_decref(out);
    }
}

/* Bytes from and to the disk in a step, the mean of all of a run: what one writes may count to the next. */
static double moved(void)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    const size_t steps = json_array_size(all);
    double bytes = 0;
    for (size_t k = 0; k < steps; k++) {
        const json_t *disk = json_object_get(json_array_get(all, k), "disk");
        bytes += json_number_value(json_object_get(disk, "read_bytes"));
        bytes += json_number_value(json_object_get(disk, "write_bytes"));
    }
    json_decref(all);
    return bytes / (double)steps;
}

/* Masters and moments come from the disk once a step, and go back: 8 bytes of a parameter, and 8 for each moment. */
TEST(fewer_states_move_less)
{
    double of[5], estimated[5];
    static const char *const type[] = {"optimizer.type=AdamW", "optimizer.type=Lion", "optimizer.type=SGD",
                                       "optimizer_states=bf16", "optimizer_states=8bit"};
    wide_setup_with("\"train_batch_size\": 2, \"steps\": 8, \"bf16\": {\"enabled\": true},\n \"gradient_clipping\": 0, "
                    "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", "
                    "\"nvme_path\": \"swap\"}}");
    for (int k = 0; k < 5; k++) {
        DONE("estimate", "run.json", type[k]);
        estimated[k] = line_of("read in a step") + line_of("written in a step");
        CHECK(!strstr(ran.out, "moments") == (k == 2));
        DONE("train", "run.json", type[k]);
        of[k] = moved();
        CHECK(fabs(of[k] - estimated[k]) < 0.15 * estimated[k]);
    }
    printf("moved in a step: AdamW %.1f MiB, Lion %.1f, SGD %.1f; AdamW in bf16 %.1f, in 8 bits %.1f\n", of[0] / 0x1p20,
           of[1] / 0x1p20, of[2] / 0x1p20, of[3] / 0x1p20, of[4] / 0x1p20);
    CHECK(of[2] < of[1] && of[1] < of[0]);
    CHECK(fabs(estimated[1] / estimated[0] - 2.0 / 3) < 0.02);
    CHECK(fabs(estimated[2] / estimated[0] - 1.0 / 3) < 0.02);
    CHECK(fabs(estimated[3] / estimated[0] - 2.0 / 3) < 0.02);
    CHECK(fabs(estimated[4] / estimated[0] - 1.0 / 2) < 0.02);
}

/* Matrices of several tiles come together whole, whatever of the rest has room in RAM, on three ranks as on one; and
 * each expert's is one by itself. */
TEST(muon_has_whole_matrices)
{
    static const char *const of[] = {
        "\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 128, \"n_layer\": 2, "
        "\"n_head\": 4",
        "\"model_type\": \"mixtral\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 96, "
        "\"num_hidden_layers\": 1, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"num_local_experts\": 4, \"max_position_embeddings\": 32"};
    static const char *const has[] = {"Muon has 8 matrices of 393216 elements, AdamW the other 40448 elements",
                                      "Muon has 17 matrices of 86272 elements, AdamW the other 32960 elements"};
    for (int k = 0; k < 2; k++) {
        char model[500];
        wide_setup_with("\"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 3, "
                        "\"deterministic\": true, \"tiles\": {\"elements\": 5000}, \"memory\": {\"path\": \"swap\"}, "
                        "\"optimizer\": {\"type\": \"Muon\", \"params\": {\"lr\": 0.02, \"weight_decay\": 0.1}}");
        snprintf(model, sizeof model, "model={%s}", of[k]);
        DONE("train", "run.json", model, "output=one");
        CHECK_HAS(ran.err, has[k]);
        FAILS(2, ("train", "run.json", model, "memory.cpu=1MiB"), "memory.cpu: 1.0 MiB", WIDE_LEAST);
        char *at = strstr(ran.err, WIDE_LEAST), least[64];
        snprintf(least, sizeof least, "memory.cpu=%.*s", (int)strcspn(at + strlen(WIDE_LEAST), " )"),
                 at + strlen(WIDE_LEAST));
        DONE("train", "run.json", model, least);
        CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
        CHECK(moved() > 0);
        DONE_RANKS(3, "train", "run.json", model, "zero_optimization.stage=3", "output=three",
                   "zero_optimization.stage3_param_persistence_threshold=0");
        CHECK(same_file("three/model/model.safetensors", "one/model/model.safetensors"));
        DONE("train", "run.json", model, "output=slower", "optimizer.params.muon_lr=0.01");
        CHECK(!same_file("slower/model/model.safetensors", "one/model/model.safetensors"));
    }
}

TEST(what_an_optimizer_does_not_have)
{
    static const struct {
        const char *type, *set, *where, *what;
    } cases[] = {
        {"optimizer.type=SGD", "optimizer.params.betas=[0.9,0.99]", "optimizer.params.betas: SGD has no such parameter",
         "expected of lr, weight_decay, momentum, dampening, nesterov, no_decay_1d"},
        {"optimizer.type=Lion", "optimizer.params.eps=1e-8", "optimizer.params.eps: Lion has no such parameter",
         "betas"},
        {"optimizer.type=AdamW", "optimizer.params.momentum=0.9",
         "optimizer.params.momentum: AdamW has no such parameter", "betas"},
        {"optimizer.type=Adagrad", "optimizer.params.adam_w_mode=false",
         "optimizer.params.adam_w_mode: Adagrad has no such parameter", "initial_accumulator_value"},
        {"optimizer.type=SGD", "optimizer.params.nesterov=true", "optimizer.params: nesterov with momentum 0", ""},
        {"optimizer.type=SGD", "optimizer.groups=[{\"match\": \"*.biass\", \"weight_decay\": 0}]",
         "optimizer.groups[0]: \"*.biass\" matches no parameter", "nearest"},
        {"optimizer.type=SGD", "optimizer.groups=[{\"match\": \"*.bias\", \"decay\": 0}]",
         "optimizer.groups[0]: unknown key decay", ""},
        {"optimizer.type=SGD", "optimizer.groups=[{\"weight_decay\": 0}]", "optimizer.groups[0]: match is missing", ""},
        {"optimizer.type=SGD", "optimizer.groups=[{\"match\": [3]}]", "optimizer.groups[0]: match is something else",
         ""},
        {"optimizer.type=SGD", "optimizer.groups=[{\"match\": \"*\", \"lr_scale\": -1}]",
         "optimizer.groups[0]: lr_scale is -1", "0 to 1000"},
        {"optimizer.type=SGD", "optimizer_states=bf16", "optimizer_states: SGD without momentum has no states", ""},
        {"optimizer.type=Adagrad", "optimizer_states=8bit", "optimizer_states: Adagrad's sum of squares in 8 bits",
         "bf16"},
        {"optimizer.type=AdamW", "optimizer.params.muon_lr=1e-3", "optimizer.params.muon_lr: AdamW has no such", ""},
        {"optimizer.type=Adafactor", "optimizer.params.beta1=0.9", "optimizer.params.beta1: 0.9",
         "mean of its updates"},
        {"optimizer.type=Adafactor", "optimizer_states=bf16", "optimizer_states: Adafactor's are means", "fp32"},
        {"optimizer.type=Adafactor", "optimizer.params.decay_rate=0.8", "optimizer.params.decay_rate: 0.8", "-1000"},
        {"optimizer.type=Muon", "optimizer.params.momentum=1", "optimizer.params: momentum 1", "less than 1"},
        {"optimizer.type=Muon", "optimizer.params.ns_steps=0", "optimizer.params.ns_steps: 0", "1 to 99"},
        {"optimizer.type=Muon", "optimizer.params.adjust_lr_fn=rms", "optimizer.params.adjust_lr_fn: \"rms\"",
         "original, match_rms_adamw"},
        {"optimizer.type=Muon", "optimizer.params.per_head_muon=true", "optimizer.params.per_head_muon: true",
         "as a whole"},
        {"optimizer.type=Muon", "optimizer.groups=[{\"match\": \"*\", \"muon\": false}]",
         "optimizer.type: Muon, but no hidden matrix is trained", ""},
        {"optimizer.type=Muon", "optimizer.groups=[{\"match\": \"*.bias\", \"muon\": true}]",
         "optimizer.groups[0]: muon is true, but h.0.", "is no matrix"},
        {"optimizer.type=Muon", "optimizer.groups=[{\"match\": \"*\", \"muon\": 1}]",
         "optimizer.groups[0]: muon is something else", "true or false"},
        {"optimizer.type=Lion", "optimizer.groups=[{\"match\": \"*\", \"muon\": true}]",
         "optimizer.groups[0]: muon is said, but optimizer.type is another", ""},
        {"optimizer.type=SGD", "optimizer.groups=[3]", "optimizer.groups: [3], expected a list of objects", ""},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FAILS(2, ("train", "run.json", cases[i].type, cases[i].set), cases[i].where, cases[i].what);
    }
    FAILS(2, ("train", "run.json", "optimizer.type=Muon", "optimizer.params.lr=0", "optimizer.params.muon_lr=0.1"),
          "optimizer.params.muon_lr: 0.1, but lr is 0", "");
    FAILS_RANKS(2, (2, "train", "run.json", "optimizer.type=Adafactor", "parallel.tensor=2"),
                "parallel.tensor: 2, but Adafactor updates whole matrices", "another optimizer.type");
    FAILS_RANKS(2, (2, "train", "run.json", "optimizer.type=Muon", "parallel.tensor=2"),
                "parallel.tensor: 2, but Muon updates whole matrices", "another optimizer.type");
    CHECK(!exists("out"));
}
