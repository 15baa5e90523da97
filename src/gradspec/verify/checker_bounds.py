"""The checker's bounds of a network over boxes of its inputs. Nothing that searches proofs is used here.

Bounds are computed in float64, to nearest, and every rule adds what that may lose. With ``u = 2⁻⁵³``, a number that met
n roundings is off by at most ``Γ_n = (1+u)ⁿ − 1 ≤ 1.01·n·u`` (n < 2⁴⁰) of the sum of the magnitudes of its terms, in
any order of summation; what underflows is less than ``TINY = 2⁻¹⁰⁰⁰`` together. ``own(n)`` is ``Γ_{n+8}``: eight
roundings are room for those of the error term itself, of adding it, and of adding up. Quantities that are sums of
numbers that are not negative are off by Γ of themselves, and are made ``1 + own(n)`` times as large.

**Boxes.** For an affine ``y = F·z + v`` with z in ``c ± r``, and ``M = |F|·max|z| + |v|``:
``y`` lies in ``F·c + v ± (|F|·r·(1 + own) + own(n)·M + t)``. All that is rounded has terms whose magnitudes are in M.

**Lines.** ``target ≥ Σ A·z + b`` is kept, the coefficients A being the floats they are. For an affine node,
``A·y = (A·F)·z + A·v ≥ fl(A·F)·z + fl(A·v) − |A|·(own(n)·M + t)``, as ``|fl(A·F) − A·F|·|z| ≤ Γ·|A|·|F|·|z|`` and
``|A|·|F|·|z| ≤ |A|·M``; n counts the terms of the transposed map and the cells of y, over which ``A·v`` is added up.
Where an operator bends, the line below it counts where A is positive, the one above it where A is negative. Two
coefficients that meet are added, which costs Γ of the sum, times ``max|z|``. At the inputs, ``A·x`` is least at a
corner of the box. If ``z ≥ 0`` is known, a multiple ``μ·z``, ``μ ≤ 0``, may be added, and if ``z ≤ 0``, one with
``μ ≥ 0``: it is not positive.

**Any kernel.** A kernel's result is off by at most ``t``: for a sum of N leaves, of which S is the sum of magnitudes,
``E = Γ_N·S + N·η·(1+Γ_N)`` of the accumulator, float32 or, for float64, float64; stored in a smaller format, its
roundoff of ``S + E`` and its η besides, and the roundoff once more for an attribute that is a number of that format. A
sum of sums may be one tree of all their leaves, so N and S are handed on by what adds and by what moves numbers. Where
``S + E`` could overflow, nothing is known. If t is left out (``"real"``), the same is shown of the real numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from gradspec.graph.builder import needed
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import DType, bf16, f16, f64
from gradspec.spec.errors import UnsupportedError
from gradspec.verify.checker_operators import (
    AFFINE,
    TINY,
    AffineMap,
    BendLines,
    U,
    WindowTaps,
    leaky_lines,
    max_boxes,
    max_lines,
)

MOST_CELLS = 2**18
"""The coefficients that are worked on at once, in the largest variable."""


def own(n: int) -> float:
    return 1.01 * (n + 8) * U


# --- kernels ----------------------------------------------------------------------------------------------------------

FORMATS = {f16: (2.0**-11, 2.0**-24, 65504.0), bf16: (2.0**-8, 2.0**-133, 3.3e38)}
"""Of the formats that results are only stored in: the roundoff, the least and (from below) the largest number."""


def tolerance(terms: int, mass: Array, stored: DType) -> Array:
    """How far a kernel's sum of so many leaves, of this mass, may be from the exact one."""
    u, least, largest = (U, 5e-324, 1.79e308) if stored is f64 else (2.0**-24, 2.0**-149, 3.4e38)
    gamma = 1.01 * terms * u / (1 - terms * u) if terms * u < 0.5 else np.inf
    error = (gamma * mass + terms * least * (1 + gamma)) * (1 + own(4))
    if stored in FORMATS:
        roundoff, tiny, largest = FORMATS[stored]
        error = (error + 2 * roundoff * (mass + error) + tiny) * (1 + own(4))
    return np.where(mass + error < largest, error, np.inf)


# --- boxes ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CheckedBox:
    """The numbers a variable can have, over some boxes of inputs; as a sum, it has ``leaves``, of this ``mass``."""

    low: Array
    high: Array
    leaves: int
    mass: Array
    error: Array | None = None
    """Of an affine map: what its lines lose, for each unit of a coefficient."""

    @property
    def size(self) -> Array:
        return np.maximum(np.abs(self.low), np.abs(self.high))

    def within(self, low: Array, high: Array) -> CheckedBox:
        return CheckedBox(np.maximum(self.low, low), np.minimum(self.high, high), self.leaves, self.mass, self.error)


def plain_box(low: Array, high: Array) -> CheckedBox:
    return CheckedBox(low, high, 1, np.maximum(np.abs(low), np.abs(high)))


Ends = tuple[Array, Array]
Known = Mapping[Var, Ends]
Rows = Mapping[Any, Array]
Refine = Callable[[Var, Mapping[Var, CheckedBox], Ends], Ends]


class CheckedNetwork:
    """A graph as maps and bends, and bounds of its variables over boxes of its inputs."""

    def __init__(self, graph: Graph, kernels: str) -> None:
        self.graph, self.any = graph, kernels == "any"
        if not all(v.type.is_float for v in graph.inputs):
            raise UnsupportedError("the checker knows networks of floats only")
        self.numbered, _ = needed(graph.nodes, graph.outputs)
        self.values = {v: array.astype(np.float64) for v, array in graph.constants.items() if v.type.is_float}
        self.maps: dict[Node, AffineMap | WindowTaps | float] = {}
        self.points = {v: self.values[v] for v in graph.outputs if v in self.values}
        """Constants that are bounded as if they varied, since a sum of constants is rounded too."""
        for node in self.numbered:
            self._enter(node)
        self.nodes = tuple(self.maps)
        self.largest = max(v.type.size for v in (*graph.inputs, *(n.outputs[0] for n in self.nodes)))
        self.inner = self._inner()

    def _enter(self, node: Node) -> None:
        """What a node is: an affine map of what varies, or a bend; constants that are only moved stay constants."""
        if any(not v.type.is_float for v in (*node.inputs, *node.outputs)) or len(node.outputs) != 1:
            raise UnsupportedError(f"the checker does not know {node.op} of these types")
        values = [self.values.get(v) for v in node.inputs]
        begin = values[0] if all(value is not None for value in values) else None
        if begin is not None:
            values[0] = None
        rule = self._rule(node, values)
        if begin is None:
            self.maps[node] = rule
        elif isinstance(rule, AffineMap) and rule.moves:
            self.values[node.outputs[0]] = rule.parts[0].push(begin[None])[0] + rule.offset
        else:
            self.points[node.inputs[0]] = begin
            self.maps[node] = rule

    def _rule(self, node: Node, values: Sequence[Array | None]) -> AffineMap | WindowTaps | float:
        name, attrs = node.op.name, cast(Any, node.attrs)
        if name == "relu":
            return 0.0
        if name == "leaky_relu" and 0 <= attrs.negative_slope <= 1:
            return float(attrs.negative_slope)
        if name == "max_pool":
            return WindowTaps.of(node)
        if name not in AFFINE:
            raise UnsupportedError(f"the checker does not know {name}, so it cannot check proofs about this network")
        return AFFINE[name](node, values)

    def _inner(self) -> dict[Var, bool]:
        """What bends is applied to, where it is an affine map; with whether lines can be tighter than its box.

        They are not if every cell is one sum over an input.
        """
        makers = {node.outputs[0]: node for node in self.nodes}
        sums = dict.fromkeys((*self.graph.inputs, *self.points), 0)
        for node in self.nodes:
            found, moving = self.maps[node], [v for v in node.inputs if v not in self.values or v in self.points]
            if isinstance(found, AffineMap) and len(moving) == 1 and moving[0] in sums:
                count = sums[moving[0]] + (not found.moves)
                if count <= 1:
                    sums[node.outputs[0]] = count
        bent = [node.inputs[0] for node in self.nodes if not isinstance(self.maps[node], AffineMap)]
        affine = [v for v in dict.fromkeys(bent) if v in makers and isinstance(self.maps[makers[v]], AffineMap)]
        return {v: v not in sums for v in affine}

    # --- forwards -----------------------------------------------------------------------------------------------------

    def boxes(self, inputs: Known, known: Known) -> dict[Var, CheckedBox]:
        """The boxes of all variables; ``known`` bounds some of them."""
        count = len(next(iter(inputs.values()))[0])
        found = {v: plain_box(*ends) for v, ends in inputs.items()}
        for v, value in self.points.items():
            found[v] = plain_box(*(np.broadcast_to(value, (count, *value.shape)),) * 2)
        for node in self.nodes:
            var, rule = node.outputs[0], self.maps[node]
            if isinstance(rule, AffineMap):
                box = self._affine_box(node, rule, found)
            else:
                box = self._bend_box(node, rule, found[node.inputs[0]])
            found[var] = box.within(*known[var]) if var in known else box
        return found

    def _affine_box(self, node: Node, rule: AffineMap, found: Mapping[Var, CheckedBox]) -> CheckedBox:
        var = node.outputs[0]
        operands = [(part, found[node.inputs[part.operand]]) for part in rule.parts]
        leaves = rule.leaves([box.leaves if rule.joins else 1 for _, box in operands])
        centre, size, mass = rule.offset, rule.offset_size, rule.offset_size
        reach: Any = 0.0
        for part, box in operands:
            middle = box.low / 2 + box.high / 2
            centre = centre + part.push(middle)
            radius = np.maximum(box.high - middle, middle - box.low) * (1 + own(1))
            reach = reach + part.size(radius)
            size = size + part.size(box.size)
            mass = mass + part.size(box.mass) if rule.joins and self.any else size
        steps = rule.roundings + len(operands)
        size, mass = size * (1 + own(steps)), mass * (1 + own(steps))
        off = tolerance(leaves, mass, var.dtype) if self.any and not rule.moves else 0.0
        radius = reach * (1 + own(steps)) + own(steps) * size + (TINY + off)
        error = own(steps + var.type.size) * size + (TINY + off)
        low, high = centre - radius, centre + radius
        unknown = ~(np.isfinite(low) & np.isfinite(high))
        return CheckedBox(np.where(unknown, -np.inf, low), np.where(unknown, np.inf, high), leaves, mass, error)

    def _bend_box(self, node: Node, rule: WindowTaps | float, box: CheckedBox) -> CheckedBox:
        shape = node.outputs[0].shape
        if isinstance(rule, WindowTaps):
            return plain_box(*(max_boxes(rule, end).reshape(-1, *shape) for end in (box.low, box.high)))
        low, high = (np.where(end < 0, rule * end if rule else 0.0, end) for end in (box.low, box.high))
        if not rule:
            return plain_box(low, high)
        off = self._bend_error(node, rule, box)
        return plain_box(low - off, high + off)

    def _bend_error(self, node: Node, rule: float, box: CheckedBox) -> Array:
        """Of ``a·z``, where z is negative: this product's own, and a kernel's, with its rounding of ``a``."""
        negative = rule * np.maximum(-box.low, 0.0)
        return own(2) * box.size + TINY + (tolerance(2, negative, node.outputs[0].dtype) if self.any else 0.0)

    def lines(self, node: Node, found: Mapping[Var, CheckedBox], share: Array | None) -> BendLines:
        rule, box = self.maps[node], found[node.inputs[0]]
        if isinstance(rule, WindowTaps):
            return max_lines(rule, node.inputs[0].shape, box.low, box.high)
        assert isinstance(rule, float)
        lines = leaky_lines(rule, box.low, box.high, share)
        if not rule:
            return lines
        off = self._bend_error(node, rule, box)
        return BendLines(lines.low - off, lines.high + off, lines.size + off, lines.pull, lines.roundings)

    # --- backwards ----------------------------------------------------------------------------------------------------

    def lower(
        self, found: Mapping[Var, CheckedBox], targets: Sequence[tuple[Var, Array]], shares: Rows, multipliers: Rows
    ) -> Array:
        """``(boxes, rows)``: lower bounds of ``Σ ⟨coefficients, target⟩``; minus infinity if there is none."""
        tally = _Tally(found)
        for var, coefficients in targets:
            tally.send(var, coefficients)
        for node in reversed(self.nodes):
            var, rule = node.outputs[0], self.maps[node]
            if var in multipliers and var in tally.held:
                tally.send(var, multipliers[var])
            if var not in tally.held:
                continue
            arriving = tally.held.pop(var)
            if isinstance(rule, AffineMap):
                tally.add(arriving, rule.offset[None])
                tally.lose(np.abs(arriving), found[var].error)
                for part in rule.parts:
                    tally.send(node.inputs[part.operand], _by_rows(part.pull, arriving))
            else:
                lines = self.lines(node, found, shares.get(node))
                tally.least(arriving, lines.low, lines.high)
                tally.lose(np.abs(arriving), own(lines.roundings + var.type.size) * lines.size)
                tally.send(node.inputs[0], lines.pull(arriving))
        for var, arriving in tally.held.items():
            box = found[var]
            tally.least(arriving, box.low, box.high)
            tally.lose(np.abs(arriving), own(var.type.size) * box.size)
        return tally.total()

    def tighten(self, inputs: Known, refine: Refine = lambda var, found, ends: ends) -> dict[Var, Ends]:
        """Bounds of what bends are applied to, each by lines over those before it, and what else makes it tighter."""
        known: dict[Var, Ends] = {}
        for var, worthwhile in self.inner.items():
            if worthwhile:
                found = self.boxes(inputs, known)
                known[var] = refine(var, found, self._tighten_cells(var, found))
        return known

    def _tighten_cells(self, var: Var, found: Mapping[Var, CheckedBox]) -> tuple[Array, Array]:
        """Only the cells that each box itself wants, so that a leaf does not depend on those it is worked on with."""
        box, count = found[var], len(found[var].low)
        bends = [self.maps[node] for node in self.nodes if node.inputs[0] is var]
        inside = (box.low < 0) & (box.high > 0)
        wanted = inside if all(isinstance(bend, float | AffineMap) for bend in bends) else box.high > box.low
        wanted = wanted.reshape(count, -1)
        cells = np.flatnonzero(wanted.any(axis=0))
        low, high = (end.reshape(count, -1).copy() for end in (box.low, box.high))
        most = max(1, MOST_CELLS // (2 * count * self.largest))
        for begun in range(0, len(cells), most):
            some = cells[begun : begun + most]
            rows = np.zeros((2 * len(some), var.type.size))
            rows[np.arange(len(some)), some], rows[np.arange(len(some), 2 * len(some)), some] = 1.0, -1.0
            shape = (count, len(rows), *var.shape)
            lower = self.lower(found, [(var, np.broadcast_to(rows.reshape(shape[1:]), shape))], {}, {})
            below, above = lower[:, : len(some)], -lower[:, len(some) :]
            low[:, some] = np.where(wanted[:, some], np.maximum(low[:, some], below), low[:, some])
            high[:, some] = np.where(wanted[:, some], np.minimum(high[:, some], above), high[:, some])
        return low.reshape(box.low.shape), high.reshape(box.low.shape)


class _Tally:
    """Coefficients on their way to the inputs, the constant of the bound, and what was lost."""

    def __init__(self, found: Mapping[Var, CheckedBox]) -> None:
        self._found = found
        self.held: dict[Var, Array] = {}
        self._sum: Any = 0.0
        self._size: Any = 0.0
        self._lost: Any = TINY
        self._terms = self._longest = 0

    def send(self, var: Var, coefficients: Array) -> None:
        size = self._found[var].size
        if var in self.held:
            coefficients = self.held[var] + coefficients
            self.lose(np.abs(coefficients), own(2) * size)
        self.held[var] = coefficients
        self._lost = self._lost + (TINY * size.reshape(len(size), -1).sum(axis=1))[:, None]

    def add(self, coefficients: Array, by: Array) -> None:
        if by.any():
            term = _inner(coefficients, by)
            self._sum, self._size, self._terms = self._sum + term, self._size + np.abs(term), self._terms + 1

    def least(self, coefficients: Array, low: Array, high: Array) -> None:
        """``low`` times the positive coefficients and ``high`` times the negative ones."""
        if low.any():
            self.add(np.maximum(coefficients, 0.0), low)
        self.add(np.minimum(coefficients, 0.0), high)

    def lose(self, sizes: Array, by: Array | None) -> None:
        assert by is not None
        self._longest = max(self._longest, by[0].size)
        self._terms += 1
        self._lost = self._lost + _inner(sizes, by)

    def total(self) -> Array:
        lost = self._lost * (1 + own(self._longest + self._terms)) + own(self._terms) * self._size
        lower = self._sum - lost
        return np.where(np.isnan(lower), -np.inf, lower)


def _inner(coefficients: Array, by: Array) -> Array:
    """``(boxes, rows)`` of inner products over the cells."""
    count, rows = coefficients.shape[:2]
    cells = by.reshape(len(by), -1, 1)
    if len(by) == 1:
        return (coefficients.reshape(count * rows, -1) @ cells[0]).reshape(count, rows)  # type: ignore[no-any-return]
    return (coefficients.reshape(count, rows, -1) @ cells)[..., 0]


def _by_rows(pull: Callable[[Array], Array], coefficients: Array) -> Array:
    count, rows = coefficients.shape[:2]
    found = pull(coefficients.reshape(count * rows, *coefficients.shape[2:]))
    return found.reshape(count, rows, *found.shape[1:])
