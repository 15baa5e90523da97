"""What pooling computes of the cells of its windows, ``[…, tap]``: the p-norm, the smooth maximum and its weights.

``taps`` says what each tap reads, as in ``gradspec.backends.tables``.
"""

from __future__ import annotations

from math import inf
from typing import Any

from gradspec.backends.tables import ABSENT
from gradspec.backends.xp.namespace import Array, Namespace


def norm(xp: Namespace, p: float, cells: Array) -> Array:
    """Of each window, scaled by a power of two so that no power of a cell overflows or vanishes."""
    sizes = xp.abs(cells)
    top = sizes.max(axis=-1)
    if p == inf:
        return top
    shift = xp.where(xp.isfinite(top), xp.frexp(top)[1], 0)
    total = (xp.ldexp(sizes, -shift[..., None]) ** p).sum(axis=-1)
    return xp.ldexp(total ** (1 / p), shift)


def _counted(attrs: Any, taps: Array) -> Array:
    """Which taps take part in the smooth maximum."""
    return taps != ABSENT if attrs.padding_mode == "zeros" else taps >= 0


def _powers(xp: Namespace, beta: Any, counted: Array, cells: Array) -> tuple[Array, Array]:
    """The pivot ``c`` of each window, and ``exp(β(xᵢ − c))``, 0 for taps that are not counted."""
    if beta > 0:
        pivot = xp.where(counted, cells, -inf).max(axis=-1, keepdims=True)
    else:
        pivot = xp.where(counted, cells, inf).min(axis=-1, keepdims=True)
    return pivot[..., 0], xp.where(counted, xp.exp(_exponents(xp, cells, pivot, beta)), 0)


def _exponents(xp: Namespace, cells: Array, pivot: Array, beta: Any) -> Array:
    """``β(x − c)``, also where both are the same infinity or their difference overflows."""
    gap = cells - pivot
    too_wide = xp.isinf(gap) & xp.isfinite(cells) & xp.isfinite(pivot)
    exponents = xp.where(too_wide, (2 * beta) * (cells / 2 - pivot / 2), beta * gap)
    return xp.where(cells == pivot, 0, exponents)


def smooth_max(xp: Namespace, attrs: Any, beta: Any, taps: Array, cells: Array) -> Array:
    """``c + log(Σ exp(β(xᵢ − c))) / β`` of each window; 0 without cells."""
    pivot, powers = _powers(xp, beta, _counted(attrs, taps), cells)
    return xp.where(_counted(attrs, taps).any(axis=-1), pivot + xp.log(powers.sum(axis=-1)) / beta, 0)


def smooth_weights(xp: Namespace, attrs: Any, beta: Any, taps: Array, cells: Array) -> Array:
    """The softmax weights of real cells; 0 for others."""
    _, powers = _powers(xp, beta, _counted(attrs, taps), cells)
    return xp.where(taps >= 0, powers / powers.sum(axis=-1, keepdims=True), 0)
