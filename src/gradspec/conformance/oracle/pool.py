"""Pooling on float arrays: winners, gathered leaves, and what moves numbers to places or to columns."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any

import numpy as np

from gradspec import spec
from gradspec.backends.tables import ABSENT, hits, table, take
from gradspec.conformance.model.problem import Array, Shape
from gradspec.conformance.oracle.meaning import (
    Bools,
    Floats,
    Ints,
    Meaning,
    MeaningRule,
    Selected,
    comparable_array,
    float_array,
    lead_of,
    lowest,
    planes_of,
)
from gradspec.conformance.oracle.mixing import averages
from gradspec.conformance.oracle.sums import leaf_sums
from gradspec.spec.pool import bins, divisor_rule, everything, require_ties, sliding
from gradspec.spec.tensor import Tensor, require_shape
from gradspec.spec.window import Ints as PerAxis
from gradspec.spec.window import Padding, Window, regular, spatial_rank, spatial_sizes

# --- maxima ----------------------------------------------------------------------------------------------------------


class Winners:
    """Who wins and who ties, for every plane and window."""

    def __init__(self, x: Array, window: Window, keepdims: bool = True) -> None:
        self.window, self.taps, self.planes = window, table(window), planes_of(x, window.rank)
        self.shape = lead_of(x, window.rank) + (window.outputs if keepdims else ())
        self.tied: Bools = self._largest(take(self.planes, self.taps), self.taps >= 0)
        first = np.argmax(self.tied, axis=-1)
        found = np.take_along_axis(np.broadcast_to(self.taps, self.tied.shape), first[..., None], -1)[..., 0]
        self.winners: Ints = np.where(self.tied.any(axis=-1), found, -1)

    def _largest(self, cells: Array, real: Bools) -> Bools:
        """The real cells that no other exceeds."""
        nans, least = np.isnan(cells) & real, lowest(cells.dtype)
        top = np.where(real & ~nans, cells, least).max(axis=-1, keepdims=True, initial=least)
        return np.asarray(np.where(nans.any(axis=-1, keepdims=True), nans, real & (cells == top)))

    def values(self) -> Selected:
        """What the winners hold."""
        return self._select(self.planes)

    def indices(self) -> Selected:
        return Selected(self.winners.reshape(self.shape))

    def _select(self, planes: Array) -> Selected:
        chosen = np.take_along_axis(planes, np.maximum(self.winners, 0), axis=-1)
        return Selected(np.where(self.winners >= 0, chosen, 0).reshape(self.shape))

    def tangents(self, dx: Array, ties: str) -> Meaning:
        planes = planes_of(dx, self.window.rank)
        if ties == "first":
            return self._select(planes)
        leaves = np.where(self.tied, take(planes, self.taps), 0.0)
        share = np.maximum(self.tied.sum(axis=-1, keepdims=True), 1).astype(np.float64)
        return leaf_sums(self.shape, leaves, share if ties == "split" else None, dx)

    def cotangents(self, g: Array, ties: str, shape: Shape) -> Meaning:
        """What each cell receives from the windows that chose it."""
        cells = int(np.prod(self.window.sizes))
        offset = np.arange(len(self.winners))[:, None, None] * cells
        if ties == "first":
            targets, share = self.winners[..., None], np.ones((*self.winners.shape, 1))
        else:
            targets = np.where(self.tied, self.taps, -1)
            share = np.broadcast_to(self.tied.sum(axis=-1, keepdims=True), targets.shape).astype(np.float64)
        received = hits(np.where(targets >= 0, targets + offset, -1), cells * len(self.winners))
        sent = np.broadcast_to(g.astype(np.float64).reshape(*self.winners.shape, 1), targets.shape)
        divisors = np.where(received >= 0, share.ravel()[np.maximum(received, 0)], 1.0) if ties == "split" else None
        return leaf_sums(shape, take(sent.ravel(), received), divisors, g)


def _max(x: Array, window: Window, return_indices: bool = False) -> Meaning | tuple[Meaning, Meaning]:
    won = Winners(x, window)
    return (won.values(), won.indices()) if return_indices else won.values()


# --- averages --------------------------------------------------------------------------------------------------------


def _divisors(taps: Ints, count_include_pad: bool, divisor_override: float | None) -> Floats:
    """One divisor per output; 1 for windows without a real cell, which are 0 whatever divides them."""
    divisor_rule(Tensor((1,), [1.0]), count_include_pad, divisor_override)
    if divisor_override is not None:
        return np.full(len(taps), float(divisor_override))
    counted = taps != ABSENT if count_include_pad else taps >= 0
    return np.asarray(np.maximum(counted.sum(axis=1), 1), np.float64)


def _avg(x: Array, window: Window, count_include_pad: bool = False, divisor_override: float | None = None) -> Meaning:
    shape, taps = lead_of(x, window.rank) + window.outputs, table(window)
    planes, divisors = planes_of(x, window.rank), _divisors(taps, count_include_pad, divisor_override)
    mixed = partial(averages, planes, np.ones(1), divisors, window)
    return leaf_sums(shape, take(planes, taps), divisors[:, None], x, mixed)


def _avg_vjp(
    x: Array, g: Array, window: Window, count_include_pad: bool = False, divisor_override: float | None = None
) -> Meaning:
    taps = table(window)
    received = hits(taps, int(np.prod(window.sizes)))
    outputs = np.where(received >= 0, received // taps.shape[1], -1)
    divisors = _divisors(taps, count_include_pad, divisor_override)
    planes, shares = planes_of(g, window.rank), np.where(outputs >= 0, divisors[np.maximum(outputs, 0)], 1.0)
    mixed = partial(averages, planes, divisors, np.ones(prod(window.sizes)), window)
    return leaf_sums(x.shape, take(planes, outputs), shares, g, mixed)


# --- regular, adaptive and global windows ----------------------------------------------------------------------------


def sliding_window(x: Array, **given: Any) -> Window:
    return sliding(x, *(given[name] for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")))


def pooling_rule(reduction: MeaningRule, window_of: Callable[..., Window], names: tuple[str, ...]) -> MeaningRule:
    """An operator: its reduction of the inputs, and of the options called ``names`` that it has, over its windows."""

    def build(**arguments: Any) -> Meaning | tuple[Meaning, ...]:
        given = {name: np.asarray(arguments[name]) for name in ("x", "dx", "g") if name in arguments}
        x, window = given["x"], window_of(**arguments | given)
        require_ties(arguments.get("ties", "first"))
        inputs = list(map(comparable_array if reduction is _max else float_array, given.values()))
        outer, keepdims = lead_of(x, window.rank), arguments.get("keepdims", True)
        if "dx" in given:
            require_shape("tangent", given["dx"], x.shape)  # type: ignore[arg-type]
        if "g" in given:
            require_shape("cotangent", given["g"], outer + (window.outputs if keepdims else ()))  # type: ignore[arg-type]
            inputs[1] = inputs[1].reshape(outer + window.outputs)
        found: Meaning | tuple[Meaning, ...] = reduction(
            *inputs, window, *(arguments[name] for name in names if name in arguments)
        )
        if not keepdims and isinstance(found, Meaning) and "g" not in given:
            found.shape = outer
        return found

    return build


_WINDOWS: dict[str, Callable[..., Window]] = {
    "": sliding_window,
    "adaptive_": lambda x, output_size, **_: bins(x, output_size),
    "global_": lambda x, rank, **_: everything(x, rank),
}
DIVISORS = ("count_include_pad", "divisor_override")
_REDUCTIONS: dict[str, tuple[MeaningRule, tuple[str, ...]]] = {
    "max_pool": (_max, ("return_indices",)),
    "max_pool_jvp": (lambda x, dx, window, ties: Winners(x, window).tangents(dx, ties), ("ties",)),
    "max_pool_vjp": (lambda x, g, window, ties: Winners(x, window).cotangents(g, ties, x.shape), ("ties",)),
    "avg_pool": (_avg, DIVISORS),
    "avg_pool_jvp": (lambda x, dx, window, *rule: _avg(dx, window, *rule), DIVISORS),
    "avg_pool_vjp": (_avg_vjp, DIVISORS),
}


# --- operators that move numbers, and their transposes, which add them up ---------------------------------------------


def _unpool(x: Array, indices: Array, output_size: Shape, **_: object) -> Meaning:
    x, places = comparable_array(x), np.asarray(indices)
    rank, cells = spatial_rank("output_size", output_size), int(np.prod(output_size))
    _require_indices(lead_of(x, rank), tuple(output_size), places)
    planes = planes_of(places, rank)
    offset = np.arange(len(planes))[:, None] * cells
    received = hits(np.where(planes >= 0, planes + offset, -1), cells * len(planes))
    return _add_leaves(lead_of(x, rank) + tuple(output_size), take(planes_of(x, 0).ravel(), received), x)


def _require_indices(lead: Shape, sizes: Shape, places: Array) -> None:
    """Have the specification say what is wrong with indices, if anything is."""
    alike = places.shape[: places.ndim - len(sizes)] == lead and places.dtype.kind in "iu"
    if not alike or (places.size and not -1 <= places.min() <= places.max() < np.prod(sizes)):
        spec.max_gather(np.zeros((*lead, *sizes)), places, len(sizes))


def _add_leaves(shape: Shape, leaves: Array, of: Array) -> Meaning:
    """Sums of leaves; integers wrap around at the ends of their dtype."""
    if of.dtype.kind in "iu":
        return Selected(leaves.sum(axis=-1).astype(of.dtype).reshape(shape))
    return leaf_sums(shape, leaves, None, of)


def _gather(x: Array, indices: Array, rank: int) -> Meaning:
    x, places = comparable_array(x), np.asarray(indices)
    _require_indices(lead_of(x, rank), x.shape[x.ndim - rank :], places)
    planes, chosen = planes_of(x, rank), planes_of(places, rank)
    found = np.take_along_axis(planes, np.maximum(chosen, 0), axis=-1)
    return Selected(np.where(chosen >= 0, found, 0).reshape(places.shape))


def _unpool_vjp(x: Array, indices: Array, g: Array, output_size: Shape) -> Meaning:
    rank = spatial_rank("output_size", output_size)
    require_shape("cotangent", np.asarray(g), lead_of(np.asarray(x), rank) + tuple(output_size))  # type: ignore[arg-type]
    return _gather(g, indices, rank)


def _unfold(x: Array, kernel_size: Shape, dilation: PerAxis, padding: Padding, stride: PerAxis, **_: object) -> Meaning:
    x, rank = comparable_array(x), spatial_rank("kernel_size", kernel_size)
    taps = table(regular(spatial_sizes(x.shape, rank, channels=1), kernel_size, stride, padding, dilation))
    *lead, channels = lead_of(x, rank)
    columns = take(planes_of(x, rank), taps.T)
    return Selected(columns.reshape(*lead, channels * taps.shape[1], len(taps)))


def _fold(
    x: Array, output_size: Shape, kernel_size: Shape, dilation: PerAxis, padding: Padding, stride: PerAxis, **_: object
) -> Meaning:
    x = comparable_array(x)
    window = regular(tuple(output_size), kernel_size, stride, padding, dilation)
    taps, outputs = table(window), int(np.prod(window.outputs))
    channels = x.shape[-2] // taps.shape[1]
    received = hits(taps, int(np.prod(window.sizes)))  # places in [output, tap]; columns are stored [tap, output]
    output, tap = np.divmod(np.maximum(received, 0), taps.shape[1])
    stored = np.where(received >= 0, tap * outputs + output, -1)
    blocks = planes_of(x, 0).reshape(int(np.prod(x.shape[:-2])) * channels, taps.shape[1] * outputs)
    return _add_leaves((*x.shape[:-2], channels, *window.sizes), take(blocks, stored), x)


MEANINGS: dict[str, MeaningRule] = {
    **{
        f"{kind}{name}": pooling_rule(reduction, window_of, options)
        for kind, window_of in _WINDOWS.items()
        for name, (reduction, options) in _REDUCTIONS.items()
    },
    "max_unpool": _unpool,
    "max_unpool_jvp": lambda x, dx, **rest: _unpool(dx, **rest),
    "max_unpool_vjp": _unpool_vjp,
    "max_gather": _gather,
    "max_gather_jvp": lambda x, dx, **rest: _gather(dx, **rest),
    "max_gather_vjp": lambda x, g, rank, **rest: _unpool(g, output_size=spatial_sizes(np.shape(x), rank), **rest),
    "unfold": _unfold,
    "unfold_jvp": lambda x, dx, **rest: _unfold(dx, **rest),
    "unfold_vjp": lambda x, g, kernel_size, **rest: _fold(
        g, spatial_sizes(np.shape(x), spatial_rank("kernel_size", kernel_size), channels=1), kernel_size, **rest
    ),
    "fold": _fold,
    "fold_jvp": lambda x, dx, **rest: _fold(dx, **rest),
    "fold_vjp": lambda x, g, **rest: _unfold(g, **rest),
}
