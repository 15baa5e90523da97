"""Which nodes are carried out together, and in which order: from the nodes of a graph to steps.

Nodes of equal keys share one task if their operands are there when the first of them runs; those that come later can
read what that first task kept for them, a tape. Other nodes join the step that makes their last operand, if it takes
them; some can only end it, where nobody else reads what it makes before. A node that has one reader, and whose operands
are kept until then, waits for it: a mask is made again where it is used rather than written to memory. Views stand
directly after what they are views of, so that they come between no two nodes of a step. Tasks that prepare operands of
others stand in front of them, and those that prepare the same thing are one.
No operator is named here: lowerings say what can be shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradspec.graph.ir import Node, Var
from gradspec.runtime.backend import Lowerings
from gradspec.runtime.task import Lowering, Task, View, Work


@dataclass(frozen=True)
class Step:
    """Some nodes, and the task or the view that carries them out; without either, one node that NumPy carries out.

    A task that prepares operands of another one carries out no node.
    """

    nodes: tuple[Node, ...]
    task: Task | None = None
    view: View | None = None

    @property
    def inputs(self) -> tuple[Var, ...]:
        return self.nodes[0].inputs if self.task is None else self.task.inputs

    @property
    def outputs(self) -> tuple[Var, ...]:
        return self.nodes[0].outputs if self.task is None else self.task.outputs

    @property
    def may_alias(self) -> bool:
        """Whether the results may be views of the operands."""
        return self.task is None and (self.view is not None or self.nodes[0].op.moves)


def steps(
    nodes: Sequence[Node], outputs: Sequence[Var], lowerings: Lowerings, fixed: Collection[Var] = ()
) -> list[Step]:
    """Every node in one step; a step comes after those that make its operands. ``fixed``: what is the same at calls."""
    readers = _readers(nodes, outputs)
    groups = _Groups(lowerings, readers, {*outputs}, nodes)
    for node in nodes:
        groups.add(node)
    prepared = _Prepared({*fixed})
    return [found for step in _ordered(groups, readers) for found in prepared.with_before(step)]


Readers = Mapping[Var, set[Node | None]]
"""The nodes that read a variable, and None if the graph returns it."""


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    lowering: Lowering | None
    nodes: list[Node]
    views: list[Step] = field(default_factory=list)
    """What only moves results of this group, or of earlier ones: it is carried out directly after the group."""
    is_closed: bool = False
    """Whether nothing more may join."""


class _Groups:
    """Nodes on their way into steps. The first group has no nodes: the views of what is there at the start are its."""

    def __init__(
        self, lowerings: Lowerings, readers: Readers, returned: Collection[Var] = (), order: Sequence[Node] = ()
    ) -> None:
        self.lowerings, self.readers = lowerings, readers
        self.number = {node: i for i, node in enumerate(order)}
        self.origin = {v: i for i, node in enumerate(order) for v in node.outputs}
        self.waiting: dict[Var, Node] = {}
        """What is made no sooner than it is read."""
        self.returned = returned
        """What is an array of its own in the end, so that a task had better write it than a view be copied."""
        self.groups = [_Group(None, [])]
        self.maker: dict[Var, int] = {}
        self.moved: set[Var] = set()
        """What views make: it is there only after the group, so no node that reads it is part of the group."""
        self.places: dict[Hashable, list[int]] = defaultdict(list)
        """The groups that have a key."""

    def add(self, node: Node) -> None:
        """Put a node into a group, or have it wait for the one node that reads it."""
        if self._can_wait(node):
            self.waiting[node.outputs[0]] = node
            return
        before = [self.waiting.pop(v) for v in dict.fromkeys(node.inputs) if v in self.waiting]
        if before and not self._takes(node, before):
            for each in before:
                self._put(each)
            before = []
        self._put(node, before)

    def _can_wait(self, node: Node) -> bool:
        """Whether a node costs less if it is carried out with its reader: its operands are kept until then anyway."""
        (reader, *others) = self.readers[node.outputs[0]] or (None,)
        if others or reader is None or reader not in self.number or not self._are_alike(node, reader):
            return False
        runs = max((self.origin.get(v, -1) for v in reader.inputs if v not in node.outputs), default=-1)
        return all(self._is_kept(v, {node, reader}, runs) for v in node.inputs)

    def _are_alike(self, node: Node, reader: Node) -> bool:
        """Whether each could join the other's step, so that neither is what a step is there for."""
        own, other = self.lowerings(node.op.name), self.lowerings(reader.op.name)
        return own is not None and other is not None and own.joins([node], reader) and other.joins([reader], node)

    def _is_kept(self, v: Var, besides: set[Node | None], until: int) -> bool:
        """Whether some other node reads a variable after node number ``until``, so that it is there anyway."""
        others = self.readers[v] - besides
        return v not in self.origin or any(other is None or self.number.get(other, -1) > until for other in others)

    def _takes(self, node: Node, before: Sequence[Node]) -> bool:
        """Whether the group that a node would be put into takes those that wait for it as well."""
        last, lowering = self._last([*before, node]), self.lowerings(node.op.name)
        if self._may_join(node, last):
            return all(self._may_join(each, last) for each in before)
        return lowering is not None and all(lowering.joins([node], each) for each in before)

    def _may_join(self, node: Node, last: int) -> bool:
        """Whether the group ``last`` takes a node, none of whose operands is a view that is made after the group."""
        group = self.groups[last]
        return group.lowering is not None and self._is_open(node, last) and group.lowering.joins(group.nodes, node)

    def _is_open(self, node: Node, last: int) -> bool:
        moved = any(v in self.moved and self.maker[v] == last for v in node.inputs)
        return not self.groups[last].is_closed and not moved

    def _last(self, nodes: Sequence[Node]) -> int:
        """The group after which all operands of these nodes are there."""
        inside = {v for node in nodes for v in node.outputs}
        return max((self.maker.get(v, 0) for node in nodes for v in node.inputs if v not in inside), default=0)

    def _put(self, node: Node, before: Sequence[Node] = ()) -> None:
        lowering = self.lowerings(node.op.name)
        last = self._last([*before, node])
        view = None if lowering is None or node.outputs[0] in self.returned else lowering.view(node)
        if view is not None or (lowering is None and node.op.moves):
            self.groups[last].views.append(Step((node,), view=view))
            self.moved.update(node.outputs)
        else:
            last = self._place(node, lowering, last)
            self.groups[last].nodes += [*before, node]
        self.maker.update((v, last) for each in (*before, node) for v in each.outputs)

    def _place(self, node: Node, lowering: Lowering | None, last: int) -> int:
        """The group of a node whose operands are there after the group ``last``; a new one if no other takes it."""
        key = None if lowering is None else lowering.key(node)
        if lowering is not None and self._joins(node, last):
            return last
        places = [] if key is None else self.places[key]
        at = next((i for i in places if i > last and not self.groups[i].is_closed), None)
        return self.new(lowering, key) if at is None else at

    def _joins(self, node: Node, last: int) -> bool:
        """Whether a node is part of the group ``last``, which it may close."""
        group = self.groups[last]
        if group.lowering is None or not self._is_open(node, last):
            return False
        if group.lowering.joins(group.nodes, node):
            return True
        group.is_closed = self._is_last_reader(node, group) and group.lowering.ends(group.nodes, node)
        return group.is_closed

    def _is_last_reader(self, node: Node, group: _Group) -> bool:
        """Whether nothing but the group and this node reads what the group makes."""
        inside = {*group.nodes, node}
        return all(self.readers[v] <= inside for each in group.nodes for v in each.outputs)

    def new(
        self, lowering: Lowering | None, key: Hashable = None, nodes: Sequence[Node] = (), is_closed: bool = False
    ) -> int:
        at = len(self.groups)
        self.groups.append(_Group(lowering, [*nodes], is_closed=is_closed))
        self.maker.update((v, at) for node in nodes for v in node.outputs)
        if key is not None:
            self.places[key].append(at)
        return at


def _readers(nodes: Iterable[Node], outputs: Iterable[Var]) -> Readers:
    readers: dict[Var, set[Node | None]] = defaultdict(set)
    for node in nodes:
        for v in node.inputs:
            readers[v].add(node)
    for v in outputs:
        readers[v].add(None)
    return readers


# --- tasks ------------------------------------------------------------------------------------------------------------


def _ordered(groups: _Groups, readers: Readers) -> Iterator[Step]:
    shared = {i: step for places in groups.places.values() for i, step in _with_tape(groups, places, readers).items()}
    for i, group in enumerate(groups.groups):
        if i in shared:
            yield shared[i]
        elif group.nodes:
            yield from _without_tape(group, groups.lowerings, readers)
        yield from group.views


def _work(nodes: Sequence[Node], readers: Readers, tape: Var | None = None, reads_tape: bool = False) -> Work:
    inside = set(nodes)
    outputs = [v for node in nodes for v in node.outputs if not readers[v] <= inside]
    return Work(tuple(nodes), tuple(outputs), tape, reads_tape)


def _anchors(group: _Group, lowerings: Lowerings) -> list[Node]:
    """The nodes that the group's own lowering is about, as far as they do not read what joined them."""
    anchors: list[Node] = []
    joined: set[Var] = set()
    for node in group.nodes:
        if lowerings(node.op.name) is group.lowering and joined.isdisjoint(node.inputs):
            anchors.append(node)
        else:
            joined.update(node.outputs)
    return anchors


def _with_tape(groups: _Groups, places: Sequence[int], readers: Readers) -> dict[int, Step]:
    """The steps of groups that have one key, where the first writes a tape that the others read; none if that fails."""
    first, *later = (groups.groups[i] for i in places)
    lowering = first.lowering
    assert lowering is not None
    wanted = (lowering.tape(node) for group in later for node in _anchors(group, groups.lowerings))
    type = next((t for t in wanted if t is not None), None)
    if type is None:
        return {}
    tape = Var(f"{first.nodes[0].outputs[0].name}.tape", type, None)
    works = [_work(group.nodes, readers, tape, reads_tape=group is not first) for group in (first, *later)]
    tasks = [lowering.task(work) for work in works]
    if any(task is None for task in tasks):
        return {}
    return {at: Step(work.nodes, task) for at, work, task in zip(places, works, tasks, strict=True)}


def _without_tape(group: _Group, lowerings: Lowerings, readers: Readers) -> Iterator[Step]:
    """One task for all the nodes if there is one, else parts; a node that has none is a view, or left to NumPy."""
    nodes, lowering = group.nodes, group.lowering
    task = None if lowering is None else lowering.task(_work(nodes, readers))
    if task is not None or len(nodes) == 1:
        yield Step(tuple(nodes), task, None if lowering is None or task is not None else lowering.view(nodes[0]))
        return
    for part in _parts(group, lowerings, readers):
        yield from _without_tape(part, lowerings, readers)


def _parts(group: _Group, lowerings: Lowerings, readers: Readers) -> Iterator[_Group]:
    """The group's own nodes with as much of what joined them as has a task, and the rest; else halves of its own."""
    assert group.lowering is not None
    anchors = _anchors(group, lowerings)
    own = {*anchors}
    joined = [node for node in group.nodes if node not in own]
    parts = _Groups(lowerings, readers)
    taken = _most_taken(group.lowering, anchors, joined, readers)
    if taken is not None or len(anchors) == 1:
        parts.new(group.lowering, nodes=anchors + joined[: taken or 0], is_closed=True)
    else:
        for half in (anchors[: len(anchors) // 2], anchors[len(anchors) // 2 :]):
            parts.new(group.lowering, nodes=half)
    for node in joined[taken or 0 :]:
        parts.add(node)
    yield from parts.groups[1:]


def _most_taken(lowering: Lowering, anchors: Sequence[Node], joined: Sequence[Node], readers: Readers) -> int | None:
    """How many of those that joined, fewer than all, can stay in the task; None if there is no task without them."""
    taken = len(joined)
    while taken:
        taken //= 2
        if lowering.task(_work([*anchors, *joined[:taken]], readers)) is not None:
            return taken
    return None


# --- what prepares operands -------------------------------------------------------------------------------------------


class _Prepared:
    """Puts what prepares operands in front of tasks, each thing once."""

    def __init__(self, fixed: set[Var]) -> None:
        self.fixed = fixed
        self.made: dict[Hashable, Task] = {}
        self.instead: dict[Var, Var] = {}

    def with_before(self, step: Step) -> Iterator[Step]:
        if step.task is None:
            yield step
            return
        chosen = self._chosen(step.task)
        for task in chosen.before:
            yield from self._once(task)
        yield replace(step, task=self._reading(chosen))

    def _chosen(self, task: Task) -> Task:
        """The task, or the one that needs nothing before it."""
        is_once = all(self.fixed.issuperset(before.inputs) for before in task.before)
        return task if is_once or task.unprepared is None else task.unprepared

    def _once(self, task: Task) -> Iterator[Step]:
        task = self._chosen(task)
        for earlier in task.before:
            yield from self._once(earlier)
        task = self._reading(task)
        key = task.share, task.inputs
        if task.share is not None and key in self.made:
            self.instead.update(zip(task.outputs, self.made[key].outputs, strict=True))
            return
        self.made[key] = task
        yield Step((), task)

    def _reading(self, task: Task) -> Task:
        """The task with operands that others made already."""
        return replace(task, inputs=tuple(self.instead.get(v, v) for v in task.inputs), before=())
