"""Packing: parts of matrices put down in the order in which tiles read them.

The lanes of a panel lie side by side, step by step: lane ``i`` of step ``k`` comes from
``source + i·lane_step + k·k_step``. Lanes beyond those that are ``valid`` repeat the last of these: tiles compute with
them, nobody reads the result, and arithmetic on numbers that were in the data already is never slower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir

from gradspec.backends.cpu.kernels.compiler import Intrinsic, Value, f16, f32, i64, inlined, outlined, u32
from gradspec.backends.cpu.kernels.memory import Format, pointer_to
from gradspec.backends.cpu.kernels.registers import Registers

AT_ONCE = 4
"""Steps whose lanes are neighbours that are copied at once: few rows are read along, and whole lines are written."""


def panels(form: Format, registers: Registers, widths: Sequence[int]) -> Any:
    """``pack(source, lane_step, k_step, lanes, whole, k, target, panel)``: panels of ``panel`` lanes, one by one.

    The last one has a multiple of ``whole`` lanes. Steps are in bytes. Panels that are as wide as one of ``widths``, of
    which the first is the usual one, are fast.
    """
    number, widen = form.computed, form.functions()[0]
    stored_at, cells_at = pointer_to(form.stored), pointer_to(number)
    width, size = form.stored.bytes, number.bytes
    side = min(registers.lanes(size), registers.most_rows)
    wide = _most(widths[0], side)
    turn, turn_many = turning(form, side, 1), turning(form, side, wide // side)
    copy_panels = _copied_panels(form, side, [n for n in widths if n % side == 0])

    @inlined
    def turned(source, lane_step, valid, count, k, target, jump):
        lane = 0
        while lane + wide <= valid:
            turn_many(source + lane * lane_step, lane_step, wide - 1, k, target + lane * size, jump)
            lane += wide
        while lane < count:
            first = min(lane, valid - 1)
            last = max(0, min(side, valid - lane) - 1)
            turn(source + first * lane_step, lane_step, last, k, target + lane * size, jump)
            lane += side

    @outlined
    def one_by_one(source, lane_step, k_step, valid, count, k, target, jump):
        for at in range(k):
            x, y = source + at * k_step, cells_at(target + at * jump)
            for lane in range(count):
                y[lane] = widen(stored_at(x + min(lane, valid - 1) * lane_step)[0])

    @outlined
    def pack(source, lane_step, k_step, lanes, whole, k, target, panel):
        jump, first = panel * size, 0
        to = target
        if lane_step == width:
            first = copy_panels(source, k_step, lanes, k, target, panel)
            to += first * k * size
        while first < lanes:
            valid = min(panel, lanes - first)
            count = (valid + whole - 1) // whole * whole
            if k_step == width and k >= side and count >= side:
                turned(source + first * lane_step, lane_step, valid, count, k, to, jump)
            else:
                one_by_one(source + first * lane_step, lane_step, k_step, valid, count, k, to, jump)
            first += panel
            to += k * jump

    return pack


def _most(usual: int, side: int) -> int:
    """Lanes that are turned at once: squares that divide the usual count, with an address for each of their rows."""
    return max(n for n in range(side, max(side, 12) + 1, side) if usual % n == 0)


def _copied_panels(form: Format, side: int, widths: Sequence[int]) -> Any:
    """``copy(source, k_step, lanes, k, target, panel)``: whole panels of neighbours; how many lanes they have."""
    if not widths:

        @inlined
        def nothing(source, k_step, lanes, k, target, panel):
            return 0

        return nothing
    count, *narrower = widths
    several, one = copying(form, side, count, AT_ONCE), copying(form, side, count, 1)
    others, jump = _copied_panels(form, side, narrower), count * form.computed.bytes

    @inlined
    def copy(source, k_step, lanes, k, target, panel):
        if panel == count:
            number, at = lanes // count, 0
            while at + AT_ONCE <= k:
                several(source + at * k_step, k_step, number, target + at * jump, k * jump)
                at += AT_ONCE
            while at < k:
                one(source + at * k_step, k_step, number, target + at * jump, k * jump)
                at += 1
            return number * count
        return others(source, k_step, lanes, k, target, panel)

    return copy


# --- loops over k -----------------------------------------------------------------------------------------------------

_word = ir.IntType(64)


def turning(form: Format, side: int, squares: int) -> Intrinsic:
    """``turn(source, step, last, k, target, jump)``: lanes ``step`` bytes apart, whose steps are neighbours.

    There are as many lanes as ``squares`` have rows, and the one with the number ``last`` stands for those behind it.
    The last steps are written twice where squares do not fit exactly; there are at least as many as a square has.
    """

    def body(loop: _Loop, source: Any, step: Any, last: Any, k: Any, target: Any, jump: Any) -> None:
        w = loop.builder
        numbers = [i64(i).llvm for i in range(side * squares)]
        is_before = [w.icmp_signed("<", i, last) for i in numbers]
        rows = [w.add(source, w.mul(w.select(test, i, last), step)) for test, i in zip(is_before, numbers, strict=True)]
        at = loop.begin(k, side)
        reads = w.mul(at, _word(form.stored.bytes))
        writes = w.add(target, w.mul(at, jump))
        columns: list[list[Any]] = [[] for _ in range(side)]
        for first in range(0, side * squares, side):
            square = [loaded(w, form, side, w.add(row, reads)) for row in rows[first : first + side]]
            for column, vector in zip(columns, transposed(w, square), strict=True):
                column.append(vector)
        for i, column in enumerate(columns):
            here = w.add(writes, w.mul(jump, _word(i)))
            for j, vector in enumerate(column):
                store(w, vector, w.add(here, _word(j * side * form.computed.bytes)), form.computed.bytes)
        loop.end()

    return _looping(f"turn.{form.name}.{side}.{squares}", 6, body)


def copying(form: Format, side: int, count: int, steps: int) -> Intrinsic:
    """``copy(source, k_step, n, target, apart)``: so many steps of ``n`` panels of ``count`` lanes, all neighbours."""

    def body(loop: _Loop, source: Any, step: Any, n: Any, target: Any, apart: Any) -> None:
        w, (read, written) = loop.builder, (form.stored.bytes, form.computed.bytes)
        rows = [w.add(source, w.mul(step, _word(i))) for i in range(steps)]
        at = loop.begin(n, 1)
        reads, writes = w.mul(at, _word(count * read)), w.add(target, w.mul(at, apart))
        for i, row in enumerate(rows):
            here = w.add(row, reads)
            vectors = [loaded(w, form, side, w.add(here, _word(lane * read))) for lane in range(0, count, side)]
            for j, vector in enumerate(vectors):
                store(w, vector, w.add(writes, _word((i * count + j * side) * written)), written)
        loop.end()

    return _looping(f"copy.{form.name}.{side}.{count}.{steps}", 5, body)


def _looping(name: str, arguments: int, write: Any) -> Intrinsic:
    """A function of words with one loop, written once for a module."""

    def emit(builder: Any, *values: Value) -> None:
        module = builder.module
        function = module.globals.get(name)
        if function is None:
            function = ir.Function(module, ir.FunctionType(ir.VoidType(), [_word] * arguments), name)
            function.linkage = "internal"
            function.attributes.add("noinline")
            write(_Loop(function), *function.args)
        builder.call(function, [v.llvm for v in values])

    return Intrinsic(emit)


class _Loop:
    """A function that is written from its entry through one loop to its end."""

    def __init__(self, function: Any) -> None:
        self.function = function
        self.builder = ir.IRBuilder(function.append_basic_block("entry"))

    def begin(self, n: Any, step: int) -> Any:
        """The loop over ``0, step, …`` below ``n``; the last index is ``n − step`` if that comes earlier."""
        w, before = self.builder, self.builder.block
        self.body, self.after = (self.function.append_basic_block(name) for name in ("loop", "end"))
        last = w.sub(n, _word(step))
        w.cbranch(w.icmp_signed(">", n, _word(0)), self.body, self.after)
        w.position_at_end(self.body)
        at = w.phi(_word)
        more = w.add(at, _word(step))
        self.is_over = w.icmp_signed(">=", more, n)
        at.add_incoming(_word(0), before)
        at.add_incoming(w.select(w.icmp_signed("<", more, last), more, last), self.body)
        return at

    def end(self) -> None:
        w = self.builder
        w.cbranch(self.is_over, self.after, self.body)
        w.position_at_end(self.after)
        w.ret_void()


# --- vectors ----------------------------------------------------------------------------------------------------------


def transposed(w: Any, rows: list[Any]) -> list[Any]:
    """The columns of a square.

    For each bit of a number's place, those that have it in the row and those that have it in the column change places.
    """
    side, bit = len(rows), 1
    while bit < side:
        low = [i if not i & bit else side + i - bit for i in range(side)]
        high = [i + bit if not i & bit else side + i for i in range(side)]
        masks = [ir.Constant(ir.VectorType(ir.IntType(32), side), places) for places in (low, high)]
        for i in range(side):
            if not i & bit:
                pair = rows[i], rows[i + bit]
                rows[i], rows[i + bit] = (w.shuffle_vector(*pair, mask) for mask in masks)
        bit *= 2
    return rows


def loaded(w: Any, form: Format, count: int, address: Any) -> Any:
    """Neighbouring numbers, as they are computed with."""
    place = w.inttoptr(address, ir.PointerType())
    stored = w.load(place, typ=form.stored.of(count).llvm, align=form.stored.bytes)
    if form.name == "f16":
        return w.fpext(w.bitcast(stored, f16.of(count).llvm), f32.of(count).llvm)
    if form.name == "bf16":
        high = w.shl(w.zext(stored, u32.of(count).llvm), u32.of(count)(16).llvm)
        return w.bitcast(high, f32.of(count).llvm)
    return stored


def store(w: Any, vector: Any, address: Any, align: int) -> None:
    w.store(vector, w.inttoptr(address, ir.PointerType()), align=align)
