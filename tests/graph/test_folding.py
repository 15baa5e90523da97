"""Batch norms folded into products: what is folded means the same up to one rounding, and the rest is left alone."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.domains.formats import FORMATS
from gradspec.graph.graph import check

DTYPES = {"f16": gs.f16, "bf16": gs.bf16, "f32": gs.f32, "f64": gs.f64}


@dataclass(frozen=True)
class Layer:
    """A product with constant weight and bias, and the batch norm behind it."""

    product: Callable[..., Any]
    shape: tuple[int, ...]
    weight: tuple[int, ...]
    channels: int = 4
    bias: bool = False
    gain: bool = True
    shift: bool = True
    eps: float = 1e-5
    variance: tuple[float, float] = (0.1, 3.0)

    def constants(self, dtype) -> dict[str, np.ndarray]:
        random = np.random.default_rng(1)
        drawn = {
            "weight": random.standard_normal(self.weight),
            "bias": random.standard_normal(self.channels),
            "mean": random.standard_normal(self.channels),
            "var": np.geomspace(*self.variance, self.channels),
            "gain": random.standard_normal(self.channels),
            "shift": random.standard_normal(self.channels),
        }
        absent = {name for name in ("bias", "gain", "shift") if not getattr(self, name)}
        return {name: array.astype(dtype.numpy) for name, array in drawn.items() if name not in absent}

    def graph(self, dtype=gs.f32):
        c = self.constants(dtype)

        def function(x):
            y = self.product(x, c["weight"], c.get("bias"))
            return gs.batch_norm(y, c["mean"], c["var"], c.get("gain"), c.get("shift"), self.eps)

        return gs.trace(function, dtype[self.shape])

    def x(self, dtype=gs.f32) -> np.ndarray:
        return np.random.default_rng(2).standard_normal(self.shape).astype(dtype.numpy)


def grouped(x, w, b):
    return gs.conv1d(x, w, b, stride=2, padding=((2, 1),), dilation=2, groups=2)


def transposed(x, w, b, groups=1):
    return gs.conv_transpose1d(x, w, b, stride=2, padding=1, output_padding=1, groups=groups)


PLAIN = Layer(gs.conv2d, (2, 3, 4, 4), (4, 3, 2, 2))
LAYERS = {
    "convolution": PLAIN,
    "with bias": replace(PLAIN, bias=True),
    "no gain": replace(PLAIN, gain=False),
    "no shift": replace(PLAIN, bias=True, shift=False),
    "statistics alone": replace(PLAIN, gain=False, shift=False),
    "groups": Layer(grouped, (2, 6, 7), (4, 3, 3), bias=True),
    "three axes": Layer(gs.conv3d, (1, 1, 2, 3, 2), (4, 1, 2, 1, 2)),
    "no axes": Layer(gs.conv, (3, 2), (4, 2), bias=True),
    "transposed": Layer(transposed, (2, 3, 3), (3, 4, 3), bias=True),
    "transposed, groups": Layer(lambda x, w, b: transposed(x, w, b, 2), (2, 6, 3), (6, 2, 3)),
    "linear": Layer(gs.linear, (3, 5), (4, 5), bias=True),
    "linear without bias": Layer(gs.linear, (3, 5), (4, 5)),
    "matrix product": Layer(lambda x, w, b: gs.matmul(x, w), (3, 5), (5, 4)),
    "variance far below eps": replace(PLAIN, variance=(1e-7, 1e-5)),
    "tiny variance alone": replace(PLAIN, variance=(1e-7, 1e-6), eps=0.0),
    "huge variance": replace(PLAIN, variance=(1e3, 6e4)),
}
layers = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
dtypes = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)


def names(graph):
    return [node.op.name for node in graph.nodes]


@layers
def test_one_product_is_left(layer):
    graph = layer.graph()
    folded = check(gs.fold_batch_norm(graph))
    assert names(folded) == [name for name in names(graph) if name != "batch_norm"]
    assert [v.type for v in (*folded.inputs, *folded.outputs)] == [v.type for v in (*graph.inputs, *graph.outputs)]
    assert len(folded.constants) == 2


@layers
@dtypes
def test_it_means_the_same_up_to_the_rounding_of_its_constants(layer, dtype):
    """Both graphs on real numbers, in balls.

    A folded weight is ``s·w·(1 + e)`` with ``|e|`` at most the unit roundoff u of the dtype, or off by half of the
    smallest subnormal η; so is a folded bias. That they come from float64 adds a few roundings, of the terms of the
    bias too, and bfloat16 is reached by way of float32, which adds u·2⁻¹⁵.
    """
    x, graph = layer.x(dtype), layer.graph(dtype)
    folded = gs.fold_batch_norm(graph)
    weight, bias = (np.abs(a.astype(np.float64)) for a in folded.constants.values())
    size, unit, tiniest = np.abs(x.astype(np.float64)), *limits(dtype)
    room = unit * _run(layer.product, size, weight, bias)
    room += FEW_ROUNDINGS * _run(layer.product, size, weight, _terms_of_bias(layer, dtype))
    room += tiniest * _run(layer.product, size, np.ones_like(weight), np.ones_like(bias))
    before, after = (gs.evaluate(g, x, domain=gs.ball(200)).cells for g in (graph, folded))
    most = ((1 + 1e-9) * room).ravel().tolist()
    assert all(abs(b - a) < limit for b, a, limit in zip(before, after, most, strict=True))


@dtypes
def test_constants_are_rounded_once(dtype):
    """A linear layer shows its numbers: the bias at 0, a column of the weight beside it at a unit vector."""
    layer = Layer(gs.linear, (33, 32), (4, 32), bias=True)
    rows = np.concatenate([np.zeros((1, 32)), np.eye(32)]).astype(dtype.numpy)
    graph = layer.graph(dtype)
    exact, folded = (gs.evaluate(g, rows, domain=gs.ball(200)).tolist() for g in (graph, gs.fold_batch_norm(graph)))
    unit, tiniest = limits(dtype)
    for channel, terms in enumerate(_terms_of_bias(layer, dtype).tolist()):
        bias, *column = ((e[channel], f[channel]) for e, f in zip(exact, folded, strict=True))
        assert abs(bias[1] - bias[0]) < unit * abs(float(bias[0])) + FEW_ROUNDINGS * terms + tiniest
        for e, f in column:
            weight = e - bias[0]
            assert abs(f - bias[1] - weight) < (unit + FEW_ROUNDINGS) * abs(float(weight)) + tiniest


FEW_ROUNDINGS = 10 * 2.0**-53


def limits(dtype):
    format = FORMATS[dtype.name]
    return (0.0 if dtype is gs.f64 else float(format.unit) * (1 + 2**-15)), float(format.tiniest)


def _terms_of_bias(layer, dtype):
    c = {name: np.abs(a.astype(np.float64)) for name, a in layer.constants(dtype).items()}
    scale = c.get("gain", 1.0) / np.sqrt(c["var"] + layer.eps)
    return (c.get("bias", 0.0) + c["mean"]) * scale + c.get("shift", 0.0)


def _run(product, x, weight, bias):
    """The product in float64; matmul has no bias of its own."""
    y = product(x, weight, None)
    return y + bias.reshape(-1, *(1,) * (y.ndim - 2))


@layers
def test_it_is_an_ordinary_graph(layer, tmp_path):
    """Saved and loaded to the bit; in float64 its derivatives and its batches are those of the graph before."""
    graph, x = layer.graph(gs.f64), layer.x(gs.f64)
    folded = gs.fold_batch_norm(graph)
    folded.save(tmp_path / "folded.gradspec")
    loaded = check(gs.load(tmp_path / "folded.gradspec"))
    assert str(loaded) == str(folded)
    np.testing.assert_array_equal(loaded(x), folded(x))
    seed = np.random.default_rng(3).standard_normal(graph.outputs[0].shape)
    for ours, right, given in [
        (folded.vjp(), graph.vjp(), (x, seed)),
        (folded.jvp(), graph.jvp(), (x, x[..., ::-1].copy())),
        (folded.batch(2), graph.batch(2), (np.stack([x, -x]),)),
    ]:
        for got, wanted in zip(_tuple(check(ours)(*given)), _tuple(right(*given)), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-11, atol=1e-11 * np.abs(wanted).max())


def _tuple(results):
    return results if isinstance(results, tuple) else (results,)


# --- several readers --------------------------------------------------------------------------------------------------

RANDOM = np.random.default_rng(5)
W, ONES = RANDOM.standard_normal((4, 3, 2, 2)).astype(np.float32), np.ones(4, np.float32)
X = RANDOM.standard_normal((2, 3, 4, 4)).astype(np.float32)


def test_a_weight_with_several_readers_is_scaled_for_each():
    """Two norms and a plain convolution on one constant: three weights, the last of them the old one."""
    b = gs.Builder()
    x, w = b.input(gs.f32[X.shape], "x"), b.const(W, "w")
    halved, doubled = (gs.batch_norm(gs.conv2d(x, w), 0 * ONES, v * ONES, eps=0.0) for v in (4, 0.25))
    graph = b.build([halved, doubled, gs.conv2d(x, w)])
    folded = check(gs.fold_batch_norm(graph))
    weights = [folded.constants[node.inputs[1]] for node in folded.nodes]
    assert names(folded) == ["conv"] * 3
    for got, right in zip(weights, (W / 2, W * 2, W), strict=True):
        np.testing.assert_array_equal(got, right)
    for got, right in zip(folded(X), graph(X), strict=True):
        np.testing.assert_array_equal(got, right)


def test_one_norm_of_two_is_folded_each_time():
    def twice(x):
        return gs.batch_norm(gs.batch_norm(gs.conv2d(x, W), ONES, 4 * ONES, eps=0.0), 0 * ONES, 16 * ONES, eps=0.0)

    once = gs.fold_batch_norm(gs.trace(twice, gs.f32[X.shape]))
    assert names(once) == ["conv", "batch_norm"]
    again = gs.fold_batch_norm(once)
    assert names(again) == ["conv"]
    np.testing.assert_array_equal(again.constants[again.nodes[0].inputs[1]], W / 8)


def test_a_derivative_can_be_folded_too():
    """Its value does; the factor 1/√(var + eps) of its cotangent is the norm of no product and stays."""
    graph = PLAIN.graph(gs.f64).vjp()
    folded = check(gs.fold_batch_norm(graph))
    assert [names(g).count("batch_norm") for g in (graph, folded)] == [2, 1]
    x, seed = PLAIN.x(gs.f64), np.random.default_rng(3).standard_normal(graph.outputs[0].shape)
    for got, right in zip(folded(x, seed), graph(x, seed), strict=True):
        np.testing.assert_allclose(got, right, rtol=1e-11, atol=1e-11 * np.abs(right).max())


# --- left alone -------------------------------------------------------------------------------------------------------


def norm(y, **statistics):
    return gs.batch_norm(y, **({"running_mean": ONES, "running_var": ONES} | statistics))


def returned(x):
    y = gs.conv2d(x, W)
    return y, norm(y)


def read_twice(x):
    y = gs.conv2d(x, W)
    return norm(y) + y


IMAGE = gs.f32[2, 3, 4, 4]
FEW = 3 * ONES[:3]
ALONE = {
    "the product is returned": (returned, IMAGE),
    "the product is read again": (read_twice, IMAGE),
    "the weight is an input": (lambda x, w: norm(gs.conv2d(x, w)), IMAGE, gs.f32[4, 3, 2, 2]),
    "the bias is an input": (lambda x, b: norm(gs.conv2d(x, W, b)), IMAGE, gs.f32[4]),
    "the mean is an input": (lambda x, m: norm(gs.conv2d(x, W), running_mean=m), IMAGE, gs.f32[4]),
    "the variance is an input": (lambda x, v: norm(gs.conv2d(x, W), running_var=v), IMAGE, gs.f32[4]),
    "the gain is an input": (lambda x, g: norm(gs.conv2d(x, W), weight=g), IMAGE, gs.f32[4]),
    "the shift is an input": (lambda x, s: norm(gs.conv2d(x, W), bias=s), IMAGE, gs.f32[4]),
    "something lies between": (lambda x: norm(gs.relu(gs.conv2d(x, W))), IMAGE),
    "there is no product": (lambda x: norm(x), gs.f32[2, 4, 3]),
    "another operator is in front": (lambda x: norm(gs.max_pool2d(x, 2)), gs.f32[2, 4, 4, 4]),
    "axis 1 holds rows: no batch": (
        lambda x: gs.batch_norm(gs.conv2d(x, W), FEW, FEW), gs.f32[3, 4, 4],
    ),
    "axis 1 is a second batch": (lambda x: gs.batch_norm(gs.conv2d(x, W), FEW, FEW), gs.f32[2, 3, 3, 4, 4]),
    "axis 1 is a batch of transposed ones": (
        lambda x: gs.batch_norm(gs.conv_transpose1d(x, np.ones((4, 2, 2), np.float32), groups=4), FEW, FEW),
        gs.f32[2, 3, 4, 4],
    ),
    "axis 1 holds rows: stacks of matrices": (
        lambda x: gs.batch_norm(gs.matmul(x, np.ones((2, 5, 4), np.float32)), FEW, FEW), gs.f32[2, 3, 5],
    ),
    "the variance is zero": (lambda x: norm(gs.conv2d(x, W), running_var=0 * ONES, eps=0.0), IMAGE),
    "the variance is negative": (lambda x: norm(gs.conv2d(x, W), running_var=-ONES), IMAGE),
    "a weight would overflow": (
        lambda x: norm(gs.conv2d(x, W), running_var=np.full(4, 1e-30, np.float32), weight=1e30 * ONES, eps=0.0), IMAGE,
    ),
    "the bias would overflow": (
        lambda x: norm(gs.conv2d(x, 1e-30 * W), running_mean=3e38 * ONES, running_var=ONES / 4), IMAGE,
    ),
    "a weight is not a number": (lambda x: norm(gs.conv2d(x, np.full_like(W, np.nan))), IMAGE),
}  # fmt: skip


@pytest.mark.parametrize("case", ALONE.values(), ids=ALONE)
def test_everything_else_is_left_alone(case):
    graph = gs.trace(*case)
    assert "batch_norm" in names(graph)
    assert str(check(gs.fold_batch_norm(graph))) == str(graph)


def test_it_takes_a_graph():
    with pytest.raises(TypeError, match=r"needs a graph, such as gs\.trace.* gives, not function"):
        gs.fold_batch_norm(norm)
