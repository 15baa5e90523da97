"""Recurrences: a step that is taken once for each place of a leading axis, and hands its results on to the next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from gradspec.spec.tensor import Tensor

Step: TypeAlias = Callable[[Sequence[Tensor], Sequence[Tensor]], tuple[Sequence[Tensor], Sequence[Tensor]]]
"""``(carries, cells) → (carries, cells)``: what the step before handed on, and the cells of its place."""


def scan(
    step: Step, carries: Sequence[Tensor], columns: Sequence[Tensor], length: int, reverse: bool = False
) -> tuple[Sequence[Tensor], list[Sequence[Tensor]]]:
    """The carries after the last step, and the cells that each step gives, in the order of the axis.

    With ``reverse`` the last place comes first.

    >>> from gradspec.spec.tensor import tensor
    >>> add = lambda carry, cell: ([carry[0].map(lambda c: c + cell[0][()])],) * 2
    >>> (total,), sums = scan(add, [tensor(0)], [tensor([1, 2, 3])], 3)
    >>> total.tolist(), [row[0].tolist() for row in sums]
    (6, [1, 3, 6])
    """
    rows: list[Sequence[Tensor]] = []
    for i in range(length)[:: -1 if reverse else 1]:
        carries, cells = step(carries, [_at(x, i) for x in columns])
        rows.append(cells)
    return carries, rows[:: -1 if reverse else 1]


def _at(x: Tensor, i: int) -> Tensor:
    size = len(x.cells) // x.shape[0]
    return Tensor(x.shape[1:], x.cells[i * size : (i + 1) * size])
