"""Our own compiled CPU kernels, through the graphs that every user of gradspec builds.

``plain`` compiles the graph of the operator, of ``graph.jvp()``, of ``graph.vjp()`` or of the VJP of that, once for a
problem. Every other variant reaches other code: a maximum without its winners is another kernel, a derivative without
its value is planned otherwise, batching rewrites the graph, and so on.
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
from gradspec.conformance.model.geometry import OPERATORS
from gradspec.conformance.model.problem import GIVES_INDICES, SELECTIONS, Call, Problem, Results, why_unspecified
from gradspec.conformance.model.target import ExpectedError, NotOfferedError
from gradspec.conformance.targets.layers import GRADSPEC as LAYER_FUNCTIONS
from gradspec.conformance.targets.layers import LayeredTarget
from gradspec.conformance.targets.native.program import (
    ERROR_IMPORTS,
    ERROR_ROWS,
    definitions,
    expression,
    is_eager,
    is_shared,
    names_of,
    program,
    sample,
    samples,
)
from gradspec.conformance.targets.program import as_tuple, evaluate, scope_of
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DTYPES
from gradspec.interop import compose
from gradspec.ops.pointwise import leaky_relu
from gradspec.runtime.compiled import Compiled, compile
from gradspec.runtime.threads import set_num_threads
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
        return program(call)

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
