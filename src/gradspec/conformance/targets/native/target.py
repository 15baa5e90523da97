"""Our own compiled CPU kernels, through the graphs that every user of gradspec builds.

``plain`` compiles the graph of the operator, of ``graph.jvp()``, of ``graph.vjp()`` or of the VJP of that, once for a
problem. Every other variant reaches other code: a maximum without its winners is another kernel, a derivative without
its value is planned otherwise, batching rewrites the graph, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any
from zlib import crc32

import numpy as np

import gradspec.backends.cpu
import gradspec.backends.numpy
import gradspec.transforms.simplify  # noqa: F401  (graphs call what these register)
from gradspec.conformance.checks.promises import of_the_specification
from gradspec.conformance.model.attributes import OPERATORS
from gradspec.conformance.model.codec import encode
from gradspec.conformance.model.problem import (
    COLUMNS,
    FLOATS,
    GIVES_INDICES,
    SELECTIONS,
    Array,
    Call,
    Problem,
    Results,
)
from gradspec.conformance.model.target import NotOfferedError, Promise, Target
from gradspec.conformance.targets.native.graphs import graph_of, is_shared, names_of, operator, sample, samples
from gradspec.conformance.targets.native.program import program
from gradspec.conformance.targets.program import as_tuple
from gradspec.graph.recent import Recent
from gradspec.runtime.compiled import Compiled
from gradspec.runtime.run import compile
from gradspec.runtime.threads import set_num_threads
from gradspec.transforms import functions

MOST_RUNS = 256
TURNS = 2
"""Ways to the same kernels that one problem is tried in: building graphs takes longer than running them."""
FEW_SAMPLES = 8
"""More samples than this are not run one by one."""


class NativeTarget(Target):
    """gradspec's CPU kernels."""

    name = "native"
    repeatable = True
    fresh_results = True
    strict = True

    def __init__(self) -> None:
        self._runs = Recent(MOST_RUNS)

    def versions(self) -> dict[str, str]:
        return {package: version(package) for package in ("gradspec", "numpy", "llvmlite")}

    def refusal(self, problem: Problem, mode: str) -> str | None:
        if problem.dtype in FLOATS:
            return None
        if problem.op not in (*SELECTIONS, "max_unpool", *COLUMNS):
            return f"{problem.op} has no integers"
        return None if mode == "value" else "integers have no derivatives"

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        """Kernels of their own always; of the ways to the same kernels two, which differ from problem to problem."""
        first = crc32(repr((mode, sorted(encode(problem).items()))).encode())
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
        return _named(call, as_tuple(run(*call.arguments(), out=_as_out(outs))))

    def run_into(self, call: Call, outs: Results) -> None:
        """The call with its results in the arrays of ``outs``."""
        if call.variant in ("eager", "one_by_one"):
            raise NotOfferedError(f"{call.variant} calls give arrays of their own")
        run = self._compiled(call)
        names = [None] * (len(run.plan.outputs) - len(names_of(call))) + list(names_of(call))
        run(*call.arguments(), out=_as_out(tuple(None if name is None else outs.get(name) for name in names)))

    def set_threads(self, count: int) -> bool:
        set_num_threads(count)
        return True

    def reproducer(self, call: Call) -> str:
        return program(call)

    def promises(self) -> Sequence[Promise]:
        return of_the_specification(lambda op, arrays, attributes: OPERATORS[op](*arrays, **attributes))

    def _compiled(self, call: Call) -> Compiled:
        key = (repr(call.problem), call.mode, "plain" if call.variant == "out" else call.variant)
        run = self._runs.get(key)
        if run is None:
            run = compile(graph_of(call), backend="numpy" if call.variant == "numpy" else "cpu")
            self._runs.put(key, run)
        return run  # type: ignore[no-any-return]

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


def _named(call: Call, outputs: Sequence[Array]) -> Results:
    names = names_of(call)
    return dict(zip(names, outputs[-len(names) :], strict=True))


def _eager(call: Call) -> Results:
    """Operators and derivatives of functions on arrays, without a graph in the caller's hands."""
    function, inputs = operator(call), tuple(call.named().values())
    if call.mode == "value":
        return _named(call, as_tuple(function(*inputs)))
    if call.mode == "jvp":
        directions = iter(call.directions)
        tangents = tuple(None if name == "indices" else next(directions) for name in call.named())
        return _named(call, (functions.jvp(function, inputs, tangents)[1],))
    if call.mode == "vjp":
        return _named(call, _floats(functions.vjp(function, *inputs)[1](call.cotangent)))

    def pulled(*arguments: Any) -> tuple[Any, ...]:
        """The VJP as a function of the inputs and the cotangent."""
        return _floats(functions.vjp(function, *arguments[:-1])[1](arguments[-1]))

    return _named(call, _floats(functions.vjp(pulled, *inputs, call.cotangent)[1](call.directions)))


def _floats(found: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(part for part in found if part is not None)


def _as_out(outs: tuple[Array | None, ...] | None) -> Any:
    return outs[0] if outs is not None and len(outs) == 1 else outs
