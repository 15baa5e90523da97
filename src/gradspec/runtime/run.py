"""Running graphs and operators on arrays, through plans that are kept by structure and types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from gradspec.graph.arrays import wants_aligned
from gradspec.graph.builder import Builder
from gradspec.graph.ir import Array, Graph
from gradspec.graph.later import later, provides
from gradspec.graph.op import Attributes, Op
from gradspec.graph.recent import Recent
from gradspec.graph.types import type_of
from gradspec.runtime.compiled import Compiled, Executable, Program
from gradspec.runtime.plan import Plan, plan
from gradspec.runtime.structure import lifted, structure
from gradspec.runtime.task import Lowering
from gradspec.spec.errors import UnsupportedError
from gradspec.transforms.trace import trace

MOST_PLANS = 512

_executables = Recent(MOST_PLANS)
_applications = Recent(MOST_PLANS)
_programs: WeakKeyDictionary[Graph, Program] = WeakKeyDictionary()


def compile(
    program: Graph | Callable[..., Any], *types: Any, backend: str = "cpu", threads: int | None = None
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
    if backend not in ("cpu", "numpy"):
        raise UnsupportedError(f'there is no backend {backend!r}; use backend="cpu" or backend="numpy"')
    if isinstance(program, Graph) and types:
        raise TypeError("a graph has its types already; give types with a function only")
    if threads is not None and (type(threads) is not int or threads < 1):
        raise ValueError(f"threads={threads!r} is not a number of threads; give 1 or more, or None for the default")
    graph = program if isinstance(program, Graph) else trace(program, *types)
    found, operands = planned(graph, backend)
    return Compiled(graph, Program(Executable(found), operands), threads)


def planned(graph: Graph, backend: str = "cpu") -> tuple[Plan, list[Array]]:
    """What compiling a graph comes to, before memory is taken for it, and the constants that belong to it."""
    meant, operands = lifted(graph.simplify() if backend == "cpu" else graph)
    if backend == "cpu":
        return plan(meant, len(graph.inputs), _cpu_lowering), operands
    return plan(meant, len(graph.inputs), _no_lowering, fallback="numpy"), operands


@provides("run")
def run(graph: Graph, *arrays: Any) -> Any:
    """One array for one output, a tuple for several. Results never share memory with inputs or constants."""
    program = _programs.get(graph)
    if program is None:
        program = _programs[graph] = attached(graph)
    return program.call(arrays, program.aligned_results() if wants_aligned() else None)


@provides("program")
def attached(graph: Graph) -> Program:
    """The graph with a plan for its structure, which earlier graphs may have left."""
    open_graph, operands = lifted(graph)
    key = (len(graph.inputs), structure(open_graph))  # a constant is packed once, an input every time
    executable = _executables.get(key)
    if executable is None:
        executable = Executable(plan(open_graph.simplify(), len(graph.inputs), _cpu_lowering))
        _executables.put(key, executable)
    return Program(executable, operands, graph.inputs)


@provides("eager")
def eager(op: Op, attrs: Attributes, *arrays: Array) -> tuple[Array, ...]:
    """One operator on arrays: compiled if it can be, else the NumPy kernel at once.

    That is also for operators which only move numbers: NumPy has views of arrays that last.
    """
    if op.moves or _cpu_lowering(op.name) is None:
        return later("numpy_eager", op, attrs, *arrays)  # type: ignore[no-any-return]
    key = (op, repr(attrs), *[(a.shape, a.dtype) for a in arrays])
    program = _applications.get(key)
    if program is None:
        program = attached(_application(op, attrs, arrays))
        _applications.put(key, program)
    results = program.call(arrays, program.aligned_results() if wants_aligned() else None)
    return results if isinstance(results, tuple) else (results,)


def _application(op: Op, attrs: Attributes, arrays: tuple[Array, ...]) -> Graph:
    types = [type_of(a) for a in arrays]
    op.types(attrs, *types)  # an error here speaks of types, not of the variables below
    builder = Builder()
    return builder.build(builder.apply(op, attrs, *map(builder.input, types)))


def _cpu_lowering(name: str) -> Lowering | None:
    return later("cpu_lowering", name)  # type: ignore[no-any-return]


def _no_lowering(name: str) -> Lowering | None:
    return None
