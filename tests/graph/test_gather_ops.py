"""Computed indices against PyTorch, in value and gradient; indices outside; special values that are not read."""

import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec.graph.builder import apply
from gradspec.ops.gather import SCATTER_ROWS
from gradspec.ops.layout import AlongAxis

RANDOM = np.random.default_rng(5)


def floats(*shape):
    return RANDOM.integers(-8, 8, shape) / 4


def below(n, *shape):
    return RANDOM.integers(0, n, shape)


PAIRS = {
    "take": (lambda x, i: gs.take(x, i, -2), lambda x, i: x[:, i], (floats(2, 4, 3), below(4, 2, 3))),
    "take rows": (gs.take, lambda x, i: torch.nn.functional.embedding(i, x), (floats(5, 3), below(5, 2, 2))),
    "gather": (
        lambda x, i: gs.gather(x, 1, i),
        lambda x, i: torch.gather(x, 1, i),
        (floats(3, 4, 2), below(4, 2, 5, 1)),
    ),
    "scatter_add": (
        lambda x, i, y: gs.scatter_add(x, 0, i, y),
        lambda x, i, y: x.scatter_add(0, i, y),
        (floats(3, 4), below(3, 6, 2), floats(6, 2)),
    ),
    "scatter": (
        lambda x, i, y: gs.scatter(x, 1, i, y),
        lambda x, i, y: x.scatter(1, i, y),
        (floats(3, 4), np.array([[2, 0], [1, 3]]), floats(2, 2)),
    ),
}


@pytest.mark.parametrize("name", PAIRS)
def test_as_pytorch_has_it(name):
    """The numbers are quarters, so that sums are exact."""
    ours, theirs, arrays = PAIRS[name]
    graph = gs.trace(ours, *(gs.graph.types.type_of(a) for a in arrays))
    tensors = [torch.from_numpy(a).requires_grad_(a.dtype.kind == "f") for a in arrays]
    y = theirs(*tensors)
    g = floats(*y.shape)
    y.backward(torch.from_numpy(g))
    value, *cotangents = graph.vjp()(*arrays, g)
    np.testing.assert_array_equal(value, y.detach())
    for ours, tensor in zip(cotangents, (t for t in tensors if t.requires_grad), strict=True):
        np.testing.assert_array_equal(ours, tensor.grad)


def test_of_several_rows_for_one_place_the_last_has_the_cotangent():
    x, indices, rows = np.zeros((3, 2)), np.array([1, 0, 1]), floats(3, 2)
    graph = gs.trace(lambda x, i, y: gs.scatter(x, 0, gs.broadcast_to(gs.reshape(i, (3, 1)), (3, 2)), y),
                     gs.f64[3, 2], gs.i64[3], gs.f64[3, 2])  # fmt: skip
    value, dx, dy = graph.vjp()(x, indices, rows, np.float64([[1, 2], [3, 4], [5, 6]]))
    np.testing.assert_array_equal(value, [rows[1], rows[2], [0, 0]])
    assert dx.tolist() == [[0, 0], [0, 0], [5, 6]]
    assert dy.tolist() == [[0, 0], [1, 2], [3, 4]]


NAN = np.float32([np.nan, 1, 2])


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_cells_that_are_not_read_do_not_matter(backend):
    def run(function, *arrays):
        return gs.compile(function, *map(gs.graph.types.type_of, arrays), backend=backend)(*arrays).tolist()

    assert run(gs.take, NAN, np.array([2, 1])) == [2, 1]
    assert run(lambda x, i, y: gs.scatter(x, 0, i, y), NAN, np.array([0]), np.float32([5])) == [5, 1, 2]
    assert run(lambda x, i, y: gs.scatter_add(x, 0, i, y), np.zeros(2, np.float32), np.array([1, 1]), np.float32([1, np.inf])) == [0, np.inf]  # fmt: skip  # noqa: E501


@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint8, np.uint64], ids=lambda d: d.__name__)
@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_an_index_outside_is_an_error(dtype, backend):
    x, y = np.float32([[1, 2], [3, 4]]), np.float32([[5, 6]])
    for index in (2, 127, np.iinfo(dtype).max, *([-1] if np.dtype(dtype).kind == "i" else ())):
        chosen = np.array([index], dtype)
        spread = np.broadcast_to(chosen[:, None], (1, 2)).copy()
        for function, arrays in (
            (gs.take, (x, chosen)),
            (lambda x, i: gs.gather(x, 0, i), (x, spread)),
            (lambda x, i, y: gs.scatter_add(x, 0, i, y), (x, spread, y)),
            (lambda x, i, y: gs.scatter(x, 0, i, y), (x, spread, y)),
        ):
            run = gs.compile(function, *map(gs.graph.types.type_of, arrays), backend=backend)
            with pytest.raises(ValueError, match=f"the index {index} names none of the 2 rows; indices go from 0 to 1"):
                run(*arrays)
    with pytest.raises(ValueError, match="the index -1 names none"):
        gs.spec.gather_rows([1, 2], [-1])
    with pytest.raises(ValueError, match="cannot name one of 0 rows"):
        gs.spec.scatter_add_rows([1, 2], [0, 0], 0, 0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: gs.take(x, np.float32([0])), gs.DTypeError, "indices are integers, not f32"),
        (lambda x: gs.take(x, np.array([0]), 2), gs.ShapeError, "2 is not an axis"),
        (lambda x: gs.gather(x, 0, np.array([0])), gs.ShapeError, "need as many axes"),
        (lambda x: gs.gather(x, 0, np.zeros((1, 4), int)), gs.ShapeError, "no more cells on any other"),
        (lambda x: gs.scatter(x, 0, np.zeros((2, 3), int), x[:1]), gs.ShapeError, "a cell is needed for each index"),
        (lambda x: gs.scatter_add(x, 0, np.zeros((1, 3), int), np.zeros((1, 3))), gs.DTypeError, "one dtype"),
        (lambda x: apply(SCATTER_ROWS, AlongAxis(0), x, np.array([0]), x), gs.ShapeError, r"name rows of shape \(1,"),
        (lambda x: x[0, np.array([0])], TypeError, "index in two steps"),
        (lambda x: x[np.array([True, False])], gs.DTypeError, "indices are integers, not bool"),
        (lambda x: apply(SCATTER_ROWS, AlongAxis(1), x, np.array([0]), x), gs.ShapeError, r"begin with \(2,\)"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_said(call, error, message):
    with pytest.raises(error, match=message):
        gs.trace(call, gs.f32[2, 3])


def test_an_empty_list_names_nothing():
    assert gs.take(np.float32([[1, 2]]), []).shape == (0, 2)
