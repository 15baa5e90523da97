"""What is to be proved of a network, whatever file it came from: no input of some boxes is sent into an unsafe set.

A property is a union of cases. A case is a box of inputs and, for inputs in it, the unsafe set: a union of
conjunctions of linear inequalities, mostly on outputs. A counterexample is an input of the box of some case that
satisfies, with its outputs, one conjunction of that case; the property holds if there is none. Inputs and outputs are
counted flat: in row-major order, one tensor after the other.

Numbers are kept exactly. Floats are derived from them such that nothing is lost: a box of floats contains the exact
box, and an unsafe set of floats the exact set. What is proved of the floats is true of the exact property; a
counterexample is one if ``Property.is_counterexample`` says so, which rounds nothing.

>>> ball = Property.robust([[0.25, 0.75]], "1/255", label=1, classes=3)
>>> print(ball)
1 case: 2 inputs, 3 outputs
>>> (case,) = ball.cases
>>> case.box.lower
(Fraction(251, 1020), Fraction(761, 1020))
>>> [conjunction.C.tolist() for conjunction in case.unsafe]
[[[-1.0, 1.0, 0.0]], [[0.0, 1.0, -1.0]]]
>>> ball.is_counterexample([0.25, 0.75], [0.5, 0.5, 0.25])  # a tie is not a proof
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from math import prod
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from gradspec.domains.exact import rational
from gradspec.domains.formats import float_below
from gradspec.graph.ir import Array
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError

Coefficients = tuple[tuple[int, Fraction], ...]
"""Flat indices, ascending, with numbers that are not 0."""

Unsafe = Iterable[Sequence["Inequality"]]
"""Conjunctions of which none may hold."""


# --- exact numbers, and the floats next to them on the side that is safe ----------------------------------------------


def as_cells(values: object) -> Array:
    """An array of what is given; texts and numbers of several kinds stay what they are."""
    return np.array(values, object) if isinstance(values, list | tuple | str | Fraction) else np.asarray(values)


def fractions(values: object, name: str, count: int) -> list[Fraction]:
    """Numbers, flat and exact: a float is the number that it is, a text such as "1/3" or "0.1" the one that it says."""
    array = as_cells(values)
    if array.size != count:
        raise ShapeError(f"{name} has shape {array.shape}, {array.size} numbers; {count} are needed")
    try:
        return [_fraction(value) for value in array.ravel().tolist()]
    except (ValueError, OverflowError, ZeroDivisionError, DTypeError, UnsupportedError) as error:
        raise ValueError(f"{name} holds something that is not a finite number: {error}") from None


def _fraction(value: object) -> Fraction:
    if isinstance(value, int | float | str | Fraction):
        return Fraction(value)
    number = rational(value)
    return Fraction(int(number.p), int(number.q))


def round_down(numbers: Sequence[Fraction], dtype: DTypeLike = np.float64) -> Array:
    """The largest floats that are not above these numbers."""
    wide = np.array([float_below(number.numerator, number.denominator) for number in numbers], np.float64)
    # A float of fewer bits is a float64, so the largest below a number is the largest below the float64 below it.
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype)
        return np.where(narrow > wide, np.nextafter(narrow, narrow.dtype.type(-np.inf)), narrow)


def round_up(numbers: Sequence[Fraction], dtype: DTypeLike = np.float64) -> Array:
    """The smallest floats that are not below these numbers.

    >>> tenth = [Fraction(1, 10)]
    >>> float(round_down(tenth, np.float32)[0]) < 0.1 < float(round_up(tenth, np.float32)[0])
    True
    """
    return 0 - round_down([-number for number in numbers], dtype)  # −0 + 0 is 0


# --- records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Port:
    """An input or output of the network, as the property calls it; ``dtype`` is "real" where none is stated."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "real"

    @property
    def size(self) -> int:
        return prod(self.shape)


@dataclass(frozen=True)
class InputBox:
    """``lower ≤ x ≤ upper``, cell by cell."""

    lower: tuple[Fraction, ...] = field(repr=False)
    upper: tuple[Fraction, ...] = field(repr=False)

    def outer(self, dtype: DTypeLike = np.float64) -> tuple[Array, Array]:
        """The least box of floats that contains this one: lower ends rounded down, upper ends up."""
        return round_down(self.lower, dtype), round_up(self.upper, dtype)

    def inner(self, dtype: DTypeLike = np.float64) -> tuple[Array, Array]:
        """The least and largest float of each cell that lie in the box; where there is none, they are crossed."""
        return round_up(self.lower, dtype), round_down(self.upper, dtype)

    def nearest(self, x: object) -> tuple[Fraction, ...]:
        """The point of the box that is nearest to ``x``."""
        cells = fractions(x, "x", len(self.lower))
        return tuple(min(max(c, a), b) for c, a, b in zip(cells, self.lower, self.upper, strict=True))

    def contains(self, x: Sequence[Fraction]) -> bool:
        return all(low <= cell <= high for low, cell, high in zip(self.lower, x, self.upper, strict=True))


@dataclass(frozen=True)
class Inequality:
    """``Σ cⱼ·yⱼ + Σ dᵢ·xᵢ ≤ bound`` for outputs y and inputs x, or ``<`` if it is strict."""

    outputs: Coefficients
    inputs: Coefficients
    bound: Fraction
    strict: bool = False

    def holds(self, x: Sequence[Fraction], y: Sequence[Fraction] | Mapping[int, Fraction]) -> bool:
        value = sum((c * y[j] for j, c in self.outputs), Fraction(0)) + sum(d * x[i] for i, d in self.inputs)
        return value < self.bound or (value == self.bound and not self.strict)


@dataclass(frozen=True)
class Conjunction:
    """Inequalities that together make a point unsafe, of a network with so many inputs and outputs; none: any point.

    As floats, where ``x`` and ``y`` are unsafe, every row of ``C @ y + D @ x ≤ b + C_error @ |y| + D_error @ |x|``
    holds. The errors are 0 wherever a coefficient is a float64, as ±1 is. So the conjunction is refuted on a set where
    some row has a left side above ``b`` and the errors, or, if it is strict, not below.
    """

    inequalities: tuple[Inequality, ...]
    inputs: int
    outputs: int

    @property
    def C(self) -> Array:  # noqa: N802
        """Coefficients of the outputs, in the nearest float64; a row for each inequality."""
        return self._of_outputs[0]

    @property
    def C_error(self) -> Array:  # noqa: N802
        """How far the numbers in ``C`` may be from the exact ones."""
        return self._of_outputs[1]

    @property
    def D(self) -> Array:  # noqa: N802
        """Coefficients of the inputs: 0 in most properties, which bound inputs by a box alone."""
        return self._of_inputs[0]

    @property
    def D_error(self) -> Array:  # noqa: N802
        return self._of_inputs[1]

    @cached_property
    def b(self) -> Array:
        """The bounds, rounded up."""
        return round_up([inequality.bound for inequality in self.inequalities])

    @cached_property
    def strict(self) -> Array:
        return np.array([inequality.strict for inequality in self.inequalities], np.bool_)

    @property
    def names_inputs(self) -> bool:
        """Whether inputs have coefficients in any inequality."""
        return any(inequality.inputs for inequality in self.inequalities)

    @cached_property
    def _of_outputs(self) -> tuple[Array, Array]:
        return _dense([inequality.outputs for inequality in self.inequalities], self.outputs)

    @cached_property
    def _of_inputs(self) -> tuple[Array, Array]:
        return _dense([inequality.inputs for inequality in self.inequalities], self.inputs)


@dataclass(frozen=True)
class PropertyCase:
    """A box of inputs, and the conjunctions of which none may be satisfied on it."""

    box: InputBox
    unsafe: tuple[Conjunction, ...]


@dataclass(frozen=True)
class Property:
    """No input of a case's box is unsafe there. Without cases there is nothing to prove."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    cases: tuple[PropertyCase, ...] = field(repr=False)

    def __str__(self) -> str:
        n, cases = len(self.cases), "case" if len(self.cases) == 1 else "cases"
        return f"{n} {cases}: {size_of(self.inputs)} inputs, {size_of(self.outputs)} outputs"

    def is_counterexample(self, x: object, y: object) -> bool:
        """Whether an input whose outputs are ``y`` refutes the property; in rationals, so that nothing is rounded."""
        inputs = fractions(x, "x", size_of(self.inputs))
        outputs = fractions(y, "y", size_of(self.outputs))
        return any(
            all(inequality.holds(inputs, outputs) for inequality in conjunction.inequalities)
            for case in self.cases
            if case.box.contains(inputs)
            for conjunction in case.unsafe
        )

    @classmethod
    def never(cls, lower: object, upper: object, C: object, b: object) -> Property:  # noqa: N803
        """No input of the box has outputs with ``C @ y ≤ b`` in every row.

        >>> both = Property.never([0, 0], [1, 1], C=[[-1, 0], [0, -1]], b=[-5, -5])  # y₀ ≥ 5 and y₁ ≥ 5
        >>> both.is_counterexample([0, 1], [7, 5]), both.is_counterexample([0, 1], [7, 4])
        (True, False)
        """
        return cls._linear(lower, upper, C, b, lambda rows: [rows])

    @classmethod
    def always(cls, lower: object, upper: object, C: object, b: object) -> Property:  # noqa: N803
        """Every input of the box has outputs with ``C @ y ≤ b`` in every row.

        >>> small = Property.always([0, 0], [1, 1], C=[[1, 0], [0, 1]], b=["1/10", "1/10"])
        >>> small.is_counterexample([0, 1], [0.0, 0.1]), small.is_counterexample([0, 1], [0.0, 0.0])
        (True, False)
        """
        return cls._linear(lower, upper, C, b, lambda rows: [[_negate(row)] for row in rows])

    @classmethod
    def _linear(
        cls, lower: object, upper: object, matrix: object, bounds: object, unsafe: Callable[[list[Inequality]], Unsafe]
    ) -> Property:
        coefficients, ends = as_cells(matrix), (as_cells(lower), as_cells(upper))
        if coefficients.ndim != 2:
            raise ShapeError(f"C has shape {coefficients.shape}; give a matrix with a row for each inequality")
        if ends[0].shape != ends[1].shape:
            raise ShapeError(f"lower has shape {ends[0].shape} and upper {ends[1].shape}; a box has both of one shape")
        count, outputs = coefficients.shape
        rows = [
            Inequality(tuple((i, n) for i, n in enumerate(fractions(row, "C", outputs)) if n), (), bound)
            for row, bound in zip(coefficients, fractions(bounds, "b", count), strict=True)
        ]
        return cls._on_box(_box(*ends), ends[0].shape, outputs, unsafe(rows))

    @classmethod
    def robust(
        cls,
        x: object,
        eps: object,
        label: int,
        classes: int,
        *,
        mean: object = 0,
        std: object = 1,
        clip: tuple[Any, Any] | None = (0, 1),
        axis: int = -3,
    ) -> Property:
        """The class of an image is ``label``, however each pixel changes by at most ``eps``.

        ``x`` and ``eps`` are in the units of pixels, which stay in the range ``clip``; the network is given ``(pixels −
        mean) / std``, and the box is made of that without rounding. ``mean`` and ``std`` are numbers, or have one for
        each channel, along ``axis``. Another class that is as large is a counterexample, too. Strings such as
        ``"1/255"`` and ``"0.1"`` are read as exact numbers, while 0.1 is the float.

        >>> image = [[[0.5]], [[1.0]]]
        >>> (case,) = Property.robust(image, "1/2", 0, 10, mean=["1/2", "1/4"], std="1/4").cases
        >>> case.box.lower == (-2, 1), case.box.upper == (2, 3), len(case.unsafe)
        (True, True, 9)
        """
        if classes < 2:  # nothing would be unsafe, and everything proved
            raise ValueError("one output has no other class beside it; Property.always says what it must satisfy")
        label = _whole("label", label)
        if not 0 <= label < classes:
            raise ValueError(f"label is {label}, and there are {classes} classes; give one of 0 to {classes - 1}")
        pixels = as_cells(x)
        means = _along_channels(mean, "mean", pixels.shape, axis)
        scales = _along_channels(std, "std", pixels.shape, axis)
        if any(scale <= 0 for scale in scales):
            raise ValueError("std has a number that is not positive; give those that the pixels are divided by")
        low, high = (
            tuple((end - center) / scale for end, center, scale in zip(ends, means, scales, strict=True))
            for ends in _pixel_range(pixels, eps, clip)
        )
        unsafe = [[Inequality(_margin(label, other), (), Fraction(0))] for other in range(classes) if other != label]
        return cls._on_box(InputBox(low, high), pixels.shape, classes, unsafe)

    @classmethod
    def _on_box(cls, box: InputBox, shape: tuple[int, ...], outputs: int, unsafe: Unsafe) -> Property:
        conjunctions = tuple(Conjunction(tuple(rows), len(box.lower), outputs) for rows in unsafe)
        return cls((Port("X", shape),), (Port("Y", (outputs,)),), (PropertyCase(box, conjunctions),))


def size_of(ports: Iterable[Port]) -> int:
    return sum(port.size for port in ports)


# --- parts of properties ----------------------------------------------------------------------------------------------


def _box(lower: Array, upper: Array) -> InputBox:
    box = InputBox(tuple(fractions(lower, "lower", lower.size)), tuple(fractions(upper, "upper", upper.size)))
    for place, (low, high) in enumerate(zip(box.lower, box.upper, strict=True)):
        if low > high:
            raise ValueError(f"lower is {float(low)} above upper, {float(high)}, at {place}; a box has lower ≤ upper")
    return box


def _whole(name: str, value: Any) -> int:
    try:
        return index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}, a {type(value).__name__}; give an int") from None


def _pixel_range(pixels: Array, eps: object, clip: tuple[Any, Any] | None) -> tuple[list[Fraction], list[Fraction]]:
    """What pixels may be if each changes by at most ``eps`` and stays in its range: the least, and the most."""
    cells, (radius,) = fractions(pixels, "x", pixels.size), fractions(eps, "eps", 1)
    if radius < 0:
        raise ValueError(f"eps is {eps}; give 0 or more")
    low, high = [cell - radius for cell in cells], [cell + radius for cell in cells]
    if clip is None:
        return low, high
    least, most = fractions(clip, "clip", 2)
    if outside := [cell for cell in cells if not least <= cell <= most]:
        raise ValueError(
            f"x has a pixel {float(outside[0])}, outside of {float(least)} to {float(most)}; "
            "give the range of pixels as clip=, or None"
        )
    return [max(end, least) for end in low], [min(end, most) for end in high]


def _along_channels(values: object, name: str, shape: tuple[int, ...], axis: int) -> list[Fraction]:
    """A number for each cell: all the same, or one for each channel."""
    array = as_cells(values)
    if array.ndim == 0:
        return fractions(array, name, 1) * prod(shape)
    if array.ndim != 1 or not -len(shape) <= axis < len(shape) or array.size != shape[axis]:
        raise ShapeError(
            f"{name} has shape {array.shape}, and the input {shape}; give a number, or one per index of axis {axis}"
        )
    numbers, axis = fractions(array, name, array.size), axis % len(shape)
    return [number for number in numbers for _ in range(prod(shape[axis + 1 :]))] * prod(shape[:axis])


def _dense(rows: Sequence[Coefficients], size: int) -> tuple[Array, Array]:
    """The nearest float64 matrix, and how far each of its numbers may be off."""
    matrix, error = np.zeros((2, len(rows), size))
    for at, row in enumerate(rows):
        for place, number in row:
            matrix[at, place] = number.numerator / number.denominator  # which Python rounds correctly
        errors = [abs(Fraction(float(matrix[at, place])) - number) for place, number in row]
        error[at, [place for place, _ in row]] = round_up(errors)
    return matrix, error


def _margin(label: int, other: int) -> Coefficients:
    return tuple(sorted([(label, Fraction(1)), (other, Fraction(-1))]))


def _negate(row: Inequality) -> Inequality:
    flipped = tuple((place, -number) for place, number in row.outputs)
    return Inequality(flipped, (), -row.bound, not row.strict)
