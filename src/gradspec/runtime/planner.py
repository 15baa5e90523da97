"""From a graph to its plan: which nodes make a step, what is done once, and where every buffer lies."""

from __future__ import annotations

from collections.abc import Sequence

from gradspec.graph.graph import Graph
from gradspec.graph.ir import Node, Var
from gradspec.runtime.backend import Backend
from gradspec.runtime.group import Step, steps
from gradspec.runtime.memory import Lifetime, held_results, nbytes, offsets, require_memory
from gradspec.runtime.plan import Plan, last_use


def plan(graph: Graph, inputs: int, backend: Backend) -> Plan:
    """Plan a graph whose first ``inputs`` inputs are given at each call and the others once, as constants."""
    require_memory(held_results(graph))
    still, nodes = _moved_constants(graph, inputs)
    prologue = [Step((node,)) for node in still]
    fixed = {*graph.inputs[inputs:], *graph.constants, *(v for step in prologue for v in step.outputs)}
    found: list[Step] = []
    for step in steps(nodes, graph.outputs, backend.lowering, fixed):
        if not step.nodes and fixed.issuperset(step.inputs):
            fixed.update(step.outputs)
            prologue.append(step)
        else:
            found.append(step)
    # Not every operator that moves numbers gives views: padding does not.
    require_memory((step.nodes[-1].op, v) for step in found if step.task and step.nodes for v in step.outputs)
    return Plan(
        inputs=graph.inputs[:inputs],
        operands=graph.inputs[inputs:],
        constants=graph.constants,
        prologue=tuple(prologue),
        steps=tuple(found),
        outputs=graph.outputs,
        arena=_arena(found, graph.outputs),
        backend=backend,
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


def _arena(found: Sequence[Step], outputs: Sequence[Var]) -> dict[Var, int]:
    """Offsets for what tasks write and nobody is given. A buffer is live while anything that may be a view of it is."""
    last = last_use(found, outputs)
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
    places = offsets([Lifetime(first[v], until[v], nbytes(v.type)) for v in first])
    return dict(zip(first, places, strict=True))
