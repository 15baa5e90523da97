"""What a call means: for each of its results, what a correct kernel may return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.model.attributes import spelled
from gradspec.conformance.model.geometry import anatomy
from gradspec.conformance.model.problem import CONVOLUTIONS, INPUTS, SELECTIONS, Array, Call
from gradspec.conformance.oracle import Meaning, meaning
from gradspec.conformance.oracle.meaning import Selected, comparable_array
from gradspec.conformance.oracle.pool import Winners
from gradspec.conformance.oracle.reference import meanings

Meanings: TypeAlias = dict[str, Meaning | None]
"""By the names of ``Problem.results``; None where no theorem says how far a kernel may stray."""


def expected(call: Call) -> Meanings:
    """The meaning of every result of a call.

    >>> from gradspec.conformance.model.problem import Problem
    >>> problem = Problem("max_pool", 1, ((4,),), {"kernel_size": (2,)})
    >>> y, indices = expected(Call(problem, "value", (np.float32([1, 5, 7, 7]),))).values()
    >>> y.rounded("f32").tolist(), indices.rounded("f64").tolist()
    ([5.0, 7.0], [1.0, 2.0])
    """
    return meanings(call) if call.problem.is_reference else _MODES[call.mode](call)


def _value(call: Call) -> Meanings:
    window = anatomy(call.problem).window
    if call.problem.op in SELECTIONS and window is not None:
        won = Winners(comparable_array(call.inputs[0]), window, call.problem.keepdims)
        return {"y": won.values(), "indices": won.indices()}
    return {"y": meaning(call.problem.op, *call.inputs, **spelled(call.problem))}


def _along(call: Call) -> Meaning:
    """The derivative at the inputs along the directions."""
    named = dict(zip(call.problem.differentiable, call.directions, strict=True))
    tangents = [named.get(name) for name in INPUTS[call.problem.op] if name != "indices"]
    result: Meaning = meaning(f"{call.problem.op}_jvp", *call.inputs, *tangents, **spelled(call.problem))
    return result


def _vjp(call: Call) -> Meanings:
    found = meaning(f"{call.problem.op}_vjp", *call.inputs, call.cotangent, **spelled(call.problem))
    names = [name for name in INPUTS[call.problem.op] if name != "indices"]
    every = dict(zip(names, found if isinstance(found, tuple) else (found,), strict=True))
    return {f"grad_{name}": every[name] for name in call.problem.differentiable}


def _second(call: Call) -> Meanings:
    """The derivative of ``⟨v, VJP(inputs, g)⟩`` by the inputs and by ``g``; by ``g`` it is the JVP along ``v``."""
    by_input = _CURVED.get(call.problem.op, _flat)(call)
    return {**{f"second_{name}": found for name, found in by_input.items()}, "second_g": _along(call)}


def _flat(call: Call) -> Meanings:
    """Linear maps and selections, whose choice is a constant of differentiation."""
    named = call.named()
    return {name: _zeros(named[name]) for name in call.problem.differentiable}


def _bilinear(call: Call) -> Meanings:
    """``⟨v, VJP⟩ = T(v_x, w, g) + T(x, v_w, g) + ⟨v_b, Σg⟩``, T the form of convolution, linear in each argument."""
    x, weight, bias = call.inputs
    v = dict(zip(call.problem.differentiable, call.directions, strict=True))

    def gradients(at_x: Array | None, at_weight: Array | None) -> Any:
        return meaning(f"{call.problem.op}_vjp", at_x, at_weight, bias, call.cotangent, **spelled(call.problem))

    found: Meanings = {"x": gradients(x, v["weight"])[0], "weight": gradients(v["x"], weight)[1]}
    return found if bias is None else {**found, "bias": _zeros(bias)}


def _zeros(like: Array) -> Meaning:
    return Selected(np.zeros(like.shape))


_CURVED: dict[str, Callable[[Call], Meanings]] = {
    **dict.fromkeys(CONVOLUTIONS, _bilinear),
    "smooth_max_pool": lambda call: dict.fromkeys(call.problem.differentiable),
}

_MODES: dict[str, Callable[[Call], Meanings]] = {
    "value": _value,
    "jvp": lambda call: {"dy": _along(call)},
    "vjp": _vjp,
    "second": _second,
}
