"""Convolution by torch's own, with its transposes; windows as columns."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import torch
from torch import Tensor

from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.spec.errors import UnsupportedError

MOST_AXES = 3
"""Spatial axes of torch's convolutions."""

# --- convolution ------------------------------------------------------------------------------------------------------


def _extents(attrs: Convolution) -> list[tuple[int, int]]:
    """Cells before and after each axis from where the first window begins to where the last one ends."""
    axes = zip(attrs.sizes, attrs.kernel, attrs.stride, attrs.padding, attrs.dilation, attrs.outputs, strict=True)
    return [(lo, (o - 1) * s + d * (k - 1) + 1 - n - lo) for n, k, s, (lo, _), d, o in axes]


def _resized_to(x: Tensor, ends: list[tuple[int, int]]) -> Tensor:
    """Zeros laid around the last axes, or cells cut off where a number is negative."""
    return torch.constant_pad_nd(x, [n for pair in reversed(ends) for n in pair]) if any(map(any, ends)) else x


def _samples(attrs: Convolution, x: Tensor) -> Tensor:
    """``(samples, channels, *spatial)``, with a spatial axis where there is none."""
    if attrs.rank > MOST_AXES:
        raise UnsupportedError(
            f"a convolution over {attrs.rank} spatial axes cannot run on {x.device}: torch has kernels for {MOST_AXES} "
            "at most; move its operands to the CPU, where gradspec has its own"
        )
    at = x.ndim - attrs.rank - 1
    return x.reshape(prod(x.shape[:at]), *x.shape[at:], *_one(attrs))


def _one(attrs: Convolution) -> tuple[int, ...]:
    return (1,) * (not attrs.rank)


def _settings(attrs: Convolution) -> tuple[Any, ...]:
    one = _one(attrs)
    rank = attrs.rank + len(one)
    return [*attrs.stride, *one], [0] * rank, [*attrs.dilation, *one], False, [0] * rank, attrs.groups


def _plus(attrs: Convolution, y: Tensor, bias: tuple[Tensor, ...]) -> Tensor:
    return y + bias[0].reshape(-1, *(1,) * attrs.rank) if bias else y


def _conv(attrs: Convolution, x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    shape = (*x.shape[: x.ndim - attrs.rank - 1], w.shape[0], *attrs.outputs)
    if not x.numel() or not w.numel():
        return _plus(attrs, x.new_zeros(shape), bias)
    cells = _resized_to(_samples(attrs, x), _extents(attrs) + [(0, 0)] * len(_one(attrs)))
    y = torch.ops.aten.convolution(cells, w.reshape(*w.shape, *_one(attrs)), None, *_settings(attrs))
    return _plus(attrs, y.reshape(shape), bias)


def _pulled(attrs: Convolution, g: Tensor, x: Tensor, w: Tensor, of_input: bool) -> Tensor:
    """What torch sends back to ``x`` or to ``w``, of which it needs the other one, and of this one the shape."""
    wanted = [of_input, not of_input, False]
    found = torch.ops.aten.convolution_backward(
        _samples(attrs, g), x, w.reshape(*w.shape, *_one(attrs)), None, *_settings(attrs), wanted
    )
    return found[0 if of_input else 1]  # type: ignore[no-any-return]


def _conv_transpose(attrs: Convolution, g: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    shape = (*lead, channels, *attrs.sizes)
    if not g.numel() or not w.numel():
        return _plus(attrs, g.new_zeros(shape), bias)
    ends = _extents(attrs)
    sizes = [n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)]
    x = _pulled(attrs, g, g.new_empty(prod(lead), channels, *sizes, *_one(attrs)), w, of_input=True)
    cells = x.reshape(prod(lead), channels, *sizes)
    return _plus(attrs, _resized_to(cells, [(-lo, -hi) for lo, hi in ends]).reshape(shape), bias)


def _conv_compare(attrs: Convolution, x: Tensor, g: Tensor) -> Tensor:
    at = x.ndim - attrs.rank - 1
    shape = (g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)
    if not x.numel() or not g.numel():
        return x.new_zeros(shape)
    cells = _resized_to(_samples(attrs, x), _extents(attrs) + [(0, 0)] * len(_one(attrs)))
    return _pulled(attrs, g, cells, x.new_empty(shape), of_input=False).reshape(shape)


# --- windows as columns -----------------------------------------------------------------------------------------------


def _taps(attrs: StatedWindows) -> list[tuple[Any, ...]]:
    """For every tap of a window, the cells that all windows read by it, from where the first window begins."""
    places: list[tuple[Any, ...]] = [(...,)]
    for k, s, d, o in zip(attrs.kernel, attrs.stride, attrs.dilation, attrs.outputs, strict=True):
        places = [(*before, slice(t * d, t * d + (o - 1) * s + 1, s)) for before in places for t in range(k)]
    return places


def _unfold(attrs: Any, x: Tensor) -> Tensor:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    cells = _resized_to(x, _extents(attrs))
    columns = torch.stack([cells[tap].reshape(*lead, channels, prod(attrs.outputs)) for tap in _taps(attrs)], -2)
    return columns.reshape(*lead, channels * prod(attrs.kernel), prod(attrs.outputs))


def _fold(attrs: Any, x: Tensor) -> Tensor:
    *lead, rows, _ = x.shape
    channels, ends = rows // prod(attrs.kernel), _extents(attrs)
    columns = x.reshape(*lead, channels, prod(attrs.kernel), *attrs.outputs)
    y = x.new_zeros(*lead, channels, *(n + lo + hi for n, (lo, hi) in zip(attrs.sizes, ends, strict=True)))
    for t, tap in enumerate(_taps(attrs)):
        y[tap] += columns.select(len(lead) + 1, t)
    return _resized_to(y, [(-lo, -hi) for lo, hi in ends])


LOWERINGS: dict[str, Callable[..., Any]] = {
    "conv": _conv,
    "conv_transpose": _conv_transpose,
    "conv_compare": _conv_compare,
    "unfold": _unfold,
    "fold": _fold,
}
