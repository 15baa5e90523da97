"""Compiling graphs: plans that are kept by structure and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, overload

from gradspec.graph.family import Family
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array
from gradspec.graph.lru import LRUCache
from gradspec.runtime.backend import backend_named
from gradspec.runtime.compiled import Compiled, CompiledFamily, Executable, Program
from gradspec.runtime.plan import Plan
from gradspec.runtime.planner import plan
from gradspec.runtime.structure import lifted, structure
from gradspec.transforms.trace import trace

MOST_PLANS = 512

_executables = LRUCache[Executable](MOST_PLANS)


@overload
def compile(  # type: ignore[overload-overlap]  # (a family is a function, too)
    program: Family, *, backend: str | None = ..., threads: int | None = ...
) -> CompiledFamily: ...
@overload
def compile(
    program: Graph | Callable[..., Any], *types: Any, backend: str | None = ..., threads: int | None = ...
) -> Compiled: ...
def compile(
    program: Graph | Family | Callable[..., Any],
    *types: Any,
    backend: str | None = None,
    threads: int | None = None,
) -> Compiled | CompiledFamily:
    """A function of arrays that runs a graph, or a function traced on ``types``.

    ``backend`` is ``"cpu"``, compiled kernels, or ``"numpy"``, the readable reference; the first unless given, except
    on Windows, where no kernels are compiled. Without ``threads`` each call uses as many as ``get_num_threads()`` says.
    ``print(run.plan)`` shows what a call does; ``run(x, out=y)`` stores the result in ``y``. For a family, each graph
    is compiled when its sizes first occur, and ``run.at(x)`` returns it.

    >>> import gradspec as gs
    >>> import numpy as np
    >>> run = compile(lambda x: x * x, gs.f32[2])
    >>> run(np.float32([1, 2])).tolist()
    [1.0, 4.0]
    """
    backend_named(backend)
    if isinstance(program, Graph | Family) and types:
        raise TypeError("a graph has its types already; give types with a function only")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r} is not a number of threads; give 1 or more, or None for the default")
    if isinstance(program, Family):
        return CompiledFamily(program, lambda graph: compile(graph, backend=backend, threads=threads))
    graph = program if isinstance(program, Graph) else trace(program, *types)
    found, operands = planned(graph, backend)
    return Compiled(graph, Program(Executable(found), operands), threads)


def planned(graph: Graph, backend: str | None = None) -> tuple[Plan, list[Array]]:
    """What compiling a graph comes to, before memory is taken for it, and the constants that belong to it."""
    chosen = backend_named(backend)
    meant, operands = lifted(graph.simplify() if chosen.simplifies else graph)
    return plan(meant, len(graph.inputs), chosen), operands


def attached(graph: Graph) -> Program:
    """The graph with a plan for its structure, which earlier graphs may have left."""
    open_graph, operands = lifted(graph)
    key = (len(graph.inputs), structure(open_graph))  # a constant is packed once, an input every time

    def made() -> Executable:
        return Executable(plan(open_graph.simplify(), len(graph.inputs), backend_named()))

    return Program(_executables.get_or_make(key, made), operands, graph.inputs)
