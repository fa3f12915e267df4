"""What PyTorch makes on the same GPU of what tests/gpu/prove measures: its attention, steps of GPT-2, and steps whose
states lie in RAM.

    python3 tests/gpu/peers.py [--device cuda] [--small] [PART...]

PART is attention, gpt_124M, gpt_1_5B, offload_gpt_1_5B or offload_llama_3_6B; all of them by default. One line a figure,
"NAME VALUE UNIT", of the model's TFLOP/s: causal pairs count once, five products backward. Steps of what fits are bf16
by autocast over fp32 weights, eager and compiled, without dropout and with GPT-2's; of models of more than 12 layers the
blocks are compiled, each once, not the whole. Offloaded is FSDP2 with CPUOffloadPolicy, bf16 over fp32 weights, whose
updates CPUs make, and, where deepspeed is installed, its ZeRO-3 with parameters and states in RAM; NAME_gpu is the most
that they took of the GPU. --small is for a machine without a GPU.
"""
import argparse
import os
import statistics
import tempfile
import time

import torch
from torch.nn import functional as F

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sdpa_kernel = None


class Block(torch.nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (y.view(rows, length, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout)
        x = x + F.dropout(self.out(y.transpose(1, 2).reshape(rows, length, width)), self.dropout)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh")), self.dropout)


class GPT(torch.nn.Module):
    def __init__(self, width, layers, heads, vocabulary, length, dropout=0.0):
        super().__init__()
        self.dropout = dropout
        self.token, self.place = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, ids, targets):
        x = F.dropout(self.token(ids) + self.place.weight, self.dropout)
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def turned(x):
    """Positions of a Llama's queries or keys, (rows, heads, length, dim)."""
    length, dim = x.shape[-2:]
    angle = torch.outer(torch.arange(length, device=x.device),
                        10000.0 ** (-torch.arange(0, dim, 2, device=x.device) / dim)).repeat(1, 2)
    first, second = x.chunk(2, -1)
    return x * angle.cos().to(x.dtype) + torch.cat((-second, first), -1) * angle.sin().to(x.dtype)


class LlamaBlock(torch.nn.Module):
    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.heads, self.groups, dim = heads, groups, width // heads
        self.norm1, self.norm2 = torch.nn.RMSNorm(width, 1e-5), torch.nn.RMSNorm(width, 1e-5)
        self.q, self.out = torch.nn.Linear(width, width, False), torch.nn.Linear(width, width, False)
        self.kv = torch.nn.Linear(width, 2 * groups * dim, False)
        self.gate, self.up = torch.nn.Linear(width, inner, False), torch.nn.Linear(width, inner, False)
        self.down = torch.nn.Linear(inner, width, False)

    def forward(self, x):
        rows, length, width = x.shape
        h = self.norm1(x)
        q = turned(self.q(h).view(rows, length, self.heads, -1).transpose(1, 2))
        k, v = self.kv(h).view(rows, length, 2, self.groups, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, turned(k), v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(torch.nn.Module):
    def __init__(self, width, layers, heads, vocabulary, inner, groups):
        super().__init__()
        self.token, self.head = torch.nn.Embedding(vocabulary, width), torch.nn.Linear(width, vocabulary, False)
        self.blocks = torch.nn.ModuleList(LlamaBlock(width, inner, heads, groups) for _ in range(layers))
        self.norm = torch.nn.RMSNorm(width, 1e-5)

    def forward(self, ids, targets):
        x = self.token(ids)
        for block in self.blocks:
            x = block(x)
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def seconds_of(run, device, times, warm=2):
    taken = []
    for _ in range(times + warm):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[warm:])


def tell(name, what):
    """Prints a figure; one that cannot be had costs the others nothing."""
    try:
        print(f"{name} {what():.1f} TFLOP/s", flush=True)
    except Exception as error:
        print(f"{name} - {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def attention(backend, backward, rows, heads, length, dim, device):
    q, k, v = (torch.randn(rows, heads, length, dim, device=device, dtype=torch.bfloat16, requires_grad=backward) for _ in range(3))
    product = 2 * rows * heads * length * (length + 1) / 2 * dim
    with sdpa_kernel(backend):
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        if not backward:
            return 2e-12 * product / seconds_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), device, 9)
        dy = torch.randn_like(y)
        return 5e-12 * product / seconds_of(lambda: torch.autograd.grad(y, (q, k, v), dy, retain_graph=True), device, 9)


def flops_of(parameters, width, layers, length, tokens):
    return (6 * parameters + 6 * layers * width * length) * tokens


def step(width, layers, heads, rows, length, vocabulary, dropout, compiled, device):
    torch.manual_seed(1)
    with torch.device(device):
        model = GPT(width, layers, heads, vocabulary, length, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    if compiled and layers > 12:
        for block in model.blocks:
            block.compile()
    forward = torch.compile(model) if compiled and layers <= 12 else model
    ids = torch.randint(0, vocabulary, (rows, length + 1), device=device)

    def once():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    parameters = sum(p.numel() for p in model.parameters())
    return 1e-12 * flops_of(parameters, width, layers, length, rows * length) / seconds_of(once, device, 5)


def model_of(kind, width, layers, heads, vocabulary, length, inner, groups):
    if kind == "llama":
        return Llama(width, layers, heads, vocabulary, inner, groups)
    return GPT(width, layers, heads, vocabulary, length)


def fsdp(shape, rows, times, device):
    """A step of `times` micro-batches by FSDP2, which fetches a block's weights from RAM as it gets to it."""
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard

    torch.manual_seed(1)
    kind, width, layers, _, vocabulary, length, *_ = shape
    with torch.device("meta"):
        model = model_of(*shape)
    how = dict(mesh=torch.distributed.init_device_mesh(device, (1,)), offload_policy=CPUOffloadPolicy(pin_memory=device == "cuda"),
               mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
    for block in model.blocks:
        fully_shard(block, **how)
    fully_shard(model, **how)
    model.to_empty(device="cpu")
    drawn = torch.empty(1 << 20).uniform_(-0.03, 0.03)  # again and again: one thread draws, and these are billions
    for parameter in model.parameters():
        local = parameter.detach().to_local()
        if local.dim() == 1:
            local.fill_(1)
        for part in local.view(-1).split(len(drawn)) if local.dim() > 1 else []:
            part.copy_(drawn[:len(part)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, vocabulary, (times, rows, length + 1), device=device)

    def once():
        for k in range(times):  # gradients stay on the GPU until the last
            model.set_requires_gradient_sync(k == times - 1)
            (model(ids[k, :, :-1], ids[k, :, 1:]) / times).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    parameters = sum(p.numel() for p in model.parameters())
    return 1e-12 * flops_of(parameters, width, layers, length, times * rows * length) / seconds_of(once, device, 3, 1)


def zero3(shape, rows, times, device):
    """The same by DeepSpeed's ZeRO-3: its own Adam where it can be compiled, else PyTorch's, either on CPUs."""
    import deepspeed

    torch.manual_seed(1)
    kind, width, layers, _, vocabulary, length, *_ = shape
    conf = {
        "train_micro_batch_size_per_gpu": rows,
        "gradient_accumulation_steps": times,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "cpu", "pin_memory": True},
            "offload_param": {"device": "cpu", "pin_memory": True},
            "overlap_comm": True,
        },
        "zero_force_ds_cpu_optimizer": False,
    }
    with deepspeed.zero.Init(config_dict_or_path=conf):
        model = model_of(*shape)
    try:
        from deepspeed.ops.adam import DeepSpeedCPUAdam

        optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-4)
    except Exception as error:
        print(f"deepspeed's Adam is not to be had: {str(error).splitlines()[0] if str(error) else error!r}")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=conf)
    ids = torch.randint(0, vocabulary, (times, rows, length + 1), device=device)

    def once():
        for k in range(times):
            engine.backward(engine(ids[k, :, :-1], ids[k, :, 1:]))
            engine.step()

    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    return 1e-12 * flops_of(parameters, width, layers, length, times * rows * length) / seconds_of(once, device, 3, 1)


def offload(name, shape, rows, times, device):
    for key, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511").items():
        os.environ.setdefault(key, value)
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo", rank=0, world_size=1,
                                             init_method=f"file://{folder}/store")
        for of, run in (("fsdp", fsdp), ("deepspeed", zero3)):
            if device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            tell(f"{of}_{name}", lambda: run(shape, rows, times, device))
            if device == "cuda":
                print(f"{of}_{name}_gpu {torch.cuda.max_memory_reserved() / 2**30:.1f} GiB", flush=True)
        torch.distributed.destroy_process_group()


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--device", default="cuda")
    a.add_argument("--small", action="store_true")
    a.add_argument("part", nargs="*")
    args = a.parse_args()
    shapes = [(4, 32, 4096, 128), (4, 32, 4096, 64), (32, 25, 1024, 64)]
    models = [("gpt_124M", 768, 12, 12, 32, 1024, 50304), ("gpt_1_5B", 1600, 48, 25, 8, 1024, 50304)]
    # of each the micro-batch, and how many of them, that prove has
    offloaded = [("gpt_1_5B", ("gpt", 1600, 48, 25, 50304, 1024, 0, 0), 4, 8),
                 ("llama_3_6B", ("llama", 3072, 28, 24, 128256, 4096, 8192, 8), 1, 4)]
    if args.small:
        shapes, models = [(1, 2, 64, 16)], [("gpt_124M", 64, 2, 4, 2, 32, 500)]
        offloaded = [("gpt_1_5B", ("gpt", 64, 2, 4, 500, 32, 0, 0), 2, 2), ("llama_3_6B", ("llama", 64, 2, 4, 500, 32, 96, 2), 1, 2)]
    known = ["attention", *(name for name, *_ in models), *(f"offload_{name}" for name, *_ in offloaded)]
    for part in args.part:
        if part not in known:
            a.error(f"{part}: expected one of {', '.join(known)}")
    wanted = args.part or known
    print(f"torch {torch.__version__}")
    for rows, heads, length, dim in shapes if sdpa_kernel and "attention" in wanted else []:
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            for way in ("forward", "backward"):
                tell(f"sdpa_{name}_{way}_T{length}_d{dim}",
                     lambda: attention(backend, way == "backward", rows, heads, length, dim, args.device))
    for name, *shape in models:
        for dropout in (0.0, 0.1) if name in wanted else []:
            with_it = "_dropout" if dropout else ""
            tell(f"torch_{name}{with_it}", lambda: step(*shape, dropout, False, args.device))
            tell(f"torch_compiled_{name}{with_it}", lambda: step(*shape, dropout, True, args.device))
    for name, shape, rows, times in offloaded:
        if f"offload_{name}" in wanted:
            offload(name, shape, rows, times, args.device)


if __name__ == "__main__":
    main()
