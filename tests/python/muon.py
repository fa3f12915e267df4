"""Muon beside torch.optim.Muon, with AdamW for what is no hidden matrix: loss and gradient norm of each step of drawn
models, and their weights in the end.

    python tests/python/muon.py build/tools/tessera [STEPS]

Needs torch from 2.9 on, and transformers. torch makes matrices orthogonal in bf16; here it does so in fp32, as a run in
fp32 does. Ends with 1 where a loss is further away than 1e-5 of it. A second line has a run in bf16 beside torch as it
is, whose model is in fp32: nothing is expected of that.
"""
import json, pathlib, subprocess, sys, tempfile, unittest.mock

import torch
import transformers
from safetensors.torch import load_file

BATCH, LENGTH = 4, 32
TEXT = pathlib.Path(__file__).parent / "../../docs/demo/text.txt"
COMMON = dict(vocab_size=256, initializer_range=0.1)
MODELS = {
    # Conv1D: stored (in, out), by which torch's steps are as long
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(
        **COMMON, n_positions=LENGTH, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)),
    "llama": lambda: transformers.LlamaForCausalLM(transformers.LlamaConfig(
        **COMMON, hidden_size=32, intermediate_size=88, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, tie_word_embeddings=False)),
}
CASES = {
    "gpt2": ("gpt2", {"lr": 0.02, "weight_decay": 0.1, "adam_lr": 1e-3}, 1.0),
    "llama": ("llama", {"lr": 1e-3, "weight_decay": 0.01, "muon_lr": 0.01, "betas": [0.9, 0.95]}, 1.0),
    "match_rms": ("gpt2", {"lr": 1e-3, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}, 0.0),
    "plain": ("llama", {"lr": 0.01, "nesterov": False, "momentum": 0.9, "ns_steps": 3}, 0.0),
}


def optimizers(model, p):
    hidden = [w for n, w in model.named_parameters() if w.ndim == 2 and ("layers." in n or ".h." in n)]
    rest = [w for w in model.parameters() if all(w is not h for h in hidden)]
    muon = {k: p[k] for k in ("momentum", "nesterov", "ns_steps", "adjust_lr_fn") if k in p}
    decay = p.get("weight_decay", 0)
    return [torch.optim.Muon(hidden, lr=p.get("muon_lr", p["lr"]), weight_decay=decay, **muon),
            torch.optim.AdamW(rest, lr=p.get("adam_lr", p["lr"]), weight_decay=decay, betas=p.get("betas", (0.9, 0.999)))]


def run_torch(model, of, clip, steps):
    tokens = torch.tensor(list(TEXT.read_bytes()))
    rows = []
    for step in range(steps):
        at = torch.arange(BATCH)[:, None] * LENGTH + step * BATCH * LENGTH + torch.arange(LENGTH + 1)
        x = tokens[at]
        logits = model(input_ids=x[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip or float("inf"))
        for o in of:
            o.step()
        rows.append((loss.item(), norm.item()))
    return rows


def run_tessera(command, directory, p, clip, steps, *more, kind="Muon"):
    config = {"model": "model", "steps": steps, "train_batch_size": BATCH, "overwrite": True, "output": "out",
              "data": {"train": str(TEXT.resolve()), "seq_length": LENGTH, "shuffle": False}, "save_dtype": "fp32",
              "optimizer": {"type": kind, "params": p}, "gradient_clipping": clip}
    (directory / "run.json").write_text(json.dumps(config))
    done = subprocess.run([command, "train", "run.json", *more], cwd=directory, capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    rows = [json.loads(line) for line in (directory / "out/metrics.jsonl").read_text().splitlines()]
    return [(row["loss"], row["grad_norm"]) for row in rows], load_file(directory / "out/model/model.safetensors")


def distance(ours, torchs):
    return [max(abs(a[k] - b[k]) / abs(b[k]) for a, b in zip(ours, torchs)) for k in (0, 1)]


def compare(name, command, steps):
    kind, p, clip = CASES[name]
    with tempfile.TemporaryDirectory() as to:
        to = pathlib.Path(to)
        torch.manual_seed(3)
        model = MODELS[kind]().float()
        drawn = {n: w.clone() for n, w in model.state_dict().items()}
        model.save_pretrained(to / "model")
        ours, weights = run_tessera(command, to, p, clip, steps)
        with unittest.mock.patch.object(torch.Tensor, "bfloat16", lambda t: t.clone()):
            theirs = run_torch(model, optimizers(model, p), clip, steps)
        loss, norm = distance(ours, theirs)
        state = {n: w for n, w in model.state_dict().items() if w.ndim == 2}
        weight = max((w - state[n]).abs().max().item() / state[n].abs().max().item() for n, w in weights.items() if n in state)
        print(f"{name}: {steps} steps, loss {theirs[0][0]:.4f} to {theirs[-1][0]:.4f}; off by at most {loss:.1e} of the "
              f"loss, {norm:.1e} of the norm, {weight:.1e} of a matrix")
        model.load_state_dict(drawn)
        half, _ = run_tessera(command, to, p, clip, steps, "bf16.enabled=true")
        print(f"    bf16: off by at most {distance(half, run_torch(model, optimizers(model, p), clip, steps))[0]:.1e} of the loss")
        return loss < 1e-5


if __name__ == "__main__":
    command, steps = str(pathlib.Path(sys.argv[1]).resolve()), [int(n) for n in sys.argv[2:]] or [10, 200]
    sys.exit(not all([compare(name, command, n) for name in CASES for n in steps]))
