"""Files of an exported network: safetensors and the names of a tree's leaves."""
import json
import os

import numpy as np

KINDS = {"F32": "float32", "F16": "float16", "I32": "int32", "U32": "uint32", "BOOL": "bool"}
CODES = {dtype: code for code, dtype in KINDS.items()}


def write_whole(path, write):
    """Has write(file) fill a new file, which takes the place of path once it is whole."""
    half = f"{path}.new"
    try:
        with open(half, "wb") as file:
            write(file)
        os.replace(half, path)
    except BaseException:
        if os.path.exists(half):
            os.remove(half)
        raise


def save(path, tensors):
    """Writes a dict of arrays as safetensors."""
    header, at = {}, 0
    for name, array in tensors.items():
        header[name] = {"dtype": CODES[str(array.dtype)], "shape": list(array.shape),
                        "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def write(file):
        file.write(len(text).to_bytes(8, "little") + text)
        for array in tensors.values():
            file.write(np.ascontiguousarray(array).data)
    write_whole(path, write)


def read(path):
    """Returns the dict of arrays that a safetensors file holds."""
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        begin = file.tell()
        tensors = {}
        for name, said in header.items():
            if name == "__metadata__":
                continue
            if said["dtype"] not in (*KINDS, "BF16"):
                raise ValueError(f"{path}: {name} is {said['dtype']}, expected BF16 or one of {', '.join(KINDS)}")
            file.seek(begin + said["data_offsets"][0])
            raw = bytearray(file.read(said["data_offsets"][1] - said["data_offsets"][0]))
            if said["dtype"] == "BF16":  # numpy has none: they come as the float32 that they are the upper half of
                array = (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)
            else:
                array = np.frombuffer(raw, KINDS[said["dtype"]])
            tensors[name] = array.reshape(said["shape"])
    return tensors


def fill(tree, leaves):
    """Returns the containers that `tree` of graph.json describes, with leaves[name] in the place of each name."""
    if tree is None or isinstance(tree, str):
        return None if tree is None else leaves[tree]
    kind, members = tree
    if kind == "dict":
        return {key: fill(member, leaves) for key, member in members}
    filled = [fill(member, leaves) for member in members]
    return tuple(filled) if kind == "tuple" else filled
