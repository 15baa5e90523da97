"""What users of other libraries try first: an error that says what to write here."""

import inspect
import re

import ml_dtypes
import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec.graph.hints import ARGUMENTS, CALLED, METHODS

MODULE = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
X = torch.zeros(1, 3, 8, 8)
FLOAT8 = torch.zeros(2).to(torch.float8_e4m3fn)


def traced(function, type=gs.f32[3]):
    return lambda: gs.trace(function, type)


TRIED = {
    "trace of a module": (lambda: gs.trace(MODULE, gs.f32[X.shape]), TypeError, "gs.from_torch(module"),
    "trace of a module and a tensor": (lambda: gs.trace(MODULE, X), TypeError, "gs.from_torch(module"),
    "compile of a module": (lambda: gs.compile(MODULE, X), TypeError, "gs.from_torch(module"),
    "grad of a module": (lambda: gs.grad(MODULE)(X), TypeError, "gs.from_torch(module"),
    "trace of a number": (lambda: gs.trace(3, gs.f32[3]), TypeError, "a function of gs operators, not int"),
    "a tensor for a type": (lambda: gs.trace(gs.relu, X), TypeError, "that of the array is gs.f32[1, 3, 8, 8]"),
    "an array for a type": (lambda: gs.trace(gs.relu, np.zeros(2, bool)), TypeError, "is gs.boolean[2]"),
    "a tuple of arguments": (lambda: gs.from_torch(MODULE, (X,)), TypeError, "gs.from_torch(model, *arguments)"),
    "PyTorch on a variable": (traced(torch.relu), TypeError, "gs.from_torch(module"),
    "NumPy on a variable": (traced(lambda x: np.concatenate([x, x])), TypeError, "apply functions of gs"),
    "an array of a variable": (traced(np.asarray), TypeError, "apply functions of gs"),
    "a number of a variable": (traced(float, gs.f32[()]), TypeError, "apply functions of gs"),
    "astype": (traced(lambda x: x.astype(np.float64)), AttributeError, "gs.convert(x, gs.f64)"),
    "view": (traced(lambda x: x.view(3, 1)), AttributeError, "gs.reshape(x, shape)"),
    "NumPy's function": (traced(np.exp), TypeError, "np.exp computes with arrays, and x: f32[3] has no value"),
    "NumPy's maximum": (traced(lambda x: np.maximum(x, 0)), TypeError, "gs.maximum(x, ...)"),
    "NumPy's sum": (traced(np.add.reduce), TypeError, "gs.add(x, ...)"),
    "a root as a power": (traced(lambda x: x**0.5), TypeError, "gs.sqrt(x) is the square root"),
    "an inverse": (traced(lambda x: x**-1), TypeError, "1 / x the inverse"),
    "a power of two": (traced(lambda x: 2**x), TypeError, "gs.exp(x * log(base))"),
    "a power of an array": (traced(lambda x: np.float32([2]) ** x), TypeError, "np.power computes with arrays"),
    "a power": (lambda: gs.pow(X, 2), AttributeError, "gs.mul(x, x), or x ** n of a variable, here"),
    "save": (lambda: gs.save(MODULE), AttributeError, "gs.Graph.save(path)"),
    "check": (lambda: gs.check_kernel(max), AttributeError, "gs.testing.check_kernel(kernel)"),
    "a forgotten return": (traced(lambda x: None), TypeError, "returned None, not a variable"),
    "bounds of a module": (lambda: gs.bounds(MODULE, X, X), TypeError, "bounds needs a graph, such as gs.trace"),
    "bounds of a function": (lambda: gs.bounds(gs.relu, X, X), TypeError, "bounds needs a graph"),
    "a proof of a module": (lambda: gs.verify.robust(MODULE, X, 0, 1), TypeError, "gs.from_torch(module, *examples)"),
    "the exact value of a function": (
        lambda: gs.evaluate(gs.relu, X, domain=gs.exact),
        TypeError,
        "evaluate needs a graph",
    ),
    "a maximum": (traced(lambda x: x.max()), AttributeError, "gs.maximum(a, b), or max_pool over windows"),
    "a method": (traced(lambda x: x.sum()), AttributeError, "gs.sum(x, ...)"),
    "an odd method": (traced(lambda x: x.frobnicate()), AttributeError, "operators are functions of gs"),
    "branch": (traced(lambda x: x if x else -x), TypeError, "gs.where(condition, a, b)"),
    "branch on a comparison": (traced(lambda x: x if x > 0 else -x), TypeError, "gs.where"),
    "branch on the other side": (traced(lambda x: x if np.float32(0) <= x else -x), TypeError, "gs.where"),
    "a tensor of another dtype": (
        lambda: gs.compile(gs.relu, gs.f32[3])(torch.zeros(3, dtype=torch.float64)),
        gs.DTypeError,
        "gs.convert(x, gs.f32)",
    ),
    "booleans wanted": (
        lambda: gs.compile(lambda c: gs.where(c, 1.0, 0.0), gs.boolean[3])(np.zeros(3)),
        gs.DTypeError,
        "gs.convert(x, gs.boolean)",
    ),
    "two dtypes": (lambda: gs.add(np.zeros(3), X[0, 0, 0, :3]), gs.DTypeError, "by gs.convert"),
    "dim": (lambda: gs.sum(X, dim=1), TypeError, "sum has no argument 'dim'; write axis="),
    "dim of a variable": (traced(lambda x: gs.softmax(x, dim=0)), TypeError, "write axis="),
    "keepdim": (lambda: gs.mean(X, axis=0, keepdim=True), TypeError, "write keepdims="),
    "kernel_shape": (lambda: gs.max_pool2d(X, kernel_shape=2), TypeError, "write kernel_size="),
    "axes": (lambda: gs.sum(X, axes=1), TypeError, "write axis="),
    "an odd argument": (lambda: gs.relu(X, inplace=True), TypeError, "no argument 'inplace'; it has x"),
    "cat": (lambda: gs.cat([X, X]), AttributeError, "gs.concat(arrays, axis)"),
    "float8 as a dtype": (lambda: gs.float8_e4m3fn, AttributeError, "are gs.f8_e4m3, which others call e4m3fn"),
    "float8 of PyTorch": (
        lambda: gs.relu(FLOAT8),
        gs.DTypeError,
        "f8_e4m3 is for storage; compute in another",
    ),
    "float8 of NumPy": (lambda: gs.relu(np.zeros(2, ml_dtypes.float8_e5m2)), gs.DTypeError, "f8_e5m2 is for storage"),
    "float8 as an example": (
        lambda: gs.from_torch(torch.nn.ReLU(), FLOAT8),
        gs.UnsupportedError,
        "f8_e4m3 is for storage",
    ),
}


@pytest.mark.parametrize(("attempt", "error", "hint"), TRIED.values(), ids=TRIED)
def test_the_error_says_what_to_write(attempt, error, hint):
    with pytest.raises(error, match=re.escape(hint)):
        attempt()


def test_a_model_that_takes_a_tuple_is_given_one():
    class First(torch.nn.Module):
        def forward(self, pair):
            return pair[0] - pair[1]

    assert gs.from_torch(First(), (X, X))(X + 3, X).tolist() == (X + 3).tolist()


@pytest.mark.parametrize("convert", [torch.nn.Module.double, torch.nn.Module.half, lambda m: m.to(torch.bfloat16)])
def test_a_module_keeps_the_dtypes_of_its_graph(convert):
    module = gs.to_torch(gs.from_torch(MODULE, X))
    with pytest.raises(gs.DTypeError, match=r"computes in f32.*gs.to_torch\(gs.from_torch\(model.to\(torch\."):
        convert(module)
    assert module.float().to("cpu")(X).dtype == torch.float32  # nothing was changed


def test_every_hint_names_what_there_is():
    """A name in the table is what ``gs`` has, or None for what it does not make; a method is one of its functions."""
    for written in filter(None, CALLED.values()):
        assert hasattr(gs, re.match(r"\w+", written)[0]), written
    assert all(callable(getattr(gs, name)) for name in METHODS)
    known = {name for function in map(gs.__getattr__, METHODS) for name in inspect.signature(function).parameters}
    known |= set(inspect.signature(gs.conv2d).parameters) | set(inspect.signature(gs.max_pool2d).parameters)
    known |= {name for f in (gs.concat, gs.cross_entropy) for name in inspect.signature(f).parameters}
    assert known.issuperset(here for names in ARGUMENTS.values() for here in names)


def test_names_that_are_not_there_stay_so():
    assert not hasattr(gs, "cat")
    assert not hasattr(gs, "__wrapped__")
    with pytest.raises(AttributeError, match=r"has no attribute 'max_pol'$") as caught:
        gs.max_pol  # noqa: B018
    assert (caught.value.name, caught.value.obj) == ("max_pol", gs)  # from which Python guesses what was meant
