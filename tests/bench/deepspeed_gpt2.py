"""Tokens a second and peak memory of DeepSpeed's ZeRO-3 with both offloads to a drive, on the step of `tessera bench`.

    python3 tests/bench/deepspeed_gpt2.py DIR [--micro 1] [--pipelined] [--steps 3]        DIR: on the drive, some 4 GB

For comparison only. GPT-2 124M in bf16, 4096 tokens a step in micro-batches of so many sequences of 1024, DeepSpeed's CPU accelerator, its own AIO
and CPUAdam, clipping. Needs torch, transformers, deepspeed, ninja, a C++ compiler and libaio's headers.
"""
import argparse
import os
import resource
import statistics
import time

os.environ.setdefault("DS_ACCELERATOR", "cpu")
for name, value in dict(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", LOCAL_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511").items():
    os.environ.setdefault(name, value)

import deepspeed
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam
from transformers import GPT2Config, GPT2LMHeadModel

SEQUENCES, LENGTH = 4, 1024


def settings(path, micro, pipelined):
    drive = {"device": "nvme", "nvme_path": path, "pin_memory": False}
    return {
        "train_micro_batch_size_per_gpu": micro,
        "gradient_accumulation_steps": SEQUENCES // micro,
        "gradient_clipping": 1.0,
        "bf16": {"enabled": True},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": drive | ({"pipeline_read": True, "pipeline_write": True, "buffer_count": 10} if pipelined else {}),
            "offload_param": drive | {"buffer_size": 60_000_000},
            "sub_group_size": 20_000_000,
        },
        "aio": {"block_size": 1 << 20, "queue_depth": 16, "single_submit": False, "overlap_events": True},
        "zero_force_ds_cpu_optimizer": True,
    }


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("path")
    a.add_argument("--micro", type=int, default=1)
    a.add_argument("--steps", type=int, default=3)
    a.add_argument("--pipelined", action="store_true", help="reads and writes of the optimizer's states beside its steps, in more buffers")
    args = a.parse_args()
    torch.manual_seed(1)
    deepspeed.init_distributed(dist_backend="gloo")
    conf = settings(args.path, args.micro, args.pipelined)
    with deepspeed.zero.Init(config_dict_or_path=conf):
        model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa"))
    optimizer = DeepSpeedCPUAdam(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    engine, *_ = deepspeed.initialize(model=model, optimizer=optimizer, config=conf)
    ids = torch.randint(0, 50257, (SEQUENCES, LENGTH + 1))
    seconds = []
    for step in range(args.steps + 1):  # the first one warms up
        start = time.perf_counter()
        for at in range(0, SEQUENCES, args.micro):
            part = ids[at:at + args.micro]
            logits = engine(input_ids=part[:, :-1], use_cache=False).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), part[:, 1:].flatten())
            engine.backward(loss)
            engine.step()
        seconds.append(time.perf_counter() - start)
    median = statistics.median(seconds[1:])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"deepspeed {deepspeed.__version__} ZeRO-3, nvme, bf16, micro-batches of {args.micro}{', pipelined' * args.pipelined}: {SEQUENCES * LENGTH / median:.0f} tokens/s, "
          f"{median:.2f} s a step (median of {args.steps}), peak {peak} MiB, loss {loss.item():.4f}", flush=True)


main()
