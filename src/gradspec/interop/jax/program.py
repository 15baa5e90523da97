"""Graphs run by JAX, node by node. Here is how derivatives come about, for every operator alike.

An operator that is linear is lowered to linear operations, and JAX differentiates and transposes these. Any other has a
``custom_jvp`` whose rule is the graph of its own JVP, run by this same interpreter: what it is made of has derivatives
again, to any order. Reverse mode is JAX's transposition of that rule, which is linear in the tangents. A tangent that
is zero is passed on as such and never computed with, as in ``gradspec.transforms.jvp``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from gradspec.graph.arrays import native
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Attributes, Node, Op, Var
from gradspec.graph.lru import LRUCache
from gradspec.graph.show import distinct
from gradspec.graph.types import STORED, TensorType, bf16, f16, f64, i64, number_as
from gradspec.interop.jax import jax_dtype
from gradspec.interop.jax.lower import CHOOSING, LOWERINGS
from gradspec.runtime.compiled import require_count
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.transforms.copy import expand
from gradspec.transforms.jvp import push_forward

Types = tuple[TensorType, ...]
Made = TypeVar("Made")

MOST_REMEMBERED = 4096


def _once(make: Callable[..., Made]) -> Callable[..., Made]:
    """Make it once for each operator with its attributes as they are written: 0.0 equals −0.0, and is not the same."""
    known = LRUCache[Made](MOST_REMEMBERED)

    @wraps(make)
    def made(op: Op, attrs: Attributes, *others: Any) -> Made:
        return known.get_or_make((op, repr(attrs), *others), lambda: make(op, attrs, *others))

    return made


def evaluate(graph: Graph, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """The outputs of a graph on arrays of its types."""
    known: dict[Any, Any] = dict(zip(graph.inputs, arrays, strict=True))
    known |= {v: jnp.broadcast_to(jnp.asarray(distinct(array)), array.shape) for v, array in graph.constants.items()}
    for node in graph.nodes:
        types = tuple(v.type for v in node.inputs)
        results = _function(node.op, node.attrs, types)(*(known[v] for v in node.inputs))
        known.update(zip(node.outputs, results, strict=True))
    return tuple(known[v] for v in graph.outputs)


@_once
def _function(op: Op, attrs: Attributes, types: Types) -> Callable[..., tuple[Array, ...]]:
    """One operator as a function of arrays, with its derivatives."""
    lowered = _lowered(op, attrs, types)
    if op.constant:
        return lambda *arrays: lowered(*map(jax.lax.stop_gradient, arrays))
    if op.linear or not any(t.is_float for t in types):
        return lowered
    function = jax.custom_jvp(lowered)

    def jvp(primals: Sequence[Array], tangents: Sequence[Any]) -> tuple[tuple[Array, ...], tuple[Any, ...]]:
        moving = [None if type(t) is SymbolicZero else t for t in tangents]
        rule, moved = _rule(op, attrs, types, tuple(t is not None for t in moving))
        results = evaluate(rule, [*primals, *(t for t in moving if t is not None)])
        outputs, pushed = results[: len(moved)], iter(results[len(moved) :])
        return outputs, tuple(next(pushed) if m else _no_tangent(y) for y, m in zip(outputs, moved, strict=True))

    function.defjvp(jvp, symbolic_zeros=True)
    return function


def _no_tangent(y: Array) -> Any:
    """Zero, as JAX writes the tangent of what does not change; integers have no other."""
    return zero_from_primal(y, symbolic_zeros=True)  # type: ignore[no-untyped-call]


def _lowered(op: Op, attrs: Attributes, types: Types) -> Callable[..., tuple[Array, ...]]:
    """One operator as operations of JAX; the small formats are computed in float32 and rounded once."""
    lowering, outputs = LOWERINGS[op.name], op.types(attrs, *types)
    is_small = [t.dtype in (f16, bf16, *STORED) and not op.is_data_movement for t in types]

    def function(*arrays: Array) -> tuple[Array, ...]:
        wide = [a.astype(jnp.float32) if small else a for a, small in zip(arrays, is_small, strict=True)]
        results = lowering(attrs, *wide)
        several = results if isinstance(results, tuple) else (results,)
        return tuple(r.astype(jax_dtype(t.dtype)) for r, t in zip(several, outputs, strict=True))

    function.__name__ = function.__qualname__ = op.name
    return function


@_once
def _rule(op: Op, attrs: Attributes, types: Types, moving: tuple[bool, ...]) -> tuple[Graph, list[bool]]:
    """``(operands…, tangents that are not zero…) → (outputs…, such tangents…)``, and which outputs have one."""
    builder = Builder()
    primals = [builder.input(t, f"x{i}") for i, t in enumerate(types)]
    named = zip(types, moving, range(len(types)), strict=True)
    tangents = [builder.input(t, f"dx{i}") if moves else None for t, moves, i in named]
    outputs, pushed = push_forward(Node(op, attrs, (), ()), primals, tangents)
    graph = builder.build([*outputs, *(t for t in pushed if t is not None)], allow_unused=True)
    return graph, [t is not None for t in pushed]


# --- graphs as functions of JAX arrays --------------------------------------------------------------------------------


def write(graph: Graph) -> Callable[..., Any]:
    """The function; it returns one array, or a tuple of several."""
    graph = expand(graph)
    _require_lowerings(graph)
    wide = list(_wide_variables(graph))

    def function(*arrays: Any) -> Any:
        require_count(graph.inputs, arrays)
        _require_width(wide)
        results = evaluate(graph, [_fitting(v, a) for v, a in zip(graph.inputs, arrays, strict=True)])
        return results[0] if len(results) == 1 else results

    function.__doc__ = f"``({', '.join(map(repr, graph.inputs))}) → ({', '.join(map(repr, graph.outputs))})``"
    return function


def _require_lowerings(graph: Graph) -> None:
    missing = [node for node in graph.nodes if node.op.name not in LOWERINGS]
    if missing:
        places = "; ".join(f"{node.op} ({', '.join(map(repr, node.outputs))})" for node in missing)
        raise UnsupportedError(f"JAX has no lowering of {places}; add it to src/gradspec/interop/jax/lower.py")


def _wide_variables(graph: Graph) -> Iterator[Var]:
    """Variables that 32 bits cannot hold: 64-bit ones, but for integers that are only handed around."""
    for var in graph.inputs:
        if _is_wide(var) and var.dtype != i64:
            yield var
    for var, array in graph.constants.items():
        if _is_wide(var) and not (var.dtype == i64 and _fits_32_bits(array)):
            yield var
    for node in graph.nodes:
        hands_around = node.op.is_data_movement or node.op.name in CHOOSING
        yield from (v for v in node.outputs if _is_wide(v) and not (v.dtype == i64 and hands_around))


def _is_wide(var: Var) -> bool:
    return var.dtype.numpy.itemsize == 8


def _fits_32_bits(array: np.ndarray[Any, Any] | np.generic) -> bool:
    return bool(np.array_equal(array, array.astype(np.int32)))


def _require_width(wide: list[Var]) -> None:
    if wide and jax_dtype(f64) != f64.numpy:
        others = f" and {len(wide) - 1} more" if len(wide) > 1 else ""
        raise DTypeError(
            f"{wide[0]!r}{others} need 64 bits, and JAX is set to 32; run jax.config.update('jax_enable_x64', True) "
            "first, or make the graph of 32-bit types"
        )


def _fitting(var: Var, value: Any) -> Array:
    """An input as JAX has it; numbers are converted, arrays are not."""
    array = number_as(value, var.dtype.numpy) if isinstance(value, int | float) else value
    if not isinstance(array, Array | np.ndarray | np.generic):
        raise TypeError(f"input {var!r} was given {type(value).__name__}; pass an array of JAX or NumPy")
    if tuple(array.shape) != var.shape:
        raise ShapeError(
            f"input {var!r} was given an array of shape {tuple(array.shape)}; pass one of shape {var.shape}, "
            "or map over further axes with jax.vmap"
        )
    wanted = jax_dtype(var.dtype)
    if isinstance(array, np.ndarray):
        array = native(array)
    if array.dtype not in (var.dtype.numpy, wanted):
        raise DTypeError(f"input {var!r} was given {array.dtype} numbers; x.astype({str(wanted)!r}) converts them")
    if isinstance(array, np.ndarray | np.generic) and wanted != array.dtype and not _fits_32_bits(array):
        raise DTypeError(
            f"input {var!r} was given integers beyond 32 bits, which JAX is set to; run "
            "jax.config.update('jax_enable_x64', True) first"
        )
    return jnp.asarray(array)
