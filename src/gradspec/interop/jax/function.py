"""A graph as a function of JAX arrays: what it is given is checked, and then it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from jax import Array
from jax import numpy as jnp

from gradspec.graph.arrays import native
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import f64, i64, number_as
from gradspec.interop.jax.lower import CHOOSING, LOWERINGS
from gradspec.interop.jax.program import evaluate
from gradspec.interop.jax.types import jax_dtype
from gradspec.runtime.compiled import require_count
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError


def write(graph: Graph) -> Callable[..., Any]:
    """The function; it returns one array, or a tuple of several."""
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
