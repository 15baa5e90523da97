"""The processor's vector registers and the tiles that fill them: what kernels are built from, and blocks cut by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache


@dataclass(frozen=True)
class Registers:
    """A processor's vector registers, and the tiles that fill them."""

    bytes: int
    count: int
    lane_products: bool = False
    """Whether one instruction multiplies a vector by a lane of another; else a number is read into all lanes."""

    def lanes(self, itemsize: int) -> int:
        """Numbers of so many bytes in one register."""
        return self.bytes // itemsize

    @property
    def shapes(self) -> Mapping[int, tuple[int, ...]]:
        """The rows of a tile, most first, and the numbers of vectors that it comes in.

        The widest leave registers for one column of ``a`` and one row of ``b``; few rows go with many vectors, so that
        eight or more sums run at once and hide the time that an addition takes.
        """
        if self.count >= 32:
            return {8: (3, 2, 1), 4: (6, 3, 2, 1), 2: (8, 4, 2, 1), 1: (8, 4, 2, 1)}
        return {4: (3, 2, 1), 2: (5, 2, 1), 1: (8, 4, 2, 1)}

    @property
    def most_rows(self) -> int:
        return max(self.shapes)

    @property
    def strip_vectors(self) -> int:
        """Of the tile with the most rows."""
        return self.shapes[self.most_rows][0]

    @property
    def most_vectors(self) -> int:
        return max(max(widths) for widths in self.shapes.values())


def registers(features: Mapping[str, bool]) -> Registers:
    """By what the processor can do.

    >>> registers({"avx2": True}).most_rows, registers({"neon": True}).most_rows
    (4, 8)
    """
    if features.get("avx512f"):
        return Registers(64, 32)
    if features.get("avx2"):
        return Registers(32, 16)
    if features.get("neon"):
        return Registers(16, 32, lane_products=True)
    return Registers(16, 16)


@cache
def machine() -> Registers:
    """Those of this processor."""
    import llvmlite.binding as llvm

    return registers(llvm.get_host_cpu_features())
