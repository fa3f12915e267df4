"""Data and network of a surrogate of a PDE: what wind carries and diffusion blurs, on a square whose sides meet.

    du/dt + a du/dx + b du/dy = k (d2u/dx2 + d2u/dy2)

A sample is u at time 0 with a and b as two more fields, (3, N, N), and u at time 1, (1, N, N). Writes x.npy, y.npy and
the directory net. Argument: samples (512)."""
import sys

import numpy as np
import torch
from torch import nn

import tessera

N, BATCH, WIDTH, DIFFUSION = 32, 4, 24, 2e-4


def solved(u, a, b):
    """Returns u at time 1: exact, since Fourier's modes are independent."""
    k = 2 * np.pi * np.fft.fftfreq(N, 1 / N)
    kx, ky = k[None, :, None], k[None, None, :]
    grow = -1j * (a[:, None, None] * kx + b[:, None, None] * ky) - DIFFUSION * (kx**2 + ky**2)
    return np.fft.ifft2(np.fft.fft2(u) * np.exp(grow)).real


def samples(count, random):
    modes = np.abs(np.fft.fftfreq(N, 1 / N))
    smooth = np.exp(-((modes[:, None] ** 2 + modes**2) / 18))
    u = np.fft.ifft2(np.fft.fft2(random.randn(count, N, N)) * smooth).real
    u /= u.std((1, 2), keepdims=True)
    a, b = random.uniform(-0.25, 0.25, (2, count))
    fields = [u, *(np.broadcast_to(4 * v[:, None, None], u.shape) for v in (a, b))]
    return np.stack(fields, 1).astype(np.float32), solved(u, a, b)[:, None].astype(np.float32)


def block(before, after):
    pad = {"padding": 1, "padding_mode": "circular"}
    return nn.Sequential(nn.Conv2d(before, after, 3, **pad), nn.GroupNorm(4, after), nn.SiLU(),
                         nn.Conv2d(after, after, 3, **pad), nn.SiLU())


class Surrogate(nn.Module):
    """A U-Net that says how u changes; forward is its mean squared error."""

    def __init__(self, width=WIDTH, levels=4):
        super().__init__()
        sizes = [width << k for k in range(levels + 1)]
        self.down = nn.ModuleList([block(a, b) for a, b in zip([3, *sizes], sizes)])
        self.up = nn.ModuleList([nn.ConvTranspose2d(b, a, 2, 2) for a, b in zip(sizes, sizes[1:])])
        self.merge = nn.ModuleList([block(2 * a, a) for a in sizes[:-1]])
        self.last = nn.Conv2d(width, 1, 1)

    def forward(self, x, y):
        h, kept = x, []
        for down in self.down:
            kept.append(down(h if not kept else nn.functional.avg_pool2d(kept[-1], 2)))
        h = kept.pop()
        for up, merge in zip(reversed(self.up), reversed(self.merge)):
            h = merge(torch.cat([kept.pop(), up(h)], 1))
        return ((x[:, :1] + self.last(h) - y) ** 2).mean()


if __name__ == "__main__":
    x, y = samples(int(sys.argv[1]) if len(sys.argv) > 1 else 512, np.random.RandomState(0))
    np.save("x.npy", x)
    np.save("y.npy", y)
    torch.manual_seed(0)
    module = Surrogate()
    tessera.export(module, batch={"x": x[:BATCH], "y": y[:BATCH]}, to="net")
    print(f"{len(x)} samples; {sum(p.numel() for p in module.parameters()) / 1e6:.1f} million parameters")
