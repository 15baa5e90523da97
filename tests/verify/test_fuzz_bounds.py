"""The fuzzer of bounds finds nothing, and finds what is wrong."""

import numpy as np
import pytest

import gradspec as gs
from gradspec.ops.box import BoundArithmetic
from verify import fuzz_bounds as fuzz

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of what overflows


def test_a_few_networks():
    tally = fuzz.fuzz_bounds(1, count=5)
    assert tally.failures == [], str(tally)
    assert tally.networks == 5


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(2, 6))
def test_many_networks(seed):
    tally = fuzz.fuzz_bounds(seed, count=20)
    assert tally.failures == [], str(tally)
    assert tally.networks == 20


@pytest.mark.exhaustive
def test_networks_have_all_operators():
    steps = {step for number in range(600) for step in fuzz.network(number).steps}
    assert steps == {*fuzz.UNARY, *fuzz.BINARY}


def test_networks_follow_from_their_numbers():
    for number in range(20):
        net, same, shorter = fuzz.network(number), fuzz.network(number), fuzz.network(number, 1)
        assert str(net.graph) == str(same.graph)
        assert net.steps[:1] == shorter.steps
        for (kind, low, high, points), other in zip(net.boxes, same.boxes, strict=True):
            assert kind == other[0]
            assert all(np.array_equal(a, b) for a, b in zip(points, other[3], strict=True))
            assert all((low <= p).all() and (p <= high).all() for p in points)
            assert {p.dtype for p in points} == {net.graph.inputs[0].dtype.numpy}


def of(function, x, *others):
    """A network of one box, from its first point to its last."""
    points = tuple(np.asarray(p).astype(np.float16).reshape(1, 1, -1) for p in (x, *others))
    graph = gs.trace(function, gs.f16[points[0].shape])
    return fuzz.Network(0, "f16", graph, (), (("box", points[0], points[-1], points),))


def wrong(net, how):
    tally = fuzz.BoundsTally()
    fuzz.attempt(net, tally, [how], libraries=False)
    return tally.failures


EXP = gs.exp, [0.3, 1.1, 2.7, 4.9]
SQUARES = lambda x: gs.clamp(x * x - x * x, -1.0, 1.0), [250.0], [300.0]
BROKEN = {
    "storage": (lambda a, stored: 0.0, EXP, "is not in"),
    "overflow": (lambda a, format_: np.inf, SQUARES, "nan"),
}


@pytest.mark.rows(len(BROKEN))
@pytest.mark.parametrize("name", BROKEN)
def test_what_is_left_out_is_found(name, monkeypatch):
    instead, network, said = BROKEN[name]
    for method in ("boxes", "crown"):
        assert wrong(of(*network), (method, "any")) == []
    monkeypatch.setattr(BoundArithmetic, name, instead)
    assert said in wrong(of(*network), ("boxes", "any"))[0]


def test_real_numbers_are_compared_with_balls(monkeypatch):
    net = of(lambda x: gs.exp(x) * 3.0, [0.3, 1.1], [0.4, 1.3])
    assert wrong(net, ("boxes", "real")) == []
    monkeypatch.setattr(fuzz.gs, "evaluate", lambda graph, x, domain: domain.tensor(np.full(x.shape, 1000.0)))
    assert "is not in" in wrong(net, ("boxes", "real"))[0]


def test_the_command(capsys):
    assert fuzz.main(["--seed", "3", "--count", "1"]) == 0
    assert "0 outside" in capsys.readouterr().out
