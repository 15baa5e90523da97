"""Windows of three by three cells, one channel at a time: depthwise convolutions, where there is nothing to pack.

A tile of a register kernel would read each cell once for every tap. Here several rows of outputs are summed up at once:
a cell is read once for each of the three columns of taps, and serves all the rows of outputs that it lies under.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import Intrinsic, Type, Value, inlined, outlined
from gradspec.backends.cpu.kernels.registers import Registers

SIDE = 3
_word, _small = ir.IntType(64), ir.IntType(32)


def _square(number: Type, rows: int, vectors: int, machine: Registers) -> Intrinsic:
    """``square(x, pitch, step, w, y, y_pitch, bias)``: addresses and bytes; ``w`` holds nine numbers, row by row."""
    lanes = machine.lanes(number.bytes)
    vector = number.of(lanes).llvm

    def write(module: Any, name: str) -> Any:
        body = ir.Function(module, ir.FunctionType(ir.VoidType(), [_word] * 7), name)
        body.linkage = "internal"
        body.attributes.add("noinline")
        w = ir.IRBuilder(body.append_basic_block("entry"))
        x, pitch, step, weights, y, y_pitch, bias = body.args
        full = f"llvm.fma.v{lanes}{number.name}"
        fma = module.globals.get(full) or ir.Function(module, ir.FunctionType(vector, [vector] * 3), full)

        def load(address: Any, kind: Any) -> Any:
            return w.load(w.inttoptr(address, ir.PointerType()), typ=kind, align=number.bytes)

        def spread(address: Any) -> Any:
            one = w.insert_element(ir.Constant(vector, ir.Undefined), load(address, number.llvm), _small(0))
            mask = ir.Constant(ir.VectorType(_small, lanes), [0] * lanes)
            return w.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)

        factors = [spread(w.add(weights, _word(i * number.bytes))) for i in range(SIDE * SIDE)]
        sums = [[ir.Constant(vector, None)] * vectors for _ in range(rows)]
        for i in range(rows + SIDE - 1):
            for t in range(SIDE):
                row = w.add(w.add(x, w.mul(pitch, _word(i))), w.mul(step, _word(t)))
                cells = [load(w.add(row, _word(j * machine.bytes)), vector) for j in range(vectors)]
                for r in range(max(0, i - SIDE + 1), min(rows, i + 1)):
                    factor = factors[(i - r) * SIDE + t]
                    sums[r] = [w.call(fma, [c, factor, s]) for c, s in zip(cells, sums[r], strict=True)]
        shift = spread(bias)
        for r in range(rows):
            for j in range(vectors):
                place = w.add(w.add(y, w.mul(y_pitch, _word(r))), _word(j * machine.bytes))
                w.store(w.fadd(sums[r][j], shift), w.inttoptr(place, ir.PointerType()), align=number.bytes)
        w.ret_void()
        return body

    def emit(builder: Any, *values: Value) -> None:
        name = f"square.{rows}x{vectors}.{number.name}"
        function = builder.module.globals.get(name) or write(builder.module, name)
        builder.call(function, [v.llvm for v in values])

    return Intrinsic(emit)


def squares(number: Type, machine: Registers) -> Any:
    """``run(x, pitch, step, w, y, y_pitch, bias, rows, n)``: rows of ``n`` outputs, at least one vector each.

    The last vectors of a row begin earlier where they would reach beyond its end: outputs may be written twice.
    """
    many, wide, lanes, size = machine.most_rows // 2, 4, machine.lanes(number.bytes), number.bytes

    def band(rows: int) -> Any:
        broad, narrow = _square(number, rows, wide, machine), _square(number, rows, 1, machine)

        @inlined
        def go(x, pitch, step, w, y, y_pitch, bias, n):
            done = 0
            while done + wide * lanes <= n:
                broad(x + done * size, pitch, step, w, y + done * size, y_pitch, bias)
                done += wide * lanes
            while done < n:
                at = min(done, n - lanes)
                narrow(x + at * size, pitch, step, w, y + at * size, y_pitch, bias)
                done += lanes

        return go

    several, single = band(many), band(1)

    @outlined
    def run(x, pitch, step, w, y, y_pitch, bias, rows, n):
        done = 0
        while done + many <= rows:
            several(x + done * pitch, pitch, step, w, y + done * y_pitch, y_pitch, bias, n)
            done += many
        while done < rows:
            single(x + done * pitch, pitch, step, w, y + done * y_pitch, y_pitch, bias, n)
            done += 1

    return run
