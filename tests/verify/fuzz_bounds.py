"""A fuzzer of bounds: ``python tests/verify/fuzz_bounds.py --seconds 60``.

A trial is a random network of any operators, in one format, and a box of inputs: a point, a few neighbouring numbers,
a narrow or a wide box, numbers near 0 that are subnormal, or so large that results overflow. Bounds of any kernel must
contain what the compiled kernels, NumPy, PyTorch and ONNX Runtime compute, those of the real network what balls say it
is: at both ends, the centre, corners and random points, and of a few neighbours at each. A NaN is inside where an end
is infinite, which says that nothing is known. A trial follows from its number alone.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from time import monotonic
from typing import Any
from unittest.mock import patch

import ml_dtypes
import numpy as np

import gradspec as gs
from gradspec.domains import Ball
from gradspec.interop import compose
from gradspec.ops.box import LEAST
from gradspec.ops.pointwise import gate, step
from gradspec.verify import bounding

FORMATS = {"f16": gs.f16, "bf16": gs.bf16, "f32": gs.f32, "f64": gs.f64}
METHODS, KERNELS = ("boxes", "crown", "alpha"), ("any", "real")
KINDS = ("point", "neighbours", "neighbours", "narrow", "wide", "subnormal", "overflowing")
COMPILED_EVERY, MOST_CELLS, MOST_STEPS = 4, 48, 5

Array = Any
Draw = np.random.Generator


# --- operators --------------------------------------------------------------------------------------------------------


def _numbers(draw: Draw, x: gs.Var, *shape: int) -> Array:
    """Constants of the format of ``x``, of sizes around 1, and a few others."""
    size = draw.choice([0.01, 0.5, 1.0, 1.0, 3.0, 100.0])
    return (draw.standard_normal(shape) * size).astype(x.dtype.numpy)


def _number(draw: Draw) -> float:
    return float(draw.choice([0.1, -0.3, 0.5, 1.0, 2.0, -1.5, 3.7, 100.0, 1e-3]))


def _axis(draw: Draw, x: gs.Var) -> int:
    return int(draw.integers(x.ndim))


def _size(draw: Draw, x: gs.Var, most: int = 3) -> int:
    return int(draw.integers(1, min(x.shape[-1], x.shape[-2], most) + 1))


def _windows(draw: Draw, x: gs.Var) -> dict[str, Any]:
    k = _size(draw, x)
    return {"kernel_size": k, "stride": int(draw.integers(1, 3)), "padding": int(draw.integers(0, k // 2 + 1))}


def _convolution(draw: Draw, x: gs.Var) -> gs.Var:
    w = _windows(draw, x)
    weight = _numbers(draw, x, int(draw.integers(1, 4)), x.shape[0], w["kernel_size"], w["kernel_size"])
    bias = _numbers(draw, x, len(weight)) if draw.random() < 0.5 else None
    return gs.conv2d(x, weight, bias, stride=w["stride"], padding=w["padding"])


def _transposed(draw: Draw, x: gs.Var) -> gs.Var:
    w = _windows(draw, x)
    weight = _numbers(draw, x, x.shape[0], int(draw.integers(1, 3)), w["kernel_size"], w["kernel_size"])
    return gs.conv_transpose2d(x, weight, stride=w["stride"])


def _normalised(draw: Draw, x: gs.Var) -> gs.Var:
    axis, eps = _axis(draw, x), float(draw.choice([1e-5, 1e-2, 1.0]))
    centred = x - gs.mean(x, axis=axis, keepdims=True)
    return centred / gs.sqrt(gs.mean(centred * centred, axis=axis, keepdims=True) + eps)


def _resized(draw: Draw, x: gs.Var) -> gs.Var:
    mode = str(draw.choice(["nearest", "linear"]))
    return gs.resize2d(
        x, [int(n) for n in draw.integers(1, 5, 2)], mode, bool(mode == "linear" and draw.random() < 0.5)
    )


def _quantized(draw: Draw, x: gs.Var) -> gs.Var:
    scale = float(draw.choice([0.1, 0.25, 1.0]))
    q = gs.quantize(x, np.asarray(scale, x.dtype.numpy), int(draw.integers(-3, 4)), gs.i8)
    return gs.dequantize(q, np.asarray(scale, x.dtype.numpy), np.int8(draw.integers(-3, 4)))


def _chosen(draw: Draw, x: gs.Var, y: gs.Var) -> gs.Var:
    compare = [gs.greater, gs.less, gs.equal][draw.integers(3)]
    a, b = ([x, y], [x, _number(draw)], [_number(draw), y])[draw.integers(3)]
    other = y if draw.random() < 0.5 else gs.broadcast_to(_number(draw) * gs.floor(gs.abs(x)), x.shape)
    return gs.where(compare(a, b), x, other)


def _converted(draw: Draw, x: gs.Var) -> gs.Var:
    other = [gs.f16, gs.bf16, gs.f32, gs.f64][draw.integers(4)]
    return gs.convert(gs.convert(x, other), x.dtype)


def _column_sums(draw: Draw, x: gs.Var) -> gs.Var:
    k = _size(draw, x, 2)
    columns = gs.unfold2d(x, k)
    return gs.fold2d(columns * _numbers(draw, x, *columns.shape), x.shape[1:], k)


PLAIN = (
    *("relu", "sigmoid", "tanh", "exp", "log", "sqrt", "abs", "neg", "silu", "sin", "cos", "atan", "erf"),
    *("floor", "round", "detach"),
)


def _plain(name: str, draw: Draw, x: gs.Var) -> gs.Var:
    return getattr(gs, name)(x)  # type: ignore[no-any-return]


COMPOSED = ("asin", "acos", "sinh", "cosh", "asinh", "acosh", "atanh", "tan")


def _composed(draw: Draw, x: gs.Var) -> gs.Var:
    return getattr(compose, COMPOSED[draw.integers(len(COMPOSED))])(x)  # type: ignore[no-any-return]


def _remainder(draw: Draw, x: gs.Var) -> gs.Var:
    divisor = _number(draw) if draw.random() < 0.5 else _numbers(draw, x, *x.shape)
    return compose.float_remainder(x, divisor, sign_of_divisor=bool(draw.integers(2)))


def _largest(draw: Draw, x: gs.Var) -> gs.Var:
    values, places = gs.topk(x, _size(draw, x), _axis(draw, x), largest=bool(draw.integers(2)))
    return values if draw.random() < 0.5 else gs.convert(places, x.dtype)


def _winners(draw: Draw, x: gs.Var) -> gs.Var:
    return gs.convert(gs.max_pool2d(x, **_windows(draw, x), return_indices=True)[1], x.dtype)


UNARY: dict[str, Callable[[Draw, gs.Var], gs.Var]] = {
    **{name: partial(_plain, name) for name in PLAIN},
    "composed": _composed,
    "remainder": _remainder,
    "topk": _largest,
    "winners": _winners,
    "ceil": lambda draw, x: -gs.floor(-x),
    "sign": lambda draw, x: step(x, -1.0, 0.0, 1.0),
    "floor of a curve": lambda draw, x: gs.floor([gs.exp, gs.sigmoid, gs.tanh, gs.softplus][draw.integers(4)](x) * -3),
    "log of a size": lambda draw, x: gs.log(gs.abs(x) + _number(draw)),
    "root of a size": lambda draw, x: gs.sqrt(gs.abs(x)),
    "leaky_relu": lambda draw, x: gs.leaky_relu(x, float(draw.choice([0.01, 0.1, -0.5, 2.0]))),
    "softplus": lambda draw, x: gs.softplus(x, float(draw.choice([1.0, 0.3, 5.0, -2.0]))),
    "gelu": lambda draw, x: gs.gelu(x, str(draw.choice(["none", "tanh"]))),
    "clamp": lambda draw, x: gs.clamp(x, [None, -0.3, -1.0, 0.1][draw.integers(4)], [None, 0.7, 6.0][draw.integers(3)]),
    "scale": lambda draw, x: gs.scale(x, _number(draw)),
    "add a number": lambda draw, x: x + _number(draw),
    "subtract from": lambda draw, x: _number(draw) - x,
    "add": lambda draw, x: x + _numbers(draw, x, *x.shape),
    "multiply": lambda draw, x: x * _numbers(draw, x, *x.shape),
    "divide": lambda draw, x: x / _number(draw),
    "divide by": lambda draw, x: _number(draw) / x,
    "square": lambda draw, x: x * x,
    "cube": lambda draw, x: x * x * x,
    "difference of squares": lambda draw, x: x * x - x * x,
    "round_to": lambda draw, x: gs.round_to(
        x, str(draw.choice(["f8_e4m3", "f8_e5m2", "f4_e2m1"])), [None, True][draw.integers(2)]
    ),
    "round_to without saturation": lambda draw, x: gs.round_to(x, str(draw.choice(["f8_e4m3", "f8_e5m2"])), False),
    "convert": _converted,
    "quantize": _quantized,
    "softmax": lambda draw, x: gs.softmax(x, _axis(draw, x)),
    "log_softmax": lambda draw, x: gs.log_softmax(x, _axis(draw, x)),
    "normalise": _normalised,
    "batch_norm": lambda draw, x: gs.batch_norm(
        x, _numbers(draw, x, x.shape[1]), np.abs(_numbers(draw, x, x.shape[1])), eps=1e-3
    ),
    "sum": lambda draw, x: gs.broadcast_to(gs.sum(x, _axis(draw, x), keepdims=True), x.shape),
    "mean": lambda draw, x: gs.broadcast_to(gs.mean(x, _axis(draw, x), keepdims=True), x.shape),
    "cumsum": lambda draw, x: gs.cumsum(x, _axis(draw, x)),
    "matmul": lambda draw, x: gs.matmul(x, _numbers(draw, x, x.shape[-1], int(draw.integers(1, 5)))),
    "gram": lambda draw, x: gs.matmul(x, gs.transpose(x, (0, 2, 1))),
    "attend": lambda draw, x: gs.matmul(gs.softmax(gs.matmul(x, gs.transpose(x, (0, 2, 1))), -1), x),
    "linear": lambda draw, x: gs.linear(x, _numbers(draw, x, 3, x.shape[-1]), _numbers(draw, x, 3)),
    "einsum": lambda draw, x: gs.einsum("abc,abd->acd", x, x),
    "conv": _convolution,
    "conv_transpose": _transposed,
    "conv of itself": lambda draw, x: gs.conv2d(x, gs.reshape(x, (1, *x.shape))),
    "max_pool": lambda draw, x: gs.max_pool2d(x, **_windows(draw, x)),
    "avg_pool": lambda draw, x: gs.avg_pool2d(x, **_windows(draw, x), count_include_pad=bool(draw.integers(2))),
    "min_pool": lambda draw, x: -gs.max_pool2d(-x, **_windows(draw, x)),
    "smooth_max_pool": lambda draw, x: gs.smooth_max_pool2d(
        x,
        **_windows(draw, x),
        beta=float(draw.choice([1.0, 5.0, -2.0])),
        padding_mode=str(draw.choice(["zeros", "ignore"])),
    ),
    "lp_pool": lambda draw, x: gs.lp_pool2d(x, float(draw.choice([1.0, 2.0, 3.0, 0.5])), _size(draw, x)),
    "adaptive_max_pool": lambda draw, x: gs.adaptive_max_pool2d(x, [int(n) for n in draw.integers(1, 4, 2)]),
    "adaptive_avg_pool": lambda draw, x: gs.adaptive_avg_pool2d(x, [int(n) for n in draw.integers(1, 4, 2)]),
    "global_avg_pool": lambda draw, x: gs.global_avg_pool2d(x),
    "global_max_pool": lambda draw, x: gs.global_max_pool2d(x),
    "resize": _resized,
    "columns": _column_sums,
    "transpose": lambda draw, x: gs.transpose(x, (0, 2, 1)),
    "reverse": lambda draw, x: x[:, :, ::-1],
    "pad": lambda draw, x: gs.pad(x, ((0, 0), (1, 0), (0, 1)), float(draw.choice([0.0, 0.1, -2.0]))),
    "take": lambda draw, x: gs.take(x, draw.integers(0, x.shape[-1], 3), 2),
    "scatter_add": lambda draw, x: gs.scatter_add(x, 2, draw.integers(0, x.shape[-1], x.shape), x),
}
BINARY: dict[str, Callable[[Draw, gs.Var, gs.Var], gs.Var]] = {
    "sum of two": lambda draw, x, y: x + y,
    "difference": lambda draw, x, y: x - y,
    "product": lambda draw, x, y: x * y,
    "quotient": lambda draw, x, y: x / (y * y + float(draw.choice([0.0, 0.1, 1.0]))),
    "quotient of two": lambda draw, x, y: x / y,
    "gate": lambda draw, x, y: gate(x, y),
    "maximum": lambda draw, x, y: gs.maximum(x, y),
    "minimum": lambda draw, x, y: gs.minimum(x, y),
    "choose": _chosen,
    "concat": lambda draw, x, y: gs.concat([x, y], _axis(draw, x)),
    "mse_loss": lambda draw, x, y: gs.reshape(gs.mse_loss(x, y), (1, 1, 1)),
}


# --- trials -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network with one input, the boxes it is bounded over, and points in each of them."""

    number: int
    format: str
    graph: gs.Graph
    steps: tuple[str, ...]
    boxes: tuple[tuple[str, Array, Array, tuple[Array, ...]], ...]

    def __str__(self) -> str:
        return f"network {self.number}, {self.format}: {', '.join(self.steps)}"


def network(number: int, most_steps: int = MOST_STEPS) -> Network:
    """The network of a number; with fewer steps, the first of them."""
    draw = np.random.default_rng([number, 7])
    format = list(FORMATS)[draw.integers(4)]
    shape = tuple(int(n) for n in draw.integers(1, (3, 4, 5)))
    count, steps = int(draw.choice([1, 1, 2, 2, 3, 4, MOST_STEPS])), list[str]()

    def function(x: gs.Var) -> gs.Var:
        values = [x]
        for _ in range(count):
            if len(steps) == most_steps:
                break
            name, value = _step(draw, values)
            steps.append(name)
            values.append(value)
        return values[-1]

    graph = gs.trace(function, FORMATS[format][shape], allow_unused=True)
    of_boxes = np.random.default_rng([number, 8])
    kinds = of_boxes.choice(KINDS, 2)
    return Network(number, format, graph, tuple(steps), tuple(_box(of_boxes, str(k), format, shape) for k in kinds))


def _step(draw: Draw, values: Sequence[gs.Var]) -> tuple[str, gs.Var]:
    """One more value; geometries that do not fit, or make large results, are drawn again."""
    while True:
        x = values[-1] if draw.random() < 0.8 else values[draw.integers(len(values))]
        name = str(draw.choice([*UNARY, *BINARY, *BINARY]))
        try:
            if name in UNARY:
                y = UNARY[name](draw, x)
            else:
                same = [v for v in values if v.shape == x.shape]
                y = BINARY[name](draw, x, same[draw.integers(len(same))])
        except (gs.ShapeError, gs.UnsupportedError, ValueError):
            continue
        if y.ndim == 3 and 0 < prod(y.shape) <= MOST_CELLS:
            return name, y


def _box(draw: Draw, kind: str, format: str, shape: tuple[int, ...]) -> tuple[str, Array, Array, tuple[Array, ...]]:
    dtype = FORMATS[format].numpy
    info, least = ml_dtypes.finfo(dtype), LEAST[FORMATS[format]]
    size = float(draw.choice([0.05, 1.0, 1.0, 1.0, 4.0, 30.0]))
    if kind == "subnormal":
        size = float(info.tiny) * float(draw.choice([0.1, 1.0, 4.0])) + 3 * least
    elif kind == "overflowing":
        size = float(info.max) ** float(draw.choice([1.0, 0.5, 1 / 3])) * float(draw.choice([0.3, 0.6, 0.97]))
    centre = draw.standard_normal(shape) * size if draw.random() < 0.7 else np.full(shape, size)
    radii = {"point": 0.0, "neighbours": 0.0, "narrow": size / 64, "wide": size}
    radius = radii.get(kind, size / draw.choice([4, 64, 4096]))
    limit = float(info.max)
    with np.errstate(all="ignore"):
        middle = np.clip(centre, -limit, limit).astype(dtype)
        low, high = (np.clip(middle.astype(float) + sign * radius, -limit, limit).astype(dtype) for sign in (-1, 1))
    if kind == "neighbours":
        count = int(draw.choice([1, 3, 12]))
        points = [_neighbour(middle, n) for n in range(-count, count + 1)]
        low, high = np.minimum(points[0], points[-1]), np.maximum(points[0], points[-1])
        offsets = draw.integers(-count, count + 1, (4, *shape))
        return kind, low, high, (*points, *(_neighbour(middle, n) for n in offsets))
    weights = [*draw.integers(0, 2, (3, *shape)), *draw.random((3, *shape))]
    inner = [(low.astype(float) * (1 - w) + high.astype(float) * w).astype(dtype) for w in weights]
    points = [low, high, middle, *inner]
    return kind, low, high, tuple(np.minimum(np.maximum(p, low), high) for p in points)


def _neighbour(x: Array, count: Any) -> Array:
    """The number so many steps away, on the same side of 0."""
    bits = x.view(f"u{x.dtype.itemsize}").astype(np.int64)
    size, sign = bits & (2 ** (8 * x.dtype.itemsize - 1) - 1), bits & -(2 ** (8 * x.dtype.itemsize - 1))
    return (np.maximum(size + count, 0) | sign).astype(f"u{x.dtype.itemsize}").view(x.dtype)


# --- who computes it --------------------------------------------------------------------------------------------------

Runner = Callable[[Array], Array]


def by_kernels(net: Network) -> Runner:
    return gs.compile(net.graph)


def by_numpy(net: Network) -> Runner:
    return gs.compile(net.graph, backend="numpy")


STORED_IN_PARTS = ("conv_transpose", "fold")
"""Sums that PyTorch adds up in 16 bits on CPUs, which a kernel has to declare (``parts``)."""


def by_torch(net: Network) -> Runner | None:
    """PyTorch's own operators, as on a GPU; poolings there are kernels in Triton, which are left out."""
    import torch

    from gradspec.interop.torch import device
    from gradspec.interop.torch.device import LOWERINGS
    from gradspec.interop.torch.types import array_of, tensor_of

    left_out = {*device.POOLING, *(STORED_IN_PARTS if net.format in ("f16", "bf16") else ())}
    if any(node.op.name in left_out or node.op.name not in LOWERINGS for node in net.graph.nodes):
        return None
    module = gs.to_torch(net.graph)

    def run(x: Array) -> Array:
        device.DEVICES.add("cpu")
        try:
            with torch.no_grad():
                return array_of(module(tensor_of(x)))
        finally:
            device.DEVICES.remove("cpu")

    return run


WRONG_IN_ONNXRUNTIME = ("sigmoid", "silu", "gelu", "normal_cdf", "lp_pool")
"""Functions that are off by more than a conforming kernel's (see docs/findings), or are written as others that are: of
powers a logarithm is taken, and its rounding is multiplied by as much as a thousand."""


def by_onnxruntime(net: Network) -> Runner | None:
    import onnxruntime

    is_wrong = any(node.op.name in WRONG_IN_ONNXRUNTIME for node in net.graph.nodes)
    if is_wrong or net.format == "bf16":  # NumPy has no bfloat16 of its own, and ONNX Runtime few operators of it
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    if net.format == "f64":  # factors that are fused with matrix products become float32
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = gs.to_onnx(net.graph).SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    return lambda x: session.run(None, {given.name: x})[0]


RUNNERS = {"kernels": by_kernels, "numpy": by_numpy, "torch": by_torch, "onnxruntime": by_onnxruntime}


def runners(net: Network, tally: Counter[str]) -> Iterator[tuple[str, Runner]]:
    for name, make in RUNNERS.items():
        try:
            run = make(net)
            if run is not None:
                run(net.boxes[0][1])
                yield name, run
        except Exception as error:  # what another library cannot do
            if name in ("kernels", "numpy"):
                raise
            tally[f"{name} does not run it"] += 1
            tally[f"{name}: {type(error).__name__} {str(error)[:60]!r}"] += 1


# --- one trial --------------------------------------------------------------------------------------------------------


@dataclass
class BoundsTally:
    """What was bounded and compared, and what was outside."""

    networks: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        rows = [f"{count:>9,} {what}" for what, count in sorted(self.counts.items())]
        return "\n".join([f"{self.networks:,} networks", *rows, *self.failures[:20], f"{len(self.failures)} outside"])


def outside(low: Array, high: Array, result: Array) -> str:
    """The first cell of a result that is not between its bounds."""
    low, high, result = (np.asarray(a, np.float64) for a in (low, high, result))
    known = np.isfinite(low) & np.isfinite(high)
    wrong = np.argwhere(~np.where(np.isnan(result), ~known, (low <= result) & (result <= high)))
    if not len(wrong):
        return ""
    at = tuple(map(int, wrong[0]))
    return f"at {at}: {result[at]!r} is not in [{low[at]!r}, {high[at]!r}]"


def outside_really(low: Array, high: Array, exact: Any) -> str:
    for at, (a, b, cell) in enumerate(zip(low.flat, high.flat, exact.cells, strict=True)):
        value = cell if isinstance(cell, Ball) else gs.ball(128).scalar(cell)
        if (np.isfinite(a) and value < float(a)) or (np.isfinite(b) and value > float(b)):
            return f"at {at}: {cell} is not in [{float(a)!r}, {float(b)!r}]"
    return ""


def asked(number: int) -> list[tuple[str, str]]:
    """The methods and kernels of a trial: boxes in every one, lines, which take longer, in some."""
    draw = np.random.default_rng([number, 9])
    kernels = KERNELS[int(draw.random() < 0.35)]
    method = METHODS[1 + int(draw.random() < 0.3)]
    return [("boxes", "any"), *([(method, kernels)] if draw.random() < 0.4 else [])]


def attempt(
    net: Network, tally: BoundsTally, how: Sequence[tuple[str, str]] | None = None, libraries: bool = True
) -> None:
    """Bound a network over its boxes, and compare."""
    how = asked(net.number) if how is None else how
    computing: list[tuple[str, Runner]] = []
    with np.errstate(all="ignore"):
        if any(kernels == "any" for _, kernels in how):
            computing = [(n, r) for n, r in runners(net, tally.counts) if libraries or n in ("kernels", "numpy")]
        for kind, low, high, points in net.boxes:
            results = [(who, x, run(x)) for who, run in computing for x in points]
            for method, kernels in how:
                try:
                    found = gs.bounds(net.graph, low, high, method=method, kernels=kernels)
                except gs.UnsupportedError:
                    tally.counts[f"refused {method}"] += 1
                    continue
                tally.counts[f"{net.format} {kernels} {method}"] += 1
                tally.counts[f"box: {kind}"] += 1
                known = np.isfinite(found.lower.astype(float)) & np.isfinite(found.upper.astype(float))
                tally.counts["boxes with a bound" if known.any() else "boxes without a bound"] += 1
                about = f"{net}, {method} of {kernels} over {kind}"
                if np.isnan(found.lower).any() or np.isnan(found.upper).any():
                    tally.failures.append(f"{about}: a bound is NaN")
                if kernels == "any":
                    for who, x, y in results:
                        tally.counts[f"points by {who}"] += 1
                        _note(tally, outside(found.lower, found.upper, y), about, who, x)
                else:
                    for x in points[:4]:
                        exact = _exactly(net.graph, x)
                        tally.counts["points by balls" if exact is not None else "points without a real value"] += 1
                        if exact is not None:
                            _note(tally, outside_really(found.lower, found.upper, exact), about, "balls", x)
    tally.networks += 1


def _note(tally: BoundsTally, problem: str, about: str, who: str, x: Array) -> None:
    if problem and not any(failure.startswith(about) for failure in tally.failures):
        tally.failures.append(f"{about}, by {who} {problem}\n    x = {x.astype(float).tolist()}")


def _exactly(graph: gs.Graph, x: Array) -> Any:
    try:
        return gs.evaluate(graph, x, domain=gs.ball(200))
    except (ValueError, gs.UnsupportedError, gs.DTypeError, ArithmeticError):
        return None  # NaN, infinity, or a comparison that balls leave open


def fuzz_bounds(seed: int, *, count: int | None = None, seconds: float | None = None) -> BoundsTally:
    """So many trials from a seed on, or as many as there is time for."""
    tally, began = BoundsTally(), monotonic()
    turn = 0
    while (count is None or turn < count) and (seconds is None or monotonic() < began + seconds):
        attempt_number((seed << 32) + turn, tally)
        turn += 1
    return tally


def attempt_number(number: int, tally: BoundsTally) -> None:
    """A trial. Bounds are as sound by NumPy, which needs no plans, so compiled kernels compute them in some only."""
    backend = None if number % COMPILED_EVERY == 0 else "numpy"
    try:
        with patch.object(bounding, "compile", partial(gs.compile, backend=backend)):
            attempt(network(number), tally)
    except Exception as error:
        tally.failures.append(f"{network(number)} raises {type(error).__name__}: {error}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="how many networks")
    parser.add_argument("--seconds", type=float, help="when to end [60, unless a count is given]")
    parser.add_argument("--network", type=int, help="one network of this number, with as few of its steps as fail")
    given = parser.parse_args(arguments)
    if given.network is not None:
        for steps in range(1, MOST_STEPS + 1):
            tally, net = BoundsTally(), network(given.network, steps)
            attempt(net, tally, [(m, k) for k in KERNELS for m in METHODS])
            if tally.failures or len(net.steps) < steps:
                break
        print(net.graph, tally, sep="\n")
        return int(bool(tally.failures))
    seconds = 60.0 if given.seconds is None and given.count is None else given.seconds
    tally = fuzz_bounds(given.seed, count=given.count, seconds=seconds)
    print(tally)
    return int(bool(tally.failures))


if __name__ == "__main__":
    sys.exit(main())
