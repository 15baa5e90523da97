"""Compiled convolutions mean what the specification says: geometries, formats, layouts, threads, batches, fusion."""

import os
from functools import partial
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
    Form,
    Layer,
    Numbers,
    Shape,
    assert_equal,
    assert_fused_as_unfused,
    assert_near,
    assert_permitted,
    assert_same_bits,
    assert_same_kinds,
    assert_sum_of_parts,
    check_whole,
    drawn,
    fence_frames,
    form,
    fused,
    huge,
    inputs,
    integer_result,
    laid_out,
    pairs_of_layouts,
    reference,
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
from cases import CASES
from gradspec.graph.types import DType, TensorType
from gradspec.ops.conv import ROLES, Convolution

OPERATORS = tuple(ROLES)
dtypes = pytest.mark.parametrize("dtype", FLOATS.values(), ids=str)
modes = pytest.mark.parametrize("mode", MODES)
operators = pytest.mark.parametrize("name", OPERATORS)


# --- the table --------------------------------------------------------------------------------------------------------


def conv(id: str, x: Any, w: Any, bias: bool = False, **attributes: Any) -> Layer:
    return Layer(f"conv {id}", "conv", (x, w, (w[0],) if bias else None), attributes)


def transposed(id: str, x: Any, w: Any, bias: bool = False, **attributes: Any) -> Layer:
    channels = w[1] * attributes.get("groups", 1)
    return Layer(f"conv_transpose {id}", "conv_transpose", (x, w, (channels,) if bias else None), attributes)


SMALL = [Layer(c.id, c.operator, c.shapes, c.attributes) for c in CASES if c.operator in ("conv", "conv_transpose")]
LAYERS = [
    conv("3x3", (2, 5, 9, 11), (7, 5, 3, 3), True, padding=1),
    conv("3x3 by 2", (2, 5, 9, 11), (7, 5, 3, 3), padding=1, stride=2),
    conv("1x1", (2, 9, 5, 7), (13, 9, 1, 1), True),
    conv("1x1 by 2", (9, 7, 7), (5, 9, 1, 1), stride=2),
    conv("7x7 by 2 of an image", (3, 17, 19), (9, 3, 7, 7), True, padding=3, stride=2),
    conv("one channel each", (1, 12, 30), (1, 1, 3, 5), True),
    conv("many channels", (130, 3, 5), (6, 130, 3, 3), padding=1),
    conv("many outputs", (4, 4, 3), (70, 4, 3, 2), True, padding=1),
    conv("long row", (3, 230), (5, 3, 9), True, padding=4),
    conv("long row, dilated", (3, 150), (4, 3, 3), padding=((5, 2),), dilation=3, stride=2),
    conv("dilated", (2, 4, 10, 9), (5, 4, 3, 3), padding=2, dilation=2),
    conv("groups", (15, 6, 7), (21, 5, 3, 3), True, groups=3, padding=1),
    conv("depthwise", (17, 6, 9), (17, 1, 3, 3), True, groups=17, padding=1),
    conv("depthwise by 2", (6, 9, 11), (6, 1, 3, 3), groups=6, padding=1, stride=2),
    conv("depthwise 5x5", (5, 9, 20), (5, 1, 5, 5), groups=5, padding=2),
    conv("depthwise, three each", (5, 7, 8), (15, 1, 3, 3), True, groups=5, padding=1),
    conv("one side", (3, 6, 7), (4, 3, 3, 3), padding=((2, 0), (0, 2))),
    conv("padding beyond the input", (3, 2, 3), (4, 3, 3, 2), True, padding=((5, 4), (0, 7)), stride=(2, 3)),
    conv("kernel beyond the input", (3, 2, 3), (4, 3, 5, 6), padding=((2, 1), (3, 0))),
    conv("gaps", (3, 11, 13), (4, 3, 2, 3), stride=(4, 5)),
    conv("columns of one cell", (4, 6, 1), (5, 4, 3, 1), padding=((1, 1), (0, 0))),
    conv("volumes", (2, 3, 4, 5, 6), (5, 3, 3, 3, 3), True, padding=1),
    conv("volumes by 2", (3, 5, 4, 7), (4, 3, 2, 3, 3), stride=(2, 1, 2), padding=((1, 0), (0, 1), (1, 1))),
    conv("rank 4", (3, 3, 4, 3, 5), (4, 3, 2, 3, 2, 3), True, padding=(0, 1, 0, 1), stride=(1, 2, 1, 2)),
    transposed("4x4 by 2", (2, 5, 5, 6), (5, 7, 4, 4), True, stride=2, padding=1),
    transposed("2x2 by 2", (9, 4, 5), (9, 6, 2, 2), stride=2),
    transposed("gaps", (5, 4, 3), (5, 4, 2, 2), True, stride=(3, 4)),
    transposed("cells that nobody reaches", (3, 4, 3), (3, 4, 3, 2), stride=(3, 2), padding=1, output_padding=(2, 1)),
    transposed("dilated", (4, 6), (4, 5, 3), True, stride=2, dilation=3, output_padding=2, padding=((3, 4),)),
    transposed("groups", (2, 12, 4, 5), (12, 5, 3, 3), True, groups=3, stride=2, padding=1),
    transposed("depthwise", (7, 5, 6), (7, 1, 4, 4), groups=7, stride=2, padding=1),
    transposed("many channels", (90, 3, 4), (90, 5, 3, 3), padding=1),
    transposed("volumes", (3, 3, 2, 4), (3, 5, 2, 3, 2), True, stride=(2, 1, 2)),
    transposed("rank 4", (2, 2, 3, 2, 3), (2, 3, 2, 2, 2, 2), stride=(1, 2, 1, 1)),
]
TABLE = SMALL + LAYERS
FEW = [layer for i, layer in enumerate(LAYERS) if i % 4 == 0]
JUDGED = [
    (layer, dtype)
    for i, dtype in enumerate(FLOATS.values())
    for layer in ([*SMALL, *LAYERS] if dtype == gs.f32 else [*SMALL[i % 2 :: 2], *FEW])
]


def named(value: Any) -> str:
    return getattr(value, "id", None) or getattr(value, "__name__", str(value))


judged = pytest.mark.parametrize(("layer", "dtype"), JUDGED, ids=named)


def judge(layer: Layer, mode: str, dtype: Any, numbers: Numbers) -> None:
    """All results of one graph; in 16 bits a tangent is a sum of two products that are rounded each."""
    graph = layer.graph(mode, dtype)
    arrays = inputs(graph, numbers)
    found = several(gs.compile(graph)(*arrays))
    for i, (meaning, result) in enumerate(zip(layer.meanings(mode, arrays), found, strict=True)):
        if mode == "jvp" and i == 1 and dtype in NARROW:
            assert_sum_of_parts(layer.tangent_parts(arrays), result, mode)
        else:
            assert_permitted(meaning, result, mode, f"result {i}")


@pytest.mark.rows(3)
@judged
def test_kernels_are_the_specification(layer, dtype):
    for mode in MODES:
        judge(layer, mode, dtype, rough)


EXTREME = [
    (layer, dtype, numbers)
    for i, layer in enumerate(SMALL)
    for dtype in (gs.f32, (gs.f64, gs.f16, gs.bf16)[i % 3])
    for numbers in (special, (huge, tiny)[i % 2])
]


@pytest.mark.parametrize(("layer", "dtype", "numbers"), EXTREME, ids=named)
def test_extreme_numbers(layer, dtype, numbers):
    """Overflow and underflow as far as the certified tolerance permits. Parts of a sum may overflow in 16 bits."""
    for mode in ("value", "vjp") if dtype in NARROW else ("jvp", "vjp"):
        judge(layer, mode, dtype, numbers)


# --- equality: integers and impulses ----------------------------------------------------------------------------------

FORMS = [
    form((9, 11), (3, 3), 1, 1, lead=(2,), channels=(5, 7)),
    form((9, 11), (3, 3), 2, 1, lead=(2,), channels=(5, 7)),
    form((5, 7), (1, 1), lead=(2,), channels=(9, 13)),
    form((6, 7), (1, 1), 2, channels=(9, 5), unread=1),
    form((17, 19), (7, 7), 2, 3, channels=(3, 9)),
    form((230,), (9,), 1, ((4, 4),), lead=(2,), channels=(3, 5)),
    form((40,), (3,), 2, ((5, 2),), 3, channels=(4, 6), unread=2),
    form((3, 5), (3, 3), 1, 1, channels=(130, 6)),
    form((4, 3), (3, 2), 1, 1, channels=(4, 70)),
    form((6, 7), (3, 3), 1, 1, lead=(2,), channels=(15, 21), groups=3),
    form((8, 9), (3, 3), 1, 1, lead=(2,), channels=(17, 17), groups=17),
    form((6, 13), (3, 3), 1, ((2, 0), (0, 2)), lead=(2,), channels=(3, 3), groups=3),
    form((9, 21), (3, 3), 1, ((0, 3), (4, 1)), (1, 2), channels=(2, 2), groups=2),
    form((2, 5, 11), (1, 3, 3), 1, 1, channels=(3, 3), groups=3),
    form((7, 20), (5, 5), 1, 2, channels=(5, 15), groups=5),
    form((9, 12), (3, 3), 2, 1, channels=(6, 6), groups=6, unread=1),
    form((5, 11), (3, 3), 2, 0, 2, channels=(1, 1)),  # a stride that divides the dilation: taps share cells
    form((6, 9), (3, 2), (2, 1), ((1, 2), (3, 0)), (1, 2), lead=(2, 2), channels=(4, 6), groups=2),
    form((2, 3), (3, 2), (2, 3), ((5, 4), (0, 7)), channels=(3, 4)),
    form((2, 3), (5, 6), 1, ((2, 1), (3, 0)), channels=(3, 4)),
    form((11, 13), (2, 3), (4, 5), channels=(3, 4)),
    form((13, 10), (2, 3), 2, 1, 2, channels=(2, 5), unread=2),
    form((6, 1), (3, 1), 1, ((1, 1), (0, 0)), channels=(4, 5)),
    form((1, 1), (1, 1), lead=(7,), channels=(6, 9)),
    form((4, 5, 6), (3, 3, 3), 1, 1, lead=(2,), channels=(3, 5)),
    form((5, 4, 7), (2, 3, 3), (2, 1, 2), ((1, 0), (0, 1), (1, 1)), channels=(3, 4), unread=1),
    form((3, 4, 3, 5), (2, 3, 2, 3), (1, 2, 1, 2), ((0, 0), (1, 1), (0, 0), (1, 1)), channels=(3, 4)),
    form((), (), lead=(7,), channels=(6, 9)),
]
forms = pytest.mark.parametrize("form", FORMS, ids=str)
EMPTY = [
    form((5,), (2,), lead=(0,), channels=(2, 3)),
    form((5, 4), (2, 2), lead=(2, 0), channels=(2, 3)),
    form((5,), (2,), lead=(2,), channels=(0, 3)),
    form((5,), (2,), lead=(2,), channels=(2, 0)),
    form((5,), (2,), lead=(2,), channels=(0, 0)),
    form((4, 5), (3, 3), 1, 1, lead=(2,), channels=(0, 6), groups=3),
    form((), (), lead=(0,), channels=(2, 3)),
]


@operators
@pytest.mark.parametrize("form", FORMS + EMPTY, ids=str)
def test_integers_are_added_up_exactly(form, name):
    for dtype, bias in product(FLOATS.values(), (False, True) if name != "conv_weight_grad" else (False,)):
        check_whole(form, name, dtype, bias)


def impulses(form: Form, role: str, result: str, seed: int = 0) -> np.ndarray:
    """The operand ``role`` with one power of two in each sum that makes ``result``, and zeros elsewhere."""
    a, samples = form.attrs, prod(form.lead)
    per_group = form.g_channels // a.groups, form.x_channels // a.groups
    split, kept = {
        "w": ((a.groups, *per_group, prod(a.kernel)), {"g": (0, 1), "x": (0, 2)}),
        "x": ((samples, form.x_channels, prod(a.sizes)), {"g": (0,), "w": (1,)}),
        "g": ((samples, form.g_channels, prod(a.outputs)), {"x": (0,), "w": (1,)}),
    }[role]
    order = (*kept[result], *(axis for axis in range(len(split)) if axis not in kept[result]))
    rng, count = np.random.default_rng(seed), prod(split[axis] for axis in kept[result])
    flat = np.zeros((count, prod(split) // count))
    flat[np.arange(count), rng.integers(0, flat.shape[1], count)] = rng.choice([-4.0, -1.0, 0.5, 2.0], count)
    moved = flat.reshape([split[axis] for axis in order]).transpose(np.argsort(order))
    return moved.reshape(form.shapes[role])


@dtypes
@operators
@forms
def test_impulses_show_every_number_as_it_is(form, name, dtype):
    """One factor of each sum is a power of two and the others are zero, so no bit of the other operand may be lost."""
    *roles, result = ROLES[name]
    run = gs.compile(form.graph(name, dtype))
    for which, seed in product(range(2), range(2)):
        arrays = drawn(form.operands(name), rough, dtype, seed)
        arrays[which] = impulses(form, roles[which], result, seed).astype(dtype.numpy)
        wanted = reference(form, name, *(a.astype(np.float64) for a in arrays))
        assert_equal(run(*arrays), wanted, form, name, dtype, roles[which])


@dtypes
@operators
@forms
def test_infinities_and_nans_reach_what_they_meet_and_nothing_else(form, name, dtype):
    """A zero of the padding times what is not finite is NaN. Where no output reads a cell, nothing is multiplied."""
    run = gs.compile(form.graph(name, dtype))
    first, second = drawn(form.operands(name), rough, dtype)
    everywhere = drawn(form.operands(name), special, dtype)
    for arrays in ((wild_here_and_there(first), second), (first, wild_here_and_there(second)), everywhere):
        with np.errstate(invalid="ignore"):
            wanted = reference(form, name, *(a.astype(np.float64) for a in arrays))
        for found in (run(*arrays), run(*map(backwards, arrays))):
            assert_same_kinds(found, wanted, form, name, dtype)
            assert_near(found, partial(reference, form, name), arrays, form, name, dtype)


def backwards(array: np.ndarray) -> np.ndarray:
    """The same numbers, from the last address to the first."""
    turned = (slice(None, None, -1),) * array.ndim
    return array[turned].copy()[turned]


# --- every remainder of a tile ----------------------------------------------------------------------------------------


def divisor(n: int) -> int:
    return 3 if n % 3 == 0 else 2 if n % 2 == 0 else 1


def product_of(name: str, rows: int, columns: int, depth: int) -> Form:
    """An operator that is a product of a ``rows x depth`` and a ``depth x columns`` matrix, taps among them."""
    if name == "conv_weight_grad":
        k = divisor(columns)
        return form((depth + k - 1,), (k,), channels=(columns // k, rows))
    k = divisor(depth)
    if name == "conv":
        return form((columns + k - 1,), (k,), channels=(depth // k, rows))
    return form((columns,), (k,), padding=((k - 1, k - 1),), channels=(rows, depth // k))


@pytest.mark.parametrize("rows", range(1, 18))
@operators
def test_every_remainder_of_a_tile(name, rows):
    """All pairs of rows and columns, with depths from 1 to 20: in float32, and some of them in another format too."""
    others = [dtype for dtype in FLOATS.values() if dtype != gs.f32]
    for i, columns in enumerate(COLUMNS):
        depth = 1 + (i + 7 * rows) % 20
        check_whole(product_of(name, rows, columns, depth), name, gs.f32, seed=i)
        if (i + rows) % 3 == 0:
            check_whole(product_of(name, rows, columns, 21 - depth), name, others[i // 3 % 3], seed=i)


@pytest.mark.parametrize("stride", [1, 2])
@operators
def test_planes_of_every_width(name, stride):
    for width in range(1, 51):
        shape = 2 + width % 3, width
        check_whole(form(shape, (3, 3), stride, 1, lead=(2,), channels=(2, 5)), name, gs.f32)
        if width >= 2:
            check_whole(form(shape, (2, 2), stride, channels=(9, 9), groups=9), name, gs.f32)


PADDINGS = [(1, 1), (0, 0), (2, 2), (1, 0), (0, 2), (3, 1), (4, 5)]


@operators
def test_single_channels_of_every_width(name):
    """Three by three windows that begin and end within rows, and beyond them by less and by more than a window, with
    strides and dilations that have a common factor or none."""
    for width, (above, along) in product(range(1, 51), ((1, 1), (1, 3), (2, 2), (3, 1))):
        lo, hi = PADDINGS[width % len(PADDINGS)]
        dilation = 1 + (width // len(PADDINGS)) % 3
        padding = ((hi + above, lo + above), (lo + dilation, hi + dilation))
        windows = (above, along), padding, (above, dilation)
        check_whole(
            form((3 + width % 7, width), (3, 3), *windows, channels=(2, 2), groups=2), name, (gs.f32, gs.f64)[width % 2]
        )


@operators
def test_every_depth(name):
    for depth in (*range(1, 41), 63, 64, 65, 127, 128, 129, 255, 256, 257, 511, 513, 1025):
        check_whole(product_of(name, 5, 15, depth), name, gs.f32)


@operators
def test_sides_longer_than_a_block(name):
    for rows, columns, depth in ((300, 7, 11), (5, 1030, 9), (33, 130, 270), (130, 33, 60)):
        check_whole(product_of(name, rows, columns, depth), name, gs.f32)


# --- long sums --------------------------------------------------------------------------------------------------------

MILLION = {
    "conv": form((1000,), (1000,), channels=(1000, 1)),
    "conv_transpose": form((1,), (1000,), 1, ((999, 999),), channels=(1, 1000)),
    "conv_weight_grad": form((1000,), (1,), lead=(1000,)),
}
LAYER_OF = {
    "conv": lambda x, w: gs.conformance.meaning("conv", x, w),
    "conv_transpose": lambda g, w: gs.conformance.meaning("conv_transpose", g, w, padding=((999, 999),)),
    "conv_weight_grad": lambda x, g: gs.conformance.meaning("conv_vjp", x, np.ones((1, 1, 1), x.dtype), None, g)[1],
}


@operators
def test_a_million_terms(name):
    arrays = drawn(MILLION[name].operands(name), rough, gs.f32)
    for _ in range(2):
        found = gs.compile(MILLION[name].graph(name, gs.f32))(*arrays)
        assert_permitted(LAYER_OF[name](*arrays), found, name)
        arrays = [np.abs(a) for a in arrays]


@dtypes
@operators
def test_a_million_small_integers(name, dtype):
    """Ones in sixty-fourths: 15,625, which no format that accumulates in 24 bits or more can miss."""
    arrays = [np.full(shape, 1 / 8, dtype.numpy) for shape in MILLION[name].operands(name)]
    found = gs.compile(MILLION[name].graph(name, dtype))(*arrays)
    assert_equal(found, np.full(found.shape, 15625.0), name)


@pytest.mark.parametrize("place", ["first", "middle", "last"])
@pytest.mark.parametrize("dtype", NARROW, ids=str)
@operators
def test_sums_do_not_stall(name, dtype, place):
    """4096 ones on top of a sum beyond which 16 bits count no ones."""
    f = product_of(name, 3, 5, 4097)
    arrays = [np.ones(shape, dtype.numpy) for shape in f.operands(name)]
    at = {"first": 0, "middle": 2000, "last": 4096}[place]
    axis = {"conv": -2, "conv_transpose": -2, "conv_weight_grad": -1}[name]
    arrays[0][(..., at, slice(None)) if axis == -2 else (..., at)] = 2048
    assert_equal(gs.compile(f.graph(name, dtype))(*arrays), np.full(f.shapes[ROLES[name][2]], 6144.0), name)


# --- layouts ----------------------------------------------------------------------------------------------------------

LAID_OUT = [
    form((6, 9), (3, 2), (2, 1), ((1, 2), (3, 0)), (1, 2), lead=(2,), channels=(3, 5)),
    form((5, 17), (3, 3), 1, 1, lead=(2,), channels=(8, 8)),
    form((5, 6), (1, 1), lead=(2,), channels=(9, 17)),
    form((7, 8), (3, 3), 1, 1, lead=(2,), channels=(5, 5), groups=5),
    form((21,), (4,), 2, ((1, 2),), lead=(3,), channels=(4, 6), groups=2),
    form((3, 4, 5), (2, 2, 3), 1, 1, channels=(2, 3)),
    form((5, 6), (3, 3), 2, 1, lead=(2, 3), channels=(3, 4)),
    form((), (), lead=(6,), channels=(5, 7)),
]
laid_out_forms = pytest.mark.parametrize("form", LAID_OUT, ids=str)


@operators
@laid_out_forms
def test_every_layout_is_read(form, name):
    """Both operands in every layout, weights as well: transposed, reversed, sliced, and one number for many cells."""
    arrays = drawn(form.operands(name), whole, gs.f32)
    run = gs.compile(form.graph(name, gs.f32))
    for layouts in pairs_of_layouts():
        given = [laid_out(a, layout) for a, layout in zip(arrays, layouts, strict=True)]
        assert_equal(run(*given), integer_result(form, name, given), form, layouts)


@pytest.mark.parametrize("dtype", [t for t in FLOATS.values() if t != gs.f32], ids=str)
@operators
def test_layouts_of_other_formats(name, dtype):
    for f, layout in product(LAID_OUT[:4], LAYOUTS):
        given = [laid_out(a, layout) for a in drawn(f.operands(name, name != "conv_weight_grad"), whole, dtype)]
        run = gs.compile(f.graph(name, dtype, name != "conv_weight_grad"))
        assert_equal(run(*given), integer_result(f, name, given), f, layout)


@pytest.mark.parametrize("inputs_", ["C", "channels last", "reversed", "one row"])
@operators
@laid_out_forms
def test_out_of_any_layout_and_nothing_beside_it_is_written(form, name, inputs_):
    given = [laid_out(a, inputs_) for a in drawn(form.operands(name), whole, gs.f32)]
    run, wanted = gs.compile(form.graph(name, gs.f32)), integer_result(form, name, given)
    for layout in LAYOUTS.values():
        parent = rubbish(TensorType(gs.f32, layout.parent(wanted.shape)))
        beside = parent.copy()
        out = layout.view(parent, wanted.shape)
        assert run(*given, out=out) is out
        assert_equal(out, wanted, form, inputs_)
        layout.view(beside, wanted.shape)[...] = out
        assert_same_bits(parent, beside, "something beside the result is written")


@operators
@laid_out_forms
def test_calls_read_what_arrays_hold_now(form, name):
    """The same arrays with other numbers, other arrays, other layouts, in turn."""
    run = gs.compile(form.graph(name, gs.f32))
    kept = drawn(form.operands(name), whole, gs.f32)
    for seed, layout in enumerate(("C", "batch last", "C", "batch last", "sliced", "C")):
        fresh = drawn(form.operands(name), whole, gs.f32, seed)
        for a, b in zip(kept, fresh, strict=True):
            a[...] = b
        assert_equal(run(*kept), integer_result(form, name, kept), form, seed)
        given = [laid_out(a, layout) for a in fresh]
        for _ in range(2):
            assert_equal(run(*given), integer_result(form, name, given), form, layout)
            given[0][...] = -given[0]


def test_out_may_be_an_input():
    f = form((6, 7), (3, 3), 1, 1, lead=(2,), channels=(4, 4))
    x, w = drawn(f.operands("conv"), whole, gs.f32)
    wanted = integer_result(f, "conv", [x, w])
    assert_equal(gs.compile(f.graph("conv", gs.f32))(x, w, out=x), wanted)


# --- constants --------------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.id)
def test_constant_weights_change_nothing(layer, dtype):
    """Weights and biases that are known when a graph is compiled, and those given at every call: the same bits."""
    arrays = drawn(layer.operands, rough, dtype)
    x, *fixed = arrays
    for mode in ("value", "vjp"):
        known = MODES[mode](gs.trace(lambda x: layer(x, *fixed), dtype[x.shape]))
        g = drawn([v.shape for v in known.inputs[1:]], rough, dtype, seed=1)
        wanted = several(gs.compile(layer.graph(mode, dtype))(*arrays, *g))
        for one, other in zip(several(gs.compile(known)(x, *g)), wanted, strict=False):
            assert_same_bits(one, other, mode)


# --- threads, runs and batches ----------------------------------------------------------------------------------------

SHARED = [
    conv("3x3", (5, 20, 24, 26), (40, 20, 3, 3), True, padding=1),
    conv("1x1", (4, 60, 20, 20), (70, 60, 1, 1), True),
    conv("7x7 by 2 of images", (3, 3, 60, 61), (16, 3, 7, 7), padding=3, stride=2),
    conv("many channels", (1, 200, 7, 7), (64, 200, 3, 3), True, padding=1),
    conv("groups", (2, 24, 20, 20), (36, 8, 3, 3), groups=3, padding=1),
    conv("depthwise", (3, 24, 30, 29), (24, 1, 3, 3), True, groups=24, padding=1),
    conv("rows", (4, 8, 3000), (12, 8, 9), padding=4),
    conv("volumes", (2, 6, 8, 12, 13), (9, 6, 3, 3, 3), True, padding=1),
    transposed("4x4 by 2", (3, 16, 14, 15), (16, 20, 4, 4), True, stride=2, padding=1),
]
MODES_TO_SHARE = [("vjp", gs.f32), ("jvp", gs.f32), ("vjp", gs.f64), ("vjp", gs.f16)]


@pytest.mark.parametrize(("mode", "dtype"), MODES_TO_SHARE, ids=str)
@pytest.mark.parametrize("layer", SHARED, ids=lambda layer: layer.id)
def test_results_do_not_depend_on_threads_or_runs(layer, mode, dtype, monkeypatch):
    share_everything(monkeypatch)
    graph = layer.graph(mode, dtype)
    arrays = inputs(graph, rough)
    alone = several(gs.compile(graph, threads=1)(*arrays))
    for threads in range(1, 9):
        run = gs.compile(graph, threads=threads)
        for _ in range(2):
            for one, other in zip(several(run(*arrays)), alone, strict=True):
                assert_same_bits(one, other, threads)


BATCHED = [
    *SHARED,
    conv("of single cells", (5, 1, 1), (6, 5, 1, 1), True),
    conv("of few cells", (7, 2, 2), (9, 7, 3, 3), padding=1),
    conv("of rows", (5, 3), (4, 5, 2), True),
    conv("rank 0", (7,), (5, 7), True),
    transposed("of single cells", (6, 1, 1), (6, 5, 3, 3), True, stride=2),
    transposed("of few cells", (6, 2, 2), (6, 5, 2, 2), stride=2),
]


@dtypes
@pytest.mark.parametrize("layer", BATCHED, ids=lambda layer: layer.id)
def test_a_sample_does_not_depend_on_its_batch(layer, dtype):
    """A sample in a batch of seven, of three, alone, and without an axis for the batch: value and input gradient."""
    graph = layer.with_batch(7).graph("vjp", dtype)
    x, *fixed, g = inputs(graph, rough)
    together, spread, *_ = gs.compile(graph)(x, *fixed, g)
    three = gs.compile(layer.with_batch(3).graph("vjp", dtype))
    one, bare = (gs.compile(layer.with_batch(*lead).graph("vjp", dtype)) for lead in ((1,), ()))
    for i in range(0, 5, 2):
        for run, part in ((three, slice(i, i + 3)), (one, slice(i, i + 1)), (bare, i)):
            y, dx, *_ = run(x[part], *fixed, g[part])
            assert_same_bits(y, together[part], i)
            assert_same_bits(dx, spread[part], i)


# --- fusion -----------------------------------------------------------------------------------------------------------

SHAPES = {"x": (2, 6, 9, 11), "w": (7, 6, 3, 3), "b": (7,), "r": (2, 7, 9, 11), "v": (7, 1, 3, 3)}
same = partial(gs.conv, padding=1)


def chained(x, w, b, r):
    return gs.clamp(gs.relu(same(x, w, b)) + r, -0.5, 1.5)


def bias_added_later(x, w, b, r):
    return gs.relu(same(x, w) + gs.reshape(b, (7, 1, 1))) * r


def second_operand(x, w, b, r):
    return r - same(x, w, b) * 0.5


def returned_too(x, w, b, r):
    y = same(x, w, b)
    return y, gs.relu(y) - y * r


def pooled(x, w, b, r):
    return gs.max_pool2d(gs.relu(same(x, w, b) + r), 2)


def pooled_with_overlap(x, w, b):
    return gs.max_pool2d(gs.leaky_relu(same(x, w, b), 0.25), 3, 2, 1) * 2.0


def pooled_at_once(x, w, b, r):
    return gs.max_pool2d(same(x, w, b), 2), gs.avg_pool2d(same(x, w) + r, 2, 1)


def two_of_one_input(x, w, b, r):
    return gs.relu(same(x, w) + gs.relu(same(x, w, b))) + r


def there_and_back(x, w, b, r):
    return gs.relu(x + gs.conv_transpose(gs.relu(same(x, w, b)) + r, w, padding=1))


def upsampled(w, r):
    y = gs.conv_transpose(r, w, stride=2, padding=1, output_padding=1)
    return gs.maximum(y * 0.5, -y) + 1.0


def depthwise(b, r, v):
    return gs.clamp(same(r, v, b, groups=7) + r, -1.0, 1.0)


BLOCKS = [
    *(chained, bias_added_later, second_operand, returned_too, pooled, pooled_with_overlap, pooled_at_once),
    *(two_of_one_input, there_and_back, upsampled, depthwise),
]


def block_graph(block: Any, dtype: Any = gs.f32) -> Any:
    return gs.trace(block, *(dtype[SHAPES[name]] for name in signature(block).parameters))


@pytest.mark.rows(3)
@dtypes
@modes
@pytest.mark.parametrize("block", BLOCKS)
def test_fused_is_unfused(block, mode, dtype):
    """A graph compiled whole, and its operators one by one on arrays: the same bits."""
    graph = MODES[mode](block_graph(block, dtype))
    assert_fused_as_unfused(graph, inputs(graph, rough), mode)


@pytest.mark.parametrize(
    ("block", "mode", "steps"),
    [
        (chained, "value", ["conv relu add clamp"]),
        (chained, "jvp", ["conv conv conv add relu step gate add add clamp within gate"]),
        (bias_added_later, "value", ["conv add relu mul"]),
        (second_operand, "value", ["conv mul sub"]),
        (returned_too, "value", ["conv relu mul sub"]),
        (two_of_one_input, "value", ["conv conv relu add relu add"]),
        (there_and_back, "value", ["conv relu add", "conv_transpose add relu"]),
        (pooled, "value", ["conv add relu max_pool"]),
        (depthwise, "value", ["conv add clamp"]),
    ],
)
def test_what_is_fused(block, mode, steps):
    """One step for convolutions of one geometry and all that is done with their results cell by cell."""
    assert fused(MODES[mode](block_graph(block))) == steps


@pytest.mark.rows(1)
@pytest.mark.parametrize("block", BLOCKS)
def test_second_derivatives_are_fused_the_same(block):
    graph = block_graph(block).vjp().jvp()
    assert_fused_as_unfused(graph, inputs(graph, rough))


@modes
@pytest.mark.parametrize("block", BLOCKS)
def test_fused_graphs_do_not_depend_on_threads(block, mode, monkeypatch):
    share_everything(monkeypatch)
    graph = MODES[mode](block_graph(block))
    arrays = inputs(graph, rough)
    wanted = several(gs.compile(graph, threads=1)(*arrays))
    for threads in (2, 3, 5, 8):
        for one, other in zip(several(gs.compile(graph, threads=threads)(*arrays)), wanted, strict=True):
            assert_same_bits(one, other, threads)


@modes
@pytest.mark.parametrize("layout", ["channels last", "sliced", "reversed", "one number"])
@pytest.mark.parametrize("block", [chained, bias_added_later, pooled, there_and_back, upsampled])
def test_fused_graphs_read_every_layout(block, mode, layout):
    """Integers, and the NumPy backend as the judge."""
    graph = MODES[mode](block_graph(block))
    arrays = [laid_out(a, layout) for a in inputs(graph, whole)]
    found, wanted = (several(gs.compile(graph, backend=backend)(*arrays)) for backend in ("cpu", "numpy"))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


PLANES = [  # the input and the weight of a convolution, so that its planes are whole in a block, or cut, or many
    ((2, 6, 9, 11), (7, 6, 3, 3)),
    ((3, 32, 37), (5, 3, 3, 3)),
    ((1, 2, 70, 40), (9, 2, 1, 1)),
    ((2, 2, 3, 8, 8), (4, 3, 3, 3)),
    ((3, 4, 500), (6, 4, 5)),
    ((2, 3, 7, 8, 9), (5, 3, 2, 3, 3)),
]
POOLINGS = [
    *(partial(gs.max_pool, **windows) for windows in ({}, {"stride": 2, "padding": 1}, {"stride": 3}, {"dilation": 2})),
    *(partial(gs.max_pool, **windows) for windows in ({"ceil_mode": True}, {"stride": 1, "ties": "split"})),
    *(partial(gs.avg_pool, **windows) for windows in ({}, {"stride": 1, "padding": 1, "count_include_pad": False})),
    partial(gs.avg_pool, ceil_mode=True),
]
WHOLE = [gs.adaptive_max_pool, gs.adaptive_avg_pool, gs.global_max_pool, gs.global_avg_pool]


def poolings(rank: int) -> list[Any]:
    """Windows of several lengths with every way to place them, and bins."""
    sliding = [partial(pool, kernel_size=(k,) * rank) for pool, k in product(POOLINGS, (2, 3))]
    legal = [p for p in sliding if 2 * p.keywords.get("padding", 0) <= p.keywords["kernel_size"][0]]
    uneven = [partial(gs.max_pool, kernel_size=(2,) * (rank - 1) + (5,)), partial(gs.avg_pool, kernel_size=(3,) * rank)]
    bins = [partial(pool, output_size=(3, 2, 1)[:rank]) for pool in WHOLE[:2]]
    return [*legal, *uneven, *bins, *(partial(pool, rank=rank) for pool in WHOLE[2:])]


def pooled_planes(x: Shape, w: Shape, pool: Any, dtype: DType) -> Any:
    def function(x, w):
        return pool(gs.relu(gs.conv(x, w, padding=1) + 0.25))

    return gs.trace(function, dtype[x], dtype[w])


@pytest.fixture(params=[1, 8])
def number_of_threads(request):
    """Plans may depend on it; results do not."""
    gs.set_num_threads(request.param)
    yield
    gs.set_num_threads(None)


@pytest.mark.exhaustive
@pytest.mark.usefixtures("number_of_threads")
@pytest.mark.parametrize(("x", "w"), PLANES, ids=str)
def test_poolings_behind_convolutions(x, w):
    """Fused or not: the same bits, averages among them, whose sums round."""
    for i, pool in enumerate(poolings(len(w) - 2)):
        dtype, numbers = [*FLOATS.values()][i % 4], special if i % 5 == 0 else rough
        graph = pooled_planes(x, w, pool, dtype)
        assert_fused_as_unfused(graph, inputs(graph, numbers), pool, dtype)


# --- memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize(
    ("at_end", "dtype"), [(True, gs.f32), (False, gs.f32), (True, gs.f16), (True, gs.f64)], ids=str
)
@forms
def test_nothing_beyond_an_array_is_touched(form, dtype, at_end, monkeypatch):
    """Arrays, arenas, workspaces and packed weights end, or begin, at a page that nobody may read or write."""
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    for name, (layout, is_constant) in product(OPERATORS, (("C", False), ("C", True), ("channels last", False))):
        given = x, w = [laid_out(a, layout) for a in drawn(form.operands(name), whole, dtype)]
        if is_constant:
            (found,) = run_fenced(form.graph(name, dtype, weight=w), [x], fenced)
        else:
            (found,) = run_fenced(form.graph(name, dtype), given, fenced)
        assert_equal(found, integer_result(form, name, given), form, name, layout)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize("at_end", [True, False])
@modes
@pytest.mark.parametrize("block", BLOCKS)
def test_fused_graphs_touch_nothing_beyond_their_arrays(block, mode, at_end, monkeypatch):
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    graph = MODES[mode](block_graph(block))
    arrays = inputs(graph, whole)
    wanted = several(gs.compile(graph, backend="numpy")(*arrays))
    for one, other in zip(run_fenced(graph, arrays, fenced), wanted, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.skipif(os.name != "posix", reason="pages are protected with mprotect")
@pytest.mark.parametrize("at_end", [True, False])
@pytest.mark.parametrize(("x", "w"), PLANES, ids=str)
def test_poolings_behind_convolutions_touch_nothing_beyond_their_arrays(x, w, at_end, monkeypatch):
    fenced = Fenced(at_end)
    fence_frames(monkeypatch, fenced)
    for i, pool in enumerate(poolings(len(w) - 2)):
        graph = pooled_planes(x, w, pool, (gs.f32, gs.f16)[i % 2])
        arrays = inputs(graph, whole)
        (found,) = run_fenced(graph, arrays, fenced)
        assert_same_bits(found, gs.compile(graph, backend="numpy")(*arrays), pool)


LARGE = [
    conv("C1", (8, 64, 56, 56), (64, 64, 3, 3), padding=1),
    conv("C2", (8, 3, 224, 224), (64, 3, 7, 7), stride=2, padding=3),
    conv("C3", (8, 256, 14, 14), (256, 256, 3, 3), padding=1),
    conv("C6", (8, 128, 56, 56), (128, 1, 3, 3), groups=128, padding=1),
    conv("C8", (16, 64, 4096), (128, 64, 9), padding=4),
    conv("C9", (1, 16, 16, 56, 56), (32, 16, 3, 3, 3), padding=1),
    conv("wide", (1, 3, 4000, 4000), (8, 3, 3, 3), padding=1),
    transposed("C10", (8, 64, 28, 28), (64, 64, 4, 4), stride=2, padding=1),
]


@modes
@pytest.mark.parametrize("layer", LARGE, ids=lambda layer: layer.id)
def test_memory_does_not_grow_with_the_input(layer, mode):
    """8 MiB per thread; beyond that, panels and partial sums of the size of the weights, and sums that a JVP adds."""
    plan = gs.compile(layer.graph(mode, gs.f32)).plan
    weights, limit = 4 * prod(layer.shapes[1]), 8 * 2**20
    assert plan.workspace <= limit + weights
    parts = 4 * prod(plan.outputs[0].shape) if mode == "jvp" else 0
    assert plan.arena_bytes <= limit + 8 * weights + parts


# --- at random --------------------------------------------------------------------------------------------------------

SIZES = {0: 1, 1: 40, 2: 12, 3: 5, 4: 3}
"""By rank, the most cells that an axis has more than its window needs."""


@st.composite
def any_forms(draw: st.DrawFn) -> Form:
    rank = draw(st.sampled_from([1, 2, 2, 3, 4, 0]))
    axes = []
    for _ in range(rank):
        k, s, d = (draw(st.integers(1, most)) for most in (9 - 2 * rank, 4, 3))
        low, high = draw(st.integers(0, 5)), draw(st.integers(0, 5))
        smallest = max(1, d * (k - 1) + 1 - low - high)
        n = draw(st.integers(smallest, smallest + SIZES[rank]))
        fit = (n + low + high - d * (k - 1) - 1) // s + 1
        axes.append((n, k, s, (low, high), d, draw(st.integers(max(1, fit - 3), fit))))
    sizes, kernel, stride, padding, dilation, outputs = zip(*axes, strict=True) if axes else ((),) * 6
    groups = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
    channels = (groups * draw(st.integers(0 if groups == 1 else 1, 24 // groups)) for _ in range(2))
    attrs = Convolution(sizes, kernel, stride, padding, dilation, outputs, groups)
    return Form(attrs, draw(st.sampled_from([(), (1,), (3,), (2, 2), (0,)])), *channels)


@pytest.mark.rows(2)
@dtypes
@settings(max_examples=60, deadline=None)
@given(any_forms(), st.sampled_from(OPERATORS), st.sampled_from(pairs_of_layouts()))
def test_random_geometries_are_those_of_the_numpy_backend(dtype, form, name, layouts):
    arrays = [laid_out(a, layout) for a, layout in zip(drawn(form.operands(name), whole, dtype), layouts, strict=True)]
    graph = form.graph(name, dtype)
    found = gs.compile(graph, threads=2)(*arrays)
    assert_equal(found, gs.compile(graph, backend="numpy")(*arrays), form, name)
    assert_equal(found, integer_result(form, name, arrays), form, name)


# --- errors, and which backend ran ------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", [gs.conv, gs.conv_transpose])
def test_an_axis_without_cells_is_refused(function):
    with pytest.raises(gs.ShapeError):
        gs.compile(function, gs.f32[2, 0], gs.f32[2, 2, 1])


@pytest.mark.parametrize("mode", ["jvp", "vjp"])
@dtypes
def test_no_step_is_left_to_numpy(dtype, mode):
    for layer in TABLE if dtype == gs.f32 else FEW:
        if all(map(prod, layer.operands)):
            require_no_numpy(layer.graph(mode, dtype))


@dtypes
@operators
def test_every_geometry_has_a_kernel(name, dtype):
    for stated in FORMS:
        require_no_numpy(stated.graph(name, dtype))


@modes
@dtypes
def test_no_step_of_a_fused_graph_is_left_to_numpy(dtype, mode):
    for block in BLOCKS:
        require_no_numpy(MODES[mode](block_graph(block, dtype)))


@pytest.mark.parametrize(
    ("x", "w", "groups"),
    [
        ((1, 8, 2000, 2000), (16, 8, 500, 500), 1),
        ((1, 8, 200_000), (8, 8, 100_000), 1),
        ((1, 8, 400_000), (8, 1, 200_000), 8),
        ((2, 64, 300, 300), (64, 64, 90, 90), 1),
    ],
)
def test_huge_windows_take_no_more_workspace_than_others(x, w, groups):
    """Planned only: a kernel that would need more than 8 MiB for each thread is left to NumPy, and the plan says so."""
    graph = gs.trace(lambda a, b: gs.conv(a, b, groups=groups), gs.f32[x], gs.f32[w])
    for each in (graph, graph.jvp(), graph.vjp()):
        assert gs.compile(each).plan.workspace <= 8 << 20


LONG_STRIDES = [
    ((1, 2, 3, 2), (2, 3, 40, 34), {"stride": (32, 17), "padding": 3, "output_padding": (1, 2)}),
    ((2, 3, 2, 2), (3, 2, 32, 32), {"stride": 32}),
    ((1, 2, 2, 2), (2, 1, 5, 4), {"stride": (40, 24), "dilation": (15, 16)}),
    ((2, 3), (2, 3, 2000), {"stride": 1000, "padding": 500}),
]


@pytest.mark.parametrize(("x", "w", "options"), LONG_STRIDES)
def test_transposed_convolutions_of_long_strides(x, w, options):
    """Compiled, with both derivatives. Of small integers sums are exact, so all bits are those of NumPy."""
    graph = gs.trace(lambda a, b: gs.conv_transpose(a, b, **options), gs.f32[x], gs.f32[w])
    rng = np.random.default_rng(8)
    for each in (graph, graph.jvp(), graph.vjp()):
        require_no_numpy(each)
        arrays = [rng.integers(-4, 5, v.shape).astype(np.float32) for v in each.inputs]
        found, wanted = (gs.compile(each, backend=backend)(*arrays) for backend in ("cpu", "numpy"))
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
            np.testing.assert_array_equal(one, other)
