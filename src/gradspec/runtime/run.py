"""Running graphs and operators on arrays, through plans that are kept by structure and types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from gradspec.graph.arrays import wants_aligned
from gradspec.graph.attributes import Attributes
from gradspec.graph.builder import Builder
from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Op
from gradspec.graph.lru import LRUCache
from gradspec.graph.types import type_of
from gradspec.runtime.backend import backend_named
from gradspec.runtime.compiled import Compiled, Executable, Program
from gradspec.runtime.plan import Plan
from gradspec.runtime.planner import plan
from gradspec.runtime.structure import lifted, structure
from gradspec.transforms.trace import trace

DEFAULT_BACKEND = "cpu"
MOST_PLANS = 512

_executables = LRUCache[Executable](MOST_PLANS)
_applications = LRUCache[Program](MOST_PLANS)
_programs: WeakKeyDictionary[Graph, Program] = WeakKeyDictionary()


def compile(
    program: Graph | Callable[..., Any], *types: Any, backend: str = DEFAULT_BACKEND, threads: int | None = None
) -> Compiled:
    """A function of arrays that runs a graph, or a function traced on ``types``.

    ``backend`` is ``"cpu"``, compiled kernels, or ``"numpy"``, the readable reference. Without ``threads`` each call
    uses as many as ``get_num_threads()`` says. ``print(run.plan)`` shows what a call does; ``run(x, out=y)`` puts the
    result into ``y``.

    >>> import gradspec as gs
    >>> import numpy as np
    >>> run = compile(lambda x: x * x, gs.f32[2])
    >>> run(np.float32([1, 2])).tolist()
    [1.0, 4.0]
    """
    backend_named(backend)
    if isinstance(program, Graph) and types:
        raise TypeError("a graph has its types already; give types with a function only")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r} is not a number of threads; give 1 or more, or None for the default")
    graph = program if isinstance(program, Graph) else trace(program, *types)
    found, operands = planned(graph, backend)
    return Compiled(graph, Program(Executable(found), operands), threads)


def planned(graph: Graph, backend: str = DEFAULT_BACKEND) -> tuple[Plan, list[Array]]:
    """What compiling a graph comes to, before memory is taken for it, and the constants that belong to it."""
    chosen = backend_named(backend)
    meant, operands = lifted(graph.simplify() if chosen.simplifies else graph)
    return plan(meant, len(graph.inputs), chosen), operands


def run(graph: Graph, arrays: Sequence[Any]) -> Any:
    """One array for one output, a tuple for several. Results never share memory with inputs or constants."""
    found = _programs.get(graph)
    if found is None:
        found = _programs[graph] = attached(graph)
    return found.call(arrays, found.aligned_results() if wants_aligned() else None)


def program(graph: Graph) -> Callable[[Sequence[Any]], Any]:
    """The graph as a function of its arrays, for those who keep it themselves."""
    return attached(graph).call


def attached(graph: Graph) -> Program:
    """The graph with a plan for its structure, which earlier graphs may have left."""
    open_graph, operands = lifted(graph)
    key = (len(graph.inputs), structure(open_graph))  # a constant is packed once, an input every time
    executable = _executables.get(key)
    if executable is None:
        executable = Executable(plan(open_graph.simplify(), len(graph.inputs), backend_named(DEFAULT_BACKEND)))
        _executables.put(key, executable)
    return Program(executable, operands, graph.inputs)


def eager(op: Op, attrs: Attributes, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """One operator on arrays: compiled if it can be, else the NumPy kernel at once.

    That is also for operators which only move numbers: NumPy has views of arrays that last.
    """
    backend = backend_named(DEFAULT_BACKEND)
    if op.moves or backend.lowering(op.name) is None:
        return backend.kernel(op, attrs, tuple(map(type_of, arrays)))(*arrays)
    key = (op, repr(attrs), *[(a.shape, a.dtype) for a in arrays])
    found = _applications.get(key)
    if found is None:
        found = attached(_application(op, attrs, arrays))
        _applications.put(key, found)
    results = found.call(arrays, found.aligned_results() if wants_aligned() else None)
    return results if isinstance(results, tuple) else (results,)


def _application(op: Op, attrs: Attributes, arrays: Sequence[Array]) -> Graph:
    types = [type_of(a) for a in arrays]
    op.types(attrs, *types)  # an error here speaks of types, not of the variables below
    builder = Builder()
    return builder.build(builder.apply(op, attrs, *map(builder.input, types)))
