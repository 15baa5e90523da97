"""Copies move every bit to its place and nothing else: operators, dtypes, layouts, orders of units, sizes."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import nan, prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from backends.pooling import LAYOUTS, REPEATED, Fenced
from backends.single import carry_out, lowered, result_of
from gradspec.backends.cpu import LOWERINGS
from gradspec.backends.cpu.layout.kernels.layout import steps_to_columns
from gradspec.backends.cpu.layout.plan import LEAST_BYTES, UNITS_WANTED
from gradspec.backends.numpy import KERNELS
from gradspec.codegen.language import f32, f64, u8, u16
from gradspec.codegen.records import address, block_address
from gradspec.graph.builder import apply
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Var
from gradspec.graph.types import DTYPES, DType
from gradspec.ops.layout import PAD, TRANSPOSE, Order, Padding

Shape = tuple[int, ...]
ONE_OF_EACH_SIZE = [gs.u8, gs.bf16, gs.f32, gs.i64]
READABLE = LAYOUTS | REPEATED


@dataclass(frozen=True)
class Case:
    """One node that moves numbers, and what it moves."""

    id: str
    function: Callable[..., Any]
    inputs: tuple[Shape, ...]

    def graph(self, dtype: DType) -> Graph:
        return _graph(self, dtype)


@cache
def _graph(case: Case, dtype: DType) -> Graph:
    graph = gs.trace(case.function, *(dtype[shape] for shape in case.inputs))
    assert len(graph.nodes) == 1
    return graph


def padded(pairs: Any, interior: Any = None, value: float = 7) -> Callable[..., Any]:
    return lambda x: apply(PAD, Padding(pairs, interior or (0,) * len(pairs), value), x)


CASES = [
    Case("transpose", lambda x: gs.transpose(x, (2, 0, 1)), ((5, 18, 21),)),
    Case("transpose channels", lambda x: gs.transpose(x, (0, 2, 3, 1)), ((2, 19, 5, 7),)),
    Case("transpose few channels", lambda x: gs.transpose(x, (0, 2, 3, 1)), ((2, 3, 9, 11),)),
    Case("transpose all", lambda x: gs.transpose(x), ((2, 3, 4, 5, 6),)),
    Case("transpose leads", lambda x: gs.transpose(x, (1, 0, 2)), ((3, 100, 40),)),
    Case("reshape", lambda x: gs.reshape(x, (6, 35)), ((7, 5, 6),)),
    Case("reshape a scalar", lambda x: gs.reshape(x, (1, 1)), ((),)),
    Case("broadcast_to", lambda x: gs.broadcast_to(x, (3, 4, 40)), ((4, 1),)),
    Case("broadcast_to rows", lambda x: gs.broadcast_to(x, (3, 40, 5)), ((1, 5),)),
    Case("broadcast_to from a scalar", lambda x: gs.broadcast_to(x, (2, 17)), ((),)),
    Case("broadcast_to no cells", lambda x: gs.broadcast_to(x, (2, 0)), ((1,),)),
    Case("slice", lambda x: gs.slice(x, (1, 2), (4, 30)), ((5, 40),)),
    Case("slice in twos", lambda x: gs.slice(x, (0, 1), (5, 38), (1, 2)), ((5, 38),)),
    Case("slice in threes", lambda x: gs.slice(x, (4, 0), (None, 38), (-2, 3)), ((5, 38),)),
    Case("slice backwards", lambda x: gs.slice(x, (None, None), (None, None), (-1, -1)), ((6, 19),)),
    Case("slice one cell", lambda x: gs.slice(x, (2, 3), (3, 4)), ((6, 19),)),
    Case("concat first", lambda x, y, z: gs.concat([x, y, z], 0), ((2, 9), (0, 9), (5, 9))),
    Case("concat channels", lambda x, y: gs.concat([x, y], 1), ((3, 2, 40), (3, 70, 40))),
    Case("concat last", lambda x, y, z: gs.concat([x, y, z], 2), ((70, 3, 1), (70, 3, 2), (70, 3, 5))),
    Case("concat one twice", lambda x, y: gs.concat([x, y, x], 1), ((80, 40), (80, 3))),
    Case("pad", padded(((1, 2), (0, 3))), ((4, 35),)),
    Case("pad planes", padded(((0, 0), (0, 0), (1, 1), (2, 3))), ((5, 30, 6, 7),)),
    Case("pad leads", padded(((2, 1), (0, 0), (0, 0))), ((3, 4, 5),)),
    Case("pad between", padded(((0, 1), (2, 0)), (1, 2)), ((4, 21),)),
    Case("pad far between", padded(((0, 0), (1, 0), (0, 0)), (0, 3, 0)), ((70, 5, 3),)),
    Case("pad no cells", padded(((0, 0), (3, 2))), ((4, 0),)),
    Case("pad between no cells", padded(((1, 1),), (2,)), ((0,),)),
    Case("pad nothing at all", padded(((0, 0), (0, 0))), ((0, 3),)),
]
VIEWS = [case for case in CASES if LOWERINGS[case.graph(gs.f32).nodes[0].op.name].view(case.graph(gs.f32).nodes[0])]


def bits(rng: np.random.Generator, shape: Shape, dtype: np.dtype) -> np.ndarray:
    """Anything, NaNs of every kind among it."""
    return rng.integers(0, 256, (*shape, dtype.itemsize), np.uint8).view(dtype).reshape(shape)


def laid_out(rng: np.random.Generator, name: str, shape: Shape, dtype: np.dtype) -> np.ndarray:
    layout = READABLE[name]
    return layout.view(bits(rng, layout.parent(shape), dtype), shape)


def reference(graph: Graph, arrays: list[np.ndarray]) -> np.ndarray:
    """What NumPy does with unsigned integers of the same bits, which it converts to nothing else."""
    (node,) = graph.nodes
    dtype, values = arrays[0].dtype, dict(zip(graph.inputs, arrays, strict=True))
    kind, attrs = np.dtype(f"u{dtype.itemsize}"), node.attrs
    if node.op is PAD:
        attrs = Padding(attrs.padding, attrs.interior, np.full((), attrs.value, dtype).view(kind))
    result = KERNELS[node.op.name](attrs, *(values[v].view(kind) for v in node.inputs))
    return np.asarray(result).view(dtype)


def assert_same_bits(found: np.ndarray, wanted: np.ndarray) -> None:
    assert found.dtype == wanted.dtype
    assert found.shape == wanted.shape
    kind = f"u{wanted.itemsize}"
    assert np.array_equal(np.ascontiguousarray(found).view(kind), np.ascontiguousarray(wanted).view(kind))


def arrays_of(case: Case, dtype: DType, layout: str = "C", seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng([seed, len(case.id)])
    return [laid_out(rng, layout, shape, dtype.numpy) for shape in case.inputs]


# --- every operator ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_bit_arrives(case, dtype):
    graph, arrays = case.graph(dtype), arrays_of(case, dtype)
    assert_same_bits(result_of(graph, arrays), reference(graph, arrays))
    assert_same_bits(result_of(graph, arrays, backwards=True), reference(graph, arrays))


@pytest.mark.parametrize("layout", READABLE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_every_layout_is_read(case, layout):
    for dtype in ONE_OF_EACH_SIZE:
        graph, arrays = case.graph(dtype), arrays_of(case, dtype, layout)
        assert_same_bits(result_of(graph, arrays), reference(graph, arrays))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", [c for c in CASES if "reshape" not in c.id], ids=lambda case: case.id)
def test_every_layout_is_written_and_nothing_beside_it(case, layout):
    for dtype in ONE_OF_EACH_SIZE:
        graph, form, rng = case.graph(dtype), LAYOUTS[layout], np.random.default_rng(5)
        shape = graph.outputs[0].shape
        for read in ("C", layout):
            arrays = arrays_of(case, dtype, read)
            parent = bits(rng, form.parent(shape), dtype.numpy)
            wanted = parent.copy()
            carry_out(graph, arrays, form.view(parent, shape))
            form.view(wanted, shape)[...] = reference(graph, arrays)
            assert_same_bits(parent, wanted)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_nothing_is_read_or_written_beside_the_arrays(case, at_end):
    fence = Fenced(at_end)
    for dtype in ONE_OF_EACH_SIZE:
        graph, arrays = case.graph(dtype), [fence.copy(a) for a in arrays_of(case, dtype)]
        result = fence.copy(np.zeros(graph.outputs[0].shape, dtype.numpy))
        carry_out(graph, arrays, result)
        assert_same_bits(result, reference(graph, arrays))


@pytest.mark.parametrize("value", [nan, -0.0, 1e-300, 3e38, 0.1])
def test_what_cells_are_padded_with_is_rounded_to_the_dtype(value):
    for dtype in (gs.f16, gs.bf16, gs.f32, gs.f64):
        graph = gs.trace(lambda x: gs.pad(x, ((1, 1),), value), dtype[2])
        with np.errstate(over="ignore"):
            wanted = np.array([value, 1, 1, value]).astype(dtype.numpy)
        assert_same_bits(result_of(graph, [np.ones(2, dtype.numpy)]), wanted)


# --- squares: every remainder of their sizes --------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ONE_OF_EACH_SIZE, ids=str)
def test_squares_of_every_size(dtype):
    size = 16 // dtype.numpy.itemsize
    line = 64 // dtype.numpy.itemsize
    sizes = sorted(
        {1, size - 1, size, size + 1, 2 * size - 1, 2 * size + 1, line - 1, line, line + 1, 2 * line + 3, 300}
    )
    rng = np.random.default_rng(1)
    for n in sizes:
        for m in sizes:
            x = bits(rng, (n, m), dtype.numpy)
            graph = gs.trace(lambda x: gs.transpose(x, (1, 0)), dtype[n, m])
            assert_same_bits(result_of(graph, [x]), x.T)


@pytest.mark.parametrize("side", [1, 2, 4, 8, 16, 32])
@pytest.mark.parametrize("number", [u8, u16, f32, f64], ids=str)
def test_squares_of_every_side_are_transposed_step_by_step(number, side):
    rows = [[(i, j) for j in range(side)] for i in range(side)]
    for step in steps_to_columns(number, side):
        rows = [[(rows[row.first] + rows[row.second])[lane] for lane in row.lanes] for row in step]
    assert rows == [[(i, j) for i in range(side)] for j in range(side)]


@st.composite
def moved(draw: st.DrawFn) -> tuple[Graph, np.ndarray]:
    """An array of up to six axes, of any layout, with its axes in another order."""
    dtype = draw(st.sampled_from(ONE_OF_EACH_SIZE))
    shape = tuple(draw(st.lists(st.sampled_from([1, 2, 3, 5, 8, 17, 33]), min_size=2, max_size=6)))
    while prod(shape) > 1 << 16:
        shape = shape[:-1]
    order = draw(st.permutations(range(len(shape))))
    name = draw(st.sampled_from(list(READABLE)))
    x = laid_out(np.random.default_rng(draw(st.integers(0, 99))), name, shape, dtype.numpy)
    builder = gs.Builder()
    (v,) = builder.apply(TRANSPOSE, Order(tuple(order)), builder.input(dtype[shape]))
    return builder.build(v), x


@settings(max_examples=150, deadline=None)
@given(moved(), st.booleans())
def test_any_order_of_axes(case, backwards):
    graph, x = case
    assert_same_bits(result_of(graph, [x], backwards), x.transpose(graph.nodes[0].attrs.axes))


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: gs.transpose(x, (0, 2, 1)), (200, 16, 16)),
        (lambda x: gs.transpose(x, (1, 0)), (600, 601)),
        (lambda x: gs.pad(x, ((1, 1), (0, 0))), (3, 1 << 17)),
        (lambda x: gs.broadcast_to(x, (1 << 18,)), ()),
    ],
    ids=["many leads", "one plane", "three rows", "one number"],
)
def test_work_is_cut_for_many_threads(function, shape):
    graph = gs.trace(function, gs.f32[shape])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    _, units, _ = lowered(graph).bind(x, np.empty(graph.outputs[0].shape, np.float32))
    assert units >= min(UNITS_WANTED // 2, graph.outputs[0].type.size * 4 // (2 * LEAST_BYTES))
    one, three = (gs.compile(graph, threads=count)(x) for count in (1, 3))
    assert_same_bits(one, reference(graph, [x]))
    assert_same_bits(three, one)


def test_bound_blocks_are_remembered_by_layout():
    graph = gs.trace(lambda x: gs.pad(x, ((1, 1), (0, 0))), gs.f32[3, 4])
    task = lowered(graph)
    for x in (np.ones((3, 4), np.float32), np.ones((4, 3), np.float32).T, np.zeros((3, 4), np.float32)):
        result = np.empty((5, 4), np.float32)
        block, units, workspace = task.bind(x, result)
        memory = np.empty(workspace, np.uint8)
        task.function(block_address(block), 0, units, address(memory))
        assert np.array_equal(result, np.pad(x, ((1, 1), (0, 0))))


# --- views ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", READABLE)
@pytest.mark.parametrize("case", VIEWS, ids=lambda case: case.id)
def test_views_are_what_would_be_copied(case, layout):
    graph, (x,) = case.graph(gs.f32), arrays_of(case, gs.f32, layout)
    (node,) = graph.nodes
    view = LOWERINGS[node.op.name].view(node)(x)
    assert_same_bits(view, reference(graph, [x]))
    assert np.may_share_memory(view, x) or view.size == 0 or (node.op.name == "reshape" and layout != "C")


def test_moved_numbers_between_tasks_are_not_copied():
    def network(x: Var) -> Var:
        y = gs.transpose(gs.reshape(gs.relu(x), (4, 6)), (1, 0))
        return gs.relu(y[1:5:2] + gs.broadcast_to(y[0], (2, 4)))

    run = gs.compile(network, gs.f32[2, 3, 4])
    kinds = {step.nodes[0].op.name: step.view is not None for step in run.plan.steps}
    assert kinds == {
        "relu": False,
        "reshape": True,
        "transpose": True,
        "slice": True,
        "broadcast_to": True,
        "add": False,
    }
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    assert np.array_equal(run(x), gs.compile(network, gs.f32[2, 3, 4], backend="numpy")(x))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_what_is_returned_is_written_by_a_task(case):
    graph, arrays = case.graph(gs.f32), arrays_of(case, gs.f32)
    run = gs.compile(graph)
    assert [step.task is not None for step in run.plan.steps] == [True]
    result = run(*arrays)
    assert_same_bits(result, reference(graph, arrays))
    assert not any(np.may_share_memory(result, a) for a in arrays)
    out = np.empty_like(result)
    assert run(*arrays, out=out) is out
    assert_same_bits(out, result)


def test_arrays_are_moved_without_copies():
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for y in (
        gs.transpose(x),
        gs.reshape(x, (6, 4)),
        gs.broadcast_to(x, (5, 2, 3, 4)),
        gs.slice(x, (0, 0, 1), (2, 3, 3)),
    ):
        assert np.may_share_memory(x, y)
