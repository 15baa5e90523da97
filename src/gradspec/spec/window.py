"""Axis windows: the only integer geometry in the project.

An axis window says, for one spatial axis of size ``n``, which positions each output index reads. A position is *real*
when it lies in ``0 … n−1``; the others are padding. A window is the product of its axis windows, scanned in row-major
order. Regular, adaptive and global windows differ in nothing else, and every number of dimensions is the same code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from operator import index
from typing import TypeAlias

from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Index, flat, indices

Ints: TypeAlias = int | Sequence[int]
Padding: TypeAlias = int | str | Sequence[int | Sequence[int]]


@dataclass(frozen=True, slots=True)
class Regular:
    """Window ``o`` reads ``o·stride − lo + dilation·t`` for ``t = 0 … kernel−1``, below ``size + hi``."""

    size: int
    kernel: int
    stride: int
    lo: int
    hi: int
    dilation: int
    outputs: int

    def positions(self, output: int) -> range:
        start = output * self.stride - self.lo
        stop = start + self.dilation * (self.kernel - 1) + 1
        # Only a window that ceil_mode added reaches size + hi.
        return range(start, min(stop, self.size + self.hi), self.dilation)

    def canonical(self) -> Regular:
        """The same window, where a stride without effect (one output) or a dilation (one tap) is at most the size.

        >>> Regular(size=4, kernel=2, stride=2**40, lo=0, hi=0, dilation=1, outputs=1).canonical().stride
        4
        """
        stride = self.stride if self.outputs > 1 else min(self.stride, self.size)
        dilation = self.dilation if self.kernel > 1 else min(self.dilation, self.size)
        if (stride, dilation) == (self.stride, self.dilation):
            return self
        return Regular(self.size, self.kernel, stride, self.lo, self.hi, dilation, self.outputs)

    def trimmed(self) -> Regular:
        """An equivalent window for operators that ignore padding, whose extents are of the order of the axis.

        Taps that are padding for every output are dropped.

        >>> Regular(size=4, kernel=2**40, stride=1, lo=2**39, hi=2**39, dilation=1, outputs=5).trimmed()
        Regular(size=4, kernel=8, stride=1, lo=4, hi=549755813888, dilation=1, outputs=5)
        """
        if max(self.kernel, self.stride, self.dilation, self.lo) <= 4 * self.size:
            return self
        first = max(0, -((self.stride * (self.outputs - 1) - self.lo) // self.dilation))
        end = min(self.kernel, (self.size - 1 + self.lo) // self.dilation + 1)
        if first >= end:
            return self.padding_only()
        lo = self.lo - first * self.dilation
        window = Regular(self.size, end - first, self.stride, lo, self.hi, self.dilation, self.outputs)
        return window.clamp_stride().canonical()

    def mirrored(self) -> Regular | None:
        """The outputs that read each cell, as windows on the outputs; None if they are not neighbours."""
        if self.stride > 1 or self.dilation > 1 or self.lo >= self.kernel:
            return None
        lo, hi = self.kernel - 1 - self.lo, max(self.kernel - 1 - self.hi, 0)
        return Regular(self.outputs, self.kernel, 1, lo, hi, 1, self.size)

    def clamp_stride(self) -> Regular:
        """An equivalent window with a smaller stride, if windows are so far apart that at most one meets the axis."""
        span = self.dilation * (self.kernel - 1)
        if self.outputs == 1 or self.stride <= self.size + span:
            return self
        last = min((self.lo + self.size - 1) // self.stride, self.outputs - 1)  # begins before the end of the axis
        start, stride = last * self.stride - self.lo, self.size + span
        if start + span < 0:
            return self.padding_only()
        return Regular(self.size, self.kernel, stride, last * stride - start, self.hi, self.dilation, self.outputs)

    def padding_only(self) -> Regular:
        """Windows of padding alone."""
        return Regular(self.size, 1, 1, self.outputs, self.hi, 1, self.outputs)


@dataclass(frozen=True, slots=True)
class Adaptive:
    """Window ``o`` reads ``⌊o·n/m⌋ … ⌈(o+1)·n/m⌉ − 1``: ``m`` bins that cover the axis, overlapping where m ∤ n."""

    size: int
    outputs: int

    def positions(self, output: int) -> range:
        n, m = self.size, self.outputs
        return range(output * n // m, -(-(output + 1) * n // m))


AxisWindow: TypeAlias = Regular | Adaptive


@dataclass(frozen=True, slots=True)
class Window:
    """A product of axis windows."""

    axes: tuple[AxisWindow, ...]

    @property
    def rank(self) -> int:
        return len(self.axes)

    @property
    def sizes(self) -> Index:
        return tuple(axis.size for axis in self.axes)

    @property
    def outputs(self) -> Index:
        return tuple(axis.outputs for axis in self.axes)

    def trimmed(self) -> Window:
        """A window on the same cells, for those who do not read padding: see `Regular.trimmed`."""
        return Window(tuple(axis.trimmed() if isinstance(axis, Regular) else axis for axis in self.axes))

    def mirrored(self) -> Window | None:
        """The outputs that read each cell, as windows on the outputs, where windows go on cell by cell; else None.

        >>> regular((3,), (2,), stride=1, padding=((1, 0),)).mirrored().table()
        [[0, 1], [1, 2], [2, None]]
        """
        axes = [axis.mirrored() if isinstance(axis, Regular) else None for axis in self.axes]
        found = tuple(axis for axis in axes if axis is not None)
        return Window(found) if len(found) == self.rank else None

    def taps(self, output: Index) -> list[int | None]:
        """The flat positions that ``output`` reads, in row-major order; None is padding."""
        sizes = self.sizes
        spans = [axis.positions(o) for axis, o in zip(self.axes, output, strict=True)]
        return [
            flat(place, sizes) if all(0 <= p < n for p, n in zip(place, sizes, strict=True)) else None
            for place in product(*spans)
        ]

    def table(self) -> list[list[int | None]]:
        """The taps of every output, outputs in row-major order.

        >>> regular((3,), (2,), stride=1, padding=1).table()
        [[None, 0], [0, 1], [1, 2], [2, None]]
        """
        return [self.taps(output) for output in indices(self.outputs)]

    def readers(self) -> list[list[tuple[int, int]]]:
        """The table read backwards: for every cell, each ``(tap number, output)`` that reads it, by tap number.

        >>> regular((3,), (2,), stride=1).readers()
        [[(0, 0)], [(0, 1), (1, 0)], [(1, 1)]]
        """
        readers: list[list[tuple[int, int]]] = [[] for _ in range(prod(self.sizes))]
        for output, taps in enumerate(self.table()):
            for number, cell in enumerate(taps):
                if cell is not None:
                    readers[cell].append((number, output))
        return [sorted(pairs) for pairs in readers]


# --- windows from the arguments that users write ---------------------------------------------------------------------


def regular(
    sizes: Index,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
) -> Window:
    """Sliding windows over axes of ``sizes``; ``stride`` defaults to the kernel.

    >>> regular((5, 5), (2, 2), ceil_mode=True).outputs
    (3, 3)
    """
    rank = len(sizes)
    kernel = per_axis("kernel_size", kernel_size, rank, least=1)
    steps = kernel if stride is None else per_axis("stride", stride, rank, least=1)
    spread = per_axis("dilation", dilation, rank, least=1)
    _require_cells(sizes)
    pads = paddings(padding, sizes, kernel, steps, spread)
    axes = zip(sizes, kernel, steps, pads, spread, strict=True)
    return Window(tuple(_regular_axis(i, *axis, bool(ceil_mode)) for i, axis in enumerate(axes)))


def _regular_axis(axis: int, n: int, k: int, s: int, pad: tuple[int, int], d: int, ceil_mode: bool) -> Regular:
    lo, hi = pad
    slack = n + lo + hi - d * (k - 1) - 1
    outputs = slack // s + 1
    if ceil_mode and slack % s and outputs * s < n + lo:
        outputs += 1
    if outputs < 1:
        raise ShapeError(
            f"spatial axis {axis}: a window of {d * (k - 1) + 1} cells (kernel {k}, dilation {d}) is wider than the "
            f"padded axis of {n + lo + hi} (size {n}, padding {lo} and {hi}); use a smaller window or more padding"
        )
    return Regular(n, k, s, lo, hi, d, outputs)


def transposed(
    sizes: Index, kernel: Index, stride: Ints, padding: Padding, output_padding: Ints, dilation: Ints
) -> Window:
    """The window whose *outputs* have ``sizes``: transposed convolution reads it backwards, onto its own ``sizes``.

    >>> transposed((3,), (4,), 2, 1, 0, 1).sizes
    (6,)
    """
    rank = len(sizes)
    steps = per_axis("stride", stride, rank, least=1)
    spread = per_axis("dilation", dilation, rank, least=1)
    extra = per_axis("output_padding", output_padding, rank, least=0)
    per_axis("kernel_size", kernel, rank, least=1)
    _require_cells(sizes)
    if isinstance(padding, str):
        raise ShapeError(
            f"padding={padding!r} has no meaning for a transposed convolution; give the number of cells to crop instead"
        )
    pads = paddings(padding, sizes, kernel, steps, spread)
    axes = zip(sizes, kernel, steps, pads, extra, spread, strict=True)
    return Window(tuple(_transposed_axis(i, *axis) for i, axis in enumerate(axes)))


def _transposed_axis(axis: int, n: int, k: int, s: int, pad: tuple[int, int], extra: int, d: int) -> Regular:
    lo, hi = pad
    if extra >= max(s, d):
        raise ShapeError(
            f"spatial axis {axis}: output_padding {extra} must be smaller than the stride {s} or the dilation {d}; "
            "it only chooses among the sizes that one strided convolution maps to the same size"
        )
    size = (n - 1) * s - lo - hi + d * (k - 1) + extra + 1
    if size < 1:
        raise ShapeError(
            f"spatial axis {axis}: the transposed convolution would have {size} cells "
            f"(size {n}, stride {s}, padding {lo} and {hi}, kernel {k}, dilation {d}); use less padding"
        )
    return Regular(size, k, s, lo, hi, d, n)


def stated(sizes: Index, kernel: Index, stride: Index, padding: Padding, dilation: Index, outputs: Index) -> Window:
    """Regular windows with every extent given, the number of outputs too; each tap must lie on the padded axis.

    >>> stated((6,), (4,), (2,), ((1, 1),), (1,), (3,)) == transposed((3,), (4,), 2, 1, 0, 1)
    True
    """
    arguments = {"sizes": sizes, "kernel": kernel, "stride": stride, "dilation": dilation, "outputs": outputs}
    extents = [per_axis(name, values, len(kernel), least=1) for name, values in arguments.items()]
    pads = paddings(padding, sizes, kernel, stride, dilation)
    return Window(tuple(_stated_axis(i, pad, *axis) for i, (pad, *axis) in enumerate(zip(pads, *extents, strict=True))))


def _stated_axis(axis: int, pad: tuple[int, int], n: int, k: int, s: int, d: int, outputs: int) -> Regular:
    (lo, hi), reach = pad, (outputs - 1) * s + d * (k - 1) + 1
    if reach > n + lo + hi:
        raise ShapeError(
            f"spatial axis {axis}: {outputs} windows (kernel {k}, stride {s}, dilation {d}) span {reach} cells, "
            f"but the padded axis has {n + lo + hi}; state fewer windows or more padding"
        )
    return Regular(n, k, s, lo, hi, d, outputs)


def adaptive(sizes: Index, output_size: Sequence[int | None]) -> Window:
    """``output_size`` bins per axis; None keeps the axis as it is.

    >>> adaptive((7,), (5,)).table()
    [[0, 1], [1, 2], [2, 3, 4], [4, 5], [5, 6]]
    """
    _require_cells(sizes)
    if spatial_rank("output_size", output_size) != len(sizes):
        raise _wrong_count("output_size", output_size, len(sizes))
    wanted = [n if m is None else m for n, m in zip(sizes, output_size, strict=True)]
    bins = per_axis("output_size", wanted, len(sizes), least=1)
    return Window(tuple(map(Adaptive, sizes, bins)))


def whole(sizes: Index) -> Window:
    """One window over everything: global pooling.

    >>> whole((2, 2)).table()
    [[0, 1, 2, 3]]
    """
    return adaptive(sizes, (1,) * len(sizes))


def per_axis(name: str, value: Ints, rank: int, least: int) -> Index:
    """One integer per spatial axis, from one for all of them or a sequence."""
    values = tuple(value) if isinstance(value, list | tuple) else (value,) * rank
    if len(values) != rank:
        raise _wrong_count(name, values, rank)
    return tuple(whole_number(f"{name} on spatial axis {axis}", v, least) for axis, v in enumerate(values))


def whole_number(what: str, value: object, least: int) -> int:
    """``value`` as an int of at least ``least``; a bool, a float or a string is a mistake."""
    try:
        number = None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None:
        raise ShapeError(f"{what} is {value!r}, a {type(value).__name__}; give an int of at least {least}")
    if number < least:
        raise ShapeError(f"{what} is {number}; give an int of at least {least}")
    return number


def paddings(padding: Padding, sizes: Index, kernel: Index, stride: Index, dilation: Index) -> list[tuple[int, int]]:
    """``(lo, hi)`` per axis from an int, one int or pair per axis, ``"valid"`` or ``"same"``."""
    rank = len(sizes)
    if isinstance(padding, str):
        if padding == "valid":
            return [(0, 0)] * rank
        if padding == "same":
            return [_same(*axis) for axis in zip(sizes, kernel, stride, dilation, strict=True)]
        raise ShapeError(
            f'padding={padding!r} is not known; give "same", "valid", an int, or one int or (lo, hi) per axis'
        )
    entries = padding if isinstance(padding, list | tuple) else (padding,) * rank
    if len(entries) != rank:
        raise _wrong_count("padding", entries, rank)
    return [_pair(axis, entry) for axis, entry in enumerate(entries)]


def _pair(axis: int, entry: int | Sequence[int]) -> tuple[int, int]:
    pair = tuple(entry) if isinstance(entry, list | tuple) else (entry, entry)
    if len(pair) != 2:
        raise ShapeError(f"padding on spatial axis {axis} is {entry!r}; give one int, or a pair (lo, hi)")
    lo, hi = (whole_number(f"padding on spatial axis {axis}", side, least=0) for side in pair)
    return lo, hi


def _same(n: int, k: int, s: int, d: int) -> tuple[int, int]:
    total = max((-(-n // s) - 1) * s + d * (k - 1) + 1 - n, 0)
    return total // 2, total - total // 2


def spatial_rank(name: str, value: object) -> int:
    """The number of spatial axes, which the length of a tuple fixes."""
    if not isinstance(value, list | tuple):
        raise _needs_tuple(name, value)
    return len(value)


def spatial_sizes(shape: Index, rank: int, channels: int = 0) -> Index:
    """The last ``rank`` axes of ``shape``, which must leave ``channels`` channel axes."""
    needed = rank + channels
    if len(shape) < needed:
        layout = "(..., C, *spatial)" if channels else "(..., *spatial)"
        raise ShapeError(
            f"a tensor of shape {shape} has {len(shape)} axes, but {rank} spatial axes need at least {needed}; "
            f"lay it out as {layout}"
        )
    return shape[len(shape) - rank :]


def _wrong_count(name: str, values: Sequence[object], rank: int) -> ShapeError:
    return ShapeError(f"{name}={values} gives {len(values)} entries for {rank} spatial axes; give one per axis")


def _needs_tuple(name: str, value: object) -> ShapeError:
    return ShapeError(
        f"{name}={value!r} does not say how many axes are spatial; give a tuple with one entry per spatial axis, "
        "such as (3, 3), or call the operator by its 1d, 2d or 3d name"
    )


def _require_cells(sizes: Index) -> None:
    for axis, n in enumerate(sizes):
        if n == 0:
            raise ShapeError(
                f"spatial axis {axis} has size 0; give it at least one cell (only leading axes may be empty)"
            )
