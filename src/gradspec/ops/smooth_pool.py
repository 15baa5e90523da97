"""Smooth max pooling, closed under differentiation.

With ``w`` the softmax weights of each window, two operators are linear in their second operand and each other's
transpose: the mean ``M(x, u) = Σ wᵢ·uᵢ`` over each window, and ``S(x, g) = Σ gₒ·wₒⱼ``, which spreads a cotangent over
the cells. Since ``dwᵢ = β·wᵢ·(dxᵢ − M(x, dx))``,

    d smooth_max_pool(x) = M(x, dx)
    d M(x, u) = M(x, du) + β·(M(x, u·dx) − M(x, u)·M(x, dx))
    d S(x, g) = S(x, dg) + β·(dx·S(x, g) − S(x, g·M(x, dx))).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import inf, log, prod
from typing import NamedTuple

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import JvpResult, Op, Operand, Sums, Var
from gradspec.graph.types import DType, TensorType, f64, require_floats, type_of
from gradspec.ops import pool
from gradspec.ops.box import BoundedNode, Box, Lines, sum_of
from gradspec.ops.pointwise import abs as absolute
from gradspec.ops.pointwise import detach, exact_number, exp, gate, maximum, minimum, scale
from gradspec.ops.pointwise import log as logarithm
from gradspec.ops.rules import most_cells, most_windows
from gradspec.ops.select import equal, less, where
from gradspec.ops.shape import broadcast_to, leading_batch, reshape
from gradspec.ops.shape import sum as sum_over
from gradspec.ops.windows import are_cells, are_taps, gather_competitors, gather_windows, mask, scatter_windows
from gradspec.spec.errors import ShapeError
from gradspec.spec.smooth_pool import settled, smooth_max_pool_jvp, smooth_max_pool_vjp
from gradspec.spec.smooth_pool import smooth_max_pool as smooth_max_pool_spec
from gradspec.spec.tensor import Tensor
from gradspec.spec.window import Ints, Padding


@dataclass(frozen=True)
class SmoothPool(pool.Windows):
    beta: float = field(kw_only=True)
    padding_mode: str = "zeros"


def _rounded(beta: float, padding_mode: str, dtype: DType) -> float:
    """β as numbers of ``dtype`` are computed with."""
    with np.errstate(over="ignore"):
        return float(settled(beta, padding_mode, pool.zero_of(dtype)))


def _types(attrs: SmoothPool, x: TensorType) -> tuple[TensorType]:
    require_floats("smooth_max_pool", x)
    _rounded(attrs.beta, attrs.padding_mode, x.dtype)
    return (attrs.pooled(x),)


def _mean_types(attrs: SmoothPool, x: TensorType, u: TensorType) -> tuple[TensorType]:
    require_floats("smooth_max_mean", x, u)
    if u.shape != x.shape:
        raise ShapeError(f"{u} is averaged with the weights of {x}; give it the same shape")
    return _types(attrs, x)


def _spread_types(attrs: SmoothPool, x: TensorType, g: TensorType) -> tuple[TensorType]:
    require_floats("smooth_max_spread", x, g)
    (y,) = _types(attrs, x)
    if g.shape != y.shape:
        raise ShapeError(f"the cotangent is {g}, and {x} is pooled to {y}; give it that shape")
    return (x,)


def _meaning(function: Callable[..., Tensor]) -> Callable[..., tuple[Tensor]]:
    """The specification of an operator whose windows are not bins."""

    def spec(attrs: SmoothPool, *tensors: Tensor) -> tuple[Tensor]:
        settings = {name: value for name, value in vars(attrs).items() if name != "output_size"}
        return (function(*tensors, **settings),)

    return spec


def _mean(attrs: SmoothPool, x: Var, u: Var) -> Var:
    return apply(SMOOTH_MAX_MEAN, attrs, x, u)


def _spread(attrs: SmoothPool, x: Var, g: Var) -> Var:
    return apply(SMOOTH_MAX_SPREAD, attrs, x, g)


def _mean_jvp(attrs: SmoothPool, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    (x, u), (dx, du) = primals, tangents
    mean = _mean(attrs, x, u)
    moved = None if du is None else _mean(attrs, x, du)
    if dx is not None:
        covariance = _mean(attrs, x, u * dx) - mean * _mean(attrs, x, dx)
        moved = sum_of([moved, scale(covariance, attrs.beta)])
    return [mean], [moved]


def _spread_jvp(attrs: SmoothPool, primals: Sequence[Var], tangents: Sequence[Var | None]) -> JvpResult:
    (x, g), (dx, dg) = primals, tangents
    spread = _spread(attrs, x, g)
    moved = None if dg is None else _spread(attrs, x, dg)
    if dx is not None:
        centred = dx * spread - _spread(attrs, x, g * _mean(attrs, x, dx))
        moved = sum_of([moved, scale(centred, attrs.beta)])
    return [spread], [moved]


def _jvp(attrs: SmoothPool, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    return [apply(SMOOTH_MAX_POOL, attrs, *primals)], [_mean(attrs, *primals, *tangents)]


# --- bounds -----------------------------------------------------------------------------------------------------------
# β(x − c) is rounded twice, which costs the exponential twice its exponent, and exponents that matter are no larger
# than VANISHED; in the mean over a window they are at most log n.

VANISHED = {f64: 746}
"""Below minus this, exponentials round to 0; if not said, minus 104."""

LOST = 2.0**-100
"""Weights that round to 0 are smaller than this times the roundings."""


def _terms(attrs: SmoothPool, x: TensorType, u: TensorType) -> int:
    """The roundings of a weight and of a sum of weighted cells, over a window or over windows."""
    window = attrs.window(x)
    return 2 * VANISHED.get(x.dtype, 104) + 2 * most_cells(window) + most_windows(window) + 32


def _mean_size(attrs: SmoothPool, x: Var, u: Var) -> Var:
    return _mean(attrs, x, u) + scale(apply(pool.MAX_POOL, pool.MaxPool(**pool.windows_of(attrs)), u), LOST)


def _spread_size(attrs: SmoothPool, x: Var, g: Var) -> Var:
    every = pool.AvgTranspose(**pool.windows_of(attrs), divisor_override=1, sizes=attrs.window(x).sizes)
    return _spread(attrs, x, g) + scale(apply(pool.AVG_POOL_TRANSPOSE, every, g), LOST)


def _mean_box(node: BoundedNode, x: Box, u: Box) -> Box:
    """Whatever the weights are: between the least and the largest cell, and 0 for padding."""
    hull = pool.over_windows(node, u)
    ends = [minimum(hull.lower, 0.0), maximum(hull.upper, 0.0)] if _padded(node.attrs) else hull.ends
    return node.around(ends, _terms(node.attrs, x.lower.type, u.lower.type))


def _padded(attrs: SmoothPool) -> bool:
    return attrs.ceil_mode or any(n for pair in attrs.padding for n in pair)


def _taps(attrs: SmoothPool) -> int:
    return prod(attrs.kernel_size)


def _margin(node: BoundedNode, value: Var) -> Var:
    """Errors are relative to the value, and absolute in units of 1/β, of which ``log Σ exp`` may have log n."""
    taps = _taps(node.attrs)
    return node.blur(absolute(value) + (2 + log(taps)) / abs(node.attrs.beta), 2 * taps + 32)


def _box(node: BoundedNode, box: Box) -> Box:
    """It increases with every cell, also for a negative β."""
    low, high = (node.apply(end) for end in box.ends)
    return node.between(low - _margin(node, low), high + _margin(node, high))


@dataclass(frozen=True)
class _Weighted:
    """The linear map to the means by the weights of ``centre``, where they are ``chosen`` (1, else 0)."""

    attrs: SmoothPool
    centre: Var
    chosen: Var

    @property
    def roundings(self) -> int:
        return _terms(self.attrs, self.centre.type, self.centre.type) + 1

    def push(self, x: Var) -> Var:
        return gate(self.chosen, _mean(self.attrs, self.centre, x))

    def pull(self, g: Var) -> Var:
        return _spread(self.attrs, self.centre, gate(self.chosen, g))

    def absolute(self, x: Var) -> Var:
        return gate(self.chosen, _mean_size(self.attrs, self.centre, x))


def _lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    """For β > 0 it is convex: above its tangent at the centre, whose slopes are the weights. Below the tangent it is
    lifted by ``β·r²/2``, since a second derivative is β times a variance of moves of at most ``r``; and no more than
    ``log n / β`` above the largest cell. The best at the centre counts. For β < 0 it is the other way round."""
    (box,), sign = boxes, 1.0 if node.attrs.beta > 0 else -1.0
    ends = _box(node, box).ends
    weighted, start, room = _tangent(node, box)
    tangent = node.line(start - room * sign, (0, weighted))
    moves = apply(pool.MAX_POOL, pool.MaxPool(**pool.windows_of(node.attrs)), box.radius)
    lift = room + moves * moves * node.above(abs(node.attrs.beta) * 0.5001)
    end = ends[1] if sign > 0 else ends[0]
    hard, intercept = _hard(node, box, end, sign)
    values = start + weighted.push(box.centre) + lift * sign, hard.push(box.centre) + intercept
    first = less(values[0] * sign, minimum(values[1] * sign, end * sign))
    second = less(values[1] * sign, minimum(values[0] * sign, end * sign))
    maps = (
        (0, replace(weighted, chosen=where(first, weighted.chosen, 0.0))),
        (0, replace(hard, slope=where(second, hard.slope, 0.0))),
    )
    other = node.line(where(first, start + lift * sign, where(second, intercept, end)), *maps)
    return (tangent, other) if sign > 0 else (other, tangent)


def _tangent(node: BoundedNode, box: Box) -> tuple[_Weighted, Var, Var]:
    """The weights at the centre, the tangent's intercept, and how far it may be off over the box."""
    centre, radius = box.ball
    value = node.apply(centre)
    weighted = _Weighted(node.attrs, centre, broadcast_to(node.number(1.0, value), value.shape))
    known = maximum(*map(absolute, _box(node, box).ends))
    room = weighted.absolute(absolute(centre)) + weighted.absolute(radius) + absolute(value)
    room = room * node.rounding(2 * weighted.roundings) + _margin(node, known) * 2.0 + node.tiny
    return weighted, value - weighted.push(centre), room


def _hard(node: BoundedNode, box: Box, end: Var, sign: float) -> tuple[pool.Gathered, Var]:
    """The line beyond the largest (least) cell."""
    attrs, window = node.attrs, node.attrs.window(box.lower)
    ends = box.ends if sign > 0 else (-box.upper, -box.lower)
    zeros = attrs.padding_mode == "zeros"
    cut = np.array([0.0 if zeros and None in taps else -inf for taps in window.table()]).reshape(window.outputs)
    least = end.owner.share(cut.astype(end.dtype.numpy), "least")
    slope, places, intercept = pool.above_max(
        node, pool.MaxPool(**pool.windows_of(attrs)), ends, broadcast_to(least, end.shape)
    )
    intercept = intercept + node.above(log(_taps(attrs)) / abs(attrs.beta) * 1.0001) + _margin(node, end) * 2.0
    return pool.gathered(window, slope, places), intercept * sign


# --- decompositions, around each window's pivot -----------------------------------------------------------------------


class _Softened(NamedTuple):
    """Pivots, ``exp(β(x − c))`` of the taps that take part (0 of others), and their sums, which are 1 of none."""

    center: Var
    powers: Var
    total: Var
    is_empty: Var | None
    """Whether none of a window's taps takes part; None if that is nowhere so."""


def _soften(attrs: SmoothPool, x: Var) -> _Softened:
    """Every window around its pivot, which is a constant of differentiation."""
    window, takes_part = attrs.window(x), are_taps if attrs.padding_mode == "zeros" else are_cells
    axes = [takes_part(axis) for axis in window.axes]
    cells, counted = gather_competitors(x, window, axes), mask(x, axes)
    center = detach(pool.global_max_pool(cells, 1) if attrs.beta > 0 else -pool.global_max_pool(-cells, 1))
    powers = exp(_exponents(cells, center, attrs.beta))
    powers = powers if counted is None else where(counted, powers, 0.0)
    total, filled = sum_over(powers, -1, keepdims=True), [axis.any(axis=1) for axis in axes]
    if all(axis.all() for axis in filled):
        return _Softened(center, powers, total, None)
    is_empty = x.owner.share(np.logical_not(reduce(np.multiply.outer, filled))[..., None], "empty")
    return _Softened(center, powers, where(is_empty, 1.0, total), is_empty)


def _exponents(x: Var, center: Var, beta: float) -> Var:
    """``β(x − c)``; 0 where both are one infinity, and in halves where the difference overflows."""
    gap, largest = x - center, float(np.finfo(x.dtype.numpy).max)
    halves = scale(scale(x, 0.5) - scale(center, 0.5), max(-largest, min(2 * beta, largest)))
    near = where(equal(maximum(gap, -gap), inf), halves, scale(gap, beta))
    is_one_infinity = minimum(equal(x, center), equal(equal(gap, gap), False))
    return where(is_one_infinity, 0.0, near)


def _decompose(attrs: SmoothPool, x: Var) -> tuple[Var]:
    soft = _soften(attrs, x)
    y = soft.center + logarithm(soft.total) / exact_number(attrs.beta, x)
    filled = y if soft.is_empty is None else where(soft.is_empty, 0.0, y)
    return (reshape(filled, filled.shape[:-1]),)


def _decompose_mean(attrs: SmoothPool, x: Var, u: Var) -> tuple[Var]:
    soft = _soften(attrs, x)
    return (sum_over(soft.powers / soft.total * gather_windows(u, attrs.window(x)), -1),)


def _decompose_spread(attrs: SmoothPool, x: Var, g: Var) -> tuple[Var]:
    soft = _soften(attrs, x)
    return (scatter_windows(soft.powers / soft.total * reshape(g, (*g.shape, 1)), attrs.window(x)),)


SMOOTH_MAX_POOL = Op(
    "smooth_max_pool",
    SmoothPool,
    types=_types,
    spec=_meaning(smooth_max_pool_spec),
    batch=leading_batch,
    enclosure=_box,
    relaxation=_lines,
    jvp=_jvp,
    decompose=_decompose,
)

SMOOTH_MAX_MEAN = Op(
    "smooth_max_mean",
    SmoothPool,
    types=_mean_types,
    spec=_meaning(smooth_max_pool_jvp),
    batch=leading_batch,
    sums=Sums(max_roundings=_terms, factors=(1,), fixed=(0,), absolute=_mean_size),
    enclosure=_mean_box,
    jvp=_mean_jvp,
    decompose=_decompose_mean,
    transpose=lambda attrs, cotangents, operands, i: _spread(attrs, operands[0], cotangents[0]),
)

SMOOTH_MAX_SPREAD = Op(
    "smooth_max_spread",
    SmoothPool,
    types=_spread_types,
    spec=_meaning(smooth_max_pool_vjp),
    batch=leading_batch,
    sums=Sums(max_roundings=_terms, factors=(1,), fixed=(0,), absolute=_spread_size),
    enclosure=lambda node, x, g: pool.parts_of(node, x.lower, g, _terms(node.attrs, x.lower.type, g.lower.type)),
    jvp=_spread_jvp,
    decompose=_decompose_spread,
    transpose=lambda attrs, cotangents, operands, i: _mean(attrs, operands[0], cotangents[0]),
)


def smooth_max_pool(
    x: Operand,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> Var:
    """``(1/β) · log Σ exp(β·xᵢ)`` over each window: a maximum without kinks, or a minimum for β < 0.

    Padding counts as cells of value 0, or is ignored (``padding_mode="ignore"``). β is rounded to the precision that
    ``x`` is computed in; it is a constant and has no derivative.

    >>> smooth_max_pool(np.float64([0, 0, 1000]), (2,), 1, beta=1.0).round(6).tolist()
    [0.693147, 1000.0]
    """
    (x,) = operands(x)
    windows = pool.sliding_windows("smooth_max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    dtype = require_floats("smooth_max_pool", x.type if isinstance(x, Var) else type_of(x))
    softness = _rounded(pool.plain_number(beta), padding_mode, dtype)
    return apply(SMOOTH_MAX_POOL, SmoothPool(**windows, beta=softness, padding_mode=padding_mode), x)
