"""Running a graph on arrays: what is given is checked against the graph's types before any work is done."""

from __future__ import annotations

from typing import Any

import numpy as np

from gradspec.graph.ir import Array, Graph, Var
from gradspec.graph.later import later, provides
from gradspec.graph.types import type_of
from gradspec.spec.errors import DTypeError, ShapeError


@provides("run")
def run(graph: Graph, *arrays: Any) -> Any:
    """One array for one output, a tuple for several. Results never share memory with inputs or constants."""
    if len(arrays) != len(graph.inputs):
        wanted = ", ".join(map(repr, graph.inputs))
        raise TypeError(f"the graph takes {len(graph.inputs)} arrays ({wanted}), not {len(arrays)}")
    given = [_fitting(v, a) for v, a in zip(graph.inputs, arrays, strict=True)]
    results = tuple(_owned(r, given) for r in later("run_numpy", graph, *given))
    return results[0] if len(results) == 1 else results


def _fitting(var: Var, value: Any) -> Array:
    array = np.asarray(value, var.dtype.numpy if isinstance(value, int | float) else None)
    found = type_of(array)
    if found.shape != var.shape:
        raise ShapeError(f"input {var!r} was given an array of shape {found.shape}; pass one of shape {var.shape}")
    if found.dtype != var.dtype:
        raise DTypeError(f"input {var!r} was given {found.dtype} numbers; convert with .astype({var.dtype.numpy})")
    return array


def _owned(result: Array, inputs: list[Array]) -> Array:
    """A fresh, writable array: views of inputs or constants are copied."""
    return (
        result
        if result.flags.owndata and result.flags.writeable and not any(result is a for a in inputs)
        else result.copy()
    )
