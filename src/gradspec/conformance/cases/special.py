"""Special numbers among ordinary ones: ties, NaNs, infinities, zeros of both signs, subnormal and huge numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from gradspec.conformance.cases.numbers import Numbers, planes
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.problem import CONVOLUTIONS, Array, Problem


def made_special(case: CheckCase, arrays: dict[str, Array], numbers: Numbers) -> None:
    """Change ``arrays``, which are contiguous, to have the special numbers of the case."""
    change = _CHANGES.get(case.special or "")
    if change is not None:
        change(case, arrays, numbers)


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
    if problem.op in CONVOLUTIONS:
        return problem.rank + 1
    if problem.op == "fold":
        return 2 if array.shape == problem.shapes[0] else problem.rank
    if problem.op == "unfold":
        return problem.rank + 1
    flat = problem.attributes.get("keepdims") is False and array.shape != problem.shapes[0]
    return 0 if flat else problem.rank


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


_CHANGES: dict[str, Callable[[CheckCase, dict[str, Array], Numbers], None]] = {
    "ties": _ties,
    "nan": lambda c, a, n: _hide(c, a, n, np.full(int(n.rng.integers(1, 4)), np.nan, n.type)),
    "infinity": lambda c, a, n: _hide(c, a, n, (n.signs((2,)) * np.inf).astype(n.type)),
    "signed_zero": _signed_zero,
    "subnormal": _subnormal,
    "huge": lambda c, a, n: _hide(c, a, n, n.huge((2,))),
}
