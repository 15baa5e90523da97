"""Calls that add up leaves of our choice: what a target's arithmetic is measured with."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.problem import DTYPES, Array, Call, Problem, Shape
from gradspec.conformance.model.target import NotOfferedError, Target
from gradspec.conformance.oracle.meaning import Floats
from gradspec.conformance.oracle.mixing import TRANSFORMS
from gradspec.domains.formats import F32, Format, format_named

ROWS, CHANNELS, WEIGHTS, SAMPLES = 64, 32, 8, 16
POOLED = 256
"""Cells of a pooling window: a power of two, so that dividing by it is exact."""
RANKS = (2, 1, 3, 4)
"""The ranks tried, commonest first."""


@dataclass(frozen=True)
class Adder:
    """A call whose every value is ``Σ x·w / divisor`` over a whole sample; ``w`` is one where there is no weight."""

    target: Target
    problem: Problem
    divisor: int = 1

    mode = "value"

    @property
    def label(self) -> str:
        return self.problem.op

    @property
    def adds(self) -> bool:
        return self.problem.op != "max_pool"

    @property
    def weighted(self) -> bool:
        return self.problem.op == "conv"

    @property
    def format(self) -> Format:
        return format_named(self.problem.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether results are stored in fewer bits than every kernel adds in."""
        return self.format.precision < F32.precision

    @property
    def arithmetic(self) -> Arithmetic:
        return self.target.arithmetic(self.problem)

    @property
    def transforms(self) -> bool:
        """Whether it is declared to transform what it adds up, so that no leaf arrives exactly."""
        return self.arithmetic.algorithm in TRANSFORMS and self.adds

    @property
    def leaves(self) -> int:
        return math.prod(self.problem.x_shape[1:])

    @property
    def block(self) -> int:
        """Leaves that lie together in memory: a channel's, or a row's."""
        return math.prod(self.problem.x_shape[2:]) if self.weighted else self.problem.x_shape[-1]

    def is_offered(self) -> bool:
        """By the documentation, and, where that shows only then, by a call; another error is one to report."""
        if self.target.declines(self.problem, self.mode) is not None:
            return False
        try:
            self.sums(np.zeros((1, self.leaves)))
        except Exception as error:  # each probe says so
            return not isinstance(error, NotOfferedError)
        return True

    def sums(self, x: Floats, weight: Floats | None = None) -> Floats:
        """Of every row of ``x``, of which there are at most ``ROWS``, times ``weight``: ``[row, output]``."""
        rows = np.zeros((ROWS, self.leaves))
        rows[: len(x)] = x * self.divisor
        factors = np.broadcast_to(np.ones(self.leaves) if weight is None else weight, (WEIGHTS, self.leaves))
        return self._added(rows, factors)[: len(x)]

    def _added(self, rows: Floats, factors: Floats) -> Floats:
        arrays = (rows, factors, None) if self.weighted else (rows,)
        return called(self.target, self.problem, arrays).reshape(ROWS, -1)


class WeightGradient(Adder):
    """The VJP of a convolution with windows of one cell: each weight receives ``Σ x·g`` over samples and places."""

    mode = "vjp"

    @property
    def label(self) -> str:
        return "conv grad_weight"

    @property
    def leaves(self) -> int:
        return SAMPLES * self.block

    def _added(self, rows: Floats, factors: Floats) -> Floats:
        sizes, dtype = self.problem.x_shape[2:], DTYPES[self.problem.dtype]
        x, g = (np.moveaxis(part.reshape(-1, SAMPLES, *sizes), 0, 1).astype(dtype) for part in (rows, factors))
        inputs = (np.ascontiguousarray(x), np.zeros(self.problem.shapes[1] or (), dtype), None)
        call = Call(self.problem, "vjp", inputs, cotangent=np.ascontiguousarray(g), output=g.shape)
        return result_of(self.target, call, "grad_weight").reshape(WEIGHTS, ROWS).T


def called(target: Target, problem: Problem, arrays: tuple[Floats | None, ...]) -> Floats:
    """The value of a problem on given numbers, in float64."""
    dtype = DTYPES[problem.dtype]
    pairs = zip(arrays, problem.shapes, strict=True)
    inputs = tuple(None if a is None or s is None else a.astype(dtype).reshape(s) for a, s in pairs)
    return result_of(target, Call(problem, "value", inputs, output=anatomy(problem).output), "y")


def result_of(target: Target, call: Call, name: str) -> Floats:
    results = target.run(call)
    if name not in results:
        raise NotOfferedError(f"{target.name} gives no {name}")
    result: Array = results[name]
    return np.asarray(result).astype(np.float64)


def adders(target: Target, dtype: str, ops: Collection[str] = ("conv",)) -> Iterator[Adder]:
    """What a dtype is measured with: the first of these sums that the target offers, and a weight gradient."""
    values: list[Callable[[int], Adder]] = [
        lambda rank: Adder(target, conv(dtype, (ROWS, CHANNELS, *(3,) * rank), WEIGHTS, 3)),
        lambda rank: Adder(target, _pool("avg_pool", rank, dtype, divisor_override=1)),
        lambda rank: Adder(target, _pool("avg_pool", rank, dtype), POOLED),
        lambda rank: Adder(target, _pool("max_pool", rank, dtype)),
    ]
    gradients = (WeightGradient(target, conv(dtype, (SAMPLES, ROWS, *(4,) * rank), WEIGHTS, 1)) for rank in RANKS)
    for candidates in ((value(rank) for value in values for rank in RANKS), gradients):
        found = next((adder for adder in candidates if adder.problem.op in ops and adder.is_offered()), None)
        if found is not None:
            yield found


def conv(dtype: str, x: Shape, outputs: int, kernel: int) -> Problem:
    """A convolution without padding whose kernel has one size on every axis."""
    rank = len(x) - 2
    return Problem("conv", rank, (x, (outputs, x[1], *(kernel,) * rank), None), {}, dtype)


def _pool(op: str, rank: int, dtype: str, **attributes: Any) -> Problem:
    kernel = {1: (256,), 2: (16, 16), 3: (4, 8, 8), 4: (4, 4, 4, 4)}[rank]
    return Problem(op, rank, ((ROWS, 1, *kernel),), {"kernel_size": kernel, **attributes}, dtype)
