"""gradspec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import gradspec as gs
from gradspec.bench.contenders import FIXED, GIVEN, Contender, Variants, as_problem
from gradspec.bench.data import Array, data, labels
from gradspec.bench.grid import BenchProblem, Limit, Network, Pool
from gradspec.bench.networks import run
from gradspec.conformance.model.attributes import OPERATORS, spelled
from gradspec.conformance.model.target import NotOfferedError


class Ours(Contender):
    def __init__(self, threads: int) -> None:
        """The number of threads is read from the environment, GRADSPEC_NUM_THREADS."""

    def versions(self) -> dict[str, str]:
        return {"gradspec": gs.__version__}

    def variants(self, problem: BenchProblem) -> Variants:
        if problem.mode == "forward":
            return dict(_values(problem))
        types = [gs.f32[shape] for shape in problem.cell.inputs().values()]
        graph, given, active = gs.trace(function(problem), *types), data(problem), problem.cell.active()
        if problem.mode == "jvp":
            return _in_layouts(problem, gs.compile(graph.jvp(wrt=active)), (*given.inputs, *given.tangents))
        return _in_layouts(problem, gs.compile(graph.vjp(wrt=active)), (*given.inputs, given.cotangent))

    def arrays(self, results: Any) -> list[Array]:
        return list(results) if isinstance(results, tuple) else [results]


def _values(problem: BenchProblem) -> Iterator[tuple[str, Callable[[], Any]]]:
    """The value with every input given and, where there are weights, with weights that belong to the graph."""
    inputs, f = data(problem).inputs, function(problem)
    given = gs.compile(f, *(gs.f32[array.shape] for array in inputs))
    if isinstance(problem.cell, Limit) and not _multiplies(given):
        raise NotOfferedError("this would be NumPy's matrix product")
    if not problem.has_fixed_weights:
        yield from _in_layouts(problem, given, inputs).items()
    else:
        yield GIVEN, lambda: given(*inputs)
        x, *weights = inputs
        fixed = gs.compile(lambda x: f(x, *weights), gs.f32[x.shape])
        yield FIXED, lambda: fixed(x)


def _in_layouts(problem: BenchProblem, run: Callable[..., Any], arrays: tuple[Array, ...]) -> Variants:
    """A call with arrays as they are and, where they are pooled, with their channels last in memory."""
    calls: Variants = {"": lambda: run(*arrays)}
    if isinstance(problem.cell, Pool):
        moved = [np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) for array in arrays]
        calls["channels last"] = lambda: run(*moved)
    return calls


def _multiplies(run: Any) -> bool:
    """Whether a compiled kernel carries out the product."""
    return any(step.task and any(node.op.name == "matmul" for node in step.nodes) for step in run.plan.steps)


def function(problem: BenchProblem) -> Callable[..., Any]:
    """The problem's value as a function of variables."""
    cell = problem.cell
    if isinstance(cell, Network):
        return lambda x, *parameters: _network(cell, problem.mode, x, parameters)
    if isinstance(cell, Limit):
        if problem.op == "matmul":
            return gs.matmul
        raise NotOfferedError("copies are the machine's")
    asked = as_problem(problem)
    return lambda *inputs: OPERATORS[asked.op](**dict(zip(cell.inputs(), inputs, strict=True)), **spelled(asked))


class OurOperators:
    """What a network is made of, on variables."""

    def relu(self, x: Any) -> Any:
        return gs.relu(x)

    def flatten(self, x: Any) -> Any:
        return gs.flatten(x, 1)

    def add(self, x: Any, y: Any) -> Any:
        return x + y

    def conv(self, x: Any, weight: Any, bias: Any, stride: int, padding: int) -> Any:
        return gs.conv(x, weight, bias, stride, padding)

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return gs.linear(x, weight, bias)

    def max_pool(self, x: Any, kernel: int, stride: int, padding: int) -> Any:
        return gs.max_pool(x, (kernel, kernel), stride, padding)


def _network(cell: Network, mode: str, x: Any, parameters: tuple[Any, ...]) -> Any:
    result = run(cell, OurOperators(), x, parameters)
    if mode == "forward":
        return result
    return gs.cross_entropy(result, labels(cell)) if cell.loss == "cross_entropy" else gs.mean(result * result)
