"""Unfold and fold, each the other's transpose, and the record of window geometry that convolution shares with them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from gradspec.graph.attributes import IMPLIED, usual
from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Op
from gradspec.graph.types import TensorType, require_numbers
from gradspec.ops.batching import leading_batch
from gradspec.ops.rules import applying
from gradspec.spec.errors import ShapeError
from gradspec.spec.unfold import fold as fold_spec
from gradspec.spec.unfold import unfold as unfold_spec
from gradspec.spec.window import (
    Ints,
    Padding,
    Regular,
    Window,
    per_axis,
    regular,
    spatial_rank,
    spatial_sizes,
    stated,
)

Sizes = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """A regular window with every extent stated, one entry per spatial axis."""

    sizes: Sizes = field(metadata=IMPLIED)
    kernel: Sizes
    stride: Sizes = field(metadata=usual(1))
    padding: tuple[tuple[int, int], ...] = field(metadata=usual((0, 0)))
    dilation: Sizes = field(metadata=usual(1))
    outputs: Sizes = field(metadata=IMPLIED)

    @property
    def rank(self) -> int:
        return len(self.kernel)

    @property
    def window(self) -> Window:
        """The window, if its numbers make one: every tap must lie on the padded axis."""
        return stated(self.sizes, self.kernel, self.stride, self.padding, self.dilation, self.outputs)


def extents(window: Window) -> dict[str, Any]:
    """The fields of Geometry, from a regular window."""
    axes = [axis for axis in window.axes if isinstance(axis, Regular)]
    return {
        "sizes": window.sizes,
        "kernel": tuple(axis.kernel for axis in axes),
        "stride": tuple(axis.stride for axis in axes),
        "padding": tuple((axis.lo, axis.hi) for axis in axes),
        "dilation": tuple(axis.dilation for axis in axes),
        "outputs": window.outputs,
    }


# --- unfold ----------------------------------------------------------------------------------------------------------


def _require_all_windows(attrs: Geometry) -> None:
    """Columns hold every window that fits, so the outputs follow from the rest."""
    every = regular(attrs.sizes, attrs.kernel, attrs.stride, attrs.padding, attrs.dilation).outputs
    if attrs.outputs != every:
        raise ShapeError(f"{attrs.outputs} windows are stated, but {every} fit")


def _unfold_types(attrs: Geometry, x: TensorType) -> tuple[TensorType]:
    _require_all_windows(attrs)
    if spatial_sizes(x.shape, attrs.rank, channels=1) != attrs.sizes:
        raise ShapeError(f"{x} does not have the spatial sizes {attrs.sizes}")
    at = x.ndim - attrs.rank - 1
    return (TensorType(x.dtype, (*x.shape[:at], x.shape[at] * prod(attrs.kernel), prod(attrs.outputs))),)


UNFOLD = Op(
    "unfold",
    Geometry,
    types=_unfold_types,
    spec=lambda attrs, x: (unfold_spec(x, attrs.kernel, attrs.dilation, attrs.padding, attrs.stride),),
    batch=leading_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: apply(FOLD, attrs, *cotangents),
)


def unfold(x: Any, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1) -> Any:
    """Every window of ``x (..., C, *spatial)`` as a column: ``(..., C·taps, windows)``, padding read as 0.

    >>> import numpy as np
    >>> unfold(np.float32([[1, 2, 3]]), (2,)).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    (x,) = operands(x)
    with applying("unfold", x):
        sizes = spatial_sizes(x.shape, spatial_rank("kernel_size", kernel_size), channels=1)
        geometry = _geometry(sizes, kernel_size, dilation, padding, stride)
    return apply(UNFOLD, geometry, x)


def _geometry(sizes: Sizes, kernel_size: Sequence[int], dilation: Ints, padding: Padding, stride: Ints) -> Geometry:
    steps = per_axis("stride", stride, len(sizes), least=1)
    return Geometry(**extents(regular(sizes, kernel_size, steps, padding, dilation)))


# --- fold ------------------------------------------------------------------------------------------------------------


def _fold_types(attrs: Geometry, x: TensorType) -> tuple[TensorType]:
    require_numbers("fold", x)
    _require_all_windows(attrs)
    taps, windows = prod(attrs.kernel), prod(attrs.outputs)
    if x.ndim < 2 or x.shape[-1] != windows or x.shape[-2] % taps:
        raise ShapeError(
            f"{x} does not fold onto {attrs.sizes}: (..., C·{taps}, {windows}) is needed for {taps} taps and "
            f"{windows} windows"
        )
    return (TensorType(x.dtype, (*x.shape[:-2], x.shape[-2] // taps, *attrs.sizes)),)


def _fold_spec(attrs: Geometry, x: Any) -> tuple[Any]:
    return (fold_spec(x, attrs.sizes, attrs.kernel, attrs.dilation, attrs.padding, attrs.stride),)


FOLD: Op = Op(
    "fold",
    Geometry,
    types=_fold_types,
    spec=_fold_spec,
    batch=leading_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: apply(UNFOLD, attrs, *cotangents),
)


def fold(
    x: Any,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Any:
    """Columns ``(..., C·taps, windows)`` added back onto planes of ``output_size``; padding drops what falls on it.

    >>> import numpy as np
    >>> fold(np.float32([[1, 2], [3, 4]]), (3,), (2,)).tolist()
    [[1.0, 5.0, 4.0]]
    """
    (x,) = operands(x)
    with applying("fold", x):
        sizes = per_axis("output_size", output_size, spatial_rank("kernel_size", kernel_size), least=1)
        geometry = _geometry(sizes, kernel_size, dilation, padding, stride)
    return apply(FOLD, geometry, x)
