"""Who takes part. A contender says how its users would write a problem; nothing here imports a peer.

How a library is called is known to the judge's targets already: `as_problem` says a cell of the grid in their words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

from gradspec.bench.data import Array
from gradspec.bench.grid import BETA, BenchProblem, Conv, Pool
from gradspec.conformance.model.problem import Problem

Variants = dict[str, Callable[[], Any]]
GIVEN, FIXED = "weights given", "weights fixed"  # in each call, or once before all calls


class Contender(Protocol):
    """What a worker process drives."""

    def versions(self) -> dict[str, str]:
        """Of everything that decides the speed."""

    def variants(self, problem: BenchProblem) -> Variants:
        """Ways to write the problem, inputs prepared: calls that do all the work and return the results."""

    def arrays(self, results: Any) -> list[Array]:
        """What a call returned, as NumPy arrays in the order value, derivatives."""


@dataclass(frozen=True)
class Participant:
    """How a contender is called, and where a worker finds it."""

    name: str
    factory: str  # module:function, called with the number of threads
    needs: tuple[str, ...] = ()
    group: str = ""
    suites: tuple[str, ...] = ("pool", "conv", "net")  # where it takes part without being named

    def missing(self) -> list[str]:
        return [package for package in self.needs if find_spec(package) is None]


OURS = Participant("gradspec", "gradspec.bench.contenders.ours:Ours")
LIMITS = Participant("machine", "gradspec.bench.contenders.machine:Machine")
PYTORCH = "gradspec.bench.contenders.pytorch"
PEERS = (
    Participant("torch-eager", f"{PYTORCH}:eager", ("torch",), "torch"),
    Participant("torch-channels-last", f"{PYTORCH}:channels_last", ("torch",), "torch"),
    Participant("torch-compile", f"{PYTORCH}:compiled", ("torch",), "torch", ("pool", "net")),
    Participant("torch-compile-channels-last", f"{PYTORCH}:compiled_channels_last", ("torch",), "torch", ("net",)),
    Participant("jax", "gradspec.bench.contenders.xla:Jax", ("jax",), "jax"),
    Participant("onnxruntime", "gradspec.bench.contenders.ort:OnnxRuntime", ("onnxruntime", "onnx"), "onnxruntime"),
)
NAMES = tuple(dict.fromkeys((*(peer.group for peer in PEERS), *(peer.name for peer in PEERS))))


def as_problem(problem: BenchProblem) -> Problem:
    """A pooling or convolution of the grid as the judge would ask it.

    >>> from gradspec.bench.grid import problem
    >>> as_problem(problem("P10", "max", "forward")).op
    'global_max_pool'
    """
    cell, rank = problem.cell, problem.cell.rank
    if isinstance(cell, Conv):
        steps = {"stride": (cell.stride,) * rank, "padding": ((cell.padding,) * 2,) * rank}
        more = {"dilation": (cell.dilation,) * rank, "groups": cell.groups}
        op = "conv_transpose" if cell.transposed else "conv"
        return Problem(op, rank, (cell.shape, cell.weight, None), {**steps, **more})
    assert isinstance(cell, Pool)
    if cell.is_global and problem.op != "smooth":
        return Problem(f"global_{problem.op}_pool", rank, (cell.shape,), {})
    if cell.is_adaptive:
        return Problem(f"adaptive_{problem.op}_pool", rank, (cell.shape,), {"output_size": cell.output_size})
    kernel, stride, padding = cell.windows
    windows = {"kernel_size": kernel, "stride": stride, "padding": tuple((p, p) for p in padding)}
    if problem.op == "smooth":
        return Problem("smooth_max_pool", rank, (cell.shape,), {**windows, "beta": BETA})
    return Problem(f"{problem.op}_pool", rank, (cell.shape,), windows)


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


def peers(names: Iterable[str] | None, suite: str) -> list[Participant]:
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
