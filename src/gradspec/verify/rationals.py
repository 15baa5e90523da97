"""Exact numbers of arrays and texts, and the floats next to them on the side that is safe."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gradspec.domains.exact import rational
from gradspec.domains.formats import float_below
from gradspec.graph.ir import Array
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError


def as_cells(values: Any) -> Array:
    """An array of what is given; texts and numbers of several kinds stay what they are."""
    return np.array(values, object) if isinstance(values, list | tuple | str | Fraction) else np.asarray(values)


def fractions(values: Any, name: str, count: int) -> list[Fraction]:
    """Numbers, flat and exact: a float is the number that it is, a text such as "1/3" or "0.1" the one that it says."""
    array = as_cells(values)
    if array.size != count:
        raise ShapeError(f"{name} has shape {array.shape}, {array.size} numbers; {count} are needed")
    try:
        return [_fraction(value) for value in array.ravel().tolist()]
    except (ValueError, OverflowError, ZeroDivisionError, DTypeError, UnsupportedError) as error:
        raise ValueError(f"{name} holds something that is not a finite number: {error}") from None


def _fraction(value: Any) -> Fraction:
    if isinstance(value, int | float | str | Fraction):
        return Fraction(value)
    number = rational(value)
    return Fraction(int(number.p), int(number.q))


def rounded_down(numbers: Sequence[Fraction], dtype: DTypeLike = np.float64) -> Array:
    """The largest floats that are not above these numbers."""
    wide = np.array([float_below(number.numerator, number.denominator) for number in numbers], np.float64)
    # A float of fewer bits is a float64, so the largest below a number is the largest below the float64 below it.
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
        return np.where(narrow > wide, np.nextafter(narrow, narrow.dtype.type(-np.inf)), narrow)


def rounded_up(numbers: Sequence[Fraction], dtype: DTypeLike = np.float64) -> Array:
    """The smallest floats that are not below these numbers.

    >>> tenth = [Fraction(1, 10)]
    >>> float(rounded_down(tenth, np.float32)[0]) < 0.1 < float(rounded_up(tenth, np.float32)[0])
    True
    """
    return 0 - rounded_down([-number for number in numbers], dtype)  # −0 + 0 is 0
