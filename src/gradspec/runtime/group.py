"""Grouping: from the nodes of a graph to an ordered list of steps.

- Nodes of equal keys share one task if their operands are available when the first of them runs. Later ones can read a
  tape, which the first task writes for them.
- Other nodes join the step that makes their last operand, if its lowering accepts them. Some can only end it, if no
  other node reads its results.
- A node that has one reader, and whose operands live until then, is deferred to it: a mask is recomputed where it is
  used rather than written to memory.
- Views directly follow the step they are views of, so that they never separate two nodes of a step.
- Tasks that prepare operands precede the task that reads them, and equal ones are merged.

No operator is named here: lowerings decide what can be shared.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gradspec.graph.ir import Node, Var
from gradspec.runtime.task import Lowering, Lowerings, Task, View, Work


@dataclass(frozen=True)
class Step:
    """Nodes with the task or the view that carries them out; without either, one node that NumPy carries out.

    The step of a task that prepares operands has no nodes.
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
        return self.task is None and (self.view is not None or self.nodes[0].op.is_data_movement)


def group_nodes(
    nodes: Sequence[Node], outputs: Sequence[Var], lowerings: Lowerings, fixed: Collection[Var] = ()
) -> list[Step]:
    """Put every node into one step, each after those that make its operands. ``fixed`` variables never change."""
    readers = _readers(nodes, outputs)
    groups = _Groups(lowerings, readers, {*outputs}, nodes)
    for node in nodes:
        groups.add(node)
    prepared = _Prepared({*fixed})
    return [each for step in _order_steps(groups, readers) for each in prepared.with_before(step)]


Readers = Mapping[Var, set[Node | None]]
"""The nodes that read a variable, and None if the graph returns it."""


# --- groups -----------------------------------------------------------------------------------------------------------


@dataclass
class _Group:
    lowering: Lowering | None
    nodes: list[Node]
    views: list[Step] = field(default_factory=list)
    """Views of results of this group or of earlier ones, made directly after the group."""
    is_closed: bool = False
    """Whether nothing more may join."""


class _Groups:
    """Nodes on their way into steps. The first group has no nodes, only views of inputs and constants."""

    def __init__(
        self, lowerings: Lowerings, readers: Readers, returned: Collection[Var] = (), order: Sequence[Node] = ()
    ) -> None:
        self.lowerings, self.readers = lowerings, readers
        self.number = {node: i for i, node in enumerate(order)}
        self.origin = {v: i for i, node in enumerate(order) for v in node.outputs}
        self.deferred: dict[Var, Node] = {}
        """Nodes, by their results, that run with their one reader."""
        self.returned = returned
        """The outputs of the graph: a task writes them, since a view would have to be copied."""
        self.groups = [_Group(None, [])]
        self.maker: dict[Var, int] = {}
        self.moved: set[Var] = set()
        """The results of views. A view is made after its group, so no node that reads it can be part of the group."""
        self.places: dict[Hashable, list[int]] = defaultdict(list)
        """The groups of each key."""

    def add(self, node: Node) -> None:
        """Put a node into a group, or defer it to its one reader."""
        if self.can_defer(node):
            self.deferred[node.outputs[0]] = node
            return
        before = [self.deferred.pop(v) for v in dict.fromkeys(node.inputs) if v in self.deferred]
        if before and not self._takes(node, before):
            for each in before:
                self._put(each)
            before = []
        self._put(node, before)

    def can_defer(self, node: Node) -> bool:
        """Whether a node is cheaper together with its reader, because its operands live until then anyway."""
        (reader, *others) = self.readers[node.outputs[0]] or (None,)
        if others or reader is None or reader not in self.number or not self._are_alike(node, reader):
            return False
        runs = max((self.origin.get(v, -1) for v in reader.inputs if v not in node.outputs), default=-1)
        return all(self._is_kept(v, {node, reader}, runs) for v in node.inputs)

    def _are_alike(self, node: Node, reader: Node) -> bool:
        """Whether each could join the other's step, so that neither is the anchor of a step."""
        first, second = self.lowerings(node.op.name), self.lowerings(reader.op.name)
        return bool(first and second and first.joins([node], reader) and second.joins([reader], node))

    def _is_kept(self, v: Var, besides: set[Node | None], until: int) -> bool:
        """Whether a variable lives beyond node number ``until`` anyway, because another node reads it later."""
        others = self.readers[v] - besides
        return v not in self.origin or any(other is None or self.number.get(other, -1) > until for other in others)

    def _takes(self, node: Node, before: Sequence[Node]) -> bool:
        """Whether the group of a node also accepts the nodes that were deferred to it."""
        last, lowering = self._last([*before, node]), self.lowerings(node.op.name)
        if self._may_join(node, last):
            return all(self._may_join(each, last) for each in before)
        return lowering is not None and all(lowering.joins([node], each) for each in before)

    def _may_join(self, node: Node, last: int) -> bool:
        """Whether the group ``last`` accepts a node; it cannot read a view that is made after the group."""
        group = self.groups[last]
        return group.lowering is not None and self._is_open(node, last) and group.lowering.joins(group.nodes, node)

    def _is_open(self, node: Node, last: int) -> bool:
        moved = any(v in self.moved and self.maker[v] == last for v in node.inputs)
        return not self.groups[last].is_closed and not moved

    def _last(self, nodes: Sequence[Node]) -> int:
        """The group after which all operands of these nodes are available."""
        inside = {v for node in nodes for v in node.outputs}
        return max((self.maker.get(v, 0) for node in nodes for v in node.inputs if v not in inside), default=0)

    def _put(self, node: Node, before: Sequence[Node] = ()) -> None:
        lowering = self.lowerings(node.op.name)
        last = self._last([*before, node])
        view = None if lowering is None or node.outputs[0] in self.returned else lowering.view(node)
        if view is not None or (lowering is None and node.op.is_data_movement):
            self.groups[last].views.append(Step((node,), view=view))
            self.moved.update(node.outputs)
        else:
            last = self._place(node, lowering, last)
            self.groups[last].nodes += [*before, node]
        self.maker.update((v, last) for each in (*before, node) for v in each.outputs)

    def _place(self, node: Node, lowering: Lowering | None, last: int) -> int:
        """The group of a node that reads nothing after the group ``last``; a new one if no other accepts it."""
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


def _order_steps(groups: _Groups, readers: Readers) -> Iterator[Step]:
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
    """The nodes of the group's lowering that do not read results of nodes that joined."""
    anchors: list[Node] = []
    joined: set[Var] = set()
    for node in group.nodes:
        if lowerings(node.op.name) is group.lowering and joined.isdisjoint(node.inputs):
            anchors.append(node)
        else:
            joined.update(node.outputs)
    return anchors


def _with_tape(groups: _Groups, places: Sequence[int], readers: Readers) -> dict[int, Step]:
    """The steps of groups of one key, where the first writes a tape that the others read; none if that fails."""
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
    """One task for all nodes if there is one, else for parts. A single node without a task is a view, or NumPy's."""
    nodes, lowering = group.nodes, group.lowering
    task = None if lowering is None else lowering.task(_work(nodes, readers))
    if task is not None or len(nodes) == 1:
        yield Step(tuple(nodes), task, None if lowering is None or task is not None else lowering.view(nodes[0]))
        return
    for part in _parts(group, lowerings, readers):
        yield from _without_tape(part, lowerings, readers)


def _parts(group: _Group, lowerings: Lowerings, readers: Readers) -> Iterator[_Group]:
    """The anchors with as many joined nodes as have a task, and the rest; else halves of the anchors."""
    assert group.lowering is not None
    anchors = _anchors(group, lowerings)
    anchored = {*anchors}
    joined = [node for node in group.nodes if node not in anchored]
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
    """How many joined nodes, fewer than all, can stay in the task; None if the anchors alone have no task."""
    taken = len(joined)
    while taken:
        taken //= 2
        if lowering.task(_work([*anchors, *joined[:taken]], readers)) is not None:
            return taken
    return None


# --- tasks that prepare operands --------------------------------------------------------------------------------------


class _Prepared:
    """Puts the tasks that prepare operands in front of those that read them, each once."""

    def __init__(self, fixed: set[Var]) -> None:
        self.fixed = fixed
        self.made: dict[Hashable, Task] = {}
        self.replacements: dict[Var, Var] = {}

    def with_before(self, step: Step) -> Iterator[Step]:
        if step.task is None:
            yield step
            return
        chosen = self._chosen(step.task)
        for task in chosen.before:
            yield from self._once(task)
        yield replace(step, task=self._reading(chosen))

    def _chosen(self, task: Task) -> Task:
        """The task, or the one that needs no prepared operands if these would be prepared at every call."""
        is_once = all(self.fixed.issuperset(before.inputs) for before in task.before)
        return task if is_once or task.unprepared is None else task.unprepared

    def _once(self, task: Task) -> Iterator[Step]:
        task = self._chosen(task)
        for earlier in task.before:
            yield from self._once(earlier)
        task = self._reading(task)
        key = task.share, task.inputs
        if task.share is not None and key in self.made:
            self.replacements.update(zip(task.outputs, self.made[key].outputs, strict=True))
            return
        self.made[key] = task
        yield Step((), task)

    def _reading(self, task: Task) -> Task:
        """The task with operands that earlier tasks have prepared already."""
        return replace(task, inputs=tuple(self.replacements.get(v, v) for v in task.inputs), before=())
