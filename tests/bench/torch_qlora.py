"""Seconds a step and peak memory of PEFT on bitsandbytes: adapters beside a base in NF4, forward, backward, clipping, AdamW.

    python3 tests/bench/torch_qlora.py DIR LENGTH STEPS SHAPE.json     (torch, transformers, peft, bitsandbytes)

For comparison only; qlora.sh calls it. DIR becomes the base, with drawn weights in bf16, unless it is there. Products are
in bf16, attention is PyTorch's own, the first step warms up. Prints both, and the last loss.
"""
import json
import os
import resource
import statistics
import subprocess
import sys
import time

import torch


def make(directory, shape):
    """By a process of its own, whose memory is none of the run's."""
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(1)
    torch.set_default_dtype(torch.bfloat16)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(**json.load(open(shape)))).save_pretrained(directory)


def main():
    directory, length, steps, shape = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    if "--make" in sys.argv:
        make(directory, shape)
        return
    if not os.path.exists(directory):
        subprocess.run([sys.executable, *sys.argv, "--make"], check=True, stdout=sys.stderr)
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, BitsAndBytesConfig
    four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16)
    model = AutoModelForCausalLM.from_pretrained(directory, quantization_config=four, dtype=torch.bfloat16, device_map={"": "cpu"})
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules="all-linear")).train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0)
    draw, seconds = torch.Generator().manual_seed(2), []
    for _ in range(steps + 1):
        ids = torch.randint(model.config.vocab_size, (1, length + 1), generator=draw)
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        logits = model(input_ids=ids[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"{statistics.median(seconds[1:]):.2f} {peak:.2f} {loss.item():.4f}")


main()
