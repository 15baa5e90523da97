"""How shapes change: reshape, broadcast_to, and the sum that gives a broadcast operand its cotangent.

Repeating along axes and adding up along them are each other's transposes, so they are in one file; and so is the
batching rule of most operators, which repeats operands that have no batch axis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from gradspec.graph.builder import apply, apply_all, operands
from gradspec.graph.ir import MOVED, Attributes, Op, Operand, Sums, Var, ones
from gradspec.graph.types import TensorType, require_numbers
from gradspec.ops.rules import applying, recorded_axis
from gradspec.spec import layout, reduce


@dataclass(frozen=True)
class Shape:
    """The shape of the result."""

    shape: tuple[int, ...]


def _keep_last_shape(first: Shape, second: Shape, x: TensorType) -> Shape | None:
    return None if second.shape == x.shape else second


def batched_by(changed: Callable[[Any, int], Attributes]) -> Callable[..., tuple[Var]]:
    """The batching rule of an operator of one operand: what its attributes are changed to for ``n`` samples."""
    return lambda op, attrs, operands, batched: (apply(op, changed(attrs, operands[0].shape[0]), *operands),)


# --- reshape ---------------------------------------------------------------------------------------------------------


RESHAPE = Op(
    "reshape",
    Shape,
    types=lambda attrs, x: (TensorType(x.dtype, layout.reshaped_sizes(x.shape, attrs.shape)),),
    spec=lambda attrs, x: (layout.reshape(x, attrs.shape),),
    batch=batched_by(lambda attrs, n: Shape((n, *attrs.shape))),
    linear="jointly",
    is_data_movement=True,
    sums=MOVED,
    fuse_adjacent=_keep_last_shape,
    transpose=lambda attrs, cotangents, types, i: reshape(cotangents[0], types[0].shape),
)


def reshape(x: Operand, shape: Sequence[int]) -> Var:
    """The same numbers in another shape; one size may be −1, for what is left.

    >>> reshape(np.float32([1, 2, 3, 4]), (2, -1)).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    (x,) = operands(x)
    with applying("reshape", x):
        sizes = layout.reshaped_sizes(x.shape, shape)
    return x if x.shape == sizes else apply(RESHAPE, Shape(sizes), x)


def flatten(x: Operand, start_dim: int = 0, end_dim: int = -1) -> Var:
    """The axes from ``start_dim`` to ``end_dim`` as one; a scalar becomes a vector of one number.

    >>> flatten(np.zeros((2, 3, 4, 5), np.float32), 1, 2).shape
    (2, 12, 5)
    """
    (x,) = operands(x)
    with applying("flatten", x):
        sizes = layout.flattened_sizes(x.shape, start_dim, end_dim)
    return reshape(x, sizes)


# --- broadcast_to and sum: each the other's transpose -----------------------------------------------------------------


def _broadcast_transpose(attrs: Shape, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    (g,), x = cotangents, types[0]
    extra = len(attrs.shape) - x.ndim
    stretched = [extra + a for a, (n, m) in enumerate(zip(x.shape, attrs.shape[extra:], strict=True)) if n != m]
    return reshape(sum(g, (*range(extra), *stretched)), x.shape)


def _broadcast_batch(op: Op, attrs: Shape, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    (x,) = operands_
    n, *shape = x.shape
    ones = (1,) * (len(attrs.shape) - len(shape))
    return (apply(op, Shape((n, *attrs.shape)), reshape(x, (n, *ones, *shape))),)


BROADCAST_TO = Op(
    "broadcast_to",
    Shape,
    types=lambda attrs, x: (TensorType(x.dtype, layout.broadcast_sizes(x.shape, attrs.shape)),),
    spec=lambda attrs, x: (layout.broadcast_to(x, attrs.shape),),
    batch=_broadcast_batch,
    linear="jointly",
    is_data_movement=True,
    sums=MOVED,
    fuse_adjacent=_keep_last_shape,
    transpose=_broadcast_transpose,
)


def broadcast_to(x: Operand, shape: Sequence[int]) -> Var:
    """``x`` repeated along new leading axes and axes of size 1.

    >>> broadcast_to(np.float32([1, 2]), (2, 2)).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    (x,) = operands(x)
    with applying("broadcast_to", x):
        sizes = layout.broadcast_sizes(x.shape, shape)
    return x if x.shape == sizes else apply(BROADCAST_TO, Shape(sizes), x)


@dataclass(frozen=True)
class Axes:
    """The axes that are reduced."""

    axes: tuple[int, ...]


def reduced_type(name: str, attrs: Axes, x: TensorType) -> TensorType:
    """What is left of ``x`` without the axes."""
    axes = layout.normal_axes(name, [recorded_axis(name, a, x.ndim) for a in attrs.axes], x.ndim)
    return TensorType(x.dtype, reduce.reduced_sizes(x.shape, axes))


def reduced_terms(attrs: Axes, x: TensorType) -> int:
    """How many numbers are added up to one."""
    return prod(x.shape[a] for a in attrs.axes)


def one_further(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(a + 1 for a in axes)


axes_batch = batched_by(lambda attrs, n: Axes(one_further(attrs.axes)))


def reduction(op: Op, x: Operand, axis: int | Sequence[int] | None, keepdims: bool) -> Var:
    """``op`` over ``axis``: one, several, or None for all."""
    (x,) = operands(x)
    with applying(op.name, x):
        axes = layout.normal_axes(op.name, axis, len(x.shape))
    result = apply(op, Axes(axes), x) if axes else x
    return reshape(result, reduce.reduced_sizes(x.shape, axes, keepdims))


def _sum_types(attrs: Axes, x: TensorType) -> tuple[TensorType]:
    require_numbers("sum", x)
    return (reduced_type("sum", attrs, x),)


def _sum_transpose(attrs: Axes, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    (x,) = types
    ones = reduce.reduced_sizes(x.shape, attrs.axes, keepdims=True)
    return broadcast_to(reshape(cotangents[0], ones), x.shape)


SUM = Op(
    "sum",
    Axes,
    types=_sum_types,
    spec=lambda attrs, x: (reduce.sum(x, attrs.axes),),
    batch=axes_batch,
    linear="jointly",
    sums=Sums(max_roundings=reduced_terms, coefficient_quantum=ones),
    transpose=_sum_transpose,
)


def sum(x: Operand, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Var:
    """The sum over ``axis`` (one, several, or None for all), which stays as a 1 with ``keepdims``.

    >>> sum(np.float32([[1, 2], [3, 4]]), 0).tolist()
    [4.0, 6.0]
    """
    return reduction(SUM, x, axis, keepdims)


# --- batching ---------------------------------------------------------------------------------------------------------


def leading_batch(op: Op, attrs: Attributes, operands: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """The batching rule where leading axes are independent: the same node, one axis more on each operand."""
    return apply_all(op, attrs, *with_leading_axis(operands, batched))


def axis_batch(op: Op, attrs: Attributes, operands: Sequence[Var], batched: Sequence[bool]) -> tuple[Var, ...]:
    """The batching rule where the attributes name an axis: the same, with that axis one further."""
    return leading_batch(op, replace(attrs, axis=attrs.axis + 1), operands, batched)


def with_leading_axis(operands: Sequence[Var], batched: Sequence[bool]) -> list[Var]:
    """Every operand with the batch axis in front."""
    n = next(v.shape[0] for v, has in zip(operands, batched, strict=True) if has)
    return [v if has else spread(v, n) for v, has in zip(operands, batched, strict=True)]


def spread(x: Var, n: int) -> Var:
    """``x`` repeated ``n`` times along a new leading axis."""
    return broadcast_to(x, (n, *x.shape))
