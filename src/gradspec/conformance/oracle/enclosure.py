"""What every evaluation of a graph ends in: the certified tolerance of section 8, carried through a graph.

An evaluation gives every node a result that the theorem allows for its operator, on the results that its operands were
given: in any order, fused or not, stored between operators or kept in a register. Each variable is enclosed cell by
cell, ``centre ± radius``, from the operands' enclosures:

- a sum of products moves by ``Σ |∂y/∂xᵢ|·rᵢ``, and is rounded by ``Γ_N·S``: N its non-zero leaves, S their sum of
  magnitudes, both computed by the operator itself on magnitudes and on ones. Sums that feed a sum are one sum;
- where nothing rounds, nothing is added: if all leaves of a cell are multiples of 2^e and ``S ≤ 2^(p+e)``;
- anything else has an ``enclosure`` rule, that of the bounds of networks.

All of it is computed in float64, and what that may lose is part of the radius.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.oracle.meaning import Bools, Floats, round_array
from gradspec.domains.formats import F32, F64, Format, format_named
from gradspec.graph.arrays import as_array
from gradspec.graph.builder import Builder, apply
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Sums, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType, f64
from gradspec.ops.box import BoundArithmetic, BoundedNode, Box
from gradspec.runtime.run import compile
from gradspec.spec.errors import ShapeError
from gradspec.transforms.boxes import enclosed

OWN_UNIT, OWN_TINIEST = 2.0**-53, 5e-324
COEFFICIENT = 2
"""Roundings: of a coefficient, and of a product with it."""
MOST_RULES = 1024
_rules = LRUCache[Callable[..., Any]](MOST_RULES)


@dataclass(frozen=True)
class Enclosed:
    """A variable's numbers: every evaluation gives each cell one within ``radius`` of ``centre``.

    A centre of radius 0 that is NaN or infinite is what every evaluation gives; where the radius is infinite, nothing
    is known. ``leaves`` and ``mass`` are those of the sum that it is, if it is one.
    """

    centre: NDArray[Any]
    radius: Floats
    leaves: Floats | None = None
    mass: Floats | None = None

    @staticmethod
    def point(value: NDArray[Any]) -> Enclosed:
        return Enclosed(value, np.zeros(value.shape))

    @cached_property
    def is_known(self) -> Bools:
        return np.isfinite(self.radius)

    @cached_property
    def spread(self) -> Floats:
        """The radius where it is known, and 0 elsewhere."""
        return np.where(self.is_known, self.radius, 0.0)

    @cached_property
    def finite(self) -> Floats:
        """The centre where it is a number, and 0 elsewhere."""
        return np.where(np.isfinite(self.centre), self.centre, 0.0)

    @cached_property
    def magnitude(self) -> Floats:
        return np.abs(self.finite) + self.spread

    @cached_property
    def inverse_grain(self) -> Floats:
        """``2^−e`` for the largest e of which the centre is a multiple of 2^e; 0 for 0, and for what is not certain."""
        return np.where(self.radius == 0, inverse_grain(self.finite), 0.0)

    @property
    def varies(self) -> bool:
        return bool((self.radius != 0).any())

    @cached_property
    def ends(self) -> tuple[Floats, Floats]:
        """Outward: the sums of centre and radius are rounded."""
        reach = self.radius * (1 + 4 * OWN_UNIT)
        with np.errstate(invalid="ignore"):
            reach += np.where(self.radius > 0, np.abs(self.centre) * (2 * OWN_UNIT), 0.0)
            return np.where(reach > 0, self.centre - reach, self.centre), np.where(
                reach > 0, self.centre + reach, self.centre
            )


def inverse_grain(x: Floats) -> Floats:
    """``2^−e`` for the largest e of which a number is a multiple of 2^e; 0 for 0.

    >>> inverse_grain(np.array([0.75, 6.0, 0.0])).tolist()
    [4.0, 0.5, 0.0]
    """
    bits = np.asarray(x, np.float64, order="C").view(np.int64)
    exponent, fraction = (bits >> 52) & 0x7FF, bits & 0xFFFFFFFFFFFFF
    significand = np.where(exponent > 0, fraction | 1 << 52, fraction)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = np.ldexp(1 / (significand & -significand), 1075 - np.maximum(exponent, 1))
    return np.where(x == 0, 0.0, inverse)


# --- the arithmetic of one node --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NodeArithmetic:
    """How results of a node are added up and stored."""

    accumulate: Format
    storage: Format
    declared: Arithmetic | None = None

    @staticmethod
    def of(stored: TensorType, declared: Arithmetic | None) -> NodeArithmetic:
        storage = format_named(stored.dtype.name)
        wide = declared.accumulate if declared is not None else max(storage, F32, key=lambda f: f.precision)
        return NodeArithmetic(wide, storage, declared)

    @property
    def unit(self) -> float:
        return float(self.accumulate.unit) if self.declared is None else float(self.declared.u)

    def growth(self, n: Floats) -> Floats:
        """``Γ_n``, of the kernel's roundings and as many of ours, from above: ``Γ_n/n`` grows with n."""
        most = max(1.0, float(np.max(n, initial=1.0)))
        kernel, own = (float(np.expm1(most * np.log1p(u))) / most for u in (self.unit, OWN_UNIT))
        # The mass that this is multiplied by is rounded too, as often.
        return (n * (kernel + own) + 2 * OWN_UNIT) * (1 + 2 * own * most + 2.0**-40)

    @property
    def rounded_inputs(self) -> float:
        v = 0.0 if self.declared is None else float(self.declared.input_error)
        return (1 + v) * (1 + v) - 1

    @property
    def flushes(self) -> bool:
        return self.declared is not None and self.declared.flush_to_zero

    @property
    def tiniest(self) -> float:
        """What one rounding may lose to underflow: of products, and, where small results are flushed, of sums."""
        return float(self.accumulate.normal if self.flushes else self.accumulate.tiniest)

    @property
    def sums_are_exact(self) -> bool:
        return self.declared is None or self.declared.exact_sums_are_exact

    def stored(self, centre: Floats, error: Floats) -> Floats:
        """The error after storing; none is added to what is a number of the format."""
        if self.storage.precision >= self.accumulate.precision and not self.flushes:
            return error
        rounding = np.maximum(float(self.storage.unit) * (np.abs(centre) + error), float(self.storage.tiniest) / 2)
        once = np.abs(round_array(centre, self.storage) - centre)
        return np.where(error == 0, once, (error + rounding) * (1 + 8 * OWN_UNIT))


# --- sums ------------------------------------------------------------------------------------------------------------


def _attrs(node: Node) -> Any:
    return BoundedNode(node, BoundArithmetic(f64, any=True)).attrs


def _absolute(rule: Sums, node: Node, operands: Sequence[Any], attrs: Any) -> Floats:
    """The operator on magnitudes, with its own coefficients as magnitudes."""
    arrays = map(np.asarray, operands)  # what NumPy made a scalar of would pass for a number without a shape
    found = apply(node.op, attrs, *arrays) if rule.absolute is None else rule.absolute(attrs, *arrays)
    return np.asarray(found, np.float64)


class _SumNode:
    """A node that adds up products of its operands."""

    def __init__(self, node: Node, rule: Sums, operands: Sequence[Enclosed], how: NodeArithmetic) -> None:
        self.node, self.rule, self.operands, self.how, self.attrs = node, rule, operands, how, _attrs(node)
        self.types = [v.type for v in node.inputs]
        self.terms = rule.terms(node.attrs, *self.types)
        self.grain = float(rule.grain(node.attrs, *self.types)) if self.terms else 1.0

    def _each(self, part: Callable[[Enclosed], NDArray[Any]]) -> list[Any]:
        """A part of every float operand that is not held; the others as they are."""
        pairs = enumerate(zip(self.operands, self.types, strict=True))
        held = {*self.rule.fixed} - {*self.rule.factors}
        return [np.asarray(part(e) if t.is_float and i not in held else e.centre) for i, (e, t) in pairs]

    def _of(self, part: Callable[[Enclosed], NDArray[Any]], attrs: Any = None) -> Floats:
        return _absolute(self.rule, self.node, self._each(part), self.attrs if attrs is None else attrs)

    def enclosed(self) -> Enclosed:
        with np.errstate(all="ignore"):
            centre = np.asarray(apply(self.node.op, self.attrs, *(e.centre for e in self.operands)), np.float64)
        if not self.terms:
            return self._moved_numbers(centre)
        reach, mass, leaves = self._reach(), self._mass(), self._leaves()
        error = self._error(reach, mass, leaves)
        finite = np.where(np.isfinite(centre), centre, 0.0)
        radius = self.how.stored(finite, np.where(error + reach == 0, 0.0, (error + reach) * (1 + 8 * OWN_UNIT)))
        radius = np.where(np.isfinite(centre), radius, 0.0)
        return Enclosed(centre, np.where(self._is_unknown(), np.inf, radius), leaves, mass)

    def _moved_numbers(self, centre: Floats) -> Enclosed:
        """Nothing is added up; what is added later may join the sums among these."""
        radius = self._moved(lambda e: e.spread)
        radius = np.where(self._is_unknown(), np.inf, radius)
        if all(e.mass is None for e in self.operands):
            return Enclosed(centre, radius)
        return Enclosed(centre, radius, self._leaves(), self._mass())

    @cached_property
    def _is_joined(self) -> bool:
        """Whether sums among the operands and this one are one sum."""
        return not self.rule.factors

    def _mass(self) -> Floats:
        joined = self._is_joined
        return self._of(lambda e: e.magnitude if e.mass is None or not joined else np.maximum(e.mass, e.magnitude))

    def _leaves(self) -> Floats:
        """How many non-zero leaves a cell has, or, where coefficients are not 1, how many roundings one may meet."""
        joined = self._is_joined

        def count(e: Enclosed) -> Floats:
            here = (e.magnitude > 0).astype(np.float64)
            return here if e.leaves is None or not joined else np.maximum(e.leaves, here)

        if self.grain == 1.0:
            return self._of(count, self.rule.linear(self.attrs)) + self._own_terms()
        if self.rule.plain is not None:
            found = self._of(count, self.rule.plain(self.attrs))
            return np.where(found > 0, found + COEFFICIENT, 0.0)
        most = max((float(np.max(count(e), initial=1.0)) for e in self.operands), default=1.0)
        return np.full(self.node.outputs[0].shape, self.terms * most)

    def _own_terms(self) -> float:
        return 0.0 if self.rule.linear(self.attrs) == self.attrs else 1.0

    def _error(self, reach: Floats, mass: Floats, leaves: Floats) -> Floats:
        how, is_product = self.how, bool(self.rule.factors) or self.grain != 1.0
        roundings = np.maximum(leaves - (0 if is_product else 1), self._conversions())
        relative = how.growth(roundings)
        if is_product and how.rounded_inputs:
            relative = relative + how.rounded_inputs * (1 + relative)
        error = mass * relative
        if is_product or how.flushes:
            error = error + leaves * (2 * how.tiniest + OWN_TINIEST)
        nothing = mass == 0
        if not reach.all():
            nothing |= self._rounds_nothing(reach, mass)
        return np.where(nothing, 0.0, error)

    def _conversions(self) -> float:
        """1 if an operand has more digits than sums are added up in."""
        digits = max((format_named(t.dtype.name).precision for t in self.types if t.is_float), default=0)
        return float(digits > self.how.accumulate.precision)

    def _rounds_nothing(self, reach: Floats, mass: Floats) -> Bools:
        """Whether leaves are multiples of 2^e, at least η, and S ≤ 2^(p+e): of each cell, or of all of them.

        ``Σ 2^−e`` over the leaves is no less than the largest ``2^−e``, and the operator itself adds it up.
        """
        if not self.grain or not self.how.sums_are_exact:
            return np.zeros(mass.shape, np.bool_)
        scale = 1.0 if self.grain == 1.0 else self.grain**-2
        cells = self._of(lambda e: e.inverse_grain, self.rule.linear(self.attrs)) * scale
        whole = self._largest_inverse_grain() / self.grain
        form, limit = self.how.accumulate, 2.0**self.how.accumulate.precision * (1 - 2.0**-40)
        finest, largest = 1 / float(form.tiniest), float(form.largest)
        inverse = np.minimum(cells, whole)
        found: Bools = (reach == 0) & (mass * inverse <= limit) & (inverse <= finest) & (mass <= largest)
        return found

    def _largest_inverse_grain(self) -> float:
        """Of a product of one cell of each factor, and of what is added as it is."""
        found = [float(np.max(e.inverse_grain, initial=0.0)) for e in self.operands]
        if not self.rule.factors:
            return max(found)
        product = float(np.prod([found[i] for i in self.rule.factors]))
        return max([product, *(f for i, f in enumerate(found) if i not in (*self.rule.factors, *self.rule.fixed))])

    def _reach(self) -> Floats:
        most = self.terms + 8
        return self._moved(lambda e: e.spread) * (1 + 2 * float(np.expm1(most * np.log1p(OWN_UNIT))))

    def _is_unknown(self) -> Bools:
        """What reads an unknown cell, which may be infinite: not even a factor of 0 makes that 0."""
        found: Bools = self._moved(lambda e: (~e.is_known).astype(np.float64), 1.0) > 0
        return found

    def _moved(self, spread: Callable[[Enclosed], Floats], more: float = 0.0) -> Floats:
        """How far the sum moves with its operands, one factor after the other; other factors are ``more`` than they
        are."""
        factors, bias = self.rule.factors, self.rule.bias
        moves = [bool(spread(e).any()) for e in self.operands]
        turns = [i for i in factors if moves[i]] or [-1] * any(moves)
        total = np.zeros(self.node.outputs[0].shape)
        for turn in turns:
            parts = self._each(spread)
            for j in factors:
                if j != turn:
                    other = self.operands[j]
                    parts[j] = (np.abs(other.finite) if j < turn else other.magnitude) + more
            if bias is not None and len(parts) > bias and turn != turns[0]:
                parts[bias] = np.zeros_like(parts[bias])
            total = total + _absolute(self.rule, self.node, parts, self.rule.linear(self.attrs))
        return total


# --- everything else -------------------------------------------------------------------------------------------------


def _by_rule(node: Node, operands: Sequence[Enclosed], declared: Arithmetic | None) -> list[Enclosed]:
    """The operator's own rule of enclosure, on ends; what is not finite at the centres is so in every evaluation."""
    varies = tuple(e.varies for e in operands)
    arithmetic = BoundArithmetic(f64, any=True, unit=None if declared is None else float(declared.u))
    key = node.op, node.attrs, tuple(v.type for v in node.inputs), varies, arithmetic
    run = _rules.get_or_make(key, lambda: _compiled_rule(node, varies, arithmetic))
    given = [a for e, moves in zip(operands, varies, strict=True) for a in (e.ends if moves else (e.centre,))]
    with np.errstate(all="ignore"):
        flat = run(*given)
        centres = apply(node.op, _attrs(node), *(e.centre for e in operands))
    flat = flat if isinstance(flat, tuple) else (flat,)
    centres = centres if isinstance(centres, tuple) else (centres,)
    pairs = zip(flat[::2], flat[1::2], centres, node.outputs, strict=True)
    return [_between(low, high, np.asarray(c), v.type) for low, high, c, v in pairs]


def _compiled_rule(node: Node, varies: Sequence[bool], arithmetic: BoundArithmetic) -> Callable[..., Any]:
    builder, boxes = Builder(), []
    for i, (var, moves) in enumerate(zip(node.inputs, varies, strict=True)):
        own = TensorType(f64, var.shape) if var.type.is_float else var.type
        if moves:
            ends = builder.input(own, f"x{i}_lower"), builder.input(own, f"x{i}_upper")
            boxes.append(Box(arithmetic, ends=lambda ends=ends: ends))  # type: ignore[misc]
        else:
            boxes.append(Box(arithmetic, point=builder.input(own, f"x{i}")))
    results = enclosed(node, boxes, arithmetic)
    return compile(builder.build([end for box in results for end in box.ends], allow_unused=True))


def _between(low: NDArray[Any], high: NDArray[Any], centre: NDArray[Any], type: TensorType) -> Enclosed:
    """Ends of NaN say that nothing is known."""
    if not type.is_float:
        return Enclosed(low, np.where(low == high, 0.0, np.inf))
    with np.errstate(all="ignore"):
        middle = low / 2 + high / 2
        radius = np.where(low == high, 0.0, np.maximum(high - middle, middle - low) * (1 + 4 * OWN_UNIT))
    is_special = ~np.isfinite(centre)
    radius = np.where(np.isnan(radius), np.inf, radius)
    return Enclosed(
        np.where(is_special, centre, np.where(np.isfinite(radius), middle, 0.0)), np.where(is_special, 0.0, radius)
    )


# --- graphs ----------------------------------------------------------------------------------------------------------


def enclosure(graph: Graph, *arrays: Any, arithmetic: Arithmetic | None = None) -> Any:
    """``(lower, upper)`` of every output, between which every evaluation of the graph ends: what lies outside is wrong.

    >>> import gradspec as gs
    >>> g = gs.trace(lambda x: gs.relu(x) + 1, gs.f32[2])
    >>> low, high = enclosure(g, np.float32([3, -5]))
    >>> low.tolist(), high.tolist()
    ([4.0, 1.0], [4.0, 1.0])
    """
    found = _inputs(graph, arrays)
    for node in graph.nodes:
        operands = [found[v] for v in node.inputs]
        for var, result in zip(node.outputs, _node(node, operands, arithmetic), strict=True):
            found[var] = _stored(result, var.type)
    ends = [found[v].ends for v in graph.outputs]
    if len(ends) == 1:
        return ends[0]
    return tuple(low for low, _ in ends), tuple(high for _, high in ends)


def _inputs(graph: Graph, arrays: Sequence[Any]) -> dict[Var, Enclosed]:
    if len(arrays) != len(graph.inputs):
        raise TypeError(f"the graph takes {len(graph.inputs)} arrays, and {len(arrays)} were given; give one for each")
    found = {}
    for var, value in (*zip(graph.inputs, arrays, strict=True), *graph.constants.items()):
        array = as_array(value)
        if array.shape != var.shape:
            raise ShapeError(f"{var!r} was given an array of shape {array.shape}; give one of shape {var.shape}")
        found[var] = Enclosed.point(array.astype(np.float64) if var.type.is_float else array)
    return found


def _node(node: Node, operands: Sequence[Enclosed], declared: Arithmetic | None) -> Sequence[Enclosed]:
    rule, floats = node.op.sums, [v.type.is_float for v in node.inputs]
    held = rule is not None and not any(operands[i].varies for i in rule.fixed if i < len(operands))
    if rule is not None and held and node.outputs[0].type.is_float and any(floats):
        return [_SumNode(node, rule, operands, NodeArithmetic.of(node.outputs[0].type, declared)).enclosed()]
    return _by_rule(node, operands, declared)


def _stored(found: Enclosed, type: TensorType) -> Enclosed:
    """What may be too large for its format is not known."""
    if not type.is_float:
        return found
    edge = float(format_named(type.dtype.name).overflow) if type.dtype is not f64 else float(F64.largest)
    with np.errstate(invalid="ignore"):
        is_large = np.isfinite(found.centre) & (np.abs(found.centre) + found.radius >= edge)
    return Enclosed(found.centre, np.where(is_large, np.inf, found.radius), found.leaves, found.mass)
