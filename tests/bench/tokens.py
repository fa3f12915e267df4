"""MB/s of Tessera's tokenizers beside the Hugging Face library's, on one core, line by line.

    python tests/bench/tokens.py build/tools/tessera TEXT

Tokenizers of the families' components (tests/models/fixtures/tokenizers/pipelines.py) with vocabularies of some
thousands are trained on the first 4 MB of the text; both then encode all of it, the library by encode_batch_fast without
threads in batches of 4096 lines, and the ids are compared by their sum. Times are of the encoding: the command's has the start, the
reading and the printing in it. Each row is added to results/tokens.tsv."""
import json
import os
import subprocess
import sys
import tempfile
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../models/fixtures/tokenizers"))
import pipelines  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

tessera, path = sys.argv[1:3]
with open(path, encoding="utf-8", newline="\n") as f:
    text = f.read()
lines = text.split("\n")
if lines[-1] == "":
    lines.pop()
megabytes = len(text.encode()) / 1e6
sample = lines[: max(1, int(len(lines) * min(1, 4 / megabytes)))]
pipelines.corpus = lambda *a, **k: sample
byte_bpe, line_bpe = pipelines.byte_bpe, pipelines.sentencepiece_bpe
pipelines.byte_bpe = lambda *a, **k: byte_bpe(*a, **{**k, "size": 16000})
pipelines.sentencepiece_bpe = lambda *a, **k: line_bpe(*a, **{**k, "size": 16000})
print(f"{megabytes:.1f} MB, {len(lines)} lines; MB/s")
print(f"{'':10}{'tessera':>10}{'library':>10}{'ratio':>8}")
for name in sys.argv[3:] or ["gpt2", "llama3", "qwen2", "llama2", "mistral", "gemma", "t5", "bert"]:
    with tempfile.TemporaryDirectory() as d:
        t = pipelines.ALL[name]()
        t.save(os.path.join(d, "tokenizer.json"))
        t = Tokenizer.from_file(os.path.join(d, "tokenizer.json"))
        ids = os.path.join(d, "ids")
        begun = time.perf_counter()
        with open(ids, "w") as out:
            subprocess.run([tessera, "tokenize", d, path], stdout=out, check=True)
        ours = time.perf_counter() - begun
        total, theirs = 0, 0.0
        for at in range(0, len(lines), 4096):
            begun = time.perf_counter()
            batch = t.encode_batch_fast(lines[at : at + 4096], add_special_tokens=False)
            theirs += time.perf_counter() - begun
            total += sum(sum(e.ids) for e in batch)
        with open(ids) as f:
            same = sum(sum(map(int, line.split())) for line in f) == total
        print(f"{name:10}{megabytes / ours:10.1f}{megabytes / theirs:10.1f}{theirs / ours:8.1f}  {'' if same else 'OTHER IDS'}", flush=True)
        subprocess.run([os.path.join(os.path.dirname(__file__), "record.sh"), "tokens", "tokens.py TESSERA TEXT", name, f"{megabytes:.0f}", "--",
                        *(f"{x:.1f}" for x in (megabytes / ours, megabytes / theirs, theirs / ours))], check=True)
