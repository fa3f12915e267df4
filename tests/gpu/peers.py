"""What PyTorch makes on the same GPU of what tests/gpu/prove measures: its attention, and steps of GPT-2.

    python3 tests/gpu/peers.py [--device cuda] [--small]

One line a figure, "NAME TFLOP/s", of bf16 by autocast over fp32 weights; causal pairs count once, five products backward.
--small is for a machine without a GPU.
"""
import argparse
import statistics
import time

import torch
from torch.nn import functional as F

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:
    sdpa_kernel = None


class Block(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        rows, length, width = x.shape
        q, k, v = (y.view(rows, length, self.heads, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).split(width, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(torch.nn.Module):
    def __init__(self, width, layers, heads, vocabulary, length):
        super().__init__()
        self.token, self.place = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)

    def forward(self, ids, targets):
        x = self.token(ids) + self.place.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def seconds_of(run, device, times):
    taken = []
    for _ in range(times + 2):  # two warm up
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken[2:])


def tell(name, what):
    """Prints a figure; one that cannot be had costs the others nothing."""
    try:
        print(f"{name} {what():.1f} TFLOP/s", flush=True)
    except Exception as error:
        print(f"{name} - {str(error).splitlines()[0] if str(error) else type(error).__name__}", flush=True)
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


def step(width, layers, heads, rows, length, vocabulary, compiled, device):
    torch.manual_seed(1)
    model = GPT(width, layers, heads, vocabulary, length).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=device == "cuda")
    forward = torch.compile(model) if compiled else model
    ids = torch.randint(0, vocabulary, (rows, length + 1), device=device)

    def once():
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = forward(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    parameters = sum(p.numel() for p in model.parameters())
    flops = (6 * parameters + 6 * layers * width * length) * rows * length
    return 1e-12 * flops / seconds_of(once, device, 5)


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--device", default="cuda")
    a.add_argument("--small", action="store_true")
    args = a.parse_args()
    shapes = [(4, 32, 4096, 128), (4, 32, 4096, 64), (32, 25, 1024, 64)]
    models = [("gpt_124M", 768, 12, 12, 32, 1024, 50304), ("gpt_1_5B", 1600, 48, 25, 8, 1024, 50304)]
    if args.small:
        shapes, models = [(1, 2, 64, 16)], [("gpt_124M", 64, 2, 4, 2, 32, 500)]
    print(f"torch {torch.__version__}")
    for rows, heads, length, dim in shapes if sdpa_kernel else []:
        for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
            for way in ("forward", "backward"):
                tell(f"sdpa_{name}_{way}_T{length}_d{dim}",
                     lambda: attention(backend, way == "backward", rows, heads, length, dim, args.device))
    for name, *shape in models:
        tell(f"torch_{name}", lambda: step(*shape, False, args.device))
        tell(f"torch_compiled_{name}", lambda: step(*shape, True, args.device))


if __name__ == "__main__":
    main()
