"""A recording is the program that torch.export captures, at every size, or it is refused."""

import subprocess
import sys
from functools import cache, partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import gradspec as gs
import gradspec.gallery
from gradspec.conformance.model.reference import free_axes
from gradspec.conformance.targets.reference.loading import reference_from
from gradspec.interop.torch.capture import as_model
from gradspec.interop.torch.reader import read, read_recorded
from gradspec.interop.torch.reference import torch_tracer
from gradspec.spec.errors import UnsupportedError

pytestmark = pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # PyTorch's, about its own code
REFERENCES = {name: f for name, f in vars(gradspec.gallery).items() if hasattr(f, "inputs")}


def recorded(function, *types, params="constants", training=False):
    return read_recorded(as_model(function), types, params, training)


def require_same(ours, theirs):
    assert str(ours) == str(theirs)
    for a, b in zip(ours.constants.values(), theirs.constants.values(), strict=True):
        np.testing.assert_array_equal(a, b, strict=True)


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", REFERENCES)
def test_a_recording_of_a_reference_is_what_is_exported(name):
    reference = reference_from(REFERENCES[name], None)
    types = reference.types[0]
    sizes = [
        free.resized(types, free.size(types) + free.step * n) for free in free_axes(reference, types) for n in (1, 4)
    ]
    for given in [*reference.types, *sizes[:3]]:
        require_same(recorded(REFERENCES[name], *given), read(as_model(REFERENCES[name]), given))


def of_parity(x):
    return functional.pad(x, (0, x.shape[1] % 2)).unflatten(1, (-1, 2)).amax(-1)


def over_time(x):
    state, states = torch.zeros(x.shape[1]), []
    for t in range(x.shape[0]):
        state = 0.5 * state + x[t]
        states.append(state)
    return torch.stack(states) if states else x


def by_halves(x):
    half = x.shape[1] // 2
    return torch.cat([-x[:, half:], x[:, :half]], 1) / x.shape[1] ** 0.5


OF_SIZES = {
    "a branch": lambda x: torch.relu(x) if x.shape[0] > 8 else x.neg(),
    "a branch on two sizes": lambda x: x.T if x.shape[0] == x.shape[1] else x + 1,
    "a loop": over_time,
    "a number made of sizes": lambda x: x * (1.0 / (x.shape[0] * x.shape[1] + 1)),
    "a parity": of_parity,
    "halves": by_halves,
    "reshape to −1": lambda x: x.reshape(-1, 1, *x.shape[1:]).expand(-1, 3, -1),
    "a slice from the end": lambda x: x[-1:, ...] - x[:, -2:].sum(-1, keepdim=True),
    "places": lambda x: x * torch.arange(x.shape[1]) + torch.ones(x.shape).cumsum(0),
    "a mask": lambda x: x.masked_fill(torch.ones(x.shape[0], x.shape[1]).tril(-1) == 0, -torch.inf),
    "a size that may be 1": lambda x: x + torch.ones(1, x.shape[1]) * x.sum(0, keepdim=True),
    "squeeze": lambda x: x.squeeze(0).sum(-1),
    "pieces": lambda x: sum(piece.sum() for piece in x.split(3, 0)),
    "a product with itself": lambda x: x @ x.mT + torch.eye(x.shape[0]),
}
SIZES = [(1, 1), (1, 5), (2, 3), (5, 5), (7, 8), (8, 7), (9, 2), (16, 16), (3, 4), (0, 4)]


@pytest.mark.rows(len(OF_SIZES))
@pytest.mark.parametrize("name", OF_SIZES)
def test_a_recording_is_of_its_own_sizes(name):
    for shape in SIZES:
        theirs = read(as_model(OF_SIZES[name]), [gs.f32[shape]])
        require_same(recorded(OF_SIZES[name], gs.f32[shape]), theirs)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.last.weight = self.first.weight
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x):
        return self.last(torch.relu(self.first(x))) * self.scale


MODULES = {
    "tied": Tied,
    "normalised": lambda: nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.Dropout(), nn.ReLU()),
    "an encoder": lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True),
    "attention": lambda: SelfAttention(),
}


class SelfAttention(nn.MultiheadAttention):
    def __init__(self):
        super().__init__(4, 2)

    def forward(self, x):
        return super().forward(x, x, x)[0]


@pytest.mark.rows(len(MODULES))
@pytest.mark.parametrize("name", MODULES)
def test_a_recording_of_a_module_is_what_is_exported(name):
    torch.manual_seed(0)
    module = MODULES[name]()
    given = gs.f32[2, 4, 5, 5] if name == "normalised" else gs.f32[3, 2, 4]
    for params in ("constants", "inputs"):
        require_same(recorded(module, given, params=params), read(module, [given], params=params))
    assert all(part.training for part in module.modules())


def test_a_model_that_trains_keeps_its_mode():
    module = nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.0)).train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    require_same(recorded(module, gs.f32[4, 3], training=True), read(module, [gs.f32[4, 3]], training=True))
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def under_autocast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x @ x


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(1)
        return x + self.seen


W = torch.ones(3)


def without_gradients(x):
    with torch.no_grad():
        y = x * 2
    return x * y


REFUSED = {
    "a number": lambda x: x * x[0, 0].item(),
    "numbers": lambda x: x * x.tolist()[0][0],
    "an array": lambda x: x * float(x.numpy().sum()),
    "an address": lambda x: x * (x.data_ptr() % 2),
    "a branch": lambda x: x if x.sum() > 0 else -x,
    "a branch that is never taken": lambda x: x if torch.equal(x, x + 1) else -x,
    "a size that numbers decide": lambda x: x * x[x > 1].shape[0],
    "a piece that numbers decide": lambda x: x * x.tensor_split(torch.ones(1, dtype=torch.int64))[0].shape[0],
    "cells that are chosen": lambda x: x[x > 1],
    "places that are counted": lambda x: torch.repeat_interleave(x, torch.zeros(3, dtype=torch.int64), 0),
    "a comparison within": lambda x: x * torch.linalg.matrix_rank(x),
    "writing": lambda x: x.clone().add_(1),
    "writing through a view": lambda x: torch.zeros_like(x)[0].copy_(x[0]),
    "a constant": lambda x: x * torch.tensor([1.0, 2.0, 3.0]),
    "a part without gradients": without_gradients,
    "a part in another dtype": under_autocast,
    "a condition": lambda x: torch.cond(x.sum() > 2, torch.neg, torch.relu, (x,)),
    "a constant that is asked for": lambda x: x if W.sum() > 0 else -x,
    "a derivative": torch.func.grad(lambda x: x.square().sum()),
    "a batch": torch.vmap(lambda row: row.sum() * row),
    "a tensor's own data": lambda x: x * x.data,
    "another device": lambda x: x * torch.ones(3, device="meta"),
    "a result that is no number": lambda x: (x, torch.device("cpu")),
    "a buffer that changes": Counting(),
}


@pytest.mark.rows(len(REFUSED))
@pytest.mark.parametrize("name", REFUSED)
def test_what_a_recording_cannot_say_is_refused(name):
    with pytest.raises((UnsupportedError, RuntimeError, TypeError, NotImplementedError)):
        recorded(REFUSED[name], gs.f32[3, 3])


@pytest.mark.rows(4)
@pytest.mark.parametrize("name", ["a part without gradients", "a constant", "writing", "a batch"])
def test_what_is_refused_is_exported(name):
    given = (gs.f32[3, 3],)
    require_same(torch_tracer(REFUSED[name], "constants")(given), read(as_model(REFUSED[name]), given))


@cache
def kept_mask(tokens):
    return torch.ones(tokens, tokens).tril()


def test_tensors_that_a_function_keeps_have_numbers():
    def masked(x):
        return x @ kept_mask(x.shape[0])

    given, x = (gs.f32[3, 3],), torch.eye(3)
    require_same(torch_tracer(masked, "constants")(given), read(as_model(masked), given))
    assert torch.equal(masked(x), torch.ones(3, 3).tril())


class Lazy(nn.Module):
    """It keeps what its first call makes, and does something that no recording says after it."""

    def __init__(self):
        super().__init__()
        self.kept = {}

    def forward(self, x):
        return without_gradients(x @ (self.kept.get(3) or self.kept.setdefault(3, [torch.ones(3, 3).tril()]))[0])


def test_a_module_that_is_refused_is_left_as_it_was():
    module, given = Lazy(), (gs.f32[3, 3],)
    require_same(torch_tracer(module, "constants")(given), read(Lazy(), given))
    assert not module.kept


def test_a_model_knows_that_it_is_exported():
    def aware(x):
        return x.neg() if torch.compiler.is_compiling() and torch.compiler.is_exporting() else x.exp()

    require_same(recorded(aware, gs.f32[3]), read(as_model(aware), [gs.f32[3]]))
    assert not torch.compiler.is_compiling()


def test_arguments_are_called_what_export_calls_them():
    def in_words(input, LeftScale):  # noqa: N803
        return input * LeftScale

    for function, count in (((lambda *rows: rows[0] @ rows[1]), 2), (in_words, 2), (partial(torch.clamp, min=0.0), 1)):
        types = [gs.f32[3, 3]] * count
        require_same(recorded(function, *types), read(as_model(function), types))


def test_no_compiler_is_loaded():
    program = """
import sys
import gradspec.gallery
from gradspec.conformance.targets.reference.loading import reference_from
for name in ("attention", "moe", "cross_entropy", "gated_delta_rule"):
    reference_from(getattr(gradspec.gallery, name), None)
print("torch._dynamo" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
