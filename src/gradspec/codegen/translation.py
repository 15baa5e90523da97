"""Kernels are Python functions in a small typed subset, translated to LLVM's intermediate code.

The subset is what loops over memory need: numbers of fixed width, pointers, records, ``for … in range``, ``while``,
``if``, assignment, tuples (named ones, too), and calls of functions and methods written in the same subset. Whatever is
known when a kernel is built is ordinary Python: modules, types, functions, frozen dataclasses and their properties, and
conditions on them, which leave no trace in the code. Such an object can be passed on like any argument, so a function
is written once for all formats; it is translated once per combination of what is known and of argument types.

A general compiler of Python infers far more and takes half a second per function; a pooling kernel is some fifty short
functions. This one takes milliseconds, and what remains is LLVM's own time. Nothing here sees a user's data or code.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, is_dataclass
from functools import cache, cached_property, partial, reduce
from itertools import count
from types import FunctionType, MethodType
from typing import cast

from llvmlite import ir

from gradspec.codegen.instructions import Instructions, element_of
from gradspec.codegen.language import (
    Affine,
    AffineType,
    Entries,
    ExactIntrinsic,
    Expression,
    Intrinsic,
    KernelError,
    Refusal,
    Type,
    Value,
    beyond,
    boolean,
    choose,
    first,
    following,
    i64,
    lanes,
    lanes_once,
    moved_on,
    number_of,
    parts,
    place_of,
    pointer,
    preceding,
    put_strided,
    stretch,
    strided,
    total,
    u8,
)
from gradspec.codegen.processor import processor

KERNEL_ARGUMENTS = (i64, i64, pointer(u8))
"""``(lo, hi, workspace)``, behind the record of arguments."""

SHORT_VECTOR = 4
"""Lanes for what is too short for a whole vector, before numbers are taken one by one."""

SIDE_BY_SIDE = 4
"""How many vectors ``total`` adds up at once, so that an addition need not wait for the one before."""


# --- modules ----------------------------------------------------------------------------------------------------------


class Module:
    """Functions that call each other. ``vector_bytes``: how much one vector operation works on."""

    def __init__(self, vector_bytes: int = 32) -> None:
        self.ir = ir.Module()
        self.vector_bytes = vector_bytes
        self._functions: dict[tuple[FunctionType, Expression], _Translation] = {}

    def entry(self, name: str, function: FunctionType, types: Sequence[Expression]) -> None:
        """Make ``function`` callable from outside under ``name``; it returns nothing.

        ``types`` are those of its arguments; what is known, such as a format, stands for itself.
        """
        kinds = (_Passed(kind) if isinstance(kind, Type) else kind for kind in types)
        translation = self.translation_of(function, tuple(kinds))
        if translation.result is not None:
            raise KernelError(f"{name} returns something, and nobody would see it")
        translation.body.linkage, translation.body.name = "external", name

    def translation_of(self, function: FunctionType, types: tuple[Expression, ...]) -> _Translation:
        """A function for arguments of these types; where it calls itself, it is found half written."""
        key = (function, _with_kinds(types))
        if key not in self._functions:
            self._functions[key] = translation = _Translation(self, function, types)
            translation.translate()
        return self._functions[key]

    def __str__(self) -> str:
        """The code. Functions that are called in one place are put there, unless they are marked otherwise."""
        for translation in self._functions.values():
            if translation.calls == 1 and not hasattr(translation.function, "inlining"):
                translation.body.attributes.add("alwaysinline")
        return str(self.ir)


# --- what is known about a function from its text ---------------------------------------------------------------------


@cache
def _definitions(file: str) -> dict[int, ast.FunctionDef]:
    """The functions in a file, by the line where they begin: that of the first decorator, if there is one."""
    tree = ast.parse("".join(linecache.getlines(file)))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return {min([node.lineno, *(d.lineno for d in node.decorator_list)]): node for node in found}


def _definition(function: FunctionType) -> ast.FunctionDef:
    code = function.__code__
    linecache.lazycache(code.co_filename, function.__globals__)
    found = _definitions(code.co_filename).get(code.co_firstlineno)
    if found is None or found.name != code.co_name:
        raise KernelError(f"{code.co_filename}, line {code.co_firstlineno}: {code.co_name} is not a plain function")
    return found


@cache
def _fixed_names(tree: ast.FunctionDef) -> frozenset[str]:
    """The names that are given a value once, and read only after that in the same block: they need no memory.

    What is changed, or might be read where it was not set, lives in memory until LLVM finds something better.
    """
    stores: Counter[str] = Counter(argument.arg for argument in tree.args.args)
    unseen: set[str] = set()

    def visit(statements: Sequence[ast.stmt], known: frozenset[str]) -> None:
        for statement in statements:
            named = [node for part in _own_parts(statement) for node in ast.walk(part) if isinstance(node, ast.Name)]
            stored = [node.id for node in named if isinstance(node.ctx, ast.Store)]
            changed = isinstance(statement, ast.AugAssign)
            stores.update(stored * 2 if changed else stored)
            unseen.update(node.id for node in named if isinstance(node.ctx, ast.Load) and node.id not in known)
            inside = known.union(stored) if isinstance(statement, ast.For) else known
            for block in _blocks(statement):
                visit(block, inside)
            known = known if isinstance(statement, ast.For) else known.union(stored)

    visit(tree.body, frozenset(stores))
    return frozenset(name for name, count in stores.items() if count == 1 and name not in unseen)


def _blocks(statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    for field in ("body", "orelse"):
        yield getattr(statement, field, [])


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """The expressions of a statement, without the statements inside it."""
    return (node for node in ast.iter_child_nodes(statement) if not isinstance(node, ast.stmt))


# --- translation ------------------------------------------------------------------------------------------------------


class _Translation:
    """One function with given argument types, being written.

    Expressions are a ``Value``, an ``Affine`` index, a tuple of them, or an ordinary Python object that is known now.
    """

    def __init__(self, module: Module, function: FunctionType, types: tuple[Expression, ...]) -> None:
        self.module, self.function = module, function
        self.code = function.__code__
        self.tree = _definition(function)
        self.fixed = _fixed_names(self.tree)
        self.result: Expression = None
        self.calls = 0
        self.given = self._parameters(types)
        leaves = (leaf for given in self.given.values() for leaf in _leaves(given))
        passed = [leaf.llvm for leaf in leaves if isinstance(leaf, _Passed | AffineType)]
        kind = ir.FunctionType(ir.VoidType(), passed)
        self.body = ir.Function(module.ir, kind, f"{function.__name__}.{len(module._functions)}")
        self.body.linkage = "internal"
        if hasattr(function, "inlining"):
            self.body.attributes.add(function.inlining)
        self.names: dict[str, Expression] = {}  # what does not change
        self.slots: dict[str, Expression] = {}  # where the rest lies
        self.loops: list[_Loop | None] = []  # None: a loop over lanes
        self.returns, self.recursive, self.finished = False, False, False
        self.entry = ir.IRBuilder(self._new_block("entry"))
        self.builder = ir.IRBuilder(self._new_block("body"))
        self.write = Instructions(self.builder)

    def _parameters(self, types: tuple[Expression, ...]) -> dict[str, Expression]:
        arguments = self.tree.args
        names = [argument.arg for argument in arguments.args]
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.defaults:
            raise self._error(self.tree, "parameters are plain names")
        if len(names) != len(types):
            raise self._error(self.tree, f"{self.function.__name__} takes {len(names)} arguments, not {len(types)}")
        return dict(zip(names, types, strict=True))

    def translate(self) -> None:
        """The whole function."""
        values = iter(self.body.args)

        def argument(kind: Expression) -> Expression:
            if isinstance(kind, AffineType):
                return Affine(Value(i64, next(values)), kind.step, kind.lanes)
            return Value(kind.passed, next(values)) if isinstance(kind, _Passed) else kind

        for name, kind in self.given.items():
            self._assign_name(name, _map_leaves(argument, kind))
        start = self.builder.block
        self._block(self.tree.body)
        if not self.builder.block.is_terminated:
            if self.result is not None:
                raise self._error(self.tree, "some paths return a value and others end without one")
            self.builder.ret_void()
        if self.recursive and self.result is not None:
            raise self._error(self.tree, "a function that calls itself returns nothing")
        self.entry.branch(start)
        self.finished = True

    def _new_block(self, name: str) -> ir.Block:
        return self.body.append_basic_block(name)

    def _error(self, node: ast.AST, problem: object) -> KernelError:
        where = f"{self.code.co_filename}, line {getattr(node, 'lineno', self.code.co_firstlineno)}"
        text = "" if node is self.tree else f"`{ast.unparse(node).splitlines()[0]}`: "
        return KernelError(f"{where}, in {self.function.__name__}: {text}{problem}")

    # --- statements ---------------------------------------------------------------------------------------------------

    def _block(self, statements: Sequence[ast.stmt]) -> None:
        for statement in statements:
            if self.builder.block.is_terminated:
                return
            try:
                getattr(self, f"_do_{type(statement).__name__.lower()}", self._refuse)(statement)
            except Refusal as refusal:
                raise self._error(statement, refusal) from None

    def _refuse(self, node: ast.AST) -> Expression:
        raise Refusal(f"{type(node).__name__} is not in the language of kernels")

    def _do_pass(self, node: ast.Pass) -> None:
        return

    def _do_expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):
            self._value(node.value)

    def _do_assign(self, node: ast.Assign) -> None:
        value = self._value(node.value)
        for target in node.targets:
            self._assign(target, value)

    def _do_augassign(self, node: ast.AugAssign) -> None:
        changed = self.write.binary(node.op, self._value(node.target), self._value(node.value))
        self._assign(node.target, changed)

    def _assign(self, target: ast.expr, value: Expression) -> None:
        if isinstance(target, ast.Tuple):
            if not isinstance(value, tuple) or len(value) != len(target.elts):
                raise Refusal(f"there are not {len(target.elts)} values to assign")
            for part, item in zip(target.elts, value, strict=True):
                self._assign(part, item)
        elif isinstance(target, ast.Name):
            self._assign_name(target.id, value)
        elif isinstance(target, ast.Subscript):
            self._assign_at(self._value(target.value), self._value(target.slice), value)
        elif isinstance(target, ast.Attribute):
            self.write.put_field(self.write.typed(self._value(target.value)), target.attr, value)
        else:
            self._refuse(target)

    def _assign_at(self, p: Expression, at: Expression, value: Expression) -> None:
        if isinstance(p, Entries):
            self.write.put_entry(p, at, value)
        else:
            self.write.put(p, at, value)

    def _assign_name(self, name: str, value: Expression) -> None:
        """A name keeps the type that it is given first. What is not a number, such as a format, stays known."""
        is_known = not any(map(_is_number, _leaves(value)))
        if is_known and name not in self.fixed and self.names.get(name, value) != value:
            raise Refusal(f"{name} is known when the kernel is built, and cannot change")
        if is_known or name in self.fixed:
            self.names[name] = _map_leaves(self._number, value)
            return
        if name in self.names:
            raise Refusal(f"{name} is known when the kernel is built, and cannot change")
        if name not in self.slots:
            self.slots[name] = _map_leaves(
                lambda leaf: self._slot(self.write.typed(leaf).type, name) if _is_number(leaf) else leaf, value
            )
        self._store(self.slots[name], value)

    def _number(self, leaf: Expression) -> Expression:
        return self.write.typed(leaf) if _is_number(leaf) and not isinstance(leaf, Affine) else leaf

    def _slot(self, kind: Type, name: str = "") -> _Slot:
        return _Slot(kind, self.entry.alloca(kind.llvm, name=name), self.builder)

    def _store(self, slots: Expression, value: Expression) -> None:
        if isinstance(slots, tuple):
            if not isinstance(value, tuple) or len(value) != len(slots):
                raise Refusal(f"a name of {len(slots)} values is given something else")
            for slot, part in zip(slots, value, strict=True):
                self._store(slot, part)
        elif isinstance(slots, _Slot):
            slots.store(self.write.convert(value, slots.kind))
        elif slots != value:
            raise Refusal(f"{slots!r} is known when the kernel is built, and cannot change")

    def _do_return(self, node: ast.Return) -> None:
        value = None if node.value is None else self._value(node.value)
        if None in self.loops:
            raise Refusal("a loop over lanes is left at its end")
        if not self.returns:
            self._fix_result(value)
        if isinstance(value, tuple) and isinstance(self.result, tuple) and len(value) != len(self.result):
            raise Refusal(f"{len(value)} values where other paths return {len(self.result)}")
        if _map_leaves(_without_numbers, value) != _map_leaves(_without_numbers, self.result):
            raise Refusal("some paths return something else")
        kinds = [leaf.passed for leaf in _leaves(self.result) if isinstance(leaf, _Passed)]
        numbers = [leaf for leaf in _leaves(value) if _is_number(leaf)]
        converted = [self.write.convert(*pair).llvm for pair in zip(numbers, kinds, strict=True)]
        if not isinstance(self.body.ftype.return_type, ir.LiteralStructType):
            self.builder.ret(*converted) if converted else self.builder.ret_void()
            return
        packed = ir.Constant(self.body.ftype.return_type, ir.Undefined)
        for i, item in enumerate(converted):
            packed = self.builder.insert_value(packed, item, i)
        self.builder.ret(packed)

    def _fix_result(self, value: Expression) -> None:
        """The first return says what the function gives; until then LLVM was told nothing."""
        self.returns = True
        self.result = _map_leaves(lambda leaf: _type_passed(self._number(leaf)), value)
        kinds = [leaf.llvm for leaf in _leaves(self.result) if isinstance(leaf, _Passed)]
        if kinds:
            kind = ir.LiteralStructType(kinds) if len(kinds) > 1 else kinds[0]
            self.body.ftype = ir.FunctionType(kind, self.body.ftype.args)
            self.body.type = self.body.ftype.as_pointer()
            self.body.return_value = ir.values.ReturnValue(self.body, kind)

    def _do_if(self, node: ast.If) -> None:
        test = self._value(node.test)
        if not isinstance(test, Value):
            self._block(node.body if test else node.orelse)
            return
        after = self._new_block("after")
        open_ends = [
            self._branch(block, partial(self._block, statements), after)
            for block, statements in zip(self._fork(test), (node.body, node.orelse), strict=True)
        ]
        self._continue_at(after, any(open_ends))

    def _fork(self, test: object) -> tuple[ir.Block, ir.Block]:
        """Two new blocks, for a test that holds and one that does not."""
        yes, no = self._new_block("then"), self._new_block("else")
        self.builder.cbranch(self._condition(test), yes, no)
        return yes, no

    def _branch(self, block: ir.Block, write: Callable[[], None], after: ir.Block) -> bool:
        """Write a block that goes on to ``after``; whether it does so."""
        self.builder.position_at_end(block)
        write()
        goes_on = not self.builder.block.is_terminated
        if goes_on:
            self.builder.branch(after)
        return goes_on

    def _continue_at(self, block: ir.Block, is_reached: bool) -> None:
        self.builder.position_at_end(block)
        if not is_reached:
            self.builder.unreachable()

    def _condition(self, value: Expression) -> Expression:
        return self.write.truth(self.write.scalar(value)).llvm

    # --- loops --------------------------------------------------------------------------------------------------------

    def _do_while(self, node: ast.While) -> None:
        self._no_else(node)
        head, body = self._new_block("head"), self._new_block("loop")
        self.builder.branch(head)
        self.builder.position_at_end(head)
        test = self._value(node.test)
        loop = _Loop(head, self._new_block("after"), ends=isinstance(test, Value) or not test)
        if isinstance(test, Value):
            self.builder.cbranch(self._condition(test), body, loop.after)
        else:
            self.builder.branch(body if test else loop.after)
        self._loop_body(node.body, body, loop)

    def _loop_body(self, statements: Sequence[ast.stmt], body: ir.Block, loop: _Loop) -> None:
        self.loops.append(loop)
        self._branch(body, partial(self._block, statements), loop.next)
        self.loops.pop()
        self._continue_at(loop.after, loop.ends)

    def _no_else(self, node: ast.For | ast.While) -> None:
        if node.orelse:
            raise Refusal("a loop has no else")

    def _do_break(self, node: ast.Break) -> None:
        loop = self._innermost_loop()
        loop.ends = True
        self.builder.branch(loop.after)

    def _do_continue(self, node: ast.Continue) -> None:
        self.builder.branch(self._innermost_loop().next)

    def _innermost_loop(self) -> _Loop:
        loop = self.loops[-1]
        if loop is None:
            raise Refusal("a loop over lanes is left at its end")
        return loop

    def _do_for(self, node: ast.For) -> None:
        self._no_else(node)
        kind = self._static(node.iter.func) if isinstance(node.iter, ast.Call) else None
        if kind in (range, lanes, lanes_once):
            arguments = [self._value(a) for a in node.iter.args]  # type: ignore[attr-defined]
        if kind is range:
            self._counted_loop(node, *_range(arguments))
        elif kind in (lanes, lanes_once):
            if len(arguments) != 2 or not isinstance(node.target, ast.Name):
                raise Refusal(f"a loop over {kind.__name__} has one name, a type and a number of iterations")
            self._vector_loop(node.target.id, node.body, arguments[0], arguments[1], kind.again)
        else:
            self._unrolled_loop(node)

    def _unrolled_loop(self, node: ast.For) -> None:
        """Once for each item of what is known. The names of the items end with the loop."""
        outside = dict(self.names)
        for item in _items(self._value(node.iter)):
            if not self.builder.block.is_terminated:
                self._bind(node.target, item)
                self._block(node.body)
        for name in (part.id for part in ast.walk(node.target) if isinstance(part, ast.Name)):
            self.names.pop(name, None)
        self.names |= outside

    def _bind(self, target: ast.expr, item: Expression) -> None:
        """Names for what is known, or for a tuple of it."""
        if isinstance(target, ast.Tuple):
            for part, each in zip(target.elts, _items(item), strict=True):
                self._bind(part, each)
        elif isinstance(target, ast.Name):
            self.names[target.id] = item
        else:
            self._refuse(target)

    def _counted_loop(self, node: ast.For, start: Expression, stop: Expression, step: Expression) -> None:
        """The count is fixed before the loop, and the counter is the loop's own, as in Python.

        A step that is not known now must be positive.
        """
        counter, limit, by = self._counter(start), self._index(stop), self._index(step)
        sign = by.llvm.constant if isinstance(by.llvm, ir.Constant) else 1
        if sign == 0:
            raise Refusal("a step of 0")
        head, body = self._new_block("head"), self._new_block("loop")
        loop = _Loop(self._new_block("next"), self._new_block("after"), ends=True)
        self.builder.branch(head)
        self.builder.position_at_end(head)
        here = counter.load()
        more = ast.Gt() if sign < 0 else ast.Lt()
        self.builder.cbranch(self.write.test(more, here, limit).llvm, body, loop.after)
        self._branch(loop.next, lambda: counter.store(self.write.add(counter.load(), by)), head)
        self.builder.position_at_end(body)
        self._assign(node.target, here)
        self._loop_body(node.body, body, loop)

    def _counter(self, start: Expression) -> _Slot:
        slot = self._slot(i64)
        slot.store(self._index(start))
        return slot

    def _index(self, value: Expression) -> Value:
        return self.write.convert(self.write.scalar(value), i64)

    # --- vectors ------------------------------------------------------------------------------------------------------

    def _lanes(self, number: Expression) -> int:
        if not isinstance(number, Type) or number.element is not None:
            raise Refusal(f"lanes are of a type of numbers, not {number!r}")
        return max(1, self.module.vector_bytes // number.bytes)

    def _vector_loop(
        self, name: str, statements: Sequence[ast.stmt], number: Expression, n: Expression, again: bool
    ) -> None:
        """Whole vectors, then short ones, then single numbers.

        If iterations may be carried out again, the loop that fits the length goes once more over its last vector, and
        no shorter one is needed.
        """
        widest, length, counter = self._lanes(number), self._index(n), self._counter(0)
        done = self._new_block("done")
        for width in sorted({widest, min(SHORT_VECTOR, max(1, widest // 2)), 1}, reverse=True):
            write = partial(self._lane_body, name, statements, width)
            head = self._vectors(width, counter, length, write)
            if again and width > 1:
                self._last_vector(width, counter, length, head, done)
        self.builder.branch(done)
        self.builder.position_at_end(done)

    def _vectors(self, width: int, counter: _Slot, length: Value, write: Callable[[Value], None]) -> ir.Block:
        """``write(at)`` for ``at`` = the counter and every ``width`` on, as long as whole vectors fit.

        The result is the block that decides whether one more fits.
        """
        head, body, after = (self._new_block(name) for name in ("head", "vector", "after"))
        self.builder.branch(head)
        self.builder.position_at_end(head)
        here = counter.load()
        end = self.write.add(here, width)
        self.builder.cbranch(self.write.test(ast.LtE(), end, length).llvm, body, after)
        self.builder.position_at_end(body)
        write(here)
        counter.store(end)
        self.builder.branch(head)
        self.builder.position_at_end(after)
        return head

    def _last_vector(self, width: int, counter: _Slot, length: Value, head: ir.Block, done: ir.Block) -> None:
        """Behind ``_vectors``: back to the last vector, unless all is done or there is not even one."""
        rest, back, shorter = (self._new_block(name) for name in ("rest", "back", "shorter"))
        self.builder.cbranch(self.write.test(ast.Lt(), counter.load(), length).llvm, rest, done)
        self.builder.position_at_end(rest)
        self.builder.cbranch(self.write.test(ast.GtE(), length, width).llvm, back, shorter)
        self.builder.position_at_end(back)
        counter.store(self.write.add(length, -width))
        self.builder.branch(head)
        self.builder.position_at_end(shorter)

    def _lane_body(self, name: str, statements: Sequence[ast.stmt], width: int, at: Value) -> None:
        """The names that the body makes are its own: they have other types for other widths."""
        names, slots = dict(self.names), dict(self.slots)
        self.names[name] = Affine(at, 1, width) if width > 1 else at
        self.loops.append(None)
        self._block(statements)
        self.loops.pop()
        self.names, self.slots = names, slots

    def _total(self, combine: Expression, neutral: Expression, p: Expression, at: Expression, n: Expression) -> Value:
        """Several vectors side by side, then one, then their lanes, then what is left over."""
        number = self.write.typed(neutral).type
        width = self._lanes(number)
        kind, counter, length = number.of(width), self._counter(0), self._index(n)
        sums = [self._slot(kind) for _ in range(SIDE_BY_SIDE)]
        for part in sums:
            part.store(self.write.convert(neutral, kind))

        def add_vectors(parts: Sequence[_Slot], here: Value) -> None:
            for i, part in enumerate(parts):
                place = self.write.add(self._index(at), self.write.add(here, i * width))
                part.store(self._combine(combine, part.load(), self.write.get(p, Affine(place, 1, width))))

        self._vectors(SIDE_BY_SIDE * width, counter, length, lambda here: add_vectors(sums, here))
        self._vectors(width, counter, length, lambda here: add_vectors(sums[:1], here))
        result, vector = self._slot(number), self._fold(combine, [part.load() for part in sums])
        while vector.type.lanes > 1:
            vector = self._combine(combine, *self.write.halves(vector))
        result.store(vector)

        def add_number(here: Value) -> None:
            value = self.write.get(p, self.write.add(self._index(at), here))
            result.store(self._combine(combine, result.load(), value))

        self._vectors(1, counter, length, add_number)
        return result.load()

    def _first(self, test: Expression, value: Expression, p: Expression, at: Expression, n: Expression) -> Value:
        """Several vectors side by side, then one, then numbers: each of these loops stops before what holds it."""
        widest, counter, length = self._lanes(element_of(p)), self._counter(0), self._index(n)

        def holds(here: Value, width: int) -> Value:
            place = self._index(self.write.add(at, here))
            cells = self.write.get(p, Affine(place, 1, width) if width > 1 else place)
            return self.write.truth(self._apply(test, [cells, value]))

        def look(vectors: int, width: int, found: ir.Block, here: Value) -> None:
            each = [holds(self.write.add(here, i * width), width) for i in range(vectors)]
            more = self._new_block("more")
            self.builder.cbranch(self.write.any_of(each).llvm, found, more)
            self.builder.position_at_end(more)

        for vectors, width in ((SIDE_BY_SIDE, widest), (1, widest), (1, 1)):
            found = self._new_block("found")
            self._vectors(vectors * width, counter, length, partial(look, vectors, width, found))
            self.builder.branch(found)
            self.builder.position_at_end(found)
        return counter.load()

    def _combine(self, function: Expression, a: Value, b: Value) -> Value:
        return self.write.typed(self._apply(function, [a, b]))

    def _fold(self, combine: Expression, values: list[Value]) -> Value:
        """Halves with halves, as far as one."""
        while len(values) > 1:
            half = len(values) // 2
            values = [self._combine(combine, a, b) for a, b in zip(values[:half], values[half:], strict=True)]
        return values[0]

    # --- expressions --------------------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> Expression:
        try:
            return getattr(self, f"_of_{type(node).__name__.lower()}", self._refuse)(node)
        except Refusal as refusal:
            raise self._error(node, refusal) from None

    def _static(self, node: ast.expr) -> Expression:
        return self._require_known(self._value(node), node)

    def _require_known(self, value: Expression, node: ast.expr) -> Expression:
        if isinstance(value, Value | Affine):
            raise Refusal(f"`{ast.unparse(node)}` is not known before the kernel runs")
        return value

    def _of_constant(self, node: ast.Constant) -> Expression:
        return node.value

    def _of_name(self, node: ast.Name) -> Expression:
        name = node.id
        if name in self.names:
            return self.names[name]
        if name in self.slots:
            return _map_leaves(_load, self.slots[name])
        if name in self.code.co_freevars:
            return (self.function.__closure__ or ())[self.code.co_freevars.index(name)].cell_contents
        if name in self.code.co_varnames:
            raise Refusal("nothing was assigned to this name yet")
        if name in self.function.__globals__:
            return self.function.__globals__[name]
        if hasattr(builtins, name):
            return getattr(builtins, name)
        raise Refusal("nobody knows this name")

    def _of_attribute(self, node: ast.Attribute) -> Expression:
        """A field of a record that a pointer points to, or an attribute of something known."""
        slots = self._slots_of(node)
        if slots is not None:
            return _map_leaves(_load, slots)
        value = self._value(node.value)
        return self.write.field(value, node.attr) if isinstance(value, Value) else getattr(value, node.attr)

    def _of_tuple(self, node: ast.Tuple) -> Expression:
        return tuple(self._value(item) for item in node.elts)

    def _of_subscript(self, node: ast.Subscript) -> Expression:
        slots = self._slots_of(node)
        if slots is not None:
            return _map_leaves(_load, slots)
        p, at = self._value(node.value), self._value(node.slice)
        if isinstance(p, Value):
            return self.write.get(p, at)
        return self.write.entry(p, at) if isinstance(p, Entries) else _item(p, self._require_known(at, node.slice))

    def _slots_of(self, node: ast.expr) -> Expression:
        """Where a part of a tuple that changes lies, so that no other part is read; None for anything else."""
        if isinstance(node, ast.Name):
            return self.slots.get(node.id) if node.id not in self.names else None
        if isinstance(node, ast.Attribute | ast.Subscript):
            slots = self._slots_of(node.value)
            if isinstance(slots, tuple):
                if isinstance(node, ast.Attribute):
                    return getattr(slots, node.attr)
                return _item(slots, self._static(node.slice))
        return None

    def _of_generatorexp(self, node: ast.GeneratorExp) -> Iterator[Expression]:
        """Something for each item of what is known: ``tuple(f(i) for i in rows)`` is written out."""
        (loop,) = node.generators
        if loop.ifs:
            raise Refusal("what is written out has no conditions")
        outside = dict(self.names)
        for item in _items(self._static(loop.iter)):
            self._bind(loop.target, item)
            yield self._value(node.elt)
        self.names = outside

    def _of_binop(self, node: ast.BinOp) -> Expression:
        return self.write.binary(node.op, self._value(node.left), self._value(node.right))

    def _of_unaryop(self, node: ast.UnaryOp) -> Expression:
        value = self._value(node.operand)
        if isinstance(node.op, ast.Not):
            return self.write.invert(value)
        if isinstance(node.op, ast.USub):
            return self.write.negate(value)
        return self._refuse(node.op)

    def _of_compare(self, node: ast.Compare) -> Expression:
        """Of a chain, ``a <= b < c``, all sides are computed."""
        sides = [self._value(side) for side in (node.left, *node.comparators)]
        found = [self.write.compare(op, a, b) for op, a, b in zip(node.ops, sides, sides[1:], strict=False)]
        return reduce(partial(self.write.binary, ast.BitAnd()), found)

    def _of_boolop(self, node: ast.BoolOp) -> Expression:
        """From left to right, as far as needed: what comes later may be meaningless."""
        stops_at = isinstance(node.op, ast.Or)
        test = self._value(node.values[0])
        for operand in node.values[1:]:
            if isinstance(test, Value):
                test = self._also(test, operand, stops_at)
            elif bool(test) != stops_at:
                test = self._value(operand)
        return test

    def _also(self, test: Value, operand: ast.expr, stops_at: bool) -> Value:
        result = self._slot(boolean)
        first = self._condition(test)
        self.builder.store(first, result.place)
        more, after = self._new_block("more"), self._new_block("after")
        self.builder.cbranch(first, *((after, more) if stops_at else (more, after)))
        self.builder.position_at_end(more)
        self.builder.store(self._condition(self._value(operand)), result.place)
        self.builder.branch(after)
        self.builder.position_at_end(after)
        return result.load()

    def _of_ifexp(self, node: ast.IfExp) -> Expression:
        test = self._value(node.test)
        if not isinstance(test, Value):
            return self._value(node.body if test else node.orelse)
        if test.type.lanes > 1:
            return self._select(test, self._value(node.body), self._value(node.orelse))
        ends = []
        for block, expression in zip(self._fork(test), (node.body, node.orelse), strict=True):
            self.builder.position_at_end(block)
            ends.append((self._value(expression), self.builder.block))
        return self._join(ends)

    def _join(self, ends: list[tuple[Expression, ir.Block]]) -> Expression:
        """The value of whichever of two blocks was gone through."""
        result = _map_pairs(lambda a, b: self._slot(self.write.common_type(a, b)), ends[0][0], ends[1][0])
        after = self._new_block("after")
        for value, block in ends:
            self.builder.position_at_end(block)
            self._store(result, value)
            self.builder.branch(after)
        self.builder.position_at_end(after)
        return _map_leaves(_load, result)

    def _select(self, test: Expression, left: Expression, right: Expression) -> Expression:
        return _map_pairs(partial(self.write.select, test), left, right)

    # --- calls --------------------------------------------------------------------------------------------------------

    def _of_call(self, node: ast.Call) -> Expression:
        if any(isinstance(a, ast.Starred) for a in node.args) or any(k.arg is None for k in node.keywords):
            raise Refusal("arguments are given one by one and by position")
        function = self._static(node.func)
        if function is place_of:
            return self._place(*node.args)
        args = [self._value(a) for a in node.args]
        named = {str(k.arg): self._value(k.value) for k in node.keywords}
        if named and isinstance(function, FunctionType | MethodType) and not hasattr(function, "at_build"):
            args, named = self._in_order(function, args, named), {}
        if callable(function) and _is_called_at_build(function):
            return function(*args, **named)
        if named:
            raise Refusal("arguments are given one by one and by position")
        return self._apply(function, args)

    def _apply(self, function: Expression, args: list[Expression]) -> Expression:
        if isinstance(function, Type):
            return self._conversion(function, *args)
        if isinstance(function, ExactIntrinsic):
            return function.emit(self.builder, *map(self.write.typed, args))
        if isinstance(function, Intrinsic):
            values = [self.write.typed(a) for a in args]
            width = max((value.type.lanes for value in values), default=1)
            return function.emit(self.builder, *[self.write.convert(value, value.type.of(width)) for value in values])
        if not callable(function) or function not in self._words:
            return self._call(function, args)
        word, arity = self._words[function]
        if len(args) != arity:
            raise Refusal(f"{getattr(function, '__name__', function)} takes {arity} arguments here, not {len(args)}")
        return word(*args)

    def _place(self, node: ast.expr) -> Value:
        if isinstance(node, ast.Attribute):
            return self.write.field_place(self.write.typed(self._value(node.value)), node.attr)
        entries = self._value(node.value) if isinstance(node, ast.Subscript) else None
        if not isinstance(entries, Entries):
            raise Refusal("place_of takes a field of a record, or one of its entries")
        return self.write.entry_place(entries, self._value(node.slice))  # type: ignore[attr-defined]

    def _in_order(
        self, function: FunctionType | MethodType, args: list[Expression], named: dict[str, Expression]
    ) -> list[Expression]:
        """Arguments by position, of which the last ones were given by name."""
        plain = function.__func__ if isinstance(function, MethodType) else function
        names = [argument.arg for argument in _definition(cast(FunctionType, plain)).args.args]
        rest = names[len(args) + (plain is not function) :]
        if set(rest) != set(named):
            raise Refusal(f"{function.__name__} also takes {', '.join(rest) or 'nothing'}, not {', '.join(named)}")
        return [*args, *(named[name] for name in rest)]

    @cached_property
    def _words(self) -> dict[Callable[..., object], tuple[Callable[..., Expression], int]]:
        """What is translated where it is called, and how many arguments it takes."""
        write = self.write
        return {
            strided: (write.strided, 3),
            put_strided: (write.put_strided, 3),
            following: (write.following, 4),
            preceding: (write.preceding, 4),
            stretch: (write.stretch, 3),
            parts: (write.parts, 2),
            beyond: (write.beyond, 2),
            moved_on: (write.moved_on, 2),
            choose: (self._select, 3),
            total: (self._total, 5),
            first: (self._first, 5),
            operator.neg: (write.negate, 1),
            operator.add: (partial(write.binary, ast.Add()), 2),
            operator.sub: (partial(write.binary, ast.Sub()), 2),
            operator.mul: (partial(write.binary, ast.Mult()), 2),
            operator.truediv: (partial(write.binary, ast.Div()), 2),
            number_of: (lambda value: self.write.typed(value).type.of(1), 1),
            len: (lambda value: value.count if isinstance(value, Entries) else len(cast(Sized, value)), 1),
            min: (partial(write.extreme, ast.Lt()), 2),
            max: (partial(write.extreme, ast.Gt()), 2),
        }

    def _conversion(self, kind: Type, value: Expression) -> Value:
        if kind.element is not None:
            return Value(kind, self.builder.inttoptr(self._index(value).llvm, kind.llvm))
        return (
            self.write.convert(value, kind.of(value.type.lanes))
            if isinstance(value, Value)
            else kind(cast(float, value))
        )

    def _call(self, function: Expression, args: Sequence[Expression]) -> Expression:
        if isinstance(function, MethodType):
            args, function = [function.__self__, *args], function.__func__
        if not isinstance(function, FunctionType):
            raise Refusal(f"{function!r} is no function of kernels")
        given = [_map_leaves(self._number, a) for a in args]
        callee = self.module.translation_of(function, tuple(_map_leaves(_type_passed, a) for a in given))
        callee.calls += 1
        callee.recursive |= not callee.finished
        values = [leaf.llvm for a in given for leaf in _leaves(a) if isinstance(leaf, Value | Affine)]
        called = self.builder.call(callee.body, values)
        is_one, numbers = not isinstance(callee.body.ftype.return_type, ir.LiteralStructType), count()

        def result(leaf: Expression) -> Expression:
            if not isinstance(leaf, _Passed):
                return leaf
            return Value(leaf.passed, called if is_one else self.builder.extract_value(called, next(numbers)))

        return _map_leaves(result, callee.result)


# --- tuples -----------------------------------------------------------------------------------------------------------


def _leaves(value: Expression) -> Iterator[Expression]:
    """What a tuple, of tuples perhaps, holds; anything else alone, and nothing for None."""
    if isinstance(value, tuple):
        for part in value:
            yield from _leaves(part)
    elif value is not None:
        yield value


def _with_kinds(value: Expression) -> Expression:
    """Tuples of different kinds are equal if what they hold is; with their kinds they are not."""
    return (type(value), *map(_with_kinds, value)) if isinstance(value, tuple) else value


def _map_leaves(change: Callable[[Expression], Expression], value: Expression) -> Expression:
    """A tuple of the same kind with its leaves changed."""
    if not isinstance(value, tuple):
        return None if value is None else change(value)
    parts = [_map_leaves(change, part) for part in value]
    return _tuple_like(value, parts)


def _tuple_like(value: tuple[Expression, ...], parts: Iterable[Expression]) -> Expression:
    return value._make(parts) if hasattr(value, "_make") else tuple(parts)


def _map_pairs(
    change: Callable[[Expression, Expression], Expression], left: Expression, right: Expression
) -> Expression:
    """The same for two tuples of one kind, leaf by leaf."""
    if not isinstance(left, tuple):
        return change(left, right)
    if not isinstance(right, tuple) or len(left) != len(right):
        raise Refusal("there are two values of different kinds")
    parts = [_map_pairs(change, a, b) for a, b in zip(left, right, strict=True)]
    return _tuple_like(left, parts)


@dataclass(frozen=True)
class _Passed:
    """The type of an argument that is computed, unlike one that is known and stands for itself."""

    passed: Type

    @property
    def llvm(self) -> ir.Type:
        return self.passed.llvm


def _type_passed(leaf: Expression) -> Expression:
    if isinstance(leaf, Value):
        return _Passed(leaf.type)
    return leaf.type if isinstance(leaf, Affine) else leaf


def _without_numbers(leaf: Expression) -> Expression:
    """What all paths of a function return alike: not numbers, but what is known."""
    return 0 if isinstance(leaf, _Passed) or _is_number(leaf) else leaf


def _is_number(leaf: Expression) -> bool:
    return isinstance(leaf, Value | Affine | bool | int | float)


def _is_called_at_build(function: Expression) -> bool:
    """What makes a tuple or a dataclass, and what is marked, is called while a kernel is built."""
    makes_object = isinstance(function, type) and (issubclass(function, tuple) or is_dataclass(function))
    return makes_object or function in (range, zip, enumerate, reversed) or hasattr(function, "at_build")


def _load(slot: Expression) -> Expression:
    return slot.load() if isinstance(slot, _Slot) else slot


def _item(items: Expression, key: Expression) -> Expression:
    return items[key]  # type: ignore[index]  # what is known is ordinary Python


def _items(value: Expression) -> Iterable[Expression]:
    if not isinstance(value, Iterable):
        raise Refusal("loops are over range, lanes or lanes_once, or over something known")
    return value


class _Loop:
    """Where ``continue`` and ``break`` go, and whether anything leaves the loop."""

    def __init__(self, next: ir.Block, after: ir.Block, ends: bool) -> None:
        self.next, self.after, self.ends = next, after, ends


class _Slot:
    """Memory of the function for one value."""

    def __init__(self, kind: Type, place: ir.Value, builder: ir.IRBuilder) -> None:
        self.kind, self.place, self.builder = kind, place, builder

    def load(self) -> Value:
        return Value(self.kind, self.builder.load(self.place, typ=self.kind.llvm))

    def store(self, value: Value) -> None:
        self.builder.store(value.llvm, self.place)


def _range(arguments: Sequence[Expression]) -> tuple[Expression, Expression, Expression]:
    """Start, stop and step."""
    if len(arguments) == 1:
        return 0, arguments[0], 1
    if len(arguments) == 2:
        return arguments[0], arguments[1], 1
    if len(arguments) == 3:
        return arguments[0], arguments[1], arguments[2]
    raise Refusal("range takes one to three arguments")


# --- kernels ----------------------------------------------------------------------------------------------------------


def kernel_code(function: Callable[..., object], arguments: Type | type, *known: Expression) -> str:
    """LLVM's intermediate code of a kernel, whose entry is called ``kernel``.

    It is ``function(*known, args, lo, hi, workspace)``: what is known when it is built, a pointer to ``arguments``, a
    record or words, the units of work, and memory.
    """
    module = Module(processor().loop_bytes)
    module.entry("kernel", cast(FunctionType, function), (*known, pointer(arguments), *KERNEL_ARGUMENTS))
    return str(module)
