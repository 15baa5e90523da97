"""The checker: whether a certificate proves a property of a network. Nothing that searches proofs is used here.

The tree of each case divides its box, and at every leaf the checker's own bounds must refute every conjunction: one of
its rows, ``C·y + D·x ≤ b``, is shown to have a left side above b. How bounds are found, and what is added to them for
rounding, is derived in ``checker_bounds.py``.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Var
from gradspec.interop.model_files import read_model
from gradspec.spec.errors import FormatError, UnsupportedError
from gradspec.verify.certificate import (
    LEAF,
    Certificate,
    InputTree,
    SignTree,
    network_digest,
    property_digest,
    read_certificate,
)
from gradspec.verify.checker_bounds import MOST_CELLS, CheckedBox, CheckedNetwork, Ends, Known, Rows, own
from gradspec.verify.property import Property, PropertyCase
from gradspec.verify.vnnlib import read_vnnlib

Item = TypeVar("Item")

MOST_BOXES = 64
"""The leaves that are worked on at once."""

MOST_DEPTH = 1024
"""The parts of a tree that may wait for their leaves, so that a file cannot ask for more memory than it has."""


class RefusedError(Exception):
    """The certificate is not accepted, and why."""


@dataclass(frozen=True)
class CheckResult:
    """Whether a certificate is accepted; if not, the reason says why."""

    accepted: bool
    reason: str
    kernels: str = "any"
    leaves: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.accepted

    def __str__(self) -> str:
        of = "any kernel" if self.kernels == "any" else "the real network"
        leaves = f"{self.leaves} lea{'f' if self.leaves == 1 else 'ves'}"
        return f"accepted: proved of {of}, {leaves}" if self.accepted else f"refused: {self.reason}"


# --- what is to be shown ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StatedRows:
    """``(boxes or 1, rows, …)``: coefficients, what they are off by, and bounds, of which one must be exceeded."""

    coefficients: Array
    errors: Array
    bounds: Array


class CheckedCase:
    """A case of a property: its box, and rows of which one must be large enough in each conjunction."""

    def __init__(self, network: CheckedNetwork, case: PropertyCase) -> None:
        self.network, self.unsafe = network, case.unsafe
        lows, highs, begun = [], [], 0
        for var in network.graph.inputs:
            low, high = case.box.outer(var.dtype.numpy)
            ends = slice(begun, begun := begun + var.type.size)
            lows.append(low[ends].astype(np.float64))
            highs.append(high[ends].astype(np.float64))
        self.low, self.high = np.concatenate(lows), np.concatenate(highs)
        self._coefficients = _stack(np.concatenate([of.C, of.D], axis=1) for of in case.unsafe)
        self._errors = _stack(np.concatenate([of.C_error, of.D_error], axis=1) for of in case.unsafe)
        self._bounds = _stack(of.b for of in case.unsafe)
        self.counts = np.array([len(of.inequalities) for of in case.unsafe], np.int64)
        self.starts = np.cumsum(self.counts) - self.counts
        """Of each conjunction, the number of its first row among all rows."""

    def inputs(self, low: Array, high: Array) -> Known:
        """Flat boxes, as those of the graph's inputs."""
        found, begun = {}, 0
        for var in self.network.graph.inputs:
            cells = slice(begun, begun := begun + var.type.size)
            shape = (len(low), *var.shape)
            found[var] = low[:, cells].reshape(shape), high[:, cells].reshape(shape)
        return found

    def rows(self, numbers: Array) -> StatedRows:
        """Some rows, for any box."""
        return StatedRows(*(a[numbers][None] for a in (self._coefficients, self._errors, self._bounds)))

    def sums(self, conjunctions: Sequence[int], weights: Sequence[Array]) -> StatedRows:
        """For each box, a sum of the rows of a conjunction: all of them hold only if it does."""
        found = []
        for number, weight in zip(conjunctions, weights, strict=True):
            rows = slice(self.starts[number], self.starts[number] + self.counts[number])
            c, b, lost = self._coefficients[rows], self._bounds[rows], own(len(weight))
            errors = weight @ (self._errors[rows] + lost * np.abs(c)) * (1 + lost)
            found.append((weight @ c, errors, weight @ b + lost * (weight @ np.abs(b))))
        return StatedRows(*(np.stack(arrays)[:, None] for arrays in zip(*found, strict=True)))

    def refuted(self, found: Mapping[Var, CheckedBox], rows: StatedRows, free: FreeNumbers) -> Array:
        """``(boxes, rows)``: whether each row is shown to be violated."""
        count = len(next(iter(found.values())).low)
        most = max(1, MOST_CELLS // (count * self.network.largest))
        parts = [np.zeros((count, 0), bool)]
        for begun in range(0, rows.bounds.shape[1], most):
            part = slice(begun, begun + most)
            some = StatedRows(rows.coefficients[:, part], rows.errors[:, part], rows.bounds[:, part])
            parts.append(self._above(found, some, free.rows(part)))
        return np.concatenate(parts, axis=1)

    def _above(self, found: Mapping[Var, CheckedBox], rows: StatedRows, free: FreeNumbers) -> Array:
        """Whether a lower bound of the row is above its bound, and above what its coefficients lose as floats."""
        both, errors, bounds = rows.coefficients, rows.errors, rows.bounds
        count = len(next(iter(found.values())).low)
        targets, extra, begun = [], np.zeros((count, bounds.shape[1])), 0
        for var in (*self.network.graph.outputs, *self.network.graph.inputs):
            cells = slice(begun, begun := begun + var.type.size)
            if both[..., cells].any():
                coefficients = both[..., cells].reshape(*both.shape[:2], *var.shape)
                targets.append((var, np.broadcast_to(coefficients, (count, *coefficients.shape[1:]))))
            if errors[..., cells].any():
                extra = extra + (errors[..., cells] * found[var].size.reshape(count, 1, -1)).sum(axis=-1)
        lower = self.network.lower(found, targets, free.shares, free.multipliers) if targets else np.zeros(extra.shape)
        least = np.nextafter(bounds + extra * (1 + own(both.shape[-1])), np.inf)
        return lower > np.where(extra > 0, least, bounds)

    def by_any_row(self, found: Mapping[Var, CheckedBox]) -> Array:
        """``(boxes,)``: whether every conjunction has a row that is shown to be violated, by the usual slopes."""
        holds = self.refuted(found, self.rows(np.arange(self.counts.sum())), FreeNumbers({}, {}))
        parts = [holds[:, begun : begun + n].any(axis=1) for begun, n in zip(self.starts, self.counts, strict=True)]
        return np.logical_and.reduce([np.ones(len(holds), bool), *parts])  # type: ignore[no-any-return]


def _stack(arrays: Iterable[Array]) -> Array:
    found = list(arrays)
    return np.concatenate(found) if found else np.zeros(0)


@dataclass(frozen=True)
class FreeNumbers:
    """Slopes of bent operators and multipliers of variables, ``(boxes, rows, *shape)`` each."""

    shares: Rows
    multipliers: Rows

    def rows(self, part: slice) -> FreeNumbers:
        return FreeNumbers(*({key: a[:, part] for key, a in of.items()} for of in (self.shares, self.multipliers)))


# --- trees ------------------------------------------------------------------------------------------------------------


def _leaves(
    first: Array, second: Array, roots: Sequence[object], parts: Callable[[Any, Any, Any], tuple[Any, Any]]
) -> Iterator[Any]:
    """What the leaves of trees in preorder have of the roots, which are divided at every inner node."""
    if first.ndim != 1 or first.shape != second.shape:
        raise RefusedError("the tree is not written as two columns of one length")
    stack = [*reversed(roots)]
    for a, b in zip(first.tolist(), second.tolist(), strict=True):
        if not stack:
            raise RefusedError("the tree goes on behind its last leaf")
        part = stack.pop()
        if a == LEAF:
            yield part
        else:
            stack += reversed(parts(part, a, b))
        if len(stack) > MOST_DEPTH + len(roots):
            raise RefusedError(f"the tree is more than {MOST_DEPTH} deep")
    if stack:
        raise RefusedError(f"the tree does not cover its box: {len(stack)} parts of it have no leaves")


def _in_batches(items: Iterator[Item], most: int) -> Iterator[list[Item]]:
    while found := list(islice(items, most)):
        yield found


def check_inputs(case: CheckedCase, tree: InputTree) -> int:
    """Every leaf is a box of inputs over which lines refute every conjunction; how many there are."""

    def halves(box: tuple[Array, Array], axis: int, cut: float) -> Any:
        low, high = box
        if not 0 <= axis < len(low) or not low[axis] <= cut <= high[axis]:
            raise RefusedError(f"a box is cut at {cut} on axis {axis}, which is not in it")
        below, above = high.copy(), low.copy()
        below[axis] = above[axis] = cut
        return (low, below), (above, high)

    network = case.network
    most_rows = max([2 * v.type.size for v in network.inner] + [int(case.counts.sum()), 1])
    most = max(1, min(MOST_BOXES, MOST_CELLS // (most_rows * network.largest)))
    count = 0
    for boxes in _in_batches(_leaves(tree.axis, tree.cut, [(case.low, case.high)], halves), most):
        inputs = case.inputs(*(np.stack(ends) for ends in zip(*boxes, strict=True)))
        found = network.boxes(inputs, network.tighten(inputs))
        proved = case.by_any_row(found)
        if not proved.all():
            raise RefusedError(f"leaf {count + int(np.argmin(proved))} of the boxes of inputs is not proved")
        count += len(boxes)
    return count


Sides = tuple[tuple[int, int, bool], ...]
"""Operators and cells of their operands, and whether these are not negative."""


class SignCheck:
    """Trees of signs: at every leaf, a stated row refutes the conjunction that the tree is of."""

    def __init__(self, case: CheckedCase, tree: SignTree) -> None:
        self._case, self._tree, self._network = case, tree, case.network
        if tree.first.shape != (len(case.unsafe),):
            raise RefusedError("a row, or none, is not stated for each conjunction")
        self._inputs = case.inputs(case.low[None], case.high[None])
        self._open = [i for i, row in enumerate(tree.first.tolist()) if row < 0]
        self._fits()
        self._refined = self._weighed = 0
        self._known = self._network.tighten(self._inputs, self._refine)
        if self._refined < len(tree.refined):
            raise RefusedError("bounds are refined in another order than that of the operators, or of no operand")

    def leaves(self) -> int:
        tree, case, network = self._tree, self._case, self._network
        done = [i for i in range(len(case.unsafe)) if i not in self._open]
        found = network.boxes(self._inputs, self._known)
        holds = case.refuted(found, case.rows(case.starts[done] + tree.first[done]), FreeNumbers({}, {}))
        if not holds.all():
            raise RefusedError(f"conjunction {done[int(np.argmin(holds[0]))]} is not refuted by the usual slopes")
        most = max(1, min(MOST_BOXES, MOST_CELLS // network.largest))
        self._root = {v: (found[v].low, found[v].high) for v in network.inner}
        count = 0
        parts = _leaves(tree.node, tree.cell, [(conjunction, ()) for conjunction in self._open], self._sides)
        for leaves in _in_batches(parts, most):
            self._check(leaves, count)
            count += len(leaves)
        if count != len(tree.share_counts) or self._weighed != len(tree.weights):
            raise RefusedError(f"the trees have {count} leaves, and sums of rows are stated of others")
        return max(count, 1)

    def _fits(self) -> None:
        """The arrays have the sizes that they need, and name operators and cells that there are."""
        tree = self._tree
        if tree.weights.ndim != 1 or not np.all((tree.weights >= 0) & np.isfinite(tree.weights)):
            raise RefusedError("leaves do not state sums of rows")
        if np.any(tree.first >= self._case.counts):
            raise RefusedError("a row is stated that a conjunction does not have")
        if tree.refined.ndim != 1 or tree.refined_rows.shape != tree.refined.shape:
            raise RefusedError("refined bounds do not state an operator and a row each")
        leaves = len(tree.share_counts)
        refined = tree.refined_share_counts, tree.refined_share_cells, tree.refined_shares
        kinds = (
            (leaves, tree.shared, tree.share_counts, tree.share_cells, tree.shares),
            (leaves, tree.multiplied, tree.multiplier_counts, tree.multiplier_cells, tree.multipliers),
            (len(tree.refined), tree.shared, *refined),
        )
        for each, nodes, sizes, cells, numbers in kinds:
            operands = [self._operand(number) for number in nodes.reshape(-1).tolist()]
            if nodes.ndim != 1 or sizes.shape != (each, len(nodes)) or np.any(sizes < 0):
                raise RefusedError("slopes or multipliers are not counted for each leaf or row and operator")
            total = int(sizes.sum(dtype=np.int64))
            if cells.shape != (total,) or numbers.shape != (total,):
                raise RefusedError("there are not as many slopes or multipliers as are counted")
            limits = np.repeat(np.tile([v.type.size for v in operands], len(sizes)), sizes.reshape(-1))
            if np.any(cells < 0) or np.any(cells >= limits):
                raise RefusedError("a slope or multiplier is stated for a cell that there is not")

    def _refine(self, var: Var, found: Mapping[Var, CheckedBox], ends: Ends) -> Ends:
        """The bounds of an operand, made tighter by the rows stated of it, which follow those of the operand before."""
        tree, network, begun = self._tree, self._network, self._refined
        low, high = (end.copy() for end in ends)
        while self._refined < len(tree.refined) and self._operand(int(tree.refined[self._refined])) is var:
            self._refined += 1
        most = max(1, MOST_CELLS // network.largest)
        for first in range(begun, self._refined, most):
            count = min(most, self._refined - first)
            stated = tree.refined_rows[first : first + count].astype(np.int64)
            cells = np.abs(stated) - 1
            if np.any(cells < 0) or np.any(cells >= var.type.size):
                raise RefusedError("a bound is refined of a cell that there is not")
            rows = np.zeros((1, count, var.type.size))
            rows[0, np.arange(count), cells] = np.sign(stated)
            arrays = tree.refined_share_counts, tree.refined_share_cells, tree.refined_shares
            slopes = self._place_numbers(first, count, tree.shared, *arrays, np.nan)
            shares = {network.numbered[number]: a.swapaxes(0, 1) for number, a in slopes.items()}
            lower = network.lower(found, [(var, rows.reshape(1, count, *var.shape))], shares, {})[0]
            above = stated > 0
            np.maximum.at(low.reshape(-1), cells[above], lower[above])
            np.minimum.at(high.reshape(-1), cells[~above], -lower[~above])
        return low, high

    def _operand(self, number: int) -> Var:
        """What the operator of this number bends at 0."""
        nodes = self._network.numbered
        if not 0 <= number < len(nodes) or not isinstance(self._network.maps.get(nodes[number]), float):
            raise RefusedError(f"operator {number} does not bend at 0")
        return nodes[number].inputs[0]

    def _sides(self, part: tuple[int, Sides], number: int, cell: int) -> Any:
        conjunction, sides = part
        var = self._operand(number)
        if var not in self._network.inner or not 0 <= cell < var.type.size:
            raise RefusedError(f"there is no cell {cell} before operator {number} whose sign can be split")
        return tuple((conjunction, (*sides, (number, cell, above))) for above in (False, True))

    def _check(self, leaves: Sequence[tuple[int, Sides]], begun: int) -> None:
        count = len(leaves)
        known = {v: tuple(np.repeat(end, count, axis=0) for end in ends) for v, ends in self._root.items()}
        for i, (_, sides) in enumerate(leaves):
            for number, cell, above in sides:
                end = known[self._operand(number)][not above][i].reshape(-1)
                end[cell] = max(end[cell], 0.0) if above else min(end[cell], 0.0)
        empty = np.zeros(count, bool)
        for low, high in known.values():
            empty |= (low > high).reshape(count, -1).any(axis=1)
            np.maximum(low, high, out=high)
        inputs = {v: tuple(np.repeat(end, count, axis=0) for end in ends) for v, ends in self._inputs.items()}
        found = self._network.boxes(inputs, known)  # type: ignore[arg-type]
        conjunctions = [number for number, _ in leaves]
        ends = self._weighed + np.cumsum(self._case.counts[conjunctions])
        if begun + count > len(self._tree.share_counts) or ends[-1] > len(self._tree.weights):
            raise RefusedError("sums of rows are stated for fewer leaves than there are")
        weights = np.split(self._tree.weights[self._weighed : ends[-1]].astype(np.float64), ends[:-1] - self._weighed)
        self._weighed, free = int(ends[-1]), self._free(begun, count, found)
        holds = self._case.refuted(found, self._case.sums(conjunctions, weights), free)
        proved = empty | holds[:, 0]
        if not proved.all():
            raise RefusedError(f"leaf {begun + int(np.argmin(proved))} of the trees of signs is not proved")

    def _free(self, begun: int, count: int, found: Mapping[Var, CheckedBox]) -> FreeNumbers:
        tree, network, part = self._tree, self._network, (begun, count)
        slopes = self._place_numbers(*part, tree.shared, tree.share_counts, tree.share_cells, tree.shares, np.nan)
        others = self._place_numbers(
            *part, tree.multiplied, tree.multiplier_counts, tree.multiplier_cells, tree.multipliers, 0.0
        )
        multipliers: dict[Var, Array] = {}
        for number, array in others.items():
            var = self._operand(number)
            known = np.where(array < 0, found[var].low[:, None] >= 0, found[var].high[:, None] <= 0)
            multipliers[var] = np.where(known, array, 0.0)  # of a sign that is not known, none is used
        return FreeNumbers({network.numbered[number]: a for number, a in slopes.items()}, multipliers)

    def _place_numbers(
        self, begun: int, count: int, nodes: Array, sizes: Array, cells: Array, numbers: Array, usual: float
    ) -> dict[int, Array]:
        """The numbers of some leaves for each operator, in the places of their cells."""
        at = int(sizes[:begun].sum(dtype=np.int64))
        found: dict[int, Array] = {}
        for i in range(count):
            for number, size in zip(nodes.tolist(), sizes[begun + i].tolist(), strict=True):
                if size:
                    if number not in found:
                        found[number] = np.full((count, self._operand(number).type.size), usual)
                    found[number][i, cells[at : at + size]] = numbers[at : at + size]
                at += size
        return {n: a.reshape(count, 1, *self._operand(n).shape) for n, a in found.items()}


# --- the whole --------------------------------------------------------------------------------------------------------


def check(certificate: Certificate | str | os.PathLike[str], graph: Graph, property: Property) -> CheckResult:
    """Whether a certificate, or the file of one, proves the property of the graph.

    >>> import gradspec as gs
    >>> from gradspec.verify.prove import prove
    >>> g = gs.trace(lambda x: gs.relu(x) - 2.0 * gs.relu(x - 1.0), gs.f32[1])
    >>> proof = prove(g, Property.always([0], [2], C=[[1]], b=["1.1"])).certificate
    >>> print(check(proof, g, Property.always([0], [2], C=[[1]], b=["1.2"])))
    refused: it is of another property
    >>> check(proof, g, Property.always([0], [2], C=[[1]], b=["1.1"])).accepted
    True
    """
    begun, kernels, leaves, reason = time.monotonic(), "any", 0, ""
    try:
        read = certificate if isinstance(certificate, Certificate) else read_certificate(certificate)
        kernels = read.kernels
        with np.errstate(over="ignore", invalid="ignore", divide="ignore", under="ignore"):
            leaves = _check_all(read, graph, property)
    except (RefusedError, FormatError, UnsupportedError) as error:
        reason = str(error)
    return CheckResult(not reason, reason, kernels, leaves, time.monotonic() - begun)


def _check_all(certificate: Certificate, graph: Graph, property: Property) -> int:
    if certificate.kernels not in ("any", "real"):
        raise RefusedError("it does not say of which kernels it is")
    if certificate.network != network_digest(graph):
        raise RefusedError("it is of another network")
    if certificate.property != property_digest(property):
        raise RefusedError("it is of another property")
    for variables, ports in ((graph.inputs, property.inputs), (graph.outputs, property.outputs)):
        if sum(v.type.size for v in variables) != sum(port.size for port in ports):
            raise RefusedError("the property is of a network with other inputs or outputs")
    if len(certificate.cases) != len(property.cases):
        raise RefusedError(f"it has {len(certificate.cases)} cases, and the property {len(property.cases)}")
    network, leaves = CheckedNetwork(graph, certificate.kernels), 0
    for number, (tree, stated) in enumerate(zip(certificate.cases, property.cases, strict=True)):
        case = CheckedCase(network, stated)
        try:
            leaves += check_inputs(case, tree) if isinstance(tree, InputTree) else SignCheck(case, tree).leaves()
        except RefusedError as error:
            raise RefusedError(f"case {number}: {error}") from None
    return leaves


def check_files(
    certificate: str | os.PathLike[str], model: str | os.PathLike[str], property: str | os.PathLike[str]
) -> CheckResult:
    """Whether the file of a certificate proves a property, in VNN-LIB, of a model, in ONNX or a saved graph."""
    stated = read_vnnlib(property)
    return check(certificate, read_model(os.fspath(model), open_size=1), stated)
