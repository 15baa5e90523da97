"""Who takes part. A contender says how its users would write a problem; nothing here imports a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from gradspec.bench.data import Array
from gradspec.bench.grid import Problem

Variants = dict[str, Callable[[], Any]]


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

    def missing(self) -> list[str]:
        return [package for package in self.needs if find_spec(package) is None]


OURS = Entry("gradspec", "gradspec.bench.contenders.ours:Ours")
LIMITS = Entry("machine", "gradspec.bench.contenders.machine:Machine")
PYTORCH = "gradspec.bench.contenders.pytorch"
PEERS = (
    Entry("torch-eager", f"{PYTORCH}:eager", ("torch",), "torch"),
    Entry("torch-channels-last", f"{PYTORCH}:channels_last", ("torch",), "torch"),
    Entry("torch-compile", f"{PYTORCH}:compiled", ("torch",), "torch"),
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


def peers(names: Iterable[str] | None) -> list[Entry]:
    """The peers with these names, in the order of the list; with no names, all that are installed.

    >>> [peer.name for peer in peers([])]
    []
    """
    if names is None:
        return [peer for peer in PEERS if not peer.missing()]
    wanted = list(names)
    if unknown := [name for name in wanted if name not in NAMES]:
        raise UnknownPeerError(f"there is no peer {unknown[0]!r}; choose from {', '.join(NAMES)}")
    chosen = [peer for peer in PEERS if peer.name in wanted or peer.group in wanted]
    for peer in chosen:
        if missing := peer.missing():
            raise MissingPeerError(f"{peer.name} is not installed; pip install {' '.join(missing)}")
    return chosen
