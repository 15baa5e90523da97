"""Bounds contain every value: of the graph over the reals, and of compiled kernels; at points, corners and centres."""

from random import Random

import numpy as np
import pytest

import gradspec as gs
from graph.op_cases import GraphCase
from graph.test_op_laws import CASES

RADII = (0.0, 2.0**-6, 0.75)
NO_ENCLOSURE: set[str] = set()
"""Operators whose results have no bounds, and say so."""


def _points(low: np.ndarray, high: np.ndarray, random: Random) -> list[np.ndarray]:
    """Both ends, the middle, corners and points in between; all of them dyadic, as the ends are."""
    choices = [[random.choice((0, 1, 2, 3, 4)) for _ in range(low.size)] for _ in range(3)]
    corners = [[random.choice((0, 4)) for _ in range(low.size)] for _ in range(3)]
    steps = [np.zeros(low.size), np.full(low.size, 4), np.full(low.size, 2), *choices, *corners]
    return [low + (high - low) * (np.reshape(step, low.shape) / 4) for step in steps]


def _inside(low: np.ndarray, value, high: np.ndarray) -> bool:
    cells = zip(low.flat, value.cells, high.flat, strict=True)
    return all(gs.exact.scalar(float(a)) <= c and c <= gs.exact.scalar(float(b)) for a, c, b in cells)


@pytest.mark.parametrize("method", ["boxes", "crown"])
@pytest.mark.parametrize("case", [c for c in CASES if c.floats == [0] and not c.irrational], ids=lambda c: c.id)
def test_bounds_contain_the_exact_values(case: GraphCase, method: str) -> None:
    graph, arrays = case.graph(), case.arrays()
    if not graph.outputs[0].type.is_float:
        pytest.skip("the result is not a float")
    for radius in RADII:
        low, high = arrays[0] - radius, arrays[0] + radius
        bounds = gs.bounds(graph, low, high, *arrays[1:], method=method)
        for x in _points(low, high, Random(case.id)):
            exact = gs.evaluate(graph, x, *arrays[1:], domain=gs.exact)
            assert _inside(bounds.lower, exact, bounds.upper)
            computed = graph(x, *arrays[1:])
            assert np.all(bounds.lower <= computed)
            assert np.all(computed <= bounds.upper)
