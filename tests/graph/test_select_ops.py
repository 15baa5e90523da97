"""Comparisons and the choice by them: NaN, infinities, enclosures, derivatives of what is not chosen, agreement."""

from math import inf, nan

import numpy as np
import pytest
import torch

import gradspec as gs
from gradspec.domains import Interval

FLOATS = {"f16": torch.float16, "bf16": torch.bfloat16, "f32": torch.float32, "f64": torch.float64}
VALUES = [0.0, -0.0, 1.0, -1.0, 2.0, inf, -inf, nan]
RELATIONS = {"greater": torch.gt, "less": torch.lt, "equal": torch.eq}


@pytest.mark.parametrize("name", RELATIONS)
@pytest.mark.parametrize("dtype", [gs.f16, gs.bf16, gs.f32, gs.f64], ids=str)
def test_every_pair_compares_as_in_torch(name, dtype):
    a, b = (v.ravel() for v in np.meshgrid(VALUES, VALUES))
    theirs = RELATIONS[name](*(torch.tensor(v, dtype=FLOATS[dtype.name]) for v in (a, b))).tolist()
    assert getattr(gs, name)(a.astype(dtype.numpy), b.astype(dtype.numpy)).tolist() == theirs
    if name != "less":
        assert getattr(gs.spec, name)(a.tolist(), b.tolist()).tolist() == theirs


def test_integers_compare_beyond_what_doubles_hold():
    a, b = np.array([2**63 - 1, 2**53 + 1]), np.array([2**63 - 2, 2**53])
    assert gs.greater(a, b).tolist() == [True, True]
    assert gs.equal(a, b).tolist() == [False, False]


@pytest.mark.parametrize("domain", [gs.interval, gs.ball(60)], ids=repr)
def test_enclosures_decide_or_are_refused(domain):
    wide = hull(domain, 1, 2)
    below, above, inside, at_end = (gs.spec.Tensor((1,), [domain.scalar(v)]) for v in (0.5, 2.5, 1.5, 2))
    assert gs.spec.greater(wide, below).tolist() == [True]
    assert gs.spec.greater(wide, above).tolist() == [False]
    assert gs.spec.equal(wide, below).tolist() == [False]
    assert gs.spec.equal(inside, inside).tolist() == [True]
    for relation in (gs.spec.greater, gs.spec.equal):
        with pytest.raises(gs.AmbiguityError, match="may compare either way; give narrower enclosures"):
            relation(wide, inside)
        with pytest.raises(gs.AmbiguityError, match="may compare either way"):
            relation(inside, wide)
    with pytest.raises(gs.AmbiguityError, match="may compare either way"):
        gs.spec.equal(wide, at_end)


def hull(domain, low, high):
    if domain is gs.interval:
        return gs.spec.Tensor((1,), [Interval(float(low), float(high))])
    return gs.spec.Tensor((1,), [gs.spec.scalar.hull(domain.scalar(low), domain.scalar(high))])


def test_what_is_not_chosen_takes_no_part():
    a, b, condition = np.array([1.0, nan, inf]), np.array([nan, 2.0, 3.0]), np.array([True, False, False])
    value, pullback = gs.vjp(lambda a, b: gs.where(condition, a, b), a, b)
    da, db = pullback(np.array([5.0, 6.0, inf]))
    assert value.tolist() == [1.0, 2.0, 3.0]
    assert (da.tolist(), db.tolist()) == ([5.0, 0.0, 0.0], [0.0, 6.0, inf])
    assert gs.spec.where(condition, a, b).tolist() == [1.0, 2.0, 3.0]


def test_numbers_take_the_dtype_of_what_they_stand_beside():
    graph = gs.trace(lambda c, x: (gs.where(c, x, 0.0), gs.where(c, 1.0, 0.0)), gs.boolean[2], gs.f16[2])
    assert [v.dtype for v in graph.outputs] == [gs.f16, gs.f32]


REFUSED = {
    "condition": (lambda x: gs.where(x, x, x), gs.DTypeError, "give booleans, as greater and equal do"),
    "dtypes": (lambda x: gs.where(gs.greater(x, 0.0), x, np.zeros(3)), gs.DTypeError, "one dtype"),
    "shapes": (lambda x: gs.where(gs.greater(x, 0.0), x, np.float32([1, 2])), gs.ShapeError, "do not broadcast"),
    "order of booleans": (lambda x: gs.greater(gs.greater(x, 0.0), True), gs.DTypeError, "greater needs numbers"),
}


@pytest.mark.parametrize(("function", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_has_no_meaning_is_refused(function, error, message):
    with pytest.raises(error, match=message):
        gs.trace(function, gs.f32[3])
