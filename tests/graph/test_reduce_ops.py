"""Reductions, softmax and losses against PyTorch, in value and in derivatives of three orders; special values."""

from dataclasses import dataclass
from math import inf, nan
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

import gradspec as gs
from gradspec.graph.graph import check

RANDOM = np.random.default_rng(3)
CLOSE = {"rtol": 1e-12, "atol": 1e-14}  # a few hundred roundings of float64 on numbers near 1


@dataclass(frozen=True)
class Peer:
    """An operator of ours on float inputs of some shapes, and PyTorch's."""

    id: str
    ours: Any
    theirs: Any
    shapes: tuple[tuple[int, ...], ...]

    def arrays(self):
        return [RANDOM.normal(size=shape) for shape in self.shapes]


def row(id, ours, theirs, *shapes):
    return Peer(id, ours, theirs, shapes)


def losses(labels, shape):
    ours = np.array(labels)
    return [
        row(
            f"cross_entropy {reduction} of {shape}",
            lambda x, r=reduction: gs.cross_entropy(x, ours, r),
            lambda x, r=reduction: functional.cross_entropy(x, torch.tensor(labels), reduction=r),
            shape,
        )
        for reduction in ("mean", "sum", "none")
    ]


ROWS = [
    row("sum", lambda x: gs.sum(x), lambda x: torch.sum(x), (2, 3)),
    row("sum kept", lambda x: gs.sum(x, (0, -1), True), lambda x: torch.sum(x, (0, -1), True), (2, 3, 2)),
    row("mean", lambda x: gs.mean(x), lambda x: torch.mean(x), (2, 3)),
    row("mean of rows", lambda x: gs.mean(x, -1), lambda x: torch.mean(x, -1), (2, 3)),
    row("mean kept", lambda x: gs.mean(x, (2, 0), True), lambda x: torch.mean(x, (2, 0), True), (2, 3, 2)),
    row("softmax", lambda x: gs.softmax(x), lambda x: torch.softmax(x, -1), (2, 4)),
    row("softmax in the middle", lambda x: gs.softmax(x, 1), lambda x: torch.softmax(x, 1), (2, 3, 2)),
    row("log_softmax", lambda x: gs.log_softmax(x), lambda x: torch.log_softmax(x, -1), (2, 4)),
    row("log_softmax first", lambda x: gs.log_softmax(x, 0), lambda x: torch.log_softmax(x, 0), (3, 2)),
    *(
        row(
            f"mse_loss {reduction}",
            lambda x, y, r=reduction: gs.mse_loss(x, y, r),
            lambda x, y, r=reduction: functional.mse_loss(x, y, reduction=r),
            (2, 3),
            (2, 3),
        )
        for reduction in ("mean", "sum", "none")
    ),
    *losses([2, 0, 2, 1], (4, 3)),
    *losses(2, (4,)),
    *losses([[[0], [1]], [[2], [2]]], (2, 3, 2, 1)),
]

CASES = pytest.mark.parametrize("case", ROWS, ids=lambda case: case.id)


def energy(function):
    """A scalar with derivatives of every order, from any function."""
    return lambda *xs: (lambda y: (y * y * y).sum() if isinstance(y, torch.Tensor) else gs.sum(y * y * y))(
        function(*xs)
    )


@CASES
def test_values_are_torchs(case):
    arrays = case.arrays()
    right = case.theirs(*map(torch.tensor, arrays)).numpy()
    graph = gs.trace(case.ours, *(gs.f64[s] for s in case.shapes))
    for got in (case.ours(*arrays), graph(*arrays)):
        assert got.shape == right.shape
        assert np.allclose(got, right, **CLOSE)


@CASES
def test_derivatives_are_torchs(case):
    arrays, tangents, more = case.arrays(), case.arrays(), case.arrays()
    primals, directions, others = (tuple(map(torch.tensor, data)) for data in (arrays, tangents, more))
    theirs, every = energy(case.theirs), tuple(range(len(arrays)))
    gradient = torch.func.grad(theirs, every)
    pushed = torch.func.jvp(theirs, primals, directions)[1]
    hessian = lambda *xs: torch.func.jvp(gradient, xs, directions)[1]  # noqa: E731
    right = [pushed, *gradient(*primals), *hessian(*primals), *torch.func.jvp(hessian, primals, others)[1]]

    graph = gs.trace(energy(case.ours), *(gs.f64[s] for s in case.shapes))
    names, count = [v.name for v in graph.inputs], len(arrays)
    reverse = check(graph.vjp())
    second = check(reverse.jvp(names))
    third = check(second.jvp(names))
    seed = np.ones(())
    got = [
        graph.jvp()(*arrays, *tangents)[1],
        *reverse(*arrays, seed)[1:],
        *second(*arrays, seed, *tangents)[-count:],
        *third(*arrays, seed, *tangents, *more)[-count:],
    ]
    for a, b in zip(got, right, strict=True):
        assert np.allclose(a, b.numpy(), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("sum", ([[1.5, 2.0], [3.0, 4.0]], 0, True)),
        ("mean", ([[1.5, 2.0], [3.0, 4.0]], -1)),
        ("softmax", ([[1.5, 2.0], [3.0, -4.0]], 0)),
        ("log_softmax", ([[1.5, 2.0], [3.0, -4.0]], 1)),
        ("mse_loss", ([1.5, 2.0], [3.0, 4.0], "sum")),
        ("cross_entropy", ([[1.5, 2.0], [3.0, 4.0]], [1, 0])),
        ("cross_entropy", ([[1.5, 2.0], [3.0, 4.0]], [0, 0], "none")),
    ],
)
def test_specification_and_operator_take_the_same_arguments(name, args):
    spec, operator = getattr(gs.spec, name)(*args), getattr(gs, name)(*args)
    assert (spec.shape, operator.dtype) == (operator.shape, np.float32)  # floats of Python, which have no dtype
    assert np.allclose(np.reshape(spec.cells, spec.shape), operator, rtol=1e-6, atol=1e-6)


# --- special values ---------------------------------------------------------------------------------------------------

BIG = 1e308
SPECIAL = {
    "minus infinity": [0.0, -inf, 1.0],
    "minus infinity but one": [-inf, 3.0, -inf],
    "minus infinity only": [-inf, -inf, -inf],
    "plus infinity": [0.0, inf, 1.0],
    "both infinities": [-inf, inf, 0.0],
    "nan": [0.0, nan, 1.0],
    "huge": [BIG, BIG, -BIG],
    "huge and apart": [-BIG, BIG, 0.0],
    "tiny": [5e-324, 0.0, -0.0],
    "beyond the range of exp": [-800.0, 0.0, 800.0],
}


@pytest.mark.parametrize("cells", SPECIAL.values(), ids=SPECIAL)
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_special_values_are_torchs(name, cells):
    """In the kernel and in the specification, on floats."""
    right = getattr(torch, name)(torch.tensor(cells, dtype=torch.float64), -1).numpy()
    for got in (getattr(gs, name)(np.array(cells)), np.array(getattr(gs.spec, name)(cells).cells)):
        assert np.allclose(got, right, equal_nan=True, **CLOSE)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_derivatives_beside_minus_infinity_are_finite(name):
    x, g = np.array([0.5, -inf, 1.0]), np.array([1.0, 0.0, 2.0])
    right = torch.func.vjp(lambda t: getattr(torch, name)(t, -1), torch.tensor(x))[1](torch.tensor(g))[0].numpy()
    got = gs.trace(getattr(gs, name), gs.f64[3]).vjp()(x, g)[1]
    assert np.isfinite(got).all()
    assert np.allclose(got, right, **CLOSE)


def test_an_impossible_label_costs_infinity_and_says_how_to_leave():
    logits = np.array([[-inf, 0.0, 0.0]])
    value, gradient = gs.trace(lambda x: gs.cross_entropy(x, [0]), gs.f64[1, 3]).vjp()(logits, np.ones(()))
    assert value == inf
    assert gradient.tolist() == [[-1.0, 0.5, 0.5]]


def test_huge_logits_cost_their_difference():
    assert gs.cross_entropy(np.float32([[1e30, 0]]), [1]) == np.float32(1e30)
    assert gs.cross_entropy(np.float32([[1e30, 0]]), [0]) == 0


def test_small_floats_accumulate_in_float32():
    ones = np.float16([2048, *[1] * 4])
    assert gs.sum(ones) == 2052
    assert gs.mean(np.full(1000, 60000, np.float16)) == 60000
    many = np.zeros(70000, np.float16)  # more numbers than the largest float16
    share = gs.trace(gs.mean, gs.f16[70000]).vjp()(many, np.float16(2))[1]
    assert np.all(share == np.float16(2 / 70000))


def test_sums_of_nothing_are_zero():
    assert gs.sum(np.zeros((0, 2)), 0).tolist() == [0.0, 0.0]
    assert gs.sum(np.zeros((2, 0))) == 0.0
    assert gs.mean(np.zeros((0, 2)), 1).shape == (0,)
    assert gs.spec.sum([[], []], 1).tolist() == [0, 0]


# --- other meanings ---------------------------------------------------------------------------------------------------


def test_exact_names_what_can():
    graph = gs.trace(gs.softmax, gs.f64[2])
    with pytest.raises(gs.UnsupportedError, match=r"gs\.ball"):
        gs.evaluate(graph, [1, 2], domain=gs.exact)


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_intervals_contain_the_numbers_and_little_else(name):
    """An axis of width wᵢ moves the logarithm by wᵢ, and the logarithm of the sum by the largest width at most."""
    low, high = np.array([0.5, -1.25, 3.0]), np.array([1.0, -1.0, 3.5])
    function = getattr(gs.spec, name)
    for narrow, sharp in zip(
        function(gs.interval.tensor(low)).cells, function(gs.ball(200).tensor(low)).cells, strict=True
    ):
        assert narrow.lo <= sharp.mid() <= narrow.hi
        assert narrow.width < 1e-14
    for wide, width in zip(function(gs.interval.tensor(low, high)).cells, high - low, strict=True):
        spread = wide.width if name == "log_softmax" else np.log(wide.hi / wide.lo)
        assert spread <= width + max(high - low) + 1e-12


# --- labels -----------------------------------------------------------------------------------------------------------

LOGITS = np.array([[1.0, 2.0, 3.0], [0.5, 0.0, -1.0]])


@pytest.mark.parametrize("label", [3, -1, -100])
@pytest.mark.parametrize("run", ["eager", "graph", "vjp", "exact", "spec"])
def test_a_label_outside_the_classes_is_named(label, run):
    labels = np.array([0, label])
    graph = gs.trace(gs.cross_entropy, gs.f64[2, 3], gs.i64[2])
    calls = {
        "eager": lambda: gs.cross_entropy(LOGITS, labels),
        "graph": lambda: graph(LOGITS, labels),
        "vjp": lambda: graph.vjp()(LOGITS, labels, np.ones(())),
        "exact": lambda: gs.evaluate(graph, LOGITS, labels, domain=gs.ball(64)),
        "spec": lambda: gs.spec.cross_entropy(LOGITS, labels),
    }
    with pytest.raises(ValueError, match=rf"the label {label} names none of the 3 classes; labels go from 0 to 2"):
        calls[run]()


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int32, np.int64])
def test_labels_are_integers_of_any_width(dtype):
    assert gs.cross_entropy(LOGITS, np.array([2, 1], dtype)) == gs.cross_entropy(LOGITS, [2, 1])


def test_labels_have_no_tangent():
    graph = gs.trace(gs.cross_entropy, gs.f64[2, 3], gs.i64[2])
    assert [v.name for v in graph.jvp().inputs] == ["logits", "labels", "dlogits"]
    assert len(graph.vjp().outputs) == 2
    with pytest.raises(TypeError, match="integers have no derivative"):
        graph.jvp("labels")


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (lambda x: gs.sum(x, 2), gs.ShapeError, "sum: 2 is not an axis of a tensor of rank 2; use -2 to 1"),
        (lambda x: gs.sum(x, (0, -2)), gs.ShapeError, "names an axis twice"),
        (lambda x: gs.mean(x, True), gs.ShapeError, "mean: True is not an axis"),
        (lambda x: gs.mean(gs.slice(x, (0, 0), (0, 3)), 0), gs.ShapeError, "nothing has no mean"),
        (lambda x: gs.softmax(x, 2), gs.ShapeError, "softmax: 2 is not an axis"),
        (lambda x: gs.log_softmax(gs.sum(x)), gs.ShapeError, "a scalar has none"),
        (lambda x: gs.mse_loss(x, gs.sum(x, 0)), gs.ShapeError, r"shape \(2, 3\) and the target \(3,\)"),
        (lambda x: gs.mse_loss(x, x, "average"), ValueError, "reduction='average' is not known"),
        (lambda x: gs.cross_entropy(x, [0, 0], None), ValueError, "reduction=None is not known"),
        (lambda x: gs.cross_entropy(x, [0, 0, 0]), gs.ShapeError, r"labels of shape \(3,\) .* axis 1.* \(2,\)"),
        (lambda x: gs.cross_entropy(x, [[0], [0]]), gs.ShapeError, r"labels of shape \(2, 1\)"),
        (lambda x: gs.cross_entropy(x, [0.0, 1.0]), gs.DTypeError, "labels are integers"),
        (lambda x: gs.cross_entropy(gs.sum(x), 0), gs.ShapeError, "an axis of classes is needed"),
        (lambda x: gs.cross_entropy(gs.slice(x, (0, 0), (0, 3)), np.zeros(0, int)), gs.ShapeError, "has no mean"),
    ],
)
def test_refused_with_a_reason(function, error, message):
    with pytest.raises(error, match=message):
        gs.trace(function, gs.f32[2, 3])


def test_integers_are_not_averaged():
    for function in (gs.mean, gs.softmax):
        with pytest.raises(gs.DTypeError, match="floating-point"):
            function(np.array([1, 2]))
    with pytest.raises(gs.DTypeError, match="divides"):
        gs.spec.mean(np.array([1, 2]))


@pytest.mark.parametrize("backend", ["cpu", "numpy"])
def test_running_sums_begin_at_zero(backend):
    """As the specification has it: 0 + −0 is 0."""
    x = np.float32([-0.0, -0.0, 1.0])
    graph = gs.trace(lambda x: gs.cumsum(x, 0), gs.f32[3])
    expected = gs.evaluate(graph, x, domain=gs.ieee("f32")).tolist()
    found = gs.compile(graph, backend=backend)(x)
    assert np.signbit(found).tolist() == [np.signbit(float(v)) for v in expected] == [False] * 3
