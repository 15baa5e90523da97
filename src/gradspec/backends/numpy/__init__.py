"""The reference backend: every operator as plain NumPy, vectorised and short. It also runs what has no compiled kernel.

A kernel is a function of the node's attribute record and its operands as arrays; it returns one array per output.
float16 and bfloat16 are computed in float32 and rounded once, here, for every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gradspec.backends.numpy import (
    conv,
    layout,
    linear,
    loss,
    lp_pool,
    pointwise,
    pool,
    reduce,
    resize,
    smooth_pool,
    unfold,
)
from gradspec.graph.ir import Graph
from gradspec.graph.later import provides
from gradspec.graph.op import Attributes, Op
from gradspec.graph.types import type_of
from gradspec.spec.errors import UnsupportedError

Array = NDArray[Any]

KERNELS: dict[str, Callable[..., Any]] = {
    **conv.KERNELS,
    **layout.KERNELS,
    **linear.KERNELS,
    **loss.KERNELS,
    **lp_pool.KERNELS,
    **pointwise.KERNELS,
    **pool.KERNELS,
    **reduce.KERNELS,
    **resize.KERNELS,
    **smooth_pool.KERNELS,
    **unfold.KERNELS,
}

_SMALL = {"float16", "bfloat16"}


@provides("eager")
def apply(op: Op, attrs: Attributes, *arrays: Array) -> tuple[Array, ...]:
    """One operator on arrays."""
    types = op.types(attrs, *map(type_of, arrays))
    kernel = KERNELS.get(op.name)
    if kernel is None:
        raise UnsupportedError(f"{op} has no NumPy kernel; add one to src/gradspec/backends/numpy")
    widened = [a.astype(np.float32) if a.dtype.name in _SMALL else a for a in arrays]
    with np.errstate(all="ignore"):
        results = kernel(attrs, *widened)
    several = results if isinstance(results, tuple) else (results,)
    return tuple(np.asarray(r).astype(t.dtype.numpy, copy=False) for r, t in zip(several, types, strict=True))


@provides("run_numpy")
def run(graph: Graph, *arrays: Array) -> tuple[Array, ...]:
    """Every node in order; arrays are forgotten after their last use."""
    values: dict[Any, Array] = dict(zip(graph.inputs, arrays, strict=True))
    values |= graph.constants
    last = {v: i for i, node in enumerate(graph.nodes) for v in node.inputs}
    keep = set(graph.outputs)
    for i, node in enumerate(graph.nodes):
        values |= zip(node.outputs, apply(node.op, node.attrs, *(values[v] for v in node.inputs)), strict=True)
        for v in {v for v in node.inputs if last[v] == i and v not in keep}:
            del values[v]
    return tuple(values[v] for v in graph.outputs)
