"""Objects of users: found by ``module:object``, where a program can import them from, and what they declare."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.util import find_spec
from pathlib import PurePath
from typing import Any, Self

import numpy as np

from gradspec.conformance.judge.conventions import CONVENTIONS
from gradspec.conformance.model.case import check_blocks
from gradspec.conformance.model.device import BlockMemory, Device, HostMemory, Memory
from gradspec.conformance.model.problem import LAYOUTS, Call, Results
from gradspec.conformance.model.target import CALLERS, OVERLAP, Answer, HeldResults, IsLike
from gradspec.conformance.targets.arrays import ArrayTarget
from gradspec.conformance.targets.program import ARRAYS, BARE
from gradspec.system import host
from gradspec.system.hosting import KernelHost


def object_named(name: str) -> Any:
    """What ``module:object`` names, or ``module`` alone; the current folder is searched first."""
    return host.object_named(check_name(name))


def check_name(name: str) -> str:
    """The same name, if it is ``module:object`` or ``module``."""
    module, separator, path = name.partition(":")
    if not module or (separator and not path):
        raise ValueError(f"{name!r} is not a target; name one that gradspec knows, or give module:object")
    if module.endswith(".py"):
        folder, parts = "", PurePath(os.path.relpath(module)).with_suffix("").parts
        if parts[0] == os.pardir:
            folder, parts = "run the check in its folder, and ", parts[-1:]
        raise ValueError(f"{name!r} names a file; {folder}leave out .py: {'.'.join(parts)}{separator}{path}")
    _search_here()
    return name


def _search_here() -> None:
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())


def is_module(name: str) -> bool:
    """Whether there is a module of this name, in the current folder or installed; none is run but those around it.

    >>> is_module("json"), is_module("torchh"), is_module("kernels.py")
    (True, False, False)
    """
    _search_here()
    try:
        return find_spec(name) is not None
    except (ImportError, ValueError):  # of the package that it would be in
        return False


def home_of(found: Any) -> tuple[str, str] | None:
    """The module and the name from which a program can import an object: not one that is local, or the program's."""
    home = getattr(found, "__module__", None)
    if not isinstance(home, str) or home in ("__main__", "builtins") or home not in sys.modules:
        return None
    names = [name for name, value in vars(sys.modules[home]).items() if value is found]
    own = getattr(found, "__name__", "")
    return (home, own if own in names else names[0]) if names else None


class OwnTarget(ArrayTarget):
    """A user's object as a target, with what it declares and what is declared beside it."""

    is_own = True
    chooser = "specification"
    """Whose choices are made where no convention is declared."""

    def __init__(self, given: Any, host: KernelHost | None = None) -> None:
        """``given`` stands in for an object in a host, if there is one."""
        self._object, self.host = given, host
        self._declarations: dict[str, Any] = {}
        self._launched: dict[int, None] = {}

    def declared(self, name: str, default: Any) -> Any:
        """What was declared beside the object, or what it declares itself."""
        if name in self._declarations:
            return self._declarations[name]
        if isinstance(self._object, Mapping):
            return self._object.get(name, default)
        return getattr(self._object, name, default)

    def declaring(self, **declarations: Any) -> Self:
        """The same target, with declarations that go before those of the object; None and empty ones say nothing."""
        self._declarations |= {name: value for name, value in declarations.items() if value not in (None, ())}
        self.blocks = check_blocks(self.declared("blocks", ()))
        self.fresh_results, self.strict = (bool(self.declared(name, False)) for name in ("fresh_results", "strict"))
        for name in self.conventions():
            if name not in CONVENTIONS:
                raise ValueError(f"conventions names {name!r}, which is none; use some of {', '.join(CONVENTIONS)}")
        return self

    def containment(self) -> str:
        if self.host is None:
            return "nothing: the kernel is called in the process of its judge"
        home = self.name.partition(":")[0]
        told = "; ".join(self.host.contained)
        return f"{told}; but the judge has imported {home}, too, with its reference" if home in sys.modules else told

    def settings(self) -> AbstractContextManager[Any]:
        return super().settings() if self.host else host.tuned_in_turn(self._launched)

    # --- calls in a host

    def memory(self) -> Memory:
        if self.host is None:
            return super().memory()
        if self.device.is_host:
            return HostMemory("numpy")
        self.host.fill = self.device.fill
        return BlockMemory()

    def on(self, device: Device) -> Self:
        super().on(device)
        if self.host is not None and not device.is_host:
            self.host.device = device.in_host
        return self

    def run_all(self, calls: Sequence[Call]) -> list[Answer]:
        """On a device, too, one by one in a host: a block has the arrays of one call."""
        if self.host is None or self.device.is_host:
            return super().run_all(calls)
        return [answer for call in calls for answer in self._made([call])]

    def hold(self, call: Call) -> HeldResults:
        if self.host is None:
            return super().hold(call)
        with self.host.keeping():
            results = self.run(call)
        return _HeldThere(self.host, results)

    def race(self, calls: Sequence[Call], is_like: IsLike, yields: bool) -> list[tuple[int, Answer]]:
        if self.host is None or len(calls) < 2:
            return super().race(calls, is_like, yields)
        found = self.host.race([self._recorded(call) for call in calls], CALLERS, OVERLAP, yields)
        if found is None:
            return []
        index, given = found
        with self.host.scripted(lambda *_: _returned(given)):
            (answer,) = self.run_all([calls[index]])
        return [] if is_like(index, answer) else [(index, answer)]

    def _recorded(self, call: Call) -> tuple[Any, ...]:
        """The function of a call, and what it is given."""

        def record(*made: Any) -> None:
            raise _RecordedCall(made)

        assert self.host is not None
        try:
            with self.host.scripted(record):
                self.run(call)
        except _RecordedCall as made:
            return made.call
        raise AssertionError(f"{self.name} makes no call")

    # --- declarations

    def layouts(self) -> tuple[str, ...]:
        """Those that arrays of its library have; none where it has all."""
        return () if self.array in BARE else tuple(layout for layout in LAYOUTS if layout != "reversed")

    def conventions(self) -> frozenset[str]:
        return frozenset(self.declared("conventions", ()))

    def undeclared(self, conventions: Sequence[str]) -> str:
        missing = ", ".join(f'"{name}"' for name in conventions if name not in self.conventions())
        return f"which is not the {self.chooser}'s choice; declare conventions=[{missing}], or pass strict=False"

    def versions(self) -> dict[str, str]:
        own = str(self.declared("__version__", "no version"))
        return {self.name: own, "numpy": np.__version__, "python": platform.python_version()}

    def set_threads(self, count: int) -> bool:
        chosen = self.declared("set_threads", None)
        if chosen is not None:
            chosen(count)
        return chosen is not None


class _RecordedCall(BaseException):
    """A call that is not made; no ``except Exception`` may keep it."""

    def __init__(self, call: tuple[Any, ...]) -> None:
        super().__init__()
        self.call = call


def _returned(given: Any) -> Any:
    if isinstance(given, Exception):
        raise given
    return given


class _HeldThere(HeldResults):
    """Results of a call in the memory of the host."""

    def __init__(self, host: KernelHost, results: Results) -> None:
        self._host, self._first = host, results
        self._places = {name: next(i for i, p in enumerate(host.kept) if p is array) for name, array in results.items()}

    def now(self) -> Results:
        first, self._first = self._first, {}
        if first:  # they have just been told
            return first
        parts = self._host.held()
        found = {name: parts[place] for name, place in self._places.items() if place < len(parts)}
        return {name: array for name, array in found.items() if array is not None}

    def fill(self, value: int) -> None:
        self._host.held(value)


def check_library(name: Any) -> str:
    """The library of the arrays that a kernel takes, if it is one."""
    if name not in ARRAYS:
        raise ValueError(f"array is {name!r}; a kernel takes arrays of one of {', '.join(ARRAYS)}")
    return str(name)
