"""Tokens a second of PyTorch's CPU build on lines of examples of several lengths, padded to one: forward, backward, clipping,
AdamW.

    python3 tests/bench/torch_families.py CONFIG.json LINES.jsonl LENGTH BATCH STEPS

For comparison only; families.sh calls it. The model is transformers' of that config.json, with drawn weights; bf16 is
torch.autocast over fp32 weights, attention is PyTorch's own with a mask for the padding, dropout is off. Padding counts as
tokens, as it does in Tessera's metrics.
"""
import json
import statistics
import sys
import time

import torch
import transformers


def main():
    path, lines, length, batch, steps = sys.argv[1], sys.argv[2], *(int(x) for x in sys.argv[3:6])
    settings = json.load(open(path))
    config = transformers.AutoConfig.for_model(**settings)
    config._attn_implementation = "sdpa"
    torch.manual_seed(1)
    model = getattr(transformers, settings["architectures"][0])(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    rows = [json.loads(x) for x in open(lines)]
    causal = "CausalLM" in settings["architectures"][0]
    seconds = []
    for step in range(steps + 1):  # the first one warms up
        part = [rows[(step * batch + i) % len(rows)] for i in range(batch)]
        pad = lambda values, fill: torch.tensor([v + [fill] * (length - len(v)) for v in values])
        ids, mask = pad([x["input_ids"] for x in part], 0), pad([[1] * len(x["input_ids"]) for x in part], 0)
        targets = pad([x["labels"] for x in part], -100)
        if causal:
            targets = torch.nn.functional.pad(targets[:, 1:], (0, 1), value=-100)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        more = {"use_cache": False} if causal else {}
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask, **more).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    print(f"{batch * length / statistics.median(seconds[1:]):.1f} {loss.item():.4f}")


main()
