"""Who takes part. A contender says how its users would write a problem; nothing here imports a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from gradspec.bench.data import Array
from gradspec.bench.grid import Problem

Variants = dict[str, Callable[[], Any]]
GIVEN, FIXED = "weights given", "weights fixed"  # in each call, or once before all calls


class NotOfferedError(Exception):
    """The library has no such operator, rank or mode."""


class Contender(Protocol):
    """What a worker process drives."""

    def versions(self) -> dict[str, str]:
        """Of everything that decides the speed."""

    def variants(self, problem: Problem) -> Variants:
        """Ways to write the problem, inputs prepared: calls that do all the work and return the results."""

    def arrays(self, results: Any) -> list[Array]:
        """What a call returned, as NumPy arrays in the order value, derivatives."""


@dataclass(frozen=True)
class Entry:
    """How a contender is called, and where a worker finds it."""

    name: str
    factory: str  # module:function, called with the number of threads
    needs: tuple[str, ...] = ()
    group: str = ""
    suites: tuple[str, ...] = ("pool", "conv", "net")  # where it takes part without being named

    def missing(self) -> list[str]:
        return [package for package in self.needs if find_spec(package) is None]


OURS = Entry("gradspec", "gradspec.bench.contenders.ours:Ours")
LIMITS = Entry("machine", "gradspec.bench.contenders.machine:Machine")
PYTORCH = "gradspec.bench.contenders.pytorch"
PEERS = (
    Entry("torch-eager", f"{PYTORCH}:eager", ("torch",), "torch"),
    Entry("torch-channels-last", f"{PYTORCH}:channels_last", ("torch",), "torch"),
    Entry("torch-compile", f"{PYTORCH}:compiled", ("torch",), "torch", ("pool", "net")),
    Entry("torch-compile-channels-last", f"{PYTORCH}:compiled_channels_last", ("torch",), "torch", ("net",)),
    Entry("jax", "gradspec.bench.contenders.xla:Jax", ("jax",), "jax"),
    Entry("onnxruntime", "gradspec.bench.contenders.ort:OnnxRuntime", ("onnxruntime", "onnx"), "onnxruntime"),
)
NAMES = tuple(dict.fromkeys((*(peer.group for peer in PEERS), *(peer.name for peer in PEERS))))


def label(name: str) -> str:
    """A contender's name as tables and pictures show it.

    >>> label("torch-channels-last")
    'torch channels last'
    """
    return name.replace("-", " ").replace("onnxruntime", "ONNX Runtime")


class UnknownPeerError(ValueError):
    """A name that no peer has."""


class MissingPeerError(ImportError):
    """A peer that was asked for and is not installed."""


def peers(names: Iterable[str] | None, suite: str) -> list[Entry]:
    """The peers with these names, in the order of the list; with no names, all that are installed.

    A peer that is not meant for the suite takes part only under its own name.

    >>> [peer.name for peer in peers([], "conv")]
    []
    """
    if names is None:
        return [peer for peer in PEERS if suite in peer.suites and not peer.missing()]
    wanted = list(names)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise UnknownPeerError(f"there is no peer {unknown[0]!r}; choose from {', '.join(NAMES)}")
    chosen = [peer for peer in PEERS if peer.name in wanted or (peer.group in wanted and suite in peer.suites)]
    for peer in chosen:
        if missing := peer.missing():
            raise MissingPeerError(f"{peer.name} is not installed; pip install {' '.join(missing)}")
    return chosen
