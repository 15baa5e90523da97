"""A shaped container of scalars: a shape and a flat list, last axis fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product
from math import prod
from typing import Any, Protocol, TypeAlias

from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.scalar import Scalar, embed, stored

TensorLike: TypeAlias = Any
"""A Tensor, a nested sequence of scalars, or an array with ``.shape`` and ``.flat`` or ``.tolist()``."""

Index: TypeAlias = tuple[int, ...]


class Shaped(Protocol):
    """A tensor, its type, or whatever else has a shape."""

    @property
    def shape(self) -> Index: ...


class Tensor:
    """Scalars of one number system in row-major order.

    >>> t = tensor([[1, 2, 3], [4, 5, 6]])
    >>> t.shape, t[1, 2], t.tolist()
    ((2, 3), 6, [[1, 2, 3], [4, 5, 6]])
    """

    __slots__ = ("cells", "shape")
    __hash__ = None  # type: ignore[assignment]  # cells may be replaced, so a Tensor is no key
    __array_ufunc__ = None

    def __init__(self, shape: Iterable[int], cells: Iterable[Scalar]) -> None:
        self.shape = tuple(shape)
        self.cells = list(cells)
        if len(self.cells) != prod(self.shape):
            raise ShapeError(
                f"{len(self.cells)} scalars cannot fill the shape {self.shape}, which holds {prod(self.shape)}"
            )

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def zero(self) -> Scalar:
        """Zero in this tensor's number system (the integer 0 when it has no cell to tell)."""
        return embed(self.cells[0], 0) if self.cells else 0

    def __getitem__(self, index: int | Index) -> Scalar:
        place = (index,) if isinstance(index, int) else index
        if len(place) != self.ndim or not all(0 <= i < n for i, n in zip(place, self.shape, strict=True)):
            raise IndexError(f"index {place} is not a cell of a tensor of shape {self.shape}")
        return self.cells[flat(place, self.shape)]

    def tolist(self) -> Any:
        """Nested lists (a bare scalar for rank 0)."""
        return _nest(self.cells, self.shape)

    def reshape(self, *shape: int) -> Tensor:
        return Tensor(shape, self.cells)

    def map(self, function: Callable[[Scalar], Scalar]) -> Tensor:
        """The same shape with ``function`` applied to every cell: ``t.map(float)``."""
        return Tensor(self.shape, map(function, self.cells))

    def stored(self) -> Tensor:
        """Every cell as the number system keeps it (see ``gradspec.spec.scalar.stored``)."""
        return self.map(stored)

    def planes(self, rank: int) -> list[list[Scalar]]:
        """The cells of each plane over the last ``rank`` axes, leading axes in row-major order."""
        lead, spatial = split_shape(self.shape, rank)
        size = prod(spatial)
        return [self.cells[i * size : (i + 1) * size] for i in range(prod(lead))]

    def __eq__(self, other: object) -> bool:
        """Equal shapes and equal numbers, also between systems that do not compare by themselves.

        python-flint's rationals, for one, never equal a float: ``fmpq(1, 2) == 0.5`` is False.
        """
        if not isinstance(other, Tensor | list | tuple) and not hasattr(other, "shape"):
            return NotImplemented
        that = tensor(other)
        return self.shape == that.shape and all(map(_same_number, self.cells, that.cells))

    def __repr__(self) -> str:
        return f"Tensor(shape={self.shape}, cells={self.tolist()})"


def tensor(data: TensorLike) -> Tensor:
    """Read nested sequences or an array.

    >>> tensor([[1.5, 2.5]]).shape
    (1, 2)
    """
    if isinstance(data, Tensor):
        return data
    if data is None:
        raise DTypeError("None is not a tensor; give a nested list or an array, of zeros where nothing is meant")
    if getattr(getattr(data, "dtype", None), "kind", None) == "b":  # whose + is "or"
        raise DTypeError("an array of bool does not add up; convert it, to a floating-point dtype or by .astype(int)")
    if hasattr(data, "shape"):
        shape = tuple(int(n) for n in data.shape)
        return Tensor(shape, data.flat if hasattr(data, "flat") else _leaves(data.tolist(), shape))
    shape = _shape_of(data)
    return Tensor(shape, _leaves(data, shape))


def flat(index: Sequence[int], shape: Sequence[int]) -> int:
    """The row-major place of ``index`` in a box of ``shape``.

    >>> flat((1, 2), (3, 4))
    6
    """
    place = 0
    for i, n in zip(index, shape, strict=True):
        place = place * n + i
    return place


def indices(shape: Sequence[int]) -> list[Index]:
    """Every index of a box in row-major order (one empty index for rank 0)."""
    return list(product(*map(range, shape)))


def split_shape(shape: Index, rank: int) -> tuple[Index, Index]:
    """Leading axes and the last ``rank`` axes."""
    at = len(shape) - rank
    return shape[:at], shape[at:]


def require_shape(name: str, given: Tensor, expected: Index) -> None:
    """Tangents and cotangents have the shape of what they belong to."""
    if given.shape != expected:
        raise ShapeError(f"{name} has shape {given.shape}, but {expected} is needed here; pass one of that shape")


def _shape_of(data: object) -> Index:
    if not isinstance(data, list | tuple):
        return ()
    shapes = {_shape_of(row) for row in data} or {()}
    if len(shapes) > 1:
        raise ShapeError(
            f"rows of different shapes {sorted(shapes)} do not make a tensor; give every row the same length"
        )
    return (len(data), *shapes.pop())


def _leaves(data: Any, shape: Index) -> list[Scalar]:
    rows = [data]
    for _ in shape:
        rows = [cell for row in rows for cell in row]
    return rows


def _nest(cells: list[Scalar], shape: Index) -> Any:
    if not shape:
        return cells[0]
    step = prod(shape[1:])
    return [_nest(cells[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0])]


def _same_number(a: Scalar, b: Scalar) -> bool:
    try:
        return bool(a == b or a == embed(a, b))
    except (TypeError, ValueError, NotImplementedError, AttributeError, OverflowError):
        return False
