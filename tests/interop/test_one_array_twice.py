"""One array in two places is two variables: whatever makes a graph of examples, or runs one, keeps them apart."""

import jax
import numpy as np
import pytest
import torch

import gradspec as gs
import gradspec.torch as F  # noqa: N812

A, B = np.float32([1, 2, 3]), np.float32([5, 7, 9])


def f(a, b):
    return a * 2 - b


class Module(torch.nn.Module):
    def forward(self, a, b):
        return f(a, b)


GRAPH = gs.trace(f, gs.f32[3], gs.f32[3])
T = torch.from_numpy(A)
CALLS = {
    "from_torch": lambda: gs.from_torch(Module(), T, T),
    "a family": lambda: gs.from_torch(Module(), T, T, dynamic={"a": {0: "n"}, "b": {0: "n"}}),
    "an exported program": lambda: gs.from_torch(torch.export.export(Module(), (T, T.clone()), strict=False), T, T),
    "from_onnx": lambda: gs.from_onnx(gs.to_onnx(GRAPH), shapes=dict.fromkeys(("a", "b"), A.shape)),
    "from_torch of to_torch": lambda: gs.from_torch(gs.to_torch(GRAPH), T, T),
    "trace": lambda: GRAPH,
    "compile": lambda: gs.compile(f, *[gs.f32[3]] * 2),
    "to_torch": lambda: lambda a, b: gs.to_torch(GRAPH)(torch.from_numpy(a), torch.from_numpy(b)),
    "to_jax": lambda: gs.to_jax(GRAPH),
    "operators": lambda: f,
}


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")
@pytest.mark.parametrize("name", CALLS)
def test_a_call_with_one_array_does_not_make_the_inputs_one(name):
    call = CALLS[name]()
    for a, b in ((A, A), (A, B), (B, A), (B, B)):
        assert np.asarray(call(a, b)).tolist() == (2 * a - b).tolist()


def test_each_place_has_its_own_derivative():
    ones = np.ones(3, np.float32)
    assert [d.tolist() for d in GRAPH.vjp()(A, A, ones)[1:]] == [[2, 2, 2], [-1, -1, -1]]
    assert gs.grad(lambda a, b: gs.sum(f(a, b)))(A, A).tolist() == [2, 2, 2]
    function = gs.to_jax(gs.trace(lambda a, b: gs.sum(f(a, b)), gs.f32[3], gs.f32[3]))
    assert [np.asarray(d).tolist() for d in jax.grad(function, (0, 1))(A, A)] == [[2, 2, 2], [-1, -1, -1]]
    module, x = gs.to_torch(GRAPH), T.clone().requires_grad_()
    assert torch.autograd.grad(module(x, x).sum(), x)[0].tolist() == [1, 1, 1]
    pulled = torch.func.grad(lambda a, b: module(a, b).sum(), (0, 1))(T, T)
    assert [d.tolist() for d in pulled] == [[2, 2, 2], [-1, -1, -1]]


def test_a_tensor_that_is_image_and_weight():
    x = torch.randn(1, 1, 40, 40, generator=torch.Generator().manual_seed(0)).double().requires_grad_()
    functions = (F.conv2d, torch.nn.functional.conv2d)
    ours, theirs = (torch.autograd.grad(conv2d(x, x, padding=20).sum(), x)[0] for conv2d in functions)
    torch.testing.assert_close(ours, theirs)
