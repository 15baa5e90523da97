"""Branch and bound: a box is split until lines prove every part, best first, in bounded memory and time.

Two kinds of parts. **Boxes of inputs**, halved along the axis in which the bound is steepest, where few inputs vary;
every part gets new bounds of all inner variables. **Signs of inner variables**, where many inputs vary: a part is known
by which cells are on which side of a kink, and multipliers use what is known.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Var
from gradspec.transforms.lines import lines
from gradspec.verify.bounding import Bounder, Ends, IntermediateBounds, unflatten
from gradspec.verify.certificate import Leaf, Tree, node_numbers, sparse
from gradspec.verify.slopes import Free, FreeLines, WeightedRows

MOST_PARTS, MOST_BYTES = 2**18, 2**30
"""The parts that may wait, then the search gives up; and what they may hold of bounds or free numbers to start from."""


@dataclass(frozen=True)
class ProofGoal:
    """Rows of which, in each conjunction, one must be above its bound everywhere."""

    rows: Array
    least: Array
    """What a lower bound of each row must exceed, in float64."""
    conjunctions: tuple[Array, ...]
    """For each, the indices of its rows."""

    def margins(self, lower: Array, least: Array | None = None) -> Array:
        """How far each part is proved, ``(parts,)``: above 0, it is. ``least`` is that of each part, if they differ."""
        above = lower.astype(np.float64) - (self.least if least is None else least)
        above = np.where(np.isnan(above), -np.inf, above)
        return np.asarray(np.min([above[..., rows].max(axis=-1) for rows in self.conjunctions], axis=0))

    def best_rows(self, lower: Array, least: Array) -> list[int]:
        """The row of each conjunction that is farthest above its bound."""
        above = np.nan_to_num(lower.astype(np.float64) - least, nan=-np.inf)
        return [int(rows[np.argmax(above[rows])]) for rows in self.conjunctions]

    def proved_rows(self, lower: Array) -> list[int]:
        """The best row of each conjunction that is proved, and −1 for the others."""
        best = zip(self.best_rows(lower, self.least), self.conjunctions, strict=True)
        return [int(row - rows[0]) if lower[row].astype(np.float64) > self.least[row] else -1 for row, rows in best]


class Queue:
    """Parts that are not proved, the least proved first."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._order = count()

    def push(self, margin: float, part: object) -> None:
        heapq.heappush(self._heap, (float(margin), next(self._order), part))

    def pop(self, most: int) -> list[Any]:
        return [heapq.heappop(self._heap)[2] for _ in range(min(most, len(self._heap)))]

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def margin(self) -> float:
        return self._heap[0][0] if self._heap else np.inf


# --- boxes of inputs --------------------------------------------------------------------------------------------------

ROWS = 16
"""The rows of one part that are bounded together."""

LEAST_TOGETHER, MOST_TOGETHER = 4, 64
"""Such groups of rows in one run; where not even so few boxes fit with all their rows, they are not split."""

MOST_COEFFICIENTS = 2**25
"""The coefficients of all its rows at the largest variable."""


@dataclass(frozen=True)
class InputPart:
    """A box of the bounded inputs, flat, of one of the cases that are proved together."""

    case: int
    lower: Array
    upper: Array
    number: int = 0
    """In the tree of parts of its case."""
    known: IntermediateBounds | None = None
    """Those of the box that it is half of, if they are kept."""


class InputSplitting:
    """Bounds of many boxes of inputs at once, inner variables included.

    Boxes are the cheaper the smaller they are: rows are spent on cells alone that have a kink inside.
    """

    most, most_known = 256, 0
    """Parts that are bounded in one pass, and those that may wait with what is known of their inner variables."""

    def __init__(self, bounder: Bounder, goal: ProofGoal, least: Array) -> None:
        self._bounder, self._goal, self._least = bounder, goal, least
        self._inner, self._dtype = bounder.pre_activations, bounder.arithmetic.dtype.numpy
        self._targets = [v for v in self._inner if v not in bounder.single]
        self._together = int(max(1, min(MOST_TOGETHER, MOST_COEFFICIENTS // (ROWS * bounder.largest))))
        self._together *= bounder.execution.parts
        self.most *= bounder.execution.parts

    @staticmethod
    def fits(bounder: Bounder) -> bool:
        """Whether all rows of all inner variables are few enough to be bounded anew for several parts."""
        rows = max((2 * v.type.size for v in bounder.pre_activations), default=1)
        return MOST_COEFFICIENTS // (rows * bounder.largest) >= LEAST_TOGETHER

    def bound_parts(self, parts: Sequence[InputPart]) -> tuple[Sequence[InputPart], Array, Array]:
        """The parts, the margin of each, and the axis along which to split it."""
        lows, highs = (np.stack([getattr(part, name) for part in parts]) for name in ("lower", "upper"))
        pairs = zip(*(unflatten(flat, self._bounder.graph.inputs) for flat in (lows, highs)), strict=True)
        domains = [end for pair in pairs for end in pair]
        known = [np.repeat(end[None], len(parts), axis=0) for end in self._bounder.unknown().flat()]
        for var in self._targets:
            at = 2 * self._inner.index(var)
            known[at : at + 2] = self._tighten(var, [*domains, *known])
        rows = self._goal.rows
        groups = -(-len(rows) // ROWS)
        padded = np.resize(rows, (groups, len(rows) if groups == 1 else ROWS, *rows.shape[1:]))
        of = np.repeat(np.arange(len(parts)), groups)
        found = self._lower(self._bounder.graph.outputs[0], [*domains, *known], of, np.tile(padded, (len(parts), 1, 1)))
        lower, *slopes = (a.reshape(len(parts), -1, *a.shape[2:])[:, : len(rows)] for a in found)
        margins = self._goal.margins(lower, self._least[[part.case for part in parts]])
        reach = [np.abs(s).reshape(len(parts), len(rows), -1).sum(axis=1) for s in slopes]
        with np.errstate(over="ignore", invalid="ignore"):
            gains = np.nan_to_num(np.concatenate(reach, axis=1) * (highs - lows), nan=np.inf)
        return parts, margins, np.argmax(gains, axis=1)

    def _tighten(self, var: Var, domains: Sequence[Array]) -> Ends:
        """The bounds of a variable in all boxes, by lines where these may help; half of a group's rows are negative."""
        count, at = len(domains[0]), 2 * self._inner.index(var)
        ends = self._run("boxes", domains, np.arange(count))
        low, high = np.fmax(ends[at], -np.inf), np.fmin(ends[at + 1], np.inf)
        box, cell = np.nonzero(self._bounder.undecided(var, low, high).reshape(count, -1))
        if len(box):
            groups = -(-np.bincount(box, minlength=count) // (ROWS // 2))
            rank = np.arange(len(box)) - np.searchsorted(box, box)
            group, slot = (np.cumsum(groups) - groups)[box] + rank // (ROWS // 2), rank % (ROWS // 2)
            rows = np.zeros((groups.sum(), ROWS, var.type.size), self._dtype)
            rows[group, slot, cell], rows[group, ROWS // 2 + slot, cell] = 1, -1
            of = np.repeat(np.arange(count), groups)
            (found,) = self._lower(var, domains, of, rows.reshape(*rows.shape[:2], *var.shape))
            for end, choose, bound in (
                (low, np.fmax, found[group, slot]),
                (high, np.fmin, -found[group, ROWS // 2 + slot]),
            ):
                flat = end.reshape(count, -1)
                flat[box, cell] = choose(flat[box, cell], bound)
        return low, high

    def _lower(self, target: Var, domains: Sequence[Array], of: Array, rows: Array) -> list[Array]:
        """Lower bounds of groups of rows of a target, each over the box that ``of`` names; and slopes of the output."""
        return self._run((target, rows.shape[1]), domains, of, rows)

    def _run(self, what: Any, domains: Sequence[Array], of: Array, *rows: Array) -> list[Array]:
        run, results = self._compiled(what), list[Any]()
        for begun in range(0, len(of), self._together):
            some = np.resize(np.arange(begun, min(begun + self._together, len(of))), self._together)
            found = run(*(a[of[some]] for a in domains), *(a[some] for a in rows))
            results.append(found if isinstance(found, tuple) else (found,))
        return [np.concatenate(arrays)[: len(of)] for arrays in zip(*results, strict=True)]

    def _compiled(self, what: Any) -> Callable[..., Any]:
        """Bounds of so many boxes at once: by boxes, or of as many rows of a target, by lines."""
        b, key = self._bounder, ("boxes of inputs", what)
        if key not in b.runs:
            graph = b.boxes_graph()
            if what != "boxes":
                target, count = what
                slopes = target is b.graph.outputs[0]
                graph = lines(b.graph, b.arithmetic, b.bounded, target, b.pre_activations, slopes=slopes).simplify()
                graph = graph.batch(count, [*[None] * (len(graph.inputs) - 1), 0])
            b.runs[key] = b.execution.compile(graph.batch(self._together).simplify())
        return b.runs[key]  # type: ignore[no-any-return]


class LargeInputSplitting:
    """Bounds of boxes of inputs one after the other, where the rows of a few are too many to be bounded together.

    What is known of a box holds in both halves, so that only the cells that it left undecided take rows again.
    """

    most = 1

    def __init__(self, bounder: Bounder, goal: ProofGoal, least: Array) -> None:
        self._bounder, self._goal, self._least = bounder, goal, least
        self.most_known = MOST_BYTES // max(1, sum(end.nbytes for end in bounder.unknown().flat()))

    def bound_parts(self, parts: Sequence[InputPart]) -> tuple[Sequence[InputPart], Array, Array]:
        (part,) = parts
        b, goal, least = self._bounder, self._goal, self._least[part.case]
        pairs = zip(*(unflatten(flat, b.graph.inputs) for flat in (part.lower, part.upper)), strict=True)
        inputs = [end for pair in pairs for end in pair]
        known = b.tighten(inputs, part.known or b.unknown())
        lower = b.lower(inputs, known, b.graph.outputs[0], goal.rows)
        worst = min(goal.best_rows(lower, least), key=lambda row: float(lower[row] - least[row]))
        slopes = np.concatenate([slope.reshape(-1) for slope in b.steep(inputs, known, goal.rows[worst])[1:]])
        with np.errstate(over="ignore", invalid="ignore"):
            gains = np.nan_to_num(np.abs(slopes) * (part.upper - part.lower), nan=np.inf)
        return [replace(part, known=known)], goal.margins(lower[None], least[None]), np.argmax(gains[None], axis=1)


def split_box(part: InputPart, axis: int, tree: Tree) -> Iterator[InputPart]:
    """Split a box at the middle of an axis, and record the cut in the tree."""
    middle = part.lower[axis] / 2 + part.upper[axis] / 2
    below, above = tree.split(part.number, axis, float(middle))
    lower, upper = part.lower.copy(), part.upper.copy()
    lower[axis] = upper[axis] = middle
    yield replace(part, upper=upper, number=below)
    yield replace(part, lower=lower, number=above)


# --- signs of inner variables -----------------------------------------------------------------------------------------

FEW_TOGETHER = 4
"""Parts that are bounded in one pass where there are no more, as at the root; else up to ``MOST_TOGETHER``."""

CELLS_TOGETHER = 2**14
"""Of the largest variable in one pass: more parts of larger networks are not cheaper together, and few may wait."""

MOST_TRIED = 16
"""Cells of a part that are split on trial before one of them is."""


@dataclass(frozen=True)
class SplitConstraint:
    """Inner variable number ``variable`` is at most its kink at ``cell``, or at least."""

    variable: int
    cell: int
    above: bool
    at: float


@dataclass(frozen=True)
class SignPart:
    """The sides of some inner cells, and the conjunction that is to be refuted there."""

    conjunction: int
    sides: tuple[SplitConstraint, ...] = ()
    number: int = 0
    """In the tree of its conjunction."""
    start: Free | None = None
    """The free numbers of the part that it is half of."""


@dataclass(frozen=True)
class BoundedParts:
    """What was found of some parts: margins, where to split them, and by which free numbers."""

    margins: Array
    sides: list[SplitConstraint | None]
    free: Free
    leaf: Callable[[int], Leaf]


class SignSplitting:
    """Bounds of many parts at once, each known by the sides of some inner cells."""

    def __init__(self, bounder: Bounder, goal: ProofGoal, inputs: Sequence[Array], known: IntermediateBounds) -> None:
        self._bounder, self._goal, self._inner = bounder, goal, bounder.pre_activations
        self._known, _ = bounder.boxes(inputs, known)
        self._inputs = list(inputs)
        _, ((low, high),) = bounder.boxes(inputs, known)
        self._size = np.fmin(np.maximum(np.abs(low), np.abs(high)).astype(np.float64), np.finfo(np.float64).max)
        rows = 1 << (max(map(len, goal.conjunctions)) - 1).bit_length()  # few numbers of rows are compiled for
        self._rows = [np.resize(of, rows) for of in goal.conjunctions]
        self._lines = FreeLines(bounder, bounder.graph.outputs[0], rows)
        largest = max((v.type.size for v in bounder.pre_activations), default=1)
        self.together = int(max(FEW_TOGETHER, min(MOST_TOGETHER, CELLS_TOGETHER // (largest * rows))))
        self._sizes = [n for n in (FEW_TOGETHER, MOST_TOGETHER) if n < self.together * bounder.execution.parts]
        self.together *= bounder.execution.parts
        *self._starts, cells = np.cumsum([0, *(v.type.size for v in self._inner)])
        """Of each inner variable, the number of its first cell among all cells."""
        self._tried, self._gained = np.zeros(cells), np.zeros(cells)
        usual = self._lines.initial(self._known).at(0)
        self._initial = replace(usual, weights=[np.eye(rows)]).halved()
        self.most_starts = MOST_BYTES // max(1, sum(a.nbytes for a in self._initial.arrays()))
        """The waiting parts that may hold free numbers; others start from the usual ones."""

    def bound_parts(self, parts: Sequence[SignPart], steps: int) -> BoundedParts:
        size = next((n for n in self._sizes if len(parts) <= n), self.together)
        padded = [*parts, *[parts[-1]] * (size - len(parts))]
        known = self._stack_known(padded)
        rows = np.stack([self._rows[part.conjunction] for part in padded])
        domains = [*(np.broadcast_to(a, (size, *a.shape)) for a in self._inputs), *known]
        free = Free.stack([part.start or self._initial for part in padded], domains[0].dtype)
        sums = WeightedRows(self._goal.rows[rows], self._goal.least[rows], self._size)
        above, free = self._lines.improve(domains, free, steps, lambda above: bool((above > 0).any(axis=1).all()), sums)
        best = np.argmax(above, axis=1)
        counted = (np.arange(rows.shape[1]) == best[:, None]).astype(domains[0].dtype)
        margins = above[np.arange(size), best]
        sides: list[SplitConstraint | None] = [None] * len(parts)
        if self._starts and not np.all(margins > 0):
            rows, needed = sums.of(free.weights[0])
            gains = self._gains(known, self._lines.gradient([*domains, rows], free, counted))[: len(parts)]
            gains[margins[: len(parts)] > 0] = -np.inf
            domains += [rows, *free.shares, *free.multipliers, needed, best]
            sides = self._best_sides(gains, domains, margins)

        def leaf(i: int) -> Leaf:
            return self._leaf(parts[i].conjunction, int(best[i]), [end[i] for end in known], free.at(i))

        return BoundedParts(margins[: len(parts)], sides, free, leaf)

    def numbers(self) -> tuple[list[int], list[int]]:
        """The bent operators, and the first that bends each variable that is multiplied, as certificates know them."""
        of = self._lines
        firsts = [self._bounder.bends(var)[0] for var in of.multiplied]
        return node_numbers(self._bounder.graph, of.shared), node_numbers(self._bounder.graph, firsts)

    def halves(self, part: SignPart, side: SplitConstraint, trees: Mapping[int, Tree]) -> Iterator[SignPart]:
        """Both sides of a kink, and record the cut in the tree: the operator as certificates know it, and the cell."""
        bends = self._bounder.bends(self._inner[side.variable])
        cut = node_numbers(self._bounder.graph, bends[:1])[0], side.cell
        for number, above in zip(trees[part.conjunction].split(part.number, *cut), (False, True), strict=True):
            yield replace(part, sides=(*part.sides, replace(side, above=above)), number=number)

    def _leaf(self, conjunction: int, row: int, known: Sequence[Array], free: Free) -> Leaf:
        """The sum that is proved of a part, and the slopes and multipliers that make a difference to it."""
        ends = IntermediateBounds({v: (known[2 * i], known[2 * i + 1]) for i, v in enumerate(self._inner)})
        shares, multipliers = [], []
        for node, array in zip(self._lines.shared, free.shares, strict=True):
            shares.append(sparse(array[row], ends.undecided(node)))
        for var, array in zip(self._lines.multiplied, free.multipliers, strict=True):
            low, high = ends[var]
            usable = np.minimum(array[row], 0) * (low >= 0) + np.maximum(array[row], 0) * (high <= 0)
            multipliers.append(sparse(usable, usable != 0))
        weights = free.weights[0][row].reshape(-1)
        places = np.arange(len(weights)) % len(self._goal.conjunctions[conjunction])
        return Leaf(np.bincount(places, weights), shares, multipliers)

    def _stack_known(self, parts: Sequence[SignPart]) -> list[Array]:
        known = [np.repeat(end[None], len(parts), axis=0) for end in self._known.flat()]
        for i, part in enumerate(parts):
            for side in part.sides:
                known[2 * side.variable + (not side.above)][i].flat[side.cell] = side.at
        return known

    def _gains(self, known: Sequence[Array], gradients: Sequence[Array]) -> Array:
        """``(parts, cells)``: to first order, what the bound gains on the worse side by a split at a kink inside."""
        gains = []
        for i, var in enumerate(self._inner):
            low, high = known[2 * i], known[2 * i + 1]
            kink = self._kink(var)
            inside = (low < kink) & (kink < high)
            above, below = gradients[2 * i] * (kink - low), gradients[2 * i + 1] * (kink - high)
            gain = np.nan_to_num(np.minimum(above, below) + 0.1 * np.maximum(above, below))
            gains.append(np.where(inside, gain, -np.inf).reshape(len(low), -1))
        return np.concatenate(gains, axis=1)

    def _best_sides(self, gains: Array, domains: Sequence[Array], margins: Array) -> list[SplitConstraint | None]:
        """Where to split each part: of the cells that promise most, the one whose halves are bounded best.

        What a cell promises is what it gained where it was tried, or else its gain to first order.
        """
        average = self._gained / np.maximum(self._tried, 1)
        promised = np.where(np.isfinite(gains) & (self._tried > 0), average, gains)
        most = min(MOST_TRIED, gains.shape[1])
        top = np.argpartition(-promised, most - 1, axis=1)[:, :most]
        part, place = np.nonzero(np.isfinite(np.take_along_axis(gains, top, axis=1)))
        cells = top[part, place]
        found = self._halves(part, cells, domains) - margins[part]
        score = found.min(axis=0) + 0.1 * found.max(axis=0) + 0.01 * gains[part, cells]  # so that ties are broken
        score = np.nan_to_num(score, nan=0.0, posinf=0.0, neginf=0.0)
        np.add.at(self._tried, cells, 1)
        np.add.at(self._gained, cells, score)
        sides: list[SplitConstraint | None] = [None] * len(gains)
        for k in np.argsort(score, kind="stable"):
            variable = int(np.searchsorted(self._starts, cells[k], side="right")) - 1
            at = self._kink(self._inner[variable])
            sides[part[k]] = SplitConstraint(variable, int(cells[k] - self._starts[variable]), True, at)
        return sides

    def _halves(self, part: Array, cells: Array, domains: Sequence[Array]) -> Array:
        """The margin of each part if a cell of it is at most, or at least, its kink; 0 if that is proved."""
        found = np.zeros((2, len(cells)))
        variables = np.searchsorted(self._starts, cells, side="right") - 1
        begun, size = len(self._inputs), self.together
        run = self._lines.run(size)
        for first in range(0, len(cells), size):
            some = np.resize(np.arange(first, min(first + size, len(cells))), size)
            for above in (False, True):
                *arrays, needed, best = (a[part[some]] for a in domains)
                for i in set(variables[some].tolist()):
                    at = np.flatnonzero(variables[some] == i)
                    ends = arrays[begun + 2 * i + (not above)].reshape(size, -1)
                    ends[at, cells[some[at]] - self._starts[i]] = self._kink(self._inner[i])
                bounds = run(*arrays) - needed
                found[int(above), some] = np.minimum(bounds[np.arange(size), best], 0)
        return found

    def _kink(self, var: Var) -> float:
        users = self._bounder.bends(var)
        return users[0].op.kinks(users[0].attrs)[0] if users else np.nan  # type: ignore[misc]
