"""Convolution and transposed convolution on the tiles: groups of them, what is done with their results, and tasks."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.binding import KernelCall, task_of
from gradspec.backends.cpu.conv.arguments import (
    UNIT_BYTES,
    CaseArguments,
    ConvArguments,
    ConvProduct,
    ConvSource,
    FusedPooling,
    PackArguments,
    PackedCase,
)
from gradspec.backends.cpu.conv.blocking import MOST_STAGED_BYTES, MOST_WORKSPACE, BlockedConvolution, rounded
from gradspec.backends.cpu.planning import COMPUTED, MULTIPLIED, Strides, are_far, dense, regular_axes
from gradspec.backends.cpu.pointwise.plan import PointwiseProgram, epilogue_function, joins_program
from gradspec.backends.cpu.pool.arguments import NO_ARRAYS
from gradspec.backends.cpu.pool.layout import UNITS_WANTED
from gradspec.backends.cpu.pool.plan import value_kernel, value_pooling
from gradspec.codegen.cache import kernel
from gradspec.codegen.processor import processor
from gradspec.codegen.records import Block, Operand, Words, function_address, record_from
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import TensorType, u8
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Lowering, Task, Work
from gradspec.runtime.threads import get_num_threads
from gradspec.spec.window import Regular

SOURCE = "gradspec.backends.cpu.conv.kernels.conv"
TILE_BYTES = 4096
WINDOW = 9
"""Numbers of a window of three by three."""
POOLED_BYTES = 1 << 19
"""Of rows that a pooling reads at once, from the second cache."""
NANOSECONDS_PER_PRODUCT = 0.06
MOST_PRODUCTS = 6
MOST_CASES = 4096
"""Strides of 64 in two dimensions: more are left to NumPy."""
BACKWARDS = {"conv": False, "conv_transpose": True}
POOLINGS = ("max_pool", "avg_pool")


# --- poolings that read the rows of a convolution while they are in the workspace -------------------------------------


def is_pooling(node: Node) -> bool:
    return node.op.name in POOLINGS


def rank_of(node: Node) -> int:
    """How many axes a pooling has."""
    rank: int = node.attrs.window(node.inputs[0]).rank
    return rank


def rows_together(node: Node) -> int:
    """Of how many rows along its first axis a pooling reads blocks one by one, or multiples; 0: only all at once.

    Windows do not reach from one block into the next if they are no longer than their stride and nothing pads them.
    """
    (x,) = node.inputs
    axis = node.attrs.window(x).axes[0]
    if not isinstance(axis, Regular) or axis.lo or axis.dilation != 1 or axis.kernel > axis.stride:
        return 0
    return axis.stride if (axis.outputs - 1) * axis.stride + axis.kernel <= axis.size else 0


class PooledBlocks:
    """A pooling of planes that are made a block of ``rows`` rows at a time.

    A block has the planes of ``channels`` channels, ``pitch`` bytes apart. What the pooling's kernel reads differs from
    block to block by two addresses, but for the last block, which may be shorter.
    """

    def __init__(self, node: Node, channels: int, rows: int, pitch: int) -> None:
        (self.operand,), (self.result,) = node.inputs, node.outputs
        self.node, self.rank, self.pitch = node, rank_of(node), pitch
        self.channels = max(channels, UNITS_WANTED)  # with so many planes, none of them is cut into bands
        size, outputs = self.operand.shape[-self.rank], self.result.shape[-self.rank]
        blocks = -(-size // rows)
        each = outputs if blocks == 1 else rows // rows_together(node)
        self.plane = prod(self.result.shape[-self.rank :])
        self.block = each * (self.plane // outputs)
        """Elements of the result between blocks."""
        last = outputs - each * (blocks - 1)
        usual, final = self._fused(rows, each), self._fused(size - rows * (blocks - 1), last)
        self.arguments = usual[0], final[0]
        self.arguments_bytes = aligned(max(fused.size for fused in self.arguments))
        self.workspace = self.arguments_bytes + max(usual[1], final[1])

    def _fused(self, rows: int, outputs: int) -> tuple[FusedPooling, int]:
        """The pooling of a block of so many rows, none for rows without windows, and its workspace."""
        if not outputs:
            return FusedPooling(0, 0, ()), 0
        inner = len(self.operand.shape) - self.rank + 1
        x = TensorType(self.operand.dtype, (self.channels, rows, *self.operand.shape[inner:]))
        y = self.node.attrs.pooled(x)
        assert y.shape[1] == outputs, "blocks have the windows of the whole"
        strides = (self.pitch // x.dtype.numpy.itemsize, *dense(x.shape[1:])), (self.plane, *dense(y.shape[1:]))
        arguments, units, workspace = value_pooling(self.node, x)(strides)
        unbound = (replace(arguments, arrays=NO_ARRAYS),)
        return FusedPooling(units // self.channels, Block(arguments).size, unbound), workspace

    @property
    def function(self) -> int:
        """The address of the pooling's kernel."""
        return function_address(value_kernel(self.node, self.operand.type))


# --- arguments --------------------------------------------------------------------------------------------------------


class BlockArguments:
    """What the kernels read about blocks, whatever they make of them. It keeps their tables."""

    def __init__(self, form: BlockedConvolution, by_rows: bool = False) -> None:
        """``by_rows``: columns are taken a row at a time, also where rows join without gaps."""
        self.form, self.by_rows = form, by_rows
        tables = {case.staging: case for case in form.cases}
        made = {staging: case.table(form.itemsize) for staging, case in tables.items()}
        self.tables: list[Words] = [made[case.staging] for case in form.cases]
        self.orders = {i: np.argsort(self.tables[i]) for i, case in enumerate(form.cases) if form.is_square(case)}
        sizes, lead = form.out_sizes, [line.positions for line in form.cases[0].lines[: form.leads]]
        sample = prod(sizes) * form.rows * form.groups
        self.out_strides = [
            *(sample * prod(lead[i + 1 :]) for i in range(len(lead))),
            *(prod(sizes[i + 1 :]) for i in range(len(sizes))),
        ]

    @cached_property
    def fields(self) -> dict[str, Any]:
        """The fields of ``ConvArguments`` that depend on shapes alone."""
        form = self.form
        return {
            "run": form.cases[0].blocking.run,
            "groups": form.groups,
            "rows": form.rows,
            "channels": form.channels,
            "chunk": form.chunk,
            "row_block": form.row_block,
            "parts": form.parts,
            "part_rows": form.part_rows,
            "outer": form.cases[0].outer,
            "cases": tuple(map(self._case, range(len(form.cases)))),
            "out_channel": prod(form.out_sizes),
            "out_group": form.rows * prod(form.out_sizes),
            "flags": form.pack_units if form.writes else 0,
            "panels_at": form.panels_at,
            "pitch": form.pitch,
        }

    def _case(self, number: int) -> CaseArguments:
        case, table = self.form.cases[number], self.tables[number]
        axis, length = case.segment(self.out_strides)
        order = self.orders.get(number)
        return record_from(
            CaseArguments,
            case,
            unit=self.form.unit_starts[number],
            block=case.blocking.columns,
            table=table,
            panels=self.form.panel_starts[number],
            halo=case.staged[case.blocking.run].halo,
            out=sum(line.out * stride for line, stride in zip(case.lines, self.out_strides, strict=True)),
            segment=length,
            segment_axis=axis,
            out_step=case.lines[-1].out_step * self.out_strides[-1],
            row_columns=case.positions[-1] if case.blocking.slides or self.by_rows else 0,
            staged_row=case.pitches[case.blocking.run],
            order=order,
            cell_bytes=0 if order is None else int(table[order[1]] - table[order[0]]),
            axes=tuple(case.axis_arguments(i, stride) for i, stride in enumerate(self.out_strides)),
        )

    def source(self, number: int, strides: Strides, channels: int) -> ConvSource:
        """The array of this number, of which a group has so many channels."""
        lead, channel, spatial = elements(strides, self.form.rank)
        return ConvSource(Operand(number), channels * channel, channel, (*lead, *spatial))


def are_neighbours(table: Words) -> bool:
    """Whether elements lie one behind the other.

    >>> are_neighbours(np.arange(3)), are_neighbours(np.array([0, 2, 1]))
    (True, False)
    """
    return bool(np.array_equal(table, np.arange(len(table))))


def elements(strides: Strides, rank: int) -> tuple[Strides, int, Strides]:
    """Strides of leading axes, of which there is at least one, of channels and of cells."""
    at = len(strides) - rank - 1
    return strides[:at] or (0,), strides[at], strides[at + 1 :]


class WeightPacking:
    """Weights in panels."""

    def __init__(self, form: BlockedConvolution, rows: int) -> None:
        """``rows``: the size of the first axis of weights."""
        self.form, self.rows = form, rows

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[PackArguments]:
        form, (m, c, *spatial) = self.form, strides[0]
        row_step, channel_step = (c, m) if form.writes else (m, c)
        arguments = record_from(
            PackArguments,
            form,
            weights=Operand(0),
            target=Operand(1),
            row_step=row_step,
            channel_step=channel_step,
            group_step=self.rows // form.groups * m,
            cases=tuple(
                PackedCase(case.taps, table := case.taps_of(tuple(spatial)), are_neighbours(table), first)
                for case, first in zip(form.cases, form.panel_starts, strict=True)
            ),
        )
        return KernelCall(arguments, form.pack_units, 0)

    def task(self, weight: Var) -> Task:
        form = self.form
        packed = Var(f"{weight.name}.panels", TensorType(u8, (form.packed_bytes,)), None)
        function, cost = kernel(SOURCE, f"pack:{weight.dtype}"), form.packed_bytes / form.itemsize
        share, known = ("panels", form.writes, form.attrs, weight.type), (form.pack_units, 0)
        return task_of(f"panels {weight.dtype}", function, [weight], [packed], self, cost, known=known, share=share)


# --- groups of convolutions -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannedProduct:
    """One convolution of a group: its source, what becomes of its result, and where that is put together."""

    source: int
    panels: Var
    bias: Var | None
    result: Var | None
    scratch: int | None
    given: int


class Products:
    """What a group of convolutions, the pointwise nodes behind them and a last pooling come to."""

    def __init__(self, work: Work, packs: Mapping[Var, Task], in_place: bool) -> None:
        convolutions = [n for n in work.nodes if n.op.name in BACKWARDS]
        self.pools = tuple(n for n in work.nodes if is_pooling(n))
        others = tuple(n for n in work.nodes if n.op.name not in BACKWARDS and n not in self.pools)
        results = [n.outputs[0] for n in convolutions]
        self.dtype = results[0].dtype
        self.stored_size = self.dtype.numpy.itemsize
        self.sources = tuple(dict.fromkeys(n.inputs[0] for n in convolutions))
        self.given = [v for v in results if any(v in n.inputs for n in others)]
        self.kept = tuple(v for v in results if v in work.outputs)
        goes_direct = in_place and self.stored_size == COMPUTED[self.dtype.name]
        self.scratched = [v for v in results if not (goes_direct and v in self.kept)]
        self.products = [self._product(n, packs[n.inputs[1]]) for n in convolutions]
        made = {v for n in work.nodes for v in n.outputs}
        self.operands = tuple(dict.fromkeys(v for n in others for v in n.inputs if v not in made))
        pooled = [v for n in self.pools for v in n.outputs]
        self.outputs = tuple(v for v in work.outputs if v not in results and v not in pooled)
        left = [v for n in self.pools for v in n.inputs]
        self.program = (
            PointwiseProgram(Work(others, self.outputs), self.operands, (*self.given, *left)) if others else None
        )
        biases = (p.bias for p in self.products if p.bias is not None)
        read = (*self.sources, *(p.panels for p in self.products), *biases)
        self.inputs = (*dict.fromkeys(v for v in read if v not in self.operands), *self.operands)
        self.results = (*self.outputs, *self.kept, *pooled)

    def _product(self, node: Node, pack: Task) -> PlannedProduct:
        source, _, *bias = node.inputs
        (result,) = node.outputs
        return PlannedProduct(
            self.sources.index(source),
            pack.outputs[0],
            bias[0] if bias else None,
            result if result in self.kept else None,
            self.scratched.index(result) if result in self.scratched else None,
            self.given.index(result) if result in self.given else -1,
        )

    @property
    def arrays(self) -> tuple[Var, ...]:
        """What the task is bound to. The arrays of the program follow each other."""
        return (*self.inputs, *self.results)

    def number(self, v: Var | None) -> Operand | None:
        return None if v is None else Operand(self.arrays.index(v))


class Group:
    """A group of convolutions, for arrays of any layout, and where things lie in its workspace."""

    def __init__(self, form: BlockedConvolution, plan: Products) -> None:
        self.form, self.plan, self.blocks = form, plan, BlockArguments(form)
        program = plan.program
        self.edge_at = UNIT_BYTES
        self.strip_at = self.edge_at + TILE_BYTES
        self.tables_at, self.table_bytes = self.strip_at + form.strip_bytes, rounded(8 * form.border_rows)
        self.ends_at = self.tables_at + 3 * self.table_bytes
        self.zeros_at = self.ends_at + 4 * processor().register_bytes * form.border_rows
        self.staged_at = self.zeros_at + form.zero_bytes
        self.scratch_at = self.staged_at + form.staged_bytes + (form.pitch if plan.pools else 0)
        self.biases_at = self.scratch_at + form.part_rows * form.pitch * len(plan.scratched)
        self.rows_at = self.biases_at + rounded((form.part_rows + WINDOW) * form.itemsize)
        self.epilogue_at = self.rows_at + form.pitch * (len(plan.given) if plan.stored_size != form.itemsize else 0)
        self.pool_at = rounded(self.epilogue_at + (0 if program is None else program.workspace))
        self.pooling = self._pooling()
        self.workspace = rounded(self.pool_at + (0 if self.pooling is None else self.pooling.workspace))

    @cached_property
    def even(self) -> Words | None:
        """The offsets of a gathered strip."""
        terms = self.form.chunk * self.form.most_taps
        return np.arange(terms, dtype=np.int64) * processor().strip_bytes if self.form.gathers else None

    def _pooling(self) -> PooledBlocks | None:
        if not self.plan.pools:
            return None
        (case,) = self.form.cases
        rows = case.blocking.columns // case.inner
        return PooledBlocks(self.plan.pools[0], self.form.part_rows, rows, self.form.pitch)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[ConvArguments]:
        plan, form, of = self.plan, self.form, dict(zip(self.plan.arrays, strides, strict=True))
        arguments = ConvArguments(
            **self.blocks.fields,
            sources=tuple(self.blocks.source(plan.arrays.index(v), of[v], form.channels) for v in plan.sources),
            products=tuple(self._product(product, of) for product in plan.products),
            tables_at=self.tables_at,
            table_bytes=self.table_bytes,
            ends_at=self.ends_at,
            zeros_at=self.zeros_at,
            staged_at=self.staged_at,
            zero_cells=form.zero_bytes // form.itemsize,
            edge_at=self.edge_at,
            strip_at=self.strip_at,
            even=self.even,
            biases_at=self.biases_at,
            rows_at=self.rows_at,
            epilogue_at=self.epilogue_at,
            **self._epilogue(of),
            **self._pooling_fields(),
        )
        return KernelCall(arguments, form.units, self.workspace)

    def _product(self, product: PlannedProduct, of: Mapping[Var, Strides]) -> ConvProduct:
        room = self.form.part_rows * self.form.pitch
        return ConvProduct(
            source=product.source,
            weights=self.plan.number(product.panels),
            bias=self.plan.number(product.bias),
            bias_step=0 if product.bias is None else of[product.bias][0],
            result=self.plan.number(product.result),
            scratch=-1 if product.scratch is None else self.scratch_at + product.scratch * room,
            given=product.given,
        )

    def _epilogue(self, of: Mapping[Var, Strides]) -> dict[str, Any]:
        plan, program = self.plan, self.plan.program
        if program is None:
            return {"epilogue_cells": 1 << 62}
        arrays = (*plan.operands, *plan.outputs)
        first = plan.arrays.index(arrays[0]) if arrays else 0
        return {
            "epilogue_function": function_address(epilogue_function(plan.dtype)),
            "epilogue": (program.arguments([of[v] for v in arrays], first),),
            "epilogue_cells": program.block if self.form.rank else 1,
        }

    def _pooling_fields(self) -> dict[str, Any]:
        """An epilogue, or rounding, leaves a row where the one before it was, so that one more row is all it takes."""
        if self.pooling is None:
            return {}
        plan, form = self.plan, self.form
        moves = plan.program is not None or plan.stored_size != form.itemsize
        return {
            "pool_function": self.pooling.function,
            "poolings": self.pooling.arguments,
            "pool_rows_at": self.scratch_at - (form.pitch if moves else 0),
            "pool_arguments_at": self.pool_at,
            "pool_at": self.pool_at + self.pooling.arguments_bytes,
            "pool_given": len(plan.given),
            "pooled": plan.number(self.pooling.result),
            "pooled_channel": self.pooling.plane,
            "pooled_block": self.pooling.block,
        }


# --- the lowering -----------------------------------------------------------------------------------------------------


class ConvLowering(Lowering):
    """Convolutions of one geometry share the staging of what they read; pointwise nodes work on finished rows."""

    def key(self, node: Node) -> Hashable | None:
        return node.op.name, node.attrs, node.inputs[0].type, node.inputs[1].type

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        contiguous = not BACKWARDS[nodes[0].op.name] or set(nodes[0].attrs.stride) == {1}
        return contiguous and joins_program(nodes, node)

    def ends(self, nodes: Sequence[Node], node: Node) -> bool:
        """A pooling of one convolution's planes, by the value alone."""
        (convolution, *others), last = nodes, nodes[-1].outputs[0]
        if not is_pooling(node) or len(node.outputs) > 1 or node.inputs != (last,):
            return False
        if last.dtype.name not in MULTIPLIED:
            return False
        if any(other.op.name in BACKWARDS for other in others) or not 0 < convolution.attrs.rank == rank_of(node):
            return False
        if 0 in (v.type.size for v in (*convolution.inputs, last, *node.outputs)):
            return False
        return _can_pool(_blocked((*nodes, node)), _blocked(nodes))

    def task(self, work: Work) -> Task | None:
        first = work.nodes[0]
        count = sum(node.op.name in BACKWARDS for node in work.nodes)
        source, weight, result = first.inputs[0], first.inputs[1], first.outputs[0]
        if count > MOST_PRODUCTS or result.dtype.name not in MULTIPLIED:
            return None
        if 0 in (source.type.size, weight.type.size, result.type.size):
            return None
        if are_far(first.attrs.window):
            return None
        axes = regular_axes(first.attrs.window)
        if BACKWARDS[first.op.name] and prod(min(axis.stride, axis.size) for axis in axes) > MOST_CASES:
            return None
        form = _blocked(work.nodes)
        if form.staged_bytes > MOST_STAGED_BYTES:
            return None
        packing = WeightPacking(form, weight.shape[0])
        weights = dict.fromkeys(node.inputs[1] for node in work.nodes if node.op.name in BACKWARDS)
        packs = {v: packing.task(v) for v in weights}
        group = Group(form, Products(work, packs, form.in_place))
        if group.workspace > MOST_WORKSPACE:
            return None
        terms = form.channels * form.taps * count / (prod(first.attrs.stride) if form.writes else 1)
        name, function = f"convolution {source.dtype}", kernel(SOURCE, f"conv:{source.dtype}")
        cost, before = result.type.size * terms * NANOSECONDS_PER_PRODUCT, tuple(packs.values())
        inputs, outputs, known = group.plan.inputs, group.plan.results, (form.units, group.workspace)
        return task_of(name, function, inputs, outputs, group, cost, 500, known, before=before)


def _blocked(nodes: Sequence[Node]) -> BlockedConvolution:
    """The convolutions among these nodes, in blocks that suit a last pooling."""
    first, last = nodes[0], nodes[-1]
    source, result = first.inputs[0], first.outputs[0]
    count = sum(node.op.name in BACKWARDS for node in nodes)
    together = rows_together(last) if is_pooling(last) else None
    in_place = together is None and COMPUTED[source.dtype.name] == source.dtype.numpy.itemsize
    types = source.type, result.type
    return BlockedConvolution(BACKWARDS[first.op.name], first.attrs, *types, count, in_place, together=together)


def _can_pool(form: BlockedConvolution, unpooled: BlockedConvolution) -> bool:
    """Whether a unit has whole planes, or whole rows of their first axis, and room for them, and threads have units."""
    if len(form.cases) > 1 or form.cases[0].blocking.run != form.leads:
        return False
    threads = get_num_threads()
    enough = threads == 1 or form.units >= min(unpooled.units, 2 * threads)
    return enough and form.part_rows * form.pitch <= POOLED_BYTES and form.staged_bytes <= MOST_STAGED_BYTES


LOWERINGS: dict[str, Lowering] = dict.fromkeys(BACKWARDS, ConvLowering())
