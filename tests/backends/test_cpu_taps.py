"""Unfolding, folding, resizing, power pooling, gathering and scattering on compiled kernels.

Sums of folding and scattering are those of the specification bit for bit; resizing and norms stay within a few
roundings of the exact result; what is only moved keeps its bits. All of it for every layout, in any order of units.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from math import inf, nan, prod
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import gradspec as gs
from backends.pooling import LAYOUTS, REPEATED, Fenced
from backends.single import carry_out, lowered, result_of
from gradspec.backends import numpy as numpy_backend
from gradspec.backends.cpu.arguments import TILE
from gradspec.backends.cpu.layout import plan as layouts
from gradspec.backends.cpu.layout.arguments import AxisSums
from gradspec.backends.cpu.layout.plan import axis_sums
from gradspec.backends.cpu.pool import plan as pools
from gradspec.backends.cpu.pool.plan import CELLS_PER_BAND
from gradspec.backends.tables import cell_readers, tap_ranges
from gradspec.graph.builder import apply
from gradspec.graph.graph import Graph
from gradspec.graph.types import DTYPES, DType, TensorType
from gradspec.ops.resize import RESIZE_TRANSPOSE, Resize
from gradspec.spec.errors import ShapeError
from gradspec.spec.resize import ROUNDINGS, axis_taps, resized_axes
from gradspec.spec.window import Regular

Shape = tuple[int, ...]
FLOATS = [gs.f16, gs.bf16, gs.f32, gs.f64]
INTEGERS = [gs.i8, gs.u8, gs.i32, gs.i64]
ROUNDOFF = {"f16": 2.0**-11, "bf16": 2.0**-8, "f32": 2.0**-24, "f64": 2.0**-53}
READABLE = LAYOUTS | REPEATED


@dataclass(frozen=True)
class Places:
    """Indices from −1 to below ``cells``; those of u8 have no −1."""

    shape: Shape
    cells: int
    dtype: DType = gs.i64


@dataclass(frozen=True)
class Case:
    id: str
    function: Callable[..., Any]
    inputs: tuple[Shape | Places, ...]

    def graph(self, dtype: DType) -> Graph:
        return _graph(self, dtype)

    def types(self, dtype: DType) -> list[TensorType]:
        return [s.dtype[s.shape] if isinstance(s, Places) else dtype[s] for s in self.inputs]

    def arrays(self, dtype: DType, layout: str = "C", seed: int = 0) -> list[np.ndarray]:
        rng, form = np.random.default_rng([seed, len(self.id)]), READABLE[layout]
        found = []
        for given, type in zip(self.inputs, self.types(dtype), strict=True):
            shape = form.parent(type.shape)
            if isinstance(given, Places):
                least, most = (np.iinfo(type.dtype.numpy).min, np.iinfo(type.dtype.numpy).max)
                values = rng.integers(max(least, -1), min(given.cells, most), shape)
            elif dtype.is_float:
                values = rng.standard_normal(shape) * 2.0 ** rng.integers(-3, 4, shape)
            else:
                values = rng.integers(0, 100, shape)
            found.append(form.view(values.astype(type.dtype.numpy), type.shape))
        return found


@cache
def _graph(case: Case, dtype: DType) -> Graph:
    graph = gs.trace(case.function, *case.types(dtype))
    assert len(graph.nodes) == 1
    return graph


# --- the table --------------------------------------------------------------------------------------------------------


def columns(id: str, shape: Shape, kernel: Shape, **options: Any) -> list[Case]:
    """Unfolding, and folding of what comes out."""
    unfold = Case(f"unfold {id}", lambda x: gs.unfold(x, kernel, **options), (shape,))
    sizes = shape[len(shape) - len(kernel) :]
    folded = unfold.graph(gs.f32).outputs[0].shape
    return [unfold, Case(f"fold {id}", lambda x: gs.fold(x, sizes, kernel, **options), (folded,))]


COLUMNS = [
    *columns("rank 0", (2, 3), ()),
    *columns("rank 1", (2, 3, 20), (3,)),
    *columns("stride 2", (2, 2, 37), (3,), stride=2, padding=1),
    *columns("stride beyond the kernel", (1, 29), (2,), stride=5, padding=((0, 4),)),
    *columns("wide padding", (1, 4), (2,), padding=6, stride=3),
    *columns("dilated", (2, 1, 40), (4,), dilation=5, padding=((3, 9),), stride=2),
    *columns("rank 2", (2, 3, 9, 21), (3, 3), padding=1),
    *columns("rank 2 strided", (2, 3, 9, 20), (3, 2), padding=((1, 0), (0, 3)), stride=(2, 3), dilation=(1, 2)),
    *columns("rank 3", (2, 4, 5, 6), (2, 1, 3), padding=(1, 0, 2), stride=(1, 2, 1)),
    *columns("rank 4", (1, 2, 3, 2, 4), (2, 2, 1, 3), padding=(0, 1, 0, 1)),
    *columns("several pieces of a row", (1, 2 * TILE + 7), (3,), stride=2, padding=1),
    *columns("no planes", (0, 2, 5), (3,)),
]


def resized(id: str, shape: Shape, size: Shape, options: dict[str, Any]) -> list[Case]:
    forward = Case(f"resize {id}", lambda x: gs.resize(x, size, **options), (shape,))
    graph = forward.graph(gs.f32)
    (after,), attrs = (v.shape for v in graph.outputs), graph.nodes[0].attrs
    return [forward, Case(f"resize_transpose {id}", lambda g: apply(RESIZE_TRANSPOSE, attrs, g), (after,))]


MODES: dict[str, dict[str, Any]] = {
    "nearest": {},
    "nearest cells": {"step": 0.75, "start": Fraction(-1, 3), "rounding": "half_up"},
    "linear": {"mode": "linear"},
    "corners": {"mode": "linear", "align_corners": True},
    "linear backwards": {"mode": "linear", "step": Fraction(-5, 3), "start": 2.5},
}
RESIZED = [
    case
    for mode, options in MODES.items()
    for shape, size in [
        ((2, 3), ()),
        ((2, 5), (5,)),
        ((2, 3), (8,)),
        ((3, 8), (3,)),
        ((2, 9), (1,)),
        ((1,), (7,)),
        ((2, 2, 4, 6), (7, 13)),
        ((2, 9, 20), (4, 5)),
        ((2, 3, 5), (6, 2)),
        ((2, 3, 4), (4, 3, 2)),
        ((1, 2, 3, 2, 4), (3, 2, 4, 3)),
        ((2500,), (3100,)),
        ((30000,), (7,)),
        ((0, 3), (4,)),
    ]
    for case in resized(f"{mode} {shape} to {size}", shape, size, options)
]

POWERS = [
    Case(f"lp_pool p={p} {shape} {window}", lambda x, p=p, window=window: gs.lp_pool(x, p, *window), (shape,))
    for p in (1, 2, inf, 3, 1.5, 0.5, 40.0, 0.07)
    for shape, window in [
        ((3,), ((),)),
        ((2, 19), ((3,), 1)),
        ((2, 21), ((2,), 2)),
        ((2, 2, 9, 20), ((2, 3), (1, 2), True)),
        ((4, 5, 6), ((2, 1, 3), (2, 2, 3), True)),
        ((2 * TILE + 5,), ((2,), 1)),
        ((0, 4), ((2,),)),
    ]
]

PLACED = [
    Case(
        f"{name} {lead} {shape} in {plane} {kind}",
        (lambda x, i, plane=plane: gs.max_unpool(x, i, plane))
        if name == "max_unpool"
        else (lambda x, i, plane=plane: gs.max_gather(x, i, len(plane))),
        ((*lead, *(shape if name == "max_unpool" else plane)), Places((*lead, *shape), prod(plane), kind)),
    )
    for name in ("max_unpool", "max_gather")
    for lead, shape, plane, kind in [
        ((2,), (), (), gs.i64),
        ((2,), (3,), (8,), gs.i64),
        ((2, 3), (5, 4), (6, 7), gs.i64),
        ((2, 3), (5, 4), (6, 7), gs.i32),
        ((3,), (2, 3, 4), (3, 4, 5), gs.i8),
        ((), (8, 5), (5, 2), gs.u8),
        ((1,), (7000,), (90,), gs.i64),
        ((1,), (20,), (CELLS_PER_BAND + 3,), gs.i64),
        ((2,), (0,), (3,), gs.i64),
        ((0,), (2,), (3,), gs.i64),
    ]
]

CASES = [*COLUMNS, *RESIZED, *POWERS, *PLACED]
SMALL = [
    case for case in CASES if all(v.type.size < 2000 for g in [case.graph(gs.f32)] for v in (*g.inputs, *g.outputs))
]


def several(cases: Sequence[Case]) -> Any:
    return pytest.mark.parametrize("case", cases, ids=lambda case: case.id)


def reference(graph: Graph, arrays: Sequence[np.ndarray]) -> np.ndarray:
    (node,) = graph.nodes
    return numpy_backend.apply(node.op, node.attrs, *arrays)[0]


def exact(graph: Graph, arrays: Sequence[np.ndarray], domain: Any) -> list[Any]:
    return list(gs.evaluate(graph, *arrays, domain=domain).cells)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    kind = f"u{wanted.itemsize}"
    same = np.ascontiguousarray(found).view(kind) == np.ascontiguousarray(wanted).view(kind)
    assert same.all(), (found[~same], wanted[~same])


# --- layouts and units ------------------------------------------------------------------------------------------------


@several(CASES)
def test_units_are_independent_of_each_other(case):
    for dtype in FLOATS:
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        assert_same_bits(result_of(graph, arrays, backwards=True), result_of(graph, arrays))


@several(SMALL)
def test_every_layout_is_read(case):
    for dtype, layout in product((gs.bf16, gs.f32), READABLE):
        graph, arrays = case.graph(dtype), case.arrays(dtype, layout)
        plain = [np.ascontiguousarray(a) for a in arrays]
        assert_same_bits(result_of(graph, arrays), result_of(graph, plain))


@several(SMALL)
def test_every_layout_is_written_and_nothing_beside_it(case):
    for dtype, form in product((gs.bf16, gs.f32), LAYOUTS.values()):
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        shape = graph.outputs[0].shape
        parent = np.full(form.parent(shape), -7, dtype.numpy)
        wanted = parent.copy()
        carry_out(graph, arrays, form.view(parent, shape))
        form.view(wanted, shape)[...] = result_of(graph, arrays)
        assert_same_bits(parent, wanted)


@several(CASES)
def test_nothing_is_read_or_written_beside_the_arrays(case):
    for dtype, fence in product((gs.f16, gs.f32), (Fenced(at_end=False), Fenced(at_end=True))):
        graph, arrays = case.graph(dtype), [fence.copy(a) for a in case.arrays(dtype)]
        result = fence.copy(np.zeros(graph.outputs[0].shape, dtype.numpy))
        carry_out(graph, arrays, result)
        assert_same_bits(result, result_of(graph, arrays))


def test_results_do_not_depend_on_tiles(monkeypatch):
    """All cases, in tiles so short that most rows have several, give the bits of long ones, and nothing behind the
    array; NumPy agrees."""
    cases = [(case.graph(gs.f32), case.arrays(gs.f32)) for case in CASES]
    results, fence = [result_of(*case) for case in cases], Fenced(at_end=True)
    for (graph, arrays), result in zip(cases, results, strict=True):
        np.testing.assert_allclose(result, reference(graph, arrays), rtol=1e-5, atol=1e-5)
    for tile in (5, 12):  # many tiles, and two
        for module, name in ((pools, "TILE"), (layouts, "TILE"), (layouts, "RESIZED_TILE")):
            monkeypatch.setattr(module, name, tile)
        lowered.cache_clear()  # or tasks keep the tiles that they were bound with
        for (graph, arrays), result in zip(cases, results, strict=True):
            found = fence.copy(np.zeros_like(result))
            carry_out(graph, arrays, found)
            assert_same_bits(found, result)


THREADED = [
    Case("unfold", lambda x: gs.unfold(x, (3, 3), padding=1), ((4, 8, 40, 40),)),
    Case("fold", lambda x: gs.fold(x, (40, 40), (3, 3), padding=1), ((4, 72, 1600),)),
    Case("resize", lambda x: gs.resize(x, (80, 70), "linear"), ((4, 8, 40, 40),)),
    Case("lp_pool", lambda x: gs.lp_pool2d(x, 3, 3, 1), ((4, 8, 40, 40),)),
    Case("max_unpool", lambda x, i: gs.max_unpool(x, i, (9, 9)), ((4, 8, 40, 40), Places((4, 8, 40, 40), 81))),
    Case("max_gather", lambda x, i: gs.max_gather(x, i, 2), ((4, 8, 9, 9), Places((4, 8, 40, 40), 81))),
]


@several(THREADED)
def test_results_do_not_depend_on_the_number_of_threads_or_the_batch(case):
    graph, arrays = case.graph(gs.f32), case.arrays(gs.f32)
    run = gs.compile(graph)
    assert run.plan.most_threads > 1
    alone = gs.compile(graph, threads=1)(*arrays)
    for count in (2, 3):
        assert_same_bits(gs.compile(graph, threads=count)(*arrays), alone)
    types = [t.dtype[1, *t.shape[1:]] for t in case.types(gs.f32)]
    one = gs.compile(case.function, *types)(*(a[2:3] for a in arrays))
    assert_same_bits(one, alone[2:3])


@several([case for case in CASES if "resize_transpose" not in case.id])
def test_no_step_is_left_to_numpy(case):
    run = gs.compile(case.graph(gs.f32))
    assert [step.task is not None for step in run.plan.steps] == [True]


# --- unfold and fold --------------------------------------------------------------------------------------------------


@several([case for case in COLUMNS if case.id.startswith("unfold")])
def test_unfolding_moves_bits_and_puts_zeros_beside_them(case):
    for dtype in DTYPES.values():
        graph, (x,) = case.graph(dtype), case.arrays(dtype)
        kind = f"u{x.itemsize}"
        noise = np.random.default_rng(1).integers(0, 256, (x.size, x.itemsize), np.uint8)
        x = noise.view(x.dtype).reshape(x.shape)
        (node,) = graph.nodes
        wanted = numpy_backend.windows.KERNELS["unfold"](node.attrs, x.view(kind)).view(x.dtype)
        assert_same_bits(result_of(graph, [x]), wanted)


@several([case for case in COLUMNS if case.id.startswith("fold") and case in SMALL])
def test_folding_adds_in_the_order_of_the_specification(case):
    for dtype in FLOATS:
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        wide = "f64" if dtype is gs.f64 else "f32"
        wanted = exact(graph, arrays, gs.ieee(dtype.name, accumulate=wide))
        found = result_of(graph, arrays)
        assert found.astype(np.float64).ravel().tolist() == [float(c) for c in wanted]


@several([case for case in COLUMNS if case.id.startswith("fold")])
def test_folding_integers_wraps_around(case):
    for dtype in INTEGERS:
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        assert_same_bits(result_of(graph, arrays), reference(graph, arrays))


def test_folded_halves_are_added_up_in_single_precision():
    graph = gs.trace(lambda x: gs.fold(x, (1,), (3000,), padding=2999), gs.f16[3000, 3000])
    assert result_of(graph, [np.ones((3000, 3000), np.float16)]).tolist() == [[3000.0]]


def test_infinities_and_nan_go_where_they_belong():
    graph = gs.trace(lambda x: gs.fold(x, (3,), (2,)), gs.f32[2, 2])
    found = result_of(graph, [np.float32([[inf, nan], [-inf, 1]])])
    assert np.array_equal(found, [[inf, nan, 1]], equal_nan=True)


@pytest.mark.parametrize(
    "axis",
    [
        Regular(5, 3, 2, 1, 1, 1, 3),
        Regular(4, 2, 3, 6, 6, 1, 5),
        Regular(7, 4, 2, 3, 9, 5, 2),
        Regular(1, 1, 1, 0, 0, 1, 1),
    ],
    ids=str,
)
def test_tables_of_an_axis(axis):
    outputs, (starts, readers) = range(axis.outputs), cell_readers(axis)
    read = [[o * axis.stride - axis.lo + axis.dilation * k for o in outputs] for k in range(axis.kernel)]
    for (start, first, end), cells in zip(tap_ranges(axis).tolist(), read, strict=True):
        assert start == cells[0]
        assert list(range(first, end)) == [o for o in outputs if 0 <= cells[o] < axis.size]
    assert len(starts) == axis.size + 1
    for cell in range(axis.size):
        wanted = [[k, o] for k, cells in enumerate(read) for o in outputs if cells[o] == cell]
        assert readers[starts[cell] : starts[cell + 1]].tolist() == wanted


# --- resize -----------------------------------------------------------------------------------------------------------


def listed(sums: AxisSums) -> list[list[tuple[int, float]]]:
    """The cells that each target reads, with their weights."""
    pairs = list(zip(sums.cells.tolist(), sums.weights.tolist(), strict=True))
    return [pairs[a:b] for a, b in pairwise(sums.starts.tolist())]


AXES = [
    *(options for options in MODES.values()),
    *({"step": Fraction(1, 2), "start": Fraction(-3, 4), "rounding": rounding} for rounding in ROUNDINGS),
    *({"step": 0.5, "start": -1.5, "rounding": rounding} for rounding in ROUNDINGS),
    {"mode": "linear", "step": 0, "start": 0.5},
    {"mode": "linear", "step": 0.1, "start": Fraction(1, 3)},
    {"mode": "linear", "step": Fraction(2**62 + 1, 2**61 - 1), "start": Fraction(-1, 2**61 + 1)},
    {"step": Fraction(2**62 + 1, 2**61 - 1), "start": Fraction(-1, 2**61 + 1), "rounding": "ceil"},
]


@pytest.mark.parametrize("options", AXES, ids=str)
def test_weights_are_those_of_the_specification(options):
    options = {"mode": "nearest", "align_corners": False} | options
    for n, m in product(range(1, 9), range(1, 12)):
        (axis,) = resized_axes((n,), (m,), **options)
        taps = axis_taps(axis)
        assert listed(axis_sums(axis, False, np.float64)) == [[(i, float(w)) for i, w in row] for row in taps]
        readers = [[(o, float(w)) for o, row in enumerate(taps) for i, w in row if i == cell] for cell in range(n)]
        assert listed(axis_sums(axis, True, np.float64)) == readers


@several([case for case in RESIZED if case in SMALL])
def test_resizing_stays_within_its_roundings(case):
    """A term meets, on each axis, the rounding of a weight, that of a product and those of a sum."""
    for dtype in FLOATS:
        graph, (x,) = case.graph(dtype), case.arrays(dtype)
        attrs = graph.nodes[0].attrs
        found = result_of(graph, [x]).astype(np.float64).ravel().tolist()
        readers = (Counter(cell for row in axis_taps(axis) for cell, _ in row) for axis in attrs.axes)
        roundings = sum(4 + max(count.values()) for count in readers)
        u, stored = (Fraction(ROUNDOFF[name]) for name in ("f64" if dtype is gs.f64 else "f32", dtype.name))
        sizes = exact(graph, [np.abs(x)], gs.exact)
        for got, y, size in zip(found, exact(graph, [x], gs.exact), sizes, strict=True):
            error = ((1 + u) ** roundings - 1) * rational(size)
            assert abs(Fraction(got) - rational(y)) <= error + stored * (abs(rational(y)) + error)


def rational(number: Any) -> Fraction:
    return Fraction(int(number.p), int(number.q)) if hasattr(number, "p") else Fraction(number)


@several([case for case in RESIZED if case.id.startswith("resize nearest")])
def test_nearest_cells_are_copied(case):
    for dtype in FLOATS:
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        assert np.array_equal(result_of(graph, arrays), reference(graph, arrays))


def test_a_cell_of_weight_zero_takes_no_part():
    x = np.float32([[1, inf, 2, nan, 3]])
    graph = gs.trace(lambda x: gs.resize(x, (3,), "linear", True), gs.f32[1, 5])
    assert result_of(graph, [x]).tolist() == [[1.0, 2.0, 3.0]]
    back = gs.trace(lambda g: apply(RESIZE_TRANSPOSE, Resize((3,), (5,), "linear", True), g), gs.f32[1, 5])
    assert result_of(back, [np.float32([[1, 0, inf, 0, nan]])])[0, :2].tolist() == [1.0, inf]


# --- power pooling ----------------------------------------------------------------------------------------------------


@several([case for case in POWERS if case in SMALL])
def test_norms_stay_within_their_roundings(case):
    """For p > 1, what is lost in a power or a sum is divided by p, and what is lost in a quotient is not."""
    for dtype in FLOATS:
        graph, (x,) = case.graph(dtype), case.arrays(dtype)
        attrs = graph.nodes[0].attrs
        found = result_of(graph, [x]).astype(np.float64).ravel().tolist()
        wanted = exact(graph, [x], gs.ball(200))
        n, p = prod(attrs.kernel_size), attrs.p
        u, stored = ROUNDOFF["f64" if dtype is gs.f64 else "f32"], ROUNDOFF[dtype.name]
        relative = (5 + (n + 5) / p) * u + stored
        info = ml_dtypes.finfo(dtype.numpy)
        for got, want in zip(found, wanted, strict=True):
            if float(want) > float(info.max):
                assert got == inf
            else:
                assert abs(got - float(want)) <= relative * float(want) + float(info.smallest_subnormal)


SPECIAL = [
    ([0.0, -0.0], 0.0),
    ([nan, 1.0], nan),
    ([1.0, nan], nan),
    ([-inf, 1.0], inf),
    ([inf, nan], nan),
    ([0.0, -inf], inf),
    ([0.0, -3.0], 3.0),
]


@pytest.mark.parametrize("p", [0.5, 1, 1.5, 2, 3, 300.0, inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_of_special_values(dtype, p):
    graph = gs.trace(lambda x: gs.lp_pool1d(x, p, 2), dtype[len(SPECIAL), 2])
    cells, wanted = np.array([row for row, _ in SPECIAL]), np.array([[value] for _, value in SPECIAL])
    found = result_of(graph, [cells.astype(dtype.numpy)]).astype(np.float64)
    np.testing.assert_allclose(found, wanted, rtol=8 * ROUNDOFF[dtype.name] / min(1, p))


@pytest.mark.parametrize("p", [1, 2, 3, 40.0, inf])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_norms_neither_overflow_nor_vanish(dtype, p):
    info = ml_dtypes.finfo(dtype.numpy)
    graph = gs.trace(lambda x: gs.lp_pool1d(x, p, 2), dtype[2])
    for scale in (float(info.max) / 16, float(info.smallest_subnormal)):
        found = float(result_of(graph, [(np.array([3, -4]) * scale).astype(dtype.numpy)])[0])
        assert found / scale == pytest.approx(np.linalg.norm([3, 4], p), abs=0.5 if scale < 1 else 0.05)


# --- places -----------------------------------------------------------------------------------------------------------


@several(PLACED)
def test_gathered_and_scattered_numbers(case):
    for dtype in DTYPES.values() if case.id.startswith("max_gather") else (*FLOATS, *INTEGERS):
        graph, arrays = case.graph(dtype), case.arrays(dtype)
        found = result_of(graph, arrays)
        if case.id.startswith("max_gather") or not dtype.is_float:
            assert_same_bits(found, reference(graph, arrays))
        elif case in SMALL:
            wide = "f64" if dtype is gs.f64 else "f32"
            wanted = exact(graph, arrays, gs.ieee(dtype.name, accumulate=wide))
            assert found.astype(np.float64).ravel().tolist() == [float(c) for c in wanted]
        else:
            assert np.array_equal(found, reference(graph, arrays))


@pytest.mark.parametrize("index", [-2, 8, 1 << 40, -(1 << 62)])
def test_an_index_outside_the_plane_is_an_error(index):
    places = np.array([0, index, 3])
    gather = gs.compile(lambda x, i: gs.max_gather(x, i, 1), gs.f32[8], gs.i64[3])
    scatter = gs.compile(lambda x, i: gs.max_unpool(x, i, (8,)), gs.f32[3], gs.i64[3])
    for run, size in ((gather, 8), (scatter, 3)):
        with pytest.raises(ShapeError, match=f"index {index} lies outside a plane of 8 cells"):
            run(np.ones(size, np.float32), places)


def test_scattered_halves_are_added_up_in_single_precision():
    graph = gs.trace(lambda x, i: gs.max_unpool(x, i, (2,)), gs.f16[5000], gs.i64[5000])
    assert result_of(graph, [np.ones(5000, np.float16), np.ones(5000, np.int64)]).tolist() == [0.0, 5000.0]


def test_bands_of_a_large_plane_share_no_place():
    places = CELLS_PER_BAND + np.arange(-2, 3)
    graph = gs.trace(lambda x, i: gs.max_unpool(x, i, (2 * CELLS_PER_BAND,)), gs.f32[5], gs.i64[5])
    found = result_of(graph, [np.arange(1, 6, dtype=np.float32), places])
    assert found[places].tolist() == [1.0, 2.0, 3.0, 4.0, 5.0]
    assert found.sum() == 15


def test_workspaces_are_small_whatever_the_input():
    huge = 1 << 26
    graphs = [
        gs.trace(lambda x, i: gs.max_unpool(x, i, (huge,)), gs.f16[4], gs.i64[4]),
        gs.trace(lambda x: gs.fold(x, (huge,), (3,), stride=2, padding=1), gs.f32[3, huge // 2]),
        gs.trace(lambda x: gs.lp_pool1d(x, 2, 3), gs.f64[huge]),
        gs.trace(lambda x: gs.unfold(x, (3,)), gs.f32[1, huge]),
    ]
    assert all(lowered(graph).workspace <= 1 << 21 for graph in graphs)
