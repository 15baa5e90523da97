"""Frames: what one call of a plan works in, and what it need not do again.

Values lie in a list of numbered slots: inputs first, then constants, then what the steps make. Tasks write into the
arena or, where the graph returns the result, into an array of its own; NumPy steps make arrays that may be views.

Tasks are not carried out one by one. Their arguments are put together in order, and what is ready runs as one job when
Python needs a result, at the latest at the end. A frame keeps the arguments of tasks whose arrays never change, being
in the arena or constant, and those of the others for the next call, which may bring the same addresses and strides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import ref

import numpy as np
from numpy import empty, ndarray

from gradspec.codegen.addresses import address, block_address, function_address
from gradspec.graph.ir import Array, Var
from gradspec.runtime import threads as pool
from gradspec.runtime.backend import ArrayFunction
from gradspec.runtime.group import Step
from gradspec.runtime.memory import aligned_bytes
from gradspec.runtime.plan import Plan, most_threads
from gradspec.runtime.scheduler import LONG, Steps, encoded
from gradspec.runtime.task import Bound, Task, View

Values = list[Any]


class Constants(list[Any]):
    """The arrays of constants, in order of their slots. Frames know those that they were prepared for."""

    __slots__ = ("__weakref__",)


Action = Callable[[Values, "Frame"], None]

Arguments = tuple[Bound, int, bytes]
"""What a task is bound to, the workspace that it takes then, and the step of a job that it is."""


class Frame:
    """Memory for one call at a time: the arena's buffers as arrays, a workspace, and the arguments of tasks."""

    def __init__(self, plan: Plan, slots: Mapping[Var, int]) -> None:
        arena, at = aligned_bytes(plan.arena_bytes), plan.arena
        self.values = [ndarray(v.shape, v.dtype.numpy, arena, at[v]) if v in at else None for v in plan.made]
        self._plan, self._slots = plan, slots
        self._tasks = [step.task for step in plan.steps if step.task is not None]
        self._functions = [function_address(task.function) for task in self._tasks]
        self._steps = Steps(len(self._tasks))
        self._bound: list[Any] = [None] * len(self._tasks)
        self._stride = plan.workspace
        self._actions: list[Action] = []
        self._input_actions: list[Action] = []
        self._inputs: Any = None
        self._workers: dict[tuple[int, int], int] = {}
        self._done, self._threads = 0, 1
        self._constants: ref[Constants] | None = None
        self.dropped: list[int] = []
        self.reserve(0)

    def reserve(self, room: int) -> None:
        """Have a workspace of that many bytes; what the old one held is lost."""
        self._memory: Array | None = None
        self._memory, self.room = aligned_bytes(room), room
        self._workspace = address(self._memory)

    @property
    def nbytes(self) -> int:
        return self._plan.arena_bytes + self.room

    def run(self, values: Values, threads: int) -> None:
        """Carry out the plan on the values of the first slots, and fill the others."""
        self._done, self._threads = 0, threads
        if self._input_actions:
            self._look_at_inputs(values)
        for act in self._actions:
            act(values, self)
        self.catch_up(values, len(self._tasks))

    def _look_at_inputs(self, values: Values) -> None:
        """Bind what depends on inputs only, unless they are where they were at the last call."""
        found = [(address(a), a.strides) for a in values[: len(self._plan.inputs)]]
        if found != self._inputs:
            self._inputs = None
            for act in self._input_actions:
                act(values, self)
            self._inputs = found

    def catch_up(self, values: Values, end: int) -> None:
        """Carry out the tasks before ``end`` that are ready, then let go of arrays that they were the last to read."""
        first, self._done = self._done, end
        if first < end:
            workers = self._workers_for(first, end)
            if self.room < workers * self._stride:
                self.reserve(workers * self._stride)
            if workers == 1 and end - first == 1 and self._tasks[first].cost < LONG:
                self._run_one(first)
            else:
                job = self._steps.job(first, end, workers)
                pool.carry_out(job, self._workspace, self._stride, workers)
        for slot in self.dropped:
            values[slot] = None
        self.dropped.clear()

    def is_behind(self, end: int) -> bool:
        return self._done < end

    def _workers_for(self, first: int, end: int) -> int:
        most = self._workers.get((first, end))
        if most is None:
            most = self._workers[first, end] = most_threads(self._tasks[first:end])
        return min(most, self._threads)

    def _run_one(self, i: int) -> None:
        block, units, _ = self._bound[i]
        if units:
            self._tasks[i].function(block_address(block), 0, units, self._workspace)

    # --- arguments --------------------------------------------------------------------------------------------------

    def arguments(self, i: int, arrays: Sequence[Array]) -> Arguments:
        """Those of task ``i`` for its arrays."""
        task = self._tasks[i]
        block, units, workspace = bound = bound_to(task, arrays)
        return bound, workspace, encoded(self._functions[i], block_address(block), units, task.cost)

    def put(self, i: int, arguments: Arguments) -> None:
        """Let task ``i`` have these arguments."""
        self._bound[i], workspace, described = arguments
        self._steps.put(i, described)
        if self._stride < workspace:
            self._stride = workspace

    def prepare(self, fixed: Constants) -> None:
        """Bind what depends on the arena and on these constants only, and list what is left to do at every call."""
        if self._constants is None or self._constants() is not fixed:
            self._constants = self._inputs = None
            preparation = _Preparation(self, self._plan, self._slots, fixed)
            self._actions, self._input_actions = [*preparation.actions()], preparation.input_actions
            self._constants = ref(fixed)


def bound_to(task: Task, arrays: Sequence[Array]) -> Bound:
    """The block of arguments, the units of work and the workspace."""
    return task.bind(*arrays) if task.units else (b"", 0, 0)


# --- what is done at every call ---------------------------------------------------------------------------------------


class _Preparation:
    """A plan on its way to actions, for a frame and constants."""

    def __init__(self, frame: Frame, plan: Plan, slots: Mapping[Var, int], fixed: Values) -> None:
        self.frame, self.plan, self.slots = frame, plan, slots
        self.values = [*([None] * len(plan.inputs)), *fixed, *frame.values]
        self.same = {v for v, slot in slots.items() if self.values[slot] is not None}
        """Variables whose arrays are the same at every call."""
        self.there = {*plan.inputs}
        """Variables whose arrays are filled without any task that may still have to run."""
        self.tasks = 0
        """How many tasks came before."""
        self.input_actions: list[Action] = []
        """What binds tasks to inputs: it may be done at once, and need not be done if they have not moved."""

    def actions(self) -> Iterator[Action]:
        for number, step in enumerate(self.plan.steps):
            if step.task is not None:
                yield from self._task(step.task)
            elif step.view is not None:
                yield from self._view(step, step.view)
            else:
                yield self._numpy(step)
            drops = self._drops(number, step)
            if drops:
                yield partial(_drop, drops)

    def _at(self, variables: Iterable[Var]) -> list[int]:
        return [self.slots[v] for v in variables]

    def _task(self, task: Task) -> Iterator[Action]:
        number, variables = self.tasks, (*task.inputs, *task.outputs)
        for v, check in task.checks:
            is_there = v in self.there or v not in self.plan.made
            yield _check_action(check, self.slots[v], 0 if is_there else number)
        self.tasks += 1
        if self.same.issuperset(variables):
            self.frame.put(number, self.frame.arguments(number, [self.values[i] for i in self._at(variables)]))
            return
        fresh = [(self.slots[v], v.shape, v.dtype.numpy) for v in task.outputs if v not in self.plan.arena]
        like = self.slots[task.inputs[0]] if task.keeps_layout else None
        varying = [v for v in variables if v not in self.same]
        act = _bind_action(number, self._at(variables), self._at(varying), fresh, like)
        if {*self.plan.inputs}.issuperset(varying):
            self.input_actions.append(act)
        else:
            yield act

    def _view(self, step: Step, view: View) -> Iterator[Action]:
        (read,), (written,) = self._at(step.inputs), self._at(step.outputs)
        if self.same.issuperset(step.inputs):
            result = view(self.values[read])
            if np.may_share_memory(result, self.values[read]):
                self.values[written] = self.frame.values[written - len(self.values)] = result
                self.same.update(step.outputs)
                return
        is_there = self.there.issuperset(step.inputs)
        self.there.update(step.outputs if is_there else ())
        yield _view_action(view, read, written, 0 if is_there else self.tasks)

    def _numpy(self, step: Step) -> Action:
        self.there.update(step.outputs)
        (node,) = step.nodes
        kernel = self.plan.backend.kernel(node.op, node.attrs, tuple(v.type for v in node.inputs))
        return _numpy_action(kernel, self._at(step.inputs), self._at(step.outputs), step.may_alias, self.tasks)

    def _drops(self, number: int, step: Step) -> list[int]:
        """What the step is the last to read, and nobody keeps."""
        kept = {*self.plan.inputs, *self.same}
        return self._at(v for v in {*step.inputs} - kept if self.plan.last_use[v] == number)


def _drop(slots: Sequence[int], values: Values, frame: Frame) -> None:
    frame.dropped += slots


MOST_BINDINGS = 8
"""How many arrays of a task are remembered: results in fresh arrays tend to come back to the same addresses."""


def _bind_action(
    number: int,
    slots: Sequence[int],
    varying: Sequence[int],
    fresh: Sequence[tuple[int, Any, Any]],
    like: int | None,
) -> Action:
    """Make the arrays of the task's results that are not in the arena, and bind it unless nothing has moved."""
    known: dict[Any, Arguments] = {}
    last: Any = None

    def act(values: Values, frame: Frame) -> None:
        nonlocal last
        for slot, shape, dtype in fresh:
            values[slot] = _result(values[slot], shape, dtype, None if like is None else values[like])
        found = tuple([(address(values[i]), values[i].strides) for i in varying])
        if found == last:
            return
        arguments = known.get(found)
        if arguments is None:
            if len(known) >= MOST_BINDINGS:
                known.clear()
            arguments = known[found] = frame.arguments(number, [values[i] for i in slots])
        last = None
        frame.put(number, arguments)
        last = found

    return act


def _check_action(check: Callable[[Array], None], slot: int, tasks: int) -> Action:
    def act(values: Values, frame: Frame) -> None:
        if frame.is_behind(tasks):
            frame.catch_up(values, tasks)
        check(values[slot])

    return act


def _view_action(view: View, read: int, written: int, tasks: int) -> Action:
    def act(values: Values, frame: Frame) -> None:
        operand = values[read]
        result = view(operand)
        if frame.is_behind(tasks) and not np.may_share_memory(result, operand):  # a copy of what is not there yet
            frame.catch_up(values, tasks)
            result = view(operand)
        values[written] = result

    return act


def _numpy_action(
    kernel: ArrayFunction, reads: Sequence[int], writes: Sequence[int], may_alias: bool, tasks: int
) -> Action:
    def act(values: Values, frame: Frame) -> None:
        frame.catch_up(values, tasks)
        operands = [values[i] for i in reads]
        for slot, result in zip(writes, kernel(*operands), strict=True):
            values[slot] = result if may_alias else _apart(result, operands)

    return act


def _apart(result: Array, operands: Sequence[Array]) -> Array:
    """The result, or a copy if it is an operand or a view of one."""
    if result.base is None:
        shared = any(result is a for a in operands)
    else:
        shared = any(np.may_share_memory(result, a) for a in operands)
    return result.copy() if shared else result


def _result(out: Array | None, shape: Any, dtype: Any, like: Array | None) -> Array:
    """What a task writes a result into: ``out``, if it is laid out as kernels write, or a fresh array."""
    if like is None or like.flags.c_contiguous or _repeats(like):
        return empty(shape, dtype) if out is None or not out.flags.c_contiguous else out
    fresh = np.empty_like(like, dtype, "K", False, shape)
    return fresh if out is None or not (out.flags.c_contiguous or out.strides == fresh.strides) else out


def _repeats(array: Array) -> bool:
    """Whether cells share memory along some axis, so that the strides say nothing of an order among its axes."""
    return any(stride == 0 and size > 1 for size, stride in zip(array.shape, array.strides, strict=True))
