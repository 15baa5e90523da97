"""Kernels are Python functions in a small typed subset, translated to LLVM's intermediate code.

The subset is what loops over memory need: numbers of fixed width, pointers, ``for … in range``, ``while``, ``if``,
assignment, tuples of results, and calls of functions written in the same subset. Whatever is known when a kernel is
built is ordinary Python: names from the enclosing scopes, modules, types, functions, and conditions on them, which
leave no trace in the code. Each function is translated once per combination of argument types.

A general compiler of Python infers far more and takes half a second per function; a pooling kernel is some fifty short
functions. This one takes milliseconds, and what remains is LLVM's own time. Nothing here sees a user's data or code.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from llvmlite import ir

# --- types and values -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Type:
    """A number of fixed width or, with an element, a pointer; calling it makes a constant, or converts in a kernel."""

    name: str
    bits: int
    is_float: bool = False
    is_signed: bool = True
    element: Type | None = None
    lanes: int = 1

    @property
    def llvm(self) -> Any:
        if self.element is not None:
            return ir.PointerType()
        floats = {16: ir.HalfType(), 32: ir.FloatType(), 64: ir.DoubleType()}
        one = floats[self.bits] if self.is_float else ir.IntType(self.bits)
        return one if self.lanes == 1 else ir.VectorType(one, self.lanes)

    def of(self, lanes: int) -> Type:
        """A vector of that many of these numbers."""
        return replace(self, lanes=lanes)

    @property
    def bytes(self) -> int:
        return self.bits // 8

    def __call__(self, value: float) -> Value:
        number = float(value) if self.is_float else int(value)
        return Value(self, ir.Constant(self.llvm, number if self.lanes == 1 else [number] * self.lanes))


@dataclass(frozen=True)
class Value:
    """Something that a kernel computes."""

    type: Type
    llvm: Any


def pointer(element: Type) -> Type:
    return Type(f"{element.name}*", 64, element=element)


boolean = Type("bool", 1, is_signed=False)
i8, i16, i32, i64 = (Type(f"i{n}", n) for n in (8, 16, 32, 64))
u8, u16, u32, u64 = (Type(f"u{n}", n, is_signed=False) for n in (8, 16, 32, 64))
f16, f32, f64 = (Type(f"f{n}", n, is_float=True) for n in (16, 32, 64))


@dataclass(frozen=True)
class Affine:
    """``base + step·i`` for the iterations ``i = 0 … lanes−1`` that are carried out at once."""

    base: Value
    step: int
    lanes: int

    @property
    def type(self) -> AffineType:
        return AffineType(self.step, self.lanes)

    @property
    def llvm(self) -> Any:
        return self.base.llvm


@dataclass(frozen=True)
class AffineType:
    """The type of such an index as an argument: its base is passed, the rest is known."""

    step: int
    lanes: int
    llvm = ir.IntType(64)


class lanes:  # noqa: N801  (it stands where ``range`` does)
    """``for i in lanes(number, n)``: like ``range(n)``, in vectors of ``number``.

    The body reads memory and writes elsewhere, so iterations may be carried out twice: a last vector that would reach
    beyond the end begins earlier instead. ``i`` appears in indices only, as ``base + step·i`` with a known step.
    """

    again = True


class lanes_once(lanes):  # noqa: N801
    """The same for a body that changes what it reads: each iteration is carried out once."""

    again = False


def strided(p, at, step):  # type: ignore[no-untyped-def]
    """``p[at], …, p[at + step − 1]``; with ``at = base + step·i`` whole vectors of each, from one read."""
    raise NotImplementedError("in kernels only")


def put_strided(p, at, values):  # type: ignore[no-untyped-def]
    """The same for writing."""
    raise NotImplementedError("in kernels only")


def following(p, at, step, values):  # type: ignore[no-untyped-def]
    """What ``values``, read at ``at = base + step·i``, are for ``i + 1``: one more number is read."""
    raise NotImplementedError("in kernels only")


def choose(test, a, b):  # type: ignore[no-untyped-def]
    """``a if test else b``, both computed."""
    raise NotImplementedError("in kernels only")


def total(combine, neutral, p, at, n):  # type: ignore[no-untyped-def]
    """``p[at] ⊕ … ⊕ p[at + n − 1]`` in an order that depends on ``n`` alone."""
    raise NotImplementedError("in kernels only")


@dataclass(frozen=True)
class Intrinsic:
    """A function that writes LLVM code itself: ``emit(builder, *values) -> Value``."""

    emit: Callable[..., Any]


def inlined(function: Any) -> Any:
    """Mark a function whose body always takes the place of its call."""
    function.inlining = "alwaysinline"
    return function


def outlined(function: Any) -> Any:
    """Mark a function that is never copied into its callers: a loop that many of them use."""
    function.inlining = "noinline"
    return function


class KernelError(TypeError):
    """A kernel that is not in the subset: a mistake in this package."""


# --- a module: every function once per combination of argument types --------------------------------------------------


class Module:
    """Functions that call each other. ``vector_bytes``: how much one vector operation works on."""

    def __init__(self, vector_bytes: int = 32) -> None:
        self.ir = ir.Module()
        self.vector_bytes = vector_bytes
        self.functions: dict[Any, tuple[Any, Any]] = {}

    def entry(self, name: str, function: Any, types: Sequence[Type]) -> None:
        """Make ``function`` callable from outside under ``name``; it returns nothing."""
        body, _ = self.translated(function, tuple(types))
        body.linkage, body.name = "external", name

    def translated(self, function: Any, types: tuple[Any, ...]) -> tuple[Any, Any]:
        """The LLVM function and its result: None, a type, or a tuple of types.

        A function that is met while it is being translated calls itself; such a function returns nothing.
        """
        key = (function, types)
        if key not in self.functions:
            translation = _Translation(self, function, types)
            self.functions[key] = (translation.body, None)
            self.functions[key] = translation.result()
        return self.functions[key]


@cache
def _parsed(code: Any) -> ast.FunctionDef:
    tree = ast.parse(textwrap.dedent(inspect.getsource(code))).body[0]
    if not isinstance(tree, ast.FunctionDef):
        raise KernelError(f"{code.co_name} is not a plain function")
    return tree


def _scope(function: Any) -> dict[str, Any]:
    """What the names in a function mean before it runs."""
    found = inspect.getclosurevars(function)
    return {**found.builtins, **found.globals, **found.nonlocals}


_ARITHMETIC = {ast.Add: ("fadd", "add"), ast.Sub: ("fsub", "sub"), ast.Mult: ("fmul", "mul")}
_BITS = {ast.BitAnd: "and_", ast.BitOr: "or_", ast.BitXor: "xor", ast.LShift: "shl"}
_COMPARISONS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}


class _Translation:
    """One function with given argument types, being written."""

    def __init__(self, module: Module, function: Any, types: tuple[Any, ...]) -> None:
        self.module, self.function = module, function
        self.tree, self.scope = _parsed(function.__code__), _scope(function)
        self.variables: dict[str, tuple[Type, Any]] = {}
        self.loops: list[tuple[Any, Any]] = []
        self.lane_index: dict[str, Any] = {}
        names = [argument.arg for argument in self.tree.args.args]
        if len(names) != len(types):
            raise KernelError(f"{function.__name__} takes {len(names)} arguments, not {len(types)}")
        passed = Type | AffineType
        self.statics = {name: t for name, t in zip(names, types, strict=True) if not isinstance(t, passed)}
        self.given = [(name, t) for name, t in zip(names, types, strict=True) if isinstance(t, passed)]
        self.returns: Any = None
        kind = ir.FunctionType(ir.VoidType(), [t.llvm for _, t in self.given])
        self.body = ir.Function(module.ir, kind, f"{function.__name__}.{len(module.functions)}")
        self.body.linkage = "internal"
        if hasattr(function, "inlining"):
            self.body.attributes.add(function.inlining)
        self.entry = ir.IRBuilder(self.body.append_basic_block("entry"))
        self.builder = ir.IRBuilder(self.body.append_basic_block("body"))

    def result(self) -> tuple[Any, Any]:
        for (name, kind), value in zip(self.given, self.body.args, strict=True):
            if isinstance(kind, AffineType):
                self.lane_index[name] = Affine(Value(i64, value), kind.step, kind.lanes)
            else:
                self._assign_name(name, Value(kind, value))
        self._block(self.tree.body)
        if not self.builder.block.is_terminated:
            if self.returns is None:
                self.builder.ret_void()
            else:
                self.builder.unreachable()
        self.entry.branch(self.body.blocks[1])
        return self.body, self.returns

    def _return_type(self, value: Any) -> None:
        """The first return fixes what the function returns."""
        found = tuple(self._typed(v).type for v in value) if isinstance(value, tuple) else self._typed(value).type
        kind = ir.LiteralStructType([t.llvm for t in found]) if isinstance(found, tuple) else found.llvm
        self.returns = found
        self.body.ftype = ir.FunctionType(kind, self.body.ftype.args)
        self.body.type = self.body.ftype.as_pointer()
        self.body.return_value = ir.values.ReturnValue(self.body, kind)

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.builder.block.is_terminated:
                return
            getattr(self, f"_do_{type(statement).__name__}", self._refuse)(statement)

    def _refuse(self, node: ast.AST) -> Any:
        raise KernelError(f"{self.function.__name__}, line {getattr(node, 'lineno', 0)}: {ast.unparse(node)} is no kernel code")

    def _do_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    def _do_Pass(self, node: ast.Pass) -> None:
        return

    def _do_Assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _do_AugAssign(self, node: ast.AugAssign) -> None:
        place = ast.parse(ast.unparse(node.target), mode="eval").body
        self._assign(node.target, self._binary(node.op, self._value(place), self._value(node.value)))

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Tuple):
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        elif isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            p, at = self._value(target.value), self._value(target.slice)
            self._put(p, at, value)
        else:
            self._refuse(target)

    def _assign_name(self, name: str, value: Any) -> None:
        typed = self._typed(value)
        if name not in self.variables:
            self.variables[name] = (typed.type, self.entry.alloca(typed.type.llvm, name=name))
        kind, slot = self.variables[name]
        self.builder.store(self._converted(typed, kind).llvm, slot)

    def _do_Return(self, node: ast.Return) -> None:
        if node.value is None:
            self.builder.ret_void()
            return
        value = self._value(node.value)
        if self.returns is None:
            self._return_type(value)
        if isinstance(self.returns, tuple):
            packed = ir.Constant(self.body.ftype.return_type, ir.Undefined)
            for i, (item, kind) in enumerate(zip(value, self.returns, strict=True)):
                packed = self.builder.insert_value(packed, self._converted(item, kind).llvm, i)
            self.builder.ret(packed)
        else:
            self.builder.ret(self._converted(value, self.returns).llvm)

    def _do_If(self, node: ast.If) -> None:
        test = self._value(node.test)
        if not isinstance(test, Value):
            self._block(node.body if test else node.orelse)
            return
        yes, no, after = (self.body.append_basic_block(n) for n in ("then", "else", "after"))
        self.builder.cbranch(self._truth(test), yes, no)
        for block, statements in ((yes, node.body), (no, node.orelse)):
            self.builder.position_at_end(block)
            self._block(statements)
            if not self.builder.block.is_terminated:
                self.builder.branch(after)
        self.builder.position_at_end(after)

    def _do_While(self, node: ast.While) -> None:
        head, body, after = (self.body.append_basic_block(n) for n in ("head", "loop", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        test = self._value(node.test)
        self.builder.cbranch(self._truth(test), body, after)
        self._loop_body(node.body, body, head, head, after)

    def _do_For(self, node: ast.For) -> None:
        """The count is fixed before the loop, and the variable is the loop's own, as in Python."""
        if not isinstance(node.iter, ast.Call):
            self._refuse(node.iter)
        kind = self._static(node.iter.func)
        if kind in (lanes, lanes_once):
            self._vector_loop(node, kind.again)
            return
        if kind is not range:
            self._refuse(node.iter)
        bounds = [self._typed(self._value(a)) for a in node.iter.args]
        start, stop = (i64(0), bounds[0]) if len(bounds) == 1 else (bounds[0], bounds[1])
        step = bounds[2] if len(bounds) == 3 else i64(1)
        counter = self.entry.alloca(ir.IntType(64))
        self.builder.store(start.llvm, counter)
        head, body, following, after = (self.body.append_basic_block(n) for n in ("head", "loop", "next", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        here = Value(i64, self.builder.load(counter, typ=ir.IntType(64)))
        downwards = isinstance(step.llvm, ir.Constant) and step.llvm.constant < 0
        self.builder.cbranch(self.builder.icmp_signed(">" if downwards else "<", here.llvm, stop.llvm), body, after)
        self.builder.position_at_end(following)
        moved = self.builder.add(self.builder.load(counter, typ=ir.IntType(64)), step.llvm, flags=("nsw",))
        self.builder.store(moved, counter)
        self.builder.branch(head)
        self.builder.position_at_end(body)
        self._assign(node.target, here)
        self._loop_body(node.body, body, following, following, after)

    def _loop_body(self, statements: Sequence[ast.stmt], body: Any, again: Any, on: Any, after: Any) -> None:
        self.builder.position_at_end(body)
        self.loops.append((on, after))
        self._block(statements)
        self.loops.pop()
        if not self.builder.block.is_terminated:
            self.builder.branch(again)
        self.builder.position_at_end(after)

    def _vector_loop(self, node: ast.For, again: bool) -> None:
        number, n = self._value(node.iter.args[0]), self._typed(self._value(node.iter.args[1]))
        widest = self.module.vector_bytes // number.bytes
        counter = self.entry.alloca(ir.IntType(64))
        self.builder.store(i64(0).llvm, counter)

        def here() -> Value:
            return Value(i64, self.builder.load(counter, typ=ir.IntType(64)))

        def body(width: int, at: Value) -> None:
            outside = dict(self.variables)
            self.lane_index[node.target.id] = Affine(at, 1, width) if width > 1 else at
            self._block(node.body)
            del self.lane_index[node.target.id]
            self.variables = outside

        def step(width: int, more: Any) -> None:
            """Carry out the body, and again as long as ``more`` is set and another vector fits."""
            head, loop, after = (self.body.append_basic_block(name) for name in ("head", "vector", "after"))
            self.builder.branch(head)
            self.builder.position_at_end(head)
            end = self.builder.add(here().llvm, i64(width).llvm, flags=("nsw",))
            self.builder.cbranch(self.builder.icmp_signed("<=", end, n.llvm), loop, after)
            self.builder.position_at_end(loop)
            body(width, here())
            self.builder.store(self.builder.add(here().llvm, i64(width).llvm, flags=("nsw",)), counter)
            self.builder.branch(head if more else after)
            self.builder.position_at_end(after)

        done = self.body.append_basic_block("done")
        step(widest, True)
        if again:
            last, short = self.body.append_basic_block("last"), self.body.append_basic_block("short")
            unfinished = self.builder.icmp_signed("<", here().llvm, n.llvm)
            enough = self.builder.icmp_signed(">=", n.llvm, i64(widest).llvm)
            rest = self.body.append_basic_block("rest")
            self.builder.cbranch(unfinished, rest, done)
            self.builder.position_at_end(rest)
            self.builder.cbranch(enough, last, short)
            self.builder.position_at_end(last)
            body(widest, Value(i64, self.builder.sub(n.llvm, i64(widest).llvm, flags=("nsw",))))
            self.builder.branch(done)
            self.builder.position_at_end(short)
        width = widest // 2
        while width:
            step(width, width == 1)
            width //= 2
        self.builder.branch(done)
        self.builder.position_at_end(done)

    def _do_Break(self, node: ast.Break) -> None:
        self.builder.branch(self.loops[-1][1])

    def _do_Continue(self, node: ast.Continue) -> None:
        self.builder.branch(self.loops[-1][0])

    # --- expressions: a Value, a tuple of them, or an ordinary Python object that is known now --------------------------

    def _value(self, node: ast.expr) -> Any:
        return getattr(self, f"_of_{type(node).__name__}", self._refuse)(node)

    def _static(self, node: ast.expr) -> Any:
        value = self._value(node)
        return self._refuse(node) if isinstance(value, Value) else value

    def _of_Constant(self, node: ast.Constant) -> Any:
        return node.value

    def _of_Name(self, node: ast.Name) -> Any:
        if node.id in self.lane_index:
            return self.lane_index[node.id]
        if node.id in self.variables:
            kind, slot = self.variables[node.id]
            return Value(kind, self.builder.load(slot, typ=kind.llvm))
        for names in (self.statics, self.scope):
            if node.id in names:
                return names[node.id]
        return self._refuse(node)

    def _of_Attribute(self, node: ast.Attribute) -> Any:
        return getattr(self._static(node.value), node.attr)

    def _of_Tuple(self, node: ast.Tuple) -> Any:
        return tuple(self._value(item) for item in node.elts)

    def _of_Subscript(self, node: ast.Subscript) -> Any:
        p, at = self._value(node.value), self._value(node.slice)
        if isinstance(p, tuple):
            return p[at]
        return self._get(p, at)

    def _get(self, p: Value, at: Any) -> Value:
        element = p.type.element
        if element is None:
            raise KernelError(f"{self.function.__name__}: {p.type.name} is not a pointer")
        if isinstance(at, Affine):
            if at.step != 1:
                raise KernelError(f"{self.function.__name__}: a step of {at.step}; use strided")
            at, kind = at.base, element.of(at.lanes)
        else:
            at, kind = self._typed(at), element
        return Value(kind, self.builder.load(self._element(p, at), typ=kind.llvm, align=element.bytes))

    def _put(self, p: Value, at: Any, value: Any) -> None:
        element = p.type.element
        kind, at = (element.of(at.lanes), at.base) if isinstance(at, Affine) else (element, self._typed(at))
        self.builder.store(self._converted(value, kind).llvm, self._element(p, at), align=element.bytes)

    def _strided(self, p: Value, at: Any, step: int) -> tuple[Value, ...]:
        if not isinstance(at, Affine):
            return tuple(self._get(p, self._binary(ast.Add(), at, i)) for i in range(step))
        wide = self._get(p, Affine(at.base, 1, at.lanes * step))
        nothing = ir.Constant(wide.type.llvm, ir.Undefined)
        return tuple(
            Value(p.type.element.of(at.lanes), self.builder.shuffle_vector(wide.llvm, nothing, _mask(i, step, at.lanes)))
            for i in range(step)
        )

    def _following(self, p: Value, at: Any, step: int, values: Value) -> Value:
        if not isinstance(at, Affine):
            return self._get(p, self._binary(ast.Add(), at, step))
        last = self._get(p, self._binary(ast.Add(), at.base, step * at.lanes))
        order = ir.Constant(ir.VectorType(ir.IntType(32), at.lanes), [*range(1, at.lanes + 1)])
        more = self._spread(last, values.type)
        return Value(values.type, self.builder.shuffle_vector(values.llvm, more.llvm, order))

    def _put_strided(self, p: Value, at: Any, values: tuple[Any, ...]) -> None:
        step, element = len(values), p.type.element
        if not isinstance(at, Affine):
            for i, value in enumerate(values):
                self._put(p, self._binary(ast.Add(), at, i), value)
            return
        if step != 2:
            raise KernelError(f"{self.function.__name__}: {step} vectors to put")
        a, b = (self._converted(value, element.of(at.lanes)) for value in values)
        order = [i // 2 + (i % 2) * at.lanes for i in range(2 * at.lanes)]
        mask = ir.Constant(ir.VectorType(ir.IntType(32), len(order)), order)
        both = Value(element.of(2 * at.lanes), self.builder.shuffle_vector(a.llvm, b.llvm, mask))
        self._put(p, Affine(at.base, 1, 2 * at.lanes), both)

    def _of_BinOp(self, node: ast.BinOp) -> Any:
        return self._binary(node.op, self._value(node.left), self._value(node.right))

    def _of_UnaryOp(self, node: ast.UnaryOp) -> Any:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            if not isinstance(value, Value):
                return not value
            return Value(boolean.of(value.type.lanes), self.builder.not_(self._truth(value)))
        if not isinstance(node.op, ast.USub):
            return self._refuse(node)
        if not isinstance(value, Value):
            return -value
        return Value(value.type, self.builder.fneg(value.llvm) if value.type.is_float else self.builder.neg(value.llvm))

    def _of_Compare(self, node: ast.Compare) -> Any:
        if len(node.ops) != 1:
            return self._refuse(node)
        left, right = self._value(node.left), self._value(node.comparators[0])
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            return (left is right) == isinstance(node.ops[0], ast.Is)
        sign = _COMPARISONS[type(node.ops[0])]
        if not isinstance(left, Value) and not isinstance(right, Value):
            return {"<": left < right, "<=": left <= right, ">": left > right, ">=": left >= right}.get(
                sign, (left == right) == (sign == "==")
            )
        a, b = self._alike(left, right)
        if a.type.is_float:
            compare = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
        else:
            compare = self.builder.icmp_signed if a.type.is_signed else self.builder.icmp_unsigned
        return Value(boolean.of(a.type.lanes), compare(sign, a.llvm, b.llvm))

    def _of_BoolOp(self, node: ast.BoolOp) -> Any:
        """From left to right, as far as needed: what comes later may be meaningless."""
        test, rest = self._value(node.values[0]), node.values[1:]
        for following in rest:
            stops_at = isinstance(node.op, ast.Or)
            if not isinstance(test, Value):
                test = test if bool(test) == stops_at else self._value(following)
                continue
            first, first_block = self._truth(test), self.builder.block
            more, after = self.body.append_basic_block("more"), self.body.append_basic_block("after")
            self.builder.cbranch(first, *((after, more) if stops_at else (more, after)))
            self.builder.position_at_end(more)
            second = self._truth(self._value(following))
            test = self._merged(boolean, after, [(first, first_block), (second, self.builder.block)])
        return test

    def _of_IfExp(self, node: ast.IfExp) -> Any:
        test = self._value(node.test)
        if not isinstance(test, Value):
            return self._value(node.body if test else node.orelse)
        if test.type.lanes > 1:
            return self._chosen(test, self._value(node.body), self._value(node.orelse))
        yes, no, after = (self.body.append_basic_block(n) for n in ("then", "else", "after"))
        self.builder.cbranch(self._truth(test), yes, no)
        ends = []
        for block, expression in ((yes, node.body), (no, node.orelse)):
            self.builder.position_at_end(block)
            ends.append((self._value(expression), self.builder.block))
        if isinstance(ends[0][0], tuple):
            return self._refuse(node)
        common = _common(ends[0][0], ends[1][0])
        incoming = []
        for value, block in ends:
            self.builder.position_at_end(block)
            incoming.append((self._converted(value, common).llvm, block))
        return self._merged(common, after, incoming)

    def _merged(self, kind: Type, after: Any, incoming: list[tuple[Any, Any]]) -> Value:
        if self.builder.block is incoming[-1][1] and not self.builder.block.is_terminated:
            self.builder.branch(after)
        for _, block in incoming:
            if not block.is_terminated:
                self.builder.position_at_end(block)
                self.builder.branch(after)
        self.builder.position_at_end(after)
        phi = self.builder.phi(kind.llvm)
        for value, block in incoming:
            phi.add_incoming(value, block)
        return Value(kind, phi)

    def _of_Call(self, node: ast.Call) -> Any:
        function = self._static(node.func)
        args = [self._value(a) for a in node.args]
        if isinstance(function, Type):
            return self._converted(args[0], function.of(args[0].type.lanes)) if isinstance(args[0], Value) else function(args[0])
        if isinstance(function, Intrinsic):
            values = [self._typed(a) for a in args]
            width = max(value.type.lanes for value in values)
            return function.emit(self.builder, *(self._converted(v, v.type.of(width)) for v in values))
        if function is strided:
            return self._strided(*args)
        if function is put_strided:
            return self._put_strided(*args)
        if function is following:
            return self._following(*args)
        if function is choose:
            return self._chosen(*args)
        if function is total:
            return self._total(*args)
        if function is min or function is max:
            return self._extreme("<" if function is min else ">", *args)
        return self._call(function, [a if isinstance(a, Affine | Type) or inspect.isfunction(a) else self._typed(a) for a in args])

    def _chosen(self, test: Value, left: Any, right: Any) -> Value:
        a, b = self._alike(left, right)
        kind = a.type.of(max(a.type.lanes, test.type.lanes))
        yes, no = self._converted(a, kind), self._converted(b, kind)
        return Value(kind, self.builder.select(test.llvm, yes.llvm, no.llvm))

    def _total(self, combine: Any, neutral: Value, p: Value, at: Value, n: Value) -> Value:
        """Four vectors side by side, then one, then their lanes, then what is left over."""
        number, w = p.type.element, self.builder
        width = self.module.vector_bytes // number.bytes
        kind = number.of(width)
        sums = [self.entry.alloca(kind.llvm) for _ in range(4)]
        for slot in sums:
            w.store(self._converted(neutral, kind).llvm, slot)
        counter = self.entry.alloca(ir.IntType(64))
        w.store(i64(0).llvm, counter)
        n = self._converted(n, i64)

        def loop(length: int, add: Callable[[Value], None]) -> None:
            head, body, after = (self.body.append_basic_block(name) for name in ("head", "total", "after"))
            w.branch(head)
            w.position_at_end(head)
            here = w.load(counter, typ=ir.IntType(64))
            end = w.add(here, i64(length).llvm, flags=("nsw",))
            w.cbranch(w.icmp_signed("<=", end, n.llvm), body, after)
            w.position_at_end(body)
            add(Value(i64, w.add(self._converted(at, i64).llvm, here)))
            w.store(end, counter)
            w.branch(head)
            w.position_at_end(after)

        def add_vector(slot: Any, place: Value) -> None:
            here = Value(kind, w.load(slot, typ=kind.llvm))
            w.store(self._call(combine, [here, self._get(p, Affine(place, 1, width))]).llvm, slot)

        def add_four(place: Value) -> None:
            for i, slot in enumerate(sums):
                add_vector(slot, self._binary(ast.Add(), place, i * width))

        loop(4 * width, add_four)
        loop(width, lambda place: add_vector(sums[0], place))
        parts = [Value(kind, w.load(slot, typ=kind.llvm)) for slot in sums]
        while len(parts) > 1:
            parts = [self._call(combine, [a, b]) for a, b in zip(parts[::2], parts[1::2], strict=True)]
        numbers = [Value(number, w.extract_element(parts[0].llvm, i64(i).llvm)) for i in range(width)]
        while len(numbers) > 1:
            half = len(numbers) // 2
            numbers = [self._call(combine, [a, b]) for a, b in zip(numbers[:half], numbers[half:], strict=True)]
        result = self.entry.alloca(number.llvm)
        w.store(numbers[0].llvm, result)

        def add_one(place: Value) -> None:
            here = Value(number, w.load(result, typ=number.llvm))
            w.store(self._call(combine, [here, self._get(p, place)]).llvm, result)

        loop(1, add_one)
        return Value(number, w.load(result, typ=number.llvm))

    def _extreme(self, sign: str, left: Any, right: Any) -> Value:
        a, b = self._alike(left, right)
        return Value(a.type, self.builder.select(self.builder.icmp_signed(sign, a.llvm, b.llvm), a.llvm, b.llvm))

    def _call(self, function: Any, args: list[Any]) -> Any:
        body, returns = self.module.translated(function, tuple(a.type if isinstance(a, Value | Affine) else a for a in args))
        called = self.builder.call(body, [a.llvm for a in args if isinstance(a, Value | Affine)])
        if isinstance(returns, tuple):
            return tuple(Value(t, self.builder.extract_value(called, i)) for i, t in enumerate(returns))
        return None if returns is None else Value(returns, called)

    # --- arithmetic -----------------------------------------------------------------------------------------------------

    def _binary(self, op: ast.operator, left: Any, right: Any) -> Any:
        if isinstance(left, Affine) or isinstance(right, Affine):
            return self._affine(op, left, right)
        if not isinstance(left, Value) and not isinstance(right, Value):
            return _PYTHON[type(op)](left, right)
        a, b = self._alike(left, right)
        kind = a.type
        if type(op) in _ARITHMETIC:
            name = _ARITHMETIC[type(op)][0 if kind.is_float else 1]
            flags = ("nsw",) if kind == i64 else ()
            return Value(kind, getattr(self.builder, name)(a.llvm, b.llvm, flags=flags))
        if isinstance(op, ast.Div) and kind.is_float:
            return Value(kind, self.builder.fdiv(a.llvm, b.llvm))
        if kind.is_float:
            raise KernelError(f"{self.function.__name__}: {type(op).__name__} of floats")
        if type(op) in _BITS:
            return Value(kind, getattr(self.builder, _BITS[type(op)])(a.llvm, b.llvm))
        if isinstance(op, ast.RShift):
            return Value(kind, (self.builder.ashr if kind.is_signed else self.builder.lshr)(a.llvm, b.llvm))
        return self._floored(op, a, b)

    def _affine(self, op: ast.operator, left: Any, right: Any) -> Affine:
        """A sum with something that is the same for all lanes, or a multiple."""
        i, other = (left, right) if isinstance(left, Affine) else (right, left)
        if isinstance(op, ast.Mult) and isinstance(other, int):
            return Affine(self._binary(op, i.base, other), i.step * other, i.lanes)
        if isinstance(op, ast.Add) or (isinstance(op, ast.Sub) and left is i):
            return Affine(self._binary(op, i.base, other), i.step, i.lanes)
        raise KernelError(f"{self.function.__name__}: the index of a vector is base + step·i")

    def _floored(self, op: ast.operator, a: Value, b: Value) -> Value:
        """``//`` and ``%`` towards −∞, as in Python."""
        w = self.builder
        if not a.type.is_signed:
            return Value(a.type, (w.udiv if isinstance(op, ast.FloorDiv) else w.urem)(a.llvm, b.llvm))
        zero = ir.Constant(a.type.llvm, 0)
        if isinstance(b.llvm, ir.Constant) and isinstance(op, ast.FloorDiv) and _is_power_of_two(b.llvm.constant):
            return Value(a.type, w.ashr(a.llvm, ir.Constant(a.type.llvm, b.llvm.constant.bit_length() - 1)))
        rest = w.srem(a.llvm, b.llvm)
        differ = w.icmp_signed("<", w.xor(rest, b.llvm), zero)
        inexact = w.and_(w.icmp_signed("!=", rest, zero), differ)
        if isinstance(op, ast.Mod):
            return Value(a.type, w.select(inexact, w.add(rest, b.llvm), rest))
        quotient = w.sdiv(a.llvm, b.llvm)
        return Value(a.type, w.select(inexact, w.sub(quotient, ir.Constant(a.type.llvm, 1)), quotient))

    def _truth(self, value: Any) -> Any:
        typed = self._typed(value)
        if typed.type.of(1) == boolean:
            return typed.llvm
        return self.builder.icmp_signed("!=", typed.llvm, ir.Constant(typed.type.llvm, 0))

    def _typed(self, value: Any) -> Value:
        if isinstance(value, Value):
            return value
        if isinstance(value, bool):
            return boolean(value)
        if isinstance(value, int):
            return i64(value)
        if isinstance(value, float):
            return f64(value)
        raise KernelError(f"{self.function.__name__}: {value!r} is no number")

    def _alike(self, left: Any, right: Any) -> tuple[Value, Value]:
        common = _common(left, right)
        return self._converted(left, common), self._converted(right, common)

    def _converted(self, value: Any, kind: Type) -> Value:
        if not isinstance(value, Value):
            return kind(value)
        old, w = value.type, self.builder
        if old == kind:
            return value
        if old.lanes != kind.lanes:
            if old.lanes != 1:
                raise KernelError(f"{self.function.__name__}: {old.lanes} lanes do not turn into {kind.lanes}")
            return self._spread(self._converted(value, kind.of(1)), kind)
        if old.is_float and kind.is_float:
            return Value(kind, (w.fpext if kind.bits > old.bits else w.fptrunc)(value.llvm, kind.llvm))
        if kind.is_float:
            return Value(kind, (w.sitofp if old.is_signed else w.uitofp)(value.llvm, kind.llvm))
        if old.is_float or kind.element is not None or old.element is not None:
            raise KernelError(f"{self.function.__name__}: {old.name} does not turn into {kind.name}")
        if kind.bits < old.bits:
            return Value(kind, w.trunc(value.llvm, kind.llvm))
        if kind.bits == old.bits:
            return Value(kind, value.llvm)
        return Value(kind, (w.sext if old.is_signed else w.zext)(value.llvm, kind.llvm))

    def _spread(self, value: Value, kind: Type) -> Value:
        """One number in every lane."""
        nothing = ir.Constant(kind.llvm, ir.Undefined)
        first = self.builder.insert_element(nothing, value.llvm, ir.Constant(ir.IntType(32), 0))
        mask = ir.Constant(ir.VectorType(ir.IntType(32), kind.lanes), [0] * kind.lanes)
        return Value(kind, self.builder.shuffle_vector(first, nothing, mask))

    def _element(self, p: Value, at: Value) -> Any:
        return self.builder.gep(p.llvm, [self._converted(at, i64).llvm], source_etype=p.type.element.llvm)


def _mask(first: int, step: int, lanes: int) -> Any:
    return ir.Constant(ir.VectorType(ir.IntType(32), lanes), [first + step * i for i in range(lanes)])


def _is_power_of_two(n: Any) -> bool:
    return isinstance(n, int) and n > 0 and n & (n - 1) == 0


def _common(left: Any, right: Any) -> Type:
    """The type that two operands are brought to: a plain Python number takes the other's."""
    if not isinstance(left, Value) or not isinstance(right, Value):
        known = left if isinstance(left, Value) else right
        if isinstance(known, Value):
            return known.type
        return f64 if isinstance(left, float) or isinstance(right, float) else i64
    a, b = left.type, right.type
    wider = a if (a.is_float, a.bits) >= (b.is_float, b.bits) else b
    return wider.of(max(a.lanes, b.lanes))


_PYTHON: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
    ast.LShift: lambda a, b: a << b,
    ast.BitOr: lambda a, b: a | b,
    ast.BitAnd: lambda a, b: a & b,
}
