/* The first ten minutes of four newcomers, as they type them: who fine-tunes a published model, who links the library
 * on a cluster without root, who studies schedules, and who comes from DeepSpeed. What each command does is tested
 * elsewhere; here one leads to the next, and what is said at each point is what leads on. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

/* A line of the shell that ends well. */
#define SHELL(...)                                                                                                     \
    do {                                                                                                               \
        run_finish(run_start_program("sh", (const char *const[]){"-ec", fmt(__VA_ARGS__), NULL}));                     \
        if (ran.status) CHECK_SAY("%s: status %d\n%s%s", fmt(__VA_ARGS__), ran.status, ran.out, ran.err);              \
    } while (0)

/* A directory of the hub's older half: config.json and pytorch_model.bin, which fixtures/make_torch.py makes. */
TEST(a_fine_tuner)
{
    fresh();
    write_text("sft.jsonl", "{\"prompt\": \"2 + 3 =\", \"completion\": \" 5\"}\n"
                            "{\"prompt\": \"4 + 3 =\", \"completion\": \" 7\"}\n"
                            "{\"prompt\": \"tile\", \"completion\": \" tessera\"}\n"
                            "{\"prompt\": \"1 + 1 =\", \"completion\": \" 2\"}\n");
    write_text("sft.json", "{\"model\": \"gpt2\", \"data\": {\"train\": \"sft.jsonl\", \"seq_length\": 16},\n"
                           " \"train_batch_size\": 2, \"output\": \"runs/sft\",\n"
                           " \"checkpoint\": {\"dir\": \"runs/sft/checkpoints\"}}\n");
    FAILS(2, ("train", "sft.json", "epochs=2"), "models are not downloaded: hf download gpt2");
    SHELL("cp -r %s/torch/whole base", TESS_FIXTURES);
    FAILS(2, ("train", "sft.json", "model=base", "--epochs", "2"), "--epochs", "epochs=");
    DONE("estimate", "sft.json", "model=base", "epochs=2", "lora.r=4");
    DONE("train", "sft.json", "model=base", "epochs=2", "lora.r=4", "data.valid=sft.jsonl", "eval.samples=2");
    CHECK_HAS(ran.out, "  valid ");
    CHECK_HAS(ran.out, "  accuracy ");
    CHECK_EQ(count_lines("runs/sft/samples.jsonl"), 2);
    CHECK_HAS(ran.err, "optimizer.params.lr: 5e-05, since the model has weights");
    CHECK_HAS(ran.out, "trained are ");
    CHECK_HAS(ran.out, "the adapter of step 4: runs/sft/model\n");
    DONE("train", "sft.json", "model=base", "epochs=3", "lora.r=4", "--resume");
    CHECK_HAS(ran.err, "resuming from runs/sft/checkpoints after step 4");
    DONE("eval", "runs/sft/config.json", "model=runs/sft/model", "data.valid=sft.jsonl");
    SHELL("cp -r runs runs2 && printf x | dd of=runs2/sft/checkpoints/step-00000006/states.safetensors bs=1 seek=4000 "
          "conv=notrunc 2>/dev/null");
    FAILS(2,
          ("train", "sft.json", "model=base", "epochs=4", "lora.r=4", "output=runs2/sft",
           "checkpoint.dir=runs2/sft/checkpoints", "--resume"),
          "damaged", "step-00000004", "--resume=whole");
    DONE("train", "sft.json", "model=base", "epochs=4", "lora.r=4", "output=runs2/sft",
         "checkpoint.dir=runs2/sft/checkpoints", "--resume=whole");
    DONE("merge", "base", "runs/sft/model", "merged");
    DONE("eval", "sft.json", "model=merged", "data.valid=sft.jsonl");
    CHECK_HAS(ran.out, "perplexity");
    DONE("generate", "merged", "--prompt", "2 + 2 =", "-n", "8");
    CHECK_HAS(ran.out, "2 + 2 =");
    DONE("report", "runs/sft");
    CHECK(exists("runs/sft/report.html"));
}

/* The library in a prefix of one's own, and a program that knows no tree: the same bytes on one rank and on two. */
TEST(an_engineer)
{
    const char *build = getenv("BUILT"), *source = getenv("SOURCE");
    if (!build || !source) SKIP("nothing to install");
    fresh();
    SHELL("DESTDIR=$PWD/stage meson install -C %s --no-rebuild --quiet && mv stage home", build);
    SHELL("dirname $(find $PWD/home -name tessera.pc)");
    char pc[600];
    snprintf(pc, sizeof pc, "%.*s", (int)strcspn(ran.out, "\n"), ran.out);
    SHELL("cp $(find home -path '*examples/own-training.c') . && "
          "PKG_CONFIG_PATH=%s sh -c 'cc -O2 own-training.c -o own $(pkg-config --cflags --libs tessera) -lm'",
          pc);
    SHELL("mkdir disk && ./own one 3 disk");
    CHECK_HAS(ran.out, "step 2  loss");
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    SHELL("mpirun --oversubscribe -n 2 ./own two 3 disk && diff -r one two");
    SHELL("find $PWD/home -path '*bin/tessera' -exec {} --version ';'");
    CHECK_HAS(ran.out, "(commit ");
    SHELL("status=0; mpirun --oversubscribe -n 2 $(find $PWD/home -path '*bin/tessera') train %s/docs/demo/run.json "
          "steps=nine || status=$?; [ $status = 2 ]",
          source);
    CHECK_HAS(ran.err, "tessera: error: command line: steps: \"nine\", expected a whole number");
}

/* An own policy, what it does to a step, and the step as data. */
TEST(a_researcher)
{
    tiny_setup();
    SHELL("cc -shared -fPIC %s/examples/own-policy.c -o own-policy.so $(pkg-config --cflags $(pkg-config --exists "
          "starpu-1.4 && "
          "echo starpu-1.4 || echo starpu-1.3))",
          TESS_DOCS);
    DONE("train", "run.json", "output=prio");
    WITH("STARPU_SCHED", "eagre") FAILS(2, ("train", "run.json"), "STARPU_SCHED", "eagre", "is no scheduling policy");
    WITH("STARPU_SCHED_LIB", "./own-policy.so") DONE("train", "run.json", "output=own", "--trace", "3:3");
    CHECK(same_file("prio/model/model.safetensors", "own/model/model.safetensors"));
    DONE("bisect", "prio", "own");
    CHECK_HAS(ran.out, "are equal");
    DONE("explain", "own", "--csv", "tasks.csv");
    DONE("explain", "own");
    CHECK_HAS(ran.out, "idle");
    DONE("graph", "run.json", "--export", "step.json");
    json_t *step = json_load_file("step.json", 0, NULL);
    /* An idle worker's part of a task has a line of its own. */
    CHECK(count_lines("tasks.csv") > (int)json_array_size(json_object_get(step, "tasks")));
    json_decref(step);
}

/* A file of DeepSpeed's as it is, a key of it misspelled, and two ranks. */
TEST(a_user_of_deepspeed)
{
    tiny_setup();
    write_text("ds.json",
               fmt("{\"model\": %s, \"_comment\": \"ours\", \"data\": {\"train\": \"text.txt\", \"seq_length\":"
                   " 16},\n \"train_batch_size\": 4, \"gradient_acumulation_steps\": 2,\n"
                   " \"zero_optimization\": {\"stage\": 3}, \"wandb\": {\"enabled\": true}, \"steps\": 2}\n",
                   TINY_MODEL));
    FAILS(2, ("train", "ds.json"), "gradient_acumulation_steps", "did you mean gradient_accumulation_steps?");
    const char *path = TESS_DEEPSPEED "/zero3_auto.json";
    DONE_RANKS(2, "train", path, "model=" TINY_MODEL, "data.train=text.txt", "data.seq_length=16", "steps=2",
               "output=two", "train_micro_batch_size_per_gpu=2");
    CHECK_HAS(ran.err, "auto: train_batch_size 4");
    CHECK_HAS(ran.out, "step 2/2");
    DONE_RANKS(2, "info");
    DONE("generate", "two/model", "--prompt", "the", "-n", "4");
}
