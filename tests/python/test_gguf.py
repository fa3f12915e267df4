#!/usr/bin/env python3
"""GGUF files beside the gguf package of ggml's makers: what tessera export writes has their names, shapes and bits, and
what it reads are the floats that they make of it.

    TESSERA=build/tools/tessera python3 tests/python/test_gguf.py [CASE...]

Needs numpy, gguf, tokenizers and sentencepiece with protobuf."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Q
from tokenizers import Tokenizer

here = pathlib.Path(__file__).resolve().parent
fixtures = here.parent / "models" / "fixtures"
tessera = os.environ.get("TESSERA", str(here.parent.parent / "build" / "tools" / "tessera"))
room = pathlib.Path(tempfile.mkdtemp())
families = {"llama3": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "olmo2": "olmo2",
            "granite": "granite", "gpt2": "gpt2"}
types = {"f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0}


def directory(name):
    return fixtures / ("gpt2-tiny" if name == "gpt2" else "families/" + name)


def read_safetensors(path):
    data = path.read_bytes()
    n = int.from_bytes(data[:8], "little")
    found = {}
    for name, entry in json.loads(data[8:8 + n]).items():
        if name == "__metadata__":
            continue
        begin, end = (8 + n + k for k in entry["data_offsets"])
        raw = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}[entry["dtype"]])
        if entry["dtype"] == "BF16":
            raw = (raw.astype(np.uint32) << 16).view(np.float32)
        found[name] = raw.astype(np.float32).reshape(entry["shape"])
    return found


def write_safetensors(path, tensors):
    header, at = {}, 0
    for name, t in tensors.items():
        header[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + t.nbytes]}
        at += t.nbytes
    text = json.dumps(header).encode()
    data = b"".join(t.astype("<f4").tobytes() for t in tensors.values())
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def run(*arguments, wrong=None):
    done = subprocess.run([tessera, *map(str, arguments)], capture_output=True, text=True)
    if wrong is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode == 2 and wrong in done.stderr, (done.returncode, done.stderr)
    return done.stdout


def interleaved(rows, heads):
    """What convert_hf_to_gguf does to q and k of a Llama."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def expected(name, config, tensors):
    """By ggml's names the tensors of a directory as they are to be stored."""
    arch = families[name]
    names = gguf.get_tensor_name_map({v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}[arch],
                                     config.get("num_hidden_layers", config.get("n_layer")))
    heads = config.get("num_attention_heads")
    want = {}
    for key, t in tensors.items():
        if key.endswith((".attn.bias", "masked_bias", "inv_freq")):
            continue
        if arch in ("llama", "granite") and ".q_proj." in key:
            t = interleaved(t, heads)
        if arch in ("llama", "granite") and ".k_proj." in key:
            t = interleaved(t, config.get("num_key_value_heads") or heads)
        if arch == "gpt2" and key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight")):
            t = t.T
        want[names.get_name(key, try_suffixes=(".weight", ".bias"))] = np.ascontiguousarray(t)
    return want


def losses(model, data, **more):
    out = room / "run"
    shutil.rmtree(out, ignore_errors=True)
    config = {"model": str(model), "data": {"train": str(data), "seq_length": 16}, "steps": 3, "output": str(out),
              "train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, **more}
    (room / "config.json").write_text(json.dumps(config))
    run("train", room / "config.json")
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]


def tokens_of(name):
    return fixtures / ("gpt2-tiny" if name == "gpt2" else "families") / "tokens.bin"


def check_family(name):
    tensors = read_safetensors(directory(name) / "model.safetensors")
    config = json.loads((directory(name) / "config.json").read_text())
    want = expected(name, config, tensors)
    for dtype, quantized in types.items():
        path = room / f"{name}-{dtype}.gguf"
        run("export", "--gguf", path, "--dtype", dtype, directory(name))
        reader = gguf.GGUFReader(path)
        arch = reader.get_field("general.architecture").contents()
        assert arch == families[name]
        assert reader.get_field(f"{arch}.block_count").contents() == config.get("num_hidden_layers", config.get("n_layer"))
        assert reader.get_field(f"{arch}.embedding_length").contents() == config.get("hidden_size", config.get("n_embd"))
        got = {t.name: t for t in reader.tensors}
        factors = got.pop("rope_freqs.weight", None)
        assert (factors is not None) == (name == "llama3")
        assert sorted(got) == sorted(want), set(got) ^ set(want)
        for key, t in want.items():
            of = quantized if t.ndim == 2 and key != "position_embd.weight" else Q.F32
            if of == Q.Q8_0 and t.shape[1] % 32:
                of = Q.F16
            assert got[key].tensor_type == of, (key, got[key].tensor_type)
            assert list(reversed(got[key].shape)) == list(t.shape), key
            assert got[key].data.tobytes() == gguf.quants.quantize(t, of).tobytes(), (name, dtype, key)
        if factors is not None:
            check_factors(factors.data, config["rope_parameters"], config["head_dim"])
        check_reading(name, path, reader, config, tensors, dtype == "f32")
    print(f"{name}: written and read in {', '.join(types)}")


def check_factors(factors, rope, dim):
    """As convert_hf_to_gguf has them."""
    length, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    for i, factor in enumerate(factors):
        wave = 2 * np.pi * rope["rope_theta"] ** (2 * i / dim)
        smooth = (length / wave - low) / (high - low)
        want = 1 if wave < length / high else rope["factor"] if wave > length / low else \
            1 / ((1 - smooth) / rope["factor"] + smooth)
        assert abs(factor / want - 1) < 1e-6, (i, factor, want)


def check_reading(name, path, reader, config, tensors, exact):
    """A directory with the floats that gguf makes of the file trains as the file does."""
    other = room / "floats"
    shutil.rmtree(other, ignore_errors=True)
    other.mkdir()
    floats = {t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(list(reversed(t.shape))) for t in reader.tensors}
    names = expected(name, config, {k: np.zeros_like(t) for k, t in tensors.items()})
    keys = {n: k for n, k in zip(names, [k for k in tensors if not k.endswith((".attn.bias", "masked_bias", "inv_freq"))])}
    back = {}
    for n, key in keys.items():
        t = floats[n]
        if families[name] in ("llama", "granite") and (".q_proj." in key or ".k_proj." in key):
            heads = config["num_attention_heads"] if ".q_proj." in key else config["num_key_value_heads"]
            t = t.reshape(heads, t.shape[0] // heads // 2, 2, *t.shape[1:]).swapaxes(1, 2).reshape(t.shape)
        back[key] = np.ascontiguousarray(t.T) if n != "token_embd.weight" and tensors[key].shape != t.shape or \
            (families[name] == "gpt2" and key.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))) else t
    write_safetensors(other / "model.safetensors", back)
    said = {k: v for k, v in config.items() if not k.endswith("pdrop")}  # of training, which GGUF does not say
    if name == "mistral":
        said["sliding_window"] = None
    (other / "config.json").write_text(json.dumps(said))
    mine, theirs = losses(path, tokens_of(name)), losses(other, tokens_of(name))
    close = name == "llama3"  # whose positions are stretched by floats there, and by a formula here
    if close:
        assert np.allclose(mine, theirs, rtol=1e-6), (mine, theirs)
    else:
        assert mine == theirs, (mine, theirs)
    if exact and name not in ("mistral", "gpt2"):
        assert close or mine == losses(directory(name), tokens_of(name))


def random_blocks(rng, quantized, rows, columns):
    """Any codes and scales of scales, with scales that keep weights small."""
    block, size = gguf.GGML_QUANT_SIZES[quantized]
    raw = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
    at = {Q.Q8_0: [0], Q.Q4_0: [0], Q.Q4_K: [0, 2], Q.Q6_K: [208]}[quantized]
    by = {Q.Q8_0: 4e-3, Q.Q4_0: 4e-2, Q.Q4_K: 4e-4, Q.Q6_K: 4e-5}[quantized]
    for k in at:
        scale = (rng.standard_normal(len(raw)) * by).astype("<f2")
        raw[:, k:k + 2] = scale.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, -1)


def few_bits(rng, path, mixed):
    """Writes a Llama of matrices of few bits and returns the tensors that it has for transformers."""
    vocab, width, inner, heads, groups = 96, 256, 512, 4, 2
    shapes = {"attn_q": (width, width), "attn_k": (width // 2, width), "attn_v": (width // 2, width),
              "attn_output": (width, width), "ffn_gate": (inner, width), "ffn_up": (inner, width),
              "ffn_down": (width, inner)}
    theirs = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
              "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
              "ffn_down": "mlp.down_proj"}
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64)
    w.add_embedding_length(width)
    w.add_block_count(1)
    w.add_feed_forward_length(inner)
    w.add_head_count(heads)
    w.add_head_count_kv(groups)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_dimension_count(width // heads)
    w.add_file_type(15)
    back = {}

    def add(name, key, shape, quantized, turn=0):
        raw = random_blocks(rng, quantized, *shape)
        w.add_tensor(name, raw, raw_dtype=quantized)
        t = gguf.quants.dequantize(raw, quantized)
        back[key] = t.reshape(turn, -1, 2, shape[1]).swapaxes(1, 2).reshape(shape) if turn else t

    add("token_embd.weight", "model.embed_tokens.weight", (vocab, width), mixed[0])
    add("output.weight", "lm_head.weight", (vocab, width), mixed[-1])
    for k, (name, shape) in enumerate(shapes.items()):
        add(f"blk.0.{name}.weight", f"model.layers.0.{theirs[name]}.weight", shape, mixed[k % len(mixed)],
            {"attn_q": heads, "attn_k": groups}.get(name, 0))
    for name, key in (("output_norm", "model.norm"), ("blk.0.attn_norm", "model.layers.0.input_layernorm"),
                      ("blk.0.ffn_norm", "model.layers.0.post_attention_layernorm")):
        back[key + ".weight"] = rng.uniform(0.5, 1.5, width).astype(np.float32)
        w.add_tensor(name + ".weight", back[key + ".weight"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return back, {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": vocab, "hidden_size": width,
                  "intermediate_size": inner, "num_hidden_layers": 1, "num_attention_heads": heads, "rms_norm_eps": 1e-5,
                  "num_key_value_heads": groups, "max_position_embeddings": 64, "tie_word_embeddings": False}


def check_few_bits():
    rng = np.random.default_rng(7)
    data = room / "few.bin"
    data.write_bytes(np.array([20240520, 1, 400] + [0] * 253, "<i4").tobytes() + rng.integers(0, 96, 400).astype("<u2").tobytes())
    for mixed in ([Q.Q4_0], [Q.Q4_K, Q.Q6_K], [Q.Q8_0, Q.Q4_0, Q.Q6_K]):
        path, other = room / "few.gguf", room / "few"
        back, config = few_bits(rng, path, mixed)
        shutil.rmtree(other, ignore_errors=True)
        other.mkdir()
        write_safetensors(other / "model.safetensors", back)
        (other / "config.json").write_text(json.dumps(config))
        lora = {"lora": {"r": 4, "alpha": 8, "targets": ["q_proj", "down_proj"]}}
        for more in ({}, {"memory": {"cpu": "16MiB", "disk": "1GiB", "path": str(room)}}, lora,
                     {"lora": {**lora["lora"], "base": "nf4"}}, {"lora": {**lora["lora"], "base": "int8"}}):
            mine, theirs = losses(path, data, **more), losses(other, data, **more)
            assert mine == theirs and len(mine) == 3, (mixed, more, mine, theirs)
        run("merge", path, room / "run" / "model", room / "merged-few") if mixed == [Q.Q4_0] else None
    print("few bits: the floats of gguf.quants, also capped, and beneath adapters of a base in nf4 and int8")


def with_tokenizer(name, tokenizer):
    """A small drawn Llama, with five rows behind the tokenizer's last token."""
    config = {"model_type": "llama", "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1,
              "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32, "rms_norm_eps": 1e-5,
              "tie_word_embeddings": True}
    ids = [*tokenizer["model"]["vocab"].values(), *(t["id"] for t in tokenizer["added_tokens"])]
    config["vocab_size"] = max(ids) + 6
    rng = np.random.default_rng(3)
    layer = "model.layers.0."
    shapes = {"model.embed_tokens": (config["vocab_size"], 32), "model.norm": (32,), layer + "input_layernorm": (32,),
              layer + "post_attention_layernorm": (32,), layer + "self_attn.k_proj": (16, 32),
              layer + "self_attn.v_proj": (16, 32)}
    shapes |= {layer + k: (32, 32) for k in ("self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj",
                                             "mlp.down_proj")}
    out = room / name
    out.mkdir()
    write_safetensors(out / "model.safetensors", {k + ".weight": rng.standard_normal(s).astype("f4") for k, s in shapes.items()})
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    special = [t["content"] for t in tokenizer["added_tokens"] if t["special"] and t["content"] != "<unk>"]
    (out / "tokenizer_config.json").write_text(json.dumps({"bos_token": special[0], "eos_token": {"content": special[1]},
                                                           "chat_template": "{{ messages }}"}))
    (out / "config.json").write_text(json.dumps(config))
    return out, config["vocab_size"]


def encoded_by_sentencepiece(reader, texts):
    """By its own library, from the scores and kinds in the file."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as pb

    def value(key):
        return reader.get_field("tokenizer.ggml." + key).contents()
    proto = pb.ModelProto()
    proto.trainer_spec.model_type, proto.trainer_spec.byte_fallback = 2, True
    proto.normalizer_spec.name, proto.normalizer_spec.remove_extra_whitespaces = "identity", False
    proto.normalizer_spec.add_dummy_prefix = value("add_space_prefix")
    for text, score, kind in zip(value("tokens"), value("scores"), value("token_type")):
        proto.pieces.add(piece=text, score=score, type=kind)
    of = sentencepiece.SentencePieceProcessor(model_proto=proto.SerializeToString())
    return [of.encode(text) for text in texts]


def check_tokenizers():
    texts = {line for case in json.loads((fixtures / "tokenizer_cases.json").read_text()) for line in case["text"].split("\n")}
    texts = sorted(t.strip("\r\0") for t in texts if "<" not in t and not set(t) & set("\r\v\f\x85\u2028"))
    (room / "texts.txt").write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    (room / "texts").write_text("".join(t + "\n" for t in texts), encoding="utf-8")
    qwen = json.loads((fixtures / "tokenizer_llama3.json").read_text())
    qwen["normalizer"] = {"type": "NFC"}
    qwen["model"]["ignore_merges"] = False
    split = qwen["pre_tokenizer"]["pretokenizers"][0]["pattern"]
    split["Regex"] = split["Regex"].replace("\\p{N}{1,3}", "\\p{N}")
    all_of = {"gpt-2": json.loads((fixtures / "tokenizer_gpt2.json").read_text()), "qwen2": qwen,
              "llama-bpe": json.loads((fixtures / "tokenizers/llama3.json").read_text()),
              "llama": json.loads((fixtures / "tokenizers/llama2.json").read_text())}
    for name, tokenizer in all_of.items():
        one, vocab = with_tokenizer("with-" + name, tokenizer)
        path = room / f"with-{name}.gguf"
        run("export", "--gguf", path, one)
        reader = gguf.GGUFReader(path)

        def value(key):
            return reader.get_field("tokenizer." + key).contents()
        model = tokenizer["model"]
        tokens, kinds = value("ggml.tokens"), value("ggml.token_type")
        assert len(tokens) == len(kinds) == vocab and value("ggml.model") == ("llama" if name == "llama" else "gpt2")
        added = {t["content"]: t for t in tokenizer["added_tokens"]}
        for text, i in [*model["vocab"].items(), *((t, a["id"]) for t, a in added.items())]:
            kind = 3 if text in added and added[text]["special"] else 4 if text in added else 1
            if name == "llama":
                kind = 2 if text == model["unk_token"] else 6 if text.startswith("<0x") else kind
            assert (tokens[i], kinds[i]) == (text, kind), (name, i, tokens[i], kinds[i], text, kind)
        assert kinds[-5:] == [5] * 5 and len(set(tokens)) == vocab
        special = [t for t in tokenizer["added_tokens"] if t["special"] and t["content"] != "<unk>"]
        assert value("ggml.bos_token_id") == special[0]["id"] and value("ggml.eos_token_id") == special[1]["id"]
        assert value("ggml.add_bos_token") == ("<s>" in json.dumps(tokenizer["post_processor"]) or name == "llama-bpe")
        assert value("chat_template") == "{{ messages }}"
        if name != "llama":
            merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
            assert value("ggml.pre") == name and value("ggml.merges") == merges
        for flags in ([], ["--special"]):
            mine, theirs = (run("tokenize", *flags, d, room / "texts") for d in (path, one))
            assert mine == theirs and mine.count("\n") == len(texts), (name, flags)
        if name == "llama":
            run("tokenize", path, room / "texts")
            ids = [[int(i) for i in line.split()] for line in run("tokenize", path, room / "texts").splitlines()]
            oracle = encoded_by_sentencepiece(reader, texts)
            assert ids == oracle, [(t, a, b) for t, a, b in zip(texts, ids, oracle) if a != b][:3]
        losses(path, room / "texts.txt")
        library = [Tokenizer.from_file(str(d / "tokenizer.json")) for d in (one, room / "run" / "model")]
        for text in texts:
            ids = [t.encode(text).ids for t in library]
            assert ids[0] == ids[1], (name, text, ids)
        run("export", "--gguf", room / f"again-{name}.gguf", path)
        again = gguf.GGUFReader(room / f"again-{name}.gguf")
        for key in ("ggml.tokens", "ggml.token_type", "ggml.bos_token_id", "chat_template"):
            assert again.get_field("tokenizer." + key).contents() == value(key), (name, key)
        assert all(a.data.tobytes() == b.data.tobytes() for a, b in zip(again.tensors, reader.tensors))
    print("tokenizers:", *all_of)


def check_positions():
    """Stretched positions, also where the factors of a Llama are not those of 3.1."""
    usual = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
             "original_max_position_embeddings": 8192}
    for rope in ({"rope_type": "linear", "factor": 4.0}, usual,
                 {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}):
        one = room / "positions"
        shutil.rmtree(one, ignore_errors=True)
        shutil.copytree(directory("llama3"), one)
        config = json.loads((one / "config.json").read_text())
        config["rope_parameters"] = {"rope_theta": 500000.0, **rope}
        (one / "config.json").write_text(json.dumps(config))
        path = room / f"{rope['rope_type']}.gguf"
        run("export", "--gguf", path, "--dtype", "f32", one)
        reader = gguf.GGUFReader(path)
        kind, factor = (reader.get_field(f"llama.rope.scaling.{k}") for k in ("type", "factor"))
        if rope == usual:
            factors, = (t.data for t in reader.tensors if t.name == "rope_freqs.weight")
            check_factors(factors, config["rope_parameters"], 8)
            assert kind is None and max(factors) > 1
        else:
            assert (kind.contents(), factor.contents()) == (rope["rope_type"], 4.0)
        assert losses(path, tokens_of("llama3")) == losses(one, tokens_of("llama3")), rope
    print("positions: linear, yarn and Llama 3.1's, to the bit")


cases = {name: lambda name=name: check_family(name) for name in families}
cases["few_bits"] = check_few_bits
cases["positions"] = check_positions
cases["tokenizers"] = check_tokenizers


def main():
    asked = sys.argv[1:] or list(cases)
    passed = failed = 0
    for name in asked:
        try:
            cases[name]()
            passed += 1
        except AssertionError as e:
            failed += 1
            print(f"{name}: failed: {e!r}"[:2000])
            import traceback
            traceback.print_exc()
    if os.environ.get("KEEP"):
        print(room)
    else:
        shutil.rmtree(room)
    print(f"{passed} passed, {failed} failed, 0 skipped")
    return failed > 0


sys.exit(main())
