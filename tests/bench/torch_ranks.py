"""Seconds a step of PyTorch's DDP over gloo on what tests/bench/ranks.sh measures: the same GPT of 82M parameters, 1024
tokens a sequence, bf16 by autocast over fp32 weights, clipping, AdamW. Alone with a core beside another one like it,
then two ranks with a core each: strong (4 sequences in all) and weak (4 a rank).

    python3 tests/bench/torch_ranks.py [--steps N]

For comparison only; needs torch and transformers.
"""

import argparse
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from transformers import GPT2Config, GPT2LMHeadModel


def train(core, ranks, rank, sequences, steps, out):
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    torch.manual_seed(1)
    config = GPT2Config(n_layer=6, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
    model = inner = GPT2LMHeadModel(config)
    if ranks > 1:
        dist.init_process_group("gloo", init_method="tcp://127.0.0.1:29551", rank=rank, world_size=ranks)
        model = torch.nn.parallel.DistributedDataParallel(inner)
    optimizer = torch.optim.AdamW(inner.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, config.vocab_size, (sequences, 1025))
    seconds = []
    for step in range(-1, steps):
        start = time.time()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(ids[:, :-1]).logits
        torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten()).backward()
        torch.nn.utils.clip_grad_norm_(inner.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= 0:
            seconds.append(time.time() - start)
    out.put(statistics.median(seconds))
    if ranks > 1:
        dist.destroy_process_group()


def run(name, ranks, sequences, steps):
    """Two processes, a core each: of one job (ranks 2), or of two that know nothing of each other (ranks 1)."""
    out = mp.get_context("spawn").SimpleQueue()
    args = [(core, ranks, core, sequences, steps, out) for core in range(2)]
    jobs = [mp.get_context("spawn").Process(target=train, args=a) for a in args]
    for j in jobs:
        j.start()
    mean = sum(out.get() for _ in jobs) / 2
    for j in jobs:
        j.join()
    print(f"{name:32} {mean:7.3f} s", flush=True)
    return mean


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=3)
    steps = parser.parse_args().steps
    one = run("one rank, 4 sequences", 1, 4, steps)
    strong = run("strong: two ranks, 2 each", 2, 2, steps)
    weak = run("weak: two ranks, 4 each", 2, 4, steps)
    print(f"torch {torch.__version__}: strong {one / strong:.2f} times as fast, weak {100 * one / weak:.0f}% of the speed alone")
