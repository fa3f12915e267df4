"""Data and network for drawn images: discs, squares, triangles and crosses of any size and place, in noise.

Writes x.npy (samples, 1, 24, 24), y.npy (samples) and the directory net, a small ViT. Argument: samples (4096)."""
import sys

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import tessera

N, BATCH, KINDS = 24, 16, 4


def drawn(count, random):
    at = np.stack(np.meshgrid(np.arange(N), np.arange(N)), -1) / N * 2 - 1
    y = random.randint(0, KINDS, count).astype(np.int32)
    middle, size = random.uniform(-0.4, 0.4, (count, 2)), random.uniform(0.3, 0.6, count)
    x = random.randn(count, 1, N, N) * 0.2
    for k, kind in enumerate(y):
        p = (at - middle[k]) / size[k]
        a, b = np.abs(p).min(-1), np.abs(p).max(-1)
        thirds = [p @ [np.cos(t), np.sin(t)] for t in (0, 2 * np.pi / 3, 4 * np.pi / 3)]
        inside = [np.hypot(*p.transpose(2, 0, 1)) < 1, b < 0.9, np.max(thirds, 0) < 0.6, (a < 0.3) & (b < 1)][kind]
        x[k, 0] += inside
    return x.astype(np.float32), y


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.n1, self.n2 = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = (h.unflatten(-1, (self.heads, -1)).transpose(1, 2) for h in self.qkv(self.n1(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.n2(x))


class ViT(nn.Module):
    """Forward is the loss and the share of images that are told."""

    def __init__(self, width=64, layers=2, patch=4):
        super().__init__()
        self.patch = nn.Conv2d(1, width, patch, patch)
        self.at = nn.Parameter(torch.randn(1, (N // patch) ** 2, width) * 0.02)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(layers)], nn.LayerNorm(width))
        self.head = nn.Linear(width, KINDS)

    def forward(self, x, y):
        h = self.patch(x).flatten(2).transpose(1, 2) + self.at
        logits = self.head(self.blocks(h).mean(1))
        return F.cross_entropy(logits, y.long()), {"accuracy": (logits.argmax(-1) == y).float().mean()}


if __name__ == "__main__":
    x, y = drawn(int(sys.argv[1]) if len(sys.argv) > 1 else 4096, np.random.RandomState(0))
    np.save("x.npy", x)
    np.save("y.npy", y)
    torch.manual_seed(0)
    tessera.export(ViT(), batch={"x": x[:BATCH], "y": y[:BATCH]}, to="net")
    print(f"{len(x)} images")
