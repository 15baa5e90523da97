"""Random numbers of a dtype with a purpose: full significands, powers of two, small integers, distinct numbers; and
special ones among them: ties, NaNs, infinities, zeros of both signs, subnormal and huge numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.problem import CONVOLUTIONS, DTYPES, FLOATS, Array, Problem, Shape
from gradspec.domains.formats import Format, format_named


def generator(*seed: int) -> np.random.Generator:
    """Random numbers that are the same for the same seed, on every machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


def seed_of(*numbers: int) -> int:
    """The seed of one of many cases: other numbers give another one."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


LOWEST, HIGHEST = -5, 1
"""Ordinary numbers lie between 2^LOWEST and 2^HIGHEST, so that a thousand products of them fit into float16."""


@dataclass(frozen=True)
class Numbers:
    """A source of numbers of one dtype."""

    rng: np.random.Generator
    dtype: str

    @property
    def type(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def format(self) -> Format:
        return format_named(self.dtype)

    def signs(self, shape: Shape) -> Array:
        return 1.0 - 2.0 * self.rng.integers(0, 2, shape)

    def full(self, shape: Shape, low: int = LOWEST, high: int = HIGHEST) -> Array:
        """Numbers that use every bit of their significand, of either sign, from 2^low to 2^high."""
        p = self.format.precision
        significand = self.rng.integers(1 << (p - 1), 1 << p, shape) | 1
        exponent = self.rng.integers(low, high, shape) - p + 1
        return (self.signs(shape) * np.ldexp(significand.astype(np.float64), exponent)).astype(self.type)

    def powers(self, shape: Shape) -> Array:
        """±2^k for small k."""
        return (self.signs(shape) * np.ldexp(1.0, self.rng.integers(-2, 3, shape))).astype(self.type)

    def small(self, shape: Shape, largest: int, density: float = 1.0, exponent: int = 0) -> Array:
        """Integers up to ``largest``, some of them zero, times a power of two."""
        whole = self.rng.integers(1, largest + 1, shape) * self.signs(shape)
        kept = self.rng.random(shape) < density if density < 1 else np.True_
        return np.ldexp(np.where(kept, whole, 0.0), exponent).astype(self.type)

    def distinct(self, planes: int, cells: int) -> Array | None:
        """``[plane, cell]`` with no two equal cells in a plane; None where the dtype has too few numbers."""
        total = self._codes
        if cells > total:
            return None
        step = total // max(cells, 1)
        codes = np.arange(cells) * step + self.rng.integers(0, step, (planes, cells))
        order = np.argsort(self.rng.random((planes, cells)), axis=1)
        return self._decoded(np.take_along_axis(codes, order, axis=1))

    @property
    def _codes(self) -> int:
        """How many numbers `distinct` chooses from."""
        if self.is_float:
            return 2 * (HIGHEST - LOWEST + 6) << (self.format.precision - 1)
        ends = np.iinfo(self.type)
        return min(ends.max - ends.min - 20, 1 << 20)

    def _decoded(self, codes: Array) -> Array:
        if not self.is_float:
            middle = (int(np.iinfo(self.type).max) + int(np.iinfo(self.type).min) + 1) // 2
            return np.asarray(codes - self._codes // 2 + middle, self.type)
        p = self.format.precision
        significand = (1 << (p - 1)) + (codes >> 1) % (1 << (p - 1))
        exponent = LOWEST - 3 + (codes >> p) - p + 1
        signed = (1.0 - 2.0 * (codes & 1)) * significand
        return np.asarray(np.ldexp(signed, exponent), self.type)

    def subnormal(self, shape: Shape) -> Array:
        """Numbers below the smallest normal one, none of them zero."""
        p, tiniest = self.format.precision, float(self.format.tiniest)
        return (self.signs(shape) * self.rng.integers(1, 1 << (p - 1), shape) * tiniest).astype(self.type)

    def huge(self, shape: Shape) -> Array:
        """Numbers from half the largest up to it."""
        if not self.is_float:
            ends = np.iinfo(self.type)
            near = self.rng.integers(0, 7, shape)
            low = ends.min + near if ends.min else ends.max - near
            return np.where(self.rng.random(shape) < 0.5, ends.max - near, low).astype(self.type)
        share = 0.5 + 0.5 * self.rng.random(shape)
        return (self.signs(shape) * (float(self.format.largest) * share)).astype(self.type)


def planes(array: Array, axes: int) -> Array:
    """``[plane, cell]``: a view with the last ``axes`` axes as one."""
    cells = prod(array.shape[array.ndim - axes :])
    return array.reshape(prod(array.shape[: array.ndim - axes]), cells)


# --- special numbers among ordinary ones ------------------------------------------------------------------------------


ENOUGH_CHANNELS = 4
"""One of so many may hold numbers that hide others."""


def _carriers(case: CheckCase, arrays: dict[str, Array]) -> list[str]:
    """The arrays that may get numbers which hide others: the data, its tangent, the cotangent; of a convolution with
    channels enough, the weights and the bias, too. A bias has no part in a VJP."""
    found: list[str] = [name for name in ("x", "dx", "g") if name in arrays and arrays[name].size]
    if case.problem.op in CONVOLUTIONS and arrays["x"].size and _channels_touched(case, arrays) >= ENOUGH_CHANNELS:
        found += [name for name in ("weight", "dweight") if name in arrays]
        found += [name for name in ("bias", "dbias") if name in arrays and case.mode == _MODE_OF_BIAS[name]]
    return found


_MODE_OF_BIAS = {"bias": "value", "dbias": "jvp"}


def _channels_touched(case: CheckCase, arrays: dict[str, Array]) -> int:
    """The number of channels of a result, of which one weight reaches one."""
    weight, groups = arrays["weight"], int(case.problem.attributes.get("groups", 1))
    if weight.size == 0:
        return 0
    ins, outs = int(weight.shape[1]) * groups, int(weight.shape[0])
    if case.problem.op == "conv_transpose":
        ins, outs = outs, ins
    return outs if case.mode in ("value", "jvp") else ins if case.mode == "vjp" else min(ins, outs)


def _hide(case: CheckCase, arrays: dict[str, Array], numbers: Numbers, values: Array) -> None:
    """Put ``values`` into one sample of a convolution, or one plane of anything else, or one of them among weights."""
    name = str(numbers.rng.choice(_carriers(case, arrays)))
    if name.endswith(("weight", "bias")):
        arrays[name].reshape(-1)[numbers.rng.integers(arrays[name].size)] = values[0]
        return
    cells = planes(arrays[name], _sample_axes(case.problem, arrays[name]))
    one = cells[numbers.rng.integers(len(cells))]
    places = numbers.rng.permutation(len(one))[: len(values)]
    one[places] = values[: len(places)]


def _sample_axes(problem: Problem, array: Array) -> int:
    """How many of the last axes one plane or sample has, which no other plane or sample is combined with."""
    if problem.op in (*CONVOLUTIONS, "unfold"):
        return problem.rank + 1
    if problem.op == "fold":
        return 2 if array.shape == problem.shapes[0] else problem.rank
    return problem.rank if problem.keepdims or array.shape == problem.shapes[0] else 0


def _signed_zero(case: CheckCase, arrays: dict[str, Array], numbers: Numbers) -> None:
    """Zeros of both signs; in half of the planes nothing is greater, so that a zero is the maximum."""
    x = planes(arrays["x"], case.problem.rank)
    x[::2] = -np.abs(x[::2])
    for array in _numbers(arrays):
        flat = array.reshape(-1)
        zeros = numbers.rng.random(flat.size) < 0.3
        flat[zeros] = np.copysign(0.0, numbers.signs((int(zeros.sum()),))).astype(numbers.type)
        flat[:2] = np.asarray([-0.0, 0.0], numbers.type)[: flat.size]


def _subnormal(case: CheckCase, arrays: dict[str, Array], numbers: Numbers) -> None:
    for array in _numbers(arrays):
        flat = array.reshape(-1)
        small = (numbers.rng.random(flat.size) < 0.5) & (flat != 0)
        small[:1] = True
        flat[small] = numbers.subnormal((int(small.sum()),))


def _ties(case: CheckCase, arrays: dict[str, Array], numbers: Numbers) -> None:
    """Few levels, one level, or many copies of the largest; sometimes 0 is the largest, as padding might be."""
    x, rng = arrays["x"], numbers.rng
    kind = rng.integers(4)
    if kind == 0:
        x[...] = rng.integers(0, 3, x.shape).astype(numbers.type)
    elif kind == 1:
        x[...] = np.asarray(rng.integers(0, 3), numbers.type)
    elif kind == 2:
        x[...] = np.where(rng.random(x.shape) < 0.6, x.max(initial=1), x).astype(numbers.type)
    else:
        low = numbers.type.type(0 if numbers.dtype == "u8" else -1)
        x[...] = (rng.integers(0, 2, x.shape).astype(numbers.type) * low).astype(numbers.type)


def _numbers(arrays: dict[str, Array]) -> list[Array]:
    return [array for name, array in arrays.items() if name != "indices" and prod(array.shape)]


SPECIALS: dict[str, Callable[[CheckCase, dict[str, Array], Numbers], None]] = {
    "ties": _ties,
    "nan": lambda c, a, n: _hide(c, a, n, np.full(int(n.rng.integers(1, 4)), np.nan, n.type)),
    "infinity": lambda c, a, n: _hide(c, a, n, (n.signs((2,)) * np.inf).astype(n.type)),
    "signed_zero": _signed_zero,
    "subnormal": _subnormal,
    "huge": lambda c, a, n: _hide(c, a, n, n.huge((2,))),
}
"""By a case's special numbers, the function that puts them into its arrays, which are contiguous."""
