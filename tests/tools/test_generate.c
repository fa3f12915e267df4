/* tessera generate and tokenize: from text to text, with the tokenizer that travels with a model. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

TEST(the_tokenizer_travels_with_the_model)
{
    tiny_setup_tokenizer();
    DONE("train", "run.json", "model=base", "weights=drawn", "steps=1");
    CHECK(same_file("base/tokenizer.json", "out/model/tokenizer.json"));
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "5", "--temperature", "0");
    CHECK(!strncmp(ran.out, "the tile", 8));
}

/* A tokenizer that knows more than the model: a line says so, and only a text that needs what the model lacks is
 * refused. */
TEST(a_tokenizer_larger_than_the_model)
{
    static const char note[] = "tessera: base: its tokenizer has 859 tokens, more than the model's vocab_size, 856: a "
                               "text with one from 856 on is refused\n";
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizer_gpt2.json", NULL);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    free(tokenizer);
    write_text("base/config.json",
               "{\"model_type\": \"gpt2\", \"vocab_size\": 856, \"n_positions\": 32, \"n_embd\": 16, "
               "\"n_layer\": 1, \"n_head\": 2}");
    DONE("train", "run.json", "model=base", "weights=drawn", "steps=1");
    CHECK_STR(ran.err, note);
    DONE("eval", "run.json", "model=out/model");
    CHECK_HAS(ran.err, "tessera: out/model: its tokenizer has 859 tokens");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "2");
    CHECK_HAS(ran.err, "tessera: out/model: its tokenizer has 859 tokens");
    FAILS(2, ("generate", "out/model", "--prompt", "the tile<|endoftext|>", "-n", "2"),
          "--prompt: token 856 is beyond the vocabulary of 856");
    FILE *f = fopen("text.txt", "a");
    fputs("<|endoftext|>", f);
    fclose(f);
    FAILS(2, ("train", "run.json", "model=base", "weights=drawn", "steps=1"),
          "text.txt: byte 4000: token 856 is beyond the vocabulary of 856");
    FAILS(2, ("eval", "run.json", "model=out/model", "data.valid=text.txt"),
          "text.txt: byte 4000: token 856 is beyond the vocabulary of 856");
}

/* What the command reads from stdin. */
static void say_on_stdin(const char *text)
{
    write_text("said", text);
    CHECK(freopen("said", "r", stdin) != NULL);
}

/* Adapters take turns: after each the answers are those of a talk that begins with it. What does not fit is said. */
TEST(adapters_change_while_it_talks)
{
    char answer[2][8];
    tiny_setup_trained();
    write_text("out/model/chat_template.jinja",
               "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}");
    for (int k = 0; k < 3; k++) {
        DONE("train", "run.json", "model=out/model", k == 2 ? "lora.r=3" : "lora.r=2", "lora.targets=all-linear",
             fmt("output=a%d", k), fmt("seed=%d", k + 1), k ? "optimizer.params.lr=1" : "optimizer.params.lr=1e-6",
             "steps=6");
        if (k == 2) break;
        say_on_stdin("hi\n");
        DONE("generate", "out/model", "--adapter", fmt("a%d/model", k), "--chat", "-n", "4", "--temperature", "0");
        snprintf(answer[k], sizeof answer[k], "%.5s", ran.out);
    }
    CHECK(strcmp(answer[0], answer[1]));
    write_text("out/model/chat_template.jinja", "{{ messages[-1].content }}"); /* each turn by itself */
    say_on_stdin("hi\n/adapter a1/model\nhi\n/adapter a2/model\n/adapter nowhere\nhi\n/adapter a0/model\nhi\n");
    DONE("generate", "out/model", "--adapter", "a0/model", "--chat", "-n", "4", "--temperature", "0");
    CHECK_STR(ran.out, fmt("%s%s%s%s", answer[0], answer[1], answer[1], answer[0]));
    CHECK_HAS(ran.err, "a2/model: r: 3, but the adapter before has 2");
    CHECK_HAS(ran.err, "nowhere");
    say_on_stdin("/adapter a1/model\n");
    DONE("generate", "out/model", "--chat", "-n", "4");
    CHECK_HAS(ran.err, "the model has no adapter in whose place it could come");
}

/* Each line is a turn, and the model reads all that was said before it by its template. */
TEST(generate_talks)
{
    tiny_setup_trained();
    write_text("out/model/chat_template.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
                                                "{% if add_generation_prompt %}a:{% endif %}");
    say_on_stdin("hi\n\nwho\n");
    DONE("generate", "out/model", "--chat", "-n", "4", "--temperature", "0");
    const char *end = strchr(ran.out, '\n');
    CHECK(end && end - ran.out == 4 && strlen(end + 1) == 5); /* two answers of four bytes */
    char first[8] = "";
    snprintf(first, sizeof first, "%.4s", ran.out);
    const char *prompt = fmt("u:hi\na:%s\nu:who\na:", first);
    const char *want = fmt("%s%s", prompt, end ? end + 1 : "");
    DONE("generate", "out/model", "--prompt", prompt, "-n", "4", "--temperature", "0");
    CHECK_STR(ran.out, want);
    /* What the system says comes first; a file has whole conversations, and gets the answers. */
    say_on_stdin("hi\n");
    DONE("generate", "out/model", "--chat", "--system", "be kind", "-n", "4", "--temperature", "0");
    char *answer = strdup(ran.out);
    answer[strcspn(answer, "\n")] = 0;
    want = fmt("s:be kind\nu:hi\na:%s\n", answer);
    DONE("generate", "out/model", "--prompt", "s:be kind\nu:hi\na:", "-n", "4", "--temperature", "0");
    CHECK_STR(ran.out, want);
    write_text("talks.jsonl", "{\"messages\": [{\"role\": \"system\", \"content\": \"be kind\"}, {\"role\": \"user\", "
                              "\"content\": \"hi\"}], \"id\": 7}\n");
    want = fmt("{\"messages\": [{\"role\": \"system\", \"content\": \"be kind\"}, {\"role\": \"user\", \"content\": "
               "\"hi\"}, {\"role\": \"assistant\", \"content\": \"%s\"}], \"id\": 7}\n",
               answer);
    DONE("generate", "out/model", "--prompts", "talks.jsonl", "-n", "4", "--temperature", "0");
    CHECK_STR(ran.out, want);
    free(answer);
    FAILS(2, ("generate", "out/model", "--prompt", "x", "--system", "y"), "--system: without --chat");
    say_on_stdin("hi\n");
    FAILS(2, ("generate", "out/model", "--chat", "-n", "500"),
          "the conversation: 7 tokens, and up to 500 to add, are more than");
    say_on_stdin("\377\n");
    FAILS(2, ("generate", "out/model", "--chat"), "stdin: line 1 is not UTF-8");
    say_on_stdin("hi\n");
    write_text("out/model/chat_template.jinja", "{{ messages | frob }}");
    FAILS(2, ("generate", "out/model", "--chat", "-n", "2"),
          "chat_template.jinja: line 1: filter frob is not supported");
    unlink("out/model/chat_template.jinja");
    say_on_stdin("hi\n");
    FAILS(2, ("generate", "out/model", "--chat", "-n", "2"),
          "--chat: chat_template: out/model has none (in tokenizer_config.json, or chat_template.jinja)");
    FAILS(2, ("generate", "out/model", "--prompts", "talks.jsonl"),
          "talks.jsonl:1: chat_template: out/model has none (in tokenizer_config.json, or chat_template.jinja)");
    FAILS(2, ("generate", "out/model", "--chat", "--prompt", "x"), "command line: --chat and --prompt: both are given");
}

static int count_char(const char *text, char c)
{
    int n = 0;
    for (; *text; text++) n += *text == c;
    return n;
}

TEST(tokenize_goes_both_ways)
{
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizers/llama2.json", NULL);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    free(tokenizer);
    write_text("lines", "Hello <s>w\303\266rld\n\n\360\237\230\200");
    DONE("tokenize", "base", "lines", "--special");
    CHECK(!strncmp(ran.out, "1 ", 2));
    CHECK_HAS(ran.out, " 1 "); /* <s> within the line, behind the one that begins it */
    CHECK_HAS(ran.out, "\n1\n1 ");
    CHECK_EQ(count_char(ran.out, '\n'), 3);
    DONE("tokenize", "base", "lines");
    write_text("ids", ran.out);
    DONE("tokenize", "base", "ids", "--decode");
    CHECK_STR(ran.out,
              "Hello <s> w\303\266rld\n\n\360\237\230\200\n"); /* what follows a special token is a text anew */
    write_text("base/config.json", "{\"vocab_size\": 300}");
    FAILS(2, ("tokenize", "base", "lines"), "lines: line 1: token ", "is beyond the model's vocab_size, 300");
    write_text("lines", "fine\nbad \377\n");
    unlink("base/config.json");
    FAILS(2, ("tokenize", "base", "lines"), "lines: line 2: byte 4: is not UTF-8");
    write_text("ids", "12 x\n");
    FAILS(2, ("tokenize", "base", "ids", "--decode"), "ids: line 1: \"x\" is no id");
    write_text("ids", "99999999\n");
    FAILS(2, ("tokenize", "base", "ids", "--decode"), "ids: line 1: id 99999999 is none of the tokenizer's");
    FAILS(2, ("tokenize", "out", "ids"), "out: has no tokenizer.json");
    FAILS(2, ("tokenize"), "command line: 0 names, expected MODEL_DIR [FILE]");
    write_text("base/tokenizer.json", "{\"model\": {}, \"normalizer\": {\"type\": \"Katakana\"}}");
    FAILS(2, ("tokenize", "base", "lines"), "base/tokenizer.json: normalizer: normalizer Katakana is not supported");
}

static void generate_into(char text[200], const char *seed, const char *temperature, const char *top_k)
{
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "24", "--seed", seed, "--temperature", temperature,
         "--top-k", top_k);
    CHECK(!strncmp(ran.out, "the tile", 8));
    CHECK(strlen(ran.out) > 9);
    CHECK(ran.out[0] && ran.out[strlen(ran.out) - 1] == '\n');
    snprintf(text, 200, "%s", ran.out);
}

TEST(generate_goes_on_from_a_prompt)
{
    char a[200], b[200], c[200], d[200];
    tiny_setup();
    DONE("train", "run.json", "steps=60", "optimizer.params.lr=1e-2", "log_every=60");
    generate_into(a, "1", "1", "0");
    generate_into(b, "1", "1", "0");
    CHECK_STR(a, b);
    generate_into(c, "2", "1", "0");
    CHECK(strcmp(a, c));
    generate_into(a, "1", "0", "0");
    generate_into(b, "2", "0", "0");
    CHECK_STR(a, b); /* the likeliest does not depend on the seed, */
    CHECK_EQ(strlen(a), 8 + 24 + 1);
    generate_into(d, "3", "1", "1");
    CHECK_STR(d, a); /* and is the one of the likeliest 1 */
    CHECK_HAS(ran.err, " tokens/s");
    FAILS(2, ("generate", "out/model", "--prompt=the tile moves and rests on a disk. the tile moves", "-n", "40"),
          "--prompt: 50 tokens, but the model has 32 positions");
    DONE("generate", "out/model", "--prompt=the tile moves", "-n", "40"); /* until it is full */
    CHECK_HAS(ran.err, "1 of 1 texts ended at the model's 32 positions");
    CHECK_EQ(strlen(ran.out), 32 + 1);
    CHECK(strspn(a + 8, "abcdefghijklmnopqrstuvwxyz .\n") == strlen(a + 8)); /* it knows the letters */
    DONE("train", "run.json", "steps=1", "model.n_positions=256");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "180");
    write_text("prompts.txt", "the tile\n\nthe tile moves and rests\r\na\n");
    DONE("generate", "out/model", "--prompts", "prompts.txt", "-n", "9", "--temperature", "0", "--batch", "2");
    const char *all = fmt("%s", ran.out);
    int lines = 0;
    for (const char *at = all; (at = strchr(at, '\n')); at++) lines++;
    CHECK_EQ(lines, 3);
    CHECK(!strncmp(all, "the tile", 8));
    CHECK_HAS(all, "\nthe tile moves and rests");
    DONE("generate", "out/model", "--prompt", "the tile moves and rests", "-n", "9", "--temperature", "0");
    CHECK(strstr(all, ran.out)); /* as it goes on alone */
    write_text("prompts.jsonl", "{\"prompt\": \"the tile\"}\n{\"input_ids\": [116, 104]}\n");
    DONE("generate", "out/model", "--prompts", "prompts.jsonl", "-n", "3", "--top-p", "0.9", "--repetition-penalty",
         "1.2");
    CHECK_HAS(ran.out, "{\"prompt\": \"the tile\", \"completion\": \"");
    CHECK_HAS(ran.out, "\n{\"input_ids\": [116, 104], \"output_ids\": [");
    write_text("prompts.txt", "\n\n");
    FAILS(2, ("generate", "out/model", "--prompts", "prompts.txt"), "prompts.txt: has no prompt");
    write_text("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"a\"}\n");
    FAILS(2, ("generate", "out/model", "--prompts", "prompts.jsonl"), "prompts.jsonl:2: has no prompt");
}

/* A token that ends a text does, unless it is not to; where config.json and generation_config.json differ, the latter.
 */
TEST(generate_ends_with_the_text)
{
    tiny_setup();
    RUN("train", "run.json", "steps=1");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    CHECK_EQ(strlen(ran.out), 8 + 12 + 1);
    const char *first = fmt("%s", ran.out);
    write_text("out/model/generation_config.json", fmt("{\"eos_token_id\": [255, %d]}", first[8 + 3]));
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    const size_t n = strcspn(first + 8, (char[]){first[8 + 3], 0});
    CHECK_EQ(strlen(ran.out), 8 + n + 1);
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0", "--ignore-eos");
    CHECK_STR(ran.out, first);
}

/* StarPU's limit on RAM is a cap here too: too little is said at once, and what is named then is enough. */
TEST(generate_below_a_limit)
{
    char mib[32];
    wide_setup_with("\"steps\": 1, \"train_batch_size\": 1");
    DONE("train", "run.json");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "80", "--temperature", "0");
    char *text = strdup(ran.out);
    setenv("STARPU_LIMIT_CPU_MEM", "1", 1);
    FAILS(2, ("generate", "out/model", "--prompt", "the tile", "-n", "80"),
          "STARPU_LIMIT_CPU_MEM: a text of 32 tokens needs", "the cap is 1.0 MiB", " would do)");
    CHECK_STR(ran.out, "");
    snprintf(mib, sizeof mib, "%ld", named_in_error("the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM="));
    setenv("STARPU_LIMIT_CPU_MEM", mib, 1);
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "80", "--temperature", "0");
    CHECK_STR(ran.out, text);
    free(text);
    setenv("STARPU_LIMIT_CPU_MEM", "1", 1); /* and of a run the variable is named that is to be changed */
    FAILS(2, ("train", "run.json"), "STARPU_LIMIT_CPU_MEM: the run needs",
          "the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM=", "would do");
    snprintf(mib, sizeof mib, "%ld", named_in_error("the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM="));
    WITH("STARPU_LIMIT_CPU_MEM", mib) DONE("train", "run.json");
}

/* The same text with a cap that weights do not fit. */
static void generate_over_a_disk(const char *model)
{
    tiny_setup();
    mkdir("base", 0777);
    mkdir("swap", 0777);
    write_text("base/config.json", model);
    DONE("train", "run.json", "model=base", "weights=drawn", "steps=1", "train_batch_size=1");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "30", "--temperature", "0");
    char *text = strdup(ran.out);
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "30", "--temperature", "0", "memory.cpu=16MiB",
         "memory.path=swap");
    CHECK_STR(ran.out, text);
    free(text);
}

/* Each token fetches its own experts, also where they are on disk: a choice is made anew for each token. */
TEST(generate_with_experts_on_disk)
{
    static const char model[] =
        "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 64, "
        "\"moe_intermediate_size\": 512, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"num_experts\": 48, \"num_experts_per_tok\": 2, "
        "\"max_position_embeddings\": 128, \"tie_word_embeddings\": false, \"initializer_range\": 0.2}";
    generate_over_a_disk(model);
}

/* What linear attention carries from token to token leaves RAM and comes back. */
TEST(generate_with_states_on_disk)
{
    generate_over_a_disk(
        "{\"model_type\": \"qwen3_5_text\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 4096, "
        "\"num_hidden_layers\": 8, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 16, "
        "\"linear_num_key_heads\": 4, \"linear_num_value_heads\": 8, \"linear_key_head_dim\": 32, "
        "\"linear_value_head_dim\": 32, \"initializer_range\": 0.2}");
}
