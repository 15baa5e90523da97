"""Who takes part. A contender says how its users would write a problem; nothing here imports a peer.

How a library is called is known to the judge's targets already: `as_problem` says a cell of the grid in their words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from time import perf_counter
from typing import Any, Protocol, TypeAlias

from gradspec.bench.grid import BETA, GPU_GRID, GRID, Array, BenchProblem, Cell, Conv, Network, Pool
from gradspec.conformance.model.device import HOST, Device
from gradspec.conformance.model.problem import Problem
from gradspec.conformance.targets.devices import device_named

Function: TypeAlias = Callable[..., Any]
"""Of a contender's own arrays."""
Call: TypeAlias = Callable[[], Any]
Variants = dict[str, Call]
GIVEN, FIXED = "weights given", "weights fixed"  # in each call, or once before all calls


class Contender(Protocol):
    """What a worker process drives."""

    def seconds(self, call: Call, calls: int) -> float:
        """What a call takes, in the mean of so many: by the clock of the host, unless a contender has a better one."""
        start = perf_counter()
        for _ in range(calls):
            call()
        return (perf_counter() - start) / calls

    def versions(self) -> dict[str, str]:
        """Of everything that decides the speed."""

    def variants(self, problem: BenchProblem) -> Variants:
        """Ways to write the problem, inputs prepared: calls that do all the work and return the results."""

    def arrays(self, results: Any) -> list[Array]:
        """What a call returned, as NumPy arrays in the order value, derivatives."""
        return list(results) if isinstance(results, tuple | list) else [results]


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
LIMITS = Participant("machine", "gradspec.bench.contenders.ours:Machine")
PYTORCH, GPU = "gradspec.bench.contenders.pytorch", "gradspec.bench.contenders.gpu"
PEERS = (
    Participant("torch-eager", f"{PYTORCH}:eager", ("torch",), "torch"),
    Participant("torch-channels-last", f"{PYTORCH}:channels_last", ("torch",), "torch"),
    Participant("torch-compile", f"{PYTORCH}:compiled", ("torch",), "torch", ("pool", "net")),
    Participant("torch-compile-channels-last", f"{PYTORCH}:compiled_channels_last", ("torch",), "torch", ("net",)),
    Participant("jax", "gradspec.bench.contenders.xla:Jax", ("jax",), "jax"),
    Participant("onnxruntime", "gradspec.bench.contenders.ort:OnnxRuntime", ("onnxruntime", "onnx"), "onnxruntime"),
)


@dataclass(frozen=True)
class Race:
    """Where contenders run, what, and who they are; ``limits`` is what the machine itself can do."""

    ours: Participant
    limits: Participant
    peers: tuple[Participant, ...]
    device: Device
    grid: Mapping[str, tuple[Cell, ...]]

    def missing(self, peer: Participant) -> str:
        """Why a peer cannot take part; nothing if it can."""
        if packages := peer.missing():
            return f"{packages[0]} is not installed; pip install {' '.join(packages)}"
        return self.device.missing(peer.group)

    def facts(self) -> dict[str, str]:
        """The GPU, its driver, and what PyTorch has of CUDA; nothing of the CPU."""
        known = self.device.facts("torch")
        return {name: known[name] for name in ("GPU", "driver", "CUDA", "cuDNN") if name in known}

    def environment(self) -> dict[str, str]:
        """The variables of a worker; it sees one GPU and calls it ``cuda``."""
        kind, _, number = self.device.name.partition(":")
        return device_named(kind).environment(int(number or 0))


ON_CPU = Race(OURS, LIMITS, PEERS, HOST, GRID)


def race_on(device: str) -> Race:
    """The race on ``cpu``, ``cuda`` or one GPU of several, ``cuda:1``.

    >>> [peer.name for peer in race_on("cuda").peers]
    ['torch-eager', 'torch-compile', 'jax']
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", device):
        raise UnknownNameError(f"there is no device {device!r}; use cpu, cuda or one GPU of several, such as cuda:1")
    if device == "cpu":
        return ON_CPU
    ours, limits, *peers = (
        Participant(name, f"{GPU}:{factory}", (library,), library)
        for name, factory, library in (
            (OURS.name, "ours", "torch"),
            (LIMITS.name, "limits", "torch"),
            ("torch-eager", "eager", "torch"),
            ("torch-compile", "compiled", "torch"),
            ("jax", "JaxOnGpu", "jax"),
        )
    )
    return Race(ours, limits, tuple(peers), device_named(device), GPU_GRID)


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
        return Problem(f"global_{problem.op}_pool", rank, (cell.shape,), {}, cell.dtype)
    if cell.is_adaptive:
        bins = {"output_size": cell.output_size}
        return Problem(f"adaptive_{problem.op}_pool", rank, (cell.shape,), bins, cell.dtype)
    kernel, stride, padding = cell.windows
    windows = {"kernel_size": kernel, "stride": stride, "padding": tuple((p, p) for p in padding)}
    if problem.op == "smooth":
        return Problem("smooth_max_pool", rank, (cell.shape,), {**windows, "beta": BETA}, cell.dtype)
    return Problem(f"{problem.op}_pool", rank, (cell.shape,), windows, cell.dtype)


Own: TypeAlias = Any
"""An array of a contender's own library."""
Operators: TypeAlias = Mapping[str, Function]
"""What networks and their losses are made of, by the kinds of layers, on a contender's own arrays."""


def network_of(network: Network, mode: str, operators: Operators) -> Function:
    """The network's result, or the loss that its gradient is of, by weight and bias of every layer that has them."""

    def value(x: Own, *parameters: Own) -> Own:
        remaining, kept = iter(parameters), x
        for layer in network.layers:
            if layer.kind == "keep":
                kept = x
                continue
            weights = [next(remaining), next(remaining)] if layer.kind in ("conv", "linear") else []
            if layer.kind == "conv":
                more: tuple[object, ...] = (*weights, layer.stride, layer.padding)
            elif layer.kind == "max_pool":
                more = (layer.kernel, layer.stride, layer.padding)
            else:
                more = (kept,) if layer.kind == "add" else tuple(weights)
            x = operators[layer.kind](x, *more)
        return x if mode == "forward" else operators[network.loss](x)

    return value


def label(name: str) -> str:
    """A contender's name as tables and pictures show it.

    >>> label("torch-channels-last")
    'torch channels last'
    """
    return name.replace("-", " ").replace("onnxruntime", "ONNX Runtime")


class UnknownNameError(ValueError):
    """A name that no device, or no peer, has."""


class MissingPeerError(ImportError):
    """A peer that was asked for and cannot take part."""


def peers(names: Iterable[str] | None, suite: str, race: Race = ON_CPU) -> list[Participant]:
    """The peers with these names, in the order of the list; with no names, all that can take part.

    A peer that is not meant for the suite takes part only under its own name.

    >>> [peer.name for peer in peers([], "conv")]
    []
    """
    if names is None:
        return [peer for peer in race.peers if suite in peer.suites and not race.missing(peer)]
    wanted = list(names)
    known = dict.fromkeys((*(peer.group for peer in race.peers), *(peer.name for peer in race.peers)))
    if unknown := [name for name in wanted if name not in known]:
        raise UnknownNameError(f"there is no peer {unknown[0]!r}; choose from {', '.join(known)}")
    chosen = [peer for peer in race.peers if peer.name in wanted or (peer.group in wanted and suite in peer.suites)]
    for peer in chosen:
        if missing := race.missing(peer):
            raise MissingPeerError(missing)
    return chosen
