"""A loss function of JAX, traced once, becomes a Graph: its jaxpr is walked equation by equation. What depends on
neither parameters nor batch is computed here; calls are taken apart; loops of known length are repeated; what the
format lacks but can be said in its ops is traced again as those (rewrites.py)."""
import os
import sysconfig

import jax
import jax.extend.core as jex
import numpy as np

from .graph import Graph, Value, batch_dimensions
from .rewrites import REWRITES
from .rules import RULES, UNSIGNED

FOLD = 1 << 22  # elements: a result that is known and no larger is computed here
REPEAT = 256  # steps of a loop that are written one after another
ALIASES = ("copy", "copy_p", "optimization_barrier", "sharding_constraint", "name", "device_put", "pvary", "reshard")
CALLS = {"jit": "jaxpr", "pjit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr", "remat": "jaxpr",
         "remat2": "jaxpr", "checkpoint": "jaxpr", "custom_vmap_call": "call"}
OWN_DERIVATIVE = {"custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr",
                  "custom_vjp_call_jaxpr": "fun_jaxpr"}
# Functions of JAX whose derivative is that of what they do.
PLAIN = ("softmax", "logaddexp", "_softmax")
LATER = {"while": "a loop whose length depends on data", "cond": "a branch that depends on data",
         "rng_bit_generator": "random numbers of a key that is an input"}
LIBRARIES = tuple(os.path.join(sysconfig.get_paths()[key], name, "") for key in ("purelib", "platlib")
                  for name in ("jax", "jaxlib", "flax", "optax", "haiku", "equinox", "einops", "tessera"))
LIBRARIES += (os.path.join(sysconfig.get_paths()["stdlib"], ""), os.path.join(os.path.dirname(__file__), ""))


# -- where the user wrote it

def _users(path):
    return not path.startswith("<") and (not path.startswith(LIBRARIES) or
                                         "site-packages" in path and not path.startswith(LIBRARIES[:-2]))


def place(equation):
    """Returns "file:line (function)" of the user's code that an equation comes from, or ""."""
    frames = getattr(getattr(equation.source_info, "traceback", None), "frames", [])
    for frame in frames:
        if _users(frame.file_name):
            path = os.path.relpath(frame.file_name)
            path = frame.file_name if path.startswith("..") else path
            return f"{path}:{frame.line_num} ({frame.function_name.split('<locals>.')[-1]})"
    return ""


def _inside_library(jaxpr):
    said = getattr(getattr(jaxpr, "debug_info", None), "func_src_info", None) or ""
    return " at " in said and not _users(said.split(" at ", 1)[1].rsplit(":", 1)[0])


# -- the walk. A variable's content is a Value, or an array where it is known

def _is_key(dtype):
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _shape(variable):
    """Keys are two whole numbers; those without a sign are int32 of the same bits."""
    shape, dtype = tuple(variable.aval.shape), variable.aval.dtype
    if _is_key(dtype):
        return (*shape, 2), "int32"
    return shape, "int32" if dtype == np.uint32 else str(dtype)


def _known(content):
    return not isinstance(content, Value)


def _lift(graph, content):
    if not _known(content):
        return content
    content = np.asarray(jax.random.key_data(content)) if _is_key(content.dtype) else content
    return graph.const(content.view(np.int32) if content.dtype == np.uint32 else content)


def _unsigned(name, variables):
    """What is done to numbers without a sign that would have another result with one; "": nothing."""
    kinds = [v.aval.dtype for v in variables]
    if any(_is_key(k) and str(k) != "key<fry>" for k in kinds):
        return "random numbers that are not threefry's"
    keys = any(map(_is_key, kinds)) and not name.startswith("random_")
    return f"{name} of {'keys' if keys else 'uint32'}" if keys or np.dtype("uint32") in kinds and name not in UNSIGNED \
        else ""


def _array(result):
    return result if _is_key(result.dtype) else np.asarray(result)


def _open(jaxpr):
    """Returns a jaxpr and its constants, whether they come together or not."""
    return (jaxpr.jaxpr, jaxpr.consts) if hasattr(jaxpr, "consts") else (jaxpr, ())


def _fold(equation, contents):
    free = [k for k, v in enumerate(equation.invars) if not isinstance(v, jex.Literal)]
    names = {equation.invars[k]: contents[k] for k in free}
    jaxpr = jex.Jaxpr((), list(names), equation.outvars, [equation])
    return [_array(r) for r in jex.jaxpr_as_fun(jex.ClosedJaxpr(jaxpr, ()))(*names.values())]


class Walk:
    def __init__(self, graph):
        self.graph = graph
        self.plain = False  # within a derivative of the user's, whose parts are not differentiated

    def run(self, jaxpr, contents, at=None, outer=""):
        """Returns the contents of a jaxpr's results. With `at`, that is where all of it was written; `outer` is where
        what does not know was written."""
        jaxpr, consts = _open(jaxpr)
        env = dict(zip(jaxpr.constvars, (_array(jax.numpy.asarray(c)) for c in consts)))
        env.update(zip(jaxpr.invars, contents))

        def read(v):
            return np.asarray(v.val, v.aval.dtype) if isinstance(v, jex.Literal) else env[v]
        for equation in jaxpr.eqns:
            here = at or place(equation) or outer
            results = self.equation(equation, [read(v) for v in equation.invars], here)
            env.update(zip(equation.outvars, results))
        return [read(v) for v in jaxpr.outvars]

    def equation(self, equation, contents, at):
        name, params = equation.primitive.name, equation.params
        self.graph.at = at
        size = sum(int(np.prod(v.aval.shape)) for v in equation.outvars)
        if all(map(_known, contents)) and size <= FOLD and not equation.effects:
            return _fold(equation, contents)
        if name in ALIASES:
            return contents
        if name in CALLS:
            inner = params[CALLS[name]]
            return self.run(inner, contents, at if _inside_library(_open(inner)[0]) else None, at)
        if name in OWN_DERIVATIVE:
            return self.own_derivative(equation, contents, at)
        if name == "scan":
            return self.scan(equation, contents, at)
        if name == "cond" and _known(contents[0]):
            return self.run(params["branches"][int(contents[0])], contents[1:], outer=at)
        unsigned = _unsigned(name, [*equation.invars, *equation.outvars])
        if unsigned:
            return self.refuse(equation, contents, unsigned)
        if name in RULES:
            operands = [_lift(self.graph, c) for c in contents]
            made = RULES[name](self.graph, operands, params, *_shape(equation.outvars[0]))
            return made if isinstance(made, list) else [made]
        if name in REWRITES:
            function = REWRITES[name](params, equation)
            if function is not None:
                return self.trace(function, contents, equation.invars, at)
        why = LATER["rng_bit_generator"] if name.startswith(("random_", "threefry")) else f"the primitive {name}"
        return self.refuse(equation, contents, LATER.get(name, why))

    def refuse(self, equation, contents, why):
        of = [content for content in contents if not _known(content)]
        return [self.graph.refuse(why, *_shape(v), of) for v in equation.outvars]

    def trace(self, function, contents, like, at):
        """Returns the contents of what a function of JAX makes of contents."""
        spec = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in like]
        return self.run(jax.make_jaxpr(function)(*spec), contents, at)

    def own_derivative(self, equation, contents, at):
        """The derivative is the user's: y = f(stop x) + J(stop x) (x - stop x), in which the last factor is 0."""
        inner = equation.params[OWN_DERIVATIVE[equation.primitive.name]]
        jaxpr = _open(inner)[0]
        name = str(getattr(jaxpr.debug_info, "func_name", None) or "") if hasattr(jaxpr, "debug_info") else ""
        if self.plain or _inside_library(jaxpr) and name in PLAIN:
            return self.run(inner, contents, at)
        if _inside_library(jaxpr) and name == "relu":
            return self.trace(lambda x: jax.lax.select(x > 0, x, jax.numpy.zeros_like(x)), contents[-1:],
                              equation.invars[-1:], at)
        spec = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.invars]
        real = [k for k, s in enumerate(spec) if s.dtype.kind == "f"]

        def function(*xs):
            bound = equation.primitive.get_bind_params(equation.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)
            made = equation.primitive.bind(*functions, *xs, **params)
            return made if equation.primitive.multiple_results else [made]

        def both(xs, changes):
            def of_real(*some):
                return function(*[some[real.index(k)] if k in real else x for k, x in enumerate(xs)])
            some = [xs[k] for k in real]
            if equation.primitive.name == "custom_jvp_call":
                made, moved = jax.jvp(of_real, some, changes)
            else:
                made, back = jax.vjp(of_real, *some)
                moved = jax.linear_transpose(lambda *d: back(list(d)), *made)(tuple(changes))
            return [d for y, d in zip(made, moved) if y.dtype.kind == "f"]
        try:
            traced = jax.make_jaxpr(both)(spec, [spec[k] for k in real])
        except Exception as error:  # of the user's rule, or of JAX: what is not linear cannot be transposed
            why = f"the derivative of {name or 'a function'} of its own ({error})"
            return self.refuse(equation, contents, why.split("\n")[0])
        still, changes = [], []
        for content, s in zip(contents, spec):
            x = _lift(self.graph, content)
            still.append(self.graph.map("stop", [x], x.shape) if s.dtype.kind == "f" else x)
            if s.dtype.kind == "f":
                change = self.graph.map("sub", [x, still[-1]], x.shape)  # of what is infinite it would be nan
                zero = self.graph.const(np.zeros((), x.dtype))
                finite = self.graph.map("is_finite", [still[-1]], x.shape)
                changes.append(self.graph.map("select", [finite, change, zero], x.shape))
        self.plain = True
        made, moved = self.run(inner, still, at), iter(self.run(traced, still + changes, at))
        self.plain = False
        made = [_lift(self.graph, y) for y in made]
        return [self.graph.map("add", [y, _lift(self.graph, next(moved))], y.shape) if y.dtype == "float32" else y
                for y in made]

    def scan(self, equation, contents, at):
        params, graph = equation.params, self.graph
        length, consts, carry = params["length"], params["num_consts"], params["num_carry"]
        if length > REPEAT:
            return self.refuse(equation, contents, f"a loop of {length} steps, expected at most {REPEAT}")
        fixed, carried, along = contents[:consts], contents[consts:consts + carry], contents[consts + carry:]
        kept = [[None] * length for _ in equation.outvars[carry:]]
        for t in reversed(range(length)) if params["reverse"] else range(length):
            graph.at = at
            step = [x[t] if _known(x) else graph.reshape(graph.part(x, 0, t, t + 1), x.shape[1:]) for x in along]
            made = self.run(params["jaxpr"], [*fixed, *carried, *step], outer=at)
            carried = made[:carry]
            for k, y in enumerate(made[carry:]):
                kept[k][t] = y
        graph.at = at
        return carried + [np.stack(ys) if all(map(_known, ys)) else graph.concat(
            [graph.reshape(y, (1, *y.shape)) for y in (_lift(graph, y) for y in ys)], 0) for ys in kept]


# -- trees

def _key(key):
    return str(next((getattr(key, a) for a in ("key", "idx", "name") if hasattr(key, a)), key))


def names(tree, root):
    """Returns [(name, leaf)] of a tree: its keys with dots between; `root` names a tree that is a leaf."""
    leaves = jax.tree_util.tree_flatten_with_path(tree)[0]
    return [(".".join(map(_key, path)) or root, leaf) for path, leaf in leaves]


def structure(tree, root, path=()):
    """Returns the containers of a tree as graph.json describes them."""
    if tree is None:
        return None
    members = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is not tree)[0]
    if len(members) == 1 and not members[0][0]:
        return ".".join(path) or root
    inner = [(_key(keys[0]), structure(member, root, (*path, _key(keys[0])))) for keys, member in members]
    if isinstance(tree, list) or isinstance(tree, tuple) and not hasattr(tree, "_fields"):
        return ["list" if isinstance(tree, list) else "tuple", [member for _, member in inner]]
    return ["dict", [list(pair) for pair in inner]]


def like(tree, weights, root="param"):
    leaves = []
    for name, leaf in names(tree, root):
        if name not in weights or weights[name].shape != np.shape(leaf):
            met = list(weights[name].shape) if name in weights else "nothing"
            raise ValueError(f"{name}: met {met}, expected shape {list(np.shape(leaf))}")
        leaves.append(weights[name].astype(np.asarray(leaf).dtype))
    return jax.tree_util.tree_unflatten(jax.tree_util.tree_structure(tree), leaves)


# -- export

def _more_and_state(made, state):
    """Returns what a loss with a state has beside it."""
    before = jax.tree_util.tree_map(np.shape, state)
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], dict)
            and jax.tree_util.tree_structure(made[1]) == jax.tree_util.tree_structure(state)
            and jax.tree_util.tree_map(np.shape, made[1]) == before):
        raise ValueError("with a state the function returns (loss, ({name: value}, state)), the state in the structure "
                         f"and shapes that it came in, which are {before}")
    return made


def export(loss_fn, params, batch, to, batched, state, key):
    loss_fn = getattr(loss_fn, "__wrapped__", loss_fn) if type(loss_fn).__name__ == "PjitFunction" else loss_fn
    weights = [(name, np.asarray(leaf)) for name, leaf in names(params, "param")]
    inputs = [(name, np.asarray(leaf)) for name, leaf in names(batch, "batch")]
    for name, leaf in weights:
        if leaf.dtype != np.float32:
            raise ValueError(f"params: {name} is {leaf.dtype}, expected float32 (what is not trained is no parameter; "
                             "a run trains in bf16 by its own configuration)")
    typed = key is not None and _is_key(jax.numpy.asarray(key).dtype)
    drawn = [] if key is None else [("key", np.asarray(jax.random.key_data(key) if typed else key))]
    if drawn and (drawn[0][1].dtype != np.uint32 or drawn[0][1].shape != (2,) or "key" in dict(inputs)):
        raise ValueError("key: expected one of jax.random, and none of that name in the batch")
    outputs, kept = [], [(name, np.asarray(leaf)) for name, leaf in names(state, "state")]

    def whole(params, batch, key, state):
        key = [jax.random.wrap_key_data(key) if typed else key] if drawn else []
        made = loss_fn(params, batch, *([] if state is None else [state]), *key)
        loss, more = made if isinstance(made, tuple) and len(made) == 2 else (made, {})
        if state is not None:
            more, state = _more_and_state(more, state)
        outputs[:] = more
        return loss, (more, state)
    params, batch, key, state = (jax.tree_util.tree_map(jax.numpy.asarray, tree) for tree in (
        params, batch, drawn[0][1] if drawn else None, state))
    traced = jax.make_jaxpr(whole)(params, batch, key, state)
    loss = traced.out_avals[0]
    if len(traced.out_avals) != 1 + len(outputs) + len(kept) or loss.shape != () or loss.dtype != np.float32:
        raise ValueError(f"the loss is {loss.dtype} of shape {list(loss.shape)}, expected float32 of shape [], "
                         "alone or as (loss, {name: value})")
    graph = Graph(f"jax {jax.__version__}")
    counts = batch_dimensions(inputs, batched)
    leaves = [graph.leaf("param", name, leaf.shape, leaf.dtype) for name, leaf in weights]
    given = [graph.leaf("input", name, leaf.shape, leaf.dtype, counts.get(name)) for name, leaf in inputs + drawn]
    graph.drawn = {name for name, _ in drawn}
    leaves += [graph.cast(v, "int32") if v.dtype == "uint32" else v for v in given]
    leaves += [graph.cast(graph.leaf("state", name, leaf.shape, "float32"), leaf.dtype) for name, leaf in kept]
    made = [_lift(graph, content) for content in Walk(graph).run(traced, leaves)]
    graph.outputs = dict(zip(["loss", *sorted(outputs)], made))
    graph.updates = {name: graph.cast(v, "float32") for (name, _), v in zip(kept, made[1 + len(outputs):])}
    graph.tree = structure(params, "param")
    graph.read()  # what is refused is said before anything runs
    with jax.default_matmul_precision("float32"):
        (loss, _), gradients = jax.jit(jax.value_and_grad(whole, has_aux=True))(params, batch, key, state)
    norms = {name: float(np.linalg.norm(np.asarray(g, np.float64).ravel())) for name, g in names(gradients, "param")}
    check = {"loss": float(loss), "grad_norm": float(np.sqrt(sum(n * n for n in norms.values()))), "gradients": norms}
    if not np.isfinite([check["loss"], check["grad_norm"]]).all():
        raise ValueError(f"of this batch the loss is {check['loss']} and the gradients' norm {check['grad_norm']}, "
                         "expected finite ones")
    states = {f"state:{name}": leaf.astype(np.float32) for name, leaf in kept}
    batch = {name: leaf.view(np.int32) if leaf.dtype == np.uint32 else leaf for name, leaf in inputs + drawn}
    graph.write(to, {**dict(weights), **states}, check, batch)
