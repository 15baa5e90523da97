"""However a product of matrices is cut into units, and whoever packs what, the bits of its result are the same."""

import os
from itertools import product
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from backends.convolutions import (
    FLOATS,
    assert_equal,
    assert_same_bits,
    drawn,
    fence_frames,
    rough,
    run_fenced,
    several,
    share_everything,
    whole,
)
from backends.pooling import Fenced
from gradspec.backends.cpu.matmul import plan as matmul
from gradspec.backends.cpu.planning import dense
from gradspec.graph.builder import apply
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType
from gradspec.ops.linear import MATMUL, Product

MANY, NONE = 10**12, 0
CUTS: dict[str, dict[str, Any]] = {
    "small units": {
        "get_num_threads": lambda: MANY,
        "UNITS": MANY,
        "UNIT_FLOPS": 1,
        "COLUMN_BYTES": 1,
        "PACKED_FLOPS": NONE,
    },
    "small units that pack": {
        "UNITS": MANY,
        "UNIT_FLOPS": 1,
        "COLUMN_BYTES": 1,
        "PACKED_BYTES": NONE,
        "FEW_ROWS": NONE,
    },
    "parts of the rows": {"UNITS": 4, "UNIT_FLOPS": 1, "PACKED_FLOPS": NONE},
    "one unit": {"UNITS": 1, "COLUMN_BYTES": MANY, "SCRATCH_BYTES": MANY},
    "small groups of rows": {"ROW_GROUP": 16, "SCRATCH_BYTES": NONE, "UNITS": 1},
    "columns in place": {"FEW_ROWS": MANY, "NEAR_BYTES": MANY, "STREAMED_ROWS": NONE},
    "no columns in place": {"FEW_ROWS": NONE, "NEAR_BYTES": NONE, "STREAMED_ROWS": NONE, "TURNED_ROWS": NONE},
    "rows of columns": {"NEAR_BYTES": NONE, "STREAMED_ROWS": 40},
    "columns turned": {"STREAMED_ROWS": NONE, "TURNED_ROWS": 40, "ROW_BYTES": NONE},
}
cuts = pytest.mark.parametrize("cut", CUTS)
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)

SIDES = [
    (40, 20, 100),
    (150, 7, 29),
    (3, 300, 70),
    (17, 600, 65),
    (133, 530, 31),
    (1, 523, 41),
    (6, 259, 35),
    (70, 3, 37),
]
"""Rows, products and columns: several groups of rows, blocks of products and blocks of columns."""


def graph_of(sides: Any, flags: Product, dtype: DType, lead: Any = (), then: Any = None) -> Graph:
    rows, inner, columns = sides
    a, b = (rows, inner), (inner, columns)
    shapes = (a[::-1] if flags.transpose_a else a), (b[::-1] if flags.transpose_b else b), (columns,)
    types = [dtype[(*lead, *shape)] for shape in (*shapes, *[(rows, columns)] * (then is not None))]

    def function(a: Any, b: Any, bias: Any, *others: Any) -> Any:
        y = apply(MATMUL, flags, a, b, bias)
        return y if then is None else then(y, *others)

    return gs.trace(function, *types)


def with_program(y: Any, r: Any) -> Any:
    return y, gs.relu(y) * 0.5 - r


def cases(dtype: DType) -> Any:
    for i, (sides, then) in enumerate(product(SIDES, (None, with_program))):
        flags = Product(transpose_a=i % 2 == 1, transpose_b=i % 3 == 1)
        yield graph_of(sides, flags, dtype, (2,) if i % 4 == 3 else (), then)


def use(monkeypatch: Any, settings: dict[str, Any]) -> None:
    for name, value in settings.items():
        monkeypatch.setattr(matmul, name, value)


def arrays_of(graph: Graph, numbers: Any) -> list[np.ndarray]:
    return drawn([v.shape for v in graph.inputs], numbers, graph.inputs[0].dtype)


@cuts
@dtypes
def test_a_cut_changes_no_bit(dtype, cut, monkeypatch):
    found = []
    for graph in cases(dtype):
        arrays = arrays_of(graph, rough)
        found.append((graph, arrays, several(gs.compile(graph)(*arrays))))
    use(monkeypatch, CUTS[cut])
    share_everything(monkeypatch)
    for graph, arrays, wanted in found:
        for threads in (1, 3):
            for one, other in zip(several(gs.compile(graph, threads=threads)(*arrays)), wanted, strict=True):
                assert_same_bits(one, other, graph, threads)


@cuts
def test_units_are_as_many_as_the_cut_says(cut, monkeypatch):
    """Otherwise the other laws would say nothing."""
    graph = graph_of((150, 20, 100), Product(), gs.f32)
    use(monkeypatch, CUTS[cut])
    plan = gs.compile(graph).plan
    units = plan.steps[-1].task.units
    assert (units > 16) == cut.startswith("small units")
    assert (len(plan.steps) == 2) == (cut in ("small units", "parts of the rows"))


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@cuts
@dtypes
def test_no_cut_touches_anything_beyond_its_memory(dtype, cut, monkeypatch):
    use(monkeypatch, CUTS[cut])
    fenced = Fenced(at_end=True)
    fence_frames(monkeypatch, fenced)
    for graph in cases(dtype):
        arrays = arrays_of(graph, whole)
        wanted = several(gs.compile(graph, backend="numpy")(*arrays))
        for one, other in zip(run_fenced(graph, arrays, fenced), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


# --- pieces of long sums ----------------------------------------------------------------------------------------------

APART = {"UNITS": MANY, "UNIT_FLOPS": 1, "get_num_threads": lambda: MANY}
TOGETHER = {"UNITS": 1, "UNIT_FLOPS": 1}
PIECES = [((5, 400, 9), ()), ((1, 1000, 1), ()), ((20, 700, 530), ()), ((3, 300, 70), (2, 2)), ((37, 390, 1), ())]


def kernels(graph: Graph) -> list[str]:
    return [step.task.kernel for step in gs.compile(graph).plan.steps if step.task is not None]


@pytest.mark.parametrize(("sides", "lead"), PIECES)
@pytest.mark.parametrize("then", [None, with_program])
@dtypes
def test_pieces_by_different_units_are_those_of_one(dtype, then, sides, lead, monkeypatch):
    use(monkeypatch, {"PIECE": 100})
    for flags in (Product(), Product(transpose_a=True), Product(transpose_b=True)):
        graph = graph_of(sides, flags, dtype, lead, then)
        arrays = arrays_of(graph, rough)
        use(monkeypatch, TOGETHER)
        assert f"sums of products {dtype}" not in kernels(graph)
        together = several(gs.compile(graph)(*arrays))
        use(monkeypatch, {"ROW_BYTES": 1})
        for one, other in zip(several(gs.compile(graph)(*arrays)), together, strict=True):
            assert_same_bits(one, other, graph, "packed piece by piece")
        use(monkeypatch, APART)
        assert f"sums of products {dtype}" in kernels(graph)
        for one, other in zip(several(gs.compile(graph)(*arrays)), together, strict=True):
            assert_same_bits(one, other, graph)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize(
    "settings", [APART, TOGETHER, TOGETHER | {"ROW_BYTES": 1}], ids=["apart", "together", "one by one"]
)
@dtypes
def test_pieces_touch_nothing_beyond_their_memory(dtype, settings, monkeypatch):
    use(monkeypatch, settings | {"PIECE": 100})
    fenced = Fenced(at_end=True)
    fence_frames(monkeypatch, fenced)
    for (sides, lead), then in product(PIECES, (None, with_program)):
        for flags in (Product(), Product(transpose_b=True)):
            graph = graph_of(sides, flags, dtype, lead, then)
            arrays = arrays_of(graph, whole)
            wanted = several(gs.compile(graph, backend="numpy")(*arrays))
            for one, other in zip(run_fenced(graph, arrays, fenced), wanted, strict=True):
                assert_equal(one, other, graph)


@dtypes
def test_rows_of_long_sums_do_not_depend_on_others(dtype):
    """A row alone is added up in pieces by several units, and among many by one."""
    inner, columns = 9000, 60
    x, w, b = drawn([(300, inner), (columns, inner), (columns,)], rough, dtype)
    together = gs.compile(gs.linear, dtype[x.shape], dtype[w.shape], dtype[b.shape])(x, w, b)
    for first, last in ((0, 1), (7, 9), (100, 117)):
        part = x[first:last]
        alone = gs.compile(gs.linear, dtype[part.shape], dtype[w.shape], dtype[b.shape])(part, w, b)
        assert_same_bits(alone, together[first:last], first, last)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("sides", [(1, 64, 50), (8, 300, 33), (70, 64, 1)])
def test_what_few_rows_read_is_packed_if_it_is_constant(sides, transpose_b):
    """Once. What is given at every call is read where it lies, in one step; here of one column, on the left."""
    flags = Product(transpose_b=transpose_b)
    given = graph_of(sides, flags, gs.f32)
    a, b, bias = arrays_of(given, rough)
    if sides[2] == 1:
        fixed = gs.trace(lambda x: apply(MATMUL, flags, a, x, bias), gs.f32[b.shape])
    else:
        fixed = gs.trace(lambda x: apply(MATMUL, flags, x, b, bias), gs.f32[a.shape])
    found = gs.compile(given).plan, gs.compile(fixed).plan
    assert [(len(plan.prologue), len(plan.steps)) for plan in found] == [(0, 1), (1, 1)]


# --- sizes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sides", "lead"),
    [
        *(((m, k, n), ()) for m, k, n in product((1, 64, 3000), (1, 64, 100_000), (1, 64, 3000)) if m * k * n < 10**10),
        *(((2048, 2048, 2048), ()), ((8, 8, 8), (1000,)), ((1, 2 * 10**6, 1), ()), ((50_000, 9, 9), ())),
    ],
)
def test_work_is_cut_into_units_that_are_worth_it(sides, lead):
    """Several units where there is work for several threads, none for nothing, and little memory."""
    node = graph_of(sides, Product(), gs.f32, lead).nodes[0]
    shape = matmul.ProductShape.of(node)
    cut = matmul.cut_of(shape, False, True)
    wanted = gs.get_num_threads() if sides[0] == 1 or sides[2] == 1 else matmul.UNITS
    assert cut.units >= min(wanted, shape.flops // (8 * matmul.UNIT_FLOPS))
    assert cut.units <= max(matmul.UNITS * 4, np.prod(lead, dtype=int), shape.flops // matmul.UNIT_FLOPS)
    product = matmul.Multiplication(cut, False, shape.is_turned, False, matmul.Epilogue(shape, None))
    a, b, *others = (dense(v.shape) for v in node.inputs)
    _, _, workspace = product([b, a, *others] if shape.is_turned else [a, b, *others])
    assert workspace <= 8 << 20
