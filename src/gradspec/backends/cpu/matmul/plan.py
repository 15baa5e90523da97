"""Matrix products on the CPU: how the work is cut up.

Weights, which are read transposed, are packed in front of the product: once, if they are constants. So is what many
units would otherwise pack again. All others are packed by each unit, or read where they lie. Where rows are few, memory
bounds the product: constants are packed, and all others are read where they lie.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Any

from gradspec.backends.cpu.binding import KernelCall, laid_out, task_of
from gradspec.backends.cpu.matmul.arguments import (
    FEW_ROWS,
    LONGEST_BLOCK,
    SUMS_GAP,
    TILE_BYTES,
    UNIT_BYTES,
    ColumnKind,
    MatmulArguments,
    MatrixLead,
)
from gradspec.backends.cpu.planning import MULTIPLIED, Strides, computed_float, merged
from gradspec.backends.cpu.pointwise.plan import PointwiseProgram, epilogue_function, joins_program
from gradspec.codegen.cache import Kernel, kernel
from gradspec.codegen.processor import processor
from gradspec.codegen.records import Operand, function_address, record_from
from gradspec.graph.ir import Node, Var
from gradspec.graph.types import DType, TensorType
from gradspec.runtime.task import Lowering, Task, Work
from gradspec.runtime.threads import get_num_threads

SOURCE = "gradspec.backends.cpu.matmul.kernels.matmul"

COLUMN_BYTES = 17 << 15
"""Of packed columns that a unit reads again and again: a core's own cache holds them and a group of rows."""
ROW_BYTES = 1 << 18
"""Of rows that are packed for several pieces."""
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
IN_PLACE_ROWS, NEAR_BYTES = 16, 3 << 17
"""Tiles of so few rows read columns where they lie, if a block of products lies within so many bytes."""
STREAMED_ROWS, TURNED_ROWS = 4, 8
"""Columns that are neighbours, or that lie across, are read where they lie by so few rows. So are neighbours for as few
products."""
LONG_ROW, WRITTEN_BYTES = 1 << 15, 1 << 12
"""Of a row: as much as a unit reads for few rows, and writes for few products, so that some fit the first cache."""
PACKED_BLOCKS = 32
"""Blocks of columns in a unit of packing."""
JOINED_COLUMNS = 512

FLOPS_PER_NANOSECOND, FLOPS_PER_BYTE = 30.0, 2
NANOSECONDS_PER_PACKED = 0.4
NANOSECONDS_PER_UNIT = 300.0


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _part(n: int, parts: int, step: int) -> int:
    """The size of at most so many equal parts, as a multiple of ``step``."""
    return _up(max(1, -(-n // max(1, parts))), step)


# --- shapes -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ProductShape:
    """Products of matrices ``(rows, products)`` and ``(products, columns)``, one for each index of leading axes."""

    leads: tuple[int, ...]
    rows: int
    columns: int
    products: int
    dtype: DType
    is_turned: bool = False
    """Whether this is the transpose of a product with one column: its operands have changed places."""

    @classmethod
    def of(cls, node: Node) -> ProductShape:
        a, (result,) = node.inputs[0], node.outputs
        *leads, rows, columns = result.shape
        products, is_turned = a.shape[-2 if node.attrs.transpose_a else -1], columns == 1 < rows
        rows, columns = (columns, rows) if is_turned else (rows, columns)
        return cls(tuple(leads), rows, columns, products, result.dtype, is_turned)

    @property
    def has_few_rows(self) -> bool:
        """Whether memory bounds it, since little is done with each number of the right operand."""
        return self.rows <= max(STREAMED_ROWS, TURNED_ROWS)

    @property
    def is_thin(self) -> bool:
        """Whether the right operand may be read where it lies."""
        return self.has_few_rows or self.products <= STREAMED_ROWS

    def bias_step(self, strides: Strides) -> int:
        """In bytes; of one column, there is one number."""
        return 0 if self.is_turned else strides[-1] * self.stored_size

    @property
    def computed(self) -> DType:
        return computed_float(self.dtype)

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

    @property
    def work(self) -> int:
        """Operations, or as many as could be done while the right operand is read and the result written."""
        moved = prod(self.leads) * (self.rows + self.products) * self.columns * self.stored_size
        return max(self.flops, moved * FLOPS_PER_BYTE)

    @cached_property
    def block(self) -> int:
        """Columns that are packed side by side: as many as a tile has, or as there are."""
        tiles, lanes = processor().tiles, processor().lanes(self.size)
        enough = [rows for rows in tiles if rows >= self.rows]
        rows = min(enough) if self.rows <= FEW_ROWS and enough else processor().most_rows
        return min(tiles[rows][0] * lanes, max(lanes, _up(self.columns, lanes)))

    @property
    def padded(self) -> int:
        """Columns of whole blocks."""
        return _up(self.columns, self.block)

    @property
    def packed_at_once(self) -> int:
        """Columns that a core's own cache holds, packed: whole blocks of them."""
        return max(1, COLUMN_BYTES // (self.k_block * self.size) // self.block) * self.block

    @cached_property
    def k_block(self) -> int:
        """Blocks of products are about as long as each other."""
        return _part(self.products, -(-self.products // LONGEST_BLOCK), 8)

    @cached_property
    def piece(self) -> int:
        return _part(self.products, min(MOST_PIECES, self.products // PIECE), self.k_block)

    @property
    def pieces(self) -> int:
        return max(1, -(-self.products // self.piece))


@dataclass(frozen=True)
class Cut:
    """How many rows and columns a unit has."""

    shape: ProductShape
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


def cut_of(shape: ProductShape, is_weight: bool, is_direct: bool) -> Cut:
    """Units enough to keep some threads busy, and few numbers packed.

    >>> from gradspec.graph.types import f32
    >>> cut = cut_of(ProductShape((), 512, 512, 512, f32), is_weight=False, is_direct=True)
    >>> cut.units, cut.is_packed
    (8, True)
    """
    wanted = min(get_num_threads() if shape.has_few_rows else UNITS, UNITS, shape.work // UNIT_FLOPS)
    alone = best_cut(shape, 1, is_weight, True)
    fits = shape.pieces * shape.results * shape.size <= PACKED_BYTES
    if shape.pieces > 1 and alone.units < wanted and fits:
        return best_cut(shape, -(-wanted // shape.pieces), is_weight, True, is_split=True)
    cut = best_cut(shape, wanted, is_weight, is_direct)
    size = prod(shape.leads) * shape.products * shape.padded * shape.size
    if cut.row_parts > 1 and shape.flops >= PACKED_FLOPS and size <= PACKED_BYTES and shape.products > STREAMED_ROWS:
        return best_cut(shape, wanted, True, is_direct)
    return cut


def best_cut(shape: ProductShape, wanted: int, is_packed: bool, is_direct: bool, is_split: bool = False) -> Cut:
    cuts = (Cut(shape, *sizes, is_packed, is_direct, is_split) for sizes in _sizes(shape, wanted, is_direct, is_split))
    return min(cuts, key=lambda cut: cut.packed)


def _sizes(shape: ProductShape, wanted: int, is_direct: bool, is_split: bool) -> Iterator[tuple[int, int]]:
    """Rows and columns of a unit, so that there are at least as many units as wanted."""
    most = max(shape.packed_at_once, LONG_ROW // shape.size if shape.has_few_rows else 0)
    blocks = max(1, -(-shape.columns // shape.block))
    fewest = -(-shape.columns // most)
    keeps = shape.products > shape.k_block and not is_direct
    joins = shape.pieces > 1 and not is_split
    for parts in range(fewest, min(blocks, fewest + wanted) + 1):
        columns = _part(shape.columns, parts, shape.block)
        others = max(1, prod(shape.leads) * -(-shape.columns // columns))
        rows = _part(shape.rows, -(-wanted // others), ROW_STEP)
        if keeps or joins:
            rows = min(rows, max(ROW_STEP, SCRATCH_BYTES // (columns * shape.size) // ROW_STEP * ROW_STEP))
        yield rows, columns


# --- arguments --------------------------------------------------------------------------------------------------------


def _matrix(strides: Strides, is_transposed: bool, size: int) -> tuple[int, int]:
    """The steps of rows and columns, in bytes."""
    first, second = (step * size for step in strides[-2:])
    return (second, first) if is_transposed else (first, second)


def _leads(sizes: Sequence[int], a: Strides, b: Strides, bias: Strides, size: int) -> tuple[MatrixLead, ...]:
    """Leading axes, with their steps in the operands."""
    axes = merged(zip(sizes, zip(a, b, bias, strict=True), strict=True))
    return tuple(MatrixLead(n, *(step * size for step in steps)) for n, steps in axes)


@dataclass(frozen=True)
class Epilogue:
    """What is done with finished results, if anything is."""

    shape: ProductShape
    program: PointwiseProgram | None

    @property
    def needs(self) -> dict[str, int]:
        """Room for what it is given, if that must be rounded first, and for what it does with it."""
        if self.program is None:
            return {}
        rounded = self.program.block * self.shape.stored_size if self.shape.dtype != self.shape.computed else 0
        return {"row_at": rounded, "epilogue_at": self.program.workspace}

    def fields(self, strides: Sequence[Strides], first: int) -> dict[str, Any]:
        """The fields of its arguments, the first of its arrays having this number."""
        if self.program is None:
            return {"c": Operand(first)}
        return {
            "epilogue_function": function_address(epilogue_function(self.shape.dtype)),
            "epilogue": (self.program.arguments(strides, first),),
            "epilogue_block": self.program.block,
        }


@dataclass(frozen=True)
class Multiplication:
    """Products of arrays of any layout: the operands, then those of the epilogue, and the results."""

    cut: Cut
    transpose_a: bool
    transpose_b: bool
    has_bias: bool
    epilogue: Epilogue

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[MatmulArguments]:
        shape, size = self.cut.shape, self.cut.shape.stored_size
        a, b, *others = strides
        bias = others.pop(0) if self.has_bias else (0,) * (len(shape.leads) + 1)
        a_row, a_step = _matrix(a, self.transpose_a, size)
        b_step, b_column = _matrix(b, self.transpose_b, size)
        kind = self._column_kind(b_step, b_column)
        cut, row_group = self._fitted(kind)
        places, workspace = self._places(cut, kind, row_group)
        arguments = record_from(
            MatmulArguments,
            shape,
            a=Operand(0),
            b=Operand(1),
            bias=Operand(2) if self.has_bias else None,
            leads=_leads(
                shape.leads, a[:-2], b[:-2] if not cut.is_packed else (0,) * len(shape.leads), bias[:-1], size
            ),
            a_row=a_row,
            a_step=a_step,
            b_step=b_step,
            b_column=b_column,
            bias_step=shape.bias_step(bias),
            c_piece=shape.results * shape.size,
            row_part=cut.rows,
            row_parts=cut.row_parts,
            column_part=cut.columns,
            column_parts=cut.column_parts,
            row_group=row_group,
            piece_group=self._piece_group,
            is_split=cut.is_split,
            column_kind=kind,
            is_direct=cut.is_direct,
            **places,
            **self.epilogue.fields(others, 2 + self.has_bias),
        )
        return KernelCall(arguments, cut.units, workspace)

    def _column_kind(self, b_step: int, b_column: int) -> ColumnKind:
        shape = self.cut.shape
        if self.cut.is_packed:
            return ColumnKind.PACKED
        lanes, size = processor().lanes(shape.size), shape.stored_size
        is_near = abs(b_step) * shape.k_block <= NEAR_BYTES
        if b_column == shape.size == size and is_near and shape.rows > 1 and self.cut.rows <= IN_PLACE_ROWS:
            return ColumnKind.IN_PLACE
        if b_column == size and 0 < min(shape.rows, shape.products) <= STREAMED_ROWS:
            return ColumnKind.STREAMED
        if b_step == size and shape.rows <= TURNED_ROWS and shape.products >= lanes:
            return ColumnKind.TURNED
        return ColumnKind.NOT_PACKED

    def _fitted(self, kind: ColumnKind) -> tuple[Cut, int]:
        """Units for columns of this kind, and the rows that are worked on at a time: their sums stay near."""
        cut, shape = self.cut, self.cut.shape
        if kind == ColumnKind.STREAMED and shape.rows > STREAMED_ROWS:
            return replace(cut, columns=min(cut.columns, WRITTEN_BYTES // shape.size)), ROW_STEP
        if kind == ColumnKind.NOT_PACKED:
            return replace(cut, columns=min(cut.columns, shape.packed_at_once)), ROW_GROUP
        return cut, ROW_GROUP

    @property
    def _piece_group(self) -> int:
        """All pieces of a unit, if their packed rows stay in a core's own cache."""
        shape = self.cut.shape
        size = _up(shape.rows, processor().most_rows) * shape.piece * shape.size
        return 1 if self.cut.is_split else max(1, min(shape.pieces, ROW_BYTES // max(1, size)))

    def _places(self, cut: Cut, kind: ColumnKind, row_group: int) -> tuple[dict[str, Any], int]:
        """Where things lie in the workspace, and how large it is."""
        shape = cut.shape
        rows, columns, size = min(cut.rows, shape.rows), min(cut.columns, shape.padded), shape.size
        is_joined, has_blocks = shape.pieces > 1 and not cut.is_split, shape.products > shape.k_block
        kept = rows if has_blocks else min(rows, row_group)
        numbers = {
            ColumnKind.PACKED: 0,
            ColumnKind.NOT_PACKED: columns * shape.k_block,
            ColumnKind.IN_PLACE: shape.block * shape.k_block,
            ColumnKind.STREAMED: kept * (columns + SUMS_GAP // size) if has_blocks else 0,
            ColumnKind.TURNED: 0,
        }
        packed = self._piece_group * shape.piece if kind == ColumnKind.TURNED else shape.k_block
        needs = {
            "tables_at": 2 * 8 * LONGEST_BLOCK,
            "a_at": _up(min(rows, row_group), processor().most_rows) * packed * size,
            "b_at": numbers[kind] * size,
            "bias_at": columns * size if self.has_bias else 0,
            "edge_at": TILE_BYTES,
            "sums_at": kept * columns * size if is_joined or not cut.is_direct else 0,
            "totals_at": rows * columns * size if is_joined and not cut.is_direct else 0,
        }
        return laid_out(UNIT_BYTES, **needs, **self.epilogue.needs)


@dataclass(frozen=True)
class Packing:
    """All columns, packed."""

    shape: ProductShape
    is_transposed: bool

    @property
    def part(self) -> int:
        return PACKED_BLOCKS * self.shape.block

    @property
    def parts(self) -> int:
        return -(-self.shape.columns // self.part)

    @property
    def units(self) -> int:
        return prod(self.shape.leads) * self.parts * -(-self.shape.products // self.shape.k_block)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[MatmulArguments]:
        shape, (source, _), nowhere = self.shape, strides, (0,) * len(self.shape.leads)
        step, column = _matrix(source, self.is_transposed, shape.stored_size)
        arguments = MatmulArguments(
            b=Operand(0),
            c=Operand(1),
            leads=_leads(shape.leads, nowhere, source[:-2], nowhere, shape.stored_size),
            b_step=step,
            b_column=column,
            columns=shape.columns,
            products=shape.products,
            column_part=self.part,
            column_parts=self.parts,
            k_block=shape.k_block,
            block=shape.block,
        )
        return KernelCall(arguments, self.units, 0)


@dataclass(frozen=True)
class Joining:
    """The pieces of sums, added up: pieces, a bias, what the epilogue reads, and the results."""

    shape: ProductShape
    has_bias: bool
    epilogue: Epilogue

    @property
    def rows(self) -> int:
        return prod(self.shape.leads) * self.shape.rows

    @property
    def part(self) -> int:
        return _part(self.rows, UNITS, 1)

    def __call__(self, strides: Sequence[Strides]) -> KernelCall[MatmulArguments]:
        shape, size, (_, *others) = self.shape, self.shape.stored_size, strides
        nowhere = (0,) * len(shape.leads)
        bias = others.pop(0) if self.has_bias else (*nowhere, 0)
        needs = {"sums_at": JOINED_COLUMNS * shape.size, "bias_at": JOINED_COLUMNS * shape.size}
        places, workspace = laid_out(UNIT_BYTES, **needs, **self.epilogue.needs)
        arguments = MatmulArguments(
            a=Operand(0),
            bias=Operand(1) if self.has_bias else None,
            leads=_leads(shape.leads, nowhere, nowhere, bias[:-1], size),
            rows=shape.rows,
            columns=shape.columns,
            bias_step=shape.bias_step(bias),
            c_piece=shape.results * shape.size,
            row_part=self.part,
            row_parts=self.rows,
            column_part=JOINED_COLUMNS,
            pieces=shape.pieces,
            **places,
            **self.epilogue.fields(others, 1 + self.has_bias),
        )
        return KernelCall(arguments, -(-self.rows // self.part), workspace)


# --- tasks ------------------------------------------------------------------------------------------------------------


def _kernel(operation: str, shape: ProductShape) -> Kernel:
    return kernel(SOURCE, f"{operation}:{shape.dtype}")


def _packing_task(shape: ProductShape, b: Var, is_transposed: bool) -> Task:
    """The columns of ``b``, packed for all units."""
    packed = Var(f"{b.name}.columns", TensorType(shape.computed, (*shape.leads, shape.products, shape.padded)), None)
    share = ("columns", shape.leads, shape.products, shape.columns, shape.block, is_transposed)
    cost, function = packed.type.size * NANOSECONDS_PER_PACKED, _kernel("pack", shape)
    return task_of(
        f"columns {shape.dtype}", function, (b,), (packed,), Packing(shape, is_transposed), cost, share=share
    )


def _product_task(
    cut: Cut, node: Node, operands: tuple[Var, ...], outputs: tuple[Var, ...], program: PointwiseProgram | None = None
) -> Task:
    """``operands``: those of the product, of which the second may be packed, and then those of the program."""
    shape, (a, b, *others), flags = cut.shape, operands, (node.attrs.transpose_a, node.attrs.transpose_b)
    if shape.is_turned:
        a, b, flags = b, a, (not flags[1], not flags[0])
    before = (_packing_task(shape, b, flags[1]),) if cut.is_packed else ()
    right = before[0].outputs[0] if before else b
    has_bias = len(node.inputs) > 2 and not cut.is_split
    product = Multiplication(cut, *flags, has_bias, Epilogue(shape, program))
    cost = shape.work / FLOPS_PER_NANOSECOND + cut.units * NANOSECONDS_PER_UNIT
    cost += 0 if program is None else program.nanoseconds
    function, inputs = _kernel("thin" if shape.is_thin else "matmul", shape), (a, right, *others)
    in_place = replace(cut, is_packed=False)
    unprepared = _product_task(in_place, node, operands, outputs, program) if before and shape.has_few_rows else None
    name = f"matrix product {shape.dtype}"
    return task_of(name, function, inputs, outputs, product, cost, before=before, unprepared=unprepared)


def _split_task(
    cut: Cut, node: Node, others: tuple[Var, ...], outputs: tuple[Var, ...], program: PointwiseProgram | None
) -> Task:
    """Pieces of sums in front, and then their sums. ``others``: the bias, and what the program reads."""
    shape, (result,) = cut.shape, node.outputs
    pieces = Var(f"{result.name}.pieces", TensorType(shape.computed, (shape.pieces, *result.shape)), None)
    joining = Joining(shape, len(node.inputs) > 2, Epilogue(shape, program))
    before = (_product_task(cut, node, node.inputs[:2], (pieces,)),)
    cost = pieces.type.size * NANOSECONDS_PER_PACKED
    name, function = f"sums of products {shape.dtype}", _kernel("join", shape)
    return task_of(name, function, (pieces, *others), outputs, joining, cost, before=before)


class MatmulLowering(Lowering):
    """Matrix products, and pointwise operators on their results."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return joins_program(nodes, node)

    def task(self, work: Work) -> Task | None:
        node, *others = work.nodes
        shape = ProductShape.of(node)
        if shape.dtype.name not in MULTIPLIED:
            return None
        made = {v for each in work.nodes for v in each.outputs}
        read = tuple(dict.fromkeys(v for each in others for v in each.inputs if v not in made))
        program = PointwiseProgram(Work(tuple(others), work.outputs), read, node.outputs) if others else None
        is_direct = program is None and shape.dtype == shape.computed
        cut = cut_of(shape, not shape.leads and (node.attrs.transpose_b or shape.has_few_rows), is_direct)
        if cut.is_split:
            return _split_task(cut, node, (*node.inputs[2:], *read), work.outputs, program)
        return _product_task(cut, node, (*node.inputs, *read), work.outputs, program)


LOWERINGS: dict[str, Lowering] = {"matmul": MatmulLowering()}
