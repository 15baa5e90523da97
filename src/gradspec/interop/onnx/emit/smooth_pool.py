"""Smooth max pooling and its derivatives, around each window's pivot as in ``gradspec.spec.smooth_pool``."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np

from gradspec.interop.onnx.emit.emitter import DType, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.interop.onnx.emit.windows import belonging, gathered, mask, real, spread
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.spec.window import Window


@dataclass(frozen=True)
class SoftenedWindows:
    """Every window around its pivot; ``counted`` are the taps that take part, None if all do."""

    window: Window
    counted: OnnxValue | None
    center: OnnxValue
    powers: OnnxValue
    total: OnnxValue


def _softened(e: Emitter, attrs: SmoothPool, x: OnnxValue) -> SoftenedWindows:
    window = attrs.window(x)
    takes_part = belonging if attrs.padding_mode == "zeros" else real
    counted = mask(e, [takes_part(axis) for axis in window.axes])
    cells = gathered(e, x, window)
    last, outermost = [cells.ndim - 1], -inf if attrs.beta > 0 else inf
    competing = cells if counted is None else e.cells("Where", counted, cells, outermost)
    center = e.reduce("ReduceMax" if attrs.beta > 0 else "ReduceMin", competing, last, keepdims=True)
    powers = e.cells("Exp", _exponents(e, cells, center, attrs.beta))
    if counted is not None:
        powers = e.cells("Where", counted, powers, 0)
    return SoftenedWindows(window, counted, center, powers, e.reduce("ReduceSum", powers, last, keepdims=True))


def _exponents(e: Emitter, x: OnnxValue, center: OnnxValue, beta: float) -> OnnxValue:
    """``β(x − c)``; 0 where both are one infinity, and in halves where the difference overflows."""
    gap = e.cells("Sub", x, center)
    halves = e.cells("Sub", e.cells("Mul", x, 0.5), e.cells("Mul", center, 0.5))
    far = e.cells("Mul", halves, _doubled(beta, x.dtype))
    near = e.cells("Where", e.cells("IsInf", gap), far, e.cells("Mul", gap, beta))
    return e.cells("Where", e.cells("Equal", x, center), e.constant(0, x.dtype), near)


def _doubled(beta: float, dtype: DType) -> float:
    """2β, or the largest number of its sign: either way, a difference that overflows is as good as infinite."""
    largest = float(np.finfo(dtype).max)
    return max(-largest, min(2 * beta, largest))


def _weights(e: Emitter, soft: SoftenedWindows) -> OnnxValue:
    weights = e.cells("Div", soft.powers, soft.total)
    return weights if soft.counted is None else e.cells("Where", soft.counted, weights, 0)


@emits("smooth_max_pool")
def smooth_max_pool(e: Emitter, attrs: SmoothPool, x: OnnxValue) -> OnnxValue:
    soft = _softened(e, attrs, x)
    y = e.cells("Add", soft.center, e.cells("Div", e.cells("Log", soft.total), attrs.beta))
    if soft.counted is not None:  # a window without cells is 0; its total is too, and no other's
        y = e.cells("Where", e.cells("Equal", soft.total, 0), e.constant(0, x.dtype), y)
    return e.reshape(y, y.shape[:-1])


@emits("smooth_max_mean")
def smooth_max_mean(e: Emitter, attrs: SmoothPool, x: OnnxValue, u: OnnxValue) -> OnnxValue:
    soft = _softened(e, attrs, x)
    terms = e.cells("Mul", _weights(e, soft), gathered(e, u, soft.window))
    return e.reduce("ReduceSum", terms, [terms.ndim - 1])


@emits("smooth_max_spread")
def smooth_max_spread(e: Emitter, attrs: SmoothPool, x: OnnxValue, g: OnnxValue) -> OnnxValue:
    soft = _softened(e, attrs, x)
    return spread(e, e.cells("Mul", _weights(e, soft), e.reshape(g, (*g.shape, 1))), soft.window)
