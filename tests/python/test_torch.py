"""What tessera.export writes of modules of PyTorch: numpy has their loss and their buffers' next values from
graph.json, `tessera check` their gradients, `tessera train` ten steps of torch.optim.AdamW. The command is what the
environment variable TESSERA names. Arguments: cases."""
import json
import os
import warnings

import numpy as np
import torch
import torch.nn.functional as F

import cases
import interpret
import torch_networks as networks
from cases import DIR, near, tessera

LOSS, STEP = 1e-6, 1e-5  # relative
STEPS = 10
warnings.simplefilter("ignore")


def exported(module, batch, batched=None, name="net"):
    to = os.path.join(DIR.name, name)
    tessera.export(module, batch=batch, to=to, batched=batched)
    return to


def loss_of(module, batch):
    made = module(**batch)
    return made[0] if isinstance(made, tuple) else made["loss"] if isinstance(made, dict) else made


def network(make):
    torch.manual_seed(0)
    module, batch, *batched = make()
    before = {name: b.clone() for name, b in module.named_buffers()}
    to = exported(module, batch, *batched, name=make.__name__)
    assert all(torch.equal(b, before[name]) for name, b in module.named_buffers())  # it is left as it was
    graph, values, stored = interpret.load(to)
    made = interpret.run(graph, values, stored)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    assert set(graph["params"]) == set(trained)
    loss = loss_of(module, batch)
    gradients = torch.autograd.grad(loss, list(trained.values()))
    near("loss", abs(made["loss"] - loss.item()), abs(loss.item()), LOSS)
    near("stored loss", abs(graph["check"]["loss"] - loss.item()), abs(loss.item()), LOSS)
    for name, gradient in zip(trained, gradients):
        near(f"norm of the gradient of {name}", abs(graph["check"]["gradients"][name] - gradient.norm().item()),
             graph["check"]["grad_norm"], LOSS)
    moved = {name: b for name, b in module.named_buffers() if not torch.equal(b, before[name])}
    assert set(graph.get("updates", {})) == set(moved)
    for name, b in moved.items():
        np.testing.assert_allclose(made[name], b, rtol=1e-5, atol=1e-6)
        b.copy_(before[name])  # a run begins from these
    if cases.command("check", to):
        train(module, batch, {key: said.get("batch") for key, said in graph["inputs"].items()}, to, make.__name__)


def train(module, batch, dims, to, name):
    """Ten steps of AdamW on other batches each, here and there. `dims` are those that count samples, or None."""
    random = np.random.RandomState(1)
    count = next((batch[key].shape[dim] for key, dim in dims.items() if dim is not None), 1)
    mixed = [torch.as_tensor(random.permutation(count)) for _ in range(STEPS)]

    def other(key, t, k):
        if dims[key] is None:
            return t
        return t.roll(k, dims[key]) if key in ("y", "noise") else t.index_select(dims[key], mixed[k])
    rolled = [{key: other(key, t, k) for key, t in batch.items()} for k in range(STEPS)]
    for key, dim in dims.items():
        all_of = batch[key] if dim is None else torch.cat([b[key].movedim(dim, 0) for b in rolled])
        np.save(os.path.join(DIR.name, f"{key}.npy"), all_of.numpy())
    settings = {"lr": 3e-3, "betas": [0.9, 0.99], "eps": 1e-6, "weight_decay": 0.02}
    run = {"model": to, "data": {"train": {key: f"{key}.npy" for key in batch}, "shuffle": False}, "steps": STEPS,
           "train_batch_size": count, "optimizer": {"type": "AdamW", "params": settings},
           "gradient_clipping": 0, "output": f"out-{name}"}
    with open(os.path.join(DIR.name, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)
    cases.command("train", "run.json")
    with open(os.path.join(DIR.name, f"out-{name}", "metrics.jsonl"), encoding="utf-8") as file:
        losses = [json.loads(line)["loss"] for line in file]
    optimizer = torch.optim.AdamW(module.parameters(), **settings)
    for step, (batch, met) in enumerate(zip(rolled, losses, strict=True)):
        optimizer.zero_grad()
        loss = loss_of(module, batch)
        loss.backward()
        optimizer.step()
        near(f"loss of step {step}", abs(met - loss.item()), abs(loss.item()), STEP)
    wanted = module.state_dict()
    loaded = tessera.load(os.path.join(DIR.name, f"out-{name}", "model"), like=module)
    assert set(loaded) == set(wanted)
    for key, tensor in loaded.items():
        near(f"{key} after {STEPS} steps", (tensor - wanted[key]).abs().max().item(), 3e-3, 0.1)
    module.load_state_dict(loaded)


# -- refusals: what is done to x (3, 4), whole numbers i (3) and a parameter w (4, 4); words of the error

class Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, g):
        return g.clamp(-1, 1)


REFUSED = [
    ("random numbers (randint)", lambda w, x, i: (x @ w) * torch.randint(3, (4,))),
    ("ctc_loss of targets in a row", lambda w, x, i: F.ctc_loss(
        (x @ w).log_softmax(-1)[:, None].repeat(1, 2, 1), i[1:], i[:2] * 0 + 3, i[:2] * 0 + 1)),
    ("_fft_r2c", lambda w, x, i: torch.fft.rfft(x @ w).abs()),
    ("linalg_cholesky_ex", lambda w, x, i: torch.linalg.cholesky(w @ w.T + 9 * torch.eye(4))),
    ("random numbers (alpha_dropout)", lambda w, x, i: F.alpha_dropout(x @ w, 0.5, True)),
    ("bfloat16", lambda w, x, i: (x.bfloat16() @ w.bfloat16()).float()),
    ("float64", lambda w, x, i: (x @ w).double().sum().float()),
    ("__lshift__", lambda w, x, i: (x @ w) * (i << 1)[:, None]),
    ("the indices of a pool", lambda w, x, i: sum(F.max_pool1d(x @ w, 2, return_indices=True))),
    ("a number of Python that depends on data", lambda w, x, i: x @ w if x.sum() > 0 else x),
    ("the derivative of Clipped of its own, which is not that of its forward", lambda w, x, i: Clipped.apply(x @ w)),
    ("cond", lambda w, x, i: torch.cond(x.sum() > 0, torch.sin, torch.cos, (x @ w,))),
]


class Does(torch.nn.Module):
    def __init__(self, does):
        super().__init__()
        self.w, self.does = torch.nn.Parameter(networks.draw(4, 4)), does

    def forward(self, x, i):
        return sum(does(self.w, x, i).sum() for does in self.does)


def refused(*does):
    try:
        exported(Does(does), {"x": networks.draw(3, 4), "i": torch.arange(3)}, name="refused")
    except tessera.Refused as error:
        assert not os.path.exists(os.path.join(DIR.name, "refused"))
        return str(error)
    raise AssertionError("not refused")


def refusals():
    for words, does in REFUSED:
        said, line = refused(does), Does.forward.__code__.co_firstlineno + 1  # of forward: torch keeps no others
        places = [f"test_torch.py:{k} " for k in (line, does.__code__.co_firstlineno)]
        assert any(at in said for at in places) and words in said, f"{words}, {places}: {said}"
    several = refused(REFUSED[0][1], lambda w, x, i: (x @ w) * torch.randperm(4))
    assert len(several.split("\n")) == 2, several
    to = exported(Does([lambda w, x, i: (torch.fft.rfft(x), F.dropout(x @ w, 0.0))[1]]),
                  {"x": networks.draw(3, 4), "i": torch.arange(3)})
    assert "fft" not in open(os.path.join(to, "graph.json"), encoding="utf-8").read()  # nobody reads it
    module = Does([lambda w, x, i: F.dropout(x @ w, 0.5, module.training)])
    exported(module.eval(), {"x": networks.draw(3, 4), "i": torch.arange(3)})


def wrong_arguments():
    module, batch = Does([lambda w, x, i: x @ w]), {"x": networks.draw(3, 4), "i": torch.arange(3)}

    def returning(make):
        made = Does([])
        made.forward = lambda x, i: make(made.w, x)
        return made
    for kind, words, arguments in [
            (ValueError, "differ (x has 3, i has 5)", (module, {**batch, "i": torch.arange(5)})),
            (ValueError, "'y' is none of", (module, batch, ["y"])),
            (ValueError, "batch: ['z'] are no arguments of forward", (module, {**batch, "z": batch["x"]})),
            (ValueError, "params: w is float64", (Does([]).double(), batch)),
            (ValueError, "the loss is float32 of shape [3, 4]", (returning(lambda w, x: x @ w), batch)),
            (ValueError, "the loss is nan", (returning(lambda w, x: torch.log(-w.abs().sum())), batch)),
            (ValueError, "no parameter reaches", (returning(lambda w, x: x.sum()), batch)),
            (TypeError, "export(module, batch={...}, to=DIR)", (lambda p, b: 0, batch))]:
        try:
            exported(*arguments)
        except kind as error:
            assert words in str(error), error
        else:
            raise AssertionError(f"{words}: not refused")


def shape_of_the_file():
    module, batch = networks.gpt()
    module.h[0].mlp[0].weight.requires_grad_(False)
    to = exported(module, batch)
    graph, values, stored = interpret.load(to)
    assert graph["producer"] == f"torch {torch.__version__}" and list(graph["outputs"]) == ["loss", "accuracy"]
    assert graph["inputs"]["ids"] == {"shape": [4, 12], "dtype": "int32", "batch": 0}
    assert stored["targets"].min() == -100
    assert "wte.weight" in graph["params"] and "head.weight" not in graph["params"]  # one, by its first name
    assert "h.0.mlp.0.weight" not in graph["params"]  # what is not trained is a constant
    assert all("torch_networks.py:" in n["at"] for n in graph["nodes"])
    met = interpret.run(graph, values, stored)["accuracy"]
    near("accuracy", abs(met - module(**batch)[1]["accuracy"].item()), 1, 1e-6)
    loaded = tessera.load(to, like=module)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in module.state_dict().items())
    try:
        tessera.load(to, like=networks.mlp()[0])
    except ValueError as error:
        assert "net.0.weight: met nothing, expected shape [32, 20]" in str(error), error
    else:
        raise AssertionError("another module was taken")


def states():
    module, batch = networks.resnet()
    loaded = tessera.load(exported(module, batch), like=module)
    assert all(torch.equal(loaded[name], tensor) and loaded[name].dtype == tensor.dtype
               for name, tensor in module.state_dict().items())
    graph, *_ = interpret.load(exported(module.eval(), batch))
    assert "state" not in graph and "updates" not in graph  # averages that do not move are constants


def dropouts():
    """Each kind, the gradients by torch with the same elements dropped; each micro-batch has others, on any ranks."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.conv = torch.nn.Linear(16, 16), torch.nn.Conv2d(1, 4, 3, padding=1)
            self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
            self.inner, self.planes = torch.nn.Dropout(0.5, inplace=True), torch.nn.Dropout2d(0.3)

        def forward(self, x):
            x = x + self.planes(self.conv(self.first(x)[:, None])).mean(1)
            y = F.scaled_dot_product_attention(x, x, x, is_causal=True, dropout_p=0.1)
            y = y * torch.empty(x.shape[0], 1, 1).bernoulli_(0.7).div_(0.7)  # a layer that some samples do without
            kept = F.dropout(x * 0 + 1, 0.25)
            return (self.inner(self.layer(x) + y) * kept).square().mean(), {"kept": kept}
    torch.manual_seed(0)
    module, batch = Net(), {"x": networks.draw(4, 5, 16)}
    to = exported(module, batch, name="dropouts")
    cases.command("check", to)
    one = np.tile(batch["x"].numpy(), (16, 1, 1))
    np.save(os.path.join(to, "x.npy"), one)
    if cases.command("run", to, "--in", os.path.join(to, "x.npy"), "--out", os.path.join(to, "kept.npy")):
        kept = np.load(os.path.join(to, "kept.npy"))
        assert set(np.unique(kept)) == {np.float32(0), np.float32(1 / 0.75)}
        near("share that stays", abs((kept > 0).mean() - 0.75), 1, 0.02)  # of 5120: three deviations
        assert not any(np.array_equal(kept[:4], kept[4 * k:4 * k + 4]) for k in range(1, 16))
    run = {"model": ".", "data": {"train": {"x": "x.npy"}}, "steps": 2, "train_batch_size": 8, "output": "out",
           "overwrite": True, "optimizer": {"type": "AdamW", "params": {"lr": 0}}}
    with open(os.path.join(to, "run.json"), "w", encoding="utf-8") as file:
        json.dump(run, file)
    met = set()
    for workers in (1, 2):
        if cases.command("train", "run.json", "deterministic=true", at=to, workers=workers):
            with open(os.path.join(to, "out", "metrics.jsonl"), encoding="utf-8") as file:
                met.add(tuple(json.loads(line)["loss"] for line in file))
    assert len(met) < 2 and all(first != second for first, second in met), met


def randoms():
    """Each kind of random number, by torch's own formulas of the same bits; and layers that some samples do without,
    as timm, transformers and torchvision have them."""
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.mean, self.log, self.out = (torch.nn.Linear(16, 16) for _ in range(3))

        def without(self, y, p=0.3):
            kept = y.new_empty((len(y), 1)).bernoulli_(1 - p)
            kept.div_(1 - p)
            y = y * kept
            noise = 1 - p + torch.rand((len(y), 1), dtype=y.dtype)
            noise.floor_()
            y = y.div(1 - p) * noise
            noise = torch.empty([len(y), 1])
            noise = noise.bernoulli_(1 - p)
            noise.div_(1 - p)
            return y * noise

        def forward(self, x):
            mean, log = self.mean(x), self.log(x)
            normal = torch.randn_like(log)
            z = mean + torch.exp(0.5 * log) * normal
            z = z + self.without(self.out(z)) + torch.rand_like(z) * torch.randn(16) + x * torch.bernoulli(x.sigmoid())
            z = z + torch.empty_like(z).normal_(0.5, 2) * torch.empty_like(z).uniform_(-1, 1)
            z = z * F.gumbel_softmax(z, tau=0.7, hard=True) + torch.normal(mean, 0.5)
            return z.square().mean(), {"normal": normal + 0 * x}
    torch.manual_seed(0)
    module, batch = Net(), {"x": networks.draw(8, 16)}
    to = exported(module, batch, name="randoms")
    cases.command("check", to)
    np.save(os.path.join(to, "x.npy"), np.tile(batch["x"].numpy(), (64, 1)))
    if cases.command("run", to, "--in", os.path.join(to, "x.npy"), "--out", os.path.join(to, "normal.npy")):
        z = np.load(os.path.join(to, "normal.npy"))
        assert len(np.unique(z)) > 0.99 * z.size and np.abs(z).max() > 3  # 8192 of them
        for power, wanted, deviation in ((1, 0, 1), (2, 1, 2**0.5), (3, 0, 15**0.5), (4, 3, 96**0.5)):
            near(f"mean of the power {power}", abs((z**power).mean() - wanted), 4 * deviation / z.size**0.5, 1)
    losses = []
    for workers in (1, 2):
        run = {"model": ".", "data": {"train": {"x": "x.npy"}}, "steps": 6, "train_batch_size": 32, "output": "out",
               "overwrite": True, "deterministic": True, "optimizer": {"type": "AdamW", "params": {"lr": 0.01}}}
        with open(os.path.join(to, "run.json"), "w", encoding="utf-8") as file:
            json.dump(run, file)
        if cases.command("train", "run.json", at=to, workers=workers):
            with open(os.path.join(to, "out", "metrics.jsonl"), encoding="utf-8") as file:
                losses.append([json.loads(line)["loss"] for line in file])
    assert not losses or losses[0] == losses[1] and losses[0][-1] < losses[0][0], losses


def bits():
    """With convolutions, pools and states: the same on one worker and two, and where activations are computed again."""
    for make in (networks.resnet, networks.unet):
        module, batch = make()
        to = exported(module, batch, name=f"bits-{make.__name__}")
        for key, t in batch.items():
            np.save(os.path.join(to, f"{key}.npy"), torch.cat([t.roll(k, 0) for k in range(4)]).numpy())
        run = {"model": ".", "data": {"train": {key: f"{key}.npy" for key in batch}}, "steps": 4, "deterministic": True,
               "train_batch_size": 2 * len(batch["x"]), "output": "out", "overwrite": True}
        with open(os.path.join(to, "run.json"), "w", encoding="utf-8") as file:
            json.dump(run, file)
        met = set()
        for workers, *more in [(2,), (1,), (2, "activation_checkpointing.enabled=true"),
                               (2, "activation_checkpointing.enabled=true", "activation_checkpointing.every=3")]:
            if cases.command("train", "run.json", *more, at=to, workers=workers):
                with open(os.path.join(to, "out", "model", "weights.safetensors"), "rb") as file:
                    met.add(file.read())
        assert len(met) < 2, f"{make.__name__}: {len(met)} models"


def surrogate():
    """With RAM for less than weights, moments and gradients, which are 16 bytes a parameter."""
    metrics = cases.example("surrogate", 40, "steps=5", "train_batch_size=8", "eval_every=0")
    cases.learns(metrics, 0.8)
    states = 16 * 4.36e6
    for m in metrics:
        cpu, disk = m["cpu"]["peak_bytes"], m["disk"]["peak_bytes"]
        assert cpu < 60 << 20 < states < cpu + disk, (cpu, disk)


def images():
    cases.learns(cases.example("images", 512, "steps=30", "train_batch_size=32", "scheduler.params.warmup_num_steps=3",
                               "optimizer.params.lr=1e-3"), 0.92)


CASES = {make.__name__: (lambda make=make: network(make)) for make in networks.ALL}
CASES.update({case.__name__: case for case in (
    refusals, wrong_arguments, shape_of_the_file, states, dropouts, randoms, bits, surrogate, images)})

if __name__ == "__main__":
    cases.main(CASES)
