"""Comparisons, and selections by what they say. Their results are booleans, which have no derivative."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np

from gradspec.graph.builder import apply, operands
from gradspec.graph.ir import Var
from gradspec.graph.op import NoAttributes
from gradspec.graph.types import boolean, f32, f64
from gradspec.interop.torch.aten.operands import promoted, to_dtype
from gradspec.interop.torch.aten.table import reads
from gradspec.ops.layout import broadcast_to
from gradspec.ops.pointwise import GATE, MAX_SHARE, STEP, Levels


@reads("gt")
def greater(x: Any, other: Any) -> Any:
    return _compared(x, other, at=0.0, above=1.0)


@reads("ge")
def _greater_or_equal(x: Any, other: Any) -> Any:
    return _compared(x, other, at=1.0, above=1.0)


@reads("lt")
def _less(x: Any, other: Any) -> Any:
    return greater(other, x)


@reads("le")
def _less_or_equal(x: Any, other: Any) -> Any:
    return _greater_or_equal(other, x)


@reads("eq")
def _equal(x: Any, other: Any) -> Any:
    return _compared(x, other, at=1.0, above=0.0)


@reads("ne")
def _unequal(x: Any, other: Any) -> Any:
    return _not(_equal(x, other))


@reads("isnan")
def _is_nan(x: Var) -> Any:
    return _unequal(x, x)


def _compared(x: Any, other: Any, at: float, above: float) -> Any:
    """Whether ``x`` compares so with ``other``; no comparison with a NaN is true, though in our order it is largest."""
    a, b = operands(*(_exact(v) if isinstance(v, Var) else v for v in promoted(x, other)))
    weight = _levels(a, b, 0.0, at, above) * _levels(a, inf, 1.0, 1.0, 0.0)
    return to_dtype(weight, boolean)


def _exact(x: Var) -> Var:
    """Integers as floats that can be compared."""
    return x if x.type.is_float else to_dtype(x, f64)


def _levels(a: Var, b: Any, below: float, at: float, above: float) -> Any:
    """A number for each cell by the order of ``a`` and ``b``, whose share in the maximum is 0, ½ or 1."""
    a, b = _alike(*operands(a, b))
    return apply(STEP, Levels(below, at, above), apply(MAX_SHARE, NoAttributes(), a, b) - 0.5)


def _alike(*values: Var) -> tuple[Any, ...]:
    shape = np.broadcast_shapes(*(v.shape for v in values))
    return tuple(broadcast_to(v, shape) for v in values)


# --- by truth values --------------------------------------------------------------------------------------------------


@reads("logical_not", "bitwise_not")
def _not(x: Var) -> Any:
    return to_dtype(1.0 - truth(x), boolean)


@reads("logical_and", "bitwise_and")
def _and(x: Var, other: Var) -> Any:
    return to_dtype(truth(x) * truth(other), boolean)


@reads("logical_or", "bitwise_or")
def _or(x: Var, other: Var) -> Any:
    return to_dtype(truth(x) + truth(other), boolean)


def truth(x: Var) -> Any:
    """1 where it is true, 0 elsewhere."""
    return to_dtype(to_dtype(x, boolean), f32)


@reads("where")
def where(condition: Var, x: Any, other: Any) -> Any:
    """One of two numbers, whatever the other is; each gets the cotangents of its own cells."""
    chosen = promoted(x, other)
    like = next((v for v in chosen if isinstance(v, Var)), to_dtype(condition, f32))
    x, other, weight = _alike(*(like.owner.operand(v, like) for v in (*chosen, to_dtype(condition, like.dtype))))
    if not like.type.is_float:
        return x * weight + other * (1 - weight)
    return apply(GATE, NoAttributes(), weight, x) + apply(GATE, NoAttributes(), 1.0 - weight, other)


@reads("masked_fill")
def _masked_fill(x: Var, mask: Var, value: Any) -> Any:
    return where(mask, value, x)
