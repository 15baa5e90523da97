"""Resizing and its transpose."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.graph.builder import apply, operands
from gradspec.graph.op import Op
from gradspec.graph.types import TensorType, require_floats
from gradspec.ops.rules import applying, leading_batch
from gradspec.spec.errors import ShapeError
from gradspec.spec.resize import Taps, gathered, require_mode, scattered, table
from gradspec.spec.window import per_axis, spatial_rank, spatial_sizes


@dataclass(frozen=True)
class Resize:
    """Sizes before and after, and where the outputs lie."""

    sizes: tuple[int, ...]
    outputs: tuple[int, ...]
    mode: str
    align_corners: bool

    @property
    def taps(self) -> list[Taps]:
        return table(self.sizes, self.outputs, self.mode, self.align_corners)


def _types(name: str, attrs: Resize, x: TensorType, before: tuple[int, ...], after: tuple[int, ...]) -> TensorType:
    require_floats(name, x)
    require_mode(attrs.sizes, attrs.mode, attrs.align_corners)
    per_axis("size", attrs.outputs, len(attrs.sizes), least=1)
    if spatial_sizes(x.shape, len(before)) != before:
        raise ShapeError(f"{x} does not end in the sizes {before}")
    return TensorType(x.dtype, x.shape[: x.ndim - len(before)] + after)


RESIZE = Op(
    "resize",
    Resize,
    types=lambda attrs, x: (_types("resize", attrs, x, attrs.sizes, attrs.outputs),),
    spec=lambda attrs, x: (gathered(x, attrs.taps, attrs.outputs),),
    batch=leading_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: apply(RESIZE_TRANSPOSE, attrs, *cotangents),
)
RESIZE_TRANSPOSE: Op = Op(
    "resize_transpose",
    Resize,
    types=lambda attrs, g: (_types("resize_transpose", attrs, g, attrs.outputs, attrs.sizes),),
    spec=lambda attrs, g: (scattered(g, attrs.taps, attrs.sizes),),
    batch=leading_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: apply(RESIZE, attrs, *cotangents),
)


def resize(x: Any, size: Sequence[int], mode: str = "nearest", align_corners: bool = False) -> Any:
    """The last ``len(size)`` axes resized to ``size``, by the nearest cell or linearly between cells.

    >>> import numpy as np
    >>> resize(np.float32([0, 1]), (4,), "linear").tolist()
    [0.0, 0.25, 0.75, 1.0]
    """
    (x,) = operands(x)
    with applying("resize", x):
        rank = spatial_rank("size", size)
        sizes, outputs = spatial_sizes(x.shape, rank), per_axis("size", size, rank, least=1)
        require_mode(sizes, mode, align_corners)
    return apply(RESIZE, Resize(sizes, outputs, mode, bool(align_corners)), x)
