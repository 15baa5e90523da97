"""Rules that many operators share, and counts of what meets in a sum, which bounds the roundings of its terms."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import ceil, gcd, prod

import numpy as np

from gradspec.graph.ir import Attributes, Crop, Var
from gradspec.graph.types import DType, TensorType, f32, f64, require_floats
from gradspec.ops.box import BoundedNode, Box
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.layout import normal_axis
from gradspec.spec.scalar import Scalar
from gradspec.spec.tensor import Tensor
from gradspec.spec.window import AxisWindow, Regular, Window


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


# --- counts -----------------------------------------------------------------------------------------------------------


def most_cells(window: Window) -> int:
    """The cells that the largest window reads, at most.

    >>> from gradspec.spec.window import regular
    >>> most_cells(regular((8, 8), (3, 3), 2))
    9
    """
    return prod(_cells(axis) for axis in window.axes)


def most_windows(window: Window) -> int:
    """The windows that read one cell, at most.

    >>> from gradspec.spec.window import regular
    >>> most_windows(regular((8, 8), (3, 3), 2))
    4
    """
    return prod(_readers(axis) for axis in window.axes)


def _cells(axis: AxisWindow) -> int:
    if isinstance(axis, Regular):
        return min(axis.kernel, axis.size)
    return min(axis.size, -(-axis.size // axis.outputs) + 1)


def _readers(axis: AxisWindow) -> int:
    """Windows that read one cell read it by taps that lie ``stride / gcd(stride, dilation)`` apart."""
    if isinstance(axis, Regular):
        return min(axis.outputs, -(-axis.kernel // (axis.stride // gcd(axis.stride, axis.dilation))))
    return min(axis.outputs, -(-axis.outputs // axis.size) + 1)


def rounded_number(value: float, dtype: DType) -> int:
    """How many roundings it amounts to that an attribute is taken as a number of ``dtype``, and not as it is written.

    In units of the format that is computed in, of which a number of float16 may be thousands away.

    >>> from gradspec.graph.types import f16, f32
    >>> rounded_number(0.5, f16), rounded_number(0.1, f32), rounded_number(0.1, f16)
    (0, 1, 4098)
    """
    with np.errstate(over="ignore"):
        off = [abs(float(np.asarray(value).astype(kind)) - value) for kind in (dtype.numpy, np.float32)]
    relative = max(off if dtype is not f64 else off[:1]) / abs(value) if value else 0.0
    unit = 2.0 ** (-53 if dtype is f64 else -24)
    return 0 if relative == 0 else 2**24 if relative >= 1 else 1 + ceil(relative / unit) if relative > unit else 1


def division(divisor: float, dtype: DType) -> int:
    """How many more roundings a leaf of an average may meet than there are leaves, for a divisor or any smaller count.

    They are those of its reciprocal, of a product with it and of n − 1 additions, and one more if the divisor is no
    number of the format that is computed in, of which float32 holds all counts up to 2²⁴.

    >>> from gradspec.graph.types import f16
    >>> division(9, f16), division(0.1, f16), division(2**24 + 1, f16), division(1, f16)
    (1, 2, 2, 0)
    """
    if abs(divisor) == 1:
        return 0
    is_count = float(divisor).is_integer() and abs(divisor) <= 2**24
    return 1 + (0 if is_count else max(1, rounded_number(divisor, f64 if dtype is f64 else f32)))


# --- coefficients, and the power of two that they are multiples of ----------------------------------------------------


def lowest_bit(x: float) -> float:
    """The largest power of two of which a number is a multiple; 0 for 0.

    >>> lowest_bit(0.75), lowest_bit(-6.0)
    (0.25, 2.0)
    """
    numerator, denominator = float(x).as_integer_ratio()
    return (numerator & -numerator) / denominator


def inverse_bit(divisor: float) -> float:
    """``lowest_bit(1/divisor)``; 0 unless the divisor is a power of two.

    >>> inverse_bit(4), inverse_bit(9)
    (0.25, 0.0)
    """
    return 1 / abs(divisor) if divisor and abs(divisor) == lowest_bit(divisor) else 0.0


def common_count(window: Window) -> int:
    """The cells of every window, if all have as many and none reads padding; else 0.

    >>> from gradspec.spec.window import regular
    >>> common_count(regular((8, 8), (2, 2))), common_count(regular((8, 8), (3, 3), 1, 1))
    (4, 0)
    """
    return prod(axis.kernel if isinstance(axis, Regular) and _is_inside(axis) else 0 for axis in window.axes)


def _is_inside(axis: Regular) -> bool:
    """Whether no window reads padding."""
    reach = (axis.outputs - 1) * axis.stride + axis.dilation * (axis.kernel - 1)
    return axis.outputs > 0 and axis.lo <= 0 and reach - axis.lo < axis.size
