"""Sizes at which kernels that work in blocks go wrong: one axis as long as several blocks, all else tiny.

A kernel in blocks of B does the last of them apart when B does not divide a size, and does two in turns or goes to
a second level of blocks when there are enough of them. ``2^k + 1`` exceeds all blocks of 2^j by one, ``2^k − 1`` is one
short of them, and odd multiples leave one block over where they go in pairs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gradspec.conformance.cases.axes import DrawnAxis, output_count

BLOCKS = {
    "block_width": "the last axis",
    "block_height": "another spatial axis",
    "block_channels": "channels, those of the input",
    "block_out_channels": "channels of the output",
    "block_groups": "groups of channels",
    "block_batch": "samples",
}
"""The features of a long axis, and which axis it is."""
SIZES = (
    *(2049, 2047, 1536, 257, 1025, 192, 513, 129, 255, 65, 2048, 800, 33, 161, 1023, 97),
    *(511, 160, 127, 101, 63, 49, 48, 31, 17, 15, 1024, 512, 256, 128, 64, 32, 16),
)
"""In the order in which they are tried. The first exceeds every usual block and is divided by none; so does the second,
with as many left over as can be and, behind them, an odd number of blocks; many divide the third."""
BEYOND_GRID = (65_537, 65_535)
"""Around the most that the second and third axis of a grid of CUDA take, for samples and planes."""
MOST_BESIDE = 257
"""Of a corner's longer axis, and of what the oracle takes a while for: groups, and smooth maxima."""
OFTEN = 520
"""Sizes of most cases that have other features beside, which are many."""
MULTIPLES = 4096
"""Blocks that are longer are not repeated."""


def sizes_around(blocks: Sequence[int]) -> list[int]:
    """Sizes at which kernels of these blocks go wrong: one more, one less, and odd multiples.

    >>> sizes_around([96])
    [289, 97, 96, 95, 288, 482, 191]
    """
    found: list[int] = []
    for block in blocks:
        single = [block + 1, block, block - 1]
        odd = [3 * block + 1, *single, 3 * block, 5 * block + 2, 2 * block - 1]
        found += odd if block <= MULTIPLES else single
    return [size for size in dict.fromkeys(found) if size > 0]


def most(op: str, blocks: Sequence[str]) -> int | None:
    """The longest axis of an operator's cases, if there is a limit."""
    limited = op == "smooth_max_pool" or len(blocks) > 1 or "block_groups" in blocks
    return MOST_BESIDE if limited else None


def drawn_size(rng: np.random.Generator, op: str, blocks: Sequence[str], least: int) -> int:
    """A size of a case that has other features beside; mostly not among the longest."""
    longest = most(op, blocks) or (OFTEN if rng.random() < 0.8 else SIZES[0])
    return int(rng.choice([size for size in SIZES if least <= size <= longest]))


def stretched(rng: np.random.Generator, axis: DrawnAxis, size: int, family: str, ceil: bool) -> DrawnAxis:
    """An axis whose input or, as often, whose output has so many cells.

    >>> stretched(np.random.default_rng(0), DrawnAxis(5, 2, 2, outputs=2), 33, "sliding", False).outputs
    33
    """
    on_output = bool(rng.integers(2))
    if family == "whole":
        return axis._replace(size=size)
    if family == "adaptive":
        uneven = axis.size % axis.outputs != 0
        longer = size + size // 2 + 1 if uneven else size * int(rng.integers(1, 3))
        return axis._replace(size=longer, outputs=size) if on_output else axis._replace(size=size)
    extent = axis.dilation * (axis.kernel - 1) + 1
    if family == "transposed":
        before = size + axis.lo + axis.hi - extent - axis.extra
        count = before // axis.stride + 1 if on_output and before % axis.stride == 0 else size
        return axis._replace(size=count, outputs=count)
    if on_output:  # as many strides more, so that a rest at the end stays
        return axis._replace(size=axis.size + (size - axis.outputs) * axis.stride, outputs=size)
    outputs = int(output_count(size, extent, axis.stride, axis.lo, axis.hi, ceil))
    return axis._replace(size=size, outputs=outputs)
