"""A variable's numbers in every evaluation of a graph, cell by cell: a centre and a radius."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import isfinite
from typing import Any, Protocol

import numpy as np

from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.meaning import Bools, Floats, round_array
from gradspec.domains.formats import F32, F64

WEAK, SHARP = 16.0, 2.0**-10
"""The widest radius of a cell that is judged: a multiple of the tolerance of its operator alone, a part of its size."""

BLOCK = 2**15
OWN_UNIT, OWN_TINIEST = 2.0**-53, 5e-324


def in_blocks(function: Callable[..., Any], *operands: Any) -> Any:
    """A function of cells, on arrays of one shape and on numbers, block by block: what it makes on the way is at hand.

    >>> in_blocks(lambda a, b, c: (a + b, a * c), np.arange(3.0), np.ones(3), 2.0)
    (array([1., 2., 3.]), array([0., 2., 4.]))
    """
    shape = next((a.shape for a in operands if isinstance(a, np.ndarray)), ())
    size = int(np.prod(shape))
    if size <= BLOCK:
        return function(*operands)
    flat = [a.reshape(-1) if isinstance(a, np.ndarray) else a for a in operands]
    results: list[Array] = []
    for start in range(0, size, BLOCK):
        part = slice(start, start + BLOCK)
        found = function(*(a[part] if isinstance(a, np.ndarray) else a for a in flat))
        several = found if isinstance(found, tuple) else (found,)
        results = results or [np.empty(size, y.dtype) for y in several]
        for whole, y in zip(results, several, strict=True):
            whole[part] = y
    shaped = tuple(y.reshape(shape) for y in results)
    return shaped if isinstance(found, tuple) else shaped[0]


def largest(cells: Array) -> float:
    """NaN if one is, and 0 if there is none above; of cells that are all one, one is looked at.

    >>> largest(np.array([-3.0, 2.0])), largest(np.broadcast_to(0.5, (10**6, 10**6)))
    (2.0, 0.5)
    """
    return float(np.max(cells if any(cells.strides) else cells.flat[:1], initial=0))


class Leaves(Protocol):
    """What a sum adds up."""

    @property
    def counted(self) -> Floats:
        """How many leaves a cell has."""

    @property
    def mass(self) -> Floats:
        """The sum of their magnitudes."""

    @property
    def prior_roundings(self) -> float:
        """The most roundings that a leaf met before it is added to others."""

    @property
    def total_roundings(self) -> float:
        """The most roundings that a leaf met when all of them are added up."""

    @property
    def finished(self) -> tuple[float, float]:
        """How many leaves a cell has, and how many roundings these met, if all long sums are finished."""


@dataclass(frozen=True)
class Enclosed:
    """A variable's numbers: every evaluation gives each cell one within ``radius`` of ``centre``.

    A centre of radius 0 that is NaN or infinite is what every evaluation gives; where the radius is infinite, nothing
    is known. ``between`` are the ends, if they were found first; integers that are not certain have an infinite radius,
    and these. ``alone`` is the tolerance of the last operator that rounds, where it is asked for. If it ``is_narrow``,
    what is certain is known to be of float32.

    Of a sum, ``leaves`` are all that it adds up, in an accumulator of the roundoff ``unit``, and ``inherited`` is the
    radius without what that lost.
    """

    centre: Array
    radius: Floats
    leaves: Leaves | None = None
    inherited: Floats | None = None
    unit: float = 0.0
    between: tuple[Array, Array] | None = None
    alone: Floats | None = None
    is_narrow: bool = False

    @staticmethod
    def point(value: Array, is_narrow: bool = False) -> Enclosed:
        return Enclosed(value, np.broadcast_to(0.0, value.shape), is_narrow=is_narrow)

    @cached_property
    def largest(self) -> float:
        """Of the magnitudes of centres; NaN if one is."""
        return max(largest(self.centre), -float(np.min(self.centre, initial=0)))

    @cached_property
    def widest(self) -> float:
        return largest(self.radius)

    @property
    def varies(self) -> bool:
        return self.widest != 0

    @cached_property
    def is_known(self) -> Bools:
        return np.isfinite(self.radius)

    @property
    def is_known_everywhere(self) -> bool:
        return isfinite(self.widest)

    @property
    def is_finite_everywhere(self) -> bool:
        return isfinite(self.largest)

    @cached_property
    def has_few_digits(self) -> bool:
        """Whether all that is certain is a number of float32: float64 does not round products of these."""
        if self.is_narrow:
            return True
        radius = self.radius if self.varies else 0.0
        return bool(in_blocks(lambda x, r: (x == round_array(x, F32)) | (r > 0), self.centre, radius).all())

    @cached_property
    def spread(self) -> Floats:
        """The radius where it is known, and 0 elsewhere."""
        return self.radius if self.is_known_everywhere else np.where(self.is_known, self.radius, 0.0)

    @cached_property
    def finite(self) -> Floats:
        """The centre where it is a number, and 0 elsewhere."""
        return self.centre if self.is_finite_everywhere else np.where(np.isfinite(self.centre), self.centre, 0.0)

    @cached_property
    def magnitude(self) -> Floats:
        return np.abs(self.finite) + self.spread if self.varies else np.abs(self.finite)

    @property
    def may_vanish(self) -> Bools:
        """Where 0 is one number among others."""
        found: Bools = (self.radius > 0) & (self.radius >= np.abs(self.finite))
        return found

    @cached_property
    def inverse_grain(self) -> Floats:
        """``2^−e`` for the largest e of which the centre is a multiple of 2^e; 0 for 0, and for what is not certain."""
        found = inverse_grain(self.finite)
        return np.where(self.radius == 0, found, 0.0) if self.varies else found

    @cached_property
    def ends(self) -> tuple[Array, Array]:
        """``centre ∓ radius``, rounded outward."""
        if self.between is not None or not self.varies:
            return self.between or (self.centre, self.centre)
        return _ends(self.centre, self.radius)

    @property
    def lower(self) -> Array:
        return self.ends[0]

    @property
    def upper(self) -> Array:
        return self.ends[1]

    @cached_property
    def weak(self) -> Bools:
        """Cells that no result is judged by: nothing is known of one, or it is wider than ``WEAK`` times the tolerance
        of its operator alone and not known to ``SHARP`` either, of itself or of half of the other results."""
        if self.alone is None or not self.varies:
            return ~self.is_known
        return ~self.is_known | (self.is_blunt & (self.spread > WEAK * self.alone))

    @cached_property
    def is_blunt(self) -> Bools:
        """Which cells are not known to ``SHARP``, of themselves or of half of the others."""
        size = np.abs(self.finite)
        usual = np.median(size) if size.size else 0.0
        found: Bools = self.spread > SHARP * np.maximum(size, usual)
        return found


@np.errstate(all="ignore")
def _ends(centre: Array, radius: Floats) -> tuple[Array, Array]:
    """A radius of ``r + u(|c| + r)`` has room for the rounding of ``c ± r``, by half of the distance to the next float:
    a power of two no larger than that term, which underflow does not make less than it."""
    room = np.abs(centre)
    room += radius
    room *= OWN_UNIT * (1 + 2.0**-40)
    room += radius
    room = np.where(radius > 0, room, 0.0)
    return centre - room, np.add(centre, room, out=room)


def inverse_grain(x: Floats) -> Floats:
    """``2^−e`` for the largest e of which a number is a multiple of 2^e; 0 for 0, infinite below 2^−1023.

    >>> inverse_grain(np.array([0.75, 6.0, 0.0, 2.0**-1050])).tolist()
    [4.0, 0.5, 0.0, inf]
    """
    found: Floats = in_blocks(_inverse_grain, np.asarray(x, np.float64, order="C"))
    return found


@np.errstate(all="ignore")
def _inverse_grain(x: Floats) -> Floats:
    """A float's digits, read as an integer, and the lowest of them that is 1 add up to the next multiple of 2^e, which
    is twice the number if there is none. The exponent of ``2^−e`` is that of 2^e, subtracted from twice the bias."""
    size = np.abs(x)
    digits = size.view(np.int64)
    following = -digits
    following &= digits
    following = np.minimum(following, 1 << 52)
    following += digits
    grain = following.view(np.float64) - size
    if float(F64.normal) <= np.min(grain, initial=1.0) and np.max(grain, initial=1.0) < np.inf:
        return ((2046 << 52) - grain.view(np.int64)).view(np.float64)
    return np.where(grain > 0, 1 / grain, 0.0)
