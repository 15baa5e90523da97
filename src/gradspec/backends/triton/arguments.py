"""The records that kernels are launched with: numbers of a launch, and constants that kernels are compiled for."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

Shape: TypeAlias = tuple[int, ...]


# --- numbers of a launch ----------------------------------------------------------------------------------------------


class LaneArguments(NamedTuple):
    """The places of a launch, one for each lane, and the strides of tensors along its five axes."""

    total: int
    cuts: tuple[tuple[int, int, int], ...]
    """For every axis but the first: its size n, ⌈2^shift / n⌉ and shift; see ``pool_kernels.divide_index``."""
    x: Shape
    """The strides of a tensor of cells."""
    y: Shape
    """The strides of a tensor of outputs."""
    t: Shape = ()
    """The strides of a table of numbers, one for each output of a plane."""


class AxisSizes(NamedTuple):
    """The cells and the outputs of an axis."""

    size: int
    outputs: int
    lo: int
    """The padding before."""


# --- constants --------------------------------------------------------------------------------------------------------


class LaneBlock(NamedTuple):
    """The lanes of a program."""

    size: int
    axes: int
    """A bit for every axis but the first that has more than one index."""
    wide: bool
    """Whether offsets need 64 bits."""


class AxisWindows(NamedTuple):
    """The windows along an axis."""

    taps: int = 1
    stride: int = 1
    dilation: int = 1
    bins: int = 0
    """1 for bins of different widths, 2 if there are few of them; see ``pool_kernels.scale_index``."""
    edges: bool = False
    """Whether windows have taps without cells, or some have fewer taps than others."""
    readers: int = 1
    """By how many outputs a cell is read, at most."""
    padding: int = 0
    """The padding before, where vectors are read by it."""


class AxisTile(NamedTuple):
    """Neighbouring cells along an axis, whole strides or a period of its bins, and the outputs that read them; see
    ``pool_kernels.cover_tiles``."""

    taps: int
    stride: int
    bins: bool
    cells: int
    outputs: int
    """Strides or bins of a tile."""
    left: int
    """What is left of the padding when whole strides are taken away."""
    first: int
    """The first of the outputs, counted from the one that begins where the tile does without padding."""
    readers: int
    padding: int = 0
    """The padding before, where vectors are read by it."""


class Operation(NamedTuple):
    """What a pass computes. Kinds are those of ``pool_kernels``."""

    kind: int
    lowest: float | int = 0
    factor: float = 1
    """What cells are multiplied by first; 0: their absolute values are taken."""
    p: float = 0.0
    """β, or the exponent of a norm."""
    split: bool = False
    """Whether cells that tie share a derivative."""
    places: bool = False
    """Whether winners are told by their places in the plane."""
    inverse: bool = False
    """Whether sums are multiplied by the numbers of outputs, and not divided by them."""
    states: bool = False
    """Whether cells are states of an earlier pass."""
    moves: bool = False
    """Whether tangents are given."""
    last: bool = True
    """Whether no pass comes after this one."""
    gives: int = 0
    """Bits for what is stored: a value, the state's w, its tangent; and that the value is v, not what it stands for."""
    none: int = -1
    """What stands for no winner."""
    hollow: bool = False
    """Whether a window has no cell."""
    only: float | None = None
    """The one number of all outputs, or None if a table has one for each."""
