"""Rules that many operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from gradspec.graph.ir import Attributes, Crop, Var
from gradspec.graph.types import DType, TensorType, require_floats
from gradspec.ops.box import BoundedNode, Box
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import Tensor


def require_count(name: str, operands: Sequence[TensorType], *counts: int) -> None:
    """Refuse a number of operands other than ``counts``, which a file may give."""
    if len(operands) not in counts:
        wanted = " or ".join(map(str, counts))
        raise ShapeError(f"{name} takes {wanted} operand{'s' * (counts != (1,))}, not {len(operands)}")


def same_types(
    name: str, count: int, require_dtype: Callable[..., DType] = require_floats
) -> Callable[..., tuple[TensorType, ...]]:
    """The shape rule of a pointwise operator of ``count`` operands: one type in, the same out."""

    def types(attrs: Attributes, *operands: TensorType) -> tuple[TensorType, ...]:
        require_count(name, operands, count)
        require_dtype(name, *operands)
        if len({t.shape for t in operands}) > 1:
            raise ShapeError(
                f"{name} needs operands of one shape, not {', '.join(map(str, operands))}; broadcast them first"
            )
        return (operands[0],)

    return types


def pointwise_spec(function: Callable[..., Scalar]) -> Callable[..., tuple[Tensor]]:
    """A function of scalars (and the attribute record), cell by cell."""

    def spec(attrs: Attributes, *operands: Tensor) -> tuple[Tensor]:
        cells = (function(attrs, *cell) for cell in zip(*(t.cells for t in operands), strict=True))
        return (Tensor(operands[0].shape, cells).stored(),)

    return spec


def broadcast_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that all ``shapes`` broadcast to."""
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        given = ", ".join(map(str, shapes))
        raise ShapeError(
            f"{name}: the shapes {given} do not broadcast to one; sizes must be equal or 1, counted from the last axis"
        ) from None


def cellwise(attrs: Attributes, types: Sequence[TensorType], sizes: tuple[int, ...]) -> Crop:
    """A patch of an operator that works cell by cell needs the same patch of its operands."""
    return attrs, [[(1, 0, n) for n in sizes] for _ in types]


def increasing(node: BoundedNode, *boxes: Box) -> list[Box]:
    """The enclosure of an operator that increases with each operand and whose results are not rounded."""
    if not any(box.varies for box in boxes):
        return [node.point(value) for value in node.apply_all(*(box.lower for box in boxes))]
    lower, upper = (node.apply_all(*(box.ends[end] for box in boxes)) for end in (0, 1))
    return [node.between(*ends) for ends in zip(lower, upper, strict=True)]


@contextmanager
def applying(name: str, *operands: Var) -> Iterator[None]:
    """Errors met while an operator's arguments are read say which operator, and on which variables or arrays."""
    try:
        yield
    except (ShapeError, DTypeError) as error:
        given = ", ".join(repr(v) if isinstance(v, Var) else f"array of shape {v.shape}" for v in operands)
        raise type(error)(f"{name}({given}): {error}") from None


def recorded_axis(name: str, axis: int, rank: int) -> int:
    """An axis as an attribute record holds it, so that every rule may count on it: from 0 to rank−1."""
    if normal_axis(name, axis, rank) != axis:
        raise ShapeError(f"{name}: a node's axis counts from the front, so {axis} should be {axis + rank}")
    return axis
