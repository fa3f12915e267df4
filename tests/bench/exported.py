"""Seconds a step of exported networks beside PyTorch's own, and of an exported GPT-2 beside the family, in turns.

    tests/bench/exported.py BUILD [TURNS [ROW ...]]  run by a Python with torch, torchvision, transformers, jax and optax

A step is forward, backward, AdamW; PyTorch's bf16 is autocast over fp32 weights. The median of a turn's steps counts,
and the median of the turns; of memory the most that a process held at once, its libraries included. Each row is added to
results/exported.tsv.

ROWs: resnet18 vit-small unet gpt2, each with -bf16 behind it for bf16, gpt2 beside torch.compile, too; and jax, a GPT
of plain JAX beside jax.jit. TESSERA_MAX_CPU_ISA=AVX2 caps both sides, but for JAX.
"""
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

HERE = os.path.dirname(os.path.realpath(__file__))
sys.path.insert(0, os.path.join(HERE, "../../tools/python"))
import peers  # noqa: E402
import tessera  # noqa: E402

STEPS = 4
CAP = os.environ.get("TESSERA_MAX_CPU_ISA", "")
CAPS = {"ATEN_CPU_CAPABILITY": "avx512" if "512" in CAP else "avx2", "ONEDNN_MAX_CPU_ISA": CAP,
        "MKL_ENABLE_INSTRUCTIONS": "AVX512" if "512" in CAP else "AVX2"} if CAP else {}


class Loss(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, y):
        made = self.net(x)
        return F.cross_entropy(getattr(made, "logits", made).float(), y)


class UNet(nn.Module):
    def __init__(self, width=32, levels=3):
        super().__init__()
        def pair(a, b):
            return nn.Sequential(nn.Conv2d(a, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU(),
                                 nn.Conv2d(b, b, 3, padding=1), nn.GroupNorm(8, b), nn.SiLU())
        wide = [width << k for k in range(levels + 1)]
        self.down = nn.ModuleList(pair(a, b) for a, b in zip([3, *wide], wide))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in wide[:-1])
        self.back = nn.ModuleList(pair(2 * w, w) for w in wide[:-1])
        self.head = nn.Conv2d(width, 10, 1)

    def forward(self, x):
        kept = []
        for pair in self.down[:-1]:
            kept.append(pair(x))
            x = F.max_pool2d(kept[-1], 2)
        x = self.down[-1](x)
        for up, back, beside in reversed(list(zip(self.up, self.back, kept))):
            x = back(torch.cat([up(x), beside], 1))
        return self.head(x)


def resnet18():
    import torchvision
    return Loss(torchvision.models.resnet18(num_classes=10)), torch.randn(8, 3, 224, 224), torch.randint(10, (8,))


def vit_small():
    from transformers import ViTConfig, ViTForImageClassification
    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536,
                       num_labels=10, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    return Loss(ViTForImageClassification(config)), torch.randn(8, 3, 224, 224), torch.randint(10, (8,))


def unet():
    return Loss(UNet()), torch.randn(4, 3, 128, 128), torch.randint(10, (4, 128, 128))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0))

        def forward(self, x, y):
            logits = self.net(input_ids=x, use_cache=False).logits
            return F.cross_entropy(logits.float().flatten(0, 1), y.flatten())
    return Tokens(), torch.randint(50257, (2, 512)), torch.randint(50257, (2, 512))


def jax_gpt():
    """Of 124M, without biases in its MLPs."""
    sys.path.insert(0, os.path.join(HERE, "../python"))
    import networks

    def loss_fn(params, batch):
        x = params["wte"][batch["x"]] + params["wpe"]
        for p in params["h"]:
            x = networks.block(p, x, 12)
        return networks.token_loss(x, params, batch["y"])
    tokens = {name: networks.whole(50257, 2, 512, seed=k) for k, name in enumerate("xy")}
    return loss_fn, networks.gpt_params(12, 768, 50257, 512), tokens


def jitted():
    """As theirs(), by JAX."""
    import jax
    import optax
    loss_fn, params, batch = jax_gpt()
    optimizer = optax.adamw(1e-4)

    def step(params, state, batch):
        loss, gradient = jax.value_and_grad(loss_fn)(params, batch)
        update, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, update), state, loss
    step = jax.jit(step, donate_argnums=(0, 1))
    params = jax.tree_util.tree_map(jax.numpy.asarray, params)
    state, seconds = optimizer.init(params), []
    for _ in range(STEPS + 1):
        start = time.perf_counter()
        params, state, loss = step(params, state, batch)
        loss.block_until_ready()
        jax.block_until_ready(params)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def theirs(make, bf16, compiled):
    """Seconds of a step; in a process of its own."""
    torch.manual_seed(1)
    module, x, y = make()
    if compiled:
        module = torch.compile(module)
    optimizer = torch.optim.AdamW(module.train().parameters(), lr=1e-4, fused=True)
    seconds = []
    for _ in range(STEPS + 1):  # the first one warms up
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = module(x, y)
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def exported(make, to):
    torch.manual_seed(1)
    if make is jax_gpt:
        loss_fn, params, batch = make()
        tessera.export(loss_fn, params, batch, to=os.path.join(to, "net"))
        x, y = batch["x"], batch["y"]
    else:
        module, x, y = make()
        tessera.export(module.train(), batch={"x": x, "y": y}, to=os.path.join(to, "net"))
    for name, t in (("x", x), ("y", y)):
        np.save(os.path.join(to, f"{name}.npy"), np.concatenate([np.asarray(t)] * (STEPS + 1)))
    run = {"model": "net", "data": {"train": {"x": "x.npy", "y": "y.npy"}}, "steps": STEPS + 1,
           "train_batch_size": len(x), "output": "out", "overwrite": True, "gradient_clipping": 0,
           "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}
    with open(os.path.join(to, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)


def command(build):
    return os.path.join(os.path.realpath(build), "tools/tessera")


def watched(call, at=None):
    """What a process prints, and the most MiB that it held: what rusage says of a child is its parent's, if that is
    larger, so the process's own count is read while it runs."""
    most = [0]
    with subprocess.Popen(call, cwd=at, env=os.environ | CAPS, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        def look():
            while process.poll() is None:
                try:
                    with open(f"/proc/{process.pid}/status", encoding="ascii") as file:
                        most[0] = max([most[0], *(int(line.split()[1]) for line in file if line.startswith("VmHWM"))])
                except OSError:
                    pass
                time.sleep(0.02)
        thread = threading.Thread(target=look)
        thread.start()
        out, err = process.communicate()
        thread.join()
    if process.returncode:
        sys.exit(err)
    return out, most[0] / 1024


def ours(build, at, bf16):
    held = watched([command(build), "train", "run.json", f"bf16.enabled={str(bf16).lower()}"], at)[1]
    with open(os.path.join(at, "out/metrics.jsonl"), encoding="utf-8") as file:
        return statistics.median([json.loads(line)["seconds"] for line in file][1:]), held


def family(build, bf16):
    said, held = watched([command(build), "bench", "--steps", str(STEPS), "data.seq_length=512", "train_batch_size=2",
                          "train_micro_batch_size_per_gpu=2", "gradient_clipping=0",
                          f"bf16.enabled={str(bf16).lower()}"])
    words = next(line for line in said.splitlines() if "tokens/s" in line).replace(",", "").split()
    return 2 * 512 / float(words[words.index("tokens/s") - 1]), held


ROWS = {"resnet18": (resnet18, "ResNet-18, 8 x 224 x 224"), "vit-small": (vit_small, "ViT-small, 8 x 224 x 224"),
        "unet": (unet, "U-Net, 4 x 128 x 128"), "gpt2": (gpt2, "GPT-2 124M, 2 x 512"),
        "jax": (jax_gpt, "GPT of plain JAX, 124M, 2 x 512")}


def main():
    if sys.argv[1] == "--theirs":
        make, bf16, compiled = ROWS[sys.argv[2]][0], sys.argv[3] == "1", sys.argv[4] == "1"
        print(json.dumps(jitted() if make is jax_gpt else theirs(make, bf16, compiled)))
        return
    build, turns, rows = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 3, sys.argv[3:]
    for row in rows or [name + more for name in ROWS for more in ("", "-bf16") if name + more != "jax-bf16"]:
        bf16, name = row.endswith("-bf16"), row.removesuffix("-bf16")
        make, title = ROWS[name]
        with tempfile.TemporaryDirectory(dir=".") as to:
            exported(make, to)
            def one(way, compiled=False):
                said, held = watched([*way, sys.executable, __file__, "--theirs", name, str(int(bf16)), str(int(compiled))])
                return json.loads(said), held
            peer = "jax.jit" if name == "jax" else "PyTorch"
            sides = {"ours": lambda: ours(build, to, bf16), peer: peers.Faster(peer, one, lambda said: said[0])}
            if name == "gpt2":
                sides["torch.compile"] = peers.Faster("torch.compile", lambda way: one(way, True), lambda said: said[0])
                sides["the family"] = lambda: family(build, bf16)
            met = {side: [] for side in sides}
            for turn in range(turns):
                for k in range(len(sides)):
                    side = list(sides)[(turn + k) % len(sides)]
                    met[side].append(sides[side]())
        mine, title = met.pop("ours"), f"{title}, {'bf16' if bf16 else 'fp32'}"
        for side, their in met.items():
            side = getattr(sides[side], "name", side)
            times = statistics.median(t / m for (t, _), (m, _) in zip(their, mine))
            (fast, held), (slow, most) = (map(statistics.median, zip(*both)) for both in (mine, their))
            fields = [f"{fast:.3f}", f"{slow:.3f}", f"{times:.2f}", f"{held:.0f}", f"{most:.0f}"]
            print(f"{title}: {fields[0]} s a step, {side} {fields[1]}, {fields[2]} times; {fields[3]} MiB, {side} "
                  f"{fields[4]}", flush=True)
            subprocess.run([os.path.join(HERE, "record.sh"), "exported", f"exported.py BUILD {turns} {row}", title,
                            side, "--", *fields], check=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
