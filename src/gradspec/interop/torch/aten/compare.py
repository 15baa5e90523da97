"""Comparisons, and selections by what they say. Their results are booleans, which have no derivative."""

from __future__ import annotations

from typing import Any

from gradspec.graph.ir import Var
from gradspec.graph.types import boolean, number_as, u8
from gradspec.interop.torch.aten.operands import common_dtype, promoted, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops import select
from gradspec.ops.pointwise import maximum, minimum
from gradspec.spec.errors import UnsupportedError


@reads("gt")
def greater(x: Any, other: Any) -> Any:
    return select.greater(*_ordered(x, other))


@reads("lt")
def less(x: Any, other: Any) -> Any:
    return select.less(*_ordered(x, other))


@reads("eq")
def equal(x: Any, other: Any) -> Any:
    return select.equal(*promoted(x, other))


@reads("ge")
def _greater_or_equal(x: Any, other: Any) -> Any:
    return maximum(greater(x, other), equal(x, other))


@reads("le")
def less_or_equal(x: Any, other: Any) -> Any:
    return maximum(less(x, other), equal(x, other))


@reads("ne")
def _unequal(x: Any, other: Any) -> Any:
    return _not(equal(x, other))


@reads("isnan")
def _is_nan(x: Var) -> Any:
    return _unequal(x, x)


def _ordered(*values: Any) -> tuple[Any, ...]:
    """Operands of one dtype that has an order: of booleans, false comes first."""
    return tuple(to_dtype(v, u8) if isinstance(v, Var) and v.dtype is boolean else v for v in promoted(*values))


# --- by truth values --------------------------------------------------------------------------------------------------


@reads("logical_not")
def _not(x: Var) -> Any:
    return select.equal(_truth(x), False)


@reads("logical_and")
def _and(x: Var, other: Var) -> Any:
    return minimum(_truth(x), _truth(other))


@reads("logical_or")
def _or(x: Var, other: Var) -> Any:
    return maximum(_truth(x), _truth(other))


@reads("logical_xor")
def _xor(x: Var, other: Var) -> Any:
    return _not(equal(_truth(x), _truth(other)))


@reads("bitwise_xor", "__xor__")
def _bitwise_xor(x: Any, other: Any) -> Any:
    return _not(equal(*_bits(x, other)))


@reads("bitwise_not")
def _bitwise_not(x: Var) -> Any:
    return _not(*_bits(x))


@reads("bitwise_and")
def _bitwise_and(x: Any, other: Any) -> Any:
    return minimum(*_bits(x, other))


@reads("bitwise_or")
def _bitwise_or(x: Any, other: Any) -> Any:
    return maximum(*_bits(x, other))


def _bits(*values: Any) -> tuple[Any, ...]:
    """Booleans, the one kind of numbers whose bits a graph knows."""
    if common_dtype(values) is not boolean:
        raise UnsupportedError("it is known for booleans, and not for the bits of integers")
    return values


def _truth(x: Var) -> Var:
    return to_dtype(x, boolean)


@reads("where")
def where(condition: Var, x: Any, other: Any) -> Any:
    """One of two numbers, whatever the other is; each gets the cotangents of its own cells."""
    if not isinstance(x, Var) and not isinstance(other, Var):
        x = condition.owner.const(number_as(x, common_dtype((x, other)).numpy))
    return select.where(_truth(condition), *promoted(x, other))


@reads("masked_fill")
def _masked_fill(x: Var, mask: Var, value: Any) -> Any:
    """The dtype is that of ``x``, whatever the value's is."""
    return select.where(_truth(mask), to_dtype(value, x.dtype) if isinstance(value, Var) else value, x)
