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
from gradspec.ops import gather as topk
from gradspec.ops.box import BoundArithmetic
from gradspec.ops.core import operators
from gradspec.ops.pointwise import gate, step
from gradspec.spec.errors import UnsupportedError
from gradspec.transforms import boxes
from graph.op_cases import GraphCase
from graph.test_op_laws import CASES, several

NARROW, WIDE = (0.0, 2.0**-6), 0.75
"""Radii: a point or a narrow box, by turns, and a wide one."""

NO_BOUNDS = {
    "max_unpool at the winners": "integers that depend on the box",
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


def points(low: list[Any], high: list[Any], random: Random, count: int) -> Iterator[list[Any]]:
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
    low, high = boxes_of(case, WIDE)
    why = refused(case)
    if why is not None:
        with pytest.raises(UnsupportedError, match=why):
            bounds_of(case, gs.f64, low, high, method="boxes")
        return
    for radius in (NARROW[CASES.index(case) % 2], WIDE):
        low, high = boxes_of(case, radius)
        found = [
            bounds_of(case, gs.f64, low, high, method="boxes", kernels="real"),
            bounds_of(case, gs.f64, low, high, method="crown"),
        ]
        for x in points(low, high, Random(case.id), 1):
            exact = several(gs.evaluate(graph_of(case, gs.f64), *x, domain=case.domain))
            computed = several(graph_of(case, gs.f64)(*x))
            for ends in found:
                assert all(inside(a, t.cells, b) for (a, b), t in zip(ends, exact, strict=True))
            assert all(np.all(a <= y) and np.all(y <= b) for (a, b), y in zip(found[1], computed, strict=True))


@pytest.mark.parametrize("most", [topk.MOST_COMPARED, 0])
def test_places_are_from_the_first_to_the_last_possible_one(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topk, "MOST_COMPARED", most)
    graph, x = gs.trace(lambda x: gs.topk(x, 2, 0)[1], gs.f32[4]), np.float32([0, 9, 5, 6])
    found = gs.bounds(graph, x - 1, x + 1, method="boxes")
    assert (found.lower.tolist(), found.upper.tolist()) == (([1, 2], [1, 3]) if most else ([0, 0], [3, 3]))


def test_every_operator_has_bounds_or_says_why() -> None:
    """A composite operator has those of what it decomposes into."""
    simple = {name: op for name, op in operators().items() if not op.is_composite}
    assert {name for name, op in simple.items() if op.sums is None and op.enclosure is None} == set()


ROTATED = [(case, (gs.f32, gs.f16, gs.bf16)[i % 3]) for i, case in enumerate(CASES)]


@pytest.mark.parametrize(("case", "dtype"), ROTATED, ids=lambda v: getattr(v, "id", str(v)))
def test_bounds_contain_what_kernels_compute_in_small_formats(case: GraphCase, dtype: Any) -> None:
    """Bounds are float32, and hold for results that are stored with fewer digits; a box within another has narrower
    ones."""
    if refused(case) is not None:
        return
    graph, found = graph_of(case, dtype), []
    for radius in (0.5, 2.0**-5):
        ends = boxes_of(case, radius, dtype.numpy)
        wide = [[a.astype(np.float32) if a.dtype.kind not in "iub" else a for a in arrays] for arrays in ends]
        found.append(bounds_of(case, dtype, *wide, method="boxes"))
        for wider in points(*wide, Random(case.id), 1):
            stored = [a.astype(low.dtype).astype(a.dtype) for a, low in zip(wider, ends[0], strict=True)]
            inner = [np.clip(a, low, high) for a, low, high in zip(stored, *wide, strict=True)]
            x = [a.astype(low.dtype) for a, low in zip(inner, ends[0], strict=True)]
            for (low, high), y in zip(found[-1], several(graph(*x)), strict=True):
                y = y.astype(np.float64) if y.dtype.kind not in "iub" else y
                assert np.all((low <= y) & (y <= high) | (np.isinf(y) & (y != 0)))
    for (low, high), (inner_low, inner_high) in zip(*found, strict=True):
        if low.dtype.kind == "f":
            room = 1e-4 * (1 + np.abs(low) + np.abs(high))
            assert not np.any(inner_low < low - room)
            assert not np.any(inner_high > high + room)


# --- every term is needed ---------------------------------------------------------------------------------------------


def _absorbed(x: Any) -> Any:
    return gs.relu(x + 2.0**25) - 2.0**25


def _nothing(*args: Any) -> float:
    return 0.0


ARITHMETIC = BoundArithmetic
MUTANTS = {
    "own": (ARITHMETIC, "own", _nothing, _absorbed, gs.f32, "real", 0.5, 0.5),
    "kernel": (
        BoundArithmetic,
        "kernel",
        _nothing,
        lambda x: gs.convert(_absorbed(x), gs.f64),
        gs.f32,
        "any",
        0.5,
        0.0,
    ),
    "storage": (ARITHMETIC, "storage", _nothing, lambda x: x + 1.0, gs.f16, "any", 2048.0, 2048.0),
    "underflow": (ARITHMETIC, "underflow", _nothing, lambda x: x * 2.0**-100, gs.f32, "real", 2.0**-60, 2.0**-160),
    "chains": (
        boxes,
        "_term_count",
        lambda terms, operands: terms,
        lambda x: gs.convert((x + x) + 2.0**25, gs.f64),
        gs.f32,
        "any",
        1.875,
        2.0**25,  # as (x + 2²⁵) + x
    ),
}
"""What is left out, of which function, in which format, for which kernels, at which number, and a value there."""


@pytest.mark.parametrize("name", MUTANTS)
def test_without_one_term_a_value_is_left_out(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, term, mutant, function, dtype, kernels, at, value = MUTANTS[name]

    def contained() -> bool:
        found = gs.bounds(gs.trace(function, dtype[1]), *[np.float32([at])] * 2, method="boxes", kernels=kernels)
        return float(found.lower[0]) <= value <= float(found.upper[0])

    assert contained()
    monkeypatch.setattr(owner, term, mutant)
    assert not contained()


def test_what_a_kernel_absorbs_is_within_the_bounds() -> None:
    graph = gs.trace(_absorbed, gs.f32[1])
    x = np.float32([0.5])
    assert graph(x).tolist() == [0.0]
    assert gs.bounds(graph, x, x).lower[0] <= 0


# --- what is not known ------------------------------------------------------------------------------------------------

UNKNOWN = {
    "div": lambda x: 1.0 / x,
    "log": gs.log,
    "sqrt": gs.sqrt,
    "relu": lambda x: gs.relu(gs.log(x)),
    "maximum": lambda x: gs.maximum(1.0 / x, 3.0),
    "where": lambda x: gs.where(gs.greater(1.0 / x, 3.0), 1.0 + x * 0.0, -1.0 + x * 0.0),
    "step": lambda x: gs.where(gs.less(1.0 / x, 3.0), 1.0 + x * 0.0, -1.0 + x * 0.0),
    "equal": lambda x: gs.where(gs.equal(1.0 / x, 4.0), 1.0 + x * 0.0, -1.0 + x * 0.0),
    "integers": lambda x: gs.convert(gs.convert(1.0 / x, gs.i32), gs.f32),
    "sums of integers": lambda x: gs.convert(gs.cumsum(gs.convert(1.0 / x, gs.i32), 0), gs.f32),
    "equal to itself": lambda x: gs.where(gs.equal(gs.log(x), gs.log(x)), 1.0 + x * 0.0, -1.0 + x * 0.0),
    "a number or not": lambda x: (lambda y: gs.where(gs.equal(y, y), 1.0 + x * 0.0, -1.0 + x * 0.0))(gs.log(x)),
    "quantize": lambda x: gs.dequantize(gs.quantize(1.0 / x, 0.5), 0.5),
    "gate": lambda x: gate(step(1.0 / x, -1.0, 0.0, 1.0), 1.0 + x),
    "softmax": lambda x: gs.softmax(1.0 / x),
}


@pytest.mark.parametrize("method", ["boxes", "crown"])
@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_known_is_not_lost(name: str, method: str) -> None:
    """Functions of ``1/x`` over boxes with 0 inside, beside and at an end: all that they can be is in the bounds."""
    graph = gs.trace(UNKNOWN[name], gs.f32[3])
    low, high = np.float32([-1, 0.25, 0]), np.float32([2, 0.5, 1])
    found = gs.bounds(graph, low, high, method=method)
    for t in np.linspace(0.001, 1, 23, dtype=np.float32):
        with np.errstate(all="ignore"):
            y = graph(low + (high - low) * t)
        assert np.all((found.lower <= y) & (y <= found.upper) | np.isnan(y)), (found.lower, y, found.upper)


@pytest.mark.parametrize("method", ["boxes", "crown", "alpha"])
def test_a_graph_without_nodes_has_the_bounds_of_its_input(method: str) -> None:
    low, high = np.float32([-1, 0]), np.float32([2, 0])
    bounds = gs.bounds(gs.trace(lambda x: x, gs.f32[2]), low, high, method=method)
    assert np.all(bounds.lower <= low)
    assert np.all(bounds.upper >= high)
    np.testing.assert_allclose(bounds.upper, high, atol=1e-5)


@pytest.mark.parametrize("kernels", ["any", "real"])
@pytest.mark.parametrize("method", ["boxes", "crown", "alpha"])
def test_what_a_sum_absorbs_is_in_its_bounds(method: str, kernels: str) -> None:
    """``(x + 2²⁵) − 2²⁵`` is x, and 0 or 4 in float32: no kink in between adds room for it."""
    graph, one = gs.trace(lambda x: (x + 2.0**25) - 2.0**25, gs.f32[1]), np.float32([1])
    bounds = gs.bounds(graph, one, one, method=method, kernels=kernels)
    assert bounds.lower <= 1 <= bounds.upper
    assert kernels == "real" or bounds.lower <= graph(one) <= bounds.upper
    assert bounds.upper - bounds.lower < 128


# --- integers that depend on the box ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [gs.i8, gs.u8, gs.i64], ids=str)
@pytest.mark.parametrize("cells", [100, 150, 300])
def test_counts_are_exact_and_may_wrap_around(dtype: Any, cells: int) -> None:
    """How many cells are above ½: as many as must be to as many as may be, or any number where these do not fit."""
    graph = gs.trace(lambda x: gs.sum(gs.convert(gs.greater(x, 0.5), dtype)), gs.f32[cells])
    sure = np.arange(cells) < 40
    found = gs.bounds(graph, np.where(sure, 0.75, 0).astype(np.float32), np.ones(cells, np.float32))
    limits = np.iinfo(dtype.numpy)
    fits = cells <= limits.max
    assert (found.lower, found.upper) == ((40, cells) if fits else (limits.min, limits.max))


OF_INTEGERS = {
    "matmul": lambda n: gs.matmul(n, np.array([[-1, 2], [3, -4]], np.int32)),
    "conv": lambda n: gs.conv(gs.reshape(n, (1, 1, 4)), np.array([[[-1, 2]]], np.int32)),
    "einsum": lambda n: gs.einsum("ij,jk", n, np.array([[-1, 2], [3, -4]], np.int32)),
    "mul": lambda n: n * np.array([[-1, 2]], np.int32),
    "sub": lambda n: gs.sum(n, 0) - gs.sum(n, 1),
    "neg": lambda n: -n,
    "add": lambda n: n + gs.cumsum(n, 0),
}


@pytest.mark.parametrize("name", OF_INTEGERS)
def test_integers_that_depend_on_the_box_are_bounded_or_refused(name: str) -> None:
    """Products, and what takes off, do not grow with every operand."""
    graph = gs.trace(lambda x: OF_INTEGERS[name](gs.convert(x, gs.i32)), gs.f32[2, 2])
    low, high = np.full((2, 2), -1.5, np.float32), np.full((2, 2), 3.5, np.float32)
    if name != "add":
        with pytest.raises(UnsupportedError, match="integers that depend on the box"):
            gs.bounds(graph, low, high)
        return
    found, random = gs.bounds(graph, low, high), np.random.default_rng(0)
    for _ in range(100):
        y = graph(random.uniform(low, high).astype(np.float32))
        assert np.all((found.lower <= y) & (y <= found.upper))


def test_sums_of_whole_numbers_are_exact_at_a_point() -> None:
    """With ``exact``, signs of such sums are certain, also of 0; those of other numbers are as before."""
    weights = np.random.default_rng(0).choice(np.float32([-1, 1]), (64, 200))
    graph = gs.trace(lambda x: gs.convert(gs.greater(gs.linear(x, weights), 0.0), gs.f32), gs.f32[200])
    whole = np.random.default_rng(1).integers(-1, 2, 200) * 2.0
    assert (whole @ weights.T == 0).any()
    large = np.array([2.0**52, -(2.0**52), *whole[2:]])
    for x, is_certain in (whole, True), (large, False), (whole * 0, True):
        at_point = boxes.boxes(graph, BoundArithmetic(gs.f64, any=False, exact=True), [True])
        lower, upper = at_point(x, x)
        assert np.array_equal(lower, upper) == is_certain
        assert np.all((lower <= (x @ weights.T > 0)) & ((x @ weights.T > 0) <= upper))
    assert not np.array_equal(*boxes.boxes(graph, BoundArithmetic(gs.f64, any=False), [True])(whole, whole))
