"""LeNet-5 and ResNet-18, compiled: their values and gradients against PyTorch, and the laws of compiled graphs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import gradspec as gs
import lenet5
import resnet18
from gradspec.graph import tree

# --- the same networks in PyTorch, under the same names ---------------------------------------------------------------


class LeNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5, padding=2), nn.Conv2d(6, 16, 5)
        self.hidden1, self.hidden2, self.out = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, 10)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.conv1(x)), 2)
        x = functional.max_pool2d(functional.relu(self.conv2(x)), 2).flatten(1)
        return self.out(functional.relu(self.hidden2(functional.relu(self.hidden1(x)))))


class Block(nn.Module):
    def __init__(self, narrow, wide, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(narrow, wide, 3, stride, 1, bias=False), nn.BatchNorm2d(wide)
        self.conv2, self.bn2 = nn.Conv2d(wide, wide, 3, 1, 1, bias=False), nn.BatchNorm2d(wide)
        self.downsample = nn.Identity()
        if narrow != wide:
            self.downsample = nn.Sequential(nn.Conv2d(narrow, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x):
        y = self.bn2(self.conv2(functional.relu(self.bn1(self.conv1(x)))))
        return functional.relu(y + self.downsample(x))


class ResNet(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)
        self.layer1 = nn.Sequential(Block(64, 64, 1), Block(64, 64, 1))
        self.layer2 = nn.Sequential(Block(64, 128, 2), Block(128, 128, 1))
        self.layer3 = nn.Sequential(Block(128, 256, 2), Block(256, 256, 1))
        self.layer4 = nn.Sequential(Block(256, 512, 2), Block(512, 512, 1))
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = functional.max_pool2d(functional.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(functional.adaptive_avg_pool2d(x, 1).flatten(1))


# --- cases ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Network:
    """A network with random parameters and data in float64, and the same one in PyTorch."""

    params: Any
    statistics: dict[str, np.ndarray]
    apply: Callable[..., Any]
    model: nn.Module
    shape: tuple[int, ...]

    @property
    def x(self):
        return np.random.default_rng(2).standard_normal(self.shape)

    @property
    def labels(self):
        return np.arange(self.shape[0]) * 3 % 10

    def logits(self, x, params, dtype=np.float64):
        """Of variables or arrays in ``dtype``, to which the statistics are rounded."""
        return self.apply(x, params, {name: a.astype(dtype) for name, a in self.statistics.items()})

    def loss(self, params, x, labels):
        dtype = tree.leaves(params)[0].dtype
        return gs.cross_entropy(self.logits(x, params, getattr(dtype, "numpy", dtype)), labels)

    def theirs(self, dtype):
        """PyTorch's loss and gradients, by name."""
        model = self.model.to(dtype)
        model.zero_grad()
        loss = functional.cross_entropy(model(torch.tensor(self.x, dtype=dtype)), torch.tensor(self.labels))
        loss.backward()
        return loss.item(), {name: p.grad.numpy().astype(np.float64) for name, p in model.named_parameters()}


def flat(params, prefix=""):
    """Nested dicts as one, under names with dots."""
    found = {}
    for key, value in params.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def loaded(model, params, statistics):
    """The model in float64 with these numbers; every name of its own must be there, and no other."""
    state = {name: torch.tensor(a) for name, a in (flat(params) | statistics).items()}
    counts = {name: t for name, t in model.state_dict().items() if name.endswith("num_batches_tracked")}
    model.double().eval().load_state_dict(state | counts)
    return model


def trained(random, initial):
    """Numbers such as training leaves: nothing is 0 or 1 any more."""
    spread = {"running_var": (0.5, 2.0), "running_mean": (-0.3, 0.3), "bias": (-0.3, 0.3)}

    def moved(name, array):
        low, high = spread.get(name.rpartition(".")[2], (0.7, 1.3))
        drawn = random.uniform(low, high, array.shape)
        return drawn if array.ndim == 1 else array * drawn

    return {name: moved(name, array) for name, array in initial.items()}


def lenet(seed=1, batch=3):
    random = np.random.default_rng(seed)
    params = {layer: trained(random, p) for layer, p in lenet5.initial(random, np.float64).items()}
    model = loaded(LeNet(), params, {})
    return Network(params, {}, lambda x, p, s: lenet5.logits(x, p), model, (batch, 1, 28, 28))


def resnet(seed=1, shape=(2, 3, 64, 48)):
    random = np.random.default_rng(seed)
    params, statistics = (trained(random, part) for part in resnet18.initial(random, 10, np.float64))
    return Network(params, statistics, resnet18.logits, loaded(ResNet(10), params, statistics), shape)


NETWORKS = {"LeNet-5": lenet, "ResNet-18": resnet}


@pytest.fixture(scope="module", params=NETWORKS.values(), ids=NETWORKS)
def network(request):
    return request.param()


def in_dtype(params, dtype):
    return tree.map_leaves(lambda a: a.astype(dtype), params)


def types_of(values):
    named = {np.dtype(np.float32): gs.f32, np.dtype(np.float64): gs.f64, np.dtype(np.int64): gs.i64}
    return tree.map_leaves(lambda a: named[a.dtype][a.shape], values)


# --- against PyTorch --------------------------------------------------------------------------------------------------


def test_gradients_agree_with_pytorch(network):
    """In float64 what is left is rounding, ten digits below the largest number of each gradient."""
    value, gradients = gs.value_and_grad(network.loss)(network.params, network.x, network.labels)
    right, theirs = network.theirs(torch.float64)
    assert value == pytest.approx(right, rel=1e-12)
    ours = flat(gradients)
    assert ours.keys() == theirs.keys()
    for name, gradient in theirs.items():
        assert np.abs(ours[name] - gradient).max() <= 1e-11 * np.abs(gradient).max(), name


CLEAR = {"LeNet-5": lambda: lenet(batch=1), "ResNet-18": lambda: resnet(21, (1, 3, 32, 32))}


@pytest.mark.parametrize("name", CLEAR)
def test_gradients_in_float32_are_as_good_as_those_of_pytorch(name):
    """The distance from the gradients in float64, for each parameter: rounding errors of two programs are of one size.

    Relu and max pooling make a gradient jump where a rounding error changes a sign or a winner, so these networks stay
    clear of that at every cell, by more than rounding can move it.
    """
    network = CLEAR[name]()
    assert clearance(network) > 1e-5
    _, exact = network.theirs(torch.float64)
    _, theirs = network.theirs(torch.float32)
    single = in_dtype(network.params, np.float32)
    ours = flat(gs.value_and_grad(network.loss)(single, network.x.astype(np.float32), network.labels)[1])
    for name, gradient in exact.items():
        error, allowed = (np.linalg.norm(found[name] - gradient) for found in (ours, theirs))
        assert error <= 4 * allowed + 1e-7 * np.linalg.norm(gradient), name


def clearance(network):
    """How far the network is from its kinks, relative to the largest number of each layer: the smallest distance of a
    relu's operand from 0, and of a window's two largest cells from each other.
    """
    found = []

    def relu(x):
        found.append((x.abs().min() / x.abs().max()).item())
        return x.clamp(min=0)

    def max_pool(x, kernel, stride=None, padding=0):
        padded = functional.pad(x, (padding,) * 4, value=-torch.inf)
        windows = padded.unfold(2, kernel, stride or kernel).unfold(3, kernel, stride or kernel).flatten(-2)
        best, second = windows.topk(2).values.unbind(-1)
        gaps = (best - second)[best > 0]  # all the others have no gradient
        found.append((gaps.min() / x.abs().max()).item())
        return best

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(functional, "relu", relu)
        patch.setattr(functional, "max_pool2d", max_pool)
        network.model.double()(torch.tensor(network.x))
    return min(found)


def test_forward_mode_agrees_with_pytorch(network):
    random = np.random.default_rng(4)
    direction = tree.map_leaves(lambda a: random.standard_normal(a.shape), network.params)
    dx = random.standard_normal(network.shape)
    _, tangent = gs.jvp(network.logits, (network.x, network.params), (dx, direction))
    model = network.model.double()
    fixed = dict(model.named_buffers())

    def theirs(x, params):
        return torch.func.functional_call(model, params | fixed, (x,))

    tensors = [{name: torch.tensor(a) for name, a in flat(part).items()} for part in (network.params, direction)]
    _, right = torch.func.jvp(theirs, (torch.tensor(network.x), tensors[0]), (torch.tensor(dx), tensors[1]))
    np.testing.assert_allclose(tangent, right.detach().numpy(), rtol=1e-10, atol=1e-10 * right.abs().max().item())


# --- compiled ---------------------------------------------------------------------------------------------------------


def value(network, dtype):
    """Parameters are constants, as where a network is only used."""
    params = in_dtype(network.params, dtype)
    x = network.x.astype(dtype)
    return gs.trace(lambda x: network.logits(x, params, dtype), types_of(x)), [x]


def open_value(network, dtype):
    """Parameters are inputs, as where it is trained."""
    arguments = (network.x.astype(dtype), in_dtype(network.params, dtype))
    return gs.trace(lambda x, p: network.logits(x, p, dtype), *types_of(arguments)), tree.leaves(arguments)


def gradient(network, dtype):
    arguments = (in_dtype(network.params, dtype), network.x.astype(dtype), network.labels)
    return gs.trace(gs.value_and_grad(network.loss, (0, 1)), *types_of(arguments)), tree.leaves(arguments)


def tangent(network, dtype):
    graph, arrays = open_value(network, dtype)
    return graph.jvp(), [*arrays, *(a[::-1].copy() for a in arrays)]


PROGRAMS = {f.__name__: f for f in (value, open_value, gradient, tangent)}
programs = pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def results(run, arrays):
    found = run(*arrays)
    return found if isinstance(found, tuple) else (found,)


@programs
@dtypes
def test_no_step_is_left_to_numpy(network, program, dtype):
    graph, _ = program(network, dtype)
    plan = gs.compile(graph).plan
    assert [line for line in str(plan).splitlines() if "numpy" in line] == []


@programs
def test_compiled_kernels_agree_with_numpy(network, program):
    """In float64, to ten digits of the largest number of each result."""
    graph, arrays = program(network, np.float64)
    compiled, reference = (results(gs.compile(graph, backend=b), arrays) for b in ("cpu", "numpy"))
    for got, right in zip(compiled, reference, strict=True):
        assert np.abs(got - right).max() <= 1e-11 * np.abs(right).max()


@programs
def test_threads_do_not_change_a_bit(network, program):
    graph, arrays = program(network, np.float32)
    one, *others = (results(gs.compile(graph, threads=n), arrays) for n in (1, 2, 4, 2))
    for other in others:
        for got, right in zip(other, one, strict=True):
            np.testing.assert_array_equal(got, right)


def test_constants_and_inputs_give_the_same_bits(network):
    """Weights that are known early may be packed early; what is computed with them is the same."""
    (fixed,), (given,) = (
        results(gs.compile(g), a) for g, a in (value(network, np.float32), open_value(network, np.float32))
    )
    np.testing.assert_array_equal(fixed, given)


def test_a_sample_does_not_depend_on_its_batch(network):
    graph, (x,) = value(network, np.float32)
    params = in_dtype(network.params, np.float32)
    alone = gs.compile(lambda x: network.logits(x, params, np.float32), types_of(x[:1]))
    np.testing.assert_array_equal(np.concatenate([alone(x[i : i + 1]) for i in range(len(x))]), gs.compile(graph)(x))


def test_every_norm_of_resnet_can_be_folded():
    """Twenty of them. What changes is rounding, and every law above holds for what is left."""
    graph, arrays = value(resnet(), np.float32)
    folded = gs.fold_batch_norm(graph)
    assert [sum(node.op.name == "batch_norm" for node in g.nodes) for g in (graph, folded)] == [20, 0]
    run = gs.compile(folded, threads=1)
    assert "numpy" not in str(run.plan)
    before, after = gs.compile(graph)(*arrays), run(*arrays)
    assert np.abs(after - before).max() <= 1e-5 * np.abs(before).max()
    np.testing.assert_array_equal(gs.compile(folded, threads=4)(*arrays), after)
