"""Boxes: a graph to the graph of what its variables can be, over boxes of its inputs.

No rule names an operator. A sum of products (``Op.sums``) takes the centres through the operator, and the radii and
magnitudes through the operator with absolute coefficients; what is no sum has an ``enclosure`` of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf, nan

import numpy as np

from gradspec.graph.builder import Builder, apply, dependents
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Attributes, Node, Sums, Var
from gradspec.graph.types import DType, TensorType, f16, f32, f64
from gradspec.ops.box import DIGITS, BoundArithmetic, BoundedNode, Box, SumError, absolute, sum_of
from gradspec.ops.convert import convert
from gradspec.ops.pointwise import abs, maximum, round
from gradspec.ops.rules import increasing
from gradspec.ops.select import equal, greater, less, where
from gradspec.ops.shape import sum as sum_over
from gradspec.transforms.copy import expand


def own_dtype(graph: Graph) -> DType:
    """What bounds of the graph are computed in: float64 where it computes in it, else float32."""
    variables = (*graph.inputs, *graph.constants, *(v for node in graph.nodes for v in node.outputs))
    return f64 if any(v.dtype is f64 for v in variables) else f32


class Boxes:
    """The boxes of a graph's variables, in the builder of the graph of bounds."""

    def __init__(self, graph: Graph, builder: Builder, arithmetic: BoundArithmetic) -> None:
        self.graph, self.builder, self.arithmetic = graph, builder, arithmetic
        self._found: dict[Var, Box] = {}
        self._constants = graph.constants

    def __getitem__(self, var: Var) -> Box:
        if var not in self._found:
            self._found[var] = Box(self.arithmetic, point=self._own(self._constants[var], var.name))
        return self._found[var]

    def __setitem__(self, var: Var, box: Box) -> None:
        self._found[var] = box

    def _own(self, array: Array, name: str) -> Var:
        is_float = array.dtype.kind not in "iub"
        return self.builder.share(array.astype(self.arithmetic.dtype.numpy) if is_float else array, name)

    def own_type(self, type: TensorType) -> TensorType:
        return TensorType(self.arithmetic.dtype, type.shape) if type.is_float else type

    def run(self, known: Mapping[Var, tuple[Var, Var]]) -> None:
        """Enclose every node; ``known`` are bounds of some results, from elsewhere."""
        for node in self.graph.nodes:
            results = enclosed(node, [self[v] for v in node.inputs], self.arithmetic)
            for var, box in zip(node.outputs, results, strict=True):
                self[var] = mark_overflow(box.within(*known[var]) if var in known else box, node, var, self.arithmetic)


def boxes(graph: Graph, arithmetic: BoundArithmetic, bounded: Sequence[bool]) -> Graph:
    """``(lower, upper of each bounded input, the others as they are) → (lower, upper of each output)``."""
    builder, graph = Builder(), expand(graph)
    found = Boxes(graph, builder, arithmetic)
    enter(found, bounded)
    found.run({})
    return builder.build([end for v in graph.outputs for end in found[v].ends], allow_unused=True)


def known_ends(found: Boxes, var: Var) -> tuple[Var, Var]:
    """Inputs for bounds of a variable that are known from elsewhere."""
    names = [found.builder.unused(f"{var.name}_{end}") for end in ("lower", "upper")]
    low, high = (found.builder.input(found.own_type(var.type), name) for name in names)
    return low, high


def varying(graph: Graph, bounded: Sequence[bool]) -> set[Var]:
    """The bounded inputs, and what depends on them."""
    return dependents(graph, (v for v, has_box in zip(graph.inputs, bounded, strict=True) if has_box))


def enter(found: Boxes, bounded: Sequence[bool]) -> None:
    """Inputs of the graph of bounds: two for each bounded input, one for each other."""
    builder = found.builder
    for var, has_box in zip(found.graph.inputs, bounded, strict=True):
        own = found.own_type(var.type)
        if has_box:
            low, high = (builder.input(own, builder.unused(f"{var.name}_{end}")) for end in ("lower", "upper"))
            found[var] = Box(found.arithmetic, ends=lambda ends=(low, high): ends)  # type: ignore[misc]
        else:
            found[var] = Box(found.arithmetic, point=builder.input(own, var.name))


def enclosed(node: Node, operands: Sequence[Box], arithmetic: BoundArithmetic) -> Sequence[Box]:
    """The boxes of a node's results, by its operator's rules."""
    bounded = BoundedNode(node, arithmetic)
    varying = {i for i, box in enumerate(operands) if box.varies}
    rule, floats = node.op.sums, any(v.type.is_float for v in node.inputs)
    if rule is not None and node.outputs[0].type.is_float is floats and not varying.intersection(rule.fixed):
        products = len(varying.intersection(rule.factors)) > 1 and node.op.enclosure is not None
        if floats and not products:
            return _sum(bounded, rule, operands, varying)
        adds = not most_roundings(node) or (node.op.enclosure is None and not rule.factors)
        if not floats and rule.absolute is None and adds:
            return _sum_of_integers(bounded, operands)
    if not varying and (node.op.constant or not floats) and not any(v.type.is_float for v in node.outputs):
        return [Box(arithmetic, point=v) for v in bounded.apply_all(*(b.lower for b in operands))]
    if node.op.enclosure is None:
        raise bounded.uncertain_integers() if rule is not None else node.op.missing("enclosure")
    boxes = node.op.enclosure(bounded, *operands)
    return boxes if isinstance(boxes, list) else [boxes]


def mark_overflow(box: Box, node: Node, var: Var, arithmetic: BoundArithmetic) -> Box:
    """The box of a stored result; where it may overflow a format that these bounds do not, nothing is known."""
    most = arithmetic.overflow(var.dtype)
    is_moved = node.op.sums is not None and not most_roundings(node)
    if is_moved or not box.varies or most == inf:
        return box
    bounded = BoundedNode(node, arithmetic)
    return bounded.known_where(bounded.within(box, most), box)


def is_affine(node: Node, varying: Iterable[int]) -> bool:
    """Whether the node is an affine map of the operands that vary."""
    rule, moving = node.op.sums, set(varying)
    if rule is None or not all(node.inputs[i].type.is_float for i in moving) or not node.outputs[0].type.is_float:
        return False
    return not moving.intersection(rule.fixed) and len(moving.intersection(rule.factors)) <= 1


def _sum(node: BoundedNode, rule: Sums, operands: Sequence[Box], varying: set[int]) -> Sequence[Box]:
    types = [v.type for v in node.node.inputs]
    if not rule.max_roundings(node.attrs, *types):
        return _move_box(node, rule, operands, varying)
    a, stored = node.arithmetic, node.stored.dtype
    joined = a.any and not rule.factors
    abs_sums = _sizes(node, rule, operands, lambda box: box.abs_sum if joined else box.magnitude)
    roundings = rule.max_roundings(node.attrs, *types)
    term_count = _term_count(roundings, operands) if joined else roundings
    abs_sum = _absolute(node, rule, abs_sums, node.attrs)
    centre = node.apply(*(box.centre for box in operands))
    is_biased = rule.bias is not None and len(operands) > rule.bias  # perhaps behind the storage
    relative = a.own(roundings) + a.kernel(term_count, stored) + a.storage(stored) * (1 + is_biased)
    margin = a.own(term_count + 8)  # the abs_sum, the reach and the ends are rounded too
    error = abs_sum * a.above((relative + a.own(2)) * (1 + margin)) + a.above(a.underflow(roundings, stored))
    if a.exact and rule.coefficient_quantum(node.attrs, *types) >= 1:
        off = _off_whole(operands)
        error = where(less(abs_sum + where(equal(off, 0.0), off, inf), 2.0 ** (DIGITS[a.dtype] - 2)), 0.0, error)
    certain = error
    if a.any and stored is not f16:
        error, certain = _overflowing(error, abs_sum, a.largest(stored), roundings, a.own(8 * term_count))
    if not varying:
        return (Box(a, ball=lambda: (centre, error), term_count=term_count, abs_sum=lambda: abs_sum),)
    reach = a.inflated(_reach(node, rule, operands, varying), margin)
    ball, sum_error = lambda: (centre, reach + error), SumError(lambda: error, lambda: reach)

    def ends() -> tuple[Var, Var]:
        """A sum of two that overflows does so on the side of its centre."""
        near, far = reach + certain, reach + error
        below = where(greater(centre, 0.0), centre - near, centre - far)
        return below, where(less(centre, 0.0), centre + near, centre + far)

    apart = None if certain is error else ends
    return (Box(a, ball=ball, ends=apart, term_count=term_count, abs_sum=lambda: abs_sum, sum_error=sum_error),)


def _off_whole(operands: Sequence[Box]) -> Var:
    """0 if each operand is certainly one whole number in every cell, else positive or NaN."""
    away = [abs(end - round(end)) for box in operands for end in box.ends] + [box.upper - box.lower for box in operands]
    return sum_of([sum_over(part, None) for part in away])


def _sum_of_integers(node: BoundedNode, operands: Sequence[Box]) -> Sequence[Box]:
    """Of integers, with coefficients that are not negative; where a sum may wrap around, it is anything."""
    found, a, roundings = increasing(node, *operands), node.arithmetic, most_roundings(node.node)
    if not roundings or not any(box.varies for box in operands):
        return found
    sizes = [maximum(*(abs(convert(end, a.dtype)) for end in box.ends)) for box in operands]
    limits = np.iinfo(node.stored.dtype.numpy)
    fits = less(node.apply(*sizes), limits.max / (1.0 + a.own(8 * roundings)))
    return [node.between(where(fits, found[0].lower, limits.min), where(fits, found[0].upper, limits.max))]


def most_roundings(node: Node) -> int:
    """Of a term in a sum of products; 0 if it is no such sum, too."""
    return node.op.sums.max_roundings(node.attrs, *(v.type for v in node.inputs)) if node.op.sums is not None else 0


def _overflowing(error: Var, abs_sum: Var, most: float, roundings: int, margin: float) -> tuple[Var, Var]:
    """The error where a kernel's sums may overflow: infinite, or NaN if they may be ``∞ − ∞``; and the error if not.

    Partial sums of more than two terms, which may be divided later, are no larger than ``abs_sum`` times their number.
    Of two, only the result can overflow.
    """
    if roundings > 1:
        error = where(less(abs_sum, most / (2.0 * roundings)), error, nan)
        return error, error
    certain = where(less(abs_sum * 0.5, most * 0.5 * (1.0 + 2.0**-20)), error, nan)
    return where(less(abs_sum, most * (1.0 - margin)), certain, certain * inf), certain


def _sizes(node: BoundedNode, rule: Sums, operands: Sequence[Box], size: Callable[[Box], Var]) -> list[Var]:
    """A size of every operand; of those that are held, the numbers themselves."""
    pairs = enumerate(zip(operands, node.node.inputs, strict=True))
    return [size(b) if v.type.is_float and j not in rule.fixed else b.lower for j, (b, v) in pairs]


def _term_count(roundings: int, operands: Sequence[Box]) -> int:
    """The number of terms that a kernel may add up in any order, where sums feed a sum."""
    counts = [box.term_count for box in operands]
    if len(operands) == 1 and roundings == 1:  # it is rounded once more
        return counts[0] + 1
    return sum(counts) if roundings <= len(operands) else roundings * max(counts)


def _absolute(node: BoundedNode, rule: Sums, operands: Sequence[Var], attrs: Attributes) -> Var:
    if rule.absolute is not None:
        return rule.absolute(attrs, *operands)
    return apply(node.node.op, attrs, *operands)


def _reach(node: BoundedNode, rule: Sums, operands: Sequence[Box], varying: set[int]) -> Var:
    """How far the result may move with its operands: ``Σ |∂y/∂xᵢ|·rᵢ``, and of two factors one after the other."""
    moving = [i for i in rule.factors if i in varying]
    steps = []
    for i in moving or [-1]:
        parts = []
        for j, (box, var) in enumerate(zip(operands, node.node.inputs, strict=True)):
            if not var.type.is_float or j in rule.fixed:
                parts.append(box.lower)
            elif j not in rule.factors or j == i:
                parts.append(box.radius)
            else:
                parts.append(absolute(box.centre) if j < i else box.magnitude)
        if rule.bias is not None and len(parts) > rule.bias and rule.bias not in varying:
            del parts[rule.bias]
        steps.append(_absolute(node, rule, parts, rule.linear(node.attrs)))
    return sum_of(steps)


def _move_box(node: BoundedNode, rule: Sums, operands: Sequence[Box], varying: set[int]) -> Sequence[Box]:
    """Numbers that are only moved: both forms of the box are moved, and neither is rounded."""
    a = node.arithmetic
    if not varying:
        return (Box(a, point=node.apply(*(box.lower for box in operands))),)

    def reach() -> Var:
        return _absolute(node, rule, _sizes(node, rule, operands, lambda b: b.radius), rule.linear(node.attrs))

    def abs_sum() -> Var:
        total = _absolute(node, rule, _sizes(node, rule, operands, lambda b: b.abs_sum), node.attrs)
        return total if rule.linear(node.attrs) == node.attrs else absolute(total)

    ends = None
    if rule.absolute is None and not all(box.is_ball for box in operands if box.varies):
        ends = lambda: (node.apply(*(b.lower for b in operands)), node.apply(*(b.upper for b in operands)))  # noqa: E731
    return (
        Box(
            a,
            ends=ends,
            ball=lambda: (node.apply(*(b.centre for b in operands)), reach()),
            term_count=max(b.term_count for b in operands),
            abs_sum=abs_sum,
        ),
    )
