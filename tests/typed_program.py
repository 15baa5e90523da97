"""A program of a user who checks types strictly: what ``gs`` gives is what the stub says.

``mypy`` reads it, and ``test_stubs.py`` runs it. ``assert_type`` says what a type checker must find, ``is_a`` what
there is when it runs.
"""

from typing import Any, TypeVar, assert_type

import numpy as np
from numpy.typing import NDArray

import gradspec as gs

Kind = TypeVar("Kind")

Array = NDArray[Any]
Pair = tuple[Array, Array]


def is_a(kind: type[Kind], *values: Kind) -> None:
    for value in values:
        assert isinstance(value, kind), f"{value!r} is no {kind.__name__}"


def network(x: gs.Var, w: gs.Var) -> gs.Var:
    y = assert_type(gs.relu(gs.conv1d(x, w, stride=1)), gs.Var)
    assert_type(gs.add(1.0, y), gs.Var)
    assert_type(gs.add(y, np.ones(4, np.float32)), gs.Var)
    assert_type(gs.where(gs.greater(y, 0.0), y, [0.0]), gs.Var)
    assert_type(gs.concat([y, y], axis=0), gs.Var)
    assert_type(gs.einsum("ij->j", y), gs.Var)
    top, places = assert_type(gs.topk(y, 2), tuple[gs.Var, gs.Var])
    value, winner = assert_type(gs.max_pool1d(y, 2, return_indices=True), tuple[gs.Var, gs.Var])
    is_a(gs.Var, y, top, places, value, winner, y[0], 2.0 * y)
    return gs.mean(y)


def graphs() -> None:
    x, w = np.ones((1, 5), np.float32), np.ones((1, 1, 2), np.float32)
    types: list[gs.TensorType] = [gs.f32[1, 5], gs.f32[1, 1, 2]]
    dtype: gs.DType = types[0].dtype
    net = assert_type(gs.trace(network, *types), gs.Graph)
    run = assert_type(gs.compile(net), gs.Compiled)
    derived = assert_type(net.vjp("w"), gs.Graph)
    is_a(gs.Graph, net, derived)
    is_a(gs.Compiled, run)
    is_a(gs.DType, dtype)
    is_a(gs.TensorType, *types)
    weights: np.ndarray[Any, Any] = w
    is_a(np.ndarray, assert_type(gs.hvp(lambda v: gs.sum(v * v), weights, weights), np.ndarray[Any, Any]))
    reach = gs.bounds(net, (x, w), (x, w))
    is_a(np.ndarray, reach.lower)


def arrays() -> None:
    x = np.ones((1, 4, 4), np.float32)
    is_a(np.ndarray, assert_type(gs.relu(x), Array), assert_type(gs.relu([1.0, -1.0]), Array))
    is_a(np.ndarray, assert_type(gs.add(1.0, 2), Array), assert_type(gs.mean(x), Array))
    is_a(np.ndarray, assert_type(gs.conv2d(x, np.ones((2, 1, 3, 3), np.float32), None), Array))
    is_a(np.ndarray, assert_type(gs.max_pool2d(x, 2), Array), assert_type(gs.max_pool(x, (2, 2)), Array))
    is_a(np.ndarray, *assert_type(gs.max_pool2d(x, 2, return_indices=True), Pair), *assert_type(gs.sort(x), Pair))


def specification() -> None:
    image = [[1, 2], [4, 4]]
    value, winner = gs.spec.max_pool2d(image, 2, return_indices=True)
    is_a(gs.spec.Tensor, value, winner, assert_type(gs.spec.max_pool(image, (2, 2)), gs.spec.Tensor))
    is_a(gs.spec.Tensor, assert_type(gs.spec.avg_pool2d_vjp(image, [[1]], 2), gs.spec.Tensor))
    is_a(gs.spec.Tensor, gs.exact.tensor(["1/3"]), gs.ball(64).tensor([1]))


def tensors() -> None:
    import torch

    t = torch.ones(1, 4)
    is_a(torch.Tensor, assert_type(gs.relu(t), torch.Tensor), assert_type(gs.max_pool1d(t, 2), torch.Tensor))
    is_a(torch.Tensor, assert_type(gs.conv1d(t, np.ones((1, 1, 2), np.float32)), torch.Tensor))


def mistakes() -> None:
    """Every line is an error that a type checker finds; one that it no longer finds is an unused comment."""
    gs.max_pol2d([[1.0]], 2)  # type: ignore[attr-defined]
    gs.relu(object())  # type: ignore[call-overload]
    gs.max_pool2d([[1.0]], 2, strides=1)  # type: ignore[call-overload]
    gs.spec.conv([[1]])  # type: ignore[call-arg]
    gs.trace(network, gs.f32["a"])  # type: ignore[index]
