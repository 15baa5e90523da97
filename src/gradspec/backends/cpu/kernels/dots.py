"""Products of one vector with several others that are summed up: the weight gradient of a depthwise convolution."""

from __future__ import annotations

from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import Intrinsic, Type, Value, i64, inlined, outlined
from gradspec.backends.cpu.kernels.memory import multiply_add, pointer_to
from gradspec.backends.cpu.kernels.registers import Registers

MOST = 8
"""How many sums run at once."""
_word = ir.IntType(64)


def _dots(number: Type, count: int, machine: Registers) -> Intrinsic:
    """``dots(g, x, offsets, vectors, sums)``: to each of ``count`` vectors of sums, ``g·x`` at its offset is added."""
    lanes = machine.lanes(number.bytes)
    vector, width = number.of(lanes).llvm, machine.bytes

    def write(module: Any, name: str) -> Any:
        body = ir.Function(module, ir.FunctionType(ir.VoidType(), [_word] * 5), name)
        body.linkage = "internal"
        body.attributes.add("noinline")
        g, x, offsets, vectors, sums = body.args
        before, loop, end = (body.append_basic_block(label) for label in ("entry", "products", "end"))
        w = ir.IRBuilder(before)
        full = f"llvm.fma.v{lanes}{number.name}"
        fma = module.globals.get(full) or ir.Function(module, ir.FunctionType(vector, [vector] * 3), full)

        def place(base: Any, offset: Any) -> Any:
            return w.inttoptr(w.add(base, offset), ir.PointerType())

        def load(base: Any, offset: Any) -> Any:
            return w.load(place(base, offset), typ=vector, align=number.bytes)

        starts = [w.load(place(offsets, _word(8 * t)), typ=_word, align=8) for t in range(count)]
        rows = [w.add(x, start) for start in starts]
        held = [load(sums, _word(t * width)) for t in range(count)]
        w.branch(loop)
        w.position_at_end(loop)
        step = w.phi(_word)
        grown = [w.phi(vector) for _ in range(count)]
        at = w.mul(step, _word(width))
        factor = load(g, at)
        new = [w.call(fma, [load(row, at), factor, one]) for row, one in zip(rows, grown, strict=True)]
        following = w.add(step, _word(1))
        step.add_incoming(_word(0), before)
        step.add_incoming(following, loop)
        for phi, first, later in zip(grown, held, new, strict=True):
            phi.add_incoming(first, before)
            phi.add_incoming(later, loop)
        w.cbranch(w.icmp_signed("<", following, vectors), loop, end)
        w.position_at_end(end)
        for t, value in enumerate(new):
            w.store(value, place(sums, _word(t * width)), align=number.bytes)
        w.ret_void()
        return body

    def emit(builder: Any, *values: Value) -> None:
        name = f"dots.{count}.{number.name}"
        function = builder.module.globals.get(name) or write(builder.module, name)
        builder.call(function, [v.llvm for v in values])

    return Intrinsic(emit)


def dots(number: Type, machine: Registers) -> Any:
    """``run(g, x, offsets, taps, n, sums)``: over ``n`` neighbours, one vector of sums for each tap."""
    cells_at, words_at = pointer_to(number), pointer_to(i64)
    lanes, width = machine.lanes(number.bytes), machine.bytes
    several, single = _dots(number, MOST, machine), _dots(number, 1, machine)

    @inlined
    def rest(g, x, offsets, taps, first, n, sums):
        """What does not fill a vector, each cell in a lane of its own."""
        factors = cells_at(g)
        for t in range(taps):
            cells, sum = cells_at(x + words_at(offsets)[t]), cells_at(sums + t * width)
            for j in range(first, n):
                sum[j - first] = multiply_add(cells[j], factors[j], sum[j - first])

    @outlined
    def run(g, x, offsets, taps, n, sums):
        vectors = n // lanes
        if vectors > 0:
            t = 0
            while t + MOST <= taps:
                several(g, x, offsets + 8 * t, vectors, sums + t * width)
                t += MOST
            while t < taps:
                single(g, x, offsets + 8 * t, vectors, sums + t * width)
                t += 1
        if vectors * lanes < n:
            rest(g, x, offsets, taps, vectors * lanes, n, sums)

    return run
