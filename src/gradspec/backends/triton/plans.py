"""Plans: what is allocated, copied and launched for tensors of given types, settled once and then repeated.

A repeated call looks its plan up, allocates the results and launches. Nothing else depends on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from gradspec.backends.triton.geometry import Shape, dense
from gradspec.graph.lru import LRUCache

MOST_OPERATORS, MOST_PLANS = 1024, 64
"""Operators that are remembered, and plans for each."""
WARPS = 4
"""Warps of a program."""


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
        self, kernel: Any, programs: int, slots: Sequence[Slot], numbers: Sequence[int], known: dict[str, Any]
    ):
        self.kernel, self.grid, self.known = kernel, (programs, 1, 1), known
        self.slots, self.numbers = tuple(slot.number for slot in slots), tuple(numbers)
        self.rest: tuple[Any, ...] = ()
        self.run: Callable[..., Any] | None = None

    def __call__(self, tensors: list[Tensor]) -> None:
        given = [tensors[i] for i in self.slots]
        if self.run is not None:
            self.run(*given, *self.rest)
            return
        compiled = self.kernel[self.grid](*given, *self.numbers, **self.known, num_warps=WARPS)
        if compiled is not None:  # the interpreter compiles nothing
            # Triton would find it again for every call by the kinds of all arguments, which a plan knows.
            names = self.kernel.arg_names[len(given) + len(self.numbers) :]
            self.rest = *self.numbers, *(self.known[name] for name in names)
            self.run = compiled[self.grid]


class Planner:
    """Makes the plan of a call for tensors like these."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self.device = tensors[0].device
        self.steps: list[Step] = []
        self.given = [Slot(i, tuple(t.shape), t.stride(), t.dtype) for i, t in enumerate(tensors)]
        self._count = len(tensors)

    def empty(self, shape: Shape, strides: Shape, dtype: torch.dtype) -> Slot:
        device, make = self.device, torch.empty_strided
        self.steps.append(lambda tensors: tensors.append(make(shape, strides, dtype=dtype, device=device)))
        return self._next(shape, strides, dtype)

    def constant(self, tensor: Tensor, shape: Shape, strides: Shape) -> Slot:
        """A tensor that kernels see with this shape and these strides."""
        there = tensor.to(self.device)
        self.steps.append(lambda tensors: tensors.append(there))
        return self._next(shape, strides, tensor.dtype)

    def laid(self, slot: Slot, strides: Shape) -> Slot:
        """The same numbers with other strides, copied if need be; an axis of one index may have any."""
        if all(n == 1 or a == b for n, a, b in zip(slot.shape, slot.strides, strides, strict=True)):
            return slot._replace(strides=strides)
        found, source = self.empty(slot.shape, strides, slot.dtype), slot.number

        def copy(tensors: list[Tensor]) -> None:
            tensors[-1].copy_(tensors[source])

        self.steps.append(copy)
        return found

    def plain(self, slot: Slot, like: Slot | None = None) -> Slot:
        """The same numbers, dense in the order in which the axes, or those of ``like``, lie."""
        return self.laid(slot, dense(slot.shape, (slot if like is None else like).strides))

    def launch(self, kernel: Any, programs: int, slots: Sequence[Slot], numbers: Sequence[int], **known: Any) -> None:
        self.steps.append(Launch(kernel, programs, slots, numbers, known))

    def _next(self, shape: Shape, strides: Shape, dtype: torch.dtype) -> Slot:
        self._count += 1
        return Slot(self._count - 1, shape, strides, dtype)


class LaunchPlan:
    """The steps of a call, and which of the tensors are its results."""

    def __init__(self, planner: Planner, results: Sequence[Slot]) -> None:
        self.steps = planner.steps
        self.results = tuple(slot.number for slot in results)
        several = planner.device.type == "cuda" and torch.cuda.device_count() > 1
        self.device = planner.device if several else None
        """Where to launch, if there is a choice."""

    def __call__(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        if self.device is None:
            return self._carried_out(given)
        with torch.cuda.device(self.device):
            return self._carried_out(given)

    def _carried_out(self, given: Sequence[Tensor]) -> tuple[Tensor, ...]:
        tensors = list(given)
        for step in self.steps:
            step(tensors)
        return tuple([tensors[i] for i in self.results])


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
            plan = LaunchPlan(planner, self.rule(planner, self.settings, *planner.given))
            self.plans.put(key, plan)
        return plan


operator = lru_cache(maxsize=MOST_OPERATORS)(Operator)
"""The operator of a rule and its settings, made once."""
