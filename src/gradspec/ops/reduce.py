"""Sums over axes, and what is made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Var
from gradspec.graph.op import Op
from gradspec.graph.types import TensorType, require_floats
from gradspec.ops.layout import broadcast_to, reshape
from gradspec.spec.errors import ShapeError
from gradspec.spec.scalar import add_up
from gradspec.spec.tensor import Tensor, flat, indices


@dataclass(frozen=True)
class Axes:
    """The axes that are summed over."""

    axes: tuple[int, ...]


def _sum_types(attrs: Axes, x: TensorType) -> tuple[TensorType]:
    require_floats("sum", x)
    return (TensorType(x.dtype, tuple(n for a, n in enumerate(x.shape) if a not in attrs.axes)),)


def _sum_spec(attrs: Axes, x: Tensor) -> tuple[Tensor]:
    kept = [a for a in range(x.ndim) if a not in attrs.axes]
    groups: dict[tuple[int, ...], list[Any]] = {i: [] for i in indices([x.shape[a] for a in kept])}
    for index in indices(x.shape):
        groups[tuple(index[a] for a in kept)].append(x.cells[flat(index, x.shape)])
    shape = [x.shape[a] for a in kept]
    return (Tensor(shape, (add_up(cells, x.zero) for cells in groups.values())).stored(),)


def _sum_transpose(attrs: Axes, cotangents: Sequence[Var], types: Sequence[TensorType], i: int) -> Var:
    (x,) = types
    ones = tuple(1 if a in attrs.axes else n for a, n in enumerate(x.shape))
    return broadcast_to(reshape(cotangents[0], ones), x.shape)  # type: ignore[no-any-return]


def _sum_batch(op: Op, attrs: Axes, operands_: Sequence[Var], batched: Sequence[bool]) -> tuple[Var]:
    return (apply(op, Axes(tuple(a + 1 for a in attrs.axes)), *operands_),)


SUM = Op(
    "sum",
    Axes,
    types=_sum_types,
    spec=_sum_spec,
    batch=_sum_batch,
    linear="jointly",
    transpose=_sum_transpose,
)


def sum(x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False) -> Any:
    """The sum over ``axis`` (one, several, or None for all), which stays as a 1 with ``keepdims``.

    >>> import numpy as np
    >>> sum(np.float32([[1, 2], [3, 4]]), 0).tolist()
    [4.0, 6.0]
    """
    (x,) = operands(x)
    axes = normal_axes("sum", axis, len(x.shape))
    total = apply(SUM, Axes(axes), x) if axes else x
    return reshape(total, [1 if a in axes else n for a, n in enumerate(x.shape)]) if keepdims else total


def normal_axes(name: str, axis: int | Sequence[int] | None, rank: int) -> tuple[int, ...]:
    """Distinct axes from 0 to rank−1, in order."""
    given = range(rank) if axis is None else axis if isinstance(axis, list | tuple) else (axis,)
    found = []
    for a in given:
        if isinstance(a, bool) or not isinstance(a, int) or not -rank <= a < rank:
            raise ShapeError(f"{name}: axis {a!r} is not an axis of a tensor of rank {rank}; use {-rank} to {rank - 1}")
        found.append(a % rank)
    if len(set(found)) != len(found):
        raise ShapeError(f"{name}: axis={axis} names an axis twice; name each once")
    return tuple(sorted(found))
