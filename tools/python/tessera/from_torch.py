"""A module of PyTorch, whose forward returns the loss, becomes a Graph: torch.export writes its ops down, torch's own
tables take those apart for which there is no rule (torch_rules.py), and what depends on neither parameters nor batch
is computed here."""
import collections.abc
import contextlib
import functools
import inspect
import io
import logging
import os
import re
import sysconfig
import unittest.mock
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils import _pytree

from .graph import Graph, Refused, Value, batch_dimensions
from .torch_rules import RANDOM, RULES, least_dropped

KEY = np.array([0, 1], np.uint32)  # of the dropouts in the batch that "tessera check" compares
FOLD = 1 << 22  # elements: a result that is known and no larger is computed here
PASSED = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range",
          "sym_constrain_range_for_size")
NEVER, STEPS = -1e30, 1024  # of ctc_loss: the log of what cannot be; of a sequence that is written out
DRAWN = ("bernoulli", "rand", "rand_like", "randn", "randn_like", "uniform", "normal", "exponential")
EMPTY = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")
RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")  # random by their dropout alone, which has a name of its own
CALLS = ("wrap_with_set_grad_enabled", "tag_activation_checkpoint", "wrap")  # each calls a part of the program
INSIDE = tuple(os.path.join(path, "") for path in (os.path.dirname(torch.__file__), os.path.dirname(__file__)))
SMALLER = {"int64": "int32"}


# -- where the user wrote it

def _place(frames):
    """Returns "file:line (function)" of the innermost frame, of (path, line, function), that is the user's."""
    library = os.path.join(sysconfig.get_paths()["stdlib"], "")
    for path, line, function in reversed(list(frames)):
        inside = path.startswith(library) and "site-packages" not in path
        if not path.startswith(("<", *INSIDE)) and not inside:
            short = os.path.relpath(path)
            return f"{path if short.startswith('..') else short}:{line} ({function.split('<locals>.')[-1]})"
    return ""


def place(text):
    return _place(re.findall(r'File "([^"]+)", line (\d+), in (\S+)', text or ""))


def _raised(error):
    frames = []
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            code = trace.tb_frame.f_code
            frames.append((code.co_filename, trace.tb_lineno, code.co_name))
            trace = trace.tb_next
        error = error.__cause__
    return _place(frames)


# -- the walk. What a node made is a Value, a tensor where it is known, or what Python has

def _name(target):
    """Returns the name of an op without namespace and overload, or that of a function."""
    schema = getattr(target, "_schema", None)
    return schema.name.split("::")[-1] if schema else getattr(target, "__name__", str(target))


class Out:
    def __init__(self, tensor):
        dtype = str(tensor.dtype).removeprefix("torch.")
        self.shape, self.dtype = tuple(map(int, tensor.shape)), SMALLER.get(dtype, dtype)


def _out(made):
    return [_out(m) for m in made] if isinstance(made, (list, tuple)) else Out(made) if isinstance(
        made, torch.Tensor) else None


def array(tensor):
    made = tensor.detach().cpu().numpy() if tensor.dtype != torch.bfloat16 else tensor
    if tensor.dtype == torch.int64:
        if made.size and not (-2**31 <= made.min() and made.max() < 2**31):
            raise ValueError(f"a whole number of {made.max()}, expected 32 bits")
        made = made.astype(np.int32)
    return made


def lift(graph, content):
    return graph.const(array(content)) if isinstance(content, torch.Tensor) else content


class Walk:
    def __init__(self, graph):
        self.graph = graph

    def run(self, module, contents, outer="", still=False):
        """Returns what a graph of torch makes of the contents; with `still` no gradient passes."""
        env, given = {}, iter(contents)
        for node in module.graph.nodes:
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":
                env[node] = getattr(module, node.target)
            elif node.op == "output":
                return torch.fx.map_arg(node.args[0], lambda n: env[n])
            else:
                self.graph.at = place(node.meta.get("stack_trace")) or outer
                args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: env[n])
                made = self.node(node, args, kwargs)
                env[node] = _stopped(self.graph, made) if still else made

    def node(self, node, args, kwargs):
        leaves = _pytree.tree_leaves((args, kwargs))
        target, graph = node.target, self.graph
        name = _name(args[1] if getattr(target, "__name__", "") == "with_effects" else target)
        if name in PASSED:
            return None
        if name in CALLS:
            at = next(k for k, a in enumerate(args) if isinstance(a, torch.nn.Module))
            still = name == "wrap_with_set_grad_enabled" and args[0] is False
            return self.run(args[at], args[at + 1:], graph.at, still)
        values = [v for v in leaves if isinstance(v, Value)]
        shown = node.meta.get("val")
        drawn = torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())
        if drawn and name not in RULES:
            return self.refuse(f"random numbers ({name}){RANDOM}", shown, values)
        if name in EMPTY:  # whatever it holds is written over
            return torch.zeros(shown.shape, dtype=shown.dtype)
        size = sum(t.numel() for t in _pytree.tree_leaves(shown) if isinstance(t, torch.Tensor))
        if not values and not drawn and not any(isinstance(v, torch.nn.Module) for v in leaves) and size <= FOLD:
            with torch.no_grad():
                return target(*args, **kwargs)
        if name == "getitem":
            return args[0][args[1]]
        if name not in RULES:
            return self.refuse(name, shown, values)
        kwargs = {key: v for key, v in kwargs.items() if key not in ("device", "layout", "pin_memory", "memory_format",
                                                                     "non_blocking", "dtype")}
        args, kwargs = _pytree.tree_map(lambda v: lift(graph, v), (args, kwargs))
        return RULES[name](graph, _out(shown), *_plain(args), **_plain(kwargs))

    def refuse(self, why, shown, values):
        made = _pytree.tree_map(lambda t: self.graph.refuse(why, *vars(_out(t)).values(), values) if isinstance(
            t, torch.Tensor) else None, shown)
        return made if made is not None else self.graph.refuse(why, (), "float32", values)


def _plain(x):
    """Returns lists, tuples and dicts of Python in the place of torch's."""
    if isinstance(x, dict):
        return {key: _plain(v) for key, v in x.items()}
    return [_plain(v) for v in x] if isinstance(x, (list, tuple)) else x




def _stopped(graph, made):
    return _pytree.tree_map(lambda v: graph.map("stop", [v], v.shape) if isinstance(v, Value) and v.dtype == "float32"
                            else v, made)


# -- export

def _tables():
    """Returns torch's ways to take ops apart, but for those that have a rule."""
    def whole(op):
        drawn = torch.Tag.nondeterministic_seeded in op.tags and _name(op) not in RECURRENT
        return drawn or _name(op) in RULES
    table = torch.export.default_decompositions()
    for op in [op for op in table if whole(op)]:
        table.pop(op)
    taken = set(table)
    for op, way in torch._decomp.decomposition_table.items():
        if isinstance(op, torch._ops.OpOverload) and op.namespace == "aten" and op not in taken and not whole(op):
            table[op] = way
    return table


def _own_derivatives(loss):
    """Returns {Function: where it is applied} of derivatives that the program brings along."""
    seen, todo, found = set(), [loss.grad_fn], {}
    while todo:
        node = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        todo.extend(before for before, _ in node.next_functions)
        if isinstance(node, torch.autograd.function.BackwardCFunction):
            found[node._forward_cls] = place("".join(node.metadata.get("traceback_", []))) or "unknown line"
    return found


class _Context:
    """What a Function's forward is given in the place of torch's."""
    needs_input_grad = (True,) * 64

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *tensors: None


def _is_own(function, args):
    """Whether a Function's backward is something else than the derivative of its forward, where it is given these."""
    made, short = [], torch.autograd.function._is_setup_context_defined(function.setup_context)
    for plain in (False, True):
        leaves = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, torch.Tensor) else a
                  for a in args]
        given = [a.clone() if isinstance(a, torch.Tensor) else a for a in leaves]  # it may write to them
        torch.manual_seed(0)
        outs = function.forward(*([] if short else [_Context()]), *given) if plain else function.apply(*given)
        outs = [o for o in (outs if isinstance(outs, tuple) else (outs,)) if isinstance(o, torch.Tensor)]
        wanted = [a for a in leaves if isinstance(a, torch.Tensor) and a.requires_grad]
        made.append(([o.requires_grad for o in outs], []))
        live = [o for o in outs if o.requires_grad]
        for scale in (1, 1000) if live else ():  # it may be other than linear
            torch.manual_seed(1)
            gradients = torch.autograd.grad(live, wanted, [scale * torch.randn_like(o) for o in live],
                                            retain_graph=True, allow_unused=True)
            made[-1][1].extend(torch.zeros_like(a) if g is None else g for a, g in zip(wanted, gradients))
    return made[0][0] != made[1][0] or not all(
        (a - b).norm() <= 1e-5 * a.norm() for a, b in zip(made[0][1], made[1][1]))


def _refused_derivatives(loss, again):
    """Returns lines for derivatives that are not those of what is traced: the forward of each Function. `again` runs
    the program once more."""
    functions, own, kept = _own_derivatives(loss), set(), {}

    def compared(function, forward):
        @functools.wraps(forward)
        def compare(*args):
            if compare.within or function in own:
                return forward(*args)
            compare.within, given = True, args[0 if short else 1:]
            try:
                with torch.enable_grad(), torch.random.fork_rng(devices=[]):
                    if _is_own(function, given):
                        own.add(function)
            except Exception:  # of what is not done twice, or by a context of ours
                own.add(function)
            finally:
                compare.within = False
            return forward(*args)
        short = torch.autograd.function._is_setup_context_defined(function.setup_context)
        compare.within = False
        return compare
    for function in functions:
        kept[function] = function.__dict__.get("forward")
        function.forward = staticmethod(compared(function, function.forward))
    try:
        if functions:
            again()
    finally:
        for function, forward in kept.items():
            if forward is None:
                del function.forward
            else:
                function.forward = forward
    return [f"{functions[f]}: the derivative of {f.__name__} of its own, which is not that of its forward"
            for f in functions if f in own]


def _loss_of(made):
    """Returns loss and the rest of what a module returns: the loss, (loss, {name: value}), or a dict with a loss as
    those of transformers."""
    if isinstance(made, collections.abc.Mapping) and "loss" in made:
        return made["loss"], {name: v for name, v in made.items() if name != "loss"}
    return made if isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict) else (made, {})


def _measured(module, batch, trained):
    """Returns loss and gradients of the batch, and what is refused. The module's buffers stay as they are."""
    buffers = {name: b.clone() for name, b in module.named_buffers()}
    params = {name: p.detach().clone().requires_grad_(name in trained)
              for name, p in module.named_parameters()}

    def run():
        with torch.random.fork_rng(devices=[]):
            return _loss_of(torch.func.functional_call(module, (params, buffers), kwargs=batch))[0]
    with torch.autograd.set_detect_anomaly(True, check_nan=False):
        loss = run()
    if not isinstance(loss, torch.Tensor) or loss.shape != () or loss.dtype != torch.float32:
        met = f"{str(loss.dtype).removeprefix('torch.')} of shape {list(loss.shape)}" if isinstance(
            loss, torch.Tensor) else type(loss).__name__
        raise ValueError(f"the loss is {met}, expected float32 of shape [], alone or as (loss, {{name: value}})")
    if not loss.requires_grad:
        raise ValueError("no parameter reaches the loss")
    refused = _refused_derivatives(loss, run)
    wanted = [params[name] for name in trained]
    gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
    return loss.item(), {name: torch.zeros(()) if g is None else g for name, g in zip(trained, gradients)}, refused


def _threefry(key, counters):
    """The words of Threefry 2x32 of (0, counter), as graph-file.md has them."""
    x, y = np.zeros_like(counters) + key[0], counters + key[1]
    keys = (key[0], key[1], key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    for turn in range(5):
        for by in ((13, 15, 26, 6), (17, 29, 16, 24))[turn % 2]:
            x = x + y
            y = (y << np.uint32(by) | y >> np.uint32(32 - by)) ^ x
        x, y = x + keys[(turn + 1) % 3], y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


class _Replay(torch.fx.Interpreter):
    """Runs an exported program as it will be run, with the dropouts of a key."""
    draws = 0

    def run_node(self, node):
        self.shown = node.meta.get("val")
        return super().run_node(node)

    def words(self, shape):
        self.draws += 1
        key = [word[0] for word in _threefry(KEY, np.full(1, self.draws, np.uint32))]
        return [torch.from_numpy((word >> np.uint32(8)).astype(np.int32).reshape(tuple(shape)))
                for word in self.both(_threefry(key, np.arange(int(np.prod(shape)), dtype=np.uint32)))]

    @staticmethod
    def both(words):
        return words[0] ^ words[1], *words

    def uniform(self, shape, least=0):
        return (self.words(shape)[0] + least).float() * 2.0**-24

    def normal(self, shape):
        far, turn = self.words(shape)[1:]
        return (((far + 1).float() * 2.0**-24).log() * -2).sqrt() * (turn.float() * 2.0**-24 * (2 * np.pi)).cos()

    def stays(self, shape, p):
        """Returns ones, and zeros of a chance of p."""
        return (self.words(shape)[0] < least_dropped(p)).float()

    def dropped(self, x, p, shape=None):
        return x * (self.stays(x.shape if shape is None else shape, p) * np.float32(1 / (1 - p) if p < 1 else 0))

    def drawn(self, name, shape, *of):
        """Returns the numbers that the rule of that name draws."""
        if name == "bernoulli":
            p = of[-1] if of else 0.5
            return (self.uniform(shape) < p).float() if isinstance(p, torch.Tensor) else self.stays(shape, 1 - p)
        if name == "exponential":
            return self.uniform(shape, 1).log().neg().clamp_min(2.0**-25) / (of[0] if of else 1.0)
        if name in ("rand", "rand_like", "randn", "randn_like"):
            return self.uniform(shape) if name.startswith("rand_") or name == "rand" else self.normal(shape)
        first, second = (*of, *(0.0, 1.0)[len(of):])
        if name == "uniform":
            return self.uniform(shape) * (second - first) + first
        return self.normal(shape) * second + first

    def call_function(self, target, args, kwargs):
        name = _name(target).rstrip("_")
        if name in ("dropout", "feature_dropout") and args[1] and args[2]:
            x = args[0]
            return self.dropped(x, args[1], None if name == "dropout" else (*x.shape[:2], *(1 for _ in x.shape[2:])))
        if name in DRAWN:
            of = [v for v in (*args, *kwargs.values()) if isinstance(v, (int, float, torch.Tensor))]
            filled = _name(target).endswith("_")
            made = self.drawn(name, self.shown.shape, *of[filled:]).to(self.shown.dtype)
            return args[0].copy_(made) if filled else made
        if name == "scaled_dot_product_attention":
            return self.attention(*args, **kwargs)
        return super().call_function(target, args, kwargs)

    def attention(self, q, k, v, mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
        if not dropout_p:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, mask, 0.0, is_causal, scale=scale,
                                                                    enable_gqa=enable_gqa)
        if enable_gqa:
            k, v = (x.repeat_interleave(q.shape[-3] // k.shape[-3], -3) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * (scale or q.shape[-1] ** -0.5)
        if is_causal:
            mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return self.dropped(scores.softmax(-1), dropout_p) @ v


def _draw_otherwise(module):
    """Returns lines for what draws and has no rule."""
    found = [f"{place(node.meta.get('stack_trace')) or 'unknown line'}: random numbers ({_name(node.target)})"
             for node in module.graph.nodes if node.op == "call_function" and
             torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and
             _name(node.target).rstrip("_") not in ("dropout", "feature_dropout", *DRAWN)]
    return found or ["unknown line: a dropout of what has no gradient"]


def _replayed(program, batch, names):
    """Returns loss and gradients, and how many dropouts there were."""
    kinds, given, params, contents = torch.export.graph_signature.InputKind, iter(batch.values()), {}, []
    for spec in program.graph_signature.input_specs:
        held = program.state_dict.get(spec.target, program.constants.get(spec.target))
        if spec.kind == kinds.USER_INPUT:
            contents.append(next(given))
        elif spec.kind == kinds.PARAMETER and spec.target in names:
            name = names[spec.target]
            contents.append(params.setdefault(name, held.detach().clone().requires_grad_()))
        else:
            contents.append(held.detach().clone() if isinstance(held, torch.Tensor) else held)
    replay = _Replay(program.graph_module)
    made = _pytree.tree_leaves(replay.run(*contents))
    loss = made[[s.kind for s in program.graph_signature.output_specs].index(
        torch.export.graph_signature.OutputKind.USER_OUTPUT)]
    gradients = torch.autograd.grad(loss, list(params.values()), allow_unused=True)
    return loss.item(), {name: torch.zeros(()) if g is None else g for name, g in zip(params, gradients)}, replay.draws


@contextlib.contextmanager
def _quiet():
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(before)


def _detach(module):
    """Has what is made without gradients say so itself: newer versions take apart what it was made in."""
    for part in module.children():
        if isinstance(part, torch.fx.GraphModule):
            _detach(part)
    for node in module.graph.nodes:
        if node.op == "call_function" and _name(node.target) == "wrap_with_set_grad_enabled" and not node.args[0]:
            part = getattr(module, node.args[1].target)
            end = next(n for n in part.graph.nodes if n.op == "output")
            for made in end.all_input_nodes:
                with part.graph.inserting_before(end):
                    still = part.graph.call_function(torch.ops.aten.detach.default, (made,))
                still.meta = dict(made.meta)
                end.replace_input_with(made, still)
            part.recompile()


def _log_of_sum(x, dim):
    most = x.detach().amax(dim, keepdim=True)
    return ((x - most).exp().sum(dim, keepdim=True).log() + most).squeeze(dim)


def _ctc_loss(logs, targets, lengths, target_lengths, blank=0, reduction=1, zero_infinity=False):
    """torch.ctc_loss in other ops, which torch.export has none of: minus the log of the chance of all ways to say the
    targets, step by step over (samples, labels), where labels are the targets with blanks between."""
    single = logs.dim() == 2
    if single:
        logs, targets = logs[:, None], targets[None]
    elif targets.dim() == 1 and not isinstance(target_lengths, torch.Tensor):
        targets = torch.nn.utils.rnn.pad_sequence(targets.split(list(target_lengths)), True)
    if targets.dim() == 1 or len(logs) > STEPS:
        raise ValueError(f"ctc_loss of {len(logs)} steps, expected at most {STEPS}" if targets.dim() > 1 else
                         "ctc_loss of targets in a row, expected (samples, most targets)")
    lengths, target_lengths = (torch.as_tensor(v).reshape(-1) for v in (lengths, target_lengths))
    labels = torch.stack([torch.full_like(targets, blank), targets], 2).flatten(1)
    labels = F.pad(labels, (0, 1), value=blank).clamp(0, logs.shape[2] - 1)
    said, at = logs.gather(2, labels.expand(len(logs), -1, -1)), torch.arange(labels.shape[1])
    leap = (at % 2 == 1) & (labels != F.pad(labels, (2, -2), value=-1))  # over a blank between other labels
    leap, now = torch.where(leap, 0.0, NEVER), torch.where(at < 2, said[0], NEVER)
    for t in range(1, len(logs)):
        ways = [now, F.pad(now, (1, -1), value=NEVER), F.pad(now, (2, -2), value=NEVER) + leap]
        now = torch.where((t < lengths)[:, None], _log_of_sum(torch.stack(ways), 0) + said[t], now)
    left = 2 * target_lengths[:, None] - at  # 0 at the blank behind the last label
    made = -_log_of_sum(torch.where((left == 0) | (left == 1), now, NEVER), 1)
    made = torch.where(made > -NEVER / 2, 0.0 if zero_infinity else torch.inf, made)
    if reduction == 1:
        return (made / target_lengths.clamp_min(1)).mean()
    return made.sum() if reduction == 2 else made[0] if single else made


def _tensors(forward):
    """Returns a forward without what is no tensor in a dict that it returns, such as a model's cache."""
    @functools.wraps(forward)
    def cut(*args, **kwargs):
        made = forward(*args, **kwargs)
        return {name: v for name, v in made.items() if isinstance(v, torch.Tensor)} if isinstance(
            made, collections.abc.Mapping) else made
    return cut


def _exported(module, batch):
    patch = unittest.mock.patch.object
    try:
        with torch.random.fork_rng(devices=[]), patch(torch, "ctc_loss", _ctc_loss), patch(
                module, "forward", _tensors(module.forward)):
            program = torch.export.export(module, (), batch, strict=False)
            _detach(program.graph_module)
            return program, program.run_decompositions(_tables())
    except Exception as error:  # of torch: what it says in many lines, the first of them with the user's line
        said = f"{type(error).__name__}: {str(error).strip()}".splitlines()[0]
        if "DataDependent" in type(error).__name__ or "data-dependent" in said:
            said = "a branch or a number of Python that depends on data"
        called = str(error).partition("The following call raised this error:")[2]
        raise Refused(f"{place(called) or _raised(error) or 'unknown line'}: {said}") from error


def _contents(graph, exported, module, names, batch, counts):
    """Returns what the placeholders of an exported program hold, and the names of its parameters."""
    kinds, given, contents = torch.export.graph_signature.InputKind, iter(batch.items()), []
    moved = set(exported.graph_signature.buffers_to_mutate.values())
    for spec in exported.graph_signature.input_specs:
        if spec.kind == kinds.USER_INPUT:
            name, tensor = next(given)
            contents.append(graph.leaf("input", name, *vars(Out(tensor)).values(), counts.get(name)))
        elif spec.kind == kinds.PARAMETER and spec.target in names:
            name = names[spec.target]
            tensor = exported.state_dict[spec.target]
            contents.append(graph.leaves["param"].get(name) or graph.leaf("param", name, *vars(Out(tensor)).values()))
        elif spec.target in moved:
            tensor = exported.state_dict[spec.target]
            leaf = graph.leaf("state", spec.target, tensor.shape, "float32")  # a counter, too
            contents.append(graph.cast(leaf, Out(tensor).dtype))
        else:
            contents.append(exported.state_dict.get(spec.target, exported.constants.get(spec.target)))
    return contents


def _names(module):
    """Returns the name of each trained parameter, by each of the names that it has: tied ones have one."""
    first = {}
    for name, p in module.named_parameters(remove_duplicate=False):
        if p.requires_grad:
            first.setdefault(id(p), name)
    return {name: first[id(p)] for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad}


def export(module, batch, to, batched):
    takes = inspect.signature(module.forward).parameters
    order = [name for name in takes if name in batch]
    if any(p.kind == inspect.Parameter.VAR_KEYWORD for p in takes.values()):
        order += [name for name in batch if name not in takes]
    if len(order) < len(batch):
        raise ValueError(f"batch: {sorted(set(batch) - set(order))} are no arguments of forward")
    batch = {name: torch.as_tensor(batch[name]).detach() for name in order}
    names = _names(module)
    trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
    for name, p in trained.items():
        if p.dtype != torch.float32:
            raise ValueError(f"params: {name} is {str(p.dtype).removeprefix('torch.')}, expected float32 (a run trains "
                             "in bf16 by its own configuration)")
    counts = batch_dimensions(batch.items(), batched)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        loss, gradients, refused = _measured(module, batch, list(trained))
        written, exported = _exported(module, batch)
        graph = Graph(f"torch {torch.__version__}")
        contents = _contents(graph, exported, module, names, batch, counts)
        made = Walk(graph).run(exported.graph_module, contents)
        if graph.drawn:
            loss, gradients, draws = _replayed(written, batch, names)
    outputs, signature = [], exported.graph_signature
    for spec, content in zip(signature.output_specs, made):
        value = lift(graph, content)
        if spec.kind == torch.export.graph_signature.OutputKind.USER_OUTPUT:
            outputs.append(value)
        elif spec.target in graph.leaves["state"]:
            graph.updates[spec.target] = graph.cast(value, "float32")
    whole = _pytree.tree_unflatten(outputs, exported.call_spec.out_spec)
    loss_value, more = _loss_of(whole)
    graph.outputs = {"loss": loss_value, **more}
    try:
        graph.read()
    except Refused as error:
        refused += str(error).split("\n")
    if not refused and graph.drawn and draws != graph.draws:
        refused = _draw_otherwise(written.graph_module)
    if refused:
        raise Refused("\n".join(refused))
    norms = {name: g.double().norm().item() for name, g in gradients.items()}
    check = {"loss": loss, "grad_norm": float(np.sqrt(sum(n * n for n in norms.values()))), "gradients": norms}
    if not np.isfinite([loss, check["grad_norm"]]).all():
        raise ValueError(f"of this batch the loss is {loss} and the gradients' norm {check['grad_norm']}, expected "
                         "finite ones")
    weights = {name: array(p) for name, p in trained.items()}
    weights |= {f"state:{name}": array(exported.state_dict[name].float()) for name in graph.leaves["state"]}
    keys = {name: KEY.view(np.int32) for name in graph.drawn}
    graph.write(to, weights, check, {**{name: array(t) for name, t in batch.items()}, **keys})


def like(module, weights):
    """Returns a state_dict of the module with the weights and states of a directory."""
    names, made = _names(module), {}
    for name, tensor in module.state_dict().items():
        key = names.get(name, name)
        found = weights.get(key, weights.get(f"state:{key}"))
        if found is None and name in names or found is not None and found.shape != tuple(tensor.shape):
            met = "nothing" if found is None else list(found.shape)
            raise ValueError(f"{key}: met {met}, expected shape {list(tensor.shape)}")
        made[name] = tensor.clone() if found is None else torch.from_numpy(found.copy()).to(tensor.dtype)
    return made
