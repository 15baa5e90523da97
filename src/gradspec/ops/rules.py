"""Rules that many operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from gradspec.graph.ir import Attributes, Var
from gradspec.graph.types import DType, TensorType, require_floats
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
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


def pointwise_spec(function: Callable[..., Any]) -> Callable[..., tuple[Tensor]]:
    """A function of scalars (and the attribute record), cell by cell."""

    def spec(attrs: Attributes, *operands: Tensor) -> tuple[Tensor]:
        cells = (function(attrs, *cell) for cell in zip(*(t.cells for t in operands), strict=True))
        return (Tensor(operands[0].shape, cells).stored(),)

    return spec


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


def cellwise(attrs: Attributes, types: Sequence[TensorType], sizes: tuple[int, ...]) -> Any:
    """A patch of an operator that works cell by cell needs the same patch of its operands."""
    return attrs, [[(1, 0, n) for n in sizes] for _ in types]


def increasing(node: Any, *boxes: Any) -> Any:
    """The enclosure of an operator that increases with each operand and whose results are not rounded."""
    if not any(box.varies for box in boxes):
        return [node.point(value) for value in whole(node.apply(*(box.lower for box in boxes)))]
    lower, upper = (whole(node.apply(*(box.ends[end] for box in boxes))) for end in (0, 1))
    return [node.between(*ends) for ends in zip(lower, upper, strict=True)]


@dataclass(frozen=True)
class Curve:
    """What the bounds of a function of one number follow from.

    - ``turns(attrs)``: where it turns from falling to rising or back; between them it is monotone.
    - ``kinks(attrs)``: where it bends, if it is linear elsewhere.
    - ``bend(node, box)``: the largest ``|f″|`` over a box, from above; None if it is not smooth.
    - ``bent(attrs)``: 1 if it is convex, −1 if it is concave, 0 if it is neither.
    - ``tail(attrs)``: ``(t, d)``, if ``f`` stays within ``d`` of a line on each side beyond ``±t``.
    - ``mass(node, box)``: what kernels may add up to ``f``, as the ``x/2`` and ``x/2·erf`` of gelu, which rounding
      errors are relative to; besides ``f`` itself.
    - ``off(node)``: how far the function may be moved by the rounding of its attributes, or None.
    - ``steepest``: the largest ``|f′|``, if the function turns too often to name where, and stays from −1 to 1.
    - ``roundings(attrs, dtype)``: those of one evaluation, 4 for an elementary function; 0 if it is exact.
    - ``fast(node, box, size)``: how much more results of a ``size`` may be off in CUDA's fast mode, or None.
    """

    turns: Callable[[Any], tuple[float, ...]] = lambda attrs: ()
    kinks: Callable[[Any], tuple[float, ...]] | None = None
    bend: Callable[[Any, Any], Any] | None = None
    bent: Callable[[Any], int] = lambda attrs: 0
    tail: Callable[[Any], tuple[float, float] | None] = lambda attrs: None
    mass: Callable[[Any, Any], Any] | None = None
    off: Callable[[Any], float] | None = None
    steepest: float | None = None
    roundings: Callable[[Any, DType], int] = lambda attrs, dtype: 4
    fast: Callable[[Any, Any, Any], Any] | None = None

    def rules(self) -> dict[str, Any]:
        """The rules of the operator's record."""
        found: dict[str, Any] = {
            "enclosure": lambda node, box: node.curve_box(self, box),
            "relaxation": lambda node, boxes, share: node.curve_lines(self, boxes[0], share),
        }
        return found if self.kinks is None else {**found, "kinks": self.kinks}


@contextmanager
def applying(name: str, *operands: Any) -> Iterator[None]:
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
