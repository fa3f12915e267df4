"""lora.base beside PEFT on bitsandbytes: a small Llama, its linears in NF4 or in 8-bit blocks, twenty steps of AdamW on
its adapters from the same first values, in fp32. Then the same beside bases that transformers saved in NF4, with scales
in fp32 and in 8 bits, which are read as they lie there. Losses are the same to 1e-4. By hand, since it needs

    pip install torch transformers peft bitsandbytes accelerate safetensors
    TESSERA=build/tools/tessera python tests/python/beside_peft.py
"""
import json
import os
import subprocess
import sys
import tempfile

import bitsandbytes.functional as bnb
import numpy as np
import torch
import torch.nn.functional as F
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

STEPS, BATCH, LENGTH, RATE, NEAR = 20, 4, 64, 2e-3, 1e-4


def made(base):
    """A base, and a text of bytes with something to learn."""
    torch.manual_seed(1)
    LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=128, intermediate_size=320, num_hidden_layers=3,
                                 num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=128,
                                 tie_word_embeddings=False, initializer_range=0.1)).save_pretrained(base)
    rows = np.random.default_rng(2).integers(97, 123, (16, 8))
    text = b" ".join(bytes(rows[i % 16].tolist()) for i in np.random.default_rng(3).integers(0, 16, 4000))
    open("text.txt", "wb").write(text)
    return np.frombuffer(text, np.uint8).astype(np.int64)


def quantized(base, how):
    """The base as PEFT has it. Of 8 bits, which its Linear8bitLt has by rows, the values alone are taken."""
    if how.startswith("nf4"):
        four = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.float32,
                                  bnb_4bit_use_double_quant=how == "nf4-double")
        return AutoModelForCausalLM.from_pretrained(base, quantization_config=four, dtype=torch.float32,
                                                    device_map={"": "cpu"})
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    for name, module in model.named_modules():
        if how == "int8" and isinstance(module, torch.nn.Linear) and "lm_head" not in name:
            blocks, table = module.weight.data.view(-1, 64), bnb.create_dynamic_map()  # make_quantized.py says why
            most = blocks.abs().amax(1, keepdim=True)
            code = torch.bucketize(blocks * (1 / most), (table[:-1] + table[1:]) / 2)
            module.weight.data = (table[code] * most).view_as(module.weight)
    return model


def theirs(base, how, tokens):
    torch.manual_seed(4)
    model = get_peft_model(quantized(base, how), LoraConfig(r=8, lora_alpha=16, target_modules="all-linear"))
    if how.startswith("nf4"):
        assert any(type(m).__name__ == "Linear4bit" for m in model.modules())
    model.train()  # evaluated, bitsandbytes multiplies in bf16 on CPUs that have it
    model.save_pretrained("adapter")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0)
    losses = []
    for step in range(STEPS):
        at = np.arange(step * BATCH, (step + 1) * BATCH) * LENGTH
        ids = torch.tensor(np.stack([tokens[i:i + LENGTH + 1] for i in at]))
        logits = model(input_ids=ids[:, :-1]).logits
        loss = F.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def ours(base, how):
    json.dump({"model": base, "data": {"train": "text.txt", "seq_length": LENGTH, "shuffle": False}, "output": how,
               "train_batch_size": BATCH, "gradient_clipping": 0, "steps": STEPS, "overwrite": True,
               "optimizer": {"type": "AdamW", "params": {"lr": RATE, "weight_decay": 0}},
               "lora": {"from": "adapter", "base": how.split("-")[0]}}, open("run.json", "w"))
    subprocess.run([os.environ["TESSERA"], "train", "run.json"], check=True, stdout=subprocess.DEVNULL)
    return [json.loads(line)["loss"] for line in open(f"{how}/metrics.jsonl") if "loss" in json.loads(line)]


failed = 0
with tempfile.TemporaryDirectory() as place:
    os.environ["TESSERA"] = os.path.abspath(os.environ["TESSERA"])
    os.chdir(place)
    tokens = made("base")
    for how in ("as stored", "int8", "nf4", "nf4-saved", "nf4-double"):
        files = "base"
        if "-" in how:
            files = how + "-base"
            quantized("base", how).save_pretrained(files)
        a, b = theirs(files, how, tokens), ours(files, how)
        off = max(abs(x - y) for x, y in zip(a, b))
        failed += len(a) != len(b) or not off < NEAR
        print(f"{how}: {a[0]:.6f} to {a[-1]:.6f}, here {b[0]:.6f} to {b[-1]:.6f}, at most {off:.1e} apart")
sys.exit(failed)
