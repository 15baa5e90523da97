"""Lines: a graph to the graph of lower bounds of linear functions of its variables, over boxes of its inputs.

Backwards through the graph, ``target ≥ Σ A·(z − c) + b`` is kept: the sum over the variables reached so far, ``c`` the
centres of their boxes. The coefficients ``A`` are floats, and taken for the exact numbers they are. An affine node
``y = W·z + v`` replaces ``A`` by ``A·W``:

    A·(y − c_y)  =  A·W·(z − c_z) + A·(W·c_z + v − c_y)  ≥  fl(A·W)·(z − c_z) − |A|·(Γ·|W|·r_z + e).

The last bracket of the first step is the rounding ``e`` of the centre and, if asked, of any kernel; ``fl(A·W)`` is off
by Γ of its terms, and these meet differences no larger than the radius ``r_z``. So biases never appear, and a node
costs one inner product. A node that is not affine lies between lines: the lower one counts where ``A > 0``, the upper
one where ``A < 0``. What rounding can lose of an inner product is taken off its second factor, once for all rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import Builder, apply
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.ops.box import BoundArithmetic, BoundedNode, BoundingLine, Box, Lines, sum_of
from gradspec.ops.pointwise import abs, maximum, minimum, step
from gradspec.ops.shape import sum as sum_over
from gradspec.transforms.boxes import Boxes, enter, is_affine, known_ends, varying


def lines(
    graph: Graph,
    arithmetic: BoundArithmetic,
    bounded: Sequence[bool],
    target: Var,
    known: Sequence[Var] = (),
    shared: Sequence[Node] = (),
    multiplied: Sequence[Var] = (),
    slopes: bool = False,
) -> Graph:
    """The graph of a lower bound of ``⟨coefficients, target⟩``, and, if asked, of its slopes in the bounded inputs.

    Its inputs: those of the boxes; for each of ``known`` a lower and an upper bound from elsewhere; the coefficients;
    for each node of ``shared`` the share that chooses among its lines; for each of ``multiplied``, which are among
    ``known``, the multipliers of what is known of their signs.
    """
    builder = Builder()
    found = Boxes(graph, builder, arithmetic)
    enter(found, bounded)
    ends = {v: known_ends(found, v) for v in known}
    coefficients = builder.input(found.own_type(target.type), builder.unused("coefficients"))
    shares = {node: _input(found, node.outputs[0], "share") for node in shared}
    multipliers = {v: signed(_input(found, v, "multiplier"), *ends[v]) for v in multiplied}
    found.run(ends)
    backwards = Backwards(found, shares, multipliers, {})
    bound = backwards.bound(target, coefficients)
    moving = [v for v, has_box in zip(graph.inputs, bounded, strict=True) if has_box and slopes]
    return builder.build([bound, *(backwards.slope(v) for v in moving)], allow_unused=True)


def _input(found: Boxes, var: Var, role: str) -> Var:
    return found.builder.input(found.own_type(var.type), found.builder.unused(f"{var.name}_{role}"))


def signed(multiplier: Var, lower: Var, upper: Var) -> Var:
    """The part of a multiplier for which ``multiplier·z ≤ 0`` is known: negative if z ≥ 0, positive if z ≤ 0."""
    not_negative, not_positive = step(lower, 0.0, 1.0, 1.0), step(upper, 1.0, 1.0, 0.0)
    return minimum(multiplier, 0.0) * not_negative + maximum(multiplier, 0.0) * not_positive


def relaxed(graph: Graph, bounded: Sequence[bool]) -> list[Node]:
    """The nodes that depend on a bounded input and are not affine maps of what does."""
    moving = varying(graph, bounded)
    return [
        node
        for node in graph.nodes
        if moving.intersection(node.inputs)
        and not is_affine(node, [i for i, v in enumerate(node.inputs) if v in moving])
    ]


class Backwards:
    """One pass backwards."""

    def __init__(
        self, boxes: Boxes, shares: Mapping[Node, Var], multipliers: Mapping[Var, Var], masks: Mapping[Var, Var]
    ) -> None:
        self._boxes, self._arithmetic = boxes, boxes.arithmetic
        self._shares, self._multipliers, self._masks = shares, multipliers, masks
        self._coefficients: dict[Var, Var] = {}
        self._terms: list[Var] = []
        self._lost: list[Var] = []
        self._products = 0

    def bound(self, target: Var, coefficients: Var) -> Var:
        centre = self._boxes[target].centre
        self._send(target, coefficients)
        self._add(coefficients, centre, centre)
        for node in reversed(self._boxes.graph.nodes):
            var = node.outputs[0]
            if var in self._coefficients:
                self._multiply(var)
                self._step(node, self._coefficients.pop(var))
        for var, arriving in self._coefficients.items():
            self._subtract(arriving, self._boxes[var].radius)
        return self._total()

    def slope(self, var: Var) -> Var:
        """The coefficients that reached an input."""
        found = self._coefficients.get(var)
        return self._boxes.builder.zeros(self._boxes[var].centre.type) if found is None else found

    def _send(self, var: Var, coefficients: Var) -> None:
        """Coefficients of a variable add up; the sum is rounded, and meets no more than the radius.

        A mask is 0 in cells that are not there, and 1 elsewhere.
        """
        box, before = self._boxes[var], self._coefficients.get(var)
        if not box.varies:
            return
        coefficients = coefficients * self._masks[var] if var in self._masks else coefficients
        if before is not None:
            coefficients = before + coefficients
            self._subtract(coefficients, box.radius * self._arithmetic.above(self._arithmetic.own(2)))
        self._coefficients[var] = coefficients

    def _multiply(self, var: Var) -> None:
        """Add a multiple of the variable that is known not to be positive, so that the sum stays below the target."""
        if var in self._multipliers:
            multiplier, centre = self._multipliers[var], self._boxes[var].centre
            self._add(multiplier, centre, centre)
            self._send(var, multiplier)

    def _step(self, node: Node, arriving: Var) -> None:
        operands = [self._boxes[v] for v in node.inputs]
        moving = [i for i, box in enumerate(operands) if box.varies]
        if not moving:
            self._subtract(arriving, self._boxes[node.outputs[0]].radius)
        elif is_affine(node, moving):
            self._pull_affine(node, operands, moving, arriving)
        else:
            self._pull_lines(node, operands, arriving)

    def _pull_affine(self, node: Node, operands: Sequence[Box], moving: Sequence[int], arriving: Var) -> None:
        if node.op.transpose is None:
            raise node.op.missing("transpose")
        a, box, bounded = self._arithmetic, self._boxes[node.outputs[0]], BoundedNode(node, self._arithmetic)
        given: list[Any] = [b.centre.type if b.varies else b.point for b in operands]
        begun = len(self._boxes.builder.nodes)
        pulled = [node.op.transpose(bounded.attrs, [arriving], given, i) for i in moving]
        roundings = sum(_terms(added) for added in self._boxes.builder.nodes[begun:])
        error = [] if box.sum_error is None else [box.sum_error.error]
        if roundings:
            reach = box.radius if box.sum_error is None else box.sum_error.reach
            error.append(reach * a.above(a.own(roundings)))
        if error:
            self._subtract(arriving, sum_of(error))
        for i, coefficients in zip(moving, pulled, strict=True):
            self._lose(operands[i], roundings)
            self._send(node.inputs[i], coefficients)

    def _pull_lines(self, node: Node, operands: Sequence[Box], arriving: Var) -> None:
        box = self._boxes[node.outputs[0]]
        bounded = BoundedNode(node, self._arithmetic)
        below, above = BoundingLine(box.lower), BoundingLine(box.upper)
        if node.op.relaxation is not None:
            below, above = node.op.relaxation(bounded, operands, self._shares.get(node))
        elif is_bilinear(node) and box.sum_error is not None and not any(b.varies for b in operands[2:]):
            below, above = _bilinear_lines(bounded, operands, box, box.sum_error.error, self._shares.get(node))
        positive, negative = maximum(arriving, 0.0), minimum(arriving, 0.0)
        (low, low_blur), (high, high_blur) = (self._at_centres(line, operands, box) for line in (below, above))
        self._add(arriving, low - low_blur, high + high_blur)
        halves = [(below, arriving)] if below.maps == above.maps else [(below, positive), (above, negative)]
        pulls = [(i, m, part) for line, part in halves for i, m in line.maps]
        for i in dict.fromkeys(i for i, _, _ in pulls):
            self._lose(operands[i], sum(m.roundings for j, m, _ in pulls if j == i))
            self._send(node.inputs[i], sum_of([m.pull(part) for j, m, part in pulls if j == i]))

    def _at_centres(self, line: BoundingLine, operands: Sequence[Box], box: Box) -> tuple[Var, Var]:
        """The line at the centres less the centre of the result, and what rounding may change of it and its slopes."""
        a = self._arithmetic
        values = [line.intercept, *(m.push(operands[i].centre) for i, m in line.maps), -box.centre]
        sizes = [abs(line.intercept), *(m.absolute(operands[i].magnitude) for i, m in line.maps), abs(box.centre)]
        sizes += [m.absolute(operands[i].radius) for i, m in line.maps]
        roundings = len(values) + 2 + max((m.roundings for _, m in line.maps), default=0)
        return sum_of(values), sum_of(sizes) * a.above(a.own(roundings) * (1 + a.own(16)))

    # --- inner products -----------------------------------------------------------------------------------------------

    def _add(self, coefficients: Var, low: Var, high: Var) -> None:
        """Add ``low`` times the positive coefficients and ``high`` times the negative ones, from below."""
        folded = self._arithmetic.above(self._arithmetic.own(_depth(coefficients) + 4))
        low, high = low - abs(low) * folded, high + abs(high) * folded
        self._sum(maximum(coefficients, 0.0) * low + minimum(coefficients, 0.0) * high)

    def _subtract(self, coefficients: Var, radius: Var) -> None:
        """Subtract ``⟨|coefficients|, radius⟩``, from below."""
        folded = self._arithmetic.inflated(radius, self._arithmetic.own(_depth(coefficients) + 4))
        self._sum(-(abs(coefficients) * folded))

    def _sum(self, cells: Var) -> None:
        cut = _balanced_split(cells.shape)
        self._products += cells.type.size
        self._terms.append(sum_over(sum_over(cells, tuple(range(cut, cells.ndim))), tuple(range(cut))))

    def _lose(self, operand: Box, roundings: int) -> None:
        """Each of the products behind a coefficient may lose half the smallest number to underflow."""
        self._lost.append(sum_over(operand.radius) * (2.0**-22 * (roundings + 4)))

    def _total(self) -> Var:
        a, tiny = self._arithmetic, float(np.finfo(self._arithmetic.dtype.numpy).tiny)
        size = sum_of([abs(t) for t in self._terms]) * a.above(a.own(len(self._terms) + 4))
        lost = sum_of([*self._lost, self._boxes.builder.operand(1 + self._products * 2.0**-22, size)])
        return sum_of(self._terms) - (size + lost * (2 * tiny))


def is_bilinear(node: Node) -> bool:
    """Whether lines of the node are planes of products, whose coefficients are not negative."""
    rule = node.op.sums
    return rule is not None and rule.factors == (0, 1) and rule.absolute is None and node.op.relaxation is None


@dataclass(frozen=True)
class _Factor:
    """The linear map ``B(x, held) + tilt·B(x, far)`` of one of two factors, or ``B(x, held)`` alone."""

    node: BoundedNode
    place: int
    held: Var
    tilt: Var | None
    far: Var

    def _operands(self, x: Any, held: Var) -> list[Any]:
        return [held, x] if self.place else [x, held]

    @cached_property
    def roundings(self) -> int:
        """Those that a number meets in the map and in its transpose."""
        scratch = Builder()
        arriving, *factors = (scratch.input(v.type) for v in (*self.node.node.outputs, *self.node.node.inputs[:2]))
        self._transpose(arriving, factors)
        apply(self.node.node.op, self.node.attrs, *factors)
        return sum(map(_terms, scratch.nodes)) + 4

    def _transpose(self, g: Var, operands: Sequence[Any]) -> Var:
        op = self.node.node.op
        if op.transpose is None:
            raise op.missing("transpose")
        return op.transpose(self.node.attrs, [g], operands, self.place)

    def push(self, x: Var) -> Var:
        through = self.node.apply(*self._operands(x, self.held))
        return through if self.tilt is None else through + self.tilt * self.node.apply(*self._operands(x, self.far))

    def pull(self, g: Var) -> Var:
        type = self.node.node.inputs[self.place].type
        through = self._transpose(g, self._operands(type, self.held))
        if self.tilt is None:
            return through
        return through + self._transpose(self.tilt * g, self._operands(type, self.far))

    def absolute(self, x: Var) -> Var:
        return self.node.apply(*self._operands(x, abs(self.held) if self.tilt is None else abs(self.held) + self.far))


def _bilinear_lines(node: BoundedNode, operands: Sequence[Box], box: Box, error: Var, share: Var | None) -> Lines:
    """McCormick's planes of ``B(x, w)`` around the centres ``c`` and ``d``, over the radii ``r`` and ``s``:

    ``B(x, w) = B(x, d) + B(c, w) − B(c, d) + B(x − c, w − d)``, and for every ``−1 ≤ t ≤ 1``, for each product
    ``t·s·(x − c) + t·r·(w − d) − r·s ≤ (x − c)·(w − d) ≤ t·r·(w − d) − t·s·(x − c) + r·s``.

    The share says where from −1 to 1; 0 is usual. The error is that of the centre, which is ``B(c, d)`` and a bias, and
    of any kernel; seven times it is more than what the maps at the centres are off by.
    """
    (x, w), a = operands[:2], node.arithmetic
    tilt = None if share is None else minimum(maximum(share, 0.0), 1.0) * 2.0 - 1.0
    of_w = _Factor(node, 1, x.centre, tilt, x.radius)
    room = a.inflated(node.apply(x.radius, w.radius), a.own(of_w.roundings + 4)) + error * 8.0
    lines = []
    for of_x, off in (
        (_Factor(node, 0, w.centre, tilt, w.radius), -room),
        (_Factor(node, 0, w.centre, None if tilt is None else -tilt, w.radius), room),
    ):
        at_centres = of_x.push(x.centre) + of_w.push(w.centre)
        lines.append(BoundingLine(box.centre - at_centres + off, ((0, of_x), (1, of_w))))
    return lines[0], lines[1]


def _terms(node: Node) -> int:
    """The roundings that a number meets in one node of a transposed map; indices and conditions are no numbers."""
    if not node.outputs[0].type.is_float:
        return 0
    if node.op.sums is None:
        raise node.op.missing("sums")
    return node.op.sums.max_roundings(node.attrs, *(v.type for v in node.inputs))


def _balanced_split(shape: tuple[int, ...]) -> int:
    """Where to split the axes so that two sums, one over each part, have few terms together."""
    return min(range(len(shape) + 1), key=lambda cut: prod(shape[:cut]) + prod(shape[cut:]))


def _depth(cells: Var) -> int:
    """The roundings that a term of the two sums meets."""
    cut = _balanced_split(cells.shape)
    return prod(cells.shape[:cut]) + prod(cells.shape[cut:])
