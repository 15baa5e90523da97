"""Boxes and lines of a graph, run: which variables are bounded again by lines, in what order, in how many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gradspec.graph.builder import Builder, apply
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType, i64
from gradspec.ops.box import BoundArithmetic
from gradspec.ops.loss import PUT_LABEL, PutLabel
from gradspec.ops.shape import reshape
from gradspec.transforms.boxes import Boxes, enter, is_affine, known_ends, own_dtype, varying
from gradspec.transforms.copy import expand, inline
from gradspec.transforms.lines import is_bilinear, lines, relaxed
from gradspec.transforms.patches import PatchedLines, patched_lines
from gradspec.transforms.simplify import split
from gradspec.transforms.trace import trace
from gradspec.verify.execution import Execution, execution_on

Ends = tuple[Array, Array]


class Bounder:
    """Bounds of one graph over boxes of its first inputs; everything is compiled once, and used for every box."""

    def __init__(self, graph: Graph, count: int, kernels: str, device: str = "cpu") -> None:
        self.graph = graph = expand(graph)
        self.bounded = [i < count for i in range(len(graph.inputs))]
        self.arithmetic = BoundArithmetic(own_dtype(graph), any=kernels == "any")
        self.execution = execution_on(device, self.arithmetic.dtype)
        self.relaxed = relaxed(graph, self.bounded)
        makers = {v: node for node in graph.nodes for v in node.outputs}
        moving = varying(graph, self.bounded)
        inner = dict.fromkeys(v for node in self.relaxed for v in node.inputs if v in moving and v.type.is_float)
        local = {node for node in self.relaxed if node.op.crop is not None}
        self.pre_activations = tuple(v for v in inner if v in makers and makers[v] not in local)
        """The operands of nonlinear operators, unless their boxes follow from those of a few cells: tighter bounds of
        them give tighter lines."""
        self.kinked = [node for node in self.relaxed if node.op.kinks is not None]
        self.sloped = [node for node in self.relaxed if node.op.kinks is not None or is_bilinear(node)]
        """The operators whose lines have free slopes."""
        self.single = _singly_mixed(graph, self.bounded)
        self.runs: dict[Any, Any] = {}
        """What was compiled for this graph, here and elsewhere."""
        self._check: Callable[[], None] = lambda: None

    @contextmanager
    def checking(self, check: Callable[[], None]) -> Iterator[None]:
        """What runs inside calls ``check`` between passes, which may end it by an error."""
        self._check, before = check, self._check
        try:
            yield
        finally:
            self._check = before

    def bends(self, var: Var) -> list[Node]:
        """The operators with kinks that are applied to a variable."""
        return [node for node in self.kinked if var in node.inputs]

    # --- boxes --------------------------------------------------------------------------------------------------------

    def boxes_graph(self) -> Graph:
        """The graph of the ends of the inner variables and of the outputs; its inputs: boxes, and what is known."""
        builder = Builder()
        found = Boxes(self.graph, builder, self.arithmetic)
        enter(found, self.bounded)
        known = {v: known_ends(found, v) for v in self.pre_activations}
        found.run(known)
        ends = [end for v in (*self.pre_activations, *self.graph.outputs) for end in found[v].ends]
        return builder.build(ends, allow_unused=True)

    @cached_property
    def _boxes(self) -> Callable[..., Any]:
        return self.execution.compile(self.boxes_graph())

    def boxes(self, inputs: Sequence[Array], known: IntermediateBounds) -> tuple[IntermediateBounds, list[Ends]]:
        """The boxes of the inner variables and of the outputs."""
        flat = self._boxes(*inputs, *known.flat())
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        inner = IntermediateBounds(dict(zip(self.pre_activations, pairs, strict=False)))
        return inner, pairs[len(self.pre_activations) :]

    def unknown(self) -> IntermediateBounds:
        """Nothing but that numbers are not NaN."""
        dtype = self.arithmetic.dtype.numpy
        return IntermediateBounds(
            {v: (np.full(v.shape, -np.inf, dtype), np.full(v.shape, np.inf, dtype)) for v in self.pre_activations}
        )

    # --- lines --------------------------------------------------------------------------------------------------------

    def _lines(self, target: Var) -> tuple[Callable[..., Any], Graph]:
        """What all rows of a target share, compiled, and the graph of one row."""
        if target not in self.runs:
            whole = lines(self.graph, self.arithmetic, self.bounded, target, self.pre_activations).simplify()
            coefficients = whole.inputs[-1]
            early, late = split(whole, [coefficients])
            self.runs[target] = self.execution.compile_early(early), late
        return self.runs[target]  # type: ignore[no-any-return]

    def _rows(self, target: Var, count: int, of_cells: bool) -> Callable[..., Any]:
        """So many rows of a target: as they are, or of single cells, by number and coefficient."""
        key = target, count, of_cells
        if key not in self.runs:
            _, late = self._lines(target)
            rows = late.batch(count, [None] * (len(late.inputs) - 1) + [0])
            self.runs[key] = self.execution.compile((_of_cells(rows) if of_cells else rows).simplify())
        return self.runs[key]  # type: ignore[no-any-return]

    def lower(self, inputs: Sequence[Array], known: IntermediateBounds, target: Var, *rows: Array) -> Array:
        """A lower bound of each of ``rows``, linear functions of ``target``, over the box.

        A row is an array, or has one cell: then its coefficient is given, and the cell's number.
        """
        early, _ = self._lines(target)
        middle = early(*inputs, *known.flat())
        middle, count = middle if isinstance(middle, tuple) else (middle,), len(rows[0])
        fitting = 1 << int(self.execution.most_cells // self.largest).bit_length() >> 1
        most = max(16, min(self.execution.most_rows, fitting))
        results = [np.zeros(0, self.arithmetic.dtype.numpy)]
        for first in range(0, count, most):
            self._check()
            part = [a[first : first + most] for a in rows]
            size = next((n for n in (16, 64) if len(part[0]) <= n), most)  # so that few graphs are compiled
            padded = [np.zeros((size, *a.shape[1:]), a.dtype) for a in part]
            for whole, some in zip(padded, part, strict=True):
                whole[: len(some)] = some
            results.append(self._rows(target, size, len(rows) > 1)(*middle, *padded)[: len(part[0])])
        return np.concatenate(results)

    def steep(self, inputs: Sequence[Array], known: IntermediateBounds, row: Array) -> Sequence[Array]:
        """A lower bound of one row of the output, and its slopes in the bounded inputs."""
        if "steep" not in self.runs:
            (output,) = self.graph.outputs
            graph = lines(self.graph, self.arithmetic, self.bounded, output, self.pre_activations, slopes=True)
            self.runs["steep"] = self.execution.compile(graph.simplify())
        return self.runs["steep"](*inputs, *known.flat(), row)  # type: ignore[no-any-return]

    @cached_property
    def largest(self) -> int:
        """The cells of the largest variable."""
        computed = (v for node in self.graph.nodes for v in node.outputs)
        return int(max(1, *(v.type.size for v in (*self.graph.inputs, *computed))))

    def tighten(self, inputs: Sequence[Array], known: IntermediateBounds) -> IntermediateBounds:
        """Bounds of the inner variables by lines, each with what is known of those before it."""
        for var in self.pre_activations:
            if var not in self.single:
                known = self.tighten_variable(inputs, known, var)
        return known

    def tighten_variable(self, inputs: Sequence[Array], known: IntermediateBounds, var: Var) -> IntermediateBounds:
        boxes, _ = self.boxes(inputs, known)
        undecided = self.undecided(var, *boxes[var])
        return known.replace(var, self.tighten_cells(inputs, known, var, boxes[var], undecided))

    def tighten_cells(
        self, inputs: Sequence[Array], known: IntermediateBounds, var: Var, ends: Ends, where: Any = True
    ) -> Ends:
        """The bounds of a variable by lines, in the cells asked for and where they are better than ``ends``."""
        low, high = (end.copy() for end in ends)
        cells = np.flatnonzero(np.broadcast_to(where, var.shape))
        if not cells.size:
            return low, high
        patches = self._patches(var)
        if patches is not None and patches.pay(cells):
            below, above = patches.bounds([*inputs, *known.flat()], cells, self._check)
        else:
            signs = np.repeat(np.array([1, -1], self.arithmetic.dtype.numpy), len(cells))
            found = signs * self.lower(inputs, known, var, signs, np.tile(cells, 2))
            below, above = found[: len(cells)], found[len(cells) :]
        low.flat[cells], high.flat[cells] = np.fmax(low.flat[cells], below), np.fmin(high.flat[cells], above)
        return low, high

    def _patches(self, var: Var) -> Patches | None:
        """What bounds cells of a variable by their receptive fields, where these are small."""
        if ("patches", var) not in self.runs:
            made = (
                (rank, patched_lines(self.graph, self.arithmetic, self.bounded, var, self.pre_activations, rank))
                for rank in range(var.ndim - 1, 0, -1)
            )
            dtype, run = self.arithmetic.dtype.numpy, self.execution
            self.runs["patches", var] = next((Patches(var, rank, of, dtype, run) for rank, of in made if of), None)
        return self.runs["patches", var]  # type: ignore[no-any-return]

    def undecided(self, var: Var, low: Array, high: Array) -> Array:
        """The cells of which tighter bounds may help: all, or, if every user only bends, those with a kink inside."""
        users = [node for node in self.relaxed if var in node.inputs]
        found = np.zeros(low.shape, bool)
        for node in users:
            if node.op.kinks is None:
                return high > low
            for kink in node.op.kinks(node.attrs):
                found |= (low < kink) & (kink < high)
        return found


class Patches:
    """Bounds of single cells by their receptive fields: all channels of some positions at a time."""

    def __init__(self, var: Var, rank: int, lines: PatchedLines, dtype: Any, execution: Execution) -> None:
        self._positions, self._share = prod(var.shape[var.ndim - rank :]), lines.share
        lead = var.shape[: var.ndim - rank]
        unit = np.eye(prod(lead), dtype=dtype).reshape(prod(lead), *lead, *(1,) * rank)
        self._rows = np.concatenate([unit, -unit])
        self._tables = execution.compile_early(lines.tables.simplify())
        tables = len(lines.row.inputs) - 1
        largest = max(v.type.size for v in lines.row.inputs) * len(self._rows)
        self._together = int(max(1, min(self._positions, execution.most_cells // largest)))
        rows = lines.row.simplify().batch(len(self._rows), [0, *[None] * tables])
        self._run = execution.compile(rows.batch(self._together, [None, *[0] * tables]).simplify())

    def pay(self, cells: Array) -> bool:
        """Whether all channels of the cells' positions take less work than planes of the cells alone."""
        positions = len(np.unique(cells % self._positions))
        return positions * len(self._rows) / 2 * self._share < len(cells)

    def bounds(self, inputs: Sequence[Array], cells: Array, check: Callable[[], None] = lambda: None) -> Ends:
        """Lower and upper bounds of the cells, by number."""
        channels, places = np.divmod(cells, self._positions)
        wanted = np.unique(places)
        tables = self._tables(*inputs)
        found = np.empty((self._positions, len(self._rows)), self._rows.dtype)
        for first in range(0, len(wanted), self._together):
            check()
            some = np.resize(wanted[first : first + self._together], self._together)
            found[some] = self._run(self._rows, *(table[some] for table in tables))
        return found[places, channels], -found[places, channels + len(self._rows) // 2]


@dataclass(frozen=True)
class IntermediateBounds:
    """Lower and upper bounds of the pre-activations."""

    ends: Mapping[Var, Ends]

    def __getitem__(self, var: Var) -> Ends:
        return self.ends[var]

    def replace(self, var: Var, ends: Ends) -> IntermediateBounds:
        return IntermediateBounds({**self.ends, var: ends})

    def undecided(self, node: Node) -> Array:
        """The cells of an operator whose slopes are free, as far as is known: if it bends at 0, those on both sides."""
        if node.op.kinks is None:
            return np.ones(node.outputs[0].shape, bool)
        low, high = self.ends.get(node.inputs[0], (-1.0, 1.0))
        return np.broadcast_to((np.asarray(low) < 0) & (np.asarray(high) > 0), node.inputs[0].shape)

    def flat(self) -> list[Array]:
        return [end for pair in self.ends.values() for end in pair]


def _of_cells(rows: Graph) -> Graph:
    """A graph of rows, its last input, that are 0 but for one cell: given are a number for each row, and the cell's."""
    *middle, last = (v.type for v in rows.inputs)

    def function(*given: Var) -> Any:
        *before, numbers, cells = given
        unit = apply(PUT_LABEL, PutLabel(1, last.size // last.shape[0]), numbers, cells)
        return inline(rows, [*before, reshape(unit, last.shape)])

    return trace(function, *middle, TensorType(last.dtype, last.shape[:1]), TensorType(i64, last.shape[:1]))


def _singly_mixed(graph: Graph, bounded: Sequence[bool]) -> set[Var]:
    """Variables of which every cell is one sum over an input, moved about: their boxes are as tight as lines."""
    sums = dict.fromkeys((v for v, has_box in zip(graph.inputs, bounded, strict=True) if has_box), 0)
    for node in graph.nodes:
        moving = [i for i, v in enumerate(node.inputs) if v in sums]
        if len(moving) == 1 and is_affine(node, moving) and node.op.sums is not None:
            terms = node.op.sums.max_roundings(node.attrs, *(v.type for v in node.inputs))
            count = sums[node.inputs[moving[0]]] + (terms > 0)
            if count <= 1:
                sums.update(dict.fromkeys(node.outputs, count))
    return set(sums)


def unflatten(flat: Array, variables: Sequence[Var]) -> list[Array]:
    """The arrays of variables, which the last axis has one after the other."""
    parts = np.split(flat, np.cumsum([v.type.size for v in variables])[:-1], axis=-1)
    return [part.reshape(*flat.shape[:-1], *v.shape) for part, v in zip(parts, variables, strict=True)]
