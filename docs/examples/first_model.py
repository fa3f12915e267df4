"""first-model.c in Python: the same weights, bit for bit. Argument: a directory that they go to, or none."""
import sys
import numpy as np
from tessera import engine as t

B, T, C, V, STEPS = 16, 32, 48, 128, 150
text = np.frombuffer(b"A tessera is a tile of a mosaic; many small tiles make one large picture. ", np.uint8)
normal, one = t.init(t.INIT_NORMAL, 0.1), t.init(t.INIT_FILL, 1)
t.start()
g = t.graph_new()
ids, targets = t.input(g, "ids", B, T), t.input(g, "next", B, T)
table = t.param(g, "table", V, C, normal)
x = t.embedding(ids, table, t.param(g, "positions", T, C, normal))  # (B, T, C)
qkv = t.linear(x, t.param(g, "qkv", 3 * C, C, normal), None)  # (B, T, 3C)
x = t.add(x, t.attention_packed(qkv, heads=4, causal=True))
h = t.gelu(t.linear(x, t.param(g, "up", 4 * C, C, normal), None), t.GELU_TANH)
h = t.linear(h, t.param(g, "down", C, 4 * C, normal), None)
x = t.rmsnorm(t.add(x, h), t.param(g, "norm", C, 1, one), 1e-5)
s = t.step_new(t.cross_entropy(x, table, None, targets), train=True, optimizer=t.adamw())
t.graph_init(g, 1)
for step in range(STEPS):
    place = step * 7 + np.arange(B)[:, None] * 5 + np.arange(T)  # B windows of the text
    t.step_feed(s, ids, text[place % len(text)])
    t.step_feed(s, targets, text[(place + 1) % len(text)])
    r = t.step_run(s, step=step, seed=1, lr=3e-3)
    if step % 25 == 0:
        print(f"step {step:3d}  loss {r.loss:.4f}")
if len(sys.argv) > 1:
    t.graph_save(g, sys.argv[1])
print(f"loss {r.loss:.4f}")
t.step_free(s), t.graph_free(g), t.stop()
