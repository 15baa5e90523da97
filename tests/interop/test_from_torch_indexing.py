"""PyTorch's operators with computed indices, imported: value and gradients are those of PyTorch."""

import numpy as np
import pytest
import torch
from torch.nn import functional

import gradspec as gs

RANDOM = np.random.default_rng(8)


class Calls(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *tensors):
        return self.function(*tensors)


def imported(function, *tensors):
    return gs.from_torch(Calls(function), *tensors)


def cells(*shape):
    return torch.from_numpy(RANDOM.integers(-8, 8, shape) / 4)


def distinct(*shape):
    return torch.from_numpy(RANDOM.permutation(int(np.prod(shape))).reshape(shape) / 8 - 1)


def below(n, *shape, least=0):
    return torch.from_numpy(RANDOM.integers(least, n, shape))


def of(*values):
    return torch.tensor(values)


def top(x):
    values, places = x.topk(2, 1)
    return values * places


def put(x, i, v, accumulate=False):
    return x.index_put((i,), v, accumulate)


def put_apart(x, i, j, v):
    y = x.clone()
    y[i, :, j] = v
    return y


def sampled(x, grid):
    return functional.grid_sample(x, grid, align_corners=False)


CALLS = {
    "index_select": (lambda x, i: x.index_select(1, i), cells(3, 4, 2), below(4, 5)),
    "x[i]": (lambda x, i: x[i], cells(4, 3), below(4, 2, 2, least=-4)),
    "x[:, i]": (lambda x, i: x[:, i], cells(2, 4, 3), below(4, 2, least=-4)),
    "x[i, j]": (lambda x, i, j: x[i, j], cells(4, 3, 2), below(4, 5, least=-4), below(3, 5)),
    "x[:, i, j]": (lambda x, i, j: x[:, i, j], cells(2, 4, 3), below(4, 3, 1), below(3, 2)),
    "x[i, :, j]": (lambda x, i, j: x[i, :, j], cells(4, 2, 3), below(4, 5), below(3, 5, least=-3)),
    "x[argmax]": (lambda x: x[x.argmax(0)], distinct(4, 3)),
    "gather": (lambda x, i: x.gather(1, i), cells(3, 4), below(4, 2, 5)),
    "take_along_dim": (lambda x, i: torch.take_along_dim(x, i, 1), cells(2, 4, 3), below(4, 2, 5, 1)),
    "take": (lambda x, i: x.take(i), cells(3, 4), below(12, 5, least=-12)),
    "embedding": (lambda w, i: functional.embedding(i, w), cells(5, 3), below(5, 2, 4)),
    "embedding with padding": (lambda w, i: functional.embedding(i, w, padding_idx=1), cells(5, 3), of(1, 2, 1, 0)),
    "one_hot": (lambda x, i: functional.one_hot(i, 4) * x, cells(1), below(4, 2, 3)),
    "scatter_add": (lambda x, i, s: x.scatter_add(0, i, s), cells(3, 4), below(3, 6, 2), cells(6, 2)),
    "scatter": (lambda x, i, s: x.scatter(1, i, s), cells(2, 4), of([3, 0], [1, 2]), cells(2, 2)),
    "scatter one number": (lambda x, i: x.scatter(1, i, 2.0), cells(2, 4), of([3, 3], [1, 2])),
    "reduce sum": (lambda x, i, s: x.scatter_reduce(0, i, s, "sum"), cells(3), below(3, 7), cells(7)),
    "reduce prod": (lambda x, i, s: x.scatter_reduce(0, i, s, "prod"), cells(3) + 9, below(3, 7), cells(7) + 9),
    "reduce amax": (lambda x, i, s: x.scatter_reduce(0, i, s, "amax"), cells(3), below(3, 7), cells(7)),
    "reduce amin": (lambda x, i, s: x.scatter_reduce(1, i, s, "amin"), cells(2, 3), below(3, 2, 4), cells(2, 4)),
    "index_add": (lambda x, i, s: x.index_add(1, i, s, alpha=2), cells(2, 3), below(3, 5), cells(2, 5)),
    "index_copy": (lambda x, i, s: x.index_copy(0, i, s), cells(4, 2), of(2, 0), cells(2, 2)),
    "index_fill": (lambda x, i: x.index_fill(1, i, 3.0), cells(2, 4), of(2, 2, 0)),
    "x[i] = v": (put, cells(4, 2), of(3, -4), cells(2, 2)),
    "x[i] += v": (lambda x, i, v: put(x, i, v, True), cells(4, 2), of(3, 0, 3), cells(3, 2)),
    "x[i, :, j] = v": (
        put_apart, cells(3, 2, 3), of(0, 2), of(1, -1), cells(2, 2)
    ),
    "topk": (top, distinct(3, 5)),
    "topk, smallest": (lambda x: x.topk(2, 0, largest=False)[0], distinct(4, 3)),
    "sort": (lambda x: x.sort(0, descending=True)[0] * torch.arange(4.0, dtype=x.dtype)[:, None], distinct(4, 3)),
    "argsort": (lambda x: x.argsort(stable=True) * x, cells(3, 6)),
    "grid_sample": (sampled, cells(1, 2, 3, 4), cells(1, 2, 3, 2) * 0.6),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_as_pytorch_has_it(name):
    function, *tensors = CALLS[name]
    graph = imported(function, *tensors)
    given = [t.clone().requires_grad_(t.is_floating_point()) for t in tensors]
    y = function(*given)
    g = cells(*y.shape)
    y.backward(g)
    value, *cotangents = graph.vjp()(*(t.numpy() for t in tensors), g.numpy())
    np.testing.assert_allclose(value, y.detach(), rtol=1e-14, atol=1e-14)
    for ours, theirs in zip(cotangents, (t.grad for t in given if t.requires_grad), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13, atol=1e-13)


MODES = [
    (mode, border, align_corners, rank)
    for mode in ("bilinear", "nearest", "bicubic")
    for border in ("zeros", "border", "reflection")
    for align_corners in (False, True)
    for rank in (2, 3)
    if (mode, rank) != ("bicubic", 3)
]


@pytest.mark.parametrize(("mode", "border", "align_corners", "rank"), MODES)
def test_samples_between_cells(mode, border, align_corners, rank):
    """Of places on cells, on their edges, between them, and up to two pictures away; but for seams, where PyTorch's
    derivative is that of a rounded place."""
    x = cells(2, 3, *(4, 5, 3)[:rank]).requires_grad_()
    grid = torch.from_numpy(RANDOM.uniform(-5, 5, (2, *(3, 6, 2)[:rank], rank))).requires_grad_()
    y = functional.grid_sample(x, grid, mode, border, align_corners)
    g = cells(*y.shape)
    y.backward(g)
    graph = gs.trace(lambda x, grid: gs.grid_sample(x, grid, mode, border, align_corners),
                     gs.f64[tuple(x.shape)], gs.f64[tuple(grid.shape)])  # fmt: skip
    value, *cotangents = graph.vjp()(x.detach().numpy(), grid.detach().numpy(), g.numpy())
    for ours, theirs in zip((value, *cotangents), (y.detach(), x.grad, grid.grad), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("border", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["bilinear", "nearest", "bicubic"])
def test_samples_on_cells_and_beyond_the_border(mode, border):
    """Cells that a place does not reach do not matter, whatever they hold: PyTorch's are skipped."""
    x = torch.tensor([[[[1.0, torch.nan, 4.0, 7.0]]]])
    grid = torch.tensor([[[[u, 0.0] for u in (-1.75, -0.75, 0.25, 0.75, 1.0, 1.25, 3.0, 100.0)]]])
    theirs = functional.grid_sample(x, grid, mode, border, False).numpy()
    ours = gs.grid_sample(x.numpy(), grid.numpy(), mode, border, False)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5)


def test_an_index_outside_is_an_error():
    graph = imported(lambda x, i, j: x[i, j], cells(3, 4), below(3, 2), below(4, 2))
    x = cells(3, 4).numpy()
    for i, j in ((3, 0), (0, 4), (-4, 0), (0, -5), (2**62, 2**62)):
        with pytest.raises(ValueError, match="names none of the 12 rows"):
            graph(x, np.array([0, i]), np.array([0, j]))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, i: functional.one_hot(i) * x[0, 0], "one_hot needs num_classes"),
        (lambda x, i: x.scatter_reduce(0, i[:, None], x, "mean"), "reduce by mean"),
    ],
)
def test_what_is_refused(function, message):
    with pytest.raises(Exception, match=message):
        imported(function, cells(3, 4), below(3, 2))
