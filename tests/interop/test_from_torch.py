"""PyTorch models as graphs: values and both derivatives are PyTorch's, for networks and for every operator."""

import re
from collections.abc import Callable, Mapping, Sequence
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

import gradspec as gs
from interop import networks
from interop.layers import GROUPS, HELPED, Group

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # PyTorch's, about its own code
    "ignore:Using padding='same' with even kernel lengths:UserWarning",  # about speed
)

FORMS = ("exported", "decomposed")
every_form = pytest.mark.parametrize("form", FORMS)
every_network = pytest.mark.parametrize("name", networks.TORCH)


def in_form(module: nn.Module, inputs: Sequence[Tensor], form: str) -> ExportedProgram:
    program = torch.export.export(module, tuple(inputs), strict=False)
    return program if form == "exported" else program.run_decompositions()


def tensors_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def run(graph: gs.Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """On the readable backend, which compiles nothing: the graph is what is tested here."""
    result = gs.compile(graph, backend="numpy")(*(np.asarray(a) for a in arrays))
    return result if isinstance(result, tuple) else (result,)


def assert_close(found: Sequence[Any], expected: Sequence[Tensor], names: Sequence[str]) -> None:
    for ours, theirs, name in zip(found, expected, names, strict=True):
        wanted = theirs.detach().numpy()
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), name
        slack = 2000 * np.finfo(wanted.dtype).eps if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(ours, wanted, rtol=slack, atol=slack, err_msg=name)


def assert_agrees(model: Any, function: Callable[..., Any], inputs: Sequence[Tensor], names: Sequence[str]) -> None:
    """The graph's value, VJP and JVP are those of ``function``, which has the floating-point ``inputs`` and others."""
    graph = gs.from_torch(model, params="inputs")
    expected = tensors_of(function(*inputs))
    assert_close(run(graph, inputs), expected, names)
    directions = random_like([x for x in inputs if x.is_floating_point()], 1)
    weights = random_like([y for y in expected if y.is_floating_point()], 2)
    pushed, pulled = derivatives(function, inputs, directions, weights)
    found = run(graph.jvp(), [*inputs, *directions])[len(expected) :]
    smooth = [name for name, y in zip(names, expected, strict=True) if y.is_floating_point()]
    assert_close(found, pushed, [f"tangent of {name}" for name in smooth])
    found = run(graph.vjp(), [*inputs, *weights])[len(expected) :]
    assert_close(found, pulled, [f"cotangent of {v.name}" for v in graph.inputs if v.type.is_float])


def random_like(tensors: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(t.shape, generator=generator, dtype=t.dtype) for t in tensors]


def derivatives(
    function: Callable[..., Any], inputs: Sequence[Tensor], directions: Sequence[Tensor], weights: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """The tangents and the cotangents of PyTorch."""

    def smooth(*changing: Tensor) -> tuple[Tensor, ...]:
        given = iter(changing)
        results = function(*(next(given) if x.is_floating_point() else x for x in inputs))
        return tuple(y for y in tensors_of(results) if y.is_floating_point())

    primals = tuple(x.detach() for x in inputs if x.is_floating_point())
    _, pushed = torch.func.jvp(smooth, primals, tuple(directions))
    _, pull = torch.func.vjp(smooth, *primals)
    return list(pushed), list(pull(tuple(weights)))


# --- networks ---------------------------------------------------------------------------------------------------------


@every_form
@every_network
def test_networks_have_the_values_and_derivatives_of_torch(name, form):
    make, shape = networks.TORCH[name]
    network = make().double()
    x = random_like([torch.empty(shape, dtype=torch.float64)], 0)[0]
    program = in_form(network, [x], form)
    state = {v.name: program.state_dict[v.name] for v in gs.from_torch(program, params="inputs").inputs[1:]}

    def function(x: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(network, dict(zip(state, values, strict=True)), (x,))

    assert_agrees(program, function, [x, *(t.detach() for t in state.values())], ["result"])


@every_network
def test_networks_run_in_single_precision_on_compiled_kernels(name):
    make, shape = networks.TORCH[name]
    network, x = make(), random_like([torch.empty(shape)], 0)[0]
    graph = gs.from_torch(network, gs.f32[shape])
    np.testing.assert_allclose(graph(x.numpy()), network(x).detach(), rtol=1e-4, atol=1e-5)


# --- every operator ---------------------------------------------------------------------------------------------------


class Together(nn.Module):
    """All groups of layers in one module, because exporting costs more than what is exported."""

    def __init__(self, groups: Mapping[str, Group]) -> None:
        super().__init__()
        self.groups = nn.ModuleList(group.module() for group in groups.values())
        self.counts = [len(group.inputs) for group in groups.values()]

    def forward(self, *inputs: Tensor) -> list[Any]:
        given = iter(inputs)
        return [group(*(next(given) for _ in range(n))) for group, n in zip(self.groups, self.counts, strict=True)]


@every_form
@pytest.mark.parametrize("groups", [GROUPS, HELPED], ids=["known", "helped"])
def test_every_operator_has_the_value_and_derivatives_of_torch(groups, form):
    module = Together(groups).eval()
    inputs = [x for group in groups.values() for x in group.tensors()]
    names = [
        f"{group}: {layer}"
        for (group, table), results in zip(groups.items(), module(*inputs), strict=True)
        for layer, result in zip(table.layers, results, strict=True)
        for _ in tensors_of(result)
    ]
    graph = gs.from_torch(in_form(module, inputs, form))
    expected = tensors_of(module(*inputs))
    assert_close(run(graph, inputs), expected, names)
