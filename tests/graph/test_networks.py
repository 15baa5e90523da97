"""Whole networks: gradients against PyTorch, and one program in every number system."""

from random import Random

import numpy as np
import pytest
import torch
from torch.nn import functional

import gradspec as gs
from gradspec.domains import rational
from gradspec.graph.graph import check
from graph.op_cases import dyadics

LENET = {
    "c1": (6, 1, 5, 5), "b1": (6,), "c2": (16, 6, 5, 5), "b2": (16,),
    "w3": (120, 256), "b3": (120,), "w4": (84, 120), "b4": (84,), "w5": (10, 84), "b5": (10,),
}  # fmt: skip
BLOCK = {"w1": (4, 4, 3, 3), "w2": (4, 4, 3, 3), "g1": (4,), "s1": (4,), "g2": (4,), "s2": (4,)}


def lenet(p, x, labels, lib, flatten, loss):
    h = lib.max_pool2d(lib.relu(lib.conv2d(x, p["c1"], p["b1"])), 2)
    h = lib.max_pool2d(lib.relu(lib.conv2d(h, p["c2"], p["b2"])), 2)
    h = flatten(h)
    h = lib.relu(lib.linear(h, p["w3"], p["b3"]))
    h = lib.relu(lib.linear(h, p["w4"], p["b4"]))
    return loss(lib.linear(h, p["w5"], p["b5"]), labels)


def residual_block(p, x, labels, lib, norm, loss):
    h = lib.relu(norm(lib.conv2d(x, p["w1"], None, padding=1), p["g1"], p["s1"]))
    h = norm(lib.conv2d(h, p["w2"], None, padding=1), p["g2"], p["s2"])
    pooled = lib.adaptive_avg_pool2d(lib.relu(h + x), 1)
    return loss(pooled[:, :, 0, 0], labels)


def drawn(shapes, seed):
    random = np.random.default_rng(seed)
    return {name: random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]) or 1) for name, shape in shapes.items()}


MEAN, VARIANCE = np.array([0.1, -0.2, 0.0, 0.3]), np.array([1.0, 0.5, 2.0, 0.8])


def ours_norm(h, g, s):
    return gs.batch_norm(h, MEAN, VARIANCE, g, s)


def torch_norm(h, g, s):
    return functional.batch_norm(h, torch.tensor(MEAN), torch.tensor(VARIANCE), g, s)


NETWORKS = {
    "LeNet-5": (
        LENET,
        (3, 1, 28, 28),
        lambda p, x, y: lenet(p, x, y, gs, lambda h: gs.flatten(h, 1), gs.cross_entropy),
        lambda p, x, y: lenet(p, x, y, functional, lambda h: h.flatten(1), functional.cross_entropy),
    ),
    "residual block": (
        BLOCK,
        (2, 4, 6, 6),
        lambda p, x, y: residual_block(p, x, y, gs, ours_norm, gs.cross_entropy),
        lambda p, x, y: residual_block(p, x, y, functional, torch_norm, functional.cross_entropy),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_agree_with_pytorch(name):
    """Float64 on both sides: what is left is rounding, ten digits below the gradients themselves."""
    shapes, size, ours, theirs = NETWORKS[name]
    params, x = drawn(shapes, 1), np.random.default_rng(2).standard_normal(size)
    labels = np.arange(size[0]) % 4
    value, gradients = gs.value_and_grad(ours, (0, 1))(params, x, labels)
    tensors = {k: torch.tensor(v, requires_grad=True) for k, v in params.items()}
    image = torch.tensor(x, requires_grad=True)
    loss = theirs(tensors, image, torch.tensor(labels))
    loss.backward()
    assert value == pytest.approx(loss.item(), rel=1e-12)
    pairs = [(gradients[0][k], tensors[k].grad) for k in params] + [(gradients[1], image.grad)]
    for got, right in pairs:
        assert np.abs(got - right.numpy()).max() <= 1e-11 * (1 + right.abs().max().item())


def test_forward_mode_agrees_with_pytorch():
    shapes, size, ours, theirs = NETWORKS["LeNet-5"]
    params, direction, x = drawn(shapes, 1), drawn(shapes, 3), np.random.default_rng(2).standard_normal(size)
    labels = np.arange(size[0]) % 4
    _, tangent = gs.jvp(lambda p: ours(p, x, labels), (params,), (direction,))
    as_tensors = lambda tree: {k: torch.tensor(v) for k, v in tree.items()}  # noqa: E731
    _, right = torch.func.jvp(
        lambda p: theirs(p, torch.tensor(x), torch.tensor(labels)), (as_tensors(params),), (as_tensors(direction),)
    )
    assert tangent == pytest.approx(right.item(), rel=1e-10)


# --- one program, every meaning --------------------------------------------------------------------------------------


def small_network(x, w, v):
    """Convolution, relu, max pooling, a residual connection, and a linear layer: rational all the way."""
    h = gs.relu(gs.conv(x, w, padding=1))
    h = gs.max_pool2d(h + x, 2)
    return gs.linear(gs.flatten(h), v)


@pytest.fixture(scope="module")
def network():
    random = Random("network")
    graph = check(gs.trace(small_network, gs.f64[2, 4, 4], gs.f64[2, 2, 3, 3], gs.f64[3, 8]))
    return graph, [dyadics(v.shape, random, "distinct") / 4 for v in graph.inputs]


def derived(graph):
    return {"value": graph, "JVP": graph.jvp("x"), "VJP": graph.vjp("w"), "second": graph.vjp("x").jvp("x")}


def arguments(graph, values):
    random = Random("more")
    extra = [dyadics(v.shape, random, "distinct") for v in graph.inputs[len(values) :]]
    return [*values, *extra]


def cells(results):
    return [c for t in (results if isinstance(results, tuple) else (results,)) for c in t.cells]


@pytest.mark.parametrize("mode", ["value", "JVP", "VJP", "second"])
def test_every_domain_means_the_same(network, mode):
    graph, values = network
    program = derived(graph)[mode]
    args = arguments(program, values)
    exact = cells(gs.evaluate(program, *args, domain=gs.exact))
    balls = cells(gs.evaluate(program, *args, domain=gs.ball(100)))
    intervals = cells(gs.evaluate(program, *args, domain=gs.interval))
    doubles = cells(gs.evaluate(program, *args, domain=gs.ieee("f64")))
    duals = cells(gs.evaluate(program, *args, domain=gs.dual(gs.exact)))
    for e, b, i, f, d in zip(exact, balls, intervals, doubles, duals, strict=True):
        assert b.contains(e)
        assert i.contains(e)
        assert i.contains(float(f))
        assert (d.value, d.tangent) == (e, 0)
        assert abs(rational(float(f)) - e) <= rational(1e-12) * (1 + abs(e))


@pytest.mark.parametrize("mode", ["value", "VJP"])
def test_intervals_enclose_every_image_in_a_box(network, mode):
    """Winners and signs change inside the box, and the enclosure covers every case."""
    graph, values = network
    program = derived(graph)[mode]
    args = arguments(program, values)
    boxes = [gs.interval.tensor(args[0] - 0.25, args[0] + 0.25), *args[1:]]
    enclosures = cells(gs.evaluate(program, *boxes, domain=gs.interval))
    random = np.random.default_rng(4)
    widths = [e.width for e in enclosures]
    assert max(widths) < 1e4
    for _ in range(20):
        sample = args[0] + random.integers(-16, 17, args[0].shape) / 64
        for enclosure, value in zip(
            enclosures, cells(gs.evaluate(program, sample, *args[1:], domain=gs.exact)), strict=True
        ):
            assert enclosure.contains(value)


def test_low_precision_meanings_round_as_they_say(network):
    graph, values = network
    half = cells(gs.evaluate(graph, *values, domain=gs.ieee("f16")))
    kernel_like = cells(gs.evaluate(graph, *values, domain=gs.ieee("f16", accumulate="f32")))
    exact = cells(gs.evaluate(graph, *values, domain=gs.exact))
    errors = [max(abs(float(v) - float(e)) for v, e in zip(got, exact, strict=True)) for got in (half, kernel_like)]
    assert 0 < errors[1] <= errors[0]
    assert all(np.float16(float(v)) == float(v) for v in kernel_like)


WEIGHTS = (np.zeros((2, 2, 3, 3)), np.zeros((3, 8)))


@pytest.mark.parametrize(
    ("args", "error", "words"),
    [
        ((np.zeros(2),), TypeError, r"takes 3 arguments \(x: f64\[2, 4, 4\]"),
        ((np.zeros(2), *WEIGHTS), gs.ShapeError, r"shape \(2,\); pass one of shape \(2, 4, 4\)"),
        ((np.full((2, 4, 4), np.nan), *WEIGHTS), gs.UnsupportedError, "not a rational number"),
    ],
)
def test_errors(network, args, error, words):
    with pytest.raises(error, match=words):
        gs.evaluate(network[0], *args, domain=gs.exact)
