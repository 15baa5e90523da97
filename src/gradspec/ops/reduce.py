"""Sums and means over axes, and the softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Var
from gradspec.graph.op import Op
from gradspec.graph.types import TensorType, require_floats, require_numbers
from gradspec.ops.layout import Axis, broadcast_to, recorded_axis, reshape
from gradspec.ops.rules import applying
from gradspec.spec import reduce as spec
from gradspec.spec.errors import ShapeError
from gradspec.spec.layout import normal_axes, normal_axis


@dataclass(frozen=True)
class Axes:
    """The axes that are reduced."""

    axes: tuple[int, ...]


def _reduced_type(name: str, attrs: Axes, x: TensorType) -> TensorType:
    axes = normal_axes(name, [recorded_axis(name, a, x.ndim) for a in attrs.axes], x.ndim)
    return TensorType(x.dtype, spec.reduced_sizes(x.shape, axes))


def _axes_batch(op: Op, attrs: Axes, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    return (apply(op, Axes(_one_further(attrs.axes)), *operands_),)


def _one_further(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + 1 for a in axes)


def _reduction(op: Op, x: Any, axis: int | Sequence[int] | None, keepdims: bool) -> Any:
    (x,) = operands(x)
    with applying(op.name, x):
        axes = normal_axes(op.name, axis, len(x.shape))
    result = apply(op, Axes(axes), x) if axes else x
    return reshape(result, spec.reduced_sizes(x.shape, axes, keepdims))


# --- sum -------------------------------------------------------------------------------------------------------------


def _sum_types(attrs: Axes, x: TensorType) -> tuple[TensorType]:
    require_numbers("sum", x)
    return (_reduced_type("sum", attrs, x),)


def _sum_transpose(attrs: Axes, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    (x,) = types
    ones = spec.reduced_sizes(x.shape, attrs.axes, keepdims=True)
    return broadcast_to(reshape(cotangents[0], ones), x.shape)  # type: ignore[no-any-return]


SUM = Op(
    "sum",
    Axes,
    types=_sum_types,
    spec=lambda attrs, x: (spec.sum(x, attrs.axes),),
    batch=_axes_batch,
    linear="jointly",
    transpose=_sum_transpose,
)


def sum(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The sum over ``axis`` (one, several, or None for all), which stays as a 1 with ``keepdims``.

    >>> import numpy as np
    >>> sum(np.float32([[1, 2], [3, 4]]), 0).tolist()
    [4.0, 6.0]
    """
    return _reduction(SUM, x, axis, keepdims)


# --- mean, and its transpose -----------------------------------------------------------------------------------------
# One operator each rather than a sum and a division: in float16 the sum, or the count, may be too large to store.


def _mean_types(attrs: Axes, x: TensorType) -> tuple[TensorType]:
    require_floats("mean", x)
    result = _reduced_type("mean", attrs, x)
    spec.terms_of_mean(x.shape, attrs.axes)
    return (result,)


def _mean_transpose(attrs: Axes, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    return apply(SHARE, Share(attrs.axes, types[0].shape), *cotangents)  # type: ignore[no-any-return]


MEAN = Op(
    "mean",
    Axes,
    types=_mean_types,
    spec=lambda attrs, x: (spec.mean(x, attrs.axes),),
    batch=_axes_batch,
    linear="jointly",
    transpose=_mean_transpose,
)


def mean(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The sum over ``axis`` divided by the number of its terms, of which there is at least one.

    >>> import numpy as np
    >>> mean(np.float32([[1, 2], [3, 4]]), 0).tolist()
    [2.0, 3.0]
    """
    return _reduction(MEAN, x, axis, keepdims)


@dataclass(frozen=True)
class Share:
    """The axes along which equal parts are given, and the shape of the result."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]


def _share_types(attrs: Share, x: TensorType) -> tuple[TensorType]:
    result = TensorType(require_floats("share", x), attrs.shape)
    if _mean_types(Axes(attrs.axes), result) != (x,):
        raise ShapeError(f"share: {x} is not the mean over the axes {attrs.axes} of a tensor of shape {attrs.shape}")
    return (result,)


def _share_batch(op: Op, attrs: Share, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    (x,) = operands_
    return (apply(op, Share(_one_further(attrs.axes), (x.shape[0], *attrs.shape)), x),)


SHARE = Op(
    "share",
    Share,
    types=_share_types,
    spec=lambda attrs, x: (spec.share(x, attrs.axes, attrs.shape),),
    batch=_share_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: apply(MEAN, Axes(attrs.axes), *cotangents),
)


# --- softmax ---------------------------------------------------------------------------------------------------------


def _axis_types(name: str) -> Callable[..., tuple[TensorType]]:
    def types(attrs: Axis, x: TensorType) -> tuple[TensorType]:
        require_floats(name, x)
        recorded_axis(name, attrs.axis, x.ndim)
        return (x,)

    return types


def _axis_batch(op: Op, attrs: Axis, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    return (apply(op, Axis(attrs.axis + 1), *operands_),)


def _softmax_jvp(attrs: Axis, primals: Sequence[Var], tangents: Sequence[Var]) -> Any:
    (x,), (dx,) = primals, tangents
    weights = softmax(x, attrs.axis)
    return [weights], [weights * _centered(dx, weights, attrs.axis)]


def _log_softmax_jvp(attrs: Axis, primals: Sequence[Var], tangents: Sequence[Var]) -> Any:
    (x,), (dx,) = primals, tangents
    return [log_softmax(x, attrs.axis)], [_centered(dx, softmax(x, attrs.axis), attrs.axis)]


def _centered(dx: Var, weights: Var, axis: int) -> Var:
    """``dxᵢ − Σ wⱼ·dxⱼ``: the derivative of ``xᵢ − log Σ exp xⱼ``."""
    return dx - sum(weights * dx, axis, keepdims=True)  # type: ignore[no-any-return]


SOFTMAX = Op(
    "softmax",
    Axis,
    types=_axis_types("softmax"),
    spec=lambda attrs, x: (spec.softmax(x, attrs.axis),),
    batch=_axis_batch,
    jvp=_softmax_jvp,
)


def softmax(x: Any, axis: int = -1) -> Any:
    """``exp xᵢ / Σ exp xⱼ`` along ``axis``, computed without overflow.

    A −∞ next to a finite number has weight 0. A row of −∞ alone, or with a +∞ or a NaN in it, gives NaN.

    >>> import numpy as np
    >>> softmax(np.float32([1000, 1000, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    (x,) = operands(x)
    with applying("softmax", x):
        place = normal_axis("softmax", axis, len(x.shape))
    return apply(SOFTMAX, Axis(place), x)


LOG_SOFTMAX = Op(
    "log_softmax",
    Axis,
    types=_axis_types("log_softmax"),
    spec=lambda attrs, x: (spec.log_softmax(x, attrs.axis),),
    batch=_axis_batch,
    jvp=_log_softmax_jvp,
)


def log_softmax(x: Any, axis: int = -1) -> Any:
    """``log(exp xᵢ / Σ exp xⱼ)`` along ``axis``, computed without overflow; special values as in ``softmax``.

    >>> import numpy as np
    >>> log_softmax(np.float32([1000, 0])).tolist()
    [0.0, -1000.0]
    """
    (x,) = operands(x)
    with applying("log_softmax", x):
        place = normal_axis("log_softmax", axis, len(x.shape))
    return apply(LOG_SOFTMAX, Axis(place), x)
