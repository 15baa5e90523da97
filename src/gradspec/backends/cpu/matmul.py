"""Matrix products on the CPU: how the work is cut up, and the words that describe it to the kernels.

The columns of the right operand are read in one of three ways. Weights, which are read transposed, are packed in front
of the product: once, if they are constants. So is what many units would otherwise pack again. All others are packed by
each unit, or read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from struct import Struct

from gradspec.backends.cpu.axes import Axis, Strides, dense, merged
from gradspec.backends.cpu.kernels import matmul_fields as f
from gradspec.backends.cpu.kernels.registers import machine
from gradspec.backends.cpu.pointwise.plan import Program, epilogue_function, is_pointwise
from gradspec.codegen.addresses import address, function_address
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import DType, TensorType, f32, f64
from gradspec.runtime.memory import aligned
from gradspec.runtime.task import Bound, Lowering, LoweringBase, Task, Work

SOURCE = "gradspec.backends.cpu.kernels.matmul"
COMPUTED = {"f16": f32, "bf16": f32, "f32": f32, "f64": f64}

MOST_LAYOUTS = 64
"""How many layouts of its arrays a product remembers."""
COLUMN_BYTES = 17 << 15
"""Of packed columns that a unit reads again and again: a core's own cache holds them and a group of rows."""
ROW_GROUP = 128
ROW_STEP = 16
"""Units have a multiple of so many rows: whole panels, and whole cache lines of rows that are neighbours."""
SCRATCH_BYTES = 1 << 20
"""Of sums that are kept in the workspace while more products are added."""
PIECE, MOST_PIECES = 2048, 32
"""Pieces of a sum have about so many products or more, and there are at most so many of them."""
UNITS, UNIT_FLOPS = 8, 1 << 21
"""Work is cut into so many units, or into as many as have so many operations."""
PACKED_FLOPS, PACKED_BYTES = 1 << 25, 8 << 20
"""What several units read is packed in front of products of so many operations, if it takes at most so many bytes."""
FEW_ROWS, NEAR_BYTES = 16, 3 << 17
"""Columns are read where they lie by so few rows, if a block of products lies within so many bytes."""
PACKED_BLOCKS = 32
"""Blocks of columns in a unit of packing."""
JOINED_COLUMNS = 512

FLOPS_PER_NANOSECOND = 30.0
NANOSECONDS_PER_PACKED = 0.4
NANOSECONDS_PER_UNIT = 300.0

_addresses = Struct("=4q").pack


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _part(n: int, parts: int, step: int) -> int:
    """The size of at most so many equal parts, as a multiple of ``step``."""
    return _up(max(1, -(-n // max(1, parts))), step)


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shape:
    """Products of matrices ``(rows, products)`` and ``(products, columns)``, one for each index of leading axes."""

    leads: tuple[int, ...]
    rows: int
    columns: int
    products: int
    dtype: DType

    @classmethod
    def of(cls, node: Node) -> Shape:
        a, (result,) = node.inputs[0], node.outputs
        *leads, rows, columns = result.shape
        return cls(tuple(leads), rows, columns, a.shape[-2 if node.attrs.transpose_a else -1], result.dtype)

    @property
    def computed(self) -> DType:
        return COMPUTED[self.dtype.name]

    @property
    def stored_size(self) -> int:
        return self.dtype.numpy.itemsize

    @property
    def size(self) -> int:
        """Bytes of a number that is computed with."""
        return self.computed.numpy.itemsize

    @property
    def flops(self) -> int:
        return 2 * self.results * self.products

    @property
    def results(self) -> int:
        return prod(self.leads) * self.rows * self.columns

    @cached_property
    def block(self) -> int:
        """Columns that are packed side by side: as many as a tile has, or as there are."""
        registers = machine()
        enough = [rows for rows in registers.shapes if rows >= self.rows]
        rows = min(enough) if self.rows <= f.LOW and enough else registers.most_rows
        lanes = registers.lanes(self.size)
        return min(registers.shapes[rows][0] * lanes, max(lanes, _up(self.columns, lanes)))

    @property
    def padded(self) -> int:
        """Columns of whole blocks."""
        return _up(self.columns, self.block)

    @cached_property
    def k_block(self) -> int:
        """Blocks of products are about as long as each other."""
        return _part(self.products, -(-self.products // f.K_MOST), 8)

    @cached_property
    def piece(self) -> int:
        return _part(self.products, min(MOST_PIECES, self.products // PIECE), self.k_block)

    @property
    def pieces(self) -> int:
        return max(1, -(-self.products // self.piece))


@dataclass(frozen=True)
class Cut:
    """How many rows and columns a unit has."""

    shape: Shape
    rows: int
    columns: int
    is_packed: bool
    """Whether the columns are packed in front of the product."""
    is_direct: bool
    """Whether results are made where they stay."""
    is_split: bool = False
    """Whether each piece of a sum is a unit of its own."""

    @property
    def row_parts(self) -> int:
        return -(-self.shape.rows // self.rows)

    @property
    def column_parts(self) -> int:
        return -(-self.shape.columns // self.columns)

    @property
    def units(self) -> int:
        pieces = self.shape.pieces if self.is_split else 1
        return prod(self.shape.leads) * self.row_parts * self.column_parts * pieces

    @property
    def packed(self) -> int:
        """Numbers that are packed for each product and lead."""
        of_columns = self.shape.columns * (1 if self.is_packed else self.row_parts)
        return self.shape.rows * self.column_parts + of_columns


def cut_of(shape: Shape, is_weight: bool, is_direct: bool) -> Cut:
    """Units enough to keep some threads busy, and few numbers packed.

    >>> cut = cut_of(Shape((), 512, 512, 512, f32), is_weight=False, is_direct=True)
    >>> cut.units, cut.is_packed
    (8, True)
    """
    wanted = min(UNITS, shape.flops // UNIT_FLOPS)
    alone = best_cut(shape, 1, is_weight, True)
    fits = shape.pieces * shape.results * shape.size <= PACKED_BYTES
    if shape.pieces > 1 and alone.units < wanted and fits:
        return best_cut(shape, -(-wanted // shape.pieces), is_weight, True, is_split=True)
    cut = best_cut(shape, wanted, is_weight, is_direct)
    size = prod(shape.leads) * shape.products * shape.padded * shape.size
    if cut.row_parts > 1 and shape.flops >= PACKED_FLOPS and size <= PACKED_BYTES:
        return best_cut(shape, wanted, True, is_direct)
    return cut


def best_cut(shape: Shape, wanted: int, is_packed: bool, is_direct: bool, is_split: bool = False) -> Cut:
    cuts = (Cut(shape, *sizes, is_packed, is_direct, is_split) for sizes in _sizes(shape, wanted, is_direct, is_split))
    return min(cuts, key=lambda cut: cut.packed)


def _sizes(shape: Shape, wanted: int, is_direct: bool, is_split: bool) -> Iterator[tuple[int, int]]:
    """Rows and columns of a unit, so that there are at least as many units as wanted."""
    most = max(1, COLUMN_BYTES // (shape.k_block * shape.size) // shape.block)
    blocks = max(1, -(-shape.columns // shape.block))
    fewest = -(-blocks // most)
    keeps = shape.products > shape.k_block and not is_direct
    joins = shape.pieces > 1 and not is_split
    for parts in range(fewest, min(blocks, fewest + wanted) + 1):
        columns = _part(shape.columns, parts, shape.block)
        others = max(1, prod(shape.leads) * -(-shape.columns // columns))
        rows = _part(shape.rows, -(-wanted // others), ROW_STEP)
        if keeps or joins:
            rows = min(rows, max(ROW_STEP, SCRATCH_BYTES // (columns * shape.size) // ROW_STEP * ROW_STEP))
        yield rows, columns


# --- words ------------------------------------------------------------------------------------------------------------


def _matrix(strides: Strides, is_transposed: bool) -> tuple[int, int]:
    first, second = strides[-2:]
    return (second, first) if is_transposed else (first, second)


def _words(words: Mapping[int, int], leads: Iterable[Axis]) -> bytes:
    """All words behind the four addresses."""
    found = [words.get(i, 0) for i in range(4, f.HEADER)]
    found += [word for size, steps in leads for word in (size, *steps)]
    return Struct(f"={len(found)}q").pack(*found)


def _program_words(program: Program | None, dtype: DType, leads: Sequence[Axis]) -> dict[int, int]:
    """What is known of a program whose own words follow those of the leading axes."""
    if program is None:
        return {}
    function, word = function_address(epilogue_function(dtype)), f.HEADER + f.AXIS_WORDS * len(leads)
    return {f.PROGRAM: function, f.PROGRAM_WORD: word, f.PROGRAM_BLOCK: program.block}


def _program_needs(program: Program | None, shape: Shape) -> dict[int, int]:
    """Room for what a program is given, if it must be rounded first, and for what it does with it."""
    if program is None:
        return {}
    rounded = program.block * shape.stored_size if shape.dtype != shape.computed else 0
    return {f.ROW_AT: rounded, f.PROGRAM_AT: program.workspace}


def _laid_out(needs: Mapping[int, int]) -> tuple[dict[int, int], int]:
    """Places in the workspace for things of these sizes, one after another, and where they end."""
    places, end = {}, f.FRAME_BYTES
    for word, need in needs.items():
        places[word] = end
        end += aligned(need)
    return places, end


class Binder:
    """The words of a product for arrays of any layout. Those that were met before cost a dictionary lookup.

    The arrays of a call are the operands of the product, those of the program, and the results.
    """

    def __init__(self, cut: Cut, node: Node, has_bias: bool, program: Program | None) -> None:
        self.cut, self.attrs, self.has_bias, self.program = cut, node.attrs, has_bias, program
        self.shapes = [v.shape for v in node.inputs]
        self.operands = 3 if has_bias else 2
        self._known: dict[tuple[Strides, ...], Bound] = {}

    def __call__(self, *arrays: Array) -> Bound:
        operands = arrays[: self.operands]
        layout = tuple([a.strides for a in operands])
        found = self._known.get(layout)
        if found is None:
            found = self._described(layout)
            if len(self._known) < MOST_LAYOUTS:
                self._known[layout] = found
        words, units, workspace = found
        bias = address(arrays[2]) if self.has_bias else 0
        result = address(arrays[-1]) if self.program is None else 0
        block = _addresses(address(arrays[0]), address(arrays[1]), bias, result) + words
        if self.program is not None:
            block += self.program.bind(*arrays[self.operands :])
        return block, units, workspace

    def dense(self) -> Bound:
        """What C-contiguous operands come to."""
        itemsize = self.cut.shape.stored_size
        return self._described([tuple(itemsize * step for step in dense(shape)) for shape in self.shapes])

    def _described(self, layout: Sequence[Strides]) -> Bound:
        """All words but the addresses, the units and the workspace."""
        cut, shape, leads = self.cut, self.cut.shape, self._leads(layout)
        a_row, a_step = _matrix(layout[0], self.attrs.transpose_a)
        b_step, b_column = _matrix(layout[1], self.attrs.transpose_b)
        kind = self._kind(b_step, b_column)
        places, workspace = self._places(kind)
        words = {
            f.ROWS: shape.rows,
            f.COLUMNS: shape.columns,
            f.PRODUCTS: shape.products,
            f.A_ROW: a_row,
            f.A_STEP: a_step,
            f.B_STEP: b_step,
            f.B_COLUMN: b_column,
            f.BIAS_STEP: layout[2][-1] if self.has_bias else 0,
            f.C_PIECE: shape.results * shape.size,
            f.ROW_PART: cut.rows,
            f.ROW_PARTS: cut.row_parts,
            f.COLUMN_PART: cut.columns,
            f.COLUMN_PARTS: cut.column_parts,
            f.ROW_GROUP: ROW_GROUP,
            f.K_BLOCK: shape.k_block,
            f.PIECE: shape.piece,
            f.PIECES: shape.pieces,
            f.IS_SPLIT: int(cut.is_split),
            f.B_KIND: kind,
            f.BLOCK: shape.block,
            f.IS_DIRECT: int(cut.is_direct),
            f.AXES: len(leads),
        }
        words |= places | _program_words(self.program, shape.dtype, leads)
        return _words(words, leads), cut.units, workspace

    def _leads(self, layout: Sequence[Strides]) -> list[Axis]:
        """The leading axes, with their steps in both operands and the bias."""
        leads = self.cut.shape.leads
        bias = layout[2][:-1] if self.has_bias else (0,) * len(leads)
        return merged(zip(leads, zip(layout[0][:-2], layout[1][:-2], bias, strict=True), strict=True))

    def _kind(self, b_step: int, b_column: int) -> int:
        cut, shape = self.cut, self.cut.shape
        if cut.is_packed:
            return f.PACKED
        lies_ready = b_column == shape.size and shape.dtype == shape.computed
        is_near = abs(b_step) * shape.k_block <= NEAR_BYTES
        return f.IN_PLACE if lies_ready and is_near and cut.rows <= FEW_ROWS else f.NOT_PACKED

    def _places(self, kind: int) -> tuple[dict[int, int], int]:
        """Where things lie in the workspace, and how large it is."""
        cut, shape = self.cut, self.cut.shape
        rows, columns, size = min(cut.rows, shape.rows), min(cut.columns, shape.padded), shape.size
        is_joined = shape.pieces > 1 and not cut.is_split
        kept = rows if shape.products > shape.k_block else min(rows, ROW_GROUP)
        packed = {f.PACKED: 0, f.IN_PLACE: shape.block, f.NOT_PACKED: columns}[kind]
        needs = {
            f.TABLES_AT: 2 * 8 * f.K_MOST,
            f.A_AT: _up(min(rows, ROW_GROUP), ROW_STEP) * shape.k_block * size,
            f.B_AT: packed * shape.k_block * size,
            f.BIAS_AT: columns * size if self.has_bias else 0,
            f.EDGE_AT: f.EDGE_BYTES,
            f.SUMS_AT: kept * columns * size if is_joined or not cut.is_direct else 0,
            f.TOTALS_AT: rows * columns * size if is_joined and not cut.is_direct else 0,
        }
        return _laid_out(needs | _program_needs(self.program, shape))


class Packing:
    """The words of what packs all columns."""

    def __init__(self, shape: Shape, is_transposed: bool) -> None:
        self.shape, self.is_transposed = shape, is_transposed
        self.part = PACKED_BLOCKS * shape.block
        self.parts = -(-shape.columns // self.part)
        self.units = prod(shape.leads) * self.parts * -(-shape.products // shape.k_block)

    def __call__(self, source: Array, target: Array) -> bytes:
        shape = self.shape
        step, column = _matrix(source.strides, self.is_transposed)
        leads = merged(zip(shape.leads, [(0, s, 0) for s in source.strides[:-2]], strict=True))
        words = {
            f.COLUMNS: shape.columns,
            f.PRODUCTS: shape.products,
            f.B_STEP: step,
            f.B_COLUMN: column,
            f.COLUMN_PART: self.part,
            f.COLUMN_PARTS: self.parts,
            f.K_BLOCK: shape.k_block,
            f.BLOCK: shape.block,
            f.AXES: len(leads),
        }
        return _addresses(0, address(source), 0, address(target)) + _words(words, leads)


class Joining:
    """The words of what adds up the pieces of sums."""

    def __init__(self, shape: Shape, has_bias: bool, program: Program | None) -> None:
        self.shape, self.has_bias, self.program = shape, has_bias, program
        self.rows = prod(shape.leads) * shape.rows
        self.part = _part(self.rows, UNITS, 1)
        needs = {f.SUMS_AT: JOINED_COLUMNS * shape.size, f.BIAS_AT: JOINED_COLUMNS * shape.size}
        self.places, self.workspace = _laid_out(needs | _program_needs(program, shape))

    def __call__(self, pieces: Array, *arrays: Array) -> bytes:
        shape, steps = self.shape, arrays[0].strides if self.has_bias else (0,) * (len(self.shape.leads) + 1)
        leads = merged(zip(shape.leads, [(0, 0, s) for s in steps[:-1]], strict=True))
        words = {
            f.ROWS: shape.rows,
            f.COLUMNS: shape.columns,
            f.BIAS_STEP: steps[-1],
            f.C_PIECE: shape.results * shape.size,
            f.ROW_PART: self.part,
            f.ROW_PARTS: self.rows,
            f.COLUMN_PART: JOINED_COLUMNS,
            f.PIECES: shape.pieces,
            f.AXES: len(leads),
        }
        words |= self.places | _program_words(self.program, shape.dtype, leads)
        bias = address(arrays[0]) if self.has_bias else 0
        result = address(arrays[-1]) if self.program is None else 0
        block = _addresses(address(pieces), 0, bias, result) + _words(words, leads)
        return block if self.program is None else block + self.program.bind(*arrays[self.has_bias :])


# --- tasks ------------------------------------------------------------------------------------------------------------


def _packing_task(shape: Shape, b: Var, is_transposed: bool) -> Task:
    """The columns of ``b``, packed for all units."""
    packed = Var(f"{b.name}.columns", TensorType(shape.computed, (*shape.leads, shape.products, shape.padded)), None)
    packing = Packing(shape, is_transposed)
    return Task(
        kernel=f"columns {shape.dtype}",
        inputs=(b,),
        outputs=(packed,),
        function=kernel(SOURCE, f"pack:{shape.dtype}"),
        units=packing.units,
        cost=packed.type.size * NANOSECONDS_PER_PACKED,
        workspace=0,
        bind=packing,
        share=("columns", shape.leads, shape.products, shape.columns, shape.block, is_transposed),
    )


def _product_task(
    cut: Cut, node: Node, operands: tuple[Var, ...], outputs: tuple[Var, ...], program: Program | None = None
) -> Task:
    """``operands``: those of the product, of which the second may be packed, and then those of the program."""
    shape, (a, b, *others) = cut.shape, operands
    before = (_packing_task(shape, b, node.attrs.transpose_b),) if cut.is_packed else ()
    right = before[0].outputs[0] if before else b
    has_bias = len(node.inputs) > 2 and not cut.is_split
    binder = Binder(cut, node, has_bias, program)
    _, units, workspace = binder.dense()
    cost = shape.flops / FLOPS_PER_NANOSECOND + units * NANOSECONDS_PER_UNIT
    return Task(
        kernel=f"matrix product {shape.dtype}",
        inputs=(a, right, *others),
        outputs=outputs,
        function=kernel(SOURCE, f"matmul:{shape.dtype}"),
        units=units,
        cost=cost + (0 if program is None else program.nanoseconds),
        workspace=workspace,
        bind=binder,
        before=before,
    )


def _split_task(
    cut: Cut, node: Node, others: tuple[Var, ...], outputs: tuple[Var, ...], program: Program | None
) -> Task:
    """Pieces of sums in front, and then their sums. ``others``: the bias, and what the program reads."""
    shape, (result,) = cut.shape, node.outputs
    pieces = Var(f"{result.name}.pieces", TensorType(shape.computed, (shape.pieces, *result.shape)), None)
    joining = Joining(shape, len(node.inputs) > 2, program)
    return Task(
        kernel=f"sums of products {shape.dtype}",
        inputs=(pieces, *others),
        outputs=outputs,
        function=kernel(SOURCE, f"join:{shape.dtype}"),
        units=-(-joining.rows // joining.part),
        cost=pieces.type.size * NANOSECONDS_PER_PACKED,
        workspace=joining.workspace,
        bind=joining,
        before=(_product_task(cut, node, node.inputs[:2], (pieces,)),),
    )


class MatmulLowering(LoweringBase):
    """Matrix products, and pointwise operators on their results."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return is_pointwise(node) and node.outputs[0].type == nodes[0].outputs[0].type

    def task(self, work: Work) -> Task | None:
        node, *others = work.nodes
        shape = Shape.of(node)
        made = {v for each in work.nodes for v in each.outputs}
        read = tuple(dict.fromkeys(v for each in others for v in each.inputs if v not in made))
        program = Program(Work(tuple(others), work.outputs), read, node.outputs) if others else None
        is_direct = program is None and shape.dtype == shape.computed
        cut = cut_of(shape, node.attrs.transpose_b and not shape.leads, is_direct)
        if cut.is_split:
            return _split_task(cut, node, (*node.inputs[2:], *read), work.outputs, program)
        return _product_task(cut, node, (*node.inputs, *read), work.outputs, program)


LOWERINGS: dict[str, Lowering] = {"matmul": MatmulLowering()}
