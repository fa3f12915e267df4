"""Tokens a second of PyTorch's CPU build on the step that tests/bench measures: GPT-2 124M, forward, backward, clipping, AdamW.

    python3 tests/bench/torch_gpt2.py [--dtype fp32|bf16|both] [--batch 4] [--length 1024] [--steps 3] [--threads N] [--compile] [--checkpoint]

For comparison only. bf16 is torch.autocast over fp32 weights. Attention is PyTorch's fused kernel, dropout is off, the loss
is computed from the logits of the whole batch, as Hugging Face's model does. Needs torch and transformers.
"""
import argparse
import os
import statistics
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def optimizer_of(model):
    conf = dict(lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    try:
        return torch.optim.AdamW(model.parameters(), fused=True, **conf), "fused"
    except RuntimeError:
        return torch.optim.AdamW(model.parameters(), **conf), "not fused"


def measure(dtype, batch, length, steps, compiled, checkpoint):
    torch.manual_seed(1)
    config = GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, n_positions=max(1024, length), attn_implementation="sdpa")
    model = GPT2LMHeadModel(config).train()
    if checkpoint:
        model.gradient_checkpointing_enable()
    optimizer, kind = optimizer_of(model)
    forward = torch.compile(model) if compiled else model
    ids = torch.randint(0, config.vocab_size, (batch, length + 1))
    seconds = []
    for step in range(steps + 1):  # the first one warms up
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            logits = forward(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    parameters = sum(p.numel() for p in model.parameters())
    flops = 6 * parameters + 6 * config.n_layer * config.n_embd * length  # a token; causal attention at half
    print(f"torch {torch.__version__} {dtype} {'compiled ' * compiled}batch {batch} length {length} threads {torch.get_num_threads()} AdamW {kind}: "
          f"{batch * length / median:.0f} tokens/s, {flops * batch * length / median * 1e-9:.0f} GFLOP/s, "
          f"{median:.2f} s a step (median of {steps}), loss {loss.item():.4f}, load {os.getloadavg()[0]:.1f}", flush=True)


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("--dtype", choices=["fp32", "bf16", "both"], default="both")
    a.add_argument("--batch", type=int, default=4)
    a.add_argument("--length", type=int, default=1024)
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--threads", type=int, default=0)
    a.add_argument("--compile", action="store_true")
    a.add_argument("--checkpoint", action="store_true", help="blocks are computed again in the backward pass")
    args = a.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    for dtype in ["fp32", "bf16"] if args.dtype == "both" else [args.dtype]:
        measure(dtype, args.batch, args.length, args.steps, args.compile, args.checkpoint)


main()
