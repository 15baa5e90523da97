"""Models of open sizes, from PyTorch and ONNX: every size and dtype gives what the other library gives."""

import copy
from unittest.mock import patch

import numpy as np
import onnx
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

import gradspec as gs
from gradspec.interop.onnx import reader as onnx_reader
from gradspec.interop.torch import reader as torch_reader
from interop.networks import settled
from interop.onnx_models import model, theirs, value

BATCH = {"input": {0: "batch"}}


class Attention(nn.Module):
    """Sizes in its code, a table of positions for each width, Python numbers, and a branch that a size decides."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 3)

    def forward(self, x, scale):
        n, _, h, w = x.shape
        x = torch.relu(self.norm(self.conv(x))) * 0.1 + torch.arange(w, dtype=x.dtype) / 3
        rows = x.reshape(n, 4, h * w).transpose(1, 2)
        if n > 1:
            rows = rows - rows.mean(0, keepdim=True)
        return self.head(torch.softmax(rows @ rows.transpose(1, 2), -1) @ rows).mean(1) * scale


make = settled(Attention)
OPEN = {"x": {0: "batch", 2: "height", 3: "width"}, "scale": {0: "batch"}}


def given(batch, height, width, dtype=torch.float32):
    random = torch.Generator().manual_seed(batch)
    shapes = (batch, 2, height, width), (batch, 1)
    return [torch.randn(shape, generator=random, dtype=torch.float64).to(dtype) for shape in shapes]


@pytest.fixture(scope="module")
def network():
    return make()


@pytest.fixture(scope="module")
def attention(network):
    return gs.from_torch(network, *given(2, 4, 5), dynamic=OPEN)


@pytest.fixture
def imports():
    """Counts how often a model is captured or read."""
    counted = []

    def counting(read):
        return lambda *args, **kwargs: (counted.append(1), read(*args, **kwargs))[1]

    with (
        patch.object(torch_reader, "read", counting(torch_reader.read)),
        patch.object(onnx_reader, "read_message", counting(onnx_reader.read_message)),
    ):
        yield counted


# --- PyTorch ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sizes", [(2, 4, 5), (1, 4, 5), (3, 2, 7)], ids=str)
def test_every_size_and_dtype_is_torchs(attention, network, sizes, dtype):
    x, scale = given(*sizes, dtype)
    with torch.no_grad():
        wanted = copy.deepcopy(network).to(dtype)(x, scale)
    found = attention(x, scale)
    assert found.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=0, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.float16, pytest.param(torch.bfloat16, marks=pytest.mark.exhaustive)])
def test_half_precision(dtype):
    layer = settled(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.MaxPool2d(2)))()
    family = gs.from_torch(layer, gs.f32[1, 2, 8, 8], dynamic=BATCH)
    x = torch.randn(2, 2, 8, 8).to(dtype)
    with torch.no_grad():
        wanted = copy.deepcopy(layer).to(dtype)(x)
    torch.testing.assert_close(family(x), wanted, rtol=0, atol=8 * torch.finfo(dtype).eps)


def test_a_model_is_captured_once_for_each_size(imports):
    family = gs.from_torch(nn.MaxPool2d(2), gs.f32[2, 1, 4, 4], dynamic=BATCH)
    for batch in (2, 3, 2, 3):
        family(torch.zeros(batch, 1, 4, 4))
    assert len(imports) == 2
    family(torch.zeros(3, 1, 4, 4, dtype=torch.float64))
    family.vjp()(np.zeros((3, 1, 4, 4)), np.ones((3, 1, 2, 2)))
    assert len(imports) == 3


def test_weights_are_those_of_the_import_and_lie_in_one_place():
    layer = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    family = gs.from_torch(layer, gs.f32[1, 1, 4, 4], dynamic=BATCH)
    x = torch.randn(3, 1, 4, 4)
    with torch.no_grad():
        before = copy.deepcopy(layer).eval()(x)
        for weight in layer.parameters():
            weight.mul_(2)
        layer[1] = nn.ReLU()
    torch.testing.assert_close(family(x), before)
    one, three = (family.at(batch=n).constants for n in (1, 3))
    assert [v.name for v in one] == [v.name for v in three]
    assert len(one) == 6
    for a, b in zip(one.values(), three.values(), strict=True):
        assert a is b


def test_derivatives_are_torchs(attention, network):
    x, scale = (t.requires_grad_() for t in given(3, 3, 4, torch.float64))
    y = copy.deepcopy(network).double()(x, scale)
    ct = torch.randn_like(y)
    wanted = torch.autograd.grad(y, (x, scale), ct)
    value, *found = attention.vjp()(x.detach(), scale.detach(), ct)
    torch.testing.assert_close(value, y.detach())
    torch.testing.assert_close(tuple(found), wanted)


def test_parameters_as_inputs():
    layer = nn.Linear(3, 2)
    family = gs.from_torch(layer, gs.f32[1, 3], params="inputs", dynamic=BATCH)
    x, weight, bias = torch.randn(4, 3), layer.weight.detach(), layer.bias.detach()
    torch.testing.assert_close(family(x, weight, bias), layer(x).detach())
    _, gradient = family.vjp("weight")(x, weight, bias, torch.ones(4, 2))
    torch.testing.assert_close(gradient, torch.ones(2, 4) @ x)


def test_arguments_in_a_nesting_and_by_keyword():
    class Sum(nn.Module):
        def forward(self, pair, times, *, offset):
            return pair["a"] * times + pair["b"] + offset

    example = {"a": torch.zeros(2, 3), "b": torch.zeros(3)}
    names = {"pair_a": {0: "n"}, "offset": {-2: torch.export.Dim("n")}}
    family = gs.from_torch(Sum(), example, 2, example_kwargs={"offset": torch.zeros(2, 1)}, dynamic=names)
    assert family.signature == "(pair_a: f32[n, 3], pair_b: f32[3], offset: f32[n, 1])"
    a, b, offset = torch.randn(5, 3), torch.randn(3), torch.randn(5, 1)
    torch.testing.assert_close(family(a, b, offset), a * 2 + b + offset)


def test_an_exported_program():
    layer = nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
    program = torch.export.export(layer, (torch.zeros(3, 2, 4),), dynamic_shapes=({0: torch.export.Dim("n")},))
    family = gs.from_torch(program, gs.f32[2, 2, 4], dynamic=BATCH)
    for dtype in (torch.float32, torch.float64):
        x = torch.randn(5, 2, 4, dtype=dtype)
        torch.testing.assert_close(family(x), copy.deepcopy(layer).to(dtype)(x).detach())
    assert layer[1].weight.dtype == torch.float32
    fixed = torch.export.export(layer, (torch.zeros(3, 2, 4),))
    with pytest.raises(gs.ShapeError, match="exported for fixed sizes"):
        gs.from_torch(fixed, gs.f32[3, 2, 4], dynamic=BATCH)


TORCH_MISTAKES = {
    "an unknown input": ({"x": {0: "batch"}}, ValueError, "'x'; the model's inputs are input"),
    "no axis": ({"input": {2: "batch"}}, gs.ShapeError, "axis 2 of input: f32"),
    "no text": ({"input": {0: 3}}, TypeError, "give a text"),
    "no names": (True, TypeError, "does not name sizes"),
    "one name for two sizes": ({"input": {0: "n", 1: "n"}}, gs.ShapeError, "calls 'n' what is 2 in one example and 3"),
}


@pytest.mark.parametrize("mistake", TORCH_MISTAKES)
def test_mistakes_of_names_are_told(mistake):
    dynamic, error, message = TORCH_MISTAKES[mistake]
    with pytest.raises(error, match=message):
        gs.from_torch(nn.ReLU(), gs.f32[2, 3], dynamic=dynamic)


# --- modules ----------------------------------------------------------------------------------------------------------


def test_a_module_trains_with_any_batch(network, attention):
    ours, reference = gs.to_torch(attention, parameters=["head.weight", "conv.weight"]), copy.deepcopy(network)
    reference.requires_grad_(False)
    for parameter in (reference.head.weight, reference.conv.weight):
        parameter.requires_grad_()
    steps = [torch.optim.SGD([p for p in m.parameters() if p.requires_grad], 0.1) for m in (ours, reference)]
    for sizes in [(2, 4, 5), (3, 2, 7), (2, 4, 5)]:
        for module, step in zip((ours, reference), steps, strict=True):
            step.zero_grad()
            module(*given(*sizes)).square().sum().backward()
            step.step()
    torch.testing.assert_close(ours.head.weight, reference.head.weight)
    torch.testing.assert_close(ours.conv.weight, reference.conv.weight)
    x = [t.numpy() for t in given(3, 2, 7)]
    assert np.array_equal(ours.at(*x)(*x), ours(*given(3, 2, 7)).detach().numpy())
    double = copy.deepcopy(ours).double()
    with torch.no_grad():
        wanted = copy.deepcopy(reference).double()(*given(2, 4, 5, torch.float64))
        torch.testing.assert_close(double(*given(2, 4, 5, torch.float64)), wanted)
        with pytest.raises(gs.DTypeError, match="was given a tensor of"):
            ours(*given(2, 4, 5, torch.float64))


@pytest.fixture(scope="module")
def pooled():
    family = gs.from_torch(nn.Sequential(nn.Linear(3, 4), nn.Tanh()), gs.f32[2, 3], dynamic=BATCH)
    return gs.to_torch(family, parameters="all")


def test_new_sizes_inside_transformations(pooled):
    x = torch.randn(5, 3)
    rows = vmap(grad(lambda row: pooled(row.expand(7, 3)).sum()))(x)
    torch.testing.assert_close(rows, 7 * vmap(grad(lambda row: pooled(row[None]).sum()))(x))
    with torch.inference_mode():
        pooled(torch.randn(6, 3))
    pooled(torch.randn(6, 3)).sum().backward()


def test_compiled_and_exported(pooled):
    torch.compiler.reset()
    compiled = torch.compile(pooled, fullgraph=True, backend="aot_eager", dynamic=False)
    for batch in (3, 9):
        x = torch.randn(batch, 3)
        torch.testing.assert_close(compiled(x), pooled(x))
        torch.testing.assert_close(torch.export.export(pooled, (x,)).module()(x), pooled(x))


def test_what_is_trained_must_be_there_for_every_size():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.ones(2)) for _ in range(2))

        def forward(self, x):
            return x * (self.first if x.shape[0] == 2 else self.second)

    module = gs.to_torch(gs.from_torch(Scaled(), gs.f32[2, 2], dynamic={"x": {0: "n"}}), parameters="all")
    module(torch.ones(2, 2))
    with pytest.raises(gs.UnsupportedError, match="does not have what is trained as the others do: first"):
        module(torch.ones(3, 2))


# --- ONNX -------------------------------------------------------------------------------------------------------------

WEIGHT = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)


def convolution(x=("batch", 3, "height", None), offset=("batch", 4)):
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["conv"], pads=[1, 1, 1, 1]),
        onnx.helper.make_node("Relu", ["conv"], ["relu"]),
        onnx.helper.make_node("GlobalAveragePool", ["relu"], ["pool"]),
        onnx.helper.make_node("Flatten", ["pool"], ["flat"]),
        onnx.helper.make_node("Add", ["flat", "offset"], ["y"]),
    ]
    return model(nodes, [value("x", x), value("offset", offset)], [value("y", None)], {"w": WEIGHT})


def images(batch, height, width, dtype=np.float32):
    random = np.random.default_rng(batch)
    return [random.standard_normal(shape).astype(dtype) for shape in ((batch, 3, height, width), (batch, 4))]


def test_open_sizes_of_onnx(imports):
    message = convolution()
    family = gs.from_onnx(message, dynamic=True)
    assert family.signature == "(x: f32[batch, 3, height, x.3], offset: f32[batch, 4])"
    assert not imports
    for sizes in [(1, 4, 5), (3, 2, 6), (1, 4, 5)]:
        given = images(*sizes)
        np.testing.assert_allclose(family(*given), theirs(message, given)[0], rtol=1e-5)
    assert len(imports) == 2
    assert [v.name for v in family.example().outputs] == ["y"]
    (one,), (two,) = (family.at(*images(*sizes)).constants.values() for sizes in [(1, 4, 5), (3, 2, 6)])
    assert one is two


def test_floats_of_onnx_in_another_dtype():
    message = convolution()
    family = gs.from_onnx(message, dynamic=True)
    given = images(2, 4, 5, np.float64)
    exact = gs.evaluate(family.at(*images(2, 4, 5)), *given, domain=gs.exact)
    np.testing.assert_allclose(family(*given), np.array(exact.tolist(), float), rtol=1e-14)
    assert family(*images(2, 4, 5, np.float16)).dtype == np.float16


def test_names_for_open_sizes_of_onnx(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save(convolution(), path)
    named = gs.from_onnx(path, dynamic={"x": {0: "n", -2: "h", 3: "w"}})
    assert named.signature == "(x: f32[n, 3, h, w], offset: f32[n, 4])"
    partly = gs.from_onnx(path, shapes={"x": (2, 3, 4, 5)}, dynamic=True)
    assert partly.signature == "(x: f32[2, 3, 4, 5], offset: f32[2, 4])"
    given = images(2, 4, 5)
    assert np.array_equal(named(*given), partly(*given))


def test_a_changed_message_is_not_seen():
    message = convolution()
    family = gs.from_onnx(message, dynamic=True)
    before = family(*images(2, 4, 5))
    message.graph.node[1].op_type = "Neg"
    assert np.array_equal(gs.from_onnx(convolution(), dynamic=True)(*images(3, 4, 5)), family(*images(3, 4, 5)))
    assert np.array_equal(before, family(*images(2, 4, 5)))


def test_a_module_of_onnx():
    family = gs.from_onnx(convolution(), dynamic=True)
    with pytest.raises(ValueError, match="make one: at"):
        gs.to_torch(family)
    family.at(*images(1, 4, 5))
    module = gs.to_torch(family, parameters="all")
    x, offset = map(torch.from_numpy, images(3, 4, 4))
    module(x, offset).sum().backward()
    weight = torch.from_numpy(WEIGHT).requires_grad_()
    torch.relu(torch.conv2d(x, weight, padding=1)).mean((2, 3)).sum().backward()
    torch.testing.assert_close(module.w.grad, weight.grad)


ONNX_MISTAKES = {
    "a size without a name": (convolution(), {"x": {0: "n"}}, gs.ShapeError, "dynamic does not name: x: float32"),
    "a settled size": (convolution(), {"x": {1: "n"}}, gs.ShapeError, "settles: it is 3"),
    "no axis": (convolution(), {"x": {4: "n"}}, gs.ShapeError, "has 4 axes"),
    "an unknown input": (convolution(), {"z": {0: "n"}}, ValueError, "'z'; the model's inputs are 'x'"),
    "two names": (convolution(), {"x": {0: "n"}, "offset": {0: "m"}}, ValueError, "a dimension has one name"),
    "no names": (convolution(), "batch", TypeError, "give True for all"),
    "no rank": (convolution(offset=None), True, gs.ShapeError, r"shapes=\{'offset': \(…\)\}"),
    "no operator": (
        model([onnx.helper.make_node("Unheard", ["x"], ["y"])], [value("x", ["n"])], [value("y", None)]),
        True,
        gs.UnsupportedError,
        "the operator Unheard",
    ),
}


@pytest.mark.parametrize("mistake", ONNX_MISTAKES)
def test_mistakes_of_open_sizes_are_told(mistake):
    message, dynamic, error, match = ONNX_MISTAKES[mistake]
    with pytest.raises(error, match=match):
        gs.from_onnx(message, dynamic=dynamic)
