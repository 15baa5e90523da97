"""Random numbers of a dtype with a purpose: full significands, powers of two, small integers, distinct numbers."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from gradspec.conformance.model.problem import DTYPES, FLOATS, Array, Shape
from gradspec.domains.formats import Format, format_named


def generator(*seed: int) -> np.random.Generator:
    """Random numbers that are the same for the same seed, on every machine."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence(seed)))


LOWEST, HIGHEST = -5, 1
"""Ordinary numbers lie between 2^LOWEST and 2^HIGHEST, so that a thousand products of them fit into float16."""


@dataclass(frozen=True)
class Numbers:
    """A source of numbers of one dtype."""

    rng: np.random.Generator
    dtype: str

    @property
    def type(self) -> np.dtype[Any]:
        return DTYPES[self.dtype]

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def format(self) -> Format:
        return format_named(self.dtype)

    def signs(self, shape: Shape) -> Array:
        return 1.0 - 2.0 * self.rng.integers(0, 2, shape)

    def full(self, shape: Shape, low: int = LOWEST, high: int = HIGHEST) -> Array:
        """Numbers that use every bit of their significand, of either sign, from 2^low to 2^high."""
        p = self.format.precision
        significand = self.rng.integers(1 << (p - 1), 1 << p, shape) | 1
        exponent = self.rng.integers(low, high, shape) - p + 1
        return (self.signs(shape) * np.ldexp(significand.astype(np.float64), exponent)).astype(self.type)

    def powers(self, shape: Shape) -> Array:
        """±2^k for small k."""
        return (self.signs(shape) * np.ldexp(1.0, self.rng.integers(-2, 3, shape))).astype(self.type)

    def small(self, shape: Shape, largest: int, density: float = 1.0, exponent: int = 0) -> Array:
        """Integers up to ``largest``, some of them zero, times a power of two."""
        whole = self.rng.integers(1, largest + 1, shape) * self.signs(shape)
        kept = self.rng.random(shape) < density if density < 1 else np.True_
        return np.ldexp(np.where(kept, whole, 0.0), exponent).astype(self.type)

    def distinct(self, planes: int, cells: int) -> Array | None:
        """``[plane, cell]`` with no two equal cells in a plane; None where the dtype has too few numbers."""
        total = self._codes
        if cells > total:
            return None
        step = total // max(cells, 1)
        codes = np.arange(cells) * step + self.rng.integers(0, step, (planes, cells))
        order = np.argsort(self.rng.random((planes, cells)), axis=1)
        return self._decoded(np.take_along_axis(codes, order, axis=1))

    @property
    def _codes(self) -> int:
        """How many numbers `distinct` chooses from."""
        if self.is_float:
            return 2 * (HIGHEST - LOWEST + 6) << (self.format.precision - 1)
        ends = np.iinfo(self.type)
        return min(ends.max - ends.min - 20, 1 << 20)

    def _decoded(self, codes: Array) -> Array:
        if not self.is_float:
            middle = (int(np.iinfo(self.type).max) + int(np.iinfo(self.type).min) + 1) // 2
            return np.asarray(codes - self._codes // 2 + middle, self.type)
        p = self.format.precision
        significand = (1 << (p - 1)) + (codes >> 1) % (1 << (p - 1))
        exponent = LOWEST - 3 + (codes >> p) - p + 1
        signed = (1.0 - 2.0 * (codes & 1)) * significand
        return np.asarray(np.ldexp(signed, exponent), self.type)

    def subnormal(self, shape: Shape) -> Array:
        """Numbers below the smallest normal one, none of them zero."""
        p, tiniest = self.format.precision, float(self.format.tiniest)
        return (self.signs(shape) * self.rng.integers(1, 1 << (p - 1), shape) * tiniest).astype(self.type)

    def huge(self, shape: Shape) -> Array:
        """Numbers from half the largest up to it."""
        if not self.is_float:
            ends = np.iinfo(self.type)
            near = self.rng.integers(0, 7, shape)
            low = ends.min + near if ends.min else ends.max - near
            return np.where(self.rng.random(shape) < 0.5, ends.max - near, low).astype(self.type)
        share = 0.5 + 0.5 * self.rng.random(shape)
        return (self.signs(shape) * (float(self.format.largest) * share)).astype(self.type)


def planes(array: Array, axes: int) -> Array:
    """``[plane, cell]``: a view with the last ``axes`` axes as one."""
    cells = prod(array.shape[array.ndim - axes :])
    return array.reshape(prod(array.shape[: array.ndim - axes]), cells)
