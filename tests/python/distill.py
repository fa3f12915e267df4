"""Distillation beside PyTorch, step by step: the teacher's file, and loss and gradient norm of ten steps of a drawn GPT-2.

    python tests/python/distill.py build/tools/tessera

Needs torch, transformers and safetensors. The loss is written out below: cross entropy, and the divergence of the
model's distribution from the teacher's likeliest tokens, whose probabilities add up to 1, both at the temperature. Ends
with 1 where a number is further away than 1e-5 of it.
"""
import copy, json, os, pathlib, random, subprocess, sys, tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

STEPS, BATCH, MICRO, LENGTH, LR = 10, 4, 2, 32, 1e-3
RUNS = {
    "half": {"top_k": 8, "temperature": 1.0, "weight": 0.5},
    "warm": {"top_k": 12, "temperature": 2.0, "weight": 0.7},
    "alone": {"top_k": 257, "temperature": 1.5, "weight": 1.0},
}


def draw(directory):
    torch.manual_seed(5)
    random.seed(5)
    end = "<|endoftext|>"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(letters)} | {end: len(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=end)
    made = {}
    for name, width, layers in ("model", 32, 2), ("teacher", 48, 3):
        config = transformers.GPT2Config(vocab_size=len(letters) + 1, n_positions=LENGTH, n_embd=width, n_layer=layers,
                                         n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, initializer_range=0.2,
                                         bos_token_id=len(letters), eos_token_id=len(letters))
        made[name] = transformers.GPT2LMHeadModel(config).float()
        made[name].save_pretrained(directory / name)
        fast.save_pretrained(directory / name)
    words = "red green blue one two three sun moon sea".split()
    say = lambda n: " " + " ".join(random.choice(words) for _ in range(n))
    for name, count in ("train", 10), ("valid", 5):
        lines = [{"prompt": "say" + say(1), "completion": say(random.randint(1, 3))} for _ in range(count)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return made["model"], made["teacher"], fast


def run_tessera(command, directory, name):
    config = {"model": "model", "steps": STEPS, "train_batch_size": BATCH, "train_micro_batch_size_per_gpu": MICRO,
              "data": {"train": "train.jsonl", "valid": "valid.jsonl", "seq_length": LENGTH, "shuffle": False,
                       "end_completions": True},
              "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0}}, "eval_every": STEPS,
              "gradient_clipping": 0, "output": name, "distill": {"teacher": "teacher"} | RUNS[name]}
    (directory / f"{name}.json").write_text(json.dumps(config))
    subprocess.run([command, "train", f"{name}.json"], cwd=directory, check=True, stdout=subprocess.DEVNULL)
    metrics = (directory / name / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in metrics], load_file(directory / name / "teacher.safetensors")


def rows_of(tokenizer, directory, name):
    for line in (directory / f"{name}.jsonl").read_text().splitlines():
        line = json.loads(line)
        prompt, answer = tokenizer(line["prompt"]).input_ids, tokenizer(line["completion"]).input_ids
        yield torch.tensor([prompt + answer + [tokenizer.eos_token_id]]), len(prompt)


def run_torch(model, teacher, tokenizer, directory, name, scores):
    s, model = RUNS[name], copy.deepcopy(model)
    rows = {n: list(rows_of(tokenizer, directory, n)) for n in ("train", "valid")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    outcomes, worst = [], 0.0
    for i, (ids, prompt) in enumerate(rows["train"]):
        with torch.no_grad():
            best = teacher(ids).logits[0].log_softmax(-1).topk(s["top_k"])
        n = ids.shape[1]
        said = scores["logprobs"][i].view(LENGTH, -1)[:n], scores["tokens"][i].view(LENGTH, -1)[:n]
        worst = max(worst, (said[0] - best.values).abs().max().item())
        if s["top_k"] < 100 and not torch.equal(said[1], best.indices.int()):
            print(f"{name}: sample {i} has other tokens")
            worst = 1.0

    def losses_of(row):
        ids, prompt = row
        logits = model(ids).logits[0, prompt - 1:-1]
        with torch.no_grad():
            best = teacher(ids).logits[0, prompt - 1:-1].log_softmax(-1).topk(s["top_k"])
        said = (best.values / s["temperature"]).log_softmax(-1)
        own = (logits / s["temperature"]).log_softmax(-1).gather(-1, best.indices)
        divergence = (said.exp() * (said - own)).sum(-1) * s["temperature"] ** 2
        return F.cross_entropy(logits, ids[0, prompt:], reduction="none"), divergence

    for step in range(STEPS):
        batch = [losses_of(rows["train"][(step * BATCH + i) % len(rows["train"])]) for i in range(BATCH)]
        label, divergence = (torch.cat([one[k] for one in batch]).mean() for k in range(2))
        loss = (1 - s["weight"]) * label + s["weight"] * divergence
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        outcomes.append({"loss": loss.item(), "grad_norm": norm.item()})
    with torch.no_grad():
        outcomes[-1]["valid_loss"] = torch.cat([losses_of(row)[0] for row in rows["valid"]]).mean().item()
    return outcomes, worst


def main():
    command = str(pathlib.Path(sys.argv[1]).resolve())
    os.environ["HF_HUB_OFFLINE"] = "1"
    good = True
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model, teacher, tokenizer = draw(directory)
        for name in RUNS:
            ours, scores = run_tessera(command, directory, name)
            theirs, off = run_torch(model, teacher, tokenizer, directory, name, scores)
            worst = off
            for step, (a, b) in enumerate(zip(ours, theirs, strict=True)):
                for key, want in b.items():
                    worst = max(worst, abs(a[key] - want) / max(1.0, abs(want)))
                    if abs(a[key] - want) > 1e-5 * max(1.0, abs(want)):
                        print(f"{name}: step {step + 1}: {key} is {a[key]}, expected {want}")
            print(f"{name}: {len(theirs)} steps, the teacher's log-probabilities off by {off:.1e}, "
                  f"all numbers by at most {worst:.1e}")
            good &= worst <= 1e-5
    return 0 if good else 1


sys.exit(main())
