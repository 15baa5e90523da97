"""What the planner asks of a backend, and what the backend answers: work, and tasks that carry it out.

A compiled kernel is ``void kernel(const int64_t *args, intptr_t lo, intptr_t hi, char *workspace)``: it carries out the
work units ``lo … hi - 1`` of what its block of arguments describes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

from gradspec.codegen.cache import Kernel
from gradspec.graph.ir import Array, Node, Var
from gradspec.graph.types import TensorType

Bound = tuple[bytes, int, int]
"""A block of arguments, the units of work that it describes, and the workspace that they take."""


@dataclass(frozen=True)
class Work:
    """What a lowering is asked to carry out in one task."""

    nodes: tuple[Node, ...]
    """In order; several when their keys agree, or when later ones joined the first."""
    outputs: tuple[Var, ...]
    """The variables among the nodes' outputs that anything outside reads, in order."""
    tape: Var | None = None
    """A tensor that carries what a first task found to later nodes of the same key."""
    reads_tape: bool = False
    """Whether these nodes come later and read the tape; otherwise this task writes it."""


@dataclass(frozen=True)
class Task:
    """One call of a kernel. Its arrays may have any strides; outputs never overlap inputs."""

    kernel: str
    """What the plan shows, such as ``"max_pool f32, winners"``."""
    inputs: tuple[Var, ...]
    """Variables read, a tape among them where one is read."""
    outputs: tuple[Var, ...]
    """Variables written, a tape among them where one is written."""
    function: Kernel
    units: int
    """How many units of work there are, for C-contiguous arrays; they are independent of each other."""
    cost: float
    """Nanoseconds on one thread, roughly: small work stays in the calling thread."""
    workspace: int
    """Bytes per thread for C-contiguous arrays, a multiple of 64."""
    bind: Callable[..., Bound]
    """``bind(*inputs, *outputs)``: what the kernel is given for these arrays.

    It depends on their addresses and strides only and is kept for arrays that have the same. What else a block points
    to lives as long as the task.
    """
    keeps_layout: bool = False
    """Whether a fresh result is laid out like the first input where that is not C-contiguous."""
    before: tuple[Task, ...] = ()
    """Tasks that make operands of this one, such as weights in the order in which the kernel reads them.

    What they write are variables that no node has. They run once, when constants are attached, if they read constants
    only, and otherwise at every call, just before this task.
    """
    unprepared: Task | None = None
    """What takes the place of this task and those before it if they would run at every call."""
    share: Hashable = None
    """Tasks in front of others that have equal keys and read the same variables are one; None: this one is alone."""
    checks: tuple[tuple[Var, Callable[[Array], None]], ...] = ()
    """Inputs whose numbers a function looks at, at every call before the task runs; it raises what is wrong with them.

    Binding is not the place for that: the same memory may hold other numbers at the next call.
    """


View = Callable[[Array], Array]


class Lowering(Protocol):
    """How a backend carries out an operator."""

    def key(self, node: Node) -> Hashable | None:
        """Nodes with equal keys may share one task; None: the node stays alone."""

    def tape(self, node: Node) -> TensorType | None:
        """What a node that comes after the first of its key would like to be kept; None: nothing."""

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        """Whether the task of ``nodes``, the first of which is lowered here, may carry out ``node`` as well.

        Asked of the step that makes the node's last operand.
        """

    def ends(self, nodes: Sequence[Node], node: Node) -> bool:
        """Whether the task of ``nodes`` may carry out ``node`` as its last one.

        Asked if nothing but these nodes reads what ``nodes`` make, so that the results of ``node`` are the only ones.
        """

    def view(self, node: Node) -> View | None:
        """What gives the node's result as a view of its one operand, which it copies only if it must; None: a task."""

    def task(self, work: Work) -> Task | None:
        """The task, or None where no kernel does this."""


class LoweringBase:
    """The usual answers: a node is carried out alone, by a task."""

    def key(self, node: Node) -> Hashable | None:
        return None

    def tape(self, node: Node) -> TensorType | None:
        return None

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        return False

    def ends(self, nodes: Sequence[Node], node: Node) -> bool:
        return False

    def view(self, node: Node) -> View | None:
        return None

    def task(self, work: Work) -> Task | None:
        return None
