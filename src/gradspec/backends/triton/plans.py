"""Plans: what is allocated, copied and launched for tensors of given types, settled once and then repeated.

A repeated call looks its plan up, allocates the results and launches. Nothing else depends on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache, lru_cache
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor
from triton import knobs
from triton.compiler import ASTSource
from triton.runtime import JITFunction, driver
from triton.runtime.jit import mangle_type

from gradspec.backends.triton.geometry import LaneBlock, Lanes, Shape
from gradspec.graph.lru import LRUCache

MOST_OPERATORS, MOST_PLANS = 1024, 64
"""Operators that are remembered, and plans for each."""
WARPS = 4
"""Warps of a program."""
RESULTS = ("y", "yw", "yu", "dx")
"""The parameters of kernels for results, which are memory of a plan's own and begin at a multiple of 64 bytes."""


class Slot(NamedTuple):
    """A tensor of a plan: its number among them, and what is known of it beforehand."""

    number: int
    shape: Shape
    strides: Shape
    dtype: torch.dtype

    @property
    def is_empty(self) -> bool:
        return 0 in self.shape


Step = Callable[[list[Tensor]], None]
"""What is done to the tensors so far; it may add one."""


class Launch:
    """A kernel with everything but its tensors."""

    def __init__(
        self, kernel: Any, programs: int, slots: Sequence[Slot], arguments: Sequence[Any], constants: Sequence[Any]
    ):
        self.kernel, self.grid = kernel, (programs, 1, 1)
        self.slots, self.arguments, self.constants = [s.number for s in slots], tuple(arguments), tuple(constants)
        self.tensors = tuple(dict.fromkeys(self.slots))
        self.places = tuple(self.tensors.index(i) for i in self.slots)
        self.run: Callable[[list[int]], None] | None = None

    def __call__(self, tensors: list[Tensor]) -> None:
        if self.run is None:
            given = [tensors[i] for i in self.slots]
            if not isinstance(self.kernel, JITFunction):  # the interpreter compiles nothing
                self.kernel[self.grid](*given, *self.arguments, *self.constants)
                return
            self.run = launcher(self.compile(given), self.grid, flatten(self.arguments))
        addresses = [tensors[i].data_ptr() for i in self.tensors]  # each asked for once, which takes long
        self.run([addresses[i] for i in self.places])

    def compile(self, given: Sequence[Tensor]) -> Any:
        types = tuple(type_name(value) for value in (*given, *self.arguments))
        return compile_kernel(self.kernel, types, self.constants, driver.active.get_current_device())


def flatten(values: Iterable[Any]) -> tuple[Any, ...]:
    """What records hold, in a row."""
    return tuple(x for value in values for x in (flatten(value) if isinstance(value, tuple) else (value,)))


def type_name(value: Any) -> Any:
    """Triton's name for the type of an argument; for a record, such a record of names."""
    if not isinstance(value, tuple):
        return mangle_type(value)
    names = map(type_name, value)
    return type(value)(*names) if hasattr(value, "_fields") else tuple(names)


@cache
def compile_kernel(kernel: Any, types: tuple[Any, ...], constants: tuple[Any, ...], device: int) -> Any:
    """The kernel for arguments of these types, and these constants, wherever tensors lie and whatever their sizes are.

    A call of the kernel would compile another for numbers in records that are 1, or multiples of 16. Triton's launcher
    would take records apart at every call, which takes longer than the rest of it: it is told of what they hold.
    """
    signature, paths = list(types), dict[tuple[int, ...], Any]()
    for i, value in enumerate(constants, len(types)):
        is_record = isinstance(value, tuple)
        signature.append(type(value)(*["constexpr"] * len(value)) if is_record else "constexpr")
        paths |= {(i, k): field for k, field in enumerate(value)} if is_record else {(i,): value}
    results = (i for i, name in enumerate(kernel.arg_names) if name in RESULTS)
    aligned = {(i,): [["tt.divisibility", 16]] for i in results}
    source = ASTSource(kernel, dict(zip(kernel.arg_names, signature, strict=True)), paths, aligned)
    found = triton.compile(source, target=driver.active.get_current_target(), options={"num_warps": WARPS})
    found.src = SimpleNamespace(signature=dict(enumerate(flatten(types))), constants={})
    return found


def launcher(compiled: Any, grid: tuple[int, int, int], rest: tuple[Any, ...]) -> Callable[[list[int]], None]:
    """A compiled kernel as a function of addresses.

    ``compiled[grid]`` describes every launch to hooks, such as those of a profiler. Mostly there are none, and Triton's
    launcher can be called at once.
    """
    described, hooks = compiled[grid], knobs.runtime
    launch, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    device, stream = driver.active.get_current_device(), driver.active.get_current_stream

    def run(addresses: list[int]) -> None:
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            described(*addresses, *rest)
        else:
            launch(*grid, stream(device), function, metadata, None, None, None, *addresses, *rest)

    return run


def allocator(device: torch.device) -> Callable[[Shape, Shape, torch.dtype], Tensor]:
    """Makes tensors on the device, which is the current one, as compiled programs of torch do where there is a way."""
    direct = getattr(torch._C._dynamo.guards, f"_empty_strided_{device.type}", None)
    return direct or (lambda shape, strides, dtype: torch.empty_strided(shape, strides, dtype=dtype, device=device))


class Planner:
    """Makes the plan of a call for tensors like these."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.device = tensors[0].device
        self.steps: list[Step] = []
        self.given = [Slot(i, tuple(t.shape), t.stride(), t.dtype) for i, t in enumerate(tensors)]
        self._count = len(tensors)

    def empty(self, shape: Shape, strides: Shape, dtype: torch.dtype) -> Slot:
        make = allocator(self.device)
        self.steps.append(lambda tensors: tensors.append(make(shape, strides, dtype)))
        return self._next(shape, strides, dtype)

    def constant(self, tensor: Tensor, shape: Shape, strides: Shape) -> Slot:
        """A tensor that kernels see with this shape and these strides."""
        there = tensor.to(self.device)
        self.steps.append(lambda tensors: tensors.append(there))
        return self._next(shape, strides, tensor.dtype)

    def lay_out(self, slot: Slot, strides: Shape) -> Slot:
        """The same numbers with other strides, copied if need be; an axis of one index may have any."""
        if all(n == 1 or a == b for n, a, b in zip(slot.shape, slot.strides, strides, strict=True)):
            return slot._replace(strides=strides)
        found, source = self.empty(slot.shape, strides, slot.dtype), slot.number

        def copy(tensors: list[Tensor]) -> None:
            tensors[-1].copy_(tensors[source])

        self.steps.append(copy)
        return found

    def align(self, slot: Slot, numbers: int) -> Slot:
        """The same tensor, beginning at a multiple of so many numbers, as memory that torch allocates does; copied if
        need be."""
        i, size = slot.number, numbers * slot.dtype.itemsize

        def copy(tensors: list[Tensor]) -> None:
            if tensors[i].data_ptr() % size:
                tensors[i] = tensors[i].clone()

        if i < len(self.given):
            self.steps.append(copy)
        return slot

    def launch(
        self, kernel: Any, places: Lanes, size: int, slots: Sequence[Slot], arguments: Sequence[Any], *constants: Any,
        side: int = 1,
    ) -> None:  # fmt: skip
        """Run a kernel on these places, so many lanes in a program."""
        numbers, axes, wide = places
        block = LaneBlock(size, axes, wide, side)
        self.steps.append(Launch(kernel, -(-numbers.total // size), slots, (numbers, *arguments), (*constants, block)))

    def _next(self, shape: Shape, strides: Shape, dtype: torch.dtype) -> Slot:
        self._count += 1
        return Slot(self._count - 1, shape, strides, dtype)


LaunchPlan: TypeAlias = Callable[[Sequence[Tensor]], tuple[Tensor, ...]]
"""The steps of a call, as a function of its tensors."""


def make_plan(planner: Planner, results: Sequence[Slot]) -> LaunchPlan:
    steps, numbers, device = planner.steps, [slot.number for slot in results], planner.device

    def run(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        tensors = [*given]
        for step in steps:
            step(tensors)
        return tuple([tensors[i] for i in numbers])

    def run_there(given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        with torch.cuda.device(device):
            return run(given)

    return run_there if device.type == "cuda" and torch.cuda.device_count() > 1 else run


Rule: TypeAlias = Callable[..., tuple[Slot, ...]]
"""Says how an operator is carried out: it is given a planner, settings and slots, and returns those of the results."""


class Operator:
    """An operator with its settings, on tensors of any shape and memory; plans are remembered."""

    def __init__(self, rule: Rule, settings: Any) -> None:
        self.rule, self.settings = rule, settings
        self.plans = LRUCache[LaunchPlan](MOST_PLANS)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        return self.plan(tensors)(tensors)

    def plan(self, tensors: Sequence[Tensor]) -> LaunchPlan:
        """The plan for tensors like these, wherever on their device they are."""
        key = tuple([(t.shape, t.stride(), t.dtype, t.device) for t in tensors])
        plan = self.plans.get(key)
        if plan is None:
            planner = Planner(tensors)
            plan = make_plan(planner, self.rule(planner, self.settings, *planner.given))
            self.plans.put(key, plan)
        return plan


operator = lru_cache(maxsize=MOST_OPERATORS)(Operator)
"""The operator of a rule and its settings, made once."""
