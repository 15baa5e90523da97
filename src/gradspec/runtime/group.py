"""Which nodes are carried out together, and in which order: from the nodes of a graph to steps.

Nodes of equal keys share one task if their operands are there when the first of them runs; those that come later can
read what that first task kept for them, a tape. Pointwise nodes are chained to the step that makes their last operand.
No operator is named here: lowerings say what can be shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gradspec.graph.ir import Node, Var
from gradspec.runtime.task import Lowering, Task, Work

Lowerings = Callable[[str], Lowering | None]


@dataclass(frozen=True)
class Step:
    """Some nodes, and the task that carries them out; without one, a single node that NumPy carries out."""

    nodes: tuple[Node, ...]
    task: Task | None = None

    @property
    def inputs(self) -> tuple[Var, ...]:
        return self.nodes[0].inputs if self.task is None else self.task.inputs

    @property
    def outputs(self) -> tuple[Var, ...]:
        return self.nodes[0].outputs if self.task is None else self.task.outputs

    @property
    def may_alias(self) -> bool:
        """Whether the results may be views of the operands."""
        return self.task is None and self.nodes[0].op.moves


@dataclass
class _Group:
    lowering: Lowering | None
    nodes: list[Node]


def steps(nodes: Sequence[Node], outputs: Sequence[Var], lowerings: Lowerings) -> list[Step]:
    """Every node in one step; a step comes after those that make its operands."""
    groups, same_key = _grouped(nodes, lowerings)
    readers = _readers(nodes, outputs)
    shared = {i: s for places in same_key for i, s in _with_tape([groups[i] for i in places], places, readers).items()}
    found: list[Step] = []
    for i, group in enumerate(groups):
        found += [shared[i]] if i in shared else _without_tape(group.nodes, lowerings, readers)
    return found


def _grouped(nodes: Iterable[Node], lowerings: Lowerings) -> tuple[list[_Group], list[list[int]]]:
    """The groups in order, and the places of those that have one key."""
    groups: list[_Group] = []
    maker: dict[Var, int] = {}
    places: dict[Hashable, list[int]] = defaultdict(list)
    for node in nodes:
        lowering = lowerings(node.op.name)
        key = None if lowering is None else lowering.key(node)
        ready = max((maker.get(v, -1) for v in node.inputs), default=-1)
        at = next((i for i in places[key] if i > ready), None) if key is not None else None
        if lowering is not None and lowering.pointwise and ready >= 0 and _extends(groups[ready], lowering, node):
            at = ready
        if at is None:
            at = len(groups)
            groups.append(_Group(lowering, []))
            if key is not None:
                places[key].append(at)
        groups[at].nodes.append(node)
        maker.update(dict.fromkeys(node.outputs, at))
    return groups, [p for p in places.values() if len(p) > 1]


def _extends(chain: _Group, lowering: Lowering, node: Node) -> bool:
    return chain.lowering is lowering and chain.nodes[0].outputs[0].type == node.outputs[0].type


Readers = Mapping[Var, set[Node | None]]
"""The nodes that read a variable, and None if the graph returns it."""


def _readers(nodes: Iterable[Node], outputs: Iterable[Var]) -> Readers:
    readers: dict[Var, set[Node | None]] = defaultdict(set)
    for node in nodes:
        for v in node.inputs:
            readers[v].add(node)
    for v in outputs:
        readers[v].add(None)
    return readers


def _work(nodes: Sequence[Node], readers: Readers, tape: Var | None = None, reads_tape: bool = False) -> Work:
    inside = set(nodes)
    outputs = [v for node in nodes for v in node.outputs if not readers[v] <= inside]
    return Work(tuple(nodes), tuple(outputs), tape, reads_tape)


def _with_tape(groups: Sequence[_Group], places: Sequence[int], readers: Readers) -> dict[int, Step]:
    """The steps of groups that have one key, where the first writes a tape that the others read; none if that fails."""
    lowering = groups[0].lowering
    assert lowering is not None
    wanted = (lowering.tape(node) for group in groups[1:] for node in group.nodes)
    type = next((t for t in wanted if t is not None), None)
    if type is None:
        return {}
    tape = Var(f"{groups[0].nodes[0].outputs[0].name}.tape", type, None)
    works = [_work(group.nodes, readers, tape, reads_tape=i > 0) for i, group in enumerate(groups)]
    tasks = [lowering.task(work) for work in works]
    if any(task is None for task in tasks):
        return {}
    return {at: Step(work.nodes, task) for at, work, task in zip(places, works, tasks, strict=True)}


def _without_tape(nodes: Sequence[Node], lowerings: Lowerings, readers: Readers) -> Iterator[Step]:
    """One task for all the nodes if there is one, else halves; NumPy for a node that no kernel carries out."""
    lowering = lowerings(nodes[0].op.name)
    task = None if lowering is None else lowering.task(_work(nodes, readers))
    if task is not None or len(nodes) == 1:
        yield Step(tuple(nodes), task)
        return
    half = len(nodes) // 2
    yield from _without_tape(nodes[:half], lowerings, readers)
    yield from _without_tape(nodes[half:], lowerings, readers)
