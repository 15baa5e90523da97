"""Poolings: ONNX's own operator where it has the windows, else the windows gathered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from math import inf, prod
from typing import Any

import numpy as np

from gradspec.interop.onnx.emit.emitter import BOOL, INT32, INT64, Array, DType, Emitter, OnnxValue
from gradspec.interop.onnx.emit.table import emits
from gradspec.interop.onnx.emit.windows import (
    NativePooling,
    as_planes,
    belonging,
    gather_windows,
    mask,
    max_over_windows,
    native_pooling,
    real,
    spread_evenly,
    spread_to_cells,
    sum_over_windows,
)
from gradspec.ops.lp_pool import LpPool
from gradspec.ops.pool import AvgPool, AvgSpread, MaxPool
from gradspec.ops.smooth_pool import SmoothPool
from gradspec.spec.window import Window

WITH_MAXIMA = {np.dtype(t) for t in (np.float32, np.float64, np.int8, np.uint8)}
"""What MaxPool takes, small floats apart."""


def _pool_natively(
    e: Emitter, op_type: str, x: OnnxValue, windows: NativePooling, outputs: Sequence[int], **attributes: Any
) -> OnnxValue:
    """A pooling node of one output, whatever leading axes there are."""
    rank = len(outputs)
    planes = as_planes(e, x, rank)
    shape = (*planes.shape[:2], *outputs)
    if windows.whole:
        y = e.node(f"Global{op_type}", [planes], shape, x.dtype)
    else:
        y = e.node(op_type, [planes], shape, x.dtype, **windows.attributes, **attributes)
    return e.reshape(y, (*x.shape[: x.ndim - rank], *outputs))


# --- the maximum ------------------------------------------------------------------------------------------------------


@emits("max_pool")
def max_pool(e: Emitter, attrs: MaxPool, x: OnnxValue) -> OnnxValue | tuple[OnnxValue, ...]:
    window = attrs.window(x)
    windows = native_pooling(window)
    if windows is None or e.nan_safe or x.dtype not in WITH_MAXIMA:
        places = attrs.return_indices
        return _winners(e, _to_comparable(e, x), window) if places else _largest(e, _to_comparable(e, x), window)
    if attrs.return_indices:
        return _with_indices(e, x, windows, window)
    return _pool_natively(e, "MaxPool", x, windows, window.outputs)


def _with_indices(e: Emitter, x: OnnxValue, windows: NativePooling, window: Window) -> tuple[OnnxValue, OnnxValue]:
    """ONNX counts places over the whole tensor; inside a plane they are what is left of them."""
    planes = as_planes(e, x, window.rank)
    shape = (*planes.shape[:2], *window.outputs)
    y, places = e.several("MaxPool", [planes], [(shape, x.dtype), (shape, INT64)], **windows.attributes)
    within = e.cells("Mod", places, prod(window.sizes))
    shape = (*x.shape[: x.ndim - window.rank], *window.outputs)
    return e.reshape(y, shape), e.reshape(within, shape)


def _winners(e: Emitter, x: OnnxValue, window: Window) -> tuple[OnnxValue, OnnxValue]:
    """The largest cells and their places, 0 and −1 for a window without cells."""
    cells = gather_windows(e, x, window)
    winner = _winner(e, _rank_taps(e, cells, window))
    numbers = e.constant(np.arange(prod(window.sizes)).reshape(window.sizes))
    return _take_winners(e, cells, winner), _take_winners(e, gather_windows(e, numbers, window, filler=-1), winner)


def _largest(e: Emitter, x: OnnxValue, window: Window) -> OnnxValue:
    """The largest cells alone, which takes less unless NaN matters or a window has none."""
    if not e.nan_safe and all(real(axis).any(axis=1).all() for axis in window.axes):
        return max_over_windows(e, x, window)
    cells = gather_windows(e, x, window)
    return _take_winners(e, cells, _winner(e, _rank_taps(e, cells, window)))


def _to_comparable(e: Emitter, x: OnnxValue) -> OnnxValue:
    """``x`` in a dtype whose maxima ONNX takes, 16-bit integers and truths being none."""
    return e.cast(x, INT32) if x.dtype == BOOL or (x.dtype.kind in "iu" and x.dtype.itemsize == 2) else x


def _rank_taps(e: Emitter, cells: OnnxValue, window: Window) -> OnnxValue:
    """For each tap 2 if it is NaN, 1 if no number exceeds it, else 0: the first of the highest is the winner.

    ONNX does not say what its maxima are of NaN, so they are taken of the numbers alone.
    """
    cell = mask(e, [real(axis) for axis in window.axes])
    lowest = -inf if cells.is_float else np.iinfo(cells.dtype).min
    numbers = cells if cell is None else e.cells("Where", cell, cells, lowest)
    nan = e.cells("IsNaN", cells) if cells.is_float else None
    if nan is not None:
        numbers = e.cells("Where", nan, e.constant(lowest, cells.dtype), numbers)
    top = e.reduce("ReduceMax", numbers, [cells.ndim - 1], keepdims=True)
    tied = e.cells("Equal", cells, top)
    standing = e.cast(tied if cell is None else e.cells("And", tied, cell), INT32)
    return standing if nan is None else e.cells("Add", standing, e.cells("Mul", e.cast(nan, INT32), 2))


def _winner(e: Emitter, standing: OnnxValue) -> OnnxValue:
    shape = (*standing.shape[:-1], 1)
    return e.node("ArgMax", [standing], shape, INT64, axis=standing.ndim - 1, keepdims=1)


def _take_winners(e: Emitter, cells: OnnxValue, winner: OnnxValue) -> OnnxValue:
    """The winners' cells, one for each window."""
    shape = (*winner.shape[:-1], cells.shape[-1])
    chosen = e.node("GatherElements", [e.expand(cells, shape), winner], winner.shape, cells.dtype, axis=len(shape) - 1)
    return e.reshape(chosen, winner.shape[:-1])


def _choose_taps(e: Emitter, attrs: MaxPool, x: OnnxValue, window: Window) -> OnnxValue:
    """The taps ``(*lead, *outputs, taps)`` that take part in derivatives."""
    standing = _rank_taps(e, gather_windows(e, x, window), window)
    if attrs.ties == "first":
        taps = e.constant(np.arange(standing.shape[-1]))
        first = e.cells("Equal", taps, _winner(e, standing))
        return e.cells("And", first, e.cells("Greater", standing, 0))
    top = e.reduce("ReduceMax", standing, [standing.ndim - 1], keepdims=True)
    return e.cells("And", e.cells("Equal", standing, top), e.cells("Greater", standing, 0))


def _share(e: Emitter, attrs: MaxPool, chosen: OnnxValue, amounts: OnnxValue) -> OnnxValue:
    """``amounts`` where chosen, in equal parts if the ties split them."""
    if attrs.ties == "split":
        count = e.reduce("ReduceSum", e.cast(chosen, amounts.dtype), [chosen.ndim - 1], keepdims=True)
        amounts = e.cells("Div", amounts, count)
    return e.cells("Where", chosen, amounts, 0)


@emits("max_pool_push")
def max_pool_push(e: Emitter, attrs: MaxPool, x: OnnxValue, dx: OnnxValue) -> OnnxValue:
    window = attrs.window(x)
    tangents = gather_windows(e, dx, window)
    if attrs.ties == "first":
        return _take_winners(e, tangents, _winner(e, _rank_taps(e, gather_windows(e, x, window), window)))
    chosen = _choose_taps(e, attrs, x, window)
    return e.reduce("ReduceSum", _share(e, attrs, chosen, tangents), [tangents.ndim - 1])


@emits("max_pool_pull")
def max_pool_pull(e: Emitter, attrs: MaxPool, x: OnnxValue, g: OnnxValue) -> OnnxValue:
    window = attrs.window(x)
    chosen = _choose_taps(e, attrs, x, window)
    return spread_to_cells(e, _share(e, attrs, chosen, e.reshape(g, (*g.shape, 1))), window)


# --- the average ------------------------------------------------------------------------------------------------------


@emits("avg_pool")
def avg_pool(e: Emitter, attrs: AvgPool, x: OnnxValue) -> OnnxValue:
    window = attrs.window(x)
    windows = native_pooling(window)
    includes_padding = attrs.count_include_pad and any(end for pair in attrs.padding for end in pair)
    if (
        windows is None
        or attrs.divisor_override is not None
        or "dilations" in windows.attributes
        or (includes_padding and windows.extended)
    ):
        return e.cells("Div", sum_over_windows(e, x, window), e.constant(_divisors(attrs, window), x.dtype))
    return _pool_natively(e, "AveragePool", x, windows, window.outputs, count_include_pad=int(includes_padding))


def _divisors(attrs: AvgPool, window: Window) -> Array:
    """One for each window; a window without cells, whose sum is 0, has 1."""
    if attrs.divisor_override is not None:
        return np.asarray(attrs.divisor_override)
    counted = belonging if attrs.count_include_pad else real
    counts: Array = reduce(np.multiply.outer, (counted(axis).sum(axis=1) for axis in window.axes), np.asarray(1))
    return np.maximum(counts, 1)


@emits("avg_pool_spread")
def avg_pool_spread(e: Emitter, attrs: AvgSpread, g: OnnxValue) -> OnnxValue:
    lead = g.shape[: g.ndim - len(attrs.sizes)]
    window = attrs.window(OnnxValue("", (*lead, *attrs.sizes), g.dtype))
    return spread_evenly(e, e.cells("Div", g, e.constant(_divisors(attrs, window), g.dtype)), window)


# --- powers -----------------------------------------------------------------------------------------------------------


@emits("lp_pool")
def lp_pool(e: Emitter, attrs: LpPool, x: OnnxValue) -> OnnxValue:
    window = attrs.window(x)
    sizes = e.cells("Abs", x)
    if attrs.p == inf:
        return _largest(e, sizes, window)
    return raise_to(e, sum_over_windows(e, raise_to(e, sizes, attrs.p), window), 1 / attrs.p)


def raise_to(e: Emitter, x: OnnxValue, exponent: float) -> OnnxValue:
    """``x`` to a power, which is a double whatever ``x`` is."""
    return x if exponent == 1 else e.node("Pow", [x, e.constant(exponent, np.float64)], x.shape, x.dtype)


# --- smooth max pooling, around each window's pivot as in ``gradspec.spec.smooth_pool`` -------------------------------


@dataclass(frozen=True)
class SoftenedWindows:
    """Every window around its pivot; ``counted`` are the taps that take part, None if all do."""

    window: Window
    counted: OnnxValue | None
    center: OnnxValue
    powers: OnnxValue
    total: OnnxValue


def _soften(e: Emitter, attrs: SmoothPool, x: OnnxValue) -> SoftenedWindows:
    window = attrs.window(x)
    takes_part = belonging if attrs.padding_mode == "zeros" else real
    counted = mask(e, [takes_part(axis) for axis in window.axes])
    cells = gather_windows(e, x, window)
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
    far = e.cells("Mul", halves, _double(beta, x.dtype))
    near = e.cells("Where", e.cells("IsInf", gap), far, e.cells("Mul", gap, beta))
    return e.cells("Where", e.cells("Equal", x, center), e.constant(0, x.dtype), near)


def _double(beta: float, dtype: DType) -> float:
    """2β, or the largest number of its sign: either way, a difference that overflows is as good as infinite."""
    largest = float(np.finfo(dtype).max)
    return max(-largest, min(2 * beta, largest))


def _weights(e: Emitter, soft: SoftenedWindows) -> OnnxValue:
    weights = e.cells("Div", soft.powers, soft.total)
    return weights if soft.counted is None else e.cells("Where", soft.counted, weights, 0)


@emits("smooth_max_pool")
def smooth_max_pool(e: Emitter, attrs: SmoothPool, x: OnnxValue) -> OnnxValue:
    soft = _soften(e, attrs, x)
    y = e.cells("Add", soft.center, e.cells("Div", e.cells("Log", soft.total), attrs.beta))
    if soft.counted is not None:  # a window without cells is 0; its total is too, and no other's
        y = e.cells("Where", e.cells("Equal", soft.total, 0), e.constant(0, x.dtype), y)
    return e.reshape(y, y.shape[:-1])


@emits("smooth_max_mean")
def smooth_max_mean(e: Emitter, attrs: SmoothPool, x: OnnxValue, u: OnnxValue) -> OnnxValue:
    soft = _soften(e, attrs, x)
    terms = e.cells("Mul", _weights(e, soft), gather_windows(e, u, soft.window))
    return e.reduce("ReduceSum", terms, [terms.ndim - 1])


@emits("smooth_max_spread")
def smooth_max_spread(e: Emitter, attrs: SmoothPool, x: OnnxValue, g: OnnxValue) -> OnnxValue:
    soft = _soften(e, attrs, x)
    return spread_to_cells(e, e.cells("Mul", _weights(e, soft), e.reshape(g, (*g.shape, 1))), soft.window)
