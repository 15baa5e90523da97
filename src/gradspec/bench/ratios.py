"""What is read off medians: ratios to peers and to the machine's limits, and rates."""

from __future__ import annotations

from collections.abc import Collection

from gradspec.bench.contenders import OURS
from gradspec.bench.measure import BenchRun, Measured

SMALLEST_LIMIT = 1 << 20  # bytes: calls on less are not about memory


def ratio_to_peer(result: Measured, among: Collection[str] | None = None) -> float | None:
    """How many times faster gradspec is than the fastest peer, or the fastest of some."""
    ours, peer = result.median(OURS.name), result.fastest_peer(among)
    return peer[1] / ours if ours and peer else None


def share_of_copy(result: Measured) -> float | None:
    """Which part of gradspec's time a copy of the same bytes takes."""
    ours, limit = result.median(OURS.name), result.copy_limit
    return limit / ours if ours and limit and result.problem.bytes >= SMALLEST_LIMIT else None


def share_of_product(result: Measured, run: BenchRun) -> float | None:
    """gradspec's operations per second, as a part of the best matrix product's."""
    ours, best = rate(result, result.median(OURS.name)), run.best_product()
    return ours / best[1] if ours and best else None


def rate(result: Measured, seconds: float | None) -> float | None:
    """Operations per second of a call that takes so long."""
    return result.problem.flops / seconds if seconds and result.problem.flops else None


def rate_of_peer(result: Measured) -> float | None:
    """Operations per second of the fastest peer."""
    peer = result.fastest_peer()
    return rate(result, peer[1]) if peer else None
