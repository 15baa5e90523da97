"""Instructions on typed values: conversions, arithmetic as Python means it, comparisons, memory, records, vectors.

An operand is a ``Value`` or a plain Python number, which takes the type of the other one.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from llvmlite import ir

from gradspec.codegen.language import (
    WORD_TYPES,
    Affine,
    Entries,
    Expression,
    Refusal,
    Type,
    Value,
    boolean,
    f64,
    i64,
    pointer,
    record,
)
from gradspec.codegen.records import Elsewhere, Entry, InPlace, RecordLayout, WordKind

STATIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda item, items: item in items,
    ast.NotIn: lambda item, items: item not in items,
}
"""Operators on what is known when a kernel is built."""

SIGNS: dict[type[ast.AST], str] = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
}

ARITHMETIC = {ast.Add: "add", ast.Sub: "sub", ast.Mult: "mul"}
BITWISE = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "shl"}


class Instructions:
    """What is written at the place where ``builder`` stands."""

    def __init__(self, builder: ir.IRBuilder) -> None:
        self.builder = builder

    # --- types --------------------------------------------------------------------------------------------------------

    def typed(self, value: Expression) -> Value:
        """A value; a Python number becomes a constant."""
        if isinstance(value, Value):
            return value
        if isinstance(value, bool):
            return boolean(value)
        if isinstance(value, int):
            return i64(value)
        if isinstance(value, float):
            return f64(value)
        if isinstance(value, Affine):
            raise Refusal("the index of a vector can only be added to, multiplied and used as an index")
        raise Refusal(f"{value!r} is no number")

    def scalar(self, value: Expression) -> Value:
        typed = self.typed(value)
        if typed.type.lanes > 1:
            raise Refusal(f"{typed.type} where one number is wanted (choose works on vectors)")
        return typed

    def to_common_type(self, left: Expression, right: Expression) -> tuple[Value, Value]:
        """Both operands in the type that holds them: floats before integers, the wider of two."""
        common = self.common_type(left, right)
        return self.convert(left, common), self.convert(right, common)

    def common_type(self, left: Expression, right: Expression) -> Type:
        if isinstance(left, Value) and isinstance(right, Value):
            a, b = left.type, right.type
            wider = a if (a.is_float, a.bits) >= (b.is_float, b.bits) else b
            return wider.of(max(a.lanes, b.lanes))
        for side in (left, right):
            if isinstance(side, Value):
                return side.type
        return f64 if isinstance(left, float) or isinstance(right, float) else i64

    def convert(self, value: Expression, kind: Type) -> Value:
        """A value in another type: integers keep their low bits or are extended, floats are rounded to nearest."""
        if not isinstance(value, Value):
            return self._constant(value, kind)
        old = value.type
        if old == kind:
            return value
        if old.lanes != kind.lanes:
            if old.lanes != 1:
                raise Refusal(f"{old} does not turn into {kind}")
            return self.broadcast(self.convert(value, kind.of(1)), kind)
        if kind.element is not None or old.element is not None or (old.is_float and not kind.is_float):
            raise Refusal(f"{old} does not turn into {kind}")
        if kind.of(1) == boolean:
            return self.truth(value)
        name = _conversion(old, kind)
        return Value(kind, value.llvm if name is None else getattr(self.builder, name)(value.llvm, kind.llvm))

    def _constant(self, value: Expression, kind: Type) -> Value:
        if not isinstance(value, bool | int | float) or kind.element is not None:
            self.typed(value)
            raise Refusal(f"{value!r} does not turn into {kind}")
        if isinstance(value, float) and not kind.is_float:
            raise Refusal(f"{value!r} does not turn into {kind}")
        return kind(value)

    def broadcast(self, value: Value, kind: Type) -> Value:
        """One number in every lane."""
        if isinstance(value.llvm, ir.Constant):
            return Value(kind, ir.Constant(kind.llvm, [value.llvm.constant] * kind.lanes))
        nothing = ir.Constant(kind.llvm, ir.Undefined)
        first = self.builder.insert_element(nothing, value.llvm, ir.Constant(ir.IntType(32), 0))
        return self._shuffle(kind, first, nothing, [0] * kind.lanes)

    # --- arithmetic ---------------------------------------------------------------------------------------------------

    def binary(self, op: ast.operator, left: Expression, right: Expression) -> Expression:
        """``left op right``; what is known stays known."""
        if isinstance(left, Affine) or isinstance(right, Affine):
            return self._affine(op, left, right)
        if not isinstance(left, Value) and not isinstance(right, Value):
            return STATIC[type(op)](left, right)
        a, b = self.to_common_type(left, right)
        kind, w = a.type, self.builder
        if kind.element is not None:
            raise Refusal("arithmetic on pointers; index them, or compute addresses")
        if kind.is_float:
            name = {**ARITHMETIC, ast.Div: "div"}.get(type(op))
            if name is None:
                raise Refusal(f"{type(op).__name__} of floats")
            return Value(kind, getattr(w, f"f{name}")(a.llvm, b.llvm))
        if type(op) in ARITHMETIC:
            flags = ("nsw",) if kind == i64 else ()
            return Value(kind, getattr(w, ARITHMETIC[type(op)])(a.llvm, b.llvm, flags=flags))
        if type(op) in BITWISE:
            return Value(kind, getattr(w, BITWISE[type(op)])(a.llvm, b.llvm))
        if isinstance(op, ast.RShift):
            return Value(kind, (w.ashr if kind.is_signed else w.lshr)(a.llvm, b.llvm))
        if isinstance(op, ast.FloorDiv | ast.Mod):
            return self._floor_divide(op, a, b)
        raise Refusal(f"{type(op).__name__} of integers")

    def add(self, left: Expression, right: Expression) -> Value:
        return self.typed(self.binary(ast.Add(), left, right))

    def multiply(self, left: Expression, right: Expression) -> Value:
        return self.typed(self.binary(ast.Mult(), left, right))

    def _affine(self, op: ast.operator, left: Expression, right: Expression) -> Affine:
        """A sum with something that is the same for all lanes, or a known multiple."""
        i, other = (left, right) if isinstance(left, Affine) else (right, left)
        if isinstance(i, Affine) and not isinstance(other, Affine):
            if isinstance(op, ast.Mult) and isinstance(other, int):
                return Affine(self.typed(self.binary(op, i.base, other)), i.step * other, i.lanes)
            if isinstance(op, ast.Add) or (isinstance(op, ast.Sub) and left is i):
                return Affine(self.scalar(self.binary(op, i.base, other)), i.step, i.lanes)
        raise Refusal("the index of a vector is base + step·i with a known step")

    def _floor_divide(self, op: ast.operator, a: Value, b: Value) -> Value:
        """``//`` and ``%`` towards −∞, as in Python: LLVM's quotient is one too large if inexact and negative."""
        kind, w, divides = a.type, self.builder, isinstance(op, ast.FloorDiv)
        if not kind.is_signed:
            return Value(kind, (w.udiv if divides else w.urem)(a.llvm, b.llvm))
        if divides and kind.lanes == 1 and isinstance(b.llvm, ir.Constant) and _is_power_of_two(b.llvm.constant):
            return Value(kind, w.ashr(a.llvm, ir.Constant(kind.llvm, b.llvm.constant.bit_length() - 1)))
        zero, rest = kind(0).llvm, w.srem(a.llvm, b.llvm)
        signs_differ = w.icmp_signed("<", w.xor(rest, b.llvm), zero)
        too_large = w.and_(w.icmp_signed("!=", rest, zero), signs_differ)
        if not divides:
            return Value(kind, w.select(too_large, w.add(rest, b.llvm), rest))
        quotient = w.sdiv(a.llvm, b.llvm)
        return Value(kind, w.select(too_large, w.sub(quotient, kind(1).llvm), quotient))

    def negate(self, value: Expression) -> Expression:
        if not isinstance(value, Value):
            return -value  # type: ignore[operator]  # what is known is ordinary Python
        if value.type.element is not None:
            raise Refusal("arithmetic on pointers; index them, or compute addresses")
        return Value(value.type, (self.builder.fneg if value.type.is_float else self.builder.neg)(value.llvm))

    # --- truth --------------------------------------------------------------------------------------------------------

    def compare(self, op: ast.cmpop, left: Expression, right: Expression) -> Expression:
        """``left op right``; a comparison with NaN is false, but for ``!=``."""
        computed = isinstance(left, Value | Affine) or isinstance(right, Value | Affine)
        if isinstance(op, ast.Is | ast.IsNot) or not computed:
            return STATIC[type(op)](left, right)
        if isinstance(left, Affine) or isinstance(right, Affine) or type(op) not in SIGNS:
            raise Refusal("numbers are compared by <, <=, >, >=, == and !=")
        a, b = self.to_common_type(left, right)
        name = _comparison(a.type, SIGNS[type(op)])
        return Value(boolean.of(a.type.lanes), getattr(self.builder, name)(SIGNS[type(op)], a.llvm, b.llvm))

    def test(self, op: ast.cmpop, left: Expression, right: Expression) -> Value:
        return self.typed(self.compare(op, left, right))

    def truth(self, value: Expression) -> Value:
        """Whether a number is not 0."""
        typed = self.typed(value)
        if typed.type.of(1) == boolean:
            return typed
        if typed.type.element is not None:
            raise Refusal("a pointer is neither true nor false")
        return self.test(ast.NotEq(), typed, typed.type(0))

    def invert(self, value: Expression) -> Expression:
        if not isinstance(value, Value):
            return not value
        truth = self.truth(value)
        return Value(truth.type, self.builder.not_(truth.llvm))

    def select(self, test: Expression, left: Expression, right: Expression) -> Expression:
        """``left if test else right``, both computed, lane by lane."""
        if not isinstance(test, Value):
            return left if test else right
        a, b = self.to_common_type(left, right)
        kind = a.type.of(max(a.type.lanes, test.type.lanes))
        yes, no = self.convert(a, kind), self.convert(b, kind)
        return Value(kind, self.builder.select(self.truth(test).llvm, yes.llvm, no.llvm))

    def extreme(self, op: ast.cmpop, left: Expression, right: Expression) -> Expression:
        """Python's ``min`` or ``max`` of two: the second if it is less, or greater."""
        return self.select(self.compare(op, right, left), right, left)

    # --- memory -------------------------------------------------------------------------------------------------------

    def get(self, p: Expression, at: Expression) -> Value:
        """``p[at]``: a number, a vector of neighbours, or a pointer to one of several records."""
        place, kind, align = self._place(p, at)
        if kind.layout is not None:
            return Value(pointer(kind), place)
        return Value(kind, self.builder.load(place, typ=kind.llvm, align=align))

    def put(self, p: Expression, at: Expression, value: Expression) -> None:
        place, kind, align = self._place(p, at)
        self.builder.store(self.convert(value, kind).llvm, place, align=align)

    def _place(self, p: Expression, at: Expression) -> tuple[ir.Value, Type, int]:
        """The address of ``p[at]``, the type of what is there, and its alignment."""
        place, element = self.typed(p), element_of(p)
        if isinstance(at, Affine):
            if at.step != 1:
                raise Refusal(f"an index with a step of {at.step}; use strided")
            kind, index = element.of(at.lanes), at.base
        else:
            kind, index = element, self.scalar(at)
        offset = self.convert(index, i64)
        if element.layout is not None:
            return self._offset(place, self.multiply(offset, element.bytes)).llvm, kind, 8
        return self.builder.gep(place.llvm, [offset.llvm], source_etype=element.llvm), kind, max(1, element.bytes)

    def strided(self, p: Expression, at: Expression, step: Expression) -> tuple[Value, ...]:
        if not isinstance(step, int) or step < 1:
            raise Refusal("the step of strided is a known positive number")
        if not isinstance(at, Affine):
            return tuple(self.get(p, self.add(at, i)) for i in range(step))
        self._check_step(at, step)
        wide = self.get(p, Affine(at.base, 1, at.lanes * step)).llvm
        nothing, kind = ir.Constant(wide.type, ir.Undefined), element_of(p).of(at.lanes)
        return tuple(self._shuffle(kind, wide, nothing, range(i, at.lanes * step, step)) for i in range(step))

    def put_strided(self, p: Expression, at: Expression, values: Expression) -> None:
        if not isinstance(values, tuple):
            raise Refusal("put_strided takes a tuple")
        if not isinstance(at, Affine):
            for i, value in enumerate(values):
                self.put(p, self.add(at, i), value)
            return
        if not _is_power_of_two(len(values)) or len(values) == 1:
            raise Refusal(f"put_strided writes two vectors, four or eight, not {len(values)}")
        self._check_step(at, len(values))
        kind, count = element_of(p).of(at.lanes), len(values)
        both = [self.convert(value, kind) for value in values]
        while len(both) > 2:
            both = [self._concatenate(a, b) for a, b in zip(both[::2], both[1::2], strict=True)]
        order = [i // count + (i % count) * at.lanes for i in range(count * at.lanes)]
        mixed = self._shuffle(kind.of(len(order)), both[0].llvm, both[1].llvm, order)
        self.put(p, Affine(at.base, 1, len(order)), mixed)

    def _concatenate(self, a: Value, b: Value) -> Value:
        lanes = 2 * a.type.lanes
        return self._shuffle(a.type.of(lanes), a.llvm, b.llvm, range(lanes))

    def stretch(self, p: Expression, at: Expression, step: Expression) -> Value:
        if not isinstance(step, int) or step < 2:
            raise Refusal("the step of stretch is a known number of at least two")
        if not isinstance(at, Affine):
            return self.get(p, Affine(self.convert(at, i64), 1, step))
        self._check_step(at, step)
        return self.get(p, Affine(at.base, 1, at.lanes * step))

    def parts(self, values: Expression, step: Expression) -> tuple[Value, ...]:
        if not isinstance(values, Value) or not isinstance(step, int) or values.type.lanes % step:
            raise Refusal("parts takes a stretch and its step")
        lanes, nothing = values.type.lanes // step, ir.Constant(values.llvm.type, ir.Undefined)
        if lanes == 1:
            places = (ir.Constant(ir.IntType(32), i) for i in range(step))
            return tuple(Value(values.type.of(1), self.builder.extract_element(values.llvm, i)) for i in places)
        every = (range(i, lanes * step, step) for i in range(step))
        return tuple(self._shuffle(values.type.of(lanes), values.llvm, nothing, order) for order in every)

    def halves(self, values: Value) -> list[Value]:
        """The first and the last lanes of a vector."""
        half = values.type.lanes // 2
        if half == 1:
            return list(self.parts(values, 2))
        nothing = ir.Constant(values.llvm.type, ir.Undefined)
        return [self._shuffle(values.type.of(half), values.llvm, nothing, range(i, i + half)) for i in (0, half)]

    def any_of(self, truths: Sequence[Value]) -> Value:
        """Whether one of the lanes of some vectors is true."""
        both = reduce(lambda a, b: Value(a.type, self.builder.or_(a.llvm, b.llvm)), truths)
        if both.type.lanes == 1:
            return both
        name, kind = f"llvm.vector.reduce.or.v{both.type.lanes}i1", ir.FunctionType(boolean.llvm, [both.type.llvm])
        function = self.builder.module.globals.get(name) or ir.Function(self.builder.module, kind, name)
        return Value(boolean, self.builder.call(function, [both.llvm]))

    def beyond(self, at: Expression, step: int) -> Value:
        if isinstance(at, Affine):
            self._check_step(at, step)
            return self.add(at.base, step * at.lanes)
        return self.add(at, step)

    def moved_on(self, values: Expression, number: Expression) -> Value:
        if not isinstance(values, Value) or values.type.lanes == 1:
            return self.typed(number)
        more = self.broadcast(self.convert(number, values.type.of(1)), values.type)
        return self._shuffle(values.type, values.llvm, more.llvm, range(1, values.type.lanes + 1))

    def following(self, p: Expression, at: Expression, step: int, values: Expression) -> Value:
        if not isinstance(at, Affine):
            return self.get(p, self.add(at, step))
        return self.moved_on(values, self.get(p, self.beyond(at, step)))

    def preceding(self, p: Expression, at: Expression, step: int, values: Value) -> Value:
        if not isinstance(at, Affine):
            return self.get(p, self.add(at, -step))
        self._check_step(at, step)
        before = self.broadcast(self.get(p, self.add(at.base, -step)), values.type)
        lanes = values.type.lanes
        return self._shuffle(values.type, before.llvm, values.llvm, range(lanes - 1, 2 * lanes - 1))

    # --- records ------------------------------------------------------------------------------------------------------

    def field(self, p: Value, name: str) -> Expression:
        """``p.name`` of a record: a number, a record inside it, or entries."""
        layout = layout_of(p)
        if name not in layout.fields:
            raise Refusal(f"{layout.name} has no field {name}; it has {', '.join(layout.fields)}")
        field = layout.fields[name]
        return self._entry(field.entry, self._offset(p, i64(field.offset)), p)

    def put_field(self, p: Value, name: str, value: Expression) -> None:
        layout = layout_of(p)
        field = layout.fields.get(name)
        if field is None or not layout.is_scratch:
            raise Refusal(f"{layout.name}.{name} is not a field that kernels may change")
        self._put_entry(field.entry, self._offset(p, i64(field.offset)), value)

    def field_place(self, p: Value, name: str) -> Value:
        """Where a word of a record lies."""
        return Value(pointer(i64), self._offset(p, i64(layout_of(p).fields[name].offset)).llvm)

    def entry_place(self, entries: Entries, at: Expression) -> Value:
        return Value(pointer(i64), self._entry_place(entries, at).llvm)

    def entry(self, entries: Entries, at: Expression) -> Expression:
        """``entries[at]``."""
        return self._entry(entries.entry, self._entry_place(entries, at), entries.base)

    def put_entry(self, entries: Entries, at: Expression, value: Expression) -> None:
        if not entries.is_scratch:
            raise Refusal("these are not entries that kernels may change")
        self._put_entry(entries.entry, self._entry_place(entries, at), value)

    def _entry_place(self, entries: Entries, at: Expression) -> Value:
        offset = self.multiply(self.convert(self.scalar(at), i64), entries.step)
        return self._offset(entries.base, offset)

    def _entry(self, entry: Entry, place: Value, of: Value) -> Expression:
        """What lies at a place of a record, the one that ``of`` points to."""
        if isinstance(entry, RecordLayout):
            return Value(pointer(record(entry)), place.llvm)
        if isinstance(entry, InPlace):
            return Entries(entry.entry, place, entry.count, layout_of(of).is_scratch)
        if isinstance(entry, Elsewhere):
            words = Value(pointer(i64), place.llvm)
            first = Value(of.type, self._offset(of, self.get(words, 0)).llvm)
            return Entries(entry.entry, first, self.get(words, 1), False)
        if entry is WordKind.TABLE:
            return Value(pointer(i64), self.builder.load(place.llvm, typ=pointer(i64).llvm, align=8))
        word = self.get(Value(pointer(WORD_TYPES[entry]), place.llvm), 0)
        return self.truth(word) if entry is WordKind.TRUTH else word

    def _put_entry(self, entry: Entry, place: Value, value: Expression) -> None:
        if not isinstance(entry, WordKind) or entry is WordKind.TABLE:
            raise Refusal("numbers alone can be put into a record")
        self.put(Value(pointer(WORD_TYPES[entry]), place.llvm), 0, value)

    def _offset(self, p: Value, offset: Value) -> Value:
        """So many bytes behind a pointer."""
        return Value(p.type, self.builder.gep(p.llvm, [offset.llvm], source_etype=ir.IntType(8)))

    def _check_step(self, at: Affine, step: int) -> None:
        if at.step != step:
            raise Refusal(f"an index with a step of {at.step} where one of {step} is wanted")

    def _shuffle(self, kind: Type, a: ir.Value, b: ir.Value, order: Sequence[int]) -> Value:
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), list(order))
        return Value(kind, self.builder.shuffle_vector(a, b, mask))


# --- names of LLVM's instructions -------------------------------------------------------------------------------------


def _conversion(old: Type, new: Type) -> str | None:
    if old.is_float:
        return "fpext" if new.bits > old.bits else "fptrunc"
    if new.is_float:
        return "sitofp" if old.is_signed else "uitofp"
    if new.bits <= old.bits:
        return None if new.bits == old.bits else "trunc"
    return "sext" if old.is_signed else "zext"


def _comparison(kind: Type, sign: str) -> str:
    if kind.is_float:
        return "fcmp_unordered" if sign == "!=" else "fcmp_ordered"
    return "icmp_signed" if kind.is_signed else "icmp_unsigned"


def layout_of(p: Value) -> RecordLayout:
    """The layout of the record that a pointer points to."""
    layout = p.type.element.layout if p.type.element is not None else None
    if layout is None:
        raise Refusal(f"{p.type} has no fields")
    return layout


def element_of(p: Expression) -> Type:
    """What a pointer points to."""
    element = p.type.element if isinstance(p, Value) else None
    if element is None:
        raise Refusal(f"{p.type if isinstance(p, Value) else repr(p)} is not a pointer")
    return element


def _is_power_of_two(n: object) -> bool:
    return isinstance(n, int) and n > 0 and n & (n - 1) == 0
