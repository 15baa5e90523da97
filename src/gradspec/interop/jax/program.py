"""Graphs run by JAX, node by node. Here is how derivatives come about, for every operator alike.

An operator that is linear is lowered to linear operations, and JAX differentiates and transposes these. Any other has a
``custom_jvp`` whose rule is the graph of its own JVP, run by this same interpreter: what it is made of has derivatives
again, to any order. Reverse mode is JAX's transposition of that rule, which is linear in the tangents. A tangent that
is zero is passed on as such and never computed with, as in ``gradspec.transforms.jvp``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar

import jax
import numpy as np
from jax import Array
from jax import numpy as jnp
from jax.custom_derivatives import SymbolicZero, zero_from_primal

from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Attributes, Node, Op
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import TensorType, bf16, f16
from gradspec.interop.jax.lower import LOWERINGS
from gradspec.interop.jax.types import jax_dtype
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
    known |= {var: _constant(array) for var, array in graph.constants.items()}
    for node in graph.nodes:
        types = tuple(v.type for v in node.inputs)
        results = _function(node.op, node.attrs, types)(*(known[v] for v in node.inputs))
        known.update(zip(node.outputs, results, strict=True))
    return tuple(known[v] for v in graph.outputs)


def _constant(array: np.ndarray[Any, Any]) -> Array:
    """A constant as JAX holds it; what is only repeated takes no memory."""
    repeated = tuple(slice(0, 1) if step == 0 else slice(None) for step in array.strides)
    return jnp.broadcast_to(jnp.asarray(array[repeated]), array.shape)


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
    is_small = [t.dtype in (f16, bf16) and not op.is_data_movement for t in types]

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
