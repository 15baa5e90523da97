"""Bounds contain every value: of the graph over the reals, and of compiled kernels; at points, corners and centres."""

from collections.abc import Iterator
from functools import cache
from math import inf
from random import Random
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.domains import Ball
from gradspec.ops.table import operators
from gradspec.spec.errors import UnsupportedError
from graph.op_cases import GraphCase
from graph.test_op_laws import CASES, several

RADII = (0.0, 2.0**-6, 0.75)

NO_BOUNDS = {
    "topk": "which cells are the largest",
    "sort": "which cells are the largest",
    "return_indices": "which cell wins",
    "at the winners": "which cell wins",
    "grid_sample bilinear zeros (1, 2": "integers that depend on the box",
    "grid_sample nearest border (1, 1": "integers that depend on the box",
}
"""What is in the names of rows of the table with results that have no bounds, and what is said of them."""


@cache
def graph_of(case: GraphCase, dtype: Any) -> Any:
    return case.graph(dtype)


def boxes_of(case: GraphCase, radius: float, dtype: Any = np.float64) -> tuple[list[Any], list[Any]]:
    """Boxes around the numbers of a row, of its floats; its integers are points. Positive ones stay positive."""
    arrays = case.arrays()
    low, high = list(arrays), list(arrays)
    for i in case.floats:
        low[i], high[i] = ((arrays[i] + sign * radius).astype(dtype) for sign in (-1, 1))
        if case.data == "positive":
            low[i] = np.maximum(low[i], np.asarray(2.0**-4, dtype))
            high[i] = np.maximum(low[i], high[i])
    return low, high


def points(low: list[Any], high: list[Any], random: Random, count: int = 2) -> Iterator[list[Any]]:
    """Both ends, corners and points in between; all of them dyadic, as the ends are."""
    yield low
    yield high
    for steps in [(0, 4)] * count + [(0, 1, 2, 3, 4)] * count:
        yield [
            a + (b - a) * _drawn(a.shape, steps, random) if a.dtype.kind == "f" else a
            for a, b in zip(low, high, strict=True)
        ]


def _drawn(shape: tuple[int, ...], steps: tuple[int, ...], random: Random) -> np.ndarray:
    return np.array([random.choice(steps) / 4 for _ in range(int(np.prod(shape)))]).reshape(shape)


def bounds_of(case: GraphCase, dtype: Any, low: list[Any], high: list[Any], **options: Any) -> list[tuple[Any, Any]]:
    """Bounds over boxes of the floats; the boxes come first, so the graph's inputs are put in that order."""
    graph = ordered(case, dtype)
    floats, rest = case.floats, [i for i in range(len(low)) if i not in case.floats]
    ends = [tuple(values[i] for i in floats) for values in (low, high)]
    found = gs.bounds(graph, *ends, *(low[i] for i in rest), **options)
    return list(zip(several(found.lower), several(found.upper), strict=True))


@cache
def ordered(case: GraphCase, dtype: Any) -> Any:
    """The row's graph with its floats in front."""
    order = [*case.floats, *(i for i in range(len(case.inputs)) if i not in case.floats)]
    types = [v.type for v in graph_of(case, dtype).inputs]
    return gs.trace(lambda *given: case.function(*_in_place(given, order)), *(types[i] for i in order))


def _in_place(given: Any, order: list[int]) -> list[Any]:
    return [given[order.index(i)] for i in range(len(order))]


def inside(low: Any, cells: Any, high: Any) -> bool:
    """Whether no cell is outside: of rationals exactly, and of balls, which are narrow, certainly."""
    for a, c, b in zip(map(float, low.flat), cells, map(float, high.flat), strict=True):
        c = c if isinstance(c, Ball) else gs.exact.scalar(c)
        at = float if isinstance(c, Ball) else gs.exact.scalar
        if np.isnan(a) or np.isnan(b) or (a > -inf and c < at(a)) or (b < inf and c > at(b)):
            return False
    return True


def refused(case: GraphCase) -> str | None:
    return next((why for name, why in NO_BOUNDS.items() if name in case.id), None)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.id)
def test_bounds_contain_the_exact_and_the_computed_values(case: GraphCase) -> None:
    low, high = boxes_of(case, RADII[1])
    why = refused(case)
    if why is not None:
        with pytest.raises(UnsupportedError, match=why):
            bounds_of(case, gs.f64, low, high, method="boxes")
        return
    for radius in RADII:
        low, high = boxes_of(case, radius)
        found = [
            bounds_of(case, gs.f64, low, high, method="boxes", kernels="real"),
            bounds_of(case, gs.f64, low, high, method="crown"),
        ]
        for x in points(low, high, Random(case.id)):
            exact = several(gs.evaluate(graph_of(case, gs.f64), *x, domain=case.domain))
            computed = several(graph_of(case, gs.f64)(*x))
            for ends in found:
                assert all(inside(a, t.cells, b) for (a, b), t in zip(ends, exact, strict=True))
            assert all(np.all(a <= y) and np.all(y <= b) for (a, b), y in zip(found[1], computed, strict=True))


def test_every_operator_has_bounds_or_says_why() -> None:
    without = {name for name, op in operators().items() if op.sums is None and op.enclosure is None}
    assert without == set()
