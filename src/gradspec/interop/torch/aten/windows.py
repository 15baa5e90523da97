"""Convolution, pooling, unfolding and resizing."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from gradspec.graph.ir import Var
from gradspec.interop.torch.aten.table import positive_axis, reads, reads_each
from gradspec.interop.torch.ranked import Function, at_rank
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.gather import moved
from gradspec.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.shape import reshape
from gradspec.ops.unfold import fold, unfold
from gradspec.ops.unpool import max_unpool

Ints = int | Sequence[int]


@reads("convolution")
def _convolution(
    x: Var, weight: Var, bias: Var | None, stride: Ints, padding: Ints, dilation: Ints, transposed: bool,
    output_padding: Ints, groups: int,
) -> object:  # fmt: skip
    rank = weight.ndim - 2
    if transposed:
        return at_rank(conv_transpose, rank)(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return at_rank(conv, rank)(x, weight, bias, stride, padding, dilation, groups)


def _with_winners(pool: Function) -> Function:
    """The values, and the places of the winners if the model uses them."""

    def read(x: Var, *window: object, wanted: Collection[int]) -> object:
        return pool(x, *window, return_indices=True) if 1 in wanted else (pool(x, *window),)

    return read


for rank in (1, 2, 3):
    for operator in (conv, conv_transpose, max_pool, avg_pool, adaptive_avg_pool):
        reads(f"{operator.__name__}{rank}d")(at_rank(operator, rank))
    reads(f"_adaptive_avg_pool{rank}d")(at_rank(adaptive_avg_pool, rank))
    reads(f"max_pool{rank}d_with_indices")(_with_winners(at_rank(max_pool, rank)))
    reads(f"adaptive_max_pool{rank}d")(_with_winners(at_rank(adaptive_max_pool, rank)))

reads_each(
    {
        "max_unpool2d max_unpool3d": lambda x, indices, output_size, *_: max_unpool(x, indices, tuple(output_size)),
        "im2col": at_rank(unfold, 2),
        "col2im": at_rank(fold, 2),
    }
)


@reads("unfold")
def _windows_of_axis(x: Var, dimension: int, size: int, step: int) -> Var:
    """``(…, n, …)`` as ``(…, windows, …, size)``: the axis is moved to the end, unfolded and moved back."""
    axis = positive_axis(dimension, x.ndim)
    rows = moved(x, axis, -1)
    columns = unfold(reshape(rows, (*rows.shape[:-1], 1, rows.shape[-1])), (size,), stride=step)
    return moved(columns, -1, axis)


# --- resizing ---------------------------------------------------------------------------------------------------------


@reads("upsample_nearest{1,2,3}d")
def _nearest(x: Var, output_size: Sequence[int] | None, *scales: Var) -> Var:
    sizes, steps = _sizes_and_steps(x, output_size, scales)
    return resize(x, sizes, "nearest", step=steps, start=0)


@reads("_upsample_nearest_exact{1,2,3}d")
def _nearest_exact(x: Var, output_size: Sequence[int] | None, *scales: Var) -> Var:
    """The cell in which the middle of an output lies, ``(o + ½)·step``."""
    sizes, steps = _sizes_and_steps(x, output_size, scales)
    return resize(x, sizes, "nearest", step=steps, start=[step / 2 for step in steps])


@reads("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d")
def _linear(x: Var, output_size: Sequence[int] | None, align_corners: bool, *scales: Var) -> Var:
    sizes, steps = _sizes_and_steps(x, output_size, scales)
    if align_corners:
        return resize(x, sizes, "linear", align_corners=True)
    return resize(x, sizes, "linear", step=steps, start=[(step - 1) / 2 for step in steps])


def _sizes_and_steps(
    x: Var, output_size: Sequence[int] | None, scales: Sequence[Any]
) -> tuple[tuple[int, ...], list[Fraction]]:
    """The sizes after resizing, and how far apart the outputs lie: by the scale where it is given, else by the sizes.

    The scales are a list, or one argument for each axis; what is not given is None, or missing at the end.
    """
    before = x.shape[2:]
    listed = scales[0] if scales and isinstance(scales[0], Sequence) else scales
    given = [*listed, *[None] * len(before)][: len(before)]
    sizes = tuple(output_size or [floor(n * f) for n, f in zip(before, given, strict=True)])
    steps = [Fraction(n, m) if f is None else _invert(f) for n, m, f in zip(before, sizes, given, strict=True)]
    return sizes, steps


def _invert(scale: float) -> Fraction:
    """1 / scale as the fraction that is meant: a float such as 0.1 is not quite a tenth."""
    return (1 / Fraction(scale)).limit_denominator(1 << 20)
