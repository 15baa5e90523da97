"""Numbers for references: regimes in which nothing rounds or everything does, and special ones among them.

Those at the kinks and branches of a reference are found by walking back from each of them to the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gradspec.conformance.cases.numbers import Numbers
from gradspec.conformance.model.case import CheckCase
from gradspec.conformance.model.problem import FLOATS, Array, Call, Problem, Shape
from gradspec.conformance.model.reference import Reference, array_types, classes, reference_of, room
from gradspec.conformance.model.values import draw_values
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node
from gradspec.runtime.compiled import compile


class ReferenceDrawing:
    """The arrays of a case by name."""

    def __init__(self, case: CheckCase, rng: np.random.Generator) -> None:
        self.case, self.rng, self.reference, self.problem = case, rng, reference_of(case.problem), case.problem
        self.types = array_types(case.problem, case.mode)

    def arrays(self) -> dict[str, Array]:
        floats = [name for name, t in self.types.items() if t.is_float]
        made = {name: self._regular(name, floats) for name in floats}
        made |= {name: self._whole(name) for name, t in self.types.items() if not t.is_float}
        if self.reference.draw is not None:
            given = self.reference.draw(self.rng, self.reference.types_of(self.problem))
            made |= dict(zip(self.problem.inputs, given, strict=False))
        else:
            kind, _, which = (self.case.special or "").partition(" ")
            if kind == "kink":
                made, _ = at_kink(self.reference, self.problem, made, int(which), self.rng)
            elif kind:
                SPECIALS[kind](self, made, [name for name in floats if made[name].size])
            made |= {
                name: draw_values(text, made[name], room(self.problem, name), self.rng)
                for name, text in self.reference.values.items()
            }
        return {name: made[name] for name in self.types}

    def _numbers(self, name: str) -> Numbers:
        return Numbers(self.rng, self.types[name].dtype.name)

    def _regular(self, name: str, floats: Sequence[str]) -> Array:
        numbers, shape = self._numbers(name), self.types[name].shape
        if self.case.regime == "impulse":  # in one of the arrays; the others have all their bits
            return _impulse(numbers, shape, chosen=floats[self.case.seed % len(floats)] == name)
        return np.asarray(REGIMES[self.case.regime](numbers, shape))  # a single number is an array, too

    def _whole(self, name: str) -> Array:
        t = self.types[name]
        if t.dtype.name == "bool":
            return np.asarray(self.rng.random(t.shape) < 0.7)
        if self.case.regime == "impulse":
            return np.full(t.shape, self.rng.integers(classes(self.problem, name)), t.dtype.numpy)
        return self.rng.integers(0, classes(self.problem, name), t.shape).astype(t.dtype.numpy)


# --- regimes ----------------------------------------------------------------------------------------------------------


def _impulse(numbers: Numbers, shape: Shape, chosen: bool = True) -> Array:
    full = numbers.full(shape)
    if not chosen:
        return full
    return np.asarray(np.where(numbers.rng.random(shape) < 0.1, numbers.powers(shape), 0).astype(numbers.type))


def _cancelling(numbers: Numbers, shape: Shape) -> Array:
    """Neighbours of opposite signs and nearly one magnitude."""
    full = numbers.full(shape, 3, 5)
    flat = full.reshape(-1)
    pairs = len(flat) // 2
    flat[1 : 2 * pairs : 2] = -flat[: 2 * pairs : 2]
    some = numbers.rng.random(flat.shape) < 0.2
    flat[some] = (flat[some] * numbers.type.type(1.25)).astype(numbers.type)
    return full


def _offset(numbers: Numbers, shape: Shape) -> Array:
    """Numbers that differ little from a large one: what is computed of their squares has lost their differences."""
    far = np.ldexp(1.0, min(12, numbers.format.precision - 3))
    return np.asarray(far + numbers.full(shape).astype(np.float64), numbers.type)


def _make_scaled(exponent: Callable[[Numbers], int]) -> Callable[[Numbers, Shape], Array]:
    def make(numbers: Numbers, shape: Shape) -> Array:
        top = exponent(numbers)
        return numbers.full(shape, top - 4, top)

    return make


REGIMES: dict[str, Callable[[Numbers, Shape], Array]] = {
    "small": lambda numbers, shape: numbers.small(shape, 3, 0.8, -int(numbers.rng.integers(2))),
    "rounding": lambda numbers, shape: numbers.full(shape),
    "normal": lambda numbers, shape: numbers.rng.standard_normal(shape).astype(numbers.type),
    "impulse": _impulse,
    "large": _make_scaled(lambda numbers: 8 if numbers.dtype != "f16" else 5),
    "positive": lambda numbers, shape: np.abs(numbers.full(shape)),
    # Of all, ``exp`` underflows where it may, and zeros of padding are larger.
    "negative": lambda numbers, shape: -np.abs(numbers.full(shape, *((4, 5) if numbers.dtype == "f16" else (7, 8)))),
    "cancelling": _cancelling,
    "offset": _offset,
    "tiny": _make_scaled(lambda numbers: -12 if numbers.dtype != "f16" else -6),
    "huge": _make_scaled(lambda numbers: int(np.log2(float(numbers.format.largest))) // 3),
}
"""How most numbers are drawn."""

# --- special numbers --------------------------------------------------------------------------------------------------


def _put_special(
    drawn: ReferenceDrawing, arrays: dict[str, Array], names: Sequence[str], values: Callable[[Numbers], Array]
) -> None:
    """Into a few cells of one array."""
    if not names:
        return
    name = names[drawn.case.seed % len(names)]
    flat, found = arrays[name].reshape(-1), values(drawn._numbers(name))
    places = drawn.rng.permutation(flat.size)[: len(found)]
    flat[places] = found[: len(places)]


def _ties(drawn: ReferenceDrawing, arrays: dict[str, Array], names: Sequence[str]) -> None:
    """Few different numbers, in the inputs alone."""
    kind = drawn.case.seed % 3
    for name in (name for name in names if name in drawn.problem.inputs):
        x = arrays[name]
        levels = drawn.rng.integers(-1, 2, x.shape) if kind else np.full(x.shape, drawn.rng.integers(-1, 2))
        x[...] = levels.astype(x.dtype)


def _signed_zero(drawn: ReferenceDrawing, arrays: dict[str, Array], names: Sequence[str]) -> None:
    for name in names:
        flat = arrays[name].reshape(-1)
        zeros = drawn.rng.random(flat.size) < 0.3
        zeros[:2] = True
        signs = np.where(drawn.rng.random(flat.size) < 0.5, -0.0, 0.0)
        flat[zeros] = signs[zeros].astype(flat.dtype)


def _subnormal(drawn: ReferenceDrawing, arrays: dict[str, Array], names: Sequence[str]) -> None:
    for name in names[drawn.case.seed % len(names) :][:1] if names else ():
        flat = arrays[name].reshape(-1)
        few = drawn.rng.random(flat.size) < 0.5
        few[:1] = True
        flat[few] = drawn._numbers(name).subnormal((int(few.sum()),))


def _masked(drawn: ReferenceDrawing, arrays: dict[str, Array], names: Sequence[str]) -> None:
    """A mask, or labels, all of one value."""
    for name, t in drawn.types.items():
        if not t.is_float:
            most = classes(drawn.problem, name) - 1 if t.is_integer else 1
            arrays[name][...] = min(drawn.case.seed % 2, most)


SPECIALS: dict[str, Callable[[ReferenceDrawing, dict[str, Array], Sequence[str]], None]] = {
    "ties": _ties,
    "nan": lambda d, a, names: _put_special(d, a, names, lambda n: np.full(int(n.rng.integers(1, 3)), np.nan, n.type)),
    "infinity": lambda d, a, names: _put_special(d, a, names, lambda n: (n.signs((2,)) * np.inf).astype(n.type)),
    "signed_zero": _signed_zero,
    "subnormal": _subnormal,
    "masked": _masked,
}
"""What is put among them; numbers at a ``kink`` are found below."""

# --- kinks ------------------------------------------------------------------------------------------------------------

TRIALS = 6
"""Times that numbers are drawn to meet a kink."""


@dataclass(frozen=True)
class Kink:
    """A node whose derivative jumps where an operand meets a number, or where what it compares ties."""

    node: Node
    value: float | None
    """None where cells, or operands, are compared with each other."""

    @property
    def words(self) -> str:
        where = "a tie" if self.value is None else f"{self.value:g}"
        return f"{self.node.outputs[0].name} at {where}"


@lru_cache(maxsize=128)
def kinks(graph: Graph) -> tuple[Kink, ...]:
    """Every kink and every tie of a graph, in its order."""
    found = list[Kink]()
    for node in graph.nodes:
        if node.op.kinks is not None:
            found += [Kink(node, value) for value in node.op.kinks(node.attrs)]
        elif node.op.selects and node.inputs[0].type.is_float:
            found.append(Kink(node, None))
    return tuple(found)


def at_kink(
    reference: Reference, problem: Problem, arrays: Mapping[str, Array], which: int, rng: np.random.Generator
) -> tuple[dict[str, Array], bool]:
    """The arrays changed so that a kink is met in some cell, and whether it is: it need not be possible."""
    graph = reference.graph(reference.types_of(problem))
    kink = kinks(graph)[which]
    trial = dict(arrays)
    for _ in range(TRIALS):
        drawn = {**arrays, **_levels(arrays, problem, rng)}
        for trial in (drawn, *_solve_kink(graph, kink, drawn, problem, rng)):
            if is_met(graph, kink, [trial[name] for name in problem.inputs]):
                return trial, True
    return trial, False


def _levels(arrays: Mapping[str, Array], problem: Problem, rng: np.random.Generator) -> dict[str, Array]:
    """Small whole numbers in the inputs: what is computed of them often meets small numbers, and ties."""
    floats = [name for name in problem.inputs if problem.dtype_of(name) in FLOATS]
    return {name: rng.integers(-2, 3, arrays[name].shape).astype(arrays[name].dtype) for name in floats}


def _solve_kink(
    graph: Graph, kink: Kink, arrays: dict[str, Array], problem: Problem, rng: np.random.Generator
) -> Iterator[dict[str, Array]]:
    """A cell of an input moved by one step of Newton's, so that a cell of the operand meets the number, or another."""
    values = [arrays[name] for name in problem.inputs]
    got = _operands(graph, kink.node)(*values)[0]
    if not got.size:
        return
    cells, place, other = got.reshape(-1).astype(np.float64), *rng.integers(0, got.size, 2)
    aim = float(cells[other]) if kink.value is None else kink.value
    cotangent = np.zeros(got.shape, got.dtype)
    cotangent.reshape(-1)[place] = 1
    names = [name for name in problem.inputs if problem.dtype_of(name) in FLOATS]
    for name, slope in zip(names, _slopes(graph, kink.node)(*values, cotangent), strict=True):
        steepest = int(np.argmax(np.abs(slope))) if slope.size else 0
        if slope.size and (rise := float(slope.reshape(-1)[steepest])):
            moved = arrays[name].copy()
            here = float(moved.reshape(-1)[steepest])
            moved.reshape(-1)[steepest] = here + (aim - float(cells[place])) / rise
            yield {**arrays, name: moved}


def meets_a_kink(call: Call) -> bool:
    """Whether the inputs of a call meet some kink of its reference."""
    reference = reference_of(call.problem)
    graph = reference.graph(reference.types_of(call.problem))
    arrays = list(call.named().values())
    return any(is_met(graph, kink, arrays) for kink in kinks(graph))


def is_met(graph: Graph, kink: Kink, arrays: list[Array]) -> bool:
    """Whether a kink is met on these arrays in some cell."""
    first, *others = _operands(graph, kink.node)(*arrays)
    if kink.value is not None:
        return bool((first == kink.value).any())
    if len(others) == 1 and others[0].shape == first.shape:
        return bool((first == others[0]).any())
    return len(np.unique(first)) < first.size


@lru_cache(maxsize=128)
def _operands(graph: Graph, node: Node) -> Callable[..., tuple[Array, ...]]:
    """What a node is applied to."""
    return _run(replace(graph, outputs=node.inputs))


@lru_cache(maxsize=128)
def _slopes(graph: Graph, node: Node) -> Callable[..., tuple[Array, ...]]:
    """The gradients of a node's first operand, by every input."""
    pulled = replace(graph, outputs=node.inputs[:1]).simplify().vjp()
    return _run(replace(pulled, outputs=pulled.outputs[1:]))


def _run(graph: Graph) -> Callable[..., tuple[Array, ...]]:
    run = compile(graph.simplify(), backend="numpy")

    def results(*arrays: Any) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            found = run(*arrays)
        return found if isinstance(found, tuple) else (found,)

    return results
