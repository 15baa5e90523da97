"""The tags of a case, from what its problem and its numbers are: one predicate for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd, prod
from typing import Any

import numpy as np

from gradspec.backends.tables import table, take
from gradspec.conformance.model.geometry import WindowGeometry, extent, extremes, geometry_of, leaves
from gradspec.conformance.model.problem import FLOATS, NON_CONTIGUOUS, SELECTIONS, Array, Call, Problem
from gradspec.domains.formats import format_named
from gradspec.spec.window import Adaptive, AxisWindow

MANY_HITS = 12
LONG_SUM = 1000
LARGE = 1 << 15
BLOCK = 31
"""The least size along an axis that is called a block or more: 32 less one."""


@dataclass(frozen=True)
class Subject:
    """What is tagged: a problem in a mode and a layout, and its numbers where they are there."""

    problem: Problem
    mode: str
    layout: str
    arrays: tuple[Array, ...]

    @cached_property
    def parts(self) -> WindowGeometry:
        return geometry_of(self.problem)

    @property
    def sizes(self) -> list[int]:
        return [n for shape in self.problem.named_shapes().values() for n in shape]

    def given(self, name: str) -> Any:
        return self.problem.attributes.get(name)

    @property
    def floats(self) -> list[Array]:
        return [array for array in self.arrays if array.dtype.kind not in "iub"]

    @property
    def indices(self) -> Array | None:
        return self.arrays[1] if self.problem.op == "max_unpool" and self.arrays else None


def tags(problem: Problem, mode: str = "value", layout: str = "contiguous", *arrays: Array) -> frozenset[str]:
    """The tags of a problem in a mode and a layout, and of the numbers that are given.

    >>> sorted(tags(Problem("max_pool", 1, ((2, 5),), {"kernel_size": (3,), "stride": (1,)})))
    ['kernel_3', 'overlapping']
    """
    subject = Subject(problem, mode, layout, arrays)
    predicates = REFERENCE_PREDICATES if problem.is_reference else PREDICATES
    return frozenset(name for name, is_there in predicates.items() if is_there(subject))


def tags_of_call(call: Call) -> frozenset[str]:
    """The tags of a call with its numbers."""
    return tags(call.problem, call.mode, call.layout, *call.arrays().values())


# --- geometry --------------------------------------------------------------------------------------------------------


def _asymmetric(s: Subject) -> bool:
    between_sides = any(axis.lo != axis.hi for axis in s.parts.sliding)
    sizes = s.parts.output[-s.problem.rank :] if s.parts.window is None else s.parts.spatial
    return between_sides or len(set(sizes)) > 1 or len(set(map(_without_size, s.parts.axes))) > 1


def _without_size(axis: AxisWindow) -> tuple[int, ...]:
    if isinstance(axis, Adaptive):
        return (axis.outputs,)
    return axis.kernel, axis.stride, axis.lo, axis.hi, axis.dilation


def _overlaps(axis: AxisWindow) -> bool:
    if isinstance(axis, Adaptive):
        return axis.outputs > 1 and axis.size % axis.outputs != 0
    return axis.outputs > 1 and axis.stride < extent(axis)


def _does_not_divide(axis: AxisWindow) -> bool:
    if isinstance(axis, Adaptive):
        return axis.size % axis.outputs != 0
    return (axis.size + axis.lo + axis.hi - extent(axis)) % axis.stride != 0


def _padding_only_window(s: Subject) -> bool:
    if s.indices is not None:
        return bool((s.indices < 0).any())
    return any(extremes(axis).fewest == 0 for axis in s.parts.axes)


def _many_hits_one_cell(s: Subject) -> bool:
    if s.indices is None:
        return s.parts.hits >= MANY_HITS
    planes = s.indices.reshape(-1, prod(s.indices.shape[s.indices.ndim - s.problem.rank :]))
    return any(np.bincount(plane[plane >= 0], minlength=1).max() >= MANY_HITS for plane in planes)


def _lengths(s: Subject) -> list[int]:
    """The most cells along each spatial axis, of input, windows or value."""
    window, rank = s.parts.window, s.problem.rank
    others = (s.parts.output[-rank:],) if window is None else (window.sizes, window.outputs)
    return [max(axis) for axis in zip(s.parts.spatial, *others, strict=True)]


# --- numbers ---------------------------------------------------------------------------------------------------------


def _ties(s: Subject) -> bool:
    """Whether the maximum of a window is there twice."""
    if s.problem.op not in SELECTIONS or not s.arrays or s.arrays[0].size == 0 or s.parts.window is None:
        return False
    x, taps, is_float = s.arrays[0], table(s.parts.window), bool(s.floats)
    cells = take(x.reshape(-1, prod(x.shape[x.ndim - s.problem.rank :])), taps)
    real, nans = taps >= 0, np.isnan(cells) if is_float else np.zeros(cells.shape, np.bool_)
    least = x.dtype.type(-np.inf) if is_float else np.iinfo(x.dtype).min
    top = np.where(real & ~nans, cells, least).max(axis=-1, keepdims=True)
    tied = np.where((nans & real).any(axis=-1, keepdims=True), nans & real, real & (cells == top))
    return bool((tied.sum(axis=-1) > 1).any())


def _has_both_zeros(array: Array) -> bool:
    signs = np.signbit(array[array == 0])
    return bool(signs.any() and not signs.all())


def _has_subnormals(array: Array, dtype: str) -> bool:
    return bool(((array != 0) & (np.abs(array) < float(format_named(dtype).normal))).any())


def _has_huge(array: Array, dtype: str) -> bool:
    """Some near the largest number: within a factor of 16, or of integers within 8 of either end."""
    if array.dtype.kind in "iu":
        ends = np.iinfo(array.dtype)
        return bool(((array > ends.max - 8) | ((array < ends.min + 8) if ends.min else np.False_)).any())
    return bool((np.isfinite(array) & (np.abs(array) >= float(format_named(dtype).largest) / 16)).any())


PREDICATES: dict[str, Callable[[Subject], bool]] = {
    "asymmetric": _asymmetric,
    "overlapping": lambda s: any(map(_overlaps, s.parts.axes)),
    "non_divisible": lambda s: any(map(_does_not_divide, s.parts.axes)),
    "strided": lambda s: any(axis.stride > 1 and axis.outputs > 1 for axis in s.parts.sliding),
    "dilated": lambda s: any(axis.dilation > 1 and axis.kernel > 1 for axis in s.parts.sliding),
    "common_factor": lambda s: any(
        axis.kernel > 1 and axis.outputs > 1 and gcd(axis.stride, axis.dilation) > 1 for axis in s.parts.sliding
    ),
    "kernel_2": lambda s: {*s.parts.each("kernel")} == {2},
    "kernel_3": lambda s: {*s.parts.each("kernel")} == {3},
    "padding_only_window": _padding_only_window,
    "ceil_mode": lambda s: (
        bool(s.given("ceil_mode"))
        and any(a.outputs > (a.size + a.lo + a.hi - extent(a)) // a.stride + 1 for a in s.parts.sliding)
    ),
    "count_exclude_pad": lambda s: (
        s.given("count_include_pad") is False
        and s.given("divisor_override") is None
        and any(extremes(axis).fewest < extremes(axis).taps for axis in s.parts.axes)
    ),
    "divisor_override": lambda s: s.given("divisor_override") is not None,
    "grouped": lambda s: s.parts.channels is not None and 1 < (s.given("groups") or 1) < s.parts.channels,
    "depthwise": lambda s: 1 < (s.given("groups") or 1) == s.parts.channels,
    "output_padding": lambda s: bool(np.any(s.given("output_padding") or 0)),
    "ties": _ties,
    "nan": lambda s: any(np.isnan(array).any() for array in s.floats),
    "infinity": lambda s: any(np.isinf(array).any() for array in s.floats),
    "signed_zero": lambda s: any(map(_has_both_zeros, s.floats)),
    "subnormal": lambda s: any(_has_subnormals(array, s.problem.dtype) for array in s.floats),
    "huge": lambda s: any(_has_huge(array, s.problem.dtype) for array in s.arrays if array is not s.indices),
    "empty_batch": lambda s: 0 in s.parts.lead,
    "zero_channels": lambda s: (
        s.parts.channels == 0 or (s.parts.form is not None and 0 in (s.parts.form.x_channels, s.parts.form.g_channels))
    ),
    "one_cell_axis": lambda s: 1 in s.parts.spatial,
    "non_contiguous": lambda s: s.layout in NON_CONTIGUOUS,
    "channels_last": lambda s: s.layout == "channels_last" and s.parts.channels is not None,
    "low_precision": lambda s: s.problem.dtype in ("f16", "bf16"),
    "long_sum": lambda s: leaves(s.problem, s.mode) >= LONG_SUM,
    "many_hits_one_cell": _many_hits_one_cell,
    "integer": lambda s: s.problem.dtype not in FLOATS,
    "large": lambda s: max(map(prod, (*s.problem.named_shapes().values(), s.parts.output))) >= LARGE,
    "rank4": lambda s: s.problem.rank == 4,
    "block_width": lambda s: _lengths(s)[-1] >= BLOCK,
    "block_height": lambda s: max(_lengths(s)[:-1], default=0) >= BLOCK,
    "block_channels": lambda s: (s.parts.channels or 0) >= BLOCK,
    "block_out_channels": lambda s: s.parts.form is not None and s.parts.output[-1 - s.problem.rank] >= BLOCK,
    "block_groups": lambda s: (s.given("groups") or 1) >= BLOCK,
    "block_batch": lambda s: s.parts.samples >= BLOCK,
}
"""Every tag's predicate. Those of the numbers are false where no numbers are given."""
REFERENCE_PREDICATES: dict[str, Callable[[Subject], bool]] = {
    "one_cell_axis": lambda s: 1 in s.sizes,
    "empty": lambda s: 0 in s.sizes,
    "block_size": lambda s: max(s.sizes, default=0) >= BLOCK,
    "non_contiguous": lambda s: s.layout in (*NON_CONTIGUOUS, "channels_last"),
    **{name: PREDICATES[name] for name in ("low_precision", "nan", "infinity")},
}
"""Those of a reference, whose axes mean nothing in particular."""
