"""Derivatives of functions: of arrays, or, while another function is traced, of its variables.

Each call traces its function anew, so arrays that the function captures are read as they are at that moment.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from operator import index
from typing import Any, TypeVar

import numpy as np

from gradspec.graph import tree
from gradspec.graph.arrays import as_array, call_on_foreign, foreign_array
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Operand, Var
from gradspec.graph.types import TensorType, type_of
from gradspec.ops.layout import unstack_first, unstack_last
from gradspec.ops.scan import scanned
from gradspec.spec.errors import DTypeError, ShapeError
from gradspec.spec.window import whole_number
from gradspec.transforms.copy import inline
from gradspec.transforms.jvp import jvp as graph_jvp
from gradspec.transforms.trace import Traced, trace_within
from gradspec.transforms.vjp import vjp as graph_vjp

Function = Callable[..., Any]
Tree = TypeVar("Tree")
"""An array, or a tree of arrays."""


def jvp(function: Function, primals: Sequence[object], tangents: Sequence[object]) -> tuple[Any, Any]:
    """``(result, its tangent)``: the derivative of ``function`` at ``primals`` along ``tangents``.

    Primals and tangents are sequences of arguments, each an array or a tree of arrays. Integers have no tangent: pass
    None for them.

    >>> jvp(lambda x: x * x, (np.array([3.0]),), (np.array([1.0]),))
    (array([9.]), array([6.]))
    """
    arguments, directions = _as_tuple("primals", primals), _as_tuple("tangents", tangents)
    return call_on_foreign(partial(_jvp, function), None, arguments, directions)  # type: ignore[no-any-return]


def _jvp(function: Function, arguments: tuple[object, ...], directions: tuple[object, ...]) -> tuple[Any, Any]:
    traced = _trace_on(function, arguments)
    values = _values(arguments)
    moving = [
        _tangent(v, t)
        for v, t in zip(values, tree.aligned(arguments, directions, "tangents"), strict=True)
        if _is_float(v)
    ]
    forward = graph_jvp(traced.graph, _floats(traced, len(values)))
    results = iter(_run(forward, [*values, *traced.captured, *moving]))
    result = tree.rebuild(traced.result, results)
    return result, tree.map_leaves(lambda v: next(results) if v.type.is_float else None, traced.result)


def vjp(function: Function, *primals: object) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    """``(result, pullback)``; ``pullback(cotangent)`` returns one cotangent per primal (None for integers).

    >>> result, pullback = vjp(lambda x, y: x * y, np.array([3.0]), np.array([4.0]))
    >>> pullback(np.array([1.0]))
    (array([4.]), array([3.]))
    """
    like = foreign_array(tree.leaves(primals))
    result, pullback = call_on_foreign(partial(_vjp, function), like, *primals)
    return result, partial(call_on_foreign, pullback, like)


def _vjp(function: Function, *primals: object) -> tuple[Any, Callable[[Any], tuple[Any, ...]]]:
    traced = _trace_on(function, primals)
    values = [v if isinstance(v, Var) else v.copy() for v in _values(primals)]  # the caller may change them meanwhile
    reverse = graph_vjp(traced.graph, _floats(traced, len(values)))
    result = tree.rebuild(traced.result, iter(_run(traced.graph, [*values, *traced.captured])))

    def pullback(cotangent: object) -> tuple[Any, ...]:
        parts = tree.aligned(result, cotangent, "the cotangent")
        seeds = [_tangent(v, c) for v, c in zip(tree.leaves(result), parts, strict=True) if _is_float(v)]
        outputs = _run(reverse, [*values, *traced.captured, *seeds])
        found = iter(outputs[len(traced.graph.outputs) :])
        return tuple(tree.map_leaves(lambda v: next(found) if _is_float(v) else None, p) for p in primals)

    return result, pullback


def value_and_grad(function: Function, argnums: int | Sequence[int] = 0) -> Callable[..., tuple[Any, Any]]:
    """A function that returns ``(value, gradient)`` of a scalar ``function`` with respect to the arguments ``argnums``.

    >>> value, gradient = value_and_grad(lambda x: gs.sum(x * x))(np.array([1.0, 2.0]))
    >>> float(value), gradient.tolist()
    (5.0, [2.0, 4.0])
    """
    chosen = [index(c) for c in (argnums if isinstance(argnums, Sequence) else [argnums])]

    def with_gradient(*args: object) -> tuple[Any, Any]:
        _require_arguments(chosen, args)
        traced, values = _trace_on(function, args), _values(args)
        positions = _positions(args, chosen)
        _require_scalar(traced)
        outputs = _run(
            graph_vjp(traced.graph, positions),
            [*values, *traced.captured, np.ones((), traced.result.dtype.numpy)],
        )
        found = iter(outputs[1:])
        gradients = {i: tree.rebuild(args[i], found) for i in sorted({c % len(args) for c in chosen})}
        ordered = tuple(gradients[c % len(args)] for c in chosen)
        return outputs[0], ordered if isinstance(argnums, Sequence) else ordered[0]

    return _of_trees(with_gradient, function)


def grad(function: Function, argnums: int | Sequence[int] = 0) -> Function:
    """The gradient of a scalar function with respect to the arguments ``argnums``.

    >>> grad(lambda x: gs.sum(x * x))(np.array([1.0, 2.0]))
    array([2., 4.])
    """
    both = value_and_grad(function, argnums)

    @wraps(function)
    def gradient(*args: object) -> Any:
        return both(*args)[1]

    return gradient


def hvp(function: Function, x: Tree, v: Tree) -> Tree:
    """The Hessian of a scalar function at ``x``, times ``v``: forward over reverse.

    >>> hvp(lambda x: gs.sum(x * x * x), np.array([1.0, 2.0]), np.array([1.0, 1.0]))
    array([ 6., 12.])
    """
    product: Tree = jvp(grad(function), (x,), (v,))[1]
    return product


def jacobian(function: Function, mode: str = "forward") -> Function:
    """The Jacobian of a function of one argument: ``result.shape + argument.shape``, column by column or row by row.

    If the result is a tree, so is the Jacobian; if the argument is one, every leaf of the Jacobian is again a tree.
    Pairs that involve an integer have None.

    >>> jacobian(lambda x: x * x)(np.array([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]])
    """
    if mode not in ("forward", "reverse"):
        raise ValueError(f'mode={mode!r} is not known; use "forward" (columns) or "reverse" (rows)')

    def of(x: object) -> Any:
        traced, values = _trace_on(function, (x,)), _values((x,))
        if not any(v.type.is_float for v in traced.graph.outputs):
            raise TypeError(f"the result is {traced.result!r}: integers have no derivative; return floats")
        blocks = (_columns if mode == "forward" else _rows)(traced, values)
        sources, results = range(len(values)), range(len(traced.graph.outputs))
        rows = [tree.rebuild(x, iter([blocks.get((j, i)) for i in sources])) for j in results]
        return tree.rebuild(traced.result, iter(rows))

    return _of_trees(of, function)


Blocks = dict[tuple[int, int], Var]
"""The Jacobian of each result in each argument, by their places."""


def _columns(traced: Traced, values: Sequence[Operand]) -> Blocks:
    """One tangent for each cell of an argument: JVPs, batched."""
    graph, given, blocks = traced.graph, [*values, *traced.captured], {}
    floats = [j for j, v in enumerate(graph.outputs) if v.type.is_float]
    for i in _floats(traced, len(values)):
        basis = _basis(graph.inputs[i].type)
        derived = graph_jvp(graph, [i]).batch(len(basis), [*[None] * len(given), 0])
        found = _run(derived, [*given, basis])[len(graph.outputs) :]
        for j, tangents in zip(floats, found, strict=True):
            blocks[j, i] = unstack_last(tangents, graph.inputs[i].shape)
    return blocks


def _rows(traced: Traced, values: Sequence[Operand]) -> Blocks:
    """One cotangent for each cell of a result: VJPs, batched."""
    graph, given, blocks = traced.graph, [*values, *traced.captured], {}
    floats, sources = [j for j, v in enumerate(graph.outputs) if v.type.is_float], _floats(traced, len(values))
    derived = graph_vjp(graph, sources)
    for j in floats:
        basis = _basis(graph.outputs[j].type)
        axes = [*[None] * len(given), *(0 if k == j else None for k in floats)]
        seeds = [basis if k == j else _zeros(graph.outputs[k].type) for k in floats]
        found = _run(derived.batch(len(basis), axes), [*given, *seeds])[len(graph.outputs) :]
        for i, cotangents in zip(sources, found, strict=True):
            blocks[j, i] = unstack_first(cotangents, graph.outputs[j].shape)
    return blocks


def _basis(type: TensorType) -> Array:
    """The arrays of one 1 and zeros."""
    return np.eye(type.size, dtype=type.dtype.numpy).reshape(type.size, *type.shape)


def _zeros(type: TensorType) -> Array:
    return np.zeros(type.shape, type.dtype.numpy)


def _of_trees(derived: Function, function: Function) -> Function:
    """What is derived of a function, on trees of arrays of any kind."""
    return wraps(function)(partial(call_on_foreign, derived, None))


# --- recurrences ------------------------------------------------------------------------------------------------------


def scan(function: Function, init: Tree, xs: Any = None, *, length: int | None = None, reverse: bool = False) -> Any:
    """``(carry, ys)``: ``function(carry, x) → (carry, y)`` for each place of the leading axis of ``xs``, in turn.

    The first carry is ``init``, and each ``y`` is a row of ``ys``; with ``reverse`` the last place comes first.
    Carries, ``x`` and ``y`` are arrays, trees of arrays, or None. Without ``xs`` give the ``length``.

    >>> scan(lambda total, x: (total + x, total * x), np.float32(1), np.float32([2, 3]))
    (array(6., dtype=float32), array([2., 9.], dtype=float32))
    """
    return call_on_foreign(partial(_scan, function, length, reverse), None, init, xs)


def scan_variables(
    step: Function, carries: Sequence[Var], columns: Sequence[Var], length: int, reverse: bool = False
) -> list[Var]:
    """The last carries and the columns that ``step(*carries, *cells) → (*carries, *cells)`` gives, flat."""
    traced = trace_within(step, (*(v.type for v in carries), *(_cell(v.type) for v in columns)))
    return scanned(traced.graph, carries, columns, traced.captured, length, reverse)


def _scan(function: Function, length: int | None, reverse: bool, init: Any, xs: Any) -> Any:
    carries, columns = _values((init,)), _values((xs,))
    cells = iter([_cell(_type(x)) for x in columns])
    n = _one_length([_type(x).shape[0] for x in columns], length)
    types = (tree.map_leaves(lambda v: _type(v if isinstance(v, Var) else as_array(v)), init), tree.rebuild(xs, cells))
    traced = trace_within(function, types)
    if not isinstance(traced.result, tuple) or len(traced.result) != 2:
        raise TypeError("the function of a scan returns a pair of the next carry and of what the step gives, or None")
    tree.aligned(init, traced.result[0], "the carry that the function returns")
    tree.aligned(traced.result[0], init, "the first carry")
    builder = Builder()
    inputs = [builder.input(_type(v)) for v in (*carries, *columns, *traced.captured)]
    first, last = len(carries), len(carries) + len(columns)
    found = scanned(traced.graph, inputs[:first], inputs[first:last], inputs[last:], n, reverse)
    graph = builder.build(found, allow_unused=True)
    return tree.rebuild(traced.result, iter(_run(graph, [*carries, *columns, *traced.captured])))


def _cell(column: TensorType) -> TensorType:
    if not column.shape:
        raise ShapeError(f"a scan goes over the leading axis of its arrays, and {column} has none")
    return TensorType(column.dtype, column.shape[1:])


def _one_length(sizes: Sequence[int], length: int | None) -> int:
    found = {*sizes, *([] if length is None else [whole_number("the length of a scan", length, least=0)])}
    if len(found) != 1:
        raise ShapeError(f"a scan goes over leading axes of one size, which xs or length says, not {sorted(found)}")
    (n,) = found
    return n


# --- arguments -------------------------------------------------------------------------------------------------------


def _values(arguments: Iterable[object]) -> list[Var | Array]:
    """The leaves: variables as they are, everything else as arrays."""
    return [v if isinstance(v, Var) else as_array(v) for v in tree.leaves(tuple(arguments))]


def _type(value: Var | Array) -> TensorType:
    return value.type if isinstance(value, Var) else type_of(value)


def _is_float(value: Operand) -> bool:
    return _type(value if isinstance(value, Var) else as_array(value)).is_float


def _trace_on(function: Function, arguments: Sequence[object]) -> Traced:
    types = tree.map_leaves(lambda v: _type(v if isinstance(v, Var) else as_array(v)), tuple(arguments))
    return trace_within(function, types)


def _floats(traced: Traced, count: int) -> list[int]:
    found = [i for i, v in enumerate(traced.graph.inputs[:count]) if v.type.is_float]
    if not found:
        raise TypeError("every argument is an integer, and integers have no derivative; pass floating-point arrays")
    return found


def _require_scalar(traced: Traced) -> None:
    result = traced.result
    if not isinstance(result, Var) or result.shape != () or not result.type.is_float:
        types = [v.type for v in traced.graph.outputs]
        raise ShapeError(
            f"grad needs a function with one scalar floating-point result, not {types}; sum it, or use jacobian"
        )


def _positions(args: Sequence[object], chosen: Sequence[int]) -> list[int]:
    """The inputs of the graph that the chosen arguments' leaves are."""
    wanted, positions, start = {c % len(args) for c in chosen}, [], 0
    for i, argument in enumerate(args):
        values = tree.leaves(argument)
        if i in wanted:
            for j, value in enumerate(values):
                if not _is_float(value):
                    raise TypeError(f"argument {i} holds integers, which have no gradient; pass floats such as 2.0")
                positions.append(start + j)
        start += len(values)
    return positions


def _require_arguments(chosen: Sequence[int], args: Sequence[object]) -> None:
    for c in chosen:
        if not -len(args) <= c < len(args):
            raise TypeError(f"argnums={c} names no argument of a call with {len(args)}; use 0 to {len(args) - 1}")


def _as_tuple(name: str, arguments: object) -> tuple[object, ...]:
    if not isinstance(arguments, list | tuple):
        raise TypeError(
            f"{name} must be a tuple with one entry per argument of the function, not {type(arguments).__name__}"
        )
    return tuple(arguments)


def _tangent(value: Operand, tangent: Operand | None) -> Var | Array:
    """A tangent or cotangent in the type of its value; None is zero."""
    t = _type(value if isinstance(value, Var) else as_array(value))
    if isinstance(tangent, Var):
        _require_type(tangent, t)
        return tangent
    array = _zeros(t) if tangent is None else as_array(tangent).astype(t.dtype.numpy, copy=False)
    if array.shape != t.shape:
        raise ShapeError(f"a tangent or cotangent has shape {array.shape}; it belongs to {t} and needs that shape")
    return array


def _require_type(tangent: Var, type: TensorType) -> None:
    if tangent.type != type:
        error = ShapeError if tangent.shape != type.shape else DTypeError
        raise error(f"{tangent!r} was given as a tangent or cotangent; it belongs to {type} and needs that type")


def _run(graph: Graph, arguments: Sequence[Operand]) -> tuple[Var, ...]:
    """Run on arrays, or add to the graph being traced if an argument is a variable."""
    if any(isinstance(a, Var) for a in arguments):
        return inline(graph, arguments)
    results = graph(*arguments)
    return results if isinstance(results, tuple) else (results,)
