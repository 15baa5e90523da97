"""Boxes of variables, lines over them, and the roundings that bounds must add.

A box holds all numbers from ``lower`` to ``upper``, or all within ``radius`` of ``centre``; it is given in one form,
and the other is computed where a rule asks for it. Bounds are computed in floats, to nearest, by any kernels that
conform to the specification; every rule adds what these may lose, so that it never matters which way they rounded.

With ``u`` the unit roundoff, ``Γ_n = (1+u)^n − 1``: a number that met ``n`` roundings is off by at most ``Γ_n`` of the
sum of the magnitudes of its terms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from math import expm1, inf, log1p, nan
from typing import Any, Protocol, TypeAlias

import numpy as np

from gradspec.graph.builder import apply, apply_all
from gradspec.graph.ir import Array, Attributes, Node, Operand, Provided, Var
from gradspec.graph.types import DTYPES, DType, TensorType, bf16, f8_e4m3, f8_e5m2, f16, f32, f64
from gradspec.spec.errors import UnsupportedError

DIGITS = {f8_e4m3: 4, f8_e5m2: 3, f16: 11, bf16: 8, f32: 24, f64: 53}
"""The bits of a significand."""

LEAST = {f8_e4m3: 2.0**-9, f8_e5m2: 2.0**-16, f16: 2.0**-24, bf16: 2.0**-133, f32: 2.0**-149, f64: 5e-324}
"""The smallest positive number."""

OVERFLOW = {
    f8_e4m3: 464.0,
    f8_e5m2: 61440.0,
    f16: 65520.0,
    **{t: (2 - 2.0 ** -DIGITS[t]) * 2.0**127 for t in (bf16, f32)},
}
"""From where on a number may be rounded to infinity or NaN, in the formats narrower than float64."""

FUNCTION = 4.0
"""The error of a kernel's elementary functions, in units, if none is declared; rules assume it."""

FAST = 8.0
"""The further error, in units, of a quotient or a root in CUDA's fast mode: 2 and 3 ulp, or 4 and 6 units."""


@dataclass(frozen=True)
class BoundOperators:
    """What bounds and decompositions are made of, and the bounds of curves. The modules of these use this one."""

    maximum: Callable[[Operand, Operand], Var]
    minimum: Callable[[Operand, Operand], Var]
    greater: Callable[[Operand, Operand], Var]
    equal: Callable[[Operand, Operand], Var]
    where: Callable[[Operand, Operand, Operand], Var]
    gate: Callable[[Var, Var], Var]
    global_max_pool: Callable[[Operand, int], Var]
    curve_box: Callable[[BoundedNode, Curve, Box], Box]
    curve_lines: Callable[[BoundedNode, Curve, Box, Var | None], Lines]


OPERATORS = Provided[BoundOperators]()


def gamma(n: float, unit: float) -> float:
    """``Γ_n`` of a unit roundoff, from above."""
    return expm1(n * log1p(unit)) * (1 + 2.0**-40)


@dataclass(frozen=True)
class BoundArithmetic:
    """The arithmetic of bounds, and whether they hold for every kernel (``any``) or for real numbers only."""

    dtype: DType
    any: bool
    unit: float | None = None
    """The unit roundoff of kernels. None means that of float64 or, for all other formats, of float32."""
    function: float = FUNCTION
    """The error of the kernels' elementary functions, in units."""
    fast: bool = False
    """Whether quotients and functions are those of CUDA's fast mode."""
    flushes: bool = False
    """Whether results below the smallest normal number may be 0."""
    online: int = 0
    """The cells of a softmax after which it may be scaled anew; 0 if it never is."""
    regroups: bool = False
    """Whether ``x − c − d`` may be computed as ``x − (c + d)``."""
    exact: bool = False
    """For real numbers: whether sums of certain whole numbers are told apart, which lose nothing here."""

    def own(self, n: float) -> float:
        """``Γ_n`` of the bounds' own computation."""
        return gamma(n, 2.0 ** -DIGITS[self.dtype])

    def kernel(self, n: float, stored: DType) -> float:
        """``Γ_n`` of a kernel whose result is stored as ``stored``, and of two functions that are declared worse."""
        more = 2 * max(self.function - FUNCTION, 0.0) + (FAST if self.fast else 0.0)
        return gamma(n + more, self.units(stored)) if self.any else 0.0

    def units(self, stored: DType) -> float:
        """The unit roundoff of kernels; the small formats are computed with in float32."""
        return 2.0 ** -DIGITS[f64 if stored is f64 else f32] if self.unit is None else self.unit

    def storage(self, stored: DType) -> float:
        """The relative error of storing a result in a format with fewer digits than it was computed with."""
        return 2.0 ** -DIGITS[stored] if self.any and DIGITS.get(stored, 24) < 24 else 0.0

    def overflow(self, format: DType) -> float:
        """From where on a kernel's result in a format may be infinite; infinity if these bounds overflow with it."""
        return OVERFLOW.get(format, inf) if self.any and DIGITS.get(format, 53) < DIGITS[self.dtype] else inf

    def largest(self, stored: DType) -> float:
        """The largest number of what a kernel computes a result in."""
        return float(np.finfo(np.float64 if stored is f64 else np.float32).max)

    def underflow(self, n: float, stored: DType) -> float:
        """What ``n`` products and the storage may lose to underflow, in these bounds and in the kernel."""
        here = (n + 2) * 2 * LEAST[self.dtype]
        if not self.any:
            return here
        computed = stored if self.units(stored) > 2.0 ** -DIGITS[f32] else f64 if stored is f64 else f32
        least = LEAST[computed] * (2.0 ** (DIGITS[computed] - 1) if self.flushes else 1)
        return here + (n + 2) * 2 * least + 2 * LEAST[stored]

    def above(self, x: float) -> float:
        """A number of the bounds' dtype that is not below ``x``."""
        with np.errstate(over="ignore"):
            nearest = self.dtype.numpy.type(x)
        return float(nearest if float(nearest) >= x else np.nextafter(nearest, self.dtype.numpy.type(np.inf)))

    def inflated(self, x: Var, relative: float) -> Var:
        """``(1 + relative)·x`` of something that is not negative, from above."""
        return x * self.above(1 + relative + self.own(2))


class Box:
    """The numbers that a variable may hold. Its parts are variables of the graph of bounds."""

    def __init__(
        self,
        arithmetic: BoundArithmetic,
        *,
        point: Var | None = None,
        ends: Callable[[], tuple[Var, Var]] | None = None,
        ball: Callable[[], tuple[Var, Var]] | None = None,
        term_count: int = 1,
        abs_sum: Callable[[], Var] | None = None,
        sum_error: SumError | None = None,
    ) -> None:
        self.arithmetic, self.point, self.term_count, self.sum_error = arithmetic, point, term_count, sum_error
        self._ends, self._ball, self._abs_sum = ends, ball, abs_sum

    @cached_property
    def ends(self) -> tuple[Var, Var]:
        """The lower and the upper end."""
        if self.point is not None:
            return self.point, self.point
        if self._ends is not None:
            return self._ends()
        centre, radius = self.ball  # the radius allows for these two roundings
        return centre - radius, centre + radius

    @cached_property
    def ball(self) -> tuple[Var, Var]:
        """The centre and the radius."""
        if self.point is not None:
            return self.point, self.point.owner.zeros(self.point.type)
        if self._ball is not None:
            return self._ball()
        lower, upper = self.ends
        centre = lower * 0.5 + upper * 0.5
        return centre, self.around(centre)

    def around(self, centre: Var) -> Var:
        """The radius for a given centre: a difference of floats is off by u of itself, and exact if it underflows."""
        lower, upper = self.ends
        return self.arithmetic.inflated(OPERATORS().maximum(upper - centre, centre - lower), self.arithmetic.own(2))

    @property
    def lower(self) -> Var:
        return self.ends[0]

    @property
    def upper(self) -> Var:
        return self.ends[1]

    @property
    def centre(self) -> Var:
        return self.ball[0]

    @property
    def radius(self) -> Var:
        return self.ball[1]

    @property
    def varies(self) -> bool:
        return self.point is None

    @property
    def is_ball(self) -> bool:
        """Whether the ends are computed from a ball, and not the other way round."""
        return self._ends is None and self._ball is not None

    @cached_property
    def magnitude(self) -> Var:
        """The largest ``|x|``; from above, but for Γ_1."""
        if self.point is not None:
            return absolute(self.point)
        if self._ball is None:
            return OPERATORS().maximum(abs(self.lower), abs(self.upper))
        return abs(self.centre) + self.radius

    @cached_property
    def abs_sum(self) -> Var:
        """The sum of the magnitudes of the ``term_count`` terms, if this is a sum that a kernel may join to others."""
        return self.magnitude if self._abs_sum is None else self._abs_sum()

    def within(self, lower: Var, upper: Var) -> Box:
        """The intersection of the box with other bounds, around the same centre."""
        ends = OPERATORS().maximum(self.lower, lower), OPERATORS().minimum(self.upper, upper)
        part = Box(self.arithmetic, ends=lambda: ends)
        return Box(
            self.arithmetic,
            ends=lambda: ends,
            ball=lambda: (self.centre, part.around(self.centre)),
            term_count=self.term_count,
            abs_sum=self._abs_sum,
            sum_error=self.sum_error,
        )


class SumError:
    """The parts of a sum's radius: its ``error`` at the operands' centres, and the ``reach`` of their radii."""

    def __init__(self, error: Callable[[], Var], reach: Callable[[], Var]) -> None:
        self._error, self._reach = error, reach

    @cached_property
    def error(self) -> Var:
        return self._error()

    @cached_property
    def reach(self) -> Var:
        return self._reach()


def absolute(x: Var) -> Var:
    """``|x|``, at once if it is a constant."""
    value = x.owner.value(x)
    return abs(x) if value is None else x.owner.share(np.asarray(np.abs(value)), f"abs_{x.name}")


# --- lines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Slope:
    """The linear map that multiplies each cell by its slope."""

    slope: Var
    roundings: int = 1

    def push(self, x: Var) -> Var:
        return self.slope * x

    def pull(self, g: Var) -> Var:
        return self.slope * g

    def absolute(self, x: Var) -> Var:
        """The map with absolute slopes; where a slope is 0, it does not matter how far ``x`` reaches."""
        return OPERATORS().gate(abs(self.slope), x)


class LinearMap(Protocol):
    """A linear map of one operand, such as a ``Slope``: itself, its transpose, and its absolute values."""

    @property
    def roundings(self) -> int: ...

    def push(self, x: Var) -> Var: ...

    def pull(self, g: Var) -> Var: ...

    def absolute(self, x: Var) -> Var: ...


@dataclass(frozen=True)
class BoundingLine:
    """``Σ map(operand) + intercept``, below or above the output of a node over the boxes of its operands."""

    intercept: Var
    maps: Sequence[tuple[int, LinearMap]] = ()


Lines: TypeAlias = tuple[BoundingLine, BoundingLine]
"""A line below and a line above."""


@dataclass(frozen=True)
class Curve:
    """What the bounds of a function of one number follow from.

    - ``turns(attrs)``: where it turns from falling to rising or back; between them it is monotone.
    - ``kinks(attrs)``: where it bends, if it is linear elsewhere.
    - ``bend(node, box)``: the largest ``|f″|`` over a box, from above; None if it is not smooth.
    - ``bent(attrs)``: 1 if it is convex, −1 if it is concave, 0 if it is neither.
    - ``tail(attrs)``: ``(t, d)``, if ``f`` stays within ``d`` of a line on each side beyond ``±t``.
    - ``mass(node, box)``: what kernels may add up to ``f``, as the ``x/2`` and ``x/2·erf`` of gelu, which rounding
      errors are relative to; besides ``f`` itself.
    - ``off(node)``: how far the function may be moved by the rounding of its attributes, or None.
    - ``steepest``: the largest ``|f′|``, if the function turns too often to name where, and stays from −1 to 1.
    - ``roundings(attrs, dtype)``: those of one evaluation, 4 for an elementary function; 0 if it is exact.
    - ``fast(node, box, size)``: how much more results of a ``size`` may be off in CUDA's fast mode, or None.
    """

    turns: Callable[[Attributes], tuple[float, ...]] = lambda attrs: ()
    kinks: Callable[[Attributes], tuple[float, ...]] | None = None
    bend: Callable[[BoundedNode, Box], Var | float] | None = None
    bent: Callable[[Attributes], int] = lambda attrs: 0
    tail: Callable[[Attributes], tuple[float, float] | None] = lambda attrs: None
    mass: Callable[[BoundedNode, Box], Var | float] | None = None
    off: Callable[[BoundedNode], float] | None = None
    steepest: float | None = None
    roundings: Callable[[Attributes, DType], int] = lambda attrs, dtype: 4
    fast: Callable[[BoundedNode, Box, Var], Var | float] | None = None

    def rules(self) -> dict[str, Any]:
        """The rules of the operator's record."""
        found: dict[str, Any] = {
            "enclosure": lambda node, box: node.curve_box(self, box),
            "relaxation": lambda node, boxes, share: node.curve_lines(self, boxes[0], share),
        }
        return found if self.kinks is None else {**found, "kinks": self.kinks}


# --- the argument of rules --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BoundedNode:
    """A node whose bounds are wanted, with the functions that rules build bounds from."""

    node: Node
    arithmetic: BoundArithmetic

    @property
    def attrs(self) -> Attributes:
        """The node's attributes; a dtype among them is that of the bounds if it is a float's."""
        attrs = self.node.attrs
        dtype = DTYPES.get(getattr(attrs, "dtype", ""))
        return replace(attrs, dtype=self.arithmetic.dtype.name) if dtype is not None and dtype.is_float else attrs

    def uncertain_integers(self) -> UnsupportedError:
        operands = ", ".join(map(repr, self.node.inputs))
        return UnsupportedError(
            f"{self.node.op.name}({operands}): integers that depend on the box, or on rounded numbers, are bounded "
            "only where they are moved, compared, chosen or converted; compute with floats, by gs.convert or "
            "gs.dequantize, or give those integers as an input"
        )

    @property
    def stored(self) -> TensorType:
        """The type of the node's result where it runs."""
        return self.node.outputs[0].type

    def apply(self, *operands: Var) -> Var:
        """The operator itself, on variables of the graph of bounds."""
        return apply(self.node.op, self.attrs, *operands)

    def apply_all(self, *operands: Var) -> tuple[Var, ...]:
        """As ``apply``, for an operator with several results."""
        return apply_all(self.node.op, self.attrs, *operands)

    def point(self, value: Var) -> Box:
        return Box(self.arithmetic, point=value)

    def between(self, lower: Var, upper: Var) -> Box:
        return Box(self.arithmetic, ends=lambda: (lower, upper))

    def hull(self, values: Sequence[Var]) -> Box:
        low, high = values[0], values[0]
        for value in values[1:]:
            low, high = OPERATORS().minimum(low, value), OPERATORS().maximum(high, value)
        return self.between(low, high)

    def around(self, values: Sequence[Var], roundings: float) -> Box:
        """The hull of computed values, of which each met some roundings here and as many in a kernel.

        Where they may be infinite nothing is known: for any kernel, ``∞·0`` lies between ``−∞`` and ``∞`` too.
        """
        low, high = self.hull(values).ends
        box = self.between(low - self.blur(low, roundings), high + self.blur(high, roundings))
        return self.known_where(self.within(box, inf), box) if self.arithmetic.any else box

    def within(self, box: Box, most: float) -> Var:
        """Whether all numbers of a box lie between ``−most`` and ``most``."""
        return self.both(self.greater(most, box.upper), self.greater(box.lower, -most))

    def blur(self, value: Var, roundings: float) -> Var:
        """The error of a computed value, with a margin for adding it to the value."""
        a, stored = self.arithmetic, next(v.dtype for v in (*self.node.outputs, *self.node.inputs) if v.type.is_float)
        relative = a.own(roundings + 4) + a.kernel(roundings, stored) + a.storage(stored)
        return abs(value) * a.above(relative) + a.above(a.underflow(roundings, stored))

    def storage_error(self, value: Var, times: float) -> Var:
        """The error of storing ``times`` intermediate results before they are used."""
        stored = self.stored.dtype
        least = LEAST[stored] if self.arithmetic.storage(stored) else 0.0
        relative = self.arithmetic.above(times * self.arithmetic.storage(stored))
        return abs(value) * relative + self.arithmetic.above(times * least)

    @property
    def digits(self) -> int:
        """The bits of integers that both the bounds and the node's result hold exactly."""
        return min(DIGITS[self.arithmetic.dtype], DIGITS[self.stored.dtype])

    @property
    def tiny(self) -> float:
        """The smallest normal number, which keeps a divisor from being 0."""
        return float(np.finfo(self.arithmetic.dtype.numpy).tiny)

    def rounding(self, n: float) -> float:
        """``Γ_n`` of the bounds' own computation, as a number of their dtype."""
        return self.arithmetic.above(self.arithmetic.own(n))

    def above(self, value: float) -> float:
        return self.arithmetic.above(value)

    def number(self, value: float, like: Var) -> Var:
        return like.owner.operand(value if like.type.is_float else int(value), like)  # type: ignore[no-any-return]

    def zeros(self, like: Var) -> Var:
        return like.owner.zeros(like.type)  # type: ignore[no-any-return]

    def above_convex(self, box: Box, slope: Var, function: Callable[[Var], Var]) -> Var:
        """The intercept of a line above a convex function, exact at floats: it is farthest below the line's end."""
        values = [(function(end), slope * end) for end in box.ends]
        blur = sum_of([abs(part) for pair in values for part in pair]) * self.arithmetic.above(self.arithmetic.own(5))
        return OPERATORS().maximum(*(value - part for value, part in values)) + (blur + self.tiny)

    def curve_box(self, curve: Curve, box: Box) -> Box:
        return OPERATORS().curve_box(self, curve, box)

    def curve_lines(self, curve: Curve, box: Box, share: Var | None) -> Lines:
        return OPERATORS().curve_lines(self, curve, box, share)

    # --- comparisons: what is not certain of a number, because its bound is NaN, is not certain of its box ------------

    def greater(self, a: Operand, b: Operand) -> Var:
        return OPERATORS().greater(a, b)

    def at_least(self, a: Operand, b: Operand) -> Var:
        return OPERATORS().maximum(OPERATORS().greater(a, b), OPERATORS().equal(a, b))

    def either(self, a: Var, b: Var) -> Var:
        return OPERATORS().maximum(a, b)

    def both(self, a: Var, b: Var) -> Var:
        return OPERATORS().minimum(a, b)

    def opened(self, box: Box) -> tuple[Var, Var]:
        """The ends, infinite where nothing is known: for what takes a NaN for a number."""
        make, (low, high) = OPERATORS(), box.ends
        return make.where(make.equal(low, low), low, -inf), make.where(make.equal(high, high), high, inf)

    def known_where(self, condition: Var, box: Box) -> Box:
        """The box, or nothing known where the condition does not hold: its parts are NaN there."""

        def part(value: Var) -> Var:
            return OPERATORS().where(condition, value, nan)

        error = box.sum_error
        return Box(
            self.arithmetic,
            ends=None if box.is_ball else lambda: (part(box.lower), part(box.upper)),
            ball=lambda: (part(box.centre), part(box.radius)),
            term_count=box.term_count,
            abs_sum=lambda: box.abs_sum,
            sum_error=error and SumError(lambda: part(error.error), lambda: part(error.reach)),
        )

    def among(self, *cases: tuple[Var, float]) -> Box:
        """The values of a function with few values: of each where it cannot be taken, and the value."""
        pairs = [(excluded, self.rounded(value)) for excluded, value in cases]
        lows = [OPERATORS().where(excluded, inf, self._like(low)) for excluded, (low, _) in pairs]
        highs = [OPERATORS().where(excluded, -inf, self._like(high)) for excluded, (_, high) in pairs]
        return self.between(self.hull(lows).lower, self.hull(highs).upper)

    def _like(self, value: float) -> Array:
        return np.asarray(value, self.arithmetic.dtype.numpy)  # a scalar of float64 would pass for a Python number

    def rounded(self, value: float) -> tuple[float, float]:
        """Numbers of the bounds' dtype around an attribute and what it may be rounded to where the node runs."""
        formats = (self.stored.dtype.numpy, np.float32) if self.arithmetic.any and self.stored.dtype is not f64 else ()
        with np.errstate(over="ignore"):
            numbers = [value, *(float(np.asarray(value).astype(dtype)) for dtype in formats)]
        return -self.above(-min(numbers)), self.above(max(numbers))

    def rounded_bounds(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """``rounded`` of the attributes ``min`` and ``max``; infinite where there is none."""
        low, high = self.attrs.min, self.attrs.max
        return (
            (-inf, -inf) if low is None else self.rounded(low),
            (inf, inf) if high is None else self.rounded(high),
        )

    # --- lines --------------------------------------------------------------------------------------------------------

    def slope(self, slope: Var) -> Slope:
        return Slope(slope)

    def line(self, intercept: Var, *maps: tuple[int, LinearMap]) -> BoundingLine:
        return BoundingLine(intercept, maps)


def sum_of(terms: Iterable[Var | None]) -> Var:
    """The sum of those that are there, one at least."""
    return reduce(lambda total, term: total + term, (term for term in terms if term is not None))
