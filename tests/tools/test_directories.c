/* Directories as others leave them: weights and tokenizers in older files, and none at all. Nothing is trained or
 * measured that is not what the directory says. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define TORCH TESS_FIXTURES "/torch/"

static void copy(const char *from, const char *to)
{
    size_t bytes;
    char *data = read_file(from, &bytes);
    write_file(to, data ? data : "", data ? bytes : 0);
    free(data);
}

/* A directory without weights is refused by all, with what it has instead; what draws is asked to, and says so. */
TEST(no_weights)
{
    static const struct {
        const char *file, *said;
    } cases[] = {
        {NULL, "base: has no model.safetensors or pytorch_model.bin (weights=drawn begins with drawn ones)"},
        {"training_args.bin", "base: has no model.safetensors or pytorch_model.bin (weights=drawn"},
        {"tf_model.h5", "has no model.safetensors or pytorch_model.bin, but tf_model.h5, which is not read"},
        {"consolidated.safetensors", "but consolidated.safetensors, which is not read"},
        {"pytorch_model-00001-of-00002.bin",
         "has pytorch_model-00001-of-00002.bin, a shard, and no pytorch_model.bin.index.json beside it"},
        {"model-00001-of-00002.safetensors",
         "has model-00001-of-00002.safetensors, a shard, and no model.safetensors.index.json beside it"},
    };
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", TINY_MODEL);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (cases[c].file) write_text(fmt("base/%s", cases[c].file), "x");
        FAILS(2, ("train", "run.json", "model=base"), cases[c].said);
    }
    FAILS(2, ("eval", "run.json", "model=base"), cases[5].said);
    FAILS(2, ("generate", "base", "--prompt", "a"), "a shard, and no model.safetensors.index.json beside it");
    FAILS(2, ("train", "run.json", "model=base", "lora.r=4"), cases[5].said);
    FAILS(2, ("train", "run.json", "model=base", "lora.r=4", "weights=drawn"), "lora: the model has no weights");
    DONE("estimate", "run.json", "model=base");
    CHECK_HAS(ran.err, "tessera: train refuses this: base: has model-00001-of-00002.safetensors, a shard");
    DONE("train", "run.json", "model=base", "weights=drawn", "steps=1", "seed=7");
    CHECK_HAS(ran.out, "the weights are drawn from seed 7\n");
    DONE("train", "run.json", "steps=1", "seed=7", "output=object");
    CHECK_HAS(ran.out, "the weights are drawn from seed 7\n");
    CHECK(same_file(TINY_WEIGHTS, "object/model/model.safetensors"));
    DONE("train", "run.json", "model=out/model", "steps=1", "seed=7", "output=again");
    CHECK(!strstr(ran.out, "drawn") && !same_file(TINY_WEIGHTS, "again/model/model.safetensors"));
    DONE("train", "run.json", "model=out/model", "weights=drawn", "steps=1", "seed=7", "output=again");
    CHECK(same_file(TINY_WEIGHTS, "again/model/model.safetensors"));
}

/* torch.save's weights, whole and in shards, are those of the same model's safetensors. */
TEST(torch_weights)
{
    static const char *const dir[] = {"same", "whole", "shards"};
    tiny_setup();
    for (int i = 0; i < 3; i++) {
        DONE("train", "run.json", "data.seq_length=16", "steps=2", fmt("model=%s%s", TORCH, dir[i]),
             fmt("output=%s", dir[i]));
        CHECK(!strstr(ran.out, "drawn"));
        CHECK(same_file("same/model/model.safetensors", fmt("%s/model/model.safetensors", dir[i])));
    }
    DONE("train", "run.json", "data.seq_length=16", "steps=1", fmt("model=%swhole", TORCH), "lora.r=2");
    DONE("merge", TORCH "whole", "out/model", "merged");
    DONE("generate", TORCH "shards", "--prompt", "the", "-n", "4");
}

/* A text needs the model's tokenizer where tokens are more than bytes. */
TEST(no_tokenizer)
{
    static const struct {
        const char *file, *said;
    } cases[] = {
        {NULL, "base has no tokenizer.json, tokenizer.model or vocab.json, and its vocabulary is one of 512"},
        {"sentencepiece.bpe.model", "has no tokenizer.json, but sentencepiece.bpe.model (transformers'"},
        {"vocab.txt", "has no tokenizer.json, but vocab.txt"},
        {"vocab.json", "has no tokenizer.json, but vocab.json without merges.txt"},
    };
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", "{\"model_type\": \"gpt2\", \"vocab_size\": 512, \"n_positions\": 32, "
                                   "\"n_embd\": 32, \"n_layer\": 1, \"n_head\": 4}");
    write_text("lines.jsonl", "{\"text\": \"the tile moves\"}\n");
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        if (cases[c].file) write_text(fmt("base/%s", cases[c].file), "{}");
        FAILS(2, ("train", "run.json", "model=base", "weights=drawn"), "text.txt: is a text, and base ", cases[c].said);
    }
    FAILS(2, ("train", "run.json", "model=base", "weights=drawn", "data.train=lines.jsonl"), "is a text, and base ");
    FAILS(2, ("eval", "run.json", "model=base", "weights=drawn"), "valid.txt: is a text, and base ");
    FAILS(2, ("train", "run.json", "model.vocab_size=512"),
          "is a text, and the model has no tokenizer, being an object", "bytes have 256");
    write_text("ids.jsonl", "{\"input_ids\": [1, 2, 300, 4]}\n{\"input_ids\": [7, 8, 9]}\n");
    DONE("train", "run.json", "model=base", "weights=drawn", "data.train=ids.jsonl", "data.valid=ids.jsonl", "steps=1");
    FAILS(2, ("generate", "out/model", "--prompt", "a"), "out/model: has no tokenizer.json",
          "and its vocabulary is one of 512 (bytes have 256)");
    DONE("generate", "out/model", "--prompts", "ids.jsonl", "-n", "2");
}

/* Older files of a tokenizer make a model's tokens, and go along with it. */
TEST(older_tokenizers)
{
    static const char *const file[][2] = {{"llama/tokenizer.model", "tokenizer.model"},
                                          {"llama/tokenizer_config.json", "tokenizer_config.json"}};
    tiny_setup();
    mkdir("base", 0777);
    for (int i = 0; i < 2; i++)
        copy(fmt("%s/tokenizers/older/%s", TESS_FIXTURES, file[i][0]), fmt("base/%s", file[i][1]));
    write_text("base/config.json", "{\"model_type\": \"gpt2\", \"vocab_size\": 620, \"n_positions\": 32, "
                                   "\"n_embd\": 32, \"n_layer\": 1, \"n_head\": 4}");
    DONE("train", "run.json", "model=base", "weights=drawn", "steps=1");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "3");
    CHECK(same_file("base/tokenizer.model", "out/model/tokenizer.model"));
    write_text("in.txt", "the tile moves\n");
    DONE("tokenize", "out/model", "in.txt");
    char *ids = strdup(ran.out);
    write_text("ids.txt", ids);
    DONE("tokenize", "out/model", "ids.txt", "--decode");
    CHECK_STR(ran.out, "the tile moves\n");
    free(ids);
    write_text("base/tokenizer_config.json", "{\"tokenizer_class\": \"XLNetTokenizer\"}");
    FAILS(2, ("train", "run.json", "model=base", "weights=drawn"), "the model's tokenizer is none that is known here",
          "LlamaTokenizer", "tokenizer_class is XLNetTokenizer");
    write_text("base/tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    write_text("base/tokenizer.model", "IQ== 0\nIg== 1\n");
    FAILS(2, ("train", "run.json", "model=base", "weights=drawn"), "is no model of sentencepiece", "tiktoken");
}
