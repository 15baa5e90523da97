"""Targets whose kernels take arrays of a library, on any device: calls go there, and results come back, together."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gradspec.conformance.model.device import Memory
from gradspec.conformance.model.problem import Call, Results
from gradspec.conformance.model.target import Answer, NotOfferedError, Target
from gradspec.graph.lru import LRUCache
from gradspec.system.host import OverrunError

MOST_FUNCTIONS = 64


class ArrayTarget(Target):
    """``run`` sends the arrays of a call, has it computed, and fetches the results."""

    array: str
    """The library of its arrays."""
    mutates: tuple[str, ...] = ()
    """Arrays that a call may write into."""

    @property
    def library(self) -> str:  # type: ignore[override]
        return self.array

    @abstractmethod
    def compute(self, call: Call) -> Mapping[str, Any]:
        """The results of a call whose arrays are the library's, and on the device."""

    def staged(self, call: Call) -> Call:
        """The call as it is sent, or ``NotOfferedError``."""
        return call

    def settings(self) -> AbstractContextManager[Any]:
        """What calls are made in."""
        return nullcontext()

    def memory(self) -> Memory:
        """Where arrays are put for its kernels."""
        return self.device.memory(self.library)

    def run(self, call: Call) -> Results:
        (answer,) = self.run_all([call])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def run_all(self, calls: Sequence[Call]) -> list[Answer]:
        """What calls give or raise, made together; one by one if any of them fails: on a device that shows late, and
        then in whichever call comes next.
        """
        answers = self._made(calls)
        if len(calls) > 1 and any(isinstance(a, Exception) and not isinstance(a, NotOfferedError) for a in answers):
            return [answer for call in calls for answer in self._made([call])]
        return answers

    def written(self, call: Call, outs: Results, write: Callable[[Call, Any], object]) -> None:
        """Have a call write into given arrays: ``write`` is given them, or the only one, where kernels find them."""
        memory, staged = self.memory(), self.staged(call)
        with self.settings(), self.device.told():
            cargo = memory.put([staged.arrays(), outs], self.device.fill)
            parts = tuple(cargo.calls[1][name] for name in call.problem.results(call.mode) if name in outs)
            write(staged.with_arrays(cargo.calls[0]), parts[0] if len(parts) == 1 else parts)
            memory.synchronise()
            cargo.require_whole(outs)
            (found,) = memory.get([cargo.calls[1]])
        for name, array in found.items():
            outs[name][...] = array

    def _made(self, calls: Sequence[Call]) -> list[Answer]:
        try:
            with self.settings(), self.device.told():
                return self._answers(calls)
        except Exception as error:  # of the transfers, or of whatever the target raises
            return [error] * len(calls)

    def _answers(self, calls: Sequence[Call]) -> list[Answer]:
        staged = [_or_refused(self.staged, call) for call in calls]
        memory, sent = self.memory(), [call for call in staged if isinstance(call, Call)]
        cargo = memory.put([call.arrays() for call in sent], self.device.fill)
        watching = memory.watched(self.device.fill) if self.is_own else nullcontext()
        with watching as watch:
            moved = (call.with_arrays(arrays) for call, arrays in zip(sent, cargo.calls, strict=True))
            given = [_or_refused(self.compute, call) for call in moved]
            memory.synchronise()
            if watch is not None and not watch.is_whole():
                raise OverrunError("")
            cargo.require_whole(self.mutates)
        fetched = iter(memory.get([results for results in given if not isinstance(results, NotOfferedError)]))
        computed = iter([part if isinstance(part, NotOfferedError) else next(fetched) for part in given])
        return [call if isinstance(call, NotOfferedError) else next(computed) for call in staged]


class LibraryTarget(ArrayTarget):
    """A library whose users write a call as an expression, which is run and printed."""

    def __init__(self) -> None:
        self._functions = LRUCache[Callable[..., Any]](MOST_FUNCTIONS)

    @abstractmethod
    def expression(self, call: Call) -> str:
        """What gives the value, in terms of the inputs' names."""

    @abstractmethod
    def made_function(self, call: Call) -> Callable[..., Any]:
        """The function of a call's arrays that gives all results of its mode."""

    def function(self, call: Call) -> Callable[..., Any]:
        """The same, made once for a problem, and kept while it is used."""
        key = repr((call.problem, call.mode, call.variant))
        return self._functions.get_or_make(key, lambda: self.made_function(call))


def _or_refused(function: Any, call: Call) -> Any:
    try:
        return function(call)
    except NotOfferedError as why:
        return why
