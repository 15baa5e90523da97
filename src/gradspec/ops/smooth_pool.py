"""Smooth max pooling, closed under differentiation.

With ``w`` the softmax weights of each window, two operators are linear in their second operand and each other's
transpose: the mean ``M(x, u) = Σ wᵢ·uᵢ`` over each window, and ``S(x, g) = Σ gₒ·wₒⱼ``, which spreads a cotangent over
the cells. Since ``dwᵢ = β·wᵢ·(dxᵢ − M(x, dx))``,

    d smooth_max_pool(x) = M(x, dx)
    d M(x, u) = M(x, du) + β·(M(x, u·dx) − M(x, u)·M(x, dx))
    d S(x, g) = S(x, dg) + β·(dx·S(x, g) − S(x, g·M(x, dx))).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Op
from gradspec.graph.types import DType, TensorType, require_floats, type_of
from gradspec.ops.batching import leading_batch
from gradspec.ops.pointwise import scale
from gradspec.ops.pool import Windows, plain_number, sliding_windows, zero_of
from gradspec.spec.errors import ShapeError
from gradspec.spec.smooth_pool import settled, smooth_max_pool_jvp, smooth_max_pool_vjp
from gradspec.spec.smooth_pool import smooth_max_pool as smooth_max_pool_spec
from gradspec.spec.tensor import Tensor
from gradspec.spec.window import Ints, Padding


@dataclass(frozen=True)
class SmoothPool(Windows):
    beta: float = field(kw_only=True)
    padding_mode: str = "zeros"


def _rounded(beta: Any, padding_mode: str, dtype: DType) -> float:
    """β as numbers of ``dtype`` are computed with."""
    with np.errstate(over="ignore"):
        return float(settled(beta, padding_mode, zero_of(dtype)))


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


def _settings(attrs: SmoothPool) -> dict[str, Any]:
    return {name: value for name, value in vars(attrs).items() if name != "output_size"}


def _spec(attrs: SmoothPool, x: Tensor) -> tuple[Tensor]:
    return (smooth_max_pool_spec(x, **_settings(attrs)),)


def _mean_spec(attrs: SmoothPool, x: Tensor, u: Tensor) -> tuple[Tensor]:
    return (smooth_max_pool_jvp(x, u, **_settings(attrs)),)


def _spread_spec(attrs: SmoothPool, x: Tensor, g: Tensor) -> tuple[Tensor]:
    return (smooth_max_pool_vjp(x, g, **_settings(attrs)),)


def _mean(attrs: SmoothPool, x: Any, u: Any) -> Any:
    return apply(SMOOTH_MAX_MEAN, attrs, x, u)


def _spread(attrs: SmoothPool, x: Any, g: Any) -> Any:
    return apply(SMOOTH_MAX_SPREAD, attrs, x, g)


def _plus(a: Any, b: Any) -> Any:
    return b if a is None else a + b


def _mean_jvp(attrs: SmoothPool, primals: Any, tangents: Any) -> Any:
    (x, u), (dx, du) = primals, tangents
    mean = _mean(attrs, x, u)
    moved = None if du is None else _mean(attrs, x, du)
    if dx is not None:
        covariance = _mean(attrs, x, u * dx) - mean * _mean(attrs, x, dx)
        moved = _plus(moved, scale(covariance, attrs.beta))
    return [mean], [moved]


def _spread_jvp(attrs: SmoothPool, primals: Any, tangents: Any) -> Any:
    (x, g), (dx, dg) = primals, tangents
    spread = _spread(attrs, x, g)
    moved = None if dg is None else _spread(attrs, x, dg)
    if dx is not None:
        centred = dx * spread - _spread(attrs, x, g * _mean(attrs, x, dx))
        moved = _plus(moved, scale(centred, attrs.beta))
    return [spread], [moved]


def _jvp(attrs: SmoothPool, primals: Any, tangents: Any) -> Any:
    return [apply(SMOOTH_MAX_POOL, attrs, *primals)], [_mean(attrs, *primals, *tangents)]


SMOOTH_MAX_POOL = Op(
    "smooth_max_pool",
    SmoothPool,
    types=_types,
    spec=_spec,
    batch=leading_batch,
    jvp=_jvp,
)

SMOOTH_MAX_MEAN = Op(
    "smooth_max_mean",
    SmoothPool,
    types=_mean_types,
    spec=_mean_spec,
    batch=leading_batch,
    jvp=_mean_jvp,
    transpose=lambda attrs, cotangents, operands, i: _spread(attrs, operands[0], cotangents[0]),
)

SMOOTH_MAX_SPREAD = Op(
    "smooth_max_spread",
    SmoothPool,
    types=_spread_types,
    spec=_spread_spec,
    batch=leading_batch,
    jvp=_spread_jvp,
    transpose=lambda attrs, cotangents, operands, i: _mean(attrs, operands[0], cotangents[0]),
)


def smooth_max_pool(
    x: Any,
    kernel_size: Sequence[int],
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    ceil_mode: bool = False,
    *,
    beta: float,
    padding_mode: str = "zeros",
) -> Any:
    """``(1/β) · log Σ exp(β·xᵢ)`` over each window: a maximum without kinks, or a minimum for β < 0.

    Padding counts as cells of value 0, or takes no part (``padding_mode="ignore"``). β is rounded to the precision
    that ``x`` is computed in; it is a constant and has no derivative.

    >>> import numpy as np
    >>> smooth_max_pool(np.float64([0, 0, 1000]), (2,), 1, beta=1.0).round(6).tolist()
    [0.693147, 1000.0]
    """
    (x,) = operands(x)
    windows = sliding_windows("smooth_max_pool", x, kernel_size, stride, padding, dilation, ceil_mode)
    dtype = require_floats("smooth_max_pool", getattr(x, "type", None) or type_of(x))
    softness = _rounded(plain_number(beta), padding_mode, dtype)
    return apply(SMOOTH_MAX_POOL, SmoothPool(**windows, beta=softness, padding_mode=padding_mode), x)
