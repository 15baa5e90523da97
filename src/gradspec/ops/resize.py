"""Resizing and its transpose."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import prod

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import LATER, Op, Operand, Sums, Var
from gradspec.graph.types import TensorType, require_floats
from gradspec.ops.rules import applying
from gradspec.ops.shape import leading_batch
from gradspec.spec.errors import ShapeError
from gradspec.spec.resize import Axis, Place, Taps, axis_taps, gathered, resized_axes, scattered, table
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes

LARGEST = 2**63 - 1

Ratios = tuple[tuple[int, int], ...]
"""A numerator and a denominator for each axis."""


@dataclass(frozen=True)
class Resize:
    """Sizes before and after, and where the outputs lie: both ``step`` and ``start``, or None, from the sizes."""

    sizes: tuple[int, ...]
    outputs: tuple[int, ...]
    mode: str
    align_corners: bool
    step: Ratios | None = field(default=None, metadata=LATER)
    start: Ratios | None = field(default=None, metadata=LATER)
    rounding: str = field(default="floor", metadata=LATER)

    @property
    def axes(self) -> list[Axis]:
        """The positions of the outputs along each axis."""
        step, start = _fractions("step", self.step), _fractions("start", self.start)
        return resized_axes(self.sizes, self.outputs, self.mode, self.align_corners, step, start, self.rounding)

    @property
    def taps(self) -> list[Taps]:
        return table(self.axes)


def _fractions(name: str, ratios: Ratios | None) -> list[Fraction] | None:
    if ratios is None:
        return None
    if any(denominator < 1 for _, denominator in ratios):
        raise ShapeError(f"{name}={ratios} has a denominator below 1; give numerators and positive denominators")
    return [Fraction(*ratio) for ratio in ratios]


def _types(name: str, attrs: Resize, x: TensorType, before: tuple[int, ...], after: tuple[int, ...]) -> TensorType:
    require_floats(name, x)
    per_axis("size", attrs.outputs, len(attrs.sizes), least=1)
    if (attrs.step is None) != (attrs.start is None):
        raise ShapeError(f"step={attrs.step} and start={attrs.start}: a node has both of them or neither")
    _ = attrs.axes
    if spatial_sizes(x.shape, len(before)) != before:
        raise ShapeError(f"{x} does not end in the sizes {before}")
    return TensorType(x.dtype, x.shape[: x.ndim - len(before)] + after)


def _taps(attrs: Resize, x: TensorType) -> int:
    """Two cells along each axis, each times a weight that is itself rounded."""
    return int(2 ** len(attrs.sizes)) + 3 * len(attrs.sizes)


def _readers(attrs: Resize, g: TensorType) -> int:
    """The outputs that share one cell, at most: those whose positions lie within one cell of it, or beyond the end."""
    return prod(_most_readers(axis) for axis in attrs.axes) + 3 * len(attrs.sizes)


def _most_readers(axis: Axis) -> int:
    counts = Counter(cell for taps in axis_taps(axis) for cell, _ in taps)
    return int(max(counts.values(), default=1))


RESIZE = Op(
    "resize",
    Resize,
    types=lambda attrs, x: (_types("resize", attrs, x, attrs.sizes, attrs.outputs),),
    spec=lambda attrs, x: (gathered(x, attrs.taps, attrs.outputs),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(max_roundings=_taps),
    transpose=lambda attrs, cotangents, types, i: apply(RESIZE_TRANSPOSE, attrs, *cotangents),
)
RESIZE_TRANSPOSE: Op = Op(
    "resize_transpose",
    Resize,
    types=lambda attrs, g: (_types("resize_transpose", attrs, g, attrs.outputs, attrs.sizes),),
    spec=lambda attrs, g: (scattered(g, attrs.taps, attrs.sizes),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(max_roundings=_readers),
    transpose=lambda attrs, cotangents, types, i: apply(RESIZE, attrs, *cotangents),
)


def resize(
    x: Operand,
    size: Sequence[int],
    mode: str = "nearest",
    align_corners: bool = False,
    *,
    step: Place | Sequence[Place] | None = None,
    start: Place | Sequence[Place] | None = None,
    rounding: str = "floor",
) -> Var:
    """The last ``len(size)`` axes resized to ``size``, by the nearest cell or linearly between cells.

    Output ``o`` of an axis lies at ``start + o·step`` among its cells: one number for all axes or one for each, used
    exactly (pass a ``fractions.Fraction`` for what a float cannot represent). Unless given, they follow from the sizes.
    ``rounding`` says which cell is the nearest: ``"floor"``, ``"ceil"``, or ``"half_down"`` and ``"half_up"``, which
    differ halfway.

    >>> resize(np.float32([0, 1]), (4,), "linear").tolist()
    [0.0, 0.25, 0.75, 1.0]
    >>> resize(np.float32([0, 1, 2, 3]), (3,), step=1.5, start=0.25, rounding="half_down").tolist()
    [0.0, 2.0, 3.0]
    """
    (x,) = operands(x)
    with applying("resize", x):
        rank = spatial_rank("size", size)
        sizes, outputs = spatial_sizes(x.shape, rank), per_axis("size", size, rank, least=1)
        attrs = Resize(sizes, outputs, mode, bool(align_corners), rounding=rounding)
        axes = resized_axes(sizes, outputs, mode, align_corners, step, start, rounding)
        if axes != attrs.axes:
            steps, starts = _ratios("step", [a.step for a in axes]), _ratios("start", [a.start for a in axes])
            attrs = replace(attrs, step=steps, start=starts)
    return apply(RESIZE, attrs, x)


def _ratios(name: str, places: list[Fraction]) -> Ratios:
    for place in places:
        if max(abs(place.numerator), place.denominator) > LARGEST:
            raise ShapeError(
                f"{name} {place} is not a quotient of 64-bit integers; round it, as by .limit_denominator()"
            )
    return tuple((place.numerator, place.denominator) for place in places)
