"""The processor that kernels are built for: its vector registers, and the tiles that fill them."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache


@dataclass(frozen=True)
class Processor:
    """What kernels are built from, and blocks are cut by."""

    register_bytes: int
    registers: int
    loop_bytes: int
    """What one operation of a loop over lanes works on: a register, or several where that is faster."""
    lane_products: bool = False
    """Whether one instruction multiplies a vector by a lane of another; else a number is read into all lanes."""
    gathers_strips: bool = False
    """Whether columns that several panels read are put side by side first: where they lie on more pages than the
    processor remembers, reading them there again and again takes longer."""
    reads_across: bool = False
    """Whether a vector that lies across two which were just written is read without waiting for the cache."""
    half_arithmetic: bool = False
    """Whether float16 can be computed with."""
    keeps_bfloat16: bool = True
    """Whether what LLVM moves as bfloat16 keeps its bits. Where AVX-512 converts to that format, LLVM may select in
    float32 and convert the result, and that conversion takes subnormal numbers for 0."""
    orders_zeros: bool = False
    """Whether an instruction takes the larger of two vectors of any length, of zeros +0 (AVX-512 DQ and VL)."""

    def lanes(self, itemsize: int) -> int:
        """Numbers of so many bytes in one register."""
        return self.register_bytes // itemsize

    def loop_lanes(self, itemsize: int) -> int:
        """Iterations that a loop over lanes carries out at once."""
        return max(1, self.loop_bytes // itemsize)

    @property
    def tiles(self) -> Mapping[int, tuple[int, ...]]:
        """The rows of a register tile, most first, and the numbers of vectors that it comes in.

        A tile of r rows and v vectors holds r·v sums while it multiplies v vectors of one operand by r numbers of the
        other, so r·v + v + 1 registers are needed: 8·3 + 3 + 1 of 32 (the rest hide the time that loads take), and
        4·3 + 3 + 1 of 16. Each step loads r + v times for r·v products, which few rows make good by many vectors; eight
        sums or more run at once, and hide the time that an addition takes.
        """
        if self.registers >= 32:
            return {8: (3, 2, 1), 4: (6, 3, 2, 1), 2: (8, 4, 2, 1), 1: (8, 4, 2, 1)}
        return {4: (3, 2, 1), 2: (5, 2, 1), 1: (8, 4, 2, 1)}

    @property
    def most_rows(self) -> int:
        return max(self.tiles)

    @property
    def strip_bytes(self) -> int:
        # Of the tile with the most rows.
        return self.tiles[self.most_rows][0] * self.register_bytes


PROCESSORS = {
    "avx512f": Processor(register_bytes=64, registers=32, loop_bytes=64),
    "avx2": Processor(register_bytes=32, registers=16, loop_bytes=32),
    "neon": Processor(
        register_bytes=16, registers=32, loop_bytes=32, lane_products=True, gathers_strips=True, reads_across=True
    ),
}
"""By the first of these features that there is."""

AT_HWCAP, HWCAP_ASIMDHP = 16, 1 << 10
"""Where Linux keeps what an Arm processor can do, and its word for vectors of float16."""

PLAIN = Processor(register_bytes=16, registers=16, loop_bytes=16)


def described(features: Mapping[str, bool]) -> Processor:
    """By what the processor can do.

    >>> described({"avx2": True, "avx512f": False}).most_rows, described({"neon": True}).most_rows
    (4, 8)
    """
    return next((found for feature, found in PROCESSORS.items() if features.get(feature)), PLAIN)


def _computes_with_halves(features: Mapping[str, bool]) -> bool:
    """Of Arm's processors LLVM does not tell; Linux does."""
    if platform.machine() != "aarch64":
        return bool(features.get("avx512fp16"))
    try:
        return bool(ctypes.CDLL(None).getauxval(AT_HWCAP) & HWCAP_ASIMDHP)
    except (OSError, AttributeError):
        return False


@cache
def processor() -> Processor:
    """The one of this machine."""
    import llvmlite.binding as llvm

    features = llvm.get_host_cpu_features()
    zeros = bool(features.get("avx512dq") and features.get("avx512vl"))
    return replace(
        described(features),
        half_arithmetic=_computes_with_halves(features),
        keeps_bfloat16=not features.get("avx512bf16"),
        orders_zeros=zeros,
    )
