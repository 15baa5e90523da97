"""Plans: what a compiled graph does, step by step, and where every value lies. They hold no values of their own."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from gradspec.graph.ir import Array, Graph, Node, Var
from gradspec.graph.later import later
from gradspec.runtime.group import Lowerings, Step, steps
from gradspec.runtime.memory import Interval, aligned, allocated, nbytes, offsets
from gradspec.runtime.task import Task


@dataclass(frozen=True)
class Plan:
    """The steps of a graph and their memory; ``print(plan)`` shows one line for each step."""

    inputs: tuple[Var, ...]
    operands: tuple[Var, ...]
    """Constants whose arrays are given when the plan is attached to a graph."""
    constants: Mapping[Var, Array]
    """Constants that belong to the structure: zeros that derivatives bring along."""
    prologue: tuple[Step, ...]
    """What is carried out once, on constants only: nodes that move them, by NumPy, and tasks that prepare operands."""
    steps: tuple[Step, ...]
    outputs: tuple[Var, ...]
    arena: Mapping[Var, int]
    """The offsets of the variables that live in the arena."""
    fallback: str
    """What the plan says of a step without a task."""

    @cached_property
    def made(self) -> tuple[Var, ...]:
        """What the steps write, in order."""
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
        """How many threads a call has work for: tasks with nothing of NumPy in between run as one job."""
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
        """The bytes of everything that is prepared once and kept with the constants."""
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
        """The last step that reads a variable; one past the end for what is returned."""
        return _last_use(self.steps, self.outputs)

    def __str__(self) -> str:
        return str(later("plan_text", self))


NANOSECONDS_PER_THREAD = 50_000
"""Handing work to another thread costs about as much, so no thread is given less."""


def most_threads(tasks: Sequence[Task]) -> int:
    """How many threads tasks that run one after the other are worth."""
    worth = sum(task.cost for task in tasks if task.units > 1) / NANOSECONDS_PER_THREAD
    return max(1, min(int(worth), max((task.units for task in tasks), default=1)))


def plan(graph: Graph, inputs: int, lowerings: Lowerings, fallback: str = "numpy: no compiled kernel") -> Plan:
    """Plan a graph whose first ``inputs`` inputs are given at each call and the others once, as constants."""
    still, nodes = _moved_constants(graph, inputs)
    prologue = [Step((node,)) for node in still]
    fixed = {*graph.inputs[inputs:], *graph.constants, *(v for step in prologue for v in step.outputs)}
    found: list[Step] = []
    for step in steps(nodes, graph.outputs, lowerings):
        if not step.nodes and fixed.issuperset(step.inputs):
            fixed.update(step.outputs)
            prologue.append(step)
        else:
            found.append(step)
    return Plan(
        inputs=graph.inputs[:inputs],
        operands=graph.inputs[inputs:],
        constants=graph.constants,
        prologue=tuple(prologue),
        steps=tuple(found),
        outputs=graph.outputs,
        arena=_arena(found, graph.outputs),
        fallback=fallback,
    )


def _moved_constants(graph: Graph, inputs: int) -> tuple[list[Node], list[Node]]:
    """The nodes that only move constants, and the others."""
    fixed = {*graph.inputs[inputs:], *graph.constants}
    still: list[Node] = []
    rest: list[Node] = []
    for node in graph.nodes:
        is_still = node.op.moves and fixed.issuperset(node.inputs)
        fixed.update(node.outputs if is_still else ())
        (still if is_still else rest).append(node)
    return still, rest


def _last_use(found: Sequence[Step], outputs: Collection[Var]) -> dict[Var, int]:
    last = {v: i for i, step in enumerate(found) for v in step.inputs}
    return last | dict.fromkeys(outputs, len(found))


def _arena(found: Sequence[Step], outputs: Sequence[Var]) -> dict[Var, int]:
    """Offsets for what tasks write and nobody is given. A buffer is live while anything that may be a view of it is."""
    last = _last_use(found, outputs)
    roots: dict[Var, set[Var]] = {}
    first: dict[Var, int] = {}
    until: dict[Var, int] = {}
    for i, step in enumerate(found):
        for v in step.outputs:
            if step.may_alias:
                roots[v] = {root for operand in step.inputs for root in roots.get(operand, ())}
            elif step.task is not None and v not in outputs:
                roots[v], first[v] = {v}, i
            for root in roots.get(v, ()):
                until[root] = max(until.get(root, i), last.get(v, i))
    places = offsets([Interval(first[v], until[v], nbytes(v.type)) for v in first])
    return dict(zip(first, places, strict=True))
