"""Numbers at the kinks and branches of a reference, found by walking back from each of them to the inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from gradspec.conformance.model.problem import FLOATS, Array, Call, Problem
from gradspec.conformance.model.reference import Reference, reference_of
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node
from gradspec.runtime.compiled import compile

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
        for trial in (drawn, *_solved(graph, kink, drawn, problem, rng)):
            if is_met(graph, kink, [trial[name] for name in problem.inputs]):
                return trial, True
    return trial, False


def _levels(arrays: Mapping[str, Array], problem: Problem, rng: np.random.Generator) -> dict[str, Array]:
    """Small whole numbers in the inputs: what is computed of them often meets small numbers, and ties."""
    floats = [name for name in problem.inputs if problem.dtype_of(name) in FLOATS]
    return {name: rng.integers(-2, 3, arrays[name].shape).astype(arrays[name].dtype) for name in floats}


def _solved(
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
