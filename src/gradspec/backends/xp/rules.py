"""Operators that work cell by cell, along axes, by products of matrices, or that move numbers."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, prod

import numpy as np

from gradspec.backends.xp.namespace import Array, Lowering, Namespace
from gradspec.graph.ir import NoAttributes
from gradspec.graph.types import DTYPES, DType
from gradspec.ops.convert import Conversion, SmallFormat
from gradspec.ops.gather import RowPlaces, Top
from gradspec.ops.layout import AlongAxis
from gradspec.ops.linear import BatchNorm, Product
from gradspec.ops.loss import PutLabel
from gradspec.ops.lp_pool import AbsPower
from gradspec.ops.pointwise import Approximation, Beta, ClampRange, Levels
from gradspec.ops.quantize import Quantization
from gradspec.ops.reduce import CumSum, MeanTranspose
from gradspec.spec.convert import format_of
from gradspec.spec.gather import index_outside
from gradspec.spec.loss import label_outside
from gradspec.spec.pointwise import GELU_CUBIC, GELU_SCALE
from gradspec.spec.reduce import reduced_sizes, terms_of_mean

# --- cell by cell -----------------------------------------------------------------------------------------------------


def _sigmoid(xp: Namespace, x: Array) -> Array:
    power = xp.exp(-xp.abs(x))
    return xp.where(x < 0, power, 1) / (1 + power)


def _softplus(xp: Namespace, attrs: Beta, x: Array) -> Array:
    z = attrs.beta * x
    bend = xp.log1p(xp.exp(-xp.abs(z))) / attrs.beta
    return xp.where(z > 0, x + bend, bend)


def _clamp(xp: Namespace, attrs: ClampRange, x: Array) -> Array:
    above = x if attrs.min is None else xp.where(x < attrs.min, attrs.min, x)
    return above if attrs.max is None else xp.where(above > attrs.max, attrs.max, above)


def _step(xp: Namespace, attrs: Levels, x: Array) -> Array:
    return xp.where(x < 0, attrs.below, xp.where(x == 0, attrs.at, xp.full_like(x, attrs.above)))


def _max_share(xp: Namespace, _: NoAttributes, a: Array, b: Array) -> Array:
    larger = xp.where(a > b, 1.0, xp.where(b > a, 0.0, 0.5))
    return xp.where(xp.isnan(a) == xp.isnan(b), larger, xp.isnan(a))


def _within(xp: Namespace, attrs: ClampRange, x: Array) -> Array:
    outside = xp.zeros_like(x, dtype=bool) if attrs.min is None else x < attrs.min
    return ~(outside if attrs.max is None else outside | (x > attrs.max))


def _gelu(xp: Namespace, attrs: Approximation, x: Array) -> Array:
    if attrs.approximate == "none":
        return x * xp.normal_cdf(x)
    return x * _sigmoid(xp, GELU_SCALE * (x + GELU_CUBIC * (x * x * x)))


def _abs_power(xp: Namespace, attrs: AbsPower, x: Array) -> Array:
    value = xp.abs(x) ** attrs.exponent
    signed = xp.where(x < 0, -value, value) if attrs.signed else value
    return xp.where(x == 0, float(attrs.exponent == 0 and not attrs.signed), signed)


_FUNCTIONS = (
    *("abs", "floor", "round", "exp", "log", "sqrt", "tanh", "sin", "cos", "atan", "erf", "normal_cdf"),
    *("normal_density", "maximum", "minimum", "where"),
)


def _function(name: str) -> Lowering:
    """An operator that every library has as a function."""
    return lambda xp, attrs, *operands: getattr(xp, name)(*operands)


# --- numbers of another format ----------------------------------------------------------------------------------------


def _convert(xp: Namespace, attrs: Conversion, x: Array) -> Array:
    dtype = DTYPES[attrs.dtype]
    if dtype.is_integer and xp.is_float(x):
        return _whole(xp, x, dtype)
    return xp.cast(_to_odd(xp, x) if xp.rounds_twice(x, dtype) else x, xp.dtype(dtype))


def _round_to(xp: Namespace, attrs: SmallFormat, x: Array) -> Array:
    """In units of the last place: powers of two, by which numbers of this size are divided and multiplied exactly."""
    format = format_of(attrs.format)
    exponent = xp.clip(xp.frexp(x)[1] - 1, format.emin, format.emax)
    quantum = xp.ldexp(xp.ones_like(x), exponent - (format.precision - 1))
    y = xp.round(x / quantum) * quantum
    most, beyond = format.largest, format.beyond(attrs.saturate)
    return xp.where(y > most, beyond, xp.where(y < -most, -beyond, y))


def _whole(xp: Namespace, x: Array, dtype: DType) -> Array:
    """Floats without their fractions; those that do not fit become the nearest integer that does, and NaN 0.

    The largest integer, as a float, may be one more: all below it fit.
    """
    limits, whole = np.iinfo(dtype.numpy), xp.trunc(x)
    above, below = whole >= float(limits.max), whole <= float(limits.min)
    inside = xp.cast(xp.where(above | below | xp.isnan(x), 0, whole), xp.dtype(dtype))
    return xp.where(above, limits.max, xp.where(below, limits.min, inside))


def _to_odd(xp: Namespace, x: Array) -> Array:
    """Numbers of more bits than float32 holds as such, from which the small formats are rounded as if from ``x``.

    What does not fit is cut off, and then the last bit is set: it tells numbers beside the middle of two small numbers
    from the middle itself, where ties go to even.
    """
    wide = x if xp.is_float(x) else _as_double(xp, x)
    near = xp.cast(wide, xp.float32)
    back = xp.cast(near, xp.float64)
    is_exact = (back == wide) | ~xp.isfinite(near)
    cut = near.view(xp.int32) - xp.cast(xp.abs(back) > xp.abs(wide), xp.int32)
    return xp.where(is_exact, near, (cut | 1).view(xp.float32))


def _as_double(xp: Namespace, x: Array) -> Array:
    """Integers, of which those that doubles do not hold are cut off and marked in the same way."""
    if x.dtype.itemsize < 8:
        return xp.cast(x, xp.float64)
    marked = xp.cast(x >> 11 | ((x & 2047) != 0), xp.float64) * 2048
    return xp.where((x > -(2**53)) & (x < 2**53), xp.cast(x, xp.float64), marked)


def _spread(xp: Namespace, t: Array, shape: tuple[int, ...]) -> Array:
    """``t`` so that it broadcasts to ``shape``: cells that are for several neighbours, but not for all, repeated."""
    for axis in range(-t.ndim, 0):
        if t.shape[axis] not in (1, shape[axis]):
            t = xp.repeat(t, shape[axis] // t.shape[axis], axis)
    return t


def _quantize(xp: Namespace, attrs: Quantization, x: Array, scale: Array, zero: Array) -> Array:
    """Integers of 17 bits are exact in every float that is computed with, so ends of the range may be rounded ones."""
    limits, offset = np.iinfo(DTYPES[attrs.dtype].numpy), xp.cast(_spread(xp, zero, x.shape), xp.int32)
    level = xp.round(x / _spread(xp, scale, x.shape))
    inside = xp.clip(level, xp.cast(limits.min - offset, x.dtype), xp.cast(limits.max - offset, x.dtype))
    return xp.cast(xp.where(xp.isnan(level), 0, inside), xp.int32) + offset


def _dequantize(xp: Namespace, _: NoAttributes, q: Array, scale: Array, *zero: Array) -> Array:
    steps = xp.cast(q, xp.int32)
    for z in zero:
        steps = steps - xp.cast(_spread(xp, z, q.shape), xp.int32)
    return xp.cast(steps, scale.dtype) * _spread(xp, scale, q.shape)


# --- along axes, and products of matrices -----------------------------------------------------------------------------


def _mean_transpose(xp: Namespace, attrs: MeanTranspose, x: Array) -> Array:
    parts = x.reshape(reduced_sizes(attrs.shape, attrs.axes, keepdims=True)) / terms_of_mean(attrs.shape, attrs.axes)
    return xp.broadcast_to(parts, attrs.shape)


def _cumsum(xp: Namespace, attrs: CumSum, x: Array) -> Array:
    axis, before = attrs.axis, (slice(None),) * attrs.axis
    total = xp.cumsum(xp.flip(x, (axis,)) if attrs.reverse else x, axis)
    if attrs.exclusive:
        first, others = total[*before, :1], total[*before, :-1]
        total = xp.concatenate([xp.zeros_like(first), others], axis)
    return xp.flip(total, (axis,)) if attrs.reverse else total


def _from_largest(xp: Namespace, x: Array, axis: int) -> Array:
    return x - (xp.amax(x, axis, keepdims=True) if x.shape[axis] else -inf)


def _softmax(xp: Namespace, attrs: AlongAxis, x: Array) -> Array:
    powers = xp.exp(_from_largest(xp, x, attrs.axis))
    return powers / powers.sum(attrs.axis, keepdims=True)


def _log_softmax(xp: Namespace, attrs: AlongAxis, x: Array) -> Array:
    exponents = _from_largest(xp, x, attrs.axis)
    return exponents - xp.log(xp.exp(exponents).sum(attrs.axis, keepdims=True))


def _top_places(xp: Namespace, attrs: Top, x: Array) -> Array:
    """Sorted upwards, NaN comes last and equal cells stay in order; so they do downwards if all is read backwards."""
    if not attrs.largest:
        return xp.argsort(x, axis=-1, stable=True)[..., : attrs.k]
    upwards = xp.argsort(xp.flip(x, (-1,)), axis=-1, stable=True)
    return (x.shape[-1] - 1 - xp.flip(upwards, (-1,)))[..., : attrs.k]


def _matmul(xp: Namespace, attrs: Product, a: Array, b: Array, *bias: Array) -> Array:
    product = xp.matmul(a, b, attrs.transpose_a, attrs.transpose_b)
    return product + bias[0][..., None, :] if bias else product


def _batch_norm(xp: Namespace, attrs: BatchNorm, x: Array, mean: Array, var: Array, *affine: Array) -> Array:
    ones = (1,) * (x.ndim - 2)
    root = xp.sqrt(var + attrs.eps)
    y = (x - mean.reshape(-1, *ones)) / root.reshape(-1, *ones)
    if attrs.weight:
        y = y * affine[0].reshape(-1, *ones)
    return y + affine[-1].reshape(-1, *ones) if attrs.bias else y


# --- rows and cells by index ------------------------------------------------------------------------------------------


def progressions(starts: Sequence[int], sizes: Sequence[int], steps: Sequence[int]) -> tuple[slice, ...]:
    """``size`` positions from ``start`` in steps of ``step``, as slices."""
    ends = [start + size * step for start, size, step in zip(starts, sizes, steps, strict=True)]
    return tuple(slice(a, b if b >= 0 else None, s) for a, b, s in zip(starts, ends, steps, strict=True))


def _as_rows(x: Array, axis: int) -> Array:
    """All leading axes and ``axis`` as one."""
    return x.reshape(prod(x.shape[: axis + 1]), *x.shape[axis + 1 :])


def _flat_rows(xp: Namespace, indices: Array, axis: int, size: int) -> Array:
    """The number of the row that each index names, counted through all leading indices."""
    rows, lead = xp.checked(indices, size, index_outside), indices.shape[:axis]
    if not axis:
        return rows
    return xp.arange(prod(lead), device=indices.device).reshape(*lead, *(1,) * (indices.ndim - axis)) * size + rows


def _gather_rows(xp: Namespace, attrs: AlongAxis, x: Array, indices: Array) -> Array:
    return _as_rows(x, attrs.axis)[_flat_rows(xp, indices, attrs.axis, x.shape[attrs.axis])]


def _scatter_add_rows(xp: Namespace, attrs: RowPlaces, x: Array, indices: Array) -> Array:
    lead, rest = indices.shape[: attrs.axis], x.shape[indices.ndim :]
    places = _flat_rows(xp, indices, attrs.axis, attrs.size).reshape(-1)
    y = xp.add_rows(prod(lead) * attrs.size, places, x.reshape(prod(indices.shape), *rest))
    return y.reshape(*lead, attrs.size, *rest)


def _scatter_rows(xp: Namespace, attrs: AlongAxis, x: Array, indices: Array, rows: Array) -> Array:
    """Of several rows in one place the last stays."""
    before, places = _as_rows(x, attrs.axis), _flat_rows(xp, indices, attrs.axis, x.shape[attrs.axis]).reshape(-1)
    return xp.put_rows(before, places, rows.reshape(len(places), *before.shape[1:])).reshape(x.shape)


def take_label(xp: Namespace, attrs: AlongAxis | PutLabel, x: Array, labels: Array) -> Array:
    places = _label_places(xp, labels, attrs.axis, x.shape[attrs.axis])
    return xp.take_along_axis(x, places, attrs.axis).squeeze(attrs.axis)


def _put_label(xp: Namespace, attrs: PutLabel, x: Array, labels: Array) -> Array:
    shape, at = (*x.shape[: attrs.axis], attrs.size, *x.shape[attrs.axis :]), (slice(None),) * attrs.axis
    result, places = xp.zeros(shape, x), _label_places(xp, labels, attrs.axis, attrs.size)
    xp.put_along_axis(result, places, x[*at, None], attrs.axis)
    return result


def _label_places(xp: Namespace, labels: Array, axis: int, classes: int) -> Array:
    """Labels, all of them classes, with an axis of size 1 where the classes are."""
    return xp.checked(labels, classes, label_outside)[*(slice(None),) * axis, None]


LOWERINGS: dict[str, Lowering] = {
    "neg": lambda xp, _, x: -x,
    "add": lambda xp, _, a, b: a + b,
    "sub": lambda xp, _, a, b: a - b,
    "mul": lambda xp, _, a, b: a * b,
    "div": lambda xp, _, a, b: a / b,
    "bitwise_and": lambda xp, _, a, b: a & b,
    "bitwise_or": lambda xp, _, a, b: a | b,
    "bitwise_xor": lambda xp, _, a, b: a ^ b,
    "left_shift": lambda xp, _, a, b: a << b,
    "right_shift": lambda xp, _, a, b: a >> b,
    "greater": lambda xp, _, a, b: a > b,
    "equal": lambda xp, _, a, b: a == b,
    **{name: _function(name) for name in _FUNCTIONS},
    "trunc_divide": lambda xp, _, a, b: xp.where(b == 0, 0, xp.trunc_divide(a, xp.where(b == 0, 1, b))),
    "scale": lambda xp, attrs, x: x * attrs.factor,
    "detach": lambda xp, _, x: x,
    "relu": lambda xp, _, x: xp.where(x <= 0, 0, x),
    "leaky_relu": lambda xp, attrs, x: xp.where(x <= 0, attrs.negative_slope * x, x),
    "abs_power": _abs_power,
    "clamp": _clamp,
    "sigmoid": lambda xp, _, x: _sigmoid(xp, x),
    "softplus": _softplus,
    "silu": lambda xp, _, x: x * _sigmoid(xp, x),
    "gelu": _gelu,
    "step": _step,
    "max_share": _max_share,
    "within": _within,
    "gate": lambda xp, _, weight, t: xp.where(weight == 0, 0, weight * t),
    "convert": _convert,
    "round_tangent": lambda xp, _, x: x,
    "round_to": _round_to,
    "quantize": _quantize,
    "dequantize": _dequantize,
    "sum": lambda xp, attrs, x: xp.sum(x, attrs.axes),
    "mean": lambda xp, attrs, x: xp.sum(x, attrs.axes) / terms_of_mean(x.shape, attrs.axes),
    "cumsum": _cumsum,
    "mean_transpose": _mean_transpose,
    "softmax": _softmax,
    "log_softmax": _log_softmax,
    "top_places": _top_places,
    "matmul": _matmul,
    "batch_norm": _batch_norm,
    "broadcast_to": lambda xp, attrs, x: xp.broadcast_to(x, attrs.shape),
    "reshape": lambda xp, attrs, x: x.reshape(attrs.shape),
    "transpose": lambda xp, attrs, x: xp.permute_dims(x, attrs.axes),
    "concat": lambda xp, attrs, *xs: xp.concatenate(xs, attrs.axis),
    "slice": lambda xp, attrs, x: x[progressions(attrs.starts, attrs.sizes, attrs.steps)],
    "gather_rows": _gather_rows,
    "scatter_add_rows": _scatter_add_rows,
    "scatter_rows": _scatter_rows,
    "take_label": take_label,
    "put_label": _put_label,
}
