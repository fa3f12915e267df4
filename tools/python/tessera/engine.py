"""The library by ctypes: its functions, structs and constants, as its own headers declare them.

    from tessera import engine as t
    t.start()                                           # tess_start; what is left out is zeros
    g = t.graph_new()
    x, y = t.input(g, "x", 16, 32), t.input(g, "y", 16, 32)
    table = t.param(g, "table", 128, 48, t.init(t.INIT_NORMAL, 0.1))
    s = t.step_new(t.cross_entropy(t.embedding(x, table), table, None, y), train=True, optimizer=t.adamw())
    t.graph_init(g, 1)
    t.step_feed(s, x, ids), t.step_feed(s, y, next)     # arrays of numpy
    print(t.step_run(s, step=0, lr=1e-2).loss)          # what a function stores is returned; a failure is an Error

Names are those of C without tess_ or TESS_. Members of a struct that a function takes may stand as keywords. What is
stored through a pointer at the end is returned: alone, or in a tuple. installed.py says which library it is.
help(t.step_new) is its comment."""
import atexit
import ctypes
import os
import re

import numpy as np

from . import installed

SCALARS = {"void": None, "bool": ctypes.c_bool, "char": ctypes.c_char, "int": ctypes.c_int, "float": ctypes.c_float,
           "double": ctypes.c_double, "unsigned": ctypes.c_uint, "size_t": ctypes.c_size_t,
           "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64, "int32_t": ctypes.c_int32,
           "uint32_t": ctypes.c_uint32, "uint16_t": ctypes.c_uint16, "uint8_t": ctypes.c_uint8}


class Error(RuntimeError):
    """What the library says of a call that failed; `status` is 1 for a failure, 2 for something wrong."""

    def __init__(self, status):
        super().__init__(_library.tess_error_text().decode())
        self.status = status


class Pointer(ctypes.c_void_p):
    """Points to what the library owns, by the name of its type."""


class Struct(ctypes.Structure):
    def __repr__(self):
        return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name, *_ in self._fields_)})"


def _open():
    path = installed.library()
    if not path:
        raise OSError(installed.missing())
    try:
        return ctypes.CDLL(path, ctypes.RTLD_GLOBAL)  # MPI's parts look for its functions
    except OSError as error:
        lacks = re.search(r"undefined symbol: (\w+)", str(error))
        why = f"neither it nor what it loads has {lacks[1]}" if lacks else str(error).removeprefix(f"{path}: ")
        raise OSError(f"{path}: {why} ({installed.HINT})") from None


def _symbol(find, name):
    try:
        return find(name)
    except (AttributeError, ValueError):
        raise OSError(f"{_library._name}: lacks {name}: it is no library of Tessera, or an older one "
                      f"({installed.HINT})") from None


# -- the headers

class Headers:
    """Types, constants and functions of C's declarations, as regular as the library's are."""

    def __init__(self, text):
        self.types, self.constants, self.functions, self.statuses = dict(SCALARS), {}, {}, set()
        self.comments = {name: " ".join(re.sub(r"\n\s*\*?", " ", comment).split()) for comment, name in re.findall(
            r"/\*((?:[^*]|\*(?!/))*)\*/\s*\n[\w *]*?\b(tess_\w+)\(", text)}
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.S)
        self.constants.update((n, int(v)) for n, v in re.findall(r"#define (TESS_\w+) +(\d+)\n", text))
        text = re.sub(r"^#(?:[^\n]*\\\n)*[^\n]*$", "", text, flags=re.M)
        text = re.sub(r'extern "C" \{|TESS_NODISCARD|TESS_PRINTF\([^)]*\)', "", text)
        self.types.update((name, type(name, (Pointer,), {})) for name in re.findall(r"\bstruct (\w+)\s*\*", text))
        text = re.sub(r"\bstruct (?=\w+\s*\*)", "", text)
        for name, members in re.findall(r"\benum(?: (\w+))?\s*\{([^}]*)\}", text):
            self.enum(name, members)
        for name in re.findall(r"typedef struct (\w+) \1;", text):
            self.types[name] = type(name, (Pointer,), {})
        todo = re.findall(r"typedef struct (\w+)\s*\{([^{}]*)\}\s*\1;", text)
        while todo:  # some hold others that come later
            left = [(name, members) for name, members in todo if not self.struct(name, members)]
            if len(left) == len(todo):  # functions and unions are for C
                self.types.update((name, type(name, (Pointer,), {})) for name, _ in left)
                break
            todo = left
        for result, name, parameters in re.findall(r"^([\w *]+?\**)\b(tess_\w+)\(([^()]*)\)\s*;", text, flags=re.M):
            self.function(result.strip(), name, parameters)

    def enum(self, name, members):
        value = -1
        for member in filter(None, map(str.strip, members.split(","))):
            key, _, said = map(str.strip, member.partition("="))
            value = eval(said, {}, self.constants) if said else value + 1  # sums and shifts of numbers and members
            self.constants[key] = value
        if name:
            self.types[name] = ctypes.c_int

    def named(self, text):
        """Returns the type of a declaration and its name, or raises KeyError for what Python has no use for."""
        text = re.sub(r"\bconst\b", "", text).strip()
        base, stars, name, size = re.fullmatch(r"(\w+)\s*([*\s]*)(\w*)\s*((?:\[[^\]]*\])*)", text).groups()
        depth, kind = stars.count("*"), self.types[base]
        if depth and kind is not None and issubclass(kind, Pointer):
            depth -= 1
        elif depth and kind is None:
            depth, kind = depth - 1, ctypes.c_void_p
        elif depth and kind is ctypes.c_char:
            depth, kind = depth - 1, ctypes.c_char_p
        for _ in range(depth):
            kind = ctypes.POINTER(kind)
        for length in re.findall(r"\[(?:static )?([^\]]*)\]", size)[::-1]:
            kind = kind * eval(length, {}, self.constants)
        return kind, name

    def struct(self, name, members):
        fields = []
        try:
            for member in filter(None, map(str.strip, members.split(";"))):
                first, *others = member.split(",")
                base = re.match(r"(?:const )?\w+", first)[0]
                fields += [self.named(text)[::-1] for text in [first, *(f"{base} {other}" for other in others)]]
        except (AttributeError, KeyError):
            return False
        self.types[name] = type(name, (Struct,), {"_fields_": fields})
        return True

    def function(self, result, name, parameters):
        try:
            kinds = [] if parameters.strip() == "void" else [
                (self.named(p)[0], "const" in p) for p in parameters.split(",")]
            self.functions[name] = (self.named(f"{result} result")[0], kinds, result == "tess_status")
        except (AttributeError, KeyError):
            pass


# -- calls

def _filled(kind, values, kept):
    """Returns a struct of a dict, whose other members are zeros; what it points to is added to `kept`."""
    made, kinds = kind(), dict(kind._fields_)
    for name, v in values.items():
        if isinstance(v, dict):
            v = _filled(kinds[name], v, kept)
        elif isinstance(v, str):
            v = v.encode()
        elif isinstance(v, (list, tuple)):
            v = kinds[name](*v)
        kept.append(v)
        setattr(made, name, v)
    return made


class Function:
    def __init__(self, name, result, parameters, checked):
        self.call = _symbol(_library.__getitem__, name)
        self.__name__, self.__doc__ = name, _headers.comments.get(name)
        self.call.restype, self.call.argtypes = result, [kind for kind, _ in parameters]
        self.parameters, self.checked = parameters, checked

    def __call__(self, *given, **members):
        given, kept, stored, passed = list(given), [], [], []
        for kind, const in self.parameters:
            array = issubclass(kind, ctypes.Array)
            inner = kind._type_ if array or hasattr(kind, "_type_") and not isinstance(kind._type_, str) else None
            struct = kind if issubclass(kind, Struct) else inner if const else None
            struct = struct if struct and issubclass(struct, Struct) else None
            if struct and members and set(members) <= {name for name, _ in struct._fields_}:
                passed.append(_filled(struct, members, kept))
                members = {}
            elif struct and given and isinstance(given[0], dict):
                passed.append(_filled(struct, given.pop(0), kept))
            elif struct and (not given or given[0] is None and kind is struct):
                passed.append(struct() if kind is struct else None)
                del given[:1]
            elif inner and not const and not (given and _fits(given[0], inner, kind)):
                stored.append(kind() if array else inner())
                passed.append(stored[-1] if array else ctypes.byref(stored[-1]))
            elif not given:
                raise TypeError(f"{self.__name__} takes {len(self.parameters)} arguments")
            else:
                passed.append(_argument(given.pop(0), kind, inner))
        if given or members:
            raise TypeError(f"{self.__name__}: {given or list(members)} are not taken")
        made = self.call(*passed)
        if self.checked and made:
            raise Error(made)
        out = [] if self.checked or self.call.restype is None else [_plain(made)]
        out += [_plain(s) for s in stored]
        return out[0] if len(out) == 1 else tuple(out) if out else None


def _fits(v, inner, kind):
    return v is None or isinstance(v, (inner, np.ndarray, kind)) or type(v).__name__ == "CArgObject"


def _argument(v, kind, inner):
    if isinstance(v, str):
        return v.encode()
    if isinstance(v, np.ndarray) and inner:
        if v.dtype != np.dtype(inner) or not v.flags.c_contiguous:
            raise TypeError(f"an array of {v.dtype}, expected a contiguous one of {np.dtype(inner)}")
        return v.ctypes.data_as(kind)
    return ctypes.byref(v) if isinstance(v, Struct) and inner else v


def _plain(v):
    """Returns what Python has for a result: a number, text, None for NULL, or a struct."""
    if isinstance(v, bytes):
        return v.decode()
    if isinstance(v, Pointer):
        return v if v.value else None
    if isinstance(v, ctypes.Array):
        return list(v)
    return v.value if isinstance(v, ctypes._SimpleCData) else v


def step_feed(s, input, values):
    """Feeds whole numbers for the next run; tess_step_feed_values looks at how many they are."""
    values = np.ascontiguousarray(values, np.int32)
    __getattr__("step_feed_values")(s, input, values, values.size)


_library = _headers = None


def _load():
    global _library, _headers
    if _headers is None:
        _library = _open()
        _symbol(_library.__getattr__, "tess_error_text").restype = ctypes.c_char_p
        text = _symbol(lambda name: ctypes.c_char.in_dll(_library, name), "tess_headers")
        _headers = Headers(ctypes.string_at(ctypes.addressof(text)).decode())
        if __getattr__("ranks_join")() is None:
            atexit.register(__getattr__("ranks_leave"))


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    _load()
    full = f"tess_{name}"
    if full in _headers.functions:
        made = Function(full, *_headers.functions[full])
    elif full in _headers.types:
        made = _headers.types[full]
    elif f"TESS_{name}" in _headers.constants:
        made = _headers.constants[f"TESS_{name}"]
    else:
        raise AttributeError(f"the library has no {full}")
    globals()[name] = made
    return made
