"""Boxes of and lines along functions of one number.

Every slope is sound once its intercept is: ``f(z) ≤ s·z + c`` over a box if ``c ≥ f(z) − s·z`` at points ``zᵢ`` that
cover it, ends included, and what a function may do between two points is added. That is nothing if it is linear or
convex there, ``K·h²/8`` if ``|f″| ≤ K`` and they lie ``h`` apart (the error of the chord), and ``2d`` beyond ``±t``,
where it stays within ``d`` of a line. What rounding adds, ``ε·|f|``, lies below its chords too, but for ``ε·K·h²/8``.

So slopes need not be exact: of some secants the one is taken whose line is best in the middle of the box, and if
the box itself is better there, its end. Below, the function is turned upside down.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradspec.graph.ir import Var
from gradspec.ops.box import BoundedNode, Box, Curve, Lines
from gradspec.ops.layout import concat, getitem
from gradspec.ops.pointwise import abs, maximum, minimum
from gradspec.ops.pool import adaptive_max_pool, global_max_pool
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import broadcast_to, reshape
from gradspec.ops.unpool import max_gather

POINTS = 17
"""Points of a smooth function, an odd number; slopes are tried at every other one."""

BETWEEN = 0.1275
"""An eighth, and 2 % more for the rounding of results between points and of this product."""

VANISHING = 2.0**-100
"""What an intermediate result may be when it overflows or is flushed to zero, as in ``x/(1 + exp(−x))``, times 2²⁴."""


def curve_box(node: BoundedNode, curve: Curve, box: Box) -> Box:
    """The least and the largest value: at the ends, where the function turns, or near its value at the centre."""
    if curve.steepest is not None:
        value, reach = node.apply(box.centre), box.radius * node.above(curve.steepest)
        low, high = maximum(value - reach, -1.0), minimum(value + reach, 1.0)
    else:
        turns = [_within(node.number(turn, box.lower), box) for turn in curve.turns(node.attrs)]
        low, high = node.hull([node.apply(z) for z in (*box.ends, *turns)]).ends
    return node.between(low - _margin(node, curve, box, low), high + _margin(node, curve, box, high))


def _margin(node: BoundedNode, curve: Curve, box: Box, f: Var) -> Var:
    """How far results may be from computed values ``f``, here and in kernels: of boxes, or of points on a last axis."""
    stored = node.stored
    roundings = curve.roundings(node.attrs, stored.dtype) if stored.is_float else 0
    if not roundings:
        return node.number(0.0 if curve.off is None else curve.off(node), f)
    size = abs(f) + VANISHING
    if curve.mass is not None:
        mass = curve.mass(node, box)
        size = size + (mass if isinstance(mass, float) or mass.ndim == f.ndim else _column(mass))
    margin = node.blur(size, roundings)
    return margin + curve.fast(node, box, size) if node.arithmetic.fast and curve.fast is not None else margin


def _within(z: Var, box: Box) -> Var:
    return maximum(minimum(z, box.upper), box.lower)


# --- lines ------------------------------------------------------------------------------------------------------------


def curve_lines(node: BoundedNode, curve: Curve, box: Box, share: Var | None) -> Lines:
    assert node.node.op.enclosure is not None
    bent, (least, most) = curve.bent(node.attrs), node.node.op.enclosure(node, box).ends
    if curve.kinks is None:
        z, between, share = *_points(node, curve, box), None
    else:
        z, between = _kinks(node, curve, box), None
    f = node.apply(z)
    margin = _margin(node, curve, box, f)
    over, under = (share, None) if bent < 0 else (None, share)
    above = _above(node, box, z, f + margin, None if bent > 0 else between, most, over)
    below = _above(node, box, z, margin - f, None if bent < 0 else between, -least, under, -1.0)
    return (
        node.line(-below[1], (0, node.slope(-below[0]))),
        node.line(above[1], (0, node.slope(above[0]))),
    )


def _column(x: Var) -> Var:
    return reshape(x, (*x.shape, 1))


def _kinks(node: BoundedNode, curve: Curve, box: Box) -> Var:
    """The ends and the kinks between them; nothing happens elsewhere."""
    assert curve.kinks is not None
    kinks = [_within(node.number(kink, box.lower), box) for kink in curve.kinks(node.attrs)]
    return concat([_column(v) for v in (box.lower, *kinks, box.upper)], -1)


def _points(node: BoundedNode, curve: Curve, box: Box) -> tuple[Var, Var]:
    """The ends and points in between, and by how much the function may leave its chords."""
    lower, upper = box.ends
    tail = curve.tail(node.attrs)
    first, last = lower, upper
    if tail is not None:
        first, last = (minimum(maximum(end, -tail[0]), tail[0]) for end in box.ends)
    steps = np.arange(POINTS) / (POINTS - 1)
    shape = (*lower.shape, POINTS)
    weights = [broadcast_to(lower.owner.share(w.astype(lower.dtype.numpy), "steps"), shape) for w in (1 - steps, steps)]
    ends = [broadcast_to(_column(end), shape) for end in (first, last)]
    inner = maximum(minimum(ends[0] * weights[0] + ends[1] * weights[1], ends[1]), ends[0])
    size = maximum(abs(first), abs(last))
    gap = (last - first) * (1.01 / (POINTS - 1)) + size * node.rounding(8)
    assert curve.bend is not None
    between = curve.bend(node, box) * (gap * gap) * node.above(BETWEEN)
    if tail is not None:
        outside = maximum(less(lower, first), greater(upper, last))
        between = maximum(between, where(outside, node.number(node.above(2.05 * tail[1]), gap), 0.0))
    return concat([_column(lower), inner, _column(upper)], -1), between


def _above(
    node: BoundedNode, box: Box, z: Var, f: Var, between: Var | None, end: Var, share: Var | None, sign: float = 1.0
) -> tuple[Var, Var]:
    """The slope and the intercept of a line above the points ``(z, f)`` and what is between them."""
    few = z.shape[-1] <= POINTS
    coarse_z, coarse_f = (z, f) if few else (getitem(v, (..., slice(None, None, 2))) for v in (z, f))
    slopes = concat([*_secants(node, coarse_z, coarse_f), *([] if few else [_middle(node, z, f)])], -1)
    middle = box.lower * 0.5 + box.upper * 0.5
    if share is None:
        slope = _best(slopes, coarse_z, coarse_f, middle)
    else:
        least, most = -_largest(-slopes), _largest(slopes)
        chosen = share if sign > 0 else 1.0 - share
        slope = least + (most - least) * chosen
    intercept = _intercept(node, slope, z, f, between)
    if few:
        return slope, intercept
    better = less(slope * middle + intercept, end)
    return where(better, slope, 0.0), where(better, intercept, end)


def _secants(node: BoundedNode, z: Var, f: Var) -> Sequence[Var]:
    """The slopes from the first point to the others, and from the others to the last."""
    count = z.shape[-1]
    found = []
    for part, at in ((slice(1, None), 0), (slice(None, -1), count - 1)):
        dz, df = (getitem(v, (..., part)) - getitem(v, (..., slice(at, at + 1))) for v in (z, f))
        apart = greater(abs(dz), node.tiny)
        secants = where(apart, df / where(apart, dz, 1.0), 0.0)
        chord = getitem(secants, (..., slice(-1, None) if at == 0 else slice(0, 1)))
        found.append(where(apart, secants, broadcast_to(chord, secants.shape)))
    return found


def _middle(node: BoundedNode, z: Var, f: Var) -> Var:
    """The slope in the middle."""
    at = z.shape[-1] // 2
    dz, df = (getitem(v, (..., slice(at + 1, at + 2))) - getitem(v, (..., slice(at - 1, at))) for v in (z, f))
    apart = greater(dz, node.tiny)
    return where(apart, df / where(apart, dz, 1.0), 0.0)


def _best(slopes: Var, z: Var, f: Var, middle: Var) -> Var:
    """The slope of the line above the points that is lowest in the middle."""
    shape = (*slopes.shape, z.shape[-1])

    def across(v: Var) -> Var:
        return broadcast_to(reshape(v, (*v.shape[:-1], 1, v.shape[-1])), shape)

    reached = across(f) - broadcast_to(_column(slopes), shape) * across(z - broadcast_to(_column(middle), z.shape))
    _, place = adaptive_max_pool(-_largest(reached), (1,), return_indices=True)
    return reshape(max_gather(slopes, place, 1), middle.shape)


def _largest(x: Var) -> Var:
    return global_max_pool(x, 1, keepdims=False)


def _intercept(node: BoundedNode, slope: Var, z: Var, f: Var, between: Var | None) -> Var:
    parts = broadcast_to(_column(slope), z.shape) * z
    room = (abs(f) + abs(parts)) * node.rounding(6)
    highest = _largest(f - parts + room) + node.tiny
    whole = highest if between is None else highest + between
    return whole + abs(whole) * node.rounding(4)
