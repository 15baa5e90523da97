"""What gradspec is to reach, as data, and whether a run does: ratios over named groups of cells.

The figures are for float32 on two cores, by kind of processor.
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import geometric_mean

from gradspec.bench.contenders import PEERS, label
from gradspec.bench.grid import MODES
from gradspec.bench.measure import BenchRun, Measured, Timing
from gradspec.bench.ratios import ratio_to_peer, share_of_product

DEFAULT_LAYOUT = ("torch-eager", "jax", "onnxruntime")
PROCESSORS = {"aarch64": "AArch64", "arm64": "AArch64", "x86_64": "x86-64", "AMD64": "x86-64"}


@dataclass(frozen=True)
class SpeedTarget:
    """A ratio that every cell of a group must reach or, ``in_mean``, their geometric mean."""

    mode: str
    cells: tuple[str, ...]
    least: float
    peers: tuple[str, ...] | None = None  # the fastest of these; None: of all
    of_product: bool = False  # a share of the best matrix product's rate instead
    in_mean: bool = False

    @property
    def against(self) -> str:
        if self.of_product:
            return "best matrix product"
        if self.peers is None:
            return "fastest peer"
        return ("fastest of " if len(self.peers) > 1 else "") + ", ".join(map(label, self.peers))

    def ratio(self, result: Measured, run: BenchRun) -> float | None:
        """None where it was not measured, or not against everybody it is about."""
        if not result.is_complete:
            return None
        if self.of_product:
            return share_of_product(result, run)
        wanted = self.peers or tuple(peer.name for peer in PEERS if run.suite in peer.suites)
        if any(name in run.unavailable or not _took_part(result.timings.get(name)) for name in wanted):
            return None
        return ratio_to_peer(result, self.peers)


def _took_part(timing: Timing | None) -> bool:
    """Whether a peer was timed, or asked and has no such operator."""
    return timing is not None and (bool(timing.samples) or not timing.offered)


@dataclass(frozen=True)
class TargetVerdict:
    """A target and its cells' ratios, as far as they are known."""

    target: SpeedTarget
    ratios: Mapping[str, float]

    @property
    def mean(self) -> float | None:
        return geometric_mean(self.ratios.values()) if self.ratios else None

    @property
    def worst(self) -> tuple[str, float] | None:
        return min(self.ratios.items(), key=lambda item: item[1], default=None)

    @property
    def met(self) -> bool | None:
        """None if cells are missing."""
        if len(self.ratios) < len(self.target.cells) or self.mean is None or self.worst is None:
            return None
        return (self.mean if self.target.in_mean else self.worst[1]) >= self.target.least


def _cells(numbers: str) -> tuple[str, ...]:
    return tuple(f"C{number}" for number in numbers.split())


MOST, DEEP, FIRST = _cells("1 2 3 4 5 7 8 9"), _cells("1 2 4 5 9"), _cells("1 2 3 4 5")
NETWORKS = ("N1", "N2")
TARGETS: dict[tuple[str, str], tuple[SpeedTarget, ...]] = {
    ("AArch64", "conv"): (
        SpeedTarget("forward", _cells("1 3 4 5"), 0.85, of_product=True),
        SpeedTarget("forward", MOST, 1.15, DEFAULT_LAYOUT, in_mean=True),
        SpeedTarget("forward", MOST, 1.0, DEFAULT_LAYOUT),
        SpeedTarget("forward", _cells("1 2 3 4 5 7 9"), 0.95, ("torch-channels-last",)),
        SpeedTarget("forward", _cells("6 10 11"), 1.0),
        SpeedTarget("forward", _cells("12"), 1.5, ("jax",)),
        SpeedTarget("jvp", _cells("1 3 5"), 0.8, of_product=True),
        SpeedTarget("vjp", _cells("1 3 5"), 0.8, of_product=True),
        SpeedTarget("vjp", DEEP, 1.5, ("torch-eager",)),
        SpeedTarget("vjp", DEEP, 1.2, ("torch-channels-last",)),
        SpeedTarget("vjp", DEEP, 2.0, ("jax",)),
        SpeedTarget("vjp", _cells("6"), 10.0),
    ),
    ("x86-64", "conv"): (
        SpeedTarget("forward", FIRST, 0.9, ("torch-eager",)),
        SpeedTarget("forward", FIRST, 1.2, ("onnxruntime",)),
        SpeedTarget("vjp", FIRST, 1.2, ("torch-eager",)),
    ),
    ("AArch64", "net"): (SpeedTarget("forward", NETWORKS, 1.1), SpeedTarget("vjp", NETWORKS, 1.5)),
}


def verdicts(run: BenchRun, machine: str | None = None) -> list[TargetVerdict]:
    """The targets of the run's suite that it says something about, on this kind of machine.

    >>> from gradspec.bench.measure import Settings
    >>> verdicts(BenchRun("pool", Settings(threads=2), ["gradspec"]))
    []
    """
    processor = PROCESSORS.get(machine or platform.machine(), "")
    judged = [_judged(target, run) for target in TARGETS.get((processor, run.suite), ())]
    return [verdict for verdict in judged if verdict.ratios]


def _judged(target: SpeedTarget, run: BenchRun) -> TargetVerdict:
    assert target.mode in MODES
    results = [r for r in run.results if r.problem.mode == target.mode and r.problem.cell.name in target.cells]
    ratios = {result.problem.cell.name: target.ratio(result, run) for result in results}
    return TargetVerdict(target, {cell: ratio for cell, ratio in ratios.items() if ratio is not None})
