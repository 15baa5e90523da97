"""A variable's numbers in every evaluation of a graph, cell by cell: a centre and a radius."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.oracle.meaning import Bools, Floats

WEAK, SHARP = 16.0, 2.0**-10
"""The widest radius of a cell that is judged: a multiple of the tolerance of its operator alone, a part of its size."""

BLOCK = 2**14


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
    results: list[NDArray[Any]] = []
    for start in range(0, size, BLOCK):
        part = slice(start, start + BLOCK)
        found = function(*(a[part] if isinstance(a, np.ndarray) else a for a in flat))
        several = found if isinstance(found, tuple) else (found,)
        results = results or [np.empty(size, y.dtype) for y in several]
        for whole, y in zip(results, several, strict=True):
            whole[part] = y
    shaped = tuple(y.reshape(shape) for y in results)
    return shaped if isinstance(found, tuple) else shaped[0]


@dataclass(frozen=True)
class Enclosed:
    """A variable's numbers: every evaluation gives each cell one within ``radius`` of ``centre``.

    A centre of radius 0 that is NaN or infinite is what every evaluation gives; where the radius is infinite, nothing
    is known. ``between`` are the ends, if they were found first; integers that are not certain have an infinite radius,
    and these. ``alone`` is the tolerance of the last operator that rounds, where it is asked for.

    Of a sum, ``leaves`` and ``mass`` are those of all that it adds up, in an accumulator of the roundoff ``unit``, and
    ``inherited`` is the radius without what that lost.
    """

    centre: NDArray[Any]
    radius: Floats
    leaves: Floats | None = None
    mass: Floats | None = None
    inherited: Floats | None = None
    unit: float = 0.0
    between: tuple[NDArray[Any], NDArray[Any]] | None = None
    alone: Floats | None = None

    @staticmethod
    def point(value: NDArray[Any]) -> Enclosed:
        return Enclosed(value, np.zeros(value.shape))

    @cached_property
    def is_known(self) -> Bools:
        return np.isfinite(self.radius)

    @cached_property
    def is_known_everywhere(self) -> bool:
        return not self.varies or bool(self.is_known.all())

    @cached_property
    def is_finite_everywhere(self) -> bool:
        return bool(np.isfinite(self.centre).all())

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
    def varies(self) -> bool:
        return bool((self.radius != 0).any())

    @cached_property
    def ends(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """``centre ∓ radius``, rounded outward."""
        if self.between is not None or not self.varies:
            return self.between or (self.centre, self.centre)
        low, high = in_blocks(_ends, self.centre, self.radius)
        return low, high

    @property
    def lower(self) -> NDArray[Any]:
        return self.ends[0]

    @property
    def upper(self) -> NDArray[Any]:
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


def _ends(centre: NDArray[Any], radius: Floats) -> tuple[NDArray[Any], NDArray[Any]]:
    return -_sum_from_above(-centre, radius), _sum_from_above(centre, radius)


@np.errstate(all="ignore")
def _sum_from_above(a: NDArray[Any], b: Floats) -> NDArray[Any]:
    """The least float that is not below ``a + b``: what the rounded sum lost is a float too, and has a sign."""
    total = a + b
    part = total - a
    lost = (a - (total - part)) + (b - part)  # Knuth's TwoSum; NaN where the sum is not finite
    # u(1 + 4u)·|s| is more than half of the distance to the next float and less than one and a half.
    next_one = np.abs(total) * (2.0**-53 * (1 + 2.0**-51)) + 5e-324
    return total + np.where(lost > 0, next_one, 0.0)


def inverse_grain(x: Floats) -> Floats:
    """``2^−e`` for the largest e of which a number is a multiple of 2^e; 0 for 0, infinite for what is no larger than
    2^−971.

    >>> inverse_grain(np.array([0.75, 6.0, 0.0, 2.0**-1000])).tolist()
    [4.0, 0.5, 0.0, inf]
    """
    found: Floats = in_blocks(_inverse_grain, np.asarray(x, np.float64, order="C"))
    return found


@np.errstate(all="ignore")
def _inverse_grain(x: Floats) -> Floats:
    bits = x.view(np.int64)
    exponent = (bits >> 52) & 0x7FF
    significand = (bits & 0xFFFFFFFFFFFFF) | 1 << 52
    scale = ((1023 + 1075) - exponent) << 52  # 2^(1075 − exponent), the largest of which is infinite
    inverse = np.where(exponent > 52, scale.view(np.float64) / (significand & -significand), np.inf)
    return np.where(x == 0, 0.0, inverse)
