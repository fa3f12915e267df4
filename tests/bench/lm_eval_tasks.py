"""Scores tasks with lm-evaluation-harness and with tessera, and says how far they are apart.

    python3 tests/bench/lm_eval_tasks.py build-quick/tools/tessera [DIR]

Needs torch, transformers, tokenizers and lm_eval (pip install "lm_eval[hf]"); nothing is downloaded. A tiny GPT-2 and a tiny
Llama with weights from a seed, tokenizers trained here, and three tasks of local lines: multiple choice, last word, and
generation. lm_eval leaves samples_*.jsonl, which tessera reads; each log-likelihood is compared, and each metric."""
import glob, json, os, random, subprocess, sys, tempfile

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

tessera = os.path.abspath(sys.argv[1])
base = sys.argv[2] if len(sys.argv) > 2 else tempfile.mkdtemp()
random.seed(1)
words = "the a tile disk rank step moves rests and on in of big small old new graph plan näher größer 数据".split()


def text(n):
    return " ".join(random.choice(words) for _ in range(n))


def lines(name, rows):
    with open(f"{base}/{name}.jsonl", "w") as f:
        f.writelines(json.dumps(r) + "\n" for r in rows)


def task(name, more):
    with open(f"{base}/{name}.yaml", "w") as f:
        f.write(f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {base}/{name}.jsonl\n"
                f"test_split: test\n{more}")


def tasks():
    lines("choose", [{"q": text(random.randint(0, 90)) + random.choice(["", " ", "\n"]),
                      "c": [text(random.randint(1, 9)) for _ in range(4)], "a": random.randrange(4)}
                     for _ in range(120)])
    task("choose", "output_type: multiple_choice\ndoc_to_text: '{{q}}'\ndoc_to_choice: '{{c}}'\ndoc_to_target: '{{a}}'\n"
                   "metric_list:\n" + "".join(f"  - metric: {m}\n" for m in ("acc", "acc_norm", "acc_bytes")))
    lines("last", [{"q": text(random.randint(2, 40)), "w": " " + random.choice(words)} for _ in range(150)])
    task("last", "output_type: loglikelihood\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{w}}'\ntarget_delimiter: ''\n"
                 "metric_list:\n  - metric: perplexity\n  - metric: acc\n")
    lines("write", [{"q": text(random.randint(2, 30)), "a": " " + random.choice(words)} for _ in range(30)])
    task("write", "output_type: generate_until\ndoc_to_text: '{{q}}'\ndoc_to_target: '{{a}}'\ntarget_delimiter: ''\n"
                  "generation_kwargs:\n  until: ['.', ' on']\n  max_gen_toks: 12\n  do_sample: false\n"
                  "metric_list:\n  - metric: exact_match\n")


def tokenizer(dir, bos):
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["<s>", "</s>"] if bos else ["<|endoftext|>"]
    t.train_from_iterator([text(2000)], trainers.BpeTrainer(
        vocab_size=330, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if bos:
        t.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", t.token_to_id("<s>"))])
    PreTrainedTokenizerFast(tokenizer_object=t, bos_token=special[0], eos_token=special[-1],
                            pad_token=special[-1]).save_pretrained(dir)
    return t.get_vocab_size()


def model(kind):
    dir = f"{base}/{kind}"
    vocab = tokenizer(dir, kind == "llama")
    torch.manual_seed(3)
    common = dict(vocab_size=vocab, bos_token_id=0, eos_token_id=1 if kind == "llama" else 0, initializer_range=0.3)
    m = (GPT2LMHeadModel(GPT2Config(n_positions=96, n_embd=48, n_layer=2, n_head=4, **common)) if kind == "gpt2" else
         LlamaForCausalLM(LlamaConfig(max_position_embeddings=96, hidden_size=48, intermediate_size=96,
                                      num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, **common)))
    m.generation_config.eos_token_id = common["eos_token_id"]
    m.save_pretrained(dir)
    return dir


def numbers(printed):
    """The table that tessera printed: metrics and their values."""
    rows = [l.split() for l in printed.strip().splitlines()[1:]]
    return {r[2]: float(r[3]) for r in rows}, {r[2] + "_stderr": float(r[4]) for r in rows}


def compare(kind):
    dir = model(kind)
    subprocess.run([sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", f"pretrained={dir},dtype=float32",
                    "--device", "cpu", "--tasks", "choose,last,write", "--include_path", base, "--batch_size", "8",
                    "--output_path", f"{dir}/out", "--log_samples"], check=True,
                   stdout=open(f"{dir}/log", "w"), stderr=subprocess.STDOUT)
    results = json.load(open(glob.glob(f"{dir}/out/**/results_*.json", recursive=True)[-1]))["results"]
    bad = 0
    for name in "choose", "last", "write":
        samples = glob.glob(f"{dir}/out/**/samples_{name}_*.jsonl", recursive=True)[-1]
        ours = f"{dir}/{name}.ours.jsonl"
        ran = subprocess.run([tessera, "eval", dir, "--task", samples, "--samples", ours], capture_output=True, text=True)
        if ran.returncode:
            sys.exit(f"{samples}: {ran.stderr}")
        row, errors = numbers(ran.stdout)
        row |= {k: v for k, v in errors.items() if k != "perplexity_stderr"}  # theirs is found by drawing
        theirs = {k.replace(",none", ""): v for k, v in results[name].items() if isinstance(v, (int, float))}
        far, greedy, n = 0.0, 0, 0
        for a, b in zip(open(samples), open(ours)):
            a, b = json.loads(a), json.loads(b)
            for theirs_, mine in zip(a["filtered_resps"], b["filtered_resps"]):
                n += 1
                if name == "write":
                    greedy += theirs_.split("\0")[0] != mine  # a text ends there, which drawn models write
                    continue
                far = max(far, abs(float(theirs_[0]) - mine[0]) / max(1, abs(mine[0])))
                greedy += (str(theirs_[1]) == "True") != mine[1]
        print(f"{kind} {name}: {n} requests, log-likelihoods at most {far:.1e} apart (relative), {greedy} answers differ")
        bad += far > 1e-5 or greedy > 0
        for metric, value in theirs.items():
            if metric in row:
                print(f"    {metric}: lm_eval {value:.6g}, tessera {row[metric]}")
                bad += abs(float(row[metric]) - value) > 1e-4 * max(1, abs(value))
    return bad


tasks()
sys.exit(1 if sum(compare(kind) for kind in ("gpt2", "llama")) else 0)
