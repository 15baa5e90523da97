"""Operators over windows and planes, as far as libraries compute them alike.

``taps`` says what each tap of a window reads, as in ``gradspec.backends.tables``; ``cells`` holds what it read.
"""

from __future__ import annotations

from math import inf, prod
from typing import Any

from gradspec.backends.tables import ABSENT
from gradspec.backends.xp.namespace import Array, Lowering, Namespace, Numbers
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.ops.lp_pool import LpPool
from gradspec.ops.resize import Resize
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.ops.unpool import Plane, Rank
from gradspec.spec.errors import ShapeError
from gradspec.spec.resize import axis_taps

# --- cells of planes --------------------------------------------------------------------------------------------------


def as_planes(x: Array, rank: int) -> Array:
    """``[plane, position]``."""
    at = x.ndim - rank
    return x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))


def not_in_plane(place: int, cells: int) -> ShapeError:
    return ShapeError(f"index {place} lies outside a plane of {cells} cells; give 0 to {cells - 1}, or -1 for none")


def gather_cells(xp: Namespace, x: Numbers, places: Array, rank: int) -> Numbers:
    """The cells of each plane at its places; 0 where the place is -1."""
    chosen = as_planes(places, rank)
    cells = xp.take_along_axis(as_planes(x, rank), xp.where(chosen == -1, 0, chosen), -1)
    y: Numbers = xp.where(chosen == -1, 0, cells).reshape(places.shape)
    return y


def _max_gather(xp: Namespace, attrs: Rank, x: Array, places: Array) -> Array:
    cells = prod(x.shape[x.ndim - attrs.rank :])
    return gather_cells(xp, x, xp.checked(places, cells, not_in_plane, least=-1), attrs.rank)


def scatter_cells(xp: Namespace, x: Numbers, places: Array, sizes: tuple[int, ...]) -> Numbers:
    """Planes of ``sizes``, each cell the sum of what goes there; what goes nowhere is added to the first, as 0."""
    rank, cells, chosen = len(sizes), prod(sizes), as_planes(places, len(sizes))
    starts = xp.arange(len(chosen), device=x.device)[:, None] * cells
    is_kept = chosen >= 0
    targets, values = xp.where(is_kept, chosen + starts, 0), xp.where(is_kept, as_planes(x, rank), 0)
    sums = xp.add_rows(len(chosen) * cells, targets.reshape(-1), values.reshape(-1))
    y: Numbers = sums.reshape(*x.shape[: x.ndim - rank], *sizes)
    return y


def _max_unpool(xp: Namespace, attrs: Plane, x: Array, places: Array) -> Array:
    cells = prod(attrs.output_size)
    return scatter_cells(xp, x, xp.checked(places, cells, not_in_plane, least=-1), attrs.output_size)


# --- resizing ---------------------------------------------------------------------------------------------------------


def _resize(xp: Namespace, attrs: Resize, x: Array, back: bool = False) -> Array:
    """One axis after another; a tap is an output, a cell and a weight, and the transpose swaps the first two."""
    for i, axis in enumerate(attrs.axes, x.ndim - len(attrs.sizes)):
        taps = [(o, cell, float(weight)) for o, row in enumerate(axis_taps(axis)) for cell, weight in row]
        outputs, cells, weights = (list(column) for column in zip(*taps, strict=True))
        source, target, size = (outputs, cells, axis.size) if back else (cells, outputs, axis.outputs)
        x = _resize_axis(xp, i, x, (source, target, weights), size)
    return x


def _resize_axis(xp: Namespace, axis: int, x: Array, taps: tuple[list[Any], ...], size: int) -> Array:
    """``y[target] += weight · x[source]`` along one axis, tap by tap in order."""
    source, target = (xp.asarray(column, device=x.device) for column in taps[:2])
    weights = xp.asarray(taps[2], dtype=x.dtype, device=x.device).reshape(-1, *(1,) * (x.ndim - 1))
    rows = xp.moveaxis(x, axis, 0)[source] * weights
    return xp.moveaxis(xp.add_rows(size, target, rows), 0, axis)


LOWERINGS: dict[str, Lowering] = {
    "max_gather": _max_gather,
    "max_unpool": _max_unpool,
    "resize": _resize,
    "resize_transpose": lambda xp, attrs, g: _resize(xp, attrs, g, back=True),
}


# --- norms and smooth maxima of windows -------------------------------------------------------------------------------


def _norm(xp: Namespace, p: float, cells: Array) -> Array:
    """Of each window, scaled by a power of two so that no power of a cell overflows or vanishes."""
    sizes = xp.abs(cells)
    top = sizes.max(axis=-1)
    if p == inf:
        return top
    shift = xp.where(xp.isfinite(top), xp.frexp(top)[1], 0)
    total = (xp.ldexp(sizes, -shift[..., None]) ** p).sum(axis=-1)
    return xp.ldexp(total ** (1 / p), shift)


def _lp_pool(xp: Namespace, attrs: LpPool, x: Array) -> Array:
    return xp.reduce_windows(attrs.window(x), lambda taps, cells: _norm(xp, attrs.p, cells), x)


def _is_counted(attrs: SmoothPool, taps: Array) -> Array:
    """Which taps take part in the smooth maximum."""
    return taps != ABSENT if attrs.padding_mode == "zeros" else taps >= 0


def _powers(xp: Namespace, beta: float, counted: Array, cells: Array) -> tuple[Array, Array]:
    """The pivot ``c`` of each window, and ``exp(β(xᵢ − c))``, 0 for taps that are not counted."""
    if beta > 0:
        pivot = xp.where(counted, cells, -inf).max(axis=-1, keepdims=True)
    else:
        pivot = xp.where(counted, cells, inf).min(axis=-1, keepdims=True)
    return pivot[..., 0], xp.where(counted, xp.exp(_exponents(xp, cells, pivot, beta)), 0)


def _exponents(xp: Namespace, cells: Array, pivot: Array, beta: float) -> Array:
    """``β(x − c)``, also where both are the same infinity or their difference overflows."""
    gap = cells - pivot
    too_wide = xp.isinf(gap) & xp.isfinite(cells) & xp.isfinite(pivot)
    exponents = xp.where(too_wide, (2 * beta) * (cells / 2 - pivot / 2), beta * gap)
    return xp.where(cells == pivot, 0, exponents)


def _smooth_max_pool(xp: Namespace, attrs: SmoothPool, x: Array) -> Array:
    """``c + log(Σ exp(β(xᵢ − c))) / β`` of each window; 0 without cells."""

    def value(taps: Array, cells: Array) -> Array:
        is_counted = _is_counted(attrs, taps)
        pivot, powers = _powers(xp, attrs.beta, is_counted, cells)
        return xp.where(is_counted.any(axis=-1), pivot + xp.log(powers.sum(axis=-1)) / attrs.beta, 0)

    return xp.reduce_windows(attrs.window(x), value, x, with_padding=attrs.padding_mode == "zeros")


def _smooth_weights(xp: Namespace, attrs: SmoothPool, taps: Array, cells: Array) -> Array:
    """The softmax weights of real cells; 0 for others."""
    _, powers = _powers(xp, attrs.beta, _is_counted(attrs, taps), cells)
    return xp.where(taps >= 0, powers / powers.sum(axis=-1, keepdims=True), 0)


def _smooth_max_mean(xp: Namespace, attrs: SmoothPool, x: Array, u: Array) -> Array:
    def mean(taps: Array, cells: Array, others: Array) -> Array:
        return (_smooth_weights(xp, attrs, taps, cells) * others).sum(axis=-1)

    return xp.reduce_windows(attrs.window(x), mean, x, u, with_padding=attrs.padding_mode == "zeros")


def _smooth_max_spread(xp: Namespace, attrs: SmoothPool, x: Array, g: Array) -> Array:
    def weights(taps: Array, cells: Array) -> Array:
        return _smooth_weights(xp, attrs, taps, cells)

    return xp.spread_windows(attrs.window(x), weights, x, g, with_padding=attrs.padding_mode == "zeros")


POOLING: dict[str, Lowering] = {
    "lp_pool": _lp_pool,
    "smooth_max_pool": _smooth_max_pool,
    "smooth_max_mean": _smooth_max_mean,
    "smooth_max_spread": _smooth_max_spread,
}
"""Operators that need ``reduce_windows`` and ``spread_windows`` of a namespace."""


# --- convolutions that a library has itself ---------------------------------------------------------------------------


def extents(attrs: StatedWindows) -> list[tuple[int, int]]:
    """Cells before and after each axis from where the first window begins to where the last one ends."""
    axes = zip(attrs.sizes, attrs.kernel, attrs.stride, attrs.padding, attrs.dilation, attrs.outputs, strict=True)
    return [(lo, (o - 1) * s + d * (k - 1) + 1 - n - lo) for n, k, s, (lo, _), d, o in axes]


def unit_axis(attrs: Convolution) -> tuple[int, ...]:
    """The spatial axis that libraries need where there is none."""
    return (1,) * (not attrs.rank)


def as_samples(attrs: Convolution, x: Numbers) -> Numbers:
    """``(samples, channels, *spatial)``."""
    at = x.ndim - attrs.rank - 1
    samples: Numbers = x.reshape(prod(x.shape[:at]), *x.shape[at:], *unit_axis(attrs))
    return samples


def add_bias(attrs: Convolution, y: Numbers, bias: tuple[Numbers, ...]) -> Numbers:
    total: Numbers = y + bias[0].reshape(-1, *(1,) * attrs.rank) if bias else y
    return total
