"""PyTorch models as graphs: values and both derivatives are PyTorch's, for networks and for every operator."""

import re
from collections.abc import Callable, Mapping, Sequence
from inspect import signature
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, fx, nn
from torch._higher_order_ops.associative_scan import associative_scan
from torch._higher_order_ops.scan import scan
from torch.utils import _pytree as pytree

import gradspec as gs
from gradspec.interop.torch.aten import table
from gradspec.interop.torch.types import array_of
from interop import networks
from interop.layers import GROUPS, OTHERS, WRITES, Call, Group

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*LeafSpec:FutureWarning",  # PyTorch's, about its own code
    "ignore:Using padding='same' with even kernel lengths:UserWarning",  # about speed
)

every_network = pytest.mark.parametrize("name", networks.TORCH)


def tensors_of(result: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, Tensor)]


def run(graph: gs.Graph, arrays: Sequence[Any]) -> tuple[Any, ...]:
    """On the readable backend, which compiles nothing: the graph is what is tested here."""
    result = gs.compile(graph, backend="numpy")(*(np.asarray(a) for a in arrays))
    return result if isinstance(result, tuple) else (result,)


def assert_close(found: Sequence[Any], expected: Sequence[Tensor], slack: float = 0.0, names: Any = None) -> None:
    for ours, theirs, name in zip(found, expected, names or range(len(expected)), strict=True):
        wanted = theirs.detach().numpy()
        assert (ours.dtype, ours.shape) == (wanted.dtype, wanted.shape), name
        rounding = max(slack, 2000 * np.finfo(wanted.dtype).eps) if wanted.dtype.kind == "f" else 0.0
        np.testing.assert_allclose(ours, wanted, rtol=rounding, atol=rounding, err_msg=str(name))


def assert_agrees(module: nn.Module, inputs: Sequence[Tensor], names: Sequence[str], slack: float = 0.0) -> None:
    """The module's graph has its value and its derivatives in inputs and parameters, exported and decomposed."""
    parameters = dict(module.named_parameters())

    def function(*given: Tensor) -> list[Tensor]:
        state = dict(zip(parameters, given[len(inputs) :], strict=True))
        return tensors_of(torch.func.functional_call(module, state, given[: len(inputs)]))

    primals = [*inputs, *(p.detach() for p in parameters.values())]
    expected = function(*primals)
    directions = random_like([x for x in primals if x.is_floating_point()], 1)
    weights = random_like([y for y in expected if y.is_floating_point()], 2)
    pushed, pulled = derivatives(function, primals, directions, weights)
    smooth = [name for name, y in zip(names, expected, strict=True) if y.is_floating_point()]
    exported = torch.export.export(module, tuple(inputs), strict=False)
    for form, program in {"exported": exported, "decomposed": exported.run_decompositions()}.items():
        graph = gs.from_torch(program, params=list(parameters))
        assert_close(run(graph, primals), expected, slack, [f"{form} {name}" for name in names])
        found = run(graph.jvp(), [*primals, *directions])[len(expected) :]
        assert_close(found, pushed, slack, [f"tangent of {form} {name}" for name in smooth])
        found = run(graph.vjp(), [*primals, *weights])[len(expected) :]
        assert_close(found, pulled, slack, [f"cotangent of {form} {v.name}" for v in graph.inputs if v.type.is_float])


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


@every_network
def test_networks_have_the_values_and_derivatives_of_torch(name):
    make, shape = networks.TORCH[name]
    (x,) = random_like([torch.empty(shape, dtype=torch.float64)], 0)
    assert_agrees(make().double(), [x], [name])


@every_network
def test_networks_run_in_single_precision_on_compiled_kernels(name):
    make, shape = networks.TORCH[name]
    network, (x,) = make(), random_like([torch.empty(shape)], 0)
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


def some_of(groups: Mapping[str, Group], part: int) -> Mapping[str, Group]:
    return {name: groups[name] for name in list(groups)[part::3]}


@pytest.mark.rows(1)
@pytest.mark.parametrize(
    "groups",
    [some_of(GROUPS, 0), OTHERS, some_of(GROUPS, 1), WRITES, some_of(GROUPS, 2)],
    ids=["as exported, first", "others", "as exported, second", "writes", "as exported, third"],
)
def test_every_operator_has_the_value_and_derivatives_of_torch(groups):
    module = Together(groups).eval()
    inputs = [x for group in groups.values() for x in group.tensors()]
    names = [
        f"{group}: {layer}"
        for (group, case), results in zip(groups.items(), module(*inputs), strict=True)
        for layer, result in zip(case.layers, results, strict=True)
        for _ in tensors_of(result)
    ]
    assert_agrees(module, inputs, names, max(group.slack for group in groups.values()))


def values_of(function: Callable[..., Any], *inputs: Tensor) -> tuple[Any, ...]:
    """What the graph of a function gives."""
    return run(gs.from_torch(Call(function), *inputs), inputs)


def test_the_first_of_equal_cells_and_of_nans_wins():
    x = torch.tensor([[[1.0, 3, 3, 2, nan, 5, nan, -inf]]], dtype=torch.float64)
    values, winners = values_of(lambda x: F.max_pool1d(x, 4, return_indices=True), x)
    np.testing.assert_array_equal(values, [[[3.0, nan]]])
    assert winners.tolist() == [[[1, 4]]]  # PyTorch says 6: there the last NaN wins
    _, pulled = run(gs.from_torch(nn.MaxPool1d(4), x).vjp(), [x, torch.ones(1, 1, 2, dtype=x.dtype)])
    assert pulled.tolist() == [[[0, 1, 0, 0, 1, 0, 0, 0]]]


KINKS: dict[str, tuple[Callable[[Tensor], Tensor], list[float], list[float]]] = {
    "relu": (F.relu, [0.0], [0.0]),
    "leaky_relu": (lambda x: F.leaky_relu(x, 0.25), [0.0], [0.25]),
    "elu": (lambda x: F.elu(x, 0.5), [0.0], [0.5]),
    "abs": (torch.abs, [0.0], [0.0]),
    "clamp": (lambda x: x.clamp(-1, 1), [-1.0, 1.0], [1.0, 1.0]),
    "maximum": (lambda x: torch.maximum(x, 2 * x), [0.0], [1.5]),
    "amax": (lambda x: x.amax(0), [1.0, 1.0, 0.0], [0.5, 0.5, 0.0]),
    "max of an axis": (lambda x: x.max(0).values, [1.0, 1.0, 0.0], [1.0, 0.0, 0.0]),
    "norm": (lambda x: x.norm(), [0.0, 0.0], [0.0, 0.0]),
    "std": (lambda x: x.std(0), [1.0, 1.0], [0.0, 0.0]),
    "power": (lambda x: x**1.5, [0.0], [0.0]),
    "threshold": (lambda x: F.threshold(x, 0.5, 7.0), [0.5], [0.0]),
}
DIFFERENT = {
    "relu6": (F.relu6, [0.0, 6.0], [1.0, 1.0]),
    "hardtanh": (F.hardtanh, [-1.0, 1.0], [1.0, 1.0]),
    "hardsigmoid": (F.hardsigmoid, [-3.0, 3.0], [1 / 6, 1 / 6]),
    "hardswish": (F.hardswish, [-3.0, 3.0], [-0.5, 1.5]),
    "clamp by a tensor": (lambda x: x.clamp(min=torch.tensor(0.0)), [0.0], [0.5]),
    "clamp of a NaN": (lambda x: x.clamp(0, 1), [nan], [1.0]),
}
"""Conventions of our own, which docs/pytorch.md lists."""


@pytest.mark.parametrize("name", [*KINKS, *DIFFERENT])
def test_derivatives_at_kinks(name):
    function, at, expected = {**KINKS, **DIFFERENT}[name]
    x = torch.tensor(at)
    value, pull = torch.func.vjp(function, x)
    graph = gs.from_torch(Call(function), x)
    found = run(graph.vjp(), [x, torch.ones_like(value)])[1]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    pushed = run(graph.jvp(), [x, torch.ones_like(x)])[1]
    np.testing.assert_allclose(pushed.sum(), np.sum(expected), rtol=1e-6)
    assert np.allclose(pull(torch.ones_like(value))[0], expected) == (name in KINKS)


def test_the_padding_row_of_an_embedding_has_no_derivative_in_either_mode():
    x, n = torch.arange(6.0).reshape(3, 2), torch.tensor([2, 0, 2])
    graph = gs.from_torch(Call(lambda x, n: F.embedding(n, x, padding_idx=2)), x, n)
    assert run(graph.vjp(), [x, n, torch.ones(3, 2)])[1].tolist() == [[1, 1], [0, 0], [0, 0]]
    assert run(graph.jvp(), [x, n, torch.ones(3, 2)])[1].tolist() == [[0, 0], [1, 1], [0, 0]]


def test_comparisons_with_infinities_and_nan():
    x, y = (t.reshape(-1) for t in torch.meshgrid(*[torch.tensor([nan, -inf, 0.0, 1.0, inf])] * 2, indexing="ij"))

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return x > y, x >= y, x < y, x <= y, x == y, x != y, x.isnan(), ~(x > y) & (x != y) | (y > 0), x > 0

    for ours, theirs in zip(values_of(function, x, y), function(x, y), strict=True):
        np.testing.assert_array_equal(ours, theirs)


BYTES = torch.tensor([[3, 0, 2, 1], [7, 1, 255, 9]], dtype=torch.uint8)
LONGS = BYTES.long() - 3
HALVES = torch.tensor([[300, -500, 7, 900], [-1, 2, 400, -600]], dtype=torch.float16)
EDGES = torch.tensor([nan, inf, -inf, 0.0, 0.5, 1e-6, -3e-5, -1.0])
PLACES = torch.tensor([-1, 1])


def tall(x: Tensor) -> Tensor:
    return x.repeat(8, 2)


def stacked(x: Tensor) -> Tensor:
    square = x.repeat(4, 2)
    return torch.stack([square, square + 1, square * 2])


SEEDED = torch.Generator().manual_seed(0)
UNUSUAL: dict[str, tuple[Tensor, list[Callable[[Tensor], Any]]]] = {
    "floats": (
        EDGES,
        [
            torch.floor,
            torch.ceil,
            torch.round,
            torch.trunc,
            torch.frac,
            lambda x: 1 / (x * 0.4).round(),
            lambda x: 1 / torch.stack([x.ceil(), x.trunc()]),
        ],
    ),
    "one that is a number": (
        EDGES,
        [lambda x: torch.fmax(x, x.flip(0)), lambda x: torch.fmin(x, x.flip(0)), torch.median],
    ),
    "more floats": (EDGES, [torch.sign, torch.log1p, lambda x: F.threshold(x, 0.25, 7.0), lambda x: (x / 4) ** 65]),
    "negative floats": (
        -EDGES,
        [lambda x: x**66, lambda x: x**-65.0, torch.sign, lambda x: x.new_zeros(2).fill_(x[3])],
    ),
    "halves": (
        HALVES,
        [
            lambda x: F.layer_norm(x, (4,)),
            lambda x: F.rms_norm(x, (4,)),
            lambda x: F.group_norm(x, 2),
            lambda x: F.instance_norm(x[None]),
        ],
    ),
    "bytes": (
        BYTES,
        [
            torch.floor,
            torch.round,
            torch.erf,
            lambda x: x.min(1),
            lambda x: x.argmin(0),
            lambda x: x.amin(),
            lambda x: x**2,
            torch.sign,
        ],
    ),
    "longs": (
        LONGS,
        [
            lambda x: x**2.0,
            lambda x: x**0.0,
            lambda x: x.abs() ** 0.5,
            lambda x: x + 2**53 > 2**53,
            lambda x: x.masked_fill(x > 0, 2.0),
            lambda x: (x.cumsum(1), x.cumprod(0), x.prod(), x.prod(1), (x[0, 0] * 2**40).cumsum(0)),
            lambda x: (
                x % 3,
                x.remainder(-4),
                x.fmod(-4),
                x // 3,
                x // -2,
                (x + 20) // (x.abs() + 1),
                x.fmod(x.abs() + 1),
            ),
            lambda x: (x.short() * 2**14).cumsum(1, dtype=torch.int16),
            lambda x: torch.where(x > 0, 1, 0),
            lambda x: torch.zeros(3, 4).index_put((PLACES,), x.float()),
            lambda x: torch.zeros(3).index_put((x[0],), torch.ones(4), accumulate=True),
            lambda x: torch.var_mean(x.double(), 1),
            torch.sign,
        ],
    ),
    "bits": (
        LONGS,
        [
            lambda x: (~x, x & 3, 5 | x, x ^ x.flip(0), x.short() & x.int()),
            lambda x: (x << 2, x >> 1, x << x.flip(1), x >> x, x.to(torch.int8) << 7, 3 << (x & 7)),
        ],
    ),
    "four bits in a byte": (
        BYTES,
        [
            lambda x: (x[:, ::2] & 15) | x[:, 1::2] << 4,
            lambda x: torch.stack([x & 15, x >> 4], -1).flatten(-2).to(torch.int8) - 8,
            lambda x: torch.stack([x.view(torch.int8) << 4 >> 4, x.view(torch.int8) >> 4], -1).flatten(-2),
        ],
    ),
    "places in an order": (
        EDGES[1:],
        [
            lambda x: torch.searchsorted(torch.tensor([-1.0, 0.0, 0.0, 0.5]), x),
            lambda x: torch.searchsorted(x.sort()[0].repeat(2, 1), torch.tensor([[0.0, nan], [inf, 0.6]]), right=True),
            lambda x: torch.bucketize(x, torch.tensor([0.0, 0.5]), out_int32=True, right=True),
        ],
    ),
    "histograms": (
        EDGES,
        [
            lambda x: torch.histc(x, 4, -1, 0.5),
            lambda x: torch.histc(x[3:], 3),
            lambda x: torch.histc(x[3:4], 2),
            lambda x: torch.histc(x[:0], 3, -1, 1),
        ],
    ),
    "groups of rows": (
        HALVES / 256,
        [
            lambda x, ends=ends: [
                torch._grouped_mm(a.bfloat16(), b.bfloat16(), offs=torch.tensor(ends, dtype=torch.int32)).float()
                for a, b in ((tall(x), stacked(x)), (stacked(x), tall(x).t()), (tall(x).t(), tall(x)))
            ]
            for ends in ([8, 8, 16], [0, 8, 16])
        ],
    ),
    "loops over rows": (
        HALVES.float() / 512,
        [
            lambda x: scan(lambda c, r: (torch.tanh(c + r), c * r), x[0], x),
            lambda x: scan(lambda c, r: (c * x[0], r + c.sum()), x[1], x, reverse=True),
        ],
    ),
    "batches of rows": (
        HALVES.float() / 512,
        [
            lambda x: associative_scan(lambda a, b: a * b, x, 1, combine_mode="generic"),
            lambda x: torch.func.vmap(lambda r: r.outer(r).sin())(x),
        ],
    ),
    "written to by what is composed in C++": (HALVES.float(), [lambda x: torch.vander(x[0] / 100, 4)]),
    "distances": (HALVES.float(), [lambda x: torch.cdist(x, x + 1), lambda x: torch.cdist(x[None], x[:1], p=1.0)]),
    "quotients": (
        LONGS,
        [lambda x, mode=mode: torch.div(x, x.flip(1) * 2 - 1, rounding_mode=mode) for mode in ("trunc", "floor")],
    ),
    "booleans": (BYTES > 2, [lambda x: x + x.flip(0), lambda x: x * x.flip(1), lambda x: x > x.flip(0), lambda x: ~x]),
    "one of two": (BYTES > 2, [lambda x: x ^ x.flip(0), lambda x: torch.logical_xor(x, x.flip(1))]),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_values_at_the_edges_of_dtypes(name):
    x, functions = UNUSUAL[name]

    def function(x: Tensor) -> list[Tensor]:
        return [y for each in functions for y in tensors_of(each(x))]

    for ours, theirs in zip(values_of(function, x), function(x), strict=True):
        wanted = theirs.numpy()
        assert ours.dtype == wanted.dtype
        np.testing.assert_allclose(ours, wanted, rtol=2e-3 if x.dtype is torch.float16 else 2e-5)


def set_by_a_mask(x: Tensor) -> Tensor:
    y = x * 2
    y[x[:, 0] > 1] = 7.0
    y[y < 0] = nan
    return y


def test_cells_are_set_by_a_mask():
    x = torch.tensor([[2.0, -1.0], [1.0, -3.0], [nan, 4.0]])
    assert_close(values_of(set_by_a_mask, x), [set_by_a_mask(x)])
    graph = gs.from_torch(Call(set_by_a_mask), x)
    assert run(graph.vjp(), [x, torch.ones(3, 2)])[1].tolist() == [[0, 0], [2, 0], [2, 2]]


def test_a_zero_share_of_a_sum_is_not_looked_at():
    x = torch.full((2, 2), 3.0)
    found = values_of(lambda x: torch.addmm(torch.full((2, 2), nan), x, x, beta=0), x)
    assert_close(found, [x @ x])


def test_a_selection_ignores_what_it_does_not_select():
    x = torch.tensor([-1.0, 4.0])
    graph = gs.from_torch(Call(lambda x: torch.where(x > 0, x.sqrt(), 7.0)), x)
    value, pulled = run(graph.vjp(), [x, torch.ones(2)])
    assert value.tolist() == [7.0, 2.0]
    np.testing.assert_array_equal(pulled, [nan, 0.25])  # 0 / (2·√−1), in PyTorch too


def written_behind_a_dropout(x: Tensor) -> Tensor:
    y = x * 2
    z = F.dropout(y, 0.5, training=False)
    z += 1.0
    return y


def test_dropout_gives_the_tensor_itself_when_a_model_is_evaluated():
    x = torch.ones(2)
    assert values_of(written_behind_a_dropout, x)[0].tolist() == written_behind_a_dropout(x).tolist() == [3.0, 3.0]


def seen_through_a_view(x: Tensor) -> Tensor:
    y = x * 2
    view = y.flatten()
    y += 1.0
    return view


def test_a_view_shows_what_is_written_later():
    x = torch.ones(1, 2)
    assert values_of(seen_through_a_view, x)[0].tolist() == seen_through_a_view(x).tolist() == [3.0, 3.0]


def without_gradients(x: Tensor) -> Tensor:
    with torch.no_grad():
        frozen = x.exp()
        frozen += 1.0
    return x * x.detach() + frozen


def test_what_has_no_gradient_in_the_model_has_none_in_the_graph():
    x = torch.tensor([0.0, 1.0])
    graph = gs.from_torch(Call(without_gradients), x)
    value, pulled = run(graph.vjp(), [x, torch.ones(2)])
    assert_close([value], [without_gradients(x)])
    assert pulled.tolist() == [0.0, 1.0]


def test_detached_tensors_stay_so_in_decompositions():
    x = torch.tensor([1.0, 2.0])
    graph = gs.from_torch(Call(lambda x: torch.einsum("i,i->i", x, x.detach())), x)
    assert run(graph.vjp(), [x, torch.ones(2)])[1].tolist() == [1.0, 2.0]


def test_parts_without_gradients_are_not_lost_by_decompositions():
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = torch.addr(x.exp(), x[0], x[1])
        return torch.addr(y, x[0], x[1])

    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    value, pulled = run(gs.from_torch(Call(function), x).vjp(), [x, torch.ones(2, 2)])
    assert_close([value], [function(x)])
    assert pulled.tolist() == [[5.0, 5.0], [1.0, 1.0]]


def test_parts_without_gradients_are_not_lost_by_writes_to_shared_memory():
    def function(x: Tensor) -> Tensor:
        with torch.no_grad():
            y = x.exp()
        return y * seen_through_a_view(x)

    with pytest.raises(gs.UnsupportedError, match=r"no_grad.*forgets.*shared memory.*use detach\(\)"):
        gs.from_torch(Call(function), gs.f32[2])


def under_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", enabled=False):
        y = x.exp()
        y += 1.0
    with torch.autocast("cuda", enabled=False):
        y = y @ x
    with torch.autocast("cpu", torch.bfloat16):
        z = (y @ x).exp()
    return y * z


def test_parts_under_autocast_have_its_dtypes():
    x = torch.linspace(-1, 1, 9).reshape(3, 3)
    graph = gs.from_torch(Call(under_autocast), x)
    assert gs.bf16 in {v.dtype for node in graph.nodes for v in node.outputs}
    value, pushed = run(graph.jvp(), [x, torch.ones(3, 3)])
    expected, tangent = torch.func.jvp(under_autocast, (x,), (torch.ones(3, 3),))
    assert_close([value, pushed], [expected, tangent], 2**-6)


def test_one_tensor_for_two_operands_of_a_decomposition_is_two_operands():
    graph = gs.from_torch(Call(torch.kron), torch.ones(2, 2), torch.ones(2, 2))
    x, y = torch.tensor([[1.0, 2], [3, 4]]), torch.tensor([[5.0, 6], [7, 8]])
    assert torch.equal(graph(x, y), torch.kron(x, y))
    graph = gs.from_torch(Call(lambda x: torch.kron(x, x)), x)
    assert torch.equal(graph(x), torch.kron(x, x))


# --- what models may be, take and give --------------------------------------------------------------------------------


class Branches(nn.Module):
    """Arguments and results in containers, a tied parameter, buffers, a constant and an argument that is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3, bias=False)
        self.outer = nn.Linear(3, 3)
        self.outer.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("shift", torch.ones(3), persistent=False)
        self.constant = torch.tensor([1.0, 2.0, 3.0])

    def forward(self, pair: list[Tensor], *, scale: dict[str, Tensor], flag: bool = True, unused: Any = None) -> Any:
        y = self.outer(self.norm(self.inner(pair[0]))) + self.shift + self.constant
        return {"y": y * scale["by"] if flag else y, "none": None, "pair": (pair[1], 3), "places": torch.arange(2)}


def branches() -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    x, y = random_like([torch.empty(2, 3), torch.empty(2)], 0)
    return networks.settled(Branches)(), ([x, y],), {"scale": {"by": torch.tensor(2.0)}, "flag": True}


def test_arguments_and_results_in_containers_are_flattened():
    module, args, kwargs = branches()
    graph = gs.from_torch(module, *args, example_kwargs=kwargs)
    assert [v.name for v in graph.inputs] == ["pair_0", "pair_1", "scale_by"]
    found = run(graph, [*args[0], kwargs["scale"]["by"]])
    assert_close(found, tensors_of(module(*args, **kwargs)))


class Difference(nn.Module):
    def __init__(self):
        super().__init__()
        self.zero = nn.Parameter(torch.zeros(3))

    def forward(self, given):
        (a, b), more = given
        return a - b + more["c"] * 10 + self.zero


ONE = torch.arange(3.0)


@pytest.mark.parametrize(
    "example",
    [
        lambda module: ((ONE, ONE), {"c": ONE}),
        lambda module: ((ONE, ONE[:]), {"c": ONE.view(3)}),
        lambda module: ((ONE, module.zero), {"c": module.zero}),
        lambda module: ((ONE.numpy(), ONE.numpy()), {"c": ONE}),
        lambda module: ((gs.f32[3], gs.f32[3]), {"c": ONE}),
    ],
    ids=["one tensor", "views of one", "a parameter", "one array", "types"],
)
def test_examples_that_are_the_same_tensor_are_different_inputs(example):
    module = Difference()
    given = [np.float32(row) for row in ([1, 2, 3], [5, 7, 9], [2, 2, 1])]
    graph = gs.from_torch(module, example(module))
    assert len(graph.inputs) == 3
    assert graph(*given).tolist() == [16, 15, 4]
    graph = gs.from_torch(module, example(module), params="inputs")
    assert graph(*given, np.float32([1, 1, 1])).tolist() == [17, 16, 5]


def test_parameters_become_constants_or_inputs():
    module, args, kwargs = branches()

    def inputs(params: Any) -> list[str]:
        graph = gs.from_torch(module, *args, example_kwargs=kwargs, params=params)
        return [v.name for v in graph.inputs[3:]]

    read = ["inner.weight", "outer.bias", "norm.weight", "norm.bias", "norm.running_mean", "norm.running_var"]
    assert inputs("constants") == []
    assert inputs("inputs") == read
    assert inputs(["shift", "outer.weight"]) == ["shift", "outer.weight"]
    constants = gs.from_torch(module, *args, example_kwargs=kwargs).constants
    assert {*read[1:], "shift", "constant"} < {v.name for v in constants}


def test_tied_parameters_are_one_input():
    module, args, kwargs = branches()
    graph = gs.from_torch(module, *args, example_kwargs=kwargs, params=["inner.weight"])
    arrays = [*args[0], kwargs["scale"]["by"], module.inner.weight.detach()]
    weights = random_like([torch.empty(2, 3), torch.empty(2)], 3)
    pulled = run(graph.vjp("inner.weight"), [*arrays, *weights])[-1]
    y = module(*args, **kwargs)["y"]
    (expected,) = torch.autograd.grad(y, module.inner.weight, weights[0])
    assert_close([pulled], [expected])


def test_constants_are_copies():
    module = nn.Linear(2, 1, bias=False)
    x, graph = torch.ones(1, 2), gs.from_torch(module, gs.f32[1, 2])
    before = module(x).detach()
    with torch.no_grad():
        module.weight.zero_()
    np.testing.assert_array_equal(run(graph, [x])[0], before)


def test_the_model_is_evaluated_and_left_as_it_was():
    module = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(3), nn.Linear(3, 2))
    module[1].eval()
    x = torch.randn(4, 3)
    graph = gs.from_torch(module, x)
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert module[1].num_batches_tracked == 0
    assert_close(run(graph, [x]), [module.eval()(x)])


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
        self.last = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.frozen(self.first(x)))


def test_batch_norm_is_trained_on_request():
    module = networks.settled(Trained)().double().train()
    module.frozen.eval()
    x, direction, weights = random_like([torch.empty(4, 3, 5, dtype=torch.float64)] * 3, 0)
    names = ["first.weight", "first.bias", "frozen.weight", "last.weight"]
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    graph = gs.from_torch(module, x, params=names, training=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert [part.training for part in module.modules()] == [True, True, False, True]
    assert module.first.track_running_stats
    parameters = [module.get_parameter(name) for name in names]
    given = [x, *(p.detach() for p in parameters)]
    varying = x.clone().requires_grad_()
    expected = module(varying)
    pulled = torch.autograd.grad(expected, [varying, *parameters], weights)
    assert_close(run(graph.vjp(), [*given, weights]), [expected, *pulled])
    pushed = run(graph.jvp("x"), [*given, direction])[1]  # torch.func does not differentiate what has statistics
    np.testing.assert_allclose((pushed * weights.numpy()).sum(), (pulled[0] * direction).sum().item(), rtol=1e-9)


def test_training_is_refused_where_nothing_is_trained():
    with pytest.raises(ValueError, match=r"in evaluation mode; call model.train\(\) first"):
        gs.from_torch(nn.BatchNorm1d(3).eval(), gs.f32[4, 3], training=True)
    program = torch.export.export(nn.BatchNorm1d(3).eval(), (torch.zeros(4, 3),), strict=False)
    with pytest.raises(ValueError, match="this ExportedProgram has the mode it was exported in"):
        gs.from_torch(program, training=True)
    with pytest.raises(gs.UnsupportedError, match=r"dropout in training mode draws random numbers; call eval\(\)"):
        gs.from_torch(nn.Sequential(nn.BatchNorm1d(3), nn.Dropout()), gs.f32[4, 3], training=True)


def test_traced_modules_and_exported_ones_are_modules():
    module, x = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2)).eval(), torch.randn(1, 1, 6, 6)
    exported = torch.export.export(module, (x,), strict=False).module()
    for model in (fx.symbolic_trace(module), exported):
        assert isinstance(model, fx.GraphModule)
        assert_close(run(gs.from_torch(model, x), [x]), [module(x)])


def test_examples_may_be_types_or_arrays():
    texts = {str(gs.from_torch(nn.ReLU(), x)) for x in (torch.zeros(2), gs.f32[2], np.zeros(2, np.float32))}
    assert texts == {"graph(input: f32[2]):\n  relu : f32[2] = relu(input)\n  return relu"}


def test_dynamic_shapes_are_settled_by_examples():
    size = torch.export.Dim("size", min=2, max=9)
    dynamic = {"input": {0: size}}
    program = torch.export.export(nn.ReLU(), (torch.zeros(4, 3),), dynamic_shapes=dynamic, strict=False)
    assert gs.from_torch(program, gs.f32[7, 3]).outputs[0].type == gs.f32[7, 3]
    with pytest.raises(gs.ShapeError, match=r"dynamic shapes \(input: \[s\d+, 3\]\).*give example arguments"):
        gs.from_torch(program)


def test_examples_that_do_not_fit_a_program_are_refused():
    program = torch.export.export(nn.ReLU(), (torch.zeros(4, 3),), strict=False)
    assert gs.from_torch(program, gs.f32[4, 3]).outputs[0].type == gs.f32[4, 3]
    with pytest.raises(gs.ShapeError, match=r"for the shapes input: \[4, 3\].*arguments have \[\[7, 3\]\]"):
        gs.from_torch(program, gs.f32[7, 3])


def test_small_formats_keep_their_dtype():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2)).eval().bfloat16()
    x = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(0)).bfloat16()
    graph = gs.from_torch(module, x)
    assert {v.dtype for v in (*graph.inputs, *graph.constants, *graph.outputs)} == {gs.bf16}
    (found,) = run(graph, [x.float().numpy().astype(gs.bf16.numpy)])
    np.testing.assert_allclose(found.astype(np.float32), module(x).detach().float(), rtol=2**-6, atol=2**-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_that_small_formats_do_not_hold(dtype):
    """Factors and divisors are of float32, as in PyTorch; a term may be, or is rounded first, by device."""

    def function(x: Tensor) -> list[Tensor]:
        return [x * 3.14, 3.14 * x, x / 3.14, x + 0.1, x - 0.1, 0.1 - x, torch.where(x > 0, x + 0.1, x * 0.1)]

    x = torch.linspace(-3, 3, 499).to(dtype)
    graph, array = gs.from_torch(Call(function), x), array_of(x)
    for i, (ours, theirs) in enumerate(zip(graph(array), function(x), strict=True)):
        np.testing.assert_array_equal(ours, array_of(theirs), err_msg=str(i))
    lower, upper = gs.conformance.enclosure(graph, array)
    for low, high, wide in zip(lower, upper, function(x.float()), strict=True):
        stored = wide.to(dtype).double().numpy()
        assert np.all((low <= stored) & (stored <= high))


STORED: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax of rows": lambda x: x.softmax(1),
    "softmax of columns": lambda x: x.softmax(0),
    "log_softmax of rows": lambda x: x.log_softmax(1),
    "log_softmax of columns": lambda x: x.log_softmax(0),
    "batch_norm": lambda x: F.batch_norm(x[:40], None, None, x[40], x[41], True),
    "instance_norm": lambda x: F.instance_norm((x - 0.5)[None]),
    "layer_norm": lambda x: F.layer_norm(x, (37,), x[0], x[1]),
    "group_norm": lambda x: F.group_norm(x.reshape(2, 25, 37), 5),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
}
"""Functions of which PyTorch stores intermediate results in the dtype of the tensor, some of them."""


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_results_of_small_formats_are_evaluations_of_the_graph(dtype):
    x = torch.rand(50, 37, generator=torch.Generator().manual_seed(13)).to(dtype)  # whose deviations are rounded much
    module = Call(lambda x: [function(x) for function in STORED.values()])
    lower, upper = gs.conformance.enclosure(gs.from_torch(module, x), array_of(x))
    for name, low, high, theirs in zip(STORED, lower, upper, module(x), strict=True):
        found = theirs.double().numpy()
        assert np.all((low <= found) & (found <= high)), name
        assert np.median(high - low) < 40 * torch.finfo(dtype).eps * np.median(np.abs(found)), name


def test_functions_are_models_too():
    def scaled(x: Tensor, y: Tensor, *, factor: float) -> Tensor:
        return x @ y * factor

    x = torch.eye(2)
    graph = gs.from_torch(scaled, x, x, example_kwargs={"factor": 3.0})
    assert [v.name for v in graph.inputs] == ["x", "y"]
    assert graph(x, x).tolist() == [[3, 0], [0, 3]]
    assert gs.from_torch(torch.relu, gs.f32[2]).nodes[0].op.name == "relu"
    family = gs.from_torch(lambda x: x + 1, x, dynamic={"x": {0: "rows"}})
    assert family(torch.zeros(1, 2, dtype=torch.float64)).tolist() == [[1, 1]]


# --- refusals ---------------------------------------------------------------------------------------------------------


class Hopeless(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.lgamma(x)  # first
        for _ in range(2):
            y = torch.erfinv(y)  # twice
        y = F.dropout(y, 0.5, training=True) + torch.rand(3)
        return torch.lgamma(self.norm(y))  # second


def test_all_that_cannot_be_expressed_is_listed_with_its_places():
    with pytest.raises(gs.UnsupportedError) as caught:
        gs.from_torch(Hopeless(), gs.f32[2, 3])
    text = str(caught.value)
    assert text.startswith("the model has 4 operators that a graph cannot express:")
    places = [
        (r"aten.lgamma.default, 2 times", r"test_from_torch.py:\d+: y = torch.lgamma\(x\)  # first"),
        (r"aten.erfinv.default, 2 times", r"test_from_torch.py:\d+: y = torch.erfinv\(y\)  # twice"),
        (r"aten.dropout.default, once: dropout in training mode draws random numbers", "on the model"),
        (r"aten.rand.default, once: it draws random numbers", "F.dropout"),
        (r"second", ""),
    ]
    for operator, place in places:
        assert re.search(operator, text), text
        assert re.search(place, text), text


def test_statistics_are_not_trained():
    program = torch.export.export(nn.BatchNorm1d(3).train(), (torch.randn(4, 3),), strict=False)
    for model in (program, program.run_decompositions()):
        with pytest.raises(gs.UnsupportedError, match=r"running|changes num_batches_tracked.*in place.*model.eval\(\)"):
            gs.from_torch(model)


def adds_to_its_input(x: Tensor) -> Tensor:
    x += 1.0
    return x


INEXPRESSIBLE: dict[str, tuple[Callable[[Tensor], Tensor], Tensor, str]] = {
    "a norm": (lambda x: torch.linalg.vector_norm(x, -2), EDGES, "a norm of order -2"),
    "an index outside": (lambda x: x[PLACES + 9, PLACES], LONGS, "from 8 to 10 lies outside an axis of size 2"),
    "powers of integers": (lambda x: x.pow(x), LONGS, "one constant exponent"),
}


@pytest.mark.parametrize("name", INEXPRESSIBLE)
def test_what_would_be_wrong_is_refused(name):
    function, x, said = INEXPRESSIBLE[name]
    with pytest.raises(gs.UnsupportedError, match=said):
        gs.from_torch(Call(function), x)


@pytest.mark.filterwarnings("ignore:The tensor attributes")  # of PyTorch's, about its own module
def test_recurrent_layers_of_float32_are_made_of_other_operators():
    """PyTorch runs them whole by oneDNN, where it may."""
    module, x = nn.LSTM(3, 2, bidirectional=True).eval(), torch.rand(4, 1, 3)
    torch.testing.assert_close(gs.from_torch(module, x)(x)[0], module(x)[0])


def test_sizes_that_depend_on_values_are_refused():
    with pytest.raises(gs.ShapeError, match=r"some sizes depend on values, as those of x\[mask\] do.* torch.where"):
        gs.from_torch(Call(lambda x: x[x > 0] * 2), torch.zeros(4))


@pytest.mark.parametrize("place", [lambda x, i: x[i], lambda x, i: x[..., i], lambda x, i: x.select(0, i.item())])
def test_numbers_read_out_of_a_tensor_are_refused(place):
    with pytest.raises(gs.UnsupportedError, match=r"aten.item"):
        gs.from_torch(Call(place), torch.zeros(3, 4), torch.tensor(1))


def test_writes_that_pytorch_cannot_undo_are_refused():
    def written(x):
        x = x.clone()
        x.diagonal().add_(1)
        return x

    with pytest.raises(gs.UnsupportedError, match="in a way that PyTorch cannot undo"):
        gs.from_torch(Call(written), torch.zeros(3, 4))


def test_the_place_of_an_only_number_is_0():
    assert gs.from_torch(Call(lambda x: (x.argmax(-1), x.argmin(0))), torch.tensor(1.0))(torch.tensor(2.0)) == (0, 0)


def test_what_an_operator_is_made_of_is_named_if_it_is_not_known():
    with pytest.raises(
        gs.UnsupportedError, match=r"aten.linalg_inv.default, once: PyTorch makes it of aten.linalg_inv_ex"
    ):
        gs.from_torch(Call(torch.linalg.inv), torch.eye(2))


def test_a_result_of_another_type_than_in_pytorch_is_refused(monkeypatch):
    monkeypatch.setitem(table._ENTRIES, "exp", table.AtenEntry(lambda x: x[:1], signature(lambda x: None)))
    with pytest.raises(gs.UnsupportedError, match=r"in PyTorch its result is f32\[2\], and here it would be f32\[1\]"):
        gs.from_torch(Call(torch.exp), gs.f32[2])


def test_models_that_change_something_are_refused():
    with pytest.raises(gs.UnsupportedError, match="changes inputs_0 in place, and a graph changes nothing"):
        gs.from_torch(Call(adds_to_its_input), torch.zeros(2))
    with pytest.raises(gs.UnsupportedError, match=r"operators with effects, aten\._linalg_check_errors"):
        gs.from_torch(torch.export.export(Call(torch.linalg.inv), (torch.eye(2),)).run_decompositions())


@pytest.mark.parametrize(
    ("model", "options", "error", "said"),
    [
        ("relu", {}, TypeError, "a function of tensors is needed, not a str"),
        (nn.Linear(2, 2), {"params": "all"}, ValueError, 'params=\'all\' must be "constants", "inputs" or a list'),
        (nn.Linear(2, 2), {"params": ["w"]}, ValueError, "no parameter or buffer called w; it has weight, bias"),
        (nn.Linear(2, 2, device="meta"), {}, gs.UnsupportedError, "device meta"),
        (nn.Linear(2, 2, dtype=torch.complex64), {}, gs.DTypeError, "complex64"),
    ],
)
def test_mistakes_are_explained(model, options, error, said):
    dtype = getattr(getattr(model, "weight", None), "dtype", torch.float32)
    with pytest.raises(error, match=said):
        gs.from_torch(model, torch.zeros(2, dtype=dtype, device="meta" if "meta" in said else None), **options)


def test_a_model_that_cannot_be_captured_says_what_to_try():
    with pytest.raises(RuntimeError, match="data-dependent") as caught:
        gs.from_torch(Call(lambda x: x if x.sum() > 0 else -x), torch.ones(2))
    assert "gs.from_torch captures a model with torch.export" in caught.value.__notes__[-1]


def test_constant_indices_may_be_many():
    """As in the table of relative positions of an attention with large windows."""
    table, places = torch.arange(30.0).reshape(10, 3), torch.randint(-10, 10, (90, 90), generator=SEEDED)
    graph = gs.from_torch(Call(lambda table: (table[places], table.T[:, places])), table)
    assert len(graph.nodes) < 20
    for found, expected in zip(graph(table), (table[places], table.T[:, places]), strict=True):
        assert torch.equal(found, expected)
    g = torch.rand(90, 90, 3, generator=SEEDED)
    pulled = run(graph.vjp(), [table, g, torch.zeros(3, 90, 90)])[-1]
    np.testing.assert_allclose(pulled, torch.zeros(10, 3).index_put((places,), g, accumulate=True), rtol=1e-5)


def test_indices_of_one_axis_may_be_computed():
    graph = gs.from_torch(Call(lambda x, i: x[:, i - 1]), EDGES.reshape(2, 4)[:, 1:], torch.tensor([[1, 0], [3, 3]]))
    x, i = torch.arange(6.0).reshape(2, 3), torch.tensor([[0, 1], [2, 3]])
    assert torch.equal(graph(x, i), x[:, i - 1])


def test_the_driver_of_gpus_stays_closed(monkeypatch):
    """A process in which it is open has no copies that can use one."""
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: bool(asked.append(1)))
    function = torch.cuda.is_available
    gs.from_torch(nn.Sequential(nn.Linear(3, 2), nn.Softshrink()), gs.f32[5, 3])
    assert not asked
    assert torch.cuda.is_available is function
