"""Losses of pairs beside PyTorch, step by step: loss, margin and gradient norm of ten steps of a drawn GPT-2.

    python tests/python/preferences.py build/tools/tessera [--trl]

Needs torch and transformers; with --trl, TRL's own trainers make the steps of DPO, SimPO, ORPO and KTO, where it is
installed. The formulas are written out below for all of them. Ends with 1 where a number is further away than 1e-5 of
it. TRL estimates KTO's bound of batches in the data's order, which is ours where a batch is all of the data, as here. Its
ORPO has a cross entropy over prompts too, which is left out here (docs/runs.md#preferences).
"""
import copy, json, os, pathlib, random, subprocess, sys, tempfile

import torch
import torch.nn.functional as F
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

STEPS, BATCH, MICRO, LENGTH, LR = 10, 4, 2, 64, 1e-3
JUDGED = 8  # examples of KTO, and of its batches
LOSSES = {
    "dpo": {"beta": 0.3},
    "dpo-smoothed": {"beta": 0.3, "label_smoothing": 0.1, "nll": 0.5},
    "simpo": {"beta": 2.0, "gamma": 0.5},
    "orpo": {"beta": 0.2},
    "kto": {"beta": 0.3},
    "kto-weighted": {"beta": 0.3, "desirable_weight": 1.5, "undesirable_weight": 0.7},
}


def draw(directory):
    torch.manual_seed(3)
    random.seed(3)
    end = "<|endoftext|>"
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {c: i for i, c in enumerate(letters)} | {end: len(letters)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=end, bos_token=end, pad_token=end)
    config = transformers.GPT2Config(vocab_size=len(vocabulary), n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4,
                                     resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=len(letters),
                                     eos_token_id=len(letters), initializer_range=0.2)
    model = transformers.GPT2LMHeadModel(config).float()
    model.save_pretrained(directory / "model")
    fast.save_pretrained(directory / "model")
    words = "red green blue one two three sun moon sea".split()
    say = lambda n: " " + " ".join(random.choice(words) for _ in range(n))
    for name, count in ("train", 24), ("valid", 5):
        lines = [{"prompt": "say" + say(random.randint(1, 3)), "chosen": say(random.randint(1, 4)),
                  "rejected": say(random.randint(1, 4))} for _ in range(count)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for name, count in ("judged", JUDGED), ("judged-valid", 5):
        lines = [{"prompt": "say" + say(random.randint(1, 3)), "completion": say(random.randint(1, 4)),
                  "label": i % 3 != 1} for i in range(count)]
        (directory / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return model, fast


def is_judged(name):
    return name.startswith("kto")


def settings(name):
    return {"loss": name.split("-")[0], "gamma": 0.5, "label_smoothing": 0.0,
            "nll": 1.0 if name == "orpo" else 0.0, "desirable_weight": 1.0, "undesirable_weight": 1.0} | LOSSES[name]


def run_tessera(command, directory, name):
    output = directory / name
    config = {"model": "model", "steps": STEPS, "train_batch_size": JUDGED if is_judged(name) else BATCH,
              "train_micro_batch_size_per_gpu": MICRO,
              "data": {"train": "judged.jsonl" if is_judged(name) else "train.jsonl",
                       "valid": "judged-valid.jsonl" if is_judged(name) else "valid.jsonl", "seq_length": LENGTH, "shuffle": False,
                       "end_completions": True},
              "optimizer": {"type": "AdamW", "params": {"lr": LR, "weight_decay": 0}},
              "eval_every": STEPS, "gradient_clipping": 0, "output": name, "preference": settings(name)}
    (directory / f"{name}.json").write_text(json.dumps(config))
    subprocess.run([command, "train", f"{name}.json"], cwd=directory, check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


def row_of(tokenizer, prompt, answer):
    prompt, answer = tokenizer(prompt).input_ids, tokenizer(answer).input_ids + [tokenizer.eos_token_id]
    return torch.tensor([prompt + answer]), len(prompt)


def rows_of(tokenizer, line):
    return [row_of(tokenizer, line["prompt"], line[part]) for part in ("chosen", "rejected")]


def score(model, row):
    ids, prompt = row
    logps = model(ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[prompt - 1:, 0]
    return logps.sum(), logps.numel()


def judge(s, chosen, rejected, reference):
    (c, cn), (r, rn) = chosen, rejected
    mean_c, mean_r = c / cn, r / rn
    if s["loss"] == "dpo":
        rewards = s["beta"] * (c - reference[0]), s["beta"] * (r - reference[1])
        h, weight = rewards[0] - rewards[1], 1
    elif s["loss"] == "simpo":
        rewards = s["beta"] * mean_c, s["beta"] * mean_r
        h, weight = rewards[0] - rewards[1] - s["gamma"], 1
    else:
        rewards = s["beta"] * mean_c, s["beta"] * mean_r
        h = (mean_c - mean_r) - (torch.log1p(-torch.exp(mean_c)) - torch.log1p(-torch.exp(mean_r)))
        weight = s["beta"]
    e = s["label_smoothing"]
    loss = -weight * (F.logsigmoid(h) * (1 - e) + F.logsigmoid(-h) * e) - s["nll"] * mean_c
    return loss, (rewards[0] - rewards[1]).detach()


def means_of(values):
    return sum(values) / len(values)


def run_judged(model, tokenizer, directory, name):
    """KTO: each example's loss, and a bound for all of a batch, of prompts with the completions of the lines before."""
    s, model, frozen = settings(name), copy.deepcopy(model), copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    outcomes = []

    def all_of(name):
        lines = [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]
        with torch.no_grad():
            others = [row_of(tokenizer, line["prompt"], lines[i - 1]["completion"]) for i, line in enumerate(lines)]
            kl = max(0.0, means_of([(score(model, row)[0] - score(frozen, row)[0]).item() for row in others]))
        losses, rewards, hits = [], {True: [], False: []}, []
        for line in lines:
            row = row_of(tokenizer, line["prompt"], line["completion"])
            with torch.no_grad():
                reference = score(frozen, row)[0]
            ratio, good = score(model, row)[0] - reference, line["label"]
            h = s["beta"] * (ratio - kl) * (1 if good else -1)
            losses.append((1 - torch.sigmoid(h)) * s["desirable_weight" if good else "undesirable_weight"])
            rewards[good].append(s["beta"] * ratio.item())
            hits.append(float(h.item() > 0))
        return torch.stack(losses).mean(), {"kl": kl, "reward_chosen": means_of(rewards[True]),
                                            "reward_rejected": means_of(rewards[False]), "accuracy": means_of(hits)}

    for _ in range(STEPS):
        loss, more = all_of("judged")
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        outcomes.append({"loss": loss.item(), "grad_norm": norm.item()} | more)
    with torch.no_grad():
        loss, more = all_of("judged-valid")
    outcomes[-1] |= {"valid_loss": loss.item()} | {f"valid_{key}": value for key, value in more.items()}
    return outcomes


def run_torch(model, tokenizer, directory, name):
    if is_judged(name):
        return run_judged(model, tokenizer, directory, name)
    s, model, frozen = settings(name), copy.deepcopy(model), copy.deepcopy(model)
    pairs = {n: [json.loads(line) for line in (directory / f"{n}.jsonl").read_text().splitlines()]
             for n in ("train", "valid")}
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0)
    outcomes = []

    def all_of(lines):
        results = []
        for line in lines:
            rows = list(rows_of(tokenizer, line))
            with torch.no_grad():
                reference = [score(frozen, row)[0] for row in rows]
            results.append(judge(s, score(model, rows[0]), score(model, rows[1]), reference))
        return torch.stack([r[0] for r in results]).mean(), torch.stack([r[1] for r in results])

    for step in range(STEPS):
        lines = [pairs["train"][(step * BATCH + i) % len(pairs["train"])] for i in range(BATCH)]
        loss, margins = all_of(lines)
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()])
        optimizer.step()
        outcomes.append({"loss": loss.item(), "margin": margins.mean().item(), "grad_norm": norm.item(),
                         "accuracy": (margins > 0).float().mean().item()})
    with torch.no_grad():
        loss, margins = all_of(pairs["valid"])
    outcomes[-1] |= {"valid_loss": loss.item(), "valid_margin": margins.mean().item(),
                     "valid_accuracy": (margins > 0).float().mean().item()}
    return outcomes


def run_trl(tokenizer, directory, name):
    """The same steps by TRL's own trainer, its defaults but for what this file sets."""
    import datasets
    s = settings(name)
    if s["loss"] == "dpo":
        from trl import DPOConfig as Config, DPOTrainer as Trainer
        more = {"loss_type": "sigmoid"}
    elif s["loss"] == "kto":
        from trl import KTOConfig as Config, KTOTrainer as Trainer
        more = {"desirable_weight": s["desirable_weight"], "undesirable_weight": s["undesirable_weight"]}
    elif s["loss"] == "orpo":
        from trl.experimental.orpo import ORPOConfig as Config, ORPOTrainer as Trainer
        more = {}
    else:
        from trl.experimental.cpo import CPOConfig as Config, CPOTrainer as Trainer
        more = {"loss_type": "simpo", "simpo_gamma": s["gamma"], "cpo_alpha": 0.0}

    class InOrder(Trainer):
        def _get_train_sampler(self, *args, **kwargs):
            return torch.utils.data.SequentialSampler(self.train_dataset)

    batch, micro = (JUDGED, JUDGED) if is_judged(name) else (BATCH, MICRO)
    args = Config(output_dir=str(directory / "trl"), max_steps=STEPS, per_device_train_batch_size=micro,
                  gradient_accumulation_steps=batch // micro, learning_rate=LR, lr_scheduler_type="constant",
                  weight_decay=0, max_grad_norm=1e9, logging_steps=1, report_to=[], save_strategy="no", use_cpu=True,
                  bf16=False, beta=s["beta"], max_length=LENGTH, gradient_checkpointing=False, **more)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory / "model", dtype=torch.float32)
    lines = datasets.load_dataset("json", data_files=str(directory / f"{'judged' if is_judged(name) else 'train'}.jsonl"), split="train",
                                  cache_dir=str(directory / "cache"))
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.bos_token = None  # some of the trainers would put one before each prompt
    trainer = InOrder(model=model, args=args, train_dataset=lines, processing_class=tokenizer)
    trainer.train()
    logs = [log for log in trainer.state.log_history if "loss" in log]
    keys = {"loss": "loss", "grad_norm": "grad_norm"}
    if is_judged(name):
        keys |= {"kl": "kl", "reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected"}
    elif s["loss"] == "orpo":
        keys = {"reward_chosen": "rewards/chosen", "reward_rejected": "rewards/rejected"}
        logs = logs[:1]  # of the first step: the second one's weights come of another cross entropy
    else:
        keys |= {"margin": "rewards/margins"}
    return [{key: log[theirs] for key, theirs in keys.items()} for log in logs]


def compare(name, ours, theirs, tolerance=1e-5):
    worst, values = 0.0, 0
    for step, (a, b) in enumerate(zip(ours, theirs)):
        for key, want in b.items():
            off = abs(a[key] - want) / max(1.0, abs(want))
            worst, values = max(worst, off), values + 1
            if not off <= tolerance:
                print(f"{name}: step {step + 1}: {key} is {a[key]}, expected {want}")
    print(f"{name}: {len(theirs)} steps, {values} numbers, the largest difference {worst:.1e}")
    return worst <= tolerance


def main():
    command = str(pathlib.Path(sys.argv[1]).resolve())
    os.environ["HF_HUB_OFFLINE"] = "1"
    good = True
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        model, tokenizer = draw(directory)
        for name in LOSSES:
            ours = run_tessera(command, directory, name)
            good &= compare(name, ours, run_torch(model, tokenizer, directory, name))
            if "--trl" in sys.argv and name != "dpo-smoothed":
                good &= compare(f"{name} beside TRL", ours, run_trl(tokenizer, directory, name), 1e-4)
    return 0 if good else 1


sys.exit(main())
