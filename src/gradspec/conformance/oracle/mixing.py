"""What algorithms mix into an output beside its own leaves, and what becomes of the theorem's S, N and K then.

Transforms (`fft`, `winograd`) and running sums (`prefix_sum`, `integral_image`) give the right sum in exact arithmetic,
but on the way an output meets the numbers of a whole *region*. Their errors are bounded by what is in the region, and
what is not finite there may spread over all of it. Each algorithm says which region that is, and with which mass, how
many roundings and how many underflows the theorem holds: ``E = Γ_N·S + K·(η/2)·(1+u)^(N−1)``, as for any sum.
docs/tolerance.md derives the numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, TypeVar

import numpy as np

from gradspec.backends.tables import ABSENT, table
from gradspec.conformance.model.arithmetic import Arithmetic
from gradspec.conformance.model.problem import Array
from gradspec.conformance.oracle.meaning import Bools, Floats, Ints
from gradspec.conformance.oracle.sums import NO_GRAIN, SLACK, ZERO_GRAIN, Mixture, lowest_bits, quotient_grains
from gradspec.domains.exact import rational
from gradspec.spec.window import Regular, Window

TRANSFORMS = ("fft", "winograd")
RUNNING_SUMS = ("prefix_sum", "integral_image")
STAGE_ROUNDINGS = 24
"""A stage of an FFT errs by ``24u`` times the binary logarithm of its radix, for radices up to 11."""
TILE = 8
"""Cells of the largest tile of Winograd's algorithm along an axis."""
TILE_ROUNDINGS = 20
"""Of the three transforms of a tile along one axis."""
TILE_GAIN, SMALL_TILE_GAIN = 70, 8
"""By how much these exceed what goes in, along one axis: in tiles of up to 8 cells, and of 4."""
TILE_GROWTH = 64
"""How much larger the numbers of a tile become by one transform along one axis, in any usual scaling."""


# --- the numbers of a region ------------------------------------------------------------------------------------------


class Region(NamedTuple):
    """How large the numbers of regions are, and which of them hold something that is not finite."""

    size: Floats
    wild: Bools

    def over(self, axes: tuple[int, ...]) -> Region:
        """Regions joined over some axes, which are kept as ones: sizes as in a Euclidean norm."""
        top = self.size.max(axis=axes, keepdims=True, initial=0.0)
        scaled = self.size / np.where(top > 0, top, 1.0)
        norm = top * np.sqrt((scaled * scaled).sum(axis=axes, keepdims=True))
        return Region(norm, np.any(self.wild, axis=axes, keepdims=True))

    def largest(self, axis: int) -> Region:
        """Regions joined over an axis, which is kept as one: sizes as in a maximum norm."""
        return Region(self.size.max(axis, keepdims=True, initial=0.0), np.any(self.wild, axis, keepdims=True))

    def turned(self, *axes: int) -> Region:
        """With the axes in another order."""
        return Region(self.size.transpose(axes), self.wild.transpose(axes))


def region(array: Floats) -> Region:
    """Every number a region of its own."""
    finite = np.isfinite(array)
    return Region(np.abs(np.where(finite, array, 0.0)), ~finite)


class Near(NamedTuple):
    """For every place along an axis the stretch of another axis, of ``size`` cells, that a tile may hold beside it."""

    size: int
    stretches: list[slice]

    @staticmethod
    def of(size: int, first: Ints, last: Ints) -> Near:
        ends = zip(np.clip(first, 0, size).tolist(), np.clip(last + 1, 0, size).tolist(), strict=True)
        return Near(size, [slice(*stretch) for stretch in ends])


def cells_near(axis: Regular) -> Near:
    """For every output. Strided and dilated windows are computed phase by phase."""
    start = np.arange(axis.outputs) * axis.stride - axis.lo
    return Near.of(axis.size, start - _beside(axis), start + axis.dilation * (axis.kernel - 1) + _beside(axis))


def outputs_near(axis: Regular) -> Near:
    """For every cell, the outputs that it is near."""
    start = np.arange(axis.size) + axis.lo
    first = start - axis.dilation * (axis.kernel - 1) - _beside(axis)
    return Near.of(axis.outputs, -(-first // axis.stride), (start + _beside(axis)) // axis.stride)


def _beside(axis: Regular) -> int:
    return (TILE - 1) * axis.stride * axis.dilation


def nearby(own: Region, near: Sequence[Near]) -> Region:
    """``[…, place]``: of ``[…, cell]`` the largest of all that is near along every axis."""
    return Region(_largest_near(own.size, near), _largest_near(own.wild, near))


Numbers = TypeVar("Numbers", bound=Array)


def _largest_near(flat: Numbers, near: Sequence[Near]) -> Numbers:
    lead = flat.shape[:-1]
    part: Array = flat.reshape(*lead, *(axis.size for axis in near))
    for number, axis in enumerate(near, start=-len(near)):
        cells = np.moveaxis(part, number, 0)
        found = np.zeros((len(axis.stretches), *cells.shape[1:]), part.dtype)
        for place, stretch in enumerate(axis.stretches):
            found[place] = cells[stretch].max(axis=0, initial=0)
        part = np.moveaxis(found, 0, number)
    return part.reshape(*lead, prod(len(axis.stretches) for axis in near))  # type: ignore[return-value]


# --- transforms -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Transforms:
    """Both factors are transformed, their products added up, and the sums transformed back."""

    roundings: int
    underflows: int
    gain: float
    """How many times the product of two sizes is the mass."""
    floor: float
    """What underflow adds to a size, in units of the smallest number over u."""
    reaches: tuple[float, float]
    """How many times the product of two sizes, and one size, an intermediate result may be."""

    def mixture(self, pairs: Sequence[tuple[Region, Region]], added: Floats, arithmetic: Arithmetic) -> Mixture:
        """Of sums over pairs of factors, whose regions broadcast to the outputs, and of what is ``added`` to each."""
        floor = self.floor * _smallest(arithmetic)
        with np.errstate(over="ignore"):
            products = np.asarray(sum((a.size + floor) * (b.size + floor) for a, b in pairs))
            factors = np.asarray(sum(np.maximum(a.size, b.size) for a, b in pairs))
            mass = self.gain * products + np.abs(added)
            reach = np.maximum(self.reaches[0] * products + np.abs(added), self.reaches[1] * factors)
        something = np.logical_or.reduce([(a.size > 0) & (b.size > 0) for a, b in pairs]) | (added != 0)
        wild = np.logical_or.reduce([a.wild | b.wild for a, b in pairs])
        counts = (np.where(something, count, 0) for count in (self.roundings, self.underflows))
        return _flat(mass, reach, *counts, np.asarray(NO_GRAIN), wild)


def transforms(algorithm: str, axes: Sequence[Regular], terms: int, gradient: bool = False) -> Transforms:
    """Of a convolution by ``fft`` or ``winograd``, with so many products to a sum.

    The ``gradient`` is that of weights, whose products are those of samples, and of tiles.
    """
    return _fft(axes, terms) if algorithm == "fft" else _winograd(axes, terms, gradient)


def _fft(axes: Sequence[Regular], terms: int) -> Transforms:
    """Planes hold the padding, and a window beyond it; their sizes may be rounded up to powers of two."""
    lengths = [axis.size + axis.lo + axis.hi + axis.dilation * (axis.kernel - 1) for axis in axes]
    stages = sum((length - 1).bit_length() + 1 for length in lengths)
    cells = 2.0**stages
    roundings, underflows = 3 * STAGE_ROUNDINGS * stages + terms + 6, 4 * (terms + stages + 1)
    return Transforms(roundings, underflows, 1.0, cells, (cells, cells**0.5))


def _winograd(axes: Sequence[Regular], terms: int, gradient: bool) -> Transforms:
    """Long kernels are split into pieces of three, strided ones into phases; tiles of a gradient overlap."""
    rank = len(axes)
    parts = prod(-(-axis.kernel // 3) * min(axis.stride, axis.kernel) for axis in axes)
    each = 2 * SMALL_TILE_GAIN if gradient else TILE_GAIN if rank < 3 else SMALL_TILE_GAIN
    gain = parts * each**rank
    terms *= prod(-(-axis.outputs // 2) for axis in axes) if gradient else 1
    roundings, underflows = TILE_ROUNDINGS * rank + terms + 6, gain * (terms + TILE * rank)
    return Transforms(roundings, underflows, gain, 1.0, (gain, TILE_GROWTH**rank))


# --- running sums -----------------------------------------------------------------------------------------------------


def averages(cells: Floats, before: Floats, after: Floats, window: Window, arithmetic: Arithmetic) -> Mixture | None:
    """Of window sums as differences of running sums over whole planes.

    ``cells``, ``[plane, cell]``, are divided by ``before`` each, and the sums by ``after``.
    """
    if arithmetic.algorithm not in RUNNING_SUMS:
        return None
    roundings, gain = _running(arithmetic.algorithm, window)
    own = region(cells)
    with np.errstate(over="ignore"):
        raw, sums = (part.sum(axis=1, keepdims=True) for part in (own.size, own.size / np.abs(before)))
        mass = gain * (sums + (sums > 0) * roundings * _smallest(arithmetic)) / np.abs(after)
        reach = gain * np.maximum(np.maximum(raw, sums), sums / np.abs(after))
    bits = quotient_grains(lowest_bits(own.size), before).min(axis=1, keepdims=True, initial=ZERO_GRAIN)
    counts = np.where(sums > 0, roundings, 0)
    return _flat(mass, reach, counts, counts, quotient_grains(bits, after), np.any(own.wild, axis=1, keepdims=True))


def _running(algorithm: str, window: Window) -> tuple[int, int]:
    """Roundings of a window's sum, and how many running sums it is made of."""
    corners = 2**window.rank
    padded = prod(axis.size + 1 + (axis.lo + axis.hi if isinstance(axis, Regular) else 0) for axis in window.axes)
    cells = padded + prod(window.outputs)
    if algorithm == "integral_image":  # an entry of the table is a sum of so many terms, of the masses 1 … corners
        return cells * (corners * (corners + 1) // 2 - 1) + corners, corners
    rows = prod(int((table(Window((axis,))) != ABSENT).sum(axis=1).max(initial=0)) for axis in window.axes[:-1])
    return cells + corners, max(corners, 2 * rows)


def _smallest(arithmetic: Arithmetic) -> float:
    """The size below which numbers lose more than a factor ``1 ± u``."""
    lost = rational(arithmetic.accumulate.normal) if arithmetic.flush_to_zero else arithmetic.underflow
    return float(2 * lost / arithmetic.u)


def _flat(mass: Floats, reach: Floats, *others: Array) -> Mixture:
    """One entry for each output, sizes rounded up."""
    every = np.broadcast_arrays(mass * (1 + SLACK), reach * (1 + SLACK), *others)
    return Mixture(*(part.ravel() for part in every))
