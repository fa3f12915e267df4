"""Tokens a second of generation beside PyTorch's: GPT-2 124M and a Llama of 110M, drawn weights, at batch 1 and 8.

    python3 tests/bench/torch_generation.py TESSERA [--dir DIR] [--prompt 128] [--added 128] [--batch 1,8] [--fp32] [--only torch|tessera]

Models are written below DIR, once. PyTorch is transformers' generate, greedy, with its cache, on as many threads as there are
cores; its time for one token is taken off, as the reading of the prompt is in Tessera's figures. It has generated before, so
Tessera writes three batches and its first is a third of the figure. Both run in turn, three times; the median is said, and
added to results/beside.tsv where both were asked for. Needs torch and transformers.
"""
import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

import peers
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

ENDLESS = dict(bos_token_id=None, eos_token_id=None)
LLAMA = dict(vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12,
             num_key_value_heads=12, max_position_embeddings=2048, tie_word_embeddings=True)


def models(base):
    for name, make in [("gpt2", lambda: GPT2LMHeadModel(GPT2Config(**ENDLESS))),
                       ("llama", lambda: LlamaForCausalLM(LlamaConfig(**LLAMA, **ENDLESS)))]:
        if not (base / name / "config.json").exists():
            torch.manual_seed(1)
            make().save_pretrained(base / name)
        yield base / name


def asked(batch, prompt):
    torch.manual_seed(2)
    return torch.randint(5, 30000, (batch, prompt)).tolist()


def by_torch(directory, ids, added, fp32):
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32 if fp32 else torch.bfloat16).eval()
    x, conf = torch.tensor(ids), dict(do_sample=False, pad_token_id=0, use_cache=True)
    mask = torch.ones_like(x)
    seconds = []
    with torch.inference_mode():
        model.generate(x, attention_mask=mask, max_new_tokens=4, min_new_tokens=4, **conf)
        for n in (1, added):
            start = time.perf_counter()
            model.generate(x, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, **conf)
            seconds.append(time.perf_counter() - start)
    return len(ids) * (added - 1) / (seconds[1] - seconds[0]), len(ids) * len(ids[0]) / seconds[0]


def by_tessera(tessera, directory, ids, added, base, fp32):
    prompts = base / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"input_ids": p}) + "\n" for p in 3 * ids))
    ran = subprocess.run([tessera, "generate", directory, "--prompts", prompts, "-n", str(added), "--temperature", "0", "--batch",
                          str(len(ids)), "--ignore-eos", f"bf16.enabled={str(not fp32).lower()}"], capture_output=True, text=True)
    found = re.search(r"([\d.]+) tokens/s; .* ([\d.]+) tokens/s", ran.stderr)
    if not found:
        raise SystemExit(ran.stderr)
    return float(found[1]), float(found[2])


def main():
    a = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    a.add_argument("tessera")
    a.add_argument("--dir", default="generation-bench")
    a.add_argument("--prompt", type=int, default=128)
    a.add_argument("--added", type=int, default=128)
    a.add_argument("--batch", default="1,8")
    a.add_argument("--rounds", type=int, default=3)
    a.add_argument("--fp32", action="store_true", help="in place of bf16")
    a.add_argument("--only", choices=["torch", "tessera"])
    a.add_argument("--one", help="PyTorch's figures of this model's directory, as JSON")
    args = a.parse_args()
    if args.one:
        print(json.dumps(by_torch(args.one, asked(int(args.batch), args.prompt), args.added, args.fp32)))
        return
    base = pathlib.Path(args.dir)
    base.mkdir(exist_ok=True)
    for directory in models(base):
        for batch in map(int, args.batch.split(",")):
            ids = asked(batch, args.prompt)
            got = {"torch": [], "tessera": []}
            one = [sys.executable, __file__, *sys.argv[1:], "--one", directory, "--batch", str(batch)]
            peer = peers.Faster("PyTorch", lambda way: json.loads(subprocess.run([*way, *one], capture_output=True, check=True).stdout),
                                lambda rates: 1 / rates[0])
            for _ in range(args.rounds):
                if args.only != "torch":
                    got["tessera"].append(by_tessera(args.tessera, directory, ids, args.added, base, args.fp32))
                if args.only != "tessera":
                    got["torch"].append(peer())
            for who, figures in got.items():
                if figures:
                    print(f"{directory.name} batch {batch} {who}: {statistics.median(f[0] for f in figures):.1f} tokens/s, prompts "
                          f"{statistics.median(f[1] for f in figures):.0f} tokens/s, load {os.getloadavg()[0]:.1f}", flush=True)
            title = {"gpt2": "GPT-2 124M", "llama": "Llama 110M"}[directory.name]
            for i, what in enumerate(["generation", "prompts"] if not args.only else []):
                ours, theirs = (statistics.median(f[i] for f in got[who]) for who in ("tessera", "torch"))
                subprocess.run([pathlib.Path(__file__).parent / "record.sh", "beside", f"torch_generation.py TESSERA{' --fp32' * args.fp32}",
                                f"{title}, {'fp32, ' * args.fp32}{what}, batch {batch}", "--", f"{ours:.1f}", "", peer.name, f"{theirs:.1f}",
                                f"{ours / theirs:.2f}", str(args.rounds), "", ""], check=True)


main()
