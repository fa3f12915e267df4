/* A model that does not fit: the same bits whatever RAM there is, the traffic that the plan said, and failures of the
 * disk that end the run in one line. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/networks/model/model.h"
#include "runtime/base/fault_hooks.h"
#include "tests/check.h"
#include "tests/dirs.h"
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __SANITIZE_ADDRESS__ /* which is slow: less of the same */
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { B = 4, T = SANITIZED ? 32 : 64, MICRO = 2, STEPS = 2, MiB = 1 << 20, LEAST = 16 << 20 };
static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"vocab_size\": 1009, \"n_layer\": 5, \"n_embd\": 200, \"n_head\": 5,"
    "\"n_positions\": 128, \"resid_pdrop\": 0.1, \"embd_pdrop\": 0, \"attn_pdrop\": 0.1}";
static const char llama[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 1009, \"num_hidden_layers\": 5, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 2, \"attention_dropout\": 0.1,"
    "\"tie_word_embeddings\": true, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": "
    "1,"
    "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 64}}";
static const char qwen3[] =
    "{\"model_type\": \"qwen3\", \"vocab_size\": 1009, \"num_hidden_layers\": 5, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5,"
    "\"head_dim\": 16}";
static const char gemma2[] =
    "{\"model_type\": \"gemma2\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"head_dim\": 20,"
    "\"sliding_window\": 40, \"attn_logit_softcapping\": 5, \"final_logit_softcapping\": 3}";
static const char gpt_neox[] =
    "{\"model_type\": \"gpt_neox\", \"vocab_size\": 1009, \"num_hidden_layers\": 5, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"rotary_pct\": 0.5, \"hidden_dropout\": 0.1,"
    "\"attention_dropout\": 0.1}";
static const char gemma3[] =
    "{\"model_type\": \"gemma3_text\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"head_dim\": 20,"
    "\"sliding_window\": 40, \"sliding_window_pattern\": 2}";
static const char olmo2[] =
    "{\"model_type\": \"olmo2\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5}";
static const char smollm3[] =
    "{\"model_type\": \"smollm3\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5,"
    "\"no_rope_layer_interval\": 2}";
static const char granite[] =
    "{\"model_type\": \"granite\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5,"
    "\"embedding_multiplier\": 12, \"residual_multiplier\": 0.22, \"attention_multiplier\": 0.1,"
    "\"logits_scaling\": 4}";
static const char mixtral[] =
    "{\"model_type\": \"mixtral\", \"vocab_size\": 1009, \"num_hidden_layers\": 3, \"hidden_size\": 200,"
    "\"intermediate_size\": 160, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"num_local_experts\": 7,"
    "\"output_router_logits\": true, \"router_aux_loss_coef\": 0.1}";
static const char gpt_oss[] =
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 1009, \"num_hidden_layers\": 3, \"hidden_size\": 200,"
    "\"intermediate_size\": 160, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"head_dim\": 20,"
    "\"num_local_experts\": 7, \"sliding_window\": 40, \"rope_scaling\": {\"rope_type\": \"default\"}}";
static const char deepseek_v3[] =
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 1009, \"num_hidden_layers\": 3, \"hidden_size\": 200,"
    "\"intermediate_size\": 160, \"num_attention_heads\": 10, \"q_lora_rank\": 40, \"kv_lora_rank\": 48,"
    "\"qk_nope_head_dim\": 14, \"qk_rope_head_dim\": 10, \"v_head_dim\": 20, \"n_routed_experts\": 12, \"n_group\": 4,"
    "\"topk_group\": 2, \"num_experts_per_tok\": 4, \"moe_intermediate_size\": 72, \"first_k_dense_replace\": 1}";
static const char qwen3_5[] =
    "{\"model_type\": \"qwen3_5_text\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"head_dim\": 16,"
    "\"linear_num_key_heads\": 3, \"linear_num_value_heads\": 6, \"linear_key_head_dim\": 16,"
    "\"linear_value_head_dim\": 20}";
static const char qwen3_moe[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 1009, \"num_hidden_layers\": 4, \"hidden_size\": 200,"
    "\"intermediate_size\": 520, \"num_attention_heads\": 10, \"num_key_value_heads\": 5, \"head_dim\": 16,"
    "\"num_experts\": 20, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 72, \"mlp_only_layers\": [2],"
    "\"norm_topk_prob\": true, \"output_router_logits\": true}";
/* Two of 48 experts a row, which are nearly all of it. */
static const char many_experts[] =
    "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 1009, \"num_hidden_layers\": 2, \"hidden_size\": 64,"
    "\"intermediate_size\": 64, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_experts\": 48,"
    "\"num_experts_per_tok\": 2, \"moe_intermediate_size\": 512}";
static const char *model = gpt2;
static int64_t batch = B, length = T;
static const char *frozen = ""; /* of the parameters, by a pattern */

/* How a run is laid out, which must not matter to its bits. */
struct layout {
    uint64_t ram; /* 0: no disk tier */
    int recompute;
    bool by_layer, late;
};
struct outcome {
    tess_status status;
    uint64_t bits;          /* of losses and masters */
    uint64_t read, written; /* by the last step */
    uint64_t disk;          /* at most, by tiles */
    tess_placement place;
};
struct run {
    tess_model *model;
    tess_graph *g;
    tess_network net;
    tess_step *step;
};

static uint64_t mix(uint64_t h, const void *data, size_t bytes)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < bytes; i++) h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static tess_status open_run(struct run *r, tess_dtype dtype, struct layout l, double clip)
{
    tess_step_conf conf = {.train = true,
                           .micro = MICRO,
                           .recompute_every = l.recompute,
                           .layout.by_layer = l.by_layer,
                           .layout.late = l.late,
                           .optimizer = tess_adamw()};
    conf.optimizer.clip = clip;
    TESS_TRY(tess_model_open(NULL, model, &r->model));
    r->g = tess_graph_new(&(tess_graph_conf){.dtype = dtype, .tile_rows = 2 * T, .loss_rows = T});
    TESS_TRY(tess_model_build(r->model, r->g, batch, length, TESS_FOR_LOSS, &r->net));
    for (int k = 0; k < tess_graph_params(r->g); k++)
        if (tess_pattern_matches(frozen, tess_tensor_name(tess_graph_param(r->g, k))))
            TESS_TRY(tess_param_freeze(tess_graph_param(r->g, k)));
    return tess_step_new(r->net.output, &conf, &r->step);
}

static tess_status train(struct run *r, struct outcome *out)
{
    static int32_t ids[MICRO * B * T];
    uint64_t before[2] = {0}, unused;
    TESS_TRY(tess_model_load(r->model, r->g, 1));
    for (int s = 0; s < STEPS; s++) {
        tess_step_result result;
        for (int64_t i = 0; i < MICRO * batch * length; i++)
            ids[i] = (int32_t)(tess_random(3, (uint64_t)s, 0, (uint64_t)i) % 1009);
        TESS_TRY(tess_step_feed(r->step, r->net.ids, ids));
        TESS_TRY(tess_step_feed(r->step, r->net.targets, ids));
        tess_disk_traffic(&before[0], &before[1], &unused, &unused);
        TESS_TRY(tess_step_run(r->step, &(tess_step_input){.step = s, .seed = 1, .lr = 1e-3}, &result));
        out->bits = mix(out->bits, &result.loss, sizeof result.loss);
    }
    tess_disk_traffic(&out->read, &out->written, &unused, &out->disk);
    out->read -= before[0];
    out->written -= before[1];
    for (int k = 0; k < tess_graph_params(r->g); k++) {
        tess_tensor *p = tess_graph_param(r->g, k);
        int64_t shape[3], first, count;
        int rank = tess_tensor_shape(p, shape);
        for (int64_t j = 0; j < tess_param_tiles(p); j++) {
            float *x;
            tess_param_rows(p, j, &first, &count);
            TESS_TRY(tess_param_map(p, j, TESS_MASTER, TESS_R, &x));
            out->bits = mix(out->bits, x, (size_t)(count * (rank == 2 ? shape[1] : 1)) * sizeof *x);
            tess_param_unmap(p, j, TESS_MASTER);
        }
    }
    return TESS_OK;
}

static struct outcome run(tess_dtype dtype, struct layout l, double clip, tess_machine machine)
{
    const uint64_t ram = l.ram;
    struct run r = {0};
    struct outcome out = {.bits = 1469598103934665603u};
    out.status = open_run(&r, dtype, l, clip);
    if (ram && out.status == TESS_OK)
        out.status = tess_step_place(r.step, &(tess_place_conf){.ram = ram, .workers = 2}, &out.place);
    if (ram) {
        machine.disk = ".";
        machine.cpu_bytes = ram;
        if (!machine.disk_bytes) machine.disk_bytes = out.place.disk + 64 * MiB;
        machine.disk_checksum = true;
    }
    const tess_rooms rooms = {.cpu_tiles = ram ? out.place.room : 0};
    if (out.status == TESS_OK) out.status = tess_start_rooms(&machine, &rooms);
    if (out.status == TESS_OK) out.status = train(&r, &out);
    tess_step_free(r.step);
    tess_graph_free(r.g);
    tess_model_close(r.model);
    tess_stop();
    return out;
}

static uint64_t all_of_it(tess_dtype dtype)
{
    struct run r = {0};
    tess_holds plan;
    CHECK_EQ(open_run(&r, dtype, (struct layout){0}, 1), TESS_OK);
    tess_step_holds(r.step, &plan);
    tess_step_free(r.step);
    tess_graph_free(r.g);
    tess_model_close(r.model);
    return plan.peak_total;
}

TEST(same_bits_whatever_ram_there_is)
{
    for (int dtype = SANITIZED; dtype < 2; dtype++) {
        uint64_t all = all_of_it((tess_dtype)dtype);
        struct outcome whole = run((tess_dtype)dtype, (struct layout){0}, 1, TESS_MACHINE_DEFAULT);
        CHECK_EQ(whole.status, TESS_OK);
        uint64_t least = 0;
        for (int part = SANITIZED ? 8 : 2; part <= 8; part *= 2)
            for (int way = 0; way < 4; way += part < 8 ? 3 : 1) {
                if (way % 3 && (way + part / 2 + dtype) % 2) continue; /* each with each, not all with all */
                struct layout l = {all / (uint64_t)part, way == 1, way >= 2, way == 3};
                if (l.ram < LEAST) l.ram = LEAST;
                struct outcome o = run((tess_dtype)dtype, l, 1, TESS_MACHINE_DEFAULT);
                if (o.status != TESS_OK)
                    CHECK_SAY("%s under %s: %s", tess_dtype_name((tess_dtype)dtype), tess_human_bytes((double)l.ram),
                              tess_error_text());
                CHECK(o.status == TESS_OK && o.bits == whole.bits);
                CHECK(o.place.read + o.place.written >= o.place.bound);
                if (way > 0) continue;
                CHECK(o.place.read + o.place.written >= least); /* less RAM never moves less */
                least = o.place.read + o.place.written;
            }
        CHECK(least > 0);
    }
    CHECK_EQ(names_in(".", ".tessera", NULL), 0);
}

/* The figures of a run say nothing of what ran before it in the process. What is written by its end depends on when
 * that is. */
TEST(a_second_run_is_as_the_first)
{
    struct outcome o[3];
    const struct layout l = {32 * MiB, 0, false, false};
    for (int k = 0; k < 3; k++)
        o[k] = run(TESS_F32, k == 1 ? (struct layout){LEAST, 1, true, true} : l, 1, TESS_MACHINE_DEFAULT);
    CHECK(o[0].status == TESS_OK && o[1].status == TESS_OK && o[2].status == TESS_OK);
    CHECK(o[0].bits == o[2].bits && o[0].bits == o[1].bits);
    CHECK(o[0].read > 0 && o[0].read == o[2].read && o[0].read != o[1].read);
    CHECK_EQ(o[0].disk, o[2].disk);
}

/* A cap with a disk, recomputed, layer by layer. */
TEST(other_families_too)
{
    static const char *const others[] = {qwen3_moe, gemma2,  gpt_neox, llama,   qwen3,       mixtral, gemma3,
                                         olmo2,     smollm3, granite,  gpt_oss, deepseek_v3, qwen3_5};
    for (int k = 0; k < (SANITIZED ? 2 : (int)(sizeof others / sizeof *others)); k++) {
        model = others[k];
        struct outcome whole = run(TESS_BF16, (struct layout){0}, 1, TESS_MACHINE_DEFAULT);
        CHECK_EQ(whole.status, TESS_OK);
        for (int way = SANITIZED ? 3 : 1; way < 4; way++) {
            struct layout l = {24 * MiB, way == 1, way >= 2, way == 3};
            struct outcome o = run(TESS_BF16, l, 1, TESS_MACHINE_DEFAULT);
            if (o.status != TESS_OK) CHECK_SAY("%.24s, way %d: %s", model, way, tess_error_text());
            CHECK(o.bits == whole.bits && o.read > 0);
        }
    }
    model = gpt2;
}

/* A batch of few tokens, and of many, under the same cap: the plan has room and time for all experts, but those that
 * nobody chose are not fetched, forward or backward. What the update moves is the same. */
TEST(experts_that_nobody_chose_stay_on_disk)
{
    const uint64_t weights = (uint64_t)2 * 48 * 3 * 64 * 512 * 2; /* of experts, in bf16 */
    uint64_t unread[2];
    model = many_experts;
    for (int many = 0; many < 2; many++) {
        batch = many ? B : 1, length = many ? T : 3;
        struct outcome whole = run(TESS_BF16, (struct layout){0}, 1, TESS_MACHINE_DEFAULT);
        CHECK_EQ(whole.status, TESS_OK);
        for (int way = 0; way < (many ? 1 : 3); way++) { /* also where routers run twice */
            struct layout l = {LEAST, way == 1, way == 2, way == 2};
            struct outcome o = run(TESS_BF16, l, 1, TESS_MACHINE_DEFAULT);
            if (o.status != TESS_OK) CHECK_SAY("%d tokens: %s", (int)length, tess_error_text());
            CHECK(o.bits == whole.bits);
            CHECK(o.read > 0 && o.read <= o.place.read);
            if (way == 0) unread[many] = o.place.read - o.read;
        }
    }
    CHECK(unread[0] > weights); /* 6 of 48 at most, in each of two micro-batches, there and back */
    CHECK(SANITIZED || unread[1] < weights / 8);
    model = gpt2, batch = B, length = T;
}

TEST(a_part_that_is_frozen_too)
{
    static const char *const parts[] = {"h.1-3.*", "*.weight", "*.experts.*", "layers.0-1.*", "*.mlp.gate.weight"};
    for (int k = SANITIZED; k < 5; k++) {
        frozen = parts[k], model = k < 2 ? gpt2 : qwen3_moe;
        struct outcome whole = run(TESS_BF16, (struct layout){0}, 1, TESS_MACHINE_DEFAULT);
        CHECK_EQ(whole.status, TESS_OK);
        for (int way = 0; way < 4; way += k < 2 ? 1 : 2) {
            struct layout l = {way ? (k < 2 ? LEAST : 24 * MiB) : 0, way < 2, way >= 2, way == 3};
            struct outcome o = run(TESS_BF16, l, 1, TESS_MACHINE_DEFAULT);
            if (o.status != TESS_OK) CHECK_SAY("%s, way %d: %s", frozen, way, tess_error_text());
            if (o.bits != whole.bits || (way && !k && !o.read))
                CHECK_SAY("%s, way %d: %s, %llu read", frozen, way,
                          o.bits != whole.bits ? "other bits" : "the same bits", (unsigned long long)o.read);
        }
    }
    frozen = "", model = gpt2;
}

TEST(without_clipping_too)
{
    struct outcome whole = run(TESS_BF16, (struct layout){0}, 0, TESS_MACHINE_DEFAULT);
    struct outcome capped = run(TESS_BF16, (struct layout){32 * MiB, 0, true, false}, 0, TESS_MACHINE_DEFAULT);
    CHECK_EQ(capped.status, TESS_OK);
    CHECK(capped.bits == whole.bits);
}

TEST(a_cap_below_the_largest_task_names_what_would_do)
{
    struct outcome o = run(TESS_F32, (struct layout){4 * MiB, 0, false, false}, 1, TESS_MACHINE_DEFAULT);
    CHECK_EQ(o.status, TESS_INVALID);
    CHECK_HAS(tess_error_text(), "the least a step can work with is");
    CHECK(o.place.needed > 4 * MiB);
}

static void fails_with(tess_fault_hooks hooks, const char *what)
{
    tess_fault_hooks_set(&hooks);
    struct outcome o = run(TESS_F32, (struct layout){32 * MiB, 0, false, false}, 1, TESS_MACHINE_DEFAULT);
    CHECK_EQ(o.status, TESS_FAILED);
    CHECK_HAS(tess_error_text(), what);
    CHECK_EQ(names_in(".", ".tessera", NULL), 0);
}

/* While the list waits for what a router chooses, which then never chooses, too. */
TEST(a_failing_disk_ends_the_run_in_one_line)
{
    model = many_experts, batch = 1, length = 3;
    for (uint64_t at = 900; at < 1000; at += 33)
        fails_with((tess_fault_hooks){.fail_read_at = at}, "Input/output error");
    model = gpt2, batch = B, length = T;
    fails_with((tess_fault_hooks){.fail_read_at = 30}, "Input/output error");
    fails_with((tess_fault_hooks){.fail_write_at = 30}, "Input/output error");
    fails_with((tess_fault_hooks){.flip_bit_at = 30}, "checksum");
    struct outcome o = run(TESS_F32, (struct layout){32 * MiB, 0, false, false}, 1,
                           TESS_MACHINE_DEFAULT); /* and the next run is well */
    CHECK_EQ(o.status, TESS_OK);
}

/* What `body` prints on stderr, which ends its process. */
static const char *last_words(void (*body)(void))
{
    static char text[2000];
    int err[2], status;
    size_t n = 0;
    CHECK_EQ(pipe(err), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(err[1], 2);
        body();
        _exit(0);
    }
    close(err[1]);
    for (ssize_t got; n < sizeof text - 1 && (got = read(err[0], text + n, sizeof text - 1 - n)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(err[0]);
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == TESS_FAILED);
    return text;
}

static void stall_a_read(void)
{
    tess_fault_hooks_set(&(tess_fault_hooks){.stall_read_at = 30});
    run(TESS_F32, (struct layout){32 * MiB, 0, false, false}, 1, (tess_machine){.patience = 3});
}

TEST(a_drive_that_hangs_ends_the_run_in_one_line)
{
    const char *text = last_words(stall_a_read);
    CHECK_HAS(text, "tessera: error: disk tier: nothing moved");
    CHECK_HAS(text, "on its way from disk for");
    CHECK_EQ(names_in(".", ".tessera", NULL), 0);
}

static void sleep_long(const tess_work *w)
{
    (void)w;
    sleep(20);
}

static void run_a_sleeper(void)
{
    static tess_codelet sleeper = {.name = "sleeper", .dtype = TESS_F32, .cpu = sleep_long};
    tess_tile *t = tess_tile_new(4096, TESS_ROLE_ACTIVATION, "x");
    const tess_use use[] = {{t, TESS_W}};
    const tess_task task = {.cl = &sleeper, .use = use, .nuse = 1};
    const tess_machine m = {.cpu_bytes = MiB, .patience = 1};
    const tess_rooms rooms = {.cpu_tiles = MiB};
    if (!tess_start_rooms(&m, &rooms) && !tess_submit(&task)) (void)!tess_wait();
}

TEST(a_task_that_hangs_under_a_cap_is_no_drives_fault)
{
    const char *text = last_words(run_a_sleeper);
    CHECK_HAS(text, "tessera: error: RAM: nothing moved and no task ended for 1 s; no tile is under way");
    CHECK(!strstr(text, "disk") && !strstr(text, "drive"));
}

TEST(a_directory_that_will_not_do)
{
    CHECK_EQ(tess_start(&(tess_machine){.disk = "no/such/place", .disk_bytes = 64 * MiB}), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "no/such/place");
    CHECK_EQ(tess_start(&(tess_machine){.disk = ".", .disk_bytes = 1ull << 50}), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "free");
}
