"""PyTorch's scaled_dot_product_attention beside the codelets' attention, in turns; for comparison only.

    python tests/bench/torch_attention.py build/tests/bench_attention [THREADS [SECONDS [DTYPE...]]]

Each shape has as many sequences as there are threads. PyTorch's q, k and v lie head by head, which it likes best; ours
side by side, as a model has them. Milliseconds of the best run of each in three turns."""
import subprocess
import sys
import time

import torch

program = sys.argv[1]
threads = int(sys.argv[2]) if len(sys.argv) > 2 else 1
budget = float(sys.argv[3]) if len(sys.argv) > 3 else 0.5
dtypes = sys.argv[4:] or ["bf16", "f32"]
torch.set_num_threads(threads)
torch.manual_seed(0)
ours = subprocess.Popen([program, "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def best(run):
    run()
    least, begun = 1e9, time.perf_counter()
    while time.perf_counter() - begun < budget / 2:
        t = time.perf_counter()
        run()
        least = min(least, time.perf_counter() - t)
    return least * 1e3


def theirs(dtype, length, heads, dim, causal):
    q, k, v, dy = (torch.randn(threads, heads, length, dim).to(dtype) for _ in range(4))
    qkv = [x.requires_grad_() for x in (q, k, v)]
    y = torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal)
    with torch.no_grad():
        forward = best(lambda: torch.nn.functional.scaled_dot_product_attention(*qkv, is_causal=causal))
    return forward, best(lambda: torch.autograd.grad(y, qkv, dy, retain_graph=True))


print(f"PyTorch {torch.__version__}, threads {threads}, milliseconds")
print(f"{'':5}{'length':>7}{'heads':>6}{'dim':>5} {'':7}{'forward':>9}{'PyTorch':>9}{'times':>7}{'backward':>10}{'PyTorch':>9}{'times':>7}")
for name in dtypes:
    for causal in (True, False):
        for dim in (64, 128):
            for length in (512, 1024, 4096):
                heads = (256 if length == 4096 else 768) // dim
                a, b = [1e9, 1e9], [1e9, 1e9]
                for _ in range(3):
                    ours.stdin.write(f"{name} {length} {heads} {heads} {dim} {int(causal)} 0 {threads} {budget}\n")
                    ours.stdin.flush()
                    a = [min(x, float(y)) for x, y in zip(a, ours.stdout.readline().split())]
                    dtype = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}[name]
                    b = [min(x, y) for x, y in zip(b, theirs(dtype, length, heads, dim, causal))]
                print(f"{name:5}{length:7}{heads:6}{dim:5} {'causal' if causal else 'all':7}"
                      f"{a[0]:9.2f}{b[0]:9.2f}{b[0] / a[0]:7.2f}{a[1]:10.2f}{b[1]:9.2f}{b[1] / a[1]:7.2f}", flush=True)
ours.stdin.close()
