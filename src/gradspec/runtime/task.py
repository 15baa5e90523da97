"""Backends: how they lower the operators of a graph to tasks.

A compiled kernel is ``void kernel(const int64_t *args, intptr_t lo, intptr_t hi, char *workspace)``: it carries out the
work units ``lo … hi - 1`` of what its block of arguments describes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from gradspec.codegen.cache import Kernel
from gradspec.graph.ir import Array, Attributes, Node, Op, Provided, Var
from gradspec.graph.types import TensorType
from gradspec.spec.errors import UnsupportedError

Bound = tuple[bytes, int, int]
"""A block of arguments, its units of work, and the bytes of workspace that they need."""


@dataclass(frozen=True)
class Work:
    """The nodes that one task is to carry out."""

    nodes: tuple[Node, ...]
    """In order. There are several if their keys are equal, or if later ones joined the first."""
    outputs: tuple[Var, ...]
    """The outputs of the nodes that other nodes or the caller read, in order."""
    tape: Var | None = None
    """A tensor that carries intermediate results of the first task to later nodes of the same key."""
    reads_tape: bool = False
    """Whether these nodes come later and read the tape; otherwise this task writes it."""


@dataclass(frozen=True)
class Task:
    """One call of a kernel. Its arrays may have any strides; outputs never overlap inputs."""

    kernel: str
    """The description in the plan, such as ``"max_pool f32, winners"``."""
    inputs: tuple[Var, ...]
    """Variables read, a tape among them where one is read."""
    outputs: tuple[Var, ...]
    """Variables written, a tape among them where one is written."""
    function: Kernel
    units: int
    """The number of units of work for C-contiguous arrays. Units are independent of each other."""
    cost: float
    """Nanoseconds on one thread, roughly: small work stays in the calling thread."""
    workspace: int
    """Bytes per thread for C-contiguous arrays, a multiple of 64."""
    bind: Callable[..., Bound]
    """``bind(*inputs, *outputs)``: the kernel's arguments for these arrays.

    They depend on addresses and strides only, and are cached by these. Anything else that a block points to lives as
    long as the task.
    """
    keeps_layout: bool = False
    """Whether a fresh result is laid out like the first input where that is not C-contiguous."""
    before: tuple[Task, ...] = ()
    """Tasks that prepare operands of this one, such as weights packed in the order in which the kernel reads them.

    They write variables that belong to no node. Those that read constants only run once, when constants are attached;
    the others run at every call, just before this task.
    """
    unprepared: Task | None = None
    """A replacement for this task and those before it, used if these would run at every call."""
    share: Hashable = None
    """Preparing tasks with equal keys that read the same variables are merged; None: this one is not."""
    checks: tuple[tuple[Var, Callable[[Array], None]], ...] = ()
    """Inputs with a function that raises an error if their numbers are invalid, called before each run of the task.

    Binding cannot check them, since the same memory may hold other numbers at the next call.
    """


View = Callable[[Array], Array]


class Lowering:
    """How a backend carries out an operator. By default a node is carried out alone, by a task."""

    def key(self, node: Node) -> Hashable | None:
        """Nodes with equal keys may share one task; None: the node stays alone."""
        return None

    def tape(self, node: Node) -> TensorType | None:
        """The type of the tape that a node would read, if it comes after the first of its key; None: no tape."""
        return None

    def joins(self, nodes: Sequence[Node], node: Node) -> bool:
        """Whether the task of ``nodes``, the first of which is lowered here, may carry out ``node`` as well.

        The grouping asks this of the step that makes the node's last operand.
        """
        return False

    def ends(self, nodes: Sequence[Node], node: Node) -> bool:
        """Whether the task of ``nodes`` may carry out ``node`` as its last one.

        The grouping asks this if only these nodes read results of ``nodes``, so that those of ``node`` alone remain.
        """
        return False

    def view(self, node: Node) -> View | None:
        """A function that gives the result as a view of the one operand, or as a copy if it must; None: use a task."""
        return None

    def task(self, work: Work) -> Task | None:
        """The task, or None where no kernel does this."""
        return None


# --- backends ---------------------------------------------------------------------------------------------------------

COMPILED_ON = ("linux", "darwin")

Lowerings: TypeAlias = Callable[[str], Lowering | None]
"""From the name of an operator to its lowering, or None if it has none."""

ArrayFunction: TypeAlias = Callable[..., tuple[Array, ...]]
"""A function of a node's operands that returns its results."""


@dataclass(frozen=True)
class Backend:
    """Tasks for the operators that are lowered, and a function of arrays for any other."""

    lowering: Lowerings
    kernel: Callable[[Op, Attributes, tuple[TensorType, ...]], ArrayFunction]
    """An operator as a function of arrays of these types."""
    fallback: str
    """The description in a plan of a step without a task."""
    simplifies: bool
    """Whether graphs are simplified before they are planned."""


BACKENDS = Provided[Mapping[str, Backend]]()
"""All backends by name."""


def default_backend() -> str:
    """``"cpu"`` on systems whose object code can be loaded, else ``"numpy"``.

    >>> default_backend()
    'cpu'
    """
    return "cpu" if sys.platform in COMPILED_ON else "numpy"


def backend_named(name: str | None = None) -> Backend:
    """The backend of this name, or the default."""
    name, backends = name or default_backend(), BACKENDS()
    if name not in backends:
        names = " or ".join(f'backend="{other}"' for other in backends)
        raise UnsupportedError(f"there is no backend {name!r}; use {names}")
    if name == "cpu" and default_backend() != name:
        raise UnsupportedError(
            f"compiled kernels are for Linux and macOS, and this system is {sys.platform}; leave out backend, or give "
            'backend="numpy", which runs every graph'
        )
    return backends[name]
