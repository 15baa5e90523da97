"""Compiled choices by label: cells moved as they are, in every layout; labels that name nothing are told of in time."""

from itertools import product
from math import prod

import numpy as np
import pytest

import gradspec as gs
from backends.pooling import Fenced
from backends.reductions import (
    READABLE,
    assert_same_bits,
    assert_written_in_every_layout,
    carry_out,
    laid_out,
    lowered,
    node_of,
    result_of,
)
from gradspec.backends.cpu.reduce.plan import require_classes
from gradspec.ops import loss as ops
from gradspec.ops.layout import AlongAxis

DTYPES = {t.name: t for t in (gs.f32, gs.f64, gs.f16, gs.bf16, gs.u8, gs.i64)}
LABELS = {t.name: t for t in (gs.i64, gs.i32, gs.i8, gs.u8)}

CASES = [
    ((3,), 0),
    ((1, 1), 1),
    ((64, 10), 1),
    ((64, 10), 0),
    ((2, 5, 3, 4), 1),
    ((2, 5, 3, 4), 2),
    ((3, 2, 1, 7), 0),
    ((2, 3, 5000), 1),
    ((3, 100, 70), 2),
    ((0, 4), 1),
    ((4, 0, 3), 0),
]


def drawn(shape, dtype):
    """Bits of every kind."""
    size = prod(shape) * dtype.numpy.itemsize
    return np.random.default_rng(size).integers(0, 256, size, np.uint8).view(dtype.numpy).reshape(shape)


def labels_for(shape, axis, dtype):
    kept = shape[:axis] + shape[axis + 1 :]
    return np.random.default_rng(prod(kept)).integers(0, shape[axis], kept).astype(dtype.numpy)


def choices(shape, axis, dtype, labels):
    """Picking and placing, with what goes in besides labels."""
    kept = shape[:axis] + shape[axis + 1 :]
    pick = node_of(ops.TAKE_LABEL, AlongAxis(axis), dtype[shape], labels[kept])
    place = node_of(ops.PUT_LABEL, ops.PutLabel(axis, shape[axis]), dtype[kept], labels[kept])
    return [(pick, drawn(shape, dtype)), (place, drawn(kept, dtype))]


def reference(node, x, labels):
    """By NumPy, on integers of the same bits."""
    axis, bits = node.attrs.axis, x.view(f"u{x.itemsize}")
    places = np.expand_dims(labels.astype(np.int64), axis)
    if node.op is ops.TAKE_LABEL:
        return np.take_along_axis(bits, places, axis).squeeze(axis).view(x.dtype)
    result = np.zeros(node.outputs[0].shape, bits.dtype)
    np.put_along_axis(result, places, np.expand_dims(bits, axis), axis)
    return result.view(x.dtype)


@pytest.mark.parametrize("labels", LABELS.values(), ids=str)
@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_cells_are_moved_as_they_are(shape, axis, dtype, labels):
    chosen = labels_for(shape, axis, labels)
    for node, x in choices(shape, axis, dtype, labels):
        assert_same_bits(result_of(node, x, chosen, backwards=True), reference(node, x, chosen), node.op.name)


@pytest.mark.parametrize("dtype", [gs.f32, gs.f16], ids=str)
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_every_layout_is_read_and_written(shape, axis, dtype):
    chosen = labels_for(shape, axis, gs.i32)
    for node, x in choices(shape, axis, dtype, gs.i32):
        for of_x, of_labels in product(READABLE, READABLE):
            arrays = laid_out(x, of_x), laid_out(chosen, of_labels)
            wanted = reference(node, *arrays)
            assert_same_bits(result_of(node, *arrays), wanted, node.op.name, of_x, of_labels)
        assert_written_in_every_layout(node, arrays, wanted)


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_nothing_outside_the_arrays_is_touched(shape, axis, at_end):
    """Not even where labels name no class, which somebody may have written there after they were checked."""
    fence, chosen = Fenced(at_end), labels_for(shape, axis, gs.i8)
    for node, x in choices(shape, axis, gs.f32, gs.i8):
        for wild in (chosen, np.full_like(chosen, -1), np.full_like(chosen, 100)):
            result = fence.copy(np.zeros(node.outputs[0].shape, np.float32))
            carry_out(
                lowered(node), dict(zip(node.inputs, map(fence.copy, (x, wild)), strict=True)), result, fence=fence
            )


@pytest.mark.parametrize(("shape", "axis"), CASES, ids=str)
def test_what_was_placed_is_picked(shape, axis):
    chosen = labels_for(shape, axis, gs.i64)
    (pick, _), (place, x) = choices(shape, axis, gs.f32, gs.i64)
    placed = result_of(place, x, chosen)
    assert np.count_nonzero(placed.view(np.uint32)) == np.count_nonzero(x.view(np.uint32))
    assert_same_bits(result_of(pick, placed, chosen), x)


# --- labels that name nothing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("labels", LABELS.values(), ids=str)
@pytest.mark.parametrize("classes", [0, 1, 5, 127, 128, 200, 255, 256, 1000])
@pytest.mark.parametrize("layout", ["C", "reversed", "one number"])
def test_labels_are_told_from_what_is_none(classes, labels, layout):
    info = np.iinfo(labels.numpy)
    for wrong in (-1, info.min, info.max, classes, classes - 1, 0):
        if not info.min <= wrong <= info.max:
            continue
        some = laid_out(np.array([wrong, max(min(classes - 1, info.max), 0)], labels.numpy), layout)
        outside = [n for n in some.tolist() if not 0 <= n < classes]
        if outside:
            with pytest.raises(ValueError, match=f"the label {outside[0]} "):
                require_classes(some, classes)
        else:
            require_classes(some, classes)


def test_no_labels_are_all_right():
    require_classes(np.zeros(0, np.int64), 0)


@pytest.mark.parametrize("compiled", [False, True])
def test_labels_are_looked_at_in_every_call(compiled):
    """The same memory with other numbers in it, after calls that went well."""
    graph = gs.trace(gs.cross_entropy, gs.f32[2, 3], gs.i64[2]).vjp()
    run = gs.compile(graph) if compiled else graph
    x, labels, one = np.zeros((2, 3), np.float32), np.array([0, 2]), np.ones((), np.float32)
    for _ in range(3):
        run(x, labels, one)
    labels[1] = 3
    with pytest.raises(ValueError, match="the label 3 names none of the 3 classes; labels go from 0 to 2"):
        run(x, labels, one)
    labels[1] = 1
    assert run(x, labels, one)[0] == np.float32(np.log(3))


def test_labels_that_a_step_makes_are_looked_at_when_they_are_there():
    def loss(x, y):
        _, places = gs.max_pool1d(y, 2, return_indices=True)
        return gs.cross_entropy(x, places)

    run, x = gs.compile(loss, gs.f32[2, 3], gs.f32[4]), np.zeros((2, 3), np.float32)
    assert run(x, np.float32([0, 1, 2, 0])) == np.float32(np.log(3))
    with pytest.raises(ValueError, match="the label 3 names"):
        run(x, np.float32([0, 1, 0, 2]))


# --- losses -----------------------------------------------------------------------------------------------------------


CLOSE = {"f32": 1e-6, "f64": 1e-14, "f16": 4e-3, "bf16": 3e-2}
"""Some roundings of numbers near 1."""


@pytest.mark.parametrize("shape", [(64, 10), (10,), (2, 21, 9, 11)], ids=str)
@pytest.mark.parametrize("dtype", [gs.f32, gs.f64, gs.f16, gs.bf16], ids=str)
def test_losses_run_without_numpy_and_agree_with_it(shape, dtype):
    classes, kept = (shape[1], shape[:1] + shape[2:]) if len(shape) > 1 else (*shape, ())
    x = np.random.default_rng(1).standard_normal(shape).astype(dtype.numpy)
    labels = np.random.default_rng(2).integers(0, classes, kept)
    graph = gs.trace(gs.cross_entropy, dtype[shape], gs.i64[kept]).vjp()
    found, wanted = (gs.compile(graph, backend=b)(x, labels, np.ones((), dtype.numpy)) for b in ("cpu", "numpy"))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(*(a.astype(np.float64) for a in (one, other)), CLOSE[dtype.name], CLOSE[dtype.name])


def test_no_step_is_left_to_numpy():
    run = gs.compile(gs.trace(gs.cross_entropy, gs.f32[64, 10], gs.i64[64]).vjp())
    assert "numpy" not in str(run.plan), run.plan
