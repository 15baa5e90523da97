"""Quick cases in which any three choices of an operator's geometry meet: a covering array of strength 3, row by row.

Kernels have fast paths for some geometries, and mistakes where the condition of a path leaves one out: that takes three
or four things at once, and a size beyond the first tile. So everything that decides which path is taken is a factor of
a few levels, and a row has one level of each. Most paths are written for the windows of common networks, so of three
rows two are one of those (``COMMON``) with one thing changed. Numbers are small integers, whose sums are exact but in
smooth maxima, and a case is one call that is judged once. It takes a tenth of the time that others take, so there are
many.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations, product
from math import prod
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gradspec.conformance.cases.axes import DrawnAxis, output_count
from gradspec.conformance.cases.combinations import RankedOperator
from gradspec.conformance.cases.numbers import generator
from gradspec.conformance.cases.problems import assemble
from gradspec.conformance.model.problem import (
    AVERAGES,
    COLUMNS,
    CONVOLUTIONS,
    INPUTS,
    SELECTIONS,
    SLIDING,
    SLIDING_POOLS,
    Problem,
)

Row: TypeAlias = dict[str, Any]
"""A level of every factor."""

CASES, FIRST, FIRST_CASES = 3, 384, 288
"""Of a batch. Where operators are many and each has its turn seldom, so many first batches are long."""
CANDIDATES = 48
"""Rows of which the one is taken that brings most together."""
MOST_LEAVES, SMOOTH_LEAVES = 1 << 15, 1 << 9
"""Of a case; a row that would have more has fewer windows along all axes but the last. Exponentials take long to
enclose."""

STRIDES = {"unit": 1, "two": 2, "three": 3, "kernel": 0}
"""Strides of all axes, of the last or of the others; 0 is the kernel."""
DILATIONS = ("none", "all", "last", "others", "stride", "multiple")
"""Which axes are dilated, by 2; or all, by the stride of each axis or twice that."""
COMMON: tuple[Row, ...] = (
    {"kernel": 3, "stride": "two", "padding": "half"},
    {"kernel": 2, "stride": "kernel", "padding": "none"},
    {"kernel": 3, "stride": "unit", "padding": "half"},
    {"kernel": 4, "stride": "kernel", "padding": "none"},
    {"kernel": "wide", "stride": "kernel", "padding": "none"},
    {"kernel": "whole", "stride": "unit", "padding": "none"},
    {"kernel": "long", "stride": "unit", "padding": "half"},
)
"""The windows that kernels are written for, without dilation: of few taps, patches, all cells, and many taps."""
CHANGES: tuple[tuple[str, Any], ...] = (
    *(("dilation", level) for level in ("last", "others", "all")),
    *(("padding", level) for level in ("none", "half", "sided")),
    *(("kernel", level) for level in (2, 3, 4)),
    *(("stride", level) for level in ("unit", "two", "kernel")),
    *(("rest", level) for level in ("last", "others", "any")),
    *(("layout", level) for level in ("cropped", "non_contiguous")),
    *(("strided", level) for level in ("last", "others")),
)
"""What is changed of them, one thing at a time."""
USUAL = {"rank": 0.5, "dtype": 0.85, "option": 0.85}
"""How often the first level of another factor comes beside them; all levels share what is left."""
LARGE = {"height": 2, "width": 1}
"""The first of the levels that others have there: fast paths ask for several rows."""
WIDTHS = {"few": (1, 4), "vector": (5, 17), "vectors": (18, 40), "tiles": (41, 90)}
"""Windows along the last axis; bins, or cells where there is one window."""
VECTORS = {"any": (1, 1), "outputs": (4, 1), "cells": (1, 4), "both": (4, 4)}
"""What the windows and the cells along the last axis are multiples of: fast paths ask for whole vectors of either."""
MANY_TAPS = ("long", "whole")
"""Kernels of more taps than paths for small windows take: of many windows along the last axis, or of one over the last
two."""
GROUPS = {
    "one": (1, 1, 1),
    "plain": (1, 5, 17),
    "grouped": (2, 3, 2),
    "depthwise": (3, 1, 1),
    "multiplier": (2, 1, 3),
}
"""Groups of a convolution, and the channels in and out of each."""
OPTIONS: dict[str, tuple[Row, Sequence[str]]] = {
    "plain": ({}, tuple(INPUTS)),
    "ceil_mode": ({"ceil_mode": True}, SLIDING_POOLS),
    "count_exclude_pad": ({"count_include_pad": False}, ("avg_pool",)),
    "divisor_override": ({"divisor_override": 3}, ("avg_pool",)),
    "all_ties": ({"ties": "all"}, SELECTIONS),
    "split_ties": ({"ties": "split"}, SELECTIONS),
    "ignored_padding": ({"padding_mode": "ignore"}, ("smooth_max_pool",)),
}
"""Attributes of poolings beside their windows, and the operators that have them."""
LAYERS = {
    "channels_last": "channels_last",
    **dict.fromkeys(("cropped", "non_contiguous", "reversed"), "non_contiguous"),
}
"""Layouts beside the usual one, and the values of an operator that has them."""
SWEPT = tuple(op for op in INPUTS if op != "max_unpool")
"""All operators of windows; unpooling has none."""


def factors_of(op: str, entries: Sequence[RankedOperator]) -> dict[str, tuple[Any, ...]]:
    """The factors of an operator and their levels, as far as they are offered."""
    values = frozenset[str]().union(*(entry.values for entry in entries))
    pairs = {pair for entry in entries for pair in entry.pairs()}
    factors: dict[str, tuple[Any, ...]] = {
        "rank": tuple(sorted((entry.rank for entry in entries), key=lambda rank: rank != 2)),
        "mode": tuple(dict.fromkeys(mode for mode, _ in sorted(pairs) if mode != "second")) or ("second",),
        "dtype": tuple(sorted({dtype for _, dtype in pairs}, key=lambda dtype: (dtype != "f32", dtype))),
        "layout": ("contiguous", *(name for name, needed in LAYERS.items() if needed in values)),
        "width": tuple(WIDTHS),
        "height": (1, 2, 5, 9),
        "vectors": tuple(VECTORS),
    }
    if op in SLIDING:
        factors |= {
            "kernel": (3, 2, 4, "mixed", "wide", "long", "whole"),
            "stride": tuple(STRIDES),
            "strided": ("all", "last", "others"),
            "dilation": DILATIONS,
            "padding": ("none", "half", "sided", "beyond"),
            "rest": ("none", "any", "last", "others"),
        }
    if op in CONVOLUTIONS:
        return factors | {"groups": tuple(GROUPS), "bias": (True, False), "lead": ((), (1,), (3,))}
    options = tuple(name for name, (_, ops) in OPTIONS.items() if op in ops)
    return factors | {"option": options, "lead": ((), (1,), (2, 3), (19,), (64,))}


# --- the array --------------------------------------------------------------------------------------------------------


class CoveringArray:
    """Rows of levels. After enough of them all triples of levels of different factors have met; later ones are random.

    >>> array = CoveringArray({"mode": (0, 1), "b": (0, 1), "c": (0, 1), "d": (0, 1, 2)}, generator(0))
    >>> len({tuple(array.row(i)[name] for name in ("mode", "b", "c")) for i in range(24)})
    8
    """

    def __init__(self, factors: Mapping[str, tuple[Any, ...]], rng: np.random.Generator) -> None:
        self.factors, self.rng = factors, rng
        self._counts = np.asarray([len(levels) for levels in factors.values()])
        self._starts = np.cumsum(self._counts) - self._counts
        self._triples = np.asarray(list(combinations(range(len(factors)), 3))).T
        self._met = np.zeros((int(self._counts.sum()),) * 3, np.bool_)
        self._rows: list[NDArray[np.int64]] = []
        self._near_common: list[Row] = []

    def row(self, number: int) -> Row:
        while len(self._rows) <= number:
            self._rows.append(self._next())
        levels = zip(self.factors, self._rows[number].tolist(), strict=True)
        return {name: self.factors[name][level] for name, level in levels}

    def _next(self) -> NDArray[np.int64]:
        """Two rows near common ones, then the one of some random rows in which most triples are new."""
        rows = self.rng.integers(0, self._counts, (CANDIDATES, len(self._counts)))
        if len(self._rows) % 3 < 2:
            rows = self._make_near_common(rows[0])[None]
        places = np.ravel_multi_index(tuple((rows + self._starts).T[self._triples]), self._met.shape)
        best = int(np.argmin(self._met.take(places).sum(axis=0)))
        self._met.put(places[:, best], True)
        return np.asarray(rows[best])

    def _make_near_common(self, row: NDArray[np.int64]) -> NDArray[np.int64]:
        """A random row made near a common one; all of those come in random order before any comes again."""
        if not self._near_common:
            rows = near_common(self.factors["mode"])
            self._near_common = [rows[i] for i in self.rng.permutation(len(rows))]
        near = self._near_common.pop()
        for i, (name, levels) in enumerate(self.factors.items()):
            if near.get(name) in levels:
                row[i] = levels.index(near[name])
            elif name in LARGE:
                row[i] = self.rng.integers(LARGE[name], len(levels))
            elif self.rng.random() < USUAL.get(name, 0):
                row[i] = 0
        return row


def near_common(modes: Sequence[str]) -> list[Row]:
    """Common windows in every mode, in both common layouts, with at most one thing changed; each once."""
    rows = list[Row]()
    for windows, layout, mode, (name, level) in product(COMMON, ("contiguous", "channels_last"), modes, CHANGES):
        row = {"strided": "all", "dilation": "none", "rest": "none", **windows, "layout": layout, "mode": mode}
        row[name] = level
        if row not in rows:
            rows.append(row)
    return rows


def turns(swept: Mapping[str, Any]) -> list[str]:
    """The order in which operators are swept: those with most paths come four times, and the others between them.

    >>> turns({"fold": (), "conv": ()})
    ['conv', 'fold', 'conv', 'conv', 'conv']
    """
    often = [op for op in swept if op in ("max_pool", "avg_pool", *CONVOLUTIONS)]
    others = [op for op in swept if op not in often]
    return [op for i in range(4) for op in (*often, *others[i::4])]


def rows_of(sweep: int, order: Sequence[str], few: bool) -> Iterator[tuple[str, int]]:
    """The operators and rows of a batch of quick cases: operators take turns. There may be few of them or many.

    >>> list(rows_of(1, ["conv", "conv", "fold"], few=True)), len([*rows_of(0, ["conv", "fold"], few=False)])
    ([('conv', 2), ('conv', 3), ('fold', 1)], 288)
    """
    long = 0 if few else FIRST
    first = min(sweep, long) * FIRST_CASES + max(0, sweep - long) * CASES
    for turn, place in (divmod(i, len(order)) for i in range(first, first + (FIRST_CASES if sweep < long else CASES))):
        yield order[place], turn * order.count(order[place]) + order[:place].count(order[place])


@lru_cache(maxsize=64)
def array_of(op: str, entries: tuple[RankedOperator, ...], seed: int) -> CoveringArray:
    return CoveringArray(factors_of(op, entries), generator(seed, *op.encode(), len(entries)))


# --- problems ---------------------------------------------------------------------------------------------------------


def problem_of(op: str, row: Row, rng: np.random.Generator) -> Problem:
    """A problem with the levels of a row."""
    rank, lead = row["rank"], tuple(row["lead"])
    others = [int(min(n, 9 // rank)) for n in rng.permutation([row["height"], 2, 3, 1])[: rank - 1]]
    width = int(rng.integers(*WIDTHS[row["width"]], endpoint=True))
    counts = [*others[:-1], *[row["height"]][: rank - 1], width]
    if op not in SLIDING:
        return _binned(op, row, _few(counts, MOST_LEAVES // (prod(lead) * 4**rank)), rng)
    axes = _axes(row, rng)
    counts[-2:] = [1] * len(counts[-2:]) if row["kernel"] == "whole" else counts[-2:]
    kernel, leaves = prod(axis.kernel for axis in axes), SMOOTH_LEAVES if op == "smooth_max_pool" else MOST_LEAVES
    lead = lead if kernel * prod(lead) <= leaves else (2,)
    (*before, channels), (groups, inner, outer) = lead or (2,), GROUPS[row.get("groups", "one")]
    most = leaves // (kernel * groups * inner * outer * prod(lead))
    axes = _sized(row, axes, _few(counts, most), most, rng)
    if op in CONVOLUTIONS:
        if op == "conv_transpose":  # it writes what a convolution of these windows reads
            axes = [axis._replace(size=axis.outputs) for axis in axes]
        return assemble(op, axes, lead, (groups, inner, outer), row["bias"])
    if op in COLUMNS:
        return assemble(op, axes, (*before, channels))
    options: Row = {"ceil_mode": False} | ({"ties": "first"} if op in SELECTIONS else {})
    options |= {"count_include_pad": True, "divisor_override": None} if op in AVERAGES else {}
    options |= {"beta": float(rng.choice((1.0, -1.0))), "padding_mode": "zeros"} if op == "smooth_max_pool" else {}
    return assemble(op, axes, lead, **(options | OPTIONS[row["option"]][0]))


def _axes(row: Row, rng: np.random.Generator) -> list[DrawnAxis]:
    """The windows of every axis, whose sizes are not known yet: in some rows planes, along two axes.

    Only the last two are padded beyond half a window.
    """
    rank, found = row["rank"], []
    planar = (rank == 4 and row["kernel"] != 2) or rng.random() < 0.3
    for i in range(rank):
        last, k = i == rank - 1, row["kernel"]
        if i < rank - 2 and (planar or k in MANY_TAPS):
            k = 1
        elif k == "mixed":
            k = int(rng.integers(1, 5))
        elif k == "wide":
            k = int(rng.integers(5, 12)) if last else int(rng.integers(1, 3))
        elif k in MANY_TAPS:
            k = int(rng.integers(5, 10) if k == "whole" and rank > 1 else rng.integers(26, 71) if last else 1)
        s = STRIDES[row["stride"] if row["strided"] in ("all", "last" if last else "others") else "unit"] or k
        d = _dilation(row["dilation"], last, s)
        extent = d * (k - 1) + 1
        low, high = (int(n) for n in rng.integers(0, extent, 2))
        padding = row["padding"] if i >= rank - 2 or row["padding"] == "none" else "half"
        if padding != "sided":
            low = high = {"none": 0, "half": extent // 2, "beyond": extent - 1 + int(rng.integers(2))}[padding]
        found.append(DrawnAxis(0, k, s, low, high, d))
    return found


def _dilation(level: str, last: bool, stride: int) -> int:
    """
    >>> [_dilation(level, True, 3) for level in DILATIONS]
    [1, 2, 2, 1, 3, 6]
    """
    if level in ("stride", "multiple"):
        return stride * (1 + (level == "multiple"))
    return 1 + (level == "all" or level == ("last" if last else "others"))


def _sized(row: Row, axes: list[DrawnAxis], counts: list[int], most: int, rng: np.random.Generator) -> list[DrawnAxis]:
    """The axes with the cells that so many windows need, and the rest that no further window has."""
    found = []
    for i, (axis, count) in enumerate(zip(axes, counts, strict=True)):
        extent = axis.dilation * (axis.kernel - 1) + 1
        more = int(rng.integers(axis.stride)) if row["rest"] == "any" else 0
        if row["rest"] == ("last" if i == len(axes) - 1 else "others") and axis.stride > 1:
            more = int(rng.integers(1, axis.stride))
        few, each = VECTORS[row["vectors"] if i == len(axes) - 1 and row["kernel"] != "whole" else "any"]
        least = extent - axis.lo - axis.hi + more - axis.stride
        upper = max(count, min(count + few * each - 1, most // prod(counts[:-1])))
        fits = (n for n in range(upper, 0, -1) if n % few == (n * axis.stride + least) % each == 0)
        size = max(1, next(fits, count) * axis.stride + least)
        outputs = int(output_count(size, extent, axis.stride, axis.lo, axis.hi, False))
        rest = size - ((outputs - 1) * axis.stride + extent - axis.lo - axis.hi)
        found.append(axis._replace(size=size, outputs=outputs, extra=rest))
    return found


def _few(counts: Sequence[int], most: int) -> list[int]:
    """Windows along every axis, of which there are fewer where all together would be more than ``most``."""
    *others, last = counts
    while prod(counts) > most and prod(others) > 1:
        counts = [*(others := [max(1, n // 2) for n in others]), last]
    return [*others, max(1, min(last, most // prod(others)))]


def _binned(op: str, row: Row, counts: Sequence[int], rng: np.random.Generator) -> Problem:
    own = {"ties": "first", **OPTIONS[row["option"]][0]} if op in SELECTIONS else {}
    is_global = op.startswith("global")
    own |= {"keepdims": bool(rng.integers(2))} if is_global else {}
    (*others, last), (few, each) = counts, VECTORS[row["vectors"]]
    bins = [*others, -(-last // few) * few]
    sizes = [n if is_global else int(n * rng.integers(1, 4) + rng.integers(0, n)) for n in bins]
    sizes[-1] = -(-sizes[-1] // each) * each
    axes = [DrawnAxis(size, outputs=n) for size, n in zip(sizes, bins, strict=True)]
    return assemble(op, axes, tuple(row["lead"]), **own)
