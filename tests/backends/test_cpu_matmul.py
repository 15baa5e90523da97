"""Compiled products of matrices mean what the specification says: shapes, transposes, formats, layouts, fusion."""

import os
from dataclasses import dataclass
from inspect import signature
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gradspec as gs
from backends.convolutions import (
    COLUMNS,
    FLOATS,
    MODES,
    NARROW,
    Numbers,
    Shape,
    assert_equal,
    assert_fused_as_unfused,
    assert_near,
    assert_permitted,
    assert_same_bits,
    assert_same_kinds,
    assert_sum_of_parts,
    drawn,
    fence_frames,
    fused,
    huge,
    inputs,
    laid_out,
    pairs_of_layouts,
    require_no_numpy,
    rough,
    run_fenced,
    several,
    share_everything,
    special,
    tiny,
    whole,
    wild_here_and_there,
)
from backends.pooling import LAYOUTS, Fenced, rubbish
from gradspec.graph.graph import Graph
from gradspec.graph.types import DType, TensorType
from gradspec.ops.linear import MATMUL
from gradspec.ops.linear import Product as Flags

FLAGS = [Flags(*flags) for flags in product((False, True), repeat=2)]
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
modes = pytest.mark.parametrize("mode", MODES)


@dataclass(frozen=True)
class Product:
    """A ``rows × inner`` times an ``inner × columns`` matrix, either of which may lie transposed, for each ``lead``."""

    rows: int
    inner: int
    columns: int
    flags: Flags = FLAGS[0]
    lead: Shape = ()
    bias: bool = False

    @property
    def shapes(self) -> list[Shape]:
        a, b = (self.rows, self.inner), (self.inner, self.columns)
        sides = (a[::-1] if self.flags.transpose_a else a), (b[::-1] if self.flags.transpose_b else b)
        return [*(self.lead + side for side in sides), *[(*self.lead, self.columns)] * self.bias]

    def graph(self, dtype: DType, mode: str = "value", right: np.ndarray | None = None) -> Graph:
        """A graph of one node and what its mode adds; the right matrix is a constant if it is given."""
        builder = gs.Builder()
        first, second, *rest = self.shapes
        a = builder.input(dtype[first])
        b = builder.input(dtype[second]) if right is None else builder.const(right)
        rest = [builder.input(dtype[shape]) for shape in rest]
        return MODES[mode](builder.build(builder.apply(MATMUL, self.flags, a, b, *rest)))

    def plain(self, a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Both matrices, or what is beside them, as they are multiplied."""
        return (
            np.swapaxes(a, -1, -2) if self.flags.transpose_a else a,
            np.swapaxes(b, -1, -2) if self.flags.transpose_b else b,
        )

    def reference(self, a: np.ndarray, b: np.ndarray, bias: Any = None) -> np.ndarray:
        """In the numbers that it is given: int64, or float64."""
        y = np.matmul(*self.plain(a, b))
        return y if bias is None else y + bias[..., None, :]

    def exactly(self, arrays: Any) -> np.ndarray:
        return self.reference(*(a.astype(np.int64) for a in arrays))


def check_whole(product: Product, dtype: DType, seed: int = 0) -> None:
    """The result that NumPy has in int64, rounded once."""
    arrays = drawn(product.shapes, whole, dtype, seed)
    assert_equal(gs.compile(product.graph(dtype))(*arrays), product.exactly(arrays), product, dtype)


# --- the oracle -------------------------------------------------------------------------------------------------------

SIDES = [(1, 1, 1), (3, 4, 5), (5, 1, 3), (1, 9, 7), (8, 13, 1), (9, 16, 12), (17, 21, 30), (4, 150, 6)]
JUDGED = [
    *(Product(*sides, FLAGS[i % 4], bias=i % 3 == 0) for i, sides in enumerate(SIDES + SIDES[1:])),
    *(Product(3, 4, 2, flags, (2, 3), bias=flags.transpose_a) for flags in FLAGS),
    *(Product(*sides, bias=True) for sides in ((3, 0, 2), (3, 2, 0))),
]


def meanings(mode: str, arrays: list[Any]) -> list[Any]:
    """One product by the oracle, which knows it as a convolution of points: rows are positions, columns channels."""
    meaning = gs.conformance.meaning
    given = {"value": arrays, "jvp": arrays[: len(arrays) // 2], "vjp": arrays[:-1]}[mode]
    primals, found = as_convolved(*given), [meaning("conv", *as_convolved(*given))]
    if mode == "jvp":
        found.append(meaning("conv_jvp", *primals, *as_convolved(*arrays[len(given) :])))
    elif mode == "vjp":
        found += meaning("conv_vjp", *primals, arrays[-1].T)
    return [m for m in found if m is not None]


def as_convolved(a: np.ndarray, b: np.ndarray, bias: Any = None) -> list[Any]:
    return [a.T, b.T[..., None], bias]


def tangent_parts(arrays: list[Any]) -> list[Any]:
    half = len(arrays) // 2
    (a, b, *_), (da, db, *bias) = arrays[:half], arrays[half:]
    return [gs.conformance.meaning("conv", *as_convolved(*factors)) for factors in ((da, b), (a, db, *bias))]


def judge(product: Product, mode: str, dtype: DType, numbers: Numbers) -> None:
    """All results of one graph, matrix by matrix; in 16 bits a tangent is a sum of two products, each rounded."""
    graph = product.graph(dtype, mode)
    arrays = inputs(graph, numbers)
    found = several(gs.compile(graph)(*arrays))
    for at in np.ndindex(*product.lead):
        given, results = plain_matrices(product, mode, arrays, at), plain_results(product, mode, found, at)
        for i, (meaning, result) in enumerate(zip(meanings(mode, given), results, strict=True)):
            if mode == "jvp" and i == 1 and dtype in NARROW:
                assert_sum_of_parts(tangent_parts(given), result, product)
            else:
                assert_permitted(meaning, result, product, mode, f"result {i}")


def plain_matrices(product: Product, mode: str, arrays: Any, at: Any) -> list[np.ndarray]:
    """The inputs of a graph at one index of the leading axes, the factors and their tangents as they are multiplied."""
    count = 2 + product.bias
    found = [a[at] for a in arrays]
    for first in (0, count) if mode == "jvp" else (0,):
        found[first : first + 2] = product.plain(*found[first : first + 2])
    return found


def plain_results(product: Product, mode: str, found: Any, at: Any) -> list[np.ndarray]:
    """The outputs as the oracle has them."""
    value, *others = (a[at] for a in found)
    if mode != "vjp":
        return [value.T, *(tangent.T for tangent in others)]
    return [value.T, *as_convolved(*product.plain(*others[:2]))[:2], *others[2:]]


@pytest.mark.rows(3)
@dtypes
@pytest.mark.parametrize("product", JUDGED, ids=str)
def test_kernels_are_the_specification(product, dtype):
    for mode in MODES:
        judge(product, mode, dtype, rough)


@pytest.mark.parametrize("numbers", [special, huge, tiny])
@dtypes
def test_extreme_numbers(dtype, numbers):
    """Overflow and underflow as far as the certified tolerance permits. Parts of a sum may overflow in 16 bits."""
    for p in [p for p in JUDGED if p.rows * p.inner * p.columns < 1000][::2]:
        for mode in ("value", "vjp") if dtype in NARROW else ("jvp", "vjp"):
            judge(p, mode, dtype, numbers)


# --- equality: integers and impulses ----------------------------------------------------------------------------------

LEADS = ((), (3,), (2, 2), (0,))
EMPTY = [sides for sides in product((0, 3), repeat=3) if 0 in sides]


@pytest.mark.rows(2)
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@dtypes
def test_integers_are_added_up_exactly(dtype, flags):
    for i, (sides, lead) in enumerate(product([*SIDES, *EMPTY], LEADS)):
        check_whole(Product(*sides, flags, lead, bias=i % 3 == 0), dtype)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *(((3,), (3,)), ((3,), (3, 2)), ((2, 3), (3,)), ((2, 1, 2, 3), (3, 2)), ((2, 3), (2, 3, 1))),
        *(((2, 1, 1, 2), (3, 2, 2)), ((2, 2, 3), (3,)), ((3,), (2, 3, 2)), ((4, 1, 5, 6), (3, 6, 7)), ((0, 2), (2, 2))),
    ],
)
def test_vectors_and_stacks(a, b):
    left, right = drawn((a, b), whole, gs.f32)
    assert_equal(gs.compile(gs.matmul, gs.f32[a], gs.f32[b])(left, right), np.matmul(left, right))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lead", [(), (1,), (5,), (2, 3), (0,)], ids=str)
@dtypes
def test_linear_layers(dtype, lead, bias):
    shapes = [(*lead, 7), (9, 7), *[(9,)] * bias]
    x, w, *b = arrays = drawn(shapes, whole, dtype)
    wanted = x.astype(np.int64) @ w.astype(np.int64).T + (b[0].astype(np.int64) if bias else 0)
    assert_equal(gs.compile(gs.linear, *(dtype[shape] for shape in shapes))(*arrays), wanted)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@dtypes
def test_impulses_show_every_number_as_it_is(dtype, flags):
    """One power of two in each row of the left matrix, or each column of the right one, and zeros elsewhere."""
    rng = np.random.default_rng(0)
    for sides, which in product(SIDES, range(2)):
        p = Product(*sides, flags)
        arrays = drawn(p.shapes, rough, dtype)
        count = (p.rows, p.columns)[which]
        matrix = np.zeros((count, p.inner))
        matrix[np.arange(count), rng.integers(0, p.inner, count)] = rng.choice([-4.0, -1.0, 0.5, 2.0], count)
        lies_transposed = (flags.transpose_a, not flags.transpose_b)[which]
        arrays[which] = np.ascontiguousarray(matrix.T if lies_transposed else matrix).astype(dtype.numpy)
        wanted = p.reference(*(a.astype(np.float64) for a in arrays))
        assert_equal(gs.compile(p.graph(dtype))(*arrays), wanted, p, which)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
@dtypes
def test_infinities_and_nans_reach_what_they_meet_and_nothing_else(dtype, flags):
    for sides in SIDES:
        p = Product(*sides, flags)
        run = gs.compile(p.graph(dtype))
        first, second = drawn(p.shapes, rough, dtype)
        everywhere = drawn(p.shapes, special, dtype)
        for arrays in ((wild_here_and_there(first), second), (first, wild_here_and_there(second)), everywhere):
            with np.errstate(invalid="ignore"):
                wanted = p.reference(*(a.astype(np.float64) for a in arrays))
            assert_same_kinds(run(*arrays), wanted, p)
            assert_near(run(*arrays), p.reference, arrays, p)


# --- every remainder of a tile ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", range(1, 18))
def test_every_remainder_of_a_tile(rows):
    """All pairs of rows and columns, with depths from 1 to 20: in float32, and some of them in another format too."""
    other = [dtype for dtype in FLOATS.values() if dtype != gs.f32][rows % 3]
    for i, columns in enumerate(COLUMNS):
        depth = 1 + (i + 7 * rows) % 20
        check_whole(Product(rows, depth, columns, FLAGS[(i + rows) % 4], bias=i % 3 == 0), gs.f32, seed=i)
        if (i + rows) % 3 == 0:
            check_whole(Product(rows, 21 - depth, columns, FLAGS[i % 4]), other, seed=i)


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_sides_longer_than_a_block(flags):
    sides = [(5, depth, 15) for depth in (*range(1, 41), 63, 64, 65, 127, 129, 255, 256, 257, 511, 513, 1025)]
    for s in (
        *sides,
        (300, 11, 7),
        (5, 9, 1030),
        (33, 270, 130),
        (130, 60, 33),
        (1, 700, 1030),
        (1030, 700, 1),
        (3, 9000, 4),
    ):
        check_whole(Product(*s, flags), gs.f32)


# --- long sums --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", FLAGS, ids=str)
def test_a_million_terms(flags):
    p = Product(1, 10**6, 1, flags)
    run = gs.compile(p.graph(gs.f32))
    arrays = drawn(p.shapes, rough, gs.f32)
    for _ in range(2):
        a, b = p.plain(*arrays)
        assert_permitted(gs.conformance.meaning("conv", *as_convolved(a, b)), run(*arrays).T)
        arrays = [np.abs(a) for a in arrays]


@dtypes
def test_a_million_small_integers(dtype):
    """Ones in sixty-fourths: 15,625, which no format that accumulates in 24 bits or more can miss."""
    p = Product(2, 10**6, 3)
    arrays = [np.full(shape, 1 / 8, dtype.numpy) for shape in p.shapes]
    assert_equal(gs.compile(p.graph(dtype))(*arrays), np.full((2, 3), 15625.0))


@pytest.mark.parametrize("place", [0, 2000, 4096])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_sums_do_not_stall(dtype, place):
    """4096 ones on top of a sum beyond which 16 bits count no ones."""
    for flags in FLAGS:
        p = Product(3, 4097, 5, flags)
        a, b = (np.ones(shape, dtype.numpy) for shape in p.shapes)
        p.plain(a, b)[0][:, place] = 2048
        assert_equal(gs.compile(p.graph(dtype))(a, b), np.full((3, 5), 6144.0))


# --- layouts ----------------------------------------------------------------------------------------------------------

LAID_OUT = [Product(9, 13, 17, flags, lead) for flags, lead in product(FLAGS, ((), (2,), (2, 3)))]
laid_out_products = pytest.mark.parametrize("product", LAID_OUT, ids=str)


@laid_out_products
def test_every_layout_is_read(product):
    arrays = drawn(product.shapes, whole, gs.f32)
    run = gs.compile(product.graph(gs.f32))
    for layouts in pairs_of_layouts():
        given = [laid_out(a, layout) for a, layout in zip(arrays, layouts, strict=True)]
        assert_equal(run(*given), product.exactly(given), product, layouts)


@pytest.mark.parametrize("dtype", [t for t in FLOATS.values() if t != gs.f32], ids=str)
def test_layouts_of_other_formats(dtype):
    for p, layout in product(LAID_OUT, LAYOUTS):
        given = [laid_out(a, layout) for a in drawn(p.shapes, whole, dtype)]
        assert_equal(gs.compile(p.graph(dtype))(*given), p.exactly(given), p, layout)


@laid_out_products
def test_out_of_any_layout_and_nothing_beside_it_is_written(product):
    for inputs_ in ("C", "transposed", "reversed", "one row"):
        given = [laid_out(a, inputs_) for a in drawn(product.shapes, whole, gs.f32)]
        run, wanted = gs.compile(product.graph(gs.f32)), product.exactly(given)
        for layout in LAYOUTS.values():
            parent = rubbish(TensorType(gs.f32, layout.parent(wanted.shape)))
            beside = parent.copy()
            out = layout.view(parent, wanted.shape)
            assert run(*given, out=out) is out
            assert_equal(out, wanted, product, inputs_)
            layout.view(beside, wanted.shape)[...] = out
            assert_same_bits(parent, beside, "something beside the result is written")


# --- constants, threads, runs and batches -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shapes",
    [[(5, 7), (9, 7), (9,)], [(40, 33), (50, 33), (50,)], [(3,), (17, 3), (17,)], [(3, 5000), (8, 5000), (8,)]],
)
@dtypes
def test_constant_weights_change_nothing(dtype, shapes):
    """Weights that are known when a graph is compiled, and those given at every call: the same bits."""
    x, *fixed = arrays = drawn(shapes, rough, dtype)
    for mode in ("value", "vjp"):
        given = MODES[mode](gs.trace(gs.linear, *(dtype[shape] for shape in shapes)))
        known = MODES[mode](gs.trace(lambda x: gs.linear(x, *fixed), dtype[x.shape]))
        g = drawn([v.shape for v in known.inputs[1:]], rough, dtype, seed=1)
        wanted = several(gs.compile(given)(*arrays, *g))
        for one, other in zip(several(gs.compile(known)(x, *g)), wanted, strict=False):
            assert_same_bits(one, other, mode)


@modes
@dtypes
def test_results_do_not_depend_on_threads_or_runs(dtype, mode, monkeypatch):
    share_everything(monkeypatch)
    for p in (Product(*s, flags, bias=True) for s, flags in product(((33, 50, 70), (5, 5000, 9)), FLAGS)):
        graph = p.graph(dtype, mode)
        arrays = inputs(graph, rough)
        alone = several(gs.compile(graph, threads=1)(*arrays))
        for threads in range(1, 9):
            run = gs.compile(graph, threads=threads)
            for one, other in zip(several(run(*arrays)) + several(run(*arrays)), alone + alone, strict=True):
                assert_same_bits(one, other, p, threads)


@pytest.mark.parametrize(("inner", "outer"), [(7, 9), (64, 33), (1, 5), (300, 1), (129, 140), (9000, 12)])
@dtypes
def test_a_sample_does_not_depend_on_its_batch(dtype, inner, outer):
    """A row among forty, among seven, alone, and as a vector: value and input gradient of a linear layer."""

    def layer(*lead: int) -> Any:
        return gs.compile(gs.trace(gs.linear, dtype[(*lead, inner)], dtype[outer, inner], dtype[outer]).vjp())

    x, w, b, g = drawn([(40, inner), (outer, inner), (outer,), (40, outer)], rough, dtype)
    together, spread, *_ = layer(40)(x, w, b, g)
    for run, parts in (
        (layer(7), [slice(i, i + 7) for i in (0, 5, 33)]),
        (layer(1), [slice(i, i + 1) for i in (0, 11, 39)]),
        (layer(), [0, 11, 39]),
    ):
        for part in parts:
            y, dx, *_ = run(x[part], w, b, g[part])
            assert_same_bits(y, together[part], part)
            assert_same_bits(dx, spread[part], part)


@dtypes
def test_a_matrix_does_not_depend_on_its_stack(dtype):
    for flags in FLAGS:
        p, alone = Product(9, 20, 14, flags, (5,), bias=True), Product(9, 20, 14, flags, bias=True)
        arrays = drawn(p.shapes, rough, dtype)
        together, one = gs.compile(p.graph(dtype))(*arrays), gs.compile(alone.graph(dtype))
        for i in range(5):
            assert_same_bits(one(*(a[i] for a in arrays)), together[i], flags, i)


# --- fusion -----------------------------------------------------------------------------------------------------------

SHAPES = {"x": (5, 7), "w": (9, 7), "b": (9,), "r": (5, 9), "v": (3, 9), "a": (2, 4, 6), "c": (2, 6, 5)}


def chained(x, w, b, r):
    return gs.clamp(gs.relu(gs.linear(x, w, b)) + r, -0.5, 1.5)


def two_layers(x, w, b, v):
    return gs.linear(gs.relu(gs.linear(x, w, b)), v) * 0.5


def bias_added_later(x, w, b, r):
    return gs.relu(gs.linear(x, w) + b) * r


def second_operand(x, w, r):
    return r - gs.linear(x, w) * 0.5


def returned_too(x, w, b, r):
    y = gs.linear(x, w, b)
    return y, gs.relu(y) - y * r


def stacked(a, c):
    y = gs.matmul(a, c)
    return gs.maximum(y, -y) + 1.0


def behind_a_convolution(x, w, b):
    """The reshape between them moves nothing."""
    y = gs.relu(gs.conv(gs.reshape(x, (5, 1, 7)), gs.reshape(w[:1], (1, 1, 7)), padding=3))
    return gs.linear(gs.flatten(y, 1), w, b)


BLOCKS = [chained, two_layers, bias_added_later, second_operand, returned_too, stacked, behind_a_convolution]
blocks = pytest.mark.parametrize("block", BLOCKS)


def block_graph(block: Any, mode: str, dtype: DType = gs.f32) -> Graph:
    return MODES[mode](gs.trace(block, *(dtype[SHAPES[name]] for name in signature(block).parameters)))


@dtypes
@modes
@blocks
def test_fused_is_unfused(block, mode, dtype):
    """A graph compiled whole, and its operators one by one on arrays: the same bits."""
    graph = block_graph(block, mode, dtype)
    assert_fused_as_unfused(graph, inputs(graph, rough), mode)


@pytest.mark.parametrize(
    ("block", "steps"),
    [
        (chained, ["matmul relu add clamp"]),
        (two_layers, ["matmul relu", "matmul mul"]),
        (bias_added_later, ["matmul add relu mul"]),
        (second_operand, ["matmul mul sub"]),
        (returned_too, ["matmul relu mul sub"]),
        (stacked, ["matmul neg maximum add"]),
        (behind_a_convolution, ["conv relu", "matmul"]),
    ],
)
def test_what_is_fused(block, steps):
    """One step for a product and all that is done with its result cell by cell."""
    assert fused(block_graph(block, "value")) == steps


@blocks
def test_second_derivatives_are_fused_the_same(block):
    graph = block_graph(block, "vjp").jvp()
    assert_fused_as_unfused(graph, inputs(graph, rough))


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize(
    ("at_end", "dtype"), [(True, gs.f32), (False, gs.f32), (True, gs.f16), (True, gs.f64)], ids=str
)
@pytest.mark.parametrize("sides", SIDES, ids=str)
def test_nothing_beyond_an_array_is_touched(sides, dtype, at_end, monkeypatch):
    """Arrays, arenas, workspaces and packed matrices end, or begin, at a page that nobody may read or write."""
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    for flags, lead, layout in product(FLAGS, ((), (2,)), ("C", "transposed")):
        p = Product(*sides, flags, lead)
        given = [laid_out(a, layout) for a in drawn(p.shapes, whole, dtype)]
        for graph, arrays in ((p.graph(dtype), given), (p.graph(dtype, right=given[1]), given[:1])):
            (found,) = run_fenced(graph, arrays, fenced)
            assert_equal(found, p.exactly(given), p, layout)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize("at_end", [True, False])
@modes
@blocks
def test_fused_graphs_touch_nothing_beyond_their_arrays(block, mode, at_end, monkeypatch):
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    graph = block_graph(block, mode)
    arrays = inputs(graph, whole)
    wanted = several(gs.compile(graph, backend="numpy")(*arrays))
    for one, other in zip(run_fenced(graph, arrays, fenced), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@modes
@pytest.mark.parametrize("sides", [(4096, 512, 1000), (64, 9216, 4096), (3000, 3000, 16), (1, 25088, 4096)], ids=str)
def test_memory_does_not_grow_with_the_operands(sides, mode):
    """8 MiB per thread, and beyond that panels of one operand, and the parts that a JVP adds."""
    plan = gs.compile(Product(*sides, FLAGS[1]).graph(gs.f32, mode)).plan
    rows, inner, columns = sides
    assert plan.workspace <= 8 * 2**20
    assert plan.arena_bytes <= 8 * 2**20 + 8 * 4 * (inner * columns + (rows * columns if mode == "jvp" else 0))


# --- at random --------------------------------------------------------------------------------------------------------

PRODUCTS = st.builds(
    Product,
    *(st.integers(0, most) for most in (40, 70, 60)),
    st.sampled_from(FLAGS),
    st.sampled_from([(), (1,), (3,), (2, 2)]),
    st.booleans(),
)


@pytest.mark.rows(2)
@dtypes
@settings(max_examples=40, deadline=None)
@given(PRODUCTS, st.sampled_from(pairs_of_layouts()))
def test_random_products_are_those_of_the_numpy_backend(dtype, product, layouts):
    arrays = drawn(product.shapes, whole, dtype)
    given = [laid_out(a, layout) for a, layout in zip(arrays, (*layouts, "C"), strict=False)]
    graph = product.graph(dtype)
    found = gs.compile(graph, threads=2)(*given)
    assert_equal(found, gs.compile(graph, backend="numpy")(*given), product)
    assert_equal(found, product.exactly(given), product)


# --- which backend ran ------------------------------------------------------------------------------------------------


@modes
@dtypes
def test_no_step_is_left_to_numpy(dtype, mode):
    for p in (*JUDGED, *LAID_OUT):
        if all(map(prod, p.shapes)):
            require_no_numpy(p.graph(dtype, mode))


@modes
@dtypes
def test_no_step_of_a_fused_graph_is_left_to_numpy(dtype, mode):
    for block in BLOCKS:
        require_no_numpy(block_graph(block, mode, dtype))
