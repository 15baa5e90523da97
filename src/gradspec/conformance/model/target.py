"""Whom to judge. A target translates a call to its own API, as its users would write it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from importlib.metadata import version
from typing import Any, Self, TypeAlias

import numpy as np

from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.case import Selection
from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.domain import EVERYTHING, KernelDomain
from gradspec.conformance.model.problem import FLOATS, Call, Problem, Results
from gradspec.conformance.model.reference import Reference
from gradspec.system.host import raced


class NotOfferedError(Exception):
    """The target documents no such operator, rank, mode, dtype or attribute."""


Answer: TypeAlias = Results | Exception
"""What a call gives, or what it raises."""
IsLike: TypeAlias = Callable[[int, Answer], bool]
"""Whether what the call of an index gave is what it gives alone."""
CALLERS = 4
"""Threads that call at once."""
OVERLAP = 0.006
"""Seconds for which they do, on each call: a race that is there shows in some of them."""


def first_reason(reasons: Callable[[Problem, str], Iterator[str]]) -> Callable[[Problem, str], str | None]:
    """Of all reasons why something is not offered the first; None where there is none."""

    @wraps(reasons)
    def first(problem: Problem, mode: str) -> str | None:
        return next(reasons(problem, mode), None)

    return first


@dataclass(frozen=True)
class ExpectedError:
    """A call that must raise by the target's documentation."""

    op: str
    call: Callable[[], object]
    raises: tuple[type[BaseException], ...]
    source: str
    """The reproducer: the call as a program."""
    documented: str
    """What the documentation says, in our words, and where."""


class HeldResults:
    """Results of a call in the memory that the target put them in."""

    def __init__(self, results: Results) -> None:
        self._results = {name: np.asarray(array) for name, array in results.items()}

    def now(self) -> Results:
        """As they are now."""
        return self._results

    def fill(self, value: int) -> None:
        """Write a number into all of them, as their owner may."""
        for array in self._results.values():
            if array.flags.writeable:
                array.fill(value)


class Target(ABC):
    """Something that computes convolutions and poolings."""

    name: str
    packages: tuple[str, ...] = ()
    """What is installed for it, whose versions a run tells."""
    strict: bool = False
    """Whether it documents our semantics as its own: what is a convention elsewhere is a defect in it."""
    liberties: frozenset[str] = frozenset()
    """Modes of reduced precision that kernels like its own take, by the names of ``judge.reduced``."""
    repeatable: bool = False
    """Whether it promises the same bits for the same call: run after run, and with any number of threads."""
    fresh_results: bool = False
    """Whether it promises results in memory of their own, which the inputs do not share."""
    blocks: tuple[int, ...] = ()
    """Sizes of the blocks that it works in."""
    is_careful: bool = False
    """Whether a call that finds out what it refuses may end the process, and is first made in a copy of it."""
    threadsafe: bool = True
    """Whether it may be called from several threads at once."""
    compiles: bool = False
    """Whether every problem is compiled when it is first met: its neighbours are not tried then."""
    domain: KernelDomain = EVERYTHING
    """What it is made for, and so judged in."""
    is_own: bool = False
    """Whether kernels are the user's: what they allocate on a device is watched, and they may compile each geometry."""
    device: Device = HOST
    """Where its kernels run."""
    library: str = ""
    """Whose arrays its kernels take on a device; nothing where they run on the CPU alone."""

    @property
    def references(self) -> Sequence[Reference]:
        """What it is judged by beside the specification of its operators."""
        return ()

    def of_windows(self, selection: Selection) -> Selection | None:
        """What of a selection is about its operators of the specification."""
        return selection.of_windows

    def of_references(self, selection: Selection) -> Selection | None:
        """What of a selection is about its references."""
        return selection.of_references if self.references else None

    def declaring(self, **declarations: Any) -> Self:
        """The same target, with declarations beside its own; None and empty ones say nothing."""
        for name, value in declarations.items():
            if value not in (None, ()):
                raise ValueError(f"{name} is declared of kernels of your own; {self.name} documents what it does")
        return self

    def on(self, device: Device) -> Self:
        """The same target on a device."""
        if not device.is_host and not self.library:
            raise ValueError(f"{self.name} runs on CPUs alone, not on {device.name}; leave out device")
        if why := device.missing(self.library):
            raise ValueError(f"{self.name} cannot run on {device.name}: {why}")
        self.device = device
        return self

    def versions(self) -> dict[str, str]:
        """Of everything that takes part."""
        return {package: version(package) for package in self.packages}

    def observed(self) -> tuple[int, ...]:
        """Numbers that calls so far have shown, which may be its blocks."""
        return ()

    def may_decline(self, call: Call) -> bool:
        """Whether a call may be declined for its numbers, though others of the same shapes are taken.

        Kernels of users must declare that: ``numbers="finite"`` of NaNs and infinities, ``numbers="some"`` of all.
        """
        declared = self.domain.get("numbers") or ()
        special = (array for array in call.arrays().values() if array.dtype.kind not in "iub")
        return "some" in declared or ("finite" in declared and not all(np.isfinite(array).all() for array in special))

    def containment(self) -> str:
        """What the kernels are contained by, for reports; nothing of a library that is trusted."""
        return ""

    def may_race(self, call: Call) -> bool:
        """Whether a call may be made from several threads at once."""
        return self.threadsafe and not self.compiles

    def declines(self, problem: Problem, mode: str) -> str | None:
        """Why a case is none for the target: it is outside its domain, or not offered."""
        return self.domain.excludes(problem) or self.refusal(problem, mode)

    def named(self) -> dict[str, object]:
        """What programs call by a name that no module has."""
        return {}

    def takes(self, call: Call) -> bool:
        """Whether a call is one for the target, its layout included."""
        return self.declines(call.problem, call.mode) is None and self.domain.allows("layouts", call.layout)

    def within(self, domain: str) -> Self:
        """The same target, in a domain that goes before its own."""
        self.domain = KernelDomain.read(domain).over(self.domain)
        return self

    @abstractmethod
    def refusal(self, problem: Problem, mode: str) -> str | None:
        """Why the target offers no such thing, by its documentation; None where it does."""

    @abstractmethod
    def run(self, call: Call) -> Results:
        """What the target gives. ``NotOfferedError`` where that shows only now; any other exception is its own."""

    def run_all(self, calls: Sequence[Call]) -> list[Answer]:
        """What calls give that may be made together."""
        answers = list[Answer]()
        for call in calls:
            try:
                answers.append(self.run(call))
            except Exception as error:
                answers.append(error)
        return answers

    @abstractmethod
    def reproducer(self, call: Call) -> str:
        """A program of a few lines that makes this call in the target's own API and prints the results."""

    def variants(self, problem: Problem, mode: str) -> tuple[str, ...]:
        """The target's other ways to make the same call, beside ``plain``: each is judged like it."""
        return ()

    def arithmetic(self, problem: Problem) -> Arithmetic:
        """How the target documents to compute: by default, accumulated in float32 or wider and rounded once."""
        return Arithmetic.of(problem.dtype if problem.dtype in FLOATS else "f64")  # integers are not added

    def conventions(self) -> frozenset[str]:
        """The names of conventions (``judge.conventions``) that the target documents."""
        return frozenset()

    def undeclared(self, conventions: Sequence[str]) -> str:
        """What is said of choices that a strict target makes and does not document, after their names."""
        return "against its own documentation"

    def reduced(self) -> dict[str, str]:
        """Modes of reduced precision that the target documents, by the names of ``judge.reduced``, with the source."""
        return {}

    def composed(self, problem: Problem, mode: str) -> frozenset[str]:
        """The names of ``judge.reduced`` that are the documented arithmetic of such results themselves.

        The target's interface composes them of stored ones, as SEMANTICS derives for parts, so they pass: nothing is
        reduced that its users could have in full.
        """
        return frozenset()

    def run_into(self, call: Call, outs: Results) -> None:
        """The same call with its results written into given arrays: those that ``run`` names, of those shapes.

        ``NotOfferedError`` where the target takes no such arrays.
        """
        raise NotOfferedError(f"{self.name} writes into no given arrays")

    def hold(self, call: Call) -> HeldResults:
        """The results of a call as the target handed them out, to be looked at after later calls."""
        return HeldResults(self.run(call))

    def race(self, calls: Sequence[Call], is_like: IsLike, yields: bool) -> list[tuple[int, Answer]]:
        """Of calls from several threads at once the first that gives something else than alone, by its index.

        Threads yield after lines of Python, or do not.
        """

        def outcome(call: Call) -> Answer:
            try:
                return self.run(call)
            except Exception as error:  # whatever the target raises is its own doing
                return error

        return raced([partial(outcome, call) for call in calls], is_like, CALLERS, OVERLAP, yields)

    def set_threads(self, count: int) -> bool:
        """Compute with so many threads from now on; False where the target cannot be told."""
        return False

    def expected_errors(self) -> Sequence[ExpectedError]:
        """Calls that must raise."""
        return ()
