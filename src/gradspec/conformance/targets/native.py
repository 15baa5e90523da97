"""Our own compiled CPU kernels, through the graphs that every user of gradspec builds.

``plain`` compiles the graph of the operator, of ``graph.jvp()``, of ``graph.vjp()`` or of the VJP of that, once for a
problem. Every other variant reaches other code: a maximum without its winners is another kernel, a derivative without
its value is planned otherwise, batching rewrites the graph, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from typing import Any
from zlib import crc32

import numpy as np

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.conformance.call import FLOATS, INPUTS, SELECTIONS, Array, Call, Problem, Results
from gradspec.conformance.checks.promises import of_the_specification
from gradspec.conformance.operators import GIVES_INDICES, OPERATORS, as_function
from gradspec.conformance.targets import NotOfferedError, Promise, Target, source
from gradspec.conformance.targets.source import assignments, imports, keywords
from gradspec.graph.graph import Graph
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType, type_of
from gradspec.ops.pointwise import leaky_relu
from gradspec.runtime.compiled import Compiled
from gradspec.runtime.run import compile
from gradspec.runtime.threads import set_num_threads
from gradspec.transforms import functions
from gradspec.transforms.trace import trace

MOST_RUNS = 256
INTEGER_MODES = ("value",)
TURNS = 2
"""Ways to the same kernels that one problem is tried in: building graphs takes longer than running them."""
FEW_SAMPLES = 8
"""More samples than this are not run one by one."""


class Native(Target):
    """gradspec's CPU kernels."""

    name = "native"
    repeatable = True
    fresh_results = True
    strict = True

    def __init__(self) -> None:
        self._runs = LRUCache[Compiled](MOST_RUNS)

    def versions(self) -> dict[str, str]:
        return {package: version(package) for package in ("gradspec", "numpy", "llvmlite")}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.dtype in FLOATS:
            return None
        if problem.op not in (*SELECTIONS, "max_unpool", "unfold", "fold"):
            return f"{problem.op} has no integers"
        return None if mode in INTEGER_MODES else "integers have no derivatives"

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        """Kernels of their own always; of the ways to the same kernels two, which differ from problem to problem."""
        first = crc32(repr((mode, sorted(problem.to_json().items()))).encode())
        ways = ways_to(problem)
        turns = {ways[(first + i) % len(ways)] for i in range(min(TURNS, len(ways)))}
        return (*other_kernels(problem, mode), *(way for way in ways if way in turns))

    def run(self, call: Call) -> Results:
        if call.variant == "eager":
            return _eager(call)
        if call.variant == "one_by_one":
            return self._one_by_one(call)
        run = self._compiled(call)
        outs = tuple(np.empty(v.shape, v.dtype.numpy) for v in run.plan.outputs) if call.variant == "out" else None
        return _named(call, _as_tuple(run(*given(call), out=_as_out(outs))))

    def run_into(self, call: Call, outs: Results) -> None:
        """The call with its results in the arrays of ``outs``."""
        if call.variant in ("eager", "one_by_one"):
            raise NotOfferedError(f"{call.variant} calls give arrays of their own")
        run = self._compiled(call)
        names = [None] * (len(run.plan.outputs) - len(names_of(call))) + list(names_of(call))
        run(*given(call), out=_as_out(tuple(None if name is None else outs.get(name) for name in names)))

    def set_threads(self, count: int) -> bool:
        set_num_threads(count)
        return True

    def reproducer(self, call: Call) -> str:
        return program(call)

    def promises(self) -> Sequence[Promise]:
        return of_the_specification(lambda op, arrays, attributes: OPERATORS[op](*arrays, **attributes))

    def _compiled(self, call: Call) -> Compiled:
        key = _key(call)
        run = self._runs.get(key)
        if run is None:
            run = compile(graph_of(call), backend="numpy" if call.variant == "numpy" else "cpu")
            self._runs.put(key, run)
        return run

    def _one_by_one(self, call: Call) -> Results:
        """Each index of the leading axis in a call of its own; sums over samples are left out."""
        parts = [self.run(replace(sample(call, i), variant="plain")) for i in range(samples(call.problem) or 0)]
        return {name: np.stack([part[name] for part in parts]) for name in parts[0] if not is_shared(name)}


def other_kernels(problem: Problem, mode: str) -> tuple[str, ...]:
    """Variants that are planned with other kernels."""
    if mode == "value":
        return ("without_indices",) if problem.op in GIVES_INDICES else ()
    if mode == "vjp" and problem.op in SELECTIONS:
        return "derivative_alone", "recorded"
    return ("derivative_alone",) if mode in ("jvp", "vjp") else ()


def ways_to(problem: Problem) -> tuple[str, ...]:
    """Variants that come to the same numbers by other ways: without a plan of one's own, into given arrays, …"""
    count = samples(problem)
    batches = () if count is None else ("batched", "one_by_one") if 0 < count <= FEW_SAMPLES else ("batched",)
    return ("eager", "out", "numpy", *batches)


# --- what is run ------------------------------------------------------------------------------------------------------


def operator(call: Call) -> Callable[..., Any]:
    """The operator as a function of the inputs that are there.

    Where winners are to be ``recorded``, a map follows that changes nothing but needs the value for its derivative, so
    that values and cotangents are made in steps apart, with a tape of the winners between them.
    """
    function = as_function(call.problem, **({"return_indices": True} if wants_indices(call) else {}))
    return (lambda x: leaky_relu(function(x), 1.0)) if call.variant == "recorded" else function


def wants_indices(call: Call) -> bool:
    return call.problem.op in GIVES_INDICES and call.mode == "value" and call.variant != "without_indices"


def graph_of(call: Call) -> Graph:
    value = _batched(call) if call.variant == "batched" else trace(operator(call), *_types(call))
    if call.mode == "value":
        return value
    if call.mode == "jvp":
        return _last(value.jvp(), 1) if call.variant == "derivative_alone" else value.jvp()
    pulled, count = value.vjp(), len(call.problem.differentiable)
    if call.mode == "vjp":
        return _last(pulled, count) if call.variant == "derivative_alone" else pulled
    return _last(pulled, count).vjp()


def _batched(call: Call) -> Graph:
    """The graph of one sample, batched."""
    one = sample(call, 0)
    return trace(operator(one), *_types(one)).batch(samples(call.problem) or 0, _axes(call))


def _axes(call: Call) -> list[int | None]:
    return [None if is_shared(name) else 0 for name in call.named()]


def _types(call: Call) -> list[TensorType]:
    return [type_of(array) for array in call.named().values()]


def _last(graph: Graph, count: int) -> Graph:
    """The graph with its last outputs alone: derivatives stand behind values."""
    return replace(graph, outputs=graph.outputs[-count:])


def given(call: Call) -> list[Array]:
    """The arrays in the order of the graph's inputs."""
    inputs = list(call.named().values())
    if call.mode == "jvp":
        return [*inputs, *call.directions]
    cotangent = [] if call.cotangent is None else [call.cotangent]
    return [*inputs, *cotangent, *(call.directions if call.mode == "second" else ())]


def names_of(call: Call) -> tuple[str, ...]:
    """The results that the graph has, the last of its outputs."""
    names = call.problem.results(call.mode)
    return names[:1] if call.mode == "value" and not wants_indices(call) else names


def _named(call: Call, outputs: Sequence[Array]) -> Results:
    names = names_of(call)
    return dict(zip(names, outputs[-len(names) :], strict=True))


def _eager(call: Call) -> Results:
    """Operators and derivatives of functions on arrays, without a graph in the caller's hands."""
    function, inputs = operator(call), tuple(call.named().values())
    if call.mode == "value":
        return _named(call, _as_tuple(function(*inputs)))
    if call.mode == "jvp":
        directions = iter(call.directions)
        tangents = tuple(None if name == "indices" else next(directions) for name in call.named())
        return _named(call, (functions.jvp(function, inputs, tangents)[1],))
    if call.mode == "vjp":
        return _named(call, _floats(functions.vjp(function, *inputs)[1](call.cotangent)))
    pulled = partial(_pulled, function, len(inputs))
    found = functions.vjp(pulled, *inputs, call.cotangent)[1](call.directions)
    return _named(call, _floats(found))


def _pulled(function: Callable[..., Any], count: int, *arguments: Any) -> tuple[Any, ...]:
    """The VJP as a function of the inputs and the cotangent."""
    return _floats(functions.vjp(function, *arguments[:count])[1](arguments[count]))


def _floats(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part for part in found if part is not None)


def _as_tuple(results: Any) -> tuple[Any, ...]:
    return results if isinstance(results, tuple) else (results,)


def _as_out(outs: tuple[Array | None, ...] | None) -> Any:
    return outs[0] if outs is not None and len(outs) == 1 else outs


def _key(call: Call) -> tuple[object, ...]:
    attributes = tuple(sorted((name, repr(value)) for name, value in call.problem.attributes.items()))
    kinds = tuple((name, array.shape, array.dtype) for name, array in call.named().items())
    variant = "plain" if call.variant == "out" else call.variant
    return call.problem.op, call.problem.rank, attributes, call.mode, variant, kinds


# --- samples ----------------------------------------------------------------------------------------------------------


def samples(problem: Problem) -> int | None:
    """How many indices the leading axis has; None where there is none."""
    shape = problem.shapes[0]
    own = 2 if problem.op == "fold" else problem.rank + (problem.op in ("conv", "conv_transpose", "unfold"))
    return shape[0] if shape is not None and len(shape) > own else None


def is_shared(name: str) -> bool:
    """Whether all samples share the array, or its gradient sums over them."""
    return name.endswith(("weight", "bias"))


def sample(call: Call, index: int) -> Call:
    """One index of the leading axis as a call."""
    names = INPUTS[call.problem.op]
    inputs = tuple(_part(name, array, index) for name, array in zip(names, call.inputs, strict=True))
    named = zip(call.problem.differentiable, call.directions, strict=False)
    directions = tuple(_part(name, array, index) for name, array in named)
    shapes = tuple(None if array is None else array.shape for array in inputs)
    return replace(
        call,
        problem=replace(call.problem, shapes=shapes),
        inputs=inputs,
        directions=directions,  # type: ignore[arg-type]
        cotangent=_part("g", call.cotangent, index),
        output=call.output[1:],
    )


def _part(name: str, array: Array | None, index: int) -> Array | None:
    if array is None or is_shared(name):
        return array
    return array[index] if len(array) else np.zeros(array.shape[1:], array.dtype)


# --- the reproducer ---------------------------------------------------------------------------------------------------


def program(call: Call) -> str:
    """The call as a user of gradspec writes it."""
    one_by_one = call.variant == "one_by_one"
    calls = _eager_lines(call) if one_by_one or call.variant == "eager" else _compiled_lines(call)
    if one_by_one:
        calls = [f"for i in range({samples(call.problem)}):", *(f"    {line}" for line in calls)]
    more = ["from dataclasses import replace"] if any("replace(" in line for line in calls) else []
    return "\n".join([*more, *imports(call, "import gradspec as gs"), "", *assignments(call), _function(call), *calls])


def _function(call: Call) -> str:
    names = ", ".join(call.named())
    rank = {"rank": call.problem.rank} if call.problem.op.startswith("global") else {}
    indices = {"return_indices": True} if wants_indices(call) else {}
    attributes = keywords({**rank, **call.problem.attributes, **indices})
    function = f"gs.{call.problem.op}({', '.join(part for part in (names, attributes) if part)})"
    return f"f = lambda {names}: {f'gs.leaky_relu({function}, 1.0)' if call.variant == 'recorded' else function}"


def _compiled_lines(call: Call) -> list[str]:
    """The steps of `graph_of` and of `Native.run`."""
    is_batched, derived = call.variant == "batched", {"value": "", "jvp": ".jvp()"}.get(call.mode, ".vjp()")
    types = ", ".join(f"gs.{kind}" for kind in _types(sample(call, 0) if is_batched else call))
    batched = f".batch({samples(call.problem)}, {_axes(call)})" if is_batched else ""
    lines = [f"graph = gs.trace(f, {types}){batched}{derived}"]
    count, values = 1 if call.mode == "jvp" else len(call.problem.differentiable), int(call.mode != "value")
    if call.mode == "second" or call.variant == "derivative_alone":
        again, values = (".vjp()", count) if call.mode == "second" else ("", 0)
        lines.append(f"graph = replace(graph, outputs=graph.outputs[-{count}:]){again}")
    lines.append("run = gs.compile(graph" + (', backend="numpy")' if call.variant == "numpy" else ")"))
    return [*lines, _printed(call, values)]


def _printed(call: Call, values: int) -> str:
    """The line that runs the compiled graph and prints its results without the values before them."""
    count = len(names_of(call))
    names = [*source.arrays(call)]
    if call.mode == "second":  # the cotangent stands before the directions in the graph, and after them here
        names = [*call.named(), "g", *(f"d{name}" for name in call.problem.differentiable)]
    outs = "[np.empty(v.shape, v.dtype.numpy) for v in run.plan.outputs]"
    out = f", out={outs}[0]" if values + count == 1 else f", out=tuple({outs})"
    ran = f"run({', '.join(names)}{out if call.variant == 'out' else ''})"
    return f"print({ran})" if values + count == 1 else f'print(*{ran}[-{count}:], sep="\\n")'


def _eager_lines(call: Call) -> list[str]:
    def spelled(name: str) -> str:
        return f"{name}[i]" if call.variant == "one_by_one" and not is_shared(name) else name

    inputs = ", ".join(map(spelled, call.named()))
    if call.mode == "value":
        return [f"print(f({inputs}))"]
    if call.mode == "jvp":
        tangents = "".join("None, " if name == "indices" else f"{spelled(f'd{name}')}, " for name in call.named())
        return [f"print(gs.jvp(f, ({inputs},), ({tangents}))[1])"]
    if call.mode == "vjp":
        return [f'print(*gs.vjp(f, {inputs})[1]({spelled("g")}), sep="\\n")']
    names, count = ", ".join(call.named()), len(call.problem.differentiable)
    directions = "".join(f"{spelled(f'd{name}')}, " for name in call.problem.differentiable)
    return [
        f"pulled = lambda {names}, g: gs.vjp(f, {names})[1](g)[:{count}]",
        f'print(*gs.vjp(pulled, {inputs}, {spelled("g")})[1](({directions})), sep="\\n")',
    ]
