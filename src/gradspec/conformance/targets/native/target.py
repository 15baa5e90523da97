"""Our own compiled CPU kernels, through the graphs that every user of gradspec builds.

``plain`` compiles the graph of the operator, of ``graph.jvp()``, of ``graph.vjp()`` or of the VJP of that, once for a
problem. Every other variant reaches other code: a maximum without its winners is another kernel, a derivative without
its value is planned otherwise, batching rewrites the graph, and so on. The lines that a reproducer prints, as a user of
gradspec writes them, are those that run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from zlib import crc32

import numpy as np

import gradspec.wiring  # noqa: F401  (what graphs can do)
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.geometry import OPERATORS, spelled
from gradspec.conformance.model.problem import (
    GIVES_INDICES,
    SELECTIONS,
    Array,
    Call,
    Problem,
    Results,
    Shape,
    why_unspecified,
)
from gradspec.conformance.model.target import ExpectedError, NotOfferedError
from gradspec.conformance.targets.layers import GRADSPEC as LAYER_FUNCTIONS
from gradspec.conformance.targets.layers import LAYERS, LayeredTarget
from gradspec.conformance.targets.program import (
    Code,
    ErrorRow,
    applied,
    as_tuple,
    assignments,
    evaluate,
    imports,
    scope_of,
)
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DTYPES, type_of
from gradspec.interop import compose
from gradspec.ops.pointwise import leaky_relu
from gradspec.runtime.compiled import Compiled, compile
from gradspec.runtime.threads import set_num_threads
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.transforms.functions import jvp, vjp
from gradspec.transforms.trace import trace

GRADSPEC = SimpleNamespace(
    **{**OPERATORS, **DTYPES, **LAYER_FUNCTIONS}, leaky_relu=leaky_relu, trace=trace, compile=compile, jvp=jvp, vjp=vjp
)
"""What of ``import gradspec as gs`` the programs use."""
MOST_RUNS = 256
FEW_SAMPLES = 8
"""More samples than this are not run one by one."""


class NativeTarget(LayeredTarget):
    """gradspec's CPU kernels."""

    name = "native"
    packages = ("gradspec", "numpy", "llvmlite")
    repeatable = True
    fresh_results = True
    strict = True

    def __init__(self) -> None:
        super().__init__()
        self._scopes = LRUCache[dict[str, Any]](MOST_RUNS)

    def refusal(self, problem: Problem, mode: str) -> str | None:
        return why_unspecified(problem, mode)

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        """Kernels of their own, and one of the ways to the same kernels, which differs from problem to problem:
        building graphs takes longer than running them."""
        told = {**encode(problem), "attributes": dict(problem.attributes)}
        ways = ways_to(problem)
        way = ways[crc32(repr((mode, sorted(told.items()))).encode()) % len(ways)]
        return (*other_kernels(problem, mode), way)

    def run(self, call: Call) -> Results:
        if call.variant == "one_by_one":
            return self._one_by_one(call)
        found = as_tuple(evaluate(expression(call), {**self._scope(call), **call.arrays()}))
        results, names = [array for array in found if array is not None], names_of(call)
        return dict(zip(names, results[-len(names) :], strict=True))

    def run_into(self, call: Call, outs: Results) -> None:
        """The call with its results in the arrays of ``outs``."""
        if is_eager(call):
            raise NotOfferedError(f"{call.variant} calls give arrays of their own")
        run, names = self._compiled(call), names_of(call)
        given = (*(None,) * (len(run.plan.outputs) - len(names)), *map(outs.get, names))
        run(*call.arguments(), out=given[0] if len(given) == 1 else given)

    def set_threads(self, count: int) -> bool:
        set_num_threads(count)
        return True

    def reproducer(self, call: Call) -> str:
        value, *lines = definitions(call)
        spread = call.mode in ("vjp", "second") if is_eager(call) else expression(call).endswith(":]")
        calls = [*lines, f'print(*{expression(call)}, sep="\\n")' if spread else f"print({expression(call)})"]
        if call.variant == "one_by_one":
            calls = [f"for i in range({samples(call.problem)}):", *(f"    {line}" for line in calls)]
        more = ["from dataclasses import replace"] if any("replace(" in line for line in calls) else []
        used = ["import gradspec as gs", *["from gradspec.interop import compose"] * ("compose." in value)]
        return "\n".join([*more, *imports(call, *used), "", *assignments(call), value, *calls])

    def expected_errors(self) -> Sequence[ExpectedError]:
        return [row.expected(ERROR_IMPORTS, lambda: {"gs": GRADSPEC, "np": np}) for row in ERROR_ROWS]

    def _compiled(self, call: Call) -> Compiled:
        run: Compiled = self._scope(call)["run"]
        return run

    def _scope(self, call: Call) -> dict[str, Any]:
        """What the program defines, made once for a problem."""
        key = (repr(call.problem), call.mode, call.variant)
        names = {"gs": GRADSPEC, "np": np, "replace": replace, "compose": compose}
        return self._scopes.get_or_make(key, lambda: scope_of(definitions(call), names))

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
    """Variants that come to the same numbers by other ways: without a plan of one's own, sample by sample, …"""
    count = samples(problem)
    batches = () if count is None else ("batched", "one_by_one") if 0 < count <= FEW_SAMPLES else ("batched",)
    return ("eager", "numpy", *batches)


# --- the program of a call --------------------------------------------------------------------------------------------


def is_eager(call: Call) -> bool:
    return call.variant in ("eager", "one_by_one")


def wants_indices(call: Call) -> bool:
    return call.problem.op in GIVES_INDICES and call.mode == "value" and call.variant != "without_indices"


def names_of(call: Call) -> tuple[str, ...]:
    """The results that there are: the last of a graph's outputs."""
    names = call.problem.results(call.mode)
    return names[:1] if call.mode == "value" and not wants_indices(call) else names


def definitions(call: Call) -> list[str]:
    """The operator as a function ``f`` of its inputs, and what else is made once.

    Where winners are to be ``recorded``, a map follows that changes nothing but needs the value for its derivative, so
    that values and cotangents are made in steps apart, with a tape of the winners between them.
    """
    names, count = ", ".join(call.named()), 1 if call.mode == "jvp" else len(call.problem.differentiable)
    function = _function(call)
    lines = [f"f = lambda {names}: {f'gs.leaky_relu({function}, 1.0)' if call.variant == 'recorded' else function}"]
    if is_eager(call):
        pulled = f"pulled = lambda {names}, g: gs.vjp(f, {names})[1](g)[:{count}]"
        return [*lines, pulled] if call.mode == "second" else lines
    is_batched = call.variant == "batched"
    types = ", ".join(f"gs.{type_of(array)}" for array in (sample(call, 0) if is_batched else call).named().values())
    axes = [None if is_shared(name) else 0 for name in call.named()]
    batched = f".batch({samples(call.problem)}, {axes})" if is_batched else ""
    derived = {"value": "", "jvp": ".jvp()"}.get(call.mode, ".vjp()")
    lines.append(f"graph = gs.trace(f, {types}){batched}{derived}")
    if call.mode == "second" or call.variant == "derivative_alone":  # derivatives stand behind values
        again = ".vjp()" if call.mode == "second" else ""
        lines.append(f"graph = replace(graph, outputs=graph.outputs[-{count}:]){again}")
    return [*lines, "run = gs.compile(graph" + (', backend="numpy")' if call.variant == "numpy" else ")")]


def _function(call: Call) -> str:
    if call.problem.op in LAYERS:
        return LAYERS[call.problem.op].expression
    indices = {"return_indices": True} if wants_indices(call) else {}
    return applied(f"gs.{call.problem.op}", *map(Code, call.named()), **spelled(call.problem), **indices)


def expression(call: Call) -> str:
    """What gives the results, or the only one."""

    def spelled(name: str) -> str:
        return f"{name}[i]" if call.variant == "one_by_one" and not is_shared(name) else name

    moved, inputs = [f"d{name}" for name in call.problem.differentiable], ", ".join(map(spelled, call.named()))
    if not is_eager(call):
        more = {"value": [], "jvp": moved, "vjp": ["g"], "second": ["g", *moved]}[call.mode]
        return _run(call, [*call.named(), *more])
    if call.mode == "value":
        return f"f({inputs})"
    if call.mode == "jvp":
        moving = call.problem.differentiable
        tangents = "".join(f"{spelled(f'd{name}')}, " if name in moving else "None, " for name in call.named())
        return f"gs.jvp(f, ({inputs},), ({tangents}))[1]"
    if call.mode == "vjp":
        return f"gs.vjp(f, {inputs})[1]({spelled('g')})"
    directions = "".join(f"{spelled(name)}, " for name in moved)
    return f"gs.vjp(pulled, {inputs}, {spelled('g')})[1](({directions}))"


def _run(call: Call, names: list[str]) -> str:
    """The compiled graph on its arrays, without the values before its results. These go to arrays that hold something
    else: fresh memory is zero, or holds what an earlier call left there, which is often right."""
    count, alone = len(names_of(call)), call.variant == "derivative_alone"
    values = len(call.problem.differentiable) if call.mode == "second" else int(call.mode != "value" and not alone)
    outs = "[np.full(v.shape, 77, v.dtype.numpy) for v in run.plan.outputs]"
    out, rest = (f"{outs}[0]", "") if values + count == 1 else (f"tuple({outs})", f"[-{count}:]")
    return f"run({', '.join(names)}, out={out}){rest}"


# --- samples ----------------------------------------------------------------------------------------------------------


def samples(problem: Problem) -> int | None:
    """How many indices the leading axis has; None where there is none."""
    return problem.lead[0] if problem.lead else None


def is_shared(name: str) -> bool:
    """Whether all samples share the array, or its gradient sums over them."""
    return name.endswith(("weight", "bias"))


def sample(call: Call, index: int) -> Call:
    """One index of the leading axis as a call."""

    def part(name: str, array: Array) -> Array:
        if is_shared(name):
            return array
        return array[index] if len(array) else np.zeros(array.shape[1:], array.dtype)

    one = call.with_arrays({name: part(name, array) for name, array in call.arrays().items()})
    shapes = tuple(None if array is None else array.shape for array in one.inputs)
    return replace(one, problem=replace(call.problem, shapes=shapes), output=call.output[1:])


# --- errors that the specification names ------------------------------------------------------------------------------


def _row(
    rule: str, op: str, *shapes: Shape, dtype: str = "float32", raises: type[Exception] = ShapeError, **attributes: Any
) -> ErrorRow:
    arrays = (applied("np.zeros", shape, Code(f"np.{dtype}")) for shape in shapes)
    return ErrorRow(op, rule, applied(f"gs.{op}", *arrays, **attributes), (raises,))


PLANE, WEIGHT, IMAGE = (1, 2, 4, 5), (2, 2, 3, 3), (1, 2, 5, 5)
LEAST_ONE, WHOLE = "kernel, stride and dilation are at least 1", "a bool is not an int"
NOT_NEGATIVE, HAS_CELL = "padding is not negative", "a spatial axis has a cell"
FITS, AS_MANY_AXES = "a window fits the padded axis", "there are as many axes as the window has"
MATCH, DIVIDE = "channels match", "groups divide the channels"
BIAS, OUTPUT_SIZE = "bias has one number per output channel", "an output size is at least 1"
OUTPUT_PADDING = "output padding is less than the stride or the dilation"
NO_AVERAGE = "integers have no average"

ERROR_ROWS = (
    _row(LEAST_ONE, "max_pool", PLANE, kernel_size=(2, 0)),
    _row(LEAST_ONE, "avg_pool", PLANE, kernel_size=(2, 2), stride=(0, 1)),
    _row(LEAST_ONE, "smooth_max_pool", PLANE, kernel_size=(2, 2), stride=(1, -1), beta=1.0),
    _row(LEAST_ONE, "max_pool", PLANE, kernel_size=(2, 2), dilation=(1, 0)),
    _row(LEAST_ONE, "conv", IMAGE, WEIGHT, stride=(0, 1)),
    _row(LEAST_ONE, "conv", IMAGE, WEIGHT, dilation=(-1, 1)),
    _row(LEAST_ONE, "conv", IMAGE, (2, 2, 0, 3)),
    _row(LEAST_ONE, "conv_transpose", IMAGE, WEIGHT, stride=(1, 0)),
    _row(LEAST_ONE, "unfold", IMAGE, kernel_size=(0, 2)),
    _row(NOT_NEGATIVE, "max_pool", PLANE, kernel_size=(2, 2), padding=((-1, 0), (0, 0))),
    _row(NOT_NEGATIVE, "avg_pool", PLANE, kernel_size=(2, 2), padding=((0, 0), (0, -1))),
    _row(NOT_NEGATIVE, "conv", IMAGE, WEIGHT, padding=((0, -1), (0, 0))),
    _row(NOT_NEGATIVE, "conv_transpose", IMAGE, WEIGHT, padding=((0, -1), (0, 0))),
    _row(WHOLE, "max_pool", PLANE, kernel_size=(True, 2)),
    _row(WHOLE, "conv", IMAGE, WEIGHT, stride=(True, 1)),
    _row(WHOLE, "adaptive_avg_pool", PLANE, output_size=(True, 2)),
    _row(HAS_CELL, "max_pool", (1, 2, 0, 5), kernel_size=(1, 1)),
    _row(HAS_CELL, "conv", (1, 2, 5, 0), WEIGHT, padding=((2, 2), (2, 2))),
    _row(HAS_CELL, "global_avg_pool", (1, 2, 0, 5)),
    _row(FITS, "max_pool", PLANE, kernel_size=(5, 2)),
    _row(FITS, "avg_pool", PLANE, kernel_size=(2, 3), dilation=(1, 3)),
    _row(FITS, "conv", (1, 2, 2, 5), WEIGHT),
    _row(FITS, "unfold", IMAGE, kernel_size=(6, 1)),
    _row(AS_MANY_AXES, "max_pool", (5,), kernel_size=(2, 2)),
    _row(AS_MANY_AXES, "conv", (5, 5), WEIGHT),
    _row(MATCH, "conv", (1, 3, 5, 5), WEIGHT),
    _row(MATCH, "conv_transpose", (1, 3, 5, 5), WEIGHT),
    _row(DIVIDE, "conv", (1, 4, 5, 5), (3, 2, 3, 3), groups=2),
    _row(DIVIDE, "conv_transpose", (1, 3, 5, 5), (3, 2, 3, 3), groups=2),
    _row(BIAS, "conv", IMAGE, WEIGHT, (3,)),
    _row(BIAS, "conv_transpose", IMAGE, WEIGHT, (3,)),
    _row(OUTPUT_SIZE, "adaptive_max_pool", PLANE, output_size=(2, 0)),
    _row(OUTPUT_SIZE, "adaptive_avg_pool", PLANE, output_size=(-1, 2)),
    _row("a divisor is not 0", "avg_pool", PLANE, kernel_size=(2, 2), divisor_override=0),
    _row("an output has a cell", "conv_transpose", (1, 2, 1, 1), WEIGHT, padding=((2, 2), (1, 1))),
    _row(OUTPUT_PADDING, "conv_transpose", IMAGE, WEIGHT, stride=(2, 2), output_padding=(2, 0)),
    _row("columns fold onto the output", "fold", (1, 8, 5), output_size=(4, 4), kernel_size=(2, 2)),
    _row("beta is not 0", "smooth_max_pool", PLANE, kernel_size=(2, 2), beta=0.0, raises=ValueError),
    _row(NO_AVERAGE, "avg_pool", PLANE, kernel_size=(2, 2), dtype="int32", raises=DTypeError),
    _row(NO_AVERAGE, "global_avg_pool", PLANE, dtype="int64", raises=DTypeError),
)
ERROR_IMPORTS = "import gradspec as gs\nimport numpy as np"
