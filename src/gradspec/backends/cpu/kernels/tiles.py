"""Register tiles: the innermost loop of every matrix product and convolution.

A tile is ``rows`` by ``vectors`` accumulators that stay in registers while

    c[i, j] = Σ_k a[k, i] · b[k, j]

runs over ``k``. ``a`` is a panel: the numbers of one ``k`` lie side by side, ``rows`` of them. ``b`` is read where it
lies: a table says how many bytes behind ``b`` the columns of each ``k`` begin, so that a convolution's patches are
never written down: overlapping windows are overlapping stretches of the same rows. Every product is added by one
fused instruction, in the order of ``k``, whatever the tile: a result does not depend on where its tile lies.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.language import Intrinsic, Type, Value
from gradspec.backends.cpu.kernels.registers import Registers

ADDS, ROW_BIAS, COLUMN_BIAS = 1, 2, 4
"""Flags of a tile: what ``c`` holds is added, and after that a number per row or per column."""

AHEAD = 2048
"""Bytes of a panel that are asked for before they are needed: panels stream through the first cache."""

LINE = 64

_word, _small = ir.IntType(64), ir.IntType(32)


def tile(number: Type, rows: int, vectors: int, machine: Registers) -> Intrinsic:
    """``tile(a, b, offsets, k, c, pitch, flags, bias)``: addresses and bytes, all of them words."""

    def emit(builder: Any, *values: Value) -> None:
        name = f"tile.{rows}x{vectors}.{number.name}"
        function = builder.module.globals.get(name) or _Tile(builder.module, name, number, rows, vectors, machine).body
        builder.call(function, [v.llvm for v in values])

    return Intrinsic(emit)


def gathered(number: Type, vectors: int, machine: Registers) -> Intrinsic:
    """``gathered(b, offsets, k, to)``: so many vectors of each ``k``, put side by side."""

    def emit(builder: Any, *values: Value) -> None:
        name = f"gathered.{vectors}.{number.name}"
        function = builder.module.globals.get(name) or _gathering(builder.module, name, number, vectors, machine)
        builder.call(function, [v.llvm for v in values])

    return Intrinsic(emit)


def _gathering(module: Any, name: str, number: Type, vectors: int, machine: Registers) -> Any:
    body = ir.Function(module, ir.FunctionType(ir.VoidType(), [_word] * 4), name)
    body.linkage = "internal"
    body.attributes.add("noinline")
    b, offsets, k, to = body.args
    before, loop, end = (body.append_basic_block(label) for label in ("entry", "copies", "end"))
    w = ir.IRBuilder(before)
    w.cbranch(w.icmp_signed(">", k, _word(0)), loop, end)
    w.position_at_end(loop)
    step, place = w.phi(_word), w.phi(_word)
    vector, width = number.of(machine.lanes(number.bytes)).llvm, machine.bytes
    table = w.inttoptr(w.add(offsets, w.shl(step, _word(3))), ir.PointerType())
    row = w.add(b, w.load(table, typ=_word, align=8))
    for j in range(vectors):
        source, target = (w.inttoptr(w.add(p, _word(j * width)), ir.PointerType()) for p in (row, place))
        w.store(w.load(source, typ=vector, align=number.bytes), target, align=number.bytes)
    next_step, next_place = w.add(step, _word(1)), w.add(place, _word(vectors * width))
    for phi, first, later in ((step, _word(0), next_step), (place, to, next_place)):
        phi.add_incoming(first, before)
        phi.add_incoming(later, loop)
    w.cbranch(w.icmp_signed("<", next_step, k), loop, end)
    w.position_at_end(end)
    w.ret_void()
    return body


class _Tile:
    """The function of one tile, being written."""

    def __init__(self, module: Any, name: str, number: Type, rows: int, vectors: int, machine: Registers) -> None:
        self.number, self.rows, self.machine = number, rows, machine
        self.lanes = machine.lanes(number.bytes)
        self.vector = number.of(self.lanes).llvm
        self.columns = range(vectors)
        signature = ir.FunctionType(ir.VoidType(), [_word] * 8)
        self.body = ir.Function(module, signature, name)
        self.body.linkage = "internal"
        self.body.attributes.add("noinline")
        self.fma = self._declared(f"llvm.fma.v{self.lanes}{number.name}", self.vector)
        self.builder = ir.IRBuilder(self.body.append_basic_block("entry"))
        self._write()

    def _declared(self, name: str, kind: Any) -> Any:
        module = self.body.module
        return module.globals.get(name) or ir.Function(module, ir.FunctionType(kind, [kind] * 3), name)

    def _write(self) -> None:
        w = self.builder
        a, b, offsets, k, c, pitch, flags, bias = self.body.args
        self._ask_for(c, pitch)
        sums = self._loop(a, b, offsets, k)
        sums = self._if(flags, ADDS, sums, lambda held: self._each(held, c, pitch))
        sums = self._if(flags, ROW_BIAS, sums, lambda held: self._with_row_bias(held, bias))
        sums = self._if(flags, COLUMN_BIAS, sums, lambda held: self._with_column_bias(held, bias))
        for i, row in enumerate(sums):
            for j, value in enumerate(row):
                self._store(value, self._cell(c, pitch, i, j))
        w.ret_void()

    def _ask_for(self, c: Any, pitch: Any) -> None:
        """Have the cells of ``c`` fetched while the products are added up: to wait for them later takes as long."""
        end = len(self.columns) * self.machine.bytes
        for i in range(self.rows):
            for place in (*range(0, end, LINE), end - 1):
                self._prefetch(self.builder.add(self._cell(c, pitch, i, 0), _word(place)))

    # --- the loop over k ----------------------------------------------------------------------------------------------

    def _loop(self, a: Any, b: Any, offsets: Any, k: Any) -> list[list[Any]]:
        w = self.builder
        before, loop, end = w.block, self.body.append_basic_block("products"), self.body.append_basic_block("end")
        zero = ir.Constant(self.vector, None)
        w.cbranch(w.icmp_signed(">", k, _word(0)), loop, end)
        w.position_at_end(loop)
        step, place = w.phi(_word), w.phi(_word)
        sums = [[w.phi(self.vector) for _ in self.columns] for _ in range(self.rows)]
        offset = w.load(self._at(offsets, w.shl(step, _word(3))), typ=_word, align=8)
        row = w.add(b, offset)
        right = [self._load(w.add(row, _word(j * self.machine.bytes))) for j in self.columns]
        left = self._column(place)
        self._prefetch(w.add(place, _word(AHEAD)))
        grown = [[w.call(self.fma, [right[j], left[i], sums[i][j]]) for j in self.columns] for i in range(self.rows)]
        next_step = w.add(step, _word(1))
        next_place = w.add(place, _word(self.rows * self.number.bytes))
        w.cbranch(w.icmp_signed("<", next_step, k), loop, end)
        for phi, first, later in ((step, _word(0), next_step), (place, a, next_place)):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        w.position_at_end(end)
        results = []
        for i in range(self.rows):
            for j in self.columns:
                sums[i][j].add_incoming(zero, before)
                sums[i][j].add_incoming(grown[i][j], loop)
            results.append([self._joined(before, zero, loop, grown[i][j]) for j in self.columns])
        return results

    def _joined(self, before: Any, first: Any, after: Any, last: Any) -> Any:
        phi = self.builder.phi(self.vector)
        phi.add_incoming(first, before)
        phi.add_incoming(last, after)
        return phi

    def _column(self, place: Any) -> list[Any]:
        """The numbers of a panel's column, each in all lanes."""
        w, size = self.builder, self.number.bytes
        if self.machine.lane_products and self.rows >= self.lanes:
            chunks = [self._load(w.add(place, _word(i * size))) for i in range(0, self.rows, self.lanes)]
            return [self._spread(chunks[i // self.lanes], i % self.lanes) for i in range(self.rows)]
        nothing = ir.Constant(self.vector, ir.Undefined)
        numbers = [w.load(self._at(place, _word(i * size)), typ=self.number.llvm, align=size) for i in range(self.rows)]
        return [self._spread(w.insert_element(nothing, n, _small(0)), 0) for n in numbers]

    def _spread(self, vector: Any, lane: int) -> Any:
        mask = ir.Constant(ir.VectorType(_small, self.lanes), [lane] * self.lanes)
        return self.builder.shuffle_vector(vector, ir.Constant(self.vector, ir.Undefined), mask)

    # --- what comes after it ------------------------------------------------------------------------------------------

    def _if(self, flags: Any, flag: int, sums: list[list[Any]], change: Any) -> list[list[Any]]:
        """The sums, changed if the flag is set."""
        w = self.builder
        before, then, after = w.block, self.body.append_basic_block("then"), self.body.append_basic_block("after")
        w.cbranch(w.icmp_signed("!=", w.and_(flags, _word(flag)), _word(0)), then, after)
        w.position_at_end(then)
        changed = change(sums)
        w.branch(after)
        w.position_at_end(after)
        return [
            [self._joined(before, old, then, new) for old, new in zip(olds, news, strict=True)]
            for olds, news in zip(sums, changed, strict=True)
        ]

    def _each(self, sums: list[list[Any]], c: Any, pitch: Any) -> list[list[Any]]:
        w = self.builder
        return [
            [w.fadd(self._load(self._cell(c, pitch, i, j)), value) for j, value in enumerate(row)]
            for i, row in enumerate(sums)
        ]

    def _with_row_bias(self, sums: list[list[Any]], bias: Any) -> list[list[Any]]:
        w, size = self.builder, self.number.bytes
        nothing, result = ir.Constant(self.vector, ir.Undefined), []
        for i, row in enumerate(sums):
            number = w.load(self._at(bias, _word(i * size)), typ=self.number.llvm, align=size)
            spread = self._spread(w.insert_element(nothing, number, _small(0)), 0)
            result.append([w.fadd(value, spread) for value in row])
        return result

    def _with_column_bias(self, sums: list[list[Any]], bias: Any) -> list[list[Any]]:
        w = self.builder
        numbers = [self._load(w.add(bias, _word(j * self.machine.bytes))) for j in self.columns]
        return [[w.fadd(value, number) for value, number in zip(row, numbers, strict=True)] for row in sums]

    # --- memory -------------------------------------------------------------------------------------------------------

    def _at(self, base: Any, offset: Any) -> Any:
        return self.builder.inttoptr(self.builder.add(base, offset), ir.PointerType())

    def _prefetch(self, address: Any) -> None:
        w, module = self.builder, self.body.module
        name = "llvm.prefetch.p0"
        kind = ir.FunctionType(ir.VoidType(), [ir.PointerType(), _small, _small, _small])
        function = module.globals.get(name) or ir.Function(module, kind, name)
        w.call(function, [w.inttoptr(address, ir.PointerType()), _small(0), _small(3), _small(1)])

    def _cell(self, c: Any, pitch: Any, i: int, j: int) -> Any:
        w = self.builder
        return w.add(w.add(c, w.mul(pitch, _word(i))), _word(j * self.machine.bytes))

    def _load(self, address: Any) -> Any:
        w = self.builder
        return w.load(w.inttoptr(address, ir.PointerType()), typ=self.vector, align=self.number.bytes)

    def _store(self, value: Any, address: Any) -> None:
        w = self.builder
        w.store(value, w.inttoptr(address, ir.PointerType()), align=self.number.bytes)
