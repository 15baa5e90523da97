"""Every operator as operations of JAX: a function of the node's attribute record and its operands.

What is linear in an operand is written with operations that JAX itself can transpose in it; an operator that is the
transpose of another is lowered as just that. Numbers in and out have the dtype that is computed with: the small formats
arrive as float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import pi, prod, sqrt
from typing import Any

import jax
import numpy as np
from jax import Array, lax
from jax import numpy as jnp
from numpy.typing import NDArray

from gradspec.backends.numpy.windows import divisors, has_cells
from gradspec.backends.tables import Ints, table
from gradspec.backends.xp import lowerings
from gradspec.backends.xp.namespace import Namespace
from gradspec.backends.xp.rules import take_label
from gradspec.backends.xp.windows import POOLING, add_bias, as_samples, extents, gather_cells, unit_axis
from gradspec.graph.types import DTYPES, DType, i8
from gradspec.ops.conv import Convolution, StatedWindows
from gradspec.ops.convert import Conversion
from gradspec.ops.gather import RowPlaces
from gradspec.ops.layout import AlongAxis, Padding
from gradspec.ops.loss import PutLabel
from gradspec.ops.pool import AvgPool, AvgTranspose, MaxPool
from gradspec.ops.resize import Resize
from gradspec.ops.unpool import Plane
from gradspec.spec.resize import axis_taps
from gradspec.spec.window import AxisWindow, Window

MOST_AXES = 1024
"""Axis windows whose taps are kept."""


def _transpose(function: Callable[[Array], Array], shape: Sequence[int], cotangent: Array) -> Array:
    """The transpose of a linear function of an array of that shape, applied to a cotangent."""
    operand = jax.ShapeDtypeStruct(tuple(shape), cotangent.dtype)  # type: ignore[no-untyped-call]
    (result,) = jax.linear_transpose(function, operand)(cotangent)
    return result  # type: ignore[no-any-return]


class JaxNamespace(Namespace):
    erf = staticmethod(lax.erf)

    def dtype(self, dtype: DType) -> np.dtype[np.generic]:
        return dtype.numpy

    def cast(self, x: Array, dtype: np.dtype[np.generic]) -> Array:
        return x.astype(dtype)

    def is_float(self, x: Array) -> bool:
        return bool(jnp.issubdtype(x.dtype, jnp.floating))

    def trunc_divide(self, a: Array, b: Array) -> Array:
        return lax.div(a, b)

    def normal_cdf(self, x: Array) -> Array:
        return lax.erfc(x * -sqrt(0.5)) / 2

    def normal_density(self, x: Array) -> Array:
        return jnp.exp(x * x * -0.5) * (1 / sqrt(2 * pi))

    def sum(self, x: Array, axes: tuple[int, ...]) -> Array:
        return x.sum(axis=axes, dtype=x.dtype)

    def cumsum(self, x: Array, axis: int) -> Array:
        return lax.cumsum(x, axis)

    def matmul(self, a: Array, b: Array, transpose_a: bool, transpose_b: bool) -> Array:
        last, stack = a.ndim - 1, tuple(range(a.ndim - 2))
        inner = ((last - transpose_a,), (last - 1 + transpose_b,))
        return lax.dot_general(a, b, (inner, (stack, stack)), precision=lax.Precision.HIGHEST)

    def checked(self, indices: Array, size: int, error: Callable[[int, int], Exception], least: int = 0) -> Array:
        """As they are: indices that JAX traces have no values to look at."""
        return indices

    def take_along_axis(self, x: Array, places: Array, axis: int) -> Array:
        """Linear in ``x``; a place that does not exist gives NaN, derivatives too."""
        if not places.size:
            return jnp.zeros(places.shape, x.dtype)
        size = x.shape[axis]
        cells = jnp.take_along_axis(x, jnp.clip(places, 0, size - 1), axis, mode="promise_in_bounds")
        if not self.is_float(x):
            return cells
        return cells * jnp.where((places >= 0) & (places < size), 1, jnp.nan).astype(x.dtype)

    def reduce_windows(
        self, window: Window, function: Callable[..., Array], *arrays: Array, with_padding: bool = False
    ) -> Array:
        return function(_reads(window), *(_every_cell(window, a) for a in arrays))

    def spread_windows(
        self, window: Window, weights: Callable[..., Array], x: Array, g: Array, with_padding: bool = False
    ) -> Array:
        factors = weights(_reads(window), _every_cell(window, x))
        return _transpose(lambda u: (factors * _every_cell(window, u)).sum(axis=-1), x.shape, g)


JAX = JaxNamespace(jnp)


# --- numbers of another dtype, and padding ----------------------------------------------------------------------------


def _convert(attrs: Conversion, x: Array) -> Array:
    dtype = DTYPES[attrs.dtype]
    if not jnp.issubdtype(x.dtype, jnp.floating) or dtype.is_float:
        # By way of u8, because XLA on CPUs mixes up the cells of eleven int64 numbers as int8.
        return (x.astype(jnp.uint8) if dtype is i8 else x).astype(dtype.numpy)
    return _whole(x, dtype.numpy) if dtype.is_integer else x != 0


def _whole(x: Array, dtype: np.dtype[Any]) -> Array:
    """Without the fraction; at or beyond the power of two that bounds the integers, the last of them; 0 for NaN."""
    limits = np.iinfo(dtype)
    inside = (x > float(limits.min) - 1) & (x < float(limits.max + 1))
    least, largest = (np.asarray(limit, dtype) for limit in (limits.min, limits.max))
    outside = jnp.where(x > 0, largest, least)
    return jnp.where(inside, jnp.where(inside, x, 0).astype(dtype), jnp.where(jnp.isnan(x), 0, outside))


def _pad(attrs: Padding, x: Array) -> Array:
    ends = [(lo, hi, gap) for (lo, hi), gap in zip(attrs.padding, attrs.interior, strict=True)]
    return lax.pad(x, jnp.asarray(attrs.value, x.dtype), ends)


# --- rows by index ----------------------------------------------------------------------------------------------------


def _gather_rows(x: Array, indices: Array, axis: int) -> Array:
    """As cells of planes: the leading axes as one, and the places within a row as one."""
    shape, lead, cells = indices.shape + x.shape[axis + 1 :], prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    if not prod(shape):
        return jnp.zeros(shape, x.dtype)
    rows = x.reshape(lead, x.shape[axis], cells)
    places = indices.reshape(lead, prod(indices.shape[axis:]), 1)
    return JAX.take_along_axis(rows, places, 1).reshape(shape)


def _scatter_add_rows(attrs: RowPlaces, x: Array, indices: Array) -> Array:
    shape = (*indices.shape[: attrs.axis], attrs.size, *x.shape[indices.ndim :])
    return _transpose(lambda rows: _gather_rows(rows, indices, attrs.axis), shape, x)


def _scatter_rows(attrs: AlongAxis, x: Array, indices: Array, rows: Array) -> Array:
    """The largest number of a row that its index names is that of the last one, in whatever order they are compared."""
    axis, size, count = attrs.axis, x.shape[attrs.axis], prod(indices.shape[attrs.axis :])
    if not indices.size or not x.size:
        return x
    lead, cells = prod(x.shape[:axis]), prod(x.shape[axis + 1 :])
    places = indices.reshape(lead, count)
    numbers = jnp.broadcast_to(jnp.arange(count), places.shape)
    named = jnp.where((places >= 0) & (places < size), places, 0)
    last = jnp.full((lead, size), -1, numbers.dtype).at[jnp.arange(lead)[:, None], named].max(numbers)
    put = JAX.take_along_axis(rows.reshape(lead, count, cells), jnp.maximum(last, 0)[..., None], 1)
    result = jnp.where(last[..., None] >= 0, put, x.reshape(lead, size, cells))
    if jnp.issubdtype(x.dtype, jnp.floating):
        outside = ((places < 0) | (places >= size)).any(axis=1)[:, None, None]
        result = result * jnp.where(outside, jnp.nan, 1).astype(x.dtype)
    return result.reshape(x.shape)


def _put_label(attrs: PutLabel, x: Array, labels: Array) -> Array:
    shape = (*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :])
    return _transpose(lambda cells: take_label(JAX, attrs, cells, labels), shape, x)


# --- windows ----------------------------------------------------------------------------------------------------------
#
# A window is a product of axis windows, so whatever is reduced over a window can be reduced axis by axis. That takes a
# slice per tap of each axis, not of their product, and no gather or scatter, which accelerators are slow at.


@lru_cache(MOST_AXES)
def _taps(axis: AxisWindow) -> Ints:
    """``[output, tap]``: the position that each tap of one axis reads, PADDING or ABSENT."""
    return table(Window((axis,)))


def _split_axis(axis: AxisWindow, x: Array, at: int, fill: Any) -> Array:
    """``x`` with the axis ``at`` made two, outputs and the taps of each; a tap that reads no cell holds ``fill``."""
    places = _taps(axis)
    outputs, width = places.shape
    spans = [axis.positions(o) for o in range(outputs)]
    step, first = spans[0].step, spans[0].start
    starts = [span.start - first for span in spans]
    reach = starts[-1] + step * (width - 1) + 1
    padded = _pad_axis(x, at, -first, reach + first - axis.size, fill)
    cells = _stack_windows(padded, at, starts, step, width)
    beyond = first + np.asarray(starts)[:, None] + step * np.arange(width)
    if np.array_equal(places >= 0, (beyond >= 0) & (beyond < axis.size)):
        return cells
    return jnp.where(_align_mask(places >= 0, cells.ndim, at), cells, fill)  # some windows are shorter than others


def _pad_axis(x: Array, at: int, lo: int, hi: int, fill: Any) -> Array:
    if not (lo or hi):
        return x
    ends = [(0, 0, 0)] * x.ndim
    ends[at] = (lo, hi, 0)
    return lax.pad(x, jnp.asarray(fill, x.dtype), ends)


def _stack_windows(x: Array, at: int, starts: list[int], step: int, width: int) -> Array:
    """The windows that begin at ``starts``, a slice for each, or for each tap where those are fewer."""
    outputs, stride = len(starts), starts[-1] // max(len(starts) - 1, 1)
    if width < outputs and starts == [o * stride for o in range(outputs)]:
        ends = [step * t + stride * (outputs - 1) + 1 for t in range(width)]
        return jnp.stack([lax.slice_in_dim(x, step * t, end, stride, at) for t, end in enumerate(ends)], at + 1)
    return jnp.stack([lax.slice_in_dim(x, s, s + step * (width - 1) + 1, step, at) for s in starts], at)


def _align_mask(mask: NDArray[Any], ndim: int, at: int) -> NDArray[Any]:
    """``[output, tap]`` with the axes it needs to broadcast against ``along``'s result."""
    return mask.reshape(*mask.shape, *(1,) * (ndim - at - 2))


def _axes_from_last(window: Window, x: Array) -> list[tuple[AxisWindow, int]]:
    """The axis windows and the axes of ``x`` that they are over, the last first: axes before it keep their places."""
    lead = x.ndim - window.rank
    return [(window.axes[i], lead + i) for i in reversed(range(window.rank))]


def _every_cell(window: Window, x: Array) -> Array:
    """``(*lead, *outputs, taps)``: the cells of each window in row-major order."""
    lead, rank = x.ndim - window.rank, window.rank
    for axis, at in _axes_from_last(window, x):
        x = _split_axis(axis, x, at, 0)
    order = (*range(lead), *range(lead, x.ndim, 2), *range(lead + 1, x.ndim, 2))
    ordered = x.transpose(order)
    return ordered.reshape(*ordered.shape[: lead + rank], prod(ordered.shape[lead + rank :]))


def _reads(window: Window) -> Ints:
    """``(*outputs, taps)``: the flat position that each tap reads, PADDING or ABSENT."""
    return table(window).reshape(*window.outputs, -1)


# --- pooling ----------------------------------------------------------------------------------------------------------
#
# The maximum of a window is that of the maxima of its rows, and its first winner in row-major order is the first winner
# of the first row that has one. So winners are chosen axis by axis, the last axis first, and tangents follow: at each
# axis a mask of the taps that take part. ``"all"`` and ``"split"`` keep every tied tap in the mask.


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).min


def _window_maximum(window: Window, x: Array) -> Array:
    """The maximum of each window; a NaN if one of its cells is."""
    for axis, at in _axes_from_last(window, x):
        x = _split_axis(axis, x, at, _lowest(x.dtype)).max(axis=at + 1)
    return x


def _choose_taps(window: Window, x: Array, ties: str) -> tuple[Array, list[Array]]:
    """The largest cell of each window, and for each axis the taps that take part in derivatives."""
    masks: list[Any] = []
    lowest = _lowest(x.dtype)
    for axis, at in _axes_from_last(window, x):
        cells = _split_axis(axis, x, at, lowest)
        top = cells.max(axis=at + 1, keepdims=True)
        mask = _align_mask(_taps(axis) >= 0, cells.ndim, at) & ((cells == top) | (cells != cells))
        if ties == "first":
            first = mask.argmax(axis=at + 1, keepdims=True)
            mask = mask & (first == _align_mask(np.arange(cells.shape[at + 1])[None], cells.ndim, at))
        x = jnp.where(mask, cells, lowest).max(axis=at + 1)  # of equal zeros, the winner
        masks.append(mask)
    return x, masks


def _push_through(window: Window, masks: list[Array], dx: Array) -> Array:
    """The sum over the cells that the masks let through; linear in ``dx``."""
    for (axis, at), mask in zip(_axes_from_last(window, dx), masks, strict=True):
        dx = jnp.where(mask, _split_axis(axis, dx, at, 0), 0).sum(axis=at + 1, dtype=dx.dtype)
    return dx


def _max_pool(attrs: MaxPool, x: Array) -> Any:
    window = attrs.window(x)
    filled = has_cells(window)
    if not attrs.return_indices:
        return jnp.where(filled, _window_maximum(window, x), 0)
    values, masks = _choose_taps(window, x, "first")
    places = jnp.arange(prod(window.sizes)).reshape(window.sizes)
    winners = _push_through(window, masks, jnp.broadcast_to(places, x.shape))
    return jnp.where(filled, values, 0), jnp.where(filled, winners, -1)


def _push(attrs: MaxPool, x: Array) -> Callable[[Array], Array]:
    """The tangent of the maximum, as a linear function."""
    window = attrs.window(x)
    _, masks = _choose_taps(window, x, attrs.ties)
    if attrs.ties != "split":
        return lambda dx: _push_through(window, masks, dx)
    counts = jnp.maximum(_push_through(window, masks, jnp.ones_like(x)), 1)
    return lambda dx: _push_through(window, masks, dx) / counts


def _mean(attrs: AvgPool, window: Window, x: Array) -> Array:
    total = x
    for axis, at in _axes_from_last(window, x):
        total = _split_axis(axis, total, at, 0).sum(axis=at + 1)
    return total / divisors(attrs, window, x.dtype)


def _avg_pool_transpose(attrs: AvgTranspose, g: Array) -> Array:
    shape = (*g.shape[: g.ndim - len(attrs.sizes)], *attrs.sizes)
    window = attrs.window(np.broadcast_to(np.float32(0), shape))
    return _transpose(lambda x: _mean(attrs, window, x), shape, g)


def _max_unpool(attrs: Plane, x: Array, indices: Array) -> Array:
    rank = len(attrs.output_size)
    shape = (*x.shape[: x.ndim - rank], *attrs.output_size)
    return _transpose(lambda planes: gather_cells(JAX, planes, indices, rank), shape, x)


# --- convolution as XLA has it, with its transposes -------------------------------------------------------------------


def _convolve(attrs: Convolution, x: Array, w: Array) -> Array:
    """``Σ x̃·w``, linear in each.

    The zeros around ``x`` are laid down before: XLA passes over padding of its own in some of its loops, and a zero
    times an infinite weight is NaN.
    """
    shape, one = (*x.shape[: x.ndim - attrs.rank - 1], w.shape[0], *attrs.outputs), unit_axis(attrs)
    if not prod(x.shape) or not prod(w.shape):
        return jnp.zeros(shape, x.dtype)
    y = lax.conv_general_dilated(
        _pad_samples(attrs, as_samples(attrs, x)),
        w.reshape(*w.shape, *one),
        window_strides=(*attrs.stride, *one),
        padding="VALID",
        rhs_dilation=(*attrs.dilation, *one),
        feature_group_count=attrs.groups,
        precision=lax.Precision.HIGHEST,
    )
    return y.reshape(shape)


def _pad_samples(attrs: Convolution, x: Array) -> Array:
    """``x`` from where the first window begins to where the last one ends."""
    ends = [(0, 0, 0), (0, 0, 0), *((lo, hi, 0) for lo, hi in extents(attrs)), *((0, 0, 0) for _ in unit_axis(attrs))]
    return lax.pad(x, jnp.zeros((), x.dtype), ends) if any(map(any, ends)) else x


def _conv_transpose(attrs: Convolution, g: Array, w: Array, *bias: Array) -> Array:
    lead, channels = g.shape[: g.ndim - attrs.rank - 1], w.shape[1] * attrs.groups
    x = _transpose(lambda x: _convolve(attrs, x, w), (*lead, channels, *attrs.sizes), g)
    return add_bias(attrs, x, bias)


def _conv_weight_grad(attrs: Convolution, x: Array, g: Array) -> Array:
    at = x.ndim - attrs.rank - 1
    shape = (g.shape[at], x.shape[at] // attrs.groups, *attrs.kernel)
    return _transpose(lambda w: _convolve(attrs, x, w), shape, g)


# --- windows as columns -----------------------------------------------------------------------------------------------


def _unfold(attrs: StatedWindows, x: Array) -> Array:
    """``(*lead, C, *sizes)`` to ``(*lead, C·taps, windows)``."""
    *lead, channels = x.shape[: x.ndim - attrs.rank]
    windows, count = prod(attrs.outputs), prod(attrs.kernel)
    cells = _every_cell(attrs.window, x).reshape(*lead, channels, windows, count)
    return cells.swapaxes(-1, -2).reshape(*lead, channels * count, windows)


def _fold(attrs: StatedWindows, x: Array) -> Array:
    *lead, rows, _ = x.shape
    shape = (*lead, rows // prod(attrs.kernel), *attrs.sizes)
    return _transpose(lambda planes: _unfold(attrs, planes), shape, x)


# --- resizing, one axis after another ---------------------------------------------------------------------------------


def _resize(attrs: Resize, x: Array) -> Array:
    for i, axis in enumerate(attrs.axes):
        rows = axis_taps(axis)
        at = x.ndim - len(attrs.sizes) + i
        columns = [[row[t] if t < len(row) else (0, 0) for row in rows] for t in range(max(map(len, rows)))]
        x = sum((_resize_tap(column, x, at) for column in columns), start=jnp.zeros((), x.dtype))
    return x


def _resize_tap(taps: list[tuple[int, Any]], x: Array, at: int) -> Array:
    """``weight · cell`` for each output; 0 where the weight is, whatever the cell."""
    cells = np.array([cell for cell, _ in taps])
    weights = np.array([float(weight) for _, weight in taps], x.dtype).reshape(-1, *(1,) * (x.ndim - at - 1))
    return jnp.where(weights == 0, 0, jnp.take(x, cells, axis=at, mode="clip")) * weights


def _resize_transpose(attrs: Resize, g: Array) -> Array:
    shape = (*g.shape[: g.ndim - len(attrs.sizes)], *attrs.sizes)
    return _transpose(lambda x: _resize(attrs, x), shape, g)


LOWERINGS: dict[str, Callable[..., Any]] = {
    **lowerings(JAX, **POOLING),
    "convert": _convert,
    "pad": _pad,
    "gather_rows": lambda attrs, x, indices: _gather_rows(x, indices, attrs.axis),
    "scatter_add_rows": _scatter_add_rows,
    "scatter_rows": _scatter_rows,
    "put_label": _put_label,
    "max_pool": _max_pool,
    "max_pool_gather": lambda attrs, x, dx: _push(attrs, x)(dx),
    "max_pool_scatter": lambda attrs, x, g: _transpose(_push(attrs, x), x.shape, g),
    "avg_pool": lambda attrs, x: _mean(attrs, attrs.window(x), x),
    "avg_pool_transpose": _avg_pool_transpose,
    "max_unpool": _max_unpool,
    "conv": lambda attrs, x, w, *bias: add_bias(attrs, _convolve(attrs, x, w), bias),
    "conv_transpose": _conv_transpose,
    "conv_weight_grad": _conv_weight_grad,
    "unfold": _unfold,
    "fold": _fold,
    "resize": _resize,
    "resize_transpose": _resize_transpose,
}

CHOOSING = frozenset(("gather_rows", "max_pool", "maximum", "minimum", "scatter_rows", "top_places", "where"))
"""Operators whose integers are among those they are given, or places in a plane or row: 32 bits are enough for them."""
