"""Rules that many operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from gradspec.graph.builder import apply
from gradspec.graph.ir import Var
from gradspec.graph.op import Attributes, Op
from gradspec.graph.types import TensorType, require_floats, require_one_dtype
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.tensor import Tensor

Batched = tuple[Var, ...]


def require_count(name: str, operands: Sequence[TensorType], *counts: int) -> None:
    """Refuse a number of operands other than ``counts``, which a file may give."""
    if len(operands) not in counts:
        wanted = " or ".join(map(str, counts))
        raise ShapeError(f"{name} takes {wanted} operand{'s' * (counts != (1,))}, not {len(operands)}")


def same_types(name: str, count: int, *, integers: bool = False) -> Callable[..., tuple[TensorType, ...]]:
    """The shape rule of a pointwise operator of ``count`` operands: one type in, the same out."""
    require_dtype = require_one_dtype if integers else require_floats

    def types(attrs: Attributes, *operands: TensorType) -> tuple[TensorType, ...]:
        require_count(name, operands, count)
        require_dtype(name, *operands)
        if len({t.shape for t in operands}) > 1:
            raise ShapeError(
                f"{name} needs operands of one shape, not {', '.join(map(str, operands))}; broadcast them first"
            )
        return (operands[0],)

    return types


def pointwise_spec(function: Callable[..., Any]) -> Callable[..., tuple[Tensor]]:
    """A function of scalars (and the attribute record), cell by cell."""

    def spec(attrs: Attributes, *operands: Tensor) -> tuple[Tensor]:
        cells = (function(attrs, *cell) for cell in zip(*(t.cells for t in operands), strict=True))
        return (Tensor(operands[0].shape, cells).stored(),)

    return spec


def leading_batch(op: Op, attrs: Attributes, operands: Sequence[Var], batched: Sequence[bool]) -> Batched:
    """The batching rule where leading axes are independent: the same node, one axis more on each operand."""
    return whole(apply(op, attrs, *with_leading_axis(operands, batched)))


def with_leading_axis(operands: Sequence[Var], batched: Sequence[bool]) -> list[Var]:
    """Every operand with the batch axis in front."""
    from gradspec.ops.layout import spread

    n = next(v.shape[0] for v, has in zip(operands, batched, strict=True) if has)
    return [v if has else spread(v, n) for v, has in zip(operands, batched, strict=True)]


def whole(results: Any) -> tuple[Var, ...]:
    return results if isinstance(results, tuple) else (results,)


def broadcast_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all ``shapes`` broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        given = ", ".join(map(str, shapes))
        raise ShapeError(
            f"{name}: the shapes {given} do not broadcast to one; sizes must be equal or 1, counted from the last axis"
        ) from None


@contextmanager
def applying(name: str, *operands: Any) -> Iterator[None]:
    """Errors met while an operator's arguments are read say which operator, and on which variables or arrays."""
    try:
        yield
    except (ShapeError, DTypeError) as error:
        given = ", ".join(repr(v) if isinstance(v, Var) else f"array of shape {v.shape}" for v in operands)
        raise type(error)(f"{name}({given}): {error}") from None
