"""Running a graph on arrays: what is given is checked against the graph's types before any work is done."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Graph, Var
from gradspec.graph.later import later, provides
from gradspec.graph.types import number_as, type_of
from gradspec.spec.errors import DTypeError, ShapeError, UnsupportedError
from gradspec.transforms.trace import trace


@provides("run")
def run(graph: Graph, *arrays: Any) -> Any:
    """One array for one output, a tuple for several. Results never share memory with inputs or constants."""
    if len(arrays) != len(graph.inputs):
        wanted = ", ".join(map(repr, graph.inputs))
        raise TypeError(f"the graph takes {len(graph.inputs)} arrays ({wanted}), not {len(arrays)}")
    given = [_fitting(v, a) for v, a in zip(graph.inputs, arrays, strict=True)]
    results = _fresh(later("run_numpy", graph, *given), given)
    return results[0] if len(results) == 1 else results


def compile(program: Graph | Callable[..., Any], *types: Any, backend: str = "numpy") -> Callable[..., Any]:
    """A function of arrays that runs a graph, or a function traced on ``types``, on a backend.

    ``"numpy"``, the readable reference, is the only backend there is.

    >>> import gradspec as gs
    >>> run = compile(lambda x: x * x, gs.f32[2], backend="numpy")
    >>> run(np.float32([1, 2])).tolist()
    [1.0, 4.0]
    """
    if backend != "numpy":
        raise UnsupportedError(f'there is no backend {backend!r}; use backend="numpy"')
    if isinstance(program, Graph) and types:
        raise TypeError("a graph has its types already; give types with a function only")
    return partial(run, program if isinstance(program, Graph) else trace(program, *types))


def _fitting(var: Var, value: Any) -> Array:
    array = number_as(value, var.dtype.numpy) if isinstance(value, int | float) else np.asarray(value)
    found = type_of(array)
    if found.shape != var.shape:
        raise ShapeError(f"input {var!r} was given an array of shape {found.shape}; pass one of shape {var.shape}")
    if found.dtype != var.dtype:
        raise DTypeError(f"input {var!r} was given {found.dtype} numbers; convert with .astype({var.dtype.numpy})")
    return array


def _fresh(results: Sequence[Array], inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Writable arrays of their own: views, inputs and repeated results are copied."""
    taken = {id(a) for a in inputs}
    fresh = []
    for result in results:
        shared = id(result) in taken or not (result.flags.owndata and result.flags.writeable)
        fresh.append(result.copy() if shared else result)
        taken.add(id(result))
    return tuple(fresh)
