"""Adafactor beside transformers' and, where that has the same formula, torch's: loss and gradient norm of each step of
drawn models, and their weights in the end.

    python tests/python/adafactor.py build/tools/tessera [STEPS]

Needs torch from 2.5 on, and transformers. Ends with 1 where a loss is further away than 1e-5 of it.
"""
import pathlib, sys, tempfile

import torch
import transformers.optimization

from muon import MODELS, distance, run_tessera, run_torch

FREE = {"scale_parameter": False, "relative_step": False}
CASES = {
    "gpt2": ("gpt2", {}, 0.0),
    "llama": ("llama", {"weight_decay": 0.1, "decay_rate": -0.7, "clip_threshold": 0.8}, 1.0),
    "Trainer's": ("llama", {"lr": 1e-3, **FREE}, 1.0),  # as optim: adafactor has it
    "warmup": ("gpt2", {"warmup_init": True, "eps2": 1e-2}, 0.0),
    "torch's": ("gpt2", {"lr": 5e-3, "weight_decay": 0.0}, 0.0),
}


def optimizer(name, model, p):
    if name == "torch's":
        return torch.optim.Adafactor(model.parameters(), lr=p["lr"], eps=(1e-15, 1e-3))  # it is squared
    of = {k: v for k, v in p.items() if k != "eps2"}
    return transformers.optimization.Adafactor(model.parameters(), eps=(1e-30, p.get("eps2", 1e-3)), **of)


def compare(name, command, steps):
    kind, p, clip = CASES[name]
    with tempfile.TemporaryDirectory() as to:
        to = pathlib.Path(to)
        torch.manual_seed(3)
        model = MODELS[kind]().float()
        model.save_pretrained(to / "model")
        ours, weights = run_tessera(command, to, p, clip, steps, kind="Adafactor")
        theirs = run_torch(model, [optimizer(name, model, p)], clip, steps)
        loss, norm = distance(ours, theirs)
        state = model.state_dict()
        weight = max((w - state[n]).abs().max().item() / state[n].abs().max().item() for n, w in weights.items() if n in state and w.ndim == 2)
        print(f"{name}: {steps} steps, loss {theirs[0][0]:.4f} to {theirs[-1][0]:.4f}; off by at most {loss:.1e} of the "
              f"loss, {norm:.1e} of the norm, {weight:.1e} of a matrix")
        return loss < 1e-5


if __name__ == "__main__":
    command, steps = str(pathlib.Path(sys.argv[1]).resolve()), [int(n) for n in sys.argv[2:]] or [10, 200]
    sys.exit(not all([compare(name, command, n) for name in CASES for n in steps]))
