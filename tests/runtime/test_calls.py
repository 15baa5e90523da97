"""Operators declare their operands, and only refusals lead a call to another path."""

from typing import Any

import numpy as np
import pytest

import gradspec as gs
from gradspec.graph.builder import Builder
from gradspec.graph.ir import Operand
from gradspec.ops.pointwise import scale
from gradspec.runtime import calls
from gradspec.runtime.calls import ParameterRole, cache_calls, parameter_roles

OPERATORS = [name for name in dir(gs) if getattr(getattr(gs, name), "__module__", "").startswith("gradspec.ops.")]
X = np.float32([[1, 2], [3, 4]])


@pytest.fixture(autouse=True)
def no_cached_calls():
    calls._calls.clear()


def named(role):
    return {name for operator in OPERATORS for name, r in parameter_roles(getattr(gs, operator)).items() if r is role}


def test_every_operator_declares_its_operands():
    operands = {
        "a",
        "b",
        "bias",
        "condition",
        "count",
        "grid",
        "indices",
        "input",
        "labels",
        "logits",
        "q",
        "running_mean",
    }
    operands |= {"running_var", "scale", "source", "target", "tensors", "weight", "x"}
    assert named(ParameterRole.OPERAND) == operands
    assert named(ParameterRole.ARRAYS) == {"xs", "scale", "zero_point"}
    assert not named(ParameterRole.ATTRIBUTE) & operands


def test_only_the_declaration_makes_an_operand():
    """A parameter of any other type, ``Any`` too, is an attribute: 2.0 stays a number."""
    seen = []

    def scaled(x: "Operand", factor: "Any") -> "Any":
        seen.append(factor)
        return scale(x, factor)

    assert parameter_roles(scaled) == {"x": ParameterRole.OPERAND, "factor": ParameterRole.ATTRIBUTE}
    assert cache_calls(scaled)(X, 2.0).tolist() == (2 * X).tolist()
    assert seen == [2.0]


def test_an_operator_without_operands_is_refused():
    def scaled(x: "Any", factor: "float") -> "Any":
        return scale(x, factor)

    with pytest.raises(TypeError, match=r"scaled has no operand among .*annotate its operands as Operand"):
        cache_calls(scaled)


def test_an_array_in_the_place_of_an_attribute_is_refused_as_such():
    assert gs.reshape(X, (np.int64(4),)).tolist() == [1, 2, 3, 4]
    with pytest.raises(gs.ShapeError, match=r"array\(\[4\]\), a ndarray; give an int"):
        gs.reshape(X, (np.array([4]),))


def test_a_refusal_speaks_of_the_arrays():
    with pytest.raises(gs.ShapeError, match=r"array of shape \(2, 2\)"):
        gs.max_pool(X, (3, 3))


@pytest.mark.parametrize("error", [TypeError, KeyError, AttributeError, ValueError])
def test_an_error_of_our_own_is_not_taken_for_a_refusal(monkeypatch, error):
    def build(*_, **__):
        raise error("a bug")

    monkeypatch.setattr(Builder, "build", build)
    with pytest.raises(error, match="a bug"):
        gs.relu(X)
