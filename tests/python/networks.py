"""Networks that are exported: each function returns (loss_fn, params, batch[, batched])."""
import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax


def draw(*shape, scale=1.0, seed=0):
    return (np.random.RandomState(seed + sum(shape)).randn(*shape) * scale).astype(np.float32)


def whole(count, *shape, seed=0):
    return np.random.RandomState(seed + count).randint(0, count, shape).astype(np.int32)


def flax_loss(module, batch, loss=None):
    params = jax.jit(module.init)(jax.random.PRNGKey(0), batch["x"])["params"]

    def loss_fn(params, batch):
        out = module.apply({"params": params}, batch["x"])
        return optax.softmax_cross_entropy_with_integer_labels(out, batch["y"]).mean()
    return loss or loss_fn, params, batch


def mlp():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.Dense(32)(x))
            x = nn.tanh(nn.Dense(16)(x))
            return nn.Dense(10)(x)
    return flax_loss(Net(), {"x": draw(8, 20), "y": whole(10, 8)})


def plain():
    params = {"layers": [{"w": draw(6, 12, scale=0.4), "b": draw(12)}, {"w": draw(12, 3, scale=0.4), "b": draw(3)}]}

    def loss_fn(params, batch):
        x, y = batch
        for k, layer in enumerate(params["layers"]):
            x = x @ layer["w"] + layer["b"]
            x = jnp.where(x > 0, x, 0.01 * x) if k == 0 else x
        ce = -jax.nn.log_softmax(x)[jnp.arange(len(y)), y].mean()
        l2 = sum(jnp.sum(layer["w"] ** 2) for layer in params["layers"])
        return ce + 1e-3 * l2, {"accuracy": (x.argmax(-1) == y).mean()}
    return loss_fn, params, (draw(8, 6), whole(3, 8))


def mixer():
    class Mlp(nn.Module):
        width: int

        @nn.compact
        def __call__(self, x):
            return nn.Dense(x.shape[-1])(nn.gelu(nn.Dense(self.width)(x)))

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            b, h, w, c = x.shape
            x = x.reshape(b, h // 4, 4, w // 4, 4, c).transpose(0, 1, 3, 2, 4, 5).reshape(b, -1, 16 * c)
            x = nn.Dense(24)(x)
            for _ in range(2):
                x = x + Mlp(20)(nn.LayerNorm()(x).swapaxes(1, 2)).swapaxes(1, 2)
                x = x + Mlp(40)(nn.LayerNorm()(x))
            return nn.Dense(7)(nn.LayerNorm()(x).mean(1))
    return flax_loss(Net(), {"x": draw(4, 16, 16, 3), "y": whole(7, 4)})


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["w"] + p["b"]


def block(p, x, heads=4):
    b, t, c = x.shape
    q, k, v = jnp.split(norm(x, p["n1"]) @ p["qkv"] + p["qkv_b"], 3, -1)
    q, k, v = (a.reshape(b, t, heads, c // heads).transpose(0, 2, 1, 3) for a in (q, k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(c // heads)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
    x = x + (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, c) @ p["out"]
    return x + jax.nn.gelu(norm(x, p["n2"]) @ p["up"]) @ p["down"]


def gpt_params(layers=2, c=24, vocab=40, t=12):
    one = {"w": np.ones(c, np.float32), "b": np.zeros(c, np.float32)}
    blocks = [{"n1": one, "n2": one, "qkv": draw(c, 3 * c, scale=0.1, seed=k), "qkv_b": draw(3 * c, scale=0.1),
               "out": draw(c, c, scale=0.1), "up": draw(c, 4 * c, scale=0.1), "down": draw(4 * c, c, scale=0.1)}
              for k in range(layers)]
    return {"wte": draw(vocab, c, scale=0.1), "wpe": draw(t, c, scale=0.1), "h": blocks, "nf": one}


def token_loss(x, params, targets):
    logits = norm(x, params["nf"]) @ params["wte"].T
    picked = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return (jax.nn.logsumexp(logits, -1) - picked).mean()


def tokens():
    return {"ids": whole(40, 4, 12), "targets": whole(40, 4, 12, seed=1)}


def gpt():
    def loss_fn(params, batch):
        x = params["wte"][batch["ids"]] + params["wpe"]
        for p in params["h"]:
            x = block(p, x)
        return token_loss(x, params, batch["targets"])
    return loss_fn, gpt_params(), tokens()


def gpt_scan():
    params = gpt_params(3)
    params["h"] = jax.tree_util.tree_map(lambda *x: np.stack(x), *params["h"])

    def loss_fn(params, batch):
        x = jnp.take(params["wte"], batch["ids"], axis=0) + params["wpe"][None]
        x, _ = jax.lax.scan(jax.checkpoint(lambda x, p: (block(p, x), None)), x, params["h"])
        return token_loss(x, params, batch["targets"])
    return loss_fn, params, tokens()


def graph_attention():
    n, e = 20, 60
    params = {"w": [draw(9, 16, scale=0.3), draw(16, 5, scale=0.3)], "a": [draw(32, scale=0.3), draw(10, scale=0.3)]}

    def loss_fn(params, batch):
        x, (src, dst) = batch["x"], batch["edges"]
        for w, a in zip(params["w"], params["a"]):
            x = x @ w
            score = jax.nn.leaky_relu(jnp.concatenate([x[src], x[dst]], -1) @ a, 0.2)
            score = score - jax.ops.segment_max(score, dst, n)[dst]
            weight = jnp.exp(score)
            weight = weight / jax.ops.segment_sum(weight, dst, n)[dst]
            x = jax.nn.elu(jnp.zeros((n, x.shape[1])).at[dst].add(weight[:, None] * x[src]))
        return -(jax.nn.log_softmax(x) * jax.nn.one_hot(batch["y"], 5)).sum(-1).mean()
    edges = np.stack([whole(n, e), np.concatenate([np.arange(n), whole(n, e - n, seed=2)]).astype(np.int32)])
    return loss_fn, params, {"x": draw(n, 9), "edges": edges, "y": whole(5, n)}, []


def graphs():
    """The same for a batch of graphs."""
    loss_fn, params, one, _ = graph_attention()

    def mean(params, batch):
        return jax.vmap(loss_fn, (None, 0))(params, batch).mean()
    return mean, params, {name: np.stack([v, v[::-1] if name == "edges" else v]) for name, v in one.items()}


def vit():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(24, (4, 4), strides=(4, 4))(x)
            x = x.reshape(x.shape[0], -1, 24)
            token = self.param("token", nn.initializers.normal(0.1), (1, 1, 24))
            x = jnp.concatenate([jnp.broadcast_to(token, (x.shape[0], 1, 24)), x], 1)
            x = x + self.param("at", nn.initializers.normal(0.1), (1, x.shape[1], 24))
            for _ in range(2):
                y = nn.LayerNorm()(x)
                x = x + nn.MultiHeadDotProductAttention(4)(y, y)
                x = x + nn.Dense(24)(nn.gelu(nn.Dense(48)(nn.LayerNorm()(x))))
            return nn.Dense(6)(nn.LayerNorm()(x)[:, 0])
    return flax_loss(Net(), {"x": draw(3, 16, 16, 3), "y": whole(6, 3)})


def resnet():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.GroupNorm(4)(nn.Conv(8, (3, 3))(x)))
            x = nn.max_pool(x, (2, 2), (2, 2))
            y = nn.relu(nn.GroupNorm(4)(nn.Conv(16, (3, 3), strides=(2, 2))(x)))
            y = nn.Conv(16, (3, 3), feature_group_count=4)(y)
            x = nn.relu(nn.Conv(16, (1, 1), strides=(2, 2))(x) + y)
            x = nn.Conv(16, (3, 3), feature_group_count=16, kernel_dilation=(2, 2))(x)
            return nn.Dense(5)(nn.avg_pool(x, (2, 2), (2, 2), padding="SAME").mean((1, 2)))
    return flax_loss(Net(), {"x": draw(3, 12, 12, 3), "y": whole(5, 3)})


def normed():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.relu(nn.BatchNorm(use_running_average=False)(nn.Conv(8, (3, 3), use_bias=False)(x)))
            return nn.Dense(5)(x.mean((1, 2)))
    return Net()


def batch_norm():
    net, batch = normed(), {"x": draw(4, 8, 8, 3), "y": whole(5, 4)}
    made = jax.jit(net.init)(jax.random.PRNGKey(0), batch["x"])

    def loss_fn(params, batch):
        out, _ = net.apply({"params": params, "batch_stats": made["batch_stats"]}, batch["x"], mutable=["batch_stats"])
        return optax.softmax_cross_entropy_with_integer_labels(out, batch["y"]).mean()
    return loss_fn, made["params"], batch


def unet():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            a = nn.silu(nn.Conv(8, (3, 3), padding="CIRCULAR")(x))
            b = nn.silu(nn.Conv(16, (3, 3), strides=(2, 2))(a))
            b = nn.ConvTranspose(8, (3, 3), strides=(2, 2))(b)
            return nn.Conv(1, (3, 3))(jnp.concatenate([a, jax.image.resize(b, a.shape, "nearest")], -1))
    net, batch = Net(), {"x": draw(2, 8, 8, 1), "y": draw(2, 8, 8, 1, seed=1)}

    def loss_fn(params, batch):
        return optax.huber_loss(net.apply({"params": params}, batch["x"]), batch["y"]).mean()
    return loss_fn, jax.jit(net.init)(jax.random.PRNGKey(0), batch["x"])["params"], batch


def wide():
    """Convolutions of more positions and channels than are multiplied at a time."""
    params = {"a": draw(3, 3, 4, 64, scale=0.2), "b": draw(3, 3, 64, 16, scale=0.05), "c": draw(3, 3, 16, 2, scale=0.2)}
    params["unread"] = draw(3)

    def loss_fn(params, batch):
        x, order = batch["x"], ("NHWC", "HWIO", "NHWC")
        for w in map(params.get, "abc"):
            x = jnp.tanh(jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=order))
        return ((x - batch["y"]) ** 2).mean()
    return loss_fn, params, {"x": draw(2, 30, 30, 4), "y": draw(2, 30, 30, 2, seed=1)}


def lstm():
    class Net(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Embed(11, 8)(x)
            x = nn.RNN(nn.OptimizedLSTMCell(12))(x)
            return nn.Dense(4)(x[:, -1])
    return flax_loss(Net(), {"x": whole(11, 3, 9), "y": whole(4, 3)})


def mamba():
    d, n, t = 6, 4, 16
    params = {"in": draw(d, 2 * d, scale=0.3), "conv": draw(4, 1, d, scale=0.3), "dt": draw(d, d, scale=0.2),
              "b": draw(d, n, scale=0.3), "c": draw(d, n, scale=0.3),
              "out": draw(d, d, scale=0.3), "a": np.log(np.arange(1, n + 1, dtype=np.float32))}

    def loss_fn(params, batch):
        x, gate = jnp.split(batch["x"] @ params["in"], 2, -1)
        x = jax.lax.conv_general_dilated(x, params["conv"], (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC"),
                                         feature_group_count=d)
        x = jax.nn.silu(x)
        dt = jax.nn.softplus(x @ params["dt"])
        decay = jnp.exp(-dt[..., None] * jnp.exp(params["a"]))
        push = (dt * x)[..., None] * (x @ params["b"])[:, :, None]
        h = jax.lax.associative_scan(lambda l, r: (l[0] * r[0], r[0] * l[1] + r[1]), (decay, push), axis=1)[1]
        y = (h * (x @ params["c"])[:, :, None]).sum(-1) * jax.nn.silu(gate)
        return ((y @ params["out"] - batch["y"]) ** 2).mean()
    return loss_fn, params, {"x": draw(2, t, d), "y": draw(2, t, d, seed=1)}


def experts():
    e, d = 4, 8
    params = {"gate": draw(d, e, scale=0.5), "up": draw(e, d, 16, scale=0.3), "down": draw(e, 16, d, scale=0.3)}

    def loss_fn(params, batch):
        x = batch["x"]
        best, at = jax.lax.top_k(x @ params["gate"], 2)
        share = jnp.zeros((len(x), e)).at[jnp.arange(len(x))[:, None], at].set(jax.nn.softmax(best))
        y = jnp.einsum("ned,ne->nd", jnp.einsum("neh,ehd->ned", jax.nn.relu(
            jnp.einsum("nd,edh->neh", x, params["up"])), params["down"]), share)
        return jnp.abs(y - batch["y"]).sum(-1).mean()
    return loss_fn, params, {"x": draw(10, d), "y": draw(10, d, seed=1)}


def pinn():
    """A derivative of the network's output is part of the loss: u'' = -u."""
    params = [(draw(1, 16), draw(16)), (draw(16, 16, scale=0.3), draw(16)), (draw(16, 1, scale=0.3), draw(1))]

    def u(params, t):
        x = t[None]
        for w, b in params[:-1]:
            x = jnp.sin(x @ w + b)
        return (x @ params[-1][0] + params[-1][1])[0]

    def loss_fn(params, batch):
        d2 = jax.vmap(jax.grad(jax.grad(u, 1), 1), (None, 0))(params, batch["t"])
        return ((d2 + jax.vmap(u, (None, 0))(params, batch["t"])) ** 2).mean()
    return loss_fn, params, {"t": draw(6)}


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def turned(x, by):
    return jnp.tanh(x)


turned.defvjp(lambda x, by: (jnp.tanh(x), x), lambda by, x, g: (-by * g * jnp.cos(x),))


@jax.custom_jvp
def rounded(x):
    return jnp.round(x)


rounded.defjvp(lambda x, d: (rounded(x[0]), 2.0 * d[0]))


def own_derivatives():
    def loss_fn(params, batch):
        y = turned(batch["x"] @ params["w"], 0.5)
        return (rounded(3 * y) * batch["z"]).sum() + jax.nn.relu(y).mean()
    return loss_fn, {"w": draw(5, 4)}, {"x": draw(7, 5), "z": draw(7, 4)}


def odds():
    """Ops that the others lack."""
    def loss_fn(params, batch):
        w, x, i = params["w"], batch["x"], batch["i"]
        y = jnp.cumsum(w * x, 1) + jnp.flip(w, 0) + jnp.cumprod(jnp.tanh(w), 0) + jnp.roll(w, 2, 1)
        y = y + jnp.tile(w[:1], (5, 1)) + jnp.arctan(w) + jnp.sinh(w) - jnp.arcsinh(w) + jnp.exp2(w) + jnp.cbrt(w)
        y = y + jax.lax.dynamic_slice(w, (i[0], i[1]), (1, 6)) + jax.lax.cummax(w, 1)
        y = y + jax.lax.cumlogsumexp(w, 0, reverse=True) + jnp.sort(w, 0) * 0.5 + jnp.argsort(-x, 1) * 0.1
        y = y + jax.lax.sort((jnp.floor(x), w), dimension=1, num_keys=2)[1] * jax.lax.top_k(w, 6)[0]
        y = jax.lax.dynamic_update_slice(y, w[:2, :2] * 3, (i[1], i[2]))
        y = jnp.clip(y, -2, 3) + jnp.logaddexp(w, x) + (w ** 3) * jnp.sign(w) + jnp.abs(w) ** 1.5 + w % 0.7
        y = y + jnp.take(w, i, axis=0, mode="fill", fill_value=2.5).sum(0) + jnp.take(w, i[:2], axis=1).mean()
        y = y.at[i[:3], :2].multiply(2.0).at[i[0]].max(0.3)
        y = jnp.where(jnp.isfinite(y) & ~(x > 1) | (i[0] == 2), y, jnp.minimum(y, 0.1))
        y = y + jnp.concatenate([jnp.sin(w[0, 0] * k)[None] for k in range(70)])[:30].reshape(5, 6)
        y = jax.lax.fori_loop(0, 3, lambda k, y: y + jnp.sin(y) * k, y)
        key = jax.random.PRNGKey(3)
        y = y * jax.random.bernoulli(key, 0.8, y.shape) + jax.random.normal(key, y.shape) * w
        z = jnp.pad(y, ((1, 0), (0, 2)), mode="reflect")[::2, 1:-1:2]
        return jnp.linalg.norm(z) + jnp.prod(y[:, 0]) + jnp.var(y) + jnp.max(y) - jnp.median(jnp.arange(5.0)) * y[1, 1]
    return loss_fn, {"w": draw(5, 6, scale=0.5)}, {"x": draw(5, 6), "i": np.array([2, 0, 7, 1, 4], np.int32)}, []


def noise():
    """Random numbers of keys that are data: one for each sample, and one that is made of a number."""
    def loss_fn(params, batch):
        def one(key, x):
            a, b, c = jax.random.split(jax.random.fold_in(key, 7), 3)
            x = x + params["scale"] * jax.random.normal(a, x.shape)
            x = jnp.where(jax.random.bernoulli(b, 0.8, x.shape), x / 0.8, 0)
            return x @ params["w"] + jax.random.uniform(c, (3,), minval=-1, maxval=2)
        shared = jax.random.key(batch["y"].sum().astype(int))
        y = jax.vmap(one)(batch["keys"], batch["x"]) * jax.random.normal(shared, (3,))
        return ((y - batch["y"]) ** 2).mean()
    keys = np.asarray(jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(3), 5)))
    return loss_fn, {"w": draw(90, 3, scale=0.3), "scale": draw(90)}, {"x": draw(5, 90), "y": draw(5, 3), "keys": keys}


ALL = [mlp, plain, mixer, gpt, gpt_scan, graph_attention, graphs, vit, resnet, batch_norm, unet, wide, lstm, mamba,
       experts, pinn, noise, own_derivatives, odds]
