"""A number system, and what intervals and balls share: derivatives of a maximum that enclose every possible winner.

Cell ``i`` can win, under ``"first"``, iff ``hi_i > lo_j`` for all ``j`` before it and ``hi_i ≥ lo_j`` for all ``j``
after it; it can tie, under ``"all"`` and ``"split"``, iff ``hi_i ≥ lo_j`` for all ``j``. It certainly ties iff
``lo_i ≥ hi_j`` for all other ``j``.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, TypeAlias

from gradspec.spec.errors import AmbiguityError
from gradspec.spec.scalar import Choice, Scalar, add_up, embed, hull
from gradspec.spec.tensor import Tensor, TensorLike, tensor


@dataclass(frozen=True, slots=True)
class Candidates:
    """The cells that may win (``ties="first"``) or may tie, and those that certainly tie."""

    possible: tuple[int, ...]
    certain: frozenset[int]
    ties: str

    @property
    def winner(self) -> int:
        if len(self.possible) > 1:
            raise _ambiguous(self.possible, "or ask for the value without its index")
        return self.possible[0]

    def push(self, tangents: Sequence[Scalar]) -> Scalar:
        seen = [tangents[i] for i in self.possible]
        if self.ties != "all":
            return reduce(hull, seen)
        zero = embed(tangents[0], 0)
        shares = (t if i in self.certain else hull(zero, t) for i, t in zip(self.possible, seen, strict=True))
        return add_up(shares, zero)

    def pull(self, cotangent: Scalar) -> list[tuple[int, Scalar]]:
        if len(self.possible) == 1:
            return [(self.possible[0], cotangent)]
        share = hull(embed(cotangent, 0), cotangent)
        return [(i, share) for i in self.possible]


def candidates(lows: Sequence[Scalar], highs: Sequence[Scalar], ties: str, strict: bool) -> Choice:
    """Decide among enclosures given by their ends, as the module says."""
    cells = range(len(lows))
    if ties == "first":
        possible = tuple(
            i
            for i in cells
            if all(highs[i] > lows[j] for j in cells[:i]) and all(highs[i] >= lows[j] for j in cells[i + 1 :])
        )
    else:
        possible = tuple(i for i in cells if all(highs[i] >= lows[j] for j in cells))
    certain = frozenset(i for i in possible if all(lows[i] >= highs[j] for j in possible if j != i))
    if strict and len(possible) > 1 and not len(possible) == len(certain):
        raise _ambiguous(possible, "or leave out strict=True to enclose every possible winner")
    return Candidates(possible, certain, ties)


def _ambiguous(possible: Sequence[int], otherwise: str) -> AmbiguityError:
    cells = ", ".join(map(str, possible))
    return AmbiguityError(f"cells {cells} of a window may each win; give narrower enclosures, {otherwise}")


def possible_order(a: tuple[Scalar, Scalar], b: tuple[Scalar, Scalar]) -> tuple[int, ...]:
    """How two enclosures, given by their ends, may compare."""
    (a_low, a_high), (b_low, b_high) = a, b
    answers = ((-1, a_low < b_high), (0, a_low <= b_high and b_low <= a_high), (1, a_high > b_low))
    return tuple(answer for answer, possible in answers if possible)


Method: TypeAlias = Callable[[Any, Scalar], Any]


def both_ways(operation: Callable[[Any, Any], Any]) -> tuple[Method, Method]:
    """By the ``_with`` of a class its methods of a number that is the first operand, and of one that is the second."""
    return lambda x, y: x._with(y, operation), lambda x, y: x._with(y, lambda a, b: operation(b, a))


class Domain(ABC):
    """Scalars to run the specification on.

    ``scalar`` converts one number, ``tensor`` a nested list or an array of them; the specification then computes in the
    system its inputs belong to.
    """

    name: str

    @abstractmethod
    def scalar(self, value: Scalar) -> Scalar:
        """``value`` as a number of this system."""

    def tensor(self, data: TensorLike) -> Tensor:
        """Every number of ``data`` converted by ``scalar``."""
        if getattr(getattr(data, "dtype", None), "kind", None) == "f":
            data = Tensor(data.shape, data.ravel().tolist())  # Python's floats: the same numbers, sooner converted
        return tensor(data).map(self.scalar)

    def __repr__(self) -> str:
        return f"gs.{self.name}"
