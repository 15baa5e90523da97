"""Unfold and fold, each the other's transpose."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import MOVED, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, require_numbers
from gradspec.ops.conv import Sizes, StatedWindows, add_columns, columns
from gradspec.ops.rules import applying, most_windows
from gradspec.ops.shape import leading_batch
from gradspec.spec.errors import ShapeError
from gradspec.spec.unfold import fold as fold_spec
from gradspec.spec.unfold import unfold as unfold_spec
from gradspec.spec.window import Ints, Padding, per_axis, regular, spatial_rank, spatial_sizes

# --- unfold ----------------------------------------------------------------------------------------------------------


def _require_all_windows(attrs: StatedWindows) -> None:
    """Columns hold every window that fits, so the outputs follow from the rest."""
    every = regular(attrs.sizes, attrs.kernel, attrs.stride, attrs.padding, attrs.dilation).outputs
    if attrs.outputs != every:
        raise ShapeError(f"{attrs.outputs} windows are stated, but {every} fit")


def _unfold_types(attrs: StatedWindows, x: TensorType) -> tuple[TensorType]:
    _require_all_windows(attrs)
    if spatial_sizes(x.shape, attrs.rank, channels=1) != attrs.sizes:
        raise ShapeError(f"{x} does not have the spatial sizes {attrs.sizes}")
    at = x.ndim - attrs.rank - 1
    return (TensorType(x.dtype, (*x.shape[:at], x.shape[at] * prod(attrs.kernel), prod(attrs.outputs))),)


UNFOLD = Op(
    "unfold",
    StatedWindows,
    types=_unfold_types,
    spec=lambda attrs, x: (unfold_spec(x, attrs.kernel, attrs.dilation, attrs.padding, attrs.stride),),
    batch=leading_batch,
    linear="jointly",
    sums=MOVED,
    transpose=lambda attrs, cotangents, types, i: apply(FOLD, attrs, *cotangents),
    decompose=lambda attrs, x: (columns(attrs, x),),
)


def unfold(x: Operand, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1) -> Var:
    """Every window of ``x (..., C, *spatial)`` as a column: ``(..., C·taps, windows)``, padding read as 0.

    >>> unfold(np.float32([[1, 2, 3]]), (2,)).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    (x,) = operands(x)
    with applying("unfold", x):
        sizes = spatial_sizes(x.shape, spatial_rank("kernel_size", kernel_size), channels=1)
        windows = _stated(sizes, kernel_size, dilation, padding, stride)
    return apply(UNFOLD, windows, x)


def _stated(sizes: Sizes, kernel_size: Sequence[int], dilation: Ints, padding: Padding, stride: Ints) -> StatedWindows:
    steps = per_axis("stride", stride, len(sizes), least=1)
    return StatedWindows.of(regular(sizes, kernel_size, steps, padding, dilation))


# --- fold ------------------------------------------------------------------------------------------------------------


def _fold_types(attrs: StatedWindows, x: TensorType) -> tuple[TensorType]:
    require_numbers("fold", x)
    _require_all_windows(attrs)
    taps, windows = prod(attrs.kernel), prod(attrs.outputs)
    if x.ndim < 2 or x.shape[-1] != windows or x.shape[-2] % taps:
        raise ShapeError(
            f"{x} does not fold onto {attrs.sizes}: (..., C·{taps}, {windows}) is needed for {taps} taps and "
            f"{windows} windows"
        )
    return (TensorType(x.dtype, (*x.shape[:-2], x.shape[-2] // taps, *attrs.sizes)),)


FOLD: Op = Op(
    "fold",
    StatedWindows,
    types=_fold_types,
    spec=lambda attrs, x: (fold_spec(x, attrs.sizes, attrs.kernel, attrs.dilation, attrs.padding, attrs.stride),),
    batch=leading_batch,
    linear="jointly",
    sums=Sums(max_roundings=lambda attrs, x: most_windows(attrs.window), coefficient_quantum=ones),
    transpose=lambda attrs, cotangents, types, i: apply(UNFOLD, attrs, *cotangents),
    decompose=lambda attrs, x: (add_columns(attrs, x),),
)


def fold(
    x: Operand,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Var:
    """Columns ``(..., C·taps, windows)`` added back onto planes of ``output_size``; padding drops what falls on it.

    >>> fold(np.float32([[1, 2], [3, 4]]), (3,), (2,)).tolist()
    [[1.0, 5.0, 4.0]]
    """
    (x,) = operands(x)
    with applying("fold", x):
        sizes = per_axis("output_size", output_size, spatial_rank("kernel_size", kernel_size), least=1)
        windows = _stated(sizes, kernel_size, dilation, padding, stride)
    return apply(FOLD, windows, x)
