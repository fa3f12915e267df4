"""Directories in the shapes of thirty model repositories, each with the keys of its configuration files and its own class
of tokenizer, drawn small by transformers: what tessera reads of each beside transformers. A table comes out: tokens of
texts with what the tokenizer puts around them, the tokens that begin and end a text, and the loss of documents.

    python shapes.py TESSERA [NAME...]      needs torch and transformers 5
"""
import json, os, random, re, subprocess, sys, tempfile, warnings

warnings.filterwarnings("ignore")
os.environ["TRANSFORMERS_VERBOSITY"] = "error"
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
import torch
import transformers as hf

hf.logging.disable_progress_bar()

T, VOCAB = 32, 400
WORDS = ("the quick brown fox jumps over a lazy dog while seven wizards forge 42 shiny swords, don't they? Ünïcode naïve "
         "東京 tower; def f(x): return x+1 1e400 -0 ½ ﬁ I'll we've   \t two  spaces").split(" ")


def texts(n, seed):
    rnd = random.Random(seed)
    return [" ".join(rnd.choice(WORDS) for _ in range(rnd.randint(4, 30))) for _ in range(n)]


SMALL = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=VOCAB)


def decoder(cls, tokenizer, kv=2, keys=None, files=None, add=None, model=True, **more):
    return dict(cls=cls, tokenizer=tokenizer, conf=dict(SMALL, num_key_value_heads=kv, **more), keys=keys or {},
                files=files or {}, add=add or {}, model=model)


def encoder(cls, tokenizer, model=False, **more):
    return dict(cls=cls, tokenizer=tokenizer, conf=dict(SMALL, **more), keys={}, files={}, add={}, model=model)


# What the repository's files say beside what the class's defaults do: as they stand there, also where it is odd.
BOS = {"add_bos_token": True}
LONG = {"model_max_length": 1000000000000000019884624838656}
SHAPES = {
    "meta-llama/Llama-2-7b-hf": decoder("Llama", "LlamaTokenizer", 4, add=BOS,
        keys={"bos_token_id": 1, "eos_token_id": 2, "pretraining_tp": 1, "torch_dtype": "float16", "rope_scaling": None},
        files={"tokenizer_config.json": LONG}),
    "meta-llama/Llama-2-7b-chat-hf": decoder("Llama", "LlamaTokenizer", 4, add=BOS, keys={"bos_token_id": 1, "eos_token_id": 2},
        files={"generation_config.json": {"temperature": 0.6, "top_p": 0.9, "pad_token_id": 0, "do_sample": True}}),
    "meta-llama/Meta-Llama-3-8B": decoder("Llama", "PreTrainedTokenizerFast:llama3", 2, rope_theta=500000.0,
        keys={"bos_token_id": 128000 % VOCAB, "eos_token_id": 128001 % VOCAB}),
    "meta-llama/Llama-3.2-1B-Instruct": decoder("Llama", "PreTrainedTokenizerFast:llama3", 2, tie_word_embeddings=True,
        rope_scaling={"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "rope_theta": 500000.0,
                      "original_max_position_embeddings": 8192, "rope_type": "llama3"}),
    "TinyLlama/TinyLlama-1.1B-Chat-v1.0": decoder("Llama", "LlamaTokenizer", 2, add=BOS, files={"tokenizer_config.json": LONG}),
    "codellama/CodeLlama-7b-hf": decoder("Llama", "CodeLlamaTokenizer", 4, add=BOS, rope_theta=1000000.0),
    "HuggingFaceTB/SmolLM-135M": decoder("Llama", "GPT2Tokenizer", 2, tie_word_embeddings=True),
    "mistralai/Mistral-7B-v0.1": decoder("Mistral", "LlamaTokenizer", 2, add=BOS, sliding_window=4096,
        files={"tokenizer_config.json": LONG}),
    "HuggingFaceH4/zephyr-7b-beta": decoder("Mistral", "LlamaTokenizer", 2, add=BOS, keys={"pad_token_id": 2},
        files={"tokenizer_config.json": dict(LONG, truncation_side="left", padding_side="left")}),
    "mistralai/Mixtral-8x7B-v0.1": decoder("Mixtral", "LlamaTokenizer", 2, add=BOS, num_local_experts=4, num_experts_per_tok=2),
    "google/gemma-2-2b": decoder("Gemma2", "GemmaTokenizer", 2, head_dim=8, query_pre_attn_scalar=8,
        add=BOS, files={"tokenizer_config.json": LONG}),
    "google/gemma-7b": decoder("Gemma", "GemmaTokenizer", 4, add=BOS, head_dim=8, model=False),
    "microsoft/Phi-3-mini-4k-instruct": decoder("Phi3", "LlamaTokenizer", 4, pad_token_id=0,
        add={"add_bos_token": False}),
    "microsoft/phi-2": decoder("Phi", "GPT2Tokenizer", 4, model=False),
    "Qwen/Qwen2-0.5B": decoder("Qwen2", "Qwen2Tokenizer", 2, tie_word_embeddings=True),
    "Qwen/Qwen2.5-7B-Instruct": decoder("Qwen2", "Qwen2Tokenizer", 2,
        files={"generation_config.json": {"repetition_penalty": 1.05, "top_k": 20, "eos_token_id": [2, 0]}}),
    "Qwen/Qwen3-0.6B": decoder("Qwen3", "Qwen2Tokenizer", 2, head_dim=8, tie_word_embeddings=True),
    "Qwen/Qwen3-30B-A3B": decoder("Qwen3Moe", "Qwen2Tokenizer", 2, head_dim=8, num_experts=4, num_experts_per_tok=2,
        moe_intermediate_size=16, decoder_sparse_step=1, norm_topk_prob=True),
    "allenai/OLMo-1B-hf": decoder("Olmo", "GPTNeoXTokenizer", 4, model=False),
    "EleutherAI/pythia-160m": dict(encoder("GPTNeoX", "GPTNeoXTokenizer", model=True)),
    "openai-community/gpt2": dict(cls="GPT2", tokenizer="GPT2Tokenizer", model=True, files={}, add={},
        conf=dict(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4),
        keys={"task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}}),
    "google-t5/t5-small": dict(cls="T5", tokenizer="T5Tokenizer", model=False, files={}, add={}, keys={},
        conf=dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4)),
    "google/flan-t5-base": dict(cls="T5", tokenizer="T5Tokenizer", model=False, files={}, add={}, keys={},
        conf=dict(vocab_size=VOCAB, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4,
                  feed_forward_proj="gated-gelu", tie_word_embeddings=False)),
    "google-bert/bert-base-uncased": encoder("Bert", "BertTokenizer"),
    "FacebookAI/roberta-base": encoder("Roberta", "RobertaTokenizer", max_position_embeddings=66),
    "FacebookAI/xlm-roberta-base": encoder("XLMRoberta", "XLMRobertaTokenizer", max_position_embeddings=66),
    "microsoft/deberta-v3-base": encoder("DebertaV2", "DebertaV2Tokenizer"),
    "distilbert/distilbert-base-uncased": dict(cls="DistilBert", tokenizer="DistilBertTokenizer", model=False, files={},
        add={}, keys={}, conf=dict(vocab_size=VOCAB, dim=32, hidden_dim=64, n_layers=2, n_heads=4)),
    "openai/whisper-tiny": dict(cls="Whisper", tokenizer="WhisperTokenizer", model=False, files={}, add={}, keys={},
        conf=dict(vocab_size=VOCAB, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
                  decoder_attention_heads=4, encoder_ffn_dim=64, decoder_ffn_dim=64)),
    "CohereForAI/c4ai-command-r-v01": decoder("Cohere", "CohereTokenizer", 4, model=False),
}


def llama3():
    """A byte-level BPE with Llama 3's pattern and a template that puts a token in front, as a bare tokenizer.json."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    t = Tokenizer(models.BPE(ignore_merges=True))
    pattern = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
               r"|\s+(?!\S)|\s+")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    t.decoder = decoders.ByteLevel()
    special = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"]
    t.train_from_iterator(texts(2000, 1), trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=special,
                          initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    t.post_processor = processors.TemplateProcessing(single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A $B",
                                                     special_tokens=[("<|begin_of_text|>", 0)])
    return hf.PreTrainedTokenizerFast(tokenizer_object=t, bos_token="<|begin_of_text|>", eos_token="<|end_of_text|>")


def tokenizer_of(shape):
    if shape["tokenizer"].endswith(":llama3"):
        return llama3()
    return getattr(hf, shape["tokenizer"])(**shape["add"]).train_new_from_iterator(texts(2000, 1), VOCAB)


def edit(path, more):
    old = json.load(open(path)) if os.path.exists(path) else {}
    old.update(more)
    json.dump(old, open(path, "w"))


def draw(shape, where):
    tok = tokenizer_of(shape)
    tok.save_pretrained(where)
    edit(where + "/tokenizer_config.json", shape["files"].get("tokenizer_config.json", {}))
    tok = hf.AutoTokenizer.from_pretrained(where)
    conf = getattr(hf, shape["cls"] + "Config")(**shape["conf"])
    conf.bos_token_id, conf.eos_token_id = tok.bos_token_id, tok.eos_token_id
    torch.manual_seed(1)
    cls = getattr(hf, shape["cls"] + "ForCausalLM", None) or getattr(hf, shape["cls"] + "LMHeadModel", None)
    model = cls(conf).eval() if shape["model"] else None
    (model or conf).save_pretrained(where)
    edit(where + "/config.json", {k: v for k, v in shape["keys"].items() if not k.endswith("token_id")})
    if "generation_config.json" in shape["files"]:
        edit(where + "/generation_config.json", shape["files"]["generation_config.json"])
    return tok, model


def run(*args):
    r = subprocess.run([TESSERA, *args], capture_output=True, text=True)
    return r.stdout if r.returncode == 0 else "! " + r.stderr.strip().splitlines()[-1]


def loss_of(tok, model, docs):
    stream = []
    for d in docs:
        stream += tok(d).input_ids
        if stream[-1] != tok.eos_token_id:
            stream.append(tok.eos_token_id)
    total = n = 0
    with torch.no_grad():
        for at in range(0, len(stream) - T, T):
            ids = torch.tensor([stream[at:at + T + 1]])
            logits = model(ids[:, :-1]).logits[0]
            total += torch.nn.functional.cross_entropy(logits.double(), ids[0, 1:], reduction="sum").item()
            n += T
    return total / n, n


def check(name, shape, where):
    tok, model = draw(shape, where)
    lines = [x for x in texts(200, 2) if "\n" not in x]
    open(where + "/lines.txt", "w").write("\n".join(lines) + "\n")
    row = [name, type(tok).__name__]
    wrong = 0
    for special in (False, True):
        ours = run("tokenize", where, where + "/lines.txt", *(["--special"] if special else []))
        if ours.startswith("!"):
            return row + [ours, "", "", "", ""], False
        ours = [[int(x) for x in l.split()] for l in ours.splitlines()]
        wrong += sum(a != tok(b, add_special_tokens=special).input_ids for a, b in zip(ours, lines)) + len(ours) - len(lines)
    around = tok("the").input_ids, tok("the", add_special_tokens=False).input_ids
    first = ours[0][0] if around[0][0] != around[1][0] else None
    row += ["%d of %d" % (2 * len(lines) - wrong, 2 * len(lines)), first, tok.eos_token_id]
    if not model:
        return row + [None, None], wrong == 0
    docs = texts(60, 3)
    open(where + "/docs.jsonl", "w").write("".join(json.dumps({"text": d}) + "\n" for d in docs))
    said = run("eval", where, "data.valid=" + where + "/docs.jsonl", "data.seq_length=%d" % T)
    ours = re.match(r"loss (\S+).*tokens (\d+)", said)
    theirs, n = loss_of(tok, model, docs)
    if not ours:
        return row + [said, "%.6f" % theirs], False
    same = abs(float(ours[1]) - theirs) < 2e-6 and int(ours[2]) == n
    return row + [ours[1] + ("" if int(ours[2]) == n else " of %s tokens" % ours[2]), "%.6f" % theirs], wrong == 0 and same


def main():
    global TESSERA
    TESSERA = os.path.realpath(sys.argv[1])
    names = [n for n in SHAPES if not sys.argv[2:] or any(x in n for x in sys.argv[2:])]
    print("| repository | tokenizer | equal lines | first | end | loss | transformers |\n|---|---|---|---|---|---|---|")
    passed = 0
    for name in names:
        with tempfile.TemporaryDirectory() as where:
            row, good = check(name, SHAPES[name], where)
        passed += good
        print("| " + " | ".join("–" if x is None else str(x) for x in row) + (" |" if good else " | WRONG"), flush=True)
    print("%d passed, %d failed, 0 skipped" % (passed, len(names) - passed))
    return passed < len(names)


if __name__ == "__main__":
    sys.exit(main())
