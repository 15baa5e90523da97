"""The tags of a case, from what its problem and its numbers are: one predicate for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.tables import table, take
from gradspec.conformance.call import FLOATS, SELECTIONS, Array, Call, Problem
from gradspec.conformance.cases import FEATURES
from gradspec.conformance.cases.windows import Anatomy, anatomy, extremes, leaves
from gradspec.domains.formats import format_named
from gradspec.spec.window import Adaptive, AxisWindow, Regular

MANY_HITS = 12
LONG_SUM = 1000
LARGE = 1 << 15


@dataclass(frozen=True)
class Subject:
    """What is tagged: a problem in a mode and a layout, and its numbers where they are there."""

    problem: Problem
    mode: str
    layout: str
    parts: Anatomy
    arrays: tuple[Array, ...]

    def given(self, name: str) -> Any:
        return self.problem.attributes.get(name)

    @property
    def axes(self) -> tuple[AxisWindow, ...]:
        return () if self.parts.window is None else self.parts.window.axes

    @property
    def sliding(self) -> list[Regular]:
        return [axis for axis in self.axes if isinstance(axis, Regular)]

    @property
    def floats(self) -> list[Array]:
        return [array for array in self.arrays if array.dtype.kind not in "iub"]

    @property
    def indices(self) -> Array | None:
        return self.arrays[1] if self.problem.op == "max_unpool" and self.arrays else None


def tags(problem: Problem, mode: str = "value", layout: str = "contiguous", *arrays: Array) -> frozenset[str]:
    """The tags of a problem in a mode and a layout, and of the numbers that are given.

    >>> sorted(tags(Problem("max_pool", 1, ((2, 5),), {"kernel_size": (3,), "stride": (1,)})))
    ['overlapping']
    """
    subject = Subject(problem, mode, layout, anatomy(problem), arrays)
    return frozenset(name for name in FEATURES if PREDICATES[name](subject))


def tags_of_call(call: Call) -> frozenset[str]:
    """The tags of a call with its numbers."""
    arrays = [*call.inputs, *call.directions, call.cotangent]
    return tags(call.problem, call.mode, call.layout, *(array for array in arrays if array is not None))


# --- geometry --------------------------------------------------------------------------------------------------------


def _asymmetric(s: Subject) -> bool:
    between_sides = any(axis.lo != axis.hi for axis in s.sliding)
    sizes = s.parts.output[-s.problem.rank :] if s.parts.window is None else s.parts.spatial
    return between_sides or len(set(sizes)) > 1 or len(set(map(_without_size, s.axes))) > 1


def _without_size(axis: AxisWindow) -> tuple[int, ...]:
    if isinstance(axis, Adaptive):
        return (axis.outputs,)
    return axis.kernel, axis.stride, axis.lo, axis.hi, axis.dilation


def extent(axis: Regular) -> int:
    return axis.dilation * (axis.kernel - 1) + 1


def _overlapping(s: Subject) -> bool:
    return any(axis_overlaps(axis) for axis in s.axes)


def axis_overlaps(axis: AxisWindow) -> bool:
    if isinstance(axis, Adaptive):
        return axis.outputs > 1 and axis.size % axis.outputs != 0
    return axis.outputs > 1 and axis.stride < extent(axis)


def _non_divisible(s: Subject) -> bool:
    return any(axis_does_not_divide(axis) for axis in s.axes)


def axis_does_not_divide(axis: AxisWindow) -> bool:
    if isinstance(axis, Adaptive):
        return axis.size % axis.outputs != 0
    return (axis.size + axis.lo + axis.hi - extent(axis)) % axis.stride != 0


def _dilated(s: Subject) -> bool:
    return any(axis.dilation > 1 and axis.kernel > 1 for axis in s.sliding)


def _padding_only_window(s: Subject) -> bool:
    if s.indices is not None:
        return bool((s.indices < 0).any())
    return any(extremes(axis).fewest == 0 for axis in s.axes)


def _ceil_mode(s: Subject) -> bool:
    return bool(s.given("ceil_mode")) and any(axis_is_rounded_up(axis) for axis in s.sliding)


def axis_is_rounded_up(axis: Regular) -> bool:
    return axis.outputs > (axis.size + axis.lo + axis.hi - extent(axis)) // axis.stride + 1


def _count_exclude_pad(s: Subject) -> bool:
    padded = any(extremes(axis).fewest < extremes(axis).taps for axis in s.axes)
    return s.given("count_include_pad") is False and s.given("divisor_override") is None and padded


def _divisor_override(s: Subject) -> bool:
    return s.given("divisor_override") is not None


def _grouped(s: Subject) -> bool:
    groups = s.given("groups") or 1
    return s.parts.channels is not None and 1 < groups < s.parts.channels


def _depthwise(s: Subject) -> bool:
    groups = s.given("groups") or 1
    return 1 < groups == s.parts.channels


def _output_padding(s: Subject) -> bool:
    extra = s.given("output_padding") or 0
    return any(extra) if isinstance(extra, tuple) else extra > 0


def _empty_batch(s: Subject) -> bool:
    return 0 in s.parts.lead


def _zero_channels(s: Subject) -> bool:
    form = s.parts.form
    return s.parts.channels == 0 or (form is not None and 0 in (form.x_channels, form.g_channels))


def _one_cell_axis(s: Subject) -> bool:
    return 1 in s.parts.spatial


def _long_sum(s: Subject) -> bool:
    return leaves(s.problem, s.mode) >= LONG_SUM


def _many_hits_one_cell(s: Subject) -> bool:
    return s.parts.hits >= MANY_HITS if s.indices is None else _most_repeated(s.indices, s.problem.rank) >= MANY_HITS


def _most_repeated(indices: Array, rank: int) -> int:
    planes = indices.reshape(-1, prod(indices.shape[indices.ndim - rank :]))
    return max((int(np.bincount(plane[plane >= 0], minlength=1).max()) for plane in planes), default=0)


def _large(s: Subject) -> bool:
    shapes = [shape for shape in s.problem.shapes if shape is not None]
    return max(prod(shape) for shape in (*shapes, s.parts.output)) >= LARGE


# --- numbers ---------------------------------------------------------------------------------------------------------


def _ties(s: Subject) -> bool:
    """Whether the maximum of a window is there twice."""
    if s.problem.op not in SELECTIONS or not s.arrays or s.arrays[0].size == 0 or s.parts.window is None:
        return False
    x, rank = s.arrays[0], s.problem.rank
    taps = table(s.parts.window)
    cells = take(x.reshape(-1, prod(x.shape[x.ndim - rank :])), taps)
    real, nans = taps >= 0, np.isnan(cells) if x.dtype.kind not in "iub" else np.zeros(cells.shape, np.bool_)
    least = _lowest(x.dtype)
    top = np.where(real & ~nans, cells, least).max(axis=-1, keepdims=True)
    tied = np.where((nans & real).any(axis=-1, keepdims=True), nans & real, real & (cells == top))
    return bool((tied.sum(axis=-1) > 1).any())


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else dtype.type(-np.inf)


def _nan(s: Subject) -> bool:
    return any(np.isnan(array).any() for array in s.floats)


def _infinity(s: Subject) -> bool:
    return any(np.isinf(array).any() for array in s.floats)


def _signed_zero(s: Subject) -> bool:
    return any(_has_both_zeros(array) for array in s.floats)


def _has_both_zeros(array: Array) -> bool:
    signs = np.signbit(array[array == 0])
    return bool(signs.any() and not signs.all())


def _subnormal(s: Subject) -> bool:
    normal = float(format_named(s.problem.dtype).normal) if s.floats else 0.0
    return any(((array != 0) & (np.abs(array) < normal)).any() for array in s.floats)


def _huge(s: Subject) -> bool:
    return any(_is_huge(array, s.problem.dtype).any() for array in s.arrays if array is not s.indices)


def _is_huge(array: Array, dtype: str) -> Any:
    """Near the largest number: within a factor of 16, or of integers within 8 of either end."""
    if array.dtype.kind in "iu":
        ends = np.iinfo(array.dtype)
        return (array > ends.max - 8) | ((array < ends.min + 8) if ends.min else np.False_)
    return np.isfinite(array) & (np.abs(array) >= float(format_named(dtype).largest) / 16)


PREDICATES: dict[str, Callable[[Subject], bool]] = {
    "asymmetric": _asymmetric,
    "overlapping": _overlapping,
    "non_divisible": _non_divisible,
    "dilated": _dilated,
    "padding_only_window": _padding_only_window,
    "ceil_mode": _ceil_mode,
    "count_exclude_pad": _count_exclude_pad,
    "divisor_override": _divisor_override,
    "grouped": _grouped,
    "depthwise": _depthwise,
    "output_padding": _output_padding,
    "ties": _ties,
    "nan": _nan,
    "infinity": _infinity,
    "signed_zero": _signed_zero,
    "subnormal": _subnormal,
    "huge": _huge,
    "empty_batch": _empty_batch,
    "zero_channels": _zero_channels,
    "one_cell_axis": _one_cell_axis,
    "non_contiguous": lambda s: s.layout == "non_contiguous",
    "channels_last": lambda s: s.layout == "channels_last" and s.parts.channels is not None,
    "low_precision": lambda s: s.problem.dtype in ("f16", "bf16"),
    "long_sum": _long_sum,
    "many_hits_one_cell": _many_hits_one_cell,
    "integer": lambda s: s.problem.dtype not in FLOATS,
    "large": _large,
    "rank4": lambda s: s.problem.rank == 4,
}
"""Every tag's predicate. Those of the numbers are false where no numbers are given."""
