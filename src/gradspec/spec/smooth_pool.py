"""Smooth max pooling: ``y = (1/β) · log Σ exp(β·xᵢ)`` over each window, β ≠ 0 (a smooth minimum for β < 0).

Written around a pivot ``c``, the window's maximum (its minimum for β < 0):

    eᵢ = exp(β(xᵢ − c)),   A = Σ eᵢ,   y = c + log A / β,   wᵢ = eᵢ / A = ∂y/∂xᵢ.

Every ``eᵢ`` is at most 1 and the pivot's is 1, so nothing overflows and ``A ≥ 1``. In exact arithmetic the value does
not depend on ``c``, so an enclosure may use any point as its pivot, and a point keeps ``c`` from widening the result.

Padding counts as cells of value 0 (``padding_mode="zeros"``) or takes no part (``"ignore"``; a window without a real
cell is then 0). The weights are a softmax, so second derivatives are its covariance:

    D²y[u, v] = β · (Σ wᵢuᵢvᵢ − Σ wᵢuᵢ · Σ wᵢvᵢ).

β is a constant of the operator, rounded to the number system it is used in; it has no derivative.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gradspec.spec.pool import Plane, Taps, real, reduce_windows, scatter_windows, sliding
from gradspec.spec.scalar import (
    Scalar,
    add_up,
    embed,
    exp,
    is_infinite,
    larger,
    log,
    pivot,
    refuse_fixed_width_integers,
)
from gradspec.spec.tensor import Tensor, TensorLike, require_shape, tensor
from gradspec.spec.window import Ints, Padding, Window

PADDING_MODES = ("zeros", "ignore")


@dataclass(frozen=True, slots=True)
class Softened:
    """One window around its pivot: the taps that take part, their ``eᵢ`` and ``A``; ``None`` taps are padding zeros."""

    taps: Taps
    center: Scalar
    powers: list[Scalar]
    total: Scalar

    def weights(self) -> list[tuple[int, Scalar]]:
        """``(cell, wᵢ)`` for the real cells."""
        return [(t, e / self.total) for t, e in zip(self.taps, self.powers, strict=True) if t is not None]

    def mean(self, plane: Plane, zero: Scalar) -> Scalar:
        """``Σ wᵢ·planeᵢ``; padding contributes nothing."""
        return add_up((w * plane[t] for t, w in self.weights()), zero)


@dataclass(frozen=True, slots=True)
class _SmoothPool:
    """The operator with its attributes."""

    x: Tensor
    window: Window
    beta: Scalar
    padding_mode: str

    def soften(self, taps: Taps, plane: Plane) -> Softened | None:
        """The window in pivot form, or None if it has no cell."""
        counted: Taps = taps if self.padding_mode == "zeros" else [*real(taps)]
        cells = [self.x.zero if t is None else plane[t] for t in counted]
        if not cells:
            return None
        center = pivot(_extreme(cells, self.beta))
        powers = [exp(_exponent(cell, center, self.beta)) for cell in cells]
        return Softened(counted, center, powers, add_up(powers, embed(powers[0], 0)))

    def reduce(self, formula: Callable[..., Scalar], *tensors: Tensor) -> Tensor:
        nothing = (self.x, *tensors)[-1].zero

        def over(taps: Taps, plane: Plane, *planes: Plane) -> Scalar:
            soft = self.soften(taps, plane)
            return nothing if soft is None else formula(soft, *planes)

        return reduce_windows(self.window, over, self.x, *tensors).stored()


def _extreme(cells: list[Scalar], beta: Scalar) -> Scalar:
    """The maximum for β > 0, the minimum for β < 0."""
    signed = cells if beta > 0 else [-cell for cell in cells]
    top = signed[0]
    for cell in signed[1:]:
        top = larger(top, cell)
    return top if beta > 0 else -top


def _exponent(x: Scalar, center: Scalar, beta: Scalar) -> Scalar:
    """``β(x − c)``, also where x and c are the same infinity, or so far apart that their difference overflows."""
    if is_infinite(center) and is_infinite(x) and (x > 0) == (center > 0):
        return embed(x, 0)
    gap = x - center
    if is_infinite(gap) and not is_infinite(x) and not is_infinite(center):
        return (2 * beta) * (x / 2 - center / 2)
    return beta * gap


def _pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None,
    padding: Padding,
    dilation: Ints,
    ceil_mode: bool,
    beta: Scalar,
    padding_mode: str,
) -> _SmoothPool:
    x = tensor(x)
    refuse_fixed_width_integers("smooth max pooling", x.zero)
    softness = settled(beta, padding_mode, x.cells[0] if x.cells else beta)
    return _SmoothPool(x, sliding(x, kernel_size, stride, padding, dilation, ceil_mode), softness, padding_mode)


def settled(beta: Scalar, padding_mode: str, like: Scalar) -> Scalar:
    """β in the number system of ``like``, once it and the padding mode are found to make sense."""
    if padding_mode not in PADDING_MODES:
        raise ValueError(f'padding_mode={padding_mode!r} is not known; use "zeros" (the default) or "ignore"')
    if isinstance(beta, bool) or not hasattr(beta, "__float__") or not math.isfinite(beta) or beta == 0:
        raise ValueError(f"beta={beta!r}: smooth max pooling needs a finite number other than 0, such as beta=1.0")
    rounded = embed(like, beta)
    if rounded == 0 or is_infinite(rounded):
        raise ValueError(f"beta={beta!r} becomes {rounded} in the number system of x; choose a beta it can hold")
    return rounded


def smooth_max_pool(
    x: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``(1/β) · log Σ exp(β·xᵢ)`` over each window.

    >>> smooth_max_pool([0.0, 0.0, 1000.0], (2,), 1, beta=1.0).map(lambda v: round(v, 6)).tolist()
    [0.693147, 1000.0]
    """
    pool = _pool(x, kernel_size, stride, padding, dilation, ceil_mode, beta, padding_mode)
    return pool.reduce(lambda soft: soft.center + log(soft.total) / pool.beta)


def smooth_max_pool_jvp(
    x: TensorLike,
    dx: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``Σ wᵢ·dxᵢ`` over each window.

    >>> smooth_max_pool_jvp([5.0, 5.0], [1.0, 3.0], (2,), beta=1.0).tolist()
    [2.0]
    """
    pool = _pool(x, kernel_size, stride, padding, dilation, ceil_mode, beta, padding_mode)
    dx = tensor(dx)
    require_shape("tangent", dx, pool.x.shape)
    return pool.reduce(lambda soft, tangents: soft.mean(tangents, dx.zero), dx)


def smooth_max_pool_vjp(
    x: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """Each window adds ``g·wᵢ`` to its real cells.

    >>> smooth_max_pool_vjp([5.0, 5.0], [4.0], (2,), beta=1.0).tolist()
    [2.0, 2.0]
    """
    pool = _pool(x, kernel_size, stride, padding, dilation, ceil_mode, beta, padding_mode)

    def by_weight(taps: Taps, cotangent: Scalar, plane: Plane) -> list[tuple[int, Scalar]]:
        soft = pool.soften(taps, plane)
        return [] if soft is None else [(t, cotangent * w) for t, w in soft.weights()]

    return scatter_windows(pool.window, by_weight, tensor(g), pool.x)


def smooth_max_pool_jvp_jvp(
    x: TensorLike,
    dx: TensorLike,
    ex: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """The second derivative ``D²y[dx, ex]``: how the JVP along ``dx`` changes along ``ex``.

    >>> smooth_max_pool_jvp_jvp([5.0, 5.0], [1.0, 0.0], [1.0, 0.0], (2,), beta=2.0).tolist()
    [0.5]
    """
    pool = _pool(x, kernel_size, stride, padding, dilation, ceil_mode, beta, padding_mode)
    dx, ex = tensor(dx), tensor(ex)
    require_shape("first tangent", dx, pool.x.shape)
    require_shape("second tangent", ex, pool.x.shape)

    def covariance(soft: Softened, u: Plane, v: Plane) -> Scalar:
        mean = soft.mean(u, dx.zero)
        return pool.beta * add_up((w * (u[t] - mean) * v[t] for t, w in soft.weights()), ex.zero)

    return pool.reduce(covariance, dx, ex)


def smooth_max_pool_jvp_vjp(
    x: TensorLike,
    dx: TensorLike,
    g: TensorLike,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: Scalar,
    padding_mode: str = "zeros",
) -> Tensor:
    """``β·g·wᵢ·(dxᵢ − Σ wⱼ·dxⱼ)``: the cotangent that the JVP along ``dx`` sends to ``x``.

    The Hessian is symmetric, so this is also the derivative of the VJP of ``g`` along ``dx``.

    >>> smooth_max_pool_jvp_vjp([5.0, 5.0], [1.0, 0.0], [1.0], (2,), beta=2.0).tolist()
    [0.5, -0.5]
    """
    pool = _pool(x, kernel_size, stride, padding, dilation, ceil_mode, beta, padding_mode)
    dx, g = tensor(dx), tensor(g)
    require_shape("tangent", dx, pool.x.shape)

    def by_covariance(taps: Taps, cotangent: Scalar, plane: Plane, tangents: Plane) -> list[tuple[int, Scalar]]:
        soft = pool.soften(taps, plane)
        if soft is None:
            return []
        mean = soft.mean(tangents, dx.zero)
        return [(t, pool.beta * cotangent * w * (tangents[t] - mean)) for t, w in soft.weights()]

    return scatter_windows(pool.window, by_covariance, g, pool.x, dx)
