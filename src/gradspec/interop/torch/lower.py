"""Operators as torch's own, on tensors of any device: a function of the node's attribute record and its operands.

The small formats arrive as float32 where numbers are computed, and their results are rounded once; the operators of
``KEEPS_DTYPE`` take them as they are. Pooling is not here: its kernels are ``gradspec.backends.triton``.
"""

from __future__ import annotations

from collections.abc import Callable
from math import pi, prod, sqrt
from typing import Any

import torch
from torch import Tensor

from gradspec.backends.xp import lowerings
from gradspec.backends.xp.namespace import Namespace
from gradspec.backends.xp.windows import add_bias, as_samples, extents, unit_axis
from gradspec.graph.types import STORED, DType, bf16, f16
from gradspec.interop.torch.types import torch_dtype
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.ops.layout import Padding, Slices
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.layout import spaced_sizes

MOST_AXES = 3
"""Spatial axes of torch's convolutions."""


class TorchNamespace(Namespace):
    permute_dims = staticmethod(torch.permute)
    repeat = staticmethod(torch.repeat_interleave)
    take_along_axis = staticmethod(torch.take_along_dim)

    def dtype(self, dtype: DType) -> torch.dtype:
        return torch_dtype(dtype)

    def cast(self, x: Tensor, dtype: torch.dtype) -> Tensor:
        return x.to(dtype)

    def is_float(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def rounds_twice(self, x: Tensor, dtype: DType) -> bool:
        return dtype in (f16, bf16, *STORED) and x.dtype in (torch.float64, torch.int32, torch.int64)

    def trunc_divide(self, a: Tensor, b: Tensor) -> Tensor:
        return torch.div(a, b, rounding_mode="trunc")

    def normal_cdf(self, x: Tensor) -> Tensor:
        """In float64: a rounding of the argument would cost as many as its square in the tail."""
        return (torch.erfc(x.double() * -sqrt(0.5)) / 2).to(x.dtype)

    def normal_density(self, x: Tensor) -> Tensor:
        wide = x.double()
        return (torch.exp(wide * wide * -0.5) * (1 / sqrt(2 * pi))).to(x.dtype)

    def sum(self, x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return torch.sum(x, axes, dtype=x.dtype) if axes else x

    def cumsum(self, x: Tensor, axis: int) -> Tensor:
        return torch.cumsum(x, axis, dtype=x.dtype) + 0  # from 0 on: 0 + −0 is 0

    def matmul(self, a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
        return torch.matmul(a.mT if transpose_a else a, b.mT if transpose_b else b)

    def zeros(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        return like.new_zeros(shape)

    def add_rows(self, size: int, places: Tensor, rows: Tensor) -> Tensor:
        """``index_put_`` sorts what meets in one place first: the same bits come out of every run."""
        y = rows.new_zeros(size, *rows.shape[1:])
        return y.index_put_((places,), rows, accumulate=True)

    def put_rows(self, x: Tensor, places: Tensor, rows: Tensor) -> Tensor:
        """Each place takes the largest number of the rows that name it."""
        if not places.numel():
            return x
        numbers = torch.arange(places.numel(), device=x.device)
        last = torch.full((len(x),), -1, device=x.device).scatter_reduce_(0, places, numbers, "amax")
        return torch.where((last >= 0).reshape(-1, *(1,) * (x.ndim - 1)), rows[last.clamp(min=0)], x)

    def put_along_axis(self, x: Tensor, places: Tensor, values: Tensor, axis: int) -> None:
        x.scatter_(axis, places, values)


TORCH = TorchNamespace(torch)


# --- layout -----------------------------------------------------------------------------------------------------------


def _slice(attrs: Slices, x: Tensor) -> Tensor:
    """torch steps forwards only: an axis that is read backwards is turned first."""
    for axis, (start, size, step) in enumerate(zip(attrs.starts, attrs.sizes, attrs.steps, strict=True)):
        if step < 0:
            x, start, step = x.flip(axis), x.shape[axis] - 1 - start, -step
        x = x.narrow(axis, start, (size - 1) * step + 1 if size else 0)
        x = x[(slice(None),) * axis + (slice(None, None, step),)]
    return x


def _pad(attrs: Padding, x: Tensor) -> Tensor:
    """What reaches beyond the result, where padding is negative, is cut off."""
    steps = [gap + 1 for gap in attrs.interior]
    wide = [(max(n - 1, 0) * s + 1 if n else 0) for n, s in zip(x.shape, steps, strict=True)]
    spaced = torch.full(wide, attrs.value, dtype=x.dtype, device=x.device)
    spaced[tuple(slice(None, None, s) for s in steps)] = x
    ends = [n for pair in reversed(attrs.padding) for n in pair]
    shape = spaced_sizes(x.shape, attrs.padding, attrs.interior)
    return torch.constant_pad_nd(spaced, ends, attrs.value).reshape(shape)


# --- convolution ------------------------------------------------------------------------------------------------------


def _pad_or_crop(x: Tensor, ends: list[tuple[int, int]]) -> Tensor:
    """Zeros laid around the last axes, or cells cut off where a number is negative."""
    return torch.constant_pad_nd(x, [n for pair in reversed(ends) for n in pair]) if any(map(any, ends)) else x


def _require_samples(attrs: Convolution, x: Tensor) -> Tensor:
    if attrs.rank > MOST_AXES:
        raise UnsupportedError(
            f"a convolution over {attrs.rank} spatial axes cannot run on {x.device}: torch has kernels for {MOST_AXES} "
            "at most; move its operands to the CPU, where gradspec has its own"
        )
    return as_samples(attrs, x)


def _settings(attrs: Convolution) -> tuple[Any, ...]:
    one = unit_axis(attrs)
    rank = attrs.rank + len(one)
    return [*attrs.stride, *one], [0] * rank, [*attrs.dilation, *one], False, [0] * rank, attrs.groups


def _conv(attrs: Convolution, x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    shape = (*x.shape[: x.ndim - attrs.rank - 1], w.shape[0], *attrs.outputs)
    if not x.numel() or not w.numel():
        return add_bias(attrs, x.new_zeros(shape), bias)
    cells = _pad_or_crop(_require_samples(attrs, x), extents(attrs) + [(0, 0)] * len(unit_axis(attrs)))
    y: Tensor = torch.ops.aten.convolution(cells, w.reshape(*w.shape, *unit_axis(attrs)), None, *_settings(attrs))
    return add_bias(attrs, y.reshape(shape), bias)


def _convolve_backward(attrs: Convolution, g: Tensor, x: Tensor, w: Tensor, of_input: bool) -> Tensor:
    """What torch sends back to ``x`` or to ``w``, of which it needs the other one, and of this one the shape."""
    wanted = [of_input, not of_input, False]
    found = torch.ops.aten.convolution_backward(
        _require_samples(attrs, g), x, w.reshape(*w.shape, *unit_axis(attrs)), None, *_settings(attrs), wanted
    )
    return found[0 if of_input else 1]  # type: ignore[no-any-return]


def _conv_transpose(attrs: Convolution, g: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    shape = (*lead, channels, *attrs.sizes)
    if not g.numel() or not w.numel():
        return add_bias(attrs, g.new_zeros(shape), bias)
    ends = extents(attrs)
    sizes = [n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)]
    x = _convolve_backward(attrs, g, g.new_empty(prod(lead), channels, *sizes, *unit_axis(attrs)), w, of_input=True)
    cells = x.reshape(prod(lead), channels, *sizes)
    return add_bias(attrs, _pad_or_crop(cells, [(-lo, -hi) for lo, hi in ends]).reshape(shape), bias)


def _conv_weight_grad(attrs: Convolution, x: Tensor, g: Tensor) -> Tensor:
    at = x.ndim - attrs.rank - 1
    shape = (g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)
    if not x.numel() or not g.numel():
        return x.new_zeros(shape)
    cells = _pad_or_crop(_require_samples(attrs, x), extents(attrs) + [(0, 0)] * len(unit_axis(attrs)))
    return _convolve_backward(attrs, g, cells, x.new_empty(shape), of_input=False).reshape(shape)


# --- windows as columns -----------------------------------------------------------------------------------------------


def _taps(attrs: StatedWindows) -> list[tuple[Any, ...]]:
    """For every tap of a window, the cells that all windows read by it, from where the first window begins."""
    places: list[tuple[Any, ...]] = [(...,)]
    for k, s, d, o in zip(attrs.kernel, attrs.stride, attrs.dilation, attrs.outputs, strict=True):
        places = [(*before, slice(t * d, t * d + (o - 1) * s + 1, s)) for before in places for t in range(k)]
    return places


def _unfold(attrs: StatedWindows, x: Tensor) -> Tensor:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    cells = _pad_or_crop(x, extents(attrs))
    columns = torch.stack([cells[tap].reshape(*lead, channels, prod(attrs.outputs)) for tap in _taps(attrs)], -2)
    return columns.reshape(*lead, channels * prod(attrs.kernel), prod(attrs.outputs))


def _fold(attrs: StatedWindows, x: Tensor) -> Tensor:
    *lead, rows, _ = x.shape
    channels, ends = rows // prod(attrs.kernel), extents(attrs)
    columns = x.reshape(*lead, channels, prod(attrs.kernel), *attrs.outputs)
    y = x.new_zeros(*lead, channels, *(n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)))
    for t, tap in enumerate(_taps(attrs)):
        y[tap] += columns.select(len(lead) + 1, t)
    return _pad_or_crop(y, [(-lo, -hi) for lo, hi in ends])


LOWERINGS: dict[str, Callable[..., Any]] = {
    **lowerings(TORCH),
    "slice": _slice,
    "pad": _pad,
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_weight_grad": _conv_weight_grad,
    "unfold": _unfold,
    "fold": _fold,
}

KEEPS_DTYPE = frozenset(
    (
        *("broadcast_to", "concat", "convert", "detach", "pad", "reshape", "slice", "transpose", "unfold"),
        *(
            "equal",
            "gather_rows",
            "greater",
            "max_gather",
            "take_label",
            "put_label",
            "scatter_rows",
            "top_places",
            "where",
        ),
        *("conv", "conv_weight_grad", "conv_transpose", "matmul"),
    )
)
"""Operators that move numbers or compare them, and those of which torch's kernels add up small formats in float32."""

VIEWS = frozenset(("broadcast_to", "convert", "detach", "reshape", "slice", "transpose"))
"""Operators whose results may lie in the memory of their operands."""
