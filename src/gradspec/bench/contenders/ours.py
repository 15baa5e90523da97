"""gradspec, and what the machine itself can do: copy memory with all threads, multiply matrices with NumPy's BLAS."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

import gradspec as gs
from gradspec.bench.contenders import (
    FIXED,
    GIVEN,
    Call,
    Contender,
    Function,
    Variants,
    as_problem,
    network_of,
)
from gradspec.bench.grid import COPY, Array, BenchProblem, Limit, Network, Pool, data, labels
from gradspec.conformance.model.geometry import OPERATORS, spelled
from gradspec.conformance.model.target import NotOfferedError
from gradspec.runtime.compiled import Compiled


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


def _values(problem: BenchProblem) -> Iterator[tuple[str, Call]]:
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


def _in_layouts(problem: BenchProblem, run: Function, arrays: tuple[Array, ...]) -> Variants:
    """A call with arrays as they are and, where they are pooled, with their channels last in memory."""
    calls: Variants = {"": lambda: run(*arrays)}
    if isinstance(problem.cell, Pool):
        moved = [np.moveaxis(np.ascontiguousarray(np.moveaxis(array, 1, -1)), -1, 1) for array in arrays]
        calls["channels last"] = lambda: run(*moved)
    return calls


def _multiplies(run: Compiled) -> bool:
    """Whether a compiled kernel carries out the product."""
    return any(step.task and any(node.op.name == "matmul" for node in step.nodes) for step in run.plan.steps)


def function(problem: BenchProblem) -> Function:
    """The problem's value as a function of variables."""
    cell = problem.cell
    if isinstance(cell, Network):
        losses = {
            "cross_entropy": lambda y: gs.cross_entropy(y, labels(cell)),
            "mean_square": lambda y: gs.mean(y * y),
        }
        return network_of(cell, problem.mode, OPERATORS_OF_NETWORKS | losses)
    if isinstance(cell, Limit):
        if problem.op == "matmul":
            return gs.matmul
        raise NotOfferedError("copies are the machine's")
    asked = as_problem(problem)
    return lambda *inputs: OPERATORS[asked.op](**dict(zip(cell.inputs(), inputs, strict=True)), **spelled(asked))


OPERATORS_OF_NETWORKS: dict[str, Function] = {
    "relu": gs.relu,
    "flatten": lambda x: gs.flatten(x, 1),
    "add": gs.add,
    "conv": gs.conv,
    "linear": gs.linear,
    "max_pool": lambda x, kernel, stride, padding: gs.max_pool(x, (kernel, kernel), stride, padding),
}


# --- the machine ------------------------------------------------------------------------------------------------------


class Machine(Contender):
    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.pool = ThreadPoolExecutor(threads)

    def versions(self) -> dict[str, str]:
        return {"python": platform.python_version(), "numpy": np.__version__}

    def variants(self, problem: BenchProblem) -> Variants:
        if problem.cell == COPY:
            return {"NumPy copies": self._copy(np.ones(problem.cell.output(), np.float32))}
        if isinstance(problem.cell, Limit):
            a, b = data(problem).inputs
            return {"NumPy": lambda: [a @ b]}
        raise NotOfferedError("only limits are measured here")

    def _copy(self, source: Array) -> Call:
        target = np.empty_like(source)
        parts = [*zip(np.array_split(target, self.threads), np.array_split(source, self.threads), strict=True)]
        return lambda: [target, *self.pool.map(lambda part: np.copyto(*part), parts)][:1]
