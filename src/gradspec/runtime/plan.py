"""Plans: the steps of a compiled graph, and where every value lies. A plan holds no values but structural zeros."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from textwrap import wrap

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.show import ascii_only
from gradspec.runtime.group import Step, group_nodes
from gradspec.runtime.memory import Lifetime, aligned, allocated, held_results, nbytes, offsets, require_memory
from gradspec.runtime.task import Backend, Task


@dataclass(frozen=True)
class Plan:
    """The steps of a graph and their memory; ``print(plan)`` shows one line for each step."""

    inputs: tuple[Var, ...]
    operands: tuple[Var, ...]
    """Constants whose arrays each graph attaches."""
    constants: Mapping[Var, Array]
    """Constants that belong to the structure: symbolic zeros, which derivatives introduce."""
    prologue: tuple[Step, ...]
    """Steps that run once, on constants only: data movement by NumPy, and tasks that prepare operands."""
    steps: tuple[Step, ...]
    outputs: tuple[Var, ...]
    arena: Mapping[Var, int]
    """The offsets of the variables that live in the arena."""
    backend: Backend
    """The backend that runs the steps."""

    @cached_property
    def made(self) -> tuple[Var, ...]:
        """The variables that the steps write, in order."""
        return tuple(v for step in self.steps for v in step.outputs)

    @cached_property
    def arena_bytes(self) -> int:
        return max((at + aligned(nbytes(v.type)) for v, at in self.arena.items()), default=0)

    @cached_property
    def bytes_without_reuse(self) -> int:
        return sum(aligned(nbytes(v.type)) for v in self.arena)

    @cached_property
    def workspace(self) -> int:
        """Bytes per thread."""
        return max((step.task.workspace for step in self.steps if step.task is not None), default=0)

    @cached_property
    def most_threads(self) -> int:
        """The most threads that a call has work for. Tasks without a NumPy step in between run as one job."""
        jobs: list[list[Task]] = [[]]
        for step in self.steps:
            if step.task is not None:
                jobs[-1].append(step.task)
            elif step.view is None:
                jobs.append([])
        return max(map(most_threads, jobs))

    @cached_property
    def result_bytes(self) -> int:
        return sum(nbytes(v.type) for v in self.outputs)

    @cached_property
    def prepared_bytes(self) -> Sequence[int]:
        """The bytes of each operand that is prepared once and kept with the constants."""
        return [nbytes(v.type) for step in self.prologue if step.task is not None for v in step.outputs]

    def memory(self, threads: int) -> int:
        """The bytes that a call with so many threads takes on C-contiguous arrays, and what is prepared for it.

        These are the arena, the workspaces, the results and the prepared constants. The arena, the workspaces together
        and each prepared constant begin at a multiple of 64 bytes, for which each is given 64 more. Arrays that NumPy
        steps make, and copies that a view needs, come on top.
        """
        blocks = [self.arena_bytes, self.workspace * min(threads, self.most_threads), *self.prepared_bytes]
        return sum(map(allocated, blocks)) + self.result_bytes

    @cached_property
    def last_use(self) -> Mapping[Var, int]:
        """The last step that reads each variable; one past the end for outputs."""
        return last_use(self.steps, self.outputs)

    def __str__(self) -> str:
        """A line for each step, with its kernel, its operands, the bytes it reads and writes, and where it writes.

        >>> print(gs.compile(lambda x: gs.reshape(x, (4,)), gs.f32[2, 2], backend="numpy").plan)
        step  operators  kernel  reads -> writes               bytes  buffer
           1  reshape    numpy   x:f32[2,2] -> reshape:f32[4]     32  view or fresh
        arena 0 bytes (0 without reuse), workspace 0 bytes per thread, results 16 bytes
        """
        steps = (_row(self, i, step) for i, step in enumerate(self.steps))
        return "\n".join([*_table([HEADER, *map(_once, self.prologue), *steps]), _footer(self)])


NANOSECONDS_PER_THREAD = 20_000
"""The least work per thread: waking a thread takes about as long."""


def most_threads(tasks: Sequence[Task]) -> int:
    """The most threads that are worth waking for tasks that run one after the other."""
    worth = sum(task.cost for task in tasks if task.units > 1) / NANOSECONDS_PER_THREAD
    return max(1, min(int(worth), max((task.units for task in tasks), default=1)))


def last_use(steps: Sequence[Step], outputs: Collection[Var]) -> dict[Var, int]:
    """The last step that reads each variable; one past the end for outputs."""
    last = {v: i for i, step in enumerate(steps) for v in step.inputs}
    return last | dict.fromkeys(outputs, len(steps))


# --- planning ---------------------------------------------------------------------------------------------------------


def make_plan(graph: Graph, inputs: int, backend: Backend) -> Plan:
    """Plan a graph whose first ``inputs`` inputs are given at each call and the others once, as constants."""
    require_memory(held_results(graph))
    constant, nodes = _split_constants(graph, inputs)
    prologue = [Step((node,)) for node in constant]
    fixed = {*graph.inputs[inputs:], *graph.constants, *(v for step in prologue for v in step.outputs)}
    steps: list[Step] = []
    for step in group_nodes(nodes, graph.outputs, backend.lowering, fixed):
        if not step.nodes and fixed.issuperset(step.inputs):
            fixed.update(step.outputs)
            prologue.append(step)
        else:
            steps.append(step)
    # Not every operator that moves numbers gives views: padding does not.
    require_memory((step.nodes[-1].op, v) for step in steps if step.task and step.nodes for v in step.outputs)
    return Plan(
        inputs=graph.inputs[:inputs],
        operands=graph.inputs[inputs:],
        constants=graph.constants,
        prologue=tuple(prologue),
        steps=tuple(steps),
        outputs=graph.outputs,
        arena=_arena(steps, graph.outputs),
        backend=backend,
    )


def _split_constants(graph: Graph, inputs: int) -> tuple[list[Node], list[Node]]:
    """The nodes that only move constants, and the others."""
    fixed = {*graph.inputs[inputs:], *graph.constants}
    constant: list[Node] = []
    rest: list[Node] = []
    for node in graph.nodes:
        is_constant = node.op.is_data_movement and fixed.issuperset(node.inputs)
        fixed.update(node.outputs if is_constant else ())
        (constant if is_constant else rest).append(node)
    return constant, rest


def _arena(steps: Sequence[Step], outputs: Sequence[Var]) -> dict[Var, int]:
    """Offsets of the buffers that tasks write and the graph does not return. A buffer lives as long as its views."""
    last, given = last_use(steps, outputs), {*outputs}
    roots: dict[Var, set[Var]] = {}
    first: dict[Var, int] = {}
    until: dict[Var, int] = {}
    for i, step in enumerate(steps):
        for v in step.outputs:
            if step.may_alias:
                roots[v] = {root for operand in step.inputs for root in roots.get(operand, ())}
            elif step.task is not None and v not in given:
                roots[v], first[v] = {v}, i
            for root in roots.get(v, ()):
                until[root] = max(until.get(root, i), last.get(v, i))
    places = offsets([Lifetime(first[v], until[v], nbytes(v.type)) for v in first])
    return dict(zip(first, places, strict=True))


# --- as text ----------------------------------------------------------------------------------------------------------

HEADER = ("step", "operators", "kernel", "reads -> writes", "bytes", "buffer")
WIDEST = (4, 16, 25, 32, 11, 14)
"""Columns; with two spaces between them they fill 112 characters at most. Longer entries go on below."""


def _row(plan: Plan, number: int, step: Step) -> tuple[str, ...]:
    moved = 0 if step.view is not None else sum(nbytes(v.type) for v in {*step.inputs, *step.outputs})
    return (
        str(number + 1),
        _operators(step),
        _kernel(step, plan.backend.fallback),
        f"{_variables(step.inputs)} -> {_variables(step.outputs)}",
        f"{moved:,}",
        ", ".join(dict.fromkeys(_buffer(plan, step, v) for v in step.outputs)),
    )


def _once(step: Step) -> tuple[str, ...]:
    moved = f"{_variables(step.inputs)} -> {_variables(step.outputs)}"
    return "once", _operators(step), _kernel(step, "numpy: constants"), moved, "", "constant"


def _operators(step: Step) -> str:
    """Each name once, with how often it occurs."""
    counted = Counter(node.op.name for node in step.nodes)
    return ", ".join(name if n == 1 else f"{n} {name}" for name, n in counted.items()) or "-"


def _kernel(step: Step, fallback: str) -> str:
    if step.view is not None:
        return "view"
    return fallback if step.task is None else ascii_only(step.task.kernel)


def _variables(variables: Iterable[Var]) -> str:
    return ", ".join(f"{ascii_only(v.name)}:{str(v.type).replace(' ', '')}" for v in dict.fromkeys(variables))


def _buffer(plan: Plan, step: Step, var: Var) -> str:
    if var in plan.arena:
        return f"{plan.arena[var]}..{plan.arena[var] + nbytes(var.type)}"
    if step.may_alias:
        return "view" if step.view is not None else "view or fresh"
    return "fresh" if step.task is None else "output"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    wrapped = [[_lines(cell, width) for cell, width in zip(row, WIDEST, strict=True)] for row in rows]
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(len(HEADER))]
    return [_line(parts, widths) for row in wrapped for parts in zip_longest(*row, fillvalue="")]


def _lines(cell: str, width: int) -> list[str]:
    return wrap(cell, width, break_long_words=False, break_on_hyphens=False)


def _line(parts: Sequence[str], widths: Sequence[int]) -> str:
    numbers = (HEADER.index("step"), HEADER.index("bytes"))
    cells = [p.rjust(w) if i in numbers else p.ljust(w) for i, (p, w) in enumerate(zip(parts, widths, strict=True))]
    return "  ".join(cells).rstrip()


def _footer(plan: Plan) -> str:
    figures = [
        f"arena {plan.arena_bytes:,} bytes ({plan.bytes_without_reuse:,} without reuse)",
        f"workspace {plan.workspace:,} bytes per thread",
        f"results {plan.result_bytes:,} bytes",
        *([f"prepared constants {sum(plan.prepared_bytes):,} bytes"] if plan.prepared_bytes else []),
    ]
    return "\n".join(wrap(", ".join(figures), 112, break_on_hyphens=False))
