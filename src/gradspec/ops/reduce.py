"""Means over axes, running sums, and the softmax. The sum is with its transpose, in ``shape.py``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import JvpResult, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, require_floats, require_numbers
from gradspec.ops.gather import moved
from gradspec.ops.layout import AlongAxis
from gradspec.ops.pointwise import detach, exact_number, exp, log
from gradspec.ops.pool import global_max_pool
from gradspec.ops.rules import applying, division, inverse_bit, recorded_axis
from gradspec.ops.shape import (
    Axes,
    axes_batch,
    axis_batch,
    batched_by,
    broadcast_to,
    one_further,
    reduced_terms,
    reduced_type,
    reduction,
    reshape,
    sum,
)
from gradspec.ops.softmax_bounds import log_softmax_box, log_softmax_lines, softmax_box, softmax_lines
from gradspec.spec import reduce as spec
from gradspec.spec.errors import ShapeError
from gradspec.spec.layout import normal_axis

# --- mean, and its transpose -----------------------------------------------------------------------------------------
# One operator each rather than a sum and a division: in float16 the sum, or the count, may be too large to store.


def _mean_types(attrs: Axes, x: TensorType) -> tuple[TensorType]:
    require_floats("mean", x)
    result = reduced_type("mean", attrs, x)
    spec.terms_of_mean(x.shape, attrs.axes)
    return (result,)


MEAN = Op(
    "mean",
    Axes,
    types=_mean_types,
    spec=lambda attrs, x: (spec.mean(x, attrs.axes),),
    batch=axes_batch,
    linear="jointly",
    sums=Sums(
        max_roundings=lambda attrs, x: (count := reduced_terms(attrs, x)) + division(count, x.dtype),
        terms=reduced_terms,
        coefficient_quantum=lambda attrs, x: inverse_bit(reduced_terms(attrs, x)),
    ),
    transpose=lambda attrs, cotangents, types, i: apply(
        MEAN_TRANSPOSE, MeanTranspose(attrs.axes, types[0].shape), *cotangents
    ),
    decompose=lambda attrs, x: (sum(x, attrs.axes) / exact_number(reduced_terms(attrs, x.type), x),),
)


def mean(x: Operand, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Var:
    """The sum over ``axis`` divided by the number of its terms, of which there is at least one.

    >>> mean(np.float32([[1, 2], [3, 4]]), 0).tolist()
    [2.0, 3.0]
    """
    return reduction(MEAN, x, axis, keepdims)


@dataclass(frozen=True)
class MeanTranspose:
    """The axes along which equal parts are given, and the shape of the result."""

    axes: tuple[int, ...]
    shape: tuple[int, ...]


def _mean_transpose_types(attrs: MeanTranspose, x: TensorType) -> tuple[TensorType]:
    result = TensorType(require_floats("mean_transpose", x), attrs.shape)
    if _mean_types(Axes(attrs.axes), result) != (x,):
        raise ShapeError(
            f"mean_transpose: {x} is not the mean over the axes {attrs.axes} of a tensor of shape {attrs.shape}"
        )
    return (result,)


def _decompose_mean_transpose(attrs: MeanTranspose, x: Var) -> tuple[Var]:
    part = x / exact_number(prod(attrs.shape[a] for a in attrs.axes), x)
    return (broadcast_to(reshape(part, spec.reduced_sizes(attrs.shape, attrs.axes, keepdims=True)), attrs.shape),)


MEAN_TRANSPOSE: Op = Op(
    "mean_transpose",
    MeanTranspose,
    types=_mean_transpose_types,
    spec=lambda attrs, x: (spec.mean_transpose(x, attrs.axes, attrs.shape),),
    batch=batched_by(lambda attrs, n: MeanTranspose(one_further(attrs.axes), (n, *attrs.shape))),
    linear="jointly",
    sums=Sums(
        max_roundings=lambda attrs, x: 1 + division(prod(attrs.shape[a] for a in attrs.axes), x.dtype), terms=ones
    ),
    transpose=lambda attrs, cotangents, types, i: apply(MEAN, Axes(attrs.axes), *cotangents),
    decompose=_decompose_mean_transpose,
)


# --- running sums ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CumSum:
    """The axis of running sums, whether a cell's own number is left out, and whether they begin at the end."""

    axis: int
    exclusive: bool
    reverse: bool


def _cumsum_types(attrs: CumSum, x: TensorType) -> tuple[TensorType]:
    require_numbers("cumsum", x)
    recorded_axis("cumsum", attrs.axis, x.ndim)
    return (x,)


# A cell is a term of its own sum and of those behind it, and these are before it from the other end.
CUMSUM: Op = Op(
    "cumsum",
    CumSum,
    types=_cumsum_types,
    spec=lambda attrs, x: (spec.cumsum(x, attrs.axis, attrs.exclusive, attrs.reverse),),
    batch=axis_batch,
    linear="jointly",
    sums=Sums(max_roundings=lambda attrs, x: x.shape[attrs.axis], coefficient_quantum=ones),
    transpose=lambda attrs, cotangents, types, i: apply(CUMSUM, replace(attrs, reverse=not attrs.reverse), *cotangents),
)


def cumsum(x: Operand, axis: int, exclusive: bool = False, reverse: bool = False) -> Var:
    """Each number added to all before it along ``axis``; with ``reverse``, to all after it.

    With ``exclusive`` it is not a term of its own sum, and the first sum is 0. Sums of integers wrap around.

    >>> cumsum(np.float32([1, 2, 4]), 0).tolist(), cumsum(np.float32([1, 2, 4]), 0, reverse=True).tolist()
    ([1.0, 3.0, 7.0], [7.0, 6.0, 4.0])
    """
    (x,) = operands(x)
    with applying("cumsum", x):
        place = normal_axis("cumsum", axis, len(x.shape))
    return apply(CUMSUM, CumSum(place, bool(exclusive), bool(reverse)), x)


# --- softmax ---------------------------------------------------------------------------------------------------------


def _axis_types(name: str) -> Callable[..., tuple[TensorType]]:
    def types(attrs: AlongAxis, x: TensorType) -> tuple[TensorType]:
        require_floats(name, x)
        recorded_axis(name, attrs.axis, x.ndim)
        return (x,)

    return types


def _softmax_jvp(attrs: AlongAxis, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    (x,), (dx,) = primals, tangents
    weights = softmax(x, attrs.axis)
    return [weights], [weights * _centered(dx, weights, attrs.axis)]


def _log_softmax_jvp(attrs: AlongAxis, primals: Sequence[Var], tangents: Sequence[Var]) -> JvpResult:
    (x,), (dx,) = primals, tangents
    return [log_softmax(x, attrs.axis)], [_centered(dx, softmax(x, attrs.axis), attrs.axis)]


def _centered(dx: Var, weights: Var, axis: int) -> Var:
    """``dxᵢ − Σ wⱼ·dxⱼ``: the derivative of ``xᵢ − log Σ exp xⱼ``."""
    return dx - sum(weights * dx, axis, keepdims=True)


def _decompose_softmax(attrs: AlongAxis, x: Var) -> tuple[Var]:
    if not x.type.size:
        return (x,)
    powers = exp(_from_largest(x, attrs.axis))
    return (powers / sum(powers, attrs.axis, keepdims=True),)


def _decompose_log_softmax(attrs: AlongAxis, x: Var) -> tuple[Var]:
    if not x.type.size:
        return (x,)
    exponents = _from_largest(x, attrs.axis)
    return (exponents - log(sum(exp(exponents), attrs.axis, keepdims=True)),)


def _from_largest(x: Var, axis: int) -> Var:
    """``x`` less its largest cell, which is a constant: a softmax depends on differences only."""
    return x - moved(detach(global_max_pool(moved(x, axis, -1), 1)), -1, axis)


SOFTMAX = Op(
    "softmax",
    AlongAxis,
    types=_axis_types("softmax"),
    spec=lambda attrs, x: (spec.softmax(x, attrs.axis),),
    batch=axis_batch,
    enclosure=softmax_box,
    relaxation=softmax_lines,
    jvp=_softmax_jvp,
    decompose=_decompose_softmax,
    surrogate=lambda attrs, x: x,
)


def softmax(x: Operand, axis: int = -1) -> Var:
    """``exp xᵢ / Σ exp xⱼ`` along ``axis``, computed without overflow.

    A −∞ next to a finite number has weight 0. A row of only −∞, or one that contains +∞ or NaN, gives NaN.

    >>> softmax(np.float32([1000, 1000, -np.inf])).tolist()
    [0.5, 0.5, 0.0]
    """
    (x,) = operands(x)
    with applying("softmax", x):
        place = normal_axis("softmax", axis, len(x.shape))
    return apply(SOFTMAX, AlongAxis(place), x)


LOG_SOFTMAX = Op(
    "log_softmax",
    AlongAxis,
    types=_axis_types("log_softmax"),
    spec=lambda attrs, x: (spec.log_softmax(x, attrs.axis),),
    batch=axis_batch,
    enclosure=log_softmax_box,
    relaxation=log_softmax_lines,
    jvp=_log_softmax_jvp,
    decompose=_decompose_log_softmax,
)


def log_softmax(x: Operand, axis: int = -1) -> Var:
    """``log(exp xᵢ / Σ exp xⱼ)`` along ``axis``, computed without overflow; special values as in ``softmax``.

    >>> log_softmax(np.float32([1000, 0])).tolist()
    [0.0, -1000.0]
    """
    (x,) = operands(x)
    with applying("log_softmax", x):
        place = normal_axis("log_softmax", axis, len(x.shape))
    return apply(LOG_SOFTMAX, AlongAxis(place), x)
