"""Rules that many operators share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np

from gradspec.graph.arrays import as_array, kind_of, of_any_kind
from gradspec.graph.attributes import Attributes
from gradspec.graph.builder import Builder
from gradspec.graph.graph import SERVICES, Graph
from gradspec.graph.ir import Array, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import DType, TensorType, require_floats, type_of
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


# --- calls on arrays --------------------------------------------------------------------------------------------------

MOST_CALLS = 1024
"""How many calls of one operator are remembered."""


def remembers_calls(operator: Callable[..., Any]) -> Callable[..., Any]:
    """An operator of one array whose arguments are worked out once for each type of array.

    What a call comes to is remembered under the array's type and the other arguments as they are written, if these are
    plain; other calls, and those that fail, are carried out as they are.
    """
    known = LRUCache[Callable[[Sequence[Any]], Any]](MOST_CALLS)
    carried_out = of_any_kind(operator)

    @wraps(operator)
    def call(*args: Any, **kwargs: Any) -> Any:
        x = args[0] if args else None
        if type(x) is not np.ndarray:
            x = None if kind_of(x) is None else as_array(x)
        if x is None or not _are_plain(args[1:]) or not _are_plain(kwargs.values()):
            return carried_out(*args, **kwargs)
        key = (x.shape, x.dtype, repr(args[1:]), repr(kwargs) if kwargs else "")
        program = known.get(key)
        if program is None:
            graph = _graph(operator, x, args[1:], kwargs)
            if graph is None:
                return carried_out(*args, **kwargs)
            program = SERVICES().program(graph)
            known.put(key, program)
        return program(args[:1])

    call.remembers_calls = True  # type: ignore[attr-defined]
    return call


_PLAIN = frozenset((type(None), bool, int, float, str))


def _are_plain(values: Iterable[Any]) -> bool:
    for value in values:
        if type(value) not in _PLAIN and not (type(value) in (tuple, list) and _are_plain(value)):
            return False
    return True


def _graph(operator: Callable[..., Any], x: Array, others: Sequence[Any], kwargs: dict[str, Any]) -> Graph | None:
    """The graph of the call; None if it fails, so that it can fail on the array and speak of that."""
    builder = Builder()
    try:
        return builder.build(operator(builder.input(type_of(x), "x"), *others, **kwargs))
    except Exception:
        return None
