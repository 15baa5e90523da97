"""Convolution and transposed convolution on the tiles: geometry, blocking, and the words that the kernels read."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import numpy as np

from gradspec.backends.cpu.conv_pool import Pooling, is_pooling, rank_of, rows_together
from gradspec.backends.cpu.kernels import conv_fields as f
from gradspec.backends.cpu.kernels.registers import machine
from gradspec.backends.cpu.patches import Blocking, Case, Line, cases, elements, leading, reading, regular_axes, writing
from gradspec.backends.cpu.pointwise.plan import Program, epilogue_function, is_pointwise
from gradspec.backends.cpu.dtypes import COMPUTED
from gradspec.codegen.addresses import address, function_address
from gradspec.codegen.cache import kernel
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType, u8
from gradspec.ops.conv import Convolution
from gradspec.runtime.task import Lowering, LoweringBase, Task, Work
from gradspec.runtime.threads import get_num_threads

SOURCE = "gradspec.backends.cpu.kernels.conv"
TERMS, STRIP_BYTES = 288, 36 << 10
"""About so many terms of each sum are added up at a time, and fewer where vectors are long, so that a strip of columns
stays in the first cache."""
COLUMNS, VECTORS = 384, 48
"""What a block has at least, where there are as many: columns, and vectors of them."""
PANEL_BYTES = 1 << 18
"""Of the weights that are used with each stretch of columns in turn: they stay in the second cache."""
STAGED_BYTES = 1 << 19
MOST_STAGED_BYTES, MOST_WORKSPACE = 4 << 20, 8 << 20
"""What needs more per thread, windows of a hundred thousand cells, is left to NumPy."""
SCRATCH_BYTES = 1 << 18
POOLED_BYTES = 1 << 19
"""Of rows that a pooling reads at once, from the second cache."""
FEW_ROWS = 8
"""Of weights: with so few of them, staging takes as long as multiplying."""
POOR_FILL = 0.8
LONG_ROW, MOST_WASTE = 32, 1.15
"""Outputs of a row that tiles fill well, and how many more they may compute."""
UNITS_PER_THREAD = 4
"""Fewer units are split further, where there is work for more: results do not depend on how many there are."""
MUCH_WORK = 1 << 22
"""Products: as many are worth more units."""
FRAME_BYTES, EDGE_BYTES, SLACK_BYTES = 512, 4096, 1024
WINDOW = 9
"""Numbers of a window of three by three."""
PADDED = 64
NANOSECONDS_PER_PRODUCT = 0.06


def _rounded(n: int, to: int = PADDED) -> int:
    return -(-n // to) * to


def _fitted(blocking: Blocking, of: Sequence[Line], case: Sequence[Line]) -> Blocking:
    """The same number of rows for a case whose rows may be shorter."""
    if not blocking.slides:
        return blocking
    return replace(blocking, columns=blocking.columns // of[-1].positions * case[-1].positions)


def _by_rows(blocking: Blocking, lines: Sequence[Line], together: int) -> Blocking:
    """Blocks of a multiple of ``together`` rows of the running axis, or of all of them for 0."""
    rows, *others = (line.positions for line in lines[blocking.run :])
    inner = prod(others)
    wanted = _rounded(-(-blocking.columns // inner), together) if together else rows
    return replace(blocking, columns=min(wanted, rows) * inner)


class Form:
    """A convolution of given shapes: its cases, blocks and units. Nothing here depends on memory layouts."""

    def __init__(
        self,
        writes: bool,
        attrs: Convolution,
        source: TensorType,
        result: TensorType,
        products: int = 1,
        in_place: bool = True,
        by_rows: bool = False,
        together: int | None = None,
    ) -> None:
        """``by_rows``: columns are taken a row at a time, whatever pays.

        ``together``: blocks are multiples of so many rows of the running axis, or all rows for 0.
        """
        self.attrs, self.writes, self.rank = attrs, writes, attrs.rank
        self.itemsize = COMPUTED[source.dtype.name]
        self.lanes = machine().bytes // self.itemsize
        self.columns = max(COLUMNS, VECTORS * self.lanes)
        lead = leading(source.shape, self.rank)
        self.leads, self.axes = len(lead), len(lead) + self.rank
        self.groups = attrs.groups
        self.channels = source.shape[-1 - self.rank] // self.groups
        self.rows = result.shape[-1 - self.rank] // self.groups
        self.out_sizes = result.shape[result.ndim - self.rank :]
        lines = [(writing if writes else reading)(axis) for axis in regular_axes(attrs.window)]
        self.products = products
        plain = list(cases(lines, lead))
        self.most_taps = max(prod(line.taps for line in case) for case in plain)
        self.chunk = self._chunk(self.most_taps)
        self.in_place = in_place and all(line.out_step == 1 for line in plain[0])
        blocking = self._blocking(plain[0], by_rows)
        if together is not None:
            blocking = _by_rows(blocking, plain[0], together)
        self.in_place = self.in_place and (blocking.run >= self.leads or lead[-1].positions == 1)
        self.cases = [Case(case, _fitted(blocking, plain[0], case), self.lanes) for case in plain]
        self.parts, self.part_rows = self._parts()
        self.units = sum(self.units_of(case) for case in self.cases)
        self.taps = prod(attrs.kernel)

    def _chunk(self, taps: int) -> int:
        """Equal chunks of about ``TERMS`` terms: the order of a sum depends on channels and taps alone."""
        terms = min(TERMS, STRIP_BYTES // self.strip_width)
        pieces = -(-self.channels // max(1, terms // max(1, taps)))
        return max(1, -(-self.channels // max(1, pieces)))

    def _blocking(self, lines: Sequence[Line], by_rows: bool) -> Blocking:
        positions = [line.positions for line in lines]
        totals = [prod(positions[axis:]) for axis in range(len(lines))]
        spatial = range(self.leads, self.axes)
        run = next(
            (a for a in reversed(spatial) if totals[a] >= self.columns), self.leads if self.rank else self.leads - 1
        )
        if totals[run] < POOR_FILL * _rounded(totals[run], self.lanes):
            run = self.leads - 1  # samples side by side, where their planes are too small to fill vectors
        slides = self.rank > 1 and (by_rows or self._rows_pay(lines[-1]))
        if slides or by_rows:
            run = max(self.leads, self.axes - 2)
        columns = self._columns(prod(positions[run + 1 :]), totals[run], prod(positions[:run]))
        if slides:
            columns = -(-columns // positions[-1]) * positions[-1]
        blocking = Blocking(run, columns, self.chunk, slides)
        while True:
            case = Case(lines, blocking, self.lanes)
            if case.channel_pitch * self.chunk * self.itemsize <= STAGED_BYTES or columns <= 4 * self.lanes:
                return blocking
            columns = _rounded(columns // 2, positions[-1] if slides else self.lanes)
            if columns == blocking.columns:
                return blocking
            blocking = Blocking(run, columns, self.chunk, slides)

    def _rows_pay(self, last: Line) -> bool:
        """Whether a row of outputs at a time is better than columns across rows, where every tap is staged apart."""
        computed = _rounded(last.positions, self.lanes)
        fills = last.positions >= LONG_ROW and computed <= MOST_WASTE * last.positions
        return last.taps > 1 and (self.rows <= FEW_ROWS or fills)

    def _columns(self, inner: int, total: int, outer: int) -> int:
        """Whole rows where a few of them make about the right number of columns."""
        most = self.columns if self.rows > FEW_ROWS else 8 * self.columns
        if not self.in_place:
            most = max(4 * self.lanes, min(most, SCRATCH_BYTES // (self.rows * self.itemsize * self.products or 1)))
        work = 2 * self.rows * self.channels * prod(self.attrs.kernel)
        blocks = -(-total // most)
        fewest = -(-UNITS_PER_THREAD * get_num_threads() // (outer * self.groups))
        if blocks < fewest and total * work > 2 * MUCH_WORK:
            blocks = min(fewest, max(1, total // (12 * self.lanes)))
        columns = -(-total // blocks)
        if columns >= inner > 1 and blocks > 1:
            return -(-columns // inner) * inner
        return min(total, _rounded(columns, 3 * self.lanes)) if blocks > 1 else total

    def _parts(self) -> tuple[int, int]:
        units = sum(case.outer * self.groups * case.blocks for case in self.cases)
        work = self.rows * self.channels * prod(self.attrs.kernel) * max(case.total for case in self.cases)
        parts = 1
        enough = 2 * get_num_threads()
        while units * parts < enough and self.rows // (2 * parts) >= 32 and work // parts > MUCH_WORK:
            parts *= 2
        rows = _rounded(-(-self.rows // parts), 8)
        return -(-self.rows // rows), rows

    def units_of(self, case: Case) -> int:
        return case.outer * self.groups * case.blocks * self.parts

    def is_square(self, case: Case) -> bool:
        """Whether windows are three by three cells of one channel, on neighbouring rows that taps share."""
        if not case.blocking.slides:
            return False
        *before, above, last = zip(case.lines, case.staged, strict=True)
        return (
            self.rows == self.channels == 1
            and all(line.taps == 1 for line, _ in before)
            and (above[0].taps, last[0].taps) == (3, 3)
            and abs(above[1].shift) == 1
            and above[1].planes == last[1].planes == 1
            and case.positions[-1] >= self.lanes
        )

    # --- memory -------------------------------------------------------------------------------------------------------

    @property
    def pitch(self) -> int:
        return _rounded(
            (max(min(case.total, case.blocking.columns) for case in self.cases) + 8 * self.lanes) * self.itemsize
        )

    @property
    def staged_bytes(self) -> int:
        return _rounded(max(case.channel_pitch for case in self.cases) * self.chunk * self.itemsize + SLACK_BYTES)

    @property
    def strip_width(self) -> int:
        """Bytes of one row of a strip of columns."""
        return machine().strip_vectors * machine().bytes

    @property
    def strip_bytes(self) -> int:
        return _rounded(self.strip_width * self.chunk * self.most_taps)

    @property
    def pack_units(self) -> int:
        return len(self.cases) * self.groups * -(-self.channels // self.chunk)

    @property
    def panels_at(self) -> int:
        return _rounded(8 * self.pack_units)

    @property
    def packed_bytes(self) -> int:
        taps = sum(case.taps for case in self.cases)
        return self.panels_at + _rounded(self.rows * self.groups * self.channels * taps * self.itemsize + PADDED)

    @property
    def row_block(self) -> int:
        k = self.chunk * self.most_taps
        return max(8, PANEL_BYTES // max(1, k * self.itemsize) // 8 * 8)

    @property
    def panel_starts(self) -> list[int]:
        """The first element of each case's panels."""
        each = [self.rows * self.groups * self.channels * case.taps for case in self.cases]
        return [sum(each[:i]) for i in range(len(each))]


class Packing:
    """The words of a packing of weights."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.known: dict[Any, tuple[Array, list[Array]]] = {}

    def __call__(self, weight: Array, packed: Array) -> bytes:
        found = self.known.get(weight.strides)
        if found is None:
            found = self.known[weight.strides] = self._words(weight)
        words = found[0].copy()
        words[f.PACK_SOURCE], words[f.PACK_TARGET] = address(weight), address(packed)
        return words.tobytes()

    def _words(self, weight: Array) -> tuple[Array, list[Array]]:
        form = self.form
        m, c, *spatial = (stride // weight.itemsize for stride in weight.strides)
        words = np.zeros(f.PACK_HEADER + len(form.cases) * f.PACK_CASE_WORDS, np.int64)
        words[f.PACK_ROWS], words[f.PACK_GROUPS] = form.rows, form.groups
        words[f.PACK_CHANNELS], words[f.PACK_CHUNK] = form.channels, form.chunk
        words[f.PACK_CASES], words[f.PACK_PANELS] = len(form.cases), form.panels_at
        words[f.PACK_ROW], words[f.PACK_CHANNEL] = (c, m) if form.writes else (m, c)
        words[f.PACK_GROUP] = weight.shape[0] // form.groups * m
        tables = [case.taps_of(spatial) for case in form.cases]
        for i, (case, table, first) in enumerate(zip(form.cases, tables, form.panel_starts, strict=True)):
            at = f.PACK_HEADER + i * f.PACK_CASE_WORDS
            words[at + f.PACK_TAPS], words[at + f.PACK_TABLE], words[at + f.PACK_FIRST] = (
                case.taps,
                address(table),
                first,
            )
        return words, tables


# --- tasks ------------------------------------------------------------------------------------------------------------


class Words:
    """What the kernels read about a form, whatever they make of it."""

    def __init__(self, form: Form, by_rows: bool = False) -> None:
        self.form, self.by_rows = form, by_rows
        self.tables = [case.table(form.itemsize) for case in form.cases]
        self.orders = {i: np.argsort(self.tables[i]) for i, case in enumerate(form.cases) if form.is_square(case)}
        sizes, lead = form.out_sizes, [line.positions for line in form.cases[0].lines[: form.leads]]
        sample = prod(sizes) * form.rows * form.groups
        self.out_strides = [
            *(sample * prod(lead[i + 1 :]) for i in range(len(lead))),
            *(prod(sizes[i + 1 :]) for i in range(len(sizes))),
        ]

    def head(self, sources: int) -> list[int]:
        form = self.form
        words = [0] * f.HEADER
        words[f.AXES], words[f.RUN], words[f.GROUPS] = form.axes, form.cases[0].blocking.run, form.groups
        words[f.ROWS], words[f.CHANNELS], words[f.CHUNK] = form.rows, form.channels, form.chunk
        words[f.ROW_BLOCK], words[f.PARTS], words[f.PART_ROWS] = form.row_block, form.parts, form.part_rows
        words[f.CASES], words[f.CASE_WORDS] = len(form.cases), f.CASE_AXES + form.axes * f.AXIS_WORDS
        words[f.SOURCES], words[f.SOURCE_WORDS] = sources, f.STRIDES + form.axes
        words[f.PITCH], words[f.OUT_CHANNEL] = form.pitch, prod(form.out_sizes)
        words[f.OUT_GROUP], words[f.OUTER] = form.rows * prod(form.out_sizes), form.cases[0].outer
        words[f.PANELS_AT], words[f.FLAG_COUNT] = form.panels_at, form.pack_units if form.writes else 0
        return words

    def cases(self) -> list[int]:
        found: list[int] = []
        unit = 0
        for i, case in enumerate(self.form.cases):
            found += self._case(i, case, unit)
            unit += self.form.units_of(case)
        return found

    def _case(self, number: int, case: Case, unit: int) -> list[int]:
        axis, length = case.segment(self.out_strides)
        words = [0] * f.CASE_AXES
        words[f.UNIT], words[f.BLOCKS], words[f.BLOCK] = unit, case.blocks, case.blocking.columns
        words[f.TAPS], words[f.TABLE] = case.taps, address(self.tables[number])
        words[f.PANELS] = self.form.panel_starts[number]
        words[f.INNER], words[f.TOTAL], words[f.HALO] = case.inner, case.total, case.staged[case.blocking.run].halo
        words[f.CHANNEL_PITCH] = case.channel_pitch
        words[f.OUT] = sum(line.out * stride for line, stride in zip(case.lines, self.out_strides, strict=True))
        words[f.SEGMENT], words[f.SEGMENT_AXIS] = length, axis
        words[f.OUT_STEP] = case.lines[-1].out_step * self.out_strides[-1]
        words[f.ROW_COLUMNS] = case.positions[-1] if case.blocking.slides or self.by_rows else 0
        words[f.STAGED_ROW] = case.pitches[case.blocking.run]
        if number in self.orders:
            order, table = self.orders[number], self.tables[number]
            words[f.ORDER], words[f.STEP] = address(order), int(table[order[1]] - table[order[0]])
        return words + [word for i in range(len(case.lines)) for word in case.axis_words(i, self.out_strides[i])]

    def source(self, a: Array, channels: int) -> list[int]:
        """An array of which a group has so many channels."""
        lead, channel, spatial = elements(a, self.form.rank)
        return [0, channels * channel, channel, *lead, *spatial]


class Binder:
    """The words of a group of convolutions, and of the program that works on their results."""

    def __init__(self, form: Form, plan: Products) -> None:
        self.form, self.plan, self.words = form, plan, Words(form)
        program = plan.program
        self.edge = FRAME_BYTES
        self.strip = self.edge + EDGE_BYTES
        self.staged = self.strip + form.strip_bytes
        self.scratch = self.staged + form.staged_bytes + (form.pitch if plan.pools else 0)
        self.biases = self.scratch + form.part_rows * form.pitch * len(plan.scratched)
        self.rows = self.biases + _rounded((form.part_rows + WINDOW) * form.itemsize)
        self.program_space = self.rows + form.pitch * (len(plan.given) if plan.stored_size != form.itemsize else 0)
        self.pool_room = _rounded(self.program_space + (0 if program is None else program.workspace))
        self.pooling = plan.pooling_of(form)
        self.workspace = _rounded(self.pool_room + (0 if self.pooling is None else self.pooling.workspace))
        self.function = 0 if program is None else function_address(epilogue_function(plan.dtype))
        self.even = np.arange(form.chunk * form.most_taps, dtype=np.int64) * form.strip_width
        self.first_source = f.HEADER + len(self.words.cases())
        self.source_words = f.STRIDES + form.axes
        self.first_product = self.first_source + len(plan.sources) * self.source_words
        self.known: dict[Any, Array] = {}

    def __call__(self, *arrays: Array) -> bytes:
        plan = self.plan
        given = plan.named(arrays)
        sources = [given[v] for v in plan.sources]
        key = tuple(a.strides for a in sources)
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = self._words(sources)
        words = known.copy()
        for i, a in enumerate(sources):
            words[self.first_source + i * self.source_words + f.ADDRESS] = address(a)
        for i, product in enumerate(plan.products):
            at = self.first_product + i * f.PRODUCT_WORDS
            words[at + f.WEIGHTS] = address(given[product.panels])
            words[at + f.RESULT] = 0 if product.result is None else address(given[product.result])
            if product.bias is not None:
                bias = given[product.bias]
                words[at + f.BIAS], words[at + f.BIAS_STEP] = address(bias), bias.strides[0] // bias.itemsize
        if self.pooling is not None:
            words[f.POOLED] = address(given[self.pooling.result])
        block = words.tobytes()
        if plan.program is None:
            return block
        return block + plan.program.bind(*(given[v] for v in (*plan.operands, *plan.outputs)))

    def _words(self, sources: Sequence[Array]) -> Array:
        plan, words = self.plan, self.words.head(len(sources))
        words[f.PRODUCTS], words[f.EVEN] = len(plan.products), address(self.even)
        words[f.STAGED_CELLS] = self.form.staged_bytes // self.form.itemsize
        words[f.STAGED], words[f.EDGE], words[f.STRIP], words[f.BIASES] = (
            self.staged,
            self.edge,
            self.strip,
            self.biases,
        )
        words[f.ROW_SPACE], words[f.PROGRAM_SPACE], words[f.PROGRAM] = self.rows, self.program_space, self.function
        words[f.PROGRAM_CELLS] = 1 << 62 if plan.program is None else plan.program.block if self.form.rank else 1
        for field, word in self._pooling_words().items():
            words[field] = word
        words += self.words.cases()
        words += [word for a in sources for word in self.words.source(a, self.form.channels)]
        words += [word for product in plan.products for word in self._product(product)]
        words[f.PROGRAM_WORDS] = len(words)
        return np.array(words, np.int64)

    def _pooling_words(self) -> dict[int, int]:
        """A program, or rounding, leaves a row where the one before it was, so that one more row is all it takes."""
        if self.pooling is None:
            return {}
        plan, form = self.plan, self.form
        moves = plan.program is not None or plan.stored_size != form.itemsize
        return self.pooling.words | {
            f.POOL_ROWS: self.scratch - (form.pitch if moves else 0),
            f.POOL_ROOM: self.pool_room,
            f.POOL_SPACE: self.pool_room + self.pooling.words_bytes,
            f.POOL_GIVEN: len(plan.given),
        }

    def _product(self, product: Product) -> list[int]:
        words = [0] * f.PRODUCT_WORDS
        room = self.form.part_rows * self.form.pitch
        words[f.SOURCE], words[f.GIVEN] = product.source, product.given
        words[f.SCRATCH] = -1 if product.scratch is None else self.scratch + product.scratch * room
        return words


@dataclass(frozen=True)
class Product:
    """One convolution of a group: its source, what becomes of its result, and where that is put together."""

    source: int
    panels: Var
    bias: Var | None
    result: Var | None
    scratch: int | None
    given: int


class Products:
    """What a group of convolutions, the pointwise nodes behind them and a last pooling come to."""

    def __init__(self, work: Work, packs: Sequence[Task], in_place: bool) -> None:
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
        self.products = [self._product(n, pack) for n, pack in zip(convolutions, packs, strict=True)]
        made = {v for n in work.nodes for v in n.outputs}
        self.operands = tuple(dict.fromkeys(v for n in others for v in n.inputs if v not in made))
        pooled = [v for n in self.pools for v in n.outputs]
        self.outputs = tuple(v for v in work.outputs if v not in results and v not in pooled)
        self.results = (*self.kept, *self.outputs, *pooled)
        left = [v for n in self.pools for v in n.inputs]
        self.program = Program(Work(others, self.outputs), self.operands, (*self.given, *left)) if others else None
        self.inputs = tuple(
            dict.fromkeys(
                (
                    *self.sources,
                    *(p.panels for p in self.products),
                    *(p.bias for p in self.products if p.bias is not None),
                    *self.operands,
                )
            )
        )

    def _product(self, node: Node, pack: Task) -> Product:
        source, _, *bias = node.inputs
        (result,) = node.outputs
        return Product(
            self.sources.index(source),
            pack.outputs[0],
            bias[0] if bias else None,
            result if result in self.kept else None,
            self.scratched.index(result) if result in self.scratched else None,
            self.given.index(result) if result in self.given else -1,
        )

    def named(self, arrays: Sequence[Array]) -> dict[Var, Array]:
        return dict(zip((*self.inputs, *self.results), arrays, strict=True))

    def pooling_of(self, form: Form) -> Pooling | None:
        if not self.pools:
            return None
        (case,) = form.cases
        return Pooling(self.pools[0], form.part_rows, case.blocking.columns // case.inner, form.pitch)


MOST_PRODUCTS = 6
BACKWARDS = {"conv": False, "conv_transpose": True}


class ConvLowering(LoweringBase):
    """Convolutions of one geometry share the staging of what they read; pointwise nodes work on finished rows."""

    def key(self, node: Node) -> Hashable | None:
        return node.op.name, node.attrs, node.inputs[0].type, node.inputs[1].type

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        contiguous = not BACKWARDS[nodes[0].op.name] or set(nodes[0].attrs.stride) == {1}
        return contiguous and is_pointwise(node) and node.outputs[0].type == nodes[0].outputs[0].type

    def ends(self, nodes: Sequence[Node], node: Node) -> bool:
        """A pooling of one convolution's planes, by the value alone."""
        (convolution, *others), last = nodes, nodes[-1].outputs[0]
        if not is_pooling(node) or len(node.outputs) > 1 or node.inputs != (last,):
            return False
        if any(other.op.name in BACKWARDS for other in others) or not 0 < convolution.attrs.rank == rank_of(node):
            return False
        if 0 in (v.type.size for v in (*convolution.inputs, last, *node.outputs)):
            return False
        return _can_pool(_form((*nodes, node)), _form(nodes))

    def task(self, work: Work) -> Task | None:
        first = work.nodes[0]
        count = sum(node.op.name in BACKWARDS for node in work.nodes)
        source, weight, result = first.inputs[0], first.inputs[1], first.outputs[0]
        if count > MOST_PRODUCTS or 0 in (source.type.size, weight.type.size, result.type.size):
            return None
        form = _form(work.nodes)
        if form.staged_bytes > MOST_STAGED_BYTES or len(form.cases) > MOST_CASES:
            return None
        packs = {node.inputs[1]: _packing(form, node.inputs[1]) for node in work.nodes if node.op.name in BACKWARDS}
        convolutions = [node for node in work.nodes if node.op.name in BACKWARDS]
        plan = Products(work, [packs[node.inputs[1]] for node in convolutions], form.in_place)
        binder = Binder(form, plan)
        if binder.workspace > MOST_WORKSPACE:
            return None
        terms = form.channels * form.taps * count / (prod(first.attrs.stride) if form.writes else 1)
        return Task(
            kernel=f"convolution {source.dtype}",
            inputs=plan.inputs,
            outputs=plan.results,
            function=kernel(SOURCE, f"conv:{source.dtype}"),
            units=form.units,
            cost=result.type.size * terms * NANOSECONDS_PER_PRODUCT + 500 * form.units,
            workspace=binder.workspace,
            bind=binder,
            before=tuple(packs.values()),
        )


def _form(nodes: Sequence[Node]) -> Form:
    """The form of the convolutions among these nodes, and of a last pooling."""
    first, last = nodes[0], nodes[-1]
    source, result = first.inputs[0], first.outputs[0]
    count = sum(node.op.name in BACKWARDS for node in nodes)
    together = rows_together(last) if is_pooling(last) else None
    in_place = together is None and COMPUTED[source.dtype.name] == source.dtype.numpy.itemsize
    types = source.type, result.type
    return Form(BACKWARDS[first.op.name], first.attrs, *types, count, in_place, together=together)


def _can_pool(form: Form, unpooled: Form) -> bool:
    """Whether a unit has whole planes, or whole rows of their first axis, and room for them, and threads have units."""
    if len(form.cases) > 1 or form.cases[0].blocking.run != form.leads:
        return False
    threads = get_num_threads()
    enough = threads == 1 or form.units >= min(unpooled.units, 2 * threads)
    return enough and form.part_rows * form.pitch <= POOLED_BYTES and form.staged_bytes <= MOST_STAGED_BYTES


def _packing(form: Form, weight: Var) -> Task:
    packed = Var(f"{weight.name}.panels", TensorType(u8, (form.packed_bytes,)), None)
    return Task(
        kernel=f"panels {weight.dtype}",
        inputs=(weight,),
        outputs=(packed,),
        function=kernel(SOURCE, f"pack:{weight.dtype}"),
        units=form.pack_units,
        cost=form.packed_bytes / form.itemsize,
        workspace=0,
        bind=Packing(form),
        share=("panels", form.writes, form.attrs, weight.type),
    )


MOST_CASES = 256
LOWERINGS: dict[str, Lowering] = dict.fromkeys(BACKWARDS, ConvLowering())
