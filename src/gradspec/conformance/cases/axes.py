"""Axes to build windows from: many small ones, sorted by what is special about them."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache, cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.model.domain import FREE, AxisDomain

Ints: TypeAlias = NDArray[np.int64]

AXIS_FEATURES = (
    *("overlapping", "non_divisible", "dilated", "padding_only_window", "ceil_mode", "one_cell_axis"),
    *("output_padding", "strided", "common_factor"),
)
"""Features that one axis gives to the whole window."""
KERNELS = ("kernel_2", "kernel_3")
"""Features that all axes give together."""
TRAITS = (*AXIS_FEATURES, *KERNELS, "sided", "padded", "several", "hit", "deep")
"""What an axis can have: the features that one axis gives to its window or all give together, different paddings on
both sides, a window that reads padding, one that reads several cells, cells that many windows read, and windows that
read many cells."""
BIT = {name: 1 << i for i, name in enumerate(TRAITS)}
INCIDENTAL = sum(BIT[name] for name in ("strided", "common_factor", *KERNELS, "padded", "several", "hit", "deep"))
"""Traits that an axis may have unasked."""


class DrawnAxis(NamedTuple):
    """An axis: its input size, its window, output padding, and the number of windows (bins of an adaptive axis)."""

    size: int
    kernel: int = 1
    stride: int = 1
    lo: int = 0
    hi: int = 0
    dilation: int = 1
    extra: int = 0
    outputs: int = 1


def mask(traits: Iterable[str]) -> int:
    """
    >>> mask(["overlapping", "dilated"])
    5
    """
    return sum(BIT[name] for name in set(traits))


class Scale(NamedTuple):
    """How big axes are: the ranges they are drawn from, and what counts as many."""

    sizes: tuple[int, int]
    kernels: tuple[int, int]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    many: int
    outputs: int
    """The most windows."""
    drawn: int
    """How many axes are drawn."""


_SMALL = {1: (17, 5, 12, 16), 2: (9, 4, 4, 9), 3: (6, 3, 3, 6), 4: (5, 3, 2, 5)}
"""By rank: the largest size, kernel, what counts as many, and the most windows."""
_LEAST = {"many": (12, 4, 3, 2), "long": (32, 6, 4, 3), "deep": (1000, 32, 10, 6)}
"""For ranks 1 to 4: kernels whose windows together read at least 12, 32 and 1000 cells."""


def scale_of(kind: str, rank: int) -> Scale:
    if kind == "tiny":
        return Scale((1, 4), (1, 2 if rank > 2 else 3), (1, 2, 3), (1, 1, 2), 100, 3, 5_000)
    if kind == "small":
        size, kernel, many, outputs = _SMALL[rank]
        return Scale((1, size), (1, kernel), (1, 2, 3), (1, 1, 2, 3), many, outputs, 24_000 if rank == 1 else 5_000)
    least = _LEAST[kind][rank - 1]
    count = 5_000 if rank == 1 else 2_000
    if kind == "deep":
        strides = (1, 2, least // 2, least, least + 3)
        return Scale((least, 2 * least + 20), (least, least + 2), strides, (1, 2), least, 9, count)
    return Scale((1, 2 * least + 6), (least, 2 * least + 1), (1, 1, 2), (1, 1, 2), least, 3 * least + 8, count)


class AxisTable:
    """A collection of axes, by their traits."""

    def __init__(self, rows: Ints, traits: Ints) -> None:
        self.rows, self.traits = rows, traits

    @cached_property
    def _groups(self) -> dict[int, Ints]:
        own = self.traits & ~INCIDENTAL
        return {int(value): np.flatnonzero(own == value) for value in np.unique(own)}

    @cache  # noqa: B019  (tables are kept, too)
    def having(self, wanted: int) -> Ints:
        """The places of axes with these traits and, if there are such, no others."""
        for own in sorted(self._groups, key=lambda other: (other & ~wanted).bit_count()):
            if own & wanted == wanted & ~INCIDENTAL:
                found = self._groups[own]
                fitting: Ints = found[self.traits[found] & wanted == wanted]
                if len(fitting):
                    return fitting
        return np.zeros(0, np.int64)

    def draw(self, rng: np.random.Generator, wanted: int | None) -> DrawnAxis:
        """One of them, or one with any traits; there must be some."""
        found = np.arange(len(self.rows)) if wanted is None else self.having(wanted)
        return DrawnAxis(*self.rows[found[rng.integers(len(found))]].tolist())


@lru_cache(maxsize=512)
def axes(family: str, rank: int, kind: str, ceil: bool, within: AxisDomain = FREE) -> AxisTable:
    """The axes of a family (sliding, transposed, adaptive, whole) for one of ``rank`` axes, drawn once and for all.

    >>> len(axes("sliding", 2, "small", False, FREE._replace(dilations=(1,))).having(mask(["dilated"])))
    0
    """
    rng = generator(rank, len(kind), int(ceil))
    scale = scale_of(kind, rank)
    if family == "adaptive":
        return _adaptive_axes(scale, within)
    if family == "whole":
        return _whole_axes(scale, within)
    return _sliding_axes(rng, scale, ceil, family == "transposed", within)


# --- sliding windows -------------------------------------------------------------------------------------------------


def _sliding_axes(
    rng: np.random.Generator, scale: Scale, ceil: bool, transposed: bool, within: AxisDomain
) -> AxisTable:
    count = scale.drawn
    k = _allowed(rng, within.kernels, rng.integers(scale.kernels[0], scale.kernels[1] + 1, count))
    s = _allowed(rng, within.strides, rng.choice(scale.strides, count))
    d = _allowed(rng, within.dilations, rng.choice(scale.dilations, count))
    extent = d * (k - 1) + 1
    least = 1 if scale.sizes[0] == 1 else extent
    # A fifth of one-cell axes, because in so small a corner the rarest combinations live.
    n = np.where(rng.random(count) < 0.2, least, rng.integers(scale.sizes[0], scale.sizes[1] + 1, count))
    if within != FREE:  # wide windows need long axes
        n = np.where(rng.random(count) < 0.3, extent + rng.integers(0, 3 * s + 2), n)
    n = _allowed(rng, within.sizes, n)
    lo = np.where((n == 1) & (rng.random(count) < 0.5), extent - rng.integers(0, 3, count), _paddings(rng, k, extent))
    lo = np.maximum(lo, 0)
    hi = np.where(rng.random(count) < 0.25, _paddings(rng, k, extent), lo)
    if within.paddings is not None:
        lo, hi = rng.choice(within.paddings, count).T
    extra = rng.integers(0, np.maximum(s, d)) * (rng.random(count) < 0.5) if transposed else np.zeros(count, np.int64)
    extra = _allowed(rng, within.extras, extra)
    if transposed:
        rows = np.stack([n, k, s, lo, hi, d, extra, n], 1)
        rows = rows[((n - 1) * s - lo - hi + extent + extra >= 1) & (extra < np.maximum(s, d))]
    else:
        rows = np.stack([n, k, s, lo, hi, d, extra, output_count(n, extent, s, lo, hi, ceil)], 1)
        rows = rows[rows[:, 7] >= 1]
    return _few_windows(rows, scale, transposed, within)


def _few_windows(rows: Ints, scale: Scale, transposed: bool, within: AxisDomain) -> AxisTable:
    """The axes that have few windows, of which every third or more has a real cell."""
    if within != FREE:  # each once, and those of fewest windows where all have many
        rows = rows[np.lexsort((*rows.T[::-1], rows[:, 7]))]  # `np.unique` of rows takes four times as long
        rows = rows[np.append(True, (rows[1:] != rows[:-1]).any(axis=1))[: len(rows)]]
        few = max(int((rows[:, 7] <= scale.outputs).sum()), min(len(rows), 8))
        rows = rows[:few]
    else:
        rows = rows[rows[:, 7] <= scale.outputs]
    if not len(rows):
        return AxisTable(rows, np.zeros(0, np.int64))
    traits, alive = _sliding_traits(rows, scale.many, transposed)
    alive |= not alive.any()
    return AxisTable(rows[alive], traits[alive])


def _allowed(rng: np.random.Generator, allowed: tuple[int, ...] | None, drawn: Ints) -> Ints:
    return drawn if allowed is None else rng.choice(allowed, len(drawn))


def _paddings(rng: np.random.Generator, k: Ints, extent: Ints) -> Ints:
    """None, up to half the kernel, up to the window, or just beyond it."""
    kind, share = rng.integers(0, 6, len(k)), rng.random(len(k))
    wide = np.where(kind == 5, extent + (share < 0.3), np.ceil(share * extent))
    return np.where(kind < 2, 0, np.where(kind < 4, np.ceil(share * (k // 2)), wide)).astype(np.int64)


def output_count(n: Any, extent: Any, s: Any, lo: Any, hi: Any, ceil: bool) -> Any:
    """The windows of sliding axes, or of one.

    >>> output_count(7, 2, 3, 0, 0, False), output_count(7, 2, 3, 0, 0, True)
    (2, 3)
    """
    slack = n + lo + hi - extent
    outputs = slack // s + 1
    return outputs + (slack % s != 0) * (outputs * s < n + lo) if ceil else outputs


def _sliding_traits(rows: Ints, many: int, transposed: bool) -> tuple[Ints, NDArray[np.bool_]]:
    """The traits of all axes, and which axes have a real cell in every third window or more."""
    n, k, s, lo, hi, d, extra, outputs = rows.T
    extent = d * (k - 1) + 1
    size = (n - 1) * s - lo - hi + extent + extra if transposed else n
    slack = size + lo + hi - extent
    first = np.arange(int(outputs.max())) * s[:, None] - lo[:, None]
    there = np.arange(first.shape[1]) < outputs[:, None]
    last_tap = np.minimum(k[:, None] - 1, (size[:, None] - 1 - first) // d[:, None])
    real = np.maximum(last_tap - np.maximum(0, -(first // d[:, None])) + 1, 0)
    taps = np.minimum(k[:, None] - 1, ((size + hi)[:, None] - 1 - first) // d[:, None]) + 1
    fewest = np.where(there, real, 1 << 30).min(axis=1)
    most = np.where(there, real, 0).max(axis=1)
    found = {
        "overlapping": (outputs > 1) & (s < extent),
        "non_divisible": slack % s != 0,
        "dilated": (d > 1) & (k > 1),
        "padding_only_window": fewest == 0,
        "ceil_mode": outputs > slack // s + 1,
        "one_cell_axis": n == 1,
        "output_padding": extra > 0,
        "strided": (s > 1) & (outputs > 1),
        "common_factor": (np.gcd(s, d) > 1) & (k > 1) & (outputs > 1),
        "kernel_2": k == 2,
        "kernel_3": k == 3,
        "sided": lo != hi,
        "padded": np.where(there, real < taps, False).any(axis=1),
        "hit": _most_hits(rows, size) >= many if many < 100 else np.zeros(len(n), np.bool_),
        "deep": most >= many,
        "several": most > 1,
    }
    if transposed:
        found["ceil_mode"] = np.zeros(len(n), np.bool_)
    return _packed(found), 3 * ((real > 0) & there).sum(axis=1) >= outputs


def _most_hits(rows: Ints, size: Ints) -> Ints:
    """How many windows read the cell that most windows read, from below: of the cells at most windows' first taps."""
    _, k, s, lo, _, d, _, outputs = rows.T
    best = np.zeros(len(rows), np.int64)
    window = np.arange(int(outputs.max()))
    for middle in (0, 1, 2):
        cell = np.clip(middle * (size - 1) // 2, 0, size - 1)
        offset = (cell + lo)[:, None] - window * s[:, None]
        read = (offset % d[:, None] == 0) & (offset >= 0) & (offset <= (d * (k - 1))[:, None])
        best = np.maximum(best, (read & (window < outputs[:, None])).sum(axis=1))
    return best


def _packed(found: dict[str, NDArray[np.bool_]]) -> Ints:
    return np.asarray(sum(np.asarray(found[name], np.int64) * BIT[name] for name in found), np.int64)


# --- other windows ---------------------------------------------------------------------------------------------------


def _adaptive_axes(scale: Scale, within: AxisDomain) -> AxisTable:
    sizes = np.asarray(within.sizes or range(*scale.sizes))
    most = scale.outputs if scale.sizes[0] > 1 else max(scale.outputs, 2 * scale.many + 2)
    bins = np.asarray(within.outputs or range(1, most + 1))
    n, m = (grid.ravel() for grid in np.meshgrid(sizes, bins, indexing="ij"))
    uneven = n % m != 0
    longest = np.where(uneven, n // m + 1, n // m)
    found = {
        "overlapping": uneven,
        "non_divisible": uneven,
        "one_cell_axis": n == 1,
        "hit": m // n >= scale.many,
        "deep": longest >= scale.many,
    }
    zeros, ones = np.zeros_like(n), np.ones_like(n)
    return AxisTable(np.stack([n, ones, ones, zeros, zeros, ones, zeros, m], 1), _packed(found))


def _whole_axes(scale: Scale, within: AxisDomain) -> AxisTable:
    n = np.asarray(within.sizes or range(scale.sizes[0], scale.sizes[1] + 1))
    zeros, ones = np.zeros_like(n), np.ones_like(n)
    found = {"one_cell_axis": n == 1, "deep": n >= scale.many}
    return AxisTable(np.stack([n, ones, ones, zeros, zeros, ones, zeros, ones], 1), _packed(found))
