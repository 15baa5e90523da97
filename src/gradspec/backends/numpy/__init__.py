"""The reference backend: every operator as plain NumPy, vectorised and short. It also runs what has no compiled kernel.

A kernel is a function of the node's attribute record and its operands as arrays; it returns one array per output.
float16 and bfloat16 are computed in float32 and rounded once, here, for every kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gradspec.backends.numpy import windows
from gradspec.backends.numpy.namespace import NUMPY
from gradspec.backends.xp import lowerings
from gradspec.backends.xp.rules import progressions
from gradspec.backends.xp.windows import POOLING
from gradspec.graph.ir import Array, Attributes, Op
from gradspec.graph.types import STORED, TensorType, bf16, f16, type_of
from gradspec.ops.layout import Padding
from gradspec.runtime.task import ArrayFunction
from gradspec.spec.errors import UnsupportedError
from gradspec.spec.layout import spaced_sizes


def _pad(attrs: Padding, x: Array) -> Array:
    result = np.full(spaced_sizes(x.shape, attrs.padding, attrs.interior), attrs.value, x.dtype)
    result[progressions([lo for lo, _ in attrs.padding], x.shape, [gap + 1 for gap in attrs.interior])] = x
    return result


KERNELS: dict[str, Callable[..., Any]] = {**lowerings(NUMPY, **POOLING), **windows.KERNELS, "pad": _pad}

_SMALL = (f16, bf16, *STORED)


def apply(op: Op, attrs: Attributes, *arrays: Array) -> tuple[Array, ...]:
    """One operator on arrays."""
    return kernel(op, attrs, tuple(map(type_of, arrays)))(*arrays)


def kernel(op: Op, attrs: Attributes, types: tuple[TensorType, ...]) -> ArrayFunction:
    """One operator as a function of arrays of these types."""
    dtypes = [t.dtype.numpy for t in op.types(attrs, *types)]
    if op.name not in KERNELS:
        raise UnsupportedError(f"{op} has no NumPy kernel; add one to src/gradspec/backends/numpy")
    function, is_small = KERNELS[op.name], [t.dtype in _SMALL for t in types]

    def run(*arrays: Array) -> tuple[Array, ...]:
        operands = [a.astype(np.float32) if s else a for a, s in zip(arrays, is_small, strict=True)]
        with np.errstate(all="ignore"):
            results = function(attrs, *operands)
            several = results if isinstance(results, tuple) else (results,)
            return tuple(np.asarray(r).astype(d, copy=False) for r, d in zip(several, dtypes, strict=True))

    return run
