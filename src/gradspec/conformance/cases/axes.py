"""Axes to build windows from: many small ones, sorted by what is special about them, and others drawn for a purpose.

A kernel in blocks of B does the last of them apart when B does not divide a size, and does two in turns or goes to
a second level of blocks when there are enough of them. ``2^k + 1`` exceeds all blocks of 2^j by one, ``2^k − 1`` is one
short of them, and odd multiples leave one block over where they go in pairs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, cached_property, lru_cache
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.model.domain import FREE, AxisDomain

Ints: TypeAlias = NDArray[np.int64]
Number = TypeVar("Number", int, Ints)

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

    >>> len(axes("sliding", 2, "small", False, FREE._replace(dilation=(1,))).having(mask(["dilated"])))
    0
    """
    rng = generator(rank, len(kind), int(ceil))
    scale = scale_of(kind, rank)
    least, largest = scale.sizes
    if family == "adaptive":
        most = scale.outputs if least > 1 else max(scale.outputs, 2 * scale.many + 2)
        return _binned_axes(within.sizes or range(least, largest), within.output_size or range(1, most + 1), scale.many)
    if family == "whole":
        return _binned_axes(within.sizes or range(least, largest + 1), (1,), scale.many)
    return _sliding_axes(rng, scale, ceil, family == "transposed", within)


# --- sliding windows -------------------------------------------------------------------------------------------------


def _sliding_axes(
    rng: np.random.Generator, scale: Scale, ceil: bool, transposed: bool, within: AxisDomain
) -> AxisTable:
    count = scale.drawn
    k = _draw_allowed(rng, within.kernel_size, rng.integers(scale.kernels[0], scale.kernels[1] + 1, count))
    s = _draw_allowed(rng, within.stride, rng.choice(scale.strides, count))
    d = _draw_allowed(rng, within.dilation, rng.choice(scale.dilations, count))
    extent = d * (k - 1) + 1
    least = 1 if scale.sizes[0] == 1 else extent
    # A fifth of one-cell axes, because in so small a corner the rarest combinations live.
    n = np.where(rng.random(count) < 0.2, least, rng.integers(scale.sizes[0], scale.sizes[1] + 1, count))
    if within != FREE:  # wide windows need long axes
        n = np.where(rng.random(count) < 0.3, extent + rng.integers(0, 3 * s + 2), n)
    n = _draw_allowed(rng, within.sizes, n)
    lo = np.where((n == 1) & (rng.random(count) < 0.5), extent - rng.integers(0, 3, count), _paddings(rng, k, extent))
    lo = np.maximum(lo, 0)
    hi = np.where(rng.random(count) < 0.25, _paddings(rng, k, extent), lo)
    if within.padding is not None:
        lo, hi = rng.choice(within.padding, count).T
    extra = rng.integers(0, np.maximum(s, d)) * (rng.random(count) < 0.5) if transposed else np.zeros(count, np.int64)
    extra = _draw_allowed(rng, within.output_padding, extra)
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


def _draw_allowed(rng: np.random.Generator, allowed: tuple[int, ...] | None, drawn: Ints) -> Ints:
    return drawn if allowed is None else rng.choice(allowed, len(drawn))


def _paddings(rng: np.random.Generator, k: Ints, extent: Ints) -> Ints:
    """None, up to half the kernel, up to the window, or just beyond it."""
    kind, share = rng.integers(0, 6, len(k)), rng.random(len(k))
    wide = np.where(kind == 5, extent + (share < 0.3), np.ceil(share * extent))
    return np.where(kind < 2, 0, np.where(kind < 4, np.ceil(share * (k // 2)), wide)).astype(np.int64)


def output_count(n: Number, extent: Number, s: Number, lo: Number, hi: Number, ceil: bool) -> Number:
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
    return _pack_traits(found), 3 * ((real > 0) & there).sum(axis=1) >= outputs


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


def _pack_traits(found: dict[str, NDArray[np.bool_]]) -> Ints:
    return np.asarray(sum(np.asarray(found[name], np.int64) * BIT[name] for name in found), np.int64)


# --- other windows ---------------------------------------------------------------------------------------------------


def _binned_axes(sizes: Sequence[int], bins: Sequence[int], many: int) -> AxisTable:
    n, m = (grid.ravel() for grid in np.meshgrid(np.asarray(sizes), np.asarray(bins), indexing="ij"))
    uneven = n % m != 0
    found = {
        "overlapping": uneven,
        "non_divisible": uneven,
        "one_cell_axis": n == 1,
        "hit": m // n >= many,
        "deep": np.where(uneven, n // m + 1, n // m) >= many,
    }
    zeros, ones = np.zeros_like(n), np.ones_like(n)
    return AxisTable(np.stack([n, ones, ones, zeros, zeros, ones, zeros, m], 1), _pack_traits(found))


# --- long axes --------------------------------------------------------------------------------------------------------


BLOCKS = {
    "block_width": "the last axis",
    "block_height": "another spatial axis",
    "block_channels": "channels, those of the input",
    "block_out_channels": "channels of the output",
    "block_groups": "groups of channels",
    "block_batch": "samples",
}
"""The features of a long axis, and which axis it is."""
SIZES = (
    *(2049, 2047, 1536, 257, 1025, 192, 513, 129, 255, 65, 2048, 800, 33, 161, 1023, 97),
    *(511, 160, 127, 101, 63, 49, 48, 31, 17, 15, 1024, 512, 256, 128, 64, 32, 16),
)
"""In the order in which they are tried. The first exceeds every usual block and is divided by none; so does the second,
with as many left over as can be and, behind them, an odd number of blocks; many divide the third."""
BEYOND_GRID = (65_537, 65_535)
"""Around the most that the second and third axis of a grid of CUDA take, for samples and planes."""
MOST_BESIDE = 257
"""Of a corner's longer axis, and of what the oracle takes a while for: groups, and smooth maxima."""
OFTEN = 520
"""Sizes of most cases that have other features beside, which are many."""
MULTIPLES = 4096
"""Blocks that are longer are not repeated."""


def sizes_around(blocks: Sequence[int]) -> list[int]:
    """Sizes at which kernels of these blocks go wrong: one more, one less, and odd multiples.

    >>> sizes_around([96])
    [289, 97, 96, 95, 288, 482, 191]
    """
    found: list[int] = []
    for block in blocks:
        single = [block + 1, block, block - 1]
        odd = [3 * block + 1, *single, 3 * block, 5 * block + 2, 2 * block - 1]
        found += odd if block <= MULTIPLES else single
    return [size for size in dict.fromkeys(found) if size > 0]


def most(op: str, blocks: Sequence[str]) -> int | None:
    """The longest axis of an operator's cases, if there is a limit."""
    limited = op == "smooth_max_pool" or len(blocks) > 1 or "block_groups" in blocks
    return MOST_BESIDE if limited else None


def draw_size(rng: np.random.Generator, op: str, blocks: Sequence[str], least: int) -> int:
    """A size of a case that has other features beside; mostly not among the longest."""
    longest = most(op, blocks) or (OFTEN if rng.random() < 0.8 else SIZES[0])
    return int(rng.choice([size for size in SIZES if least <= size <= longest]))


def stretch_axis(rng: np.random.Generator, axis: DrawnAxis, size: int, family: str, ceil: bool) -> DrawnAxis:
    """An axis whose input or, as often, whose output has so many cells.

    >>> stretch_axis(np.random.default_rng(0), DrawnAxis(5, 2, 2, outputs=2), 33, "sliding", False).outputs
    33
    """
    on_output = bool(rng.integers(2))
    if family == "whole":
        return axis._replace(size=size)
    if family == "adaptive":
        uneven = axis.size % axis.outputs != 0
        longer = size + size // 2 + 1 if uneven else size * int(rng.integers(1, 3))
        return axis._replace(size=longer, outputs=size) if on_output else axis._replace(size=size)
    extent = axis.dilation * (axis.kernel - 1) + 1
    if family == "transposed":
        before = size + axis.lo + axis.hi - extent - axis.extra
        count = before // axis.stride + 1 if on_output and before % axis.stride == 0 else size
        return axis._replace(size=count, outputs=count)
    if on_output:  # as many strides more, so that a rest at the end stays
        return axis._replace(size=axis.size + (size - axis.outputs) * axis.stride, outputs=size)
    outputs = int(output_count(size, extent, axis.stride, axis.lo, axis.hi, ceil))
    return axis._replace(size=size, outputs=outputs)


# --- axes drawn for a purpose -----------------------------------------------------------------------------------------
#
# A style is the name of such a purpose:
#
# simple         three cells and more, any kernels and strides together, paddings that differ between sides in half
# three_taps     a kernel of three along the last axis, and other kernels along the others
# wide_window    a kernel of 8 to 13 along the last axis, where maxima are found in runs of runs
# nothing_read   an axis all of whose windows lie in padding
# strided        padded axes of stride 2 or 3, with channels enough for one of them to hold special numbers
# long_channels  sums over so many channels that they are added up in chunks
# block          few cells, beside one axis that is made long; most take attributes at their defaults
# heavy          gradients of weights of so many products that they are added up in pieces


CHANNELS = {"strided": ((4, 5), (5, 4), (4, 4), (6, 4)), "long_channels": ((64, 2), (80, 1)), "heavy": ((8, 8),)}
"""Channels in and out of a convolution, where a style decides."""
HEAVY_SAMPLES = 8
_LONGEST = {1: 12, 2: 8, 3: 6, 4: 4}
_WIDEST = {1: 5, 2: 5, 3: 3, 4: 2}
TRIES = 50


def draw_axes(rng: np.random.Generator, style: str, family: str, rank: int, small: bool, ceil: bool) -> list[DrawnAxis]:
    """An axis for each of ``rank``; ``small`` ones have few windows.

    >>> [axis.kernel >= 8 for axis in draw_axes(np.random.default_rng(0), "wide_window", "sliding", 2, False, False)]
    [False, True]
    """
    if style == "block":
        style = str(rng.choice(["block", "stride_one", "side_by_side", "same"]))
    styles = ["simple" if style in ("three_taps", "wide_window", "nothing_read") else style] * rank
    if style == "nothing_read":
        styles[int(rng.integers(rank))] = style
    else:
        styles[-1] = style
    longest = 5 if small else _LONGEST[rank]
    if family == "adaptive":
        return [_adaptive_axis(rng, name, longest) for name in styles]
    if family == "whole":
        return [DrawnAxis(int(rng.integers(3, longest + 1)) * (3 if rank == 1 else 1)) for _ in styles]
    widest = 3 if small else _WIDEST[rank]
    return [_sliding_axis(rng, name, longest, widest, family == "transposed", ceil) for name in styles]


def _adaptive_axis(rng: np.random.Generator, style: str, longest: int) -> DrawnAxis:
    n = int(rng.integers(16, 28) if style == "wide_window" else rng.integers(3, longest + 1))
    bins = int(rng.integers(1, 3) if style == "wide_window" else rng.integers(1, n + 2))
    return DrawnAxis(n, outputs=bins)


def _sliding_axis(
    rng: np.random.Generator, style: str, longest: int, widest: int, transposed: bool, ceil: bool
) -> DrawnAxis:
    """A first axis that has a window; tries are many more than it takes."""
    for _ in range(TRIES):
        n, k, s, lo, hi, d = _numbers(rng, style, longest, widest)
        extent, extra = d * (k - 1) + 1, int(rng.integers(max(s, d))) if transposed and rng.random() < 0.3 else 0
        slack = n + lo + hi - extent
        size = (n - 1) * s - lo - hi + extent + extra
        if transposed and size >= 1:
            return DrawnAxis(n, k, s, lo, hi, d, extra, n)
        if not transposed and slack >= 0:
            count = slack // s + 1
            return DrawnAxis(n, k, s, lo, hi, d, 0, count + int(ceil and slack % s != 0 and count * s < n + lo))
    return DrawnAxis(5, 2, outputs=5 if transposed else 4)


def _numbers(rng: np.random.Generator, style: str, longest: int, widest: int) -> tuple[int, int, int, int, int, int]:
    """Size, kernel, stride, both paddings and dilation."""
    if style in ("stride_one", "side_by_side"):  # defaults of a convolution, and of a pooling
        k = int(rng.choice([1, 2, 3, 3]))
        return k + 1, k, 1 if style == "stride_one" else k, 0, 0, 1
    if style == "same":  # as most networks have it, also with a stride of two
        return int(rng.integers(2, 5)), 3, int(rng.integers(1, 3)), 1, 1, 1
    if style == "block":
        k = int(rng.integers(1, 4))
        return int(rng.integers(2, 5)), k, int(rng.integers(1, 3)), *_sides(rng, k), int(rng.choice([1, 1, 2]))
    if style == "heavy":
        return int(rng.integers(22, 27)), 3, 1, 1, 1, 1
    if style == "nothing_read":
        n = int(rng.integers(2, 6))
        return n, 2, 1, 1, 1, n + 1
    n = int(rng.integers(3, longest + 1))
    if style == "wide_window":
        k = int(rng.integers(8, 14))
        return k + n, k, int(rng.integers(1, 3)), *_sides(rng, k), 1
    if style == "three_taps":
        return n + 2, 3, int(rng.integers(1, 3)), *_sides(rng, 3), 1
    if style == "long_channels":
        return n, 3, 1, *_sides(rng, 3), 1
    k = int(rng.integers(1, widest + 1))
    if style == "strided":
        k = max(k, 3)
        return min(n, 5), k, int(rng.integers(2, 4)), int(rng.integers(1, k)), int(rng.integers(1, k)), 1
    return n, k, int(rng.integers(1, 4)), *_sides(rng, k), int(rng.choice([1, 1, 1, 1, 2]))


def _sides(rng: np.random.Generator, k: int) -> tuple[int, int]:
    """Paddings of up to half the kernel, or up to all but one of its cells; the same in half of the axes."""
    most = k // 2 if rng.random() < 0.7 else k - 1
    lo, hi = (int(side) for side in rng.integers(0, most + 1, 2))
    return (lo, hi) if rng.random() < 0.5 else (lo, lo)
