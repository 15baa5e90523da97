"""What every evaluation of a graph ends in: the certified tolerance of section 8, carried through a graph.

An evaluation gives every node a result that the theorem allows for its operator, on the results that its operands were
given: in any order, fused or not, stored between operators or kept in a register. Each variable is enclosed cell by
cell, ``centre ± radius``, from the operands' enclosures:

- a sum of products moves by ``Σ |∂y/∂xᵢ|·rᵢ``, and is rounded by ``Γ_N·S``: N its non-zero leaves, S their sum of
  magnitudes, both computed by the operator itself on magnitudes and on ones. Sums that feed a sum are one sum, and N
  is the number of roundings on the way of one of its leaves;
- where nothing rounds, nothing is added: if all leaves of a cell are multiples of 2^e and ``S ≤ 2^(p+e)``;
- anything else has an ``enclosure`` rule, that of the bounds of networks.

All of it is computed in float64, and what that may lose is part of the radius.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import cycle
from typing import Any

import numpy as np

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.enclosed import OWN_TINIEST, OWN_UNIT, Enclosed, Leaves, in_blocks, largest
from gradspec.conformance.oracle.meaning import Bools, Floats, round_array
from gradspec.domains.formats import F16, F64, Format, format_named
from gradspec.graph.arrays import as_array
from gradspec.graph.builder import Builder, apply, apply_all
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Sums, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import STORED, DType, TensorType, f64
from gradspec.ops.box import FAST, FUNCTION, BoundArithmetic, BoundedNode, Box, gamma
from gradspec.runtime.compiled import compile
from gradspec.spec.errors import ShapeError
from gradspec.transforms.boxes import enclosed
from gradspec.transforms.copy import expand

CORNERS = (0,), (1,), (0, 1), (1, 0)
"""Which ends operands are at: all at the same, or in turns."""
MOST_JOINED = 16
"""The terms of a sum that may be one with the sums among its terms: a bias, a residual, a window of some cells."""
MOST_RULES = 1024
_rules = LRUCache[Callable[..., Any]](MOST_RULES)


# --- the arithmetic of one node --------------------------------------------------------------------------------------


def storage_format(dtype: DType) -> Format:
    """What is stored in eight bits was rounded to them before, and is a number of float16."""
    return F16 if dtype in STORED else format_named(dtype.name)


@dataclass(frozen=True)
class NodeArithmetic:
    """How results of a node are added up and stored."""

    accumulate: Format
    storage: Format
    declared: Arithmetic
    parts: int = 0
    """How many parts of a sum are stored before they are added up in the storage format; 0 if none are."""

    @staticmethod
    def of(stored: TensorType, declared: Arithmetic | None) -> NodeArithmetic:
        storage = storage_format(stored.dtype)
        how = Arithmetic.of(storage) if declared is None else declared
        return NodeArithmetic(how.accumulator(storage), storage, how)

    @staticmethod
    def of_sum(node: Node, rule: Sums, declared: Arithmetic | None) -> NodeArithmetic:
        found = NodeArithmetic.of(node.outputs[0].type, declared)
        if declared is None:
            return found
        parts = 0
        if declared.is_in_parts(found.storage, rule.kind):
            parts = (rule.parts or rule.max_roundings)(node.attrs, *(v.type for v in node.inputs))
        return replace(found, accumulate=declared.accumulator(found.storage, rule.kind), parts=parts)

    def added_in_parts(self, mass: Floats, error: Floats) -> Floats:
        """``F + Γ_{J−1}(S + F)`` of the storage format, ``F = E + u(S + E) + J·η/2``: what is stored, and its sum."""
        u, tiniest = float(self.storage.unit), float(self.storage.tiniest)
        stored = (error + u * (mass + error) + self.parts * tiniest / 2) * (1 + 8 * OWN_UNIT)
        return stored + float(np.expm1((self.parts - 1) * np.log1p(u))) * (mass + stored) * (1 + 2.0**-40)

    @cached_property
    def unit(self) -> float:
        return float(self.accumulate.unit) * (2 if self.declared.truncating else 1)

    def growth(self, n: Any, most: float) -> Any:
        """``Γ_n``, of the kernel's roundings and as many of ours, from above: ``Γ_n/n`` grows with n, up to ``most``.

        Our centre is the result of a kernel in float64, to which the theorem applies too. The mass that this is
        multiplied by meets no more roundings than the leaves of the centre, some products with magnitudes aside: it is
        too small by at most ``Γ_2n`` of itself, and what is left of ``2^−40`` covers the roundings of this function.
        """
        kernel, own = (float(np.expm1(most * np.log1p(u))) / most for u in (self.unit, OWN_UNIT))
        return n * ((kernel + own) * (1 + 2 * own * most + 2.0**-40))

    @cached_property
    def rounded_inputs(self) -> float:
        v = float(self.declared.rounded_inputs(self.storage))
        return (1 + v) * (1 + v) - 1

    @cached_property
    def tiniest(self) -> float:
        """What one rounding may lose to underflow: of products, and, where small results are flushed, of sums."""
        return float(self.accumulate.normal if self.declared.flush_to_zero else self.accumulate.tiniest)

    @property
    def sums_are_exact(self) -> bool:
        return self.declared.exact_sums_are_exact and not self.declared.normwise

    @property
    def is_narrowed(self) -> bool:
        """Whether storing a sum changes it."""
        return self.storage.precision < self.accumulate.precision or self.declared.flush_to_zero

    def stored(self, centre: Floats, size: Floats, error: Floats) -> Floats:
        """The error after storing numbers up to ``size``; none is added to what is a number of the format."""
        if not self.is_narrowed:
            return error
        rounding = np.maximum(float(self.storage.unit) * (size + error), float(self.storage.tiniest) / 2)
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
        self.terms = rule.max_roundings(node.attrs, *self.types)
        self.grain = float(rule.coefficient_quantum(node.attrs, *self.types)) if self.terms else 1.0
        self.is_product = bool(rule.factors) or self.grain != 1.0

    @cached_property
    def _varies(self) -> bool:
        return any(e.varies for e in self.operands)

    def _each(self, part: Callable[[Enclosed], Array]) -> list[Any]:
        """A part of every float operand that is not held; the others as they are."""
        pairs = enumerate(zip(self.operands, self.types, strict=True))
        held = {*self.rule.fixed} - {*self.rule.factors}
        return [np.asarray(part(e) if t.is_float and i not in held else e.centre) for i, (e, t) in pairs]

    def _of(self, part: Callable[[Enclosed], Array], attrs: Any = None) -> Floats:
        return _absolute(self.rule, self.node, self._each(part), self.attrs if attrs is None else attrs)

    def enclosed(self) -> Enclosed:
        centre = np.asarray(apply(self.node.op, self.attrs, *(e.centre for e in self.operands)), np.float64)
        if not self.terms:
            return self._moved_numbers(centre)
        found = (self._rounded_once if self._is_rounded_once else self._rounded)(centre)
        unknown = self._is_unknown()
        if not found.is_finite_everywhere:
            special = ~np.isfinite(centre)
            unknown = unknown | (special & ~self._is_demanded())
            radius = np.where(special, 0.0, found.radius)
            inherited = None if found.inherited is None else np.where(special, 0.0, found.inherited)
            found = replace(found, centre=np.where(unknown & special, 0.0, centre), radius=radius, inherited=inherited)
        return replace(found, radius=np.where(unknown, np.inf, found.radius)) if np.any(unknown) else found

    @cached_property
    def _is_rounded_once(self) -> bool:
        """Whether a cell is one product or the sum of two numbers, and float64 tells where that is exact."""
        how = self.how
        if self.terms != 1 or how.parts or how.rounded_inputs or how.declared.multiplies_out:
            return False
        if self.is_product:
            floats = [e for e, t in zip(self.operands, self.types, strict=True) if t.is_float]
            return not self.grain or (how.accumulate != F64 and all(e.has_few_digits for e in floats))
        is_sum_of_two = len(self.operands) == 2 and not self.rule.fixed and not self._conversions()
        return is_sum_of_two and all(e.leaves is None for e in self.operands)

    def _rounded_once(self, centre: Floats) -> Enclosed:
        whole, inherited = self._reach(lambda e: e.spread), None
        added = () if self.is_product else (e.centre for e in self.operands)
        radius = in_blocks(self._radius_of_one, centre, whole, *added)
        if not self.is_product:  # which is rounded where it is made, or not at all
            inherited = radius if self.how.is_narrowed else np.broadcast_to(whole, centre.shape)
        return _limit_to_format(self._found(centre, radius, inherited), self.how.accumulate)

    def _radius_of_one(self, centre: Floats, whole: Any, *added: Floats) -> Floats:
        """Of a result that is rounded by u of itself, unless it is a number."""
        how, size = self.how, np.abs(centre)
        if self._varies:
            size = size + whole
        radius = size * how.growth(1.0, 1.0)
        if self.is_product or how.declared.flush_to_zero:
            radius += (len(added) or 1) * (2 * how.tiniest + OWN_TINIEST)
        is_exact = self._is_number(centre, *added) if self.grain and how.sums_are_exact else size == 0
        if self._varies:
            radius = np.where(is_exact & (whole == 0), 0.0, radius + whole) * (1 + 8 * OWN_UNIT)
        else:
            radius = np.where(is_exact, 0.0, radius)
        return how.stored(centre, size, radius)

    def _is_number(self, centre: Floats, *added: Floats) -> Bools:
        """Where a product, or the sum or difference of two numbers, is one of the accumulator.

        By Knuth's TwoSum, float64 did not round ``c`` iff ``c − a`` is ±b, and without that it is a again.
        """
        found: Bools = round_array(centre, self.how.accumulate) == centre
        if added:
            a, b = added
            rest = centre - a
            found &= (np.abs(rest) == np.abs(b)) & (centre - rest == a)
        return found

    def _rounded(self, centre: Floats) -> Enclosed:
        mass, leaves = self.mass, self._leaves
        self.most, self.largest_mass = max(1.0, self.total_roundings), float(np.max(mass, initial=0.0))
        whole = reach = self._reach(lambda e: e.spread)
        if self._recounts_operands and any(e.inherited is not None and e.varies for e in self.operands):
            reach = self._reach(self._inherited)
        grains = self._inverse_grains(whole)
        radius, inherited = in_blocks(self._radius, centre, reach, whole, mass, leaves, grains)
        may_overflow = self._may_overflow(mass)
        radius = np.where(may_overflow, np.inf, radius) if np.any(may_overflow) else radius
        if self.is_product and self.terms == 1 and not self.how.declared.multiplies_out:
            inherited = None  # a product is rounded where it is made, or not at all
        return self._found(centre, radius, inherited)

    def _found(self, centre: Floats, radius: Floats, inherited: Floats | None) -> Enclosed:
        leaves = None if inherited is None else self
        return Enclosed(centre, radius, leaves, inherited, self.how.unit, is_narrow=self.how.accumulate != F64)

    def _radius(
        self, centre: Floats, reach: Any, whole: Any, mass: Floats, leaves: Floats, inverse: Any
    ) -> tuple[Floats, Floats]:
        """The radius, and what of it is inherited.

        A link of a chain of sums adds up what comes of N leaves and of results ``ŷ`` of earlier links, that were stored
        or not. By induction these are off by ``Γ_L·S`` and what they inherited, ``I``, and with ``N − 1`` additions
        ``Γ_L·S + I + Γ_{N−1}·(S′ + S + Γ_L·S + I) ≤ Γ_{L+N−1}·(S′ + S + I) + I``: as much as in one sum of all leaves.
        """
        error, more = self._error(centre, whole, mass + reach, leaves)
        nothing = mass == 0
        if inverse is not None:
            nothing |= self._rounds_nothing(whole, mass, inverse)
        error, more = (np.where(nothing, 0.0, part) for part in (error, more))
        computed = (error + more + reach) * (1 + 8 * OWN_UNIT)
        declared = self.how.declared
        size = mass if declared.reassociated and not declared.wide_intermediates else np.abs(centre)
        stored = self.how.stored(centre, size, computed)
        return stored, (more + reach) * (1 + 8 * OWN_UNIT) + (stored - computed) + 4 * OWN_UNIT * stored

    def _may_overflow(self, mass: Floats) -> Bools | bool:
        """Where partial sums may, whatever the result is: of a mean, those that are not divided yet."""
        form, is_divided = self.how.accumulate, self.grain != 1.0
        edge = float(form.largest if form == F64 else form.overflow) * (1 - 2.0**-10)
        plain = self.rule.unscaled(self.attrs) if is_divided and self.rule.unscaled is not None else None
        most = self.largest_mass if plain is None else max(e.largest + e.widest for e in self.operands)
        terms = self.terms if is_divided else 1
        if most * terms < edge:
            return False
        found: Bools = (mass * terms if plain is None else self._of(lambda e: e.magnitude, plain)) >= edge
        return found

    def _moved_numbers(self, centre: Floats) -> Enclosed:
        """Nothing is added up; what is added later may join the sums among these."""
        radius = np.broadcast_to(0.0, centre.shape)
        if self._varies:
            radius = np.where(self._is_unknown(), np.inf, self._moved(lambda e: e.spread))
        if all(e.leaves is None for e in self.operands):
            return Enclosed(centre, radius)
        unit = max(e.unit for e in self.operands)
        return Enclosed(centre, radius, self, self._moved(self._inherited), unit)

    def _inherited(self, e: Enclosed) -> Floats:
        """What is not lost in additions, or lost in coarser ones than those of this sum."""
        return e.spread if e.inherited is None or (self.terms and e.unit > self.how.unit) else e.inherited

    @cached_property
    def _is_one_sum(self) -> bool:
        """Whether sums among the operands and this one are one sum, whose leaves may be added up in any order.

        Further leaves may enter the tree of a sum, as a bias does, but a sum of many sums adds them up when they are
        finished, unless a kernel is declared to do otherwise.
        """
        if self.how.declared.reassociated:
            return len(self.rule.factors) < 2
        return not self.rule.factors and self.terms <= MOST_JOINED

    @cached_property
    def _is_multiplied_out(self) -> bool:
        """Whether coefficients, or the factors of a square, may be multiplied with the leaves of sums instead."""
        declared, factors = self.how.declared, [self.node.inputs[i] for i in self.rule.factors]
        is_square = len(factors) == 2 and factors[0] is factors[1]
        return declared.reassociated or (declared.variance_by_moments and (is_square or not factors))

    @cached_property
    def _recounts_operands(self) -> bool:
        """Whether the roundings of sums among the operands are counted again here, with those of this one."""
        return self._is_one_sum or self._is_multiplied_out

    @cached_property
    def mass(self) -> Floats:
        """Of products of sums, with what the sums inherited: to first order, that is part of the reach."""

        def size(e: Enclosed) -> Floats:
            if e.leaves is None or not self._recounts_operands:
                return e.magnitude
            return np.maximum(e.leaves.mass if self._is_one_sum else e.leaves.mass + self._inherited(e), e.magnitude)

        return self._of(size)

    # --- the way of a leaf (docs/tolerance.md): through every operator, no more roundings than are counted here

    @property
    def counted(self) -> Floats:
        return self._leaves

    @cached_property
    def prior_roundings(self) -> float:
        return self._own_roundings + max(map(self._prior_roundings_of, range(len(self.operands))), default=0.0)

    @cached_property
    def total_roundings(self) -> float:
        return max(float(np.max(self._leaves, initial=1.0)) - 1, 0.0) + self.prior_roundings

    @cached_property
    def finished(self) -> tuple[float, float]:
        ways = [e.leaves.finished if e.leaves is not None else (1.0, 0.0) for e in self.operands]
        if len(self.rule.factors) == 2:
            ways = [self._product, *((1.0, self._prior_roundings_of(i)) for i in range(2, len(ways)))]
        counts, met = zip(*ways, strict=True)
        count = self._terms * sum(counts) if self.terms else max(counts) + self._own_terms()
        return (count, self._own_roundings + max(met)) if count <= MOST_JOINED else (1.0, self.total_roundings)

    @cached_property
    def _product(self) -> tuple[float, float]:
        """How many leaves a product of two sums is multiplied out into, and how many roundings these met.

        By induction, a sum of k among the leaves of a factor met no more than ``r + k − 1``, and its product with one
        of l met ``r + k + s + l − 1 ≤ (r + s + 1) + k·l − 1``: as much as if it were multiplied out.
        """
        count, met = 1.0, 0.0
        factors = [self.operands[i].leaves for i in self.rule.factors]
        for few, before in sorted(self._way_into_product(one) for one in factors if one is not None):
            is_finished = count * few > MOST_JOINED
            count, met = (count, met + before + few - 1) if is_finished else (count * few, met + before)
        return count, met

    def _way_into_product(self, leaves: Leaves) -> tuple[float, float]:
        if not self._is_multiplied_out:
            return 1.0, 0.0
        return leaves.finished if self.how.declared.reassociated else (1.0, leaves.total_roundings)

    def _prior_roundings_of(self, i: int) -> float:
        """The most roundings that a leaf of an operand met before it comes here."""
        leaves = self.operands[i].leaves
        if leaves is None or not self._recounts_operands:
            return 0.0
        if self._is_one_sum:
            return leaves.prior_roundings
        return self._product[1] if i in self.rule.factors else leaves.total_roundings

    @cached_property
    def _own_roundings(self) -> float:
        """Those that a term meets here besides additions: of a product or a coefficient, or of a conversion."""
        if not self.is_product:
            return self._conversions() if self.terms else 0.0
        return 1.0 + self.terms - self._terms + (FAST if self.how.declared.fast_math and self.grain != 1.0 else 0.0)

    @cached_property
    def _terms(self) -> int:
        """How many terms are added up, at most."""
        if self.rule.unscaled is not None:
            return self.rule.max_roundings(self.rule.unscaled(self.attrs), *self.types)
        return self.terms if self.rule.terms is None else self.rule.terms(self.node.attrs, *self.types)

    @cached_property
    def _leaves(self) -> Floats:
        """How many non-zero leaves a cell has, at most."""

        def count(e: Enclosed) -> Floats:
            here = (e.magnitude > 0).astype(np.float64)
            return here if e.leaves is None or not self._is_one_sum else np.maximum(e.leaves.counted, here)

        if self.grain == 1.0:
            leaves = self._of(count, self.rule.linear(self.attrs)) + self._own_terms()
            return leaves * self._product[0] if len(self.rule.factors) == 2 else leaves
        if self.rule.unscaled is not None:
            return self._of(count, self.rule.unscaled(self.attrs))
        most_here = max((float(np.max(count(e), initial=1.0)) for e in self.operands), default=1.0)
        return np.full(self.node.outputs[0].shape, self._terms * most_here)

    def _own_terms(self) -> float:
        return 0.0 if self.rule.linear(self.attrs) == self.attrs else 1.0

    def _error(self, centre: Floats, reach: Floats, mass: Floats, leaves: Floats) -> tuple[Floats, Floats]:
        """What additions and products lose, and what else is lost: by rounded inputs, underflow, stored parts."""
        how: NodeArithmetic = self.how
        size: Any = mass
        relative = how.growth(leaves + (self.prior_roundings - 1), self.most)
        if not self.is_product and not self._conversions():
            # The sum of two leaves is rounded once, by u of itself, in whatever order.
            size = np.where(leaves + self.prior_roundings <= 2, np.abs(centre) + reach, mass)
        error = relative * size
        more = np.zeros(error.shape)
        if self.is_product and how.rounded_inputs:
            more = how.rounded_inputs * (1 + relative) * mass
        if how.declared.normwise and len(self.rule.factors) == 2 and self.terms > 1:
            more = more + relative * (float(how.declared.normwise) * self.largest_mass)
        if self.is_product or how.declared.flush_to_zero:
            more = more + (leaves + (self.prior_roundings - self._own_roundings)) * (2 * how.tiniest + OWN_TINIEST)
        if how.parts:
            more = how.added_in_parts(mass, error + more) - error
        return error, more

    def _conversions(self) -> float:
        """1 if an operand has more digits than sums are added up in."""
        digits = max((storage_format(t.dtype).precision for t in self.types if t.is_float), default=0)
        return float(digits > self.how.accumulate.precision)

    def _inverse_grains(self, reach: Floats | float) -> Floats | None:
        """``2^−e`` of which all leaves are multiples of 2^e: of each cell, or of all of them. None if none are exact.

        ``Σ 2^−e`` over the leaves is no less than the largest ``2^−e``, and the operator itself adds it up.
        """
        if not self.grain or not self.how.sums_are_exact or (isinstance(reach, np.ndarray) and reach.all()):
            return None
        scale = 1.0 if self.grain == 1.0 else self.grain**-2
        whole = self._largest_inverse_grain() / self.grain
        cells = self._of(lambda e: e.inverse_grain, self.rule.linear(self.attrs))
        return np.minimum(cells * scale, whole)

    def _rounds_nothing(self, reach: Floats, mass: Floats, inverse: Floats) -> Bools:
        """Whether leaves are multiples of 2^e, at least η, and S ≤ 2^(p+e).

        A sum that came to 0 says nothing of its leaves, which a reassociated kernel multiplies before it adds them up.
        """
        form = self.how.storage if self.how.parts else self.how.accumulate
        limit = 2.0**form.precision * (1 - 2.0**-40)
        finest, largest = 1 / float(form.tiniest), float(form.largest)
        found: Bools = (reach == 0) & (mass * inverse <= limit) & (inverse <= finest) & (mass <= largest)
        return found & (inverse > 0) if self._is_multiplied_out else found

    def _largest_inverse_grain(self) -> float:
        """Of a product of one cell of each factor, and of what is added as it is."""
        found = [float(np.max(e.inverse_grain, initial=0.0)) for e in self.operands]
        if not self.rule.factors:
            return max(found)
        product = float(np.prod([found[i] for i in self.rule.factors]))
        return max([product, *(f for i, f in enumerate(found) if i not in (*self.rule.factors, *self.rule.fixed))])

    def _reach(self, spread: Callable[[Enclosed], Floats]) -> Floats | float:
        if not self._varies:
            return 0.0
        most = self.terms + 8
        return self._moved(spread) * (1 + 2 * float(np.expm1(most * np.log1p(OWN_UNIT))))

    def _is_unknown(self) -> Bools | bool:
        """What reads an unknown cell, which may be infinite: not even a factor of 0 makes that 0."""
        if all(e.is_known_everywhere for e in self.operands):
            return False
        found: Bools = self._moved(lambda e: (~e.is_known).astype(np.float64), 1.0) > 0
        return found

    def _is_demanded(self) -> Bools:
        """Where what is not finite is so in every evaluation: it is that of an operand or of a coefficient, and what it
        is multiplied by is 0 always or never. Any other sum overflowed here, and need not do so in another order."""
        linear = self.rule.linear(self.attrs)
        special = self._moved(lambda e: (~np.isfinite(e.centre)).astype(np.float64), 1.0) > 0
        special |= ~np.isfinite(self._of(lambda e: np.ones(e.centre.shape), linear))
        for i in self.rule.factors:
            parts = self._each(lambda e: (~np.isfinite(e.centre)).astype(np.float64))
            parts[i] = self.operands[i].may_vanish.astype(np.float64)
            if self.rule.bias is not None and len(parts) > self.rule.bias:
                parts[self.rule.bias] = np.zeros_like(parts[self.rule.bias])
            special &= ~(_absolute(self.rule, self.node, parts, linear) > 0)
        return special

    def _moved(self, spread: Callable[[Enclosed], Floats], more: float = 0.0) -> Floats:
        """How far the sum moves with its operands, one factor after the other; other factors are ``more`` than they
        are."""
        factors, bias = self.rule.factors, self.rule.bias
        moves = [largest(spread(e)) != 0 for e in self.operands]
        turns = [i for i in factors if moves[i]] or [-1] * any(moves)
        found = []
        for turn in turns:
            parts = self._each(spread)
            for j in factors:
                if j != turn:
                    other = self.operands[j]
                    parts[j] = (np.abs(other.finite) if j < turn else other.magnitude) + more
            if more and self.rule.divisor is not None:  # not even an infinite one makes 0 of what may be infinite
                parts[self.rule.divisor] = np.ones_like(parts[self.rule.divisor])
            if bias is not None and len(parts) > bias and turn != turns[0]:
                parts[bias] = np.zeros_like(parts[bias])
            found.append(_absolute(self.rule, self.node, parts, self.rule.linear(self.attrs)))
        return np.add(*found) if len(found) == 2 else found[0] if found else np.zeros(self.node.outputs[0].shape)


# --- everything else -------------------------------------------------------------------------------------------------


def _enclose_by_rule(node: Node, operands: Sequence[Enclosed], declared: Arithmetic | None) -> list[Enclosed]:
    """The operator's own rule of enclosure, on ends; what is not finite at the centres is so in every evaluation."""
    varies = tuple(e.varies for e in operands)
    arithmetic = _bound_arithmetic(node, declared)
    key = node.op, node.attrs, tuple(v.type for v in node.inputs), varies, arithmetic
    run = _rules.get_or_make(key, lambda: _compiled_rule(node, varies, arithmetic))
    given = [a for e, moves in zip(operands, varies, strict=True) for a in (e.ends if moves else (e.centre,))]
    ends = run(*given)
    if all(low is high for low, high in ends):
        return [Enclosed.point(value) for value, _ in ends]
    each = zip(ends, _specials(node, operands), node.outputs, strict=True)
    return [_from_ends(low, high, special, v.type) for (low, high), special, v in each]


def _bound_arithmetic(node: Node, declared: Arithmetic | None) -> BoundArithmetic:
    """What the operator's rule must know of the arithmetic declared."""
    stored = next((v.type for v in (*node.outputs, *node.inputs) if v.type.is_float), None)
    if declared is None or stored is None:
        return BoundArithmetic(f64, any=True)
    how = NodeArithmetic.of(stored, declared)
    function = FUNCTION if declared.function_error is None else float(declared.function_error) / how.unit
    return BoundArithmetic(
        f64,
        any=True,
        unit=how.unit,
        function=function,
        fast=declared.fast_math,
        flushes=declared.flush_to_zero,
        online=declared.online_softmax,
        regroups=declared.reassociated,
    )


def _as_tuple(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


def _specials(node: Node, operands: Sequence[Enclosed]) -> list[Array]:
    """The NaNs and infinities that every evaluation gives, for which rules have no ends; 0 elsewhere, and where one is
    not met at the centres and at the corners that are tried, and thus not known."""
    found: list[Array] = [np.asarray(y) for y in apply_all(node.op, _attrs(node), *(e.centre for e in operands))]
    if all(np.isfinite(y).all() for y in found):
        return found
    corners = [[e.ends[end] for e, end in zip(operands, cycle(order), strict=False)] for order in CORNERS]
    # What is not known need not be infinite, nor a number.
    corners += [[_with(e, number) for e in operands] for number in (1.0, np.nan)]
    others = [apply_all(node.op, _attrs(node), *corner) for corner in corners]
    return [
        np.where(np.logical_and.reduce([(y == z) | (np.isnan(y) & np.isnan(z)) for z in tried]), y, 0)
        for y, *tried in zip(found, *others, strict=True)
    ]


def _with(e: Enclosed, number: float) -> Array:
    """The centres, with a number for what is not known; 1 among integers."""
    return np.where(e.is_known, e.centre, number if e.centre.dtype.kind == "f" else e.centre.dtype.type(1))


def _compiled_rule(
    node: Node, varies: Sequence[bool], arithmetic: BoundArithmetic
) -> Callable[..., list[tuple[Array, Array]]]:
    """From operands, each its ends or, if it does not vary, itself, to the ends of results; of a point, one array."""
    builder, boxes = Builder(), []
    for i, (var, moves) in enumerate(zip(node.inputs, varies, strict=True)):
        own = TensorType(f64, var.shape) if var.type.is_float else var.type
        if moves:
            ends = builder.input(own, f"x{i}_lower"), builder.input(own, f"x{i}_upper")
            boxes.append(Box(arithmetic, ends=lambda ends=ends: ends))  # type: ignore[misc]
        else:
            boxes.append(Box(arithmetic, point=builder.input(own, f"x{i}")))
    results = enclosed(node, boxes, arithmetic)
    counts = [len({*box.ends}) for box in results]
    run = compile(builder.build([end for box in results for end in dict.fromkeys(box.ends)], allow_unused=True))

    def lows_and_highs(*given: Any) -> list[tuple[Array, Array]]:
        values = iter(_as_tuple(run(*given)))
        found = ([np.asarray(next(values)) for _ in range(count)] for count in counts)
        return [(each[0], each[-1]) for each in found]

    return lows_and_highs


def _from_ends(low: Array, high: Array, special: Array, type: TensorType) -> Enclosed:
    """Ends of NaN say that nothing is known."""
    if not type.is_float:
        return Enclosed(low, np.where(low == high, 0.0, np.inf), between=(low, high))
    centre, radius = in_blocks(_ball, low, high)
    found = Enclosed(centre, radius, between=(low, high))
    if found.is_known_everywhere and np.isfinite(special).all():
        return found
    is_special, is_known = ~np.isfinite(special), np.isfinite(radius)
    centre, low, high = (
        np.where(is_special, special, np.where(is_known, value, unknown))
        for value, unknown in ((centre, 0.0), (low, -np.inf), (high, np.inf))
    )
    radius = np.where(is_special, 0.0, np.where(is_known, radius, np.inf))
    return Enclosed(centre, radius, between=(low, high))


def _ball(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """A centre and the radius around it, from above."""
    middle = (high - low) * 0.5
    middle += low
    radius = np.maximum(high - middle, middle - low)
    radius *= 1 + 4 * OWN_UNIT
    return middle, radius


# --- graphs ----------------------------------------------------------------------------------------------------------


def enclosure(graph: Graph, *arrays: Any, arithmetic: Arithmetic | None = None) -> Any:
    """``(lower, upper)`` of every output, which enclose every evaluation of the graph: anything outside is wrong.

    >>> import gradspec as gs
    >>> g = gs.trace(lambda x: gs.relu(x) + 1, gs.f32[2])
    >>> low, high = enclosure(g, np.float32([3, -5]))
    >>> low.tolist(), high.tolist()
    ([4.0, 1.0], [4.0, 1.0])
    """
    graph = expand(graph)
    found = _enclose_graph(graph, arrays, arithmetic, 0.0)
    ends = [found[v].ends for v in graph.outputs]
    if len(ends) == 1:
        return ends[0]
    return tuple(low for low, _ in ends), tuple(high for _, high in ends)


def enclosed_outputs(
    graph: Graph, *arrays: Any, arithmetic: Arithmetic | None = None, spread: float = 0.0
) -> list[Enclosed]:
    """Every output as centres, ends and which cells are ``weak``: too uncertain to judge a result by.

    With a ``spread``, the inputs are boxes, ``x ± (spread·|x| + η)``, and the ends enclose the evaluations for all
    numbers in them: near a kink, every derivative of the function there.

    >>> import gradspec as gs
    >>> slope = gs.trace(gs.relu, gs.f32[3]).vjp()
    >>> (value, slopes) = enclosed_outputs(slope, np.float32([-1, 0, 1]), np.float32([1, 1, 1]), spread=1e-6)
    >>> (slopes.upper - slopes.lower).round(3).tolist(), slopes.weak.tolist()
    ([0.0, 1.0, 0.0], [False, True, False])
    """
    graph = expand(graph)
    found = _enclose_graph(graph, arrays, arithmetic, spread)
    made = {v: node for node in graph.nodes for v in node.outputs}

    @cache
    @np.errstate(all="ignore")
    def alone(var: Var) -> Floats:
        """The tolerance of the last operator that rounds, on operands that are certain."""
        if var not in made or not var.type.is_float:
            return np.zeros(var.shape)
        node = made[var]
        points = [Enclosed.point(found[v].centre) for v in node.inputs]
        error = _enclose_node(node, points, arithmetic)[node.outputs.index(var)].spread
        if error.all():
            return error
        before = [replace(p, radius=alone(v)) for p, v in zip(points, node.inputs, strict=True)]
        return np.where(error > 0, error, _enclose_node(node, before, arithmetic)[node.outputs.index(var)].spread)

    def judged(var: Var) -> Enclosed:
        """No tolerance is taken for less than what storing half of the results costs."""
        if not found[var].is_blunt.any():  # whatever its operator alone is known to
            return found[var]
        size = np.abs(found[var].finite)
        least = float(storage_format(var.dtype).unit) * float(np.median(size) if size.size else 0.0)
        return replace(found[var], alone=np.maximum(alone(var), least))

    return [judged(v) if v.type.is_float else found[v] for v in graph.outputs]


def _enclose_graph(
    graph: Graph, arrays: Sequence[Any], arithmetic: Arithmetic | None, spread: float
) -> dict[Var, Enclosed]:
    found = _inputs(graph, arrays, spread, arithmetic is not None and arithmetic.flush_to_zero)
    for node in graph.nodes:
        operands = [found[v] for v in node.inputs]
        with np.errstate(all="ignore"):
            results = _enclose_node(node, operands, arithmetic)
            found |= {v: _store(result, v.type) for v, result in zip(node.outputs, results, strict=True)}
    return found


def _inputs(graph: Graph, arrays: Sequence[Any], spread: float, flushes: bool) -> dict[Var, Enclosed]:
    if len(arrays) != len(graph.inputs):
        raise TypeError(f"the graph takes {len(graph.inputs)} arrays, and {len(arrays)} were given; give one for each")
    found = {}
    for var, value in (*zip(graph.inputs, arrays, strict=True), *graph.constants.items()):
        array = as_array(value)
        if array.shape != var.shape:
            raise ShapeError(f"{var!r} was given an array of shape {array.shape}; give one of shape {var.shape}")
        is_narrow = array.dtype == var.dtype.numpy and var.dtype is not f64
        found[var] = Enclosed.point(array.astype(np.float64) if var.type.is_float else array, is_narrow)
        if not var.type.is_float:
            continue
        point, form = found[var], storage_format(var.dtype)
        if spread and var not in graph.constants:
            reach = point.magnitude * spread + float(form.tiniest)
            found[var] = replace(point, radius=np.where(np.isfinite(point.centre), reach, 0.0))
        elif flushes:
            found[var] = replace(point, radius=np.where(point.magnitude < float(form.normal), point.magnitude, 0.0))
    return found


def _enclose_node(node: Node, operands: Sequence[Enclosed], declared: Arithmetic | None) -> Sequence[Enclosed]:
    rule, floats = node.op.sums, [v.type.is_float for v in node.inputs]
    held = rule is not None and not any(operands[i].varies for i in rule.fixed if i < len(operands))
    if rule is not None and held and node.outputs[0].type.is_float and any(floats):
        return [_SumNode(node, rule, operands, NodeArithmetic.of_sum(node, rule, declared)).enclosed()]
    if rule is not None and rule.divisor is not None and declared is not None and declared.reassociated:
        return [_enclose_quotient(node, rule, operands, declared)]
    return _enclose_by_rule(node, operands, declared)


def _enclose_quotient(node: Node, rule: Sums, operands: Sequence[Enclosed], declared: Arithmetic) -> Enclosed:
    """A quotient ``Σ/s`` whose leaves may be divided, and stored, before they are added up.

    By a rounded reciprocal each meets two more roundings. ``Γ_(L+2)·M + (1+Γ_2)·I`` is no more than
    ``E + Γ_2·(M + E)`` with ``E = Γ_L·M + I``: by so much the numerator is off, whatever it is divided by.
    """
    (i,) = rule.factors
    numerator, leaves, how = operands[i], operands[i].leaves, NodeArithmetic.of(node.outputs[0].type, declared)
    if leaves is None:
        return _enclose_by_rule(node, operands, declared)[0]
    relative = gamma(2 + (FAST if declared.fast_math else 0.0), how.unit)
    if how.is_narrowed:
        relative += float(how.storage.unit) * (1 + relative)
    radius = (numerator.radius + (leaves.mass + numerator.radius) * relative) * (1 + 8 * OWN_UNIT)
    wider = Enclosed(numerator.centre, np.where(np.isfinite(numerator.centre), radius, numerator.radius))
    (found,) = _enclose_by_rule(node, [*operands[:i], wider, *operands[i + 1 :]], declared)
    underflow = np.where(np.isfinite(found.centre), leaves.counted, 0.0) * (
        2 * how.tiniest + float(how.storage.tiniest)
    )
    return Enclosed(found.centre, (found.radius + underflow) * (1 + 8 * OWN_UNIT))


def _store(found: Enclosed, type: TensorType) -> Enclosed:
    if not type.shape:  # NumPy makes scalars of what it computes, which operators take for numbers without a dtype
        found = replace(found, centre=np.asarray(found.centre), radius=np.asarray(found.radius))
    return _limit_to_format(found, storage_format(type.dtype)) if type.is_float else found


def _limit_to_format(found: Enclosed, form: Format) -> Enclosed:
    """What may be too large for its format is not known."""
    edge = float(F64.largest if form == F64 else form.overflow)
    if found.largest + found.widest < edge:
        return found
    is_large = np.isfinite(found.centre) & (np.abs(found.centre) + found.radius >= edge)
    return replace(found, radius=np.where(is_large, np.inf, found.radius), between=None)
