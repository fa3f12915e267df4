"""Networks of PyTorch that are exported: each function returns (module, batch[, batched])."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def whole(count, *shape, seed=0):
    return torch.randint(0, count, shape, generator=torch.Generator().manual_seed(seed + count))


class Loss(nn.Module):
    """The loss of what a network makes of x, beside y."""

    def __init__(self, net, loss=F.cross_entropy):
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x, y):
        return self.loss(self.net(x), y)


def mlp():
    net = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 16, bias=False), nn.Tanh(), nn.Dropout(0.0),
                        nn.Linear(16, 10))
    return Loss(net), {"x": draw(8, 20), "y": whole(10, 8)}


class Attention(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        return self.out(F.scaled_dot_product_attention(q, k, v, is_causal=self.causal).transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, width, heads, causal):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(approximate="tanh" if causal else "none"),
                                 nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.attention(self.n1(x))
        return x + self.mlp(self.n2(x))


def vit():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.patch = nn.Conv2d(3, 24, 4, stride=4)
            self.token, self.at = nn.Parameter(draw(1, 1, 24) / 10), nn.Parameter(draw(1, 17, 24) / 10)
            self.blocks = nn.Sequential(*[Block(24, 4, False) for _ in range(2)])
            self.head = nn.Sequential(nn.LayerNorm(24), nn.Linear(24, 6))

        def forward(self, x):
            x = self.patch(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.at
            return self.head(self.blocks(x)[:, 0])
    return Loss(Net()), {"x": draw(3, 3, 16, 16), "y": whole(6, 3)}


def resnet():
    class Residual(nn.Module):
        def __init__(self, before, after, stride):
            super().__init__()
            self.c1 = nn.Conv2d(before, after, 3, stride, 1, bias=False)
            self.c2 = nn.Conv2d(after, after, 3, 1, 1, groups=2, bias=False)
            self.n1, self.n2 = nn.BatchNorm2d(after), nn.BatchNorm2d(after, momentum=0.2)
            self.short = nn.Identity() if stride == 1 else nn.Conv2d(before, after, 1, stride)

        def forward(self, x):
            y = F.relu(self.n1(self.c1(x)), inplace=True)
            y = self.n2(self.c2(y))
            y += self.short(x)
            return F.relu(y, inplace=True)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
                        Residual(8, 8, 1), Residual(8, 16, 2), nn.AvgPool2d(2, padding=1), nn.AdaptiveAvgPool2d(1),
                        nn.Flatten(), nn.Linear(16, 5))
    return Loss(net), {"x": draw(4, 3, 16, 16), "y": whole(5, 4)}


def unet():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.down = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, padding_mode="circular"), nn.SiLU())
            self.low = nn.Sequential(nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16), nn.SiLU(),
                                     nn.Conv2d(16, 16, 3, padding="same", dilation=2, padding_mode="reflect"))
            self.up = nn.ConvTranspose2d(16, 8, 3, stride=2, padding=1, output_padding=1)
            self.last = nn.Conv2d(24, 1, 1)

        def forward(self, x):
            a = self.down(x)
            b = self.low(a)
            parts = [a, self.up(b), F.interpolate(b, scale_factor=2)[:, :8]]
            return self.last(torch.cat(parts, 1))
    return Loss(Net(), F.huber_loss), {"x": draw(2, 1, 8, 8), "y": draw(2, 1, 8, 8, seed=1)}


def gpt():
    class Net(nn.Module):
        def __init__(self, vocab=40, width=24, t=12):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(t, width)
            self.h = nn.ModuleList([Block(width, 4, True) for _ in range(2)])
            self.nf, self.head = nn.RMSNorm(width), nn.Linear(width, vocab, bias=False)
            self.head.weight = self.wte.weight

        def forward(self, ids, targets):
            x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
            for block in self.h:
                x = checkpoint(block, x, use_reentrant=False)
            logits = self.head(self.nf(x))
            loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), label_smoothing=0.1)
            return loss, {"accuracy": (logits.argmax(-1) == targets).float().mean()}
    targets = whole(40, 4, 12, seed=1)
    targets[:, 3:5] = -100
    return Net(), {"ids": whole(40, 4, 12), "targets": targets}


def lstm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.cell, self.head = nn.Embedding(11, 8), nn.Linear(20, 48), nn.Linear(12, 4)

        def forward(self, x):
            x = self.embed(x)
            h = c = x.new_zeros(len(x), 12)
            for t in range(x.shape[1]):
                i, f, g, o = self.cell(torch.cat([x[:, t], h], -1)).chunk(4, -1)
                c = f.sigmoid() * c + i.sigmoid() * g.tanh()
                h = o.sigmoid() * c.tanh()
            return self.head(h)
    return Loss(Net()), {"x": whole(11, 3, 9), "y": whole(4, 3)}


def torch_lstm():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.LSTM(6, 12, batch_first=True), nn.Linear(12, 4)

        def forward(self, x):
            return self.head(self.rnn(x)[0][:, -1])
    return Loss(Net()), {"x": draw(3, 7, 6), "y": whole(4, 3)}


def graph_network():
    class Net(nn.Module):
        def __init__(self, n=20):
            super().__init__()
            self.n, self.message, self.own = n, nn.Linear(18, 16), nn.Linear(25, 16)
            self.head = nn.Linear(16, 5)

        def forward(self, x, edges, y):
            src, dst = edges
            sent = F.elu(self.message(torch.cat([x[src], x.index_select(0, dst)], -1)))
            met = torch.zeros(self.n, 16).index_add(0, dst, sent)
            count = torch.zeros(self.n).scatter_add(0, dst, torch.ones_like(dst, dtype=torch.float32))
            h = F.leaky_relu(self.own(torch.cat([x, met / count.clamp(min=1)[:, None]], -1)))
            h = h + torch.zeros_like(h).scatter_reduce(0, dst[:, None].expand(-1, 16), sent, "sum")
            return F.nll_loss(F.log_softmax(self.head(h), -1), y)
    return Net(), {"x": draw(20, 9), "edges": whole(20, 2, 60), "y": whole(5, 20)}, []


def graphs():
    """The same for a batch of graphs."""
    net, one, _ = graph_network()

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, x, edges, y):
            n = x.shape[1]
            first = (torch.arange(len(x)) * n)[:, None]
            h = self.net.message(torch.cat([x.flatten(0, 1)[(edges[:, k] + first).flatten()] for k in range(2)], -1))
            at = (edges[:, 1])[..., None].expand(-1, -1, 16)
            met = torch.zeros(len(x), n, 16).scatter_add(1, at, h.view(len(x), -1, 16))
            h = F.leaky_relu(self.net.own(torch.cat([x, met], -1)))
            return F.cross_entropy(self.net.head(h).transpose(1, 2), y)
    return Net(), {name: torch.stack([v, v.flip(0) if name == "edges" else v]) for name, v in one.items()}


def vae():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.encode = nn.Sequential(nn.Linear(30, 24), nn.GELU(), nn.Linear(24, 8))
            self.decode = nn.Sequential(nn.Linear(4, 24), nn.Mish(), nn.Linear(24, 30))

        def forward(self, x, noise):
            mean, log_var = self.encode(x).chunk(2, -1)
            out = self.decode(mean + (log_var / 2).exp() * noise)
            kl = -0.5 * (1 + log_var - mean.pow(2) - log_var.exp()).sum(-1).mean()
            return F.binary_cross_entropy_with_logits(out, x, reduction="none").sum(-1).mean() + 0.1 * kl
    return Net(), {"x": draw(6, 30).sigmoid(), "noise": draw(6, 4)}


def losses():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(9, 7)
            self.register_buffer("weight", torch.arange(1.0, 8.0))

        def forward(self, x, y, to):
            z = self.net(x)
            logs = F.log_softmax(z, -1)
            loss = F.mse_loss(z, to) + F.l1_loss(z, to) + F.smooth_l1_loss(z, to, beta=0.5) + F.huber_loss(z, to)
            loss = loss + F.kl_div(logs, F.softmax(to, -1), reduction="batchmean")
            loss = loss + F.kl_div(logs, F.log_softmax(to, -1), reduction="sum", log_target=True)
            loss = loss + F.cross_entropy(z, y, weight=self.weight, ignore_index=2, label_smoothing=0.2)
            loss = loss + F.cross_entropy(z, F.softmax(to, -1)) + F.nll_loss(logs, y, ignore_index=2)
            loss = loss + F.binary_cross_entropy(z.sigmoid(), to.sigmoid()) + F.soft_margin_loss(z, to.sign())
            loss = loss + F.binary_cross_entropy_with_logits(z, to.sigmoid(), pos_weight=self.weight)
            return loss + F.softplus(z, 2.0).mean() + F.cosine_similarity(z, to).mean()
    return Net(), {"x": draw(6, 9), "y": torch.tensor([0, 2, 6, 1, 2, 3]), "to": draw(6, 7)}


def conv_1d_3d():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv1d(4, 6, 3, padding=2, dilation=2), nn.ConvTranspose1d(6, 4, 4, stride=3, groups=2)
            self.c, self.d = nn.Conv3d(2, 4, (1, 2, 3), padding=1), nn.Conv1d(4, 8, 5, groups=4, stride=2)

        def forward(self, x, v):
            y = self.d(F.relu6(self.b(F.hardswish(self.a(x)))))
            z = F.max_pool3d(self.c(v), 2, ceil_mode=True)
            return y.square().mean() + F.adaptive_max_pool2d(z[:, 0], 2).sum() + F.lp_pool1d(y, 2, 3).mean() + z.std()
    return Net(), {"x": draw(3, 4, 11), "v": draw(3, 2, 4, 5, 5)}


def wide():
    """Convolutions of more positions and channels than are multiplied at a time."""
    net = nn.Sequential(nn.Conv2d(4, 48, 3, padding=1), nn.Tanh(), nn.Conv2d(48, 24, 5, padding=2, groups=2), nn.Tanh(),
                        nn.ConvTranspose2d(24, 6, 4, stride=2, padding=1), nn.AdaptiveAvgPool2d(2), nn.Flatten(),
                        nn.Linear(24, 3))
    return Loss(net), {"x": draw(2, 4, 30, 30), "y": whole(3, 2)}


def encoder():
    """The modules of PyTorch itself."""
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, norm_first=True)
    net = nn.Sequential(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(80, 3))
    return Loss(net), {"x": draw(4, 5, 16), "y": whole(3, 4)}


def axial():
    """Attention along one dimension of a field, of which a sample has several; and what is 0 under a root."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.block, self.norm = nn.Linear(4, 8), Block(8, 2, True), nn.InstanceNorm1d(6)
            self.table, self.head = nn.EmbeddingBag(9, 8, mode="mean"), nn.Linear(8, 3)

        def forward(self, x, i):
            h = self.up(x.unfold(2, 4, 2)) * (x > 0).any(-1)[..., None, None]
            h = self.block(h.flatten(0, 1)).view_as(h) + self.table(i)[:, None, None]
            h = self.norm(F.normalize(h * (x > 0).any(-1)[..., None, None], dim=-1).flatten(1, 2)).mean(1)
            near = torch.cdist(self.head(h), h[:, :3]) + torch.hypot(h[:, :1], h[:, 1:2] + 2)
            return (near.median(1).values + h.median() + h.kthvalue(3, 1).values).mean()
    x = draw(2, 3, 6)
    x[1, 1] = -1.0
    return Net(), {"x": x, "i": whole(9, 2, 5)}


def odds():
    """Ops that the others lack."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.s = nn.Parameter(draw(5, 6) / 2), nn.Parameter(torch.tensor(1.5))

        def forward(self, x, i):
            w = self.w * self.s
            y = torch.cumsum(w * x, 1) + w.flip(0) + torch.tanh(w).cumprod(0) + w.roll(2, 1) + w.tril() - x.triu(1)
            y = y + w[:1].repeat(5, 1) + torch.arctan(w) + w.sinh() - w.asinh() + torch.exp2(w) + w.abs().pow(1.5)
            y = y + w.cummax(1)[0] - torch.logcumsumexp(w, 0)
            y = y.clamp(-2, 3) + torch.logaddexp(w, x) + w ** 3 * w.sign() + w.remainder(0.7) + torch.fmod(w, 0.3)
            y = y + w[i].sum(0) + w[:, i[:2]].mean() + torch.logsumexp(w, 1, keepdim=True) + w.select(1, 2)[:, None]
            y = torch.where(torch.isfinite(y) & ~(x > 1) | (i[0] == 2), y, torch.minimum(y, torch.tensor(0.1)))
            y[1:3, ::2] = w[:2, :3] * 2
            y[i[:2], 1] += 0.5
            y = y.masked_fill(x > 1.5, 0.25).index_fill(1, i[1:2], 0.3) + torch.gather(w, 1, i[None, :3].repeat(5, 2))
            y = y + x.new_full((6,), 0.5) * torch.linspace(0, 1, 6) + torch.eye(5, 6) + w.T.reshape(5, 6) + w.erf()
            z = F.pad(y, (1, 2, 0, 1), value=0.5)[::2, 1:-2] @ torch.stack([w[0], w[1], -w[2]], 1)
            z, y = z / 10, y / 10
            z = torch.einsum("ab,cb->ac", z, z) + F.pad(z.T[None], (1, 1), mode="replicate")[0, :3, :3]
            with torch.no_grad():
                y, scale = y / 1, y.abs().mean()
            y = w * scale + y
            top, at = y.topk(2, -1)
            y = y + w.sort(0, descending=True)[0] - w.sort(1)[0] + x.argsort(1) / 10
            y = y + (top * (at + 1)).sum(-1, keepdim=True) + torch.addcmul(w, w, x, value=0.1)
            return z.norm() + y[:, 0].prod() + y.var() + y.max() + y.amin(0).sum() + torch.dist(y, x) + y.std(1).sum()
    return Net(), {"x": draw(5, 6), "i": torch.tensor([2, 0, 4, 1, 3])}, []


def time_first():
    """Samples lie in the second dimension of x; a table is the same for all of them."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head = nn.GRU(5, 6), nn.Linear(6, 3)

        def forward(self, x, y, table, at):
            h = self.rnn(x + table[:, None] * at)[0]
            return F.cross_entropy(self.head(h[-1] + (h * table[:, :1, None]).mean(0)), y)
    return Net(), {"x": draw(4, 6, 5), "y": whole(3, 6), "table": draw(4, 5), "at": torch.tensor(0.5)}, {"x": 1, "y": 0}


def keywords():
    """Called by the names of the batch, and returns what models of transformers do; y is that of "ignored" too."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()[0].net

        def forward(self, scale=None, **batch):
            logits = self.net(batch["x"] * scale[:, None])
            return {"loss": F.cross_entropy(logits, batch["y"]), "logits": logits, "cache": None}
    return Net(), {"x": draw(8, 20), "y": whole(10, 8), "scale": draw(8)}


class Gelu(torch.autograd.Function):
    """With the derivative as a formula."""
    @staticmethod
    def forward(ctx, x, by):
        ctx.save_for_backward(x)
        ctx.by = by
        return x * 0.5 * (1.0 + torch.tanh(by * x * (1 + 0.044715 * x * x)))

    @staticmethod
    def backward(ctx, g):
        x, = ctx.saved_tensors
        t = torch.tanh(ctx.by * x * (1 + 0.044715 * x * x))
        return g * (0.5 * x * ((1 - t * t) * ctx.by * (1 + 3 * 0.044715 * x * x)) + 0.5 * (1 + t)), None


class Joined(torch.autograd.Function):
    """Two results, of which one is written to in place, and a context that is set up behind."""
    @staticmethod
    def forward(x, w):
        y = x @ w
        return y.exp_(), x.sum(-1)

    @staticmethod
    def setup_context(ctx, inputs, outputs):
        ctx.save_for_backward(*inputs, outputs[0])

    @staticmethod
    def backward(ctx, g, h):
        x, w, y = ctx.saved_tensors
        g = g * y
        return g @ w.T + h[..., None], x.T @ g


gelu = Gelu.apply  # by another name, from before


def functions():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.w = nn.Linear(6, 9), nn.Parameter(draw(9, 4) / 3)

        def forward(self, x, y):
            h, more = Joined.apply(gelu(gelu(self.up(x), 0.7978845608), 0.5), self.w)
            return F.cross_entropy(h, y) + more.square().mean()
    return Net(), {"x": draw(5, 6), "y": whole(4, 5)}


def ctc():
    """Targets with the same letter twice, none at all, and lengths that differ."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn, self.head, self.other = nn.GRU(5, 12, batch_first=True), nn.Linear(12, 6), nn.Linear(12, 6)

        def forward(self, x, said, frames, letters):
            h = self.rnn(x)[0]
            logs = self.head(h).log_softmax(-1).transpose(0, 1)
            loss = F.ctc_loss(logs, said, frames, letters)
            late = self.other(h).log_softmax(-1).transpose(0, 1)
            return loss + F.ctc_loss(late, said, frames - 3, letters, blank=5, reduction="sum", zero_infinity=True)
    said = torch.tensor([[1, 2, 2, 4], [3, 3, 3, 3], [1, 0, 0, 0], [4, 1, 2, 3], [0, 0, 0, 0], [2, 4, 2, -1]])
    return Net(), {"x": draw(6, 10, 5), "said": said, "frames": torch.tensor([10, 10, 5, 6, 6, 8]),
                   "letters": torch.tensor([4, 4, 1, 4, 0, 3])}


ALL = [mlp, vit, resnet, unet, gpt, lstm, torch_lstm, graph_network, graphs, vae, losses, conv_1d_3d, wide, encoder,
       time_first, axial, odds, keywords, functions, ctc]
