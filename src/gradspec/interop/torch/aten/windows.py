"""Convolution, pooling, unfolding and resizing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from fractions import Fraction
from math import floor
from typing import Any

from gradspec.graph.ir import Var
from gradspec.interop.torch.aten.table import per_axis, positive_axis, reads, reads_each
from gradspec.ops.conv import conv, conv_transpose
from gradspec.ops.gather import moved
from gradspec.ops.pool import adaptive_avg_pool, adaptive_max_pool, avg_pool, max_pool
from gradspec.ops.resize import resize
from gradspec.ops.shape import reshape
from gradspec.ops.unfold import fold, unfold
from gradspec.ops.unpool import max_unpool

Ints = int | Sequence[int]
Maybe = Var | None


# --- convolution ------------------------------------------------------------------------------------------------------


@reads("conv{1,2,3}d")
def _conv(
    x: Var, weight: Var, bias: Maybe = None, stride: Ints = 1, padding: Ints | str = 0,
    dilation: Ints = 1, groups: int = 1,
) -> Var:  # fmt: skip
    rank = weight.ndim - 2
    pads = padding if isinstance(padding, str) else per_axis(padding, rank)
    return conv(x, weight, bias, per_axis(stride, rank), pads, per_axis(dilation, rank), groups)


@reads("conv_transpose{1,2,3}d")
def _conv_transpose(
    x: Var, weight: Var, bias: Maybe = None, stride: Ints = 1, padding: Ints = 0, output_padding: Ints = 0,
    groups: int = 1, dilation: Ints = 1,
) -> Var:  # fmt: skip
    rank = weight.ndim - 2
    steps, pads, extra, gaps = (per_axis(v, rank) for v in (stride, padding, output_padding, dilation))
    return conv_transpose(x, weight, bias, steps, pads, extra, groups, gaps)


@reads("convolution")
def _convolution(
    x: Var, weight: Var, bias: Maybe, stride: Ints, padding: Ints, dilation: Ints, transposed: bool,
    output_padding: Ints, groups: int,
) -> Var:  # fmt: skip
    if transposed:
        return _conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)
    return _conv(x, weight, bias, stride, padding, dilation, groups)


# --- pooling ----------------------------------------------------------------------------------------------------------


@reads("max_pool{1,2,3}d")
def _max_pool(
    x: Var, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Ints = 0, dilation: Ints = 1,
    ceil_mode: bool = False, *, return_indices: bool = False, rank: int,
) -> Any:  # fmt: skip
    kernel, steps, pads, gaps = (per_axis(v, rank) for v in (kernel_size, stride, padding, dilation))
    return max_pool(x, kernel, steps or None, pads, gaps, ceil_mode, return_indices)


@reads("max_pool{1,2,3}d_with_indices")
def _max_pool_with_indices(x: Var, *window: Any, wanted: Collection[int], rank: int) -> Any:
    return _with_winners(lambda winners: _max_pool(x, *window, return_indices=winners, rank=rank), wanted)


@reads("adaptive_max_pool{1,2,3}d")
def _adaptive_max_pool(x: Var, output_size: Sequence[int], *, wanted: Collection[int]) -> Any:
    return _with_winners(lambda winners: adaptive_max_pool(x, tuple(output_size), winners), wanted)


def _with_winners(pool: Callable[[bool], Any], wanted: Collection[int]) -> Any:
    """The values, and the places of the winners if the model uses them."""
    return pool(True) if 1 in wanted else (pool(False),)


@reads("avg_pool{1,2,3}d")
def _avg_pool(
    x: Var, kernel_size: Sequence[int], stride: Sequence[int] = (), padding: Ints = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None, *, rank: int,
) -> Var:  # fmt: skip
    kernel, steps, pads = (per_axis(v, rank) for v in (kernel_size, stride, padding))
    return avg_pool(x, kernel, steps or None, pads, ceil_mode, count_include_pad, divisor_override)


reads_each(
    {
        "adaptive_avg_pool{1,2,3}d _adaptive_avg_pool2d _adaptive_avg_pool3d": lambda x, output_size: adaptive_avg_pool(
            x, tuple(output_size)
        ),
        "max_unpool2d max_unpool3d": lambda x, indices, output_size, *_: max_unpool(x, indices, tuple(output_size)),
    }
)

# --- unfolding --------------------------------------------------------------------------------------------------------


@reads("im2col")
def _im2col(x: Var, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Var:
    kernel, gaps, pads, steps = (per_axis(v, 2) for v in (kernel_size, dilation, padding, stride))
    return unfold(x, kernel, gaps, pads, steps)


@reads("col2im")
def _col2im(x: Var, output_size: Ints, kernel_size: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Var:
    size, kernel, gaps, pads, steps = (per_axis(v, 2) for v in (output_size, kernel_size, dilation, padding, stride))
    return fold(x, size, kernel, gaps, pads, steps)


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
