"""Bounds of the softmax and its logarithm, ``tᵢ = xᵢ − log Σ exp xⱼ`` along an axis.

``t`` increases with ``xᵢ`` and decreases with the others. With ``T`` the largest upper end, ``eⱼ = exp(xⱼ − T)`` does
not overflow, and ``tᵢ = xᵢ − T − log(eᵢ + Σ eⱼ)``, the sum over the others.

Lines: ``log Σ exp`` is convex, so it lies above its tangent at the centres, whose slopes are the weights ``p`` there,
and below ``T + log S + Σ eⱼ/S − 1`` for every ``S > 0`` (the tangent of the logarithm at ``S``), and each ``eⱼ`` below
its chord. The softmax, ``exp t``, lies above ``k·t + k − k·log k`` for every ``k > 0`` and below its chord, and both
slopes are positive, so that lines of ``t`` become lines of it.

A difference is rounded before it is exponentiated, which costs ``u`` times the exponent besides; exponents that matter
are no larger than VANISHED. In a mean by the weights, exponents are at most ``log n``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import log as log_of

from gradspec.graph.ir import Var
from gradspec.graph.types import f32, f64
from gradspec.ops.box import BoundedNode, BoundingLine, Box, Lines
from gradspec.ops.gather import moved
from gradspec.ops.pointwise import abs, exp, gate, log, maximum, minimum
from gradspec.ops.pool import global_max_pool
from gradspec.ops.select import greater, less, where
from gradspec.ops.shape import broadcast_to
from gradspec.ops.shape import sum as sum_over

VANISHED = {f32: 104, f64: 746}
"""Below minus this, exponentials round to 0."""


@dataclass(frozen=True)
class _Exponentials:
    """The boxes of the operand as exponentials."""

    node: BoundedNode
    box: Box

    @property
    def axis(self) -> int:
        return int(self.node.attrs.axis)

    @property
    def roundings(self) -> int:
        """Those of a weight: its exponential, the sum and the quotient, and as many again for the bounds' own."""
        return int(VANISHED[self.node.arithmetic.dtype] + self.count + 24)

    @property
    def count(self) -> int:
        return int(self.box.lower.shape[self.axis])

    @property
    def kernel(self) -> float:
        """The roundings of a kernel's weight, and of exponents in the mean. One that goes through the row in blocks may
        multiply what it has by ``exp(c − c′)`` behind each; the exponents of all these add up to ``x − c``."""
        a = self.node.arithmetic
        scaled = -(-self.count // a.online) if a.online else 0
        return float(self.count + 24 + scaled * (a.function + 2)) + self.exponent * log_of(self.count or 1)

    @property
    def exponent(self) -> float:
        """What a unit of the exponent costs, in units: its rounding, and 1.173 ulp in CUDA's fast mode."""
        return 3.35 if self.node.arithmetic.fast else 1.0

    @property
    def error(self) -> float:
        return float(self.node.rounding(self.roundings))

    def total(self, x: Var) -> Var:
        return sum_over(x, self.axis, keepdims=True)

    def largest(self, x: Var) -> Var:
        if self.count == 0:
            return self.total(x)
        return moved(global_max_pool(moved(x, self.axis, -1), 1), -1, self.axis)

    def spread(self, x: Var) -> Var:
        return broadcast_to(x, self.box.lower.shape)

    def up(self, x: Var) -> Var:
        return x * (1.0 + self.error) + self.node.tiny

    def down(self, x: Var) -> Var:
        return maximum(x * (1.0 - self.error) - self.node.tiny, 0.0)

    def exponentials(self) -> tuple[Var, tuple[Var, Var]]:
        top = self.spread(self.largest(self.box.upper))
        return top, (exp(self.box.lower - top), exp(self.box.upper - top))

    def others(self, e: Var) -> tuple[Var, Var]:
        """``Σ eⱼ`` over all but each ``i``, from below and from above: the difference loses no more than of the sum."""
        total = self.spread(self.total(e))
        lost = total * self.error + self.node.tiny
        return maximum(total - e - lost, 0.0), maximum(total - e, 0.0) + lost


def softmax_box(node: BoundedNode, box: Box) -> Box:
    return _softmax(node, box)[0]


def log_softmax_box(node: BoundedNode, box: Box) -> Box:
    return _log_softmax(node, box)[0]


def _softmax(node: BoundedNode, box: Box) -> tuple[Box, Var]:
    """The box, and how far a result may be off. A kernel rounds the exponent of each weight, and in the sum those of
    others: at most ``log n`` in their mean. It may store the exponentials before they are added up, and their sum
    before it divides."""
    row = _Exponentials(node, box)
    top, (low, high) = row.exponentials()
    least, most = row.down(low), row.up(high)
    ends = [least / (least + row.others(high)[1]), most / (most + row.others(low)[0])]
    exponent, others = minimum(top - box.lower, float(VANISHED[f64])), row.kernel
    kept = 3 + row.count * 2.0**-14  # below 2⁻¹⁴, float16 stores exponentials to 2⁻²⁵, and not to 2⁻¹¹ of themselves
    blurs = [node.blur(end * (exponent * (row.exponent / others) + 1.0), others) for end in ends]
    margins = [blur + node.storage_error(end, kept) for blur, end in zip(blurs, ends, strict=True)]
    return node.between(ends[0] - margins[0], ends[1] + margins[1]), margins[1]


def _log_softmax(node: BoundedNode, box: Box) -> tuple[Box, Var]:
    """In ``x − c − log Σ`` the sum's relative error is an absolute one; all else is relative to ``|t| + log n``.

    Both ``x − c`` and ``log Σ`` may be stored before their difference is, than which neither is larger. A kernel that
    regroups, ``x − (c + log Σ)``, rounds numbers as large as ``|x| + |c|``.
    """
    row = _Exponentials(node, box)
    low, high, top = _logarithms(row)
    a, stored, total = node.arithmetic, node.stored.dtype, row.kernel + 8 * log_of(row.count or 1)
    error = node.above(a.own(total + 4) + a.kernel(total, stored))
    margins = [node.blur(end, 24) + node.storage_error(end, 1) + error for end in (low, high)]
    if a.regroups:
        size = abs(top) + maximum(abs(box.lower), abs(box.upper))
        margins = [margin + size * node.above(a.kernel(4, stored) + a.storage(stored)) for margin in margins]
    return node.between(low - margins[0], high + margins[1]), maximum(*margins)


def _logarithms(row: _Exponentials) -> tuple[Var, Var, Var]:
    """Real bounds of ``t``, and ``T``."""
    top, (low, high) = row.exponentials()
    ends = []
    for x, total, sign in (
        (row.box.lower, row.up(low) + row.others(high)[1], -1.0),
        (row.box.upper, row.down(high) + row.others(low)[0], 1.0),
    ):
        part = log(total)
        room = (abs(x - top) + abs(part) + 1.0) * row.node.rounding(16)
        ends.append(x - top - part + room * sign)
    return ends[0], minimum(ends[1], 0.0), top


# --- lines ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Centred:
    """The linear map ``yᵢ = sᵢ·(xᵢ − Σ wⱼ·xⱼ)`` along an axis."""

    slope: Var
    weights: Var
    axis: int

    @property
    def roundings(self) -> int:
        return self.weights.shape[self.axis] + 4

    def _mean(self, x: Var) -> Var:
        return broadcast_to(sum_over(x, self.axis, keepdims=True), x.shape)

    def push(self, x: Var) -> Var:
        return self.slope * (x - self._mean(self.weights * x))

    def pull(self, g: Var) -> Var:
        through = self.slope * g
        return through - self.weights * self._mean(through)

    def absolute(self, x: Var) -> Var:
        return gate(abs(self.slope), x + self._mean(gate(abs(self.weights), x)))


def log_softmax_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    row = _Exponentials(node, boxes[0])
    (weights, low), (others, high) = _below(row), _above(row)
    (found, room), one = _log_softmax(node, boxes[0]), node.number(1.0, low)
    return (
        _line(row, one, weights, low - room, found.lower, 1.0),
        _line(row, one, others, high + room, found.upper, -1.0),
    )


def softmax_lines(node: BoundedNode, boxes: Sequence[Box], share: Var | None) -> Lines:
    row = _Exponentials(node, boxes[0])
    (weights, low), (others, high) = _below(row), _above(row)
    least, most, _ = _logarithms(row)
    k = maximum(exp(least * 0.5 + most * 0.5), node.tiny)
    part = log(k)
    low = k * low + (k - k * part)
    low = low - (abs(k * low) + k + abs(k * part)) * node.rounding(32)
    slope = (exp(most) - exp(least)) / maximum(most - least, node.tiny)
    slope = maximum(where(greater(most - least, 0.001), slope, exp(most)), 0.0)
    values = [(row.up(exp(end)), slope * end) for end in (least, most)]
    room = (abs(values[0][1]) + abs(values[1][1]) + 1.0) * node.rounding(32)
    high = slope * high + maximum(*(a - b for a, b in values)) + room + abs(slope * high) * node.rounding(32)
    found, margin = _softmax(node, boxes[0])
    return (
        _line(row, k, weights, low - margin, found.lower, 1.0),
        _line(row, slope, others, high + margin, found.upper, -1.0),
    )


def _line(row: _Exponentials, slope: Var, weights: Var, intercept: Var, end: Var, sign: float) -> BoundingLine:
    """The line, or the end of the box where that is better at the centres."""
    slope = broadcast_to(slope, end.shape)
    value = _Centred(slope, weights, row.axis).push(row.box.centre) + intercept
    better = less((end - value) * sign, 0.0)
    chosen = _Centred(where(better, slope, 0.0), weights, row.axis)
    return row.node.line(where(better, intercept, end), (0, chosen))


def _above(row: _Exponentials) -> tuple[Var, Var]:
    """``t ≤ x − Σ pⱼ·xⱼ + c``: the tangent of ``log Σ exp`` at the centres, its weights known but for an error."""
    centre, radius = row.box.ball
    shifted = centre - row.spread(row.largest(centre))
    powers = exp(shifted)
    total = row.spread(row.total(powers))
    weights = powers / total
    t = shifted - log(total)
    size = row.total(weights * (abs(t) + radius)) + row.largest(abs(centre)) + (2.0 + log_of(max(row.count, 1)))
    return weights, row.spread(row.total(weights * t) + size * (4.0 * row.error))


def _below(row: _Exponentials) -> tuple[Var, Var]:
    """``t ≥ x − Σ qⱼ·xⱼ + c``, ``c = −T − log S + 1 − Σ max (eⱼ/S − qⱼ·xⱼ)`` over the ends."""
    top, (low, high) = row.exponentials()
    lower, upper = row.box.ends
    total = maximum(row.spread(row.total(low * 0.5 + high * 0.5)), row.node.tiny)
    wide = greater(upper - lower, 0.001)
    slope = where(wide, (high - low) / where(wide, upper - lower, 1.0), exp(row.box.centre - top)) / total
    values = [(row.up(e) / total, slope * (end - top)) for e, end in ((low, lower), (high, upper))]
    most = maximum(*(a - b for a, b in values))
    parts = row.total(most), top * (1.0 - row.spread(row.total(slope))), log(total)
    size = row.total(values[0][0] + values[1][0] + abs(values[0][1]) + abs(values[1][1]))
    size = size + abs(top) * (1.0 + row.spread(row.total(slope))) + abs(parts[2]) + 2.0
    return slope, 1.0 - (parts[0] + parts[1] + parts[2]) - size * (2.0 * row.error)
