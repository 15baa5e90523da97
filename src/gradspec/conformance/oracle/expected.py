"""What a call means: for each of its results, what a correct kernel may return."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.geometry import geometry_of, spelled
from gradspec.conformance.model.problem import CONVOLUTIONS, INPUTS, SELECTIONS, Array, Call
from gradspec.conformance.model.reference import reference_of
from gradspec.conformance.oracle import Meaning, meaning
from gradspec.conformance.oracle.enclosed import Enclosed
from gradspec.conformance.oracle.enclosure import enclosed_outputs
from gradspec.conformance.oracle.meaning import Bools, Decision, Floats, Selected, comparable_array, round_array
from gradspec.conformance.oracle.pool import Winners
from gradspec.conformance.oracle.tolerance import Permitted
from gradspec.domains.exact import rational
from gradspec.domains.formats import Format, format_named
from gradspec.graph.graph import Graph
from gradspec.graph.lru import LRUCache

HULL = 2.0**-20
"""How far inputs are moved, in proportion, for all derivatives that there are on either side of a kink."""
MOST_ARITHMETICS = 8


class GraphResults:
    """A graph on arrays: what every output of it may be, by the arithmetic."""

    def __init__(self, graph: Graph, arrays: list[Array]) -> None:
        self.graph, self.arrays = graph, arrays
        self._found = LRUCache[list[Enclosed]](MOST_ARITHMETICS)

    def enclosed(self, arithmetic: Arithmetic | None, spread: float = 0.0) -> list[Enclosed]:
        def find() -> list[Enclosed]:
            return enclosed_outputs(self.graph, *self.arrays, arithmetic=arithmetic, spread=spread)

        return self._found.get_or_make((arithmetic, spread), find)


class EnclosedMeaning(Meaning):
    """One output of a graph."""

    def __init__(self, results: GraphResults, place: int, is_derivative: bool = False) -> None:
        """A reference says how values are computed. Derivatives have many formulas, so theirs may be reassociated."""
        self.results, self.place, self.is_derivative = results, place, is_derivative
        self.type = results.graph.outputs[place].type
        self.shape = self.type.shape

    def enclosed(self, arithmetic: Arithmetic | None = None) -> Enclosed:
        if self.is_derivative:
            own = arithmetic or Arithmetic.of(self.type.dtype.name)
            arithmetic = replace(own, reassociated=True, variance_by_moments=True)
        return self.results.enclosed(arithmetic)[self.place]

    @cached_property
    def hull(self) -> tuple[Floats, Floats]:
        """Between which all derivatives near the inputs lie, and so all that there are at a kink."""
        return self.results.enclosed(None, HULL)[self.place].ends

    def _numbers(self, array: Array) -> Array:
        return array.astype(np.float64) if self.type.is_float else array

    def _default_arithmetic(self, array: Array) -> Arithmetic:
        return Arithmetic.of(self.type.dtype.name if self.type.is_float else "f64")

    def rounded(self, format: str | Format) -> Floats:
        centre = np.asarray(self.enclosed().centre, np.float64)
        return round_array(centre, format_named(format)).reshape(self.shape)

    def permitted_at(self, place: int, arithmetic: Arithmetic) -> Permitted:
        found = self.enclosed(arithmetic)
        centre, low, high = (np.asarray(part).ravel()[place] for part in (found.centre, *found.ends))
        if not np.isfinite(found.radius.ravel()[place]):
            return Permitted(None, None, True, True, True)
        if not np.isfinite(centre):
            return Permitted(None, None, centre == np.inf, centre == -np.inf, bool(np.isnan(centre)))
        return Permitted(rational(low.item()), rational(high.item()), False, False, False)

    def _decide(self, got: Array, arithmetic: Arithmetic) -> Decision:
        found = self.enclosed(arithmetic)
        centre = np.asarray(found.centre).ravel()
        low, high = (np.asarray(end).ravel() for end in found.ends)
        with np.errstate(invalid="ignore"):
            inside: Bools = (low <= got) & (got <= high)
            alike = (got == centre) | (np.isnan(got) & np.isnan(centre)) if self.type.is_float else got == centre
        unknown = ~np.isfinite(found.radius.ravel())
        decision = Decision.of(np.asarray(np.where(np.isfinite(centre), inside, alike) | unknown))
        decision.wide = found.weak.ravel()
        return decision


def meanings(call: Call) -> dict[str, Meaning | None]:
    """The meaning of every result of a call of a reference."""
    graph = reference_of(call.problem).program(call.problem, call.mode)
    results = GraphResults(graph, [np.asarray(array) for array in call.arguments()])
    names = call.problem.results(call.mode)
    return {name: EnclosedMeaning(results, i, call.mode != "value") for i, name in enumerate(names)}


# --- operators --------------------------------------------------------------------------------------------------------

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
    window = geometry_of(call.problem).window
    if call.problem.op in SELECTIONS and window is not None:
        won = Winners(comparable_array(call.named()["x"]), window, call.problem.keepdims)
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
