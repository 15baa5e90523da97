"""The exact meaning of an array of outputs, and the judgement of a kernel's results against it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.tolerance import Permitted
from gradspec.domains.exact import rational
from gradspec.domains.formats import F32, F64, Format, format_named
from gradspec.spec.errors import DTypeError, ShapeError

Floats: TypeAlias = NDArray[np.float64]
Bools: TypeAlias = NDArray[np.bool_]
Ints: TypeAlias = NDArray[np.int64]

MeaningRule: TypeAlias = Callable[..., Any]
"""From the arguments of an operator of the specification to the meaning of each result."""

FORMAT_NAMES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}


def format_of(dtype: DTypeLike) -> Format:
    """The Format of a NumPy or ml_dtypes floating-point dtype.

    >>> format_of(np.float32).name
    'f32'
    """
    name = np.dtype(dtype).name
    if name not in FORMAT_NAMES:
        raise DTypeError(f"dtype {name} has no rounding to judge; use one of {', '.join(FORMAT_NAMES)}")
    return format_named(FORMAT_NAMES[name])


@np.errstate(over="ignore", under="ignore")
def round_array(x: Floats, format: Format) -> Floats:
    """``Format.nearest`` on every entry.

    >>> round_array(np.array([2049.0, 1e9]), format_named("f16")).tolist()
    [2048.0, inf]
    """
    if format == F64:
        return x
    if format == F32:
        return x.astype(np.float32).astype(np.float64)
    finite = np.isfinite(x)
    safe = np.where(finite, x, 0.0)
    exponent = np.maximum(np.frexp(safe)[1] - format.precision, format.lowest_bit)
    rounded = np.copysign(np.ldexp(np.rint(np.ldexp(safe, -exponent)), exponent), x)
    rounded = np.where(np.abs(rounded) <= float(format.largest), rounded, np.copysign(np.inf, x))
    return np.where(finite, rounded, x)


def stored_errors(values: Floats, errors: Floats, storage: Format) -> Floats:
    """``tolerance.stored_error`` of arrays: the errors after storing values that are off by ``errors``."""
    rounding = np.maximum(float(storage.unit) * (np.abs(values) + errors), float(storage.tiniest) / 2)
    return np.asarray(errors + rounding)


def float_array(data: ArrayLike) -> Array:
    array = np.asarray(data)
    if array.dtype.name not in FORMAT_NAMES:
        raise DTypeError(f"an array of {array.dtype} is not judged here; use one of {', '.join(FORMAT_NAMES)}")
    return array


def comparable_array(data: ArrayLike) -> Array:
    """Floats, or integers, which have an order and nothing to round."""
    array = np.asarray(data)
    return array if array.dtype.kind in "iu" else float_array(array)


def planes_of(array: Array, rank: int) -> Array:
    """``[plane, position]``: in float64, or in int64, where float64 would merge large integers."""
    wide = array.astype(np.int64 if array.dtype.kind in "iu" else np.float64)
    return wide.reshape(prod(lead_of(array, rank)), prod(array.shape[array.ndim - rank :]))


def lowest(dtype: np.dtype[Any]) -> float | int:
    """What no number is less than."""
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def has_exact_products(*arrays: Array) -> bool:
    """Whether products of these arrays' numbers are exact in float64."""
    return all(array.dtype != np.float64 for array in arrays)


def lead_of(array: Array, rank: int) -> tuple[int, ...]:
    return array.shape[: array.ndim - rank]


@dataclass(frozen=True)
class Judgement:
    """Which results a correct kernel may have returned, and how many of them needed the exact path."""

    ok: Bools
    exact: int
    meaning: Meaning
    got: Array
    arithmetic: Arithmetic
    wide: Bools
    """Where the tolerance is no less than all that is added up, so that passing says nothing."""
    skipped: Bools
    """Where padding times what is not finite gives NaN, and the result, which is permitted, is not one."""
    spread: Bools
    """Where the result is not finite by what the algorithm mixes in alone."""

    @property
    def passed(self) -> bool:
        return bool(self.ok.all())

    def failures(self, limit: int = 5) -> list[str]:
        """The first failures in words."""
        places = [
            (i, [*map(int, np.unravel_index(i, self.ok.shape))]) for i in np.flatnonzero(~self.ok)[:limit].tolist()
        ]
        return [f"{at}: got {self.got.ravel()[i].item()!r}, permitted {self.permitted(i)}" for i, at in places]

    def permitted(self, place: int) -> Permitted:
        """What is permitted at a flat position."""
        return self.meaning.permitted_at(place, self.arithmetic)


@dataclass
class Decision:
    """A judgement's parts, flat."""

    ok: Bools
    exact: int
    wide: Bools
    skipped: Bools
    spread: Bools

    @staticmethod
    def of(ok: Bools, exact: int = 0) -> Decision:
        """What is permitted, where nothing is wide, nothing may be skipped and nothing is mixed in."""
        return Decision(ok, exact, *(np.zeros(ok.shape, np.bool_) for _ in range(3)))


class Meaning(ABC):
    """What every output of an operator is, exactly."""

    shape: tuple[int, ...]

    def judge(self, got: ArrayLike, arithmetic: Arithmetic | None = None) -> Judgement:
        """Decide for every output whether a correct kernel of this ``arithmetic`` may have returned it.

        ``arithmetic`` defaults to the result's own dtype, accumulated in float32 (float64 for float64).
        """
        array = np.asarray(got)
        if array.shape != self.shape:
            raise ShapeError(f"the result has shape {array.shape}, the operator gives {self.shape}; pass all of it")
        how = self._default_arithmetic(array) if arithmetic is None else arithmetic
        decided = self._decide(self._numbers(array).ravel(), how)
        seen = (decided.wide, decided.skipped, decided.spread)
        ok, *more = (part.reshape(self.shape) for part in (decided.ok, *seen))
        return Judgement(ok, decided.exact, self, array, how, *more)

    def _numbers(self, array: Array) -> Array:
        return array.astype(np.float64)

    def _default_arithmetic(self, array: Array) -> Arithmetic:
        return Arithmetic.of(format_of(array.dtype))

    @abstractmethod
    def rounded(self, format: str | Format) -> Floats:
        """The results rounded once to ``format``, in an array of float64."""

    @abstractmethod
    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        """What the output at a flat position may be."""

    @abstractmethod
    def _decide(self, got: Array, arithmetic: Arithmetic) -> Decision:
        """Which results are permitted."""


class Selected(Meaning):
    """Outputs that are copies of inputs, or indices: nothing rounds, so equality is demanded (zeros have no sign).

    Where any of several cells will do, there are ``options``, ``[output, option]``, of which the values are the first.
    """

    def __init__(self, values: Array, options: Array | None = None) -> None:
        self.values = values if values.dtype.kind in "iu" else values.astype(np.float64)
        self.shape = values.shape
        self.options = self.values.reshape(-1, 1) if options is None else options

    def _numbers(self, array: Array) -> Array:
        """Integers stay what they are: float64 holds not all of them."""
        return array if array.dtype.kind in "iu" else array.astype(np.float64)

    def _default_arithmetic(self, array: Array) -> Arithmetic:
        return Arithmetic.of("f64")

    def rounded(self, format: str | Format) -> Floats:
        return round_array(self.values.astype(np.float64), format_named(format)).reshape(self.shape)

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        options = self.options[place]
        finite = [rational(value) for value in options[np.isfinite(options)].tolist()]
        specials = (options == np.inf, options == -np.inf, np.isnan(options))
        return Permitted(min(finite, default=None), max(finite, default=None), *(bool(s.any()) for s in specials))

    def _decide(self, got: Array, arithmetic: Arithmetic) -> Decision:
        same = (self.options == got[:, None]) | (np.isnan(self.options) & np.isnan(got)[:, None])
        return Decision.of(same.any(axis=1))
