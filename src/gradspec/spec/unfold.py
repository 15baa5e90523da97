"""Unfold: every window's cells as a column; and its transpose, fold, which adds columns back onto the plane.

``x (*lead, C, *spatial)`` unfolds to ``(*lead, C·K, L)``: K taps per window in row-major order, padding read as 0, and
L windows in row-major order. A convolution is the weight matrix times this.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import add_up
from gradspec.spec.tensor import Index, Tensor, TensorLike, require_shape, tensor
from gradspec.spec.window import Ints, Padding, Window, per_axis, regular, spatial_rank, spatial_sizes


def unfold(
    x: TensorLike, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> Tensor:
    """Windows as columns.

    >>> unfold([[1, 2, 3]], (2,)).tolist()
    [[1, 2], [2, 3]]
    """
    x = tensor(x)
    rank = spatial_rank("kernel_size", kernel_size)
    steps = per_axis("stride", stride, rank, least=1)
    window = regular(spatial_sizes(x.shape, rank, channels=1), kernel_size, steps, padding, dilation)
    by_tap = list(zip(*window.table(), strict=True))
    lead, channels = x.shape[: x.ndim - rank - 1], x.shape[-1 - rank]
    rows = ((plane, taps) for plane in x.planes(rank) for taps in by_tap)
    cells = (x.zero if t is None else plane[t] for plane, taps in rows for t in taps)
    return Tensor((*lead, channels * len(by_tap), prod(window.outputs)), cells)


def unfold_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """The tangents' columns.

    >>> unfold_jvp([[1, 2, 3]], [[0, 1, 0]], (2,)).tolist()
    [[0, 1], [1, 0]]
    """
    dx = tensor(dx)
    require_shape("tangent", dx, tensor(x).shape)
    return unfold(dx, kernel_size, dilation, padding, stride)


def unfold_vjp(
    x: TensorLike, g: TensorLike, kernel_size: Sequence[int], dilation: Ints = 1, padding: Padding = 0, stride: Ints = 1
) -> Tensor:
    """The columns added back: ``fold``.

    >>> unfold_vjp([[1, 2, 3]], [[1, 2], [3, 4]], (2,)).tolist()
    [[1, 5, 4]]
    """
    x, g = tensor(x), tensor(g)
    sizes = spatial_sizes(x.shape, spatial_rank("kernel_size", kernel_size), channels=1)
    require_shape("cotangent", g, unfold(x, kernel_size, dilation, padding, stride).shape)
    return fold(g, sizes, kernel_size, dilation, padding, stride)


def fold(
    x: TensorLike,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """Columns ``(*lead, C·K, L)`` added onto planes of ``output_size``; what falls on padding is dropped.

    >>> fold([[1, 2], [3, 4]], (3,), (2,)).tolist()
    [[1, 5, 4]]
    """
    x = tensor(x)
    window = _fold_window(output_size, kernel_size, dilation, padding, stride)
    readers, outputs = window.readers(), prod(window.outputs)
    shape = _folded_shape(x, window)
    blocks = Tensor((prod(shape[: x.ndim - 1]), prod(kernel_size) * outputs), x.cells).planes(1)
    sums = (add_up((block[k * outputs + o] for k, o in pairs), x.zero) for block in blocks for pairs in readers)
    return Tensor(shape, sums).stored()


def fold_jvp(
    x: TensorLike,
    dx: TensorLike,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """The tangents' columns, folded.

    >>> fold_jvp([[1, 2], [3, 4]], [[1, 0], [0, 0]], (3,), (2,)).tolist()
    [[1, 0, 0]]
    """
    dx = tensor(dx)
    require_shape("tangent", dx, tensor(x).shape)
    return fold(dx, output_size, kernel_size, dilation, padding, stride)


def fold_vjp(
    x: TensorLike,
    g: TensorLike,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Ints = 1,
    padding: Padding = 0,
    stride: Ints = 1,
) -> Tensor:
    """The cotangent's windows as columns: ``unfold``.

    >>> fold_vjp([[1, 2], [3, 4]], [[1, 5, 4]], (3,), (2,)).tolist()
    [[1, 5], [5, 4]]
    """
    x, g = tensor(x), tensor(g)
    require_shape("cotangent", g, _folded_shape(x, _fold_window(output_size, kernel_size, dilation, padding, stride)))
    return unfold(g, kernel_size, dilation, padding, stride)


def _fold_window(
    output_size: Sequence[int], kernel_size: Sequence[int], dilation: Ints, padding: Padding, stride: Ints
) -> Window:
    rank = spatial_rank("kernel_size", kernel_size)
    sizes, steps = per_axis("output_size", output_size, rank, least=1), per_axis("stride", stride, rank, least=1)
    return regular(sizes, kernel_size, steps, padding, dilation)


def _folded_shape(x: Tensor, window: Window) -> Index:
    """``(*lead, C, *output_size)`` for columns ``(*lead, C·K, L)``."""
    taps, outputs = len(window.table()[0]), prod(window.outputs)
    if x.ndim < 2 or x.shape[-1] != outputs or x.shape[-2] % taps:
        raise ShapeError(
            f"columns of shape {x.shape} do not fold onto {window.sizes}: "
            f"(..., C·{taps}, {outputs}) is needed for {taps} taps and {outputs} windows"
        )
    return (*x.shape[:-2], x.shape[-2] // taps, *window.sizes)
