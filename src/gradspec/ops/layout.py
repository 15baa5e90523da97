"""Operators that move numbers without changing them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Var
from gradspec.graph.later import provides
from gradspec.graph.op import Op
from gradspec.graph.types import TensorType
from gradspec.spec.errors import ShapeError
from gradspec.spec.tensor import Tensor, flat, indices


@dataclass(frozen=True)
class Shape:
    """The shape of the result."""

    shape: tuple[int, ...]


# --- broadcast_to ----------------------------------------------------------------------------------------------------


def _broadcast_types(attrs: Shape, x: TensorType) -> tuple[TensorType]:
    extra = len(attrs.shape) - x.ndim
    fits = extra >= 0 and all(n in (1, m) for n, m in zip(x.shape, attrs.shape[extra:], strict=True))
    if not fits:
        raise ShapeError(
            f"{x} does not broadcast to {attrs.shape}; sizes must be equal or 1, counted from the last axis"
        )
    return (TensorType(x.dtype, attrs.shape),)


def _broadcast_spec(attrs: Shape, x: Tensor) -> tuple[Tensor]:
    extra = len(attrs.shape) - x.ndim
    places = (tuple(i if n > 1 else 0 for i, n in zip(o[extra:], x.shape, strict=True)) for o in indices(attrs.shape))
    return (Tensor(attrs.shape, (x.cells[flat(place, x.shape)] for place in places)),)


def _broadcast_transpose(attrs: Shape, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    from gradspec.ops.reduce import sum as sum_over

    (g,), x = cotangents, types[0]
    extra = len(attrs.shape) - x.ndim
    stretched = [extra + a for a, (n, m) in enumerate(zip(x.shape, attrs.shape[extra:], strict=True)) if n != m]
    return reshape(sum_over(g, (*range(extra), *stretched)), x.shape)  # type: ignore[no-any-return]


def _broadcast_batch(op: Op, attrs: Shape, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    (x,) = operands_
    n, *shape = x.shape
    ones = (1,) * (len(attrs.shape) - len(shape))
    return (apply(op, Shape((n, *attrs.shape)), reshape(x, (n, *ones, *shape))),)


BROADCAST_TO = Op(
    "broadcast_to",
    Shape,
    types=_broadcast_types,
    spec=_broadcast_spec,
    batch=_broadcast_batch,
    linear="jointly",
    transpose=_broadcast_transpose,
)


def broadcast_to(x: Any, shape: Sequence[int]) -> Any:
    """``x`` repeated along new leading axes and axes of size 1.

    >>> import numpy as np
    >>> broadcast_to(np.float32([1, 2]), (2, 2)).tolist()
    [[1.0, 2.0], [1.0, 2.0]]
    """
    (x,) = operands(x)
    return x if x.shape == tuple(shape) else apply(BROADCAST_TO, Shape(tuple(shape)), x)


@provides("spread")
def spread(x: Any, n: int) -> Any:
    """``x`` repeated ``n`` times along a new leading axis."""
    return broadcast_to(x, (n, *x.shape))


# --- reshape ---------------------------------------------------------------------------------------------------------


def _reshape_types(attrs: Shape, x: TensorType) -> tuple[TensorType]:
    result = TensorType(x.dtype, attrs.shape)
    if result.size != x.size:
        raise ShapeError(
            f"{x} has {x.size} numbers, and the shape {attrs.shape} holds {result.size}; they must be equal"
        )
    return (result,)


def _reshape_batch(op: Op, attrs: Shape, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    (x,) = operands_
    return (reshape(x, (x.shape[0], *attrs.shape)),)


RESHAPE = Op(
    "reshape",
    Shape,
    types=_reshape_types,
    spec=lambda attrs, x: (x.reshape(*attrs.shape),),
    batch=_reshape_batch,
    linear="jointly",
    transpose=lambda attrs, cotangents, types, i: reshape(cotangents[0], types[0].shape),
)


def reshape(x: Any, shape: Sequence[int]) -> Any:
    """The same numbers in another shape; one size may be −1.

    >>> import numpy as np
    >>> reshape(np.float32([1, 2, 3, 4]), (2, -1)).tolist()
    [[1.0, 2.0], [3.0, 4.0]]
    """
    (x,) = operands(x)
    sizes = _filled_in(x.shape, tuple(shape))
    return x if x.shape == sizes else apply(RESHAPE, Shape(sizes), x)


def _filled_in(given: tuple[int, ...], wanted: tuple[int, ...]) -> tuple[int, ...]:
    """``wanted`` with its −1 replaced by what is left."""
    if wanted.count(-1) != 1:
        return wanted
    total, known = 1, 1
    for n in given:
        total *= n
    for n in wanted:
        known *= n if n != -1 else 1
    if known == 0 or total % known:
        raise ShapeError(f"reshape: no size for the -1 in {wanted} fits the {total} numbers of shape {given}")
    return tuple(total // known if n == -1 else n for n in wanted)
