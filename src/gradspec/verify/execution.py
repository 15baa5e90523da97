"""Where graphs of bounds run: on our compiled kernels, or by PyTorch on a device that passed the probes.

The probes try what bounds assume of a device's arithmetic (docs/bounds.md): results must be among those assumed. Of
what is added up, one product is not 0, so that the sum is that product rounded, in whatever order. This shows factors
that are cut, as in TF32, products that share an exponent, and cells that are added and taken off again, as in
Winograd's convolutions: what meets a 0 has other sizes. Operands of results below the normal range show where these
become 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.graph.types import DType, TensorType
from gradspec.interop.extras import require
from gradspec.ops import conv, gather, linear, pointwise, reduce, shape
from gradspec.runtime.compiled import compile
from gradspec.spec.errors import UnsupportedError
from gradspec.transforms.trace import trace

OURS = {"cpu"}
"""The devices whose graphs run on our kernels; tests have PyTorch run them there, too."""


@dataclass(frozen=True)
class Execution:
    """How graphs are run, and how much at once: cells of the largest variable, rows, and parts of a proof."""

    compile: Callable[[Graph], Callable[..., Any]]
    compile_early: Callable[[Graph], Callable[..., Any]]
    """As ``compile``, of what only other graphs read: results stay where they were computed."""
    most_cells: int
    most_rows: int
    parts: int = 1
    """How many times as many parts as on our kernels."""


_probed = set[tuple[str, DType]]()


def execution_on(device: str, dtype: DType) -> Execution:
    """``device`` is ``"cpu"``, or one of PyTorch's, which is probed at its first use for bounds in a format."""
    if device in OURS:
        return Execution(compile, compile, 2**22, 512)
    require("torch", f"device={device!r}")
    from gradspec.interop.torch.certified import DeviceCompiler

    compiler = DeviceCompiler(device)
    if (device, dtype) not in _probed:
        require_certified(device, dtype, compiler.compile)
        _probed.add((device, dtype))
    return Execution(compiler.compile, partial(compiler.compile, stays=True), 2**26, 2**12, parts=8)


# --- what a device is tried on ----------------------------------------------------------------------------------------


FUNCTIONS = ("exp", "log", "sqrt", "tanh", "sin", "cos", "atan", "erf", "sigmoid", "softplus", "silu", "gelu")
OPERATIONS = ("add", "sub", "mul", "div", "maximum")
TERMS, POINTS = (1, 2, 16, 100, 1000), 512
"""The lengths of sums that are tried, and the number of points of everything else."""

Probe = tuple[str, Callable[..., Any], list[Array]]


def probes(dtype: DType) -> Iterator[Probe]:
    """What is tried, as a function of arrays, and the arrays."""
    random, least = np.random.default_rng(0), int(np.log2(np.finfo(dtype.numpy).tiny))

    def numbers(*sizes: int, reach: int = 20, at: int = 0) -> Array:
        """Full significands, from ``2^(at − reach)`` to ``2^(at + reach)``."""
        exponents = at + random.integers(-reach, reach, sizes)
        values = np.ldexp(random.uniform(1, 2, sizes) * random.choice([-1, 1], sizes), exponents)
        return np.asarray(values, dtype.numpy)

    def sparse(*sizes: int, at: int = 0) -> Array:
        """Rows in which one number is not 0."""
        rows = np.zeros((sizes[0], int(np.prod(sizes[1:]))), dtype.numpy)
        rows[np.arange(len(rows)), random.integers(0, rows.shape[1], len(rows))] = numbers(len(rows), at=at)
        return rows.reshape(sizes)

    for n in TERMS:
        yield f"a product of matrices over {n} terms", linear.matmul, [sparse(64, n), numbers(n, 64)]
        yield f"a sum of {n} terms", lambda x: shape.sum(x, (1,)), [sparse(64, n)]
        yield f"a mean of {n} terms", lambda x: reduce.mean(x, (1,)), [sparse(64, n)]
    for n, s in ((16, 1), (40, 2)):
        x, w = numbers(2, n, 12, 12), sparse(n, n, 3, 3)
        yield f"a convolution of {n} channels", lambda x, w, s=s: conv.conv(x, w, None, s, (1, 1)), [x, w]
        w = np.ascontiguousarray(w.swapaxes(0, 1))
        yield f"a transposed one of {n} channels", lambda x, w, s=s: conv.conv_transpose(x, w, None, s, (1, 1)), [x, w]
    small = sparse(64, 40, at=least // 2), numbers(40, 64, at=least // 2)
    yield "a product of matrices below the normal range", linear.matmul, [*small]
    yield "a sum below the normal range", lambda x: shape.sum(x, (1,)), [sparse(64, 40, at=least)]
    nothing, places = np.zeros(POINTS // 2, dtype.numpy), np.arange(POINTS) // 2
    scattered = [numbers(POINTS, reach=10, at=least)]  # CUDA's atomic additions in global memory flush
    yield "scattered sums below the normal range", lambda x: gather.scatter_add(nothing, 0, places, x), scattered
    for name in OPERATIONS:
        tiny = {"mul": least // 2, "div": least // 2}.get(name, least)
        ends = numbers(POINTS, reach=10, at=tiny), numbers(POINTS, reach=10, at=-tiny if name == "div" else tiny)
        for where, pair in (("", (numbers(POINTS), numbers(POINTS))), (" below the normal range", ends)):
            yield f"{name} of two numbers{where}", getattr(pointwise, name), [*pair]
    x = np.concatenate([numbers(POINTS, reach=6), numbers(POINTS, reach=8, at=least)])
    for name in FUNCTIONS:
        yield f"{name} of a number", getattr(pointwise, name), [np.abs(x) if name in ("log", "sqrt") else x]
    yield "softmax of 64 numbers", reduce.softmax, [numbers(16, 64, reach=4)]


def require_certified(device: str, dtype: DType, compile: Callable[[Graph], Callable[..., Any]]) -> None:
    """Raise unless a device computes graphs of bounds in a format as bounds assume."""
    from gradspec.conformance.oracle.enclosure import enclosed_outputs

    for name, function, arrays in probes(dtype):
        graph = trace(function, *(TensorType(dtype, a.shape) for a in arrays))
        (allowed,), result = enclosed_outputs(graph, *arrays), np.asarray(compile(graph)(*arrays), np.float64)
        outside = np.argwhere(~((allowed.lower <= result) & (result <= allowed.upper)))
        if len(outside):
            at = tuple(map(int, outside[0]))
            raise UnsupportedError(
                f"{device} does not compute as bounds assume: {name} gave {float(result[at])!r} in {dtype}, not a "
                f"number from {float(allowed.lower[at])!r} to {float(allowed.upper[at])!r}; leave out device=, or find "
                "what changes its arithmetic, such as NVIDIA_TF32_OVERRIDE"
            )
